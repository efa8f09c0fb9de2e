//! Streaming of large blobs to clients while they arrive from an origin.
//!
//! A blob can be verified against its name only when all of it has arrived. Until then everything
//! except its end is sent. If the hash is wrong, the response breaks off before the end, like a
//! response with damaged stored bytes. A blob is kept only if it is verified.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper::{StatusCode, header};
use throng_ddc::{IoHash, Namespace};
use throng_ddc_store::Blob;

use crate::answer::Problem;
use crate::origin::Origin;
use crate::service::Service;

/// Bytes at the end that are not sent before everything is verified.
const HELD_BYTES: u64 = 64 << 10;

/// A blob on its way here, and those who wait for it.
#[derive(Default)]
pub(crate) struct StreamedBlob(Mutex<State>);

#[derive(Default)]
struct State {
    /// Its size, once the sender said it and it is too large to be waited for.
    total: Option<u64>,
    /// What is here of it.
    part: Option<Blob>,
    /// True if it came, and was what it should be.
    end: Option<bool>,
    /// Why nobody could say.
    failure: Option<(StatusCode, String)>,
    waiting: Vec<Waker>,
}

impl StreamedBlob {
    /// So many bytes will come, in a file.
    pub(crate) fn begin(&self, total: u64) {
        self.change(|state| state.total = Some(total));
    }

    /// This much of it is here.
    pub(crate) fn advance(&self, part: Blob) {
        self.change(|state| state.part = Some(part));
    }

    fn end(&self, brought: Result<bool, Problem>) {
        self.change(|state| match brought {
            Ok(sound) => state.end = Some(sound),
            Err(problem) => {
                (state.end, state.failure) = (Some(false), Some((problem.status, problem.title)));
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its size when its first bytes are here; `None` when there will be nothing to wait for.
    fn poll_begun(&self, context: &Context<'_>) -> Poll<Result<Option<u64>, Problem>> {
        let mut state = self.state();
        match &*state {
            State { failure: Some((status, title)), .. } => {
                let problem = Problem::new(*status, title.as_str());
                Poll::Ready(Err(problem.with(header::RETRY_AFTER, "1")))
            }
            State { end: Some(_), .. } => Poll::Ready(Ok(None)),
            State { total: Some(total), part: Some(_), .. } => Poll::Ready(Ok(Some(*total))),
            _ => {
                state.waiting.push(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Something to read bytes from `at` on, and up to where they may be sent.
    pub(crate) fn poll_part(&self, context: &Context<'_>, at: u64) -> Poll<io::Result<(Blob, u64)>> {
        let mut state = self.state();
        if state.end == Some(false) {
            return Poll::Ready(Err(io::Error::other("a blob from elsewhere did not come, or not as named")));
        }
        let held = state.total.unwrap_or(0).saturating_sub(HELD_BYTES);
        if let Some(part) = &state.part {
            let until = if state.end == Some(true) { part.len() } else { part.len().min(held) };
            if until > at {
                return Poll::Ready(Ok((part.clone(), until)));
            }
            if state.end == Some(true) {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        state.waiting.push(context.waker().clone());
        Poll::Pending
    }
}

/// A blob that can be answered with.
pub(crate) enum Found {
    /// It is here.
    Here(Blob),
    /// It is on its way here, and so large.
    Streamed(Arc<StreamedBlob>, u64),
}

impl Service {
    /// A blob, brought here if it is elsewhere; a large one is on its way when this returns, a
    /// small one here.
    pub(crate) async fn find_or_begin(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Found>, Problem> {
        if matches!(self.origin, Origin::Alone) || self.store.has_blob(namespace, hash)? {
            return Ok(self.find_blob(namespace, hash).await?.map(Found::Here));
        }
        self.counters.blob_misses.fetch_add(1, Ordering::Relaxed);
        let found = match self.begin(namespace, hash).await? {
            Some((streamed, len)) => Some(Found::Streamed(streamed, len)),
            None => self.store.blob(namespace, hash)?.map(Found::Here),
        };
        if found.is_some() {
            self.note_use(hash);
        }
        Ok(found)
    }

    /// Begins to bring a blob, unless that began already. Its size if it is large; else it is here,
    /// if it can be had.
    async fn begin(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<(Arc<StreamedBlob>, u64)>, Problem> {
        let wanted = (namespace.clone(), *hash);
        let (streamed, first) = {
            let mut all = self.streamed.lock().unwrap_or_else(PoisonError::into_inner);
            let first = !all.contains_key(&wanted);
            (Arc::clone(all.entry(wanted.clone()).or_default()), first)
        };
        if first {
            // It goes on if the client leaves: the next one will want it.
            let (service, streamed) = (Arc::clone(self), Arc::clone(&streamed));
            tokio::spawn(async move {
                let (namespace, hash) = &wanted;
                let brought = service.fetch_blob(namespace, hash, Some(&streamed)).await;
                service.streamed.lock().unwrap_or_else(PoisonError::into_inner).remove(&wanted);
                streamed.end(brought);
            });
        }
        let total = std::future::poll_fn(|context| streamed.poll_begun(context)).await?;
        Ok(total.map(|total| (streamed, total)))
    }
}
