//! Creations and ends of replicas, and calls.

use super::transfer::Purpose;
use super::write::hide;
use super::{BURST_PACKETS, Count, Pair, Scratch, Stage};
use crate::attach::{Outgoing, Ready};
use crate::bits::write_varint;
use crate::priority::View;
use crate::sent::Item;
use crate::server::Shared;
use crate::tokens::NAMES;
use crate::wire::{HEADER_BYTES, bits_of, kind, write_record};

/// Result of writing a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreateResult {
    Yes,
    /// Nor is there room for others.
    NoRoom,
    /// Something else has to go first.
    Later,
}

impl Stage<'_> {
    #[inline(never)]
    pub(super) fn write_destroys(&mut self) {
        let sh = self.sh;
        let mut queued = core::mem::take(&mut self.conn.destroys);
        // An object that came back and left again is listed twice.
        queued.sort_unstable();
        queued.dedup();
        let mut kept = Vec::new();
        for object in queued {
            let Some(Pair::DestroyQueued(reason, losses)) = self.conn.pairs.get(&object).copied() else {
                continue;
            };
            if self.scratch.out.ends().len() >= BURST_PACKETS {
                kept.push(object);
                continue;
            }
            // The whole last state travels in the same packet, so that it arrives if the end does.
            let flushed = sh.objects.flush.get(object);
            let items = if flushed { self.make_last(object) } else { Vec::new() };
            let scratch = &mut *self.scratch;
            scratch.record.clear();
            write_varint(&mut scratch.record, u64::from(object));
            scratch.record.push(reason);
            if flushed && self.last_bytes(&items) > self.conn.packet_bytes - HEADER_BYTES {
                // No packet holds the last state: both go in parts, the end behind the state.
                let body = self.last_body(&items);
                if body.len() <= sh.config.transfer_bytes_max {
                    if self.begin_transfer(object, Purpose::Destroy, body) {
                        self.conn.pairs.insert(object, Pair::Destroying(reason, losses));
                        self.conn.stats.destroys += 1;
                    } else {
                        kept.push(object);
                    }
                    continue;
                }
                // No transfer does: the end goes without it.
                self.conn.stats.oversized += 1;
            } else if flushed && !self.write_last(&items) {
                kept.push(object);
                continue;
            }
            let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
            if !scratch.out.reserve(&mut conn.log, kind::DESTROY, scratch.record.len()) {
                kept.push(object);
                continue;
            }
            scratch.out.put(&scratch.record);
            conn.log.push_item(Item::Destroy { object });
            conn.pairs.insert(object, Pair::Destroying(reason, losses));
            conn.stats.destroys += 1;
        }
        self.conn.destroys = kept;
    }

    /// Makes the last state of an object: the record of all properties in `delta` (with its
    /// length), the texts that the receiver lacks, and the returned items of its keyed arrays.
    fn make_last(&mut self, object: u32) -> Vec<Vec<u8>> {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        let store = sh.store(object);
        let heap = store.heap(sh.objects.slot[object as usize]);
        let mask = conn.mask_for(sh, object, false);
        let words = hide(conn, sh, object, mask, &mut scratch.block);
        let record = &mut scratch.delta;
        record.clear();
        record.extend_from_slice(&[0; 2]);
        write_record(record, object, &store.class, mask, words, heap);
        scratch.exports.clear();
        match u16::try_from(record.len() - 2) {
            Ok(len) => {
                record[..2].copy_from_slice(&len.to_le_bytes());
                scratch.exports.need_of(&conn.known_tokens, sh, (&store.class, mask), words, heap);
            }
            // Longer than an update may be: the end goes without the last properties.
            Err(_) => {
                record.clear();
                conn.stats.oversized += 1;
            }
        }
        self.last_elements(object)
    }

    /// Bytes of sections with the last state that was made, and its end, at most.
    fn last_bytes(&self, items: &[Vec<u8>]) -> usize {
        let Scratch { delta, exports, record, .. } = &*self.scratch;
        let sections = 2 * (3 + items.len() / 100);
        exports.len() + delta.len() + items.iter().map(Vec::len).sum::<usize>() + record.len() + sections
    }

    /// The sections of the last state that was made, and of its end, for a transfer.
    fn last_body(&self, items: &[Vec<u8>]) -> Vec<u8> {
        let Scratch { delta, exports, record, .. } = &*self.scratch;
        let mut body = Vec::new();
        exports.write_section(&mut body);
        if !delta.is_empty() {
            body.extend_from_slice(&[kind::SIZED_UPDATE, 1]);
            body.extend_from_slice(delta);
        }
        if !items.is_empty() {
            body.push(kind::KEYED);
            write_varint(&mut body, items.len() as u64);
            items.iter().for_each(|item| body.extend_from_slice(item));
        }
        body.extend_from_slice(&[kind::DESTROY, 1]);
        body.extend_from_slice(record);
        body
    }

    /// Writes the last state that was made into a packet that has room for its end as well; false
    /// when there is none in this frame.
    fn write_last(&mut self, items: &[Vec<u8>]) -> bool {
        let together = self.last_bytes(items);
        let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
        scratch.out.keep_together(&mut conn.log, together);
        if !scratch.out.find_room(together) || !self.write_exports(together - self.scratch.exports.len()) {
            return false;
        }
        let (log, scratch) = (&mut self.conn.log, &mut *self.scratch);
        let out = &mut scratch.out;
        if !scratch.delta.is_empty() {
            if !out.reserve(log, kind::SIZED_UPDATE, scratch.delta.len()) {
                return false;
            }
            out.put(&scratch.delta);
        }
        for item in items {
            if !out.reserve(log, kind::KEYED, item.len()) {
                return false;
            }
            out.put(item);
        }
        true
    }

    /// Tells the receiver whether it owns the object, and what the object belongs to.
    fn write_role(&mut self, object: u32) -> bool {
        let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
        scratch.record.clear();
        write_varint(&mut scratch.record, u64::from(object));
        let above = sh.objects.parent[object as usize];
        scratch.record.push(u8::from(conn.owns(sh, object)) | u8::from(above != 0) << 1);
        if above != 0 {
            write_parent(&mut scratch.record, sh, above);
        }
        if !scratch.out.reserve(&mut conn.log, kind::ROLE, scratch.record.len()) {
            return false;
        }
        scratch.out.put(&scratch.record);
        conn.log.push_item(Item::Role { object });
        true
    }

    /// Notifies the receiver of changes of owners and parents. Kept replicas out of scope wait
    /// until they are back.
    #[inline(never)]
    pub(super) fn write_roles(&mut self) {
        let mut from = 0;
        while let Some(object) = self.conn.roles.range(from..).next().copied() {
            from = object + 1;
            if self.conn.transfers(object) || !self.conn.has(object) {
                let waits = self.conn.transfers(object) || self.conn.retained.contains_key(&object);
                if !waits {
                    // The next creation carries the role of then.
                    self.conn.roles.remove(&object);
                }
            } else if self.write_role(object) {
                self.conn.roles.remove(&object);
            } else {
                return;
            }
        }
    }

    /// Tells which objects of the receiver's map have ended, by name.
    #[inline(never)]
    pub(super) fn write_endings(&mut self) {
        let mut left = self.conn.endings.len();
        while left > 0 {
            left -= 1;
            let (token, reason) = self.conn.endings[left];
            if self.scratch.out.ends().len() >= BURST_PACKETS {
                return;
            }
            let (conn, sh, scratch) = (&mut *self.conn, self.sh, &mut *self.scratch);
            scratch.exports.clear();
            scratch.exports.need(&conn.known_tokens, sh, NAMES, token);
            scratch.record.clear();
            // Index 0 names no object.
            scratch.record.extend_from_slice(&[0, reason]);
            write_varint(&mut scratch.record, u64::from(token));
            let len = scratch.record.len();
            if HEADER_BYTES + scratch.exports.len() + len + 2 > conn.packet_bytes {
                // The name waits for longer packets.
                conn.stats.oversized += 1;
                continue;
            }
            let room = self.write_exports(len + 2);
            let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
            if !room || !scratch.out.reserve(&mut conn.log, kind::DESTROY, len) {
                return;
            }
            scratch.out.put(&scratch.record);
            conn.log.push_item(Item::Ending { token, reason });
            conn.endings.remove(left);
        }
    }

    /// Finds the objects whose state waits for their attachments, or for the rest of them to
    /// arrive.
    pub(super) fn hold(&mut self) {
        let conn = &mut *self.conn;
        conn.give_up_transfer();
        conn.holds = conn.transfer.is_some();
        if let Some(transfer) = &conn.transfer {
            conn.held.set(transfer.object);
        }
        if conn.attachments.is_idle() {
            return;
        }
        conn.calling.extend(conn.attachments.objects());
        conn.holds |= !conn.calling.is_empty();
        for object in &conn.calling {
            conn.held.set(*object);
        }
    }

    /// State and the first attachment of an object stand in one packet if it holds both: so that
    /// one never overtakes the state of its frame, even when a packet is lost or comes too late.
    /// Nor do reliable ones behind it, which wait for it.
    #[inline(never)]
    pub(super) fn write_attachments(&mut self, allowance: usize) {
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
            if self.conn.transfers(object) {
                continue;
            }
            // State of this frame, whether it waits by itself or in a band of detail.
            let changed = self.conn.pending.mask(object) | self.conn.gathered(self.sh, object).1;
            if ready == Ready::Yes && changed != 0 {
                let call = self.conn.attachments.first_bytes(object);
                if !self.write_pending(object, call) {
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
        self.conn.stats.calls_dropped = self.conn.attachments.dropped_total;
    }

    /// Create items, nearest first when not all fit; `waiting`: updates want their share too.
    #[inline(never)]
    pub(super) fn write_creates(&mut self, allowance: usize, waiting: bool) {
        let sh = self.sh;
        let conn = &mut *self.conn;
        let quota = if conn.joining { sh.create_quota.1 } else { sh.create_quota.0 };
        let share = if waiting { (allowance as f64 * sh.config.create_share) as usize } else { allowance };
        let mut queued = core::mem::take(&mut conn.creates);
        queued.retain(|object| matches!(conn.pairs.get(object), Some(Pair::CreateQueued { .. })));
        let mut nearest = core::mem::take(&mut self.scratch.waiting);
        nearest.clear();
        let views = if conn.budget.is_some() || queued.len() > quota { &conn.views[..] } else { &[] };
        let square = |object: u32| {
            let at = object as usize;
            let position = [sh.objects.x[at], sh.objects.y[at], sh.objects.z[at]];
            let to = |view: &View| (0..3).map(|i| (view.position[i] - position[i]).powi(2)).sum::<f32>();
            // Squares are not negative: they order like their bits.
            views.iter().map(to).fold(f32::MAX, f32::min).to_bits()
        };
        nearest.extend(queued.drain(..).map(|object| (square(object), object)));
        // Those beyond the quota wait in any order.
        if nearest.len() > quota {
            nearest.select_nth_unstable(quota);
        }
        let count = quota.min(nearest.len());
        nearest[..count].sort_unstable();
        queued.extend(nearest[count..].iter().map(|(_, object)| *object));
        let mut full = false;
        let mut before = 0;
        for (_, object) in &nearest[..count] {
            // An object that left and came back is listed twice.
            if core::mem::replace(&mut before, *object) == *object {
                continue;
            }
            // A parent's creation comes first, in this packet or an earlier one.
            let above = sh.objects.parent[*object as usize];
            let orphan = above != 0
                && self.conn.scope.get(above)
                && (!self.conn.has(above) || self.conn.transfers(above));
            full |= self.scratch.out.ends().len() >= BURST_PACKETS || self.scratch.out.spent() > share;
            let written = if full || orphan { CreateResult::Later } else { self.write_create(*object) };
            full |= written == CreateResult::NoRoom;
            if written != CreateResult::Yes {
                queued.push(*object);
            }
        }
        self.scratch.waiting = nearest;
        let conn = &mut *self.conn;
        conn.creates = queued;
        if conn.joining == conn.creates.is_empty() {
            conn.joining = !conn.joining;
            conn.counts.push(if conn.joining { Count::Join } else { Count::Joined });
        }
    }

    fn write_create(&mut self, object: u32) -> CreateResult {
        let sh = self.sh;
        let room = self.conn.packet_bytes - HEADER_BYTES - 2;
        if self.conn.transfer.is_some() && sh.record_bytes_max(object) + 24 > room {
            return CreateResult::Later;
        }
        self.make_create(object);
        let (record, exports) = (&self.scratch.record, &self.scratch.exports);
        let len = record.len();
        if exports.len() + len > room {
            let mut body = Vec::new();
            exports.write_section(&mut body);
            body.extend_from_slice(&[kind::CREATE, 1]);
            body.extend_from_slice(record);
            if !self.begin_transfer(object, Purpose::Create, body) {
                return CreateResult::Later;
            }
        } else {
            if !self.write_exports(len + 2) {
                return CreateResult::NoRoom;
            }
            let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
            if !scratch.out.reserve(&mut conn.log, kind::CREATE, len) {
                return CreateResult::NoRoom;
            }
            scratch.out.put(&scratch.record);
            conn.log.push_item(Item::Create { object });
        }
        self.begin_life(object);
        CreateResult::Yes
    }

    /// Makes the create item, and the exports that it needs.
    fn make_create(&mut self, object: u32) {
        let sh = self.sh;
        let store = sh.store(object);
        let class = &store.class;
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
        let owner = conn.owns(sh, object);
        let named = sh.named.get(&object);
        let flags = u8::from(above != 0)
            | u8::from(named.is_some()) << 1
            | u8::from(named.is_some_and(|named| named.startup)) << 5
            | u8::from(owner) << 2
            | u8::from(class.flags.temporary) << 3
            | u8::from(sh.objects.dormant.get(object)) << 4;
        record.push(flags);
        if above != 0 {
            write_parent(record, sh, above);
        }
        if let Some(named) = named {
            write_varint(record, u64::from(named.token));
        }
        if owner {
            record.push(1);
        }
        let mut writer = crate::bits::BitWriter::new(record);
        crate::wire::write_mask(&mut writer, mask, class.props.len() as u32);
        crate::wire::write_properties(&mut writer, class, mask, quant, heap);
        writer.finish();
        let exports = &mut self.scratch.exports;
        exports.clear();
        if let Some(named) = named {
            exports.need(&conn.known_tokens, sh, NAMES, named.token);
        }
        exports.need_of(&conn.known_tokens, sh, (class, mask), quant, heap);
    }

    /// The object's creation is on its way.
    fn begin_life(&mut self, object: u32) {
        let (conn, sh) = (&mut *self.conn, self.sh);
        if conn.pairs.insert(object, Pair::Creating(sh.frame)) == Some(Pair::CreateQueued { known: false }) {
            conn.counts.push(Count::Know(object));
        }
        conn.pending.remove(object);
        conn.begin_arrays(sh, object);
        if sh.is_delta(object) {
            conn.bases.reset(object);
        }
        conn.stats.creates += 1;
    }
}

/// Appends the name of an object's parent.
fn write_parent(out: &mut Vec<u8>, sh: &Shared, above: u32) {
    write_varint(out, u64::from(above));
    write_varint(out, u64::from(sh.objects.generation[above as usize]));
}
