//! The clock that programs see, and the host's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Instant as Clock, SystemTime, UNIX_EPOCH};

use throng_stdx::Instant;

static BASE: AtomicU32 = AtomicU32::new(0);
static START: OnceLock<Clock> = OnceLock::new();

fn wall_ms() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u32)
}

/// Milliseconds of the wall clock, less what [`enet_time_set`] made zero.
#[unsafe(no_mangle)]
pub extern "C" fn enet_time_get() -> u32 {
    wall_ms().wrapping_sub(BASE.load(Ordering::Relaxed))
}

#[unsafe(no_mangle)]
pub extern "C" fn enet_time_set(time: u32) {
    BASE.store(wall_ms().wrapping_sub(time), Ordering::Relaxed);
}

/// The host's time, which never goes back.
pub(crate) fn now() -> Instant {
    let start = START.get_or_init(Clock::now);
    Instant::from_nanos(start.elapsed().as_nanos() as u64)
}
