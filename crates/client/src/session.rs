//! The session: one client's or game server's conversation with a gateway, without I/O.

mod incoming;
mod outbox;

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use throng_stdx::Instant;
use throng_wire::frame::{Compression, FrameReader, PACKET_BYTES_SEND_MAX};
use throng_wire::{FrameWriter, MessagePack, channeldpb as pb, entry_len, write_entry};

use outbox::Outbox;

use crate::event::{
    ChannelId, ChannelType, CloseCode, CloseReason, ConnId, Event, Kind, RecoveredChannel, RequestFailure,
    RequestId,
};
use crate::matcher::{MATCHMAKING, MatchmakingRequest};
use crate::options::{CreateChannel, SubscribeOptions};

/// Message numbers below 100, as the gateway protocol defines them.
pub mod msg_type {
    #![allow(missing_docs, reason = "the names are the protocol's own; the table in the spec describes them")]
    pub const AUTH: u32 = 1;
    pub const CREATE_CHANNEL: u32 = 3;
    pub const REMOVE_CHANNEL: u32 = 4;
    pub const LIST_CHANNEL: u32 = 5;
    pub const SUB_TO_CHANNEL: u32 = 6;
    pub const UNSUB_FROM_CHANNEL: u32 = 7;
    pub const CHANNEL_DATA_UPDATE: u32 = 8;
    pub const DISCONNECT: u32 = 9;
    pub const RECOVERY_CHANNEL_DATA: u32 = 20;
    pub const RECOVERY_END: u32 = 21;
    pub const CHANNEL_OWNER_LOST: u32 = 22;
    pub const CHANNEL_OWNER_RECOVERED: u32 = 23;
    pub const USER_SPACE_START: u32 = 100;
}

/// Bits of the `broadcast` field of user-space messages; combine with `|`.
pub mod broadcast {
    /// To the owner of the channel.
    pub const NONE: u32 = 0;
    /// To the connection that the forward message names, alone (0 = the owner).
    pub const SINGLE_CONNECTION: u32 = 1;
    /// To all subscribers.
    pub const ALL: u32 = 2;
    /// To all subscribers but the sender.
    pub const ALL_BUT_SENDER: u32 = 4;
    /// To all subscribers but the owner of the channel.
    pub const ALL_BUT_OWNER: u32 = 8;
    /// To all subscribing servers.
    pub const ALL_BUT_CLIENT: u32 = 16;
    /// To all subscribing clients.
    pub const ALL_BUT_SERVER: u32 = 32;
    /// To the subscribers of the neighbouring cells (spatial channels only).
    pub const ADJACENT_CHANNELS: u32 = 64;
}

/// Form of the 5-byte tag in front of the session's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TagForm {
    /// 16-bit big-endian size, as every current peer writes it.
    #[default]
    Current,
    /// The form of the stock Go, JavaScript and Unity peers: `N` instead of a zero high
    /// byte. For tests, and for gateways that support only this form.
    Legacy,
}

/// Compression of sent packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompressionPolicy {
    /// Never; the gateway then answers uncompressed as well.
    Never,
    /// Compresses once the authentication result offers it.
    #[default]
    WhenOffered,
    /// From the first packet on.
    Always,
}

/// Settings of a [`Session`]; [`SessionConfig::client`] and [`SessionConfig::server`] fill in the
/// rest.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Kind of the listener that the transport is connected to. It determines the wrapping of
    /// user-space messages.
    pub kind: Kind,
    /// Player identifier token ("PIT"): the identity of this peer. Recovery of servers is keyed by
    /// it.
    pub pit: String,
    /// Login token: the proof, checked by the gateway's authentication provider.
    pub login_token: String,
    /// Tag form of outgoing packets.
    pub tag_form: TagForm,
    /// Compression of outgoing packets.
    pub compression: CompressionPolicy,
    /// Requests a resume token and presents it after a reconnect. Gateways that do not
    /// know the extension ignore it.
    pub resume: bool,
    /// Name of the world to enter; `None` leaves the choice to the login or the listener. Gateways
    /// that do not know the extension ignore it.
    pub world: Option<String>,
    /// Times that [`Client`](crate::Client) goes on to another node of a cluster in search of the
    /// world. With 0 it reports [`CloseReason::Elsewhere`] at once.
    pub moves_max: usize,
    /// Longest wait for the authentication result; the session closes after it.
    pub auth_timeout: Duration,
    /// Longest wait for a response. The protocol has no negative responses: a refused request ends
    /// after this time.
    pub request_timeout: Duration,
    /// Maximum number of queued bytes that [`Session::poll_transmit`] has not taken yet. Sending
    /// above it fails with [`SendError::QueueFull`].
    pub outbox_bytes_max: usize,
    /// Maximum number of events that [`Session::poll_event`] has not taken yet. Above it the
    /// session closes, because the application has stopped reading.
    pub events_max: usize,
    /// Maximum number of requests waiting for a response.
    pub requests_max: usize,
}

impl SessionConfig {
    /// Settings of a player with the given tokens.
    #[must_use]
    pub fn client(pit: impl Into<String>, login_token: impl Into<String>) -> Self {
        SessionConfig {
            kind: Kind::Client,
            pit: pit.into(),
            login_token: login_token.into(),
            tag_form: TagForm::Current,
            compression: CompressionPolicy::WhenOffered,
            resume: false,
            world: None,
            moves_max: 3,
            auth_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            outbox_bytes_max: 1 << 20,
            // A 64 KiB read holds at most 32,768 entries of two bytes, the smallest there are.
            events_max: 1 << 16,
            requests_max: 4096,
        }
    }

    /// Settings of a game server with the given tokens.
    #[must_use]
    pub fn server(pit: impl Into<String>, login_token: impl Into<String>) -> Self {
        SessionConfig { kind: Kind::Server, ..SessionConfig::client(pit, login_token) }
    }
}

/// One frame that [`Session::poll_transmit`] has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    /// Bytes of the frame including its tag, as appended to the caller's buffer.
    pub frame_bytes: usize,
    /// Messages in it.
    pub messages: usize,
}

/// Failure to queue a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The transport is down or the session has closed.
    #[error("session is not connected; wait for the next authentication")]
    NotConnected,
    /// The outbox is at its bound.
    #[error(
        "outbox holds {queued_bytes} of {limit_bytes} bytes; send less or raise SessionConfig::outbox_bytes_max"
    )]
    QueueFull {
        /// Bytes queued now.
        queued_bytes: usize,
        /// The bound.
        limit_bytes: usize,
    },
    /// No packet can hold the message.
    #[error("message of {size} bytes exceeds the limit of {limit}; split it")]
    TooLarge {
        /// Encoded size of the message in a packet, in bytes.
        size: usize,
        /// Largest size.
        limit: usize,
    },
    /// Too many requests wait for their response.
    #[error("{0} requests wait for a response; wait for some or raise SessionConfig::requests_max")]
    TooManyRequests(usize),
}

/// A conversation with a gateway: authentication, requests with time-outs, channel updates,
/// user-space messages, recovery and resumption.
///
/// The session owns no socket and reads no clock. **Driving contract:** give it one input
/// ([`handle_connected`](Self::handle_connected), [`handle_bytes`](Self::handle_bytes),
/// [`handle_closed`](Self::handle_closed), [`handle_timeout`](Self::handle_timeout), or any of the
/// sending methods), then drain [`poll_event`](Self::poll_event) and
/// [`poll_transmit`](Self::poll_transmit) until both return `None`, then sleep until
/// [`next_timeout`](Self::next_timeout) or the next input. `now` never goes back.
///
/// ```text
///          handle_connected        result           (shouldRecover)     type 21
///   Idle ────────────────▶ Authenticating ──▶ Open ◀──────────── Recovering
///    ▲                          │   │          │                     ▲
///    │ handle_closed            │   └──────────┼─────────────────────┘
///    └──────────────────────────┴── Closed ◀───┘  bad frame, time-out, overflow
/// ```
///
/// What the application sends before the session is open waits and follows the authentication, as
/// the gateway refuses anything that comes earlier. What it sends while the gateway restores a lost
/// connection waits for the end of the recovery, as the protocol asks.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    state: State,
    reader: FrameReader,
    /// The entry of the AUTH message while it waits to be transmitted.
    auth_entry: Option<Vec<u8>>,
    outbox: Outbox,
    events: VecDeque<Event>,
    /// Events that arrived while recovering; they follow `Event::Recovered`.
    held: VecDeque<Event>,
    recovered: Vec<RecoveredChannel>,
    /// Requests by stub id.
    requests: BTreeMap<u32, Request>,
    /// (deadline, stub id) in order of sending, which is the order of the deadlines. Entries of
    /// answered requests stay until they reach the front.
    deadlines: VecDeque<(Instant, u32)>,
    last_stub: u32,
    conn: Option<ConnId>,
    resume_token: Vec<u8>,
    writer: FrameWriter,
    /// Names of data types seen, so that an update event costs no string.
    type_names: Vec<Arc<str>>,
    counters: Counters,
    scratch: Vec<u8>,
}

/// Counts since the session was made; they survive reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages received.
    pub messages_in: u64,
    /// Messages handed to the transport.
    pub messages_out: u64,
    /// Bytes received, tags included.
    pub bytes_in: u64,
    /// Bytes handed to the transport, tags included.
    pub bytes_out: u64,
    /// Received messages whose body did not decode; they are dropped.
    pub malformed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Authenticating {
        deadline: Option<Instant>,
    },
    Recovering,
    Open,
    /// The session has given up this connection; the driver is to close the transport.
    Closed,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    msg_type: u32,
    /// The channel that a REMOVE_CHANNEL names: the stock gateway answers it without a stub.
    victim: u32,
}

impl Session {
    /// Creates a session that waits for its transport.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        let mut writer = FrameWriter::new();
        writer.set_writes_legacy(config.tag_form == TagForm::Legacy);
        Session {
            config,
            state: State::Idle,
            reader: FrameReader::default(),
            auth_entry: None,
            outbox: Outbox::default(),
            events: VecDeque::new(),
            held: VecDeque::new(),
            recovered: Vec::new(),
            requests: BTreeMap::new(),
            deadlines: VecDeque::new(),
            last_stub: 0,
            conn: None,
            resume_token: Vec::new(),
            writer,
            type_names: Vec::new(),
            counters: Counters::default(),
            scratch: Vec::new(),
        }
    }

    /// Reports that the transport is connected, and starts the authentication. With
    /// [`SessionConfig::resume`], it presents the token of an earlier connection.
    pub fn handle_connected(&mut self, now: Instant) {
        self.reset_connection();
        self.compress(self.config.compression == CompressionPolicy::Always);
        self.state = State::Authenticating { deadline: Some(now + self.config.auth_timeout) };
        self.queue_auth();
    }

    /// Takes bytes as the transport delivered them, in any portions.
    ///
    /// Wrong input closes the session ([`Event::Closed`]); messages whose body does not decode are
    /// counted and dropped.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if matches!(self.state, State::Idle | State::Closed) {
            return;
        }
        self.counters.bytes_in += bytes.len() as u64;
        // The reader is taken out for the duration: the closure needs the rest of the session.
        let mut reader = std::mem::take(&mut self.reader);
        let result = reader.feed(bytes, &mut |packet| {
            for message in packet.messages() {
                self.handle_message(now, &message);
            }
            if self.state == State::Closed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.reader = reader;
        if let Err(error) = result
            && self.state != State::Closed
        {
            self.close(CloseReason::BadFrame(error.to_string()));
        }
    }

    /// Reports that the transport ended, with the code of the gateway's close frame on a WebSocket.
    /// Waiting requests fail and queued messages are dropped. The session waits for the next
    /// [`handle_connected`](Self::handle_connected).
    pub fn handle_closed(&mut self, _now: Instant, code: Option<CloseCode>) {
        if self.state == State::Idle {
            return;
        }
        if self.state != State::Closed {
            self.close(code.map_or(CloseReason::Transport, CloseReason::Gateway));
        }
        self.state = State::Idle;
    }

    /// Handles timeouts: fails requests without an answer, and ends an authentication that takes
    /// too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let State::Authenticating { deadline: Some(deadline) } = self.state
            && deadline <= now
        {
            self.close(CloseReason::AuthTimeout);
            return;
        }
        while let Some(&(deadline, stub)) = self.deadlines.front() {
            if self.requests.contains_key(&stub) {
                if deadline > now {
                    break;
                }
                self.requests.remove(&stub);
                self.push(Event::RequestFailed { request: RequestId(stub), reason: RequestFailure::Timeout });
            }
            self.deadlines.pop_front();
        }
    }

    /// Appends the next frame to `buf`: everything queued, up to the largest packet. A WebSocket
    /// driver sends each as one binary message. `None` when there is nothing to send now.
    pub fn poll_transmit(&mut self, _now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        let mut packet = std::mem::take(&mut self.scratch);
        packet.clear();
        let messages = match self.state {
            State::Authenticating { .. } => match self.auth_entry.take() {
                Some(entry) => {
                    packet.extend_from_slice(&entry);
                    1
                }
                None => 0,
            },
            State::Open => self.outbox.take_packet(&mut packet),
            State::Idle | State::Recovering | State::Closed => 0,
        };
        let transmit = (messages > 0).then(|| {
            let before = buf.len();
            // The run of entries is at most one packet long, so it makes exactly one frame.
            let fits = self.writer.push_entry(&packet, buf);
            debug_assert!(fits.is_ok(), "{fits:?}");
            self.writer.flush(buf);
            let frame_bytes = buf.len() - before;
            self.counters.bytes_out += frame_bytes as u64;
            self.counters.messages_out += messages as u64;
            Transmit { frame_bytes, messages }
        });
        self.scratch = packet;
        transmit
    }

    /// Next event for the application, in order of arrival.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Earliest time [`handle_timeout`](Self::handle_timeout) has work; may be early when the
    /// request at the front was answered.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let auth = match self.state {
            State::Authenticating { deadline } => deadline,
            _ => None,
        };
        let request = self.deadlines.front().map(|&(deadline, _)| deadline);
        match (auth, request) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Tries again with other tokens after [`Event::AuthRefused`].
    ///
    /// # Errors
    /// [`SendError::NotConnected`] unless an authentication is under way.
    pub fn authenticate(
        &mut self,
        now: Instant,
        pit: impl Into<String>,
        login_token: impl Into<String>,
    ) -> Result<(), SendError> {
        if !matches!(self.state, State::Authenticating { .. }) {
            return Err(SendError::NotConnected);
        }
        self.config.pit = pit.into();
        self.config.login_token = login_token.into();
        self.state = State::Authenticating { deadline: Some(now + self.config.auth_timeout) };
        self.queue_auth();
        Ok(())
    }

    /// Names the world that later connections enter, as [`SessionConfig::world`] does.
    pub fn set_world(&mut self, world: Option<String>) {
        self.config.world = world;
    }

    /// Creates a channel; answered by [`Event::ChannelCreated`], followed by an
    /// [`Event::Subscribed`] of the creator.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn create_channel(&mut self, now: Instant, create: &CreateChannel) -> Result<RequestId, SendError> {
        self.request(now, ChannelId::GLOBAL, msg_type::CREATE_CHANNEL, 0, &create.to_proto())
    }

    /// Removes a channel; answered by [`Event::ChannelRemoved`]. Gateways of the reference answer
    /// subscribers only.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn remove_channel(&mut self, now: Instant, channel: ChannelId) -> Result<RequestId, SendError> {
        let body = pb::RemoveChannelMessage { channel_id: channel.0 };
        self.request(now, ChannelId::GLOBAL, msg_type::REMOVE_CHANNEL, channel.0, &body)
    }

    /// Lists channels of a type (`None` = all) whose metadata contains one of `metadata_filters`
    /// (none = all); answered by [`Event::ChannelList`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn list_channels(
        &mut self,
        now: Instant,
        type_filter: Option<ChannelType>,
        metadata_filters: &[String],
    ) -> Result<RequestId, SendError> {
        let body = pb::ListChannelMessage {
            type_filter: type_filter.map_or(0, |t| t.to_wire()),
            metadata_filters: metadata_filters.to_vec(),
        };
        self.request(now, ChannelId::GLOBAL, msg_type::LIST_CHANNEL, 0, &body)
    }

    /// Subscribes this connection, or for servers the given one, to a channel; answered by
    /// [`Event::Subscribed`].
    ///
    /// Subscribing again changes the options of a subscription, and the gateway answers only if the
    /// access changed: use [`change_subscription`](Self::change_subscription) for the rest.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn subscribe(
        &mut self,
        now: Instant,
        channel: ChannelId,
        conn: Option<ConnId>,
        options: &SubscribeOptions,
    ) -> Result<RequestId, SendError> {
        let body = self.subscribe_body(conn, options);
        self.request(now, channel, msg_type::SUB_TO_CHANNEL, 0, &body)
    }

    /// Changes the options of a subscription, such as the fan-out interval, without requesting a
    /// response.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn change_subscription(
        &mut self,
        channel: ChannelId,
        conn: Option<ConnId>,
        options: &SubscribeOptions,
    ) -> Result<(), SendError> {
        let body = self.subscribe_body(conn, options).encode_to_vec();
        self.send_raw(channel, 0, 0, msg_type::SUB_TO_CHANNEL, &body)
    }

    /// Unsubscribes this connection or the given one; answered by [`Event::Unsubscribed`]. No data
    /// of the channel follows the response.
    ///
    /// # Errors
    /// See [`SendError`]; before the first authentication this connection has no id to name.
    pub fn unsubscribe(
        &mut self,
        now: Instant,
        channel: ChannelId,
        conn: Option<ConnId>,
    ) -> Result<RequestId, SendError> {
        let conn_id = conn.or(self.conn).ok_or(SendError::NotConnected)?.0;
        let body = pb::UnsubscribedFromChannelMessage { conn_id };
        self.request(now, channel, msg_type::UNSUB_FROM_CHANNEL, 0, &body)
    }

    /// Sends an update of a channel's data: `value` is the serialized message of type `type_name`
    /// (full name without a prefix). Not answered.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn update(&mut self, channel: ChannelId, type_name: &str, value: &[u8]) -> Result<(), SendError> {
        let type_url = format!("type.googleapis.com/{type_name}");
        let len = throng_wire::data_update_entry_len(channel.0, &type_url, value.len());
        self.queue(len, |out| throng_wire::write_data_update_entry(out, channel.0, &type_url, value))
    }

    /// Sends a user-space message (`msg_type` from 100 on) as a client: the payload goes to the
    /// owner of the channel, wrapped by the gateway with this connection's id.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&mut self, channel: ChannelId, msg_type: u32, payload: &[u8]) -> Result<(), SendError> {
        match self.config.kind {
            Kind::Client => self.send_raw(channel, broadcast::NONE, 0, msg_type, payload),
            Kind::Server => self.forward(channel, broadcast::NONE, msg_type, ConnId(0), payload),
        }
    }

    /// Sends a user-space message as a server to the recipients that `broadcast` selects
    /// ([`broadcast`]); `client` is the connection that bit 1 sends to (0 = none).
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn forward(
        &mut self,
        channel: ChannelId,
        broadcast: u32,
        msg_type: u32,
        client: ConnId,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.forward_as(channel, broadcast, msg_type, client, 0, payload)
    }

    /// Like `forward`, with a stub id, by which the recipient identifies the request that this
    /// message answers.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn forward_as(
        &mut self,
        channel: ChannelId,
        broadcast: u32,
        msg_type: u32,
        client: ConnId,
        stub_id: u32,
        payload: &[u8],
    ) -> Result<(), SendError> {
        let head = MessagePack { channel_id: channel.0, broadcast, stub_id, msg_type, body: &[] };
        let len = throng_wire::forward_entry_len(&head, client.0, payload.len());
        self.queue(len, |out| throng_wire::write_forward_entry(out, &head, client.0, payload))
    }

    /// As a player, calls a method of the matcher behind the gateway; answered by
    /// [`Event::Matchmaking`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn matchmake(&mut self, now: Instant, ask: &MatchmakingRequest) -> Result<RequestId, SendError> {
        self.request_raw(now, ChannelId::GLOBAL, MATCHMAKING, &ask.to_bytes())
    }

    /// Asks the gateway to close another connection. Not answered.
    /// [`leave`](Self::leave) closes this connection.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn disconnect(&mut self, conn: ConnId) -> Result<(), SendError> {
        let body = pb::DisconnectMessage { conn_id: conn.0 }.encode_to_vec();
        self.send_raw(ChannelId::GLOBAL, 0, 0, msg_type::DISCONNECT, &body)
    }

    /// Appends everything queued to `buf`, and then a DISCONNECT of the player's own id, after
    /// which the gateway frees its seats at once. Servers send none, because a server that
    /// disconnects counts as lost.
    pub fn leave(&mut self, now: Instant, buf: &mut Vec<u8>) {
        while self.poll_transmit(now, buf).is_some() {}
        let (Kind::Client, Some(conn)) = (self.config.kind, self.conn) else { return };
        if !matches!(self.state, State::Open | State::Recovering) {
            return;
        }
        let body = pb::DisconnectMessage { conn_id: conn.0 }.encode_to_vec();
        let message = MessagePack { msg_type: msg_type::DISCONNECT, body: &body, ..MessagePack::default() };
        let mut entry = Vec::with_capacity(entry_len(&message));
        write_entry(&mut entry, &message);
        let fits = self.writer.push_entry(&entry, buf);
        debug_assert!(fits.is_ok(), "{fits:?}");
        self.writer.flush(buf);
    }

    /// Sends any request with a fresh stub id. The response with that stub and type is reported as
    /// its own event or as [`Event::Other`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn request_raw(
        &mut self,
        now: Instant,
        channel: ChannelId,
        msg_type: u32,
        body: &[u8],
    ) -> Result<RequestId, SendError> {
        self.request_with_victim(now, channel, msg_type, 0, body)
    }

    /// Sends any message as it is.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_raw(
        &mut self,
        channel: ChannelId,
        broadcast: u32,
        stub_id: u32,
        msg_type: u32,
        body: &[u8],
    ) -> Result<(), SendError> {
        let message = MessagePack { channel_id: channel.0, broadcast, stub_id, msg_type, body };
        self.queue(entry_len(&message), |out| write_entry(out, &message))
    }

    /// The connection id given by the gateway; kept over a reconnect until the next authentication.
    #[must_use]
    pub fn conn(&self) -> Option<ConnId> {
        self.conn
    }

    /// True when what is sent goes out at once: authenticated, and not recovering.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// True when the driver is to close the transport (after [`Event::Closed`]).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The token that resumes this session on another connection; empty when the gateway gave none.
    #[must_use]
    pub fn resume_token(&self) -> &[u8] {
        &self.resume_token
    }

    /// Bytes queued and not yet transmitted.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.outbox.queued_bytes()
    }

    /// Requests that wait for an answer.
    #[must_use]
    pub fn requests_waiting(&self) -> usize {
        self.requests.len()
    }

    /// Counts since the session was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The settings; the tokens are those of the latest attempt.
    #[must_use]
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    fn reset_connection(&mut self) {
        self.reader = FrameReader::default();
        self.outbox = Outbox::default();
        self.auth_entry = None;
        self.held.clear();
        self.recovered.clear();
        self.requests.clear();
        self.deadlines.clear();
    }

    fn compress(&mut self, compress: bool) {
        self.writer.set_compression(if compress { Compression::Snappy } else { Compression::None });
    }

    fn queue_auth(&mut self) {
        let body = pb::AuthMessage {
            player_identifier_token: self.config.pit.clone(),
            login_token: self.config.login_token.clone(),
            // Present but empty asks for a token.
            resume_token: self.config.resume.then(|| self.resume_token.clone()),
            world: self.config.world.clone(),
        }
        .encode_to_vec();
        let message =
            MessagePack { channel_id: 0, broadcast: 0, stub_id: 1, msg_type: msg_type::AUTH, body: &body };
        let mut entry = Vec::with_capacity(entry_len(&message));
        write_entry(&mut entry, &message);
        self.auth_entry = Some(entry);
    }

    fn subscribe_body(
        &self,
        conn: Option<ConnId>,
        options: &SubscribeOptions,
    ) -> pb::SubscribedToChannelMessage {
        pb::SubscribedToChannelMessage {
            conn_id: conn.or(self.conn).map_or(0, |c| c.0),
            sub_options: options.to_proto(),
        }
    }

    fn request<M: prost::Message>(
        &mut self,
        now: Instant,
        channel: ChannelId,
        msg_type: u32,
        victim: u32,
        body: &M,
    ) -> Result<RequestId, SendError> {
        self.request_with_victim(now, channel, msg_type, victim, &body.encode_to_vec())
    }

    fn request_with_victim(
        &mut self,
        now: Instant,
        channel: ChannelId,
        msg_type: u32,
        victim: u32,
        body: &[u8],
    ) -> Result<RequestId, SendError> {
        if self.requests.len() >= self.config.requests_max {
            return Err(SendError::TooManyRequests(self.requests.len()));
        }
        let stub = self.next_stub();
        self.send_raw(channel, 0, stub, msg_type, body)?;
        self.last_stub = stub;
        self.requests.insert(stub, Request { msg_type, victim });
        self.deadlines.push_back((now + self.config.request_timeout, stub));
        Ok(RequestId(stub))
    }

    /// The stub id after the last one; never 0, never one that is waiting. Ids are not reused soon,
    /// so that a late answer is not taken for another's.
    fn next_stub(&self) -> u32 {
        let mut stub = self.last_stub;
        loop {
            stub = stub.wrapping_add(1).max(1);
            if !self.requests.contains_key(&stub) {
                return stub;
            }
        }
    }

    fn queue(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), SendError> {
        if matches!(self.state, State::Idle | State::Closed) {
            return Err(SendError::NotConnected);
        }
        if len > PACKET_BYTES_SEND_MAX {
            return Err(SendError::TooLarge { size: len, limit: PACKET_BYTES_SEND_MAX });
        }
        let queued_bytes = self.outbox.queued_bytes();
        if queued_bytes + len > self.config.outbox_bytes_max {
            return Err(SendError::QueueFull { queued_bytes, limit_bytes: self.config.outbox_bytes_max });
        }
        self.outbox.push(write);
        Ok(())
    }

    fn close(&mut self, reason: CloseReason) {
        self.state = State::Closed;
        for &stub in self.requests.keys() {
            self.events
                .push_back(Event::RequestFailed { request: RequestId(stub), reason: RequestFailure::Closed });
        }
        self.reset_connection();
        self.events.push_back(Event::Closed { reason });
    }

    fn push(&mut self, event: Event) {
        if self.state == State::Recovering {
            self.held.push_back(event);
        } else {
            self.events.push_back(event);
        }
        if self.events.len() + self.held.len() > self.config.events_max {
            self.close(CloseReason::EventsNotTaken { limit: self.config.events_max });
        }
    }
}
