//! The derived-data cache as a service: the Cloud DDC HTTP interface over a [`Store`](throng_store::Store).
//!
//! [`Service`] answers requests; [`serve`] gives them to it from a listener, over HTTP/1.1 and HTTP/2. What a path, an
//! `Accept` or a `Range` header means is decided in `throng_ddc::api`, what is stored and when in `throng_store`; this crate
//! moves bytes between both and turns outcomes into status codes.
//!
//! Uploads are hashed while they arrive and never held in memory as a whole beyond a megabyte; downloads are read in
//! pieces of half a megabyte.
#![forbid(unsafe_code)]

mod access;
mod answer;
mod body;
mod node;
mod refs;
mod serve;
mod service;
mod upload;

pub use access::{Access, Caller, Identify, Identity, Tokens};
pub use node::Node;
pub use serve::{Listener, ServeOptions, serve};
pub use service::{NamespaceRules, Rules, Service};
