//! Writing and reading bodies without intermediate structs.

use crate::{Field, WireError, WireType, read_field, varint_len, write_varint};

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LEN: u64 = 2;

/// Appends a number; zero is left out, as proto3 does.
#[inline]
pub fn write_u64(out: &mut Vec<u8>, number: u32, value: u64) {
    if value != 0 {
        write_varint(out, u64::from(number) << 3 | VARINT);
        write_varint(out, value);
    }
}

/// Appends `true`; `false` is left out, as proto3 does.
#[inline]
pub fn write_bool(out: &mut Vec<u8>, number: u32, value: bool) {
    write_u64(out, number, u64::from(value));
}

/// Appends a double, zero included.
#[inline]
pub fn write_f64(out: &mut Vec<u8>, number: u32, value: f64) {
    write_varint(out, u64::from(number) << 3 | FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends text or bytes, the empty one included.
#[inline]
pub fn write_bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    write_varint(out, u64::from(number) << 3 | LEN);
    write_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Bytes that [`write_bytes`] appends for a value of `len` bytes.
#[inline]
#[must_use]
pub fn bytes_field_len(number: u32, len: usize) -> usize {
    varint_len(u64::from(number) << 3 | LEN) + varint_len(len as u64) + len
}

/// Appends a message that `write` produces in place.
///
/// Two bytes are reserved for the length. A body whose length needs more or fewer is moved by a
/// byte or two, which is cheaper than counting first.
#[inline]
pub fn write_nested<R>(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    write_varint(out, u64::from(number) << 3 | LEN);
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    let result = write(out);
    let len = out.len() - at - 2;
    if len < 0x80 {
        out[at] = len as u8;
        out.copy_within(at + 2.., at + 1);
        out.pop();
    } else if len < 0x4000 {
        out[at] = len as u8 | 0x80;
        out[at + 1] = (len >> 7) as u8;
    } else {
        let wider = varint_len(len as u64) - 2;
        let end = out.len();
        out.resize(end + wider, 0);
        out.copy_within(at + 2..end, at + 2 + wider);
        let mut rest = len;
        for slot in &mut out[at..at + 2 + wider] {
            *slot = rest as u8 | 0x80;
            rest >>= 7;
        }
        out[at + 1 + wider] &= 0x7F;
    }
    result
}

/// A body under construction, for callers that build requests: chained field writers over one
/// buffer.
///
/// ```
/// use throng_wire::matcher::{Reader, Writer};
///
/// let body = Writer::new().str(1, "r1").u64(2, 5).into_bytes();
/// let reader = Reader::new(&body)?;
/// assert_eq!((reader.str(1)?, reader.u64(2)), ("r1", 5));
/// # Ok::<(), throng_wire::WireError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// An empty body.
    #[must_use]
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Adds text.
    #[must_use]
    pub fn str(mut self, number: u32, value: &str) -> Writer {
        write_bytes(&mut self.0, number, value.as_bytes());
        self
    }

    /// Adds bytes, free-form JSON or an encoded message.
    #[must_use]
    pub fn bytes(mut self, number: u32, value: &[u8]) -> Writer {
        write_bytes(&mut self.0, number, value);
        self
    }

    /// Adds a number, zero included.
    #[must_use]
    pub fn u64(mut self, number: u32, value: u64) -> Writer {
        write_varint(&mut self.0, u64::from(number) << 3 | VARINT);
        write_varint(&mut self.0, value);
        self
    }

    /// Adds a double.
    #[must_use]
    pub fn f64(mut self, number: u32, value: f64) -> Writer {
        write_f64(&mut self.0, number, value);
        self
    }

    /// Adds a message.
    #[must_use]
    pub fn nested(mut self, number: u32, inner: Writer) -> Writer {
        write_bytes(&mut self.0, number, &inner.0);
        self
    }

    /// The body.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// A body that was checked to consist of fields; reads single ones by number.
///
/// Each read walks the body: right for the small bodies of this protocol and for callers that look
/// at one or two fields.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Checks that `body` is a sequence of fields.
    ///
    /// # Errors
    /// The defect of the first invalid field.
    pub fn new(body: &'a [u8]) -> Result<Reader<'a>, WireError> {
        let mut rest = body;
        while read_field(&mut rest)?.is_some() {}
        Ok(Reader(body))
    }

    /// All fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = Field<'a>> + use<'a> {
        crate::fields(self.0).map_while(Result::ok)
    }

    /// The last field with `number`, as proto3 reads.
    #[must_use]
    pub fn last(&self, number: u32) -> Option<Field<'a>> {
        self.fields().filter(|field| field.number == number).last()
    }

    /// Text, empty when it is missing.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub fn str(&self, number: u32) -> Result<&'a str, WireError> {
        self.last(number).map_or(Ok(""), |field| field.str())
    }

    /// Bytes, empty when they are missing.
    #[must_use]
    pub fn bytes(&self, number: u32) -> &'a [u8] {
        self.last(number).filter(|field| field.wire_type == WireType::Len).map_or(&[], |field| field.value)
    }

    /// A number, 0 when it is missing.
    #[must_use]
    pub fn u64(&self, number: u32) -> u64 {
        self.last(number).map_or(0, |field| field.scalar)
    }

    /// A nested message, empty when it is missing.
    ///
    /// # Errors
    /// When it is not a sequence of fields.
    pub fn nested(&self, number: u32) -> Result<Reader<'a>, WireError> {
        Reader::new(self.bytes(number))
    }

    /// Every message or text with `number`.
    pub fn all(&self, number: u32) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.fields().filter(move |field| field.number == number).map(|field| field.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_bodies_of_every_size_class() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
            let inner = vec![7; len];
            let (mut nested, mut plain) = (vec![1], vec![1]);
            write_nested(&mut nested, 3, |out| out.extend_from_slice(&inner));
            write_bytes(&mut plain, 3, &inner);
            assert!(nested == plain, "{len} bytes");
            assert_eq!(plain.len() - 1, bytes_field_len(3, len));
        }
    }
}
