//! Interface between the listener and the process: [`Monitor`] and the types of its requests and
//! responses.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use crate::audit::Act;
use crate::catalogue::Endpoint;
use crate::exposition::Family;
use crate::response::problem;

/// Entries of a page if the request has no limit.
pub(crate) const PAGE_DEFAULT: usize = 100;

/// Source of the data that the listener serves. `health` is called on the runtime and must not
/// block; the other methods may wait for a shard.
pub trait Monitor: Send + Sync + 'static {
    /// State of the process and of its parts.
    fn health(&self) -> Health;
    /// All metrics with their present values.
    fn metrics(&self) -> Vec<Family>;
    /// Answers a route of the API.
    ///
    /// # Errors
    /// [`Problem`] with the status and the reason: an invalid request, or a part that cannot answer
    /// now.
    fn answer(&self, request: &ApiRequest) -> Result<Value, Problem>;
    /// Records a change, or an attempt, by a caller with a credential. The response is sent after
    /// it returns.
    fn record(&self, act: &Act);
}

/// Response of the health routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// `false` only if the process should be restarted.
    pub live: bool,
    /// True if the process accepts players.
    pub ready: bool,
    /// Parts that readiness depends on.
    pub parts: Vec<Part>,
}

/// State of one part of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Name, as in `shard 0` or `listener clients`.
    pub name: String,
    /// True if the part works.
    pub ok: bool,
    /// Its current activity, in words.
    pub detail: String,
}

/// Requested page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries to skip.
    pub offset: usize,
    /// Maximum number of entries to return, at most 5,000.
    pub limit: usize,
}

impl Default for Page {
    fn default() -> Page {
        Page { offset: 0, limit: PAGE_DEFAULT }
    }
}

/// A request to the process.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiRequest {
    /// Handler of the route.
    pub endpoint: Endpoint,
    /// Number in the path, if the route has one.
    pub id: Option<u32>,
    /// Page, for lists.
    pub page: Page,
    /// Search string for lists, in lower case; empty selects all entries.
    pub search: String,
    /// Other query parameters.
    pub query: BTreeMap<String, String>,
    /// The fields of the body, an object, or null.
    pub body: Value,
}

impl ApiRequest {
    /// Creates a request without parameters.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> ApiRequest {
        ApiRequest {
            endpoint,
            id: None,
            page: Page::default(),
            search: String::new(),
            query: BTreeMap::new(),
            body: Value::Null,
        }
    }

    /// Returns an integer from the query.
    ///
    /// # Errors
    /// [`Problem`] if the value is present and not an integer.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let text = self.query.get(name).map(|text| text.parse());
        text.transpose().map_err(|_| Problem::new(400, format!("{name} must be an integer")))
    }
}

/// Refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status: 4xx or 5xx.
    pub status: u16,
    /// Message for people, one phrase.
    pub what: String,
}

impl Problem {
    /// Creates a refusal.
    #[must_use]
    pub fn new(status: u16, what: impl Into<String>) -> Problem {
        Problem { status, what: what.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, problem(&self.what)).into_response()
    }
}
