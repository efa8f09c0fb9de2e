//! Blobs, objects and compressed buffers: get, put, delete.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use throng_ddc::api::{Family, Media, Method, Range, negotiate};
use throng_ddc::compressed::Decoder;
use throng_ddc::{Document, Hasher, IoHash, Namespace, Value};
use throng_ddc_store::{Blob, ChangeResult, Done, StoreError, is_damage};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::answer::{self, Answer, Problem, empty, object, unverifiable};
use crate::blocking;
use crate::body::{Body, Check, CheckKind, Findings};
use crate::fetch::Found;
use crate::headers::IO_HASH;
use crate::memory::{Held, MEMORY_WAIT, SMALL_BYTES_MAX};
use crate::origin::{Located, Reach};
use crate::preconditions::{Preconditions, tag_of, tag_value};
use crate::service::{ApiRequest, Service, check_hash, hash_value};
use crate::upload::{Received, verified};

/// Blobs that were read and found sound; when there are more, all that is forgotten and gained
/// again.
const VERIFIED_MAX: usize = 1 << 18;
/// Blobs up to this size are read; larger ones are sent from their files.
const READ_BYTES_MAX: u64 = 16 << 10;
/// Blobs up to this size are hashed before they are sent, larger ones on their way, with the end
/// held back.
pub(crate) const HASH_FIRST_BYTES_MAX: u64 = 64 << 20;

/// Forms of one content that a request tries at most, while those before turn out to be gone.
pub(crate) const FORMS_TRIED_MAX: usize = 8;

/// Makes an answer from some form of a content. One that turns out to be damaged is gone then, and
/// the next attempt looks up another one.
pub(crate) async fn of_any_form<F: Future<Output = Answer>>(make: impl Fn() -> F) -> Answer {
    for _ in 1..FORMS_TRIED_MAX {
        match make().await {
            Err(problem) if problem.has_vanished => {}
            answer => return answer,
        }
    }
    make().await
}

/// Bytes and the memory that is held for them.
pub(crate) struct HeldBytes {
    pub(crate) bytes: Bytes,
    pub(crate) _held: Option<Held>,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Findings for Service {
    fn damaged(&self, namespace: &Namespace, hash: &IoHash, blob: &Blob) {
        self.store.discard_damaged(namespace, hash, blob);
    }

    fn sound(&self, blob: &Blob) {
        self.set_verified(blob);
    }
}

impl Service {
    pub(crate) async fn blob_route(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        family: Family,
        namespace: &Namespace,
        hash: IoHash,
    ) -> Answer {
        if matches!(request.method, Method::Put | Method::Delete) {
            self.permit_change(request, family, namespace, &hash).await?;
        }
        match (request.method, family) {
            (Method::Put, Family::Compressed) => {
                request.content_type(&[Media::Compressed])?;
                Box::pin(self.put_compressed(request, namespace, Some(hash))).await
            }
            (Method::Put, Family::Objects) => {
                request.content_type(&[Media::CompactBinary])?;
                self.put_blob(request, namespace, Some(hash), true).await
            }
            (Method::Put, Family::Blobs) => {
                request.content_type(&[Media::Octets])?;
                self.put_blob(request, namespace, Some(hash), false).await
            }
            (Method::Delete, Family::Compressed) => {
                let shared = match self.tier() {
                    Some(tier) => self.heard(tier.delete_forms(namespace, &hash).await)?,
                    None => false,
                };
                let mut result = Ok(ChangeResult::Unchanged);
                let (sender, receiver) = oneshot::channel();
                self.store.delete_content(
                    namespace,
                    &hash,
                    Box::new(move |outcome| drop(sender.send(outcome))),
                )?;
                if let Ok(outcome) = receiver.await {
                    result = outcome;
                }
                match result? {
                    ChangeResult::Unchanged if !shared => Err(Problem::missing("no such compressed blob")),
                    _ => Ok(empty(StatusCode::OK)),
                }
            }
            (Method::Delete, _) => match (self.delete_blob(namespace, &hash).await?, family) {
                (false, _) => Err(Problem::missing("no such blob")),
                (_, Family::Objects) => {
                    let value = Value::object([("deletedCount", Value::Integer(1))]);
                    Ok(object(&value, request.answer_media(None)))
                }
                _ => Ok(empty(StatusCode::NO_CONTENT)),
            },
            (_, Family::Compressed) => self.get_compressed(request, namespace, &hash).await,
            (_, Family::Objects) => self.get_blob(request, namespace, &hash, Media::CompactBinary).await,
            (_, Family::Blobs) => self.get_blob(request, namespace, &hash, Media::Octets).await,
        }
    }

    /// Decides about a change of a blob. What is stored under a hash never changes, so that nothing
    /// another request does meanwhile makes the decision wrong, except that it stores or deletes
    /// the same blob.
    pub(crate) async fn permit_change(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        family: Family,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<(), Problem> {
        let preconditions = request.preconditions();
        if preconditions.is_empty() {
            return Ok(());
        }
        Box::pin(self.check_change_of_blob(&preconditions, family, namespace, hash)).await
    }

    async fn check_change_of_blob(
        &self,
        preconditions: &Preconditions,
        family: Family,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<(), Problem> {
        let found = match family {
            Family::Compressed => self.locate(namespace, hash, Reach::Own).await?,
            _ => self.blob_len(namespace, hash).await?.map(|_| *hash),
        };
        preconditions.permit_change(found.as_ref())
    }

    pub(crate) async fn get_blob(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        hash: &IoHash,
        media: Media,
    ) -> Answer {
        let missing = || Problem::missing("no such blob");
        if request.method == Method::Head {
            let mut len = self.blob_len(namespace, hash).await?;
            if len.is_none() && self.take_over(request, namespace, hash, false).await?.is_some() {
                len = self.blob_len(namespace, hash).await?;
            }
            let len = len.ok_or_else(missing)?;
            return Ok(match request.preconditions().is_unmodified(hash)? {
                true => unmodified(hash, media),
                false => head_answer(hash, len, media),
            });
        }
        if media == Media::Octets
            && let Some(elsewhere) = self.redirect(request, namespace, hash).await?
        {
            return Ok(elsewhere);
        }
        let mut found = self.find(request, namespace, hash).await?;
        if found.is_none() && self.take_over(request, namespace, hash, false).await?.is_some() {
            found = self.find(request, namespace, hash).await?;
        }
        match found.ok_or_else(missing)? {
            Found::Here(blob) => self.blob_answer(request, namespace, hash, blob, media).await,
            Found::Coming(body) => Ok(coming_answer(body, hash, media)),
        }
    }

    pub(crate) async fn get_compressed(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        id: &IoHash,
    ) -> Answer {
        of_any_form(|| self.get_best_form(request, namespace, id)).await
    }

    async fn get_best_form(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        id: &IoHash,
    ) -> Answer {
        let missing = || Problem::missing("no such compressed blob");
        let gone = || Problem::vanished("no such compressed blob");
        let found = match self.locate_form(namespace, id, Reach::All).await? {
            Some(found) => Some(found),
            None => self.take_over(request, namespace, id, true).await?,
        };
        let found = found.ok_or_else(missing)?;
        let hash = found.blob;
        let media = if hash == *id { Media::Octets } else { Media::Compressed };
        if negotiate(request.accept(), &[media]).is_none() {
            let title = format!("what is stored is {}", media.name());
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, title));
        }
        let mut response = if request.method == Method::Head {
            let len = self.blob_len(namespace, &hash).await?.ok_or_else(gone)?;
            match request.preconditions().is_unmodified(&hash)? {
                true => unmodified(&hash, media),
                false => head_answer(&hash, len, media),
            }
        } else {
            match self.find(request, namespace, &hash).await?.ok_or_else(gone)? {
                Found::Here(blob) => {
                    self.note_form(namespace, id, found, blob.len()).await?;
                    self.blob_answer(request, namespace, &hash, blob, media).await?
                }
                Found::Coming(body) => coming_answer(body, &hash, media),
            }
        };
        if response.status() == StatusCode::OK {
            response.headers_mut().insert(IO_HASH, hash_value(&hash));
        }
        Ok(response)
    }

    /// A blob for an answer. Parts are only given of what is here.
    async fn find(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Found>, Problem> {
        if [header::RANGE, header::IF_NONE_MATCH, header::IF_MATCH]
            .iter()
            .any(|name| request.headers.contains_key(name))
        {
            return Ok(self.find_blob(namespace, hash).await?.map(Found::Here));
        }
        self.find_or_begin(namespace, hash).await
    }

    /// A blob, or the part of it that was asked for, or that the client has it.
    pub(crate) async fn blob_answer(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        hash: &IoHash,
        blob: Blob,
        media: Media,
    ) -> Answer {
        if request.preconditions().is_unmodified(hash)? {
            return Ok(unmodified(hash, media));
        }
        let response = {
            // A part of something else than the client has is of no use to it.
            let range = request.header(header::RANGE).filter(|_| {
                request.method == Method::Get
                    && request.header(header::IF_RANGE).is_none_or(|wanted| wanted == tag_of(hash))
            });
            let len = blob.len();
            match Range::read(range, len) {
                Range::Unsatisfiable => {
                    return Err(Problem::new(
                        StatusCode::RANGE_NOT_SATISFIABLE,
                        format!("the blob has {len} bytes"),
                    )
                    .with(header::CONTENT_RANGE, format!("bytes */{len}")));
                }
                Range::Part { start, end } => {
                    let body = self.part_body(namespace, hash, blob, start, end).await?;
                    let mut response = Response::new(body);
                    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                    if let Ok(value) = HeaderValue::try_from(format!("bytes {start}-{}/{len}", end - 1)) {
                        response.headers_mut().insert(header::CONTENT_RANGE, value);
                    }
                    response
                }
                Range::Whole => {
                    let mut body = Body::default();
                    if request.method == Method::Get {
                        self.push_whole(&mut body, namespace, hash, blob).await?;
                    } else {
                        body.push_blob(blob, 0, len, None);
                    }
                    Response::new(body)
                }
            }
        };
        Ok(describe(response, hash, media))
    }

    fn check(self: &Arc<Service>, namespace: &Namespace, hash: &IoHash, kind: CheckKind) -> Check {
        let findings: Arc<dyn Findings> = Arc::<Service>::clone(self);
        Check { findings, namespace: namespace.clone(), hash: *hash, kind }
    }

    /// A part of a blob as a body. Unless the whole blob was hashed lately, each MiB that holds
    /// a piece of it is checked before anything is sent, those of a very long part on their way.
    async fn part_body(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
        blob: Blob,
        start: u64,
        end: u64,
    ) -> Result<Body, Problem> {
        let mut body = Body::default();
        if !self.is_verified(&blob) && blob.has_sums() && end - start > HASH_FIRST_BYTES_MAX {
            let check = self.check(namespace, hash, CheckKind::Parts);
            body.push_blob(blob, start, end, Some(Box::new(check)));
            return Ok(body);
        }
        let sound = if self.is_verified(&blob) {
            true
        } else if blob.has_sums() {
            let read = blob.clone();
            let check = move || read.check_part(start, end).map(|()| true);
            self.check_now(namespace, hash, &blob, check).await?
        } else {
            // Version 1 of the store wrote large blobs without sums.
            self.hash_now(namespace, hash, &blob).await?
        };
        let blob = if sound { blob } else { Box::pin(self.replacement(namespace, hash)).await? };
        if end <= blob.len() {
            body.push_blob(blob, start, end, None);
        }
        Ok(body)
    }

    /// Adds a whole blob to a body. Small ones are checked at every read; others are hashed before
    /// they are sent when their last check is too old, very large ones before their last piece is.
    pub(crate) async fn push_whole(
        self: &Arc<Service>,
        body: &mut Body,
        namespace: &Namespace,
        hash: &IoHash,
        blob: Blob,
    ) -> Result<(), Problem> {
        let len = blob.len();
        if len <= READ_BYTES_MAX {
            match blob.read_checked() {
                Ok(bytes) => body.push_bytes(bytes),
                Err(error) if is_damage(&error) => {
                    self.store.discard_damaged(namespace, hash, &blob);
                    let blob = Box::pin(self.replacement(namespace, hash)).await?;
                    body.push_bytes(blob.read_checked()?);
                }
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
        if len > HASH_FIRST_BYTES_MAX && !self.is_verified(&blob) {
            let check = self.check(namespace, hash, CheckKind::Whole(Box::new(Hasher::new())));
            body.push_blob(blob, 0, len, Some(Box::new(check)));
        } else {
            let blob = self.sound_blob(namespace, hash, blob).await?;
            body.push_blob(blob, 0, len, None);
        }
        Ok(())
    }

    /// Adds a whole blob to a body, of which nothing is read before it is sent.
    pub(crate) fn push_later(
        self: &Arc<Service>,
        body: &mut Body,
        namespace: &Namespace,
        hash: &IoHash,
        blob: Blob,
    ) {
        let (len, verified) = (blob.len(), self.is_verified(&blob));
        let kind = match len <= READ_BYTES_MAX {
            true => CheckKind::AtOnce,
            false => CheckKind::Whole(Box::new(Hasher::new())),
        };
        let check = (!verified).then(|| Box::new(self.check(namespace, hash, kind)));
        body.push_blob(blob, 0, len, check);
    }

    /// A blob that is sound: it is hashed unless its last check is recent, and brought again if it
    /// is damaged.
    pub(crate) async fn sound_blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        blob: Blob,
    ) -> Result<Blob, Problem> {
        if self.is_verified(&blob) {
            return Ok(blob);
        }
        let sound = if blob.len() > SMALL_BYTES_MAX as u64 {
            self.hash_now(namespace, hash, &blob).await?
        } else {
            let sound = match blob.hash() {
                Err(error) if is_damage(&error) => false,
                found => found? == *hash,
            };
            match sound {
                true => self.set_verified(&blob),
                false => self.store.discard_damaged(namespace, hash, &blob),
            }
            sound
        };
        if sound { Ok(blob) } else { Box::pin(self.replacement(namespace, hash)).await }
    }

    /// Reports whether [`push_whole`](Service::push_whole) reads a blob into memory.
    pub(crate) fn is_pushed_in_memory(blob: &Blob) -> bool {
        blob.len() <= READ_BYTES_MAX
    }

    /// Hashes a stored blob, on a thread that may wait. Whether it is sound; it is discarded if
    /// not.
    async fn hash_now(&self, namespace: &Namespace, hash: &IoHash, blob: &Blob) -> Result<bool, Problem> {
        let (read, wanted) = (blob.clone(), *hash);
        let sound = self.check_now(namespace, hash, blob, move || Ok(read.hash()? == wanted)).await?;
        if sound {
            self.set_verified(blob);
        }
        Ok(sound)
    }

    /// Checks a stored blob, on a thread that may wait. Whether it is sound; it is discarded if
    /// not.
    async fn check_now(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        blob: &Blob,
        check: impl FnOnce() -> std::io::Result<bool> + Send + 'static,
    ) -> Result<bool, Problem> {
        let sound = match blocking::elsewhere(check).await.ok_or(StoreError::Busy)? {
            Err(error) if is_damage(&error) => false,
            checked => checked?,
        };
        if !sound {
            self.store.discard_damaged(namespace, hash, blob);
        }
        Ok(sound)
    }

    /// Bytes of a stored blob in memory, checked. A damaged one is discarded and brought again, if
    /// it can be. Those of a large one hold their memory of all requests while they are there.
    pub(crate) async fn checked_bytes(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        blob: &Blob,
    ) -> Result<Option<Bytes>, Problem> {
        if let Some(bytes) = blob.memory() {
            return Ok(Some(bytes.clone()));
        }
        let read = |blob: &Blob| match blob.len() > SMALL_BYTES_MAX as u64 {
            true => blocking::in_place(|| blob.read_sound(hash)),
            false => blob.read_sound(hash),
        };
        let held = match blob.len() > SMALL_BYTES_MAX as u64 {
            true => Some(self.memory.take(blob.len(), Instant::now() + MEMORY_WAIT).await?),
            false => None,
        };
        let bytes = match read(blob) {
            Err(error) if is_damage(&error) => {
                self.store.discard_damaged(namespace, hash, blob);
                match Box::pin(self.replacement(namespace, hash)).await {
                    Ok(blob) => read(&blob)?,
                    Err(problem) if problem.status == StatusCode::NOT_FOUND => return Ok(None),
                    Err(problem) => return Err(problem),
                }
            }
            read => read?,
        };
        Ok(Some(match held {
            None => bytes,
            held => Bytes::from_owner(HeldBytes { bytes, _held: held }),
        }))
    }

    /// The blob that comes from elsewhere in place of one that was damaged.
    async fn replacement(&self, namespace: &Namespace, hash: &IoHash) -> Result<Blob, Problem> {
        // The queue is in order: when this is answered, the damaged one is gone.
        self.commit(|done| self.store.delete_blob(namespace, hash, done)).await?;
        let found = self.find_blob(namespace, hash).await?;
        found.ok_or_else(|| Problem::vanished("the blob was damaged and is gone"))
    }

    fn is_verified(&self, blob: &Blob) -> bool {
        let recheck = self.rules().recheck;
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.elapsed();
        verified.get(&blob.id()).is_some_and(|checked| now.saturating_sub(*checked) < recheck)
    }

    pub(crate) fn set_verified(&self, blob: &Blob) {
        // Smaller ones are checked at every read.
        if blob.len() <= READ_BYTES_MAX {
            return;
        }
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(blob.id(), self.clock.elapsed());
    }

    pub(crate) async fn put_blob(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        namespace: &Namespace,
        wanted: Option<IoHash>,
        is_object: bool,
    ) -> Answer {
        let received = if is_object {
            request.upload.limit(self.rules().object_bytes_max)?;
            let bytes = request.upload.all().await?;
            Document::parse(&bytes).map_err(Problem::bad)?;
            let hash = IoHash::of(&bytes);
            Received::Small(bytes, hash)
        } else {
            self.receive_blob(request, namespace, wanted).await?
        };
        let hash = received.hash();
        check_hash(wanted, hash)?;
        self.keep(namespace, received).await?;
        self.fill_fallback(request, namespace, &hash, false).await?;
        Ok(answer::identifier(hash, request.answer_media(None)))
    }

    /// Receives a blob, which the client says has the hash `wanted`.
    pub(crate) async fn receive_blob(
        &self,
        request: &mut ApiRequest<'_>,
        namespace: &Namespace,
        wanted: Option<IoHash>,
    ) -> Result<Received, Problem> {
        let is_large = request.upload.declared().is_some_and(|len| len > SMALL_BYTES_MAX as u64);
        match wanted.filter(|_| is_large) {
            // The usual repeated upload. It is verified like any other, but need not be written
            // again.
            Some(wanted) if self.store.blob(namespace, &wanted)?.is_some() => {
                Box::pin(request.upload.hash()).await
            }
            _ => request.upload.receive(&self.store, None, None).await,
        }
    }

    pub(crate) async fn put_compressed(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        namespace: &Namespace,
        wanted: Option<IoHash>,
    ) -> Answer {
        let mut decoder = self.decoder();
        let received = request.upload.receive(&self.store, None, Some(&mut decoder)).await?;
        let raw = self.keep_compressed(namespace, received, decoder, wanted).await?;
        self.fill_fallback(request, namespace, &raw, true).await?;
        Ok(answer::identifier(raw, request.answer_media(None)))
    }

    /// Stores a compressed buffer and its content id, which is given.
    pub(crate) async fn keep_compressed(
        &self,
        namespace: &Namespace,
        received: Received,
        decoder: Decoder,
        wanted: Option<IoHash>,
    ) -> Result<IoHash, Problem> {
        let found = verified(decoder)?;
        let raw = found.header.raw_hash;
        check_hash(wanted, raw)?;
        if !found.hash_checked && !self.rules_of(namespace).unverified {
            return Err(unverifiable());
        }
        let (hash, len) = (received.hash(), received.len());
        self.keep(namespace, received).await?;
        self.put_form(namespace, raw, (len, hash, found.hash_checked)).await?;
        Ok(raw)
    }

    /// Notes, here and in the object storage, that a blob holds a form of `id`: its weight, the
    /// blob, and whether it was verified.
    pub(crate) async fn put_form(
        &self,
        namespace: &Namespace,
        id: IoHash,
        form: (u64, IoHash, bool),
    ) -> Result<(), Problem> {
        if let Some(tier) = self.tier() {
            let (weight, blob, verified) = form;
            self.heard(tier.put_form(namespace, &id, weight, (&blob, verified)).await)?;
        }
        self.commit(|done| self.store.put_content(namespace, id, form, done)).await?;
        Ok(())
    }

    /// Notes here what the object storage knows of a content id, once its blob is here: it need not
    /// be asked again.
    async fn note_form(
        &self,
        namespace: &Namespace,
        id: &IoHash,
        found: Located,
        len: u64,
    ) -> Result<(), Problem> {
        let Located { blob, verified } = found;
        let is_news = || Ok::<_, Problem>(self.store.best_form(namespace, id)? != Some((blob, verified)));
        if self.tier().is_some() && blob != *id && is_news()? {
            let form = (len, blob, verified);
            self.commit(|done| self.store.put_content(namespace, *id, form, done)).await?;
        }
        Ok(())
    }

    /// Deletes a blob, whoever relies on it. Whether there was one.
    pub(crate) async fn delete_blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<bool, Problem> {
        let shared = match self.tier() {
            Some(tier) => self.heard(tier.delete_blob(namespace, hash).await)?,
            None => false,
        };
        let outcome = self.commit(|done| self.store.delete_blob(namespace, hash, done)).await?;
        Ok(shared || outcome == ChangeResult::Done)
    }

    /// Stores what was received, under its own hash.
    pub(crate) async fn keep(&self, namespace: &Namespace, received: Received) -> Result<(), Problem> {
        let hash = received.hash();
        self.counters.bytes_in.fetch_add(received.len(), Ordering::Relaxed);
        // The usual repeated upload: what is in the index is durable. The object of a storage may
        // be damaged or deleted, which only a read of all of it would show: it is written again.
        if let Some(copy) = self.store.blob(namespace, &hash)? {
            return match (self.tier(), &received) {
                // If the end of the log is unknown, a delete that failed may be found there.
                (None, _) => {
                    self.store.note_repeated(namespace, &hash);
                    Ok(self.store.check_writable()?)
                }
                (Some(tier), Received::Known(..)) => self.share_copy(tier, namespace, &hash, &copy).await,
                (Some(_), _) => self.share(namespace, &received).await,
            };
        }
        // Never the other way round: a copy here says that the object storage has the blob.
        self.share(namespace, &received).await?;
        if self.upstream().is_some() && !self.store.fits_quota(namespace, received.len())? {
            Box::pin(self.drop_copies(namespace, received.len())).await?;
        }
        if self.upstream().is_some() {
            // A copy that gives way takes its blobs along, uploaded ones included. Noted first: it
            // may give way as soon as the blob is stored.
            self.store.note_repeated(namespace, &hash);
        }
        self.keep_here(namespace, received).await
    }

    /// Stores what was received in the folder, under its own hash.
    pub(crate) async fn keep_here(&self, namespace: &Namespace, received: Received) -> Result<(), Problem> {
        let hash = received.hash();
        let now = self.now();
        let outcome = match received {
            Received::Small(bytes, _) => {
                // A piece of the connection's read buffer would keep all of it alive while it
                // waits.
                let put = |done| self.store.put_blob(namespace, hash, bytes.clone(), now, done);
                match self.commit(put).await? {
                    ChangeResult::OverQuota => {
                        self.make_room(namespace, bytes.len() as u64).await?;
                        self.commit(put).await?
                    }
                    outcome => outcome,
                }
            }
            Received::Known(..) => {
                return Err(Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the blob was removed while it was uploaded again",
                ));
            }
            Received::Large(writer) => {
                let (sender, receiver) = oneshot::channel();
                let done: Done = Box::new(move |outcome| drop(sender.send(outcome)));
                // It waits for the disk, on one of few threads that are there for that.
                let (store, namespace) = (Arc::clone(&self.store), namespace.clone());
                let put = move || {
                    // A refused put takes its file along.
                    if !store.fits_quota(&namespace, writer.written())? {
                        store.collect_replaced(&namespace, writer.written())?;
                    }
                    store.put_large(&namespace, *writer, now, done)
                };
                blocking::elsewhere(put).await.unwrap_or(Err(StoreError::Busy))?;
                receiver.await.unwrap_or(Err(StoreError::Busy))?
            }
        };
        if outcome == ChangeResult::OverQuota {
            return Err(self.over_quota(namespace));
        }
        // These are the bytes that were hashed, unless another upload of the same was faster.
        if let Some(blob) = self.store.blob(namespace, &hash)? {
            self.set_verified(&blob);
        }
        Ok(())
    }
}

/// A large blob that is on its way, from its first byte on.
fn coming_answer(body: Body, hash: &IoHash, media: Media) -> Response<Body> {
    head_answer(hash, body.len(), media).map(|_| body)
}

/// What a HEAD tells of a blob.
fn head_answer(hash: &IoHash, len: u64, media: Media) -> Response<Body> {
    let mut response = describe(empty(StatusCode::OK), hash, media);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    response
}

/// The answer to a client that has the blob already.
fn unmodified(hash: &IoHash, media: Media) -> Response<Body> {
    describe(empty(StatusCode::NOT_MODIFIED), hash, media)
}

/// Adds the headers that every answer about a blob has.
fn describe(mut response: Response<Body>, hash: &IoHash, media: Media) -> Response<Body> {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::ETAG, tag_value(hash));
    response
}
