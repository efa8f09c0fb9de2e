//! [`Tickets`] of a build without the feature `jwt`: uninhabited, so its methods cannot be called.

use throng_gateway::ConnKind;

use super::{Judgement, Login};

/// Makes and checks tickets. This build cannot make one.
#[derive(Debug)]
pub(crate) enum Tickets {}

impl Tickets {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn new(_: &[u8]) -> Result<Tickets, String> {
        Err("this program was built without the feature `jwt`".to_owned())
    }

    pub(crate) fn issue(&self, _: &str, _: ConnKind, _: &str, _: &str) -> Result<String, String> {
        match *self {}
    }

    pub(crate) fn is_one(&self, _: &str) -> bool {
        match *self {}
    }

    pub(crate) fn judge(&self, _: &Login) -> Judgement {
        match *self {}
    }
}
