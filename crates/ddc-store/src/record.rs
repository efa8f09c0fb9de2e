//! Records of the log.
//!
//! ```text
//! offset size
//!      0    4  magic "TDC2"
//!      4    4  CRC-32C of bytes 8..40, key and value
//!      8    1  kind: 1 put, 2 delete, 3 commit, 4 loss, 5 directory, 6 segments, 7 recent
//!      9    1  0
//!     10    2  key length
//!     12    4  value length
//!     16    8  payload length
//!     24    8  sequence number
//!     32    8  nonce of the segment plus the record's own offset
//!     40       key, value, payload
//! ```
//!
//! Numbers are little-endian. Sequence numbers grow by one from record to record, across segments.
//! The nonce is random and in the name of the segment: no bytes that a client uploads can pose as a
//! record, so that a reader finds the next record behind damage by looking for one. A record that
//! the disk wrote to the wrong place is none there.
//!
//! | Kind | Key | Value |
//! |---|---|---|
//! | put of a small blob | the index key, which ends with the payload's IoHash | milliseconds since 1970(8), CRC-32C of the payload(4) |
//! | any other put | the index key | what the index holds |
//! | delete | the index key | first(8) and last(8) segment that may hold an older record of the key |
//! | commit | none | up to where the segment was synced before(8), fingerprint(8) of the key of each record of the commit |
//! | loss | none | for each key that damage took: fingerprint(8), segment(8) and offset(8) that its older records lie before |
//! | directory | none | for each record of the segment that names a key: offset(8), fingerprint(8) |
//! | recent | none | for each of the last records before the commit whose key had a value before: offset(8), fingerprint(8) |
//! | segments | none | for each segment before this one that has records: number(8), length(8) |
//!
//! Each commit names keys of records before it as well, and a segment that is closed ends with
//! directories, so that damage which takes a record together with its own commit does not bring an
//! older value of the key back.
//!
//! A segment that has records begins with the list of the segments before it, and a new list is
//! durable before a collection removes a segment: one that the last list names, and that is not
//! there or shorter, was lost.

/// Size of what stands before the key.
pub(crate) const HEADER_BYTES: usize = 40;
/// Longest key: a ref's.
pub(crate) const KEY_BYTES_MAX: usize = 4 + 64 + 64 + 40;
/// Keys that one record of losses names.
pub(crate) const LOSS_KEYS_MAX: usize = 4096;
/// Longest value: a ref with its object inline.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a record's key in its commit, in later commits and in the directory of its segment, for
/// batches of the store's own changes.
pub(crate) const NAMED_BYTES: u64 = 8 + 48 + 16;
/// Value of a small blob's record.
pub(crate) const BLOB_VALUE_BYTES: usize = 12;

pub(crate) const MAGIC: [u8; 4] = *b"TDC2";

/// A position in the log, and the sequence number of the record that begins there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogPosition {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
}

/// Record that an entry of the index stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordPosition {
    /// Smallest segment that may hold a record of this key.
    pub(crate) first: u64,
    /// Segment of the record, 0 for what is in the index only.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

/// Meaning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The key has this value from now on.
    Put,
    /// The key has no value any more, unless a newer record than those that the delete names gave
    /// it one.
    Delete,
    /// End of what was written at once.
    Commit,
    /// Keys whose records were damaged.
    Loss,
    /// Keys of the records of a closed segment.
    Directory,
    /// Segments that are there, and their lengths.
    Segments,
    /// Keys of records before the commit that had a value before.
    Recent,
}

impl Kind {
    fn read(byte: u8) -> Option<Kind> {
        let kinds = [
            Kind::Put,
            Kind::Delete,
            Kind::Commit,
            Kind::Loss,
            Kind::Directory,
            Kind::Segments,
            Kind::Recent,
        ];
        kinds.into_iter().find(|kind| kind.byte() == byte)
    }

    fn byte(self) -> u8 {
        match self {
            Kind::Put => 1,
            Kind::Delete => 2,
            Kind::Commit => 3,
            Kind::Loss => 4,
            Kind::Directory => 5,
            Kind::Segments => 6,
            Kind::Recent => 7,
        }
    }
}

/// A record's header, whose checksum covers key and value as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
    pub(crate) payload_len: u64,
    pub(crate) sequence: u64,
    crc: u32,
}

impl Header {
    /// Reads a header at `offset` of a segment with this nonce. `None` if it cannot be one.
    pub(crate) fn read(bytes: &[u8; HEADER_BYTES], nonce: u64, offset: u64) -> Option<Header> {
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if bytes[..4] != MAGIC || u64_at(32) != nonce.wrapping_add(offset) {
            return None;
        }
        let header = Header {
            kind: Kind::read(bytes[8])?,
            key_len: usize::from(u16::from_le_bytes([bytes[10], bytes[11]])),
            value_len: u32_at(12) as usize,
            payload_len: u64_at(16),
            sequence: u64_at(24),
            crc: u32_at(4),
        };
        (header.key_len <= KEY_BYTES_MAX && header.value_len <= VALUE_BYTES_MAX).then_some(header)
    }

    /// Reports whether `head` (this header's bytes) and what follows it are what was written.
    pub(crate) fn matches(&self, head: &[u8; HEADER_BYTES], key_and_value: &[u8]) -> bool {
        crc32c::crc32c_append(crc32c::crc32c(&head[8..]), key_and_value) == self.crc
    }
}

/// Bytes of a record without payload.
pub(crate) fn bytes(key: &[u8], value: &[u8]) -> u64 {
    (HEADER_BYTES + key.len() + value.len()) as u64
}

/// Appends header, key and value; the payload is to follow. `place` is the nonce of the segment
/// plus the record's offset.
pub(crate) fn write(
    out: &mut Vec<u8>,
    (kind, sequence, place): (Kind, u64, u64),
    key: &[u8],
    value: &[u8],
    payload_len: u64,
) {
    assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
    assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes", value.len());
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[kind.byte(), 0]);
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(&payload_len.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&place.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    let crc = crc32c::crc32c(&out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_bit_is_noticed() {
        let mut bytes = Vec::new();
        write(&mut bytes, (Kind::Put, 7, 99 + 1000), b"key", b"value", 9);
        assert_eq!(super::bytes(b"key", b"value"), bytes.len() as u64);
        let valid_at = |bytes: &[u8], nonce: u64, offset: u64| {
            let head = bytes.first_chunk().expect("a header");
            Header::read(head, nonce, offset).filter(|header| {
                let end = HEADER_BYTES + header.key_len + header.value_len;
                bytes.get(HEADER_BYTES..end).is_some_and(|rest| header.matches(head, rest))
            })
        };
        let valid = |bytes: &[u8], nonce: u64| valid_at(bytes, nonce, 1000);
        let header = valid(&bytes, 99).expect("valid");
        assert_eq!((header.sequence, header.payload_len, header.kind), (7, 9, Kind::Put));
        assert_eq!(valid(&bytes, 98), None, "a record of another segment");
        assert_eq!(valid_at(&bytes, 99, 1512), None, "a record in the wrong place");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(valid(&changed, 99), None, "bit {bit}");
        }
    }
}
