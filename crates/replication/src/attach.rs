//! Attachments: calls and events that travel with an object.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::bits::{BitReader, write_varint};
use crate::class::{Class, Direction};
use crate::handle::Handle;
use crate::wire::{DecodeError, HEADER_BYTES};

/// Unreliable attachments that wait for one object; the oldest is dropped for the next.
const UNRELIABLE_MAX: usize = 16;
/// Parts of reliable attachments in flight for one object.
const WINDOW: usize = 128;
/// Bytes of reliable attachments that wait on one connection.
const RELIABLE_BYTES_MAX: usize = 256 * 1024;
/// Bytes of reliable attachments that came in part or before their turn, on one connection, each
/// part counted with [`CALL_BYTES`] more. Everything that a peer may have under way is less, in the
/// smallest packets too: there a part has 22 bytes.
const INBOX_BYTES_MAX: usize = 5 * RELIABLE_BYTES_MAX;
/// Bytes of one reliable attachment.
const ATTACHMENT_BYTES_MAX: usize = 64 * 1024;
/// Bytes of one part of a reliable attachment at most: it finds room in packets that others have
/// begun.
const PART_BYTES: usize = 512;
/// Bytes of an unreliable attachment at most.
const UNRELIABLE_BYTES_MAX: usize = 1024;
/// Bytes of an item around its arguments at most.
const ITEM_BYTES: usize = 24;

const RELIABLE: u8 = 1;
const FIRST: u8 = 2;
const LAST: u8 = 4;
/// The sender has nothing in flight before this one: a receiver that waits for an earlier one waits
/// in vain.
const OLDEST: u8 = 8;

/// Maximum number of objects whose refused calls are tracked per connection. More are not needed:
/// a right is seldom granted while calls are in flight.
const REFUSED_MAX: usize = 16;

/// Bytes that a reliable attachment counts beside its arguments, so that calls without arguments
/// are bounded too.
const CALL_BYTES: usize = 64;

/// Why an attachment was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Longer than its kind allows.
    #[error("an attachment of {bytes} bytes exceeds the limit of {max}")]
    TooLong {
        /// The requested value.
        bytes: usize,
        /// The most possible.
        max: usize,
    },
    /// The connection's queue of reliable attachments is full; the connection should be closed.
    #[error("more than {RELIABLE_BYTES_MAX} bytes of reliable attachments wait for a connection; close it")]
    Overflow,
    /// No such object.
    #[error("the object does not exist")]
    UnknownObject,
    /// The client neither owns the object nor is its class
    /// [callable](crate::ClassBuilder::callable).
    #[error(
        "the client does not own the object and its class is not callable; own it or declare the class callable"
    )]
    NoRight,
    /// The call goes the other way, or its class does not describe it.
    #[error("the call has the opposite direction, or the object's class does not declare it")]
    Direction,
    /// An argument does not fit.
    #[error("argument: {0}")]
    Argument(crate::quantise::ValueMismatch),
    /// The class declares the call reliable, or unreliable, and it was to be sent otherwise.
    #[error("the object's class declares the call with the other reliability")]
    Reliability,
    /// The bytes are not the arguments that the class declares: a zero bit, then the fields.
    #[error("the bytes are not the arguments that the object's class declares for the call")]
    Arguments,
    /// No such connection.
    #[error("the connection does not exist")]
    UnknownConnection,
}

/// Checks a call against its class: one that describes none takes any. The bytes must be the
/// arguments and nothing else.
pub(crate) fn check_call(
    class: &Class,
    direction: Direction,
    method: u64,
    bytes: &[u8],
    reliable: bool,
) -> Result<(), AttachError> {
    if class.calls.is_empty() {
        return Ok(());
    }
    let call = usize::try_from(method).ok().and_then(|method| class.calls.get(method));
    let call = call.filter(|call| call.direction == direction).ok_or(AttachError::Direction)?;
    if call.reliable != reliable {
        return Err(AttachError::Reliability);
    }
    let mut copy = Vec::new();
    let whole = call.codec.copy_heap(&mut BitReader::new(bytes), &mut copy);
    if whole.is_ok() && copy == bytes { Ok(()) } else { Err(AttachError::Arguments) }
}

/// An attachment that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Object of the call.
    pub object: Handle,
    /// Number of the call, as the two sides agreed.
    pub method: u64,
    /// Arguments.
    pub bytes: Vec<u8>,
    /// In order and exactly once, or at most once.
    pub reliable: bool,
}

/// One item to be written.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) object: u32,
    pub(crate) sequence: Option<u8>,
    flags: u8,
    method: u64,
    bytes: &'a [u8],
}

impl Outgoing<'_> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write_varint(out, u64::from(self.object));
        out.push(self.flags);
        out.extend(self.sequence);
        write_varint(out, self.method);
        write_varint(out, self.bytes.len() as u64);
        out.extend_from_slice(self.bytes);
    }
}

#[derive(Clone, Debug)]
struct Part {
    method: u64,
    bytes: Arc<[u8]>,
    from: usize,
    to: usize,
    state: State,
}

impl Part {
    /// The bytes `range` of a call in parts of `longest` bytes at most, one at least.
    fn split(
        method: u64,
        bytes: &Arc<[u8]>,
        range: Range<usize>,
        longest: usize,
    ) -> impl Iterator<Item = Self> {
        (0..range.len().div_ceil(longest).max(1)).map(move |at| {
            let from = range.start + at * longest;
            let to = range.end.min(from + longest);
            Self { method, bytes: Arc::clone(bytes), from, to, state: State::Fresh }
        })
    }

    fn waits(&self) -> bool {
        matches!(self.state, State::Fresh | State::Lost)
    }

    fn is_last(&self) -> bool {
        self.to == self.bytes.len()
    }

    /// Bytes that the part counts against the limit of its connection: the last one those of the
    /// whole, because the receiver keeps the others until it has come.
    fn weight(&self) -> usize {
        if self.is_last() { self.bytes.len() + CALL_BYTES } else { 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never sent: its number may still become that of another part.
    Fresh,
    Lost,
    InFlight,
    Delivered,
}

/// Both directions of one object. It outlives the object's absence from the receiver: numbers go on
/// where they were when the object of this generation comes back.
#[derive(Clone, Debug, Default)]
struct Queue {
    generation: u32,
    unreliable: VecDeque<(u64, Arc<[u8]>)>,
    reliable: VecDeque<Part>,
    /// Sequence of the first of `reliable`.
    first: u8,
    inbox: Inbox,
}

impl Queue {
    /// Something is not written, among the first so many parts.
    fn waits(&self, parts: usize) -> bool {
        !self.unreliable.is_empty() || self.reliable.iter().take(parts).any(Part::waits)
    }

    /// Offers what waits to `send`, which returns false when there is no room.
    fn write(&mut self, object: u32, mut send: impl FnMut(Outgoing<'_>) -> bool) {
        let first = self.first;
        for (at, part) in self.reliable.iter_mut().take(WINDOW).enumerate() {
            if !part.waits() {
                continue;
            }
            let flags = RELIABLE
                | if at == 0 { OLDEST } else { 0 }
                | if part.from == 0 { FIRST } else { 0 }
                | if part.is_last() { LAST } else { 0 };
            let outgoing = Outgoing {
                object,
                sequence: Some(first.wrapping_add(at as u8)),
                flags,
                method: part.method,
                bytes: &part.bytes[part.from..part.to],
            };
            if !send(outgoing) {
                return;
            }
            part.state = State::InFlight;
        }
        while let Some((method, bytes)) = self.unreliable.front() {
            let outgoing = Outgoing { object, sequence: None, flags: FIRST | LAST, method: *method, bytes };
            if !send(outgoing) {
                return;
            }
            self.unreliable.pop_front();
        }
    }
}

/// Both directions of one connection. Empty queues cost nothing.
#[derive(Clone, Debug)]
pub(crate) struct Attachments {
    queues: BTreeMap<u32, Queue>,
    /// Objects for which something is not written: most queues only keep their numbers.
    waiting: BTreeSet<u32>,
    reliable_bytes: usize,
    /// Bytes that the inboxes hold.
    inbox_bytes: usize,
    /// Bytes of arguments that fit a packet beside its header.
    item_bytes: usize,
    /// Bytes of an unreliable attachment at most.
    unreliable_max: usize,
    /// Progress of the latest objects of which nothing was taken yet.
    refused: VecDeque<(Handle, Inbox)>,
    pub(crate) dropped_total: u64,
}

impl Attachments {
    /// For packets of so many bytes.
    pub(crate) fn new(packet_bytes_max: usize) -> Self {
        let item_bytes = item_bytes(packet_bytes_max);
        Self {
            queues: BTreeMap::new(),
            waiting: BTreeSet::new(),
            reliable_bytes: 0,
            inbox_bytes: 0,
            item_bytes,
            unreliable_max: UNRELIABLE_BYTES_MAX.min(item_bytes),
            refused: VecDeque::new(),
            dropped_total: 0,
        }
    }

    /// Packets have at most so many bytes from now on. What was never sent of reliable attachments
    /// is split anew.
    pub(crate) fn set_packet_bytes(&mut self, packet_bytes_max: usize) {
        self.item_bytes = item_bytes(packet_bytes_max);
        let longest = PART_BYTES.min(self.item_bytes);
        for parts in self.queues.values_mut().map(|queue| &mut queue.reliable) {
            let sent = parts.iter().take_while(|part| part.state != State::Fresh).count();
            if parts.range(sent..).any(|part| part.to - part.from > longest) {
                for part in parts.split_off(sent) {
                    parts.extend(Part::split(part.method, &part.bytes, part.from..part.to, longest));
                }
            }
        }
    }

    /// Nothing waits to be written.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Objects for which something waits, ascending.
    pub(crate) fn objects(&self) -> impl Iterator<Item = u32> + '_ {
        let waits = |object: &u32| self.queues.get(object).is_some_and(|queue| queue.waits(WINDOW));
        self.waiting.iter().copied().filter(waits)
    }

    /// Upper bound of the bytes of the first item that waits for `object`.
    pub(crate) fn first_bytes(&self, object: u32) -> usize {
        let Some(queue) = self.queues.get(&object) else { return 0 };
        let part = queue.reliable.iter().find(|part| part.waits());
        let bytes = match (part, queue.unreliable.front()) {
            (Some(part), _) => part.to - part.from,
            (None, Some((_, bytes))) => bytes.len(),
            (None, None) => 0,
        };
        bytes + ITEM_BYTES
    }

    pub(crate) fn push(
        &mut self,
        object: Handle,
        method: u64,
        bytes: &Arc<[u8]>,
        reliable: bool,
    ) -> Result<(), AttachError> {
        let max = if reliable { ATTACHMENT_BYTES_MAX } else { self.unreliable_max };
        if bytes.len() > max {
            return Err(AttachError::TooLong { bytes: bytes.len(), max });
        }
        if reliable && self.reliable_bytes + bytes.len() + CALL_BYTES > RELIABLE_BYTES_MAX {
            return Err(AttachError::Overflow);
        }
        let queue = queue_of(&mut self.queues, object);
        self.waiting.insert(object.index());
        if !reliable {
            if queue.unreliable.len() == UNRELIABLE_MAX {
                queue.unreliable.pop_front();
                self.dropped_total += 1;
            }
            queue.unreliable.push_back((method, Arc::clone(bytes)));
            return Ok(());
        }
        self.reliable_bytes += bytes.len() + CALL_BYTES;
        let longest = PART_BYTES.min(self.item_bytes);
        queue.reliable.extend(Part::split(method, bytes, 0..bytes.len(), longest));
        Ok(())
    }

    /// Offers what waits for `object` to `send`, which returns false when there is no room. Out of
    /// scope it keeps its reliable attachments and loses the others; unreliable ones that no packet
    /// holds any more are lost in any case.
    pub(crate) fn write(&mut self, object: u32, ready: Ready, send: impl FnMut(Outgoing<'_>) -> bool) {
        let Some(queue) = self.queues.get_mut(&object) else { return };
        let waiting = queue.unreliable.len();
        queue.unreliable.retain(|(_, bytes)| bytes.len() <= self.item_bytes);
        self.dropped_total += (waiting - queue.unreliable.len()) as u64;
        match ready {
            Ready::Yes => queue.write(object, send),
            Ready::Later => {}
            Ready::OutOfScope => {
                self.dropped_total += queue.unreliable.len() as u64;
                queue.unreliable.clear();
            }
        }
        if !queue.waits(usize::MAX) {
            self.waiting.remove(&object);
        }
    }

    fn part(&mut self, object: u32, sequence: u8) -> Option<&mut Part> {
        let queue = self.queues.get_mut(&object)?;
        let at = usize::from(sequence.wrapping_sub(queue.first));
        queue.reliable.get_mut(at).filter(|part| part.state == State::InFlight)
    }

    pub(crate) fn delivered(&mut self, object: u32, sequence: u8) {
        if let Some(part) = self.part(object, sequence) {
            part.state = State::Delivered;
        }
        let Some(queue) = self.queues.get_mut(&object) else { return };
        while queue.reliable.front().is_some_and(|part| part.state == State::Delivered) {
            if let Some(part) = queue.reliable.pop_front() {
                self.reliable_bytes -= part.weight();
            }
            queue.first = queue.first.wrapping_add(1);
        }
    }

    pub(crate) fn lost(&mut self, object: u32, sequence: u8) {
        if let Some(part) = self.part(object, sequence) {
            part.state = State::Lost;
            self.waiting.insert(object);
        }
    }

    /// The object is gone; returns how many reliable attachments went with it.
    pub(crate) fn target_gone(&mut self, object: u32) -> usize {
        let Some(queue) = self.queues.remove(&object) else { return 0 };
        self.waiting.remove(&object);
        self.reliable_bytes -= queue.reliable.iter().map(Part::weight).sum::<usize>();
        self.inbox_bytes -= queue.inbox.bytes();
        // The first part of the queue has not been confirmed, and calls come in order: what was
        // confirmed behind it may still wait for it on the receiver.
        queue.reliable.iter().filter(|part| part.is_last()).count()
    }

    /// The inboxes have room for a packet of so many bytes. They always have for those of a peer
    /// that keeps to its own limit.
    pub(crate) fn has_room(&self, packet_bytes: usize) -> bool {
        self.inbox_bytes + packet_bytes <= INBOX_BYTES_MAX
    }

    /// Takes an item for the object of this generation; complete attachments go to `deliver`. One
    /// that grows beyond the limit is dropped.
    pub(crate) fn receive(
        &mut self,
        generation: u32,
        item: &ItemView<'_>,
        deliver: &mut dyn FnMut(Attachment),
    ) {
        let object = Handle::from_parts(item.object, generation);
        if item.sequence.is_none() {
            let bytes = item.bytes.to_vec();
            deliver(Attachment { object, method: item.method, bytes, reliable: false });
            return;
        }
        let refused = self.take_refused(object);
        let inbox = &mut queue_of(&mut self.queues, object).inbox;
        self.inbox_bytes -= inbox.bytes();
        *inbox = refused.unwrap_or_else(|| core::mem::take(inbox));
        inbox.receive(object, item, true, deliver);
        self.inbox_bytes += inbox.bytes();
    }

    /// Passes over an item that its sender had no right to send: later ones do not wait for it, and
    /// those that did so far go to `released`: their sender has lost the right meanwhile. Keeps
    /// nothing for an object of which nothing was taken before, but how far the latest few
    /// are; nothing at all without a generation.
    pub(crate) fn refuse(
        &mut self,
        generation: Option<u32>,
        item: &ItemView<'_>,
        released: &mut dyn FnMut(Attachment),
    ) {
        let known = self.queues.get_mut(&item.object).filter(|queue| !queue.inbox.is_new());
        if let Some(queue) = known {
            let object = Handle::from_parts(item.object, queue.generation);
            self.inbox_bytes -= queue.inbox.bytes();
            queue.inbox.receive(object, item, false, released);
            self.inbox_bytes += queue.inbox.bytes();
        } else if let Some(generation) = generation {
            let object = Handle::from_parts(item.object, generation);
            let mut inbox = self.take_refused(object).unwrap_or_default();
            inbox.receive(object, item, false, released);
            if self.refused.len() == REFUSED_MAX {
                self.refused.pop_front();
            }
            self.refused.push_back((object, inbox));
        }
    }

    fn take_refused(&mut self, object: Handle) -> Option<Inbox> {
        let at = self.refused.iter().position(|(of, _)| *of == object)?;
        self.refused.remove(at).map(|(_, inbox)| inbox)
    }

    /// The receiver has an object of this generation from now on: what belongs to another one is
    /// dropped.
    pub(crate) fn target_begins(&mut self, object: Handle) {
        if self.queues.get(&object.index()).is_some_and(|queue| queue.generation != object.generation()) {
            self.target_gone(object.index());
        }
    }
}

/// Bytes of arguments that fit a packet of so many bytes beside its header.
fn item_bytes(packet_bytes_max: usize) -> usize {
    packet_bytes_max.saturating_sub(HEADER_BYTES + 2 + ITEM_BYTES).max(1)
}

/// The queue of an object, without anything of an earlier generation.
fn queue_of(queues: &mut BTreeMap<u32, Queue>, object: Handle) -> &mut Queue {
    let generation = object.generation();
    queues.entry(object.index()).or_insert_with(|| Queue { generation, ..Queue::default() })
}

/// Readiness of an object's attachments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Yes,
    /// Its state has to go first.
    Later,
    OutOfScope,
}

/// One item as it arrived, checked for form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemView<'a> {
    pub(crate) object: u32,
    flags: u8,
    sequence: Option<u8>,
    pub(crate) method: u64,
    bytes: &'a [u8],
}

impl<'a> ItemView<'a> {
    pub(crate) fn read(reader: &mut BitReader<'a>) -> Result<Self, DecodeError> {
        let object = u32::try_from(reader.get_varint()?).map_err(|_| DecodeError::Index)?;
        let flags = reader.get(8)? as u8;
        if flags > 15 {
            return Err(DecodeError::Value);
        }
        let sequence = if flags & RELIABLE != 0 { Some(reader.get(8)? as u8) } else { None };
        if sequence.is_none() && flags != FIRST | LAST {
            return Err(DecodeError::Value);
        }
        let method = reader.get_varint()?;
        let len = usize::try_from(reader.get_varint()?).map_err(|_| DecodeError::TooLong)?;
        let from = reader.byte_position();
        reader.skip_bytes(len)?;
        Ok(Self { object, flags, sequence, method, bytes: &reader.bytes()[from..from + len] })
    }
}

/// Flags, method and bytes of a part that arrived.
type ParkedPart = (u8, u64, Vec<u8>);

/// Bytes that a parked part counts.
fn weight(part: &Option<ParkedPart>) -> usize {
    CALL_BYTES + part.as_ref().map_or(0, |(.., bytes)| bytes.len())
}

#[derive(Clone, Debug, Default)]
struct Inbox {
    /// Next sequence to deliver; none before the first that says that nothing comes before it.
    expected: Option<u8>,
    /// Parts that came before their turn, by sequence; none for those that are passed over.
    parked: BTreeMap<u8, Option<ParkedPart>>,
    parked_bytes: usize,
    partial: Vec<u8>,
    /// The attachment being put together lacks its beginning or is beyond the limit; the rest of it
    /// is dropped.
    broken: bool,
}

impl Inbox {
    fn is_new(&self) -> bool {
        self.expected.is_none() && self.parked.is_empty()
    }

    /// Bytes that wait for others.
    fn bytes(&self) -> usize {
        self.partial.len() + self.parked_bytes
    }

    /// Takes a part that came before its turn; none if it is missing or passed over.
    fn unpark(&mut self, sequence: u8) -> Option<Option<ParkedPart>> {
        let part = self.parked.remove(&sequence)?;
        self.parked_bytes -= weight(&part);
        Some(part)
    }

    fn receive(
        &mut self,
        object: Handle,
        item: &ItemView<'_>,
        admitted: bool,
        deliver: &mut dyn FnMut(Attachment),
    ) {
        let Some(sequence) = item.sequence else { return };
        let ahead = sequence.wrapping_sub(self.expected.unwrap_or(sequence));
        if usize::from(ahead) >= WINDOW {
            // Received before: the acknowledgement was lost.
            return;
        }
        if item.flags & OLDEST != 0 && (ahead > 0 || self.expected.is_none()) {
            // The sender knows everything before it as settled: what is missing was refused.
            let mut before = self.expected.unwrap_or(sequence.wrapping_sub(WINDOW as u8 - 1));
            while before != sequence {
                let part = self.unpark(before).flatten();
                self.take(object, part, deliver);
                before = before.wrapping_add(1);
            }
            self.expected = Some(sequence);
        }
        if self.parked.len() < WINDOW && !self.parked.contains_key(&sequence) {
            let part = admitted.then(|| (item.flags, item.method, item.bytes.to_vec()));
            self.parked_bytes += weight(&part);
            self.parked.insert(sequence, part);
        }
        while let Some(expected) = self.expected
            && let Some(part) = self.unpark(expected)
        {
            self.expected = Some(expected.wrapping_add(1));
            self.take(object, part, deliver);
        }
    }

    /// Appends the next part; none if it is missing.
    fn take(&mut self, object: Handle, part: Option<ParkedPart>, deliver: &mut dyn FnMut(Attachment)) {
        let Some((flags, method, bytes)) = part else {
            self.broken = true;
            self.partial = Vec::new();
            return;
        };
        if flags & FIRST != 0 {
            self.partial.clear();
            self.broken = false;
        }
        self.broken |= self.partial.len() + bytes.len() > ATTACHMENT_BYTES_MAX;
        if self.broken {
            self.partial = Vec::new();
            return;
        }
        self.partial.extend_from_slice(&bytes);
        if flags & LAST != 0 {
            let bytes = core::mem::take(&mut self.partial);
            deliver(Attachment { object, method, bytes, reliable: true });
        }
    }
}
