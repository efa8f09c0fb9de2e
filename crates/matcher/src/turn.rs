//! One input on its way through the matcher.

use crate::config::{Caller, Scope};
use crate::notices::Notices;

/// The caller of an input and what comes of it.
pub(crate) struct Turn<'a> {
    /// Time when the input came: earlier than the matcher's time for a request that has waited for
    /// a policy.
    pub(crate) now: u64,
    /// Caller of the request; a timer or a verdict has none.
    pub(crate) caller: Caller<'a>,
    /// Body of the answer. A request appends to it.
    pub(crate) answer: &'a mut Vec<u8>,
    /// Entries for game servers, in the order of the changes.
    pub(crate) notices: &'a mut Notices,
}

impl<'a> Turn<'a> {
    /// A turn that nobody called for: its answer goes nowhere.
    pub(crate) fn of_matcher(now: u64, answer: &'a mut Vec<u8>, notices: &'a mut Notices) -> Turn<'a> {
        Turn { now, caller: Caller { srv: "", scope: Scope::Server }, answer, notices }
    }
}
