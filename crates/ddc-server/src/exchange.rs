//! Requests without a connection, for simulations and other callers in the same process.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::stream::{BoxStream, StreamExt as _};
use hyper::{Request, Response};

use crate::listener::Listener;
use crate::service::{RawRequest, Service};
use crate::source::Source;

/// Body of a request: its pieces in order. An error is a connection that breaks off.
pub type Pieces = BoxStream<'static, io::Result<Bytes>>;

/// Pieces of a body of unknown length. The lock makes it `Sync`; it is never contended.
struct PieceSource(Mutex<Pieces>);

impl Source for PieceSource {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let pieces = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        pieces.poll_next_unpin(context).map(Option::transpose)
    }

    fn declared(&self) -> Option<u64> {
        None
    }
}

impl Service {
    /// Answers a request, with the whole body of the answer in memory.
    ///
    /// # Errors
    /// If the body breaks off after its beginning: a client sees an answer that is too short.
    pub async fn exchange(
        self: &Arc<Service>,
        listener: Listener,
        request: Request<Pieces>,
    ) -> io::Result<Response<Bytes>> {
        let (head, pieces) = request.into_parts();
        let raw = RawRequest {
            method: head.method.as_str(),
            path: head.uri.path(),
            query: head.uri.query().unwrap_or_default(),
            headers: &head.headers,
            source: Box::new(PieceSource(Mutex::new(pieces))),
        };
        let (head, mut body) = self.answer(listener, raw).await.into_parts();
        let mut bytes = BytesMut::new();
        while body.len() > 0 {
            poll_fn(|context| body.poll_ready(context)).await?;
            if let Some(part) = body.take_file() {
                bytes.extend_from_slice(&part.blob.read(part.at, (part.end - part.at) as usize)?);
            } else if let Some(piece) = body.step(usize::MAX) {
                bytes.extend_from_slice(&piece?);
            }
        }
        Ok(Response::from_parts(head, bytes.freeze()))
    }
}
