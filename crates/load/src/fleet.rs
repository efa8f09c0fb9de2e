//! Many simulated players on one thread.
//!
//! A thread owns its players' sockets and one [`Schedule`]. Everything is measured from the time at
//! which it was due.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_stdx::Rng;

use crate::arena::{self, PARTS_MAX, View};
use crate::clock::{self, nanoseconds};
use crate::link::{Link, LinkError, Transport};
use crate::network::Network;
use crate::poll::Poller;
use crate::protocol::{self, Head, Scanner, Sink, kind};
use crate::schedule::Schedule;
use crate::socket;
use crate::tls::Trust;

/// Longest sleep, so that a stop is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// KCP acknowledges and repeats on a grid of this width.
const KCP_TICK: Duration = Duration::from_millis(10);
/// Precision of the times of a simulated network.
const NETWORK_TICK: Duration = Duration::from_millis(2);
/// Bytes per read. The relevant part of a frame is its first few hundred bytes; the kernel discards
/// the rest.
const READ_BYTES: usize = 2_048;
/// Bytes per read for players that parse whole frames.
const READ_ALL_BYTES: usize = 64 * 1024;
/// Receive buffer of a player that is meant to stall, in bytes.
const STALLED_BUFFER_BYTES: usize = 8 * 1024;
/// Smallest input: time, sequence number, turn, jump.
pub(crate) const INPUT_BYTES: usize = 17;
/// Chance per second that a player turns, and that it jumps: the published scenario has both at
/// 10%.
pub(crate) const TURN_OR_JUMP_PER_SECOND: f64 = 0.1;

/// Plan of the players of a run.
#[derive(Debug, Clone)]
pub(crate) struct FleetPlan {
    pub(crate) server: SocketAddr,
    pub(crate) transport: Transport,
    /// The server's certificate, for encrypted transports.
    pub(crate) trust: Option<Trust>,
    /// Simulated network between the players and the server.
    pub(crate) network: Network,
    /// Connections opened per second and thread.
    pub(crate) connects_per_second: u32,
    /// Log in. Without, a player is ready as soon as it is connected.
    pub(crate) login: bool,
    /// Source of the player's subscription, if it has one.
    pub(crate) subscribe: Option<Subscribe>,
    /// Inputs sent to the channel's owner.
    pub(crate) inputs: Option<Inputs>,
    /// Number of players of each thread that read and check everything.
    pub(crate) checkers: usize,
    /// Number of players (the last ones of the first thread) that stop reading once subscribed.
    pub(crate) stalled: usize,
    pub(crate) seed: u64,
}

/// Side that requests a player's subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subscribe {
    /// The simulated game server, when it hears of the player's login.
    ByOwner,
    /// The player, with this fan-out interval in milliseconds; needs a server that permits it.
    BySelf { interval_ms: u32 },
}

/// Messages from a player to the owner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Inputs {
    /// Packets per second and player.
    pub(crate) per_second: f64,
    /// Messages in each packet.
    pub(crate) batch: usize,
    /// Bytes of each message, at least [`INPUT_BYTES`].
    pub(crate) bytes: usize,
}

/// State shared by all threads of a run.
#[derive(Debug)]
pub(crate) struct Control {
    stop: AtomicBool,
    /// Messages intended to be sent in `[from, until)` are measured.
    from_ns: AtomicU64,
    until_ns: AtomicU64,
    /// The channel that the owner made; `u32::MAX` until then.
    channel: AtomicU32,
    /// All players are there: inputs may begin. Those of the first would delay the logins of the
    /// last on a machine that is too slow for the load.
    started: AtomicBool,
}

impl Control {
    pub(crate) fn new() -> Self {
        Self {
            stop: AtomicBool::new(false),
            from_ns: AtomicU64::new(u64::MAX),
            until_ns: AtomicU64::new(u64::MAX),
            channel: AtomicU32::new(u32::MAX),
            started: AtomicBool::new(false),
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn start(&self) {
        self.started.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sets the measured window; the end first, so that no thread sees a window without an end.
    pub(crate) fn measure(&self, from_ns: u64, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Release);
        self.from_ns.store(from_ns, Ordering::Release);
    }

    pub(crate) fn is_measured(&self, intended_ns: u64) -> bool {
        intended_ns >= self.from_ns.load(Ordering::Acquire)
            && intended_ns < self.until_ns.load(Ordering::Acquire)
    }

    /// True if the measured window has passed.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns.load(Ordering::Acquire)
    }

    pub(crate) fn set_channel(&self, channel: u32) {
        self.channel.store(channel, Ordering::Release);
    }

    pub(crate) fn channel(&self) -> Option<u32> {
        Some(self.channel.load(Ordering::Acquire)).filter(|&channel| channel != u32::MAX)
    }
}

/// Locks, going on after a panic elsewhere: counters stay meaningful.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    /// The transport's own handshake.
    Opening,
    LoggingIn,
    Subscribing,
    Ready,
    Stalled,
    Lost,
}

#[derive(Debug)]
struct Player {
    /// Number in the whole run, from 0.
    number: usize,
    link: Option<Link>,
    state: State,
    conn: u32,
    sequence: u32,
    /// Newest frame seen, per part of the world.
    frames: [u32; PARTS_MAX],
    /// Stamps of the update whose rest is still arriving.
    arriving: Vec<u64>,
    /// State of the channel as this player saw it, for the players that check.
    view: Option<View>,
}

/// Runs the players numbered `numbers` until the run is stopped; returns the views of the checking
/// players.
pub(crate) fn run(
    plan: &FleetPlan,
    numbers: &[usize],
    control: &Control,
    shared: &Mutex<crate::stats::Counts>,
) -> std::io::Result<Vec<View>> {
    let mut fleet = Fleet::new(plan, numbers, control)?;
    while !control.is_stopped() {
        fleet.turn(shared)?;
    }
    Ok(fleet
        .players
        .into_iter()
        .filter(|player| player.state == State::Ready)
        .filter_map(|player| player.view)
        .collect())
}

struct Fleet<'a> {
    plan: &'a FleetPlan,
    control: &'a Control,
    poller: Poller,
    players: Vec<Player>,
    rng: Rng,
    schedule: Schedule,
    scratch: Vec<u8>,
    frame: Vec<u8>,
    cpu_read_ns: u64,
    kcp_tick_ns: u64,
    network_tick_ns: u64,
}

impl<'a> Fleet<'a> {
    fn new(plan: &'a FleetPlan, numbers: &[usize], control: &'a Control) -> std::io::Result<Self> {
        let players = numbers
            .iter()
            .enumerate()
            .map(|(index, &number)| Player {
                number,
                link: None,
                state: State::Connecting,
                conn: 0,
                sequence: 0,
                frames: [0; PARTS_MAX],
                arriving: Vec::new(),
                view: (index < plan.checkers).then(View::new),
            })
            .collect();
        let now = clock::now_ns();
        let sends = plan.inputs.map(|inputs| inputs.per_second);
        Ok(Self {
            plan,
            control,
            poller: Poller::new()?,
            players,
            rng: Rng::new(plan.seed ^ numbers.first().copied().unwrap_or(0) as u64),
            schedule: Schedule::new(numbers.len(), plan.connects_per_second, sends, now),
            scratch: vec![0; READ_ALL_BYTES],
            frame: Vec::new(),
            cpu_read_ns: 0,
            kcp_tick_ns: now,
            network_tick_ns: now,
        })
    }

    /// Sends due messages, waits, and reads.
    fn turn(&mut self, shared: &Mutex<crate::stats::Counts>) -> std::io::Result<()> {
        let now = clock::now_ns();
        {
            let mut counts = lock(shared);
            self.start_connections(now, &mut counts);
            self.send_due(now, &mut counts);
            self.tick_kcp(now, &mut counts);
            self.tick_network(now, &mut counts);
            self.publish(now, &mut counts);
        }
        let mut most = SLEEP_MAX;
        if self.plan.transport == Transport::Kcp {
            most = most.min(Duration::from_nanos(self.kcp_tick_ns.saturating_sub(clock::now_ns())));
        }
        if !self.plan.network.is_clear() {
            most = most.min(Duration::from_nanos(self.network_tick_ns.saturating_sub(clock::now_ns())));
        }
        let timeout = self.schedule.wait(clock::now_ns(), most);
        // The list borrows the poller, so the tokens are copied; 256 at most.
        let ready: Vec<_> = self.poller.gather(timeout)?.collect();
        if ready.is_empty() {
            return Ok(());
        }
        let mut counts = lock(shared);
        for ready in ready {
            self.handle(ready.token, ready.readable, ready.writable, &mut counts);
        }
        Ok(())
    }

    fn start_connections(&mut self, now: u64, counts: &mut crate::stats::Counts) {
        while let Some(index) = self.schedule.next_to_connect(now) {
            if let Err(error) = self.connect(index) {
                self.lose(index, &error, counts);
            }
        }
    }

    fn tick_kcp(&mut self, now: u64, counts: &mut crate::stats::Counts) {
        if self.plan.transport != Transport::Kcp || now < self.kcp_tick_ns {
            return;
        }
        self.kcp_tick_ns = now + nanoseconds(KCP_TICK);
        for index in 0..self.players.len() {
            let Some(link) = &mut self.players[index].link else { continue };
            if let Err(error) = link.tick() {
                self.lose(index, &error, counts);
            }
        }
    }

    /// Takes the bytes that have passed the simulated network.
    fn tick_network(&mut self, now: u64, counts: &mut crate::stats::Counts) {
        if self.plan.network.is_clear() || now < self.network_tick_ns {
            return;
        }
        self.network_tick_ns = now + nanoseconds(NETWORK_TICK);
        for index in 0..self.players.len() {
            let Player { link, state, .. } = &self.players[index];
            let due = link.as_ref().is_some_and(|link| link.is_due(now) || link.paused);
            if due && !matches!(state, State::Connecting | State::Stalled) {
                self.handle(index, true, false, counts);
            }
        }
    }

    fn connect(&mut self, index: usize) -> Result<(), LinkError> {
        let stalled = self.is_to_stall(index);
        let player = &mut self.players[index];
        let scanner = if player.view.is_some() { Scanner::thorough() } else { Scanner::lean() };
        let source = socket::source_for(self.plan.server, player.number);
        let buffer = stalled.then_some(STALLED_BUFFER_BYTES);
        let mut link = Link::connect(self.plan.server, self.plan.transport, source, buffer, scanner)?;
        if let Some(trust) = &self.plan.trust {
            link.secure(trust)?;
        }
        if !self.plan.network.is_clear() {
            link.pass_through(&self.plan.network, self.plan.seed ^ (player.number as u64) << 20);
        }
        self.poller.add(link.raw(), index, true, true)?;
        player.link = Some(link);
        Ok(())
    }

    fn is_to_stall(&self, index: usize) -> bool {
        self.players[index].number < self.plan.stalled
    }

    fn send_due(&mut self, now: u64, counts: &mut crate::stats::Counts) {
        let Some(inputs) = self.plan.inputs else { return };
        let is_started = self.control.started.load(Ordering::Relaxed);
        let Some(channel) = self.control.channel().filter(|_| is_started) else {
            // The schedule starts when the owner and all players are there.
            self.schedule.restart(now);
            return;
        };
        while let Some((index, due)) = self.schedule.next_to_send(now) {
            self.send_input(index, channel, inputs, due, counts);
        }
    }

    fn send_input(
        &mut self,
        index: usize,
        channel: u32,
        inputs: Inputs,
        due: u64,
        counts: &mut crate::stats::Counts,
    ) {
        let player = &mut self.players[index];
        let (State::Ready | State::Stalled, Some(link)) = (player.state, &mut player.link) else { return };
        let head = Head { channel, kind: kind::INPUT, ..Head::default() };
        let mut body = [0u8; 1_024];
        let body = &mut body[..inputs.bytes.clamp(INPUT_BYTES, 1_024)];
        let chance = TURN_OR_JUMP_PER_SECOND / inputs.per_second;
        self.frame.clear();
        protocol::put_frame(&mut self.frame, |packet| {
            for _ in 0..inputs.batch {
                player.sequence += 1;
                let turn = if self.rng.chance(chance) {
                    (self.rng.f64() - 0.5) as f32 * std::f32::consts::TAU
                } else {
                    0.0
                };
                body[..8].copy_from_slice(&due.to_le_bytes());
                body[8..12].copy_from_slice(&player.sequence.to_le_bytes());
                body[12..16].copy_from_slice(&turn.to_le_bytes());
                body[16] = u8::from(self.rng.chance(chance));
                protocol::put_entry(packet, head, body);
            }
        });
        let armed = link.wants_write();
        let measured = self.control.is_measured(due);
        let batch = inputs.batch as u64;
        if measured {
            counts.due += batch;
            counts.lateness.record_between(due, clock::now_ns());
        }
        match link.send(&self.frame) {
            Ok(true) => counts.messages_out += batch,
            Ok(false) if measured => counts.refused += batch,
            Ok(false) => {}
            Err(error) => return self.lose(index, &error, counts),
        }
        tally(link, counts);
        if link.wants_write() && !armed {
            let result = self.poller.modify(link.raw(), index, player.state != State::Stalled, true);
            if let Err(error) = result {
                self.lose(index, &error.into(), counts);
            }
        }
    }

    fn handle(&mut self, index: usize, readable: bool, writable: bool, counts: &mut crate::stats::Counts) {
        let result = self.progress(index, readable, writable, counts);
        if let Err(error) = result {
            self.lose(index, &error, counts);
        }
    }

    fn progress(
        &mut self,
        index: usize,
        readable: bool,
        writable: bool,
        counts: &mut crate::stats::Counts,
    ) -> Result<(), LinkError> {
        let player = &mut self.players[index];
        let Some(mut link) = player.link.take() else { return Ok(()) };
        let before = player.state;
        let result = (|| {
            if writable && player.state == State::Connecting {
                link.connected(self.plan.server)?;
                player.state = State::Opening;
                self.schedule.connected();
            } else if writable {
                link.flush()?;
            }
            if readable && player.state == State::Stalled {
                // Nobody asked for readiness to read, so this is an end or an error.
                return Err(LinkError::Closed);
            }
            if readable && player.state != State::Connecting {
                // Encrypted bytes cannot be skipped unread.
                let whole = player.view.is_some() || self.plan.trust.is_some();
                let scratch = if whole { READ_ALL_BYTES } else { READ_BYTES };
                let mut reader = Reader { plan: self.plan, control: self.control, player, counts };
                link.receive(&mut self.scratch[..scratch], &mut reader)?;
            }
            if player.state == State::Opening && link.is_open() && !self.plan.login {
                player.state = State::Ready;
                counts.ready += 1;
            } else if player.state == State::Opening && link.is_open() {
                let mut frame = Vec::new();
                protocol::auth(&mut frame, 1, &format!("player-{}", player.number), "throng-load");
                link.send(&frame)?;
                counts.messages_out += 1;
                player.state = State::LoggingIn;
            } else if before == State::LoggingIn
                && player.state == State::Subscribing
                && let (Some(Subscribe::BySelf { interval_ms }), Some(channel)) =
                    (self.plan.subscribe, self.control.channel())
            {
                let mut frame = Vec::new();
                protocol::subscribe(&mut frame, 2, channel, player.conn, interval_ms);
                link.send(&frame)?;
                counts.messages_out += 1;
            }
            Ok(())
        })();
        if player.state == State::Ready && player.number < self.plan.stalled {
            player.state = State::Stalled;
        }
        let read = player.state != State::Stalled && !link.is_held_up();
        let changed = std::mem::replace(&mut link.paused, !read) == read;
        if result.is_ok() && (writable || link.wants_write() || !read || changed) {
            self.poller.modify(link.raw(), index, read, link.wants_write())?;
        }
        tally(&mut link, counts);
        player.link = Some(link);
        result
    }

    fn lose(&mut self, index: usize, error: &LinkError, counts: &mut crate::stats::Counts) {
        let player = &mut self.players[index];
        player.link = None;
        match player.state {
            State::Lost => return,
            State::Connecting => self.schedule.connected(),
            State::Ready | State::Stalled => counts.ready -= 1,
            _ => {}
        }
        player.state = State::Lost;
        counts.lost += 1;
        if counts.first_error.is_none() {
            counts.first_error = Some(format!("player {}: {error}", player.number));
        }
    }

    /// Reads the thread's CPU clock, ten times a second: it costs a system call.
    fn publish(&mut self, now: u64, counts: &mut crate::stats::Counts) {
        if now - self.cpu_read_ns < 100_000_000 {
            return;
        }
        self.cpu_read_ns = now;
        counts.cpu = clock::thread_cpu();
    }
}

/// Moves what a connection has counted to the thread's counts.
fn tally(link: &mut Link, counts: &mut crate::stats::Counts) {
    counts.frames_in += link.take_frames_in();
    counts.bytes_in += std::mem::take(&mut link.bytes_in);
    counts.bytes_out += std::mem::take(&mut link.bytes_out);
    counts.fates.add(&link.take_fates());
}

/// Takes the messages of one player.
struct Reader<'a> {
    plan: &'a FleetPlan,
    control: &'a Control,
    player: &'a mut Player,
    counts: &'a mut crate::stats::Counts,
}

impl Sink for Reader<'_> {
    fn message(&mut self, head: Head, body: &[u8], whole: bool) {
        self.counts.messages_in += 1;
        match head.kind {
            kind::CHANNEL_DATA_UPDATE => self.update(body, whole),
            kind::AUTH if self.player.state == State::LoggingIn => {
                let (conn, success) = protocol::auth_result(body);
                if success {
                    self.player.conn = conn;
                    self.player.state = State::Subscribing;
                    if self.plan.subscribe.is_none() {
                        self.become_ready();
                    }
                } else if self.counts.first_error.is_none() {
                    self.counts.first_error = Some(format!("player {}: login refused", self.player.number));
                }
            }
            kind::SUB_TO_CHANNEL if self.player.state == State::Subscribing => self.become_ready(),
            kind::NOTICE => self.notice(protocol::forwarded(body).1),
            _ => {}
        }
    }

    fn completed(&mut self) {
        let now = clock::now_ns();
        for sent in self.player.arriving.drain(..) {
            record(self.counts, sent, now);
        }
    }
}

impl Reader<'_> {
    fn become_ready(&mut self) {
        self.player.state = State::Ready;
        self.counts.ready += 1;
    }

    /// Handles a state update. Its content counts as delivered when all of it has arrived.
    fn update(&mut self, body: &[u8], whole: bool) {
        self.counts.updates_in += 1;
        let value = protocol::update_value(body);
        let mut now = 0;
        for stamp in arena::stamps(value) {
            let Some(newest) = self.player.frames.get_mut(stamp.part) else { continue };
            // The full state that a subscription starts with repeats what was sent before it.
            let is_new = stamp.frame > *newest;
            *newest = stamp.frame.max(*newest);
            if !is_new || !self.control.is_measured(stamp.sent_ns) {
                continue;
            }
            if whole {
                if now == 0 {
                    now = clock::now_ns();
                }
                record(self.counts, stamp.sent_ns, now);
            } else {
                self.player.arriving.push(stamp.sent_ns);
            }
        }
        if let Some(view) = &mut self.player.view
            && !arena::merge(view, value)
        {
            self.counts.malformed += 1;
        }
    }

    fn notice(&mut self, payload: &[u8]) {
        let Some(sent) = payload.first_chunk().map(|raw| u64::from_le_bytes(*raw)) else { return };
        if self.control.is_measured(sent) {
            self.counts.notices += 1;
            self.counts.notice.record_between(sent, clock::now_ns());
        }
    }
}

fn record(counts: &mut crate::stats::Counts, sent_ns: u64, now_ns: u64) {
    counts.delivered += 1;
    counts.state.record_between(sent_ns, now_ns);
    counts.recent.record_between(sent_ns, now_ns);
}
