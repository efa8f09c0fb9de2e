//! Results of actions as Bazel writes them (`build.bazel.remote.execution.v2`), as far as they name
//! blobs.

use std::collections::HashSet;

use crate::entry::Sha256;

/// Name of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Digest {
    pub(super) sha: Sha256,
    /// Bytes of the content.
    pub(super) size: u64,
}

/// Blobs that a result names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ActionResult {
    pub(super) blobs: Vec<Digest>,
    /// Trees, whose files count as well.
    pub(super) trees: Vec<Digest>,
}

/// Reads an `ActionResult`; `None` if `bytes` are something else.
pub(super) fn read_result(bytes: &[u8]) -> Option<ActionResult> {
    let mut result = ActionResult::default();
    for field in fields(bytes)? {
        match field {
            // OutputFile: digest.
            (2, Wire::Bytes(file)) => result.blobs.extend(digests(file, &[2])?),
            // OutputDirectory: tree digest, digest of the root.
            (3, Wire::Bytes(directory)) => {
                result.trees.extend(digests(directory, &[3])?);
                result.blobs.extend(digests(directory, &[3, 5])?);
            }
            // stdout and stderr.
            (6 | 8, Wire::Bytes(digest)) => result.blobs.push(read_digest(digest)?),
            (1..=3 | 5..=12, Wire::Number(_)) | (4, Wire::Bytes(_)) => return None,
            _ => {}
        }
    }
    Some(result)
}

/// Reads which blobs a `Tree` names: the files of its directories, and directories that it does not
/// hold; `None` if `bytes` are something else.
pub(super) fn read_tree(bytes: &[u8]) -> Option<Vec<Digest>> {
    let (mut named, mut directories, mut held) = (Vec::new(), Vec::new(), HashSet::new());
    for (number, value) in fields(bytes)? {
        // The root and all other directories.
        let (1 | 2, Wire::Bytes(directory)) = (number, value) else { continue };
        held.insert(Sha256::of(directory));
        for field in fields(directory)? {
            match field {
                (1, Wire::Bytes(file)) => named.extend(digests(file, &[2])?),
                (2, Wire::Bytes(directory)) => directories.extend(digests(directory, &[2])?),
                _ => {}
            }
        }
    }
    named.extend(directories.into_iter().filter(|directory| !held.contains(&directory.sha)));
    Some(named)
}

/// The digests in some fields of a message.
fn digests(bytes: &[u8], numbers: &[u64]) -> Option<Vec<Digest>> {
    let mut found = Vec::new();
    for (number, value) in fields(bytes)? {
        if let (true, Wire::Bytes(digest)) = (numbers.contains(&number), value) {
            found.push(read_digest(digest)?);
        }
    }
    Some(found)
}

fn read_digest(bytes: &[u8]) -> Option<Digest> {
    let (mut sha, mut size) = (None, 0);
    for field in fields(bytes)? {
        match field {
            (1, Wire::Bytes(text)) => sha = Some(Sha256::parse(std::str::from_utf8(text).ok()?)?),
            (2, Wire::Number(bytes)) => size = bytes,
            _ => {}
        }
    }
    Some(Digest { sha: sha?, size })
}

/// A value of protobuf, as far as it matters here.
enum Wire<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

/// The fields of a message; `None` if `bytes` are none.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = take_varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Wire::Number(take_varint(&mut bytes)?),
            1 => Wire::Number(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?)),
            2 => {
                let len = usize::try_from(take_varint(&mut bytes)?).ok()?;
                Wire::Bytes(take(&mut bytes, len)?)
            }
            5 => Wire::Number(u32::from_le_bytes(take(&mut bytes, 4)?.try_into().ok()?).into()),
            _ => return None,
        };
        if tag >> 3 == 0 {
            return None;
        }
        found.push((tag >> 3, value));
    }
    Some(found)
}

fn take<'b>(bytes: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a length of less than 2^14.
    fn write_len(bytes: &mut Vec<u8>, len: usize) {
        if len >= 0x80 {
            bytes.push((len & 0x7F) as u8 | 0x80);
        }
        bytes.push(if len >= 0x80 { (len >> 7) as u8 } else { len as u8 });
    }

    fn message(parts: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, content) in parts {
            bytes.push(number << 3 | 2);
            write_len(&mut bytes, content.len());
            bytes.extend_from_slice(content);
        }
        bytes
    }

    fn digest(digit: &str) -> (Digest, Vec<u8>) {
        let sha = Sha256::parse(&digit.repeat(64)).expect("digits");
        let mut bytes = message(&[(1, digit.repeat(64).as_bytes())]);
        // The size.
        bytes.extend([2 << 3, 100]);
        (Digest { sha, size: 100 }, bytes)
    }

    #[test]
    fn a_result_names_files_trees_and_output() {
        let all: Vec<_> = ["1", "2", "3", "4", "5"].into_iter().map(digest).collect();
        let file = message(&[(1, b"out/a"), (2, &all[0].1)]);
        let directory = message(&[(1, b"out/d"), (3, &all[1].1), (5, &all[4].1)]);
        let mut bytes = message(&[(2, &file), (3, &directory), (5, b"text"), (6, &all[2].1), (8, &all[3].1)]);
        bytes.extend([4 << 3, 0]);
        let result = read_result(&bytes).expect("a result");
        assert_eq!(result.trees, [all[1].0]);
        let mut named = result.blobs;
        named.sort();
        assert_eq!(named, all.iter().map(|(digest, _)| *digest).collect::<Vec<_>>());
        assert_eq!(read_result(b""), Some(ActionResult::default()));
    }

    #[test]
    fn a_tree_names_the_files_of_all_directories() {
        let (first, second) = (digest("a"), digest("b"));
        let directory = |bytes: &[u8]| message(&[(1, &message(&[(1, b"f"), (2, bytes)])), (2, b"")]);
        let tree = message(&[(1, &directory(&first.1)), (2, &directory(&second.1))]);
        assert_eq!(read_tree(&tree), Some(vec![first.0, second.0]));
        assert_eq!(read_tree(b"\x0a\x05no"), None);
    }

    #[test]
    fn a_tree_names_directories_that_it_does_not_hold() {
        let child = message(&[(1, &message(&[(1, b"f"), (2, &digest("a").1)]))]);
        let node = |sha: Sha256| {
            let name = message(&[(1, sha.to_string().as_bytes())]);
            message(&[(2, &message(&[(1, b"d"), (2, &name)]))])
        };
        let root = node(Sha256::of(&child));
        let tree = message(&[(1, &root), (2, &child)]);
        assert_eq!(read_tree(&tree), Some(vec![digest("a").0]));
        let without = Digest { sha: Sha256::of(&child), size: 0 };
        assert_eq!(read_tree(&message(&[(1, &root)])), Some(vec![without]));
    }

    #[test]
    fn other_bytes_are_opaque() {
        let bad_digest = message(&[(2, &message(&[(2, &message(&[(1, b"short")]))]))]);
        for bytes in [
            &b"cCac\0\x01"[..],
            b"\x12\xff",
            b"\x00",
            b"\x10\x01",
            b"\x0b",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            &bad_digest,
        ] {
            assert_eq!(read_result(bytes), None, "{bytes:?}");
        }
    }
}
