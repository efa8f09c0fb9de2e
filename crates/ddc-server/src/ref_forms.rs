//! Forms in which a ref's object is given: compact binary, JSON, raw data, packages.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use throng_ddc::api::Media;
use throng_ddc::compressed::{HEADER_BYTES, Header};
use throng_ddc::package::{Entry, Flags, Table};
use throng_ddc::{Attachment, Document, IoHash, Namespace, Style};
use throng_ddc_store::Blob;
use tokio::time::Instant;

use crate::answer::{Answer, Problem, reply, with_type};
use crate::blobs::{FORMS_TRIED_MAX, HASH_FIRST_BYTES_MAX, of_any_form};
use crate::blocking;
use crate::body::Body;
use crate::fetch::Found;
use crate::headers::{INLINE_HASH, IO_HASH};
use crate::json::{JsonBody, PIECE_BYTES};
use crate::memory::{MEMORY_WAIT, SMALL_BYTES_MAX};
use crate::origin::{Located, Reach};
use crate::passed::RELAY_BYTES;
use crate::preconditions::tag_value;
use crate::raw::{self, RawBlob, RawError};
use crate::service::{ApiRequest, Service, hash_value};
use crate::upload::compressed_problem;

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
    /// An object as a client wants it. Of raw data only the head is made if `is_head` says so.
    pub(crate) async fn form_of(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        media: Media,
        object: IoHash,
        bytes: Bytes,
        is_head: bool,
    ) -> Answer {
        let address = request.upload.address();
        let mut response = match media {
            Media::Json => with_type(self.json_body(address, bytes).await?, media),
            Media::Octets => of_any_form(|| self.get_raw(address, namespace, bytes.clone(), is_head)).await?,
            Media::Inline => of_any_form(|| self.get_inline(namespace, bytes.clone())).await?,
            Media::Package => {
                let package = || Box::pin(self.get_package(address, namespace, object, bytes.clone()));
                of_any_form(package).await?
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
    async fn json_body(&self, address: Option<IpAddr>, object: Bytes) -> Result<Body, Problem> {
        if object.len() <= JSON_WHOLE_BYTES_MAX {
            return Ok(Body::bytes(Document::parse(&object).map_err(Problem::bad)?.to_json()));
        }
        let held = self.memory.take_for(address, PIECE_BYTES as u64, Instant::now() + MEMORY_WAIT).await?;
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
    async fn get_raw(
        self: &Arc<Service>,
        address: Option<IpAddr>,
        namespace: &Namespace,
        bytes: Bytes,
        is_head: bool,
    ) -> Answer {
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
        let body = Box::pin(self.raw_body(address, namespace, &hash, form, blob)).await?;
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
    /// 429 if other requests hold the memory; what is wrong with the buffer, as far as it shows by
    /// then.
    async fn raw_body(
        self: &Arc<Service>,
        address: Option<IpAddr>,
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
        body.hold(self.memory.take_for(address, bytes, Instant::now() + MEMORY_WAIT).await?);
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
    async fn get_package(
        self: &Arc<Service>,
        address: Option<IpAddr>,
        namespace: &Namespace,
        hash: IoHash,
        bytes: Bytes,
    ) -> Answer {
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
                payloads.hold(self.memory.take_for(address, bytes, Instant::now() + MEMORY_WAIT).await?);
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
                        let until = Instant::now() + MEMORY_WAIT;
                        payloads.hold(self.memory.take_for(address, RELAY_BYTES, until).await?);
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
