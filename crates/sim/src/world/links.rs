//! Bytes in transit: links that accept, delay and lose them.

use throng_gateway::{Closed, Framing};

use super::{Due, Note, PeerId, PeerState, World};
use crate::kcp_link::Direction;

impl World {
    pub(super) fn schedule_kcp(&mut self, peer: PeerId) {
        let end = &mut self.peers[peer.0];
        let Some(at) = end.kcp.as_ref().and_then(|kcp| kcp.next_event()) else { return };
        let at = at.max(self.now);
        if end.kcp_scheduled.is_none_or(|scheduled| at < scheduled) {
            end.kcp_scheduled = Some(at);
            self.schedule(at, Due::Kcp(peer));
        }
    }

    /// Runs the due work of a KCP connection, at both ends and between them.
    pub(super) fn run_kcp(&mut self, peer: PeerId) {
        let end = &mut self.peers[peer.0];
        if end.kcp_scheduled.is_none_or(|at| at > self.now) {
            return;
        }
        // The gateway's end lives in the thread of its shard.
        if let Some((_, shard)) = end.conn
            && self.postponed(shard, Due::Kcp(peer))
        {
            self.peers[peer.0].kcp_scheduled = Some(self.now);
            return;
        }
        let end = &mut self.peers[peer.0];
        end.kcp_scheduled = None;
        let Some(kcp) = &mut end.kcp else { return };
        kcp.run(self.now, &mut self.rng);
        if end.state == PeerState::Open {
            let down = kcp.take_arrived(Direction::Down);
            if !down.is_empty() {
                self.notes.push_back(Note::Bytes(peer, down));
            }
            if end.wants_room && kcp.room(Direction::Up) > 0 {
                end.wants_room = false;
                self.notes.push_back(Note::Room(peer));
            }
        }
        if kcp.is_dead() && end.state == PeerState::Open {
            end.state = PeerState::Over;
            self.notes.push_back(Note::Closed(peer));
        }
        let (dead, attached, conn) = (kcp.is_dead(), end.attached, end.conn);
        let up = if attached { kcp.take_arrived(Direction::Up) } else { Vec::new() };
        if let Some((conn, shard)) = conn.filter(|_| attached) {
            if !up.is_empty() {
                self.guard_conn(shard, conn, |shard, now| shard.handle_bytes(now, conn, &up));
            }
            self.write(shard, conn);
            self.drain(shard);
        }
        if dead {
            self.peers[peer.0].kcp = None;
            if let Some((conn, _)) = conn {
                self.lose(conn, Closed::Error);
            }
        }
        self.schedule_kcp(peer);
    }

    pub(super) fn schedule_up(&mut self, peer: PeerId) {
        if self.peers[peer.0].kcp.is_some() {
            return self.schedule_kcp(peer);
        }
        let end = &mut self.peers[peer.0];
        if !end.attached {
            return;
        }
        let at = match end.up.next_arrival() {
            Some(at) => at,
            // The end of the stream takes as long as a chunk would.
            None if end.up_end.is_some() => self.now + end.up.profile.delay,
            None => return,
        };
        if end.up_scheduled.is_none_or(|scheduled| at < scheduled) {
            end.up_scheduled = Some(at);
            self.schedule(at, Due::Up(peer));
        }
    }

    pub(super) fn schedule_down(&mut self, peer: PeerId) {
        if self.peers[peer.0].kcp.is_some() {
            return self.schedule_kcp(peer);
        }
        let end = &mut self.peers[peer.0];
        let at = match end.down.next_arrival() {
            Some(at) => at,
            None if end.down_ends => self.now + end.up.profile.delay,
            None => return,
        };
        if end.down_scheduled.is_none_or(|scheduled| at < scheduled) {
            end.down_scheduled = Some(at);
            self.schedule(at, Due::Down(peer));
        }
    }

    pub(super) fn finish_up(&mut self, peer: PeerId) {
        let end = &mut self.peers[peer.0];
        end.up.heal(self.now);
        end.up_scheduled = None;
        self.schedule_up(peer);
    }

    pub(super) fn arrive_up(&mut self, peer: PeerId) {
        let end = &mut self.peers[peer.0];
        let Some((conn, shard)) = end.conn else { return };
        if end.up_scheduled.take().is_none() {
            return;
        }
        if self.shards[usize::from(shard.0)].paused_until > self.now {
            self.peers[peer.0].up_scheduled = Some(self.now);
            self.postponed(shard, Due::Up(peer));
            return;
        }
        let end = &mut self.peers[peer.0];
        if let Some(chunk) = end.up.pop(self.now) {
            if std::mem::take(&mut end.wants_room) {
                self.notes.push_back(Note::Room(peer));
            }
            self.guard_conn(shard, conn, |shard, now| shard.handle_bytes(now, conn, &chunk));
            self.drain(shard);
        } else if let Some(cause) = end.up_end.filter(|_| end.up.next_arrival().is_none()) {
            self.lose(conn, cause);
            return;
        }
        self.schedule_up(peer);
    }

    pub(super) fn arrive_down(&mut self, peer: PeerId) {
        let end = &mut self.peers[peer.0];
        if end.down_scheduled.take().is_none() {
            return;
        }
        if let Some((given, chunk)) = end.down.pop_with_time(self.now) {
            end.given = given;
            if end.state == PeerState::Open {
                let bytes = match end.framing {
                    Framing::Stream | Framing::Packets => chunk,
                    Framing::WebSocket => end.websocket.payload_of(&chunk),
                };
                if !bytes.is_empty() {
                    self.notes.push_back(Note::Bytes(peer, bytes));
                }
            }
            self.schedule(self.now, Due::Write(peer));
        } else if end.down_ends && end.down.next_arrival().is_none() && end.state == PeerState::Open {
            end.state = PeerState::Over;
            self.notes.push_back(Note::Closed(peer));
            return;
        }
        self.schedule_down(peer);
    }
}

/// Strips the headers from a stream of unmasked WebSocket messages.
#[derive(Debug, Default)]
pub(super) struct WebSocketPayloads {
    header: Vec<u8>,
    payload_left: usize,
}

impl WebSocketPayloads {
    fn payload_of(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for &byte in chunk {
            if self.payload_left > 0 {
                self.payload_left -= 1;
                out.push(byte);
                continue;
            }
            self.header.push(byte);
            let len = match *self.header.as_slice() {
                [_, len @ 0..126] => usize::from(len),
                [_, 126, a, b] => usize::from(u16::from_be_bytes([a, b])),
                [_, 127, _, _, _, _, a, b, c, d] => u32::from_be_bytes([a, b, c, d]) as usize,
                _ => continue,
            };
            assert_eq!(self.header[0], 0x82, "every message is one whole binary frame");
            self.header.clear();
            self.payload_left = len;
        }
        out
    }
}
