//! Faults of a connection: lost requests and answers, bodies that break off or change.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use throng_stdx::Rng;

/// Bytes of a body that arrive at a time.
const PIECE_BYTES: usize = 400_000;

/// Clones share the state.
#[derive(Clone)]
pub(super) struct Faults {
    rng: Arc<Mutex<Rng>>,
    /// Requests fail now, and bodies arrive damaged.
    fails: Arc<AtomicBool>,
    /// Bytes that arrived damaged: no two in a row change alike, since a blob that arrives twice
    /// with the same wrong bytes is taken for damaged where it is stored.
    damaged: Arc<AtomicU64>,
}

impl Faults {
    pub(super) fn new(seed: u64) -> Faults {
        Faults { rng: Arc::new(Mutex::new(Rng::new(seed))), fails: Arc::default(), damaged: Arc::default() }
    }

    pub(super) fn set_fails(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    pub(super) fn happens(&self, probability: f64) -> bool {
        self.fails.load(Ordering::Relaxed) && self.draw(|rng| rng.chance(probability))
    }

    pub(super) async fn wait(&self) {
        for _ in 0..self.draw(|rng| rng.below(4)) {
            tokio::task::yield_now().await;
        }
    }

    /// Pieces of a body as they arrive: a byte may change, and the connection may break off.
    pub(super) fn pieces(&self, bytes: &[u8]) -> Vec<io::Result<Bytes>> {
        let (breaks_off, flips) = (self.happens(0.1), self.happens(0.1));
        let mut sent = bytes.to_vec();
        if flips && !sent.is_empty() {
            let at = self.draw(|rng| rng.below(sent.len() as u64)) as usize;
            sent[at] ^= 1 + (self.damaged.fetch_add(1, Ordering::Relaxed) % 255) as u8;
        }
        if breaks_off {
            sent.truncate(sent.len() / 2);
        }
        let mut pieces: Vec<io::Result<Bytes>> =
            sent.chunks(PIECE_BYTES).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        if breaks_off {
            pieces.push(Err(io::ErrorKind::ConnectionReset.into()));
        }
        pieces
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().expect("no panic"))
    }
}
