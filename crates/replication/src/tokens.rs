//! Tokens: strings that a receiver gets once and that are named by a number from then
//! on.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bits::{BitReader, write_varint};
use crate::wire::DecodeError;

/// Bytes of one token's text at most.
pub const TOKEN_BYTES_MAX: usize = 255;
/// The table of archetypes and of the names of startup objects; the others belong to the game.
pub(crate) const NAMES: u8 = 255;
/// Numbers stay below this, so that table and number are one word.
const ID_LIMIT: u32 = 1 << 24;

/// Why a text got no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Longer than [`TOKEN_BYTES_MAX`].
    #[error("a token of {0} bytes exceeds the limit of {TOKEN_BYTES_MAX}")]
    TooLong(usize),
    /// At [`ServerConfig::tokens_max`](crate::ServerConfig::tokens_max).
    #[error("{0} tokens exist, the limit; raise tokens_max")]
    TooMany(u32),
    /// Table 255 belongs to the library.
    #[error("token table 255 is reserved for archetypes and names")]
    Reserved,
}

/// Table and number in one word.
pub(crate) fn key_of(table: u8, id: u32) -> Option<u32> {
    (id < ID_LIMIT).then_some(u32::from(table) << 24 | id)
}

#[derive(Debug, Default)]
struct Table {
    texts: Vec<Arc<str>>,
    ids: BTreeMap<Arc<str>, u32>,
}

/// The server's texts.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    tables: BTreeMap<u8, Table>,
    count: u32,
}

impl Tokens {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of a text, from 1 up; a new text gets the next one.
    pub(crate) fn intern(&mut self, table: u8, text: &str, max: u32) -> Result<u32, TokenError> {
        let known = self.tables.get(&table).and_then(|table| table.ids.get(text));
        if let Some(id) = known {
            return Ok(*id);
        }
        if text.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong(text.len()));
        }
        let max = max.min(ID_LIMIT - 1);
        if self.count >= max {
            return Err(TokenError::TooMany(max));
        }
        self.count += 1;
        let table = self.tables.entry(table).or_default();
        let text: Arc<str> = text.into();
        table.texts.push(Arc::clone(&text));
        let id = table.texts.len() as u32;
        table.ids.insert(text, id);
        Ok(id)
    }

    pub(crate) fn text(&self, table: u8, id: u32) -> Option<&str> {
        let at = (id as usize).checked_sub(1)?;
        self.tables.get(&table)?.texts.get(at).map(|text| &**text)
    }
}

/// Appends one export.
pub(crate) fn write_export(out: &mut Vec<u8>, table: u8, id: u32, text: &str) {
    out.push(table);
    write_varint(out, u64::from(id));
    write_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Reads one export: key and text.
pub(crate) fn read_export<'a>(reader: &mut BitReader<'a>) -> Result<(u32, &'a str), DecodeError> {
    let table = reader.get(8)? as u8;
    let id = u32::try_from(reader.get_varint()?).map_err(|_| DecodeError::Value)?;
    let key = key_of(table, id).filter(|_| id > 0).ok_or(DecodeError::Value)?;
    let len = reader.get_varint()?;
    if len > TOKEN_BYTES_MAX as u64 {
        return Err(DecodeError::TooLong);
    }
    let from = reader.byte_position();
    reader.skip_bytes(len as usize)?;
    let text = core::str::from_utf8(&reader.bytes()[from..from + len as usize]);
    Ok((key, text.map_err(|_| DecodeError::Value)?))
}

/// Texts of tokens on the receiving side.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenTexts {
    texts: BTreeMap<u32, Arc<str>>,
}

impl TokenTexts {
    pub(crate) fn get(&self, table: u8, id: u32) -> Option<&Arc<str>> {
        self.texts.get(&key_of(table, id)?)
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// True when an export is new; one that gives a known number another text is an error.
    pub(crate) fn check(&self, key: u32, text: &str) -> Result<bool, DecodeError> {
        match self.texts.get(&key) {
            None => Ok(true),
            Some(known) if **known == *text => Ok(false),
            Some(_) => Err(DecodeError::Value),
        }
    }

    pub(crate) fn apply(&mut self, key: u32, text: &str) {
        self.texts.entry(key).or_insert_with(|| text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_numbers_of_their_own() {
        let mut tokens = Tokens::default();
        assert_eq!(tokens.intern(3, "oak", 3), Ok(1));
        assert_eq!(tokens.intern(3, "elm", 3), Ok(2));
        assert_eq!(tokens.intern(3, "oak", 3), Ok(1));
        assert_eq!(tokens.intern(4, "elm", 3), Ok(1));
        assert_eq!(tokens.intern(4, "ash", 3), Err(TokenError::TooMany(3)));
        assert_eq!(tokens.intern(4, &"a".repeat(256), 9), Err(TokenError::TooLong(256)));
        assert_eq!((tokens.text(3, 2), tokens.text(3, 0), tokens.text(3, 3)), (Some("elm"), None, None));
    }

    #[test]
    fn exports_come_back_and_nothing_else_does() {
        let mut out = Vec::new();
        write_export(&mut out, 7, 300, "naïve");
        assert_eq!(out, [&[7, 0xac, 0x02, 6][..], "naïve".as_bytes()].concat());
        let (key, text) = read_export(&mut BitReader::new(&out)).unwrap();
        assert_eq!((key, text), (7 << 24 | 300, "naïve"));
        for len in 0..out.len() {
            assert!(read_export(&mut BitReader::new(&out[..len])).is_err());
        }
        // Not UTF-8, number 0, too long a text, a number beyond the limit.
        for bytes in [&[7, 1, 1, 0xff][..], &[7, 0, 0], &[7, 1, 0x80, 2], &[7, 0x80, 0x80, 0x80, 8, 0]] {
            assert!(read_export(&mut BitReader::new(bytes)).is_err());
        }
        let mut texts = TokenTexts::default();
        texts.apply(key, text);
        assert_eq!(texts.get(7, 300).map(|text| &**text), Some("naïve"));
        assert_eq!((texts.check(key, text), texts.check(key, "other")), (Ok(false), Err(DecodeError::Value)));
    }
}
