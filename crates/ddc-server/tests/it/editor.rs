//! The conversations of an editor with its cache, in its order and with its headers.

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common;

use std::sync::Arc;

use common::{Client, Server};
use hyper::StatusCode;
use throng_ddc::compressed::{compress_lz4, store};
use throng_ddc::gc::RefPolicy;
use throng_ddc::{Document, IoHash, Namespace, Style, Timestamp, Value, package};
use throng_ddc_server::{Listener, Rules};
use throng_ddc_store::CollectOptions;

const CB: &str = "application/x-ue-cb";
const COMP: &str = "application/x-ue-comp";

fn key(text: &str) -> String {
    IoHash::of(text.as_bytes()).to_string()
}

fn value_object(raw: &[u8]) -> Vec<u8> {
    Value::object([
        ("RawHash", Value::BinaryAttachment(IoHash::of(raw))),
        ("RawSize", Value::Integer(raw.len() as u64)),
    ])
    .encode(Style::Canonical)
}

async fn put_object(client: &Client, path: &str, object: &[u8]) -> Vec<String> {
    let hash = format!("X-Jupiter-IoHash: {:X}", IoHash::of(object));
    let headers = ["Content-Type: application/x-ue-cb", "Accept: application/json", hash.as_str()];
    let reply = client.send("PUT", path, &headers, object.to_vec()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    let json: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    let needs = json["needs"].as_array().expect("a list");
    needs.iter().map(|hash| hash.as_str().expect("a hash").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_is_put_and_got() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let ready = client.send("GET", "/health/ready", &[], "").await;
    assert_eq!((ready.status, ready.text()), (StatusCode::OK, "Healthy"));

    let raw = b"some derived data ".repeat(1000);
    let object = value_object(&raw);
    let path = format!("/api/v1/refs/Test.Game/Texture/{}", key("value"));
    let needs = put_object(&client, &path, &object).await;
    assert_eq!(needs, [format!("{:X}", IoHash::of(&raw))]);

    // Nobody sees it yet.
    assert_eq!(client.get(&path, CB).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(client.send("HEAD", &path, &[], "").await.status, StatusCode::NOT_FOUND);

    let compressed = compress_lz4(&raw, 18);
    let blob = format!("/api/v1/compressed-blobs/test.game/{}", needs[0]);
    let content = format!("Content-Type: {COMP}");
    let put = client.send("PUT", &blob, &[&content], compressed.clone()).await;
    assert_eq!(put.text(), format!("{{\"identifier\":\"{}\"}}", needs[0]));
    let finalise = format!("{path}/finalize/{:X}", IoHash::of(&object));
    let form = "Content-Type: application/x-www-form-urlencoded";
    assert_eq!(client.send("POST", &finalise, &[form], "").await.text(), "{\"needs\":[]}");

    let inline = client.get(&path, "application/x-jupiter-inline").await;
    assert_eq!((inline.status, &inline.body[..]), (StatusCode::OK, &compressed[..]));
    let hash = format!("{:X}", IoHash::of(&compressed));
    assert_eq!(inline.header("X-Jupiter-InlinePayloadHash"), hash);
    assert_eq!(inline.header("X-Jupiter-IoHash"), format!("{:X}", IoHash::of(&object)));
    let meta = client.get(&path, CB).await;
    assert_eq!((meta.header("Content-Type"), &meta.body[..]), (CB, &object[..]));
    assert_eq!(client.send("HEAD", &path, &[], "").await.status, StatusCode::OK);

    // What is decompressed for those who cannot, in part, under its own hash, and what it is not.
    assert_eq!(client.get(&format!("{path}.raw"), "*/*").await.body, raw);
    let part = client.send("GET", &blob, &["Range: bytes=4-9"], "").await;
    assert_eq!((part.status, &part.body[..]), (StatusCode::PARTIAL_CONTENT, &compressed[4..10]));
    assert_eq!(part.header("Content-Range"), format!("bytes 4-9/{}", compressed.len()));
    let whole = client.get(&blob, "*/*").await;
    assert_eq!((whole.header("Content-Type"), whole.header("X-Jupiter-IoHash")), (COMP, hash.as_str()));
    let own = client.get(&format!("/api/v1/blobs/test.game/{hash}"), "*/*").await;
    assert_eq!((own.status, own.body), (StatusCode::OK, whole.body));
    let not_a_blob = format!("/api/v1/blobs/test.game/{}", needs[0]);
    assert_eq!(client.get(&not_a_blob, "*/*").await.status, StatusCode::NOT_FOUND);
    let other = client.get(&blob, "application/octet-stream").await;
    assert_eq!(other.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);

    // A second client finds nothing missing; the third changes the object.
    assert!(put_object(&client, &path, &object).await.is_empty());
    let changed = value_object(b"never uploaded");
    assert_eq!(put_object(&client, &path, &changed).await.len(), 1);
    assert_eq!(client.get(&path, CB).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_put_and_its_values_are_got_by_the_current_route() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let values: Vec<Vec<u8>> = (0..5_u8).map(|n| vec![n; 3_000_000 + usize::from(n)]).collect();
    let fields = values.iter().zip(0_u8..).map(|(raw, n)| {
        Value::object([
            ("Id", Value::ObjectId([n; 12])),
            ("RawHash", Value::BinaryAttachment(IoHash::of(raw))),
            ("RawSize", Value::Integer(raw.len() as u64)),
        ])
    });
    let record = Value::object([("Values", Value::Array(fields.collect()))]).encode(Style::Canonical);
    let path = format!("/api/v1/refs/test/mesh/{}", key("record"));
    assert_eq!(put_object(&client, &path, &record).await.len(), 5);
    for raw in &values {
        // Uncompressed, so that each is a large upload.
        let blob = format!("/api/v1/refs/test/Mesh/{}/blobs/{}", key("record"), IoHash::of(raw));
        let put = client.send("PUT", &blob, &["Content-Type: application/x-ue-comp"], store(raw)).await;
        assert_eq!(put.status, StatusCode::OK, "{}", put.text());
    }
    let finalise = format!("{path}/finalize/{}", IoHash::of(&record));
    assert_eq!(client.send("POST", &finalise, &[], "").await.text(), "{\"needs\":[]}");
    for raw in &values {
        let blob = format!("/api/v1/refs/test/mesh/{}/blobs/{}", key("record"), IoHash::of(raw));
        let got = client.get(&blob, "*/*").await;
        assert_eq!((got.header("Content-Type"), &got.body[..]), (COMP, &store(raw)[..]));
    }
    // Everything in one body, and back into another namespace.
    let all = client.get(&format!("{path}.uecbpkg"), "*/*").await;
    let parts = package::split(&all.body).expect("a package");
    assert_eq!((parts.len(), parts[0].1), (6, &record[..]));
    let other = path.replace("/test/", "/other/");
    let put = client.send("PUT", &other, &["Content-Type: application/x-ue-cbpkg"], all.body.clone()).await;
    assert_eq!(put.text(), "{\"needs\":[]}");
    assert_eq!(client.get(&format!("{other}.uecbpkg"), "*/*").await.body, all.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_are_asked_for_at_once() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let object = Value::object([("k", Value::string("v"))]).encode(Style::Canonical);
    put_object(&client, &format!("/api/v1/refs/n/b/{}", key("there")), &object).await;
    let missing = value_object(b"missing");
    put_object(&client, &format!("/api/v1/refs/n/b/{}", key("open")), &missing).await;
    let op = |id: u64, name: &str, of: &str, more: Vec<(&'static str, Value)>| {
        let fields = [
            ("opId", Value::Integer(id)),
            ("op", Value::string(name)),
            ("bucket", Value::string("B")),
            ("key", Value::string(&key(of))),
        ];
        Value::object(fields.into_iter().chain(more))
    };
    let resolve = || vec![("resolveAttachments", Value::Bool(true))];
    let put =
        vec![("payload", Value::Document(object.clone())), ("payloadHash", Value::Hash(IoHash::of(&object)))];
    let wrong =
        vec![("payload", Value::Document(object.clone())), ("payloadHash", Value::Hash(IoHash::ZERO))];
    let ops = vec![
        op(0, "GET", "there", resolve()),
        op(1, "GET", "nowhere", resolve()),
        op(2, "GET", "open", resolve()),
        op(3, "HEAD", "there", vec![]),
        op(4, "HEAD", "open", vec![]),
        op(5, "PUT", "new", put),
        op(6, "PUT", "newer", wrong),
    ];
    for style in [Style::Canonical, Style::Plain, Style::Separate] {
        let request = Value::object([("ops", Value::Array(ops.clone()))]).encode(style);
        let headers = ["Content-Type: application/x-ue-cb", "Accept: application/x-ue-cb"];
        let reply = client.send("POST", "/api/v1/refs/n", &headers, request).await;
        assert_eq!((reply.status, reply.header("Content-Type")), (StatusCode::OK, CB));
        let document = Document::parse(&reply.body).expect("a document");
        let results = document.get("results").expect("results");
        let codes: Vec<i128> =
            results.iter().map(|r| r.get("statusCode").and_then(|c| c.integer()).expect("a code")).collect();
        assert_eq!(codes, [200, 404, 400, 200, 404, 200, 400]);
        let first = results.iter().next().and_then(|r| r.get("response")).expect("a response");
        assert_eq!(first.to_document_bytes(), Some(object.clone()));
    }
    let twice = Value::object([("ops", Value::Array(vec![ops[0].clone(), ops[0].clone()]))]);
    let headers = ["Content-Type: application/x-ue-cb"];
    let reply = client.send("POST", "/api/v1/refs/n", &headers, twice.encode(Style::Plain)).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operations_of_a_batch_share_flushes_and_those_on_one_key_keep_their_order() {
    const KEYS: u64 = 500;
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let object = |n: u64| Value::object([("n", Value::Integer(n))]).encode(Style::Plain);
    let op = |id: u64, name: &str, of: &str, payload: Option<Vec<u8>>| {
        let mut fields = vec![
            ("opId", Value::Integer(id)),
            ("op", Value::string(name)),
            ("bucket", Value::string("b")),
            ("key", Value::string(&key(of))),
        ];
        if let Some(payload) = payload {
            fields.push(("payloadHash", Value::Hash(IoHash::of(&payload))));
            fields.push(("payload", Value::Document(payload)));
        }
        Value::object(fields)
    };
    let mut ops = Vec::new();
    for id in 0..KEYS {
        ops.push(op(2 * id, "PUT", &format!("own {id}"), Some(object(id))));
        // One key in turn: each GET sees the PUT before it.
        let turn = if id % 2 == 0 { Some(object(id)) } else { None };
        ops.push(op(2 * id + 1, if id % 2 == 0 { "PUT" } else { "GET" }, "shared", turn));
    }
    let before = server.service().store().stats().commits;
    let request = Value::object([("ops", Value::Array(ops))]).encode(Style::Plain);
    let headers = ["Content-Type: application/x-ue-cb", "Accept: application/x-ue-cb"];
    let reply = client.send("POST", "/api/v1/refs/n", &headers, request).await;
    let commits = server.service().store().stats().commits - before;
    let document = Document::parse(&reply.body).expect("a document");
    let results = document.get("results").expect("results");
    let mut seen = 0;
    for (place, result) in results.iter().enumerate() {
        let number = |name: &str| result.get(name).and_then(|field| field.integer());
        assert_eq!(number("statusCode"), Some(200), "{place}");
        assert_eq!(number("opId"), Some(place as i128), "results keep the order of the operations");
        let id = place as u64 / 2;
        if place % 2 == 1 && id % 2 == 1 {
            let response = result.get("response").expect("a response");
            assert_eq!(response.to_document_bytes(), Some(object(id - 1)), "{place}");
        }
        seen += 1;
    }
    assert_eq!(seen, 2 * KEYS);
    // The shared key has 250 changes, one after the other. Serial, all 750 would need a flush each.
    assert!(commits < KEYS / 2 + 100, "{commits} commits");
}

/// One operation of a blob batch.
fn blob_op(op: &str, id: &IoHash, content: Option<&[u8]>) -> serde_json::Value {
    use base64::Engine as _;
    let mut fields = serde_json::json!({"op": op, "Namespace": "n", "id": id.to_string()});
    if let Some(content) = content {
        fields["content"] = base64::engine::general_purpose::STANDARD.encode(content).into();
    }
    fields
}

async fn blob_batch(client: &Client, ops: Vec<serde_json::Value>) -> common::Reply {
    let body = serde_json::json!({ "operations": ops }).to_string();
    client.send("POST", "/api/v1/blobs", &["Content-Type: application/json"], body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operations_of_a_blob_batch_share_flushes_and_those_on_one_blob_keep_their_order() {
    use base64::Engine as _;
    const BLOBS: usize = 500;
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let base64 = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let (shared, id) = (b"one after the other", IoHash::of(b"one after the other"));
    let (mut ops, mut wanted) = (Vec::new(), Vec::new());
    let name = |id: &IoHash| serde_json::Value::from(format!("{id:X}"));
    let turns = [("HEAD", name(&id)), ("PUT", name(&id)), ("GET", base64(shared).into())];
    let turns =
        [&turns[..], &[("HEAD", serde_json::Value::Null), ("DELETE", serde_json::Value::Null)]].concat();
    for number in 0..BLOBS {
        let content = format!("blob {number}");
        let own = IoHash::of(content.as_bytes());
        ops.push(blob_op("PUT", &own, Some(content.as_bytes())));
        wanted.push(name(&own));
        if number % 50 == 0 {
            let (op, answer) = &turns[number / 50 % turns.len()];
            ops.push(blob_op(op, &id, (*op == "PUT").then_some(&shared[..])));
            wanted.push(answer.clone());
        }
    }
    let before = server.service().store().stats().commits;
    let reply = blob_batch(&client, ops).await;
    let commits = server.service().store().stats().commits - before;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&reply.body).expect("JSON"),
        serde_json::Value::Array(wanted)
    );
    // Four changes of one blob, each after the one before; the others share flushes with them.
    assert!(commits < 40, "{commits} commits");

    // One that fails has its own answer, and takes none of the others along.
    let (new, absent) = (IoHash::of(b"new"), IoHash::of(b"absent"));
    let ops =
        vec![blob_op("GET", &absent, None), blob_op("PUT", &new, Some(b"new")), blob_op("GET", &new, None)];
    let reply = blob_batch(&client, ops).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    let missing = serde_json::json!({"title": "no such blob", "status": 404});
    let wanted = serde_json::json!([missing, format!("{new:X}"), base64(b"new")]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&reply.body).expect("JSON"), wanted);
    assert_eq!(blob_batch(&client, vec![]).await.text(), "[]");
    // Nothing of a malformed batch is done.
    let ops = vec![blob_op("DELETE", &new, None), blob_op("PUT", &new, Some(b"other"))];
    assert_eq!(blob_batch(&client, ops).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(blob_batch(&client, vec![blob_op("GET", &new, None)]).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_batch_never_answers_with_damaged_bytes() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let bytes = b"bytes that one bit will change".repeat(100);
    let id = IoHash::of(&bytes);
    let put = vec![blob_op("PUT", &id, Some(&bytes))];
    assert_eq!(blob_batch(&server.client().await, put.clone()).await.status, StatusCode::OK);
    let folder = server.stop();
    let mut flipped = false;
    for file in std::fs::read_dir(folder.path().join("segments")).expect("it exists") {
        let file = file.expect("readable").path();
        let mut content = std::fs::read(&file).expect("readable");
        if let Some(at) = content.windows(bytes.len()).position(|window| window == bytes) {
            content[at + 1_000] ^= 1;
            std::fs::write(&file, content).expect("writable");
            flipped = true;
        }
    }
    assert!(flipped, "the blob lies in a segment");
    let options = throng_ddc_store::Options::default();
    let origin = throng_ddc_server::Origin::Alone;
    let server = Server::start_in(folder, options, Rules::default(), Listener::Public, origin).await;
    let client = server.client().await;
    let get = || vec![blob_op("GET", &id, None)];
    assert!(blob_batch(&client, get()).await.text().contains("\"status\":404"));
    assert_eq!(blob_batch(&client, put).await.status, StatusCode::OK);
    assert!(!blob_batch(&client, get()).await.text().contains("status"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_batch_is_bounded() {
    const COUNT: u64 = 9;
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    // Nine of them are more than 64 MiB.
    let large = vec![7; 8 << 20];
    let blob = format!("/api/v1/blobs/n/{}", IoHash::of(&large));
    let octets = "Content-Type: application/octet-stream";
    assert_eq!(client.send("PUT", &blob, &[octets], large.clone()).await.status, StatusCode::OK);
    let get = blob_op("GET", &IoHash::of(&large), None);
    let reply = blob_batch(&client, vec![get; COUNT as usize]).await;
    assert_eq!(reply.status, StatusCode::OK);
    let elements: Vec<serde_json::Value> = serde_json::from_slice(&reply.body).expect("JSON");
    let codes: Vec<_> = elements.iter().map(|element| element["status"].as_u64()).collect();
    assert_eq!(codes, [&[None; 8][..], &[Some(413)]].concat());

    let object = Value::object([("large", Value::Binary(large))]).encode(Style::Plain);
    put_object(&client, &format!("/api/v1/refs/n/b/{}", key("large")), &object).await;
    let op = |id: u64| {
        Value::object([
            ("opId", Value::Integer(id)),
            ("op", Value::string("GET")),
            ("bucket", Value::string("b")),
            ("key", Value::string(&key("large"))),
        ])
    };
    let request = Value::object([("ops", Value::Array((0..COUNT).map(op).collect()))]).encode(Style::Plain);
    let headers = ["Content-Type: application/x-ue-cb", "Accept: application/x-ue-cb"];
    let reply = client.send("POST", "/api/v1/refs/n", &headers, request).await;
    let document = Document::parse(&reply.body).expect("a document");
    let results = document.get("results").expect("results");
    let codes: Vec<i128> =
        results.iter().map(|r| r.get("statusCode").and_then(|c| c.integer()).expect("a code")).collect();
    assert_eq!(codes, [200, 200, 200, 200, 200, 200, 200, 413, 413]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_upload_of_the_published_example_has_its_hash() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let path = format!("/api/v1/refs/test/default/{}", key("test"));
    let hash = "X-Jupiter-IoHash: 4878CA0425C739FA427F7EDA20FE845F6B2E46BA";
    let octets = "Content-Type: application/octet-stream";
    assert_eq!(client.send("PUT", &path, &[octets, hash], "test").await.text(), "{\"needs\":[]}");
    let got = client.get(&path, "*/*").await;
    assert_eq!(got.header("X-Jupiter-IoHash"), "7D873DCC262F62FBAA871FE61B2B52D715A1171E");
    assert_eq!(client.get(&format!("{path}.raw"), "*/*").await.text(), "test");
    let json = client.get(&format!("{path}.json"), "*/*").await;
    assert_eq!(json.text(), "{\"RawHash\":\"4878ca0425c739fa427f7eda20fe845f6b2e46ba\",\"RawSize\":4}");
    let wrong = client.send("PUT", &path, &[octets, hash], "tests").await;
    assert_eq!(
        (wrong.status, wrong.header("Content-Type")),
        (StatusCode::BAD_REQUEST, "application/problem+json")
    );
    assert_eq!(client.send("PUT", &path, &[octets], "test").await.status, StatusCode::BAD_REQUEST);

    let blob = format!("/api/v1/blobs/test/{}", IoHash::of(b"test"));
    let answer = client.send("PUT", &blob, &[octets, "Accept: application/x-ue-cb"], "test").await;
    assert_eq!(answer.header("Content-Type"), CB);
    let tag = client.get(&blob, "*/*").await.header("ETag").to_owned();
    let not_modified = client.send("GET", &blob, &[&format!("If-None-Match: {tag}")], "").await;
    assert_eq!((not_modified.status, not_modified.body.len()), (StatusCode::NOT_MODIFIED, 0));
    let head = client.send("HEAD", &blob, &[], "").await;
    assert_eq!((head.status, head.header("Content-Length")), (StatusCode::OK, "4"));
    let beyond = client.send("GET", &blob, &["Range: bytes=4-"], "").await;
    assert_eq!(
        (beyond.status, beyond.header("Content-Range")),
        (StatusCode::RANGE_NOT_SATISFIABLE, "bytes */4")
    );
    let exists = format!("/api/v1/blobs/test/exists?id={}&id={}", IoHash::of(b"test"), IoHash::of(b"no"));
    let needs = client.send("POST", &exists, &["Content-Type: application/x-www-form-urlencoded"], "").await;
    assert_eq!(needs.text(), format!("{{\"needs\":[\"{:X}\"]}}", IoHash::of(b"no")));
    let gone = client.send("DELETE", &blob, &[], "").await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    // The ref whose blob went away is a miss, and the next upload says what is needed.
    assert_eq!(client.send("HEAD", &path, &[], "").await.status, StatusCode::NOT_FOUND);
    let inline = client.get(&path, "application/x-jupiter-inline").await;
    assert_eq!(inline.status, StatusCode::NOT_FOUND);
    let object = Value::object([
        ("RawHash", Value::BinaryAttachment(IoHash::of(b"test"))),
        ("RawSize", Value::Integer(4)),
    ]);
    assert_eq!(put_object(&client, &path, &object.encode(Style::Separate)).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_over_a_damaged_part_is_a_miss() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let bytes: Vec<u8> = (0..5_u32 << 20).map(|at| (at >> 7) as u8).collect();
    let path = format!("/api/v1/blobs/test.game/{}", IoHash::of(&bytes));
    let octets = "Content-Type: application/octet-stream";
    assert_eq!(
        server.client().await.send("PUT", &path, &[octets], bytes.clone()).await.status,
        StatusCode::OK
    );
    let folder = server.stop();
    let mut files = std::fs::read_dir(folder.path().join("large")).expect("it exists");
    let file = files.next().expect("the blob").expect("readable").path();
    let mut damaged = std::fs::read(&file).expect("readable");
    damaged[3_000_000] ^= 1;
    std::fs::write(&file, damaged).expect("writable");
    let options = throng_ddc_store::Options::default();
    let origin = throng_ddc_server::Origin::Alone;
    let server = Server::start_in(folder, options, Rules::default(), Listener::Public, origin).await;
    let client = server.client().await;
    // Parts that lie elsewhere are served.
    let sound = client.send("GET", &path, &["Range: bytes=5000-5099"], "").await;
    assert_eq!((sound.status, &sound.body[..]), (StatusCode::PARTIAL_CONTENT, &bytes[5000..5100]));
    let part = client.send("GET", &path, &["Range: bytes=2999990-3000100"], "").await;
    assert_eq!(part.status, StatusCode::NOT_FOUND);
    assert_eq!(server.service().stats().damaged, 1);
    assert_eq!(client.send("PUT", &path, &[octets], bytes.clone()).await.status, StatusCode::OK);
    let part = client.send("GET", &path, &["Range: bytes=2999990-3000100"], "").await;
    assert_eq!((part.status, &part.body[..]), (StatusCode::PARTIAL_CONTENT, &bytes[2_999_990..3_000_101]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_describes_the_form_that_a_get_sends() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let raw = vec![7; 30_000];
    let id = IoHash::of(&raw);
    let buffer = format!("/api/v1/compressed-blobs/game/{id}");
    let headers = ["Content-Type: application/x-ue-comp"];
    assert_eq!(client.send("PUT", &buffer, &headers, compress_lz4(&raw, 16)).await.status, StatusCode::OK);
    let fields = [("RawHash", Value::BinaryAttachment(id)), ("RawSize", Value::Integer(30_000))];
    let object = Value::object(fields).encode(Style::Plain);
    let path = format!("/api/v1/refs/game/default/{id}");
    assert!(put_object(&client, &path, &object).await.is_empty());
    let forms = [
        "*/*",
        "application/x-ue-cb",
        "application/json",
        "application/octet-stream",
        "application/x-jupiter-inline",
        "application/x-ue-cbpkg",
    ];
    for accept in forms {
        let accept = format!("Accept: {accept}");
        let get = client.send("GET", &path, &[&accept], "").await;
        assert_eq!(get.status, StatusCode::OK, "{accept}");
        let head = client.send("HEAD", &path, &[&accept], "").await;
        assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0), "{accept}");
        assert_eq!(head.header("Content-Length"), get.body.len().to_string(), "{accept}");
        for name in ["Content-Type", "ETag", "X-Jupiter-IoHash", "X-Jupiter-InlinePayloadHash"] {
            assert_eq!(head.header(name), get.header(name), "{accept}: {name}");
        }
    }
    // A client that knows none of them learns that the ref is there.
    assert_eq!(client.send("HEAD", &path, &["Accept: text/html"], "").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_keeps_what_an_open_ref_reaches() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let store = server.service().store();
    let namespace: Namespace = "game".parse().expect("a name");
    // It was put long ago, and no ref reaches it.
    let bytes = bytes::Bytes::from_static(b"there already");
    let (attached, missing) = (IoHash::of(&bytes), IoHash::of(b"on its way"));
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = Box::new(move |outcome| drop(sender.send(outcome)));
    store.put_blob(&namespace, attached, bytes.clone(), Timestamp::from_unix_ms(1), done);
    receiver.recv().expect("it is answered").expect("it is stored");
    let path = |n: u64| format!("/api/v1/refs/game/default/{n:040}");
    let closed = Value::object([("n", Value::Integer(1))]).encode(Style::Plain);
    assert!(put_object(&client, &path(2), &closed).await.is_empty());
    let attachments = [attached, missing].map(Value::BinaryAttachment).to_vec();
    let open = Value::object([("a", Value::Array(attachments))]).encode(Style::Plain);
    // The ref comes when the collection has passed its key.
    let (store, runtime) = (Arc::clone(store), tokio::runtime::Handle::current());
    let collected = tokio::task::spawn_blocking(move || {
        store.collect(&CollectOptions {
            now: store.clock().now(),
            policy: &|_| RefPolicy::Keep,
            last_access: &|_, _, _| {
                let needs = runtime.block_on(put_object(&client, &path(1), &open));
                assert_eq!(needs, [format!("{missing:X}")]);
                None
            },
            blob_age_min: std::time::Duration::from_secs(3600),
        })
    });
    collected.await.expect("no panic").expect("the disk works");
    let client = server.client().await;
    assert_eq!(client.get(&format!("/api/v1/blobs/game/{attached}"), "*/*").await.body, bytes);
}
