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
    /// The same for [`EventLoop::wait_urgent`](crate::EventLoop::wait_urgent).
    urgent_counter: File,
    urgent_pending: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(WakerState {
            counter: sys::eventfd()?.into(),
            pending: AtomicBool::new(false),
            urgent_counter: sys::eventfd()?.into(),
            urgent_pending: AtomicBool::new(false),
        })))
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

    /// As [`wake`](Self::wake), and ends [`EventLoop::wait_urgent`](crate::EventLoop::wait_urgent)
    /// as well.
    pub fn wake_urgent(&self) {
        self.wake();
        if !self.0.urgent_pending.swap(true, Ordering::AcqRel) {
            drop((&self.0.urgent_counter).write(&1u64.to_ne_bytes()));
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.counter.as_fd()
    }

    pub(crate) fn urgent_fd(&self) -> BorrowedFd<'_> {
        self.0.urgent_counter.as_fd()
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.0.pending.load(Ordering::Acquire)
    }

    pub(crate) fn clear(&self) {
        clear(&self.0.counter, &self.0.pending);
    }

    pub(crate) fn clear_urgent(&self) {
        clear(&self.0.urgent_counter, &self.0.urgent_pending);
    }
}

fn clear(mut counter: &File, pending: &AtomicBool) {
    drop(counter.read(&mut [0; 8]));
    // Before the handler reads its queue: a wake from here on makes a new event.
    pending.swap(false, Ordering::AcqRel);
}
