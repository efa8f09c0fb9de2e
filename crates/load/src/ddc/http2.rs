//! Requests without bodies over HTTP/2: one stream at a time on each connection, as an editor that
//! waits for one answer sends them.
//!
//! Heads are written for HTTP/1.1 and encoded here. All windows are as large as the protocol
//! permits, so the server never waits for this side.

use std::io;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD_BYTES: usize = 9;
/// Largest window. RFC 9113, section 6.9.1.
const WINDOW_MAX: u32 = (1 << 31) - 1;
/// Window of a connection before any update.
const WINDOW_INITIAL: u32 = 65_535;
/// Longest payload of a frame other than DATA that is read.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// State of one connection.
#[derive(Debug, Default)]
pub(crate) struct Http2 {
    /// The last request's stream; 0 before the first.
    stream: u32,
    /// Head of the frame that is being read.
    head: Vec<u8>,
    /// Bytes of its payload that are still to come.
    left: usize,
    /// Its payload, unless it is DATA.
    payload: Vec<u8>,
    /// Bytes of DATA that no window update has given back.
    taken: u32,
    /// Frames that go with the next request.
    pending: Vec<u8>,
    status: u16,
    bytes: u64,
    closes: bool,
}

/// The end of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) closes: bool,
}

impl Http2 {
    /// Encodes the request with this HTTP/1.1 head.
    pub(crate) fn request(&mut self, head: &[u8], tls: bool) -> io::Result<Vec<u8>> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not a head without body");
        let text = std::str::from_utf8(head).map_err(|_| invalid())?;
        let text = text.strip_suffix("\r\n\r\n").ok_or_else(invalid)?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(path)) = (words.next(), words.next()) else { return Err(invalid()) };
        // RFC 7541, appendix A, has the indexes of the static table.
        let mut block = Vec::new();
        match method {
            "GET" => block.push(0x82),
            other => literal(&mut block, Some(2), "", other),
        }
        block.push(if tls { 0x87 } else { 0x86 });
        literal(&mut block, Some(4), "", path);
        for line in lines {
            let (name, value) = line.split_once(": ").ok_or_else(invalid)?;
            match name.to_ascii_lowercase().as_str() {
                "host" => literal(&mut block, Some(1), "", value),
                name => literal(&mut block, None, name, value),
            }
        }
        let mut out = std::mem::take(&mut self.pending);
        if self.stream == 0 {
            let mut settings = vec![0, 2, 0, 0, 0, 0, 0, 4];
            settings.extend_from_slice(&WINDOW_MAX.to_be_bytes());
            let mut first = PREFACE.to_vec();
            frame(&mut first, SETTINGS, 0, 0, &settings);
            frame(&mut first, WINDOW_UPDATE, 0, 0, &(WINDOW_MAX - WINDOW_INITIAL).to_be_bytes());
            out = [first, out].concat();
            self.stream = 1;
        } else {
            self.stream += 2;
        }
        if self.taken > 0 {
            frame(&mut out, WINDOW_UPDATE, 0, 0, &std::mem::take(&mut self.taken).to_be_bytes());
        }
        frame(&mut out, HEADERS, END_STREAM | END_HEADERS, self.stream, &block);
        (self.status, self.bytes) = (0, 0);
        Ok(out)
    }

    /// Takes received bytes; gives the end of the answer if it is among them.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> io::Result<Option<Answered>> {
        let mut answered = None;
        while !bytes.is_empty() {
            if self.head.len() < FRAME_HEAD_BYTES {
                let count = (FRAME_HEAD_BYTES - self.head.len()).min(bytes.len());
                self.head.extend_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                if self.head.len() < FRAME_HEAD_BYTES {
                    break;
                }
                let [a, b, c] = [self.head[0], self.head[1], self.head[2]];
                self.left = u32::from_be_bytes([0, a, b, c]) as usize;
                if self.head[3] != DATA && self.left > PAYLOAD_BYTES_MAX {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            let count = self.left.min(bytes.len());
            if self.head[3] == DATA {
                self.bytes += count as u64;
                self.taken += count as u32;
            } else {
                self.payload.extend_from_slice(&bytes[..count]);
            }
            self.left -= count;
            bytes = &bytes[count..];
            if self.left == 0 {
                if self.end_of_frame()? {
                    let (status, bytes, closes) = (self.status, self.bytes, self.closes);
                    answered = Some(Answered { status, bytes, closes });
                }
                self.head.clear();
                self.payload.clear();
            }
        }
        Ok(answered)
    }

    /// Acts on a whole frame. Reports whether the answer ends with it.
    fn end_of_frame(&mut self) -> io::Result<bool> {
        let (kind, flags) = (self.head[3], self.head[4]);
        let stream = u32::from_be_bytes([self.head[5], self.head[6], self.head[7], self.head[8]]);
        match kind {
            HEADERS => {
                self.status = status_of(&self.payload);
                Ok(flags & END_STREAM != 0)
            }
            DATA => Ok(flags & END_STREAM != 0),
            RST_STREAM if stream == self.stream => Err(io::ErrorKind::ConnectionReset.into()),
            SETTINGS if flags & ACK == 0 => {
                frame(&mut self.pending, SETTINGS, ACK, 0, &[]);
                Ok(false)
            }
            PING if flags & ACK == 0 => {
                let payload = std::mem::take(&mut self.payload);
                frame(&mut self.pending, PING, ACK, 0, &payload);
                Ok(false)
            }
            GOAWAY => {
                self.closes = true;
                Ok(false)
            }
            _ => Ok(false),
        }
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let len = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&[len[1], len[2], len[3], kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A header field that no table learns: RFC 7541, section 6.2.2.
fn literal(block: &mut Vec<u8>, index: Option<u8>, name: &str, value: &str) {
    block.push(index.unwrap_or(0));
    if index.is_none() {
        string(block, name);
    }
    string(block, value);
}

/// A string without Huffman code.
fn string(block: &mut Vec<u8>, text: &str) {
    let mut len = text.len();
    if len < 127 {
        block.push(len as u8);
    } else {
        block.push(127);
        len -= 127;
        while len >= 128 {
            block.push((len % 128) as u8 | 128);
            len /= 128;
        }
        block.push(len as u8);
    }
    block.extend_from_slice(text.as_bytes());
}

/// Status of an answer, which is its first field; 0 if it is one that no server of a bench sends.
fn status_of(block: &[u8]) -> u16 {
    // Updates of the table's size come first.
    let at = block.iter().position(|byte| byte & 0xE0 != 0x20).unwrap_or(block.len());
    match block.get(at) {
        Some(0x88) => 200,
        Some(0x89) => 204,
        Some(0x8A) => 206,
        Some(0x8B) => 304,
        Some(0x8C) => 400,
        Some(0x8D) => 404,
        Some(0x8E) => 500,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"GET /a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n\r\n";

    #[test]
    fn a_head_becomes_frames() {
        let mut http2 = Http2::default();
        let first = http2.request(HEAD, false).expect("a head");
        assert!(first.starts_with(PREFACE));
        let block = b"\x82\x86\x04\x02/a\x01\x09localhost\x00\x0Dauthorization\x08Bearer t";
        assert!(first.ends_with(block));
        let second = http2.request(HEAD, true).expect("a head");
        assert_eq!(second[..9], [0, 0, block.len() as u8, HEADERS, END_STREAM | END_HEADERS, 0, 0, 0, 3]);
        assert!(http2.request(b"PUT / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", true).is_err());
        let mut long = Vec::new();
        string(&mut long, &"a".repeat(300));
        assert_eq!(long[..3], [127, 0xAD, 0x01]);
    }

    #[test]
    fn an_answer_is_read_in_any_pieces() {
        let mut stream = Vec::new();
        frame(&mut stream, SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
        frame(&mut stream, HEADERS, END_HEADERS, 1, &[0x20, 0x88, 0x40, 1, b'a', 1, b'b']);
        frame(&mut stream, DATA, 0, 1, &[0; 300]);
        frame(&mut stream, DATA, END_STREAM, 1, &[0; 20]);
        frame(&mut stream, GOAWAY, 0, 0, &[0; 8]);
        for step in [1, 7, 100, stream.len()] {
            let mut http2 = Http2::default();
            http2.request(HEAD, false).expect("a head");
            let answers = stream.chunks(step).filter_map(|piece| http2.take(piece).expect("frames"));
            let answers: Vec<_> = answers.map(|answered| (answered.status, answered.bytes)).collect();
            assert_eq!(answers, [(200, 320)], "{step}");
            assert!(http2.closes);
            let next = http2.request(HEAD, false).expect("a head");
            assert!(next.starts_with(&[0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0, 0, 0, 4, WINDOW_UPDATE]));
            assert_eq!(next[18..22], 320_u32.to_be_bytes());
        }
        let mut http2 = Http2::default();
        http2.request(HEAD, false).expect("a head");
        assert!(http2.take(&[0, 0, 4, RST_STREAM, 0, 0, 0, 0, 1, 0, 0, 0, 7]).is_err());
    }
}
