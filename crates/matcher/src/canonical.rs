//! Requests in a form that depends on their meaning alone, so that a retry is known whatever the
//! order of its client's maps, and whether absent members are left out, empty or null.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use smallvec::SmallVec;
use throng_wire::matcher::{Message, REQUEST_KEY_FIELD, Type, write_bytes};
use throng_wire::{Field, WireType, fields};

use crate::problem::{Outcome, invalid};

/// Objects and lists within each other that are put in order; deeper ones stay as they are.
const DEPTH_MAX: usize = 32;

/// A field in its canonical form.
struct Part<'a> {
    number: u32,
    /// Of two fields with the same number and key the last counts; `None` in lists, where both do.
    key: Option<&'a [u8]>,
    bytes: Cow<'a, [u8]>,
    /// True if a body without it means the same.
    is_empty: bool,
}

/// The key of a request that carries one. It stands last in what clients write, but may be
/// anywhere.
pub(crate) fn request_key(body: &[u8]) -> Outcome<Option<u128>> {
    let mut key = None;
    for field in fields(body) {
        let field = field?;
        if field.number == REQUEST_KEY_FIELD {
            let bytes: [u8; 16] =
                field.value.try_into().map_err(|_| invalid("an idempotency key has 16 bytes"))?;
            key = Some(u128::from_le_bytes(bytes));
        }
    }
    Ok(key)
}

/// First bytes of the hash of a body, the same for all bodies that mean the same.
pub(crate) fn digest(message: &Message, body: &[u8]) -> [u8; 16] {
    let hash = blake3::hash(&ordered(message, body));
    std::array::from_fn(|at| hash.as_bytes()[at])
}

/// Fields by number and entries of maps by key, each once, and none that is as good as absent. A
/// body that is in order stays as it is.
fn ordered<'a>(message: &Message, body: &'a [u8]) -> Cow<'a, [u8]> {
    let mut parts: SmallVec<[Part<'a>; 8]> = SmallVec::new();
    for field in fields(body) {
        let Ok(field) = field else { return Cow::Borrowed(body) };
        parts.push(match message.field(field.number) {
            Some(known) => {
                let (bytes, is_empty) = part(&known.ty, &field);
                let is_empty = is_empty && !known.optional;
                Part { number: field.number, key: key_of(&known.ty, &field), bytes, is_empty }
            }
            None => {
                Part { number: field.number, key: None, bytes: Cow::Borrowed(field.raw), is_empty: false }
            }
        });
    }
    let by_place = |a: &Part<'_>, b: &Part<'_>| (a.number, a.key).cmp(&(b.number, b.key));
    let replaces = |a: &Part<'_>, b: &Part<'_>| a.key.is_some() && by_place(a, b).is_eq();
    let is_same = |part: &Part<'_>| !part.is_empty && matches!(part.bytes, Cow::Borrowed(_));
    if parts.iter().all(is_same) && parts.is_sorted_by(|a, b| by_place(a, b).is_le() && !replaces(a, b)) {
        return Cow::Borrowed(body);
    }
    parts.sort_by(by_place);
    let mut out = Vec::with_capacity(body.len());
    for (at, part) in parts.iter().enumerate() {
        let is_replaced = parts.get(at + 1).is_some_and(|next| replaces(next, part));
        if !is_replaced && !part.is_empty {
            out.extend_from_slice(&part.bytes);
        }
    }
    Cow::Owned(out)
}

/// A field whose value is in order, and whether that is the value of an absent one.
fn part<'a>(ty: &Type, field: &Field<'a>) -> (Cow<'a, [u8]>, bool) {
    match ty {
        Type::Msg(message) => {
            let value = ordered(message, field.value);
            let is_empty = value.is_empty();
            (with_value(field, value), is_empty)
        }
        Type::Keyed(message, _) => (with_value(field, ordered(message, field.value)), false),
        Type::List(inner) => (part(inner, field).0, false),
        Type::Map(inner) => (with_value(field, entry(inner, field.value)), false),
        Type::Json => {
            let value = json(field.value);
            let is_empty = value.is_empty() || *value == *b"null";
            (with_value(field, value), is_empty)
        }
        Type::Set => (Cow::Borrowed(field.raw), false),
        Type::Str | Type::Bool | Type::U64 | Type::I64 | Type::F64 | Type::Time => {
            let is_empty = match field.wire_type {
                WireType::Len | WireType::Group => field.value.is_empty(),
                WireType::Varint | WireType::Fixed64 | WireType::Fixed32 => field.scalar == 0,
            };
            (Cow::Borrowed(field.raw), is_empty)
        }
    }
}

/// Key and value of a map's entry.
fn entry<'a>(inner: &Type, body: &'a [u8]) -> Cow<'a, [u8]> {
    let key = last(1, body).filter(|key| !key.value.is_empty()).map_or(&[][..], |key| key.raw);
    let value = last(2, body).map(|value| part(inner, &value));
    let value = value.filter(|(_, is_empty)| !is_empty).map_or(Cow::Borrowed(&[][..]), |(bytes, _)| bytes);
    if matches!(value, Cow::Borrowed(_)) && body.len() == key.len() + value.len() && body.starts_with(key) {
        return Cow::Borrowed(body);
    }
    Cow::Owned([key, &*value].concat())
}

/// Bytes by which two values of a field are the same one.
fn key_of<'a>(ty: &Type, field: &Field<'a>) -> Option<&'a [u8]> {
    let of = |number| last(number, field.value).map_or(&[][..], |key| key.value);
    match ty {
        Type::List(_) => None,
        Type::Map(_) => Some(of(1)),
        Type::Keyed(message, name) => Some(of(message.named(name)?.number)),
        Type::Set => Some(field.value),
        _ => Some(&[]),
    }
}

fn last(number: u32, body: &[u8]) -> Option<Field<'_>> {
    fields(body).map_while(Result::ok).filter(|field| field.number == number).last()
}

/// A field with its value in order.
fn with_value<'a>(field: &Field<'a>, value: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
    match value {
        Cow::Borrowed(_) => Cow::Borrowed(field.raw),
        Cow::Owned(value) => {
            let mut out = Vec::with_capacity(value.len() + 8);
            write_bytes(&mut out, field.number, &value);
            Cow::Owned(out)
        }
    }
}

/// JSON with the members of objects by name.
fn json(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(text) = std::str::from_utf8(text).ok().filter(|text| text.contains('{')) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len());
    write_json(text, DEPTH_MAX, &mut out);
    Cow::Owned(out.into_bytes())
}

fn write_json(text: &str, depth: usize, out: &mut String) {
    if depth > 0
        && let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text)
    {
        out.push('{');
        for (name, value) in members {
            out.push_str(&serde_json::Value::from(name).to_string());
            out.push(':');
            write_json(value.get(), depth - 1, out);
            out.push(',');
        }
        out.push('}');
    } else if depth > 0
        && let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text)
    {
        out.push('[');
        for item in items {
            write_json(item.get(), depth - 1, out);
            out.push(',');
        }
        out.push(']');
    } else {
        out.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use throng_wire::matcher::{Writer, method_named};

    use super::digest;

    fn of_json(method: &str, text: &str) -> [u8; 16] {
        let message = method_named(method).unwrap().request;
        let mut body = Vec::new();
        crate::json::encode(message, text.as_bytes(), &mut body).unwrap();
        digest(message, &body)
    }

    #[test]
    fn the_order_of_members_and_entries_is_no_matter() {
        let join = r#"{"RoleInfo": {"RoleID": "a", "FloatData": {"x": 1, "y": 2}, "Tags": {"s": {}, "t": {}}},
            "CreateInfo": {"MatchMode": "m", "Data": {"k": {"c": [{"e": 1.0, "f": 2}, 3], "d": "}"}, "l": null}}}"#;
        let other = r#"{"CreateInfo": {"Data": {"l": null, "k": {"d":"}", "c":[{"f":2,"e":1.0},3]}}, "MatchMode": "m"},
            "RoleInfo": {"Tags": {"t": {}, "s": {}}, "FloatData": {"y": 2, "x": 1}, "RoleID": "a"}}"#;
        assert_eq!(of_json("RoleJoinRandomRoom", join), of_json("RoleJoinRandomRoom", other));
        for (from, to) in [
            (r#""x": 1"#, r#""x": 2"#),
            (r#""x": 1, "y": 2"#, r#""x": 2, "y": 1"#),
            (r#"{"e": 1.0, "f": 2}, 3"#, r#"3, {"e": 1.0, "f": 2}"#),
            (r#""d": "}""#, r#""d": "{}""#),
            (r#", "t": {}"#, ""),
        ] {
            let changed = join.replacen(from, to, 1);
            assert_ne!(changed, join);
            assert_ne!(of_json("RoleJoinRandomRoom", join), of_json("RoleJoinRandomRoom", &changed), "{to}");
        }
    }

    #[test]
    fn a_field_that_this_release_does_not_know_is_a_part_of_the_body() {
        let message = method_named("RoleLeaveRoom").unwrap().request;
        let known = || Writer::new().str(1, "a").str(2, "r");
        let of = |body: Writer| digest(message, &body.into_bytes());
        let later = of(known().str(90, "x"));
        assert_eq!(later, of(Writer::new().str(90, "x").str(2, "r").str(1, "a")), "in whichever order");
        for other in [known(), known().str(90, "y"), known().str(91, "x"), known().str(90, "x").str(91, "")] {
            assert_ne!(of(other), later);
        }
    }

    #[test]
    fn empty_members_are_as_good_as_absent_ones() {
        for (method, less, more) in [
            (
                "RoleJoinRandomRoom",
                r#"{"RoleInfo": {"RoleID": "a"}, "CreateInfo": {"MatchMode": "m"}}"#,
                r#"{"RoleInfo": {"RoleID": "a", "SrvID": "", "TeamID": null, "FloatData": {}, "StringData": null,
                    "Tags": {}}, "CreateInfo": {"MatchMode": "m", "IsHidden": null, "Data": {}}, "Reserve": 0}"#,
            ),
            (
                "RoleCreateRoom",
                r#"{"CreatorInfo": {"RoleID": "a"}}"#,
                r#"{"CreatorInfo": {"RoleID": "a"}, "CreateInfo": {}}"#,
            ),
            (
                "CreateTicket",
                r#"{"Queue": "q", "Players": [{"RoleID": "a"}]}"#,
                r#"{"Queue": "q", "Players": [{"RoleID": "a", "Attr": null, "Roles": [], "Avoid": null, "SrvID": ""}],
                    "TeamID": "", "ExpiresMs": 0, "Priority": 0}"#,
            ),
            (
                "CreateTicket",
                r#"{"Queue": "q", "TeamID": "t"}"#,
                r#"{"Queue": "q", "TeamID": "t", "Players": []}"#,
            ),
            (
                "UpdateRoomRoleData",
                r#"{"Update": {"RoomID": "r", "FloatData": {"x": null}, "StringData": {"s": null}}}"#,
                r#"{"Update": {"RoomID": "r", "FloatData": {"x": 0}, "StringData": {"s": ""}, "DelTags": []}}"#,
            ),
            ("SetRoomData", r#"{"RoomID": "r", "Key": "k"}"#, r#"{"RoomID": "r", "Key": "k", "Data": null}"#),
            (
                "ReportResult",
                r#"{"MatchID": "m"}"#,
                r#"{"MatchID": "m", "Sides": [], "Amend": false, "Pool": ""}"#,
            ),
        ] {
            assert_eq!(of_json(method, less), of_json(method, more), "{more}");
        }
        // A zero is another value where absence has a meaning of its own.
        for (method, less, more) in [
            ("SetRoomFlags", r#"{"RoomID": "r"}"#, r#"{"RoomID": "r", "IsFull": false}"#),
            (
                "RoleCreateRoom",
                r#"{"CreateInfo": {"MatchMode": "m"}}"#,
                r#"{"CreateInfo": {"MatchMode": "m", "IsHidden": false}}"#,
            ),
            ("AssignMatch", r#"{"RoomID": "r"}"#, r#"{"RoomID": "r", "Data": {"k": null}}"#),
            ("ReportResult", r#"{"Sides": [{"RoleIDs": ["a"]}]}"#, r#"{"Sides": [{"RoleIDs": ["a", ""]}]}"#),
            ("ReportResult", r#"{"Sides": []}"#, r#"{"Sides": [{}]}"#),
            ("SetRoomData", r#"{"Data": {"k": {}}}"#, r#"{"Data": {"k": {"l": []}}}"#),
        ] {
            assert_ne!(of_json(method, less), of_json(method, more), "{more}");
        }
    }

    #[test]
    fn of_values_that_are_there_twice_the_last_counts() {
        let message = method_named("JoinTeam").unwrap().request;
        let of = |body: Writer| digest(message, &body.into_bytes());
        assert_eq!(of(Writer::new().str(2, "t")), of(Writer::new().str(2, "s").str(2, "t")));
        assert_eq!(of(Writer::new()), of(Writer::new().str(2, "s").str(2, "")));
        let entry = |value| Writer::new().str(1, "x").f64(2, value);
        let role =
            |first, second| of(Writer::new().nested(1, Writer::new().nested(4, first).nested(4, second)));
        assert_eq!(role(entry(2.0), entry(1.0)), role(entry(1.0), entry(1.0)));
        assert_ne!(role(entry(2.0), entry(1.0)), role(entry(1.0), entry(2.0)));
    }

    #[test]
    fn the_order_of_a_list_is_a_matter() {
        let sides = |first: &str, second: &str| {
            of_json(
                "ReportResult",
                &format!(r#"{{"Sides": [{{"RoleIDs": ["{first}"]}}, {{"RoleIDs": ["{second}"]}}]}}"#),
            )
        };
        assert_ne!(sides("a", "b"), sides("b", "a"));
    }

    #[test]
    fn what_is_no_body_has_a_digest_too() {
        let message = method_named("SetRoomData").unwrap().request;
        let of = |data: &str| digest(message, &Writer::new().str(3, data).into_bytes());
        assert_ne!(digest(message, b"\xFF"), digest(message, b"\xFE"));
        assert_ne!(of("{\"a\": 1"), of("{\"a\": 2"));
        let deep = |inner: &str| of(&format!("{}{inner}{}", "{\"a\":[".repeat(2_000), "]}".repeat(2_000)));
        assert_ne!(deep("1"), deep("2"));
    }
}
