//! Memory of requests: what they receive, hold as a whole, decompress or convert.
//!
//! All requests share one amount, beyond a few KiB that each has for free. Bytes are taken before
//! they are received or read, and given back when the request has ended, at the latest with its
//! connection. A request that waits for them gets those of clients that pause.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

/// Time that a request waits for memory that others hold. Editors wait 10 s for a first byte.
pub(crate) const MEMORY_WAIT: Duration = Duration::from_secs(2);
/// Blobs up to this size are held in memory until they are written to the log; larger ones go to
/// files as they arrive.
pub(crate) const SMALL_BYTES_MAX: usize = 1 << 20;
/// Bytes that a request holds without taking memory.
pub(crate) const FREE_BYTES: usize = 16 << 10;
/// Requests of one address that wait for memory: a crowd of them does not fill the queue in which
/// others wait.
const WAITING_MAX: usize = 16;
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
/// Half of all memory was held when a request took some last. What it frees is more than the
/// allocator should keep.
static WAS_MUCH: AtomicBool = AtomicBool::new(false);

/// Names the allocator's function that returns free memory to the system. It is called a second
/// after a request has ended that held 1 MiB or more, and once a second while requests hold half of
/// all memory. Without it the allocator returns memory in its own time.
pub fn set_return_memory(return_memory: fn()) {
    // A second allocator in one process does not exist.
    let _ = RETURN_MEMORY.set(return_memory);
}

/// The memory of all requests.
#[derive(Debug)]
pub(crate) struct Memory {
    permits: Arc<Semaphore>,
    bytes: u64,
    waiters: Waiters,
    /// Requests that wait, by the address of their client.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// Number of requests that wait for memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters(Arc<AtomicUsize>);

impl Waiters {
    /// Reports whether there is one.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Counts one until the result is dropped.
    fn begin(&self) -> Waiting<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }
}

struct Waiting<'w>(&'w Waiters);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Memory {
        let permits = Arc::new(Semaphore::new((bytes / UNIT) as usize));
        Memory { permits, bytes, waiters: Waiters::default(), by_address: Mutex::default() }
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The requests that wait for it.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Takes memory for `bytes` at once; `None` if that much is not free, or a request waits.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Held> {
        let count = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        Arc::clone(&self.permits).try_acquire_many_owned(count).ok().map(|taken| self.held(taken))
    }

    fn held(&self, taken: OwnedSemaphorePermit) -> Held {
        if (self.permits.available_permits() as u64) < self.bytes / UNIT / 2 {
            WAS_MUCH.store(true, Ordering::Relaxed);
        }
        Held(taken)
    }

    /// Takes memory for `bytes`, which waits until `until` if others hold it.
    ///
    /// # Errors
    /// If they still do.
    pub(crate) async fn take(&self, bytes: u64, until: Instant) -> Result<Held, Exhausted> {
        self.take_for(None, bytes, until).await
    }

    /// The same for the client at `address`, if it stands for itself alone. At most
    /// [`WAITING_MAX`] requests of an address wait.
    ///
    /// # Errors
    /// If others hold it after the wait, or too many requests of the address wait.
    pub(crate) async fn take_for(
        &self,
        address: Option<IpAddr>,
        bytes: u64,
        until: Instant,
    ) -> Result<Held, Exhausted> {
        let bytes = bytes.min(TAKEN_MAX).min(self.bytes);
        if let Some(taken) = self.try_take(bytes) {
            return Ok(taken);
        }
        let count = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let _slot = match address.map(|address| WaitSlot::take(&self.by_address, address)) {
            Some(None) => return Err(Exhausted { bytes: self.bytes }),
            slot => slot,
        };
        let _waiting = self.waiters.begin();
        let waited = timeout_at(until, Arc::clone(&self.permits).acquire_many_owned(count)).await;
        let taken = waited.ok().and_then(Result::ok).map(|taken| self.held(taken));
        taken.ok_or(Exhausted { bytes: self.bytes })
    }
}

/// A slot of an address for a request that waits.
struct WaitSlot<'m> {
    by_address: &'m Mutex<HashMap<IpAddr, usize>>,
    address: IpAddr,
}

impl WaitSlot<'_> {
    fn take(by_address: &Mutex<HashMap<IpAddr, usize>>, address: IpAddr) -> Option<WaitSlot<'_>> {
        let mut counts = by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= WAITING_MAX {
            return None;
        }
        *count += 1;
        Some(WaitSlot { by_address, address })
    }
}

impl Drop for WaitSlot<'_> {
    fn drop(&mut self) {
        let mut counts = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
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
        let was_much = WAS_MUCH.load(Ordering::Relaxed) && WAS_MUCH.swap(false, Ordering::Relaxed);
        if was_much || self.bytes() >= RETURNED_BYTES_MIN {
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

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn a_crowd_of_one_address_leaves_room_in_the_queue() {
        let memory = Memory::new(1 << 20);
        let all = memory.take(1 << 20, Instant::now()).await.expect("it is free");
        let until = Instant::now() + Duration::from_secs(60);
        let addresses = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let crowd = async || {
            let waits = (0..WAITING_MAX + 5).map(|_| memory.take_for(addresses[0], 1 << 10, until));
            join_all(waits).await.iter().filter(|taken| taken.is_ok()).count()
        };
        let other = async || memory.take_for(addresses[1], 1 << 10, until).await.is_ok();
        let release = async || {
            assert!(memory.waiters().any());
            drop(all);
        };
        assert_eq!(tokio::join!(crowd(), other(), release()), (WAITING_MAX, true, ()));
        assert!(!memory.waiters().any() && memory.by_address.lock().expect("no panic").is_empty());
    }
}
