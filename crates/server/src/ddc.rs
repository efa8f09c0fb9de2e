//! The derived-data cache within a process: its settings, its listeners, its runtime.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use throng_cache::{
    Access, Care, Identify, Identity, Listener, NamespaceRules, Node, Rules, ServeOptions, Tokens,
};
use throng_ddc::Namespace;
use throng_ddc::gc::RefPolicy;
use throng_ddc::policy::{Acl, Action, Claims, Policies, Policy, Scope};
use throng_gateway::Verdict;
use throng_store::{Durability, Options};
use tokio::sync::Notify;

use crate::auth::{CREDENTIAL_BYTES_MAX, Jwt};
use crate::config::{Auth, Settings, resolve_addr};
use crate::start::{Address, Service, StartError, bind_error};
use crate::{services, tls};

/// Folder below the data folder.
pub(crate) const FOLDER: &str = "ddc";
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Threads of the runtime at least: one may wait for the disk, in a read of what the system does not have in memory, and
/// the others go on.
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
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Starts the cache if the settings give it an address. `side` fetches keys.
///
/// # Errors
/// An address that cannot be listened on, a folder that cannot be used, files that do not fit.
pub(crate) fn start(settings: &Settings, side: &tokio::runtime::Handle) -> Result<Option<Cache>, StartError> {
    let ddc = &settings.ddc;
    let selected = services::is_selected(&settings.server.only, services::DDC);
    if !selected || ddc.addr.is_empty() && ddc.internal_addr.is_empty() {
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
    let tls = tls::http_acceptor(&ddc.tls_cert, &ddc.tls_key).map_err(StartError::File)?;
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
        addresses.push(Address { service, scheme, addr });
        listeners.push((listener, kind));
    }
    let folder = Path::new(&settings.server.data).join(FOLDER);
    let node = rules(settings, side, &addresses)
        .and_then(|rules| {
            let durability = if ddc.durability == "cache" { Durability::Cache } else { Durability::Sync };
            let options = Options { durability, ..Options::default() };
            Node::open(&folder, options, rules).map_err(|error| format!("`{}`: {error}", folder.display()))
        })
        .map_err(StartError::File)?;
    let end = Arc::new(Notify::new());
    for (listener, kind) in listeners {
        let options = ServeOptions { listener: kind, connections_max: ddc.connections_max, tls: tls.clone() };
        let (service, end) = (Arc::clone(node.service()), Arc::clone(&end));
        runtime.spawn(async move {
            let stopped = async move { end.notified().await };
            if let Err(error) = throng_cache::serve(listener, service, options, stopped).await {
                tracing::error!(%error, "a cache listener failed");
            }
        });
    }
    Ok(Some(Cache { runtime: Some(runtime), node, end, addresses }))
}

impl Cache {
    /// What answers its requests.
    pub(crate) fn service(&self) -> Arc<throng_cache::Service> {
        Arc::clone(self.node.service())
    }

    /// Where it listens.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.addresses.iter().cloned()
    }

    /// Stops listening and answering, commits what was queued, writes the index.
    pub(crate) fn stop(mut self, within: Duration) {
        self.end.notify_waiters();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(within.min(Duration::from_secs(1)));
        }
    }
}

fn rules(settings: &Settings, side: &tokio::runtime::Handle, addresses: &[Address]) -> Result<Rules, String> {
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
        identify.push(Box::new(Signed(Jwt::start(&auth, side)?)));
    }
    let policies =
        ddc.grants.iter().map(|(name, grant)| read_grant(name, grant)).collect::<Result<_, _>>()?;
    let default = NamespaceRules {
        overwrite_refs: ddc.overwrite_refs,
        unverified: ddc.unverified,
        refs: match ddc.refs_unused_days {
            0 => RefPolicy::Keep,
            days => RefPolicy::LastAccess(DAY * days),
        },
        ..Default::default()
    };
    let every = |unit: Duration, count: u32| (count > 0).then(|| unit * count);
    let care = Care {
        collect_every: every(MINUTE, ddc.collect_minutes),
        scrub_every: every(60 * MINUTE, ddc.scrub_hours),
        scrub_bytes_per_s: ddc.scrub_bytes_per_s,
        ..Care::default()
    };
    let mut namespaces = std::collections::BTreeMap::new();
    for name in &ddc.internal_namespaces {
        let namespace: Namespace = name.parse().map_err(|error| format!("`{name}`: {error}"))?;
        namespaces.insert(namespace, NamespaceRules { public: false, ..default.clone() });
    }
    Ok(Rules {
        access: Access { identify, policies: Policies(policies) },
        namespaces,
        default,
        care,
        blob_bytes_max: ddc.blob_bytes_max,
        endpoints: addresses.iter().map(|address| format!("{}://{}", address.scheme, address.addr)).collect(),
        ..Rules::default()
    })
}

/// Reads `CLAIMS ACTIONS NAMESPACES`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read_grant(name: &str, text: &str) -> Result<Policy, String> {
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [claims, actions, namespaces] = parts[..] else {
        return Err(format!("`{name}` is written CLAIMS ACTIONS NAMESPACES, found \"{text}\""));
    };
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let actions = if actions == "*" {
        Action::ALL.to_vec()
    } else {
        let parsed = actions.split(',').map(str::parse).collect::<Result<Vec<Action>, _>>();
        parsed.map_err(|error| format!("`{name}`: {error}"))?
    };
    for namespace in namespaces.split(',').filter(|namespace| *namespace != "*") {
        namespace.parse::<Namespace>().map_err(|error| format!("`{name}`: `{namespace}`: {error}"))?;
    }
    Ok(Policy {
        name: name.to_owned(),
        acl: Acl { claims: list(claims), actions },
        namespaces: vec![Scope { values: list(namespaces), not: false }],
        buckets: Vec::new(),
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

/// Claims as names with values: lists have one each.
fn flatten(claims: &Value) -> Claims {
    let mut flat = Claims::default();
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

    #[test]
    fn grants_are_read() {
        let policy =
            read_grant("artists", "group=artists,team ReadObject,writeobject game,test").expect("valid");
        assert_eq!(policy.acl.claims, ["group=artists", "team"]);
        assert_eq!(policy.acl.actions, [Action::ReadObject, Action::WriteObject]);
        assert_eq!(policy.namespaces[0].values, ["game", "test"]);
        assert_eq!(read_grant("all", "* * *").expect("valid").acl.actions.len(), Action::ALL.len());
        for bad in ["", "* *", "* Fly *", "* * a/b", "* * * *"] {
            assert!(read_grant("x", bad).is_err(), "{bad}");
        }
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
