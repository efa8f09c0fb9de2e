//! More shards change nothing that anybody can see: the same commands, one after the other, on one shard and on several
//! have the same answers and events, ids apart.

use crate::world;

use throng_matcher::{Config, ModeRules, OnFull, Scope, json};
use throng_stdx::Rng;
use throng_wire::fields;
use throng_wire::matcher::{Method, REQUEST_KEY_FIELD, Status, Writer, method};
use world::{World, id_in, player, role, team, to_mode, to_room};

const STEPS: u32 = 12_000;
const ROLES: u64 = 14;
const SERVERS: u64 = 3;
const MODES: [&str; 5] = ["duel", "rumble", "brawl", "2v2", "nobody's"];
/// Live tickets of all shards together: fewer than there are roles.
const TICKETS_MAX: usize = 4;
/// Ids of one kind that commands choose from.
const KNOWN_MAX: usize = 12;

/// Seats do not expire in the moment of a tick: on several shards, the two have no order then.
fn queue(name: &str, more: &str) -> String {
    format!(
        r#"{{"name": "{name}", "sides": [{{"name": "side", "count": 2, "min": 1, "max": 2}}], "timeout_s": 20,
        "tick_ms": 240, "seat_ttl_s": 5,
        "rules": [{{"name": "near", "type": "near", "key": "level", "max": 1000}}], "attributes": {{"level": {{"type": "number", "default": 0}}}}{more}}}"#
    )
}

fn config() -> Config {
    let rules = ModeRules { capacity: 3, on_full: OnFull::Keep, ..ModeRules::default() };
    let shared = ModeRules { exclusive: false, ..rules.clone() };
    // Queues that look at the same moment have no order among them: a player waits in one.
    Config {
        tickets_per_player: 1,
        tickets_max: TICKETS_MAX,
        modes: [("rumble".to_owned(), rules), ("brawl".to_owned(), shared)].into(),
        ..Config::default()
    }
}

/// Ids that both worlds have, in the same order.
#[derive(Default)]
struct Known(Vec<[String; 2]>);

impl Known {
    fn pick(&self, rng: &mut Rng) -> [String; 2] {
        let missing = || [(); 2].map(|()| "0".repeat(24));
        self.0.get(rng.below(self.0.len() as u64 + 1) as usize).cloned().unwrap_or_else(missing)
    }

    fn add(&mut self, ids: [String; 2]) {
        self.0.retain(|known| *known != ids);
        self.0.push(ids);
        if self.0.len() > KNOWN_MAX {
            self.0.remove(0);
        }
    }
}

struct Pair {
    worlds: [World; 2],
    rng: Rng,
    rooms: Known,
    teams: Known,
    tickets: Known,
    matches: Known,
    backfills: Known,
    statuses: std::collections::BTreeMap<(u16, Status), u32>,
}

impl Pair {
    /// Asks both, with bodies that differ in ids only, and compares.
    fn ask(
        &mut self,
        srv: &str,
        scope: Scope,
        method: u16,
        body: impl Fn(usize) -> Writer,
    ) -> Option<[Vec<u8>; 2]> {
        let mut status = Vec::new();
        let answers = [0, 1].map(|at| {
            let (own, answer) = self.worlds[at].ask_as(srv, scope, method, body(at));
            status.push(own);
            answer
        });
        assert_eq!(status[0], status[1], "method {method}");
        let shapes = answers.clone().map(|answer| shape(method, &answer));
        if shapes[0] != shapes[1] {
            panic!(
                "method {method}, {:?}: {:#?}",
                status[0],
                answers.map(|answer| shown_as(method, &answer))
            );
        }
        *self.statuses.entry((method, status[0])).or_default() += 1;
        self.compare_events();
        (status[0] == Status::Ok).then_some(answers)
    }

    fn pass(&mut self, ms: u64) {
        // What is forgotten after a time goes with the next input of its shard.
        self.worlds.iter_mut().for_each(|world| world.pass_everywhere(ms));
        self.compare_events();
    }

    fn compare_events(&mut self) {
        let heard = [0, 1].map(|at| {
            let heard = self.worlds[at].take_heard();
            let mut seen: Vec<_> = heard
                .into_iter()
                .map(|heard| (heard.server.clone(), heard.roles.clone(), heard.kind, shape(0, &heard.body)))
                .collect();
            // Those of different objects have no order among them.
            seen.sort();
            seen
        });
        assert_eq!(heard[0], heard[1]);
    }

    fn list_mine(&mut self) {
        for server in 0..SERVERS {
            self.ask(&format!("s{server}"), Scope::Server, Method::LIST_MINE, |_| Writer::new());
        }
        // Nothing is drawn for these, so that the commands stay as they were.
        let asked = self.statuses.values().sum::<u32>();
        let id = format!("r{}", u64::from(asked) % ROLES);
        for (srv, scope) in [("s0", Scope::Server), ("", Scope::Trusted)] {
            self.ask(srv, scope, Method::GET_ROLE, |_| Writer::new().str(1, &id));
        }
        if let Some(room) = self.rooms.0.last().cloned() {
            let body = |at: usize| Writer::new().str(1, &room[at]);
            self.ask("", Scope::Server, Method::GET_ROOM_HISTORY, body);
        }
    }
}

/// Which fields an answer has and how long they are: ids have one length, and everything else is to be the same.
fn shape(method: u16, body: &[u8]) -> Vec<(u32, usize)> {
    // Where a list goes on is its matcher's own business.
    let is_own = |number| method == Method::LIST_ROOMS && number == 2;
    let parts = fields(body).map_while(Result::ok).filter(|field| !is_own(field.number));
    let mut shape: Vec<(u32, usize)> = parts.map(|field| (field.number, field.raw.len())).collect();
    shape.sort_unstable();
    shape
}

fn shown_as(number: u16, answer: &[u8]) -> String {
    let mut text = String::new();
    json::decode(method(number).unwrap().response, answer, &mut text);
    text
}

fn srv(role: &str) -> String {
    let number: u64 = role[1..].parse().unwrap();
    format!("s{}", number % SERVERS)
}

/// No two roles are equally far from a third: among equals, places in memory decide.
fn level(role: &str) -> f64 {
    1.37_f64.powi(role[1..].parse().unwrap())
}

fn member(id: &str) -> Writer {
    role(id).nested(4, Writer::new().str(1, "level").f64(2, level(id)))
}

fn id_at(body: &[u8], number: u32) -> String {
    String::from_utf8(fields(body).map_while(Result::ok).find(|f| f.number == number).unwrap().value.to_vec())
        .unwrap()
}

impl Pair {
    /// One of a few: a request may have that of another, whatever shard that went to.
    fn key(&mut self) -> [u8; 16] {
        [self.rng.below(12) as u8; 16]
    }

    fn rooms_step(&mut self, id: &str) {
        let (srv, mode) = (srv(id), MODES[self.rng.below(5) as usize]);
        let (room, team) = (self.rooms.pick(&mut self.rng), self.teams.pick(&mut self.rng));
        let to_random = |mode: &str| Writer::new().nested(1, role(id)).nested(2, Writer::new().str(1, mode));
        let one = |at: usize| Writer::new().str(1, &room[at]);
        let found = match self.rng.below(14) {
            0 | 1 => self.ask(&srv, Scope::Server, Method::ROLE_JOIN_RANDOM_ROOM, |_| to_mode(id, mode)),
            2 => {
                let key = self.key();
                let body = |_| to_mode(id, mode).bytes(REQUEST_KEY_FIELD, &key);
                self.ask(&srv, Scope::Server, Method::ROLE_CREATE_ROOM, body)
            }
            3 => self.ask(&srv, Scope::Server, Method::ROLE_JOIN_RANDOM_ROOM, |_| to_random(mode).u64(3, 3)),
            4 | 5 => self.ask(&srv, Scope::Server, Method::ROLE_JOIN_ROOM, |at| to_room(id, &room[at])),
            6 | 7 => self.ask(&srv, Scope::Server, Method::ROLE_LEAVE_ROOM, |at| {
                Writer::new().str(1, id).str(2, &room[at])
            }),
            8 => self.ask(&srv, Scope::Server, Method::CLAIM_SEAT, |at| one(at).str(2, id)),
            9 => {
                let join = |at: usize| Writer::new().str(1, &team[at]).nested(2, Writer::new().str(1, mode));
                self.ask(&srv, Scope::Server, Method::TEAM_JOIN_RANDOM_ROOM, join)
            }
            10 => self.ask(&srv, Scope::Server, Method::TEAM_JOIN_ROOM, |at| {
                Writer::new().str(1, &team[at]).str(2, &room[at])
            }),
            11 => {
                let join = |at: usize| Writer::new().str(1, &team[at]).nested(2, Writer::new().str(1, mode));
                self.ask(&srv, Scope::Server, Method::TEAM_CREATE_ROOM, join)
            }
            12 => {
                self.ask(&srv, Scope::Trusted, Method::SET_ROOM_DATA, |at| one(at).str(2, "k").str(3, "7"));
                self.ask(&srv, Scope::Server, Method::GET_ROOM_INFO, one)
            }
            _ => {
                self.ask(&srv, Scope::Trusted, Method::DELETE_ROOM, one);
                None
            }
        };
        if let Some(answers) = found {
            self.rooms.add(answers.map(|answer| id_in(&answer)));
        }
    }

    fn teams_step(&mut self, id: &str) {
        let (srv, known) = (srv(id), self.teams.pick(&mut self.rng));
        let one = |at: usize| Writer::new().str(1, &known[at]);
        match self.rng.below(6) {
            0 => {
                let body = |_| Writer::new().nested(1, member(id)).nested(2, team(3, ""));
                if let Some(answers) = self.ask(&srv, Scope::Server, Method::CREATE_TEAM, body) {
                    self.teams.add(answers.map(|answer| id_in(&answer)));
                }
            }
            1 | 2 => {
                let body = |at: usize| Writer::new().nested(1, member(id)).str(2, &known[at]);
                self.ask(&srv, Scope::Server, Method::JOIN_TEAM, body);
            }
            3 => drop(self.ask(&srv, Scope::Server, Method::LEAVE_TEAM, |at| {
                Writer::new().str(1, id).str(2, &known[at])
            })),
            4 => drop(self.ask(&srv, Scope::Trusted, Method::CHANGE_TEAM_LEADER, |at| one(at).str(2, id))),
            _ => {
                let key = self.key();
                let set = |at: usize| one(at).str(2, "k").str(3, "7").bytes(REQUEST_KEY_FIELD, &key);
                self.ask(&srv, Scope::Trusted, Method::SET_TEAM_DATA, set);
                self.ask(&srv, Scope::Server, Method::GET_TEAM_INFO, one);
            }
        }
    }

    fn tickets_step(&mut self, id: &str) {
        let (srv, name) = (srv(id), MODES[self.rng.below(4) as usize]);
        let (known, team) = (self.tickets.pick(&mut self.rng), self.teams.pick(&mut self.rng));
        let (room, backfill) = (self.rooms.pick(&mut self.rng), self.backfills.pick(&mut self.rng));
        let one = |at: usize| Writer::new().str(1, &known[at]);
        let found = match self.rng.below(14) {
            0..=4 => {
                // One that comes later waits less.
                self.pass(1);
                let level = level(id).to_string();
                let body = |_| Writer::new().str(1, name).nested(2, player(id, &[("level", &level)]));
                self.ask(&srv, Scope::Server, Method::CREATE_TICKET, body)
            }
            5 => {
                self.pass(1);
                self.ask(&srv, Scope::Trusted, Method::CREATE_TICKET, |at| {
                    Writer::new().str(1, name).str(3, &team[at])
                })
            }
            6 => self.ask(&srv, Scope::Server, Method::CANCEL_TICKET, one),
            7 => self.ask(&srv, Scope::Server, Method::GET_TICKET, one),
            8 => {
                self.pass(1);
                // Nobody else takes the places: a match that does not fit is noticed within the tick on one shard, and after
                // it on several.
                self.ask(&srv, Scope::Trusted, Method::SET_ROOM_FLAGS, |at| {
                    Writer::new().str(1, &room[at]).u64(3, 1)
                });
                let scope = if self.rng.chance(0.5) { Scope::Trusted } else { Scope::Server };
                let open = Writer::new().str(1, "side1").u64(2, 1 + self.rng.below(2));
                let queue = if self.rng.chance(0.9) { name } else { "none" };
                let body = |at: usize| Writer::new().str(1, &room[at]).str(2, queue).nested(3, open.clone());
                if let Some(answers) = self.ask(&srv, scope, Method::START_BACKFILL, body) {
                    self.backfills.add(answers.map(|answer| id_at(&answer, 1)));
                }
                None
            }
            9 | 12 | 13 => {
                let of = |at: usize| Writer::new().str(1, &backfill[at]);
                match self.rng.below(8) {
                    0 | 1 => self.ask(&srv, Scope::Trusted, Method::STOP_BACKFILL, of),
                    2..=4 => {
                        let open = Writer::new().str(1, "side2").u64(2, 1);
                        let rev = 1 + self.rng.below(2);
                        self.ask(&srv, Scope::Trusted, Method::UPDATE_BACKFILL, |at| {
                            of(at).u64(2, rev).nested(3, open.clone())
                        })
                    }
                    _ => self.ask(&srv, Scope::Trusted, Method::ACK_BACKFILL, of),
                };
                None
            }
            10 => {
                let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
                let (a, b) = (format!("r{}", self.rng.below(ROLES)), format!("r{}", self.rng.below(ROLES)));
                let body = |at: usize| {
                    Writer::new()
                        .str(2, &room[at])
                        .nested(3, side(&a, 1))
                        .nested(3, side(&b, 2))
                        .str(6, "other")
                };
                self.ask(&srv, Scope::Trusted, Method::REPORT_RESULT, body);
                for pool in ["ladder", "other", "none"] {
                    self.ask(&srv, Scope::Server, Method::GET_RATINGS, |_| {
                        Writer::new().str(1, pool).str(2, &a).str(2, &b)
                    });
                }
                None
            }
            _ => {
                self.ask(&srv, Scope::Trusted, Method::LIST_TICKETS, |_| Writer::new().str(1, id));
                self.ask(&srv, Scope::Trusted, Method::LIST_TICKETS, |_| Writer::new().str(2, name));
                self.ask(&srv, Scope::Server, Method::GET_QUEUE_STATS, |_| Writer::new().str(1, name));
                None
            }
        };
        if let Some(answers) = found {
            self.tickets.add(answers.map(|answer| id_in(&answer)));
        }
    }

    fn lists_step(&mut self) {
        let rooms: Vec<[String; 2]> = (0..4).map(|_| self.rooms.pick(&mut self.rng)).collect();
        self.ask("s0", Scope::Server, Method::GET_ROOM_INFOS, |at| {
            rooms.iter().fold(Writer::new(), |body, room| body.str(1, &room[at]))
        });
        let limit = 1 + self.rng.below(3);
        self.ask("s0", Scope::Server, Method::LIST_ROOMS, |_| {
            MODES.iter().fold(Writer::new().u64(4, limit), |body, mode| body.str(1, mode))
        });
        for mode in MODES {
            self.ask("s0", Scope::Server, Method::GET_ROOM_LIST, |_| Writer::new().str(1, mode));
        }
        self.ask("s0", Scope::Server, Method::LIST_QUEUES, |_| Writer::new());
        self.list_mine();
    }

    /// Matches that were found: their rooms, from what players see of their tickets.
    fn look_for_matches(&mut self) {
        for ticket in self.tickets.0.clone() {
            let body = |at: usize| Writer::new().str(1, &ticket[at]);
            let Some(answers) = self.ask("s0", Scope::Trusted, Method::GET_TICKET, body) else { continue };
            let shown = answers.map(|answer| world::shown(&answer));
            if !shown[0].room.is_empty() {
                self.rooms.add([0, 1].map(|at| shown[at].room.clone()));
                self.matches.add([0, 1].map(|at| shown[at].matched.clone()));
            }
        }
        let found = self.matches.pick(&mut self.rng);
        let (a, b) = (format!("r{}", self.rng.below(ROLES)), format!("r{}", self.rng.below(ROLES)));
        let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
        self.ask("s0", Scope::Trusted, Method::REPORT_RESULT, |at| {
            Writer::new().str(1, &found[at]).nested(3, side(&a, 1)).nested(3, side(&b, 2))
        });
    }
}

fn run(shards: u16) {
    let mut pair = Pair {
        worlds: [World::new(config()), World::of_shards(config(), shards)],
        rng: Rng::new(5 + u64::from(shards)),
        rooms: Known::default(),
        teams: Known::default(),
        tickets: Known::default(),
        matches: Known::default(),
        backfills: Known::default(),
        statuses: std::collections::BTreeMap::new(),
    };
    for server in 0..SERVERS {
        pair.worlds.iter_mut().for_each(|world| world.session(&format!("s{server}"), true));
    }
    let rated = r#", "rating": {"pool": "ladder"}"#;
    for (name, more) in
        [("duel", rated), ("rumble", r#", "backfill": {"ack_s": 6}"#), ("brawl", rated), ("2v2", "")]
    {
        let json = queue(name, more);
        pair.ask("s0", Scope::Admin, Method::PUT_QUEUE, |_| Writer::new().str(1, &json)).expect("a queue");
    }
    for step in 0..STEPS {
        let id = format!("r{}", pair.rng.below(ROLES));
        match pair.rng.below(10) {
            0..=3 => pair.rooms_step(&id),
            4 => pair.teams_step(&id),
            5..=7 => pair.tickets_step(&id),
            8 if step % 5 == 0 => pair.lists_step(),
            8 => pair.look_for_matches(),
            _ => {
                let ms = pair.rng.below(900);
                pair.pass(ms);
            }
        }
    }
    let seen = |method, status| pair.statuses.get(&(method, status)).copied().unwrap_or(0);
    for (method, status) in [
        (Method::ROLE_JOIN_RANDOM_ROOM, Status::AlreadyInRoom),
        (Method::ROLE_JOIN_ROOM, Status::RoomFull),
        (Method::CLAIM_SEAT, Status::Ok),
        (Method::TEAM_JOIN_RANDOM_ROOM, Status::Ok),
        (Method::TEAM_JOIN_RANDOM_ROOM, Status::AlreadyInRoom),
        (Method::TEAM_JOIN_ROOM, Status::Ok),
        (Method::JOIN_TEAM, Status::AlreadyInTeam),
        (Method::CREATE_TICKET, Status::Ok),
        (Method::CREATE_TICKET, Status::AlreadyInRoom),
        (Method::CREATE_TICKET, Status::AlreadyInQueue),
        (Method::CREATE_TICKET, Status::Overloaded),
        (Method::REPORT_RESULT, Status::Ok),
        (Method::GET_RATINGS, Status::Ok),
        (Method::GET_RATINGS, Status::NotFound),
        (Method::START_BACKFILL, Status::Ok),
        (Method::START_BACKFILL, Status::Invalid),
        (Method::START_BACKFILL, Status::Forbidden),
        (Method::UPDATE_BACKFILL, Status::Ok),
        (Method::ACK_BACKFILL, Status::Ok),
        (Method::ACK_BACKFILL, Status::NotFound),
        (Method::STOP_BACKFILL, Status::Ok),
    ] {
        assert!(seen(method, status) > 1, "{method} {status:?}: {:?}", pair.statuses);
    }
    pair.ask("s0", Scope::Admin, Method::DRAIN, |_| Writer::new());
    pair.ask("s1", Scope::Server, Method::ROLE_CREATE_ROOM, |_| to_mode("x", "2v2"));
    assert_eq!(seen_draining(&pair), 1);
}

/// The matcher takes as many queues as one, however they spread over its shards.
#[test]
fn queues_are_counted_over_all_shards() {
    for shards in [1, 3] {
        let mut world = World::of_shards(Config::default(), shards);
        let rules = |name: &str, count| {
            format!(
                r#"{{"name": "{name}", "sides": [{{"name": "a", "count": {count}, "min": 1, "max": 1}}]}}"#
            )
        };
        for queue in 0..1_024 {
            assert_eq!(world.put_queue(&rules(&format!("q{queue}"), 2)).0, Status::Ok, "{queue}");
        }
        for queue in 1_024..1_030 {
            assert_eq!(world.put_queue(&rules(&format!("q{queue}"), 2)).0, Status::TooLarge, "{queue}");
        }
        assert_eq!(world.put_queue(&rules("q7", 3)).0, Status::Ok, "one that is there may change");
    }
}

fn seen_draining(pair: &Pair) -> u32 {
    pair.statuses.get(&(Method::ROLE_CREATE_ROOM, Status::Draining)).copied().unwrap_or(0)
}

#[test]
fn two_shards_answer_as_one() {
    run(2);
}

#[test]
fn three_shards_answer_as_one() {
    run(3);
}

#[test]
fn five_shards_answer_as_one() {
    run(5);
}
