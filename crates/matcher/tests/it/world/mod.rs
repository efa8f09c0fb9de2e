//! A matcher and short ways to ask it.
#![allow(dead_code, reason = "each test file uses its part")]

use throng_matcher::record::Input;
use throng_matcher::{Config, Handled, Matcher, Notices, Scope, Verdict, WallMs};
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
    pub(crate) matcher: Matcher,
    pub(crate) now: u64,
    pub(crate) heard: Vec<Heard>,
    notices: Notices,
    inputs: usize,
}

const CHECKED_OBJECTS_MAX: usize = 1_000;
pub(crate) const START: u64 = 1_700_000_000_000;

impl World {
    pub(crate) fn new(config: Config) -> World {
        let matcher = Matcher::new(config, [9; 32], WallMs(START));
        World { matcher, now: START, heard: Vec::new(), notices: Notices::default(), inputs: 0 }
    }

    pub(crate) fn ask(&mut self, srv: &str, method: u16, body: Writer) -> (Status, Vec<u8>) {
        self.ask_as(srv, Scope::Server, method, body)
    }

    pub(crate) fn ask_as(&mut self, srv: &str, scope: Scope, method: u16, body: Writer) -> (Status, Vec<u8>) {
        let (body, mut answer) = (body.into_bytes(), Vec::new());
        let input = Input::Request { srv, scope, method, body: &body };
        match self.apply(input, &mut answer).expect("a request") {
            Handled::Done(status) => (status, answer),
            Handled::Waits(number) => panic!("request {number} waits for a policy"),
        }
    }

    fn apply(&mut self, input: Input<'_>, answer: &mut Vec<u8>) -> Option<Handled> {
        let handled = self.matcher.apply(WallMs(self.now), input, answer, &mut self.notices);
        self.check();
        self.listen();
        handled
    }

    /// Checks the matcher's invariants after every input up to 1,000 objects, beyond that after
    /// every 1,000th.
    fn check(&mut self) {
        self.inputs += 1;
        let counts = self.matcher.counts();
        let tickets = counts.tickets + counts.ended_tickets;
        let objects = counts.rooms + counts.teams + counts.players + tickets + counts.matches;
        if objects <= CHECKED_OBJECTS_MAX || self.inputs.is_multiple_of(CHECKED_OBJECTS_MAX) {
            self.matcher.check_invariants().unwrap();
        }
    }

    /// A request that may have to wait for a policy.
    pub(crate) fn begin(&mut self, method: u16, body: Writer) -> Handled {
        let body = body.into_bytes();
        let input = Input::Request { srv: "s", scope: Scope::Admin, method, body: &body };
        self.apply(input, &mut Vec::new()).expect("a request")
    }

    /// Answers of requests that had waited.
    pub(crate) fn take_answered(&mut self) -> Vec<Status> {
        std::iter::from_fn(|| self.matcher.poll_answered()).map(|answered| answered.status).collect()
    }

    pub(crate) fn verdict(&mut self, id: u64, verdict: Option<&Verdict>) {
        let verdict = verdict.map(Verdict::to_bytes);
        self.apply(Input::Verdict { id, verdict: verdict.as_deref() }, &mut Vec::new());
    }

    /// The answer of a request that must succeed.
    pub(crate) fn ok(&mut self, srv: &str, method: u16, body: Writer) -> Vec<u8> {
        let (status, answer) = self.ask(srv, method, body);
        let why = Reader::new(&answer).ok().and_then(|a| a.str(1).ok().map(str::to_owned));
        assert_eq!(status, Status::Ok, "method {method}: {why:?}");
        answer
    }

    pub(crate) fn session(&mut self, srv: &str, up: bool) {
        self.apply(Input::Session { srv, up }, &mut Vec::new());
    }

    /// Restarts the matcher.
    pub(crate) fn recover(&mut self) {
        self.apply(Input::Recovered, &mut Vec::new());
    }

    /// Lets time pass; everything that is due happens on time.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        while let Some(at) = self.matcher.next_timeout().filter(|at| *at <= WallMs(end)) {
            self.now = self.now.max(at.0);
            self.apply(Input::Timeout, &mut Vec::new());
        }
        self.now = end;
    }

    /// The same with one more input at the end, whether anything is due or not.
    pub(crate) fn pass_to_input(&mut self, ms: u64) {
        self.pass(ms);
        self.apply(Input::Timeout, &mut Vec::new());
    }

    pub(crate) fn take_heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard)
    }

    fn listen(&mut self) {
        for notice in self.notices.iter() {
            let server = self.matcher.server_name(notice.server).unwrap_or(b"?");
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

/// A snapshot whose state was changed, with the hash that it has now.
pub(crate) fn rehashed(snapshot: &[u8]) -> Vec<u8> {
    let end = snapshot.iter().position(|byte| *byte == b'\n').unwrap();
    let (line, state) = (std::str::from_utf8(&snapshot[..end]).unwrap(), &snapshot[end + 1..]);
    let (line, _) = line.rsplit_once(' ').unwrap();
    [format!("{line} {}\n", blake3::hash(state).to_hex()).as_bytes(), state].concat()
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
