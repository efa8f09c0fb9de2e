//! The records that operators write: the cluster's own, and wishes to drain.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::name::Name;
use crate::record::json;

/// Value of `cluster`: what all nodes of a cluster agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Format of all records of the bucket.
    pub format: u32,
    /// Name of the cluster.
    pub name: Name,
    /// Id of the cluster's secret key, which is not the key.
    pub key_id: String,
    /// Fields of later releases.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

json!(ClusterRecord);

/// Value of `drain.<node>`: an operator wants the node to drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// Incarnation of the node that is to drain. The record is void for later ones.
    pub incarnation: u64,
    /// Operator or program that asked for it.
    pub by: String,
    /// Time of the request in milliseconds since 1970, for operators.
    pub at_ms: u64,
    /// Fields of later releases.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

json!(DrainRecord);
