//! TLS set-up: certificates from PEM, a generated one for development, reload.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig};

use crate::records;

/// The TLS side of a listener. Clones share one configuration, which [`TlsAcceptor::reload`]
/// replaces for the connections that come after.
#[derive(Clone)]
pub struct TlsAcceptor {
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl TlsAcceptor {
    /// Wraps a configuration, for example from [`tls_server_config`].
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self { config: Arc::new(RwLock::new(config)) }
    }

    /// Uses `config` for all connections accepted from now on; open ones keep theirs.
    pub fn reload(&self, config: Arc<ServerConfig>) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsAcceptor")
    }
}

/// The TLS side of an outgoing connection.
#[derive(Clone, Debug)]
pub struct TlsConnector {
    /// Trusted certificates and offered protocols, for example from [`tls_client_config`].
    pub config: Arc<ClientConfig>,
    /// The name the certificate must be valid for.
    pub server_name: ServerName<'static>,
}

/// Why a TLS configuration cannot be made of the given PEM text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// The certificate text is not PEM.
    #[error("certificate file is not PEM: {0}")]
    BadCertificatePem(pem::Error),
    /// There is PEM, but no certificate in it.
    #[error("certificate file has no CERTIFICATE section (is it the key file?)")]
    NoCertificate,
    /// The key text is not PEM.
    #[error("key file is not PEM: {0}")]
    BadKeyPem(pem::Error),
    /// There is PEM, but no private key in it.
    #[error(
        "key file has no PRIVATE KEY section (encrypted keys are not supported; is it the certificate file?)"
    )]
    NoKey,
    /// Certificate and key do not fit together, or one uses an algorithm that is not supported.
    #[error("certificate and key do not work together: {0}")]
    Unusable(#[source] rustls::Error),
    /// DTLS has no RSA here, and no Ed25519.
    #[error("DTLS for ENet needs an ECDSA key on P-256 or P-384")]
    NotElliptic,
    /// The DTLS library refuses the certificate or its own cryptography.
    #[error("cannot set up DTLS: {0}")]
    Dtls(String),
    /// A certificate could not be generated.
    #[error("cannot generate a certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

/// Makes a listener's configuration (TLS 1.2 and 1.3) of a certificate chain, leaf first, and its
/// private key (PKCS #8, PKCS #1 or SEC 1), both as PEM text. Of the cipher suites that a client
/// offers, those with AES-128-GCM come first, whatever the client's order.
///
/// # Errors
/// [`TlsConfigError`] names the text that is wrong, certificate or key, and the reason.
pub fn tls_server_config(cert_pem: &[u8], key_pem: &[u8]) -> Result<Arc<ServerConfig>, TlsConfigError> {
    let chain = certificates(cert_pem)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsConfigError::NoKey,
        other => TlsConfigError::BadKeyPem(other),
    })?;
    let mut provider = records::provider();
    provider.cipher_suites.sort_by_key(|suite| !is_aes_128(suite.suite()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsConfigError::Unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(TlsConfigError::Unusable)?;
    config.ignore_client_order = true;
    Ok(Arc::new(config))
}

/// Encryption is the largest part of what TLS costs a fan-out, and AES-256 takes 14 rounds where
/// AES-128, which TLS 1.3 requires of all implementations, takes 10.
fn is_aes_128(suite: CipherSuite) -> bool {
    use CipherSuite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        TLS13_AES_128_GCM_SHA256,
    };
    matches!(
        suite,
        TLS13_AES_128_GCM_SHA256
            | TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

/// Makes a client's configuration that trusts exactly the given certificates (PEM): authorities, or
/// a server's own self-signed one.
///
/// # Errors
/// The text holds no certificate, or one that cannot be trusted.
pub fn tls_client_config(trusted_pem: &[u8]) -> Result<Arc<ClientConfig>, TlsConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(trusted_pem)? {
        roots.add(certificate).map_err(TlsConfigError::Unusable)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(records::provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsConfigError::Unusable)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(TlsConfigError::BadCertificatePem)?;
    if chain.is_empty() { Err(TlsConfigError::NoCertificate) } else { Ok(chain) }
}

/// A self-signed certificate and its key, as PEM text.
#[derive(Clone)]
pub struct DevelopmentCertificate {
    /// The certificate; clients that should connect have to trust it.
    pub cert_pem: String,
    /// The private key; keep its file readable by its owner only.
    pub key_pem: String,
}

impl fmt::Debug for DevelopmentCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevelopmentCertificate").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// Time a generated certificate is valid: below the 398 days that browsers accept.
const VALIDITY: Duration = Duration::from_secs(390 * 86_400);

/// Generates a certificate for development, valid for `names` (host names and IP addresses) from
/// the day before `unix_now` (time since 1970) for 390 days. Each one is different.
///
/// # Errors
/// A name is not a valid DNS name.
pub fn development_certificate(
    names: &[String],
    unix_now: Duration,
) -> Result<DevelopmentCertificate, TlsConfigError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "Throng development certificate");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let date = |at: Duration| {
        let (year, month, day) = civil_date(at);
        date_time_ymd(year, month, day)
    };
    params.not_before = date(unix_now.saturating_sub(Duration::from_secs(86_400)));
    params.not_after = date(unix_now + VALIDITY);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(DevelopmentCertificate { cert_pem: certificate.pem(), key_pem: key.serialize_pem() })
}

/// Year, month and day of a time since 1970, counted from 1 March 2000 in periods of 400 years so
/// that leap days come last in every unit.
fn civil_date(unix: Duration) -> (i32, u8, u8) {
    const DAYS_TO_2000_03_01: i64 = 11_017;
    const DAYS_400_YEARS: i64 = 146_097;
    let days = (unix.as_secs() / 86_400) as i64 - DAYS_TO_2000_03_01;
    let (period, day) = (days.div_euclid(DAYS_400_YEARS), days.rem_euclid(DAYS_400_YEARS));
    let century = (day / 36_524).min(3);
    let day = day - century * 36_524;
    let four = day / 1_461;
    let day = day - four * 1_461;
    let year = (day / 365).min(3);
    let day = day - year * 365;
    let month_from_march = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month_from_march + 2) / 5 + 1;
    let year = 2000 + period * 400 + century * 100 + four * 4 + year + month_from_march / 10;
    let month = (month_from_march + 2) % 12 + 1;
    (year as i32, month as u8, day_of_month as u8)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn generate() -> DevelopmentCertificate {
        generate_at(Duration::from_secs(1_700_000_000))
    }

    fn generate_at(unix_now: Duration) -> DevelopmentCertificate {
        let names = ["localhost".to_string(), "127.0.0.1".to_string()];
        development_certificate(&names, unix_now).unwrap()
    }

    #[test]
    fn dates_follow_the_calendar() {
        let check = |secs: u64, expected| assert_eq!(civil_date(Duration::from_secs(secs)), expected);
        check(0, (1970, 1, 1));
        check(68_169_600, (1972, 2, 29));
        check(951_782_400, (2000, 2, 29));
        check(951_868_800, (2000, 3, 1));
        check(1_700_000_000, (2023, 11, 14));
        check(1_709_164_800, (2024, 2, 29));
        check(1_735_603_200, (2024, 12, 31));
        check(4_107_542_399, (2100, 2, 28));
        check(4_107_542_400, (2100, 3, 1));
    }

    #[test]
    fn generated_certificates_serve_and_can_be_trusted() {
        let one = generate();
        tls_server_config(one.cert_pem.as_bytes(), one.key_pem.as_bytes()).unwrap();
        tls_client_config(one.cert_pem.as_bytes()).unwrap();
        assert!(!format!("{one:?}").contains("PRIVATE KEY"), "the key shows in logs");
    }

    #[test]
    fn aes_128_is_chosen_over_the_client_s_order() {
        // The client compares the certificate's dates with the clock.
        let one = generate_at(SystemTime::UNIX_EPOCH.elapsed().unwrap());
        let server = tls_server_config(one.cert_pem.as_bytes(), one.key_pem.as_bytes()).unwrap();
        let check = |version: &'static rustls::SupportedProtocolVersion, expected| {
            let mut roots = RootCertStore::empty();
            roots.add(certificates(one.cert_pem.as_bytes()).unwrap().remove(0)).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            assert!(!is_aes_128(provider.cipher_suites[0].suite()), "the client prefers another");
            let client = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            let name = ServerName::try_from("localhost").unwrap();
            let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
            let mut server = rustls::ServerConnection::new(server.clone()).unwrap();
            let mut wire = Vec::new();
            while client.is_handshaking() || server.is_handshaking() {
                client.write_tls(&mut wire).unwrap();
                server.read_tls(&mut wire.as_slice()).unwrap();
                server.process_new_packets().unwrap();
                wire.clear();
                server.write_tls(&mut wire).unwrap();
                client.read_tls(&mut wire.as_slice()).unwrap();
                client.process_new_packets().unwrap();
                wire.clear();
            }
            assert_eq!(server.negotiated_cipher_suite().unwrap().suite(), expected);
        };
        check(&rustls::version::TLS13, CipherSuite::TLS13_AES_128_GCM_SHA256);
        check(&rustls::version::TLS12, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
    }

    #[test]
    fn errors_say_which_file_and_what() {
        let (one, other) = (generate(), generate());
        let (cert, key) = (one.cert_pem.as_bytes(), one.key_pem.as_bytes());
        let check = |cert: &[u8], key: &[u8], expected: &str| {
            let error = tls_server_config(cert, key).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        };
        check(key, cert, "certificate file has no CERTIFICATE section");
        check(b"", key, "certificate file has no CERTIFICATE section");
        check(cert, cert, "key file has no PRIVATE KEY section");
        check(
            b"-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n",
            key,
            "certificate file is not PEM",
        );
        check(cert, b"-----BEGIN PRIVATE KEY-----\nabc", "key file is not PEM");
        check(cert, other.key_pem.as_bytes(), "do not work together");
        assert!(development_certificate(&["not a name\u{fc}".into()], Duration::ZERO).is_err());
    }
}
