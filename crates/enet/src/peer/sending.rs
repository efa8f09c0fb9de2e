//! Assembly of a peer's datagrams. Spec: enet §11.3, §12.5, §13.1

use alloc::vec::Vec;

use bytes::Bytes;

use super::{Ack, Context, Envelope, Kind, Outgoing, Peer, Queued, State, find_lane, floor_ms, lane_mut};
use crate::budget::OVERHEAD;
use crate::estimate::THROTTLE_SCALE;
use crate::queue::{Queue, RareQueue};
use crate::sent::{CONTROL, Content, SentIndex};
use crate::types::{Reason, Transmit};
use crate::wire::{Body, Command, Fragment, PEER_ID_NONE};
use crate::work;

impl Peer {
    /// True if [`write_commands`](Self::write_commands) may have something. True for data that the
    /// window holds back.
    pub(crate) fn has_output(&self, now_ms: u64) -> bool {
        !(self.acks.is_empty()
            && self.control.is_empty()
            && self.reliable.is_empty()
            && self.loose.is_empty()
            && self.resend_control.is_empty()
            && self.resend_data.is_empty())
            || self.ping_is_due(now_ms)
    }

    /// Addresses of the peer's datagrams.
    pub(crate) fn transmit(&self) -> Transmit {
        Transmit { to: self.address, via: self.via }
    }

    pub(crate) fn envelope(&self) -> Envelope {
        let session = if self.remote_id == PEER_ID_NONE { 0 } else { self.session_out };
        Envelope { peer_id: self.remote_id, session, connect_id: self.connect_id, dialect: self.dialect }
    }

    /// Writes the commands of the next datagram to the empty `out`; whether it must carry its time,
    /// or `None` when there is nothing to send. Spec: enet §11.3
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
            self.sent.transmit(ctx.now_ms, index);
            self.deadline_moved = true;
            self.note_flight(ctx, index, len);
            *needs_time = true;
        }
    }

    /// True if the entry still is a command of the connection that waits to be sent again.
    fn waits(&self, index: SentIndex, channel: u8) -> bool {
        self.sent.waits(index) && self.sent.get(index).channel == channel
    }

    fn waits_as_data(&self, index: SentIndex) -> bool {
        self.sent.waits(index) && self.sent.get(index).channel != CONTROL
    }

    fn note_flight(&mut self, ctx: &Context, index: SentIndex, len: usize) {
        if let Some(path) = self.path.as_mut().filter(|_| len > 0) {
            self.path_is_idle = false;
            self.sent.set_snapshot(index, path.note_sent(ctx.now_ms, self.in_flight_bytes));
        }
        self.in_flight_bytes += len;
    }

    fn window_has_room(&self, len: usize) -> bool {
        let window = match &self.path {
            Some(path) => path.window().min(self.window),
            None => {
                let throttled = u64::from(self.estimate.throttle) * u64::from(self.window);
                (throttled / u64::from(THROTTLE_SCALE)) as u32
            }
        };
        self.in_flight_bytes + len <= window.max(self.mtu.into()) as usize
    }

    /// Writes queued commands in the order they were queued, reliable data aside while the window
    /// holds it back.
    fn write_queued(&mut self, ctx: &mut Context, writer: &mut Writer<'_>, needs_time: &mut bool) {
        // Before the first packet there is no queue of its own, and pings keep the rhythm of the C
        // library.
        let is_patient = self.path.is_some();
        let timeout_ms = self.estimate.resend_after_ms(floor_ms(&ctx.config), is_patient);
        loop {
            work::step();
            // Lost data goes first: new data must not take the room in the window that it waits
            // for.
            let reliable = self.reliable.front().filter(|_| self.resend_data.is_empty());
            let reliable = reliable.filter(|queued| self.may_send(&queued.item));
            let reliable = reliable.map_or(u64::MAX, |queued| queued.stamp);
            let control = self.control.front().map_or(u64::MAX, |queued| queued.stamp);
            let loose = self.loose.front().map_or(u64::MAX, |queued| queued.stamp);
            let first = control.min(reliable).min(loose);
            if first == u64::MAX {
                break;
            }
            let fits = if control == first {
                self.write_control(ctx, writer, timeout_ms)
            } else if reliable == first {
                self.write_reliable(ctx, writer, timeout_ms)
            } else {
                self.write_loose(ctx, writer)
            };
            match fits {
                None => return,
                Some(is_reliable) => *needs_time |= is_reliable,
            }
        }
        if self.reliable.is_empty()
            && self.resend_data.is_empty()
            && !self.path_is_idle
            && let Some(path) = &mut self.path
        {
            path.note_idle(self.in_flight_bytes);
            // Changes only with what is sent and acknowledged.
            self.path_is_idle = true;
        }
        // Spec: enet §12.5
        if self.ping_is_due(ctx.now_ms) && self.write_body(ctx, writer, timeout_ms, Body::Ping) {
            *needs_time = true;
        }
    }

    /// True if the windows let the next part of a reliable packet go.
    fn may_send(&self, packet: &Outgoing) -> bool {
        let number = packet.number.wrapping_add(packet.next as u16);
        let lane = find_lane(&self.lanes, packet.lane).ok().map(|at| &self.lanes[at]);
        self.window_has_room(packet.next_len()) && lane.is_none_or(|lane| lane.window_is_open(number))
    }

    /// These three write one command: `None` when it does not fit, else whether it has to be
    /// acknowledged.
    fn write_control(&mut self, ctx: &mut Context, writer: &mut Writer<'_>, timeout_ms: u32) -> Option<bool> {
        let body = self.control.front()?.item;
        if !self.write_body(ctx, writer, timeout_ms, body) {
            return None;
        }
        self.control.pop_front();
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
        self.deadline_moved = true;
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
            self.release_queued(ctx, OVERHEAD);
            self.reliable.pop_front();
        }
        let index = self.sent.insert(ctx.now_ms, lane, number, content, timeout_ms);
        self.deadline_moved = true;
        self.note_flight(ctx, index, len);
        lane_mut(&mut self.lanes, lane).note_sent(number, index);
        Some(true)
    }

    fn write_loose(&mut self, ctx: &mut Context, writer: &mut Writer<'_>) -> Option<bool> {
        let packet = &mut self.loose.front_mut()?.item;
        // Spec: enet §11.3.5: decided once per packet, at its first part.
        if packet.next == 0 && !self.estimate.lets_pass() {
            let len = packet.data.len();
            self.loose.pop_front();
            self.release_queued(ctx, len + OVERHEAD);
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
            self.release_queued(ctx, len + OVERHEAD);
        }
        Some(false)
    }

    pub(super) fn queue_control(&mut self, body: Body<'static>) {
        self.stamp += 1;
        self.control.push_back(Queued { stamp: self.stamp, item: body });
    }

    pub(super) fn disconnect_if_drained(&mut self, ctx: &mut Context) {
        let State::DisconnectLater(data) = self.state else { return };
        if self.control.is_empty()
            && self.reliable.is_empty()
            && self.loose.is_empty()
            && self.sent.is_empty()
        {
            self.disconnect(ctx, data);
        }
    }

    pub(super) fn release_queued(&mut self, ctx: &mut Context, len: usize) {
        debug_assert!(self.queued_bytes >= len && ctx.queued_bytes >= len);
        self.queued_bytes -= len;
        ctx.queued_bytes -= len;
    }

    pub(super) fn clear_outgoing(&mut self, ctx: &mut Context) {
        self.control = RareQueue::new();
        self.reliable = Queue::new();
        self.loose = Queue::new();
        self.resend_control = RareQueue::new();
        self.resend_data = RareQueue::new();
        ctx.queued_bytes -= core::mem::take(&mut self.queued_bytes);
        self.in_flight_bytes = 0;
        self.sent.clear();
        self.control_unacknowledged.clear();
        for lane in &mut self.lanes {
            lane.forget_sent();
        }
    }

    pub(super) fn throttle_limit(&self, ctx: &Context) -> u32 {
        self.estimate.limit.unwrap_or(ctx.share)
    }

    pub(super) fn meter(&mut self, ctx: &Context, bytes: usize) {
        if ctx.meters {
            self.metered_bytes += bytes as u64;
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
    pub(super) fn has_room(&self, len: usize) -> bool {
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

/// Spec: enet §6
const COMMANDS_MAX: u8 = 32;
