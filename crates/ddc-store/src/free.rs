//! Space of files that have lost their names.

use std::sync::atomic::{AtomicBool, Ordering};

use throng_platform::File;

/// Bytes that are freed at a time.
const STEP_BYTES: u64 = 1 << 20;

/// Makes a file empty, a part at a time, until `stopped`. `pause` is called after each part. The
/// last close of a file that is not empty frees all of it at once, which takes a file system 60 ms
/// for 256 MiB, and the log's syncs wait meanwhile.
pub(crate) fn free_in_parts(file: &dyn File, stopped: &AtomicBool, pause: &mut dyn FnMut()) {
    let mut left = file.len().unwrap_or(0);
    while left > 0 && !stopped.load(Ordering::Relaxed) {
        left = left.saturating_sub(STEP_BYTES);
        if file.set_len(left).is_err() {
            return;
        }
        pause();
    }
}
