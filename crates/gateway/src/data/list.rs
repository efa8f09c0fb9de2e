//! List fields as encoded elements.

use super::cursor::{FIXED32, FIXED64, LEN, Record, Records, VARINT, read_varint, varint_len, write_varint};
use super::plan::Scalar;

/// One list field.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListField {
    /// Elements one after the other: whole records, or for numbers the bare values.
    pub(crate) bytes: Vec<u8>,
    /// Number of elements.
    pub(crate) count: usize,
}

impl ListField {
    /// Appends one record of a list of messages, text or bytes.
    pub(crate) fn push_record(&mut self, raw: &[u8]) {
        self.bytes.extend_from_slice(raw);
        self.count += 1;
    }

    /// Appends the numbers of a record, which holds one or, packed, any number.
    pub(crate) fn push_numbers(&mut self, scalar: Scalar, record: &Record<'_>) {
        self.bytes.extend_from_slice(record.payload);
        self.count += if record.wire == LEN { count_numbers(scalar, record.payload) } else { 1 };
    }

    /// Keeps the first or the last `limit` elements. `scalar` is set for lists of numbers.
    pub(crate) fn truncate(&mut self, scalar: Option<Scalar>, limit: usize, keep_last: bool) {
        if self.count <= limit {
            return;
        }
        let kept_before = if keep_last { self.count - limit } else { limit };
        let at = self.offset(scalar, kept_before);
        if keep_last {
            self.bytes.drain(..at);
        } else {
            self.bytes.truncate(at);
        }
        self.count = limit;
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    /// Offset of element `index`.
    fn offset(&self, scalar: Option<Scalar>, index: usize) -> usize {
        match scalar.map(Scalar::wire) {
            Some(FIXED32) => index * 4,
            Some(FIXED64) => index * 8,
            Some(_) => {
                let mut pos = 0;
                for _ in 0..index {
                    let _ = read_varint(&self.bytes, &mut pos);
                }
                pos
            }
            None => {
                let mut records = Records::new(&self.bytes);
                for _ in 0..index {
                    let _ = records.next();
                }
                records.pos()
            }
        }
    }
}

/// Number of elements in a packed payload.
fn count_numbers(scalar: Scalar, payload: &[u8]) -> usize {
    match scalar.wire() {
        FIXED32 => payload.len() / 4,
        FIXED64 => payload.len() / 8,
        // A varint ends with a byte below 0x80.
        _ => payload.iter().filter(|&&byte| byte < 0x80).count(),
    }
}

/// Iterator over the elements of a packed payload.
pub(crate) fn numbers(scalar: Scalar, payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = match scalar.wire() {
            FIXED32 => 4,
            FIXED64 => 8,
            _ => rest.iter().position(|&byte| byte < 0x80)? + 1,
        };
        let (element, after) = rest.split_at_checked(len)?;
        rest = after;
        Some(element)
    })
}

/// Writes a list of numbers as its schema wants it.
pub(crate) fn write_numbers(number: u32, scalar: Scalar, packed: bool, elements: &[u8], out: &mut Vec<u8>) {
    if elements.is_empty() {
        return;
    }
    if packed {
        write_varint(out, u64::from(number << 3 | u32::from(LEN)));
        write_varint(out, elements.len() as u64);
        out.extend_from_slice(elements);
        return;
    }
    let tag = u64::from(number << 3 | u32::from(scalar.wire()));
    for element in numbers(scalar, elements) {
        write_varint(out, tag);
        out.extend_from_slice(element);
    }
}

/// Encoded size of what [`write_numbers`] writes.
pub(crate) fn numbers_len(number: u32, packed: bool, list: &ListField) -> usize {
    let tag = varint_len(u64::from(number << 3 | u32::from(VARINT)));
    match (list.count, packed) {
        (0, _) => 0,
        (_, true) => tag + varint_len(list.bytes.len() as u64) + list.bytes.len(),
        (count, false) => tag * count + list.bytes.len(),
    }
}
