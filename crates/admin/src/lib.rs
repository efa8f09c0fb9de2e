//! The admin HTTP listener: health, metrics, monitoring JSON and CPU profiles.
//!
//! The data comes from a [`Monitor`], which the server implements; this crate owns routes, access
//! rules and formats. [`serve`] runs until its shutdown future completes.
//!
//! | File | Content |
//! |---|---|
//! | `catalogue` | every route of the API; the router and the reference page are generated from it |
//! | `routes` | listening, health, metrics, profiles |
//! | `monitor` | interface that the process implements: requests, responses, health |
//! | `app` | state of the routes, and the check that a request passes first |
//! | `api` | the API: pages of lists, details, changes, event streams |
//! | `assets` | the console's files |
//! | `intake` | accept loop, also for the listeners of other crates |
//! | `crowd` | limits of every HTTP listener: eviction order when it is full, rate of a transfer |
//! | `http2` | HTTP/2 in bounded memory, for the listeners of other crates |
//! | `pages` | health, metrics and console on the listener of another service |
//! | `sniff` | detection of HTTP/1.1 or HTTP/2 from a connection's first bytes |
//!
//! # Access
//! Health and the console's files, which contain no data, are open. Monitoring requires a
//! credential if tokens are configured. Without tokens it is served to loopback only, and only
//! under a loopback host name, so that a web page cannot reach it by resolving its own name to this
//! machine. Payloads of players, the configuration and every change always require a credential: a
//! configured token, or a session that a one-time token has opened.

mod access;
mod api;
mod app;
mod assets;
mod audit;
mod catalogue;
mod crowd;
mod exposition;
mod files;
mod http2;
mod intake;
mod monitor;
mod pages;
mod profile;
mod response;
mod routes;
mod sniff;
mod transport;

pub use access::{Access, Guard, host_name, is_loopback_name, is_same_site};
pub use assets::DOCS;
pub use audit::Act;
pub use catalogue::{Endpoint, Method, ROUTES, Route, markdown};
pub use crowd::{Exempt, Guest, Pace, Turn, Work};
pub use exposition::{Family, FamilyKind, Format, Sample, SampleValue, render};
pub use files::{File, LivePage, serve_files};
pub use http2::{Framed, Metered, Outgoing, PacedBody, Received, serve_http2};
pub use intake::{Accepted, Intake, Serving, Shutdown, Tls, no_exemptions};
pub use monitor::{ApiRequest, Health, Monitor, Page, Part, Problem};
pub use pages::Pages;
pub use profile::{CpuProfile, ProfileError};
pub use routes::{ServeOptions, serve};
pub use sniff::{PREFACE, Rewound, sniff};
pub use transport::Transport;
