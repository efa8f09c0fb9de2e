//! The record of a permit.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::name::Name;
use crate::record::json;

/// Value of `permit.<class>.<number>`: one of the worlds that a class may have. A class has as many
/// permits as worlds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitRecord {
    /// World that may be open.
    pub world: Name,
    /// Number that distinguishes writes, as in [`NodeRecord`](crate::NodeRecord::nonce).
    pub nonce: u64,
    /// Fields of later releases.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

json!(PermitRecord);
