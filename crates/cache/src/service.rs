//! The service: requests in, answers out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use throng_ddc::api::{Allow, Family, Media, Method, Range, Route, RouteError, negotiate, query_values};
use throng_ddc::compressed::{Decoder, HEADER_BYTES, Header};
use throng_ddc::gc::RefPolicy;
use throng_ddc::policy::Action;
use throng_ddc::{Bucket, Document, Hasher, IoHash, Namespace, Timestamp, Value};
use throng_store::{Blob, Done, Outcome, Store, StoreError};
use tokio::sync::oneshot;

use crate::access::{Access, Caller, Identity};
use crate::answer::{Answer, IO_HASH, Problem, empty, object, reply};
use crate::body::{Body, Check};
use crate::serve::Listener;
use crate::upload::{Received, Upload, verified};

/// Blobs that were read and found sound; when there are more, the oldest knowledge is dropped and gained again.
const VERIFIED_MAX: usize = 1 << 18;
/// Bytes of a request that lists hashes or operations.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// How one namespace is treated.
#[derive(Clone, Debug)]
pub struct NamespaceRules {
    /// Whether public listeners serve it.
    pub public: bool,
    /// Whether a ref may get another object without the client saying that it means it.
    pub overwrite_refs: bool,
    /// Whether compressed buffers are taken whose content cannot be verified: Oodle, which editors send most.
    pub unverified: bool,
    /// When refs expire.
    pub refs: RefPolicy,
}

impl Default for NamespaceRules {
    fn default() -> NamespaceRules {
        NamespaceRules { public: true, overwrite_refs: true, unverified: true, refs: RefPolicy::Keep }
    }
}

/// What a service is configured to do.
#[derive(Debug)]
pub struct Rules {
    /// Who may do what.
    pub access: Access,
    /// Namespaces that differ from `default`.
    pub namespaces: BTreeMap<Namespace, NamespaceRules>,
    /// All others.
    pub default: NamespaceRules,
    /// Largest blob.
    pub blob_bytes_max: u64,
    /// Largest object.
    pub object_bytes_max: u64,
    /// Largest package.
    pub package_bytes_max: u64,
    /// Name of this site.
    pub site: String,
    /// Addresses of this site, for clients that look for the nearest.
    pub endpoints: Vec<String>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            access: Access::default(),
            namespaces: BTreeMap::new(),
            default: NamespaceRules::default(),
            blob_bytes_max: 16 << 30,
            object_bytes_max: 64 << 20,
            package_bytes_max: 2 << 30,
            site: "local".to_owned(),
            endpoints: Vec::new(),
        }
    }
}

/// Counters since start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) ref_hits: AtomicU64,
    pub(crate) ref_misses: AtomicU64,
    pub(crate) blob_hits: AtomicU64,
    pub(crate) blob_misses: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

/// Answers requests. One for all listeners.
pub struct Service {
    pub(crate) store: Arc<Store>,
    pub(crate) rules: Rules,
    verified: Mutex<HashSet<IoHash>>,
    accesses: Mutex<HashMap<(Namespace, Bucket, throng_ddc::Key), Timestamp>>,
    pub(crate) counters: Counters,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A request, taken apart.
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) query: String,
    pub(crate) caller: Caller,
    pub(crate) listener: Listener,
    pub(crate) upload: Upload,
}

impl Ask {
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn accept(&self) -> Option<&str> {
        self.header(header::ACCEPT)
    }

    /// JSON, or compact binary if the client asks for it.
    pub(crate) fn answer_media(&self, suffix: Option<Media>) -> Media {
        match suffix {
            Some(Media::CompactBinary) => Media::CompactBinary,
            Some(_) => Media::Json,
            None => negotiate(self.accept(), &[Media::Json, Media::CompactBinary]).unwrap_or(Media::Json),
        }
    }

    /// The type of the body. Without one it is the route's first.
    pub(crate) fn content_type(&self, allowed: &[Media]) -> Result<Media, Problem> {
        let unsupported = || {
            let names: Vec<&str> = allowed.iter().map(|media| media.name()).collect();
            let title = format!("the body must be {}", names.join(" or "));
            Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, title)
        };
        let Some(text) = self.header(header::CONTENT_TYPE) else { return Err(unsupported()) };
        Media::parse(text).filter(|media| allowed.contains(media)).ok_or_else(unsupported)
    }
}

impl Service {
    /// A service over `store`, whose commits somebody runs.
    #[must_use]
    pub fn new(store: Arc<Store>, rules: Rules) -> Arc<Service> {
        Arc::new(Service {
            store,
            rules,
            verified: Mutex::default(),
            accesses: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Counters as JSON: what a hit-rate page shows.
    #[must_use]
    pub fn report(&self) -> serde_json::Value {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let stats = self.store.stats();
        let rate = |hits: u64, misses: u64| {
            if hits + misses == 0 {
                serde_json::Value::Null
            } else {
                (hits as f64 / (hits + misses) as f64).into()
            }
        };
        let (ref_hits, ref_misses) = (read(&counters.ref_hits), read(&counters.ref_misses));
        let (blob_hits, blob_misses) = (read(&counters.blob_hits), read(&counters.blob_misses));
        serde_json::json!({
            "requests": read(&counters.requests),
            "failures": read(&counters.failures),
            "refs": { "hits": ref_hits, "misses": ref_misses, "hit_ratio": rate(ref_hits, ref_misses) },
            "blobs": { "hits": blob_hits, "misses": blob_misses, "hit_ratio": rate(blob_hits, blob_misses) },
            "bytes_in": read(&counters.bytes_in),
            "bytes_out": read(&counters.bytes_out),
            "store": {
                "commits": stats.commits,
                "changes": stats.changes,
                "log_bytes": stats.log_bytes,
                "checkpoints": stats.checkpoints,
                "failures": stats.failures,
            },
        })
    }

    /// Answers one request.
    pub async fn answer(
        self: Arc<Service>,
        listener: Listener,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let is_head = request.method() == hyper::Method::HEAD;
        let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let accept = accept.map(str::to_owned);
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let mut response = match self.dispatch(listener, request).await {
            Ok(response) => response,
            Err(problem) => {
                if problem.status.is_server_error() {
                    self.counters.failures.fetch_add(1, Ordering::Relaxed);
                }
                problem.answer(accept.as_deref())
            }
        };
        let length = response.body().len();
        self.counters.bytes_out.fetch_add(if is_head { 0 } else { length }, Ordering::Relaxed);
        if is_head {
            // What a GET would send; the body itself stays here.
            let length = HeaderValue::from(length);
            response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length);
            *response.body_mut() = Body::default();
        }
        response
    }

    async fn dispatch(self: &Arc<Service>, listener: Listener, request: Request<Incoming>) -> Answer {
        let (parts, incoming) = request.into_parts();
        let method = Method::parse(parts.method.as_str());
        let method =
            method.ok_or_else(|| Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no route has this method"))?;
        let route = Route::find(method, parts.uri.path()).map_err(|error| match error {
            RouteError::Unknown => Problem::missing("no such route"),
            RouteError::Malformed(why) => Problem::bad(why),
            RouteError::Method(allowed) => {
                Problem::new(StatusCode::METHOD_NOT_ALLOWED, "the route has other methods")
                    .with(header::ALLOW, Allow(allowed).to_string())
            }
        })?;
        match route {
            Route::Health => return Ok(reply(StatusCode::OK, "text/plain", "Healthy")),
            Route::HealthChecked => {
                return Ok(match self.store.check_writable() {
                    Ok(()) => reply(StatusCode::OK, "text/plain", "Healthy"),
                    Err(_) => reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "Unhealthy"),
                });
            }
            _ => {}
        }
        let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let caller = self.rules.access.identify(authorization).await.map_err(|identity| match identity {
            Identity::Unavailable(why) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, why),
            _ => {
                Problem::new(StatusCode::UNAUTHORIZED, "a valid token is needed: Authorization: Bearer TOKEN")
                    .with(header::WWW_AUTHENTICATE, "Bearer")
            }
        })?;
        let upload = Upload::new(incoming, self.rules.blob_bytes_max)?;
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let ask = Ask { method, headers: parts.headers, query, caller, listener, upload };
        self.route(ask, route).await
    }

    async fn route(self: &Arc<Service>, mut ask: Ask, route: Route) -> Answer {
        use Action::{AdminAction, DeleteBucket, DeleteNamespace, DeleteObject, ReadObject, WriteObject};
        match route {
            Route::Health | Route::HealthChecked => unreachable!("answered before"),
            Route::Status => Ok(json(&serde_json::json!({
                "version": env!("CARGO_PKG_VERSION"),
                "gitHash": "",
                "capabilities": ["transactionlog", "ddc"],
                "siteIdentifier": self.rules.site,
            }))),
            Route::Peers => Ok(self.peers(&ask)),
            Route::Auth(namespace) => {
                self.permit(&ask, ReadObject, &namespace, None)?;
                Ok(empty(StatusCode::OK))
            }
            Route::AuthActions(namespace, bucket) => Ok(self.actions(&ask, &namespace, bucket.as_ref())),
            Route::Namespaces => {
                let mut readable = self.store.namespaces()?;
                readable.retain(|namespace| self.permit(&ask, ReadObject, namespace, None).is_ok());
                if readable.is_empty() && ask.caller.claims.is_some() {
                    return Err(Problem::new(StatusCode::FORBIDDEN, "no namespace may be read"));
                }
                let names: Vec<&str> = readable.iter().map(Namespace::as_str).collect();
                Ok(json(&serde_json::json!({ "namespaces": names })))
            }
            Route::RefNamespace(namespace) if ask.method == Method::Delete => {
                self.permit(&ask, DeleteNamespace, &namespace, None)?;
                if !self.store.namespaces()?.contains(&namespace) {
                    return Err(Problem::missing("nothing is stored in this namespace"));
                }
                self.delete_refs(&namespace, None).await?;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            Route::RefNamespace(namespace) => self.batch(&mut ask, &namespace).await,
            Route::RefsExist(namespace) => {
                self.permit(&ask, ReadObject, &namespace, None)?;
                self.refs_exist(&ask, &namespace)
            }
            Route::Bucket(namespace, bucket) => {
                self.permit(&ask, DeleteBucket, &namespace, Some(&bucket))?;
                let count = self.delete_refs(&namespace, Some(&bucket)).await?;
                let value = Value::object([("countOfDeletedRecords", Value::Integer(count))]);
                Ok(object(&value, ask.answer_media(None)))
            }
            Route::Ref(name, suffix) => {
                let action = match ask.method {
                    Method::Put => WriteObject,
                    Method::Delete => DeleteObject,
                    _ => ReadObject,
                };
                self.permit(&ask, action, &name.namespace, Some(&name.bucket))?;
                match ask.method {
                    Method::Put => self.put_ref(&mut ask, &name, suffix).await,
                    Method::Delete => self.delete_ref(&ask, &name).await,
                    Method::Head => self.head_ref(&name),
                    _ => self.get_ref(&ask, &name, suffix),
                }
            }
            Route::Finalise(name, hash, suffix) => {
                self.permit(&ask, WriteObject, &name.namespace, Some(&name.bucket))?;
                self.finalise(&ask, &name, hash, suffix).await
            }
            Route::RefMetadata(name) => {
                self.permit(&ask, ReadObject, &name.namespace, Some(&name.bucket))?;
                self.metadata(&name)
            }
            Route::RefReferences(name) => {
                self.permit(&ask, ReadObject, &name.namespace, Some(&name.bucket))?;
                self.references(&ask, &name)
            }
            Route::RefReplication(name) => {
                self.permit(&ask, AdminAction, &name.namespace, Some(&name.bucket))?;
                self.replication_state(&name)
            }
            Route::RefBlob(name, hash) => {
                let action = if ask.method == Method::Put { WriteObject } else { ReadObject };
                self.permit(&ask, action, &name.namespace, Some(&name.bucket))?;
                if ask.method != Method::Put {
                    return self.get_compressed(&ask, &name.namespace, &hash);
                }
                match ask.content_type(&[Media::Compressed, Media::Octets])? {
                    Media::Compressed => self.put_compressed(&mut ask, &name.namespace, Some(hash)).await,
                    _ => self.put_blob(&mut ask, &name.namespace, Some(hash), false).await,
                }
            }
            Route::BlobBatch => self.blob_batch(&mut ask).await,
            Route::Family(_, namespace) if ask.method == Method::Delete => {
                self.permit(&ask, DeleteNamespace, &namespace, None)?;
                self.delete_blobs(&namespace).await?;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            Route::Family(family, namespace) => {
                self.permit(&ask, WriteObject, &namespace, None)?;
                match family {
                    Family::Compressed => {
                        ask.content_type(&[Media::Compressed])?;
                        self.put_compressed(&mut ask, &namespace, None).await
                    }
                    _ => {
                        ask.content_type(&[Media::Octets])?;
                        self.put_blob(&mut ask, &namespace, None, false).await
                    }
                }
            }
            Route::Exists(family, namespace) | Route::Exist(family, namespace) => {
                self.permit(&ask, ReadObject, &namespace, None)?;
                self.exists(&mut ask, family, &namespace).await
            }
            Route::Blob(family, namespace, hash) => {
                let action = match ask.method {
                    Method::Put => WriteObject,
                    Method::Delete => DeleteObject,
                    _ => ReadObject,
                };
                self.permit(&ask, action, &namespace, None)?;
                self.blob_route(&mut ask, family, &namespace, hash).await
            }
            Route::ObjectReferences(namespace, hash) => {
                self.permit(&ask, ReadObject, &namespace, None)?;
                let bytes = self.store.read_blob(&namespace, &hash)?;
                let bytes = bytes.ok_or_else(|| Problem::missing("no such object"))?;
                let document = Document::parse(&bytes).map_err(Problem::bad)?;
                let (closure, blobs) = self.store.close(&namespace, &document)?;
                if !closure.missing().is_empty() {
                    return Err(Problem::bad("something that the object refers to is missing"));
                }
                let media = negotiate(ask.accept(), &[Media::CompactBinary, Media::Json]);
                let value = Value::object([("references", Value::hashes(blobs))]);
                Ok(object(&value, media.unwrap_or(Media::CompactBinary)))
            }
            Route::ContentId(namespace, id) => {
                self.permit(&ask, ReadObject, &namespace, None)?;
                let blob = self.store.content(&namespace, &id)?;
                let blob = blob.ok_or_else(|| Problem::missing("no such content id"))?;
                Ok(json(&serde_json::json!({ "blobs": [format!("{blob:X}")] })))
            }
            Route::ContentIdUpdate(namespace, id, blob, weight) => {
                self.permit(&ask, WriteObject, &namespace, None)?;
                self.commit(|done| self.store.put_content(&namespace, id, weight, blob, done)).await?;
                Ok(empty(StatusCode::OK))
            }
            Route::ReplicationLog(_)
            | Route::Snapshots(_)
            | Route::SnapshotCreate(_)
            | Route::RefCleanup
            | Route::LastAccessRollup
            | Route::Settings => self.admin(&ask, &route),
        }
    }

    pub(crate) fn permit(
        &self,
        ask: &Ask,
        action: Action,
        namespace: &Namespace,
        bucket: Option<&Bucket>,
    ) -> Result<(), Problem> {
        let forbidden = |why: String| Err(Problem::new(StatusCode::FORBIDDEN, why));
        if ask.listener == Listener::Public && !self.rules_of(namespace).public {
            return forbidden(format!("the namespace {namespace} is not served on public listeners"));
        }
        if self.rules.access.permit(&ask.caller, action, namespace, bucket) {
            Ok(())
        } else {
            forbidden(format!("{} is not permitted in namespace {namespace}", action.name()))
        }
    }

    pub(crate) fn rules_of(&self, namespace: &Namespace) -> &NamespaceRules {
        self.rules.namespaces.get(namespace).unwrap_or(&self.rules.default)
    }

    /// Makes a change and waits until it is acknowledged.
    pub(crate) async fn commit(&self, change: impl FnOnce(Done)) -> Result<Outcome, StoreError> {
        let (sender, receiver) = oneshot::channel();
        change(Box::new(move |outcome| drop(sender.send(outcome))));
        receiver.await.unwrap_or(Err(StoreError::Busy))
    }

    pub(crate) fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_unix_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Notes that a ref was used; gives when it was used before.
    pub(crate) fn touch(&self, name: &throng_ddc::api::RefName) -> Option<Timestamp> {
        let now = self.now();
        let key = (name.namespace.clone(), name.bucket.clone(), name.key);
        let mut accesses = self.accesses.lock().unwrap_or_else(PoisonError::into_inner);
        if accesses.len() >= VERIFIED_MAX && !accesses.contains_key(&key) {
            accesses.clear();
        }
        accesses.insert(key, now)
    }

    // --- Blobs

    async fn blob_route(
        self: &Arc<Service>,
        ask: &mut Ask,
        family: Family,
        namespace: &Namespace,
        hash: IoHash,
    ) -> Answer {
        match (ask.method, family) {
            (Method::Put, Family::Compressed) => {
                ask.content_type(&[Media::Compressed])?;
                self.put_compressed(ask, namespace, Some(hash)).await
            }
            (Method::Put, Family::Objects) => {
                ask.content_type(&[Media::CompactBinary])?;
                self.put_blob(ask, namespace, Some(hash), true).await
            }
            (Method::Put, Family::Blobs) => {
                ask.content_type(&[Media::Octets])?;
                self.put_blob(ask, namespace, Some(hash), false).await
            }
            (Method::Delete, Family::Compressed) => {
                let mut result = Ok(Outcome::Unchanged);
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
                    Outcome::Unchanged => Err(Problem::missing("no such compressed blob")),
                    _ => Ok(empty(StatusCode::OK)),
                }
            }
            (Method::Delete, _) => {
                let outcome = self.commit(|done| self.store.delete_blob(namespace, &hash, done)).await?;
                match (outcome, family) {
                    (Outcome::Unchanged, _) => Err(Problem::missing("no such blob")),
                    (_, Family::Objects) => {
                        let value = Value::object([("deletedCount", Value::Integer(1))]);
                        Ok(object(&value, ask.answer_media(None)))
                    }
                    _ => Ok(empty(StatusCode::NO_CONTENT)),
                }
            }
            (_, Family::Compressed) => self.get_compressed(ask, namespace, &hash),
            (_, Family::Objects) => self.get_blob(ask, namespace, &hash, Media::CompactBinary),
            (_, Family::Blobs) => self.get_blob(ask, namespace, &hash, Media::Octets),
        }
    }

    fn get_blob(
        self: &Arc<Service>,
        ask: &Ask,
        namespace: &Namespace,
        hash: &IoHash,
        media: Media,
    ) -> Answer {
        let blob = self.find_blob(namespace, hash)?.ok_or_else(|| Problem::missing("no such blob"))?;
        self.blob_answer(ask, namespace, hash, blob, media)
    }

    pub(crate) fn get_compressed(
        self: &Arc<Service>,
        ask: &Ask,
        namespace: &Namespace,
        id: &IoHash,
    ) -> Answer {
        let (hash, media) = match self.store.content(namespace, id)? {
            Some(form) => (form, Media::Compressed),
            None => (*id, Media::Octets),
        };
        let blob =
            self.find_blob(namespace, &hash)?.ok_or_else(|| Problem::missing("no such compressed blob"))?;
        if negotiate(ask.accept(), &[media]).is_none() {
            let title = format!("what is stored is {}", media.name());
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, title));
        }
        let mut response = self.blob_answer(ask, namespace, &hash, blob, media)?;
        if response.status() == StatusCode::OK {
            response.headers_mut().insert(IO_HASH, hash_value(&hash));
        }
        Ok(response)
    }

    pub(crate) fn find_blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<Blob>, StoreError> {
        let found = self.store.blob(namespace, hash)?;
        let counter = if found.is_some() { &self.counters.blob_hits } else { &self.counters.blob_misses };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(found)
    }

    /// A blob, or the part of it that was asked for, or that the client has it.
    fn blob_answer(
        self: &Arc<Service>,
        ask: &Ask,
        namespace: &Namespace,
        hash: &IoHash,
        blob: Blob,
        media: Media,
    ) -> Answer {
        let tag = format!("\"{hash}\"");
        let mut response = if matches_tag(ask.header(header::IF_NONE_MATCH), &tag) {
            empty(StatusCode::NOT_MODIFIED)
        } else {
            // A part of something else than the client has is of no use to it.
            let range = ask.header(header::RANGE).filter(|_| {
                ask.method == Method::Get && ask.header(header::IF_RANGE).is_none_or(|wanted| wanted == tag)
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
                    let mut body = Body::default();
                    body.push_blob(blob, start, end, None);
                    let mut response = Response::new(body);
                    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                    if let Ok(value) = HeaderValue::try_from(format!("bytes {start}-{}/{len}", end - 1)) {
                        response.headers_mut().insert(header::CONTENT_RANGE, value);
                    }
                    response
                }
                Range::Whole => {
                    let mut body = Body::default();
                    if ask.method == Method::Get {
                        self.push_whole(&mut body, namespace, hash, blob)?;
                    } else {
                        body.push_blob(blob, 0, len, None);
                    }
                    Response::new(body)
                }
            }
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.extend(HeaderValue::try_from(tag).ok().map(|tag| (header::ETAG, tag)));
        Ok(response)
    }

    /// Adds a whole blob to a body. What is read for the first time is verified: small blobs before anything is sent, large
    /// ones before their last piece is.
    pub(crate) fn push_whole(
        self: &Arc<Service>,
        body: &mut Body,
        namespace: &Namespace,
        hash: &IoHash,
        blob: Blob,
    ) -> Result<(), Problem> {
        let len = blob.len();
        let known = self.is_verified(hash);
        if len > crate::upload::SMALL_BYTES_MAX as u64 {
            let check = (!known).then(|| {
                let (store, namespace) = (Arc::clone(&self.store), namespace.clone());
                Box::new(Check { store, namespace, hash: *hash, hasher: Hasher::new() })
            });
            body.push_blob(blob, 0, len, check);
            return Ok(());
        }
        let bytes = blob.read(0, len as usize)?;
        if !known {
            if IoHash::of(&bytes) != *hash {
                self.store.discard_damaged(namespace, hash, &blob);
                return Err(Problem::missing("the blob was damaged and is gone"));
            }
            self.set_verified(hash);
        }
        body.push_bytes(bytes);
        Ok(())
    }

    fn is_verified(&self, hash: &IoHash) -> bool {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).contains(hash)
    }

    fn set_verified(&self, hash: &IoHash) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(*hash);
    }

    pub(crate) async fn put_blob(
        self: &Arc<Service>,
        ask: &mut Ask,
        namespace: &Namespace,
        wanted: Option<IoHash>,
        is_object: bool,
    ) -> Answer {
        let received = if is_object {
            ask.upload.limit(self.rules.object_bytes_max)?;
            let bytes = ask.upload.all().await?;
            Document::parse(&bytes).map_err(Problem::bad)?;
            let hash = IoHash::of(&bytes);
            Received::Small(bytes, hash)
        } else {
            ask.upload.receive(&self.store, None, None).await?
        };
        let hash = received.hash();
        check_hash(wanted, hash)?;
        self.keep(namespace, received).await?;
        let value = Value::object([("identifier", Value::Hash(hash))]);
        Ok(object(&value, ask.answer_media(None)))
    }

    pub(crate) async fn put_compressed(
        self: &Arc<Service>,
        ask: &mut Ask,
        namespace: &Namespace,
        wanted: Option<IoHash>,
    ) -> Answer {
        let mut decoder = Decoder::new();
        let received = ask.upload.receive(&self.store, None, Some(&mut decoder)).await?;
        let raw = self.keep_compressed(namespace, received, decoder, wanted).await?;
        let value = Value::object([("identifier", Value::Hash(raw))]);
        Ok(object(&value, ask.answer_media(None)))
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
            return Err(Problem::bad(
                "this namespace takes only compressed buffers whose content can be verified",
            ));
        }
        let (hash, len) = (received.hash(), received.len());
        self.keep(namespace, received).await?;
        self.commit(|done| self.store.put_content(namespace, raw, len, hash, done)).await?;
        Ok(raw)
    }

    /// Stores what was received, under its own hash.
    pub(crate) async fn keep(&self, namespace: &Namespace, received: Received) -> Result<(), Problem> {
        let hash = received.hash();
        self.counters.bytes_in.fetch_add(received.len(), Ordering::Relaxed);
        // The usual repeated upload: what is in the index is durable.
        if self.store.has_blob(namespace, &hash)? {
            return Ok(());
        }
        let now = self.now();
        let (sender, receiver) = oneshot::channel();
        let done: Done = Box::new(move |outcome| drop(sender.send(outcome)));
        match received {
            Received::Small(bytes, _) => {
                // A piece of the connection's read buffer would keep all of it alive while it waits.
                self.store.put_blob(namespace, hash, bytes, now, done);
            }
            Received::Large(writer) => {
                tokio::task::block_in_place(|| self.store.put_large(namespace, *writer, now, done))?;
            }
        }
        receiver.await.unwrap_or(Err(StoreError::Busy))?;
        self.set_verified(&hash);
        Ok(())
    }

    async fn delete_blobs(&self, namespace: &Namespace) -> Result<(), Problem> {
        self.delete_refs(namespace, None).await?;
        let (sender, receiver) = oneshot::channel();
        self.store.delete_blobs(namespace, Box::new(move |outcome| drop(sender.send(outcome))))?;
        receiver.await.unwrap_or(Err(StoreError::Busy))?;
        Ok(())
    }

    async fn exists(&self, ask: &mut Ask, family: Family, namespace: &Namespace) -> Answer {
        let mut ids = Vec::new();
        for text in query_values(&ask.query, "id") {
            ids.push(text.parse::<IoHash>().map_err(Problem::bad)?);
        }
        ask.upload.limit(LIST_BYTES_MAX)?;
        let body = ask.upload.all().await?;
        if ids.is_empty() && !body.is_empty() {
            ids = if ask.header(header::CONTENT_TYPE).and_then(Media::parse) == Some(Media::CompactBinary) {
                hashes_of_array(&body).ok_or_else(|| Problem::bad("the body is no array of hashes"))?
            } else {
                let texts: Vec<String> = serde_json::from_slice(&body).map_err(Problem::bad)?;
                texts.iter().map(|text| text.parse()).collect::<Result<_, _>>().map_err(Problem::bad)?
            };
        }
        let mut missing = Vec::new();
        for id in ids {
            let there = match family {
                Family::Compressed => {
                    self.store.content(namespace, &id)?.is_some() || self.store.has_blob(namespace, &id)?
                }
                _ => self.store.has_blob(namespace, &id)?,
            };
            if !there {
                missing.push(id);
            }
        }
        let value = Value::object([("needs", Value::hashes(missing))]);
        Ok(object(&value, ask.answer_media(None)))
    }

    async fn blob_batch(self: &Arc<Service>, ask: &mut Ask) -> Answer {
        ask.upload.limit(LIST_BYTES_MAX)?;
        let body = ask.upload.all().await?;
        let request: serde_json::Value = serde_json::from_slice(&body).map_err(Problem::bad)?;
        let member = |value: &serde_json::Value, name: &str| {
            let object = value.as_object()?;
            object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
        };
        let operations = member(&request, "operations").and_then(|value| value.as_array().cloned());
        let operations = operations.ok_or_else(|| Problem::bad("there is no array named operations"))?;
        let mut planned = Vec::new();
        for operation in &operations {
            let text =
                |name: &str| member(operation, name).and_then(|value| value.as_str().map(str::to_owned));
            let op = text("op").unwrap_or_default().to_ascii_uppercase();
            let namespace: Namespace = text("namespace").unwrap_or_default().parse().map_err(Problem::bad)?;
            let action = match op.as_str() {
                "GET" | "HEAD" => Action::ReadObject,
                "PUT" => Action::WriteObject,
                "DELETE" => Action::DeleteObject,
                _ => return Err(Problem::bad("op is GET, HEAD, PUT or DELETE")),
            };
            self.permit(ask, action, &namespace, None)?;
            let content =
                text("content").map(|content| STANDARD.decode(content)).transpose().map_err(Problem::bad)?;
            let id = match text("id") {
                Some(id) => Some(id.parse::<IoHash>().map_err(Problem::bad)?),
                None if op == "PUT" => None,
                None => return Err(Problem::bad("an operation has no id")),
            };
            planned.push((op, namespace, id, content));
        }
        let mut results = Vec::new();
        for (op, namespace, id, content) in planned {
            let hash = id.unwrap_or_default();
            results.push(match op.as_str() {
                "GET" => {
                    let blob =
                        self.find_blob(&namespace, &hash)?.ok_or_else(|| Problem::missing("no such blob"))?;
                    let bytes = blob.read(0, usize::try_from(blob.len()).unwrap_or(usize::MAX))?;
                    STANDARD.encode(bytes).into()
                }
                "HEAD" if self.store.has_blob(&namespace, &hash)? => serde_json::Value::Null,
                "HEAD" => format!("{hash:X}").into(),
                "PUT" => {
                    let bytes = Bytes::from(content.ok_or_else(|| Problem::bad("a PUT has no content"))?);
                    let found = IoHash::of(&bytes);
                    check_hash(id, found)?;
                    self.keep(&namespace, Received::Small(bytes, found)).await?;
                    format!("{found:X}").into()
                }
                _ => {
                    self.commit(|done| self.store.delete_blob(&namespace, &hash, done)).await?;
                    serde_json::Value::Null
                }
            });
        }
        Ok(json(&serde_json::Value::Array(results)))
    }

    // --- The service itself

    fn peers(&self, ask: &Ask) -> Response<Body> {
        let site = Value::string(&self.rules.site);
        let endpoints = self.rules.endpoints.iter().map(|endpoint| Value::string(endpoint)).collect();
        let peer = Value::object([
            ("site", site.clone()),
            ("fullName", site.clone()),
            ("latency", Value::Integer(0)),
            ("endpoints", Value::Array(endpoints)),
        ]);
        let value = Value::object([("currentSite", site), ("peers", Value::Array(vec![peer]))]);
        object(&value, ask.answer_media(None))
    }

    fn actions(&self, ask: &Ask, namespace: &Namespace, bucket: Option<&Bucket>) -> Response<Body> {
        let permitted = |action: &&Action| self.rules.access.permit(&ask.caller, **action, namespace, bucket);
        let names: Vec<&str> = Action::ALL.iter().filter(permitted).map(|action| action.name()).collect();
        let mut matched = Vec::new();
        if let Some(claims) = &ask.caller.claims {
            for policy in self.rules.access.policies.matching(claims, namespace, bucket) {
                let actions: Vec<&str> = policy.acl.actions.iter().map(|action| action.name()).collect();
                matched.push(serde_json::json!({
                    "name": policy.name, "actions": actions, "claims": policy.acl.claims,
                }));
            }
        }
        json(&serde_json::json!({ "actions": names, "logOutput": [], "matchedPolicies": matched }))
    }

    fn admin(&self, ask: &Ask, route: &Route) -> Answer {
        if ask.listener != Listener::Internal {
            return Err(Problem::missing("no such route on this listener"));
        }
        let everywhere: Namespace = "admin".parse().map_err(Problem::bad)?;
        let (action, namespace) = match route {
            Route::ReplicationLog(namespace) | Route::Snapshots(namespace) => {
                (Action::ReadTransactionLog, namespace)
            }
            Route::SnapshotCreate(namespace) => (Action::WriteTransactionLog, namespace),
            _ => (Action::AdminAction, &everywhere),
        };
        self.permit(ask, action, namespace, None)?;
        match route {
            Route::Settings => Ok(json(&serde_json::json!({ "settings": { "site": self.rules.site } }))),
            Route::LastAccessRollup => Ok(json(&serde_json::json!({ "updatedRecords": [] }))),
            Route::RefCleanup => {
                let policy = |namespace: &Namespace| self.rules_of(namespace).refs;
                let last = |namespace: &Namespace, bucket: &Bucket, key: &throng_ddc::Key| {
                    let key = (namespace.clone(), bucket.clone(), *key);
                    self.accesses.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
                };
                let options = throng_store::CollectOptions {
                    now: self.now(),
                    policy: &policy,
                    last_access: &last,
                    blob_age_min: throng_ddc::gc::BLOB_AGE_MIN,
                };
                let collected = tokio::task::block_in_place(|| self.store.collect(&options))?;
                Ok(json(&serde_json::json!({ "countOfRemovedRecords": collected.refs })))
            }
            _ => Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "this node keeps no replication log")),
        }
    }
}

fn check_hash(wanted: Option<IoHash>, found: IoHash) -> Result<(), Problem> {
    match wanted {
        Some(wanted) if wanted != found => {
            Err(Problem::hash_mismatch(format!("the data hashes to {found:X}, not to {wanted:X}")))
        }
        _ => Ok(()),
    }
}

/// Whether a list of entity tags has this one.
fn matches_tag(header: Option<&str>, tag: &str) -> bool {
    header.is_some_and(|header| {
        header.split(',').map(str::trim).any(|each| each == "*" || each.trim_start_matches("W/") == tag)
    })
}

/// The hashes of a compact binary array.
fn hashes_of_array(bytes: &[u8]) -> Option<Vec<IoHash>> {
    let unreadable = throng_ddc::check(bytes).iter().any(|defect| {
        use throng_ddc::Defect::{InvalidType, OutOfBounds, Padding, TooDeep};
        [OutOfBounds, InvalidType, Padding, TooDeep].contains(&defect)
    });
    let (field, _) = throng_ddc::Field::read(bytes).filter(|(field, _)| !unreadable && field.is_array())?;
    field.iter().map(|item| item.hash().or_else(|| item.text()?.parse().ok())).collect()
}

pub(crate) fn hash_value(hash: &IoHash) -> HeaderValue {
    HeaderValue::try_from(format!("{hash:X}")).expect("hexadecimal digits are a header value")
}

pub(crate) fn json(value: &serde_json::Value) -> Response<Body> {
    reply(StatusCode::OK, Media::Json.name(), value.to_string())
}

/// The raw data of a stored compressed buffer, if it can be decompressed.
pub(crate) fn decompress(blob: &Blob, raw_bytes_max: u64) -> Result<Option<Bytes>, Problem> {
    let head = blob.read(0, HEADER_BYTES.min(blob.len() as usize))?;
    let header = Header::read(&head).map_err(Problem::bad)?;
    if header.raw_size > raw_bytes_max {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the raw data is too large to be decompressed here",
        ));
    }
    let bytes = blob.read(0, blob.len() as usize)?;
    let raw = throng_ddc::compressed::decompress(&bytes, raw_bytes_max).map_err(Problem::bad)?;
    Ok(raw.map(Bytes::from))
}
