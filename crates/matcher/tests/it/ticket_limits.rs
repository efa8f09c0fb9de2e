//! D.2: what a ticket may hold, how long it lives and who may say so.

use crate::world;

use throng_matcher::{Config, Scope};
use throng_wire::matcher::{Method, Reader, Status, Writer};
use world::{World, player, shown};

const RULES: &str = r#"{"name": "q", "timeout_s": 60, "sides": [{"name": "side", "count": 2, "min": 64, "max": 100}], "party": {"max": 100},
    "attributes": {"n": {"type": "number", "default": 0}, "t": {"type": "string", "default": ""},
                   "l": {"type": "string_list", "default": []}}}"#;

fn queue(config: Config) -> World {
    let mut world = World::new(config);
    assert_eq!(world.put_queue(RULES).0, Status::Ok);
    world
}

fn of(players: impl IntoIterator<Item = Writer>) -> Writer {
    players.into_iter().fold(Writer::new().str(1, "q"), |body, player| body.nested(2, player))
}

/// Made, or refused with a message that has this in it.
fn check(what: &str, body: Writer, scope: Scope, wanted: Result<(), (Status, &str)>) {
    let mut world = queue(Config::default());
    let (status, answer) = world.ask_as("s", scope, Method::CREATE_TICKET, body);
    let why = Reader::new(&answer).unwrap().str(1).map(str::to_owned).unwrap_or_default();
    match wanted {
        Ok(()) => assert_eq!(status, Status::Ok, "{what}: {why}"),
        Err((wanted, named)) => {
            assert_eq!(status, wanted, "{what}: {why}");
            assert!(why.contains(named), "{what}: {why}");
        }
    }
}

#[test]
fn a_ticket_has_bounds() {
    let solos = |count: usize| of((0..count).map(|number| player(&format!("r{number}"), &[])));
    let with = |key: &str, json: &str| of([player("a", &[(key, json)])]);
    let text = |length: usize| format!("{:?}", "x".repeat(length));
    let list = |entries: usize| format!("{:?}", vec!["x"; entries]);
    let many = |count: usize| of([player("a", &vec![("n", "1"); count])]);
    let far = |count: usize| {
        of([(0..count).fold(player("a", &[]), |one, region| {
            one.nested(4, Writer::new().str(1, &format!("r{region}")).f64(2, 20.0))
        })])
    };
    let bytes = |each: usize| {
        of((0..4).map(|number| {
            player(
                &format!("r{number}"),
                &[("l", &format!("[{0:?}, {0:?}, {0:?}, {0:?}]", "k".repeat(each / 4)))],
            )
        }))
    };
    let server = Scope::Server;
    let urgent = |priority: i64| of([player("a", &[])]).u64(5, (priority << 1 ^ priority >> 63) as u64);

    check("nobody", solos(0), server, Err((Status::Invalid, "Players")));
    check("64 players", solos(64), server, Ok(()));
    check("65 players", solos(65), server, Err((Status::TooLarge, "64 players")));
    check(
        "somebody twice",
        of([player("a", &[]), player("a", &[])]),
        server,
        Err((Status::Invalid, "twice")),
    );
    check("32 attributes", many(32), server, Ok(()));
    check("33 attributes", many(33), server, Err((Status::TooLarge, "32 attributes")));
    check("256 bytes", with("t", &text(256)), server, Ok(()));
    check("257 bytes", with("t", &text(257)), server, Err((Status::RuleInvalid, "`t`")));
    check("64 entries", with("l", &list(64)), server, Ok(()));
    check("65 entries", with("l", &list(65)), server, Err((Status::RuleInvalid, "`l`")));
    check("64 regions", far(64), server, Ok(()));
    check("65 regions", far(65), server, Err((Status::TooLarge, "64 latencies")));
    check("4 KiB", bytes(1_000), server, Err((Status::TooLarge, "4096")));
    check("another type", with("n", "\"1\""), server, Err((Status::RuleInvalid, "`n`")));
    check("an unknown key", with("x", "1"), server, Err((Status::RuleInvalid, "`x`")));
    check("a priority of a server", urgent(1), server, Err((Status::Forbidden, "")));
    for (priority, wanted) in [(10, Ok(())), (-10, Ok(())), (11, Err((Status::Invalid, "-10 to 10")))] {
        check("a priority", urgent(priority), Scope::Trusted, wanted);
    }
    check("neither players nor a team", of([]), server, Err((Status::Invalid, "TeamID")));
}

#[test]
fn a_ticket_expires_when_its_caller_or_its_queue_says() {
    for (asked, lives) in [(0, 60_000), (5_000, 5_000), (90_000, 60_000), (u64::MAX, 60_000)] {
        let mut world = queue(Config::default());
        let answer = world.ok("s", Method::CREATE_TICKET, of([player("a", &[])]).u64(4, asked));
        let ticket = Reader::new(&answer).unwrap().nested(1).unwrap();
        assert_eq!(ticket.u64(6), world.now + lives, "{asked} ms asked for");
        let id = shown(&answer).id;
        world.pass(lives - 1);
        assert_eq!(world.get_ticket(&id).status, "searching", "{asked} ms asked for");
        world.pass(251);
        assert_eq!(world.get_ticket(&id).status, "timed_out", "{asked} ms asked for");
    }
}

#[test]
fn ids_of_tickets_are_in_order_of_time() {
    let mut world = queue(Config::default());
    let mut ids = Vec::new();
    for number in 0..50 {
        ids.push(world.ticket("s", "q", vec![player(&format!("r{number}"), &[])]));
        // Numbers are taken again.
        if number % 3 == 0 {
            world.cancel("s", &ids[number / 2]);
        }
        world.pass(1 + 7_000 * (number as u64 % 5));
    }
    assert!(ids.is_sorted(), "{ids:?}");
}

#[test]
fn a_full_matcher_takes_no_tickets() {
    let mut world = queue(Config { tickets_max: 2, ..Config::default() });
    let one = world.ticket("s", "q", vec![player("a", &[])]);
    world.ticket("s", "q", vec![player("b", &[])]);
    assert_eq!(world.try_ticket("s", "q", vec![player("c", &[])]).0, Status::Overloaded);
    world.cancel("s", &one);
    assert_eq!(world.try_ticket("s", "q", vec![player("c", &[])]).0, Status::Ok);
}
