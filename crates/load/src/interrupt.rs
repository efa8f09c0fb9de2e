//! Early end of a run: Ctrl-C, a child server that ended by itself, or a case that exceeds its
//! limit.
//!
//! Every waiting loop checks [`requested`]. The first Ctrl-C ends a run in good order, the second
//! ends the process.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time that a case which exceeded its limit has to end; after that the process ends, and its
/// children with it.
const UNWIND: Duration = Duration::from_secs(60);

static SIGNALLED: AtomicBool = AtomicBool::new(false);
/// True if there is a cause, for loops that poll often.
static BROKEN_OFF: AtomicBool = AtomicBool::new(false);
static CAUSE: Mutex<Option<String>> = Mutex::new(None);

extern "C" fn on_signal(signal: libc::c_int) {
    if SIGNALLED.swap(true, Ordering::Relaxed) {
        // SAFETY: `_exit` may be called from a signal handler.
        unsafe { libc::_exit(128 + signal) }
    }
}

/// From now on the first SIGINT or SIGTERM only makes [`requested`] true.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler: extern "C" fn(libc::c_int) = on_signal;
        // SAFETY: the handler only touches an atomic and calls `_exit`, both allowed in a signal
        // handler.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// True if an interrupt was requested.
#[must_use]
pub fn requested() -> bool {
    SIGNALLED.load(Ordering::Relaxed) || BROKEN_OFF.load(Ordering::Relaxed)
}

/// The reason for which the run is broken off, if it is.
#[must_use]
pub fn broken_off() -> Option<String> {
    cause().clone()
}

/// Breaks the run off. The first reason counts.
pub(crate) fn break_off(why: String) {
    cause().get_or_insert(why);
    BROKEN_OFF.store(true, Ordering::Relaxed);
}

/// Runs one case, for `limit` at most.
///
/// # Errors
/// The reason for which the case was broken off. Its result then means nothing.
pub fn bounded<T>(limit: Duration, case: impl FnOnce() -> T) -> Result<T, String> {
    let (over, running) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if running.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        break_off(format!("not over within {limit:?}"));
        if running.recv_timeout(UNWIND) == Err(RecvTimeoutError::Timeout) {
            // Standard error may be gone; the exit code says it too.
            let _ =
                writeln!(std::io::stderr(), "error: a case is not over within {limit:?} and does not end");
            std::process::exit(2);
        }
    });
    let result = case();
    drop(over);
    // A watch that panicked has nothing more to say.
    let _ = watch.join();
    BROKEN_OFF.store(false, Ordering::Relaxed);
    cause().take().map_or(Ok(result), Err)
}

fn cause() -> MutexGuard<'static, Option<String>> {
    CAUSE.lock().unwrap_or_else(PoisonError::into_inner)
}
