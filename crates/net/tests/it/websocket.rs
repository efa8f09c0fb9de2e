//! WebSocket connections over loopback, with an independent implementation as the peer.

use crate::common;

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use common::*;
use throng_net::ws::{self, ProtocolError};
use throng_net::*;
use tungstenite::Message;
use tungstenite::protocol::WebSocket;
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame};

type Client = WebSocket<TcpStream>;

fn ws_spec(policy: WsPolicy) -> ListenerSpec {
    ListenerSpec { ws: Arc::new(policy), ..ListenerSpec::new(loopback(), Transport::WebSocket) }
}

/// Runs a client on its own thread.
fn client<T: Send + 'static>(
    addr: SocketAddr,
    play: impl FnOnce(Client) -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let stream = TcpStream::connect(addr).unwrap();
        let (client, response) = tungstenite::client(format!("ws://{addr}/any/path?q"), stream).unwrap();
        assert_eq!(response.status(), 101);
        play(client)
    })
}

/// Drives `node` until the client is done.
#[track_caller]
fn finish<T>(node: &mut Node, client: JoinHandle<T>) -> T {
    node.until("the client is done", |_| client.is_finished());
    client.join().unwrap()
}

fn message(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ws::write_message(&mut out, payload, None);
    out
}

#[test]
fn messages_flow_both_ways_at_every_length_form() {
    let mut node = Node::new();
    let addr = node.listen(Transport::WebSocket);
    let sizes = [0, 1, 125, 126, 65_535, 65_536, 300_000];
    let client = client(addr, move |mut client| {
        for size in sizes {
            client.send(Message::binary(pattern(size))).unwrap();
            assert_eq!(client.read().unwrap(), Message::binary(pattern(size)));
        }
    });
    let key = node.accepted_one();
    let mut expected = Vec::new();
    for size in sizes {
        expected.extend_from_slice(&pattern(size));
        node.until("the message arrives", |node| node.received(key).len() == expected.len());
        node.write_all(key, &message(&pattern(size)));
    }
    finish(&mut node, client);
    assert!(node.received(key) == expected);
}

#[test]
fn fragments_and_controls_between_them_form_one_stream() {
    let mut node = Node::new();
    let addr = node.listen(Transport::WebSocket);
    let client = client(addr, |mut client| {
        let frame = |part: &'static [u8], opcode, last| {
            Message::Frame(Frame::message(part, OpCode::Data(opcode), last))
        };
        client.send(frame(b"one ", Data::Binary, false)).unwrap();
        client.send(frame(b"", Data::Continue, false)).unwrap();
        client.send(Message::Ping("are you there".into())).unwrap();
        client.send(frame(b"message", Data::Continue, true)).unwrap();
        assert_eq!(client.read().unwrap(), Message::Pong("are you there".into()));
        client.close(Some(CloseFrame { code: CloseCode::Away, reason: "bye".into() })).unwrap();
        // The server echoes the code and ends the connection.
        let answer = client.read().unwrap();
        assert!(
            matches!(&answer, Message::Close(Some(frame)) if frame.code == CloseCode::Away),
            "{answer:?}"
        );
        assert!(matches!(client.read(), Err(tungstenite::Error::ConnectionClosed)));
    });
    let key = node.accepted_one();
    finish(&mut node, client);
    node.until("the connection is gone", |node| node.net.conn_count() == 0);
    assert_eq!(node.received(key), b"one message");
    assert!(matches!(node.seen.closed[&key], CloseCause::WsClosed { code: Some(1001) }));
}

#[test]
fn a_text_message_is_refused_with_a_reason() {
    let mut node = Node::new();
    let addr = node.listen(Transport::WebSocket);
    let client = client(addr, |mut client| {
        client.send(Message::text("hello")).unwrap();
        client.read().unwrap()
    });
    let key = node.accepted_one();
    let answer = finish(&mut node, client);
    let Message::Close(Some(frame)) = answer else { panic!("{answer:?}") };
    assert_eq!(frame.code, CloseCode::Unsupported);
    assert_eq!(frame.reason.as_str(), "text messages are not supported, send binary");
    assert_eq!(node.seen.closed[&key].name(), "ws_text");
}

#[test]
fn a_flushing_close_says_goodbye_with_code_and_reason() {
    let mut node = Node::new();
    let addr = node.listen(Transport::WebSocket);
    let client = client(addr, |mut client| (client.read().unwrap(), client.read().unwrap()));
    let key = node.accepted_one();
    node.write_all(key, &message(b"last"));
    node.net.close_with(key, 4001, "banned");
    let (last, goodbye) = finish(&mut node, client);
    assert_eq!(last, Message::binary(&b"last"[..]));
    let Message::Close(Some(frame)) = goodbye else { panic!("{goodbye:?}") };
    assert_eq!((u16::from(frame.code), frame.reason.as_str()), (4001, "banned"));
    node.until("the connection is gone", |node| node.net.conn_count() == 0);
    assert!(node.seen.closed.is_empty());
}

#[test]
fn a_pong_never_lands_inside_a_message() {
    let mut node = Node::new();
    let addr = node.listen(Transport::WebSocket);
    // A raw client, to see every byte and to stop reading at will.
    let mut raw = upgraded(addr, &mut node);
    let key = node.accepted_one();
    let big = message(&pattern(32 << 20));
    let mut sent = node.net.write(key, &[IoSlice::new(&big)]);
    assert!(sent.blocked && sent.taken > 0, "the message must get stuck half-way: {sent:?}");
    // Two pings while the server is stuck: the newer one is answered, after the message.
    let mut pings = Vec::new();
    for payload in [b"old", b"new"] {
        pings.extend_from_slice(&[0x89, 0x83, 0, 0, 0, 0]);
        pings.extend_from_slice(payload);
    }
    raw.write_all(&pings).unwrap();
    raw.write_all(&[0x82, 0x81, 0, 0, 0, 0, b'x']).unwrap();
    node.until("the pings are read", |node| node.received(key) == b"x");
    let expected = [big.clone(), vec![0x8A, 3], b"new".to_vec(), message(b"after")].concat();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        raw.read_exact(&mut got).unwrap();
        assert!(got == expected, "the pong is misplaced");
        raw
    });
    let mut at = sent.taken;
    let tail = [&big[..], &message(b"after")].concat();
    while at < tail.len() {
        node.step(1);
        sent = node.net.write(key, &[IoSlice::new(&tail[at..])]);
        at += sent.taken;
    }
    finish(&mut node, reader);
}

#[test]
fn a_connection_that_ends_while_a_message_is_stuck_ends_it_and_says_goodbye() {
    for layer in ["the peer broke a rule", "the driver closed"] {
        let mut node = Node::new();
        let spec = ListenerSpec {
            limits: Limits { send_buffer_bytes: Some(16 << 10), ..Limits::default() },
            ..ListenerSpec::new(loopback(), Transport::WebSocket)
        };
        let addr = node.listen_with(spec);
        let mut raw = upgraded(addr, &mut node);
        let key = node.accepted_one();
        let one = message(&pattern(60_000));
        let mut written = 0;
        loop {
            let outcome = node.net.write(key, &[IoSlice::new(&one)]);
            written += outcome.taken;
            if outcome.blocked {
                break;
            }
        }
        assert_eq!(written % one.len(), 0, "a message that has begun is taken whole");
        let code = match layer {
            "the peer broke a rule" => {
                raw.write_all(&[0x82, 1, b'x']).unwrap();
                node.until("the rule is broken", |node| node.seen.closed.contains_key(&key));
                1002
            }
            _ => {
                node.net.close_with(key, 4001, "kicked");
                4001
            }
        };
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            raw.read_to_end(&mut got).unwrap();
            got
        });
        let got = finish(&mut node, reader);
        assert!(got[..written] == one.repeat(written / one.len()), "{layer}: the messages are whole");
        assert_eq!(
            (got[written], &got[written + 2..written + 4]),
            (0x88, &u16::to_be_bytes(code)[..]),
            "{layer}"
        );
    }
}

#[test]
fn pings_and_empty_frames_are_bounded() {
    for (what, frame) in [("pings", 0x89), ("pongs", 0x8A), ("empty messages", 0x82)] {
        for (count, ends) in [(100, false), (101, true)] {
            let mut node = Node::new();
            let addr = node.listen(Transport::WebSocket);
            let mut raw = upgraded(addr, &mut node);
            let key = node.accepted_one();
            let mut frames = [frame, 0x80, 1, 2, 3, 4].repeat(count);
            frames.extend_from_slice(&[0x82, 0x81, 0, 0, 0, 0, b'x']);
            raw.write_all(&frames).unwrap();
            node.until("it is judged", |node| node.received(key) == b"x" || !node.seen.closed.is_empty());
            let cause = node.seen.closed.get(&key).map(CloseCause::name);
            assert_eq!(cause, ends.then_some("ws_bare_frames"), "{count} {what}");
        }
    }
}

#[test]
fn connections_that_say_goodbye_give_way_to_newcomers() {
    let mut node = Node::new();
    let spec = ListenerSpec {
        limits: Limits { connections_max: 2, flush_timeout: Duration::from_secs(3_600), ..Limits::default() },
        ..ListenerSpec::new(loopback(), Transport::WebSocket)
    };
    let addr = node.listen_with(spec);
    let leaving = [upgraded(addr, &mut node), upgraded(addr, &mut node)];
    for (_, key) in std::mem::take(&mut node.seen.accepted) {
        node.net.close_with(key, 4001, "kicked");
    }
    assert_eq!(node.net.conn_count(), 2, "they do not close their ends");
    let newcomer = upgraded(addr, &mut node);
    assert_eq!((node.net.conn_count(), node.seen.accepted.len()), (2, 1));
    drop((leaving, newcomer));
}

/// Opens a WebSocket by hand.
fn upgraded(addr: SocketAddr, node: &mut Node) -> TcpStream {
    let mut raw = TcpStream::connect(addr).unwrap();
    raw.write_all(REQUEST.as_bytes()).unwrap();
    let opened = std::thread::spawn(move || {
        let head = read_head(&mut raw);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // The example of RFC 6455 §1.3.
        assert!(head.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
        raw
    });
    finish(node, opened)
}

const REQUEST: &str = "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n\
    Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Origin: http://example.com\r\nSec-WebSocket-Version: 13\r\n\r\n";

fn read_head(raw: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && raw.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn bad_requests_get_an_http_answer() {
    let policy = WsPolicy {
        origins: vec!["http://example.com".into(), "https://play.example.org".into()],
        path: Some("/chat".into()),
        ..WsPolicy::default()
    };
    let mut node = Node::new();
    let addr = node.listen_with(ws_spec(policy));
    let with = |from: &str, to: &str| {
        assert!(REQUEST.contains(from));
        REQUEST.replace(from, to)
    };
    let table: Vec<(&str, String, u16)> = vec![
        ("the good one", REQUEST.into(), 101),
        ("another origin that is allowed", with("http://example.com", "https://PLAY.example.org"), 101),
        ("no origin: not a browser", with("Origin: http://example.com\r\n", ""), 101),
        (
            "header names and tokens in other case",
            with("Connection: keep-alive, Upgrade", "CONNECTION: upgrade"),
            101,
        ),
        ("a query", with("/chat", "/chat?token=1"), 101),
        ("an origin that is not allowed", with("http://example.com", "http://evil.example.com"), 403),
        ("an origin with another port", with("http://example.com", "http://example.com:81"), 403),
        ("the null origin", with("http://example.com", "null"), 403),
        ("another path", with("/chat", "/chat/2"), 404),
        ("not HTTP", "CH\0\x05\0hello\r\n\r\n".into(), 400),
        ("a POST", with("GET", "POST"), 400),
        ("HTTP/1.0", with("HTTP/1.1", "HTTP/1.0"), 400),
        ("no upgrade header", with("Upgrade: websocket\r\n", ""), 426),
        ("an upgrade to something else", with("websocket", "h2c"), 426),
        ("no connection header", with("Connection: keep-alive, Upgrade\r\n", ""), 426),
        ("a connection header without upgrade", with("keep-alive, Upgrade", "keep-alive"), 426),
        ("no version", with("Sec-WebSocket-Version: 13\r\n", ""), 426),
        ("an old version", with("Version: 13", "Version: 8"), 426),
        ("no key", with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""), 400),
        ("a short key", with("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ=="), 400),
        ("a key that is not base64", with("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25j!Q=="), 400),
        ("a head without end", format!("{}X: {}", &REQUEST[..REQUEST.len() - 2], "y".repeat(9000)), 431),
        ("a colon missing", with("Host: server", "Host server"), 400),
        ("no host", with("Host: server.example.com\r\n", ""), 400),
        ("two hosts", with("Host: server.example.com", "Host: a\r\nHost: b"), 400),
        ("a host with a space", with("Host: server.example.com", "Host: a b"), 400),
        ("a host with a path", with("Host: server.example.com", "Host: a/b"), 400),
        ("a host with a port that is none", with("Host: server.example.com", "Host: a:8o"), 400),
        ("half an address", with("Host: server.example.com", "Host: [::1"), 400),
        ("an empty host", with("Host: server.example.com", "Host:"), 101),
        ("an underscore in the host", with("Host: server.example.com", "Host: game_server:80"), 101),
        ("an address as the host", with("Host: server.example.com", "Host: [::1]:12108"), 101),
        ("a URL", with("GET /chat", "GET http://server.example.com/chat"), 101),
        ("no path", with("GET /chat", "GET *"), 400),
        ("a relative path", with("GET /chat", "GET chat"), 400),
        ("a fragment", with("GET /chat", "GET /chat#b"), 400),
        (
            "two keys",
            with("Sec-WebSocket-Key", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Key"),
            400,
        ),
        ("two versions", with("Version: 13", "Version: 13\r\nSec-WebSocket-Version: 8"), 400),
        (
            "two origins, the first of which is allowed",
            with(
                "Origin: http://example.com",
                "Origin: http://example.com\r\nOrigin: http://evil.example.com",
            ),
            400,
        ),
        ("lines without carriage returns", REQUEST.replace("\r\n", "\n"), 400),
        ("one line without a carriage return", with("\r\nUpgrade", "\nUpgrade"), 400),
        ("a plain browser visit", "GET /chat HTTP/1.1\r\nHost: x\r\n\r\n".into(), 426),
    ];
    for (what, request, status) in table {
        let client = std::thread::spawn(move || {
            let mut raw = TcpStream::connect(addr).unwrap();
            raw.write_all(request.as_bytes()).unwrap();
            let head = read_head(&mut raw);
            if !head.starts_with("HTTP/1.1 101 ") {
                // The answer is complete and the connection ends.
                let mut body = String::new();
                raw.read_to_string(&mut body).unwrap();
                assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}{body}");
            }
            head
        });
        let head = finish(&mut node, client);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {head}");
        assert_eq!(head.contains("Sec-WebSocket-Version: 13"), status == 426, "{what}: {head}");
    }
    node.until("all are gone", |node| node.net.conn_count() == 0);
    assert_eq!(node.seen.accepted.len(), 9);
    assert_eq!(node.net.stats().handshakes_failed, 33);
}

#[test]
fn a_request_may_arrive_byte_by_byte_or_with_the_first_message() {
    let mut node = Node::new();
    let addr = node.listen(Transport::WebSocket);
    let mut raw = TcpStream::connect(addr).unwrap();
    raw.set_nodelay(true).unwrap();
    let request = REQUEST.as_bytes();
    for byte in &request[..request.len() - 1] {
        raw.write_all(std::slice::from_ref(byte)).unwrap();
        node.step(0);
    }
    assert!(node.seen.accepted.is_empty());
    let mut last = request[request.len() - 1..].to_vec();
    ws::write_message(&mut last, b"at once", Some([9, 8, 7, 6]));
    raw.write_all(&last).unwrap();
    let key = node.accepted_one();
    node.until("the message arrives", |node| node.received(key) == b"at once");
}

#[test]
fn a_handshake_that_drips_ends_at_its_deadline() {
    let mut node = Node::new();
    let limits = Limits { handshake_timeout: Duration::from_millis(60), ..Limits::default() };
    let addr = node.listen_with(ListenerSpec { limits, ..ws_spec(WsPolicy::default()) });
    let mut raw = TcpStream::connect(addr).unwrap();
    node.until("the deadline cuts it", |node| {
        // Progress does not help: the deadline is for the whole handshake.
        let _ = raw.write_all(b"G");
        node.net.stats().handshakes_failed == 1
    });
    assert!(node.seen.accepted.is_empty() && node.seen.closed.is_empty());
    // The slot of a connection is freed by the poll after the one that closes it.
    node.until("its slot is free", |node| node.net.conn_count() == 0);
}

#[test]
fn silent_peers_are_pinged_and_those_that_do_not_answer_closed() {
    let mut node = Node::new();
    // Only the clock that this test moves reaches it.
    const INTERVAL: Duration = Duration::from_secs(60);
    let policy = WsPolicy { ping_interval: Some(INTERVAL), ..WsPolicy::default() };
    let addr = node.listen_with(ws_spec(policy));
    let mut mute = upgraded(addr, &mut node);
    let mute_key = node.accepted_one();
    let alive = client(addr, |mut client| {
        // Reading answers pings. The message comes behind the answer.
        for _ in 0..3 {
            while !client.read().unwrap().is_ping() {}
            client.send(Message::binary(&b"."[..])).unwrap();
        }
        client
    });
    node.until("both are there", |node| node.seen.accepted.len() == 2);
    let alive_key = node.seen.accepted[1].1;
    for pings in 1..=3 {
        node.pass(INTERVAL);
        node.until("the answer to a ping", |node| node.received(alive_key).len() == pings);
    }
    finish(&mut node, alive);
    node.until("the mute one is closed", |node| node.seen.closed.contains_key(&mute_key));
    assert_eq!(node.seen.closed[&mute_key].name(), "ping_timeout");
    assert_eq!(node.seen.closed.len(), 1);
    let mut got = Vec::new();
    let _ = mute.read_to_end(&mut got);
    let mut expected = vec![0x89, 0];
    ws::write_close(&mut expected, 4007, "idle_timeout", None);
    assert_eq!(got, expected, "exactly one ping, and the reason");
}

#[test]
fn a_websocket_connection_moves_to_another_loop_with_its_input() {
    let (mut first, mut second) = (Node::new(), Node::new());
    first.seen.accept = Some(Accept::HandOff);
    let addr = first.listen(Transport::WebSocket);
    let mut raw = TcpStream::connect(addr).unwrap();
    // The first messages come in one piece with the request, before anyone could know where they
    // belong.
    let mut early = REQUEST.as_bytes().to_vec();
    ws::write_message(&mut early, b"early ", Some([1; 4]));
    early.extend_from_slice(&[0x82, 0x84, 5, 5, 5, 5, b'b' ^ 5]);
    raw.write_all(&early).unwrap();
    let key = first.accepted_one();
    let detached = first.net.detach(key).unwrap();
    assert!(first.received(key).is_empty());
    let key = second.net.attach(detached).unwrap();
    raw.write_all(&[b'i' ^ 5, b'r' ^ 5, b'd' ^ 5]).unwrap();
    second.until("both arrive", |node| node.received(key) == b"early bird");
    assert!(read_head(&mut raw).starts_with("HTTP/1.1 101 "));
}

#[test]
fn a_refused_client_is_told_by_a_close_code_which_a_page_can_see() {
    let mut node = Node::new();
    node.seen.accept = Some(Accept::Refuse { code: 1013, reason: "full" });
    let addr = node.listen(Transport::WebSocket);
    let mut raw = TcpStream::connect(addr).unwrap();
    raw.write_all(REQUEST.as_bytes()).unwrap();
    let client = std::thread::spawn(move || {
        let head = read_head(&mut raw);
        let mut rest = Vec::new();
        raw.read_to_end(&mut rest).unwrap();
        (head, rest)
    });
    let (head, rest) = finish(&mut node, client);
    let mut goodbye = Vec::new();
    ws::write_close(&mut goodbye, 1013, "full", None);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert_eq!(rest, goodbye);
    assert_eq!(node.net.stats().refused_by_handler, 1);
}

#[test]
fn pausing_in_the_middle_of_a_read_keeps_the_rest() {
    let mut node = Node::new();
    let addr = node.listen(Transport::WebSocket);
    let mut raw = upgraded(addr, &mut node);
    let key = node.accepted_one();
    node.seen.pause = true;
    let mut three = Vec::new();
    for part in [b"one", b"two", b"six"] {
        ws::write_message(&mut three, part, Some([3, 1, 4, 1]));
    }
    raw.write_all(&three).unwrap();
    for expected in [&b"one"[..], b"onetwo", b"onetwosix"] {
        node.until("the next message arrives", |node| node.received(key) == expected);
        node.step(5);
        assert_eq!(node.received(key), expected, "one message per resumption");
        node.net.resume_read(key);
    }
}

#[test]
fn our_client_speaks_to_an_independent_server() {
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut server = tungstenite::accept(stream).unwrap();
        // The library checks that client frames are masked.
        let message = server.read().unwrap();
        server.send(Message::Ping("?".into())).unwrap();
        server.send(message).unwrap();
        assert_eq!(server.read().unwrap(), Message::Pong("?".into()));
        let goodbye = server.read().unwrap();
        assert!(matches!(goodbye, Message::Close(Some(frame)) if frame.code == CloseCode::Normal));
    });
    let mut node = Node::new();
    let key = node.net.connect(patient(addr, Transport::WebSocket)).unwrap();
    node.until("it is connected", |node| node.seen.connected == [key]);
    let mut out = Vec::new();
    ws::write_message(&mut out, &pattern(70_000), Some([1, 2, 3, 4]));
    node.write_all(key, &out);
    node.until("the echo arrives", |node| node.received(key).len() == 70_000);
    assert!(node.received(key) == pattern(70_000));
    node.net.close(key, CloseMode::Flush);
    finish(&mut node, server);
}

#[test]
fn our_client_reports_a_server_that_does_not_upgrade() {
    let policy = WsPolicy { origins: vec!["https://only.example".into()], ..WsPolicy::default() };
    let (mut server, mut client) = (Node::new(), Node::new());
    let addr = server.listen_with(ws_spec(policy));
    let spec = ConnectSpec {
        origin: Some("https://other.example".into()),
        ..ConnectSpec::new(addr, Transport::WebSocket)
    };
    let key = client.net.connect(spec).unwrap();
    until_both(&mut server, &mut client, "refused", |_, c| c.seen.closed.contains_key(&key));
    let cause = &client.seen.closed[&key];
    assert!(matches!(cause, CloseCause::WsRefused(ws::ResponseError::Status(403))), "{cause:?}");
}

/// Frames of a client after the handshake and the server's reactions: the classes of RFC 6455.
#[test]
fn frames_by_the_letter_of_the_rfc() {
    enum Expect {
        /// The payload bytes delivered; the connection stays.
        Data(&'static [u8]),
        /// Delivered bytes, then a close frame with this code.
        Close(&'static [u8], u16),
        /// A pong with this payload.
        Pong(&'static [u8]),
    }
    use Expect::{Close, Data, Pong};
    // Frames are written unmasked here and masked before they are sent.
    let table: Vec<(&str, Vec<Vec<u8>>, Expect)> = vec![
        ("§5.6 a binary message", vec![vec![0x82, 2, 1, 2]], Data(&[1, 2])),
        ("§5.6 an empty binary message, then another", vec![vec![0x82, 0], vec![0x82, 1, 7]], Data(&[7])),
        ("§5.6 a text message (policy)", vec![vec![0x81, 2, b'h', b'i']], Close(&[], 1003)),
        ("§5.6 an empty text message (policy)", vec![vec![0x81, 0]], Close(&[], 1003)),
        ("§5.6 a fragmented text message (policy)", vec![vec![0x01, 1, b'h']], Close(&[], 1003)),
        ("§5.4 two fragments", vec![vec![0x02, 1, 1], vec![0x80, 1, 2]], Data(&[1, 2])),
        (
            "§5.4 many fragments, empty ones among them",
            vec![vec![0x02, 0], vec![0x00, 1, 1], vec![0x00, 0], vec![0x00, 1, 2], vec![0x80, 0]],
            Data(&[1, 2]),
        ),
        (
            "§5.4 a ping between fragments",
            vec![vec![0x02, 1, 1], vec![0x89, 1, 9], vec![0x80, 1, 2]],
            Pong(&[9]),
        ),
        ("§5.4 a continuation of nothing", vec![vec![0x80, 1, 1]], Close(&[], 1002)),
        ("§5.4 a continuation of nothing, unfinished", vec![vec![0x00, 1, 1]], Close(&[], 1002)),
        (
            "§5.4 a continuation after a complete message",
            vec![vec![0x82, 1, 1], vec![0x80, 1, 2]],
            Close(&[1], 1002),
        ),
        ("§5.4 a message within a message", vec![vec![0x02, 1, 1], vec![0x82, 1, 2]], Close(&[1], 1002)),
        ("§5.4 text within a message", vec![vec![0x02, 1, 1], vec![0x81, 1, 2]], Close(&[1], 1002)),
        ("§5.5.2 a ping without payload", vec![vec![0x89, 0]], Pong(&[])),
        ("§5.5.2 a ping with payload", vec![vec![0x89, 3, 1, 2, 3]], Pong(&[1, 2, 3])),
        ("§5.5.2 a ping of 125 bytes", vec![[&[0x89, 125][..], &[5; 125]].concat()], Pong(&[5; 125])),
        ("§5.5 a ping of 126 bytes", vec![[&[0x89, 126, 0, 126][..], &[5; 126]].concat()], Close(&[], 1002)),
        ("§5.5 a fragmented ping", vec![vec![0x09, 1, 1]], Close(&[], 1002)),
        ("§5.5 a fragmented pong", vec![vec![0x0A, 1, 1]], Close(&[], 1002)),
        ("§5.5 a fragmented close", vec![vec![0x08, 2, 3, 232]], Close(&[], 1002)),
        ("§5.5.3 a pong nobody asked for", vec![vec![0x8A, 1, 1], vec![0x82, 1, 3]], Data(&[3])),
        ("§5.2 RSV1", vec![vec![0xC2, 1, 1]], Close(&[], 1002)),
        ("§5.2 RSV2", vec![vec![0xA2, 1, 1]], Close(&[], 1002)),
        ("§5.2 RSV3", vec![vec![0x92, 1, 1]], Close(&[], 1002)),
        ("§5.2 RSV1 on a ping", vec![vec![0xC9, 0]], Close(&[], 1002)),
        ("§5.2 all reserved bits on a close", vec![vec![0xF8, 0]], Close(&[], 1002)),
        ("§5.2 RSV1 on a continuation", vec![vec![0x02, 1, 1], vec![0xC0, 1, 1]], Close(&[1], 1002)),
        ("§5.2 opcode 3", vec![vec![0x83, 0]], Close(&[], 1002)),
        ("§5.2 opcode 4", vec![vec![0x84, 1, 1]], Close(&[], 1002)),
        ("§5.2 opcode 5", vec![vec![0x85, 0]], Close(&[], 1002)),
        ("§5.2 opcode 6", vec![vec![0x86, 0]], Close(&[], 1002)),
        ("§5.2 opcode 7", vec![vec![0x87, 0]], Close(&[], 1002)),
        ("§5.2 opcode 11", vec![vec![0x8B, 0]], Close(&[], 1002)),
        ("§5.2 opcode 12", vec![vec![0x8C, 0]], Close(&[], 1002)),
        ("§5.2 opcode 13", vec![vec![0x8D, 0]], Close(&[], 1002)),
        ("§5.2 opcode 14", vec![vec![0x8E, 0]], Close(&[], 1002)),
        ("§5.2 opcode 15", vec![vec![0x8F, 0]], Close(&[], 1002)),
        ("§5.2 a length of 16 bits that fits 7", vec![vec![0x82, 126, 0, 3, 1, 2, 3]], Close(&[], 1002)),
        (
            "§5.2 a length of 64 bits that fits 16",
            vec![vec![0x82, 127, 0, 0, 0, 0, 0, 0, 0, 1, 1]],
            Close(&[], 1002),
        ),
        (
            "§5.2 a length with the top bit set",
            vec![vec![0x82, 127, 128, 0, 0, 0, 0, 1, 0, 0, 1]],
            Close(&[], 1002),
        ),
        (
            "§7.4.1 a message beyond the limit",
            vec![vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0, 1]],
            Close(&[], 1009),
        ),
        (
            "§7.4.1 a message beyond the limit by its fragments",
            vec![[&[0x02, 126, 3, 232][..], &[0; 1000]].concat(), vec![0x00, 1, 1]],
            Close(&[0; 1000], 1009),
        ),
        ("§5.5.1 a close without payload", vec![vec![0x88, 0]], Close(&[], 1000)),
        ("§5.5.1 a close, then a message", vec![vec![0x88, 0], vec![0x82, 1, 1]], Close(&[], 1000)),
        ("§5.5.1 a message, then a close", vec![vec![0x82, 1, 1], vec![0x88, 0]], Close(&[1], 1000)),
        ("§5.5.1 a close inside a message", vec![vec![0x02, 1, 1], vec![0x88, 0]], Close(&[1], 1000)),
        ("§5.5.1 a close of one byte", vec![vec![0x88, 1, 3]], Close(&[], 1002)),
        ("§5.5.1 a reason", vec![vec![0x88, 4, 3, 232, b'o', b'k']], Close(&[], 1000)),
        ("§5.5.1 a reason that is not UTF-8", vec![vec![0x88, 3, 3, 232, 0xFF]], Close(&[], 1007)),
        ("§5.5.1 a reason cut inside a character", vec![vec![0x88, 4, 3, 232, 0xE2, 0x82]], Close(&[], 1007)),
        (
            "§5.5.1 the longest reason",
            vec![[&[0x88, 125, 3, 232][..], &[b'x'; 123]].concat()],
            Close(&[], 1000),
        ),
        (
            "§5.5.1 a reason too long",
            vec![[&[0x88, 126, 0, 126, 3, 232][..], &[b'x'; 124]].concat()],
            Close(&[], 1002),
        ),
    ];
    let mut node = Node::new();
    let policy = WsPolicy { message_bytes_max: 1000, ping_interval: None, ..WsPolicy::default() };
    let addr = node.listen_with(ws_spec(policy));
    for (what, frames, expected) in table {
        for pieces in [false, true] {
            node.seen.accepted.clear();
            let mut raw = upgraded(addr, &mut node);
            raw.set_nodelay(true).unwrap();
            let key = node.accepted_one();
            let wire: Vec<u8> = frames.iter().flat_map(|frame| masked(frame)).collect();
            if pieces {
                for byte in &wire {
                    // The server may hang up early.
                    let _ = raw.write_all(&[*byte]);
                    node.step(0);
                }
            } else {
                raw.write_all(&wire).unwrap();
            }
            match expected {
                Data(bytes) => {
                    node.until(what, |node| node.received(key) == bytes);
                    assert!(!node.seen.closed.contains_key(&key), "{what}");
                }
                Pong(payload) => {
                    let pong = [&[0x8A, payload.len() as u8], payload].concat();
                    let reader = std::thread::spawn(move || {
                        let mut got = vec![0; pong.len()];
                        raw.read_exact(&mut got).unwrap();
                        assert_eq!(got, pong);
                    });
                    finish(&mut node, reader);
                }
                Close(bytes, code) => {
                    node.until(what, |node| node.seen.closed.contains_key(&key));
                    assert_eq!(node.received(key), bytes, "{what}");
                    let reader = std::thread::spawn(move || {
                        let mut got = Vec::new();
                        raw.read_to_end(&mut got).unwrap();
                        got
                    });
                    let got = finish(&mut node, reader);
                    assert_eq!(got[0], 0x88, "{what}: {got:?}");
                    assert_eq!(usize::from(got[1]), got.len() - 2, "{what}: {got:?}");
                    assert_eq!(u16::from_be_bytes([got[2], got[3]]), code, "{what}");
                    assert!(std::str::from_utf8(&got[4..]).is_ok(), "{what}");
                }
            }
        }
    }
    node.seen.accepted.clear();
    let mut raw = upgraded(addr, &mut node);
    let key = node.accepted_one();
    raw.write_all(&[0x82, 1, 1]).unwrap();
    node.until("§5.1 an unmasked frame", |node| node.seen.closed.contains_key(&key));
    assert!(matches!(node.seen.closed[&key], CloseCause::WsProtocol(ProtocolError::NotMasked)));
}

/// Masks a frame that is written as a server would.
fn masked(frame: &[u8]) -> Vec<u8> {
    let head = match frame[1] {
        126 => 4,
        127 => 10,
        _ => 2,
    };
    let mask = [0x12, 0x34, 0x56, 0x78];
    let mut out = frame[..head].to_vec();
    out[1] |= 0x80;
    out.extend_from_slice(&mask);
    out.extend(frame[head..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    out
}
