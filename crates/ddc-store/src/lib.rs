//! The derived-data cache on disk.
//!
//! A [`Store`] is a folder:
//!
//! | Name | What |
//! |---|---|
//! | `log/*.seg` | segments of an append-only log: every change of the index, and small blobs |
//! | `large/*` | one file for each large blob |
//! | `index.redb` | the index, which follows the log |
//! | `lock` | held by the process that uses the folder |
//! | `quarantine/*` | blobs that were found damaged |
//!
//! A change is acknowledged when it is in the log and, with [`Durability::Sync`], on disk. All that arrive while a sync runs
//! share the next one (*group commit*). Nothing is visible before it is acknowledged, and every byte was hashed before.
//!
//! A [`Tier`] is a bucket of an object storage that several nodes share; their folders then are caches of it.
//!
//! Names on disk are numbers that the store gives; nothing that comes from outside becomes part of a path.
#![forbid(unsafe_code)]

mod blob;
mod care;
mod commit;
mod events;
mod evict;
mod index;
mod key;
mod log;
mod plan;
mod quota;
mod reads;
mod record;
mod store;
mod tier;

pub use blob::{Blob, LargeWriter, Place};
pub use care::{CollectOptions, Collected, Scrubbed, Usage, Verified};
pub use events::{Cursor, Event, Snapshot};
pub use index::IndexError;
pub use key::RefValue;
pub use quota::Quotas;
pub use store::{Done, Durability, Options, Outcome, PutRef, Stats, Store, StoreError};
pub use tier::{Incoming, Tier, TierError, TierOptions};
