//! Who may call what: every method with every scope.

use crate::world;

use throng_matcher::{Config, Scope};
use throng_wire::matcher::{Access, METHODS, Method, Reader, Status, Writer};
use world::{World, id_in, player, role, to_mode};

const RULES: &str = r#""sides": [{"name": "a", "min": 1, "max": 1}, {"name": "b", "min": 1, "max": 1}]"#;

/// A matcher in which server "own" has one of everything.
struct Scene {
    world: World,
    team: String,
    room: String,
    /// A room with a seat for "seated".
    seat: String,
    /// A ticket that searches.
    ticket: String,
    /// A proposal and the ticket of "p1" in it.
    proposed: (String, String),
    /// A match that waits for its server.
    waits: String,
    backfill: String,
}

impl Scene {
    fn new() -> Scene {
        let mut world = World::new(Config::default());
        for (name, more) in [
            ("duel", r#""accept": {"required": true}"#),
            ("hosted", r#""assign": "external", "allocator": "own""#),
            ("fill", r#""backfill": {}, "rating": {"pool": "pool"}"#),
        ] {
            let rules = format!(r#"{{"name": "{name}", {more}, {RULES}}}"#);
            let (status, answer) = world.put_queue(&rules);
            assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&answer));
        }
        world.session("own", true);
        let team = world.create_team("own", "leader", 4, "");
        assert_eq!(world.join_team("own", "second", &team, ""), Status::Ok);
        let room = world.create_room("own", "member", "3v3");
        let reserve = to_mode("seated", "5v5").u64(3, 60);
        let seat = id_in(&world.ok("own", Method::ROLE_JOIN_RANDOM_ROOM, reserve));
        let mut pair = |queue: &str, names: [&str; 2]| {
            let tickets = names.map(|name| world.ticket("own", queue, vec![player(name, &[])]));
            world.pass(250);
            world.get_ticket(&tickets[0])
        };
        let waits = pair("hosted", ["h1", "h2"]).room;
        let first = pair("duel", ["p1", "p2"]);
        let ticket = world.ticket("own", "duel", vec![player("waiter", &[])]);
        let started = world.ok("own", Method::START_BACKFILL, open(&room));
        let backfill = Reader::new(&started).unwrap().str(1).unwrap().to_owned();
        Scene { world, team, room, seat, ticket, proposed: (first.matched, first.id), waits, backfill }
    }

    /// What "own" may ask of a method, for its own roles where there are any.
    fn request(&mut self, method: u16) -> Writer {
        let Scene { team, room, seat, ticket, proposed, waits, backfill, world } = self;
        let one = |text: &str| Writer::new().str(1, text);
        let mode = Writer::new().str(1, "3v3");
        let at_home = |id: &str| role(id).str(2, "own");
        match method {
            Method::PING | Method::LIST_QUEUES | Method::DRAIN => Writer::new(),
            Method::MY_RPC_TEST => one("x"),
            Method::LIST_MINE => one("own"),
            Method::GET_ROLE => one("member"),
            Method::CREATE_TEAM => Writer::new().nested(1, at_home("new")).nested(2, world::team(4, "")),
            Method::JOIN_TEAM => Writer::new().nested(1, at_home("new")).str(2, team),
            Method::LEAVE_TEAM => one("second").str(2, team),
            Method::CHANGE_TEAM_LEADER => one(team).str(2, "second"),
            Method::SET_TEAM_DATA => one(team).str(2, "key").str(3, "1"),
            Method::BROADCAST_TEAM => one(team).str(2, "1"),
            Method::GET_TEAM_INFO | Method::DELETE_TEAM => one(team),
            Method::ROLE_JOIN_RANDOM_ROOM | Method::ROLE_CREATE_ROOM => {
                Writer::new().nested(1, at_home("new")).nested(2, mode)
            }
            Method::ROLE_JOIN_ROOM => Writer::new().nested(1, at_home("new")).str(2, room),
            Method::ROLE_LEAVE_ROOM => one("member").str(2, room),
            Method::TEAM_JOIN_RANDOM_ROOM | Method::TEAM_CREATE_ROOM => one(team).nested(2, mode),
            Method::TEAM_JOIN_ROOM => one(team).str(2, room),
            Method::BROADCAST_ROOM => one(room).str(2, "1"),
            Method::GET_ROOM_LIST | Method::LIST_ROOMS => one("3v3"),
            Method::SET_ROOM_DATA => one(room).str(2, "key").str(3, "1"),
            Method::UPDATE_ROOM_ROLE_DATA => {
                Writer::new().nested(1, one(room).str(2, "member").str(5, "tag"))
            }
            Method::GET_ROOM_INFOS
            | Method::DELETE_ROOM
            | Method::GET_ROOM_INFO
            | Method::GET_ROOM_HISTORY => one(room),
            Method::CLAIM_SEAT => one(seat).str(2, "seated"),
            Method::SET_ROOM_FLAGS => one(room).u64(2, 1),
            Method::CREATE_TICKET => one("duel").nested(2, player("new", &[]).str(2, "own")),
            Method::CANCEL_TICKET | Method::GET_TICKET | Method::EXPLAIN_TICKET => one(ticket),
            Method::LIST_TICKETS => one("waiter"),
            Method::ACCEPT_MATCH => one(&proposed.0).str(2, &proposed.1).str(3, "p1").u64(4, 1),
            Method::GET_QUEUE_STATS => one("duel"),
            Method::START_BACKFILL => {
                world.ok("own", Method::STOP_BACKFILL, one(backfill));
                open(room)
            }
            Method::UPDATE_BACKFILL => one(backfill).u64(2, 1).nested(3, Writer::new().str(1, "b").u64(2, 1)),
            Method::ACK_BACKFILL | Method::STOP_BACKFILL => one(backfill),
            Method::REPORT_RESULT => {
                let side = |id: &str, rank| Writer::new().str(1, id).u64(2, rank);
                Writer::new().str(2, room).nested(3, side("member", 1)).nested(3, side("x", 2)).str(6, "pool")
            }
            Method::GET_RATINGS => one("pool").str(2, "member"),
            Method::ASSIGN_MATCH => one(waits).str(2, "10.0.0.1:7777"),
            Method::PUT_QUEUE | Method::TRY_QUEUE => one(&format!(r#"{{"name": "new", {RULES}}}"#)),
            _ => panic!("method {method} has no request here"),
        }
    }
}

fn open(room: &str) -> Writer {
    Writer::new().str(1, room).str(2, "fill").nested(3, Writer::new().str(1, "a").u64(2, 1))
}

/// What a fresh scene answers to a method's request, of some server with some scope.
fn answered(method: &Method, srv: &str, scope: Scope) -> Status {
    let mut scene = Scene::new();
    let request = scene.request(method.number);
    let (status, answer) = scene.world.ask_as(srv, scope, method.number, request);
    if !matches!(status, Status::Ok | Status::Forbidden) {
        panic!("{}: {status:?}, {}", method.name, String::from_utf8_lossy(&answer));
    }
    status
}

#[test]
fn every_method_asks_for_the_scope_that_the_reference_names() {
    let callers =
        [("strange", Scope::Server), ("own", Scope::Server), ("strange", Scope::Trusted), ("", Scope::Admin)];
    for method in METHODS {
        let allowed = match method.access {
            Access::Any => [true, true, true, true],
            Access::Own => [false, true, true, true],
            Access::Trusted => [false, false, true, true],
            Access::Admin => [false, false, false, true],
        };
        let found = callers.map(|(srv, scope)| answered(method, srv, scope) == Status::Ok);
        assert_eq!(found, allowed, "{}", method.name);
    }
}

#[test]
fn without_an_allocator_only_trusted_callers_assign_matches() {
    for (scope, wanted) in [(Scope::Server, Status::Forbidden), (Scope::Trusted, Status::Ok)] {
        let mut world = World::new(Config::default());
        let (status, answer) =
            world.put_queue(&format!(r#"{{"name": "hosted", "assign": "external", {RULES}}}"#));
        assert_eq!(status, Status::Ok, "{}", String::from_utf8_lossy(&answer));
        let tickets = ["a", "b"].map(|name| world.ticket("own", "hosted", vec![player(name, &[])]));
        world.pass(250);
        let room = world.get_ticket(&tickets[0]).room;
        let assign = Writer::new().str(1, &room).str(2, "10.0.0.1:7777");
        assert_eq!(world.ask_as("", scope, Method::ASSIGN_MATCH, assign).0, wanted);
    }
}

#[test]
fn what_concerns_a_whole_queue_or_its_order_needs_a_trusted_caller() {
    for scope in [Scope::Server, Scope::Trusted] {
        let mut scene = Scene::new();
        let wanted = if scope == Scope::Server { Status::Forbidden } else { Status::Ok };
        let all = Writer::new().str(2, "duel");
        assert_eq!(scene.world.ask_as("own", scope, Method::LIST_TICKETS, all).0, wanted);
        let first = Writer::new().str(1, "duel").nested(2, player("new", &[])).u64(5, 2);
        assert_eq!(scene.world.ask_as("own", scope, Method::CREATE_TICKET, first).0, wanted);
    }
}

/// A server cannot make the roles of another its own by having them join something.
#[test]
fn a_role_that_lives_elsewhere_is_joined_by_its_server_only() {
    let Scene { mut world, room, team, .. } = Scene::new();
    let about = |id: &str| Writer::new().nested(1, role(id));
    let mode = || Writer::new().str(1, "3v3");
    let random = || (Method::ROLE_JOIN_RANDOM_ROOM, about("leader").nested(2, mode()));
    let join_team = || (Method::JOIN_TEAM, about("member").str(2, &team));
    for (method, body) in [
        random(),
        join_team(),
        (Method::ROLE_CREATE_ROOM, about("leader").nested(2, mode())),
        (Method::ROLE_JOIN_ROOM, about("leader").str(2, &room)),
        (Method::CREATE_TEAM, about("member").nested(2, world::team(3, ""))),
    ] {
        assert_eq!(world.ask("strange", method, body).0, Status::Forbidden, "{method}");
    }
    // Its server is lost: it may have gone to another.
    world.session("own", false);
    for (method, body) in [random(), join_team()] {
        assert_eq!(world.ask("strange", method, body).0, Status::Ok, "{method}");
    }
}
