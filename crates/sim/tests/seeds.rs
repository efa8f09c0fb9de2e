//! A thousand runs with a thousand seeds.
//!
//! `THRONG_SEED=17` plays one seed, `THRONG_SEEDS=100000` plays more of them, `THRONG_TRACE=1` prints what every
//! peer sees.

#![allow(clippy::print_stdout, reason = "figures and notes of a test run")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_sim::{FaultKind, Outcome, run};

const SEEDS: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs a seed; a panic of the core counts as a violation.
fn run_caught(seed: u64) -> Result<Outcome, String> {
    std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn report(seed: u64, violation: &str) -> String {
    format!("seed {seed}: {violation}\n  replay: THRONG_SEED={seed} cargo test -p throng-sim --test seeds")
}

#[test]
fn a_thousand_seeds_break_no_promise() {
    if let Some(seed) = number("THRONG_SEED") {
        match run_caught(seed) {
            Ok(outcome) => println!("seed {seed}: {outcome:#?}"),
            Err(violation) => panic!("{}", report(seed, &violation)),
        }
        return;
    }
    let seeds = number("THRONG_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let failures = Mutex::new(BTreeMap::new());
    let total = Mutex::new((Outcome::default(), BTreeMap::<FaultKind, u64>::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&s| s < seeds) {
                    match run_caught(seed) {
                        Err(violation) => {
                            failures.lock().expect("no panic").insert(seed, violation);
                        }
                        Ok(outcome) => {
                            let (sum, faults) = &mut *total.lock().expect("no panic");
                            sum.virtual_time += outcome.virtual_time;
                            sum.steps += outcome.steps;
                            sum.items += outcome.items;
                            sum.updates += outcome.updates;
                            sum.messages += outcome.messages;
                            sum.converged += outcome.converged;
                            sum.resyncs += outcome.resyncs;
                            sum.connections += outcome.connections;
                            for kind in outcome.faults {
                                *faults.entry(kind).or_default() += 1;
                            }
                        }
                    }
                }
            });
        }
    });
    let (sum, faults) = total.into_inner().expect("no panic");
    println!("{seeds} seeds: {sum:?}\nruns by kind of fault: {faults:?}");
    let failures = failures.into_inner().expect("no panic");
    if let Some((seed, violation)) = failures.iter().next() {
        for (seed, violation) in &failures {
            println!("{}", report(*seed, violation));
        }
        let others: Vec<_> = failures.keys().collect();
        panic!("{} of {seeds} seeds fail: {others:?}\n{}", failures.len(), report(*seed, violation));
    }
    if seeds >= SEEDS {
        assert_eq!(faults.len(), FaultKind::ALL.len(), "every kind of fault was met: {faults:?}");
        assert!(sum.resyncs > 0 && sum.converged > seeds && sum.items > 100 * seeds, "{sum:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [1, 2, 3] {
        assert_eq!(run_caught(seed), run_caught(seed));
    }
}
