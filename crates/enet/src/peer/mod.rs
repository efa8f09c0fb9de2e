//! One connection: what it sends, what it receives, and how it ends.

mod backlog;
mod receiving;
mod sending;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;

use bytes::Bytes;
use throng_stdx::TimerKey;

#[cfg(test)]
pub(crate) use backlog::COMMANDS_PER_TURN;

use crate::budget::{Budget, Held, OVERHEAD, Ranks};
use crate::config::{Config, FRAGMENTS_MAX, Pings, WINDOW_MAX, WINDOW_MIN, Windows};
use crate::estimate::{Estimate, Loss};
use crate::lane::LaneState;
use crate::path::Path;
use crate::queue::{Queue, RareQueue};
use crate::sent::{CONTROL, Numbers, SentIndex, SentLog};
use crate::statistics::{Counts, Traffic};
use crate::types::{Delivery, Event, Lane, PeerId, PeerInfo, PeerState, Reason, SendError, Stats, Via};
use crate::waiting::Waiting;
use crate::wire::{Body, Command, Dialect, Handshake};
use crate::work;

/// Parts of the host that its peers use.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) stats: Stats,
    pub(crate) budget: Budget,
    /// Bytes that wait to be sent or acknowledged, over all peers.
    pub(crate) queued_bytes: usize,
    pub(crate) now_ms: u64,
    /// Highest throttle value that the host's bandwidth allows. Spec: enet §13.2
    pub(crate) share: u32,
    /// True if bytes sent are counted per peer, because some bandwidth is limited.
    pub(crate) meters: bool,
}

/// State of a connection. Spec: enet §7.2; a server's part of the handshake is in `half_open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Connecting,
    Connected,
    /// Disconnects with this number as soon as everything was acknowledged.
    DisconnectLater(u32),
    /// Sent DISCONNECT and waits for its acknowledgement.
    Disconnecting,
    /// Received DISCONNECT; over as soon as its acknowledgement has left.
    AcknowledgingDisconnect(u32),
    /// Over. Events may still be waiting for the application.
    Over,
}

/// A block is a cache line or two. With thousands of peers, a datagram costs more in waiting for
/// memory than in work, so what most datagrams do not use comes last.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) state: State,
    /// The number by which the other end addresses us, and by which we address it.
    pub(crate) local_id: u16,
    pub(crate) remote_id: u16,
    /// The own address that the other end last sent to.
    pub(crate) via: Via,
    mtu: u16,
    pub(crate) connect_id: [u8; 4],
    window: u32,
    /// Bandwidth that the other side can take, in bytes per second; 0 is no limit.
    pub(crate) incoming_bandwidth: u32,
    /// Session ids expected in, and put into, datagrams.
    pub(crate) session_in: u8,
    pub(crate) session_out: u8,
    pub(crate) dialect: Dialect,
    lanes_max: u8,
    // Kept by the host.
    pub(crate) in_ready: bool,
    pub(crate) in_dirty: bool,
    pub(crate) in_active: bool,
    pub(crate) is_mapped: bool,
    pub(crate) is_remote_mapped: bool,
    pub(crate) is_limited: bool,
    /// The reason was the other side's acknowledged DISCONNECT: its retransmissions are to be
    /// answered.
    pub(crate) ended_by_remote: bool,
    /// [`Path::note_idle`] is up to date.
    path_is_idle: bool,
    pub(crate) rank: u32,
    /// Time of the last arrival, in eighths of a second rounded up; 0 where that is no reason to
    /// spare a ping.
    heard_eighths: u32,
    /// Bytes in `reliable` and `loose` and of unacknowledged data.
    queued_bytes: usize,

    pub(crate) address: SocketAddr,
    pub(crate) held: Held,
    /// Bytes queued since the bandwidth was last shared out.
    pub(crate) metered_bytes: u64,

    pub(crate) traffic: Traffic,
    /// Order in which commands were queued, over all three queues.
    stamp: u64,
    /// From the first reliable packet on, and where [`Config::windows`] says so.
    path: Option<Box<Path>>,

    inbox: Queue<Event>,
    in_flight_bytes: usize,

    /// Packets that may get lost. One of three queues in the order of queueing, beside `control`
    /// and `reliable`: when the window is closed, the others pass without a look at what is held
    /// back.
    loose: Queue<Queued<Outgoing>>,

    acks: Queue<Ack>,
    /// In order of their numbers; only lanes in use.
    lanes: Vec<LaneState>,
    pub(crate) timer: Option<(u64, TimerKey)>,

    backlog: Option<Box<backlog::Backlog>>,
    ping_interval_ms: u32,
    control_number: u16,
    /// Something was sent or acknowledged since the host looked at
    /// [`next_deadline`](Self::next_deadline); otherwise it can only have become later.
    pub(crate) deadline_moved: bool,
    /// The throttle held packets back at the latest acknowledgement.
    was_throttled: bool,
    /// Time of the other side's last acknowledgement.
    last_ack_ms: Option<u64>,
    /// The present turn, in milliseconds, and the commands that were obeyed in it.
    turn_ms: u32,
    turn_commands: u32,
    /// Commands about the connection.
    control: RareQueue<Queued<Body<'static>>>,
    /// Commands to be sent again, connection and data, in the order they were found lost.
    resend_control: RareQueue<Queued<SentIndex>>,
    resend_data: RareQueue<Queued<SentIndex>>,

    /// Reliable data.
    reliable: Queue<Queued<Outgoing>>,

    sent: SentLog,
    pub(crate) estimate: Estimate,
    loss: Loss,

    // Not read in advance.
    waiting: Waiting,
    control_unacknowledged: Numbers,
    resent_commands: u64,
    /// Oldest of the transmissions that have expired since the last acknowledgement.
    earliest_loss_ms: Option<u64>,

    round_trips: Counts,
    group_base: u16,
    group_out: u16,
    timeout_limit: u32,
    timeout_min_ms: u32,
    timeout_max_ms: u32,
    pub(crate) live_at: u32,
    lowest_rtt_ms: u32,
    /// Bandwidth that the other side sends at most, as `incoming_bandwidth`.
    pub(crate) outgoing_bandwidth: u32,
    groups_seen: Option<Box<[u64; receiving::GROUPS / 64]>>,
}

/// Has `$look` look at a value in each cache line of a [`Peer`] that most datagrams use: where it
/// is, and a value there.
macro_rules! look_at_lines {
    ($peer:expr, $look:ident) => {
        $look!($peer.is_mapped, $peer.is_mapped);
        $look!($peer.held, $peer.held.bytes);
        $look!($peer.traffic, $peer.traffic.packets_in);
        $look!($peer.in_flight_bytes, $peer.in_flight_bytes);
        $look!($peer.loose, $peer.loose.is_empty());
        $look!($peer.acks, $peer.acks.is_empty());
        $look!($peer.last_ack_ms, $peer.last_ack_ms);
        $look!($peer.reliable, $peer.reliable.is_empty());
        $look!($peer.sent, $peer.sent.is_empty());
        $look!($peer.estimate.throttle, $peer.estimate.throttle);
        $look!($peer.loss, $peer.loss.sent);
    };
}

#[derive(Clone, Copy, Debug)]
struct Queued<T> {
    stamp: u64,
    item: T,
}

/// A packet, or what is left of it, in a queue.
#[derive(Clone, Debug)]
struct Outgoing {
    lane: u8,
    kind: Kind,
    /// The reliable number: of the packet (of its first fragment), or of the last reliable packet
    /// before it.
    number: u16,
    data: Bytes,
    /// Bytes of a fragment; 0 when the packet goes out whole.
    part: u16,
    /// Fragments that have left.
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reliable,
    /// With its unreliable number.
    Unreliable(u16),
    /// With its group.
    Unsequenced(u16),
}

/// An acknowledgement to send.
#[derive(Clone, Copy, Debug)]
struct Ack {
    channel: u8,
    number: u16,
    sent_time: u16,
    /// The connection is over once this has left.
    is_last: bool,
}

/// Verdict on the rest of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// A command is malformed, or not allowed now.
    Stop,
    /// A queue or the budget has no room for a command.
    Full,
}

/// Header values of datagrams to this peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) peer_id: u16,
    pub(crate) session: u8,
    pub(crate) connect_id: [u8; 4],
    pub(crate) dialect: Dialect,
}

/// The agreed values of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) lanes: u8,
    pub(crate) mtu: u16,
    pub(crate) window: u32,
    pub(crate) incoming_bandwidth: u32,
    pub(crate) outgoing_bandwidth: u32,
    pub(crate) throttle_interval: u32,
    pub(crate) throttle_acceleration: u32,
    pub(crate) throttle_deceleration: u32,
}

/// Identity of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) address: SocketAddr,
    pub(crate) local_id: u16,
    pub(crate) remote_id: u16,
    pub(crate) connect_id: [u8; 4],
    pub(crate) session_in: u8,
    pub(crate) session_out: u8,
    pub(crate) dialect: Dialect,
}

impl Peer {
    /// Reads from each cache line, without waiting for one before the next.
    pub(crate) fn prefetch(&self) {
        macro_rules! read {
            ($place:expr, $value:expr) => {
                core::hint::black_box($value)
            };
        }
        look_at_lines!(self, read);
    }

    /// The same for what the peer refers to, once [`prefetch`](Self::prefetch) has brought the
    /// references.
    pub(crate) fn prefetch_parts(&self) {
        core::hint::black_box((
            self.lanes.first().map(|lane| lane.id),
            self.lanes.last().map(|lane| lane.id),
        ));
        self.sent.prefetch();
    }

    fn new(id: PeerId, names: Names, terms: Terms, state: State) -> Self {
        let mut estimate = Estimate::new();
        estimate.interval_ms = terms.throttle_interval;
        estimate.acceleration = terms.throttle_acceleration;
        estimate.deceleration = terms.throttle_deceleration;
        Self {
            id,
            state,
            local_id: names.local_id,
            remote_id: names.remote_id,
            via: Via::default(),
            mtu: terms.mtu,
            connect_id: names.connect_id,
            window: terms.window,
            incoming_bandwidth: terms.incoming_bandwidth,
            session_in: names.session_in,
            session_out: names.session_out,
            dialect: names.dialect,
            lanes_max: terms.lanes,
            in_ready: false,
            in_dirty: false,
            in_active: false,
            is_mapped: false,
            is_remote_mapped: false,
            is_limited: false,
            ended_by_remote: false,
            path_is_idle: false,
            was_throttled: false,
            deadline_moved: true,
            rank: 0,
            heard_eighths: 0,
            queued_bytes: 0,
            address: names.address,
            held: Held::default(),
            metered_bytes: 0,
            traffic: Traffic::default(),
            stamp: 0,
            path: None,
            inbox: Queue::new(),
            in_flight_bytes: 0,
            loose: Queue::new(),
            waiting: Waiting::default(),
            acks: Queue::new(),
            lanes: Vec::new(),
            timer: None,
            backlog: None,
            group_base: 0,
            group_out: 0,
            control_number: 0,
            sent: SentLog::new(),
            last_ack_ms: None,
            turn_ms: 0,
            turn_commands: 0,
            estimate,
            loss: Loss::default(),
            control: RareQueue::new(),
            reliable: Queue::new(),
            resend_control: RareQueue::new(),
            resend_data: RareQueue::new(),
            control_unacknowledged: Numbers::default(),
            resent_commands: 0,
            earliest_loss_ms: None,
            round_trips: Counts::default(),
            ping_interval_ms: PING_INTERVAL_MS,
            timeout_limit: TIMEOUT_LIMIT,
            timeout_min_ms: TIMEOUT_MIN_MS,
            timeout_max_ms: TIMEOUT_MAX_MS,
            live_at: 0,
            lowest_rtt_ms: u32::MAX,
            outgoing_bandwidth: terms.outgoing_bandwidth,
            groups_seen: None,
        }
    }

    /// A connection that this side asks for: CONNECT is queued.
    pub(crate) fn connecting(id: PeerId, names: Names, terms: Terms, data: u32) -> Self {
        let mut peer = Self::new(id, names, terms, State::Connecting);
        let handshake = Handshake {
            peer_id: names.local_id,
            incoming_session: names.session_in,
            outgoing_session: names.session_out,
            mtu: terms.mtu.into(),
            window: terms.window,
            channels: terms.lanes.into(),
            incoming_bandwidth: terms.incoming_bandwidth,
            outgoing_bandwidth: terms.outgoing_bandwidth,
            throttle_interval: terms.throttle_interval,
            throttle_acceleration: terms.throttle_acceleration,
            throttle_deceleration: terms.throttle_deceleration,
            connect_id: names.connect_id,
        };
        // These describe the other side, which is not known yet.
        (peer.incoming_bandwidth, peer.outgoing_bandwidth) = (0, 0);
        peer.queue_control(Body::Connect(handshake, data));
        peer
    }

    /// A connection that the other side asked for and that has just proven its address.
    pub(crate) fn accepted(
        ctx: &mut Context,
        id: PeerId,
        names: Names,
        terms: Terms,
        data: u32,
        rtt_ms: u32,
    ) -> Self {
        let mut peer = Self::new(id, names, terms, State::Connected);
        // VERIFY_CONNECT was number 1.
        peer.control_number = 1;
        peer.measure(ctx, rtt_ms);
        peer.last_ack_ms = Some(ctx.now_ms);
        peer.held.is_newcomer = true;
        peer.heard_eighths = u32::from(ctx.config.pings == Pings::WhenSilent);
        peer.note_heard(ctx.now_ms);
        peer.inbox.push_back(Event::Connected { peer: id, data });
        peer
    }

    // ---- the application's side

    pub(crate) fn send(
        &mut self,
        ctx: &mut Context,
        lane: Lane,
        data: Bytes,
        delivery: Delivery,
    ) -> Result<(), SendError> {
        if self.state != State::Connected {
            return Err(SendError::NotConnected);
        }
        if lane.0 >= self.lanes_max {
            return Err(SendError::NoSuchLane { lane: lane.0, lanes: self.lanes_max });
        }
        let part = ctx.config.fragment_bytes(self.mtu);
        let count = if data.len() <= part { 1 } else { data.len().div_ceil(part) };
        if data.len() > ctx.config.packet_bytes_max || count > FRAGMENTS_MAX as usize {
            return Err(SendError::TooLong { len: data.len(), max: ctx.config.packet_bytes_max });
        }
        let queued = self.queued_bytes + data.len() + OVERHEAD;
        if queued > ctx.config.send_bytes_max {
            return Err(SendError::QueueFull { queued: self.queued_bytes });
        }
        if ctx.queued_bytes + (queued - self.queued_bytes) > ctx.config.host_send_bytes_max {
            return Err(SendError::HostQueueFull { queued: ctx.queued_bytes });
        }
        if self.path.is_none() && ctx.config.windows == Windows::Adaptive {
            self.path = Some(Box::new(Path::new(ctx.now_ms)));
        }
        let state = lane_mut(&mut self.lanes, lane.0);
        let is_whole = count == 1;
        // Spec: enet §11.1, §11.2
        let wants_fragments =
            matches!(delivery, Delivery::UnreliableFragmented | Delivery::UnsequencedFragmented);
        let kind = if is_whole && matches!(delivery, Delivery::Unsequenced | Delivery::UnsequencedFragmented)
        {
            self.group_out = self.group_out.wrapping_add(1);
            Kind::Unsequenced(self.group_out)
        } else if delivery == Delivery::Reliable
            || state.unreliable_out == u16::MAX
            || !is_whole && !wants_fragments
        {
            Kind::Reliable
        } else {
            state.unreliable_out += 1;
            Kind::Unreliable(state.unreliable_out)
        };
        let number = match kind {
            Kind::Reliable => {
                let numbers_max = state.numbers_max();
                if count as u32 > numbers_max {
                    let max = part * numbers_max as usize;
                    return Err(SendError::TooLongNow { len: data.len(), max, lane: lane.0 });
                }
                let first = state.reliable_out.wrapping_add(1);
                state.reliable_out = state.reliable_out.wrapping_add(count as u16);
                state.unreliable_out = 0;
                first
            }
            Kind::Unreliable(_) => state.reliable_out,
            Kind::Unsequenced(_) => 0,
        };
        let fixed = match kind {
            _ if !is_whole => 24,
            Kind::Reliable => 6,
            _ => 8,
        };
        self.meter(ctx, data.len() + count * fixed);
        ctx.queued_bytes += queued - self.queued_bytes;
        self.queued_bytes = queued;
        ctx.stats.packets_out += 1;
        self.traffic.packets_out += 1;
        let part = if is_whole { 0 } else { part as u16 };
        self.stamp += 1;
        let queued =
            Queued { stamp: self.stamp, item: Outgoing { lane: lane.0, kind, number, data, part, next: 0 } };
        if kind == Kind::Reliable {
            self.reliable.push_back(queued)
        } else {
            self.loose.push_back(queued)
        }
        Ok(())
    }

    /// Starts an orderly end. Returns the farewell to send when there is nobody to acknowledge one.
    pub(crate) fn disconnect(&mut self, ctx: &mut Context, data: u32) -> Option<Command<'static>> {
        match self.state {
            State::Disconnecting | State::AcknowledgingDisconnect(_) | State::Over => None,
            State::Connected | State::DisconnectLater(_) => {
                self.clear_outgoing(ctx);
                self.queue_control(Body::Disconnect { data });
                self.meter(ctx, 8);
                self.state = State::Disconnecting;
                None
            }
            State::Connecting => Some(self.farewell(data)),
        }
    }

    /// The unacknowledged DISCONNECT. Spec: enet §14
    pub(crate) fn farewell(&mut self, data: u32) -> Command<'static> {
        self.control_number = self.control_number.wrapping_add(1);
        Command {
            channel: CONTROL,
            number: self.control_number,
            acknowledge: false,
            unsequenced: true,
            body: Body::Disconnect { data },
        }
    }

    pub(crate) fn disconnect_later(&mut self, ctx: &mut Context, data: u32) {
        if !matches!(self.state, State::Connected | State::DisconnectLater(_)) {
            return;
        }
        self.state = State::DisconnectLater(data);
        self.disconnect_if_drained(ctx);
    }

    pub(crate) fn configure_throttle(&mut self, interval: u32, acceleration: u32, deceleration: u32) {
        self.estimate.interval_ms = interval;
        self.estimate.acceleration = acceleration;
        self.estimate.deceleration = deceleration;
        self.queue_control(Body::ThrottleConfigure { interval, acceleration, deceleration });
    }

    pub(crate) fn ping(&mut self) {
        // One that waits already says the same.
        if self.control.is_empty() {
            self.queue_control(Body::Ping);
        }
    }

    pub(crate) fn set_ping_interval_ms(&mut self, interval_ms: u32) {
        self.ping_interval_ms = interval_ms.max(1);
        self.heard_eighths = 0;
    }

    pub(crate) fn set_timeouts(&mut self, limit: u32, min_ms: u32, max_ms: u32) {
        (self.timeout_limit, self.timeout_min_ms, self.timeout_max_ms) = (limit, min_ms, max_ms);
    }

    pub(crate) fn report_bandwidth(&mut self, ctx: &mut Context, incoming: u32, outgoing: u32) {
        self.queue_control(Body::BandwidthLimit { incoming, outgoing });
        self.meter(ctx, 12);
    }

    /// Drops the packets that wait and may get lost. False when there are none.
    pub(crate) fn drop_loose_waiting(&mut self, ctx: &mut Context) -> bool {
        let before = self.held.bytes;
        for lane in &self.lanes {
            work::step();
            self.waiting.discard_loose(lane.id, &mut ctx.budget, &mut self.held);
        }
        self.held.bytes < before
    }

    /// Ends the connection here and now.
    pub(crate) fn finish(&mut self, ctx: &mut Context, data: u32, reason: Reason) {
        debug_assert_ne!(self.state, State::Over);
        self.clear_outgoing(ctx);
        self.drop_backlog(ctx);
        self.acks = Queue::new();
        self.lanes = Vec::new();
        self.waiting = Waiting::default();
        let waiting = self.held.waiting();
        ctx.budget.give_back(&mut self.held, waiting);
        self.state = State::Over;
        self.inbox.push_back(Event::Disconnected { peer: self.id, data, reason });
        ctx.stats.disconnects += 1;
        if reason == Reason::Timeout {
            ctx.stats.timeouts += 1;
        }
    }

    /// The next event, whose packet no longer counts as held.
    pub(crate) fn pop_event(&mut self, budget: &mut Budget) -> Option<Event> {
        let event = self.inbox.pop_front()?;
        if let Event::Received { data, .. } = &event {
            budget.give_back_delivered(&mut self.held, data.len());
        }
        Some(event)
    }

    /// The next event if it is a packet, which no longer counts as held.
    pub(crate) fn pop_packet(&mut self, budget: &mut Budget) -> Option<Event> {
        let is_packet = matches!(self.inbox.front(), Some(Event::Received { .. }));
        if is_packet { self.pop_event(budget) } else { None }
    }

    /// Gives back everything that the peer holds; it is about to be forgotten.
    pub(crate) fn release(&mut self, ctx: &mut Context) {
        ctx.budget.total -= core::mem::take(&mut self.held).bytes;
        ctx.queued_bytes -= core::mem::take(&mut self.queued_bytes);
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(crate) fn info(&self) -> PeerInfo {
        let ms = |ms: u32| core::time::Duration::from_millis(ms.into());
        PeerInfo {
            address: self.address,
            state: match self.state {
                State::Connecting => PeerState::Connecting,
                State::Connected => PeerState::Connected,
                State::DisconnectLater(_) | State::Disconnecting | State::AcknowledgingDisconnect(_) => {
                    PeerState::Disconnecting
                }
                State::Over => PeerState::Over,
            },
            remote_id: self.remote_id,
            connect_id: self.connect_id,
            incoming_bandwidth: self.incoming_bandwidth,
            outgoing_bandwidth: self.outgoing_bandwidth,
            lanes: self.lanes_max,
            mtu: self.mtu,
            window_bytes: self.window,
            rtt: ms(self.estimate.rtt_ms),
            rtt_variance: ms(self.estimate.variance_ms),
            throttle: self.estimate.throttle as u8,
            throttle_settings: (
                ms(self.estimate.interval_ms),
                self.estimate.acceleration,
                self.estimate.deceleration,
            ),
            loss: self.loss.mean,
            queued_packets: self.reliable.len() + self.loose.len(),
            queued_bytes: self.queued_bytes,
            unacknowledged_commands: self.sent.len(),
            in_flight_bytes: self.in_flight_bytes,
            held_bytes: self.held.bytes,
            waiting_bytes: self.held.content(),
            resent_commands: self.resent_commands,
            lowest_rtt: (self.lowest_rtt_ms != u32::MAX).then(|| ms(self.lowest_rtt_ms)),
            round_trips: self.round_trips.wide(),
            traffic: self.traffic,
        }
    }

    // ---- time

    /// Time at which [`handle_timeout`](Self::handle_timeout) has work, in milliseconds. A ping
    /// that is due already is not such work: it waits for the next
    /// [`write_commands`](Self::write_commands).
    pub(crate) fn next_deadline(&mut self, now_ms: u64) -> Option<u64> {
        let resend = self.sent.next_deadline();
        let ping = self.ping_time().filter(|&at| at > now_ms);
        match (resend, ping) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// True if the host need not look at [`next_deadline`](Self::next_deadline): nothing was sent or
    /// acknowledged since it did, so that only the ping has moved, to a later time, and the timer
    /// does not fire soon.
    pub(crate) fn keeps_timer(&self, now_ms: u64) -> bool {
        !self.deadline_moved && self.timer.is_some_and(|(at, _)| at >= now_ms + TIMER_SOON_MS)
    }

    /// True if a command is on its way, or waits to be sent again.
    pub(crate) fn awaits_acknowledgement(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Time at which the next ping is due, if nothing else keeps the link alive. Spec: enet §12.5
    fn ping_time(&self) -> Option<u64> {
        let is_quiet = self.state == State::Connected
            && self.sent.is_empty()
            && self.control.is_empty()
            && self.reliable.is_empty();
        let interval = u64::from(self.ping_interval_ms);
        is_quiet.then(|| {
            self.last_ack_ms.map_or(0, |acked| {
                let heard = u64::from(self.heard_eighths) * HEARD_STEP_MS;
                // Only acknowledgements raise the throttle again.
                if heard == 0 || self.was_throttled {
                    return acked + interval;
                }
                (acked + interval).max((heard + SILENCE * interval).min(acked + PING_REST * interval))
            })
        })
    }

    /// Notes that something has arrived from the peer.
    pub(crate) fn note_heard(&mut self, now_ms: u64) {
        if self.heard_eighths > 0 {
            // Never 0 again; wraps after seventeen years.
            self.heard_eighths = (now_ms / HEARD_STEP_MS) as u32 + 1;
        }
    }

    fn ping_is_due(&self, now_ms: u64) -> bool {
        // A timer is not later than the ping, and nearly always there: most looks end here. Before
        // the first acknowledgement it may be that of CONNECT.
        if self.last_ack_ms.is_some() && self.timer.is_some_and(|(at, _)| at > now_ms) {
            return false;
        }
        self.ping_time().is_some_and(|at| at <= now_ms)
    }

    /// Finds lost commands, and the end of patience. Spec: enet §12.3, §12.4
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context) {
        while let Some(index) = self.sent.pop_expired(ctx.now_ms) {
            work::step();
            let sent = self.sent.get(index);
            let (sent_ms, expiries) = (sent.sent_ms, sent.expiries);
            let earliest = self.earliest_loss_ms.map_or(sent_ms, |earliest| earliest.min(sent_ms));
            self.earliest_loss_ms = Some(earliest);
            let waited = ctx.now_ms.saturating_sub(earliest);
            // Early resends do not count: they come within the patience that a command has.
            let tries = 1_u64 << u32::from(expiries).min(63);
            if waited >= self.timeout_max_ms.into()
                || tries >= self.timeout_limit.into() && waited >= self.timeout_min_ms.into()
            {
                self.finish(ctx, 0, Reason::Timeout);
                return;
            }
            self.loss.lost += 1;
            self.sent.back_off(index);
            self.queue_resend(ctx, index);
        }
    }

    /// Queues a command that has just left the flight.
    fn queue_resend(&mut self, ctx: &mut Context, index: SentIndex) {
        let content = &self.sent.get(index).content;
        self.in_flight_bytes -= content.data_len();
        self.stamp += 1;
        let queued = Queued { stamp: self.stamp, item: index };
        if content.is_data() {
            self.resend_data.push_back(queued)
        } else {
            self.resend_control.push_back(queued)
        }
        self.resent_commands += 1;
        ctx.stats.resent_commands += 1;
    }

    /// Checks what must always hold; for tests.
    pub(crate) fn check_invariants(&self) {
        let inbox: usize = self
            .inbox
            .iter()
            .map(|event| match event {
                Event::Received { data, .. } => data.len() + OVERHEAD,
                _ => 0,
            })
            .sum();
        assert_eq!(
            self.held.bytes,
            self.waiting.held_bytes() + inbox + self.put_off_bytes(),
            "what is held waits, is in the inbox, or was put off"
        );
        assert_eq!(self.held.inbox, inbox);
        let received = self.inbox.iter().filter(|event| matches!(event, Event::Received { .. }));
        assert_eq!(self.held.inbox_count as usize, received.count());
        assert_eq!(self.rank, Ranks::rank(self.held));
        if let (Some((at, _)), Some(ping), Some(_)) = (self.timer, self.ping_time(), self.last_ack_ms) {
            assert!(at <= ping || self.in_dirty, "the timer is later than the ping");
        }
        assert!(self.in_flight_bytes <= self.queued_bytes, "what is in flight was queued");
        assert!(self.lanes.is_sorted_by_key(|lane| lane.id));
        if self.state == State::Over {
            assert!(self.sent.is_empty() && self.queued_bytes == 0);
        }
    }
}

fn find_lane(lanes: &[LaneState], id: u8) -> Result<usize, usize> {
    // Most connections use their lanes from 0 upwards.
    match lanes.get(usize::from(id)) {
        Some(lane) if lane.id == id => Ok(id.into()),
        _ => lanes.binary_search_by_key(&id, |lane| lane.id),
    }
}

fn lane_mut(lanes: &mut Vec<LaneState>, id: u8) -> &mut LaneState {
    let at = match find_lane(lanes, id) {
        Ok(at) => at,
        Err(at) => {
            // Most connections use one or two, and Vec would begin with room for four.
            lanes.reserve_exact(1);
            lanes.insert(at, LaneState::new(id));
            at
        }
    };
    &mut lanes[at]
}

/// Window for reliable data, given what either side announced in bytes per second. Spec: enet §8.2
pub(crate) fn window(a: u32, b: u32) -> u32 {
    let limit = match (a, b) {
        (0, 0) => return WINDOW_MAX,
        (0, limit) | (limit, 0) => limit,
        (a, b) => a.min(b),
    };
    (limit / WINDOW_SCALE).saturating_mul(WINDOW_MIN).clamp(WINDOW_MIN, WINDOW_MAX)
}

fn floor_ms(config: &Config) -> u32 {
    u32::try_from(config.resend_floor.as_millis()).unwrap_or(u32::MAX)
}

// Spec: enet §6
const WINDOW_SCALE: u32 = 65_536;
/// Resolution of the time of the last arrival: exactly enough for pings, in half the bytes.
const HEARD_STEP_MS: u64 = 125;
/// Ping intervals of silence after which a peer is pinged that would have pinged by itself: clients
/// do so every interval, a little late.
const SILENCE: u64 = 2;
/// Ping intervals after which a peer is pinged although it was heard.
const PING_REST: u64 = 10;
const PING_INTERVAL_MS: u32 = 500;
/// Time before a timer fires in which it is put off, if it can be: about that between two pings of
/// a client.
const TIMER_SOON_MS: u64 = 650;
const TIMEOUT_LIMIT: u32 = 32;
const TIMEOUT_MIN_MS: u32 = 5_000;
const TIMEOUT_MAX_MS: u32 = 30_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        // Beside this: two entries in hash tables, a timer, and room for a ping and its
        // acknowledgement.
        assert!(size_of::<Peer>() <= 1_024, "{} bytes", size_of::<Peer>());
        assert!(size_of::<LaneState>() <= 24, "{} bytes", size_of::<LaneState>());
    }

    #[test]
    fn every_cache_line_that_most_datagrams_use_is_looked_at() {
        let names = Names {
            address: SocketAddr::from(([10, 0, 0, 1], 1)),
            local_id: 0,
            remote_id: 0,
            connect_id: [0; 4],
            session_in: 0,
            session_out: 0,
            dialect: Dialect::Stock,
        };
        let terms = Terms {
            lanes: 1,
            mtu: 1_392,
            window: WINDOW_MAX,
            incoming_bandwidth: 0,
            outgoing_bandwidth: 0,
            throttle_interval: 5_000,
            throttle_acceleration: 2,
            throttle_deceleration: 2,
        };
        let peer = Peer::new(PeerId { index: 0, generation: 0 }, names, terms, State::Connected);
        let start = core::ptr::from_ref(&peer).addr();
        let mut lines = Vec::new();
        macro_rules! note {
            ($place:expr, $value:expr) => {
                lines.push((core::ptr::from_ref(&$place).addr() - start) / 64)
            };
        }
        look_at_lines!(peer, note);
        let used = core::mem::offset_of!(Peer, waiting) / 64;
        assert!(lines.iter().copied().eq(0..used), "{lines:?} of {used}");
    }

    #[test]
    fn windows_follow_the_narrower_side() {
        // The values of the recorded negotiations.
        for (a, b, expected) in [
            (0, 0, 65_536),
            (200_000, 500_000, 12_288),
            (0, 128_000, 4_096),
            (7_200, 0, 4_096),
            (u32::MAX, u32::MAX, 65_536),
        ] {
            assert_eq!(window(a, b), expected, "{a} and {b}");
        }
    }
}
