//! All connections of one socket.

mod bandwidth;
mod closed;
mod handshake;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use throng_stdx::{Instant, TimerKey, TimerWheel};

use bandwidth::Bandwidth;
use closed::{CLOSED_MAX, CLOSED_MS, Closed, ClosedEntry};

use crate::address::{Block, Key};
use crate::budget::{Budget, Held};
use crate::checksum::Crc32;
use crate::config::{Config, LANES_MAX, MTU_MAX, Naming};
use crate::estimate::{THROTTLE_INTERVAL_MS, THROTTLE_SCALE, THROTTLE_STEP};
use crate::half_open::{HalfOpenIndex, HalfOpens, Limits};
use crate::peer::{Context, Envelope, Flow, Names, Peer, State, Terms, window};
use crate::secret::{Keyed, Secret};
use crate::types::{
    ConfigError, ConnectError, Delivery, Event, Lane, PeerId, PeerInfo, SendError, Stats, Transmit,
};
use crate::wire::{Command, Dialect, Header, PEER_ID_NONE};

/// All ENet connections of one UDP socket, in both roles.
///
/// A state machine: it is handed datagrams and the time, and hands out datagrams, events and the time of its next timer.
/// See the [crate's page](crate) for how to drive it. Work follows what happens: a connection that is silent costs a
/// ping every half second and nothing else, a connection that could exist costs nothing.
pub struct Host {
    ctx: Context,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Connections that are not over, in no particular order; each knows its place here.
    live: Vec<u32>,
    by_local: HashMap<Key, Owner, Keyed>,
    by_remote: HashMap<Key, u32, Keyed>,
    /// Connections per IP address; kept only when there is a limit on them.
    per_ip: HashMap<Block, usize, Keyed>,
    half_open: HalfOpens,
    /// A timer for the oldest handshake is pending.
    half_open_is_armed: bool,
    closed: Closed,
    secret: Secret,
    next_connect_id: Option<[u8; 4]>,
    timers: TimerWheel<Timer>,
    /// Peers that may have something to send, and peers with events. Each has a flag that says whether it is in there.
    dirty: VecDeque<u32>,
    ready: VecDeque<u32>,
    /// Datagrams sent in a row to the first of `dirty`.
    burst: u32,
    /// Datagrams that belong to no connection.
    loose: VecDeque<(SocketAddr, Vec<u8>)>,
    hook: Option<Hook>,
    bandwidth: Bandwidth,
    /// Attempts addressed to the broadcast address, which take the address of the first answer.
    broadcasts: usize,
    /// Commands of the datagram being read or written, before and after compression.
    body: Vec<u8>,
    packed: Vec<u8>,
}

/// What an [intercept hook](Host::set_intercept) wants done with a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Intercept {
    /// It is ENet's.
    Pass,
    /// It was somebody else's and has been dealt with.
    Consumed,
    /// The same, and this goes back to its sender.
    Answer(Vec<u8>),
}

/// A look at every datagram before the host: its source and content.
pub type Hook = Box<dyn FnMut(SocketAddr, &[u8]) -> Intercept + Send>;

#[derive(Debug)]
struct Slot {
    generation: u32,
    peer: Option<Box<Peer>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Peer(u32),
    HalfOpen(HalfOpenIndex),
}

#[derive(Clone, Copy, Debug)]
enum Timer {
    Peer(PeerId),
    HalfOpen,
    Bandwidth,
}

impl Host {
    /// A host without connections. `now` starts its clock.
    ///
    /// # Errors
    /// When the configuration contradicts itself.
    pub fn new(now: Instant, config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let mut secret = Secret::new(config.seed);
        let limits = Limits {
            total: if config.accept { config.half_open_max } else { 0 },
            per_ip: config.half_open_per_ip_max,
            per_prefix: config.half_open_per_prefix_max,
            timeout_ms: config.half_open_timeout.as_millis() as u64,
        };
        let budget =
            Budget { peer_max: config.peer_bytes_max, host_max: config.host_bytes_max, total: Held(0) };
        let meters = config.outgoing_bandwidth != 0;
        let now_ms = now.as_millis();
        let mut host = Self {
            slots: Vec::new(),
            free: Vec::new(),
            live: Vec::new(),
            by_local: HashMap::with_hasher(secret.table_key()),
            by_remote: HashMap::with_hasher(secret.table_key()),
            per_ip: HashMap::with_hasher(secret.table_key()),
            half_open: HalfOpens::new(limits, &mut secret),
            half_open_is_armed: false,
            closed: Closed::new(&mut secret),
            next_connect_id: None,
            timers: TimerWheel::new(),
            dirty: VecDeque::new(),
            ready: VecDeque::new(),
            burst: 0,
            loose: VecDeque::new(),
            hook: None,
            bandwidth: Bandwidth {
                epoch_ms: now_ms,
                is_armed: false,
                report: false,
                limited: 0,
                active: Vec::new(),
                adjusted: Vec::new(),
            },
            broadcasts: 0,
            body: Vec::new(),
            packed: Vec::new(),
            ctx: Context {
                config,
                stats: Stats::default(),
                budget,
                queued_bytes: 0,
                now_ms,
                share: THROTTLE_SCALE,
                meters,
            },
            secret,
        };
        host.advance(now);
        Ok(host)
    }

    // ---- the five verbs

    /// Takes in one datagram as received from `from`. Never fails: what is wrong is dropped and counted.
    ///
    /// A batch is best taken in whole before [`poll_transmit`](Self::poll_transmit): acknowledgements and answers then
    /// share datagrams.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        self.advance(now);
        self.ctx.stats.datagrams_in += 1;
        self.ctx.stats.bytes_in += datagram.len() as u64;
        if let Some(hook) = &mut self.hook {
            match hook(from, datagram) {
                Intercept::Pass => {}
                Intercept::Consumed => return,
                Intercept::Answer(bytes) => return self.send_raw(from, bytes),
            }
        }
        // Spec: enet §9
        let checksum_len = if self.ctx.config.checksum { 4 } else { 0 };
        let dialect =
            if self.ctx.config.csharp_clients { self.dialect(from, datagram) } else { Dialect::Stock };
        let Some((header, header_len)) = Header::decode_in(dialect, datagram) else {
            self.ctx.stats.dropped_short += 1;
            return;
        };
        let Some(payload) = datagram.get(header_len + checksum_len..) else {
            self.ctx.stats.dropped_short += 1;
            return;
        };
        let owner = if header.peer_id == PEER_ID_NONE {
            None
        } else {
            match self.find_owner(from, &header) {
                Some(owner) => Some(owner),
                None => return self.handle_closed(from, &header, datagram, header_len),
            }
        };
        let seed = match owner {
            None => [0; 4],
            Some(Owner::Peer(index)) => {
                self.slots[index as usize].peer.as_deref_mut().map_or([0; 4], |peer| {
                    peer.traffic.datagrams_in += 1;
                    peer.traffic.bytes_in += datagram.len() as u64;
                    peer.connect_id
                })
            }
            Some(Owner::HalfOpen(index)) => {
                self.half_open.get_mut(index).map_or([0; 4], |entry| entry.names.connect_id)
            }
        };
        let mut unpacked = core::mem::take(&mut self.packed);
        unpacked.clear();
        if let Some(commands) =
            self.open(&header, &datagram[..header_len], payload, seed, &mut unpacked, || {
                &datagram[header_len..header_len + checksum_len]
            })
        {
            match owner {
                None => self.handle_connect(from, dialect, datagram.len(), commands),
                Some(Owner::HalfOpen(index)) => {
                    self.handle_half_open(index, datagram.len(), commands, header.sent_time);
                }
                Some(Owner::Peer(index)) => {
                    self.read_commands(index, commands, header.sent_time);
                    self.settle(index, true);
                }
            }
        }
        self.packed = unpacked;
    }

    /// Does everything that is due at `now`: pings, lost commands, peers that no longer answer.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        while let Some((_, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Peer(id) => {
                    let Some(peer) = find(&mut self.slots, id) else { continue };
                    peer.timer = None;
                    if peer.state != State::Over {
                        peer.handle_timeout(&mut self.ctx);
                    }
                    self.settle(id.index, true);
                }
                Timer::HalfOpen => {
                    self.half_open_is_armed = false;
                    self.drop_surplus_half_open();
                    self.arm_half_open();
                }
                Timer::Bandwidth => {
                    self.bandwidth.is_armed = false;
                    self.share_bandwidth();
                    self.arm_bandwidth();
                }
            }
        }
    }

    /// Writes the next datagram to send to `buf`, which is cleared first; `None` when there is nothing to send now.
    ///
    /// Call until `None` after every batch of inputs. Datagrams to one peer follow each other.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        self.advance(now);
        buf.clear();
        if let Some((to, bytes)) = self.loose.pop_front() {
            buf.extend_from_slice(&bytes);
            return Some(self.note_transmit(to, buf.len()));
        }
        let mut body = core::mem::take(&mut self.body);
        let mut written = None;
        while let Some(&index) = self.dirty.front() {
            body.clear();
            if let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|peer| peer.in_dirty) {
                if let Some(needs_time) = peer.write_commands(&mut self.ctx, &mut body) {
                    let (to, envelope) = (peer.address, peer.envelope());
                    let sent_time = needs_time.then_some(self.ctx.now_ms as u16);
                    self.seal(envelope, sent_time, &body, buf);
                    if let Some(peer) = self.slots[index as usize].peer.as_deref_mut() {
                        peer.traffic.datagrams_out += 1;
                        peer.traffic.bytes_out += buf.len() as u64;
                    }
                    self.burst += 1;
                    if self.burst >= BURST_MAX {
                        self.burst = 0;
                        self.dirty.rotate_left(1);
                    }
                    self.settle(index, false);
                    written = Some(self.note_transmit(to, buf.len()));
                    break;
                }
                peer.in_dirty = false;
            }
            self.burst = 0;
            self.dirty.pop_front();
            self.settle(index, false);
        }
        self.body = body;
        written
    }

    /// Takes the next event.
    ///
    /// Peers take turns, so that one that sends a lot does not hold up the others. Packets that were received and not
    /// taken count against [`Config::peer_bytes_max`].
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(index) = self.ready.pop_front() {
            let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|peer| peer.in_ready)
            else {
                continue;
            };
            peer.in_ready = false;
            let Some(event) = peer.pop_event(&mut self.ctx.budget) else { continue };
            if peer.has_events() {
                peer.in_ready = true;
                self.ready.push_back(index);
            } else if peer.state == State::Over {
                self.remove(index);
            }
            return Some(event);
        }
        None
    }

    /// Whether [`poll_event`](Self::poll_event) may have something. Sending can end a connection, so a driver that is about
    /// to wait asks after its last [`poll_transmit`](Self::poll_transmit).
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next; `None` when nothing is scheduled. Never later
    /// than needed, sometimes earlier.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    // ---- connecting, sending, disconnecting

    /// Asks `address` for a connection with `lanes` lanes (at least one). `data` is a number for its application.
    ///
    /// [`Event::Connected`] or [`Event::Disconnected`] follows; with a silent address after half a minute.
    ///
    /// # Errors
    /// When the host, or the space of ids towards that address, is full.
    pub fn connect(
        &mut self,
        now: Instant,
        address: SocketAddr,
        lanes: u8,
        data: u32,
    ) -> Result<PeerId, ConnectError> {
        self.advance(now);
        let config = &self.ctx.config;
        if self.live.len() >= config.peers_max {
            return Err(ConnectError::HostFull(config.peers_max));
        }
        let (incoming_bandwidth, outgoing_bandwidth) = (config.incoming_bandwidth, config.outgoing_bandwidth);
        let terms = Terms {
            lanes: lanes.clamp(1, LANES_MAX),
            mtu: config.mtu,
            window: window(0, outgoing_bandwidth),
            incoming_bandwidth,
            outgoing_bandwidth,
            throttle_interval: THROTTLE_INTERVAL_MS,
            throttle_acceleration: THROTTLE_STEP,
            throttle_deceleration: THROTTLE_STEP,
        };
        let local_id = self.choose_id(address).ok_or(ConnectError::AddressFull(address))?;
        let (session_in, session_out) = self.closed.sessions(address, local_id);
        let drawn = (self.secret.draw() as u32).to_be_bytes();
        let connect_id = self.next_connect_id.take().unwrap_or(drawn);
        let names = Names {
            address,
            local_id,
            remote_id: PEER_ID_NONE,
            connect_id,
            session_in,
            session_out,
            dialect: Dialect::Stock,
        };
        let id = self.reserve();
        let peer = Peer::connecting(id, names, terms, data);
        self.install(peer);
        if is_broadcast(address) {
            self.broadcasts += 1;
        }
        self.settle(id.index, true);
        Ok(id)
    }

    /// Queues a packet. It leaves with the following [`poll_transmit`](Self::poll_transmit)s, as the windows allow.
    ///
    /// # Errors
    /// When the peer is not connected, has no such lane, or the packet is too long or too much. Nothing was queued then.
    pub fn send(
        &mut self,
        peer: PeerId,
        lane: Lane,
        data: impl Into<Bytes>,
        delivery: Delivery,
    ) -> Result<(), SendError> {
        let found = find(&mut self.slots, peer).ok_or(SendError::UnknownPeer)?;
        found.send(&mut self.ctx, lane, data.into(), delivery)?;
        self.mark_dirty(peer.index);
        Ok(())
    }

    /// Queues a packet for every connected peer that has the lane; the number of peers. The content is shared.
    pub fn broadcast(&mut self, lane: Lane, data: impl Into<Bytes>, delivery: Delivery) -> usize {
        let data = data.into();
        let mut reached = 0;
        for at in 0..self.live.len() {
            let index = self.live[at];
            let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { continue };
            crate::work::step();
            if peer.send(&mut self.ctx, lane, data.clone(), delivery).is_ok() {
                reached += 1;
                self.mark_dirty(index);
            }
        }
        reached
    }

    /// Ends a connection in an orderly way: what was not sent yet is dropped, and [`Event::Disconnected`] follows when the
    /// other side has confirmed or no longer answers. An attempt that was not answered yet ends without an event.
    ///
    /// `data` is a number for the other side's application. Does nothing when the connection is over or ending.
    pub fn disconnect(&mut self, peer: PeerId, data: u32) {
        let Some(found) = find(&mut self.slots, peer) else { return };
        match found.disconnect(&mut self.ctx, data) {
            None => self.settle(peer.index, true),
            Some(farewell) => {
                self.queue_farewell(peer.index, &farewell);
                self.remove(peer.index);
            }
        }
    }

    /// As [`disconnect`](Self::disconnect), once everything sent so far has been acknowledged.
    pub fn disconnect_later(&mut self, peer: PeerId, data: u32) {
        if let Some(found) = find(&mut self.slots, peer) {
            found.disconnect_later(&mut self.ctx, data);
            self.settle(peer.index, true);
        }
    }

    /// Ends a connection at once: one message tells the other side, which may get lost, and there is no event. Events that
    /// were not taken yet are dropped.
    pub fn disconnect_now(&mut self, peer: PeerId, data: u32) {
        let Some(found) = find(&mut self.slots, peer) else { return };
        if !matches!(found.state, State::Over | State::Disconnecting) {
            let farewell = found.farewell(data);
            self.queue_farewell(peer.index, &farewell);
        }
        self.remove(peer.index);
    }

    /// Forgets a connection without a word. The other side finds out when nothing is acknowledged any more.
    pub fn reset(&mut self, peer: PeerId) {
        if find(&mut self.slots, peer).is_some() {
            self.remove(peer.index);
        }
    }

    // ---- settings

    /// Limits the host's bandwidth in bytes per second, 0 for no limit. Peers are told within a second.
    pub fn set_bandwidth(&mut self, now: Instant, incoming: u32, outgoing: u32) {
        self.advance(now);
        (self.ctx.config.incoming_bandwidth, self.ctx.config.outgoing_bandwidth) = (incoming, outgoing);
        self.bandwidth.report = true;
        self.update_meters();
        self.arm_bandwidth();
    }

    /// Sets how the other side adapts its throttle, and this one: the interval between looks, and by how many 32nds it
    /// opens or closes at each acknowledgement. An acceleration of 32 and a deceleration of 0 switch it off.
    pub fn configure_throttle(
        &mut self,
        peer: PeerId,
        interval: Duration,
        acceleration: u32,
        deceleration: u32,
    ) {
        let interval = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        if let Some(found) = find(&mut self.slots, peer).filter(|peer| peer.state == State::Connected) {
            found.configure_throttle(interval, acceleration, deceleration);
            self.settle(peer.index, true);
        }
    }

    /// Sets how long a connection may be quiet before its life is tested. Default 500 ms.
    pub fn set_ping_interval(&mut self, peer: PeerId, interval: Duration) {
        if let Some(found) = find(&mut self.slots, peer) {
            found.set_ping_interval_ms(u32::try_from(interval.as_millis()).unwrap_or(u32::MAX));
            self.settle(peer.index, true);
        }
    }

    /// Sets when a connection is given up: when nothing was acknowledged for `max`, or for `min` while some command was
    /// sent so often that its timeout has doubled to `limit` times the first (a power of two). Default 32, 5 s, 30 s.
    pub fn set_timeout(&mut self, peer: PeerId, limit: u32, min: Duration, max: Duration) {
        let ms = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        if let Some(found) = find(&mut self.slots, peer) {
            found.set_timeouts(limit, ms(min), ms(max));
        }
    }

    /// Shows every datagram to `hook` before the host takes it, so that other protocols can share the port.
    pub fn set_intercept(&mut self, hook: Option<Hook>) {
        self.hook = hook;
    }

    /// Sends a datagram that is not ENet's through the same socket. Dropped when 16,384 of them are waiting.
    pub fn send_raw(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        if self.loose.len() < LOOSE_MAX {
            self.loose.push_back((to, datagram));
        }
    }

    /// Fixes the connect id of the next [`connect`](Self::connect), which is otherwise drawn. For comparing bytes.
    #[doc(hidden)]
    pub fn set_next_connect_id(&mut self, connect_id: [u8; 4]) {
        self.next_connect_id = Some(connect_id);
    }

    // ---- looking

    /// A look at a connection; `None` when it is over and its events were taken.
    #[must_use]
    pub fn peer(&self, peer: PeerId) -> Option<PeerInfo> {
        let slot = self.slots.get(peer.index as usize).filter(|slot| slot.generation == peer.generation)?;
        slot.peer.as_ref().map(|peer| peer.info())
    }

    /// Connections in no particular order, those that are being made or ended included.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.slots.iter().filter_map(|slot| slot.peer.as_ref()).map(|peer| peer.id)
    }

    /// Connections that are not over.
    #[must_use]
    pub fn peer_count(&self) -> usize {
        self.live.len()
    }

    /// Handshakes of strangers that have not proven their address yet.
    #[must_use]
    pub fn half_open_count(&self) -> usize {
        self.half_open.len()
    }

    /// Bytes received that wait in all peers together, with overhead.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.ctx.budget.total.0
    }

    /// Bytes that wait to be sent or acknowledged, in all peers together, with overhead.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.ctx.queued_bytes
    }

    /// What the host has done so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.ctx.stats
    }

    /// Checks what must always hold. Slow; for tests and simulations.
    ///
    /// # Panics
    /// When something does not hold.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let mut mapped = 0;
        for slot in &self.slots {
            let Some(peer) = &slot.peer else { continue };
            peer.check_invariants();
            assert_eq!(peer.is_mapped, peer.state != State::Over);
            if peer.is_mapped {
                mapped += 1;
                assert_eq!(self.live.get(peer.live_at as usize), Some(&peer.id.index));
                let key = Key::new(peer.address, peer.local_id);
                assert_eq!(self.by_local.get(&key), Some(&Owner::Peer(peer.id.index)));
            }
            assert!(peer.in_ready || !peer.has_events(), "events would never be taken");
        }
        assert_eq!(mapped, self.live.len());
        let queued: usize =
            self.slots.iter().flat_map(|slot| &slot.peer).map(|peer| peer.queued_bytes()).sum();
        assert_eq!(queued, self.ctx.queued_bytes);
        assert_eq!(self.by_local.len(), self.live.len() + self.half_open.len());
        assert!(self.by_remote.len() <= self.live.len());
        assert!(self.half_open.len() <= self.ctx.config.half_open_max);
        assert!(self.closed.len() <= CLOSED_MAX);
    }

    // ---- receiving

    fn find_owner(&mut self, from: SocketAddr, header: &Header) -> Option<Owner> {
        let mut owner = self.by_local.get(&Key::new(from, header.peer_id)).copied();
        if owner.is_none() && self.broadcasts > 0 {
            owner = self.adopt_broadcast(from, header.peer_id);
        }
        let session = match owner? {
            Owner::Peer(index) => {
                let peer = self.slots[index as usize].peer.as_ref()?;
                // Before the other side is known, there is no session to compare.
                if peer.remote_id == PEER_ID_NONE { header.session } else { peer.session_in }
            }
            Owner::HalfOpen(index) => self.half_open.get_mut(index)?.names.session_in,
        };
        owner.filter(|_| session == header.session)
    }

    /// How the sender of a datagram writes headers. Spec: enet §18
    fn dialect(&mut self, from: SocketAddr, datagram: &[u8]) -> Dialect {
        let Some(&[first, second]) = datagram.first_chunk() else { return Dialect::Stock };
        let id = u16::from_be_bytes([first, second]) & PEER_ID_NONE;
        if id == PEER_ID_NONE {
            // Stock ENet has a sent time with every CONNECT, hence bit 15.
            let is_csharp = first & 0xC0 == 0x40 && !self.ctx.config.checksum;
            return if is_csharp { Dialect::CSharp } else { Dialect::Stock };
        }
        match self.by_local.get(&Key::new(from, id)).copied() {
            Some(Owner::Peer(index)) => self.slots[index as usize].peer.as_ref().map(|peer| peer.dialect),
            Some(Owner::HalfOpen(index)) => self.half_open.get_mut(index).map(|entry| entry.names.dialect),
            None => self.closed.find(self.ctx.now_ms, from, id).map(|entry| entry.dialect),
        }
        .unwrap_or_default()
    }

    /// The first answer to an attempt at the broadcast address settles its address. Spec: enet §9.2
    fn adopt_broadcast(&mut self, from: SocketAddr, id: u16) -> Option<Owner> {
        let everybody = SocketAddr::new(IpAddr::V4(Ipv4Addr::BROADCAST), from.port());
        let &owner = self.by_local.get(&Key::new(everybody, id))?;
        let Owner::Peer(index) = owner else { return None };
        let peer = self.slots[index as usize].peer.as_deref_mut()?;
        self.by_local.remove(&Key::new(everybody, id));
        self.by_local.insert(Key::new(from, id), owner);
        peer.address = from;
        self.broadcasts -= 1;
        Some(owner)
    }

    /// Undoes compression and checks the checksum; `None` when the datagram is to be dropped.
    fn open<'a>(
        &mut self,
        header: &Header,
        header_bytes: &[u8],
        payload: &'a [u8],
        seed: [u8; 4],
        unpacked: &'a mut Vec<u8>,
        checksum: impl FnOnce() -> &'a [u8],
    ) -> Option<&'a [u8]> {
        let config = &mut self.ctx.config;
        let commands = if header.compressed {
            let checksum_len = if config.checksum { 4 } else { 0 };
            let len_max = usize::from(MTU_MAX) - header_bytes.len() - checksum_len;
            let is_sound = config
                .compressor
                .as_mut()
                .is_some_and(|compressor| compressor.decompress(payload, len_max, unpacked).is_ok());
            if !is_sound || unpacked.is_empty() || unpacked.len() > len_max {
                self.ctx.stats.dropped_compression += 1;
                return None;
            }
            &unpacked[..]
        } else {
            payload
        };
        if config.checksum {
            let sum = Crc32::new().update(header_bytes).update(&seed).update(commands).finish();
            if sum != checksum() {
                self.ctx.stats.dropped_checksum += 1;
                return None;
            }
        }
        Some(commands)
    }

    fn read_commands(&mut self, index: u32, mut commands: &[u8], sent_time: Option<u16>) {
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        peer.note_heard(self.ctx.now_ms);
        while !commands.is_empty() {
            let flow = Command::decode(commands).map_or(Flow::Stop, |(command, len)| {
                commands = &commands[len..];
                peer.handle_command(&mut self.ctx, &command, sent_time)
            });
            if flow == Flow::Stop {
                self.ctx.stats.dropped_malformed += 1;
                return;
            }
        }
    }

    // ---- sending

    fn note_transmit(&mut self, to: SocketAddr, len: usize) -> Transmit {
        self.ctx.stats.datagrams_out += 1;
        self.ctx.stats.bytes_out += len as u64;
        Transmit { to }
    }

    /// Puts commands into a datagram. Spec: enet §2, §3, §4.1
    fn seal(&mut self, envelope: Envelope, sent_time: Option<u16>, body: &[u8], out: &mut Vec<u8>) {
        let mut packed = core::mem::take(&mut self.packed);
        packed.clear();
        let config = &mut self.ctx.config;
        let compressor = config.compressor.as_mut().filter(|_| envelope.dialect == Dialect::Stock);
        let compressed = compressor.is_some_and(|compressor| {
            compressor.compress(body, body.len(), &mut packed)
                && !packed.is_empty()
                && packed.len() < body.len()
        });
        let header = Header { peer_id: envelope.peer_id, session: envelope.session, compressed, sent_time };
        header.encode_in(envelope.dialect, out);
        if config.checksum {
            let seed = if envelope.peer_id == PEER_ID_NONE { [0; 4] } else { envelope.connect_id };
            let sum = Crc32::new().update(out).update(&seed).update(body).finish();
            out.extend_from_slice(&sum);
        }
        out.extend_from_slice(if compressed { &packed } else { body });
        self.packed = packed;
    }

    fn seal_command(
        &mut self,
        envelope: Envelope,
        sent_time: Option<u16>,
        command: &Command<'_>,
        out: &mut Vec<u8>,
    ) {
        let mut body = core::mem::take(&mut self.body);
        body.clear();
        command.encode(&mut body);
        self.seal(envelope, sent_time, &body, out);
        self.body = body;
    }

    fn queue_farewell(&mut self, index: u32, farewell: &Command<'_>) {
        let Some(peer) = self.slots[index as usize].peer.as_ref() else { return };
        let (to, envelope) = (peer.address, peer.envelope());
        let mut datagram = Vec::new();
        self.seal_command(envelope, None, farewell, &mut datagram);
        // Not bounded by LOOSE_MAX: there is one per connection.
        self.loose.push_back((to, datagram));
    }

    // ---- books

    fn advance(&mut self, now: Instant) {
        self.ctx.now_ms = self.ctx.now_ms.max(now.as_millis());
    }

    /// A free id towards `address`. Spec: enet A1
    fn choose_id(&mut self, address: SocketAddr) -> Option<u16> {
        let first = match self.ctx.config.naming {
            Naming::Sequential => 0,
            Naming::Random => (self.secret.draw() % u64::from(PEER_ID_NONE)) as u16,
        };
        // Almost always the first; only a remote socket with thousands of connections makes this walk.
        (0..PEER_ID_NONE)
            .map(|offset| (first + offset) % PEER_ID_NONE)
            .find(|&id| !self.by_local.contains_key(&Key::new(address, id)))
    }

    fn connections_of_ip(&self, ip: IpAddr) -> usize {
        self.per_ip.get(&Block::of_ip(ip)).copied().unwrap_or(0)
    }

    /// A place for a connection.
    fn reserve(&mut self) -> PeerId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, peer: None });
            (self.slots.len() - 1) as u32
        });
        PeerId { index, generation: self.slots[index as usize].generation }
    }

    fn install(&mut self, mut peer: Peer) {
        peer.is_mapped = true;
        peer.live_at = self.live.len() as u32;
        self.live.push(peer.id.index);
        if self.ctx.config.peers_per_ip_max != usize::MAX {
            *self.per_ip.entry(Block::of_ip(peer.address.ip())).or_insert(0) += 1;
        }
        self.by_local.insert(Key::new(peer.address, peer.local_id), Owner::Peer(peer.id.index));
        let index = peer.id.index as usize;
        self.slots[index].peer = Some(Box::new(peer));
    }

    /// Brings the host's books in line with a peer that was touched. `mark`: whether it may have something to send.
    fn settle(&mut self, index: u32, mark: bool) {
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        if peer.state == State::Over {
            self.unmap(index);
        } else if peer.remote_id != PEER_ID_NONE && !peer.is_remote_mapped {
            peer.is_remote_mapped = true;
            let limited = peer.incoming_bandwidth != 0;
            self.by_remote.insert(Key::new(peer.address, peer.remote_id), index);
            self.bandwidth.limited += usize::from(limited);
            peer.is_limited = limited;
            self.peers_changed();
        }
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        if peer.is_remote_mapped && peer.is_limited != (peer.incoming_bandwidth != 0) {
            peer.is_limited = !peer.is_limited;
            if peer.is_limited {
                self.bandwidth.limited += 1
            } else {
                self.bandwidth.limited -= 1
            }
            self.update_meters();
            self.arm_bandwidth();
        }
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        if peer.metered_bytes > 0 && !peer.in_active {
            peer.in_active = true;
            self.bandwidth.active.push(index);
        }
        if peer.has_events() && !peer.in_ready {
            peer.in_ready = true;
            self.ready.push_back(index);
        }
        if peer.state == State::Over {
            return;
        }
        if let Some(deadline) = peer.next_deadline(self.ctx.now_ms) {
            // A timer that is too early costs one look; moving it at every acknowledgement would cost more.
            let is_armed = peer.timer.is_some_and(|(at, _)| at <= deadline);
            if !is_armed {
                if let Some((_, key)) = peer.timer.take() {
                    self.timers.cancel(key);
                }
                let key = self.timers.insert(Instant::from_millis(deadline), Timer::Peer(peer.id));
                peer.timer = Some((deadline, key));
            }
        }
        if mark && peer.has_output(self.ctx.now_ms) {
            self.mark_dirty(index);
        }
    }

    fn mark_dirty(&mut self, index: u32) {
        if let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|peer| !peer.in_dirty) {
            peer.in_dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// Takes a connection that is over out of the tables by which datagrams find it.
    fn unmap(&mut self, index: u32) {
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|peer| peer.is_mapped) else {
            return;
        };
        peer.is_mapped = false;
        let live_at = peer.live_at as usize;
        let timer: Option<TimerKey> = peer.timer.take().map(|(_, key)| key);
        if let Some(key) = timer {
            self.timers.cancel(key);
        }
        self.by_local.remove(&Key::new(peer.address, peer.local_id));
        if is_broadcast(peer.address) {
            self.broadcasts -= 1;
        }
        if peer.is_remote_mapped {
            self.by_remote.remove(&Key::new(peer.address, peer.remote_id));
            self.bandwidth.limited -= usize::from(peer.is_limited);
        }
        if self.ctx.config.peers_per_ip_max != usize::MAX {
            let block = Block::of_ip(peer.address.ip());
            if let Some(count) = self.per_ip.get_mut(&block) {
                *count -= 1;
                if *count == 0 {
                    self.per_ip.remove(&block);
                }
            }
        }
        self.live.swap_remove(live_at);
        let moved = self.live.get(live_at).map(|&moved| moved as usize);
        if let Some(moved) = moved.and_then(|moved| self.slots[moved].peer.as_deref_mut()) {
            moved.live_at = live_at as u32;
        }
        let Some(peer) = self.slots[index as usize].peer.as_deref_mut() else { return };
        if peer.is_remote_mapped {
            peer.is_remote_mapped = false;
            let entry = ClosedEntry {
                remote_id: peer.remote_id,
                connect_id: peer.connect_id,
                session_in: peer.session_in,
                session_out: peer.session_out,
                dialect: peer.dialect,
                answers: peer.ended_by_remote,
                until_ms: self.ctx.now_ms + CLOSED_MS,
            };
            self.closed.insert(peer.address, peer.local_id, entry);
            self.peers_changed();
        }
    }

    /// Forgets a connection; its name is void from now on.
    fn remove(&mut self, index: u32) {
        self.unmap(index);
        let slot = &mut self.slots[index as usize];
        if let Some(mut peer) = slot.peer.take() {
            peer.release(&mut self.ctx);
            if peer.state != State::Over {
                self.ctx.stats.disconnects += 1;
            }
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
    }

    fn drop_surplus_half_open(&mut self) {
        while let Some(entry) = self.half_open.pop_surplus(self.ctx.now_ms) {
            self.ctx.stats.dropped_half_open += 1;
            self.by_local.remove(&Key::new(entry.names.address, entry.names.local_id));
        }
    }

    fn forget_half_open(&mut self, index: HalfOpenIndex) {
        if let Some(entry) = self.half_open.remove(index) {
            self.by_local.remove(&Key::new(entry.names.address, entry.names.local_id));
        }
    }

    fn arm_half_open(&mut self) {
        if self.half_open_is_armed || self.half_open.len() == 0 {
            return;
        }
        if let Some(deadline) = self.half_open.next_deadline() {
            self.half_open_is_armed = true;
            let at = deadline.max(self.ctx.now_ms + HALF_OPEN_LOOK_MS);
            self.timers.insert(Instant::from_millis(at), Timer::HalfOpen);
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Host")
            .field("peers", &self.live.len())
            .field("half_open", &self.half_open.len())
            .field("stats", &self.ctx.stats)
            .finish_non_exhaustive()
    }
}

fn find(slots: &mut [Slot], id: PeerId) -> Option<&mut Peer> {
    let slot = slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)?;
    slot.peer.as_deref_mut()
}

fn is_broadcast(address: SocketAddr) -> bool {
    address.ip() == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Datagrams to one peer before the next has its turn. A full window has 47 of 1,392 bytes; in parts it keeps nobody waiting
/// for longer than a tenth of a millisecond, and the kernel can still segment them.
const BURST_MAX: u32 = 12;
/// Answers to strangers and other datagrams without a connection that may wait, some 100 bytes each. A driver sends them
/// after every batch; as many as half-open connections by default, so that a batch of that many CONNECTs gets its answers.
const LOOSE_MAX: usize = 16_384;
/// At most one look for stale handshakes in this time.
const HALF_OPEN_LOOK_MS: u64 = 100;
