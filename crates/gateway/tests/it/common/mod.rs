//! A gateway of one or more shards with peers attached directly to it, under a virtual clock.
//!
//! Mail is handed over at once and in order; what the gateway writes is read back by the wire
//! crate's own reader, so every test also checks that the outgoing bytes are valid frames.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use core::ops::ControlFlow;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use throng_gateway::data::{Schemas, SchemasBuilder};
use throng_gateway::{
    AcceptRefusal, CloseReason, Closed, Config, ConnHandle, ConnKind, Effect, Framing, Mail, Refusal, Shard,
    ShardIndex, Stats,
};
use throng_stdx::Instant;
use throng_wire::channeldpb::{self, MessageType};
use throng_wire::frame::{self, Compression, FrameReader};
use throng_wire::{MessagePack, write_entry};

pub const UNIX_START_NS: u64 = 1_700_000_000_000_000_000;

/// A message that a peer received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub channel: u32,
    pub broadcast: u32,
    pub stub: u32,
    pub msg_type: u32,
    pub body: Vec<u8>,
}

impl Received {
    pub fn decode<M: Message + Default>(&self) -> M {
        M::decode(&self.body[..]).expect("a valid body")
    }
}

/// A message to send.
#[derive(Debug, Clone, Default)]
pub struct Send {
    pub channel: u32,
    pub broadcast: u32,
    pub stub: u32,
    pub msg_type: u32,
    pub body: Vec<u8>,
}

impl Send {
    pub fn new(msg_type: MessageType, body: &impl Message) -> Self {
        Self { msg_type: msg_type as u32, body: body.encode_to_vec(), ..Self::default() }
    }

    pub fn user(msg_type: u32, body: &[u8]) -> Self {
        Self { msg_type, body: body.to_vec(), ..Self::default() }
    }

    pub fn to(self, channel: u32) -> Self {
        Self { channel, ..self }
    }

    pub fn stub(self, stub: u32) -> Self {
        Self { stub, ..self }
    }

    pub fn broadcast(self, broadcast: u32) -> Self {
        Self { broadcast, ..self }
    }
}

struct Peer {
    conn: ConnHandle,
    shard: usize,
    framing: Framing,
    reader: FrameReader,
    received: Vec<Received>,
    bytes: Vec<u8>,
    closed: Option<CloseReason>,
    /// Takes what is written to it.
    reads: bool,
    /// Never gets what may get lost.
    loses: bool,
    frames: Vec<usize>,
}

/// Names a peer within its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(usize);

pub struct World {
    pub shards: Vec<Shard>,
    pub now: Instant,
    peers: Vec<Peer>,
    by_conn: BTreeMap<ConnHandle, Id>,
    pub effects: Vec<Effect>,
    pub snappy_entries: usize,
    /// A shard whose mail to others waits in `held`, as that of a busy thread.
    pub slow_shard: Option<usize>,
    pub held: VecDeque<(ShardIndex, Mail)>,
}

const PROTOS: [(&str, &str); 3] = [
    ("chat", include_str!("../../../../../fixtures/proto/chat.proto")),
    ("test", include_str!("../../../../../fixtures/proto/test.proto")),
    ("tps", include_str!("../../../../../fixtures/proto/tps.proto")),
];

pub fn schemas() -> Arc<Schemas> {
    schemas_of(&["chat", "test", "tps"])
}

/// Schemas of some of the fixtures' packages.
pub fn schemas_of(packages: &[&str]) -> Arc<Schemas> {
    let mut builder = SchemasBuilder::new();
    for (name, text) in PROTOS.iter().filter(|(name, _)| packages.contains(name)) {
        builder = builder.add_proto(&format!("{name}.proto"), text);
    }
    Arc::new(builder.build().expect("the fixtures compile"))
}

impl World {
    pub fn new(config: Config) -> Self {
        Self::sharded(config, 1)
    }

    pub fn sharded(config: Config, count: u16) -> Self {
        Self::with_schemas(config, count, schemas())
    }

    pub fn with_schemas(config: Config, count: u16, schemas: Arc<Schemas>) -> Self {
        let config = Arc::new(config);
        let shard =
            |index| Shard::new(config.clone(), schemas.clone(), ShardIndex(index), count, 42, UNIX_START_NS);
        Self {
            shards: (0..count).map(shard).collect(),
            now: Instant::ZERO,
            peers: Vec::new(),
            by_conn: BTreeMap::new(),
            effects: Vec::new(),
            snappy_entries: 0,
            slow_shard: None,
            held: VecDeque::new(),
        }
    }

    pub fn connect(&mut self, kind: ConnKind) -> Id {
        self.try_connect(kind, "10.0.0.1").expect("accepted")
    }

    pub fn try_connect(&mut self, kind: ConnKind, addr: &str) -> Result<Id, AcceptRefusal> {
        self.connect_with(kind, Framing::Stream, addr)
    }

    pub fn connect_with(
        &mut self,
        kind: ConnKind,
        framing: Framing,
        addr: &str,
    ) -> Result<Id, AcceptRefusal> {
        let addr: IpAddr = addr.parse().expect("an address");
        let accepted = self.shards[0].accept(self.now, kind, framing, addr);
        self.settle();
        let accepted = accepted?;
        let id = Id(self.peers.len());
        self.peers.push(Peer {
            conn: accepted.conn,
            shard: usize::from(accepted.shard.0),
            framing,
            reader: FrameReader::default(),
            received: Vec::new(),
            bytes: Vec::new(),
            closed: None,
            reads: true,
            loses: false,
            frames: Vec::new(),
        });
        self.by_conn.insert(accepted.conn, id);
        Ok(id)
    }

    /// A connection that has authenticated; its messages so far are forgotten.
    pub fn join(&mut self, kind: ConnKind, pit: &str) -> Id {
        let id = self.connect(kind);
        self.auth(id, pit);
        self.take(id);
        id
    }

    pub fn auth(&mut self, id: Id, pit: &str) {
        let body = channeldpb::AuthMessage {
            player_identifier_token: pit.into(),
            login_token: "lt".into(),
            resume_token: None,
            ..Default::default()
        };
        self.send(id, [Send::new(MessageType::Auth, &body).stub(1)]);
    }

    /// The id by which other peers know this one, as of its accept.
    pub fn conn(&self, id: Id) -> u32 {
        self.peers[id.0].conn.0
    }

    pub fn shard_of(&self, id: Id) -> usize {
        self.peers[id.0].shard
    }

    pub fn send(&mut self, id: Id, messages: impl IntoIterator<Item = Send>) {
        let frame = frame_of(messages, Compression::None);
        self.send_raw(id, &frame);
    }

    pub fn send_snappy(&mut self, id: Id, messages: impl IntoIterator<Item = Send>) {
        let frame = frame_of(messages, Compression::Snappy);
        self.send_raw(id, &frame);
    }

    pub fn send_raw(&mut self, id: Id, bytes: &[u8]) {
        let peer = &self.peers[id.0];
        self.shards[peer.shard].handle_bytes(self.now, peer.conn, bytes);
        self.settle();
    }

    /// The peer's stream ends, as that of a process that dies.
    pub fn close(&mut self, id: Id) {
        self.close_as(id, Closed::EndOfStream);
    }

    pub fn close_as(&mut self, id: Id, closed: Closed) {
        let peer = &self.peers[id.0];
        self.shards[peer.shard].handle_closed(self.now, peer.conn, closed);
        self.settle();
    }

    /// Whether the peer takes what is written to it.
    pub fn set_reading(&mut self, id: Id, reads: bool) {
        self.peers[id.0].reads = reads;
        if reads {
            self.write(id, usize::MAX);
            self.settle();
        }
    }

    /// Whether everything that may get lost on the way to the peer does.
    pub fn set_losing(&mut self, id: Id, loses: bool) {
        self.peers[id.0].loses = loses;
    }

    /// Lets the transport of a peer take up to `max` bytes.
    pub fn write(&mut self, id: Id, max: usize) -> usize {
        let peer = &mut self.peers[id.0];
        let mut total = 0;
        while total < max {
            let Some(outbox) = self.shards[peer.shard].outbox(peer.conn) else { break };
            let mut slices = Vec::new();
            let is_lost = outbox.may_get_lost() && peer.loses;
            outbox.gather(&mut slices);
            let mut chunk: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            chunk.truncate(max - total);
            self.shards[peer.shard].handle_written(self.now, peer.conn, chunk.len());
            if chunk.is_empty() {
                break;
            }
            total += chunk.len();
            if !is_lost {
                peer.bytes.extend_from_slice(&chunk);
            }
        }
        self.parse(id);
        total
    }

    fn parse(&mut self, id: Id) {
        let peer = &mut self.peers[id.0];
        let bytes = std::mem::take(&mut peer.bytes);
        let (mut stream, rest) = match peer.framing {
            Framing::Stream | Framing::Packets => (bytes, Vec::new()),
            Framing::WebSocket => unwrap_websocket(&bytes),
        };
        // Sizes of frames, for tests about sizes.
        peer.bytes = rest;
        if peer.reader.buffered_bytes() == 0 {
            let mut at = 0;
            while stream.len() - at >= 5 {
                let size = usize::from(stream[at + 2]) << 8 | usize::from(stream[at + 3]);
                self.snappy_entries += usize::from(stream[at + 4] == 1);
                peer.frames.push(size);
                at += 5 + size;
                if at > stream.len() {
                    break;
                }
            }
        }
        let received = &mut peer.received;
        peer.reader
            .feed(&stream, &mut |packet| {
                received.extend(packet.messages().map(|message| Received {
                    channel: message.channel_id,
                    broadcast: message.broadcast,
                    stub: message.stub_id,
                    msg_type: message.msg_type,
                    body: message.body.to_vec(),
                }));
                ControlFlow::Continue(())
            })
            .expect("the gateway writes valid frames");
        stream.clear();
    }

    /// Carries mail, effects and output until nothing is left.
    pub fn settle(&mut self) {
        loop {
            let mut letters: VecDeque<(ShardIndex, Mail)> = VecDeque::new();
            for (index, shard) in self.shards.iter_mut().enumerate() {
                let mail = std::iter::from_fn(|| shard.poll_mail());
                if self.slow_shard == Some(index) { self.held.extend(mail) } else { letters.extend(mail) }
            }
            let mut busy = !letters.is_empty();
            for (to, mail) in letters {
                self.shards[usize::from(to.0)].handle_mail(self.now, mail);
            }
            for shard in 0..self.shards.len() {
                while let Some(effect) = self.shards[shard].poll_effect() {
                    busy = true;
                    if let Effect::Close { conn, reason, flush, .. } = &effect
                        && let Some(&id) = self.by_conn.get(conn)
                    {
                        let peer = &mut self.peers[id.0];
                        peer.closed = Some(*reason);
                        peer.bytes.extend_from_slice(flush);
                        self.by_conn.remove(conn);
                        if peer.reads {
                            self.parse(id);
                        }
                    }
                    self.effects.push(effect);
                }
                while let Some(conn) = self.shards[shard].poll_writable() {
                    let Some(&id) = self.by_conn.get(&conn) else { continue };
                    busy = true;
                    if self.peers[id.0].reads {
                        self.write(id, usize::MAX);
                    } else {
                        self.shards[shard].handle_written(self.now, conn, 0);
                    }
                }
            }
            for shard in &self.shards {
                assert_eq!(shard.check_invariants(), []);
            }
            if !busy {
                return;
            }
        }
    }

    /// Delivers the oldest mail of the slow shard; false when none waits.
    pub fn deliver_held(&mut self) -> bool {
        let Some((to, mail)) = self.held.pop_front() else { return false };
        self.shards[usize::from(to.0)].handle_mail(self.now, mail);
        self.settle();
        true
    }

    /// Lets time pass, with every timeout at its time.
    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            self.settle();
            let next = self.shards.iter().filter_map(|shard| shard.next_timeout()).min();
            match next {
                Some(next) if next <= end => {
                    self.now = self.now.max(next);
                    for shard in &mut self.shards {
                        shard.handle_timeout(self.now);
                    }
                }
                _ => break,
            }
        }
        self.now = end;
    }

    pub fn run_ms(&mut self, ms: u64) {
        self.run(Duration::from_millis(ms));
    }

    /// Jumps without running timeouts, as an overloaded process does; then runs what is due.
    pub fn jump_to_ms(&mut self, ms: u64) {
        self.now = Instant::from_millis(ms);
        for shard in &mut self.shards {
            shard.handle_timeout(self.now);
        }
        self.settle();
    }

    /// What a peer received since the last call.
    pub fn take(&mut self, id: Id) -> Vec<Received> {
        std::mem::take(&mut self.peers[id.0].received)
    }

    pub fn take_types(&mut self, id: Id) -> Vec<u32> {
        self.take(id).iter().map(|message| message.msg_type).collect()
    }

    /// Sizes of the frames that a peer received.
    pub fn frame_sizes(&self, id: Id) -> &[usize] {
        &self.peers[id.0].frames
    }

    pub fn closed(&self, id: Id) -> Option<CloseReason> {
        self.peers[id.0].closed
    }

    pub fn queued(&mut self, id: Id) -> usize {
        let peer = &self.peers[id.0];
        self.shards[peer.shard].outbox(peer.conn).map_or(0, |outbox| outbox.queued_bytes())
    }

    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for shard in &self.shards {
            sum.add(shard.stats());
        }
        sum
    }

    pub fn refused(&self, reason: Refusal) -> u64 {
        self.stats().refused(reason)
    }
}

pub fn frame_of(messages: impl IntoIterator<Item = Send>, compression: Compression) -> Vec<u8> {
    let mut packet = Vec::new();
    for message in messages {
        write_entry(
            &mut packet,
            &MessagePack {
                channel_id: message.channel,
                broadcast: message.broadcast,
                stub_id: message.stub,
                msg_type: message.msg_type,
                body: &message.body,
            },
        );
    }
    if compression == Compression::Snappy {
        packet = snappy_block(&packet);
    }
    [&frame::tag(packet.len(), compression)[..], &packet].concat()
}

/// A Snappy block of literals only, which is always valid.
fn snappy_block(plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    throng_wire::write_varint(&mut out, plain.len() as u64);
    for chunk in plain.chunks(60) {
        out.push(((chunk.len() - 1) << 2) as u8);
        out.extend_from_slice(chunk);
    }
    out
}

/// Payload bytes of complete binary messages, and the rest.
fn unwrap_websocket(mut bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut out = Vec::new();
    while bytes.len() >= 2 {
        assert_eq!(bytes[0], 0x82, "a final binary message");
        let (len, header) = match bytes[1] {
            126 if bytes.len() >= 4 => (usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), 4),
            126 => break,
            len => (usize::from(len), 2),
        };
        if bytes.len() < header + len {
            break;
        }
        out.extend_from_slice(&bytes[header..header + len]);
        bytes = &bytes[header + len..];
    }
    (out, bytes.to_vec())
}
