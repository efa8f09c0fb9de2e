//! Intended deviations of this gateway from the reference.

use std::collections::BTreeMap;

use prost_reflect::prost::Message as Body;
use throng_wire::channeldpb::{
    ChannelDataAccess, ChannelDataHandoverMessage, RemoveChannelMessage, SpatialChannelsReadyMessage,
    SubscribedToChannelResultMessage,
};

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
        scenario: "spatial_setup_interest_takeover",
        step: 8,
        why: "each server is told its own index (§8.3) and watches its border as it asked for itself (§8.4)",
        change: |expect, _| {
            ready(expect, &[("srvA", 0), ("srvB", 1)]);
            let border = first_of(expect, "srvA", 6);
            edit(border, |result: &mut SubscribedToChannelResultMessage| {
                result.sub_options.get_or_insert_default().data_access =
                    Some(ChannelDataAccess::WriteAccess.into());
            });
        },
    },
    Deviation {
        scenario: "spatial_setup_interest_takeover",
        step: 18,
        why: "nobody but the requester gets its stub (§3.4)",
        change: |expect, _| first_of(expect, "c1", 7).stub = 0,
    },
    Deviation {
        scenario: "spatial_setup_interest_takeover",
        step: 26,
        why: "each server is told its own index (§8.3); a cell keeps its subscribers when another server takes it over (A-15)",
        change: |expect, _| {
            ready(expect, &[("srvC", 0), ("srvB", 1)]);
            for msg_type in [6, 8] {
                let list = expect.get_mut("srvB").expect("srvB gets something");
                let orphan =
                    list.iter().position(|message| message.msg_type == msg_type).expect("the message");
                list.remove(orphan);
            }
        },
    },
    Deviation {
        scenario: "entity_handover",
        step: 8,
        why: "each server is told its own index (§8.3)",
        change: |expect, _| ready(expect, &[("srvA", 0), ("srvB", 1)]),
    },
    handover_with_cause(21),
    handover_with_cause(22),
    handover_with_cause(23),
    handover_with_cause(24),
    Deviation {
        scenario: "entity_handover",
        step: 25,
        why: "a server from which a handover took an entity no longer writes its data (A-15)",
        change: |expect, _| {
            for name in ["c1", "c2"] {
                if let Some(messages) = expect.get_mut(name) {
                    messages.retain(|message| message.msg_type != 8);
                }
            }
        },
    },
    Deviation {
        scenario: "entity_handover",
        step: 29,
        why: "the subscribers of a removed entity are told (§5.6)",
        change: |expect, _| {
            let body = RemoveChannelMessage { channel_id: 0x8_0005 }.encode_to_vec();
            let removed = Message { msg_type: 4, body, ..Message::default() };
            for name in ["c1", "c2", "srvA"] {
                expect.entry(name.to_owned()).or_default().push(removed.clone());
            }
        },
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

const fn handover_with_cause(step: usize) -> Deviation {
    Deviation {
        scenario: "entity_handover",
        step,
        why: "a handover names the connection whose doing it is (§8.8)",
        change: |expect, _| {
            for message in expect.values_mut().flatten().filter(|message| message.msg_type == 12) {
                edit(message, |handover: &mut ChannelDataHandoverMessage| handover.context_conn_id = 4);
            }
        },
    }
}

/// SPATIAL_CHANNELS_READY with the server's own index.
fn ready(expect: &mut Expect, servers: &[(&str, u32)]) {
    for &(name, server_index) in servers {
        edit(first_of(expect, name, 18), |ready: &mut SpatialChannelsReadyMessage| {
            ready.server_index = server_index
        });
    }
}

fn first_of<'a>(expect: &'a mut Expect, name: &str, msg_type: u32) -> &'a mut Message {
    let list = expect.get_mut(name).unwrap_or_else(|| panic!("{name} gets something"));
    let message = list.iter_mut().find(|message| message.msg_type == msg_type);
    message.unwrap_or_else(|| panic!("{name} gets a message of type {msg_type}"))
}

fn edit<B: Body + Default>(message: &mut Message, change: impl FnOnce(&mut B)) {
    let mut body = B::decode(message.body.as_slice()).expect("a body of the fixture");
    change(&mut body);
    message.body = body.encode_to_vec();
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
