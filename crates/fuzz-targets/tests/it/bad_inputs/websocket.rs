//! WebSocket handshakes and frames. RFC 6455; spec: gateway §2.6.

use std::ops::ControlFlow;

use throng_net::WsPolicy;
use throng_net::ws::{Decoder, Event, RequestReader, Role};

use super::{check, hex};

/// Name; the request with `|` for line ends; the answer. The policy allows the origin
/// `https://game.example` and the path `/play`.
pub(crate) const HANDSHAKES: &[(&str, &str, &str)] = &[
    (
        "a program",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "accepted /play",
    ),
    (
        "a browser of ours",
        "GET /play?x=1 HTTP/1.1|Host: h|Origin: https://game.example|Upgrade: WebSocket|Connection: keep-alive, upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "accepted /play",
    ),
    (
        "another origin",
        "GET /play HTTP/1.1|Host: h|Origin: https://evil.example|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "403 this origin is not allowed",
    ),
    (
        "our origin by http",
        "GET /play HTTP/1.1|Host: h|Origin: http://game.example|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "403 this origin is not allowed",
    ),
    (
        "our origin with a port",
        "GET /play HTTP/1.1|Host: h|Origin: https://game.example:444|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "403 this origin is not allowed",
    ),
    (
        "our origin as a prefix",
        "GET /play HTTP/1.1|Host: h|Origin: https://game.example.evil.example|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "403 this origin is not allowed",
    ),
    (
        "origin null",
        "GET /play HTTP/1.1|Host: h|Origin: null|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "403 this origin is not allowed",
    ),
    (
        "an empty origin",
        "GET /play HTTP/1.1|Host: h|Origin: |Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "403 this origin is not allowed",
    ),
    (
        "another path",
        "GET / HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "404 no WebSocket at this path",
    ),
    (
        "a path below",
        "GET /play/x HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "404 no WebSocket at this path",
    ),
    ("a page", "GET /play HTTP/1.1|Host: h||", "426 this is a WebSocket endpoint: upgrade"),
    (
        "no upgrade header",
        "GET /play HTTP/1.1|Host: h|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "426 this is a WebSocket endpoint: upgrade",
    ),
    (
        "no connection header",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "426 this is a WebSocket endpoint: upgrade",
    ),
    (
        "upgrade to h2c",
        "GET /play HTTP/1.1|Host: h|Upgrade: h2c|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "426 this is a WebSocket endpoint: upgrade",
    ),
    (
        "version 8",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 8|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "426 WebSocket version 13 is required",
    ),
    (
        "no version",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "426 WebSocket version 13 is required",
    ),
    (
        "no key",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13||",
        "400 Sec-WebSocket-Key is missing or not 16 bytes of base64",
    ),
    (
        "an empty key",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: ||",
        "400 Sec-WebSocket-Key is missing or not 16 bytes of base64",
    ),
    (
        "a short key",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIA==||",
        "400 Sec-WebSocket-Key is missing or not 16 bytes of base64",
    ),
    (
        "a key without padding",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ||",
        "400 Sec-WebSocket-Key is missing or not 16 bytes of base64",
    ),
    (
        "a key with odd characters",
        "GET /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBs*SBub25jZQ==||",
        "400 Sec-WebSocket-Key is missing or not 16 bytes of base64",
    ),
    (
        "POST",
        "POST /play HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "400 malformed HTTP request",
    ),
    ("CONNECT", "CONNECT h:80 HTTP/1.1|Host: h||", "400 malformed HTTP request"),
    ("no HTTP", "hello||", "400 malformed HTTP request"),
    (
        "HTTP/1.0",
        "GET /play HTTP/1.0|Host: h|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==||",
        "400 malformed HTTP request",
    ),
    ("HTTP/2 preface", "PRI * HTTP/2.0||", "400 malformed HTTP request"),
    ("a header without colon", "GET /play HTTP/1.1|Host h||", "400 malformed HTTP request"),
    ("a header name with a blank", "GET /play HTTP/1.1|Ho st: h||", "400 malformed HTTP request"),
    ("a folded header", "GET /play HTTP/1.1|Host: h| folded||", "400 malformed HTTP request"),
    ("a NUL in a header", "GET /play HTTP/1.1|Host: a\0b||", "400 malformed HTTP request"),
    ("no end", "GET /play HTTP/1.1|Host: h|", "incomplete"),
    ("line feeds only", "GET /play HTTP/1.1\nHost: h\n\n", "400 malformed HTTP request"),
    ("frames of ours instead", "CH\0\u{4}\0", "incomplete"),
];

/// Name; the role of the receiver; the bytes; the events, or the error with its close code.
/// Messages may have 64 bytes.
pub(crate) const FRAMES: &[(&str, Role, &str, &str)] = &[
    ("binary", Role::Server, "8281 00000000 61", "data 1, end"),
    ("unmasked from a client", Role::Server, "8201 61", "1002 client frame is not masked"),
    ("masked from a server", Role::Client, "8281 00000000 61", "1002 server frame is masked"),
    ("text", Role::Server, "8181 00000000 61", "1003 text messages are not supported, send binary"),
    (
        "text in fragments",
        Role::Server,
        "0181 00000000 61",
        "1003 text messages are not supported, send binary",
    ),
    ("reserved bit 1", Role::Server, "c281 00000000 61", "1002 reserved bits set without an extension"),
    ("reserved bit 3", Role::Server, "9281 00000000 61", "1002 reserved bits set without an extension"),
    ("opcode 3", Role::Server, "8380 00000000", "1002 unknown opcode 3"),
    ("opcode 15", Role::Server, "8f80 00000000", "1002 unknown opcode 15"),
    ("a continuation of nothing", Role::Server, "8081 00000000 61", "1002 continuation without a message"),
    (
        "a message inside a message",
        Role::Server,
        "0281 00000000 61 8281 00000000 62",
        "data 1, 1002 new message inside a message",
    ),
    (
        "a ping between fragments",
        Role::Server,
        "0281 00000000 61 8980 00000000 8081 00000000 62",
        "data 1, ping 0, data 1, end",
    ),
    ("a fragmented ping", Role::Server, "0980 00000000", "1002 control frame is fragmented"),
    ("a ping of 126 bytes", Role::Server, "89fe 007e 00000000", "1002 control frame exceeds 125 bytes"),
    ("a ping of 125 bytes", Role::Server, "89fd 00000000 61*125", "ping 125"),
    ("an unasked pong", Role::Server, "8a80 00000000", "pong 0"),
    ("one byte too many", Role::Server, "82c1 00000000", "1009 message exceeds 64 bytes"),
    ("exactly enough", Role::Server, "82c0 00000000 61*64", "data 64, end"),
    (
        "too many bytes in fragments",
        Role::Server,
        "02c0 00000000 61*64 8081 00000000",
        "data 64, 1009 message exceeds 64 bytes",
    ),
    ("a length of 2^40", Role::Server, "82ff 0000010000000000 00000000", "1009 message exceeds 64 bytes"),
    (
        "a length of 2^63",
        Role::Server,
        "82ff 8000000000000000 00000000",
        "1002 payload length is not in its shortest form",
    ),
    (
        "a 16-bit length below 126",
        Role::Server,
        "82fe 0005 00000000 6161616161",
        "1002 payload length is not in its shortest form",
    ),
    (
        "a 64-bit length below 65536",
        Role::Server,
        "82ff 0000000000000100 00000000",
        "1002 payload length is not in its shortest form",
    ),
    ("an empty message", Role::Server, "8280 00000000", "end"),
    ("empty fragments without end", Role::Server, "0280 00000000 0080 00000000 0080 00000000", ""),
    ("close without anything", Role::Server, "8880 00000000", "close"),
    ("close with one byte", Role::Server, "8881 00000000 03", "1002 bad close frame"),
    ("close 1000", Role::Server, "8882 00000000 03e8", "close 1000"),
    ("close 1005", Role::Server, "8882 00000000 03ed", "1002 bad close frame"),
    ("close 999", Role::Server, "8882 00000000 03e7", "1002 bad close frame"),
    ("close 5000", Role::Server, "8882 00000000 1388", "1002 bad close frame"),
    ("close 4999", Role::Server, "8882 00000000 1387", "close 4999"),
    (
        "a close reason that is not text",
        Role::Server,
        "8883 00000000 03e8 ff",
        "1007 close reason is not UTF-8",
    ),
    ("something after the goodbye", Role::Server, "8880 00000000 8281 00000000 61", "close"),
    ("half a header", Role::Server, "82", ""),
    ("a header without mask", Role::Server, "8281 0000", ""),
];

#[test]
fn handshakes() {
    let policy = WsPolicy {
        origins: vec!["https://game.example".into()],
        path: Some("/play".into()),
        ..WsPolicy::default()
    };
    check(
        HANDSHAKES,
        |row| (row.0, row.2),
        |(_, request, _)| match RequestReader::default()
            .feed(request.replace('|', "\r\n").as_bytes(), &policy)
        {
            Ok(Some((request, _))) => format!("accepted {}", request.path),
            Ok(None) => "incomplete".into(),
            Err(rejection) => format!("{} {}", rejection.status, rejection.text),
        },
    );
}

#[test]
fn a_request_head_is_bounded() {
    let policy = WsPolicy::default();
    let mut reader = RequestReader::default();
    let mut fed = 0;
    let rejection = loop {
        match reader.feed(b"X-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", &policy) {
            Ok(answer) => assert!(answer.is_none()),
            Err(rejection) => break rejection,
        }
        fed += 53;
        assert!(fed < 10_000, "the head grows without bound");
    };
    assert_eq!(rejection.status, 431);
}

#[test]
fn websocket_frames() {
    check(
        FRAMES,
        |row| (row.0, row.3),
        |(_, role, bytes, _)| {
            let mut answers: Vec<String> = Vec::new();
            let mut bytes = hex(bytes);
            let result = Decoder::new(*role, 64).feed(&mut bytes, &mut |event| {
                answers.push(match event {
                    Event::Data(bytes) => format!("data {}", bytes.len()),
                    Event::MessageEnd => "end".into(),
                    Event::Ping(bytes) => format!("ping {}", bytes.len()),
                    Event::Pong(bytes) => format!("pong {}", bytes.len()),
                    Event::Close { code, .. } => code.map_or("close".into(), |code| format!("close {code}")),
                });
                ControlFlow::Continue(())
            });
            if let Err(error) = result {
                answers.push(format!("{} {error}", error.close_code()));
            }
            answers.join(", ")
        },
    );
}
