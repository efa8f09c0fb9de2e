//! Ctrl-C: the first one ends a run in good order, the second one ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    if REQUESTED.swap(true, Ordering::Relaxed) {
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
    REQUESTED.load(Ordering::Relaxed)
}
