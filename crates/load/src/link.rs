//! One connection of a simulated peer: the transport below the frames.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use thiserror::Error;

use crate::protocol::{ScanError, Scanner, Sink};
use crate::socket::{Stream, Taken};
use crate::websocket;

/// How frames travel between a simulated player and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Plain TCP.
    #[default]
    Tcp,
    /// WebSocket over plain TCP, one binary message per frame.
    WebSocket,
}

impl std::str::FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "ws" | "websocket" => Ok(Self::WebSocket),
            _ => Err(UnknownTransport(text.to_owned())),
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::WebSocket => "ws",
        })
    }
}

/// A transport name that is none of `tcp`, `ws`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown transport `{0}`; use tcp or ws")]
pub struct UnknownTransport(String);

/// Bytes kept for a server that does not read; beyond, inputs are refused and counted.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Reads per readiness. Bounded so that one busy connection does not delay the sends of the others.
const READS_PER_TURN: usize = 8;

/// Why a connection ended.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("the server closed the connection")]
    Closed,
    #[error("cannot reach the server: {0}")]
    Connect(io::Error),
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the server sent {0}")]
    Scan(#[from] ScanError),
    #[error("WebSocket: {0}")]
    WebSocket(#[from] websocket::WebSocketError),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    stream: Stream,
    /// State of the WebSocket layer, if that is the transport.
    websocket: Option<Box<websocket::ClientSide>>,
    scanner: Scanner,
    /// Bytes that the socket did not take yet.
    unsent: Vec<u8>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

impl Link {
    pub(crate) fn connect(
        to: SocketAddr,
        transport: Transport,
        from: Option<IpAddr>,
        receive_buffer: Option<usize>,
        scanner: Scanner,
    ) -> Result<Self, LinkError> {
        let stream = Stream::connect(to, from, receive_buffer).map_err(LinkError::Connect)?;
        let websocket = match transport {
            Transport::Tcp => None,
            Transport::WebSocket => {
                Some(Box::new(websocket::ClientSide::new(u64::from(stream.raw().cast_unsigned()))))
            }
        };
        Ok(Self { stream, websocket, scanner, unsent: Vec::new(), bytes_in: 0, bytes_out: 0 })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.stream.raw()
    }

    /// Frames received since last asked.
    pub(crate) fn take_frames_in(&mut self) -> u64 {
        std::mem::take(&mut self.scanner.frames)
    }

    /// Whether the socket refused bytes, so that its next readiness to write matters.
    pub(crate) fn wants_write(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The connection attempt has ended: well, or with an error. Starts the transport's own handshake.
    pub(crate) fn connected(&mut self, host: SocketAddr) -> Result<(), LinkError> {
        if let Some(error) = self.stream.connect_error() {
            return Err(LinkError::Connect(error));
        }
        if let Some(websocket) = &self.websocket {
            let request = websocket.request(host);
            self.write(request.as_bytes())?;
        }
        Ok(())
    }

    /// Whether frames can be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.websocket.as_ref().is_none_or(|websocket| websocket.is_open())
    }

    /// Sends whole frames. Ok(false) when the server has not been reading for so long that they were refused.
    pub(crate) fn send(&mut self, frames: &[u8]) -> Result<bool, LinkError> {
        if self.unsent.len() > UNSENT_BYTES_MAX {
            return Ok(false);
        }
        match &mut self.websocket {
            None => self.write(frames)?,
            Some(websocket) => {
                let message = websocket.message(frames);
                self.write(&message)?;
            }
        }
        Ok(true)
    }

    /// Continues sending what the socket refused.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        if !self.unsent.is_empty() {
            let count = self.stream.write(&self.unsent)?;
            self.bytes_out += count as u64;
            self.unsent.drain(..count);
        }
        Ok(())
    }

    /// Takes what has arrived, at most a few reads' worth.
    pub(crate) fn receive(&mut self, scratch: &mut [u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
        for _ in 0..READS_PER_TURN {
            let skip = self.skip_bytes();
            let taken = if skip > 0 { self.stream.discard(skip)? } else { self.stream.read(scratch)? };
            let count = match taken {
                Taken::Bytes(count) => count,
                Taken::Empty => return Ok(()),
                Taken::End => return Err(LinkError::Closed),
            };
            self.bytes_in += count as u64;
            if skip > 0 {
                if let Some(websocket) = &mut self.websocket {
                    websocket.skipped(count);
                }
                self.scanner.skipped(count, sink);
            } else {
                self.take(&scratch[..count], sink)?;
            }
            // What is left, if anything, makes the socket ready again: cheaper than asking in vain.
            if count < if skip > 0 { skip } else { scratch.len() }
                || (skip > 0 && self.scanner.is_between_packets())
            {
                return Ok(());
            }
        }
        Ok(())
    }

    fn skip_bytes(&self) -> usize {
        let skip = self.scanner.skip_bytes();
        self.websocket.as_ref().map_or(skip, |websocket| skip.min(websocket.skip_bytes()))
    }

    fn take(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
        let Some(websocket) = &mut self.websocket else {
            return Ok(self.scanner.feed(bytes, sink)?);
        };
        let scanner = &mut self.scanner;
        let mut scanned = Ok(());
        websocket.feed(bytes, |payload| {
            if scanned.is_ok() {
                scanned = scanner.feed(payload, sink);
            }
        })?;
        scanned?;
        if let Some(reply) = websocket.take_reply() {
            self.write(&reply)?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        let count = if self.unsent.is_empty() { self.stream.write(bytes)? } else { 0 };
        self.bytes_out += count as u64;
        self.unsent.extend_from_slice(&bytes[count..]);
        Ok(())
    }
}
