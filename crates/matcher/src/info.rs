//! Role infos and data maps as encoded bytes, so that they need not be decoded and encoded again.

use smallvec::SmallVec;
use throng_wire::matcher::{write_bytes, write_f64, write_nested};
use throng_wire::{Field, WireType, fields};

use crate::problem::{Outcome, invalid, too_large};

/// A short text that usually needs no memory of its own.
pub(crate) type Text = SmallVec<[u8; 24]>;

/// Longest id.
pub(crate) const ID_BYTES_MAX: usize = 128;
const KEY_BYTES_MAX: usize = 64;
const STRING_BYTES_MAX: usize = 4 << 10;
/// Longest free-form value.
pub(crate) const VALUE_BYTES_MAX: usize = 16 << 10;
const KEYS_MAX: usize = 64;
const TAGS_MAX: usize = 64;
/// Longest message of a broadcast.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Longest info: of a role, and of a room or team with its data and members.
const INFO_BYTES_MAX: usize = 256 << 10;
/// Greatest number of an import.
const NUMBER_MAX: u64 = 1 << 53;
/// Bytes of an entry of a map besides its key and value: three tags, two lengths up to 16 KiB, and
/// that of both.
const ENTRY_BYTES_MAX: usize = 12;

/// An encoded role info without `SrvID` and `TeamID`, then these two. Fields of later versions are
/// kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info(SmallVec<[u8; 64]>);

/// A role info as it came in, checked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoleRef<'a> {
    pub(crate) id: &'a [u8],
    pub(crate) srv: &'a [u8],
    body: &'a [u8],
    /// Bytes of `body` that are not `SrvID` or `TeamID`; for the check of the whole info.
    size: usize,
}

impl<'a> RoleRef<'a> {
    /// # Errors
    /// A malformed info, an empty id, a value over its limit.
    pub(crate) fn parse(body: &'a [u8]) -> Outcome<RoleRef<'a>> {
        let mut role = RoleRef { body, size: body.len(), ..RoleRef::default() };
        let (mut floats, mut strings, mut tags) = (Keys::new(), Keys::new(), 0);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => role.id = text(&field)?,
                2 => role.srv = text(&field)?,
                3 => {
                    text(&field)?;
                }
                4 => {
                    let (key, value) = entry(&field)?;
                    note_key(&mut floats, key, "FloatData")?;
                    number(value, "FloatData")?;
                }
                5 => {
                    let (key, value) = entry(&field)?;
                    note_key(&mut strings, key, "StringData")?;
                    let value = value.map(|value| text(&value)).transpose()?.unwrap_or_default();
                    check_len(value, STRING_BYTES_MAX, "a value of StringData")?;
                }
                6 => {
                    tags += 1;
                    check_len(text(&field)?, KEY_BYTES_MAX, "a tag")?;
                }
                _ => {}
            }
        }
        if tags > TAGS_MAX {
            return Err(too_large(format!("a role info holds more than {TAGS_MAX} tags")));
        }
        check_id(role.id, "RoleID")?;
        check_len(role.srv, ID_BYTES_MAX, "SrvID")?;
        check_len(body, INFO_BYTES_MAX, "a role info")?;
        Ok(role)
    }

    /// Its fields as they came in.
    pub(crate) fn body(&self) -> &'a [u8] {
        self.body
    }

    /// A role of which only the id is known.
    pub(crate) fn bare(id: &'a [u8]) -> RoleRef<'a> {
        RoleRef { id, ..RoleRef::default() }
    }

    /// The same, living on a server.
    pub(crate) fn on(self, srv: &'a [u8]) -> RoleRef<'a> {
        RoleRef { srv, ..self }
    }

    /// This info as stored, with the given server and team.
    pub(crate) fn info(&self, srv: &[u8], team: &[u8]) -> Info {
        let mut out = Info(SmallVec::new());
        if self.body.is_empty() {
            put(&mut out.0, 1, self.id);
        }
        if self.size > 0 {
            for field in
                fields(self.body).map_while(Result::ok).filter(|field| !matches!(field.number, 2 | 3))
            {
                out.0.extend_from_slice(field.raw);
            }
        }
        out.finish(srv, team);
        out
    }

    pub(crate) fn float(&self, key: &str) -> Option<f64> {
        find_float(self.body, key)
    }
}

impl Info {
    /// An info that [`bytes`](Info::bytes) gave.
    pub(crate) fn load(bytes: &[u8]) -> Info {
        Info(SmallVec::from_slice(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn float(&self, key: &str) -> Option<f64> {
        find_float(&self.0, key)
    }

    pub(crate) fn string(&self, key: &str) -> Option<&[u8]> {
        find_string(&self.0, key)
    }

    /// The team that the role came with; empty without one.
    pub(crate) fn team(&self) -> &[u8] {
        self.field(3)
    }

    /// The server that the role came from.
    pub(crate) fn srv(&self) -> &[u8] {
        self.field(2)
    }

    fn field(&self, number: u32) -> &[u8] {
        let mut fields = fields(&self.0).map_while(Result::ok);
        fields.find(|field| field.number == number).map_or(&[], |field| field.value)
    }

    /// The info after a role data update: floats, strings, tags to add, tags to remove, in this
    /// order.
    ///
    /// # Errors
    /// A result over its limits.
    pub(crate) fn updated(&self, update: &Update<'_>, srv: &[u8], team: &[u8]) -> Outcome<Info> {
        let replaced = |field: &Field<'_>| match field.number {
            4 => update.floats.iter().any(|(key, _)| map_key(field.value) == *key),
            5 => update.strings.iter().any(|(key, _)| map_key(field.value) == *key),
            6 => update.add_tags.contains(&field.value) || update.del_tags.contains(&field.value),
            2 | 3 => true,
            _ => false,
        };
        let mut out = Vec::with_capacity(self.0.len() + 64);
        for field in fields(&self.0).map_while(Result::ok).filter(|field| !replaced(field)) {
            out.extend_from_slice(field.raw);
        }
        for (key, value) in &update.floats {
            write_nested(&mut out, 4, |out| {
                write_bytes(out, 1, key);
                write_f64(out, 2, *value);
            });
        }
        for (key, value) in &update.strings {
            write_nested(&mut out, 5, |out| {
                write_bytes(out, 1, key);
                write_bytes(out, 2, value);
            });
        }
        for (index, tag) in update.add_tags.iter().enumerate() {
            if !update.del_tags.contains(tag) && !update.add_tags[..index].contains(tag) {
                write_bytes(&mut out, 6, tag);
            }
        }
        RoleRef::parse(&out)?;
        let mut next = Info(SmallVec::from_vec(out));
        next.finish(srv, team);
        Ok(next)
    }

    fn finish(&mut self, srv: &[u8], team: &[u8]) {
        if !srv.is_empty() {
            put(&mut self.0, 2, srv);
        }
        if !team.is_empty() {
            put(&mut self.0, 3, team);
        }
    }
}

/// Keys of a map that is being read.
type Keys<'a> = SmallVec<[&'a [u8]; 8]>;

/// Notes a key of a map: it is there once, or readers disagree about its value.
fn note_key<'a>(keys: &mut Keys<'a>, key: &'a [u8], what: &str) -> Outcome {
    check_key(key)?;
    if keys.contains(&key) {
        let key = String::from_utf8_lossy(key);
        return Err(invalid(format!("the key `{key}` of {what} is there twice")));
    }
    if keys.len() == KEYS_MAX {
        return Err(too_large(format!("{what} holds more than {KEYS_MAX} keys")));
    }
    keys.push(key);
    Ok(())
}

/// Appends a text shorter than 128 bytes, or any other.
fn put(out: &mut SmallVec<[u8; 64]>, number: u8, value: &[u8]) {
    out.push(number << 3 | 2);
    if value.len() >= 0x80 {
        out.push(value.len() as u8 | 0x80);
        out.push((value.len() >> 7) as u8);
    } else {
        out.push(value.len() as u8);
    }
    out.extend_from_slice(value);
}

/// A role data update as it came in.
#[derive(Debug, Default)]
pub(crate) struct Update<'a> {
    pub(crate) room: &'a [u8],
    pub(crate) role: &'a [u8],
    floats: Vec<(&'a [u8], f64)>,
    strings: Vec<(&'a [u8], &'a [u8])>,
    add_tags: Vec<&'a [u8]>,
    del_tags: Vec<&'a [u8]>,
}

impl<'a> Update<'a> {
    /// # Errors
    /// A malformed update, an empty key, more of a kind than an info holds.
    pub(crate) fn parse(body: &'a [u8]) -> Outcome<Update<'a>> {
        let mut update = Update::default();
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => update.room = text(&field)?,
                2 => update.role = text(&field)?,
                3 => {
                    let (key, value) = entry(&field)?;
                    check_key(key)?;
                    update.floats.push((key, number(value, "FloatData")?));
                }
                4 => {
                    let (key, value) = entry(&field)?;
                    check_key(key)?;
                    update
                        .strings
                        .push((key, value.map(|value| text(&value)).transpose()?.unwrap_or_default()));
                }
                5 => update.add_tags.push(text(&field)?),
                6 => update.del_tags.push(text(&field)?),
                _ => {}
            }
        }
        let is_over = update.floats.len().max(update.strings.len()) > KEYS_MAX
            || update.add_tags.len().max(update.del_tags.len()) > TAGS_MAX;
        if is_over {
            return Err(too_large(format!("an update names more than {KEYS_MAX} keys or tags of a kind")));
        }
        Ok(update)
    }
}

/// Entries of a map as they stand in an info: repeated {1: key, 2: value}.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataMap(Vec<u8>);

/// Field number of `Data` in room infos; team infos take 4.
pub(crate) const ROOM_DATA_FIELD: u32 = 8;
/// Key of a room's data that says where to connect.
pub(crate) const CONNECTION_KEY: &str = "connection";
/// Key of a room's data with the world of its match.
pub(crate) const WORLD_KEY: &str = "World";
/// Keys of a room's data that say where its match is played.
pub(crate) const PLACE_KEYS: [&[u8]; 3] = [CONNECTION_KEY.as_bytes(), WORLD_KEY.as_bytes(), b"Addresses"];
pub(crate) const TEAM_DATA_FIELD: u32 = 4;

impl DataMap {
    /// Data that [`bytes`](DataMap::bytes) gave.
    pub(crate) fn load(bytes: &[u8]) -> DataMap {
        DataMap(bytes.to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Sets a key to a JSON value; `null` removes it.
    ///
    /// # Errors
    /// A key or value over its limit, too many keys or bytes, a value that is not JSON; nothing was
    /// changed then.
    pub(crate) fn set(&mut self, number: u32, key: &[u8], value: &[u8]) -> Outcome {
        self.set_within(number, key, value, self.0.len())
    }

    /// The same in an info that has `size` bytes, this map included.
    pub(crate) fn set_within(&mut self, number: u32, key: &[u8], value: &[u8], size: usize) -> Outcome {
        if size + key.len() + value.len() + ENTRY_BYTES_MAX <= INFO_BYTES_MAX {
            return self.put(number, key, value);
        }
        // It may replace a longer one.
        let mut next = self.clone();
        next.put(number, key, value)?;
        check_growth(size, size - self.0.len() + next.0.len())?;
        *self = next;
        Ok(())
    }

    fn put(&mut self, number: u32, key: &[u8], value: &[u8]) -> Outcome {
        check_key(key)?;
        check_len(value, VALUE_BYTES_MAX, "a value of Data")?;
        check_json(value)?;
        let old =
            fields(&self.0).map_while(Result::ok).find(|field| map_key(field.value) == key).map(|field| {
                let start = field.raw.as_ptr() as usize - self.0.as_ptr() as usize;
                start..start + field.raw.len()
            });
        let removes = value == b"null" || value.is_empty();
        if old.is_none() && !removes && fields(&self.0).count() >= KEYS_MAX {
            return Err(too_large(format!("Data holds {KEYS_MAX} keys already")));
        }
        if let Some(old) = old {
            if !removes {
                let mut entry = Vec::with_capacity(value.len() + key.len() + 12);
                write_entry(&mut entry, number, key, value);
                self.0.splice(old, entry);
                return Ok(());
            }
            self.0.drain(old);
        } else if !removes {
            write_entry(&mut self.0, number, key, value);
        }
        Ok(())
    }

    /// Its entries, each a key and a value.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &[u8]> {
        fields(&self.0).map_while(Result::ok).map(|field| field.value)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        fields(&self.0)
            .map_while(Result::ok)
            .find(|field| map_key(field.value) == key.as_bytes())
            .map(|field| map_value(field.value))
    }
}

pub(crate) fn write_entry(out: &mut Vec<u8>, number: u32, key: &[u8], value: &[u8]) {
    write_nested(out, number, |out| {
        write_bytes(out, 1, key);
        write_bytes(out, 2, value);
    });
}

fn find_float(body: &[u8], key: &str) -> Option<f64> {
    let field = fields(body)
        .map_while(Result::ok)
        .filter(|field| field.number == 4 && map_key(field.value) == key.as_bytes())
        .last()?;
    let value = fields(field.value).map_while(Result::ok).find(|field| field.number == 2);
    Some(value.map_or(0.0, |value| f64::from_bits(value.scalar)))
}

fn find_string<'a>(body: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let field = fields(body)
        .map_while(Result::ok)
        .filter(|field| field.number == 5 && map_key(field.value) == key.as_bytes())
        .last()?;
    Some(map_value(field.value))
}

pub(crate) fn map_key(entry: &[u8]) -> &[u8] {
    fields(entry).map_while(Result::ok).find(|field| field.number == 1).map_or(&[], |field| field.value)
}

fn map_value(entry: &[u8]) -> &[u8] {
    fields(entry).map_while(Result::ok).find(|field| field.number == 2).map_or(&[], |field| field.value)
}

/// Key and value of a map's entry.
pub(crate) fn entry<'a>(field: &Field<'a>) -> Outcome<(&'a [u8], Option<Field<'a>>)> {
    let (mut key, mut value) = (&[][..], None);
    for part in fields(bytes(field)?) {
        let part = part?;
        match part.number {
            1 => key = text(&part)?,
            2 => value = Some(part),
            _ => {}
        }
    }
    Ok((key, value))
}

/// The number in an entry of a map; 0 where it is left out.
pub(crate) fn number(value: Option<Field<'_>>, what: &'static str) -> Outcome<f64> {
    let Some(value) = value else { return Ok(0.0) };
    let number = f64::from_bits(value.scalar);
    if value.wire_type != WireType::Fixed64 || !number.is_finite() {
        return Err(invalid(format!("{what} holds something that is not a number")));
    }
    Ok(number)
}

/// The bytes of a length-delimited field.
pub(crate) fn bytes<'a>(field: &Field<'a>) -> Outcome<&'a [u8]> {
    if field.wire_type != WireType::Len {
        return Err(invalid(format!("field {} holds a number where text is expected", field.number)));
    }
    Ok(field.value)
}

/// The text of a field.
#[inline]
pub(crate) fn text<'a>(field: &Field<'a>) -> Outcome<&'a [u8]> {
    let bytes = bytes(field)?;
    if !bytes.is_ascii() {
        field.str()?;
    }
    Ok(bytes)
}

pub(crate) fn check_id(id: &[u8], what: &'static str) -> Outcome {
    if id.is_empty() {
        return Err(invalid(format!("{what} is empty")));
    }
    check_len(id, ID_BYTES_MAX, what)
}

/// Refuses numbers beyond those that JSON has everywhere: counting on from there never overflows.
pub(crate) fn check_number(name: &str, number: u64) -> Result<(), String> {
    if number > NUMBER_MAX {
        return Err(format!("{name} is over {NUMBER_MAX}"));
    }
    Ok(())
}

/// Refuses what makes a whole info longer than its limit, not what makes it shorter.
pub(crate) fn check_growth(before: usize, after: usize) -> Outcome {
    if after > before && after > INFO_BYTES_MAX {
        return Err(too_large(format!("an info of {after} bytes exceeds the limit of {INFO_BYTES_MAX}")));
    }
    Ok(())
}

pub(crate) fn check_len(value: &[u8], max: usize, what: &'static str) -> Outcome {
    if value.len() > max {
        return Err(too_large(format!("{what} of {} bytes exceeds the limit of {max}", value.len())));
    }
    Ok(())
}

fn check_key(key: &[u8]) -> Outcome {
    if key.is_empty() {
        return Err(invalid("a key is empty"));
    }
    check_len(key, KEY_BYTES_MAX, "a key")
}

/// Free-form values are passed on as they are, so they must be JSON when they come in.
pub(crate) fn check_json(value: &[u8]) -> Outcome {
    if value.is_empty() || is_plain_string(value) {
        return Ok(());
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(value)
        .map(drop)
        .map_err(|error| invalid(format!("a value is not JSON: {error}")))
}

/// A string without escapes, the usual case.
fn is_plain_string(value: &[u8]) -> bool {
    matches!(value, [b'"', inner @ .., b'"'] if inner.iter().all(|b| matches!(b, 0x20..=0x7E) && !matches!(b, b'"' | b'\\')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_wire::matcher::Writer;

    fn role() -> Vec<u8> {
        Writer::new()
            .str(1, "r1")
            .str(2, "evil")
            .str(3, "t")
            .nested(4, Writer::new().str(1, "level").f64(2, 7.5))
            .nested(5, Writer::new().str(1, "name").str(2, "Ann"))
            .str(6, "a")
            .str(9, "from a later version")
            .into_bytes()
    }

    #[test]
    fn an_info_is_stored_with_our_server_and_team_and_unknown_fields() {
        let body = role();
        let info = RoleRef::parse(&body).unwrap().info(b"s1", b"");
        let texts: Vec<(u32, Vec<u8>)> = fields(info.bytes())
            .map(|field| field.unwrap())
            .filter(|field| matches!(field.number, 1 | 2 | 3 | 9))
            .map(|field| (field.number, field.value.to_vec()))
            .collect();
        let wanted = [(1, &b"r1"[..]), (9, b"from a later version"), (2, b"s1")];
        assert_eq!(texts, wanted.map(|(number, value)| (number, value.to_vec())));
        assert_eq!((info.float("level"), info.float("x")), (Some(7.5), None));
        assert_eq!(info.string("name"), Some(&b"Ann"[..]));
    }

    #[test]
    fn an_update_sets_adds_and_removes_in_order() {
        let body = role();
        let info = RoleRef::parse(&body).unwrap().info(b"s", b"");
        let update = Writer::new()
            .nested(3, Writer::new().str(1, "level").f64(2, 8.0))
            .nested(4, Writer::new().str(1, "name").str(2, "Bob"))
            .str(5, "b")
            .str(5, "c")
            .str(6, "a")
            .str(6, "c")
            .into_bytes();
        let info = info.updated(&Update::parse(&update).unwrap(), b"s", b"").unwrap();
        assert_eq!((info.float("level"), info.string("name")), (Some(8.0), Some(&b"Bob"[..])));
        let tags: Vec<&[u8]> =
            fields(info.bytes()).map_while(Result::ok).filter(|f| f.number == 6).map(|f| f.value).collect();
        assert_eq!(tags, [b"b"], "a tag in both lists ends up absent");
    }

    #[test]
    fn data_over_the_limits_is_refused_and_null_deletes() {
        let mut map = DataMap::default();
        for key in 0..KEYS_MAX {
            map.set(8, format!("k{key}").as_bytes(), b"1").unwrap();
        }
        assert!(map.set(8, b"one more", b"1").is_err());
        map.set(8, b"k3", b"\"longer than before\"").unwrap();
        assert_eq!(map.get("k3"), Some(&b"\"longer than before\""[..]));
        map.set(8, b"k3", b"null").unwrap();
        assert_eq!((map.get("k3"), map.get("k4")), (None, Some(&b"1"[..])));
        assert!(map.set(8, b"k", b"{not json").is_err());
        assert!(map.set(8, b"k", &vec![b'1'; VALUE_BYTES_MAX + 1]).is_err());
    }
}
