//! Keys and values of the index.
//!
//! | Key | Value |
//! |---|---|
//! | `b` namespace hash | where the blob is: [`Location`] |
//! | `c` namespace content-id weight(8, big-endian) blob | 1 if the form was decoded and its hash was right, else nothing |
//! | `r` namespace bucket key | the ref: [`RefValue`] |
//! | `a` namespace bucket key | when the ref was last used: seconds since 1970(4), little-endian; in the index only |
//! | `l` fingerprint(8, big-endian) | nothing: the newest record of a key was damaged, and it was not put again; in the index only |
//!
//! Those of the replication log are in `events.rs`. Namespace and bucket are preceded by their
//! length in one byte, so that prefixes select exactly one.

use bytes::Bytes;
use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};

fn with_namespace(tag: u8, namespace: &Namespace, more: usize) -> Vec<u8> {
    let name = namespace.as_str().as_bytes();
    let mut key = Vec::with_capacity(2 + name.len() + more);
    key.extend_from_slice(&[tag, name.len() as u8]);
    key.extend_from_slice(name);
    key
}

/// Prefix of everything of one kind in a namespace.
pub(crate) fn in_namespace(tag: u8, namespace: &Namespace) -> Vec<u8> {
    with_namespace(tag, namespace, 0)
}

pub(crate) fn blob(namespace: &Namespace, hash: &IoHash) -> Vec<u8> {
    let mut key = with_namespace(b'b', namespace, IoHash::BYTES);
    key.extend_from_slice(hash.as_bytes());
    key
}

/// Prefix of the forms of one content id.
pub(crate) fn content(namespace: &Namespace, id: &IoHash) -> Vec<u8> {
    let mut key = with_namespace(b'c', namespace, 2 * IoHash::BYTES + 8);
    key.extend_from_slice(id.as_bytes());
    key
}

pub(crate) fn content_form(namespace: &Namespace, id: &IoHash, weight: u64, blob: &IoHash) -> Vec<u8> {
    let mut key = content(namespace, id);
    key.extend_from_slice(&weight.to_be_bytes());
    key.extend_from_slice(blob.as_bytes());
    key
}

/// Content id, weight and blob of a form's index key.
pub(crate) fn read_content_form(bytes: &[u8]) -> Option<(IoHash, u64, IoHash)> {
    let (_, rest) = read_sized(bytes.strip_prefix(b"c")?)?;
    let (id, rest) = rest.split_at_checked(IoHash::BYTES)?;
    let (weight, blob) = rest.split_first_chunk()?;
    Some((IoHash::read(id)?, u64::from_be_bytes(*weight), IoHash::read(blob)?))
}

/// Part of a form's index key that all forms of its content id share; `None` for other keys.
pub(crate) fn form_prefix(key: &[u8]) -> Option<&[u8]> {
    let len = key.len().checked_sub(8 + IoHash::BYTES)?;
    (key[0] == b'c').then(|| &key[..len])
}

/// Reports whether this is the prefix of the forms of one content id.
pub(crate) fn is_form_prefix(prefix: &[u8]) -> bool {
    matches!(prefix, [b'c', len, ..] if prefix.len() == 2 + usize::from(*len) + IoHash::BYTES)
}

/// Prefix of the refs of a bucket.
pub(crate) fn bucket(namespace: &Namespace, bucket: &Bucket) -> Vec<u8> {
    let name = bucket.as_str().as_bytes();
    let mut key = with_namespace(b'r', namespace, 1 + name.len() + Key::CHARS);
    key.push(name.len() as u8);
    key.extend_from_slice(name);
    key
}

pub(crate) fn reference(namespace: &Namespace, name: &Bucket, key: &Key) -> Vec<u8> {
    let mut bytes = bucket(namespace, name);
    bytes.extend_from_slice(key.as_str().as_bytes());
    bytes
}

/// Where the last use of a ref is, from the ref's own index key.
pub(crate) fn access(reference: &[u8]) -> Vec<u8> {
    let mut key = reference.to_vec();
    key[0] = b'a';
    key
}

/// Prefix of the marks of lost keys.
pub(crate) const LOST: &[u8] = b"l";

/// Mark of a key whose newest record was damaged, by the fingerprint of the key.
pub(crate) fn lost(fingerprint: u64) -> Vec<u8> {
    [LOST, &fingerprint.to_be_bytes()].concat()
}

/// Namespace of an index key of most kinds, and what follows it.
pub(crate) fn split_namespace(bytes: &[u8]) -> Option<(Namespace, &[u8])> {
    let (namespace, rest) = read_sized(bytes.get(1..)?)?;
    Some((namespace.parse().ok()?, rest))
}

/// Namespace, bucket and key of a ref's index key.
pub(crate) fn read_reference(bytes: &[u8]) -> Option<(Namespace, Bucket, Key)> {
    let (namespace, rest) = read_sized(bytes.strip_prefix(b"r")?)?;
    let (bucket, key) = read_sized(rest)?;
    Some((namespace.parse().ok()?, bucket.parse().ok()?, std::str::from_utf8(key).ok()?.parse().ok()?))
}

/// Namespace and hash of a blob's index key.
pub(crate) fn read_blob(bytes: &[u8]) -> Option<(Namespace, IoHash)> {
    let (namespace, rest) = read_sized(bytes.strip_prefix(b"b")?)?;
    Some((namespace.parse().ok()?, IoHash::read(rest)?))
}

fn read_sized(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*len))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

/// The hash at the end of a key: a blob's own, or that of a form of a content id.
pub(crate) fn last_hash(key: &[u8]) -> Option<IoHash> {
    IoHash::read(key.last_chunk::<{ IoHash::BYTES }>()?)
}

/// Time in the value of an access key.
pub(crate) fn read_access(value: &[u8]) -> Option<Timestamp> {
    let seconds = u32::from_le_bytes(value.try_into().ok()?);
    Some(Timestamp::from_unix_ms(u64::from(seconds) * 1000))
}

/// CRC-32C of a payload in the value of its record.
pub(crate) fn payload_crc(value: &[u8]) -> u32 {
    value.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Value of a small blob's record.
pub(crate) fn blob_value(put: Timestamp, payload: &[u8]) -> Vec<u8> {
    let mut value = put.unix_ms().to_le_bytes().to_vec();
    value.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    value
}

/// Location of the bytes of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Kind of file that holds it.
    pub(crate) kind: FileKind,
    /// Number of the file or segment.
    pub(crate) file: u64,
    /// Offset of its first byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Time at which it was put.
    pub(crate) put: Timestamp,
    /// CRC-32C of the bytes of a small blob, or of the sums that follow those of a large one.
    pub(crate) crc: u32,
}

/// Kind of file that holds a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// A segment of the log: small blobs.
    Segment,
    /// A file of its own, as version 1 of the format wrote it.
    Plain,
    /// A file of its own, with a CRC-32C of each MiB behind the bytes.
    Summed,
}

impl Location {
    pub(crate) const BYTES: usize = 37;

    /// Reports whether the blob has a file of its own.
    pub(crate) fn is_large(&self) -> bool {
        self.kind != FileKind::Segment
    }

    pub(crate) fn write(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = match self.kind {
            FileKind::Segment => 0,
            FileKind::Plain => 1,
            FileKind::Summed => 2,
        };
        for (at, value) in [(1, self.file), (9, self.offset), (17, self.len), (25, self.put.unix_ms())] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes[33..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Location> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Some(Location {
            kind: match bytes[0] {
                0 => FileKind::Segment,
                1 => FileKind::Plain,
                2 => FileKind::Summed,
                _ => return None,
            },
            file: u64_at(1),
            offset: u64_at(9),
            len: u64_at(17),
            put: Timestamp::from_unix_ms(u64_at(25)),
            crc: u32::from_le_bytes(bytes[33..].try_into().expect("four bytes")),
        })
    }
}

/// A ref as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefValue {
    /// Hash of the object.
    pub object: IoHash,
    /// True if everything that it reaches was stored.
    pub finalised: bool,
    /// Time when it was put.
    pub put: Timestamp,
    /// The object, if it is small; else it is a blob.
    pub inline: Option<Bytes>,
    /// It was brought from an upstream cache, which may have replaced it since.
    pub adopted: bool,
}

impl RefValue {
    const HEAD_BYTES: usize = 30;
    /// First byte of a ref without a checksum: records and blocks of the folder have their own.
    const PLAIN: u8 = 1;
    /// First byte of a ref that ends with a CRC-32C of its name and the rest.
    #[cfg(any(feature = "object-storage", test))]
    const SUMMED: u8 = 3;
    /// A ref that is put again unchanged is written again only when it is older than this, for
    /// policies that count from it.
    const REFRESH_MS: u64 = 3600 * 1000;

    /// Reports whether putting this in place of `old` changes nothing that a client would notice.
    pub(crate) fn is_refresh_of(&self, old: &RefValue) -> bool {
        let age_ms = self.put.unix_ms().saturating_sub(old.put.unix_ms());
        let same = (old.object, old.finalised, old.adopted) == (self.object, self.finalised, self.adopted);
        same && age_ms < Self::REFRESH_MS
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let inline = self.inline.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(Self::HEAD_BYTES + inline.len());
        bytes.push(Self::PLAIN);
        let flags = [self.finalised, self.inline.is_some(), self.adopted];
        bytes.push(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
        bytes.extend_from_slice(&self.put.unix_ms().to_le_bytes());
        bytes.extend_from_slice(self.object.as_bytes());
        bytes.extend_from_slice(inline);
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<RefValue> {
        (*bytes.first()? == Self::PLAIN).then(|| Self::parse(bytes)).flatten()
    }

    /// The same with a checksum, for object storage. It covers `name`, the ref's index key: an
    /// object that lies under another name is damaged.
    #[cfg(any(feature = "object-storage", test))]
    pub(crate) fn write_summed(&self, name: &[u8]) -> Vec<u8> {
        let mut bytes = self.write();
        bytes[0] = Self::SUMMED;
        let sum = crc32c::crc32c_append(crc32c::crc32c(name), &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the ref `name` of object storage.
    #[cfg(any(feature = "object-storage", test))]
    pub(crate) fn read_summed(name: &[u8], bytes: &[u8]) -> Option<RefValue> {
        let (value, sum) = bytes.split_last_chunk()?;
        let is_sound = crc32c::crc32c_append(crc32c::crc32c(name), value) == u32::from_le_bytes(*sum);
        (is_sound && *value.first()? == Self::SUMMED).then(|| Self::parse(value)).flatten()
    }

    fn parse(bytes: &[u8]) -> Option<RefValue> {
        let (head, inline) = bytes.split_first_chunk::<{ Self::HEAD_BYTES }>()?;
        Some(RefValue {
            finalised: head[1] & 1 != 0,
            adopted: head[1] & 4 != 0,
            inline: (head[1] & 2 != 0).then(|| Bytes::copy_from_slice(inline)),
            put: Timestamp::from_unix_ms(u64::from_le_bytes(head[2..10].try_into().expect("eight bytes"))),
            object: IoHash::read(&head[10..]).expect("twenty bytes"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_of_a_ref_in_object_storage_is_found() {
        let names = ["one", "two"].map(|namespace| {
            let namespace = namespace.parse().expect("a name");
            let key = IoHash::of(b"a key").to_string().parse().expect("a key");
            reference(&namespace, &"assets".parse().expect("a name"), &key)
        });
        for inline in [None, Some(Bytes::from_static(b"an object"))] {
            let (object, put) = (IoHash::of(b"an object"), Timestamp::from_unix_ms(1_700_000_000_123));
            let value = RefValue { object, finalised: true, put, inline, adopted: false };
            let bytes = value.write_summed(&names[0]);
            assert_eq!(RefValue::read_summed(&names[0], &bytes), Some(value.clone()));
            assert_eq!(RefValue::read_summed(&names[1], &bytes), None, "the ref of another name");
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(RefValue::read_summed(&names[0], &damaged), None, "bit {bit}");
            }
            for len in 0..bytes.len() {
                assert_eq!(RefValue::read_summed(&names[0], &bytes[..len]), None, "{len} bytes");
            }
            assert_eq!(RefValue::read_summed(&names[0], &value.write()), None, "without a checksum");
        }
    }
}
