//! One connection of a simulated peer: the transport below the frames.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use thiserror::Error;
use throng_net::kcp::{Kcp, MSS, Profile, Side};
use throng_stdx::Instant;

use crate::clock;
use crate::network::{Fates, Network, Way};
use crate::protocol::{ScanError, Scanner, Sink};
use crate::socket::{Stream, Taken};
use crate::tls::{Tls, TlsError, Trust};
use crate::websocket;

/// Transport of frames between a simulated player and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Plain TCP.
    #[default]
    Tcp,
    /// WebSocket over plain TCP, one binary message per frame.
    WebSocket,
    /// KCP over UDP, with the settings for games.
    Kcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket over TLS.
    Wss,
}

impl Transport {
    /// True if the bytes are encrypted.
    #[must_use]
    pub fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls | Self::Wss)
    }

    fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::Wss)
    }

    /// The transport below the encryption, in the words of a server's configuration.
    pub(crate) fn listener(self) -> &'static str {
        match self {
            Self::Tcp | Self::Tls => "tcp",
            Self::WebSocket | Self::Wss => "ws",
            Self::Kcp => "kcp",
        }
    }
}

impl std::str::FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "ws" | "websocket" => Ok(Self::WebSocket),
            "kcp" => Ok(Self::Kcp),
            "tls" => Ok(Self::Tls),
            "wss" => Ok(Self::Wss),
            _ => Err(UnknownTransport(text.to_owned())),
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::WebSocket => "ws",
            Self::Kcp => "kcp",
            Self::Tls => "tls",
            Self::Wss => "wss",
        })
    }
}

/// A transport name that is none of `tcp`, `ws`, `kcp`, `tls`, `wss`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown transport `{0}`; use tcp, ws, kcp, tls or wss")]
pub struct UnknownTransport(String);

/// Bytes kept for a server that does not read; beyond, inputs are refused and counted.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Reads per readiness. Bounded so that one busy connection does not delay the sends of the others.
const READS_PER_TURN: usize = 8;

/// Datagrams taken per readiness, for the same reason.
const DATAGRAMS_PER_TURN: usize = 64;

/// The KCP end of a connection.
#[derive(Debug)]
struct KcpSide {
    kcp: Kcp,
    /// The datagram being sent.
    datagram: Vec<u8>,
}

/// Both directions of a network.
#[derive(Debug)]
struct Between {
    to_server: Way,
    to_player: Way,
}

fn now() -> Instant {
    Instant::from_nanos(clock::now_ns())
}

/// Why a connection ended.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("the server closed the connection")]
    Closed,
    #[error("cannot reach {addr}: {source}")]
    Connect { addr: SocketAddr, source: io::Error },
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the server sent {0}")]
    Scan(#[from] ScanError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("WebSocket: {0}")]
    WebSocket(#[from] websocket::WebSocketError),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    stream: Stream,
    /// State of the WebSocket layer, if that is the transport.
    websocket: Option<Box<websocket::ClientSide>>,
    /// State of the TLS layer, if the transport has one. WebSocket lies above it, and the simulated
    /// network below.
    tls: Option<Box<Tls>>,
    /// State of the KCP layer, if that is the transport; the stream is a UDP socket then.
    kcp: Option<Box<KcpSide>>,
    scanner: Scanner,
    /// The network that is played between the socket and everything above.
    between: Option<Box<Between>>,
    /// Nothing is read for now.
    pub(crate) paused: bool,
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
        let stream = match transport {
            Transport::Kcp => Stream::connect_datagram(to, from),
            _ => Stream::connect(to, from, receive_buffer),
        };
        let stream = stream.map_err(|source| LinkError::Connect { addr: to, source })?;
        let descriptor = stream.raw().cast_unsigned();
        let websocket =
            transport.is_websocket().then(|| Box::new(websocket::ClientSide::new(u64::from(descriptor))));
        let kcp = (transport == Transport::Kcp).then(|| {
            // The session number only has to differ from that of an earlier session of the same
            // local port.
            let conv = (clock::now_ns() as u32) ^ descriptor.rotate_left(16);
            let kcp = Kcp::new(conv, Profile::GAME, Side::Connects, conv, now());
            Box::new(KcpSide { kcp, datagram: Vec::new() })
        });
        let (between, paused) = (None, false);
        Ok(Self {
            stream,
            websocket,
            tls: None,
            kcp,
            between,
            paused,
            scanner,
            unsent: Vec::new(),
            bytes_in: 0,
            bytes_out: 0,
        })
    }

    /// Encrypts everything that is sent from now on. Encrypted transports need it before the
    /// connection stands.
    pub(crate) fn secure(&mut self, trust: &Trust) -> Result<(), LinkError> {
        self.tls = Some(Box::new(Tls::new(trust)?));
        Ok(())
    }

    /// Puts a network between the socket and everything above. Needs calls of [`Self::receive`]
    /// when [`Self::is_due`] says so.
    pub(crate) fn pass_through(&mut self, network: &Network, seed: u64) {
        let datagrams = self.kcp.is_some();
        let way = |seed| Way::new(network.clone(), datagrams, seed);
        let [to_server, to_player] = [seed.wrapping_mul(2), seed.wrapping_mul(2) + 1].map(way);
        self.between = Some(Box::new(Between { to_server, to_player }));
    }

    /// Something has passed the network.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        let is_due = |between: &Between| between.to_server.is_due(now_ns) || between.to_player.is_due(now_ns);
        self.between.as_deref().is_some_and(is_due)
    }

    /// True if the simulated network currently takes nothing from the socket.
    pub(crate) fn is_held_up(&self) -> bool {
        self.between.as_deref().is_some_and(|between| between.to_player.is_full(clock::now_ns()))
    }

    /// Fates of everything that passed the network since the last call.
    pub(crate) fn take_fates(&mut self) -> Fates {
        let Some(between) = &mut self.between else { return Fates::default() };
        let mut fates = std::mem::take(&mut between.to_server.fates);
        fates.add(&std::mem::take(&mut between.to_player.fates));
        fates
    }

    /// Writes the bytes that have passed the simulated network to the socket.
    fn leave(&mut self) -> Result<(), LinkError> {
        let now = clock::now_ns();
        while let Some(bytes) = self.between.as_mut().and_then(|between| between.to_server.pop(now)) {
            self.put(&bytes)?;
        }
        Ok(())
    }

    /// Moves up to a buffer of bytes from the socket into the simulated network, if there is one.
    /// Returns false if there were none.
    fn enter(&mut self, scratch: &mut [u8]) -> Result<bool, LinkError> {
        let Some(between) = &mut self.between else { return Ok(false) };
        if between.to_player.is_full(clock::now_ns()) {
            return Ok(false);
        }
        match self.stream.read(scratch)? {
            Taken::Bytes(count) => {
                self.bytes_in += count as u64;
                between.to_player.push(clock::now_ns(), &scratch[..count]);
                Ok(true)
            }
            Taken::Empty => Ok(false),
            Taken::End => Err(LinkError::Closed),
        }
    }

    /// Bytes that have arrived over the network.
    fn receive_through(&mut self, scratch: &mut [u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
        self.leave()?;
        for _ in 0..DATAGRAMS_PER_TURN {
            if !self.enter(scratch)? {
                break;
            }
        }
        let at = clock::now_ns();
        while let Some(bytes) = self.between.as_mut().and_then(|between| between.to_player.pop(at)) {
            match &mut self.kcp {
                Some(_) => self.take_datagram(&bytes, sink)?,
                None => self.take(&bytes, sink)?,
            }
        }
        self.transmit()?;
        self.leave()
    }

    /// Takes a datagram of the session.
    fn take_datagram(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
        let Some(side) = &mut self.kcp else { return Ok(()) };
        // Datagrams of other sessions are noise.
        let _ = side.kcp.handle_datagram(now(), bytes);
        while let Some(received) = side.kcp.poll_received() {
            self.scanner.feed(&received.bytes, sink)?;
        }
        Ok(())
    }

    /// Does the periodic work of the transport; must be called every 10 ms for KCP.
    pub(crate) fn tick(&mut self) -> Result<(), LinkError> {
        let Some(side) = &mut self.kcp else { return Ok(()) };
        side.kcp.handle_timeout(now());
        if side.kcp.is_dead() {
            return Err(LinkError::Closed);
        }
        self.transmit()
    }

    /// Sends the datagrams that KCP has ready; a full socket loses them, which KCP is made for.
    fn transmit(&mut self) -> Result<(), LinkError> {
        let Some(side) = &mut self.kcp else { return Ok(()) };
        let now = now();
        while side.kcp.poll_transmit(now, &mut side.datagram) {
            match &mut self.between {
                Some(between) => between.to_server.push(clock::now_ns(), &side.datagram),
                None => self.bytes_out += self.stream.write(&side.datagram)? as u64,
            }
        }
        Ok(())
    }

    /// Takes the datagrams that have arrived, and acknowledges them.
    fn receive_datagrams(&mut self, scratch: &mut [u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
        for _ in 0..DATAGRAMS_PER_TURN {
            let Taken::Bytes(count) = self.stream.read(scratch)? else { break };
            self.bytes_in += count as u64;
            self.take_datagram(&scratch[..count], sink)?;
        }
        self.transmit()
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.stream.raw()
    }

    /// Frames received since the last call.
    pub(crate) fn take_frames_in(&mut self) -> u64 {
        std::mem::take(&mut self.scanner.frames)
    }

    /// True if the socket refused bytes, so that its next readiness to write matters.
    pub(crate) fn wants_write(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The connection attempt has ended: well, or with an error. Starts the transport's own
    /// handshake.
    pub(crate) fn connected(&mut self, host: SocketAddr) -> Result<(), LinkError> {
        if let Some(error) = self.stream.connect_error() {
            return Err(LinkError::Connect { addr: host, source: error });
        }
        if let Some(websocket) = &self.websocket {
            let request = websocket.request(host);
            self.write(request.as_bytes())?;
        }
        self.send_records()
    }

    /// True if frames can be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_open())
            && self.websocket.as_ref().is_none_or(|websocket| websocket.is_open())
    }

    /// Sends whole frames. Ok(false) when the server has not been reading for so long that they
    /// were refused.
    pub(crate) fn send(&mut self, frames: &[u8]) -> Result<bool, LinkError> {
        let under_way = self.between.as_deref().map_or(0, |between| between.to_server.bytes());
        if self.unsent.len() + under_way > UNSENT_BYTES_MAX {
            return Ok(false);
        }
        if let Some(side) = &mut self.kcp {
            if side.kcp.unsent_segments() > UNSENT_BYTES_MAX / MSS {
                return Ok(false);
            }
            side.kcp.send(frames);
            self.transmit()?;
            return Ok(true);
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

    /// Sends bytes that the socket refused before.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        if !self.unsent.is_empty() {
            let count = self.stream.write(&self.unsent)?;
            self.bytes_out += count as u64;
            self.unsent.drain(..count);
        }
        Ok(())
    }

    /// Reads from the socket, a few times at most.
    pub(crate) fn receive(&mut self, scratch: &mut [u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
        if self.between.is_some() {
            return self.receive_through(scratch, sink);
        }
        if self.kcp.is_some() {
            return self.receive_datagrams(scratch, sink);
        }
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
            // Remaining bytes make the socket ready again: cheaper than a read in vain.
            if count < if skip > 0 { skip } else { scratch.len() }
                || (skip > 0 && self.scanner.is_between_packets())
            {
                return Ok(());
            }
        }
        Ok(())
    }

    fn skip_bytes(&self) -> usize {
        if self.tls.is_some() {
            return 0;
        }
        let skip = self.scanner.skip_bytes();
        self.websocket.as_ref().map_or(skip, |websocket| skip.min(websocket.skip_bytes()))
    }

    fn take(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
        let Some(tls) = &mut self.tls else { return self.take_plain(bytes, sink) };
        let plain = tls.open(bytes)?;
        self.take_plain(&plain, sink)?;
        if let Some(tls) = &mut self.tls {
            tls.reuse_plain(plain);
        }
        self.send_records()
    }

    fn take_plain(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<(), LinkError> {
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
        let Some(tls) = &mut self.tls else { return self.transfer(bytes) };
        tls.seal(bytes)?;
        self.send_records()
    }

    /// Sends the records that the TLS layer has ready, if there is one.
    fn send_records(&mut self) -> Result<(), LinkError> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let records = tls.take_records()?;
        if !records.is_empty() {
            self.transfer(&records)?;
        }
        if let Some(tls) = &mut self.tls {
            tls.reuse(records);
        }
        Ok(())
    }

    /// Sends bytes as they are, through the simulated network if there is one.
    fn transfer(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        if let Some(between) = &mut self.between {
            between.to_server.push(clock::now_ns(), bytes);
            return Ok(());
        }
        self.put(bytes)
    }

    /// Writes bytes of the stream, or one datagram, which a full socket drops.
    fn put(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        if self.kcp.is_some() {
            self.bytes_out += self.stream.write(bytes)? as u64;
            return Ok(());
        }
        let count = if self.unsent.is_empty() { self.stream.write(bytes)? } else { 0 };
        self.bytes_out += count as u64;
        self.unsent.extend_from_slice(&bytes[count..]);
        Ok(())
    }
}
