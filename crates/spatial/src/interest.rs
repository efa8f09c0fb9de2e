//! Interest of a connection: its cells with distances, and the differences between two interests.

use crate::grid::Cell;

/// The cells that a connection cares about, each with its distance in cells. Sorted by cell.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Interest {
    cells: Vec<(Cell, u32)>,
}

/// One difference between two interests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The cell was not covered before.
    Enter(Cell, u32),
    /// The cell stays covered at another distance.
    Move(Cell, u32),
    /// The cell is no longer covered.
    Leave(Cell),
}

impl Interest {
    /// Collects cells; of several distances for one cell the last counts.
    #[must_use]
    pub fn from_cells(cells: impl IntoIterator<Item = (Cell, u32)>) -> Self {
        let mut cells: Vec<_> = cells.into_iter().collect();
        // A stable sort keeps the order in which one cell's distances were given.
        cells.sort_by_key(|&(cell, _)| cell);
        cells.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1 = later.1;
            }
            same
        });
        Self { cells }
    }

    /// The covered cells in ascending order, with their distances.
    pub fn cells(&self) -> impl Iterator<Item = (Cell, u32)> + '_ {
        self.cells.iter().copied()
    }

    /// True if no cell is covered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Distance of a covered cell. O(log n).
    #[must_use]
    pub fn distance(&self, cell: Cell) -> Option<u32> {
        self.cells.binary_search_by_key(&cell, |&(c, _)| c).ok().map(|i| self.cells[i].1)
    }

    /// Changes that turn `self` into `next`, in ascending order of cells. O(n + m); cells that stay
    /// as they are are not mentioned.
    pub fn diff<'a>(&'a self, next: &'a Interest) -> impl Iterator<Item = Change> + 'a {
        let mut old = self.cells.iter().copied().peekable();
        let mut new = next.cells.iter().copied().peekable();
        std::iter::from_fn(move || {
            loop {
                match (old.peek().copied(), new.peek().copied()) {
                    (None, None) => return None,
                    (Some((a, _)), Some((b, _))) if a < b => {
                        old.next();
                        return Some(Change::Leave(a));
                    }
                    (Some((a, _)), None) => {
                        old.next();
                        return Some(Change::Leave(a));
                    }
                    (Some((a, was)), Some((b, is))) if a == b => {
                        old.next();
                        new.next();
                        if was != is {
                            return Some(Change::Move(b, is));
                        }
                    }
                    (_, Some((b, distance))) => {
                        new.next();
                        return Some(Change::Enter(b, distance));
                    }
                }
            }
        })
    }
}
