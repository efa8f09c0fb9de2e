//! Panics on purpose, inside the core: in builds with debug assertions an armed shard panics at the
//! nth place that it passes. Tests and the simulator arm them; release builds have no trace of
//! them.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    /// Places to pass before the strike; 0 when nothing is armed.
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// The `passes`th place that this thread passes from now on panics. Returns whether this build has
/// such places.
pub fn arm(passes: u32) -> bool {
    #[cfg(debug_assertions)]
    LEFT.set(passes);
    let _ = passes;
    cfg!(debug_assertions)
}

/// Disarms. Returns whether it had not struck.
pub fn disarm() -> bool {
    #[cfg(debug_assertions)]
    return LEFT.replace(0) > 0;
    #[cfg(not(debug_assertions))]
    false
}

#[cfg(debug_assertions)]
#[track_caller]
pub(crate) fn pass() {
    let left = LEFT.get();
    if left > 0 {
        LEFT.set(left - 1);
        assert!(left > 1, "a failpoint struck");
    }
}

/// A place at which an armed failpoint may strike.
macro_rules! failpoint {
    () => {
        #[cfg(debug_assertions)]
        crate::failpoint::pass();
    };
}
pub(crate) use failpoint;
