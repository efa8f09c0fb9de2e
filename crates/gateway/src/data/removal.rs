//! Removals in an update.

use super::check::Update;
use super::cursor::Records;
use super::map::entry_parts;
use super::plan::{Kind, Plan};

/// Appends the map entries of an update that say `removed`, as an update of their own. Nothing for
/// a type without a schema, and no work for an update without such entries.
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
        if plan.types.get(message).says_removed(entry_parts(record.raw).value()) {
            out.extend_from_slice(record.raw);
        }
    }
}
