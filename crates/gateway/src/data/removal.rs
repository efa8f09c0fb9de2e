//! Removals in an update.

use std::collections::BTreeSet;

use super::check::Update;
use super::cursor::{LEN, Records, VARINT, write_prefixed, write_varint};
use super::map::entry_parts;
use super::plan::{Kind, Plan};
use super::state::ChannelData;

/// Appends the map entries of an update that say `removed`, as an update of their own: their keys
/// and that they are removed, without what else they say. Nothing for a type without a schema, and
/// no work for an update without such entries.
///
/// A full state cannot say that something is gone. Who had an older state and gets a full one
/// instead of the updates in between needs these first, or keeps ghosts.
pub fn removals(plan: &Plan, update: &Update, out: &mut Vec<u8>) {
    let Some(root) = plan.root.filter(|_| update.notes.removed) else { return };
    let fields = plan.types.get(root);
    for record in Records::new(update.bytes()) {
        let Some(slot) = fields.classify(record.number, record.wire) else { continue };
        let Kind::Map { value, .. } = fields.fields[usize::from(slot)].kind else { continue };
        let Some(message) = value.message() else { continue };
        let entry = entry_parts(record.raw);
        let types = plan.types.get(message);
        if let Some(removed) = types.removed.filter(|_| types.says_removed(entry.value())) {
            write_removal(record.number, entry.key_raw, removed, out);
        }
    }
}

/// Appends a map entry with a key whose value says nothing but `removed`, a field of this number.
fn write_removal(map: u32, key_raw: &[u8], removed: u32, out: &mut Vec<u8>) {
    write_varint(out, u64::from(map) << 3 | u64::from(LEN));
    write_prefixed(out, |out| {
        out.extend_from_slice(key_raw);
        write_varint(out, 2 << 3 | u64::from(LEN));
        write_prefixed(out, |out| {
            write_varint(out, u64::from(removed) << 3 | u64::from(VARINT));
            write_varint(out, 1);
        });
    });
}

/// Updates that remove the map entries of `old` that `new` lacks, one each, for receivers that have
/// `old` and get `new` in full. Entries whose type cannot say `removed` stay with them.
pub(crate) fn replaced(old: &ChannelData, new: &ChannelData) -> Vec<Vec<u8>> {
    let plan = old.plan();
    let Some(root) = plan.root else { return Vec::new() };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    old.encode(None, &mut before);
    new.encode(None, &mut after);
    let fields = plan.types.get(root);
    let entries = |bytes| {
        Records::new(bytes).filter_map(|record| {
            let slot = fields.classify(record.number, record.wire)?;
            let Kind::Map { value, .. } = fields.fields[usize::from(slot)].kind else { return None };
            let removed = plan.types.get(value.message()?).removed?;
            let entry = entry_parts(record.raw);
            Some(((record.number, entry.key), entry, removed))
        })
    };
    let kept: BTreeSet<_> = entries(&after).map(|(key, ..)| key).collect();
    let gone = entries(&before).filter(|(key, ..)| !kept.contains(key));
    gone.map(|((number, _), entry, removed)| {
        let mut out = Vec::new();
        write_removal(number, entry.key_raw, removed, &mut out);
        out
    })
    .collect()
}
