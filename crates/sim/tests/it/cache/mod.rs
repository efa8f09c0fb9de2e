//! Whole cache nodes over disks and a bucket that fail in every way, driven by a random mix of
//! requests and maintenance, against a model of every ref and blob.
//!
//! A seed is a life of one node that stands alone, of two that share a bucket, or of one and an
//! edge that fills itself from it. Each phase plays rounds of concurrent requests, whose pieces,
//! commits and maintenance interleave at random, and ends with a restart, a power failure at some
//! write, an index that is built again, writes that fail or take seconds, a full disk or quota, a
//! flipped bit, a part of the log that is lost, sectors in the places of others, syncs that did
//! nothing, a folder that is lost, or an export that another folder takes in. After each phase
//! everything is read by requests and compared: an acknowledged change is there; a key that damage
//! may have hit is as acknowledged or missing, never wrong, never older.
//!
//! A lost sector or sync may take record and fingerprint together: then a key has an acknowledged
//! value of any age. An edge serves what its upstream has once it may not believe its copies.
//!
//! Copies of what a bucket has may be damaged or lost as a whole: nothing is missing then.
//!
//! `THRONG_SEED=N` runs one seed and prints its steps, `THRONG_SEEDS=N` runs so many.

#![allow(clippy::print_stderr, reason = "steps of a run that is repeated")]

mod bucket;
mod faults;
mod model;
mod node;
mod requests;
mod upstream;
mod world;

/// About a minute of one core in the development profile.
const SEEDS: u64 = 1_000;

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

/// Its eviction takes the object of an upload, which is a blob that no ref reaches yet, before the
/// ref is put.
#[test]
fn a_ref_whose_object_is_evicted_while_it_is_put_is_stored() {
    world::live(3943, false);
}

/// Its disk fails to sync a delete, which the next start finds all the same.
#[test]
fn a_blob_that_is_stored_is_not_acknowledged_again_once_the_log_is_broken() {
    world::live(22349, false);
}

/// Its disk takes a part of an upload and refuses the rest, and the power fails after the cut.
#[test]
fn an_upload_that_was_refused_does_not_come_back_after_a_power_failure() {
    world::live(77_780, false);
}

/// Its collection takes what a ref names that is put without it afterwards.
#[test]
fn a_ref_without_what_it_reaches_keeps_nothing() {
    world::live(21439, false);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
