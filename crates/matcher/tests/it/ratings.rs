//! D.3: reports of results and what they make of ratings.

use crate::world;

use throng_matcher::{Config, Scope};
use throng_wire::matcher::{Method, Reader, Status, Writer};
use world::{World, player};

fn with(rules: &str) -> World {
    let mut world = World::new(Config::default());
    assert_eq!(world.put_queue(rules).0, Status::Ok);
    world
}

const RATED: &str = r#"{
    "name": "rated", "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}],
    "rating": {"pool": "main"}, "rules": [{"name": "near", "type": "near", "key": "skill", "max": 20}]
}"#;

#[test]
fn a_result_is_rated_once() {
    let mut world = with(RATED);
    let a = world.ticket("s", "rated", vec![player("a", &[("skill", "99")])]);
    world.ticket("s", "rated", vec![player("b", &[])]);
    world.pass(250);
    let matched = world.get_ticket(&a).matched;
    let report = |first: &str, second: &str| {
        let side = |id: &str, rank| Writer::new().str(1, id).u64(2, rank);
        Writer::new().str(1, &matched).nested(3, side(first, 1)).nested(3, side(second, 2))
    };
    let rate = |world: &mut World, body| world.ask_as("s", Scope::Trusted, Method::REPORT_RESULT, body);
    let (status, first) = rate(&mut world, report("a", "b"));
    assert_eq!(status, Status::Ok);
    let mu = |answer: &[u8]| {
        let rating = Reader::new(answer).unwrap().nested(1).unwrap();
        f64::from_bits(rating.last(4).unwrap().scalar)
    };
    let rated = |answer: &[u8], id: &str| {
        let all = Reader::new(answer).unwrap();
        let rating = all.all(1).map(|r| Reader::new(r).unwrap()).find(|r| r.str(1) == Ok(id)).unwrap();
        f64::from_bits(rating.last(4).unwrap().scalar)
    };
    assert!((rated(&first, "a") - 27.635_389_493).abs() < 1e-6, "the forged skill counts for nothing");
    assert_eq!(rate(&mut world, report("a", "b")), (Status::Ok, first));
    assert_eq!(rate(&mut world, report("b", "a")).0, Status::Invalid);
    let (status, amended) = rate(&mut world, report("b", "a").u64(5, 1));
    assert_eq!(status, Status::Ok);
    assert!((rated(&amended, "b") - 27.635_389_493).abs() < 1e-6);
    let ask = Writer::new().str(1, "main").str(2, "a");
    let read = world.ok("s", Method::GET_RATINGS, ask);
    assert!((mu(&read) - 22.364_610_507).abs() < 1e-6);
    assert_eq!(world.ask("s", Method::REPORT_RESULT, report("a", "b")).0, Status::Forbidden);
}

#[test]
fn a_room_is_rated_in_each_pool_by_itself() {
    let mut world = World::new(Config::default());
    let join =
        |id: &str| Writer::new().nested(1, Writer::new().str(1, id)).nested(2, Writer::new().str(1, "2v2"));
    let answer = world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, join("a"));
    let room = Reader::new(&answer).unwrap().nested(1).unwrap().str(1).unwrap().to_owned();
    world.ok("s", Method::ROLE_JOIN_RANDOM_ROOM, join("b"));
    let report = |first: &str, second: &str, pool: &str| {
        let side = |id: &str, rank| Writer::new().str(1, id).u64(2, rank);
        Writer::new().str(2, &room).nested(3, side(first, 1)).nested(3, side(second, 2)).str(6, pool)
    };
    let rate = |world: &mut World, body| world.ask_as("s", Scope::Trusted, Method::REPORT_RESULT, body).0;
    let read = |world: &mut World, pool: &str| {
        let answer = world.ok("s", Method::GET_RATINGS, Writer::new().str(1, pool).str(2, "a"));
        let rating = Reader::new(&answer).unwrap().nested(1).unwrap();
        f64::from_bits(rating.last(4).unwrap().scalar)
    };
    assert_eq!(rate(&mut world, report("a", "b", "solo")), Status::Ok);
    let solo = read(&mut world, "solo");
    assert!(solo > 25.0, "{solo}");
    // The same result in another pool counts there, and what is amended there is not taken back
    // here.
    assert_eq!(rate(&mut world, report("a", "b", "season")), Status::Ok);
    assert_eq!(read(&mut world, "season"), solo);
    assert_eq!(rate(&mut world, report("b", "a", "season")), Status::Invalid);
    assert_eq!(rate(&mut world, report("b", "a", "season").u64(5, 1)), Status::Ok);
    assert!(read(&mut world, "season") < 25.0);
    assert_eq!(read(&mut world, "solo"), solo);
    // Who played in part was there.
    let weight = |id: &str| Writer::new().str(1, id).f64(2, 0.5);
    assert_eq!(rate(&mut world, report("a", "b", "parts").nested(4, weight("c"))), Status::Invalid);
    assert_eq!(rate(&mut world, report("a", "b", "parts").nested(4, weight("b"))), Status::Ok);
}

/// A match of two in a queue, made.
fn duel(world: &mut World, queue: &str, a: &str, b: &str) -> String {
    let ticket = world.ticket("s", queue, vec![player(a, &[])]);
    world.ticket("s", queue, vec![player(b, &[])]);
    world.pass(250);
    world.get_ticket(&ticket).matched
}

fn beats(matched: &str, first: &str, second: &str) -> Writer {
    let side = |id: &str, rank| Writer::new().str(1, id).u64(2, rank);
    Writer::new().str(1, matched).nested(3, side(first, 1)).nested(3, side(second, 2))
}

fn report(world: &mut World, body: Writer) -> (Status, Vec<u8>) {
    world.ask_as("s", Scope::Trusted, Method::REPORT_RESULT, body)
}

/// A number of a role's rating: 2 shown, 4 and 5 mu and sigma, 6 and 7 rating and deviation.
fn rated(world: &mut World, pool: &str, role: &str, number: u32) -> f64 {
    let answer = world.ok("s", Method::GET_RATINGS, Writer::new().str(1, pool).str(2, role));
    let rating = Reader::new(&answer).unwrap().nested(1).unwrap();
    rating.last(number).map_or(0.0, |field| f64::from_bits(field.scalar))
}

#[test]
fn a_repeated_report_is_answered_with_what_came_of_it() {
    let mut world = with(&RATED.replace(r#""name": "rated","#, r#""name": "rated", "allow_in_room": true,"#));
    let weights = |body: Writer, all: [(&str, f64); 2]| {
        all.into_iter()
            .fold(body, |body, (id, weight)| body.nested(4, Writer::new().str(1, id).f64(2, weight)))
    };
    let first = duel(&mut world, "rated", "a", "b");
    let (status, answer) = report(&mut world, weights(beats(&first, "a", "b"), [("a", 0.5), ("b", 0.75)]));
    assert_eq!(status, Status::Ok);
    let after = rated(&mut world, "main", "a", 4);
    // Others follow, which change the same players.
    let second = duel(&mut world, "rated", "a", "b");
    assert_eq!(report(&mut world, beats(&second, "a", "b")).0, Status::Ok);
    assert!(rated(&mut world, "main", "a", 4) > after);
    let again = report(&mut world, weights(beats(&first, "a", "b"), [("b", 0.75), ("a", 0.5)]));
    assert_eq!(again, (Status::Ok, answer), "the stored result, in whatever order the weights are named");
    let other = weights(beats(&first, "a", "b"), [("a", 0.5), ("b", 1.0)]);
    assert_eq!(report(&mut world, other).0, Status::Invalid);
}

/// Two of the same names at a time play in a queue with a Glicko-2 pool.
fn periods(period_s: u64) -> String {
    format!(
        r#"{{"name": "duels", "sides": [{{"name": "side", "count": 2, "min": 1, "max": 1}}],
            "allow_in_room": true, "rating": {{"system": "glicko2", "pool": "ladder", "period_s": {period_s}}}}}"#
    )
}

#[test]
fn games_of_a_glicko_period_count_at_its_end() {
    let mut world = with(&periods(60));
    for (winner, loser) in [("a", "b"), ("a", "b")] {
        let matched = duel(&mut world, "duels", winner, loser);
        assert_eq!(report(&mut world, beats(&matched, winner, loser)).0, Status::Ok);
    }
    assert_eq!(rated(&mut world, "ladder", "a", 2), 1500.0);
    world.pass(60_000);
    let (best, deviation) = (rated(&mut world, "ladder", "a", 6), rated(&mut world, "ladder", "a", 7));
    assert!(best > 1700.0 && deviation < 300.0, "two games at once: {best} {deviation}");
    assert_eq!(rated(&mut world, "ladder", "a", 2), best, "what is shown");
    // Nobody plays for three periods: that changes deviations only.
    world.pass(180_000);
    assert_eq!(rated(&mut world, "ladder", "a", 6), best);
    assert!(rated(&mut world, "ladder", "a", 7) > deviation);
}

#[test]
fn glicko_periods_that_passed_while_the_matcher_was_down_all_end() {
    let after = |is_down: bool, half_periods: u64| {
        let mut world = with(&periods(60));
        let matched = duel(&mut world, "duels", "a", "b");
        assert_eq!(report(&mut world, beats(&matched, "a", "b")).0, Status::Ok);
        if is_down {
            world.now += half_periods * 30_000;
            world.recover();
        } else {
            world.pass_to_input(half_periods * 30_000);
        }
        let before = rated(&mut world, "ladder", "a", 7);
        // The period under way ends when it would have.
        world.pass(31_000);
        let numbers = [6, 7].map(|number| rated(&mut world, "ladder", "a", number));
        (before, numbers)
    };
    for half_periods in [1, 3, 21, 20_001] {
        assert_eq!(after(true, half_periods), after(false, half_periods), "{half_periods} half periods");
    }
    assert_ne!(after(true, 3), after(true, 5), "each of them adds deviation");
}

#[test]
fn a_period_of_another_length_begins_with_the_next_report() {
    let mut world = with(&periods(86_400));
    let play = |world: &mut World| {
        let matched = duel(world, "duels", "a", "b");
        assert_eq!(report(world, beats(&matched, "a", "b")).0, Status::Ok);
        rated(world, "ladder", "a", 6)
    };
    assert_eq!(play(&mut world), 1500.0);
    world.put_queue(&periods(60));
    assert_eq!(play(&mut world), 1500.0);
    world.pass(60_000);
    let after = rated(&mut world, "ladder", "a", 6);
    assert!(after > 1700.0, "both games are counted: {after}");
    world.put_queue(&periods(0));
    assert!(play(&mut world) > after, "at once");
    // The timers of the periods before have nothing to do.
    world.pass(100_000_000);
    assert!(rated(&mut world, "ladder", "a", 6) > after);
}

#[test]
fn a_pool_is_of_one_system() {
    let mut world = with(&periods(0));
    let other = periods(0).replace("duels", "teams").replace("glicko2", "weng_lin");
    let (status, answer) = world.put_queue(&other);
    assert_eq!(status, Status::RuleInvalid);
    let why = Reader::new(&answer).unwrap().str(1).unwrap().to_owned();
    assert!(why.contains("rating.system"), "{why}");
    assert_eq!(world.put_queue(&other.replace("ladder", "ranked")).0, Status::Ok);
    // Of its own pool a queue may think again until somebody is rated.
    let again = periods(0).replace("glicko2", "weng_lin");
    assert_eq!(world.put_queue(&again).0, Status::Ok);
    let matched = duel(&mut world, "duels", "a", "b");
    assert_eq!(report(&mut world, beats(&matched, "a", "b")).0, Status::Ok);
    assert_eq!(world.put_queue(&periods(0)).0, Status::RuleInvalid);
    let queues =
        [&periods(0), &other].map(|rules| throng_matcher::QueueRules::parse(rules.as_bytes()).unwrap());
    assert!(Config { queues: queues.to_vec(), ..Config::default() }.check().is_err());
}

#[test]
fn amending_there_and_back_leaves_the_ratings_as_they_were() {
    let rules = r#"{"name": "rated", "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}],
        "rating": {"pool": "main"}, "allow_in_room": true}"#;
    let mut world = with(rules);
    let [first, second] = ["b", "b"].map(|other| duel(&mut world, "rated", "a", other));
    for matched in [&first, &second] {
        assert_eq!(report(&mut world, beats(matched, "a", "b")).0, Status::Ok);
    }
    let all =
        |world: &mut World| ["a", "b"].map(|role| [4, 5].map(|number| rated(world, "main", role, number)));
    let before = all(&mut world);
    for _ in 0..3 {
        assert_eq!(report(&mut world, beats(&first, "b", "a").u64(5, 1)).0, Status::Ok);
        let between = all(&mut world);
        assert!(between[0][0] < before[0][0] && between[1][0] > before[1][0], "{between:?}");
        let (status, answer) = report(&mut world, beats(&first, "a", "b").u64(5, 1));
        assert_eq!(status, Status::Ok);
        let after = all(&mut world);
        let differs = |(own, other): (&f64, &f64)| (own - other).abs() > 1e-9;
        assert!(
            !after.iter().flatten().zip(before.iter().flatten()).any(differs),
            "{after:?}, not {before:?}"
        );
        // The answer has the ratings as they are now, and so has that of a repetition.
        let answer_of = Reader::new(&answer).unwrap();
        let told = answer_of.all(1).map(|own| Reader::new(own).unwrap().last(4).unwrap().scalar);
        assert_eq!(told.map(f64::from_bits).collect::<Vec<_>>(), [after[0][0], after[1][0]]);
        assert_eq!(report(&mut world, beats(&first, "a", "b")), (Status::Ok, answer));
    }
}

#[test]
fn one_who_was_not_in_the_match_is_in_no_result() {
    let mut world = with(RATED);
    let matched = duel(&mut world, "rated", "a", "b");
    let why = |(status, answer): (Status, Vec<u8>)| {
        assert_eq!(status, Status::Invalid);
        Reader::new(&answer).unwrap().str(1).unwrap().to_owned()
    };
    assert_eq!(why(report(&mut world, beats(&matched, "a", "mallory"))), "`mallory` was not in the match");
    let side = |role: &str, rank| Writer::new().str(1, role).u64(2, rank);
    let unranked = Writer::new().str(1, &matched).nested(3, side("a", 0)).nested(3, side("b", 1));
    assert!(why(report(&mut world, unranked)).contains("a rank is 1 or more"));
    // Not even after the room has gone, and with a snapshot in between.
    world.matcher = throng_matcher::Matcher::restore(&world.matcher.snapshot()).unwrap();
    world.pass(100_000);
    assert_eq!(why(report(&mut world, beats(&matched, "mallory", "b"))), "`mallory` was not in the match");
    assert_eq!(report(&mut world, beats(&matched, "a", "b")).0, Status::Ok);
    // One who came by a room that was opened again was there.
    let ticket = world.ticket("s", "rated", vec![player("c", &[])]);
    world.ticket("s", "rated", vec![player("d", &[])]);
    world.pass(250);
    let found = world.get_ticket(&ticket);
    world.ok("s", Method::CLAIM_SEAT, Writer::new().str(1, &found.room).str(2, "c"));
    world.pass(60_000);
    let flags = Writer::new().str(1, &found.room).u64(3, 0);
    assert_eq!(world.ask_as("s", Scope::Trusted, Method::SET_ROOM_FLAGS, flags).0, Status::Ok);
    world.ok("s", Method::ROLE_JOIN_ROOM, world::to_room("late", &found.room));
    assert_eq!(report(&mut world, beats(&found.matched, "c", "late")).0, Status::Ok);
}
