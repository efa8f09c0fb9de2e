//! Order in which tickets are tried as anchors.

use std::collections::{BTreeSet, VecDeque};

use crate::key::{BackfillKey, TicketKey};
use crate::schema::v1;

/// Who is tried next, in the order of fairness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Anchor {
    /// Backfills of high priority before all, those of low priority after.
    pub(crate) class: u8,
    /// Minus the priority.
    pub(crate) rank: i8,
    pub(crate) created: u64,
    pub(crate) who: Seeker,
}

/// A ticket or a backfill that looks for a match; of equals, tickets before backfills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seeker {
    Ticket(TicketKey),
    Backfill(BackfillKey),
}

impl Anchor {
    /// Its ticket, unless it is of a backfill.
    pub(crate) fn ticket(&self) -> Option<TicketKey> {
        match self.who {
            Seeker::Ticket(ticket) => Some(ticket),
            Seeker::Backfill(_) => None,
        }
    }
}

impl From<Anchor> for v1::Anchor {
    fn from(Anchor { class, rank, created, who }: Anchor) -> v1::Anchor {
        let (backfill, place) = match who {
            Seeker::Ticket(ticket) => (false, ticket.index()),
            Seeker::Backfill(backfill) => (true, backfill.index()),
        };
        v1::Anchor { class, rank, created, backfill, place }
    }
}

impl From<v1::Anchor> for Anchor {
    fn from(v1::Anchor { class, rank, created, backfill, place }: v1::Anchor) -> Anchor {
        let who = match backfill {
            false => Seeker::Ticket(TicketKey::new(place)),
            true => Seeker::Backfill(BackfillKey::new(place)),
        };
        Anchor { class, rank, created, who }
    }
}

/// Anchors to try, each once, in their order. Most tickets come in that order too: those are in a
/// line, which costs a tenth of a tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Anchors {
    line: VecDeque<Anchor>,
    /// Those that came later than their turn: of a priority, back from a proposal, with something
    /// new near them. One may be in the line as well.
    others: BTreeSet<Anchor>,
}

impl Anchors {
    /// Those in line, and those that came later than their turn.
    pub(crate) fn save(&self) -> (Vec<v1::Anchor>, Vec<v1::Anchor>) {
        let line = self.line.iter().map(|anchor| (*anchor).into()).collect();
        (line, self.others.iter().map(|anchor| (*anchor).into()).collect())
    }

    pub(crate) fn load(line: &[v1::Anchor], others: &[v1::Anchor]) -> Anchors {
        let line = line.iter().map(|anchor| (*anchor).into()).collect();
        Anchors { line, others: others.iter().map(|anchor| (*anchor).into()).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty() && self.others.is_empty()
    }

    /// Adds one that may be there already.
    pub(crate) fn insert(&mut self, anchor: Anchor) {
        // A backfill would keep those out that come after it.
        if anchor.ticket().is_some() && self.line.back().is_none_or(|last| *last < anchor) {
            self.line.push_back(anchor);
        } else {
            self.others.insert(anchor);
        }
    }

    /// Takes the first.
    pub(crate) fn pop_first(&mut self) -> Option<Anchor> {
        match (self.line.front(), self.others.first()) {
            (Some(first), Some(other)) if other < first => self.others.pop_first(),
            (Some(first), other) => {
                if other == Some(first) {
                    self.others.pop_first();
                }
                self.line.pop_front()
            }
            (None, _) => self.others.pop_first(),
        }
    }

    /// All of them, in order; one may come twice.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Anchor> {
        let (mut line, mut others) = (self.line.iter().peekable(), self.others.iter().peekable());
        std::iter::from_fn(move || match (line.peek(), others.peek()) {
            (Some(first), Some(other)) if other < first => others.next(),
            (None, _) => others.next(),
            _ => line.next(),
        })
    }

    pub(crate) fn retain(&mut self, keeps: impl Fn(&Anchor) -> bool) {
        self.line.retain(&keeps);
        self.others.retain(&keeps);
    }
}

#[cfg(test)]
mod tests {
    use throng_stdx::Rng;

    use super::*;

    #[test]
    fn they_come_as_from_a_set() {
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let (mut anchors, mut model) = (Anchors::default(), BTreeSet::new());
            let mut now = 0;
            for _ in 0..300 {
                if rng.below(3) == 0 {
                    assert_eq!(anchors.pop_first(), model.pop_first());
                    continue;
                }
                now += rng.below(2);
                let backfill = rng.below(8) == 0;
                let (class, rank) =
                    if backfill { (rng.below(3) as u8, 0) } else { (1, -(rng.below(2) as i8)) };
                // Mostly new ones, some of earlier times, which may be there.
                let created = if rng.below(4) == 0 { rng.below(now + 1) } else { now };
                let place = rng.below(3) as u32;
                let who = match backfill {
                    false => Seeker::Ticket(TicketKey::new(place)),
                    true => Seeker::Backfill(BackfillKey::new(place)),
                };
                let anchor = Anchor { class, rank, created, who };
                anchors.insert(anchor);
                model.insert(anchor);
                assert_eq!(anchors.iter().collect::<BTreeSet<_>>(), model.iter().collect());
                assert!(anchors.iter().is_sorted());
            }
            let keeps = |anchor: &Anchor| {
                ![Seeker::Ticket(TicketKey::new(1)), Seeker::Backfill(BackfillKey::new(1))]
                    .contains(&anchor.who)
            };
            anchors.retain(keeps);
            model.retain(keeps);
            assert_eq!(std::iter::from_fn(|| anchors.pop_first()).collect::<Vec<_>>(), Vec::from_iter(model));
            assert!(anchors.is_empty());
        }
    }
}
