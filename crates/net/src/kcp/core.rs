//! KCP protocol core: segments, acknowledgements, retransmission and congestion control without
//! I/O.

use std::collections::VecDeque;
use std::time::Duration;

use throng_stdx::Instant;

use super::segment::{ACK, ASK_WINDOW, DatagramError, PUSH, Segment, Segments, TELL_WINDOW};
use super::{MSS, MTU, Profile, SEGMENT_HEADER_BYTES};

// Spec: gateway-protocol §2.7, "RTO min / default / max".
const RTO_DEFAULT: Duration = Duration::from_millis(200);
const RTO_MIN: Duration = Duration::from_millis(100);
const RTO_MIN_NO_DELAY: Duration = Duration::from_millis(30);
const RTO_MAX: Duration = Duration::from_secs(60);
/// Wait before asking a peer that announced no window for it, growing by half each time up to the
/// maximum.
const WINDOW_PROBE_MIN: Duration = Duration::from_secs(7);
const WINDOW_PROBE_MAX: Duration = Duration::from_secs(120);
/// Window assumed until the peer announces its own.
const REMOTE_WINDOW_DEFAULT: u16 = 128;
/// Congestion window at the start, in segments; and the least that a loss leaves of the threshold.
const CONGESTION_WINDOW_START: u32 = 4;
const THRESHOLD_MIN: u32 = 2;
/// A segment sent this often without an acknowledgement means that the peer is gone.
const TRANSMISSIONS_MAX: u32 = 20;
/// Longest wait for the acknowledgement of one segment. The reference doubles without an end, so
/// that after a streak of losses a session that works again would stand still for minutes; twenty
/// transmissions still take two minutes.
const BACKOFF_MAX: Duration = Duration::from_secs(8);
/// A segment is resent early, for the sake of later acknowledgements, this often; then only its
/// timeout counts.
const FAST_RESENDS_MAX: u32 = 5;
/// Acknowledgements remembered between two flushes; the peer repeats what exceeds it.
const ACKS_MAX: usize = 4096;

/// Which end of a session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It sent the first datagram, to an address that it chose.
    Connects,
    /// It answers whoever claims to be the sender, so it holds back until the address has proven
    /// itself.
    Accepts,
}

/// A piece of what the peer sent, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The payload of one segment; may be empty.
    pub bytes: Vec<u8>,
    /// Parts of the same message that follow; 0 ends a message. Streams of bytes ignore it.
    pub fragments_left: u8,
}

/// Counts of a session since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KcpStats {
    /// Segments with payload sent for the first time.
    pub sent: u64,
    /// Segments sent again because no acknowledgement came in time.
    pub resent_timeout: u64,
    /// Segments sent again because later ones were acknowledged.
    pub resent_fast: u64,
    /// Segments with payload that arrived for the first time.
    pub received: u64,
    /// Segments with payload that had arrived before, or lay outside the window.
    pub received_useless: u64,
    /// Flushes cut short because the peer's address had not proven itself.
    pub held_back: u64,
}

/// One end of a session. See the [module documentation](crate::kcp).
#[derive(Clone, Debug)]
pub struct Kcp {
    conv: u32,
    profile: Profile,
    /// Added to the time in our timestamps; unpredictable, so that their echo proves something.
    ts_base: u32,

    // Sending. `send_una <= every sn in send_buf < send_next`; sequence numbers wrap.
    /// Payload that has no sequence number yet, with its `frg`.
    send_queue: VecDeque<(Vec<u8>, u8)>,
    /// In flight, by sequence number.
    send_buf: VecDeque<InFlight>,
    /// First sequence number that is not acknowledged.
    send_una: u32,
    /// Sequence number of the next new segment.
    send_next: u32,
    remote_window: u16,
    rtt: Option<Rtt>,
    rto: Duration,
    congestion: Congestion,
    /// Earliest retransmission, or earlier.
    resend_at: Option<Instant>,
    /// Time of the next window probe, and the wait that led there.
    ask_at: Option<(Instant, Duration)>,

    // Receiving.
    /// First sequence number that has not arrived.
    receive_next: u32,
    /// Segments that arrived beyond a gap: slot `i` is for `receive_next + i`.
    receive_buf: VecDeque<Option<Received>>,
    /// Messages that the application has not taken.
    receive_queue: VecDeque<Received>,
    /// Acknowledgements to send: sequence number and timestamp.
    acks: VecDeque<(u32, u32)>,

    // Transmitting.
    ask_window: bool,
    tell_window: bool,
    /// Time at which acknowledgements and probes are due.
    flush_at: Option<Instant>,
    last_flush: Instant,
    /// A flush is to begin with the next `poll_transmit`.
    flush_wanted: bool,
    /// A flush under way.
    flush: Option<Flush>,
    /// Bytes that may be sent before the peer's address has proven itself; `None` once it has.
    credit: Option<u64>,
    dead: bool,
    stats: KcpStats,
}

#[derive(Clone, Debug)]
struct InFlight {
    sn: u32,
    fragments_left: u8,
    payload: Vec<u8>,
    /// Timestamp of the last transmission.
    ts: u32,
    rto: Duration,
    resend_at: Instant,
    transmissions: u32,
    fast_resends: u32,
    /// Acknowledgements of later segments since the last transmission.
    skipped: u32,
}

#[derive(Clone, Copy, Debug)]
struct Rtt {
    smoothed: Duration,
    variation: Duration,
}

/// A congestion window in segments, and its byte count for growth by less than one.
#[derive(Clone, Copy, Debug)]
struct Congestion {
    window: u32,
    bytes: u64,
    threshold: u32,
}

/// Progress of a flush.
#[derive(Clone, Copy, Debug, Default)]
struct Flush {
    /// Next entry of `send_buf` to look at.
    at: usize,
    timeouts: bool,
    fast_resends: bool,
    /// The credit ran out: what is left must wait for more input.
    starved: bool,
}

impl Kcp {
    /// Makes one end of session `conv`. `seed` must be unpredictable for peers of an accepting end.
    pub fn new(conv: u32, profile: Profile, side: Side, seed: u32, now: Instant) -> Self {
        let interval = profile.interval.clamp(Duration::from_millis(10), Duration::from_secs(5));
        Self {
            conv,
            profile: Profile { interval, window: profile.window.max(1), ..profile },
            ts_base: seed,
            send_queue: VecDeque::new(),
            send_buf: VecDeque::new(),
            send_una: 0,
            send_next: 0,
            remote_window: REMOTE_WINDOW_DEFAULT,
            rtt: None,
            rto: RTO_DEFAULT,
            congestion: Congestion {
                window: CONGESTION_WINDOW_START,
                bytes: u64::from(CONGESTION_WINDOW_START) * MSS as u64,
                threshold: u32::MAX,
            },
            resend_at: None,
            ask_at: None,
            receive_next: 0,
            receive_buf: VecDeque::new(),
            receive_queue: VecDeque::new(),
            acks: VecDeque::new(),
            ask_window: false,
            tell_window: false,
            flush_at: None,
            last_flush: now,
            flush_wanted: false,
            flush: None,
            credit: (side == Side::Accepts).then_some(0),
            dead: false,
            stats: KcpStats::default(),
        }
    }

    /// Takes one datagram as received.
    ///
    /// # Errors
    /// The datagram holds something that is not of this session; the segments before it were taken.
    pub fn handle_datagram(&mut self, now: Instant, datagram: &[u8]) -> Result<(), DatagramError> {
        if let Some(credit) = &mut self.credit {
            *credit = credit.saturating_add(datagram.len() as u64);
            self.flush_wanted |= !self.is_flushed();
        }
        let una_before = self.send_una;
        // The latest sequence number acknowledged, with the timestamp that tells which transmission
        // it answers.
        let mut latest_ack: Option<(u32, u32)> = None;
        let mut result = Ok(());
        for segment in Segments::new(datagram) {
            let taken = segment.and_then(|segment| self.handle_segment(now, &segment, &mut latest_ack));
            if let Err(error) = taken {
                result = Err(error);
                break;
            }
        }
        if let Some((sn, ts)) = latest_ack {
            self.count_skipped(sn, ts);
        }
        if self.send_una != una_before {
            self.congestion.grow(u32::from(self.remote_window));
        }
        self.want_flush_for_queue();
        result
    }

    /// Cuts `bytes` into segments of a stream and queues them. There is no bound: look at
    /// [`Kcp::unsent_segments`] first.
    pub fn send(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        // Fill the last segment that has not been sent: many small writes make few segments.
        if let Some((last, 0)) = self.send_queue.back_mut() {
            let (part, tail) = rest.split_at(rest.len().min(MSS - last.len().min(MSS)));
            last.extend_from_slice(part);
            rest = tail;
        }
        for part in rest.chunks(MSS) {
            self.send_queue.push_back((part.to_vec(), 0));
        }
        self.want_flush_for_queue();
    }

    /// Queues one message, which the peer can tell from the next. False, and nothing is queued, if
    /// it needs more segments than the peer's window of at most 128 could ever hold (176,128
    /// bytes).
    pub fn send_message(&mut self, message: &[u8]) -> bool {
        let count = message.len().div_ceil(MSS).max(1);
        if count > usize::from(REMOTE_WINDOW_DEFAULT) {
            return false;
        }
        for index in 0..count {
            let part = &message[index * MSS..message.len().min((index + 1) * MSS)];
            self.send_queue.push_back((part.to_vec(), (count - 1 - index) as u8));
        }
        self.want_flush_for_queue();
        true
    }

    /// Asks the peer for a sign of life (a window question, which every peer answers at its next
    /// flush).
    pub fn probe(&mut self) {
        self.ask_window = true;
        self.flush_wanted = true;
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some((at, wait)) = self.ask_at
            && at <= now
        {
            let wait = (wait + wait / 2).min(WINDOW_PROBE_MAX);
            self.ask_at = Some((now + wait, wait));
            self.probe();
        }
        self.flush_wanted |= self.next_timeout().is_some_and(|at| at <= now);
    }

    /// Writes the next datagram to send into `buf`, replacing what it holds. False when there is
    /// none now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> bool {
        buf.clear();
        if self.flush.is_none() {
            if !self.flush_wanted {
                return false;
            }
            self.begin_flush(now);
        }
        let mut flush = self.flush.take().unwrap_or_default();
        if self.credit.is_none() {
            self.write_acks(buf);
        }
        let full = self.write_segments(now, &mut flush, buf);
        if let Some(credit) = &mut self.credit {
            *credit = credit.saturating_sub(buf.len() as u64);
        }
        if full || (self.credit.is_none() && self.has_signals()) {
            self.flush = Some(flush);
        } else {
            self.end_flush(now, flush);
        }
        !buf.is_empty()
    }

    /// The next piece of what the peer sent, in order.
    pub fn poll_received(&mut self) -> Option<Received> {
        let was_full = self.free_window() == 0;
        let received = self.receive_queue.pop_front()?;
        self.move_received();
        // The peer may have stopped for want of window, and would not ask for seven seconds.
        if was_full && self.free_window() > 0 {
            self.tell_window = true;
            self.flush_wanted = true;
        }
        Some(received)
    }

    /// [`Kcp::poll_received`] has something.
    pub fn has_received(&self) -> bool {
        !self.receive_queue.is_empty()
    }

    /// Earliest time at which [`Kcp::handle_timeout`] has work.
    pub fn next_timeout(&self) -> Option<Instant> {
        let resend = if self.send_buf.is_empty() { None } else { self.resend_at };
        [self.flush_at, resend, self.ask_at.map(|(at, _)| at)].into_iter().flatten().min()
    }

    /// Number of the session.
    pub fn conv(&self) -> u32 {
        self.conv
    }

    /// Segments that were not sent once.
    pub fn unsent_segments(&self) -> usize {
        self.send_queue.len()
    }

    /// Segments sent and not acknowledged.
    pub fn segments_in_flight(&self) -> usize {
        self.send_buf.len()
    }

    /// Everything that was sent has arrived.
    pub fn is_flushed(&self) -> bool {
        self.send_queue.is_empty() && self.send_buf.is_empty()
    }

    /// A datagram may be waiting in [`Kcp::poll_transmit`].
    pub fn wants_transmit(&self) -> bool {
        self.flush_wanted || self.flush.is_some()
    }

    /// The peer acknowledged something that only the owner of its address could know of. Always
    /// true for an end that [connects](Side::Connects).
    pub fn is_proven(&self) -> bool {
        self.credit.is_none()
    }

    /// The peer has not acknowledged a segment although it was sent 20 times.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Smoothed round-trip time, once known.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt.map(|rtt| rtt.smoothed)
    }

    /// Counts since the session began.
    pub fn stats(&self) -> &KcpStats {
        &self.stats
    }

    fn handle_segment(
        &mut self,
        now: Instant,
        segment: &Segment<'_>,
        latest_ack: &mut Option<(u32, u32)>,
    ) -> Result<(), DatagramError> {
        if segment.conv != self.conv {
            return Err(DatagramError::OtherSession(segment.conv));
        }
        if is_before(self.send_next, segment.una) {
            return Err(DatagramError::NeverSent(segment.una));
        }
        self.set_remote_window(segment.window);
        match segment.command {
            ACK => {
                if !is_before(segment.sn, self.send_next) {
                    return Err(DatagramError::NeverSent(segment.sn));
                }
                self.handle_ack(now, segment);
                if latest_ack.is_none_or(|(sn, _)| is_before(sn, segment.sn)) {
                    *latest_ack = Some((segment.sn, segment.ts));
                }
            }
            PUSH => self.handle_push(segment),
            ASK_WINDOW => {
                self.tell_window = true;
                self.schedule_flush();
            }
            _ => {}
        }
        // `una` proves nothing: until something else has, segments stay in flight, so that they are
        // repeated and acknowledged by themselves.
        while self.credit.is_none() && self.send_buf.front().is_some_and(|it| is_before(it.sn, segment.una)) {
            self.send_buf.pop_front();
        }
        self.send_una = self.send_buf.front().map_or(self.send_next, |first| first.sn);
        Ok(())
    }

    fn handle_ack(&mut self, now: Instant, segment: &Segment<'_>) {
        let rtt_ms = self.timestamp(now).wrapping_sub(segment.ts);
        // A timestamp from the future, or from weeks ago, is not an echo of ours.
        if rtt_ms < RTO_MAX.as_millis() as u32 {
            self.update_rtt(Duration::from_millis(u64::from(rtt_ms)));
        }
        let Ok(index) = self.find_in_flight(segment.sn) else { return };
        if self.credit.is_some() {
            if self.send_buf[index].ts != segment.ts {
                return;
            }
            self.credit = None;
            // The acknowledgements that were held back.
            self.flush_wanted = true;
        }
        self.send_buf.remove(index);
    }

    fn find_in_flight(&self, sn: u32) -> Result<usize, usize> {
        // By distance from the first, so that wrapping keeps the order.
        let first = self.send_una;
        self.send_buf.binary_search_by_key(&sn.wrapping_sub(first), |it| it.sn.wrapping_sub(first))
    }

    fn handle_push(&mut self, segment: &Segment<'_>) {
        let ahead = segment.sn.wrapping_sub(self.receive_next);
        let is_old = is_before(segment.sn, self.receive_next);
        if !is_old && ahead >= u32::from(self.profile.window) {
            self.stats.received_useless += 1;
            return;
        }
        if self.acks.len() < ACKS_MAX {
            self.acks.push_back((segment.sn, segment.ts));
            self.schedule_flush();
        }
        if is_old {
            self.stats.received_useless += 1;
            return;
        }
        let index = ahead as usize;
        while self.receive_buf.len() <= index {
            self.receive_buf.push_back(None);
        }
        let slot = &mut self.receive_buf[index];
        if slot.is_some() {
            self.stats.received_useless += 1;
            return;
        }
        *slot = Some(Received { bytes: segment.payload.to_vec(), fragments_left: segment.fragments_left });
        self.stats.received += 1;
        self.move_received();
    }

    /// Makes what has no gap before it available, as far as the window allows.
    fn move_received(&mut self) {
        while self.receive_queue.len() < usize::from(self.profile.window)
            && let Some(Some(_)) = self.receive_buf.front()
        {
            self.receive_queue.extend(self.receive_buf.pop_front().flatten());
            self.receive_next = self.receive_next.wrapping_add(1);
        }
    }

    /// Counts an acknowledgement against the segments before it. Transmissions after the
    /// acknowledged one do not count: they had no chance to arrive earlier.
    fn count_skipped(&mut self, sn: u32, ts: u32) {
        for it in &mut self.send_buf {
            if !is_before(it.sn, sn) {
                break;
            }
            if !is_before(ts, it.ts) {
                it.skipped += 1;
                let resend = self.profile.fast_resend;
                self.flush_wanted |= resend > 0 && it.skipped >= resend && it.fast_resends < FAST_RESENDS_MAX;
            }
        }
    }

    fn update_rtt(&mut self, sample: Duration) {
        let rtt = match self.rtt {
            None => Rtt { smoothed: sample, variation: sample / 2 },
            Some(rtt) => Rtt {
                smoothed: ((rtt.smoothed * 7 + sample) / 8).max(Duration::from_millis(1)),
                variation: (rtt.variation * 3 + rtt.smoothed.abs_diff(sample)) / 4,
            },
        };
        self.rtt = Some(rtt);
        let min = if self.profile.no_delay { RTO_MIN_NO_DELAY } else { RTO_MIN };
        self.rto = (rtt.smoothed + self.profile.interval.max(rtt.variation * 4)).clamp(min, RTO_MAX);
    }

    fn set_remote_window(&mut self, window: u16) {
        self.remote_window = window;
        if window > 0 {
            self.ask_at = None;
        }
    }

    /// Segments that may be put in flight now.
    fn window_room(&self) -> u32 {
        let mut window = u32::from(self.profile.window.min(self.remote_window));
        if self.profile.congestion_window {
            window = window.min(self.congestion.window);
        }
        window.saturating_sub(self.send_next.wrapping_sub(self.send_una))
    }

    fn free_window(&self) -> u16 {
        let used = u16::try_from(self.receive_queue.len()).unwrap_or(u16::MAX);
        self.profile.window.saturating_sub(used)
    }

    /// Flushes if something unsent can go out now, or if the peer has to be asked for a window.
    fn want_flush_for_queue(&mut self) {
        if !self.send_queue.is_empty() {
            let must_ask = self.remote_window == 0 && self.ask_at.is_none();
            self.flush_wanted |= must_ask || self.window_room() > 0;
        }
    }

    /// Lets acknowledgements and answers wait for company until the next point of the grid.
    fn schedule_flush(&mut self) {
        if self.credit.is_none() {
            self.flush_at.get_or_insert(self.last_flush + self.profile.interval);
        }
    }

    fn begin_flush(&mut self, now: Instant) {
        self.flush_wanted = false;
        self.flush_at = None;
        self.last_flush = now;
        self.flush = Some(Flush::default());
        let mut credit = self.credit.map(|credit| usize::try_from(credit).unwrap_or(usize::MAX));
        for _ in 0..self.window_room() {
            let Some((mut payload, fragments_left)) = self.send_queue.pop_front() else { break };
            if let Some(credit) = &mut credit {
                // A first answer that exceeds the credit would wait for many repetitions of the
                // question; its first part gets an acknowledgement as well, and then the limit
                // falls.
                let fits = credit.saturating_sub(SEGMENT_HEADER_BYTES);
                if fits < payload.len() && fragments_left == 0 && fits > 0 {
                    self.send_queue.push_front((payload.split_off(fits), 0));
                } else if fits < payload.len() {
                    self.send_queue.push_front((payload, fragments_left));
                    self.stats.held_back += 1;
                    break;
                }
                *credit = credit.saturating_sub(SEGMENT_HEADER_BYTES + payload.len());
            }
            self.send_buf.push_back(InFlight {
                sn: self.send_next,
                fragments_left,
                payload,
                ts: 0,
                rto: self.rto,
                resend_at: now,
                transmissions: 0,
                fast_resends: 0,
                skipped: 0,
            });
            self.send_next = self.send_next.wrapping_add(1);
        }
        if self.remote_window == 0 && !self.send_queue.is_empty() {
            self.ask_at.get_or_insert((now + WINDOW_PROBE_MIN, WINDOW_PROBE_MIN));
        }
    }

    /// Writes acknowledgements and probes, as many as fit.
    fn write_acks(&mut self, buf: &mut Vec<u8>) {
        while self.room(buf) >= SEGMENT_HEADER_BYTES
            && let Some((sn, ts)) = self.acks.pop_front()
        {
            self.segment(ACK, ts, sn).write(buf);
        }
        if self.ask_window && self.room(buf) >= SEGMENT_HEADER_BYTES {
            self.ask_window = false;
            self.segment(ASK_WINDOW, 0, 0).write(buf);
        }
        if self.tell_window && self.room(buf) >= SEGMENT_HEADER_BYTES {
            self.tell_window = false;
            self.segment(TELL_WINDOW, 0, 0).write(buf);
        }
    }

    /// Writes segments that are due, from where the flush stands. True if one did not fit into this
    /// datagram.
    fn write_segments(&mut self, now: Instant, flush: &mut Flush, buf: &mut Vec<u8>) -> bool {
        let ts = self.timestamp(now);
        let (window, una, room) = (self.free_window(), self.una(), self.room(&[]));
        // Slow mode waits an eighth longer than the timeout for the first answer, fast mode does
        // not.
        let slack = if self.profile.no_delay { Duration::ZERO } else { self.rto / 8 };
        while let Some(it) = self.send_buf.get_mut(flush.at) {
            let is_new = it.transmissions == 0;
            let timed_out = !is_new && it.resend_at <= now;
            let skipped = self.profile.fast_resend > 0
                && it.skipped >= self.profile.fast_resend
                && it.fast_resends < FAST_RESENDS_MAX;
            if !is_new && !timed_out && !skipped {
                flush.at += 1;
                continue;
            }
            let need = SEGMENT_HEADER_BYTES + it.payload.len();
            if buf.len() + need > room {
                if room < MTU && buf.is_empty() {
                    // The credit does not suffice: try again when more has come in.
                    flush.starved = true;
                    self.stats.held_back += 1;
                    return false;
                }
                return true;
            }
            if is_new {
                it.rto = self.rto;
                it.resend_at = now + it.rto + slack;
                self.stats.sent += 1;
            } else if timed_out {
                let more = match self.profile.no_delay {
                    true => self.rto / 2,
                    false => it.rto.max(self.rto),
                };
                it.rto = (it.rto + more).min(BACKOFF_MAX.max(self.rto));
                it.resend_at = now + it.rto;
                flush.timeouts = true;
                self.stats.resent_timeout += 1;
            } else {
                it.fast_resends += 1;
                it.resend_at = now + it.rto;
                flush.fast_resends = true;
                self.stats.resent_fast += 1;
            }
            it.skipped = 0;
            it.transmissions += 1;
            // An address that has yet to prove itself may echo any transmission, so all carry the
            // same timestamp.
            if is_new || self.credit.is_none() {
                it.ts = ts;
            }
            self.dead |= it.transmissions >= TRANSMISSIONS_MAX;
            let segment = Segment {
                conv: self.conv,
                command: PUSH,
                fragments_left: it.fragments_left,
                window,
                ts: it.ts,
                sn: it.sn,
                una,
                payload: &it.payload,
            };
            segment.write(buf);
            flush.at += 1;
        }
        false
    }

    fn end_flush(&mut self, now: Instant, flush: Flush) {
        if flush.fast_resends {
            let in_flight = self.send_next.wrapping_sub(self.send_una);
            self.congestion.threshold = (in_flight / 2).max(THRESHOLD_MIN);
            let window = self.congestion.threshold.saturating_add(self.profile.fast_resend);
            self.congestion.set_window(window);
        }
        if flush.timeouts {
            self.congestion.threshold = (self.congestion.window / 2).max(THRESHOLD_MIN);
            self.congestion.set_window(1);
        }
        // A starved flush is continued by the next datagram, not by a timer.
        let due = self.send_buf.iter().filter(|it| it.transmissions > 0).map(|it| it.resend_at).min();
        self.resend_at = due.map(|at| if flush.starved { at.max(now + self.rto) } else { at });
    }

    /// Something without payload is to be sent.
    fn has_signals(&self) -> bool {
        self.ask_window || self.tell_window || !self.acks.is_empty()
    }

    /// Bytes that still fit into the datagram in `buf`.
    fn room(&self, buf: &[u8]) -> usize {
        let credit = self.credit.map_or(MTU, |credit| usize::try_from(credit).unwrap_or(MTU));
        credit.min(MTU).saturating_sub(buf.len())
    }

    fn segment(&self, command: u8, ts: u32, sn: u32) -> Segment<'static> {
        Segment {
            conv: self.conv,
            command,
            fragments_left: 0,
            window: self.free_window(),
            ts,
            sn,
            una: self.una(),
            payload: &[],
        }
    }

    /// What we acknowledge by the way. Nothing before the address has proven itself: a peer whose
    /// question is acknowledged falls silent, and then there might be no credit left to repeat an
    /// answer that was lost.
    fn una(&self) -> u32 {
        if self.credit.is_some() { 0 } else { self.receive_next }
    }

    fn timestamp(&self, now: Instant) -> u32 {
        // The low 32 bits of the milliseconds: timestamps wrap, and only differences matter.
        (now.as_millis() as u32).wrapping_add(self.ts_base)
    }
}

impl Congestion {
    /// Something new was acknowledged.
    fn grow(&mut self, remote_window: u32) {
        if self.window >= remote_window {
            return;
        }
        let mss = MSS as u64;
        if self.window < self.threshold {
            self.window += 1;
            self.bytes += mss;
        } else {
            self.bytes = self.bytes.max(mss);
            self.bytes += mss * mss / self.bytes + mss / 16;
            if u64::from(self.window + 1) * mss <= self.bytes {
                self.window += 1;
            }
        }
        if self.window > remote_window {
            self.set_window(remote_window);
        }
    }

    fn set_window(&mut self, window: u32) {
        self.window = window.max(1);
        self.bytes = u64::from(self.window) * MSS as u64;
    }
}

/// True if sequence number (or timestamp) `a` comes before `b`, however often they have wrapped.
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_and_timestamps_wrap() {
        let now = Instant::ZERO;
        let mut a = Kcp::new(1, Profile::GAME, Side::Connects, u32::MAX - 20, now);
        let mut b = Kcp::new(1, Profile::GAME, Side::Connects, 9, now);
        // As after four billion segments.
        a.send_next = u32::MAX - 50;
        a.send_una = u32::MAX - 50;
        b.receive_next = u32::MAX - 50;
        let sent: Vec<u8> = (0..200 * MSS).map(|i| (i / 7) as u8).collect();
        a.send(&sent);
        let mut got = Vec::new();
        let mut buf = Vec::new();
        let mut now = now;
        let mut round = 0;
        while !a.is_flushed() {
            while a.poll_transmit(now, &mut buf) {
                round += 1;
                // Every third datagram is lost.
                if round % 3 > 0 {
                    b.handle_datagram(now, &buf).unwrap();
                }
            }
            while let Some(piece) = b.poll_received() {
                got.extend_from_slice(&piece.bytes);
            }
            while b.poll_transmit(now, &mut buf) {
                a.handle_datagram(now, &buf).unwrap();
            }
            now += Duration::from_millis(10);
            assert!(now < Instant::from_millis(60_000), "stalled");
            a.handle_timeout(now);
            b.handle_timeout(now);
        }
        assert!(got == sent);
        assert!(a.stats.resent_fast > 0, "{:?}", a.stats);
    }

    #[test]
    fn small_writes_fill_segments() {
        let now = Instant::ZERO;
        let mut kcp = Kcp::new(1, Profile::GAME, Side::Connects, 0, now);
        for _ in 0..1000 {
            kcp.send(&[5; 10]);
        }
        assert_eq!(kcp.unsent_segments(), 10_000usize.div_ceil(MSS));
    }
}
