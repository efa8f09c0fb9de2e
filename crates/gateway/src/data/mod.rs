//! Channel data: schemas, merging on the wire form, masks.

/// The compiled schemas of all channel data types.
#[derive(Debug, Default)]
pub struct Schemas;
