//! The process as the listener sees it: [`Monitor`] and the types of its requests and answers.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use crate::audit::Act;
use crate::catalogue::Endpoint;
use crate::exposition::Family;
use crate::response::problem;

/// Entries of a list when the request names no limit.
pub(crate) const PAGE_DEFAULT: usize = 100;

/// Data that the listener shows. `health` is called on the runtime and must not wait; the others
/// may wait for a shard.
pub trait Monitor: Send + Sync + 'static {
    /// State of the process and of its parts.
    fn health(&self) -> Health;
    /// All metrics with their present values.
    fn metrics(&self) -> Vec<Family>;
    /// Answers a route of the API.
    ///
    /// # Errors
    /// [`Problem`] with the status and the reason: a wrong request, or a part that cannot answer
    /// now.
    fn answer(&self, request: &ApiRequest) -> Result<Value, Problem>;
    /// Records a change, or an attempt, of a caller with a credential. The response waits for it.
    fn record(&self, act: &Act);
}

/// The answer of the health routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// `false` only when the process should be restarted.
    pub live: bool,
    /// True if players should be sent here.
    pub ready: bool,
    /// Parts that readiness depends on.
    pub parts: Vec<Part>,
}

/// One part of the process in a health answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Name, as in `shard 0` or `listener clients`.
    pub name: String,
    /// True if the part works.
    pub ok: bool,
    /// Its present activity.
    pub detail: String,
}

/// The part of a list that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries to skip.
    pub offset: usize,
    /// Most entries to return, at most 5,000.
    pub limit: usize,
}

impl Default for Page {
    fn default() -> Page {
        Page { offset: 0, limit: PAGE_DEFAULT }
    }
}

/// A question to the process.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiRequest {
    /// Which route.
    pub endpoint: Endpoint,
    /// The number in its path.
    pub id: Option<u32>,
    /// For lists.
    pub page: Page,
    /// For lists: only entries in which this occurs, in lower case; empty for all.
    pub search: String,
    /// Other query parameters.
    pub query: BTreeMap<String, String>,
    /// The fields of the body, an object, or null.
    pub body: Value,
}

impl ApiRequest {
    /// A question without parameters.
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

    /// A whole number from the query.
    ///
    /// # Errors
    /// [`Problem`] if the value is present and not a whole number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let text = self.query.get(name).map(|text| text.parse());
        text.transpose().map_err(|_| Problem::new(400, format!("{name} is a whole number")))
    }
}

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status: 4xx or 5xx.
    pub status: u16,
    /// One phrase for people.
    pub what: String,
}

impl Problem {
    /// A refusal.
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
