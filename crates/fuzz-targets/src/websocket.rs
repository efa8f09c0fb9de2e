//! Targets for WebSocket: frames after the handshake, and the handshake itself.

use std::ops::ControlFlow;

use throng_net::WsPolicy;
use throng_net::ws::{
    Borders, Decoder, Event, HEAD_BYTES_MAX, ProtocolError, Rejection, Request, RequestReader, Role,
    accept_response, request_head, write_close, write_message,
};

/// Frames as an endpoint receives them. The first byte chooses the role, the second how the stream
/// is cut.
///
/// Asserts that the cut makes no difference, that no more than the allowed message comes out, that
/// control payloads are short, that an error has a close code, and that any payload survives being
/// sent.
pub fn websocket(input: &[u8]) {
    let [role, cut, stream @ ..] = input else { return };
    let role = if role & 1 == 0 { Role::Server } else { Role::Client };
    let whole = decode(role, stream, stream.len().max(1));
    let pieces = decode(role, stream, usize::from(*cut).max(1));
    assert_eq!(whole, pieces, "the cut of the stream changed what was read");
    if let Some(error) = whole.error {
        assert!((1000..=1011).contains(&error.close_code()) && !error.to_string().is_empty());
    }

    // What is written for one role reads in the other, and every border is seen.
    let (mask, reader) = match role {
        Role::Server => (None, Role::Client),
        Role::Client => (Some([0x1F, 0x00, 0xFF, 0x80]), Role::Server),
    };
    let mut wire = Vec::new();
    write_message(&mut wire, stream, mask);
    let reason = String::from_utf8_lossy(stream);
    write_close(&mut wire, 1000, &reason, mask);
    let mut borders = Borders::default();
    for piece in wire.chunks(usize::from(*cut).max(1)) {
        borders.advance(piece);
    }
    assert!(borders.at_border());
    let sent = decode(reader, &wire, wire.len());
    assert_eq!((sent.error, sent.closed), (None, true));
    assert_eq!(sent.data, stream);
}

/// What a decoder made of a stream.
#[derive(Debug, Default, PartialEq)]
struct DecodedStream {
    data: Vec<u8>,
    /// Bytes of data before each message's end.
    ends: Vec<usize>,
    /// Pings and pongs, with the bytes of data before them.
    control: Vec<(bool, usize, Vec<u8>)>,
    closed: bool,
    error: Option<ProtocolError>,
}

const MESSAGE_BYTES_MAX: u64 = 70_000;

fn decode(role: Role, stream: &[u8], cut: usize) -> DecodedStream {
    let mut decoder = Decoder::new(role, MESSAGE_BYTES_MAX);
    let mut outcome = DecodedStream::default();
    for piece in stream.to_vec().chunks_mut(cut) {
        let result = decoder.feed(piece, &mut |event| {
            assert!(!outcome.closed, "something came after the goodbye");
            match event {
                Event::Data(bytes) => {
                    assert!(!bytes.is_empty());
                    outcome.data.extend_from_slice(bytes);
                    let begun = outcome.data.len() - outcome.ends.last().copied().unwrap_or_default();
                    assert!(begun as u64 <= MESSAGE_BYTES_MAX);
                }
                Event::MessageEnd => outcome.ends.push(outcome.data.len()),
                Event::Ping(bytes) | Event::Pong(bytes) => {
                    assert!(bytes.len() <= 125);
                    let is_ping = matches!(event, Event::Ping(_));
                    outcome.control.push((is_ping, outcome.data.len(), bytes.to_vec()));
                }
                Event::Close { code, reason } => {
                    assert!(reason.len() <= 123 && code.is_none_or(|code| (1000..5000).contains(&code)));
                    outcome.closed = true;
                }
            }
            ControlFlow::Continue(())
        });
        match result {
            Ok(used) => assert_eq!(used, piece.len()),
            Err(error) => {
                outcome.error = Some(error);
                break;
            }
        }
    }
    outcome
}

/// An upgrade request, and the answer to one. The first byte chooses the policy, the second how the
/// bytes are cut.
///
/// Asserts that the cut makes no difference, that a refusal is a complete HTTP response, and that
/// only a request that was allowed is accepted.
pub fn handshake(input: &[u8]) {
    let [choice, cut, head @ ..] = input else { return };
    let mut policy = WsPolicy::default();
    if choice & 1 != 0 {
        policy.origins = vec!["https://game.example".into()];
    }
    if choice & 2 != 0 {
        policy.path = Some("/play".into());
    }
    let whole = request(&policy, head, head.len().max(1));
    let pieces = request(&policy, head, usize::from(*cut).max(1));
    assert_eq!(whole, pieces, "the cut of the request changed the answer");
    match whole {
        Some(Ok((request, used))) => {
            assert!(used <= HEAD_BYTES_MAX && head[..used].ends_with(b"\r\n\r\n"));
            assert!(policy.path.is_none_or(|path| path == request.path));
            assert!(accept_response(&request).starts_with(b"HTTP/1.1 101 "));
        }
        Some(Err(rejection)) => {
            let response = String::from_utf8(rejection.response()).expect("a refusal is text");
            assert!(response.starts_with(&format!("HTTP/1.1 {} ", rejection.status)));
            assert!(response.contains("Connection: ") && response.contains("\r\n\r\n"));
        }
        None => assert!(head.len() < HEAD_BYTES_MAX),
    }

    // The client's side: nothing that does not prove to have seen the request is taken for an
    // answer.
    let (_, mut reader) = request_head("game.example", "/play", None);
    for piece in head.chunks(usize::from(*cut).max(1)) {
        match reader.feed(piece) {
            Ok(None) => {}
            Ok(Some(_)) => panic!("an answer that cannot know the key was accepted"),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
}

/// The answer to a request, with the bytes used of it; `None` while it is incomplete.
fn request(policy: &WsPolicy, head: &[u8], cut: usize) -> Option<Result<(Request, usize), Rejection>> {
    let mut reader = RequestReader::default();
    let mut before = 0;
    for piece in head.chunks(cut) {
        match reader.feed(piece, policy) {
            Ok(None) => before += piece.len(),
            Ok(Some((request, used))) => return Some(Ok((request, before + used))),
            Err(rejection) => return Some(Err(rejection)),
        }
    }
    None
}
