//! Requests to the addresses that configuration names, over http or https, bounded in time and
//! size.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use throng_platform::HttpClient;

/// Longest body read: a JWKS with hundreds of keys.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Files in which Linux distributions and BSDs keep the trusted certificates.
const SYSTEM_CA_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Checks that `url` can be used for a callout; empty is allowed (not used).
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

/// A client of one address.
#[derive(Clone)]
pub(crate) struct Fetcher {
    uri: Uri,
    client: HttpClient<Full<Bytes>>,
    timeout: Duration,
}

impl Fetcher {
    /// # Errors
    /// The address is not usable, or there are no certificates to trust for https.
    pub(crate) fn new(url: &str, ca_file: &str, timeout: Duration) -> Result<Fetcher, String> {
        check_url(url)?;
        let uri: Uri = url.parse().map_err(|error| format!("`{url}`: {error}"))?;
        let tls = match uri.scheme_str() {
            Some("https") => tls_client(ca_file, "gateway.auth.https_ca_file")?,
            _ => tls_trusting(rustls::RootCertStore::empty())?,
        };
        Ok(Fetcher { uri, client: HttpClient::new(&tls), timeout })
    }

    /// Sends a GET and returns the body.
    ///
    /// # Errors
    /// The reason as a phrase; every status but 200 is an error.
    #[cfg(feature = "jwt")]
    pub(crate) async fn get(&self) -> Result<Bytes, String> {
        self.exchange(Method::GET, Bytes::new(), None).await
    }

    /// Sends a POST of JSON and returns the body.
    ///
    /// # Errors
    /// The reason as a phrase; every status but 200 is an error.
    pub(crate) async fn post(
        &self,
        body: Bytes,
        authorization: Option<&HeaderValue>,
    ) -> Result<Bytes, String> {
        self.exchange(Method::POST, body, authorization).await
    }

    async fn exchange(
        &self,
        method: Method,
        body: Bytes,
        authorization: Option<&HeaderValue>,
    ) -> Result<Bytes, String> {
        let host = self.uri.host().unwrap_or_default();
        let mut request = Request::builder().method(method).uri(self.uri.clone());
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let request =
            request.body(Full::new(body)).map_err(|error| format!("bad request for {host}: {error}"))?;
        let exchange = async {
            let response =
                self.client.send(request, self.timeout).await.map_err(|error| format!("{host}: {error}"))?;
            if response.status() != StatusCode::OK {
                return Err(format!("status {}", response.status()));
            }
            let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
            body.map(|body| body.to_bytes()).map_err(|error| format!("{host}: {error}"))
        };
        tokio::time::timeout(self.timeout, exchange)
            .await
            .unwrap_or_else(|_| Err(format!("{host}: no response within {} ms", self.timeout.as_millis())))
    }
}

/// Trust for outgoing connections: the certificates in `ca_file`, or those of the system. `key`
/// names the setting of the file in errors.
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

/// Trusts `roots`; an empty store trusts no certificate and serves addresses without TLS.
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
