//! Work that blocks its thread: hashing, decoding, waiting for the disk.
//!
//! A runtime of several threads does other work meanwhile. On a runtime of one thread, as in a
//! simulation, the work is done in place, so that the order of all work is the same in every run.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

/// Priority of maintenance: a tenth of the processor where others want all of it.
pub(crate) const MAINTENANCE_NICE: i32 = 10;

/// Does work on this thread, whose other tasks move to another one.
pub(crate) fn in_place<T>(work: impl FnOnce() -> T) -> T {
    if has_one_thread() { work() } else { tokio::task::block_in_place(work) }
}

/// Does work on a thread that may wait. `None` if the work panics.
pub(crate) async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if has_one_thread() { Some(work()) } else { tokio::task::spawn_blocking(work).await.ok() }
}

/// Does maintenance on a thread of its own. `None` if it panics, or there is no thread.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if has_one_thread() {
        return Some(work());
    }
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        give_way(MAINTENANCE_NICE);
        let _ = sender.send(work());
    };
    std::thread::Builder::new().name("cache upkeep".to_owned()).spawn(work).ok()?;
    receiver.await.ok()
}

/// Lowers the priority of the calling thread. For a thread that holds nothing for long which
/// requests wait for: maintenance leaves its commits to the thread of those.
pub(crate) fn give_way(nice: i32) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::debug!(%error, "a thread keeps its priority");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

fn has_one_thread() -> bool {
    Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::CurrentThread)
}
