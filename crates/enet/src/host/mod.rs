//! All connections of one socket.

mod bandwidth;
mod closed;
mod handshake;
mod hints;
mod index;
mod introspection;
mod local_ids;
mod receiving;
mod requests;
mod sealing;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use hashbrown::HashMap;
use throng_stdx::{Instant, TimerWheel};

use bandwidth::Bandwidth;
use closed::Closed;
use hints::Hints;
use local_ids::LocalIds;

use crate::address::{Block, Key};
use crate::budget::Budget;
use crate::config::Config;
use crate::estimate::THROTTLE_SCALE;
use crate::half_open::{HalfOpenIndex, HalfOpens, Limits};
use crate::peer::{Context, Peer, State};
use crate::secret::{Keyed, Secret};
use crate::types::{ConfigError, Event, PeerId, Stats, Transmit, Via};
use crate::wire::{Dialect, Header, PEER_ID_NONE};

/// All ENet connections of one UDP socket, in both roles.
///
/// A state machine: it is handed datagrams and the time, and hands out datagrams, events and the
/// time of its next timer. See the [crate's page](crate) for how to drive it. Work follows what
/// happens: a connection that is silent costs a ping every half second and nothing else, a
/// connection that could exist costs nothing.
pub struct Host {
    ctx: Context,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Connections that are not over, in no particular order; each knows its place here.
    live: Vec<u32>,
    local_ids: LocalIds,
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
    /// Peers that may have something to send, and peers with events. Each has a flag that says
    /// whether it is in there.
    dirty: VecDeque<u32>,
    ready: VecDeque<u32>,
    /// Datagrams sent in a row to the first of `dirty`.
    burst: u32,
    /// Datagrams that belong to no connection.
    loose: VecDeque<(Transmit, Vec<u8>)>,
    /// The own address that the present datagram came to.
    via: Via,
    hook: Option<Hook>,
    bandwidth: Bandwidth,
    /// Attempts addressed to the broadcast address, which take the address of the first answer.
    broadcasts: usize,
    /// Peers with commands that were put off, and the last millisecond in which they had a turn.
    put_off: VecDeque<u32>,
    turn_ms: u64,
    hints: Hints,
    /// Peers of the batch that was announced last.
    announced: Vec<u32>,
    /// Commands of the datagram being read or written, before and after compression.
    body: Vec<u8>,
    packed: Vec<u8>,
}

/// Decision of an [intercept hook](Host::set_intercept) about a datagram.
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
        let budget = Budget {
            waiting_max: config.waiting_bytes_max,
            ..Budget::new(config.peer_bytes_max, config.newcomer_bytes_max, config.host_bytes_max)
        };
        let meters = config.outgoing_bandwidth != 0;
        let now_ms = now.as_millis();
        let mut host = Self {
            slots: Vec::new(),
            free: Vec::new(),
            live: Vec::new(),
            local_ids: LocalIds::new(&mut secret),
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
            via: Via::default(),
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
            put_off: VecDeque::new(),
            turn_ms: 0,
            hints: Hints::new(),
            announced: Vec::new(),
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

    /// Takes in one datagram as received from `from`. Never fails: what is wrong is dropped and
    /// counted.
    ///
    /// A batch is best taken in whole before [`poll_transmit`](Self::poll_transmit):
    /// acknowledgements and answers then share datagrams.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        self.handle_datagram_via(now, from, Via::default(), datagram);
    }

    /// As [`handle_datagram`](Self::handle_datagram), for a datagram that came to one of several
    /// own addresses. What goes back names it in [`Transmit::via`].
    pub fn handle_datagram_via(&mut self, now: Instant, from: SocketAddr, via: Via, datagram: &[u8]) {
        self.advance(now);
        self.via = via;
        self.ctx.stats.datagrams_in += 1;
        self.ctx.stats.bytes_in += datagram.len() as u64;
        if let Some(hook) = &mut self.hook {
            match hook(from, datagram) {
                Intercept::Pass => {}
                Intercept::Consumed => return,
                Intercept::Answer(bytes) => return self.answer(from, bytes),
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
                    peer.via = via;
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

    /// Reads what the datagrams of a batch will need, given their senders in order. With thousands
    /// of peers their state is not in the processor's cache, and the reads of a whole batch overlap
    /// while those of one datagram after the other do not: call it before the datagrams of the
    /// batch. Has no effect that can be seen.
    pub fn prefetch(&mut self, senders: impl IntoIterator<Item = SocketAddr>) {
        let mut announced = core::mem::take(&mut self.announced);
        announced.clear();
        // Loops of their own: nothing keeps the processor from many reads at once.
        announced.extend(senders.into_iter().map(|sender| self.hints.get(sender)));
        let slot = |index: &u32| self.slots.get(*index as usize);
        announced.iter().filter_map(slot).for_each(|slot| {
            core::hint::black_box(slot.generation);
        });
        let peer = |index: &u32| slot(index)?.peer.as_deref();
        announced.iter().filter_map(peer).for_each(Peer::prefetch);
        announced.iter().filter_map(peer).for_each(Peer::prefetch_parts);
        self.announced = announced;
    }

    /// Does everything that is due at `now`: pings, lost commands, peers that no longer answer, and
    /// what peers have sent beyond their share of a millisecond.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        self.catch_up();
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

    /// Writes the next datagram to send to `buf`, which is cleared first; `None` when there is
    /// nothing to send now.
    ///
    /// Call until `None` after every batch of inputs. Datagrams to one peer follow each other.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        self.advance(now);
        buf.clear();
        if let Some((transmit, bytes)) = self.loose.pop_front() {
            buf.extend_from_slice(&bytes);
            self.note_transmit(buf.len());
            return Some(transmit);
        }
        let mut body = core::mem::take(&mut self.body);
        let mut written = None;
        while let Some(&index) = self.dirty.front() {
            body.clear();
            if let Some(peer) = self.slots[index as usize].peer.as_deref_mut().filter(|peer| peer.in_dirty) {
                if let Some(needs_time) = peer.write_commands(&mut self.ctx, &mut body) {
                    let (transmit, envelope) = (peer.transmit(), peer.envelope());
                    let sent_time = needs_time.then_some(self.ctx.now_ms as u16);
                    self.seal(envelope, sent_time, &body, buf);
                    let (mut has_more, mut needs_settling) = (false, false);
                    if let Some(peer) = self.slots[index as usize].peer.as_deref_mut() {
                        peer.traffic.datagrams_out += 1;
                        peer.traffic.bytes_out += buf.len() as u64;
                        has_more = peer.has_output(self.ctx.now_ms);
                        peer.in_dirty = has_more;
                        needs_settling =
                            peer.state == State::Over || !has_more && !peer.keeps_timer(self.ctx.now_ms);
                    }
                    self.burst += 1;
                    if !has_more {
                        // Most peers of a round have one datagram: no second look finds that out.
                        self.burst = 0;
                        self.dirty.pop_front();
                    } else if self.burst >= BURST_MAX {
                        self.burst = 0;
                        self.dirty.rotate_left(1);
                    }
                    if needs_settling {
                        self.settle(index, false);
                    }
                    self.note_transmit(buf.len());
                    written = Some(transmit);
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
    /// Peers take turns, so that one that sends a lot does not hold up the others. Packets that
    /// were received and not taken count against [`Config::peer_bytes_max`].
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

    /// Takes the next event of one peer if it is a packet. `None` when another event comes first,
    /// or none is there.
    pub fn poll_packet(&mut self, peer: PeerId) -> Option<Event> {
        let found = find(&mut self.slots, peer)?;
        // If it was the last, its turn in `poll_event` passes.
        found.pop_packet(&mut self.ctx.budget)
    }

    /// True if [`poll_event`](Self::poll_event) may have something. Sending can end a connection,
    /// so a driver that is about to wait asks after its last
    /// [`poll_transmit`](Self::poll_transmit).
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is to be called next; `None` when
    /// nothing is scheduled. Never later than needed, sometimes earlier.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let turn = (!self.put_off.is_empty()).then(|| Instant::from_millis(self.turn_ms + 1));
        [self.timers.next(), turn].into_iter().flatten().min()
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

/// Datagrams to one peer before the next has its turn. A full window has 47 of 1,392 bytes; in
/// parts it keeps nobody waiting for longer than a tenth of a millisecond, and the kernel can still
/// segment them.
const BURST_MAX: u32 = 12;
/// Answers to strangers and other datagrams without a connection that may wait, some 100 bytes
/// each. A driver sends them after every batch; as many as half-open connections by default, so
/// that a batch of that many CONNECTs gets its answers.
const LOOSE_MAX: usize = 16_384;
