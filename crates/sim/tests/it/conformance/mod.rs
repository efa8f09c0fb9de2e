//! The observed conversations of the reference gateway play equivalent here: order, recipients,
//! stub ids and decoded bodies, except where the specification asks for something else
//! (`DEVIATIONS`).

mod virtual_stage;

use throng_conformance::{DEVIATIONS, Scenario, Stage, scenarios};
use throng_gateway::Framing;
use virtual_stage::VirtualStage;

fn check(scenario: &Scenario, mut stage: impl Stage, how: &str) -> Result<(), String> {
    let differences = scenario.play(&mut stage, DEVIATIONS);
    if differences.is_empty() { Ok(()) } else { Err(format!("{how}:\n{}", differences.join("\n"))) }
}

#[test]
fn every_conversation_plays_over_the_simulator_with_1_2_and_4_shards() {
    let mut failures = Vec::new();
    let mut played = 0;
    for scenario in scenarios() {
        for shards in [1, 2, 4] {
            for framing in [Framing::Stream, Framing::WebSocket] {
                for seed in 0..4 {
                    let how = format!("{} with {shards} shards, {framing:?}, seed {seed}", scenario.name);
                    let stage = VirtualStage::new(&scenario, shards, framing, seed);
                    failures.extend(check(&scenario, stage, &how).err());
                    played += 1;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {played} differ; the first:\n{}", failures.len(), failures[0]);
    assert_eq!(played, 8 * 3 * 2 * 4);
}
