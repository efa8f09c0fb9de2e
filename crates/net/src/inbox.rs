//! Mail between loops about connections whose socket another loop reads.

use std::sync::{Mutex, PoisonError};

use crate::event_loop::Waker;

/// A message between loops.
pub(crate) trait Letter {
    /// Letters in an inbox beyond which those that [may be refused](Self::may_be_refused) are.
    const MAX: usize;

    /// True if it carries data; everything else is rare and must arrive.
    fn may_be_refused(&self) -> bool;
}

/// A loop's mail.
pub(crate) struct Inbox<L> {
    letters: Mutex<Vec<L>>,
    waker: Waker,
}

impl<L: Letter> Inbox<L> {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { letters: Mutex::default(), waker }
    }

    /// Wakes the loop. False when the letter was refused.
    pub(crate) fn post(&self, letter: L) -> bool {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = letters.len() < L::MAX || !letter.may_be_refused();
        if fits {
            letters.push(letter);
        }
        drop(letters);
        self.waker.wake();
        fits
    }

    pub(crate) fn take(&self) -> Vec<L> {
        std::mem::take(&mut self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
