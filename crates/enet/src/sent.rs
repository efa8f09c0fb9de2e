//! Reliable commands in flight: found by number when acknowledged, by deadline when lost. Spec:
//! enet §12
//!
//! ```text
//! Numbers (per channel)   ring from the oldest unacknowledged number      ack: O(1)
//! SentLog (per peer)      slab of commands, threaded in order of sending   fast resend: O(1)
//!                         heap of deadlines, stale entries skipped         timeout: O(log n)
//! ```

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use bytes::Bytes;

use crate::path::Snapshot;
use crate::queue::Queue;
use crate::wire::{Body, CHANNEL_NONE, Command, Fragment};
use crate::work;

/// Content of a sent command, kept until it is acknowledged.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A command about the connection.
    Control(Body<'static>),
    /// A whole packet.
    Whole(Bytes),
    /// A fragment: its place in the packet, whose payload field is empty, and the payload.
    Fragment(Fragment<'static>, Bytes),
}

impl Content {
    /// Bytes that count against the window.
    pub(crate) fn data_len(&self) -> usize {
        match self {
            Self::Control(_) => 0,
            Self::Whole(data) | Self::Fragment(_, data) => data.len(),
        }
    }

    pub(crate) fn is_data(&self) -> bool {
        !matches!(self, Self::Control(_))
    }

    /// The command to send, always one to be acknowledged.
    pub(crate) fn command(&self, channel: u8, number: u16) -> Command<'_> {
        let body = match self {
            Self::Control(body) => *body,
            Self::Whole(data) => Body::SendReliable { payload: data },
            Self::Fragment(fragment, data) => Body::SendFragment(Fragment { payload: data, ..*fragment }),
        };
        Command { channel, number, acknowledge: true, unsequenced: false, body }
    }
}

/// One reliable command that was sent at least once.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) channel: u8,
    pub(crate) number: u16,
    pub(crate) content: Content,
    /// Transmissions so far, and how many of them were not acknowledged in time.
    pub(crate) attempts: u8,
    pub(crate) expiries: u8,
    /// False while the command waits to be sent again.
    pub(crate) in_flight: bool,
    pub(crate) timeout_ms: u32,
    /// Time of the last transmission.
    pub(crate) sent_ms: u64,
    /// Low half of the times of the last eight transmissions: an acknowledgement must echo one.
    times: [u16; TIMES],
    /// Number of the last transmission among all of this peer's.
    order: u64,
    /// The path at the last transmission of data.
    pub(crate) snapshot: Snapshot,
    previous: u32,
    next: u32,
}

impl Sent {
    /// Time on the wire of the last transmission.
    pub(crate) fn last_time(&self) -> u16 {
        self.times[usize::from(self.attempts.saturating_sub(1)) % TIMES]
    }

    /// Round trip time of the transmission that went out at `time`; `None` if there was none.
    pub(crate) fn round_trip_ms(&self, now_ms: u64, time: u16) -> Option<u32> {
        let known = &self.times[..TIMES.min(self.attempts.into())];
        // Times further back than 65 s cannot be told apart; commands are given up before.
        known.contains(&time).then(|| u32::from((now_ms as u16).wrapping_sub(time)))
    }
}

/// Names a command of a [`SentLog`].
pub(crate) type SentIndex = u32;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct SentLog {
    entries: Vec<Sent>,
    /// (deadline, order of the transmission, command); the order tells whether the entry still
    /// means anything.
    deadlines: BinaryHeap<Reverse<(u64, u64, SentIndex)>>,
    /// Oldest and newest transmission in flight.
    head: SentIndex,
    tail: SentIndex,
    /// First of the free entries, which are threaded by `next`.
    free: SentIndex,
    /// Entries that are not free.
    len: u32,
    in_flight: usize,
    transmissions: u64,
    /// Latest transmission that was acknowledged.
    acknowledged: u64,
}

impl SentLog {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            deadlines: BinaryHeap::new(),
            head: NONE,
            tail: NONE,
            free: NONE,
            len: 0,
            in_flight: 0,
            transmissions: 0,
            acknowledged: 0,
        }
    }

    /// Commands that were sent and not acknowledged.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads what an acknowledgement will need of the only command in the log, if there is one.
    pub(crate) fn prefetch(&self) {
        core::hint::black_box((
            self.entries.first().map(|sent| (sent.number, sent.attempts, sent.previous)),
            self.deadlines.peek().map(|&Reverse((deadline, ..))| deadline),
        ));
    }

    pub(crate) fn get(&self, index: SentIndex) -> &Sent {
        &self.entries[index as usize]
    }

    /// Takes in a command that goes out now for the first time.
    pub(crate) fn insert(
        &mut self,
        now_ms: u64,
        channel: u8,
        number: u16,
        content: Content,
        timeout_ms: u32,
    ) -> SentIndex {
        let sent = Sent {
            channel,
            number,
            content,
            attempts: 0,
            expiries: 0,
            in_flight: false,
            timeout_ms,
            sent_ms: now_ms,
            times: [0; TIMES],
            order: 0,
            snapshot: Snapshot::default(),
            previous: NONE,
            next: NONE,
        };
        let index = match self.free {
            NONE => {
                if self.entries.capacity() == 0 {
                    // Vec would begin with room for four; an idle connection only ever has its ping
                    // on the way.
                    self.entries.reserve_exact(1);
                    self.deadlines.reserve_exact(1);
                }
                self.entries.push(sent);
                (self.entries.len() - 1) as SentIndex
            }
            index => {
                self.free = self.entries[index as usize].next;
                self.entries[index as usize] = sent;
                index
            }
        };
        self.len += 1;
        self.transmit(now_ms, index);
        index
    }

    /// Notes that a command goes out now, for the first time or again.
    pub(crate) fn transmit(&mut self, now_ms: u64, index: SentIndex) {
        self.transmissions += 1;
        let order = self.transmissions;
        let tail = self.tail;
        let sent = &mut self.entries[index as usize];
        debug_assert!(!sent.in_flight);
        sent.times[usize::from(sent.attempts) % TIMES] = now_ms as u16;
        sent.attempts = sent.attempts.saturating_add(1);
        sent.in_flight = true;
        sent.sent_ms = now_ms;
        sent.order = order;
        (sent.previous, sent.next) = (tail, NONE);
        self.deadlines.push(Reverse((now_ms + u64::from(sent.timeout_ms), order, index)));
        match tail {
            NONE => self.head = index,
            tail => self.entries[tail as usize].next = index,
        }
        self.tail = index;
        self.in_flight += 1;
    }

    /// Takes a command out of the flight: it will be sent again.
    pub(crate) fn land(&mut self, index: SentIndex) {
        let sent = &mut self.entries[index as usize];
        debug_assert!(sent.in_flight);
        sent.in_flight = false;
        let (previous, next) = (sent.previous, sent.next);
        match previous {
            NONE => self.head = next,
            previous => self.entries[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.entries[next as usize].previous = previous,
        }
        self.in_flight -= 1;
    }

    /// Removes a command, which was acknowledged.
    pub(crate) fn remove(&mut self, index: SentIndex) -> Content {
        if self.entries[index as usize].in_flight {
            self.land(index);
        }
        let empty = Content::Control(Body::Ping);
        let content = core::mem::replace(&mut self.entries[index as usize].content, empty);
        // The order 0 belongs to no transmission: what still names this entry is stale.
        self.entries[index as usize].order = 0;
        self.entries[index as usize].next = self.free;
        self.free = index;
        self.len -= 1;
        if self.is_empty() {
            self.clear();
        } else if self.deadlines.len() > 2 * self.in_flight + 64 {
            let entries = &self.entries;
            self.deadlines.retain(|&Reverse((_, order, index))| {
                work::step();
                is_live(entries, order, index)
            });
        }
        content
    }

    /// Forgets everything, and gives back memory beyond that for a few commands.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.deadlines.clear();
        (self.head, self.tail, self.free, self.len, self.in_flight) = (NONE, NONE, NONE, 0, 0);
        // Not after every burst: a busy connection would allocate all the time.
        if self.entries.capacity() > KEPT {
            self.entries = Vec::new();
            self.deadlines = BinaryHeap::new();
        }
    }

    /// Notes that the transmission numbered `order` was acknowledged.
    pub(crate) fn note_acknowledged(&mut self, order: u64) {
        self.acknowledged = self.acknowledged.max(order);
    }

    /// The oldest command in flight if it counts as lost: one sent three transmissions later was
    /// acknowledged, and it has had `patience_ms`. Spec: enet A10
    pub(crate) fn overtaken(&self, now_ms: u64, patience_ms: u32) -> Option<SentIndex> {
        let sent = self.entries.get(self.head as usize)?;
        let is_overtaken = sent.order + OVERTAKEN_BY <= self.acknowledged;
        let is_late = now_ms.saturating_sub(sent.sent_ms) >= u64::from(patience_ms);
        (is_overtaken && is_late).then_some(self.head)
    }

    pub(crate) fn set_snapshot(&mut self, index: SentIndex, snapshot: Snapshot) {
        self.entries[index as usize].snapshot = snapshot;
    }

    /// True if a command is in the log and not in flight.
    pub(crate) fn waits(&self, index: SentIndex) -> bool {
        self.entries.get(index as usize).is_some_and(|sent| sent.order != 0 && !sent.in_flight)
    }

    pub(crate) fn order(&self, index: SentIndex) -> u64 {
        self.entries[index as usize].order
    }

    /// Takes the next command whose time to be acknowledged has passed out of the flight.
    pub(crate) fn pop_expired(&mut self, now_ms: u64) -> Option<SentIndex> {
        self.prune();
        let &Reverse((deadline, _, index)) = self.deadlines.peek()?;
        if deadline > now_ms {
            return None;
        }
        self.deadlines.pop();
        self.land(index);
        Some(index)
    }

    /// Doubles the time after which a command counts as lost.
    pub(crate) fn back_off(&mut self, index: SentIndex) {
        let sent = &mut self.entries[index as usize];
        sent.timeout_ms = sent.timeout_ms.saturating_mul(2);
        sent.expiries = sent.expiries.saturating_add(1);
    }

    /// Time at which [`pop_expired`](Self::pop_expired) has something.
    pub(crate) fn next_deadline(&mut self) -> Option<u64> {
        self.prune();
        self.deadlines.peek().map(|&Reverse((deadline, ..))| deadline)
    }

    fn prune(&mut self) {
        while let Some(&Reverse((_, order, index))) = self.deadlines.peek() {
            work::step();
            if is_live(&self.entries, order, index) {
                return;
            }
            self.deadlines.pop();
        }
    }
}

fn is_live(entries: &[Sent], order: u64, index: SentIndex) -> bool {
    entries.get(index as usize).is_some_and(|sent| sent.in_flight && sent.order == order)
}

/// Places in the log of one channel's unacknowledged commands, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    /// Number of the first entry.
    base: u16,
    /// [`NONE`] where a number was acknowledged or never sent. The first entry is never [`NONE`].
    ring: Queue<SentIndex>,
}

impl Numbers {
    /// Adds a number later than all before it.
    pub(crate) fn push(&mut self, number: u16, index: SentIndex) {
        if self.ring.is_empty() {
            self.base = number;
        }
        let place = usize::from(number.wrapping_sub(self.base));
        debug_assert!(place >= self.ring.len(), "numbers are sent in order");
        while self.ring.len() < place {
            work::step();
            self.ring.push_back(NONE);
        }
        self.ring.push_back(index);
    }

    pub(crate) fn get(&self, number: u16) -> Option<SentIndex> {
        let place = usize::from(number.wrapping_sub(self.base));
        self.ring.get(place).copied().filter(|&index| index != NONE)
    }

    pub(crate) fn remove(&mut self, number: u16) {
        let place = usize::from(number.wrapping_sub(self.base));
        if let Some(slot) = self.ring.get_mut(place) {
            *slot = NONE;
        }
        while self.ring.front() == Some(&NONE) {
            work::step();
            self.ring.pop_front();
            self.base = self.base.wrapping_add(1);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ring = Queue::new();
    }
}

pub(crate) const CONTROL: u8 = CHANNEL_NONE;
const NONE: SentIndex = SentIndex::MAX;
const TIMES: usize = 8;
/// As in TCP: two later ones may just have been reordered.
const OVERTAKEN_BY: u64 = 3;
/// Room for commands that a connection keeps when all were acknowledged, about 10 KiB once it has
/// needed that much.
const KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn log(count: u16) -> (SentLog, Numbers) {
        let (mut log, mut numbers) = (SentLog::new(), Numbers::default());
        for number in 0..count {
            let content = Content::Whole(Bytes::from_static(b"x"));
            let index = log.insert(100 + u64::from(number), 0, number, content, 50);
            numbers.push(number, index);
        }
        (log, numbers)
    }

    #[test]
    fn expires_in_order_of_deadline() {
        let (mut log, _) = log(3);
        assert_eq!(log.next_deadline(), Some(150));
        assert_eq!(log.pop_expired(149), None);
        let first = log.pop_expired(151).expect("the first is due");
        assert_eq!(log.get(first).number, 0);
        log.back_off(first);
        log.transmit(151, first);
        assert_eq!(log.pop_expired(151).map(|index| log.get(index).number), Some(1));
        assert_eq!(log.pop_expired(151), None);
        assert_eq!(log.next_deadline(), Some(152));
    }

    #[test]
    fn an_acknowledged_command_leaves_no_deadline() {
        let (mut log, mut numbers) = log(3);
        for number in [0, 2, 1] {
            let index = numbers.get(number).expect("unacknowledged");
            log.remove(index);
            numbers.remove(number);
        }
        assert!(log.is_empty() && numbers.ring.is_empty());
        assert_eq!(log.next_deadline(), None);
        assert_eq!(numbers.get(1), None);
    }

    #[test]
    fn only_times_of_transmissions_measure_a_round_trip() {
        let (mut log, numbers) = log(1);
        let index = numbers.get(0).expect("unacknowledged");
        log.land(index);
        log.transmit(170, index);
        let sent = log.get(index);
        assert_eq!(sent.round_trip_ms(190, 170), Some(20));
        assert_eq!(sent.round_trip_ms(190, 100), Some(90));
        assert_eq!(sent.round_trip_ms(190, 101), None);
        assert_eq!(sent.round_trip_ms(190, 0), None);
    }

    #[test]
    fn a_command_is_lost_when_later_ones_were_acknowledged_and_it_had_its_time() {
        // Sent at 100, 101, and so on.
        let (mut log, numbers) = log(5);
        let first = numbers.get(0).expect("unacknowledged");
        let acknowledge = |log: &mut SentLog, number: u16| {
            let index = numbers.get(number).expect("unacknowledged");
            let order = log.order(index);
            log.remove(index);
            log.note_acknowledged(order);
        };
        acknowledge(&mut log, 2);
        assert_eq!(log.overtaken(500, 25), None, "two later may have been reordered");
        acknowledge(&mut log, 3);
        assert_eq!(log.overtaken(124, 25), None, "it may still be on its way");
        assert_eq!(log.overtaken(125, 25), Some(first));
        log.land(first);
        log.transmit(125, first);
        assert_eq!(log.overtaken(500, 25), None, "the next may have been reordered");
    }

    #[test]
    fn numbers_wrap() {
        let mut numbers = Numbers::default();
        for (index, number) in [65_534, 65_535, 0, 1].into_iter().enumerate() {
            numbers.push(number, index as u32);
        }
        assert_eq!(numbers.get(0), Some(2));
        numbers.remove(65_535);
        numbers.remove(65_534);
        assert_eq!((numbers.base, numbers.ring.len()), (0, 2));
        assert_eq!(numbers.get(65_534), None);
    }

    #[test]
    fn deadlines_do_not_pile_up() {
        let mut log = SentLog::new();
        let keep = log.insert(0, 0, 0, Content::Control(Body::Ping), u32::MAX);
        for number in 1..10_000 {
            let index = log.insert(0, 0, number, Content::Control(Body::Ping), u32::MAX);
            log.remove(index);
        }
        assert!(log.deadlines.len() < 100 && log.entries.len() < 3);
        assert_eq!(log.get(keep).number, 0);
    }
}
