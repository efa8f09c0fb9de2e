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

impl Record {
    /// Parses a value of the directory. Total: any bytes give a record or an error.
    ///
    /// # Errors
    /// A description of the defect.
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
