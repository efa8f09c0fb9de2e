//! Cutting an encoded message into several that merge to the whole.

use bytes::Bytes;

use super::cursor::{LEN, Record, Records, varint_len, write_varint};
use super::list::numbers;
use super::plan::{Class, Kind, Plan, TypeIndex};

/// A single value that cannot be cut is larger than the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} of {type_name} has an element of {bytes} bytes, and no message may exceed {limit}")]
pub struct Oversize {
    /// The message type.
    pub type_name: String,
    /// Path of the field, or `field N` when the schema does not know it.
    pub field: String,
    /// Size of the element with what encloses it, in bytes.
    pub bytes: usize,
    /// The limit given, in bytes.
    pub limit: usize,
}

/// Cuts `encoded`, a checked message, into parts of at most `max` bytes that merge to the whole when applied in order.
///
/// Cuts are made between top-level fields, map entries and list elements, inside long lists of numbers, and inside
/// single messages where these alone are too long. The records of one list stay together where they fit into a part,
/// for receivers that replace lists. A message that fits gives one part.
///
/// # Errors
/// When a single element is larger than `max`; `out` is as it was.
pub fn split(plan: &Plan, encoded: &[u8], max: usize, out: &mut Vec<Bytes>) -> Result<(), Oversize> {
    if encoded.len() <= max {
        out.push(Bytes::copy_from_slice(encoded));
        return Ok(());
    }
    let splitter = Splitter { plan, limit: max };
    let mut parts = Parts { max, done: Vec::new(), current: Vec::new() };
    splitter.split_message(plan.root, encoded, 0, &mut parts, &mut Vec::new())?;
    parts.flush();
    out.extend(parts.done.into_iter().map(Bytes::from));
    Ok(())
}

struct Parts {
    max: usize,
    done: Vec<Vec<u8>>,
    current: Vec<u8>,
}

impl Parts {
    fn flush(&mut self) {
        if !self.current.is_empty() {
            self.done.push(std::mem::take(&mut self.current));
        }
    }

    /// Starts a new part unless `len` more bytes fit.
    fn reserve(&mut self, len: usize) {
        if self.current.len() + len > self.max {
            self.flush();
        }
    }
}

struct Splitter<'p> {
    plan: &'p Plan,
    limit: usize,
}

impl Splitter<'_> {
    /// `outer` is what enclosing messages add to each part.
    fn split_message(
        &self,
        index: Option<TypeIndex>,
        bytes: &[u8],
        outer: usize,
        parts: &mut Parts,
        path: &mut Vec<u32>,
    ) -> Result<(), Oversize> {
        let is_root = path.is_empty();
        let late = |record: &Record<'_>| is_root && self.is_late(record);
        // Removed actors take the states before them along, so they must come last over all parts.
        let first = Records::new(bytes).filter(|record| !late(record));
        let last = Records::new(bytes).filter(late);
        let mut list = 0;
        for (at, record) in first.chain(last).enumerate() {
            let slot =
                index.and_then(|index| self.plan.types.get(index).classify(record.number, record.wire));
            let kind = slot.and_then(|slot| {
                index.map(|index| self.plan.types.get(index).fields[usize::from(slot)].kind)
            });
            if matches!(kind, Some(Kind::Records(_) | Kind::Numbers { .. })) {
                if at == 0 || list != record.number {
                    let run = Records::new(bytes).filter(|other| other.number == record.number);
                    let run: usize = run.map(|other| other.raw.len()).sum();
                    if run <= parts.max {
                        parts.reserve(run);
                    }
                }
                list = record.number;
            } else {
                list = 0;
            }
            if record.raw.len() <= parts.max {
                parts.reserve(record.raw.len());
                parts.current.extend_from_slice(record.raw);
                continue;
            }
            path.push(record.number);
            match kind {
                Some(Kind::Message(sub)) => self.split_inner(sub, &record, outer, parts, path)?,
                Some(Kind::Numbers { scalar, .. }) if record.wire == LEN => {
                    let head = varint_len(u64::from(record.number) << 3) + varint_len(parts.max as u64);
                    let room = parts.max.saturating_sub(head);
                    let mut chunk: Vec<u8> = Vec::new();
                    for element in numbers(scalar, record.payload) {
                        if element.len() > room {
                            return Err(self.oversize(path, head + element.len() + outer));
                        }
                        if chunk.len() + element.len() > room {
                            push_packed(parts, record.number, &chunk);
                            chunk.clear();
                        }
                        chunk.extend_from_slice(element);
                    }
                    push_packed(parts, record.number, &chunk);
                }
                _ => return Err(self.oversize(path, record.raw.len() + outer)),
            }
            path.pop();
        }
        Ok(())
    }

    /// Cuts inside a message field and wraps every part in it.
    fn split_inner(
        &self,
        sub: TypeIndex,
        record: &Record<'_>,
        outer: usize,
        parts: &mut Parts,
        path: &mut Vec<u32>,
    ) -> Result<(), Oversize> {
        let tag = u64::from(record.number) << 3 | u64::from(LEN);
        let head = varint_len(tag) + varint_len(parts.max as u64);
        let Some(max) = parts.max.checked_sub(head) else {
            return Err(self.oversize(path, record.raw.len() + outer));
        };
        let mut inner = Parts { max, done: Vec::new(), current: Vec::new() };
        self.split_message(Some(sub), record.payload, outer + head, &mut inner, path)?;
        inner.flush();
        for part in inner.done {
            parts.reserve(head + part.len());
            write_varint(&mut parts.current, tag);
            write_varint(&mut parts.current, part.len() as u64);
            parts.current.extend_from_slice(&part);
        }
        Ok(())
    }

    fn is_late(&self, record: &Record<'_>) -> bool {
        let Some(root) = self.plan.root else { return false };
        let slot = self.plan.types.get(root).classify(record.number, record.wire);
        slot.is_some_and(|slot| self.plan.class(slot) == Class::Actor)
    }

    fn oversize(&self, path: &[u32], bytes: usize) -> Oversize {
        let mut index = self.plan.root;
        let mut names = Vec::new();
        for &number in path {
            let type_plan = index.map(|index| self.plan.types.get(index));
            let slot = type_plan.and_then(|plan| plan.slot(u64::from(number)));
            match (type_plan, slot) {
                (Some(plan), Some(slot)) => {
                    let field = &plan.fields[usize::from(slot)];
                    names.push(field.name.to_string());
                    index = match field.kind {
                        Kind::Message(sub) => Some(sub),
                        _ => None,
                    };
                }
                _ => names.push(format!("field {number}")),
            }
        }
        Oversize { type_name: self.plan.name.to_string(), field: names.join("."), bytes, limit: self.limit }
    }
}

fn push_packed(parts: &mut Parts, number: u32, elements: &[u8]) {
    if elements.is_empty() {
        return;
    }
    let tag = u64::from(number) << 3 | u64::from(LEN);
    parts.reserve(varint_len(tag) + varint_len(elements.len() as u64) + elements.len());
    write_varint(&mut parts.current, tag);
    write_varint(&mut parts.current, elements.len() as u64);
    parts.current.extend_from_slice(elements);
}
