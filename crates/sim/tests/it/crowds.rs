//! The load balancer under moving crowds: what it is worth, and that it keeps its promises.
//!
//! `cargo test --release -p throng-sim --test it crowds:: -- --nocapture` prints the table.

#![allow(clippy::print_stdout, reason = "figures of a test run")]

use throng_sim::{CROWD_BALANCE, CrowdOutcome, Motion, run_crowd};

fn run(motion: Motion) -> [CrowdOutcome; 2] {
    let play =
        |balance| run_crowd(7, motion, balance).unwrap_or_else(|violation| panic!("{motion:?}: {violation}"));
    let outcomes = [play(None), play(Some(CROWD_BALANCE))];
    println!("load of the busiest of nine servers, the average being 1; {motion:?}:");
    for (name, outcome) in ["fixed", "balanced"].iter().zip(&outcomes) {
        println!(
            "  {name:<9} highest {:>4.2}  mean {:>4.2}  cells moved {:>3}, in the last third {:>2}, back {:>2}  handovers {}",
            outcome.highest,
            outcome.mean,
            outcome.moved,
            outcome.moved_late,
            outcome.returned,
            outcome.handovers
        );
    }
    outcomes
}

#[test]
fn a_crowd_that_stands_is_shared_out_and_left_alone() {
    let [fixed, balanced] = run(Motion::Stands);
    assert_eq!((fixed.moved, balanced.moved_late, balanced.returned), (0, 0, 0));
    assert!(fixed.highest > 8.0, "all of it is one server's: {fixed:?}");
    assert!(balanced.mean < fixed.mean / 2.0, "{balanced:?}");
}

#[test]
fn a_crowd_that_gathers_is_followed_without_oscillation() {
    let [fixed, balanced] = run(Motion::Gathers);
    assert!(balanced.mean < fixed.mean && balanced.highest < fixed.highest, "{fixed:?} {balanced:?}");
    assert_eq!(balanced.returned, 0, "{balanced:?}");
}

#[test]
fn a_crowd_that_walks_round_is_followed_without_oscillation() {
    let [fixed, balanced] = run(Motion::Circles);
    assert!(balanced.mean < fixed.mean * 0.8, "{fixed:?} {balanced:?}");
    assert_eq!(balanced.returned, 0, "{balanced:?}");
}
