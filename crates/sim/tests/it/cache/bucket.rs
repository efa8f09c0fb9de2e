//! A bucket in memory that is slow, fails before or after it did what it was asked, breaks off, and
//! flips bits on the way.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::faults::Faults;

/// The bucket as one node sees it. Clones share the objects.
#[derive(Clone)]
pub(super) struct FaultyBucket {
    objects: Arc<InMemory>,
    pub(super) faults: Faults,
    /// The node's power has failed: nothing that it still asks has an effect.
    is_dead: Arc<AtomicBool>,
}

impl FaultyBucket {
    pub(super) fn new(seed: u64) -> FaultyBucket {
        FaultyBucket { objects: Arc::default(), faults: Faults::new(seed), is_dead: Arc::default() }
    }

    /// The same bucket for another node, which dies for itself.
    pub(super) fn for_node(&self, is_dead: Arc<AtomicBool>) -> FaultyBucket {
        FaultyBucket { is_dead, ..self.clone() }
    }

    /// Takes the time of a request; fails if it never arrives.
    async fn ask(&self) -> Result<()> {
        self.faults.wait().await;
        match self.is_dead.load(Ordering::Relaxed) || self.faults.happens(0.15) {
            true => Err(failure()),
            false => Ok(()),
        }
    }

    /// Takes the time of an answer; fails if it never arrives.
    async fn answer<T>(&self, result: Result<T>) -> Result<T> {
        self.faults.wait().await;
        if self.is_dead.load(Ordering::Relaxed) || self.faults.happens(0.1) { Err(failure()) } else { result }
    }
}

fn failure() -> Error {
    Error::Generic { store: "simulation", source: "the bucket fails".into() }
}

impl fmt::Debug for FaultyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyBucket")
    }
}

impl fmt::Display for FaultyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a bucket that fails")
    }
}

#[async_trait]
impl ObjectStore for FaultyBucket {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.ask().await?;
        self.answer(self.objects.put_opts(location, payload, opts).await).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.ask().await?;
        self.objects.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.ask().await?;
        let is_head = options.head;
        let got = self.answer(self.objects.get_opts(location, options).await).await?;
        if is_head {
            return Ok(got);
        }
        let GetResult { meta, range, attributes, extensions, payload } = got;
        let whole = GetResult {
            payload,
            meta: meta.clone(),
            range: range.clone(),
            attributes: attributes.clone(),
            extensions: extensions.clone(),
        };
        let bytes = whole.bytes().await?;
        let pieces: Vec<Result<_>> =
            self.faults.pieces(&bytes).into_iter().map(|piece| piece.map_err(|_| failure())).collect();
        let bucket = self.clone();
        let pieces = stream::iter(pieces).then(move |piece| {
            let bucket = bucket.clone();
            async move {
                bucket.faults.wait().await;
                piece
            }
        });
        let payload = GetResultPayload::Stream(pieces.boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let bucket = self.clone();
        locations
            .then(move |location| {
                let bucket = bucket.clone();
                async move {
                    let location = location?;
                    bucket.ask().await?;
                    let one = stream::iter([Ok(location)]).boxed();
                    let mut deleted = bucket.objects.delete_stream(one);
                    let result = deleted.next().await.unwrap_or_else(|| Err(failure()));
                    bucket.answer(result).await
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (bucket, listed) = (self.clone(), self.objects.list(prefix));
        let first = stream::once(async move { bucket.ask().await });
        first.filter_map(|asked| async move { asked.err().map(Err) }).chain(listed).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.ask().await?;
        self.answer(self.objects.list_with_delimiter(prefix).await).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.ask().await?;
        self.answer(self.objects.copy_opts(from, to, options).await).await
    }
}
