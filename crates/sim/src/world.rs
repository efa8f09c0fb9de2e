//! The virtual process and network: production shards, mail between them, and a link to every peer.

mod gateway;
mod links;
mod panics;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use links::WebSocketPayloads;
use throng_gateway::data::Schemas;
use throng_gateway::{
    AuthTicket, CloseReason, Closed, Config, ConnHandle, ConnKind, Framing, Mail, Shard, ShardIndex, Verdict,
};
use throng_net::kcp::Profile;
use throng_stdx::{Instant, Rng};

use crate::kcp_link::{Direction, KcpLink};
use crate::link::{Link, LinkProfile};

/// A remote end: one connection of a client or a game server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub usize);

/// Events of the peers, in order of virtual time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The connection is up; the peer may send.
    Opened(PeerId),
    /// The gateway did not take the connection.
    Refused(PeerId),
    /// Bytes arrived at the peer.
    Bytes(PeerId, Vec<u8>),
    /// The link takes bytes again.
    Room(PeerId),
    /// The connection has ended, as seen by the peer.
    Closed(PeerId),
    /// A time asked for with [`World::wake`].
    Wake(u64),
}

/// Ways in which a peer leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Closes the connection: its sent bytes arrive, then the end of the stream.
    Close,
    /// Resets the connection: bytes in transit are lost, and both ends notice soon.
    Reset,
    /// It is gone, and the gateway notices only after the given time.
    Vanish(Duration),
}

/// Behaviour of the virtual process and of links made from now on.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// Mail waits up to this long in a shard's inbox before it is handled.
    pub mail_delay_max: Duration,
    /// Verdicts of the authentication provider take up to this long.
    pub verdict_delay_max: Duration,
    /// Chance that the provider fails.
    pub verdict_error: f64,
}

impl Default for Conditions {
    fn default() -> Self {
        Conditions {
            mail_delay_max: Duration::from_micros(200),
            verdict_delay_max: Duration::from_millis(20),
            verdict_error: 0.0,
        }
    }
}

/// Shards, links and the order of all events. The same seed gives the same run.
#[derive(Debug)]
pub struct World {
    now: Instant,
    rng: Rng,
    /// Present conditions of the network and the peers.
    pub conditions: Conditions,
    shards: Vec<ShardSlot>,
    /// Scheduled events; ties are broken at random, then by number.
    due: BTreeMap<(Instant, u32, u64), Due>,
    next_number: u64,
    peers: Vec<PeerEnd>,
    /// Sockets that the gateway holds.
    sockets: BTreeMap<ConnHandle, PeerId>,
    notes: VecDeque<Note>,
    closed: Vec<ClosedByGateway>,
    /// Most bytes that ever waited in one outbox.
    peak_outbox_bytes: usize,
    /// Most items that ever waited in one inbox.
    peak_inbox: usize,
    steps: u64,
    panics: panics::Panics,
}

/// A connection that the gateway closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedByGateway {
    /// Instant at which it happens.
    pub at: Instant,
    /// Peer that it belongs to.
    pub peer: PeerId,
    /// Why.
    pub reason: CloseReason,
}

#[derive(Debug)]
struct ShardSlot {
    shard: Shard,
    inbox: VecDeque<Inbox>,
    /// The thread does nothing before.
    paused_until: Instant,
    /// Earliest timer event in `World::due`.
    timer_at: Option<Instant>,
}

#[derive(Debug)]
enum Inbox {
    Mail(Mail),
    /// A socket changes hands; from here on its bytes are this shard's.
    Socket(PeerId),
}

/// Transport of a connection's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// A stream: TCP or TLS, with plain frames or WebSocket messages.
    Stream(Framing),
    /// KCP over datagrams.
    Kcp(Profile),
}

impl From<Framing> for Carrier {
    fn from(framing: Framing) -> Self {
        Carrier::Stream(framing)
    }
}

#[derive(Debug)]
struct PeerEnd {
    kind: ConnKind,
    framing: Framing,
    addr: IpAddr,
    up: Link,
    down: Link,
    /// Replaces `up` and `down`.
    kcp: Option<Box<KcpLink>>,
    kcp_scheduled: Option<Instant>,
    state: PeerState,
    conn: Option<(ConnHandle, ShardIndex)>,
    /// The socket has arrived at its shard.
    attached: bool,
    up_scheduled: Option<Instant>,
    down_scheduled: Option<Instant>,
    /// The gateway sees the end of the stream after the last chunk.
    up_end: Option<Closed>,
    /// The peer sees the end after the last chunk.
    down_ends: bool,
    wants_room: bool,
    websocket: WebSocketPayloads,
    /// Instant at which the gateway gave the latest bytes that have arrived to the link.
    given: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerState {
    Over,
    Connecting,
    Open,
}

#[derive(Debug)]
enum Due {
    Accept(PeerId),
    Up(PeerId),
    Down(PeerId),
    Kcp(PeerId),
    /// A peer that is connected by KCP notices that the gateway is gone.
    Silent(PeerId),
    Write(PeerId),
    Inbox(ShardIndex),
    Timer(ShardIndex),
    /// With the life of the world that asked.
    Verdict(u64, AuthTicket, Verdict),
    /// The gateway notices that a vanished connection is gone.
    Lost(PeerId, ConnHandle, Closed),
    Wake(u64),
}

/// KCP has no closing message: the other end notices the loss after this time without input.
const KCP_SILENCE: Duration = Duration::from_millis(300);

/// Unix time of `Instant::ZERO`: 14 November 2023, for no reason but to be a real time.
pub const UNIX_START_NS: u64 = 1_700_000_000_000_000_000;

impl World {
    /// A process with `shard_count` shards and no connection.
    #[must_use]
    pub fn new(config: Config, schemas: Arc<Schemas>, shard_count: u16, seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let config = Arc::new(config);
        let shard = |index| ShardSlot {
            shard: Shard::new(
                Arc::clone(&config),
                Arc::clone(&schemas),
                ShardIndex(index),
                shard_count,
                rng.next_u64(),
                UNIX_START_NS,
            ),
            inbox: VecDeque::new(),
            paused_until: Instant::ZERO,
            timer_at: None,
        };
        World {
            now: Instant::ZERO,
            shards: (0..shard_count).map(shard).collect(),
            rng,
            conditions: Conditions::default(),
            due: BTreeMap::new(),
            next_number: 0,
            peers: Vec::new(),
            sockets: BTreeMap::new(),
            notes: VecDeque::new(),
            closed: Vec::new(),
            peak_outbox_bytes: 0,
            peak_inbox: 0,
            steps: 0,
            panics: panics::Panics::default(),
        }
    }

    /// Begins to connect; [`Note::Opened`] or [`Note::Refused`] follows. `carrier` decides how the
    /// gateway's bytes are wrapped; the peer gets plain frames either way. Every connection is a
    /// peer of its own.
    pub fn connect(
        &mut self,
        kind: ConnKind,
        carrier: impl Into<Carrier>,
        addr: IpAddr,
        profile: LinkProfile,
    ) -> PeerId {
        let peer = PeerId(self.peers.len());
        let delay = profile.delay;
        let (framing, kcp) = match carrier.into() {
            Carrier::Stream(framing) => (framing, None),
            Carrier::Kcp(tuning) => {
                let link = KcpLink::new(profile.clone(), tuning, &mut self.rng, self.now);
                (Framing::Stream, Some(Box::new(link)))
            }
        };
        self.peers.push(PeerEnd {
            kind,
            framing,
            addr,
            kcp,
            kcp_scheduled: None,
            up: Link::new(profile.clone()),
            down: Link::new(profile),
            state: PeerState::Connecting,
            conn: None,
            attached: false,
            up_scheduled: None,
            down_scheduled: None,
            up_end: None,
            down_ends: false,
            wants_room: false,
            websocket: WebSocketPayloads::default(),
            given: None,
        });
        self.schedule(self.now + delay, Due::Accept(peer));
        peer
    }

    /// Sends bytes of a peer; returns how many the link took. [`Note::Room`] follows when it took
    /// fewer.
    pub fn send(&mut self, peer: PeerId, bytes: &[u8]) -> usize {
        let end = &mut self.peers[peer.0];
        if end.state != PeerState::Open || end.up_end.is_some() {
            return bytes.len();
        }
        let taken = match &mut end.kcp {
            Some(kcp) => kcp.push(self.now, &mut self.rng, Direction::Up, bytes),
            None => end.up.push(self.now, &mut self.rng, bytes),
        };
        end.wants_room = taken < bytes.len();
        self.schedule_up(peer);
        taken
    }

    /// Ends a peer's connection from its side. The peer notices at once.
    pub fn leave(&mut self, peer: PeerId, how: Leave) {
        let end = &mut self.peers[peer.0];
        if end.state == PeerState::Over {
            return;
        }
        end.state = PeerState::Over;
        end.down.cut();
        let conn = end.conn;
        if end.kcp.is_some() {
            let silence = match how {
                Leave::Close | Leave::Reset => KCP_SILENCE,
                Leave::Vanish(noticed_after) => noticed_after,
            };
            if how != Leave::Close {
                // The last bytes of a lost peer are lost; those of a peer that closes still arrive.
                end.kcp = None;
            }
            if let Some((conn, _)) = conn {
                self.schedule(self.now + silence, Due::Lost(peer, conn, Closed::Error));
            }
            return;
        }
        match how {
            Leave::Close => {
                end.up_end = Some(Closed::EndOfStream);
                self.finish_up(peer);
            }
            Leave::Reset => {
                end.up.cut();
                end.up_end = Some(Closed::Error);
                self.finish_up(peer);
            }
            Leave::Vanish(noticed_after) => {
                end.up.cut();
                // The gateway's bytes pile up in a link that nobody empties.
                end.down.stall(self.now + noticed_after + Duration::from_secs(3600));
                if let Some((conn, _)) = conn {
                    self.schedule(self.now + noticed_after, Due::Lost(peer, conn, Closed::Error));
                }
            }
        }
    }

    /// Nothing arrives in the given directions before `until`.
    pub fn stall(&mut self, peer: PeerId, up: bool, down: bool, until: Instant) {
        let end = &mut self.peers[peer.0];
        for (direction, stalled) in [(Direction::Up, up), (Direction::Down, down)] {
            match (&mut end.kcp, direction) {
                _ if !stalled => {}
                (Some(kcp), direction) => kcp.stall(direction, until),
                (None, Direction::Up) => end.up.stall(until),
                (None, Direction::Down) => end.down.stall(until),
            }
        }
    }

    /// Ends all stalls and pauses.
    pub fn heal(&mut self) {
        for index in 0..self.peers.len() {
            let end = &mut self.peers[index];
            if end.state == PeerState::Open {
                end.up.heal(self.now);
                end.down.heal(self.now);
                if let Some(kcp) = &mut end.kcp {
                    kcp.heal(self.now);
                }
                self.schedule_up(PeerId(index));
                self.schedule_down(PeerId(index));
            }
        }
        for index in 0..self.shards.len() {
            self.shards[index].paused_until = self.now;
            self.schedule_inbox(ShardIndex(index as u16));
        }
        self.conditions = Conditions::default();
    }

    /// Sets the conditions of a peer's links from now on.
    pub fn set_profile(&mut self, peer: PeerId, profile: LinkProfile) {
        let end = &mut self.peers[peer.0];
        if let Some(kcp) = &mut end.kcp {
            kcp.profile = profile.clone();
        }
        end.up.profile = profile.clone();
        end.down.profile = profile;
    }

    /// The thread of a shard does nothing before `until`.
    pub fn pause_shard(&mut self, shard: ShardIndex, until: Instant) {
        let slot = &mut self.shards[usize::from(shard.0)];
        slot.paused_until = slot.paused_until.max(until);
    }

    /// Closes clients of a shard whose output takes too much memory, see
    /// [`Shard::shed_backlog`].
    pub fn shed_backlog(&mut self, shard: ShardIndex, excess: usize) {
        self.guard(shard, |shard, now| shard.shed_backlog(now, excess));
        self.drain(shard);
    }

    /// Makes [`Note::Wake`] happen.
    pub fn wake(&mut self, at: Instant, token: u64) {
        self.schedule(at.max(self.now), Due::Wake(token));
    }

    /// Runs the next event unless it is after `end`, and returns what the peers observe. `None`
    /// once the time is `end`.
    pub fn step(&mut self, end: Instant) -> Option<Note> {
        loop {
            if let Some(note) = self.notes.pop_front() {
                return Some(note);
            }
            let next = self.due.first_key_value().map(|(&(at, ..), _)| at).filter(|&at| at <= end);
            let Some(at) = next else {
                self.now = end;
                return None;
            };
            let (_, due) = self.due.pop_first()?;
            self.now = self.now.max(at);
            self.steps += 1;
            self.happen(due);
        }
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the random generator, for drivers of the world.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Number of shards.
    #[must_use]
    pub fn shard_count(&self) -> u16 {
        self.shards.len() as u16
    }

    /// The shards, to look at.
    pub fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().map(|slot| &slot.shard)
    }

    /// The shards, for shutting down and the like; outputs are drained by the next event.
    pub fn begin_shutdown(&mut self) {
        for index in 0..self.shards.len() {
            let now = self.now;
            self.shards[index].shard.begin_shutdown(now);
            self.drain(ShardIndex(index as u16));
        }
    }

    /// Connections that the gateway closed so far.
    #[must_use]
    pub fn closed_by_gateway(&self) -> &[ClosedByGateway] {
        &self.closed
    }

    /// True while the peer's connection is up, as the peer sees it.
    #[must_use]
    pub fn is_open(&self, peer: PeerId) -> bool {
        self.peers[peer.0].state == PeerState::Open
    }

    /// True if the gateway has had the peer's connection, and has it no longer.
    #[must_use]
    pub fn is_forgotten(&self, peer: PeerId) -> bool {
        let end = &self.peers[peer.0];
        end.conn.is_none() && end.state != PeerState::Connecting
    }

    /// True if an end of a peer's KCP session waits long before it resends unacknowledged segments,
    /// or believes in round trips so long that it would.
    #[must_use]
    pub fn backs_off(&self, peer: PeerId) -> bool {
        let soon = self.now + Duration::from_millis(250);
        self.peers[peer.0].kcp.as_ref().is_some_and(|kcp| kcp.waits_beyond(soon))
    }

    /// Instant at which the gateway gave the bytes of a peer's latest [`Note::Bytes`] to the link:
    /// its part ended there. `None` if the link had no room for them at once, and over KCP.
    #[must_use]
    pub fn given_at(&self, peer: PeerId) -> Option<Instant> {
        self.peers[peer.0].given
    }

    /// Sockets that the gateway holds.
    #[must_use]
    pub fn socket_count(&self) -> usize {
        self.sockets.len()
    }

    /// Bytes that wait in the outbox of a peer's connection.
    pub fn outbox_bytes(&mut self, peer: PeerId) -> usize {
        let Some((conn, shard)) = self.peers[peer.0].conn else { return 0 };
        self.shards[usize::from(shard.0)].shard.outbox(conn).map_or(0, |outbox| outbox.queued_bytes())
    }

    /// Most bytes that ever waited in one outbox.
    #[must_use]
    pub fn peak_outbox_bytes(&self) -> usize {
        self.peak_outbox_bytes
    }

    /// Most items that ever waited in one inbox.
    #[must_use]
    pub fn peak_inbox(&self) -> usize {
        self.peak_inbox
    }

    /// Events so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn schedule(&mut self, at: Instant, due: Due) {
        let tie = self.rng.next_u32();
        self.next_number += 1;
        self.due.insert((at, tie, self.next_number), due);
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Accept(peer) => self.accept(peer),
            Due::Up(peer) => self.arrive_up(peer),
            Due::Down(peer) => self.arrive_down(peer),
            Due::Kcp(peer) => self.run_kcp(peer),
            Due::Silent(peer) => {
                let end = &mut self.peers[peer.0];
                end.kcp = None;
                if end.state == PeerState::Open {
                    end.state = PeerState::Over;
                    self.notes.push_back(Note::Closed(peer));
                }
            }
            Due::Write(peer) => {
                if let Some((conn, shard)) = self.peers[peer.0].conn
                    && !self.postponed(shard, Due::Write(peer))
                {
                    self.write(shard, conn);
                    self.drain(shard);
                }
            }
            Due::Inbox(shard) => self.handle_inbox(shard),
            Due::Timer(shard) => {
                self.shards[usize::from(shard.0)].timer_at = None;
                if !self.postponed(shard, Due::Timer(shard)) {
                    let slot = &mut self.shards[usize::from(shard.0)];
                    if slot.shard.next_timeout().is_some_and(|at| at <= self.now) {
                        self.guard(shard, |shard, now| shard.handle_timeout(now));
                    }
                    self.drain(shard);
                }
            }
            Due::Verdict(life, ticket, verdict) => {
                if life == self.restarts() {
                    self.guard(ShardIndex(0), |shard, now| shard.handle_verdict(now, ticket, verdict));
                    self.drain(ShardIndex(0));
                }
            }
            Due::Lost(peer, conn, cause) => {
                // Another life gives the same names again.
                if self.sockets.get(&conn) == Some(&peer) {
                    self.lose(conn, cause);
                }
            }
            Due::Wake(token) => self.notes.push_back(Note::Wake(token)),
        }
    }

    /// Puts an event off while its shard's thread is paused.
    fn postponed(&mut self, shard: ShardIndex, due: Due) -> bool {
        let until = self.shards[usize::from(shard.0)].paused_until;
        let paused = until > self.now;
        if paused {
            self.schedule(until, due);
        }
        paused
    }
}
