//! The connection stage: what one receiver gets in a frame (spec §5.2).
//!
//! A pair (connection, object) that is in scope, known to the receiver and up to date is two set bits and nothing else.
//! Changed objects of such pairs take the fast way: runs of common records are copied as they lie. Everything out of
//! the ordinary (creation, loss, differences, conditions, a spent budget) takes the slow way through `pending`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;

use crate::attach::{Attachments, Outgoing, Ready};
use crate::bitmap::Bitmap;
use crate::bits::write_varint;
use crate::class::Role;
use crate::frames::{RING, SLACK, Stream, Word};
use crate::grid::Query;
use crate::pairs::{Base, Bases, Pending};
use crate::priority::{Batch, View};
use crate::sent::{Budget, Item, PacketOut, SentLog, SentWord};
use crate::server::{ConnId, ConnectionStats, Event, Shared};
use crate::wire::{
    AckState, BASELINE_AGE_MAX, DecodeError, HEADER_BYTES, bits_of, kind, write_delta_record, write_record,
};

/// Life of a pair that is not simply absent or live (spec §10.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    /// In scope; the create item waits to be written. `known`: the receiver may know the object already.
    CreateQueued { known: bool },
    /// The create item is on its way.
    Creating,
    /// The receiver may know the object; the destroy item waits to be written.
    DestroyQueued(u8),
    /// The destroy item is on its way.
    Destroying(u8),
}

/// Changes to counts that all connections share; applied after the stage, in the order of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Ref(u32),
    Unref(u32),
    Know(u32),
    Forget(u32),
}

/// Maps whose order never reaches the output: what is iterated is sorted first.
type Map<V> = HashMap<u32, V, FixedState>;

/// Indices are ours, not the peer's choice, so a hasher without a key will do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FixedState;

impl core::hash::BuildHasher for FixedState {
    type Hasher = FixedHasher;

    fn build_hasher(&self) -> FixedHasher {
        FixedHasher(0)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedHasher(u64);

impl core::hash::Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(26);
    }
}

/// One remote endpoint, as the server sees it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) views: Vec<View>,
    pub(crate) replay: bool,
    /// Condition groups it is a member of.
    pub(crate) groups: u64,
    /// Objects that should be on the receiver.
    pub(crate) scope: Bitmap,
    /// Objects whose creation the receiver has confirmed.
    live: Bitmap,
    /// What static filters decided: in whatever the dynamic filter says, or out.
    pub(crate) forced_in: Bitmap,
    pub(crate) forced_out: Bitmap,
    pub(crate) owned: Bitmap,
    /// Owned objects whose owner gets other properties than the rest.
    pub(crate) owned_special: Bitmap,
    pairs: Map<Pair>,
    creates: Vec<u32>,
    destroys: Vec<u32>,
    /// Objects that the dynamic filter refused, and the frame in which they leave.
    lingering: Vec<(u32, u32)>,
    pending: Pending,
    /// References sent as none because the receiver may not know the target: (object, property) by target.
    hidden: Map<Vec<(u32, u64)>>,
    bases: Bases,
    log: SentLog,
    acks: AckState,
    /// The peer sent something that no packet has acknowledged yet.
    ack_owed: bool,
    pub(crate) budget: Option<Budget>,
    pub(crate) attachments: Attachments,
    /// Objects whose state travels with their attachments in this frame, and the same as bits.
    calling: Vec<u32>,
    held: Bitmap,
    pub(crate) counts: Vec<Count>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) stats: ConnectionStats,
    /// Round-trip time, smoothed, in nanoseconds.
    rtt_ns: u64,
}

/// Memory that stages reuse; one for each thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    scope: Vec<u64>,
    pub(crate) out: PacketOut,
    batch: Box<Batch>,
    priorities: Box<Lanes>,
    record: Vec<u8>,
    delta: Vec<u8>,
    /// An object's words with hidden references taken out.
    block: Vec<u64>,
    words: Vec<u32>,
    candidates: Vec<u64>,
    entered: Vec<u32>,
    left: Vec<u32>,
    cache: RecordCache,
}

#[derive(Debug)]
struct Lanes([f32; 64]);

impl Default for Lanes {
    fn default() -> Self {
        Self([0.0; 64])
    }
}

/// Record variants of the present frame (spec §6): direct-mapped, so that a collision costs a rebuilt record and nothing
/// else.
#[derive(Debug, Default)]
struct RecordCache {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    frame: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    frame: u32,
    object: u32,
    base: u32,
    mask: u64,
    at: u32,
    len: u32,
}

/// Entries of the cache: twice what a busy frame asks for, and small enough for the second-level cache.
const CACHE_ENTRIES: usize = 4096;

impl RecordCache {
    fn begin(&mut self, frame: u32) {
        if self.frame != frame {
            self.frame = frame;
            self.bytes.clear();
        }
        if self.entries.is_empty() {
            self.entries.resize(CACHE_ENTRIES, Entry { frame: u32::MAX, ..Entry::default() });
        }
    }

    fn slot(object: u32, mask: u64, base: u32) -> usize {
        let mixed = (u64::from(object) ^ u64::from(base) << 32 ^ mask.rotate_left(17))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 52) as usize
    }

    fn find(&self, object: u32, mask: u64, base: u32) -> Option<&[u8]> {
        let entry = &self.entries[Self::slot(object, mask, base)];
        let hit =
            entry.frame == self.frame && entry.object == object && entry.mask == mask && entry.base == base;
        hit.then(|| &self.bytes[entry.at as usize..][..entry.len as usize])
    }

    fn keep(&mut self, object: u32, mask: u64, base: u32, record: &[u8], bytes_max: usize) {
        if self.bytes.len() + record.len() <= bytes_max {
            let (at, len) = (self.bytes.len() as u32, record.len() as u32);
            self.bytes.extend_from_slice(record);
            self.entries[Self::slot(object, mask, base)] =
                Entry { frame: self.frame, object, base, mask, at, len };
        }
    }
}

impl Connection {
    pub(crate) fn new(id: ConnId) -> Self {
        Self {
            id,
            views: Vec::new(),
            replay: false,
            groups: 0,
            scope: Bitmap::default(),
            live: Bitmap::default(),
            forced_in: Bitmap::default(),
            forced_out: Bitmap::default(),
            owned: Bitmap::default(),
            owned_special: Bitmap::default(),
            pairs: Map::default(),
            creates: Vec::new(),
            destroys: Vec::new(),
            lingering: Vec::new(),
            pending: Pending::default(),
            hidden: Map::default(),
            bases: Bases::default(),
            log: SentLog::default(),
            acks: AckState::default(),
            ack_owed: false,
            budget: None,
            attachments: Attachments::default(),
            calling: Vec::new(),
            held: Bitmap::default(),
            counts: Vec::new(),
            events: VecDeque::new(),
            stats: ConnectionStats::default(),
            rtt_ns: 0,
        }
    }

    /// Objects that the receiver may know, for a connection that ends.
    pub(crate) fn known(&self) -> impl Iterator<Item = u32> + '_ {
        let unconfirmed = self.pairs.iter().filter(|(_, pair)| **pair != Pair::CreateQueued { known: false });
        self.live.iter().chain(unconfirmed.map(|(object, _)| *object))
    }

    fn role(&self, sh: &Shared, object: u32) -> Role {
        if self.replay {
            Role::Replay
        } else if sh.objects.owner[object as usize] == self.id.0 {
            Role::Owner
        } else {
            Role::Other
        }
    }

    /// Properties that this connection gets of the object, in updates or in its create item.
    fn mask_for(&self, sh: &Shared, object: u32, create: bool) -> u64 {
        let class = &sh.store(object).class;
        let role = self.role(sh, object) as usize;
        let mut mask = if create { class.create_masks[role] } else { class.update_masks[role] };
        mask &= !sh.objects.disabled[object as usize];
        for (group, properties) in &class.groups {
            if self.groups >> group & 1 == 0 {
                mask &= !properties;
            }
        }
        mask
    }

    /// Properties that became visible to this connection: they are sent with their present value.
    pub(crate) fn reveal(&mut self, sh: &Shared, object: u32, mask: u64) {
        if self.live.get(object) || self.pairs.get(&object) == Some(&Pair::Creating) {
            let mask = mask & self.mask_for(sh, object, false);
            self.pending.add(object, mask);
        }
        // The receiver's old states lack these properties.
        *self.bases.at(object) = Base { frame: Base::NEVER, mark: Base::NEVER };
    }

    // ------------------------------------------------------------------------------------------------ delivery

    /// Applies the acknowledgement in a packet's header.
    pub(crate) fn acknowledge(&mut self, sh: &Shared, ack: u16, bits: u64) -> Result<(), DecodeError> {
        if self.log.newest_seq().wrapping_sub(ack) >= 0x8000 {
            return Err(DecodeError::AckUnsent);
        }
        let mut scratch = Fate::default();
        while let Some(packet) = self.log.front() {
            let age = ack.wrapping_sub(packet.seq);
            if age >= 0x8000 {
                break;
            }
            if age == 0 {
                let sample = sh.now.since(packet.at).as_nanos() as u64;
                self.rtt_ns =
                    if self.rtt_ns == 0 { sample } else { self.rtt_ns - self.rtt_ns / 8 + sample / 8 };
            }
            if age == 0 || age <= 64 && bits >> (age - 1) & 1 != 0 {
                self.delivered(sh, &mut scratch);
            } else {
                self.lost(sh, &mut scratch);
            }
        }
        Ok(())
    }

    /// Gives up packets that no acknowledgement will speak of any more.
    fn expire(&mut self, sh: &Shared) {
        let mut scratch = Fate::default();
        let patience = (4 * self.rtt_ns).max(1_000_000_000);
        while let Some(packet) = self.log.front() {
            let old = sh.frame.wrapping_sub(packet.frame) >= RING as u32 - 1;
            if !old && sh.now.since(packet.at).as_nanos() as u64 <= patience {
                break;
            }
            self.lost(sh, &mut scratch);
        }
    }

    fn delivered(&mut self, sh: &Shared, fate: &mut Fate) {
        let Some(packet) = self.log.pop_delivered(&mut fate.items) else { return };
        self.stats.packets_delivered += 1;
        for item in fate.items.drain(..) {
            match item {
                Item::Update { object, complete, .. } => {
                    if complete && self.live.get(object) && sh.is_delta(object) {
                        self.promote(object, packet.frame);
                    }
                }
                Item::Create { object } => {
                    if self.pairs.get(&object) == Some(&Pair::Creating) {
                        self.pairs.remove(&object);
                        self.live.set(object);
                        if sh.is_delta(object) {
                            self.promote(object, packet.frame);
                        }
                    }
                }
                Item::Destroy { object } => {
                    if let Some(Pair::Destroying(_)) = self.pairs.get(&object) {
                        self.pairs.remove(&object);
                        self.counts.push(Count::Forget(object));
                        if self.scope.get(object) {
                            self.pairs.insert(object, Pair::CreateQueued { known: false });
                            self.creates.push(object);
                        }
                    }
                }
                Item::Attach { object, sequence } => self.attachments.delivered(object, sequence),
                Item::Reset { .. } => {}
            }
        }
    }

    fn promote(&mut self, object: u32, frame: u32) {
        let base = self.bases.at(object);
        if base.mark != Base::NEVER && base.mark <= frame && (base.frame == Base::NEVER || base.frame < frame)
        {
            base.frame = frame;
        }
    }

    fn lost(&mut self, sh: &Shared, fate: &mut Fate) {
        let Some(packet) = self.log.pop(&mut fate.words, &mut fate.items) else { return };
        self.stats.packets_lost += 1;
        for word in fate.words.drain(..) {
            self.lost_records(sh, packet.frame, word);
        }
        for item in fate.items.drain(..) {
            match item {
                Item::Update { object, mask, .. } => {
                    let known = self.live.get(object) || self.pairs.get(&object) == Some(&Pair::Creating);
                    if known && self.scope.get(object) {
                        let mask = mask & self.mask_for(sh, object, false);
                        self.stats.properties_resent += u64::from(mask.count_ones());
                        self.pending.add(object, mask);
                    }
                    if sh.is_delta(object) {
                        self.bases.at(object).mark = Base::NEVER;
                    }
                }
                Item::Create { object } => {
                    if self.pairs.get(&object) == Some(&Pair::Creating) {
                        self.pairs.insert(object, Pair::CreateQueued { known: true });
                        self.creates.push(object);
                        self.pending.remove(object);
                    }
                }
                Item::Destroy { object } => {
                    if let Some(Pair::Destroying(reason)) = self.pairs.get(&object).copied() {
                        self.pairs.insert(object, Pair::DestroyQueued(reason));
                        self.destroys.push(object);
                    }
                }
                Item::Attach { object, sequence } => self.attachments.lost(object, sequence),
                Item::Reset { .. } => {}
            }
        }
    }

    /// Common records were lost: what no later packet carries has to be sent again, with the value of then.
    fn lost_records(&mut self, sh: &Shared, frame: u32, lost: SentWord) {
        let word = lost.word();
        let wanted = lost.bits & self.scope.word(word as usize) & self.live.word(word as usize);
        if wanted == 0 {
            return;
        }
        let mut masks = [0_u64; 64];
        sh.streams[lost.stream()].list(frame).masks_of(word, wanted, |bit, mask| masks[bit] = mask);
        self.log.for_each_word(|frame, later| {
            if later.word() == word && later.bits & wanted != 0 {
                let list = sh.streams[later.stream()].list(frame);
                list.masks_of(word, later.bits & wanted, |bit, mask| masks[bit] &= !mask);
            }
        });
        for item in self.log.items() {
            if let Item::Update { object, mask, .. } = item
                && object / 64 == word
            {
                masks[*object as usize % 64] &= !mask;
            }
        }
        for bit in bits_of(wanted) {
            let object = word * 64 + bit as u32;
            self.stats.properties_resent += u64::from(masks[bit].count_ones());
            let mask = masks[bit] & self.mask_for(sh, object, false);
            self.pending.add(object, mask);
        }
    }

    /// Notes that a packet of the peer was applied. A pure acknowledgement owes no answer.
    pub(crate) fn applied(&mut self, seq: u16, owes: bool) {
        self.acks.applied(seq);
        self.ack_owed |= owes;
    }

    pub(crate) fn is_new(&self, seq: u16) -> bool {
        self.acks.is_new(seq)
    }

    /// The receiver lost the state that a difference named.
    pub(crate) fn reset_baseline(&mut self, sh: &Shared, object: u32) {
        if self.live.get(object) && self.scope.get(object) {
            let mask = self.mask_for(sh, object, false);
            self.pending.add(object, mask);
            *self.bases.at(object) = Base { frame: Base::NEVER, mark: Base::NEVER };
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let bitmaps = [&self.scope, &self.live, &self.forced_in, &self.forced_out];
        bitmaps.iter().map(|bitmap| bitmap.heap_bytes()).sum::<usize>()
            + self.pending.heap_bytes()
            + self.bases.heap_bytes()
    }

    pub(crate) fn is_live(&self, object: u32) -> bool {
        self.live.get(object)
    }
}

/// Reused while fates are decided; empty vectors cost nothing.
#[derive(Default)]
struct Fate {
    words: Vec<SentWord>,
    items: Vec<Item>,
}

/// One connection's turn.
pub(crate) struct Stage<'a> {
    pub(crate) conn: &'a mut Connection,
    pub(crate) sh: &'a Shared,
    pub(crate) scratch: &'a mut Scratch,
}

impl Stage<'_> {
    /// Decides and writes everything of this frame; the packets are in `scratch.out` then.
    pub(crate) fn run(&mut self) {
        self.conn.expire(self.sh);
        self.update_scope();
        self.apply_transitions();
        self.write();
    }

    // ------------------------------------------------------------------------------------------------ scope

    fn update_scope(&mut self) {
        let (conn, sh) = (&mut *self.conn, self.sh);
        let objects = &sh.objects;
        let words = objects.bitmap_words();
        for bitmap in [&mut conn.scope, &mut conn.live, &mut conn.forced_in, &mut conn.forced_out] {
            bitmap.grow(words);
        }
        let scope = &mut self.scratch.scope;
        scope.clear();
        scope.resize(words, 0);
        let exit = sh.config.exit_factor * sh.config.exit_factor;
        for view in &conn.views {
            sh.grid.query(&Query { view: view.position, exit, before: &conn.scope }, scope);
        }
        let statics = conn.forced_in.words()[..words].iter().zip(&conn.forced_out.words()[..words]);
        let shared = objects.alive.words().iter().zip(objects.always.words());
        for ((new, (forced, refused)), (alive, always)) in scope.iter_mut().zip(statics).zip(shared) {
            *new = (*new | always | forced) & !refused & alive;
        }
        if sh.config.hysteresis_frames > 0 {
            self.linger();
        }
        let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
        scratch.entered.clear();
        scratch.left.clear();
        for (at, (old, new)) in conn.scope.words_mut()[..words].iter_mut().zip(&scratch.scope).enumerate() {
            if *old != *new {
                let name = |bit: usize| (at * 64 + bit) as u32;
                scratch.entered.extend(bits_of(new & !*old).map(name));
                scratch.left.extend(bits_of(*old & !new).map(name));
                *old = *new;
            }
        }
    }

    /// Keeps what the dynamic filter alone refused for some frames more (spec §12, step 8).
    fn linger(&mut self) {
        let (conn, sh, scope) = (&mut *self.conn, self.sh, &mut self.scratch.scope);
        let keeps = |object: u32| sh.objects.alive.get(object) && !conn.forced_out.get(object);
        let bit = |object: u32| (object as usize / 64, 1_u64 << (object % 64));
        // Those whose time is up are out in this frame; they must not begin to linger again.
        let mut expired = Vec::new();
        conn.lingering.retain(|(object, until)| {
            let (word, bit) = bit(*object);
            if scope[word] & bit != 0 || !keeps(*object) {
                return false;
            }
            if sh.frame.wrapping_sub(*until) as i32 >= 0 {
                expired.push(*object);
                return false;
            }
            scope[word] |= bit;
            true
        });
        let until = sh.frame.wrapping_add(u32::from(sh.config.hysteresis_frames));
        for (at, word) in scope.iter_mut().enumerate() {
            let refused = conn.scope.word(at) & !*word;
            for place in bits_of(refused) {
                let object = (at * 64 + place) as u32;
                if keeps(object) && !expired.contains(&object) {
                    *word |= 1 << place;
                    conn.lingering.push((object, until));
                }
            }
        }
    }

    /// Begins and ends lives of pairs that entered or left.
    fn apply_transitions(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        for object in scratch.left.drain(..) {
            conn.counts.push(Count::Unref(object));
            let reason =
                if sh.objects.alive.get(object) { 1 } else { sh.objects.destroy_reason[object as usize] };
            match conn.pairs.get(&object) {
                Some(Pair::CreateQueued { known }) => {
                    conn.creates.retain(|queued| *queued != object);
                    if *known {
                        conn.pairs.insert(object, Pair::DestroyQueued(reason));
                        conn.destroys.push(object);
                    } else {
                        conn.pairs.remove(&object);
                    }
                }
                Some(Pair::DestroyQueued(_) | Pair::Destroying(_)) => {}
                Some(Pair::Creating) | None => {
                    conn.live.clear(object);
                    conn.pending.remove(object);
                    conn.pairs.insert(object, Pair::DestroyQueued(reason));
                    conn.destroys.push(object);
                }
            }
            if !sh.objects.alive.get(object) {
                let count = conn.attachments.target_gone(object);
                if count > 0 {
                    conn.events.push_back(Event::AttachmentsDropped { connection: conn.id, object, count });
                }
            }
        }
        for object in scratch.entered.drain(..) {
            conn.counts.push(Count::Ref(object));
            for (referrer, property) in conn.hidden.remove(&object).unwrap_or_default() {
                if conn.live.get(referrer) && conn.scope.get(referrer) {
                    conn.pending.add(referrer, property);
                }
            }
            match conn.pairs.get(&object) {
                // A destroy that was not written yet is taken back; the receiver's copy is brought up to date.
                Some(Pair::DestroyQueued(_)) => {
                    conn.destroys.retain(|queued| *queued != object);
                    conn.pairs.insert(object, Pair::CreateQueued { known: true });
                    conn.creates.push(object);
                }
                // Wanted again, but only after the receiver has confirmed the destruction.
                Some(Pair::Destroying(_)) => {}
                Some(Pair::CreateQueued { .. } | Pair::Creating) => {}
                None => {
                    conn.pairs.insert(object, Pair::CreateQueued { known: false });
                    conn.creates.push(object);
                }
            }
        }
    }

    // ------------------------------------------------------------------------------------------------ writing

    fn write(&mut self) {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let allowance = conn.budget.as_mut().map_or(usize::MAX / 2, |budget| budget.refill(sh.now));
        let overhead = if conn.budget.is_some() { sh.config.overhead_bytes } else { 0 };
        let packet_max = if conn.log.in_flight() + 8 < sh.config.packets_in_flight_max {
            sh.config.packet_bytes_max
        } else {
            // Too much on its way: nothing more until something is settled.
            0
        };
        scratch.out.begin((allowance, packet_max, overhead), &conn.acks, sh.frame, sh.now);
        scratch.cache.begin(sh.frame);

        self.hold();
        self.write_destroys();
        self.collect_slow();
        self.write_attachments(allowance);
        let waiting = self.estimate_updates();
        self.write_creates(allowance, waiting > 0);
        let left = allowance.saturating_sub(self.scratch.out.spent());
        let packets = waiting / (sh.config.packet_bytes_max - HEADER_BYTES - 4) + 2;
        if waiting > 0 {
            if waiting + packets * (HEADER_BYTES + 4 + overhead) <= left && packet_max > 0 {
                self.write_all();
            } else {
                self.write_best(left);
            }
        }

        let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
        for object in conn.calling.drain(..) {
            conn.held.clear(object);
        }
        // With nothing to send, an empty packet after a round trip asks what became of the last ones.
        let round_trip = Duration::from_nanos(conn.rtt_ns + conn.rtt_ns / 4);
        if conn.ack_owed || conn.log.is_quiet(sh.now - round_trip) {
            scratch.out.acknowledge(&mut conn.log);
        }
        scratch.out.close(&mut conn.log);
        if !scratch.out.ends().is_empty() {
            conn.ack_owed = false;
        }
        if let Some(budget) = &mut conn.budget {
            budget.tokens -= scratch.out.spent() as f64;
        }
        conn.stats.packets_sent += scratch.out.ends().len() as u64;
        conn.stats.bytes_sent += scratch.out.bytes().len() as u64;
    }

    /// Objects of a frame-list word that can be sent by copying their common record.
    #[inline]
    fn fast_bits(conn: &Connection, sh: &Shared, word: &Word) -> u64 {
        let at = word.word as usize;
        let mut bits = word.fast & conn.scope.words()[at] & conn.live.words()[at];
        bits &= !conn.owned_special.word(at);
        if conn.replay {
            bits &= !sh.objects.conditional.word(at);
        }
        if !conn.calling.is_empty() {
            bits &= !conn.held.word(at);
        }
        if conn.pending.is_empty() { bits } else { bits & !conn.pending.bits(word.word) }
    }

    /// Everything that changed and cannot be copied becomes pending.
    fn collect_slow(&mut self) {
        let (conn, sh) = (&mut *self.conn, self.sh);
        if conn.pairs.is_empty()
            && !sh.any_special
            && !conn.replay
            && conn.pending.is_empty()
            && conn.owned_special.words().is_empty()
            && conn.calling.is_empty()
        {
            return;
        }
        for stream in &sh.streams {
            let list = stream.present();
            for word in &list.words {
                let at = word.word as usize;
                let slow = word.bits & conn.scope.words()[at] & !Self::fast_bits(conn, sh, word);
                for bit in bits_of(slow) {
                    let object = word.word * 64 + bit as u32;
                    let known = conn.live.get(object) || conn.pairs.get(&object) == Some(&Pair::Creating);
                    if known {
                        let place = stream.places[object as usize] as usize;
                        let mask = list.masks[place] & conn.mask_for(sh, object, false);
                        conn.pending.add(object, mask);
                    }
                }
            }
        }
    }

    /// Upper bound of the bytes of all updates that wait. Without a budget any number does.
    fn estimate_updates(&mut self) -> usize {
        let (conn, sh) = (&*self.conn, self.sh);
        let mut bytes = 0;
        for stream in &sh.streams {
            for word in &stream.present().words {
                let bits = Self::fast_bits(conn, sh, word);
                if bits != 0 {
                    if conn.budget.is_none() {
                        return 1;
                    }
                    for bit in bits_of(bits) {
                        let place = stream.places[word.word as usize * 64 + bit] as usize;
                        bytes += (stream.offsets[place + 1] - stream.offsets[place]) as usize;
                    }
                }
            }
        }
        if !conn.pending.is_empty() {
            if conn.budget.is_none() {
                return 1;
            }
            bytes += conn.pending.iter().map(|object| sh.record_bytes_max(object)).sum::<usize>();
        }
        bytes
    }

    /// The frame has room for everything: in index order, without sorting.
    fn write_all(&mut self) {
        let sh = self.sh;
        for (at, stream) in sh.streams.iter().enumerate() {
            for word in &stream.present().words {
                let mut bits = Self::fast_bits(self.conn, sh, word);
                if bits == 0 {
                    continue;
                }
                let below = self.prioritise(word.word, bits);
                if below != 0 {
                    self.postpone(stream, word, bits & below);
                    bits &= !below;
                }
                self.copy_records(at, stream, word, bits);
            }
        }
        if self.conn.pending.is_empty() {
            return;
        }
        let mut words = core::mem::take(&mut self.scratch.words);
        self.conn.pending.words(&mut words);
        for word in &words {
            let bits = self.conn.pending.bits(*word) & !self.conn.held.word(*word as usize);
            if bits == 0 {
                continue;
            }
            self.prioritise(*word, bits);
            for bit in bits_of(bits) {
                let object = word * 64 + bit as u32;
                let priority = self.conn.pending.grow(object, self.scratch.priorities.0[bit]);
                if priority >= sh.config.send_threshold {
                    self.write_pending(object);
                }
            }
        }
        self.scratch.words = words;
    }

    /// Computes priorities of the objects `bits` of `word`; returns those below the threshold.
    #[inline]
    fn prioritise(&mut self, word: u32, bits: u64) -> u64 {
        let (conn, objects) = (&*self.conn, &self.sh.objects);
        let (batch, lanes) = (&mut *self.scratch.batch, &mut self.scratch.priorities.0);
        let threshold = self.sh.config.send_threshold;
        let first = word as usize * 64;
        let kinds = &objects.prioritiser[first..first + 64];
        let kind = kinds[bits.trailing_zeros() as usize];
        let mut below = 0;
        if bits.count_ones() >= 24 && kinds.iter().all(|other| *other == kind) {
            batch.x.copy_from_slice(&objects.x[first..first + 64]);
            batch.y.copy_from_slice(&objects.y[first..first + 64]);
            batch.z.copy_from_slice(&objects.z[first..first + 64]);
            batch.first = Some(first as u32);
            batch.owned = conn.owned.word(word as usize);
            batch.len = 64;
            self.sh.prioritisers[usize::from(kind)].run(&conn.views, batch);
            lanes.copy_from_slice(&batch.p);
            if lanes.iter().fold(f32::MAX, |least, p| least.min(*p)) >= threshold {
                return 0;
            }
            for bit in bits_of(bits) {
                below |= u64::from(lanes[bit] < threshold) << bit;
            }
            return below;
        }
        let mut left = bits;
        while left != 0 {
            let kind = kinds[left.trailing_zeros() as usize];
            let (mut same, mut len) = (0_u64, 0);
            batch.owned = 0;
            for bit in bits_of(left) {
                if kinds[bit] == kind {
                    same |= 1 << bit;
                    batch.x[len] = objects.x[first + bit];
                    batch.y[len] = objects.y[first + bit];
                    batch.z[len] = objects.z[first + bit];
                    batch.objects[len] = (first + bit) as u32;
                    batch.owned |= (conn.owned.word(word as usize) >> bit & 1) << len;
                    len += 1;
                }
            }
            batch.len = len;
            batch.first = None;
            self.sh.prioritisers[usize::from(kind)].run(&conn.views, batch);
            for (bit, p) in bits_of(same).zip(batch.p) {
                lanes[bit] = p;
                below |= u64::from(p < threshold) << bit;
            }
            left &= !same;
        }
        below
    }

    /// Common records that are not sent now become pending, with the priority just computed.
    fn postpone(&mut self, stream: &Stream, word: &Word, bits: u64) {
        for bit in bits_of(bits) {
            let object = word.word * 64 + bit as u32;
            let place = stream.places[object as usize] as usize;
            self.conn.pending.add(object, stream.present().masks[place]);
            self.conn.pending.grow(object, self.scratch.priorities.0[bit]);
        }
    }

    /// Copies the common records of `bits`: runs that nothing interrupts in one piece, as far as a packet has room.
    #[inline]
    fn copy_records(&mut self, index: usize, stream: &Stream, word: &Word, bits: u64) {
        let (log, out) = (&mut self.conn.log, &mut self.scratch.out);
        let first = word.word as usize * 64;
        let mut left = bits;
        while left != 0 {
            let start = left.trailing_zeros();
            let interrupted = word.bits & !bits & (u64::MAX << start);
            // Bits of this run: up to the first listed object that is not copied.
            let run =
                if interrupted == 0 { left } else { left & ((interrupted & interrupted.wrapping_neg()) - 1) };
            left &= !run;
            let mut place = stream.places[first + start as usize] as usize;
            let end = stream.places[first + 63 - run.leading_zeros() as usize] as usize + 1;
            let mut run = run;
            while place < end {
                let from = stream.offsets[place] as usize;
                let one = stream.offsets[place + 1] as usize - from;
                if !out.reserve(log, kind::UPDATE, one) {
                    // The estimate was too low: what is left waits for the next frame.
                    self.postpone(stream, word, run | left);
                    return;
                }
                let (room, items) = out.room();
                let rest = &stream.offsets[place + 1..(place + items).min(end) + 1];
                let limit = (from + room) as u32;
                let count = match rest.last() {
                    Some(last) if *last <= limit => rest.len(),
                    _ => rest.partition_point(|end| *end <= limit),
                };
                let len = stream.offsets[place + count] as usize - from;
                if len <= SLACK {
                    out.buf[out.at..out.at + SLACK].copy_from_slice(&stream.bytes[from..from + SLACK]);
                } else {
                    out.buf[out.at..out.at + len].copy_from_slice(&stream.bytes[from..from + len]);
                }
                out.wrote(len, count);
                place += count;
                let written = if place == end { run } else { first_bits(run, count) };
                run &= !written;
                log.push_word(index, word.word, written);
            }
        }
        self.conn.stats.records_copied += u64::from(bits.count_ones());
    }

    /// Writes what is pending of one object; true when it went out and nothing is pending any more.
    fn write_pending(&mut self, object: u32) -> bool {
        let (conn, sh) = (&mut *self.conn, self.sh);
        let mask = conn.pending.mask(object);
        let creating = !conn.live.get(object);
        let store = sh.store(object);
        let slot = sh.objects.slot[object as usize];
        let base =
            if store.class.flags.delta && !creating { conn.bases.get(object).frame } else { Base::NEVER };
        let age = sh.frame.wrapping_sub(base);
        let hides = store.class.hide_mask & mask != 0;
        // What hid references were sent as is not what the kept states say.
        let known = !hides && base != Base::NEVER && (1..=BASELINE_AGE_MAX).contains(&age);
        let state = if known { store.state_at(slot, base, sh.frame) } else { None };
        let base = if state.is_some() { base } else { Base::NEVER };

        let (cache, out) = (&mut self.scratch.cache, &mut self.scratch.out);
        let words = hide(conn, sh, object, mask, &mut self.scratch.block);
        if hides || cache.find(object, mask, base).is_none() {
            let record = &mut self.scratch.record;
            record.clear();
            write_record(record, object, &store.class, mask, words, store.heap(slot));
            if let Some(state) = state {
                let delta = &mut self.scratch.delta;
                delta.clear();
                write_delta_record(delta, object, &store.class, mask, (state, age), words, store.heap(slot));
                if delta.len() < record.len() {
                    core::mem::swap(record, delta);
                }
            }
            conn.stats.records_built += 1;
            if !hides {
                cache.keep(object, mask, base, record, sh.config.record_cache_bytes);
            }
        } else {
            conn.stats.records_hit += 1;
        }
        let cached = if hides { None } else { cache.find(object, mask, base) };
        let record = cached.unwrap_or(&self.scratch.record);
        let len = record.len();
        if creating {
            if !out.reserve(&mut conn.log, kind::SIZED_UPDATE, len + 2) {
                return false;
            }
            out.buf[out.at..out.at + 2].copy_from_slice(&(len as u16).to_le_bytes());
            out.buf[out.at + 2..out.at + 2 + len].copy_from_slice(record);
            out.wrote(len + 2, 1);
        } else {
            if !out.reserve(&mut conn.log, kind::UPDATE, len) {
                return false;
            }
            out.put(record);
        }
        conn.log.push_item(Item::Update { object, mask, complete: true });
        if store.class.flags.delta {
            let base = conn.bases.at(object);
            if base.mark == Base::NEVER {
                base.mark = sh.frame;
            }
        }
        conn.pending.remove(object);
        true
    }

    /// The frame has no room for everything: the best first (spec §13).
    fn write_best(&mut self, left: usize) {
        let sh = self.sh;
        let mut candidates = core::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        // Whatever is not written now is pending; so everything becomes pending first, with its priority.
        for stream in &sh.streams {
            for word in &stream.present().words {
                let bits = Self::fast_bits(self.conn, sh, word);
                for bit in bits_of(bits) {
                    let object = word.word * 64 + bit as u32;
                    let place = stream.places[object as usize] as usize;
                    self.conn.pending.add(object, stream.present().masks[place]);
                }
            }
        }
        let mut words = core::mem::take(&mut self.scratch.words);
        self.conn.pending.words(&mut words);
        let mut bytes = 0;
        for word in &words {
            let bits = self.conn.pending.bits(*word) & !self.conn.held.word(*word as usize);
            if bits == 0 {
                continue;
            }
            self.prioritise(*word, bits);
            let owned = self.conn.owned.word(*word as usize);
            for bit in bits_of(bits) {
                let object = word * 64 + bit as u32;
                let priority = self.conn.pending.grow(object, self.scratch.priorities.0[bit]);
                if priority >= sh.config.send_threshold {
                    // Positive floats order like their bits; the lower index wins a tie; the owner's own come first.
                    let rank = if owned >> bit & 1 != 0 { u32::MAX } else { priority.to_bits() };
                    candidates.push(u64::from(rank) << 32 | u64::from(u32::MAX - object));
                    bytes += sh.record_bytes_max(object);
                }
            }
        }
        self.scratch.words = words;
        self.conn.stats.budget_saturated_frames += 1;
        // About as many as fit, and some: only these are sorted.
        let fits = candidates.len() * left / bytes.max(1) * 5 / 4 + 8;
        let mut from = 0;
        while from < candidates.len() {
            let rest = &mut candidates[from..];
            let count = fits.clamp(8, rest.len().max(8)).min(rest.len());
            if count < rest.len() {
                rest.select_nth_unstable_by(count, |a, b| b.cmp(a));
            }
            rest[..count].sort_unstable_by(|a, b| b.cmp(a));
            let mut refused = 0;
            for candidate in &rest[..count] {
                let object = u32::MAX - (*candidate & u64::from(u32::MAX)) as u32;
                if !self.write_pending(object) {
                    refused += 1;
                    // A smaller record may still fit, a fourth refusal says that nothing does.
                    if refused > 3 {
                        break;
                    }
                }
            }
            if refused > 0 {
                break;
            }
            from += count;
        }
        self.scratch.candidates = candidates;
    }

    fn write_destroys(&mut self) {
        let (conn, sh) = (&mut *self.conn, self.sh);
        if conn.destroys.is_empty() {
            return;
        }
        let queued = core::mem::take(&mut conn.destroys);
        let mut kept = Vec::new();
        for object in queued {
            let conn = &mut *self.conn;
            let Some(Pair::DestroyQueued(reason)) = conn.pairs.get(&object).copied() else { continue };
            let scratch = &mut *self.scratch;
            scratch.delta.clear();
            if sh.objects.flush.get(object) {
                // The whole last state travels in the same packet, so that it arrives if the end does.
                let store = sh.store(object);
                let (class, slot) = (&store.class, sh.objects.slot[object as usize]);
                let mask = conn.mask_for(sh, object, false);
                scratch.delta.extend_from_slice(&[0; 2]);
                write_record(&mut scratch.delta, object, class, mask, store.quant(slot), store.heap(slot));
                let len = scratch.delta.len() as u16 - 2;
                scratch.delta[..2].copy_from_slice(&len.to_le_bytes());
            }
            scratch.record.clear();
            write_varint(&mut scratch.record, u64::from(object));
            scratch.record.push(reason);
            scratch.out.keep_together(&mut conn.log, scratch.delta.len() + scratch.record.len() + 4);
            if !scratch.delta.is_empty() {
                if !scratch.out.reserve(&mut conn.log, kind::SIZED_UPDATE, scratch.delta.len()) {
                    kept.push(object);
                    continue;
                }
                scratch.out.put(&scratch.delta);
            }
            if !scratch.out.reserve(&mut conn.log, kind::DESTROY, scratch.record.len()) {
                kept.push(object);
                continue;
            }
            scratch.out.put(&scratch.record);
            conn.log.push_item(Item::Destroy { object });
            conn.pairs.insert(object, Pair::Destroying(reason));
            conn.stats.destroys += 1;
        }
        self.conn.destroys = kept;
    }

    /// Finds the objects whose state waits for their attachments.
    fn hold(&mut self) {
        let conn = &mut *self.conn;
        if conn.attachments.is_idle() {
            return;
        }
        conn.calling.extend(conn.attachments.objects());
        for object in &conn.calling {
            conn.held.set(*object);
        }
    }

    /// State and attachments of an object stand in one packet: so an attachment never overtakes the state of its frame,
    /// even when a packet is lost or comes too late.
    fn write_attachments(&mut self, allowance: usize) {
        let share = (allowance as f64 * self.sh.config.attach_share) as usize;
        let calling = core::mem::take(&mut self.conn.calling);
        for object in &calling {
            let object = *object;
            if self.scratch.out.spent() > share {
                break;
            }
            let known = self.conn.live.get(object);
            let ready = match (self.conn.scope.get(object), known) {
                (false, _) => Ready::OutOfScope,
                (true, false) => Ready::Later,
                (true, true) => Ready::Yes,
            };
            if self.conn.pending.mask(object) != 0 {
                let together =
                    self.sh.record_bytes_max(object) + self.conn.attachments.first_bytes(object) + 8;
                let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
                scratch.out.keep_together(&mut conn.log, together);
                if !self.write_pending(object) {
                    continue;
                }
            }
            let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
            let (log, out, record) = (&mut conn.log, &mut scratch.out, &mut scratch.record);
            conn.attachments.write(object, ready, |outgoing: Outgoing<'_>| {
                record.clear();
                outgoing.write(record);
                if !out.reserve(log, kind::ATTACH, record.len()) {
                    return false;
                }
                out.put(record);
                if let Some(sequence) = outgoing.sequence {
                    log.push_item(Item::Attach { object: outgoing.object, sequence });
                }
                true
            });
        }
        self.conn.calling = calling;
    }

    /// Create items, nearest first when not all fit; `waiting`: updates want their share too.
    fn write_creates(&mut self, allowance: usize, waiting: bool) {
        if self.conn.creates.is_empty() {
            return;
        }
        let sh = self.sh;
        let mut queued = core::mem::take(&mut self.conn.creates);
        let share = if waiting { (allowance as f64 * sh.config.create_share) as usize } else { allowance };
        let parent = &sh.objects.parent;
        if self.conn.budget.is_some() {
            let views = &self.conn.views;
            let square = |object: u32| {
                let at = object as usize;
                let position = [sh.objects.x[at], sh.objects.y[at], sh.objects.z[at]];
                let to = |view: &View| (0..3).map(|i| (view.position[i] - position[i]).powi(2)).sum::<f32>();
                views.iter().map(to).fold(f32::MAX, f32::min)
            };
            queued.sort_by(|a, b| square(*a).total_cmp(&square(*b)).then(a.cmp(b)));
        } else {
            queued.sort_unstable();
        }
        let mut kept = Vec::new();
        let mut full = false;
        for object in queued {
            if !matches!(self.conn.pairs.get(&object), Some(Pair::CreateQueued { .. })) {
                continue;
            }
            // A parent's creation comes first, in this packet or an earlier one.
            let above = parent[object as usize];
            let orphan = above != 0 && matches!(self.conn.pairs.get(&above), Some(Pair::CreateQueued { .. }));
            if full || self.scratch.out.spent() > share || orphan || !self.write_create(object) {
                full |= !orphan;
                kept.push(object);
            }
        }
        self.conn.creates.extend(kept);
    }

    fn write_create(&mut self, object: u32) -> bool {
        let sh = self.sh;
        let store = sh.store(object);
        let class = Arc::clone(&store.class);
        let slot = sh.objects.slot[object as usize];
        let heap = store.heap(slot);
        let mut mask = self.conn.mask_for(sh, object, true);
        let quant = hide(self.conn, sh, object, mask, &mut self.scratch.block);
        for at in bits_of(mask) {
            let prop = &class.props[at];
            let same = if prop.codec.is_heap() {
                let (bytes, bits) = &class.heap_defaults[prop.heap];
                heap[prop.heap].1 == *bits && heap[prop.heap].0[..] == bytes[..]
            } else {
                prop.words(quant) == prop.words(&class.defaults)
            };
            if same {
                mask &= !(1 << at);
            }
        }
        let conn = &mut *self.conn;
        let record = &mut self.scratch.record;
        record.clear();
        write_varint(record, u64::from(object));
        record.extend_from_slice(&sh.objects.generation[object as usize].to_le_bytes());
        write_varint(record, u64::from(sh.objects.class[object as usize]));
        let above = sh.objects.parent[object as usize];
        let owner = conn.role(sh, object) == Role::Owner;
        let flags = u8::from(above != 0)
            | u8::from(owner) << 2
            | u8::from(class.flags.temporary) << 3
            | u8::from(sh.objects.dormant.get(object)) << 4;
        record.push(flags);
        if above != 0 {
            write_varint(record, u64::from(above));
        }
        if owner {
            record.push(1);
        }
        let mut writer = crate::bits::BitWriter::new(record);
        crate::wire::write_mask(&mut writer, mask, class.props.len() as u32);
        crate::wire::write_properties(&mut writer, &class, mask, quant, heap);
        writer.finish();
        if !self.scratch.out.reserve(&mut conn.log, kind::CREATE, record.len()) {
            return false;
        }
        self.scratch.out.put(record);
        conn.log.push_item(Item::Create { object });
        if conn.pairs.insert(object, Pair::Creating) == Some(Pair::CreateQueued { known: false }) {
            conn.counts.push(Count::Know(object));
        }
        conn.pending.remove(object);
        if class.flags.delta {
            *conn.bases.at(object) = Base::UNKNOWN;
        }
        conn.stats.creates += 1;
        true
    }
}

/// The object's words as this receiver may see them: hidden references to what it does not have in scope become none,
/// and are noted, to be sent when the target comes into scope.
fn hide<'a>(
    conn: &mut Connection,
    sh: &'a Shared,
    object: u32,
    mask: u64,
    block: &'a mut Vec<u64>,
) -> &'a [u64] {
    let store = sh.store(object);
    let words = store.quant(sh.objects.slot[object as usize]);
    let hidden = store.class.hide_mask & mask;
    if hidden == 0 {
        return words;
    }
    block.clear();
    block.extend_from_slice(words);
    for property in bits_of(hidden) {
        let word = &mut block[store.class.props[property].word];
        let target = *word as u32;
        if target != 0 && !conn.scope.get(target) {
            *word = 0;
            let waiting = conn.hidden.entry(target).or_default();
            if !waiting.contains(&(object, 1 << property)) {
                waiting.push((object, 1 << property));
            }
        }
    }
    block
}

/// The lowest `count` set bits.
#[inline]
fn first_bits(bits: u64, count: usize) -> u64 {
    let mut rest = bits;
    for _ in 0..count {
        rest &= rest.wrapping_sub(1);
    }
    bits & !rest
}
