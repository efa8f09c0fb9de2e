//! A gateway process without sockets, driven by hand.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use throng_gateway::data::Schemas;
use throng_gateway::{
    AcceptRefusal, AuthTicket, CloseReason, Closed, Config, ConnHandle, ConnKind, Effect, Framing, Mail,
    Shard, ShardIndex, Stats, Verdict,
};
use throng_net::ws;
use throng_stdx::Instant;
use throng_wire::frame::{FrameReader, PACKET_BYTES_SEND_MAX};
use throng_wire::{FrameWriter, MessagePack};

/// All shards of one process, with a transport that takes everything at once unless told otherwise.
///
/// After every input the outputs are drained, as the gateway's contract asks, and what the shards
/// wrote is checked to be frames that a peer can read.
pub struct Process {
    now: Instant,
    shards: Vec<Shard>,
    /// Mail on its way to each shard.
    inboxes: Vec<VecDeque<Mail>>,
    peers: BTreeMap<ConnHandle, Peer>,
    /// Connections that the gateway closed, with the reason.
    closed: BTreeMap<ConnHandle, CloseReason>,
    tickets: VecDeque<AuthTicket>,
    outbox_bytes_max: [usize; 2],
}

/// One message that a peer received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Source channel.
    pub channel_id: u32,
    /// Broadcast value, echoed or forwarded.
    pub broadcast: u32,
    /// Number of the request that it answers, 0 for none.
    pub stub_id: u32,
    /// Message type.
    pub msg_type: u32,
    /// Serialized body.
    pub body: Vec<u8>,
}

struct Peer {
    shard: usize,
    kind: ConnKind,
    websocket: Option<ws::Decoder>,
    reader: FrameReader,
    received: Vec<Message>,
    /// Reads nothing.
    stalled: bool,
}

impl Process {
    /// A process of `count` shards.
    ///
    /// # Panics
    /// When `count` is zero.
    #[must_use]
    pub fn new(config: &Arc<Config>, schemas: &Arc<Schemas>, count: u16, seed: u64) -> Self {
        assert!(count > 0, "a process has shards");
        let shard = |index| Shard::new(config.clone(), schemas.clone(), ShardIndex(index), count, seed, 0);
        let mut process = Self {
            now: Instant::ZERO,
            shards: (0..count).map(shard).collect(),
            inboxes: (0..count).map(|_| VecDeque::new()).collect(),
            peers: BTreeMap::new(),
            closed: BTreeMap::new(),
            tickets: VecDeque::new(),
            outbox_bytes_max: config.outbox.hard_bytes,
        };
        process.drain();
        process
    }

    /// A peer connects from the host `10.0.0.host`.
    ///
    /// # Errors
    /// The gateway does not want it.
    pub fn accept(
        &mut self,
        kind: ConnKind,
        framing: Framing,
        host: u8,
    ) -> Result<ConnHandle, AcceptRefusal> {
        let addr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, host));
        let accepted = self.shards[0].accept(self.now, kind, framing, addr);
        if let Ok(accepted) = accepted {
            let websocket =
                matches!(framing, Framing::WebSocket).then(|| ws::Decoder::new(ws::Role::Client, 1 << 20));
            let peer = Peer {
                shard: usize::from(accepted.shard.0),
                kind,
                websocket,
                reader: FrameReader::default(),
                received: Vec::new(),
                stalled: false,
            };
            assert_ne!(accepted.conn.0, 0, "no connection has the id 0");
            assert!(self.peers.insert(accepted.conn, peer).is_none(), "an id was given twice");
            self.closed.remove(&accepted.conn);
        }
        self.drain();
        accepted.map(|accepted| accepted.conn)
    }

    /// A peer sends bytes. Nothing happens if its connection is closed.
    pub fn send_bytes(&mut self, conn: ConnHandle, bytes: &[u8]) {
        if let Some(peer) = self.peers.get(&conn) {
            self.shards[peer.shard].handle_bytes(self.now, conn, bytes);
            self.drain();
        }
    }

    /// A peer sends one message in a frame of its own; messages that do not fit are left out.
    pub fn send(&mut self, conn: ConnHandle, message: &MessagePack<'_>) {
        let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
        if writer.push(message, &mut bytes).is_ok() {
            writer.flush(&mut bytes);
            self.send_bytes(conn, &bytes);
        }
    }

    /// A peer's transport ends.
    pub fn close(&mut self, conn: ConnHandle, cause: Closed) {
        if let Some(peer) = self.peers.remove(&conn) {
            self.shards[peer.shard].handle_closed(self.now, conn, cause);
            self.drain();
        }
    }

    /// From now on a peer reads nothing, or reads again.
    pub fn set_stalled(&mut self, conn: ConnHandle, stalled: bool) {
        if let Some(peer) = self.peers.get_mut(&conn) {
            peer.stalled = stalled;
            self.write_to(conn);
            self.drain();
        }
    }

    /// The authentication provider answers the oldest question.
    pub fn answer(&mut self, verdict: Verdict) {
        if let Some(ticket) = self.tickets.pop_front() {
            self.shards[0].handle_verdict(self.now, ticket, verdict);
            self.drain();
        }
    }

    /// Time passes; every timer fires at its time.
    ///
    /// # Panics
    /// When a shard asks for the same moment again and again.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let mut rounds = 0_u64;
        loop {
            let due = self.shards.iter().filter_map(Shard::next_timeout).min();
            match due.filter(|due| *due <= until) {
                None => break,
                Some(due) => {
                    rounds = if due > self.now { 0 } else { rounds + 1 };
                    assert!(rounds < 64, "a timer is due for ever");
                    self.now = self.now.max(due);
                    let now = self.now;
                    for shard in &mut self.shards {
                        if shard.next_timeout().is_some_and(|due| due <= now) {
                            shard.handle_timeout(now);
                        }
                    }
                    self.drain();
                }
            }
        }
        self.now = until;
    }

    /// Shuts down; every connection is closed.
    pub fn shut_down(&mut self) {
        for shard in &mut self.shards {
            shard.begin_shutdown(self.now);
        }
        self.drain();
    }

    /// What a peer received since the last call.
    pub fn take_received(&mut self, conn: ConnHandle) -> Vec<Message> {
        self.peers.get_mut(&conn).map(|peer| std::mem::take(&mut peer.received)).unwrap_or_default()
    }

    /// Connections that are open, in order of their ids.
    #[must_use]
    pub fn open(&self) -> Vec<ConnHandle> {
        self.peers.keys().copied().collect()
    }

    /// Why the gateway closed a connection; `None` if it did not.
    #[must_use]
    pub fn closed(&self, conn: ConnHandle) -> Option<CloseReason> {
        self.closed.get(&conn).copied()
    }

    /// The counters of all shards together.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for shard in &self.shards {
            sum.add(shard.stats());
        }
        sum
    }

    /// Asserts what holds between inputs.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&mut self) {
        let stats = self.stats();
        for kind in ConnKind::ALL {
            let open = self.peers.values().filter(|peer| peer.kind == kind).count() as u64;
            assert_eq!(stats.kind(kind).connections, open, "{kind:?} connections are counted wrong");
        }
        for (conn, peer) in &self.peers {
            let queued = self.shards[peer.shard].outbox(*conn).map_or(0, |outbox| outbox.queued_bytes());
            let bound = self.outbox_bytes_max[peer.kind.index()] + 2 * PACKET_BYTES_SEND_MAX;
            assert!(queued <= bound, "{queued} bytes wait for {conn:?}");
        }
    }

    /// Carries mail, effects and bytes until there are none.
    fn drain(&mut self) {
        // What one input may set off is bounded; far more is a loop between shards.
        for _ in 0..10_000 {
            let mut idle = true;
            for index in 0..self.shards.len() {
                while let Some((to, mail)) = self.shards[index].poll_mail() {
                    self.inboxes[usize::from(to.0)].push_back(mail);
                    idle = false;
                }
                while let Some(effect) = self.shards[index].poll_effect() {
                    self.carry_out(effect);
                    idle = false;
                }
                while let Some(conn) = self.shards[index].poll_writable() {
                    self.write_to(conn);
                    idle = false;
                }
                if let Some(mail) = self.inboxes[index].pop_front() {
                    self.shards[index].handle_mail(self.now, mail);
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
        panic!("the shards never come to rest");
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Close { conn, reason, flush, .. } => {
                if let Some(mut peer) = self.peers.remove(&conn) {
                    peer.read(&flush);
                    self.closed.insert(conn, reason);
                }
            }
            Effect::Authenticate { ticket, .. } => self.tickets.push_back(ticket),
            Effect::Recording { .. } | Effect::SecurityLog(_) => {}
            other => panic!("an effect that no driver knows: {other:?}"),
        }
    }

    fn write_to(&mut self, conn: ConnHandle) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
        let shard = &mut self.shards[peer.shard];
        if peer.stalled {
            shard.handle_written(self.now, conn, 0);
            return;
        }
        loop {
            let Some(outbox) = shard.outbox(conn) else { return };
            let mut slices: Vec<IoSlice<'_>> = Vec::new();
            outbox.gather(&mut slices);
            let bytes = slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
            if bytes.is_empty() {
                return;
            }
            peer.read(&bytes);
            shard.handle_written(self.now, conn, bytes.len());
        }
    }
}

impl Peer {
    /// Reads what the gateway wrote, which must be readable.
    fn read(&mut self, bytes: &[u8]) {
        let mut plain = Vec::new();
        if let Some(decoder) = &mut self.websocket {
            let result = decoder.feed(&mut bytes.to_vec(), &mut |event| {
                if let ws::Event::Data(bytes) = event {
                    plain.extend_from_slice(bytes);
                }
                ControlFlow::Continue(())
            });
            assert!(result.is_ok(), "the gateway wrote bad WebSocket frames: {result:?}");
        } else {
            plain.extend_from_slice(bytes);
        }
        let received = &mut self.received;
        let result = self.reader.feed(&plain, &mut |packet| {
            assert!(packet.bytes().len() <= PACKET_BYTES_SEND_MAX, "a packet too large for the Go client");
            received.extend(packet.messages().map(|message| Message {
                channel_id: message.channel_id,
                broadcast: message.broadcast,
                stub_id: message.stub_id,
                msg_type: message.msg_type,
                body: message.body.to_vec(),
            }));
            ControlFlow::Continue(())
        });
        assert!(result.is_ok(), "the gateway wrote bad frames: {result:?}");
    }
}
