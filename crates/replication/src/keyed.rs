//! Keyed arrays: elements with stable keys, of which only what changed is sent.
//!
//! Every change of an array has a number. Each element knows the number of its last change, and the
//! array keeps keys in the order of these numbers, removed ones included. A receiver's place is one
//! number: what comes after it is what the receiver lacks, each key once and with its present
//! value. A loss sets the place back.

use std::collections::BTreeMap;

use crate::bits::{BitReader, BitWriter};
use crate::class::Condition;
use crate::quantise::{Codec, Quantiser, Value, ValueMismatch, WORDS_MAX};
use crate::wire::{DecodeError, bits_of};

/// Fields of an element at most: the bits of its change mask.
pub const ELEMENT_FIELDS_MAX: usize = 32;
/// Arrays of one class at most.
pub(crate) const ARRAYS_MAX: usize = 16;
/// Removed keys that an array remembers; a receiver that is further behind starts over.
const REMOVED_MAX: usize = 4096;

/// Describes a keyed array of a class, for [`ClassBuilder::keyed`](crate::ClassBuilder::keyed).
///
/// ```
/// use throng_replication::{Class, Condition, Keyed, Quantiser};
/// let bag = Keyed::new("bag", 500)
///     .field("item", Quantiser::UInt(16))
///     .field("count", Quantiser::UInt(10))
///     .condition(Condition::OwnerOnly);
/// let class = Class::builder("character").keyed(bag).build()?;
/// # let _ = class;
/// # Ok::<(), throng_replication::ClassError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Keyed {
    pub(crate) name: String,
    pub(crate) fields: Vec<(String, Quantiser)>,
    pub(crate) max: u32,
    pub(crate) condition: Condition,
}

impl Keyed {
    /// An array of at most `max` elements, without fields yet. Receivers may have more for a while:
    /// an element can come before the end of the one whose place it took.
    #[must_use]
    pub fn new(name: impl Into<String>, max: u32) -> Self {
        Self { name: name.into(), fields: Vec::new(), max, condition: Condition::Always }
    }

    /// Adds a field to the elements. Blobs, texts, arrays, options, enums and a game's own
    /// quantisers are refused when the class is built.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, quantiser: Quantiser) -> Self {
        self.fields.push((name.into(), quantiser));
        self
    }

    /// Restricts who gets the array: those whom the condition gives updates.
    #[must_use]
    pub fn condition(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }
}

/// A described array, ready for use.
#[derive(Clone, Debug)]
pub(crate) struct KeyedClass {
    pub(crate) name: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) words: usize,
    pub(crate) max: usize,
    pub(crate) condition: Condition,
    /// Some field is a token.
    pub(crate) has_tokens: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) codec: Codec,
    pub(crate) word: usize,
}

impl KeyedClass {
    /// The array, or the field whose quantiser does not fit.
    pub(crate) fn compile(keyed: &Keyed) -> Result<Self, (String, crate::QuantiserError)> {
        let mut fields = Vec::new();
        let mut words = 0;
        for (name, quantiser) in &keyed.fields {
            let codec = Codec::compile(quantiser).map_err(|error| (name.clone(), error))?;
            if codec.is_heap() || codec.is_custom() || fields.len() == ELEMENT_FIELDS_MAX {
                return Err((name.clone(), crate::QuantiserError::Nested));
            }
            fields.push(Field { word: words, codec });
            words += fields[fields.len() - 1].codec.words();
        }
        Ok(Self {
            name: keyed.name.clone(),
            has_tokens: fields.iter().any(|field| field.codec.token_table().is_some()),
            fields,
            words,
            max: keyed.max as usize,
            condition: keyed.condition,
        })
    }

    fn all(&self) -> u64 {
        crate::quantise::mask(self.fields.len() as u32)
    }

    /// Elements of a replica at most. Those that were removed leave it late: their removal lies
    /// behind later additions when the key is used again, or is lost and sent again.
    fn held_max(&self) -> usize {
        self.max.saturating_mul(4).saturating_add(256)
    }

    pub(crate) fn values(&self, words: &[u64]) -> Vec<Value> {
        self.fields.iter().map(|field| field.codec.dequantise(&words[field.word..])).collect()
    }

    fn quantise(&self, values: &[Value]) -> Result<Box<[u64]>, ValueMismatch> {
        if values.len() != self.fields.len() {
            return Err(ValueMismatch);
        }
        let mut words = vec![0; self.words].into_boxed_slice();
        for (field, value) in self.fields.iter().zip(values) {
            let (mut live, mut q) = ([0; 4], [0; WORDS_MAX]);
            field.codec.store(value, &mut live)?;
            field.codec.quantise(&live, &mut q);
            let count = field.codec.words();
            words[field.word..field.word + count].copy_from_slice(&q[..count]);
        }
        Ok(words)
    }
}

/// Effect of an operation on an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Op {
    Remove = 0,
    /// All fields.
    Add = 1,
    /// A mask, and its fields.
    Change = 2,
    /// Of all elements; the key means nothing.
    Clear = 3,
}

#[derive(Clone, Debug)]
struct Element {
    words: Box<[u64]>,
    /// Numbers of the change that added it and of the last one, and of the last one of each field.
    added: u64,
    changed: u64,
    fields: Box<[u64]>,
}

/// Progress of a receiver in an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The newest change when the receiver began with nothing.
    since: u64,
    /// The newest change when the receiver lacked nothing last: it has every element of then that
    /// is still there. Of later ones it may have none, even if their numbers are passed: a change
    /// moves an element to a new number.
    complete: u64,
    /// Changes up to this number have been sent.
    at: u64,
}

impl Cursor {
    /// A receiver at `place` did not get an item that began at `from`. That may be a place of an
    /// earlier creation of the object, and so beyond `place` in part.
    pub(crate) fn set_back(place: Option<Self>, from: Option<Self>) -> Option<Self> {
        let (place, from) = (place?, from?);
        Some(Self { complete: place.complete.min(from.complete), at: place.at.min(from.at), ..place })
    }
}

/// A receiver at this place lacked nothing at some time since it began.
pub(crate) fn was_whole(place: Option<Cursor>) -> bool {
    place.is_some_and(|place| place.complete >= place.since)
}

/// The elements of one array of one object, on the server.
#[derive(Clone, Debug)]
pub(crate) struct KeyedArray {
    elements: BTreeMap<u32, Element>,
    /// Keys by the number of their last change; those of `removed` are gone.
    order: BTreeMap<u64, u32>,
    removed: BTreeMap<u32, u64>,
    /// Number of the newest change.
    newest: u64,
    /// Removals up to this number are forgotten.
    forgotten: u64,
}

impl KeyedArray {
    pub(crate) fn new() -> Self {
        let (elements, order, removed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { elements, order, removed, newest: 0, forgotten: 0 }
    }

    pub(crate) fn words(&self, key: u32) -> Option<&[u64]> {
        self.elements.get(&key).map(|element| &element.words[..])
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = u32> {
        self.elements.keys().copied()
    }

    /// Sets an element; returns whether anything changed, or that there is no room.
    pub(crate) fn set(
        &mut self,
        class: &KeyedClass,
        key: u32,
        values: &[Value],
    ) -> Result<bool, ElementError> {
        let words = class.quantise(values).map_err(ElementError::Value)?;
        if let Some(element) = self.elements.get_mut(&key) {
            let next = self.newest + 1;
            let mut changed = false;
            for (field, number) in class.fields.iter().zip(&mut element.fields) {
                let place = field.word..field.word + field.codec.words();
                if element.words[place.clone()] != words[place] {
                    *number = next;
                    changed = true;
                }
            }
            if changed {
                self.order.remove(&element.changed);
                (element.changed, element.words) = (next, words);
                self.order.insert(next, key);
                self.newest = next;
            }
            return Ok(changed);
        }
        if self.elements.len() == class.max {
            return Err(ElementError::TooMany(class.max));
        }
        self.newest += 1;
        let number = self.newest;
        if let Some(before) = self.removed.remove(&key) {
            self.order.remove(&before);
        }
        let fields = vec![number; class.fields.len()].into_boxed_slice();
        self.elements.insert(key, Element { words, added: number, changed: number, fields });
        self.order.insert(number, key);
        Ok(true)
    }

    /// Removes an element; returns whether it was there.
    pub(crate) fn remove(&mut self, key: u32) -> bool {
        let Some(element) = self.elements.remove(&key) else { return false };
        self.order.remove(&element.changed);
        self.newest += 1;
        self.order.insert(self.newest, key);
        self.removed.insert(key, self.newest);
        if self.removed.len() > REMOVED_MAX {
            // Nothing before the last forgotten one is left of removed keys.
            let mut later = self.order.range(self.forgotten + 1..);
            let oldest = later.find(|(_, key)| self.removed.contains_key(key));
            if let Some((number, key)) = oldest.map(|(number, key)| (*number, *key)) {
                self.order.remove(&number);
                self.removed.remove(&key);
                self.forgotten = number;
            }
        }
        true
    }

    /// A receiver at this place lacks nothing.
    pub(crate) fn is_reached(&self, place: Option<Cursor>) -> bool {
        self.newest == place.map_or(0, |place| place.at)
    }

    /// Writes what comes after `place` (`None`: everything, onto nothing) into at most `bytes_max`
    /// bytes, and at most 255 operations; returns the place after it. The count of operations is
    /// the first byte. `beside` is called for the fields (mask and words) of each operation that
    /// may follow, and returns the bytes that all of them so far need elsewhere in the packet.
    pub(crate) fn write(
        &self,
        class: &KeyedClass,
        place: Option<Cursor>,
        bytes_max: usize,
        beside: &mut dyn FnMut(u64, &[u64]) -> usize,
        out: &mut Vec<u8>,
    ) -> Cursor {
        // What was removed and forgotten while the receiver had it would stay for ever.
        let place = place.filter(|place| place.at.max(place.since) >= self.forgotten);
        let start = out.len();
        out.push(0);
        let begins = u8::from(place.is_none());
        if begins != 0 {
            put_op(out, 0, Op::Clear, |_| {});
        }
        let mut reached = place.unwrap_or(Cursor { since: self.newest, complete: 0, at: 0 });
        let Cursor { at: from, complete, .. } = reached;
        let mut count = begins;
        for (number, key) in self.order.range(from + 1..) {
            let before = out.len();
            let mut needed = 0;
            match self.elements.get(key) {
                // Nobody who starts with nothing needs to hear of it.
                None if begins != 0 => {}
                None => put_op(out, *key, Op::Remove, |_| {}),
                Some(element) if element.added > complete => {
                    put_op(out, *key, Op::Add, |writer| {
                        put_fields(writer, class, class.all(), &element.words)
                    });
                    needed = beside(class.all(), &element.words);
                }
                Some(element) => {
                    let newer = element.fields.iter().enumerate().filter(|(_, number)| **number > complete);
                    let mask = newer.fold(0, |all, (at, _)| all | 1_u64 << at);
                    put_op(out, *key, Op::Change, |writer| {
                        writer.put(mask, class.fields.len() as u32);
                        put_fields(writer, class, mask, &element.words);
                    });
                    needed = beside(mask, &element.words);
                }
            }
            // One goes out however long it is.
            if out.len() - start + needed > bytes_max && count > begins {
                out.truncate(before);
                break;
            }
            count += u8::from(out.len() > before);
            reached.at = *number;
            if count == u8::MAX {
                break;
            }
        }
        out[start] = count;
        if reached.at == self.newest {
            reached.complete = self.newest;
        }
        reached
    }
}

/// Why an element was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElementError {
    /// No such object or array.
    #[error("the object does not exist or has no such array")]
    Unknown,
    /// The values are not the fields' values.
    #[error("element: {0}")]
    Value(ValueMismatch),
    /// The array is full.
    #[error("the array has {0} elements, its limit")]
    TooMany(usize),
}

fn put_op(out: &mut Vec<u8>, key: u32, op: Op, payload: impl FnOnce(&mut BitWriter<'_>)) {
    crate::bits::write_varint(out, u64::from(key));
    let mut writer = BitWriter::new(out);
    writer.put(op as u64, 2);
    payload(&mut writer);
    writer.finish();
}

fn put_fields(writer: &mut BitWriter<'_>, class: &KeyedClass, mask: u64, words: &[u64]) {
    for at in bits_of(mask) {
        let field = &class.fields[at];
        field.codec.write(&words[field.word..field.word + field.codec.words()], writer);
    }
}

/// The elements of one array of one replica.
pub(crate) type Elements = BTreeMap<u32, Box<[u64]>>;

/// What the operations of one packet on one array leave behind, as far as the number of elements
/// goes.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Keys that operations spoke of, and whether they are there afterwards.
    touched: BTreeMap<u32, bool>,
    cleared: bool,
    len: usize,
}

impl Tally {
    /// Before the first operation, on so many elements.
    pub(crate) fn new(len: usize) -> Self {
        Self { touched: BTreeMap::new(), cleared: false, len }
    }

    fn there(&self, elements: &Elements, key: u32) -> bool {
        self.touched.get(&key).copied().unwrap_or(!self.cleared && elements.contains_key(&key))
    }
}

/// Looks at the operations of one item. The number of elements must never exceed the receiver's
/// limit: `elements` are those that there are now, `tally` what earlier items of the packet did to
/// them.
pub(crate) fn check_ops(
    class: &KeyedClass,
    reader: &mut BitReader<'_>,
    elements: &Elements,
    tally: &mut Tally,
) -> Result<(), DecodeError> {
    for_each_op(class, reader, |op| {
        match op {
            ReadOp::Remove(key) => {
                tally.len -= usize::from(tally.there(elements, key));
                tally.touched.insert(key, false);
            }
            ReadOp::Set { key, whole: true, .. } => {
                tally.len += usize::from(!tally.there(elements, key));
                tally.touched.insert(key, true);
            }
            ReadOp::Set { .. } => {}
            ReadOp::Clear => *tally = Tally { cleared: true, ..Tally::new(0) },
        }
        if tally.len > class.held_max() { Err(DecodeError::TooLong) } else { Ok(()) }
    })
}

/// Calls `each` with table and number of every token in operations that were written here.
pub(crate) fn each_token(class: &KeyedClass, reader: &mut BitReader<'_>, each: &mut dyn FnMut(u8, u32)) {
    let result = for_each_op(class, reader, |op| {
        if let ReadOp::Set { mask, words, .. } = op {
            for field in bits_of(mask).map(|at| &class.fields[at]) {
                if let Some(table) = field.codec.token_table() {
                    each(table, words[field.word] as u32);
                }
            }
        }
        Ok(())
    });
    debug_assert!(result.is_ok(), "our own operations: {result:?}");
}

/// Applies operations that were checked.
pub(crate) fn apply_ops(
    class: &KeyedClass,
    reader: &mut BitReader<'_>,
    elements: &mut Elements,
) -> Result<(), DecodeError> {
    for_each_op(class, reader, |op| {
        match op {
            ReadOp::Remove(key) => drop(elements.remove(&key)),
            ReadOp::Set { key, whole: true, words, .. } => drop(elements.insert(key, words.into())),
            // A change of an element whose beginning was lost is dropped: it will come again,
            // whole.
            ReadOp::Set { key, mask, words, .. } => {
                if let Some(known) = elements.get_mut(&key) {
                    for at in bits_of(mask) {
                        let field = &class.fields[at];
                        let place = field.word..field.word + field.codec.words();
                        known[place.clone()].copy_from_slice(&words[place]);
                    }
                }
            }
            ReadOp::Clear => elements.clear(),
        }
        Ok(())
    })
}

enum ReadOp<'a> {
    Remove(u32),
    /// The words of the fields of `mask`; `whole`: those of all.
    Set {
        key: u32,
        whole: bool,
        mask: u64,
        words: &'a [u64],
    },
    Clear,
}

fn for_each_op(
    class: &KeyedClass,
    reader: &mut BitReader<'_>,
    mut each: impl FnMut(ReadOp<'_>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut words = vec![0; class.words];
    for _ in 0..reader.get(8)? {
        let key = u32::try_from(reader.get_varint()?).map_err(|_| DecodeError::Value)?;
        let op = match reader.get(2)? {
            0 => ReadOp::Remove(key),
            3 => ReadOp::Clear,
            op => {
                let whole = op == Op::Add as u64;
                let mask = if whole { class.all() } else { reader.get(class.fields.len() as u32)? };
                for at in bits_of(mask) {
                    let field = &class.fields[at];
                    let place = field.word..field.word + field.codec.words();
                    field.codec.read(reader, &mut words[place])?;
                }
                ReadOp::Set { key, whole, mask, words: &words }
            }
        };
        each(op)?;
        reader.align();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use throng_stdx::Rng;

    fn class(max: u32) -> Arc<KeyedClass> {
        let keyed =
            Keyed::new("bag", max).field("item", Quantiser::UInt(16)).field("count", Quantiser::VarUInt);
        Arc::new(KeyedClass::compile(&keyed).unwrap())
    }

    fn read(class: &Arc<KeyedClass>, bytes: &[u8], elements: &mut Elements) {
        let mut tally = Tally::new(elements.len());
        check_ops(class, &mut BitReader::new(bytes), elements, &mut tally).unwrap();
        apply_ops(class, &mut BitReader::new(bytes), elements).unwrap();
    }

    /// Receivers that lose some items, and are set back then, end up with what the server has.
    #[test]
    fn every_receiver_catches_up() {
        let class = class(300);
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut array = KeyedArray::new();
            let mut replica = Elements::new();
            let mut place = None;
            for round in 0..400_u64 {
                for _ in 0..rng.below(6) {
                    let key = rng.below(100) as u32;
                    if rng.chance(0.3) {
                        array.remove(key);
                    } else {
                        array.set(&class, key, &[Value::UInt(rng.below(50)), Value::UInt(round)]).unwrap();
                    }
                }
                let mut out = Vec::new();
                let reached =
                    array.write(&class, place, 20 + rng.below(60) as usize, &mut |_, _| 0, &mut out);
                if rng.chance(0.7) {
                    read(&class, &out, &mut replica);
                    place = Some(reached);
                }
            }
            for _ in 0..100 {
                let mut out = Vec::new();
                place = Some(array.write(&class, place, 60, &mut |_, _| 0, &mut out));
                read(&class, &out, &mut replica);
            }
            assert!(array.is_reached(place));
            let server: Elements = array.keys().map(|key| (key, array.words(key).unwrap().into())).collect();
            assert_eq!(replica, server, "seed {seed}");
        }
    }

    /// An item of an earlier creation is lost after the object was created again: what is in flight
    /// to the new replica does not count as arrived.
    #[test]
    fn a_loss_never_sets_a_place_forward() {
        let new = Cursor { since: 10, complete: 0, at: 4 };
        let old = Cursor { since: 5, complete: 5, at: 5 };
        assert_eq!(Cursor::set_back(Some(new), Some(old)), Some(new));
        let earlier = Cursor { since: 10, complete: 0, at: 2 };
        assert_eq!(Cursor::set_back(Some(new), Some(earlier)), Some(earlier));
        assert_eq!(Cursor::set_back(Some(new), None), None);
        assert_eq!(Cursor::set_back(None, Some(old)), None);
    }

    #[test]
    fn who_is_too_far_behind_starts_over() {
        let class = class(10_000);
        let mut array = KeyedArray::new();
        let (mut replica, mut place) = (Elements::new(), None);
        let catch_up = |array: &KeyedArray, place: &mut Option<Cursor>, replica: &mut Elements| {
            for _ in 0..200 {
                let mut out = Vec::new();
                *place = Some(array.write(&class, *place, 1000, &mut |_, _| 0, &mut out));
                read(&class, &out, replica);
            }
            assert!(array.is_reached(*place));
        };
        for key in 0..6000 {
            array.set(&class, key, &[Value::UInt(1), Value::UInt(2)]).unwrap();
        }
        catch_up(&array, &mut place, &mut replica);
        for key in 0..5000 {
            array.remove(key);
        }
        assert!(place.unwrap().at < array.forgotten && array.removed.len() == REMOVED_MAX);
        catch_up(&array, &mut place, &mut replica);
        assert!(replica.keys().copied().eq(5000..6000));
    }

    #[test]
    fn no_more_elements_than_the_limit() {
        let class = class(2);
        let mut array = KeyedArray::new();
        let values = [Value::UInt(1), Value::UInt(2)];
        assert_eq!(array.set(&class, 1, &values), Ok(true));
        assert_eq!(array.set(&class, 1, &values), Ok(false));
        assert_eq!(array.set(&class, 2, &values), Ok(true));
        assert_eq!(array.set(&class, 3, &values), Err(ElementError::TooMany(2)));
        assert!(matches!(array.set(&class, 1, &values[..1]), Err(ElementError::Value(_))));
        let mut out = Vec::new();
        array.write(&class, None, 100, &mut |_, _| 0, &mut out);
        // The receiver counts as well: too many are refused before anything is applied.
        let some = |count: u32| (100..100 + count).map(|key| (key, Box::from([0, 0]))).collect::<Elements>();
        let check = |out: &[u8], known: &Elements| {
            check_ops(&class, &mut BitReader::new(out), known, &mut Tally::new(known.len()))
        };
        assert_eq!(check(&out, &some(264)), Ok(()));
        out.clear();
        let place = Some(Cursor { since: 0, complete: 0, at: 0 });
        array.write(&class, place, 100, &mut |_, _| 0, &mut out);
        assert_eq!(check(&out, &some(262)), Ok(()));
        assert_eq!(check(&out, &some(263)), Err(DecodeError::TooLong));
    }
}
