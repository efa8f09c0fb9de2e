//! Notifications in JSON have the names and the shape of the reference's: a client of it finds
//! every member where it was.
//!
//! `fixtures/matcher/notify-reference-shape.json` was written after what the reference's servers
//! receive.

use serde_json::Value;
use throng_matcher::json;
use throng_wire::matcher::{EVENTS, Writer};

/// Returns whether `ours` has all that `theirs` has. What is empty is `null` there; ours keeps its
/// type.
fn holds(theirs: &Value, ours: &Value, place: &str) {
    match theirs {
        Value::Null => {
            let empty = match ours {
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                other => other.is_null(),
            };
            assert!(empty, "{place}: {ours} for nothing");
        }
        Value::Object(map) => {
            for (name, theirs) in map {
                let ours = ours.get(name).unwrap_or_else(|| panic!("{place}.{name} is missing in {ours}"));
                holds(theirs, ours, &format!("{place}.{name}"));
            }
        }
        // 10 and 10.0 are one number.
        Value::Number(number) => assert_eq!(number.as_f64(), ours.as_f64(), "{place}"),
        other => assert_eq!(other, ours, "{place}"),
    }
}

#[test]
fn every_event_has_the_names_and_the_shape_of_the_reference() {
    let fixture = include_str!("../../../../fixtures/matcher/notify-reference-shape.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let theirs = &fixture["batch_to_game_1_1"];
    let mut body = Writer::new();
    let entries = theirs["Msgs"].as_array().unwrap();
    for entry in entries {
        let (name, event) = entry["NotifyMsg"].as_object().unwrap().iter().next().unwrap();
        let known =
            EVENTS.iter().find(|known| known.name == name).unwrap_or_else(|| panic!("no event {name}"));
        let mut encoded = Vec::new();
        json::encode(known.message, event.to_string().as_bytes(), &mut encoded)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let roles = entry["RoleIDs"].as_array().unwrap().iter();
        let roles = roles.fold(Writer::new(), |entry, role| entry.str(1, role.as_str().unwrap()));
        body = body.nested(1, roles.bytes(known.number, &encoded));
    }
    let ours: Value = serde_json::from_str(&json::batch(7, 11, &body.into_bytes())).unwrap();
    assert_eq!(ours["Msgs"].as_array().unwrap().len(), entries.len());
    for (at, (theirs, ours)) in entries.iter().zip(ours["Msgs"].as_array().unwrap()).enumerate() {
        holds(theirs, ours, &format!("Msgs[{at}]"));
        assert_eq!(ours["NotifyMsg"].as_object().unwrap().len(), 1, "one event an entry");
    }
    assert_eq!((&ours["Epoch"], &ours["Seq"]), (&7.into(), &11.into()));
}
