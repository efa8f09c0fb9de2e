//! Requests about tickets, and what ends or returns them.

mod service;
mod states;
