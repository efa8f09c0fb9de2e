//! Spec §26.2: the workloads are the published ones.

use throng_replication_bench::workload::{Chests, Group, SEED_BASE, World};

#[test]
fn checksums_are_the_published_ones() {
    let mut wrong = Vec::new();
    for (number, chests, objects, properties) in [
        (1, Chests::Sparse, 100.0, 1300.0),
        (2, Chests::Sparse, 100.0, 1300.0),
        (3, Chests::Sparse, 130.09, 1390.3),
        (3, Chests::Full, 1100.0, 11300.0),
        (4, Chests::Sparse, 160.46, 1481.4),
        (4, Chests::Full, 2100.0, 21300.0),
        (5, Chests::Sparse, 0.0, 0.0),
    ] {
        let group = Group::new(number).unwrap();
        let mut world = World::new(group, chests, SEED_BASE);
        let (mut dirty, mut set) = (0, 0);
        for _ in 0..300 {
            world.step();
            world.digest();
            dirty += world.things.iter().filter(|thing| thing.marked != 0).count();
            set += world.things.iter().map(|thing| thing.marked.count_ones()).sum::<u32>();
        }
        if Some(world.checksum()) != group.checksum(chests) {
            wrong.push(format!("group {number} {chests:?}: {:016x}", world.checksum()));
        }
        if objects > 0.0
            && ((dirty as f64 / 300.0 - objects).abs() > 0.01
                || (f64::from(set) / 300.0 - properties).abs() > 0.1)
        {
            wrong.push(format!(
                "group {number}: {} objects, {} properties",
                dirty as f64 / 300.0,
                f64::from(set) / 300.0
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
