//! Whole cache nodes over disks and a bucket that fail in every way, driven by a random mix of
//! requests and maintenance, against a model of every ref and blob.
//!
//! A seed is a life of one node that stands alone, or of two that share a bucket. Each phase plays
//! rounds of concurrent requests, whose pieces, commits and maintenance interleave at random, and
//! ends with a restart, a power failure at some write, an index that is built again, writes that
//! fail, a full disk, a flipped bit, a folder that is lost, or an export that another folder takes
//! in. After each phase everything is read by requests and compared: an acknowledged change is
//! there; a key that damage may have hit is as acknowledged or missing, never wrong, never older.
//!
//! Copies of what a bucket has may be damaged or lost as a whole: nothing is missing then.
//!
//! `THRONG_SEED=N` runs one seed and prints its steps, `THRONG_SEEDS=N` runs so many.

#![allow(clippy::print_stderr, reason = "steps of a run that is repeated")]

mod bucket;
mod model;
mod node;
mod requests;
mod world;

/// About 10 seconds of one core in the development profile.
const SEEDS: u64 = 100;

#[test]
fn a_cache_keeps_what_it_acknowledged() {
    if let Some(seed) = number("THRONG_SEED") {
        return world::live(seed, true);
    }
    let first = number("THRONG_FIRST_SEED").unwrap_or(0);
    for seed in first..first + number("THRONG_SEEDS").unwrap_or(SEEDS) {
        let run = std::panic::catch_unwind(|| world::live(seed, false));
        assert!(run.is_ok(), "replay with THRONG_SEED={seed} cargo test -p throng-sim --test it cache::");
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
