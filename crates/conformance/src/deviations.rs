//! Where this gateway does something else than the reference, on purpose.

use std::collections::BTreeMap;

use crate::transcript::{Deviation, Message};

type Expect = BTreeMap<String, Vec<Message>>;

/// The table. Each entry changes what one step expects.
pub const DEVIATIONS: &[Deviation] = &[
    Deviation {
        scenario: "channels_and_access",
        step: 26,
        why: "the remover is answered with its stub, also when it is not subscribed (§5.6)",
        change: |expect, _| {
            let told = expect["c2"][0].clone();
            expect.insert("master".into(), vec![Message { stub: 18, ..told }]);
        },
    },
    Deviation {
        scenario: "owner_loss_removes_channel",
        step: 6,
        why: "automatic removal is announced with type 4 instead of 0 (§5.6)",
        change: |expect, _| removal_has_type_4(expect),
    },
    Deviation {
        scenario: "framing_and_state_machine",
        step: 5,
        why: "an undecodable packet closes the connection instead of wedging it (§2.1)",
        change: |_, closed| closed.push("garbage".into()),
    },
    Deviation {
        scenario: "server_recovery",
        step: 21,
        why: "only a recovered owner is announced with type 23 (§4.7)",
        change: |expect, _| {
            for messages in expect.values_mut() {
                messages.retain(|m| m.msg_type != 23);
            }
        },
    },
    Deviation {
        scenario: "server_recovery",
        step: 22,
        why: "automatic removal is announced with type 4 instead of 0 (§5.6)",
        change: |expect, _| removal_has_type_4(expect),
    },
];

fn removal_has_type_4(expect: &mut Expect) {
    for message in expect.values_mut().flatten() {
        if message.msg_type == 0 {
            message.msg_type = 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_names_a_conversation() {
        let scenarios = crate::scenarios();
        for deviation in DEVIATIONS {
            let known = scenarios.iter().any(|scenario| scenario.name == deviation.scenario);
            assert!(known, "{} step {}: {}", deviation.scenario, deviation.step, deviation.why);
        }
    }
}
