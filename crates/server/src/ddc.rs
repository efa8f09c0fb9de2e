//! The derived-data cache within a process: its settings, its listeners, its runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hyper::header::HeaderValue;
use serde_json::Value;
use throng_admin::Pages;
use throng_ddc::Namespace;
use throng_ddc::compressed::OodleDecoder;
use throng_ddc::gc::RefPolicy;
use throng_ddc::policy::TokenClaims;
use throng_ddc_server::{
    Access, Identify, Identity, Listener, Maintenance, NamespaceRules, Node, OodleProgram, Origin, Rules,
    ServeOptions, Tls, Tokens, Upstream, UpstreamOptions,
};
use throng_ddc_store::{Durability, Options, Quotas, StoreError, Tier, TierOptions};
use throng_gateway::Verdict;
use tokio::sync::Notify;

use crate::auth::{Authenticator as _, CREDENTIAL_BYTES_MAX, Jwt, fetch};
use crate::config::{Auth, Ddc, Settings, resolve_addr};
use crate::gateway_config::ranges;
use crate::start::{Address, Service, StartError, bind_error, data_error};
use crate::{services, tls};

/// Folder below the data folder.
pub(crate) const FOLDER: &str = "ddc";
/// Operation that fails without a folder.
const OPEN: &str = "open the cache's folder";
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Shortest segment of the log: as long as the largest blob in one.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Least limit of the folder: of fewer segments, the open one, which gives no space back, would be
/// more than an eviction leaves free.
pub(crate) const BYTES_MIN: u64 = 8 * SEGMENT_BYTES_MIN;
/// Threads of the runtime at least: one may wait for the disk, in a read of what the system does
/// not have in memory, and the others go on.
const THREADS_MIN: usize = 4;
/// Threads that wait for large uploads to be on disk. More would only queue at the disk.
const BLOCKING_THREADS_MAX: usize = 8;

/// A running cache. Dropping it ends it at once; what was acknowledged is on disk.
pub(crate) struct Cache {
    /// Before the node: no request outlives what answers it.
    runtime: Option<tokio::runtime::Runtime>,
    node: Node,
    end: Arc<Notify>,
    addresses: Vec<Address>,
    keys: Keys,
    tls: Option<Tls>,
    pages: Arc<OnceLock<Pages>>,
}

/// The keys that tokens are verified with, and the settings that they are for: those stay over a
/// reload that does not change them, even if their source is away.
#[derive(Debug, Default)]
struct Keys(Mutex<Option<(Auth, Arc<Jwt>)>>);

impl Keys {
    fn of(&self, auth: Auth, side: &tokio::runtime::Handle) -> Result<Arc<Jwt>, String> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, jwt)) = keys.as_ref().filter(|(of, _)| *of == auth) {
            jwt.reload()?;
            return Ok(Arc::clone(jwt));
        }
        let jwt = Jwt::start(&auth, side)?;
        *keys = Some((auth, Arc::clone(&jwt)));
        Ok(jwt)
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Reports whether metrics and console are served at `ddc.addr`: as the settings say, or because
/// the command is for nothing but a cache.
pub(crate) fn has_pages(settings: &Settings) -> bool {
    let (ddc, http, only) = (&settings.ddc.addr, &settings.http.addr, &settings.server.only);
    // The system chooses a port for each.
    let is_same = ddc == http && !ddc.ends_with(":0");
    services::is_selected(only, services::DDC) && !ddc.is_empty() && (is_same || settings.has_pages_at_cache)
}

/// Returns whether the settings give this process a cache.
fn is_wanted(settings: &Settings) -> bool {
    let ddc = &settings.ddc;
    let has_address = !ddc.addr.is_empty() || !ddc.internal_addr.is_empty();
    has_address && services::is_selected(&settings.server.only, services::DDC)
}

/// Loads the files that the cache would start with.
pub(crate) fn check_files(
    settings: &Settings,
    side: &tokio::runtime::Handle,
) -> Vec<(String, Result<(), String>)> {
    let ddc = &settings.ddc;
    if !is_wanted(settings) {
        return Vec::new();
    }
    let tls = tls::http_acceptor(&ddc.tls_cert, &ddc.tls_key).map(drop);
    let origin_key = if settings.ddc_tier.url.is_empty() { "ddc.upstream.url" } else { "ddc.tier.url" };
    vec![
        ("ddc.tls_cert".to_owned(), tls),
        ("ddc.tokens_file".to_owned(), rules(settings, &Keys::default(), side, &[]).map(drop)),
        (origin_key.to_owned(), origin(settings).map(drop)),
    ]
}

/// Starts the cache if the settings give it an address. `side` fetches keys.
///
/// # Errors
/// An address that cannot be listened on, a folder that cannot be used, files that do not fit.
pub(crate) fn start(settings: &Settings, side: &tokio::runtime::Handle) -> Result<Option<Cache>, StartError> {
    let ddc = &settings.ddc;
    if !is_wanted(settings) {
        return Ok(None);
    }
    let threads =
        std::thread::available_parallelism().map_or(THREADS_MIN, |count| count.get().max(THREADS_MIN));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("cache")
        .worker_threads(threads)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()
        .map_err(|source| StartError::System { what: "cannot start the cache's runtime", source })?;
    let tls = tls::http_acceptor(&ddc.tls_cert, &ddc.tls_key).map_err(StartError::File)?.map(Tls::new);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for (key, text, service, kind) in [
        ("ddc.addr", &ddc.addr, Service::Cache, Listener::Public),
        ("ddc.internal_addr", &ddc.internal_addr, Service::CacheInternal, Listener::Internal),
    ] {
        if text.is_empty() {
            continue;
        }
        let addr = resolve_addr(text).map_err(StartError::File)?;
        let bound = runtime.block_on(tokio::net::TcpListener::bind(addr));
        let bound = bound.and_then(|listener| listener.local_addr().map(|addr| (listener, addr)));
        let (listener, addr) = bound.map_err(|source| bind_error(key.to_owned(), addr, source))?;
        addresses.push(Address { service, scheme, addr, world: None });
        listeners.push((listener, kind));
    }
    let folder = Path::new(&settings.server.data).join(FOLDER);
    let keys = Keys::default();
    let node = rules(settings, &keys, side, &addresses)
        .and_then(|rules| {
            let opened = Node::open_with(&folder, options(settings), rules, origin(settings)?);
            // An export of the folder alone would lack most of the bucket.
            let has_copies = !settings.ddc_tier.url.is_empty();
            let noted = opened.and_then(|node| {
                node.service().store().set_has_copies(has_copies)?;
                Ok(node)
            });
            noted.map_err(|error| match &error {
                StoreError::Io(cause) => data_error(OPEN, &folder, cause),
                _ => data_error(OPEN, &folder, &error),
            })
        })
        .map_err(StartError::File)?;
    let end = Arc::new(Notify::new());
    let pages: Arc<OnceLock<Pages>> = Arc::default();
    let exempt: Arc<[_]> =
        ranges("ddc.trusted_proxies", &ddc.trusted_proxies).map_err(StartError::File)?.into();
    for (listener, kind) in listeners {
        let exempt = Arc::clone(&exempt);
        let options = ServeOptions {
            connections_max: ddc.connections_max,
            exempt: Arc::new(move |address| exempt.iter().any(|range| range.contains(address))),
            tls: tls.clone(),
            pages: if kind == Listener::Public { Arc::clone(&pages) } else { Arc::default() },
            ..ServeOptions::new(kind)
        };
        let (service, end) = (Arc::clone(node.service()), Arc::clone(&end));
        runtime.spawn(async move {
            let stopped = async move { end.notified().await };
            throng_ddc_server::serve(listener, service, options, stopped).await;
        });
    }
    Ok(Some(Cache { runtime: Some(runtime), node, end, addresses, keys, tls, pages }))
}

impl Cache {
    /// Service that answers its requests.
    pub(crate) fn service(&self) -> Arc<throng_ddc_server::Service> {
        Arc::clone(self.node.service())
    }

    /// Serves metrics and console on the public listener as well.
    pub(crate) fn set_pages(&self, pages: Pages) {
        // They are set once, at start.
        let _ = self.pages.set(pages);
    }

    /// Addresses on which it listens.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.addresses.iter().cloned()
    }

    /// Applies what can be applied of new settings, to requests from now on. Files are read again
    /// in any case.
    ///
    /// # Errors
    /// What is wrong with a file; the old rules stay then.
    pub(crate) fn reload(&self, settings: &Settings, side: &tokio::runtime::Handle) -> Result<(), String> {
        if let (Some(tls), Some(renewed)) =
            (&self.tls, tls::http_acceptor(&settings.ddc.tls_cert, &settings.ddc.tls_key)?)
        {
            tls.replace(renewed);
        }
        self.node.service().set_rules(rules(settings, &self.keys, side, &self.addresses)?);
        Ok(())
    }

    /// Stops listening and answering, commits what was queued, writes the index.
    pub(crate) fn stop(mut self, within: Duration) {
        self.end.notify_waiters();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(within.min(Duration::from_secs(1)));
        }
    }
}

fn options(settings: &Settings) -> Options {
    let (ddc, tier) = (&settings.ddc, &settings.ddc_tier);
    let options = Options::default();
    let bytes_max = if tier.url.is_empty() { ddc.bytes_max } else { tier.copies_bytes_max };
    // The open segment gives no space back, so it must not be much of what the folder may hold.
    let segment_bytes_max = match bytes_max {
        0 => options.segment_bytes_max,
        bytes_max => options.segment_bytes_max.min((bytes_max / 32).max(SEGMENT_BYTES_MIN)),
    };
    let options = Options { segment_bytes_max, ..options };
    if tier.url.is_empty() {
        let durability = if ddc.durability == "cache" { Durability::Cache } else { Durability::Sync };
        let replication_log = !ddc.internal_addr.is_empty() && ddc.replication_days > 0;
        return Options { durability, replication_log, ..options };
    }
    // Copies need not survive anything.
    Options { durability: Durability::Cache, ..options }
}

/// Origin of blobs that the cache does not hold.
fn origin(settings: &Settings) -> Result<Origin, String> {
    if let Some(tier) = bucket(settings)? {
        return Ok(Origin::Tier(tier));
    }
    let upstream = &settings.ddc_upstream;
    if upstream.url.is_empty() {
        return Ok(Origin::Alone);
    }
    let authorization = match upstream.authorization_file.as_str() {
        "" => None,
        path => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| format!("cannot read `{path}`: {error}"))?;
            let mut value = HeaderValue::from_str(text.trim())
                .map_err(|_| format!("`{path}` does not hold the value of a header"))?;
            value.set_sensitive(true);
            Some(value)
        }
    };
    Ok(Origin::Upstream(Box::new(Upstream::new(UpstreamOptions {
        url: upstream.url.clone(),
        authorization,
        timeout: Duration::from_millis(upstream.timeout_ms),
        miss: Duration::from_secs(upstream.miss_s.into()),
        tls: client_tls(&upstream.url, &upstream.ca_file, "ddc.upstream.ca_file")?,
    }))))
}

/// The bucket that the settings name.
///
/// # Errors
/// A file that cannot be read, settings that do not fit together.
pub(crate) fn bucket(settings: &Settings) -> Result<Option<Tier>, String> {
    let tier = &settings.ddc_tier;
    if tier.url.is_empty() {
        return Ok(None);
    }
    let options = TierOptions {
        url: tier.url.clone(),
        endpoint: tier.endpoint.clone(),
        settings: read_settings(&tier.settings_file)?,
        timeout: Duration::from_millis(tier.timeout_ms),
        tls: client_tls(&tier.endpoint, &tier.ca_file, "ddc.tier.ca_file")?,
        refresh: (tier.refresh_days > 0).then(|| DAY * tier.refresh_days),
    };
    Tier::new(&options).map(Some).map_err(|error| format!("`ddc.tier`: {error}"))
}

/// Whom to trust at an address; plain http needs nobody.
fn client_tls(url: &str, ca_file: &str, key: &str) -> Result<Arc<rustls::ClientConfig>, String> {
    if url.starts_with("http://") {
        return fetch::tls_trusting(rustls::RootCertStore::empty());
    }
    fetch::tls_client(ca_file, key)
}

/// Reads lines of `NAME=VALUE`; `#` begins a comment line.
fn read_settings(path: &str) -> Result<BTreeMap<String, String>, String> {
    if path.is_empty() {
        return Ok(BTreeMap::new());
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read `{path}`: {error}"))?;
    let lines = text.lines().map(str::trim).enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| format!("`{path}`, line {}: expected NAME=VALUE", number + 1))?;
            Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect()
}

/// Decoder of Oodle: the configured program, or this one if it can.
fn oodle(ddc: &Ddc) -> Result<Option<Arc<dyn OodleDecoder>>, String> {
    let command = match &ddc.oodle_decoder[..] {
        [] if !cfg!(feature = "oodle") => return Ok(None),
        [] => {
            let own =
                std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
            vec![own.into_os_string(), "ddc".into(), "decode-oodle".into()]
        }
        given => given.iter().map(Into::into).collect(),
    };
    Ok(Some(Arc::new(OodleProgram::new(command, Duration::from_millis(ddc.oodle_timeout_ms)))))
}

/// Reads what namespaces may hold.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read_quotas(ddc: &Ddc) -> Result<Quotas, Vec<String>> {
    let default = (ddc.namespace_bytes_max > 0).then_some(ddc.namespace_bytes_max);
    let mut quotas = Quotas { default, ..Quotas::default() };
    let mut wrong = Vec::new();
    for (name, text) in &ddc.quotas {
        match (name.parse::<Namespace>(), text.parse()) {
            (Ok(namespace), Ok(bytes)) => drop(quotas.namespaces.insert(namespace, bytes)),
            (Err(error), _) => wrong.push(format!("`{name}`: {error}")),
            (_, Err(_)) => wrong.push(format!("`{name}`: found \"{text}\"; expected a number of bytes")),
        }
    }
    if wrong.is_empty() { Ok(quotas) } else { Err(wrong) }
}

/// Reads which namespaces differ from `default`.
///
/// # Errors
/// Each wrong name: its key, and what is wrong with it.
pub(crate) fn read_namespaces(
    ddc: &Ddc,
    default: &NamespaceRules,
) -> Result<BTreeMap<Namespace, NamespaceRules>, Vec<(&'static str, String)>> {
    let (mut namespaces, mut wrong) = (BTreeMap::new(), Vec::new());
    let mut parse = |key: &'static str, name: &str| match name.parse::<Namespace>() {
        Ok(namespace) => Some(namespace),
        Err(error) => {
            wrong.push((key, format!("`{name}`: {error}")));
            None
        }
    };
    let lists: [(_, _, fn(&mut NamespaceRules)); 4] = [
        ("ddc.internal_namespaces", &ddc.internal_namespaces, |rules| rules.public = false),
        ("ddc.verified_namespaces", &ddc.verified_namespaces, |rules| rules.unverified = false),
        ("ddc.redirect_namespaces", &ddc.redirect_namespaces, |rules| rules.redirects = true),
        ("ddc.keep_namespaces", &ddc.keep_namespaces, |rules| rules.keeps = true),
    ];
    for (key, names, change) in lists {
        for namespace in names.iter().filter_map(|name| parse(key, name)) {
            change(namespaces.entry(namespace).or_insert_with(|| default.clone()));
        }
    }
    for (name, from) in &ddc.fallbacks {
        let both = (parse("ddc.fallbacks", name), parse("ddc.fallbacks", from));
        if let (Some(namespace), Some(from)) = both {
            namespaces.entry(namespace).or_insert_with(|| default.clone()).fallback = Some(from);
        }
    }
    if wrong.is_empty() { Ok(namespaces) } else { Err(wrong) }
}

fn rules(
    settings: &Settings,
    keys: &Keys,
    side: &tokio::runtime::Handle,
    addresses: &[Address],
) -> Result<Rules, String> {
    let ddc = &settings.ddc;
    let mut identify: Vec<Box<dyn Identify>> = Vec::new();
    if !ddc.tokens_file.is_empty() {
        let text = std::fs::read_to_string(&ddc.tokens_file);
        let text =
            text.map_err(|error| format!("`ddc.tokens_file`: cannot read `{}`: {error}", ddc.tokens_file))?;
        let tokens = Tokens::parse(&text).map_err(|why| format!("`{}`: {why}", ddc.tokens_file))?;
        identify.push(Box::new(tokens));
    }
    if !ddc.jwt_keys_file.is_empty() || !ddc.jwt_jwks_url.is_empty() {
        // The same rules as for players, with their own keys and without a player to name.
        let auth = Auth {
            kind: "jwt".to_owned(),
            jwt_algorithms: ddc.jwt_algorithms.clone(),
            jwt_keys_file: ddc.jwt_keys_file.clone(),
            jwt_jwks_url: ddc.jwt_jwks_url.clone(),
            jwt_audience: ddc.jwt_audience.clone(),
            jwt_issuer: ddc.jwt_issuer.clone(),
            jwt_player_claim: String::new(),
            ..settings.auth.clone()
        };
        identify.push(Box::new(Signed(keys.of(auth, side)?)));
    }
    let default = NamespaceRules {
        overwrite_refs: ddc.overwrite_refs,
        unverified: ddc.unverified,
        fills_fallback: ddc.fill_fallbacks,
        refs: match ddc.refs_unused_days {
            0 => RefPolicy::Keep,
            days => RefPolicy::LastAccess(DAY * days),
        },
        ..Default::default()
    };
    let every = |unit: Duration, count: u32| (count > 0).then(|| unit * count);
    let maintenance = Maintenance {
        collect_every: every(MINUTE, ddc.collect_minutes),
        scrub_every: every(60 * MINUTE, ddc.scrub_hours),
        scrub_bytes_per_s: ddc.scrub_bytes_per_s,
        events_age_max: DAY * ddc.replication_days,
        copies_bytes_max: Some(settings.ddc_tier.copies_bytes_max),
        bytes_max: (ddc.bytes_max > 0).then_some(ddc.bytes_max),
        ..Maintenance::default()
    };
    let together = |wrong: Vec<String>| wrong.join("; ");
    let namespaces = read_namespaces(ddc, &default)
        .map_err(|wrong| together(wrong.into_iter().map(|(key, why)| format!("`{key}`: {why}")).collect()))?;
    Ok(Rules {
        access: Access { identify, policies: crate::ddc_policies::read(ddc)?, hosts: ddc.hosts.clone() },
        namespaces,
        default,
        maintenance,
        quotas: read_quotas(ddc).map_err(together)?,
        recheck: Duration::from_secs(ddc.recheck_s.into()),
        upstream_fresh: Duration::from_secs(settings.ddc_upstream.fresh_s.into()),
        oodle: oodle(ddc)?,
        blob_bytes_max: ddc.blob_bytes_max,
        endpoints: addresses.iter().map(|address| format!("{}://{}", address.scheme, address.addr)).collect(),
        ..Rules::default()
    })
}

/// Signed tokens: what they claim is what is known about the caller.
#[derive(Debug)]
struct Signed(Arc<Jwt>);

impl Identify for Signed {
    fn identify<'a>(&'a self, authorization: &'a str) -> Pin<Box<dyn Future<Output = Identity> + Send + 'a>> {
        Box::pin(async move {
            let token =
                authorization.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let Some((_, token)) = token.filter(|(_, token)| token.len() <= CREDENTIAL_BYTES_MAX) else {
                return Identity::Unknown;
            };
            match self.0.claims(token.trim()).await {
                Ok(claims) => Identity::Known(flatten(&claims)),
                Err(Verdict::Error(why)) => Identity::Unavailable(why),
                Err(_) => Identity::Unknown,
            }
        })
    }
}

/// TokenClaims as names with values: lists have one each.
fn flatten(claims: &Value) -> TokenClaims {
    let mut flat = TokenClaims::default();
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    for (name, value) in claims.as_object().into_iter().flatten() {
        match value {
            Value::Array(items) => items.iter().filter_map(text).for_each(|item| flat.push(name, item)),
            one => text(one).into_iter().for_each(|one| flat.push(name, one)),
        }
    }
    flat
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Loader;

    #[test]
    fn a_segment_is_a_small_part_of_what_the_folder_may_hold() {
        let bytes_of = |keys: &[(&str, &str)]| {
            let loader =
                keys.iter().fold(Loader::new(), |loader, (key, value)| loader.flag("test", *key, *value));
            options(&loader.load().expect("valid settings").settings).segment_bytes_max
        };
        assert_eq!(bytes_of(&[]), 256 << 20);
        assert_eq!(bytes_of(&[("ddc.bytes_max", "40000000")]), 40_000_000 / 32);
        assert_eq!(bytes_of(&[("ddc.bytes_max", "8388608")]), 1 << 20);
        assert_eq!(bytes_of(&[("ddc.bytes_max", "1000000000000")]), 256 << 20);
        let tier = [("ddc.tier.url", "s3://a/b"), ("ddc.tier.copies_bytes_max", "67108864")];
        assert_eq!(bytes_of(&tier), 2 << 20);
    }

    #[test]
    fn a_limit_below_eight_segments_is_refused() {
        let refused = Loader::new().flag("test", "ddc.bytes_max", "8388607").load();
        let problems = format!("{:?}", refused.expect_err("it is too small"));
        assert!(problems.contains("found 8388607; expected 0 or at least 8388608"), "{problems}");
    }

    #[test]
    fn claims_of_a_token_become_names_and_values() {
        let claims = serde_json::json!({"sub": "u", "groups": ["a", "b"], "n": 1, "o": {"x": 1}});
        let flat = flatten(&claims);
        for wanted in ["sub=u", "groups=a", "groups=b", "n=1"] {
            assert!(flat.satisfy(wanted), "{wanted}");
        }
        assert!(!flat.satisfy("o") && !flat.satisfy("groups=c"));
    }
}
