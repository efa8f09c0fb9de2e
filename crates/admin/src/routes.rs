//! Routes, and the loop that serves them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use hyper::body::{Body as _, Incoming};
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::access::{Access, Guard};
use crate::app::{App, allowed, off_thread};
use crate::audit::From;
use crate::crowd::Guest;
use crate::exposition::{Format, render};
use crate::http2::{Metered, PacedBody};
use crate::intake::{Accepted, Intake, Serving, Shutdown, no_exemptions};
use crate::monitor::Monitor;
use crate::profile::{ProfileError, cpu_profile};
use crate::response::{private, problem};
use crate::transport::Transport;
use crate::{api, assets};

/// Time to send a complete request head; also ends idle kept-alive connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest profile. The connection's own limit is a little longer.
const PROFILE_MAX: Duration = Duration::from_secs(300);
/// Longest lifetime of a connection, which bounds the memory of stalled readers.
const CONNECTION_MAX: Duration = Duration::from_secs(330);
/// Bounds of a connection's times.
#[derive(Clone, Copy)]
struct Times {
    /// See [`HEAD_TIMEOUT`].
    head: Duration,
    /// See [`CONNECTION_MAX`].
    connection: Duration,
}

const TIMES: Times = Times { head: HEAD_TIMEOUT, connection: CONNECTION_MAX };
/// Bytes of a request head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Options of the listener.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Access rules.
    pub access: Arc<Access>,
    /// Connections at a time. With more, those that make no progress yield.
    pub connections_max: usize,
}

/// Serves `monitor` on `listener` until `shutdown` completes; then open requests are dropped.
///
/// # Errors
/// If the listener's address cannot be read.
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
    let intake = Intake {
        owner: "an HTTP",
        connections_max,
        exempt: no_exemptions(),
        is_for_strangers: false,
        tls: None,
    };
    let serve = move |accepted, guest| {
        let router = router.clone();
        async move {
            let Accepted::Plain(stream) = accepted else { return };
            let from = stream.peer_addr().ok();
            serve_connection(stream, from, guest, router, true).await;
        }
    };
    intake.run(listener, shutdown, serve)
}

/// Answers the requests of one connection, or only the first.
pub(crate) async fn serve_connection<S>(
    stream: S,
    from: Option<SocketAddr>,
    guest: Guest,
    router: Router,
    keep_alive: bool,
) where
    S: Transport,
{
    serve_within(TIMES, stream, from, guest, router, keep_alive).await;
}

async fn serve_within<S>(
    times: Times,
    stream: S,
    from: Option<SocketAddr>,
    guest: Guest,
    router: Router,
    keep_alive: bool,
) where
    S: Transport,
{
    let stream = Metered::new(stream, guest.clone());
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(From(from));
        // A request with a body works while its body is not waited for.
        let work = request.body().is_end_stream().then(|| guest.work());
        let guest = guest.clone();
        let answer = service.call(request.map(|body| PacedBody::new(body, &guest)));
        async move {
            let answer = answer.await;
            drop(work);
            guest.complete();
            guest.rest();
            answer
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(times.connection, connection).await;
}

pub(crate) fn router(app: App) -> Router {
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
        .method_not_allowed_fallback(wrong_method)
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
    (StatusCode::NOT_FOUND, problem("no such route; GET / lists all routes"))
}

async fn wrong_method(method: Method) -> impl IntoResponse {
    let what = format!("method {method} not allowed; the header `Allow` lists the allowed methods");
    (StatusCode::METHOD_NOT_ALLOWED, problem(&what))
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
        return (StatusCode::BAD_REQUEST, problem("seconds must be an integer from 1 to 300"))
            .into_response();
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
            (StatusCode::CONFLICT, problem("another profile is in progress")).into_response()
        }
        Err(error @ ProfileError::Missing) => {
            (StatusCode::NOT_IMPLEMENTED, problem(&error.to_string())).into_response()
        }
        Err(ProfileError::Failed(why)) => (StatusCode::INTERNAL_SERVER_ERROR, problem(&why)).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;
    use crate::crowd::{Admission, Crowd};

    /// No bound that a test reaches.
    const LONG: Duration = Duration::from_secs(3_600);
    /// Below the 30 seconds after which hyper closes such a connection unasked.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn client(times: Times) -> DuplexStream {
        let (client, server) = duplex(64 * 1024);
        let crowd = Crowd::new(&Arc::default(), 1, no_exemptions());
        let Admission::Admitted(guest) = crowd.admit([192, 0, 2, 1].into(), false) else {
            panic!("there is room");
        };
        let router = Router::new().route("/", get(|| async { "here" }));
        tokio::spawn(serve_within(times, server, None, guest, router, true));
        client
    }

    #[tokio::test]
    async fn a_client_that_never_completes_its_head_is_closed() {
        let mut client = client(Times { head: Duration::from_millis(20), connection: LONG });
        client.write_all(b"GET / HTTP/1.1\r\nHost: slo").await.unwrap();
        let mut got = Vec::new();
        // An answer that says so may come first.
        let end = tokio::time::timeout(PATIENCE, client.read_to_end(&mut got)).await;
        assert!(end.is_ok(), "the connection stays open");
    }

    #[tokio::test]
    async fn a_connection_ends_in_the_middle_of_its_requests() {
        // A slow machine may need more than a tenth of a second to its first answer.
        for connection in [100, 1_000, 10_000].map(Duration::from_millis) {
            let mut client = client(Times { head: LONG, connection });
            let ask = async {
                let (mut answers, mut part) = (0, [0; 1_024]);
                while client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.is_ok() {
                    match client.read(&mut part).await {
                        Ok(1..) => answers += 1,
                        _ => break,
                    }
                }
                answers
            };
            if tokio::time::timeout(PATIENCE, ask).await.expect("the connection stays open") > 0 {
                return;
            }
        }
        panic!("it ended before its first answer");
    }
}
