//! Clocks: the monotonic clock that stamps messages, and the CPU clocks that charge for them.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Nanoseconds of the machine's monotonic clock.
///
/// The origin is the same for every process of one machine, so a stamp written by one process can
/// be compared in another.
pub fn now_ns() -> u64 {
    // The monotonic clock exists on every system this crate builds for.
    read(libc::CLOCK_MONOTONIC).map_or(0, nanoseconds)
}

/// CPU time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// CPU time that the calling process has used.
pub fn process_cpu() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// The CPU clock of another process of this machine: user and system time of all its threads, in
/// nanoseconds.
///
/// `/proc/<pid>/stat` counts in ticks of 10 ms; a gateway that idles needs finer.
#[derive(Debug, Clone, Copy)]
pub struct CpuClock(libc::clockid_t);

impl CpuClock {
    /// Finds the clock of process `pid`.
    ///
    /// # Errors
    /// When there is no such process or it may not be looked at.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let mut id: libc::clockid_t = 0;
        // SAFETY: `id` is a valid place for one clock id for the duration of the call.
        match unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut id) } {
            0 => Ok(Self(id)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// CPU time used so far.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn used(self) -> io::Result<Duration> {
        read(self.0)
    }
}

fn read(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is a valid place for one `timespec`, which a successful call fills.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the value is initialised.
    let time = unsafe { time.assume_init() };
    Ok(Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0)))
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until the monotonic clock shows `at_ns`.
pub(crate) fn sleep_until(at_ns: u64) {
    loop {
        let now = now_ns();
        if now >= at_ns {
            return;
        }
        std::thread::sleep(Duration::from_nanos(at_ns - now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_clock_of_this_process_agrees_with_its_own() {
        let clock = CpuClock::of_process(std::process::id()).expect("own process");
        let before = process_cpu();
        let seen = clock.used().expect("alive");
        let after = process_cpu();
        assert!(before <= seen && seen <= after, "{before:?} <= {seen:?} <= {after:?}");
    }

    #[test]
    fn monotonic_clock_does_not_go_back() {
        let first = now_ns();
        assert!(now_ns() >= first && first > 0);
    }
}
