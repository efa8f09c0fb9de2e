//! The client side of WebSocket, as much of it as a simulated player needs (RFC 6455).

use std::net::SocketAddr;

use thiserror::Error;
use throng_stdx::Rng;

/// Opcodes, RFC 6455 §5.2.
const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The answer to the upgrade may be this long.
const RESPONSE_BYTES_MAX: usize = 8 * 1024;

/// Why a stream is no WebSocket that this client can use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum WebSocketError {
    #[error("upgrade refused: {0}")]
    Refused(String),
    #[error("frame with opcode {0}")]
    Opcode(u8),
    #[error("closed by the server with code {0}")]
    Closed(u16),
}

/// State of one WebSocket.
#[derive(Debug)]
pub(crate) struct ClientSide {
    /// Bytes of an incomplete response, frame header or control frame.
    carry: Vec<u8>,
    open: bool,
    /// Remaining payload bytes of the current data frame.
    payload_left: usize,
    /// Frames to send in answer to control frames.
    reply: Vec<u8>,
    masks: Rng,
}

impl ClientSide {
    pub(crate) fn new(seed: u64) -> Self {
        Self { carry: Vec::new(), open: false, payload_left: 0, reply: Vec::new(), masks: Rng::new(seed) }
    }

    /// The upgrade request. The key is constant: nothing depends on its being fresh when no proxy
    /// is in between.
    pub(crate) fn request(&self, host: SocketAddr) -> String {
        format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhyb25nLWxvYWQtc3VpdA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// One masked binary message with this payload.
    pub(crate) fn message(&mut self, payload: &[u8]) -> Vec<u8> {
        self.frame(BINARY, payload)
    }

    /// Payload bytes that may be discarded unseen.
    pub(crate) fn skip_bytes(&self) -> usize {
        self.payload_left
    }

    pub(crate) fn skipped(&mut self, count: usize) {
        self.payload_left -= count;
    }

    /// Takes received bytes and hands over the payload of data frames.
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        mut on_payload: impl FnMut(&[u8]),
    ) -> Result<(), WebSocketError> {
        let mut data = std::mem::take(&mut self.carry);
        let mut at = 0;
        let bytes = if data.is_empty() {
            input
        } else {
            data.extend_from_slice(input);
            &data
        };
        while at < bytes.len() {
            let rest = &bytes[at..];
            if !self.open {
                match self.response(rest)? {
                    0 => break,
                    used => at += used,
                }
            } else if self.payload_left > 0 {
                let count = self.payload_left.min(rest.len());
                on_payload(&rest[..count]);
                self.payload_left -= count;
                at += count;
            } else {
                let Some((opcode, header, length)) = frame_header(rest) else { break };
                match opcode {
                    CONTINUATION | BINARY => {
                        self.payload_left = length;
                        at += header;
                    }
                    PING | PONG | CLOSE => {
                        let Some(payload) = rest.get(header..header.saturating_add(length)) else { break };
                        if opcode == PING {
                            let reply = self.frame(PONG, payload);
                            self.reply.extend_from_slice(&reply);
                        } else if opcode == CLOSE {
                            let code = payload.first_chunk().map_or(1005, |code| u16::from_be_bytes(*code));
                            return Err(WebSocketError::Closed(code));
                        }
                        at += header + length;
                    }
                    other => return Err(WebSocketError::Opcode(other)),
                }
            }
        }
        self.carry = bytes[at..].to_vec();
        Ok(())
    }

    /// Control frames to send, if any.
    pub(crate) fn take_reply(&mut self) -> Option<Vec<u8>> {
        (!self.reply.is_empty()).then(|| std::mem::take(&mut self.reply))
    }

    fn response(&mut self, bytes: &[u8]) -> Result<usize, WebSocketError> {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            if bytes.len() > RESPONSE_BYTES_MAX {
                return Err(WebSocketError::Refused("no end of the response".to_owned()));
            }
            return Ok(0);
        };
        let text = String::from_utf8_lossy(&bytes[..end]);
        let status = text.lines().next().unwrap_or_default();
        if status.split(' ').nth(1) != Some("101") {
            return Err(WebSocketError::Refused(status.to_owned()));
        }
        self.open = true;
        Ok(end + 4)
    }

    fn frame(&mut self, opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(payload.len() + 14);
        out.push(0x80 | opcode);
        match payload.len() {
            length @ 0..=125 => out.push(0x80 | length as u8),
            length @ 126..=65_535 => {
                out.push(0x80 | 126);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                out.push(0x80 | 127);
                out.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        let mask = self.masks.next_u32().to_le_bytes();
        out.extend_from_slice(&mask);
        out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        out
    }
}

/// Opcode, header size and payload size of the unmasked frame at the start of `bytes`.
fn frame_header(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let &[first, second] = bytes.first_chunk()?;
    let opcode = first & 0x0f;
    let (header, length) = match second & 0x7f {
        126 => (4, u64::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?))),
        127 => (10, u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?)),
        short => (2, u64::from(short)),
    };
    Some((opcode, header, usize::try_from(length).unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";

    #[test]
    fn payload_arrives_whatever_the_cutting_and_pings_are_answered() {
        let mut stream = ACCEPTED.to_vec();
        stream.extend_from_slice(&[0x82, 3, 1, 2, 3]);
        stream.extend_from_slice(&[0x89, 2, 8, 9]);
        stream.extend_from_slice(&[0x82, 126, 1, 0]);
        stream.extend_from_slice(&[7; 256]);
        for step in [1, 2, 5, 64, stream.len()] {
            let mut side = ClientSide::new(1);
            let mut payload = Vec::new();
            for chunk in stream.chunks(step) {
                side.feed(chunk, |bytes| payload.extend_from_slice(bytes)).expect("valid stream");
            }
            assert!(side.is_open());
            assert_eq!(payload.len(), 3 + 256);
            let reply = side.take_reply().expect("a pong");
            assert_eq!((reply[0], reply[1], reply.len()), (0x8a, 0x82, 8));
            assert_eq!([reply[6] ^ reply[2], reply[7] ^ reply[3]], [8, 9]);
        }
    }

    #[test]
    fn refusals_carry_the_reason() {
        let refused = ClientSide::new(1).feed(b"HTTP/1.1 403 Forbidden\r\n\r\n", |_| {});
        assert_eq!(refused, Err(WebSocketError::Refused("HTTP/1.1 403 Forbidden".to_owned())));
        let mut side = ClientSide::new(1);
        side.feed(ACCEPTED, |_| {}).expect("accepted");
        assert_eq!(side.feed(&[0x88, 2, 0x03, 0xe9], |_| {}), Err(WebSocketError::Closed(1001)));
    }

    #[test]
    fn messages_are_masked() {
        let mut side = ClientSide::new(1);
        let message = side.message(&[5; 300]);
        assert_eq!(message[..4], [0x82, 0xfe, 1, 44]);
        assert!(message[8..].iter().zip(message[4..8].iter().cycle()).all(|(byte, mask)| byte ^ mask == 5));
    }
}
