//! HTTP/1.1 client with pooled connections, TLS and a deadline for every response head.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Idle connections kept for one server. Enough for the parallel reads of one editor; more would
/// only hold descriptors.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Longest wait for a TCP handshake: a running server answers in milliseconds, and a retry after 3
/// s may succeed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Failure to get a response.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// The TCP or TLS handshake failed.
    #[error("cannot connect: {}", chain(.0))]
    Connect(#[source] hyper_util::client::legacy::Error),
    /// The connection ended before the response.
    #[error("the connection ended before the response: {}", chain(.0))]
    Exchange(#[source] hyper_util::client::legacy::Error),
    /// The head of the response did not arrive in time.
    #[error("no response within {} ms", .0.as_millis())]
    Timeout(Duration),
}

/// The messages of an error and of its sources: the outer ones of the client say only "client
/// error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

/// Kind of the operating system's error below `error`.
fn refusal(error: &(dyn std::error::Error + 'static)) -> Option<std::io::ErrorKind> {
    let mut source = Some(error);
    while let Some(inner) = source {
        if let Some(found) = inner.downcast_ref::<std::io::Error>() {
            return Some(found.kind());
        }
        source = inner.source();
    }
    None
}

/// HTTP/1.1 client that sends bodies of type `B` over `http` and `https`.
pub struct HttpClient<B> {
    client: Client<HttpsConnector<HttpConnector>, B>,
}

impl<B> Clone for HttpClient<B> {
    fn clone(&self) -> HttpClient<B> {
        HttpClient { client: self.client.clone() }
    }
}

impl<B> fmt::Debug for HttpClient<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpClient")
    }
}

impl<B> HttpClient<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Creates a client that trusts the same certificates as `tls`.
    #[must_use]
    pub fn new(tls: &rustls::ClientConfig) -> HttpClient<B> {
        let mut sockets = HttpConnector::new();
        sockets.set_nodelay(true);
        sockets.enforce_http(false);
        sockets.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls.clone())
            .https_or_http()
            .enable_http1()
            .wrap_connector(sockets);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(https);
        HttpClient { client }
    }

    /// Sends a request and returns the response once its head has arrived, within `timeout`. The
    /// caller bounds the size of the body and the time that it takes.
    ///
    /// # Errors
    /// [`HttpClientError`]. A status of any value is a response, not an error.
    pub async fn send(
        &self,
        request: Request<B>,
        timeout: Duration,
    ) -> Result<Response<Incoming>, HttpClientError> {
        match tokio::time::timeout(timeout, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if error.is_connect() => Err(HttpClientError::Connect(error)),
            Ok(Err(error)) => Err(HttpClientError::Exchange(error)),
            Err(_) => Err(HttpClientError::Timeout(timeout)),
        }
    }
}

/// Sends one request over plain HTTP and waits for status and body, on the calling thread. For
/// command-line tools.
///
/// # Errors
/// The reason as a phrase: no connection, no response within `timeout`, or a body longer than
/// `bytes_max`.
pub fn exchange_blocking(
    request: Request<Full<Bytes>>,
    timeout: Duration,
    bytes_max: usize,
) -> Result<(StatusCode, Bytes), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    let exchange = async {
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let response = client.request(request).await.map_err(|error| match refusal(&error) {
            Some(why) if error.is_connect() => format!("cannot connect: {why}"),
            _ => chain(&error),
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), bytes_max).collect().await;
        body.map(|body| (status, body.to_bytes())).map_err(|error| error.to_string())
    };
    runtime.block_on(async {
        tokio::time::timeout(timeout, exchange)
            .await
            .unwrap_or_else(|_| Err(format!("no response within {} ms", timeout.as_millis())))
    })
}
