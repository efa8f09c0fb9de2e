//! Replay of recorded sessions (`.cpr`) against a gateway, with a report of the
//! differences.
//!
//! A recording holds what one client *sent*, with the time between its packets. The [`Player`]
//! sends it again in the same rhythm or faster, replaces what belongs to the old session (stub ids,
//! the connection's own id), waits where the peer has to wait (authentication, first subscription)
//! and counts what comes back. It has no socket; [`play`] drives it on tokio.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use prost::Message as _;
use throng_stdx::Instant;
use throng_wire::cpr::{CprError, CprReader};
use throng_wire::frame::{self, Compression, FrameReader};
use throng_wire::{MessagePack, channeldpb as pb, write_entry};

use crate::event::ConnId;
use crate::session::{Transmit, msg_type};
use crate::transport::{self, OpenError};

pub use crate::session::TagForm;
pub use crate::transport::Endpoint;

/// A recorded session.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    packets: Vec<RecordedPacket>,
    /// The recorded connection's own id, as its first subscription names it.
    own_id: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
struct OwnedMessage {
    channel_id: u32,
    broadcast: u32,
    stub_id: u32,
    msg_type: u32,
    body: Vec<u8>,
}

impl From<MessagePack<'_>> for OwnedMessage {
    fn from(message: MessagePack<'_>) -> Self {
        let MessagePack { channel_id, broadcast, stub_id, msg_type, body } = message;
        OwnedMessage { channel_id, broadcast, stub_id, msg_type, body: body.to_vec() }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct RecordedPacket {
    /// Time since the packet before.
    offset: Duration,
    messages: Vec<OwnedMessage>,
}

/// Failure to parse a recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The bytes are not a recording, or are damaged.
    #[error("packet {index} cannot be read: {source}")]
    Damaged {
        /// Index of the packet, from 0.
        index: usize,
        /// Description of the defect.
        source: CprError,
    },
    /// The recording has no packets.
    #[error("the recording is empty")]
    Empty,
}

impl Recording {
    /// Reads the content of a `.cpr` file.
    ///
    /// # Errors
    /// See [`RecordingError`].
    pub fn parse(bytes: &[u8]) -> Result<Recording, RecordingError> {
        let mut packets = Vec::new();
        for (index, packet) in CprReader::new(bytes).enumerate() {
            let packet = packet.map_err(|source| RecordingError::Damaged { index, source })?;
            packets.push(RecordedPacket {
                offset: packet.offset,
                messages: packet.packet.messages().map(OwnedMessage::from).collect(),
            });
        }
        if packets.is_empty() {
            return Err(RecordingError::Empty);
        }
        let own_id = packets.iter().flat_map(|p| &p.messages).find_map(|message| {
            (message.msg_type == msg_type::SUB_TO_CHANNEL)
                .then(|| pb::SubscribedToChannelMessage::decode(message.body.as_slice()).ok())?
                .map(|body| body.conn_id)
                .filter(|&id| id != 0)
        });
        Ok(Recording { packets, own_id })
    }

    /// Packets in it.
    #[must_use]
    pub fn packet_count(&self) -> usize {
        self.packets.len()
    }

    /// Messages in it, by type.
    #[must_use]
    pub fn messages_by_type(&self) -> BTreeMap<u32, u64> {
        let mut counts = BTreeMap::new();
        for message in self.packets.iter().flat_map(|p| &p.messages) {
            *counts.entry(message.msg_type).or_insert(0) += 1;
        }
        counts
    }

    /// Time from the first packet to the last.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.packets.iter().skip(1).map(|p| p.offset).sum()
    }
}

/// Options of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct PlayerConfig {
    /// 1 = as recorded, 2 = twice as fast; infinite = as fast as the answers allow.
    pub speed: f64,
    /// Message types whose responses are awaited before the next packet is sent. By default AUTH
    /// and SUB_TO_CHANNEL, for which a real peer waits as well.
    pub awaited_types: Vec<u32>,
    /// Longest wait for a response; then the request counts as refused and the replay continues.
    pub answer_timeout: Duration,
    /// Time to listen after the last packet.
    pub settle: Duration,
    /// Adds WRITE_ACCESS to subscriptions that ask for no access: recordings of older gateways,
    /// which checked nothing, need it for their updates (spec: gateway appendix E).
    pub grant_write: bool,
    /// Sends everything but authentications to this channel.
    pub channel: Option<u32>,
    /// Tag form of the frames.
    pub tag_form: TagForm,
}

impl Default for PlayerConfig {
    fn default() -> Self {
        PlayerConfig {
            speed: 1.0,
            awaited_types: vec![msg_type::AUTH, msg_type::SUB_TO_CHANNEL],
            answer_timeout: Duration::from_secs(3),
            settle: Duration::from_millis(500),
            grant_write: false,
            channel: None,
            tag_form: TagForm::Current,
        }
    }
}

/// Plays a recording over one connection, without I/O. Driven like a [`Session`](crate::Session):
/// one input, then drain [`poll_transmit`](Self::poll_transmit), then sleep until
/// [`next_timeout`](Self::next_timeout), until [`is_finished`](Self::is_finished).
#[derive(Debug)]
pub struct Player {
    recording: Recording,
    config: PlayerConfig,
    reader: FrameReader,
    own_id: Option<ConnId>,
    /// Next packet to send.
    next: usize,
    /// Instant at which the next packet is due.
    nominal: Instant,
    started: Option<Instant>,
    /// Requests without an answer so far, by stub id.
    open: BTreeMap<u32, OpenRequest>,
    last_stub: u32,
    /// Instant at which listening ends, after the last packet.
    end: Option<Instant>,
    finished: bool,
    /// Lateness of every packet sent.
    lateness: Vec<Duration>,
    report: Report,
    scratch: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct OpenRequest {
    packet: usize,
    msg_type: u32,
    deadline: Instant,
    /// Holds the next packet back.
    awaited: bool,
}

/// Report of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Packets sent.
    pub packets_sent: usize,
    /// Packets in the recording.
    pub packets_recorded: usize,
    /// Messages by type.
    pub types: BTreeMap<u32, TypeCounts>,
    /// Requests that were not answered in time: refused, as the protocol has no negative answers.
    pub refused: Vec<RefusedRequest>,
    /// Result code of the last authentication (0 = successful), if one came.
    pub auth_result: Option<i32>,
    /// The id that the gateway gave.
    pub conn: Option<ConnId>,
    /// Reason of a connection that ended before the player was done.
    pub closed: Option<String>,
    /// From the first packet to the last, as recorded.
    pub recorded: Duration,
    /// From the first packet to the last, as played.
    pub played: Duration,
    /// Lateness of sent packets, against the recorded rhythm at the chosen speed.
    pub drift: Drift,
}

/// Counts of one message type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TypeCounts {
    /// Messages of the type in the recording.
    pub recorded: u64,
    /// Messages sent.
    pub sent: u64,
    /// Answers with the stub of a message that was sent.
    pub answered: u64,
    /// Other messages of the type that the gateway sent.
    pub received: u64,
}

/// A request without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedRequest {
    /// Index of its packet in the recording, from 0.
    pub packet: usize,
    /// Its type.
    pub msg_type: u32,
}

/// Lateness of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drift {
    /// p50 of the lateness.
    pub p50: Duration,
    /// p99 of the lateness.
    pub p99: Duration,
    /// Maximum lateness.
    pub max: Duration,
}

impl Report {
    /// True when everything was sent, every request answered, and the connection lasted.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.packets_sent == self.packets_recorded
            && self.refused.is_empty()
            && self.closed.is_none()
            && self.auth_result.is_none_or(|result| result == 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "packets   {} of {} sent", self.packets_sent, self.packets_recorded)?;
        writeln!(
            f,
            "duration  {:.3} s recorded, {:.3} s played",
            self.recorded.as_secs_f64(),
            self.played.as_secs_f64()
        )?;
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        writeln!(
            f,
            "lateness  p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
            ms(self.drift.p50),
            ms(self.drift.p99),
            ms(self.drift.max)
        )?;
        match (self.auth_result, self.conn) {
            (Some(0), Some(conn)) => writeln!(f, "auth      successful, connection {conn}")?,
            (Some(code), _) => writeln!(f, "auth      refused with code {code}")?,
            (None, _) => writeln!(f, "auth      no result")?,
        }
        writeln!(f, "\n  type  recorded      sent  answered  received")?;
        for (msg_type, counts) in &self.types {
            let TypeCounts { recorded, sent, answered, received } = counts;
            writeln!(f, "{msg_type:>6}{recorded:>10}{sent:>10}{answered:>10}{received:>10}")?;
        }
        for refused in &self.refused {
            writeln!(f, "refused   packet {}: type {} was not answered", refused.packet, refused.msg_type)?;
        }
        if let Some(closed) = &self.closed {
            writeln!(f, "closed    {closed}")?;
        }
        Ok(())
    }
}

impl Player {
    /// A player that waits for its transport.
    ///
    /// # Panics
    /// When the speed is not above 0.
    #[must_use]
    pub fn new(recording: Recording, config: PlayerConfig) -> Self {
        assert!(config.speed > 0.0, "speed {} must be above 0", config.speed);
        let types = recording
            .messages_by_type()
            .into_iter()
            .map(|(t, recorded)| (t, TypeCounts { recorded, ..TypeCounts::default() }))
            .collect();
        let report = Report {
            packets_recorded: recording.packet_count(),
            recorded: recording.duration(),
            types,
            ..Report::default()
        };
        Player {
            recording,
            config,
            reader: FrameReader::default(),
            own_id: None,
            next: 0,
            nominal: Instant::ZERO,
            started: None,
            open: BTreeMap::new(),
            last_stub: 0,
            end: None,
            finished: false,
            lateness: Vec::new(),
            report,
            scratch: Vec::new(),
        }
    }

    /// Reports that the transport is connected; the replay begins.
    pub fn handle_connected(&mut self, now: Instant) {
        self.started = Some(now);
        self.nominal = now;
    }

    /// Takes bytes as the transport delivered them.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if self.finished {
            return;
        }
        let mut reader = std::mem::take(&mut self.reader);
        let result = reader.feed(bytes, &mut |packet| {
            for message in packet.messages() {
                self.handle_message(now, &message);
            }
            ControlFlow::Continue(())
        });
        self.reader = reader;
        if let Err(error) = result {
            self.finish(Some(format!("gateway sent a bad frame: {error}")));
        }
    }

    /// Reports that the transport ended.
    pub fn handle_closed(&mut self, _now: Instant) {
        if !self.finished {
            let sent = self.report.packets_sent;
            let all = self.recording.packet_count();
            self.finish(Some(format!("by the gateway, after {sent} of {all} packets")));
        }
    }

    /// Gives up answers that are due, and stops listening at the end.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due: Vec<u32> = self.open.iter().filter(|(_, r)| r.deadline <= now).map(|(&s, _)| s).collect();
        for stub in due {
            self.refuse(stub);
        }
        if self.end.is_some_and(|end| end <= now) && !self.finished {
            self.finish(None);
        }
    }

    /// Appends the frame of the next packet that is due; `None` when none is.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        if self.finished || self.started.is_none() || self.open.values().any(|r| r.awaited) {
            return None;
        }
        let due = self.next_due()?;
        if due > now {
            return None;
        }
        let index = self.next;
        self.next += 1;
        self.nominal = due;
        self.report.packets_sent += 1;
        self.lateness.push(now.since(due));
        if let Some(started) = self.started {
            self.report.played = now.since(started);
        }
        let mut packet = std::mem::take(&mut self.scratch);
        packet.clear();
        let messages = std::mem::take(&mut self.recording.packets[index].messages);
        for message in &messages {
            self.write_message(now, index, message, &mut packet);
        }
        let before = buf.len();
        match self.config.tag_form {
            TagForm::Current => buf.extend_from_slice(&frame::tag(packet.len(), Compression::None)),
            TagForm::Legacy => buf.extend_from_slice(&frame::legacy_tag(packet.len(), Compression::None)),
        }
        buf.extend_from_slice(&packet);
        self.scratch = packet;
        if self.next == self.recording.packet_count() {
            self.end = Some(now + self.config.settle);
        }
        Some(Transmit { frame_bytes: buf.len() - before, messages: messages.len() })
    }

    /// Earliest time at which there is something to send or to give up.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.finished || self.started.is_none() {
            return None;
        }
        let blocked = self.open.values().any(|r| r.awaited);
        let packet = self.next_due().filter(|_| !blocked);
        let answer = self.open.values().map(|r| r.deadline).min();
        [packet, answer, self.end].into_iter().flatten().min()
    }

    /// True when everything was sent and listened for, or the connection ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Report so far.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Instant at which the next packet is due, if there is one.
    fn next_due(&self) -> Option<Instant> {
        let packet = self.recording.packets.get(self.next)?;
        // The first offset counts from a packet that does not exist.
        let offset = if self.next == 0 { Duration::ZERO } else { packet.offset };
        Some(self.nominal + Duration::from_secs_f64(offset.as_secs_f64() / self.config.speed))
    }

    fn write_message(&mut self, now: Instant, index: usize, message: &OwnedMessage, out: &mut Vec<u8>) {
        let awaited = self.config.awaited_types.contains(&message.msg_type);
        let has_answer = matches!(message.msg_type, msg_type::AUTH..=msg_type::UNSUB_FROM_CHANNEL);
        let stub_id = if awaited || (has_answer && message.stub_id != 0) {
            self.last_stub += 1;
            let deadline = now + self.config.answer_timeout;
            let request = OpenRequest { packet: index, msg_type: message.msg_type, deadline, awaited };
            self.open.insert(self.last_stub, request);
            self.last_stub
        } else {
            0
        };
        let channel_id = match self.config.channel {
            Some(channel) if message.msg_type != msg_type::AUTH => channel,
            _ => message.channel_id,
        };
        let body = self.rewrite_body(message);
        write_entry(
            out,
            &MessagePack {
                channel_id,
                broadcast: message.broadcast,
                stub_id,
                msg_type: message.msg_type,
                body: body.as_deref().unwrap_or(&message.body),
            },
        );
        self.report.types.entry(message.msg_type).or_default().sent += 1;
    }

    /// The body with the old session's own id replaced; `None` when it stays as it is.
    fn rewrite_body(&self, message: &OwnedMessage) -> Option<Vec<u8>> {
        let own_id = self.own_id?.0;
        let is_own = |id: u32| Some(id) == self.recording.own_id;
        match message.msg_type {
            msg_type::SUB_TO_CHANNEL => {
                let mut body = pb::SubscribedToChannelMessage::decode(message.body.as_slice()).ok()?;
                if is_own(body.conn_id) {
                    body.conn_id = own_id;
                }
                if self.config.grant_write {
                    let options = body.sub_options.get_or_insert_default();
                    options.data_access.get_or_insert(pb::ChannelDataAccess::WriteAccess as i32);
                }
                Some(body.encode_to_vec())
            }
            msg_type::UNSUB_FROM_CHANNEL => {
                let mut body = pb::UnsubscribedFromChannelMessage::decode(message.body.as_slice()).ok()?;
                if is_own(body.conn_id) {
                    body.conn_id = own_id;
                }
                Some(body.encode_to_vec())
            }
            _ => None,
        }
    }

    fn handle_message(&mut self, _now: Instant, message: &MessagePack<'_>) {
        let answers = message.stub_id != 0
            && self.open.get(&message.stub_id).is_some_and(|r| r.msg_type == message.msg_type);
        let counts = self.report.types.entry(message.msg_type).or_default();
        if !answers {
            counts.received += 1;
            return;
        }
        counts.answered += 1;
        self.open.remove(&message.stub_id);
        if message.msg_type == msg_type::AUTH
            && let Ok(body) = pb::AuthResultMessage::decode(message.body)
        {
            self.report.auth_result = Some(body.result);
            if body.result == 0 {
                self.own_id = Some(ConnId(body.conn_id));
                self.report.conn = self.own_id;
            }
        }
    }

    fn refuse(&mut self, stub: u32) {
        if let Some(request) = self.open.remove(&stub) {
            self.report.refused.push(RefusedRequest { packet: request.packet, msg_type: request.msg_type });
        }
    }

    fn finish(&mut self, closed: Option<String>) {
        for stub in self.open.keys().copied().collect::<Vec<_>>() {
            self.refuse(stub);
        }
        self.lateness.sort_unstable();
        let at = |share: f64| {
            let last = self.lateness.len().saturating_sub(1);
            self.lateness.get((last as f64 * share) as usize).copied().unwrap_or_default()
        };
        self.report.drift = Drift { p50: at(0.5), p99: at(0.99), max: at(1.0) };
        self.report.closed = closed;
        self.finished = true;
    }
}

/// [`play`] for callers without a runtime; blocks until it is done.
///
/// # Errors
/// See [`play`].
///
/// # Panics
/// Inside a tokio runtime, where blocking is not allowed.
pub fn play_blocking(
    endpoint: &Endpoint,
    recording: Recording,
    config: PlayerConfig,
) -> Result<Report, OpenError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| OpenError::Io { endpoint: endpoint.to_string(), source })?;
    runtime.block_on(play(endpoint, recording, config))
}

/// Longest time that a gateway may take to read the last packet.
const FINISH: Duration = Duration::from_secs(2);

/// Plays a recording against a gateway and returns when it is done and the gateway has taken
/// everything.
///
/// # Errors
/// When the connection does not come about. A connection that ends later is part of the report.
pub async fn play(
    endpoint: &Endpoint,
    recording: Recording,
    config: PlayerConfig,
) -> Result<Report, OpenError> {
    let mut pipe = transport::open(endpoint, Duration::from_secs(10)).await?;
    let epoch = tokio::time::Instant::now();
    let now = || Instant::ZERO + epoch.elapsed();
    let mut player = Player::new(recording, config);
    player.handle_connected(now());
    while !player.is_finished() {
        let mut frame = Vec::new();
        if player.poll_transmit(now(), &mut frame).is_some() {
            if pipe.outgoing.send(frame).await.is_err() {
                player.handle_closed(now());
            }
            continue;
        }
        let timeout = player.next_timeout().map(|at| epoch + at.since(Instant::ZERO));
        tokio::select! {
            chunk = pipe.incoming.recv() => match chunk {
                Some(chunk) => player.handle_bytes(now(), &chunk),
                None => player.handle_closed(now()),
            },
            () = sleep_until(timeout) => player.handle_timeout(now()),
        }
    }
    let report = player.report().clone();
    pipe.finish(FINISH).await;
    Ok(report)
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
