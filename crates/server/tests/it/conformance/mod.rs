//! The observed conversations of the reference gateway play equivalent over real sockets, with 1, 2
//! and 4 shards: the same player and the same table of deviations as over the simulator
//! (`throng-conformance`), on another stage.
//!
//! Nothing here waits for silence. A step ends when everything that it expects has arrived and a
//! barrier has passed: each connection asked for something and got its answer, so that all it had
//! sent is handled and all that was written to it is here, and every shard has answered as often as
//! mail between shards can have mail as its consequence. Messages that only time brings (fan-outs,
//! ends of recoveries) may thus come in a later step than they were caused in, never get lost or
//! multiply; that they come at the right time is for the simulator to show.
//!
//! Every conversation has a gateway of its own, on free ports in this process; all run at once.

mod socket_stage;

use std::time::Duration;

use socket_stage::{Carrier, PATIENCE, SocketStage, World};
use throng_conformance::{DEVIATIONS, scenarios};

/// Time for which lost servers are kept in a first play; a machine that is too slow for it plays
/// again with more. The reference was watched with 8 s; less only saves time.
const KEPT_FIRST: Duration = Duration::from_secs(4);

fn play_all(carrier: Carrier, world: World) {
    let plays: Vec<_> = scenarios()
        .into_iter()
        .flat_map(|scenario| [(scenario.clone(), 1), (scenario.clone(), 2), (scenario, 4)])
        .collect();
    assert_eq!(plays.len(), 8 * 3);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = plays
            .iter()
            .map(|(scenario, shards)| {
                scope.spawn(move || {
                    let mut kept = KEPT_FIRST;
                    let differences = loop {
                        let mut stage = SocketStage::new(scenario, *shards, carrier, world, kept);
                        let differences = scenario.play(&mut stage, DEVIATIONS);
                        if !stage.is_late() || kept > PATIENCE {
                            break differences;
                        }
                        kept *= 4;
                    };
                    let how = format!("{} with {shards} shards over {carrier:?}", scenario.name);
                    (!differences.is_empty()).then(|| format!("{how}:\n{}", differences.join("\n")))
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("a play does not panic")).collect()
    });
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), plays.len(), failures.join("\n"));
}

#[test]
fn every_conversation_plays_over_tcp() {
    play_all(Carrier::Tcp, World::Main);
}

#[test]
fn every_conversation_plays_over_enet() {
    play_all(Carrier::Enet, World::Main);
}

#[test]
fn every_conversation_plays_over_websocket() {
    play_all(Carrier::WebSocket, World::Main);
}

#[test]
fn every_conversation_plays_in_one_of_sixty_worlds() {
    play_all(Carrier::Tcp, World::OneOfSixty);
}

#[test]
fn every_conversation_plays_in_a_named_world_on_all_threads() {
    play_all(Carrier::Tcp, World::Wide);
}
