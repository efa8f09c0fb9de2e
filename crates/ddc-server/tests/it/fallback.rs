//! Blobs that are not here: in another namespace, at an address of the object storage, or on their
//! way.

#![cfg(feature = "object-storage")]

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common;
use crate::s3;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{Client, Server};
use futures_util::stream::{self, StreamExt as _};
use hyper::{Request, StatusCode};
use s3::S3;
use throng_ddc::compressed::{OodleDecoder, OodleOutcome, compress_lz4, wrap_oodle};
use throng_ddc::policy::{Acl, Action, Policies, Policy, Scope};
use throng_ddc::{IoHash, Style, Value};
use throng_ddc_server::{
    Access, Listener, NamespaceRules, Origin, Rules, Service, Tokens, Upstream, UpstreamOptions,
};
use throng_ddc_store::{Options, Store};
use throng_platform::{DiskState, Fs as _, SimulatedDisk};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

const OCTETS: &str = "Content-Type: application/octet-stream";
const COMP: &str = "Content-Type: application/x-ue-comp";

/// The namespace `game` takes from `engine` what it does not have.
fn rules() -> Rules {
    let mut rules = Rules::default();
    let fallback = Some("engine".parse().expect("a name"));
    let game = NamespaceRules { fallback, fills_fallback: false, ..NamespaceRules::default() };
    rules.namespaces.insert("game".parse().expect("a name"), game);
    rules
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_takes_over_what_its_fallback_has() {
    let server = Server::start(rules(), Listener::Public).await;
    let client = server.client().await;
    let (small, large, raw) = (vec![1_u8; 5_000], vec![2_u8; 3 << 20], vec![3_u8; 70_000]);
    let compressed = compress_lz4(&raw, 18);
    let blob = |namespace: &str, bytes: &[u8]| format!("/api/v1/blobs/{namespace}/{}", IoHash::of(bytes));
    for bytes in [&small, &large] {
        let put = client.send("PUT", &blob("engine", bytes), &[OCTETS], bytes.clone()).await;
        assert_eq!(put.status, StatusCode::OK);
    }
    let form = |namespace: &str| format!("/api/v1/compressed-blobs/{namespace}/{}", IoHash::of(&raw));
    assert_eq!(client.send("PUT", &form("engine"), &[COMP], compressed.clone()).await.status, StatusCode::OK);

    assert_eq!(client.get(&blob("game", &small), "*/*").await.body, small);
    assert_eq!(client.send("HEAD", &blob("game", &large), &[], "").await.header("Content-Length"), "3145728");
    assert_eq!(client.get(&form("game"), "*/*").await.body, compressed);
    // They are its own now, and nothing goes the other way.
    assert_eq!(client.send("DELETE", "/api/v1/blobs/engine", &[], "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(client.get(&blob("engine", &small), "*/*").await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get(&blob("game", &large), "*/*").await.body, large);
    assert_eq!(client.get(&form("game"), "*/*").await.body, compressed);
    assert_eq!(client.get(&blob("game", b"nowhere"), "*/*").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_taken_over_for_who_may_not_read_it() {
    let grant = |claim: &str, namespace: &str| Policy {
        name: claim.to_owned(),
        acl: Acl { claims: vec![claim.to_owned()], actions: Action::ALL.to_vec() },
        namespaces: vec![Scope::of([namespace])],
        buckets: Vec::new(),
    };
    let tokens =
        Tokens::parse("token-of-the-builder group=all\ntoken-of-the-artist group=game\n").expect("tokens");
    let policies = Policies(vec![grant("group=all", "*"), grant("group=game", "game")]);
    let access = Access { identify: vec![Box::new(tokens)], policies, ..Access::default() };
    let server = Server::start(Rules { access, ..rules() }, Listener::Public).await;
    let client = server.client().await;
    let bytes = b"of the engine".to_vec();
    let [engine, game] =
        ["engine", "game"].map(|name| format!("/api/v1/blobs/{name}/{}", IoHash::of(&bytes)));
    let [builder, artist] =
        ["builder", "artist"].map(|name| format!("Authorization: ServiceAccount token-of-the-{name}"));
    let put = client.send("PUT", &engine, &[OCTETS, &builder], bytes.clone()).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.text());
    assert_eq!(client.send("GET", &game, &[&artist], "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.send("GET", &game, &[&builder], "").await.body, bytes);
    // It belongs to the namespace since, and to whoever may read that.
    assert_eq!(client.send("GET", &game, &[&artist], "").await.body, bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_go_to_the_fallback_too_if_who_uploads_may_write_there() {
    let grant = |claim: &str, namespaces: &[&str]| Policy {
        name: claim.to_owned(),
        acl: Acl { claims: vec![claim.to_owned()], actions: Action::ALL.to_vec() },
        namespaces: vec![Scope::of(namespaces.iter().copied())],
        buckets: Vec::new(),
    };
    let tokens =
        Tokens::parse("token-of-the-builder group=all\ntoken-of-the-artist group=game\n").expect("tokens");
    let policies = Policies(vec![grant("group=all", &["*"]), grant("group=game", &["game", "alone"])]);
    let access = Access { identify: vec![Box::new(tokens)], policies, ..Access::default() };
    let mut rules = Rules { access, ..Rules::default() };
    for (name, fills_fallback) in [("game", true), ("alone", false)] {
        let fallback = Some("engine".parse().expect("a name"));
        let namespace = NamespaceRules { fallback, fills_fallback, ..NamespaceRules::default() };
        rules.namespaces.insert(name.parse().expect("a name"), namespace);
    }
    let server = Server::start(rules, Listener::Public).await;
    let client = server.client().await;
    let auth = |who: &str| format!("Authorization: ServiceAccount token-of-the-{who}");
    let is_there =
        async |path: &str| client.send("HEAD", path, &[&auth("builder")], "").await.status == StatusCode::OK;
    let cases = [("builder", "game", true), ("artist", "game", false), ("builder", "alone", false)];
    for (who, namespace, expected) in cases {
        let auth = auth(who);
        let (blob, raw) = (format!("{who} {namespace}").into_bytes(), vec![who.len() as u8; 70_000]);
        let raw = [raw, namespace.as_bytes().to_vec()].concat();
        let (large, of_ref) = ([&blob[..], &[1; 3 << 20]].concat(), [&blob[..], b" ref"].concat());
        let put = async |path: &str, headers: &[&str], bytes: &[u8]| {
            let put = client.send("PUT", path, &[headers, &[auth.as_str()]].concat(), bytes.to_vec()).await;
            assert_eq!(put.status, StatusCode::OK, "{path}: {}", put.text());
        };
        for bytes in [&blob, &large] {
            put(&format!("/api/v1/blobs/{namespace}/{}", IoHash::of(bytes)), &[OCTETS], bytes).await;
        }
        let form = format!("compressed-blobs/{namespace}/{}", IoHash::of(&raw));
        put(&format!("/api/v1/{form}"), &[COMP], &compress_lz4(&raw, 18)).await;
        let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&of_ref));
        let name = format!("/api/v1/refs/{namespace}/default/{}", IoHash::of(b"key"));
        put(&name, &[OCTETS, &hash], &of_ref).await;
        for bytes in [&blob, &large, &of_ref] {
            let path = format!("/api/v1/blobs/engine/{}", IoHash::of(bytes));
            assert_eq!(is_there(&path).await, expected, "{who} {namespace}");
        }
        let path = format!("/api/v1/compressed-blobs/engine/{}", IoHash::of(&raw));
        assert_eq!(is_there(&path).await, expected, "{who} {namespace}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oodle_is_verified_if_something_decodes_it() {
    /// Blocks repeat their first byte.
    #[derive(Debug)]
    struct Repeats;
    impl OodleDecoder for Repeats {
        fn decode(&self, block: &[u8], raw: &mut [u8]) -> OodleOutcome {
            raw.fill(block[0]);
            OodleOutcome::Decoded
        }
    }
    let raw = vec![7; 10_000];
    let path = format!("/api/v1/compressed-blobs/game/{}", IoHash::of(&raw));
    let right = wrap_oodle(&raw, 18, &[vec![7, 0]]);
    let wrong = wrap_oodle(&raw, 18, &[vec![8, 0]]);
    for (oodle, unverified, expected) in [
        (false, true, [StatusCode::OK, StatusCode::OK]),
        (false, false, [StatusCode::BAD_REQUEST; 2]),
        (true, true, [StatusCode::OK, StatusCode::BAD_REQUEST]),
        (true, false, [StatusCode::OK, StatusCode::BAD_REQUEST]),
    ] {
        let default = NamespaceRules { unverified, ..NamespaceRules::default() };
        let oodle = oodle.then(|| Arc::new(Repeats) as Arc<dyn OodleDecoder>);
        let has_decoder = oodle.is_some();
        let server = Server::start(Rules { default, oodle, ..Rules::default() }, Listener::Public).await;
        let client = server.client().await;
        for (body, expected) in [&right, &wrong].into_iter().zip(expected) {
            let put = client.send("PUT", &path, &[COMP], body.clone()).await;
            assert_eq!(put.status, expected, "{}", put.text());
        }
        if has_decoder {
            // The object that a `.raw` answer decompresses.
            let object = Value::object([("RawHash", Value::BinaryAttachment(IoHash::of(&raw)))]);
            let object = object.encode(Style::Plain);
            let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&object));
            let name = format!("/api/v1/refs/game/default/{}", IoHash::of(b"key"));
            let put = client.send("PUT", &name, &["Content-Type: application/x-ue-cb", &hash], object).await;
            assert_eq!(put.text(), r#"{"needs":[]}"#);
            assert_eq!(client.get(&format!("{name}.raw"), "*/*").await.body, raw);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_of_verified_content_takes_no_other_by_any_way() {
    let mut rules = rules();
    let game = rules.namespaces.values_mut().next().expect("the only one");
    game.unverified = false;
    let server = Server::start(rules, Listener::Public).await;
    let client = server.client().await;
    let raw = vec![7; 10_000];
    let garbage = wrap_oodle(&raw, 18, &[vec![8, 0]]);
    let (id, hash) = (IoHash::of(&raw), IoHash::of(&garbage));
    let [engine, game] = ["engine", "game"].map(|name| format!("/api/v1/compressed-blobs/{name}/{id}"));
    assert_eq!(client.send("PUT", &engine, &[COMP], garbage.clone()).await.status, StatusCode::OK);
    assert_eq!(client.get(&engine, "*/*").await.body, garbage);
    assert_eq!(client.send("PUT", &game, &[COMP], garbage.clone()).await.status, StatusCode::BAD_REQUEST);
    // From the namespace that it falls back to, or as a blob that is named as a form.
    assert_eq!(client.get(&game, "*/*").await.status, StatusCode::NOT_FOUND);
    let blob = format!("/api/v1/blobs/game/{hash}");
    assert_eq!(client.send("PUT", &blob, &[OCTETS], garbage.clone()).await.status, StatusCode::OK);
    for (name, expected) in [("engine", StatusCode::OK), ("game", StatusCode::BAD_REQUEST)] {
        let update = format!("/api/v1/content-id/{name}/{id}/update/{hash}/1");
        assert_eq!(client.send("PUT", &update, &[], "").await.status, expected);
    }
    assert_eq!(client.get(&game, "*/*").await.status, StatusCode::NOT_FOUND);
    let sound = compress_lz4(&raw, 18);
    assert_eq!(client.send("PUT", &engine, &[COMP], sound.clone()).await.status, StatusCode::OK);
    assert_eq!(client.get(&game, "*/*").await.body, sound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_that_is_taken_over_from_the_bucket_stays_verified() {
    let s3 = S3::start().await;
    let node = async || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let origin = Origin::Tier(s3.tier());
        Server::start_in(folder, Options::default(), rules(), Listener::Public, origin).await
    };
    let [one, two] = [node().await, node().await];
    let raw = vec![3_u8; 70_000];
    let (id, compressed) = (IoHash::of(&raw), compress_lz4(&raw, 18));
    let form = |namespace: &str| format!("/api/v1/compressed-blobs/{namespace}/{id}");
    let client = one.client().await;
    assert_eq!(client.send("PUT", &form("engine"), &[COMP], compressed.clone()).await.status, StatusCode::OK);
    assert_eq!(two.client().await.get(&form("game"), "*/*").await.body, compressed);
    let forms = s3.tier().forms(&"game".parse().expect("a name"), &id).await.expect("the bucket works");
    assert_eq!(forms, [(compressed.len() as u64, IoHash::of(&compressed), true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_is_sent_to_the_bucket() {
    let s3 = S3::start().await;
    let mut rules = Rules::default();
    let game = NamespaceRules { redirects: true, ..NamespaceRules::default() };
    rules.namespaces.insert("game".parse().expect("a name"), game);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let origin = Origin::Tier(s3.tier());
    let server = Server::start_in(folder, Options::default(), rules, Listener::Public, origin).await;
    let client = server.client().await;
    let bytes = vec![7_u8; 200_000];
    for namespace in ["game", "other"] {
        let path = format!("/api/v1/blobs/{namespace}/{}", IoHash::of(&bytes));
        assert_eq!(client.send("PUT", &path, &[OCTETS], bytes.clone()).await.status, StatusCode::OK);
        assert_eq!(client.get(&path, "*/*").await.body, bytes);
        let sent = client.get(&format!("{path}?supportsRedirect=true"), "*/*").await;
        if namespace == "other" {
            assert_eq!((sent.status, &sent.body[..]), (StatusCode::OK, &bytes[..]));
            continue;
        }
        assert_eq!(sent.status, StatusCode::FOUND);
        // The address works without credentials.
        let location = sent.header("Location").to_owned();
        let path = location.strip_prefix(&format!("http://{}", s3.addr)).expect("the storage's address");
        let direct = common::Client::connect(s3.addr).await;
        let host = format!("Host: {}", s3.addr);
        let got = direct.send("GET", path, &[&host], "").await;
        assert_eq!((got.status, &got.body[..]), (StatusCode::OK, &bytes[..]), "{location}");
    }
    let absent = format!("/api/v1/blobs/game/{}?supportsRedirect=true", IoHash::of(b"absent"));
    assert_eq!(client.get(&absent, "*/*").await.status, StatusCode::NOT_FOUND);
}

/// A cache that has one blob and sends the second half of it when it is told to.
async fn slow_upstream(bytes: Vec<u8>, go_on: Arc<Notify>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
            bytes.len()
        );
        stream.write_all(answer.as_bytes()).await.expect("it takes it");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        stream.write_all(first).await.expect("it takes it");
        go_on.notified().await;
        stream.write_all(second).await.expect("it takes it");
        // Everything else that is asked for is not there.
        std::future::pending::<()>().await;
    });
    addr
}

async fn edge(upstream: SocketAddr) -> Server {
    edge_with(upstream, Rules::default()).await
}

async fn edge_with(upstream: SocketAddr, rules: Rules) -> Server {
    edge_in(tempfile::tempdir().expect("a temporary folder"), upstream, rules).await
}

async fn edge_in(folder: tempfile::TempDir, upstream: SocketAddr, rules: Rules) -> Server {
    let origin = upstream_at(upstream);
    Server::start_in(folder, Options::default(), rules, Listener::Public, origin).await
}

fn upstream_at(addr: SocketAddr) -> Origin {
    Origin::Upstream(Box::new(Upstream::new(UpstreamOptions {
        url: format!("http://{addr}"),
        authorization: None,
        timeout: Duration::from_secs(20),
        miss: Duration::ZERO,
        tls: s3::tls(),
    })))
}

/// Asks for a blob on a connection of its own, and reads to the end of the head.
async fn ask(addr: SocketAddr, path: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(addr).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it takes it");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("an answer"));
    }
    (stream, String::from_utf8(head).expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_blob_is_served_while_it_comes() {
    let bytes: Vec<u8> = (0..8_u32 << 20).map(|at| ((at * 7) >> 5) as u8).collect();
    let go_on = Arc::new(Notify::new());
    let server = edge(slow_upstream(bytes.clone(), Arc::clone(&go_on)).await).await;
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(&bytes));
    // Two who want it share one transfer.
    let (mut one, head) = ask(server.addr, &path).await;
    let (mut two, _) = ask(server.addr, &path).await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-length: 8388608"), "{head}");
    let mut got = [vec![0; 3 << 20], vec![0; 3 << 20]];
    one.read_exact(&mut got[0]).await.expect("the first part came");
    two.read_exact(&mut got[1]).await.expect("the first part came");
    go_on.notify_one();
    for (stream, mut got) in [one, two].into_iter().zip(got) {
        let mut stream = stream;
        let mut rest = vec![0; bytes.len() - got.len()];
        stream.read_exact(&mut rest).await.expect("the rest came");
        got.extend(rest);
        assert!(got == bytes, "the bytes as they were sent");
    }
    let again = server.client().await.get(&path, "*/*").await;
    assert!(again.body == bytes, "it is here now");
    assert_eq!(server.service().stats().fetched, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_and_is_something_else_breaks_off_and_is_not_kept() {
    let mut bytes: Vec<u8> = (0..4_u32 << 20).map(|at| ((at * 5) >> 4) as u8).collect();
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(&bytes));
    bytes[100] ^= 1;
    let go_on = Arc::new(Notify::new());
    let server = edge(slow_upstream(bytes.clone(), Arc::clone(&go_on)).await).await;
    let (mut stream, _) = ask(server.addr, &path).await;
    go_on.notify_one();
    let mut got = Vec::new();
    // It ends, or is reset, before it is whole.
    let _ = stream.read_to_end(&mut got).await;
    assert!(got.len() < bytes.len(), "{} of {} bytes", got.len(), bytes.len());
    let namespace = "game".parse().expect("a name");
    let hash = path.rsplit_once('/').and_then(|(_, hash)| hash.parse().ok()).expect("a hash");
    assert!(!server.service().store().has_blob(&namespace, &hash).expect("it can be asked"));
    assert_eq!(server.service().stats().damaged, 1);
}

/// A cache that has `sound`, and breaks off within every other blob.
async fn rotten_upstream(sound: Vec<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a request"));
            }
            let head = String::from_utf8_lossy(&head).to_lowercase();
            let found = sound.iter().find(|blob| head.contains(&IoHash::of(blob).to_string()));
            let body = found.map_or(&[7; 100][..], |blob| &blob[..]);
            let len = body.len() + if found.is_some() { 0 } else { 5_000_000 };
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {len}\r\n\
                 Connection: close\r\n\r\n"
            );
            // One that has no room for it does not take all of it.
            let _ = stream.write_all(&[answer.as_bytes(), body].concat()).await;
        }
    });
    addr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_that_breaks_off_at_the_upstream_leaves_the_others_alone() {
    let sound: Vec<Vec<u8>> = (1..20).map(|at| vec![at; 2_000]).collect();
    let server = edge(rotten_upstream(sound.clone()).await).await;
    let client = server.client().await;
    let path = |hash: &IoHash| format!("/api/v1/blobs/game/{hash}");
    for (at, blob) in (0_u32..).zip(&sound) {
        // Its head may have been sent by then: the answer breaks off, or is a miss.
        let rotten = path(&IoHash::of(&at.to_le_bytes()));
        let mut stream = TcpStream::connect(server.addr).await.expect("it listens");
        let request = format!("GET {rotten} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.len() < 5_000_000);
        let got = client.get(&path(&IoHash::of(blob)), "*/*").await;
        assert_eq!((got.status, &got.body[..]), (StatusCode::OK, &blob[..]), "{at}");
    }
}

/// An edge whose folder takes nothing: what it keeps exceeds its limit.
async fn full_edge(upstream: SocketAddr) -> Server {
    full_edge_with(upstream, Rules::default()).await
}

async fn full_edge_with(upstream: SocketAddr, mut rules: Rules) -> Server {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let path = format!("/api/v1/blobs/kept/{}", IoHash::of(&[1; 100_000]));
    let reply = server.client().await.send("PUT", &path, &[OCTETS], vec![1; 100_000]).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    let kept = NamespaceRules { keeps: true, ..NamespaceRules::default() };
    rules.namespaces.insert("kept".parse().expect("a name"), kept);
    rules.maintenance.bytes_max = Some(1);
    let server = edge_in(server.stop(), upstream, rules).await;
    // As the maintenance thread does when it has begun.
    server.service().store().set_bytes_max(1);
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_edge_passes_on_what_it_cannot_keep() {
    let [large, medium, small] = [(3, 4 << 20), (5, 600_000), (4, 2_000)].map(|(byte, len)| vec![byte; len]);
    let raw: Vec<u8> = (0..3_u32 << 20).map(|at| ((at * 7) >> 3) as u8).collect();
    let compressed = compress_lz4(&raw, 18);
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    for bytes in [&large, &medium, &small] {
        let path = format!("/api/v1/blobs/game/{}", IoHash::of(bytes));
        let reply = far.send("PUT", &path, &[OCTETS], bytes.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    }
    let value = format!("/api/v1/compressed-blobs/game/{}", IoHash::of(&raw));
    assert_eq!(far.send("PUT", &value, &[COMP], compressed.clone()).await.status, StatusCode::OK);
    let refs = [&large, &raw].map(|bytes| {
        let object = Value::object([
            ("RawHash", Value::BinaryAttachment(IoHash::of(bytes))),
            ("RawSize", Value::Integer(bytes.len() as u64)),
        ]);
        let object = object.encode(Style::Plain);
        (format!("/api/v1/refs/game/default/{}", IoHash::of(&object)), object)
    });
    for (path, object) in &refs {
        let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(object));
        let headers = ["Content-Type: application/x-ue-cb", hash.as_str()];
        assert_eq!(far.send("PUT", path, &headers, object.clone()).await.text(), r#"{"needs":[]}"#);
    }

    let server = full_edge(core.addr).await;
    let client = server.client().await;
    for bytes in [&large, &medium, &small] {
        let path = format!("/api/v1/blobs/game/{}", IoHash::of(bytes));
        for _ in 0..2 {
            let got = client.get(&path, "*/*").await;
            assert_eq!((got.status, got.body == **bytes), (StatusCode::OK, true), "{} bytes", bytes.len());
        }
        let head = client.send("HEAD", &path, &[], "").await;
        assert_eq!(head.header("Content-Length"), bytes.len().to_string());
        let part = client.send("GET", &path, &["Range: bytes=10-19"], "").await;
        assert_eq!((part.status, &part.body[..]), (StatusCode::PARTIAL_CONTENT, &bytes[10..20]));
    }
    let got = client.get(&value, "*/*").await;
    assert_eq!((got.status, got.body == compressed), (StatusCode::OK, true));
    for ((path, object), bytes) in refs.iter().zip([&large, &raw]) {
        assert_eq!(client.get(path, "application/x-ue-cb").await.body[..], object[..]);
        assert_eq!(client.send("HEAD", path, &[], "").await.status, StatusCode::OK);
        assert!(client.get(&format!("{path}.raw"), "*/*").await.body == *bytes, "{path}");
        assert_eq!(client.get(&format!("{path}.uecbpkg"), "*/*").await.status, StatusCode::OK);
    }
    let stats = server.service().stats();
    assert!(stats.passed > 10 && stats.failures == 0 && stats.origin_failures == 0, "{stats:?}");
    let usage = server.service().store().usage(&"game".parse().expect("a name")).expect("the disk works");
    assert_eq!(usage, throng_ddc_store::Usage::default(), "nothing was kept");
    let absent = format!("/api/v1/blobs/game/{}", IoHash::of(b"absent"));
    assert_eq!(client.get(&absent, "*/*").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_edge_passes_on_a_package_that_is_larger_than_its_memory() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let far = core.client().await;
    let put = async |path: &str, headers: &[&str], bytes: &[u8]| {
        let reply = far.send("PUT", path, headers, bytes.to_vec()).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.text());
    };
    let blobs = [(1, 1_500_000), (2, 1_500_000), (3, 1_500_000), (4, 700_000), (5, 700_000), (6, 900)]
        .map(|(byte, len)| vec![byte; len]);
    for bytes in &blobs {
        put(&format!("/api/v1/blobs/game/{}", IoHash::of(bytes)), &[OCTETS], bytes).await;
    }
    let raw: Vec<u8> = (0..3_u32 << 20).map(|at| ((at * 7) >> 3) as u8).collect();
    let form = format!("/api/v1/compressed-blobs/game/{}", IoHash::of(&raw));
    put(&form, &[COMP], &compress_lz4(&raw, 18)).await;
    const OBJECT: &str = "Content-Type: application/x-ue-cb";
    let inner = [8, 9].map(|byte| {
        let text = ("Text", Value::String(vec![b'0' + byte; 2 << 20]));
        Value::object([text, ("Raw", Value::BinaryAttachment(IoHash::of(&raw)))]).encode(Style::Plain)
    });
    for object in &inner {
        put(&format!("/api/v1/objects/game/{}", IoHash::of(object)), &[OBJECT], object).await;
    }
    let names = ["A", "B", "C", "D", "E", "F"];
    let attached =
        names.into_iter().zip(blobs.iter().map(|bytes| Value::BinaryAttachment(IoHash::of(bytes))));
    let objects = inner.iter().map(|object| Value::ObjectAttachment(IoHash::of(object)));
    let object = Value::object(attached.chain(["G", "H"].into_iter().zip(objects))).encode(Style::Plain);
    let path = format!("/api/v1/refs/game/default/{}", IoHash::of(&object));
    put(&path, &[OBJECT, &format!("X-Jupiter-IoHash: {}", IoHash::of(&object))], &object).await;
    let package = format!("{path}.uecbpkg");
    let expected = far.get(&package, "*/*").await;
    assert!(expected.body.len() > 9 << 20, "{} bytes", expected.body.len());

    let rules = Rules { memory_bytes_max: 4 << 20, ..Rules::default() };
    let server = full_edge_with(core.addr, rules).await;
    let client = server.client().await;
    for _ in 0..2 {
        let got = client.get(&package, "*/*").await;
        let title = if got.status == StatusCode::OK { "" } else { got.text() };
        assert_eq!((got.status, title), (StatusCode::OK, ""));
        assert_eq!(got.body.len(), expected.body.len());
        assert!(got.body == expected.body);
    }
    assert_eq!(server.service().stats().damaged, 0);
}

/// A cache that answers everything with `bytes`, whose length it does not say.
async fn chunked_upstream(bytes: &[u8]) -> SocketAddr {
    let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n0\r\n\r\n"].concat();
    raw_upstream("Transfer-Encoding: chunked", chunk, || true).await
}

/// A cache that answers everything with `bytes`, the second half of them once `goes_on` is true.
async fn waiting_upstream(bytes: Vec<u8>, goes_on: impl Fn() -> bool + Send + 'static) -> SocketAddr {
    raw_upstream(&format!("Content-Length: {}", bytes.len()), bytes, goes_on).await
}

/// A cache that answers everything with this framing and body, the second half of it once `goes_on`
/// is true.
async fn raw_upstream(
    framing: &str,
    body: Vec<u8>,
    goes_on: impl Fn() -> bool + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let addr = listener.local_addr().expect("it is bound");
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n{framing}\r\n\
         Connection: close\r\n\r\n"
    );
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a request"));
            }
            let (first, second) = body.split_at(body.len() / 2);
            // One that has no room for it does not take all of it.
            let _ = stream.write_all(&[answer.as_bytes(), first].concat()).await;
            while !goes_on() {
                tokio::task::yield_now().await;
            }
            let _ = stream.write_all(second).await;
        }
    });
    addr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_edge_passes_on_a_blob_whose_length_the_upstream_does_not_say() {
    for (len, status) in [(4 << 20, StatusCode::OK), (65 << 20, StatusCode::NOT_FOUND)] {
        let bytes = vec![3; len];
        let server = full_edge(chunked_upstream(&bytes).await).await;
        let got =
            server.client().await.get(&format!("/api/v1/blobs/game/{}", IoHash::of(&bytes)), "*/*").await;
        assert_eq!((got.status, got.body == bytes), (status, status == StatusCode::OK), "{len}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_with_little_room_passes_on_what_is_too_large_for_it() {
    let (large, small) = (vec![3; 4 << 20], vec![4; 2_000]);
    let mut rules = Rules::default();
    rules.maintenance.bytes_max = Some(1 << 20);
    let server = edge_with(rotten_upstream(vec![large.clone(), small.clone()]).await, rules).await;
    // As the maintenance thread does when it has begun.
    server.service().store().set_bytes_max(1 << 20);
    let client = server.client().await;
    for bytes in [&large, &small] {
        let path = format!("/api/v1/blobs/game/{}", IoHash::of(bytes));
        assert!(client.get(&path, "*/*").await.body == *bytes, "{} bytes", bytes.len());
    }
    assert_eq!(server.service().stats().passed, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_whole_though_the_disk_has_no_space_for_the_blob_or_fills_while_it_comes() {
    for fills_meanwhile in [false, true] {
        let bytes: Vec<u8> = (0..4_u32 << 20).map(|at| ((at * 7) >> 5) as u8).collect();
        let disk = SimulatedDisk::new(DiskState::default());
        let options =
            Options { reserve_bytes: 0, zero_bytes: 0, free_bytes_min: 1_000, ..Options::default() };
        let store = Store::open(Arc::new(disk.clone()), options).expect("the store opens");
        let filling = disk.clone();
        let goes_on = move || {
            let is_half_here = |name: &String| {
                let file = filling.open(&format!("large/{name}"), false);
                file.is_ok_and(|file| file.len().is_ok_and(|len| len >= 1 << 20))
            };
            let goes_on =
                !fills_meanwhile || filling.list("large").is_ok_and(|names| names.iter().any(is_half_here));
            if fills_meanwhile && goes_on {
                filling.set_capacity(Some(1));
            }
            goes_on
        };
        if !fills_meanwhile {
            disk.set_capacity(Some(1 << 30));
            let used = (1 << 30) - disk.free_bytes().expect("simulated").expect("there is a limit");
            disk.set_capacity(Some(used + (2 << 20)));
        }
        let upstream = upstream_at(waiting_upstream(bytes.clone(), goes_on).await);
        let service = Service::new(Arc::clone(&store), Rules::default(), upstream);
        let served = Arc::clone(&store);
        let commits = std::thread::spawn(move || served.run());
        let request = Request::builder().uri(format!("/api/v1/blobs/game/{}", IoHash::of(&bytes)));
        let request = request.header("Host", "localhost").body(stream::empty().boxed()).expect("a request");
        let answer = service.exchange(Listener::Public, request).await;
        let body = answer.expect("the answer does not break off").into_body();
        assert!(body == bytes, "{fills_meanwhile}: {} bytes", body.len());
        assert_eq!(service.stats().passed, 1, "{fills_meanwhile}");
        store.shut();
        commits.join().expect("no panic");
        assert_eq!(disk.list("large").expect("listed"), Vec::<String>::new(), "{fills_meanwhile}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_passed_on_and_is_something_else_breaks_off() {
    let mut bytes: Vec<u8> = (0..4_u32 << 20).map(|at| ((at * 5) >> 4) as u8).collect();
    let path = format!("/api/v1/blobs/game/{}", IoHash::of(&bytes));
    bytes[100] ^= 1;
    let go_on = Arc::new(Notify::new());
    let server = full_edge(slow_upstream(bytes.clone(), Arc::clone(&go_on)).await).await;
    let (mut stream, _) = ask(server.addr, &path).await;
    go_on.notify_one();
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got).await;
    assert!(got.len() <= bytes.len() - (64 << 10), "{} of {} bytes", got.len(), bytes.len());
    assert_eq!(server.service().stats().damaged, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_does_not_bring_an_older_ref_back_from_the_upstream() {
    let core = Server::start(Rules::default(), Listener::Public).await;
    let path = "/api/v1/refs/game/default/00000000000000000000000000000000000000aa";
    let put = async |client: &Client, text: &str| {
        let object = Value::object([("text", Value::string(text))]).encode(Style::Plain);
        let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&object));
        let headers = ["Content-Type: application/x-ue-cb", hash.as_str()];
        assert_eq!(client.send("PUT", path, &headers, object.clone()).await.text(), r#"{"needs":[]}"#);
    };
    put(&core.client().await, "older-value").await;
    let origin = || {
        Origin::Upstream(Box::new(Upstream::new(UpstreamOptions {
            url: format!("http://{}", core.addr),
            authorization: None,
            timeout: Duration::from_secs(20),
            miss: Duration::ZERO,
            tls: s3::tls(),
        })))
    };
    let start = async |folder| {
        let options = Options { reserve_bytes: 0, zero_bytes: 0, ..Options::default() };
        Server::start_in(folder, options, Rules::default(), Listener::Public, origin()).await
    };
    let edge = start(tempfile::tempdir().expect("a temporary folder")).await;
    put(&edge.client().await, "newer-value").await;
    let folder = edge.stop();
    // The record of the ref is damaged, and with it what the index has of it.
    for entry in ["segments", "index"].map(|name| folder.path().join(name)) {
        for file in std::fs::read_dir(entry).expect("a folder") {
            let file = file.expect("readable").path();
            let mut bytes = std::fs::read(&file).expect("readable");
            while let Some(at) = bytes.windows(11).position(|window| window == b"newer-value") {
                bytes[at] ^= 1;
            }
            std::fs::write(&file, bytes).expect("writable");
        }
    }
    let mut folder = Some(folder);
    for start_number in 0..3 {
        let edge = start(folder.take().expect("stopped")).await;
        let client = edge.client().await;
        let got = client.get(path, "application/x-ue-cb").await;
        assert_eq!(got.status, StatusCode::NOT_FOUND, "start {start_number}: {:?}", got.body);
        assert_eq!(client.send("HEAD", path, &[], "").await.status, StatusCode::NOT_FOUND);
        folder = Some(edge.stop());
    }
    let edge = start(folder.take().expect("stopped")).await;
    let client = edge.client().await;
    put(&client, "newest-value").await;
    let got = client.get(path, "application/x-ue-cb").await;
    assert!(got.body.windows(12).any(|window| window == b"newest-value"));
    // Once it was put again, its deletion is one like any other.
    assert_eq!(client.send("DELETE", path, &[], "").await.status, StatusCode::OK);
    let got = client.get(path, "application/x-ue-cb").await;
    assert!(got.body.windows(11).any(|window| window == b"older-value"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_leads_back_to_the_node_is_a_miss_at_once() {
    let way = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let way_addr = way.local_addr().expect("it is bound");
    let origin = Origin::Upstream(Box::new(Upstream::new(UpstreamOptions {
        url: format!("http://{way_addr}"),
        authorization: None,
        timeout: Duration::from_secs(36_000),
        miss: Duration::ZERO,
        tls: s3::tls(),
    })));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let edge = Server::start_in(folder, Options::default(), Rules::default(), Listener::Public, origin).await;
    let addr = edge.addr;
    tokio::spawn(async move {
        while let Ok((mut from, _)) = way.accept().await {
            let mut to = TcpStream::connect(addr).await.expect("it listens");
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
    let client = edge.client().await;
    let hash = IoHash::of(b"nowhere");
    for path in [
        format!("/api/v1/blobs/game/{hash}"),
        format!("/api/v1/compressed-blobs/game/{hash}"),
        format!("/api/v1/refs/game/default/{hash}"),
    ] {
        // A request that waits for itself would take ten hours.
        let missing = tokio::time::timeout(Duration::from_secs(300), client.get(&path, "*/*")).await;
        let missing = missing.expect("the loop is found");
        assert_eq!(missing.status, StatusCode::NOT_FOUND, "{path}: {}", missing.text());
        let looped = client.send("GET", &path, &["Via: 1.1 other, 1.1 throng-0"], "").await;
        assert_eq!(looped.status, StatusCode::NOT_FOUND, "another cache is not this one");
    }
    assert_eq!(edge.service().stats().origin_failures, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_that_ask_each_other_for_the_same_blob_at_once_both_miss_it() {
    // Requests pass the ways between the nodes when both nodes have sent one.
    let ways = [0, 1].map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("loopback"));
    let addrs = [0, 1].map(|way: usize| ways[way].local_addr().expect("it is bound"));
    let mut nodes = Vec::new();
    for way in [1, 0] {
        let origin = Origin::Upstream(Box::new(Upstream::new(UpstreamOptions {
            url: format!("http://{}", addrs[way]),
            authorization: None,
            timeout: Duration::from_secs(36_000),
            miss: Duration::ZERO,
            tls: s3::tls(),
        })));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (options, rules) = (Options::default(), Rules::default());
        nodes.push(Server::start_in(folder, options, rules, Listener::Public, origin).await);
    }
    let both_asked = Arc::new(tokio::sync::Barrier::new(2));
    for (way, node) in ways.into_iter().zip(&nodes) {
        way.set_nonblocking(true).expect("an option");
        let way = TcpListener::from_std(way).expect("a listener");
        let (addr, both_asked) = (node.addr, Arc::clone(&both_asked));
        tokio::spawn(async move {
            let mut is_first = true;
            while let Ok((mut from, _)) = way.accept().await {
                if std::mem::take(&mut is_first) {
                    both_asked.wait().await;
                }
                let mut to = TcpStream::connect(addr).await.expect("it listens");
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
            }
        });
    }
    let hash = IoHash::of(b"nowhere");
    for path in [
        format!("/api/v1/blobs/game/{hash}"),
        format!("/api/v1/compressed-blobs/game/{hash}"),
        format!("/api/v1/refs/game/default/{hash}"),
    ] {
        let [one, two] = [nodes[0].client().await, nodes[1].client().await];
        let both = async { tokio::join!(one.get(&path, "*/*"), two.get(&path, "*/*")) };
        let (first, second) = tokio::time::timeout(Duration::from_secs(300), both).await.expect("both end");
        assert_eq!([first.status, second.status], [StatusCode::NOT_FOUND; 2], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_came_back_is_answered_from_the_folder() {
    let way = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let way_addr = way.local_addr().expect("it is bound");
    let edge = edge(way_addr).await;
    let client = edge.client().await;
    let asked = tokio::spawn(async move {
        let (mut stream, _) = way.accept().await.expect("the node asks");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        stream.write_all(b"HTTP/1.1 404 -\r\nContent-Length: 0\r\n\r\n").await.expect("it takes it");
        let head = String::from_utf8(head).expect("text");
        let via = head.lines().find_map(|line| line.strip_prefix("via: ").map(str::to_owned));
        (via.expect("its name"), stream)
    });
    let path = |bytes: &[u8]| format!("/api/v1/blobs/game/{}", IoHash::of(bytes));
    assert_eq!(client.get(&path(b"absent"), "*/*").await.status, StatusCode::NOT_FOUND);
    let (via, _stream) = asked.await.expect("no panic");
    assert_eq!(client.send("PUT", &path(b"here"), &[OCTETS], "here").await.status, StatusCode::OK);
    let via = format!("Via: {via}, 1.1 other");
    assert_eq!(client.send("GET", &path(b"here"), &[&via], "").await.text(), "here");
    // The upstream, which no longer accepts anybody, is not asked.
    assert_eq!(client.send("GET", &path(b"gone"), &[&via], "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(edge.service().stats().origin_failures, 0);
}
