//! A matcher and short ways to ask it.
#![allow(dead_code, reason = "each test file uses its part")]

use throng_matcher::record::Input;
use throng_matcher::{
    Answers, Config, Counts, Handled, Matcher, Notices, Route, Scope, Shards, Verdict, route,
};
use throng_wire::fields;
use throng_wire::matcher::{Method, Reader, Status, Writer};

/// An event as one server got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) server: String,
    pub(crate) roles: Vec<String>,
    pub(crate) kind: u32,
    pub(crate) body: Vec<u8>,
}

impl Heard {
    pub(crate) fn str(&self, number: u32) -> String {
        Reader::new(&self.body).unwrap().str(number).unwrap().to_owned()
    }

    pub(crate) fn u64(&self, number: u32) -> u64 {
        Reader::new(&self.body).unwrap().u64(number)
    }
}

pub(crate) struct World {
    pub(crate) shards: Shards,
    pub(crate) now: u64,
    pub(crate) heard: Vec<Heard>,
    notices: Notices,
}

pub(crate) const START: u64 = 1_700_000_000_000;

impl World {
    pub(crate) fn new(config: Config) -> World {
        World::of_shards(config, 1)
    }

    /// A matcher of several shards, between which mail takes no time.
    pub(crate) fn of_shards(config: Config, count: u16) -> World {
        let shards = Shards::new(&config, [9; 32], START, count);
        World { shards, now: START, heard: Vec::new(), notices: Notices::default() }
    }

    /// The first shard.
    pub(crate) fn matcher(&self) -> &Matcher {
        self.shards.shard(0)
    }

    pub(crate) fn matcher_mut(&mut self) -> &mut Matcher {
        self.shards.shard_mut(0)
    }

    /// Objects of all shards.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        (0..self.shards.count()).for_each(|shard| counts.add(&self.shards.shard(shard).counts()));
        counts
    }

    pub(crate) fn ask(&mut self, srv: &str, method: u16, body: Writer) -> (Status, Vec<u8>) {
        self.ask_as(srv, Scope::Server, method, body)
    }

    pub(crate) fn ask_as(&mut self, srv: &str, scope: Scope, method: u16, body: Writer) -> (Status, Vec<u8>) {
        let body = body.into_bytes();
        let count = self.shards.count();
        match route(method, &body, count) {
            Route::One(shard) => self.ask_shard(shard, srv, scope, method, &body),
            Route::All => {
                let mut answers = Answers::new(method, &body, count);
                let mut all = None;
                for shard in 0..count {
                    let (status, answer) = self.ask_shard(shard, srv, scope, method, &body);
                    all = answers.add(shard, status, answer);
                }
                all.expect("every shard has answered")
            }
        }
    }

    fn ask_shard(
        &mut self,
        shard: u16,
        srv: &str,
        scope: Scope,
        method: u16,
        body: &[u8],
    ) -> (Status, Vec<u8>) {
        let mut answer = Vec::new();
        let input = Input::Request { srv, scope, method, body };
        let handled = self.apply(shard, input, &mut answer).expect("a request");
        self.deliver();
        match handled {
            Handled::Done(status) => (status, answer),
            Handled::Waits(number) => {
                let answered = self.shards.shard_mut(shard).poll_answered();
                let answered = answered.expect("no policy is asked, and nobody else claims");
                assert_eq!(answered.request, number);
                (answered.status, answered.body)
            }
        }
    }

    fn apply(&mut self, shard: u16, input: Input<'_>, answer: &mut Vec<u8>) -> Option<Handled> {
        let handled = self.shards.apply(shard, self.now, input, answer, &mut self.notices);
        self.listen(shard);
        handled
    }

    /// Mail between shards arrives until there is none.
    fn deliver(&mut self) {
        loop {
            let next = self.shards.pending().next();
            let Some((from, to)) = next else { return };
            self.apply(to, Input::Mail { from: from as u8 }, &mut Vec::new());
        }
    }

    /// Nothing is claimed any more; `talks`: shards have spoken to each other.
    pub(crate) fn check_idle(&self, talks: bool) {
        let all = || (0..self.shards.count()).map(|shard| self.shards.shard(shard));
        assert!(all().all(|shard| (shard.open_claims(), shard.claimed_here()) == (0, 0)));
        let mail: u64 = all().map(|shard| shard.stats().mail_sent).sum();
        assert_eq!(mail > 100, talks, "{mail} letters");
    }

    /// A request that may have to wait for a policy. On several shards it waits for others, too.
    pub(crate) fn begin(&mut self, method: u16, body: Writer) -> Handled {
        let body = body.into_bytes();
        let input = Input::Request { srv: "s", scope: Scope::Admin, method, body: &body };
        let Route::One(shard) = route(method, &body, self.shards.count()) else {
            panic!("method {method} goes to all shards");
        };
        let handled = self.apply(shard, input, &mut Vec::new()).expect("a request");
        self.deliver();
        handled
    }

    /// Answers of requests that had waited, of all shards.
    pub(crate) fn take_answered(&mut self) -> Vec<Status> {
        let mut answered = Vec::new();
        for shard in 0..self.shards.count() {
            let shard = self.shards.shard_mut(shard);
            answered.extend(std::iter::from_fn(|| shard.poll_answered()).map(|answered| answered.status));
        }
        answered
    }

    pub(crate) fn verdict(&mut self, id: u64, verdict: Option<&Verdict>) {
        self.verdict_on(0, id, verdict);
    }

    pub(crate) fn verdict_on(&mut self, shard: u16, id: u64, verdict: Option<&Verdict>) {
        let verdict = verdict.map(Verdict::to_bytes);
        self.apply(shard, Input::Verdict { id, verdict: verdict.as_deref() }, &mut Vec::new());
        self.deliver();
    }

    /// The answer of a request that must succeed.
    pub(crate) fn ok(&mut self, srv: &str, method: u16, body: Writer) -> Vec<u8> {
        let (status, answer) = self.ask(srv, method, body);
        let why = Reader::new(&answer).ok().and_then(|a| a.str(1).ok().map(str::to_owned));
        assert_eq!(status, Status::Ok, "method {method}: {why:?}");
        answer
    }

    pub(crate) fn session(&mut self, srv: &str, up: bool) {
        for shard in 0..self.shards.count() {
            self.apply(shard, Input::Session { srv, up }, &mut Vec::new());
        }
        self.deliver();
    }

    /// What a restart does.
    pub(crate) fn recover(&mut self) {
        (0..self.shards.count()).for_each(|shard| {
            self.apply(shard, Input::Recovered, &mut Vec::new());
        });
        self.deliver();
    }

    /// Lets time pass on every shard, whether anything is due there or not.
    pub(crate) fn pass_everywhere(&mut self, ms: u64) {
        self.pass(ms);
        for shard in 0..self.shards.count() {
            self.apply(shard, Input::Timeout, &mut Vec::new());
        }
        self.deliver();
    }

    /// Lets time pass; everything that is due happens on time.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        let due = |shards: &Shards| {
            let next = |shard| shards.shard(shard).next_timeout().map(|at| (at, shard));
            (0..shards.count()).filter_map(next).min().filter(|(at, _)| *at <= end)
        };
        while let Some((at, shard)) = due(&self.shards) {
            self.now = self.now.max(at);
            self.apply(shard, Input::Timeout, &mut Vec::new());
            self.deliver();
        }
        self.now = end;
    }

    pub(crate) fn take_heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard)
    }

    fn listen(&mut self, shard: u16) {
        for notice in self.notices.iter() {
            let server = self.shards.shard(shard).server_name(notice.server).unwrap_or(b"?");
            let entry = fields(notice.entry).next().unwrap().unwrap();
            assert_eq!(entry.number, 1);
            let mut heard = Heard {
                server: String::from_utf8(server.to_vec()).unwrap(),
                roles: Vec::new(),
                kind: 0,
                body: Vec::new(),
            };
            for field in fields(entry.value).map(Result::unwrap) {
                if field.number == 1 {
                    heard.roles.push(field.str().unwrap().to_owned());
                } else {
                    (heard.kind, heard.body) = (field.number, field.value.to_vec());
                }
            }
            self.heard.push(heard);
        }
        self.notices.clear();
    }
}

pub(crate) fn role(id: &str) -> Writer {
    Writer::new().str(1, id)
}

/// A request of a role about a mode.
pub(crate) fn to_mode(id: &str, mode: &str) -> Writer {
    Writer::new().nested(1, role(id)).nested(2, Writer::new().str(1, mode))
}

pub(crate) fn to_room(id: &str, room: &str) -> Writer {
    Writer::new().nested(1, role(id)).str(2, room)
}

pub(crate) fn team(max: i64, password: &str) -> Writer {
    let zigzag = (max << 1 ^ max >> 63) as u64;
    Writer::new().u64(3, zigzag).str(8, password)
}

/// Id of the room or team in an answer.
pub(crate) fn id_in(answer: &[u8]) -> String {
    Reader::new(answer).unwrap().nested(1).unwrap().str(1).unwrap().to_owned()
}

/// Roles of the room or team in an answer: field 4 of rooms, 5 of teams.
pub(crate) fn roles_in(answer: &[u8], number: u32) -> Vec<String> {
    let info = Reader::new(answer).unwrap().nested(1).unwrap();
    info.all(number).map(|role| Reader::new(role).unwrap().str(1).unwrap().to_owned()).collect()
}

impl World {
    pub(crate) fn create_team(&mut self, srv: &str, id: &str, max: i64, password: &str) -> String {
        let body = Writer::new().nested(1, role(id)).nested(2, team(max, password));
        id_in(&self.ok(srv, Method::CREATE_TEAM, body))
    }

    pub(crate) fn join_team(&mut self, srv: &str, id: &str, team: &str, password: &str) -> Status {
        self.ask(srv, Method::JOIN_TEAM, Writer::new().nested(1, role(id)).str(2, team).str(3, password)).0
    }

    pub(crate) fn join_random(&mut self, srv: &str, id: &str, mode: &str) -> String {
        id_in(&self.ok(srv, Method::ROLE_JOIN_RANDOM_ROOM, to_mode(id, mode)))
    }

    pub(crate) fn create_room(&mut self, srv: &str, id: &str, mode: &str) -> String {
        id_in(&self.ok(srv, Method::ROLE_CREATE_ROOM, to_mode(id, mode)))
    }

    pub(crate) fn room(&mut self, room: &str) -> (Status, Vec<u8>) {
        self.ask("", Method::GET_ROOM_INFO, Writer::new().str(1, room))
    }
}

/// A player of a ticket with attributes as JSON.
pub(crate) fn player(id: &str, attrs: &[(&str, &str)]) -> Writer {
    attrs.iter().fold(Writer::new().str(1, id), |player, (key, json)| {
        player.nested(3, Writer::new().str(1, key).str(2, json))
    })
}

/// A ticket as an answer or event shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) id: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) matched: String,
    pub(crate) room: String,
}

pub(crate) fn shown(answer: &[u8]) -> Shown {
    let ticket = Reader::new(answer).unwrap().nested(1).unwrap();
    let text = |number| ticket.str(number).unwrap().to_owned();
    Shown { id: text(1), status: text(8), reason: text(10), matched: text(11), room: text(12) }
}

impl World {
    pub(crate) fn put_queue(&mut self, json: &str) -> (Status, Vec<u8>) {
        self.ask_as("", Scope::Admin, Method::PUT_QUEUE, Writer::new().str(1, json))
    }

    pub(crate) fn try_ticket(&mut self, srv: &str, queue: &str, players: Vec<Writer>) -> (Status, Vec<u8>) {
        let body =
            players.into_iter().fold(Writer::new().str(1, queue), |body, player| body.nested(2, player));
        self.ask(srv, Method::CREATE_TICKET, body)
    }

    /// The id of a new ticket.
    pub(crate) fn ticket(&mut self, srv: &str, queue: &str, players: Vec<Writer>) -> String {
        let (status, answer) = self.try_ticket(srv, queue, players);
        let why = Reader::new(&answer).ok().and_then(|a| a.str(1).ok().map(str::to_owned));
        assert_eq!(status, Status::Ok, "{why:?}");
        shown(&answer).id
    }

    /// A ticket of one player with a skill.
    pub(crate) fn solo(&mut self, srv: &str, queue: &str, id: &str, skill: f64) -> String {
        let skill = skill.to_string();
        self.ticket(srv, queue, vec![player(id, &[("skill", &skill)])])
    }

    pub(crate) fn get_ticket(&mut self, id: &str) -> Shown {
        shown(&self.ok("", Method::GET_TICKET, Writer::new().str(1, id)))
    }

    pub(crate) fn cancel(&mut self, srv: &str, id: &str) -> Status {
        self.ask(srv, Method::CANCEL_TICKET, Writer::new().str(1, id)).0
    }

    /// The events of a kind that were heard since the last look.
    pub(crate) fn take_kind(&mut self, kind: u32) -> Vec<Heard> {
        self.take_heard().into_iter().filter(|heard| heard.kind == kind).collect()
    }
}
