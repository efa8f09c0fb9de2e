//! Merging, folding and encoding a channel of 400 entries of 58-byte states, all replaced by every
//! update.
//!
//! `cargo bench -p throng-gateway --bench channel_data`. Divan reports items per second; an item is
//! one map entry.

use std::sync::Arc;

use bytes::Bytes;
use divan::{Bencher, black_box, counter::ItemsCount};
use throng_gateway::data::{ChannelData, Delta, FieldMask, Plan, Profile, SchemasBuilder, Update};

const ENTRIES: u32 = 400;

const PROTO: &str = r#"
syntax = "proto3";
package bench;
message Vec3 { float x = 1; float y = 2; float z = 3; }
message State { Vec3 position = 1; Vec3 rotation = 2; Vec3 velocity = 3; uint32 mode = 4; fixed32 time = 5; }
message World { map<uint32, State> states = 1; }
"#;

fn main() {
    divan::main();
}

fn plan(profile: Profile) -> Arc<Plan> {
    let schemas =
        SchemasBuilder::new().add_proto("bench.proto", PROTO).profile("bench.World", profile).build();
    schemas.expect("compiles").plan("bench.World").expect("defined").clone()
}

/// All states at time `time`; entries of the size that keys above 127 give.
fn update(plan: &Plan, time: u32) -> Update {
    let mut out = Vec::new();
    for id in 0..ENTRIES {
        let mut state = Vec::new();
        for field in 1..=3u8 {
            state.extend_from_slice(&[field << 3 | 2, 15]);
            for axis in 1..=3u8 {
                state.push(axis << 3 | 5);
                state.extend_from_slice(&(1.0 + (id + time * u32::from(axis)) as f32).to_le_bytes());
            }
        }
        state.extend_from_slice(&[4 << 3, 3, 5 << 3 | 5]);
        state.extend_from_slice(&(time + 1).to_le_bytes());
        assert_eq!(state.len(), 58);
        let key = 1000 + id;
        out.extend_from_slice(&[0x0a, 63, 0x08, key as u8 | 0x80, (key >> 7) as u8, 0x12, 58]);
        out.extend_from_slice(&state);
    }
    Update::check(plan, Bytes::from(out)).expect("valid")
}

fn filled(profile: Profile) -> (ChannelData, [Update; 2]) {
    let plan = plan(profile);
    let updates = [update(&plan, 1), update(&plan, 2)];
    let mut data = ChannelData::new(plan);
    data.merge_checked(&updates[0], None).expect("small");
    (data, updates)
}

#[divan::bench]
fn check(bencher: Bencher) {
    let plan = plan(Profile::Reflect);
    let bytes = update(&plan, 1).bytes().clone();
    bencher.counter(ItemsCount::new(ENTRIES)).bench_local(|| Update::check(&plan, black_box(bytes.clone())));
}

#[divan::bench(args = [Profile::Reflect, Profile::Removable, Profile::Unreal])]
fn merge_checked(bencher: Bencher, profile: Profile) {
    let (mut data, updates) = filled(profile);
    let mut turn = 0;
    bencher.counter(ItemsCount::new(ENTRIES)).bench_local(|| {
        turn ^= 1;
        data.merge_checked(black_box(&updates[turn]), None)
    });
}

#[divan::bench]
fn check_and_merge(bencher: Bencher) {
    let (mut data, updates) = filled(Profile::Reflect);
    let mut turn = 0;
    bencher.counter(ItemsCount::new(ENTRIES)).bench_local(|| {
        turn ^= 1;
        let update = Update::check(&data.plan().clone(), updates[turn].bytes().clone()).expect("valid");
        data.merge_checked(&update, None)
    });
}

#[divan::bench(args = [Profile::Reflect, Profile::Unreal])]
fn delta_of_two(bencher: Bencher, profile: Profile) {
    let (data, updates) = filled(profile);
    let mut delta = Delta::new(data.plan().clone());
    let mut out = Vec::new();
    bencher.counter(ItemsCount::new(2 * ENTRIES)).bench_local(|| {
        delta.clear();
        delta.accumulate_checked(black_box(&updates[0]), None);
        delta.accumulate_checked(black_box(&updates[1]), None);
        out.clear();
        delta.encode(None, &mut out);
        out.len()
    });
}

#[divan::bench]
fn encode(bencher: Bencher) {
    let (data, _) = filled(Profile::Reflect);
    let mut out = Vec::new();
    bencher.counter(ItemsCount::new(ENTRIES)).bench_local(|| {
        out.clear();
        data.encode(None, &mut out);
        out.len()
    });
}

#[divan::bench]
fn encode_masked(bencher: Bencher) {
    let (data, _) = filled(Profile::Reflect);
    let mask = FieldMask::compile(data.plan(), &["states.position", "states.mode"]);
    let mut out = Vec::new();
    bencher.counter(ItemsCount::new(ENTRIES)).bench_local(|| {
        out.clear();
        data.encode(Some(&mask), &mut out);
        out.len()
    });
}
