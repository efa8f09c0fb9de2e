//! Blobs of an upstream that the folder cannot keep: they are passed on to clients all the same.
//!
//! A client that wants one whole gets it as it arrives, and a package the same way, blob by blob. A
//! blob that is needed for something else (a part of it, its decompressed data) is received into
//! memory, if it is not too large for that. Neither is shared by requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hyper::StatusCode;
use throng_ddc::{IoHash, Namespace};
use throng_ddc_store::{Blob, Incoming};
use tokio::time::Instant;

use crate::answer::Problem;
use crate::blobs::HeldBytes;
use crate::blocking;
use crate::body::Body;
use crate::fetch::Found;
use crate::memory::{MEMORY_WAIT, SMALL_BYTES_MAX};
use crate::relay::{Failed, Relay};
use crate::service::Service;
use crate::source::{FetchedBody, OTHER_CONTENT};
use crate::upload::{Received, Upload};
use crate::upstream::{Upstream, for_request, way};

/// Blobs up to this size are received into memory.
const IN_MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Memory of a blob that is sent as it arrives: its held end, and a piece.
pub(crate) const RELAY_BYTES: u64 = 512 << 10;
/// Memory of a blob that is going to be sent so.
const RELAY_LATER_BYTES: u64 = 4 << 10;

impl Service {
    /// Reports whether the folder keeps nothing that comes from an upstream at present.
    pub(crate) fn keeps_nothing(&self, namespace: &Namespace) -> bool {
        self.store.check_room(namespace, 0).is_err()
    }

    /// Counts a blob or ref that could not be kept, and logs the reason once a minute.
    pub(crate) fn count_passed(&self, namespace: &Namespace, why: &str) {
        self.origin_counters.passed.fetch_add(1, Ordering::Relaxed);
        if self.origin_counters.passed_log.is_due(self.clock.elapsed()) {
            tracing::warn!(
                %namespace, %why,
                "the folder cannot keep what comes from the upstream; it is passed on to clients without a copy"
            );
        }
    }

    /// A blob of the upstream for an answer, without a copy of it here.
    pub(crate) async fn pass_on(
        self: &Arc<Service>,
        upstream: &Upstream,
        namespace: &Namespace,
        hash: &IoHash,
        why: &str,
    ) -> Result<Option<Found>, Problem> {
        let held = self.memory.take(RELAY_BYTES, Instant::now() + MEMORY_WAIT).await?;
        let Some(incoming) = upstream.blob(namespace, hash).await else { return Ok(None) };
        let len = incoming.len;
        // A small one is checked before its answer begins, so that a wrong one is a miss.
        if len <= SMALL_BYTES_MAX as u64 {
            drop(held);
            let blob = self.receive_in_memory(namespace, hash, FetchedBody::new(incoming), len, why).await?;
            return Ok(blob.map(Found::Here));
        }
        if len > self.rules().blob_bytes_max {
            upstream.blob_failed(namespace, hash, &"it is larger than ddc.blob_bytes_max");
            return Ok(None);
        }
        self.count_passed(namespace, why);
        let mut body = Body::default();
        body.push_relay(Relay::new(
            FetchedBody::new(incoming),
            *hash,
            len,
            self.on_failure(namespace, hash),
            held,
        ));
        Ok(Some(Found::Coming(body)))
    }

    /// Receiver of the news that the transfer of a blob of the upstream failed.
    fn on_failure(self: &Arc<Service>, namespace: &Namespace, hash: &IoHash) -> Failed {
        let (service, wanted) = (Arc::clone(self), (namespace.clone(), *hash));
        Box::new(move |why: &io::Error| {
            if why.kind() == io::ErrorKind::InvalidData {
                service.counters.add_damaged();
            }
            if let Some(upstream) = service.upstream() {
                upstream.blob_failed(&wanted.0, &wanted.1, why);
            }
        })
    }

    /// A blob as one of many in an answer, of which `in_memory_max` bytes may be in memory. A
    /// larger one that the folder cannot keep is fetched when it is its turn to be sent.
    pub(crate) async fn find_part(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
        in_memory_max: u64,
    ) -> Result<Option<Found>, Problem> {
        let Some(upstream) = self.upstream() else {
            return Ok(self.find_blob(namespace, hash).await?.map(Found::Here));
        };
        if self.store.has_blob(namespace, hash)? {
            return Ok(self.find_blob(namespace, hash).await?.map(Found::Here));
        }
        self.counters.blob_misses.fetch_add(1, Ordering::Relaxed);
        let problem = match self.fetch_blob(namespace, hash, None).await {
            Ok(Some(blob)) if blob.memory().is_some() && blob.len() > in_memory_max => {
                return self.relay_later(namespace, hash, blob.len()).await.map(Some);
            }
            Ok(brought) => return Ok(brought.map(Found::Here)),
            Err(problem) => problem,
        };
        let Some(incoming) = upstream.blob(namespace, hash).await else { return Ok(None) };
        let len = incoming.len;
        if len <= in_memory_max {
            let body = FetchedBody::new(incoming);
            let blob = self.receive_in_memory(namespace, hash, body, len, &problem.title).await?;
            return match blob {
                // Its length was unknown.
                Some(blob) if blob.len() > in_memory_max => {
                    self.relay_later(namespace, hash, blob.len()).await.map(Some)
                }
                blob => Ok(blob.map(Found::Here)),
            };
        }
        drop(incoming);
        if len > self.rules().blob_bytes_max {
            upstream.blob_failed(namespace, hash, &"it is larger than ddc.blob_bytes_max");
            return Ok(None);
        }
        self.count_passed(namespace, &problem.title);
        self.relay_later(namespace, hash, len).await.map(Some)
    }

    /// A blob of the upstream for an answer, which is asked for when it is its turn to be sent.
    pub(crate) async fn relay_later(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
        len: u64,
    ) -> Result<Found, Problem> {
        let held = self.memory.take(RELAY_LATER_BYTES, Instant::now() + MEMORY_WAIT).await?;
        let (service, wanted, way) = (Arc::clone(self), (namespace.clone(), *hash), way());
        let begin = async move {
            let incoming = for_request(way, async {
                match service.upstream() {
                    Some(upstream) => upstream.blob(&wanted.0, &wanted.1).await,
                    None => None,
                }
            });
            match Box::pin(incoming).await {
                Some(incoming) if [len, 0].contains(&incoming.len) => Ok(incoming.bytes),
                _ => Err(io::Error::other("the upstream no longer has the blob")),
            }
        };
        let incoming = Incoming { len, bytes: stream::once(begin).try_flatten().boxed() };
        let mut body = Body::default();
        body.push_relay(Relay::new(
            FetchedBody::new(incoming),
            *hash,
            len,
            self.on_failure(namespace, hash),
            held,
        ));
        Ok(Found::Coming(body))
    }

    /// A blob of the upstream in memory, for something that needs all of it.
    pub(crate) async fn bring_into_memory(
        &self,
        upstream: &Upstream,
        namespace: &Namespace,
        hash: &IoHash,
        why: &str,
    ) -> Result<Option<Blob>, Problem> {
        let Some(incoming) = upstream.blob(namespace, hash).await else { return Ok(None) };
        let len = incoming.len;
        self.receive_in_memory(namespace, hash, FetchedBody::new(incoming), len, why).await
    }

    /// Receives a blob of `len` bytes. If that is 0, its length is unknown, and it takes its memory
    /// as it arrives.
    async fn receive_in_memory(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        body: FetchedBody,
        len: u64,
        why: &str,
    ) -> Result<Option<Blob>, Problem> {
        if len > IN_MEMORY_BYTES_MAX {
            self.count_passed(namespace, &format!("{why}; a blob of {len} bytes is too large for memory"));
            return Ok(None);
        }
        let (limit, expected) = match len {
            0 => (IN_MEMORY_BYTES_MAX.min(self.rules().blob_bytes_max), SMALL_BYTES_MAX as u64),
            len => (len, len),
        };
        let mut held = Some(self.memory.take(expected, Instant::now() + MEMORY_WAIT).await?);
        let memory = (len == 0).then_some(&self.memory);
        let received = match Upload::new(Box::new(body), limit, memory) {
            Ok(mut upload) => {
                let received = upload.all().await;
                upload.give_held(&mut held);
                received
            }
            Err(problem) => Err(problem),
        };
        if len == 0 && matches!(&received, Err(problem) if problem.status == StatusCode::PAYLOAD_TOO_LARGE) {
            let why = format!("{why}; a blob of more than {limit} bytes is too large for memory");
            self.count_passed(namespace, &why);
            return Ok(None);
        }
        let received = received.map(|bytes| {
            let found = match bytes.len() > SMALL_BYTES_MAX {
                true => blocking::in_place(|| IoHash::of(&bytes)),
                false => IoHash::of(&bytes),
            };
            Received::Small(bytes, found)
        });
        let Some(Received::Small(bytes, found)) = self.arrived(namespace, hash, received)? else {
            return Ok(None);
        };
        if found != *hash {
            self.counters.add_damaged();
            if let Some(upstream) = self.upstream() {
                upstream.blob_failed(namespace, hash, &OTHER_CONTENT);
            }
            return Ok(None);
        }
        self.count_passed(namespace, why);
        Ok(Some(Blob::in_memory(Bytes::from_owner(HeldBytes { bytes, _held: held }))))
    }
}
