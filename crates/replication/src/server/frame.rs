//! A frame: the shared stage, the connection stages in lanes, and what they leave
//! behind.

use std::time::Duration;

use throng_stdx::Instant;

use super::{ClassStats, ConnId, Event, Filter, FollowerKind, Server, ServerStats, Shared};
use crate::connection::{Connection, Count, Scratch, Stage};
use crate::objects::{NOBODY, Objects};
use crate::wire::{bits_of, write_record};

impl Server {
    /// Runs a whole frame on this thread and hands each connection's packets to `sink`.
    pub fn tick(&mut self, now: Instant, mut sink: impl FnMut(Packets<'_>)) {
        self.begin_frame(now);
        for mut lane in self.lanes(1) {
            lane.run(&mut sink);
        }
        self.end_frame();
    }

    /// The shared stage: quantises what was marked, compares, moves objects in the grid, and writes
    /// one record for each changed object that somebody sees. `now` never goes back.
    pub fn begin_frame(&mut self, now: Instant) {
        self.shared.now = now;
        self.shared.frame = self.shared.frame.wrapping_add(1);
        self.poll();
        if self.shared.config.verify_push {
            self.verify_push();
        }
        let shared = &mut self.shared;
        let frame = shared.frame;
        shared.grid.settle(frame);
        let count = shared.objects.class.len();
        for stream in &mut shared.streams {
            stream.begin(frame, count);
        }
        for gathering in &mut shared.gatherings {
            gathering.grow(count);
        }
        shared.any_slow = false;
        let among = |count: usize| (shared.config.creates_per_frame as usize / count.max(1)).max(CREATES_MIN);
        shared.create_quota = (among(self.connections.len()), among(self.joining as usize));
        for slot in &mut shared.custom {
            slot.filter.begin_frame(frame);
        }
        for top in 0..shared.objects.dirty.top().len() {
            for bit in bits_of(shared.objects.dirty.top()[top]) {
                let word = top * 64 + bit;
                let dirty = shared.objects.dirty.word(word);
                shared.objects.dirty.put_word(word, 0);
                for bit in bits_of(dirty) {
                    let index = (word * 64 + bit) as u32;
                    let (stats, by_class) = (&mut self.stats, &mut self.class_stats[..]);
                    let counts = Counts { stats, by_class };
                    collect(shared, &self.filters, counts, &mut self.record, index);
                }
            }
        }
        shared.objects.flushing.clear();
        for band in 0..shared.gatherings.len() {
            let mut due = core::mem::take(&mut self.due);
            due.clear();
            shared.gatherings[band].take_due(frame, |object, mask| due.push((object, mask)));
            for (object, mask) in &due {
                if shared.objects.refs[*object as usize] > 0 && shared.objects.alive.get(*object) {
                    let counts = Counts { stats: &mut self.stats, by_class: &mut self.class_stats };
                    list(shared, counts, &mut self.record, band + 1, *object, *mask);
                }
            }
            self.due = due;
        }
        for stream in &mut shared.streams {
            stream.end();
        }
    }

    /// The connection stages, in `count` parts of neighbouring connections. Parts may run on
    /// different threads; what a connection gets does not depend on how many there are: one at
    /// least, and no more than connections.
    pub fn lanes(&mut self, count: usize) -> impl Iterator<Item = Lane<'_>> {
        let count = count.clamp(1, self.connections.len().max(1));
        if self.scratch.len() < count {
            self.scratch.resize_with(count, Scratch::default);
        }
        let shared = &self.shared;
        let size = self.connections.len().div_ceil(count).max(1);
        let chunks = self.connections.chunks_mut(size);
        chunks.zip(&mut self.scratch).map(move |(connections, scratch)| Lane { shared, connections, scratch })
    }

    /// Brings counts and events together that the connection stages left behind. Costs what
    /// happened.
    pub fn end_frame(&mut self) {
        if self.shared.keyed_changed.top().iter().any(|top| *top != 0) {
            self.shared.keyed_changed.clear_all();
        }
        for lane in 0..self.scratch.len() {
            for place in core::mem::take(&mut self.scratch[lane].touched) {
                let Some(Some(conn)) = self.connections.get_mut(place as usize) else { continue };
                for count in conn.counts.drain(..) {
                    apply_count(&mut self.shared.objects, &mut self.joining, count);
                }
                self.events.extend(conn.events.drain(..));
                if conn.unresponsive {
                    let id = conn.id;
                    self.disconnect(id);
                    self.events.push_back(Event::Unresponsive(id));
                }
            }
        }
        let objects = &mut self.shared.objects;
        let (stores, keyed) = (&mut self.shared.stores, &mut self.shared.keyed);
        self.dying.retain(|index| {
            let at = *index as usize;
            if objects.refs[at] > 0 || objects.known[at] > 0 {
                return true;
            }
            stores[usize::from(objects.class[at])].release(objects.slot[at]);
            objects.generation[at] = objects.generation[at].wrapping_add(1);
            objects.flush.clear(*index);
            keyed.remove(index);
            objects.give_back(*index);
            false
        });
    }

    /// The present frame's number.
    #[must_use]
    pub fn frame(&self) -> u32 {
        self.shared.frame
    }

    /// Counts of the shared stage.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.stats
    }
}

/// Create items that every connection is sent in a frame if it lacks some.
const CREATES_MIN: usize = 32;

/// Counts of the shared stage.
struct Counts<'a> {
    stats: &'a mut ServerStats,
    /// Empty unless it is wanted.
    by_class: &'a mut [ClassStats],
}

/// One object of the shared stage's work set.
#[inline]
fn collect(shared: &mut Shared, filters: &[Filter], counts: Counts<'_>, record: &mut Vec<u8>, index: u32) {
    let at = index as usize;
    let objects = &mut shared.objects;
    let (mut settled, mut mask) = (0, core::mem::take(&mut objects.dirty_mask[at]));
    if objects.dormant.get(index) || !objects.settled.is_empty() {
        (settled, mask) = objects.marks_of_sleeper(index, mask);
    }
    let changed = settled | absorb(shared, filters, &mut counts.stats.nans, (index, mask));
    let objects = &shared.objects;
    let alive = objects.alive.get(index);
    let store = &mut shared.stores[usize::from(objects.class[at])];
    let slot = objects.slot[at];
    let stats = &mut *counts.stats;
    if changed == 0 || !(alive || objects.flush.get(index)) {
        return;
    }
    if store.class.flags.retain {
        store.note(slot, changed, shared.frame);
    }
    if store.class.flags.delta {
        store.remember(slot, shared.frame);
    }
    let mask = changed & store.class.update_mask & !objects.disabled[at];
    stats.objects_dirty += 1;
    stats.properties_dirty += u64::from(changed.count_ones());
    if let Some(class) = counts.by_class.get_mut(usize::from(objects.class[at])) {
        class.objects_dirty += 1;
        bits_of(changed).for_each(|property| class.properties_dirty[property] += 1);
    }
    if mask == 0 || objects.refs[at] == 0 || store.class.flags.temporary {
        return;
    }
    if !shared.gatherings.is_empty() && objects.lod.get(index) {
        for gathering in &mut shared.gatherings {
            gathering.add(index, mask);
        }
        // Only its owner gets every change in its frame.
        if objects.owner[at] == NOBODY {
            return;
        }
    }
    list(shared, counts, record, 0, index, mask);
}

/// Takes the properties of `mask` over into the quantised copy, and puts the object where its
/// position says; returns those that changed.
#[inline(always)]
pub(super) fn absorb(
    shared: &mut Shared,
    filters: &[Filter],
    nans: &mut u64,
    (index, mask): (u32, u64),
) -> u64 {
    let at = index as usize;
    let objects = &mut shared.objects;
    let store = &mut shared.stores[usize::from(objects.class[at])];
    let slot = objects.slot[at];
    let (changed, none) = store.quantise(slot, mask);
    *nans += u64::from(none);
    if let Some(property) = store.class.position
        && mask >> property & 1 != 0
        && objects.alive.get(index)
    {
        let live = &store.live(slot)[store.class.props[property].live..][..3];
        let position = [0, 1, 2].map(|axis| f32::from_bits(live[axis]));
        // A position with a NaN leaves the last place; it was counted when it was quantised.
        if position.iter().all(|part| !part.is_nan()) {
            [objects.x[at], objects.y[at], objects.z[at]] = position;
            if filters[at] == Filter::Grid {
                shared.grid.place(index, position, objects.cull[at]);
            }
            if objects.leads.get(index) {
                for follower in shared.followers.get(&index).into_iter().flatten() {
                    if follower.kind == FollowerKind::Sub {
                        let part = follower.object as usize;
                        [objects.x[part], objects.y[part], objects.z[part]] = position;
                    }
                }
            }
        }
    }
    changed
}

/// Lists a changed object in a stream, with its common record.
#[inline]
fn list(shared: &mut Shared, counts: Counts<'_>, record: &mut Vec<u8>, stream: usize, index: u32, mask: u64) {
    let at = index as usize;
    let (objects, stream) = (&shared.objects, &mut shared.streams[stream]);
    let store = &shared.stores[usize::from(objects.class[at])];
    let slot = objects.slot[at];
    let common = mask & store.class.update_masks[0];
    let mut fast = !objects.special.get(index) && common != 0;
    // A receiver that lacks a text gets it in the packet that uses it.
    if fast && store.class.token_mask & common != 0 && !shared.tokens.is_empty() {
        (fast, shared.any_slow) = (false, true);
    }
    if fast {
        let from = stream.bytes.len();
        if store.class.heap_count == 0 {
            write_record(&mut stream.bytes, index, &store.class, common, store.quant(slot), &[]);
        } else {
            record.clear();
            write_record(record, index, &store.class, common, store.quant(slot), store.heap(slot));
            stream.bytes.extend_from_slice(record);
        }
        // What fits no packet beside a header takes the slow way.
        if stream.bytes.len() - from > shared.config.packet_bytes_max - crate::wire::HEADER_BYTES - 2 {
            stream.bytes.truncate(from);
            (fast, shared.any_slow) = (false, true);
        } else {
            counts.stats.records_shared += 1;
            if let Some(class) = counts.by_class.get_mut(usize::from(objects.class[at])) {
                class.records += 1;
                class.record_bytes += (stream.bytes.len() - from) as u64;
            }
        }
    }
    stream.push(index, mask, fast);
}

pub(super) fn apply_count(objects: &mut Objects, joining: &mut u32, count: Count) {
    match count {
        Count::Join => *joining += 1,
        Count::Joined => *joining -= 1,
        Count::Ref(object) => objects.refs[object as usize] += 1,
        Count::Unref(object) => objects.refs[object as usize] -= 1,
        Count::Know(object) => objects.known[object as usize] += 1,
        Count::Forget(object) => objects.known[object as usize] -= 1,
    }
}

/// A part of the connections, to be run on one thread.
#[derive(Debug)]
pub struct Lane<'a> {
    shared: &'a Shared,
    connections: &'a mut [Option<Box<Connection>>],
    scratch: &'a mut Scratch,
}

impl Lane<'_> {
    /// Runs the connection stage of each connection, in the order of their numbers, and hands its
    /// packets to `sink`. The bytes are valid during the call only.
    pub fn run(&mut self, sink: &mut impl FnMut(Packets<'_>)) {
        self.scratch.begin(self.shared);
        for conn in self.connections.iter_mut().flatten() {
            let id = conn.id;
            Stage { conn, sh: self.shared, scratch: self.scratch }.run();
            if !(conn.counts.is_empty() && conn.events.is_empty()) || conn.unresponsive {
                self.scratch.touched.push(id.index());
            }
            let out = &self.scratch.out;
            if !out.ends().is_empty() {
                sink(Packets { connection: id, bytes: out.bytes(), ends: out.ends() });
            }
        }
    }
}

/// The packets of one connection and frame, one after the other, as a driver may hand them to the
/// kernel in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Packets<'a> {
    /// For whom they are.
    pub connection: ConnId,
    /// All packets.
    pub bytes: &'a [u8],
    /// End of each packet.
    pub ends: &'a [usize],
}

impl<'a> Packets<'a> {
    /// Packet by packet.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, ends) = (self.bytes, self.ends);
        let mut from = 0;
        ends.iter().map(move |end| {
            let packet = &bytes[from..*end];
            from = *end;
            packet
        })
    }
}

/// Time between two frames, for drivers that have no other wish: 30 Hz.
pub const FRAME_INTERVAL: Duration = Duration::from_nanos(33_333_333);

/// Properties of `mask` by index.
pub fn properties_of(mask: u64) -> impl Iterator<Item = usize> {
    bits_of(mask)
}
