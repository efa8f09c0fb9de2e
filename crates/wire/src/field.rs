//! Fields of a protobuf message, without its schema.

use crate::varint::read_varint;

/// Deepest nesting of unknown groups. Protobuf implementations agree on 100.
pub const GROUP_DEPTH_MAX: usize = 100;

/// Why bytes are not the protobuf they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end inside a number, a value or a group.
    #[error("bytes end inside a field")]
    Truncated,
    /// A varint does not fit 64 bits.
    #[error("varint longer than 64 bits")]
    VarintTooLong,
    /// A tag with field number 0, a number above 2^29 - 1, or one of the two unassigned wire types.
    #[error("tag {0:#x} has no valid field number and wire type")]
    BadTag(u64),
    /// The end of a group that was not begun, or of another one.
    #[error("end of group {0} without its begin")]
    UnbalancedGroup(u32),
    /// Groups nest deeper than [`GROUP_DEPTH_MAX`].
    #[error("groups nest deeper than {GROUP_DEPTH_MAX}")]
    TooDeep,
    /// A string field is not UTF-8.
    #[error("string in field {0} is not UTF-8")]
    BadUtf8(u32),
    /// A field that has to be there is not.
    #[error("field {0} is missing")]
    Missing(u32),
}

/// Wire type: the layout of a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WireType {
    /// A varint: integers, bools, enums.
    Varint,
    /// 8 bytes little-endian: fixed64, double.
    Fixed64,
    /// A length and that many bytes: strings, bytes, messages, packed numbers.
    Len,
    /// An old-style group; only ever skipped.
    Group,
    /// 4 bytes little-endian: fixed32, float.
    Fixed32,
}

/// One field of a message, borrowed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field number: 1 to 2^29 - 1.
    pub number: u32,
    /// The layout of the value.
    pub wire_type: WireType,
    /// The number in a `Varint`, `Fixed32` or `Fixed64` field, else 0.
    pub scalar: u64,
    /// The content of a `Len` field (without its length) or of a `Group` (without its end), else
    /// the bytes of the value.
    pub value: &'a [u8],
    /// The whole encoded field, tag included.
    pub raw: &'a [u8],
}

impl<'a> Field<'a> {
    /// The value as text.
    ///
    /// # Errors
    /// [`WireError::BadUtf8`] if it is not UTF-8.
    pub fn str(&self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.value).map_err(|_| WireError::BadUtf8(self.number))
    }
}

/// Reads one field off the front of `input`; `None` at its end. After an error `input` is
/// unspecified.
///
/// ```
/// use throng_wire::{WireType, read_field};
///
/// let mut message: &[u8] = &[0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i'];
/// let first = read_field(&mut message)?.expect("a field");
/// assert_eq!((first.number, first.wire_type, first.scalar), (1, WireType::Varint, 150));
/// let second = read_field(&mut message)?.expect("another");
/// assert_eq!((second.number, second.str()?), (2, "hi"));
/// assert_eq!(read_field(&mut message)?, None);
/// # Ok::<(), throng_wire::WireError>(())
/// ```
///
/// # Errors
/// The defect of the next field; see [`WireError`].
#[inline]
pub fn read_field<'a>(input: &mut &'a [u8]) -> Result<Option<Field<'a>>, WireError> {
    if input.is_empty() {
        return Ok(None);
    }
    let start = *input;
    let tag = read_varint(input)?;
    let number = field_number(tag)?;
    let after_tag = *input;
    let (wire_type, scalar, value) = match tag & 7 {
        0 => {
            let scalar = read_varint(input)?;
            (WireType::Varint, scalar, &after_tag[..after_tag.len() - input.len()])
        }
        1 => {
            let bytes = take(input, 8)?;
            (WireType::Fixed64, little_endian(bytes), bytes)
        }
        2 => {
            let len = read_varint(input)?;
            (WireType::Len, 0, take(input, len)?)
        }
        3 => (WireType::Group, 0, skip_group(input, number)?),
        4 => return Err(WireError::UnbalancedGroup(number)),
        5 => {
            let bytes = take(input, 4)?;
            (WireType::Fixed32, little_endian(bytes), bytes)
        }
        _ => return Err(WireError::BadTag(tag)),
    };
    let raw = &start[..start.len() - input.len()];
    Ok(Some(Field { number, wire_type, scalar, value, raw }))
}

/// The fields of a message in the order they stand there; ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

/// Iterates over the fields of `message`.
#[must_use]
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let field = read_field(&mut self.rest).transpose();
        if matches!(field, Some(Err(_))) {
            self.rest = &[];
        }
        field
    }
}

/// Takes `len` bytes off the front.
#[inline]
pub(crate) fn take<'a>(input: &mut &'a [u8], len: u64) -> Result<&'a [u8], WireError> {
    let len = usize::try_from(len).map_err(|_| WireError::Truncated)?;
    let (head, rest) = input.split_at_checked(len).ok_or(WireError::Truncated)?;
    *input = rest;
    Ok(head)
}

/// Field number of a tag; rejects 0 and numbers over 29 bits.
#[inline]
fn field_number(tag: u64) -> Result<u32, WireError> {
    match u32::try_from(tag >> 3) {
        Ok(number) if number != 0 && number < 1 << 29 => Ok(number),
        _ => Err(WireError::BadTag(tag)),
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Takes a group whose begin was just read; returns its content.
///
/// Works without recursion, so that hostile nesting costs a bounded piece of stack.
#[cold]
fn skip_group<'a>(input: &mut &'a [u8], number: u32) -> Result<&'a [u8], WireError> {
    let content = *input;
    let mut open = [0u32; GROUP_DEPTH_MAX];
    open[0] = number;
    let mut depth = 1;
    loop {
        let content_len = content.len() - input.len();
        let tag = read_varint(input)?;
        let number = field_number(tag)?;
        match tag & 7 {
            0 => drop(read_varint(input)?),
            1 => drop(take(input, 8)?),
            2 => {
                let len = read_varint(input)?;
                take(input, len)?;
            }
            3 => {
                *open.get_mut(depth).ok_or(WireError::TooDeep)? = number;
                depth += 1;
            }
            4 => {
                depth -= 1;
                if open[depth] != number {
                    return Err(WireError::UnbalancedGroup(number));
                }
                if depth == 0 {
                    return Ok(&content[..content_len]);
                }
            }
            5 => drop(take(input, 4)?),
            _ => return Err(WireError::BadTag(tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8]) -> Result<Vec<Field<'_>>, WireError> {
        fields(message).collect()
    }

    #[test]
    fn each_wire_type_is_read() {
        let message = [
            0x08, 0xAC, 0x02, // 1: 300
            0x11, 1, 0, 0, 0, 0, 0, 0, 0x80, // 2: fixed64
            0x1A, 2, b'o', b'k', // 3: "ok"
            0x23, 0x08, 1, 0x24, // 4: group { 1: 1 }
            0x2D, 1, 2, 3, 4, // 5: fixed32
        ];
        let fields = all(&message).expect("valid");
        let got: Vec<_> = fields.iter().map(|f| (f.number, f.wire_type, f.scalar, f.value.len())).collect();
        let expected = [
            (1, WireType::Varint, 300, 2),
            (2, WireType::Fixed64, 0x8000_0000_0000_0001, 8),
            (3, WireType::Len, 0, 2),
            (4, WireType::Group, 0, 2),
            (5, WireType::Fixed32, 0x0403_0201, 4),
        ];
        assert_eq!(got, expected);
        let raw: Vec<u8> = fields.iter().flat_map(|field| field.raw).copied().collect();
        assert_eq!(raw, message, "the raw fields are the message");
    }

    #[test]
    fn broken_fields_are_errors() {
        let check = |bytes: &[u8], expected| assert_eq!(all(bytes), Err(expected), "{bytes:02x?}");
        check(&[0x00], WireError::BadTag(0));
        check(&[0x02, 0x00], WireError::BadTag(2));
        check(&[0x0E], WireError::BadTag(0x0E));
        check(&[0x0F], WireError::BadTag(0x0F));
        check(&[0xFF, 0xFF, 0xFF, 0xFF, 0x7F], WireError::BadTag(0x7_FFFF_FFFF));
        check(&[0x0C], WireError::UnbalancedGroup(1));
        check(&[0x0B, 0x14], WireError::UnbalancedGroup(2));
        check(&[0x0B, 0x08], WireError::Truncated);
        check(&[0x0B], WireError::Truncated);
        check(&[0x0A, 0x05, 1], WireError::Truncated);
        check(&[0x09, 1, 2, 3], WireError::Truncated);
        check(&[0x0D, 1, 2, 3], WireError::Truncated);
        // A length over the address space, and one that would overflow if added to a position.
        check(&[0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01], WireError::Truncated);
    }

    #[test]
    fn group_nesting_is_bounded() {
        let nested = |depth: usize| [vec![0x0B; depth], vec![0x0C; depth]].concat();
        assert!(all(&nested(GROUP_DEPTH_MAX)).is_ok());
        assert_eq!(all(&nested(GROUP_DEPTH_MAX + 1)), Err(WireError::TooDeep));
        assert_eq!(all(&vec![0x0B; 1 << 20]), Err(WireError::TooDeep));
    }
}
