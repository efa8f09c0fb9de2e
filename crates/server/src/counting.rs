//! Allocations and look-ups of worlds of each thread, counted in tests.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
    static LOOKUPS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations by this thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that this thread has allocated less those that it has freed.
pub(crate) fn held_bytes() -> i64 {
    HELD_BYTES.get()
}

/// Look-ups of worlds by this thread so far.
pub(crate) fn lookups() -> u64 {
    LOOKUPS.get()
}

/// Counts a look-up of a world by name or number.
pub(crate) fn look_up() {
    LOOKUPS.set(LOOKUPS.get() + 1);
}

fn note(allocations: u64, bytes: i64) {
    ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
    HELD_BYTES.set(HELD_BYTES.get() + bytes);
}

// SAFETY: every call goes to the system's allocator unchanged. The counters are cells without
// destructors, which neither allocate nor unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}
