//! A thousand worlds with a thousand seeds: handovers under crashes, partitions and contrived
//! walks.
//!
//! `THRONG_SEED=17` plays one seed, `THRONG_SEEDS=100000` plays more of them, `THRONG_TRACE=1`
//! prints what every peer is sent.

use crate::common;

use throng_sim::{SpatialOutcome, run_spatial};

pub(crate) fn add(sum: &mut SpatialOutcome, outcome: SpatialOutcome) {
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
    sum.objects += outcome.objects;
}

#[test]
fn a_thousand_worlds_lose_no_handover() {
    let Some(sum) = common::play("spatial", common::COUNT, run_spatial, add) else { return };
    let SpatialOutcome {
        across_servers,
        recovered,
        taken_over,
        calls,
        waited,
        seen,
        cells_moved,
        objects,
        ..
    } = sum;
    let met = [across_servers, recovered, taken_over, calls, waited, seen, cells_moved, objects];
    assert!(met.iter().all(|&count| count > 50), "every kind of event was met: {sum:?}");
}

#[test]
fn a_seed_replays_exactly() {
    common::replays_exactly(run_spatial, &[1, 2, 3]);
}
