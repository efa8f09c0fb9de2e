//! Requests about backfills: running matches that ask for players.

mod service;

use throng_wire::matcher::Status;
use throng_wire::{Field, fields};

use crate::info::{Text, bytes, entry, text};
use crate::problem::{Outcome, Problem, invalid, too_large};
use crate::queue::Compiled;

/// Content of a request about a backfill.
#[derive(Default)]
struct BackfillRequest<'a> {
    id: &'a [u8],
    queue: &'a [u8],
    rev: u64,
    open: Vec<(&'a [u8], u64)>,
    attrs: Vec<(Text, Vec<u8>)>,
}

impl<'a> BackfillRequest<'a> {
    /// Fields 3 and 4 are the same in both requests that have them.
    fn parse(body: &'a [u8]) -> Outcome<BackfillRequest<'a>> {
        let mut asked = BackfillRequest::default();
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => asked.id = text(&field)?,
                2 => {
                    asked.rev = field.scalar;
                    asked.queue = bytes(&field).unwrap_or_default();
                }
                3 => {
                    let (side, count) = entry(&field)?;
                    asked.open.push((side, count.map_or(0, |count: Field<'_>| count.scalar)));
                }
                4 => {
                    let (key, value) = entry(&field)?;
                    let value = value.map_or(&[][..], |value| value.value);
                    asked.attrs.push((Text::from_slice(key), value.to_vec()));
                }
                _ => {}
            }
        }
        if asked.attrs.len() > 32 || asked.attrs.iter().any(|(_, value)| value.len() > 4 << 10) {
            return Err(too_large("a backfill has at most 32 attributes of 4096 bytes"));
        }
        Ok(asked)
    }

    /// Free places in the order of the queue's sides.
    fn open_of(&self, compiled: &Compiled) -> Outcome<Vec<u32>> {
        let mut open = vec![0; compiled.sides.len()];
        for (name, count) in &self.open {
            let side = compiled.sides.iter().position(|(known, _)| known.as_bytes() == *name);
            let side = side.ok_or_else(|| {
                Problem::new(Status::RuleInvalid, format!("no side `{}`", String::from_utf8_lossy(name)))
            })?;
            if *count > u64::from(compiled.sides[side].1) {
                return Err(invalid("more places are open than the side has"));
            }
            open[side] = *count as u32;
        }
        Ok(open)
    }
}
