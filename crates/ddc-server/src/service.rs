//! The service: requests in, answers out.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use throng_ddc::api::{Allow, Family, Media, Method, RefName, Route, RouteError, negotiate};
use throng_ddc::compressed::{Decoder, OodleDecoder};
use throng_ddc::gc::RefPolicy;
use throng_ddc::policy::Action;
use throng_ddc::{Bucket, IoHash, Namespace, Timestamp, Value};
use throng_ddc_store::{ChangeResult, Clock, Done, Quotas, Store, StoreError, Unused, Usage};
use tokio::sync::oneshot;

use crate::access::{Access, Caller, Identity};
use crate::answer::{Answer, Problem, empty, object, reply, unverifiable};
use crate::blocking;
use crate::body::Body;
use crate::entry::Entry;
use crate::listener::Listener;
use crate::memory::{MEMORY_WAIT, Memory};
use crate::origin::{Flights, Origin, OriginCounters, Reach};
use crate::preconditions::Preconditions;
use crate::recent::RecentMax;
use crate::source::Source;
use crate::stats::{Counters, Operation};
use crate::streaming::StreamedBlob;
use crate::upload::Upload;
use crate::upstream::{Way, came_back, for_request};

/// Refs whose last use is kept in memory; with more, all are written down at once, and uploads wait
/// meanwhile.
const ACCESSES_MAX: usize = 1 << 13;

/// Locks that the changes of all refs share.
const CHANGE_LOCKS: usize = 256;

/// How one namespace is treated.
#[derive(Clone, Debug)]
pub struct NamespaceRules {
    /// True if public listeners serve it.
    pub public: bool,
    /// True if a ref may get another object without the client saying that it means it.
    pub overwrite_refs: bool,
    /// True if compressed buffers are taken whose content cannot be verified: Oodle, which editors
    /// send most, without [`Rules::oodle`].
    pub unverified: bool,
    /// Time when refs expire.
    pub refs: RefPolicy,
    /// Where a blob is taken from that this namespace does not have. Who asks must be permitted to
    /// read there.
    pub fallback: Option<Namespace>,
    /// True if what is uploaded goes to `fallback` as well, if who uploads may write there.
    pub fills_fallback: bool,
    /// True if a client that asks for it is sent to the object storage for a blob.
    pub redirects: bool,
    /// True if its refs and blobs stay when the folder is full: uploads are refused instead.
    pub keeps: bool,
}

impl Default for NamespaceRules {
    fn default() -> NamespaceRules {
        NamespaceRules {
            public: true,
            overwrite_refs: true,
            unverified: true,
            refs: RefPolicy::Keep,
            fallback: None,
            fills_fallback: true,
            redirects: false,
            keeps: false,
        }
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
    /// Memory of all requests for what they hold as a whole or decompress: bodies, objects, answers
    /// to batches. Read when the service starts.
    pub memory_bytes_max: u64,
    /// Name of this site.
    pub site: String,
    /// Addresses of this site, for clients that look for the nearest.
    pub endpoints: Vec<String>,
    /// How much namespaces may hold.
    pub quotas: Quotas,
    /// What Oodle blocks are verified with, if there is something.
    pub oodle: Option<Arc<dyn OodleDecoder>>,
    /// Age of its last check at which a blob is hashed again before it is served.
    pub recheck: Duration,
    /// Age at which a ref that came from the upstream is looked up there again.
    pub upstream_fresh: Duration,
    /// Upkeep that a node does by itself.
    pub maintenance: Maintenance,
}

/// What a node does by itself, and when.
#[derive(Clone, Copy, Debug)]
pub struct Maintenance {
    /// Time between two collections; `None` for no collection.
    pub collect_every: Option<Duration>,
    /// Time between two scrubs; `None` for no scrub.
    pub scrub_every: Option<Duration>,
    /// Bytes that a scrub reads in a second.
    pub scrub_bytes_per_s: u64,
    /// How often the last uses of refs are written down.
    pub note_every: Duration,
    /// How long events of the replication log are kept.
    pub events_age_max: Duration,
    /// Bytes that the folder may hold, if it has copies of what an object storage has.
    pub copies_bytes_max: Option<u64>,
    /// Bytes that the folder may hold without an object storage; `None` for 90 % of what it holds
    /// and the disk has left, where a loss of disk space takes effect after some minutes.
    pub bytes_max: Option<u64>,
}

impl Default for Maintenance {
    fn default() -> Maintenance {
        Maintenance {
            collect_every: None,
            scrub_every: None,
            scrub_bytes_per_s: 50 << 20,
            note_every: Duration::from_secs(15 * 60),
            events_age_max: Duration::from_secs(7 * 24 * 3600),
            copies_bytes_max: None,
            bytes_max: None,
        }
    }
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
            memory_bytes_max: 256 << 20,
            site: "local".to_owned(),
            endpoints: Vec::new(),
            quotas: Quotas::default(),
            oodle: None,
            recheck: Duration::from_secs(3600),
            upstream_fresh: Duration::from_secs(60),
            maintenance: Maintenance::default(),
        }
    }
}

impl Rules {
    /// Rules of one namespace.
    fn of(&self, namespace: &Namespace) -> &NamespaceRules {
        self.namespaces.get(namespace).unwrap_or(&self.default)
    }

    /// Quotas, and the namespaces that keep everything.
    fn quotas_of_store(&self) -> Quotas {
        let kept = self.namespaces.iter().filter(|(_, rules)| rules.keeps);
        Quotas { kept: kept.map(|(namespace, _)| namespace.clone()).collect(), ..self.quotas.clone() }
    }
}

/// Copies of blobs whose last use is known; with more, all is forgotten and gained again.
pub(crate) const USES_MAX: usize = 1 << 20;

/// Time when refs were last used.
pub(crate) type Accesses = HashMap<RefName, Timestamp>;

/// Answers requests. One for all listeners.
pub struct Service {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Arc<Store>,
    rules: RwLock<Arc<Rules>>,
    pub(crate) memory: Memory,
    origin: Origin,
    pub(crate) origin_counters: OriginCounters,
    pub(crate) flights: Flights,
    /// Changes of refs, by a hash of their names: one that depends on the present state of its ref
    /// excludes the others.
    pub(crate) changes: Vec<tokio::sync::RwLock<()>>,
    /// Refs that are written again because they are old and used.
    pub(crate) refreshes: Mutex<HashSet<(Namespace, Bucket, throng_ddc::Key)>>,
    /// Blobs that are served while they come.
    pub(crate) streamed: Mutex<HashMap<(Namespace, IoHash), Arc<StreamedBlob>>>,
    /// Time when copies of blobs were last used. Only with an object storage, whose copies they
    /// are.
    pub(crate) uses: Mutex<HashMap<IoHash, Timestamp>>,
    /// Blobs whose bytes were seen to have their hash, by where they lie, each with the time of the
    /// service's clock.
    pub(crate) verified: Mutex<HashMap<throng_ddc_store::BlobId, Duration>>,
    /// Bytes of copies on their way into namespaces with a quota.
    pub(crate) copies_coming: Mutex<HashMap<Namespace, u64>>,
    /// Refs that came from the upstream, and when it last said that they are as they were.
    pub(crate) fresh: Mutex<HashMap<RefName, Duration>>,
    pub(crate) accesses: Mutex<Accesses>,
    /// Bytes that the folder holds and the disk has left.
    pub(crate) available: Mutex<RecentMax>,
    /// Milliseconds since 1970 at which last uses were last written down.
    pub(crate) noted: AtomicU64,
    pub(crate) counters: Counters,
    /// Sizes of namespaces at the last count, the largest first.
    pub(crate) sizes: Mutex<Vec<(Namespace, Usage)>>,
    /// Refs and copies that were unused longest at the last count, the longest first.
    pub(crate) unused: Mutex<Vec<Unused>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A request as a connection gives it.
pub(crate) struct RawRequest<'c> {
    pub(crate) method: &'c str,
    pub(crate) path: &'c str,
    pub(crate) query: &'c str,
    pub(crate) headers: &'c HeaderMap,
    pub(crate) source: Box<dyn Source + 'c>,
}

/// A request, taken apart.
pub(crate) struct ApiRequest<'c> {
    pub(crate) method: Method,
    pub(crate) headers: &'c HeaderMap,
    pub(crate) query: &'c str,
    pub(crate) caller: Caller,
    pub(crate) listener: Listener,
    pub(crate) upload: Upload<'c>,
}

impl ApiRequest<'_> {
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn accept(&self) -> Option<&str> {
        self.header(header::ACCEPT)
    }

    pub(crate) fn preconditions(&self) -> Preconditions {
        Preconditions::of(self.headers)
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
    /// A service over `store`, whose commits somebody runs, and which gets what it does not have
    /// from `origin`.
    #[must_use]
    pub fn new(store: Arc<Store>, rules: Rules, origin: Origin) -> Arc<Service> {
        store.set_quotas(rules.quotas_of_store());
        Arc::new(Service {
            clock: Arc::clone(store.clock()),
            store,
            memory: Memory::new(rules.memory_bytes_max),
            rules: RwLock::new(Arc::new(rules)),
            origin,
            origin_counters: OriginCounters::default(),
            flights: Flights::default(),
            copies_coming: Mutex::default(),
            changes: (0..CHANGE_LOCKS).map(|_| tokio::sync::RwLock::default()).collect(),
            refreshes: Mutex::default(),
            streamed: Mutex::default(),
            uses: Mutex::default(),
            verified: Mutex::default(),
            fresh: Mutex::default(),
            accesses: Mutex::default(),
            available: Mutex::default(),
            noted: AtomicU64::new(0),
            counters: Counters::default(),
            sizes: Mutex::default(),
            unused: Mutex::default(),
        })
    }

    /// Origin of the data, for the request of this task: there is none for one that came back to
    /// the cache that sent it.
    pub(crate) fn origin(&self) -> &Origin {
        const ALONE: &Origin = &Origin::Alone;
        if came_back() { ALONE } else { &self.origin }
    }

    /// What the service is configured to do.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces what the service is configured to do, for requests from now on. What a node does by
    /// itself ([`Rules::maintenance`]) stays as it was at the start.
    pub fn set_rules(&self, rules: Rules) {
        self.store.set_quotas(rules.quotas_of_store());
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Answers one request.
    pub(crate) async fn answer(
        self: &Arc<Service>,
        listener: Listener,
        question: RawRequest<'_>,
    ) -> Response<Body> {
        let (is_head, headers) = (question.method == "HEAD", question.headers);
        let address = question.source.address();
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let (started, mut operation) = (Instant::now(), Operation::Other);
        let way = self.upstream().and_then(|upstream| upstream.way_of(headers));
        if matches!(way, Some(Way::Back)) && self.origin_counters.loop_log.is_due(self.clock.elapsed()) {
            tracing::warn!(
                path = question.path,
                "a request came back through ddc.upstream.url (Via); it is answered from the folder alone"
            );
        }
        // A function that takes a future holds it twice, and every move copies all of it: the usual
        // request is awaited in its place.
        let mut dispatched = match way {
            None => self.dispatch(listener, question, &mut operation).await,
            Some(_) => Box::pin(for_request(way, self.dispatch(listener, question, &mut operation))).await,
        };
        if !is_head && dispatched.as_ref().is_ok_and(|response| response.body().uncounted_bytes() > 0) {
            dispatched = Box::pin(self.held_answer(address, dispatched)).await;
        }
        self.counters.observe(operation, started.elapsed());
        let mut response = match dispatched {
            Ok(response) => response,
            Err(problem) => {
                if problem.status.is_server_error() {
                    self.counters.failures.fetch_add(1, Ordering::Relaxed);
                }
                if problem.status == StatusCode::TOO_MANY_REQUESTS {
                    self.counters.overloaded.fetch_add(1, Ordering::Relaxed);
                }
                problem.answer(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()))
            }
        };
        response.body_mut().watch(self.memory.waiters());
        let length = response.body().len();
        self.counters.bytes_out.fetch_add(if is_head { 0 } else { length }, Ordering::Relaxed);
        if is_head && response.status() != StatusCode::NOT_MODIFIED {
            // What a GET would send; the body itself stays here.
            let length = HeaderValue::from(length);
            response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(length);
            *response.body_mut() = Body::default();
        }
        response
    }

    /// An answer whose client decides how long it stays in memory.
    async fn held_answer(&self, address: Option<IpAddr>, answer: Answer) -> Answer {
        let mut response = answer?;
        let bytes = response.body().uncounted_bytes();
        let held = self.memory.take_for(address, bytes, tokio::time::Instant::now() + MEMORY_WAIT).await?;
        response.body_mut().hold(held);
        Ok(response)
    }

    /// Something arrived that was no request.
    pub(crate) fn count_refusal(&self) {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        self.counters.malformed.fetch_add(1, Ordering::Relaxed);
    }

    async fn dispatch(
        self: &Arc<Service>,
        listener: Listener,
        question: RawRequest<'_>,
        operation: &mut Operation,
    ) -> Answer {
        let RawRequest { method, path, query, headers, source } = question;
        let verb = method;
        // No entry of a build cache has a path like most of the interface's.
        let entry = if path.starts_with("/api/v1/") { None } else { Entry::of_path(path) };
        let target = match entry {
            Some(entry) => Target::Build(entry.map_err(Problem::bad)?),
            None => Target::Api(find_route(verb, path)?),
        };
        *operation = match &target {
            Target::Api(route) => Operation::of(verb, route),
            Target::Build(_) => Operation::BuildCache,
        };
        match target {
            Target::Api(Route::Health) => return Ok(reply(StatusCode::OK, "text/plain", "Healthy")),
            Target::Api(Route::HealthChecked) => {
                return Ok(match self.is_healthy().await {
                    true => reply(StatusCode::OK, "text/plain", "Healthy"),
                    false => reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "Unhealthy"),
                });
            }
            _ => {}
        }
        let rules = self.rules();
        if !rules.access.admits(headers) {
            let title = "without tokens the cache answers requests to localhost, to an IP address and to the names in ddc.hosts only";
            return Err(Problem::new(StatusCode::FORBIDDEN, title));
        }
        let caller = rules.access.identify(headers).await.map_err(|identity| match identity {
            Identity::Unavailable(why) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, why),
            _ => {
                Problem::new(StatusCode::UNAUTHORIZED, "a valid token is needed: Authorization: Bearer TOKEN")
                    .with(header::WWW_AUTHENTICATE, "Bearer")
            }
        })?;
        if matches!(verb, "PUT" | "POST") {
            check_representation(headers)?;
        }
        let upload = Upload::new(source, rules.blob_bytes_max, Some(&self.memory))?;
        // WebDAV has more methods, none of which has to do with a body.
        let method = Method::parse(verb).unwrap_or(Method::Get);
        let mut request = ApiRequest { method, headers, query, caller, listener, upload };
        match target {
            Target::Api(route) => self.route(request, route).await,
            Target::Build(entry) => self.build_cache(&mut request, verb, entry).await,
        }
    }

    /// Reports whether everything works that an answer may need.
    async fn is_healthy(&self) -> bool {
        if self.store.check_uploads().is_err() || self.store.has_damaged_index() {
            return false;
        }
        match self.tier() {
            Some(tier) => self.is_tier_ready(tier).await,
            None => true,
        }
    }

    async fn route(self: &Arc<Service>, mut request: ApiRequest<'_>, route: Route) -> Answer {
        use Action::{AdminAction, DeleteBucket, DeleteNamespace, DeleteObject, ReadObject, WriteObject};
        match route {
            Route::Health | Route::HealthChecked => unreachable!("answered before"),
            Route::Status => Ok(json(&serde_json::json!({
                "version": env!("CARGO_PKG_VERSION"),
                "gitHash": "",
                "capabilities": ["transactionlog", "ddc"],
                "siteIdentifier": self.rules().site,
            }))),
            Route::Peers => Ok(self.peers(&request)),
            Route::Auth(namespace) => {
                self.permit(&request, ReadObject, &namespace, None)?;
                Ok(empty(StatusCode::OK))
            }
            Route::AuthActions(namespace, bucket) => Ok(self.actions(&request, &namespace, bucket.as_ref())),
            Route::Namespaces => {
                let mut readable = self.namespaces().await?;
                readable.retain(|namespace| self.permit(&request, ReadObject, namespace, None).is_ok());
                if readable.is_empty() && request.caller.claims.is_some() {
                    return Err(Problem::new(StatusCode::FORBIDDEN, "no namespace may be read"));
                }
                let names: Vec<&str> = readable.iter().map(Namespace::as_str).collect();
                Ok(json(&serde_json::json!({ "namespaces": names })))
            }
            Route::RefNamespace(namespace) if request.method == Method::Delete => {
                self.permit(&request, DeleteNamespace, &namespace, None)?;
                if !self.namespaces().await?.contains(&namespace) {
                    return Err(Problem::missing("nothing is stored in this namespace"));
                }
                self.delete_refs(&namespace, None).await?;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            Route::RefNamespace(namespace) => self.batch(&mut request, &namespace).await,
            Route::RefsExist(namespace) => {
                self.permit(&request, ReadObject, &namespace, None)?;
                self.refs_exist(&request, &namespace).await
            }
            Route::Bucket(namespace, bucket) => {
                self.permit(&request, DeleteBucket, &namespace, Some(&bucket))?;
                let count = self.delete_refs(&namespace, Some(&bucket)).await?;
                let value = Value::object([("countOfDeletedRecords", Value::Integer(count))]);
                Ok(object(&value, request.answer_media(None)))
            }
            Route::Ref(name, suffix) => {
                let action = match request.method {
                    Method::Put => WriteObject,
                    Method::Delete => DeleteObject,
                    _ => ReadObject,
                };
                self.permit(&request, action, &name.namespace, Some(&name.bucket))?;
                match request.method {
                    Method::Put => self.put_ref(&mut request, &name, suffix).await,
                    Method::Delete => self.delete_ref(&request, &name).await,
                    Method::Head => self.head_ref(&request, &name, suffix).await,
                    _ => self.get_ref(&request, &name, suffix).await,
                }
            }
            Route::Finalise(name, hash, suffix) => {
                self.permit(&request, WriteObject, &name.namespace, Some(&name.bucket))?;
                self.finalise(&request, &name, hash, suffix).await
            }
            Route::RefMetadata(name) => {
                self.permit(&request, ReadObject, &name.namespace, Some(&name.bucket))?;
                self.metadata(&name).await
            }
            Route::RefReferences(name) => {
                self.permit(&request, ReadObject, &name.namespace, Some(&name.bucket))?;
                self.references(&request, &name).await
            }
            Route::RefReplication(name) => {
                self.permit(&request, AdminAction, &name.namespace, Some(&name.bucket))?;
                self.replication_state(&name).await
            }
            Route::RefBlob(name, hash) => {
                let action = if request.method == Method::Put { WriteObject } else { ReadObject };
                self.permit(&request, action, &name.namespace, Some(&name.bucket))?;
                if request.method != Method::Put {
                    return self.get_compressed(&request, &name.namespace, &hash).await;
                }
                self.permit_change(&request, Family::Compressed, &name.namespace, &hash).await?;
                match request.content_type(&[Media::Compressed, Media::Octets])? {
                    Media::Compressed => {
                        Box::pin(self.put_compressed(&mut request, &name.namespace, Some(hash))).await
                    }
                    _ => self.put_blob(&mut request, &name.namespace, Some(hash), false).await,
                }
            }
            Route::BlobBatch => self.blob_batch(&mut request).await,
            Route::Family(_, namespace) if request.method == Method::Delete => {
                self.permit(&request, DeleteNamespace, &namespace, None)?;
                self.delete_blobs(&namespace).await?;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            Route::Family(family, namespace) => {
                self.permit(&request, WriteObject, &namespace, None)?;
                match family {
                    Family::Compressed => {
                        request.content_type(&[Media::Compressed])?;
                        Box::pin(self.put_compressed(&mut request, &namespace, None)).await
                    }
                    _ => {
                        request.content_type(&[Media::Octets])?;
                        self.put_blob(&mut request, &namespace, None, false).await
                    }
                }
            }
            Route::Exists(family, namespace) | Route::Exist(family, namespace) => {
                self.permit(&request, ReadObject, &namespace, None)?;
                self.exists(&mut request, family, &namespace).await
            }
            Route::Blob(family, namespace, hash) => {
                let action = match request.method {
                    Method::Put => WriteObject,
                    Method::Delete => DeleteObject,
                    _ => ReadObject,
                };
                self.permit(&request, action, &namespace, None)?;
                self.blob_route(&mut request, family, &namespace, hash).await
            }
            Route::ObjectReferences(namespace, hash) => {
                self.permit(&request, ReadObject, &namespace, None)?;
                let bytes = self.read_blob(&namespace, &hash).await?;
                let bytes = bytes.ok_or_else(|| Problem::missing("no such object"))?;
                let closed = self.close(&namespace, &bytes, Reach::All).await?;
                if !closed.missing.is_empty() {
                    return Err(Problem::bad("something that the object refers to is missing"));
                }
                let media = negotiate(request.accept(), &[Media::CompactBinary, Media::Json]);
                let value = Value::object([("references", Value::hashes(closed.blobs))]);
                Ok(object(&value, media.unwrap_or(Media::CompactBinary)))
            }
            Route::ContentId(namespace, id) => {
                self.permit(&request, ReadObject, &namespace, None)?;
                let blob = self.locate(&namespace, &id, Reach::All).await?.filter(|blob| *blob != id);
                let blob = blob.ok_or_else(|| Problem::missing("no such content id"))?;
                Ok(json(&serde_json::json!({ "blobs": [format!("{blob:X}")] })))
            }
            Route::ContentIdUpdate(namespace, id, blob, weight) => {
                self.permit(&request, WriteObject, &namespace, None)?;
                if !self.rules_of(&namespace).unverified {
                    return Err(unverifiable());
                }
                self.put_form(&namespace, id, (weight, blob, false)).await?;
                Ok(empty(StatusCode::OK))
            }
            Route::ReplicationLog(_)
            | Route::Snapshots(_)
            | Route::SnapshotCreate(_)
            | Route::RefCleanup
            | Route::LastAccessRollup
            | Route::Settings => self.admin(&request, &route).await,
        }
    }

    pub(crate) fn permit(
        &self,
        request: &ApiRequest<'_>,
        action: Action,
        namespace: &Namespace,
        bucket: Option<&Bucket>,
    ) -> Result<(), Problem> {
        let forbidden = |why: String| Err(Problem::new(StatusCode::FORBIDDEN, why));
        let rules = self.rules();
        if request.listener == Listener::Public && !rules.of(namespace).public {
            return forbidden(format!("the namespace {namespace} is not served on public listeners"));
        }
        if rules.access.permit(&request.caller, action, namespace, bucket) {
            Ok(())
        } else {
            forbidden(format!("{} is not permitted in namespace {namespace}", action.name()))
        }
    }

    pub(crate) fn rules_of(&self, namespace: &Namespace) -> NamespaceRules {
        self.rules().of(namespace).clone()
    }

    /// Something to verify a compressed buffer with.
    pub(crate) fn decoder(&self) -> Decoder {
        Decoder::with_oodle(self.rules().oodle.clone())
    }

    /// Makes a change and waits until it is acknowledged.
    pub(crate) async fn commit(&self, change: impl FnOnce(Done)) -> Result<ChangeResult, StoreError> {
        let (sender, receiver) = oneshot::channel();
        change(Box::new(move |outcome| drop(sender.send(outcome))));
        receiver.await.unwrap_or(Err(StoreError::Busy))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Notes that a ref was used; gives when it was used before.
    pub(crate) fn touch(&self, name: &RefName) -> Option<Timestamp> {
        let now = self.now();
        let mut accesses = self.accesses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = accesses.get_mut(name) {
            return Some(std::mem::replace(used, now));
        }
        let all = (accesses.len() >= ACCESSES_MAX).then(|| std::mem::take(&mut *accesses));
        accesses.insert(name.clone(), now);
        drop(accesses);
        if let Some(all) = all {
            self.note(all);
        }
        None
    }

    /// Removes what only replaced refs of a namespace reached, for an upload of `len` bytes that
    /// exceeds the quota.
    pub(crate) async fn make_room(&self, namespace: &Namespace, len: u64) -> Result<(), Problem> {
        let (store, namespace) = (Arc::clone(&self.store), namespace.clone());
        let collected = blocking::elsewhere(move || store.collect_replaced(&namespace, len)).await;
        Ok(collected.unwrap_or(Err(StoreError::Busy))?)
    }

    /// Refusal of an upload to a namespace that holds as much as it may.
    pub(crate) fn over_quota(&self, namespace: &Namespace) -> Problem {
        let quota = self.store.quota(namespace).unwrap_or_default();
        let title = format!(
            "the namespace {namespace} has reached its quota of {quota} bytes: delete refs, let unused ones expire \
             (ddc.refs_unused_days), or raise the quota (ddc.quotas, ddc.namespace_bytes_max)"
        );
        Problem::new(StatusCode::INSUFFICIENT_STORAGE, title)
    }

    async fn delete_blobs(&self, namespace: &Namespace) -> Result<(), Problem> {
        self.delete_refs(namespace, None).await?;
        if let Some(tier) = self.tier() {
            self.heard(tier.delete_blobs(namespace).await)?;
        }
        let (sender, receiver) = oneshot::channel();
        self.store.delete_blobs(namespace, Box::new(move |outcome| drop(sender.send(outcome))))?;
        receiver.await.unwrap_or(Err(StoreError::Busy))?;
        Ok(())
    }
}

/// Refuses a body that is a part of something, or encoded: RFC 9110, sections 8.4 and 14.5.
fn check_representation(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(header::CONTENT_RANGE) {
        return Err(Problem::bad("a part of a body (Content-Range) cannot be stored"));
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "bodies are stored as they are: send them without Content-Encoding",
        )
        .with(header::ACCEPT_ENCODING, "identity")),
        _ => Ok(()),
    }
}

/// Route of a request.
enum Target {
    Api(Route),
    Build(Entry),
}

fn find_route(verb: &str, path: &str) -> Result<Route, Problem> {
    let method = Method::parse(verb);
    let allowed = match Route::find(method.unwrap_or(Method::Get), path) {
        Ok(route) if method.is_some() => return Ok(route),
        Ok(route) => route.methods(),
        Err(RouteError::Unknown) => return Err(Problem::missing("no such route")),
        Err(RouteError::Malformed(why)) => return Err(Problem::bad(why)),
        Err(RouteError::Method(allowed)) => allowed,
    };
    let allowed = Allow(allowed).to_string();
    let what = format!("method {verb} not allowed; allowed: {allowed}");
    Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, what).with(header::ALLOW, allowed))
}

pub(crate) fn check_hash(wanted: Option<IoHash>, found: IoHash) -> Result<(), Problem> {
    match wanted {
        Some(wanted) if wanted != found => {
            Err(Problem::hash_mismatch(format!("the data hashes to {found:X}, not to {wanted:X}")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn hash_value(hash: &IoHash) -> HeaderValue {
    HeaderValue::from_bytes(&hash.hex_upper()).expect("hexadecimal digits are a header value")
}

pub(crate) fn json(value: &serde_json::Value) -> Response<Body> {
    reply(StatusCode::OK, Media::Json.name(), value.to_string())
}
