//! Packages: an object and its attachments in one body.
//!
//! ```text
//! offset size                                       all numbers are little-endian
//!      0    4  magic AA77AACC
//!      4    4  attachment count, the root not included
//!      8    8  reserved, 0
//!     16 32*n  entries, the root's first: payload size u64, flags u32, hash 20 bytes
//!              payloads in the same order
//! ```
//!
//! The table comes first, so a receiver that has it can store each payload as it streams in.

use crate::IoHash;

/// Size of what stands before the entries.
pub const HEAD_BYTES: usize = 16;
/// Size of an entry.
pub const ENTRY_BYTES: usize = 32;
/// Most attachments in one package: 8 MiB of table. The largest real objects have about 5,000.
pub const ATTACHMENTS_MAX: u32 = 1 << 18;

const MAGIC: u32 = 0xAA77_AACC;

/// What an entry holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// A compressed buffer; the hash is that of the raw data.
    pub const COMPRESSED: Flags = Flags(1);
    /// A compact binary object.
    pub const OBJECT: Flags = Flags(2);
    /// Instead of the data: an object that says why it is missing.
    pub const ERROR: Flags = Flags(4);
    /// A path on the sender's machine. Never valid here.
    pub const LOCAL_REF: Flags = Flags(8);

    /// Reports whether all bits of `other` are set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Bytes of the payload.
    pub size: u64,
    /// What the payload is.
    pub flags: Flags,
    /// Its name.
    pub hash: IoHash,
}

/// Why bytes are not a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// The bytes end early.
    #[error("the package ends early")]
    Truncated,
    /// The first four bytes are wrong.
    #[error("the bytes are not a package")]
    BadMagic,
    /// More attachments than we take.
    #[error("{0} attachments exceed the limit of 262144")]
    TooManyAttachments(u32),
    /// Reserved bytes or flags are in use, or the payload sizes overflow.
    #[error("the table of the package is malformed")]
    BadTable,
    /// The first entry is not an object.
    #[error("the first entry of a package must be an object and no error")]
    BadRoot,
    /// A reference to a file on the sender's machine.
    #[error("a package from the network cannot refer to local files")]
    LocalReference,
    /// Bytes follow the last payload.
    #[error("bytes follow the last payload of the package")]
    Trailing,
}

/// The table of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The entries, the root's first. Never empty.
    pub entries: Vec<Entry>,
}

impl Table {
    /// How many bytes the table takes, head included, told by its first 16 bytes.
    ///
    /// # Errors
    /// [`PackageError::Truncated`] for fewer bytes; wrong magic or count.
    pub fn bytes_needed(head: &[u8]) -> Result<usize, PackageError> {
        let head: &[u8; HEAD_BYTES] = head.first_chunk().ok_or(PackageError::Truncated)?;
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        if u32_at(0) != MAGIC {
            return Err(PackageError::BadMagic);
        }
        if u32_at(4) > ATTACHMENTS_MAX {
            return Err(PackageError::TooManyAttachments(u32_at(4)));
        }
        Ok(HEAD_BYTES + ENTRY_BYTES * (u32_at(4) as usize + 1))
    }

    /// Reads head and entries. Bytes behind them are left alone.
    ///
    /// # Errors
    /// As [`PackageError`] says.
    pub fn read(bytes: &[u8]) -> Result<Table, PackageError> {
        let needed = Table::bytes_needed(bytes)?;
        let rows = bytes.get(HEAD_BYTES..needed).ok_or(PackageError::Truncated)?;
        if bytes[8..HEAD_BYTES] != [0; 8] {
            return Err(PackageError::BadTable);
        }
        let entries: Vec<Entry> = rows
            .chunks_exact(ENTRY_BYTES)
            .map(|row| Entry {
                size: u64::from_le_bytes(row[..8].try_into().expect("eight bytes")),
                flags: Flags(u32::from_le_bytes(row[8..12].try_into().expect("four bytes"))),
                hash: IoHash::read(&row[12..]).expect("twenty bytes"),
            })
            .collect();
        if entries.iter().any(|entry| entry.flags.has(Flags::LOCAL_REF)) {
            return Err(PackageError::LocalReference);
        }
        if entries.iter().any(|entry| entry.flags.0 > 7) {
            return Err(PackageError::BadTable);
        }
        if !entries[0].flags.has(Flags::OBJECT) || entries[0].flags.has(Flags::ERROR) {
            return Err(PackageError::BadRoot);
        }
        let table = Table { entries };
        if table.total_bytes().is_none() { Err(PackageError::BadTable) } else { Ok(table) }
    }

    /// Bytes of the whole package. `None` if that is no 64-bit number; never for a table that was
    /// read.
    #[must_use]
    pub fn total_bytes(&self) -> Option<u64> {
        let table = (HEAD_BYTES + ENTRY_BYTES * self.entries.len()) as u64;
        self.entries.iter().try_fold(table, |sum, entry| sum.checked_add(entry.size))
    }

    /// Head and entries, to be followed by the payloads.
    ///
    /// # Panics
    /// If there is no root.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let count = self.entries.len().checked_sub(1).expect("a package has a root");
        let mut out = Vec::with_capacity(HEAD_BYTES + ENTRY_BYTES * self.entries.len());
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&(count as u32).to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        for entry in &self.entries {
            out.extend_from_slice(&entry.size.to_le_bytes());
            out.extend_from_slice(&entry.flags.0.to_le_bytes());
            out.extend_from_slice(entry.hash.as_bytes());
        }
        out
    }
}

/// Splits a whole package into its entries and their payloads, the root first. Hashes are not
/// checked.
///
/// # Errors
/// As [`PackageError`] says.
pub fn split(bytes: &[u8]) -> Result<Vec<(Entry, &[u8])>, PackageError> {
    let table = Table::read(bytes)?;
    let mut rest = &bytes[HEAD_BYTES + ENTRY_BYTES * table.entries.len()..];
    let mut parts = Vec::with_capacity(table.entries.len());
    for entry in table.entries {
        let size = usize::try_from(entry.size).map_err(|_| PackageError::Truncated)?;
        let (payload, after) = rest.split_at_checked(size).ok_or(PackageError::Truncated)?;
        parts.push((entry, payload));
        rest = after;
    }
    if rest.is_empty() { Ok(parts) } else { Err(PackageError::Trailing) }
}

/// A whole package of these parts, the root first.
///
/// # Panics
/// If there is no part.
#[must_use]
pub fn join(parts: &[(Flags, IoHash, &[u8])]) -> Vec<u8> {
    let entries = parts.iter().map(|(flags, hash, payload)| Entry {
        size: payload.len() as u64,
        flags: *flags,
        hash: *hash,
    });
    let mut out = Table { entries: entries.collect() }.write();
    for (_, _, payload) in parts {
        out.extend_from_slice(payload);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_lie_are_refused() {
        let root: (Flags, IoHash, &[u8]) = (Flags::OBJECT, IoHash::of(b"\x02\x00"), b"\x02\x00");
        let check = |flags: Flags, expected: PackageError| {
            let bytes = join(&[root, (flags, IoHash::ZERO, b"x")]);
            assert_eq!(split(&bytes), Err(expected));
        };
        check(Flags::LOCAL_REF, PackageError::LocalReference);
        check(Flags(16), PackageError::BadTable);
        assert_eq!(split(&join(&[(Flags(0), root.1, root.2)])), Err(PackageError::BadRoot));
        let mut bytes = join(&[root, (Flags(0), IoHash::ZERO, b"x")]);
        bytes.push(0);
        assert_eq!(split(&bytes), Err(PackageError::Trailing));
        bytes.truncate(bytes.len() - 2);
        assert_eq!(split(&bytes), Err(PackageError::Truncated));
        bytes[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(split(&bytes), Err(PackageError::BadTable));
        bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(split(&bytes), Err(PackageError::TooManyAttachments(u32::MAX)));
    }
}
