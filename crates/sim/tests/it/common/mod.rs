//! Plays many seeds on all cores, and says which of them fail and how to repeat one.

#![allow(clippy::print_stdout, reason = "figures and notes of a test run")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_sim::Violation;

/// Seeds that a test plays when it is not told otherwise.
pub(crate) const SEEDS: u64 = 1000;
/// The variable that tells it otherwise, with them.
pub(crate) const COUNT: (&str, u64) = ("THRONG_SEEDS", SEEDS);

/// Plays one seed.
pub(crate) type Run<O> = fn(u64) -> Result<O, Violation>;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs a seed; a panic of the core counts as a violation.
fn caught<O>(run: Run<O>, seed: u64) -> Result<O, Violation> {
    std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Plays so many seeds, or as many as an environment variable says, from `THRONG_FIRST_SEED` on,
/// and adds their outcomes up. `THRONG_SEED` plays one and prints its outcome. Returns the sum if
/// not fewer seeds than by default were played. `test` is the name of the test file.
///
/// # Panics
/// When a seed fails.
pub(crate) fn play<O: Debug, S: Default + Debug + Send>(
    test: &str,
    (variable, wanted): (&str, u64),
    run: Run<O>,
    add: fn(&mut S, O),
) -> Option<S> {
    let report = |seed: u64, violation: &str| {
        format!(
            "seed {seed}: {violation}\n  replay: THRONG_SEED={seed} cargo test -p throng-sim --test it {test}::"
        )
    };
    if let Some(seed) = number("THRONG_SEED") {
        match caught(run, seed) {
            Ok(outcome) => println!("seed {seed}: {outcome:#?}"),
            Err(violation) => panic!("{}", report(seed, &violation)),
        }
        return None;
    }
    let seeds = number(variable).unwrap_or(wanted);
    let first = number("THRONG_FIRST_SEED").unwrap_or(0);
    let next = AtomicU64::new(first);
    let failures = Mutex::new(BTreeMap::new());
    let total = Mutex::new(S::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&s| s < first + seeds)
                {
                    match caught(run, seed) {
                        Err(violation) => {
                            failures.lock().expect("no panic").insert(seed, violation);
                        }
                        Ok(outcome) => add(&mut total.lock().expect("no panic"), outcome),
                    }
                }
            });
        }
    });
    let sum = total.into_inner().expect("no panic");
    println!("{seeds} seeds: {sum:?}");
    let failures = failures.into_inner().expect("no panic");
    if let Some((seed, violation)) = failures.iter().next() {
        for (seed, violation) in failures.iter().take(20) {
            println!("{}", report(*seed, violation));
        }
        let all: Vec<_> = failures.keys().collect();
        panic!("{} of {seeds} seeds fail: {all:?}\n{}", failures.len(), report(*seed, violation));
    }
    (seeds >= wanted).then_some(sum)
}

/// A seed gives the same run whenever it is played.
pub(crate) fn replays_exactly<O: Debug + PartialEq>(run: Run<O>, seeds: &[u64]) {
    for seed in seeds {
        assert_eq!(caught(run, *seed), caught(run, *seed));
    }
}
