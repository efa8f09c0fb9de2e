//! Simulated players of a world that is spread over channels: many on one thread, as in the
//! single-channel fleet.
//!
//! A player sees cells and the characters in them. It subscribes to a character when a cell it sees
//! lists or spawns it, and leaves it when the character walks, or its own interest moves, so that
//! the cell is seen no more: what the Unreal plugin does. Everything that arrives is read in full
//! and accounted for, update by update.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_stdx::Rng;

use super::ENTITY_FIRST;
use super::avatar::{self, Glance};
use super::lod;
use super::oracle::Oracle;
use crate::clock;
use crate::fleet::{Control, INPUT_BYTES, TURN_OR_JUMP_PER_SECOND, lock};
use crate::link::{Link, LinkError, Transport};
use crate::poll::Poller;
use crate::protocol::{self, Head, Scanner, Sink, kind};
use crate::schedule::Schedule;
use crate::socket;
use crate::stats::{Counts, Times};
use crate::tls::Trust;

/// Longest sleep, so that a stop is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(20);
const READ_BYTES: usize = 64 * 1024;
const PUBLISH_NS: u64 = 100_000_000;
/// Updates that may pass between a subscription's confirmation and its first delivery, and between
/// leaving and its confirmation: 200 ms. A subscription that has delivered nothing by then misses
/// what follows.
const SLACK: u32 = 6;

/// Plan of the players of a run.
#[derive(Debug, Clone)]
pub(crate) struct PlayersPlan {
    pub(crate) server: std::net::SocketAddr,
    pub(crate) transport: Transport,
    /// The server's certificate, for encrypted transports.
    pub(crate) trust: Option<Trust>,
    /// Connections opened per second and thread.
    pub(crate) connects_per_second: u32,
    /// Inputs per second to the owner of the player's character.
    pub(crate) inputs_per_second: f64,
    /// Players of the whole run.
    pub(crate) players: usize,
    /// True if there are cells; without, everyone sees everyone.
    pub(crate) cells: bool,
    /// Judge deliveries by the rates of the distance bands.
    pub(crate) bands: bool,
    /// Players ask for the rate of a distance band themselves, as the Unreal plugin does.
    pub(crate) ask_for_rates: bool,
    pub(crate) seed: u64,
}

/// Counters of the players of one thread, or of all.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlayersCounts {
    /// `delivered` and `state` are over all updates; `lost`, `due` and so on as elsewhere.
    pub(crate) base: Counts,
    /// Updates of the window that subscriptions should have brought, so far as they have ended.
    pub(crate) expected: u64,
    /// Deliveries by distance band.
    pub(crate) bands: [Band; lod::BANDS],
    /// Updates received twice.
    pub(crate) repeated: u64,
    /// Players that have had the state of everyone.
    pub(crate) complete: u64,
    /// Times at which the last player joined, and at which the last one was complete.
    pub(crate) ready_ns: u64,
    pub(crate) complete_ns: u64,
    /// Subscriptions to characters that are open.
    pub(crate) subscriptions: u64,
    /// Handovers that players were notified of.
    pub(crate) handovers: u64,
}

/// Deliveries of one distance band.
#[derive(Debug, Clone, Default)]
pub(crate) struct Band {
    pub(crate) delivered: u64,
    pub(crate) state: Times,
}

impl PlayersCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.base.add(&other.base);
        self.expected += other.expected;
        for (band, other) in self.bands.iter_mut().zip(&other.bands) {
            band.delivered += other.delivered;
            band.state.add(&other.state);
        }
        self.repeated += other.repeated;
        self.complete += other.complete;
        self.ready_ns = self.ready_ns.max(other.ready_ns);
        self.complete_ns = self.complete_ns.max(other.complete_ns);
        self.subscriptions += other.subscriptions;
        self.handovers += other.handovers;
    }
}

/// Comparison of the players' views with the world at rest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Views {
    /// Updates that the subscriptions still open should have brought inside the window.
    pub(crate) expected: u64,
    /// Players whose view is exactly the characters of their cells, each in its newest state.
    pub(crate) equal: usize,
    pub(crate) players: usize,
    /// Characters seen at a wrong position (ghosts), characters in sight that are not seen, and
    /// characters seen in an old state.
    pub(crate) ghosts: u64,
    pub(crate) unseen: u64,
    pub(crate) stale: u64,
}

impl Views {
    pub(crate) fn add(&mut self, other: Self) {
        self.expected += other.expected;
        self.equal += other.equal;
        self.players += other.players;
        self.ghosts += other.ghosts;
        self.unseen += other.unseen;
        self.stale += other.stale;
    }
}

/// Runs the players numbered `numbers` until the run is stopped.
pub(crate) fn run(
    plan: &PlayersPlan,
    numbers: &[usize],
    control: &Control,
    oracle: &Oracle,
    shared: &Mutex<PlayersCounts>,
) -> std::io::Result<Views> {
    let mut players = Players::new(plan, numbers, control, oracle)?;
    while !control.is_stopped() {
        players.turn(shared)?;
    }
    players.published_ns = 0;
    players.publish(clock::now_ns(), shared);
    Ok(players.views())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    /// The transport's own handshake.
    Opening,
    LoggingIn,
    /// Logged in, without a character yet.
    Entering,
    Ready,
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Tie {
    #[default]
    None,
    /// Requested, and not yet confirmed.
    Asked,
    Subscribed,
    /// Subscribed, with a pending unsubscription.
    Leaving,
}

/// One character as one player knows it.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    tie: Tie,
    band: u8,
    /// Cell of the character, as last received.
    cell: u32,
    /// The first update that this subscription should bring; 0 until it is known.
    from: u32,
    /// First missing update, if none arrives.
    at_latest: u32,
    /// The newest update seen.
    newest: u32,
    /// With rates by distance: the band of the latest delivery, and when the one after it is due,
    /// in milliseconds of the machine's clock.
    counted: u8,
    due_ms: u32,
}

struct Player {
    number: usize,
    link: Option<Link>,
    state: State,
    conn: u32,
    /// Its own character.
    own: Option<u32>,
    sequence: u32,
    /// Cells it is subscribed to.
    cells: Vec<u32>,
    /// By character.
    seen: Vec<Seen>,
    /// Characters that are or were seen.
    met: Vec<u32>,
    /// Characters whose state it has had.
    had: usize,
}

struct Players<'a> {
    plan: &'a PlayersPlan,
    control: &'a Control,
    oracle: &'a Oracle,
    poller: Poller,
    players: Vec<Player>,
    rng: Rng,
    schedule: Schedule,
    scratch: Vec<u8>,
    frame: Vec<u8>,
    out: Vec<u8>,
    counts: PlayersCounts,
    published_ns: u64,
}

impl<'a> Players<'a> {
    fn new(
        plan: &'a PlayersPlan,
        numbers: &[usize],
        control: &'a Control,
        oracle: &'a Oracle,
    ) -> std::io::Result<Self> {
        let players = numbers.iter().map(|&number| Player {
            number,
            link: None,
            state: State::Connecting,
            conn: 0,
            own: None,
            sequence: 0,
            cells: Vec::new(),
            seen: vec![Seen::default(); oracle.entities.len()],
            met: Vec::new(),
            had: 0,
        });
        let now = clock::now_ns();
        let sends = Some(plan.inputs_per_second);
        Ok(Self {
            plan,
            control,
            oracle,
            poller: Poller::new()?,
            players: players.collect(),
            rng: Rng::new(plan.seed ^ 0x9e37_79b9 ^ numbers.first().copied().unwrap_or(0) as u64),
            schedule: Schedule::new(numbers.len(), plan.connects_per_second, sends, now),
            scratch: vec![0; READ_BYTES],
            frame: Vec::new(),
            out: Vec::new(),
            counts: PlayersCounts::default(),
            published_ns: 0,
        })
    }

    fn turn(&mut self, shared: &Mutex<PlayersCounts>) -> std::io::Result<()> {
        let now = clock::now_ns();
        self.start_connections(now);
        self.send_due(now);
        self.publish(now, shared);
        let timeout = self.schedule.wait(clock::now_ns(), SLEEP_MAX);
        let ready: Vec<_> = self.poller.gather(timeout)?.collect();
        for ready in ready {
            if let Err(error) = self.progress(ready.token, ready.readable, ready.writable) {
                self.lose(ready.token, &error);
            }
        }
        Ok(())
    }

    fn start_connections(&mut self, now: u64) {
        while let Some(index) = self.schedule.next_to_connect(now) {
            if let Err(error) = self.connect(index) {
                self.lose(index, &error);
            }
        }
    }

    fn connect(&mut self, index: usize) -> Result<(), LinkError> {
        let player = &mut self.players[index];
        let source = socket::source_for(self.plan.server, player.number);
        let mut link =
            Link::connect(self.plan.server, self.plan.transport, source, None, Scanner::thorough())?;
        if let Some(trust) = &self.plan.trust {
            link.secure(trust)?;
        }
        self.poller.add(link.raw(), index, true, true)?;
        player.link = Some(link);
        Ok(())
    }

    fn send_due(&mut self, now: u64) {
        while let Some((index, due)) = self.schedule.next_to_send(now) {
            self.send_input(index, due);
        }
    }

    /// Sends an input to the channel of the player's character, regardless of its owner.
    fn send_input(&mut self, index: usize, due: u64) {
        let player = &mut self.players[index];
        let (State::Ready, Some(link), Some(own)) = (player.state, &mut player.link, player.own) else {
            return;
        };
        let chance = TURN_OR_JUMP_PER_SECOND / self.plan.inputs_per_second;
        player.sequence += 1;
        let turn =
            if self.rng.chance(chance) { (self.rng.f64() - 0.5) as f32 * std::f32::consts::TAU } else { 0.0 };
        let mut body = [0u8; INPUT_BYTES];
        body[..8].copy_from_slice(&due.to_le_bytes());
        body[8..12].copy_from_slice(&player.sequence.to_le_bytes());
        body[12..16].copy_from_slice(&turn.to_le_bytes());
        body[16] = u8::from(self.rng.chance(chance));
        self.frame.clear();
        let head = Head { channel: ENTITY_FIRST + own, kind: kind::INPUT, ..Head::default() };
        protocol::put_message(&mut self.frame, head, &body);
        let counts = &mut self.counts.base;
        let measured = self.control.is_measured(due);
        if measured {
            counts.due += 1;
            counts.lateness.record_between(due, clock::now_ns());
        }
        let armed = link.wants_write();
        match link.send(&self.frame) {
            Ok(true) => counts.messages_out += 1,
            Ok(false) if measured => counts.refused += 1,
            Ok(false) => {}
            Err(error) => return self.lose(index, &error),
        }
        counts.bytes_out += std::mem::take(&mut link.bytes_out);
        if link.wants_write()
            && !armed
            && let Err(error) = self.poller.modify(link.raw(), index, true, true)
        {
            self.lose(index, &error.into());
        }
    }

    fn progress(&mut self, index: usize, readable: bool, writable: bool) -> Result<(), LinkError> {
        let player = &mut self.players[index];
        let Some(mut link) = player.link.take() else { return Ok(()) };
        let result = (|| {
            if writable && player.state == State::Connecting {
                link.connected(self.plan.server)?;
                player.state = State::Opening;
                self.schedule.connected();
            } else if writable {
                link.flush()?;
            }
            if readable && player.state != State::Connecting {
                self.out.clear();
                let mut reader = Reader {
                    plan: self.plan,
                    control: self.control,
                    oracle: self.oracle,
                    now: clock::now_ns(),
                    player,
                    out: &mut self.out,
                    counts: &mut self.counts,
                };
                link.receive(&mut self.scratch, &mut reader)?;
                if !self.out.is_empty() {
                    link.send(&self.out)?;
                }
            }
            if player.state == State::Opening && link.is_open() {
                self.frame.clear();
                protocol::auth(&mut self.frame, 1, &format!("player-{}", player.number), "throng-load");
                link.send(&self.frame)?;
                self.counts.base.messages_out += 1;
                player.state = State::LoggingIn;
            }
            Ok(())
        })();
        if result.is_ok() && (writable || link.wants_write()) {
            self.poller.modify(link.raw(), index, true, link.wants_write())?;
        }
        let counts = &mut self.counts.base;
        counts.frames_in += link.take_frames_in();
        counts.bytes_in += std::mem::take(&mut link.bytes_in);
        counts.bytes_out += std::mem::take(&mut link.bytes_out);
        player.link = Some(link);
        result
    }

    fn lose(&mut self, index: usize, error: &LinkError) {
        let player = &mut self.players[index];
        player.link = None;
        match player.state {
            State::Lost => return,
            State::Connecting => self.schedule.connected(),
            State::Ready => self.counts.base.ready -= 1,
            _ => {}
        }
        player.state = State::Lost;
        self.counts.base.lost += 1;
        if self.counts.base.first_error.is_none() {
            self.counts.base.first_error = Some(format!("player {}: {error}", player.number));
        }
    }

    /// Ten times a second, since the histograms are copied.
    fn publish(&mut self, now: u64, shared: &Mutex<PlayersCounts>) {
        if now - self.published_ns < PUBLISH_NS {
            return;
        }
        self.published_ns = now;
        self.counts.base.cpu = clock::thread_cpu();
        let mut shared = lock(shared);
        // A sample empties the recent times; the rest only grows.
        let mut recent = std::mem::take(&mut shared.base.recent);
        recent.add(&self.counts.base.recent);
        self.counts.base.recent.clear();
        shared.clone_from(&self.counts);
        shared.base.recent = recent;
    }

    fn views(&self) -> Views {
        let mut sum = Views::default();
        let entities = &self.oracle.entities[..self.oracle.count()];
        for player in self.players.iter().filter(|player| player.state == State::Ready) {
            let mut view = Views { players: 1, ..Views::default() };
            for (seen, entity) in player.seen.iter().zip(entities) {
                let sent = entity.sent.load(Ordering::Relaxed);
                let cell = entity.cell.load(Ordering::Relaxed);
                let visible = sent > 0 && (!self.plan.cells || player.cells.contains(&cell));
                let subscribed = seen.tie == Tie::Subscribed;
                view.ghosts += u64::from(subscribed && !visible);
                view.unseen += u64::from(!subscribed && visible);
                view.stale += u64::from(subscribed && visible && seen.newest != sent);
                if subscribed {
                    view.expected += entity.expected(seen.first_expected(), u32::MAX - 1);
                }
            }
            view.equal = usize::from(view.ghosts + view.unseen + view.stale == 0);
            sum.add(view);
        }
        sum
    }
}

impl Seen {
    fn first_expected(&self) -> u32 {
        if self.from == 0 { self.at_latest } else { self.from.min(self.at_latest) }
    }
}

/// Takes the messages of one player.
struct Reader<'a> {
    plan: &'a PlayersPlan,
    control: &'a Control,
    oracle: &'a Oracle,
    /// Instant at which the bytes were read from the socket.
    now: u64,
    player: &'a mut Player,
    /// Frames to send afterwards.
    out: &'a mut Vec<u8>,
    counts: &'a mut PlayersCounts,
}

impl Sink for Reader<'_> {
    fn message(&mut self, head: Head, body: &[u8], _whole: bool) {
        self.counts.base.messages_in += 1;
        let entity = head.channel.checked_sub(ENTITY_FIRST).filter(|&entity| self.is_known(entity));
        match (head.kind, entity) {
            (kind::CHANNEL_DATA_UPDATE, Some(entity)) => self.update(entity, protocol::update_value(body)),
            (kind::CHANNEL_DATA_UPDATE, None) if head.channel != 0 => {
                self.cell_data(head.channel, protocol::update_value(body));
            }
            (kind::AUTH, _) if self.player.state == State::LoggingIn => {
                let (conn, success) = protocol::auth_result(body);
                if success {
                    self.player.conn = conn;
                    self.player.state = State::Entering;
                } else if self.counts.base.first_error.is_none() {
                    let problem = format!("player {}: login refused", self.player.number);
                    self.counts.base.first_error = Some(problem);
                }
            }
            (kind::SUB_TO_CHANNEL, entity) if protocol::subject(body) == self.player.conn => match entity {
                Some(entity) => self.subscribed(entity),
                None => self.cell_subscribed(head.channel),
            },
            (kind::UNSUB_FROM_CHANNEL, entity) if protocol::subject(body) == self.player.conn => match entity
            {
                Some(entity) => self.left(entity),
                None => self.cell_left(head.channel),
            },
            (kind::CHANNEL_DATA_HANDOVER, _) => self.handover(body),
            (kind::SPAWN, _) => {
                let (net_id, conn) = avatar::spawned(body);
                self.meets(net_id, conn, head.channel);
            }
            _ => {}
        }
    }

    fn completed(&mut self) {}
}

impl Reader<'_> {
    fn is_known(&self, entity: u32) -> bool {
        (entity as usize) < self.player.seen.len()
    }

    /// A character is in a cell that the player sees.
    fn meets(&mut self, net_id: u32, conn: u32, cell: u32) {
        let Some(entity) = net_id.checked_sub(ENTITY_FIRST).filter(|&entity| self.is_known(entity)) else {
            return;
        };
        if conn == self.player.conn && conn != 0 {
            self.player.own = Some(entity);
        }
        let seen = &mut self.player.seen[entity as usize];
        seen.cell = cell;
        if matches!(seen.tie, Tie::None | Tie::Leaving) {
            if seen.tie == Tie::None {
                self.player.met.push(entity);
            }
            seen.tie = Tie::Asked;
            protocol::subscribe_self(self.out, net_id, self.player.conn, None);
            self.counts.base.messages_out += 1;
        }
    }

    fn subscribed(&mut self, entity: u32) {
        let sent = self.oracle.entities[entity as usize].sent.load(Ordering::Relaxed);
        let seen = &mut self.player.seen[entity as usize];
        match seen.tie {
            // The answer to a request that a later one has taken back.
            Tie::Leaving => return,
            Tie::Subscribed => return,
            Tie::None => self.player.met.push(entity),
            Tie::Asked => {}
        }
        seen.tie = Tie::Subscribed;
        seen.from = 0;
        seen.at_latest = sent + SLACK;
        self.counts.subscriptions += 1;
    }

    fn left(&mut self, entity: u32) {
        let player = &mut *self.player;
        let seen = &mut player.seen[entity as usize];
        if seen.tie == Tie::None {
            return;
        }
        let oracle = &self.oracle.entities[entity as usize];
        let until = oracle.sent.load(Ordering::Relaxed).saturating_sub(SLACK).max(seen.newest);
        if seen.from != 0 || until > seen.at_latest {
            self.counts.expected += oracle.expected(seen.first_expected(), until);
        }
        self.counts.subscriptions = self.counts.subscriptions.saturating_sub(1);
        if seen.tie == Tie::Asked {
            // It was met again in between: the new subscription is on its way.
            return;
        }
        *seen = Seen { newest: seen.newest, cell: seen.cell, ..Seen::default() };
        if let Some(at) = player.met.iter().position(|&met| met == entity) {
            player.met.swap_remove(at);
        }
    }

    fn cell_subscribed(&mut self, cell: u32) {
        if cell != 0 && !self.player.cells.contains(&cell) {
            self.player.cells.push(cell);
        }
    }

    /// A cell is out of sight, and so is everyone in it but the player's own character.
    fn cell_left(&mut self, cell: u32) {
        if let Some(at) = self.player.cells.iter().position(|&seen| seen == cell) {
            self.player.cells.swap_remove(at);
        }
        for index in 0..self.player.met.len() {
            let entity = self.player.met[index];
            if self.player.seen[entity as usize].cell == cell {
                self.leave(entity);
            }
        }
    }

    fn leave(&mut self, entity: u32) {
        let seen = &mut self.player.seen[entity as usize];
        if matches!(seen.tie, Tie::Asked | Tie::Subscribed) && self.player.own != Some(entity) {
            seen.tie = Tie::Leaving;
            protocol::unsubscribe(self.out, ENTITY_FIRST + entity, self.player.conn);
            self.counts.base.messages_out += 1;
        }
    }

    /// The list of a cell: full when it comes into sight, then what is added or removed.
    fn cell_data(&mut self, cell: u32, value: &[u8]) {
        for listed in avatar::listed(value) {
            if !listed.removed {
                self.meets(listed.net_id, listed.conn, cell);
            }
        }
    }

    fn handover(&mut self, body: &[u8]) {
        self.counts.handovers += 1;
        let (_, to, data) = avatar::handover(body);
        let visible = self.player.cells.contains(&to);
        for listed in avatar::listed(data) {
            let entity = listed.net_id.checked_sub(ENTITY_FIRST).filter(|&entity| self.is_known(entity));
            let Some(entity) = entity else { continue };
            if visible {
                self.meets(listed.net_id, listed.conn, to);
                // A character that comes into sight brings its state; later updates are due.
                if let Some(Glance { sequence, full, .. }) = listed.data.and_then(avatar::glance) {
                    self.full_state(entity, full.unwrap_or(0));
                    let seen = &mut self.player.seen[entity as usize];
                    seen.newest = seen.newest.max(sequence);
                    if seen.from == 0 {
                        seen.from = sequence + 1;
                    }
                }
            } else {
                self.player.seen[entity as usize].cell = to;
                self.leave(entity);
            }
        }
    }

    /// Handles a character's state. Every update counts once, also if it arrives with others.
    fn update(&mut self, entity: u32, value: &[u8]) {
        self.counts.base.updates_in += 1;
        let Some(Glance { sent_ns, sequence, full }) = avatar::glance(value) else {
            self.counts.base.malformed += 1;
            return;
        };
        if let Some(conn) = full {
            self.full_state(entity, conn);
        }
        let seen = &mut self.player.seen[entity as usize];
        let first = seen.from == 0;
        if first {
            // A full state tells of the past; what comes after it is owed.
            seen.from = sequence + u32::from(full.is_some());
        }
        if sequence <= seen.newest {
            self.counts.repeated += u64::from(full.is_none());
            return;
        }
        seen.newest = sequence;
        if self.plan.bands {
            return self.banded(entity, sent_ns, full.is_some());
        }
        if full.is_none() && self.control.is_measured(sent_ns) {
            let counts = &mut self.counts.base;
            counts.delivered += 1;
            counts.state.record_between(sent_ns, self.now);
            counts.recent.record_between(sent_ns, self.now);
        }
    }

    fn full_state(&mut self, entity: u32, conn: u32) {
        let player = &mut *self.player;
        if player.seen[entity as usize].newest == 0 {
            player.had += 1;
            if player.had == self.plan.players {
                self.counts.complete += 1;
                self.counts.complete_ns = self.now;
            }
        }
        if conn == player.conn && conn != 0 {
            player.own = Some(entity);
        }
        if player.own == Some(entity) && player.state == State::Entering {
            player.state = State::Ready;
            self.counts.base.ready += 1;
            self.counts.ready_ns = self.now;
        }
    }

    /// With rates by distance, an update counts for the band of its distance, as often as that band
    /// promises.
    fn banded(&mut self, entity: u32, sent_ns: u64, full: bool) {
        let Some(own) = self.player.own else { return };
        let places = [own, entity].map(|index| self.oracle.entities[index as usize].place());
        let band = lod::band(places[0], places[1]);
        let seen = &mut self.player.seen[entity as usize];
        if self.plan.ask_for_rates && (seen.band != band as u8 + 1) {
            seen.band = band as u8 + 1;
            let interval = Some(lod::TABLE[band].interval_ms);
            protocol::subscribe_self(self.out, ENTITY_FIRST + entity, self.player.conn, interval);
            self.counts.base.messages_out += 1;
        }
        // The generic cell rate algorithm: what comes sooner than one interval before it is due is
        // more than promised.
        let now_ms = (self.now / 1_000_000) as u32;
        let ahead = seen.due_ms.wrapping_sub(now_ms).cast_signed();
        let interval = lod::TABLE[band].interval_ms;
        let ahead = if seen.counted == band as u8 { ahead.max(0).cast_unsigned() } else { 0 };
        if full || !self.control.is_measured(self.now) || ahead > interval {
            return;
        }
        seen.counted = band as u8;
        seen.due_ms = now_ms.wrapping_add(ahead + interval);
        self.counts.bands[band].delivered += 1;
        self.counts.bands[band].state.record_between(sent_ns, self.now);
        let counts = &mut self.counts.base;
        counts.delivered += 1;
        counts.state.record_between(sent_ns, self.now);
        counts.recent.record_between(sent_ns, self.now);
    }
}
