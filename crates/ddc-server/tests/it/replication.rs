//! The replication log, snapshots, and what namespaces may hold.

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common;

use common::{Client, Server};
use hyper::StatusCode;
use serde_json::Value as Json;
use throng_ddc::{IoHash, Style, Value};
use throng_ddc_server::{Listener, Origin, Rules};
use throng_ddc_store::{Options, Quotas};

const OCTETS: &str = "Content-Type: application/octet-stream";

async fn node(rules: Rules, listener: Listener) -> Server {
    let options = Options { replication_log: true, ..Options::default() };
    let folder = tempfile::tempdir().expect("a temporary folder");
    Server::start_in(folder, options, rules, listener, Origin::Alone).await
}

fn path(name: &str) -> String {
    format!("/api/v1/refs/game/assets/{}", IoHash::of(name.as_bytes()))
}

async fn put(client: &Client, name: &str, object: &[u8]) {
    let hash = format!("X-Jupiter-IoHash: {:X}", IoHash::of(object));
    let headers = ["Content-Type: application/x-ue-cb", hash.as_str()];
    let reply = client.send("PUT", &path(name), &headers, object.to_vec()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
}

fn plain(text: &str) -> Vec<u8> {
    Value::object([("name", Value::string(text))]).encode(Style::Plain)
}

async fn events(client: &Client, query: &str) -> Vec<Json> {
    let reply = client.get(&format!("/api/v1/replication-log/incremental/game{query}"), "*/*").await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    let json: Json = serde_json::from_slice(&reply.body).expect("JSON");
    json["events"].as_array().expect("a list").clone()
}

fn after(event: &Json) -> String {
    let text = |name: &str| event[name].as_str().expect("text").to_owned();
    format!("?lastBucket={}&lastEvent={}", text("timeBucket"), text("eventId"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refs_that_come_and_go_are_told_in_order() {
    let server = node(Rules::default(), Listener::Internal).await;
    let client = server.client().await;
    put(&client, "one", &plain("one")).await;
    // Nothing is told of a ref that is not finalised, until it is.
    let missing = b"missing";
    let attachment = Value::BinaryAttachment(IoHash::of(missing));
    let object = Value::object([("payload", attachment)]).encode(Style::Plain);
    put(&client, "two", &object).await;
    assert_eq!(events(&client, "").await.len(), 1);
    let blob = format!("/api/v1/blobs/game/{}", IoHash::of(missing));
    assert_eq!(client.send("PUT", &blob, &[OCTETS], &missing[..]).await.status, StatusCode::OK);
    let finalise = format!("{}/finalize/{}", path("two"), IoHash::of(&object));
    assert_eq!(client.send("POST", &finalise, &[], "").await.status, StatusCode::OK);
    // What changes nothing is no event.
    put(&client, "one", &plain("one")).await;
    assert_eq!(client.send("POST", &finalise, &[], "").await.status, StatusCode::OK);
    put(&client, "one", &plain("other")).await;
    assert_eq!(client.send("DELETE", &path("two"), &[], "").await.status, StatusCode::OK);
    assert_eq!(client.send("DELETE", &path("two"), &[], "").await.status, StatusCode::OK);

    let told = events(&client, "").await;
    let brief: Vec<(String, String, u64)> = told
        .iter()
        .map(|event| {
            let text = |name: &str| event[name].as_str().expect("text").to_owned();
            assert_eq!((text("namespace"), text("bucket")), ("game".to_owned(), "assets".to_owned()));
            (text("key"), text("blob"), event["op"].as_u64().expect("a number"))
        })
        .collect();
    let key = |name: &str| IoHash::of(name.as_bytes()).to_string();
    let hash = |object: &[u8]| format!("{:X}", IoHash::of(object));
    assert_eq!(
        brief,
        [
            (key("one"), hash(&plain("one")), 0),
            (key("two"), hash(&object), 0),
            (key("one"), hash(&plain("other")), 0),
            (key("two"), hash(&object), 1),
        ]
    );
    for (index, event) in told.iter().enumerate() {
        assert_eq!(events(&client, &after(event)).await, told[index + 1..]);
    }
    assert_eq!(events(&client, "?count=2").await, told[..2]);
    // The current five minutes began before all of this, unless they began during it.
    let now = events(&client, "?lastBucket=now").await;
    assert!(told.ends_with(&now));
    for query in ["?lastBucket=rep-1", "?lastEvent=0", "?lastBucket=x&lastEvent=0", "?count=x"] {
        let reply = client.get(&format!("/api/v1/replication-log/incremental/game{query}"), "*/*").await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_too_late_begins_with_a_snapshot() {
    let server = node(Rules::default(), Listener::Internal).await;
    let client = server.client().await;
    for name in ["one", "two", "three"] {
        put(&client, name, &plain(name)).await;
    }
    let told = events(&client, "").await;
    let create = "/api/v1/replication-log/snapshots/game/create";
    let mut blobs = Vec::new();
    for _ in 0..3 {
        let made: Json =
            serde_json::from_slice(&client.send("POST", create, &[], "").await.body).expect("JSON");
        blobs.push(made["snapshotBlobId"].as_str().expect("a hash").to_owned());
    }
    let listed = client.get("/api/v1/replication-log/snapshots/game", "*/*").await;
    let listed: Json = serde_json::from_slice(&listed.body).expect("JSON");
    let listed = listed["snapshots"].as_array().expect("a list");
    assert!(!listed.is_empty() && listed.len() <= 2, "{listed:?}");
    let newest = listed.last().expect("one")["snapshotBlob"].as_str().expect("a hash");
    assert_eq!(newest, blobs[2]);

    let snapshot = client.get(&format!("/api/v1/blobs/game/{newest}"), "*/*").await;
    let lines: Vec<Json> =
        snapshot.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 4);
    let cursor = format!(
        "?lastBucket={}&lastEvent={}",
        lines[0]["lastBucket"].as_str().expect("text"),
        lines[0]["lastEvent"].as_str().expect("text")
    );
    assert_eq!(cursor, after(&told[2]));
    // Nobody but the snapshot needs its blob, and it stays.
    server.service().collect().expect("the disk works");
    put(&client, "four", &plain("four")).await;
    assert_eq!(events(&client, &cursor).await.len(), 1);

    server.service().forget_events(std::time::Duration::ZERO);
    let late =
        client.get(&format!("/api/v1/replication-log/incremental/game{}", after(&told[0])), "*/*").await;
    let problem: Json = serde_json::from_slice(&late.body).expect("JSON");
    assert_eq!(late.status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["type"], "http://jupiter.epicgames.com/replication/useSnapshot");
    assert_eq!(
        (&problem["SnapshotId"], &problem["BlobNamespace"]),
        (&Json::from(newest), &Json::from("game"))
    );
    put(&client, "five", &plain("five")).await;
    assert_eq!(events(&client, "").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_for_internal_listeners_of_nodes_that_keep_one() {
    let route = "/api/v1/replication-log/incremental/game";
    let public = node(Rules::default(), Listener::Public).await;
    assert_eq!(public.client().await.get(route, "*/*").await.status, StatusCode::NOT_FOUND);
    let without = Server::start(Rules::default(), Listener::Internal).await;
    let reply = without.client().await.get(route, "*/*").await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    assert!(reply.text().contains("replication/noReplicationData"), "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_holds_what_it_may_and_no_more() {
    let quotas = Quotas {
        namespaces: [("game".parse().expect("a name"), 3_000_000)].into(),
        default: Some(100),
        ..Quotas::default()
    };
    let server = node(Rules { quotas, ..Rules::default() }, Listener::Internal).await;
    let client = server.client().await;
    let send = async |namespace: &str, body: Vec<u8>| {
        client.send("POST", &format!("/api/v1/blobs/{namespace}"), &[OCTETS], body).await.status
    };
    assert_eq!(send("other", vec![1; 100]).await, StatusCode::OK);
    let full = client.send("POST", "/api/v1/blobs/other", &[OCTETS], vec![2; 1]).await;
    assert_eq!(full.status, StatusCode::INSUFFICIENT_STORAGE);
    assert!(full.text().contains("namespace other"), "{}", full.text());
    assert_eq!(send("other", vec![1; 100]).await, StatusCode::OK, "what is there is no more");
    // Small ones and large ones, at the same time.
    assert_eq!(send("game", vec![1; 2_000_000]).await, StatusCode::OK);
    let mut sent = tokio::task::JoinSet::new();
    for number in 0..20_u8 {
        let client = server.client().await;
        sent.spawn(async move {
            client.send("POST", "/api/v1/blobs/game", &[OCTETS], vec![number + 2; 100_000]).await.status
        });
    }
    let statuses = sent.join_all().await;
    let taken = statuses.iter().filter(|status| **status == StatusCode::OK).count();
    assert_eq!(taken, 10, "{statuses:?}");
    assert_eq!(send("game", vec![9; 1_200_000]).await, StatusCode::INSUFFICIENT_STORAGE);
    // Space that is given up can be used again, also what a process finds when it starts.
    let large = format!("/api/v1/blobs/game/{}", IoHash::of(&vec![1; 2_000_000]));
    assert_eq!(client.send("DELETE", &large, &[], "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(send("game", vec![9; 1_200_000]).await, StatusCode::OK);
    let usage = server.service().store().usage(&"game".parse().expect("a name")).expect("the disk works");
    assert_eq!(usage.blob_bytes, 2_200_000);
    server.service().set_rules(Rules::default());
    assert_eq!(send("other", vec![3; 1000]).await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_replaced_refs_reached_is_not_in_the_way_of_a_quota() {
    let quotas = Quotas { default: Some(4_000_000), ..Quotas::default() };
    let server = node(Rules { quotas, ..Rules::default() }, Listener::Internal).await;
    let client = server.client().await;
    let path = |name: &str| format!("/api/v1/refs/game/default/{}", IoHash::of(name.as_bytes()));
    let put = async |name: &str, value: Vec<u8>| {
        let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&value));
        client.send("PUT", &path(name), &[OCTETS, &hash], value).await
    };
    // Another ref shares a value with the one that is replaced, and an upload waits for its ref.
    let (shared, waiting) = (vec![0; 300_000], vec![1; 300_000]);
    assert_eq!(put("other", shared.clone()).await.status, StatusCode::OK);
    assert_eq!(put("same", shared.clone()).await.status, StatusCode::OK);
    let upload = client.send("POST", "/api/v1/blobs/game", &[OCTETS], waiting.clone()).await;
    assert_eq!(upload.status, StatusCode::OK);
    // Small values and large ones, replaced and deleted.
    for number in 2..30_u8 {
        let value = vec![number; if number % 3 == 0 { 1_200_000 } else { 500_000 }];
        // Every other one is uploaded again, so that it may wait for another ref.
        for _ in 0..=number % 2 {
            let reply = put("same", value.clone()).await;
            assert_eq!(reply.status, StatusCode::OK, "value {number}: {}", reply.text());
        }
        assert_eq!(client.get(&format!("{}.raw", path("same")), "*/*").await.body, value);
        if number % 5 == 0 {
            assert_eq!(client.send("DELETE", &path("same"), &[], "").await.status, StatusCode::OK);
        }
    }
    assert_eq!(client.get(&format!("{}.raw", path("other")), "*/*").await.body, shared);
    let blob = format!("/api/v1/blobs/game/{}", IoHash::of(&waiting));
    assert_eq!(client.get(&blob, "*/*").await.body, waiting);
    // Blobs that refs reach are in the way, and the answer says what to do.
    let mut refused = None;
    for number in 30..40_u8 {
        let reply = put(&format!("held {number}"), vec![number; 500_000]).await;
        if reply.status != StatusCode::OK {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("the namespace is full");
    assert_eq!(refused.status, StatusCode::INSUFFICIENT_STORAGE);
    for part in ["4000000 bytes", "delete refs", "ddc.refs_unused_days", "ddc.quotas"] {
        assert!(refused.text().contains(part), "{part}: {}", refused.text());
    }
    let size = server.service().store().size_of(&"game".parse().expect("a name")).expect("readable");
    assert!((3_000_000..=4_000_000).contains(&size), "{size} bytes");
}
