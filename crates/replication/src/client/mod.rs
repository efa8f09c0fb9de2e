//! The receiving side: replicas, acknowledgements, calls to the server.
//!
//! A packet is read twice: the first time to see that every bit of it is right, the second time to
//! apply it. A packet that is wrong anywhere changes nothing and is not acknowledged, and reading
//! needs no memory that a peer could make grow.

mod check;
mod replica;
mod transfer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use throng_stdx::Instant;

use crate::attach::{AttachError, Attachment, Attachments, ItemView, Outgoing, Ready, check_call};
use crate::bits::{BitReader, write_varint};
use crate::class::{ClassId, Classes, Direction};
use crate::handle::Handle;
use crate::keyed::{Elements, Tally};
use crate::quantise::{Value, WORDS_MAX};
use crate::sent::{Item, PacketOut, SentLog};
use crate::server::DestroyReason;
use crate::tokens::{NAMES, TokenTexts, read_export};
use crate::wire::{AckState, DecodeError, HEADER_BYTES, Header, PACKET_BYTES, bits_of, kind};

use check::Create;
pub use replica::Replica;
use replica::{RecordHead, read_property, skim_delta};
pub(crate) use transfer::PARTS_MAX;
use transfer::{Assembly, PartView};

/// Time after which a packet counts as lost, before a round trip was measured.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time beyond one and a half round trips after which a packet counts as lost: the server answers
/// with its next frame.
const PATIENCE_MIN: Duration = Duration::from_millis(50);
/// Inputs that wait for a packet; the oldest is dropped for the next.
const INPUTS_MAX: usize = 16;

/// Hashes of states in one packet.
pub(crate) const CHECKS_MAX: u64 = 64;

/// Limits of a [`Client`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Highest index of an object; packets that name a higher one are refused. At least the
    /// server's limit of objects. Default 65,536.
    pub objects_max: u32,
    /// Largest packet in bytes, 64 to 65,535. It must be the server's: either side refuses longer
    /// packets. Default 1,200.
    pub packet_bytes_max: usize,
    /// Most texts of tokens that the server may tell. Default 16,384, of 255 bytes at most each.
    pub tokens_max: usize,
    /// Bytes of the longest creation or update that arrives in parts. Default 1 MiB.
    pub transfer_bytes_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { objects_max: 65_536, packet_bytes_max: 1200, tokens_max: 16_384, transfer_bytes_max: 1 << 20 }
    }
}

/// Something that happened to a replica.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ClientEvent {
    /// An object appeared, with all of its state.
    Created(Handle),
    /// Properties of an object changed, or the target of a reference appeared. Changes that were
    /// not taken yet join, up to the next call on the object.
    Updated {
        /// The object.
        handle: Handle,
        /// Properties, one bit each.
        mask: u64,
        /// The server's frame of the newest change.
        frame: u32,
    },
    /// This client owns an object from now on, or no longer.
    OwnerChanged {
        /// The object.
        handle: Handle,
        /// This client is the owner.
        owner: bool,
    },
    /// The parent of an object changed.
    ParentChanged {
        /// The object.
        handle: Handle,
        /// The new parent: see [`Replica::parent`].
        parent: Option<Handle>,
    },
    /// An object went away.
    Destroyed {
        /// The object.
        handle: Handle,
        /// Reason of the end.
        reason: DestroyReason,
        /// Its last state here. It is the server's last one if the object was destroyed with a
        /// flush, or torn off.
        last: Box<Replica>,
    },
    /// An object of the client's map has ended, in this session or before this client joined: it is
    /// not to be there. If it was replicated here, [`Destroyed`](Self::Destroyed) says so apart.
    StartupDestroyed {
        /// Its name.
        name: Arc<str>,
        /// Why.
        reason: DestroyReason,
    },
    /// Elements of a keyed array came, changed or went.
    Elements {
        /// The object.
        handle: Handle,
        /// Number of the array in its class.
        array: usize,
    },
    /// The server called something on an object.
    Attachment(Attachment),
    /// A property was not what the server has, without any packet missing, and is now: an error in
    /// memory or in one of the two programs. See
    /// [`ServerConfig::check_frames`](crate::ServerConfig::check_frames).
    Diverged {
        /// The object.
        handle: Handle,
        /// Number of the property in its class.
        property: usize,
        /// Value of the replica when the difference was seen.
        held: Value,
        /// Value that the server sent instead.
        sent: Value,
    },
}

/// Reason to refuse an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// No packet holds it.
    #[error(
        "an input of {bytes} bytes exceeds the limit of {max}; raise packet_bytes_max on both sides or split it"
    )]
    TooLong {
        /// Length of the input.
        bytes: usize,
        /// Longest possible input.
        max: usize,
    },
}

/// Result of taking a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It was applied.
    Applied,
    /// A newer one had been applied before, so it was discarded.
    Stale,
}

/// A section of a packet: kind, count, offset of the first item.
type Section = (u8, u64, usize);

/// The receiving side of one connection. A clone is a receiver of its own, in the same state.
#[derive(Clone, Debug)]
pub struct Client {
    config: ClientConfig,
    classes: Classes,
    replicas: Vec<Option<Box<Replica>>>,
    count: usize,
    acks: AckState,
    ack_owed: bool,
    server_frame: u32,
    frame: u32,
    events: VecDeque<ClientEvent>,
    /// Count of the events that were taken.
    events_taken: u64,
    /// References to objects, there or not: referrer and property by target.
    referrers: BTreeMap<u32, BTreeSet<(u32, usize)>>,
    resets: BTreeSet<u32>,
    inputs: VecDeque<Vec<u8>>,
    attachments: Attachments,
    log: SentLog,
    /// Time at which the newest packet that was answered had been sent; taken by the next packet.
    answered: Option<Instant>,
    /// Smoothed time until an answer; zero before the first.
    rtt: Duration,
    out: PacketOut,
    /// Sections of the packet being applied: kind, count, offset; and those of the transfer that it
    /// completes.
    sections: Vec<Section>,
    inner: Vec<Section>,
    /// Parts in the packet, what has arrived of the transfer, and all of it if the packet completes
    /// it.
    parts: Vec<PartView>,
    assembly: Assembly,
    joined: Vec<u8>,
    /// Effects of the packet being checked on keyed arrays: (object, array).
    tallies: Vec<((u32, usize), Tally)>,
    /// Texts that the server told, and those that are new in the packet being checked.
    texts: TokenTexts,
    new_tokens: Vec<u32>,
    /// Objects that the packet being checked creates.
    created: Vec<(u32, ClassId)>,
    /// Objects that it says something else of.
    referenced: Vec<u32>,
    decode_errors: u64,
    /// Words of replicas that differ from the server's, until their whole state comes.
    suspects: BTreeMap<u32, (u64, Vec<u64>)>,
    /// Newest clock sample: the server's frame and milliseconds.
    clock: Option<(u32, u32)>,
}

impl Client {
    /// A receiver of objects of `classes`, which are the server's in the same order. A packet size
    /// out of range counts as the nearest possible.
    #[must_use]
    pub fn new(mut config: ClientConfig, classes: &Classes) -> Self {
        config.packet_bytes_max = config.packet_bytes_max.clamp(PACKET_BYTES.0, PACKET_BYTES.1);
        Self {
            attachments: Attachments::new(config.packet_bytes_max),
            config,
            classes: classes.clone(),
            replicas: Vec::new(),
            count: 0,
            acks: AckState::default(),
            ack_owed: false,
            server_frame: 0,
            frame: 0,
            events: VecDeque::new(),
            events_taken: 0,
            referrers: BTreeMap::new(),
            resets: BTreeSet::new(),
            inputs: VecDeque::new(),
            log: SentLog::default(),
            answered: None,
            rtt: Duration::ZERO,
            out: PacketOut::default(),
            sections: Vec::new(),
            inner: Vec::new(),
            parts: Vec::new(),
            assembly: Assembly::default(),
            joined: Vec::new(),
            tallies: Vec::new(),
            texts: TokenTexts::default(),
            new_tokens: Vec::new(),
            created: Vec::new(),
            referenced: Vec::new(),
            decode_errors: 0,
            suspects: BTreeMap::new(),
            clock: None,
        }
    }

    /// Takes a packet from the server.
    ///
    /// # Errors
    /// When any part of it is wrong. Nothing was changed then, and it will not be acknowledged.
    pub fn receive(&mut self, packet: &[u8]) -> Result<Received, DecodeError> {
        let result = self.try_receive(packet);
        self.decode_errors += u64::from(result.is_err());
        result
    }

    fn try_receive(&mut self, packet: &[u8]) -> Result<Received, DecodeError> {
        if packet.len() > self.config.packet_bytes_max {
            return Err(DecodeError::TooLong);
        }
        let (header, body) = Header::parse(packet)?;
        if !self.acks.is_new(header.seq) {
            return Ok(Received::Stale);
        }
        if self.log.newest_seq().wrapping_sub(header.ack) >= 0x8000 {
            return Err(DecodeError::AckUnsent);
        }
        self.check(body)?;
        self.acknowledge(&header);
        self.acks.applied(header.seq);
        self.apply((header.seq, header.frame), body);
        self.ack_owed = true;
        self.server_frame = header.frame;
        Ok(Received::Applied)
    }

    // ---- applying -------------------------------------------------------------------------------

    /// Applies what `check` has seen to be right: tokens, creations, updates, calls and ends, so
    /// that each section finds the objects that it names. What a transfer brought counts among the
    /// updates.
    fn apply(&mut self, (seq, frame): (u16, u32), body: &[u8]) {
        let sections = core::mem::take(&mut self.sections);
        self.apply_kinds(frame, body, &sections, &[kind::TOKENS]);
        self.apply_kinds(frame, body, &sections, &[kind::CREATE]);
        self.apply_kinds(frame, body, &sections, &[kind::UPDATE, kind::SIZED_UPDATE, kind::KEYED]);
        if !self.parts.is_empty() {
            self.apply_parts(frame, body);
        }
        for wanted in [kind::DESTROY, kind::ROLE, kind::ATTACH, kind::TIME] {
            self.apply_kinds(frame, body, &sections, &[wanted]);
        }
        for (section, count, from) in &sections {
            if *section == kind::CHECK {
                self.compare(seq, *count, &body[*from..]);
            }
        }
        self.sections = sections;
    }

    fn apply_kinds(&mut self, frame: u32, body: &[u8], sections: &[Section], wanted: &[u8]) {
        for (section, count, from) in sections.iter().filter(|(section, ..)| wanted.contains(section)) {
            let mut reader = BitReader::new(body);
            // The offset was read from the same bytes.
            let mut result = reader.skip_bytes(*from);
            for _ in 0..*count {
                result = result.and_then(|()| self.apply_item(*section, frame, &mut reader));
                reader.align();
            }
            debug_assert!(result.is_ok(), "a checked packet failed: {result:?}");
        }
    }

    /// Keeps the parts of a packet, or applies the transfer that they complete.
    fn apply_parts(&mut self, frame: u32, body: &[u8]) {
        let (parts, inner) = (core::mem::take(&mut self.parts), core::mem::take(&mut self.inner));
        let joined = core::mem::take(&mut self.joined);
        self.assembly.take(&parts, body);
        if !inner.is_empty() {
            self.assembly.finish();
            let (state, elements) = ([kind::UPDATE, kind::SIZED_UPDATE], [kind::KEYED]);
            for wanted in [&[kind::TOKENS][..], &[kind::CREATE], &state, &elements, &[kind::DESTROY]] {
                self.apply_kinds(frame, &joined, &inner, wanted);
            }
        }
        (self.parts, self.inner) = (parts, inner);
        // A packet that completes nothing needs no memory for it.
        self.joined = Vec::new();
    }

    fn apply_item(&mut self, section: u8, frame: u32, reader: &mut BitReader<'_>) -> Result<(), DecodeError> {
        match section {
            kind::CREATE => {
                let create = self.read_create(reader)?;
                self.apply_create(create, frame, reader)
            }
            kind::UPDATE => {
                let index = self.read_index(reader)?;
                self.apply_record(index, frame, reader)
            }
            kind::SIZED_UPDATE => {
                let len = reader.get(16)? as usize;
                let from = reader.byte_position();
                reader.skip_bytes(len)?;
                let mut record = BitReader::new(&reader.bytes()[from..from + len]);
                let index = self.read_index(&mut record)?;
                if self.replica(index).is_some() {
                    self.apply_record(index, frame, &mut record)
                } else {
                    Ok(())
                }
            }
            kind::TOKENS => {
                let (key, text) = read_export(reader)?;
                self.texts.apply(key, text);
                Ok(())
            }
            kind::DESTROY => {
                let (index, reason, name) = self.read_destroy(reader)?;
                if let Some(name) = self.texts.get(NAMES, name).filter(|_| index == 0) {
                    let name = Arc::clone(name);
                    self.events.push_back(ClientEvent::StartupDestroyed { name, reason });
                    return Ok(());
                }
                self.end(index, reason);
                Ok(())
            }
            kind::ROLE => {
                let (index, owner, parent) = self.read_role(reader)?;
                if let Some(Some(replica)) = self.replicas.get_mut(index as usize) {
                    let before = core::mem::replace(&mut replica.owner, owner);
                    let above = core::mem::replace(&mut replica.parent, parent);
                    self.report_role(index, before, above);
                }
                Ok(())
            }
            kind::KEYED => self.apply_keyed(reader),
            kind::TIME => {
                self.clock = Some((reader.get(32)? as u32, reader.get(32)? as u32));
                Ok(())
            }
            _ => {
                let item = ItemView::read(reader)?;
                let Some(Some(replica)) = self.replicas.get_mut(item.object as usize) else {
                    self.attachments.refuse(None, &item, &mut |_| {});
                    return Ok(());
                };
                let events = &mut self.events;
                let before = events.len();
                let class = &replica.class;
                let deliver = &mut |call: Attachment| {
                    if check_call(class, Direction::ToClients, call.method, &call.bytes, call.reliable)
                        .is_ok()
                    {
                        events.push_back(ClientEvent::Attachment(call));
                    }
                };
                self.attachments.receive(replica.generation, &item, deliver);
                if self.events.len() > before {
                    // Later changes are reported after the call.
                    replica.update_at = None;
                }
                Ok(())
            }
        }
    }

    /// Reports another owner or parent of an object than before.
    fn report_role(&mut self, index: u32, before: bool, above: Handle) {
        let Some(replica) = self.replica(index) else { return };
        let (handle, owner, parent) = (replica.handle(), replica.owner, replica.parent());
        if owner != before {
            self.events.push_back(ClientEvent::OwnerChanged { handle, owner });
        }
        if parent.unwrap_or(Handle::NONE) != above {
            self.events.push_back(ClientEvent::ParentChanged { handle, parent });
        }
    }

    /// The replica goes.
    fn end(&mut self, index: u32, reason: DestroyReason) {
        let Some(last) = self.replicas.get_mut(index as usize).and_then(Option::take) else { return };
        self.count -= 1;
        // An object that may come back keeps the numbers of its calls, and those that wait.
        if !matches!(reason, DestroyReason::OutOfScope | DestroyReason::ProtocolMismatch) {
            self.attachments.target_gone(index);
        }
        self.suspects.remove(&index);
        for (property, target) in &last.links {
            self.unlink(*target, (index, *property));
        }
        self.events.push_back(ClientEvent::Destroyed { handle: last.handle(), reason, last });
    }

    /// Reports a change, in the event of an earlier one that was not taken yet if nothing stands
    /// between.
    fn changed(&mut self, index: u32, mask: u64, frame: u32) {
        let Some(Some(replica)) = self.replicas.get_mut(index as usize) else { return };
        let open = replica.update_at.and_then(|at| at.checked_sub(self.events_taken));
        if let Some(ClientEvent::Updated { mask: joined, frame: newest, .. }) =
            open.and_then(|at| self.events.get_mut(at as usize))
        {
            (*joined, *newest) = (*joined | mask, frame);
            return;
        }
        replica.update_at = Some(self.events_taken + self.events.len() as u64);
        self.events.push_back(ClientEvent::Updated { handle: replica.handle(), mask, frame });
    }

    /// Notes which objects the references of `mask` name now.
    fn link(&mut self, index: u32, mask: u64) {
        let Some(Some(replica)) = self.replicas.get_mut(index as usize) else { return };
        let mask = mask & replica.class.handle_mask;
        if mask == 0 {
            return;
        }
        let links = core::mem::take(&mut replica.links);
        let (old, mut kept): (BTreeSet<_>, BTreeSet<_>) =
            links.into_iter().partition(|(property, _)| mask >> property & 1 != 0);
        for property in bits_of(mask) {
            let prop = &replica.class.props[property];
            let mut add = |word: u64| {
                if word as u32 != 0 {
                    kept.insert((property, word as u32));
                }
            };
            if prop.codec.is_heap() {
                prop.codec.each_word(&replica.heap[prop.heap].0, &mut add);
            } else {
                add(prop.words(&replica.words)[0]);
            }
        }
        for (property, target) in kept.iter().filter(|(property, _)| mask >> property & 1 != 0) {
            self.referrers.entry(*target).or_default().insert((index, *property));
        }
        let gone: Vec<_> = old.difference(&kept).copied().collect();
        replica.links = kept;
        for (property, target) in gone {
            self.unlink(target, (index, property));
        }
    }

    fn unlink(&mut self, target: u32, referrer: (u32, usize)) {
        if let Some(referrers) = self.referrers.get_mut(&target) {
            referrers.remove(&referrer);
            if referrers.is_empty() {
                self.referrers.remove(&target);
            }
        }
    }

    /// The object appeared: references to it name something now.
    fn resolved(&mut self, target: Handle, frame: u32) {
        let Some(referrers) = self.referrers.get(&target.index()) else { return };
        for (referrer, property) in referrers.clone() {
            let value = self.replica(referrer).and_then(|replica| replica.value(property));
            if value.is_some_and(|value| names(&value, target)) {
                self.changed(referrer, 1 << property, frame);
            }
        }
    }

    fn apply_create(
        &mut self,
        create: Create,
        frame: u32,
        reader: &mut BitReader<'_>,
    ) -> Result<(), DecodeError> {
        let at = create.index as usize;
        if self.replicas.len() <= at {
            self.replicas.resize_with(at + 1, || None);
        }
        let same = self.replicas[at]
            .as_ref()
            .is_some_and(|old| old.generation == create.generation && Arc::ptr_eq(&old.class, &create.class));
        if !same {
            self.end(create.index, DestroyReason::Destroyed);
            self.attachments.target_begins(Handle::from_parts(create.index, create.generation));
            self.count += 1;
            self.replicas[at] = Some(Box::new(Replica {
                words: create.class.defaults.clone(),
                heap: create
                    .class
                    .heap_defaults
                    .iter()
                    .map(|(bytes, bits)| (bytes.to_vec(), *bits))
                    .collect(),
                index: create.index,
                generation: create.generation,
                frame,
                parent: create.parent,
                owner: create.owner,
                archetype: None,
                startup: false,
                update_at: None,
                missing: 0,
                links: BTreeSet::new(),
                keyed: vec![Elements::new(); create.class.keyed.len()],
                history: Vec::new(),
                states: Vec::new(),
                class: create.class,
            }));
        }
        let Some(replica) = &mut self.replicas[at] else { return Ok(()) };
        if same {
            replica.reset();
        }
        let (owned, above) = (replica.owner, replica.parent);
        (replica.update_at, replica.missing) = (None, 0);
        self.suspects.remove(&create.index);
        (replica.parent, replica.owner, replica.frame) = (create.parent, create.owner, frame);
        replica.archetype = create.name.and_then(|id| self.texts.get(NAMES, id).cloned());
        replica.startup = create.startup;
        for property in bits_of(create.mask) {
            read_property(replica, property, None, reader)?;
        }
        replica.remember(frame);
        let handle = replica.handle();
        self.events.push_back(ClientEvent::Created(handle));
        // A creation that is sent again may be the first to tell of another owner or parent.
        self.report_role(create.index, owned, above);
        self.link(create.index, u64::MAX);
        self.resolved(handle, frame);
        Ok(())
    }

    fn apply_record(
        &mut self,
        index: u32,
        frame: u32,
        reader: &mut BitReader<'_>,
    ) -> Result<(), DecodeError> {
        let Some(Some(replica)) = self.replicas.get_mut(index as usize) else { return Ok(()) };
        let class = Arc::clone(&replica.class);
        let head = RecordHead::read(&class, reader)?;
        let base = match head.age {
            None => None,
            Some(age) => match replica.state_at(frame.wrapping_sub(age)) {
                Some(state) => Some((state.to_vec(), age)),
                None => {
                    // The state that the record builds on is not there: ask for everything.
                    self.resets.insert(index);
                    self.ack_owed = true;
                    replica.missing |= head.mask;
                    let mut sink = Vec::new();
                    let mut words = [0; WORDS_MAX];
                    for at in bits_of(head.mask) {
                        skim_delta(&class, at, reader, &mut words, &mut sink)?;
                    }
                    return Ok(());
                }
            },
        };
        for property in bits_of(head.mask) {
            let base = base.as_ref().map(|(state, age)| (&state[..], *age));
            read_property(replica, property, base, reader)?;
        }
        replica.missing &= !head.mask;
        replica.frame = frame;
        // A state with gaps is no base of differences.
        if replica.missing == 0 {
            replica.remember(frame);
        }
        if let Some((wanted, _)) = self.suspects.get(&index)
            && head.mask & wanted == *wanted
            && let Some((wanted, held)) = self.suspects.remove(&index)
        {
            for property in bits_of(wanted) {
                let prop = &class.props[property];
                let (before, now) = (prop.words(&held), prop.words(&replica.words));
                if !prop.codec.is_heap() && before != now {
                    let (held, sent) = (prop.codec.dequantise(before), prop.codec.dequantise(now));
                    let handle = replica.handle();
                    self.events.push_back(ClientEvent::Diverged { handle, property, held, sent });
                }
            }
        }
        self.link(index, head.mask);
        if head.mask != 0 {
            self.changed(index, head.mask, frame);
        }
        Ok(())
    }

    fn acknowledge(&mut self, header: &Header) {
        while let Some(packet) = self.log.front() {
            let age = header.ack.wrapping_sub(packet.seq);
            if age >= 0x8000 {
                break;
            }
            // Packets without contents are acknowledged by chance, whenever the server speaks.
            if age == 0 && packet.is_laden() {
                self.answered = Some(packet.at);
            }
            self.settle(age == 0 || age <= 64 && header.ack_bits >> (age - 1) & 1 != 0);
        }
    }

    /// Gives up packets that should have been answered by now. Nothing else brings their contents
    /// back when both sides have nothing more to say.
    fn expire(&mut self, now: Instant) {
        if let Some(at) = self.answered.take() {
            let sample = now.since(at);
            self.rtt = if self.rtt.is_zero() { sample } else { self.rtt / 8 * 7 + sample / 8 };
        }
        let patience = if self.rtt.is_zero() { PATIENCE } else { self.rtt * 3 / 2 + PATIENCE_MIN };
        while self.log.front().is_some_and(|packet| now.since(packet.at) > patience) {
            self.settle(false);
        }
    }

    /// Takes the oldest packet in flight, whose contents are sent again unless it was delivered.
    fn settle(&mut self, delivered: bool) {
        let mut items = Vec::new();
        self.log.pop_delivered(&mut items);
        for item in items {
            match item {
                Item::Attach { object, sequence } if delivered => {
                    self.attachments.delivered(object, sequence);
                }
                Item::Attach { object, sequence } => self.attachments.lost(object, sequence),
                Item::Reset { object } if !delivered && self.replica(object).is_some() => {
                    self.resets.insert(object);
                }
                _ => {}
            }
        }
    }

    // ---- sending --------------------------------------------------------------------------------

    /// The packet that this client sends now, if it has anything to say: acknowledgements, calls,
    /// inputs. Call it once in each of the client's own frames.
    pub fn poll_packet(&mut self, now: Instant) -> Option<&[u8]> {
        self.expire(now);
        // Calls on objects that are out of scope wait until they are back.
        let waits = |object: u32| self.replica(object).is_some();
        if !self.ack_owed
            && self.resets.is_empty()
            && self.inputs.is_empty()
            && (self.attachments.is_idle() || !self.attachments.objects().any(waits))
        {
            return None;
        }
        self.frame = self.frame.wrapping_add(1);
        let max = self.config.packet_bytes_max;
        self.out.begin((max, max, 0), &self.acks, self.frame, now);
        let mut record = Vec::new();
        let replicas = &self.replicas;
        let (log, out) = (&mut self.log, &mut self.out);
        let calling: Vec<u32> = self.attachments.objects().collect();
        for object in calling {
            let known = replicas.get(object as usize).is_some_and(Option::is_some);
            let ready = if known { Ready::Yes } else { Ready::OutOfScope };
            self.attachments.write(object, ready, |outgoing: Outgoing<'_>| {
                record.clear();
                outgoing.write(&mut record);
                if !out.reserve(log, kind::ATTACH, record.len()) {
                    return false;
                }
                out.put(&record);
                if let Some(sequence) = outgoing.sequence {
                    log.push_item(Item::Attach { object: outgoing.object, sequence });
                }
                true
            });
        }
        // Sections with a length have one item list each.
        while let Some(input) = self.inputs.front() {
            if !out.reserve_skippable(log, kind::INPUT, 1, input) {
                break;
            }
            self.inputs.pop_front();
        }
        if !self.resets.is_empty() {
            record.clear();
            let mut count = 0;
            for index in self.resets.iter().take(64) {
                write_varint(&mut record, u64::from(*index));
                count += 1;
            }
            if out.reserve_skippable(log, kind::BASELINE_RESET, count, &record) {
                for _ in 0..count {
                    if let Some(object) = self.resets.pop_first() {
                        log.push_item(Item::Reset { object });
                    }
                }
            }
        }
        out.acknowledge(log);
        out.close(log);
        self.ack_owed = false;
        let first = *self.out.ends().first()?;
        Some(&self.out.bytes()[..first])
    }

    /// Queues bytes for the game on the server: at most once, in order. The oldest of 16 that wait
    /// is dropped for the next.
    ///
    /// # Errors
    /// [`InputError::TooLong`] when no packet holds the bytes.
    pub fn send_input(&mut self, bytes: &[u8]) -> Result<(), InputError> {
        // Kind, count and length of the section.
        let max = self.config.packet_bytes_max.saturating_sub(HEADER_BYTES + 4);
        if bytes.len() > max {
            return Err(InputError::TooLong { bytes: bytes.len(), max });
        }
        if self.inputs.len() == INPUTS_MAX {
            self.inputs.pop_front();
        }
        self.inputs.push_back(bytes.to_vec());
        Ok(())
    }

    /// Queues a call on an object that this client owns, or whose class is
    /// [callable](crate::ClassBuilder::callable). The server drops a call that arrives after the
    /// object ended or changed its owner. Order, limits and repetition are those of
    /// [`Server::attach`](crate::Server::attach), with one packet for every call of
    /// [`poll_packet`](Self::poll_packet).
    ///
    /// # Errors
    /// When there is no such object or no right to call on it, its class describes its calls and
    /// this is none of them, the bytes are too many, or the queue is full.
    pub fn attach(
        &mut self,
        object: Handle,
        method: u64,
        bytes: &[u8],
        reliable: bool,
    ) -> Result<(), AttachError> {
        let replica = self.get(object).ok_or(AttachError::UnknownObject)?;
        if !replica.owner && !replica.class.is_callable(method) {
            return Err(AttachError::NoRight);
        }
        check_call(&replica.class, Direction::ToServer, method, bytes, reliable)?;
        self.attachments.push(object, method, &Arc::from(bytes), reliable)
    }

    // ---- reading --------------------------------------------------------------------------------

    /// The replica of an index.
    #[must_use]
    pub fn replica(&self, index: u32) -> Option<&Replica> {
        self.replicas.get(index as usize)?.as_deref()
    }

    /// The replica of an object; `None` for an earlier user of the same index too.
    #[must_use]
    pub fn get(&self, handle: Handle) -> Option<&Replica> {
        self.replica(handle.index()).filter(|replica| replica.generation == handle.generation())
    }

    pub(crate) fn class(&self, id: ClassId) -> Option<&crate::Class> {
        self.classes.get(id).map(|class| &**class)
    }

    /// The class of a struct that was [added](Classes::add).
    #[must_use]
    pub fn id_of<T: crate::Replicate>(&self) -> Option<ClassId> {
        self.classes.id_of::<T>()
    }

    /// All replicas by index.
    pub fn replicas(&self) -> impl Iterator<Item = (u32, &Replica)> {
        self.replicas.iter().enumerate().filter_map(|(at, replica)| Some((at as u32, replica.as_deref()?)))
    }

    /// Count of replicas.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// There are no replicas.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The object that a reference names here: `None` while the target is not (or no longer) on
    /// this receiver.
    #[must_use]
    pub fn resolve(&self, reference: Handle) -> Option<Handle> {
        self.get(reference).map(Replica::handle)
    }

    /// The oldest event not taken yet, in the order of packets; within a packet creations, changes,
    /// ends, owners and parents, calls.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        let event = self.events.pop_front()?;
        self.events_taken += 1;
        Some(event)
    }

    /// The text of a [`Value::Token`] of a table, if the server told it. It does in the packet that
    /// first uses the number.
    #[must_use]
    pub fn token(&self, table: u8, id: u32) -> Option<&str> {
        self.texts.get(table, id).map(|text| &**text)
    }

    /// The server's frame of the newest packet that was applied.
    #[must_use]
    pub fn server_frame(&self) -> u32 {
        self.server_frame
    }

    /// The newest sample of the server's clock, if it sends some: a frame, and milliseconds of that
    /// frame, wrapping.
    #[must_use]
    pub fn clock(&self) -> Option<(u32, u32)> {
        self.clock
    }

    /// Packets that were refused.
    #[must_use]
    pub fn decode_errors(&self) -> u64 {
        self.decode_errors
    }

    /// Forgets all states that differences build on, as a receiver short of memory may; the server
    /// is asked for whole states when it uses one. Until they come, calls may overtake state.
    pub fn forget_history(&mut self) {
        for replica in self.replicas.iter_mut().flatten() {
            replica.history.clear();
        }
    }
}

/// True if the value is or contains a reference to `target`.
fn names(value: &Value, target: Handle) -> bool {
    match value {
        Value::Handle(handle) => *handle == target,
        Value::List(values) | Value::Enum(_, values) => values.iter().any(|value| names(value, target)),
        Value::Option(Some(value)) => names(value, target),
        _ => false,
    }
}
