//! [`Jwt`] of a build without the feature `jwt`: uninhabited, so its methods cannot be called.

use std::sync::Arc;

use serde_json::Value;
use throng_gateway::Verdict;

use super::{Authenticator, Login, VerdictFuture};
use crate::config::Auth;

/// Verifies signed tokens. This build cannot make one.
#[derive(Debug)]
pub enum Jwt {}

impl Jwt {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn start(_: &Auth, _: &tokio::runtime::Handle) -> Result<Arc<Jwt>, String> {
        Err("this program was built without the feature `jwt`".to_owned())
    }

    pub(crate) async fn claims(&self, _: &str) -> Result<Value, Verdict> {
        match *self {}
    }
}

impl Authenticator for Jwt {
    fn judge<'a>(&'a self, _: &'a Login) -> VerdictFuture<'a> {
        match *self {}
    }
}
