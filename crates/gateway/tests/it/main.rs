//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod channels;
mod common;
mod connections;
mod fanout;
mod moving;
mod panics;
mod recovery;
mod slow_readers;
mod spatial;
mod unity;
mod why;
