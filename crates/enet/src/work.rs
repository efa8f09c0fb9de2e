//! Counts steps of work in tests and fuzz targets: they tell a loop over everything from a loop
//! over what is due without looking at a clock. Nothing in any other build.

/// One turn of a loop whose length depends on what others do.
#[inline]
pub(crate) fn step() {
    #[cfg(any(test, fuzzing))]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

#[cfg(any(test, fuzzing))]
std::thread_local! {
    static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Steps of this thread so far.
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "exported to fuzz targets only"))]
pub fn steps() -> u64 {
    STEPS.with(core::cell::Cell::get)
}
