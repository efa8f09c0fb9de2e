//! Batches: operations on several keys at the same time, those on one key in their order.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use tokio::time::{Instant, timeout_at};

use crate::answer::Problem;
use crate::memory::{Exhausted, FREE_BYTES, HELD_STEP_BYTES, Held, MEMORY_WAIT, Memory};
use crate::origin::Origin;
use crate::service::Service;

/// Bytes of a batch request, and of the refs and blobs that an answer to one holds.
pub(crate) const BATCH_BYTES_MAX: u64 = 64 << 20;
/// Keys that are worked on at a time in the folder: as many as share one flush.
const CHAINS_MAX: usize = 1_024;
/// The same with an object storage or an upstream. Each has a connection of its own, and up to a
/// MiB of a blob in memory while it arrives.
const CHAINS_ELSEWHERE_MAX: usize = 128;

impl Service {
    /// Keys of a batch that are worked on at a time.
    pub(crate) fn chains_max(&self) -> usize {
        match self.origin() {
            Origin::Alone => CHAINS_MAX,
            Origin::Tier(_) | Origin::Upstream(_) => CHAINS_ELSEWHERE_MAX,
        }
    }
}

/// The operations of a batch by the key that they are about, each with its place in the batch.
/// Those of one chain run in their order, the chains at the same time: their changes share a flush.
pub(crate) fn chains<T, K: Eq + Hash>(ops: Vec<T>, key: impl Fn(&T) -> K) -> Vec<Vec<(usize, T)>> {
    let mut chains: Vec<Vec<(usize, T)>> = Vec::new();
    let mut places = HashMap::new();
    for (place, op) in ops.into_iter().enumerate() {
        let chain = *places.entry(key(&op)).or_insert(chains.len());
        if chain == chains.len() {
            chains.push(Vec::new());
        }
        chains[chain].push((place, op));
    }
    chains
}

/// Rest of one batch: bytes of its answer, and memory, of which its operations take shares.
pub(crate) struct Budget<'m> {
    address: Option<IpAddr>,
    answer: AtomicU64,
    memory: &'m Memory,
    shared: Mutex<Shared>,
    /// Held by the one operation that waits with others' requests.
    turn: tokio::sync::Mutex<()>,
    /// Operations wait for memory until then.
    until: Instant,
    /// An operation found none.
    is_exhausted: AtomicBool,
}

/// Memory of a batch.
#[derive(Default)]
struct Shared {
    held: Option<Held>,
    /// Bytes of all shares.
    used: u64,
}

/// Memory of an operation, until this is dropped.
pub(crate) struct Share<'b> {
    shared: &'b Mutex<Shared>,
    bytes: u64,
}

impl Share<'_> {
    /// Leaves `bytes` of it to the answer.
    pub(crate) fn keep(mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).used -= self.bytes;
    }
}

impl Budget<'_> {
    pub(crate) fn new(memory: &Memory, address: Option<IpAddr>) -> Budget<'_> {
        Budget {
            address,
            answer: AtomicU64::new(BATCH_BYTES_MAX),
            memory,
            shared: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            until: Instant::now() + MEMORY_WAIT,
            is_exhausted: AtomicBool::new(false),
        }
    }

    /// Takes what a ref or blob adds to the answer, before it is read.
    ///
    /// # Errors
    /// 413 if that is not left.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), Problem> {
        let left = |left: u64| left.checked_sub(bytes);
        self.answer.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).map(drop).map_err(|_| {
            let title =
                format!("what the batch asks for exceeds {BATCH_BYTES_MAX} bytes; ask in smaller batches");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, title)
        })
    }

    /// Takes memory for what is about to be read. A batch has [`FREE_BYTES`] for free.
    ///
    /// # Errors
    /// If others hold it.
    pub(crate) async fn hold(&self, bytes: u64) -> Result<Share<'_>, Problem> {
        let held = self.wait_for(bytes).await;
        self.is_exhausted.fetch_or(held.is_err(), Ordering::Relaxed);
        Ok(held?)
    }

    async fn wait_for(&self, bytes: u64) -> Result<Share<'_>, Exhausted> {
        if let Ok(share) = self.try_hold(bytes) {
            return Ok(share);
        }
        let exhausted = |_| Exhausted { bytes: self.memory.bytes() };
        let _turn = timeout_at(self.until, self.turn.lock()).await.map_err(exhausted)?;
        loop {
            match self.try_hold(bytes) {
                Ok(share) => return Ok(share),
                Err(lacking) => {
                    let more = self.memory.take_for(self.address, lacking, self.until).await?;
                    Held::add(&mut self.shared().held, more);
                }
            }
        }
    }

    /// The same without a wait. The error is what is lacking.
    fn try_hold(&self, bytes: u64) -> Result<Share<'_>, u64> {
        let mut shared = self.shared();
        let (used, held) = (shared.used + bytes, shared.held.as_ref().map_or(0, Held::bytes));
        if used > held.max(FREE_BYTES as u64) {
            // In steps, so that many small operations do not wait one after the other.
            let lacking = (used - held).max(HELD_STEP_BYTES);
            Held::add(&mut shared.held, self.memory.try_take(self.address, lacking).ok_or(lacking)?);
        }
        shared.used = used;
        Ok(Share { shared: &self.shared, bytes })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of the answer.
    ///
    /// # Errors
    /// If an operation found none. Clients read its result as a miss; they are to send the batch
    /// again.
    pub(crate) fn finish(self) -> Result<Option<Held>, Problem> {
        if self.is_exhausted.into_inner() {
            return Err(Exhausted { bytes: self.memory.bytes() }.into());
        }
        let Shared { mut held, used } = self.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        held.iter_mut().for_each(|held| held.keep(used));
        Ok(held)
    }
}
