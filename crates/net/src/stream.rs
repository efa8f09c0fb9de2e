//! One TCP connection.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::SockRef;

use crate::handler::{CloseCause, Flow};
use crate::stats::LoopStats;

/// Slices given to one gathered write; the kernel refuses more (`IOV_MAX`).
const SLICES_PER_WRITE: usize = 1024;

/// Where a stream is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `connect` is under way.
    Connecting,
    /// Bytes flow.
    Open,
    /// The driver is done with it; what was written is on its way to the peer, what arrives is thrown away. Closing a
    /// socket with unread input would reset the connection and might destroy what was sent last.
    Lingering,
}

/// Takes the bytes of a stream.
pub(crate) trait Sink {
    fn data(&mut self, bytes: &[u8]) -> Flow;
}

pub(crate) struct Stream {
    socket: TcpStream,
    pub(crate) phase: Phase,
    /// The kernel may hold bytes that were not read yet.
    pub(crate) readable: bool,
    /// The peer ended the stream or it failed; reading will reveal it once the bytes before it are taken.
    ended: bool,
    pub(crate) paused: bool,
    /// The kernel's send buffer is full; an event announces room.
    blocked: bool,
    /// The driver was told that the stream is blocked and waits for news.
    pub(crate) wanted: bool,
    /// A write failed. Bytes that arrived before are still delivered, then this is reported.
    broken: Option<io::Error>,
}

impl Stream {
    pub(crate) fn accepted(fd: OwnedFd) -> Self {
        Self::new(fd.into(), Phase::Open)
    }

    pub(crate) fn connecting(socket: TcpStream) -> Self {
        Self::new(socket, Phase::Connecting)
    }

    fn new(socket: TcpStream, phase: Phase) -> Self {
        Self {
            socket,
            phase,
            readable: false,
            ended: false,
            paused: false,
            blocked: false,
            wanted: false,
            broken: None,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn set_no_delay(&self) -> io::Result<()> {
        self.socket.set_nodelay(true)
    }

    /// The outcome of a non-blocking `connect` that the kernel has reported on.
    pub(crate) fn finish_connect(&mut self) -> io::Result<()> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        self.phase = Phase::Open;
        Ok(())
    }

    /// Notes that the kernel has bytes, or the end of the stream, for us.
    pub(crate) fn note_readable(&mut self, ended: bool) {
        self.readable = true;
        self.ended |= ended;
    }

    /// Notes that the kernel takes bytes again. Returns whether the driver wants to know.
    pub(crate) fn note_writable(&mut self) -> bool {
        self.blocked = false;
        std::mem::take(&mut self.wanted)
    }

    /// There is something to do that no event will announce.
    pub(crate) fn has_work(&self) -> bool {
        (self.readable && !self.paused) || self.broken.is_some()
    }

    /// Reads once.
    pub(crate) fn read(
        &mut self,
        scratch: &mut [u8],
        stats: &mut LoopStats,
        sink: &mut dyn Sink,
    ) -> Result<(), CloseCause> {
        if self.paused {
            // Nothing more will be delivered before the driver resumes, so a failure is all there is to tell.
            return self.broken.take().map_or(Ok(()), |error| Err(CloseCause::Failed(error)));
        }
        stats.reads += 1;
        match (&self.socket).read(scratch) {
            Ok(0) => Err(CloseCause::EndOfStream),
            Ok(count) => {
                stats.bytes_in += count as u64;
                // A read that did not fill the buffer took everything, and what comes later raises an event.
                self.readable = count == scratch.len() || self.ended;
                if self.phase == Phase::Open && sink.data(&scratch[..count]) == Flow::Pause {
                    self.paused = true;
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                self.ended = false;
                self.broken.take().map_or(Ok(()), |error| Err(CloseCause::Failed(error)))
            }
            Err(error) => Err(CloseCause::Failed(error)),
        }
    }

    /// Writes what the kernel takes. A failure shows in the next [`Stream::read`].
    pub(crate) fn write(&mut self, mut slices: &[IoSlice<'_>], stats: &mut LoopStats) -> usize {
        let mut taken = 0;
        while !slices.is_empty() && !self.blocked {
            let (chunk, rest) = slices.split_at(slices.len().min(SLICES_PER_WRITE));
            let offered: usize = chunk.iter().map(|slice| slice.len()).sum();
            if offered > 0 {
                let count = self.send(chunk, stats);
                taken += count;
                self.blocked |= count < offered;
            }
            slices = rest;
        }
        taken
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    fn send(&mut self, chunk: &[IoSlice<'_>], stats: &mut LoopStats) -> usize {
        loop {
            stats.writes += 1;
            let result = match chunk {
                [single] => (&self.socket).write(single),
                several => SockRef::from(&self.socket).send_vectored_with_flags(several, libc::MSG_NOSIGNAL),
            };
            match result {
                Ok(count) => {
                    stats.bytes_out += count as u64;
                    return count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return 0,
                Err(error) => {
                    self.broken = Some(error);
                    self.readable = true;
                    return 0;
                }
            }
        }
    }

    /// Ends our direction of the stream.
    pub(crate) fn finish(&mut self) {
        self.phase = Phase::Lingering;
        self.paused = false;
        self.readable = true;
        // Fails only if the connection is gone, which the next read finds out.
        drop(self.socket.shutdown(std::net::Shutdown::Write));
    }
}
