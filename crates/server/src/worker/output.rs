//! Output: frames, large ones once for all their readers, and goodbyes to connections that are
//! closed.

use std::io::IoSlice;
use std::time::Duration;

use throng_gateway::CloseReason;
use throng_net::{CloseMode, ConnKey, SharedFile};

use super::Worker;
use super::driver::Farewell;
use super::host::{Closing, Peer};

/// Frames from this size on are given to the kernel once for all their readers ...
const SHARED_FRAME_BYTES_MIN: usize = 16 << 10;
/// ... if there are so many: making the file costs about as much as the copies for four.
const SHARED_FRAME_HOLDERS_MIN: usize = 8;
/// Files kept for the frames of one pass. Cohorts are written one after the other, so a few are
/// enough.
const SHARED_FILES_MAX: usize = 4;

/// A client with more output than this is written to as soon as it takes more, and not only after
/// the pause in which events gather: it gets a stream from a game server, which would pass
/// `outbox_hard_bytes` meanwhile.
const AWAIT_ROOM_BYTES: usize = 256 << 10;

/// Time a closed connection has to take what was queued for it.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(3);

impl Worker {
    pub(super) fn write_dirty(&mut self) {
        self.spare_standing();
        for peer in std::mem::take(&mut self.driver.dirty) {
            let began = self.driver.step_begins();
            let host = self.driver.hosts.get(peer.host);
            if began.is_some() && host.is_some_and(|host| host.turn.is_over()) {
                self.driver.dirty.push(peer);
                continue;
            }
            self.write(peer);
            self.driver.step_ends(peer.host, began);
        }
        self.shared.clear();
    }

    /// Sends a large frame that many connections get by reference to bytes that the kernel has
    /// already. Does nothing if that is not what comes next; returns whether the connection is
    /// there and has more to write.
    fn write_shared(&mut self, peer: Peer) -> bool {
        let driver = &mut self.driver;
        // Captured connections take the plain path, which the capture sees.
        let watched = driver.tap.is_some() && driver.tap_of(peer).is_some();
        let Some(host) = driver.hosts.get_mut(peer.host) else { return false };
        let Some(key) = host.conns.get(&peer.conn).map(|entry| entry.key) else { return false };
        let Some(outbox) = host.shard.outbox(peer.conn) else { return false };
        let small = outbox.queued_bytes() < SHARED_FRAME_BYTES_MIN;
        if small || watched || !self.event_loop.takes_shared(key) {
            return !outbox.is_empty();
        }
        let Some(frame) = outbox.shared_frame(SHARED_FRAME_BYTES_MIN) else { return true };
        let known = self.shared.iter().position(|(known, _)| *known == frame);
        let index = match known {
            Some(index) => index,
            None if frame.holders() < SHARED_FRAME_HOLDERS_MIN => return true,
            None => {
                let file = SharedFile::new(&frame.parts()).ok();
                if self.shared.len() == SHARED_FILES_MAX {
                    self.shared.pop_front();
                }
                self.shared.push_back((frame, file));
                self.shared.len() - 1
            }
        };
        let Some(file) = &self.shared[index].1 else { return true };
        let taken = self.event_loop.write_shared(key, file);
        if taken > 0 {
            if let Some(entry) = host.conns.get_mut(&peer.conn) {
                entry.bytes_out += taken as u64;
            }
            driver.guard_conn(peer, |host, now| host.shard.handle_written(now, peer.conn, taken));
        }
        let host = driver.hosts.get_mut(peer.host);
        host.and_then(|host| host.shard.outbox(peer.conn)).is_some_and(|outbox| !outbox.is_empty())
    }

    /// Gives a connection's output to the transport, as much as it takes.
    fn write(&mut self, peer: Peer) {
        let Some(host) = self.driver.hosts.get_mut(peer.host) else { return };
        let Some(entry) = host.conns.get_mut(&peer.conn) else { return };
        entry.dirty = false;
        // A login is answered, so it cannot be missed here.
        if !entry.admitted && host.shard.has_logged_in(peer.conn) {
            entry.admitted = true;
            self.event_loop.admit(entry.key);
        }
        if entry.blocked || !self.write_shared(peer) {
            return;
        }
        let driver = &mut self.driver;
        let Some(host) = driver.hosts.get_mut(peer.host) else { return };
        let Some(entry) = host.conns.get_mut(&peer.conn) else { return };
        let Some(outbox) = host.shard.outbox(peer.conn) else { return };
        let mut slices = recycle(std::mem::take(&mut self.slices));
        let loose = outbox.may_get_lost();
        outbox.gather(&mut slices);
        let outcome = match loose {
            true => self.event_loop.write_loose(entry.key, &slices),
            false => self.event_loop.write(entry.key, &slices),
        };
        if let Some((slot, tap)) = &mut driver.tap
            && *slot == peer.host
            && tap.handle == peer.conn
        {
            tap.written(driver.now, &slices, outcome.taken);
        }
        self.slices = recycle(slices);
        entry.blocked = outcome.blocked;
        entry.bytes_out += outcome.taken as u64;
        let key = entry.key;
        driver.guard_conn(peer, |host, now| host.shard.handle_written(now, peer.conn, outcome.taken));
        let host = driver.hosts.get_mut(peer.host);
        let queued =
            host.and_then(|host| host.shard.outbox(peer.conn)).map_or(0, |outbox| outbox.queued_bytes());
        if outcome.blocked && queued > AWAIT_ROOM_BYTES {
            self.event_loop.await_room(key);
        }
        let more = !outcome.blocked && outcome.taken > 0;
        if more && queued > 0 {
            driver.mark_dirty(peer);
        }
    }

    pub(super) fn carry_out_closures(&mut self) {
        for Closing { peer, conn, reason, world, flush } in std::mem::take(&mut self.driver.closing) {
            let Some(entry) = conn else {
                if let Some(host) = self.driver.hosts.get_mut(peer.host) {
                    host.closed_early.insert(peer.conn);
                }
                continue;
            };
            tracing::debug!(conn = peer.conn.0, kind = ?entry.kind, reason = reason.name(), "connection closed");
            if reason.close_code().is_none() && flush.is_empty() {
                self.event_loop.close(entry.key, CloseMode::Now);
                continue;
            }
            self.event_loop.pause_read(entry.key);
            let until = self.driver.now + FAREWELL_TIMEOUT;
            self.driver.farewells.insert(entry.key, Farewell { reason, world, bytes: flush, sent: 0, until });
            self.driver.farewells_ready.push(entry.key);
        }
    }

    /// Goes on with connections that are closed but still have something to be told.
    pub(super) fn say_goodbyes(&mut self) {
        for key in std::mem::take(&mut self.driver.farewells_ready) {
            let Some(farewell) = self.driver.farewells.get_mut(&key) else { continue };
            let rest = &farewell.bytes[farewell.sent..];
            if !rest.is_empty() {
                farewell.sent += self.event_loop.write(key, &[IoSlice::new(rest)]).taken;
            }
            if farewell.sent == farewell.bytes.len() {
                let (reason, world) = (farewell.reason, farewell.world.take());
                self.driver.farewells.remove(&key);
                self.say_goodbye(key, reason, world.as_deref());
            }
        }
        let now = self.driver.now;
        if self.driver.farewells.is_empty() {
            return;
        }
        let late = self.driver.farewells.extract_if(|_, each| each.until <= now);
        // A frame that has begun is sent whole; the other bytes are dropped.
        for (key, farewell) in late.collect::<Vec<_>>() {
            self.say_goodbye(key, farewell.reason, farewell.world.as_deref());
        }
    }

    fn say_goodbye(&mut self, key: ConnKey, reason: CloseReason, world: Option<&str>) {
        match (reason.close_code(), world) {
            (Some(code), Some(world)) => {
                self.event_loop.close_with(key, code, &format!("{} {world}", reason.name()));
            }
            (Some(code), None) => self.event_loop.close_with(key, code, reason.name()),
            (None, _) => self.event_loop.close(key, CloseMode::Now),
        }
    }
}

/// Empties a vector of slices and frees it from its lifetime, keeping its memory: collecting a
/// vector's own iterator into the same layout happens in place.
fn recycle<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}
