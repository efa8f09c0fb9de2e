//! The whole service in virtual time, from a seed: the production hub, engine, journal and
//! state machine, with servers that lose their connections, read slowly or not at all, a clock that
//! jumps, and a process that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use throng_matcher::record::crc32c;
use throng_matcher::{Caller, Config, ModeRules, Notices, OnFull, QueueRules, Scope, json};
use throng_net::Handler as _;
use throng_platform::{DiskState, Fs, SimulatedDisk};
use throng_stdx::{Instant, Rng};
use throng_wire::matcher::{Method, REQUEST_KEY_FIELD, Status, Writer, method};

use crate::engine::Engine;
use crate::gate::{Gate, Guard};
use crate::hub::Hub;
use crate::journal::{Durability, Journal, OpenOptions, Replay};
use crate::service::{Call, Post};
use crate::session::{Batch, Sink, Taken};
use crate::{Policies, Tokens};

#[cfg(feature = "nats")]
mod area;

const START_MS: u64 = 1_700_000_000_000;
const SERVERS: u64 = 4;
const ROLES: u64 = 5;
const CAPACITY: u32 = 4;
const DUEL: &str =
    r#"{"name": "duel", "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}], "timeout_s": 20}"#;
/// A broadcast of the longest kind, and how many of them are more than a reader may leave behind.
const STORM_BYTES: usize = 60_000;
const STORM: usize = 300;

fn config() -> Config {
    let rules = ModeRules { capacity: CAPACITY, on_full: OnFull::Keep, ..ModeRules::default() };
    Config {
        modes: BTreeMap::from([("m".to_owned(), rules)]),
        // As the journal has it: the text of a rule set is a part of the state.
        queues: vec![QueueRules::try_from(serde_json::from_str::<Value>(DUEL).unwrap()).unwrap()],
        ..Config::default()
    }
}

/// Batches that a server has been given and has not read.
#[derive(Default)]
struct Mailbox {
    batches: Vec<Batch>,
    /// Takes one batch at a time, and the next when asked.
    is_slow: bool,
}

/// A game server: its roles, and what it believes of them.
struct Server {
    name: String,
    mailbox: Arc<Mutex<Mailbox>>,
    subscription: Option<u64>,
    /// Epoch and number of what it has seen last.
    place: Option<(u64, u64)>,
    /// Role to room.
    view: BTreeMap<String, String>,
    /// It has missed something and must fetch its rooms.
    is_stale: bool,
}

/// Place where an answer arrives.
type Slot = Arc<Mutex<Option<(Status, Vec<u8>)>>>;

/// A request that was made, and its answer.
struct SentRequest {
    server: usize,
    method: u16,
    body: Vec<u8>,
    answer: Slot,
}

struct Simulation {
    rng: Rng,
    disk: SimulatedDisk,
    hub: Hub,
    inbox: Arc<Mutex<Vec<Post>>>,
    clock_ms: u64,
    servers: Vec<Server>,
    posts: u64,
    /// Rooms and matches that answers and events named.
    known: Vec<String>,
    lagging: u64,
    kills: u32,
    /// Of everything that servers were told.
    trace: u32,
    checks_boundaries: bool,
}

fn open(
    disk: &SimulatedDisk,
    now: u64,
    config: Config,
    gate: Gate,
    secret: u8,
) -> (Hub, Arc<Mutex<Vec<Post>>>) {
    let recovered = Journal::open(OpenOptions {
        fs: Some(Arc::new(disk.clone()) as Arc<dyn Fs>),
        durability: Durability::Async,
        config,
        secret: [secret; 32],
        now,
        salvage: false,
        wake: Box::new(|| {}),
    });
    let recovered = recovered.unwrap();
    let (matcher, mut journal, notices) = (recovered.matcher, recovered.journal.unwrap(), recovered.notices);
    let now = now.max(matcher.now().0);
    journal.commit(now).unwrap();
    let policies = Policies::default();
    let trials = crate::trials::Trials::default();
    let engine = Engine { matcher, journal: Some(journal), notices, policies, trials };
    let inbox: Arc<Mutex<Vec<Post>>> = Arc::default();
    let hub = Hub::new(
        engine,
        Guard::new(gate, Instant::ZERO),
        Tokens::default(),
        String::new(),
        "sim".to_owned(),
        now,
        now << 16,
        Arc::clone(&inbox),
        Arc::default(),
        START_MS,
    );
    (hub, inbox)
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let disk = SimulatedDisk::new(DiskState::default());
        let (hub, inbox) = open(&disk, START_MS, config(), Gate::default(), 5);
        let servers = (0..SERVERS).map(|number| Server {
            name: format!("s{number}"),
            mailbox: Arc::default(),
            subscription: None,
            place: None,
            view: BTreeMap::new(),
            is_stale: true,
        });
        Simulation {
            rng: Rng::new(seed),
            disk,
            hub,
            inbox,
            clock_ms: 0,
            servers: servers.collect(),
            posts: 0,
            known: Vec::new(),
            lagging: 0,
            kills: 0,
            trace: 0,
            checks_boundaries: true,
        }
    }

    fn post(&self, post: Post) {
        self.inbox.lock().unwrap().push(post);
    }

    fn connect(&mut self, server: usize) {
        self.posts += 1;
        let id = self.posts;
        let entry = &mut self.servers[server];
        entry.subscription = Some(id);
        // The last batch of an earlier connection may have been lost on its way.
        let mailbox = Arc::new(Mutex::new(Mailbox::default()));
        entry.mailbox = Arc::clone(&mailbox);
        let sink: Sink = Box::new(move |batch| {
            let mut mailbox = mailbox.lock().unwrap();
            mailbox.batches.push(batch);
            if mailbox.is_slow { Taken::Full } else { Taken::More }
        });
        let (srv, after) = (entry.name.clone(), entry.place);
        self.post(Post::Subscribe { srv, after, sink, id });
    }

    fn call(&mut self, server: usize, method: u16, body: Vec<u8>) -> SentRequest {
        let answer: Slot = Arc::default();
        let slot = Arc::clone(&answer);
        let call = Call {
            srv: self.servers[server].name.clone(),
            scope: Scope::Server,
            method,
            body: body.clone(),
            reply: Box::new(move |status, body| {
                assert!(slot.lock().unwrap().replace((status, body)).is_none(), "answered twice");
            }),
        };
        self.post(Post::Call {
            call,
            reader: None,
            due: std::time::Instant::now() + Duration::from_secs(3_600),
        });
        SentRequest { server, method, body, answer }
    }

    /// Something that a server may want, with a key.
    fn request(&mut self, server: usize) -> SentRequest {
        let role = format!("s{server}r{}", self.rng.below(ROLES));
        let known = match self.known.len() as u64 {
            0 => String::new(),
            count => self.known[self.rng.below(count) as usize].clone(),
        };
        let own = self.servers[server].view.get(&role).cloned().unwrap_or_else(|| known.clone());
        let (method, body) = match self.rng.below(12) {
            0..=3 => {
                let create = Writer::new().str(1, "m");
                (
                    Method::ROLE_JOIN_RANDOM_ROOM,
                    Writer::new().nested(1, Writer::new().str(1, &role)).nested(2, create),
                )
            }
            4 => {
                (Method::ROLE_JOIN_ROOM, Writer::new().nested(1, Writer::new().str(1, &role)).str(2, &known))
            }
            5 | 6 => (Method::ROLE_LEAVE_ROOM, Writer::new().str(1, &role).str(2, &own)),
            7 => (Method::SET_ROOM_DATA, Writer::new().str(1, &own).str(2, "k").str(3, "1")),
            8 | 9 => {
                let player = Writer::new().str(1, &role);
                (Method::CREATE_TICKET, Writer::new().str(1, "duel").nested(2, player))
            }
            _ => (Method::CLAIM_SEAT, Writer::new().str(1, &known).str(2, &role)),
        };
        let key: Vec<u8> = (0..2).flat_map(|_| self.rng.next_u64().to_le_bytes()).collect();
        self.call(server, method, body.bytes(REQUEST_KEY_FIELD, &key).into_bytes())
    }

    /// One turn of the service's loop; the calls of it are answered in it, whoever reads slowly.
    fn turn(&mut self, asked: &[SentRequest]) {
        self.hub.polled(Instant::from_millis(self.clock_ms));
        self.hub.take_posts();
        self.hub.end().unwrap();
        self.hub.release();
        self.hub.tidy();
        for asked in asked {
            let answer = asked.answer.lock().unwrap();
            let (status, body) = answer.as_ref().expect("an answer in the same turn");
            self.trace =
                crc32c(&[&self.trace.to_le_bytes()[..], &(*status as u16).to_le_bytes(), body].concat());
        }
        if self.checks_boundaries {
            self.check_boundary();
        }
        self.check_rooms();
    }

    /// A crash at this point of the journal leaves the state that the live matcher has.
    fn check_boundary(&self) {
        let disk = SimulatedDisk::new(self.disk.state());
        let mut replay = Replay::begin(&disk, false).unwrap();
        replay.run(&disk).unwrap();
        assert_eq!(replay.diverged, None, "a replay answers and tells as the run did");
        let replayed = replay.matcher.expect("a journal begins with a matcher");
        assert!(replayed.snapshot() == self.hub.engine.matcher.snapshot(), "a restart here loses something");
    }

    fn rooms_of(&mut self, server: usize) -> Value {
        let (mut answer, mut notices) = (Vec::new(), Notices::default());
        let caller = Caller { srv: &self.servers[server].name, scope: Scope::Server };
        let matcher = &mut self.hub.engine.matcher;
        matcher.handle(matcher.now(), caller, Method::LIST_MINE, &[], &mut answer, &mut notices);
        let mut text = String::new();
        json::decode(method(Method::LIST_MINE).unwrap().response, &answer, &mut text);
        let mine: Value = serde_json::from_str(&text).unwrap();
        mine["RoomInfos"].clone()
    }

    /// No room holds more than it may, and no role is in two.
    fn check_rooms(&mut self) {
        let mut rooms = BTreeMap::new();
        for server in 0..self.servers.len() {
            let mine = self.rooms_of(server);
            rooms.extend(mine.as_object().unwrap().iter().map(|(id, room)| (id.clone(), room.clone())));
        }
        let mut seen = BTreeSet::new();
        for room in rooms.values().filter(|room| room["IsDeleting"] != true) {
            let members = room["Roles"].as_object().map_or(0, serde_json::Map::len);
            let seats = room["Reserved"].as_object().map_or(0, serde_json::Map::len);
            let capacity = if room["MatchMode"] == "m" { CAPACITY as usize } else { 2 };
            assert!(members + seats <= capacity, "{room}");
            for role in room["Roles"].as_object().into_iter().flat_map(serde_json::Map::keys) {
                assert!(seen.insert(role.clone()), "{role} is in two rooms");
            }
        }
    }

    /// A server reads what it was given: in order, each once, or with a gap that it sees.
    fn read(&mut self, server: usize) {
        let batches = std::mem::take(&mut self.servers[server].mailbox.lock().unwrap().batches);
        for batch in batches {
            self.trace =
                crc32c(&[&self.trace.to_le_bytes()[..], &batch.seq.to_le_bytes(), &batch.body].concat());
            let text = json::batch(batch.epoch, batch.seq, &batch.body);
            let told: Value = serde_json::from_str(&text).unwrap();
            let messages = told["Msgs"].as_array().unwrap();
            let entry = &mut self.servers[server];
            match entry.place {
                Some((epoch, seq)) if epoch == batch.epoch => {
                    assert_eq!(
                        batch.seq,
                        seq + messages.len() as u64,
                        "{}: a gap that nothing shows",
                        entry.name
                    );
                }
                _ => {
                    entry.is_stale = true;
                    self.lagging += u64::from(entry.place.is_some());
                }
            }
            entry.place = Some((batch.epoch, batch.seq));
            for message in messages {
                self.hear(server, &message["NotifyMsg"]);
            }
        }
        if let Some(id) = self.servers[server].subscription {
            let srv = self.servers[server].name.clone();
            self.post(Post::Resume { srv, id });
        }
    }

    fn hear(&mut self, server: usize, message: &Value) {
        let own = format!("s{server}r");
        let view = &mut self.servers[server].view;
        let joined = &message["rolesJoinRoomMsg"];
        let room = joined["RoomID"].as_str().or(joined["RoomInfo"]["RoomID"].as_str()).unwrap_or_default();
        for role in joined["JoinedRoleIDs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if role.starts_with(&own) {
                view.insert(role.to_owned(), room.to_owned());
            }
        }
        let left = &message["roleLeaveRoomMsg"];
        let from = left["RoomID"].as_str().or(left["RoomInfo"]["RoomID"].as_str()).unwrap_or_default();
        if let Some(role) = left["LeavingRoleID"].as_str()
            && view.get(role).is_some_and(|room| room == from)
        {
            view.remove(role);
        }
        let ready = message["matchReadyMsg"]["RoomID"].as_str().unwrap_or_default();
        for id in [room, ready].into_iter().filter(|id| !id.is_empty()) {
            self.known.push(id.to_owned());
        }
        let long = self.known.len().saturating_sub(12);
        self.known.drain(..long);
    }

    /// A server that has missed something fetches the present state; later entries tell the rest.
    fn refetch(&mut self, server: usize) {
        let rooms = self.rooms_of(server);
        let own = format!("s{server}r");
        let view = &mut self.servers[server].view;
        view.clear();
        for (id, room) in rooms.as_object().unwrap().iter().filter(|(_, room)| room["IsDeleting"] != true) {
            for role in room["Roles"].as_object().into_iter().flat_map(serde_json::Map::keys) {
                if role.starts_with(&own) {
                    view.insert(role.clone(), id.clone());
                }
            }
        }
        self.servers[server].is_stale = false;
    }

    /// The process ends as by `kill -9` and begins anew on what it has written.
    fn kill(&mut self) {
        self.kills += 1;
        self.disk = SimulatedDisk::new(self.disk.state());
        let now = START_MS + self.clock_ms;
        (self.hub, self.inbox) = open(&self.disk, now, config(), Gate::default(), 5);
        self.servers.iter_mut().for_each(|server| server.subscription = None);
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0 => self.clock_ms = self.clock_ms.saturating_sub(self.rng.below(5_000)),
            1 => self.clock_ms += self.rng.below(15_000),
            _ => self.clock_ms += self.rng.below(80),
        }
        let mut asked = Vec::new();
        for server in 0..self.servers.len() {
            match (self.servers[server].subscription, self.rng.below(12)) {
                (None, 0..=3) => self.connect(server),
                (Some(id), 0) => {
                    let srv = self.servers[server].name.clone();
                    self.servers[server].subscription = None;
                    self.post(Post::Unsubscribe { srv, id });
                }
                (Some(_), 1) => {
                    let mut mailbox = self.servers[server].mailbox.lock().unwrap();
                    mailbox.is_slow = !mailbox.is_slow;
                }
                _ => {}
            }
            if self.rng.chance(0.6) {
                asked.push(self.request(server));
            }
        }
        self.turn(&asked);
        for server in 0..self.servers.len() {
            // Some look at their mail now and then only, and what is in it when the connection ends
            // is lost.
            if self.servers[server].subscription.is_some() && self.rng.chance(0.7) {
                self.read(server);
            }
            if self.servers[server].is_stale && self.servers[server].subscription.is_some() {
                self.refetch(server);
            }
        }
        if self.rng.chance(0.04) {
            self.kill();
            self.ask_again(&asked);
        }
    }

    /// Nobody knows whether a request was done whose answer the crash took: asking again does it
    /// once.
    fn ask_again(&mut self, asked: &[SentRequest]) {
        let again: Vec<SentRequest> =
            asked.iter().map(|asked| self.call(asked.server, asked.method, asked.body.clone())).collect();
        self.turn(&again);
        for (first, again) in asked.iter().zip(&again) {
            let (first, again) = (first.answer.lock().unwrap().take(), again.answer.lock().unwrap().take());
            assert_eq!(first, again, "the same answer as before the crash");
        }
    }

    /// More than a reader that takes nothing may leave behind.
    fn storm(&mut self) {
        let Some((server, room)) = (0..self.servers.len()).find_map(|server| {
            let view = &self.servers[server].view;
            view.values()
                .next()
                .filter(|_| self.servers[server].subscription.is_some())
                .map(|room| (server, room.clone()))
        }) else {
            return;
        };
        self.servers[server].mailbox.lock().unwrap().is_slow = true;
        // A journal this long is not read at every turn.
        self.checks_boundaries = false;
        let text = format!("\"{}\"", "x".repeat(STORM_BYTES));
        let body = Writer::new().str(1, &room).str(2, &text).into_bytes();
        for _ in 0..STORM / 30 {
            let asked: Vec<SentRequest> =
                (0..30).map(|_| self.call(server, Method::BROADCAST_ROOM, body.clone())).collect();
            self.turn(&asked);
        }
    }

    /// In the end everybody is there and reads; what they believe is what is.
    fn settle(&mut self) {
        for server in 0..self.servers.len() {
            if self.servers[server].subscription.is_none() {
                self.connect(server);
            }
            self.servers[server].mailbox.lock().unwrap().is_slow = false;
        }
        // Long enough for rooms that are about to go, and for seats that nobody takes.
        for _ in 0..60 {
            self.clock_ms += 1_000;
            self.turn(&[]);
            for server in 0..self.servers.len() {
                self.read(server);
                if self.servers[server].is_stale {
                    self.refetch(server);
                }
            }
        }
        for server in 0..self.servers.len() {
            let believed = self.servers[server].view.clone();
            self.refetch(server);
            assert_eq!(believed, self.servers[server].view, "{}", self.servers[server].name);
        }
    }
}

/// Runs a seed; gives what it has seen of gaps and kills, and a digest of all that was said.
fn run(seed: u64, steps: u32, storm: bool) -> (u64, u32, u32) {
    let mut simulation = Simulation::new(seed);
    for _ in 0..steps {
        simulation.step();
    }
    if storm {
        let before = simulation.lagging;
        simulation.storm();
        simulation.settle();
        assert!(simulation.lagging > before, "who cannot follow learns of the gap");
    } else {
        simulation.settle();
    }
    (simulation.lagging, simulation.kills, simulation.trace)
}

#[test]
fn nothing_is_lost_whatever_fails_together() {
    let (mut gaps, mut kills) = (0, 0);
    for seed in 0..10 {
        let seen = run(seed, 150, seed < 2);
        gaps += seen.0;
        kills += seen.1;
    }
    assert!(gaps > 10 && kills > 10, "{gaps} gaps, {kills} kills: does anything fail?");
}

#[test]
fn a_seed_is_one_history() {
    assert_eq!(run(99, 80, false), run(99, 80, false));
}
