//! Memory that programs see: from their own allocator if they brought one.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use crate::abi::ENetCallbacks;

struct Callbacks(UnsafeCell<ENetCallbacks>);

// SAFETY: written only by `enet_initialize_with_callbacks`, which the header asks programs to call
// before any other function and on no two threads at once.
unsafe impl Sync for Callbacks {}

static CALLBACKS: Callbacks =
    Callbacks(UnsafeCell::new(ENetCallbacks { malloc: None, free: None, no_memory: None }));

/// Always succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn enet_initialize() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn enet_deinitialize() {}

#[unsafe(no_mangle)]
pub extern "C" fn enet_linked_version() -> u32 {
    1 << 16 | 3 << 8 | 17
}

/// # Safety
/// `inits` points to the program's callbacks or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_initialize_with_callbacks(version: u32, inits: *const ENetCallbacks) -> c_int {
    // SAFETY: the caller's promise.
    let Some(inits) = (unsafe { inits.as_ref() }).filter(|_| version >= 1 << 16 | 3 << 8) else { return -1 };
    if inits.malloc.is_some() != inits.free.is_some() {
        return -1;
    }
    // SAFETY: as for `Sync`.
    unsafe { *CALLBACKS.0.get() = *inits };
    enet_initialize()
}

/// Allocates, and ends the program when there is no memory, as the C library does.
#[unsafe(no_mangle)]
pub extern "C" fn enet_malloc(size: usize) -> *mut c_void {
    // SAFETY: as for `Sync`.
    let callbacks = unsafe { *CALLBACKS.0.get() };
    // SAFETY: the program's allocator, or the one of the C library.
    let memory = unsafe { callbacks.malloc.map_or_else(|| libc::malloc(size.max(1)), |malloc| malloc(size)) };
    if memory.is_null() {
        match callbacks.no_memory {
            // SAFETY: the program's own function.
            Some(no_memory) => unsafe { no_memory() },
            // SAFETY: ends the process.
            None => unsafe { libc::abort() },
        }
    }
    memory
}

/// # Safety
/// `memory` came from [`enet_malloc`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_free(memory: *mut c_void) {
    // SAFETY: as for `Sync`.
    let callbacks = unsafe { *CALLBACKS.0.get() };
    // SAFETY: the caller's promise.
    unsafe { callbacks.free.map_or_else(|| libc::free(memory), |free| free(memory)) }
}
