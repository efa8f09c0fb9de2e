//! Batches: operations on several keys at the same time, those on one key in their order.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::answer::Problem;
use crate::memory::{Exhausted, Held, MEMORY_WAIT, Memory};
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

/// Rest of one batch: bytes of its answer, and of the memory of all requests.
pub(crate) struct Budget<'m> {
    address: Option<IpAddr>,
    answer: AtomicU64,
    memory: &'m Memory,
    turn: Mutex<()>,
    /// Operations wait for memory until then.
    until: Instant,
}

impl Budget<'_> {
    pub(crate) fn new(memory: &Memory, address: Option<IpAddr>) -> Budget<'_> {
        let (answer, until) = (AtomicU64::new(BATCH_BYTES_MAX), Instant::now() + MEMORY_WAIT);
        Budget { address, answer, memory, turn: Mutex::default(), until }
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

    /// Takes memory for what is about to be read.
    ///
    /// # Errors
    /// 503 if others hold it.
    pub(crate) async fn hold(&self, bytes: u64) -> Result<Held, Problem> {
        if let Some(held) = self.memory.try_take(bytes) {
            return Ok(held);
        }
        // One operation of a batch waits with others' requests at a time.
        let exhausted = |_| Exhausted { bytes: self.memory.bytes() };
        let _turn = timeout_at(self.until, self.turn.lock()).await.map_err(exhausted)?;
        Ok(self.memory.take_for(self.address, bytes, self.until).await?)
    }
}
