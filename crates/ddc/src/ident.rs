//! Names in requests: namespace, bucket and key. A value of these types is valid and
//! folded to lower case.

use std::fmt;
use std::str::FromStr;

/// Text that is not a valid name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentError {
    /// A namespace or bucket breaks the rules.
    #[error(
        "a {0} has 1 to 64 characters of a-z, 0-9, '-', '_' and '.', and neither starts nor ends with '.'"
    )]
    Name(&'static str),
    /// A key breaks the rules.
    #[error("a key has exactly 40 characters of a-z and 0-9")]
    Key,
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        ///
        /// 1 to 64 of `a-z 0-9 - _ .`, not starting or ending with a dot. Parsing folds upper case
        /// ASCII to lower case.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Box<str>);

        impl $type {
            /// The name, in lower case.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = IdentError;

            fn from_str(text: &str) -> Result<$type, IdentError> {
                if is_name(text) {
                    Ok($type(text.to_ascii_lowercase().into()))
                } else {
                    Err(IdentError::Name($what))
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// What is shared, counted and permitted together: a project, usually.
    Namespace,
    "namespace"
);
name!(
    /// A kind of derived data within a namespace.
    Bucket,
    "bucket"
);

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && !text.starts_with('.')
        && !text.ends_with('.')
}

/// The key of a ref within its bucket: 40 of `0-9 a-z`, folded to lower case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; Key::CHARS]);

impl Key {
    /// Length of the text.
    pub const CHARS: usize = 40;

    /// The key, in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a key is ASCII")
    }
}

impl FromStr for Key {
    type Err = IdentError;

    fn from_str(text: &str) -> Result<Key, IdentError> {
        let mut bytes: [u8; Key::CHARS] = text.as_bytes().try_into().map_err(|_| IdentError::Key)?;
        if !bytes.iter().all(u8::is_ascii_alphanumeric) {
            return Err(IdentError::Key);
        }
        bytes.make_ascii_lowercase();
        Ok(Key(bytes))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folded_and_refused() {
        assert_eq!(
            "Test.Benchmark-1_a".parse::<Namespace>().map(|n| n.to_string()),
            Ok("test.benchmark-1_a".into())
        );
        let long = "a".repeat(65);
        for bad in ["", ".", "..", ".a", "a.", "a/b", "a\\b", "a b", "a%2e", "ä", "a\0", &long] {
            assert!(bad.parse::<Bucket>().is_err(), "{bad:?}");
        }
        assert!("a".repeat(64).parse::<Bucket>().is_ok());
    }

    #[test]
    fn keys_have_forty_characters() {
        let key: Key =
            "00000000000000000000000000000000000000ZZ".parse().expect("letters beyond f are legal");
        assert_eq!(key.as_str(), "00000000000000000000000000000000000000zz");
        assert!("0".repeat(39).parse::<Key>().is_err());
        assert!("0".repeat(41).parse::<Key>().is_err());
        assert!(format!("{}-", "0".repeat(39)).parse::<Key>().is_err());
    }
}
