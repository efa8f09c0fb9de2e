//! Keys and values of the index.
//!
//! | Key | Value |
//! |---|---|
//! | `b` namespace hash | where the blob is: [`Location`] |
//! | `c` namespace content-id weight(8, big-endian) blob | nothing |
//! | `r` namespace bucket key | the ref: [`RefValue`] |
//! | `a` namespace bucket key | when the ref was last used: milliseconds since 1970, little-endian |
//!
//! Those of the replication log are in `events.rs`. Namespace and bucket are preceded by their length in one byte, so that prefixes select exactly one.

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

/// Namespace of an index key of any kind, and what follows it.
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

/// Where the bytes of a blob are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// A large blob has a file to itself; a small one lies in a segment of the log.
    pub(crate) large: bool,
    /// Number of the file or segment.
    pub(crate) file: u64,
    /// Where it begins.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// When it was put.
    pub(crate) put: Timestamp,
}

impl Location {
    pub(crate) const BYTES: usize = 33;

    pub(crate) fn write(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = u8::from(self.large);
        for (at, value) in [(1, self.file), (9, self.offset), (17, self.len), (25, self.put.unix_ms())] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Location> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Some(Location {
            large: bytes[0] == 1,
            file: u64_at(1),
            offset: u64_at(9),
            len: u64_at(17),
            put: Timestamp::from_unix_ms(u64_at(25)),
        })
    }
}

/// A ref as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefValue {
    /// Hash of the object.
    pub object: IoHash,
    /// Whether everything that it reaches was stored.
    pub finalised: bool,
    /// When it was put.
    pub put: Timestamp,
    /// The object, if it is small; else it is a blob.
    pub inline: Option<Bytes>,
}

impl RefValue {
    const HEAD_BYTES: usize = 30;
    /// A ref that is put again unchanged is written again only when it is older than this, for policies that count from it.
    const REFRESH_MS: u64 = 3600 * 1000;

    /// Whether putting this where `old` is changes nothing that anybody would notice.
    pub(crate) fn is_refresh_of(&self, old: &RefValue) -> bool {
        let age_ms = self.put.unix_ms().saturating_sub(old.put.unix_ms());
        old.object == self.object && old.finalised == self.finalised && age_ms < Self::REFRESH_MS
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let inline = self.inline.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(Self::HEAD_BYTES + inline.len());
        bytes.push(1);
        bytes.push(u8::from(self.finalised) | u8::from(self.inline.is_some()) << 1);
        bytes.extend_from_slice(&self.put.unix_ms().to_le_bytes());
        bytes.extend_from_slice(self.object.as_bytes());
        bytes.extend_from_slice(inline);
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<RefValue> {
        let (head, inline) = bytes.split_first_chunk::<{ Self::HEAD_BYTES }>()?;
        (head[0] == 1).then(|| RefValue {
            finalised: head[1] & 1 != 0,
            inline: (head[1] & 2 != 0).then(|| Bytes::copy_from_slice(inline)),
            put: Timestamp::from_unix_ms(u64::from_le_bytes(head[2..10].try_into().expect("eight bytes"))),
            object: IoHash::read(&head[10..]).expect("twenty bytes"),
        })
    }
}
