//! A server's notifications for readers in this process: bounded, and never in the way of the
//! matcher.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::service::Handle;
use crate::session::{Batch, Sink, Taken};

/// Bytes that wait for a reader here before the matcher keeps the rest in its own queue, where
/// entries may still be collapsed and whose bound is the destination's: beyond it the stream begins
/// anew.
const BYTES_MAX: usize = 1 << 20;

/// The notifications of one server, in order. Dropping it ends the server's session; its grace
/// period begins.
///
/// The first batch has no entries: it says where the stream stands. Another epoch than the one
/// before, there or later, means that entries are missing: refetch with `ListMine`.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    handle: Handle,
    srv: String,
    /// Of the subscription, so that it does not end another's.
    id: u64,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The same of all queues.
    total: Arc<AtomicUsize>,
    /// The matcher waits for room.
    full: bool,
    /// The matcher will send no more.
    ended: bool,
    /// Nobody reads any more.
    dropped: bool,
}

impl Queue {
    fn push(&mut self, batch: Batch) {
        self.bytes += batch.body.len();
        self.total.fetch_add(batch.body.len(), Ordering::Relaxed);
        self.batches.push_back(batch);
    }

    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.body.len();
        self.total.fetch_sub(batch.body.len(), Ordering::Relaxed);
        Some(batch)
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The matcher's end. Dropping it ends the stream.
struct Writer(Arc<Shared>);

impl Writer {
    fn push(&self, batch: Batch) -> Taken {
        let mut queue = self.0.queue();
        if queue.dropped {
            return Taken::Gone;
        }
        queue.push(batch);
        // Once full, full until the reader says otherwise: it is who resumes the matcher.
        queue.full |= queue.bytes >= BYTES_MAX;
        self.0.changed.notify_one();
        if queue.full { Taken::Full } else { Taken::More }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.queue().ended = true;
        self.0.changed.notify_one();
    }
}

impl Watch {
    /// `total` counts the bytes of the batches that wait here with those of other streams.
    pub(crate) fn new(handle: Handle, srv: &str, id: u64, total: Arc<AtomicUsize>) -> (Watch, Sink) {
        let queue = Mutex::new(Queue { total, ..Queue::default() });
        let shared = Arc::new(Shared { queue, changed: Notify::new() });
        let writer = Writer(Arc::clone(&shared));
        let sink: Sink = Box::new(move |batch| writer.push(batch));
        (Watch { shared, handle, srv: srv.to_owned(), id }, sink)
    }

    /// Number of the subscription.
    #[cfg(feature = "nats")]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The next batch; `None` after the last, when another session of the server began or the
    /// matcher ended. May be dropped before it is done, nothing is lost then.
    pub async fn next(&mut self) -> Option<Batch> {
        loop {
            if let Some(end) = self.try_next() {
                return end;
            }
            self.shared.changed.notified().await;
        }
    }

    /// A batch that waits, or the end of the stream. `None` when there is neither.
    fn try_next(&mut self) -> Option<Option<Batch>> {
        let mut queue = self.shared.queue();
        let Some(batch) = queue.pop() else { return queue.ended.then_some(None) };
        let wakes = queue.full && queue.bytes < BYTES_MAX / 2;
        queue.full &= !wakes;
        drop(queue);
        if wakes {
            self.handle.resume(&self.srv, self.id);
        }
        Some(Some(batch))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.dropped = true;
        while queue.pop().is_some() {}
        drop(queue);
        self.handle.unsubscribe(&self.srv, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_stays_full_until_its_reader_resumes_it() {
        let shared = Arc::new(Shared::default());
        let writer = Writer(Arc::clone(&shared));
        let batch = |len| Batch { epoch: 1, seq: 1, body: vec![0; len] };
        assert_eq!(writer.push(batch(BYTES_MAX / 4)), Taken::More);
        assert_eq!(writer.push(batch(BYTES_MAX)), Taken::Full);
        // The reader has taken something, though not enough to resume; then the stream begins anew.
        shared.queue().pop();
        shared.queue().bytes = BYTES_MAX * 3 / 4;
        assert_eq!(writer.push(batch(0)), Taken::Full, "nobody else would wake the matcher");
    }
}
