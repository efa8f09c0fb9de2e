//! Merge rules of single fields, for merge functions of games that no profile covers.

use std::str::FromStr;

use super::cursor::{FIXED64, Records, VARINT, read_varint, write_prefixed, write_varint};
use super::list::ListField;
use super::map::entry_parts;
use super::plan::{Kind, TypeIndex, Types};

/// How one top-level field of a type merges beyond what its profile says.
///
/// Read from text by [`FromStr`]: `retain sendTime 10000`, `copy position rotation scale`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldRule {
    /// For a list of messages that a channel cuts to its last elements: older elements stay as long
    /// as their `time`, a field of whole numbers, lies at most `span` before that of the oldest
    /// element that stays anyway. Unit as in the data.
    Retain {
        /// Name of a field of the elements.
        time: String,
        /// At least 0.
        span: u64,
    },
    /// For a map of messages: an entry that exists takes only these fields from an update. One with
    /// presence is replaced when the update has it; one without presence takes the update's value
    /// always, zero as well.
    Copy(
        /// Names of fields of the values.
        Vec<String>,
    ),
}

impl FromStr for FieldRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let rule = words.next().unwrap_or_default();
        let arguments: Vec<&str> = words.collect();
        match (rule, arguments.as_slice()) {
            ("retain", [time, span]) => {
                let span = span.parse().map_err(|_| format!("`{span}` is not a whole number"))?;
                Ok(FieldRule::Retain { time: (*time).to_owned(), span })
            }
            ("copy", [_, ..]) => Ok(FieldRule::Copy(arguments.into_iter().map(str::to_owned).collect())),
            _ => Err(format!("`{text}` is none of `retain FIELD SPAN`, `copy FIELD ...`")),
        }
    }
}

/// A [`FieldRule`] with names resolved.
#[derive(Clone, Debug)]
pub(crate) enum Rule {
    Retain {
        number: u32,
        span: u64,
    },
    /// Slots of the value's type, ascending.
    Copy(Box<[u16]>),
}

impl Rule {
    /// Resolves a rule for a field.
    ///
    /// # Errors
    /// What does not fit, as a phrase.
    pub(crate) fn compile(rule: &FieldRule, types: &Types, kind: Kind) -> Result<Self, String> {
        let slot = |sub: TypeIndex, name: &str| {
            let of = types.get(sub);
            let slot = of.fields.iter().position(|field| &*field.name == name);
            slot.ok_or_else(|| format!("{} has no field `{name}`", of.name))
        };
        match rule {
            FieldRule::Retain { time, span } => {
                let Kind::Records(element) = kind else {
                    return Err("`retain` needs a list of messages".into());
                };
                let sub = element.message().ok_or("`retain` needs a list of messages")?;
                let at = slot(sub, time)?;
                let of = types.get(sub);
                let wire = of.steps[at].wire;
                if !matches!(of.fields[at].kind, Kind::Scalar(_)) || !matches!(wire, VARINT | FIXED64) {
                    return Err(format!("`{time}` is not a single whole number"));
                }
                Ok(Rule::Retain { number: of.steps[at].number, span: *span })
            }
            FieldRule::Copy(names) => {
                let sub = match kind {
                    Kind::Map { value, .. } => value.message(),
                    _ => None,
                };
                let sub = sub.ok_or("`copy` needs a map of messages")?;
                let mut slots = Vec::with_capacity(names.len());
                for name in names {
                    let at = slot(sub, name)?;
                    if types.get(sub).fields[at].oneof.is_some() {
                        return Err(format!("`{name}` belongs to a oneof"));
                    }
                    slots.push(at as u16);
                }
                slots.sort_unstable();
                slots.dedup();
                Ok(Rule::Copy(slots.into()))
            }
        }
    }
}

/// Keeps the last `limit` elements of a list of messages, and of the older ones those whose time is
/// at most `span` before that of the first of them.
pub(crate) fn truncate_retaining(list: &mut ListField, limit: usize, number: u32, span: u64) {
    if list.count <= limit {
        return;
    }
    let time = |element: &[u8]| {
        let times = Records::new(element).filter(|record| record.number == number);
        times.last().map_or(0, |record| match (record.wire, record.payload.try_into()) {
            (FIXED64, Ok(bytes)) => i64::from_le_bytes(bytes),
            (VARINT, _) => read_varint(record.payload, &mut 0).unwrap_or(0) as i64,
            _ => 0,
        })
    };
    let older = list.count - limit;
    let Some(first) = Records::new(&list.bytes).nth(older) else { return };
    let earliest = time(first.payload).saturating_sub_unsigned(span);
    let mut kept = Vec::with_capacity(list.bytes.len());
    let mut count = 0;
    for (at, record) in Records::new(&list.bytes).enumerate() {
        if at >= older || time(record.payload) >= earliest {
            kept.extend_from_slice(record.raw);
            count += 1;
        }
    }
    (list.bytes, list.count) = (kept, count);
}

/// Appends the map entry `old` with the fields in `slots` taken from `update`, an entry of the same
/// key; both with tags.
pub(crate) fn copy_fields(
    types: &Types,
    value: TypeIndex,
    slots: &[u16],
    tag: u32,
    old: &[u8],
    update: &[u8],
    out: &mut Vec<u8>,
) {
    let plan = types.get(value);
    let (old, update) = (entry_parts(old), entry_parts(update));
    let slot_of = |number, wire| plan.classify(number, wire).filter(|slot| slots.binary_search(slot).is_ok());
    let comes = |slot: u16| {
        let mut records = Records::new(update.value());
        plan.fields[usize::from(slot)].implicit
            || records.any(|record| plan.classify(record.number, record.wire) == Some(slot))
    };
    write_varint(out, u64::from(tag));
    write_prefixed(out, |out| {
        out.extend_from_slice(old.key_raw);
        write_varint(out, u64::from(2 << 3 | super::cursor::LEN));
        write_prefixed(out, |out| {
            for record in Records::new(old.value()) {
                if !slot_of(record.number, record.wire).is_some_and(comes) {
                    out.extend_from_slice(record.raw);
                }
            }
            for record in Records::new(update.value()) {
                if slot_of(record.number, record.wire).is_some() {
                    out.extend_from_slice(record.raw);
                }
            }
        });
    });
}
