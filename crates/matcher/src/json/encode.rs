//! JSON to protobuf, in one pass over the text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use throng_wire::matcher::{Message, Type, write_bytes, write_f64, write_nested};
use throng_wire::write_varint;

use super::time::parse_time;

/// Messages within messages, at most.
const DEPTH_MAX: usize = 16;

/// Encodes an object. Members that are `null` count as absent, unknown ones are ignored, as unknown
/// fields are.
///
/// # Errors
/// The path of what is not what the catalogue says, and why.
pub fn encode(message: &'static Message, text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut path = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(text);
    let target = Target { number: 0, ty: Type::Msg(message), is_root: true, out, path: &mut path };
    target.deserialize(&mut reader).and_then(|()| reader.end()).map_err(|error| match path[..] {
        [] => format!("the body is not what the method takes: {error}"),
        _ => format!("`{}`: {error}", path.join(".")),
    })
}

/// Place where a value goes.
struct Target<'o> {
    number: u32,
    ty: Type,
    /// Its fields stand in the body itself.
    is_root: bool,
    out: &'o mut Vec<u8>,
    /// Names from the body to this value; left as it is where an error is found.
    path: &'o mut Vec<String>,
}

impl Target<'_> {
    fn varint(self, value: u64) {
        write_varint(self.out, u64::from(self.number) << 3);
        write_varint(self.out, value);
    }

    fn part(&mut self, number: u32, ty: Type) -> Target<'_> {
        Target { number, ty, is_root: false, out: self.out, path: self.path }
    }

    /// Reads a part that has a name of its own.
    fn within<E>(&mut self, name: String, read: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<(), E> {
        self.path.push(name);
        read(self)?;
        self.path.pop();
        Ok(())
    }

    fn members<'de, A: MapAccess<'de>>(
        mut self,
        message: &'static Message,
        mut access: A,
    ) -> Result<(), A::Error> {
        if self.path.len() > DEPTH_MAX {
            return Err(A::Error::custom("too deep"));
        }
        while let Some(name) = access.next_key::<Cow<'de, str>>()? {
            match message.named(&name) {
                Some(field) => self.within(name.into_owned(), |target| {
                    access.next_value_seed(target.part(field.number, field.ty))
                })?,
                None => drop(access.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Target<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if let Type::Json = self.ty {
            let raw: &RawValue = serde::Deserialize::deserialize(deserializer)?;
            write_bytes(self.out, self.number, raw.get().as_bytes());
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Target<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.ty {
            Type::Str => "text",
            Type::Json => "any value",
            Type::Bool => "true or false",
            Type::U64 => "a number without sign and fraction",
            Type::I64 => "a number without fraction",
            Type::F64 => "a number",
            Type::Time => "a time like 2020-04-26T10:11:08.337Z",
            Type::Msg(message) => return write!(f, "an object ({})", message.name),
            Type::List(_) => "a list",
            Type::Map(_) | Type::Keyed(..) => "an object",
            Type::Set => "an object whose keys are the values",
        })
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self.ty {
            Type::Bool => self.varint(u64::from(value)),
            _ => return Err(E::invalid_type(serde::de::Unexpected::Bool(value), &self)),
        }
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match self.ty {
            Type::U64 => self.varint(value),
            Type::I64 if value <= i64::MAX as u64 => self.varint(value << 1),
            Type::F64 => write_f64(self.out, self.number, value as f64),
            _ => return Err(E::invalid_type(serde::de::Unexpected::Unsigned(value), &self)),
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        match self.ty {
            Type::I64 => self.varint((value << 1 ^ value >> 63) as u64),
            Type::F64 => write_f64(self.out, self.number, value as f64),
            _ => return Err(E::invalid_type(serde::de::Unexpected::Signed(value), &self)),
        }
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        match self.ty {
            Type::F64 => write_f64(self.out, self.number, value),
            _ => return Err(E::invalid_type(serde::de::Unexpected::Float(value), &self)),
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        let wrong = |target: &Self| E::invalid_value(serde::de::Unexpected::Str(value), target);
        match self.ty {
            Type::Str => write_bytes(self.out, self.number, value.as_bytes()),
            Type::Time => {
                let ms = parse_time(value).ok_or_else(|| wrong(&self))?;
                self.varint(ms);
            }
            _ => return Err(wrong(&self)),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut access: A) -> Result<(), A::Error> {
        let Type::List(inner) = self.ty else {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self));
        };
        for index in 0.. {
            let mut more = false;
            let number = self.number;
            self.within(index.to_string(), |target| {
                more = access.next_element_seed(target.part(number, *inner))?.is_some();
                Ok(())
            })?;
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut access: A) -> Result<(), A::Error> {
        let number = self.number;
        match self.ty {
            Type::Msg(message) if self.is_root => self.members(message, access),
            Type::Msg(message) => {
                let path = &mut *self.path;
                write_nested(self.out, number, |out| {
                    let inner = Target { number, ty: Type::Msg(message), is_root: true, out, path };
                    inner.members(message, access)
                })
            }
            Type::Map(inner) => {
                while let Some(key) = access.next_key::<String>()? {
                    self.within(key.clone(), |target| {
                        let path = &mut *target.path;
                        write_nested(target.out, number, |out| {
                            write_bytes(out, 1, key.as_bytes());
                            let value = Target { number: 2, ty: *inner, is_root: false, out, path };
                            access.next_value_seed(value)
                        })
                    })?;
                }
                Ok(())
            }
            Type::Keyed(message, _) => {
                while let Some(key) = access.next_key::<String>()? {
                    self.within(key, |target| {
                        access.next_value_seed(target.part(number, Type::Msg(message)))
                    })?;
                }
                Ok(())
            }
            Type::Set => {
                while let Some(key) = access.next_key::<Cow<'de, str>>()? {
                    write_bytes(self.out, number, key.as_bytes());
                    access.next_value::<IgnoredAny>()?;
                }
                Ok(())
            }
            _ => Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_wire::matcher::method_named;

    fn check(method: &str, text: &str, wanted: Result<(), &str>) {
        let mut body = Vec::new();
        let found = encode(method_named(method).unwrap().request, text.as_bytes(), &mut body);
        match (&found, wanted) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(wanted)) => assert!(found.starts_with(wanted), "{found}"),
            _ => panic!("{text}: {found:?}"),
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        let method = "RoleJoinRandomRoom";
        check(method, "{}", Ok(()));
        check(method, r#"{"RoleInfo": null, "New": {"a": [1]}}"#, Ok(()));
        check(
            method,
            r#"{"RoleInfo": {"RoleID": "r", "FloatData": {"level": "high"}}}"#,
            Err("`RoleInfo.FloatData.level`: invalid value: string \"high\", expected a number"),
        );
        check(method, r#"{"RoleInfo": 5}"#, Err("`RoleInfo`: invalid type: integer `5`, expected an object"));
        check(
            method,
            r#"{"Reserve": -1}"#,
            Err("`Reserve`: invalid type: integer `-1`, expected a number without"),
        );
        check(method, "[]", Err("the body is not what the method takes: invalid type: sequence"));
        check(method, r#"{"RoleInfo": {"#, Err("`RoleInfo`: EOF"));
        check(method, "{} {}", Err("the body is not what the method takes: trailing"));
        check("GetRoomInfos", r#"{"RoomIDs": ["a", "b"]}"#, Ok(()));
        check("GetRoomInfos", r#"{"RoomIDs": ["a", 1]}"#, Err("`RoomIDs.1`: invalid type: integer `1`"));
    }

    #[test]
    fn numbers_keep_every_bit() {
        let method = method_named("RoleJoinRandomRoom").unwrap();
        let of_eleventh = (1..1_000).map(|at| f64::from(at) / 11.0);
        for level in of_eleventh.chain([0.945_270_696_555_392_3, 0.090_909_090_909_090_91]) {
            let text = format!(r#"{{"RoleInfo": {{"FloatData": {{"level": {level}}}}}}}"#);
            let mut body = Vec::new();
            encode(method.request, text.as_bytes(), &mut body).unwrap();
            assert_eq!(body.last_chunk(), Some(&level.to_le_bytes()), "{level}");
        }
    }

    #[test]
    fn deep_documents_end() {
        check("SetRoomData", &format!("{{\"Data\": {}1{}}}", "[".repeat(100), "]".repeat(100)), Ok(()));
        check("SetRoomData", &"{\"Data\":".repeat(100_000), Err("`Data`: "));
        check("SetRoomData", &format!("{{\"x\": {}", "[".repeat(100_000)), Err("the body is not"));
    }
}
