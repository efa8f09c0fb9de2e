//! `merge.json`: what the reference did.

use serde_json::Value;

use super::*;
use crate::data::filter;

const MERGE_JSON: &str = include_str!("../../../../../fixtures/gateway/merge.json");

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().expect("a hex string");
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

fn options(value: &Value) -> Option<MergeOptions> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
    value.is_object().then(|| MergeOptions {
        replace_list: flag("shouldReplaceList"),
        list_size_limit: value.get("listSizeLimit").and_then(Value::as_u64).unwrap_or(0) as u32,
        truncate_top: flag("truncateTop"),
        check_removable: flag("shouldCheckRemovableMapField"),
    })
}

#[test]
fn every_merge_of_the_reference() {
    let fixture: Value = serde_json::from_str(MERGE_JSON).expect("valid JSON");
    let reflect = schemas();
    let custom = builder().profile("testpb.TestMergeMessage", Profile::Removable).build().expect("compiles");
    let rows = fixture["merge"].as_array().expect("a list");
    assert_eq!(rows.len(), 17);
    for row in rows {
        let name = row["type"].as_str().expect("a type");
        let schemas = if row["mode"] == "custom" { &custom } else { &reflect };
        let plan = plan(schemas, name);
        let options = options(&row["options"]);
        let mut data = ChannelData::from_bytes(plan, &hex(&row["dstHex"])).expect("valid");
        data.merge(&hex(&row["srcHex"]), options.as_ref()).expect("valid");
        let (got, expected) = (encoded(&data, None), hex(&row["resultHex"]));
        assert_eq!(
            decode(schemas, name, &got),
            decode(schemas, name, &expected),
            "{}: {}",
            row["name"],
            row["note"]
        );
    }
}

#[test]
fn every_field_mask_of_the_reference() {
    let fixture: Value = serde_json::from_str(MERGE_JSON).expect("valid JSON");
    let schemas = schemas();
    let name = "testpb.TestFieldMaskMessage";
    let plan = plan(&schemas, name);
    let source = hex(&fixture["fieldMaskSourceHex"]);
    let data = ChannelData::from_bytes(plan.clone(), &source).expect("valid");
    let rows = fixture["fieldMasks"].as_array().expect("a list");
    assert_eq!(rows.len(), 15);
    for row in rows {
        let paths: Vec<&str> =
            row["masks"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        let mask = FieldMask::compile(&plan, &paths);
        let expected = decode(&schemas, name, &hex(&row["resultHex"]));
        let mut filtered = Vec::new();
        filter(&plan, &mask, &source, &mut filtered);
        assert_eq!(decode(&schemas, name, &filtered), expected, "filter {paths:?}");
        assert_eq!(decode(&schemas, name, &encoded(&data, Some(&mask))), expected, "encode {paths:?}");
        // Masks only cut the output.
        assert_eq!(decode(&schemas, name, &encoded(&data, None)), decode(&schemas, name, &source));
    }
}
