//! The integration tests of this crate, one module per behaviour, in one program that links once.

mod backfill_positions;
mod bursts;
mod defects;
mod explain;
mod found_again;
mod history;
mod matching;
mod memory;
mod model;
mod policy;
mod positions;
mod ratings;
mod recovery;
mod reference_events;
mod replay;
mod rule_set_page;
mod scopes;
mod seats;
mod soundness;
mod starvation;
mod ticket_limits;
mod ticket_model;
mod tickets;
mod trial;
mod world;
mod wrong_input;
