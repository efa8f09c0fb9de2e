//! One connection: what it sends, what it receives, and how it ends.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;

use bytes::Bytes;
use throng_stdx::TimerKey;

use crate::budget::{Budget, Held, OVERHEAD};
use crate::config::{Config, FRAGMENTS_MAX, LANES_MAX, MTU_MAX, MTU_MIN, WINDOW_MAX, WINDOW_MIN};
use crate::estimate::{Estimate, Loss, THROTTLE_SCALE};
use crate::lane::{LaneState, Receipt};
use crate::sent::{CONTROL, Content, Numbers, SentIndex, SentLog};
use crate::statistics::{Counts, Traffic};
use crate::types::{Delivery, Event, Lane, PeerId, PeerInfo, PeerState, Reason, SendError, Stats};
use crate::wire::{Body, Command, Fragment, Handshake, PEER_ID_NONE};
use crate::work;

/// What a peer needs of its host.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) stats: Stats,
    pub(crate) budget: Budget,
    pub(crate) now_ms: u64,
    /// Highest throttle value that the host's bandwidth allows. Spec: enet §13.2
    pub(crate) share: u32,
    /// Whether bytes sent are counted per peer, because some bandwidth is limited.
    pub(crate) meters: bool,
}

/// Where a connection stands. Spec: enet §7.2; a server's part of the handshake is in `half_open`.
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

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) address: SocketAddr,
    pub(crate) state: State,
    /// The number by which the other end addresses us, and by which we address it.
    pub(crate) local_id: u16,
    pub(crate) remote_id: u16,
    pub(crate) connect_id: [u8; 4],
    /// Session ids expected in, and put into, datagrams.
    pub(crate) session_in: u8,
    pub(crate) session_out: u8,
    /// The reason was the other side's acknowledged DISCONNECT: its retransmissions are to be answered.
    pub(crate) ended_by_remote: bool,
    lanes_max: u8,
    mtu: u16,
    window: u32,
    /// What the other side can take, and sends at most, in bytes per second; 0 is no limit.
    pub(crate) incoming_bandwidth: u32,
    pub(crate) outgoing_bandwidth: u32,
    pub(crate) estimate: Estimate,
    loss: Loss,
    round_trips: Counts,
    lowest_rtt_ms: u32,
    pub(crate) traffic: Traffic,
    resent_commands: u64,
    ping_interval_ms: u32,
    timeout_limit: u32,
    timeout_min_ms: u32,
    timeout_max_ms: u32,
    /// When the other side last acknowledged something.
    last_ack_ms: Option<u64>,
    /// Oldest of the transmissions that have expired since the last acknowledgement.
    earliest_loss_ms: Option<u64>,

    control_number: u16,
    group_out: u16,
    /// Order in which commands were queued, over all three queues.
    stamp: u64,
    /// Commands about the connection, reliable data, and the rest, in the order they were queued. Three queues: when the
    /// window is closed, the others pass without a look at what is held back.
    control: VecDeque<Queued<Body<'static>>>,
    reliable: VecDeque<Queued<Outgoing>>,
    loose: VecDeque<Queued<Outgoing>>,
    /// Bytes in `reliable` and `loose` and of unacknowledged data.
    queued_bytes: usize,
    /// Commands to be sent again, connection and data, in the order they were found lost.
    resend_control: VecDeque<Queued<SentIndex>>,
    resend_data: VecDeque<Queued<SentIndex>>,
    sent: SentLog,
    control_unacknowledged: Numbers,
    in_flight_bytes: usize,
    acks: VecDeque<Ack>,
    /// Bytes queued since the bandwidth was last shared out.
    pub(crate) metered_bytes: u64,
    pub(crate) in_active: bool,

    /// In order of their numbers; only lanes in use.
    lanes: Vec<LaneState>,
    group_base: u16,
    groups_seen: Option<Box<[u64; GROUPS / 64]>>,
    held: Held,
    inbox: VecDeque<Event>,

    // Kept by the host.
    pub(crate) in_ready: bool,
    pub(crate) in_dirty: bool,
    pub(crate) is_mapped: bool,
    pub(crate) is_remote_mapped: bool,
    pub(crate) is_limited: bool,
    pub(crate) live_at: u32,
    pub(crate) timer: Option<(u64, TimerKey)>,
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
    /// The reliable number: of the packet (of its first fragment), or of the last reliable packet before it.
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

/// Whether the rest of a datagram is worth reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Stop,
}

/// How to address a datagram to this peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) peer_id: u16,
    pub(crate) session: u8,
    pub(crate) connect_id: [u8; 4],
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

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) address: SocketAddr,
    pub(crate) local_id: u16,
    pub(crate) remote_id: u16,
    pub(crate) connect_id: [u8; 4],
    pub(crate) session_in: u8,
    pub(crate) session_out: u8,
}

impl Peer {
    fn new(id: PeerId, names: Names, terms: Terms, state: State) -> Self {
        let mut estimate = Estimate::new();
        estimate.interval_ms = terms.throttle_interval;
        estimate.acceleration = terms.throttle_acceleration;
        estimate.deceleration = terms.throttle_deceleration;
        Self {
            id,
            address: names.address,
            state,
            local_id: names.local_id,
            remote_id: names.remote_id,
            connect_id: names.connect_id,
            session_in: names.session_in,
            session_out: names.session_out,
            ended_by_remote: false,
            lanes_max: terms.lanes,
            mtu: terms.mtu,
            window: terms.window,
            incoming_bandwidth: terms.incoming_bandwidth,
            outgoing_bandwidth: terms.outgoing_bandwidth,
            estimate,
            loss: Loss::default(),
            round_trips: Counts::default(),
            lowest_rtt_ms: u32::MAX,
            traffic: Traffic::default(),
            resent_commands: 0,
            ping_interval_ms: PING_INTERVAL_MS,
            timeout_limit: TIMEOUT_LIMIT,
            timeout_min_ms: TIMEOUT_MIN_MS,
            timeout_max_ms: TIMEOUT_MAX_MS,
            last_ack_ms: None,
            earliest_loss_ms: None,
            control_number: 0,
            group_out: 0,
            stamp: 0,
            control: VecDeque::new(),
            reliable: VecDeque::new(),
            loose: VecDeque::new(),
            queued_bytes: 0,
            resend_control: VecDeque::new(),
            resend_data: VecDeque::new(),
            sent: SentLog::new(),
            control_unacknowledged: Numbers::default(),
            in_flight_bytes: 0,
            acks: VecDeque::new(),
            metered_bytes: 0,
            in_active: false,
            lanes: Vec::new(),
            group_base: 0,
            groups_seen: None,
            held: Held::default(),
            inbox: VecDeque::new(),
            in_ready: false,
            in_dirty: false,
            is_mapped: false,
            is_remote_mapped: false,
            is_limited: false,
            live_at: 0,
            timer: None,
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
                if !state.can_carry(count as u32) {
                    let max = part * 6 * 4096;
                    return Err(SendError::TooLong { len: data.len(), max });
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
                self.clear_outgoing();
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

    pub(crate) fn set_ping_interval_ms(&mut self, interval_ms: u32) {
        self.ping_interval_ms = interval_ms.max(1);
    }

    pub(crate) fn set_timeouts(&mut self, limit: u32, min_ms: u32, max_ms: u32) {
        (self.timeout_limit, self.timeout_min_ms, self.timeout_max_ms) = (limit, min_ms, max_ms);
    }

    pub(crate) fn report_bandwidth(&mut self, ctx: &mut Context, incoming: u32, outgoing: u32) {
        self.queue_control(Body::BandwidthLimit { incoming, outgoing });
        self.meter(ctx, 12);
    }

    /// Ends the connection here and now.
    pub(crate) fn finish(&mut self, ctx: &mut Context, data: u32, reason: Reason) {
        debug_assert_ne!(self.state, State::Over);
        self.clear_outgoing();
        self.acks = VecDeque::new();
        for lane in core::mem::take(&mut self.lanes) {
            ctx.budget.give_back(&mut self.held, lane.held_bytes());
        }
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
        if matches!(event, Event::Connected { .. }) && self.inbox.is_empty() {
            // Many connections never receive anything else.
            self.inbox = VecDeque::new();
        }
        if let Event::Received { data, .. } = &event {
            budget.give_back(&mut self.held, data.len() + OVERHEAD);
        }
        if self.inbox.is_empty() && self.inbox.capacity() > INBOX_KEPT {
            self.inbox = VecDeque::new();
        }
        Some(event)
    }

    /// Gives back everything that the peer holds; it is about to be forgotten.
    pub(crate) fn release(&mut self, budget: &mut Budget) {
        let all = self.held.0;
        budget.give_back(&mut self.held, all);
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
            lanes: self.lanes_max,
            mtu: self.mtu,
            window_bytes: self.window,
            rtt: ms(self.estimate.rtt_ms),
            rtt_variance: ms(self.estimate.variance_ms),
            throttle: self.estimate.throttle as u8,
            loss: self.loss.mean,
            queued_packets: self.reliable.len() + self.loose.len(),
            queued_bytes: self.queued_bytes,
            unacknowledged_commands: self.sent.len(),
            in_flight_bytes: self.in_flight_bytes,
            held_bytes: self.held.0,
            resent_commands: self.resent_commands,
            lowest_rtt: (self.lowest_rtt_ms != u32::MAX).then(|| ms(self.lowest_rtt_ms)),
            round_trips: self.round_trips.wide(),
            traffic: self.traffic,
        }
    }

    // ---- receiving

    /// Obeys one command of a datagram.
    pub(crate) fn handle_command(
        &mut self,
        ctx: &mut Context,
        command: &Command<'_>,
        sent_time: Option<u16>,
    ) -> Flow {
        let Some(receipt) = self.obey(ctx, command, sent_time) else { return Flow::Stop };
        match receipt {
            Receipt::Malformed => return Flow::Stop,
            Receipt::Full => {
                ctx.stats.dropped_full += 1;
                return Flow::Stop;
            }
            Receipt::Ahead => return Flow::Continue,
            Receipt::Taken => {}
        }
        if !command.acknowledge {
            return Flow::Continue;
        }
        // Spec: enet §9.6
        let Some(sent_time) = sent_time else { return Flow::Stop };
        let is_last = match self.state {
            State::Disconnecting | State::Over => return Flow::Continue,
            State::AcknowledgingDisconnect(_) if !matches!(command.body, Body::Disconnect { .. }) => {
                return Flow::Continue;
            }
            State::AcknowledgingDisconnect(_) => true,
            _ => false,
        };
        if self.acks.len() >= ACKS_MAX {
            return Flow::Stop;
        }
        self.meter(ctx, 8);
        self.acks.push_back(Ack { channel: command.channel, number: command.number, sent_time, is_last });
        Flow::Continue
    }

    /// `None` when the command is not allowed now.
    fn obey(&mut self, ctx: &mut Context, command: &Command<'_>, sent_time: Option<u16>) -> Option<Receipt> {
        match command.body {
            Body::Acknowledge { number, sent_time } => {
                return self.handle_ack(ctx, command.channel, number, sent_time).then_some(Receipt::Taken);
            }
            Body::Connect(..) => return None,
            Body::VerifyConnect(handshake) => {
                if self.state == State::Connecting {
                    self.handle_verify(ctx, &handshake);
                }
                return Some(Receipt::Taken);
            }
            Body::Disconnect { data } => {
                self.handle_disconnect(ctx, data, command.acknowledge && sent_time.is_some());
                return Some(Receipt::Taken);
            }
            _ => {}
        }
        if !matches!(self.state, State::Connected | State::DisconnectLater(_)) {
            return None;
        }
        let payload_len = match command.body {
            Body::BandwidthLimit { incoming, outgoing } => {
                (self.incoming_bandwidth, self.outgoing_bandwidth) = (incoming, outgoing);
                self.window = window(incoming, ctx.config.outgoing_bandwidth);
                return Some(Receipt::Taken);
            }
            Body::ThrottleConfigure { interval, acceleration, deceleration } => {
                self.estimate.interval_ms = interval;
                self.estimate.acceleration = acceleration;
                self.estimate.deceleration = deceleration;
                return Some(Receipt::Taken);
            }
            Body::SendReliable { payload }
            | Body::SendUnreliable { payload, .. }
            | Body::SendUnsequenced { payload, .. } => payload.len(),
            Body::SendFragment(fragment) | Body::SendUnreliableFragment(fragment) => {
                if !is_plausible(&fragment) {
                    return None;
                }
                fragment.total as usize
            }
            _ => return Some(Receipt::Taken),
        };
        if command.channel >= self.lanes_max || payload_len > ctx.config.packet_bytes_max {
            return None;
        }
        if self.state != State::Connected {
            // Acknowledged and thrown away. Spec: enet §10.5
            return Some(Receipt::Taken);
        }
        Some(self.receive(ctx, command))
    }

    fn receive(&mut self, ctx: &mut Context, command: &Command<'_>) -> Receipt {
        let Context { budget, stats, .. } = ctx;
        let (peer, lane) = (self.id, Lane(command.channel));
        let Self { inbox, held, lanes, traffic, .. } = self;
        let mut deliver = |budget: &mut Budget, held: &mut Held, data: Bytes, delivery| {
            budget.take(held, data.len() + OVERHEAD);
            stats.packets_in += 1;
            traffic.packets_in += 1;
            inbox.push_back(Event::Received { peer, lane, data, delivery });
        };
        if let Body::SendUnsequenced { group, payload } = command.body {
            let Some(bit) = group_bit(&mut self.group_base, &mut self.groups_seen, group) else {
                return Receipt::Taken;
            };
            if !budget.has_room(*held, payload.len() + OVERHEAD, true) {
                return Receipt::Full;
            }
            *bit.0 |= bit.1;
            deliver(budget, held, Bytes::copy_from_slice(payload), Delivery::Unsequenced);
            return Receipt::Taken;
        }
        let state = lane_mut(lanes, command.channel);
        let number = command.number;
        match command.body {
            Body::SendReliable { payload } => {
                state.receive_reliable(number, payload, budget, held, &mut deliver)
            }
            Body::SendUnreliable { unreliable_number, payload } => {
                state.receive_unreliable(number, unreliable_number, payload, budget, held, &mut deliver)
            }
            Body::SendFragment(fragment) => {
                state.receive_fragment(number, &fragment, budget, held, &mut deliver)
            }
            Body::SendUnreliableFragment(fragment) => {
                state.receive_unreliable_fragment(number, &fragment, budget, held, &mut deliver)
            }
            _ => Receipt::Malformed,
        }
    }

    /// False when the acknowledgement is not allowed now. Spec: enet §12.2
    fn handle_ack(&mut self, ctx: &mut Context, channel: u8, number: u16, sent_time: u16) -> bool {
        if self.state == State::Over {
            return true;
        }
        let lane = find_lane(&self.lanes, channel).ok().map(|at| &self.lanes[at]);
        let numbers = match lane {
            _ if channel == CONTROL => &self.control_unacknowledged,
            Some(lane) => &lane.unacknowledged,
            None => return true,
        };
        // A number that is not on its way: acknowledged before, or made up. Neither says anything about the link.
        let Some(index) = numbers.get(number) else { return true };
        let sent = self.sent.get(index);
        let Some(rtt_ms) = sent.round_trip_ms(ctx.now_ms, sent_time) else {
            ctx.stats.dropped_acks += 1;
            return true;
        };
        // While disconnecting, nothing else is on its way.
        debug_assert!(
            self.state != State::Disconnecting
                || matches!(sent.content, Content::Control(Body::Disconnect { .. }))
        );
        if matches!(sent.content, Content::Control(Body::Connect(..))) {
            // Answered by VERIFY_CONNECT only.
            return false;
        }
        let was_in_flight = sent.in_flight;
        self.measure(ctx, rtt_ms);
        self.last_ack_ms = Some(ctx.now_ms);
        self.earliest_loss_ms = None;
        let order = self.sent.order(index);
        let content = self.forget_sent(index);
        let overtaken = if was_in_flight { self.sent.overtake(order) } else { None };
        if let Some(overtaken) = overtaken {
            ctx.stats.resent_early += 1;
            self.sent.land(overtaken);
            self.queue_resend(ctx, overtaken);
        }
        match content {
            Content::Control(Body::Disconnect { .. }) if self.state == State::Disconnecting => {
                self.finish(ctx, 0, Reason::Local);
            }
            _ => self.disconnect_if_drained(ctx),
        }
        true
    }

    fn measure(&mut self, ctx: &mut Context, rtt_ms: u32) {
        let limit = self.throttle_limit(ctx);
        self.estimate.measure(ctx.now_ms, rtt_ms, self.last_ack_ms.is_none(), limit);
        self.round_trips.add(rtt_ms);
        ctx.stats.round_trips.add(rtt_ms);
        self.lowest_rtt_ms = self.lowest_rtt_ms.min(rtt_ms);
    }

    /// Takes a command that was acknowledged out of the books.
    fn forget_sent(&mut self, index: SentIndex) -> Content {
        let sent = self.sent.get(index);
        let (channel, number, len) = (sent.channel, sent.number, sent.content.data_len());
        if sent.in_flight {
            self.in_flight_bytes -= len;
        }
        if channel == CONTROL {
            self.control_unacknowledged.remove(number);
        } else {
            lane_mut(&mut self.lanes, channel).note_acknowledged(number);
        }
        let content = self.sent.remove(index);
        if content.is_data() {
            self.release_queued(len);
        }
        content
    }

    fn handle_verify(&mut self, ctx: &mut Context, verify: &Handshake) {
        let throttle = (verify.throttle_interval, verify.throttle_acceleration, verify.throttle_deceleration);
        let estimate = &self.estimate;
        let is_answer = (1..=u32::from(LANES_MAX)).contains(&verify.channels)
            && throttle == (estimate.interval_ms, estimate.acceleration, estimate.deceleration)
            && verify.connect_id == self.connect_id
            && verify.peer_id < PEER_ID_NONE
            && verify.incoming_session.max(verify.outgoing_session) <= crate::wire::SESSION_MASK;
        if !is_answer {
            self.finish(ctx, 0, Reason::Refused);
            return;
        }
        if let Some(index) = self.control_unacknowledged.get(1) {
            self.forget_sent(index);
        }
        self.resend_control.clear();
        self.lanes_max = self.lanes_max.min(verify.channels as u8);
        self.remote_id = verify.peer_id;
        self.session_in = verify.incoming_session;
        self.session_out = verify.outgoing_session;
        let mtu = verify.mtu.clamp(MTU_MIN.into(), MTU_MAX.into()) as u16;
        self.mtu = self.mtu.min(mtu);
        self.window = self.window.min(verify.window.clamp(WINDOW_MIN, WINDOW_MAX));
        self.incoming_bandwidth = verify.incoming_bandwidth;
        self.outgoing_bandwidth = verify.outgoing_bandwidth;
        self.earliest_loss_ms = None;
        self.state = State::Connected;
        ctx.stats.connects += 1;
        self.inbox.push_back(Event::Connected { peer: self.id, data: 0 });
    }

    /// Spec: enet §14
    fn handle_disconnect(&mut self, ctx: &mut Context, data: u32, can_acknowledge: bool) {
        match self.state {
            State::Over | State::AcknowledgingDisconnect(_) => {}
            State::Connected | State::DisconnectLater(_) if can_acknowledge => {
                self.clear_outgoing();
                self.state = State::AcknowledgingDisconnect(data);
            }
            _ => self.finish(ctx, data, Reason::Remote),
        }
    }

    // ---- time

    /// When [`handle_timeout`](Self::handle_timeout) has work, in milliseconds. A ping that is due already is not such
    /// work: it waits for the next [`write_commands`](Self::write_commands).
    pub(crate) fn next_deadline(&mut self, now_ms: u64) -> Option<u64> {
        let resend = self.sent.next_deadline();
        let ping = self.ping_time().filter(|&at| at > now_ms);
        match (resend, ping) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When the next ping is due, if nothing else keeps the link alive. Spec: enet §12.5
    fn ping_time(&self) -> Option<u64> {
        let is_quiet = self.state == State::Connected
            && self.sent.is_empty()
            && self.control.is_empty()
            && self.reliable.is_empty();
        is_quiet.then(|| self.last_ack_ms.map_or(0, |last| last + u64::from(self.ping_interval_ms)))
    }

    fn ping_is_due(&self, now_ms: u64) -> bool {
        self.ping_time().is_some_and(|at| at <= now_ms)
    }

    /// Finds lost commands, and the end of patience. Spec: enet §12.3, §12.4
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context) {
        while let Some(index) = self.sent.pop_expired(ctx.now_ms) {
            work::step();
            let sent = self.sent.get(index);
            let (sent_ms, attempts) = (sent.sent_ms, sent.attempts);
            let earliest = self.earliest_loss_ms.map_or(sent_ms, |earliest| earliest.min(sent_ms));
            self.earliest_loss_ms = Some(earliest);
            let waited = ctx.now_ms.saturating_sub(earliest);
            let tries = 1_u64 << u32::from(attempts - 1).min(63);
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

    // ---- sending

    /// Whether [`write_commands`](Self::write_commands) may have something. True for data that the window holds back.
    pub(crate) fn has_output(&self, now_ms: u64) -> bool {
        !(self.acks.is_empty()
            && self.control.is_empty()
            && self.reliable.is_empty()
            && self.loose.is_empty()
            && self.resend_control.is_empty()
            && self.resend_data.is_empty())
            || self.ping_is_due(now_ms)
    }

    pub(crate) fn envelope(&self) -> Envelope {
        let session = if self.remote_id == PEER_ID_NONE { 0 } else { self.session_out };
        Envelope { peer_id: self.remote_id, session, connect_id: self.connect_id }
    }

    /// Writes the commands of the next datagram to the empty `out`; whether it must carry its time, or `None` when there
    /// is nothing to send. Spec: enet §11.3
    pub(crate) fn write_commands(&mut self, ctx: &mut Context, out: &mut Vec<u8>) -> Option<bool> {
        let mut writer = Writer { out, room: usize::from(self.mtu) - 4, commands: 0 };
        let mut needs_time = false;
        self.estimate.throttle = self.estimate.throttle.min(self.throttle_limit(ctx));
        self.write_acks(ctx, &mut writer);
        if self.state != State::Over && self.write_resends(ctx, &mut writer, &mut needs_time) {
            self.write_queued(ctx, &mut writer, &mut needs_time);
        }
        let commands = writer.commands;
        if commands == 0 {
            return None;
        }
        self.loss.update(ctx.now_ms);
        self.loss.sent += u32::from(commands);
        self.disconnect_if_drained(ctx);
        Some(needs_time)
    }

    fn write_acks(&mut self, ctx: &mut Context, writer: &mut Writer<'_>) {
        while let Some(&Ack { channel, number, sent_time, is_last }) = self.acks.front() {
            let body = Body::Acknowledge { number, sent_time };
            let command = Command { channel, number, acknowledge: false, unsequenced: false, body };
            if !writer.write(&command) {
                return;
            }
            self.acks.pop_front();
            if is_last {
                if let State::AcknowledgingDisconnect(data) = self.state {
                    self.ended_by_remote = true;
                    self.finish(ctx, data, Reason::Remote);
                }
                return;
            }
        }
    }

    /// Writes what has to be sent again. False when the datagram is full.
    fn write_resends(&mut self, ctx: &mut Context, writer: &mut Writer<'_>, needs_time: &mut bool) -> bool {
        loop {
            // Commands acknowledged while they waited are gone from the log.
            work::step();
            while self.resend_control.front().is_some_and(|queued| !self.waits(queued.item, CONTROL)) {
                work::step();
                self.resend_control.pop_front();
            }
            while self.resend_data.front().is_some_and(|queued| !self.waits_as_data(queued.item)) {
                work::step();
                self.resend_data.pop_front();
            }
            let control = self.resend_control.front().map(|queued| queued.stamp);
            let data = self.resend_data.front().filter(|queued| {
                let len = self.sent.get(queued.item).content.data_len();
                self.window_has_room(len)
            });
            let data = data.map(|queued| queued.stamp);
            let queue = match (control, data) {
                (None, None) => return true,
                (Some(control), Some(data)) if data < control => &mut self.resend_data,
                (Some(_), _) => &mut self.resend_control,
                (None, Some(_)) => &mut self.resend_data,
            };
            let Some(&Queued { item: index, .. }) = queue.front() else { return true };
            let sent = self.sent.get(index);
            if !writer.write(&sent.content.command(sent.channel, sent.number)) {
                return false;
            }
            let len = sent.content.data_len();
            queue.pop_front();
            self.in_flight_bytes += len;
            self.sent.transmit(ctx.now_ms, index);
            *needs_time = true;
        }
    }

    /// Whether the entry still is a command of the connection that waits to be sent again.
    fn waits(&self, index: SentIndex, channel: u8) -> bool {
        self.sent.waits(index) && self.sent.get(index).channel == channel
    }

    fn waits_as_data(&self, index: SentIndex) -> bool {
        self.sent.waits(index) && self.sent.get(index).channel != CONTROL
    }

    fn window_has_room(&self, len: usize) -> bool {
        let window =
            (u64::from(self.estimate.throttle) * u64::from(self.window) / u64::from(THROTTLE_SCALE)) as usize;
        self.in_flight_bytes + len <= window.max(self.mtu.into())
    }

    /// Writes queued commands in the order they were queued, reliable data aside while the window holds it back.
    fn write_queued(&mut self, ctx: &mut Context, writer: &mut Writer<'_>, needs_time: &mut bool) {
        let timeout_ms = self.estimate.resend_after_ms(floor_ms(&ctx.config));
        loop {
            work::step();
            // Lost data goes first: new data must not take the room in the window that it waits for.
            let reliable = self.reliable.front().filter(|_| self.resend_data.is_empty());
            let reliable = reliable.filter(|queued| self.may_send(&queued.item)).map(|queued| queued.stamp);
            let control = self.control.front().map(|queued| queued.stamp);
            let loose = self.loose.front().map(|queued| queued.stamp);
            let stamps = [control, reliable, loose];
            let Some(first) = stamps.iter().flatten().min().copied() else { break };
            let fits = if control == Some(first) {
                self.write_control(ctx, writer, timeout_ms)
            } else if reliable == Some(first) {
                self.write_reliable(ctx, writer, timeout_ms)
            } else {
                self.write_loose(ctx, writer)
            };
            match fits {
                None => return,
                Some(is_reliable) => *needs_time |= is_reliable,
            }
        }
        // Spec: enet §12.5
        if self.ping_is_due(ctx.now_ms) && self.write_body(ctx, writer, timeout_ms, Body::Ping) {
            *needs_time = true;
        }
    }

    /// Whether the windows let the next part of a reliable packet go.
    fn may_send(&self, packet: &Outgoing) -> bool {
        let number = packet.number.wrapping_add(packet.next as u16);
        let lane = find_lane(&self.lanes, packet.lane).ok().map(|at| &self.lanes[at]);
        self.window_has_room(packet.next_len()) && lane.is_none_or(|lane| lane.window_is_open(number))
    }

    /// These three write one command: `None` when it does not fit, else whether it has to be acknowledged.
    fn write_control(&mut self, ctx: &mut Context, writer: &mut Writer<'_>, timeout_ms: u32) -> Option<bool> {
        let body = self.control.front()?.item;
        if !self.write_body(ctx, writer, timeout_ms, body) {
            return None;
        }
        self.control.pop_front();
        if self.control.is_empty() {
            // Pings do not pass through it, and the rest is rare.
            self.control = VecDeque::new();
        }
        Some(true)
    }

    /// Writes a command about the connection. False when it does not fit.
    fn write_body(
        &mut self,
        ctx: &mut Context,
        writer: &mut Writer<'_>,
        timeout_ms: u32,
        body: Body<'static>,
    ) -> bool {
        let number = self.control_number.wrapping_add(1);
        let content = Content::Control(body);
        if !writer.write(&content.command(CONTROL, number)) {
            return false;
        }
        self.control_number = number;
        let index = self.sent.insert(ctx.now_ms, CONTROL, number, content, timeout_ms);
        self.control_unacknowledged.push(number, index);
        true
    }

    fn write_reliable(
        &mut self,
        ctx: &mut Context,
        writer: &mut Writer<'_>,
        timeout_ms: u32,
    ) -> Option<bool> {
        let packet = &mut self.reliable.front_mut()?.item;
        let number = packet.number.wrapping_add(packet.next as u16);
        let (lane, len) = (packet.lane, packet.next_len());
        let content = match packet.next_fragment() {
            // Moved, as it is about to leave the queue: a clone would allocate.
            None => Content::Whole(core::mem::take(&mut packet.data)),
            Some((fragment, data)) => Content::Fragment(fragment, data),
        };
        if !writer.write(&content.command(lane, number)) {
            if let Content::Whole(data) = content {
                packet.data = data;
            }
            return None;
        }
        packet.next += 1;
        if packet.part == 0 || packet.is_finished() {
            self.queued_bytes -= OVERHEAD;
            self.reliable.pop_front();
        }
        self.in_flight_bytes += len;
        let index = self.sent.insert(ctx.now_ms, lane, number, content, timeout_ms);
        let lane = lane_mut(&mut self.lanes, lane);
        lane.note_sent(number);
        lane.unacknowledged.push(number, index);
        Some(true)
    }

    fn write_loose(&mut self, ctx: &mut Context, writer: &mut Writer<'_>) -> Option<bool> {
        let packet = &mut self.loose.front_mut()?.item;
        // Spec: enet §11.3.5: decided once per packet, at its first part.
        if packet.next == 0 && !self.estimate.lets_pass() {
            let len = packet.data.len();
            self.loose.pop_front();
            self.queued_bytes -= len + OVERHEAD;
            ctx.stats.throttled_packets += 1;
            return Some(false);
        }
        let fragment = packet.next_fragment();
        let (body, unsequenced) = match (packet.kind, &fragment) {
            (_, Some((fragment, data))) => {
                (Body::SendUnreliableFragment(Fragment { payload: data, ..*fragment }), false)
            }
            (Kind::Unsequenced(group), None) => {
                (Body::SendUnsequenced { group, payload: &packet.data }, true)
            }
            (Kind::Unreliable(unreliable_number), None) => {
                (Body::SendUnreliable { unreliable_number, payload: &packet.data }, false)
            }
            // Reliable packets have their own queue.
            (Kind::Reliable, None) => (Body::SendReliable { payload: &packet.data }, false),
        };
        let command =
            Command { channel: packet.lane, number: packet.number, acknowledge: false, unsequenced, body };
        if !writer.write(&command) {
            // The throttle has let it pass and will be asked again with the next datagram.
            if packet.next == 0 {
                self.estimate.take_back();
            }
            return None;
        }
        packet.next += 1;
        if packet.is_finished() {
            let len = packet.data.len();
            self.loose.pop_front();
            self.queued_bytes -= len + OVERHEAD;
        }
        Some(false)
    }

    fn queue_control(&mut self, body: Body<'static>) {
        self.stamp += 1;
        self.control.push_back(Queued { stamp: self.stamp, item: body });
    }

    fn disconnect_if_drained(&mut self, ctx: &mut Context) {
        let State::DisconnectLater(data) = self.state else { return };
        if self.control.is_empty()
            && self.reliable.is_empty()
            && self.loose.is_empty()
            && self.sent.is_empty()
        {
            self.disconnect(ctx, data);
        }
    }

    fn release_queued(&mut self, len: usize) {
        debug_assert!(self.queued_bytes >= len);
        self.queued_bytes -= len;
    }

    fn clear_outgoing(&mut self) {
        self.control = VecDeque::new();
        self.reliable = VecDeque::new();
        self.loose = VecDeque::new();
        self.resend_control = VecDeque::new();
        self.resend_data = VecDeque::new();
        self.queued_bytes = 0;
        self.in_flight_bytes = 0;
        self.sent.clear();
        self.control_unacknowledged.clear();
        for lane in &mut self.lanes {
            lane.forget_sent();
        }
    }

    fn throttle_limit(&self, ctx: &Context) -> u32 {
        self.estimate.limit.unwrap_or(ctx.share)
    }

    fn meter(&mut self, ctx: &Context, bytes: usize) {
        if ctx.meters {
            self.metered_bytes += bytes as u64;
        }
    }

    /// Checks what must always hold; for tests.
    pub(crate) fn check_invariants(&self) {
        let lanes: usize = self.lanes.iter().map(|lane| lane.held_bytes()).sum();
        let inbox: usize = self
            .inbox
            .iter()
            .map(|event| match event {
                Event::Received { data, .. } => data.len() + OVERHEAD,
                _ => 0,
            })
            .sum();
        assert_eq!(self.held.0, lanes + inbox, "what is held is in the lanes or in the inbox");
        assert!(self.in_flight_bytes <= self.queued_bytes, "what is in flight was queued");
        assert!(self.lanes.is_sorted_by_key(|lane| lane.id));
        if self.state == State::Over {
            assert!(self.sent.is_empty() && self.queued_bytes == 0);
        }
    }
}

impl Outgoing {
    /// Payload bytes of the next command.
    fn next_len(&self) -> usize {
        if self.part == 0 {
            return self.data.len();
        }
        let part = usize::from(self.part);
        part.min(self.data.len() - part * self.next as usize)
    }

    fn next_fragment(&self) -> Option<(Fragment<'static>, Bytes)> {
        if self.part == 0 {
            return None;
        }
        let offset = usize::from(self.part) * self.next as usize;
        let data = self.data.slice(offset..offset + self.next_len());
        let start = if let Kind::Unreliable(number) = self.kind { number } else { self.number };
        let fragment = Fragment {
            start,
            count: self.count(),
            index: self.next,
            total: self.data.len() as u32,
            offset: offset as u32,
            payload: &[],
        };
        Some((fragment, data))
    }

    fn count(&self) -> u32 {
        if self.part == 0 { 1 } else { self.data.len().div_ceil(self.part.into()) as u32 }
    }

    fn is_finished(&self) -> bool {
        self.next == self.count()
    }
}

/// The commands of one datagram.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
    room: usize,
    commands: u8,
}

impl Writer<'_> {
    fn has_room(&self, len: usize) -> bool {
        len <= self.room && self.commands < COMMANDS_MAX
    }

    /// False when the command does not fit.
    fn write(&mut self, command: &Command<'_>) -> bool {
        let len = command.encoded_len();
        if !self.has_room(len) {
            return false;
        }
        command.encode(self.out);
        self.room -= len;
        self.commands += 1;
        true
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

/// Spec: enet §10.4
fn is_plausible(fragment: &Fragment<'_>) -> bool {
    let Fragment { count, index, total, offset, payload, .. } = *fragment;
    (1..=FRAGMENTS_MAX).contains(&count)
        && index < count
        && total >= count
        && offset < total
        && !payload.is_empty()
        && payload.len() <= (total - offset) as usize
}

/// The place of an unsequenced group in the map of those seen, if it is new. Spec: enet §10.3
fn group_bit<'a>(
    base: &mut u16,
    seen: &'a mut Option<Box<[u64; GROUPS / 64]>>,
    group: u16,
) -> Option<(&'a mut u64, u64)> {
    let index = usize::from(group) % GROUPS;
    let continued = u32::from(group) + if group < *base { 1 << 16 } else { 0 };
    if continued >= u32::from(*base) + GROUPS_AHEAD {
        return None;
    }
    let seen = seen.get_or_insert_with(|| Box::new([0; GROUPS / 64]));
    let block = group - index as u16;
    if block != *base {
        *base = block;
        **seen = [0; GROUPS / 64];
    }
    let (word, bit) = (&mut seen[index / 64], 1 << (index % 64));
    (*word & bit == 0).then_some((word, bit))
}

/// How much reliable data may be on its way, given what either side announced in bytes per second. Spec: enet §8.2
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
const COMMANDS_MAX: u8 = 32;
const GROUPS: usize = 1024;
const GROUPS_AHEAD: u32 = 32 * 1024;
const WINDOW_SCALE: u32 = 65_536;
const PING_INTERVAL_MS: u32 = 500;
const TIMEOUT_LIMIT: u32 = 32;
const TIMEOUT_MIN_MS: u32 = 5_000;
const TIMEOUT_MAX_MS: u32 = 30_000;
/// Acknowledgements waiting for one peer; a batch of 128 full datagrams asks for this many. Beyond it datagrams are
/// dropped and come again.
const ACKS_MAX: usize = 4_096;
/// Events for which a connection keeps room when all were taken, 1 KiB.
const INBOX_KEPT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        // Beside this: two entries in hash tables, a timer, and room for a ping and its acknowledgement.
        assert!(size_of::<Peer>() <= 832, "{} bytes", size_of::<Peer>());
        assert!(size_of::<LaneState>() <= 192, "{} bytes", size_of::<LaneState>());
    }

    #[test]
    fn groups_are_delivered_once_and_the_map_follows_them() {
        let (mut base, mut seen) = (0, None);
        let mut deliver = |group: u16| {
            let bit = group_bit(&mut base, &mut seen, group);
            bit.map(|(word, bit)| *word |= bit).is_some()
        };
        assert!(deliver(1) && !deliver(1) && deliver(1_000));
        assert!(deliver(1_024) && !deliver(1_024));
        // The block before is over: what is late is lost, never doubled.
        assert!(!deliver(999));
        assert!(deliver(33_000) && !deliver(33_000));
        assert!(deliver(65_000) && deliver(3) && !deliver(3), "the numbers wrap");
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
