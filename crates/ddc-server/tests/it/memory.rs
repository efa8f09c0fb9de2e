//! Memory that bodies and answers to batches hold.

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common;

use std::io::ErrorKind;
use std::net::SocketAddr;

use crate::strangers::{HEADERS, Http2, frame, get};
use common::{Client, Reply, Server};
use futures_util::future::join_all;
use hyper::StatusCode;
use throng_ddc::compressed::compress_lz4;
use throng_ddc::{Document, Hasher, IoHash, Style, Value};
use throng_ddc_server::{Listener, Rules};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

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
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{}", reply.text());
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
    // Part of the results would tell the client that the others are missing.
    let reply = gets(&client, COUNT).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{}", reply.text());
    assert_eq!((reply.header("Retry-After"), server.service().stats().overloaded), ("1", 1));
    assert_eq!(codes(&gets(&client, 10).await, &object), [200; 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_batch_needs_no_memory() {
    let server = server(256).await;
    let client = server.client().await;
    let object = put_object(&client, 50).await;
    assert_eq!(codes(&gets(&client, 100).await, &object), [200; 100]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_objects_are_read_as_the_client_takes_them() {
    let server = server(10 << 20).await;
    let client = server.client().await;
    let object = put_object(&client, 8 << 20).await;
    assert_eq!(codes(&gets(&client, 7).await, &object), [200; 7]);
}

const COMP: &str = "Content-Type: application/x-ue-comp";
const MIB: usize = 1 << 20;

/// Uploads a compressed buffer and a ref to its raw data, which has the hash `id`. Gives the path
/// of the ref.
async fn put_compressed(client: &Client, id: &IoHash, raw_size: usize, buffer: Vec<u8>) -> String {
    let path = format!("/api/v1/compressed-blobs/n/{id}");
    let reply = client.send("PUT", &path, &[COMP], buffer).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    put_ref_to(client, id, raw_size).await
}

async fn put_ref_to(client: &Client, id: &IoHash, raw_size: usize) -> String {
    let object = Value::object([
        ("RawHash", Value::BinaryAttachment(*id)),
        ("RawSize", Value::Integer(raw_size as u64)),
    ]);
    let object = object.encode(Style::Plain);
    let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&object));
    let path = format!("/api/v1/refs/n/b/{}", key());
    let reply = client.send("PUT", &path, &[CB, &hash], object).await;
    assert_eq!(reply.text(), r#"{"needs":[]}"#);
    path
}

/// Hash of `len` zeros.
fn zeros_hash(len: usize) -> IoHash {
    let (mut hasher, piece) = (Hasher::new(), vec![0; MIB]);
    (0..len / MIB).for_each(|_| hasher.update(&piece));
    hasher.finish()
}

/// Asks for `path` on a connection of its own. Gives the head of the answer; nothing of the body is
/// read.
async fn head_of(addr: SocketAddr, path: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(addr).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("an answer"));
    }
    (String::from_utf8(head).expect("text"), stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_raw_data_that_do_not_read_give_way_to_those_that_do() {
    const READERS: usize = 24;
    const RAW: usize = 64 * MIB;
    // A block of 256 KiB, compressed and twice raw, and a table: about 0.7 MiB each.
    let server = server(4 << 20).await;
    let client = server.client().await;
    let id = zeros_hash(RAW);
    let path = put_compressed(&client, &id, RAW, compress_lz4(&vec![0; RAW], 18)).await;
    let raw = format!("{path}.raw");
    let held = join_all((0..READERS).map(|_| head_of(server.addr, &raw))).await;
    let count = |status: &str| held.iter().filter(|(head, _)| head.starts_with(status)).count();
    assert_eq!(count("HTTP/1.1 200 ") + count("HTTP/1.1 429 "), READERS);
    // A HEAD needs no memory.
    let reply = client.send("HEAD", &raw, &[], "").await;
    assert_eq!((reply.status, reply.header("Content-Length")), (StatusCode::OK, "67108864"));
    // They stay.
    let is_read = async || loop {
        let (head, mut stream) = head_of(server.addr, &raw).await;
        if head.starts_with("HTTP/1.1 200 ") {
            let mut body = Vec::new();
            stream.read_to_end(&mut body).await.expect("all of it");
            return body == vec![0; RAW];
        }
    };
    assert!(is_read().await);
    // The same over HTTP/2, with streams that have no window.
    let mut streams = Http2::connect(server.addr, 0);
    (0..READERS as u32).for_each(|at| streams.send(&frame(HEADERS, 5, 2 * at + 1, &get(&raw))));
    assert!(is_read().await);
    drop(streams);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_data_of_any_size_is_served_from_the_memory_of_a_block() {
    const RAW: usize = 272 * MIB;
    let server = server(1 << 20).await;
    let client = server.client().await;
    let id = zeros_hash(RAW);
    let path = put_compressed(&client, &id, RAW, compress_lz4(&vec![0; RAW], 18)).await;
    let (head, mut stream) = head_of(server.addr, &format!("{path}.raw")).await;
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains(&format!("content-length: {RAW}\r\n")),
        "{head}"
    );
    let (mut hasher, mut piece, mut len) = (Hasher::new(), vec![0; MIB], 0);
    loop {
        let count = stream.read(&mut piece).await.expect("all of it");
        if count == 0 {
            break;
        }
        hasher.update(&piece[..count]);
        len += count;
    }
    assert_eq!((len, hasher.finish()), (RAW, id));
}

/// A buffer whose last block holds something else than its header's hash says, and that hash.
fn with_another_end(raw_size: usize) -> (IoHash, Vec<u8>) {
    let mut raw = vec![0; raw_size];
    let mut buffer = compress_lz4(&raw, 18);
    raw[raw_size - (256 << 10)..].fill(1);
    let other = compress_lz4(&raw, 18);
    assert_eq!(buffer.len(), other.len(), "blocks of one byte value take the same bytes");
    // The last block takes fewer bytes than the header has.
    let table = 64 + 4 * raw_size.div_ceil(256 << 10);
    let last = u32::from_be_bytes(buffer[table - 4..table].try_into().expect("a size")) as usize;
    let at = buffer.len() - last;
    buffer[at..].copy_from_slice(&other[at..]);
    (zeros_hash(raw_size), buffer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_raw_data_is_withheld_if_it_is_something_else() {
    let server = server(4 << 20).await;
    let client = server.client().await;
    for raw_size in [32 * MIB, 80 * MIB] {
        let (id, buffer) = with_another_end(raw_size);
        let hash = IoHash::of(&buffer);
        // No upload of it as a compressed buffer passes; as a blob that is named as a form it does.
        let reply = client
            .send(
                "PUT",
                &format!("/api/v1/blobs/n/{hash}"),
                &["Content-Type: application/octet-stream"],
                buffer,
            )
            .await;
        assert_eq!(reply.status, StatusCode::OK);
        let update = format!("/api/v1/content-id/n/{id}/update/{hash}/1");
        assert_eq!(client.send("PUT", &update, &[], "").await.status, StatusCode::OK);
        let path = put_ref_to(&client, &id, raw_size).await;
        let (head, mut stream) = head_of(server.addr, &format!("{path}.raw")).await;
        if raw_size <= 64 * MIB {
            assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
            continue;
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let (mut piece, mut len) = (vec![0; MIB], 0);
        while let Ok(count @ 1..) = stream.read(&mut piece).await {
            assert!(piece[..count].iter().all(|byte| *byte == 0));
            len += count;
        }
        assert!(len < raw_size, "{len} of {raw_size}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_data_under_the_name_of_other_data_is_not_served() {
    let server = server(4 << 20).await;
    let client = server.client().await;
    let (good, evil) = (b"good".repeat(100), b"evil".repeat(100));
    let buffer = compress_lz4(&evil, 18);
    let hash = IoHash::of(&buffer);
    let octets = "Content-Type: application/octet-stream";
    client.send("PUT", &format!("/api/v1/blobs/n/{hash}"), &[octets], buffer).await;
    let update = format!("/api/v1/content-id/n/{}/update/{hash}/1", IoHash::of(&good));
    assert_eq!(client.send("PUT", &update, &[], "").await.status, StatusCode::OK);
    let path = put_ref_to(&client, &IoHash::of(&good), good.len()).await;
    let reply = client.get(&format!("{path}.raw"), "*/*").await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND, "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_with_large_blocks_hold_the_memory_of_their_decoder() {
    const RAW: usize = 40 * MIB;
    let server = server(48 << 20).await;
    let id = zeros_hash(RAW);
    // Blocks of 16 MiB, which compress to 64 KiB each.
    let buffer = compress_lz4(&vec![0; RAW], 24);
    let path = format!("/api/v1/compressed-blobs/n/{id}");
    let mut slow = TcpStream::connect(server.addr).await.expect("it listens");
    let most = &buffer[..buffer.len() - 1];
    // A short body of declared length is handed on as a whole.
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: localhost\r\n{COMP}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n",
        most.len()
    );
    slow.write_all(&[head.as_bytes(), most, b"\r\n"].concat()).await.expect("it reads");
    // Once the slow one has its memory, another waits for it, and gets it.
    let (client, mut answer) = (server.client().await, [0; 1_024]);
    let answer = loop {
        let reply = client.send("PUT", &path, &[COMP], buffer.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        match slow.try_read(&mut answer) {
            Ok(count) => break String::from_utf8_lossy(&answer[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    };
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    // A 16th of what it holds, of which the decoder has 32 MiB.
    let least =
        answer.split_once("less than ").and_then(|(_, rest)| rest.split_once(" KiB came in a second"));
    let least: u64 = least.and_then(|(least, _)| least.parse().ok()).expect("a number");
    assert!((2 << 10..3 << 10).contains(&least), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_made_of_an_object_is_taken_from_the_memory_of_all() {
    use throng_ddc::package::{Entry, Flags, Table};
    const RAW: usize = 64 * MIB;
    let server = server(1 << 20).await;
    let client = server.client().await;
    let zeros = Value::object([("zeros", Value::Binary(vec![0; 300 << 10]))]).encode(Style::Plain);
    let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&zeros));
    let json = format!("/api/v1/refs/n/other/{}", key());
    assert_eq!(client.send("PUT", &json, &[CB, &hash], zeros).await.status, StatusCode::OK);
    let id = zeros_hash(RAW);
    let raw = put_compressed(&client, &id, RAW, compress_lz4(&vec![0; RAW], 18)).await;

    let object = Value::object([("zeros", Value::Binary(vec![0; 8 * MIB]))]).encode(Style::Plain);
    let root = compress_lz4(&object, 18);
    let flags = Flags::OBJECT.and(Flags::COMPRESSED);
    let entry = Entry { size: root.len() as u64, flags, hash: IoHash::of(&object) };
    let package = [Table { entries: vec![entry] }.write(), root].concat();
    let path = format!("/api/v1/refs/n/package/{}", key());
    let put = || client.send("PUT", &path, &["Content-Type: application/x-ue-cbpkg"], package.clone());
    let get = || client.send("GET", &json, &["Accept: application/json"], "");

    // Each waits for what a stalled reader holds, who loses it.
    let stalled = async || {
        let (head, stream) = head_of(server.addr, &format!("{raw}.raw")).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        stream
    };
    let has_lost = async |mut stream: TcpStream| {
        let mut body = Vec::new();
        stream.read_to_end(&mut body).await.is_err() || body.len() < RAW
    };
    let reader = stalled().await;
    assert_eq!(put().await.status, StatusCode::OK);
    assert!(has_lost(reader).await);
    let reader = stalled().await;
    assert_eq!(get().await.status, StatusCode::OK);
    assert!(has_lost(reader).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_json_of_a_large_object_takes_little_more_memory_than_the_object() {
    // The object fits once, and its JSON is six times as long.
    let server = server(10 << 20).await;
    let client = server.client().await;
    let text = "\u{1}".repeat(8 * MIB);
    let object = Value::object([("text", Value::string(&text))]).encode(Style::Plain);
    let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&object));
    let path = format!("/api/v1/refs/n/b/{}", key());
    assert_eq!(client.send("PUT", &path, &[CB, &hash], object).await.text(), r#"{"needs":[]}"#);
    let got = client.get(&format!("{path}.json"), "*/*").await;
    assert_eq!(got.status, StatusCode::OK);
    assert!(got.body == format!("{{\"text\":\"{}\"}}", "\\u0001".repeat(8 * MIB)));
    let head = client.send("HEAD", &format!("{path}.json"), &[], "").await;
    assert_eq!(head.header("Content-Length"), got.body.len().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_of_many_small_blobs_is_read_as_it_is_sent() {
    use throng_ddc::package::{HEAD_BYTES, Table};
    let server = server(1 << 20).await;
    let client = server.client().await;
    let blobs: Vec<Vec<u8>> = (0..200_u8).map(|at| vec![at; 10_000]).collect();
    for blob in &blobs {
        let path = format!("/api/v1/blobs/n/{}", IoHash::of(blob));
        let reply =
            client.send("PUT", &path, &["Content-Type: application/octet-stream"], blob.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    }
    let attachments = blobs.iter().map(|blob| Value::BinaryAttachment(IoHash::of(blob))).collect();
    let object = Value::object([("blobs", Value::Array(attachments))]).encode(Style::Plain);
    let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&object));
    let path = format!("/api/v1/refs/n/b/{}", key());
    assert_eq!(client.send("PUT", &path, &[CB, &hash], object.clone()).await.text(), r#"{"needs":[]}"#);
    let package = client.get(&path, "application/x-ue-cbpkg").await.body;
    let table_bytes = Table::bytes_needed(&package[..HEAD_BYTES]).expect("a head");
    let table = Table::read(&package[..table_bytes]).expect("a table");
    let mut rest = &package[table_bytes..];
    for (entry, expected) in table.entries.iter().zip(std::iter::once(&object).chain(&blobs)) {
        let (payload, behind) = rest.split_at(entry.size as usize);
        assert!(payload == expected && entry.hash == IoHash::of(expected));
        rest = behind;
    }
    assert_eq!((table.entries.len(), rest.len()), (201, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_of_any_size_are_stored_when_others_hold_all_memory() {
    let server = server(20 << 10).await;
    let client = server.client().await;
    let noise: Vec<u8> = (0_u32..800_000).flat_map(|at| at.wrapping_mul(0x9E37_79B9).to_be_bytes()).collect();
    for len in [1, 16 << 10, (16 << 10) + 1, 60_000, 400_000, MIB, MIB + 1, 3_000_000] {
        let content = &noise[..len];
        let path = format!("/api/v1/blobs/n/{}", IoHash::of(content));
        let octets = "Content-Type: application/octet-stream";
        let reply = client.send("PUT", &path, &[octets], content.to_vec()).await;
        assert_eq!(reply.status, StatusCode::OK, "{len}: {}", reply.text());
        // In chunks, on a connection that goes on.
        let mut stream = TcpStream::connect(server.addr).await.expect("it listens");
        let mut bytes =
            format!("PUT /kv/n/{len} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
                .into_bytes();
        for chunk in content.chunks(70_001) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(
            b"0\r\n\r\nGET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        );
        let mut answers = String::new();
        let (mut read, mut write) = stream.split();
        let (sent, _) = tokio::join!(write.write_all(&bytes), read.read_to_string(&mut answers));
        sent.expect("it reads");
        assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 2, "{len}: {answers}");
        for path in [&*path, &format!("/kv/n/{len}")] {
            assert!(client.get(path, "*/*").await.body == content, "{path}: {len}");
        }
    }
}
