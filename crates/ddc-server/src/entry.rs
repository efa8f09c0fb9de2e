//! Names of a build cache's entries.

use std::fmt;

use throng_ddc::api::RefName;
use throng_ddc::{IoHash, Namespace};

/// Bucket of contents, and a part of their paths.
pub(crate) const CONTENTS: &str = "cas";
/// Namespace of requests that name no instance.
const NAMESPACE: &str = "build";
/// Prefix of names of any form.
const KEY_VALUE: &str = "/kv/";
/// Longest of these names.
const NAME_BYTES_MAX: usize = 1_024;

/// An entry of a build cache, by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: RefName,
    pub(crate) kind: Kind,
}

/// Kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Content, by its SHA-256.
    Content(Sha256),
    /// Result of an action.
    Action,
    /// Bytes under a name of any form.
    Named,
    /// Folder of such names; it exists as soon as it is named.
    Folder,
}

impl Entry {
    /// The entry at `path`; `None` if the path belongs to no build cache. The error says what is
    /// wrong with the name.
    pub(crate) fn of_path(path: &str) -> Option<Result<Entry, String>> {
        if let Some(rest) = path.strip_prefix(KEY_VALUE) {
            let (namespace, name) = rest.split_once('/').unwrap_or((rest, ""));
            let kind = if name.is_empty() || name.ends_with('/') { Kind::Folder } else { Kind::Named };
            if name.len() > NAME_BYTES_MAX {
                return Some(Err(format!("a name has at most {NAME_BYTES_MAX} bytes")));
            }
            return Some(entry(namespace, "kv", name.as_bytes(), kind));
        }
        let (rest, digits) = path.rsplit_once('/')?;
        let (instance, family) = rest.rsplit_once('/')?;
        let instance = match instance {
            "" => NAMESPACE,
            named => named.strip_prefix('/').filter(|named| !named.contains('/'))?,
        };
        let is_content = match family {
            "ac" => false,
            CONTENTS => true,
            _ => return None,
        };
        let Some(sha) = Sha256::parse(digits) else {
            return Some(Err(String::from("an entry of /ac/ or /cas/ is named by 64 hexadecimal digits")));
        };
        let kind = if is_content { Kind::Content(sha) } else { Kind::Action };
        Some(entry(instance, family, &sha.0, kind))
    }
}

fn entry(namespace: &str, bucket: &str, name: &[u8], kind: Kind) -> Result<Entry, String> {
    let namespace: Namespace =
        namespace.parse().map_err(|error: throng_ddc::IdentError| error.to_string())?;
    Ok(Entry { name: ref_name(&namespace, bucket, name), kind })
}

/// The ref of an entry: a key has room for a hash of its name.
pub(crate) fn ref_name(namespace: &Namespace, bucket: &str, name: &[u8]) -> RefName {
    RefName {
        namespace: namespace.clone(),
        bucket: bucket.parse().expect("a bucket's name"),
        key: IoHash::of(name).to_string().parse().expect("a hash is a key"),
    }
}

/// A SHA-256, which names content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sha256(pub(crate) [u8; 32]);

/// SHA-256 of no bytes.
const EMPTY: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27,
    0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

impl Sha256 {
    /// Reads 64 hexadecimal digits.
    pub(crate) fn parse(digits: &str) -> Option<Sha256> {
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Sha256(bytes))
    }

    /// The hash of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Sha256 {
        let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
        Sha256(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Reports whether this names no bytes. Clients do not upload those.
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == EMPTY
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_entries() {
        let sha = "0123456789abcdef".repeat(4);
        let kind = |path: &str| Entry::of_path(path).map(|entry| entry.map(|entry| entry.kind).ok());
        assert_eq!(kind(&format!("/ac/{sha}")), Some(Some(Kind::Action)));
        let Some(Some(Kind::Content(content))) = kind(&format!("/studio/cas/{}", sha.to_uppercase())) else {
            panic!("content")
        };
        assert_eq!(content.to_string(), sha);
        assert_eq!(kind("/kv/ccache/ab/cdef"), Some(Some(Kind::Named)));
        assert_eq!(kind("/kv/sccache/a/b/"), Some(Some(Kind::Folder)));
        assert_eq!(kind("/kv/sccache"), Some(Some(Kind::Folder)));
        for path in [
            "/ac/12",
            "/cas/",
            &format!("/a b/ac/{sha}"),
            "/kv/",
            "/kv//a",
            &format!("/cas/{}", "g".repeat(64)),
        ] {
            assert_eq!(kind(path), Some(None), "{path}");
        }
        for path in ["/", "/api/v1/status", &format!("/{sha}"), &format!("/a/b/ac/{sha}"), "/health/ready"] {
            assert_eq!(kind(path), None, "{path}");
        }
        let name = |path: &str| Entry::of_path(path).map(|entry| entry.map(|entry| entry.name).ok());
        assert_ne!(name(&format!("/ac/{sha}")), name(&format!("/cas/{sha}")));
        assert_ne!(name("/kv/a/b"), name("/kv/a/c"));
        assert_eq!(name(&format!("/ac/{sha}")), name(&format!("/build/ac/{sha}")));
    }
}
