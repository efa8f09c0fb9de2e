//! Spec §26.3 and §26.4: whatever the link did, replicas equal the server's copy after quiet
//! frames.

use crate::harness;
use harness::*;
use throng_replication::{ClientEvent, DestroyReason, Event, Handle, ServerConfig, View};

/// A crowd that walks, changes, comes and goes for `frames` frames; then 20 quiet ones.
fn crowd(class: throng_replication::ClassId, link: Link, seed: u64, blackout: bool, config: ServerConfig) {
    crowd_over(class, link, seed, blackout, config, |_| {});
}

fn crowd_over(
    class: throng_replication::ClassId,
    link: Link,
    seed: u64,
    blackout: bool,
    config: ServerConfig,
    prepare: impl FnOnce(&mut Net),
) {
    let mut net = Net::with(config, 5);
    prepare(&mut net);
    net.link = link;
    net.rng = throng_stdx::Rng::new(seed);
    let mut rng = throng_stdx::Rng::new(seed + 1000);
    let mut all: Vec<Handle> = Vec::new();
    let mut living: Vec<Handle> = Vec::new();
    for frame in 0..150 {
        while living.len() < 60 {
            let handle = net.server.create(class).unwrap();
            all.push(handle);
            living.push(handle);
        }
        if rng.chance(0.3) {
            let at = rng.below(living.len() as u64) as usize;
            let handle = living.swap_remove(at);
            net.server.destroy(handle, DestroyReason::Destroyed, rng.chance(0.3)).unwrap();
        }
        for handle in &living {
            if rng.chance(0.4) {
                let mut place = || ((rng.f64() - 0.5) * 800.0) as f32;
                let position = [place(), place(), 0.0];
                if frame % 7 == 0 {
                    net.server.set(*handle, POSITION, position).unwrap();
                }
                net.server.set(*handle, HEALTH, rng.below(1000)).unwrap();
                net.server.set(*handle, SCORE, 100_000 + rng.below(800)).unwrap();
            }
            if rng.chance(0.02) {
                let name: Vec<u8> = (0..rng.below(30)).map(|_| rng.next_u32() as u8).collect();
                net.server.set(*handle, NAME, name).unwrap();
            }
        }
        for at in 0..net.peers.len() {
            let place = |rng: &mut throng_stdx::Rng| ((rng.f64() - 0.5) * 400.0) as f32;
            let position = [place(&mut rng), place(&mut rng), 0.0];
            if frame % 10 == 0 {
                net.server.set_views(net.peers[at].id, &[View { position, ..View::default() }]);
            }
        }
        if blackout && frame == 60 {
            net.link.loss = 1.0;
        }
        if blackout && frame == 125 {
            net.link.loss = link.loss;
        }
        net.step();
    }
    net.settle(20);
    net.check(&all);
}

#[test]
fn replicas_converge_after_bursts_of_loss() {
    for class in [THING, DELTA_THING] {
        let config = ServerConfig { packet_bytes_max: 300, ..ServerConfig::default() };
        for every in [45, 90] {
            // Twenty packets in a row, of each connection, again and again.
            crowd_over(class, Link::default(), every, false, config.clone(), |net| {
                let mut sent = [0; 5];
                net.fate = Some(Box::new(move |peer, _| {
                    sent[peer] += 1;
                    sent[peer] % every >= 20
                }));
            });
        }
    }
}

fn links() -> impl Iterator<Item = Link> {
    [0.0, 0.02, 0.05, 0.3].into_iter().flat_map(|loss| {
        [(0, 0.0), (5, 0.1)].map(|(reorder, duplicate)| Link { loss, duplicate, reorder, delay: 2 })
    })
}

#[test]
fn plain_replicas_converge_over_any_link() {
    for (seed, link) in links().enumerate() {
        for round in 0..3 {
            crowd(THING, link, seed as u64 + 100 * round, false, ServerConfig::default());
        }
    }
}

#[test]
fn differences_converge_over_any_link() {
    for (seed, link) in links().enumerate() {
        for round in 0..3 {
            crowd(DELTA_THING, link, seed as u64 + 100 * round, false, ServerConfig::default());
        }
    }
}

#[test]
fn replicas_converge_after_a_blackout() {
    for class in [THING, DELTA_THING] {
        crowd(class, Link { loss: 0.05, ..Link::default() }, 7, true, ServerConfig::default());
    }
}

#[test]
fn replicas_converge_in_small_packets() {
    for class in [THING, DELTA_THING] {
        let config = ServerConfig { packet_bytes_max: 150, ..ServerConfig::default() };
        crowd(class, Link { loss: 0.05, ..Link::default() }, 8, false, config);
    }
}

/// A session that is longer than there are sequence numbers, of packets in both directions and of
/// calls.
#[test]
fn replicas_converge_when_sequence_numbers_begin_again() {
    let mut net = Net::new(1);
    net.link = Link { loss: 0.1, duplicate: 0.1, reorder: 2, delay: 1 };
    let me = net.peers[0].id;
    let things = [THING, DELTA_THING].map(|class| net.server.create(class).unwrap());
    let [mine, other] = things;
    net.server.set_owner(mine, Some(me)).unwrap();
    net.steps(10);
    let (mut sent, mut called) = (0, 0);
    for round in 0..70_000_u32 {
        net.server.set([mine, other][round as usize % 2], SCORE, round).unwrap();
        if round % 50 == 0 {
            sent += 1;
            net.server.attach(me, other, sent, b"", true).unwrap();
            net.peers[0].client.attach(mine, sent, b"", true).unwrap();
        }
        net.step();
        net.peers[0].events.retain(|event| matches!(event, ClientEvent::Attachment(_)));
        while let Some(event) = net.server.poll_event() {
            called += u64::from(matches!(event, Event::Attachment(..)));
        }
    }
    net.settle(20);
    while let Some(event) = net.server.poll_event() {
        called += u64::from(matches!(event, Event::Attachment(..)));
    }
    net.peers[0].events.retain(|event| matches!(event, ClientEvent::Attachment(_)));
    net.check(&things);
    let stats = net.server.connection_stats(me).unwrap();
    assert!(stats.packets_sent > 1 << 16, "{stats:?}");
    assert_eq!((net.peers[0].events.len() as u64, called), (sent, sent));
}
