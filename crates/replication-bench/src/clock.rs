//! CPU time of the calling thread.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that the calling thread has spent on a processor. Costs a fraction of a microsecond.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
