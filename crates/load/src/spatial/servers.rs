//! The simulated game servers: one that admits players, and those that own the cells.
//!
//! All of them live on one thread, each with its own connection, and each simulates 30 frames a
//! second of the characters that it has authority over. Authority comes and goes only by messages
//! of the gateway: a character that walks over a border is simulated by its old server until that
//! server is told of the handover, and by the new one from the state that came with it. Frames of
//! different servers are spread over the frame time, since real ones know nothing of each other.
//!
//! Without a grid ([`Layout::Open`]) the first server owns every character, as well-known entities.

mod received;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_stdx::Rng;

use self::received::{Event, Inbox};
use super::avatar::{self, Avatar, Scale};
use super::oracle::Oracle;
use super::tape::Tape;
use super::terrain::{Body, FRAMES_PER_SECOND, Terrain};
use super::{ENTITY_FIRST, Grid, Layout};
use crate::clock::{self, nanoseconds};
use crate::fleet::{Control, lock};
use crate::link::{Link, LinkError, Transport};
use crate::owner::prefer_this_thread;
use crate::poll::Poller;
use crate::protocol::{self, CHANNEL_TYPE_GLOBAL, PACKET_BYTES_MAX, Scanner, kind};
use crate::stats::Times;
use crate::world::Input;

/// Longest sleep, so that a stop is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(20);
const READ_BYTES: usize = 256 * 1024;
/// Bytes of one character's update on the wire besides its padding, at most.
const ENTRY_BYTES_MAX: usize = 192;
/// Absence of a crashed server.
const CRASH_PAUSE: Duration = Duration::from_secs(2);
const PUBLISH_NS: u64 = 100_000_000;
const STUB_GLOBAL: u32 = 2;
const STUB_CELLS: u32 = 3;
const STUB_ENTITY: u32 = 4;
/// Stubs of queries: this plus the index of the player.
const STUB_QUERY: u32 = 1_000;

/// Plan of the game servers of a run.
#[derive(Debug, Clone)]
pub(crate) struct ServersPlan {
    pub(crate) server: SocketAddr,
    pub(crate) layout: Layout,
    /// Radius of a player's interest in metres.
    pub(crate) interest_metres: f32,
    /// Seconds into the measured window at which one server crashes, to return a little later.
    pub(crate) crash_at: Option<Duration>,
    /// Keep a record for the picture.
    pub(crate) tape: bool,
    /// Bytes added to each update of a character.
    pub(crate) padding_bytes: usize,
    pub(crate) seed: u64,
}

/// Counters of the game servers.
#[derive(Debug, Clone, Default)]
pub struct ServersCounts {
    /// GLOBAL is claimed and every cell has its server.
    pub ready: bool,
    /// Spatial channels that they own.
    pub cells: u64,
    /// Entity channels that they made.
    pub entities: u64,
    /// Players heard to log in.
    pub logins: u64,
    /// Frames simulated so far, all servers together.
    pub frames: u64,
    /// Frames of the window.
    pub frames_due: u64,
    /// Updates sent that were intended inside the window.
    pub updates_due: u64,
    /// Sends that the gateway refused to read for too long.
    pub refused: u64,
    /// Inputs of the window that reached the server with authority over the character.
    pub inputs: u64,
    /// Inputs that reached a server without it.
    pub stray_inputs: u64,
    /// Intended send by the player to arrival here.
    pub input: Times,
    /// Intended to actual send of frames.
    pub lateness: Times,
    /// Characters that walked from one cell to another inside the window.
    pub crossings: u64,
    /// Handovers inside the window, as received by the servers of the destination cells.
    pub handovers: u64,
    /// Of these, how many went from one server to another.
    pub server_handovers: u64,
    /// Due time of the update that crossed to arrival of the handover at the destination's server.
    pub handover: Times,
    /// Characters that a returning server got back.
    pub recovered: u64,
    /// From the return of a server to the end of its recovery.
    pub recovery: Option<Duration>,
    /// Characters that the crashed server had.
    pub orphaned: u64,
    /// Messages received.
    pub messages_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// CPU time of their thread.
    pub cpu: Duration,
    /// Error that ended them early.
    pub error: Option<String>,
}

/// Runs the game servers until the run is stopped; returns the record for the picture.
pub(crate) fn run(
    plan: &ServersPlan,
    control: &Control,
    oracle: &Oracle,
    shared: &Mutex<ServersCounts>,
) -> Tape {
    prefer_this_thread();
    let mut servers = match Servers::connect(plan, control, oracle) {
        Ok(servers) => servers,
        Err(error) => {
            lock(shared).error = Some(format!("game servers: {error}"));
            return Tape::default();
        }
    };
    while !control.is_stopped() {
        if let Err((index, error)) = servers.turn(shared) {
            lock(shared).error = Some(format!("game server {index}: {error}"));
            return servers.tape;
        }
    }
    servers.published_ns = 0;
    servers.publish(clock::now_ns(), shared);
    servers.tape
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    LoggingIn,
    /// The first server waits for GLOBAL, the others for their cells.
    Claiming,
    /// Has its cells and waits for the other servers.
    Waiting,
    Running,
    /// Returned, and receiving its recovery data.
    Recovering,
    /// Crashed; the connection is gone.
    Down,
}

/// One connection and its purpose.
struct Server {
    index: usize,
    link: Option<Link>,
    state: State,
    conn: u32,
    /// Indices of the characters that it has authority over.
    members: Vec<u32>,
    /// Frames simulated; the next is due at `epoch + (frame + 1) * period`.
    frame: u64,
    out: Vec<u8>,
    /// Planned and actual return of a crashed server.
    returns_ns: u64,
    returned_ns: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// One character.
#[derive(Debug, Clone, Copy, Default)]
struct Character {
    avatar: Avatar,
    /// Cell of the newest handover, 0 in an open world.
    cell: u32,
    /// Index of the server with authority, plus one; 0 for none.
    authority: usize,
    /// The same for a former server that has not yet been notified of the loss of the character.
    former: usize,
    /// Due time of the update that moved it out of its cell.
    crossed_ns: u64,
    /// Position of the last interest request for its player.
    interest: (f32, f32),
}

struct Servers<'a> {
    plan: &'a ServersPlan,
    control: &'a Control,
    oracle: &'a Oracle,
    poller: Poller,
    servers: Vec<Server>,
    scale: Scale,
    terrain: Terrain,
    rng: Rng,
    characters: Vec<Character>,
    /// Requested characters that do not exist yet.
    expected: HashMap<u32, Character>,
    /// Connections heard to log in, in order, and where they start.
    newcomers: Vec<(u32, f32, f32)>,
    known: HashSet<u32>,
    /// Connections heard to log in before every game server knew its own.
    callers: Vec<u32>,
    /// Server by cell.
    owners: HashMap<u32, usize>,
    ready: usize,
    crashed: bool,
    epoch_ns: u64,
    published_ns: u64,
    events: Vec<Event>,
    scratch: Vec<u8>,
    buffers: [Vec<u8>; 2],
    padding: Vec<u8>,
    packet: Vec<u8>,
    seen: ServersCounts,
    tape: Tape,
}

type Failure = (usize, LinkError);

impl<'a> Servers<'a> {
    fn connect(plan: &'a ServersPlan, control: &'a Control, oracle: &'a Oracle) -> Result<Self, LinkError> {
        let poller = Poller::new()?;
        let count = 1 + plan.layout.grid().map_or(0, |grid| grid.servers());
        let mut servers = Vec::with_capacity(count);
        for index in 0..count {
            let link = Link::connect(plan.server, Transport::Tcp, None, None, Scanner::thorough())?;
            poller.add(link.raw(), index, true, true)?;
            servers.push(Server {
                index,
                link: Some(link),
                state: State::Connecting,
                conn: 0,
                members: Vec::new(),
                frame: 0,
                out: Vec::new(),
                returns_ns: u64::MAX,
                returned_ns: 0,
                bytes_in: 0,
                bytes_out: 0,
            });
        }
        let mut rng = Rng::new(plan.seed);
        let terrain = Terrain::new(plan.layout.side_metres(), &mut rng);
        let mut tape = Tape::default();
        if plan.tape {
            tape.begin(&terrain, plan.interest_metres);
        }
        Ok(Self {
            plan,
            control,
            oracle,
            poller,
            servers,
            scale: Scale { side_metres: terrain.side_metres() },
            terrain,
            rng,
            characters: vec![Character::default(); oracle.entities.len()],
            expected: HashMap::new(),
            newcomers: Vec::new(),
            known: HashSet::new(),
            callers: Vec::new(),
            owners: HashMap::new(),
            ready: 0,
            crashed: false,
            epoch_ns: clock::now_ns(),
            published_ns: 0,
            events: Vec::new(),
            scratch: vec![0; READ_BYTES],
            buffers: Default::default(),
            padding: vec![0; plan.padding_bytes],
            packet: Vec::new(),
            seen: ServersCounts::default(),
            tape,
        })
    }

    fn turn(&mut self, shared: &Mutex<ServersCounts>) -> Result<(), Failure> {
        let now = clock::now_ns();
        self.crash_and_return(now).map_err(|error| (0, error))?;
        for index in 0..self.servers.len() {
            self.step_due(index, now).map_err(|error| (index, error))?;
        }
        let timeout = self.next_due_ns().saturating_sub(clock::now_ns());
        let timeout = Duration::from_nanos(timeout).min(SLEEP_MAX);
        let ready: Vec<_> = self.poller.wait(timeout).map_err(|error| (0, error.into()))?.collect();
        for ready in ready {
            self.progress(ready.token, ready.readable, ready.writable)
                .map_err(|error| (ready.token, error))?;
        }
        for index in 0..self.servers.len() {
            self.send_control(index).map_err(|error| (index, error))?;
        }
        self.publish(now, shared);
        Ok(())
    }

    fn progress(&mut self, index: usize, readable: bool, writable: bool) -> Result<(), LinkError> {
        let server = &mut self.servers[index];
        let Some(mut link) = server.link.take() else { return Ok(()) };
        let result: Result<(), LinkError> = (|| {
            if writable && server.state == State::Connecting {
                link.connected(self.plan.server)?;
                server.state = State::LoggingIn;
                protocol::auth(&mut server.out, 1, &format!("game-server-{index}"), "throng-load");
            } else if writable {
                link.flush()?;
            }
            if readable && server.state != State::Connecting {
                let mut inbox = Inbox {
                    scale: self.scale,
                    state: server.state,
                    conn: &mut server.conn,
                    events: &mut self.events,
                    messages: &mut self.seen.messages_in,
                };
                link.receive(&mut self.scratch, &mut inbox)?;
            }
            Ok(())
        })();
        server.bytes_in += std::mem::take(&mut link.bytes_in);
        let wants = link.wants_write();
        let raw = link.raw();
        server.link = Some(link);
        result?;
        if writable || wants {
            self.poller.modify(raw, index, true, wants)?;
        }
        for event in std::mem::take(&mut self.events) {
            self.act(index, event);
        }
        Ok(())
    }

    fn act(&mut self, index: usize, event: Event) {
        match event {
            Event::LoggedIn { recovers } => {
                self.logged_in(index, recovers);
                self.greet();
            }
            Event::Newcomer(conn) => {
                self.callers.push(conn);
                self.greet();
            }
            Event::Claimed => self.wait(index),
            Event::Cells(cells) => {
                self.seen.cells += cells.len() as u64;
                self.owners.extend(cells.into_iter().map(|cell| (cell, index)));
                self.wait(index);
            }
            Event::Ready if self.servers[index].state == State::Waiting => {
                self.servers[index].state = State::Running;
                self.ready += 1;
            }
            Event::Ready => {}
            Event::Queried { player, cell } => self.admit(player, cell),
            Event::Enter { cell, conn, x, z } => self.create(index, cell, conn, x, z),
            Event::Created { entity } => self.created(index, entity),
            Event::Left { channel } => {
                if let Some(entity) = channel.checked_sub(ENTITY_FIRST) {
                    self.lose_authority(index, entity);
                }
            }
            Event::Handover { from, to, entities } => self.handover(index, from, to, &entities),
            Event::Input { entity, input } => self.input(index, entity, input),
            Event::Recovered { channel, avatar } => self.recovered(index, channel, avatar),
            Event::RecoveryEnd => {
                let server = &mut self.servers[index];
                if server.state == State::Recovering {
                    server.state = State::Running;
                    server.frame = frames_since(self.epoch_ns, clock::now_ns());
                    let away = clock::now_ns().saturating_sub(server.returned_ns);
                    self.seen.recovery = Some(Duration::from_nanos(away));
                }
            }
        }
    }

    fn logged_in(&mut self, index: usize, recovers: bool) {
        let server = &mut self.servers[index];
        if self.crashed && server.returned_ns > 0 {
            if recovers {
                server.state = State::Recovering;
            } else {
                self.seen.error = Some(format!("game server {index} returned but was treated as a new one"));
            }
            return;
        }
        server.state = State::Claiming;
        if index == 0 {
            protocol::create_channel(&mut server.out, STUB_GLOBAL, CHANNEL_TYPE_GLOBAL, "", None);
        } else {
            avatar::create_cells(&mut server.out, STUB_CELLS);
        }
    }

    /// A server has its channels. In an open world that is all; with a grid it waits for
    /// SPATIAL_CHANNELS_READY, which may have come already.
    fn wait(&mut self, index: usize) {
        let server = &mut self.servers[index];
        if server.state != State::Claiming {
            return;
        }
        if index == 0 {
            server.state = State::Running;
            self.ready += 1;
        } else {
            server.state = State::Waiting;
        }
        // The server that fills the last slot hears of readiness before it hears of its own cells.
        let filled = self.plan.layout.grid().is_some_and(|grid| self.owners.len() == grid.cells());
        if filled {
            for server in self.servers.iter_mut().filter(|server| server.state == State::Waiting) {
                server.state = State::Running;
                self.ready += 1;
            }
        }
    }

    /// The owner of GLOBAL hears of every login, those of the other game servers too, and perhaps
    /// before they do. Until each knows its connection nobody can be told from a player.
    fn greet(&mut self) {
        if self.servers.iter().any(|server| server.conn == 0) {
            return;
        }
        for conn in std::mem::take(&mut self.callers) {
            if self.servers.iter().all(|server| server.conn != conn) && self.known.insert(conn) {
                self.newcomer(conn);
            }
        }
    }

    fn newcomer(&mut self, conn: u32) {
        let (x, z) = self.terrain.free_place(&mut self.rng);
        let player = self.newcomers.len();
        self.newcomers.push((conn, x, z));
        if self.plan.layout.grid().is_some() {
            let stub = STUB_QUERY + player as u32;
            avatar::query(&mut self.servers[0].out, stub, self.scale, x, z);
        } else {
            self.create(0, 0, conn, x, z);
        }
    }

    /// The cell of a newcomer is known: it is subscribed to it, and the cell's server is told.
    fn admit(&mut self, player: usize, cell: u32) {
        let Some(&(conn, x, z)) = self.newcomers.get(player) else { return };
        let out = &mut self.servers[0].out;
        protocol::subscribe_other(out, cell, conn);
        let mut payload = [0u8; 8];
        payload[..4].copy_from_slice(&x.to_le_bytes());
        payload[4..].copy_from_slice(&z.to_le_bytes());
        avatar::to_owner(out, cell, kind::ENTER, conn, &payload);
    }

    fn create(&mut self, index: usize, cell: u32, conn: u32, x: f32, z: f32) {
        let Some(entity) = self.oracle.allocate() else { return };
        let body = Body { x, z, heading: self.rng.f64() as f32 * std::f32::consts::TAU, ..Body::default() };
        self.terrain.enter(entity, &body);
        let avatar = Avatar { conn, body, ..Avatar::default() };
        self.expected.insert(entity, Character { avatar, cell, ..Character::default() });
        let well_known = self.plan.layout.grid().is_none();
        let out = &mut self.servers[index].out;
        avatar::create_entity(out, STUB_ENTITY, cell, ENTITY_FIRST + entity, self.scale, &avatar, well_known);
    }

    fn created(&mut self, index: usize, entity: u32) {
        let Some(character) = self.expected.remove(&entity) else { return };
        self.characters[entity as usize] = Character { authority: index + 1, ..character };
        self.servers[index].members.push(entity);
        self.seen.entities += 1;
        self.oracle.entities[entity as usize].cell.store(character.cell, Ordering::Relaxed);
        self.oracle.entities[entity as usize].put(character.avatar.body.x, character.avatar.body.z);
        if self.plan.layout.grid().is_some() {
            let net_id = ENTITY_FIRST + entity;
            avatar::spawn(
                &mut self.servers[index].out,
                character.cell,
                net_id,
                self.scale,
                &character.avatar,
            );
            self.follow(index, entity);
        }
    }

    /// Moves the interest of a character's player to where it is.
    fn follow(&mut self, index: usize, entity: u32) {
        let character = &mut self.characters[entity as usize];
        character.interest = (character.avatar.body.x, character.avatar.body.z);
        let metres = self.plan.interest_metres;
        avatar::interest(&mut self.servers[index].out, character.cell, self.scale, &character.avatar, metres);
    }

    fn lose_authority(&mut self, index: usize, entity: u32) {
        let Some(character) = self.characters.get_mut(entity as usize) else { return };
        if character.former == index + 1 {
            character.former = 0;
        }
        if character.authority == index + 1 {
            character.authority = 0;
            remove(&mut self.servers[index].members, entity);
        }
    }

    /// Characters go from cell to cell. Who loses one has been unsubscribed from it before; who
    /// still has it when the destination has no server keeps it.
    fn handover(&mut self, index: usize, from: u32, to: u32, entities: &[(u32, Option<Avatar>)]) {
        let mine = self.owners.get(&to) == Some(&index);
        let from_me = self.owners.get(&from) == Some(&index);
        let now = clock::now_ns();
        for &(entity, avatar) in entities {
            let Some(character) = self.characters.get_mut(entity as usize) else { continue };
            let kept = character.authority == index + 1;
            match avatar {
                _ if kept => {}
                // The gateway's answer counts; without it the character cannot be simulated.
                Some(avatar) if mine => self.take_over(index, entity, avatar),
                _ => continue,
            }
            let character = &mut self.characters[entity as usize];
            character.cell = to;
            self.oracle.entities[entity as usize].cell.store(to, Ordering::Relaxed);
            let crossed = std::mem::take(&mut character.crossed_ns);
            let (x, z) = (character.avatar.body.x, character.avatar.body.z);
            if self.control.is_measured(now) && from != to {
                self.seen.handovers += 1;
                self.seen.server_handovers += u64::from(!kept && !from_me);
                if crossed > 0 {
                    self.seen.handover.record_between(crossed, now);
                }
                self.tape.handover(now, entity, to, (x, z), !kept && !from_me);
            }
            self.follow(index, entity);
        }
    }

    /// A server goes on with a character from the state that the gateway has of it.
    fn take_over(&mut self, index: usize, entity: u32, avatar: Avatar) {
        let character = &mut self.characters[entity as usize];
        let former = std::mem::replace(&mut character.authority, index + 1);
        character.avatar = avatar;
        if former > 0 {
            character.former = former;
            remove(&mut self.servers[former - 1].members, entity);
        }
        self.servers[index].members.push(entity);
        self.oracle.entities[entity as usize].resume(avatar.pulse.sequence);
        self.terrain.enter(entity, &avatar.body);
    }

    fn input(&mut self, index: usize, entity: u32, input: Input) {
        let measured = self.control.is_measured(input.sent_ns);
        match self.characters.get_mut(entity as usize) {
            Some(character) if character.authority == index + 1 => {
                character.avatar.body.steer(input.turn, input.jump);
                character.avatar.pulse.input_ns = input.sent_ns;
                character.avatar.pulse.input_sequence = input.sequence;
                if measured {
                    self.seen.inputs += 1;
                    self.seen.input.record_between(input.sent_ns, clock::now_ns());
                }
            }
            // It left before the handover did, and its server would have taken it.
            Some(character) if character.former == index + 1 => {
                self.seen.inputs += u64::from(measured);
            }
            _ => self.seen.stray_inputs += u64::from(measured),
        }
    }

    fn recovered(&mut self, index: usize, channel: u32, avatar: Option<Avatar>) {
        let (Some(entity), Some(avatar)) = (channel.checked_sub(ENTITY_FIRST), avatar) else { return };
        let Some(character) = self.characters.get_mut(entity as usize) else { return };
        // Numbers must not repeat: what was sent into the crash may or may not have arrived.
        let sequence = character.avatar.pulse.sequence.max(avatar.pulse.sequence);
        character.avatar = avatar;
        character.avatar.pulse.sequence = sequence;
        if character.authority != index + 1 {
            character.authority = index + 1;
            self.servers[index].members.push(entity);
        }
        self.seen.recovered += 1;
    }

    /// Crashes the server in the middle when its time has come, and lets it return.
    fn crash_and_return(&mut self, now: u64) -> Result<(), LinkError> {
        if let Some(after) = self.plan.crash_at
            && !self.crashed
            && self.control.is_measured(now.saturating_sub(nanoseconds(after)))
        {
            self.crashed = true;
            let victim = 1 + (self.servers.len() - 1) / 2;
            if let Some(server) = self.servers.get_mut(victim) {
                server.link = None;
                server.state = State::Down;
                server.out.clear();
                server.returns_ns = now + nanoseconds(CRASH_PAUSE);
                for &entity in &server.members {
                    self.characters[entity as usize].authority = 0;
                }
                self.seen.orphaned = server.members.len() as u64;
                server.members.clear();
            }
        }
        for server in &mut self.servers {
            if server.state == State::Down && server.returns_ns <= now {
                let link = Link::connect(self.plan.server, Transport::Tcp, None, None, Scanner::thorough())?;
                self.poller.add(link.raw(), server.index, true, true)?;
                server.link = Some(link);
                server.state = State::Connecting;
                server.returned_ns = now;
            }
        }
        Ok(())
    }

    /// Simulates and sends every frame of a server that is due; late ones too, each with its own
    /// intended time.
    fn step_due(&mut self, index: usize, now: u64) -> Result<(), LinkError> {
        if self.servers[index].state != State::Running || self.ready < self.servers.len() {
            return Ok(());
        }
        loop {
            let server = &mut self.servers[index];
            let due = frame_due_ns(self.epoch_ns, server.frame + 1, index, self.plan.layout);
            if due > now || self.control.is_over(due) {
                return Ok(());
            }
            server.frame += 1;
            let members = std::mem::take(&mut server.members);
            let result = self.step(index, &members, due);
            self.servers[index].members = members;
            result?;
        }
    }

    fn step(&mut self, index: usize, members: &[u32], due: u64) -> Result<(), LinkError> {
        let measured = self.control.is_measured(due);
        self.seen.frames += 1;
        self.tape.snapshot(due, measured, &self.oracle.entities[..self.oracle.count()], || {
            self.characters.iter().map(|character| (character.cell, character.interest)).collect()
        });
        let Server { out, .. } = &mut self.servers[index];
        for &entity in members {
            let character = &mut self.characters[entity as usize];
            let before = self.plan.layout.cell(character.avatar.body.x, character.avatar.body.z);
            self.terrain.step(entity, &mut character.avatar.body, &mut self.rng);
            let Body { x, z, .. } = character.avatar.body;
            if self.plan.layout.cell(x, z) != before {
                character.crossed_ns = due;
                self.seen.crossings += u64::from(measured);
            }
            character.avatar.pulse.sequence += 1;
            character.avatar.pulse.sent_ns = due;
            if self.packet.len() + ENTRY_BYTES_MAX + self.padding.len() > PACKET_BYTES_MAX {
                protocol::put_frame(out, |packet| packet.append(&mut self.packet));
            }
            avatar::put_update(
                &mut self.packet,
                &mut self.buffers,
                ENTITY_FIRST + entity,
                self.scale,
                &character.avatar,
                &self.padding,
            );
            let entity = &self.oracle.entities[entity as usize];
            entity.put(x, z);
            entity.send(character.avatar.pulse.sequence, measured);
        }
        if !self.packet.is_empty() {
            protocol::put_frame(out, |packet| packet.append(&mut self.packet));
        }
        let updates = members.len() as u64;
        self.seen.messages_out += updates;
        if measured {
            self.seen.frames_due += 1;
            self.seen.updates_due += updates;
            self.seen.lateness.record_between(due, clock::now_ns());
        }
        self.send_control(index)
    }

    /// Sends what a server has to say.
    fn send_control(&mut self, index: usize) -> Result<(), LinkError> {
        let server = &mut self.servers[index];
        if server.out.is_empty() || server.state == State::Connecting {
            return Ok(());
        }
        let Some(link) = &mut server.link else { return Ok(()) };
        let armed = link.wants_write();
        if !link.send(&server.out)? {
            self.seen.refused += 1;
        }
        server.out.clear();
        server.bytes_out += std::mem::take(&mut link.bytes_out);
        if link.wants_write() && !armed {
            self.poller.modify(link.raw(), index, true, true)?;
        }
        Ok(())
    }

    fn next_due_ns(&self) -> u64 {
        if self.ready < self.servers.len() {
            return u64::MAX;
        }
        let running = self.servers.iter().filter(|server| server.state == State::Running);
        let due = running
            .map(|server| frame_due_ns(self.epoch_ns, server.frame + 1, server.index, self.plan.layout));
        due.filter(|&due| !self.control.is_over(due)).min().unwrap_or(u64::MAX)
    }

    /// Ten times a second, since the histograms are copied.
    fn publish(&mut self, now: u64, shared: &Mutex<ServersCounts>) {
        if now - self.published_ns < PUBLISH_NS {
            return;
        }
        self.published_ns = now;
        let seen = &mut self.seen;
        seen.ready = self.ready == self.servers.len();
        seen.logins = self.newcomers.len() as u64;
        seen.bytes_in = self.servers.iter().map(|server| server.bytes_in).sum();
        seen.bytes_out = self.servers.iter().map(|server| server.bytes_out).sum();
        seen.cpu = clock::thread_cpu();
        lock(shared).clone_from(seen);
    }
}

fn remove(members: &mut Vec<u32>, entity: u32) {
    if let Some(at) = members.iter().position(|&member| member == entity) {
        members.swap_remove(at);
    }
}

/// Due time of frame `frame` of server `index`; the servers' frames are spread over the frame time.
fn frame_due_ns(epoch_ns: u64, frame: u64, index: usize, layout: Layout) -> u64 {
    let period = nanoseconds(Duration::from_secs(1)) / u64::from(FRAMES_PER_SECOND);
    let servers = layout.grid().map_or(1, Grid::servers) as u64;
    epoch_ns
        + frame * nanoseconds(Duration::from_secs(1)) / u64::from(FRAMES_PER_SECOND)
        + period * (index as u64 % servers) / servers
}

fn frames_since(epoch_ns: u64, now: u64) -> u64 {
    now.saturating_sub(epoch_ns) * u64::from(FRAMES_PER_SECOND) / nanoseconds(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_game_server_whose_login_is_heard_elsewhere_first_is_no_player() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let grid = Grid { columns: 2, server_columns: 2, cell_metres: 10.0 };
        let plan = ServersPlan {
            server: listener.local_addr().expect("bound"),
            layout: Layout::Grid(grid),
            interest_metres: 10.0,
            crash_at: None,
            tape: false,
            padding_bytes: 0,
            seed: 1,
        };
        let (control, oracle) = (Control::new(), Oracle::new(1));
        let mut servers = Servers::connect(&plan, &control, &oracle).expect("connecting");
        // Connections 1 to 5 are the servers; 6 is a player that was quick.
        for index in 0..4 {
            servers.servers[index].conn = index as u32 + 1;
            servers.act(index, Event::LoggedIn { recovers: false });
        }
        servers.act(0, Event::Newcomer(5));
        servers.act(0, Event::Newcomer(6));
        servers.servers[4].conn = 5;
        servers.act(4, Event::LoggedIn { recovers: false });
        servers.act(0, Event::Newcomer(6));
        let players: Vec<u32> = servers.newcomers.iter().map(|&(conn, ..)| conn).collect();
        assert_eq!(players, [6]);
    }
}
