//! Verdicts of policies, and their bytes.

use throng_wire::matcher::{Status, write_bool, write_bytes, write_nested};
use throng_wire::{fields, write_varint};

use crate::info::{DataMap, ROOM_DATA_FIELD, entry, text};
use crate::problem::{Outcome, Problem};

/// Verdict of a policy. The default allows and changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Vetoes; only what has not happened yet can be vetoed: creating and adding.
    pub refuse: bool,
    /// Why, for the caller.
    pub reason: String,
    /// Hides or shows the room.
    pub hidden: Option<bool>,
    /// Closes or opens it.
    pub full: Option<bool>,
    /// Asks for its removal.
    pub deleting: bool,
    /// Keys of `Data` and their JSON values; `null` removes.
    pub data: Vec<(String, String)>,
}

impl Verdict {
    /// A veto.
    #[must_use]
    pub fn refusal(reason: impl Into<String>) -> Verdict {
        Verdict { refuse: true, reason: reason.into(), ..Verdict::default() }
    }

    /// Reads a `PolicyVerdict` of the catalogue. `None` for anything else.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Verdict> {
        let mut verdict = Verdict::default();
        for field in fields(body) {
            let field = field.ok()?;
            match field.number {
                1 => verdict.refuse = field.scalar != 0,
                2 => verdict.reason = String::from_utf8(text(&field).ok()?.to_vec()).ok()?,
                3 => verdict.deleting = field.scalar != 0,
                4 => {
                    let (key, value) = entry(&field).ok()?;
                    let value = value.map_or(&b"null"[..], |value| value.value);
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
                    verdict.data.push((text(key)?, text(value)?));
                }
                5 => verdict.hidden = Some(field.scalar != 0),
                6 => verdict.full = Some(field.scalar != 0),
                _ => {}
            }
        }
        Some(verdict)
    }

    /// Writes what [`parse`](Verdict::parse) reads.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_bool(&mut out, 1, self.refuse);
        write_bytes(&mut out, 2, self.reason.as_bytes());
        write_bool(&mut out, 3, self.deleting);
        for (key, value) in &self.data {
            write_nested(&mut out, 4, |out| {
                write_bytes(out, 1, key.as_bytes());
                write_bytes(out, 2, value.as_bytes());
            });
        }
        for (number, flag) in [(5, self.hidden), (6, self.full)] {
            if let Some(flag) = flag {
                write_varint(&mut out, number << 3);
                write_varint(&mut out, u64::from(flag));
            }
        }
        out
    }

    /// The same without a key of `Data` that is not the policy's to set. It may come back with
    /// the others that the policy was shown.
    pub(crate) fn without(mut self, name: &str) -> Verdict {
        self.data.retain(|(key, _)| key != name);
        self
    }

    pub(crate) fn set_data(&self, data: &mut DataMap) -> Outcome {
        for (key, value) in &self.data {
            data.set(ROOM_DATA_FIELD, key.as_bytes(), value.as_bytes()).map_err(|problem| {
                Problem::new(Status::PolicyUnavailable, format!("the policy's Data: {}", problem.message))
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_survives_its_bytes() {
        let verdict = Verdict {
            refuse: true,
            reason: "no".to_owned(),
            hidden: Some(false),
            full: Some(true),
            deleting: true,
            data: vec![("a".to_owned(), "[1]".to_owned()), ("b".to_owned(), "null".to_owned())],
        };
        assert_eq!(Verdict::parse(&verdict.to_bytes()), Some(verdict));
        assert_eq!(Verdict::parse(&[]), Some(Verdict::default()));
        assert_eq!(Verdict::parse(b"\xFF"), None);
    }
}
