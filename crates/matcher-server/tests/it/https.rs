//! The JSON listener behind TLS: HTTP/1.1 and HTTP/2 by what the client offers.

#[allow(dead_code)]
use crate::support;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, Version, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use support::tls::{certificate, connect};
use support::{Server, join, serve_behind};
use throng_admin::Tls;

type Trusted = Vec<rustls::pki_types::CertificateDer<'static>>;

fn serving() -> (Server, Trusted) {
    let (acceptor, certificate) = certificate(&[b"h2", b"http/1.1"]);
    (serve_behind(Some(Tls::new(acceptor)), "", 64), vec![certificate])
}

fn post(method: &str, body: &Value) -> Request<Full<Bytes>> {
    Request::post(format!("https://localhost/matcher/v1/{method}"))
        .header(header::HOST, "localhost")
        .header("x-server-id", "web")
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap()
}

async fn read(answer: Response<Incoming>) -> (StatusCode, Version, Value) {
    let (status, version) = (answer.status(), answer.version());
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, version, serde_json::from_slice(&body).unwrap())
}

#[test]
fn http_1_is_served_to_who_offers_it() {
    let (server, trusted) = serving();
    server.runtime.block_on(async {
        let stream = TokioIo::new(connect(server.addr, &trusted, b"http/1.1").await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        for (role, created) in [("a", true), ("b", false)] {
            sender.ready().await.unwrap();
            let answer = sender.send_request(post("RoleJoinRandomRoom", &join(role))).await.unwrap();
            let (status, version, body) = read(answer).await;
            assert_eq!((status, version), (StatusCode::OK, Version::HTTP_11));
            assert_eq!(body["Created"], json!(created), "{body}");
        }
    });
}

#[test]
fn requests_and_events_share_a_connection_of_http_2() {
    let (server, trusted) = serving();
    server.runtime.block_on(async {
        let stream = TokioIo::new(connect(server.addr, &trusted, b"h2").await.unwrap());
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        sender.ready().await.unwrap();
        let listen =
            Request::get("https://localhost/matcher/v1/notify?srv=web").body(Full::default()).unwrap();
        let events = sender.send_request(listen).await.unwrap();
        assert_eq!((events.status(), events.version()), (StatusCode::OK, Version::HTTP_2));
        let mut events = events.into_body();
        let mut told = String::new();
        // Where the stream stands comes first: from then on it misses nothing.
        while !told.contains("\n\n") {
            let part = events.frame().await.unwrap().unwrap().into_data().unwrap();
            told.push_str(std::str::from_utf8(&part).unwrap());
        }
        let mut answers = Vec::new();
        for role in ["a", "b", "c"] {
            sender.ready().await.unwrap();
            answers.push(sender.send_request(post("RoleJoinRandomRoom", &join(role))));
        }
        for answer in answers {
            let (status, version, body) = read(answer.await.unwrap()).await;
            assert_eq!((status, version), (StatusCode::OK, Version::HTTP_2), "{body}");
        }
        while !told.contains("[\"c\"]") {
            let part = events.frame().await.unwrap().unwrap().into_data().unwrap();
            told.push_str(std::str::from_utf8(&part).unwrap());
        }
        sender.ready().await.unwrap();
        let refused = sender.send_request(post("GetRoomInfo", &json!({"RoomID": "none"}))).await.unwrap();
        let (status, _, problem) = read(refused).await;
        assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("NOT_FOUND")));
    });
}

#[test]
fn without_trust_or_without_tls_nothing_is_served() {
    let (server, _) = serving();
    server.runtime.block_on(async {
        assert!(connect(server.addr, &[], b"h2").await.is_err(), "the certificate is not trusted");
        let plain = TokioIo::new(tokio::net::TcpStream::connect(server.addr).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(plain).await.unwrap();
        tokio::spawn(connection);
        assert!(sender.send_request(post("Ping", &json!({}))).await.is_err(), "no answer in the clear");
    });
}
