//! One connection as the shard that handles its bytes sees it.

use std::net::IpAddr;

use prost::Message;
use smallvec::SmallVec;
use throng_stdx::{Instant, TimerKey};
use throng_wire::channeldpb::DisconnectMessage;
use throng_wire::{FrameReader, MessagePack};

use crate::config::{Config, Limits};
use crate::fsm::StateIndex;
use crate::ids::{ChannelId, ConnHandle, ConnId, ConnKind, IdMap, ShardIndex};
use crate::mail::State;
use crate::outbox::{Backlog, Outbox};
use crate::reason::CloseReason;
use crate::record::Recorder;

/// A live connection. About 450 bytes and no heap while idle.
#[derive(Debug)]
pub(crate) struct Connection {
    /// How the driver names it; fixed at accept.
    pub(crate) handle: ConnHandle,
    /// How peers name it: the same, unless it took over the id of a lost connection.
    pub(crate) id: ConnId,
    /// Shards that know its new name, until all do.
    pub(crate) renamed: Option<Box<Renamed>>,
    pub(crate) kind: ConnKind,
    pub(crate) addr: IpAddr,
    /// State within the state machine of its kind.
    pub(crate) state: StateIndex,
    pub(crate) authenticated: bool,
    /// Its places are kept when it is lost by accident.
    pub(crate) recoverable: bool,
    /// False for one that has resumed until something comes from it, which shows that it has the
    /// answer.
    pub(crate) has_answer: bool,
    /// On the list of connections with output; stays until the outbox is drained.
    pub(crate) writable: bool,
    /// Why it will be closed when the current input is done.
    pub(crate) doomed: Option<CloseReason>,
    /// World that the close message names.
    pub(crate) farewell_world: Option<Box<str>>,
    /// Messages that the state machine refused.
    pub(crate) refusals: u32,
    pub(crate) budget: Budget,
    pub(crate) accepted: Instant,
    /// Time of its first AUTH.
    pub(crate) login: Option<Instant>,
    pub(crate) received: Instant,
    /// When the outbox last became non-empty or the transport last took something.
    pub(crate) progressed: Instant,
    /// The transport did not take all output at the latest write.
    pub(crate) is_behind: bool,
    /// The one timer of the connection, for whatever deadline comes first.
    pub(crate) timer: Option<(Instant, TimerKey)>,
    /// Channels that a client is subscribed to, on whatever shard, or has asked for.
    pub(crate) held: SmallVec<[ChannelId; 4]>,
    /// Channels whose state updates were dropped and that have not been made good.
    pub(crate) lagging: IdMap<ChannelId, Lag>,
    /// State updates that were dropped because its queue was too long, and when the latest was.
    pub(crate) dropped: (u64, Instant),
    /// Channels of which updates were sent that may have got lost, with the time of the full state
    /// that makes that good.
    pub(crate) unsure: Vec<(Instant, ChannelId)>,
    pub(crate) reader: FrameReader,
    pub(crate) outbox: Outbox,
    /// Its part of the shard's backlog.
    pub(crate) counted: Backlog,
    pub(crate) recorder: Option<Box<Recorder>>,
}

/// A change of name that not every shard has noticed.
#[derive(Debug)]
pub(crate) struct Renamed {
    /// The name that it was accepted under.
    pub(crate) fresh: ConnId,
    /// Shards that call it by the new name. Others may still write to the lost connection.
    pub(crate) by: SmallVec<[ShardIndex; 8]>,
}

impl Renamed {
    pub(crate) fn of(fresh: ConnId) -> Box<Renamed> {
        Box::new(Renamed { fresh, by: SmallVec::new() })
    }
}

/// A channel of which a slow reader misses updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lag {
    /// The channel was asked for a full state.
    pub(crate) asked: bool,
    /// Since when.
    pub(crate) since: Instant,
    /// Updates that it misses.
    pub(crate) dropped: u64,
}

impl Connection {
    /// Reports whether what a shard sends under the present name is for this connection, and not
    /// for a lost one that it replaces.
    #[inline]
    pub(crate) fn is_meant_by(&self, from: ShardIndex) -> bool {
        let knows = |renamed: &Renamed| renamed.fresh == self.id || renamed.by.contains(&from);
        // Shard 0 gave it the name.
        from == ShardIndex::FIRST || self.renamed.as_deref().is_none_or(knows)
    }

    /// Keeps the shard's backlog in step with the outbox. Game servers count apart: they are few,
    /// and each has a bound of its own.
    #[inline]
    pub(crate) fn count_backlog(&mut self, total: &mut Backlog) {
        let buffers = self.outbox.heap_bytes();
        let now = match self.kind {
            ConnKind::Client => {
                let shared_bytes = self.outbox.shared_bytes();
                Backlog { own_bytes: buffers, shared_bytes, ..Backlog::default() }
            }
            ConnKind::Server => Backlog { server_bytes: buffers, ..Backlog::default() },
        };
        total.replace(std::mem::replace(&mut self.counted, now), now);
    }

    /// Takes the connection out of the shard's backlog.
    pub(crate) fn leave_backlog(&mut self, total: &mut Backlog) {
        total.replace(std::mem::take(&mut self.counted), Backlog::default());
    }

    /// Channels to ask for a full state, which they have not been asked for yet, those that lag for
    /// longest first: where not all find room, each has its turn.
    pub(crate) fn resume(&mut self) -> Vec<ChannelId> {
        let waiting = self.lagging.iter_mut().filter(|(_, lag)| !lag.asked);
        let mut waiting: Vec<(Instant, ChannelId)> = waiting
            .map(|(channel, lag)| {
                lag.asked = true;
                (lag.since, *channel)
            })
            .collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, channel)| channel).collect()
    }

    /// The subscription has ended. One that follows it need not begin with a full state, so a lag
    /// that stays would hold back its updates for good.
    pub(crate) fn forget_lag(&mut self, channel: ChannelId) {
        self.lagging.remove(&channel);
        self.unsure.retain(|(_, unsure)| *unsure != channel);
    }

    /// Whether a DISCONNECT of a client is its own goodbye. The state machines of stock clients do
    /// not allow the message, which is about other connections; a goodbye passes them all.
    #[cold]
    pub(crate) fn names_itself(&self, disconnect: &MessagePack<'_>) -> bool {
        self.kind == ConnKind::Client
            && disconnect.channel_id == ChannelId::GLOBAL.0
            && DisconnectMessage::decode(disconnect.body).is_ok_and(|body| body.conn_id == self.id.0)
    }

    /// Keeps track of what may be missing on the other side: a full state makes everything good, an
    /// update that may get lost does not, before `repair_at`.
    pub(crate) fn note_state(&mut self, state: State, loose: bool, repair_at: Instant) {
        let known = self.unsure.iter().position(|(_, channel)| *channel == state.channel);
        match known {
            Some(at) if state.full => drop(self.unsure.swap_remove(at)),
            None if loose => self.unsure.push((repair_at, state.channel)),
            _ => {}
        }
    }

    /// When the next full state is due that makes losses good.
    pub(crate) fn repair_at(&self) -> Option<Instant> {
        self.unsure.iter().map(|(at, _)| *at).min()
    }

    /// The earliest time at which something about this connection may be overdue, and what.
    pub(crate) fn deadline(&self, config: &Config) -> Option<(Instant, CloseReason)> {
        let auth = (!self.authenticated).then_some(config.abuse.auth_timeout).flatten().map(|timeout| {
            let until = self.accepted + timeout;
            let verdict = self.login.map_or(until, |sent| sent + config.abuse.verdict_timeout);
            (until.max(verdict), CloseReason::AuthTimeout)
        });
        let idle = config.limits.idle_timeout[self.kind.index()]
            .map(|timeout| (self.received + timeout, CloseReason::IdleTimeout));
        let stall = (!self.outbox.is_empty())
            .then_some((self.progressed + config.outbox.stall_timeout, CloseReason::Stalled));
        [auth, idle, stall].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

/// What a client may still send: two buckets that refill with time and hold two seconds' worth.
///
/// Refilled once per read and charged per message, so the clock is not consulted on the message
/// path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    messages: u32,
    bytes: u32,
    refilled: Instant,
}

const BURST_SECONDS: u64 = 2;

impl Budget {
    pub(crate) fn new(now: Instant, limits: &Limits) -> Self {
        let full = |per_second: u32| per_second.saturating_mul(BURST_SECONDS as u32);
        Self {
            messages: full(limits.client_messages_per_second),
            bytes: full(limits.client_bytes_per_second),
            refilled: now,
        }
    }

    /// Charges a read of `bytes`.
    pub(crate) fn charge_read(
        &mut self,
        now: Instant,
        bytes: usize,
        limits: &Limits,
    ) -> Result<(), CloseReason> {
        // The clock advances only by what was credited, so slow drips are not rounded away.
        let elapsed_ms = now.since(self.refilled).as_millis() as u64;
        if elapsed_ms > 0 {
            self.refilled = now;
            let refill = |have: u32, per_second: u32| {
                let credit = u64::from(per_second) * elapsed_ms / 1000;
                let full = u64::from(per_second) * BURST_SECONDS;
                (u64::from(have) + credit).min(full) as u32
            };
            self.messages = refill(self.messages, limits.client_messages_per_second);
            self.bytes = refill(self.bytes, limits.client_bytes_per_second);
        }
        if limits.client_bytes_per_second > 0 {
            let left = u64::from(self.bytes).checked_sub(bytes as u64).ok_or(CloseReason::ByteRate)?;
            self.bytes = left as u32;
        }
        Ok(())
    }

    /// Charges a message.
    #[inline]
    pub(crate) fn charge_message(&mut self, limits: &Limits) -> Result<(), CloseReason> {
        if limits.client_messages_per_second > 0 {
            self.messages = self.messages.checked_sub(1).ok_or(CloseReason::MessageRate)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_hold_a_burst_and_refill() {
        let limits =
            Limits { client_messages_per_second: 10, client_bytes_per_second: 1000, ..Limits::default() };
        let mut budget = Budget::new(Instant::ZERO, &limits);
        assert!((0..20).all(|_| budget.charge_message(&limits).is_ok()));
        assert_eq!(budget.charge_message(&limits), Err(CloseReason::MessageRate));
        assert!(budget.charge_read(Instant::from_millis(500), 900, &limits).is_ok());
        assert!((0..5).all(|_| budget.charge_message(&limits).is_ok()));
        assert_eq!(budget.charge_message(&limits), Err(CloseReason::MessageRate));
        assert_eq!(budget.charge_read(Instant::from_millis(500), 1200, &limits), Err(CloseReason::ByteRate));
    }

    #[test]
    fn a_limit_of_zero_is_none() {
        let limits =
            Limits { client_messages_per_second: 0, client_bytes_per_second: 0, ..Limits::default() };
        let mut budget = Budget::new(Instant::ZERO, &limits);
        assert!((0..1000).all(|_| budget.charge_message(&limits).is_ok()));
        assert!(budget.charge_read(Instant::ZERO, 1 << 30, &limits).is_ok());
    }

    // "Idle connection struct < 1 KiB heap in total."
    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Connection>() <= 640, "{} bytes", size_of::<Connection>());
    }
}
