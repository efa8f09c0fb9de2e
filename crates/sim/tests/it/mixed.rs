//! Long runs of the world together with everything else that the gateway does at the same time.
//!
//! `THRONG_SEED=17` plays one seed, `THRONG_MIXED_SEEDS=10000` plays more of them,
//! `THRONG_FIRST_SEED=500` begins there, `THRONG_TRACE=1` prints what every peer is sent.

use crate::common;

use throng_sim::{SpatialOutcome, run_mixed};

/// Few: a run takes a minute of virtual time and seconds of the processor.
const COUNT: (&str, u64) = ("THRONG_MIXED_SEEDS", 20);

fn add(sum: &mut SpatialOutcome, outcome: SpatialOutcome) {
    crate::spatial::add(sum, outcome);
    sum.in_rooms += outcome.in_rooms;
    sum.resyncs += outcome.resyncs;
    sum.closed += outcome.closed;
    sum.resumed += outcome.resumed;
    sum.struck += outcome.struck;
    sum.restarted += outcome.restarted;
}

#[test]
fn features_do_not_disturb_each_other() {
    let Some(sum) = common::play("mixed", COUNT, run_mixed, add) else { return };
    let SpatialOutcome {
        across_servers,
        recovered,
        calls,
        seen,
        in_rooms,
        resyncs,
        closed,
        resumed,
        struck,
        restarted,
        ..
    } = sum;
    let healed = struck - restarted;
    let met = [across_servers, recovered, calls, seen, in_rooms, resyncs, resumed, healed, restarted];
    // Most stalls end before a bound closes the client.
    assert!(met.iter().all(|&count| count > 20) && closed > 0, "every kind of event was met: {sum:?}");
}

#[test]
fn a_seed_replays_exactly() {
    common::replays_exactly(run_mixed, &[1]);
}
