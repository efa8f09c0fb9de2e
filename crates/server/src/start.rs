//! Puts a process together from a configuration, watches over it, and takes it apart again.

use std::collections::HashMap;
use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_admin::{Access, ServeOptions};
use throng_gateway::data::Schemas;
use throng_gateway::{ConnKind, Framing, Shard, ShardIndex};
use throng_net::{Clock, EventLoop, ListenerKey, ListenerSpec, TlsAcceptor, WsPolicy, kcp};
use tokio::sync::{Notify, oneshot};

use crate::auth::{self, Logins, Tickets};
use crate::config::{Changes, Config, Listener, Origin, ProblemKind, Problems, Settings};
use crate::desk::Desk;
use crate::listen::{self, ListenerPlan, Transport};
use crate::mailbox::{Mailbox, Post};
use crate::monitor::Watch;
use crate::recorder::Recorder;
use crate::runs::Offer;
use crate::worker::{Heartbeat, ListenerRole, OutputMemory, ShardLoads, Worker, WorkerParts};
use crate::world::{HostParts, World};
use crate::worlds::{Worlds, name_and_class};
use crate::{cluster, ddc, doctor, gateway_config, matcher, matchmaking, process, services, tls};

/// Shards that "one per two cores" stops at. Beyond, mail between shards outweighs what another one
/// adds.
///
/// One per core is too many already: half of the work of a busy gateway is the kernel's network
/// stack, and with the players' side on the same 2 cores one shard serves 1,000 players on a
/// channel with a quarter less time than two.
const AUTOMATIC_SHARDS_MAX: usize = 8;
/// Part of the shutdown time that is left for the log, recordings and the admin listener.
const SHUTDOWN_RESERVE: Duration = Duration::from_millis(500);
/// The link between players and the matcher of this process takes milliseconds.
const LINK_PATIENCE: Duration = Duration::from_secs(2);
/// Time a peer has to close its side after everything was sent to it.
const LINGER: Duration = Duration::from_secs(2);
/// Stack of a shard thread. Merging recursive messages goes 64 levels deep at most.
const STACK_BYTES: usize = 4 << 20;

/// Address on which a running process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Service of the address.
    pub service: Service,
    /// The scheme people write in front: `tcp`, `tls`, `ws`, `wss`, `kcp`, `enet`, `http`.
    pub scheme: &'static str,
    /// The address as bound.
    pub addr: SocketAddr,
    /// The named world that it leads to.
    pub world: Option<Arc<str>>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.addr)
    }
}

/// Service of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// Game servers.
    Servers,
    /// Players.
    Clients,
    /// Health, metrics, monitoring.
    Admin,
    /// Derived data, for editors.
    Cache,
    /// Derived data and its administration, for machines inside.
    CacheInternal,
    /// The matcher's framed RPC.
    Matcher,
    /// The matcher's JSON over HTTP.
    MatcherHttp,
}

/// Why a process did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {addr} (`{key}`): {source}{hint}")]
    Bind {
        /// The key that names the address.
        key: String,
        /// The address.
        addr: SocketAddr,
        /// Error of the operating system.
        source: std::io::Error,
        /// A way out, empty when none is known.
        hint: String,
    },
    /// Files named in the configuration cannot be used; each problem has its code.
    #[error("{0}")]
    Files(Problems),
    /// A file named in the configuration cannot be used.
    #[error("{0}")]
    File(String),
    /// The system refuses threads, descriptors or randomness.
    #[error("{what}: {source}")]
    System {
        /// Attempted operation.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl StartError {
    /// The code for `throng explain`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            StartError::Files(_) | StartError::File(_) => ProblemKind::BadReference.code(),
            StartError::Bind { .. } => "THR-0109",
            StartError::System { .. } => "THR-0110",
        }
    }
}

/// A running process. Dropping it stops everything at once, without goodbyes; see
/// [`Running::shutdown`].
pub struct Running {
    config: Mutex<Config>,
    addresses: Vec<Address>,
    pub(crate) mailboxes: Arc<[Mailbox]>,
    workers: Vec<JoinHandle<()>>,
    worlds: Arc<Worlds>,
    recorder: Option<JoinHandle<()>>,
    runtime: Option<tokio::runtime::Runtime>,
    output_memory: Arc<OutputMemory>,
    pub(crate) watch: Arc<Watch>,
    logins: Arc<Logins>,
    access: Arc<Access>,
    acceptors: Vec<(Section, TlsAcceptor)>,
    secret: [u8; 32],
    /// By which the gateway knows the link to the matcher.
    link: Option<Arc<str>>,
    http_end: Arc<Notify>,
    cache: Option<ddc::Cache>,
    matcher: Option<matcher::Matcher>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Servers,
    Clients,
}

impl Section {
    fn of(self, settings: &Settings) -> &Listener {
        match self {
            Section::Servers => &settings.servers,
            Section::Clients => &settings.clients,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Section::Servers => "gateway.servers",
            Section::Clients => "gateway.clients",
        }
    }

    fn kind(self) -> ConnKind {
        match self {
            Section::Servers => ConnKind::Server,
            Section::Clients => ConnKind::Client,
        }
    }
}

/// Starts everything that the configuration asks for, with its compiled schemas.
pub(crate) fn start(config: Config, schemas: Schemas) -> Result<Running, StartError> {
    let clock = Clock::start();
    let settings = &config.settings;
    let system = |what| move |source| StartError::System { what, source };
    throng_net::raise_descriptor_limit();
    // The default folder is not checked here: a gateway alone runs on a read-only disk, and cache
    // and matcher open theirs.
    if config.origin("server.data") != &Origin::Default {
        check_data_folder(Path::new(&settings.server.data)).map_err(StartError::File)?;
    }

    let mut secret = [0; 32];
    fill_random(&mut secret).map_err(system("cannot get random bytes"))?;
    let link = link_name(settings).map_err(system("cannot get random bytes"))?;
    let (core, remarks) = gateway_config::build(settings, secret, link.clone()).map_err(StartError::File)?;
    for remark in config.warnings.iter().chain(&remarks) {
        tracing::warn!("{remark}");
    }

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("side")
        .enable_all()
        .build()
        .map_err(system("cannot start the side runtime"))?;
    let provider = auth::provider(&settings.auth, runtime.handle()).map_err(StartError::File)?;
    let is_node = !settings.cluster.name.is_empty();
    // Worlds of classes may be those of matches, whose players have tickets.
    let lobby = (is_node || !settings.classes.is_empty()).then(|| gateway_config::lobby(settings));
    let tickets = lobby.map(|_| match is_node {
        true => cluster::plan::secret(&settings.cluster.secret_file)
            .map_err(StartError::File)
            .map(|secret| Tickets::new(secret.as_bytes())),
        false => Ok(Tickets::new(&secret)),
    });
    // A build without signed tokens has no tickets.
    let tickets = tickets.transpose()?.and_then(Result::ok).map(Arc::new);
    let pending_max = settings.auth.pending_max;
    let logins = Arc::new(Logins::new(provider, runtime.handle().clone(), pending_max, lobby, tickets));
    let (recorder, recorder_thread) = start_recorder(settings)?;

    let count = shard_count(settings.server.shards);
    let mut loops = Vec::new();
    for _ in 0..count {
        loops.push(EventLoop::new().map_err(system("cannot create an event loop"))?);
    }
    let mut addresses = Vec::new();
    let mut acceptors = Vec::new();
    let schemas = Arc::new(schemas);
    let seed = u64::from_le_bytes(std::array::from_fn(|index| secret[index]));
    let main = if is_node { cluster::LOBBY } else { &settings.gateway.default_world };
    let schemas_of = Arc::clone(&schemas);
    let classes = gateway_config::classes(settings, secret).map_err(StartError::File)?;
    let (of_worlds, classes) = gateway_config::of_named_worlds(settings, lobby.is_some(), &core, classes);
    let worlds = Worlds::new(main, &of_worlds, classes, schemas_of, count, seed, clock.unix_start_ns());
    let worlds = Arc::new(worlds);
    let mut others: Vec<Vec<HostParts>> = (0..count).map(|_| Vec::new()).collect();
    // The worlds of a node are opened by its cluster.
    for entry in settings.gateway.worlds.iter().filter(|_| !is_node) {
        let (name, class) = name_and_class(entry);
        let give = |worker, parts| others[usize::from(worker)].push(parts);
        worlds.open_configured(name, class, give).map_err(StartError::File)?;
    }
    let core = if logins.has_lobby() { gateway_config::of_lobby(settings, core) } else { core };
    let mut roles: Vec<Roles> = (0..count).map(|_| Roles::new()).collect();
    let gateway = services::is_selected(&settings.server.only, services::GATEWAY);
    for section in [Section::Servers, Section::Clients].into_iter().filter(|_| gateway) {
        let opening = Opening {
            settings,
            worlds: &worlds,
            loops: &mut loops,
            addresses: &mut addresses,
            acceptors: &mut acceptors,
            roles: &mut roles,
        };
        opening.open_listeners(section)?;
    }
    let admin = bind_admin(settings, runtime.handle())?;
    if let Some((_, addr)) = &admin {
        addresses.push(Address { service: Service::Admin, scheme: "http", addr: *addr, world: None });
    }

    let side = runtime.handle();
    // Both wait for the disk, so they open their folders at the same time.
    let (cache, matcher) = std::thread::scope(|scope| {
        let cache = scope.spawn(|| ddc::start(settings, side));
        let matcher = matcher::start(settings, secret, side);
        (cache.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), matcher)
    });
    let (cache, matcher) = (cache?, matcher?);
    addresses.extend(cache.iter().flat_map(ddc::Cache::addresses));
    let pages_at = addresses.iter().find(|address| address.service == Service::Cache);
    let pages_at = pages_at.filter(|_| ddc::has_pages(settings)).map(|cache| (cache.scheme, cache.addr));
    addresses.extend(pages_at.map(|(scheme, addr)| Address {
        service: Service::Admin,
        scheme,
        addr,
        world: None,
    }));
    addresses.extend(matcher.iter().flat_map(matcher::Matcher::addresses));
    let own = matcher.as_ref().map(|matcher| (matcher.handle(), matcher.tokens()));
    let matchmaking = matchmaking::plan(settings, link.clone(), &addresses, own)?;

    let mailboxes: Arc<[Mailbox]> =
        loops.iter().map(|each| Mailbox::new(each.waker(), settings.server.mailbox_bytes_max)).collect();
    logins.connect(Arc::clone(&mailboxes), Arc::clone(&worlds));
    let output_memory = Arc::new(OutputMemory::new(loops.len(), output_bytes_max(settings)));
    let heartbeats: Vec<Arc<Heartbeat>> = loops.iter().map(|_| Arc::default()).collect();
    let watch = Arc::new(Watch::new(
        &config,
        clock,
        Arc::clone(&mailboxes),
        heartbeats.clone(),
        Arc::clone(&output_memory),
        Arc::clone(&logins),
        Arc::clone(&schemas),
        Arc::clone(&worlds),
        matcher.as_ref().map(|matcher| matcher.handle().clone()),
    ));
    watch.opened(addresses.clone(), cache.as_ref().map(ddc::Cache::service));
    let (desk, news) = matchmaking.is_some().then(Desk::new).unzip();
    let desk = desk.map(Arc::new);
    let running = Running {
        mailboxes: Arc::clone(&mailboxes),
        workers: start_workers(WorkerPlan {
            settings,
            clock,
            loops,
            roles,
            others,
            worlds: Arc::clone(&worlds),
            core: Arc::new(core),
            schemas,
            mailboxes,
            heartbeats,
            output_memory: Arc::clone(&output_memory),
            logins: Arc::clone(&logins),
            desk: desk.clone(),
            recorder,
            seed,
        })?,
        worlds,
        recorder: recorder_thread,
        output_memory,
        access: Arc::new(Access::new(
            read_tokens(&settings.http.tokens_file).map_err(StartError::File)?,
            settings.metrics.open,
        )),
        http_end: Arc::default(),
        addresses,
        runtime: Some(runtime),
        watch,
        logins,
        acceptors,
        secret,
        link,
        cache,
        matcher,
        config: Mutex::new(config),
    };
    running.join_cluster()?;
    running.serve_admin(admin);
    if let (Some(cache), Some((_, addr))) = (&running.cache, pages_at) {
        let monitor: Arc<dyn throng_admin::Monitor> =
            Arc::clone(&running.watch) as Arc<dyn throng_admin::Monitor>;
        cache.set_pages(throng_admin::Pages::new(monitor, Arc::clone(&running.access), addr));
    }
    if let (Some(plan), Some(desk), Some(news), Some(runtime)) = (matchmaking, desk, news, &running.runtime) {
        let (up, is_up) = oneshot::channel();
        let around = matchmaking::Around { process: Arc::clone(&running.watch), desk, news };
        runtime.spawn(matchmaking::run(plan, around, up));
        // Players who come at once find the matcher of this process there; one that is elsewhere
        // may come later.
        if running.matcher.is_some() {
            let _ = runtime.block_on(async { tokio::time::timeout(LINK_PATIENCE, is_up).await });
        }
    }
    running.watch.set_ready(true);
    Ok(running)
}

impl Running {
    /// Every open listener.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The first address of a service.
    #[must_use]
    pub fn address(&self, service: Service) -> Option<SocketAddr> {
        self.addresses.iter().find(|address| address.service == service).map(|address| address.addr)
    }

    /// Shard threads.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.mailboxes.len()
    }

    /// A handle of the side runtime, for tasks that belong to this process.
    #[must_use]
    pub fn runtime(&self) -> Option<&tokio::runtime::Handle> {
        self.runtime.as_ref().map(tokio::runtime::Runtime::handle)
    }

    /// The metrics page, as `/metrics` shows it.
    #[must_use]
    pub fn metrics(&self) -> String {
        use throng_admin::Monitor as _;
        throng_admin::render(&self.watch.metrics(), throng_admin::Format::Prometheus)
    }

    /// Reads the configuration again and applies what can be applied.
    ///
    /// # Errors
    /// Every problem of the new configuration; nothing was changed then.
    pub fn reload(&self) -> Result<Changes, Problems> {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, changes) = config.replaced_by(config.reload()?);
        let settings = &next.settings;
        let complain = |what: &str, result: Result<(), String>| {
            if let Err(why) = result {
                tracing::error!(%why, "{what} could not be reloaded; the current one stays in use");
            }
        };
        let built = gateway_config::build(settings, self.secret, self.link.clone());
        let classes = gateway_config::classes(settings, self.secret);
        match built.and_then(|(core, _)| Ok((core, classes?))) {
            Ok((core, classes)) => {
                if let Some(cluster) = self.watch.cluster.get() {
                    // Its thread opens the worlds, and the others learn what it opens them with.
                    let again = cluster::plan::classes(&next).and_then(|hashes| {
                        let core = core.clone();
                        cluster.reconfigure(cluster::Reconfigured { core, classes, hashes })
                    });
                    complain("the settings of the worlds", again);
                } else {
                    let has_lobby = self.logins.has_lobby();
                    let (core, classes) =
                        gateway_config::of_named_worlds(settings, has_lobby, &core, classes);
                    self.worlds.reconfigure(&core, classes);
                }
                let has_lobby = self.logins.has_lobby();
                let core = Arc::new(if has_lobby { gateway_config::of_lobby(settings, core) } else { core });
                for mailbox in self.mailboxes.iter() {
                    mailbox.post(Post::Reconfigure(Arc::clone(&core)));
                }
            }
            Err(why) => complain("the gateway's configuration", Err(why)),
        }
        self.output_memory.set_bytes_max(output_bytes_max(settings));
        // Files may have new content under an old name, so they are read in any case.
        for (section, acceptor) in &self.acceptors {
            let data = PathBuf::from(&settings.server.data);
            complain("a certificate", tls::reload(acceptor, section.of(settings), &data));
        }
        if let Some(provider) = self.logins.provider() {
            complain("the authentication provider", provider.reload());
        }
        match read_tokens(&settings.http.tokens_file) {
            Ok(tokens) => self.access.set_tokens(tokens),
            Err(error) => complain("the admin tokens", Err(error.to_string())),
        }
        if let (Some(cache), Some(runtime)) = (&self.cache, &self.runtime) {
            complain("the cache's rules", cache.reload(settings, runtime.handle()));
        }
        self.watch.reconfigure(&next);
        *config = next;
        Ok(changes)
    }

    /// A token that opens one session of the web console. `None` without an admin listener.
    #[must_use]
    pub fn invite(&self) -> Option<String> {
        self.address(Service::Admin)?;
        self.access.invite()
    }

    /// Lets the console start load runs with `program`, the `throng` command, which knows `tests`.
    pub fn offer_runs(&self, program: PathBuf, tests: Vec<String>) {
        let tcp = |service| {
            let found = self.addresses.iter().find(|each| each.service == service && each.scheme == "tcp");
            found.map(|each| from_here(each.addr))
        };
        let folder = PathBuf::from(self.settings().server.data).join("runs");
        let swarm = tcp(Service::Clients).zip(tcp(Service::Servers));
        self.watch.runs.offer(Offer { program, folder, swarm, tests });
    }

    /// The settings in use.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).settings.clone()
    }

    /// Stops in order: not ready any more, no new connections, everyone told, output flushed,
    /// threads ended. Takes at most `server.shutdown_timeout_ms`, after a node of a cluster has
    /// moved its worlds away. Returns whether everything was flushed in time.
    pub fn shutdown(mut self) -> bool {
        let timeout = Duration::from_millis(self.settings().server.shutdown_timeout_ms);
        self.watch.set_ready(false);
        if let Some(cluster) = self.watch.cluster.get() {
            cluster.leave();
        }
        let until = Instant::now() + timeout;
        for mailbox in self.mailboxes.iter() {
            mailbox.post(Post::Shutdown);
        }
        let complete = join_all(std::mem::take(&mut self.workers), until);
        // The last shard thread held the last recorder handle.
        let complete = join_all(self.recorder.take().into_iter().collect(), until) && complete;
        self.http_end.notify_waiters();
        if let Some(matcher) = self.matcher.take() {
            matcher.stop();
        }
        if let Some(cache) = self.cache.take() {
            cache.stop(until.saturating_duration_since(Instant::now()));
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(until.saturating_duration_since(Instant::now()).min(SHUTDOWN_RESERVE));
        }
        complete
    }

    /// Completes when the process has nothing to serve any more, with the reason, and whether that
    /// is a failure.
    ///
    /// A matcher that is the only service ended on its own: it cannot write its journal, or another
    /// one serves its area. Beside other services its end is a part of `/health/ready` and nothing
    /// more: they outlive a full disk. A node has left its cluster, or cannot be in it.
    pub(crate) async fn ended(&self) -> (&'static str, bool) {
        let matcher = async {
            match &self.matcher {
                Some(matcher) if services::is_alone(&self.settings().server.only, services::MATCHER) => {
                    matcher.handle().ended().await;
                }
                _ => std::future::pending().await,
            }
        };
        let cluster = async {
            match self.watch.cluster.get() {
                Some(cluster) => cluster.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = matcher => ("the matcher failed", true),
            end = cluster => match end {
                cluster::End::Left => ("the node has left its cluster", false),
                cluster::End::Failed(why) => {
                    tracing::error!(why, "the node ends");
                    ("the node failed", true)
                }
            },
        }
    }

    /// Has a node leave its cluster at once, without moving its worlds away.
    pub(crate) fn hurry(&self) -> impl FnOnce() + Send + 'static {
        let cluster = self.watch.cluster.get().cloned();
        move || cluster.iter().for_each(|cluster| cluster.stop())
    }

    /// Makes the process a node, if it is to be one.
    fn join_cluster(&self) -> Result<(), StartError> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        if config.settings.cluster.name.is_empty() {
            return Ok(());
        }
        let listeners = self.addresses.iter().filter_map(|address| {
            let kind = match address.service {
                Service::Clients => "client",
                Service::Servers => "server",
                _ => return None,
            };
            let world = address.world.as_deref().map(str::to_owned);
            Some(cluster::plan::Listener { kind, scheme: address.scheme, addr: address.addr, world })
        });
        let listeners: Vec<_> = listeners.collect();
        let around = cluster::Around {
            clock: self.watch.clock,
            worlds: &self.worlds,
            mailboxes: &self.mailboxes,
            listeners: &listeners,
        };
        let cluster = cluster::start(&config, &around)
            .map_err(|why| StartError::File(format!("the cluster: {why}")))?;
        self.logins.join(Arc::clone(&cluster));
        let first = self.watch.cluster.set(cluster).is_ok();
        debug_assert!(first, "joined once");
        Ok(())
    }

    fn serve_admin(&self, admin: Option<(tokio::net::TcpListener, SocketAddr)>) {
        let (Some((listener, _)), Some(runtime)) = (admin, &self.runtime) else { return };
        let options = ServeOptions {
            access: Arc::clone(&self.access),
            connections_max: self.settings().http.connections_max,
        };
        let end = Arc::clone(&self.http_end);
        let monitor: Arc<dyn throng_admin::Monitor> =
            Arc::clone(&self.watch) as Arc<dyn throng_admin::Monitor>;
        runtime.spawn(async move {
            let served =
                throng_admin::serve(listener, monitor, options, async move { end.notified().await }).await;
            if let Err(error) = served {
                tracing::error!(%error, "the admin listener failed");
            }
        });
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.workers.is_empty() {
            return;
        }
        for mailbox in self.mailboxes.iter() {
            mailbox.post(Post::Shutdown);
        }
        join_all(std::mem::take(&mut self.workers), Instant::now() + SHUTDOWN_RESERVE);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Refuses a data folder that cannot be written to. It is made when a service first needs it, and a
/// process that serves players must not find out only then.
fn check_data_folder(folder: &Path) -> Result<(), String> {
    let usable = match std::fs::metadata(folder) {
        Ok(found) if !found.is_dir() => Err(ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Err(error),
        _ => doctor::write_probe(folder),
    };
    accept_full(usable).map_err(|error| data_error("write to", folder, &error))
}

/// Takes a full disk for a usable one: the cache serves from it and has a reserve for deletes and
/// collections, which only a start makes possible. What needs space fails where it does.
fn accept_full(probed: std::io::Result<()>) -> std::io::Result<()> {
    match probed {
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            tracing::warn!(%error, "the disk of `server.data` is full");
            Ok(())
        }
        probed => probed,
    }
}

/// Text of an error about the data folder or one below it.
pub(crate) fn data_error(what: &str, folder: &Path, error: &dyn fmt::Display) -> String {
    let shown = folder.display();
    format!("`server.data`: cannot {what} `{shown}`: {error}; name another folder with --server.data")
}

/// Address by which programs on this machine reach a listener: loopback for one on every address.
#[must_use]
pub fn from_here(addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() { SocketAddr::from(([127, 0, 0, 1], addr.port())) } else { addr }
}

/// An unguessable name for the gateway's own matchmaking connection, if the settings ask for one.
fn link_name(settings: &Settings) -> std::io::Result<Option<Arc<str>>> {
    // A node of a cluster has no main world to connect to.
    if !matchmaking::is_wanted(settings) || !settings.cluster.name.is_empty() {
        return Ok(None);
    }
    let mut bytes = [0; 32];
    fill_random(&mut bytes)?;
    Ok(Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()))
}

/// The listeners of a worker.
type Roles = HashMap<ListenerKey, ListenerRole>;

struct WorkerPlan<'a> {
    settings: &'a Settings,
    clock: Clock,
    loops: Vec<EventLoop>,
    /// By worker.
    roles: Vec<Roles>,
    /// Shards of worlds besides the main one, by worker.
    others: Vec<Vec<HostParts>>,
    worlds: Arc<Worlds>,
    core: Arc<throng_gateway::Config>,
    schemas: Arc<Schemas>,
    mailboxes: Arc<[Mailbox]>,
    heartbeats: Vec<Arc<Heartbeat>>,
    output_memory: Arc<OutputMemory>,
    logins: Arc<Logins>,
    desk: Option<Arc<Desk>>,
    recorder: Recorder,
    seed: u64,
}

/// `gateway.limits.outbox_total_bytes`, or what its default means here.
fn output_bytes_max(settings: &Settings) -> usize {
    match settings.limits.outbox_total_bytes {
        0 => usize::try_from(process::memory_limit() / 4).unwrap_or(usize::MAX),
        bytes => bytes,
    }
}

fn start_workers(plan: WorkerPlan<'_>) -> Result<Vec<JoinHandle<()>>, StartError> {
    let count = plan.loops.len() as u16;
    let workers: Arc<[u16]> = (0..count).collect();
    let main = plan.worlds.main();
    let mut listeners = plan.roles.into_iter().zip(plan.others);
    let timeout =
        Duration::from_millis(plan.settings.server.shutdown_timeout_ms).saturating_sub(SHUTDOWN_RESERVE);
    let round_interval = Duration::from_micros(plan.settings.server.round_interval_us);
    let loads = Arc::new(ShardLoads::new(plan.loops.len()));
    let mut threads = Vec::new();
    for (index, (event_loop, heartbeat)) in plan.loops.into_iter().zip(plan.heartbeats).enumerate() {
        let seed = plan.seed.wrapping_add(index as u64);
        let shard = Shard::new(
            Arc::clone(&plan.core),
            Arc::clone(&plan.schemas),
            ShardIndex(index as u16),
            count,
            seed,
            plan.clock.unix_start_ns(),
        );
        let (name, workers) = (Arc::clone(&main.name), Arc::clone(&workers));
        let (is_first, has_class, idle, fence) = (index == 0, false, None, None);
        let main =
            HostParts { world: World::MAIN, name, shard, seed, workers, is_first, has_class, idle, fence };
        let (listeners, others) = listeners.next().unwrap_or_default();
        let worker = Worker::new(WorkerParts {
            index: index as u16,
            clock: plan.clock,
            event_loop,
            main,
            others,
            listeners,
            mailboxes: Arc::clone(&plan.mailboxes),
            output_memory: Arc::clone(&plan.output_memory),
            loads: Arc::clone(&loads),
            logins: Arc::clone(&plan.logins),
            recorder: plan.recorder.clone(),
            worlds: Arc::clone(&plan.worlds),
            desk: plan.desk.clone(),
            heartbeat,
            shutdown_timeout: timeout,
            round_interval,
        });
        let thread = std::thread::Builder::new()
            .name(format!("shard {index}"))
            .stack_size(STACK_BYTES)
            .spawn(move || worker.run_or_abort())
            .map_err(|source| StartError::System { what: "cannot start a shard thread", source })?;
        threads.push(thread);
    }
    Ok(threads)
}

/// Listeners on their way to their workers.
struct Opening<'a> {
    settings: &'a Settings,
    worlds: &'a Worlds,
    loops: &'a mut [EventLoop],
    addresses: &'a mut Vec<Address>,
    /// Worlds that listeners lead to, by their addresses.
    acceptors: &'a mut Vec<(Section, TlsAcceptor)>,
    roles: &'a mut [Roles],
}

impl Opening<'_> {
    fn open_listeners(self, section: Section) -> Result<(), StartError> {
        let listener = section.of(self.settings);
        let plans = listen::plan(listener).map_err(|wrong| {
            let wrong: Vec<_> = wrong.into_iter().map(|(key, why)| format!("`{key}`: {why}")).collect();
            StartError::File(wrong.join("; "))
        })?;
        let tls = match plans.iter().any(|plan| plan.tls) {
            true => {
                let data = PathBuf::from(&self.settings.server.data);
                let acceptor = tls::acceptor(listener, &data).map_err(StartError::File)?;
                self.acceptors.push((section, acceptor.clone()));
                Some(acceptor)
            }
            false => None,
        };
        for plan in plans {
            let mut spec = listener_spec(self.settings, listener, &plan, tls.as_ref());
            if section == Section::Clients {
                spec.limits.descriptors_spared = DESCRIPTORS_SPARED.min(throng_net::descriptor_limit() / 4);
            }
            if plan.transport == Transport::Enet {
                spec.limits.newcomer_bytes_max = Some(NEWCOMER_BYTES_MAX);
                let fault = |(key, why)| StartError::File(format!("`{}.{key}`: {why}", section.name()));
                spec.enet_gate = crate::enet_gate::gate(listener).map_err(fault)?;
                spec.enet_dtls = crate::enet_gate::dtls(listener).map_err(fault)?;
            }
            // Connections of a node wait in its lobby, whatever world they are for.
            let waits = !self.settings.cluster.name.is_empty();
            let is_named = match waits {
                true => !plan.world.is_empty(),
                false => self.worlds.find(&plan.world).is_some_and(|open| open.world != World::MAIN),
            };
            // The first loop accepts for all shards of the main world; the connections of another
            // world come straight to the worker that it is on.
            let world: Option<Arc<str>> = is_named.then(|| plan.world.as_str().into());
            let (first, loops) = match world.as_ref().filter(|_| !waits) {
                None => (0, &mut *self.loops),
                Some(name) => {
                    let worker = usize::from(self.worlds.bind(name));
                    (worker, &mut self.loops[worker..=worker])
                }
            };
            let (key, addr) = EventLoop::listen_on(loops, spec).map_err(|source| {
                let flag =
                    format!("--{}.{} {}", section.name(), plan.key, listen::with_free_port(listener, &plan));
                bind_error_with(format!("{}.{}", section.name(), plan.key), plan.addr, source, &flag)
            })?;
            let framing = match plan.transport {
                Transport::WebSocket => Framing::WebSocket,
                Transport::Enet if listener.enet_updates == "unreliable" => Framing::Packets,
                Transport::Tcp | Transport::Kcp | Transport::Enet => Framing::Stream,
            };
            let unproven = plan.transport == Transport::Kcp;
            let stream = matches!(plan.transport, Transport::Tcp | Transport::WebSocket);
            let may_give_way = stream && section == Section::Clients;
            let leads_to = world.clone();
            let role = ListenerRole { kind: section.kind(), framing, unproven, may_give_way, world, waits };
            self.roles[first].insert(key, role);
            let service = if section == Section::Servers { Service::Servers } else { Service::Clients };
            self.addresses.push(Address { service, scheme: plan.scheme(), addr, world: leads_to });
        }
        Ok(())
    }
}

fn listener_spec(
    settings: &Settings,
    listener: &Listener,
    plan: &ListenerPlan,
    tls: Option<&TlsAcceptor>,
) -> ListenerSpec {
    let profile = match listener.kcp_profile.as_str() {
        "game" => kcp::Profile::GAME,
        _ => kcp::Profile::REFERENCE,
    };
    let transport = match plan.transport {
        Transport::Tcp => throng_net::Transport::Tcp,
        Transport::WebSocket => throng_net::Transport::WebSocket,
        Transport::Kcp => throng_net::Transport::Kcp(profile),
        Transport::Enet => throng_net::Transport::Enet,
    };
    let mut spec = ListenerSpec::new(plan.addr, transport);
    spec.tls = tls.filter(|_| plan.tls).cloned();
    spec.proxy_protocol = listener.proxy_protocol;
    let any_origin = listener.origins.iter().any(|origin| origin == "*");
    spec.ws = Arc::new(WsPolicy {
        origins: if any_origin { Vec::new() } else { listener.origins.clone() },
        ping_interval: gateway_config::millis(listener.ping_interval_ms),
        ..WsPolicy::default()
    });
    // The core counts connections and says why it refuses one; the edge only keeps a flood from
    // getting that far.
    spec.limits.connections_max = settings.limits.connections_max.saturating_add(1_024);
    spec.limits.flush_timeout = LINGER;
    spec.limits.idle_timeout = gateway_config::millis(listener.idle_timeout_ms);
    spec
}

fn start_recorder(settings: &Settings) -> Result<(Recorder, Option<JoinHandle<()>>), StartError> {
    if !settings.recordings.enabled {
        return Ok((Recorder::none(), None));
    }
    let dir = match settings.recordings.dir.as_str() {
        "" => PathBuf::from(&settings.server.data).join("recordings"),
        dir => PathBuf::from(dir),
    };
    let shown = dir.display().to_string();
    let (recorder, thread) = Recorder::start(dir)
        .map_err(|error| StartError::File(format!("recordings cannot be written to `{shown}`: {error}")))?;
    Ok((recorder, Some(thread)))
}

fn bind_admin(
    settings: &Settings,
    runtime: &tokio::runtime::Handle,
) -> Result<Option<(tokio::net::TcpListener, SocketAddr)>, StartError> {
    if settings.http.addr.is_empty() || ddc::has_pages(settings) {
        return Ok(None);
    }
    let addr = crate::config::resolve_addr(&settings.http.addr).map_err(StartError::File)?;
    let bound = runtime.block_on(tokio::net::TcpListener::bind(addr));
    match bound.and_then(|listener| listener.local_addr().map(|addr| (listener, addr))) {
        Ok(admin) => Ok(Some(admin)),
        Err(error) if !settings.http.required => {
            tracing::warn!(%addr, %error, "no admin listener: cannot use its address");
            Ok(None)
        }
        Err(source) => Err(bind_error("http.addr".to_owned(), addr, source)),
    }
}

/// The error of a key that holds one address.
pub(crate) fn bind_error(key: String, addr: SocketAddr, source: std::io::Error) -> StartError {
    let flag = format!("--{key} {}", SocketAddr::new(addr.ip(), 0));
    bind_error_with(key, addr, source, &flag)
}

/// `flag` is the flag that would make the system choose a port.
fn bind_error_with(key: String, addr: SocketAddr, source: std::io::Error, flag: &str) -> StartError {
    let hint = match source.kind() {
        ErrorKind::AddrInUse => {
            format!("; is another process running? `{flag}` takes a free port")
        }
        ErrorKind::PermissionDenied => "; ports below 1024 need a privilege".to_owned(),
        ErrorKind::AddrNotAvailable => "; this machine does not have that address".to_owned(),
        _ => String::new(),
    };
    StartError::Bind { key, addr, source, hint }
}

/// Descriptors that clients leave to health, the admin API, game servers and files.
const DESCRIPTORS_SPARED: u64 = 64;

/// Bytes of packets with gaps that an ENet peer may have before its login: a frame, or as many as
/// are on their way at once.
const NEWCOMER_BYTES_MAX: usize = 128 * 1024;

/// Shorter tokens can be guessed.
const HTTP_TOKEN_BYTES_MIN: usize = 16;

/// One token a line, `#` begins a comment.
pub(crate) fn read_tokens(path: &str) -> Result<Vec<String>, String> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("`http.tokens_file`: cannot read `{path}`: {error}"))?;
    let tokens: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    if tokens.is_empty() {
        return Err(format!("`http.tokens_file`: `{path}` holds no token"));
    }
    if let Some(short) = tokens.iter().find(|token| token.len() < HTTP_TOKEN_BYTES_MIN) {
        return Err(format!(
            "`http.tokens_file`: a token in `{path}` has {} characters; {HTTP_TOKEN_BYTES_MIN} at least, such as \
             `openssl rand -hex 16` gives",
            short.len()
        ));
    }
    Ok(tokens)
}

fn shard_count(configured: u16) -> usize {
    match configured {
        0 => std::thread::available_parallelism().map_or(1, |n| (n.get() / 2).clamp(1, AUTOMATIC_SHARDS_MAX)),
        count => usize::from(count),
    }
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::Read as _;
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}

/// Waits for threads until a deadline; those that are not done stay behind. Returns whether all
/// were.
fn join_all(threads: Vec<JoinHandle<()>>, until: Instant) -> bool {
    let done = Arc::new((Mutex::new(0), std::sync::Condvar::new()));
    let wanted = threads.len();
    for thread in threads {
        let done = Arc::clone(&done);
        // JoinHandle has no timeout of its own.
        let spawned = std::thread::Builder::new().name("join".to_owned()).spawn(move || {
            let _ = thread.join();
            *done.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            done.1.notify_all();
        });
        drop(spawned);
    }
    let left = until.saturating_duration_since(Instant::now());
    let count = done.0.lock().unwrap_or_else(PoisonError::into_inner);
    let (count, _) = done
        .1
        .wait_timeout_while(count, left, |count| *count < wanted)
        .unwrap_or_else(PoisonError::into_inner);
    *count == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_reason_not_to_start() {
        for (kind, is_usable) in [
            (ErrorKind::StorageFull, true),
            (ErrorKind::QuotaExceeded, true),
            (ErrorKind::PermissionDenied, false),
            (ErrorKind::ReadOnlyFilesystem, false),
        ] {
            assert_eq!(accept_full(Err(kind.into())).is_ok(), is_usable, "{kind}");
        }
    }
}
