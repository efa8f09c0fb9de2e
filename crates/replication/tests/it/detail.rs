//! Spec §26.14: levels of detail. Rates are kept, records are shared within a band, nothing is lost
//! between bands.

use crate::harness;
use harness::*;
use throng_replication::{Band, Handle, LodProfile, ServerConfig, View};

/// An object in each band of the reference profile, and one peer at the origin that owns none of
/// them.
fn net(profile: LodProfile, peers: usize) -> (Net, [Handle; 3]) {
    let config = ServerConfig { lod: Some(profile), ..ServerConfig::default() };
    let mut net = Net::with(config, peers);
    let handles = [5.0_f32, 30.0, 120.0].map(|x| {
        let handle = net.server.create(THING).unwrap();
        net.server.set(handle, POSITION, [x, 0.0, 0.0]).unwrap();
        handle
    });
    net.steps(40);
    (net, handles)
}

/// Frames in which the peer got an update of the object.
fn updates(net: &mut Net, handle: Handle) -> usize {
    let events = std::mem::take(&mut net.peers[0].events);
    let of = |event: &&throng_replication::ClientEvent| matches!(event, throng_replication::ClientEvent::Updated { handle: of, .. } if *of == handle);
    let count = events.iter().filter(of).count();
    net.peers[0].events = events;
    count
}

#[test]
fn each_band_has_its_rate_and_shares_records() {
    let (mut net, handles) = net(LodProfile::reference(), 20);
    net.peers[0].events.clear();
    let built = |net: &Net| {
        let stats = net.peers.iter().filter_map(|peer| net.server.connection_stats(peer.id));
        stats.fold((0, 0), |(copied, built), s| (copied + s.records_copied, built + s.records_built))
    };
    for (handle, expected) in handles.into_iter().zip([200, 100, 10_u64]) {
        let before = built(&net);
        net.peers[0].events.clear();
        for _ in 0..300 {
            net.server.set(handle, SCORE, net.frame).unwrap();
            net.step();
        }
        let count = updates(&mut net, handle) as u64;
        assert!(count.abs_diff(expected) <= 1, "{count} updates instead of {expected}");
        // Nineteen of twenty records are the band's common one, for each of the twenty peers.
        let after = built(&net);
        let (copied, built) = (after.0 - before.0, after.1 - before.1);
        assert!(copied >= 20 * (expected - 1), "{copied} copied");
        assert!(built * 19 <= copied, "{copied} copied, {built} built");
    }
}

#[test]
fn the_last_value_arrives_within_a_period() {
    let (mut net, handles) = net(LodProfile::reference(), 1);
    for (handle, frames) in handles.into_iter().zip([2, 3, 30_u32]) {
        net.server.set(handle, SCORE, 7_u32 + frames).unwrap();
        net.steps(frames + 1);
        assert_eq!(net.value(0, handle, SCORE), u64::from(7 + frames));
    }
}

#[test]
fn coming_nearer_brings_what_is_pending_at_once() {
    let (mut net, [_, _, far]) = net(LodProfile::reference(), 1);
    // Just sent, so that a whole second would pass.
    net.server.set(far, SCORE, 1_u32).unwrap();
    while net.value(0, far, SCORE) != 1 {
        net.step();
    }
    net.server.set(far, SCORE, 2_u32).unwrap();
    net.steps(3);
    assert_eq!(net.value(0, far, SCORE), 1);
    let id = net.peers[0].id;
    net.server.set_views(id, &[View { position: [115.0, 0.0, 0.0], ..View::default() }]);
    net.steps(2);
    assert_eq!(net.value(0, far, SCORE), 2);
}

#[test]
fn outward_takes_a_tenth_more() {
    let (mut net, [near, ..]) = net(LodProfile::reference(), 1);
    let id = net.peers[0].id;
    let mut rate_at = |distance: f32| {
        net.server.set_views(id, &[View { position: [5.0 + distance, 0.0, 0.0], ..View::default() }]);
        net.steps(5);
        net.peers[0].events.clear();
        for frame in 0..60_u32 {
            net.server.set(near, SCORE, net.frame + frame).unwrap();
            net.step();
        }
        updates(&mut net, near)
    };
    assert_eq!(rate_at(10.0), 40);
    assert_eq!(rate_at(10.9), 40);
    assert_eq!(rate_at(11.1), 20);
    assert_eq!(rate_at(10.9), 20);
    assert_eq!(rate_at(9.9), 40);
}

#[test]
fn far_bands_may_carry_less_and_nothing_is_lost() {
    let bands =
        vec![Band::new(20.0, 30.0), Band { properties: 1 << POSITION, ..Band::new(f32::INFINITY, 10.0) }];
    let (mut net, [near, _, far]) = net(LodProfile { bands, frame_rate: 30.0 }, 1);
    for handle in [near, far] {
        net.server.set(handle, HEALTH, 77_u32).unwrap();
        net.server.set(handle, POSITION, [if handle == near { 6.0_f32 } else { 121.0 }, 0.0, 0.0]).unwrap();
    }
    net.steps(10);
    assert_eq!(net.value(0, near, HEALTH), 77);
    assert_eq!(net.value(0, far, HEALTH), 0);
    let id = net.peers[0].id;
    net.server.set_views(id, &[View { position: [115.0, 0.0, 0.0], ..View::default() }]);
    net.steps(3);
    assert_eq!(net.value(0, far, HEALTH), 77);
}

/// Objects were put into bands only where there were two: changes gathered and never left.
#[test]
fn a_single_band_has_its_rate_everywhere() {
    let profile = LodProfile { bands: vec![Band::new(10.0, 10.0)], frame_rate: 30.0 };
    let (mut net, handles) = net(profile, 1);
    for handle in handles {
        net.peers[0].events.clear();
        for value in 1..=90_u32 {
            net.server.set(handle, SCORE, value).unwrap();
            net.step();
        }
        assert!(updates(&mut net, handle).abs_diff(30) <= 1, "{}", updates(&mut net, handle));
        net.steps(4);
        assert_eq!(net.value(0, handle, SCORE), 90);
    }
}

#[test]
fn an_owner_gets_every_frame() {
    let (mut net, [_, _, far]) = net(LodProfile::reference(), 1);
    let id = net.peers[0].id;
    net.server.set_owner(far, Some(id)).unwrap();
    net.steps(2);
    for value in 1..20_u32 {
        net.server.set(far, SCORE, value).unwrap();
        net.steps(1);
        assert_eq!(net.value(0, far, SCORE), u64::from(value));
    }
}

#[test]
fn wandering_through_bands_with_loss_converges() {
    for class in [THING, DELTA_THING] {
        let config = ServerConfig { lod: Some(LodProfile::reference()), ..ServerConfig::default() };
        let mut net = Net::with(config, 3);
        let handles: Vec<Handle> = (0..40).map(|_| net.server.create(class).unwrap()).collect();
        net.link = Link { loss: 0.1, delay: 2, ..Link::default() };
        for frame in 0..200_u32 {
            for (at, handle) in handles.iter().enumerate() {
                let x = ((frame as f32 / 20.0 + at as f32).sin() * 80.0) + at as f32;
                net.server.set(*handle, POSITION, [x, 0.0, 0.0]).unwrap();
                if (frame as usize + at).is_multiple_of(7) {
                    net.server.set(*handle, SCORE, frame).unwrap();
                    net.server.set(*handle, HEALTH, frame % 1000).unwrap();
                }
            }
            net.step();
        }
        // A second for the farthest band, then what was lost.
        net.settle(40);
        net.check(&handles);
    }
}
