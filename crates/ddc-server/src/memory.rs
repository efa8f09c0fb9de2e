//! Memory of requests: what they receive, hold as a whole, decompress or convert.
//!
//! All requests share one amount, beyond a few KiB that each has for free. Bytes are taken before
//! they are received or read, and given back when the request has ended, at the latest with its
//! connection. A request that waits for them gets those of clients that pause.

use std::cell::Cell;
use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

/// Longest wait of a request for memory. A stalled holder loses its memory after two turns at most;
/// editors wait 10 s for a first byte.
pub(crate) const MEMORY_WAIT: Duration = Duration::from_secs(3);
/// Blobs up to this size are held in memory until they are written to the log; larger ones go to
/// files as they arrive.
pub(crate) const SMALL_BYTES_MAX: usize = 1 << 20;
/// Bytes that a request holds without taking memory.
pub(crate) const FREE_BYTES: usize = 16 << 10;
/// Bytes that a request takes in one step, which needs more and more.
pub(crate) const HELD_STEP_BYTES: u64 = 64 << 10;
/// Requests of one address that wait for memory. The editors of an office may share an address.
const WAITING_MAX: usize = 128;
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
/// Number of times that it was called when that much was held: each thread then returns what it
/// keeps itself.
static RETURNS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// [`RETURNS`] when this thread returned memory last.
    static RETURNED: Cell<u32> = const { Cell::new(0) };
}

/// Names the allocator's function that returns free memory to the system. It is called a second
/// after a request has ended that held 1 MiB or more, and once a second while requests hold half of
/// all memory. Without it the allocator returns memory in its own time.
pub fn set_return_memory(return_memory: fn()) {
    // A second allocator in one process does not exist.
    let _ = RETURN_MEMORY.set(return_memory);
}

/// The memory of all requests.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: u64,
    waiters: Waiters,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: u64,
    /// Usage of the addresses that hold memory or wait for it.
    by_address: HashMap<IpAddr, Usage>,
    /// Requests that wait, by what the address holds after each if its requests before it have had
    /// their turn; of equals the oldest first. Large holders therefore do not delay small requests.
    queue: BTreeMap<(u64, u64), Waiter>,
    /// Number of requests that waited.
    count: u64,
}

#[derive(Debug, Default)]
struct Usage {
    held: u64,
    /// Bytes and number of its requests that wait.
    wanted: u64,
    waiting: usize,
}

#[derive(Debug)]
struct Waiter {
    address: Option<IpAddr>,
    bytes: u64,
    ready: oneshot::Sender<Held>,
}

/// Number of requests that wait for memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters(Arc<AtomicUsize>);

impl Waiters {
    /// Reports whether there is one.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl State {
    /// Adds to what an address holds, if it is one client's.
    fn count_held(&mut self, address: Option<IpAddr>, bytes: u64) {
        if let Some(address) = address {
            self.by_address.entry(address).or_default().held += bytes;
        }
    }

    /// Changes the usage of an address, and forgets it when there is none.
    fn lower(&mut self, address: Option<IpAddr>, change: impl FnOnce(&mut Usage)) {
        let Some(address) = address else { return };
        let Some(usage) = self.by_address.get_mut(&address) else { return };
        change(usage);
        if usage.held == 0 && usage.waiting == 0 {
            self.by_address.remove(&address);
        }
    }

    /// Bytes that an address holds once it has `bytes` more than it has and waits for.
    fn total(&self, address: Option<IpAddr>, bytes: u64) -> u64 {
        let usage = address.and_then(|address| self.by_address.get(&address));
        bytes + usage.map_or(0, |usage| usage.held + usage.wanted)
    }
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Memory {
        let state = State { free: bytes, ..State::default() };
        Memory(Arc::new(Inner { bytes, waiters: Waiters::default(), state: Mutex::new(state) }))
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The requests that wait for it.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.0.waiters
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory for `bytes` at once, for the client at `address` if it stands for itself alone;
    /// `None` if that much is not free, or a request waits that goes first.
    pub(crate) fn try_take(&self, address: Option<IpAddr>, bytes: u64) -> Option<Held> {
        self.try_take_in(&mut self.state(), address, bytes)
    }

    fn try_take_in(&self, state: &mut State, address: Option<IpAddr>, bytes: u64) -> Option<Held> {
        let is_first =
            || state.queue.first_key_value().is_none_or(|(first, _)| state.total(address, bytes) < first.0);
        if bytes > state.free || !is_first() {
            return None;
        }
        Some(self.give(state, address, bytes))
    }

    fn give(&self, state: &mut State, address: Option<IpAddr>, bytes: u64) -> Held {
        state.free -= bytes;
        state.count_held(address, bytes);
        if state.free < self.0.bytes / 2 {
            WAS_MUCH.store(true, Ordering::Relaxed);
        }
        Held { memory: self.clone(), address, bytes }
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
        let bytes = bytes.min(TAKEN_MAX).min(self.0.bytes);
        let (waiting, mut ready) = {
            let mut state = self.state();
            if let Some(taken) = self.try_take_in(&mut state, address, bytes) {
                return Ok(taken);
            }
            let (total, number) = (state.total(address, bytes), state.count);
            if let Some(address) = address {
                let usage = state.by_address.entry(address).or_default();
                if usage.waiting >= WAITING_MAX {
                    return Err(Exhausted { bytes: self.0.bytes });
                }
                usage.waiting += 1;
                usage.wanted += bytes;
            }
            let (sender, ready) = oneshot::channel();
            state.count += 1;
            state.queue.insert((total, number), Waiter { address, bytes, ready: sender });
            self.0.waiters.0.fetch_add(1, Ordering::Relaxed);
            (Waiting { memory: self, place: (total, number) }, ready)
        };
        let taken = timeout_at(until, &mut ready).await;
        drop(waiting);
        match taken {
            Ok(Ok(taken)) => Ok(taken),
            _ => ready.try_recv().map_err(|_| Exhausted { bytes: self.0.bytes }),
        }
    }

    fn give_back(&self, address: Option<IpAddr>, bytes: u64) {
        let mut state = self.state();
        state.free += bytes;
        state.lower(address, |usage| usage.held -= bytes);
        self.serve(state);
    }

    /// Gives what is free to those who wait, in their order.
    fn serve(&self, mut state: MutexGuard<'_, State>) {
        let mut served = Vec::new();
        loop {
            let free = state.free;
            let first = state.queue.first_entry().filter(|first| first.get().bytes <= free);
            let Some(Waiter { address, bytes, ready }) = first.map(OccupiedEntry::remove) else { break };
            self.end_wait(&mut state, address, bytes);
            served.push((ready, self.give(&mut state, address, bytes)));
        }
        drop(state);
        for (ready, held) in served {
            // If the receiver is gone, dropping the value gives the memory back.
            let _ = ready.send(held);
        }
    }

    fn end_wait(&self, state: &mut State, address: Option<IpAddr>, bytes: u64) {
        state.lower(address, |usage| {
            usage.waiting -= 1;
            usage.wanted -= bytes;
        });
        self.0.waiters.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place in the queue, until this is dropped.
struct Waiting<'m> {
    memory: &'m Memory,
    place: (u64, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        if let Some(waiter) = state.queue.remove(&self.place) {
            self.memory.end_wait(&mut state, waiter.address, waiter.bytes);
            // What was too little for this one may be enough for the next.
            self.memory.serve(state);
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
pub(crate) struct Held {
    memory: Memory,
    address: Option<IpAddr>,
    bytes: u64,
}

impl Held {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds what `other` holds.
    pub(crate) fn add(held: &mut Option<Held>, mut other: Held) {
        let Some(held) = held else {
            *held = Some(other);
            return;
        };
        let bytes = std::mem::take(&mut other.bytes);
        held.bytes += bytes;
        if held.address != other.address {
            let mut state = held.memory.state();
            state.lower(other.address, |usage| usage.held -= bytes);
            state.count_held(held.address, bytes);
        }
    }

    /// Gives back all but `bytes`.
    pub(crate) fn keep(&mut self, bytes: u64) {
        let rest = self.bytes.saturating_sub(bytes);
        self.bytes -= rest;
        self.memory.give_back(self.address, rest);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        self.memory.give_back(self.address, self.bytes);
        let was_much = WAS_MUCH.load(Ordering::Relaxed) && WAS_MUCH.swap(false, Ordering::Relaxed);
        let is_first = (was_much || self.bytes >= RETURNED_BYTES_MIN) && return_soon();
        if is_first && was_much {
            RETURNS.fetch_add(1, Ordering::Relaxed);
        }
        let returns = RETURNS.load(Ordering::Relaxed);
        if RETURNED.replace(returns) != returns
            && let Some(return_memory) = RETURN_MEMORY.get()
        {
            return_memory();
        }
    }
}

/// Returns free memory to the system in a moment. Reports whether nobody was about to.
pub(crate) fn return_soon() -> bool {
    let (Some(return_memory), Ok(runtime)) = (RETURN_MEMORY.get(), Handle::try_current()) else {
        return false;
    };
    let is_first = !IS_RETURNING.swap(true, Ordering::Relaxed);
    if is_first {
        runtime.spawn(async move {
            sleep(FREE_TIME).await;
            IS_RETURNING.store(false, Ordering::Relaxed);
            return_memory();
        });
    }
    is_first
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use futures_util::poll;

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn a_crowd_of_one_address_leaves_room_in_the_queue() {
        let memory = Memory::new(1 << 20);
        let all = memory.take(1 << 20, Instant::now()).await.expect("it is free");
        let crowd = async || {
            let waits = (0..WAITING_MAX + 5).map(|_| memory.take_for(address(1), 1 << 10, later()));
            join_all(waits).await.iter().filter(|taken| taken.is_ok()).count()
        };
        let other = async || memory.take_for(address(2), 1 << 10, later()).await.is_ok();
        let release = async || {
            assert!(memory.waiters().any());
            drop(all);
        };
        assert_eq!(tokio::join!(crowd(), other(), release()), (WAITING_MAX, true, ()));
        assert!(!memory.waiters().any() && memory.state().by_address.is_empty());
        assert_eq!(memory.state().free, 1 << 20);
    }

    #[tokio::test]
    async fn whoever_would_hold_least_goes_first() {
        let memory = Memory::new(1_000);
        let rest = memory.take(700, Instant::now()).await.expect("it is free");
        let own = memory.take_for(address(1), 300, Instant::now()).await.expect("it is free");
        let mut heavy = Box::pin(memory.take_for(address(1), 200, later()));
        let mut large = Box::pin(memory.take_for(address(2), 900, later()));
        let mut light = Box::pin(memory.take_for(address(3), 250, later()));
        assert!(poll!(&mut heavy).is_pending() && poll!(&mut large).is_pending());
        assert!(poll!(&mut light).is_pending());
        drop(own);
        // 300 are free, of which the second takes 250; 50 are too little for the others.
        let taken = light.await.expect("it is its turn");
        assert!(poll!(&mut heavy).is_pending() && poll!(&mut large).is_pending());
        // A newcomer that would hold less than those who wait does not wait for them.
        assert!(memory.try_take(address(4), 50).is_some() && memory.try_take(address(4), 51).is_none());
        drop(rest);
        drop((heavy.await.expect("750 are free"), taken));
        assert_eq!(large.await.expect("all is free").bytes(), 900);
        assert!(memory.state().by_address.is_empty() && !memory.waiters().any());
    }

    #[tokio::test]
    async fn who_leaves_the_queue_keeps_nobody_waiting() {
        let memory = Memory::new(1_000);
        let half = memory.take_for(address(1), 500, Instant::now()).await.expect("it is free");
        let mut first = Box::pin(memory.take_for(address(2), 600, later()));
        let mut second = Box::pin(memory.take_for(address(3), 700, later()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        let mut small = Box::pin(memory.take_for(address(1), 200, later()));
        assert!(poll!(&mut small).is_pending(), "its address would hold 700, and another one waits");
        drop(first);
        drop(second);
        assert_eq!(small.await.expect("nobody is before it").bytes(), 200);
        // Granted, and never taken.
        let mut left = Box::pin(memory.take_for(address(2), 600, later()));
        assert!(poll!(&mut left).is_pending());
        drop(half);
        drop(left);
        assert_eq!(memory.state().free, 1_000);
        // Nobody gives it back.
        let all = memory.take(1_000, Instant::now()).await.expect("it is free");
        let late = memory.take_for(address(5), 1, Instant::now()).await;
        assert_eq!(late.err().map(|exhausted| exhausted.bytes), Some(1_000));
        assert!(memory.state().by_address.is_empty() && !memory.waiters().any());
        drop(all);
    }

    #[tokio::test]
    async fn held_memory_counts_for_one_address() {
        let memory = Memory::new(1_000);
        let held_by = |last| memory.state().by_address.get(&address(last)?).map(|usage| usage.held);
        let mut held = memory.try_take(address(1), 100);
        Held::add(&mut held, memory.try_take(None, 50).expect("it is free"));
        Held::add(&mut held, memory.try_take(address(2), 30).expect("it is free"));
        assert_eq!((held_by(1), held_by(2), memory.state().free), (Some(180), None, 820));
        held.as_mut().expect("180 bytes").keep(80);
        assert_eq!((held_by(1), memory.state().free), (Some(80), 920));
        drop(held);
        assert_eq!((held_by(1), memory.state().free), (None, 1_000));
    }
}
