//! Sides of a match's room, with their roles.

use smallvec::SmallVec;
use throng_wire::matcher::{write_bytes, write_nested};
use throng_wire::{Field, fields};

use crate::info::Text;

/// Number of the field in a room.
const FIELD: u32 = 10;

/// As a room shows them: fields one after the other, so that a large tick needs one small piece of
/// memory for a room's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sides(Box<[u8]>);

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) name: Text,
    pub(crate) players: Vec<Text>,
}

impl Sides {
    /// Sides with who is on them.
    pub(crate) fn new<'a, P: IntoIterator<Item = &'a [u8]>>(
        sides: impl Iterator<Item = (&'a [u8], P)>,
        scratch: &mut Vec<u8>,
    ) -> Sides {
        scratch.clear();
        for (name, players) in sides {
            write_nested(scratch, FIELD, |out| {
                write_bytes(out, 1, name);
                players.into_iter().for_each(|player| write_bytes(out, 2, player));
            });
        }
        Sides(Box::from(&scratch[..]))
    }

    /// Sides that [`bytes`](Sides::bytes) gave.
    pub(crate) fn load(bytes: &[u8]) -> Sides {
        Sides(Box::from(bytes))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As fields of a room.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Names of the sides, in order.
    pub(crate) fn names(&self) -> SmallVec<[Text; 4]> {
        let name = |side: Field<'_>| Some(Text::from_slice(fields(side.value).next()?.ok()?.value));
        fields(&self.0).map_while(Result::ok).map_while(name).collect()
    }

    pub(crate) fn list(&self) -> Vec<Side> {
        let mut sides = Vec::new();
        for side in fields(&self.0).map_while(Result::ok) {
            let mut texts =
                fields(side.value).map_while(Result::ok).map(|field| Text::from_slice(field.value));
            let name = texts.next().unwrap_or_default();
            sides.push(Side { name, players: texts.collect() });
        }
        sides
    }

    /// Changes them. Cost: all of them are read and written.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Vec<Side>)) {
        let mut sides = self.list();
        change(&mut sides);
        let sides = sides.iter().map(|side| (&side.name[..], side.players.iter().map(|player| &player[..])));
        *self = Sides::new(sides, &mut Vec::new());
    }

    /// Takes a player out.
    pub(crate) fn remove(&mut self, player: &[u8]) {
        if !self.is_empty() {
            self.change(|sides| {
                sides.iter_mut().for_each(|side| side.players.retain(|other| other.as_slice() != player));
            });
        }
    }
}
