//! Listeners.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
pub use throng_admin::Tls;
use throng_admin::{Accepted, Beyond, Intake, Serving, Shutdown};
use tokio::net::TcpListener;

use crate::http1::{self, Wire};
use crate::service::{RawRequest, Service};
use crate::upload::Streamed;

/// Requests of one HTTP/2 connection at a time: an editor has at most 128 GETs and 3 x 64 others in
/// flight.
const STREAMS_MAX: u32 = 512;
/// Bytes that an HTTP/2 stream and connection may send before they are taken.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// What a listener shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Namespaces that are marked public.
    Public,
    /// Every namespace.
    Corporate,
    /// Every namespace, the replication log and administration.
    Internal,
}

/// How to serve.
#[derive(Clone)]
pub struct ServeOptions {
    /// What the listener shows.
    pub listener: Listener,
    /// Connections at a time; more wait in the kernel's queue.
    pub connections_max: usize,
    /// TLS, if it is wanted. Offers HTTP/2 if its configuration lists `h2`.
    pub tls: Option<Tls>,
}

/// Serves until `shutdown` completes; open requests are dropped then.
pub async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send,
) {
    serve_until(listener, service, options, std::pin::pin!(shutdown)).await;
}

fn serve_until<'a>(
    listener: TcpListener,
    service: Arc<Service>,
    options: ServeOptions,
    shutdown: Shutdown<'a>,
) -> Serving<'a> {
    let intake = Intake {
        owner: "the cache's",
        connections_max: options.connections_max,
        beyond: Beyond::Waits,
        tls: options.tls,
    };
    let serve = move |accepted| {
        let service = Arc::clone(&service);
        async move {
            match accepted {
                Accepted::Plain(stream) => connection(stream, service, options.listener).await,
                Accepted::Tls(stream) => connection(*stream, service, options.listener).await,
            }
        }
    };
    intake.run(listener, shutdown, serve)
}

async fn connection<S: Wire>(stream: S, service: Arc<Service>, listener: Listener) {
    let Some(stream) = http1::serve(stream, &service, listener).await else { return };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(16 << 10)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    let answer = service_fn(move |request: Request<Incoming>| {
        let service = Arc::clone(&service);
        async move {
            let (mut parts, body) = request.into_parts();
            // HTTP/2 names the host in the request's target.
            if let Some(authority) = parts.uri.authority()
                && let Ok(host) = HeaderValue::from_str(authority.as_str())
            {
                parts.headers.insert(header::HOST, host);
            }
            let question = RawRequest {
                method: parts.method.as_str(),
                path: parts.uri.path(),
                query: parts.uri.query().unwrap_or_default(),
                headers: parts.headers,
                source: Box::new(Streamed::new(body)),
            };
            Ok::<_, std::convert::Infallible>(service.answer(listener, question).await)
        }
    });
    // How a connection ends is the peer's business.
    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
}
