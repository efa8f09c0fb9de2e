//! One replica, and how records are read into it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bits::BitReader;
use crate::class::Class;
use crate::field::{Field, FieldReader};
use crate::handle::Handle;
use crate::keyed::Elements;
use crate::quantise::{Value, WORDS_MAX};
use crate::wire::{BASELINE_AGE_MAX, DecodeError, HeapValue, bits_of, read_mask};

/// States kept of each object of a class with differences: one more than a record can name.
const HISTORY: usize = BASELINE_AGE_MAX as usize + 1;

/// The copy of an object.
#[derive(Clone, Debug)]
pub struct Replica {
    pub(super) class: Arc<Class>,
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) words: Vec<u64>,
    pub(super) heap: Vec<HeapValue>,
    pub(super) frame: u32,
    /// The object that it belongs to, or none.
    pub(super) parent: Handle,
    pub(super) owner: bool,
    /// Archetype, or name in the map.
    pub(super) archetype: Option<Arc<str>>,
    pub(super) startup: bool,
    /// Number of the event that further changes join, if it was not taken yet.
    pub(super) update_at: Option<u64>,
    /// Properties that were sent as differences to a state that is not there, and not again since.
    pub(super) missing: u64,
    /// Objects that its references name, by property.
    pub(super) links: BTreeSet<(usize, u32)>,
    /// Elements of the class' keyed arrays.
    pub(super) keyed: Vec<Elements>,
    /// Frames of the states that differences build on, by frame modulo `HISTORY`; empty for classes
    /// without differences.
    pub(super) history: Vec<Option<u32>>,
    /// The words of these states, one after the other.
    pub(super) states: Vec<u64>,
}

impl Replica {
    /// Its class.
    #[must_use]
    pub fn class(&self) -> &Class {
        &self.class
    }

    /// The server's frame of the last state that was applied.
    #[must_use]
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// This client owns it.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.owner
    }

    /// Generation of its index.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The object that it belongs to: its root if it is a part, else what the server named with
    /// [`set_parent`](crate::Server::set_parent). Whether that object is here shows on use.
    #[must_use]
    pub fn parent(&self) -> Option<Handle> {
        (!self.parent.is_none()).then_some(self.parent)
    }

    /// Archetype, if the server set one: see
    /// [`Server::set_archetype`](crate::Server::set_archetype).
    #[must_use]
    pub fn archetype(&self) -> Option<&str> {
        self.archetype.as_deref().filter(|_| !self.startup)
    }

    /// Its name, if the client's map has the object already: it is bound, not spawned. See
    /// [`Server::create_startup`](crate::Server::create_startup).
    #[must_use]
    pub fn startup_name(&self) -> Option<&str> {
        self.archetype.as_deref().filter(|_| self.startup)
    }

    /// The quantised words, as the server keeps them.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The value of a property.
    #[must_use]
    pub fn value(&self, property: usize) -> Option<Value> {
        let prop = self.class.props.get(property)?;
        if prop.codec.is_heap() {
            return prop.codec.read_heap(&self.heap[prop.heap].0).ok();
        }
        Some(prop.codec.dequantise(prop.words(&self.words)))
    }

    /// Reads a property into a field that exists.
    pub(crate) fn read_field(&self, property: usize, field: &mut impl Field) -> Option<()> {
        let prop = self.class.props.get(property)?;
        if prop.codec.is_heap() {
            let mut bits = BitReader::new(&self.heap[prop.heap].0);
            return field.read_from(&mut FieldReader::of_bits(&prop.codec, &mut bits));
        }
        field.read_from(&mut FieldReader::of_words(&prop.codec, prop.words(&self.words)))
    }

    pub(crate) fn has_element(&self, array: usize, key: u32) -> bool {
        self.keyed.get(array).is_some_and(|elements| elements.contains_key(&key))
    }

    /// Calls `each` with the key and the fields of every element of an array.
    pub(crate) fn read_elements(
        &self,
        array: usize,
        each: &mut dyn FnMut(u32, &mut dyn Iterator<Item = FieldReader<'_, '_>>) -> Option<()>,
    ) -> Option<()> {
        let class = self.class.keyed.get(array)?;
        for (key, words) in self.keyed.get(array)? {
            let mut fields =
                class.fields.iter().map(|field| FieldReader::of_words(&field.codec, &words[field.word..]));
            each(*key, &mut fields)?;
        }
        Some(())
    }

    /// The element of a keyed array, field by field.
    #[must_use]
    pub fn element(&self, array: usize, key: u32) -> Option<Vec<Value>> {
        Some(self.class.keyed.get(array)?.values(self.keyed.get(array)?.get(&key)?))
    }

    /// Keys of a keyed array, ascending; none for an array that does not exist.
    pub fn element_keys(&self, array: usize) -> impl ExactSizeIterator<Item = u32> + '_ {
        static NONE: Elements = Elements::new();
        self.keyed.get(array).unwrap_or(&NONE).keys().copied()
    }

    /// Name of the object.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::from_parts(self.index, self.generation)
    }

    pub(super) fn reset(&mut self) {
        self.keyed.iter_mut().for_each(Elements::clear);
        self.words.copy_from_slice(&self.class.defaults);
        for (value, default) in self.heap.iter_mut().zip(&self.class.heap_defaults) {
            *value = (default.0.to_vec(), default.1);
        }
    }

    pub(super) fn remember(&mut self, frame: u32) {
        if self.class.flags.delta {
            if self.history.is_empty() {
                self.history.resize(HISTORY, None);
                self.states.resize(HISTORY * self.words.len(), 0);
            }
            let (at, len) = (frame as usize % HISTORY, self.words.len());
            self.history[at] = Some(frame);
            self.states[at * len..][..len].copy_from_slice(&self.words);
        }
    }

    pub(super) fn state_at(&self, frame: u32) -> Option<&[u64]> {
        let (at, len) = (frame as usize % HISTORY, self.words.len());
        (*self.history.get(at)? == Some(frame)).then(|| &self.states[at * len..][..len])
    }
}

/// Equal when an application sees the same object in the same state.
impl PartialEq for Replica {
    fn eq(&self, other: &Self) -> bool {
        let of = |replica: &Self| (replica.handle(), replica.frame, replica.owner, replica.parent);
        of(self) == of(other)
            && self.class.protocol_hash() == other.class.protocol_hash()
            && (&self.words, &self.heap, &self.keyed) == (&other.words, &other.heap, &other.keyed)
    }
}

/// Between a record's index and its properties.
pub(super) struct RecordHead {
    pub(super) mask: u64,
    pub(super) age: Option<u32>,
}

impl RecordHead {
    pub(super) fn read(class: &Class, reader: &mut BitReader<'_>) -> Result<Self, DecodeError> {
        let full = reader.get_bool()?;
        let mask = if full { class.update_mask } else { read_mask(reader, class.props.len() as u32)? };
        let age = if reader.get_bool()? { Some(reader.get(5)? as u32 + 1) } else { None };
        if age.is_some() && !class.flags.delta {
            return Err(DecodeError::Value);
        }
        Ok(Self { mask, age })
    }
}

/// Reads a record without keeping anything.
pub(super) fn skim_record(class: &Class, reader: &mut BitReader<'_>) -> Result<(), DecodeError> {
    let head = RecordHead::read(class, reader)?;
    let mut sink = Vec::new();
    let mut words = [0; WORDS_MAX];
    for at in bits_of(head.mask) {
        if head.age.is_some() {
            skim_delta(class, at, reader, &mut words, &mut sink)?;
        } else {
            skim_property(class, at, reader, &mut sink)?;
        }
    }
    Ok(())
}

pub(super) fn skim_property(
    class: &Class,
    property: usize,
    reader: &mut BitReader<'_>,
    sink: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let codec = &class.props[property].codec;
    if codec.is_heap() {
        sink.clear();
        codec.copy_heap(reader, sink).map(|_| ())
    } else {
        codec.read(reader, &mut [0; WORDS_MAX])
    }
}

pub(super) fn skim_delta(
    class: &Class,
    property: usize,
    reader: &mut BitReader<'_>,
    words: &mut [u64; WORDS_MAX],
    sink: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let codec = &class.props[property].codec;
    if codec.is_heap() {
        if reader.get_bool()? { Ok(()) } else { skim_property(class, property, reader, sink) }
    } else {
        codec.read_delta(reader, words)
    }
}

/// Reads one property into the replica: plain, or as a difference to a state and its age.
pub(super) fn read_property(
    replica: &mut Replica,
    property: usize,
    base: Option<(&[u64], u32)>,
    reader: &mut BitReader<'_>,
) -> Result<(), DecodeError> {
    let prop = &replica.class.props[property];
    if prop.codec.is_heap() {
        if base.is_some() && reader.get_bool()? {
            return Ok(());
        }
        let value = &mut replica.heap[prop.heap];
        value.0.clear();
        value.1 = prop.codec.copy_heap(reader, &mut value.0)?;
        return Ok(());
    }
    let words = &mut replica.words[prop.word..prop.word + prop.codec.words()];
    match base {
        None => prop.codec.read(reader, words),
        Some(base) => {
            words.copy_from_slice(replica.class.ahead(property, base, &mut [0; WORDS_MAX]));
            prop.codec.read_delta(reader, words)
        }
    }
}
