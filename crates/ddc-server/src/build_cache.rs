//! Build caches of other tools over the same store: Bazel's HTTP cache, and names of any form for
//! ccache and sccache (WebDAV).
//!
//! An entry is a ref whose object names a blob, so that eviction, quotas, the object storage and
//! exports treat it as they treat an editor's. Blobs of `/cas/` are verified against the SHA-256
//! that names them. A result of an action (`/ac/`) is given only while every blob that it names is
//! here; giving it marks those as used.

mod action;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use throng_ddc::api::{Media, RefName};
use throng_ddc::policy::Action;
use throng_ddc::{Bucket, Document, IoHash, Key, Namespace, Style, Value};

use crate::answer::{Answer, Problem, empty, reply};
use crate::body::Body;
use crate::entry::{CONTENTS, Entry, Kind, Sha256, ref_name};
use crate::origin::Reach;
use crate::preconditions::Preconditions;
use crate::refs::Object;
use crate::service::{ApiRequest, Service};
use action::Digest;

/// Field of an entry's object with the size of the blob.
const SIZE: &str = "RawSize";
/// Lookups of one action's blobs at a time.
const LOOKUPS_MAX: usize = 64;

impl Service {
    /// Answers a request to a build cache. `verb` is the method, which WebDAV has more of.
    pub(crate) async fn build_cache(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        verb: &str,
        entry: Entry,
    ) -> Answer {
        let Entry { name, kind } = entry;
        let action = match (verb, &kind) {
            ("GET" | "HEAD", Kind::Content(_) | Kind::Action | Kind::Named) => Action::ReadObject,
            ("PROPFIND" | "OPTIONS", Kind::Named | Kind::Folder) => Action::ReadObject,
            ("PUT", Kind::Content(_) | Kind::Action | Kind::Named) => Action::WriteObject,
            ("MKCOL", Kind::Folder | Kind::Named) => Action::WriteObject,
            ("DELETE", Kind::Named) => Action::DeleteObject,
            _ => {
                let allowed = match kind {
                    Kind::Content(_) | Kind::Action => "GET, HEAD, PUT",
                    Kind::Named => "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL",
                    Kind::Folder => "OPTIONS, PROPFIND, MKCOL",
                };
                let what = format!("method {verb} not allowed for this entry; allowed: {allowed}");
                let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, what);
                return Err(problem.with(header::ALLOW, allowed));
            }
        };
        self.permit(request, action, &name.namespace, Some(&name.bucket))?;
        match verb {
            "PUT" => self.put_entry(request, &name, &kind).await,
            "MKCOL" => Ok(empty(StatusCode::CREATED)),
            "DELETE" => match self.delete_reference(&name, &entry_preconditions(request)).await? {
                true => Ok(empty(StatusCode::NO_CONTENT)),
                false => Err(Problem::missing("no such entry")),
            },
            "OPTIONS" => {
                let mut response = empty(StatusCode::OK);
                response.headers_mut().insert("dav", HeaderValue::from_static("1"));
                Ok(response)
            }
            "PROPFIND" if kind == Kind::Folder => Ok(properties(None)),
            "PROPFIND" => {
                let missing = || Problem::missing("no such entry");
                let (blob, _) = self.entry_blob(&name).await?.ok_or_else(missing)?;
                let len = self.blob_len(&name.namespace, &blob).await?.ok_or_else(missing)?;
                Ok(properties(Some(len)))
            }
            _ => self.get_entry(request, &name, &kind).await,
        }
    }

    async fn put_entry(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        name: &RefName,
        kind: &Kind,
    ) -> Answer {
        let when = entry_preconditions(request);
        self.permit_upload(name, &when).await?;
        if matches!(kind, Kind::Content(_)) {
            request.upload.hash_sha256();
        }
        let received = request.upload.receive(&self.store, None, None).await?;
        if let (Kind::Content(wanted), Some(found)) = (kind, request.upload.sha256())
            && wanted.0 != found
        {
            let found = Sha256(found);
            return Err(Problem::hash_mismatch(format!("the data has the SHA-256 {found}, not {wanted}")));
        }
        let (hash, len) = (received.hash(), received.len());
        self.keep(&name.namespace, received).await?;
        let value = Value::object([("RawHash", Value::BinaryAttachment(hash)), (SIZE, Value::Integer(len))]);
        let object = Object::of(value.encode(Style::Separate).into());
        match self.store_ref(name, object, true, &when).await? {
            Ok(needs) if needs.is_empty() => Ok(empty(StatusCode::OK)),
            _ => {
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the blob was removed while it was stored"))
            }
        }
    }

    async fn get_entry(self: &Arc<Service>, request: &ApiRequest<'_>, name: &RefName, kind: &Kind) -> Answer {
        if matches!(kind, Kind::Content(sha) if sha.is_empty()) {
            return Ok(reply(StatusCode::OK, Media::Octets.name(), Bytes::new()));
        }
        let (blob, _) = self.entry_blob(name).await?.ok_or_else(|| Problem::missing("no such entry"))?;
        if *kind == Kind::Action {
            self.check_action(&name.namespace, &blob).await?;
        }
        self.get_blob(request, &name.namespace, &blob, Media::Octets).await
    }

    /// The blob of an entry, which is marked as used, and its size if the entry tells it.
    async fn entry_blob(
        self: &Arc<Service>,
        name: &RefName,
    ) -> Result<Option<(IoHash, Option<u64>)>, Problem> {
        let (value, bytes) = match self.finalised(name).await {
            Ok(found) => found,
            Err(problem) if problem.status.is_server_error() => return Err(problem),
            Err(_) => return Ok(None),
        };
        let document = Document::parse(&bytes).map_err(Problem::bad)?;
        let size = document.get(SIZE).and_then(|size| size.integer()?.try_into().ok());
        let blob = document.only_binary_attachment().map(|blob| (blob, size));
        self.touch(name);
        self.keep_young(name, &value);
        Ok(blob)
    }

    /// Fails with 404 unless every blob that a result of an action names is here: a build that is
    /// given the result does not look before it needs them.
    async fn check_action(
        self: &Arc<Service>,
        namespace: &Namespace,
        action: &IoHash,
    ) -> Result<(), Problem> {
        let gone = || Problem::missing("the action's result is gone");
        let bytes = self.entry_bytes(namespace, action).await?.ok_or_else(gone)?;
        let Some(result) = action::read_result(&bytes) else { return Ok(()) };
        let mut named = result.blobs;
        for tree in &result.trees {
            let lost = || Problem::missing(format!("the tree {} is gone", tree.sha));
            let blob = self.content(namespace, tree).await?.ok_or_else(lost)?;
            let bytes = self.entry_bytes(namespace, &blob).await?.ok_or_else(lost)?;
            named.extend(action::read_tree(&bytes).ok_or_else(lost)?);
        }
        named.extend(result.trees);
        named.sort();
        named.dedup();
        self.check_contents(namespace, &named).await?;
        // An eviction that began before these uses may be about to remove some of the contents.
        // With an object storage, an eviction removes only local copies.
        if self.store.is_collecting() && self.tier().is_none() {
            let refs: Vec<(Bucket, Key)> = named
                .iter()
                .map(|digest| ref_name(namespace, CONTENTS, &digest.sha.0))
                .map(|name| (name.bucket, name.key))
                .collect();
            self.commit(|done| self.store.keep_used(namespace, &refs, done)).await?;
            self.check_contents(namespace, &named).await?;
        }
        Ok(())
    }

    /// Fails with 404 unless all these contents are here, and marks them as used.
    async fn check_contents(
        self: &Arc<Service>,
        namespace: &Namespace,
        contents: &[Digest],
    ) -> Result<(), Problem> {
        let mut lookups = stream::iter(contents.iter().copied())
            .map(|digest| async move { (self.content(namespace, &digest).await, digest) })
            .buffer_unordered(LOOKUPS_MAX);
        while let Some((found, digest)) = lookups.next().await {
            if found?.is_none() {
                return Err(Problem::missing(format!(
                    "{} with {} bytes, which the action's result names, is gone",
                    digest.sha, digest.size
                )));
            }
        }
        Ok(())
    }

    /// The stored blob of a content, which is marked as used. None has a hash and another size.
    async fn content(
        self: &Arc<Service>,
        namespace: &Namespace,
        digest: &Digest,
    ) -> Result<Option<IoHash>, Problem> {
        if digest.sha.is_empty() {
            return Ok((digest.size == 0).then_some(IoHash::ZERO));
        }
        let entry = self.entry_blob(&ref_name(namespace, CONTENTS, &digest.sha.0)).await?;
        let Some((blob, size)) = entry else { return Ok(None) };
        if size.is_some_and(|size| size != digest.size) {
            return Ok(None);
        }
        self.locate(namespace, &blob, Reach::All).await
    }

    async fn entry_bytes(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<Bytes>, Problem> {
        let limit = self.rules().object_bytes_max;
        match self.find_blob(namespace, hash).await? {
            Some(blob) if blob.len() > limit => Err(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a result or tree exceeds {limit} bytes"),
            )),
            Some(blob) => self.checked_bytes(namespace, hash, &blob).await,
            None => Ok(None),
        }
    }
}

/// Preconditions of a request on an entry, whose tag is that of its blob.
fn entry_preconditions(request: &ApiRequest<'_>) -> Preconditions {
    request.preconditions().of_entry()
}

/// Properties of an entry with so many bytes, or of a folder, for PROPFIND.
fn properties(len: Option<u64>) -> Response<Body> {
    let kind = match len {
        Some(len) => format!("<D:getcontentlength>{len}</D:getcontentlength><D:resourcetype/>"),
        None => "<D:resourcetype><D:collection/></D:resourcetype>".to_owned(),
    };
    let modified = httpdate::fmt_http_date(std::time::SystemTime::UNIX_EPOCH);
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>.</D:href>\
         <D:propstat><D:prop>{kind}<D:getlastmodified>{modified}</D:getlastmodified></D:prop>\
         <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>\n"
    );
    let mut response = reply(StatusCode::MULTI_STATUS, "application/xml; charset=utf-8", text);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
