//! Names of nodes, worlds, classes, clusters and areas, and the keys that are made of them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// Name of a node, world, class, cluster or area: `[a-z0-9][a-z0-9-]{0,31}`. Cheap to clone.
///
/// ```
/// use throng_cluster::Name;
///
/// assert_eq!(Name::new("duel-7").map(|name| name.to_string()), Ok("duel-7".to_owned()));
/// assert!(Name::new("Duel").is_err() && Name::new("-").is_err() && Name::new("").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// A string that is no name; the message states the rule.
    pub fn new(name: &str) -> Result<Name, String> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let mut bytes = name.bytes();
        let is_name = name.len() <= NAME_BYTES_MAX
            && bytes.next().is_some_and(is_plain)
            && bytes.all(|byte| is_plain(byte) || byte == b'-');
        if is_name {
            return Ok(Name(name.into()));
        }
        let shown: String = name.chars().take(NAME_BYTES_MAX + 1).collect();
        Err(format!("{shown:?} is no name: 1 to {NAME_BYTES_MAX} of a-z, 0-9 and -, the first of them not -"))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Name, String> {
        Name::new(&name)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.as_str().to_owned()
    }
}

/// Key of a record in the directory.
///
/// ```
/// use throng_cluster::Key;
///
/// assert_eq!(Key::parse("node.n1").map(|key| key.to_string()), Some("node.n1".to_owned()));
/// assert_eq!(Key::parse("permit.duel.3").map(|key| key.to_string()), Some("permit.duel.3".to_owned()));
/// assert!(Key::parse("shop.n1").is_none() && Key::parse("permit.duel.03").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// `cluster`: what all nodes agree on.
    Cluster,
    /// `node.<name>`: the lease of a node.
    Node(Name),
    /// `world.<name>`: the home of a world.
    World(Name),
    /// `matcher.<area>`: the holder of an area.
    Matcher(Name),
    /// `drain.<node>`: an operator's wish that a node drains.
    Drain(Name),
    /// `permit.<class>.<number>`: one of the worlds that a class may have.
    Permit(Name, u32),
}

impl Key {
    /// The key of this name; `None` for keys that this release does not know.
    #[must_use]
    pub fn parse(key: &str) -> Option<Key> {
        if key == "cluster" {
            return Some(Key::Cluster);
        }
        let (kind, name) = key.split_once('.')?;
        let make: fn(Name) -> Key = match kind {
            "node" => Key::Node,
            "world" => Key::World,
            "matcher" => Key::Matcher,
            "drain" => Key::Drain,
            "permit" => {
                let (class, number) = name.split_once('.')?;
                let parsed = number.parse::<u32>().ok().filter(|parsed| parsed.to_string() == number)?;
                return Name::new(class).ok().map(|class| Key::Permit(class, parsed));
            }
            _ => return None,
        };
        Name::new(name).ok().map(make)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Cluster => out.write_str("cluster"),
            Key::Node(name) => write!(out, "node.{name}"),
            Key::World(name) => write!(out, "world.{name}"),
            Key::Matcher(name) => write!(out, "matcher.{name}"),
            Key::Drain(name) => write!(out, "drain.{name}"),
            Key::Permit(class, number) => write!(out, "permit.{class}.{number}"),
        }
    }
}
