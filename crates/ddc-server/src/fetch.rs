//! Blobs from the origin of the data, and copies of them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hyper::{StatusCode, header};
use throng_ddc::api::RefName;
use throng_ddc::compressed::Decoder;
use throng_ddc::{Closure, Document, IoHash, Namespace, Resolution};
use throng_ddc_store::{Blob, Incoming, ObjectVersion, RefValue, Tier, TierError};
use tokio::sync::MutexGuard;

use crate::answer::{Problem, unverifiable};
use crate::blocking;
use crate::body::Body;
use crate::memory::SMALL_BYTES_MAX;
use crate::origin::{Closed, Flight, Located, Origin, Reach, Read};
use crate::service::Service;
use crate::source::{FetchedBody, OTHER_CONTENT, Source as _};
use crate::streaming::{Begun, StreamedBlob};
use crate::upload::{Received, Upload, verified};
use crate::upstream::{Form, Upstream, for_request, way};

/// A copy of this age is no proof any more that the object storage has the blob.
const CONFIRM_AGE_MS: u64 = 24 * 3600 * 1000;
/// Attachments of one object that are looked up at a time.
pub(crate) const LOOKUPS_MAX: usize = 32;

/// Bytes of an object that are read to see whether the object storage works.
const BEGIN_BYTES: u64 = 1 << 20;

/// Room in a namespace with a quota, until the copy that it is for is stored.
pub(crate) struct CopyRoom<'s> {
    service: &'s Service,
    taken: Option<(Namespace, u64)>,
}

impl Drop for CopyRoom<'_> {
    fn drop(&mut self) {
        let Some((namespace, len)) = self.taken.take() else { return };
        let mut coming = self.service.copies_coming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = coming.get_mut(&namespace) {
            *bytes -= len;
            if *bytes == 0 {
                coming.remove(&namespace);
            }
        }
    }
}

impl Service {
    pub(crate) fn tier(&self) -> Option<&Tier> {
        match self.origin() {
            Origin::Tier(tier) => Some(tier),
            _ => None,
        }
    }

    pub(crate) fn upstream(&self) -> Option<&Upstream> {
        match self.origin() {
            Origin::Upstream(upstream) => Some(upstream),
            _ => None,
        }
    }

    pub(crate) fn upstream_failures(&self) -> u64 {
        self.upstream().map_or(0, |upstream| upstream.failures.load(Ordering::Relaxed))
    }

    /// The object storage's answer; a problem if there is none.
    pub(crate) fn heard<T>(&self, said: Result<T, TierError>) -> Result<T, Problem> {
        let counters = &self.origin_counters;
        match said {
            Ok(value) => {
                if counters.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("the object storage answers again");
                }
                Ok(value)
            }
            Err(error) => {
                counters.failures.fetch_add(1, Ordering::Relaxed);
                if !counters.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "the object storage fails; requests that need it are answered with 503");
                }
                let title = match error {
                    TierError::Damaged(_) => "what the object storage holds under this name is damaged",
                    TierError::Contended(_) => "the ref keeps changing",
                    _ => "the object storage does not answer",
                };
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, title).with(header::RETRY_AFTER, "1"))
            }
        }
    }

    /// Notes how a read from the object storage ended.
    pub(crate) fn note_read(&self, read: Read, is_whole: bool) {
        let mut broken_off = self.origin_counters.broken_off.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*broken_off, is_whole) {
            (Some(_), true) => tracing::info!("objects of the object storage arrive again"),
            (None, false) => tracing::warn!(?read, "the object storage broke off; it counts as not ready"),
            _ => {}
        }
        *broken_off = (!is_whole).then_some(read);
    }

    /// Reports whether the object storage works: it answers, and what broke off last arrives.
    pub(crate) async fn is_tier_ready(&self, tier: &Tier) -> bool {
        if self.heard(tier.check().await).is_err() {
            return false;
        }
        let broken_off =
            self.origin_counters.broken_off.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(read) = broken_off else { return true };
        let arrives = match &read {
            Read::Ref(RefName { namespace, bucket, key }) => matches!(
                tier.reference(namespace, bucket, key).await,
                Ok(_) | Err(TierError::Damaged(_) | TierError::Contended(_))
            ),
            Read::Blob(namespace, hash) => match tier.blob(namespace, hash).await {
                Ok(None) => true,
                Ok(Some((incoming, _))) => begins(incoming).await,
                Err(_) => false,
            },
        };
        if arrives {
            self.note_read(read, true);
        }
        arrives
    }

    /// A blob, brought here if it is elsewhere.
    pub(crate) async fn find_blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Blob>, Problem> {
        let found = self.store.blob(namespace, hash)?;
        let hit = found.is_some();
        let found = match found {
            None if !matches!(self.origin(), Origin::Alone) => {
                Box::pin(self.find_elsewhere(namespace, hash)).await?
            }
            found => found,
        };
        let counter = if hit { &self.counters.blob_hits } else { &self.counters.blob_misses };
        counter.fetch_add(1, Ordering::Relaxed);
        if found.is_some() {
            self.note_use(hash);
        }
        Ok(found)
    }

    /// A blob that is not here, brought here or into memory.
    async fn find_elsewhere(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<Blob>, Problem> {
        match (self.fetch_blob(namespace, hash, None).await, self.upstream()) {
            (Err(problem), Some(upstream)) => {
                self.bring_into_memory(upstream, namespace, hash, &problem.title).await
            }
            (fetched, _) => fetched,
        }
    }

    /// Size of a blob, wherever it is.
    pub(crate) async fn blob_len(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<u64>, Problem> {
        if let Some(blob) = self.store.blob(namespace, hash)? {
            return Ok(Some(blob.len()));
        }
        match self.origin() {
            Origin::Tier(tier) => self.heard(tier.blob_len(namespace, hash).await),
            // The head of the answer says it. A body that cannot be kept need not be received.
            Origin::Upstream(upstream) if self.keeps_nothing(namespace) => {
                Ok(upstream.blob(namespace, hash).await.map(|incoming| incoming.len))
            }
            _ => Ok(self.find_blob(namespace, hash).await?.map(|blob| blob.len())),
        }
    }

    /// The bytes of a ref's object. `None` if it is a blob that is gone.
    pub(crate) async fn object_of(
        &self,
        namespace: &Namespace,
        value: &RefValue,
    ) -> Result<Option<Bytes>, Problem> {
        match &value.inline {
            Some(inline) => Ok(Some(inline.clone())),
            None => self.read_blob(namespace, &value.object).await,
        }
    }

    /// A whole blob in memory.
    pub(crate) async fn read_blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Bytes>, Problem> {
        let Some(blob) = self.find_blob(namespace, hash).await? else { return Ok(None) };
        self.checked_bytes(namespace, hash, &blob).await
    }

    /// The blob of a content id, or else the one with this hash, if it can be had.
    pub(crate) async fn locate(
        &self,
        namespace: &Namespace,
        id: &IoHash,
        reach: Reach,
    ) -> Result<Option<IoHash>, Problem> {
        Ok(self.locate_form(namespace, id, reach).await?.map(|located| located.blob))
    }

    /// The same, and whether its content was verified.
    pub(crate) async fn locate_form(
        &self,
        namespace: &Namespace,
        id: &IoHash,
        reach: Reach,
    ) -> Result<Option<Located>, Problem> {
        let here = match self.store.best_form(namespace, id)? {
            Some((blob, verified)) => Some(Located { blob, verified }),
            None => self.store.has_blob(namespace, id)?.then(|| Located::raw(id)),
        };
        match self.origin() {
            Origin::Alone => Ok(here),
            _ => Box::pin(self.locate_elsewhere(namespace, id, reach, here)).await,
        }
    }

    /// The same, with the origin, of what may be here.
    async fn locate_elsewhere(
        &self,
        namespace: &Namespace,
        id: &IoHash,
        reach: Reach,
        here: Option<Located>,
    ) -> Result<Option<Located>, Problem> {
        // The folder may have a copy of an unverified form only. It is served without the storage.
        if let (Some(Located { verified: false, .. }), Some(tier)) = (here, self.tier())
            && let Ok(Some(shared)) = self.shared_form(tier, namespace, id, true).await
        {
            return Ok(Some(shared));
        }
        if let (Some(located), Reach::Own) = (here, reach) {
            self.confirm(namespace, id, located).await?;
        }
        if here.is_some() {
            return Ok(here);
        }
        match self.origin() {
            Origin::Alone => Ok(None),
            Origin::Tier(tier) => match self.shared_form(tier, namespace, id, false).await? {
                None => Ok(self.heard(tier.blob_len(namespace, id).await)?.map(|_| Located::raw(id))),
                form => Ok(form),
            },
            Origin::Upstream(_) if reach == Reach::Own => Ok(None),
            Origin::Upstream(upstream) => self.fetch_form(upstream, namespace, id).await,
        }
    }

    /// The best form of a content id that the object storage has, or the best verified one.
    async fn shared_form(
        &self,
        tier: &Tier,
        namespace: &Namespace,
        id: &IoHash,
        must_be_verified: bool,
    ) -> Result<Option<Located>, Problem> {
        let forms = self.heard(tier.forms(namespace, id).await)?;
        for (_, blob, verified) in forms.into_iter().filter(|form| form.2 || !must_be_verified) {
            if self.heard(tier.blob_len(namespace, &blob).await)?.is_some() {
                return Ok(Some(Located { blob, verified }));
            }
        }
        Ok(None)
    }

    /// Puts an old copy, and its name as a form of `id`, back where they are shared, if they are
    /// there no more: a rule of the bucket may have removed them, and what relies on them is about
    /// to be shared.
    async fn confirm(&self, namespace: &Namespace, id: &IoHash, located: Located) -> Result<(), Problem> {
        let Located { blob: hash, verified } = located;
        let (Some(tier), Some(copy)) = (self.tier(), self.store.blob(namespace, &hash)?) else {
            return Ok(());
        };
        let age_ms = self.now().unix_ms().saturating_sub(copy.put().unix_ms());
        if age_ms < CONFIRM_AGE_MS {
            return Ok(());
        }
        if self.heard(tier.blob_len(namespace, &hash).await)?.is_none() {
            self.share_copy(tier, namespace, &hash, &copy).await?;
        }
        if hash == *id {
            return Ok(());
        }
        let forms = self.heard(tier.forms(namespace, id).await)?;
        if !forms.iter().any(|(_, form, is_verified)| *form == hash && (*is_verified || !verified)) {
            self.heard(tier.put_form(namespace, id, copy.len(), (&hash, verified)).await)?;
        }
        Ok(())
    }

    /// Puts a copy where it is shared. Others will rely on it, so it is hashed first.
    pub(crate) async fn share_copy(
        &self,
        tier: &Tier,
        namespace: &Namespace,
        hash: &IoHash,
        copy: &Blob,
    ) -> Result<(), Problem> {
        if blocking::in_place(|| copy.hash())? != *hash {
            self.store.discard_damaged(namespace, hash, copy);
            return Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "a copy was damaged and is gone; try again",
            )
            .with(header::RETRY_AFTER, "1"));
        }
        self.heard(tier.put_large(namespace, hash, copy).await)
    }

    /// Walks everything that an object reaches.
    pub(crate) async fn close(
        &self,
        namespace: &Namespace,
        object: &[u8],
        reach: Reach,
    ) -> Result<Closed, Problem> {
        let document = Document::parse(object).map_err(Problem::bad)?;
        if self.tier().is_none() && (reach == Reach::Own || self.upstream().is_none()) {
            let (closure, blobs) = self.store.close(namespace, &document)?;
            return Ok(Closed { missing: closure.missing().to_vec(), blobs });
        }
        Box::pin(self.close_elsewhere(namespace, &document, reach)).await
    }

    /// The same, with the origin.
    async fn close_elsewhere(
        &self,
        namespace: &Namespace,
        document: &Document<'_>,
        reach: Reach,
    ) -> Result<Closed, Problem> {
        let mut closure = Closure::new(document);
        let mut located = self.locate_all(namespace, document, reach).await?;
        while let Some(attachment) = closure.next() {
            let hash = attachment.hash;
            if !attachment.is_object() {
                let blob = located.remove(&hash).flatten();
                closure.resolve(blob.map_or(Resolution::Missing, Resolution::Blob));
                continue;
            }
            match self.read_blob(namespace, &hash).await? {
                Some(bytes) => {
                    if let Ok(document) = Document::parse(&bytes) {
                        located.extend(self.locate_all(namespace, &document, reach).await?);
                    }
                    closure.resolve(Resolution::Object(&bytes));
                }
                None => closure.resolve(Resolution::Missing),
            }
        }
        let blobs = closure.blobs().iter().chain(closure.objects()).copied().collect();
        Ok(Closed { missing: closure.missing().to_vec(), blobs })
    }

    /// Looks up the binary attachments of one object, many at a time.
    async fn locate_all(
        &self,
        namespace: &Namespace,
        document: &Document<'_>,
        reach: Reach,
    ) -> Result<HashMap<IoHash, Option<IoHash>>, Problem> {
        let binary = document.attachments().into_iter().filter(|attachment| !attachment.is_object());
        let hashes: Vec<IoHash> = binary.map(|attachment| attachment.hash).collect();
        stream::iter(hashes)
            .map(|hash| async move { Ok((hash, self.locate(namespace, &hash, reach).await?)) })
            .buffer_unordered(LOOKUPS_MAX)
            .try_collect()
            .await
    }

    /// Brings a blob here, from which it can be read even if it cannot be kept. `streamed` learns
    /// of its progress if it is large.
    ///
    /// # Errors
    /// If the folder takes nothing, or not as much. It may be at an upstream then.
    pub(crate) async fn fetch_blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        streamed: Option<&StreamedBlob>,
    ) -> Result<Option<Blob>, Problem> {
        if matches!(self.origin(), Origin::Alone) {
            return Ok(None);
        }
        let flight = self.join(namespace, hash);
        let _turn = turn_of(&flight).await;
        if let Some(blob) = self.store.blob(namespace, hash)? {
            return Ok(Some(blob));
        }
        let Some(received) = self.bring(namespace, hash, streamed).await? else { return Ok(None) };
        let brought = received.blob();
        if let Err(problem) = self.keep_fetched(namespace, received).await {
            if self.upstream().is_none() || brought.is_none() {
                return Err(problem);
            }
            self.count_passed(namespace, &problem.title);
            return Ok(brought);
        }
        // An eviction may have removed it again.
        Ok(self.store.blob(namespace, hash)?.or(brought))
    }

    /// The flight to bring something here, unless the request came through another cache: the
    /// answer that others wait for may depend on this one.
    fn join(&self, namespace: &Namespace, hash: &IoHash) -> Option<Flight<'_>> {
        way().is_none().then(|| self.flights.join(namespace, hash))
    }

    /// Receives a blob from elsewhere, and keeps it nowhere.
    async fn bring(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        streamed: Option<&StreamedBlob>,
    ) -> Result<Option<Received>, Problem> {
        let incoming = match self.origin() {
            Origin::Alone => None,
            Origin::Tier(tier) => self.heard(tier.blob(namespace, hash).await)?,
            Origin::Upstream(upstream) => {
                self.store.check_room(namespace, 0)?;
                let incoming = upstream.blob(namespace, hash).await;
                if let Some(incoming) = &incoming {
                    // A folder without room for it must not break the answer off at its end.
                    self.store.check_room(namespace, incoming.len)?;
                }
                incoming.map(|incoming| (incoming, ObjectVersion::default()))
            }
        };
        let Some((incoming, version)) = incoming else { return Ok(None) };
        let received = self.receive_from(incoming, streamed, None).await;
        let Some(mut received) = self.arrived(namespace, hash, received)? else { return Ok(None) };
        if received.hash() != *hash {
            self.counters.add_damaged();
            if let Some(upstream) = self.upstream() {
                upstream.blob_failed(namespace, hash, &OTHER_CONTENT);
            }
            if let Some(streamed) = streamed {
                streamed.break_off();
            }
            tracing::error!(%namespace, %hash, "a blob came with another hash and was not kept");
            let Some(tier) = self.tier() else { return Ok(None) };
            // Bits may have flipped on the way: only what arrives twice alike is damaged there.
            let again = self.heard(tier.blob(namespace, hash).await)?;
            let Some((incoming, seen)) = again.filter(|(_, seen)| *seen == version) else { return Ok(None) };
            let again = self.receive_from(incoming, None, None).await;
            let Some(again) = self.arrived(namespace, hash, again)? else { return Ok(None) };
            // A proxy that answers in place of the storage does so twice, but seldom with the size
            // that the storage names.
            let len = self.heard(tier.blob_len(namespace, hash).await)?;
            if again.hash() == received.hash() && len.is_none_or(|len| len == again.len()) {
                // An object under this name would keep clients from uploading the blob again.
                self.heard(tier.discard_blob(namespace, hash, &seen).await)?;
            }
            if again.hash() != *hash {
                return Ok(None);
            }
            received = again;
        }
        self.count_fetched(&received);
        Ok(Some(received))
    }

    /// Brings what an upstream has for a content id. The blob that it is.
    async fn fetch_form(
        &self,
        upstream: &Upstream,
        namespace: &Namespace,
        id: &IoHash,
    ) -> Result<Option<Located>, Problem> {
        let flight = self.join(namespace, id);
        let _turn = turn_of(&flight).await;
        if let Some((blob, verified)) = self.store.best_form(namespace, id)? {
            return Ok(Some(Located { blob, verified }));
        }
        let incoming = match upstream.form(namespace, id).await {
            None => return Ok(None),
            // It is asked for again by its hash, if a client wants it.
            Some(Form::Raw(incoming)) if self.store.check_room(namespace, incoming.len).is_err() => {
                return Ok(Some(Located::raw(id)));
            }
            Some(Form::Compressed(incoming, hash))
                if self.store.check_room(namespace, incoming.len).is_err() =>
            {
                let hash = hash.filter(|_| self.rules_of(namespace).unverified);
                return Ok(hash.map(|blob| Located { blob, verified: false }));
            }
            Some(Form::Raw(incoming)) => {
                let received = match self.receive_from(incoming, None, None).await {
                    Err(problem) if problem.status.is_server_error() => return Err(problem),
                    received => received.map_err(|problem| problem.title),
                };
                let checked = received.and_then(|received| match received.hash() == *id {
                    true => Ok(received),
                    false => Err(OTHER_CONTENT.to_owned()),
                });
                let received = match checked {
                    Ok(received) => received,
                    Err(why) => {
                        self.counters.add_damaged();
                        upstream.form_failed(namespace, id, &why);
                        return Ok(None);
                    }
                };
                self.count_fetched(&received);
                if let Err(problem) = self.keep_fetched(namespace, received).await {
                    self.count_passed(namespace, &problem.title);
                }
                return Ok(Some(Located::raw(id)));
            }
            Some(Form::Compressed(incoming, _)) => incoming,
        };
        let mut decoder = self.decoder();
        let received = self.receive_from(incoming, None, Some(&mut decoder)).await;
        // An answer that does not decode, or decodes to other content, counts as missing.
        let usable = received.and_then(|received| {
            let found = verified(decoder)?;
            match found.header.raw_hash == *id {
                true if found.hash_checked || self.rules_of(namespace).unverified => Ok((received, found)),
                true => Err(unverifiable()),
                false => Err(Problem::bad(OTHER_CONTENT)),
            }
        });
        let (received, found) = match usable {
            Ok(usable) => usable,
            Err(problem) if problem.status.is_server_error() => return Err(problem),
            Err(problem) => {
                self.counters.add_damaged();
                upstream.form_failed(namespace, id, &problem.title);
                return Ok(None);
            }
        };
        let (hash, len) = (received.hash(), received.len());
        self.count_fetched(&received);
        let form = (len, hash, found.hash_checked);
        let kept = match self.keep_fetched(namespace, received).await {
            Ok(()) => self.commit(|done| self.store.put_content(namespace, *id, form, done)).await,
            Err(problem) => {
                self.count_passed(namespace, &problem.title);
                return Ok(Some(Located { blob: hash, verified: found.hash_checked }));
            }
        };
        if let Err(error) = kept {
            self.count_passed(namespace, &error.to_string());
        }
        Ok(Some(Located { blob: hash, verified: found.hash_checked }))
    }

    async fn receive_from(
        &self,
        incoming: Incoming,
        streamed: Option<&StreamedBlob>,
        decoder: Option<&mut Decoder>,
    ) -> Result<Received, Problem> {
        let len = incoming.len;
        let (source, limit) = (Box::new(FetchedBody::new(incoming)), self.rules().blob_bytes_max);
        let mut upload = Upload::new(source, limit, Some(&self.memory))?;
        if let Some(streamed) = streamed.filter(|_| len > SMALL_BYTES_MAX as u64) {
            // A disk that fills later must not break off answers that an upstream can give without
            // a copy here.
            let file = match self.upstream() {
                Some(_) => blocking::in_place(|| self.store.begin_large_of(len))?,
                None => self.store.begin_large()?,
            };
            upload = upload.shown_to(streamed, file);
            streamed.begin(len);
        }
        upload.receive(&self.store, None, decoder).await
    }

    /// Outcome of a transfer from elsewhere. One that an upstream broke off, or that is too large
    /// for this cache, is a miss.
    pub(crate) fn arrived(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        received: Result<Received, Problem>,
    ) -> Result<Option<Received>, Problem> {
        let read = || Read::Blob(namespace.clone(), *hash);
        let problem = match received {
            Ok(received) => {
                if self.tier().is_some() {
                    self.note_read(read(), true);
                }
                return Ok(Some(received));
            }
            Err(problem) if problem.status.is_server_error() => return Err(problem),
            Err(problem) => problem,
        };
        if problem.status == StatusCode::PAYLOAD_TOO_LARGE {
            tracing::warn!(why = problem.title, "a blob from elsewhere is larger than `ddc.blob_bytes_max`");
            return Ok(None);
        }
        match self.upstream() {
            Some(upstream) => {
                upstream.blob_failed(namespace, hash, &problem.title);
                Ok(None)
            }
            // The client did nothing wrong.
            None => {
                self.origin_counters.failures.fetch_add(1, Ordering::Relaxed);
                self.note_read(read(), false);
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the transfer from elsewhere broke off")
                    .with(header::RETRY_AFTER, "1"))
            }
        }
    }

    fn count_fetched(&self, received: &Received) {
        self.origin_counters.fetched.fetch_add(1, Ordering::Relaxed);
        self.origin_counters.fetched_bytes.fetch_add(received.len(), Ordering::Relaxed);
    }

    /// Puts what was received where it is shared, if it is.
    pub(crate) async fn share(&self, namespace: &Namespace, received: &Received) -> Result<(), Problem> {
        let Some(tier) = self.tier() else { return Ok(()) };
        let hash = received.hash();
        match received {
            Received::Small(bytes, _) => self.heard(tier.put_blob(namespace, &hash, bytes.clone()).await),
            Received::Large(writer) => self.heard(tier.put_large(namespace, &hash, &writer.blob()).await),
            Received::Known(..) => Ok(()),
        }
    }

    /// Notes that a copy was used, for the choice of copies to remove.
    pub(crate) fn note_use(&self, hash: &IoHash) {
        if self.tier().is_none() {
            return;
        }
        let now = self.now();
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if uses.len() >= crate::service::USES_MAX {
            uses.clear();
        }
        uses.insert(*hash, now);
    }

    /// Stores what the upstream or the object storage gave.
    pub(crate) async fn keep_fetched(
        &self,
        namespace: &Namespace,
        received: Received,
    ) -> Result<(), Problem> {
        let _room = self.room_for_copy(namespace, received.len())?;
        self.keep_here(namespace, received).await
    }

    /// Takes room for a copy that is to be stored. Refuses it in the half of a quota that is left
    /// to uploads.
    pub(crate) fn room_for_copy(&self, namespace: &Namespace, len: u64) -> Result<CopyRoom<'_>, Problem> {
        if self.upstream().is_none() || self.store.quota(namespace).is_none() {
            return Ok(CopyRoom { service: self, taken: None });
        }
        let mut coming = self.copies_coming.lock().unwrap_or_else(PoisonError::into_inner);
        let others = coming.get(namespace).copied().unwrap_or(0);
        if !self.store.fits_copy(namespace, others + len)? {
            let title =
                format!("half of the quota of the namespace {namespace} is used: it keeps no more copies");
            return Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, title));
        }
        *coming.entry(namespace.clone()).or_default() += len;
        Ok(CopyRoom { service: self, taken: Some((namespace.clone(), len)) })
    }
}

/// A blob that can be answered with.
pub(crate) enum Found {
    /// It is here, or in memory.
    Here(Blob),
    /// It is on its way, and large: a body with all of it.
    Coming(Body),
}

impl Service {
    /// A blob, brought here if it is elsewhere; a large one is on its way when this returns, a
    /// small one here.
    pub(crate) async fn find_or_begin(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Found>, Problem> {
        if matches!(self.origin(), Origin::Alone) || self.store.has_blob(namespace, hash)? {
            return Ok(self.find_blob(namespace, hash).await?.map(Found::Here));
        }
        self.counters.blob_misses.fetch_add(1, Ordering::Relaxed);
        Box::pin(self.begin_or_pass_on(namespace, hash)).await
    }

    /// The same for a blob that is elsewhere.
    async fn begin_or_pass_on(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Found>, Problem> {
        let found = match (self.begin(namespace, hash).await, self.upstream()) {
            (Ok((streamed, Begun::Large(len))), _) => {
                let mut body = Body::default();
                body.push_streamed(streamed, len);
                Some(Found::Coming(body))
            }
            (Ok((_, Begun::Over(brought))), _) => brought.map(Found::Here),
            (Err(problem), Some(upstream)) => self.pass_on(upstream, namespace, hash, &problem.title).await?,
            (Err(problem), None) => return Err(problem),
        };
        if found.is_some() {
            self.note_use(hash);
        }
        Ok(found)
    }

    /// Begins to bring a blob, unless that began already for a request that this one may wait for.
    /// Waits until it is known to be large, or over.
    async fn begin(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<(Arc<StreamedBlob>, Begun), Problem> {
        let wanted = (namespace.clone(), *hash);
        let way = way();
        let is_shared = way.is_none();
        let (streamed, first) = if !is_shared {
            (Arc::default(), true)
        } else {
            let mut all = self.streamed.lock().unwrap_or_else(PoisonError::into_inner);
            let first = !all.contains_key(&wanted);
            (Arc::clone(all.entry(wanted.clone()).or_default()), first)
        };
        if first {
            // It goes on if the client leaves: the next one will want it.
            let (service, streamed) = (Arc::clone(self), Arc::clone(&streamed));
            tokio::spawn(for_request(way, async move {
                let (namespace, hash) = &wanted;
                let brought = service.fetch_blob(namespace, hash, Some(&streamed)).await;
                if is_shared {
                    service.streamed.lock().unwrap_or_else(PoisonError::into_inner).remove(&wanted);
                }
                streamed.end(brought.map_err(|problem| (problem.status, problem.title)));
            }));
        }
        let begun = poll_fn(|context| streamed.poll_begun(context)).await;
        let begun =
            begun.map_err(|(status, title)| Problem::new(status, title).with(header::RETRY_AFTER, "1"))?;
        Ok((streamed, begun))
    }
}

/// The turn of a flight.
async fn turn_of<'f>(flight: &'f Option<Flight<'_>>) -> Option<MutexGuard<'f, ()>> {
    match flight {
        Some(flight) => Some(flight.turn().await),
        None => None,
    }
}

/// Reports whether the first bytes of an object arrive.
async fn begins(incoming: Incoming) -> bool {
    let mut body = FetchedBody::new(incoming);
    let mut left = BEGIN_BYTES;
    while left > 0 {
        match poll_fn(|context| body.poll_piece(context)).await {
            Ok(Some(piece)) => left = left.saturating_sub(piece.len() as u64),
            Ok(None) => break,
            Err(_) => return false,
        }
    }
    true
}
