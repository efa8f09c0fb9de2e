//! Answers on their way out.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::SystemTime;

use bytes::Bytes;
use hyper::{Response, StatusCode, header};
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{Connection, SOURCE_TIMEOUT, Transfer, Wire};
use crate::body::{Body, FilePart, PIECE_BYTES};
use crate::memory::{FREE_BYTES, Held, Memory};

/// Bytes that are copied behind the head, to go out with it, rather than sent by themselves.
const COPY_BYTES_MAX: usize = 16 << 10;
/// Bytes of a file that the kernel is asked to send in one call; other connections of the thread
/// wait meanwhile.
const SENDFILE_BYTES: u64 = 2 << 20;
/// A head is held back for a part up to this size, to go out with its beginning: 64 KiB take
/// 13.7 us of CPU time instead of 14.7. A longer part follows it: with BBR, 2 MiB take 103 us
/// instead of 240 to 360.
const JOINED_BYTES_MAX: u64 = 64 << 10;
/// Bytes of the first such call behind a head that was held back: with it they make one packet of
/// the loopback device. A packet has room for 17 pages. Of 64 KiB that begin inside a page a rest
/// of some bytes would follow, which the kernel's BBR delays by a timer: 30 us of CPU time in place
/// of 9.
const SENDFILE_FIRST_BYTES: u64 = 48 << 10;

impl<S: Wire> Connection<S> {
    pub(super) async fn send(
        &mut self,
        answer: Response<Body>,
        (keep, old): (bool, bool),
        memory: &Memory,
    ) -> io::Result<()> {
        let (parts, mut body) = answer.into_parts();
        self.begin_transfer(Transfer::Answer);
        (self.waiters, self.held_bytes) = (body.waiters().cloned(), body.held_bytes());
        self.out.clear();
        let (status, out) = (parts.status, &mut self.out);
        for part in ["HTTP/1.1 ", status.as_str(), " ", status.canonical_reason().unwrap_or("-"), "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        for (name, value) in &parts.headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        let bodiless =
            status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if !bodiless && !parts.headers.contains_key(header::CONTENT_LENGTH) {
            for part in ["content-length: ", itoa::Buffer::new().format(body.len()), "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        if !keep {
            out.extend_from_slice(b"connection: close\r\n");
        } else if old {
            out.extend_from_slice(b"connection: keep-alive\r\n");
        }
        write_date(out);
        out.extend_from_slice(b"\r\n");
        let mut held = None;
        while body.len() > 0 {
            if body.must_wait() {
                let (watchdog, since) = (&mut self.watchdog, Instant::now());
                watchdog.within(SOURCE_TIMEOUT);
                poll_fn(|context| match body.poll_ready(context) {
                    Poll::Ready(ready) => Poll::Ready(ready),
                    Poll::Pending => watchdog.poll(context),
                })
                .await?;
                self.pace.iter_mut().for_each(|pace| pace.excuse(since));
                self.turn.iter_mut().for_each(|turn| turn.excuse(since));
            }
            match body.take_file() {
                Some(part) => self.send_file(part, body.len() > 0, memory, &mut held).await?,
                None => {
                    let at_most = self.room(body.len(), PIECE_BYTES, memory, &mut held);
                    let Some(bytes) = body.step(at_most) else { break };
                    self.send_bytes(bytes?, body.len() > 0).await?;
                }
            }
        }
        self.flush(false).await?;
        if self.stream.tcp().is_none() {
            poll_fn(|context| match Pin::new(&mut self.stream).poll_flush(context) {
                Poll::Ready(flushed) => Poll::Ready(flushed),
                Poll::Pending => self.poll_patience(context),
            })
            .await?;
        }
        Ok(())
    }

    /// Bytes of an answer, of which `left` are left, that may be read next: at most `most`, few if
    /// other requests hold all memory.
    fn room(&mut self, left: u64, most: u64, memory: &Memory, held: &mut Option<Held>) -> usize {
        let wanted = left.min(most);
        if wanted > FREE_BYTES as u64 && held.as_ref().is_none_or(|held| held.bytes() < wanted) {
            self.held_bytes -= held.take().map_or(0, |held| held.bytes());
            let Some(taken) = memory.try_take(self.guest.address(), wanted) else { return FREE_BYTES };
            self.held_bytes += taken.bytes();
            *held = Some(taken);
            self.waiters.get_or_insert_with(|| memory.waiters().clone());
        }
        most as usize
    }

    async fn send_bytes(&mut self, bytes: Bytes, more: bool) -> io::Result<()> {
        if bytes.len() <= COPY_BYTES_MAX {
            self.out.extend_from_slice(&bytes);
            return if self.out.len() > 2 * COPY_BYTES_MAX { self.flush(more).await } else { Ok(()) };
        }
        self.flush(true).await?;
        self.write_all(&bytes, more).await
    }

    /// Sends part of a file, by the kernel alone where that is possible.
    async fn send_file(
        &mut self,
        part: FilePart,
        more: bool,
        memory: &Memory,
        held: &mut Option<Held>,
    ) -> io::Result<()> {
        let FilePart { blob, mut at, end } = part;
        let is_joined = end - at <= JOINED_BYTES_MAX;
        self.flush(is_joined).await?;
        let (file, start) = blob.place();
        let (Some(file), true) = (file.as_std(), self.stream.tcp().is_some()) else {
            while at < end {
                let room = self.room(end - at, 256 << 10, memory, held) as u64;
                let count = (end - at).min(room);
                let bytes = blob.read(at, count as usize)?;
                at += count;
                self.write_all(&bytes, more || at < end).await?;
            }
            return Ok(());
        };
        let mut offset = start + at;
        let mut bytes_max = if is_joined { SENDFILE_FIRST_BYTES } else { SENDFILE_BYTES };
        while offset < start + end {
            let count = (start + end - offset).min(bytes_max) as usize;
            bytes_max = SENDFILE_BYTES;
            let sent = self
                .with_socket(|socket| Ok(rustix::fs::sendfile(socket, file, Some(&mut offset), count)?))
                .await?;
            if sent == 0 {
                // The file is shorter than it was when it was put.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    async fn flush(&mut self, more: bool) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        let sent = self.write_all(&out, more).await;
        self.out = out;
        self.out.clear();
        sent
    }

    /// Writes bytes; `more` says that others follow at once, so that the last packet may wait for
    /// them.
    async fn write_all(&mut self, mut bytes: &[u8], more: bool) -> io::Result<()> {
        let is_socket = self.stream.tcp().is_some();
        while !bytes.is_empty() {
            let count = if is_socket {
                let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
                self.with_socket(|socket| Ok(rustix::net::send(socket, bytes, flags)?)).await?
            } else {
                let count = poll_fn(|context| match Pin::new(&mut self.stream).poll_write(context, bytes) {
                    Poll::Ready(written) => Poll::Ready(written),
                    Poll::Pending => self.poll_patience(context),
                })
                .await?;
                self.wrote(count);
                count
            };
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Calls `send` until the socket takes something.
    async fn with_socket(
        &mut self,
        mut send: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let socket = self.stream.tcp().ok_or(io::ErrorKind::Unsupported)?;
            match socket.try_io(Interest::WRITABLE, || send(socket)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
                Ok(count) => {
                    self.wrote(count);
                    return Ok(count);
                }
            }
            poll_fn(|context| match self.stream.tcp().map(|socket| socket.poll_write_ready(context)) {
                Some(Poll::Ready(ready)) => Poll::Ready(ready),
                Some(Poll::Pending) | None => self.poll_patience(context),
            })
            .await?;
        }
    }
}

thread_local! {
    /// The time as a header has it, which changes once a second.
    static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

fn write_date(out: &mut Vec<u8>) {
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    DATE.with_borrow_mut(|(made, text)| {
        if *made != second || text.is_empty() {
            (*made, *text) = (second, format!("date: {}\r\n", httpdate::fmt_http_date(now)));
        }
        out.extend_from_slice(text.as_bytes());
    });
}
