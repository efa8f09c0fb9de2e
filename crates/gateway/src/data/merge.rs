//! Merging two encoded messages into a third.

use smallvec::SmallVec;

use super::check::Entry;
use super::cursor::{Record, Records, write_prefixed, write_varint};
use super::map::entry_parts;
use super::plan::{Kind, Scalar, TypeIndex, TypePlan, Types};

/// Writes the merge of `update` into `old`, both regular encodings of type `index`: scalars
/// overwrite, messages merge, lists append, map entries are replaced by key.
pub(crate) fn merge_message(types: &Types, index: TypeIndex, old: &[u8], update: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    if merge_in_step(types, index, old, update, out).is_none() {
        out.truncate(start);
        merge_any_order(types, index, old, update, out);
    }
}

/// Merges messages whose fields come by number, as most writers write them, walking both at once.
///
/// `None` when that is not enough: other orders, fields in a oneof, map entries or unknown fields
/// on both sides. `out` then holds a part of the result.
fn merge_in_step(
    types: &Types,
    index: TypeIndex,
    old: &[u8],
    update: &[u8],
    out: &mut Vec<u8>,
) -> Option<()> {
    let plan = types.get(index);
    let (mut olds, mut news) = (Records::new(old), Records::new(update));
    let (mut at_old, mut at_new) = (olds.next(), news.next());
    loop {
        let Some(new) = at_new else {
            let Some(mut record) = at_old else { return Some(()) };
            // The rest of the old message stays as it is, if none of it belongs before what is
            // written.
            out.extend_from_slice(&old[olds.pos() - record.raw.len()..]);
            for next in olds {
                if next.number < record.number {
                    return None;
                }
                record = next;
            }
            return Some(());
        };
        if let Some(record) = at_old
            && record.number < new.number
        {
            out.extend_from_slice(record.raw);
            at_old = olds.next();
            if at_old.is_some_and(|next| next.number < record.number) {
                return None;
            }
            continue;
        }
        let field = &plan.fields[usize::from(plan.classify(new.number, new.wire)?)];
        if field.oneof.is_some() {
            return None;
        }
        let both = at_old.filter(|record| record.number == new.number);
        match (field.kind, both) {
            (Kind::Scalar(scalar), _) if field.implicit && scalar.is_zero(new.payload) => {
                if let Some(record) = both {
                    out.extend_from_slice(record.raw);
                }
            }
            (Kind::Message(sub), Some(record)) => {
                if record.wire != new.wire {
                    return None;
                }
                write_varint(out, u64::from(field.tag));
                write_prefixed(out, |out| merge_message(types, sub, record.payload, new.payload, out));
            }
            (Kind::Scalar(_), Some(record)) => {
                if record.wire != new.wire {
                    return None;
                }
                out.extend_from_slice(new.raw);
            }
            (Kind::Records(_) | Kind::Numbers { .. }, Some(record)) => {
                // Old elements come first; the new one waits.
                out.extend_from_slice(record.raw);
                at_old = olds.next();
                if at_old.is_some_and(|next| next.number < record.number) {
                    return None;
                }
                continue;
            }
            (Kind::Map { .. }, Some(_)) => return None,
            (_, None) => out.extend_from_slice(new.raw),
        }
        if let Some(record) = both {
            at_old = olds.next();
            if at_old.is_some_and(|next| next.number <= record.number) {
                return None;
            }
        }
        at_new = news.next();
        if at_new.is_some_and(|next| next.number < new.number) {
            return None;
        }
    }
}

/// Merges messages in any order of fields, with a table of the update's records.
fn merge_any_order(types: &Types, index: TypeIndex, old: &[u8], update: &[u8], out: &mut Vec<u8>) {
    let plan = types.get(index);
    // Where the update mentions each field, as an index into its records.
    let mut records: SmallVec<[(Record<'_>, Option<u16>); 24]> = SmallVec::new();
    for record in Records::new(update) {
        let slot = plan.classify(record.number, record.wire);
        if let Some(slot) = slot {
            let field = &plan.fields[usize::from(slot)];
            if let Kind::Scalar(scalar) = field.kind
                && field.implicit
                && scalar.is_zero(record.payload)
            {
                continue;
            }
        }
        records.push((record, slot));
    }
    let mut used: SmallVec<[bool; 24]> = SmallVec::from_elem(false, records.len());
    let mut keys = Keys::default();
    // Writers keep the order of fields, so the field after the last match is tried first.
    let mut next = 0;
    for record in Records::new(old) {
        let Some(slot) = plan.classify(record.number, record.wire) else {
            // Unknown fields: the newer update wins by number.
            if !keys.contain_unknown(record.number, &records) {
                out.extend_from_slice(record.raw);
            }
            continue;
        };
        let field = &plan.fields[usize::from(slot)];
        match field.kind {
            Kind::Scalar(_) | Kind::Message(_) => {
                let at = match records.get(next) {
                    Some((_, Some(new))) if *new == slot => Some(next),
                    _ => records.iter().position(|(_, new)| *new == Some(slot)),
                };
                if let Some(at) = at {
                    used[at] = true;
                    next = at + 1;
                    match field.kind {
                        Kind::Message(sub) => {
                            write_varint(out, u64::from(field.tag));
                            let new = records[at].0.payload;
                            write_prefixed(out, |out| merge_message(types, sub, record.payload, new, out));
                        }
                        _ => out.extend_from_slice(records[at].0.raw),
                    }
                    continue;
                }
                let ousted = field.oneof.is_some()
                    && records.iter().any(|(_, new)| {
                        new.is_some_and(|new| plan.fields[usize::from(new)].oneof == field.oneof)
                    });
                if !ousted {
                    out.extend_from_slice(record.raw);
                }
            }
            Kind::Map { key, .. } => {
                if !keys.contain(plan, slot, key, entry_parts(record.raw).key, &records) {
                    out.extend_from_slice(record.raw);
                }
            }
            Kind::Records(_) | Kind::Numbers { .. } => out.extend_from_slice(record.raw),
        }
    }
    for ((record, _), used) in records.iter().zip(used) {
        if !used {
            out.extend_from_slice(record.raw);
        }
    }
}

/// Keys of the update's map entries and numbers of its unknown fields, gathered when the old
/// message first asks.
#[derive(Default)]
struct Keys<'a> {
    gathered: bool,
    sorted: Vec<(u16, u64, &'a [u8])>,
    unknown: Option<Vec<u32>>,
}

impl<'a> Keys<'a> {
    fn contain(
        &mut self,
        plan: &TypePlan,
        slot: u16,
        scalar: Scalar,
        payload: &[u8],
        records: &[(Record<'a>, Option<u16>)],
    ) -> bool {
        if !self.gathered {
            self.gathered = true;
            for (record, new) in records {
                let Some(new) = *new else { continue };
                if let Kind::Map { key, .. } = plan.fields[usize::from(new)].kind {
                    self.sorted.push(sort_key(new, key, Entry::read(record.payload).key));
                }
            }
            self.sorted.sort_unstable();
        }
        self.sorted.binary_search(&sort_key(slot, scalar, payload)).is_ok()
    }

    /// Whether the update has records of a number that the schema does not know.
    fn contain_unknown(&mut self, number: u32, records: &[(Record<'a>, Option<u16>)]) -> bool {
        let unknown = self.unknown.get_or_insert_with(|| {
            let unknown = records.iter().filter(|(_, slot)| slot.is_none());
            let mut numbers: Vec<u32> = unknown.map(|(record, _)| record.number).collect();
            numbers.sort_unstable();
            numbers
        });
        unknown.binary_search(&number).is_ok()
    }
}

fn sort_key(slot: u16, scalar: Scalar, payload: &[u8]) -> (u16, u64, &[u8]) {
    (slot, scalar.key_bits(payload), if scalar.is_text() { payload } else { &[] })
}
