//! One fault at a time: what the specification says about each, and the defects that seeds do not
//! find.

use std::time::Duration;

use throng_cluster::{Answer, ArrivalId, Defect, Failure, Key, Name, NodeState, Refusal, WorldState};

use super::OPTIONS;
use super::run::{CLASS, Fate, MS, Options, Run, S, name};

fn world() -> Name {
    name("w0")
}

/// A cluster whose first world serves, and the node that is its home.
fn cluster(nodes: usize, defect: Option<Defect>) -> (Run, usize) {
    cluster_with(&vec![1_000; nodes], defect)
}

/// The same with clocks of these rates.
fn cluster_with(rates: &[u64], defect: Option<Defect>) -> (Run, usize) {
    let mut run = Run::new(7, Options { nodes: rates.len(), defect, ..OPTIONS });
    for (node, rate) in rates.iter().enumerate() {
        run.machines[node].rate = *rate;
        run.start(node, 0);
    }
    run.run_until(S);
    run.arrive(0, &world());
    run.run_until(2 * S);
    let home = run.server(&world()).expect("the world serves");
    (run, home)
}

/// Runs until a world serves, and returns how long that took.
fn until_served(run: &mut Run, longest: u64) -> u64 {
    let start = run.now;
    while run.server(&world()).is_none() {
        assert!(run.now - start < longest, "the world has no home for {longest} us");
        let next = run.now + MS;
        run.run_until(next);
    }
    assert_eq!(run.violation, None);
    run.now - start
}

/// Runs for a time in which nothing wrong may happen.
fn quietly(run: &mut Run, time: u64) {
    run.run_until(run.now + time);
    assert_eq!(run.violation, None);
}

#[test]
fn a_killed_home_that_restarts_serves_within_3_s() {
    let (mut run, home) = cluster(3, None);
    quietly(&mut run, 5 * S);
    run.kill(home);
    run.start(home, 200 * MS);
    let time = until_served(&mut run, 3 * S);
    assert_eq!(run.server(&world()), Some(home), "it was away for {time} us");
    quietly(&mut run, 30 * S);
    assert_eq!((run.tally.marks, run.server(&world())), (0, Some(home)));
}

#[test]
fn an_arrival_that_waits_for_a_silent_home_is_answered_when_that_renews() {
    let (mut run, home) = cluster(2, None);
    quietly(&mut run, 5 * S);
    run.stop(home, run.now + 13 * S);
    quietly(&mut run, 12_500 * MS);
    let other = 1 - home;
    let id = run.arrive(other, &world());
    quietly(&mut run, 200 * MS);
    assert_eq!(run.machines[other].answers.get(&id), None, "its home may be frozen");
    quietly(&mut run, 3 * S);
    let answer = run.machines[other].answers.get(&id);
    assert!(matches!(answer, Some(Answer::Elsewhere { .. })), "{answer:?}");
}

#[test]
fn players_find_a_home_that_is_known_while_the_watch_has_a_gap() {
    let (mut run, home) = cluster(2, None);
    quietly(&mut run, 5 * S);
    let other = 1 - home;
    for node in [home, other] {
        run.gap(node, run.now + 8 * S);
    }
    let [here, there] = [home, other].map(|node| run.arrive(node, &world()));
    quietly(&mut run, S);
    let answer = run.machines[home].answers.get(&here);
    assert!(matches!(answer, Some(Answer::Here { .. })), "{answer:?}");
    let answer = run.machines[other].answers.get(&there);
    assert!(matches!(answer, Some(Answer::Elsewhere { .. })), "{answer:?}");
}

#[test]
fn a_home_that_is_gone_is_replaced_within_20_s() {
    let (mut run, home) = cluster(3, None);
    quietly(&mut run, 5 * S);
    run.machines[home].is_supervised = false;
    run.kill(home);
    until_served(&mut run, 20 * S);
    assert_ne!(run.server(&world()), Some(home));
    assert_eq!(run.tally.marks, 1);
}

#[test]
fn a_home_whose_record_cannot_be_read_is_replaced_within_20_s_and_gets_its_name_back() {
    for is_alone in [false, true] {
        let (mut run, home) = cluster(if is_alone { 1 } else { 3 }, None);
        quietly(&mut run, 5 * S);
        let key = Key::Node(name(&format!("n{home}"))).to_string();
        let revision = run.bus.get(&key).expect("its record").revision;
        run.bus.write(run.now, &key, revision, Some(b"{}".to_vec())).expect("written");
        for node in 0..run.machines.len() {
            run.gap(node, run.now);
        }
        // Its next renewal is refused, so it gives its worlds up long before they are served again.
        quietly(&mut run, 2 * S);
        assert_eq!(run.server(&world()), None);
        until_served(&mut run, 20 * S);
        assert_eq!(run.server(&world()) == Some(home), is_alone);
        quietly(&mut run, 25 * S);
        assert!(run.machines[home].is_up && run.server(&world()).is_some());
        assert_eq!(run.machines[home].failure, None);
        let others = (0..run.machines.len()).filter(|node| *node != home);
        assert!(others.into_iter().all(|node| run.machines[node].unreadable == [key.clone()]));
    }
}

#[test]
fn a_record_that_cannot_be_read_and_is_renewed_is_left_alone() {
    let (mut run, _) = cluster(2, None);
    let (key, later) = ("node.n9", br#"{"worlds":[]}"#);
    let home = br#"{"epoch":5,"home":{"node":"n9","incarnation":1},"state":"serving","class":"hub",
        "class_hash":"h","nonce":1}"#;
    run.bus.write(run.now, "world.w9", 0, Some(home.to_vec())).expect("written");
    let mut revision = 0;
    for _ in 0..40 {
        revision = run.bus.write(run.now, key, revision, Some(later.to_vec())).expect("no other writes it");
        for node in 0..2 {
            run.gap(node, run.now);
        }
        quietly(&mut run, S);
    }
    assert_eq!(run.world(&name("w9")).map(|record| record.epoch), Some(5), "its home lives");
}

#[test]
fn a_home_that_restarts_without_its_folder_gets_its_name_back() {
    let (mut run, home) = cluster(3, None);
    run.kill(home);
    run.lose_folder(home);
    run.start(home, 100 * MS);
    quietly(&mut run, 25 * S);
    assert!(run.machines[home].is_up);
}

#[test]
fn a_short_standstill_costs_a_pause_and_a_long_one_the_home() {
    for (stands, stays) in [(8, true), (11, true), (40, false)] {
        let (mut run, home) = cluster(3, None);
        quietly(&mut run, 5 * S);
        run.stop(home, run.now + stands * S);
        quietly(&mut run, (stands + 5) * S);
        assert_eq!(run.server(&world()) == Some(home), stays, "{stands} s");
        assert_eq!(run.tally.marks == 0, stays, "{stands} s");
        assert!(stays || run.tally.deposed == 1);
    }
}

#[test]
fn without_a_directory_no_world_moves_however_long_that_is() {
    for away in [5, 20, 60] {
        let (mut run, home) = cluster(3, None);
        quietly(&mut run, 5 * S);
        run.bus.leave(run.now, run.now + away * S);
        quietly(&mut run, away * S - S);
        assert_eq!(run.server(&world()).is_some(), away < 11, "away for {away} s");
        quietly(&mut run, 4 * S);
        assert_eq!(run.server(&world()), Some(home), "away for {away} s");
        assert_eq!((run.tally.marks, run.tally.homes), (0, 0), "away for {away} s");
    }
}

#[test]
fn a_bucket_that_is_made_again_gets_the_worlds_that_froze_meanwhile() {
    let (mut run, home) = cluster(3, None);
    quietly(&mut run, 5 * S);
    run.bus.leave(run.now, run.now + 20 * S);
    quietly(&mut run, 19 * S);
    assert_eq!(run.server(&world()), None, "it froze");
    run.lose(0);
    quietly(&mut run, 10 * S);
    assert_eq!(run.server(&world()), Some(home), "{:?}", run.world(&world()));
    let record = run.world(&world()).expect("it has a record again");
    assert_eq!(record.state, WorldState::Serving);
}

#[test]
fn a_home_that_is_cut_off_freezes_and_hears_of_it_later() {
    let (mut run, home) = cluster(3, None);
    let until = run.now + 40 * S;
    (run.machines[home].cut_out_until, run.machines[home].cut_in_until) = (until, until);
    quietly(&mut run, 20 * S);
    let next = run.server(&world()).expect("another node serves");
    assert!(next != home && run.machines[home].workers.contains_key(&world()));
    quietly(&mut run, 25 * S);
    assert!(!run.machines[home].workers.contains_key(&world()) && run.machines[home].is_up);
}

#[test]
fn a_drain_moves_every_world_and_the_node_leaves() {
    let (mut run, home) = cluster(3, None);
    run.machines[home].is_supervised = false;
    for more in 1..6 {
        run.arrive(home, &name(&format!("w{more}")));
    }
    quietly(&mut run, S);
    run.handle(home, |core, now| core.handle_drain(now, Some(Duration::ZERO)));
    quietly(&mut run, 2 * S);
    assert!(run.machines[home].core.is_none(), "it has left");
    assert!((0..6).all(|world| run.server(&name(&format!("w{world}"))).is_some()));
    assert_eq!((run.tally.marks, run.tally.moves > 0), (0, true));
}

#[test]
fn a_world_whose_assignment_its_old_home_did_not_see_has_moved() {
    let (mut run, home) = cluster(2, None);
    run.machines[home].is_supervised = false;
    // The assignment gets no answer, and the watch shows only the record after it.
    run.script.push((Key::World(world()), Fate::NoAnswer));
    run.machines[home].late_watch_until = run.now + 5 * S;
    run.handle(home, |core, now| core.handle_drain(now, Some(Duration::ZERO)));
    quietly(&mut run, 50 * MS);
    run.gap(home, run.now + S);
    quietly(&mut run, 3 * S);
    assert!(run.server(&world()).is_some_and(|server| server != home));
    assert_eq!(run.tally.moves, 1, "its connections learn that");
}

#[test]
fn a_drain_waits_for_players_and_is_taken_back() {
    let (mut run, home) = cluster(2, None);
    run.handle(home, |core, now| core.handle_players(now, &world(), 3));
    run.handle(home, |core, now| core.handle_drain(now, None));
    quietly(&mut run, 10 * S);
    assert_eq!(run.server(&world()), Some(home));
    let draining = |run: &Run| {
        let core = run.machines[home].core.as_ref().expect("it runs");
        core.nodes().any(|(_, node)| node.state == NodeState::Draining)
    };
    assert!(draining(&run));
    run.handle(home, |core, now| core.handle_undrain(now));
    quietly(&mut run, 2 * S);
    assert!(!draining(&run));
    run.handle(home, |core, now| core.handle_players(now, &world(), 0));
    quietly(&mut run, 2 * S);
    assert_eq!(run.server(&world()), Some(home));
}

#[test]
fn the_last_node_keeps_its_worlds_when_it_drains() {
    let (mut run, home) = cluster(1, None);
    run.handle(home, |core, now| core.handle_drain(now, Some(Duration::ZERO)));
    quietly(&mut run, 10 * S);
    assert_eq!(run.server(&world()), Some(home));
    // The next node takes it.
    run.machines.truncate(1);
    run.handle(home, |core, now| core.handle_stop(now));
    quietly(&mut run, 100 * MS);
    assert_eq!(run.server(&world()), None);
}

/// As at the stop of a whole cluster: none of its worlds ends.
#[test]
fn worlds_of_nodes_that_all_drain_are_left_to_the_first_that_returns() {
    let (mut run, home) = cluster(3, None);
    for more in 1..9 {
        run.arrive(home, &name(&format!("w{more}")));
    }
    quietly(&mut run, S);
    let worlds: Vec<Name> = (0..9).map(|number| name(&format!("w{number}"))).collect();
    for node in 0..3 {
        run.machines[node].is_supervised = false;
        run.handle(node, |core, now| core.handle_drain(now, Some(Duration::ZERO)));
    }
    quietly(&mut run, 10 * S);
    for world in &worlds {
        assert_ne!(run.world(world).map(|record| record.state), Some(WorldState::Closed), "{world}");
    }
    let up: Vec<usize> = (0..3).filter(|node| run.machines[*node].core.is_some()).collect();
    assert!(!up.is_empty());
    for node in up {
        run.handle(node, |core, now| core.handle_undrain(now));
    }
    quietly(&mut run, 10 * S);
    assert!(worlds.iter().all(|world| run.server(world).is_some()));
}

#[test]
fn a_stopped_node_is_replaced_at_once() {
    let (mut run, home) = cluster(3, None);
    run.machines[home].is_supervised = false;
    run.handle(home, |core, now| core.handle_stop(now));
    assert!(until_served(&mut run, S) < S);
}

#[test]
fn a_closed_world_ends_opens_again_and_its_epoch_never_falls() {
    let (mut run, home) = cluster(3, None);
    let first = run.world(&world()).expect("it has a record").epoch;
    for node in 0..3 {
        run.handle(node, |core, now| core.handle_close(now, &world()));
    }
    quietly(&mut run, S);
    assert_eq!(run.world(&world()).map(|record| record.state), Some(WorldState::Closed));
    assert!(run.server(&world()).is_none());
    run.arrive(home, &world());
    quietly(&mut run, S);
    let again = run.world(&world()).expect("it has a record");
    assert!(again.state == WorldState::Serving && again.epoch > first);
}

#[test]
fn a_world_that_is_closed_while_the_directory_is_away_does_not_come_back_with_it() {
    let (mut run, home) = cluster(2, None);
    quietly(&mut run, 5 * S);
    let (other, new) = (1 - home, name("w9"));
    run.bus.leave(run.now, run.now + 30 * S);
    run.handle(other, |core, now| core.handle_open(now, name("w9"), name(CLASS), true));
    run.handle(other, |core, now| core.handle_close(now, &world()));
    quietly(&mut run, 10 * S);
    run.handle(other, |core, now| core.handle_close(now, &new));
    quietly(&mut run, 35 * S);
    assert_eq!(run.world(&world()).map(|record| record.state), Some(WorldState::Closed));
    assert_eq!((run.server(&world()), run.server(&new)), (None, None));
    assert!(run.world(&new).is_none_or(|record| record.state == WorldState::Closed));
}

#[test]
fn a_close_is_answered_when_it_is_written_and_says_whether_the_world_was_open() {
    let (mut run, home) = cluster(2, None);
    quietly(&mut run, 5 * S);
    let (other, nowhere) = (1 - home, name("nowhere"));
    run.bus.leave(run.now, run.now + 20 * S);
    for world in [world(), nowhere.clone()] {
        run.handle(other, |core, now| core.handle_close(now, &world));
    }
    quietly(&mut run, 19 * S);
    assert_eq!(run.machines[other].closings, [(nowhere.clone(), false)], "the other is not written");
    quietly(&mut run, 5 * S);
    assert_eq!(run.machines[other].closings, [(nowhere, false), (world(), true)]);
    assert_eq!(run.world(&world()).map(|record| record.state), Some(WorldState::Closed));
}

#[test]
fn a_close_that_another_write_comes_before_is_written_again() {
    let (mut run, home) = cluster(2, None);
    quietly(&mut run, 5 * S);
    let other = 1 - home;
    // The home restarts before the record of the closing arrives.
    run.script.push((Key::World(world()), Fate::Lost));
    run.machines[other].late_watch_until = run.now + 1_500 * MS;
    run.handle(other, |core, now| core.handle_close(now, &world()));
    quietly(&mut run, 10 * MS);
    run.kill(home);
    run.start(home, 100 * MS);
    quietly(&mut run, S);
    assert_eq!(run.server(&world()), Some(home));
    quietly(&mut run, 5 * S);
    assert_eq!(run.world(&world()).map(|record| record.state), Some(WorldState::Closed));
    assert_eq!(run.machines[other].closings, [(world(), true)]);
}

#[test]
fn an_open_that_waits_for_the_directory_is_refused_by_a_close_and_nothing_opens_later() {
    let (mut run, home) = cluster(2, None);
    quietly(&mut run, 5 * S);
    run.bus.leave(run.now, run.now + 20 * S);
    let world = name("w9");
    let id = run.arrive(home, &world);
    quietly(&mut run, 5 * S);
    run.handle(home, |core, now| core.handle_close(now, &name("w9")));
    assert_eq!(run.machines[home].answers.get(&id), Some(&Answer::Refused(Refusal::Closed)));
    quietly(&mut run, 40 * S);
    assert!(run.world(&world).is_none_or(|record| record.state == WorldState::Closed));
    assert_eq!(run.machines[home].closings, [(world, true)]);
}

#[test]
fn an_open_that_is_given_up_opens_nothing_later() {
    for fate in [Fate::Lost, Fate::NoAnswer, Fate::LateWrite] {
        let (mut run, home) = cluster(2, None);
        quietly(&mut run, 5 * S);
        let world = name("w9");
        run.script.push((Key::World(world.clone()), fate));
        run.machines[home].late_watch_until = run.now + 15 * S;
        run.bus.leave(run.now + MS, run.now + 15 * S);
        let id = run.arrive(home, &world);
        quietly(&mut run, 10 * S);
        run.handle(home, |core, now| core.handle_departure(now, ArrivalId(id)));
        quietly(&mut run, 40 * S);
        let state = run.world(&world).map(|record| record.state);
        assert!(state.is_none_or(|state| state == WorldState::Closed), "{fate:?}: {state:?}");
    }
}

#[test]
fn the_record_of_a_match_is_deleted_when_it_closes() {
    let (mut run, _) = cluster(2, None);
    let world = name("duel-7");
    let mut epochs = Vec::new();
    for _ in 0..3 {
        run.handle(1, |core, now| core.handle_open(now, name("duel-7"), name(CLASS), true));
        quietly(&mut run, S);
        epochs.push(run.world(&world).expect("it is open").epoch);
        run.handle(0, |core, now| core.handle_close(now, &name("duel-7")));
        quietly(&mut run, S);
        assert_eq!(run.world(&world), None);
    }
    assert!(epochs.is_sorted_by(|before, after| before < after) && run.tally.deleted == 3);
}

#[test]
fn an_opening_that_comes_after_a_whole_life_of_the_world_repeats_no_epoch() {
    let (mut run, _) = cluster(2, None);
    let duel = || name("duel-7");
    run.script.push((Key::World(duel()), Fate::Lost));
    run.handle(1, |core, now| core.handle_open(now, duel(), name(CLASS), true));
    quietly(&mut run, 10 * MS);
    run.stop(1, run.now + 5 * S);
    run.machines[1].late_watch_until = run.now + 9 * S;
    run.handle(0, |core, now| core.handle_open(now, duel(), name(CLASS), true));
    quietly(&mut run, S);
    let first = run.world(&duel()).expect("it is open").epoch;
    run.handle(0, |core, now| core.handle_close(now, &duel()));
    quietly(&mut run, 8 * S);
    assert!(run.tally.deleted == 1 && run.world(&duel()).expect("it is open again").epoch > first);
}

#[test]
fn arrivals_wait_for_a_home_and_are_refused_after_their_patience() {
    let (mut run, home) = cluster(3, None);
    let other = (home + 1) % 3;
    let answer = |run: &Run, node: usize, id| run.machines[node].answers.get(&id).cloned();
    let id = run.arrive(other, &world());
    let expected = run.machines[home].name.clone();
    assert!(matches!(answer(&run, other, id), Some(Answer::Elsewhere { home, .. }) if home.node == expected));
    let id = run.arrive(home, &world());
    assert!(matches!(answer(&run, home, id), Some(Answer::Here { .. })));
    run.handle(other, |core, now| {
        core.handle_arrival(now, ArrivalId(900), name("nowhere"), None);
    });
    assert_eq!(answer(&run, other, 900), Some(Answer::Refused(Refusal::UnknownWorld)));
    // No node can open a world while the directory is away.
    run.bus.leave(run.now, run.now + 60 * S);
    let id = run.arrive(other, &name("w9"));
    quietly(&mut run, 25 * S);
    assert_eq!(answer(&run, other, id), None);
    quietly(&mut run, 10 * S);
    assert_eq!(answer(&run, other, id), Some(Answer::Refused(Refusal::Unavailable)));
}

/// The home's last renewal is answered as late as possible, then it is cut off. Its clock is slow,
/// the observer's is fast.
fn late_answer(defect: Option<Defect>) -> Run {
    let (mut run, home) = cluster_with(&[1_090, 910], defect);
    assert_eq!(home, 1, "the slow one is the home");
    // The watch would tell it earlier.
    run.machines[home].late_watch_until = run.now + 4 * S;
    run.script.push((Key::Node(run.machines[home].name.clone()), Fate::LateAnswer));
    while !run.script.is_empty() {
        run.run_until(run.now + MS);
    }
    run.machines[home].cut_out_until = run.now + 60 * S;
    run.run_until(run.now + 2 * S);
    run.machines[home].cut_in_until = run.now + 60 * S;
    run.run_until(run.now + 20 * S);
    run
}

/// The home is cut off, marked and replaced. Then the directory loses the mark, and the home's
/// renewals succeed before it sees the other record.
fn lost_mark(defect: Option<Defect>) -> Run {
    let (mut run, home) = cluster(2, defect);
    let until = run.now + 60 * S;
    (run.machines[home].cut_out_until, run.machines[home].cut_in_until) = (until, until);
    run.run_until(run.now + 20 * S);
    assert_eq!(run.server(&world()), Some(1 - home));
    run.bus.lose_newest(&Key::Node(run.machines[home].name.clone()).to_string());
    run.machines[home].late_watch_until = run.now + 5 * S;
    (run.machines[home].cut_out_until, run.machines[home].cut_in_until) = (0, 0);
    run.run_until(run.now + 4 * S);
    run
}

/// A world moves by a drain, and a third node reads an older record of it again.
fn older_record(defect: Option<Defect>) -> Run {
    let (mut run, home) = cluster(3, defect);
    run.machines[home].is_supervised = false;
    for _ in 0..3 {
        run.run_until(run.now + S);
    }
    run.handle(home, |core, now| core.handle_drain(now, Some(Duration::ZERO)));
    run.run_until(run.now + 20 * MS);
    run.handle(home, |core, now| core.handle_undrain(now));
    run.run_until(run.now + S);
    let next = run.server(&world()).expect("it serves");
    assert_ne!(next, home);
    let third = 3 - home - next;
    run.follower_lag = 2 * S;
    let now = run.now;
    run.gap(third, now);
    run.machines[third].late_watch_until = now + 5 * S;
    run.run_until(run.now + MS);
    let id = run.arrive(third, &world());
    let expected = run.machines[next].name.clone();
    match run.machines[third].answers.get(&id) {
        Some(Answer::Elsewhere { home, .. }) if home.node == expected => {}
        answer => run.fail(format!("the player was sent to {answer:?}")),
    }
    run
}

/// A second process has the name of a home.
fn held_name(defect: Option<Defect>) -> Run {
    let (mut run, home) = cluster(2, defect);
    let twin = 1 - home;
    run.kill(twin);
    run.run_until(run.now + 20 * S);
    run.machines[twin].name = run.machines[home].name.clone();
    run.machines[twin].is_supervised = false;
    run.start(twin, 0);
    run.run_until(run.now + 10 * S);
    if !matches!(run.machines[twin].failure, Some(Failure::NameHeld(_))) {
        run.fail("the second process runs".to_owned());
    }
    run
}

/// The answer to the taking of a name gets lost.
fn lost_answer(defect: Option<Defect>) -> Run {
    let mut run = Run::new(7, Options { nodes: 1, defect, ..OPTIONS });
    run.script.push((Key::Node(name("n0")), Fate::NoAnswer));
    run.machines[0].late_watch_until = 5 * S;
    run.start(0, 0);
    run.run_until(4 * S);
    let incarnation = run.machines[0].core.as_ref().and_then(|core| core.incarnation());
    if incarnation != Some(1) {
        run.fail(format!("a name was taken once, as incarnation 1, and is held as {incarnation:?}"));
    }
    run
}

/// A world moves by a drain, and the answer to its assignment gets lost.
fn lost_assignment(defect: Option<Defect>) -> Run {
    let (mut run, home) = cluster(2, defect);
    run.script.push((Key::World(world()), Fate::NoAnswer));
    run.machines[home].late_watch_until = run.now + 5 * S;
    run.handle(home, |core, now| core.handle_drain(now, Some(Duration::ZERO)));
    run.run_until(run.now + 3 * S);
    run
}

/// A node stops, and the answer to its last record is late.
fn late_left(defect: Option<Defect>) -> Run {
    let (mut run, home) = cluster(2, defect);
    run.run_until(run.now + 100 * MS);
    run.script.push((Key::Node(run.machines[home].name.clone()), Fate::LateAnswer));
    run.machines[home].late_watch_until = run.now + 5 * S;
    run.handle(home, |core, now| core.handle_stop(now));
    run.run_until(run.now + 3 * S);
    run
}

/// Plays a cluster with or without a defect.
type Scenario = fn(Option<Defect>) -> Run;

#[test]
fn each_of_these_defects_is_found_by_its_scenario() {
    let scenarios: [(Defect, Scenario); 7] = [
        (Defect::FreezeFromAnswer, late_answer),
        (Defect::ThawUnread, lost_mark),
        (Defect::BelieveOlder, older_record),
        (Defect::TakeHeldName, held_name),
        (Defect::FreshNonce, lost_answer),
        (Defect::TimeoutIsFailure, lost_assignment),
        (Defect::ServeOn, late_left),
    ];
    for (defect, scenario) in scenarios {
        assert_eq!(scenario(None).violation, None, "the scenario of {defect:?}");
        assert!(scenario(Some(defect)).violation.is_some(), "{defect:?} is not found");
    }
}
