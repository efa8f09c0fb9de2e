//! Audit records of changes over the API.

use std::net::SocketAddr;

use serde::Serialize;
use serde_json::Value;

/// Something that was asked for with a credential and may have changed something. Holds no secret:
/// neither tokens nor cookies, nor the body of a login.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Act {
    /// `token 2`, by its place in `http.tokens_file`, or `session 5`, counted from the start of the
    /// process.
    pub who: String,
    /// The other end of the connection.
    pub from: Option<SocketAddr>,
    /// Method and path.
    pub what: String,
    /// The fields of the body; null for a login.
    pub parameters: Value,
    /// HTTP status of the answer: below 300 when it was done.
    pub status: u16,
}

/// The other end of a request's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From(pub(crate) Option<SocketAddr>);
