//! All methods bring all replicas up to date, with and without loss; threads change no byte.

use throng_replication_bench::case::{Case, Mode, run};
use throng_replication_bench::workload::Group;

const LOSSES: [f64; 4] = [0.0, 0.02, 0.05, 0.3];

#[test]
fn every_method_converges() {
    for mode in Mode::ALL {
        for (number, loss) in [1, 3].into_iter().flat_map(|number| LOSSES.map(|loss| (number, loss))) {
            let group = Group::new(number).unwrap();
            let case = Case { loss, frames: 4, warmup: 4, verify: true, ..Case::new(group, mode) };
            let verified = run(&case).verify.unwrap();
            assert!(verified.replicas > 90, "{verified:?}");
            assert_eq!(verified.differing, 0, "group {number}, {mode:?}, loss {loss}: {verified:?}");
        }
    }
}

#[test]
fn records_are_shared_and_bytes_within_bounds() {
    let group = Group::new(1).unwrap();
    let plain = run(&Case { frames: 20, warmup: 20, ..Case::new(group, Mode::Shared) });
    let delta = run(&Case { frames: 20, warmup: 20, ..Case::new(group, Mode::SharedDelta) });
    assert!(plain.bytes_per_client_frame <= 3360.0, "{}", plain.bytes_per_client_frame);
    assert!(delta.bytes_per_client_frame <= 2750.0, "{}", delta.bytes_per_client_frame);
}
