//! The connection stage: the updates of one receiver in a frame.
//!
//! A pair (connection, object) that is in scope, known to the receiver and up to date is two set
//! bits and nothing else. Changed objects of such pairs take the fast way: runs of common records
//! are copied as they lie. Everything out of the ordinary (creation, loss, differences, conditions,
//! a spent budget) takes the slow way through `pending`.

mod cache;
mod check;
mod keyed;
mod life;
mod limit;
mod retain;
mod scope;
mod tokens;
mod transfer;
mod write;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use hashbrown::HashMap;

use crate::attach::Attachments;
use crate::bitmap::{Bitmap, Sparse};
use crate::class::{Condition, Role};
use crate::frames::RING;
use crate::grid::Nearby;
use crate::interest::Area;
use crate::keyed::Cursor;
use crate::pairs::{Bases, Pending};
use crate::priority::View;
use crate::sent::{Budget, Item, SentLog, SentWord};
use crate::server::{ConnId, ConnectionStats, Event, ServerConfig, Shared};
use crate::wire::{AckState, DecodeError, bits_of};

use throng_stdx::Instant;

pub(crate) use cache::Scratch;
use limit::Turns;
use retain::Retained;
pub(crate) use retain::state_hash;
use transfer::Transfer;

/// Packets that ends, creations and arrays fill in one frame. What goes beyond the window of one
/// acknowledgement would count as lost, though it arrived, and go out again.
const BURST_PACKETS: usize = crate::wire::ACK_WINDOW as usize - 9;

/// Requests for whole states that are served in one frame. An honest receiver has some only when it
/// lost its memory, while a request of a byte costs a whole object.
const RESETS_MAX: usize = 8;

/// Losses of one end, or of one part of it, up to which its receiver may be honest: of a hundred
/// million ends none is lost so often on a link that carries a third. A receiver that never
/// confirms it, whatever else it acknowledges, would hold the object's index for ever.
const END_LOSSES_MAX: u8 = 64;

/// Life of a pair that is not simply absent or live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    /// In scope; the create item waits to be written. `known`: the receiver may know the object
    /// already.
    CreateQueued { known: bool },
    /// The create item of this frame is on its way. One of an earlier frame may be as well, if the
    /// object left the scope and came back meanwhile: its fate means nothing any more.
    Creating(u32),
    /// The receiver may know the object; the destroy item waits to be written: reason, and how
    /// often it was lost.
    DestroyQueued(u8, u8),
    /// The destroy item is on its way.
    Destroying(u8, u8),
}

/// Changes to counts that all connections share; applied after the stage, in the order of
/// connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Ref(u32),
    Unref(u32),
    Know(u32),
    Forget(u32),
    /// Creations wait on the connection, and no longer do.
    Join,
    Joined,
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
    /// Objects around each view that stand still.
    nearby: Vec<Nearby>,
    /// Watched beside the views.
    pub(crate) areas: Vec<Area>,
    pub(crate) teams: u64,
    /// Objects of its teams.
    pub(crate) teamed: Sparse,
    /// Last answers of the game's filters.
    answers: Vec<Sparse>,
    pub(crate) replay: bool,
    /// Condition groups it is a member of.
    pub(crate) groups: u64,
    /// Objects that should be on the receiver.
    pub(crate) scope: Sparse,
    /// Objects by stream: those sent every frame, then the bands of detail. Empty without bands.
    bands: Vec<Sparse>,
    /// Reused while fates are decided.
    fate: Fate,
    /// Objects whose creation the receiver has confirmed.
    live: Bitmap,
    /// Decisions of static filters: in whatever the dynamic filter says, or out.
    pub(crate) forced_in: Sparse,
    pub(crate) forced_out: Bitmap,
    pub(crate) owned: Bitmap,
    /// Owned objects whose owner gets other properties than the rest.
    pub(crate) owned_special: Bitmap,
    pairs: Map<Pair>,
    creates: Vec<u32>,
    /// Some waited after the last frame.
    pub(crate) joining: bool,
    destroys: Vec<u32>,
    /// Objects that the dynamic filter refused, and the frame in which they leave.
    lingering: Vec<(u32, u32)>,
    pending: Pending,
    /// References sent as none because the receiver may not know the target: (object, property) by
    /// target.
    hidden: Map<BTreeSet<(u32, u64)>>,
    /// Objects out of scope that the receiver keeps.
    retained: Map<Retained>,
    bases: Bases,
    log: SentLog,
    acks: AckState,
    /// The peer sent something that no packet has acknowledged yet.
    ack_owed: bool,
    budget: Option<Budget>,
    /// Largest packet: that of the configuration, or what the burst of the budget holds.
    packet_bytes: usize,
    /// The transport reported congestion since the last frame.
    pub(crate) congested: bool,
    /// Losses that the budget knows of.
    losses_seen: u64,
    /// Time of the last clock sample.
    clock_at: Option<Instant>,
    /// Progress of the receiver in each keyed array of the objects that it has, and which objects
    /// have more for it.
    cursors: Map<Vec<Option<Cursor>>>,
    behind: Bitmap,
    /// Turns of count limiters, by prioritiser, and when objects had theirs.
    turns: Turns,
    pub(crate) attachments: Attachments,
    /// Objects of which the receiver asked for the whole state.
    resets: BTreeSet<u32>,
    /// Objects whose owner or parent changed since it was last sent.
    roles: BTreeSet<u32>,
    /// Time of the oldest packet that nothing has answered.
    unheard: Option<Instant>,
    /// Newest packet that an acknowledgement named.
    acknowledged: u16,
    /// Nothing was acknowledged for too long, or an end never; the server ends the connection after
    /// the frame.
    pub(crate) unresponsive: bool,
    /// Objects whose state travels with their attachments in this frame, and the same as bits.
    calling: Vec<u32>,
    held: Bitmap,
    /// Common records of some objects must not be copied: `held` says which.
    holds: bool,
    /// The transfer in parts, and the number of the last one.
    transfer: Option<Transfer>,
    transfer_id: u16,
    /// Tokens whose text the receiver has.
    known_tokens: Map<()>,
    /// Startup objects whose end it has not been told: token of the name, reason.
    pub(crate) endings: Vec<(u32, u8)>,
    /// Classes that the peer describes differently.
    pub(crate) refused_classes: Vec<u16>,
    pub(crate) counts: Vec<Count>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) stats: ConnectionStats,
    /// Round-trip time, smoothed, in nanoseconds.
    rtt_ns: u64,
}
impl Connection {
    pub(crate) fn new(id: ConnId, packet_bytes_max: usize) -> Self {
        Self {
            id,
            views: Vec::new(),
            nearby: Vec::new(),
            areas: Vec::new(),
            teams: 0,
            teamed: Sparse::default(),
            answers: Vec::new(),
            replay: false,
            groups: 0,
            scope: Sparse::default(),
            live: Bitmap::default(),
            forced_in: Sparse::default(),
            bands: Vec::new(),
            fate: Fate::default(),
            forced_out: Bitmap::default(),
            owned: Bitmap::default(),
            owned_special: Bitmap::default(),
            pairs: Map::default(),
            creates: Vec::new(),
            joining: false,
            destroys: Vec::new(),
            lingering: Vec::new(),
            pending: Pending::default(),
            hidden: Map::default(),
            retained: Map::default(),
            bases: Bases::default(),
            log: SentLog::default(),
            acks: AckState::default(),
            ack_owed: false,
            budget: None,
            packet_bytes: packet_bytes_max,
            congested: false,
            losses_seen: 0,
            clock_at: None,
            turns: Turns::default(),
            cursors: Map::default(),
            behind: Bitmap::default(),
            attachments: Attachments::new(packet_bytes_max),
            resets: BTreeSet::new(),
            roles: BTreeSet::new(),
            unheard: None,
            acknowledged: u16::MAX,
            unresponsive: false,
            calling: Vec::new(),
            held: Bitmap::default(),
            holds: false,
            transfer: None,
            transfer_id: 0,
            known_tokens: Map::default(),
            endings: Vec::new(),
            refused_classes: Vec::new(),
            counts: Vec::new(),
            events: VecDeque::new(),
            stats: ConnectionStats::default(),
            rtt_ns: 0,
        }
    }

    /// Room for objects in `words` bitmap words, sent through `streams` streams.
    #[inline]
    fn grow(&mut self, words: usize, streams: usize) {
        if self.scope.words().len() < words {
            self.grow_all(words, streams);
        }
    }

    #[cold]
    fn grow_all(&mut self, words: usize, streams: usize) {
        self.scope.grow(words);
        self.forced_in.grow(words);
        self.live.grow(words);
        self.forced_out.grow(words);
        if streams > 1 {
            self.bands.resize_with(streams, Sparse::default);
            self.bands.iter_mut().for_each(|band| band.grow(words));
        }
    }

    pub(crate) fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// Limits the connection. What exceeds the burst goes in parts, as what exceeds a packet does.
    pub(crate) fn set_budget(&mut self, config: &ServerConfig, budget: Option<Budget>) {
        let burst = budget.as_ref().map_or(usize::MAX, |budget| budget.burst as usize);
        self.packet_bytes = config.packet_bytes_max.min(burst.saturating_sub(config.overhead_bytes));
        self.attachments.set_packet_bytes(self.packet_bytes);
        self.budget = budget;
    }

    /// Objects of a word that have something pending and may be written by themselves.
    fn waiting(&self, word: u32) -> u64 {
        self.pending.bits(word) & !self.held.word(word as usize) & self.scope.word(word as usize)
    }

    /// The stream that an object is sent through, and what it has gathered there since it was sent
    /// last.
    fn gathered(&self, sh: &Shared, object: u32) -> (usize, u64) {
        let Some(band) = self.bands.iter().skip(1).position(|band| band.get(object)) else { return (0, 0) };
        (band + 1, sh.gatherings[band].gathered(object) & self.mask_for(sh, object, false))
    }

    /// Objects that the receiver may know, for a connection that ends.
    pub(crate) fn known(&self) -> impl Iterator<Item = u32> + '_ {
        let unconfirmed = self.pairs.iter().filter(|(_, pair)| **pair != Pair::CreateQueued { known: false });
        let unconfirmed = unconfirmed.map(|(object, _)| *object);
        self.live.iter().chain(unconfirmed).chain(self.retained.keys().copied())
    }

    /// Objects that the receiver has or is to have: those in scope, and those that it kept.
    pub(crate) fn replicas(&self) -> Vec<u32> {
        self.scope.iter().chain(self.retained.keys().copied()).collect()
    }

    pub(crate) fn owns(&self, sh: &Shared, object: u32) -> bool {
        sh.objects.owner[object as usize] == self.id.index()
    }

    fn role(&self, sh: &Shared, object: u32) -> Role {
        if self.replay {
            Role::Replay
        } else if self.owns(sh, object) {
            Role::Owner
        } else {
            Role::Other
        }
    }

    /// Properties that this connection gets of the object, in updates or in its create item.
    pub(crate) fn mask_for(&self, sh: &Shared, object: u32, create: bool) -> u64 {
        let class = &sh.store(object).class;
        let role = self.role(sh, object) as usize;
        let mut mask = if create { class.create_masks[role] } else { class.update_masks[role] };
        mask &= !sh.objects.disabled[object as usize];
        for (group, properties) in &class.groups {
            if self.groups >> group & 1 == 0 {
                mask &= !properties;
            }
        }
        if class.dynamic_mask != 0 {
            for (properties, condition) in sh.conditions.get(&object).into_iter().flatten() {
                let (updates, first) = condition.admits(self.role(sh, object));
                let outside = matches!(condition, Condition::Group(group) if self.groups >> group & 1 == 0);
                if outside || !(if create { first } else { updates }) {
                    mask &= !properties;
                }
            }
        }
        mask
    }

    /// The receiver has the object, or its create item is on its way.
    pub(crate) fn has(&self, object: u32) -> bool {
        self.live.get(object) || matches!(self.pairs.get(&object), Some(Pair::Creating(_)))
    }

    /// The owner of an object changed from or to this connection, or its parent changed.
    pub(crate) fn queue_role(&mut self, object: u32) {
        if self.has(object) || self.retained.contains_key(&object) {
            self.roles.insert(object);
        }
    }

    /// The peer describes the object's class differently.
    fn refuses(&self, sh: &Shared, object: u32) -> bool {
        self.refused_classes.contains(&sh.objects.class[object as usize])
    }

    /// True when a call of the client on the object counts: it owns the object, or sees a callable
    /// one.
    pub(crate) fn may_call(&self, sh: &Shared, object: u32, method: u64) -> bool {
        let callable = sh.store(object).class.is_callable(method) && self.live.get(object);
        sh.objects.alive.get(object) && (self.owns(sh, object) || callable)
    }

    /// Properties that became visible to this connection: they are sent with their present value.
    pub(crate) fn reveal(&mut self, sh: &Shared, object: u32, mask: u64) {
        if self.has(object) {
            let mask = mask & self.mask_for(sh, object, false);
            self.pending.add(object, mask);
        }
        self.reveal_retained(object, mask);
        // The receiver's old states lack these properties.
        self.bases.invalidate(object);
    }

    // ---- delivery -------------------------------------------------------------------------------

    /// Applies the acknowledgement in a packet's header.
    pub(crate) fn acknowledge(&mut self, sh: &Shared, ack: u16, bits: u64) -> Result<(), DecodeError> {
        if self.log.newest_seq().wrapping_sub(ack) >= 0x8000 {
            return Err(DecodeError::AckUnsent);
        }
        // Also one that comes too late for its packet, which was given up.
        if ack != self.acknowledged && ack.wrapping_sub(self.acknowledged) < 0x8000 {
            self.acknowledged = ack;
            self.unheard = None;
        }
        while let Some(packet) = self.log.front() {
            let age = ack.wrapping_sub(packet.seq);
            if age >= 0x8000 {
                break;
            }
            if age == 0 {
                let sample = sh.now.as_nanos().saturating_sub(packet.at.as_nanos());
                self.rtt_ns =
                    if self.rtt_ns == 0 { sample } else { self.rtt_ns - self.rtt_ns / 8 + sample / 8 };
                self.stats.rtt = Duration::from_nanos(self.rtt_ns);
            }
            if age == 0 || age <= 64 && bits >> (age - 1) & 1 != 0 {
                self.delivered(sh);
            } else {
                self.lost(sh);
            }
        }
        Ok(())
    }

    /// Gives up packets that no acknowledgement will speak of any more.
    fn expire(&mut self, sh: &Shared) {
        let patience = (4 * self.rtt_ns).max(1_000_000_000);
        while let Some(packet) = self.log.front() {
            let old = sh.frame.wrapping_sub(packet.frame) >= RING as u32 - 1;
            if !old && sh.now.as_nanos().saturating_sub(packet.at.as_nanos()) <= patience {
                break;
            }
            self.lost(sh);
        }
    }

    #[inline]
    fn delivered(&mut self, sh: &Shared) {
        if !sh.any_delta && self.log.pop_plain() {
            self.stats.packets_delivered += 1;
        } else {
            self.delivered_items(sh);
        }
    }

    #[inline(never)]
    fn delivered_items(&mut self, sh: &Shared) {
        let mut fate = core::mem::take(&mut self.fate);
        let packet = if sh.any_delta {
            self.log.pop(&mut fate.words, &mut fate.items)
        } else {
            self.log.pop_delivered(&mut fate.items)
        };
        let Some(packet) = packet else { return };
        self.stats.packets_delivered += 1;
        for word in fate.words.drain(..) {
            if !sh.streams[word.stream()].partial {
                let at = word.word() as usize;
                let bits = word.bits & sh.objects.delta.word(at) & self.live.word(at);
                if bits != 0 {
                    self.bases.delivered(word.word(), bits, packet.frame);
                }
            }
        }
        for item in fate.items.drain(..) {
            match item {
                Item::Update { object, complete, .. } => {
                    if complete && self.live.get(object) && sh.is_delta(object) {
                        self.bases.delivered(object / 64, 1 << (object % 64), packet.frame);
                    }
                }
                Item::Create { object } => {
                    if self.pairs.get(&object) == Some(&Pair::Creating(packet.frame)) {
                        self.pairs.remove(&object);
                        self.live.set(object);
                        if sh.is_delta(object) {
                            self.bases.delivered(object / 64, 1 << (object % 64), packet.frame);
                        }
                    }
                }
                Item::Destroy { object } => self.destroyed(object),
                Item::Attach { object, sequence } => self.attachments.delivered(object, sequence),
                Item::Part { id, part } => self.part_delivered(id, part),
                Item::Token { key } => drop(self.known_tokens.insert(key, ())),
                Item::Keyed { .. } | Item::Reset { .. } | Item::Ending { .. } | Item::Role { .. } => {}
            }
        }
        self.fate = fate;
    }

    /// The receiver has confirmed the object's end.
    fn destroyed(&mut self, object: u32) {
        if let Some(Pair::Destroying(..)) = self.pairs.get(&object) {
            self.pairs.remove(&object);
            self.end_arrays(object);
            self.counts.push(Count::Forget(object));
            if self.scope.get(object) {
                self.pairs.insert(object, Pair::CreateQueued { known: false });
                self.creates.push(object);
            }
        }
    }

    #[inline(never)]
    fn lost(&mut self, sh: &Shared) {
        let mut fate = core::mem::take(&mut self.fate);
        let Some(packet) = self.log.pop(&mut fate.words, &mut fate.items) else { return };
        self.stats.packets_lost += 1;
        for word in fate.words.drain(..) {
            self.lost_records(sh, packet.frame, word);
        }
        for item in fate.items.drain(..) {
            match item {
                Item::Update { object, mask, .. } => {
                    if sh.is_delta(object) {
                        self.bases.lost(object / 64, 1 << (object % 64));
                    }
                    if self.has(object) && self.scope.get(object) {
                        let mask = mask & self.mask_for(sh, object, false);
                        self.stats.properties_resent += u64::from(mask.count_ones());
                        self.pending.add(object, mask);
                    }
                }
                Item::Create { object } => {
                    if self.pairs.get(&object) == Some(&Pair::Creating(packet.frame)) {
                        self.pairs.insert(object, Pair::CreateQueued { known: true });
                        self.creates.push(object);
                        self.pending.remove(object);
                    }
                }
                Item::Destroy { object } => {
                    if let Some(Pair::Destroying(reason, losses)) = self.pairs.get(&object).copied() {
                        self.pairs.insert(object, Pair::DestroyQueued(reason, losses.saturating_add(1)));
                        self.destroys.push(object);
                        self.unresponsive |= losses >= END_LOSSES_MAX;
                    }
                }
                Item::Attach { object, sequence } => self.attachments.lost(object, sequence),
                Item::Keyed { object, array, from } => self.set_back(object, array, from),
                Item::Part { id, part } => self.part_lost(id, part),
                Item::Role { object } => self.queue_role(object),
                Item::Ending { token, reason } => self.endings.push((token, reason)),
                // A text goes out again with the next use.
                Item::Reset { .. } | Item::Token { .. } => {}
            }
        }
        self.fate = fate;
    }

    /// Common records were lost: what no later packet carries has to be sent again, with the value
    /// of then.
    fn lost_records(&mut self, sh: &Shared, frame: u32, lost: SentWord) {
        let word = lost.word();
        let wanted = lost.bits & self.scope.word(word as usize) & self.live.word(word as usize);
        if wanted == 0 {
            return;
        }
        let deltas = wanted & sh.objects.delta.word(word as usize);
        if deltas != 0 {
            self.bases.lost(word, deltas);
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
        // An atomic object's properties go together or not at all.
        for bit in bits_of(wanted & sh.objects.atomic.word(word as usize)) {
            sh.streams[lost.stream()].list(frame).masks_of(word, 1 << bit, |_, mask| masks[bit] = mask);
        }
        // A state that still waits for an earlier loss is not whole, whatever later packets carry.
        let carried = bits_of(deltas & !self.pending.bits(word)).filter(|bit| masks[*bit] == 0);
        let carried = carried.fold(0, |all, bit| all | 1_u64 << bit);
        if carried != 0 {
            self.bases.sent_again(word, carried, sh.frame);
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
    pub(crate) fn reset_baseline(&mut self, object: u32) {
        if self.live.get(object) {
            self.resets.insert(object);
        }
        self.reveal_retained(object, u64::MAX);
    }

    /// Serves requests for whole states.
    #[inline(never)]
    fn serve_resets(&mut self, sh: &Shared) {
        for _ in 0..RESETS_MAX {
            let Some(object) = self.resets.pop_first() else { return };
            // Others never need one.
            let needed = sh.is_delta(object) || sh.config.check_frames > 0;
            if needed && self.live.get(object) && self.scope.get(object) {
                let mask = self.mask_for(sh, object, false);
                self.pending.add(object, mask);
                self.bases.invalidate(object);
                self.stats.resets += 1;
            }
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let bitmaps = [&self.live, &self.forced_out].map(Bitmap::heap_bytes).iter().sum::<usize>();
        let sparse =
            [&self.scope, &self.forced_in, &self.teamed].map(Sparse::heap_bytes).iter().sum::<usize>();
        bitmaps
            + sparse
            + self.nearby.iter().map(Nearby::heap_bytes).sum::<usize>()
            + self.answers.iter().map(Sparse::heap_bytes).sum::<usize>()
            + self.bands.iter().map(Sparse::heap_bytes).sum::<usize>()
            + self.pending.heap_bytes()
            + self.bases.heap_bytes()
    }

    pub(crate) fn is_live(&self, object: u32) -> bool {
        self.live.get(object)
    }
}

/// Contents of a packet whose fate is being decided.
#[derive(Debug, Default)]
struct Fate {
    words: Vec<SentWord>,
    items: Vec<Item>,
}

/// One connection's turn. Methods for what most connections do not have in most frames are never
/// inlined, so that the usual way keeps its values in registers.
pub(crate) struct Stage<'a> {
    pub(crate) conn: &'a mut Connection,
    pub(crate) sh: &'a Shared,
    pub(crate) scratch: &'a mut Scratch,
}

impl Stage<'_> {
    /// Decides and writes everything of this frame; the packets are in `scratch.out` then.
    pub(crate) fn run(&mut self) {
        self.conn.pending.frame = self.sh.frame;
        let patience = self.sh.config.unresponsive_after;
        self.conn.expire(self.sh);
        self.conn.unresponsive |= self.conn.unheard.is_some_and(|since| self.sh.now.since(since) >= patience);
        if self.conn.unresponsive {
            self.scratch.out.discard();
            return;
        }
        if !self.conn.resets.is_empty() {
            self.conn.serve_resets(self.sh);
        }
        self.update_scope();
        if !self.scratch.entered.is_empty() || !self.scratch.left.is_empty() {
            self.apply_transitions();
        }
        self.write();
    }
}
