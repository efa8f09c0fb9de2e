//! One HTTP request at a time over http or https, with bounds on time and size.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;

/// Largest answer read: a JWKS with hundreds of keys.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Where Linux distributions and BSDs keep the certificates to trust.
const SYSTEM_CA_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Whether `url` can be used for a callout; empty is fine (not used).
///
/// # Errors
/// A phrase that says what is expected.
pub(crate) fn check_url(url: &str) -> Result<(), String> {
    if url.is_empty() {
        return Ok(());
    }
    let parsed: Uri = url.parse().map_err(|error| format!("found \"{url}\": {error}"))?;
    match parsed.scheme_str() {
        Some("http" | "https") if parsed.host().is_some() => Ok(()),
        _ => Err(format!("found \"{url}\"; expected http://host/path or https://host/path")),
    }
}

/// Asks one address.
#[derive(Clone)]
pub(crate) struct Fetcher {
    uri: Uri,
    tls: Option<tokio_rustls::TlsConnector>,
    timeout: Duration,
}

impl Fetcher {
    /// # Errors
    /// The address is not usable, or there are no certificates to trust for https.
    pub(crate) fn new(url: &str, ca_file: &str, timeout: Duration) -> Result<Fetcher, String> {
        check_url(url)?;
        let uri: Uri = url.parse().map_err(|error| format!("`{url}`: {error}"))?;
        let tls = match uri.scheme_str() {
            Some("https") => Some(tls_client(ca_file, "gateway.auth.https_ca_file")?.into()),
            _ => None,
        };
        Ok(Fetcher { uri, tls, timeout })
    }

    /// GET.
    ///
    /// # Errors
    /// A phrase with the reason; anything but status 200 is an error.
    pub(crate) async fn get(&self) -> Result<Bytes, String> {
        self.ask(Method::GET, Bytes::new(), None).await
    }

    /// POST of JSON.
    ///
    /// # Errors
    /// As [`Fetcher::get`].
    pub(crate) async fn post(
        &self,
        body: Bytes,
        authorization: Option<&HeaderValue>,
    ) -> Result<Bytes, String> {
        self.ask(Method::POST, body, authorization).await
    }

    async fn ask(
        &self,
        method: Method,
        body: Bytes,
        authorization: Option<&HeaderValue>,
    ) -> Result<Bytes, String> {
        let host = self.uri.host().unwrap_or_default();
        let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what} {host}: {error}");
        let asked = async {
            let default_port = if self.tls.is_some() { 443 } else { 80 };
            let port = self.uri.port_u16().unwrap_or(default_port);
            let bare_host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((bare_host, port))
                .await
                .map_err(|error| failed("cannot connect to", &error))?;
            let request = self
                .request(method, body, authorization)
                .map_err(|error| failed("bad request for", &error))?;
            match &self.tls {
                None => exchange(TokioIo::new(stream), request).await,
                Some(connector) => {
                    let name = ServerName::try_from(bare_host.to_owned())
                        .map_err(|error| failed("bad name", &error))?;
                    let stream =
                        connector.connect(name, stream).await.map_err(|error| failed("TLS with", &error))?;
                    exchange(TokioIo::new(stream), request).await
                }
            }
        };
        tokio::time::timeout(self.timeout, asked)
            .await
            .unwrap_or_else(|_| Err(format!("{host} did not answer within {} ms", self.timeout.as_millis())))
    }

    fn request(
        &self,
        method: Method,
        body: Bytes,
        authorization: Option<&HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        // User information in an address is for browsers; it must not travel in the Host header.
        let host = host.rsplit('@').next().unwrap_or(host);
        let mut request = Request::builder().method(method).uri(path).header(HOST, host);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.body(Full::new(body))
    }
}

async fn exchange<S>(stream: TokioIo<S>, request: Request<Full<Bytes>>) -> Result<Bytes, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(stream).await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if response.status() != hyper::StatusCode::OK {
            return Err(format!("status {}", response.status()));
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    };
    let answer = answer.await;
    connection.abort();
    answer
}

/// Whom connections to others trust: a file, or whom the system trusts. `key` names the file's setting.
///
/// # Errors
/// A file without certificates, or none found.
pub(crate) fn tls_client(ca_file: &str, key: &str) -> Result<Arc<rustls::ClientConfig>, String> {
    let path = match ca_file {
        "" => SYSTEM_CA_FILES
            .iter()
            .copied()
            .find(|path| std::path::Path::new(path).exists())
            .ok_or_else(|| format!("no certificates of the system found; name a file in `{key}`"))?,
        given => given,
    };
    let mut roots = rustls::RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| format!("`{path}`: {error}"))?;
    let (added, _) = roots.add_parsable_certificates(certificates.filter_map(Result::ok));
    if added == 0 {
        return Err(format!("`{path}` holds no certificate"));
    }
    tls_trusting(roots)
}

/// Trusts `roots`, and nobody if there are none: for addresses that need no TLS.
///
/// # Errors
/// Never, with the protocol versions that are built in.
pub(crate) fn tls_trusting(roots: rustls::RootCertStore) -> Result<Arc<rustls::ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
