//! `libenet.so.7` on Throng's ENet host: the C interface of `enet.h` 1.3.17.
//!
//! A program that was linked with the C library starts with this one instead, through
//! `LD_LIBRARY_PATH` or by being linked anew, and keeps its behaviour. One [`throng_enet::Host`]
//! and one socket stand behind each `ENetHost`. They are driven only inside the program's calls, on
//! its thread: no threads, no timers, no pacing.
//!
//! # Layout
//! `abi` has the structures of the header, whose sizes and offsets the compiler checks. Programs
//! read and write their fields, so:
//! - limits, `checksum` and `intercept` are read at the beginning of each call, a packet's fields
//!   when it is sent;
//! - counters of bytes are added to, never set, as programs set them to zero;
//! - a peer's state and figures are written when an event or a call is about it, and to all peers
//!   in turn.
//!
//! # Ownership
//! `peers` is one array that never moves. A peer's place in it is given to another connection only
//! after the program has taken the disconnect event. A packet that was sent has been copied; its
//! reference is dropped by a later call of service or flush, which then runs its `freeCallback`.

#![allow(
    unreachable_pub,
    missing_docs,
    reason = "the interface is enet.h, which documents it; Rust sees nothing of it"
)]

mod abi;
mod address;
mod allocation;
mod compression;
mod driver;
mod host;
mod internals;
mod list;
mod packet;
mod peer;
mod socket;
mod time;
