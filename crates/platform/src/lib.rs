//! Small interfaces to the operating system, shared by the services that store and fetch data.
//!
//! - [`Fs`] and [`File`] are the few file operations that a log or a store needs. [`Folder`]
//!   implements them on a real folder, [`SimulatedDisk`] in memory with power failures and flipped
//!   bits, so that the same code runs in both.
//! - [`HttpClient`] is the HTTP/1.1 client of the process: pooled connections, TLS, a deadline for
//!   every response.
//! - [`send_queue_bytes`] tells how much of what was sent has not arrived.
//!
//! The crate contains no rules of a product.
#![deny(unsafe_code)]

mod fs;
mod http_client;
mod simulated_disk;
mod socket;

pub use fs::{File, Folder, Fs, ReadOnlyFolder};
pub use http_body_util::{Empty, Full};
pub use hyper::Request;

pub use http_client::{HttpClient, HttpClientError, exchange_blocking};
pub use simulated_disk::{DiskState, SimulatedDisk};
pub use socket::send_queue_bytes;
