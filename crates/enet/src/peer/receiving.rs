//! A peer's handling of the commands it receives. Spec: enet §9, §10, §12.2, §14

use alloc::boxed::Box;

use bytes::Bytes;

use super::{Ack, Context, Flow, Peer, State, find_lane, lane_mut, window};
use crate::budget::{Budget, Held, OVERHEAD};
use crate::config::{FRAGMENTS_MAX, LANES_MAX, MTU_MAX, MTU_MIN, WINDOW_MAX, WINDOW_MIN};
use crate::estimate::THROTTLE_SCALE;
use crate::lane::{Inward, Receipt};
use crate::queue::RareQueue;
use crate::sent::{CONTROL, Content, SentIndex};
use crate::types::{Delivery, Event, Lane, Reason};
use crate::wire::{Body, Command, Fragment, Handshake, PEER_ID_NONE};
use crate::work;

impl Peer {
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
            Receipt::Full => return Flow::Full,
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
            return Flow::Full;
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
        let Self { inbox, held, lanes, waiting, traffic, .. } = self;
        let mut deliver = |budget: &mut Budget, held: &mut Held, data: Bytes, delivery| {
            budget.take_delivered(held, data.len());
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
        let mut inward = Inward { waiting, budget, held, deliver: &mut deliver };
        match command.body {
            Body::SendReliable { payload } => state.receive_reliable(number, payload, &mut inward),
            Body::SendUnreliable { unreliable_number, payload } => {
                state.receive_unreliable(number, unreliable_number, payload, &mut inward)
            }
            Body::SendFragment(fragment) => state.receive_fragment(number, &fragment, &mut inward),
            Body::SendUnreliableFragment(fragment) => {
                state.receive_unreliable_fragment(number, &fragment, &mut inward)
            }
            _ => Receipt::Malformed,
        }
    }

    /// False when the acknowledgement is not allowed now. Spec: enet §12.2
    fn handle_ack(&mut self, ctx: &mut Context, channel: u8, number: u16, sent_time: u16) -> bool {
        if self.state == State::Over {
            return true;
        }
        let index = if channel == CONTROL {
            self.control_unacknowledged.get(number)
        } else {
            find_lane(&self.lanes, channel).ok().and_then(|at| self.lanes[at].sent(number))
        };
        // A number that is not on its way: acknowledged before, or made up. Neither says anything
        // about the link.
        let Some(index) = index else { return true };
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
        let sample = (was_in_flight && sent.last_time() == sent_time).then_some(sent.snapshot);
        self.measure(ctx, rtt_ms);
        self.last_ack_ms = Some(ctx.now_ms);
        self.earliest_loss_ms = None;
        let order = self.sent.order(index);
        let content = self.forget_sent(ctx, index);
        if let Some(path) = self.path.as_mut().filter(|_| content.is_data()) {
            self.path_is_idle = false;
            path.note_delivered(ctx.now_ms, content.data_len(), sample, self.mtu);
        }
        if was_in_flight {
            self.sent.note_acknowledged(order);
        }
        let patience_ms = self.estimate.patience_ms();
        while let Some(overtaken) = self.sent.overtaken(ctx.now_ms, patience_ms) {
            work::step();
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

    pub(super) fn measure(&mut self, ctx: &mut Context, rtt_ms: u32) {
        let limit = self.throttle_limit(ctx);
        self.estimate.measure(ctx.now_ms, rtt_ms, self.last_ack_ms.is_none(), limit);
        self.was_throttled = self.estimate.throttle < THROTTLE_SCALE;
        self.round_trips.add(rtt_ms);
        ctx.stats.round_trips.add(rtt_ms);
        self.lowest_rtt_ms = self.lowest_rtt_ms.min(rtt_ms);
        let is_busy = !self.reliable.is_empty() || !self.resend_data.is_empty();
        if let Some(path) = &mut self.path {
            path.measure(ctx.now_ms, rtt_ms, is_busy);
        }
    }

    /// Takes a command that was acknowledged out of the log.
    pub(super) fn forget_sent(&mut self, ctx: &mut Context, index: SentIndex) -> Content {
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
        self.deadline_moved = true;
        if content.is_data() {
            self.release_queued(ctx, len);
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
            self.forget_sent(ctx, index);
        }
        self.resend_control = RareQueue::new();
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
                self.clear_outgoing(ctx);
                self.state = State::AcknowledgingDisconnect(data);
            }
            _ => self.finish(ctx, data, Reason::Remote),
        }
    }
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

// Spec: enet §6
pub(super) const GROUPS: usize = 1024;
const GROUPS_AHEAD: u32 = 32 * 1024;
/// Acknowledgements waiting for one peer; a batch of 128 full datagrams asks for this many. Beyond
/// it datagrams are dropped and come again.
const ACKS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

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
}
