//! The record of an area in the directory.

use serde::{Deserialize, Serialize};

use crate::record::json;

/// Process that may hold a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of this life of the process; no other ever has it.
    pub incarnation: String,
    /// Id of its journal, made with the journal.
    pub journal: String,
    /// Boot id of the kernel that it runs on.
    pub machine: String,
    /// Addresses of its listeners, for messages to operators.
    pub addresses: Vec<String>,
}

/// Action on an area whose holder is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// No process serves until the holder's journal is back or an operator gives its state up.
    Wait,
    /// The next process serves with an empty state.
    Empty,
}

/// State of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its holder renews it.
    Serving,
    /// Its holder did not renew it in time.
    Lost,
    /// An operator gave the holder's state up: the next process serves with an empty state.
    Given,
}

/// Holder of an area.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Incremented with every new holder.
    #[serde(deserialize_with = "super::ordinal")]
    pub epoch: u64,
    /// Id of the holder's process.
    pub incarnation: String,
    /// Id of the holder's journal.
    pub journal: String,
    /// Machine of the holder.
    pub machine: String,
    /// Addresses of the holder's listeners.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// State of the record.
    pub state: State,
    /// Random number that distinguishes writes.
    pub nonce: u64,
}

json!(Record);
