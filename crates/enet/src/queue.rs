//! A queue whose first entry lies within its owner.
//!
//! Most queues of a connection hold one entry for a moment and then none. With a buffer of its own,
//! each would cost a read of memory that is not in the processor's cache, for every peer of
//! thousands.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Queue<T> {
    first: Option<T>,
    /// Entries behind the first; empty while there is none.
    #[expect(clippy::box_collection, reason = "most queues never have one and keep a pointer's room")]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Queue<T> {
    pub(crate) const fn new() -> Self {
        Self { first: None, rest: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        self.first.as_mut()
    }

    pub(crate) fn push_back(&mut self, item: T) {
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.rest.get_or_insert_default().push_back(item);
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let next = self.rest.as_mut().and_then(|rest| rest.pop_front());
        if next.is_none() && self.rest.as_ref().is_some_and(|rest| rest.capacity() > KEPT) {
            self.rest = None;
        }
        core::mem::replace(&mut self.first, next)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }
}

/// Entries for which an empty queue keeps room.
const KEPT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use throng_stdx::Rng;

    #[test]
    fn it_agrees_with_a_plain_queue_and_gives_back_much_room() {
        let (mut queue, mut model) = (Queue::new(), VecDeque::new());
        let mut rng = Rng::new(5);
        for step in 0..20_000_u32 {
            // Grows to some hundreds, shrinks to none, and stays at one or none for a while.
            let share = [0.9, 0.1, 0.4][step as usize / 1_000 % 3];
            if rng.chance(share) {
                queue.push_back(step);
                model.push_back(step);
            } else {
                assert_eq!(queue.pop_front(), model.pop_front());
            }
            if let (Some(a), Some(b)) = (queue.front_mut(), model.front_mut()) {
                *a += 1;
                *b += 1;
            }
            assert_eq!((queue.front(), queue.len()), (model.front(), model.len()));
            assert_eq!(queue.is_empty(), model.is_empty());
            if step % 97 == 0 {
                assert!(queue.iter().eq(model.iter()));
            }
        }
        while queue.pop_front().is_some() {}
        assert!(queue.rest.is_none_or(|rest| rest.capacity() <= KEPT));
    }
}
