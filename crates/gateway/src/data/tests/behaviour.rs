//! Rules and bounds that the random tests do not single out.

use bytes::Bytes;

use super::*;
use crate::data::{DEPTH_MAX, DataError, DataLimits, Delta, Joint, Update, filter, split};

const GAME_PROTO: &str = "syntax = \"proto3\"; package game;
message Item { int32 a = 1; bool removed = 2; string text = 3; }
message World { int32 number = 1; optional int32 maybe = 2; map<uint32, Item> items = 3; World inner = 4;
  float angle = 5; repeated string lines = 6; repeated int32 numbers = 7; }";

fn game(limits: DataLimits) -> Arc<Plan> {
    let schemas = SchemasBuilder::new().add_proto("game.proto", GAME_PROTO).limits(limits).build();
    plan(&schemas.expect("compiles"), "game.World")
}

fn data() -> ChannelData {
    ChannelData::new(game(DataLimits::default()))
}

/// What a state becomes by updates given as bytes.
fn merged(updates: &[&[u8]]) -> Vec<u8> {
    let mut data = data();
    for update in updates {
        data.merge(update, None).expect("valid");
    }
    encoded(&data, None)
}

#[test]
fn a_written_zero_without_presence_changes_nothing() {
    assert_eq!(merged(&[&[0x08, 5], &[0x08, 0]]), [0x08, 5]);
    // Within one update the later value wins before the merge looks at it.
    assert_eq!(merged(&[&[0x08, 5], &[0x08, 7, 0x08, 0]]), [0x08, 5]);
    // An int32 is the low half of its varint.
    assert_eq!(merged(&[&[0x08, 5], &[0x08, 0x80, 0x80, 0x80, 0x80, 0x10]]), [0x08, 5]);
    // With presence zero is a value, and a negative zero is one without.
    assert_eq!(merged(&[&[0x10, 5], &[0x10, 0]]), [0x10, 0]);
    assert_eq!(merged(&[&[0x2d, 0, 0, 0x80, 0x3f], &[0x2d, 0, 0, 0, 0x80]]), [0x2d, 0, 0, 0, 0x80]);
}

#[test]
fn text_must_be_utf8_and_names_its_field() {
    let mut data = data();
    data.merge(&[0x08, 5], None).expect("valid");
    let error = data.merge(&[0x08, 6, 0x1a, 6, 0x08, 1, 0x12, 2, 0x1a, 0], None);
    assert_eq!(error, Ok(()));
    let error = data.merge(&[0x08, 7, 0x1a, 7, 0x08, 1, 0x12, 3, 0x1a, 1, 0xff], None).expect_err("bad text");
    assert_eq!(error, DataError::Utf8 { field: "game.Item.text".into() });
    // All or nothing: the number before the bad entry was not taken.
    assert_eq!(encoded(&data, None)[..2], [0x08, 6]);
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: u32| {
        let mut bytes = Vec::new();
        for _ in 0..depth {
            let inner = std::mem::take(&mut bytes);
            crate::data::cursor::write_varint(&mut bytes, 0x22);
            crate::data::cursor::write_prefixed(&mut bytes, |out| out.extend_from_slice(&inner));
        }
        bytes
    };
    let mut data = data();
    data.merge(&nested(DEPTH_MAX), None).expect("as deep as allowed");
    assert_eq!(data.merge(&nested(DEPTH_MAX + 1), None), Err(DataError::TooDeep));
    // Far deeper than any stack.
    assert_eq!(data.merge(&nested(12_000), None), Err(DataError::TooDeep));
}

#[test]
fn data_is_bounded() {
    let plan = game(DataLimits { state_bytes_max: 100, ..DataLimits::default() });
    let mut data = ChannelData::new(plan);
    let line = |len: u8| [vec![0x32, len], vec![b'x'; usize::from(len)]].concat();
    data.merge(&line(90), None).expect("within the bound");
    assert_eq!(data.merge(&line(20), None), Err(DataError::TooLarge { bytes: 114, limit: 100 }));
    assert_eq!(data.encoded_len(), 92);
}

/// The bound is on what is kept: data near it still takes updates that replace.
#[test]
fn data_near_its_bound_takes_updates_that_replace() {
    let plan = game(DataLimits { state_bytes_max: 100, ..DataLimits::default() });
    let mut data = ChannelData::new(plan);
    let entry = |byte: u8| [vec![0x1a, 76, 0x08, 1, 0x12, 72, 0x1a, 70], vec![byte; 70]].concat();
    data.merge(&entry(b'a'), None).expect("within the bound");
    data.merge(&entry(b'b'), None).expect("replaces");
    assert_eq!(data.encoded_len(), 78);
}

#[test]
fn unknown_fields_are_kept_without_growing() {
    // Field 9 is unknown; the newest update that has it wins.
    assert_eq!(merged(&[&[0x48, 1, 0x48, 2], &[0x08, 1], &[0x48, 3]]), [0x08, 1, 0x48, 3]);
    // A known field in another wire type is an unknown one.
    assert_eq!(merged(&[&[0x0a, 1, b'x'], &[0x08, 4]]), [0x08, 4, 0x0a, 1, b'x']);
}

#[test]
fn numbers_come_packed_and_unpacked() {
    let update = [0x3a, 2, 1, 2, 0x38, 3, 0x3a, 0];
    assert_eq!(merged(&[&update, &update]), [0x3a, 6, 1, 2, 3, 1, 2, 3]);
    let options = MergeOptions { replace_list: true, ..Default::default() };
    let mut data = data();
    data.merge(&update, None).expect("valid");
    data.merge(&[0x3a, 0], Some(&options)).expect("valid");
    assert_eq!(encoded(&data, None), [0x3a, 3, 1, 2, 3], "an empty list does not replace");
    data.merge(&[0x3a, 1, 9, 0x38, 8], Some(&options)).expect("valid");
    assert_eq!(encoded(&data, None), [0x3a, 2, 9, 8]);
    let options = MergeOptions { list_size_limit: 3, truncate_top: true, ..Default::default() };
    data.merge(&[0x3a, 3, 0x80, 1, 7], Some(&options)).expect("valid");
    assert_eq!(encoded(&data, None), [0x3a, 4, 8, 0x80, 1, 7]);
}

/// Ten thousand replacements leave the memory of the first.
#[test]
fn replacing_entries_takes_no_memory() {
    let mut data = data();
    let update = |value: u8| -> Vec<u8> {
        (0..200u8).flat_map(|key| [0x1a, 7, 0x08, key & 0x7f, 0x12, 3, 0x08, value | 0x80, 1]).collect()
    };
    data.merge(&update(1), None).expect("valid");
    let held = data.heap_bytes();
    for round in 0..10_000u32 {
        data.merge(&update(round as u8), None).expect("valid");
    }
    assert_eq!(data.heap_bytes(), held);
}

/// Keys that come and go leave nothing behind.
#[test]
fn removed_entries_do_not_pile_up() {
    let mut data = data();
    let options = MergeOptions { check_removable: true, ..Default::default() };
    for key in 0..20_000u32 {
        let key = [key as u8 | 0x80, (key >> 7) as u8 | 0x80, (key >> 14) as u8];
        let entry = |value: [u8; 2]| -> Vec<u8> {
            [&[0x1a, 8, 0x08][..], &key[..], &[0x12, 2][..], &value[..]].concat()
        };
        data.merge(&entry([0x08, 1]), Some(&options)).expect("valid");
        data.merge(&entry([0x10, 1]), Some(&options)).expect("valid");
        assert_eq!(data.encoded_len(), 0);
    }
    assert!(data.heap_bytes() < 16 << 10, "{}", data.heap_bytes());
}

#[test]
fn deltas_of_ever_new_keys_do_not_pile_up() {
    let mut delta = Delta::new(game(DataLimits::default()));
    for key in 0..20_000u32 {
        let key = [key as u8 | 0x80, (key >> 7) as u8 | 0x80, (key >> 14) as u8];
        let update = [&[0x1a, 8, 0x08][..], &key[..], &[0x12, 2, 0x08, 1][..]].concat();
        delta.accumulate(&update, None).expect("valid");
        delta.clear();
        assert!(delta.is_empty());
    }
    assert!(delta.heap_bytes() < 16 << 10, "{}", delta.heap_bytes());
}

/// A-7d: the removal is not the first update of its window, and reaches the receivers all the same.
#[test]
fn a_removal_survives_accumulation_and_masks() {
    let plan = game(DataLimits::default());
    let options = MergeOptions { check_removable: true, ..Default::default() };
    let mut delta = Delta::new(plan.clone());
    delta.accumulate(&[0x1a, 6, 0x08, 1, 0x12, 2, 0x08, 9], Some(&options)).expect("valid");
    delta.accumulate(&[0x1a, 6, 0x08, 1, 0x12, 2, 0x10, 1], Some(&options)).expect("valid");
    let mut out = Vec::new();
    delta.encode(None, &mut out);
    assert_eq!(out, [0x1a, 6, 0x08, 1, 0x12, 2, 0x10, 1]);
    let mask = FieldMask::compile(&plan, &["items.a"]);
    let mut masked = Vec::new();
    delta.encode(Some(&mask), &mut masked);
    assert_eq!(masked, out);
    let mut filtered = Vec::new();
    filter(&plan, &mask, &out, &mut filtered);
    assert_eq!(filtered, out);
}

/// the data does not share memory with the update it came from, nor does a delta.
#[test]
fn nothing_aliases() {
    let plan = game(DataLimits::default());
    let first = Update::check(&plan, Bytes::from_static(&[0x08, 1, 0x32, 1, b'a'])).expect("valid");
    let mut data = ChannelData::from_bytes(plan.clone(), first.bytes()).expect("valid");
    let mut delta = Delta::new(plan.clone());
    delta.accumulate_checked(&first, None);
    data.merge(&[0x08, 2, 0x32, 1, b'b'], None).expect("valid");
    assert_eq!(&first.bytes()[..], [0x08, 1, 0x32, 1, b'a']);
    let mut out = Vec::new();
    delta.encode(None, &mut out);
    assert_eq!(out, &first.bytes()[..]);
    assert_eq!(encoded(&data, None), [0x08, 2, 0x32, 1, b'a', 0x32, 1, b'b']);
}

#[test]
fn a_mask_that_keeps_nothing_leaves_nothing() {
    let plan = game(DataLimits::default());
    let mask = FieldMask::compile(&plan, &["nosuch", "maybe"]);
    assert!(!mask.is_everything());
    let mut out = Vec::new();
    filter(&plan, &mask, &[0x08, 1], &mut out);
    assert!(out.is_empty());
    assert!(FieldMask::compile(&plan, &["", "."]).is_everything());
    assert!(FieldMask::compile::<&str>(&plan, &[]).is_everything());
    // Masks that say the same are equal, whatever the order.
    let one = FieldMask::compile(&plan, &["inner.number", "maybe"]);
    assert_eq!(one, FieldMask::compile(&plan, &["maybe", "inner..number", ""]));
}

/// an 80 KB channel reaches a late subscriber in parts.
#[test]
fn a_large_state_is_cut_between_entries() {
    let plan = game(DataLimits::default());
    let mut data = ChannelData::new(plan.clone());
    for key in 0..1000u32 {
        let key = [key as u8 | 0x80, (key >> 7) as u8];
        let text = [b'x'; 80];
        let update = [&[0x1a, 87, 0x08][..], &key[..], &[0x12, 82, 0x1a, 80][..], &text[..]].concat();
        data.merge(&update, None).expect("valid");
    }
    let whole = encoded(&data, None);
    assert!(whole.len() > 80_000);
    let mut parts = Vec::new();
    let joint = split(&plan, &whole, 65_000, &mut parts).expect("small entries");
    assert_eq!((parts.len(), joint), (2, Joint::Exact));
    let mut receiver = ChannelData::new(plan);
    for part in &parts {
        receiver.merge(part, None).expect("valid");
    }
    assert_eq!(encoded(&receiver, None), whole);
}

#[test]
fn what_cannot_be_cut_is_named() {
    let plan = game(DataLimits::default());
    let update = [&[0x08, 1, 0x22, 104, 0x32, 102][..], &[b'x'; 102]].concat();
    let mut parts = vec![Bytes::from_static(b"before")];
    let oversize = split(&plan, &update, 80, &mut parts).expect_err("one long line");
    assert_eq!((oversize.type_name.as_str(), oversize.field.as_str()), ("game.World", "inner.lines"));
    assert_eq!((oversize.bytes, oversize.limit), (106, 80));
    assert_eq!(parts.len(), 1);
}

/// A list that only newer peers know stays in one part where it fits: a reader to which it is
/// unknown too lets newer records win and would keep the last piece.
#[test]
fn records_of_an_unknown_field_stay_together() {
    let plan = game(DataLimits::default());
    let merged = |parts: &[Bytes]| {
        let mut receiver = ChannelData::new(plan.clone());
        for part in parts {
            receiver.merge(part, None).expect("valid");
        }
        encoded(&receiver, None)
    };
    let unknown = |number: u8, value: u8| [number << 3, value];
    let inner = |bytes: &[u8]| [&[0x22, bytes.len() as u8][..], bytes].concat();
    // Fields 8 and 9 of World, then of the message in it, by turns.
    let lists: Vec<u8> = (1..6).flat_map(|value| [unknown(8, value), unknown(9, value)]).flatten().collect();
    for update in [lists.clone(), inner(&lists)] {
        let mut data = ChannelData::new(plan.clone());
        data.merge(&update, None).expect("valid");
        let whole = encoded(&data, None);
        for source in [&update, &whole] {
            let mut parts = Vec::new();
            let joint = split(&plan, source, 14, &mut parts).expect("small records");
            assert_eq!((parts.len(), joint), (2, Joint::Exact), "{parts:02x?}");
            assert_eq!(merged(&parts), whole);
            // Where they do not fit they are cut all the same: readers that know the field append
            // the pieces.
            parts.clear();
            let joint = split(&plan, source, 8, &mut parts).expect("small records");
            assert_eq!(joint, Joint::UnknownCut);
            let values = |number: u8| {
                let bytes = parts.concat();
                bytes.windows(2).filter(|pair| pair[0] == number << 3).map(|pair| pair[1]).collect::<Vec<_>>()
            };
            assert_eq!((values(8), values(9)), ((1..6).collect(), (1..6).collect()));
        }
    }
}

#[test]
fn opaque_data_is_the_last_updates_that_fit() {
    let limits = DataLimits { opaque_bytes_max: 10, ..DataLimits::default() };
    let plan = Arc::new(Plan::opaque("game.Unknown", limits));
    let mut data = ChannelData::new(plan.clone());
    for value in 1..=4u8 {
        data.merge(&[0x08, value, 0x12, 0], None).expect("valid");
    }
    assert_eq!(encoded(&data, None), [0x08, 3, 0x12, 0, 0x08, 4, 0x12, 0]);
    assert_eq!(data.dropped_updates(), 2);
    assert_eq!(data.merge(&[0x08], None), Err(DataError::Malformed { offset: 0 }));
    assert_eq!(
        data.merge(&[0x0a, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0], None),
        Err(DataError::TooLarge { bytes: 11, limit: 10 })
    );
    assert_eq!(data.encoded_len(), 8);
    let mut delta = Delta::new(plan.clone());
    delta.accumulate(&[0x08, 1], None).expect("valid");
    delta.accumulate(&[0x08, 2], None).expect("valid");
    let mut out = Vec::new();
    delta.encode(Some(&FieldMask::compile(&plan, &["any"])), &mut out);
    assert_eq!(out, [0x08, 1, 0x08, 2]);
    let mut parts = Vec::new();
    assert_eq!(split(&plan, &out, 2, &mut parts), Ok(Joint::Exact));
    assert_eq!(parts, [&[0x08, 1][..], &[0x08, 2][..]]);
}

#[test]
fn oneof_members_push_each_other_out() {
    let proto = "syntax = \"proto3\"; package game;
        message Part { int32 x = 1; int32 y = 2; }
        message Choice { oneof pick { int32 number = 1; Part part = 2; } }";
    let schemas = SchemasBuilder::new().add_proto("choice.proto", proto).build().expect("compiles");
    let plan = plan(&schemas, "game.Choice");
    let start = [0x12, 2, 0x08, 1];
    let mut data = ChannelData::from_bytes(plan.clone(), &start).expect("valid");
    let mut receiver = data.clone();
    let mut delta = Delta::new(plan);
    for update in [&[0x08, 0][..], &[0x12, 2, 0x10, 2]] {
        data.merge(update, None).expect("valid");
        delta.accumulate(update, None).expect("valid");
    }
    assert_eq!(encoded(&data, None), [0x12, 2, 0x10, 2]);
    // One message could not say that the part was left and came back.
    assert_eq!(delta.message_count(), 2);
    let mut messages = Vec::new();
    delta.encode_messages(None, &mut messages);
    for message in messages {
        receiver.merge(&message, None).expect("valid");
    }
    assert_eq!(encoded(&receiver, None), encoded(&data, None));
}
