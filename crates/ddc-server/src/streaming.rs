//! Streaming of large blobs to clients while they arrive from an origin.
//!
//! A blob can be verified against its name only when all of it has arrived. Until then everything
//! except its end is sent. If the hash is wrong, the response breaks off before the end, like a
//! response with damaged stored bytes. A blob is kept only if it is verified.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper::StatusCode;
use throng_ddc_store::Blob;

/// Bytes at the end that are not sent before everything is verified.
pub(crate) const HELD_BYTES: u64 = 64 << 10;

/// A blob on its way here, and those who wait for it.
#[derive(Default)]
pub(crate) struct StreamedBlob(Mutex<State>);

/// Status and reason of a transfer that failed.
pub(crate) type Failure = (StatusCode, String);

/// State of a transfer that a reader has waited for.
#[derive(Clone, Debug)]
pub(crate) enum Begun {
    /// Its first bytes are here, of this size in all.
    Large(u64),
    /// It is over, and brought this.
    Over(Option<Blob>),
}

#[derive(Default)]
struct State {
    /// Its size, once the sender said it and it is too large to be waited for.
    total: Option<u64>,
    /// What is here of it.
    part: Option<Blob>,
    /// The blob that it brought, at its end; `None` if it did not come, or was something else.
    end: Option<Option<Blob>>,
    /// Why nobody could say.
    failure: Option<Failure>,
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

    /// Ends it with what it brought, or with a failure. Does nothing after [`break_off`](Self::break_off).
    pub(crate) fn end(&self, brought: Result<Option<Blob>, Failure>) {
        self.change(|state| match brought {
            _ if state.end.is_some() => {}
            Ok(brought) => state.end = Some(brought),
            Err(failure) => (state.end, state.failure) = (Some(None), Some(failure)),
        });
    }

    /// The bytes shown so far are not those of the blob, whatever comes after them.
    pub(crate) fn break_off(&self) {
        self.change(|state| {
            if state.total.is_some() {
                let why = "the blob was damaged on its way here; try again".to_owned();
                (state.end, state.failure) = (Some(None), Some((StatusCode::SERVICE_UNAVAILABLE, why)));
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

    /// Waits for its first bytes, or for its end if it is small.
    pub(crate) fn poll_begun(&self, context: &Context<'_>) -> Poll<Result<Begun, Failure>> {
        let mut state = self.state();
        match &*state {
            State { failure: Some(failure), .. } => Poll::Ready(Err(failure.clone())),
            State { end: Some(brought), .. } => Poll::Ready(Ok(Begun::Over(brought.clone()))),
            State { total: Some(total), part: Some(_), .. } => Poll::Ready(Ok(Begun::Large(*total))),
            _ => {
                state.waiting.push(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Something to read bytes from `at` on, and up to where they may be sent.
    pub(crate) fn poll_part(&self, context: &Context<'_>, at: u64) -> Poll<io::Result<(Blob, u64)>> {
        let mut state = self.state();
        let is_over = state.end.is_some();
        if matches!(state.end, Some(None)) {
            return Poll::Ready(Err(io::Error::other("a blob from elsewhere did not come, or not as named")));
        }
        let held = state.total.unwrap_or(0).saturating_sub(HELD_BYTES);
        if let Some(part) = &state.part {
            let until = if is_over { part.len() } else { part.len().min(held) };
            if until > at {
                return Poll::Ready(Ok((part.clone(), until)));
            }
            if is_over {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        state.waiting.push(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_were_damaged_on_the_way_are_not_completed_by_a_second_transfer() {
        let context = Context::from_waker(Waker::noop());
        let brought = || Ok(Some(Blob::in_memory("sound".into())));
        let streamed = StreamedBlob::default();
        streamed.begin(1 << 20);
        streamed.break_off();
        streamed.end(brought());
        assert!(matches!(streamed.poll_part(&context, 0), Poll::Ready(Err(_))));
        assert!(matches!(
            streamed.poll_begun(&context),
            Poll::Ready(Err((StatusCode::SERVICE_UNAVAILABLE, _)))
        ));
        // Nobody has seen anything of a small one.
        let small = StreamedBlob::default();
        small.break_off();
        small.end(brought());
        assert!(matches!(small.poll_begun(&context), Poll::Ready(Ok(Begun::Over(Some(_))))));
    }
}
