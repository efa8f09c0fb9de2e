//! One end of a WebSocket connection without I/O.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use throng_stdx::{Instant, Rng};

use super::handshake::{Rejection, Request, RequestReader, ResponseError, ResponseReader};
use super::{
    Borders, Decoder, Event, OP_PING, OP_PONG, ProtocolError, Role, accept_response, write_close,
    write_control,
};
use crate::config::WsPolicy;
use crate::handler::Flow;

/// Frames without application data that a peer may send in a second. Browsers answer one ping in 30
/// s; a program that measures its round trip pings a few times a second.
const BARE_FRAMES_PER_SECOND: u32 = 100;
/// Largest rest of a message that is kept. A frame of the gateway protocol has 64 KiB at most.
const STUCK_BYTES_MAX: usize = 128 << 10;

/// One end of a WebSocket connection: the handshake, then messages in, and control frames out
/// between the messages that the driver writes.
pub(crate) struct Endpoint {
    stage: Stage,
    decoder: Decoder,
    /// Position of the driver's outgoing stream.
    borders: Borders,
    /// Bytes of our own on their way: handshakes, control frames and the rest of a message that got
    /// stuck. They go before anything else.
    sending: Vec<u8>,
    /// Payload of the pong owed. A newer ping replaces it (Spec: RFC 6455 §5.5.3), so pings cannot
    /// pile up.
    pong: Option<Vec<u8>>,
    ping: bool,
    /// The close frame to send, after which nothing follows.
    close: Option<(u16, String)>,
    /// A close frame was sent or is to be sent.
    said_goodbye: bool,
    /// Frames without application data that the peer sent in the second that began then.
    bare_frames: (Instant, u32),
    /// Makes masks; only clients have it.
    masks: Option<Box<Rng>>,
}

enum Stage {
    AwaitRequest(Box<RequestReader>, Arc<WsPolicy>),
    /// A good request arrived; the driver has to agree.
    Requested(Box<Request>),
    AwaitResponse(Box<ResponseReader>),
    Open,
}

/// Result of feeding bytes to an [`Endpoint`].
#[derive(Debug)]
pub(crate) enum FeedResult {
    /// All is well; this many bytes were used (fewer than given only if the sink paused).
    Used(usize),
    /// The handshake is complete, after this many bytes. A server now calls `accept` or `refuse`.
    Ready(usize),
    /// The peer said goodbye; an answer is waiting to be sent.
    PeerClosed(Option<u16>),
    /// The peer's request was refused; the answer is waiting to be sent.
    Rejected(Rejection),
    /// The server did not open a WebSocket.
    Refused(ResponseError),
    /// The peer broke the rules; a close frame is waiting to be sent.
    Broken(ProtocolError),
}

impl Endpoint {
    pub(crate) fn server(policy: Arc<WsPolicy>) -> Self {
        let decoder = Decoder::new(Role::Server, policy.message_bytes_max);
        Self::new(Stage::AwaitRequest(Box::default(), policy), decoder, None)
    }

    /// `request` is sent as soon as the transport is ready.
    pub(crate) fn client(request: Vec<u8>, response: ResponseReader, message_bytes_max: u64) -> Self {
        let decoder = Decoder::new(Role::Client, message_bytes_max);
        // The standard library's hash keys are random, which is all that masks need.
        let rng = Rng::new(RandomState::new().hash_one(0));
        let mut endpoint = Self::new(Stage::AwaitResponse(Box::new(response)), decoder, Some(Box::new(rng)));
        endpoint.sending = request;
        endpoint
    }

    fn new(stage: Stage, decoder: Decoder, masks: Option<Box<Rng>>) -> Self {
        Self {
            stage,
            decoder,
            borders: Borders::default(),
            sending: Vec::new(),
            pong: None,
            ping: false,
            close: None,
            said_goodbye: false,
            bare_frames: (Instant::ZERO, 0),
            masks,
        }
    }

    /// The `X-Forwarded-For` of a request that the driver has not agreed to yet.
    pub(crate) fn forwarded_for(&self) -> Option<&str> {
        match &self.stage {
            Stage::Requested(request) => request.forwarded_for.as_deref(),
            _ => None,
        }
    }

    /// The path of a request that the driver has not agreed to yet.
    pub(crate) fn path(&self) -> Option<&str> {
        match &self.stage {
            Stage::Requested(request) => Some(&request.path),
            _ => None,
        }
    }

    /// Takes bytes from the peer.
    pub(crate) fn feed(
        &mut self,
        now: Instant,
        input: &mut [u8],
        sink: &mut dyn FnMut(&[u8]) -> Flow,
    ) -> FeedResult {
        match &mut self.stage {
            Stage::Open => self.feed_open(now, input, sink),
            // Nothing more is wanted before the driver has agreed.
            Stage::Requested(_) => FeedResult::Used(0),
            Stage::AwaitRequest(reader, policy) => match reader.feed(input, policy) {
                Ok(None) => FeedResult::Used(input.len()),
                Ok(Some((request, used))) => {
                    self.stage = Stage::Requested(Box::new(request));
                    FeedResult::Ready(used)
                }
                Err(rejection) => {
                    self.sending = rejection.response();
                    FeedResult::Rejected(rejection)
                }
            },
            Stage::AwaitResponse(reader) => match reader.feed(input) {
                Ok(None) => FeedResult::Used(input.len()),
                Ok(Some(used)) => {
                    self.stage = Stage::Open;
                    FeedResult::Ready(used)
                }
                Err(error) => FeedResult::Refused(error),
            },
        }
    }

    fn feed_open(
        &mut self,
        now: Instant,
        input: &mut [u8],
        sink: &mut dyn FnMut(&[u8]) -> Flow,
    ) -> FeedResult {
        let (pong, mut closed) = (&mut self.pong, None);
        let result = self.decoder.feed(input, &mut |event| {
            match event {
                Event::Data(bytes) => {
                    if sink(bytes) == Flow::Pause {
                        return ControlFlow::Break(());
                    }
                }
                Event::Ping(payload) => *pong = Some(payload.to_vec()),
                Event::Close { code, .. } => closed = Some(code),
                Event::MessageEnd | Event::Pong(_) => {}
            }
            ControlFlow::Continue(())
        });
        let result = result.and_then(|used| self.count_bare_frames(now).map(|()| used));
        match (result, closed) {
            (Err(error), _) => {
                self.say_goodbye(error.close_code(), &error.to_string());
                FeedResult::Broken(error)
            }
            (Ok(_), Some(code)) => {
                self.say_goodbye(code.unwrap_or(1000), "");
                FeedResult::PeerClosed(code)
            }
            (Ok(used), None) => FeedResult::Used(used),
        }
    }

    /// Pings, pongs and empty frames cost work and are no messages, which the driver bounds.
    fn count_bare_frames(&mut self, now: Instant) -> Result<(), ProtocolError> {
        let count = self.decoder.take_bare_frames();
        if count == 0 {
            return Ok(());
        }
        let (since, before) = self.bare_frames;
        self.bare_frames = match now.since(since) < Duration::from_secs(1) {
            true => (since, before.saturating_add(count)),
            false => (now, count),
        };
        match self.bare_frames.1 > BARE_FRAMES_PER_SECOND {
            true => Err(ProtocolError::BareFrames { limit: BARE_FRAMES_PER_SECOND }),
            false => Ok(()),
        }
    }

    /// The driver takes the connection.
    pub(crate) fn accept(&mut self) {
        if let Stage::Requested(request) = &self.stage {
            self.sending = accept_response(request);
            self.stage = Stage::Open;
        }
    }

    /// Asks the peer for a sign of life.
    pub(crate) fn ping(&mut self) {
        self.ping = true;
    }

    /// Sends a close frame, unless there was one or the handshake is not complete.
    pub(crate) fn say_goodbye(&mut self, code: u16, reason: &str) {
        if matches!(self.stage, Stage::Open) && !self.said_goodbye {
            self.said_goodbye = true;
            self.close = Some((code, reason.into()));
        }
    }

    /// Bytes of our own that are to be sent now: none while the driver's stream is inside a
    /// message.
    pub(crate) fn control(&mut self) -> &[u8] {
        if self.sending.is_empty() && self.has_control() && self.borders.at_border() {
            let mut out = Vec::new();
            if let Some(payload) = self.pong.take() {
                let mask = self.mask();
                write_control(&mut out, OP_PONG, &payload, mask);
            }
            if std::mem::take(&mut self.ping) {
                let mask = self.mask();
                write_control(&mut out, OP_PING, &[], mask);
            }
            if let Some((code, reason)) = self.close.take() {
                let mask = self.mask();
                write_close(&mut out, code, &reason, mask);
            }
            self.sending = out;
        }
        &self.sending
    }

    fn mask(&mut self) -> Option<[u8; 4]> {
        self.masks.as_mut().map(|rng| rng.next_u32().to_ne_bytes())
    }

    /// `count` of the control bytes were sent.
    pub(crate) fn control_sent(&mut self, count: usize) {
        if count == self.sending.len() {
            // Gives the memory back: most connections never send another.
            self.sending = Vec::new();
        } else {
            self.sending.drain(..count);
        }
    }

    /// Something of our own waits, even if it cannot be sent now.
    pub(crate) fn has_control(&self) -> bool {
        !self.sending.is_empty() || self.pong.is_some() || self.ping || self.close.is_some()
    }

    /// `bytes` of the driver's stream were sent.
    pub(crate) fn note_sent(&mut self, bytes: &[u8]) {
        self.borders.advance(bytes);
    }

    /// Keeps the rest of a message of which a part was sent, so that it ends whole whatever becomes
    /// of the driver. Returns how many bytes were kept: none when `slices` do not hold all of it,
    /// or it is larger than any frame.
    pub(crate) fn keep_rest<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]> + Clone) -> usize {
        let Some(rest) = self.borders.rest_of_frame(slices, STUCK_BYTES_MAX) else { return 0 };
        debug_assert!(self.sending.is_empty(), "nothing of our own is sent inside a message");
        self.borders.advance(&rest);
        self.sending = rest;
        self.sending.len()
    }

    /// Number of bytes in `slices` to send before a frame of our own may follow.
    pub(crate) fn open_bytes<'a>(&self, slices: impl Iterator<Item = &'a [u8]>) -> usize {
        self.borders.open_bytes(slices)
    }
}
