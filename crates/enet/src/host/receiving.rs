//! Assignment of datagrams to connections, and their content. Spec: enet §9

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{Host, Owner};
use crate::checksum::Crc32;
use crate::config::MTU_MAX;
use crate::peer::Flow;
use crate::peer::State;
use crate::types::Reason;
use crate::wire::{Command, Dialect, Header, PEER_ID_NONE};
use crate::work;

impl Host {
    pub(super) fn find_owner(&mut self, from: SocketAddr, header: &Header) -> Option<Owner> {
        let mut owner =
            self.hinted_owner(from, header.peer_id).or_else(|| self.known_owner(from, header.peer_id));
        if owner.is_none() && self.broadcasts > 0 {
            owner = self.adopt_broadcast(from, header.peer_id);
        }
        let session = match owner? {
            Owner::Peer(index) => {
                let peer = self.slots[index as usize].peer.as_ref()?;
                // Before the other side is known, there is no session to compare.
                if peer.remote_id == PEER_ID_NONE { header.session } else { peer.session_in }
            }
            Owner::HalfOpen(index) => self.half_open.get_mut(index)?.names.session_in,
        };
        owner.filter(|_| session == header.session)
    }

    /// The owner without a search of the table, if the hint for its address names it.
    fn hinted_owner(&self, from: SocketAddr, id: u16) -> Option<Owner> {
        let index = self.hints.get(from);
        let peer = self.slots.get(index as usize)?.peer.as_deref()?;
        let is_owner = peer.is_mapped && peer.local_id == id && peer.address == from;
        is_owner.then_some(Owner::Peer(index))
    }

    /// The owner by the table; a peer's address gets its hint.
    fn known_owner(&mut self, from: SocketAddr, id: u16) -> Option<Owner> {
        let owner = self.local_ids.get(from, id)?;
        if let Owner::Peer(index) = owner {
            self.hints.note(from, index);
        }
        Some(owner)
    }

    /// Dialect of a datagram's sender. Spec: enet §18
    pub(super) fn dialect(&mut self, from: SocketAddr, datagram: &[u8]) -> Dialect {
        let Some(&[first, second]) = datagram.first_chunk() else { return Dialect::Stock };
        let id = u16::from_be_bytes([first, second]) & PEER_ID_NONE;
        if id == PEER_ID_NONE {
            // Stock ENet has a sent time with every CONNECT, hence bit 15.
            let is_csharp = first & 0xC0 == 0x40 && !self.ctx.config.checksum;
            return if is_csharp { Dialect::CSharp } else { Dialect::Stock };
        }
        match self.local_ids.get(from, id) {
            Some(Owner::Peer(index)) => self.slots[index as usize].peer.as_ref().map(|peer| peer.dialect),
            Some(Owner::HalfOpen(index)) => self.half_open.get_mut(index).map(|entry| entry.names.dialect),
            None => self.closed.find(self.ctx.now_ms, from, id).map(|entry| entry.dialect),
        }
        .unwrap_or_default()
    }

    /// The first answer to an attempt at the broadcast address settles its address. Spec: enet §9.2
    pub(super) fn adopt_broadcast(&mut self, from: SocketAddr, id: u16) -> Option<Owner> {
        let everybody = SocketAddr::new(IpAddr::V4(Ipv4Addr::BROADCAST), from.port());
        let owner = self.local_ids.get(everybody, id)?;
        let Owner::Peer(index) = owner else { return None };
        let peer = self.slots[index as usize].peer.as_deref_mut()?;
        self.local_ids.remove(everybody, id);
        self.local_ids.insert(from, id, owner);
        peer.address = from;
        self.broadcasts -= 1;
        Some(owner)
    }

    /// Undoes compression and checks the checksum; `None` when the datagram is to be dropped.
    pub(super) fn open<'a>(
        &mut self,
        header: &Header,
        header_bytes: &[u8],
        payload: &'a [u8],
        seed: [u8; 4],
        unpacked: &'a mut Vec<u8>,
        checksum: impl FnOnce() -> &'a [u8],
    ) -> Option<&'a [u8]> {
        let config = &mut self.ctx.config;
        let commands = if header.compressed {
            let checksum_len = if config.checksum { 4 } else { 0 };
            let len_max = usize::from(MTU_MAX) - header_bytes.len() - checksum_len;
            let is_sound = config
                .compressor
                .as_mut()
                .is_some_and(|compressor| compressor.decompress(payload, len_max, unpacked).is_ok());
            if !is_sound || unpacked.is_empty() || unpacked.len() > len_max {
                self.ctx.stats.dropped_compression += 1;
                return None;
            }
            &unpacked[..]
        } else {
            payload
        };
        if config.checksum {
            let sum = Crc32::new().update(header_bytes).update(&seed).update(commands).finish();
            if sum != checksum() {
                self.ctx.stats.dropped_checksum += 1;
                return None;
            }
        }
        Some(commands)
    }

    pub(super) fn read_commands(&mut self, index: u32, commands: &[u8], sent_time: Option<u16>) {
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        peer.note_heard(self.ctx.now_ms);
        if !peer.has_backlog() {
            return self.obey(index, commands, sent_time);
        }
        // In order, behind what the peer has sent before.
        if !peer.put_off(&mut self.ctx, commands, sent_time, false) {
            self.ctx.stats.dropped_full += 1;
        }
    }

    /// Gives those whose commands were put off their next turn.
    pub(super) fn catch_up(&mut self) {
        if self.turn_ms >= self.ctx.now_ms {
            return;
        }
        self.turn_ms = self.ctx.now_ms;
        for _ in 0..self.put_off.len() {
            let Some(index) = self.put_off.pop_front() else { return };
            while let Some(peer) = self.slots[index as usize].peer.as_deref_mut()
                && let Some((commands, sent_time)) = peer.take_put_off(&mut self.ctx)
            {
                work::step();
                self.obey(index, &commands, sent_time);
                // If it has used up its turn, it is in the list again.
                if self.put_off.back() == Some(&index) {
                    break;
                }
            }
            self.settle(index, true);
        }
    }

    /// Obeys the commands of a datagram, or as many as the peer's turn has room for.
    fn obey(&mut self, index: u32, mut commands: &[u8], sent_time: Option<u16>) {
        while !commands.is_empty() {
            let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
            if !peer.takes_command(self.ctx.now_ms) {
                if !peer.put_off(&mut self.ctx, commands, sent_time, true) {
                    self.ctx.stats.dropped_full += 1;
                }
                if peer.has_backlog() {
                    if self.put_off.is_empty() {
                        self.turn_ms = self.ctx.now_ms;
                    }
                    self.put_off.push_back(index);
                }
                return;
            }
            let mut rest = commands;
            let flow = Command::decode(commands).map_or(Flow::Stop, |(command, len)| {
                rest = &commands[len..];
                peer.handle_command(&mut self.ctx, &command, sent_time)
            });
            match flow {
                Flow::Continue => {
                    commands = rest;
                    continue;
                }
                Flow::Stop => self.ctx.stats.dropped_malformed += 1,
                // The same command again.
                Flow::Full if self.make_room(index) => continue,
                Flow::Full => self.ctx.stats.dropped_full += 1,
            }
            return;
        }
    }

    /// If the host had no room for a packet of `asking`: takes some from the peer that holds the
    /// most in packets that cannot be delivered yet, unless `asking` would hold as much itself. Of
    /// peers that were not admitted, one that was gets room in any case, and they get none from
    /// others. False when nothing was gained.
    ///
    /// Unreliable packets go first. Reliable ones were acknowledged and do not come again, so their
    /// connection ends.
    fn make_room(&mut self, asking: u32) -> bool {
        let Some(wanted) = self.ctx.budget.wanted.take() else { return false };
        let Some(index) = self.ctx.budget.ranks.first() else { return false };
        let held = |index: u32| self.slots[index as usize].peer.as_ref().map(|peer| peer.held);
        let (Some(asks), Some(gives)) = (held(asking), held(index)) else { return false };
        // One that would hold as much is refused, so none makes room for itself.
        let may = match (asks.is_newcomer, gives.is_newcomer) {
            (false, true) => true,
            (true, false) => false,
            _ => wanted < gives.waiting(),
        };
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|_| may) else { return false };
        self.ctx.stats.made_room += 1;
        if !peer.drop_loose_waiting(&mut self.ctx) && peer.state != State::Over {
            let farewell = peer.farewell(0);
            peer.finish(&mut self.ctx, 0, Reason::MadeRoom);
            self.queue_farewell(index, &farewell);
        }
        self.settle(index, false);
        true
    }
}
