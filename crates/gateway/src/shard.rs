//! One shard: the public face of the core.

use std::net::IpAddr;
use std::sync::Arc;

use throng_stdx::Instant;

use crate::config::Config;
use crate::data::Schemas;
use crate::effect::{Accepted, Closed, Effect, Verdict};
use crate::ids::{AuthTicket, ConnId, ConnKind, ShardIndex};
use crate::mail::Mail;
use crate::outbox::{Framing, Outbox};
use crate::reason::AcceptRefusal;
use crate::stats::Stats;

/// A shard of the gateway. See the crate documentation for how to drive it.
#[derive(Debug)]
pub struct Shard {
    stats: Stats,
}

impl Shard {
    /// Shard `index` of `count`.
    ///
    /// `seed` makes the run repeatable (together with [`Config::secret`], which must be secret where peers are not
    /// trusted); `unix_start_ns` is the Unix time in nanoseconds at `Instant::ZERO`.
    #[must_use]
    pub fn new(
        config: Arc<Config>,
        schemas: Arc<Schemas>,
        index: ShardIndex,
        count: u16,
        seed: u64,
        unix_start_ns: u64,
    ) -> Self {
        let _ = (config, schemas, index, count, seed, unix_start_ns);
        Self { stats: Stats::default() }
    }

    /// A listener accepted a connection. Shard 0 only.
    ///
    /// # Errors
    /// The connection is not taken; close the socket.
    pub fn accept(
        &mut self,
        now: Instant,
        kind: ConnKind,
        framing: Framing,
        addr: IpAddr,
    ) -> Result<Accepted, AcceptRefusal> {
        let _ = (now, kind, framing, addr);
        Err(AcceptRefusal::Draining)
    }

    /// Bytes arrived on a connection of this shard. Unknown connections are ignored.
    pub fn handle_bytes(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let _ = (now, conn, bytes);
    }

    /// The transport took `written` bytes of a connection's outbox; 0 when it would not take any.
    pub fn handle_written(&mut self, now: Instant, conn: ConnId, written: usize) {
        let _ = (now, conn, written);
    }

    /// The transport saw the connection end.
    pub fn handle_closed(&mut self, now: Instant, conn: ConnId, cause: Closed) {
        let _ = (now, conn, cause);
    }

    /// Mail from another shard.
    pub fn handle_mail(&mut self, now: Instant, mail: Mail) {
        let _ = (now, mail);
    }

    /// The provider answered. Shard 0 only. Unknown tickets (the connection is gone) are ignored.
    pub fn handle_verdict(&mut self, now: Instant, ticket: AuthTicket, verdict: Verdict) {
        let _ = (now, ticket, verdict);
    }

    /// Does everything that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// Stops accepting and closes every connection of this shard with what is queued for it. Call it on every shard.
    pub fn begin_shutdown(&mut self, now: Instant) {
        let _ = now;
    }

    /// Next mail for another shard.
    pub fn poll_mail(&mut self) -> Option<(ShardIndex, Mail)> {
        None
    }

    /// Next effect for the driver.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        None
    }

    /// Next connection that gained output since it was last drained; each at most once until then.
    pub fn poll_writable(&mut self) -> Option<ConnId> {
        None
    }

    /// What waits to be written to a connection of this shard.
    pub fn outbox(&mut self, conn: ConnId) -> Option<&mut Outbox> {
        let _ = conn;
        None
    }

    /// When [`Self::handle_timeout`] has work, at the earliest; `None` when nothing is scheduled.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// The shard's counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
}
