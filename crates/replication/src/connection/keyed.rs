//! Progress of a connection in keyed arrays, and writing the rest.

use super::transfer::Purpose;
use super::{BURST_PACKETS, Connection, Pair, Stage};
use crate::bits::write_varint;
use crate::class::Condition;
use crate::keyed::{Cursor, was_whole};
use crate::sent::Item;
use crate::server::Shared;
use crate::wire::{HEADER_BYTES, bits_of, kind};

/// Bytes of one item at most, so that it finds room in a packet that others have begun.
const ITEM_BYTES_MAX: usize = 400;
/// Bytes around the operations of an item in a packet: section, index, array, length.
const AROUND: usize = 12;

impl Connection {
    /// True when the connection gets the array of the object.
    fn gets_array(&self, sh: &Shared, object: u32, condition: Condition) -> bool {
        let outside = matches!(condition, Condition::Group(group) if self.groups >> group & 1 == 0);
        !outside && condition.admits(self.role(sh, object)).0
    }

    /// The object begins anew on the receiver, with empty arrays.
    pub(super) fn begin_arrays(&mut self, sh: &Shared, object: u32) {
        let count = sh.store(object).class.keyed.len();
        if count > 0 {
            self.cursors.insert(object, vec![None; count]);
            self.behind.set(object);
        }
    }

    /// An item was lost: what came after `from` goes out again.
    pub(super) fn set_back(&mut self, object: u32, array: u8, from: Option<Cursor>) {
        if let Some(place) =
            self.cursors.get_mut(&object).and_then(|cursors| cursors.get_mut(usize::from(array)))
        {
            *place = Cursor::set_back(*place, from);
            self.behind.set(object);
        }
    }

    /// The audience of the object's arrays may have changed, with owner, groups or role.
    pub(crate) fn recheck_arrays(&mut self, object: u32) {
        if self.cursors.contains_key(&object) {
            self.behind.set(object);
        }
    }

    pub(super) fn end_arrays(&mut self, object: u32) {
        if self.cursors.remove(&object).is_some() {
            self.behind.clear(object);
        }
    }
}

impl Stage<'_> {
    /// Writes what receivers lack of arrays, as long as less than a share of `allowance` is spent.
    /// What finds no room stays behind until the next frame.
    #[inline(never)]
    pub(super) fn write_arrays(&mut self, allowance: usize) {
        let (conn, sh) = (&mut *self.conn, self.sh);
        for word in crate::bitmap::members(sh.keyed_changed.top().iter().copied()) {
            for bit in bits_of(sh.keyed_changed.word(word) & conn.scope.word(word)) {
                conn.recheck_arrays((word * 64 + bit) as u32);
            }
        }
        let mut objects = core::mem::take(&mut self.scratch.words);
        objects.clear();
        objects.extend(self.conn.behind.iter());
        let share = (allowance as f64 * sh.config.create_share) as usize;
        for object in &objects {
            if self.scratch.out.spent() > share || self.scratch.out.ends().len() >= BURST_PACKETS {
                break;
            }
            // The whole object goes first.
            if self.conn.transfers(*object) {
                continue;
            }
            let creating = matches!(self.conn.pairs.get(object), Some(Pair::Creating(_)));
            let known = self.conn.live.get(*object) || creating;
            if known && self.write_arrays_of(*object) {
                self.conn.behind.clear(*object);
            }
        }
        self.scratch.words = objects;
    }

    /// True when the receiver lacks nothing that it should get.
    fn write_arrays_of(&mut self, object: u32) -> bool {
        let sh = self.sh;
        let class = &sh.store(object).class;
        let Some(arrays) = sh.keyed.get(&object) else { return true };
        let packet = self.conn.packet_bytes;
        let bytes_max = ITEM_BYTES_MAX.min(packet.saturating_sub(HEADER_BYTES + AROUND));
        let room = packet.saturating_sub(HEADER_BYTES + 2);
        for (at, (keyed, array)) in class.keyed.iter().zip(arrays).enumerate() {
            loop {
                let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
                if scratch.out.ends().len() >= BURST_PACKETS {
                    return false;
                }
                let Some(cursors) = conn.cursors.get_mut(&object) else { return true };
                let place = cursors[at];
                if array.is_reached(place) {
                    // It has all of an array that was never changed, too.
                    cursors[at].get_or_insert_default();
                    break;
                }
                // Of a temporary object it gets everything once.
                let has_all = class.flags.temporary && was_whole(place);
                if has_all || !conn.gets_array(sh, object, keyed.condition) {
                    break;
                }
                scratch.delta.clear();
                let (known, exports) = (&conn.known_tokens, &mut scratch.exports);
                exports.clear();
                let mut texts = |mask: u64, words: &[u64]| {
                    exports.need_of_fields(known, sh, keyed, (mask, words));
                    exports.len()
                };
                let reached = array.write(keyed, place, bytes_max, &mut texts, &mut scratch.delta);
                // Without those of the operation that found no room.
                exports.clear();
                exports.need_of_ops(known, sh, keyed, &scratch.delta);
                let record = &mut scratch.record;
                record.clear();
                put_item(record, object, at, &scratch.delta);
                let len = record.len();
                if exports.len() + len > room {
                    self.write_element_in_parts(object, at, (place, reached));
                    return false;
                }
                if !self.write_exports(len + 2) {
                    return false;
                }
                let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
                if !scratch.out.reserve(&mut conn.log, kind::KEYED, len) {
                    return false;
                }
                scratch.out.put(&scratch.record);
                conn.log.push_item(Item::Keyed { object, array: at as u8, from: place });
                conn.stats.elements_sent += u64::from(scratch.delta[0]);
                if let Some(cursors) = conn.cursors.get_mut(&object) {
                    cursors[at] = Some(reached);
                }
            }
        }
        true
    }

    /// Items of what the receiver of an object that ends may lack of its arrays, what is in flight
    /// included; adds the texts that they need.
    pub(super) fn last_elements(&mut self, object: u32) -> Vec<Vec<u8>> {
        let (conn, sh) = (&*self.conn, self.sh);
        let mut items = Vec::new();
        let Some(arrays) = sh.keyed.get(&object) else { return items };
        // An object that came back and ended before it was created again left no place: its replica
        // may have anything.
        let mut places = conn.cursors.get(&object).cloned().unwrap_or_else(|| vec![None; arrays.len()]);
        for item in conn.log.items() {
            if let Item::Keyed { object: sent, array, from } = item
                && *sent == object
                && let Some(place) = places.get_mut(usize::from(*array))
            {
                *place = Cursor::set_back(*place, *from);
            }
        }
        let class = &sh.store(object).class;
        for (at, (keyed, array)) in class.keyed.iter().zip(arrays).enumerate() {
            while !array.is_reached(places[at]) && conn.gets_array(sh, object, keyed.condition) {
                let mut operations = Vec::new();
                let reached = array.write(keyed, places[at], ITEM_BYTES_MAX, &mut |_, _| 0, &mut operations);
                places[at] = Some(reached);
                self.scratch.exports.need_of_ops(&conn.known_tokens, sh, keyed, &operations);
                let mut item = Vec::new();
                put_item(&mut item, object, at, &operations);
                items.push(item);
            }
        }
        items
    }

    /// Begins to send an element in parts, because no packet holds it with the texts that it needs.
    fn write_element_in_parts(&mut self, object: u32, array: usize, (from, to): (Option<Cursor>, Cursor)) {
        let (conn, scratch) = (&mut *self.conn, &mut *self.scratch);
        // As with other transfers, the receiver must have the object.
        if !conn.live.get(object) {
            return;
        }
        let mut body = Vec::new();
        scratch.exports.write_section(&mut body);
        body.extend_from_slice(&[kind::KEYED, 1]);
        body.extend_from_slice(&scratch.record);
        let operations = u64::from(scratch.delta[0]);
        if self.begin_transfer(object, Purpose::Elements { array: array as u8, from }, body) {
            // Properties of this frame, which were found to be ready, do not wait for elements.
            self.conn.held.clear(object);
            self.conn.stats.elements_sent += operations;
            if let Some(cursors) = self.conn.cursors.get_mut(&object) {
                cursors[array] = Some(to);
            }
        }
    }
}

/// Appends an item of operations on an array.
fn put_item(out: &mut Vec<u8>, object: u32, array: usize, operations: &[u8]) {
    write_varint(out, u64::from(object));
    out.push(array as u8);
    out.extend_from_slice(&(operations.len() as u16).to_le_bytes());
    out.extend_from_slice(operations);
}
