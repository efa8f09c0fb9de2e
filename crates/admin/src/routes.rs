//! Routes, and the loop that serves them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::access::{Access, Claims, Decision, Guard};
use crate::api::{self, Ask, Problem};
use crate::assets;
use crate::audit::{Act, From};
use crate::exposition::{Family, Format, render};
use crate::intake::{Accepted, Beyond, Intake, Serving, Shutdown};
use crate::profile::{ProfileError, cpu_profile};

/// Time to send a complete request head; also ends idle kept-alive connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest profile. The connection's own limit is a little longer.
const PROFILE_MAX: Duration = Duration::from_secs(300);
/// Longest life of a connection, which bounds what a stalled reader can hold.
const CONNECTION_MAX: Duration = Duration::from_secs(330);
/// Bytes of a request head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// What the listener shows. `health` is called on the runtime and must not wait; the others may wait for a shard.
pub trait Monitor: Send + Sync + 'static {
    /// Whether the process works and takes players.
    fn health(&self) -> Health;
    /// All metrics with their present values.
    fn metrics(&self) -> Vec<Family>;
    /// Answers a route of the API.
    ///
    /// # Errors
    /// What is wrong with the question, or why it cannot be answered now.
    fn answer(&self, ask: &Ask) -> Result<serde_json::Value, Problem>;
    /// Keeps a record of what somebody with a credential changed, or tried to. The answer waits for it.
    fn record(&self, act: &Act);
}

/// The answer of the health routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// `false` only when the process should be restarted.
    pub live: bool,
    /// Whether players should be sent here.
    pub ready: bool,
    /// What readiness is made of.
    pub parts: Vec<Part>,
}

/// One part of the process in a health answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Name, as in `shard 0` or `listener clients`.
    pub name: String,
    /// Whether the part does its work.
    pub ok: bool,
    /// What it is doing.
    pub detail: String,
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Who may read what.
    pub access: Arc<Access>,
    /// Connections at a time; more are closed at once.
    pub connections_max: usize,
}

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) monitor: Arc<dyn Monitor>,
    pub(crate) access: Arc<Access>,
    pub(crate) listener: SocketAddr,
    /// One for each stream of events that may run.
    pub(crate) streams: Arc<Semaphore>,
}

/// Serves `monitor` on `listener` until `shutdown` completes. Open requests are dropped then.
///
/// # Errors
/// When the listener has no address.
pub async fn serve(
    listener: TcpListener,
    monitor: Arc<dyn Monitor>,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let app = App {
        monitor,
        access: options.access,
        listener: listener.local_addr()?,
        streams: Arc::new(Semaphore::new(api::STREAMS_MAX)),
    };
    serve_router(listener, router(app), options.connections_max, std::pin::pin!(shutdown)).await;
    Ok(())
}

/// Answers requests with `router` until `shutdown` completes.
pub(crate) fn serve_router(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    shutdown: Shutdown<'_>,
) -> Serving<'_> {
    let intake = Intake { owner: "an HTTP", connections_max, beyond: Beyond::Closed, tls: None };
    let serve = move |accepted| {
        let service = TowerToHyperService::new(router.clone());
        async move {
            let Accepted::Plain(stream) = accepted else { return };
            let from = From(stream.peer_addr().ok());
            let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                request.extensions_mut().insert(from);
                service.call(request)
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
        }
    };
    intake.run(listener, shutdown, serve)
}

fn router(app: App) -> Router {
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/debug/pprof/profile", get(profile))
        .route_layer(middleware::from_fn_with_state(app.clone(), guard));
    Router::new()
        .route("/", get(index))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/healthz", get(ready))
        .route("/console", get(|| async { Redirect::permanent("/console/") }))
        .route("/console/", get(assets::file))
        .route("/console/{*path}", get(assets::file))
        .merge(guarded)
        .merge(api::router())
        .fallback(unknown)
        .with_state(app)
}

async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let costly = parts.uri.path().starts_with("/debug/");
    match allowed(&app, Guard::Monitor, &parts, costly).await {
        Ok(()) => private(next.run(Request::from_parts(parts, body)).await),
        Err(refusal) => *refusal,
    }
}

/// Checks a request against a guard; the answer if it is refused, which waits where tokens are guessed. `costly` are
/// requests that cost more than their answer.
pub(crate) async fn allowed(
    app: &App,
    guard: Guard,
    parts: &Parts,
    costly: bool,
) -> Result<(), Box<Response>> {
    let text = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let claims = Claims {
        path: parts.uri.path(),
        mutating: !parts.method.is_safe(),
        fetch_site: text(HeaderName::from_static("sec-fetch-site")),
        costly,
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
    let from = parts.extensions.get::<From>().and_then(|from| from.0);
    if status == StatusCode::UNAUTHORIZED && claims.authorization.is_some() {
        let delay = from.map_or(Duration::ZERO, |from| app.access.count_failure(from.ip().to_canonical()));
        tokio::time::sleep(delay).await;
    }
    let mut response = (status, problem(what)).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    Err(Box::new(private(response)))
}

/// Keeps an answer out of caches and from being taken for something else than it says.
pub(crate) fn private(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn index(request: Request) -> Response {
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/html")) {
        return Redirect::temporary("/console/").into_response();
    }
    let mut text = String::from("throng\n\n/console/\n/health/live\n/health/ready\n/metrics\n");
    for route in crate::ROUTES.iter().filter(|route| route.method == crate::Method::Get) {
        text.push_str(route.path);
        text.push('\n');
    }
    text.push_str("/debug/pprof/profile?seconds=10\n");
    text.into_response()
}

async fn unknown() -> impl IntoResponse {
    (StatusCode::NOT_FOUND, problem("no such page; / lists them"))
}

async fn live(State(app): State<App>) -> Response {
    let health = app.monitor.health();
    let status = if health.live { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(serde_json::json!({ "live": health.live }))).into_response()
}

async fn ready(State(app): State<App>) -> Response {
    let health = app.monitor.health();
    let status = if health.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(health)).into_response()
}

async fn metrics(State(app): State<App>, request: Request) -> Response {
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::for_accept(accept);
    let page = off_thread(move || render(&app.monitor.metrics(), format)).await;
    ([(header::CONTENT_TYPE, format.content_type())], page).into_response()
}

type BadQuery = axum::extract::rejection::QueryRejection;

#[derive(Deserialize)]
struct ProfileQuery {
    seconds: Option<u64>,
}

async fn profile(query: Result<Query<ProfileQuery>, BadQuery>) -> Response {
    let seconds = match query {
        Ok(Query(query)) => query.seconds.unwrap_or(30),
        Err(_) => 0,
    };
    if seconds == 0 || seconds > PROFILE_MAX.as_secs() {
        return (StatusCode::BAD_REQUEST, problem("seconds is a whole number from 1 to 300")).into_response();
    }
    match cpu_profile(Duration::from_secs(seconds)).await {
        Ok(bytes) => {
            let headers = [
                (header::CONTENT_TYPE, "application/octet-stream"),
                (header::CONTENT_DISPOSITION, "attachment; filename=\"profile.pb\""),
            ];
            (headers, bytes).into_response()
        }
        Err(ProfileError::Busy) => {
            (StatusCode::CONFLICT, problem("another profile is being taken")).into_response()
        }
        Err(ProfileError::Failed(why)) => (StatusCode::INTERNAL_SERVER_ERROR, problem(&why)).into_response(),
    }
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

pub(crate) fn problem(what: &str) -> axum::Json<serde_json::Value> {
    axum::Json(serde_json::json!({ "error": what }))
}
