//! Handle that interrupts a wait.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

/// Interrupts a loop's wait from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakerState>);

#[derive(Debug)]
struct WakerState {
    counter: File,
    /// Set from the first wake until the loop noticed, so that a busy sender makes one system call
    /// per poll.
    pending: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(WakerState { counter: sys::eventfd()?.into(), pending: AtomicBool::new(false) })))
    }

    /// Makes the loop call [`Handler::woken`](crate::Handler::woken) soon. What was written to
    /// shared memory before is visible there.
    pub fn wake(&self) {
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            // The only possible failure is a full counter, and then the loop has an unread event
            // anyway.
            drop((&self.0.counter).write(&1u64.to_ne_bytes()));
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.counter.as_fd()
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.0.pending.load(Ordering::Acquire)
    }

    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        drop((&self.0.counter).read(&mut count));
        // Before the handler looks at what was announced: a wake from here on makes a new event.
        self.0.pending.swap(false, Ordering::AcqRel);
    }
}
