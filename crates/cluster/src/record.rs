//! The record of an area in the directory.

use serde::{Deserialize, Serialize};

/// Longest record that is read.
const RECORD_BYTES_MAX: usize = 4 << 10;

/// Process that may hold a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of this life of the process; no other ever has it.
    pub incarnation: String,
    /// Id of its journal, made with the journal.
    pub journal: String,
    /// Boot id of the kernel that it runs on.
    pub machine: String,
    /// Place where it listens, for people.
    pub addresses: Vec<String>,
}

/// Action on an area whose holder is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Nobody serves until the holder's journal is back or an operator gives the area up.
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
    /// An operator gave the state of the holder up: whoever comes first serves with an empty one.
    Given,
}

/// Holder of an area.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Grows by one with every new holder.
    pub epoch: u64,
    /// The holder's life.
    pub incarnation: String,
    /// Id of the holder's journal.
    pub journal: String,
    /// Machine of the holder.
    pub machine: String,
    /// Place where the holder listens.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// State of the record.
    pub state: State,
    /// Tells writes apart.
    pub nonce: u64,
}

impl Record {
    /// Reads a value of the directory. Total: any bytes give a record or the reason why they are
    /// none.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(bytes: &[u8]) -> Result<Record, String> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(format!("a record of {} bytes exceeds the limit of {RECORD_BYTES_MAX}", bytes.len()));
        }
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// The value in the directory, JSON.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers: nothing in it can fail to be JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }
}
