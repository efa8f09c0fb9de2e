//! Memory that bodies and answers to batches hold.

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common;

use common::{Client, Reply, Server};
use hyper::StatusCode;
use throng_ddc::{Document, IoHash, Style, Value};
use throng_ddc_server::{Listener, Rules};

const CB: &str = "Content-Type: application/x-ue-cb";

async fn server(memory_bytes_max: u64) -> Server {
    Server::start(Rules { memory_bytes_max, ..Rules::default() }, Listener::Public).await
}

fn key() -> String {
    IoHash::of(b"key").to_string()
}

async fn put_object(client: &Client, len: usize) -> Vec<u8> {
    let object = Value::object([("content", Value::Binary(vec![7; len]))]).encode(Style::Plain);
    let hash = format!("X-Jupiter-IoHash: {:X}", IoHash::of(&object));
    let path = format!("/api/v1/refs/n/b/{}", key());
    let reply = client.send("PUT", &path, &[CB, &hash], object.clone()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    object
}

/// Asks for the ref `count` times in one batch.
async fn gets(client: &Client, count: u64) -> Reply {
    let op = |id: u64| {
        Value::object([
            ("opId", Value::Integer(id)),
            ("op", Value::string("GET")),
            ("bucket", Value::string("b")),
            ("key", Value::string(&key())),
        ])
    };
    let request = Value::object([("ops", Value::Array((0..count).map(op).collect()))]).encode(Style::Plain);
    client.send("POST", "/api/v1/refs/n", &[CB], request).await
}

/// Codes of the answers, of which the good ones have the object.
fn codes(reply: &Reply, object: &[u8]) -> Vec<i128> {
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    let document = Document::parse(&reply.body).expect("a document");
    let results = document.get("results").expect("results");
    let code = |result: throng_ddc::Field<'_>| {
        let code = result.get("statusCode").and_then(|code| code.integer()).expect("a code");
        let response = result.get("response").and_then(|response| response.to_document_bytes());
        assert_eq!(response.expect("a response") == object, code == 200);
        code
    };
    results.iter().map(code).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_exceed_the_memory_of_all_are_refused_and_leave_nothing_behind() {
    let server = server(1 << 20).await;
    for (path, kind) in [("refs/n", CB), ("blobs", "Content-Type: application/json")] {
        let client = server.client().await;
        let path = format!("/api/v1/{path}");
        let reply = client.send("POST", &path, &[kind], vec![b' '; 2 << 20]).await;
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{}", reply.text());
        assert_eq!(reply.header("Retry-After"), "1");
        assert!(reply.text().contains("1048576 bytes"), "{}", reply.text());
        // Its share is there for others.
        let half = server.client().await.send("POST", &path, &[kind], vec![b' '; 512 << 10]).await;
        assert_eq!(half.status, StatusCode::BAD_REQUEST, "{}", half.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_holds_at_most_the_memory_of_all() {
    const COUNT: u64 = 40;
    let server = server(1 << 20).await;
    let client = server.client().await;
    let object = put_object(&client, 60 << 10).await;
    let codes_of_all = codes(&gets(&client, COUNT).await, &object);
    let held = codes_of_all.iter().filter(|code| **code == 200).count();
    assert!((1..=17).contains(&held), "{codes_of_all:?}");
    assert_eq!(codes_of_all.iter().filter(|code| **code == 503).count(), COUNT as usize - held);
    assert_eq!(codes(&gets(&client, 10).await, &object), [200; 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_objects_are_read_as_the_client_takes_them() {
    let server = server(10 << 20).await;
    let client = server.client().await;
    let object = put_object(&client, 8 << 20).await;
    assert_eq!(codes(&gets(&client, 7).await, &object), [200; 7]);
}
