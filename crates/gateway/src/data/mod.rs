//! Channel data: protobuf messages of any schema, merged in their encoded form.
//!
//! Games bring their own message types. [`Schemas`] compiles their `.proto` files or descriptor
//! sets into one [`Plan`] per type; a plan knows every field's number, shape and merge rule. With
//! it [`ChannelData`] merges updates and encodes full states, [`Delta`] folds the updates of a
//! fan-out window into one, [`FieldMask`] cuts both down to what a subscriber wants, [`Mosaic`]
//! leaves out what a subscriber said itself, and [`split()`] cuts what is too long for a packet.
//! Nothing is ever decoded into objects: the data is a tree whose leaves are slices of encoded
//! bytes.
//!
//! An update passes [`Update::check`] once. What it cannot refuse there cannot fail later, so a
//! merge happens whole or not at all.
//!
//! ```
//! use throng_gateway::data::{ChannelData, SchemasBuilder};
//!
//! let schemas = SchemasBuilder::new()
//!     .add_proto("game.proto", "syntax = \"proto3\"; package game; message World { map<uint32, string> names = 1; }")
//!     .build()?;
//! let plan = schemas.plan("game.World").expect("defined above");
//! let mut data = ChannelData::new(plan.clone());
//! data.merge(&[0x0a, 5, 0x08, 7, 0x12, 1, b'a'], None)?; // names[7] = "a"
//! data.merge(&[0x0a, 5, 0x08, 7, 0x12, 1, b'b'], None)?; // names[7] = "b"
//! let mut state = Vec::new();
//! data.encode(None, &mut state);
//! assert_eq!(state, [0x0a, 5, 0x08, 7, 0x12, 1, b'b']);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Cost of the usual update, a map of states most of which are replaced: one validating walk over
//! the bytes, then per entry a key comparison and a copy into place. No memory is allocated once
//! the entries have their places.

mod check;
mod cover;
mod cursor;
mod delta;
mod list;
mod map;
mod mask;
mod merge;
mod mosaic;
mod node;
mod plan;
mod removal;
mod rule;
mod schema;
pub(crate) mod shape;
mod split;
mod state;
#[cfg(test)]
mod tests;

pub use check::{DEPTH_MAX, Update, validate};
pub use delta::{Delta, merged};
pub use mask::{FieldMask, filter};
pub use mosaic::{Mosaic, Others};
pub use plan::{DataLimits, MergeOptions, Plan, Profile};
pub use removal::removals;
pub(crate) use removal::replaced;
pub use rule::FieldRule;
pub use schema::{SchemaError, Schemas, SchemasBuilder, prepare};
pub(crate) use split::split_without_oversize;
pub use split::{Joint, Oversize, split};
pub use state::ChannelData;

/// The records of checked bytes, in order.
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = cursor::Record<'_>> {
    cursor::Records::new(bytes)
}

/// Why bytes were refused as channel data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The bytes are not a protobuf message, or a known field's payload is not what its type says.
    #[error("not a valid message at byte {offset} of the innermost message")]
    Malformed {
        /// Offset of the bad record in the message that encloses it.
        offset: usize,
    },
    /// A string field does not hold UTF-8.
    #[error("{field} is not UTF-8 text")]
    Utf8 {
        /// Full name of the field.
        field: String,
    },
    /// Messages nest deeper than [`DEPTH_MAX`].
    #[error("messages nest deeper than {DEPTH_MAX}")]
    TooDeep,
    /// The channel's data would outgrow its bound.
    #[error("channel data of {bytes} bytes would exceed the limit of {limit}")]
    TooLarge {
        /// Size the data could reach.
        bytes: usize,
        /// The bound in [`DataLimits`].
        limit: usize,
    },
}
