//! Queues of a connection, laid out for thousands of peers whose memory is not in the processor's
//! cache.
//!
//! Most queues hold one entry for a moment and then none: the first entry of a [`Queue`] lies within
//! its owner, because a buffer of its own would cost each peer another read of memory. A
//! [`RareQueue`] hardly ever has an entry, and takes a pointer's room.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

#[derive(Clone, Debug)]
pub(crate) struct Queue<T> {
    first: Option<T>,
    /// Entries behind the first; empty while there is none.
    #[expect(clippy::box_collection, reason = "most queues never have one and keep a pointer's room")]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
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

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        match at.checked_sub(1) {
            None => self.first.as_ref(),
            Some(behind) => self.rest.as_ref()?.get(behind),
        }
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        match at.checked_sub(1) {
            None => self.first.as_mut(),
            Some(behind) => self.rest.as_mut()?.get_mut(behind),
        }
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

/// A queue that is empty nearly always; it holds memory only while it is not.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "an empty queue keeps a pointer's room")]
pub(crate) struct RareQueue<T>(Option<Box<VecDeque<T>>>);

impl<T> RareQueue<T> {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.0.as_ref()?.front()
    }

    pub(crate) fn push_back(&mut self, item: T) {
        self.0.get_or_insert_default().push_back(item);
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let items = self.0.as_mut()?;
        let item = items.pop_front();
        if items.is_empty() {
            self.0 = None;
        }
        item
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
            let at = step as usize % 7;
            assert_eq!(queue.get(at), model.get(at));
            assert_eq!(queue.get_mut(at), model.get_mut(at));
            assert_eq!(queue.is_empty(), model.is_empty());
            if step % 97 == 0 {
                assert!(queue.iter().eq(model.iter()));
            }
        }
        while queue.pop_front().is_some() {}
        assert!(queue.rest.is_none_or(|rest| rest.capacity() <= KEPT));
    }

    #[test]
    fn a_rare_queue_keeps_the_order_and_no_memory() {
        let mut queue = RareQueue::new();
        assert_eq!(queue.pop_front(), None);
        for round in 0..3 {
            (0..5).for_each(|item| queue.push_back(round + item));
            for item in 0..5 {
                assert_eq!((queue.is_empty(), queue.front()), (false, Some(&(round + item))));
                assert_eq!(queue.pop_front(), Some(round + item));
            }
            assert!(queue.is_empty() && queue.front().is_none() && queue.0.is_none());
        }
    }
}
