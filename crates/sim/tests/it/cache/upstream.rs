//! Connection of a node to the one that it fills itself from.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response};
use throng_ddc_server::{Listener, Pieces, Service, Upstream};
use throng_ddc_store::{Clock, Incoming};

use super::faults::Faults;

/// Time for which the edge believes that something is missing.
pub(super) const MISS: Duration = Duration::from_secs(20);

pub(super) struct Link {
    pub(super) faults: Faults,
    /// Service at the other end, and whether its power has failed.
    peer: Mutex<Option<(Arc<Service>, Arc<AtomicBool>)>>,
}

impl Link {
    pub(super) fn new(seed: u64) -> Arc<Link> {
        Arc::new(Link { faults: Faults::new(seed), peer: Mutex::default() })
    }

    pub(super) fn connect(&self, service: &Arc<Service>, is_dead: &Arc<AtomicBool>) {
        *self.peer.lock().expect("no panic") = Some((Arc::clone(service), Arc::clone(is_dead)));
    }

    /// Client at this end.
    pub(super) fn client(self: &Arc<Link>, clock: Arc<dyn Clock>) -> Upstream {
        let link = Arc::clone(self);
        let ask = move |request: Request<_>| {
            let link = Arc::clone(&link);
            let (mut head, _) = request.into_parts();
            head.headers.insert(HOST, HeaderValue::from_static("localhost"));
            Box::pin(async move { link.ask(Request::from_parts(head, stream::empty().boxed())).await }) as _
        };
        Upstream::over(Box::new(ask), clock, MISS)
    }

    async fn ask(&self, request: Request<Pieces>) -> io::Result<Response<Incoming>> {
        let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
        let (service, is_dead) = self.peer.lock().expect("no panic").clone().ok_or_else(reset)?;
        self.faults.wait().await;
        if self.faults.happens(0.15) {
            return Err(reset());
        }
        let response = service.exchange(Listener::Internal, request).await?;
        self.faults.wait().await;
        if is_dead.load(Ordering::Relaxed) || self.faults.happens(0.1) {
            return Err(reset());
        }
        Ok(response.map(|body| {
            let faults = self.faults.clone();
            let pieces = stream::iter(self.faults.pieces(&body)).then(move |piece| {
                let faults = faults.clone();
                async move {
                    faults.wait().await;
                    piece
                }
            });
            Incoming { len: body.len() as u64, bytes: pieces.boxed() }
        }))
    }
}
