//! Bytes per client stay within the published bounds.

use throng_replication_bench::case::{Case, Mode, run};
use throng_replication_bench::workload::Group;

#[test]
fn records_are_shared_and_bytes_within_bounds() {
    let group = Group::new(1).unwrap();
    let plain = run(&Case { frames: 20, warmup: 20, ..Case::new(group, Mode::Shared) });
    let delta = run(&Case { frames: 20, warmup: 20, ..Case::new(group, Mode::SharedDelta) });
    assert!(plain.bytes_per_client_frame <= 3360.0, "{}", plain.bytes_per_client_frame);
    assert!(delta.bytes_per_client_frame <= 2750.0, "{}", delta.bytes_per_client_frame);
}
