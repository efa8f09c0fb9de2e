//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod document;
mod envelope;
mod generated;
mod matcher_pages;
mod recordings;
mod stream;
mod vectors;
