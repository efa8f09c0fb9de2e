//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod driver;
mod matcher_session;
mod replay;
mod session;
