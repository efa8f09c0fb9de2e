//! Nodes that share a bucket of an S3 server, and a node that fills itself from another.

#![cfg(feature = "object-storage")]

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::build_cache::{output_file, sha256};
use crate::common;
use crate::s3;

use std::io::Cursor;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Client, Server};
use hyper::StatusCode;
use s3::S3;
use throng_ddc::compressed::{compress_lz4, wrap_oodle};
use throng_ddc::{IoHash, Style, Value};
use throng_ddc_server::{Listener, Node, Origin, Rules, Upstream, UpstreamOptions};
use throng_ddc_store::{ChangeResult, Done, Durability, Options, Tier};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const CB: &str = "application/x-ue-cb";
const OCTETS: &str = "Content-Type: application/octet-stream";
const COMP: &str = "Content-Type: application/x-ue-comp";

/// Makes a change of a running node's folder.
fn commit(change: impl FnOnce(Done)) {
    let (sender, receiver) = std::sync::mpsc::channel();
    change(Box::new(move |outcome| drop(sender.send(outcome))));
    assert_eq!(receiver.recv().expect("an answer").expect("the disk works"), ChangeResult::Done);
}

async fn node(s3: &S3) -> Server {
    node_in(tempfile::tempdir().expect("a temporary folder"), s3).await
}

async fn node_in(folder: tempfile::TempDir, s3: &S3) -> Server {
    let options =
        Options { durability: Durability::Cache, segment_bytes_max: 512 << 10, ..Options::default() };
    Server::start_in(folder, options, Rules::default(), Listener::Internal, Origin::Tier(s3.tier())).await
}

fn key(text: &str) -> String {
    IoHash::of(text.as_bytes()).to_string()
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
}

async fn put_blob(client: &Client, bytes: &[u8]) -> String {
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(bytes));
    let reply = client.send("PUT", &path, &[OCTETS], bytes.to_vec()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    path
}

/// Puts an object; gives what it needs.
async fn put_ref(client: &Client, path: &str, object: &[u8]) -> Vec<String> {
    let hash = format!("X-Jupiter-IoHash: {:X}", IoHash::of(object));
    let headers = ["Content-Type: application/x-ue-cb", hash.as_str()];
    let reply = client.send("PUT", path, &headers, object.to_vec()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    let json: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    let needs = json["needs"].as_array().expect("a list");
    needs.iter().map(|hash| hash.as_str().expect("a hash").to_owned()).collect()
}

fn object_of(attachments: &[IoHash]) -> Vec<u8> {
    let attachments = attachments.iter().map(|hash| Value::BinaryAttachment(*hash)).collect();
    Value::object([("payload", Value::Array(attachments))]).encode(Style::Plain)
}

/// A compressed value, a large raw blob, and a ref to both, put as an editor does.
async fn fill(client: &Client) -> (String, Vec<u8>, Vec<u8>, Vec<u8>) {
    let (raw, large) = (content(1, 40_000), content(2, 10 << 20));
    let compressed = compress_lz4(&raw, 18);
    let object = object_of(&[IoHash::of(&raw), IoHash::of(&large)]);
    let path = format!("/api/v1/refs/game/assets/{}", key("a"));
    let mut needs = put_ref(client, &path, &object).await;
    needs.sort();
    let mut wanted = [&raw, &large].map(|bytes| format!("{:X}", IoHash::of(bytes)));
    wanted.sort();
    assert_eq!(needs, wanted);
    put_blob(client, &large).await;
    let blob = format!("/api/v1/compressed-blobs/game/{}", IoHash::of(&raw));
    assert_eq!(client.send("PUT", &blob, &[COMP], compressed.clone()).await.status, StatusCode::OK);
    let finalise = format!("{path}/finalize/{}", IoHash::of(&object));
    assert_eq!(client.send("POST", &finalise, &[], "").await.text(), "{\"needs\":[]}");
    (path, object, compressed, large)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_takes_the_others_serve() {
    let s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    let [first, second] = [one.client().await, two.client().await];
    let (path, object, compressed, large) = fill(&first).await;

    let got = second.get(&path, CB).await;
    assert_eq!((got.status, &got.body[..]), (StatusCode::OK, &object[..]));
    assert_eq!(second.send("HEAD", &path, &[], "").await.status, StatusCode::OK);
    let raw = IoHash::of(&content(1, 40_000));
    let value = second.get(&format!("{path}/blobs/{raw}"), "*/*").await;
    assert_eq!((value.header("Content-Type"), &value.body[..]), ("application/x-ue-comp", &compressed[..]));
    let package = second.get(&format!("{path}.uecbpkg"), "*/*").await;
    assert_eq!(package.status, StatusCode::OK);
    assert!(package.body.windows(64).any(|window| window == &large[..64]));
    // A copy needs no second look.
    let fetched = two.service().stats().fetched;
    assert_eq!(second.get(&format!("/api/v1/blobs/game/{}", IoHash::of(&large)), "*/*").await.body, large);
    assert_eq!((fetched, two.service().stats().fetched), (2, 2));

    // What is absent is so everywhere, and what is there is needed nowhere.
    let absent = key("absent");
    let exists = format!("/api/v1/compressed-blobs/game/exists?id={absent}&id={raw}");
    let needs = second.send("POST", &exists, &[], "").await;
    assert_eq!(needs.text(), format!("{{\"needs\":[\"{}\"]}}", absent.to_uppercase()));
    let other = format!("/api/v1/refs/game/assets/{}", key("b"));
    assert!(put_ref(&second, &other, &object).await.is_empty());
    let names = first.send("GET", "/api/v1/refs", &[], "").await;
    assert_eq!(names.text(), "{\"namespaces\":[\"game\"]}");

    // A ref that one deletes is gone for the other at once.
    assert_eq!(first.send("DELETE", &path, &[], "").await.text(), "{\"deletedCount\":1}");
    assert_eq!(second.get(&path, CB).await.status, StatusCode::NOT_FOUND);
    assert_eq!(first.send("DELETE", &path, &[], "").await.text(), "{\"deletedCount\":0}");
    let bucket = second.send("DELETE", "/api/v1/refs/game/assets", &[], "").await;
    assert_eq!(bucket.text(), "{\"countOfDeletedRecords\":1}");
    assert_eq!(first.get(&other, CB).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_loses_its_folder_loses_nothing() {
    let s3 = S3::start().await;
    let one = node(&s3).await;
    let (path, object, ..) = fill(&one.client().await).await;
    drop(one.stop());
    let again = node(&s3).await;
    let client = again.client().await;
    assert_eq!(client.get(&path, CB).await.body, object);
    assert_eq!(client.get(&format!("{path}.uecbpkg"), "*/*").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_reads_the_bucket_at_the_same_time() {
    const COUNT: u8 = 16;
    let s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    let [first, second] = [one.client().await, two.client().await];
    let mut ops = Vec::new();
    let mut ids = String::new();
    for seed in 0..COUNT {
        let bytes = content(seed, 1_000);
        put_blob(&first, &bytes).await;
        ops.push(serde_json::json!({"op": "GET", "namespace": "game", "id": IoHash::of(&bytes).to_string()}));
        ids.push_str(&format!("id={}&", IoHash::of(&bytes)));
    }
    // Requests one after the other would use one connection, and never be answered.
    s3.answer_together(Some(usize::from(COUNT / 2)));
    let body = serde_json::json!({ "operations": ops }).to_string();
    let reply = second.send("POST", "/api/v1/blobs", &["Content-Type: application/json"], body.clone()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    assert_eq!(two.service().stats().fetched, u64::from(COUNT));
    let again = second.send("POST", "/api/v1/blobs", &["Content-Type: application/json"], body).await;
    assert_eq!(again.body, reply.body, "from the folder");
    s3.answer_together(None);

    // A bit flip in one object makes a miss of it, and of no other.
    let path = format!("ddc/b/game/{}", &IoHash::of(&content(0, 1_000)).to_string()[..2]);
    let damaged = s3.object(&format!("{path}/{}", IoHash::of(&content(0, 1_000))));
    let mut bytes = std::fs::read(&damaged).expect("it is there");
    bytes[500] ^= 1;
    std::fs::write(&damaged, bytes).expect("writable");
    let three = node(&s3).await;
    let third = three.client().await;
    let body = serde_json::json!({ "operations": ops }).to_string();
    let got = third.send("POST", "/api/v1/blobs", &["Content-Type: application/json"], body).await;
    let elements: Vec<serde_json::Value> = serde_json::from_slice(&got.body).expect("JSON");
    let whole: Vec<serde_json::Value> = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!((&elements[0]["status"], &elements[1..]), (&404.into(), &whole[1..]));
    let exists = format!("/api/v1/blobs/game/exists?{ids}");
    let needs = third.send("POST", &exists, &[], "").await;
    assert_eq!(needs.text(), format!("{{\"needs\":[\"{:X}\"]}}", IoHash::of(&content(0, 1_000))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_of_what_another_node_deleted_is_in_the_bucket_again() {
    let s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    let [first, second] = [one.client().await, two.client().await];
    // A small one, and one that is only hashed when it is uploaded again.
    for bytes in [content(21, 5_000), content(22, 3 << 20)] {
        let path = put_blob(&first, &bytes).await;
        assert_eq!(second.get(&path, "*/*").await.body, bytes);
        assert_eq!(first.send("DELETE", &path, &[], "").await.status, StatusCode::NO_CONTENT);
        assert_eq!(first.get(&path, "*/*").await.status, StatusCode::NOT_FOUND);
        put_blob(&second, &bytes).await;
        assert_eq!(first.get(&path, "*/*").await.body, bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwriting_is_refused_across_nodes() {
    let s3 = S3::start().await;
    let mut servers = Vec::new();
    for _ in 0..2 {
        let mut rules = Rules::default();
        rules.default.overwrite_refs = false;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options::default();
        servers.push(
            Server::start_in(folder, options, rules, Listener::Internal, Origin::Tier(s3.tier())).await,
        );
    }
    let path = format!("/api/v1/refs/game/assets/{}", key("a"));
    let objects =
        ["one", "two"].map(|text| Value::object([("name", Value::string(text))]).encode(Style::Plain));
    put_ref(&servers[0].client().await, &path, &objects[0]).await;
    let second = servers[1].client().await;
    put_ref(&second, &path, &objects[0]).await;
    let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&objects[1]));
    let headers = ["Content-Type: application/x-ue-cb", hash.as_str()];
    let refused = second.send("PUT", &path, &headers, objects[1].clone()).await;
    assert_eq!((refused.status, &refused.body[..]), (StatusCode::CONFLICT, &objects[0][..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_copies_are_fetched_again() {
    let s3 = S3::start().await;
    let one = node(&s3).await;
    let client = one.client().await;
    let (small, large) = (content(3, 50_000), content(4, 3 << 20));
    let (small_path, large_path) = (put_blob(&client, &small).await, put_blob(&client, &large).await);
    let folder = one.stop();
    // In the middle of each.
    let mut files = Vec::new();
    for name in std::fs::read_dir(folder.path()).expect("it exists") {
        let path = name.expect("readable").path();
        if path.is_dir() {
            files.extend(
                std::fs::read_dir(path).expect("it exists").map(|file| file.expect("readable").path()),
            );
        }
    }
    // Files end with the zeros that were set aside; the two with most content hold the blobs.
    let mut written: Vec<(usize, std::path::PathBuf)> = files
        .into_iter()
        .filter_map(|path| {
            let bytes = std::fs::read(&path).expect("readable");
            Some((bytes.iter().rposition(|byte| *byte != 0)?, path))
        })
        .collect();
    written.sort();
    for (end, path) in written.into_iter().rev().take(2) {
        assert!(end >= small.len(), "{} is too short for a blob", path.display());
        let mut bytes = std::fs::read(&path).expect("readable");
        bytes[end / 2] ^= 0x10;
        std::fs::write(&path, bytes).expect("writable");
    }
    let again = node_in(folder, &s3).await;
    let client = again.client().await;
    assert_eq!(client.get(&small_path, "*/*").await.body, small);
    // A large one is hashed before its first service, so the damage shows before a byte is sent.
    assert_eq!(client.get(&large_path, "*/*").await.body, large);
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(&large));
    assert_eq!(client.get(&path, "*/*").await.body, large);
    let stats = again.service().stats();
    assert_eq!((stats.damaged, stats.fetched), (2, 2));
    let aside = std::fs::read_dir(again.folder().join("quarantine")).expect("it exists").count();
    assert_eq!(aside, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_the_bucket_is_never_served() {
    let s3 = S3::start().await;
    let one = node(&s3).await;
    let client = one.client().await;
    let bytes = content(5, 30_000);
    let path = put_blob(&client, &bytes).await;
    let reference = format!("/api/v1/refs/game/assets/{}", key("a"));
    put_ref(&client, &reference, &object_of(&[IoHash::of(&bytes)])).await;
    let hash = IoHash::of(&bytes).to_string();
    for name in [format!("ddc/b/game/{}/{hash}", &hash[..2]), format!("ddc/r/game/assets/{}", key("a"))] {
        let file = s3.object(&name);
        let mut stored = std::fs::read(&file).expect("it is a file");
        // A blob's content; a ref's state.
        stored[1] ^= 1;
        std::fs::write(&file, stored).expect("writable");
    }
    let two = node(&s3).await;
    let other = two.client().await;
    assert_eq!(other.get(&path, "*/*").await.status, StatusCode::NOT_FOUND);
    assert_eq!(other.get(&reference, CB).await.status, StatusCode::NOT_FOUND);
    assert_eq!(two.service().stats().damaged, 2);
    // Who has a copy serves it; and what is put again is whole again.
    assert_eq!(client.get(&path, "*/*").await.body, bytes);
    put_ref(&client, &reference, &object_of(&[IoHash::of(&bytes)])).await;
    assert_eq!(other.get(&reference, CB).await.status, StatusCode::OK);
}

/// Damages the blob in the bucket; a damage of 0 halves it, 1 empties it.
fn damage_blob(s3: &S3, bytes: &[u8], kind: usize) {
    let mut damaged = bytes.to_vec();
    match kind {
        0 => damaged.truncate(bytes.len() / 2),
        1 => damaged.clear(),
        _ => damaged[bytes.len() / 3] ^= 4,
    }
    std::fs::write(blob_object(s3, bytes), damaged).expect("writable");
}

/// The file that a blob in the bucket is.
fn blob_object(s3: &S3, bytes: &[u8]) -> PathBuf {
    let hash = IoHash::of(bytes).to_string();
    s3.object(&format!("ddc/b/game/{}/{hash}", &hash[..2]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_that_was_found_damaged_in_the_bucket_is_needed_again() {
    let s3 = S3::start().await;
    let one = node(&s3).await;
    let first = one.client().await;
    for kind in 0..3 {
        let bytes = content(30 + kind as u8, 30_000);
        let hash = IoHash::of(&bytes);
        let path = put_blob(&first, &bytes).await;
        let object = object_of(&[hash]);
        let reference = format!("/api/v1/refs/game/assets/{}", key(&format!("damage {kind}")));
        assert!(put_ref(&first, &reference, &object).await.is_empty());
        damage_blob(&s3, &bytes, kind);
        // The node that finds the damage, and one that never read the blob.
        let [two, three] = [node(&s3).await, node(&s3).await];
        assert_eq!(two.client().await.get(&path, "*/*").await.status, StatusCode::NOT_FOUND);
        for server in [&two, &three] {
            let client = server.client().await;
            assert_eq!(client.send("HEAD", &path, &[], "").await.status, StatusCode::NOT_FOUND);
            assert_eq!(client.send("HEAD", &reference, &[], "").await.status, StatusCode::NOT_FOUND);
            assert_eq!(put_ref(&client, &reference, &object).await, [format!("{hash:X}")]);
            let exists = format!("/api/v1/compressed-blobs/game/exists?id={hash}");
            let needs = client.send("POST", &exists, &[], "").await;
            assert_eq!(needs.text(), format!("{{\"needs\":[\"{hash:X}\"]}}"));
        }
        put_blob(&three.client().await, &bytes).await;
        let client = two.client().await;
        assert!(put_ref(&client, &reference, &object).await.is_empty());
        assert_eq!(client.get(&path, "*/*").await.body, bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_upload_replaces_what_is_damaged_in_the_bucket() {
    let s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    // A small one; one that is only hashed where there is a copy; one of several parts.
    for (at, len) in [5_000, 3 << 20, 9 << 20].into_iter().enumerate() {
        let bytes = content(40 + at as u8, len);
        let path = put_blob(&one.client().await, &bytes).await;
        // By the node that has a copy, and by one that has none.
        for server in [&one, &two] {
            damage_blob(&s3, &bytes, 2);
            put_blob(&server.client().await, &bytes).await;
            let cold = node(&s3).await;
            assert_eq!(cold.client().await.get(&path, "*/*").await.body, bytes, "{len} bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ref_that_lies_under_another_name_in_the_bucket_is_a_miss() {
    let s3 = S3::start().await;
    let one = node(&s3).await;
    let client = one.client().await;
    let objects = ["one", "two"].map(|text| Value::object([("n", Value::string(text))]).encode(Style::Plain));
    let name = |path: &str| s3.object(&format!("ddc/r/{path}/{}", key("a")));
    let path = |name: &str| format!("/api/v1/refs/{name}/{}", key("a"));
    for (at, others) in ["game/maps", "secret/assets"].into_iter().enumerate() {
        put_ref(&client, &path("game/assets"), &objects[0]).await;
        put_ref(&client, &path(others), &objects[1]).await;
        std::fs::copy(name(others), name("game/assets")).expect("writable");
        let got = client.get(&path("game/assets"), CB).await;
        assert_eq!(got.status, StatusCode::NOT_FOUND, "the object of {others}: {:?}", got.body);
        assert_eq!(one.service().stats().damaged, at as u64 + 1);
        assert_eq!(client.get(&path(others), CB).await.body, objects[1]);
    }
    put_ref(&client, &path("game/assets"), &objects[0]).await;
    assert_eq!(client.get(&path("game/assets"), CB).await.body, objects[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_bucket_copies_are_served_and_nothing_else() {
    let mut s3 = S3::start().await;
    let one = node(&s3).await;
    let client = one.client().await;
    let bytes = content(6, 20_000);
    let path = put_blob(&client, &bytes).await;
    let reference = format!("/api/v1/refs/game/assets/{}", key("a"));
    put_ref(&client, &reference, &object_of(&[IoHash::of(&bytes)])).await;
    s3.stop().await;

    assert_eq!(client.get(&path, "*/*").await.body, bytes);
    let absent = format!("/api/v1/blobs/game/{}", key("absent"));
    for (method, path, headers, body) in [
        ("GET", absent.as_str(), vec![], vec![]),
        ("HEAD", absent.as_str(), vec![], vec![]),
        ("GET", reference.as_str(), vec![], vec![]),
        ("HEAD", reference.as_str(), vec![], vec![]),
        ("DELETE", reference.as_str(), vec![], vec![]),
        ("POST", "/api/v1/blobs/game", vec![OCTETS], content(7, 100)),
        ("POST", "/api/v1/blobs/game", vec![OCTETS], content(7, 2 << 20)),
        ("GET", "/health/readiness", vec![], vec![]),
    ] {
        let reply = client.send(method, path, &headers, body).await;
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{method} {path}");
        if method == "GET" && path == reference {
            assert_eq!(reply.header("Retry-After"), "1");
            assert!(reply.text().contains("the object storage does not answer"), "{}", reply.text());
        }
    }
    // What was refused is not there.
    assert_eq!(client.send("GET", "/health/ready", &[], "").await.status, StatusCode::OK);
    s3.start_again();
    let refused = format!("/api/v1/blobs/game/{}", IoHash::of(&content(7, 100)));
    assert_eq!(client.get(&refused, "*/*").await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get(&reference, CB).await.status, StatusCode::OK);
    assert_eq!(client.send("GET", "/health/readiness", &[], "").await.status, StatusCode::OK);
    assert!(one.service().stats().origin_failures >= 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_rule_of_the_bucket_removed_comes_back_with_the_next_ref() {
    let s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    let bytes = content(10, 5_000);
    let hash = IoHash::of(&bytes);
    // An old copy of what the bucket does not have any more.
    let (namespace, old) = ("game".parse().expect("a name"), throng_ddc::Timestamp::from_unix_ms(1));
    commit(|done| one.service().store().put_blob(&namespace, hash, bytes.clone().into(), old, done));
    let reference = format!("/api/v1/refs/game/assets/{}", key("a"));
    assert!(put_ref(&one.client().await, &reference, &object_of(&[hash])).await.is_empty());
    let other = two.client().await;
    assert_eq!(other.send("HEAD", &reference, &[], "").await.status, StatusCode::OK);
    assert_eq!(other.get(&format!("/api/v1/blobs/game/{hash}"), "*/*").await.body, bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_that_a_rule_of_the_bucket_removed_comes_back_with_the_next_ref() {
    let s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    let raw = content(61, 40_000);
    let (id, compressed) = (IoHash::of(&raw), compress_lz4(&raw, 18));
    let hash = IoHash::of(&compressed);
    let (namespace, old) = ("game".parse().expect("a name"), throng_ddc::Timestamp::from_unix_ms(1));
    let store = one.service().store();
    commit(|done| store.put_blob(&namespace, hash, compressed.clone().into(), old, done));
    commit(|done| store.put_content(&namespace, id, (compressed.len() as u64, hash, true), done));
    let reference = format!("/api/v1/refs/game/assets/{}", key("a"));
    assert!(put_ref(&one.client().await, &reference, &object_of(&[id])).await.is_empty());
    let other = two.client().await;
    assert_eq!(other.send("HEAD", &reference, &[], "").await.status, StatusCode::OK);
    assert_eq!(other.get(&format!("/api/v1/compressed-blobs/game/{id}"), "*/*").await.body, compressed);
    let forms = s3.tier().forms(&namespace, &id).await.expect("the bucket works");
    assert_eq!(forms, [(compressed.len() as u64, hash, true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unverified_copy_does_not_hide_what_another_node_verified() {
    let mut s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    let [first, second] = [one.client().await, two.client().await];
    let raw = content(60, 40_000);
    // Nothing here decodes Oodle.
    let (garbage, sound) = (wrap_oodle(&raw, 18, &[vec![7; 20]]), compress_lz4(&raw, 18));
    let path = format!("/api/v1/compressed-blobs/game/{}", IoHash::of(&raw));
    assert_eq!(first.send("PUT", &path, &[COMP], garbage.clone()).await.status, StatusCode::OK);
    assert_eq!(first.get(&path, "*/*").await.body, garbage, "the only one");
    assert_eq!(second.send("PUT", &path, &[COMP], sound.clone()).await.status, StatusCode::OK);
    assert_eq!(first.get(&path, "*/*").await.body, sound);
    // An eviction that takes the copy of one leaves that of the other.
    let (namespace, hash) = ("game".parse().expect("a name"), IoHash::of(&sound));
    commit(|done| one.service().store().delete_blob(&namespace, &hash, done));
    assert_eq!(first.get(&path, "*/*").await.body, sound);
    // A ref is finalised with it, and a node without copies serves it.
    let reference = format!("/api/v1/refs/game/assets/{}", key("a"));
    assert!(put_ref(&first, &reference, &object_of(&[IoHash::of(&raw)])).await.is_empty());
    let cold = node(&s3).await;
    let inline = cold.client().await.get(&reference, "application/x-jupiter-inline").await;
    assert_eq!(inline.body, sound);
    // Without the bucket there are copies.
    s3.stop().await;
    assert_eq!(first.get(&path, "*/*").await.body, sound);
    commit(|done| one.service().store().delete_blob(&namespace, &hash, done));
    assert_eq!(first.get(&path, "*/*").await.body, garbage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_folder_stays_within_its_bound() {
    const FOLDER_BYTES_MAX: u64 = 8 << 20;
    let s3 = S3::start().await;
    let one = node(&s3).await;
    let client = one.client().await;
    let mut paths = Vec::new();
    for seed in 0..40_u8 {
        let bytes = content(seed, if seed % 8 == 0 { 2 << 20 } else { 300_000 });
        paths.push((put_blob(&client, &bytes).await, bytes));
        // The first is used all the time.
        assert_eq!(client.get(&paths[0].0, "*/*").await.status, StatusCode::OK);
        one.service().evict(FOLDER_BYTES_MAX).expect("the disk works");
        let held = one.service().store().disk_bytes();
        // A segment gives its space back once less than 85 % of it is live.
        assert!(held <= FOLDER_BYTES_MAX * 100 / 85, "{held} bytes after blob {seed}");
    }
    assert_eq!(one.service().stats().fetched, 0, "what is in use stays");
    one.service().count_sizes().expect("the disk works");
    let report = one.service().report();
    let next = report["eviction"]["next"].as_array().expect("a list");
    // The folder holds fewer than are named; the one that is used all the time is the last.
    let names = next.iter().map(|row| row["name"].as_str().expect("a hash"));
    let names: Vec<String> = names.map(|name| format!("/api/v1/blobs/game/{name}")).collect();
    assert!(next.iter().all(|row| row["kind"] == "blob") && names.len() > 1, "{next:?}");
    let times = next.iter().map(|row| row["used_unix_s"].as_u64().expect("a time"));
    assert!(times.is_sorted() && names[0] != paths[0].0, "{next:?}");
    for (path, bytes) in &paths {
        assert_eq!(client.get(path, "*/*").await.body, *bytes);
        one.service().evict(FOLDER_BYTES_MAX).expect("the disk works");
    }
    assert!(one.service().stats().fetched > 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_want_the_same_absent_blob_cause_one_transfer() {
    let s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    let bytes = content(8, 3 << 20);
    let path = put_blob(&one.client().await, &bytes).await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (client, path) = (two.client().await, path.clone());
        asked.spawn(async move { client.get(&path, "*/*").await.body });
    }
    while let Some(body) = asked.join_next().await {
        assert_eq!(body.expect("no panic"), bytes);
    }
    assert_eq!(two.service().stats().fetched, 1);
}

// --- Upstream

async fn edge(of: std::net::SocketAddr, miss: Duration) -> Server {
    edge_with(of, miss, Rules::default()).await
}

async fn edge_with(of: std::net::SocketAddr, miss: Duration, rules: Rules) -> Server {
    let options = UpstreamOptions {
        url: format!("http://{of}"),
        authorization: None,
        timeout: Duration::from_secs(60),
        miss,
        tls: s3::tls(),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let origin = Origin::Upstream(Box::new(Upstream::new(options)));
    Server::start_in(folder, Options::default(), rules, Listener::Internal, origin).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_fills_itself_from_its_upstream() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let (path, object, compressed, large) = fill(&core.client().await).await;
    let edge = edge(core.addr, Duration::from_secs(60)).await;
    let client = edge.client().await;
    assert_eq!(client.get(&path, CB).await.body, object);
    let raw = IoHash::of(&content(1, 40_000));
    assert_eq!(client.get(&format!("{path}/blobs/{raw}"), "*/*").await.body, compressed);
    let large_path = format!("/api/v1/blobs/game/{}", IoHash::of(&large));
    assert_eq!(client.get(&large_path, "*/*").await.body, large);
    assert_eq!(client.send("HEAD", &path, &[], "").await.status, StatusCode::OK);
    // The ref stays once everything that it reaches is here: the upstream may go.
    assert_eq!(client.get(&path, CB).await.status, StatusCode::OK);
    drop(core.stop());
    assert_eq!(client.get(&path, CB).await.body, object);
    assert_eq!(client.get(&format!("{path}.uecbpkg"), "*/*").await.status, StatusCode::OK);
    // What is not here is a miss then, and uploads go on.
    let absent = client.get(&format!("/api/v1/blobs/game/{}", key("absent")), "*/*").await;
    assert_eq!(absent.status, StatusCode::NOT_FOUND);
    assert!(edge.service().stats().origin_failures > 0);
    put_blob(&client, &content(9, 1000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_asks_for_refs_that_may_have_changed_and_serves_them_without_an_answer() {
    let up = Server::start(Rules::default(), Listener::Public).await;
    let rules = Rules { upstream_fresh: Duration::ZERO, ..Rules::default() };
    let edge = edge_with(up.addr, Duration::ZERO, rules).await;
    let (client, far) = (edge.client().await, up.client().await);
    let [first, second] = [1, 2].map(|n| Value::object([("n", Value::Integer(n))]).encode(Style::Plain));
    let [kept, gone] = ["kept", "gone"].map(|name| format!("/api/v1/refs/game/assets/{}", key(name)));
    for path in [&kept, &gone] {
        assert!(put_ref(&far, path, &first).await.is_empty());
        assert_eq!(client.get(path, CB).await.body, first);
    }
    assert!(put_ref(&far, &kept, &second).await.is_empty());
    assert_eq!(far.send("DELETE", &gone, &[], "").await.status, StatusCode::OK);
    assert_eq!(client.get(&kept, CB).await.body, second);
    assert_eq!(client.get(&gone, CB).await.status, StatusCode::NOT_FOUND);
    let unconfirmed = || edge.service().report()["elsewhere"]["unconfirmed_refs"].as_u64();
    assert_eq!(unconfirmed(), Some(0));
    drop(up.stop());
    assert_eq!(client.get(&kept, CB).await.body, second);
    assert_eq!(unconfirmed(), Some(1));
    assert_eq!(client.get(&gone, CB).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_remembers_what_its_upstream_does_not_have() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let edges = [edge(core.addr, Duration::from_secs(3600)).await, edge(core.addr, Duration::ZERO).await];
    let path = format!("/api/v1/refs/game/assets/{}", key("a"));
    let mut asked = Vec::new();
    for edge in &edges {
        let client = edge.client().await;
        let before = core.service().stats().requests;
        for _ in 0..10 {
            assert_eq!(client.get(&path, CB).await.status, StatusCode::NOT_FOUND);
        }
        asked.push(core.service().stats().requests - before);
    }
    assert_eq!(asked, [1, 10]);
}

/// An upstream that answers every request with these headers and five bytes, and closes the
/// connection unless those are all.
async fn liar(headers: &'static str) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let liar = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = liar.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = liar.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4096];
                while stream.read(&mut head).await.is_ok_and(|count| count > 0) {
                    let answer = format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\nwrong");
                    let written = stream.write_all(answer.as_bytes()).await;
                    if written.is_err() || !headers.ends_with("Content-Length: 5") {
                        return;
                    }
                }
            });
        }
    });
    addr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_upstream_cuts_short_or_makes_too_large_is_a_miss() {
    let hash = key("right");
    for headers in [
        "Content-Type: application/octet-stream\r\nContent-Length: 3000",
        "Content-Type: application/octet-stream\r\nContent-Length: 4611686018427387904",
        "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked",
        "Content-Type: application/x-ue-comp\r\nContent-Length: 3000",
        "Content-Type: application/x-ue-comp\r\nContent-Length: 4611686018427387904",
        "Content-Type: application/x-ue-cb\r\nContent-Length: 3000",
    ] {
        let addr = liar(headers).await;
        for family in ["blobs/game", "compressed-blobs/game", "refs/game/assets"] {
            for method in ["GET", "HEAD"] {
                // One that failed is left alone for a second, so each request has an edge of its
                // own.
                let edge = edge(addr, Duration::ZERO).await;
                let path = format!("/api/v1/{family}/{hash}");
                let reply = edge.client().await.send(method, &path, &[], "").await;
                assert_eq!(reply.status, StatusCode::NOT_FOUND, "{method} {path}: {headers}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_keeps_nothing_that_its_upstream_gets_wrong() {
    let addr = liar("Content-Type: application/octet-stream\r\nContent-Length: 5").await;
    let edge = edge(addr, Duration::ZERO).await;
    let client = edge.client().await;
    let hash = key("right");
    for path in [
        format!("/api/v1/blobs/game/{hash}"),
        format!("/api/v1/compressed-blobs/game/{hash}"),
        format!("/api/v1/refs/game/assets/{hash}"),
    ] {
        assert_eq!(client.get(&path, "*/*").await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let usage = edge.service().store().usage(&"game".parse().expect("a name")).expect("the disk works");
    assert_eq!(usage, throng_ddc_store::Usage::default());
    assert!(edge.service().stats().damaged >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_used_is_written_again_when_it_is_old() {
    let s3 = S3::start().await;
    let first = node(&s3).await;
    let (path, object, ..) = fill(&first.client().await).await;
    let raw = IoHash::of(&content(1, 40_000));
    let written = |prefix: &str| {
        let folder = s3.object(&format!("ddc/{prefix}/game"));
        let mut times = Vec::new();
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let meta = entry.metadata().expect("it exists");
                if meta.is_dir() {
                    folders.push(entry.path());
                } else {
                    times.push((entry.path(), meta.modified().expect("a time")));
                }
            }
        }
        times.sort();
        times
    };
    let before = [written("b"), written("c"), written("r")];
    assert_eq!(before.each_ref().map(Vec::len), [2, 1, 1], "{raw}");
    // Nothing is old for the first node, everything for the second.
    assert_eq!(first.client().await.get(&path, CB).await.body, object);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let origin = Origin::Tier(s3.tier_with(Some(Duration::ZERO)));
    let options = Options { durability: Durability::Cache, ..Options::default() };
    let second = Server::start_in(folder, options, Rules::default(), Listener::Internal, origin).await;
    let client = second.client().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    // The ref is written last.
    while written("r") == before[2] {
        assert_eq!(client.get(&path, CB).await.body, object);
        assert!(std::time::Instant::now() < deadline, "the ref was not written again");
    }
    for (kind, before) in ["b", "c"].into_iter().zip(&before) {
        let after = written(kind);
        assert_eq!(after.len(), before.len());
        assert!(after.iter().zip(before).all(|(after, before)| after.1 > before.1), "{kind}: {after:?}");
    }
    assert_eq!(client.get(&format!("{path}.uecbpkg"), "*/*").await.status, StatusCode::OK);
}

/// A bucket behind a proxy that breaks: answers about names with a part `stalls` stop in the middle
/// until they are let go, all others are not from the storage.
struct BrokenBucket {
    /// Requests, each as its first line.
    requests: Arc<Mutex<Vec<String>>>,
    is_let_go: Arc<AtomicBool>,
}

async fn broken_bucket() -> (Tier, BrokenBucket) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let mut options = s3::options(listener.local_addr().expect("it is bound"));
    options.timeout = Duration::from_millis(300);
    let bucket = BrokenBucket { requests: Arc::default(), is_let_go: Arc::default() };
    let (seen, is_let_go) = (Arc::clone(&bucket.requests), Arc::clone(&bucket.is_let_go));
    tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let (seen, is_let_go) = (Arc::clone(&seen), Arc::clone(&is_let_go));
            connections.spawn(async move {
                let mut head = Vec::new();
                while let Ok(byte) = stream.read_u8().await {
                    head.push(byte);
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let text = String::from_utf8_lossy(&head);
                    let line = text.lines().next().expect("a line").to_owned();
                    seen.lock().expect("no panic").push(line.clone());
                    let (len, body): (_, &[u8]) = match line.as_bytes() {
                        [b'H', ..] => (100, b""),
                        _ if line.contains("/stalls/") && is_let_go.load(Ordering::Relaxed) => (4, b"half"),
                        _ if line.contains("/stalls/") => (100, b"half"),
                        _ => (12, b"please login"),
                    };
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nETag: \"tag\"\r\n\
                         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
                    );
                    let sent = [answer.as_bytes(), body].concat();
                    stream.write_all(&sent).await.expect("the node reads");
                    head.clear();
                }
            });
        }
    });
    (Tier::new(&options).expect("valid options"), bucket)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_stalls_inside_an_answer_is_not_waited_for() {
    let (tier, _) = broken_bucket().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let origin = Origin::Tier(tier);
    let server =
        Server::start_in(folder, Options::default(), Rules::default(), Listener::Internal, origin).await;
    let client = server.client().await;
    let path = format!("/api/v1/refs/game/stalls/{}", key("a"));
    for method in ["GET", "HEAD"] {
        let reply = client.send(method, &path, &[], "").await;
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{method}");
        assert_eq!(reply.header("Retry-After"), "1");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_not_from_the_storage_replace_nothing_there() {
    let (tier, bucket) = broken_bucket().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let origin = Origin::Tier(tier);
    let server =
        Server::start_in(folder, Options::default(), Rules::default(), Listener::Internal, origin).await;
    let client = server.client().await;
    let blob = format!("/api/v1/blobs/game/{}", IoHash::of(b"a blob of 100 bytes"));
    assert_eq!(client.send("GET", &blob, &[], "").await.status, StatusCode::NOT_FOUND);
    let path = format!("/api/v1/refs/game/assets/{}", key("a"));
    assert_eq!(client.send("GET", &path, &[], "").await.status, StatusCode::NOT_FOUND);
    let requests = bucket.requests.lock().expect("no panic");
    assert!(!requests.iter().any(|line| line.starts_with("PUT")), "{requests:?}");
    let gets =
        |part: &str| requests.iter().filter(|line| line.starts_with("GET") && line.contains(part)).count();
    assert_eq!((gets("/b/"), gets("/r/")), (2, 2), "{requests:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_bucket_stalls_inside_answers_is_not_ready() {
    let (tier, bucket) = broken_bucket().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (options, rules) = (Options::default(), Rules::default());
    let server = Server::start_in(folder, options, rules, Listener::Internal, Origin::Tier(tier)).await;
    let client = server.client().await;
    let health = async |route: &str| client.send("GET", &format!("/health/{route}"), &[], "").await.status;
    let blob = format!("/api/v1/blobs/stalls/{}", key("a"));
    for path in [blob, format!("/api/v1/refs/game/stalls/{}", key("a"))] {
        assert_eq!(health("readiness").await, StatusCode::OK);
        bucket.is_let_go.store(false, Ordering::Relaxed);
        let failures = server.service().stats().origin_failures;
        assert_eq!(client.get(&path, "*/*").await.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(server.service().stats().origin_failures > failures, "{path}");
        assert_eq!(health("readiness").await, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        // Editors that see another answer do without the cache until they are started again.
        assert_eq!(health("ready").await, StatusCode::OK);
        bucket.is_let_go.store(true, Ordering::Relaxed);
    }
    assert_eq!(health("readiness").await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_build_caches_are_shared_and_exported_with_what_they_name() {
    let s3 = S3::start().await;
    let [one, two] = [node(&s3).await, node(&s3).await];
    let (first, second) = (one.client().await, two.client().await);
    let content = content(70, 50_000);
    let (cas, action) = (format!("/cas/{}", sha256(&content)), format!("/ac/{}", sha256(b"the action")));
    for (path, body) in [(&cas, content.clone()), (&action, output_file(&content))] {
        assert_eq!(first.send("PUT", path, &[], body).await.status, StatusCode::OK);
    }
    assert_eq!(second.get(&action, "*/*").await.body, output_file(&content));
    assert_eq!(second.get(&cas, "*/*").await.body, content);
    let mut stream = Cursor::new(Vec::new());
    Node::export_bucket(&s3.tier(), None, None, &mut stream).await.expect("the bucket works");
    let alone = Server::start(Rules::default(), Listener::Public).await;
    stream.set_position(0);
    alone.service().import(&mut stream).expect("an export");
    assert_eq!(alone.client().await.get(&action, "*/*").await.body, output_file(&content));
    // A result is of no use without what it names, wherever that went.
    let blob = format!("/api/v1/blobs/build/{}", IoHash::of(&content));
    assert_eq!(first.send("DELETE", &blob, &[], "").await.status, StatusCode::NO_CONTENT);
    let cold = node(&s3).await;
    assert_eq!(cold.client().await.get(&action, "*/*").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_holds_what_is_only_in_the_bucket() {
    let s3 = S3::start().await;
    let (one, two) = (node(&s3).await, node(&s3).await);
    let client = one.client().await;
    let (path, object, compressed, large) = fill(&client).await;
    // Too large for a ref, so it is a blob of its own.
    let noise = Value::object([("noise", Value::Binary(content(50, 100_000)))]).encode(Style::Plain);
    let second = format!("/api/v1/refs/game/assets/{}", key("b"));
    assert!(put_ref(&client, &second, &noise).await.is_empty());
    put_blob(&two.client().await, &content(51, 5_000)).await;
    // One node has copies of nearly everything, the other of one blob.
    for server in [&one, &two] {
        let mut stream = Cursor::new(Vec::new());
        let copies = Some(&**server.service().store());
        let done =
            Node::export_bucket(&s3.tier(), copies, None, &mut stream).await.expect("the bucket works");
        let stream = stream.into_inner();
        let blob_bytes = (compressed.len() + large.len() + noise.len() + 5_000) as u64;
        assert_eq!((done.blobs, done.bytes, done.contents, done.refs), (4, blob_bytes, 1, 2));
        assert_eq!(done.unreadable, 0);
        let alone = Server::start(Rules::default(), Listener::Public).await;
        alone.service().import(&mut &stream[..]).expect("an export");
        let other = alone.client().await;
        assert_eq!(other.get(&path, CB).await.body, object);
        assert_eq!(other.send("HEAD", &path, &[], "").await.status, StatusCode::OK);
        assert_eq!(other.get(&second, CB).await.body, noise);
        let raw = IoHash::of(&content(1, 40_000));
        assert_eq!(other.get(&format!("{path}/blobs/{raw}"), "*/*").await.body, compressed);
        assert_eq!(other.get(&format!("/api/v1/blobs/game/{}", IoHash::of(&large)), "*/*").await.body, large);
        let (only, mut none) = ("other".parse().expect("a name"), Cursor::new(Vec::new()));
        let only = Node::export_bucket(&s3.tier(), copies, Some(&only), &mut none).await;
        assert_eq!(only.expect("the bucket works"), throng_ddc_server::Transferred::default());
    }
    // Damage is counted, does not end the export, and stays for nodes to judge.
    damage_blob(&s3, &large, 2);
    let object = blob_object(&s3, &large);
    let damaged = std::fs::read(&object).expect("it is there");
    let mut stream = Cursor::new(Vec::new());
    let done = Node::export_bucket(&s3.tier(), None, None, &mut stream).await.expect("the bucket works");
    assert_eq!((done.blobs, done.refs, done.unreadable), (3, 2, 1));
    assert!(std::fs::read(&object).expect("it is there") == damaged);
    let alone = Server::start(Rules::default(), Listener::Public).await;
    stream.set_position(0);
    alone.service().import(&mut stream).expect("the damaged blob was taken back");
    assert_eq!(alone.client().await.get(&second, CB).await.body, noise);
    // The sound copy of a node stands for it.
    let mut stream = Cursor::new(Vec::new());
    let copies = Some(&**one.service().store());
    let done = Node::export_bucket(&s3.tier(), copies, None, &mut stream).await.expect("the bucket works");
    assert_eq!((done.blobs, done.unreadable), (4, 0));
}
