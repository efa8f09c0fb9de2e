//! Requests on a schedule, or as fast as they are answered, over kept-alive HTTP/1.1 connections,
//! with TLS or without.
//!
//! One thread and one epoll loop. Bodies that come back are dropped in the kernel, unread, so that
//! as much as possible of the machine is left to the server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, nanoseconds, now_ns};
use crate::interrupt;
use crate::poll::Poller;
use crate::probe::Probe;
use crate::socket::Taken;
use crate::stats::Times;

use super::http2::{Answered, Http2};
use super::wire::{self, Wire};

/// A request without an answer for this long has failed.
const TIMEOUT_NS: u64 = 30_000_000_000;
/// Interval of the search for requests without a response.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Bytes that one connection takes before the others have their turn.
const TURN_BYTES: usize = 8 << 20;
/// Bytes of HTTP/2 that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// Connections that an open loop opens at most.
const CONNECTIONS_MAX: usize = 1024;

/// Schedule of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// A fixed rate, independent of the responses; latency counts from the due time of each
    /// request.
    Open {
        /// Requests a second.
        rate: f64,
    },
    /// The next when the last was answered, on each of so many connections.
    Closed {
        /// Connections.
        connections: usize,
    },
}

/// Requests to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) addr: SocketAddr,
    /// The server speaks TLS.
    pub(crate) tls: bool,
    /// Requests without bodies go over HTTP/2.
    pub(crate) http2: bool,
    pub(crate) pace: Pace,
    /// Duration for which new requests are sent.
    pub(crate) window: Duration,
    /// Largest number of requests.
    pub(crate) count: u64,
}

/// Encoded request: the head and the first bytes of the body, then a repeated block for the rest.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Option<Arc<[u8]>>,
    pub(crate) repeat: usize,
}

impl Outgoing {
    /// A request without body.
    pub(crate) fn set_head(&mut self, head: &[u8]) {
        self.head.clear();
        self.head.extend_from_slice(head);
        self.body = None;
        self.repeat = 0;
    }

    /// Appends the body.
    pub(crate) fn set_body(&mut self, body: Arc<[u8]>) {
        (self.body, self.repeat) = (Some(body), 1);
    }

    fn len(&self) -> u64 {
        let body = self.body.as_ref().map_or(0, |body| body.len() * self.repeat);
        (self.head.len() + body) as u64
    }

    /// Bytes that remain after `sent` bytes.
    fn rest(&self, sent: u64) -> &[u8] {
        let sent = usize::try_from(sent).unwrap_or(usize::MAX);
        if sent < self.head.len() {
            return &self.head[sent..];
        }
        match &self.body {
            Some(body) if !body.is_empty() && sent - self.head.len() < body.len() * self.repeat => {
                &body[(sent - self.head.len()) % body.len()..]
            }
            _ => &[],
        }
    }
}

/// Results of a run.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// From due (open loop) or sent (closed loop) to the end of the answer.
    pub(crate) latency: Times,
    /// Due to sent.
    pub(crate) lateness: Times,
    /// Answers with status 200 to 399.
    pub(crate) succeeded: u64,
    /// Failed requests by status; 0 for a connection that broke or was silent for 30 s.
    pub(crate) failed: BTreeMap<u16, u64>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// From the first request to the last answer.
    pub(crate) took: Duration,
    /// CPU time of the server meanwhile.
    pub(crate) server_cpu: Option<Duration>,
    /// CPU time of the generator meanwhile.
    pub(crate) own_cpu: Duration,
    /// Bytes that the server gave to the disk meanwhile.
    pub(crate) disk_bytes: Option<u64>,
}

impl Seen {
    /// Adds the results of another run.
    pub(crate) fn add(&mut self, other: &Seen) {
        self.latency.add(&other.latency);
        self.lateness.add(&other.lateness);
        self.succeeded += other.succeeded;
        for (status, count) in &other.failed {
            *self.failed.entry(*status).or_default() += count;
        }
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.took += other.took;
        self.server_cpu = match (self.server_cpu, other.server_cpu) {
            (Some(mine), Some(theirs)) => Some(mine + theirs),
            (mine, theirs) => mine.or(theirs),
        };
        self.own_cpu += other.own_cpu;
        self.disk_bytes = match (self.disk_bytes, other.disk_bytes) {
            (Some(mine), Some(theirs)) => Some(mine + theirs),
            (mine, theirs) => mine.or(theirs),
        };
    }

    pub(crate) fn count(&self) -> u64 {
        self.succeeded + self.failed.values().sum::<u64>()
    }

    pub(crate) fn success(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.succeeded as f64 / self.count() as f64 }
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.count() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// CPU time of the server for one request.
    pub(crate) fn cpu_ms(&self) -> Option<f64> {
        Some(self.server_cpu?.as_secs_f64() * 1e3 / (self.count().max(1) as f64))
    }

    fn fail(&mut self, status: u16) {
        *self.failed.entry(status).or_default() += 1;
    }
}

/// Sends requests, which `fill` makes from their numbers, and waits for the answers.
pub(crate) fn run(plan: &Plan, probe: &Probe, fill: &mut dyn FnMut(u64, &mut Outgoing)) -> io::Result<Seen> {
    let mut load = Load {
        plan: *plan,
        tls: if plan.tls { Some(wire::tls_config(plan.http2)?) } else { None },
        poller: Poller::new()?,
        connections: Vec::new(),
        idle: Vec::new(),
        busy: 0,
        launched: 0,
        seen: Seen::default(),
        fill,
    };
    load.run(probe)?;
    Ok(load.seen)
}

struct Load<'f> {
    plan: Plan,
    tls: Option<Arc<rustls::ClientConfig>>,
    poller: Poller,
    connections: Vec<Connection>,
    idle: Vec<usize>,
    busy: usize,
    launched: u64,
    seen: Seen,
    fill: &'f mut dyn FnMut(u64, &mut Outgoing),
}

impl Load<'_> {
    fn run(&mut self, probe: &Probe) -> io::Result<()> {
        if let Pace::Closed { connections } = self.plan.pace {
            for _ in 0..connections {
                let index = self.connect()?;
                self.idle.push(index);
            }
        }
        let (cpu, own, disk) = (probe.cpu(), clock::thread_cpu(), probe.disk_bytes());
        let start = now_ns();
        let end = start + nanoseconds(self.plan.window);
        let mut looked = start;
        loop {
            let now = now_ns();
            let next_due = self.launch(start, end, now)?;
            if self.busy == 0 && next_due.is_none() {
                break;
            }
            let wait = next_due.map_or(LOOK, |due| Duration::from_nanos(due.saturating_sub(now)).min(LOOK));
            let ready: Vec<_> = self.poller.wait(wait)?.collect();
            for ready in ready {
                self.advance(ready.token, ready.readable)?;
            }
            let now = now_ns();
            if now - looked > nanoseconds(LOOK) {
                looked = now;
                self.end_silent_ones(now)?;
            }
        }
        self.seen.took = Duration::from_nanos(now_ns() - start);
        self.seen.own_cpu = clock::thread_cpu().saturating_sub(own);
        self.seen.server_cpu = probe.cpu().zip(cpu).map(|(after, before)| after.saturating_sub(before));
        self.seen.disk_bytes =
            probe.disk_bytes().zip(disk).map(|(after, before)| after.saturating_sub(before));
        Ok(())
    }

    /// Sends the due requests; returns the due time of the next one, if there is one.
    fn launch(&mut self, start: u64, end: u64, now: u64) -> io::Result<Option<u64>> {
        let Plan { pace, count, .. } = self.plan;
        let more = |launched: u64| launched < count && !interrupt::requested();
        match pace {
            Pace::Open { rate } => {
                let due = |number: u64| start + (number as f64 * 1e9 / rate) as u64;
                while more(self.launched) && due(self.launched) < end {
                    let at = due(self.launched);
                    if at > now || self.idle.is_empty() && self.connections.len() >= CONNECTIONS_MAX {
                        return Ok(Some(at.max(now + 1_000)));
                    }
                    let index = match self.idle.pop() {
                        Some(index) => index,
                        None => self.connect()?,
                    };
                    self.send(index, at)?;
                }
            }
            Pace::Closed { .. } => {
                while more(self.launched) && now < end {
                    let Some(index) = self.idle.pop() else { break };
                    self.send(index, now_ns())?;
                }
            }
        }
        Ok(None)
    }

    fn connect(&mut self) -> io::Result<usize> {
        let index = self.connections.len();
        let connection = Connection::new(&self.plan, self.tls.as_ref())?;
        self.poller.add(connection.stream.raw(), index, true, false)?;
        self.connections.push(connection);
        Ok(index)
    }

    fn send(&mut self, index: usize, due: u64) -> io::Result<()> {
        let connection = &mut self.connections[index];
        (self.fill)(self.launched, &mut connection.outgoing);
        self.launched += 1;
        self.busy += 1;
        let now = now_ns();
        connection.begin(due, now)?;
        self.seen.lateness.record_between(due, now);
        self.seen.bytes_out += connection.outgoing.len();
        self.advance(index, false)
    }

    fn advance(&mut self, index: usize, readable: bool) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let step = connection.write(&self.poller, index).and_then(|()| match readable {
            false => Ok(Step::Waiting),
            true => match connection.read()? {
                // The handshake may have ended with what was read.
                Step::Waiting => connection.write(&self.poller, index).map(|()| Step::Waiting),
                answered => Ok(answered),
            },
        });
        match step {
            Ok(Step::Waiting) => {}
            Ok(Step::Answered { status, bytes, closes }) => {
                self.seen.latency.record_between(connection.due, now_ns());
                self.seen.bytes_in += bytes;
                if (200..400).contains(&status) {
                    self.seen.succeeded += 1;
                } else {
                    self.seen.fail(status);
                }
                self.busy -= 1;
                connection.is_busy = false;
                if closes {
                    self.replace(index)?;
                }
                self.idle.push(index);
            }
            Err(_) => self.broke(index)?,
        }
        Ok(())
    }

    fn broke(&mut self, index: usize) -> io::Result<()> {
        if self.connections[index].is_busy {
            self.seen.fail(0);
            self.busy -= 1;
            self.idle.push(index);
        }
        self.replace(index)
    }

    fn replace(&mut self, index: usize) -> io::Result<()> {
        let connection = Connection::new(&self.plan, self.tls.as_ref())?;
        self.poller.add(connection.stream.raw(), index, true, false)?;
        self.connections[index] = connection;
        Ok(())
    }

    fn end_silent_ones(&mut self, now: u64) -> io::Result<()> {
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if connection.is_busy && now.saturating_sub(connection.moved) > TIMEOUT_NS {
                self.broke(index)?;
            }
        }
        Ok(())
    }
}

enum Step {
    Waiting,
    Answered { status: u16, bytes: u64, closes: bool },
}

struct Connection {
    stream: Wire,
    http2: Option<Box<Http2>>,
    outgoing: Outgoing,
    sent: u64,
    /// True if the poller reports room to write.
    watches_room: bool,
    is_busy: bool,
    due: u64,
    /// Time of the last progress.
    moved: u64,
    head: Vec<u8>,
    /// Remaining bytes of the body, once the head has arrived.
    left: Option<u64>,
    status: u16,
    bytes: u64,
    closes: bool,
}

impl Connection {
    fn new(plan: &Plan, tls: Option<&Arc<rustls::ClientConfig>>) -> io::Result<Self> {
        Ok(Self {
            stream: Wire::connect(plan.addr, tls)?,
            http2: plan.http2.then(Box::default),
            outgoing: Outgoing::default(),
            sent: 0,
            watches_room: false,
            is_busy: false,
            due: 0,
            moved: 0,
            head: Vec::new(),
            left: None,
            status: 0,
            bytes: 0,
            closes: false,
        })
    }

    fn begin(&mut self, due: u64, now: u64) -> io::Result<()> {
        if let Some(http2) = &mut self.http2 {
            let tls = matches!(self.stream, Wire::Tls { .. });
            self.outgoing.head = http2.request(&self.outgoing.head, tls)?;
        }
        self.sent = 0;
        self.is_busy = true;
        (self.due, self.moved) = (due, now);
        self.head.clear();
        self.left = None;
        self.bytes = 0;
        Ok(())
    }

    fn write(&mut self, poller: &Poller, token: usize) -> io::Result<()> {
        let mut turn = TURN_BYTES;
        let full = loop {
            let rest = self.outgoing.rest(self.sent);
            if rest.is_empty() {
                break false;
            }
            let count = self.stream.write(rest)?;
            self.sent += count as u64;
            if count == 0 || turn < count {
                break true;
            }
            turn -= count;
            self.moved = now_ns();
        };
        // Until the server has answered the handshake, nothing waits for room.
        let full = self.stream.flush()? || full && !self.stream.is_shaking_hands();
        if full != self.watches_room {
            poller.modify(self.stream.raw(), token, true, full)?;
            self.watches_room = full;
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<Step> {
        if self.http2.is_some() {
            return self.read_http2();
        }
        if self.left.is_none() && !self.read_head()? {
            return Ok(Step::Waiting);
        }
        // The poller does not know of bytes that a session has decrypted: they are taken to their
        // end.
        let mut turn = if matches!(self.stream, Wire::Tls { .. }) { u64::MAX } else { TURN_BYTES as u64 };
        let left = self.left.get_or_insert(0);
        while *left > 0 && turn > 0 {
            let wanted = usize::try_from((*left).min(turn)).unwrap_or(usize::MAX);
            match self.stream.discard(wanted)? {
                Taken::Bytes(count) => {
                    *left -= count as u64;
                    turn -= count as u64;
                    self.bytes += count as u64;
                }
                Taken::Empty => break,
                Taken::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        if *left > 0 {
            self.moved = now_ns();
            return Ok(Step::Waiting);
        }
        if !self.is_busy {
            // An answer that nobody asked for.
            return Err(io::ErrorKind::InvalidData.into());
        }
        // An early refusal leaves the rest of the request unsent: the connection is of no more use.
        let unsent = !self.outgoing.rest(self.sent).is_empty();
        Ok(Step::Answered { status: self.status, bytes: self.bytes, closes: self.closes || unsent })
    }

    fn read_http2(&mut self) -> io::Result<Step> {
        let Some(http2) = &mut self.http2 else { return Ok(Step::Waiting) };
        let mut buf = [0; READ_BYTES];
        let mut step = Step::Waiting;
        // Up to the end: the poller does not know of bytes that a session has decrypted.
        loop {
            let count = match self.stream.read(&mut buf)? {
                Taken::Bytes(count) => count,
                Taken::Empty => break,
                Taken::End => match &mut step {
                    Step::Answered { closes, .. } => {
                        *closes = true;
                        break;
                    }
                    Step::Waiting => return Err(io::ErrorKind::UnexpectedEof.into()),
                },
            };
            self.moved = now_ns();
            if let Some(Answered { status, bytes, closes }) = http2.take(&buf[..count])? {
                step = Step::Answered { status, bytes, closes };
            }
        }
        match step {
            Step::Answered { .. } if !self.is_busy => Err(io::ErrorKind::InvalidData.into()),
            step => Ok(step),
        }
    }

    /// Reads up to the end of the head; whether it is there.
    fn read_head(&mut self) -> io::Result<bool> {
        let mut buf = [0; 4096];
        loop {
            match self.stream.read(&mut buf)? {
                Taken::Bytes(count) => self.head.extend_from_slice(&buf[..count]),
                Taken::Empty => return Ok(false),
                Taken::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            self.moved = now_ns();
            while let Some(end) = find(&self.head, b"\r\n\r\n") {
                let head = Head::parse(&self.head[..end])?;
                let body = (self.head.len() - end - 4) as u64;
                if head.status == 100 {
                    self.head.drain(..end + 4);
                    continue;
                }
                if body > head.length {
                    return Err(io::Error::other("more than the answer"));
                }
                (self.status, self.closes) = (head.status, head.closes);
                self.bytes = self.head.len() as u64;
                self.left = Some(head.length - body);
                return Ok(true);
            }
            if self.head.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("an endless head"));
            }
        }
    }
}

struct Head {
    status: u16,
    length: u64,
    closes: bool,
}

impl Head {
    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("no status line"))?;
        let (mut length, mut closes) = (None, false);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().ok();
            } else if name.eq_ignore_ascii_case("connection") {
                closes = value.eq_ignore_ascii_case("close");
            }
        }
        if matches!(status, 100..200 | 204 | 304) {
            length = Some(0);
        }
        // Caches say how long their answers are; without that the end of one could only be found by
        // reading it.
        let length = length.ok_or_else(|| io::Error::other("an answer without Content-Length"))?;
        Ok(Self { status, length, closes })
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    /// Answers each request of each connection with `answer`.
    fn server(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let addr = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("accept");
                std::thread::spawn(move || {
                    let (mut buf, mut held) = ([0; 1024], Vec::new());
                    while let Ok(count @ 1..) = stream.read(&mut buf) {
                        held.extend_from_slice(&buf[..count]);
                        while let Some(end) = find(&held, b"\r\n\r\n") {
                            held.drain(..end + 4);
                            let _ = stream.write_all(answer);
                        }
                    }
                });
            }
        });
        addr
    }

    /// Answers the requests of each connection over TLS, each with `bytes` bytes.
    fn tls_server(bytes: usize) -> SocketAddr {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .expect("a key that fits");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let addr = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("accept");
                let session = rustls::ServerConnection::new(Arc::clone(&config)).expect("a session");
                std::thread::spawn(move || {
                    let mut stream = rustls::StreamOwned::new(session, stream);
                    let (mut buf, mut held) = ([0; 65536], Vec::new());
                    while let Ok(count @ 1..) = stream.read(&mut buf) {
                        held.extend_from_slice(&buf[..count]);
                        // A request has a body of 200,000 bytes.
                        while let Some(end) = find(&held, b"\r\n\r\n").map(|head| head + 4 + 200_000)
                            && held.len() >= end
                        {
                            held.drain(..end);
                            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
                            let _ = stream.write_all(&[head.as_bytes(), &vec![7; bytes]].concat());
                        }
                    }
                });
            }
        });
        addr
    }

    #[test]
    fn requests_go_over_tls() {
        for pace in [Pace::Closed { connections: 3 }, Pace::Open { rate: 1000.0 }] {
            let addr = tls_server(300_000);
            let plan =
                Plan { addr, tls: true, http2: false, pace, window: Duration::from_secs(120), count: 20 };
            let probe = Probe::new(None, None).expect("no process");
            let body: Arc<[u8]> = vec![1; 200_000].into();
            let seen = run(&plan, &probe, &mut |_, out| {
                out.set_head(b"PUT / HTTP/1.1\r\nContent-Length: 200000\r\n\r\n");
                out.set_body(Arc::clone(&body));
            });
            let seen = seen.expect("loopback");
            assert_eq!((seen.succeeded, seen.count()), (20, 20), "{:?}", seen.failed);
            assert!(seen.bytes_in > 20 * 300_000, "{}", seen.bytes_in);
        }
    }

    fn check(pace: Pace, answer: &'static [u8], count: u64) -> Seen {
        let plan = Plan {
            addr: server(answer),
            tls: false,
            http2: false,
            pace,
            window: Duration::from_secs(120),
            count,
        };
        let probe = Probe::new(None, None).expect("no process");
        run(&plan, &probe, &mut |_, out| out.set_head(b"GET / HTTP/1.1\r\n\r\n")).expect("loopback")
    }

    #[test]
    fn requests_are_answered_in_both_paces() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        let seen = check(Pace::Closed { connections: 3 }, answer, 100);
        assert_eq!((seen.succeeded, seen.bytes_in), (100, 100 * answer.len() as u64));
        let seen = check(Pace::Open { rate: 1000.0 }, answer, 100);
        assert_eq!((seen.succeeded, seen.latency.count(), seen.success()), (100, 100, 1.0));
        assert!(seen.took >= Duration::from_millis(99), "the schedule was kept");
    }

    #[test]
    fn what_goes_wrong_is_counted() {
        let seen = check(
            Pace::Closed { connections: 2 },
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            10,
        );
        assert_eq!((seen.succeeded, seen.failed.get(&404)), (0, Some(&10)));
        let seen = check(Pace::Closed { connections: 1 }, b"HTTP/1.1 200 OK\r\n\r\n", 3);
        assert_eq!(seen.failed.get(&0), Some(&3), "no length: {seen:?}");
    }
}
