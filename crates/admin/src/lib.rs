//! The admin HTTP listener: health, metrics, monitoring JSON and CPU profiles.
//!
//! The data comes from a [`Monitor`], which the server implements; this crate owns routes, access
//! rules and formats. [`serve`] runs until its shutdown future completes.
//!
//! | file | what |
//! |---|---|
//! | `catalogue` | every route of the API; the router and the reference page are made from it |
//! | `routes` | listening, health, metrics, profiles |
//! | `monitor` | what the process implements: requests, answers, health |
//! | `app` | state of the routes, and the check that a request passes first |
//! | `api` | the API: one page of a list, one thing in detail, what changes something, events |
//! | `assets` | the console's files |
//! | `intake` | taking connections in, for the listeners of other crates as well |
//! | `crowd` | the limits of every HTTP listener: who yields when it is full, the pace of a transfer |
//! | `http2` | HTTP/2 in bounded memory, for the listeners of other crates |
//! | `pages` | the same pages on the listener of another service |
//! | `sniff` | HTTP/1.1 or HTTP/2, by a connection's first bytes |
//!
//! # Access
//! Health is open, and the console's files, which hold no figures. Figures need a credential where
//! tokens are configured; without tokens they are served to loopback only, and only under a
//! loopback host name, so that a web page cannot reach them through a name it has pointed at this
//! machine. What players sent, the configuration and whatever changes something need a credential
//! always: a configured token, or a session that a one-time token opens.

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

pub use access::{Access, Guard, host_name, is_loopback_name, is_same_site};
pub use assets::DOCS;
pub use audit::Act;
pub use catalogue::{Endpoint, Method, ROUTES, Route, markdown};
pub use crowd::{Exempt, Guest, Pace, Work};
pub use exposition::{Family, FamilyKind, Format, Sample, SampleValue, render};
pub use files::{File, LivePage, serve_files};
pub use http2::{Framed, Metered, Outgoing, PacedBody, Received, serve_http2};
pub use intake::{Accepted, Intake, Serving, Shutdown, Tls, no_exemptions};
pub use monitor::{ApiRequest, Health, Monitor, Page, Part, Problem};
pub use pages::Pages;
pub use profile::{CpuProfile, ProfileError};
pub use routes::{ServeOptions, serve};
pub use sniff::{PREFACE, Rewound, sniff};
