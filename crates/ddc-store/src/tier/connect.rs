//! From an address to an object store: the client of the provider, over the project's own HTTP and
//! TLS.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use throng_platform::HttpClientError;
use tokio::time::{Sleep, sleep};

use super::{TierError, TierOptions};

/// Times that a request is sent again when the storage fails or cannot be reached.
const RETRIES_MAX: usize = 3;

/// The client of a provider.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The same, for addresses that work without credentials.
    pub(super) signer: Option<Arc<dyn Signer>>,
}

impl Client {
    fn new<C: ObjectStore + Signer>(client: C) -> Client {
        let client = Arc::new(client);
        Client { store: Arc::<C>::clone(&client), signer: Some(client) }
    }
}

/// The client, and the prefix of everything in it.
pub(super) fn connect(options: &TierOptions) -> Result<(Client, Path), TierError> {
    let bad = |why: String| TierError::Config(format!("\"{}\": {why}", options.url));
    let (scheme, rest) = options.url.split_once("://").ok_or_else(|| bad("there is no ://".to_owned()))?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(bad("it names no bucket".to_owned()));
    }
    let prefix = Path::parse(prefix.trim_end_matches('/')).map_err(|error| bad(error.to_string()))?;
    let connector = Connector { tls: Arc::clone(&options.tls), timeout: options.timeout };
    let retry = RetryConfig {
        max_retries: RETRIES_MAX,
        retry_timeout: options.timeout,
        backoff: BackoffConfig { init_backoff: Duration::from_millis(50), ..BackoffConfig::default() },
    };
    let client = ClientOptions::new().with_allow_http(options.endpoint.starts_with("http://"));
    let setting = |error: object_store::Error| TierError::Config(error.to_string());
    let endpoint = (!options.endpoint.is_empty()).then_some(options.endpoint.as_str());
    let client_of = match scheme {
        "s3" => {
            let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
            for (name, value) in &options.settings {
                builder = builder.with_config(name.parse().map_err(setting)?, value);
            }
            if let Some(endpoint) = endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            // The connection protects the payload, and its own hash is checked when it is read
            // again.
            let builder = builder.with_unsigned_payload(true);
            let builder = builder.with_client_options(client).with_retry(retry);
            Client::new(builder.with_http_connector(connector).build().map_err(setting)?)
        }
        "gs" => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            for (name, value) in &options.settings {
                builder = builder.with_config(name.parse().map_err(setting)?, value);
            }
            if let Some(endpoint) = endpoint {
                builder = builder.with_base_url(endpoint);
            }
            let builder = builder.with_client_options(client).with_retry(retry);
            Client::new(builder.with_http_connector(connector).build().map_err(setting)?)
        }
        "az" => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
            for (name, value) in &options.settings {
                builder = builder.with_config(name.parse().map_err(setting)?, value);
            }
            if let Some(endpoint) = endpoint {
                builder = builder.with_endpoint(endpoint.to_owned());
            }
            let builder = builder.with_client_options(client).with_retry(retry);
            Client::new(builder.with_http_connector(connector).build().map_err(setting)?)
        }
        other => return Err(bad(format!("`{other}` is none of s3, gs and az"))),
    };
    Ok((client_of, prefix))
}

/// Makes clients for the providers, some of which use several.
#[derive(Debug)]
struct Connector {
    tls: Arc<rustls::ClientConfig>,
    timeout: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Connection {
            client: throng_platform::HttpClient::new(&self.tls),
            timeout: self.timeout,
        }))
    }
}

#[derive(Debug)]
struct Connection {
    client: throng_platform::HttpClient<HttpRequestBody>,
    timeout: Duration,
}

#[async_trait]
impl HttpService for Connection {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.client.send(request, self.timeout).await.map_err(|error| {
            let kind = match &error {
                HttpClientError::Connect(_) => HttpErrorKind::Connect,
                HttpClientError::Exchange(_) => HttpErrorKind::Interrupted,
                HttpClientError::Timeout(_) => HttpErrorKind::Timeout,
            };
            HttpError::new(kind, error)
        })?;
        Ok(response.map(|body| {
            let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
            HttpResponseBody::new(Watched { body, timeout: self.timeout, wait: None })
        }))
    }
}

/// A body that fails when nothing of it arrives for a time.
struct Watched<B> {
    body: B,
    timeout: Duration,
    /// While something is waited for.
    wait: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Data = Bytes, Error = HttpError> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.wait = None;
            return Poll::Ready(frame);
        }
        let timeout = self.timeout;
        ready!(self.wait.get_or_insert_with(|| Box::pin(sleep(timeout))).as_mut().poll(context));
        let error = io::Error::new(io::ErrorKind::TimedOut, "the storage stalls inside an answer");
        Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, error))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
