//! What falls due at once is done in bounded steps, and the steps are the same in a replay.

use crate::world;

use throng_matcher::{Caller, Config, Notices, Scope, WallMs};
use throng_wire::matcher::{Event, Method, Writer};
use world::World;

const ROOMS: usize = 5_000;
/// Members of a room that is full.
const MEMBERS: usize = 4;

fn with_rooms_due() -> World {
    let mut world = World::new(Config::default());
    for index in 0..ROOMS * MEMBERS {
        world.join_random("s", &format!("r{index}"), "2v2");
    }
    world.take_heard();
    world
}

#[test]
fn a_burst_of_due_rooms_does_not_block_a_request() {
    let mut world = with_rooms_due();
    world.now += 1_000;
    world.join_random("s", "late", "1v1");
    assert!(world.take_heard().len() < 2_500, "one request paid for a bounded part only");
    assert!(
        world.matcher.next_timeout().is_some_and(|at| at <= WallMs(world.now)),
        "and the rest is still due"
    );
    world.pass(0);
    let left = world.take_heard().into_iter().filter(|heard| heard.kind == Event::ROLE_LEAVE_ROOM).count();
    assert!(left > ROOMS * MEMBERS - 2_500, "{left}");
    assert_eq!(world.matcher.counts().rooms, 1, "every room went, but for the late one's");
}

#[test]
fn requests_that_are_not_logged_fire_no_timers() {
    let (mut with_reads, mut without) = (with_rooms_due(), with_rooms_due());
    let mut notices = Notices::default();
    for step in 1..=20 {
        let now = with_reads.now + step * 100;
        let caller = Caller { srv: "s", scope: Scope::Server };
        let list = Writer::new().str(1, "2v2").into_bytes();
        with_reads.matcher.handle(
            WallMs(now),
            caller,
            Method::GET_ROOM_LIST,
            &list,
            &mut Vec::new(),
            &mut notices,
        );
        assert!(notices.is_empty());
    }
    let end = without.now + 3_000;
    for world in [&mut with_reads, &mut without] {
        world.now = end;
        world.join_random("s", "last", "1v1");
    }
    assert_eq!(with_reads.matcher.digest(), without.matcher.digest());
}
