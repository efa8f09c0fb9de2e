//! Work that blocks its thread: hashing, decoding, waiting for the disk.
//!
//! A runtime of several threads does other work meanwhile. On a runtime of one thread, as in a
//! simulation, the work is done in place, so that the order of all work is the same in every run.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does work on this thread, whose other tasks move to another one.
pub(crate) fn in_place<T>(work: impl FnOnce() -> T) -> T {
    if has_one_thread() { work() } else { tokio::task::block_in_place(work) }
}

/// Does work on a thread that may wait. `None` if the work panics.
pub(crate) async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if has_one_thread() { Some(work()) } else { tokio::task::spawn_blocking(work).await.ok() }
}

fn has_one_thread() -> bool {
    Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::CurrentThread)
}
