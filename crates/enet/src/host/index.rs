//! The host's tables and lists, and their updates with the state of a peer.

use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr};

use throng_stdx::{Instant, TimerKey};

use super::closed::{CLOSED_MS, ClosedEntry};
use super::{Host, Owner, Slot, Timer, is_broadcast};
use crate::address::{Block, Key};
use crate::budget::Ranks;
use crate::config::Naming;
use crate::half_open::HalfOpenIndex;
use crate::peer::{Peer, State};
use crate::types::PeerId;
use crate::wire::PEER_ID_NONE;

impl Host {
    pub(super) fn advance(&mut self, now: Instant) {
        self.ctx.now_ms = self.ctx.now_ms.max(now.as_millis());
    }

    /// A free id towards `address`. Spec: enet A1
    pub(super) fn choose_id(&mut self, address: SocketAddr) -> Option<u16> {
        let first = match self.ctx.config.naming {
            Naming::Sequential => 0,
            Naming::Random => (self.secret.draw() % u64::from(PEER_ID_NONE)) as u16,
        };
        self.local_ids.free_id(address, first)
    }

    pub(super) fn connections_of_ip(&self, ip: IpAddr) -> usize {
        self.per_ip.get(&Block::of_ip(ip)).copied().unwrap_or(0)
    }

    /// Counts the connections of each IP address anew: there is a limit on them from now on, or no
    /// longer.
    pub(super) fn count_per_ip(&mut self) {
        self.per_ip.clear();
        if self.ctx.config.peers_per_ip_max == usize::MAX {
            return;
        }
        for &index in &self.live {
            if let Some(peer) = &self.slots[index as usize].peer {
                *self.per_ip.entry(Block::of_ip(peer.address.ip())).or_insert(0) += 1;
            }
        }
    }

    /// A place for a connection.
    pub(super) fn reserve(&mut self) -> PeerId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, peer: None });
            (self.slots.len() - 1) as u32
        });
        PeerId { index, generation: self.slots[index as usize].generation }
    }

    pub(super) fn install(&mut self, mut peer: Peer) {
        peer.is_mapped = true;
        peer.live_at = self.live.len() as u32;
        self.live.push(peer.id.index);
        self.hints.reserve(self.live.len());
        if self.ctx.config.peers_per_ip_max != usize::MAX {
            *self.per_ip.entry(Block::of_ip(peer.address.ip())).or_insert(0) += 1;
        }
        self.local_ids.insert(peer.address, peer.local_id, Owner::Peer(peer.id.index));
        let index = peer.id.index as usize;
        self.slots[index].peer = Some(Box::new(peer));
    }

    /// Updates the host's tables after a peer changed. `mark`: the peer may have something to send.
    pub(super) fn settle(&mut self, index: u32, mark: bool) {
        let Some(peer) = self.slots[index as usize].peer.as_deref() else { return };
        let is_known = peer.remote_id != PEER_ID_NONE;
        if Ranks::rank(peer.held) != peer.rank
            || peer.state == State::Over
            || peer.is_remote_mapped != is_known
            || peer.is_limited != (is_known && peer.incoming_bandwidth != 0)
        {
            self.settle_standing(index);
        }
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        if peer.metered_bytes > 0 && !peer.in_active {
            peer.in_active = true;
            self.bandwidth.active.push(index);
        }
        if peer.has_events() && !peer.in_ready {
            peer.in_ready = true;
            self.ready.push_back(index);
        }
        if peer.state == State::Over {
            return;
        }
        if mark && !peer.in_dirty && peer.has_output(self.ctx.now_ms) {
            peer.in_dirty = true;
            self.dirty.push_back(index);
        }
        // A datagram that leaves may move the deadline again.
        if peer.in_dirty || peer.keeps_timer(self.ctx.now_ms) {
            return;
        }
        peer.deadline_moved = false;
        if let Some(deadline) = peer.next_deadline(self.ctx.now_ms) {
            // A timer that is too early costs one look, at a peer that is no longer in the
            // processor's cache: worth moving where it stood for a command that was acknowledged,
            // and not at every acknowledgement of a stream.
            let is_armed = peer.timer.is_some_and(|(at, _)| {
                at <= deadline && (deadline - at < TIMER_EARLY_MS || peer.awaits_acknowledgement())
            });
            if !is_armed {
                if let Some((_, key)) = peer.timer.take() {
                    self.timers.cancel(key);
                }
                let key = self.timers.insert(Instant::from_millis(deadline), Timer::Peer(peer.id));
                peer.timer = Some((deadline, key));
            }
        }
    }

    /// The part of [`settle`](Self::settle) that few datagrams need: rank, the table of remote ids,
    /// and bandwidth.
    #[cold]
    fn settle_standing(&mut self, index: u32) {
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        let rank = Ranks::rank(peer.held);
        if rank != peer.rank {
            self.ctx.budget.ranks.change(index, peer.rank, rank);
            peer.rank = rank;
        }
        if peer.state == State::Over {
            self.unmap(index);
        } else if peer.remote_id != PEER_ID_NONE && !peer.is_remote_mapped {
            peer.is_remote_mapped = true;
            let limited = peer.incoming_bandwidth != 0;
            self.by_remote.insert(Key::new(peer.address, peer.remote_id), index);
            self.bandwidth.limited += usize::from(limited);
            peer.is_limited = limited;
            self.peers_changed();
        }
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        if peer.is_remote_mapped && peer.is_limited != (peer.incoming_bandwidth != 0) {
            peer.is_limited = !peer.is_limited;
            if peer.is_limited {
                self.bandwidth.limited += 1
            } else {
                self.bandwidth.limited -= 1
            }
            self.update_meters();
            self.arm_bandwidth();
        }
    }

    pub(super) fn mark_dirty(&mut self, index: u32) {
        if let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|peer| !peer.in_dirty) {
            peer.in_dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// Takes a connection that is over out of the tables by which datagrams find it.
    pub(super) fn unmap(&mut self, index: u32) {
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|peer| peer.is_mapped) else {
            return;
        };
        peer.is_mapped = false;
        let live_at = peer.live_at as usize;
        let timer: Option<TimerKey> = peer.timer.take().map(|(_, key)| key);
        if let Some(key) = timer {
            self.timers.cancel(key);
        }
        self.local_ids.remove(peer.address, peer.local_id);
        if is_broadcast(peer.address) {
            self.broadcasts -= 1;
        }
        if peer.is_remote_mapped {
            self.by_remote.remove(&Key::new(peer.address, peer.remote_id));
            self.bandwidth.limited -= usize::from(peer.is_limited);
        }
        if self.ctx.config.peers_per_ip_max != usize::MAX {
            let block = Block::of_ip(peer.address.ip());
            if let Some(count) = self.per_ip.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    self.per_ip.remove(&block);
                }
            }
        }
        self.live.swap_remove(live_at);
        let moved = self.live.get(live_at).map(|&moved| moved as usize);
        if let Some(moved) = moved.and_then(|moved| self.slots[moved].peer.as_deref_mut()) {
            moved.live_at = live_at as u32;
        }
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        if peer.is_remote_mapped {
            peer.is_remote_mapped = false;
            let entry = ClosedEntry {
                remote_id: peer.remote_id,
                connect_id: peer.connect_id,
                session_in: peer.session_in,
                session_out: peer.session_out,
                dialect: peer.dialect,
                answers: peer.ended_by_remote,
                until_ms: self.ctx.now_ms + CLOSED_MS,
            };
            self.closed.insert(peer.address, peer.local_id, entry);
            self.peers_changed();
        }
    }

    /// Forgets a connection; its name is void from now on.
    pub(super) fn remove(&mut self, index: u32) {
        self.unmap(index);
        let slot = &mut self.slots[index as usize];
        if let Some(mut peer) = slot.peer.take() {
            peer.release(&mut self.ctx);
            self.ctx.budget.ranks.change(index, peer.rank, 0);
            if peer.state != State::Over {
                self.ctx.stats.disconnects += 1;
            }
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
    }

    pub(super) fn drop_surplus_half_open(&mut self) {
        while let Some(entry) = self.half_open.pop_surplus(self.ctx.now_ms) {
            self.ctx.stats.dropped_half_open += 1;
            self.local_ids.remove(entry.names.address, entry.names.local_id);
        }
    }

    pub(super) fn forget_half_open(&mut self, index: HalfOpenIndex) {
        if let Some(entry) = self.half_open.remove(index) {
            self.local_ids.remove(entry.names.address, entry.names.local_id);
        }
    }

    pub(super) fn arm_half_open(&mut self) {
        if self.half_open_is_armed || self.half_open.len() == 0 {
            return;
        }
        if let Some(deadline) = self.half_open.next_deadline() {
            self.half_open_is_armed = true;
            let at = deadline.max(self.ctx.now_ms + HALF_OPEN_LOOK_MS);
            self.timers.insert(Instant::from_millis(at), Timer::HalfOpen);
        }
    }
}

/// The least by which a timer is put off before it fires: less than a ping interval without the
/// shortest patience for an acknowledgement.
const TIMER_EARLY_MS: u64 = 450;
/// At most one look for stale handshakes in this time.
const HALF_OPEN_LOOK_MS: u64 = 100;
