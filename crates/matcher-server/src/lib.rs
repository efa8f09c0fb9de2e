//! The matcher as a service: one thread that owns the state machine, its journal and its
//! connections.
//!
//! ```text
//!  TCP, TLS ──▶ net::EventLoop ──▶ frames ──▶ Engine: Matcher::handle + journal ──▶ answers, notices
//!                                                │ commit once per batch                │
//!  in-process, HTTP ──▶ Handle (mailbox) ────────┘            answers wait for the disk ┘ (durability = sync)
//! ```
//!
//! [`start`] opens the listener and returns a [`Service`]; its [`Handle`] makes calls from the same
//! process. Everything that arrives in one read is executed as one batch: one write to the journal,
//! one write per connection.
#![forbid(unsafe_code)]

mod engine;
mod frames;
mod gate;
mod http;
mod hub;
mod journal;
#[cfg(feature = "nats")]
mod nats;
mod notify;
mod policy;
mod service;
mod session;
#[cfg(test)]
mod simulation;
mod tokens;
mod trials;
mod watch;

pub use gate::Gate;
pub use http::{HttpOptions, serve_http};
pub use journal::{Durability, JournalError, journal_id};
#[cfg(feature = "nats")]
pub use nats::{NatsError, NatsOptions, header as nats_header, serve_nats, take_over};
pub use policy::{Later, Policies, Policy};
pub use service::{
    Call, Handle, INBOX_MAX, ImportError, Options, Reply, Service, StartError, Verified, export, import,
    replay, settle, start, unused_folder,
};
pub use session::{Batch, Sink, Taken};
#[cfg(feature = "nats")]
pub use throng_cluster::{Identity, Takeover};
pub use tokens::{Tokens, TokensError};
pub use watch::Watch;

/// Counters and sizes, for the metrics page.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests by method name.
    pub requests: Vec<(&'static str, u64)>,
    /// By method name, from the arrival of a request's batch to its answer, in s; waiting for the
    /// disk not included.
    pub latencies: Vec<(&'static str, throng_matcher::Histogram)>,
    /// Answers that were refusals, by status name.
    pub errors: Vec<(&'static str, u64)>,
    /// Objects that exist.
    pub counts: throng_matcher::Counts,
    /// Modes with rooms and how many, the fullest first, at most 100.
    pub modes: Vec<(String, u32)>,
    /// Sizes of configured modes, at most 100 of them, and all others as one.
    pub mode_counts: Vec<throng_matcher::ModeCounts>,
    /// Reports of queues, at most 100 of them, the oldest first.
    pub queues: Vec<throng_matcher::QueueReport>,
    /// Why this matcher does not serve its area; `None` while it does.
    pub waits: Option<String>,
    /// Questions to policies that wait for their verdict.
    pub open_questions: usize,
    /// Counters of the state machine.
    pub core: throng_matcher::Stats,
    /// Entries queued for sessions.
    pub notices_queued: u64,
    /// Frames with entries.
    pub batches_sent: u64,
    /// Requests that were executed as one batch, with one write to the journal; `None` before the
    /// first report.
    pub requests_per_batch: Option<throng_matcher::Histogram>,
    /// Entries that went out in one frame; `None` before the first report.
    pub notices_per_frame: Option<throng_matcher::Histogram>,
    /// Entries replaced by later ones before they were sent.
    pub notices_collapsed: u64,
    /// Sessions that were reset because their destination was too slow.
    pub lagging: u64,
    /// Sessions, lost ones in their grace period included.
    pub sessions: usize,
    /// Bytes of memory of notification streams: entries that wait for their readers, or are kept
    /// for a resumption.
    pub stream_bytes: usize,
    /// Open connections.
    pub connections: usize,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Durations of the journal's flushes, in s; `None` before the first report.
    pub flushes: Option<throng_matcher::Histogram>,
}
