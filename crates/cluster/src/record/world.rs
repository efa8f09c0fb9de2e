//! The record of a world.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::name::Name;
use crate::record::json;

/// Owner of a world: a node, in one of its incarnations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Home {
    /// Name of the node.
    pub node: Name,
    /// Incarnation of the node.
    #[serde(deserialize_with = "super::ordinal")]
    pub incarnation: u64,
}

impl fmt::Display for Home {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}#{}", self.node, self.incarnation)
    }
}

/// State of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorldState {
    /// It has a home that has not accepted it yet.
    Assigned,
    /// Its home serves it while the home's lease holds.
    Serving,
    /// Its home is to close it.
    Closing,
    /// It has no home.
    Closed,
}

impl WorldState {
    /// Returns whether the world has a home, or is getting one, and is not to be closed.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, WorldState::Assigned | WorldState::Serving)
    }
}

impl fmt::Display for WorldState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            WorldState::Assigned => "assigned",
            WorldState::Serving => "serving",
            WorldState::Closing => "closing",
            WorldState::Closed => "closed",
        })
    }
}

/// The match that a world was opened for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opener {
    /// Node whose matchmaking link opened the world. After a restart it finds its worlds by this.
    pub node: Name,
    /// Room of the match.
    pub room: String,
}

/// Value of `world.<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorldRecord {
    /// Period of ownership. Every new home and every restart of the world increments it.
    #[serde(deserialize_with = "super::ordinal")]
    pub epoch: u64,
    /// Owner; of a closed world, the last one.
    pub home: Home,
    /// State of the world.
    pub state: WorldState,
    /// Class that it is made with.
    pub class: Name,
    /// Hash of the class's settings. Only nodes whose class has this hash may be its home.
    pub class_hash: String,
    /// Time of its creation in milliseconds since 1970, for operators.
    #[serde(default)]
    pub created_ms: u64,
    /// True for a world of one match: its record is deleted when it closes.
    #[serde(default)]
    pub ephemeral: bool,
    /// Match of an ephemeral world that the link of a node opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opener: Option<Opener>,
    /// Number of the permit with which it was opened, if its class has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<u32>,
    /// Number that distinguishes writes, as in [`NodeRecord`](crate::NodeRecord::nonce).
    pub nonce: u64,
    /// Reason of the last change, for operators.
    #[serde(default)]
    pub why: String,
    /// Fields of later releases.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

json!(WorldRecord);
