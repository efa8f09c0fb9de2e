//! Packets in flight, kept until each is acknowledged or lost.
//!
//! Fates are decided in the order of sending: an acknowledgement of packet n settles everything
//! before n, because a receiver never applies an older packet after a newer one. So memory of what
//! was sent is a queue.

use std::time::Duration;

use throng_stdx::Instant;

use crate::frames::SLACK;
use crate::keyed::Cursor;
use crate::wire::{AckState, HEADER_BYTES, Header};

/// Items of one section at most, so that the count is one byte.
const COUNT_MAX: u8 = 127;

/// Something that a packet contained, other than common records.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    /// A record of its own; `complete`: nothing of the object stayed pending.
    Update {
        object: u32,
        mask: u64,
        complete: bool,
    },
    Create {
        object: u32,
    },
    Destroy {
        object: u32,
    },
    /// A reliable attachment's sequence.
    Attach {
        object: u32,
        sequence: u8,
    },
    /// Operations on a keyed array, after this place.
    Keyed {
        object: u32,
        array: u8,
        from: Option<Cursor>,
    },
    /// A part of a transfer.
    Part {
        id: u16,
        part: u16,
    },
    /// A token's text.
    Token {
        key: u32,
    },
    /// The end of a startup object, by name.
    Ending {
        token: u32,
        reason: u8,
    },
    /// True when the receiver owns the object.
    Role {
        object: u32,
    },
    /// A request of the receiver for a whole state.
    Reset {
        object: u32,
    },
}

/// Common records of objects of one bitmap word: `stream << 24 | word`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentWord {
    key: u32,
    pub(crate) bits: u64,
}

impl SentWord {
    pub(crate) fn word(self) -> u32 {
        self.key & 0xff_ffff
    }

    pub(crate) fn stream(self) -> usize {
        (self.key >> 24) as usize
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPacket {
    pub(crate) seq: u16,
    pub(crate) frame: u32,
    pub(crate) at: Instant,
    words: u32,
    items: u32,
}

impl SentPacket {
    /// Contains anything that is sent again after a loss.
    pub(crate) fn is_laden(&self) -> bool {
        self.words + self.items > 0
    }
}

/// A queue of small values in one piece: taking many from its front costs nothing.
#[derive(Clone, Debug)]
struct Queue<T> {
    values: Vec<T>,
    head: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { values: Vec::new(), head: 0 }
    }
}

impl<T: Copy> Queue<T> {
    #[inline]
    fn push(&mut self, value: T) {
        // The room of what was taken is used again, at the cost of one move for each value in its
        // life.
        if self.values.len() == self.values.capacity() && self.head * 2 >= self.values.len() {
            self.values.copy_within(self.head.., 0);
            self.values.truncate(self.values.len() - self.head);
            self.head = 0;
        }
        self.values.push(value);
    }

    #[inline]
    fn waiting(&self) -> &[T] {
        &self.values[self.head..]
    }

    /// The oldest `count` values.
    #[inline]
    fn take(&mut self, count: usize) -> &[T] {
        let from = self.head;
        self.head += count;
        &self.values[from..from + count]
    }
}

/// Queue of packets whose fate is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentLog {
    packets: Queue<SentPacket>,
    words: Queue<SentWord>,
    items: Queue<Item>,
    next_seq: u16,
    /// Of the packet being written.
    new_words: u32,
    new_items: u32,
    /// Packets in flight that contained anything.
    laden: u32,
    newest_at: Instant,
}

impl SentLog {
    /// The newest packet was sent before `since`.
    pub(crate) fn is_quiet(&self, since: Instant) -> bool {
        self.newest_at <= since
    }

    /// Some packet in flight contains anything.
    pub(crate) fn is_laden(&self) -> bool {
        self.laden > 0
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.packets.waiting().len()
    }

    pub(crate) fn front(&self) -> Option<&SentPacket> {
        self.packets.waiting().first()
    }

    pub(crate) fn newest_seq(&self) -> u16 {
        self.next_seq.wrapping_sub(1)
    }

    #[inline]
    pub(crate) fn push_word(&mut self, stream: usize, word: u32, bits: u64) {
        let key = (stream as u32) << 24 | word;
        match self.words.values.last_mut() {
            Some(last) if self.new_words > 0 && last.key == key => last.bits |= bits,
            _ => {
                self.words.push(SentWord { key, bits });
                self.new_words += 1;
            }
        }
    }

    pub(crate) fn push_item(&mut self, item: Item) {
        self.items.push(item);
        self.new_items += 1;
    }

    fn finish(&mut self, frame: u32, at: Instant) {
        let (words, items) = (self.new_words, self.new_items);
        self.packets.push(SentPacket { seq: self.next_seq, frame, at, words, items });
        self.next_seq = self.next_seq.wrapping_add(1);
        self.laden += u32::from(words + items > 0);
        self.newest_at = at;
        (self.new_words, self.new_items) = (0, 0);
    }

    /// Takes the oldest packet and what it contained into the given vectors.
    #[inline]
    pub(crate) fn pop(&mut self, words: &mut Vec<SentWord>, items: &mut Vec<Item>) -> Option<SentPacket> {
        let packet = *self.packets.waiting().first()?;
        self.packets.take(1);
        self.laden -= u32::from(packet.words + packet.items > 0);
        words.clear();
        words.extend_from_slice(self.words.take(packet.words as usize));
        items.clear();
        items.extend_from_slice(self.items.take(packet.items as usize));
        Some(packet)
    }

    /// Takes the oldest packet if it contained nothing but common records, which need no second
    /// look.
    #[inline]
    pub(crate) fn pop_plain(&mut self) -> bool {
        let Some(packet) = self.packets.waiting().first().filter(|packet| packet.items == 0) else {
            return false;
        };
        let words = packet.words as usize;
        self.packets.head += 1;
        self.words.head += words;
        self.laden -= u32::from(words > 0);
        true
    }

    /// As `pop`, for a packet whose common records need no second look.
    pub(crate) fn pop_delivered(&mut self, items: &mut Vec<Item>) -> Option<SentPacket> {
        let packet = *self.packets.waiting().first()?;
        self.packets.take(1);
        self.laden -= u32::from(packet.words + packet.items > 0);
        self.words.take(packet.words as usize);
        items.clear();
        items.extend_from_slice(self.items.take(packet.items as usize));
        Some(packet)
    }

    /// Calls `each` with frame and common records of every packet still in flight.
    pub(crate) fn for_each_word(&self, mut each: impl FnMut(u32, SentWord)) {
        let mut words = self.words.waiting().iter();
        for packet in self.packets.waiting() {
            for word in words.by_ref().take(packet.words as usize) {
                each(packet.frame, *word);
            }
        }
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = &Item> {
        self.items.waiting().iter()
    }
}

/// Writes the packets of one connection and frame, one after the other into one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct PacketOut {
    pub(crate) buf: Vec<u8>,
    pub(crate) at: usize,
    start: usize,
    /// End of the open packet at the latest.
    end: usize,
    open: bool,
    kind: u8,
    count_at: usize,
    count: u8,
    ends: Vec<usize>,
    /// Bytes that may still be spent, closed packets and their overhead taken off.
    allowance: usize,
    packet_max: usize,
    overhead: usize,
    /// Something found no room in this frame.
    refused: bool,
    ack: (u16, u64),
    frame: u32,
    now: Instant,
}

impl PacketOut {
    /// Begins a connection's frame. `allowance` is in bytes, overhead of `overhead` bytes a packet
    /// included.
    pub(crate) fn begin(
        &mut self,
        (allowance, packet_max, overhead): (usize, usize, usize),
        acks: &AckState,
        frame: u32,
        now: Instant,
    ) {
        self.at = 0;
        self.open = false;
        self.ends.clear();
        (self.allowance, self.packet_max, self.overhead) = (allowance, packet_max, overhead);
        self.refused = false;
        self.ack = acks.fields();
        (self.frame, self.now) = (frame, now);
    }

    /// Leaves nothing of another connection's frame behind.
    pub(crate) fn discard(&mut self) {
        self.at = 0;
        self.open = false;
        self.ends.clear();
    }

    /// Makes room for an item of `len` bytes in a section of `kind`, in this packet or a new one;
    /// false when the budget is spent or no packet could ever hold it. The caller writes `len`
    /// bytes at `at` then, and calls `wrote`.
    #[inline]
    pub(crate) fn reserve(&mut self, log: &mut SentLog, kind: u8, len: usize) -> bool {
        if self.open && self.kind == kind && self.count < COUNT_MAX && self.at + len <= self.end {
            return true;
        }
        self.reserve_slow(log, kind, len)
    }

    fn reserve_slow(&mut self, log: &mut SentLog, kind: u8, len: usize) -> bool {
        let need = len + 2;
        if !self.open || self.at + need > self.end {
            // Only a packet that will hold it is worth closing this one for.
            if !self.find_room(need) {
                return false;
            }
            self.close(log);
            self.open(log);
        }
        self.close_section();
        self.kind = kind;
        self.buf[self.at] = kind;
        self.count_at = self.at + 1;
        self.at += 2;
        true
    }

    /// Ends the open packet if it has no room for `bytes` more, so that what follows stands in one
    /// packet.
    pub(crate) fn keep_together(&mut self, log: &mut SentLog, bytes: usize) {
        if self.open && self.at + bytes > self.end {
            self.close(log);
        }
    }

    /// The open packet, or the next one, holds `bytes` of sections.
    pub(crate) fn find_room(&mut self, bytes: usize) -> bool {
        if self.open && self.at + bytes <= self.end {
            return true;
        }
        let spent = if self.open { self.at - self.start + self.overhead } else { 0 };
        let room = self.packet_max.min(self.allowance.saturating_sub(spent + self.overhead));
        let fits = HEADER_BYTES + bytes <= room;
        self.refused |= !fits;
        fits
    }

    /// Something found no room in this frame.
    pub(crate) fn refused(&self) -> bool {
        self.refused
    }

    /// Nothing more is written in this frame, except an acknowledgement.
    pub(crate) fn stop(&mut self) {
        self.packet_max = 0;
    }

    /// Writes a whole section that carries its length; false when there is no room.
    pub(crate) fn reserve_skippable(&mut self, log: &mut SentLog, kind: u8, count: u8, bytes: &[u8]) -> bool {
        debug_assert!(kind >= crate::wire::kind::SKIPPABLE && count <= COUNT_MAX);
        let Ok(len) = u16::try_from(bytes.len()) else { return false };
        // Never joined with a section before: the length stands between count and items.
        self.close_section();
        self.kind = 0;
        if !self.reserve(log, kind, bytes.len() + 2) {
            return false;
        }
        self.put(&len.to_le_bytes());
        self.put(bytes);
        self.count = count;
        self.close_section();
        self.kind = 0;
        true
    }

    /// Nothing was written in this frame.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty() && !self.open
    }

    /// A packet is being written.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Bytes left in the open section, and items. A packet that only acknowledges has no room.
    #[inline]
    pub(crate) fn room(&self) -> (usize, usize) {
        (self.end.saturating_sub(self.at), usize::from(COUNT_MAX - self.count))
    }

    /// Appends an item for which there is room.
    pub(crate) fn put(&mut self, item: &[u8]) {
        self.buf[self.at..self.at + item.len()].copy_from_slice(item);
        self.wrote(item.len(), 1);
    }

    /// Appends `count` items for which there is room: the first `len` of `bytes`, which go on for
    /// [`SLACK`] more.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8], len: usize, count: usize) {
        let at = self.at;
        if len <= SLACK {
            // A constant length takes no call.
            self.buf[at..at + SLACK].copy_from_slice(&bytes[..SLACK]);
        } else {
            self.buf[at..at + len].copy_from_slice(&bytes[..len]);
        }
        self.wrote(len, count);
    }

    /// Notes `count` items of `len` bytes in all, written at `at`.
    #[inline]
    pub(crate) fn wrote(&mut self, len: usize, count: usize) {
        self.at += len;
        self.count += count as u8;
    }

    fn open(&mut self, log: &SentLog) {
        self.start = self.at;
        self.end = self.start + self.packet_max.min(self.allowance - self.overhead);
        let needed = self.end + SLACK;
        if self.buf.len() < needed {
            self.buf.resize(needed, 0);
        }
        let (ack, ack_bits) = self.ack;
        let header = Header { seq: log.next_seq, ack, ack_bits, frame: self.frame };
        self.buf[self.at..self.at + HEADER_BYTES].copy_from_slice(&header.to_bytes());
        self.at += HEADER_BYTES;
        self.open = true;
        self.kind = 0;
        self.count = 0;
    }

    #[inline]
    fn close_section(&mut self) {
        if self.kind != 0 {
            self.buf[self.count_at] = self.count;
        }
        self.count = 0;
    }

    /// Ends the open packet, if there is one.
    #[inline]
    pub(crate) fn close(&mut self, log: &mut SentLog) {
        if self.open {
            self.close_open(log);
        }
    }

    fn close_open(&mut self, log: &mut SentLog) {
        self.close_section();
        self.open = false;
        self.allowance -= (self.at - self.start + self.overhead).min(self.allowance);
        self.ends.push(self.at);
        log.finish(self.frame, self.now);
    }

    /// A packet of a header alone, unless there is a packet already or not even that can be paid.
    pub(crate) fn acknowledge(&mut self, log: &mut SentLog) {
        if self.is_empty() && self.allowance >= HEADER_BYTES + self.overhead {
            self.open(log);
        }
    }

    pub(crate) fn spent(&self) -> usize {
        self.at + self.ends.len() * self.overhead
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.at]
    }

    pub(crate) fn ends(&self) -> &[usize] {
        &self.ends
    }
}

/// A token bucket: `rate` bytes a second, `burst` at most saved up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Budget {
    pub(crate) rate: f64,
    pub(crate) burst: f64,
    pub(crate) tokens: f64,
    pub(crate) at: Instant,
    /// Limits of a rate that follows the link, and when it was lowered last.
    follows: Option<(Adaptive, Instant)>,
}

/// Limits of a budget that follows the link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// Bytes a second at least.
    pub rate_min: f64,
    /// Bytes a second at most; the rate begins here.
    pub rate_max: f64,
    /// Factor of the rate on congestion, below 1.
    pub lower: f64,
    /// Bytes a second by which the rate rises in each second without.
    pub raise: f64,
}

impl Default for Adaptive {
    /// 8,000 to 128,000 bytes a second, seven tenths on congestion, 8,000 more each second.
    fn default() -> Self {
        Self { rate_min: 8000.0, rate_max: 128_000.0, lower: 0.7, raise: 8000.0 }
    }
}

impl Budget {
    pub(crate) fn new(rate: f64, burst: f64, now: Instant) -> Self {
        Self { rate, burst, tokens: burst, at: now, follows: None }
    }

    /// A tenth of a second may be saved up, a packet at least.
    pub(crate) fn adaptive(limits: Adaptive, burst_min: f64, now: Instant) -> Self {
        let burst = (limits.rate_max / 10.0).max(1228.0).max(burst_min);
        Self { follows: Some((limits, now)), ..Self::new(limits.rate_max, burst, now) }
    }

    /// `congested` since the last call; `round_trip` is the time in which one congestion shows.
    pub(crate) fn refill(&mut self, now: Instant, congested: bool, round_trip: Duration) -> usize {
        let passed = now.since(self.at).as_secs_f64();
        if let Some((limits, lowered)) = &mut self.follows {
            if congested && now.since(*lowered) >= round_trip {
                self.rate = (self.rate * limits.lower).max(limits.rate_min);
                *lowered = now;
            } else if !congested {
                self.rate = (self.rate + passed * limits.raise).min(limits.rate_max);
            }
        }
        self.at = now;
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        self.tokens as usize
    }
}
