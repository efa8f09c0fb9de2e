//! Parts that answers have in common.

use axum::http::{HeaderValue, header};
use axum::response::Response;

/// The JSON of a refusal.
pub(crate) fn problem(what: &str) -> axum::Json<serde_json::Value> {
    axum::Json(serde_json::json!({ "error": what }))
}

/// Keeps an answer out of caches and from being taken for something else than it says.
pub(crate) fn private(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
