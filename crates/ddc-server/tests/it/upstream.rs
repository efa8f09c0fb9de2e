//! Refs of a node with an upstream: its own ones, and copies of the upstream's.

#![cfg(feature = "object-storage")]

use std::net::SocketAddr;
use std::time::Duration;

use hyper::StatusCode;
use throng_ddc::{Document, IoHash, Style, Value};
use throng_ddc_server::{Listener, NamespaceRules, Node, Origin, Rules, Upstream, UpstreamOptions};
use throng_ddc_store::{Options, Quotas};

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common::{Client, Reply, Server};
use crate::s3;

const CB: &str = "application/x-ue-cb";
const OCTETS: &str = "Content-Type: application/octet-stream";

/// A node that asks its upstream about each copy again.
async fn edge(upstream: SocketAddr) -> Server {
    edge_with(upstream, NamespaceRules::default()).await
}

async fn edge_with(upstream: SocketAddr, default: NamespaceRules) -> Server {
    let origin = Origin::Upstream(Box::new(Upstream::new(UpstreamOptions {
        url: format!("http://{upstream}"),
        authorization: None,
        timeout: Duration::from_secs(60),
        miss: Duration::ZERO,
        tls: s3::tls(),
    })));
    let rules = Rules { upstream_fresh: Duration::ZERO, default, ..Rules::default() };
    let folder = tempfile::tempdir().expect("a temporary folder");
    Server::start_in(folder, Options::default(), rules, Listener::Internal, origin).await
}

fn path(name: &str) -> String {
    format!("/api/v1/refs/game/default/{}", IoHash::of(name.as_bytes()))
}

fn object(text: &str) -> Vec<u8> {
    Value::object([("text", Value::string(text))]).encode(Style::Plain)
}

/// An object that refers to a blob.
fn record(blob: &[u8]) -> Vec<u8> {
    Value::object([("Data", Value::BinaryAttachment(IoHash::of(blob)))]).encode(Style::Plain)
}

async fn put(client: &Client, path: &str, object: &[u8]) -> Reply {
    let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(object));
    client.send("PUT", path, &[&format!("Content-Type: {CB}"), &hash], object.to_vec()).await
}

async fn put_blob(client: &Client, blob: &[u8]) {
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(blob));
    assert_eq!(client.send("PUT", &path, &[OCTETS], blob.to_vec()).await.status, StatusCode::OK);
}

/// Status and body of a ref of a batch.
async fn batch(client: &Client, op: &str, name: &str) -> (i128, Option<Vec<u8>>) {
    let op = Value::object([
        ("opId", Value::Integer(1)),
        ("op", Value::string(op)),
        ("bucket", Value::string("default")),
        ("key", Value::string(&IoHash::of(name.as_bytes()).to_string())),
    ]);
    let request = Value::object([("ops", Value::Array(vec![op]))]).encode(Style::Plain);
    let headers = ["Content-Type: application/x-ue-cb", "Accept: application/x-ue-cb"];
    let reply = client.send("POST", "/api/v1/refs/game", &headers, request).await;
    let document = Document::parse(&reply.body).expect("a document");
    let results = document.get("results").expect("results");
    let result = results.iter().next().expect("a result");
    let status = result.get("statusCode").and_then(|field| field.integer()).expect("a status");
    (status, result.get("response").and_then(|response| response.to_document_bytes()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_in_steps_is_finalised_whatever_the_upstream_has() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let default = NamespaceRules { overwrite_refs: true, ..NamespaceRules::default() };
    let edge = edge_with(core.addr, default).await;
    let client = edge.client().await;
    // With nothing here, a copy of the upstream's value, and an own value.
    for (name, read_before, own_before) in
        [("nothing", false, false), ("copy", true, false), ("own", false, true)]
    {
        let path = path(name);
        assert_eq!(put(&far, &path, &object("of the upstream")).await.status, StatusCode::OK);
        if read_before {
            assert_eq!(client.get(&path, CB).await.body, object("of the upstream"));
        }
        if own_before {
            assert_eq!(put(&client, &path, &object("acknowledged")).await.text(), r#"{"needs":[]}"#);
        }
        let blob = name.as_bytes().repeat(100);
        let record = record(&blob);
        let needs = put(&client, &path, &record).await;
        assert_eq!(needs.text().to_lowercase(), format!(r#"{{"needs":["{}"]}}"#, IoHash::of(&blob)));
        // As without an upstream: a client does not take it for a hit.
        assert_eq!(client.get(&path, CB).await.status, StatusCode::BAD_REQUEST, "{name}");
        assert_eq!(client.send("HEAD", &path, &[], "").await.status, StatusCode::NOT_FOUND, "{name}");
        put_blob(&client, &blob).await;
        let asked = core.service().stats().requests;
        let finalise = format!("{path}/finalize/{}", IoHash::of(&record));
        let finalised = client.send("POST", &finalise, &[], "").await;
        assert_eq!((finalised.status, finalised.text()), (StatusCode::OK, r#"{"needs":[]}"#), "{name}");
        assert_eq!(core.service().stats().requests, asked, "the upstream is not asked");
        assert_eq!(client.get(&path, CB).await.body, record, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_was_served_once_outlives_the_upstream() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let edge = edge(core.addr).await;
    let client = edge.client().await;
    let long = object(&"long".repeat(50_000));
    let blob = vec![7; 3_000];
    for (name, object) in [("long", &long), ("batch", &long), ("short batch", &object("short"))] {
        assert_eq!(put(&far, &path(name), object).await.text(), r#"{"needs":[]}"#);
    }
    put_blob(&far, &blob).await;
    assert_eq!(put(&far, &path("record"), &record(&blob)).await.text(), r#"{"needs":[]}"#);
    let action = format!("/game/ac/{}", "01".repeat(32));
    for entry in ["/kv/game/entry", &action] {
        assert_eq!(far.send("PUT", entry, &[], blob.clone()).await.status, StatusCode::OK);
    }

    let check = async |when: &str| {
        assert!(client.get(&path("long"), CB).await.body == long, "{when}");
        assert!(batch(&client, "GET", "batch").await == (200, Some(long.clone())), "{when}");
        assert_eq!(batch(&client, "GET", "short batch").await, (200, Some(object("short"))), "{when}");
        assert_eq!(client.get(&path("record"), CB).await.body, record(&blob), "{when}");
        let attachment = format!("/api/v1/blobs/game/{}", IoHash::of(&blob));
        assert_eq!(client.get(&attachment, "*/*").await.body, blob, "{when}");
        for entry in ["/kv/game/entry", &action] {
            assert_eq!(client.get(entry, "*/*").await.body, blob, "{when}, {entry}");
        }
    };
    check("first").await;
    drop(core.stop());
    check("without the upstream").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_older_is_served_when_the_upstream_ends() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let edge = edge(core.addr).await;
    let client = edge.client().await;
    let [one, two] = [vec![1; 2_000], vec![2; 2_000]];
    for blob in [&one, &two] {
        put_blob(&far, blob).await;
        for name in ["get", "head", "batch", "exists"] {
            let record = record(blob);
            let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&record));
            let headers =
                ["Content-Type: application/x-ue-cb", hash.as_str(), "X-Jupiter-Allow-Overwrite: true"];
            let reply = far.send("PUT", &path(name), &headers, record).await;
            assert_eq!(reply.text(), r#"{"needs":[]}"#);
        }
        assert_eq!(far.send("PUT", "/kv/game/entry", &[], blob.clone()).await.status, StatusCode::OK);
        if *blob == one {
            for name in ["get", "head", "batch", "exists"] {
                assert_eq!(client.get(&path(name), CB).await.body, record(&one));
            }
            assert_eq!(client.get("/kv/game/entry", "*/*").await.body, one);
        }
    }
    // Every kind of look-up learns that there is a newer value.
    assert_eq!(client.get(&path("get"), CB).await.body, record(&two));
    assert_eq!(client.send("HEAD", &path("head"), &[], "").await.status, StatusCode::OK);
    assert_eq!(batch(&client, "GET", "batch").await, (200, Some(record(&two))));
    let name = format!("default.{}", IoHash::of(b"exists"));
    let exists = client.get(&format!("/api/v1/refs/game/exists?names={name}"), "*/*").await;
    assert_eq!(exists.text(), r#"{"missing":[]}"#);
    assert_eq!(client.get("/kv/game/entry", "*/*").await.body, two);
    drop(core.stop());
    for name in ["get", "head", "batch", "exists"] {
        assert_eq!(client.get(&path(name), CB).await.body, record(&two), "{name}");
    }
    assert_eq!(client.get("/kv/game/entry", "*/*").await.body, two);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_keeps_copies_of_the_upstream_apart_from_own_refs() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let first = edge(core.addr).await;
    let client = first.client().await;
    assert_eq!(put(&far, &path("copy"), &object("one")).await.text(), r#"{"needs":[]}"#);
    assert_eq!(client.get(&path("copy"), CB).await.body, object("one"));
    assert_eq!(put(&client, &path("own"), &object("own")).await.text(), r#"{"needs":[]}"#);
    let mut stream = Vec::new();
    let taken = Node::export(first.service().store(), None, &mut stream).expect("memory");
    assert_eq!(taken.refs, 2);

    let second = edge(core.addr).await;
    let service = std::sync::Arc::clone(second.service());
    let imported = tokio::task::spawn_blocking(move || service.import(&mut &stream[..]));
    assert_eq!(imported.await.expect("no panic").expect("a valid stream"), taken);
    assert_eq!(far.send("DELETE", &path("copy"), &[], "").await.status, StatusCode::OK);
    assert_eq!(put(&far, &path("copy"), &object("two")).await.text(), r#"{"needs":[]}"#);
    assert_eq!(put(&far, &path("own"), &object("of the upstream")).await.text(), r#"{"needs":[]}"#);
    let client = second.client().await;
    assert_eq!(client.get(&path("copy"), CB).await.body, object("two"));
    assert_eq!(client.get(&path("own"), CB).await.body, object("own"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_the_upstream_yield_to_uploads_under_a_quota() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let edge = edge(core.addr).await;
    let quotas = Quotas { default: Some(300_000), ..Quotas::default() };
    edge.service().set_rules(Rules { quotas, upstream_fresh: Duration::ZERO, ..Rules::default() });
    let client = edge.client().await;
    let mut copies = Vec::new();
    for number in 1..=5 {
        let blob = vec![number; 80_000];
        let path = format!("/kv/game/copy{number}");
        assert_eq!(far.send("PUT", &path, &[], blob.clone()).await.status, StatusCode::OK);
        assert!(client.get(&path, "*/*").await.body == blob, "{path}");
        copies.push((path, blob));
    }
    let is_kept = |blob: &Vec<u8>| {
        let found = edge.service().store().has_blob(&"game".parse().expect("a name"), &IoHash::of(blob));
        found.expect("it can be asked")
    };
    assert!(is_kept(&copies[0].1) && !is_kept(&copies[4].1), "the quota is reached");
    // Own refs are not copies: they stay, and are refused when there is room for no more.
    let mut statuses = Vec::new();
    for number in 11..=14 {
        let reply = client.send("PUT", &format!("/kv/game/own{number}"), &[], vec![number; 80_000]).await;
        statuses.push(reply.status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 507]);
    for number in 11..=13 {
        let got = client.get(&format!("/kv/game/own{number}"), "*/*").await;
        assert!(got.body == vec![number; 80_000], "{number}: {}", got.status);
    }
    // The copies are served from the upstream.
    for (path, blob) in copies {
        assert!(client.get(&path, "*/*").await.body == blob, "{path}");
    }
}

/// A node with an upstream whose namespaces may hold 300,000 bytes each.
async fn edge_under_a_quota(upstream: SocketAddr) -> Server {
    let edge = edge(upstream).await;
    let quotas = Quotas { default: Some(300_000), ..Quotas::default() };
    edge.service().set_rules(Rules { quotas, ..Rules::default() });
    edge
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_without_a_ref_leave_half_of_a_quota_to_uploads() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let edge = edge_under_a_quota(core.addr).await;
    let client = edge.client().await;
    let mut names = Vec::new();
    for number in 1..=8 {
        let blob = vec![number; 70_000];
        put_blob(&far, &blob).await;
        names.push(IoHash::of(&blob).to_string());
    }
    // The first are fetched side by side.
    let ask = format!(
        "/api/v1/blobs/game/exists?{}",
        names.iter().map(|name| format!("id={name}&")).collect::<String>()
    );
    assert_eq!(client.send("POST", ask.trim_end_matches('&'), &[], "").await.text(), r#"{"needs":[]}"#);
    for (name, number) in names.iter().zip(1..) {
        let path = format!("/api/v1/blobs/game/{name}");
        assert!(client.get(&path, "*/*").await.body == vec![number; 70_000], "{path}");
    }
    for number in 11..=12 {
        let reply = client.send("PUT", &format!("/kv/game/own{number}"), &[], vec![number; 70_000]).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_never_fits_takes_no_copies_along() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let edge = edge_under_a_quota(core.addr).await;
    let client = edge.client().await;
    assert_eq!(far.send("PUT", "/kv/game/copy", &[], vec![1; 70_000]).await.status, StatusCode::OK);
    assert!(client.get("/kv/game/copy", "*/*").await.body == vec![1; 70_000]);
    let refused = client.send("PUT", "/kv/game/own", &[], vec![2; 300_001]).await;
    assert_eq!(refused.status, StatusCode::INSUFFICIENT_STORAGE);
    drop(core.stop());
    assert!(client.get("/kv/game/copy", "*/*").await.body == vec![1; 70_000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_that_is_uploaded_again_outlasts_the_ref_that_reached_it() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let edge = edge_under_a_quota(core.addr).await;
    let client = edge.client().await;
    let shared = vec![1; 70_000];
    assert_eq!(far.send("PUT", "/kv/game/copy", &[], shared.clone()).await.status, StatusCode::OK);
    assert!(client.get("/kv/game/copy", "*/*").await.body == shared);
    put_blob(&client, &shared).await;
    // The copy makes room for the last of them.
    for number in 11..=14 {
        let reply = client.send("PUT", &format!("/kv/game/own{number}"), &[], vec![number; 65_000]).await;
        assert_eq!(reply.status.is_success(), number < 14, "{number}");
    }
    drop(core.stop());
    assert_eq!(client.get("/kv/game/copy", "*/*").await.status, StatusCode::NOT_FOUND);
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(&shared));
    assert!(client.get(&path, "*/*").await.body == shared);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_whose_object_is_gone_is_fetched_again() {
    // Objects are no blobs of this upstream.
    let options = Options { inline_bytes_max: 1 << 20, ..Options::default() };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let core = Server::start_in(folder, options, Rules::default(), Listener::Public, Origin::Alone).await;
    let edge = edge(core.addr).await;
    let client = edge.client().await;
    let long = object(&"long".repeat(50_000));
    assert_eq!(put(&core.client().await, &path("long"), &long).await.text(), r#"{"needs":[]}"#);
    let blob = format!("/api/v1/blobs/game/{}", IoHash::of(&long));
    for _ in 0..2 {
        assert!(client.get(&path("long"), CB).await.body == long);
        assert_eq!(client.send("DELETE", &blob, &[], "").await.status, StatusCode::NO_CONTENT);
    }
}
