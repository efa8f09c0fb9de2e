//! Field masks: which parts of channel data a subscriber gets.

use super::check::Entry;
use super::cursor::{LEN, Records, write_prefixed, write_varint};
use super::plan::{Kind, MapValue, Plan, TypeIndex, Types};

/// The paths of a subscription's field mask, compiled for one type.
///
/// A path is a dot-separated list of field names. A path that ends at a field keeps the field; a
/// longer one filters inside single messages, in each element of a list and in each value of a map
/// (keys cannot be named). Without any path everything is kept. A field named both whole and by a
/// longer path is filtered by the longer one. Names that do not exist keep nothing; fields unknown
/// to the schema have no name and are dropped.
///
/// A map value with `removed` set keeps that field under every mask: a subscriber must learn of
/// removals.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldMask(Option<MaskNode>);

/// The mask of one message. Fields not listed are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MaskNode {
    /// By slot; `None` keeps the whole field.
    fields: Vec<(u16, Option<MaskNode>)>,
}

impl FieldMask {
    /// Compiles mask paths. Empty components and empty paths are ignored. A type without a schema
    /// has no field names: there every mask keeps everything.
    #[must_use]
    pub fn compile<S: AsRef<str>>(plan: &Plan, paths: &[S]) -> Self {
        let paths =
            paths.iter().map(|path| path.as_ref().split('.').filter(|name| !name.is_empty()).peekable());
        let mut paths: Vec<_> = paths.collect();
        paths.retain_mut(|path| path.peek().is_some());
        match plan.root {
            Some(root) if !paths.is_empty() => {
                let mut node = MaskNode::default();
                for path in paths {
                    node.insert(&plan.types, root, path);
                }
                FieldMask(Some(node))
            }
            _ => FieldMask(None),
        }
    }

    /// The mask that keeps everything.
    #[must_use]
    pub fn everything() -> Self {
        FieldMask(None)
    }

    /// Whether the mask keeps everything.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn node(mask: Option<&FieldMask>) -> Option<&MaskNode> {
        mask.and_then(|mask| mask.0.as_ref())
    }
}

impl MaskNode {
    /// Adds a path below a message of type `index`. Nesting is bounded by the schema and the path's
    /// length.
    fn insert<'p>(&mut self, types: &Types, index: TypeIndex, mut path: impl Iterator<Item = &'p str>) {
        let mut node = self;
        let mut index = index;
        let mut name = path.next();
        while let Some(current) = name {
            let plan = types.get(index);
            let Some(slot) = plan.fields.iter().position(|field| &*field.name == current) else { return };
            let at = match node.fields.binary_search_by_key(&(slot as u16), |(slot, _)| *slot) {
                Ok(at) => at,
                Err(at) => {
                    node.fields.insert(at, (slot as u16, None));
                    at
                }
            };
            name = path.next();
            let sub = match plan.fields[slot].kind {
                Kind::Message(sub) | Kind::Map { value: MapValue::Message(sub), .. } => Some(sub),
                Kind::Records(element) => element.message(),
                _ => None,
            };
            let (Some(_), Some(sub)) = (name, sub) else { return };
            // The longer path wins over the whole field, also when its names do not exist.
            node = node.fields[at].1.get_or_insert_default();
            index = sub;
        }
    }

    /// What a mask does with a field: `None` drops it, `Some(None)` keeps all of it.
    #[inline]
    pub(crate) fn pick(mask: Option<&MaskNode>, slot: u16) -> Option<Option<&MaskNode>> {
        let Some(mask) = mask else { return Some(None) };
        let at = mask.fields.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        Some(mask.fields[at].1.as_ref())
    }
}

/// Appends what `mask` keeps of a checked update. Nothing is appended when nothing remains.
pub fn filter(plan: &Plan, mask: &FieldMask, update: &[u8], out: &mut Vec<u8>) {
    match (plan.root, &mask.0) {
        (Some(root), Some(node)) => filter_message(&plan.types, root, node, update, out),
        _ => out.extend_from_slice(update),
    }
}

/// Appends what `mask` keeps of a regular encoded message.
pub(crate) fn filter_message(
    types: &Types,
    index: TypeIndex,
    mask: &MaskNode,
    bytes: &[u8],
    out: &mut Vec<u8>,
) {
    let plan = types.get(index);
    for record in Records::new(bytes) {
        let Some(slot) = plan.classify(record.number, record.wire) else { continue };
        match MaskNode::pick(Some(mask), slot) {
            None => {}
            Some(None) => out.extend_from_slice(record.raw),
            Some(Some(inner)) => {
                let field = &plan.fields[usize::from(slot)];
                match field.kind {
                    Kind::Map { value: MapValue::Message(sub), .. } => {
                        filter_entry(types, sub, inner, field.tag, &Entry::read(record.payload), out);
                    }
                    kind => {
                        let sub = match kind {
                            Kind::Message(sub) => Some(sub),
                            Kind::Records(element) => element.message(),
                            _ => None,
                        };
                        let Some(sub) = sub else { continue };
                        write_varint(out, u64::from(field.tag));
                        write_prefixed(out, |out| filter_message(types, sub, inner, record.payload, out));
                    }
                }
            }
        }
    }
}

/// Appends a map entry with what `mask` keeps of its value, a message of type `value`.
pub(crate) fn filter_entry(
    types: &Types,
    value: TypeIndex,
    mask: &MaskNode,
    tag: u32,
    entry: &Entry<'_>,
    out: &mut Vec<u8>,
) {
    let plan = types.get(value);
    write_varint(out, u64::from(tag));
    write_prefixed(out, |out| {
        out.extend_from_slice(entry.key_raw);
        write_varint(out, u64::from(2 << 3 | LEN));
        write_prefixed(out, |out| {
            let removed = plan.removed.filter(|_| plan.says_removed(entry.value()));
            if let Some(number) = removed
                && plan.slot(u64::from(number)).is_some_and(|slot| MaskNode::pick(Some(mask), slot).is_none())
            {
                write_varint(out, u64::from(number << 3));
                out.push(1);
            }
            filter_message(types, value, mask, entry.value(), out);
        });
    });
}
