//! Validation of encoded messages against a plan, and the normal form of irregular ones.
//!
//! An update is read twice: here, checking everything and changing nothing, then while it is
//! applied, when nothing can fail any more. Most writers produce *regular* bytes: each singular
//! field once, one member per oneof, map entries as key then value. Applying regular bytes record
//! by record equals decoding them and merging the result. Other valid encodings (a field twice, a
//! map entry without a key, ...) are rewritten by [`normalise`] first.

use bytes::Bytes;
use hashbrown::HashMap;

use super::DataError;
use super::cursor::{
    FIELD_NUMBER_MAX, LEN, Record, Records, VARINT, read_key_varint, read_varint, skip_payload,
    write_prefixed, write_varint,
};
use super::plan::{
    Action, FieldPlan, Kind, MapStep, MapValue, Plan, Scalar, Step, TypeIndex, TypePlan, Types,
};

/// Deepest nesting of messages accepted; the default of most protobuf libraries.
pub const DEPTH_MAX: u32 = 100;

/// An update that was checked against a plan, in a form that applies record by record.
///
/// Cheap to clone: the bytes are shared.
#[derive(Clone, Debug)]
pub struct Update {
    bytes: Bytes,
    pub(crate) notes: Notes,
}

/// What validation learnt about bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Something must be rewritten before the bytes can be applied record by record.
    pub(crate) irregular: bool,
    /// Some `removed` field is set.
    pub(crate) removed: bool,
}

impl Update {
    /// Checks `bytes` against `plan`. The bytes are kept as they are unless they are irregular;
    /// then they are rewritten to an encoding that decodes to the same message.
    ///
    /// # Errors
    /// When the bytes are not a valid encoding of the plan's type.
    pub fn check(plan: &Plan, bytes: Bytes) -> Result<Self, DataError> {
        let mut notes = check(plan, &bytes)?;
        let bytes = match plan.root {
            Some(root) if notes.irregular => {
                let mut out = Vec::with_capacity(bytes.len());
                normalise(&plan.types, root, &bytes, &mut out);
                notes.irregular = false;
                Bytes::from(out)
            }
            _ => bytes,
        };
        Ok(Self { bytes, notes })
    }

    /// Whether both are the same update, not only equal ones.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.bytes.as_ptr() == other.bytes.as_ptr() && self.bytes.len() == other.bytes.len()
    }

    /// The encoded update.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Checks that `bytes` encode a message of the plan's type.
///
/// The rules are those of the reference's decoder: field numbers 1 to 2^29-1, complete payloads,
/// UTF-8 in proto3 strings, groups (as unknown fields) closed; a known field in the wrong wire type
/// counts as unknown. Messages may nest [`DEPTH_MAX`] deep.
///
/// # Errors
/// The first violation.
pub fn validate(plan: &Plan, bytes: &[u8]) -> Result<(), DataError> {
    check(plan, bytes).map(|_| ())
}

/// As [`validate`], and says what is special about the bytes.
pub(crate) fn check(plan: &Plan, bytes: &[u8]) -> Result<Notes, DataError> {
    let mut notes = Notes::default();
    let outcome = match plan.root {
        Some(root) => check_message(&plan.types, plan.types.get(root), bytes, 0, &mut notes),
        None => check_opaque(bytes),
    };
    outcome.map_err(|fault| fault.describe(&plan.types))?;
    if (plan.profile == super::Profile::Unreal || plan.has_copies()) && !notes.irregular {
        notes.irregular = has_repeated_keys(plan, bytes);
    }
    Ok(notes)
}

/// What the validator found, in a form that is cheap to return through many levels.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Malformed(usize),
    Utf8 { index: TypeIndex, slot: usize },
    TooDeep,
}

impl Fault {
    fn describe(self, types: &Types) -> DataError {
        match self {
            Fault::Malformed(offset) => DataError::Malformed { offset },
            Fault::Utf8 { index, slot } => {
                let plan = types.get(index);
                DataError::Utf8 { field: format!("{}.{}", plan.name, plan.fields[slot].name) }
            }
            Fault::TooDeep => DataError::TooDeep,
        }
    }
}

/// Checks the records of a message without a schema.
fn check_opaque(bytes: &[u8]) -> Result<(), Fault> {
    let mut pos = 0;
    while pos < bytes.len() {
        let at = pos;
        let tag = read_varint(bytes, &mut pos).ok_or(Fault::Malformed(at))?;
        check_unknown(bytes, &mut pos, tag, at)?;
    }
    Ok(())
}

#[inline(never)]
fn check_unknown(bytes: &[u8], pos: &mut usize, tag: u64, at: usize) -> Result<(), Fault> {
    let number = tag >> 3;
    if number == 0 || number > FIELD_NUMBER_MAX {
        return Err(Fault::Malformed(at));
    }
    skip_payload(bytes, pos, number, (tag & 7) as u8, DEPTH_MAX).ok_or(Fault::Malformed(at))
}

fn check_message(
    types: &Types,
    plan: &TypePlan,
    bytes: &[u8],
    depth: u32,
    notes: &mut Notes,
) -> Result<(), Fault> {
    if depth > DEPTH_MAX {
        return Err(Fault::TooDeep);
    }
    let mut pos = 0;
    let mut seen = 0u64;
    while pos < bytes.len() {
        let at = pos;
        let first = bytes[pos];
        // A field number below 16 makes a tag of one byte, and its step is found without a search.
        let step = if first < 0x80 {
            pos += 1;
            let step = &plan.quick[usize::from(first >> 3) & 15];
            if step.wire != first & 7 {
                // An unknown field, one element of a list of numbers, or a wrong wire type: all are
                // skipped alike.
                check_unknown(bytes, &mut pos, u64::from(first), at)?;
                continue;
            }
            step
        } else {
            let tag = read_varint(bytes, &mut pos).ok_or(Fault::Malformed(at))?;
            match plan.slot(tag >> 3).map(|slot| &plan.steps[usize::from(slot)]) {
                Some(step) if step.wire == (tag & 7) as u8 => step,
                _ => {
                    check_unknown(bytes, &mut pos, tag, at)?;
                    continue;
                }
            }
        };
        notes.irregular |= seen & step.seen != 0;
        seen |= step.seen;
        match step.action {
            Action::Fixed32 => pos += 4,
            Action::Fixed64 => pos += 8,
            Action::Varint => {
                read_varint(bytes, &mut pos).ok_or(Fault::Malformed(at))?;
            }
            Action::Removed => {
                let value = read_varint(bytes, &mut pos).ok_or(Fault::Malformed(at))?;
                notes.removed |= value != 0;
            }
            _ => {
                let payload = take_len(bytes, &mut pos).ok_or(Fault::Malformed(at))?;
                check_payload(types, plan, step, payload, depth, notes)?;
            }
        }
        if pos > bytes.len() {
            return Err(Fault::Malformed(at));
        }
    }
    // Fields beyond the bit set share none of it; whether they repeat is found the slow way.
    if plan.steps.len() > 64 && !notes.irregular {
        notes.irregular = has_repeated_fields(plan, bytes);
    }
    Ok(())
}

/// Takes a length-delimited payload.
#[inline]
fn take_len<'a>(bytes: &'a [u8], pos: &mut usize) -> Option<&'a [u8]> {
    let len = usize::try_from(read_varint(bytes, pos)?).ok()?;
    let payload = bytes.get(*pos..pos.checked_add(len)?)?;
    *pos += len;
    Some(payload)
}

#[inline]
fn check_payload(
    types: &Types,
    plan: &TypePlan,
    step: &Step,
    payload: &[u8],
    depth: u32,
    notes: &mut Notes,
) -> Result<(), Fault> {
    match step.action {
        Action::Message => check_message(types, types.get(step.sub), payload, depth + 1, notes),
        Action::Map => check_entry(types, plan, step, payload, depth + 1, notes),
        Action::Utf8 => check_utf8(plan, step, payload),
        Action::PackedVarint => {
            let mut pos = 0;
            while pos < payload.len() {
                read_varint(payload, &mut pos).ok_or(Fault::Malformed(pos))?;
            }
            Ok(())
        }
        Action::PackedFixed32 if !payload.len().is_multiple_of(4) => Err(Fault::Malformed(0)),
        Action::PackedFixed64 if !payload.len().is_multiple_of(8) => Err(Fault::Malformed(0)),
        _ => Ok(()),
    }
}

fn check_utf8(plan: &TypePlan, step: &Step, text: &[u8]) -> Result<(), Fault> {
    if text.is_ascii() || std::str::from_utf8(text).is_ok() {
        return Ok(());
    }
    Err(Fault::Utf8 { index: plan.index, slot: plan.slot(u64::from(step.number)).map_or(0, usize::from) })
}

/// Checks one map entry. Regular is exactly a key and then a value.
#[inline]
fn check_entry(
    types: &Types,
    plan: &TypePlan,
    step: &Step,
    bytes: &[u8],
    depth: u32,
    notes: &mut Notes,
) -> Result<(), Fault> {
    // Nearly every entry: a number, then a message that fills the rest.
    if let ([0x08, rest @ ..], MapStep { key: VARINT, message: true, .. }) = (bytes, step.map) {
        let mut pos = 0;
        if read_key_varint(rest, &mut pos).is_some()
            && rest.get(pos) == Some(&(2 << 3 | LEN))
            && let Some(payload) = {
                pos += 1;
                take_len(rest, &mut pos)
            }
            && pos == rest.len()
        {
            return check_message(types, types.get(step.sub), payload, depth + 1, notes);
        }
    }
    check_any_entry(types, plan, step, bytes, depth, notes)
}

#[inline(never)]
fn check_any_entry(
    types: &Types,
    plan: &TypePlan,
    step: &Step,
    bytes: &[u8],
    depth: u32,
    notes: &mut Notes,
) -> Result<(), Fault> {
    let MapStep { key, value, message, utf8_key, utf8_value } = step.map;
    let mut pos = 0;
    let mut index = 0;
    while pos < bytes.len() {
        let at = pos;
        let tag = read_varint(bytes, &mut pos).ok_or(Fault::Malformed(at))?;
        let wire = (tag & 7) as u8;
        let expected = index;
        index += 1;
        // The key is found behind its tag without looking at the tag, which may be written longer
        // than it need be.
        notes.irregular |= bytes[at] >= 0x80;
        if tag >> 3 == 1 && wire == key {
            notes.irregular |= expected != 0;
            if wire == LEN {
                let text = take_len(bytes, &mut pos).ok_or(Fault::Malformed(at))?;
                if utf8_key {
                    check_utf8(plan, step, text)?;
                }
                continue;
            }
        } else if tag >> 3 == 2 && wire == value {
            notes.irregular |= expected != 1;
            if wire == LEN {
                let payload = take_len(bytes, &mut pos).ok_or(Fault::Malformed(at))?;
                if message {
                    check_message(types, types.get(step.sub), payload, depth + 1, notes)?;
                } else if utf8_value {
                    check_utf8(plan, step, payload)?;
                }
                continue;
            }
        } else {
            notes.irregular = true;
        }
        check_unknown(bytes, &mut pos, tag, at)?;
    }
    notes.irregular |= index != 2;
    Ok(())
}

/// Whether a singular field, or two members of a oneof, occur twice in a type with more than 64
/// fields.
fn has_repeated_fields(plan: &TypePlan, bytes: &[u8]) -> bool {
    let mut seen = vec![false; plan.fields.len()];
    for record in Records::new(bytes) {
        let Some(slot) = plan.classify(record.number, record.wire) else { continue };
        let field = &plan.fields[usize::from(slot)];
        if !matches!(field.kind, Kind::Scalar(_) | Kind::Message(_)) {
            continue;
        }
        let first = match field.oneof {
            Some(oneof) => plan.fields.iter().position(|f| f.oneof == Some(oneof)).unwrap_or(0),
            None => usize::from(slot),
        };
        if std::mem::replace(&mut seen[first], true) {
            return true;
        }
    }
    false
}

/// Whether a map of the root message holds one key twice. Only deep merges can tell: where entries
/// are replaced the last one wins either way.
fn has_repeated_keys(plan: &Plan, bytes: &[u8]) -> bool {
    let Some(root) = plan.root else { return false };
    let types = plan.types.get(root);
    let mut keys: Vec<(u16, u64, &[u8])> = Vec::new();
    let mut ascending = true;
    for record in Records::new(bytes) {
        let Some(slot) = types.classify(record.number, record.wire) else { continue };
        let Kind::Map { key, .. } = types.fields[usize::from(slot)].kind else { continue };
        let entry = Entry::read(record.payload);
        let text = if key.is_text() { entry.key } else { &[] };
        let item = (slot, key.key_bits(entry.key), text);
        ascending &= keys.last().is_none_or(|last| *last < item);
        keys.push(item);
    }
    if ascending {
        return false;
    }
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair[0] == pair[1])
}

/// The parts of a regular map entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// Payload of the key.
    pub(crate) key: &'a [u8],
    /// Key record, tag included.
    pub(crate) key_raw: &'a [u8],
    /// Value record, tag included.
    pub(crate) value_raw: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Reads an entry that was found regular; missing parts are empty.
    #[inline]
    pub(crate) fn read(bytes: &'a [u8]) -> Self {
        let mut records = Records::new(bytes);
        let (key, key_raw) = records.next().map_or((EMPTY, EMPTY), |record| (record.payload, record.raw));
        Self { key, key_raw, value_raw: bytes.get(records.pos()..).unwrap_or(EMPTY) }
    }

    /// Payload of the value.
    #[inline]
    pub(crate) fn value(&self) -> &'a [u8] {
        Records::new(self.value_raw).next().map_or(EMPTY, |record| record.payload)
    }
}

const EMPTY: &[u8] = &[];

/// Writes `bytes`, a valid message, in normal form: fields by number, singular fields once, zero
/// values of implicit-presence scalars left out, each map key once, unknown fields last.
pub(crate) fn normalise(types: &Types, index: TypeIndex, bytes: &[u8], out: &mut Vec<u8>) {
    let plan = types.get(index);
    let mut slots: Vec<Vec<Record<'_>>> = vec![Vec::new(); plan.fields.len()];
    let mut unknown = Vec::new();
    for record in Records::new(bytes) {
        let Some(slot) = plan.classify(record.number, record.wire) else {
            unknown.push(record);
            continue;
        };
        let slot = usize::from(slot);
        let field = &plan.fields[slot];
        if let Some(oneof) = field.oneof {
            for (other, records) in plan.fields.iter().zip(&mut slots) {
                if other.oneof == Some(oneof) && other.tag != field.tag {
                    records.clear();
                }
            }
        }
        if let Kind::Scalar(_) = field.kind {
            slots[slot].clear();
        }
        slots[slot].push(record);
    }
    for (field, records) in plan.fields.iter().zip(&slots) {
        if !records.is_empty() {
            normalise_field(types, field, records, out);
        }
    }
    for record in unknown {
        out.extend_from_slice(record.raw);
    }
}

fn normalise_field(types: &Types, field: &FieldPlan, records: &[Record<'_>], out: &mut Vec<u8>) {
    match field.kind {
        Kind::Scalar(scalar) => {
            for record in records {
                if !(field.implicit && scalar.is_zero(record.payload)) {
                    write_scalar(field.tag, record.payload, out);
                }
            }
        }
        Kind::Message(sub) => {
            let joined: Vec<u8> = records.iter().flat_map(|record| record.payload).copied().collect();
            write_varint(out, u64::from(field.tag));
            write_prefixed(out, |out| normalise(types, sub, &joined, out));
        }
        Kind::Records(sub) => {
            for record in records {
                match sub.message() {
                    Some(sub) => {
                        write_varint(out, u64::from(field.tag));
                        write_prefixed(out, |out| normalise(types, sub, record.payload, out));
                    }
                    None => write_scalar(field.tag, record.payload, out),
                }
            }
        }
        Kind::Numbers { .. } => {
            for record in records {
                out.extend_from_slice(record.raw);
            }
        }
        Kind::Map { key, value } => normalise_map(types, field, key, value, records, out),
    }
}

/// Writes a tag and a payload, with its length where the tag asks for one.
pub(crate) fn write_scalar(tag: u32, payload: &[u8], out: &mut Vec<u8>) {
    write_varint(out, u64::from(tag));
    if (tag & 7) as u8 == LEN {
        write_varint(out, payload.len() as u64);
    }
    out.extend_from_slice(payload);
}

fn normalise_map(
    types: &Types,
    field: &FieldPlan,
    key: Scalar,
    value: MapValue,
    records: &[Record<'_>],
    out: &mut Vec<u8>,
) {
    let mut order: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut by_key: HashMap<(u64, Vec<u8>), usize> = HashMap::new();
    for record in records {
        let (mut key_payload, mut value_payload) = (zero(key), Vec::new());
        let mut has_value = false;
        for part in Records::new(record.payload) {
            if part.number == 1 && part.wire == key.wire() {
                key_payload = part.payload.to_vec();
            } else if part.number == 2 && part.wire == value.wire() {
                // Values that are messages merge within their entry, others overwrite.
                if value.message().is_none() {
                    value_payload.clear();
                }
                has_value = true;
                value_payload.extend_from_slice(part.payload);
            }
        }
        if let (false, MapValue::Scalar(scalar)) = (has_value, value) {
            value_payload = zero(scalar);
        }
        let text = if key.is_text() { key_payload.clone() } else { Vec::new() };
        match by_key.entry((key.key_bits(&key_payload), text)) {
            hashbrown::hash_map::Entry::Occupied(at) => order[*at.get()] = (key_payload, value_payload),
            hashbrown::hash_map::Entry::Vacant(at) => {
                at.insert(order.len());
                order.push((key_payload, value_payload));
            }
        }
    }
    for (key_payload, value_payload) in &order {
        write_varint(out, u64::from(field.tag));
        write_prefixed(out, |out| {
            write_scalar(1 << 3 | u32::from(key.wire()), key_payload, out);
            match value {
                MapValue::Scalar(scalar) => {
                    write_scalar(2 << 3 | u32::from(scalar.wire()), value_payload, out);
                }
                MapValue::Message(sub) => {
                    write_varint(out, u64::from(2 << 3 | LEN));
                    write_prefixed(out, |out| normalise(types, sub, value_payload, out));
                }
            }
        });
    }
}

/// The payload of a scalar's zero.
fn zero(scalar: Scalar) -> Vec<u8> {
    match scalar {
        Scalar::Varint32 | Scalar::Varint64 | Scalar::Bool => vec![0],
        Scalar::Fixed32 => vec![0; 4],
        Scalar::Fixed64 => vec![0; 8],
        Scalar::Utf8 | Scalar::Bytes => Vec::new(),
    }
}
