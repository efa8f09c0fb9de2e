//! The gateway's side: sockets, mailboxes between shards, writes and closures of shards.

use std::io::IoSlice;
use std::time::Duration;

use throng_gateway::{CloseReason, Closed, ConnHandle, Effect, ShardIndex, Verdict};

use super::{ClosedByGateway, Due, Inbox, KCP_SILENCE, Note, PeerId, PeerState, World};
use crate::kcp_link::Direction;

impl World {
    pub(super) fn accept(&mut self, peer: PeerId) {
        if self.peers[peer.0].state != PeerState::Connecting {
            return;
        }
        if self.postponed(ShardIndex(0), Due::Accept(peer)) {
            return;
        }
        let end = &self.peers[peer.0];
        let (kind, framing, addr) = (end.kind, end.framing, end.addr);
        let mut accepted = None;
        self.guard(ShardIndex(0), |shard, now| accepted = shard.accept(now, kind, framing, addr).ok());
        let end = &mut self.peers[peer.0];
        match accepted {
            None => {
                end.state = PeerState::Over;
                self.notes.push_back(Note::Refused(peer));
                self.drain(ShardIndex(0));
            }
            Some(accepted) => {
                end.state = PeerState::Open;
                end.conn = Some((accepted.conn, accepted.shard));
                let before = self.sockets.insert(accepted.conn, peer);
                assert_eq!(before, None, "the id of a live connection was given again");
                self.notes.push_back(Note::Opened(peer));
                // The mail that announces the connection goes first.
                self.drain(ShardIndex(0));
                if accepted.shard == ShardIndex(0) {
                    self.attach(peer);
                } else {
                    self.post(accepted.shard, Inbox::Socket(peer));
                }
            }
        }
    }

    fn attach(&mut self, peer: PeerId) {
        let end = &mut self.peers[peer.0];
        end.attached = true;
        if end.kcp.is_some() {
            // Bytes that arrived in the meantime.
            end.kcp_scheduled = Some(self.now);
            self.schedule(self.now, Due::Kcp(peer));
            return;
        }
        self.schedule_up(peer);
        self.schedule(self.now, Due::Write(peer));
    }

    fn post(&mut self, shard: ShardIndex, item: Inbox) {
        let slot = &mut self.shards[usize::from(shard.0)];
        slot.inbox.push_back(item);
        self.peak_inbox = self.peak_inbox.max(slot.inbox.len());
        self.schedule_inbox(shard);
    }

    pub(super) fn schedule_inbox(&mut self, shard: ShardIndex) {
        let delay = self.rng.below(self.conditions.mail_delay_max.as_nanos() as u64 + 1);
        self.schedule(self.now + Duration::from_nanos(delay), Due::Inbox(shard));
    }

    pub(super) fn handle_inbox(&mut self, shard: ShardIndex) {
        if self.postponed(shard, Due::Inbox(shard)) {
            return;
        }
        let Some(item) = self.shards[usize::from(shard.0)].inbox.pop_front() else { return };
        match item {
            Inbox::Mail(mail) => {
                self.guard(shard, |shard, now| shard.handle_mail(now, mail));
            }
            Inbox::Socket(peer) => {
                if self.peers[peer.0].conn.is_some_and(|(conn, _)| self.sockets.contains_key(&conn)) {
                    self.attach(peer);
                }
            }
        }
        self.drain(shard);
    }

    /// The transport tells the gateway that a connection has ended.
    pub(super) fn lose(&mut self, conn: ConnHandle, cause: Closed) {
        let Some(&peer) = self.sockets.get(&conn) else { return };
        let Some((_, shard)) = self.peers[peer.0].conn else { return };
        if self.postponed(shard, Due::Lost(peer, conn, cause)) {
            return;
        }
        self.sockets.remove(&conn);
        let end = &mut self.peers[peer.0];
        end.conn = None;
        if end.state == PeerState::Over {
            end.kcp = None;
        }
        self.guard(shard, |shard, now| shard.handle_closed(now, conn, cause));
        self.drain(shard);
    }

    /// Takes every output of a shard.
    pub(super) fn drain(&mut self, shard: ShardIndex) {
        let index = usize::from(shard.0);
        loop {
            let mut idle = true;
            while let Some((to, mail)) = self.shards[index].shard.poll_mail() {
                self.post(to, Inbox::Mail(mail));
                idle = false;
            }
            while let Some(effect) = self.shards[index].shard.poll_effect() {
                self.carry_out(effect);
                idle = false;
            }
            while let Some(conn) = self.shards[index].shard.poll_writable() {
                self.write(shard, conn);
                idle = false;
            }
            if idle {
                break;
            }
        }
        let slot = &mut self.shards[index];
        if let Some(at) = slot.shard.next_timeout()
            && slot.timer_at.is_none_or(|scheduled| at < scheduled)
        {
            let at = at.max(self.now);
            slot.timer_at = Some(at);
            self.schedule(at, Due::Timer(shard));
        }
    }

    /// Offers a connection's output to its link.
    pub(super) fn write(&mut self, shard: ShardIndex, conn: ConnHandle) {
        let Some(&peer) = self.sockets.get(&conn) else { return };
        while self.sockets.get(&conn) == Some(&peer) && self.peers[peer.0].attached {
            let end = &mut self.peers[peer.0];
            let Some(outbox) = self.shards[usize::from(shard.0)].shard.outbox(conn) else { break };
            if outbox.is_empty() {
                break;
            }
            self.peak_outbox_bytes = self.peak_outbox_bytes.max(outbox.queued_bytes());
            let mut slices: Vec<IoSlice<'_>> = Vec::new();
            outbox.gather(&mut slices);
            let mut bytes: Vec<u8> = Vec::new();
            for slice in &slices {
                bytes.extend_from_slice(slice);
            }
            assert!(!bytes.is_empty(), "an outbox that is not empty gave nothing");
            let taken = match &mut end.kcp {
                Some(kcp) => kcp.push(self.now, &mut self.rng, Direction::Down, &bytes),
                None => end.down.push(self.now, &mut self.rng, &bytes),
            };
            self.guard_conn(shard, conn, |shard, now| shard.handle_written(now, conn, taken));
            if taken < bytes.len() {
                break;
            }
        }
        self.schedule_down(peer);
    }

    /// Closes a connection from the gateway's side.
    pub(super) fn close(&mut self, conn: ConnHandle, reason: CloseReason, flush: &[u8]) {
        let Some(peer) = self.sockets.remove(&conn) else { return };
        self.closed.push(ClosedByGateway { at: self.now, peer, reason });
        let end = &mut self.peers[peer.0];
        end.conn = None;
        end.down_ends = true;
        if let Some(kcp) = &mut end.kcp {
            kcp.push(self.now, &mut self.rng, Direction::Down, flush);
            self.schedule_kcp(peer);
            self.schedule(self.now + KCP_SILENCE, Due::Silent(peer));
            return;
        }
        end.down.push(self.now, &mut self.rng, flush);
        end.down_scheduled = None;
        self.schedule_down(peer);
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Close { conn, reason, flush, .. } => self.close(conn, reason, &flush),
            Effect::Authenticate { ticket, pit, lt, .. } => {
                let delay = self.rng.below(self.conditions.verdict_delay_max.as_nanos() as u64 + 1);
                let verdict = if self.rng.chance(self.conditions.verdict_error) {
                    Verdict::Error("the provider is down".to_owned())
                } else if lt.0 == "wrong" {
                    Verdict::InvalidLt
                } else if pit.0.is_empty() {
                    Verdict::InvalidPit
                } else {
                    Verdict::Success
                };
                self.schedule(
                    self.now + Duration::from_nanos(delay),
                    Due::Verdict(self.restarts(), ticket, verdict),
                );
            }
            _ => {}
        }
    }
}
