//! Bodies of requests.

use std::future::Future as _;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::AsyncReadExt as _;

use super::{Connection, Transfer, Wire};
use crate::memory::{FREE_BYTES, SMALL_BYTES_MAX};
use crate::source::Source;

/// Bytes of a large body that are handed on together: enough for hashing at full speed, little
/// enough to be in the second-level cache still when they are written.
const PIECE_BYTES: u64 = 512 << 10;
/// Room for what comes in chunks.
const CHUNK_ROOM: usize = 64 << 10;
/// Bytes of the line before a chunk, and of all trailers.
const LINE_BYTES_MAX: usize = 4 << 10;

/// What is to come of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    framing: Framing,
    /// The client waits to be told that it may send.
    awaited: bool,
    /// It comes in pieces.
    is_large: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// So many bytes.
    Length(u64),
    /// So many bytes of a chunk.
    Chunk(u64),
    /// The line break behind a chunk's bytes.
    ChunkEnd,
    /// The line before a chunk.
    ChunkSize,
    /// Trailers, of which so many bytes were read.
    Trailers(usize),
}

impl Left {
    pub(super) const NOTHING: Left = Left { framing: Framing::Length(0), awaited: false, is_large: false };

    pub(super) fn length(length: u64, awaited: bool) -> Left {
        let is_large = length > SMALL_BYTES_MAX as u64;
        Left { framing: Framing::Length(length), awaited: awaited && length > 0, is_large }
    }

    pub(super) fn chunked(awaited: bool) -> Left {
        Left { framing: Framing::ChunkSize, awaited, is_large: true }
    }

    /// Reports whether a body is chunked of which nothing was read yet.
    pub(super) fn is_chunked(&self) -> bool {
        self.framing == Framing::ChunkSize
    }

    pub(super) fn is_done(&self) -> bool {
        self.framing == Framing::Length(0)
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Bytes of the next piece: a body of known length comes in one piece if it is small, in large
    /// ones if it is not.
    fn piece_bytes(&self) -> usize {
        match self.framing {
            Framing::Length(left) if self.is_large => left.min(PIECE_BYTES) as usize,
            Framing::Length(left) => left as usize,
            _ => CHUNK_ROOM,
        }
    }

    pub(super) fn at_most(&self, limit: u64) -> bool {
        matches!(self.framing, Framing::Length(left) if left <= limit)
    }
}

/// The body of the request that a connection is at.
pub(super) struct Incoming<'c, S>(pub(super) &'c mut Connection<S>);

impl<S: Wire> Source for Incoming<'_, S> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        self.0.poll_piece(context)
    }

    fn declared(&self) -> Option<u64> {
        match self.0.left.framing {
            Framing::Length(left) => Some(left),
            _ => None,
        }
    }

    fn allow(&mut self, bytes: usize) {
        self.0.piece_max = bytes;
    }

    fn asks_for(&self) -> usize {
        self.0.left.piece_bytes()
    }

    fn address(&self) -> Option<IpAddr> {
        self.0.guest.address()
    }

    fn arrived(&self) -> usize {
        self.0.piece.len()
    }

    fn recycle(&mut self, piece: Bytes) {
        if let Ok(mut piece) = piece.try_into_mut() {
            piece.clear();
            self.0.spare = piece;
        }
    }
}

impl<S: Wire> Connection<S> {
    /// The next bytes of the body; `None` at its end.
    pub(super) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if self.left.is_done() {
            return Poll::Ready(Ok(None));
        }
        if self.left.awaited {
            if self.buf.is_empty() {
                ready!(self.poll_continue(context))?;
            }
            self.left.awaited = false;
        }
        let polled = match self.left.framing {
            Framing::Length(left) => self.poll_length(context, left),
            _ => self.poll_chunked(context),
        };
        if self.transfer != Transfer::Nothing {
            match polled {
                Poll::Ready(_) if self.work.is_none() => self.work = Some(self.guest.work()),
                Poll::Ready(_) => {}
                Poll::Pending => self.work = None,
            }
        }
        polled
    }

    /// Gives up the memory of the piece that is being received. What arrived of it is read.
    pub(super) fn drop_piece(&mut self) {
        if let Framing::Length(left) = &mut self.left.framing {
            *left -= self.piece.len() as u64;
        }
        (self.piece, self.spare, self.piece_max) = (BytesMut::new(), BytesMut::new(), FREE_BYTES);
    }

    /// Tells the client to send.
    fn poll_continue(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        while !self.out.is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, &self.out)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(count) => drop(self.out.drain(..count)),
                Poll::Pending => return self.poll_patience(context),
            }
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_length(&mut self, context: &mut Context<'_>, left: u64) -> Poll<io::Result<Option<Bytes>>> {
        let wanted = self.left.piece_bytes().min(self.piece_max);
        if self.piece.capacity() == 0 {
            let held = self.buf.len().min(wanted);
            self.piece = match std::mem::take(&mut self.spare) {
                spare if spare.capacity() > wanted => spare,
                _ => BytesMut::with_capacity(wanted + 1),
            };
            self.piece.extend_from_slice(&self.buf.split_to(held));
        }
        // Behind the last piece there is room for a byte: after a read that fills its buffer, tokio
        // takes the socket for readable, and the wait for the next request begins with a read of
        // nothing.
        let more = usize::from(wanted as u64 == left);
        while self.piece.len() < wanted {
            let room = wanted + more - self.piece.len();
            let mut space = (&mut self.piece).limit(room);
            let read = pin!(self.stream.read_buf(&mut space)).poll(context);
            match read {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(count)) => self.received(count),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_patience(context),
            }
        }
        if self.piece.len() > wanted {
            // The next request was sent without waiting for the answer to this one.
            self.buf.extend_from_slice(&self.piece.split_off(wanted));
        }
        self.left.framing = Framing::Length(left - wanted as u64);
        Poll::Ready(Ok(Some(std::mem::take(&mut self.piece).freeze())))
    }

    fn poll_chunked(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match step(self.left.framing, &mut self.buf)? {
                Step::Piece(piece, next) => {
                    self.left.framing = next;
                    // Sizes, extensions and trailers are no progress.
                    self.received(piece.len());
                    return Poll::Ready(Ok(Some(piece)));
                }
                Step::Next(next) => {
                    self.left.framing = next;
                    if self.left.is_done() {
                        return Poll::Ready(Ok(None));
                    }
                }
                Step::More => {
                    self.buf.reserve(CHUNK_ROOM.min(self.piece_max));
                    match pin!(self.stream.read_buf(&mut self.buf)).poll(context) {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                        Poll::Ready(Ok(_)) => {}
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => return self.poll_patience(context),
                    }
                }
            }
        }
    }
}

enum Step {
    Piece(Bytes, Framing),
    Next(Framing),
    More,
}

/// Takes the next part of a chunked body out of `buf`.
fn step(framing: Framing, buf: &mut BytesMut) -> io::Result<Step> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a chunk is malformed");
    Ok(match framing {
        Framing::Chunk(left) => {
            if buf.is_empty() {
                return Ok(Step::More);
            }
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            let rest = left - count as u64;
            let next = if rest == 0 { Framing::ChunkEnd } else { Framing::Chunk(rest) };
            Step::Piece(buf.split_to(count).freeze(), next)
        }
        Framing::ChunkEnd => match buf[..] {
            [] | [b'\r'] => Step::More,
            [b'\r', b'\n', ..] => {
                let _ = buf.split_to(2);
                Step::Next(Framing::ChunkSize)
            }
            _ => return Err(malformed()),
        },
        Framing::ChunkSize => {
            let Some(line) = take_line(buf, malformed)? else { return Ok(Step::More) };
            let size = line.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t')).unwrap_or(line.len());
            let (digits, extensions) = line.split_at(size);
            // They mean nothing here, but another reader may find the end of a line in them.
            if !are_extensions(extensions) {
                return Err(malformed());
            }
            let valid = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
            let text = std::str::from_utf8(digits).ok().filter(|_| valid).ok_or_else(malformed)?;
            match u64::from_str_radix(text, 16).map_err(|_| malformed())? {
                0 => Step::Next(Framing::Trailers(0)),
                size => Step::Next(Framing::Chunk(size)),
            }
        }
        Framing::Trailers(read) => match take_line(buf, malformed)? {
            None => Step::More,
            Some(line) if line.is_empty() => Step::Next(Framing::Length(0)),
            Some(line) if read + line.len() > LINE_BYTES_MAX || !is_trailer(&line) => return Err(malformed()),
            Some(line) => Step::Next(Framing::Trailers(read + line.len() + 2)),
        },
        Framing::Length(_) => Step::Next(framing),
    })
}

/// Reports whether `bytes` are chunk extensions: RFC 9112, section 7.1.1.
fn are_extensions(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let Some(name) = skip_blanks(bytes).strip_prefix(b";") else { return false };
        let Some(rest) = take_token(skip_blanks(name)) else { return false };
        bytes = match skip_blanks(rest).strip_prefix(b"=").map(skip_blanks) {
            None => rest,
            Some(value) => match take_quoted(value).or_else(|| take_token(value)) {
                Some(rest) => rest,
                None => return false,
            },
        };
    }
    true
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(bytes.len());
    &bytes[end..]
}

/// Bytes behind a token; `None` if there is none.
fn take_token(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| !is_token(*byte)).unwrap_or(bytes.len());
    (end > 0).then(|| &bytes[end..])
}

/// Bytes behind a quoted string; `None` if there is none.
fn take_quoted(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes.strip_prefix(b"\"")?;
    loop {
        match rest {
            [b'"', behind @ ..] => return Some(behind),
            [b'\\', escaped, behind @ ..] if is_text(*escaped) => rest = behind,
            [byte, behind @ ..] if *byte != b'\\' && is_text(*byte) => rest = behind,
            _ => return None,
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7F
}

/// Fields that may not follow a body, because they change how the message is read.
const NO_TRAILERS: [&str; 4] = ["content-length", "transfer-encoding", "host", "te"];

/// Reports whether a line is a field that may follow a body.
fn is_trailer(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return false };
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    take_token(name) == Some(&[])
        && value.iter().all(|byte| is_text(*byte))
        && !NO_TRAILERS.iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden.as_bytes()))
}

/// A line without its end, which must be a carriage return and a line feed.
fn take_line(buf: &mut BytesMut, malformed: impl Fn() -> io::Error) -> io::Result<Option<BytesMut>> {
    match buf.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n') {
        Some(at) if at > 0 && buf[at - 1] == b'\r' => {
            let mut line = buf.split_to(at + 1);
            line.truncate(at - 1);
            if line.contains(&b'\r') { Err(malformed()) } else { Ok(Some(line)) }
        }
        None if buf.len() < LINE_BYTES_MAX => Ok(None),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a chunked body holds, fed byte by byte; `None` if it is refused.
    fn read(text: &[u8]) -> Option<(Vec<u8>, usize)> {
        let (mut buf, mut out, mut framing) = (BytesMut::new(), Vec::new(), Framing::ChunkSize);
        for (at, byte) in text.iter().enumerate() {
            buf.extend_from_slice(&[*byte]);
            loop {
                match step(framing, &mut buf).ok()? {
                    Step::Piece(piece, next) => {
                        out.extend_from_slice(&piece);
                        framing = next;
                    }
                    Step::Next(Framing::Length(_)) => return Some((out, at + 1)),
                    Step::Next(next) => framing = next,
                    Step::More => break,
                }
            }
        }
        None
    }

    #[test]
    fn chunks_are_joined() {
        let text = b"3\r\nabc\r\n0a;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET";
        assert_eq!(read(text), Some((b"abc0123456789".to_vec(), text.len() - 3)));
        assert_eq!(read(b"0\r\n\r\n"), Some((Vec::new(), 5)));
        for text in [
            &b"1;a\r\nx\r\n0\r\n\r\n"[..],
            b"1 ; a = \"b;\\\"c\" ;d=e\r\nx\r\n0;z\r\n\r\n",
            b"1\r\nx\r\n0\r\nA-b: c\td\r\nE:\r\n\r\n",
        ] {
            let (content, len) = read(text).unwrap_or_default();
            assert_eq!((&content[..], len), (&b"x"[..], text.len()), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for text in [
            &b"3\nabc\r\n0\r\n\r\n"[..],
            b"3\r\nabc0\r\n\r\n",
            b"3\r\nabcd\r\n0\r\n\r\n",
            b"+3\r\nabc\r\n0\r\n\r\n",
            b"0x3\r\nabc\r\n0\r\n\r\n",
            b"\r\n\r\n",
            b" 3\r\nabc\r\n0\r\n\r\n",
            b"11111111111111111\r\n",
            b"3\r\nabc\r\n0\r\nx: y\n\r\n",
            b"3\r\r\nabc\r\n0\r\n\r\n",
            b"3;\r\nabc\r\n0\r\n\r\n",
            b"3;a\x01\r\nabc\r\n0\r\n\r\n",
            b"3;a=\r\nabc\r\n0\r\n\r\n",
            b"3;a=\"b\r\nabc\r\n0\r\n\r\n",
            b"3;a=\"b\"c\r\nabc\r\n0\r\n\r\n",
            b"3;a=b c\r\nabc\r\n0\r\n\r\n",
            b"3;a[]=b\r\nabc\r\n0\r\n\r\n",
            b"3 \r\nabc\r\n0\r\n\r\n",
            b"3 a\r\nabc\r\n0\r\n\r\n",
            b"3\r\nabc\rX0\r\n\r\n",
            b"3\r\nabc\n\n0\r\n\r\n",
            b"0\r\nno colon\r\n\r\n",
            b"0\r\n: x\r\n\r\n",
            b"0\r\na : x\r\n\r\n",
            b"0\r\n a: x\r\n\r\n",
            b"0\r\na: x\r\n b\r\n\r\n",
            b"0\r\na: \x00\r\n\r\n",
            b"0\r\na: \x7f\r\n\r\n",
            b"0\r\n\xff: x\r\n\r\n",
            b"0\r\nContent-Length: 5\r\n\r\n",
            b"0\r\ntransfer-encoding: chunked\r\n\r\n",
            b"0\r\nHost: x\r\n\r\n",
            b"0\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(read(text), None, "{}", String::from_utf8_lossy(text));
        }
        let endless = [b"3;".to_vec(), vec![b'x'; LINE_BYTES_MAX]].concat();
        assert_eq!(read(&endless), None);
    }
}
