//! The same parser behind TLS: HTTP/1.1 and HTTP/2 by what the client offers.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode, Version, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use throng_ddc::IoHash;
use throng_ddc_server::{Listener, Node, Rules, ServeOptions, Tls, serve};
use throng_ddc_store::Options;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;

/// What a listener needs for a new certificate, and the certificate.
fn made() -> (TlsAcceptor, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has them")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("they fit");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (Arc::new(config).into(), made.cert.der().clone())
}

/// A node that serves with the given certificate.
async fn serving(tls: Tls) -> (Node, tempfile::TempDir, SocketAddr) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let node = Node::open(folder.path(), Options::default(), Rules::default()).expect("it opens");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("it is bound");
    let options = ServeOptions { tls: Some(tls), ..ServeOptions::new(Listener::Public) };
    let service = Arc::clone(node.service());
    tokio::spawn(async move { serve(listener, service, options, std::future::pending()).await });
    (node, folder, addr)
}

/// A client that trusts one certificate and speaks one protocol.
async fn connect(
    addr: SocketAddr,
    trusted: &CertificateDer<'static>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![protocol.to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let stream = TcpStream::connect(addr).await.expect("it listens");
    connector.connect(ServerName::try_from("localhost").expect("a name"), stream).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_serves_connections_to_come() {
    let (acceptor, old) = made();
    let tls = Tls::new(acceptor);
    let (_node, _folder, addr) = serving(tls.clone()).await;
    let open = connect(addr, &old, b"http/1.1").await.expect("TLS");
    let (acceptor, new) = made();
    tls.replace(acceptor);
    assert!(connect(addr, &old, b"http/1.1").await.is_err(), "the old certificate is gone");
    connect(addr, &new, b"http/1.1").await.expect("TLS");
    // A connection that is open stays so.
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(open));
    let (mut sender, connection) = handshake.await.expect("HTTP/1.1");
    tokio::spawn(connection);
    let ask = Request::get("/health/ready").header(header::HOST, "localhost").body(Full::new(Bytes::new()));
    let answer = sender.send_request(ask.expect("a valid request")).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_go_over_tls_in_both_versions() {
    let (acceptor, certificate) = made();
    let (_node, _folder, addr) = serving(Tls::new(acceptor)).await;

    // Large enough for a file, for several records and for several windows.
    let body: Bytes = (0..5_000_000_u32).map(|n| (n % 253) as u8).collect();
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(&body));
    for protocol in [&b"http/1.1"[..], b"h2"] {
        let stream = connect(addr, &certificate, protocol).await.expect("TLS");
        let stream = TokioIo::new(stream);
        let ask = |method: &str, body: Bytes| {
            Request::builder()
                .method(method)
                .uri(format!("https://localhost{path}"))
                .header(header::HOST, "localhost")
                .header(header::CONTENT_TYPE, "application/octet-stream")
                .body(Full::new(body))
                .expect("a valid request")
        };
        let (put, got) = if protocol == b"h2" {
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
            let (mut sender, connection) = handshake.await.expect("HTTP/2");
            tokio::spawn(connection);
            let put = sender.send_request(ask("PUT", body.clone())).await.expect("an answer");
            (put, sender.send_request(ask("GET", Bytes::new())).await.expect("an answer"))
        } else {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(stream).await.expect("HTTP/1.1");
            tokio::spawn(connection);
            let put = sender.send_request(ask("PUT", body.clone())).await.expect("an answer");
            let status = put.status();
            assert_eq!(put.into_body().collect().await.map(|_| status).expect("a body"), StatusCode::OK);
            // The body ends before the connection knows that it is free again.
            sender.ready().await.expect("an open connection");
            let again = sender.send_request(ask("HEAD", Bytes::new())).await.expect("an answer");
            sender.ready().await.expect("an open connection");
            (again, sender.send_request(ask("GET", Bytes::new())).await.expect("an answer"))
        };
        assert_eq!((put.status(), got.status()), (StatusCode::OK, StatusCode::OK));
        let version = if protocol == b"h2" { Version::HTTP_2 } else { Version::HTTP_11 };
        assert_eq!(got.version(), version);
        let received = got.into_body().collect().await.expect("a whole body").to_bytes();
        assert!(received == body, "{} of {} bytes", received.len(), body.len());
    }
}
