//! Cutting an encoded message into several that merge to the whole.

use bytes::Bytes;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::cursor::{LEN, Record, Records, varint_len, write_varint};
use super::list::numbers;
use super::plan::{Class, Kind, Plan, Scalar, TypeIndex};

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

/// How the parts of a split make up the whole again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Joint {
    /// Every reader that merges the parts in order has the whole.
    Exact,
    /// The records of a field that the schema does not know were longer than a part and came apart.
    /// Readers that know the field append them; one to which it is unknown too, and who lets newer
    /// records win, keeps the last piece.
    UnknownCut,
}

/// Cuts `encoded`, a checked message, into parts of at most `max` bytes that merge to the whole
/// when applied in order.
///
/// Cuts are made between top-level fields, map entries and list elements, inside long lists of
/// numbers, and inside single messages where these alone are too long. The records of one list stay
/// together where they fit into a part, for receivers that replace lists; so do those of an unknown
/// field, which may be a list. A message that fits gives one part.
///
/// # Errors
/// When a single element is larger than `max`; `out` is as it was.
pub fn split(plan: &Plan, encoded: &[u8], max: usize, out: &mut Vec<Bytes>) -> Result<Joint, Oversize> {
    if encoded.len() <= max {
        out.push(Bytes::copy_from_slice(encoded));
        return Ok(Joint::Exact);
    }
    let (parts, joint) = Splitter::new(plan, max, None).split(encoded)?;
    out.extend(parts);
    Ok(joint)
}

/// The same without the elements that are larger than `max`. Returns how many these are.
pub(crate) fn split_without_oversize(plan: &Plan, encoded: &[u8], max: usize, out: &mut Vec<Bytes>) -> u64 {
    let mut left_out = 0;
    // It leaves out what would be an error.
    if let Ok((parts, _)) = Splitter::new(plan, max, Some(&mut left_out)).split(encoded) {
        out.extend(parts);
    }
    left_out
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
    joint: Joint,
    /// Number of elements that were left out because they are too long; `None` if that is an error.
    left_out: Option<&'p mut u64>,
}

/// The records of one list, or of one unknown field.
#[derive(Default)]
struct Run<'a> {
    /// Neighbouring records in one piece.
    stretches: SmallVec<[&'a [u8]; 1]>,
    bytes: usize,
    /// Offset behind the last record.
    end: usize,
}

/// Runs by field number and whether the schema knows the field.
type Runs<'a> = HashMap<(u32, bool), Run<'a>>;

impl<'p> Splitter<'p> {
    fn new(plan: &'p Plan, limit: usize, left_out: Option<&'p mut u64>) -> Self {
        Splitter { plan, limit, joint: Joint::Exact, left_out }
    }

    fn split(mut self, encoded: &[u8]) -> Result<(impl Iterator<Item = Bytes> + use<>, Joint), Oversize> {
        let mut parts = Parts { max: self.limit, done: Vec::new(), current: Vec::new() };
        self.split_message(self.plan.root, encoded, 0, &mut parts, &mut Vec::new())?;
        parts.flush();
        Ok((parts.done.into_iter().map(Bytes::from), self.joint))
    }

    /// `outer` is what enclosing messages add to each part.
    fn split_message(
        &mut self,
        index: Option<TypeIndex>,
        bytes: &[u8],
        outer: usize,
        parts: &mut Parts,
        path: &mut Vec<u32>,
    ) -> Result<(), Oversize> {
        let is_root = path.is_empty();
        let runs = self.runs(index, bytes);
        let mut some_late = false;
        // Removed actors take the states before them along, so they must come last over all parts.
        for late_turn in [false, true] {
            let mut records = Records::new(bytes);
            while let Some(record) = records.next() {
                let late = is_root && self.is_late(&record);
                some_late |= late;
                if late != late_turn {
                    continue;
                }
                let kind = self.kind(index, &record);
                let Some(run) = runs.get(&(record.number, kind.is_some())) else {
                    self.put(kind, &record, outer, parts, path)?;
                    continue;
                };
                // The place of a run is that of its last record: of two members of a oneof the
                // later one counts.
                if records.pos() != run.end {
                    continue;
                }
                if run.bytes <= parts.max {
                    parts.reserve(run.bytes);
                } else if kind.is_none() {
                    self.joint = Joint::UnknownCut;
                }
                for record in run.stretches.iter().flat_map(|stretch| Records::new(stretch)) {
                    self.put(kind, &record, outer, parts, path)?;
                }
            }
            if !some_late {
                break;
            }
        }
        Ok(())
    }

    /// Gathers what should stay together. A message without a schema has no runs: to its readers
    /// order is all.
    fn runs<'a>(&self, index: Option<TypeIndex>, bytes: &'a [u8]) -> Runs<'a> {
        let mut runs = Runs::default();
        if index.is_none() {
            return runs;
        }
        let mut records = Records::new(bytes);
        while let Some(record) = records.next() {
            let kind = self.kind(index, &record);
            if !matches!(kind, None | Some(Kind::Records(_) | Kind::Numbers { .. })) {
                continue;
            }
            let run = runs.entry((record.number, kind.is_some())).or_default();
            let end = records.pos();
            let start = end - record.raw.len();
            match run.stretches.last_mut() {
                Some(last) if run.end == start => *last = &bytes[start - last.len()..end],
                _ => run.stretches.push(record.raw),
            }
            run.bytes += record.raw.len();
            run.end = end;
        }
        runs
    }

    /// What the schema says about a record; `None` when it does not know the field.
    fn kind(&self, index: Option<TypeIndex>, record: &Record<'_>) -> Option<Kind> {
        let types = self.plan.types.get(index?);
        let slot = types.classify(record.number, record.wire)?;
        Some(types.fields[usize::from(slot)].kind)
    }

    /// Appends a record, in pieces where it alone is too long.
    fn put(
        &mut self,
        kind: Option<Kind>,
        record: &Record<'_>,
        outer: usize,
        parts: &mut Parts,
        path: &mut Vec<u32>,
    ) -> Result<(), Oversize> {
        if record.raw.len() <= parts.max {
            parts.reserve(record.raw.len());
            parts.current.extend_from_slice(record.raw);
            return Ok(());
        }
        path.push(record.number);
        match kind {
            Some(Kind::Message(sub)) => self.split_inner(sub, record, outer, parts, path)?,
            Some(Kind::Numbers { scalar, .. }) if record.wire == LEN => {
                self.split_packed(scalar, record, outer, parts, path)?;
            }
            _ => self.leave_out(path, record.raw.len() + outer)?,
        }
        path.pop();
        Ok(())
    }

    /// Cuts a packed list of numbers between elements.
    fn split_packed(
        &mut self,
        scalar: Scalar,
        record: &Record<'_>,
        outer: usize,
        parts: &mut Parts,
        path: &[u32],
    ) -> Result<(), Oversize> {
        let head = varint_len(u64::from(record.number) << 3) + varint_len(parts.max as u64);
        let room = parts.max.saturating_sub(head);
        let mut chunk: Vec<u8> = Vec::new();
        for element in numbers(scalar, record.payload) {
            if element.len() > room {
                self.leave_out(path, head + element.len() + outer)?;
                continue;
            }
            if chunk.len() + element.len() > room {
                push_packed(parts, record.number, &chunk);
                chunk.clear();
            }
            chunk.extend_from_slice(element);
        }
        push_packed(parts, record.number, &chunk);
        Ok(())
    }

    /// Cuts inside a message field and wraps every part in it.
    fn split_inner(
        &mut self,
        sub: TypeIndex,
        record: &Record<'_>,
        outer: usize,
        parts: &mut Parts,
        path: &mut Vec<u32>,
    ) -> Result<(), Oversize> {
        let tag = u64::from(record.number) << 3 | u64::from(LEN);
        let head = varint_len(tag) + varint_len(parts.max as u64);
        let Some(max) = parts.max.checked_sub(head) else {
            return self.leave_out(path, record.raw.len() + outer);
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

    /// Counts an element that is too long, or fails because of it.
    fn leave_out(&mut self, path: &[u32], bytes: usize) -> Result<(), Oversize> {
        match &mut self.left_out {
            Some(left_out) => **left_out += 1,
            None => return Err(self.oversize(path, bytes)),
        }
        Ok(())
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
