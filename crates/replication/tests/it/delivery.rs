//! Spec §26.5 to §26.10: what is sent, what is sent again, and lives of objects under every small
//! pattern of loss.

use crate::harness;
use harness::*;
use throng_replication::wire::{HEADER_BYTES, kind};
use throng_replication::{
    AttachError, ClientEvent, DestroyReason, Event, Filter, Handle, ServerConfig, Value,
};

fn one_thing(net: &mut Net) -> Handle {
    let handle = net.server.create(THING).unwrap();
    net.steps(8);
    assert!(net.server.is_live(net.peers[0].id, handle));
    handle
}

#[test]
fn the_same_value_sends_nothing() {
    let mut net = Net::new(1);
    let thing = one_thing(&mut net);
    net.server.set(thing, HEALTH, 7_u32).unwrap();
    net.steps(8);
    for _ in 0..5 {
        net.server.set(thing, HEALTH, 7_u32).unwrap();
        // Another live value, the same quantised one.
        net.server.set(thing, POSITION, [0.001_f32, 0.0, 0.0]).unwrap();
        net.step();
        assert_eq!(net.bytes_sent(0), 0);
    }
}

#[test]
fn a_change_that_reverts_within_a_frame_sends_nothing() {
    let mut net = Net::new(1);
    let thing = one_thing(&mut net);
    net.server.set(thing, HEALTH, 9_u32).unwrap();
    net.server.set(thing, HEALTH, 0_u32).unwrap();
    net.step();
    assert_eq!(net.bytes_sent(0), 0);
}

#[test]
fn an_object_created_and_destroyed_within_a_frame_sends_nothing() {
    let mut net = Net::new(1);
    one_thing(&mut net);
    let brief = net.server.create(THING).unwrap();
    net.server.set(brief, HEALTH, 9_u32).unwrap();
    net.server.destroy(brief, DestroyReason::Destroyed, false).unwrap();
    net.step();
    assert_eq!(net.bytes_sent(0), 0);
    assert!(net.server.set(brief, HEALTH, 1_u32).is_err());
    net.server.mark_dirty(brief, 1);
    assert_eq!(net.server.stats().stale_marks, 1);
}

#[test]
fn an_update_is_what_the_specification_says() {
    let mut net = Net::new(1);
    let thing = one_thing(&mut net);
    net.server.set(thing, AMMO, 0xa5_u32).unwrap();
    net.step();
    let packet = &net.peers[0].sent[0];
    // One section, one record: index, not full, mask of five with bit 2, no difference, eight bits;
    // 15 bits in all.
    let bits = 0b00100_u16 << 1 | 0xa5 << 7;
    let expected = [kind::UPDATE, 1, thing.index() as u8, bits as u8, (bits >> 8) as u8];
    assert_eq!(packet[HEADER_BYTES..], expected);
}

#[test]
fn a_loss_is_mended_with_the_newest_value() {
    for later in [1, 2, 3] {
        let mut net = Net::new(1);
        let thing = one_thing(&mut net);
        // All ones look the same at any bit position.
        net.server.set(thing, SCORE, u32::MAX).unwrap();
        net.fate = Some(Box::new(|_, _| false));
        net.step();
        net.fate = None;
        for _ in 1..later {
            net.server.set(thing, HEALTH, 5_u32 + later).unwrap();
            net.step();
        }
        net.server.set(thing, SCORE, 0x2222_2222_u32).unwrap();
        for _ in 0..12 {
            net.step();
            for packet in &net.peers[0].sent {
                let body = &packet[HEADER_BYTES..];
                assert!(!body.windows(3).any(|window| window == [0xff; 3]), "the old value was sent again");
            }
        }
        net.check(&[thing]);
    }
}

#[test]
fn what_a_later_packet_carries_is_not_sent_again() {
    let mut net = Net::new(1);
    let thing = one_thing(&mut net);
    net.fate = Some(Box::new(|_, _| false));
    net.server.set(thing, SCORE, 1_u32).unwrap();
    net.step();
    net.fate = None;
    for value in 2..6_u32 {
        net.server.set(thing, SCORE, value).unwrap();
        net.step();
    }
    net.settle(10);
    net.check(&[thing]);
    let stats = net.server.connection_stats(net.peers[0].id).unwrap();
    assert_eq!((stats.packets_lost, stats.properties_resent), (1, 0));
}

/// Runs a script under small patterns of loss, and checks the end: all of six frames, each with up
/// to two losses in the other direction; and of sixteen frames, in which the script comes more than
/// twice, those that lose up to three packets.
fn every_small_loss(script: impl Fn(&mut Net, &mut Vec<Handle>, u32)) {
    let ups: Vec<u32> = (0_u32..64).filter(|pattern| pattern.count_ones() <= 2).collect();
    small_losses(&script, 6, 0..64, &ups);
    let few = (0_u32..1 << 16).filter(|pattern| pattern.count_ones() <= 3);
    small_losses(&script, 16, few, &[0, 0b11_1000]);
}

fn small_losses(
    script: &impl Fn(&mut Net, &mut Vec<Handle>, u32),
    frames: u32,
    patterns: impl Iterator<Item = u32>,
    ups: &[u32],
) {
    for down in patterns {
        for up in ups {
            let mut net = Net::with(ServerConfig { hysteresis_frames: 0, ..ServerConfig::default() }, 1);
            let mut handles = vec![one_thing(&mut net)];
            let mut count = 0;
            net.fate = Some(Box::new(move |_, _| {
                count += 1;
                down >> (count - 1).min(31) & 1 == 0
            }));
            for frame in 0..frames {
                script(&mut net, &mut handles, frame % 6);
                net.up_lost = up >> frame & 1 != 0;
                net.step();
            }
            net.settle(25);
            net.check(&handles);
        }
    }
}

#[test]
fn creation_survives_every_small_loss() {
    every_small_loss(|net, handles, frame| {
        if frame == 0 {
            handles.push(net.server.create(THING).unwrap());
        }
        let handle = *handles.last().unwrap();
        net.server.set(handle, HEALTH, 100 + frame).unwrap();
    });
}

#[test]
fn destruction_survives_every_small_loss() {
    every_small_loss(|net, handles, frame| {
        if !net.server.exists(*handles.last().unwrap()) && frame == 0 {
            handles.push(net.server.create(THING).unwrap());
        }
        let thing = *handles.last().unwrap();
        if frame < 3 {
            net.server.set(thing, HEALTH, 100 + frame).unwrap();
        }
        if frame == 2 {
            net.server.destroy(thing, DestroyReason::Destroyed, false).unwrap();
        }
    });
}

#[test]
fn create_destroy_create_survives_every_small_loss() {
    every_small_loss(|net, handles, frame| match frame {
        0 | 2 | 4 => {
            let handle = net.server.create(DELTA_THING).unwrap();
            net.server.set(handle, SCORE, frame + 1).unwrap();
            handles.push(handle);
        }
        1 | 3 => {
            let handle = *handles.last().unwrap();
            net.server.destroy(handle, DestroyReason::Destroyed, frame == 3).unwrap();
        }
        _ => {}
    });
}

#[test]
fn leaving_and_coming_back_survives_every_small_loss() {
    every_small_loss(|net, handles, frame| {
        let x = if frame % 2 == 0 { 1000.0_f32 } else { 0.0 };
        net.server.set(handles[0], POSITION, [x, 0.0, 0.0]).unwrap();
        net.server.set(handles[0], HEALTH, frame).unwrap();
    });
}

#[test]
fn an_index_is_used_again_only_when_everybody_forgot_it() {
    let mut net = Net::new(1);
    let first = one_thing(&mut net);
    net.up_lost = true;
    net.server.destroy(first, DestroyReason::Destroyed, false).unwrap();
    net.steps(3);
    // The receiver has destroyed it, but the server cannot know yet.
    assert!(net.peers[0].client.replica(first.index()).is_none());
    for _ in 0..200 {
        assert_ne!(net.server.create(THING).unwrap().index(), first.index());
    }
    net.settle(10);
    let seconds: Vec<Handle> = (0..100).map(|_| net.server.create(THING).unwrap()).collect();
    let second = seconds.iter().find(|handle| handle.index() == first.index()).unwrap();
    assert_eq!(second.generation(), first.generation() + 1);
    assert!(!net.server.exists(first) && net.server.exists(*second));
}

#[test]
fn what_is_torn_off_keeps_its_last_state() {
    let mut net = Net::new(1);
    let thing = one_thing(&mut net);
    net.link.loss = 0.5;
    net.server.set(thing, HEALTH, 77_u32).unwrap();
    net.server.destroy(thing, DestroyReason::TornOff, true).unwrap();
    let mut health = None;
    for _ in 0..60 {
        if let Some(replica) = net.peers[0].client.replica(thing.index()) {
            health = replica.value(HEALTH);
        }
        // The last state and the end come in one packet: read it from the packet.
        net.step();
        for packet in &net.peers[0].sent {
            if packet[HEADER_BYTES..].contains(&kind::DESTROY) {
                assert_eq!(packet[HEADER_BYTES], kind::SIZED_UPDATE);
            }
        }
    }
    let _ = health;
    let reasons: Vec<_> = net.peers[0]
        .events
        .iter()
        .filter_map(|event| match event {
            ClientEvent::Destroyed { reason, .. } => Some(*reason),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, [DestroyReason::TornOff]);
}

/// A replica that lives on is right, flushed or not.
#[test]
fn what_is_torn_off_has_its_last_properties_without_a_flush() {
    for lost in 0..4 {
        let mut net = Net::new(1);
        let thing = one_thing(&mut net);
        net.server.set(thing, HEALTH, 77_u32).unwrap();
        net.server.destroy(thing, DestroyReason::TornOff, false).unwrap();
        net.link.loss = 1.0;
        net.steps(lost);
        net.settle(60);
        let lasts = net.peers[0].events.iter().filter_map(|event| match event {
            ClientEvent::Destroyed { last, .. } => last.value(HEALTH),
            _ => None,
        });
        assert_eq!(lasts.collect::<Vec<_>>(), [Value::UInt(77)], "{lost} frames lost");
    }
}

/// Every reliable call arrives or is reported as dropped, under every loss of calls and of the end,
/// in scope and out of scope.
#[test]
fn calls_on_an_object_that_ends_arrive_or_are_reported() {
    // Bit i: the packets of frame i are lost.
    for (fate, leaves) in (0..64_u32).flat_map(|fate| [(fate, false), (fate, true)]) {
        let mut net = Net::new(1);
        let thing = one_thing(&mut net);
        let id = net.peers[0].id;
        let mut dropped = 0;
        for frame in 0..40_u32 {
            // A call of one part, one of three, and one of one part again.
            if let Some(bytes) = [10, 1200, 20].get(frame as usize) {
                net.server.attach(id, thing, u64::from(frame), &vec![1; *bytes], true).unwrap();
            }
            if leaves && frame == 3 {
                net.server.set_filter(thing, Filter::Never).unwrap();
            }
            if frame == 4 {
                net.server.destroy(thing, DestroyReason::Destroyed, false).unwrap();
            }
            net.link.loss = if fate >> frame.min(31) & 1 != 0 { 1.0 } else { 0.0 };
            net.step();
            while let Some(event) = net.server.poll_event() {
                if let Event::AttachmentsDropped { connection, object, count } = event {
                    assert_eq!((connection, object), (id, thing));
                    dropped += count;
                }
            }
        }
        let came = calls(&net, true);
        let in_order = came.iter().copied().eq(0..came.len() as u64);
        assert!(in_order && came.len() + dropped >= 3, "{fate:06b}, {leaves}: {came:?}, {dropped} dropped");
        assert!(fate != 0 || came.len() == 3, "nothing was lost: {came:?}");
    }
}

fn calls(net: &Net, reliable: bool) -> Vec<u64> {
    let events = net.peers[0].events.iter();
    events
        .filter_map(|event| match event {
            ClientEvent::Attachment(call) if call.reliable == reliable => Some(call.method),
            _ => None,
        })
        .collect()
}

#[test]
fn reliable_calls_arrive_once_and_in_order() {
    for seed in 0..10 {
        let mut net = Net::new(1);
        net.rng = throng_stdx::Rng::new(seed);
        let thing = one_thing(&mut net);
        net.link = Link { loss: 0.3, duplicate: 0.2, reorder: 3, delay: 1 };
        for call in 0..300_u64 {
            let bytes = vec![call as u8; (call * 7 % 1500) as usize];
            if net.server.attach(net.peers[0].id, thing, call, &bytes, true) == Err(AttachError::Overflow) {
                panic!("the queue holds 256 KiB");
            }
            net.server.attach(net.peers[0].id, thing, call, &bytes[..bytes.len().min(100)], false).unwrap();
            net.step();
        }
        net.settle(40);
        assert!(calls(&net, true).into_iter().eq(0..300));
        let unreliable = calls(&net, false);
        assert!(unreliable.len() > 100 && unreliable.is_sorted());
        for event in &net.peers[0].events {
            if let ClientEvent::Attachment(call) = event
                && call.reliable
            {
                assert_eq!(call.bytes, vec![call.method as u8; (call.method * 7 % 1500) as usize]);
            }
        }
    }
}

#[test]
fn too_many_reliable_calls_overflow() {
    let mut net = Net::new(1);
    let thing = one_thing(&mut net);
    let id = net.peers[0].id;
    let results: Vec<_> = (0..6).map(|call| net.server.attach(id, thing, call, &[0; 50_000], true)).collect();
    assert_eq!(results[4..], [Ok(()), Err(AttachError::Overflow)]);
    assert!(matches!(net.server.attach(id, thing, 0, &[0; 70_000], true), Err(AttachError::TooLong { .. })));
    assert!(matches!(net.server.attach(id, thing, 0, &[0; 1100], false), Err(AttachError::TooLong { .. })));
}

#[test]
fn a_call_never_overtakes_the_state_of_its_object() {
    // A crowd and small packets, so that state and call stand in different packets; and a budget
    // that postpones state.
    for budget in [None, Some((9000.0, 300.0))] {
        let mut net = Net::with(ServerConfig { packet_bytes_max: 200, ..ServerConfig::default() }, 1);
        let things: Vec<Handle> = (0..60).map(|_| net.server.create(THING).unwrap()).collect();
        net.steps(20);
        net.server.set_budget(net.peers[0].id, budget);
        net.link = Link { reorder: 2, ..Link::default() };
        let mut seen = 0;
        for value in 1..100_u64 {
            for thing in &things {
                net.server.set(*thing, SCORE, value).unwrap();
            }
            let last = *things.last().unwrap();
            net.server.attach(net.peers[0].id, last, value, &[], true).unwrap();
            net.peers[0].events.clear();
            net.step();
            let score = net.value(0, last, SCORE);
            for call in calls(&net, true) {
                assert!(call <= score, "call {call} came when the score was {score}");
                seen = call;
            }
        }
        assert!(seen > 80, "calls came up to {seen}");
    }
}

#[test]
fn a_client_calls_on_what_it_owns() {
    let mut net = Net::new(2);
    let thing = one_thing(&mut net);
    net.server.set_owner(thing, Some(net.peers[0].id)).unwrap();
    net.steps(5);
    net.link.loss = 0.3;
    for call in 0..50 {
        net.peers[0].client.attach(thing, call, b"fire", true).unwrap();
        net.peers[0].client.send_input(&[call as u8]).unwrap();
        net.step();
    }
    net.settle(20);
    let mut methods = Vec::new();
    let mut inputs = Vec::new();
    while let Some(event) = net.server.poll_event() {
        match event {
            throng_replication::Event::Attachment(id, call) => {
                assert_eq!(id, net.peers[0].id);
                methods.push(call.method);
            }
            throng_replication::Event::Input(_, bytes) => inputs.push(bytes[0]),
            other => panic!("{other:?}"),
        }
    }
    assert!(methods.into_iter().eq(0..50));
    assert!(inputs.len() > 20 && inputs.is_sorted());
    // The other client does not own it.
    assert_eq!(net.peers[1].client.attach(thing, 1, b"steal", false), Err(AttachError::NoRight));
}

#[test]
fn an_input_is_there_before_the_next_frame() {
    let mut net = Net::new(1);
    net.peers[0].client.send_input(b"jump").unwrap();
    let packet = net.peers[0].client.poll_packet(net.now).unwrap().to_vec();
    net.server.receive(net.peers[0].id, &packet).unwrap();
    let id = net.peers[0].id;
    assert_eq!(net.server.poll_event(), Some(throng_replication::Event::Input(id, b"jump".to_vec())));
    assert_eq!(net.server.poll_event(), None);
}

#[test]
fn acknowledgements_of_packets_never_sent_are_refused() {
    let mut net = Net::new(1);
    one_thing(&mut net);
    let id = net.peers[0].id;
    let header = throng_replication::wire::Header { seq: 5000, ack: 4000, ack_bits: 0, frame: 0 };
    let result = net.server.receive(id, &header.to_bytes());
    assert_eq!(result, Err(throng_replication::wire::DecodeError::AckUnsent));
}

#[test]
fn a_receiver_without_its_history_recovers() {
    let mut net = Net::new(1);
    let thing = net.server.create(DELTA_THING).unwrap();
    net.steps(8);
    for value in 0..40_u32 {
        net.server.set(thing, SCORE, 1_000_000 + value).unwrap();
        net.server.set(thing, HEALTH, 500 + value).unwrap();
        if value % 10 == 5 {
            net.peers[0].client.forget_history();
        }
        net.step();
    }
    net.settle(10);
    net.check(&[thing]);
}

#[test]
fn a_baseline_that_is_too_old_is_not_used() {
    let mut net = Net::new(1);
    let thing = net.server.create(DELTA_THING).unwrap();
    net.steps(8);
    for gap in [1, 30, 31, 32, 33, 34, 100] {
        net.server.set(thing, SCORE, 1_000_000 + gap).unwrap();
        net.steps(gap);
    }
    net.settle(5);
    net.check(&[thing]);
}

/// Nothing that the server says would show the client what was lost.
#[test]
fn a_call_that_was_lost_arrives_though_nobody_says_more() {
    let mut net = Net::new(1);
    let thing = one_thing(&mut net);
    net.server.set_owner(thing, Some(net.peers[0].id)).unwrap();
    net.steps(60);
    while net.server.poll_event().is_some() {}
    net.up_lost = true;
    net.peers[0].client.attach(thing, 7, b"lost", true).unwrap();
    net.step();
    net.up_lost = false;
    let mut calls = 0;
    for _ in 0..60 {
        net.step();
        while let Some(event) = net.server.poll_event() {
            calls += u32::from(matches!(event, Event::Attachment(_, call) if call.bytes == b"lost"));
        }
    }
    assert_eq!(calls, 1);
    // Once it was acknowledged, nothing is repeated.
    assert!(net.peers[0].client.poll_packet(net.now).is_none());
}

/// The request for a state that is not there is repeated as well.
#[test]
fn a_request_for_a_lost_baseline_is_repeated() {
    let mut net = Net::new(1);
    let thing = net.server.create(DELTA_THING).unwrap();
    net.steps(8);
    net.server.set(thing, HEALTH, 5_u32).unwrap();
    net.steps(8);
    net.peers[0].client.forget_history();
    net.up_lost = true;
    net.server.set(thing, HEALTH, 6_u32).unwrap();
    net.steps(2);
    net.up_lost = false;
    net.steps(60);
    assert_eq!(net.value(0, thing, HEALTH), 6);
}

/// The call waited for one that was lost, and with it comes the end of the right to both.
#[test]
fn a_call_that_waited_for_a_refused_one_is_counted() {
    let mut net = Net::new(1);
    let thing = one_thing(&mut net);
    let id = net.peers[0].id;
    net.server.set_owner(thing, Some(id)).unwrap();
    net.steps(60);
    net.up_lost = true;
    net.peers[0].client.attach(thing, 1, b"lost", true).unwrap();
    net.step();
    net.up_lost = false;
    net.peers[0].client.attach(thing, 2, b"waits", true).unwrap();
    net.steps(1 + net.link.delay);
    net.server.set_owner(thing, None).unwrap();
    net.steps(30);
    assert_eq!(net.server.connection_stats(id).unwrap().calls_refused, 2);
    let calls = std::iter::from_fn(|| net.server.poll_event());
    assert_eq!(calls.filter(|event| matches!(event, Event::Attachment(..))).count(), 0);
}

#[test]
fn a_creation_that_is_sent_again_tells_of_a_new_owner() {
    let mut net = Net::new(1);
    let id = net.peers[0].id;
    net.steps(8);
    net.up_lost = true;
    let thing = net.server.create(THING).unwrap();
    net.steps(2);
    net.server.set_owner(thing, Some(id)).unwrap();
    net.steps(2);
    assert!(net.peers[0].client.get(thing).unwrap().is_owner());
    // By the time at which the server gives the creation up, the owner is another one.
    net.steps(20);
    net.server.set_owner(thing, None).unwrap();
    net.fate = Some(Box::new(|_, packet| packet[HEADER_BYTES..].first() != Some(&kind::ROLE)));
    net.steps(30);
    assert!(!net.peers[0].client.get(thing).unwrap().is_owner());
    let last = net.peers[0].events.iter().rev().find_map(|event| match event {
        ClientEvent::OwnerChanged { owner, .. } => Some(*owner),
        _ => None,
    });
    assert_eq!(last, Some(false));
}

/// More packets than one acknowledgement speaks of went out in a frame: the first ones counted as
/// lost, and the client heard of most ends twice.
#[test]
fn many_ends_at_once_are_spread_over_frames() {
    let mut net = Net::with(ServerConfig { packet_bytes_max: 64, ..ServerConfig::default() }, 1);
    let mut things: Vec<Handle> = (0..2000).map(|_| net.server.create(THING).unwrap()).collect();
    let names = (0..500).map(|at| format!("name {at:06}"));
    things.extend(names.map(|name| net.server.create_startup(THING, &name).unwrap()));
    net.steps(60);
    assert_eq!(net.peers[0].client.len(), things.len());
    for thing in things {
        net.server.destroy(thing, DestroyReason::Destroyed, false).unwrap();
    }
    // It hears of the names with their texts.
    net.join();
    net.steps(30);
    for peer in &net.peers {
        let named = |event: &&ClientEvent| matches!(event, ClientEvent::StartupDestroyed { .. });
        assert_eq!(peer.events.iter().filter(named).count(), 500);
        let stats = net.server.connection_stats(peer.id).unwrap();
        assert_eq!((peer.client.len(), stats.packets_lost), (0, 0));
    }
}
