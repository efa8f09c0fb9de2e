//! A thousand worlds with a thousand seeds: handovers under crashes, partitions and contrived walks.
//!
//! `THRONG_SEED=17` plays one seed, `THRONG_SEEDS=100000` plays more of them, `THRONG_TRACE=1` prints what every
//! peer is sent.

#![allow(clippy::print_stdout, reason = "figures and notes of a test run")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_sim::{SpatialOutcome, run_spatial};

const SEEDS: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs a seed; a panic of the core counts as a violation.
fn run_caught(seed: u64) -> Result<SpatialOutcome, String> {
    std::panic::catch_unwind(|| run_spatial(seed)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn report(seed: u64, violation: &str) -> String {
    format!("seed {seed}: {violation}\n  replay: THRONG_SEED={seed} cargo test -p throng-sim --test spatial")
}

#[test]
fn a_thousand_worlds_lose_no_handover() {
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
    let total = Mutex::new(SpatialOutcome::default());
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
                            let mut sum = total.lock().expect("no panic");
                            sum.handovers += outcome.handovers;
                            sum.across_servers += outcome.across_servers;
                            sum.crashes += outcome.crashes;
                            sum.recovered += outcome.recovered;
                            sum.taken_over += outcome.taken_over;
                            sum.calls += outcome.calls;
                            sum.waited += outcome.waited;
                            sum.entities += outcome.entities;
                            sum.seen += outcome.seen;
                            sum.cells_moved += outcome.cells_moved;
                        }
                    }
                }
            });
        }
    });
    let sum = total.into_inner().expect("no panic");
    println!("{seeds} seeds: {sum:?}");
    let failures = failures.into_inner().expect("no panic");
    if let Some((seed, violation)) = failures.iter().next() {
        for (seed, violation) in failures.iter().take(10) {
            println!("{}", report(*seed, violation));
        }
        let others: Vec<_> = failures.keys().collect();
        panic!("{} of {seeds} seeds fail: {others:?}\n{}", failures.len(), report(*seed, violation));
    }
    if seeds >= SEEDS {
        let met = [
            sum.across_servers,
            sum.recovered,
            sum.taken_over,
            sum.calls,
            sum.waited,
            sum.seen,
            sum.cells_moved,
        ];
        assert!(met.iter().all(|&count| count > 50), "every kind of event was met: {sum:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [1, 2, 3] {
        assert_eq!(run_caught(seed), run_caught(seed));
    }
}
