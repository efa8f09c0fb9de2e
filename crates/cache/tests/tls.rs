//! The same parser behind TLS: HTTP/1.1 and HTTP/2 by what the client offers.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode, Version, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use throng_cache::{Listener, Node, Rules, ServeOptions, serve};
use throng_ddc::IoHash;
use throng_store::Options;
use tokio::net::{TcpListener, TcpStream};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_go_over_tls_in_both_versions() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let mut server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring has them")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("they fit");
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let node = Node::open(folder.path(), Options::default(), Rules::default()).expect("it opens");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("it is bound");
    let tls = Some(throng_cache::Tls::new(Arc::new(server).into()));
    let options = ServeOptions { listener: Listener::Public, connections_max: 10, tls };
    let service = Arc::clone(node.service());
    tokio::spawn(async move { serve(listener, service, options, std::future::pending()).await });

    // Large enough for a file, for several records and for several windows.
    let body: Bytes = (0..5_000_000_u32).map(|n| (n % 253) as u8).collect();
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(&body));
    for protocol in [&b"http/1.1"[..], b"h2"] {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("a certificate");
        let mut client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![protocol.to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let stream = TcpStream::connect(addr).await.expect("it listens");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TokioIo::new(connector.connect(name, stream).await.expect("TLS"));
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
            let again = sender.send_request(ask("HEAD", Bytes::new())).await.expect("an answer");
            (again, sender.send_request(ask("GET", Bytes::new())).await.expect("an answer"))
        };
        assert_eq!((put.status(), got.status()), (StatusCode::OK, StatusCode::OK));
        let version = if protocol == b"h2" { Version::HTTP_2 } else { Version::HTTP_11 };
        assert_eq!(got.version(), version);
        let received = got.into_body().collect().await.expect("a whole body").to_bytes();
        assert!(received == body, "{} of {} bytes", received.len(), body.len());
    }
}
