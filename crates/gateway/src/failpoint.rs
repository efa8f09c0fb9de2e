//! Panics on purpose, inside the core: in builds with debug assertions an armed shard panics at the
//! nth place that it passes, of all places or of some. Tests and the simulator arm them; release
//! builds have no trace of them.

#[cfg(debug_assertions)]
use std::cell::Cell;
#[cfg(debug_assertions)]
use std::panic::Location;

#[cfg(debug_assertions)]
thread_local! {
    /// Places to pass before the strike; 0 when nothing is armed.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    /// Picks the places that count, one of sixteen; all of them count without.
    static PICK: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The `passes`th place that this thread passes from now on panics. Returns whether this build has
/// such places.
pub fn arm(passes: u32) -> bool {
    #[cfg(debug_assertions)]
    {
        LEFT.set(passes);
        PICK.set(None);
    }
    let _ = passes;
    cfg!(debug_assertions)
}

/// As [`arm`], but only one place of sixteen counts, by a random choice: so the places that every
/// tick passes do not keep the others from being struck.
pub fn arm_some(passes: u32, choice: u64) -> bool {
    let has_places = arm(passes);
    #[cfg(debug_assertions)]
    PICK.set(Some(choice));
    let _ = choice;
    has_places
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
    let (left, place) = (LEFT.get(), Location::caller());
    if left > 0 && PICK.get().is_none_or(|choice| counts(place, choice)) {
        LEFT.set(left - 1);
        assert!(left > 1, "a failpoint struck");
    }
}

#[cfg(debug_assertions)]
fn counts(place: &Location<'_>, choice: u64) -> bool {
    let mix = |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte));
    let name = place.file().bytes().fold(u64::from(place.line()), mix);
    throng_stdx::Rng::new(name ^ choice).below(16) == 0
}

/// A place at which an armed failpoint may strike.
macro_rules! failpoint {
    () => {
        #[cfg(debug_assertions)]
        crate::failpoint::pass();
    };
}
pub(crate) use failpoint;
