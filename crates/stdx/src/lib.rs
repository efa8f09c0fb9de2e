//! The few tools that every Throng core shares and that the standard library lacks.
//!
//! Cores are state machines without a clock, sockets, threads or global state, so time and
//! randomness are values:
//!
//! - [`Instant`]: a point in time in nanoseconds since an origin that the caller chose. A test
//!   starts at zero and can jump a week.
//! - [`Rng`]: a seeded generator. The same seed gives the same run on every machine.
//! - [`TimerWheel`]: many timers, of which only those due cost anything.
//!
//! ```
//! use core::time::Duration;
//! use throng_stdx::{Instant, TimerWheel};
//!
//! let mut timers = TimerWheel::new();
//! let start = Instant::ZERO;
//! let idle = timers.insert(start + Duration::from_secs(60), "idle");
//! timers.insert(start + Duration::from_millis(20), "tick");
//!
//! // The driver sleeps until `next`, then takes everything that is due.
//! let now = timers.next().expect("two timers are pending");
//! assert_eq!(timers.pop_due(now), Some((Instant::from_millis(20), "tick")));
//! assert_eq!(timers.pop_due(now), None);
//! assert_eq!(timers.cancel(idle), Some("idle"));
//! ```
//!
//! The crate is `no_std` (it needs `alloc`), has no dependency and contains no unsafe code.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod instant;
mod rng;
mod timer_wheel;

pub use instant::Instant;
pub use rng::Rng;
pub use timer_wheel::{TimerKey, TimerWheel};
