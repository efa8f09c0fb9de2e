//! The conversation with a matcher, without I/O.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use throng_stdx::{Instant, Rng};
use throng_wire::matcher::{
    FRAME_BODY_BYTES_MAX, FrameSplit, Header, Kind, PROTOCOL_VERSION, REQUEST_KEY_FIELD, Reader, Status,
    Writer, event, method, split, write_bytes,
};

/// Identity of the caller, and its limits.
#[derive(Debug, Clone)]
pub struct MatcherConfig {
    /// `SrvID` of this program, which receives the notifications for its roles. It has at most one
    /// live session.
    pub srv: String,
    /// Area that the matcher must serve; empty: any.
    pub area: String,
    /// Access token; empty if the matcher requires none.
    pub token: String,
    /// Longest time of a call, including reconnects.
    pub call_timeout: Duration,
    /// Longest wait for the matcher's hello.
    pub hello_timeout: Duration,
    /// Maximum number of calls waiting for a response; further calls fail at once.
    pub calls_max: usize,
    /// Seed of the idempotency keys. It must differ between runs of a program: take it from the
    /// operating system.
    pub key_seed: u64,
}

impl MatcherConfig {
    /// Settings of the server `srv`: a timeout of 10 s, and at most 65,536 calls at a time.
    #[must_use]
    pub fn new(srv: impl Into<String>) -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        MatcherConfig {
            srv: srv.into(),
            area: String::new(),
            token: String::new(),
            call_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            calls_max: 65_536,
            key_seed: RandomState::new().hash_one("request keys"),
        }
    }

    /// Sets the access token.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        MatcherConfig { token: token.into(), ..self }
    }
}

/// Id of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

/// Failure of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The matcher refused.
    #[error("{}: {message}", status.name())]
    Refused {
        /// The reason.
        status: Status,
        /// Message for people.
        message: String,
        /// Names and JSON values, as documented for the status.
        detail: Vec<(String, String)>,
    },
    /// No response in time. A call that changes something may have been executed.
    #[error("no answer in time")]
    Timeout,
    /// Too many calls are waiting; this one was not sent.
    #[error("{0} calls already wait for responses")]
    TooMany(usize),
    /// The request is longer than a frame; it was not sent.
    #[error("a request of {0} bytes is longer than a frame")]
    TooLarge(usize),
    /// The session is over.
    #[error("the session is over")]
    Closed,
    /// The response does not conform to the catalogue.
    #[error("the response cannot be decoded")]
    BadAnswer,
}

/// Notification with its addressees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Roles of this server that it is addressed to.
    pub roles: Vec<String>,
    /// Number of the kind, one of [`EVENTS`](throng_wire::matcher::EVENTS); a later matcher may
    /// send others.
    pub kind: u32,
    /// Its content, read with [`Reader`].
    pub body: Bytes,
}

impl Notice {
    /// Its name in JSON, like `rolesJoinRoomMsg`; empty for a kind that this version does not know.
    #[must_use]
    pub fn name(&self) -> &'static str {
        event(self.kind).map_or("", |event| event.name)
    }

    /// Encodes it as an entry of a batch.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let body = self.roles.iter().fold(Writer::new(), |body, role| body.str(1, role));
        body.bytes(self.kind, &self.body).into_bytes()
    }

    /// Decodes an entry of a notify frame; `None` if it does not conform to the catalogue.
    #[must_use]
    pub fn parse(entry: &[u8]) -> Option<Notice> {
        let mut notice = Notice { roles: Vec::new(), kind: 0, body: Bytes::new() };
        for field in Reader::new(entry).ok()?.fields() {
            if field.number == 1 {
                notice.roles.push(field.str().ok()?.to_owned());
            } else {
                notice.kind = field.number;
                notice.body = Bytes::copy_from_slice(field.value);
            }
        }
        Some(notice)
    }
}

/// Event of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatcherEvent {
    /// The matcher has accepted the hello.
    Connected {
        /// True if the stream of notifications continues without a gap; false on the first
        /// connection.
        resumed: bool,
    },
    /// A call ended.
    Answered {
        /// The call.
        call: CallId,
        /// Body of the response.
        result: Result<Bytes, CallError>,
    },
    /// A notification. Each is delivered once, in order; see [`MatcherEvent::Gap`].
    Notice(Notice),
    /// Notifications are missing: call `ListMine` for the current state. Later notifications are
    /// newer.
    Gap,
    /// The connection was lost or refused; connect again.
    Lost,
    /// The matcher refused the session; it is over.
    Refused {
        /// Reason.
        status: Status,
        /// Message for people.
        message: String,
    },
}

struct Waiting {
    /// The whole frame, to be sent again on another connection.
    frame: Vec<u8>,
    deadline: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Down,
    /// The hello was queued.
    Greeting {
        until: Instant,
    },
    Open,
    Over,
}

/// A conversation with a matcher; one input, then drain the outputs.
///
/// Calls outlive connections: unanswered calls are sent again after the next hello. Calls that
/// change something carry an idempotency key, so a call that is sent twice has one effect.
///
/// ```
/// use throng_client::{Instant, MatcherConfig, MatcherSession};
/// use throng_wire::matcher::{Method, Writer};
///
/// let now = Instant::ZERO;
/// let mut session = MatcherSession::new(MatcherConfig::new("game_1"));
/// session.call(now, Method::PING, Writer::new())?;
/// session.handle_connected(now);
/// let mut bytes = Vec::new();
/// session.poll_transmit(&mut bytes);
/// assert_eq!(bytes[4], 3, "a hello; the call waits for the matcher's");
/// # Ok::<(), throng_client::CallError>(())
/// ```
pub struct MatcherSession {
    config: MatcherConfig,
    state: State,
    rng: Rng,
    next_id: u64,
    calls: BTreeMap<u64, Waiting>,
    input: Vec<u8>,
    out: Vec<u8>,
    events: VecDeque<MatcherEvent>,
    /// The stream of notifications and the last number that arrived; 0 before the first hello.
    epoch: u64,
    seq: u64,
    /// Number to acknowledge behind the events before it.
    acks: VecDeque<(usize, u64)>,
    /// Numbers of events taken and queued since the session began.
    taken: usize,
    queued: usize,
}

impl MatcherSession {
    /// Creates a session that is not connected yet.
    #[must_use]
    pub fn new(config: MatcherConfig) -> Self {
        MatcherSession {
            state: State::Down,
            rng: Rng::new(config.key_seed),
            config,
            next_id: 1,
            calls: BTreeMap::new(),
            input: Vec::new(),
            out: Vec::new(),
            events: VecDeque::new(),
            epoch: 0,
            seq: 0,
            acks: VecDeque::new(),
            taken: 0,
            queued: 0,
        }
    }

    /// Reports that the transport is connected, and queues the hello.
    pub fn handle_connected(&mut self, now: Instant) {
        if self.state == State::Over {
            return;
        }
        self.input.clear();
        self.out.clear();
        self.state = State::Greeting { until: now + self.config.hello_timeout };
        let hello = Writer::new()
            .u64(1, PROTOCOL_VERSION)
            .str(2, &self.config.srv)
            .str(3, &self.config.area)
            .str(4, &self.config.token)
            .u64(5, self.seq)
            .u64(6, self.epoch);
        Header { kind: Kind::Hello, ..Header::default() }.write(&mut self.out, &hello.into_bytes());
    }

    /// Takes bytes as they arrived, cut anywhere.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        if matches!(self.state, State::Down | State::Over) {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let mut used = 0;
        while !matches!(self.state, State::Down | State::Over) {
            match split(&input[used..], FRAME_BODY_BYTES_MAX * 2) {
                Ok(FrameSplit::Whole { header, body, used: size }) => {
                    used += size;
                    if self.frame(header, body).is_none() {
                        self.lose();
                    }
                }
                Ok(FrameSplit::Partial { .. }) => break,
                Err(_) => self.lose(),
            }
        }
        if !matches!(self.state, State::Down | State::Over) {
            input.drain(..used);
            self.input = input;
        }
    }

    /// Reports that the transport ended or could not be opened.
    pub fn handle_closed(&mut self) {
        self.lose();
    }

    /// Fails calls whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.state, State::Greeting { until } if until <= now) {
            self.lose();
        }
        let late: Vec<u64> =
            self.calls.iter().filter(|(_, call)| call.deadline <= now).map(|(id, _)| *id).collect();
        for id in late {
            self.calls.remove(&id);
            self.push(MatcherEvent::Answered { call: CallId(id), result: Err(CallError::Timeout) });
        }
    }

    /// Calls a method. [`MatcherEvent::Answered`] reports its result exactly once.
    ///
    /// # Errors
    /// [`CallError::TooMany`], [`CallError::TooLarge`] and [`CallError::Closed`]; in each case
    /// nothing was sent.
    pub fn call(&mut self, now: Instant, number: u16, body: Writer) -> Result<CallId, CallError> {
        if self.state == State::Over {
            return Err(CallError::Closed);
        }
        if self.calls.len() >= self.config.calls_max {
            return Err(CallError::TooMany(self.calls.len()));
        }
        let mut body = body.into_bytes();
        if method(number).is_some_and(|method| method.mutates) {
            let mut key = [0; 16];
            self.rng.fill(&mut key);
            write_bytes(&mut body, REQUEST_KEY_FIELD, &key);
        }
        if body.len() > FRAME_BODY_BYTES_MAX {
            return Err(CallError::TooLarge(body.len()));
        }
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = Vec::new();
        Header { kind: Kind::Request, code: number, id, ..Header::default() }.write(&mut frame, &body);
        if self.state == State::Open {
            self.out.extend_from_slice(&frame);
        }
        self.calls.insert(id, Waiting { frame, deadline: now + self.config.call_timeout });
        Ok(CallId(id))
    }

    /// Appends the bytes to send to `buf`. Returns false if there were none.
    pub fn poll_transmit(&mut self, buf: &mut Vec<u8>) -> bool {
        while let Some((_, seq)) = self.acks.front().copied().filter(|(at, _)| *at <= self.taken) {
            self.acks.pop_front();
            let is_last = self.acks.front().is_none_or(|(at, _)| *at > self.taken);
            if self.state == State::Open && is_last {
                Header { kind: Kind::NotifyAck, id: seq, ..Header::default() }.write(&mut self.out, b"");
            }
        }
        buf.append(&mut self.out);
        !buf.is_empty()
    }

    /// Next event.
    pub fn poll_event(&mut self) -> Option<MatcherEvent> {
        let event = self.events.pop_front()?;
        self.taken += 1;
        Some(event)
    }

    /// Earliest time [`handle_timeout`](Self::handle_timeout) has work.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let greeting = if let State::Greeting { until } = self.state { Some(until) } else { None };
        // All calls have the same time limit, so that the oldest is due first.
        let call = self.calls.values().next().map(|call| call.deadline);
        greeting.into_iter().chain(call).min()
    }

    /// True if the matcher has refused the session for good.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    fn push(&mut self, event: MatcherEvent) {
        self.queued += 1;
        self.events.push_back(event);
    }

    fn lose(&mut self) {
        if matches!(self.state, State::Down | State::Over) {
            return;
        }
        self.state = State::Down;
        self.input.clear();
        self.out.clear();
        self.push(MatcherEvent::Lost);
    }

    /// Handles a frame; `None` if it violates the protocol.
    fn frame(&mut self, header: Header, body: &[u8]) -> Option<()> {
        match header.kind {
            Kind::HelloAck => self.hello_ack(body)?,
            Kind::Response => {
                if self.calls.remove(&header.id).is_some() {
                    let result = read_answer(header.code, body);
                    self.push(MatcherEvent::Answered { call: CallId(header.id), result });
                }
            }
            Kind::Notify => {
                for entry in Reader::new(body).ok()?.all(1) {
                    let notice = Notice::parse(entry)?;
                    self.push(MatcherEvent::Notice(notice));
                }
                self.seq = header.id;
                self.acks.push_back((self.queued, header.id));
            }
            Kind::Goaway => {
                let reason = Reader::new(body).ok()?;
                let status = status_of(reason.u64(1));
                // The matcher stops, or does not serve its area at the moment.
                let is_passing =
                    status == Status::Draining || status == Status::Unavailable && self.epoch != 0;
                if is_passing {
                    self.lose();
                    return Some(());
                }
                let message = reason.str(2).ok()?.to_owned();
                self.end();
                self.push(MatcherEvent::Refused { status, message });
            }
            Kind::Ping => {
                Header { kind: Kind::Pong, id: header.id, ..Header::default() }.write(&mut self.out, body)
            }
            Kind::Pong => {}
            Kind::Request | Kind::Hello | Kind::NotifyAck => return None,
        }
        Some(())
    }

    fn hello_ack(&mut self, body: &[u8]) -> Option<()> {
        let ack = Reader::new(body).ok()?;
        let (epoch, resumed) = (ack.u64(3), ack.u64(6) == 1);
        let is_first = self.epoch == 0;
        if epoch != self.epoch {
            (self.epoch, self.seq) = (epoch, ack.u64(4).saturating_sub(1));
            self.acks.clear();
        }
        if let State::Greeting { .. } = self.state {
            self.state = State::Open;
            self.push(MatcherEvent::Connected { resumed });
            for call in self.calls.values() {
                self.out.extend_from_slice(&call.frame);
            }
        }
        if !is_first && !resumed {
            self.push(MatcherEvent::Gap);
        }
        Some(())
    }

    fn end(&mut self) {
        self.state = State::Over;
        for (id, _) in std::mem::take(&mut self.calls) {
            self.push(MatcherEvent::Answered { call: CallId(id), result: Err(CallError::Closed) });
        }
    }
}

fn status_of(code: u64) -> Status {
    u16::try_from(code).ok().and_then(Status::from_code).unwrap_or(Status::Internal)
}

impl CallError {
    /// Returns the body of a response with `Status::Ok`, or the refusal that the body describes.
    ///
    /// # Errors
    /// [`CallError::Refused`], and [`CallError::BadAnswer`] for a body that cannot be decoded.
    pub fn check(status: Status, body: Vec<u8>) -> Result<Bytes, CallError> {
        if status == Status::Ok { Ok(body.into()) } else { read_answer(status as u16, &body) }
    }
}

pub(crate) fn read_answer(code: u16, body: &[u8]) -> Result<Bytes, CallError> {
    if code == Status::Ok as u16 {
        return Ok(Bytes::copy_from_slice(body));
    }
    let reader = Reader::new(body).map_err(|_| CallError::BadAnswer)?;
    let detail = reader.all(2).map(|entry| {
        let entry = Reader::new(entry).ok()?;
        let value = std::str::from_utf8(entry.bytes(2)).ok()?;
        Some((entry.str(1).ok()?.to_owned(), value.to_owned()))
    });
    Err(CallError::Refused {
        status: status_of(code.into()),
        message: reader.str(1).map_err(|_| CallError::BadAnswer)?.to_owned(),
        detail: detail.collect::<Option<_>>().ok_or(CallError::BadAnswer)?,
    })
}
