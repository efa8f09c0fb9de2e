//! Clusters in virtual time: nodes that are killed, stand still, are cut off and have clocks
//! of different rates, over a directory that loses answers, applies writes late, and shows old
//! records. Nothing wrong may happen during the faults, and 25 s after the last one every world
//! serves.
//!
//! `THRONG_SEED=17` plays one seed and prints its steps (with `THRONG_LOSSY=1` over a directory
//! that loses acknowledged writes), `THRONG_SEEDS=50000` plays more of them,
//! `THRONG_FIRST_SEED=9000` begins later.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "one seed by the environment, with its steps"
)]

mod bus;
mod choice;
mod directed;
mod run;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use throng_cluster::{Defect, Name, WorldState};

use run::{LIMIT, LIMITED, MS, Options, Run, S, Tally, name};

const SEEDS: u64 = 1_000;
const LOSSY_SEEDS: u64 = 200;
/// Time after the last fault at which every world serves.
const LIVENESS: u64 = 25 * S;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

const OPTIONS: Options = Options { nodes: 4, worlds: 4, defect: None, wall_clock: false, is_lossy: false };

/// Plays a seed. The run knows if something went wrong.
fn play(seed: u64, options: Options, traced: bool) -> Run {
    let mut run = Run::new(seed, options);
    run.trace = traced.then(String::new);
    let worlds: Vec<Name> = (0..options.worlds).map(|world| name(&format!("w{world}"))).collect();
    let matches: Vec<Name> = (0..2).map(|world| name(&format!("m{world}"))).collect();
    let limited: Vec<Name> = (0..4).map(|world| name(&format!("c{world}"))).collect();
    for node in 0..options.nodes {
        run.start(node, 0);
    }
    run.hostility = if seed.is_multiple_of(4) { 0.0 } else { 0.01 + run.rng.f64() * 0.05 };
    let end = 40 * S + run.rng.below(60 * S);
    let busy = 500 * MS + run.rng.below(4 * S);
    let mut next_fault = 5 * S;
    let (mut at, mut killed_for_good) = (0, vec![false; options.nodes]);
    while at < end && run.violation.is_none() {
        at += 100 * MS + run.rng.below(400 * MS);
        run.run_until(at);
        if run.rng.chance(0.5) {
            let node = run.rng.below(options.nodes as u64) as usize;
            let world = worlds[run.rng.below(worlds.len() as u64) as usize].clone();
            run.arrive(node, &world);
        }
        if run.rng.chance(0.1) {
            // Matches begin and end.
            let node = run.rng.below(options.nodes as u64) as usize;
            let world = matches[run.rng.below(matches.len() as u64) as usize].clone();
            if run.rng.chance(0.5) {
                run.handle(node, |core, now| core.handle_open(now, world, name(run::CLASS), true));
            } else {
                run.handle(node, |core, now| core.handle_close(now, &world));
            }
        }
        if run.rng.chance(0.3) {
            // More worlds of a class than it may have.
            let node = run.rng.below(options.nodes as u64) as usize;
            let world = limited[run.rng.below(limited.len() as u64) as usize].clone();
            if run.rng.chance(0.6) {
                run.arrive_for(node, &world, LIMITED);
            } else {
                run.handle(node, |core, now| core.handle_close(now, &world));
            }
        }
        if at >= next_fault {
            next_fault = at + run.rng.below(2 * busy);
            fault(&mut run, &worlds, &mut killed_for_good);
        }
    }
    heal(&mut run, &killed_for_good);
    let healed = run.now;
    while run.now < healed + LIVENESS - 5 * S && run.violation.is_none() {
        let at = run.now + 500 * MS;
        run.run_until(at);
        for world in &worlds {
            let node = run.rng.below(options.nodes as u64) as usize;
            run.arrive(node, world);
        }
    }
    run.run_until(healed + LIVENESS);
    if run.violation.is_none() {
        check_liveness(&mut run, &worlds, &matches);
    }
    if run.violation.is_none() {
        check_permits(&mut run, &limited);
    }
    run
}

/// Every permit can be used again once the worlds of its class are closed.
fn check_permits(run: &mut Run, limited: &[Name]) {
    let Some(node) = run.machines.iter().position(|machine| machine.is_up) else { return };
    for world in limited {
        run.handle(node, |core, now| core.handle_close(now, world));
    }
    run.run_until(run.now + 3 * S);
    let until = run.now + 15 * S;
    while run.open_limited() < LIMIT && run.violation.is_none() {
        if run.now > until {
            run.complain(format!("{} of {LIMIT} permits can be used", run.open_limited()));
        }
        for world in 0..LIMIT {
            run.arrive_for(node, &name(&format!("d{world}")), LIMITED);
        }
        run.run_until(run.now + 500 * MS);
    }
}

/// One fault, or one act of an operator.
fn fault(run: &mut Run, worlds: &[Name], killed_for_good: &mut [bool]) {
    let node = run.rng.below(run.options.nodes as u64) as usize;
    let now = run.now;
    let some = |run: &mut Run, longest: u64| now + run.rng.below(longest);
    match run.rng.below(16) {
        0 | 1 => {
            run.kill(node);
            let after = 100 * MS + run.rng.below(20 * S);
            run.start(node, after);
        }
        2 => {
            run.kill(node);
            run.lose_folder(node);
            let after = 100 * MS + run.rng.below(20 * S);
            run.start(node, after);
        }
        3 => {
            let alive = killed_for_good.iter().filter(|is_killed| !**is_killed).count();
            if alive > 2 && run.rng.chance(0.3) {
                run.kill(node);
                killed_for_good[node] = true;
                run.machines[node].is_supervised = false;
            }
        }
        4 | 5 => {
            let longest = [500 * MS, 14 * S, 60 * S][run.rng.below(3) as usize];
            let until = some(run, longest);
            run.stop(node, until);
        }
        6 => run.machines[node].cut_out_until = some(run, 40 * S),
        7 => run.machines[node].cut_in_until = some(run, 40 * S),
        8 => {
            let until = some(run, 40 * S);
            (run.machines[node].cut_out_until, run.machines[node].cut_in_until) = (until, until);
            run.note(|| format!("cut {node} off"));
        }
        9 => {
            let longest = if run.rng.chance(0.2) { 60 * S } else { 15 * S };
            let until = some(run, longest);
            run.bus.leave(now, until);
            run.note(|| format!("directory away until {until}"));
        }
        10 => run.machines[node].late_watch_until = some(run, 5 * S),
        11 => {
            let until = some(run, 10 * S);
            run.gap(node, until);
        }
        12 => run.machines[node].slow_until = some(run, 20 * S),
        13 => {
            let wait = Duration::from_secs(run.rng.below(3));
            run.note(|| format!("drain {node}"));
            run.handle(node, |core, now| core.handle_drain(now, Some(wait)));
        }
        14 => {
            if run.rng.chance(0.5) {
                run.handle(node, |core, now| core.handle_undrain(now));
            } else {
                run.note(|| format!("terminate {node}"));
                run.handle(node, |core, now| core.handle_stop(now));
            }
        }
        _ => {
            let world = worlds[run.rng.below(worlds.len() as u64) as usize].clone();
            run.handle(node, |core, now| core.handle_close(now, &world));
        }
    }
    if run.options.wall_clock {
        run.machines[node].jump += (run.rng.below(120 * S) as i64) - (60 * S) as i64;
    }
    if run.options.is_lossy && run.rng.chance(0.1) {
        let length = run.bus.log.len();
        let kept = if run.rng.chance(0.2) { 0 } else { length.saturating_sub(run.rng.below(30) as usize) };
        run.lose(kept);
    }
}

/// Ends all faults.
fn heal(run: &mut Run, killed_for_good: &[bool]) {
    run.note(|| "heal".to_owned());
    run.hostility = 0.0;
    let now = run.now;
    run.bus.away_until = run.bus.away_until.min(now);
    if let Some(last) = run.bus.away.last_mut() {
        last.1 = last.1.min(now);
    }
    for (node, is_dead) in killed_for_good.iter().enumerate() {
        let machine = &mut run.machines[node];
        machine.stands_until = machine.stands_until.min(now);
        (machine.slow_until, machine.late_watch_until) = (0, 0);
        machine.cut_out_until = machine.cut_out_until.min(now);
        machine.cut_in_until = machine.cut_in_until.min(now);
        run.handle(node, |core, now| core.handle_undrain(now));
        run.wake(node);
        if run.machines[node].core.is_none() && !is_dead {
            run.start(node, 0);
        }
    }
}

fn check_liveness(run: &mut Run, worlds: &[Name], matches: &[Name]) {
    for world in worlds.iter().chain(matches) {
        let record = run.world(world);
        let serves = run.server(world).map(|node| run.machines[node].name.clone());
        let is_open = record.as_ref().is_some_and(|record| record.state != WorldState::Closed);
        let is_wanted = worlds.contains(world);
        let is_right = match &record {
            Some(record) if record.state == WorldState::Serving => serves.as_ref() == Some(&record.home.node),
            _ => !is_wanted && !is_open,
        };
        if !is_right {
            run.complain(format!("{world} is served by {serves:?} after 25 s, its record: {record:?}"));
        }
    }
    for (node, machine) in run.machines.iter().enumerate() {
        let Some(core) = &machine.core else { continue };
        if core.arrivals_waiting() > 0 {
            let (waiting, failure) = (core.arrivals_waiting(), machine.failure.clone());
            let state = format!("up {}, gap {}, failed {failure:?}", machine.is_up, machine.has_gap);
            return run.complain(format!("{waiting} arrivals wait at {node}: {state}"));
        }
    }
    let conflicts: u64 = run
        .machines
        .iter()
        .filter_map(|machine| machine.core.as_ref())
        .map(|core| core.stats().conflicts)
        .sum();
    if conflicts > 0 {
        run.fail(format!("{conflicts} conflicts"));
    }
}

/// Plays seeds until one fails; a panic is a failure.
fn first_failure(seeds: std::ops::Range<u64>, options: Options) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let played = catch_unwind(AssertUnwindSafe(|| play(seed, options, false).violation));
        match played {
            Ok(None) => None,
            Ok(Some(why)) => Some((seed, why)),
            Err(_) => Some((seed, "a panic".to_owned())),
        }
    })
}

#[test]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = number("THRONG_SEED") {
        let options = Options { is_lossy: number("THRONG_LOSSY").is_some(), ..OPTIONS };
        let run = play(seed, options, true);
        println!("{}", run.trace.as_deref().unwrap_or_default());
        assert_eq!(run.violation, None, "seed {seed}");
        return;
    }
    let first = number("THRONG_FIRST_SEED").unwrap_or(0);
    let count = number("THRONG_SEEDS").unwrap_or(SEEDS);
    let failure = first_failure(first..first + count, OPTIONS);
    assert!(
        failure.is_none(),
        "{failure:?}: replay with THRONG_SEED={} cargo test -p throng-cluster --test it no_seed_breaks",
        failure.as_ref().map_or(0, |(seed, _)| *seed)
    );
}

/// Defects that seeds find. The others have scenarios in `directed`.
const FOUND_BY_SEEDS: &[Defect] = &[
    Defect::ClaimWithoutMark,
    Defect::MarkEarly,
    Defect::BlindAfterStandstill,
    Defect::CountWhileCutOff,
    Defect::TimeoutIsSuccess,
    Defect::ServeEarly,
    Defect::ServeOn,
    Defect::KeepLostWorld,
    Defect::EpochFromOne,
    Defect::OpenWithoutPermit,
    Defect::TakePermitEarly,
];

#[test]
fn seeds_find_every_defect_that_needs_no_scenario() {
    for defect in FOUND_BY_SEEDS {
        let found = first_failure(0..SEEDS, Options { defect: Some(*defect), ..OPTIONS });
        assert!(found.is_some(), "no seed finds {defect:?}");
    }
    let found = first_failure(0..SEEDS, Options { wall_clock: true, ..OPTIONS });
    assert!(found.is_some(), "no seed finds leases by the wall clock");
}

#[test]
fn a_directory_that_loses_writes_costs_no_liveness() {
    let failure = first_failure(0..LOSSY_SEEDS, Options { is_lossy: true, ..OPTIONS });
    assert!(
        failure.is_none(),
        "{failure:?}: replay with THRONG_LOSSY=1 THRONG_SEED={} cargo test -p throng-cluster --test it no_seed_breaks",
        failure.as_ref().map_or(0, |(seed, _)| *seed)
    );
}

/// The runs meet what they are for.
#[test]
fn seeds_meet_every_kind_of_event() {
    let mut all = Tally::default();
    for seed in 0..40 {
        let run = play(seed, OPTIONS, false);
        assert_eq!(run.violation, None, "seed {seed}");
        all.marks += run.tally.marks;
        all.homes += run.tally.homes;
        all.lapses += run.tally.lapses;
        all.thaws += run.tally.thaws;
        all.moves += run.tally.moves;
        all.deposed += run.tally.deposed;
        all.lost_answers += run.tally.lost_answers;
        all.arrived += run.tally.arrived;
        all.deleted += run.tally.deleted;
        all.exhausted += run.tally.exhausted;
    }
    let least =
        [all.marks, all.homes, all.lapses, all.thaws, all.moves, all.deposed, all.deleted, all.exhausted];
    assert!(least.iter().all(|count| *count >= 20), "{all:?}");
    assert!(all.lost_answers > 1_000 && all.arrived > 2_000, "{all:?}");
}
