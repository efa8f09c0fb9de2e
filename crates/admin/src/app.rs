//! Shared state of the routes, and the access check of a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use crate::access::{Access, Credentials, Decision, Guard};
use crate::audit::From;
use crate::monitor::Monitor;
use crate::response::{private, problem};

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) monitor: Arc<dyn Monitor>,
    pub(crate) access: Arc<Access>,
    pub(crate) listener: SocketAddr,
    /// Permits for event streams; one per running stream.
    pub(crate) streams: Arc<Semaphore>,
}

/// Checks a request against a guard. Returns the response of a refusal, delayed for an address that
/// guesses tokens. `costly` marks requests that cost more than their response: profiles and
/// streams.
pub(crate) async fn allowed(
    app: &App,
    guard: Guard,
    parts: &Parts,
    costly: bool,
) -> Result<(), Box<Response>> {
    let text = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let credentials = Credentials {
        path: parts.uri.path(),
        mutating: !parts.method.is_safe(),
        fetch_site: text(HeaderName::from_static("sec-fetch-site")),
        costly,
        host: text(header::HOST),
        origin: text(header::ORIGIN),
        authorization: text(header::AUTHORIZATION),
        cookie: text(header::COOKIE),
    };
    let (status, what) = match app.access.check(guard, app.listener, &credentials) {
        Decision::Allow => return Ok(()),
        Decision::Unauthorized => (
            StatusCode::UNAUTHORIZED,
            "authentication required: pass --token-file with a token from `http.tokens_file`, send it as \
             `Authorization: Bearer TOKEN`, or open the console's one-time address",
        ),
        Decision::Forbidden => (
            StatusCode::FORBIDDEN,
            "without http.tokens_file this is served on loopback only, as localhost or 127.0.0.1",
        ),
        Decision::CrossSite => (StatusCode::FORBIDDEN, "requests from pages of other sites are refused"),
    };
    let from = parts.extensions.get::<From>().and_then(|from| from.0);
    if status == StatusCode::UNAUTHORIZED && credentials.authorization.is_some() {
        let delay = from.map_or(Duration::ZERO, |from| app.access.count_failure(from.ip().to_canonical()));
        tokio::time::sleep(delay).await;
    }
    let mut response = (status, problem(what)).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    Err(Box::new(private(response)))
}

/// Runs `work`, which may wait for a shard, outside the runtime's threads, because these also
/// answer logins.
pub(crate) async fn off_thread<T: Default + Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "a monitoring report failed");
            T::default()
        }
    }
}
