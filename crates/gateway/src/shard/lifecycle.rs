//! Accepting and closing connections.

use std::net::IpAddr;
use std::sync::Arc;

use throng_wire::FrameReader;
use throng_wire::frame::ReaderLimits;

use super::Shard;
use crate::connection::{Budget, Connection};
use crate::effect::{Accepted, Effect};
use crate::failpoint::failpoint;
use crate::ids::{ConnHandle, ConnId, ConnKind, IdMap, ShardIndex};
use crate::mail::Letter;
use crate::outbox::{Backlog, Framing, Outbox};
use crate::reason::{AcceptRefusal, CloseReason};
use crate::record::Recorder;
use crate::registry::Lost;
use crate::switchboard::Peer;
use crate::view::ClosureView;

impl Shard {
    pub(super) fn try_accept(
        &mut self,
        kind: ConnKind,
        framing: Framing,
        addr: IpAddr,
    ) -> Result<Accepted, AcceptRefusal> {
        let (conn, shard) = self.register_new(kind, addr, None, false)?;
        self.board.post_others(|| Letter::Opened { conn, kind, shard, framing, addr });
        self.on_opened(conn, kind, shard, framing, addr);
        Ok(Accepted { conn: ConnHandle(conn.0), shard })
    }

    /// Gives a new connection an id and a shard, the least loaded one if none is named. One that
    /// `replaces` another needs no room: the other one is closed.
    pub(super) fn register_new(
        &mut self,
        kind: ConnKind,
        addr: IpAddr,
        shard: Option<ShardIndex>,
        replaces: bool,
    ) -> Result<(ConnId, ShardIndex), AcceptRefusal> {
        let limits = &self.board.config.limits;
        let Some(global) = &mut self.global else { return Err(AcceptRefusal::Draining) };
        if self.draining {
            return Err(AcceptRefusal::Draining);
        }
        if global.entries.len() >= limits.connections && !replaces {
            return Err(AcceptRefusal::ConnectionsMax);
        }
        if kind == ConnKind::Client && global.is_crowded(addr, limits) {
            return Err(AcceptRefusal::ConnectionsPerAddress);
        }
        let conn = global.ids.allocate().ok_or(AcceptRefusal::IdsExhausted)?;
        // Requests of game servers about a world concern channels of shard 0: read there, they need
        // no mail.
        let of_world = kind == ConnKind::Server && self.board.config.spatial.is_world();
        let shard = shard.unwrap_or_else(|| if of_world { ShardIndex::FIRST } else { global.least_loaded() });
        global.register(conn, kind, addr, shard);
        Ok((conn, shard))
    }

    pub(super) fn on_opened(
        &mut self,
        conn: ConnId,
        kind: ConnKind,
        shard: ShardIndex,
        framing: Framing,
        addr: IpAddr,
    ) {
        let board = &mut self.board;
        let mut slot = u32::MAX;
        if shard == board.index {
            let config = Arc::clone(&board.config);
            let limits = ReaderLimits {
                legacy_packet_bytes_max: config.legacy_packet_bytes_max,
                accept_unknown_compression: config.ignore_unknown_compression,
            };
            let recorder = (config.recording && kind == ConnKind::Client)
                .then(|| Box::new(Recorder::new(config.limits.recording_bytes)));
            let handle = ConnHandle(conn.0);
            slot = board.conns.insert(Connection {
                handle,
                id: conn,
                renamed: None,
                kind,
                addr,
                state: config.state_machine(kind).init(),
                authenticated: false,
                recoverable: false,
                has_answer: true,
                writable: false,
                doomed: None,
                farewell_world: None,
                refusals: 0,
                budget: Budget::new(board.now, &config.limits),
                accepted: board.now,
                login: None,
                received: board.now,
                progressed: board.now,
                is_behind: false,
                timer: None,
                held: Default::default(),
                lagging: IdMap::with_hasher(board.hasher),
                dropped: (0, board.now),
                unsure: Vec::new(),
                reader: FrameReader::new(limits),
                outbox: Outbox::new(framing),
                counted: Backlog::default(),
                recorder,
            }) as u32;
            board.handles.insert(handle, slot);
            board.stats.kind_mut(kind).connections += 1;
            board.arm_connection(slot);
            if self.draining {
                board.doom_slot(slot, CloseReason::Shutdown);
            }
        }
        self.board
            .peers
            .insert(conn, Peer { accepted: conn, kind, shard, slot, recovering: false, full: false });
    }

    /// Handles what this input has caused within the shard: letters to itself, then closures, until
    /// none are left.
    pub(crate) fn settle(&mut self) {
        loop {
            if let Some(letter) = self.board.inbox.pop_front() {
                self.handle_letter(letter);
            } else if let Some(handle) = self.board.next_doomed() {
                let slot = self.board.handles.get(&handle).copied();
                let doomed =
                    slot.and_then(|slot| self.board.conns.get(slot as usize)).and_then(|conn| conn.doomed);
                if let Some(reason) = doomed {
                    self.close_local(handle, reason, true);
                }
            } else if let Some(data_type) = self.world.as_mut().and_then(|world| world.take_placeless()) {
                self.board.effect(Effect::NoPosition { data_type });
            } else {
                return;
            }
        }
    }

    /// Takes a connection of this shard out of its tables.
    pub(super) fn take_out(&mut self, handle: ConnHandle, reason: CloseReason) -> Option<Connection> {
        let slot = self.board.handles.remove(&handle)?;
        let mut conn = self.board.conns.remove(slot as usize);
        conn.leave_backlog(&mut self.board.backlog);
        failpoint!();
        self.remember_closure(ClosureView::new(&conn, reason, self.board.now));
        let board = &mut self.board;
        if let Some((_, key)) = conn.timer.take() {
            board.timers.cancel(key);
        }
        board.stats.kind_mut(conn.kind).connections -= 1;
        failpoint!();
        board.stats.count_closed(conn.kind, reason);
        Some(conn)
    }

    /// Closes a connection of this shard and tells everybody.
    pub(super) fn close_local(&mut self, handle: ConnHandle, reason: CloseReason, tell_driver: bool) {
        let Some(mut conn) = self.take_out(handle, reason) else { return };
        let board = &mut self.board;
        let unix_ns = board.next_recording_ns();
        if let Some((name, bytes)) = conn.recorder.take().and_then(|rec| rec.finish(conn.id.0, unix_ns)) {
            board.recording_ns = unix_ns;
            board.effect(Effect::Recording { conn: conn.id, name, bytes });
        }
        if tell_driver {
            let mut flush = Vec::new();
            if !reason.is_of_slow_reader() {
                conn.outbox.drain_into(&mut flush);
            }
            let world = conn.farewell_world.take();
            board.effect(Effect::Close { conn: handle, reason, world, flush });
        }
        let keep = conn.recoverable && reason.is_unexpected() && !self.draining;
        let (id, kind) = (conn.id, conn.kind);
        drop(conn);
        self.tell_closed((id, self.board.accepted_as(id)), kind, keep, reason);
    }

    pub(crate) fn tell_closed(
        &mut self,
        (conn, accepted): (ConnId, ConnId),
        kind: ConnKind,
        keep: bool,
        reason: CloseReason,
    ) {
        self.board.post_others(|| Letter::Closed { conn, accepted, kind, keep, reason });
        self.on_closed((conn, accepted), kind, keep, reason);
    }

    /// A connection of any shard is gone.
    pub(crate) fn on_closed(
        &mut self,
        (conn, accepted): (ConnId, ConnId),
        kind: ConnKind,
        keep: bool,
        reason: CloseReason,
    ) {
        if self.board.peers.get(&conn).is_some_and(|peer| peer.accepted != accepted) {
            // The session has returned since, and the news of that was faster.
            return;
        }
        let was_known = self.board.peers.remove(&conn).is_some();
        if !keep {
            self.board.lost.remove(&conn);
        } else if was_known {
            self.board.lost.insert(conn, kind);
        }
        failpoint!();
        if self.board.global_owner == Some(conn) {
            self.board.global_owner = None;
        }
        self.leave_channels(conn, kind, keep);
        if let Some(world) = self.world.as_mut().filter(|_| !keep) {
            world.forget_connection(conn);
        }
        if self.global.is_none() {
            return;
        }
        self.punish(conn, kind, reason);
        // A place that is half kept would never be given back, and a login that waits for this
        // closure would wait for ever.
        self.as_whole(|shard| shard.end_entry(conn, kind, keep));
    }

    /// Shard 0: takes a closed connection out of its tables, and keeps its place if `keep`.
    fn end_entry(&mut self, conn: ConnId, kind: ConnKind, keep: bool) {
        let Some(global) = &mut self.global else { return };
        if let Some(settling) = global.settling.remove(&conn)
            && let Some(key) = settling.timer
        {
            self.board.timers.cancel(key);
        }
        let Some(entry) = global.unregister(conn) else { return };
        failpoint!();
        if let Some(first_id) = entry.accepted_as {
            global.ids.release(first_id);
        }
        let superseded_by = global.superseding.remove(&conn);
        if keep {
            let lost = Lost {
                kind,
                pit: entry.pit,
                channels: entry.channels,
                tokens: entry.tokens,
                asked_matcher: entry.asked_matcher,
                expiry: None,
            };
            self.keep_lost(conn, lost);
            if let Some(pending) = superseded_by {
                self.resume_as(conn, &pending);
            }
        } else {
            global.void_tokens(&entry.tokens);
            global.ids.release(conn);
            if entry.asked_matcher {
                self.tell_matcher_of_end(conn, &entry.pit);
            }
            if let Some(pending) = superseded_by {
                self.log_in_after_all(&pending);
            }
        }
    }
}
