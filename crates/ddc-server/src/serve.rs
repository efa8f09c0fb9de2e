//! Listeners.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::Request;
use hyper::header::{self, HeaderValue};
pub use throng_admin::Tls;
use throng_admin::{
    Accepted, Exempt, Guest, Intake, Outgoing, Pages, Received, Serving, Shutdown, no_exemptions, serve_http2,
};
use tokio::net::TcpListener;

use crate::body::Body;
use crate::http1::{self, ConnectionEnd, Wire};
use crate::listener::Listener;
use crate::memory::return_soon;
use crate::service::{RawRequest, Service};
use crate::source::Streamed;

/// Requests of one HTTP/2 connection at a time: an editor has at most 128 GETs and 3 x 64 others in
/// flight.
const STREAMS_MAX: u32 = 512;

/// Streams at a time from which on the memory of a connection that has ended is returned to the
/// system: some KiB for each.
const MANY_STREAMS: usize = 64;

/// How to serve.
#[derive(Clone)]
pub struct ServeOptions {
    /// What the listener shows.
    pub listener: Listener,
    /// Connections at a time. With more, those that make no progress yield. One address holds at
    /// most a quarter of them when more than three quarters are taken.
    pub connections_max: usize,
    /// Addresses without that limit, which stand for many clients.
    pub exempt: Exempt,
    /// TLS, if it is wanted. Offers HTTP/2 if its configuration lists `h2`.
    pub tls: Option<Tls>,
    /// Metrics and console, once they are set.
    pub pages: Arc<OnceLock<Pages>>,
}

impl ServeOptions {
    /// Without TLS and exempt addresses, and with 10,000 connections.
    #[must_use]
    pub fn new(listener: Listener) -> ServeOptions {
        ServeOptions {
            listener,
            connections_max: 10_000,
            exempt: no_exemptions(),
            tls: None,
            pages: Arc::default(),
        }
    }
}

impl fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeOptions").field("listener", &self.listener).finish_non_exhaustive()
    }
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
        exempt: options.exempt,
        is_for_strangers: true,
        tls: options.tls,
    };
    let (kind, pages) = (options.listener, options.pages);
    let serve = move |accepted: Accepted, guest| {
        let (service, pages) = (Arc::clone(&service), Arc::clone(&pages));
        async move {
            let from = accepted.socket().peer_addr().ok();
            let front = Front { service, listener: kind, pages, from };
            match accepted {
                Accepted::Plain(stream) => connection(stream, front, guest).await,
                Accepted::Tls(stream) => connection(*stream, front, guest).await,
            }
        }
    };
    intake.run(listener, shutdown, serve)
}

/// Service and pages behind one connection.
struct Front {
    service: Arc<Service>,
    listener: Listener,
    /// Set a moment after the listener opens.
    pages: Arc<OnceLock<Pages>>,
    from: Option<SocketAddr>,
}

async fn connection<S: Wire>(stream: S, front: Front, guest: Guest) {
    let Front { service, listener, pages, from } = front;
    let stream = match http1::serve(stream, &service, listener, &pages, guest.clone()).await {
        ConnectionEnd::Ended => return,
        ConnectionEnd::Http2(stream) => stream,
        ConnectionEnd::Page(stream) => {
            if let Some(pages) = pages.get() {
                pages.serve(stream, from, guest).await;
            }
            return;
        }
    };
    let answer = move |request: Request<Received>| {
        let (service, pages) = (Arc::clone(&service), Arc::clone(&pages));
        async move {
            let (mut parts, body) = request.into_parts();
            // HTTP/2 names the host in the request's target.
            if let Some(authority) = parts.uri.authority()
                && let Ok(host) = HeaderValue::from_str(authority.as_str())
            {
                parts.headers.insert(header::HOST, host);
            }
            if let Some(pages) = pages.get().filter(|_| Pages::has(parts.uri.path())) {
                return pages.answer(Request::from_parts(parts, body), from).await.map(Sent::Page);
            }
            let question = RawRequest {
                method: parts.method.as_str(),
                path: parts.uri.path(),
                query: parts.uri.query().unwrap_or_default(),
                headers: &parts.headers,
                source: Box::new(Streamed(body)),
            };
            service.answer(listener, question).await.map(Sent::Answer)
        }
    };
    if serve_http2(stream, guest, STREAMS_MAX, answer).await >= MANY_STREAMS {
        return_soon();
    }
}

/// Body of an answer of the service, or of a page.
enum Sent<P> {
    Answer(Body),
    Page(P),
}

impl<P: Outgoing> Outgoing for Sent<P> {
    fn poll_piece(&mut self, context: &mut Context<'_>, at_most: usize) -> Poll<Option<io::Result<Bytes>>> {
        match self {
            Sent::Answer(body) => body.poll_piece(context, at_most),
            Sent::Page(body) => body.poll_piece(context, at_most),
        }
    }

    fn left(&self) -> Option<u64> {
        match self {
            Sent::Answer(body) => Outgoing::left(body),
            Sent::Page(body) => body.left(),
        }
    }

    fn pause(&mut self) {
        match self {
            Sent::Answer(body) => body.pause(),
            Sent::Page(body) => body.pause(),
        }
    }

    fn wanted(&self) -> Option<u64> {
        match self {
            Sent::Answer(body) => Outgoing::wanted(body),
            Sent::Page(body) => body.wanted(),
        }
    }
}

impl Outgoing for Body {
    fn poll_piece(&mut self, context: &mut Context<'_>, at_most: usize) -> Poll<Option<io::Result<Bytes>>> {
        if let Err(error) = ready!(self.poll_ready(context)) {
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Ready(self.step(at_most))
    }

    fn left(&self) -> Option<u64> {
        Some(self.len())
    }

    fn pause(&mut self) {
        self.close_files();
    }

    fn wanted(&self) -> Option<u64> {
        self.waiters().filter(|waiters| waiters.any()).map(|_| self.held_bytes())
    }
}
