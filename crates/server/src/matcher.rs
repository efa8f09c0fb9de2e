//! The matcher within a process: its settings, its rules, its folder.

pub(crate) mod rules;

#[cfg(feature = "nats")]
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use throng_matcher_server::{Durability, Gate, HttpOptions, Options, Policies, Service as Matching, Tokens};
#[cfg(feature = "nats")]
use throng_matcher_server::{Identity, Takeover};
use throng_platform::{Folder, Fs};
use tokio::sync::Notify;

use crate::auth::fetch;
use crate::config::{Settings, resolve_addr};
use crate::start::{Address, Service, StartError, bind_error, data_error, fill_random};
use crate::{services, tls};

/// Folder below the data folder.
const FOLDER: &str = "matcher";

/// A running matcher. Dropping it stops it.
pub(crate) struct Matcher {
    service: Matching,
    tokens: Tokens,
    addresses: Vec<Address>,
    /// Ends its listeners on the side runtime.
    end: Arc<Notify>,
}

impl Matcher {
    /// Calls it.
    pub(crate) fn handle(&self) -> &throng_matcher_server::Handle {
        self.service.handle()
    }

    /// Access tokens that it knows.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Addresses on which it listens, without Unix sockets.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.addresses.iter().cloned()
    }

    /// Tells everybody, flushes the journal and ends.
    pub(crate) fn stop(self) {
        self.end.notify_waiters();
        self.service.stop();
    }
}

/// Makes a journal of exported lines in a folder that is empty or not there yet. Gives the numbers
/// of rooms and players in it.
///
/// # Errors
/// A folder that is not empty, a line that is wrong, or as the system says.
pub fn import_matcher(folder: &Path, lines: &str) -> Result<(usize, usize), String> {
    let mut secret = [0; 32];
    fill_random(&mut secret).map_err(|error| format!("cannot get random bytes: {error}"))?;
    let made = throng_matcher_server::import(folder, lines, secret).map_err(|error| error.to_string())?;
    Ok((made.rooms, made.players))
}

/// Returns whether the settings give this process a matcher.
pub(crate) fn is_wanted(settings: &Settings) -> bool {
    let matcher = &settings.matcher;
    let addresses = [&matcher.addr, &matcher.unix_path, &matcher.http_addr, &matcher.nats_url];
    services::is_selected(&settings.server.only, services::MATCHER)
        && addresses.iter().any(|each| !each.is_empty())
}

/// Access tokens of the matcher.
///
/// # Errors
/// A phrase that names the file and what is wrong with it.
pub(crate) fn tokens(settings: &Settings) -> Result<Tokens, String> {
    let file = &settings.matcher.tokens_file;
    Tokens::parse(&read(file)?).map_err(|error| format!("`{file}`: {error}"))
}

/// Loads the files that the matcher would start with.
pub(crate) fn check_files(
    settings: &Settings,
    side: &tokio::runtime::Handle,
) -> Vec<(String, Result<(), String>)> {
    let matcher = &settings.matcher;
    if !is_wanted(settings) {
        return Vec::new();
    }
    vec![
        ("matcher.tokens_file".to_owned(), tokens(settings).map(drop)),
        ("matcher.tls_cert".to_owned(), tls::acceptor_from(&matcher.tls_cert, &matcher.tls_key).map(drop)),
        ("matcher.rules".to_owned(), rules(settings, side).map(drop)),
        ("matcher.nats_token_file".to_owned(), read(&matcher.nats_token_file).map(drop)),
    ]
}

/// Starts the matcher if the settings give it an address. Its HTTP listener runs on `side`.
///
/// # Errors
/// An address that cannot be listened on, a folder that cannot be used, files that do not fit.
pub(crate) fn start(
    settings: &Settings,
    secret: [u8; 32],
    side: &tokio::runtime::Handle,
) -> Result<Option<Matcher>, StartError> {
    let matcher = &settings.matcher;
    if !is_wanted(settings) {
        return Ok(None);
    }
    let addr = match matcher.addr.as_str() {
        "" => None,
        addr => Some(resolve_addr(addr).map_err(StartError::File)?),
    };
    let tokens = tokens(settings).map_err(StartError::File)?;
    let (durability, fs) = journal(settings)?;
    #[cfg(feature = "nats")]
    let identity = identity(settings, fs.as_deref())?;
    let gate = if matcher.nats_url.is_empty() { Gate::default() } else { Gate::leased() };
    let (config, policies) = rules(settings, side).map_err(StartError::File)?;
    let options = Options {
        addr,
        unix: (!matcher.unix_path.is_empty()).then(|| PathBuf::from(&matcher.unix_path)),
        tls: tls::acceptor_from(&matcher.tls_cert, &matcher.tls_key).map_err(StartError::File)?,
        config,
        durability,
        fs,
        tokens: tokens.clone(),
        area: matcher.area.clone(),
        secret,
        salvage: matcher.salvage,
        policies,
        gate,
    };
    let service = throng_matcher_server::start(options).map_err(|error| match error {
        throng_matcher_server::StartError::Bind { addr, source } => {
            bind_error("matcher.addr".to_owned(), addr, source)
        }
        other => StartError::File(format!("the matcher: {other}")),
    })?;
    let is_plain = matcher.tls_cert.is_empty();
    let mut addresses = Vec::new();
    if let Some(addr) = service.addr() {
        let scheme = if is_plain { "tcp" } else { "tls" };
        addresses.push(Address { service: Service::Matcher, scheme, addr, world: None });
    }
    let end = Arc::new(Notify::new());
    if !matcher.http_addr.is_empty() {
        let addr = serve_http(settings, &service, tokens.clone(), side, &end)?;
        let scheme = if is_plain { "http" } else { "https" };
        addresses.push(Address { service: Service::MatcherHttp, scheme, addr, world: None });
    }
    #[cfg(feature = "nats")]
    {
        let addresses = addresses.iter().map(|address| address.addr.to_string()).collect();
        serve_nats(settings, &service, Identity { addresses, ..identity }, tokens.clone(), side, &end)?;
    }
    Ok(Some(Matcher { service, tokens, addresses, end }))
}

/// Puts the matcher on its bus, as soon as that is there.
#[cfg(feature = "nats")]
fn serve_nats(
    settings: &Settings,
    service: &Matching,
    identity: Identity,
    tokens: Tokens,
    side: &tokio::runtime::Handle,
    end: &Arc<Notify>,
) -> Result<(), StartError> {
    let matcher = &settings.matcher;
    if matcher.nats_url.is_empty() {
        return Ok(());
    }
    let is_volatile = matcher.durability == "none";
    let data = PathBuf::from(&settings.server.data);
    let kept = (!is_volatile).then(|| data.join(format!("replaced-{}", identity.journal)));
    let options = throng_matcher_server::NatsOptions {
        url: matcher.nats_url.clone(),
        bus_token: read(&matcher.nats_token_file).map_err(StartError::File)?.trim().to_owned(),
        area: matcher.area.clone(),
        tokens,
        identity,
        kept: kept.clone(),
        memory: (!is_volatile).then(|| data.join(format!("matcher-lease-{}.json", matcher.area))),
        takeover: if matcher.takeover == "empty" || is_volatile { Takeover::Empty } else { Takeover::Wait },
        requests_max: matcher.nats_requests_max,
    };
    let (handle, end) = (service.handle().clone(), Arc::clone(end));
    side.spawn(async move {
        let stopped = async move { end.notified().await };
        let stopping = handle.clone();
        let Err(error) = throng_matcher_server::serve_nats(handle, options, stopped).await else { return };
        if let Some(kept) = kept {
            let kept = throng_matcher_server::unused_folder(&kept);
            match std::fs::rename(data.join(FOLDER), &kept) {
                Ok(()) => tracing::error!(folder = %kept.display(), "the state of the replaced matcher is kept here"),
                Err(error) => tracing::error!(%error, "the folder of the replaced matcher cannot be moved away"),
            }
        }
        tracing::error!(%error, "the matcher ends; started again it waits with an empty state");
        stopping.stop();
    });
    Ok(())
}

/// Gives up an area's lost matcher, over the bus. Names that matcher.
///
/// # Errors
/// Why not, for people.
pub fn take_over_area(url: &str, bus_token: &str, area: &str) -> Result<String, String> {
    if !crate::config::is_area(area) {
        return Err(format!("`{area}` is no area: give letters, digits, `-` and `_`, as in `matcher.area`"));
    }
    #[cfg(feature = "nats")]
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let record = runtime.block_on(throng_matcher_server::take_over(url, bus_token, area))?;
        Ok(match record.addresses.first() {
            Some(address) => format!("the matcher at {address}"),
            None => format!("the matcher {}", record.incarnation),
        })
    }
    #[cfg(not(feature = "nats"))]
    {
        let _ = (url, bus_token, area);
        Err("this program was built without the feature `nats`".to_owned())
    }
}

/// Names this matcher in the lease of its area.
#[cfg(feature = "nats")]
fn identity(settings: &Settings, fs: Option<&dyn Fs>) -> Result<Identity, StartError> {
    let random = || RandomState::new().build_hasher().finish();
    let incarnation = format!("{:016x}{:016x}", random(), random());
    let journal = match fs {
        Some(fs) => {
            let fresh = (u128::from(random()) << 64 | u128::from(random())).to_le_bytes();
            throng_matcher_server::journal_id(fs, fresh).map_err(|error| {
                StartError::File(format!("the matcher's journal in `{}`: {error}", settings.server.data))
            })?
        }
        None => incarnation.clone(),
    };
    // Without a place every restart waits the lease out.
    let machine =
        place_of(&Path::new(&settings.server.data).join(FOLDER)).unwrap_or_else(|_| incarnation.clone());
    Ok(Identity { incarnation, journal, machine, addresses: Vec::new() })
}

/// Names the running kernel and the lock of the journal's folder. A restart with both proves that
/// the process before has ended; a copy of the folder has the journal's id too, but another lock.
#[cfg(feature = "nats")]
fn place_of(folder: &Path) -> std::io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("{}/{}", boot.trim(), Folder::lock_id(folder)?))
}

fn serve_http(
    settings: &Settings,
    service: &Matching,
    tokens: Tokens,
    side: &tokio::runtime::Handle,
    end: &Arc<Notify>,
) -> Result<SocketAddr, StartError> {
    let matcher = &settings.matcher;
    let addr = resolve_addr(&matcher.http_addr).map_err(StartError::File)?;
    let bound = side.block_on(tokio::net::TcpListener::bind(addr));
    let bound = bound.and_then(|listener| listener.local_addr().map(|addr| (listener, addr)));
    let (listener, addr) =
        bound.map_err(|source| bind_error("matcher.http_addr".to_owned(), addr, source))?;
    let options = HttpOptions {
        tokens,
        connections_max: matcher.http_connections_max,
        requests_max: matcher.http_requests_max,
        tls: tls::http_acceptor(&matcher.tls_cert, &matcher.tls_key)
            .map_err(StartError::File)?
            .map(throng_admin::Tls::new),
    };
    let (handle, end) = (service.handle().clone(), Arc::clone(end));
    side.spawn(async move {
        let stopped = async move { end.notified().await };
        if let Err(error) = throng_matcher_server::serve_http(listener, handle, options, stopped).await {
            tracing::error!(%error, "the matcher's HTTP listener failed");
        }
    });
    Ok(addr)
}

fn journal(settings: &Settings) -> Result<(Durability, Option<Arc<dyn Fs>>), StartError> {
    let durability = match settings.matcher.durability.as_str() {
        "none" => return Ok((Durability::None, None)),
        "sync" => Durability::Sync,
        _ => Durability::Async,
    };
    let folder = Path::new(&settings.server.data).join(FOLDER);
    let opened = Folder::new(&folder);
    let opened =
        opened.map_err(|error| StartError::File(data_error("open the matcher's folder", &folder, &error)))?;
    Ok((durability, Some(Arc::new(opened))))
}

/// What the file of modes and queues says, and who is asked about rooms: all of it fits together.
fn rules(
    settings: &Settings,
    side: &tokio::runtime::Handle,
) -> Result<(throng_matcher::Config, Policies), String> {
    let keys = &settings.matcher;
    let wrong = |why: String| format!("`{}`: {why}", keys.rules);
    let rules = rules::load(&keys.rules).map_err(|problem| problem.to_string())?;
    let mut config = rules.config;
    config.presence_grace_ms = keys.presence_grace_ms;
    let needs_tls = config.modes.values().any(|mode| mode.policy.starts_with("https://"));
    let tls = if needs_tls {
        fetch::tls_client(&rules.policy_ca_file, "policy_ca_file")
    } else {
        fetch::tls_trusting(rustls::RootCertStore::empty())
    };
    let limit = Duration::from_millis(config.policy_timeout_ms);
    let policies = Policies::default().with_remote(side.clone(), limit, &*tls.map_err(wrong)?);
    for (name, mode) in &config.modes {
        policies.check(&mode.policy).map_err(|why| wrong(format!("modes.{name}.policy: {why}")))?;
    }
    Ok((config, policies))
}

/// A file's text; an empty name is an empty file.
fn read(file: &str) -> Result<String, String> {
    if file.is_empty() {
        return Ok(String::new());
    }
    std::fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}"))
}

#[cfg(all(test, feature = "nats"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_area_cannot_be_taken_over() {
        for name in ["", "a b", "a.b", "ä"] {
            let why = take_over_area("nats://127.0.0.1:1", "", name).unwrap_err();
            assert!(why.contains("is no area"), "{why}");
        }
    }

    #[test]
    fn a_copy_of_the_journals_folder_is_another_place() {
        let data = tempfile::tempdir().unwrap();
        let [folder, copy] = ["matcher", "copy"].map(|name| data.path().join(name));
        drop(Folder::new(&folder).unwrap());
        let place = place_of(&folder).unwrap();
        drop(Folder::new(&folder).unwrap());
        assert_eq!(place_of(&folder).unwrap(), place, "after a restart");
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(folder.join("lock"), copy.join("lock")).unwrap();
        assert_ne!(place_of(&copy).unwrap(), place);
    }
}
