//! A matcher of several shards whose mail takes its time: commands, deliveries, waits and restarts in any order.

use std::collections::BTreeSet;

use throng_matcher::record::Input;
use throng_matcher::{Config, Handled, ModeRules, Notices, OnFull, QueueRules, Route, Scope, Shards, route};
use throng_wire::matcher::{Method, REQUEST_KEY_FIELD, Reader, Writer};

const START: u64 = 1_700_000_000_000;
const ROLES: u8 = 6;
/// The players of a queue's match.
const CAPACITY: u64 = 4;
const TICKETS_MAX: usize = 3;
const NAMES: [&str; 3] = ["duel", "rumble", "brawl"];
/// Steps of one run.
const STEPS_MAX: usize = 400;

fn config() -> Config {
    let mode = ModeRules { capacity: CAPACITY as u32, on_full: OnFull::Keep, ..ModeRules::default() };
    let queue = |name: &&str| {
        let sides = r#"[{"name": "side", "count": 2, "min": 1, "max": 2}]"#;
        let text =
            format!(r#"{{"name": "{name}", "sides": {sides}, "backfill": {{"ack_s": 2}}, "seat_ttl_s": 3}}"#);
        QueueRules::parse(text.as_bytes()).expect("a rule set")
    };
    Config {
        modes: NAMES.iter().map(|name| ((*name).to_owned(), mode.clone())).collect(),
        queues: NAMES.iter().map(queue).collect(),
        tickets_max: TICKETS_MAX,
        ..Config::default()
    }
}

struct Run {
    shards: Shards,
    now: u64,
    waiting: BTreeSet<(u16, u64)>,
    /// Ids of whatever was answered, to be named by later commands.
    known: Vec<String>,
}

impl Run {
    fn apply(&mut self, shard: u16, input: Input<'_>) {
        let (mut answer, mut notices) = (Vec::new(), Notices::default());
        let handled = self.shards.apply(shard, self.now, input, &mut answer, &mut notices);
        match handled {
            Some(Handled::Waits(number)) => {
                assert!(self.waiting.insert((shard, number)), "two requests have one number");
            }
            Some(Handled::Done(_)) => self.learn(&answer),
            None => {}
        }
        while let Some(answered) = self.shards.shard_mut(shard).poll_answered() {
            assert!(self.waiting.remove(&(shard, answered.request)), "answered twice");
            self.learn(&answered.body);
        }
    }

    /// Ids stand first in answers, or first in the object that does.
    fn learn(&mut self, answer: &[u8]) {
        let Ok(answer) = Reader::new(answer) else { return };
        let within = answer.nested(1).ok().and_then(|object| object.str(1).ok().map(str::to_owned));
        let first = within.or_else(|| answer.str(1).ok().map(str::to_owned));
        self.known.extend(first.filter(|id| matches!(id.len(), 24 | 32)));
    }

    /// The id that a byte names, the newest by the lowest.
    fn pick(&self, byte: u8) -> &str {
        self.known.iter().rev().nth(usize::from(byte & 15)).map_or("", String::as_str)
    }

    fn ask(&mut self, kind: u8, who: u8, what: u8) {
        let role = format!("r{}", who % ROLES);
        let name = NAMES[usize::from(what) % NAMES.len()];
        let (known, other) = (self.pick(what).to_owned(), self.pick(who).to_owned());
        let info = || Writer::new().str(1, &role);
        let named = |id: &str| Writer::new().str(1, id);
        let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
        let (method, body) = match kind {
            0 => (Method::ROLE_JOIN_RANDOM_ROOM, Writer::new().nested(1, info()).nested(2, named(name))),
            1 => (Method::ROLE_CREATE_ROOM, Writer::new().nested(1, info()).nested(2, named(name))),
            2 => (Method::ROLE_JOIN_ROOM, Writer::new().nested(1, info()).str(2, &known)),
            3 => (Method::ROLE_LEAVE_ROOM, Writer::new().str(1, &role).str(2, &known)),
            4 => (Method::DELETE_ROOM, named(&known)),
            5 => (Method::CREATE_TEAM, Writer::new().nested(1, info()).nested(2, Writer::new().u64(3, 6))),
            6 => (Method::JOIN_TEAM, Writer::new().nested(1, info()).str(2, &known)),
            7 => (Method::LEAVE_TEAM, Writer::new().str(1, &role).str(2, &known)),
            8 => (Method::TEAM_JOIN_RANDOM_ROOM, named(&known).nested(2, named(name))),
            9 | 10 => (Method::CREATE_TICKET, named(name).nested(2, info())),
            11 => (Method::CANCEL_TICKET, named(&known)),
            12 => {
                let open = Writer::new().str(1, "side1").u64(2, 1);
                (Method::START_BACKFILL, named(&other).str(2, name).nested(3, open))
            }
            13 => (Method::ACK_BACKFILL, named(&known)),
            14 => (Method::STOP_BACKFILL, named(&known)),
            15 => (Method::CLAIM_SEAT, named(&known).str(2, &role)),
            _ => {
                let sides = Writer::new().str(2, &known).nested(3, side(&role, 1)).nested(3, side("r9", 2));
                (Method::REPORT_RESULT, sides.str(6, "ladder"))
            }
        };
        // A few share their keys.
        let body = if who & 0xE0 == 0xE0 { body.bytes(REQUEST_KEY_FIELD, &[what & 3; 16]) } else { body };
        let body = body.into_bytes();
        let Route::One(shard) = route(method, &body, self.shards.count()) else { return };
        let input = Input::Request { srv: "s", scope: Scope::Trusted, method, body: &body };
        self.apply(shard, input);
    }

    fn deliver(&mut self, which: u8) -> bool {
        let pending: Vec<(u16, u16)> = self.shards.pending().collect();
        let Some((from, to)) = pending.get(usize::from(which) % pending.len().max(1)).copied() else {
            return false;
        };
        self.apply(to, Input::Mail { from: from as u8 });
        true
    }

    fn wake(&mut self) {
        for shard in 0..self.shards.count() {
            for _ in 0..64 {
                if self.shards.shard(shard).next_timeout().is_none_or(|at| at > self.now) {
                    break;
                }
                self.apply(shard, Input::Timeout);
            }
        }
    }

    /// The state goes through a file; what was on its way arrives.
    fn restart(&mut self) {
        let bytes = self.shards.snapshot();
        let again = Shards::restore(&config(), &bytes).expect("its own snapshot");
        assert_eq!(again.digest(), self.shards.digest());
        self.shards = again;
    }

    /// All mail arrives: nothing is claimed, everybody has an answer, rooms and backfills know each other.
    fn settle(&mut self) {
        while self.deliver(0) {}
        let (mut tied, mut asked) = (Vec::new(), Vec::new());
        for shard in 0..self.shards.count() {
            let shard = self.shards.shard(shard);
            assert_eq!((shard.open_claims(), shard.claimed_here()), (0, 0), "a claim dangles");
            tied.extend(shard.backfills_of_rooms());
            asked.extend(shard.rooms_of_backfills());
        }
        assert!(self.waiting.is_empty(), "a request has no answer");
        tied.sort();
        asked.sort();
        assert_eq!(tied, asked);
    }

    /// Nobody is in two rooms or teams, no room holds too many, no more tickets wait than may.
    fn check(&mut self) {
        let (mut in_rooms, mut in_teams, mut tickets) = (BTreeSet::new(), BTreeSet::new(), 0);
        for shard in 0..self.shards.count() {
            let mut answer = Vec::new();
            let (scope, method) = (Scope::Server, Method::LIST_MINE);
            let input = Input::Request { srv: "s", scope, method, body: &[] };
            self.shards.apply(shard, 0, input, &mut answer, &mut Notices::default());
            let mine = Reader::new(&answer).expect("an answer");
            let once = |role: &[u8], seen: &mut BTreeSet<String>| {
                let id = Reader::new(role).and_then(|role| role.str(1).map(str::to_owned)).expect("a role");
                assert!(seen.insert(id.clone()), "{id} is in two");
            };
            // Deleting rooms have let their members go.
            for room in
                mine.all(1).map(|room| Reader::new(room).expect("a room")).filter(|room| room.u64(7) == 0)
            {
                assert!(room.all(4).count() as u64 + room.all(11).count() as u64 <= CAPACITY);
                room.all(4).for_each(|role| once(role, &mut in_rooms));
            }
            for team in mine.all(2).map(|team| Reader::new(team).expect("a team")) {
                team.all(5).for_each(|role| once(role, &mut in_teams));
            }
            tickets += self.shards.shard(shard).counts().tickets;
        }
        assert!(tickets <= TICKETS_MAX, "{tickets} tickets");
    }
}

/// How many shards, then steps of three bytes: what is done, by whom, about what.
pub fn matcher_shards(bytes: &[u8]) {
    let Some((count, steps)) = bytes.split_first() else { return };
    let shards = Shards::new(&config(), [1; 32], START, u16::from(count & 3) + 1);
    let mut run = Run { shards, now: START, waiting: BTreeSet::new(), known: Vec::new() };
    for shard in 0..run.shards.count() {
        run.apply(shard, Input::Session { srv: "s", up: true });
    }
    for step in steps.chunks_exact(3).take(STEPS_MAX) {
        match step[0] & 31 {
            kind @ 0..=16 => run.ask(kind, step[1], step[2]),
            17..=25 => drop(run.deliver(step[1])),
            26..=28 => {
                run.now += u64::from(step[1]) * 4;
                run.wake();
            }
            29 => {
                // Longer than a claim lives.
                run.now += 5_000;
                run.wake();
            }
            30 => run.restart(),
            _ => run.settle(),
        }
        run.check();
    }
    run.settle();
    run.check();
}
