//! Refs: put, get in every format, finalise, batches.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use throng_ddc::api::{Media, RefName, negotiate, query_values};
use throng_ddc::batch::{Op, OpAction, ResponseHead, frame_responses, read_request};
use throng_ddc::compressed::{HEADER_BYTES, Header};
use throng_ddc::package::{Entry, Flags, HEAD_BYTES, Table};
use throng_ddc::policy::Action;
use throng_ddc::{Attachment, Document, IoHash, Kind, Namespace, Style, Value};
use throng_ddc_store::{Blob, ChangeResult, PutRef, RefValue};
use tokio::time::Instant;

use crate::answer::{self, Answer, Problem, empty, object, reply, with_type};
use crate::batch::{BATCH_BYTES_MAX, Budget, chains};
use crate::blobs::{FORMS_TRIED_MAX, HASH_FIRST_BYTES_MAX, of_any_form};
use crate::blocking;
use crate::body::Body;
use crate::entry::CONTENTS;
use crate::fetch::Found;
use crate::headers::{ALLOW_OVERWRITE, INLINE_HASH, IO_HASH, LAST_ACCESS};
use crate::json::{JsonBody, PIECE_BYTES};
use crate::memory::MEMORY_WAIT;
use crate::origin::{Closed, Located, Reach};
use crate::passed::RELAY_BYTES;
use crate::preconditions::{Preconditions, tag_value};
use crate::raw::{self, RawBlob, RawError};
use crate::service::{ApiRequest, Service, hash_value, json};
use crate::upload::{Received, SMALL_BYTES_MAX, compressed_problem};

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

/// Bytes of small blobs that a package holds in memory; further ones are read as they are sent.
const PACKAGE_BYTES_MAX: u64 = SMALL_BYTES_MAX as u64;
/// Attachments of a package for which memory is taken at a time, and the memory of each.
const ENTRIES: usize = 1_024;
const ENTRY_BYTES: u64 = 512;
/// Objects up to this size are converted to JSON as a whole.
const JSON_WHOLE_BYTES_MAX: usize = 8 << 10;
/// Objects up to this size are measured for JSON on the thread that answers.
const JSON_IN_PLACE_BYTES_MAX: usize = 64 << 10;

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
        match self.store_ref(name, object, overwrite, &request.preconditions()).await? {
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
    async fn finalised_value(&self, name: &RefName) -> Result<RefValue, Problem> {
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

    pub(crate) async fn get_ref(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        name: &RefName,
        suffix: Option<Media>,
    ) -> Answer {
        let media = suffix.or_else(|| negotiate(request.accept(), &FORMS));
        let media =
            media.ok_or_else(|| Problem::new(StatusCode::NOT_ACCEPTABLE, "a ref has no such form"))?;
        let (value, bytes) = self.finalised(name).await?;
        if request.preconditions().is_unmodified(&value.object)? {
            self.touch(name);
            return Ok(unmodified(&value.object));
        }
        let used = self.touch(name).unwrap_or(value.put);
        let object = value.object;
        let mut response = self.form_of(&name.namespace, media, object, bytes, false).await?;
        self.keep_young(name, &value);
        let headers = response.headers_mut();
        headers.extend(HeaderValue::try_from(used.month_first()).ok().map(|used| (LAST_ACCESS, used)));
        Ok(response)
    }

    /// An object as a client wants it. Of raw data only the head is made if `is_head` says so.
    async fn form_of(
        self: &Arc<Service>,
        namespace: &Namespace,
        media: Media,
        object: IoHash,
        bytes: Bytes,
        is_head: bool,
    ) -> Answer {
        let mut response = match media {
            Media::Json => with_type(self.json_body(bytes).await?, media),
            Media::Octets => of_any_form(|| self.get_raw(namespace, bytes.clone(), is_head)).await?,
            Media::Inline => of_any_form(|| self.get_inline(namespace, bytes.clone())).await?,
            Media::Package => {
                of_any_form(|| Box::pin(self.get_package(namespace, object, bytes.clone()))).await?
            }
            Media::CompactBinary | Media::Compressed => {
                reply(StatusCode::OK, Media::CompactBinary.name(), bytes)
            }
        };
        let headers = response.headers_mut();
        headers.insert(IO_HASH, hash_value(&object));
        if media == Media::CompactBinary {
            headers.insert(header::ETAG, tag_value(&object));
        }
        Ok(response)
    }

    /// The JSON of an object as a body.
    async fn json_body(&self, object: Bytes) -> Result<Body, Problem> {
        if object.len() <= JSON_WHOLE_BYTES_MAX {
            return Ok(Body::bytes(Document::parse(&object).map_err(Problem::bad)?.to_json()));
        }
        let held = self.memory.take(PIECE_BYTES as u64, Instant::now() + MEMORY_WAIT).await?;
        let json = match object.len() <= JSON_IN_PLACE_BYTES_MAX {
            true => JsonBody::new(object),
            false => blocking::elsewhere(move || JsonBody::new(object)).await.ok_or_else(|| {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the object could not be converted; try again")
            })?,
        };
        let mut body = Body::default();
        body.push_json(json.map_err(Problem::bad)?);
        body.hold(held);
        Ok(body)
    }

    /// The only attachment, decompressed; else the object.
    async fn get_raw(self: &Arc<Service>, namespace: &Namespace, bytes: Bytes, is_head: bool) -> Answer {
        let document = Document::parse(&bytes).map_err(Problem::bad)?;
        let Some(hash) = document.only_binary_attachment() else {
            return Ok(reply(StatusCode::OK, Media::Octets.name(), bytes));
        };
        let gone = || Problem::vanished("what the ref refers to is gone");
        let form = match self.store.has_blob(namespace, &hash)? {
            true => Located::raw(&hash),
            false => {
                let found = self.locate_form(namespace, &hash, Reach::All).await?;
                found.ok_or_else(|| Problem::missing("what the ref refers to is gone"))?
            }
        };
        if form.blob == hash {
            return Ok(with_type(self.whole_body(namespace, &hash).await?.ok_or_else(gone)?, Media::Octets));
        }
        let blob = self.find_blob(namespace, &form.blob).await?.ok_or_else(gone)?;
        if is_head {
            let mut response = with_type(Body::default(), Media::Octets);
            let length = HeaderValue::from(header_of(&blob)?.raw_size);
            response.headers_mut().insert(header::CONTENT_LENGTH, length);
            return Ok(response);
        }
        let body = Box::pin(self.raw_body(namespace, &hash, form, blob)).await?;
        Ok(with_type(body, Media::Octets))
    }

    /// A whole blob as a body; a large one that is elsewhere is sent as it arrives.
    async fn whole_body(
        self: &Arc<Service>,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Body>, Problem> {
        Ok(match self.find_or_begin(namespace, hash).await? {
            Some(Found::Here(blob)) => {
                let mut body = Body::default();
                self.push_whole(&mut body, namespace, hash, blob).await?;
                Some(body)
            }
            Some(Found::Coming(body)) => Some(body),
            None => None,
        })
    }

    /// The raw data `id` of a stored compressed buffer as a body. The buffer is hashed before,
    /// unless it is very large, and so is the raw data of one that was not verified when it was
    /// stored; the rest is verified on its way.
    ///
    /// # Errors
    /// 503 if other requests hold the memory; what is wrong with the buffer, as far as it shows by
    /// then.
    async fn raw_body(
        self: &Arc<Service>,
        namespace: &Namespace,
        id: &IoHash,
        form: Located,
        blob: Blob,
    ) -> Result<Body, Problem> {
        let blob = match blob.len() > HASH_FIRST_BYTES_MAX {
            true => blob,
            false => self.sound_blob(namespace, &form.blob, blob).await?,
        };
        let header = header_of(&blob)?;
        if header.raw_hash != *id {
            return Err(Problem::missing(
                "what is stored in place of what the ref refers to is something else",
            ));
        }
        let mut body = Body::default();
        let bytes = header.decoder_bytes() + header.block_size().max(raw::PIECE_BYTES).min(header.raw_size);
        body.hold(self.memory.take(bytes, Instant::now() + MEMORY_WAIT).await?);
        let oodle = self.rules().oodle.clone();
        if !form.verified && header.raw_size <= HASH_FIRST_BYTES_MAX {
            let (read, oodle) = (blob.clone(), oodle.clone());
            let verified = blocking::elsewhere(move || raw::verify(&read, oodle)).await;
            verified.ok_or_else(|| {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the data could not be decompressed; try again")
            })??;
        }
        let (service, namespace) = (Arc::clone(self), namespace.clone());
        let damaged = move |blob: &Blob| service.store.discard_damaged(&namespace, &form.blob, blob);
        let mut raw = RawBlob::new(blob, &header, oodle, form.verified, Box::new(damaged));
        // A beginning that is wrong is answered with its status.
        raw.advance()?;
        body.push_raw(raw);
        Ok(body)
    }

    /// The only attachment as it is stored; the object, if it has none.
    async fn get_inline(self: &Arc<Service>, namespace: &Namespace, bytes: Bytes) -> Answer {
        let document = Document::parse(&bytes).map_err(Problem::bad)?;
        let attachments = document.attachments();
        let (hash, body) = match attachments[..] {
            [] => (IoHash::of(&bytes), Body::bytes(bytes)),
            [attachment] if !attachment.is_object() => {
                const GONE: &str = "what the ref refers to is gone";
                let located = self.locate(namespace, &attachment.hash, Reach::All).await?;
                let hash = located.ok_or_else(|| Problem::missing(GONE))?;
                let body = self.whole_body(namespace, &hash).await?;
                (hash, body.ok_or_else(|| Problem::vanished(GONE))?)
            }
            _ => return Err(Problem::bad("only a ref with one attachment or none has an inline form")),
        };
        let mut response = with_type(body, Media::Inline);
        response.headers_mut().insert(INLINE_HASH, hash_value(&hash));
        Ok(response)
    }

    /// The object and everything it reaches.
    async fn get_package(self: &Arc<Service>, namespace: &Namespace, hash: IoHash, bytes: Bytes) -> Answer {
        let mut entries = vec![Entry { size: bytes.len() as u64, flags: Flags::OBJECT, hash }];
        let mut payloads = Body::default();
        let document = Document::parse(&bytes).map_err(Problem::bad)?;
        let mut closure = throng_ddc::Closure::new(&document);
        payloads.push_bytes(bytes.clone());
        let (mut in_memory, mut has_relays) = (0, false);
        while let Some(attachment) = closure.next() {
            let Attachment { hash, .. } = attachment;
            if entries.len().is_multiple_of(ENTRIES) {
                let bytes = ENTRIES as u64 * ENTRY_BYTES;
                payloads.hold(self.memory.take(bytes, Instant::now() + MEMORY_WAIT).await?);
            }
            let left = PACKAGE_BYTES_MAX.saturating_sub(in_memory);
            let mut found = None;
            // A form that is gone although it was found leaves the next one to be tried.
            for _ in 0..FORMS_TRIED_MAX {
                let located = self.locate(namespace, &attachment.hash, Reach::All).await?;
                found = match located {
                    // An object is read for what it refers to.
                    Some(form) if attachment.is_object() => {
                        self.find_blob(namespace, &form).await?.map(|blob| (form, Found::Here(blob)))
                    }
                    Some(form) => self.find_part(namespace, &form, left).await?.map(|found| (form, found)),
                    None => None,
                };
                if found.is_some() || located.is_none() {
                    break;
                }
            }
            let Some((form, mut found)) = found else {
                let error = Problem::missing("the attachment is gone").to_value().encode(Style::Plain);
                let flags = Flags::OBJECT.and(Flags::ERROR);
                entries.push(Entry { size: error.len() as u64, flags, hash });
                payloads.push_bytes(error.into());
                closure.resolve(throng_ddc::Resolution::Missing);
                continue;
            };
            let flags = match (attachment.is_object(), form == hash) {
                (true, _) => Flags::OBJECT,
                (false, true) => Flags::default(),
                (false, false) => Flags::COMPRESSED,
            };
            match &found {
                Found::Here(blob) if attachment.is_object() => {
                    let bytes = self.checked_bytes(namespace, &form, blob).await?;
                    let bytes = bytes.ok_or_else(|| Problem::missing("an object was damaged and is gone"))?;
                    closure.resolve(throng_ddc::Resolution::Object(&bytes));
                    // Nothing keeps it, and the memory of the package is for small blobs.
                    if self.upstream().is_some() && blob.memory().is_some() && blob.len() > left {
                        found = self.relay_later(namespace, &form, blob.len()).await?;
                    }
                }
                _ => closure.resolve(throng_ddc::Resolution::Blob(form)),
            }
            match found {
                Found::Here(blob) => {
                    entries.push(Entry { size: blob.len(), flags, hash });
                    let is_in_memory = blob.memory().is_some() || Service::is_pushed_in_memory(&blob);
                    in_memory += if is_in_memory { blob.len() } else { 0 };
                    if in_memory > PACKAGE_BYTES_MAX {
                        self.push_later(&mut payloads, namespace, &form, blob);
                    } else {
                        self.push_whole(&mut payloads, namespace, &form, blob).await?;
                    }
                }
                Found::Coming(blob) => {
                    if !has_relays {
                        payloads.hold(self.memory.take(RELAY_BYTES, Instant::now() + MEMORY_WAIT).await?);
                        has_relays = true;
                    }
                    entries.push(Entry { size: blob.len(), flags, hash });
                    payloads.append(blob);
                }
            }
        }
        let mut body = Body::bytes(Table { entries }.write());
        body.append(payloads);
        Ok(with_type(body, Media::Package))
    }

    pub(crate) async fn head_ref(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        name: &RefName,
        suffix: Option<Media>,
    ) -> Answer {
        let found = self.reference(name).await?;
        let value = found.filter(|value| value.finalised).ok_or_else(|| Problem::missing("no such ref"))?;
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
        self.form_of(&name.namespace, media, value.object, bytes, true).await
    }

    /// Reports whether everything that a ref reaches is stored.
    async fn is_complete(&self, namespace: &Namespace, value: &RefValue) -> Result<bool, Problem> {
        let Some(bytes) = self.object_of(namespace, value).await? else { return Ok(false) };
        Ok(self.close(namespace, &bytes, Reach::All).await?.missing.is_empty())
    }

    /// The same for an operation of a batch, whose object of `len` bytes is read into memory.
    async fn is_complete_within(
        &self,
        namespace: &Namespace,
        value: &RefValue,
        len: u64,
        budget: &Budget<'_>,
    ) -> Result<bool, Problem> {
        // Larger ones take their memory when they are read.
        let _held = budget.hold(if len > SMALL_BYTES_MAX as u64 { 0 } else { len }).await?;
        self.is_complete(namespace, value).await
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

    // --- Batch

    pub(crate) async fn batch(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        namespace: &Namespace,
    ) -> Answer {
        request.content_type(&[Media::CompactBinary])?;
        request.upload.limit(BATCH_BYTES_MAX)?;
        let body = request.upload.all().await?;
        let document = Document::parse(&body).map_err(Problem::bad)?;
        let ops = read_request(&document).map_err(Problem::bad)?;
        for op in &ops {
            let action = match op.action {
                OpAction::Put { .. } => Action::WriteObject,
                _ => Action::ReadObject,
            };
            self.permit(request, action, namespace, Some(&op.bucket))?;
        }
        drop(body);
        let overwrite = self.rules_of(namespace).overwrite_refs;
        let budget = Budget::new(&self.memory);
        let chains = chains(ops, |op| (op.bucket.clone(), op.key)).into_iter();
        let chains = chains.map(|chain| self.run_chain(namespace, chain, overwrite, &budget));
        let mut results: Vec<(usize, ResponseHead, Body)> =
            stream::iter(chains).buffer_unordered(self.chains_max()).concat().await;
        results.sort_by_key(|(place, ..)| *place);
        let heads: Vec<ResponseHead> = results.iter().map(|(_, head, _)| *head).collect();
        let mut pieces = frame_responses(&heads).into_iter().map(Bytes::from);
        let mut answer = Body::bytes(pieces.next().unwrap_or_default());
        for ((.., response), piece) in results.into_iter().zip(pieces) {
            answer.append(response);
            answer.push_bytes(piece);
        }
        Ok(with_type(answer, Media::CompactBinary))
    }

    /// Runs the operations of a batch on one key, one after the other. Gives each result with the
    /// operation's place in the batch.
    async fn run_chain(
        self: &Arc<Service>,
        namespace: &Namespace,
        chain: Vec<(usize, Op)>,
        overwrite: bool,
        budget: &Budget<'_>,
    ) -> Vec<(usize, ResponseHead, Body)> {
        let mut results = Vec::with_capacity(chain.len());
        for (place, op) in chain {
            let id = op.id;
            let (status, mut response) = match self.run(namespace, op, overwrite, budget).await {
                Ok(done) => done,
                Err(problem) => (problem.status, document(&problem.to_value())),
            };
            // All objects are stored, and checked, without a name.
            let kind = response.take_byte().ok().flatten().unwrap_or(Kind::Object as u8);
            let head = ResponseHead { id, status: status.as_u16(), kind, bytes: response.len() };
            results.push((place, head, response));
        }
        results
    }

    /// Runs an operation. The response is a document, whose first byte can be taken.
    async fn run(
        self: &Arc<Service>,
        namespace: &Namespace,
        op: Op,
        overwrite: bool,
        budget: &Budget<'_>,
    ) -> Result<(StatusCode, Body), Problem> {
        let name = RefName { namespace: namespace.clone(), bucket: op.bucket, key: op.key };
        match op.action {
            OpAction::Get { resolve } => {
                let value = self.finalised_value(&name).await?;
                let mut response = Body::default();
                if let Some(object) = &value.inline {
                    budget.take(object.len() as u64)?;
                    response.hold(budget.hold(object.len() as u64).await?);
                    response.push_bytes(object.clone());
                } else {
                    let blob = self.find_blob(namespace, &value.object).await?.ok_or_else(object_gone)?;
                    budget.take(blob.len())?;
                    if Service::is_pushed_in_memory(&blob) {
                        response.hold(budget.hold(blob.len()).await?);
                    }
                    self.push_whole(&mut response, namespace, &value.object, blob).await?;
                }
                if resolve && !self.is_complete_within(namespace, &value, response.len(), budget).await? {
                    return Err(Problem::missing("something that the ref refers to is gone"));
                }
                self.touch(&name);
                Ok((StatusCode::OK, response))
            }
            OpAction::Head { resolve } => {
                let found = self.reference(&name).await?;
                let there = match found.filter(|value| value.finalised) {
                    Some(value) if resolve => {
                        let len = match &value.inline {
                            Some(object) => Some(object.len() as u64),
                            None => self.blob_len(namespace, &value.object).await?,
                        };
                        match len {
                            Some(len) => self.is_complete_within(namespace, &value, len, budget).await?,
                            None => false,
                        }
                    }
                    found => found.is_some(),
                };
                let status = if there { StatusCode::OK } else { StatusCode::NOT_FOUND };
                Ok((status, document(&Value::object([("exists", Value::Bool(there))]))))
            }
            OpAction::Put { payload, hash } => {
                check_bucket(&name)?;
                let payload = payload.ok_or_else(|| Problem::bad("a PUT has no payload"))?;
                let object = Object::of(payload.into());
                if hash != Some(object.hash) {
                    return Err(Problem::hash_mismatch("the payload does not hash to payloadHash"));
                }
                match self.store_ref(&name, object, overwrite, &Preconditions::default()).await? {
                    Ok(needs) => {
                        Ok((StatusCode::OK, document(&Value::object([("needs", Value::hashes(needs))]))))
                    }
                    Err(existing) => {
                        budget.take(existing.len() as u64)?;
                        let mut response = Body::default();
                        response.hold(budget.hold(existing.len() as u64).await?);
                        response.push_bytes(existing);
                        Ok((StatusCode::CONFLICT, response))
                    }
                }
            }
        }
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

/// A small object as a body.
fn document(value: &Value) -> Body {
    Body::bytes(value.encode(Style::Plain))
}

fn keeps_changing() -> Problem {
    let title = "other requests change the ref, or delete blobs that it refers to; try again";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, title).with(header::RETRY_AFTER, "1")
}

fn object_gone() -> Problem {
    Problem::missing("the ref's object is gone")
}

/// Header of a stored compressed buffer.
fn header_of(blob: &Blob) -> Result<Header, Problem> {
    let head = blob.read(0, HEADER_BYTES.min(usize::try_from(blob.len()).unwrap_or(HEADER_BYTES)))?;
    Header::read(&head).map_err(Problem::bad)
}

impl From<RawError> for Problem {
    fn from(error: RawError) -> Problem {
        match error {
            RawError::Read(error) => error.into(),
            RawError::Damaged(error) => compressed_problem(&error),
            RawError::NoDecoder => Problem::missing(RawError::NoDecoder.to_string()),
        }
    }
}

/// Refuses the names of contents that build caches verify by another hash.
fn check_bucket(name: &RefName) -> Result<(), Problem> {
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
