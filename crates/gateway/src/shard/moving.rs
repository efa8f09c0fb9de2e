//! Connections that belong to another world of the process: they leave this one after AUTH, and
//! enter that one as if they had come there first.
//!
//! Bytes that arrived and were not handled, and output that waits to be written, go with them, so
//! that a peer sees one connection.

use super::Shard;
use crate::connection::Connection;
use crate::effect::{Accepted, Effect};
use crate::ids::{ConnHandle, ConnId, ConnKind, ShardIndex};
use crate::mail::{Departure, Letter};
use crate::reason::{AcceptRefusal, CloseReason};
use crate::registry::PendingAuth;

/// A connection on its way to another world of the process.
#[derive(Debug)]
#[must_use = "it is the only handle of its connection"]
pub struct Moved {
    connection: Connection,
    departure: Departure,
}

impl Moved {
    /// The number of the world that it belongs to.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.departure.world
    }

    /// Its kind: client or game server.
    #[must_use]
    pub fn kind(&self) -> ConnKind {
        self.connection.kind
    }

    /// Bytes of memory that it keeps alive.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.connection.reader.buffered_bytes() + self.connection.outbox.heap_bytes()
    }
}

impl Shard {
    /// Shard 0: the connection belongs to another world. Until it has left, it waits as if for its
    /// verdict.
    pub(crate) fn send_away(&mut self, pending: PendingAuth, world: u32, judged: bool) {
        let PendingAuth { conn, head, pit, lt, token, wants_token, void_token, asked } = pending;
        let Some(entry) = self.global.as_mut().and_then(|global| global.entries.get_mut(&conn)) else {
            return;
        };
        entry.pending = true;
        let (shard, proven) = (entry.shard, entry.proven);
        let departure =
            Departure { world, head, pit, lt, token, wants_token, void_token, asked, judged, proven };
        self.board.post(shard, Letter::Leave { conn, departure: Box::new(departure) });
    }

    /// A connection of this shard is to go to another world.
    pub(crate) fn on_leave(&mut self, conn: ConnId, departure: Departure) {
        let Some(peer) = self.board.peers.get(&conn).filter(|peer| peer.shard == self.board.index) else {
            return;
        };
        let Some(found) = self.board.conns.get(peer.slot as usize).filter(|found| found.id == conn) else {
            return;
        };
        // One that is about to be closed goes nowhere.
        if found.doomed.is_some() {
            return;
        }
        let handle = found.handle;
        let Some(connection) = self.take_out(handle, CloseReason::Moved) else { return };
        let kind = connection.kind;
        self.board.effect(Effect::Move { conn: handle });
        self.moved.push((handle, Moved { connection, departure }));
        self.tell_closed((conn, self.board.accepted_as(conn)), kind, false, CloseReason::Moved);
    }

    /// The connection of an [`Effect::Move`].
    pub fn take_moved(&mut self, conn: ConnHandle) -> Option<Moved> {
        let at = self.moved.iter().position(|(handle, _)| *handle == conn)?;
        Some(self.moved.swap_remove(at).1)
    }

    /// A connection enters that another world of the process has sent here, with its login. Shard 0
    /// only, which handles its bytes from now on.
    ///
    /// # Errors
    /// The connection is not taken; close the socket.
    pub fn enter(&mut self, now: throng_stdx::Instant, moved: Moved) -> Result<Accepted, AcceptRefusal> {
        self.advance(now);
        let entered = self.try_enter(moved);
        if let Err(reason) = entered {
            self.board.stats.count_accept_refused(reason);
        }
        self.settle();
        entered
    }

    /// Returns true if the resume token belongs to a live connection of this world, which the
    /// newcomer supersedes: its transport is dead, but no timeout has expired yet.
    fn replaces_another(&self, departure: &Departure) -> bool {
        let (Some(global), Some(token)) = (&self.global, &departure.token) else { return false };
        let session = global.session_of(token, &departure.pit);
        session.is_some_and(|conn| global.entries.contains_key(&conn))
    }

    fn try_enter(&mut self, moved: Moved) -> Result<Accepted, AcceptRefusal> {
        let Moved { connection, departure } = moved;
        let (kind, addr, framing) = (connection.kind, connection.addr, connection.outbox.framing());
        let shard = ShardIndex::FIRST;
        let conn = self.register_new(kind, addr, Some(shard), self.replaces_another(&departure))?.0;
        self.board.post_others(|| Letter::Opened { conn, kind, shard, framing, addr });
        self.on_opened(conn, kind, shard, framing, addr);
        let accepted = Accepted { conn: ConnHandle(conn.0), shard };
        let board = &mut self.board;
        let Some(&slot) = board.handles.get(&accepted.conn) else { return Ok(accepted) };
        let Some(fresh) = board.conns.get_mut(slot as usize) else { return Ok(accepted) };
        fresh.reader = connection.reader;
        fresh.outbox = connection.outbox;
        fresh.recorder = connection.recorder.filter(|_| board.config.recording);
        // A move begins nothing again: not the time to log in, and not what it may send.
        (fresh.accepted, fresh.login) = (connection.accepted, connection.login);
        fresh.budget = connection.budget;
        fresh.refusals = connection.refusals;
        fresh.count_backlog(&mut board.backlog);
        if !fresh.outbox.is_empty() {
            fresh.writable = true;
            board.writable_again(slot);
        }
        board.arm_connection(slot);
        let Departure { head, pit, lt, token, wants_token, void_token, asked, judged, proven, .. } =
            departure;
        let pending = PendingAuth { conn, head, pit, lt, token, wants_token, void_token, asked };
        if let Some(entry) = self.global.as_mut().and_then(|global| global.entries.get_mut(&conn)) {
            (entry.proven, entry.moved) = (proven, true);
        }
        if let Err(refusal) = self.log_in(pending, kind, judged) {
            self.board.refuse(refusal);
        }
        Ok(accepted)
    }
}
