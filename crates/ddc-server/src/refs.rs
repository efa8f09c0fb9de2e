//! Refs: put, get, finalise, delete.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use throng_ddc::api::{Media, RefName, negotiate, query_values};
use throng_ddc::compressed::Header;
use throng_ddc::package::{Entry, Flags, HEAD_BYTES, Table};
use throng_ddc::{Document, IoHash, Namespace, Style, Value};
use throng_ddc_store::{ChangeResult, PutRef, RefValue};
use tokio::time::Instant;

use crate::answer::{self, Answer, Problem, empty, object, reply};
use crate::blocking;
use crate::body::Body;
use crate::entry::CONTENTS;
use crate::headers::{ALLOW_OVERWRITE, IO_HASH, LAST_ACCESS};
use crate::memory::{FREE_BYTES, Held, MEMORY_WAIT, SMALL_BYTES_MAX};
use crate::origin::{Closed, Reach};
use crate::preconditions::{Preconditions, tag_value};
use crate::service::{ApiRequest, Service, hash_value, json};
use crate::upload::Received;

/// Attempts to store or finalise a ref that changes meanwhile, or whose blobs are deleted.
const ATTEMPTS: usize = 4;
/// Forms in which a ref is given, the preferred one first.
const FORMS: [Media; 5] = [Media::CompactBinary, Media::Json, Media::Octets, Media::Inline, Media::Package];

/// An object with the hash of its bytes.
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) hash: IoHash,
}

impl Object {
    pub(crate) fn of(bytes: Bytes) -> Object {
        Object { hash: IoHash::of(&bytes), bytes }
    }
}

impl Service {
    // --- Put

    pub(crate) async fn put_ref(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        name: &RefName,
        suffix: Option<Media>,
    ) -> Answer {
        check_bucket(name)?;
        let kinds = [Media::CompactBinary, Media::Octets, Media::Package, Media::Json];
        let kind = request.content_type(&kinds)?;
        let claimed = match request.header(IO_HASH).map(str::trim).filter(|text| !text.is_empty()) {
            Some(text) => Some(text.parse::<IoHash>().map_err(Problem::bad)?),
            None if kind == Media::Package => None,
            None => return Err(Problem::bad("the header X-Jupiter-IoHash is missing")),
        };
        let overwrite = self.rules_of(&name.namespace).overwrite_refs
            || request.header(ALLOW_OVERWRITE).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let when = request.preconditions();
        self.permit_upload(name, &when).await?;
        let object = match kind {
            Media::CompactBinary => {
                request.upload.limit(self.rules().object_bytes_max)?;
                let object = Object::of(request.upload.all().await?);
                if claimed != Some(object.hash) {
                    return Err(Problem::hash_mismatch("the object does not hash to X-Jupiter-IoHash"));
                }
                object
            }
            Media::Package => {
                let object = Object::of(Box::pin(self.receive_package(request, &name.namespace)).await?);
                if claimed.is_some_and(|claimed| claimed != object.hash) {
                    return Err(Problem::hash_mismatch("the root object does not hash to X-Jupiter-IoHash"));
                }
                object
            }
            _ => {
                let received = self.receive_blob(request, &name.namespace, claimed).await?;
                let (hash, len) = (received.hash(), received.len());
                if claimed != Some(hash) {
                    return Err(Problem::hash_mismatch("the body does not hash to X-Jupiter-IoHash"));
                }
                self.keep(&name.namespace, received).await?;
                self.fill_fallback(request, &name.namespace, &hash, false).await?;
                let value = Value::object([
                    ("RawHash", Value::BinaryAttachment(hash)),
                    ("RawSize", Value::Integer(len)),
                ]);
                Object::of(value.encode(Style::Separate).into())
            }
        };
        match self.store_ref(name, object, overwrite, &when).await? {
            Ok(needs) => Ok(answer::needs(needs, request.answer_media(suffix))),
            Err(existing) => {
                let mut response = reply(StatusCode::CONFLICT, Media::CompactBinary.name(), existing);
                response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                Ok(response)
            }
        }
    }

    /// Stores an object under a ref. Gives what is missing, or the object that is in the way.
    pub(crate) async fn store_ref(
        &self,
        name: &RefName,
        Object { bytes, hash }: Object,
        overwrite: bool,
        when: &Preconditions,
    ) -> Result<Result<Vec<IoHash>, Bytes>, Problem> {
        let inline = bytes.len() <= self.store.inline_bytes_max();
        if !inline {
            // Checked before anything is stored.
            Document::parse(&bytes).map_err(Problem::bad)?;
        }
        let mut has_made_room = false;
        // An eviction may take what was stored a moment ago. What one attempt relied on is held in
        // the next ones, so that only deletes by clients can make more of them necessary.
        let mut holds = Vec::new();
        let mut was_lost = false;
        for _ in 0..ATTEMPTS {
            if !inline {
                self.keep(&name.namespace, Received::Small(bytes.clone(), hash)).await?;
            }
            let closed = self.close(&name.namespace, &bytes, Reach::Own).await?;
            let (needs, mut relies_on) = (closed.missing, closed.blobs);
            if !inline {
                relies_on.push(hash);
            }
            if was_lost {
                holds.push(self.store.hold(&name.namespace, &relies_on));
            }
            let put = PutRef {
                namespace: name.namespace.clone(),
                bucket: name.bucket.clone(),
                key: name.key,
                value: RefValue {
                    object: hash,
                    finalised: needs.is_empty(),
                    put: self.now(),
                    adopted: false,
                    inline: inline.then(|| bytes.clone()),
                },
                overwrite,
                // Stored blobs stay until the rest has come and the ref is finalised.
                relies_on,
            };
            match self.put_reference(name, put, when).await? {
                ChangeResult::Lost => was_lost = true,
                ChangeResult::Conflict(existing) => {
                    let object = self.object_of(&name.namespace, &existing).await?;
                    return Ok(Err(object.unwrap_or_default()));
                }
                ChangeResult::OverQuota if has_made_room => return Err(self.over_quota(&name.namespace)),
                ChangeResult::OverQuota => {
                    Box::pin(self.drop_copies(&name.namespace, bytes.len() as u64)).await?;
                    self.make_room(&name.namespace, bytes.len() as u64).await?;
                    has_made_room = true;
                }
                ChangeResult::Done | ChangeResult::Unchanged => return Ok(Ok(needs)),
            }
        }
        Err(keeps_changing())
    }

    /// Stores the attachments of a package as they arrive. Gives the root object.
    async fn receive_package(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        namespace: &Namespace,
    ) -> Result<Bytes, Problem> {
        request.upload.limit(self.rules().package_bytes_max)?;
        let head = request.upload.exactly(HEAD_BYTES).await?;
        let table_bytes = Table::bytes_needed(&head).map_err(Problem::bad)?;
        let rest = request.upload.exactly(table_bytes - HEAD_BYTES).await?;
        let table = Table::read(&[head, rest].concat()).map_err(Problem::bad)?;
        if let (Some(declared), Some(total)) = (request.upload.declared(), table.total_bytes())
            && total > self.rules().package_bytes_max.max(declared)
        {
            return Err(Problem::bad("the package is longer than its body"));
        }
        if table.entries.iter().skip(1).any(|entry| entry.flags.has(Flags::ERROR)) {
            return Err(Problem::bad("an attachment of the package is an error"));
        }
        let mut root = Bytes::new();
        for (index, entry) in table.entries.iter().enumerate() {
            if index == 0 {
                root = self.receive_root(request, entry).await?;
            } else if entry.flags.has(Flags::COMPRESSED) {
                let mut decoder = self.decoder();
                let received =
                    request.upload.receive(&self.store, Some(entry.size), Some(&mut decoder)).await?;
                self.keep_compressed(namespace, received, decoder, Some(entry.hash)).await?;
                self.fill_fallback(request, namespace, &entry.hash, true).await?;
            } else {
                let received = request.upload.receive(&self.store, Some(entry.size), None).await?;
                if received.hash() != entry.hash {
                    return Err(Problem::hash_mismatch(format!("attachment {index} does not have its hash")));
                }
                self.keep(namespace, received).await?;
                self.fill_fallback(request, namespace, &entry.hash, false).await?;
            }
        }
        if !request.upload.at_end().await? {
            return Err(Problem::bad("bytes follow the last payload of the package"));
        }
        Ok(root)
    }

    async fn receive_root(&self, request: &mut ApiRequest<'_>, entry: &Entry) -> Result<Bytes, Problem> {
        if entry.size > self.rules().object_bytes_max {
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the root object is too large"));
        }
        let stored = request.upload.exactly(entry.size as usize).await?;
        let root = if entry.flags.has(Flags::COMPRESSED) {
            let rules = self.rules();
            let raw_size = Header::read(&stored).map_err(Problem::bad)?.raw_size;
            request.upload.hold(raw_size.min(rules.object_bytes_max)).await?;
            let raw = blocking::in_place(|| {
                throng_ddc::compressed::decompress(&stored, rules.object_bytes_max, rules.oodle.clone())
            });
            Bytes::from(
                raw.map_err(Problem::bad)?.ok_or_else(|| Problem::bad("the root cannot be decompressed"))?,
            )
        } else {
            stored
        };
        if IoHash::of(&root) != entry.hash {
            return Err(Problem::hash_mismatch("the root object does not have its hash"));
        }
        Ok(root)
    }

    pub(crate) async fn finalise(
        &self,
        request: &ApiRequest<'_>,
        name: &RefName,
        hash: IoHash,
        suffix: Option<Media>,
    ) -> Answer {
        let mut holds = Vec::new();
        for _ in 0..ATTEMPTS {
            let value = self.own_reference(name).await?.ok_or_else(|| Problem::missing("no such ref"))?;
            if value.object != hash {
                return Err(Problem::bad(format!("the ref holds the object {:X}", value.object)));
            }
            let bytes = self.object_of(&name.namespace, &value).await?;
            let bytes = bytes.ok_or_else(object_gone)?;
            let Closed { missing, blobs: mut relies_on } =
                self.close(&name.namespace, &bytes, Reach::Own).await?;
            if !missing.is_empty() {
                return Ok(answer::needs(missing, request.answer_media(suffix)));
            }
            if value.inline.is_none() {
                relies_on.push(hash);
            }
            // A ref that changed meanwhile is looked at again.
            match self.finalise_reference(name, hash, &relies_on).await? {
                ChangeResult::Done => return Ok(answer::needs(Vec::new(), request.answer_media(suffix))),
                ChangeResult::Lost => holds.push(self.store.hold(&name.namespace, &relies_on)),
                _ => {}
            }
        }
        Err(keeps_changing())
    }

    // --- Get

    /// A finalised ref.
    pub(crate) async fn finalised_value(&self, name: &RefName) -> Result<RefValue, Problem> {
        let value = match self.reference(name).await? {
            None => {
                self.counters.ref_misses.fetch_add(1, Ordering::Relaxed);
                return Err(Problem::missing("no such ref"));
            }
            Some(value) if !value.finalised => {
                return Err(Problem::bad(
                    "the ref is not finalised: something it refers to was never uploaded",
                ));
            }
            Some(value) => value,
        };
        self.counters.ref_hits.fetch_add(1, Ordering::Relaxed);
        Ok(value)
    }

    /// A finalised ref and its object.
    pub(crate) async fn finalised(&self, name: &RefName) -> Result<(RefValue, Bytes), Problem> {
        let value = self.finalised_value(name).await?;
        let bytes = self.object_of(&name.namespace, &value).await?.ok_or_else(object_gone)?;
        Ok((value, bytes))
    }

    /// Takes memory for a ref's object before it is read. [`checked_bytes`](Service::checked_bytes)
    /// takes that of a large one.
    async fn hold_object(
        &self,
        request: &ApiRequest<'_>,
        name: &RefName,
        value: &RefValue,
    ) -> Result<Option<Held>, Problem> {
        let len = match &value.inline {
            Some(inline) => inline.len(),
            None => {
                let blob = self.find_blob(&name.namespace, &value.object).await?;
                blob.map_or(0, |blob| usize::try_from(blob.len()).unwrap_or(usize::MAX))
            }
        };
        if len <= FREE_BYTES || len > SMALL_BYTES_MAX {
            return Ok(None);
        }
        let (address, until) = (request.upload.address(), Instant::now() + MEMORY_WAIT);
        Ok(Some(self.memory.take_for(address, len as u64, until).await?))
    }

    pub(crate) async fn get_ref(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        name: &RefName,
        suffix: Option<Media>,
    ) -> Answer {
        let media = suffix.or_else(|| negotiate(request.accept(), &FORMS));
        let media =
            media.ok_or_else(|| Problem::new(StatusCode::NOT_ACCEPTABLE, "a ref has no such form"))?;
        let value = self.finalised_value(name).await?;
        let held = self.hold_object(request, name, &value).await?;
        let bytes = self.object_of(&name.namespace, &value).await?.ok_or_else(object_gone)?;
        if request.preconditions().is_unmodified(&value.object)? {
            self.touch(name);
            return Ok(unmodified(&value.object));
        }
        let used = self.touch(name).unwrap_or(value.put);
        let object = value.object;
        let mut response = self.form_of(request, &name.namespace, media, object, bytes, false).await?;
        self.keep_young(name, &value);
        held.into_iter().for_each(|held| response.body_mut().hold(held));
        let headers = response.headers_mut();
        headers.extend(HeaderValue::try_from(used.month_first()).ok().map(|used| (LAST_ACCESS, used)));
        Ok(response)
    }

    pub(crate) async fn head_ref(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        name: &RefName,
        suffix: Option<Media>,
    ) -> Answer {
        let found = self.reference(name).await?;
        let value = found.filter(|value| value.finalised).ok_or_else(|| Problem::missing("no such ref"))?;
        let _held = self.hold_object(request, name, &value).await?;
        let bytes = self.object_of(&name.namespace, &value).await?.ok_or_else(object_gone)?;
        if !self.close(&name.namespace, &bytes, Reach::All).await?.missing.is_empty() {
            return Err(Problem::missing("something that the ref refers to is gone"));
        }
        if request.preconditions().is_unmodified(&value.object)? {
            return Ok(unmodified(&value.object));
        }
        // A client that accepts no form at all asks only whether the ref is there. The length of
        // another form is known once it is made.
        let media = suffix.or_else(|| negotiate(request.accept(), &FORMS)).unwrap_or(Media::CompactBinary);
        self.form_of(request, &name.namespace, media, value.object, bytes, true).await
    }

    /// Reports whether everything that a ref reaches is stored.
    pub(crate) async fn is_complete(&self, namespace: &Namespace, value: &RefValue) -> Result<bool, Problem> {
        let Some(bytes) = self.object_of(namespace, value).await? else { return Ok(false) };
        Ok(self.close(namespace, &bytes, Reach::All).await?.missing.is_empty())
    }

    pub(crate) async fn metadata(&self, name: &RefName) -> Answer {
        use base64::Engine as _;
        let value = self.reference(name).await?.ok_or_else(|| Problem::missing("no such ref"))?;
        let mut fields = serde_json::json!({
            "ns": name.namespace.as_str(),
            "bucket": name.bucket.as_str(),
            "name": name.key.as_str(),
            "payloadIdentifier": format!("{:X}", value.object),
            "lastAccess": value.put.iso_8601(),
            "isFinalized": value.finalised,
        });
        if let Some(inline) = &value.inline {
            fields["inlinePayload"] = base64::engine::general_purpose::STANDARD.encode(inline).into();
        }
        Ok(json(&fields))
    }

    pub(crate) async fn references(&self, request: &ApiRequest<'_>, name: &RefName) -> Answer {
        let value = self.reference(name).await?.ok_or_else(|| Problem::missing("no such ref"))?;
        let bytes = self.object_of(&name.namespace, &value).await?;
        let bytes = bytes.ok_or_else(|| Problem::bad("the ref's object is gone"))?;
        let Closed { missing, mut blobs } = self.close(&name.namespace, &bytes, Reach::All).await?;
        if !missing.is_empty() {
            return Err(Problem::bad("something that the ref refers to is missing"));
        }
        if value.inline.is_none() {
            blobs.push(value.object);
        }
        Ok(object(&Value::object([("references", Value::hashes(blobs))]), request.answer_media(None)))
    }

    pub(crate) async fn replication_state(&self, name: &RefName) -> Answer {
        let value = self.reference(name).await?.ok_or_else(|| Problem::missing("no such ref"))?;
        let mut blobs = serde_json::Map::new();
        if let Some(bytes) = self.object_of(&name.namespace, &value).await? {
            for blob in self.close(&name.namespace, &bytes, Reach::Own).await?.blobs {
                blobs.insert(format!("{blob:X}"), serde_json::json!({ &self.rules().site: true }));
            }
        }
        Ok(json(&serde_json::json!({
            "ns": name.namespace.as_str(),
            "bucket": name.bucket.as_str(),
            "key": name.key.as_str(),
            "blobsPerRegion": blobs,
        })))
    }

    pub(crate) async fn refs_exist(&self, request: &ApiRequest<'_>, namespace: &Namespace) -> Answer {
        let mut names = Vec::new();
        for text in query_values(request.query, "names") {
            let (bucket, key) =
                text.split_once('.').ok_or_else(|| Problem::bad("a name is written bucket.key"))?;
            let (bucket, key) = (bucket.parse().map_err(Problem::bad)?, key.parse().map_err(Problem::bad)?);
            names.push(RefName { namespace: namespace.clone(), bucket, key });
        }
        let lookups = names.into_iter().map(|name| async move {
            let there = self.reference(&name).await?.is_some_and(|value| value.finalised);
            Ok::<_, Problem>((!there).then_some(name))
        });
        let missing: Vec<_> = stream::iter(lookups).buffered(self.chains_max()).try_collect().await?;
        let missing = missing.into_iter().flatten().map(|name| {
            Value::object([
                ("bucket", Value::string(name.bucket.as_str())),
                ("key", Value::string(name.key.as_str())),
            ])
        });
        Ok(object(&Value::object([("missing", Value::Array(missing.collect()))]), request.answer_media(None)))
    }

    // --- Delete

    pub(crate) async fn delete_ref(&self, request: &ApiRequest<'_>, name: &RefName) -> Answer {
        let count = u64::from(self.delete_reference(name, &request.preconditions()).await?);
        Ok(object(&Value::object([("deletedCount", Value::Integer(count))]), request.answer_media(None)))
    }
}

/// The answer to a client that has the object of a ref already.
fn unmodified(object: &IoHash) -> Response<Body> {
    let mut response = empty(StatusCode::NOT_MODIFIED);
    let headers = response.headers_mut();
    headers.insert(IO_HASH, hash_value(object));
    headers.insert(header::ETAG, tag_value(object));
    response
}

fn keeps_changing() -> Problem {
    let title = "other requests change the ref, or delete blobs that it refers to; try again";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, title).with(header::RETRY_AFTER, "1")
}

pub(crate) fn object_gone() -> Problem {
    Problem::missing("the ref's object is gone")
}

/// Refuses the names of contents that build caches verify by another hash.
pub(crate) fn check_bucket(name: &RefName) -> Result<(), Problem> {
    if name.bucket.as_str() == CONTENTS {
        return Err(Problem::bad(
            "the bucket `cas` has the contents of build caches, verified by SHA-256: put them to /cas/SHA256, or \
             choose another bucket",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use throng_ddc_store::{Options, Store};
    use throng_platform::Folder;

    use super::*;
    use crate::origin::Origin;
    use crate::service::Rules;

    #[test]
    fn a_ref_whose_blobs_are_deleted_at_every_attempt_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fs = Arc::new(Folder::new(folder.path()).expect("it is there"));
        let store = Store::open(fs, Options::default()).expect("the folder opens");
        let service = Service::new(Arc::clone(&store), Rules::default(), Origin::Alone);
        let blob = Bytes::from_static(b"a blob that others delete");
        let hash = IoHash::of(&blob);
        let object =
            Bytes::from(Value::object([("Data", Value::BinaryAttachment(hash))]).encode(Style::Plain));
        let name = RefName {
            namespace: "game".parse().expect("a name"),
            bucket: "default".parse().expect("a name"),
            key: IoHash::of(&object).to_string().parse().expect("a key"),
        };
        let put = || {
            store.put_blob(&name.namespace, hash, blob.clone(), service.now(), Box::new(|_| {}));
            store.commit();
        };
        let delete = || {
            store.delete_blob(&name.namespace, &hash, Box::new(|_| {}));
            store.commit();
        };

        let mut context = Context::from_waker(Waker::noop());
        let lock = service.change_lock(&name);
        let mut turn = lock.try_write().expect("it is free");
        let when = Preconditions::default();
        let mut upload = pin!(service.store_ref(&name, Object::of(object), true, &when));
        for attempt in 0.. {
            assert!(attempt < 100, "it still tries");
            put();
            // It looks the blob up, and waits for its turn.
            let outcome = upload.as_mut().poll(&mut context);
            if let Poll::Ready(outcome) = outcome {
                let problem = outcome.expect_err("the blob is never there");
                assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE, "{}", problem.title);
                return;
            }
            delete();
            let mut next = pin!(lock.write());
            drop(turn);
            assert!(upload.as_mut().poll(&mut context).is_pending(), "it waits for its commit");
            assert!(next.as_mut().poll(&mut context).is_pending(), "the upload has its turn");
            store.commit();
            put();
            if let Poll::Ready(outcome) = upload.as_mut().poll(&mut context) {
                assert!(outcome.is_err());
                return;
            }
            let Poll::Ready(guard) = next.as_mut().poll(&mut context) else { panic!("the turn ended") };
            turn = guard;
        }
    }
}
