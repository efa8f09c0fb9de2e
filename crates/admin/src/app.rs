//! State that the routes share, and the check that a request passes first.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use crate::access::{Access, Credentials, Decision, Guard};
use crate::monitor::Monitor;
use crate::response::{private, problem};

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) monitor: Arc<dyn Monitor>,
    pub(crate) access: Arc<Access>,
    pub(crate) listener: SocketAddr,
    /// One for each stream of events that may run.
    pub(crate) streams: Arc<Semaphore>,
}

/// Checks a request against a guard; the answer if it is refused.
pub(crate) fn allowed(
    app: &App,
    guard: Guard,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Box<Response>> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let claims = Credentials {
        path: uri.path(),
        mutating: !method.is_safe(),
        host: text(header::HOST),
        origin: text(header::ORIGIN),
        authorization: text(header::AUTHORIZATION),
        cookie: text(header::COOKIE),
    };
    let (status, what) = match app.access.check(guard, app.listener, &claims) {
        Decision::Allow => return Ok(()),
        Decision::Unauthorized => (
            StatusCode::UNAUTHORIZED,
            "a credential is needed: the console's one-time address, or Authorization: Bearer TOKEN \
             (http.tokens_file lists tokens)",
        ),
        Decision::Forbidden => (
            StatusCode::FORBIDDEN,
            "without http.tokens_file this is served on loopback only, as localhost or 127.0.0.1",
        ),
        Decision::CrossSite => (StatusCode::FORBIDDEN, "this was asked for by a page of another site"),
    };
    let mut response = (status, problem(what)).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    Err(Box::new(private(response)))
}

/// Runs what may wait for a shard beside the runtime, which also answers logins.
pub(crate) async fn off_thread<T: Default + Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "a monitoring report failed");
            T::default()
        }
    }
}
