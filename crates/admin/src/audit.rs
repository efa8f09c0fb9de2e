//! Audit records of changes over the API.

use std::net::SocketAddr;

use serde::Serialize;
use serde_json::Value;

/// An authenticated call that may have changed state. It contains no secrets: no tokens, no
/// cookies, no bodies of logins.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Act {
    /// Caller: `token 2`, by its line in `http.tokens_file`, or `session 5`, counted from the start
    /// of the process.
    pub who: String,
    /// Remote address.
    pub from: Option<SocketAddr>,
    /// Method and path.
    pub what: String,
    /// The fields of the body; null for a login.
    pub parameters: Value,
    /// HTTP status of the response; below 300 if the call succeeded.
    pub status: u16,
}

/// Remote address of a request's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From(pub(crate) Option<SocketAddr>);
