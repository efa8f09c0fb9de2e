//! Target for channel data: checking, merging, folding, masking and splitting.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use throng_gateway::data::{
    ChannelData, Delta, FieldMask, Joint, MergeOptions, Plan, Profile, SchemasBuilder, Update, filter, split,
    validate,
};
use throng_wire::{WireType, fields};

/// Updates of one channel. The first byte chooses the type, the second the merge options, the third
/// a mask and the size of parts; then come updates, each behind a byte that says its length.
///
/// Asserts that
/// - an update is merged exactly when it is valid, and a refused one changes nothing;
/// - the encoded state is what it says it is, and reads back as itself;
/// - updates folded into a delta leave a receiver with the state that they leave one by one;
/// - a mask cuts an encoded state as it cuts the state;
/// - the parts of a split are as small as asked, and merge to the whole.
pub fn data(input: &[u8]) {
    let [choice, options, cut, updates @ ..] = input else { return };
    let plan = &PLANS[usize::from(*choice) % PLANS.len()];
    let options = merge_options(*options);
    let mask = FieldMask::compile(plan, MASKS[usize::from(*cut) % MASKS.len()]);
    let part_bytes_max = usize::from(*cut).max(16);

    let mut state = ChannelData::new(plan.clone());
    let mut receiver = ChannelData::new(plan.clone());
    let mut delta = Delta::new(plan.clone());
    for update in pieces(updates) {
        let before = encode(&state);
        let checked = Update::check(plan, Bytes::copy_from_slice(update));
        let valid = validate(plan, update).is_ok();
        assert_eq!(checked.is_ok(), valid);
        assert_eq!(state.merge(update, options.as_ref()).is_ok(), valid);
        assert_eq!(delta.accumulate(update, options.as_ref()).is_ok(), valid);
        let Ok(checked) = checked else {
            assert_eq!(encode(&state), before, "a refused update changed the data");
            continue;
        };
        let mut kept = Vec::new();
        filter(plan, &mask, checked.bytes(), &mut kept);
        assert!(validate(plan, &kept).is_ok(), "a mask made an update invalid");
    }

    let whole = encode(&state);
    assert_eq!(whole.len(), state.encoded_len());
    assert!(validate(plan, &whole).is_ok());
    assert_eq!(encode(&read(plan, &whole)), whole);

    let mut messages = Vec::new();
    delta.encode_messages(None, &mut messages);
    assert_eq!(messages.iter().map(|message| message.len()).sum::<usize>(), delta.encoded_len());
    if options.is_none() {
        // With list options the reference's own deltas differ from its state; without, both must
        // agree.
        for message in &messages {
            receiver.merge(message, None).expect("a delta is valid");
        }
        assert!(same(&encode(&receiver), &whole), "a delta lost or doubled something");
    }

    let (mut masked, mut filtered) = (Vec::new(), Vec::new());
    state.encode(Some(&mask), &mut masked);
    filter(plan, &mask, &whole, &mut filtered);
    assert_eq!(masked, filtered);

    let mut parts = Vec::new();
    match split(plan, &whole, part_bytes_max, &mut parts) {
        Ok(joint) => {
            assert!(parts.iter().all(|part| part.len() <= part_bytes_max));
            let reader = &READERS[usize::from(*choice) % PLANS.len()];
            let mut receiver = ChannelData::new(reader.clone());
            for part in &parts {
                receiver.merge(part, None).expect("a part is valid");
            }
            let same = same(&encode(&receiver), &whole);
            assert!(same || joint == Joint::UnknownCut, "the parts of a split do not merge to the whole");
        }
        Err(_) => assert!(parts.is_empty()),
    }
}

/// The types whose data is attacked: every shape of field, every merge profile, and one that nobody
/// described.
const TYPES: [&str; 10] = [
    "testpb.TestFieldMaskMessage",
    "testpb.TestMapMessage",
    "testpb.TestMergeMessage",
    "chatpb.ChatChannelData",
    "unrealpb.SpatialChannelData",
    "tpspb.TestRepChannelData",
    "tpspb.EntityChannelData",
    "unrealpb.CharacterState",
    "nobody.Knows",
    "tankspb.TankGameChannelData",
];

static PLANS: LazyLock<Vec<Arc<Plan>>> = LazyLock::new(|| {
    let copy = |fields: &str| format!("copy {fields}").parse().expect("a rule");
    plans(
        builder()
            .profile("testpb.TestMergeMessage", Profile::Removable)
            .profile("tankspb.TankGameChannelData", Profile::Removable)
            .rule("tankspb.TankGameChannelData.tankStates", copy("health"))
            .rule("tankspb.TankGameChannelData.transformStates", copy("position rotation scale")),
    )
});

/// The same types as receivers merge them, who know no profiles.
static READERS: LazyLock<Vec<Arc<Plan>>> = LazyLock::new(|| {
    let described = TYPES.iter().filter(|name| **name != "nobody.Knows");
    plans(described.fold(builder(), |builder, name| builder.profile(name, Profile::Reflect)))
});

fn builder() -> SchemasBuilder {
    SchemasBuilder::new()
        .add_proto("test.proto", include_str!("../../../fixtures/proto/test.proto"))
        .add_proto("chat.proto", include_str!("../../../fixtures/proto/chat.proto"))
        .add_proto("tanks.proto", include_str!("../../../fixtures/proto/tanks.proto"))
        .add_proto("tps.proto", include_str!("../../../fixtures/proto/tps.proto"))
}

fn plans(builder: SchemasBuilder) -> Vec<Arc<Plan>> {
    let schemas = builder.build().expect("the fixtures compile");
    TYPES.map(|name| schemas.plan_or_opaque(name).expect("opaque types are allowed")).into()
}

const MASKS: [&[&str]; 6] = [
    &[],
    &["name", "kv1.p1"],
    &["list.p2", "msg"],
    &["kv2", "kv3.num", "kv.content"],
    &["actorStates.owner"],
    &["x"],
];

fn merge_options(bits: u8) -> Option<MergeOptions> {
    (bits & 1 != 0).then(|| MergeOptions {
        replace_list: bits & 2 != 0,
        list_size_limit: u32::from(bits >> 5),
        truncate_top: bits & 4 != 0,
        check_removable: bits & 8 != 0,
    })
}

/// Whether two encodings hold the same records: the entries of a map have no order. Generated
/// decoders are of no help, they refuse fields of another wire type, which the gateway keeps as
/// unknown.
fn same(one: &[u8], other: &[u8]) -> bool {
    one == other || sorted(one, 0) == sorted(other, 0)
}

/// The records of what may be a message, sorted at every level; anything else as it is.
fn sorted(bytes: &[u8], depth: usize) -> Vec<u8> {
    let records: Result<Vec<_>, _> = fields(bytes).collect();
    let Some(records) = records.ok().filter(|_| depth < 16) else { return bytes.to_vec() };
    let mut records: Vec<Vec<u8>> = records
        .into_iter()
        .map(|field| {
            let mut record = field.number.to_be_bytes().to_vec();
            record.extend(match field.wire_type {
                WireType::Len => sorted(field.value, depth + 1),
                _ => field.value.to_vec(),
            });
            record
        })
        .collect();
    records.sort();
    records.concat()
}

/// Cuts the input into updates of up to 255 bytes.
fn pieces(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = input.split_first()?;
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        input = rest;
        Some(piece)
    })
}

fn read(plan: &Arc<Plan>, bytes: &[u8]) -> ChannelData {
    ChannelData::from_bytes(plan.clone(), bytes).expect("an encoded state is valid")
}

fn encode(state: &ChannelData) -> Vec<u8> {
    let mut out = Vec::new();
    state.encode(None, &mut out);
    out
}
