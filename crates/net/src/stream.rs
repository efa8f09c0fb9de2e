//! One TCP connection with the layers on it: TLS, WebSocket, or both, or none.
//!
//! ```text
//!   socket ─▶ scratch ─▶ TLS ─▶ plain ─▶ WebSocket ─▶ handler      paused: what the handler has not taken
//!                                                                   stays in `rest`, the kernel's window does the rest
//!   socket ◀─ TLS ◀─ control frames between the driver's messages ◀─ driver
//! ```

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustls::Connection;
use socket2::SockRef;
use throng_stdx::Instant;

use crate::handler::{Accept, CloseCause, Flow};
use crate::proxy::{HeaderReader, Progress};
use crate::shared_file::SharedFile;
use crate::stats::LoopStats;
use crate::{records, sys, ws};

/// Slices given to one gathered write; the kernel refuses more (`IOV_MAX`).
const SLICES_PER_WRITE: usize = 1024;
/// Bytes that TLS may hold encrypted but unsent. One write of the largest gateway frame fits.
const TLS_BUFFER_BYTES: usize = 128 * 1024;

/// State of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `connect` is under way.
    Connecting,
    /// TLS or WebSocket are getting ready.
    Handshaking,
    /// Bytes flow.
    Open,
    /// Its owner is done with it; what was written is on its way to the peer, what arrives is
    /// thrown away. Closing a socket with unread input would reset the connection and might destroy
    /// what was sent last.
    Lingering,
}

/// Takes what a stream has to tell.
pub(crate) trait Sink {
    /// A proxy serves this address. `false` when it is not admitted.
    fn comes_from(&mut self, addr: SocketAddr) -> bool;
    /// The `X-Forwarded-For` of the peer's request. `false` when whom it names is not admitted.
    fn forwarded_for(&mut self, list: &str) -> bool;
    /// The path of the peer's WebSocket request, before `ready`.
    fn requested(&mut self, path: &str);
    /// All handshakes are complete.
    fn ready(&mut self) -> Accept;
    fn data(&mut self, bytes: &[u8]) -> Flow;
}

/// Buffers and counters that all streams of a loop share.
pub(crate) struct Shared<'a> {
    /// Buffer of a read.
    pub(crate) scratch: &'a mut [u8],
    /// Buffer of decryption.
    pub(crate) plain: &'a mut [u8],
    pub(crate) stats: &'a mut LoopStats,
    pub(crate) now: Instant,
}

/// A stream's end.
pub(crate) struct End {
    /// Reason to report; `None` when the driver itself refused the connection.
    pub(crate) cause: Option<CloseCause>,
    /// A farewell is to reach the peer: let it linger.
    pub(crate) lingers: bool,
}

impl End {
    fn cut(cause: CloseCause) -> Self {
        Self { cause: Some(cause), lingers: false }
    }

    fn linger(cause: CloseCause) -> Self {
        Self { cause: Some(cause), lingers: true }
    }
}

/// A TLS session, whose records [`records::seal`] makes.
struct Tls {
    session: Connection,
    /// Records that the kernel did not take: the rest of one write at most.
    unsent: Bytes,
}

pub(crate) struct Stream {
    socket: TcpStream,
    pub(crate) phase: Phase,
    /// The kernel may hold bytes that were not read yet.
    readable: bool,
    /// The peer ended the stream or it failed; reading will reveal it once the bytes before it are
    /// taken.
    ended: bool,
    pub(crate) paused: bool,
    /// The kernel's send buffer is full; an event announces room.
    blocked: bool,
    /// The driver was told that the stream is blocked and waits for news.
    pub(crate) wanted: bool,
    /// Our direction of the stream has ended.
    shut: bool,
    /// A write failed. Bytes that arrived before are still delivered, then this is reported.
    broken: Option<Box<io::Error>>,
    /// Decrypted input that was not delivered because of a pause; at most one read's worth.
    rest: Vec<u8>,
    /// The header of a proxy, which comes before anything else.
    proxy: Option<Box<HeaderReader>>,
    tls: Option<Box<Tls>>,
    ws: Option<Box<ws::Endpoint>>,
}

impl Stream {
    pub(crate) fn accepted(
        fd: OwnedFd,
        proxy_protocol: bool,
        tls: Option<Connection>,
        ws: Option<ws::Endpoint>,
    ) -> Self {
        let mut stream = Self::new(fd.into(), Phase::Handshaking, tls, ws);
        stream.proxy = proxy_protocol.then(Box::default);
        stream
    }

    pub(crate) fn connecting(socket: TcpStream, tls: Option<Connection>, ws: Option<ws::Endpoint>) -> Self {
        Self::new(socket, Phase::Connecting, tls, ws)
    }

    fn new(socket: TcpStream, phase: Phase, tls: Option<Connection>, ws: Option<ws::Endpoint>) -> Self {
        let tls = tls.map(|mut session| {
            session.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            Box::new(Tls { session, unsent: Bytes::new() })
        });
        Self {
            socket,
            phase,
            readable: false,
            ended: false,
            paused: false,
            blocked: false,
            wanted: false,
            shut: false,
            broken: None,
            rest: Vec::new(),
            proxy: None,
            tls,
            ws: ws.map(Box::new),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn set_no_delay(&self) -> io::Result<()> {
        self.socket.set_nodelay(true)
    }

    /// Begins the handshakes of a stream that is connected, or reports it ready if there are none.
    pub(crate) fn start(&mut self, shared: &mut Shared<'_>, sink: &mut dyn Sink) -> Result<(), End> {
        if self.phase == Phase::Connecting {
            if let Some(error) = self.socket.take_error().unwrap_or_else(Some) {
                return Err(End::cut(CloseCause::ConnectFailed(error)));
            }
            self.phase = Phase::Handshaking;
        }
        if self.proxy.is_some() {
            return Ok(());
        }
        if self.tls.is_some() {
            self.flush_tls(shared.stats);
            return Ok(());
        }
        self.transport_ready(shared, sink)
    }

    /// Takes a proxy's header off the first `count` bytes of the scratch buffer. Returns how many
    /// of them it has.
    fn receive_header(
        &mut self,
        count: usize,
        shared: &mut Shared<'_>,
        sink: &mut dyn Sink,
    ) -> Result<usize, End> {
        let Some(header) = &mut self.proxy else { return Ok(0) };
        match header.feed(&shared.scratch[..count]) {
            Ok(Progress::More) => Ok(count),
            Ok(Progress::Done { used, source }) => {
                self.proxy = None;
                if source.is_some_and(|addr| !sink.comes_from(addr)) {
                    return Err(End { cause: None, lingers: false });
                }
                self.start(shared, sink)?;
                Ok(used)
            }
            Err(error) => {
                shared.stats.proxy_errors += 1;
                Err(End::cut(CloseCause::Proxy(error)))
            }
        }
    }

    /// TLS is ready, or there is none.
    fn transport_ready(&mut self, shared: &mut Shared<'_>, sink: &mut dyn Sink) -> Result<(), End> {
        if self.ws.is_some() {
            // Sends a client's request.
            self.flush_control(shared.stats);
            return Ok(());
        }
        self.ready(sink)
    }

    fn ready(&mut self, sink: &mut dyn Sink) -> Result<(), End> {
        let forwarded = self.ws.as_ref().and_then(|ws| ws.forwarded_for());
        if forwarded.is_some_and(|list| !sink.forwarded_for(list)) {
            return Err(End { cause: None, lingers: false });
        }
        self.phase = Phase::Open;
        if let Some(path) = self.ws.as_ref().and_then(|ws| ws.path()) {
            sink.requested(path);
        }
        match sink.ready() {
            Accept::Keep => Ok(()),
            Accept::HandOff => {
                self.paused = true;
                Ok(())
            }
            Accept::Refuse { code, reason } => {
                if let Some(ws) = &mut self.ws {
                    // A browser shows its page a close code, never the answer to an upgrade.
                    ws.accept();
                    ws.say_goodbye(code, reason);
                }
                Err(End { cause: None, lingers: self.ws.is_some() })
            }
        }
    }

    /// Notes that the kernel has bytes, or the end of the stream, for us.
    pub(crate) fn note_readable(&mut self, ended: bool) {
        self.readable = true;
        self.ended |= ended;
    }

    /// Notes that the kernel takes bytes again, and sends what waits. Returns whether the driver
    /// wants to know.
    pub(crate) fn note_writable(&mut self, stats: &mut LoopStats) -> bool {
        self.blocked = false;
        if self.phase == Phase::Lingering {
            self.progress_farewell(stats);
            return false;
        }
        self.flush_tls(stats);
        if self.phase == Phase::Open || self.tls.as_ref().is_none_or(|tls| !tls.session.is_handshaking()) {
            self.flush_control(stats);
        }
        self.phase == Phase::Open && !self.blocked && std::mem::take(&mut self.wanted)
    }

    /// There is something to do that no event will announce.
    pub(crate) fn has_work(&self) -> bool {
        (!self.paused && (self.readable || !self.rest.is_empty())) || self.broken.is_some()
    }

    /// Reads once and delivers what that gives. Returns how many bytes came from the peer.
    pub(crate) fn read(&mut self, shared: &mut Shared<'_>, sink: &mut dyn Sink) -> Result<usize, End> {
        if self.paused {
            // Nothing more will be delivered before the driver resumes, so a failure is all there
            // is to tell.
            return self.take_failure().map_or(Ok(0), Err);
        }
        if !self.rest.is_empty() {
            let mut rest = std::mem::take(&mut self.rest);
            self.deliver(&mut rest, shared.now, shared.stats, sink)?;
            return Ok(0);
        }
        shared.stats.reads += 1;
        match (&self.socket).read(shared.scratch) {
            Ok(0) => Err(End::cut(CloseCause::EndOfStream)),
            Ok(count) => {
                shared.stats.bytes_in += count as u64;
                // A read that did not fill the buffer took everything, and what comes later raises
                // an event.
                self.readable = count == shared.scratch.len() || self.ended;
                self.receive(count, shared, sink)?;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                self.ended = false;
                self.take_failure().map_or(Ok(0), Err)
            }
            Err(error) => Err(End::cut(CloseCause::Failed(error))),
        }
    }

    fn take_failure(&mut self) -> Option<End> {
        self.broken.take().map(|error| End::cut(CloseCause::Failed(*error)))
    }

    /// Takes the first `count` bytes of the scratch buffer through the layers.
    fn receive(&mut self, count: usize, shared: &mut Shared<'_>, sink: &mut dyn Sink) -> Result<(), End> {
        let start = self.receive_header(count, shared, sink)?;
        if start == count {
            return Ok(());
        }
        let Shared { scratch, plain, stats, now } = shared;
        let now = *now;
        if self.phase == Phase::Lingering {
            return Ok(());
        }
        if self.tls.is_none() {
            return self.deliver(&mut scratch[start..count], now, stats, sink);
        }
        let mut input = &scratch[start..count];
        while !input.is_empty() {
            let Some(Tls { session: tls, .. }) = self.tls.as_deref_mut() else { break };
            let was_handshaking = tls.is_handshaking();
            // Cannot fail: the buffer that it reports full is emptied below in every round.
            let taken = tls.read_tls(&mut input).unwrap_or(0);
            if let Err(error) = tls.process_new_packets() {
                // Sends the alert that says what is wrong.
                self.flush_tls(stats);
                return Err(End::linger(CloseCause::Tls(error)));
            }
            let ready = was_handshaking && !tls.is_handshaking();
            self.flush_tls(stats);
            if ready {
                let mut shared = Shared { scratch: &mut [], plain: &mut [], stats, now };
                self.transport_ready(&mut shared, sink)?;
            }
            while let Some(tls) = &mut self.tls {
                match tls.session.reader().read(plain) {
                    Ok(0) => return Err(End::linger(CloseCause::EndOfStream)),
                    Ok(count) => self.deliver(&mut plain[..count], now, stats, sink)?,
                    // Only `WouldBlock` happens: the end of the socket's stream is never announced
                    // to TLS.
                    Err(_) => break,
                }
            }
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes decrypted bytes through WebSocket to the sink. What a pause leaves is kept.
    fn deliver(
        &mut self,
        bytes: &mut [u8],
        now: Instant,
        stats: &mut LoopStats,
        sink: &mut dyn Sink,
    ) -> Result<(), End> {
        let mut used = 0;
        while used < bytes.len() && !self.paused && self.rest.is_empty() {
            let Some(ws) = &mut self.ws else {
                self.paused = sink.data(&bytes[used..]) == Flow::Pause;
                return Ok(());
            };
            let paused = &mut self.paused;
            let outcome = ws.feed(now, &mut bytes[used..], &mut |data| {
                let flow = sink.data(data);
                *paused = flow == Flow::Pause;
                flow
            });
            match outcome {
                ws::FeedResult::Used(count) => used += count,
                ws::FeedResult::Ready(count) => {
                    used += count;
                    self.ready(sink)?;
                    if let Some(ws) = &mut self.ws {
                        ws.accept();
                    }
                }
                ws::FeedResult::PeerClosed(code) => return Err(End::linger(CloseCause::WsClosed { code })),
                ws::FeedResult::Rejected(why) => return Err(End::linger(CloseCause::WsRejected(why))),
                ws::FeedResult::Refused(error) => return Err(End::cut(CloseCause::WsRefused(error))),
                ws::FeedResult::Broken(error) => return Err(End::linger(CloseCause::WsProtocol(error))),
            }
        }
        self.rest.extend_from_slice(&bytes[used..]);
        // Pongs, and the response to an upgrade.
        self.flush_control(stats);
        Ok(())
    }

    /// Writes what the connection takes: of a WebSocket whole messages, since one that has begun is
    /// kept until it has left. A failure shows in the next [`Stream::read`].
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>], stats: &mut LoopStats) -> usize {
        let taken = self.write_now(slices, stats);
        match &mut self.ws {
            Some(ws) if self.blocked => taken + ws.keep_rest(skip(slices, taken)),
            _ => taken,
        }
    }

    fn write_now(&mut self, slices: &[IoSlice<'_>], stats: &mut LoopStats) -> usize {
        if self.ws.as_ref().is_some_and(|ws| ws.has_control()) {
            return self.write_around_control(slices, stats);
        }
        let taken = self.send(slices, stats);
        if let Some(ws) = &mut self.ws {
            let mut left = taken;
            for slice in slices {
                let count = left.min(slice.len());
                ws.note_sent(&slice[..count]);
                left -= count;
                if left == 0 {
                    break;
                }
            }
        }
        taken
    }

    /// Writes up to the end of the message that is open, then what waits to be sent between
    /// messages, then the rest.
    fn write_around_control(&mut self, slices: &[IoSlice<'_>], stats: &mut LoopStats) -> usize {
        let mut taken = 0;
        self.flush_control(stats);
        let Some(ws) = &self.ws else { return 0 };
        let mut open = ws.open_bytes(slices.iter().map(|slice| &**slice));
        for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() && !self.blocked {
                let part = if open > 0 { &rest[..open.min(rest.len())] } else { rest };
                let count = self.send(&[IoSlice::new(part)], stats);
                if count == 0 {
                    return taken;
                }
                taken += count;
                rest = &rest[count..];
                if let Some(ws) = &mut self.ws {
                    ws.note_sent(&part[..count]);
                }
                if open > 0 {
                    open -= count;
                    if open == 0 {
                        self.flush_control(stats);
                    }
                }
            }
        }
        taken
    }

    /// True if bytes go to the socket unchanged, so that [`Self::write_shared`] can send them.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none() && self.ws.is_none()
    }

    /// Sends a file's bytes on a plain stream. Returns how many the kernel took; an ordinary write
    /// of the rest finds out why it was not all, and waits for room if that is the reason.
    ///
    /// # Errors
    /// When the kernel does not do that, or the stream has failed, which an ordinary write finds
    /// out as well.
    pub(crate) fn write_shared(&mut self, file: &SharedFile, stats: &mut LoopStats) -> io::Result<usize> {
        debug_assert!(self.is_plain(), "a layer would be skipped");
        if self.blocked {
            return Ok(0);
        }
        stats.writes += 1;
        match sys::send_file(self.socket.as_fd(), file.fd(), file.len()) {
            Ok(count) => {
                stats.bytes_out += count as u64;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn is_websocket(&self) -> bool {
        self.ws.is_some()
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Sends a ping if the connection is a WebSocket.
    pub(crate) fn ping(&mut self, stats: &mut LoopStats) {
        if let Some(ws) = &mut self.ws {
            ws.ping();
            self.flush_control(stats);
        }
    }

    /// Ends our direction of the stream after everything that was written, with the goodbye of each
    /// layer.
    pub(crate) fn finish(&mut self, code: u16, reason: &str, stats: &mut LoopStats) {
        if let Some(ws) = &mut self.ws {
            ws.say_goodbye(code, reason);
        }
        self.phase = Phase::Lingering;
        self.paused = false;
        self.rest = Vec::new();
        self.readable = true;
        self.progress_farewell(stats);
    }

    fn progress_farewell(&mut self, stats: &mut LoopStats) {
        self.flush_control(stats);
        if self.blocked || self.shut {
            return;
        }
        if let Some(tls) = &mut self.tls {
            tls.session.send_close_notify();
            self.flush_tls(stats);
            if self.blocked {
                return;
            }
        }
        self.shut = true;
        // Fails only if the connection is gone, which the next read finds out.
        drop(self.socket.shutdown(Shutdown::Write));
    }

    /// Sends what WebSocket has to say by itself, as far as possible now.
    fn flush_control(&mut self, stats: &mut LoopStats) {
        while !self.blocked
            && let Some(ws) = &mut self.ws
        {
            let control = ws.control();
            if control.is_empty() {
                return;
            }
            let control = control.to_vec();
            let count = self.send(&[IoSlice::new(&control)], stats);
            if let Some(ws) = &mut self.ws {
                ws.control_sent(count);
            }
            // A TLS session that has failed takes nothing, now or later.
            if count == 0 {
                return;
            }
        }
    }

    /// Sends through TLS, if there is any.
    fn send(&mut self, slices: &[IoSlice<'_>], stats: &mut LoopStats) -> usize {
        if self.tls.is_none() {
            return self.send_raw(slices, stats);
        }
        let mut taken = 0;
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        self.flush_tls(stats);
        while taken < offered && !self.blocked {
            let Some(tls) = &mut self.tls else { return taken };
            // All slices at once: the header of a frame shares the record of what follows.
            let sealed = match taken {
                0 => records::seal(&mut tls.session, slices),
                _ => {
                    let rest: Vec<_> = skip(slices, taken).map(IoSlice::new).collect();
                    records::seal(&mut tls.session, &rest)
                }
            };
            // A session that has failed takes nothing any more; reading finds that out.
            let Ok((count, records)) = sealed else { return taken };
            taken += count;
            let sent = self.send_raw(&[IoSlice::new(&records)], stats);
            if let Some(tls) = &mut self.tls {
                tls.unsent = Bytes::copy_from_slice(&records[sent..]);
            }
        }
        taken
    }

    /// Sends the records that TLS has ready, as far as the kernel takes them.
    fn flush_tls(&mut self, stats: &mut LoopStats) {
        while !self.blocked
            && let Some(tls) = &mut self.tls
        {
            if !tls.unsent.is_empty() {
                let unsent = std::mem::take(&mut tls.unsent);
                let sent = self.send_raw(&[IoSlice::new(&unsent)], stats);
                if let Some(tls) = &mut self.tls {
                    tls.unsent = unsent.slice(sent..);
                }
                continue;
            }
            if !tls.session.wants_write() {
                return;
            }
            stats.writes += 1;
            match tls.session.write_tls(&mut Gathered(&self.socket)) {
                Ok(count) => stats.bytes_out += count as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.blocked = true;
                    if error.kind() != io::ErrorKind::WouldBlock {
                        self.broken = Some(Box::new(error));
                        self.readable = true;
                    }
                }
            }
        }
    }

    fn send_raw(&mut self, mut slices: &[IoSlice<'_>], stats: &mut LoopStats) -> usize {
        let mut taken = 0;
        while !slices.is_empty() && !self.blocked {
            let (chunk, rest) = slices.split_at(slices.len().min(SLICES_PER_WRITE));
            let offered: usize = chunk.iter().map(|slice| slice.len()).sum();
            if offered > 0 {
                let count = self.send_chunk(chunk, stats);
                taken += count;
                // Bytes that the kernel did not take wait for an event; a partial write arms one as
                // well.
                self.blocked |= count < offered;
            }
            slices = rest;
        }
        taken
    }

    fn send_chunk(&mut self, chunk: &[IoSlice<'_>], stats: &mut LoopStats) -> usize {
        loop {
            stats.writes += 1;
            let result = match chunk {
                [single] => (&self.socket).write(single),
                several => Gathered(&self.socket).write_vectored(several),
            };
            match result {
                Ok(count) => {
                    stats.bytes_out += count as u64;
                    return count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return 0,
                Err(error) => {
                    self.broken = Some(Box::new(error));
                    self.readable = true;
                    return 0;
                }
            }
        }
    }
}

/// Remainder of `slices` after their first `taken` bytes.
fn skip<'a>(slices: &'a [IoSlice<'_>], taken: usize) -> impl Iterator<Item = &'a [u8]> + Clone {
    let mut left = taken;
    slices.iter().map(move |slice| {
        let skipped = left.min(slice.len());
        left -= skipped;
        &slice[skipped..]
    })
}

/// Writes to a socket without raising SIGPIPE, several slices at once.
struct Gathered<'a>(&'a TcpStream);

impl Write for Gathered<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &*self.0).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let slices = &slices[..slices.len().min(SLICES_PER_WRITE)];
        SockRef::from(self.0).send_vectored_with_flags(slices, libc::MSG_NOSIGNAL)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
