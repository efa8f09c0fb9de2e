//! Merge plans: the schema of each field, compiled for processing wire bytes.

use std::sync::Arc;

use super::cursor::{FIXED32, FIXED64, LEN, VARINT, read_key_varint, read_varint};
use super::rule::Rule;

/// How updates of a type are merged into its channel data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Schema-driven merge: scalars overwrite, messages merge, lists append, map entries are
    /// replaced whole. Options act only when the channel has them.
    Reflect,
    /// As [`Profile::Reflect`], but without options of its own a channel deletes map entries whose
    /// value says `removed`.
    Removable,
    /// The rules that generated Unreal games follow: map entries merge deeply, `removed` deletes.
    Unreal,
}

/// Merge options of a channel, as its creator gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MergeOptions {
    /// A list in an update replaces the list in the data; an absent or empty list never does.
    pub replace_list: bool,
    /// Longest list kept, in elements; 0 is no limit.
    pub list_size_limit: u32,
    /// Which end a list loses when it is too long: `false` keeps the first elements, `true` the
    /// last.
    pub truncate_top: bool,
    /// Map entries whose value has `removed = true` are deleted.
    pub check_removable: bool,
}

/// Bounds of channel data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLimits {
    /// Most bytes one channel's data may take in encoded form; an update that could lead beyond is
    /// refused.
    pub state_bytes_max: usize,
    /// Most bytes kept of a type without a schema; older updates are dropped to stay below.
    pub opaque_bytes_max: usize,
}

impl Default for DataLimits {
    fn default() -> Self {
        // 16 MiB: 250 times the largest packet, many seconds of a newcomer's bandwidth. Updates at
        // the bound are tried on a copy of the data, so the bound also limits what one update may
        // cost. 1 MiB of opaque bytes: sixteen full packets, what a late subscriber can take in at
        // once.
        Self { state_bytes_max: 16 << 20, opaque_bytes_max: 1 << 20 }
    }
}

/// How one message type merges, validates, filters and splits.
///
/// Made by [`Schemas`](super::Schemas); cheap to share.
#[derive(Debug)]
pub struct Plan {
    pub(crate) name: Box<str>,
    pub(crate) profile: Profile,
    pub(crate) limits: DataLimits,
    pub(crate) types: Arc<Types>,
    /// The message type; `None` when no schema is known and updates are concatenated.
    pub(crate) root: Option<TypeIndex>,
    /// Fields of the root that the Unreal profile treats in its own way, by slot. Empty in other
    /// profiles.
    pub(crate) classes: Box<[Class]>,
    /// Rules of fields of the root, by slot. Empty when there are none.
    pub(crate) rules: Box<[Option<Rule>]>,
}

impl Plan {
    /// A plan for a type whose schema is unknown: updates are concatenated, which protobuf decoders
    /// read as a merge.
    #[must_use]
    pub fn opaque(name: &str, limits: DataLimits) -> Self {
        Self {
            name: name.into(),
            profile: Profile::Reflect,
            limits,
            types: Arc::new(Types::default()),
            root: None,
            classes: Box::default(),
            rules: Box::default(),
        }
    }

    /// Full protobuf name, such as `tpspb.TestRepChannelData`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The merge rules in force.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Whether no schema is known for the type.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        self.root.is_none()
    }

    /// Bounds of data of this type.
    #[must_use]
    pub fn limits(&self) -> DataLimits {
        self.limits
    }

    /// Most bytes that data of this type may take in encoded form.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        if self.is_opaque() { self.limits.opaque_bytes_max } else { self.limits.state_bytes_max }
    }

    /// The rule of the root's field `slot`.
    pub(crate) fn rule(&self, slot: u16) -> Option<&Rule> {
        self.rules.get(usize::from(slot))?.as_ref()
    }

    /// Whether entries of some map take over parts of an update instead of being replaced by it.
    pub(crate) fn has_copies(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule, Some(Rule::Copy(_))))
    }

    /// The Unreal class of the root's field `slot`.
    pub(crate) fn class(&self, slot: u16) -> Class {
        self.classes.get(usize::from(slot)).copied().unwrap_or(Class::Plain)
    }
}

/// Index of a message type in [`Types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypeIndex(pub(crate) u32);

/// Every message type of a schema set.
#[derive(Debug, Default)]
pub(crate) struct Types(pub(crate) Vec<TypePlan>);

impl Types {
    #[inline]
    pub(crate) fn get(&self, index: TypeIndex) -> &TypePlan {
        &self.0[index.0 as usize]
    }
}

/// One message type.
#[derive(Debug)]
pub(crate) struct TypePlan {
    /// Own index.
    pub(crate) index: TypeIndex,
    /// Full name.
    pub(crate) name: Box<str>,
    /// The steps of fields 1 to 15 by number, so that a tag of one byte needs no search. Others
    /// never match.
    pub(crate) quick: Box<[Step; 16]>,
    /// What the validator needs of each field, by slot. Slots follow field numbers.
    pub(crate) steps: Box<[Step]>,
    /// The rest of each field, by slot.
    pub(crate) fields: Box<[FieldPlan]>,
    /// Field number to slot + 1, for the numbers below its length; 0 is no field.
    pub(crate) by_number: Box<[u16]>,
    /// Number of the singular bool field `removed`, if the type has one.
    pub(crate) removed: Option<u32>,
    /// Whether this type, or a message in one of its singular or map fields, has a message inside a
    /// oneof.
    pub(crate) has_message_oneof: bool,
}

impl TypePlan {
    /// The slot of field `number`.
    #[inline]
    pub(crate) fn slot(&self, number: u64) -> Option<u16> {
        if let Some(&slot) = self.by_number.get(number as usize) {
            return slot.checked_sub(1);
        }
        self.slot_slow(number)
    }

    fn slot_slow(&self, number: u64) -> Option<u16> {
        self.steps.binary_search_by(|step| u64::from(step.number).cmp(&number)).ok().map(|slot| slot as u16)
    }

    /// The slot of a record, if its wire type is one the field accepts; other records count as
    /// unknown fields.
    #[inline]
    pub(crate) fn classify(&self, number: u32, wire: u8) -> Option<u16> {
        let slot = self.slot(u64::from(number))?;
        let step = &self.steps[usize::from(slot)];
        (step.wire == wire || step.element_wire() == Some(wire)).then_some(slot)
    }

    /// Whether the encoded message `bytes` has `removed` set.
    pub(crate) fn says_removed(&self, bytes: &[u8]) -> bool {
        let Some(number) = self.removed else { return false };
        let mut removed = false;
        for record in super::cursor::Records::new(bytes) {
            if record.number == number && record.wire == VARINT {
                removed = read_varint(record.payload, &mut 0).unwrap_or(0) != 0;
            }
        }
        removed
    }
}

/// What the validator does with a field's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing beyond reading it.
    Varint,
    /// The bool `removed`: notes when it is set.
    Removed,
    /// Four bytes.
    Fixed32,
    /// Eight bytes.
    Fixed64,
    /// Bytes, or text that need not be UTF-8.
    Bytes,
    /// UTF-8 text.
    Utf8,
    /// A message of type `sub`.
    Message,
    /// Varints in one payload.
    PackedVarint,
    /// Four-byte values in one payload.
    PackedFixed32,
    /// Eight-byte values in one payload.
    PackedFixed64,
    /// A map entry.
    Map,
}

/// The part of a field that validation touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Field number.
    pub(crate) number: u32,
    /// Type of the message, or of the message values of a map.
    pub(crate) sub: TypeIndex,
    /// Bit that this field (or its whole oneof) sets when seen; 0 for lists and maps.
    pub(crate) seen: u64,
    /// Expected wire type.
    pub(crate) wire: u8,
    /// What to do.
    pub(crate) action: Action,
    /// For maps, what entries hold.
    pub(crate) map: MapStep,
}

/// The part of a map field that validation touches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapStep {
    /// Wire type of keys.
    pub(crate) key: u8,
    /// Wire type of values.
    pub(crate) value: u8,
    /// Values are messages of type `sub`.
    pub(crate) message: bool,
    /// Keys are text with checked UTF-8.
    pub(crate) utf8_key: bool,
    /// Values are text with checked UTF-8.
    pub(crate) utf8_value: bool,
}

impl Step {
    /// A step that matches no record.
    pub(crate) const NONE: Step = Step {
        number: 0,
        sub: TypeIndex(0),
        seen: 0,
        wire: u8::MAX,
        action: Action::Bytes,
        map: MapStep { key: 0, value: 0, message: false, utf8_key: false, utf8_value: false },
    };

    /// The other wire type a list of numbers may come in: one element.
    #[inline]
    pub(crate) fn element_wire(&self) -> Option<u8> {
        match self.action {
            Action::PackedVarint => Some(VARINT),
            Action::PackedFixed32 => Some(FIXED32),
            Action::PackedFixed64 => Some(FIXED64),
            _ => None,
        }
    }
}

/// The rest of a field.
#[derive(Debug)]
pub(crate) struct FieldPlan {
    /// Proto name.
    pub(crate) name: Box<str>,
    /// Name in JSON: of `net_guid` and `netGuid` alike it is `netGuid`.
    pub(crate) json: Box<str>,
    /// Number and canonical wire type as written, ready to copy.
    pub(crate) tag: u32,
    /// What the field holds.
    pub(crate) kind: Kind,
    /// Scalar without presence: a zero value is as good as absent.
    pub(crate) implicit: bool,
    /// The oneof the field belongs to, within its message.
    pub(crate) oneof: Option<u16>,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A single number, text or bytes.
    Scalar(Scalar),
    /// A single message.
    Message(TypeIndex),
    /// A list of messages, text or bytes: one record per element.
    Records(Element),
    /// A list of numbers; `packed` says how it is written.
    Numbers {
        /// What an element is.
        scalar: Scalar,
        /// Written in one payload.
        packed: bool,
    },
    /// A map.
    Map {
        /// What the keys are.
        key: Scalar,
        /// What the values are.
        value: MapValue,
    },
}

/// What a list holds that is not made of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// Messages.
    Message(TypeIndex),
    /// Text with checked UTF-8.
    Utf8,
    /// Bytes, and proto2 strings.
    Bytes,
}

impl Element {
    /// The message type of the elements.
    pub(crate) fn message(self) -> Option<TypeIndex> {
        match self {
            Element::Message(sub) => Some(sub),
            Element::Utf8 | Element::Bytes => None,
        }
    }
}

/// What a map holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapValue {
    /// Numbers, text or bytes.
    Scalar(Scalar),
    /// Messages.
    Message(TypeIndex),
}

impl MapValue {
    /// Wire type of the value.
    pub(crate) fn wire(self) -> u8 {
        match self {
            MapValue::Scalar(scalar) => scalar.wire(),
            MapValue::Message(_) => LEN,
        }
    }

    /// The message type of the values.
    pub(crate) fn message(self) -> Option<TypeIndex> {
        match self {
            MapValue::Scalar(_) => None,
            MapValue::Message(sub) => Some(sub),
        }
    }
}

/// A scalar type, as far as the wire can tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    /// int32, uint32, sint32 and enums: the low 32 bits of a varint count.
    Varint32,
    /// int64, uint64, sint64.
    Varint64,
    /// bool: any bit counts.
    Bool,
    /// fixed32, sfixed32, float.
    Fixed32,
    /// fixed64, sfixed64, double.
    Fixed64,
    /// string with checked UTF-8.
    Utf8,
    /// bytes, and proto2 strings.
    Bytes,
}

impl Scalar {
    /// The wire type.
    pub(crate) fn wire(self) -> u8 {
        match self {
            Scalar::Varint32 | Scalar::Varint64 | Scalar::Bool => VARINT,
            Scalar::Fixed32 => FIXED32,
            Scalar::Fixed64 => FIXED64,
            Scalar::Utf8 | Scalar::Bytes => LEN,
        }
    }

    /// Whether a payload holds the type's zero. The negative zero of floating point is not one.
    pub(crate) fn is_zero(self, payload: &[u8]) -> bool {
        match self {
            Scalar::Varint32 => read_varint(payload, &mut 0).is_none_or(|v| v as u32 == 0),
            Scalar::Varint64 | Scalar::Bool => read_varint(payload, &mut 0).is_none_or(|v| v == 0),
            Scalar::Fixed32 | Scalar::Fixed64 => payload.iter().all(|&b| b == 0),
            Scalar::Utf8 | Scalar::Bytes => payload.is_empty(),
        }
    }

    /// The value of a payload as a map key: equal keys give equal numbers. Text gives 0.
    #[inline]
    pub(crate) fn key_bits(self, payload: &[u8]) -> u64 {
        match self {
            Scalar::Varint32 => read_key_varint(payload, &mut 0).unwrap_or(0) & 0xffff_ffff,
            Scalar::Varint64 => read_key_varint(payload, &mut 0).unwrap_or(0),
            Scalar::Bool => u64::from(read_key_varint(payload, &mut 0).unwrap_or(0) != 0),
            Scalar::Fixed32 | Scalar::Fixed64 => {
                payload.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
            }
            Scalar::Utf8 | Scalar::Bytes => 0,
        }
    }

    /// Whether keys of this type are compared as text.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Scalar::Utf8 | Scalar::Bytes)
    }
}

/// How the Unreal profile treats a field of the root message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Singular fields and lists: default merge. Maps: entries merge deeply.
    Plain,
    /// Map of component states: `removed` deletes the entry, others merge deeply.
    Component,
    /// Map of actor states: merged last; `removed` deletes the key here and in every map but
    /// component maps.
    Actor,
    /// Map that keeps the first value of a key until it is removed: the entities of a spatial
    /// channel.
    KeepFirst,
    /// The object reference of an entity: set at creation, never by updates.
    Fixed,
}
