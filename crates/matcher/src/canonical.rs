//! Requests in one order of their members, so that a retry is known by any order of its client's
//! maps.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use smallvec::SmallVec;
use throng_wire::matcher::{Message, REQUEST_KEY_FIELD, Type, write_bytes};
use throng_wire::{Field, fields};

use crate::problem::{Outcome, invalid};

/// Objects and lists within each other that are put in order; deeper ones stay as they are.
const DEPTH_MAX: usize = 32;

/// A field: its number, true for an entry whose place is no matter, and its bytes.
type Part<'a> = (u32, bool, Cow<'a, [u8]>);

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

/// First bytes of the hash of a body, the same for every order of the same members and entries.
pub(crate) fn digest(message: &Message, body: &[u8]) -> [u8; 16] {
    let hash = blake3::hash(&ordered(message, body));
    std::array::from_fn(|at| hash.as_bytes()[at])
}

/// Fields by number, entries of maps by their bytes. A body that is in order stays as it is.
fn ordered<'a>(message: &Message, body: &'a [u8]) -> Cow<'a, [u8]> {
    let mut parts: SmallVec<[Part<'a>; 8]> = SmallVec::new();
    for field in fields(body) {
        let Ok(field) = field else { return Cow::Borrowed(body) };
        let ty = message.field(field.number).map_or(Type::Bool, |known| known.ty);
        let is_set = matches!(ty, Type::Map(_) | Type::Keyed(..) | Type::Set);
        parts.push((field.number, is_set, part(&ty, &field)));
    }
    let by_place = |a: &Part<'_>, b: &Part<'_>| {
        a.0.cmp(&b.0).then_with(|| if a.1 { a.2.cmp(&b.2) } else { std::cmp::Ordering::Equal })
    };
    let is_same = |(_, _, part): &Part<'_>| matches!(part, Cow::Borrowed(_));
    if parts.iter().all(is_same) && parts.is_sorted_by(|a, b| by_place(a, b).is_le()) {
        return Cow::Borrowed(body);
    }
    parts.sort_by(by_place);
    Cow::Owned(parts.iter().flat_map(|(_, _, part)| part.iter().copied()).collect())
}

/// A field whose value is in order.
fn part<'a>(ty: &Type, field: &Field<'a>) -> Cow<'a, [u8]> {
    let value = match ty {
        Type::Msg(message) | Type::Keyed(message, _) => ordered(message, field.value),
        Type::List(inner) => return part(inner, field),
        Type::Map(inner) => {
            let mut entry = SmallVec::<[Cow<'a, [u8]>; 2]>::new();
            for own in fields(field.value).map_while(Result::ok) {
                entry.push(if own.number == 2 { part(inner, &own) } else { Cow::Borrowed(own.raw) });
            }
            if entry.iter().all(|own| matches!(own, Cow::Borrowed(_))) {
                return Cow::Borrowed(field.raw);
            }
            Cow::Owned(entry.concat())
        }
        Type::Json => json(field.value),
        Type::Str | Type::Bool | Type::U64 | Type::I64 | Type::F64 | Type::Time | Type::Set => {
            return Cow::Borrowed(field.raw);
        }
    };
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
