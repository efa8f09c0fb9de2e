//! Conditional requests, and bodies that are no whole representations.

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common;

use common::{Client, Server};
use hyper::StatusCode;
use throng_ddc::{IoHash, Style, Value};
use throng_ddc_server::{Listener, Rules};

const CB: &str = "Content-Type: application/x-ue-cb";
const NEW: &str = "If-None-Match: *";
const OTHER: &str = "If-Match: \"x\"";

fn object(number: u64) -> Vec<u8> {
    Value::object([("number", Value::Integer(number))]).encode(Style::Plain)
}

fn path() -> String {
    format!("/api/v1/refs/n/b/{}", IoHash::of(b"key"))
}

async fn put_ref(client: &Client, number: u64, condition: &str) -> StatusCode {
    let object = object(number);
    let hash = format!("X-Jupiter-IoHash: {:X}", IoHash::of(&object));
    client.send("PUT", &path(), &[CB, &hash, condition], object).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refs_are_read_and_changed_as_the_client_demands() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    assert_eq!(put_ref(&client, 1, OTHER).await, StatusCode::PRECONDITION_FAILED);
    assert_eq!(put_ref(&client, 1, NEW).await, StatusCode::OK);
    assert_eq!(put_ref(&client, 2, NEW).await, StatusCode::PRECONDITION_FAILED);
    assert_eq!(put_ref(&client, 2, OTHER).await, StatusCode::PRECONDITION_FAILED);
    let got = client.get(&path(), "*/*").await;
    assert_eq!(&got.body[..], object(1));
    let tag = got.header("ETag").to_owned();
    assert_eq!(tag, format!("\"{}\"", IoHash::of(&object(1))));

    for method in ["GET", "HEAD"] {
        for (condition, status) in [
            (OTHER.to_owned(), StatusCode::PRECONDITION_FAILED),
            (NEW.to_owned(), StatusCode::NOT_MODIFIED),
            (format!("If-None-Match: W/{tag}"), StatusCode::NOT_MODIFIED),
            (format!("If-Match: \"x\", {tag}"), StatusCode::OK),
            (format!("If-Match: W/{tag}"), StatusCode::PRECONDITION_FAILED),
        ] {
            let reply = client.send(method, &path(), &[&condition], "").await;
            assert_eq!(reply.status, status, "{method} {condition}");
        }
    }
    let head = client.send("HEAD", &path(), &[], "").await;
    assert_eq!(head.header("Content-Length"), object(1).len().to_string());

    assert_eq!(put_ref(&client, 2, &format!("If-Match: {tag}")).await, StatusCode::OK);
    let delete = client.send("DELETE", &path(), &[&format!("If-Match: {tag}")], "").await;
    assert_eq!(delete.status, StatusCode::PRECONDITION_FAILED);
    let delete = client.send("DELETE", &path(), &["If-Match: *"], "").await;
    assert_eq!(delete.text(), "{\"deletedCount\":1}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_and_blobs_are_changed_as_the_client_demands() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let put = async |content: &'static str, condition: &str| {
        client.send("PUT", "/kv/n/name", &[condition], content).await.status
    };
    assert_eq!(put("one", NEW).await, StatusCode::OK);
    assert_eq!(put("two", NEW).await, StatusCode::PRECONDITION_FAILED);
    assert_eq!(put("two", OTHER).await, StatusCode::PRECONDITION_FAILED);
    let got = client.send("GET", "/kv/n/name", &[], "").await;
    assert_eq!(got.text(), "one");
    let same = format!("If-Match: {}", got.header("ETag"));
    assert_eq!(put("two", &same).await, StatusCode::OK);
    assert_eq!(
        client.send("DELETE", "/kv/n/name", &[&same], "").await.status,
        StatusCode::PRECONDITION_FAILED
    );
    assert_eq!(client.send("GET", "/kv/n/name", &[], "").await.text(), "two");

    let blob = format!("/api/v1/blobs/n/{}", IoHash::of(b"two"));
    let delete = client.send("DELETE", &blob, &[OTHER], "").await;
    assert_eq!(delete.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(client.send("GET", &blob, &[], "").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_clients_that_create_a_name_one_succeeds() {
    const CLIENTS: usize = 16;
    let server = Server::start(Rules::default(), Listener::Public).await;
    let put = async |number: usize| {
        let client = server.client().await;
        client.send("PUT", "/kv/n/name", &[NEW], number.to_string()).await.status
    };
    let all = futures_util::future::join_all((0..CLIENTS).map(put)).await;
    let count = |status| all.iter().filter(|each| **each == status).count();
    assert_eq!((count(StatusCode::OK), count(StatusCode::PRECONDITION_FAILED)), (1, CLIENTS - 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_and_encoded_bodies_are_not_stored() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    for (header, status) in [
        ("Content-Range: bytes 0-3/100", StatusCode::BAD_REQUEST),
        ("Content-Encoding: gzip", StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        assert_eq!(client.send("PUT", "/kv/n/part", &[header], "part").await.status, status, "{header}");
    }
    assert_eq!(client.send("GET", "/kv/n/part", &[], "").await.status, StatusCode::NOT_FOUND);
    let identity = client.send("PUT", "/kv/n/part", &["Content-Encoding: identity"], "whole").await;
    assert_eq!(identity.status, StatusCode::OK);
}
