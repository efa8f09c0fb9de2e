//! Handshakes of strangers, and remains of past connections. Spec: enet §8.2, A8, A9

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::{Host, LOOSE_MAX, Owner};
use crate::address::Key;
use crate::config::{LANES_MAX, MTU_MAX, MTU_MIN, Naming, WINDOW_MAX, WINDOW_MIN};
use crate::half_open::{HalfOpen, HalfOpenIndex};
use crate::peer::{Envelope, Names, Peer, Terms, window};
use crate::types::{Reason, Transmit};
use crate::wire::{
    Body, CHANNEL_NONE, Command, Dialect, Handshake, Header, PEER_ID_NONE, SESSION_MASK, SESSION_UNUSED,
};

/// Bytes that a compressed answer to a CONNECT may be longer than it: the range coder makes 34 to
/// 36 bytes of a CONNECT and 36 to 38 of the answer, whose ids are random.
const PACKED_SLACK: usize = 8;

impl Host {
    /// A datagram without a peer id: only CONNECT has something to say. Spec: enet §8.2
    pub(super) fn handle_connect(
        &mut self,
        from: SocketAddr,
        dialect: Dialect,
        datagram_len: usize,
        commands: &[u8],
    ) {
        let command = Command::decode(commands).map(|(command, _)| command.body);
        let Ok(Body::Connect(connect, data)) = command else {
            self.ctx.stats.dropped_malformed += 1;
            return;
        };
        match self.begin_handshake(from, dialect, &connect, data) {
            Some(index) => {
                if let Some(entry) = self.half_open.get_mut(index) {
                    entry.bytes_in += datagram_len;
                }
                self.answer_half_open(index, true);
            }
            None => self.ctx.stats.dropped_connects += 1,
        }
    }

    /// Finds or makes the entry for a CONNECT.
    fn begin_handshake(
        &mut self,
        from: SocketAddr,
        dialect: Dialect,
        connect: &Handshake,
        data: u32,
    ) -> Option<HalfOpenIndex> {
        let is_session = |session: u8| session <= SESSION_MASK || session == SESSION_UNUSED;
        if !(1..=u32::from(LANES_MAX)).contains(&connect.channels)
            || connect.peer_id >= PEER_ID_NONE
            || !is_session(connect.incoming_session)
            || !is_session(connect.outgoing_session)
        {
            return None;
        }
        if let Some(&index) = self.by_remote.get(&Key::new(from, connect.peer_id)) {
            let peer = self.slots[index as usize].peer.as_ref()?;
            if peer.connect_id == connect.connect_id {
                // The connection stands; this is a copy of the CONNECT that began it.
                return None;
            }
        }
        if let Some(index) = self.half_open.find(from, connect.peer_id) {
            if self.half_open.get_mut(index)?.names.connect_id == connect.connect_id {
                return Some(index);
            }
            // The client has begun anew.
            self.forget_half_open(index);
        }
        self.drop_surplus_half_open();
        if let Some(entry) = self.half_open.pop_crowded(from.ip()) {
            self.ctx.stats.dropped_half_open += 1;
            self.local_ids.remove(entry.names.address, entry.names.local_id);
        }
        let config = &self.ctx.config;
        let from_ip = self.half_open.count_of_ip(from.ip()) + self.connections_of_ip(from.ip());
        if !self.half_open.admits(from.ip())
            || self.live.len() >= config.peers_max
            || from_ip >= config.peers_per_ip_max
        {
            return None;
        }
        let local_id = self.choose_id(from)?;
        let config = &self.ctx.config;
        let (known_in, known_out) = self.closed.sessions(from, local_id);
        let (session_in, session_out) = match config.naming {
            Naming::Sequential => {
                let start = |theirs: u8, ours: u8| if theirs == SESSION_UNUSED { ours } else { theirs };
                let session_out = next_session(start(connect.incoming_session, known_out), known_out);
                let session_in = next_session(start(connect.outgoing_session, known_in), known_in);
                (session_in, session_out)
            }
            Naming::Random => {
                let bits = self.secret.draw() as u8;
                let session_in = other_session(bits & 15, [connect.outgoing_session, known_in]);
                (session_in, other_session(bits >> 4, [connect.incoming_session, known_out]))
            }
        };
        let names = Names {
            address: from,
            local_id,
            remote_id: connect.peer_id,
            connect_id: connect.connect_id,
            session_in,
            session_out,
            dialect,
        };
        let config = &self.ctx.config;
        let terms = Terms {
            lanes: (connect.channels as u8).min(config.lanes_max),
            mtu: (connect.mtu.clamp(MTU_MIN.into(), MTU_MAX.into()) as u16).min(config.mtu),
            window: window(config.outgoing_bandwidth, connect.incoming_bandwidth),
            incoming_bandwidth: connect.incoming_bandwidth,
            outgoing_bandwidth: connect.outgoing_bandwidth,
            throttle_interval: connect.throttle_interval,
            throttle_acceleration: connect.throttle_acceleration,
            throttle_deceleration: connect.throttle_deceleration,
        };
        let announced =
            window(config.incoming_bandwidth, 0).min(connect.window).clamp(WINDOW_MIN, WINDOW_MAX);
        let entry = HalfOpen::new(names, terms, announced, data, self.ctx.now_ms);
        let index = self.half_open.insert(entry);
        self.local_ids.insert(from, local_id, Owner::HalfOpen(index));
        self.arm_half_open();
        Some(index)
    }

    /// Sends VERIFY_CONNECT. `to_connect`: the datagram answered was a CONNECT and therefore proves
    /// nothing, so that not more may go out than came in but for [`PACKED_SLACK`]. Any other came
    /// with an id and a session that only the real owner of the address has seen, or one guess in
    /// 16,384.
    fn answer_half_open(&mut self, index: HalfOpenIndex, to_connect: bool) {
        let is_blind = to_connect || self.ctx.config.naming == Naming::Sequential;
        let sent_time = match self.ctx.config.naming {
            Naming::Random => self.secret.draw() as u16,
            Naming::Sequential => self.ctx.now_ms as u16,
        };
        let Some(entry) = self.half_open.get_mut(index) else { return };
        let (names, terms) = (entry.names, entry.terms);
        let (bytes_in, bytes_out) = (entry.bytes_in, entry.bytes_out);
        let verify = Handshake {
            peer_id: names.local_id,
            // Seen from the client.
            incoming_session: names.session_out,
            outgoing_session: names.session_in,
            mtu: terms.mtu.into(),
            window: entry.window_announced,
            channels: terms.lanes.into(),
            incoming_bandwidth: self.ctx.config.incoming_bandwidth,
            outgoing_bandwidth: self.ctx.config.outgoing_bandwidth,
            throttle_interval: terms.throttle_interval,
            throttle_acceleration: terms.throttle_acceleration,
            throttle_deceleration: terms.throttle_deceleration,
            connect_id: names.connect_id,
        };
        let command = Command {
            channel: CHANNEL_NONE,
            number: 1,
            acknowledge: true,
            unsequenced: false,
            body: Body::VerifyConnect(verify),
        };
        let envelope = Envelope {
            peer_id: names.remote_id,
            session: names.session_out,
            connect_id: names.connect_id,
            dialect: names.dialect,
        };
        let mut datagram = Vec::new();
        self.seal_command(envelope, Some(sent_time), &command, &mut datagram);
        let slack = if self.ctx.config.compressor.is_some() { PACKED_SLACK } else { 0 };
        if is_blind && bytes_out + datagram.len() > bytes_in + slack || self.loose.len() >= LOOSE_MAX {
            return;
        }
        let now_ms = self.ctx.now_ms;
        if let Some(entry) = self.half_open.get_mut(index) {
            entry.note_answer(sent_time, now_ms, datagram.len());
        }
        self.loose.push_back((Transmit { to: names.address, via: self.via }, datagram));
    }

    /// A datagram with the right id and session for a handshake in progress: hopefully the
    /// acknowledgement.
    pub(super) fn handle_half_open(
        &mut self,
        index: HalfOpenIndex,
        datagram_len: usize,
        commands: &[u8],
        sent_time: Option<u16>,
    ) {
        let now_ms = self.ctx.now_ms;
        let Some(entry) = self.half_open.get_mut(index) else { return };
        entry.note_heard(now_ms, datagram_len);
        let mut rest = commands;
        let mut knows_us = false;
        while let Ok((command, len)) = Command::decode(rest) {
            rest = &rest[len..];
            knows_us = true;
            match command.body {
                Body::Acknowledge { number: 1, sent_time: echoed } if command.channel == CHANNEL_NONE => {
                    if let Some(rtt_ms) = entry.round_trip_ms(now_ms, echoed) {
                        return self.promote(index, rtt_ms, rest, sent_time);
                    }
                    self.ctx.stats.dropped_acks += 1;
                }
                Body::Disconnect { .. } => return self.forget_half_open(index),
                _ => {}
            }
        }
        // The acknowledgement was lost or is still on its way. Ask again, but not for every
        // datagram of a burst.
        let is_due = entry.last_answer_ms().is_none_or(|last| now_ms >= last + ANSWER_AGAIN_MS);
        if knows_us && is_due && entry.answered < ANSWERS_MAX {
            self.answer_half_open(index, false);
        }
    }

    /// Turns a handshake into a connection: its address is proven.
    fn promote(&mut self, index: HalfOpenIndex, rtt_ms: u32, rest: &[u8], sent_time: Option<u16>) {
        let Some(entry) = self.half_open.remove(index) else { return };
        let HalfOpen { names, terms, data, .. } = entry;
        self.local_ids.remove(names.address, names.local_id);
        if let Some(&old) = self.by_remote.get(&Key::new(names.address, names.remote_id)) {
            // The same client under the same name: it has forgotten the old connection. Spec: enet
            // A9
            if let Some(peer) = self.slots[old as usize].peer.as_deref_mut() {
                peer.finish(&mut self.ctx, 0, Reason::Replaced);
                self.settle(old, false);
            }
        }
        if self.live.len() >= self.ctx.config.peers_max {
            self.ctx.stats.dropped_connects += 1;
            let command = Command {
                channel: CHANNEL_NONE,
                number: 2,
                acknowledge: false,
                unsequenced: true,
                body: Body::Disconnect { data: 0 },
            };
            let envelope = Envelope {
                peer_id: names.remote_id,
                session: names.session_out,
                connect_id: names.connect_id,
                dialect: names.dialect,
            };
            let mut datagram = Vec::new();
            self.seal_command(envelope, None, &command, &mut datagram);
            return self.answer(names.address, datagram);
        }
        let id = self.reserve();
        let mut peer = Peer::accepted(&mut self.ctx, id, names, terms, data, rtt_ms);
        peer.via = self.via;
        self.install(peer);
        self.ctx.stats.connects += 1;
        self.read_commands(id.index, rest, sent_time);
        self.settle(id.index, true);
    }

    /// Answers the DISCONNECT of a connection that it has already ended: the first answer was lost.
    /// Spec: enet A9
    pub(super) fn handle_closed(
        &mut self,
        from: SocketAddr,
        header: &Header,
        datagram: &[u8],
        header_len: usize,
    ) {
        self.ctx.stats.dropped_unknown += 1;
        let Some(entry) = self.closed.find(self.ctx.now_ms, from, header.peer_id) else { return };
        if entry.session_in != header.session {
            return;
        }
        let checksum_len = if self.ctx.config.checksum { 4 } else { 0 };
        let (head, rest) = datagram.split_at(header_len);
        let Some((sum, payload)) = rest.split_at_checked(checksum_len) else { return };
        let mut unpacked = core::mem::take(&mut self.packed);
        unpacked.clear();
        let commands = self.open(header, head, payload, entry.connect_id, &mut unpacked, || sum);
        let command =
            commands.and_then(|commands| Command::decode(commands).ok()).map(|(command, _)| command);
        let ack = command.filter(|command| command.acknowledge).and_then(|command| {
            let Body::Disconnect { .. } = command.body else { return None };
            let body = Body::Acknowledge { number: command.number, sent_time: header.sent_time? };
            Some(Command {
                channel: CHANNEL_NONE,
                number: command.number,
                acknowledge: false,
                unsequenced: false,
                body,
            })
        });
        self.packed = unpacked;
        if let Some(ack) = ack {
            let envelope = Envelope {
                peer_id: entry.remote_id,
                session: entry.session_out,
                connect_id: entry.connect_id,
                dialect: entry.dialect,
            };
            let mut datagram = Vec::new();
            self.seal_command(envelope, None, &ack, &mut datagram);
            self.answer(from, datagram);
        }
    }
}

/// Spec: enet §7.3
fn next_session(session: u8, avoid: u8) -> u8 {
    let next = session.wrapping_add(1) & SESSION_MASK;
    if next == avoid { (next + 1) & SESSION_MASK } else { next }
}

/// A session by chance, but none of the former connections of this peer: what is left of them on
/// the way would count as data of this one.
fn other_session(bits: u8, former: [u8; 2]) -> u8 {
    let mut others = (0..=SESSION_MASK).filter(|session| !former.contains(session));
    let count = others.clone().count();
    others.nth(usize::from(bits) % count).expect("two of four are left at least")
}

/// A client that has not acknowledged VERIFY_CONNECT gets another after this time; its ping comes
/// back after 500 ms.
const ANSWER_AGAIN_MS: u64 = 200;
/// Answers to one attempt: with doubling pauses, a client asks seven times before it gives up.
const ANSWERS_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_no_session_of_the_former_ones() {
        let sessions = [0, 1, 2, 3, SESSION_UNUSED];
        for former in sessions.iter().flat_map(|&one| sessions.map(|other| [one, other])) {
            let chosen: alloc::collections::BTreeSet<u8> =
                (0..16).map(|bits| other_session(bits, former)).collect();
            let left = (0..4).filter(|session| !former.contains(session)).collect();
            assert_eq!(chosen, left, "after {former:?}");
        }
    }
}
