//! A connection that the loop serves itself, with its idle timeout.

use std::net::SocketAddr;
use std::sync::Arc;

use slab::Slab;
use throng_stdx::{Instant, TimerKey};

use super::key::{ConnKey, ListenerKey};
use crate::handler::TimedOut;
use crate::listener::{Permit, Rules};
use crate::stream::Stream;

pub(super) struct Conn {
    pub(super) generation: u32,
    pub(super) peer: SocketAddr,
    /// Its place in the counts of the listener it came from; `None` for outgoing connections.
    pub(super) permit: Option<Permit>,
    pub(super) rules: Arc<Rules>,
    /// The handler has been told of it, and so is to be told of its end. Until then the listener to
    /// report to.
    pub(super) unknown: Option<ListenerKey>,
    /// Instant of the last received bytes.
    pub(super) heard: Instant,
    pub(super) timer: Option<(Instant, TimerKey)>,
    /// A ping was sent and nothing has come since.
    pub(super) pinged: bool,
    /// It is in the loop's queue of connections with work.
    pub(super) queued: bool,
    /// It is served while others wait.
    pub(super) urgent: bool,
    /// Room for its output ends a wait for urgent events.
    pub(super) room_awaited: bool,
    pub(super) stream: Stream,
}

/// Action for a silent connection.
pub(super) enum Silence {
    Fine,
    Ping,
    TooLong(TimedOut),
}

impl Conn {
    /// The next moment at which silence matters: a ping is due, or patience ends.
    pub(super) fn next_silence(&self) -> Option<Instant> {
        let idle = self.rules.limits.idle_timeout.map(|idle| self.heard + idle);
        let rounds = if self.pinged { 2 } else { 1 };
        let ping = self.rules.ping_interval.map(|interval| self.heard + interval * rounds);
        [idle, ping].into_iter().flatten().min()
    }

    pub(super) fn check_silence(&mut self, now: Instant) -> Silence {
        let silence = now.since(self.heard);
        if self.stream.paused {
            // We are the ones who do not listen.
            self.heard = now;
            return Silence::Fine;
        }
        if self.rules.limits.idle_timeout.is_some_and(|idle| silence >= idle) {
            return Silence::TooLong(TimedOut::Idle);
        }
        match self.rules.ping_interval {
            Some(interval) if silence >= interval * 2 && self.pinged => Silence::TooLong(TimedOut::Ping),
            Some(interval) if silence >= interval && !self.pinged => {
                self.pinged = true;
                Silence::Ping
            }
            _ => Silence::Fine,
        }
    }
}

/// Finds a connection while other parts of the loop stay usable.
pub(super) fn get_mut(conns: &mut Slab<Conn>, key: ConnKey) -> Option<&mut Conn> {
    conns.get_mut(key.slot()).filter(|conn| conn.generation == key.generation())
}
