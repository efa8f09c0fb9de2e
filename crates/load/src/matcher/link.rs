//! One connection and the workers that share it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use throng_wire::fields;
use throng_wire::matcher::{
    Event, FrameSplit, Header, Kind, PROTOCOL_VERSION, Reader, Status, Writer, event, split,
};

use super::worker::{Test, Worker};
use super::{Part, Plan, RunError};

/// Longest silence before the run counts as broken.
const PATIENCE: Duration = Duration::from_secs(10);
/// Notifications are acknowledged after so many frames.
const ACK_FRAMES: u64 = 16;
/// Frames that the matcher may send: its own bound on requests is 1 MiB, answers may be longer.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// Takes an answer; an error ends the run.
pub(super) type OnAnswer<'a> = dyn FnMut(Header, Status, &[u8]) -> Result<(), RunError> + 'a;

pub(crate) struct Link {
    socket: TcpStream,
    srv: String,
    pub(super) out: Vec<u8>,
    input: Vec<u8>,
    have: usize,
    epoch: u64,
    last_seq: u64,
    frames: u64,
    notices: u64,
    bytes_in: u64,
    /// Roles whose match is ready with the time of the notification, if they are recorded.
    pub(super) matched: Option<Vec<(Vec<u8>, Instant)>>,
}

impl Link {
    pub(crate) fn connect(plan: &Plan, index: usize) -> Result<Link, RunError> {
        let socket = TcpStream::connect(plan.addr)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let srv = format!("game_{}_{}", plan.area, index + 1);
        let mut link = Link {
            socket,
            srv,
            out: Vec::new(),
            input: vec![0; 1 << 19],
            have: 0,
            epoch: 0,
            last_seq: 0,
            frames: 0,
            notices: 0,
            bytes_in: 0,
            matched: None,
        };
        let hello = Writer::new()
            .u64(1, PROTOCOL_VERSION)
            .str(2, &link.srv)
            .str(3, &plan.area)
            .str(4, &plan.token)
            .u64(7, 1)
            .into_bytes();
        Header { kind: Kind::Hello, ..Header::default() }.write(&mut link.out, &hello);
        link.send()?;
        while link.epoch == 0 {
            link.receive(&mut |_, _, _| Ok(()))?;
        }
        Ok(link)
    }

    /// Runs the workers until `until`; counts what ends between `from` and then.
    pub(crate) fn run(
        mut self,
        plan: &Plan,
        test: &'static Test,
        mut workers: Vec<Worker>,
        from: Instant,
        until: Instant,
    ) -> Result<Part, RunError> {
        let mut part = Part::new();
        let mut now = Instant::now();
        let mut sent_at = vec![now; workers.len()];
        let mut running = workers.len();
        for (index, worker) in workers.iter_mut().enumerate() {
            worker.write_request(test, index as u64, &self.srv, &mut self.out);
        }
        while running > 0 {
            self.send()?;
            let srv = std::mem::take(&mut self.srv);
            let mut next = std::mem::take(&mut self.out);
            let mut arrived = None;
            let result = self.receive(&mut |header, status, body| {
                // One look at the clock per read: what arrived together arrived at one time.
                let arrived = *arrived.get_or_insert_with(Instant::now);
                now = arrived;
                let index = header.id as usize;
                let Some(worker) = workers.get_mut(index) else {
                    return Err(RunError::BadFrame(format!(
                        "an answer to request {index}, which was not sent"
                    )));
                };
                let counts = arrived >= from;
                if counts {
                    part.requests += 1;
                    let latency = arrived.duration_since(sent_at[index]).as_micros() as u64;
                    // Within the bounds: a request that takes longer than a minute has failed the
                    // run.
                    let _ = part.latencies.record(latency.max(1));
                }
                if status != Status::Ok && !worker.tolerates(test, status) {
                    let message =
                        Reader::new(body).ok().and_then(|body| body.str(1).ok()).unwrap_or_default();
                    if !plan.keep_going {
                        return Err(RunError::Refused {
                            test: test.name.to_owned(),
                            step: worker.step_name(test),
                            status: status.name().to_owned(),
                            message: message.to_owned(),
                        });
                    }
                    *part.refusals.entry(status.name()).or_default() += 1;
                }
                let ended = worker.answered(test, status, body)?;
                if ended && counts {
                    part.transactions += 1;
                }
                if ended && arrived >= until {
                    running -= 1;
                    return Ok(());
                }
                sent_at[index] = arrived;
                worker.write_request(test, index as u64, &srv, &mut next);
                Ok(())
            });
            self.srv = srv;
            next.append(&mut self.out);
            self.out = next;
            result?;
        }
        part.notices = self.notices;
        part.bytes_in = self.bytes_in;
        Ok(part)
    }

    pub(super) fn send(&mut self) -> Result<(), RunError> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads incoming frames for a time, while no request is in flight.
    pub(super) fn read_for(&mut self, time: Duration) -> Result<(), RunError> {
        /// The kernel ends a wait up to an eighth of its length late.
        const STEP: Duration = Duration::from_millis(20);
        let until = Instant::now() + time;
        while let Some(rest) = until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            self.receive_for(rest.min(STEP), &mut |_, _, _| Ok(()))?;
            self.send()?;
        }
        Ok(())
    }

    /// As [`receive`](Link::receive), for a time at most.
    pub(super) fn receive_for(&mut self, time: Duration, answer: &mut OnAnswer<'_>) -> Result<(), RunError> {
        self.socket.set_read_timeout(Some(time))?;
        let result = self.receive(answer);
        self.socket.set_read_timeout(Some(PATIENCE))?;
        match result {
            Err(RunError::Io(error))
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// Waits for bytes, passes every complete response to `answer`, and decodes notifications.
    pub(super) fn receive(&mut self, answer: &mut OnAnswer<'_>) -> Result<(), RunError> {
        if self.have == self.input.len() {
            self.input.resize(2 * self.have, 0);
        }
        let count = self.socket.read(&mut self.input[self.have..])?;
        if count == 0 {
            return Err(RunError::Goaway("the matcher closed the connection".to_owned()));
        }
        self.have += count;
        self.bytes_in += count as u64;
        let mut at = 0;
        loop {
            let frame = split(&self.input[at..self.have], FRAME_BYTES_MAX);
            match frame.map_err(|error| RunError::BadFrame(error.to_string()))? {
                FrameSplit::Partial { .. } => break,
                FrameSplit::Whole { header, body, used } => {
                    match header.kind {
                        Kind::Response => {
                            let status = Status::from_code(header.code).ok_or_else(|| {
                                RunError::BadFrame(format!("status {} is unknown", header.code))
                            })?;
                            answer(header, status, body)?;
                        }
                        Kind::Notify => {
                            let count = check_batch(body)?;
                            if let Some(matched) = &mut self.matched {
                                note_matches(body, matched);
                            }
                            if header.id != self.last_seq + count {
                                let what =
                                    format!("{count} entries up to {} behind {}", header.id, self.last_seq);
                                return Err(RunError::BadFrame(format!("a gap in notifications: {what}")));
                            }
                            self.last_seq = header.id;
                            self.notices += count;
                            self.frames += 1;
                            if self.frames.is_multiple_of(ACK_FRAMES) {
                                Header { kind: Kind::NotifyAck, id: header.id, ..Header::default() }
                                    .write(&mut self.out, b"");
                            }
                        }
                        Kind::HelloAck => {
                            let ack =
                                Reader::new(body).map_err(|error| RunError::BadFrame(error.to_string()))?;
                            (self.epoch, self.last_seq) = (ack.u64(3), ack.u64(4) - 1);
                        }
                        Kind::Goaway => {
                            let why =
                                Reader::new(body).ok().and_then(|body| body.str(2).ok()).unwrap_or_default();
                            return Err(RunError::Goaway(why.to_owned()));
                        }
                        _ => {}
                    }
                    at += used;
                }
            }
        }
        self.input.copy_within(at..self.have, 0);
        self.have -= at;
        Ok(())
    }
}

/// Decodes a batch as a game server would: every entry has roles and one event with readable
/// content.
fn check_batch(body: &[u8]) -> Result<u64, RunError> {
    let bad = |what: &str| RunError::BadFrame(format!("a notification {what}"));
    let mut count = 0;
    for entry in fields(body) {
        let entry = entry.map_err(|_| bad("is no protobuf"))?;
        let (mut roles, mut events) = (0, 0);
        for field in fields(entry.value) {
            let field = field.map_err(|_| bad("has a broken entry"))?;
            if field.number == 1 {
                roles += 1;
                continue;
            }
            if event(field.number).is_none() {
                return Err(bad("has an unknown kind"));
            }
            events += 1;
            if fields(field.value).any(|content| content.is_err()) {
                return Err(bad("has broken content"));
            }
        }
        if roles == 0 || events != 1 {
            return Err(bad("has no role, or not one event"));
        }
        count += 1;
    }
    Ok(count)
}

/// Notes whose match is ready.
fn note_matches(body: &[u8], matched: &mut Vec<(Vec<u8>, Instant)>) {
    let now = Instant::now();
    for entry in fields(body).map_while(Result::ok) {
        let of =
            |number| fields(entry.value).map_while(Result::ok).filter(move |field| field.number == number);
        if of(Event::MATCH_READY).next().is_some() {
            matched.extend(of(1).map(|role| (role.value.to_vec(), now)));
        }
    }
}
