//! The simulated game server: owns the channel, runs the world at 30 frames a second, sends what
//! has moved.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use crate::arena::{self, View};
use crate::clock::{self, nanoseconds};
use crate::fleet::{Control, INPUT_BYTES, lock};
use crate::link::{Link, LinkError, Transport};
use crate::poll::Poller;
use crate::protocol::{self, CHANNEL_TYPE_GLOBAL, Head, Scanner, Sink, kind};
use crate::stats::Times;
use crate::world::{FRAMES_PER_SECOND, Input, World};

/// Longest sleep, so that a stop is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(20);
const READ_BYTES: usize = 256 * 1024;
/// Channel creations sent at once before the server's answers are awaited.
const CREATIONS_IN_FLIGHT: usize = 256;

/// Plan of the game server of a run.
#[derive(Debug, Clone)]
pub(crate) struct OwnerPlan {
    pub(crate) server: SocketAddr,
    /// GLOBAL is always claimed, so that the owner hears of logins; another type is created on top.
    pub(crate) channel_type: u32,
    /// Characters in the world; `None` for no world and no channel data.
    pub(crate) characters: Option<usize>,
    /// Subscribes every player who logs in, with this fan-out interval in milliseconds.
    pub(crate) subscribe_interval_ms: Option<u32>,
    /// Messages per second to each player, evenly spread, from when all of them have logged in.
    pub(crate) notices_per_second: Option<f64>,
    /// Players that will log in.
    pub(crate) players: usize,
    /// The world is paused until all players have logged in.
    pub(crate) gather: bool,
    /// Further channels to create and leave alone.
    pub(crate) idle_channels: usize,
    pub(crate) seed: u64,
}

/// Counters of the game server.
#[derive(Debug, Clone, Default)]
pub struct OwnerCounts {
    /// True if the channel exists and all requested objects are created.
    pub ready: bool,
    /// Channels created besides.
    pub channels: u64,
    /// Connections it heard log in.
    pub logins: u64,
    /// Frames simulated so far.
    pub frames: u64,
    /// State updates sent that were intended inside the measured window (several per frame in a
    /// large world).
    pub updates_due: u64,
    /// Frames of the window.
    pub frames_due: u64,
    /// Messages to single players that fell due inside the window.
    pub notices_due: u64,
    /// Sends that the gateway refused to read for too long.
    pub refused: u64,
    /// Inputs received that were intended inside the window.
    pub inputs: u64,
    /// Intended send by the player to arrival here.
    pub input: Times,
    /// Intended to actual send of updates and notices.
    pub lateness: Times,
    /// Messages received.
    pub messages_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// CPU time of its thread.
    pub cpu: Duration,
    /// Error that ended it early.
    pub error: Option<String>,
}

/// Runs the game server until the run is stopped; returns the world's final state.
pub(crate) fn run(plan: &OwnerPlan, control: &Control, shared: &Mutex<OwnerCounts>) -> View {
    prefer_this_thread();
    let mut owner = match Owner::connect(plan, control) {
        Ok(owner) => owner,
        Err(error) => {
            lock(shared).error = Some(format!("game server: {error}"));
            return View::new();
        }
    };
    while !control.is_stopped() {
        if let Err(error) = owner.turn(shared) {
            lock(shared).error = Some(format!("game server: {error}"));
            break;
        }
    }
    owner.view()
}

/// Requests a higher priority, which only some users may have. A game server has its own machine in
/// real life; here a frame that leaves late because the generator waited for a processor would
/// count as merged by the gateway.
pub(crate) fn prefer_this_thread() {
    // SAFETY: no pointers involved; for the process 0 the system takes the calling thread. A
    // refusal changes nothing.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    LoggingIn,
    Claiming,
    Creating,
    Running,
}

struct Owner<'a> {
    plan: &'a OwnerPlan,
    control: &'a Control,
    poller: Poller,
    link: Link,
    inbox: Inbox<'a>,
    world: Option<World>,
    /// Due time of frame 0; frames follow at fixed distances in every case.
    epoch_ns: u64,
    creations_sent: usize,
    /// Next message to a single player: number of the cycle and index in it.
    notice_cycle: u64,
    /// Due time of slot 0 of cycle 0; `None` until everyone has logged in.
    notices_from_ns: Option<u64>,
    notice_slot: usize,
    scratch: Vec<u8>,
    out: Vec<u8>,
}

/// Messages for the owner, sorted for its next turn.
struct Inbox<'a> {
    plan: &'a OwnerPlan,
    control: &'a Control,
    state: State,
    conn: u32,
    /// Logged-in connections in order of login, and each one's character.
    players: Vec<u32>,
    characters: HashMap<u32, usize>,
    known: HashSet<u32>,
    /// Connections to subscribe.
    joining: Vec<u32>,
    /// Inputs for the next frame.
    inputs: Vec<(usize, Input)>,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    messages: u64,
    inputs: u64,
    input: Times,
    channels: u64,
}

impl<'a> Owner<'a> {
    fn connect(plan: &'a OwnerPlan, control: &'a Control) -> Result<Self, LinkError> {
        let link = Link::connect(plan.server, Transport::Tcp, None, None, Scanner::thorough())?;
        let poller = Poller::new()?;
        poller.add(link.raw(), 0, true, true)?;
        Ok(Self {
            plan,
            control,
            poller,
            link,
            inbox: Inbox {
                plan,
                control,
                state: State::Connecting,
                conn: 0,
                players: Vec::new(),
                characters: HashMap::new(),
                known: HashSet::new(),
                joining: Vec::new(),
                inputs: Vec::new(),
                seen: Seen::default(),
            },
            world: plan.characters.map(|characters| World::new(plan.seed, characters)),
            epoch_ns: 0,
            creations_sent: 0,
            notice_cycle: 0,
            notices_from_ns: None,
            notice_slot: 0,
            scratch: vec![0; READ_BYTES],
            out: Vec::new(),
        })
    }

    fn turn(&mut self, shared: &Mutex<OwnerCounts>) -> Result<(), LinkError> {
        let now = clock::now_ns();
        if self.inbox.state == State::Running {
            let mut counts = lock(shared);
            self.step_due(now, &mut counts)?;
            self.send_notices(now, &mut counts)?;
        }
        let timeout = self.next_due_ns().saturating_sub(clock::now_ns());
        let timeout = Duration::from_nanos(timeout).min(SLEEP_MAX);
        let ready: Vec<_> = self.poller.wait(timeout)?.collect();
        for ready in ready {
            if ready.writable {
                self.on_writable()?;
            }
            if ready.readable && self.inbox.state != State::Connecting {
                self.link.receive(&mut self.scratch, &mut self.inbox)?;
            }
        }
        self.advance()?;
        self.publish(&mut lock(shared));
        Ok(())
    }

    fn on_writable(&mut self) -> Result<(), LinkError> {
        if self.inbox.state == State::Connecting {
            self.link.connected(self.plan.server)?;
            self.inbox.state = State::LoggingIn;
            self.out.clear();
            protocol::auth(&mut self.out, 1, "game-server", "throng-load");
            self.link.send(&self.out)?;
        } else {
            self.link.flush()?;
        }
        self.rearm()
    }

    /// Reacts to the responses and logins that have arrived.
    fn advance(&mut self) -> Result<(), LinkError> {
        self.out.clear();
        let type_name = self.plan.characters.map(|_| arena::TYPE_NAME);
        match self.inbox.state {
            State::Claiming if self.creations_sent == 0 => {
                let own = self.plan.channel_type == CHANNEL_TYPE_GLOBAL;
                let data = type_name.filter(|_| own);
                protocol::create_channel(&mut self.out, 2, CHANNEL_TYPE_GLOBAL, "", data);
                if !own {
                    protocol::create_channel(&mut self.out, 3, self.plan.channel_type, "arena", type_name);
                }
                self.creations_sent = 1;
            }
            State::Creating => {
                let created = usize::try_from(self.inbox.seen.channels).unwrap_or(usize::MAX);
                while self.creations_sent <= self.plan.idle_channels
                    && self.creations_sent <= created + CREATIONS_IN_FLIGHT
                {
                    let stub = 10 + u32::try_from(self.creations_sent).unwrap_or(0);
                    protocol::create_channel(
                        &mut self.out,
                        stub,
                        protocol::CHANNEL_TYPE_SUBWORLD,
                        "idle",
                        type_name,
                    );
                    self.creations_sent += 1;
                }
                if created >= self.plan.idle_channels {
                    self.inbox.state = State::Running;
                    self.epoch_ns = clock::now_ns();
                }
            }
            State::Running => {
                if let (Some(interval_ms), Some(channel)) =
                    (self.plan.subscribe_interval_ms, self.control.channel())
                {
                    for conn in self.inbox.joining.drain(..) {
                        protocol::subscribe(&mut self.out, 0, channel, conn, interval_ms);
                    }
                }
            }
            _ => {}
        }
        if self.out.is_empty() {
            return Ok(());
        }
        let frames = std::mem::take(&mut self.out);
        self.link.send(&frames)?;
        self.out = frames;
        self.rearm()
    }

    fn rearm(&self) -> Result<(), LinkError> {
        Ok(self.poller.modify(self.link.raw(), 0, true, self.link.wants_write())?)
    }

    /// Simulates and sends every frame that is due; late ones too, each with its own intended time.
    fn step_due(&mut self, now: u64, counts: &mut OwnerCounts) -> Result<(), LinkError> {
        let (Some(world), Some(channel)) = (&mut self.world, self.control.channel()) else { return Ok(()) };
        if self.plan.gather && world.frame() == 0 && self.inbox.players.len() < self.plan.players {
            self.epoch_ns = now;
            return Ok(());
        }
        loop {
            let due = frame_due_ns(self.epoch_ns, u64::from(world.frame()) + 1);
            if due > now || self.control.is_over(due) {
                break;
            }
            for (index, input) in self.inbox.inputs.drain(..) {
                world.apply(index, input);
            }
            world.step();
            counts.frames += 1;
            let measured = self.control.is_measured(due);
            let moved: Vec<usize> = world.moved().collect();
            self.out.clear();
            let mut updates = 0;
            let head = Head { channel, kind: kind::CHANNEL_DATA_UPDATE, ..Head::default() };
            arena::updates(world, &moved, due, |body| {
                protocol::put_message(&mut self.out, head, body);
                updates += 1;
            });
            if measured {
                counts.frames_due += 1;
                counts.updates_due += updates;
                counts.lateness.record_between(due, clock::now_ns());
            }
            if self.link.send(&self.out)? {
                counts.messages_out += updates;
            } else {
                counts.refused += updates;
            }
        }
        self.rearm_if_blocked()
    }

    fn send_notices(&mut self, now: u64, counts: &mut OwnerCounts) -> Result<(), LinkError> {
        let (Some(per_second), Some(channel)) = (self.plan.notices_per_second, self.control.channel()) else {
            return Ok(());
        };
        if self.notices_from_ns.is_none()
            && self.plan.players > 0
            && self.inbox.players.len() >= self.plan.players
        {
            self.notices_from_ns = Some(now);
        }
        self.out.clear();
        while let Some(due) =
            self.notice_due_ns(per_second).filter(|&due| due <= now && !self.control.is_over(due))
        {
            let mut payload = [0u8; 64];
            payload[..8].copy_from_slice(&due.to_le_bytes());
            protocol::forward_to(&mut self.out, channel, self.inbox.players[self.notice_slot], &payload);
            counts.messages_out += 1;
            if self.control.is_measured(due) {
                counts.notices_due += 1;
                counts.lateness.record_between(due, clock::now_ns());
            }
            self.notice_slot += 1;
            if self.notice_slot >= self.plan.players {
                self.notice_slot = 0;
                self.notice_cycle += 1;
            }
        }
        if self.out.is_empty() {
            return Ok(());
        }
        if !self.link.send(&self.out)? {
            counts.refused += 1;
        }
        self.rearm_if_blocked()
    }

    fn rearm_if_blocked(&self) -> Result<(), LinkError> {
        if self.link.wants_write() { self.rearm() } else { Ok(()) }
    }

    fn notice_due_ns(&self, per_second: f64) -> Option<u64> {
        let count = self.plan.players as u64;
        let period = (1e9 / per_second) as u64;
        Some(self.notices_from_ns? + self.notice_cycle * period + period * self.notice_slot as u64 / count)
    }

    fn next_due_ns(&self) -> u64 {
        if self.inbox.state != State::Running {
            return u64::MAX;
        }
        let now = clock::now_ns();
        let frame =
            self.world.as_ref().map(|world| frame_due_ns(self.epoch_ns, u64::from(world.frame()) + 1));
        let frame = frame.filter(|&due| !self.control.is_over(due));
        // Messages to single players are many and small: bundled per half millisecond.
        let notice = self.plan.notices_per_second.and_then(|per_second| self.notice_due_ns(per_second));
        let notice = notice.filter(|&due| !self.control.is_over(due)).map(|due| due.max(now + 500_000));
        frame.unwrap_or(u64::MAX).min(notice.unwrap_or(u64::MAX))
    }

    fn publish(&mut self, counts: &mut OwnerCounts) {
        let seen = &mut self.inbox.seen;
        counts.ready = self.inbox.state == State::Running;
        counts.channels = seen.channels;
        counts.logins = self.inbox.players.len() as u64;
        counts.messages_in = seen.messages;
        counts.bytes_in = self.link.bytes_in;
        counts.bytes_out = self.link.bytes_out;
        counts.cpu = clock::thread_cpu();
        if seen.inputs > 0 {
            counts.inputs += std::mem::take(&mut seen.inputs);
            counts.input.add(&seen.input);
            seen.input.clear();
        }
    }

    fn view(&self) -> View {
        let characters = self.world.as_ref().map_or(&[][..], World::characters);
        let encode = |character: &crate::world::Character| {
            let mut state = Vec::new();
            character.encode(&mut state);
            state
        };
        (1..).zip(characters.iter().map(encode)).collect()
    }
}

fn frame_due_ns(epoch_ns: u64, frame: u64) -> u64 {
    epoch_ns + frame * nanoseconds(Duration::from_secs(1)) / u64::from(FRAMES_PER_SECOND)
}

impl Sink for Inbox<'_> {
    fn message(&mut self, head: Head, body: &[u8], _whole: bool) {
        self.seen.messages += 1;
        match (head.kind, self.state) {
            (kind::INPUT, _) => self.input(body),
            (kind::AUTH, State::LoggingIn) => {
                let (conn, success) = protocol::auth_result(body);
                if success {
                    self.conn = conn;
                    self.state = State::Claiming;
                }
            }
            (kind::AUTH, _) => {
                let (conn, success) = protocol::auth_result(body);
                if success && conn != self.conn && self.known.insert(conn) {
                    self.characters.insert(conn, self.players.len());
                    self.players.push(conn);
                    self.joining.push(conn);
                }
            }
            (kind::CREATE_CHANNEL, State::Claiming) => {
                let global = self.plan.channel_type == CHANNEL_TYPE_GLOBAL;
                if head.stub == if global { 2 } else { 3 } {
                    self.control.set_channel(protocol::created_channel(body));
                    self.state = State::Creating;
                }
            }
            (kind::CREATE_CHANNEL, State::Creating) if head.stub >= 10 => self.seen.channels += 1,
            _ => {}
        }
    }

    fn completed(&mut self) {}
}

impl Inbox<'_> {
    fn input(&mut self, body: &[u8]) {
        let (conn, payload) = protocol::forwarded(body);
        let Some(payload) = payload.first_chunk::<INPUT_BYTES>() else { return };
        let input = read_input(payload);
        if self.control.is_measured(input.sent_ns) {
            self.seen.inputs += 1;
            self.seen.input.record_between(input.sent_ns, clock::now_ns());
        }
        if self.plan.characters.is_some()
            && let Some(&index) = self.characters.get(&conn)
        {
            self.inputs.push((index, input));
        }
    }
}

/// Layout: u64 time, u32 sequence number, f32 turn, u8 jump, little-endian.
pub(crate) fn read_input(raw: &[u8; INPUT_BYTES]) -> Input {
    let [t0, t1, t2, t3, t4, t5, t6, t7, s0, s1, s2, s3, a0, a1, a2, a3, jump] = *raw;
    Input {
        sent_ns: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
        sequence: u32::from_le_bytes([s0, s1, s2, s3]),
        turn: f32::from_le_bytes([a0, a1, a2, a3]),
        jump: jump != 0,
    }
}
