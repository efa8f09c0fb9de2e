//! Records of the log.
//!
//! ```text
//! offset size
//!      0    4  magic "TDC1"
//!      4    4  CRC-32 of bytes 8..40, key and value
//!      8    1  kind: 1 put, 2 delete
//!      9    1  0
//!     10    2  key length
//!     12    4  value length
//!     16    8  payload length
//!     24    8  sequence number
//!     32    8  0
//!     40       key, value, payload
//! ```
//!
//! Numbers are little-endian. The key of a record with payload ends with the payload's IoHash, which is its checksum.
//! Sequence numbers grow by one from record to record, across segments: what is left of an older life of the disk cannot
//! be taken for a record.

/// Size of what stands before the key.
pub(crate) const HEADER_BYTES: usize = 40;
/// Longest key: a ref's.
pub(crate) const KEY_BYTES_MAX: usize = 4 + 64 + 64 + 40;
/// Longest value: a ref with its object inline.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 20;

const MAGIC: [u8; 4] = *b"TDC1";
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// A record's header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) delete: bool,
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
    pub(crate) payload_len: u64,
    pub(crate) sequence: u64,
    crc: u32,
}

impl Header {
    /// Reads a header. `None` if it cannot be one.
    pub(crate) fn read(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let header = Header {
            delete: bytes[8] == DELETE,
            key_len: usize::from(u16::from_le_bytes([bytes[10], bytes[11]])),
            value_len: u32_at(12) as usize,
            payload_len: u64_at(16),
            sequence: u64_at(24),
            crc: u32_at(4),
        };
        let known = matches!(bytes[8], PUT | DELETE) && bytes[..4] == MAGIC;
        let sized = header.key_len <= KEY_BYTES_MAX && header.value_len <= VALUE_BYTES_MAX;
        (known && sized).then_some(header)
    }

    /// Whether `head` (this header's bytes) and what follows it are what was written.
    pub(crate) fn matches(&self, head: &[u8; HEADER_BYTES], key_and_value: &[u8]) -> bool {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head[8..]);
        crc.update(key_and_value);
        crc.finalize() == self.crc
    }
}

/// Appends header, key and value; the payload is to follow. `value` of `None` deletes the key.
pub(crate) fn write(out: &mut Vec<u8>, sequence: u64, key: &[u8], value: Option<&[u8]>, payload_len: u64) {
    assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
    let start = out.len();
    let value_bytes = value.unwrap_or_default();
    assert!(value_bytes.len() <= VALUE_BYTES_MAX, "a value of {} bytes", value_bytes.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[if value.is_some() { PUT } else { DELETE }, 0]);
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(&(value_bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&payload_len.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(key);
    out.extend_from_slice(value_bytes);
    let crc = crc32fast::hash(&out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_bit_is_noticed() {
        let mut bytes = Vec::new();
        write(&mut bytes, 7, b"key", Some(b"value"), 9);
        let valid = |bytes: &[u8]| {
            let head = bytes.first_chunk().expect("a header");
            Header::read(head).filter(|header| {
                let end = HEADER_BYTES + header.key_len + header.value_len;
                bytes.get(HEADER_BYTES..end).is_some_and(|rest| header.matches(head, rest))
            })
        };
        let header = valid(&bytes).expect("valid");
        assert_eq!((header.sequence, header.payload_len, header.delete), (7, 9, false));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(valid(&changed), None, "bit {bit}");
        }
    }
}
