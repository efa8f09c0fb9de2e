//! More than a thousand requests that nobody honest sends: each has its status, none leaves
//! anything behind, and the node goes on serving the truth.

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use common::Server;
use throng_ddc::IoHash;
use throng_ddc_server::{Listener, Rules};

/// Requests that the table must have.
const REQUESTS_MIN: usize = 1_000;
const KEY: &str = "00000000000000000000000000000000000000aa";
const OCTETS: &str = "Content-Type: application/octet-stream\r\n";

struct Hostile {
    addr: SocketAddr,
    sent: usize,
}

impl Hostile {
    /// Sends bytes on a connection of its own, ends its side, and gives all that comes back.
    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.sent += 1;
        let mut stream = TcpStream::connect(self.addr).expect("the node listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a limit");
        // A node that has heard enough closes; the rest then finds nobody.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    fn expect(&mut self, what: &str, bytes: &[u8], status: u16) {
        let answer = self.send(bytes);
        assert_eq!(statuses(&answer), [status], "{what}: {}", String::from_utf8_lossy(&answer));
    }

    fn request(&mut self, method: &str, target: &str, headers: &str, body: &[u8], status: u16) {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        let bytes = [head.as_bytes(), body].concat();
        self.expect(&format!("{method} {target:?} {headers:?}"), &bytes, status);
    }
}

/// The status of each answer in what a connection sent; bodies are taken at their word.
fn statuses(mut bytes: &[u8]) -> Vec<u16> {
    let mut found = Vec::new();
    while let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        found.push(status);
        bytes = bytes.get(end + 4 + length..).unwrap_or_default();
    }
    found
}

/// Every file below a folder, with its size.
fn files(folder: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("it exists") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.display().to_string(), path.metadata().expect("it exists").len()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_thousand_hostile_requests_get_their_status_and_nothing_else() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let rules = Rules { blob_bytes_max: 1 << 20, object_bytes_max: 1 << 16, ..Rules::default() };
    let server = runtime.block_on(Server::start(rules, Listener::Public));
    let mut hostile = Hostile { addr: server.addr, sent: 0 };
    let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let hash = IoHash::of(&content);
    let path = format!("/api/v1/blobs/honest/{hash}");
    hostile.request("PUT", &path, OCTETS, &content, 200);
    let before = files(server.folder());

    names(&mut hostile);
    bodies(&mut hostile);
    shapes(&mut hostile);
    ranges(&mut hostile, &path, content.len() as u64);

    assert!(hostile.sent >= REQUESTS_MIN, "{} requests", hostile.sent);
    assert_eq!(files(server.folder()), before, "nothing was written");
    let answer = hostile
        .send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes());
    assert!(answer.ends_with(&content), "the honest blob is as it was");
    let outside = server.folder().parent().expect("a folder").join("escaped");
    assert!(!outside.exists());
}

/// Names where a name of each kind is expected.
fn names(hostile: &mut Hostile) {
    let long = "a".repeat(65);
    let names = [
        "",
        ".",
        "..",
        "...",
        "a.",
        ".a",
        "%2e",
        "%2e%2e",
        "%2E%2E%2Fescaped",
        "..%2fescaped",
        "a%00",
        "%00",
        "a%2Fb",
        "a%5Cb",
        "..%5c..%5c",
        "a\\b",
        "c:",
        "c:a",
        "a:b",
        "a*b",
        "a|b",
        "a<b",
        "a>b",
        "a\"b",
        "a'b",
        "a`b",
        "$(a)",
        "${a}",
        "a;b",
        "a&b",
        "a=b",
        "a+b",
        "a,b",
        "a@b",
        "a!b",
        "a~b",
        "~",
        "a^b",
        "(a)",
        "[a]",
        "{a}",
        "%",
        "%%",
        "%zz",
        "%c0%ae",
        "%c0%af",
        "%e0%80%ae",
        "%f0%80%80%ae",
        "%u002e",
        "%252e%252e",
        "a%0d%0a",
        "a%09b",
        "a%20b",
        "%ff",
        "\u{e9}",
        "\u{202e}a",
        "\u{0}",
        "\u{7f}",
        &long,
    ];
    let other_hash = IoHash::of(b"nothing").to_string();
    for name in names {
        for (method, target) in [
            ("GET", format!("/api/v1/refs/{name}/default/{KEY}")),
            ("PUT", format!("/api/v1/refs/{name}/default/{KEY}")),
            ("GET", format!("/api/v1/refs/n/{name}/{KEY}.raw")),
            ("GET", format!("/api/v1/refs/n/default/{name}")),
            ("DELETE", format!("/api/v1/refs/n/default/{name}")),
            ("PUT", format!("/api/v1/refs/n/default/{name}/blobs/{other_hash}")),
            ("POST", format!("/api/v1/refs/n/default/{KEY}/finalize/{name}")),
            ("GET", format!("/api/v1/blobs/{name}/{other_hash}")),
            ("PUT", format!("/api/v1/blobs/{name}/{other_hash}")),
            ("PUT", format!("/api/v1/blobs/n/{name}")),
            ("GET", format!("/api/v1/compressed-blobs/n/{name}")),
            ("PUT", format!("/api/v1/objects/{name}/{other_hash}")),
            ("GET", format!("/api/v1/objects/n/{name}/references")),
            ("PUT", format!("/api/v1/content-id/n/{name}/update/{other_hash}/1")),
            ("POST", format!("/api/v1/blobs/n/exists?id={name}")),
        ] {
            hostile.request(method, &target, OCTETS, b"", 400);
        }
    }
    for target in [
        "/etc/passwd",
        "/..",
        "/../../etc/passwd",
        "//api/v1/status",
        "/api/v1/../v1/status",
        "/API/v1/status",
        "/api/v2/builds/n",
        "/api/v1/refs/n/default/x/y/z/a/b/c",
    ] {
        hostile.request("GET", target, "", b"", 404);
    }
    for method in ["TRACE", "CONNECT", "OPTIONS", "PATCH", "PROPFIND", "get", "MKCOL", "X"] {
        hostile.request(method, &format!("/api/v1/refs/n/default/{KEY}"), "", b"", 405);
    }
}

/// Uploads that are not what they say.
fn bodies(hostile: &mut Hostile) {
    let wrong = IoHash::of(b"something else");
    let ref_path = format!("/api/v1/refs/n/default/{KEY}");
    let claims = |media: &str| format!("Content-Type: {media}\r\nX-Jupiter-IoHash: {wrong}\r\n");
    for len in [0_usize, 1, 33, 64, 100, 4_096, 65_536, 500_000] {
        let body = vec![7; len];
        hostile.request("PUT", &format!("/api/v1/blobs/n/{wrong}"), OCTETS, &body, 400);
        hostile.request("PUT", &format!("{ref_path}/blobs/{wrong}"), OCTETS, &body, 400);
        hostile.request("PUT", &ref_path, &claims("application/octet-stream"), &body, 400);
        for (method, target) in [
            ("PUT", format!("/api/v1/compressed-blobs/n/{wrong}")),
            ("POST", "/api/v1/compressed-blobs/n".to_owned()),
            ("PUT", format!("{ref_path}/blobs/{wrong}")),
        ] {
            hostile.request(method, &target, "Content-Type: application/x-ue-comp\r\n", &body, 400);
        }
        let too_large = |status: u16| if len > 65_536 { 413 } else { status };
        hostile.request(
            "PUT",
            &format!("/api/v1/objects/n/{wrong}"),
            "Content-Type: application/x-ue-cb\r\n",
            &body,
            too_large(400),
        );
        hostile.request("PUT", &ref_path, &claims("application/x-ue-cb"), &body, too_large(400));
        hostile.request("PUT", &ref_path, &claims("application/x-ue-cbpkg"), &body, 400);
        hostile.request("POST", "/api/v1/refs/n", "Content-Type: application/x-ue-cb\r\n", &body, 400);
        hostile.request("POST", "/api/v1/blobs", "Content-Type: application/json\r\n", &body, 400);
        hostile.request("PUT", &ref_path, OCTETS, &body, 400);
    }
    // Too large, wrong types, no type.
    let large = vec![0; (1 << 20) + 1];
    hostile.request("PUT", &format!("/api/v1/blobs/n/{wrong}"), OCTETS, &large, 413);
    for declared in ["1048577", "99999999999", "18446744073709551615"] {
        let head = format!(
            "PUT /api/v1/blobs/n/{wrong} HTTP/1.1\r\nHost: localhost\r\n{OCTETS}Content-Length: {declared}\r\n\r\n"
        );
        hostile.expect(declared, head.as_bytes(), 413);
    }
    for media in
        ["text/html", "application/x-ue-comp", "multipart/form-data; boundary=x", "application", "", "*/*"]
    {
        let headers = format!("Content-Type: {media}\r\n");
        hostile.request("PUT", &format!("/api/v1/blobs/n/{wrong}"), &headers, b"x", 415);
    }
    // Bodies that end early, and bombs that unfold to far more than was sent.
    for len in [1, 100, 70_000, 600_000] {
        let head = format!(
            "PUT /api/v1/blobs/n/{wrong} HTTP/1.1\r\nHost: localhost\r\n{OCTETS}Content-Length: {}\r\n\r\n",
            len + 1
        );
        hostile.expect("truncated", &[head.as_bytes(), &vec![1; len]].concat(), 400);
    }
    for depth in [65, 100, 1_000, 8_000] {
        let body = nested(depth);
        let headers =
            format!("Content-Type: application/x-ue-cb\r\nX-Jupiter-IoHash: {}\r\n", IoHash::of(&body));
        hostile.request("PUT", &ref_path, &headers, &body, 400);
    }
    for raw_size in [1_u64 << 32, 1 << 40, u64::MAX] {
        let body = bomb(raw_size);
        hostile.request(
            "PUT",
            &format!("/api/v1/compressed-blobs/n/{wrong}"),
            "Content-Type: application/x-ue-comp\r\n",
            &body,
            400,
        );
    }
}

/// Objects within objects.
fn nested(depth: usize) -> Vec<u8> {
    let mut bytes = vec![0x02, 0x00];
    for _ in 0..depth {
        // An object with one field, `a`, that is what there was: its type byte gains a name.
        let inner = [&[bytes[0] | 0x80, 1, b'a'][..], &bytes[1..]].concat();
        let mut size = Vec::new();
        throng_ddc::write_varuint(&mut size, inner.len() as u64);
        bytes = [&[0x02][..], &size, &inner].concat();
    }
    bytes
}

/// A compressed buffer of LZ4 that claims to hold so much.
fn bomb(raw_size: u64) -> Vec<u8> {
    let mut header = vec![0; 64];
    header[..4].copy_from_slice(&0xB775_6362_u32.to_be_bytes());
    header[8] = 4;
    header[11] = 18;
    header[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    header[16..24].copy_from_slice(&raw_size.to_be_bytes());
    header[24..32].copy_from_slice(&64_u64.to_be_bytes());
    header
}

/// Framing that two readers could understand differently, and other things that are no requests.
fn shapes(hostile: &mut Hostile) {
    let inner = "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (fields, body, status) in [
        ("Content-Length: 0\r\nContent-Length: 44\r\n", inner, 400),
        ("Content-Length: 44\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", 400),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n", 400),
        ("Transfer-Encoding: xchunked\r\n", inner, 501),
        ("Transfer-Encoding: chunked, identity\r\n", inner, 501),
        ("Transfer-Encoding:\tchunked\r\nTransfer-Encoding: identity\r\n", inner, 400),
        ("Transfer-Encoding\t: chunked\r\n", inner, 400),
        ("Transfer-Encoding : chunked\r\n", inner, 400),
        ("X: y\nTransfer-Encoding: chunked\r\n", inner, 400),
        ("X: y\rTransfer-Encoding: chunked\r\n", inner, 400),
        ("Content-Length: 1_0\r\n", inner, 400),
        ("Content-Length: 4 4\r\n", inner, 400),
        ("Content-Length: ,4\r\n", inner, 400),
        (" Content-Length: 4\r\n", inner, 400),
        ("Expect: everything\r\n", "", 417),
        ("Host: other\r\n", "", 400),
    ] {
        for path in [format!("/api/v1/blobs/n/{}", IoHash::ZERO), "/health/ready".to_owned()] {
            let text = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\n{OCTETS}{fields}\r\n{body}");
            hostile.expect(fields, text.as_bytes(), status);
        }
    }
    for (chunks, status) in [
        ("5\r\nhello0\r\n\r\n", 400),
        ("5\nhello\r\n0\r\n\r\n", 400),
        ("-1\r\n\r\n", 400),
        ("0x5\r\nhello\r\n0\r\n\r\n", 400),
        ("fffffffffffffffff\r\n", 400),
        ("ffffffffffffffff\r\nhello", 400),
        ("5\r\nhel", 400),
        ("g\r\n", 400),
        ("5 \r\nhello\r\n0\r\n\r\n", 400),
    ] {
        let text = format!(
            "PUT /api/v1/blobs/n/{} HTTP/1.1\r\nHost: localhost\r\n{OCTETS}Transfer-Encoding: chunked\r\n\r\n{chunks}",
            IoHash::of(b"something else")
        );
        hostile.expect(chunks, text.as_bytes(), status);
    }
    for (text, status) in [
        ("GET /health/ready HTTP/1.1\r\n\r\n", 400),
        ("GET /health/ready HTTP/9.9\r\nHost: localhost\r\n\r\n", 505),
        ("GET /health/ready\r\n\r\n", 400),
        ("GET\0/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("\u{16}\u{3}\u{1}\r\n\r\n", 400),
        ("SSH-2.0-x\r\n\r\n", 400),
        ("GET ftp://x/y HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ] {
        hostile.expect(text, text.as_bytes(), status);
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(20_000));
    hostile.expect("a long target", long.as_bytes(), 431);
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(200));
    hostile.expect("many headers", many.as_bytes(), 431);
}

/// Parts of a blob that is there.
fn ranges(hostile: &mut Hostile, path: &str, len: u64) {
    for (range, status) in [
        ("bytes=0-0", 206),
        ("bytes=-1", 206),
        ("bytes=99999-", 206),
        ("bytes=0-18446744073709551615", 206),
        ("bytes=18446744073709551615-", 416),
        ("bytes=100000-", 416),
        ("bytes=-0", 416),
        ("bytes=5-1", 200),
        ("bytes=a-b", 200),
        ("bytes=--1", 200),
        ("bytes=0x1-0x2", 200),
        ("bytes=0-1,2-3", 200),
        ("bytes= 0 - 1", 206),
        ("bytes=", 200),
        ("bits=0-1", 200),
    ] {
        hostile.request("GET", path, &format!("Range: {range}\r\n"), b"", status);
    }
    for start in (0..len).step_by(usize::try_from(len / 60).expect("small")) {
        hostile.request("GET", path, &format!("Range: bytes={start}-{}\r\n", start + 7), b"", 206);
    }
}

/// A client that does not wait for answers: what is read beyond the end of a body is the beginning
/// of the next request.
#[test]
fn bodies_that_are_sent_without_waiting_for_answers_are_told_apart() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let server = runtime.block_on(Server::start(Rules::default(), Listener::Public));
    // One piece that begins with its head; one that is read by itself; several pieces.
    let bodies: Vec<Vec<u8>> = [100, 70_000, 70_001, 3 << 20, (3 << 20) + 1]
        .into_iter()
        .map(|len| (0..len).map(|at| (at * 31 + len) as u8).collect())
        .collect();
    let mut bytes = Vec::new();
    for body in &bodies {
        let head = format!(
            "PUT /api/v1/blobs/test/{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{OCTETS}\r\n",
            IoHash::of(body),
            body.len()
        );
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(body);
    }
    bytes.extend_from_slice(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut hostile = Hostile { addr: server.addr, sent: 0 };
    let answers = hostile.send(&bytes);
    assert_eq!(statuses(&answers), [200; 6], "{}", String::from_utf8_lossy(&answers));
}
