//! The derived-data cache as a service: the Cloud DDC HTTP interface over a
//! [`Store`](throng_ddc_store::Store).
//!
//! [`Service`] answers requests; [`serve`] passes them to it from a listener, over HTTP/1.1 and
//! HTTP/2. `throng_ddc::api` interprets paths and the `Accept` and `Range` headers, and
//! `throng_ddc_store` stores the data. This crate moves bytes between both and converts results to
//! status codes.
//!
//! Uploads are hashed while they arrive and never held in memory as a whole beyond a megabyte; when
//! other requests hold all memory, no more than 16 KiB of them is held before it is written.
//! Downloads over plain HTTP/1.1 go from the file to the socket within the kernel; with TLS or
//! HTTP/2 they are read in pieces of half a megabyte. A blob that is read for the first time since
//! the start is hashed while it is sent.
//!
//! Memory of requests is bounded by [`Rules::memory_bytes_max`] for all of them together, beyond 16
//! KiB that each has for free. A request that finds none waits 3 s in all for it; meanwhile clients
//! that move less than 16 KiB in a second, or less than a 16th of what they hold, lose it, with 429
//! if they can be answered. Of those who wait, the address that holds and wants least goes first;
//! at most 128 requests of one address wait, and further ones get 429 at once. What counts is what
//! a client has taken or sent, not what its socket holds.
//!
//! | Part of a request | Memory |
//! |---|---|
//! | a body while it arrives | its bytes; 512 KiB above 1 MiB, unless all of it is wanted in memory |
//! | the answer to a batch, an object that is sent or above 1 MiB | its bytes |
//! | an answer that the kernel cannot take from the file itself | 512 KiB |
//! | a compressed buffer that is received | its block table, one block compressed and raw |
//! | the root of a package | its raw bytes |
//! | `.raw` of a compressed buffer | its block table, one block compressed and twice raw |
//! | `.json` of an object above 8 KiB | 64 KiB |
//! | a blob of an upstream that cannot be kept | 512 KiB, or its bytes for a part of it or its raw data |
//! | a package that is sent | 512 bytes per attachment; the first MiB of its small blobs |
//! | attachments of a package that cannot be kept | 512 KiB, and 4 KiB each |
#![forbid(unsafe_code)]

mod access;
mod admin;
mod answer;
mod batch;
mod blobs;
mod blocking;
mod body;
mod build_cache;
mod entry;
mod exchange;
mod fallback;
mod fetch;
mod headers;
mod http1;
mod json;
mod listener;
mod listing;
mod maintenance;
mod memory;
mod node;
mod oodle;
mod origin;
mod origin_refs;
mod passed;
mod preconditions;
mod raw;
mod recent;
mod ref_batch;
mod ref_forms;
mod refresh;
mod refs;
mod relay;
mod replication;
mod report;
mod serve;
mod service;
mod source;
mod stats;
mod streaming;
mod transfer;
mod upload;
mod upstream;
mod watchdog;

pub use access::{Access, Caller, Identify, Identity, Tokens};
pub use exchange::Pieces;
pub use listener::Listener;
pub use memory::set_return_memory;
pub use node::Node;
pub use oodle::OodleProgram;
pub use origin::Origin;
pub use serve::{ServeOptions, Tls, serve};
pub use service::{Maintenance, NamespaceRules, Rules, Service};
pub use stats::{CacheStats, LATENCY_BOUNDS_S, Latencies, OPERATIONS};
pub use transfer::{TransferError, Transferred};
pub use upstream::{Transport, Upstream, UpstreamOptions};
