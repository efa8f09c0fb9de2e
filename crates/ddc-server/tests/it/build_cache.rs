//! Build caches: Bazel's HTTP cache, and names of any form for ccache and sccache.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use throng_ddc::policy::{Acl, Action, Policies, Policy, Scope};
use throng_ddc::{Bucket, IoHash, Key, Namespace, Style, Timestamp, Value};
use throng_ddc_server::{Access, Listener, Node, Origin, Rules, Tokens};
use throng_ddc_store::{EvictOptions, Options, Quotas};

use crate::common::{Client, Reply, Server};

pub(crate) fn sha256(bytes: &[u8]) -> String {
    ring::digest::digest(&ring::digest::SHA256, bytes)
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A field of protobuf with a number, or the beginning of one with so many bytes.
fn number(tag: u8, mut number: usize) -> Vec<u8> {
    let mut bytes = vec![tag];
    while number >= 0x80 {
        bytes.push(number as u8 & 0x7F | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field of protobuf with bytes.
fn field(name: u8, content: &[u8]) -> Vec<u8> {
    [&number(name << 3 | 2, content.len()), content].concat()
}

/// `Digest` of a content that is said to have `size` bytes.
fn digest_of_size(content: &[u8], size: usize) -> Vec<u8> {
    [field(1, sha256(content).as_bytes()), number(2 << 3, size)].concat()
}

fn digest(content: &[u8]) -> Vec<u8> {
    digest_of_size(content, content.len())
}

/// `ActionResult.output_files`.
pub(crate) fn output_file(content: &[u8]) -> Vec<u8> {
    field(2, &[field(1, b"out/file"), field(2, &digest(content))].concat())
}

async fn put(client: &Client, path: &str, body: &[u8]) -> u16 {
    client.send("PUT", path, &[], body.to_vec()).await.status.as_u16()
}

async fn get(client: &Client, path: &str) -> Reply {
    client.send("GET", path, &[], "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_is_verified_and_given_under_its_sha256() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    for content in [&b"small"[..], &vec![7; 3 << 20]] {
        let path = format!("/cas/{}", sha256(content));
        assert_eq!(get(&client, &path).await.status.as_u16(), 404);
        assert_eq!(put(&client, &path, b"something else").await, 400);
        assert_eq!(put(&client, &path, content).await, 200);
        let reply = get(&client, &path).await;
        assert_eq!((reply.status.as_u16(), &reply.body[..] == content), (200, true));
        let head = client.send("HEAD", &path, &[], "").await;
        assert_eq!((head.status.as_u16(), head.header("content-length")), (200, &*content.len().to_string()));
        // The same blob under the name that editors use, in the namespace of builds.
        let blob = get(&client, &format!("/api/v1/blobs/build/{}", IoHash::of(content))).await;
        assert_eq!(blob.status.as_u16(), 200);
        // Instances do not see each other.
        assert_eq!(get(&client, &format!("/other{path}")).await.status.as_u16(), 404);
        assert_eq!(put(&client, &format!("/other{path}"), content).await, 200);
        assert_eq!(get(&client, &format!("/other{path}")).await.status.as_u16(), 200);
    }
    assert_eq!(
        get(&client, &format!("/cas/{}", sha256(b""))).await.status.as_u16(),
        200,
        "clients upload no empty content"
    );
    let (other, type_of) = (&b"other bytes"[..], "Content-Type: application/octet-stream");
    let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(other));
    let under_its_name = format!("/api/v1/refs/build/cas/{}", IoHash::of(b"a key"));
    let refused = client.send("PUT", &under_its_name, &[type_of, &hash], other).await;
    assert_eq!(refused.status.as_u16(), 400, "it would be given as a content: {}", refused.text());
    for path in ["/cas/12", "/ac/x", "/kv/"] {
        assert_eq!(put(&client, path, b"").await, 400, "{path}");
    }
    let path = format!("/cas/{}", sha256(b"small"));
    let blob = format!("/api/v1/blobs/build/{}", IoHash::of(other));
    for (method, path, allowed) in [
        ("DELETE", &*path, "GET, HEAD, PUT"),
        ("PROPFIND", &path, "GET, HEAD, PUT"),
        ("COPY", "/kv/build/a", "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL"),
        ("PUT", "/kv/build/", "OPTIONS, PROPFIND, MKCOL"),
        ("COPY", &blob, "GET, HEAD, PUT, DELETE"),
    ] {
        let refused = client.send(method, path, &[], "").await;
        assert_eq!((refused.status.as_u16(), refused.header("allow")), (405, allowed), "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_given_only_while_everything_that_it_names_is_here() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let (file, in_tree, log) = (&b"an object file"[..], &b"a file in a directory"[..], &b"a warning"[..]);
    let node = field(1, &[field(1, b"f"), field(2, &digest(in_tree))].concat());
    let tree = [field(1, b""), field(2, &node)].concat();
    let directory = field(3, &[field(1, b"out/d"), field(3, &digest(&tree))].concat());
    let result = [output_file(file), directory, field(8, &digest(log))].concat();
    let path = format!("/ac/{}", sha256(b"the action"));
    assert_eq!(put(&client, &path, &result).await, 200);
    for content in [file, in_tree, log, &tree] {
        for method in ["GET", "HEAD"] {
            let reply = client.send(method, &path, &[], "").await;
            assert_eq!(reply.status.as_u16(), 404, "{method}, {content:?} is missing");
        }
        assert_eq!(put(&client, &format!("/cas/{}", sha256(content)), content).await, 200);
    }
    assert_eq!(get(&client, &path).await.body, result);
    // Each is missed when it goes.
    for content in [file, in_tree, log, &tree] {
        let blob = format!("/api/v1/blobs/build/{}", IoHash::of(content));
        assert_eq!(client.send("DELETE", &blob, &[], "").await.status.as_u16(), 204);
        assert_eq!(get(&client, &path).await.status.as_u16(), 404);
        assert_eq!(put(&client, &format!("/cas/{}", sha256(content)), content).await, 200);
        assert_eq!(get(&client, &path).await.status.as_u16(), 200);
    }
    // No content has this hash and another size.
    let wrong = format!("/ac/{}", sha256(b"another action"));
    for content in [file, b""] {
        let named = digest_of_size(content, content.len() + 1);
        assert_eq!(put(&client, &wrong, &field(8, &named)).await, 200);
        assert_eq!(get(&client, &wrong).await.status.as_u16(), 404, "{content:?}");
    }
    // Without files, and other bytes than a result.
    for (action, body) in [("none", &b""[..]), ("ccache", b"cCac\0\x01\x02")] {
        let path = format!("/ac/{}", sha256(action.as_bytes()));
        assert_eq!(put(&client, &path, body).await, 200);
        assert_eq!(get(&client, &path).await.body, body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_any_form_are_files_of_webdav() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let path = "/kv/sccache/a/b/c/abc0123";
    let status = async |method: &str, path: &str| client.send(method, path, &[], "").await.status.as_u16();
    assert_eq!(status("PROPFIND", path).await, 404);
    assert_eq!(status("PROPFIND", "/kv/sccache/a/b/").await, 207);
    assert_eq!(status("MKCOL", "/kv/sccache/a/").await, 201);
    assert_eq!(put(&client, path, b"an object").await, 200);
    assert_eq!(get(&client, path).await.body, "an object");
    let reply = client.send("PROPFIND", path, &["Depth: 0"], "").await;
    assert!(reply.text().contains("<D:getcontentlength>9</D:getcontentlength>"), "{}", reply.text());
    assert_eq!(put(&client, path, b"another").await, 200);
    assert_eq!(get(&client, path).await.body, "another");
    assert_eq!(status("DELETE", path).await, 204);
    assert_eq!(status("DELETE", path).await, 404);
    assert_eq!(status("GET", path).await, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_the_password_of_basic_authentication() {
    use base64::Engine as _;
    let tokens =
        Tokens::parse("reader-0123456789 group=read\nwriter-0123456789 group=write\n").expect("tokens");
    let policy = |group: &str, actions: &[Action]| Policy {
        name: group.to_owned(),
        acl: Acl { claims: vec![format!("group={group}")], actions: actions.to_vec() },
        namespaces: vec![Scope::all()],
        buckets: Vec::new(),
    };
    let both = [Action::ReadObject, Action::WriteObject];
    let policies = Policies(vec![policy("read", &both[..1]), policy("write", &both)]);
    let access = Access { identify: vec![Box::new(tokens)], policies, ..Access::default() };
    let server = Server::start(Rules { access, ..Rules::default() }, Listener::Public).await;
    let client = server.client().await;
    let path = format!("/cas/{}", sha256(b"x"));
    let basic = |password: &str| {
        let text = base64::engine::general_purpose::STANDARD.encode(format!("anybody:{password}"));
        format!("Authorization: Basic {text}")
    };
    for (password, method, status) in [
        ("writer-0123456789", "PUT", 200),
        ("reader-0123456789", "GET", 200),
        ("reader-0123456789", "PUT", 403),
        ("neither-012345678", "GET", 401),
        ("", "GET", 401),
    ] {
        let body = if method == "PUT" { "x" } else { "" };
        let reply = client.send(method, &path, &[&basic(password)], body).await;
        assert_eq!(reply.status.as_u16(), status, "{method} with {password:?}");
        assert!(!reply.header("www-authenticate").contains("Basic"), "no browser is to keep a password");
    }
    for header in
        ["Authorization: Basic !", "Authorization: Basic", "Authorization: Basic d3JpdGVyLTAxMjM0NTY3ODk="]
    {
        assert_eq!(client.send("GET", &path, &[header], "").await.status.as_u16(), 401, "{header}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_over_a_quota_is_acknowledged() {
    let quotas = Quotas { default: Some(200_000), ..Quotas::default() };
    let server = Server::start(Rules { quotas, ..Rules::default() }, Listener::Public).await;
    let client = server.client().await;
    let mut accepted = 0;
    for number in 0..10_u8 {
        let noise = Value::Binary(vec![number; 50_000]);
        let object = Value::object([("noise", noise)]).encode(Style::Plain);
        let path = format!("/api/v1/refs/game/default/{number:040}");
        let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&object));
        let headers = ["Content-Type: application/x-ue-cb", &hash];
        let status = client.send("PUT", &path, &headers, object).await.status.as_u16();
        let found = client.get(&path, "application/x-ue-cb").await.status.as_u16();
        assert!(matches!((status, found), (200, 200) | (507, 404)), "ref {number}: {status}, then {found}");
        accepted += usize::from(status == 200);
    }
    assert_eq!(accepted, 3, "200,000 bytes hold three of them");
    let mut accepted = 0;
    for number in 0..10_u8 {
        let content = vec![number; 50_000];
        let path = format!("/cas/{}", sha256(&content));
        let (status, found) = (put(&client, &path, &content).await, get(&client, &path).await);
        let found = found.status.as_u16();
        assert!(matches!((status, found), (200, 200) | (507, 404)), "{number}: {status}, then {found}");
        accepted += usize::from(status == 200);
    }
    assert_eq!(accepted, 3, "entries of a build cache count as well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_and_an_eviction_take_entries_with_what_they_name() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let contents: Vec<Vec<u8>> = (0..40).map(|number| vec![number; 50_000]).collect();
    let actions: Vec<String> = (0..40_u8).map(|number| format!("/ac/{}", sha256(&[b'a', number]))).collect();
    for (content, action) in contents.iter().zip(&actions) {
        assert_eq!(put(&client, &format!("/cas/{}", sha256(content)), content).await, 200);
        assert_eq!(put(&client, action, &output_file(content)).await, 200);
    }
    let mut stream = Vec::new();
    Node::export(server.service().store(), None, &mut stream).expect("memory");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let node = Node::open(folder.path(), Options::default(), Rules::default()).expect("the folder opens");
    node.import(&mut Cursor::new(&stream)).expect("a valid stream");
    drop(node);
    let other =
        Server::start_in(folder, Options::default(), Rules::default(), Listener::Public, Origin::Alone).await;
    let there = other.client().await;
    for (content, action) in contents.iter().zip(&actions) {
        assert_eq!(get(&there, &format!("/cas/{}", sha256(content))).await.body, *content);
        assert_eq!(get(&there, action).await.body, output_file(content));
    }
    let service = std::sync::Arc::clone(server.service());
    let evicted = tokio::task::spawn_blocking(move || service.evict(1_000_000)).await.expect("no panic");
    let evicted = evicted.expect("the disk works");
    assert!(evicted.refs > 0 && evicted.blobs > 0, "{evicted:?}");
    let mut gone = 0;
    for (content, action) in contents.iter().zip(&actions) {
        let content = get(&client, &format!("/cas/{}", sha256(content))).await.status.as_u16();
        let result = get(&client, action).await.status.as_u16();
        assert!(matches!((content, result), (200, 200 | 404) | (404, 404)), "{content}, {result}");
        gone += usize::from(content == 404);
    }
    assert!(gone > 0, "{evicted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_given_during_an_eviction_keeps_what_it_names() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let mut actions = HashMap::new();
    for number in 0..40_u8 {
        let content = vec![number; 50_000];
        let (path, action) =
            (format!("/cas/{}", sha256(&content)), format!("/ac/{}", sha256(&[b'a', number])));
        assert_eq!(put(&client, &path, &content).await, 200);
        assert_eq!(put(&client, &action, &output_file(&content)).await, 200);
        let digits: Vec<u8> = (0..64)
            .step_by(2)
            .map(|at| u8::from_str_radix(&path[5 + at..7 + at], 16).expect("hex"))
            .collect();
        actions.insert(IoHash::of(&digits).to_string(), (action, path));
    }
    // The eviction tells for which contents it is about to queue or has just queued a removal, and
    // waits until the result that names the one before has been asked for.
    let (decide, mut decided) = tokio::sync::mpsc::channel::<(String, std::sync::mpsc::Sender<()>)>(1);
    let store = Arc::clone(server.service().store());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let evicting = tokio::task::spawn_blocking(move || {
        let (times, before) = (RefCell::new(HashMap::new()), RefCell::new(None));
        let last_access = |_: &Namespace, bucket: &Bucket, key: &Key| {
            if bucket.as_str() == "cas" {
                let name = key.as_str().to_owned();
                *times.borrow_mut().entry(name.clone()).or_insert(0) += 1;
                if times.borrow()[&name] == 2
                    && let Some(before) = before.replace(Some(name))
                {
                    let (asked, was_asked) = std::sync::mpsc::channel();
                    decide.blocking_send((before, asked)).expect("the test waits");
                    was_asked.recv().expect("the test answers");
                }
            }
            None
        };
        store.evict(&EvictOptions {
            bytes_max: 1_000_000,
            copies: false,
            now: Timestamp::from_unix_ms(now.as_millis() as u64),
            keeps: &|_| false,
            last_use: &|_| None,
            last_access: &last_access,
        })
    });
    let mut given = Vec::new();
    while let Some((content, asked)) = decided.recv().await {
        let (action, path) = &actions[&content];
        let status = get(&client, action).await.status.as_u16();
        assert!(matches!(status, 200 | 404), "{status}");
        if status == 200 {
            given.push(path);
        }
        asked.send(()).expect("the eviction waits");
    }
    let evicted = evicting.await.expect("no panic").expect("the disk works");
    assert!(given.len() > 30, "{} of 40", given.len());
    for path in given {
        assert_eq!(get(&client, path).await.status.as_u16(), 200, "{evicted:?}");
    }
}
