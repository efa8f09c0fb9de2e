//! Records of the directory. Values are JSON objects; fields that this release does not know are
//! kept when a record is rewritten.

mod area;
mod cluster;
mod node;
mod permit;
mod world;

pub use area::{Identity, Record, State, Takeover};
pub use cluster::{ClusterRecord, DrainRecord};
pub use node::{Address, NodeRecord, NodeState};
pub use permit::PermitRecord;
pub use world::{Home, Opener, WorldRecord, WorldState};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize as _, Deserializer};

/// Longest record that is read, in bytes. Every string and list in it is therefore bounded too.
pub const RECORD_BYTES_MAX: usize = 4 << 10;

/// Greatest epoch or incarnation that is read. They grow by one from a revision of the bucket, so
/// no cluster gets there, and below it there is room for every successor.
const ORDINAL_MAX: u64 = 1 << 62;

/// Reads an epoch or an incarnation. A forged one beyond the limit would have no successor.
fn ordinal<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(from)?;
    match number <= ORDINAL_MAX {
        true => Ok(number),
        false => Err(D::Error::custom(format!(
            "{number} exceeds {ORDINAL_MAX}, the limit of epochs and incarnations"
        ))),
    }
}

/// Parses a record. Total: any bytes give a record or a description of the defect.
fn parse<R: DeserializeOwned>(bytes: &[u8]) -> Result<R, String> {
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(format!("a record of {} bytes exceeds the limit of {RECORD_BYTES_MAX}", bytes.len()));
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// Implements reading and writing for a record.
macro_rules! json {
    ($record:ty) => {
        impl $record {
            /// Parses a value of the directory. Total: any bytes give a record or an error.
            ///
            /// # Errors
            /// A description of the defect.
            pub fn parse(bytes: &[u8]) -> Result<$record, String> {
                crate::record::parse(bytes)
            }

            /// The value in the directory, JSON.
            #[must_use]
            pub fn to_bytes(&self) -> Vec<u8> {
                // Strings and numbers: nothing in it can fail to be JSON.
                serde_json::to_vec(self).unwrap_or_default()
            }
        }
    };
}
use json;
