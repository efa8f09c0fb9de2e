//! History of a room: its last changes, as an answer shows them.

use throng_wire::fields;
use throng_wire::matcher::{bytes_field_len, write_bytes, write_nested, write_u64};

/// Changes that are shown,
const SHOWN: usize = 100;
/// that are kept before the oldest are dropped together,
const KEPT: u8 = 150;
/// and bytes of them, where names are long.
const BYTES_MAX: usize = 16 << 10;
/// Roles that one change names.
pub(crate) const NAMED_MAX: usize = 16;
/// Bytes of a change's numbers, tags and lengths, those of its roles apart.
const HEAD_BYTES_MAX: usize = 32;

/// Changes of a room, oldest first, each a field of the answer: telling them is copying. A room
/// with one member has some 30 bytes of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    changes: Vec<u8>,
    count: u8,
}

/// Only the change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) kind: &'static str,
    pub(crate) key: &'a [u8],
    pub(crate) reason: &'a str,
}

impl Change<'_> {
    pub(crate) fn of(kind: &'static str) -> Change<'static> {
        Change { kind, key: b"", reason: "" }
    }
}

impl History {
    /// Notes a change that gave the room its revision. `roles` are those that it concerns.
    pub(crate) fn note<'a>(
        &mut self,
        (now, rev): (u64, u64),
        change: Change<'_>,
        roles: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) {
        let players = roles.len() as u64;
        let roles = roles.take(NAMED_MAX);
        let names: usize = roles.clone().map(|role| bytes_field_len(4, role.len())).sum();
        let strings = change.kind.len() + change.key.len() + change.reason.len();
        // At once, as most rooms have a change or two.
        self.changes.reserve(HEAD_BYTES_MAX + strings + names);
        write_nested(&mut self.changes, 1, |out| {
            write_u64(out, 1, now);
            write_u64(out, 2, rev);
            write_bytes(out, 3, change.kind.as_bytes());
            roles.for_each(|role| write_bytes(out, 4, role));
            if !change.key.is_empty() {
                write_bytes(out, 5, change.key);
            }
            if !change.reason.is_empty() {
                write_bytes(out, 6, change.reason.as_bytes());
            }
            if players > 1 {
                write_u64(out, 7, players);
            }
        });
        self.count += 1;
        if self.count >= KEPT {
            self.drop_oldest(usize::from(self.count) - SHOWN);
        }
        if self.changes.len() > BYTES_MAX {
            self.drop_oldest(usize::from(self.count) / 2);
        }
    }

    /// Every kept change, as fields of an answer.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.changes
    }

    /// Changes that [`bytes`](History::bytes) gave.
    pub(crate) fn load(changes: &[u8]) -> History {
        let count = fields(changes).take(usize::from(KEPT)).map_while(Result::ok).count() as u8;
        History { changes: changes.to_vec(), count }
    }

    fn drop_oldest(&mut self, count: usize) {
        let bytes = self.first(count);
        self.changes.drain(..bytes);
        self.count -= count as u8;
    }

    /// Bytes of the first ones.
    fn first(&self, count: usize) -> usize {
        fields(&self.changes).take(count).map_while(Result::ok).map(|field| field.raw.len()).sum()
    }

    /// The last ones, as fields of an answer.
    pub(crate) fn shown(&self) -> &[u8] {
        &self.changes[self.first(usize::from(self.count).saturating_sub(SHOWN))..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_are_kept_however_long_names_are() {
        for length in [1, 128] {
            let (mut history, name) = (History::default(), vec![b'x'; length]);
            for rev in 1..=1_000 {
                history.note((rev, rev), Change::of("joined"), (0..300).map(|_| &name[..]));
                assert!(history.changes.len() <= BYTES_MAX && history.count < KEPT);
                let shown: Vec<u64> = fields(history.shown())
                    .map(|change| fields(change.unwrap().value).nth(1).unwrap().unwrap().scalar)
                    .collect();
                assert_eq!(shown.last(), Some(&rev));
                assert!(shown.windows(2).all(|pair| pair[0] + 1 == pair[1]) && shown.len() <= SHOWN);
                assert!(length > 1 || shown.len() as u64 == rev.min(100));
            }
        }
    }
}
