//! An area with two matchers in virtual time: leases in a directory that fails, processes that are
//! killed, stand still or lose their folders, and clients whose answers never contradict what was
//! acknowledged.

use std::collections::BTreeSet;

use throng_cluster::{Identity, LOSS, Lease, LeaseEvent as Event, Record, Request, State, Takeover, Written};

use super::*;

const CLIENTS: u64 = 4;
const ROLES_EACH: u64 = 3;
const ROOMS_EACH: usize = 3;
/// A caller waits this long for an answer.
const PATIENCE_MS: u64 = 3_000;
/// The directory answers within this time or not at all.
const DIRECTORY_TIMEOUT_MS: u64 = 2_000;
/// A matcher that can serve does so within this time.
const RETURN_MS: u64 = 3_000;

/// The record of the area.
#[derive(Default)]
struct Directory {
    record: Option<(u64, Record)>,
    revision: u64,
    away_until: u64,
}

impl Directory {
    fn write(&mut self, expected: u64, record: Record) -> Written {
        if self.record.as_ref().map_or(0, |(revision, _)| *revision) != expected {
            return Written::Refused;
        }
        self.revision += 1;
        self.record = Some((self.revision, record));
        Written::At(self.revision)
    }
}

/// A matcher process and its folder.
struct Process {
    name: &'static str,
    machine: u64,
    /// Folders that this process has had: each has a journal of its own.
    folders: u64,
    lives: u64,
    disk: SimulatedDisk,
    hub: Hub,
    inbox: Arc<Mutex<Vec<Post>>>,
    gate: Gate,
    lease: Lease,
    /// The record that it saw last, which outlives a restart.
    memory: Option<Record>,
    /// A request to the directory that failed, and when that is known.
    failing: Option<(u64, Request)>,
    /// Requests of the bus arrive here.
    is_subscribed: bool,
    still_until: u64,
    down_until: u64,
}

impl Process {
    fn start(name: &'static str, now_ms: u64) -> Process {
        let disk = SimulatedDisk::new(DiskState::default());
        Process::begin(name, 1, 1, 1, disk, None, now_ms)
    }

    fn begin(
        name: &'static str,
        machine: u64,
        folders: u64,
        lives: u64,
        disk: SimulatedDisk,
        memory: Option<Record>,
        now_ms: u64,
    ) -> Process {
        let gate = Gate::leased();
        // Ids of rooms come from the secret: no two folders share theirs.
        let secret = (name.as_bytes()[0] << 4) ^ folders as u8;
        let (hub, inbox) = open(&disk, START_MS + now_ms, config(), gate.clone(), secret);
        let identity = Identity {
            incarnation: format!("{name}{lives}"),
            journal: format!("{name}{folders}"),
            machine: format!("{name}{machine}"),
            addresses: vec![name.to_owned()],
        };
        let seed = u64::from(name.as_bytes()[0]) << 48 | lives << 32;
        let mut lease = Lease::new(identity, Takeover::Wait, seed, Instant::from_millis(now_ms));
        memory.iter().for_each(|record| lease.remember(record.clone()));
        let (failing, is_subscribed, still_until, down_until) = (None, false, 0, 0);
        Process {
            name,
            machine,
            folders,
            lives,
            disk,
            hub,
            inbox,
            gate,
            lease,
            memory,
            failing,
            is_subscribed,
            still_until,
            down_until,
        }
    }

    fn restart(&mut self, now_ms: u64) {
        let disk = SimulatedDisk::new(self.disk.state());
        let memory = self.memory.take();
        *self = Process::begin(self.name, self.machine, self.folders, self.lives + 1, disk, memory, now_ms);
    }

    /// The next life begins with an empty folder.
    fn lose_folder(&mut self) {
        self.folders += 1;
        self.disk = SimulatedDisk::new(DiskState::default());
    }

    fn is_running(&self, now_ms: u64) -> bool {
        now_ms >= self.still_until && self.down_until == 0
    }

    fn is_serving(&self, now_ms: u64) -> bool {
        self.gate.is_open(Instant::from_millis(now_ms))
    }

    /// Keeps the lease as the service on the bus does. `false`: the process was replaced and ends.
    fn keep_lease(&mut self, now_ms: u64, directory: &mut Directory) -> bool {
        let now = Instant::from_millis(now_ms);
        if let Some((_, request)) = self.failing.take_if(|(at, _)| *at <= now_ms) {
            match request {
                Request::Read => self.lease.handle_read(now, Err(())),
                Request::Write { .. } => self.lease.handle_write(now, Written::Unknown),
            }
        }
        self.lease.handle_timeout(now);
        while let Some(request) = self.lease.poll_request() {
            if now_ms < directory.away_until {
                self.failing = Some((now_ms + DIRECTORY_TIMEOUT_MS, request));
                continue;
            }
            match request {
                Request::Read => self.lease.handle_read(now, Ok(directory.record.clone())),
                Request::Write { expected, record } => {
                    let written = directory.write(expected, record);
                    self.lease.handle_write(now, written);
                }
            }
            self.lease.handle_timeout(now);
        }
        self.memory = self.lease.known().cloned();
        let own = format!("{}{}", self.name, self.folders);
        while let Some(event) = self.lease.poll_event() {
            match event {
                Event::Granted { empty, .. } => {
                    self.is_subscribed = true;
                    if empty {
                        self.inbox.lock().unwrap().push(Post::BeginEmpty { kept: None, waits: false });
                    }
                }
                Event::Waits { record } => {
                    self.is_subscribed = false;
                    if record.journal != own {
                        self.inbox.lock().unwrap().push(Post::BeginEmpty { kept: None, waits: true });
                    }
                }
                Event::Deposed { by } => {
                    self.gate.open_until(None);
                    self.is_subscribed = false;
                    if by.is_some_and(|record| record.journal != own) {
                        return false;
                    }
                }
            }
        }
        self.gate.open_until(self.lease.serves_until());
        true
    }
}

/// A room as its owner knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnedRoom {
    members: BTreeSet<String>,
    value: u64,
}

/// Rooms by id. One that is gone is not among them.
type Owned = BTreeMap<String, OwnedRoom>;

#[derive(Clone, Debug)]
enum Operation {
    Create { role: String },
    Join { role: String, room: String },
    Leave { role: String, room: String },
    Set { room: String, value: u64 },
    Delete { room: String },
    Role { role: String },
    Room { room: String },
    Mine,
}

impl Operation {
    fn request(&self) -> (u16, Writer) {
        let role = |id: &str| Writer::new().str(1, id);
        match self {
            Operation::Create { role: id } => (
                Method::ROLE_CREATE_ROOM,
                Writer::new().nested(1, role(id)).nested(2, Writer::new().str(1, "kept")),
            ),
            Operation::Join { role: id, room } => {
                (Method::ROLE_JOIN_ROOM, Writer::new().nested(1, role(id)).str(2, room))
            }
            Operation::Leave { role, room } => {
                (Method::ROLE_LEAVE_ROOM, Writer::new().str(1, role).str(2, room))
            }
            Operation::Set { room, value } => {
                (Method::SET_ROOM_DATA, Writer::new().str(1, room).str(2, "k").str(3, &value.to_string()))
            }
            Operation::Delete { room } => (Method::DELETE_ROOM, Writer::new().str(1, room)),
            Operation::Role { role } => (Method::GET_ROLE, Writer::new().str(1, role)),
            Operation::Room { room } => (Method::GET_ROOM_INFO, Writer::new().str(1, room)),
            Operation::Mine => (Method::LIST_MINE, Writer::new()),
        }
    }

    /// Its effect, where that needs no answer.
    fn apply(&self, owned: &mut Owned) {
        match self {
            Operation::Join { role, room } => {
                owned.get_mut(room).expect("a room").members.insert(role.clone());
            }
            Operation::Leave { role, room } => {
                owned.get_mut(room).expect("a room").members.remove(role);
            }
            Operation::Set { room, value } => owned.get_mut(room).expect("a room").value = *value,
            Operation::Delete { room } => drop(owned.remove(room)),
            _ => {}
        }
    }
}

/// A request that is not answered for certain yet.
struct Open {
    operation: Operation,
    /// With its key: asking again does it once.
    body: Vec<u8>,
    answer: Slot,
    asked_at: u64,
    /// States of the room that is read, at any time since the first attempt.
    possible: Vec<Option<OwnedRoom>>,
}

/// A client, whose roles and rooms no other changes.
struct Client {
    name: String,
    acknowledged: Owned,
    open: Option<Open>,
    values: u64,
}

impl Client {
    fn home(&self, role: &str) -> Option<&String> {
        self.acknowledged.iter().find(|(_, room)| room.members.contains(role)).map(|(id, _)| id)
    }

    /// The states that a room may have for others.
    fn possible(&self, room: &str) -> Vec<Option<OwnedRoom>> {
        let mut all = vec![self.acknowledged.get(room).cloned()];
        if let Some(open) = &self.open {
            let mut after = self.acknowledged.clone();
            open.operation.apply(&mut after);
            all.push(after.get(room).cloned());
        }
        all
    }
}

struct Area {
    rng: Rng,
    now_ms: u64,
    directory: Directory,
    processes: Vec<Process>,
    clients: Vec<Client>,
    /// Deleted rooms too.
    known: Vec<(usize, String)>,
    /// Time since which nothing keeps the area from being served.
    fine_since: u64,
    answered: u64,
    refused: u64,
    takeovers: u32,
    faults: [u32; 7],
}

fn config() -> Config {
    let kept = ModeRules { capacity: 50, on_full: OnFull::Keep, keep_empty: true, ..ModeRules::default() };
    Config { modes: BTreeMap::from([("kept".to_owned(), kept)]), ..Config::default() }
}

impl Area {
    fn new(seed: u64) -> Area {
        let mut names = ["a", "b"];
        // Both orders of start.
        names.rotate_left(seed as usize % 2);
        let client =
            |number| Client { name: format!("c{number}"), acknowledged: Owned::new(), open: None, values: 0 };
        Area {
            rng: Rng::new(seed),
            now_ms: 0,
            directory: Directory::default(),
            processes: names.map(|name| Process::start(name, 0)).into(),
            clients: (0..CLIENTS).map(client).collect(),
            known: Vec::new(),
            fine_since: 0,
            answered: 0,
            refused: 0,
            takeovers: 0,
            faults: [0; 7],
        }
    }

    /// The process whose journal has the state of the area.
    fn holder(&self) -> Option<usize> {
        let (_, record) = self.directory.record.as_ref()?;
        self.processes.iter().position(|own| record.journal == format!("{}{}", own.name, own.folders))
    }

    fn choose(&mut self, client: usize) -> Operation {
        let role = format!("c{client}r{}", self.rng.below(ROLES_EACH));
        let own = &self.clients[client];
        let home = own.home(&role).cloned();
        let rooms: Vec<String> = own.acknowledged.keys().cloned().collect();
        let room = rooms.get(self.rng.below(rooms.len().max(1) as u64) as usize).cloned();
        match (self.rng.below(12), home, room) {
            (0..=3, None, _) if rooms.len() < ROOMS_EACH => Operation::Create { role },
            (0..=3, None, Some(room)) => Operation::Join { role, room },
            (0 | 1, Some(room), _) => Operation::Leave { role, room },
            (4 | 5, _, Some(room)) => {
                self.clients[client].values += 1;
                Operation::Set { room, value: self.clients[client].values }
            }
            (6, _, Some(room)) if self.rng.chance(0.1) => Operation::Delete { room },
            (7, ..) => Operation::Mine,
            (8, ..) => Operation::Role { role },
            _ if self.known.is_empty() => Operation::Mine,
            _ => {
                let at = self.rng.below(self.known.len() as u64) as usize;
                Operation::Room { room: self.known[at].1.clone() }
            }
        }
    }

    /// Sends a request by the bus, or straight to a process that may not serve.
    fn send(&mut self, client: usize) {
        let straight = self.rng.chance(0.3);
        let target = if straight {
            let at = self.rng.below(self.processes.len() as u64) as usize;
            self.processes[at].is_running(self.now_ms).then_some(at)
        } else if self.now_ms < self.directory.away_until {
            None
        } else {
            // One that stands still is subscribed too; what it would answer comes too late.
            self.processes.iter().position(|process| process.is_subscribed && process.down_until == 0)
        };
        let Some(target) = target else { return };
        let own = &mut self.clients[client];
        let Some(open) = &mut own.open else { return };
        open.answer = Arc::default();
        open.asked_at = self.now_ms;
        let slot = Arc::clone(&open.answer);
        let call = Call {
            srv: own.name.clone(),
            scope: Scope::Server,
            method: open.operation.request().0,
            body: open.body.clone(),
            reply: Box::new(move |status, body| *slot.lock().unwrap() = Some((status, body))),
        };
        let due = std::time::Instant::now() + Duration::from_secs(3_600);
        self.processes[target].inbox.lock().unwrap().push(Post::Call { call, reader: None, due });
    }

    fn ask(&mut self, client: usize) {
        if self.clients[client].open.is_none() {
            let operation = self.choose(client);
            let key: Vec<u8> = (0..2).flat_map(|_| self.rng.next_u64().to_le_bytes()).collect();
            let body = operation.request().1.bytes(REQUEST_KEY_FIELD, &key).into_bytes();
            let (answer, possible) = (Arc::default(), Vec::new());
            let open = Open { operation, body, answer, asked_at: self.now_ms, possible };
            self.clients[client].open = Some(open);
        }
        self.send(client);
    }

    /// Notes the states in which each open read may find its room.
    fn watch(&mut self) {
        for client in 0..self.clients.len() {
            let Some(Open { operation: Operation::Room { room }, .. }) = &self.clients[client].open else {
                continue;
            };
            let room = room.clone();
            let owner = self.known.iter().find(|(_, id)| *id == room).map(|(owner, _)| *owner);
            let states = self.clients[owner.expect("a known room")].possible(&room);
            let Some(open) = &mut self.clients[client].open else { continue };
            for state in states {
                if !open.possible.contains(&state) {
                    open.possible.push(state);
                }
            }
        }
    }

    fn turn(&mut self) {
        for at in 0..self.processes.len() {
            let process = &mut self.processes[at];
            if process.down_until != 0 {
                if self.now_ms >= process.down_until {
                    process.restart(self.now_ms);
                }
                continue;
            }
            if self.now_ms < process.still_until {
                continue;
            }
            if !process.keep_lease(self.now_ms, &mut self.directory) {
                // Its folder is moved aside, and it begins with an empty one.
                process.lose_folder();
                process.restart(self.now_ms);
                continue;
            }
            process.hub.polled(Instant::from_millis(self.now_ms));
            process.hub.take_posts();
            process.hub.end().unwrap();
            process.hub.release();
        }
        let serving = self.processes.iter().filter(|process| process.is_serving(self.now_ms));
        let serving: Vec<&str> = serving.map(|process| process.name).collect();
        assert!(serving.len() < 2, "{serving:?} serve at {}", self.now_ms);
        let holder = self.holder().map(|at| &self.processes[at]);
        let is_fine = holder.is_none_or(|process| process.is_running(self.now_ms))
            && self.directory.record.as_ref().is_none_or(|_| holder.is_some())
            && self.now_ms >= self.directory.away_until;
        if !is_fine {
            self.fine_since = self.fine_since.max(self.now_ms);
        }
        let late = self.now_ms.saturating_sub(self.fine_since) > RETURN_MS;
        assert!(serving.len() == 1 || !late, "no matcher serves at {} though one could", self.now_ms);
    }

    fn check(&mut self, client: usize) {
        let Some(open) = &self.clients[client].open else { return };
        let Some((status, body)) = open.answer.lock().unwrap().take() else { return };
        if status == Status::Unavailable {
            // This attempt did nothing; one before it may have.
            self.refused += 1;
            return;
        }
        self.answered += 1;
        let open = self.clients[client].open.take().expect("it is open");
        let mut text = String::new();
        let number = open.operation.request().0;
        if status == Status::Ok {
            json::decode(method(number).unwrap().response, &body, &mut text);
        }
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        let what = format!("{status:?} {answer} to {:?} at {}", open.operation, self.now_ms);
        let own = &mut self.clients[client].acknowledged;
        match &open.operation {
            Operation::Create { role } => {
                assert_eq!(status, Status::Ok, "{what}");
                let id = answer["RoomInfo"]["RoomID"].as_str().expect("an id").to_owned();
                let members = BTreeSet::from([role.clone()]);
                let before = own.insert(id.clone(), OwnedRoom { members, value: 0 });
                assert_eq!(before, None, "{what}");
                self.known.push((client, id));
            }
            Operation::Role { role } => {
                let home = own.iter().find(|(_, room)| room.members.contains(role)).map(|(id, _)| id);
                let rooms = answer["RoomInfos"].as_object().into_iter().flatten();
                let rooms = rooms.filter(|(_, room)| room["IsDeleting"] != true).map(|(id, _)| id);
                assert!(rooms.eq(home), "{what}, but it is in {home:?}");
            }
            Operation::Mine => {
                assert_eq!(status, Status::Ok, "{what}");
                let rooms = answer["RoomInfos"].as_object().into_iter().flatten();
                let rooms = rooms.filter(|(_, room)| room["IsDeleting"] != true);
                let listed: BTreeSet<&String> = rooms.map(|(id, _)| id).collect();
                let inhabited = own.iter().filter(|(_, room)| !room.members.is_empty());
                let missing: Vec<_> = inhabited.filter(|(id, _)| !listed.contains(id)).collect();
                assert!(missing.is_empty(), "{what} lacks {missing:?}");
                assert!(listed.iter().all(|id| own.contains_key(*id)), "{what} of {own:?}");
            }
            Operation::Room { room } => {
                let room_now = &answer["RoomInfo"];
                let is_gone = status == Status::NotFound || room_now["IsDeleting"] == true;
                let members = room_now["Roles"].as_object().into_iter().flatten();
                let found = OwnedRoom {
                    members: members.map(|(id, _)| id.clone()).collect(),
                    value: room_now["Data"]["k"].as_u64().unwrap_or_default(),
                };
                let found = (!is_gone).then_some(found);
                assert!(open.possible.contains(&found), "{what}: {room} is one of {:?}", open.possible);
            }
            write => {
                assert_eq!(status, Status::Ok, "{what}");
                write.apply(own);
            }
        }
    }

    /// Something fails, unless something does already.
    fn fail(&mut self) {
        let now_ms = self.now_ms;
        let Some(holder) = self.holder() else { return };
        let all_run = self.processes.iter().all(|process| process.is_running(now_ms));
        if !all_run
            || now_ms.saturating_sub(self.fine_since) < RETURN_MS
            || now_ms < self.directory.away_until
        {
            return;
        }
        let kind = self.rng.below(7) as usize;
        self.faults[kind] += 1;
        let pause = [8_000, 13_000, 40_000][self.rng.below(3) as usize];
        let hit = if self.rng.chance(0.8) { holder } else { 1 - holder };
        let process = &mut self.processes[hit];
        match kind {
            0 => process.down_until = now_ms + 1 + self.rng.below(2_000),
            1 => process.still_until = now_ms + pause,
            2 => self.directory.away_until = now_ms + 20_000,
            // A copy of its folder on another machine: the lease is waited out.
            3 => {
                process.machine += 1;
                process.down_until = now_ms + 1;
                let wait = LOSS.as_millis() as u64 + RETURN_MS;
                self.fine_since = now_ms + wait;
            }
            4 => process.down_until = now_ms + pause,
            // The bus comes back without its storage, and all restart, in any order.
            5 => {
                self.directory.record = None;
                for process in &mut self.processes {
                    process.down_until = now_ms + 1 + self.rng.below(2_000);
                }
                self.fine_since = now_ms + 2_000;
            }
            _ => {
                process.lose_folder();
                process.memory = None;
                process.down_until = now_ms + 1 + self.rng.below(2_000);
                if hit == holder {
                    self.lose_state();
                }
            }
        }
    }

    /// The state of the area is gone: nobody serves until an operator gives it up.
    fn lose_state(&mut self) {
        let until = self.now_ms + LOSS.as_millis() as u64 + 2 * RETURN_MS;
        let answered = self.answered;
        while self.now_ms < until {
            self.step(false);
        }
        // Answers that the lost process had given before.
        assert!(self.answered <= answered + CLIENTS, "no matcher has the state, but requests are answered");
        let (_, record) = self.directory.record.clone().expect("a record");
        assert_eq!(record.state, State::Lost);
        self.directory.revision += 1;
        let given = Record { state: State::Given, nonce: self.rng.next_u64(), ..record };
        self.directory.record = Some((self.directory.revision, given));
        self.takeovers += 1;
        self.fine_since = self.now_ms;
        self.known.clear();
        for client in &mut self.clients {
            (client.acknowledged, client.open) = (Owned::new(), None);
        }
    }

    fn step(&mut self, fails: bool) {
        self.now_ms += 10 + self.rng.below(90);
        for client in 0..self.clients.len() {
            let waits = self.clients[client].open.as_ref().is_some_and(|open| {
                self.now_ms - open.asked_at < PATIENCE_MS && Arc::strong_count(&open.answer) > 1
            });
            if !waits {
                self.ask(client);
            }
        }
        self.watch();
        self.turn();
        self.watch();
        for client in 0..self.clients.len() {
            self.check(client);
        }
        if fails && self.rng.chance(0.005) {
            self.fail();
        }
    }
}

#[test]
fn no_answer_of_an_area_contradicts_an_acknowledged_one() {
    const REQUESTS: u64 = 100_000;
    let (mut answered, mut refused, mut takeovers, mut faults) = (0, 0, 0, [0; 7]);
    for seed in 0..10 {
        let mut area = Area::new(seed);
        while area.answered < REQUESTS / 10 {
            area.step(true);
        }
        answered += area.answered;
        refused += area.refused;
        takeovers += area.takeovers;
        faults.iter_mut().zip(area.faults).for_each(|(sum, own)| *sum += own);
    }
    assert!(answered >= REQUESTS);
    assert!(refused > 1_000 && takeovers > 3, "{refused} refused, {takeovers} takeovers");
    assert!(faults.iter().all(|count| *count > 5), "{faults:?}");
}
