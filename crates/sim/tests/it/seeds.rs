//! A thousand runs with a thousand seeds.
//!
//! `THRONG_SEED=17` plays one seed, `THRONG_SEEDS=100000` plays more of them, `THRONG_TRACE=1`
//! prints what every peer sees.

use crate::common;

use std::collections::BTreeMap;

use common::{COUNT, SEEDS};
use throng_sim::{FaultKind, RunReport, run};

/// The sum of the runs, and how many met each kind of fault.
type Sum = (RunReport, BTreeMap<FaultKind, u64>);

fn add((sum, faults): &mut Sum, outcome: RunReport) {
    sum.virtual_time += outcome.virtual_time;
    sum.steps += outcome.steps;
    sum.items += outcome.items;
    sum.updates += outcome.updates;
    sum.messages += outcome.messages;
    sum.converged += outcome.converged;
    sum.timed += outcome.timed;
    sum.resyncs += outcome.resyncs;
    sum.connections += outcome.connections;
    for kind in outcome.faults {
        *faults.entry(kind).or_default() += 1;
    }
}

#[test]
fn a_thousand_seeds_break_no_promise() {
    let Some((sum, faults)) = common::play("seeds", COUNT, run, add) else { return };
    assert_eq!(faults.len(), FaultKind::ALL.len(), "every kind of fault was met: {faults:?}");
    assert!(sum.resyncs > 0 && sum.converged > SEEDS && sum.items > 100 * SEEDS, "{sum:?}");
    assert!(sum.timed > 50 * SEEDS, "{sum:?}");
}

#[test]
fn a_seed_replays_exactly() {
    common::replays_exactly(run, &[1, 2, 3]);
}
