//! Certificates of tests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// What a listener for `localhost` needs that speaks these protocols, and its certificate.
pub(crate) fn certificate(protocols: &[&[u8]]) -> (tokio_rustls::TlsAcceptor, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    (Arc::new(config).into(), made.cert.der().clone())
}

/// A client's settings that trusts these.
pub(crate) fn trusting(certificates: &[CertificateDer<'static>]) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// A connection to `localhost` with one protocol on offer.
pub(crate) async fn connect(
    addr: SocketAddr,
    trusted: &[CertificateDer<'static>],
    protocol: &[u8],
) -> io::Result<TlsStream<TcpStream>> {
    let mut client = trusting(trusted);
    client.alpn_protocols = vec![protocol.to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let stream = TcpStream::connect(addr).await?;
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
}
