//! Recorded sessions played by many connections: the case files of the reference's load driver.
//!
//! A case names groups, one after the other; a group plays one recording over and over on many
//! connections. Where `throng replay` plays one session and compares what comes back, this only
//! loads: it answers what the recorded peer waited for, keeps the recorded rhythm, and measures how
//! long answers take and how late packets leave. Spec: gateway appendix E.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use serde::{Deserialize, Deserializer};
use thiserror::Error;
use throng_stdx::Rng;
use throng_wire::channeldpb as pb;
use throng_wire::cpr::{CprError, CprReader};

use crate::clock::{self, nanoseconds};
use crate::duration;
use crate::interrupt;
use crate::link::{Link, LinkError, Transport};
use crate::poll::Poller;
use crate::protocol::{self, CHANNEL_TYPE_SUBWORLD, Head, Scanner, Sink, kind};
use crate::report::{Better, Report, Row};
use crate::socket;
use crate::stats::Times;

/// Shortest loop of a connection: a case without `maxTickInterval` must not spin.
const TICK_MIN: Duration = Duration::from_millis(1);
const READ_BYTES: usize = 64 * 1024;
/// Channels that the extra connection of the web-chat program makes.
const CHAT_CHANNELS: usize = 6;

/// A case file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Case {
    /// `host:port` for TCP or `ws://host:port`.
    pub channeld_addr: String,
    /// Played one after the other.
    pub connection_groups: Vec<Group>,
}

impl Default for Case {
    fn default() -> Self {
        Self { channeld_addr: "127.0.0.1:12108".to_owned(), connection_groups: Vec::new() }
    }
}

/// Connections that play the same recording. Absent keys are zero, as in the reference's driver.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Group {
    /// Recording, relative to the working directory.
    pub cpr_file_path: String,
    /// Connections.
    pub connection_number: usize,
    /// Pause between starting two of them.
    #[serde(deserialize_with = "go_duration")]
    pub connect_interval: Duration,
    /// Life of each.
    #[serde(deserialize_with = "go_duration")]
    pub running_time: Duration,
    /// Extra pause before the session starts over.
    #[serde(deserialize_with = "go_duration")]
    pub sleep_end_of_session: Duration,
    /// Loop period; at most one recorded packet is sent per loop.
    #[serde(deserialize_with = "go_duration")]
    pub max_tick_interval: Duration,
    /// Factor on every recorded pause; 0 sends as fast as the loop allows.
    pub action_interval_multiplier: f64,
    /// After AUTH, nothing is sent until its response has arrived.
    pub wait_auth_success: bool,
    /// AUTH is left out when the session is repeated.
    pub auth_only_once: bool,
    /// Action that the reference's driver hard-codes for its stock cases; a key of this tool.
    pub program: Program,
}

/// Changes to the messages of a recording while they are replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// Not at all.
    #[default]
    None,
    /// The Unreal third-person case: waits for the answers to subscriptions.
    Tps,
    /// The web chat: one more connection makes six channels; each player subscribes itself once,
    /// with write access, to one of them, and sends everything else there.
    Webchat,
}

fn go_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Nanoseconds(u64),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Nanoseconds(value) => Ok(Duration::from_nanos(value)),
        Form::Text(text) => duration::parse(&text).map_err(serde::de::Error::custom),
    }
}

/// Why a case cannot be played.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaseError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The case is not JSON of the right shape.
    #[error("{path}: {source}")]
    Json {
        /// Which file.
        path: String,
        /// Problem, with line and column.
        source: serde_json::Error,
    },
    /// A recording is damaged or empty.
    #[error("{path}: cannot read packet {index}: {source}")]
    Recording {
        /// Which file.
        path: String,
        /// Which packet, from 0.
        index: usize,
        /// Problem.
        source: CprError,
    },
    /// There is nothing to play.
    #[error("{path} has no packets")]
    Empty {
        /// Which file.
        path: String,
    },
    /// The address leads nowhere.
    #[error("cannot resolve address `{0}`")]
    Address(String),
    /// The generator failed.
    #[error("generator: {0}")]
    Io(#[from] std::io::Error),
    /// The extra connection of the web-chat program failed.
    #[error("connection that creates the channels: {0}")]
    Channels(String),
}

impl Case {
    /// Reads a case file.
    ///
    /// # Errors
    /// When it cannot be read or is not a case.
    pub fn load(path: &Path) -> Result<Self, CaseError> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| CaseError::File { path: name.clone(), source })?;
        serde_json::from_str(&text).map_err(|source| CaseError::Json { path: name, source })
    }

    /// Transport and address of the server.
    fn endpoint(&self) -> Result<(Transport, SocketAddr), CaseError> {
        let (transport, addr) = match self.channeld_addr.split_once("://") {
            Some(("ws", addr)) => (Transport::WebSocket, addr),
            Some(("tcp", addr)) => (Transport::Tcp, addr),
            Some(_) => return Err(CaseError::Address(self.channeld_addr.clone())),
            None => (Transport::Tcp, self.channeld_addr.as_str()),
        };
        let addr = addr.trim_end_matches('/').to_socket_addrs().ok().and_then(|mut addrs| addrs.next());
        addr.map(|addr| (transport, addr)).ok_or_else(|| CaseError::Address(self.channeld_addr.clone()))
    }

    /// Plays all groups and returns the report.
    ///
    /// # Errors
    /// When a recording cannot be read. Connections that fail are counted, not errors.
    pub fn play(&self, seed: u64) -> Result<Report, CaseError> {
        socket::raise_descriptor_limit();
        let (transport, server) = self.endpoint()?;
        let mut report = Report::new("replay");
        report.canonical = false;
        report.setting("server", self.channeld_addr.clone());
        for (index, group) in self.connection_groups.iter().enumerate() {
            let session = Arc::new(load_session(&group.cpr_file_path)?);
            let mut seen = Seen::default();
            GroupRun::new(group, session, transport, server, seed + index as u64)?.run(&mut seen)?;
            summarise(&mut report, index, group, &seen);
        }
        Ok(report)
    }
}

fn summarise(report: &mut Report, index: usize, group: &Group, seen: &Seen) {
    let mut row = |what: &str, unit, better, value: f64| {
        report.row(Row::new(format!("group {index}: {what}"), unit, better, value));
    };
    row(
        "connections that played to their end",
        "of all",
        Better::Higher,
        seen.finished as f64 / group.connection_number.max(1) as f64,
    );
    row("packets sent", "packets", Better::Higher, seen.packets as f64);
    row("messages sent", "messages", Better::Higher, seen.messages_out as f64);
    row("messages received", "messages", Better::Higher, seen.messages_in as f64);
    row("sessions completed", "sessions", Better::Higher, seen.sessions as f64);
    row("answer time p50", "ms", Better::Lower, seen.answers.measured_ms(0.5));
    row("answer time p99", "ms", Better::Lower, seen.answers.measured_ms(0.99));
    row("packets late p99", "ms", Better::Lower, seen.lateness.quantile_ms(0.99));
    let played = seen.finished as f64;
    report.threshold(
        format!("group {index}: all {} connections play to their end", group.connection_number),
        played,
        seen.finished == group.connection_number as u64,
    );
    if let Some(error) = &seen.first_error {
        report.note(format!("group {index}: {error}"));
    }
}

#[derive(Debug, PartialEq)]
struct Packet {
    /// Since the packet before.
    offset: Duration,
    messages: Vec<(Head, Vec<u8>)>,
}

fn load_session(path: &str) -> Result<Vec<Packet>, CaseError> {
    let bytes = std::fs::read(path).map_err(|source| CaseError::File { path: path.to_owned(), source })?;
    let mut packets = Vec::new();
    for (index, packet) in CprReader::new(&bytes).enumerate() {
        let packet =
            packet.map_err(|source| CaseError::Recording { path: path.to_owned(), index, source })?;
        let messages = packet.packet.messages().map(|message| {
            let head = Head {
                channel: message.channel_id,
                broadcast: message.broadcast,
                stub: message.stub_id,
                kind: message.msg_type,
            };
            (head, message.body.to_vec())
        });
        packets.push(Packet { offset: packet.offset, messages: messages.collect() });
    }
    if packets.is_empty() { Err(CaseError::Empty { path: path.to_owned() }) } else { Ok(packets) }
}

/// Results of a group.
#[derive(Default)]
struct Seen {
    finished: u64,
    packets: u64,
    sessions: u64,
    messages_out: u64,
    messages_in: u64,
    answers: Times,
    lateness: Times,
    first_error: Option<String>,
}

/// One connection of a group.
struct Player {
    link: Option<Link>,
    connected: bool,
    inbox: Inbox,
    /// Next packet, and when the one before was nominally sent.
    next: usize,
    nominal_ns: u64,
    /// Next run of the loop.
    tick_ns: u64,
    /// Time at which the connection leaves.
    end_ns: u64,
    repeating: bool,
    subscribed: bool,
    stub: u32,
    /// Channel of the web-chat program.
    channel: Option<u32>,
}

/// Messages that arrive for one connection.
#[derive(Default)]
struct Inbox {
    conn: u32,
    /// Stub and send time of the answer that holds the session back.
    awaited: Option<(u32, u64)>,
    answered_ns: Vec<u64>,
    messages: u64,
    /// Ids of created channels, for the connection that makes some.
    created: Vec<u32>,
}

impl Sink for Inbox {
    fn message(&mut self, head: Head, body: &[u8], _whole: bool) {
        self.messages += 1;
        if head.kind == kind::AUTH && head.stub != 0 {
            self.conn = protocol::auth_result(body).0;
        }
        if head.kind == kind::CREATE_CHANNEL {
            self.created.push(protocol::created_channel(body));
        }
        if let Some((stub, sent_ns)) = self.awaited
            && stub == head.stub
        {
            self.awaited = None;
            self.answered_ns.push(clock::now_ns().saturating_sub(sent_ns));
        }
    }

    fn completed(&mut self) {}
}

struct GroupRun<'a> {
    group: &'a Group,
    session: Arc<Vec<Packet>>,
    transport: Transport,
    server: SocketAddr,
    rng: Rng,
    channels: Vec<u32>,
    /// Keeps the web-chat channels alive: they end with their owner.
    _maker: Option<Link>,
    poller: Poller,
}

impl<'a> GroupRun<'a> {
    fn new(
        group: &'a Group,
        session: Arc<Vec<Packet>>,
        transport: Transport,
        server: SocketAddr,
        seed: u64,
    ) -> Result<Self, CaseError> {
        let (channels, maker) = match group.program {
            Program::Webchat => {
                make_channels(server, transport).map(|(channels, link)| (channels, Some(link)))?
            }
            _ => (Vec::new(), None),
        };
        let poller = Poller::new()?;
        Ok(Self { group, session, transport, server, rng: Rng::new(seed), channels, _maker: maker, poller })
    }

    fn run(&mut self, seen: &mut Seen) -> Result<(), CaseError> {
        let begin = clock::now_ns();
        let mut players: Vec<Player> = Vec::new();
        let mut scratch = vec![0; READ_BYTES];
        loop {
            let now = clock::now_ns();
            while players.len() < self.group.connection_number
                && begin + nanoseconds(self.group.connect_interval) * players.len() as u64 <= now
            {
                let player = self.connect(players.len(), now, seen);
                players.push(player);
            }
            for player in &mut players {
                if player.link.is_some() && player.tick_ns <= now {
                    if let Err(error) = self.tick(player, now, seen) {
                        lose(player, &error, seen);
                    }
                    // Loops that were missed are not made up for.
                    player.tick_ns += nanoseconds(self.tick_interval());
                    player.tick_ns = player.tick_ns.max(now);
                }
            }
            let done =
                players.len() == self.group.connection_number && players.iter().all(|p| p.link.is_none());
            if done || interrupt::requested() {
                return Ok(());
            }
            let ready: Vec<_> =
                self.poller.wait(self.tick_interval().min(Duration::from_millis(20)))?.collect();
            for ready in ready {
                let player = &mut players[ready.token];
                if let Err(error) =
                    self.progress(player, ready.token, ready.readable, ready.writable, &mut scratch)
                {
                    lose(player, &error, seen);
                }
                seen.messages_in += std::mem::take(&mut player.inbox.messages);
                for answer_ns in player.inbox.answered_ns.drain(..) {
                    seen.answers.record(Duration::from_nanos(answer_ns));
                }
            }
        }
    }

    fn tick_interval(&self) -> Duration {
        self.group.max_tick_interval.max(TICK_MIN)
    }

    fn connect(&mut self, index: usize, now: u64, seen: &mut Seen) -> Player {
        let source = socket::source_for(self.server, index);
        let link = Link::connect(self.server, self.transport, source, None, Scanner::thorough())
            .and_then(|link| Ok(self.poller.add(link.raw(), index, true, true).map(|()| link)?));
        let mut player = Player {
            link: None,
            connected: false,
            inbox: Inbox::default(),
            next: 0,
            nominal_ns: 0,
            tick_ns: now,
            end_ns: now + nanoseconds(self.group.running_time),
            repeating: false,
            subscribed: false,
            stub: 0,
            channel: match self.channels.len() as u64 {
                0 => None,
                count => self.channels.get(self.rng.below(count) as usize).copied(),
            },
        };
        match link {
            Ok(link) => player.link = Some(link),
            Err(error) => lose(&mut player, &error, seen),
        }
        player
    }

    fn progress(
        &self,
        player: &mut Player,
        token: usize,
        readable: bool,
        writable: bool,
        scratch: &mut [u8],
    ) -> Result<(), LinkError> {
        let Some(link) = &mut player.link else { return Ok(()) };
        if writable {
            if player.connected {
                link.flush()?;
            } else {
                link.connected(self.server)?;
                player.connected = true;
            }
            self.poller.modify(link.raw(), token, true, link.wants_write())?;
        }
        if readable && player.connected {
            link.receive(scratch, &mut player.inbox)?;
        }
        Ok(())
    }

    /// One loop of a connection: at most one packet, if it is due and no answer is awaited.
    fn tick(&self, player: &mut Player, now: u64, seen: &mut Seen) -> Result<(), LinkError> {
        if now >= player.end_ns {
            player.link = None;
            seen.finished += 1;
            return Ok(());
        }
        let Some(link) = &mut player.link else { return Ok(()) };
        if !player.connected || !link.is_open() || player.inbox.awaited.is_some() {
            return Ok(());
        }
        if player.nominal_ns == 0 {
            player.nominal_ns = now;
        }
        let packet = &self.session[player.next];
        let pause = packet.offset.as_nanos() as f64 * self.group.action_interval_multiplier;
        let due = player.nominal_ns + pause as u64;
        if due > now {
            return Ok(());
        }
        let mut messages = Vec::new();
        for (head, body) in &packet.messages {
            if let Some((head, body)) = self.rewrite(player.subscribed, player.repeating, player, *head, body)
            {
                messages.push((head, body));
            }
        }
        let mut frame = Vec::new();
        if !messages.is_empty() {
            protocol::put_frame(&mut frame, |out| {
                for (head, body) in &mut messages {
                    head.stub = 0;
                    if self.awaits(head.kind) {
                        player.stub += 1;
                        head.stub = player.stub;
                        player.inbox.awaited = Some((player.stub, now));
                    }
                    player.subscribed |= head.kind == kind::SUB_TO_CHANNEL;
                    protocol::put_entry(out, *head, body);
                }
            });
            if let Some(link) = &mut player.link {
                link.send(&frame)?;
            }
            seen.packets += 1;
            seen.messages_out += messages.len() as u64;
            seen.lateness.record_between(due, now);
        }
        player.nominal_ns = due;
        player.next += 1;
        if player.next == self.session.len() {
            player.next = 0;
            player.repeating = true;
            player.nominal_ns += nanoseconds(self.group.sleep_end_of_session);
            seen.sessions += 1;
        }
        Ok(())
    }

    fn awaits(&self, kind: u32) -> bool {
        match kind {
            kind::AUTH => self.group.wait_auth_success,
            kind::SUB_TO_CHANNEL => self.group.program != Program::None,
            _ => false,
        }
    }

    /// Returns the message to send; `None` if it is omitted.
    fn rewrite(
        &self,
        subscribed: bool,
        repeating: bool,
        player: &Player,
        mut head: Head,
        body: &[u8],
    ) -> Option<(Head, Vec<u8>)> {
        if head.kind == kind::AUTH {
            return (!repeating || !self.group.auth_only_once).then(|| (head, body.to_vec()));
        }
        let Some(channel) = player.channel else { return Some((head, body.to_vec())) };
        head.channel = channel;
        if head.kind != kind::SUB_TO_CHANNEL {
            return Some((head, body.to_vec()));
        }
        if subscribed {
            return None;
        }
        let mut request = pb::SubscribedToChannelMessage::decode(body).unwrap_or_default();
        request.conn_id = player.inbox.conn;
        let access = pb::ChannelDataAccess::WriteAccess.into();
        request.sub_options.get_or_insert_default().data_access = Some(access);
        Some((head, request.encode_to_vec()))
    }
}

fn lose(player: &mut Player, error: &LinkError, seen: &mut Seen) {
    player.link = None;
    if seen.first_error.is_none() {
        seen.first_error = Some(error.to_string());
    }
}

/// Logs in and creates the channels of the web chat; they live as long as the connection.
fn make_channels(server: SocketAddr, transport: Transport) -> Result<(Vec<u32>, Link), CaseError> {
    let failed = |error: LinkError| CaseError::Channels(error.to_string());
    let mut link = Link::connect(server, transport, None, None, Scanner::thorough()).map_err(failed)?;
    let mut poller = Poller::new()?;
    poller.add(link.raw(), 0, true, true)?;
    let mut inbox = Inbox::default();
    let mut scratch = vec![0; READ_BYTES];
    let (mut connected, mut asked, mut creating) = (false, false, false);
    let until = clock::now_ns() + 10_000_000_000;
    while inbox.created.len() < CHAT_CHANNELS {
        if clock::now_ns() > until {
            return Err(CaseError::Channels("the server does not answer".to_owned()));
        }
        let ready: Vec<_> = poller.wait(Duration::from_millis(20))?.collect();
        for ready in ready {
            if ready.writable && !connected {
                link.connected(server).map_err(failed)?;
                connected = true;
            }
            if ready.readable && connected {
                link.receive(&mut scratch, &mut inbox).map_err(failed)?;
            }
        }
        let mut out = Vec::new();
        if connected && link.is_open() && !asked {
            asked = true;
            protocol::auth(&mut out, 1, "channel-maker", "throng-load");
        } else if inbox.conn != 0 && !creating {
            creating = true;
            for _ in 0..CHAT_CHANNELS {
                protocol::create_channel(&mut out, 2, CHANNEL_TYPE_SUBWORLD, "chat", None);
            }
        }
        if !out.is_empty() {
            link.send(&out).map_err(failed)?;
        }
        poller.modify(link.raw(), 0, true, link.wants_write())?;
    }
    Ok((inbox.created, link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use throng_wire::cpr::CprWriter;
    use throng_wire::{MessagePack, write_entry};

    #[test]
    fn case_files_of_the_reference_are_read() {
        let text = r#"{ "channeldAddr": "ws://127.0.0.1:12108",
          "connectionGroups": [ { "cprFilePath": "tps/session.cpr", "connectionNumber": 2, "connectInterval": "5000ms",
              "runningTime": "1m", "sleepEndOfSession": "10ms", "maxTickInterval": 10000000,
              "actionIntervalMultiplier": 1, "waitAuthSuccess": true, "authOnlyOnce": true } ] }"#;
        let case: Case = serde_json::from_str(text).expect("the documented form");
        let group = &case.connection_groups[0];
        assert_eq!((group.connection_number, group.running_time), (2, Duration::from_secs(60)));
        assert_eq!(group.max_tick_interval, Duration::from_millis(10), "a number is nanoseconds");
        assert_eq!((group.program, group.action_interval_multiplier), (Program::None, 1.0));
        assert_eq!(
            case.endpoint().expect("address"),
            (Transport::WebSocket, "127.0.0.1:12108".parse().expect("address"))
        );
        let empty: Group = serde_json::from_str("{}").expect("absent keys are zero");
        assert_eq!(empty, Group::default());
        assert!(serde_json::from_str::<Group>(r#"{"runningTime": "soon"}"#).is_err());
    }

    /// A session of AUTH and three inputs, 20 ms apart.
    fn recording() -> Vec<u8> {
        let mut writer = CprWriter::new(1 << 20);
        let auth =
            pb::AuthMessage { player_identifier_token: "p".to_owned(), ..Default::default() }.encode_to_vec();
        for index in 0..4u32 {
            let mut packet = Vec::new();
            let (msg_type, body) =
                if index == 0 { (1, auth.as_slice()) } else { (100, &b"seventeen bytes.."[..]) };
            write_entry(&mut packet, &MessagePack { msg_type, stub_id: 9, body, ..MessagePack::default() });
            writer.push(Duration::from_millis(20), &packet).expect("room");
        }
        writer.into_bytes()
    }

    #[test]
    fn sessions_repeat_and_log_in_once() {
        let fake = Fake::start(None);
        let path = std::env::temp_dir().join(format!("throng-replay-{}.cpr", std::process::id()));
        std::fs::write(&path, recording()).expect("temporary file");
        let group = Group {
            cpr_file_path: path.display().to_string(),
            connection_number: 3,
            running_time: Duration::from_secs(2),
            max_tick_interval: Duration::from_millis(2),
            action_interval_multiplier: 0.5,
            wait_auth_success: true,
            auth_only_once: true,
            ..Group::default()
        };
        let case = Case { channeld_addr: fake.clients.to_string(), connection_groups: vec![group] };
        let report = case.play(1).expect("a report");
        std::fs::remove_file(&path).expect("still there");
        let value =
            |what: &str| report.rows.iter().find(|row| row.what.ends_with(what)).expect(what).measured;
        assert!(report.passed, "{:?}", report.notes);
        // Two seconds hold fifty sessions each of 40 ms.
        assert!(value("sessions completed") >= 6.0);
        // One AUTH each, then three inputs a session; the fake answers nothing but the AUTH.
        assert_eq!(value("messages received"), 3.0);
        assert_eq!(value("packets sent"), value("messages sent"));
    }

    #[test]
    fn missing_files_and_refused_connections_are_told() {
        let group =
            Group { cpr_file_path: "nowhere.cpr".to_owned(), connection_number: 1, ..Group::default() };
        let case = Case { connection_groups: vec![group], ..Case::default() };
        assert!(case.play(1).expect_err("no file").to_string().contains("nowhere.cpr"));
        let case = Case { channeld_addr: "udp://x".to_owned(), ..Case::default() };
        assert!(matches!(case.play(1), Err(CaseError::Address(_))));
    }
}
