//! The record of a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::name::Name;
use crate::record::json;

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It renews its record and takes worlds.
    Up,
    /// It renews its record and passes its worlds on.
    Draining,
    /// It has stopped serving; written by itself.
    Left,
    /// It did not renew its record in time; written by another node.
    Lost,
}

/// Address at which players or game servers reach a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Transport, as in `gateway.listeners`: `tcp`, `ws`, `kcp`, ...
    pub transport: String,
    /// Kind of peer that it is for: `client` or `server`.
    pub kind: String,
    /// `host:port`.
    pub address: String,
    /// The world that its connections enter; `None` if their logins decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world: Option<Name>,
}

/// Value of `node.<name>`: the lease of all worlds of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Period in which one process holds the name. Each taking of the name increments it.
    #[serde(deserialize_with = "super::ordinal")]
    pub incarnation: u64,
    /// Number that distinguishes writes: the writing process in the upper 32 bits, its count of
    /// writes in the lower.
    pub nonce: u64,
    /// State of the node.
    pub state: NodeState,
    /// Addresses of its listeners.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Release of the process.
    pub release: String,
    /// Id of its data folder, made with the folder.
    pub folder: String,
    /// Boot id of the kernel that it runs on.
    pub boot: String,
    /// Labels from its configuration. A class may require labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Classes that it knows, with the hash of each class's settings.
    #[serde(default)]
    pub classes: BTreeMap<Name, String>,
    /// Load, averaged over 10 s: the greatest of its shares of CPU, memory, connections and worlds,
    /// in thousandths.
    #[serde(default)]
    pub load_permille: u16,
    /// Number of worlds that it serves.
    #[serde(default)]
    pub worlds: u32,
    /// Number of worlds that it may serve.
    pub worlds_max: u32,
    /// Number of worlds for which it has room now.
    pub free_worlds: u32,
    /// Fields of later releases.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

json!(NodeRecord);

impl NodeRecord {
    /// Returns whether the node renews this record.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.state, NodeState::Up | NodeState::Draining)
    }
}
