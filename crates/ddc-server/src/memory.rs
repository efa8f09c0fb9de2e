//! Memory of requests: what they hold as a whole, and what they decompress or convert.
//!
//! All requests share one amount. Bytes are taken before they are received or read, and given back
//! when the request has ended, at the latest with its connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

/// Time that a request waits for memory that others hold. Editors wait 10 s for a first byte.
pub(crate) const MEMORY_WAIT: Duration = Duration::from_secs(2);
/// Bytes of one permit.
const UNIT: u64 = 256;
/// Most that one request takes at once: more could never be had.
const TAKEN_MAX: u64 = 128 << 20;
/// Memory is returned to the system if so much is given back at once. Less is needed again soon.
const RETURNED_BYTES_MIN: u64 = 1 << 20;
/// Time for which it stays free first: other requests use it again.
const FREE_TIME: Duration = Duration::from_secs(1);

/// The allocator's function that returns free memory.
static RETURN_MEMORY: OnceLock<fn()> = OnceLock::new();
/// A task is about to call it.
static IS_RETURNING: AtomicBool = AtomicBool::new(false);

/// Names the allocator's function that returns free memory to the system. It is called a second
/// after a request has ended that held 1 MiB or more. Without it the allocator returns memory in
/// its own time.
pub fn set_return_memory(return_memory: fn()) {
    // A second allocator in one process does not exist.
    let _ = RETURN_MEMORY.set(return_memory);
}

/// The memory of all requests.
#[derive(Debug)]
pub(crate) struct Memory {
    permits: Arc<Semaphore>,
    bytes: u64,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Memory {
        Memory { permits: Arc::new(Semaphore::new((bytes / UNIT) as usize)), bytes }
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes memory for `bytes`, which waits until `until` if others hold it.
    ///
    /// # Errors
    /// If they still do.
    pub(crate) async fn take(&self, bytes: u64, until: Instant) -> Result<Held, Exhausted> {
        let bytes = bytes.min(TAKEN_MAX).min(self.bytes);
        let count = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let taken = match Arc::clone(&self.permits).try_acquire_many_owned(count) {
            Ok(taken) => Some(taken),
            Err(_) => {
                let waited = timeout_at(until, Arc::clone(&self.permits).acquire_many_owned(count)).await;
                waited.ok().and_then(Result::ok)
            }
        };
        taken.map(Held).ok_or(Exhausted { bytes: self.bytes })
    }
}

/// Other requests hold all memory, which is this much.
#[derive(Debug)]
pub(crate) struct Exhausted {
    pub(crate) bytes: u64,
}

/// Memory that a request holds, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held(OwnedSemaphorePermit);

impl Held {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.num_permits() as u64 * UNIT
    }

    /// Adds what `other` holds.
    pub(crate) fn add(held: &mut Option<Held>, mut other: Held) {
        match held {
            Some(held) => held.0.merge(other.0.split(other.0.num_permits()).expect("all of them")),
            None => *held = Some(other),
        }
    }

    /// Gives back all but `bytes`.
    pub(crate) fn keep(&mut self, bytes: u64) {
        let rest = self.0.num_permits().saturating_sub(bytes.div_ceil(UNIT) as usize);
        drop(self.0.split(rest));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes() >= RETURNED_BYTES_MIN {
            return_soon();
        }
    }
}

/// Returns free memory to the system in a moment.
pub(crate) fn return_soon() {
    let (Some(return_memory), Ok(runtime)) = (RETURN_MEMORY.get(), Handle::try_current()) else { return };
    if !IS_RETURNING.swap(true, Ordering::Relaxed) {
        runtime.spawn(async move {
            sleep(FREE_TIME).await;
            IS_RETURNING.store(false, Ordering::Relaxed);
            return_memory();
        });
    }
}
