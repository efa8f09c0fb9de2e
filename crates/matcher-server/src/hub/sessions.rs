//! Sessions of the hub: their streams, and the delivery of notices.

#[cfg(feature = "nats")]
use std::path::Path;

use throng_matcher::{ServerNumber, check_server_name};
use throng_wire::matcher::{FrameSplit, PROTOCOL_VERSION, Reader as Body, Status, split};

use super::{Conn, Hub, NOBODY, OUT_BYTES_NOTIFY};
use crate::frames::{write_goaway, write_hello_ack};
use crate::session::{Batch, Queued, Reader, Session, Sink};

impl Hub {
    /// Hands notices to their sessions.
    pub(super) fn distribute(&mut self) {
        let mut notices = std::mem::take(&mut self.engine.notices);
        for notice in notices.iter() {
            let index = self.by_place.get(notice.server.place()).copied().unwrap_or(NOBODY) as usize;
            let Some(session) = self.sessions.get_mut(index).and_then(Option::as_mut) else { continue };
            if session.server != notice.server {
                continue;
            }
            if !std::mem::replace(&mut session.fresh, true) {
                self.fresh.push(index);
            }
            self.report.notices_queued += 1;
            match session.push(notice.entry, notice.collapse) {
                Queued::Added => {}
                Queued::Replaced => self.report.notices_collapsed += 1,
                Queued::Lagging => {
                    self.report.lagging += 1;
                    self.tell_epoch(index);
                }
            }
        }
        notices.clear();
        self.engine.notices = notices;
    }

    /// Tells the reader of a session that a new epoch has begun.
    fn tell_epoch(&mut self, index: usize) {
        let Some(session) = self.sessions[index].as_mut() else { return };
        let (epoch, conn) = (session.epoch, session.reader_conn());
        let place = session.place();
        if !session.give(place) {
            self.lose_session(index);
        } else if let Some(conn) = conn {
            self.hello_ack(conn, epoch, 1, false);
        }
    }

    /// Makes frames of what came for connections; for a sink it waits for the journal's `mark`.
    pub(super) fn make_frames(&mut self, mark: u64) {
        for index in std::mem::take(&mut self.fresh) {
            let Some(session) = self.sessions[index].as_mut() else { continue };
            session.fresh = false;
            if let Reader::Sink { .. } = session.reader {
                session.seal(mark);
                if !std::mem::replace(&mut session.sealing, true) {
                    self.sealed.push(index);
                }
                continue;
            }
            let Reader::Connection(at) = session.reader else { continue };
            let Some(conn) = self.conns[at].as_mut() else { continue };
            while conn.out.len() - conn.taken < OUT_BYTES_NOTIFY
                && let Some(entries) = session.write_frame(self.now, mark, &mut conn.out)
            {
                self.report.batches_sent += 1;
                self.frames.observe(entries as f64);
            }
            if !conn.dirty {
                conn.dirty = true;
                self.dirty.push(at);
            }
        }
    }

    /// Gives sinks what is durable.
    pub(super) fn feed_sinks(&mut self, durable: u64) {
        for index in std::mem::take(&mut self.sealed) {
            let Some(session) = self.sessions[index].as_mut() else { continue };
            session.sealing = false;
            let Reader::Sink { .. } = session.reader else { continue };
            let stays = session.feed_sink(self.now, durable, |entries| {
                self.report.batches_sent += 1;
                self.frames.observe(entries as f64);
            });
            if !stays {
                self.lose_session(index);
            } else if session.is_sealed() {
                session.sealing = true;
                self.sealed.push(index);
            }
        }
    }

    /// The session of a server, if sink `id` reads it.
    pub(super) fn sink_of(&self, srv: &str, id: u64) -> Option<usize> {
        let index = *self.by_srv.get(srv)?;
        let session = self.sessions[index].as_ref()?;
        matches!(session.reader, Reader::Sink { id: own, .. } if own == id).then_some(index)
    }

    /// Without the lease there is no session: dropping the sink ends the stream.
    pub(super) fn subscribe(&mut self, srv: &str, after: Option<(u64, u64)>, sink: Sink, id: u64) {
        if !self.guard.is_open {
            return;
        }
        let index = self.session_of(srv);
        let Some(session) = self.sessions[index].as_mut() else { return };
        let old = session.reader_conn();
        let mut missed = Vec::new();
        session.change_to_sink(self.engine.durable());
        session.reader = Reader::Sink { sink, id, full: false };
        let (epoch, seq) = after.unwrap_or((session.epoch, session.next() - 1));
        // Without an epoch whichever is in use: the reader sees which one that is.
        let epoch = if epoch == 0 { session.epoch } else { epoch };
        let resumed = session.resume(epoch, seq, &mut missed);
        let seq = if resumed { seq } else { 0 };
        let mut stays = session.give(Batch { epoch: session.epoch, seq, body: Vec::new() });
        let mut rest = &missed[..];
        // At most what is kept for a resumption, whether the reader is full or not.
        while stays && let Ok(FrameSplit::Whole { header, body, used }) = split(rest, usize::MAX >> 1) {
            let batch = Batch { epoch: session.epoch, seq: header.id, body: body.to_vec() };
            stays = session.give(batch);
            rest = &rest[used..];
        }
        self.fresh.push(index);
        if let Some(old) = old {
            self.goaway(old, Status::Invalid, "another session of this server began");
        }
        if !stays {
            self.lose_session(index);
        }
    }

    /// The session of a server, made if there is none; the server counts as connected.
    fn session_of(&mut self, srv: &str) -> usize {
        let server = self.engine.session(self.now, srv, true);
        self.session_at(srv, server)
    }

    /// After a restart: what servers miss until they come back waits for them, as after the loss of
    /// a connection.
    pub(super) fn keep_for_return(&mut self) {
        let servers = self.engine.matcher.servers_with_sessions();
        let servers = servers.filter_map(|(server, srv)| Some((server, std::str::from_utf8(srv).ok()?)));
        let servers: Vec<_> = servers.map(|(server, srv)| (server, srv.to_owned())).collect();
        for (server, srv) in servers {
            self.session_at(&srv, server);
        }
    }

    /// The session of a server with this number, made if there is none.
    fn session_at(&mut self, srv: &str, server: ServerNumber) -> usize {
        let index = match self.by_srv.get(srv) {
            Some(index) => *index,
            None => {
                let index = self.sessions.iter().position(Option::is_none).unwrap_or(self.sessions.len());
                self.epoch += 1;
                let session = Session::new(srv.to_owned(), server, self.epoch);
                if index == self.sessions.len() {
                    self.sessions.push(None);
                }
                self.sessions[index] = Some(session);
                self.by_srv.insert(srv.to_owned(), index);
                index
            }
        };
        let mut old = None;
        if let Some(session) = self.sessions[index].as_mut().filter(|session| session.server != server) {
            // The server was given up meanwhile, and its stream has nothing of what came after.
            session.reset();
            old = Some(std::mem::replace(&mut session.server, server));
        }
        if let Some(old) = old {
            self.leave_place(old.place(), index);
        }
        if self.by_place.len() <= server.place() {
            self.by_place.resize(server.place() + 1, NOBODY);
        }
        self.by_place[server.place()] = index as u32;
        index
    }

    /// A session has a place no longer, unless another one has it by now.
    fn leave_place(&mut self, place: usize, index: usize) {
        if let Some(own) = self.by_place.get_mut(place).filter(|own| **own as usize == index) {
            *own = NOBODY;
        }
    }

    /// Forgets a session that no one reads and whose server the matcher has forgotten.
    pub(super) fn remove_session(&mut self, index: usize) {
        let Some(session) = self.sessions[index].take() else { return };
        self.by_srv.remove(&session.srv);
        self.leave_place(session.server.place(), index);
        // A later session of this server has none of its epochs.
        self.epoch = self.epoch.max(session.epoch);
    }

    /// The state of the area is given up. Servers have other numbers from now on, and each reader
    /// learns that it has missed something.
    #[cfg(feature = "nats")]
    pub(super) fn begin_empty(&mut self, kept: Option<&Path>, waits: bool) {
        if !self.engine.begin_empty(self.now, kept, waits) {
            return;
        }
        self.by_place.clear();
        for index in 0..self.sessions.len() {
            let Some(session) = self.sessions[index].as_mut() else { continue };
            if matches!(session.reader, Reader::Nobody) {
                self.remove_session(index);
                continue;
            }
            session.reset();
            let srv = session.srv.clone();
            self.session_of(&srv);
            self.tell_epoch(index);
        }
    }

    /// The reader of a session is gone. Without the lease time stands still for the matcher: it
    /// learns that later.
    pub(super) fn lose_session(&mut self, index: usize) {
        let Some(session) = self.sessions[index].as_mut() else { return };
        session.reader = Reader::Nobody;
        if !self.guard.is_open {
            return self.lost.push(index);
        }
        let srv = session.srv.clone();
        self.engine.session(self.now, &srv, false);
    }

    /// The matcher serves again, and learns which servers were lost meanwhile.
    pub(super) fn lose_late(&mut self) {
        for index in std::mem::take(&mut self.lost) {
            let session = self.sessions[index].as_ref();
            if session.is_some_and(|session| matches!(session.reader, Reader::Nobody)) {
                self.lose_session(index);
            }
        }
    }

    pub(super) fn hello(&mut self, index: usize, conn: &mut Conn, body: &[u8]) -> bool {
        let Ok(hello) = Body::new(body) else { return false };
        let (Ok(srv), Ok(area), Ok(token)) = (hello.str(2), hello.str(3), hello.str(4)) else { return false };
        if hello.u64(1) != PROTOCOL_VERSION {
            let text = format!("version {} is not spoken here, only {PROTOCOL_VERSION}", hello.u64(1));
            write_goaway(&mut conn.out, Status::Invalid, &text);
            conn.closing = true;
            return true;
        }
        let Some(scope) = self.tokens.scope(token, srv) else {
            write_goaway(&mut conn.out, Status::Unauthenticated, "no such token for this server");
            conn.closing = true;
            return true;
        };
        if check_server_name(srv).is_err() || !area.is_empty() && !self.area.is_empty() && area != self.area {
            write_goaway(
                &mut conn.out,
                Status::Invalid,
                "this matcher serves another area, or the SrvID is too long",
            );
            conn.closing = true;
            return true;
        }
        if !self.guard.is_open {
            let why =
                self.gate.why_closed().unwrap_or_else(|| "the matcher stood still; try again".to_owned());
            write_goaway(&mut conn.out, Status::Unavailable, &why);
            conn.closing = true;
            return true;
        }
        if conn.session.is_some() {
            return false;
        }
        conn.scope = scope;
        let session = self.session_of(srv);
        conn.session = Some(session);
        let Some(entry) = self.sessions[session].as_mut() else { return false };
        let old = entry.reader_conn();
        entry.reader = Reader::Connection(index);
        let mut missed = Vec::new();
        let (epoch, seq) = (hello.u64(6), hello.u64(5));
        let resumed = entry.resume(epoch, seq, &mut missed);
        let (epoch, first) = (entry.epoch, if resumed { seq + 1 } else { 1 });
        write_hello_ack(&mut conn.out, &self.matcher_id, epoch, first, resumed);
        conn.out.extend_from_slice(&missed);
        self.fresh.push(session);
        if let Some(old) = old.filter(|old| *old != index) {
            self.goaway(old, Status::Invalid, "another session of this server began");
        }
        true
    }

    fn hello_ack(&mut self, index: usize, epoch: u64, first: u64, resumed: bool) {
        if let Some(conn) = self.conns[index].as_mut() {
            write_hello_ack(&mut conn.out, &self.matcher_id, epoch, first, resumed);
            if !conn.dirty {
                conn.dirty = true;
                self.dirty.push(index);
            }
        }
    }
}
