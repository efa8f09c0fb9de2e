//! The admin HTTP listener: health, metrics, monitoring JSON and CPU profiles.
//!
//! What is shown comes from a [`Monitor`], which the server implements; this crate owns routes, access rules and
//! formats. [`serve`] runs until its shutdown future completes.
//!
//! | route | answer |
//! |---|---|
//! | `/health/live` | 200 while the process works at all |
//! | `/health/ready`, `/healthz` | 200 when it takes players, else 503; JSON with every part |
//! | `/metrics` | Prometheus text or OpenMetrics |
//! | `/api/v1/{server,connections,channels,limits}` | JSON; lists take `?limit=` and `?offset=` |
//! | `/debug/pprof/profile?seconds=N` | CPU profile, pprof protobuf |
//!
//! # Access
//! Health is open. Everything else needs `Authorization: Bearer TOKEN` when tokens are configured; without tokens it
//! is served to loopback only, and only under a loopback host name, so that a web page cannot reach it through a
//! name it has pointed at this machine.

mod access;
mod exposition;
mod files;
mod profile;
mod routes;

pub use access::Access;
pub use exposition::{Family, FamilyKind, Format, Sample, SampleValue, render};
pub use files::{File, serve_files};
pub use profile::{CpuProfile, ProfileError};
pub use routes::{Health, Monitor, Page, Part, Report, ServeOptions, serve};
