//! Clients that say nothing, too little or too much, before any token is asked for: others are
//! answered beside them, and their memory stays bounded.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use throng_ddc::{IoHash, Style, Value};
use throng_ddc_server::{Listener, Rules};

use crate::common::Server;

/// Frame types of HTTP/2.
const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Bytes around the value of a field, its end included.
const OWS: [char; 4] = [' ', '\t', '\r', '\n'];

/// Connections of the server in `common`.
const CONNECTIONS_MAX: usize = 100;

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("the node listens");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a limit");
    // Small frames do not wait for an acknowledgement, which comes 40 ms later.
    stream.set_nodelay(true).expect("an option");
    stream
}

fn started() -> (tokio::runtime::Runtime, Server) {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let rules = Rules { blob_bytes_max: 1 << 20, ..Rules::default() };
    let server = runtime.block_on(Server::start(rules, Listener::Public));
    (runtime, server)
}

/// Everything that comes back for `bytes` on a connection of its own.
fn exchange(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(addr);
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

const HEALTH: &[u8] = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn a_newcomer_is_answered_beside_connections_that_make_no_progress() {
    let (_runtime, server) = started();
    let put = format!(
        "PUT /api/v1/blobs/n/{} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n",
        IoHash::ZERO
    );
    for beginning in [
        String::new(),
        "GET /health/ready HTTP/1.1\r\n".to_owned(),
        "GET /health/ready HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n".to_owned(),
        "POST /api/v1/blobs/n HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n".to_owned(),
        format!("{put}Content-Length: 10\r\n\r\n"),
        format!("{put}Transfer-Encoding: chunked\r\n\r\n"),
        format!("{put}Transfer-Encoding: chunked\r\n\r\n5;a"),
        format!("{put}Transfer-Encoding: chunked\r\n\r\n0\r\nA: "),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
    ] {
        let held: Vec<TcpStream> = (0..2 * CONNECTIONS_MAX)
            .map(|_| {
                let mut stream = connect(server.addr);
                // One that had to yield refuses.
                let _ = stream.write_all(beginning.as_bytes());
                stream
            })
            .collect();
        let answer = exchange(server.addr, HEALTH);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{beginning:?}: {answer}");
        drop(held);
    }
}

#[test]
fn a_refusal_does_not_wait_for_the_body() {
    let (_runtime, server) = started();
    let condition = "Host: localhost\r\nIf-Match: \"0\"\r\nContent-Length: 10\r\n";
    let media = format!("Content-Type: application/x-ue-cb\r\nX-Jupiter-IoHash: {}\r\n", IoHash::ZERO);
    let key = IoHash::ZERO;
    for (head, status) in [
        (&*format!("PUT /kv/n/a HTTP/1.1\r\n{condition}\r\n"), "412"),
        (&*format!("PUT /api/v1/refs/n/b/{key} HTTP/1.1\r\n{condition}{media}\r\n"), "412"),
        ("GET /health/ready HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", "200"),
        ("GET /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", "404"),
        ("PUT /api/v1/blobs/n/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", "400"),
        ("POST /health/ready HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", "405"),
    ] {
        // It ends although nothing more is sent.
        let answer = exchange(server.addr, head.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
    }
}

/// A client of HTTP/2 that says what it wants to.
pub(crate) struct Http2(TcpStream);

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let mut bytes = vec![len[1], len[2], len[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A GET as a header block without compression.
pub(crate) fn get(path: &str) -> Vec<u8> {
    // Indexed fields: method GET, scheme http.
    let mut block = vec![0x82, 0x86];
    // Literal fields with an indexed name: authority, path.
    for (name, value) in [(1, "localhost"), (4, path)] {
        block.extend([name, u8::try_from(value.len()).expect("short")]);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

impl Http2 {
    /// A connection whose streams begin with a window of `window` bytes.
    pub(crate) fn connect(addr: SocketAddr, window: u32) -> Http2 {
        let mut client = Http2(connect(addr));
        let mut settings = vec![0, 4];
        settings.extend(window.to_be_bytes());
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        client.send(&frame(SETTINGS, 0, 0, &settings));
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // A server that has heard enough closes.
        let _ = self.0.write_all(bytes);
    }

    /// The next frame: type, flags, stream, payload. `None` at the end.
    fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.0.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some((head[3], head[4], stream, payload))
    }

    /// Waits until everything that was sent before is handled, and gives the frames until then.
    fn settle(&mut self) -> Vec<(u8, u8, u32, Vec<u8>)> {
        self.send(&frame(PING, 0, 0, b"settled?"));
        let mut seen = Vec::new();
        loop {
            let next = self.next().expect("an open connection");
            if next.0 == PING && next.1 == 1 {
                return seen;
            }
            seen.push(next);
        }
    }

    /// The reason of the GOAWAY that ends the connection.
    fn reason(&mut self) -> Option<u32> {
        while let Some((kind, _, _, payload)) = self.next() {
            if kind == GOAWAY {
                return Some(u32::from_be_bytes(payload.get(4..8)?.try_into().ok()?));
            }
        }
        None
    }
}

#[test]
fn streams_take_as_much_as_their_window_and_no_more() {
    let (runtime, server) = started();
    let content: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
    let path = format!("/api/v1/blobs/n/{}", IoHash::of(&content));
    let media = ["Content-Type: application/octet-stream"];
    runtime.block_on(async { server.client().await.send("PUT", &path, &media, content.clone()).await });
    let mut client = Http2::connect(server.addr, 0);
    let streams: Vec<u32> = (0..50).map(|n| 2 * n + 1).collect();
    for stream in &streams {
        client.send(&frame(HEADERS, 5, *stream, &get(&path)));
    }
    let mut heads = 0;
    while heads < streams.len() {
        let (kind, ..) = client.next().expect("an answer");
        assert_ne!(kind, DATA, "no stream has a window");
        heads += usize::from(kind == HEADERS);
    }
    assert!(client.settle().iter().all(|(kind, ..)| *kind != DATA));
    client.send(&frame(WINDOW_UPDATE, 0, 3, &10_u32.to_be_bytes()));
    let (kind, _, stream, payload) = client.next().expect("a piece");
    assert_eq!((kind, stream, &payload[..]), (DATA, 3, &content[..10]));
    // The rest of one, within the window of the connection.
    client.send(&frame(WINDOW_UPDATE, 0, 3, &(1_u32 << 20).to_be_bytes()));
    client.send(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 20).to_be_bytes()));
    let mut taken: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    taken.entry(3).or_default().extend(payload);
    loop {
        let (kind, flags, stream, payload) = client.next().expect("the rest");
        if kind == DATA {
            taken.entry(stream).or_default().extend(payload);
            if flags & 1 != 0 {
                break;
            }
        }
    }
    assert_eq!(taken.len(), 1);
    assert!(taken[&3] == content, "{} of {} bytes", taken[&3].len(), content.len());
}

#[test]
fn the_json_of_an_object_holds_the_memory_of_the_object() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let rules = Rules { memory_bytes_max: 500 << 10, ..Rules::default() };
    let server = runtime.block_on(Server::start_with(rules, 100));
    let object = Value::object([("content", Value::Binary(vec![7; 400 << 10]))]).encode(Style::Plain);
    let path = format!("/api/v1/refs/n/b/{}", IoHash::of(b"key"));
    let headers =
        ["Content-Type: application/x-ue-cb", &format!("X-Jupiter-IoHash: {}", IoHash::of(&object))];
    let exchange = |method: &str, path: &str, headers: &[&str], body: Vec<u8>| {
        runtime.block_on(async { server.client().await.send(method, path, headers, body).await })
    };
    assert_eq!(exchange("PUT", &path, &headers, object.clone()).status.as_u16(), 200);
    let mut stalled = Http2::connect(server.addr, 0);
    stalled.send(&frame(HEADERS, 5, 1, &get(&format!("{path}.json"))));
    while stalled.next().expect("an answer").0 != HEADERS {}
    // Another client waits for what the stream holds, which loses it.
    let reply = exchange("GET", &format!("{path}.uecb"), &[], Vec::new());
    assert_eq!((reply.status.as_u16(), reply.body.len()), (200, object.len()));
    let (kind, _, stream, _) = stalled.next().expect("an open connection");
    assert_eq!((kind, stream), (3, 1), "RST_STREAM");
}

/// Bytes of memory that this process has.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4_096
}

#[test]
fn stalled_streams_hold_little_memory() {
    const STREAMS: u32 = 500;
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let server = runtime.block_on(Server::start(Rules::default(), Listener::Public));
    let content = vec![7_u8; 8 << 20];
    let path = format!("/api/v1/blobs/n/{}", IoHash::of(&content));
    let media = ["Content-Type: application/octet-stream"];
    runtime.block_on(async { server.client().await.send("PUT", &path, &media, content).await });
    let before = resident_bytes();
    let mut clients = Vec::new();
    for window in [0, 0, 0, 1, 1] {
        let mut client = Http2::connect(server.addr, window);
        for stream in 0..STREAMS {
            client.send(&frame(HEADERS, 5, 2 * stream + 1, &get(&path)));
        }
        let (mut heads, mut bytes) = (0, 0);
        while heads < STREAMS || bytes < (window * STREAMS) as usize {
            let (kind, _, _, payload) = client.next().expect("an answer");
            heads += u32::from(kind == HEADERS);
            bytes += if kind == DATA { payload.len() } else { 0 };
        }
        clients.push(client);
    }
    let held = resident_bytes().saturating_sub(before);
    // Other tests run beside it. Pieces of 512 KiB would be 1,280 MiB.
    assert!(held < 384 << 20, "{} MiB", held >> 20);
}

#[test]
fn bodies_that_do_not_end_share_their_memory() {
    const BODIES: usize = 380;
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let rules = Rules { memory_bytes_max: 16 << 20, ..Rules::default() };
    let server = runtime.block_on(Server::start_with(rules, 1_000));
    let before = resident_bytes();
    let head = "POST /api/v1/blobs/n/exist HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\
                Content-Type: application/json\r\n\r\n";
    let bytes = [head.as_bytes(), &vec![b' '; 900_000]].concat();
    let connect = |_| {
        let socket = TcpStream::connect(server.addr).expect("it listens");
        socket.set_nonblocking(true).expect("a socket");
        (socket, 0)
    };
    let mut sockets: Vec<_> = (0..BODIES).map(connect).collect();
    // Bodies beyond the memory stay in their sockets, or are refused.
    let mut passes_without = 0;
    while passes_without < 1_000 {
        passes_without += 1;
        for (socket, at) in &mut sockets {
            if let Ok(count @ 1..) = socket.write(&bytes[*at..]) {
                (*at, passes_without) = (*at + count, 0);
            }
        }
        std::thread::yield_now();
    }
    let held = resident_bytes().saturating_sub(before);
    // Other tests run beside it. All of the bodies would be 326 MiB.
    assert!(held < 200 << 20, "{} MiB", held >> 20);
    // Other clients get the memory of those that pause; an upload goes on without.
    let content = vec![9_u8; 1_000_000];
    let path = format!("/api/v1/blobs/n/{}", IoHash::of(&content));
    let (octets, json) = (["Content-Type: application/octet-stream"], ["Content-Type: application/json"]);
    runtime.block_on(async {
        let client = server.client().await;
        assert_eq!(client.send("PUT", &path, &octets, content.clone()).await.status.as_u16(), 200);
        assert!(client.send("GET", &path, &[], "").await.body == content);
        let many = format!("[{}]", vec![format!("\"{}\"", IoHash::of(&content)); 10_000].join(","));
        // Active senders are served first; the stalled ones stay connected and delay nobody.
        for tries in 1.. {
            let client = server.client().await;
            let reply = client.send("POST", "/api/v1/blobs/n/exist", &json, many.clone()).await;
            if reply.status.as_u16() != 429 {
                assert_eq!((reply.status.as_u16(), reply.text()), (200, "{\"needs\":[]}"));
                break;
            }
            assert!(tries < 10, "{}", reply.text());
        }
    });
    let held = resident_bytes().saturating_sub(before);
    // Other tests run beside it. All of the bodies would be 326 MiB.
    assert!(held < 200 << 20, "{} MiB", held >> 20);
}

#[test]
fn stalled_streams_leave_the_descriptors_to_others() {
    const STREAMS: u32 = 150;
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let server = runtime.block_on(Server::start(Rules::default(), Listener::Public));
    // Large enough for files of their own.
    let content = |number: u32| {
        let mut bytes = vec![7; 1_100_000];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes
    };
    let path = |number| format!("/api/v1/blobs/n/{}", IoHash::of(&content(number)));
    let media = ["Content-Type: application/octet-stream"];
    runtime.block_on(async {
        let client = server.client().await;
        for number in 0..STREAMS {
            client.send("PUT", &path(number), &media, content(number)).await;
        }
    });
    let mut client = Http2::connect(server.addr, 0);
    for number in 0..STREAMS {
        client.send(&frame(HEADERS, 5, 2 * number + 1, &get(&path(number))));
    }
    let mut heads = 0;
    while heads < STREAMS {
        heads += u32::from(client.next().expect("an answer").0 == HEADERS);
    }
    client.settle();
    let folder = server.folder().join("large");
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux").flatten();
    let open = descriptors.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&folder)));
    let open = open.count();
    assert!(open <= 80, "{open} files are open");
    // The last one waits without its file, and is served from it.
    let stream = 2 * STREAMS - 1;
    client.send(&frame(WINDOW_UPDATE, 0, 0, &(2_u32 << 20).to_be_bytes()));
    client.send(&frame(WINDOW_UPDATE, 0, stream, &(2_u32 << 20).to_be_bytes()));
    let mut taken = Vec::new();
    loop {
        let (kind, flags, from, payload) = client.next().expect("the content");
        if kind == DATA && from == stream {
            taken.extend(payload);
            if flags & 1 != 0 {
                break;
            }
        }
    }
    assert!(taken == content(STREAMS - 1), "{} bytes", taken.len());
}

#[test]
fn too_many_control_frames_and_resets_end_with_goaway() {
    let (_runtime, server) = started();
    const ENHANCE_YOUR_CALM: u32 = 11;
    for (what, control) in [
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("unknown", frame(99, 0, 0, &[])),
    ] {
        let mut client = Http2::connect(server.addr, 65_535);
        let mut writer = client.0.try_clone().expect("a descriptor");
        let flood = std::thread::spawn(move || {
            let _ = writer.write_all(&control.repeat(5_000));
            let _ = writer.shutdown(Shutdown::Write);
        });
        assert_eq!(client.reason(), Some(ENHANCE_YOUR_CALM), "{what}");
        flood.join().expect("it wrote");
    }
    // Each request is answered before it is reset.
    let mut client = Http2::connect(server.addr, 0);
    let block = get("/health/ready");
    let mut stream = 1;
    let reason = loop {
        client.send(&frame(HEADERS, 5, stream, &block));
        let answered = loop {
            match client.next() {
                Some((HEADERS, ..)) => break None,
                Some((GOAWAY, _, _, payload)) => break Some(payload[7]),
                Some(_) => {}
                None => panic!("no reason after {} requests", stream / 2),
            }
        };
        if let Some(reason) = answered {
            break u32::from(reason);
        }
        client.send(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        stream += 2;
        assert!(stream < 100_000, "{} resets pass", stream / 2);
    };
    assert_eq!(reason, ENHANCE_YOUR_CALM);
    assert!(stream / 2 >= 1_000, "an editor may cancel its requests: {}", stream / 2);
}

/// Framings that mean one thing to some readers and another to others, each followed by a request
/// that must not be answered.
#[test]
fn no_framing_smuggles_a_request() {
    let (_runtime, server) = started();
    let names = [
        "Content-Length",
        "content-length",
        "Content-Length ",
        "Content-Length\t",
        " Content-Length",
        "Content_Length",
    ];
    let lengths = [
        "0",
        "5",
        "05",
        "+5",
        "-5",
        "5,5",
        "5 ",
        "0x5",
        "5;",
        "5\r\n 0",
        "\t5",
        "\u{b}5",
        "1e1",
        "",
        "55555555555555555555",
    ];
    let codings = [
        "chunked",
        " chunked",
        "Chunked",
        "xchunked",
        "chunked, identity",
        "identity, chunked",
        "chunked;a",
        "\"chunked\"",
        "chun ked",
        "chunked\r\n x",
        "\u{b}chunked",
        "gzip",
        "",
        "chunked,",
        ",chunked",
        "cow",
    ];
    let encodings = [
        "Transfer-Encoding",
        "transfer-encoding",
        "Transfer-Encoding ",
        "Transfer-Encoding\t",
        " Transfer-Encoding",
        "Transfer_Encoding",
        "Transfer-Encoding\u{0}",
    ];
    let smuggled = "GET /api/v1/status?smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut fields = Vec::new();
    for name in names {
        for length in lengths {
            fields.push(format!("{name}:{length}\r\n"));
            fields.push(format!("{name}:{length}\r\nTransfer-Encoding: chunked\r\n"));
            fields.push(format!("Content-Length: 5\r\n{name}:{length}\r\n"));
        }
    }
    for name in encodings {
        for coding in codings {
            fields.push(format!("{name}:{coding}\r\n"));
            fields.push(format!("{name}:{coding}\r\nContent-Length: 5\r\n"));
            fields.push(format!("Transfer-Encoding: chunked\r\n{name}:{coding}\r\n"));
        }
    }
    for fields in &fields {
        let head = format!("POST /nothing HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n0\r\n\r\n{smuggled}");
        let mut stream = connect(server.addr);
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let first = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        let count = answer.matches("HTTP/1.1 ").count();
        // A body of five bytes, or of chunks, is unambiguous. The five are skipped, and the next
        // request is one of its own; a refusal does not wait for chunks, and closes.
        // A name with an underscore is another field.
        let lines = fields.split_inclusive("\r\n").filter(|line| !line.contains('_'));
        let lines = lines.filter_map(|line| line.split_once(':'));
        let normal: String =
            lines.map(|(name, value)| format!("{name}:{}\n", value.trim_matches(OWS))).collect();
        let normal = normal.to_ascii_lowercase();
        let is_plain = ["content-length:5\n", "content-length:05\n", "transfer-encoding:chunked\n"]
            .contains(&&*normal)
            && !fields.contains(['\u{b}', '\0'])
            && !fields.contains("\r\n ");
        if is_plain {
            let expected = if normal.starts_with('t') { 1 } else { 2 };
            assert_eq!((first.as_str(), count), ("404", expected), "{fields:?}: {answer}");
        } else if ["400", "501"].contains(&first.as_str()) {
            assert_eq!(count, 1, "{fields:?}: {answer}");
        } else {
            // The fields are of no importance: the five bytes are the next request, which is none.
            assert!(!answer.contains("siteIdentifier"), "{fields:?}: {answer}");
        }
    }
    assert!(fields.len() > 600, "{}", fields.len());
}

#[tokio::test]
async fn conditions_hold_over_all_header_lines() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let content = b"some content".to_vec();
    let hash = IoHash::of(&content);
    let path = format!("/api/v1/blobs/n/{hash}");
    client.send("PUT", &path, &["Content-Type: application/octet-stream"], content).await;
    let (own, weak) = (format!("\"{hash}\""), format!("W/\"{hash}\""));
    let line = |name: &str, value: &str| format!("{name}: {value}");
    let other = "\"0000000000000000000000000000000000000000\"";
    let cases: Vec<(Vec<String>, u16)> = vec![
        (vec![line("If-None-Match", other), line("If-None-Match", &own)], 304),
        (vec![line("If-None-Match", &own), line("If-None-Match", other)], 304),
        (vec![line("If-None-Match", &format!("{other}, {weak}"))], 304),
        (vec![line("If-None-Match", "*")], 304),
        (vec![line("If-None-Match", other)], 200),
        (vec![line("If-Match", &own)], 200),
        (vec![line("If-Match", "*")], 200),
        (vec![line("If-Match", other), line("If-Match", &own)], 200),
        (vec![line("If-Match", other)], 412),
        (vec![line("If-Match", &weak)], 412),
        (vec![line("If-Match", other), line("If-None-Match", &own)], 412),
        (vec![line("If-Match", &own), line("If-None-Match", &own)], 304),
    ];
    for (lines, status) in cases {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        for method in ["GET", "HEAD"] {
            for family in ["blobs", "compressed-blobs"] {
                let path = format!("/api/v1/{family}/n/{hash}");
                let reply = client.send(method, &path, &lines, "").await;
                assert_eq!(reply.status.as_u16(), status, "{method} {family} {lines:?}: {}", reply.text());
                if status == 304 {
                    assert_eq!((reply.header("etag"), reply.body.len()), (own.as_str(), 0));
                }
            }
        }
    }
}

#[test]
fn a_chunked_upload_above_the_limit_is_refused() {
    let (_runtime, server) = started();
    let (limit, piece) = (1_usize << 20, 1 << 16);
    for (extra, status) in [(0, "200"), (1, "413")] {
        let content = vec![7_u8; limit + extra];
        let hash = IoHash::of(&content);
        let mut bytes = format!(
            "PUT /api/v1/blobs/n/{hash} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        .into_bytes();
        for chunk in content.chunks(piece) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        let answer = exchange(server.addr, &bytes);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{extra}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ref_is_not_finalised_with_the_hash_of_another_object() {
    let server = Server::start(Rules::default(), Listener::Public).await;
    let client = server.client().await;
    let value = throng_ddc::Value::object([("a", throng_ddc::Value::Integer(1))]);
    let object = value.encode(throng_ddc::Style::Plain);
    let hash = IoHash::of(&object);
    let path = "/api/v1/refs/n/default/00000000000000000000000000000000000000aa";
    let claim = format!("X-Jupiter-IoHash: {hash}");
    let put = client.send("PUT", path, &["Content-Type: application/x-ue-cb", &claim], object).await;
    assert_eq!(put.status.as_u16(), 200, "{}", put.text());
    for (named, status) in [(hash, 200), (IoHash::of(b"another"), 400), (IoHash::ZERO, 400)] {
        let reply = client.send("POST", &format!("{path}/finalize/{named}"), &[], "").await;
        assert_eq!(reply.status.as_u16(), status, "{}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_of_a_token_counts() {
    use throng_ddc_server::{Access, Tokens};
    let token = "0123456789abcdef0123456789abcdef";
    let tokens = Tokens::parse(&format!("{token} group=build\n")).expect("tokens");
    let access = Access { identify: vec![Box::new(tokens)], ..Access::default() };
    let server = Server::start(Rules { access, ..Rules::default() }, Listener::Public).await;
    let client = server.client().await;
    let status = async |token: &str| {
        let header = format!("Authorization: Bearer {token}");
        client.send("GET", "/api/v1/status", &[&header], "").await.status.as_u16()
    };
    assert_eq!(status(token).await, 200);
    for at in 0..token.len() {
        let mut other = token.as_bytes().to_vec();
        other[at] ^= 1;
        assert_eq!(status(std::str::from_utf8(&other).expect("text")).await, 401, "byte {at}");
    }
    for other in [&token[..16], &token[..31], &format!("{token}0"), &token.repeat(2), "0"] {
        assert_eq!(status(other).await, 401, "{other}");
    }
    let header = format!("Authorization: Bearer {token}");
    let twice = client.send("GET", "/api/v1/status", &[&header, "Authorization: Bearer other"], "").await;
    assert_eq!(twice.status.as_u16(), 401, "a proxy in front may have checked the other");
}
