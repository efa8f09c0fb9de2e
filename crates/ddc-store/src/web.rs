//! A client for other people's HTTP servers: connections that are kept, TLS, a limit on every wait.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Connections to one server that wait for the next request at most.
const IDLE_CONNECTIONS_MAX: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebError {
    /// Nobody listens there, or TLS does not come about.
    #[error("cannot connect: {0}")]
    Connect(#[source] hyper_util::client::legacy::Error),
    /// The connection broke.
    #[error("the exchange broke off: {0}")]
    Exchange(#[source] hyper_util::client::legacy::Error),
    /// The answer did not begin in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
}

/// A client that speaks HTTP/1.1, with bodies of type `B`.
pub struct Web<B> {
    client: Client<HttpsConnector<HttpConnector>, B>,
}

impl<B> fmt::Debug for Web<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Web")
    }
}

impl<B> Web<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// A client that trusts whom `tls` trusts.
    #[must_use]
    pub fn new(tls: &rustls::ClientConfig) -> Web<B> {
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
        Web { client }
    }

    /// Asks. The head of the answer comes within `timeout`; its body is the caller's to bound.
    ///
    /// # Errors
    /// As [`WebError`] says. Statuses are no errors.
    pub async fn ask(&self, request: Request<B>, timeout: Duration) -> Result<Response<Incoming>, WebError> {
        match tokio::time::timeout(timeout, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if error.is_connect() => Err(WebError::Connect(error)),
            Ok(Err(error)) => Err(WebError::Exchange(error)),
            Err(_) => Err(WebError::Late(timeout)),
        }
    }
}
