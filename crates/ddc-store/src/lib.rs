//! The derived-data cache on disk.
//!
//! A [`Store`] is a folder:
//!
//! | Name | Content |
//! |---|---|
//! | `segments/*` | segments of an append-only log: every change of the index, and small blobs |
//! | `large/*` | one file for each large blob, followed by a checksum of each MiB |
//! | `index/*` | the index, which follows the log and is rebuilt from it if damaged |
//! | `lock` | held by the process that uses the folder |
//! | `own-refs` | there if refs were put here, rather than brought from an upstream only |
//! | `quarantine/*` | blobs that were found damaged |
//! | `reserve` | space for deletes and collections on a full disk |
//! | `copies` | empty: the folder holds copies of what an object storage has |
//! | `format-2` | the version of the format |
//! | `index.redb`, `log/*` | a message for version 1 of the format, which knows only these |
//!
//! A change is acknowledged when it is in the log and, with [`Durability::Sync`], on disk. All
//! changes that arrive during a sync share the next one (*group commit*). No change is visible
//! before it is acknowledged, and every byte was hashed before.
//!
//! Every record, block and blob is checked when it is read. Disk damage makes the affected keys
//! missing, never wrong and never older, with three exceptions, in which an earlier acknowledged
//! state is served: damage in the last commit before a crash looks like a torn write; writes that
//! the disk reported as synced and then lost leave no trace; and damage that destroys a record
//! together with both fingerprints of its key, at the end of its commit and in the directory at the
//! end of its segment, leaves nothing that names the key. The last is always reported, also if it
//! took a whole segment.
//!
//! A [`Tier`] is a bucket of an object storage that several nodes share; their folders then are
//! caches of it.
//!
//! Names on disk are numbers that the store assigns; no input from outside becomes part of a path.
#![forbid(unsafe_code)]

mod blob;
mod change;
mod clock;
mod collect;
mod commit;
mod convert;
mod error;
mod events;
mod evict;
mod free;
mod gaps;
mod hold;
mod index;
mod key;
mod locks;
mod log;
mod maintenance;
mod marks;
mod open;
mod plan;
mod quota;
mod reads;
mod record;
mod repeated;
mod replaced;
mod run;
mod space;
mod store;
mod tier;
mod turn;
mod unused;

pub use blob::{Blob, BlobId, LargeWriter, SUM_BYTES};
pub use change::{ChangeResult, Done, PutRef};
pub use clock::{Clock, SystemClock};
pub use collect::{CollectOptions, CollectReport};
pub use error::{IndexError, StoreError};
pub use events::{Cursor, Event, Snapshot};
pub use evict::EvictOptions;
pub use hold::Hold;
pub use key::RefValue;
pub use maintenance::{ScrubReport, Usage, VerifyReport};
pub use quota::Quotas;
pub use reads::is_damage;
pub use space::{FULL_PERCENT, Space};
pub use store::{Durability, Opening, Options, Stats, Store};
pub use tier::{Incoming, ObjectVersion, Tier, TierError, TierOptions};
pub use unused::{Unused, UnusedName};
