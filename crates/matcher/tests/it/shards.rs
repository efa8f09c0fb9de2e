//! Several shards at once: mail that takes its time, clocks that differ, claims that expire, a process that ends at any
//! record of its log. Everything is drawn from a seed and happens in virtual time.

use crate::world;

use std::collections::{BTreeMap, BTreeSet};

use throng_matcher::record::{Input, parse_input, read_record, write_record_of};
use throng_matcher::{
    Config, Handled, ModeRules, Notices, OnFull, QueueRules, Route, Scope, Shards, json, route,
};
use throng_stdx::Rng;
use throng_wire::fields;
use throng_wire::matcher::{Event, Method, REQUEST_KEY_FIELD, Reader, Status, Writer, method};
use world::{START, id_in, player, role, team, to_mode, to_room};

const ROLES: u64 = 9;
const SERVERS: u64 = 3;
const CAPACITY: usize = 3;
const MODES: [&str; 3] = ["a", "b", "c"];
const QUEUES: [&str; 3] = ["duel", "rumble", "brawl"];
const CLAIM_MS: u64 = 5_000;
/// Live tickets of all shards together.
const TICKETS_MAX: usize = 4;

fn config() -> Config {
    let rules = ModeRules { capacity: CAPACITY as u32, on_full: OnFull::Keep, ..ModeRules::default() };
    let queue = |name: &str| {
        let text = format!(
            r#"{{"name": "{name}", "sides": [{{"name": "side", "count": 2, "min": 1, "max": 1}}], "timeout_s": 30,
            "seat_ttl_s": 8, "accept": {{"required": {}, "timeout_s": 4, "cooldown_s": 1}},
            "rating": {{"pool": "ladder"}}, "backfill": {{"ack_s": 3}}}}"#,
            name == "brawl"
        );
        QueueRules::try_from(serde_json::from_str::<serde_json::Value>(&text).unwrap()).unwrap()
    };
    Config {
        modes: MODES.iter().map(|mode| ((*mode).to_owned(), rules.clone())).collect(),
        queues: QUEUES.iter().map(|name| queue(name)).collect(),
        tickets_max: TICKETS_MAX,
        ..Config::default()
    }
}

fn srv(role: &str) -> String {
    let number: u64 = role[1..].parse().unwrap();
    format!("s{}", number % SERVERS)
}

/// A request under way.
#[derive(Clone)]
struct Asked {
    method: u16,
    about: String,
    /// The queue of a ticket.
    queue: String,
    key: Option<u8>,
}

struct Simulation {
    rng: Rng,
    shards: Shards,
    clocks: Vec<u64>,
    log: Vec<u8>,
    sequence: u64,
    /// State after each record.
    digests: Vec<[u8; 32]>,
    asked: BTreeMap<(u16, u64), Asked>,
    /// Rooms by what was heard of them, and the last revision that each server has heard of a room or team.
    rooms: BTreeMap<String, BTreeSet<String>>,
    revs: BTreeMap<(String, String), u64>,
    tickets: BTreeMap<(String, String), String>,
    /// Tickets of players who were matched with another.
    over: BTreeSet<String>,
    teams: Vec<String>,
    backfills: Vec<String>,
    /// Answers by request key, as often as one was used for whatever.
    keyed: BTreeMap<(String, u8), (Status, Vec<u8>)>,
    matches: Vec<(String, String, String)>,
    counts: BTreeMap<String, u64>,
}

impl Simulation {
    fn new(seed: u64, count: u16) -> Simulation {
        let mut simulation = Simulation {
            rng: Rng::new(seed),
            shards: Shards::new(&config(), [3; 32], START, count),
            clocks: vec![START; usize::from(count)],
            log: Vec::new(),
            sequence: 0,
            digests: Vec::new(),
            asked: BTreeMap::new(),
            rooms: BTreeMap::new(),
            revs: BTreeMap::new(),
            tickets: BTreeMap::new(),
            over: BTreeSet::new(),
            teams: Vec::new(),
            backfills: Vec::new(),
            keyed: BTreeMap::new(),
            matches: Vec::new(),
            counts: BTreeMap::new(),
        };
        simulation.connect();
        simulation
    }

    fn connect(&mut self) {
        for shard in 0..self.shards.count() {
            for server in 0..SERVERS {
                let srv = format!("s{server}");
                self.apply(shard, Input::Session { srv: &srv, up: true });
            }
        }
    }

    fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    /// Logs an input, gives it to its shard, and takes what comes of it.
    fn apply(&mut self, shard: u16, input: Input<'_>) -> (Option<Handled>, Vec<u8>) {
        let handled = self.execute(shard, input);
        self.take_answers(shard);
        handled
    }

    fn execute(&mut self, shard: u16, input: Input<'_>) -> (Option<Handled>, Vec<u8>) {
        let now = self.clocks[usize::from(shard)];
        write_record_of(shard as u8, &mut self.log, self.sequence, now, input);
        self.sequence += 1;
        let (mut answer, mut notices) = (Vec::new(), Notices::default());
        let handled = self.shards.apply(shard, now, input, &mut answer, &mut notices);
        self.digests.push(self.shards.digest());
        self.listen(shard, &notices);
        (handled, answer)
    }

    fn take_answers(&mut self, shard: u16) {
        while let Some(answered) = self.shards.shard_mut(shard).poll_answered() {
            let asked = self.asked.remove(&(shard, answered.request));
            let asked = asked.expect("asked once, answered once");
            self.answered(&asked, answered.status, &answered.body);
        }
    }

    fn ask(&mut self, about: &str, method: u16, queue: &str, body: Writer) {
        let key = self.rng.chance(0.1).then(|| self.rng.below(250) as u8);
        let body = match key {
            Some(key) => body.bytes(REQUEST_KEY_FIELD, &[key; 16]),
            None => body,
        };
        let body = body.into_bytes();
        let Route::One(shard) = route(method, &body, self.shards.count()) else { unreachable!() };
        let srv = srv(about);
        let asked = Asked { method, about: about.to_owned(), queue: queue.to_owned(), key };
        let input = Input::Request { srv: &srv, scope: Scope::Trusted, method, body: &body };
        match self.execute(shard, input) {
            (Some(Handled::Done(status)), answer) => self.answered(&asked, status, &answer),
            (Some(Handled::Waits(number)), _) => drop(self.asked.insert((shard, number), asked)),
            (None, _) => unreachable!(),
        }
        self.take_answers(shard);
    }

    fn answered(&mut self, asked: &Asked, status: Status, body: &[u8]) {
        self.count(format!("{} {}", method(asked.method).unwrap().name, status.name()));
        if let Some(key) = asked.key
            && !matches!(status, Status::Overloaded | Status::Timeout)
        {
            let known = self.keyed.entry((srv(&asked.about), key)).or_insert((status, body.to_vec()));
            assert_eq!(*known, (status, body.to_vec()), "a key has one answer");
        }
        if status != Status::Ok {
            return;
        }
        match asked.method {
            Method::CREATE_TEAM => self.teams.push(id_in(body)),
            Method::START_BACKFILL => {
                self.backfills.push(Reader::new(body).unwrap().str(1).unwrap().to_owned());
            }
            Method::REPORT_RESULT => self.check_known_everywhere(body),
            Method::CREATE_TICKET => {
                drop(self.tickets.insert((asked.about.clone(), asked.queue.clone()), id_in(body)));
            }
            _ => {}
        }
    }

    /// A result that was answered is in the ratings of every shard.
    fn check_known_everywhere(&mut self, answer: &[u8]) {
        for rated in Reader::new(answer).unwrap().all(1) {
            let rated = Reader::new(rated).unwrap();
            let body = Writer::new().str(1, "ladder").str(2, rated.str(1).unwrap()).into_bytes();
            for shard in 0..self.shards.count() {
                let mut seen = Vec::new();
                let scope = Scope::Server;
                let input = Input::Request { srv: "s0", scope, method: Method::GET_RATINGS, body: &body };
                self.shards.apply(shard, 0, input, &mut seen, &mut Notices::default());
                let seen = Reader::new(&seen).unwrap().nested(1).unwrap();
                assert!(seen.u64(3) >= rated.u64(3), "shard {shard} rates by what was before");
            }
        }
    }

    fn listen(&mut self, shard: u16, notices: &Notices) {
        for notice in notices.iter() {
            let Some(server) = self.shards.shard(shard).server_name(notice.server) else { continue };
            let server = String::from_utf8(server.to_vec()).unwrap();
            let entry = fields(notice.entry).next().unwrap().unwrap();
            let event = fields(entry.value).map(Result::unwrap).find(|field| field.number != 1).unwrap();
            let roles: Vec<String> = Reader::new(entry.value)
                .unwrap()
                .all(1)
                .map(|r| String::from_utf8(r.to_vec()).unwrap())
                .collect();
            self.hear(&server, &roles, event.number, event.value);
        }
    }

    fn hear(&mut self, server: &str, roles: &[String], kind: u32, body: &[u8]) {
        let event = Reader::new(body).unwrap();
        let (object, rev) = (event.str(20).unwrap().to_owned(), event.u64(21));
        if matches!(
            kind,
            Event::ROLES_JOIN_ROOM | Event::ROLE_LEAVE_ROOM | Event::JOIN_TEAM | Event::LEAVE_TEAM
        ) {
            let last = self.revs.entry((server.to_owned(), object.clone())).or_default();
            let ends = kind == Event::ROLE_LEAVE_ROOM && event.str(22) == Ok("room_deleted");
            assert!(rev > *last || ends && rev == *last, "{object} to {server}: {rev} after {last}");
            *last = rev;
        }
        match kind {
            Event::ROLES_JOIN_ROOM => {
                for joined in event.all(2).map(|role| String::from_utf8(role.to_vec()).unwrap()) {
                    // Each server hears of its own.
                    if srv(&joined) == server {
                        let members = self.rooms.entry(object.clone()).or_default();
                        assert!(members.insert(joined.clone()), "{joined} joined {object} twice");
                    }
                }
            }
            Event::ROLE_LEAVE_ROOM => {
                let left = event.str(2).unwrap().to_owned();
                if srv(&left) == server {
                    let members = self.rooms.get_mut(&object).expect("a room that was joined");
                    assert!(members.remove(&left), "{left} left {object} twice");
                }
            }
            Event::MATCH_PROPOSED => {
                let (id, ticket) = (event.str(1).unwrap(), event.str(4).unwrap());
                for role in roles {
                    self.matches.push((id.to_owned(), ticket.to_owned(), role.clone()));
                }
            }
            Event::MATCH_READY => {
                let queue = event.str(7).unwrap().to_owned();
                self.count(format!("matched {queue}"));
                for role in roles {
                    if let Some(own) = self.tickets.get(&(role.clone(), queue.clone())) {
                        assert!(!self.over.contains(own), "{role} was matched with another ticket");
                    }
                    let others = self.tickets.iter().filter(|((of, other), _)| of == role && *other != queue);
                    self.over.extend(others.map(|(_, ticket)| ticket.clone()));
                }
            }
            Event::BACKFILL_UPDATE if event.str(2) == Ok("matched") => self.count("backfilled"),
            Event::TICKET_UPDATE => {
                let ticket = event.nested(1).unwrap();
                self.count(format!("ticket {}", ticket.str(10).unwrap()));
            }
            _ => {}
        }
    }

    /// Something that somebody wants.
    fn request(&mut self) {
        let id = format!("r{}", self.rng.below(ROLES));
        let mode = MODES[self.rng.below(3) as usize];
        let rooms: Vec<String> =
            self.rooms.iter().filter(|(_, m)| !m.is_empty()).map(|(id, _)| id.clone()).collect();
        let room = rooms.get(self.rng.below(rooms.len().max(1) as u64) as usize).cloned().unwrap_or_default();
        let known = self.teams.len().max(1) as u64;
        let known_team = self.teams.get(self.rng.below(known) as usize).cloned().unwrap_or_default();
        match self.rng.below(19) {
            0..=2 => self.ask(&id, Method::ROLE_JOIN_RANDOM_ROOM, "", to_mode(&id, mode)),
            3 => self.ask(&id, Method::ROLE_CREATE_ROOM, "", to_mode(&id, mode)),
            4 => self.ask(&id, Method::ROLE_JOIN_ROOM, "", to_room(&id, &room)),
            5..=7 => {
                let own = self.rooms.iter().find(|(_, members)| members.contains(&id));
                let own = own.map_or(room, |(id, _)| id.clone());
                self.ask(&id, Method::ROLE_LEAVE_ROOM, "", Writer::new().str(1, &id).str(2, &own));
            }
            8 => {
                let body = Writer::new().nested(1, role(&id)).nested(2, team(3, ""));
                self.ask(&id, Method::CREATE_TEAM, "", body);
            }
            9 => self.ask(&id, Method::JOIN_TEAM, "", Writer::new().nested(1, role(&id)).str(2, &known_team)),
            10 => self.ask(&id, Method::LEAVE_TEAM, "", Writer::new().str(1, &id).str(2, &known_team)),
            11 => {
                let body = Writer::new().str(1, &known_team).nested(2, Writer::new().str(1, mode));
                self.ask(&id, Method::TEAM_JOIN_RANDOM_ROOM, "", body);
            }
            12 | 13 => {
                let queue = QUEUES[self.rng.below(3) as usize];
                let body = Writer::new().str(1, queue).nested(2, player(&id, &[]));
                self.ask(&id, Method::CREATE_TICKET, queue, body);
            }
            14 => self.ask(&id, Method::DELETE_ROOM, "", Writer::new().str(1, &room)),
            15 => {
                let open = Writer::new().str(1, "side1").u64(2, 1);
                let queue = QUEUES[self.rng.below(3) as usize];
                let body = Writer::new().str(1, &room).str(2, queue).nested(3, open);
                self.ask(&id, Method::START_BACKFILL, queue, body);
            }
            16 => {
                let known = self.backfills.len().max(1) as u64;
                let known = self.backfills.get(self.rng.below(known) as usize).cloned().unwrap_or_default();
                let method = [Method::ACK_BACKFILL, Method::STOP_BACKFILL][self.rng.below(2) as usize];
                self.ask(&id, method, "", Writer::new().str(1, &known));
            }
            17 => {
                let other = format!("r{}", self.rng.below(ROLES));
                let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
                let sides = Writer::new().str(2, &room).nested(3, side(&id, 1)).nested(3, side(&other, 2));
                self.ask(&id, Method::REPORT_RESULT, "", sides.str(6, "ladder"));
            }
            _ => {
                let Some((found, ticket, role)) = self.matches.pop() else { return };
                let body = Writer::new().str(1, &found).str(2, &ticket).str(3, &role).u64(4, 1);
                self.ask(&role, Method::ACCEPT_MATCH, "", body);
            }
        }
    }

    fn deliver_one(&mut self) -> bool {
        let pending: Vec<(u16, u16)> = self.shards.pending().collect();
        let Some((from, to)) = pending.get(self.rng.below(pending.len().max(1) as u64) as usize) else {
            return false;
        };
        self.apply(*to, Input::Mail { from: *from as u8 });
        true
    }

    /// A shard does what is due. Without its mail it holds no claim that is older than it may be.
    fn wake(&mut self, shard: u16) {
        let now = self.clocks[usize::from(shard)];
        while self.shards.shard(shard).next_timeout().is_some_and(|at| at <= now) {
            self.apply(shard, Input::Timeout);
        }
    }

    /// A shard hears nothing for as long as a claim lives.
    fn stall(&mut self, shard: u16) {
        self.clocks[usize::from(shard)] += CLAIM_MS;
        let open = self.shards.shard(shard).open_claims();
        self.wake(shard);
        // A match that lost its players may be found, and claim them, again in the same moment.
        let stats = self.shards.shard(shard).stats();
        if open > 0 {
            assert!(stats.claims_expired > 0);
            self.counts.insert("expired".to_owned(), stats.claims_expired);
        }
    }

    /// The process ends and begins anew; `drained`: what was on its way arrives first, as the service does it.
    fn restart(&mut self, drained: bool) {
        let replayed = replay(&self.log, self.shards.count(), |_, _| {});
        assert_eq!(replayed.digest(), self.shards.digest(), "a replay is exact");
        self.shards = replayed;
        self.asked.clear();
        // Answers that were not heard count.
        self.keyed.clear();
        // Tickets will be made that nobody knows of.
        self.tickets.clear();
        self.count("restart");
        while drained && self.deliver_lost() {}
        for shard in 0..self.shards.count() {
            self.apply_lost(shard, Input::Recovered);
            if self.rng.chance(0.5) {
                self.deliver_lost();
            }
        }
        while self.deliver_lost() {}
        self.connect();
        self.check_idle();
    }

    /// Nobody waits for answers of the time before.
    fn apply_lost(&mut self, shard: u16, input: Input<'_>) {
        self.execute(shard, input);
        while let Some(answered) = self.shards.shard_mut(shard).poll_answered() {
            if answered.status == Status::Ok {
                // A ticket or team that nobody knows of.
                self.count("executed, not answered");
            }
        }
    }

    fn deliver_lost(&mut self) -> bool {
        let next = self.shards.pending().next();
        let Some((from, to)) = next else { return false };
        self.apply_lost(to, Input::Mail { from: from as u8 });
        true
    }

    fn check_idle(&mut self) {
        for shard in 0..self.shards.count() {
            let shard = self.shards.shard(shard);
            assert_eq!((shard.open_claims(), shard.claimed_here()), (0, 0), "a claim dangles");
        }
        assert!(self.asked.is_empty(), "a request has no answer");
        self.check_backfills();
        let seen = check_exclusive(&mut self.shards);
        for (id, members) in &self.rooms {
            let listed = seen.get(id).cloned().unwrap_or_default();
            assert_eq!(*members, listed, "{id}: what was heard is what there is");
        }
    }

    /// Every backfill has its room and every room at most one: those that are over can be begun again.
    fn check_backfills(&mut self) {
        let shards = || (0..self.shards.count()).map(|shard| self.shards.shard(shard));
        let mut tied: Vec<(String, String)> = shards().flat_map(|shard| shard.backfills_of_rooms()).collect();
        let mut asked: Vec<(String, String)> =
            shards().flat_map(|shard| shard.rooms_of_backfills()).collect();
        tied.sort();
        asked.sort();
        assert_eq!(tied, asked, "rooms and backfills know each other");
    }

    /// All mail arrives: all claims end by it, none by time.
    fn settle(&mut self) {
        while self.deliver_one() {}
        self.check_idle();
    }

    fn step(&mut self) {
        let shard = self.rng.below(self.clocks.len() as u64) as u16;
        match self.rng.below(64) {
            0..=19 => self.request(),
            20..=53 => drop(self.deliver_one()),
            54..=61 => {
                self.clocks[usize::from(shard)] += self.rng.below(200);
                self.wake(shard);
            }
            62 if self.rng.chance(0.3) => self.stall(shard),
            _ if self.rng.chance(0.1) => self.settle(),
            _ => {}
        }
        check_exclusive(&mut self.shards);
    }
}

/// The shards as a log made them, with a look at each record.
fn replay(log: &[u8], count: u16, mut look: impl FnMut(&mut Shards, usize)) -> Shards {
    let mut shards = Shards::new(&config(), [3; 32], START, count);
    let (mut rest, mut at) = (log, 0);
    while let Some(record) = read_record(rest) {
        let input = parse_input(record.kind, record.body).unwrap();
        shards.apply(u16::from(record.shard), record.time, input, &mut Vec::new(), &mut Notices::default());
        while shards.shard_mut(u16::from(record.shard)).poll_answered().is_some() {}
        look(&mut shards, at);
        rest = &rest[record.len..];
        at += 1;
    }
    assert!(rest.is_empty());
    shards
}

/// No role is in two live rooms, two teams, or has two tickets of a queue; no room holds too many. Gives the members of all
/// rooms.
fn check_exclusive(shards: &mut Shards) -> BTreeMap<String, BTreeSet<String>> {
    let (mut rooms, mut teams, mut tickets) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for shard in 0..shards.count() {
        for server in 0..SERVERS {
            let (mut answer, srv) = (Vec::new(), format!("s{server}"));
            let input =
                Input::Request { srv: &srv, scope: Scope::Server, method: Method::LIST_MINE, body: &[] };
            // A read leaves no trace.
            shards.apply(shard, 0, input, &mut answer, &mut Notices::default());
            let mut text = String::new();
            json::decode(method(Method::LIST_MINE).unwrap().response, &answer, &mut text);
            let mine: serde_json::Value = serde_json::from_str(&text).unwrap();
            let all = |name: &str| {
                mine[name].as_object().into_iter().flatten().map(|(id, it)| (id.clone(), it.clone()))
            };
            rooms.extend(all("RoomInfos"));
            teams.extend(all("TeamInfos"));
            for ticket in mine["Tickets"].as_array().into_iter().flatten() {
                tickets.insert(ticket["TicketID"].as_str().unwrap().to_owned(), ticket.clone());
            }
        }
    }
    let members = |object: &serde_json::Value| -> BTreeSet<String> {
        object["Roles"].as_object().into_iter().flat_map(|roles| roles.keys().cloned()).collect()
    };
    let mut seen = BTreeSet::new();
    for room in rooms.values().filter(|room| room["IsDeleting"] != true) {
        let seats = room["Reserved"].as_object().map_or(0, serde_json::Map::len);
        assert!(members(room).len() + seats <= CAPACITY, "{room}");
        for role in members(room) {
            assert!(seen.insert(role.clone()), "{role} is in two rooms");
        }
    }
    let mut seen = BTreeSet::new();
    for role in teams.values().flat_map(members) {
        assert!(seen.insert(role.clone()), "{role} is in two teams");
    }
    assert!(tickets.len() <= TICKETS_MAX, "{} tickets", tickets.len());
    let mut seen = BTreeSet::new();
    for ticket in tickets.values() {
        for player in ticket["Players"].as_array().unwrap() {
            let key = (player["RoleID"].to_string(), ticket["Queue"].to_string());
            assert!(seen.insert(key.clone()), "{key:?} twice");
        }
    }
    rooms.iter().map(|(id, room)| (id.clone(), members(room))).collect()
}

fn run(seed: u64, count: u16, steps: u32, crashes: bool) -> Simulation {
    let mut simulation = Simulation::new(seed, count);
    for _ in 0..steps {
        simulation.step();
        if crashes && simulation.rng.chance(0.004) {
            let drained = simulation.rng.chance(0.5);
            simulation.restart(drained);
        }
    }
    simulation.settle();
    simulation
}

#[test]
fn nothing_is_owned_twice_whatever_the_mail_does() {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..8 {
        for (what, count) in run(seed, 2 + (seed % 3) as u16, 2_500, true).counts {
            *counts.entry(what).or_default() += count;
        }
    }
    for what in [
        "restart",
        "expired",
        "executed, not answered",
        "matched duel",
        "matched rumble",
        "matched brawl",
        "ticket matched_elsewhere",
        "RoleJoinRandomRoom OK",
        "RoleJoinRandomRoom ALREADY_IN_ROOM",
        "RoleJoinRandomRoom TIMEOUT",
        "RoleJoinRoom ROOM_FULL",
        "TeamJoinRandomRoom OK",
        "TeamJoinRandomRoom ALREADY_IN_ROOM",
        "JoinTeam ALREADY_IN_TEAM",
        "CreateTicket OK",
        "CreateTicket ALREADY_IN_QUEUE",
        "CreateTicket OVERLOADED",
        "StartBackfill OK",
        "AckBackfill OK",
        "StopBackfill OK",
        "backfilled",
        "ReportResult OK",
        "CreateTicket ALREADY_IN_ROOM",
    ] {
        assert!(counts.get(what).is_some_and(|count| *count >= 5), "{what} happened rarely: {counts:#?}");
    }
}

#[test]
fn a_restart_at_any_record_leaves_no_claim() {
    let simulation = run(99, 3, 700, false);
    let mut at = 0;
    replay(&simulation.log, 3, |shards, record| {
        assert_eq!(shards.digest(), simulation.digests[record], "record {record}");
        let restored = Shards::restore(&config(), &shards.snapshot()).unwrap();
        assert_eq!(restored.digest(), simulation.digests[record], "a snapshot at record {record}");
        for shard in 0..3 {
            let counts = |shards: &Shards| shards.shard(shard).mode_counts(10);
            assert_eq!(counts(&restored), counts(shards), "kept by step, and counted anew");
        }
        let mut again = restored;
        let now = again.now() + 1;
        let apply = |shard: u16, input: Input<'_>, again: &mut Shards| {
            again.apply(shard, now, input, &mut Vec::new(), &mut Notices::default());
        };
        for shard in 0..3 {
            apply(shard, Input::Recovered, &mut again);
        }
        loop {
            let next = again.pending().next();
            let Some((from, to)) = next else { break };
            apply(to, Input::Mail { from: from as u8 }, &mut again);
        }
        for shard in 0..3 {
            let shard = again.shard(shard);
            assert_eq!((shard.open_claims(), shard.claimed_here()), (0, 0), "after record {record}");
        }
        check_exclusive(&mut again);
        at += 1;
    });
    assert!(at > 700, "{at} records");
}

/// Every order in which mail, time and two requests that want one player can meet.
struct Race {
    outcomes: BTreeSet<[Option<Status>; 2]>,
    seen: BTreeSet<[u8; 32]>,
}

impl Race {
    /// Goes on from a state, `asked` of the requests having been made, `late` clocks having jumped.
    fn explore(&mut self, bytes: &[u8], asked: usize, late: u16, status: [Option<Status>; 2]) {
        let mut key = bytes.to_vec();
        key.extend([asked as u8, late as u8]);
        key.extend(status.iter().map(|status| status.map_or(255, |status| status as u8)));
        // States that were seen lead nowhere new.
        if !self.seen.insert(throng_hash(&key)) {
            return;
        }
        let shards = Shards::restore(&config(), bytes).unwrap();
        let pending: Vec<(u16, u16)> = shards.pending().collect();
        let step = |shard: u16, input: Input<'_>, late: u16, status: [Option<Status>; 2]| {
            let mut shards = Shards::restore(&config(), bytes).unwrap();
            let now = START + u64::from(late >> shard & 1) * CLAIM_MS;
            let mut status = status;
            let mut answer = Vec::new();
            let handled = shards.apply(shard, now, input, &mut answer, &mut Notices::default());
            let own = usize::from(shard != race_shard("a"));
            if let Some(Handled::Done(done)) = handled {
                status[own] = Some(done);
            }
            while let Some(answered) = shards.shard_mut(shard).poll_answered() {
                assert_eq!(status[own].replace(answered.status), None, "answered twice");
            }
            check_exclusive(&mut shards);
            (shards.snapshot(), status)
        };
        if asked < 2 {
            let mode = ["a", "c"][asked];
            let body = to_mode("r1", mode).into_bytes();
            let input = Input::Request {
                srv: "s1",
                scope: Scope::Server,
                method: Method::ROLE_CREATE_ROOM,
                body: &body,
            };
            let (next, status) = step(race_shard(mode), input, late, status);
            self.explore(&next, asked + 1, late, status);
        }
        for (from, to) in &pending {
            let (next, status) = step(*to, Input::Mail { from: *from as u8 }, late, status);
            self.explore(&next, asked, late, status);
        }
        for shard in (0..3).filter(|shard| late >> shard & 1 == 0) {
            let late = late | 1 << shard;
            let (next, status) = step(shard, Input::Timeout, late, status);
            self.explore(&next, asked, late, status);
        }
        if asked == 2 && pending.is_empty() && late == 7 {
            for shard in 0..3 {
                assert_eq!((shards.shard(shard).open_claims(), shards.shard(shard).claimed_here()), (0, 0));
            }
            self.outcomes.insert(status);
        }
    }
}

fn throng_hash(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (at, chunk) in out.chunks_exact_mut(8).enumerate() {
        let mut hash = 0xCBF2_9CE4_8422_2325_u64 ^ at as u64;
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3).rotate_left(at as u32 + 5);
        }
        chunk.copy_from_slice(&hash.to_le_bytes());
    }
    out
}

fn race_shard(mode: &str) -> u16 {
    let Route::One(shard) = route(Method::GET_ROOM_LIST, &Writer::new().str(1, mode).into_bytes(), 3) else {
        unreachable!()
    };
    shard
}

#[test]
fn of_two_that_want_a_player_one_gets_the_player_in_every_order() {
    assert_ne!(race_shard("a"), race_shard("c"), "the modes are on different shards");
    let shards = Shards::new(&config(), [3; 32], START, 3);
    let mut race = Race { outcomes: BTreeSet::new(), seen: BTreeSet::new() };
    race.explore(&shards.snapshot(), 0, 0, [None, None]);
    let all: BTreeSet<[Status; 2]> = race
        .outcomes
        .iter()
        .map(|outcome| outcome.map(|status| status.expect("every request is answered")))
        .collect();
    let wanted = [
        [Status::Ok, Status::AlreadyInRoom],
        [Status::AlreadyInRoom, Status::Ok],
        [Status::Ok, Status::Timeout],
        [Status::Timeout, Status::Ok],
        [Status::Timeout, Status::Timeout],
    ];
    assert!(all.iter().all(|outcome| wanted.contains(outcome)), "{all:?}");
    assert!(wanted.iter().all(|outcome| all.contains(outcome)), "{all:?}");
}
