//! The channel data that simulations use: a list of items that are all different, and a map.

use std::collections::BTreeMap;

/// Schema of [`SimData`], as a gateway would get it from a file.
pub const PROTO: &str = r#"
syntax = "proto3";
package simpb;
message SimEntry {
  bool removed = 1;
  uint64 value = 2;
}
message SimData {
  repeated uint64 items = 1;
  map<uint32, SimEntry> entries = 2;
  bytes weight = 3;
}
"#;

/// Full name of [`SimData`].
pub const TYPE_NAME: &str = "simpb.SimData";

/// Channel data. Every item is written once, so a list shows exactly the merged updates and their
/// order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimData {
    /// Appended to; see [`item`].
    #[prost(uint64, repeated, tag = "1")]
    pub items: Vec<u64>,
    /// Every writer has keys of its own; see [`keys_of`].
    #[prost(btree_map = "uint32, message", tag = "2")]
    pub entries: BTreeMap<u32, SimEntry>,
    /// Makes some updates large, so that slow readers fall behind.
    #[prost(bytes = "vec", tag = "3")]
    pub weight: Vec<u8>,
}

/// An entry of the map.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct SimEntry {
    /// Deletes the entry.
    #[prost(bool, tag = "1")]
    pub removed: bool,
    /// Anything.
    #[prost(uint64, tag = "2")]
    pub value: u64,
}

/// The `count`-th item of a writer.
#[must_use]
pub fn item(writer: usize, count: u32) -> u64 {
    ((writer as u64) << 32) | u64::from(count)
}

/// Author of an item.
#[must_use]
pub fn writer_of(item: u64) -> usize {
    (item >> 32) as usize
}

/// Keys of a writer. No two writers share a key, so the last value does not depend on the order of
/// writers.
#[must_use]
pub fn keys_of(writer: usize) -> std::ops::Range<u32> {
    let first = writer as u32 * 8;
    first..first + 8
}
