//! Requests about tickets, and what ends or returns them.

mod service;
mod states;

pub(crate) use states::SERVER_LOST;
