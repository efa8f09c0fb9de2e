//! Data of the admin listener: health, metrics and monitoring reports, gathered from the shards
//! on demand.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Map, Value, json};
use throng_admin::{Act, ApiRequest, Endpoint, Family, Health, Monitor, Part, Problem};
use throng_cluster::Name;
use throng_gateway::data::Schemas;
use throng_gateway::{ConnKind, Stats};
use throng_net::Clock;
use tokio::sync::watch;

use crate::audit::AuditLog;
use crate::auth::Logins;
use crate::capture::Record;
use crate::cluster::{Cluster, LOBBY, WorldLife, no_match, not_open, plan, tool};
use crate::config::{Config, Settings};
use crate::inspect::connection_row;
use crate::mailbox::{Mailbox, Post, giving};
use crate::metrics::{self, MetricSources};
use crate::paging::paged;
use crate::process::ProcessFigures;
use crate::report::{ChannelReport, ShardReport, WorldReport};
use crate::runs::Runs;
use crate::services;
use crate::start::{Address, Service};
use crate::worker::{Heartbeat, OutputMemory};
use crate::worlds::{OpenWorld, Worlds, check_name};

/// Totals of the random searches for faults, as of the release.
const RELIABILITY: &str = include_str!("../../../docs/reliability.json");
/// Longest wait for a shard's report. A healthy shard answers within a round.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Players or game servers of a match that get tickets.
const NAMES_MAX: usize = 1_000;

/// Watches the process from outside its shards.
pub(crate) struct Watch {
    pub(crate) clock: Clock,
    pub(crate) mailboxes: Arc<[Mailbox]>,
    heartbeats: Vec<Arc<Heartbeat>>,
    output_memory: Arc<OutputMemory>,
    logins: Arc<Logins>,
    pub(crate) schemas: Arc<Schemas>,
    /// Load runs that the console starts.
    pub(crate) runs: Runs,
    pub(crate) worlds: Arc<Worlds>,
    matcher: Option<throng_matcher_server::Handle>,
    /// The node of a cluster, once it has its name.
    pub(crate) cluster: OnceLock<Arc<Cluster>>,
    /// Audit log of the admin listener.
    audit: AuditLog,
    ready: AtomicBool,
    settings: RwLock<Settings>,
    /// The configuration as the console shows it.
    config: RwLock<Value>,
    /// Parts that open only after this was made.
    cache: OnceLock<Arc<throng_ddc_server::Service>>,
    /// A collection or a scrub that somebody asked for goes on.
    caring: Arc<AtomicBool>,
    addresses: OnceLock<Vec<Address>>,
    /// The latest capture.
    capture: Mutex<Option<Arc<Record>>>,
    /// The latest report of each shard, for one that does not answer now.
    latest: Mutex<Vec<Option<ShardReport>>>,
}

/// A world that was opened for a match.
#[derive(Clone)]
pub(crate) struct MatchWorld {
    pub(crate) name: String,
    /// URLs of its node by kind and transport.
    pub(crate) addresses: Value,
}

/// The life of a match's world.
pub(crate) enum MatchWorldLife {
    /// In a process without a cluster: whether it has ended.
    Here(watch::Receiver<bool>),
    InCluster(watch::Receiver<WorldLife>),
}

impl MatchWorldLife {
    /// Waits for the next home of the world and returns its addresses by kind and transport, the
    /// present home's at first; `None` after the end. On a node that has left its cluster it never
    /// completes: the world may go on elsewhere.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        match self {
            MatchWorldLife::Here(end) => {
                if end.wait_for(|has_ended| *has_ended).await.is_err() {
                    std::future::pending().await
                }
                None
            }
            MatchWorldLife::InCluster(life) => loop {
                if life.changed().await.is_err() {
                    std::future::pending().await
                }
                let life = life.borrow_and_update();
                if life.has_ended {
                    return None;
                }
                // A home may have been lost since it wrote the record.
                if !life.addresses.is_empty() {
                    return Some(by_transport(&life.addresses));
                }
            },
        }
    }

    /// Completes when the world has ended.
    pub(crate) async fn end(mut self) {
        while self.next().await.is_some() {}
    }
}

impl Watch {
    pub(crate) fn new(
        config: &Config,
        clock: Clock,
        mailboxes: Arc<[Mailbox]>,
        heartbeats: Vec<Arc<Heartbeat>>,
        output_memory: Arc<OutputMemory>,
        logins: Arc<Logins>,
        schemas: Arc<Schemas>,
        worlds: Arc<Worlds>,
        matcher: Option<throng_matcher_server::Handle>,
    ) -> Watch {
        Watch {
            clock,
            heartbeats,
            output_memory,
            logins,
            schemas,
            runs: Runs::default(),
            worlds,
            matcher,
            cluster: OnceLock::new(),
            audit: AuditLog::new(Path::new(&config.settings.server.data)),
            ready: AtomicBool::new(false),
            settings: RwLock::new(config.settings.clone()),
            config: RwLock::new(config_rows(config)),
            cache: OnceLock::new(),
            caring: Arc::default(),
            addresses: OnceLock::new(),
            capture: Mutex::default(),
            latest: Mutex::new(vec![None; mailboxes.len()]),
            mailboxes,
        }
    }

    /// Tells what has opened since this was made. The first call counts.
    pub(crate) fn opened(&self, addresses: Vec<Address>, cache: Option<Arc<throng_ddc_server::Service>>) {
        let _ = self.addresses.set(addresses);
        if let Some(cache) = cache {
            let _ = self.cache.set(cache);
        }
    }

    pub(crate) fn capture(&self) -> Option<Arc<Record>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace_capture(&self, record: Option<Arc<Record>>) {
        let mut capture = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = std::mem::replace(&mut *capture, record) {
            old.end("it was stopped");
        }
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    pub(crate) fn reconfigure(&self, config: &Config) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = config.settings.clone();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config_rows(config);
    }

    fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks every shard at once and waits for the answers.
    pub(crate) fn reports(&self, lists: bool) -> Vec<ShardReport> {
        let asked: Vec<_> = self
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (reply, answer) = sync_channel(1);
                mailbox.post(Post::Report { lists, reply });
                answer
            })
            .collect();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        for (answer, slot) in asked.into_iter().zip(latest.iter_mut()) {
            if let Ok(report) = answer.recv_timeout(REPORT_TIMEOUT) {
                *slot = Some(report);
            }
        }
        latest.iter().flatten().cloned().collect()
    }

    /// The world that a request is about: the default one if it names none.
    pub(crate) fn world_of(&self, request: &ApiRequest) -> Result<OpenWorld, Problem> {
        let in_body = text_of(request, "world", "the name of a world")?;
        match request.query.get("world").map(String::as_str).or(in_body) {
            None | Some("") => {
                let default_world =
                    self.cluster.get().and_then(|node| self.worlds.find(node.default_world()));
                Ok(default_world.unwrap_or_else(|| self.worlds.main()))
            }
            Some(name) => self.worlds.find(name).ok_or_else(|| not_open(name)),
        }
    }

    /// The shards of a world with their connections and channels.
    pub(crate) fn world_reports(&self, world: &OpenWorld) -> impl Iterator<Item = WorldReport> + use<> {
        let (worlds, world) = (self.reports(true).into_iter().flat_map(|report| report.worlds), world.world);
        worlds.filter(move |report| report.world == world)
    }

    fn worlds_report(&self) -> Value {
        let reports = self.reports(false);
        let row = |open: OpenWorld| {
            let all = reports.iter().flat_map(|report| &report.worlds);
            let mut stats = Stats::default();
            let mine = all.filter(|report| report.world == open.world);
            let shards = mine.map(|report| stats.add(&report.stats)).count();
            json!({
                "name": *open.name, "number": open.world.0, "worker": open.worker, "shards": shards,
                "class": open.class.as_deref(), "lasting": open.lasting,
                "servers": stats.kind(ConnKind::Server).connections,
                "clients": stats.kind(ConnKind::Client).connections,
                "channels": stats.channels.values().sum::<u64>(),
                "bytes_in": both(&stats, |kind| kind.bytes_in), "bytes_out": both(&stats, |kind| kind.bytes_out),
            })
        };
        let worlds = self.worlds.list().into_iter().filter(|open| *open.name != *LOBBY);
        json!({ "worlds": worlds.map(row).collect::<Vec<_>>() })
    }

    fn world_open(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let class = text_of(request, "class", "the name of a class")?.filter(|class| !class.is_empty());
        if let Some(cluster) = self.cluster.get() {
            let name = name_of(request)?;
            let opened = cluster.open(name, class)?;
            return Ok(json!({ "name": name, "class": class, "node": opened.node }));
        }
        let opened = self.worlds.open(name_of(request)?, class, giving(&self.mailboxes));
        let opened = opened.map_err(|why| Problem::new(409, why))?;
        tracing::info!(world = &*opened.name, class, worker = opened.worker, "a world has opened");
        Ok(json!({
            "name": *opened.name, "number": opened.world.0, "worker": opened.worker, "class": opened.class.as_deref(),
        }))
    }

    /// Opens a world for a match, or takes an open one, and makes tickets for its players and game
    /// servers.
    fn match_open(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let class = text_of(request, "class", "the name of a class")?;
        let world = text_of(request, "world", "the name of a match's world")?;
        let room = text_of(request, "room", "the id of a room")?.unwrap_or_default();
        let (players, servers) = (names_of(request, "players")?, names_of(request, "servers")?);
        let MatchWorld { name, addresses } = match (class, world) {
            (Some(class), None) => self.open_match_world(class, room, false)?,
            // The matcher has had it opened, and a game server is to join it.
            (None, Some(world)) => {
                check_name(world).map_err(|why| Problem::new(400, why))?;
                let addresses = match (self.cluster.get(), self.worlds.find(world)) {
                    (Some(cluster), _) => cluster.match_home(world)?,
                    (None, Some(open)) if open.is_match => self.listeners(),
                    (None, Some(_)) => return Err(no_match(world)),
                    (None, None) => return Err(not_open(world)),
                };
                MatchWorld { name: world.to_owned(), addresses: by_transport(&addresses) }
            }
            _ => return Err(Problem::new(400, "either `class` or `world` must be given, as a name")),
        };
        let issue = |names: Vec<&str>, kind| -> Result<Map<String, Value>, Problem> {
            let ticket =
                |player: &str| Ok((player.to_owned(), self.match_ticket(player, kind, &name, room)?.into()));
            names.into_iter().map(ticket).collect::<Result<_, String>>().map_err(|why| Problem::new(500, why))
        };
        Ok(json!({
            "World": name,
            "Addresses": addresses,
            "Tickets": { "players": issue(players, ConnKind::Client)?, "servers": issue(servers, ConnKind::Server)? },
        }))
    }

    /// Opens a world for a match. Blocks until it has a home. `by_link`: the link of this process
    /// closes it when the room has ended.
    ///
    /// # Errors
    /// No class, no room, no home within 10 s.
    pub(crate) fn open_match_world(
        &self,
        class: &str,
        room: &str,
        by_link: bool,
    ) -> Result<MatchWorld, Problem> {
        if self.logins.tickets().is_none() {
            return Err(Problem::new(
                409,
                "there is no class for worlds of matches: add one to [[gateway.classes]]",
            ));
        }
        let name = format!("{class}-{}", base32(plan::random()));
        let addresses = match self.cluster.get() {
            Some(cluster) => cluster.open_match(&name, class, Some(room).filter(|_| by_link))?.addresses,
            None => {
                let opened = self.worlds.open_match(&name, class, giving(&self.mailboxes));
                opened.map_err(|why| Problem::new(409, why))?;
                self.listeners()
            }
        };
        tracing::info!(world = name, class, room, "a world has opened for a match");
        Ok(MatchWorld { name, addresses: by_transport(&addresses) })
    }

    /// The login token of a player or game server for the world of its match.
    ///
    /// # Errors
    /// It cannot be signed.
    pub(crate) fn match_ticket(
        &self,
        player: &str,
        kind: ConnKind,
        world: &str,
        room: &str,
    ) -> Result<String, String> {
        let tickets = self.logins.tickets().ok_or("this build has no tickets")?;
        tickets.issue(player, kind, world, room)
    }

    /// Closes the world of a match, wherever it is.
    pub(crate) fn close_match_world(&self, world: &str) {
        let closed = match self.cluster.get() {
            Some(cluster) => cluster.close_match(world),
            None => {
                self.close_here(world);
                Ok(())
            }
        };
        if let Err(why) = closed {
            tracing::warn!(world, why, "the world of a match that has ended stays open until it is idle");
        }
    }

    /// Rooms and worlds of the matches whose worlds the link of this node has opened in the
    /// cluster, also before a restart. Without a cluster worlds end with their process.
    pub(crate) fn opened_match_worlds(&self) -> Vec<(String, String)> {
        // A node that has ended opens and closes nothing.
        self.cluster.get().and_then(|cluster| cluster.match_worlds().ok()).unwrap_or_default()
    }

    /// Returns whether the world of a match has ended for all that is known here.
    pub(crate) fn has_match_world_ended(&self, world: &str) -> bool {
        match self.cluster.get() {
            Some(cluster) => cluster.match_home(world).is_err_and(|problem| problem.status == 404),
            None => self.worlds.find(world).is_none(),
        }
    }

    /// Follows the world of a match.
    pub(crate) fn follow_match_world(&self, world: &str) -> MatchWorldLife {
        match self.cluster.get() {
            Some(cluster) => MatchWorldLife::InCluster(cluster.follow(world)),
            None => MatchWorldLife::Here(self.worlds.end_of(world)),
        }
    }

    fn close_here(&self, name: &str) -> bool {
        let close = |worker, world| self.mailboxes[usize::from(worker)].post(Post::Close(world));
        self.worlds.close(name, close)
    }

    /// Addresses of the listeners that other machines may reach.
    fn listeners(&self) -> Vec<throng_cluster::Address> {
        let listed = self.addresses.get().into_iter().flatten().filter_map(|each| {
            let kind = match each.service {
                Service::Clients => "client",
                Service::Servers => "server",
                _ => return None,
            };
            let (transport, address) = (each.scheme.to_owned(), each.addr.to_string());
            let world = each.world.as_deref().and_then(|name| Name::new(name).ok());
            let told = throng_cluster::Address { transport, kind: kind.to_owned(), address, world };
            (!each.addr.ip().is_unspecified()).then_some(told)
        });
        listed.collect()
    }

    /// The node of a cluster that this process is.
    fn node(&self) -> Result<&Cluster, Problem> {
        let why = "this process is not a node of a cluster; set `cluster.name`";
        self.cluster.get().map(|node| &**node).ok_or_else(|| Problem::new(404, why))
    }

    /// Starts to drain a node of the cluster, or ends that, over the bus.
    fn drain(
        &self,
        request: &ApiRequest,
        act: impl FnOnce(&Settings, &str) -> Result<String, String>,
    ) -> Result<Value, Problem> {
        let node = text_of(request, "node", "the name of a node")?;
        let node = node.ok_or_else(|| Problem::new(400, "`node` must be the name of a node"))?;
        let state = self.node()?.node_report(node)?["state"].take();
        if state == "left" || state == "lost" {
            return Err(Problem::new(404, format!("the node `{node}` is not in the cluster any more")));
        }
        act(&self.settings(), node).map_err(|why| Problem::new(409, why))?;
        Ok(json!({ "node": node }))
    }

    fn world_close(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let name = name_of(request)?;
        if let Some(cluster) = self.cluster.get() {
            cluster.close(name)?;
            return Ok(json!({ "closed": name, "cluster": true }));
        }
        if *self.worlds.main().name == *name {
            return Err(Problem::new(409, "the default world ends with the process"));
        }
        if !self.close_here(name) {
            return Err(not_open(name));
        }
        tracing::info!(world = name, "a world has closed");
        Ok(json!({ "closed": name }))
    }

    fn shard_parts(&self) -> Vec<Part> {
        let limit = Duration::from_millis(self.settings().server.watchdog_ms);
        let now = self.clock.now();
        let part = |(index, heartbeat): (usize, &Arc<Heartbeat>)| {
            let stuck = heartbeat.busy_for(now).filter(|busy| *busy > limit);
            let detail = match stuck {
                Some(busy) => format!("no progress for {:.1} s", busy.as_secs_f64()),
                None => "serving".to_owned(),
            };
            Part { name: format!("shard {index}"), ok: stuck.is_none(), detail }
        };
        self.heartbeats.iter().enumerate().map(part).collect()
    }

    fn server_report(&self) -> Value {
        let reports = self.reports(false);
        let total = metrics::total(&reports);
        let process = ProcessFigures::read();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_ms": self.clock.now().as_nanos() / 1_000_000,
            "ready": self.health().ready,
            "shards": self.mailboxes.len(),
            "connections": { "servers": total.kind(ConnKind::Server).connections,
                             "clients": total.kind(ConnKind::Client).connections },
            "channels": total.channels.values().sum::<u64>(),
            "subscriptions": total.subscriptions,
            "messages_in": kinds(&total, |kind| kind.messages_in),
            "messages_out": kinds(&total, |kind| kind.messages_out),
            "bytes_in": kinds(&total, |kind| kind.bytes_in),
            "bytes_out": kinds(&total, |kind| kind.bytes_out),
            "cpu_seconds": process.cpu_seconds,
            "resident_bytes": process.resident_bytes,
        })
    }

    /// Counters and loads. A shard that does not answer is marked, and its figures are its latest
    /// ones.
    fn overview_report(&self) -> Value {
        let reports = self.reports(false);
        let total = metrics::total(&reports);
        let process = ProcessFigures::read();
        let limit = Duration::from_millis(self.settings().server.watchdog_ms);
        let now = self.clock.now();
        let shards = reports.iter().zip(&self.heartbeats).enumerate().map(|(index, (report, heartbeat))| {
            let stuck = heartbeat.busy_for(now).is_some_and(|busy| busy > limit);
            let stats = &report.stats();
            json!({
                "shard": index, "answers": !stuck,
                "rounds": report.rounds.counts.iter().sum::<u64>(), "busy_ns": report.rounds.sum_ns,
                "round_ns": report.rounds.latest_ns, "mailbox": report.mailbox.len,
                "connections": stats.kind(ConnKind::Server).connections + stats.kind(ConnKind::Client).connections,
                "fan_out_ticks": stats.fan_out_ticks, "fan_out_late_ns": stats.fan_out_lateness_ns,
            })
        });
        let shards: Vec<Value> = shards.collect();
        let figures = |kind| {
            let kind = total.kind(kind);
            json!({
                "connections": kind.connections, "messages_in": kind.messages_in, "messages_out": kind.messages_out,
                "packets_in": kind.packets_in, "packets_out": kind.packets_out,
                "bytes_in": kind.bytes_in, "bytes_out": kind.bytes_out,
            })
        };
        let channels: std::collections::BTreeMap<_, _> =
            total.channels.iter().map(|(kind, count)| (metrics::type_name(*kind), *count)).collect();
        json!({
            "uptime_ms": self.clock.now().as_nanos() / 1_000_000, "ready": self.health().ready,
            "servers": figures(ConnKind::Server), "clients": figures(ConnKind::Client),
            "channels": channels, "subscriptions": total.subscriptions,
            "updates_merged": total.updates_merged, "fan_out_messages": total.fan_out_messages,
            "fan_out_encodes": total.fan_out_encodes, "fan_out_bytes": total.fan_out_bytes,
            "forwarded": total.forwarded, "state_dropped": total.state_dropped, "resyncs": total.resyncs,
            "handovers": total.handovers, "handovers_across_servers": total.handovers_across_servers,
            "cpu_seconds": process.cpu_seconds, "resident_bytes": process.resident_bytes, "shards": shards,
        })
    }

    fn connections_report(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let world = self.world_of(request)?;
        let mut all: Vec<_> = self.world_reports(&world).flat_map(|world| world.connections).collect();
        all.sort_unstable_by_key(|conn| conn.view.id.0);
        Ok(paged("connections", all.iter().map(connection_row), request, |row| {
            format!("{} {} {} {}", row["id"], row["kind"], row["address"], row["state"])
        }))
    }

    pub(crate) fn channel_row(&self, channel: &ChannelReport) -> Value {
        let view = &channel.view;
        json!({
            "id": view.id.0, "type": metrics::type_name(view.channel_type), "shard": channel.shard,
            "metadata": view.metadata, "owner": view.owner.map(|owner| owner.0),
            "subscriptions": view.subscriptions, "lost": view.lost, "data_type": view.data_type,
            "data_bytes": view.data_bytes, "data_memory_bytes": view.data_heap_bytes,
            "backlog_updates": view.backlog.0, "backlog_bytes": view.backlog.1, "cohorts": view.cohorts,
            "cell": view.cell.map(|cell| cell.0), "version": view.version,
        })
    }

    fn channels_report(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let world = self.world_of(request)?;
        let mut all: Vec<_> = self.world_reports(&world).flat_map(|world| world.channels).collect();
        if let Some(wanted) = request.query.get("type") {
            all.retain(|channel| metrics::type_name(channel.view.channel_type) == wanted.as_str());
        }
        all.sort_unstable_by_key(|channel| channel.view.id.0);
        Ok(paged("channels", all.iter().map(|channel| self.channel_row(channel)), request, |row| {
            format!("{} {} {} {}", row["id"], row["type"], row["metadata"], row["data_type"])
        }))
    }

    fn cache_report(&self) -> Value {
        let Some(cache) = self.cache.get() else { return json!({ "running": false }) };
        let mut report = cache.report();
        let namespaces = cache.store().namespaces().unwrap_or_default();
        report["namespaces"] = namespaces.iter().map(ToString::to_string).collect();
        report["running"] = true.into();
        report["caring"] = self.caring.load(Ordering::Acquire).into();
        report
    }

    /// Cares for the cache beside its own schedule, one request at a time. What was done is in the
    /// report's counters.
    fn care(
        &self,
        work: fn(&throng_ddc_server::Service, u64) -> Result<(), throng_ddc_store::StoreError>,
    ) -> Result<Value, Problem> {
        let Some(cache) = self.cache.get().map(Arc::clone) else {
            return Err(Problem::new(409, "the cache is not running"));
        };
        if self.caring.swap(true, Ordering::AcqRel) {
            return Err(Problem::new(409, "a garbage collection or scrub is running; wait for it to finish"));
        }
        let bytes_per_s = self.settings().ddc.scrub_bytes_per_s;
        let caring = Arc::clone(&self.caring);
        let started = std::thread::Builder::new().name("care".to_owned()).spawn(move || {
            if let Err(error) = work(&cache, bytes_per_s) {
                tracing::error!(%error, "maintenance of the cache ended early");
            }
            caring.store(false, Ordering::Release);
        });
        match started {
            Ok(_) => Ok(json!({ "started": true })),
            Err(error) => {
                self.caring.store(false, Ordering::Release);
                Err(Problem::new(500, format!("cannot start a thread: {error}")))
            }
        }
    }

    fn matcher_report(&self) -> Value {
        let Some(matcher) = &self.matcher else { return json!({ "running": false }) };
        let report = matcher.report();
        let table = |rows: &[(&'static str, u64)]| -> Value {
            rows.iter().map(|(name, count)| ((*name).to_owned(), Value::from(*count))).collect()
        };
        json!({
            "running": true, "waits": report.waits,
            "rooms": report.counts.rooms, "teams": report.counts.teams, "roles": report.counts.players,
            "tickets": report.counts.tickets, "matches": report.counts.matches,
            "modes": report.modes.iter().map(|(name, rooms)| (name.clone(), Value::from(*rooms))).collect::<Value>(),
            "servers": report.counts.servers, "sessions": report.sessions, "connections": report.connections,
            "journal_bytes": report.journal_bytes,
            "notices": { "queued": report.notices_queued, "collapsed": report.notices_collapsed,
                         "batches": report.batches_sent, "lagging": report.lagging },
            "requests": table(&report.requests), "refusals": table(&report.errors),
        })
    }

    fn matcher_ask(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let matcher = self.matcher.as_ref().ok_or_else(|| Problem::new(409, "the matcher is not running"))?;
        let text = |name: &str| request.query.get(name).map(String::as_str);
        let body = text("request").unwrap_or("{}");
        parsed(matcher.ask_json(text("method").unwrap_or_default(), body))
    }

    /// The same with a longer request, and the one method that changes something which a console
    /// may use.
    fn matcher_call(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let matcher = self.matcher.as_ref().ok_or_else(|| Problem::new(409, "the matcher is not running"))?;
        let body = request.body.get("request").map_or_else(|| "{}".to_owned(), Value::to_string);
        parsed(match request.body.get("method").and_then(Value::as_str).unwrap_or_default() {
            "PutQueue" => matcher.put_queue_json(&body),
            method => matcher.ask_json(method, &body),
        })
    }

    fn about_report(&self) -> Value {
        let addresses = self.addresses.get().map(Vec::as_slice).unwrap_or_default();
        let address = |address: &Address| {
            json!({ "service": format!("{:?}", address.service).to_lowercase(), "scheme": address.scheme,
                    "address": address.addr.to_string() })
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            "debug": cfg!(debug_assertions),
            "started_unix_ms": self.clock.unix_start_ns() / 1_000_000,
            "shards": self.mailboxes.len(),
            "addresses": addresses.iter().map(address).collect::<Vec<_>>(),
            "parts": self.health().parts,
            "reliability": serde_json::from_str::<Value>(RELIABILITY).unwrap_or(Value::Null),
        })
    }

    fn audit_report(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let rows = self.audit.latest().map_err(|error| Problem::new(500, error.to_string()))?;
        let total = rows.len();
        let mut report = paged("acts", rows.into_iter(), request, |row| row.to_string());
        report["kept"] = total.into();
        Ok(report)
    }

    fn limits_report(&self) -> Value {
        let reports = self.reports(false);
        let total = metrics::total(&reports);
        let process = ProcessFigures::read();
        let settings = self.settings();
        let connections = self.worlds.connections.live() as u64;
        let mailbox = reports.iter().map(|report| report.mailbox_peak_bytes).max().unwrap_or(0);
        let row = |key: &str, used: u64, limit: u64| json!({ "key": key, "used": used, "limit": limit });
        json!({ "limits": [
            row("gateway.limits.connections_max", connections, settings.limits.connections_max as u64),
            row("gateway.limits.channels_max", total.channels.values().sum(), settings.limits.channels_max as u64),
            row("gateway.auth.pending_max", self.logins.pending() as u64, settings.auth.pending_max as u64),
            row("server.mailbox_bytes_max", mailbox as u64, settings.server.mailbox_bytes_max as u64),
            row(
                "gateway.limits.outbox_total_bytes",
                self.output_memory.held_bytes() as u64,
                self.output_memory.bytes_max() as u64,
            ),
            row("open files (ulimit -n)", process.open_fds, process.max_fds),
        ] })
    }
}

impl Monitor for Watch {
    fn health(&self) -> Health {
        let mut parts = self.shard_parts();
        let live = parts.iter().all(|part| part.ok);
        let unwell = self.heartbeats.iter().any(|heartbeat| heartbeat.is_unwell(self.clock.now()));
        let detail =
            if unwell { "three panics in a minute, the last less than a minute ago" } else { "calm" };
        parts.push(Part { name: "core".to_owned(), ok: !unwell, detail: detail.to_owned() });
        if let Some(provider) = self.logins.provider() {
            let (ok, detail) = provider.health();
            parts.push(Part { name: "authentication".to_owned(), ok, detail });
        }
        if let Some(matcher) = &self.matcher {
            // Other services of the process go on: only one that is a matcher alone is of no use
            // now.
            let why = matcher.why_ended().or_else(|| matcher.gate().why_closed());
            let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
            let ok = why.is_none() || !services::is_alone(&settings.server.only, services::MATCHER);
            let detail = why.unwrap_or_else(|| "serving".to_owned());
            parts.push(Part { name: "matcher".to_owned(), ok, detail });
        }
        if let Some(cache) = self.cache.get() {
            // A full disk refuses uploads, and damage makes misses; everything else goes on.
            parts.push(Part { name: "cache".to_owned(), ok: true, detail: cache.detail() });
        }
        parts.extend(self.cluster.get().map(|cluster| cluster.health()).into_iter().flatten());
        let serving = self.ready.load(Ordering::Acquire);
        let detail = if serving { "open" } else { "starting or stopping" };
        parts.push(Part { name: "listeners".to_owned(), ok: serving, detail: detail.to_owned() });
        Health { live, ready: parts.iter().all(|part| part.ok), parts }
    }

    fn metrics(&self) -> Vec<Family> {
        let reports = self.reports(false);
        let matcher = self.matcher.as_ref().map(throng_matcher_server::Handle::report);
        let figures = MetricSources {
            reports: &reports,
            process: ProcessFigures::read(),
            started_unix_s: self.clock.unix_start_ns() as f64 / 1e9,
            ready: self.health().ready,
            logins_pending: self.logins.pending(),
            cache: self.cache.get().map(|cache| cache.stats()),
            cache_sizes: self.cache.get().map_or_else(Vec::new, |cache| {
                cache.sizes().into_iter().map(|(name, usage)| (name.to_string(), usage)).collect()
            }),
            matcher: matcher.as_ref(),
            cluster: self.cluster.get().map(|cluster| cluster.families()).unwrap_or_default(),
            worlds: self.worlds.list(),
            classes: self.worlds.classes(),
        };
        let mut families = metrics::families(&figures);
        if self.settings().metrics.compat == "channeld" {
            families.extend(metrics::reference_families(&figures));
        }
        families
    }

    fn answer(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let id = request.id.unwrap_or_default();
        let name = request.query.get("name").map(String::as_str).unwrap_or_default();
        Ok(match request.endpoint {
            Endpoint::Server => self.server_report(),
            Endpoint::Overview => self.overview_report(),
            Endpoint::Connections => self.connections_report(request)?,
            Endpoint::Connection => self.connection_report(id, request)?,
            Endpoint::Why => self.why_report(id, request)?,
            Endpoint::Closures => self.closures_report(request)?,
            Endpoint::Channels => self.channels_report(request)?,
            Endpoint::Channel => self.channel_report(id, request)?,
            Endpoint::ChannelData => self.channel_data_report(id, request)?,
            Endpoint::World => self.world_report(request)?,
            Endpoint::Worlds => self.worlds_report(),
            Endpoint::WorldOpen => self.world_open(request)?,
            Endpoint::WorldClose => self.world_close(request)?,
            Endpoint::MatchOpen => self.match_open(request)?,
            Endpoint::Cluster => self.node()?.report()?,
            Endpoint::ClusterNode => self.node()?.node_report(name)?,
            Endpoint::ClusterWorlds => self.node()?.worlds_report(request)?,
            Endpoint::ClusterWorld => self.node()?.world_report(name)?,
            Endpoint::ClusterEvents => self.node()?.events_report(request)?,
            Endpoint::ClusterDrain => {
                self.drain(request, |settings, node| tool::drain(settings, node, None))?
            }
            Endpoint::ClusterUndrain => self.drain(request, tool::undrain)?,
            Endpoint::Cache => self.cache_report(),
            Endpoint::CacheCollect => self.care(|cache, _| cache.collect().map(drop))?,
            Endpoint::CacheScrub => self.care(|cache, bytes_per_s| cache.scrub(bytes_per_s).map(drop))?,
            Endpoint::Rooms => self.matcher_report(),
            Endpoint::Matcher => self.matcher_ask(request)?,
            Endpoint::MatcherCall => self.matcher_call(request)?,
            Endpoint::Limits => self.limits_report(),
            Endpoint::Config => self.config.read().unwrap_or_else(PoisonError::into_inner).clone(),
            Endpoint::About => self.about_report(),
            Endpoint::Capture => self.capture_report(request)?,
            Endpoint::CaptureBegin => self.capture_begin(request)?,
            Endpoint::CaptureEnd => self.capture_end(),
            Endpoint::Audit => self.audit_report(request)?,
            Endpoint::Runs => self.runs.list(),
            Endpoint::Run => self.runs.one(id)?,
            Endpoint::RunBegin => self.runs.begin(&request.body)?,
            Endpoint::RunStop => self.runs.stop(id)?,
            // Answered where sessions and streams are.
            Endpoint::Index
            | Endpoint::Session
            | Endpoint::SessionOpen
            | Endpoint::SessionClose
            | Endpoint::Invite
            | Endpoint::Stream => return Err(Problem::new(404, "no such report")),
        })
    }

    fn record(&self, act: &Act) {
        self.audit.record(act);
    }
}

/// The world that is to open or to close.
fn name_of(request: &ApiRequest) -> Result<&str, Problem> {
    let name = text_of(request, "name", "the name of a world")?;
    name.ok_or_else(|| Problem::new(400, "`name` must be the name of a world"))
}

/// A list of names in the body; empty if it is absent.
fn names_of<'a>(request: &'a ApiRequest, field: &str) -> Result<Vec<&'a str>, Problem> {
    let wrong =
        || Problem::new(400, format!("`{field}` must be a list of up to {NAMES_MAX} player identifiers"));
    match request.body.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(names)) if names.len() <= NAMES_MAX => {
            names.iter().map(|name| name.as_str().filter(|name| !name.is_empty()).ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// 13 digits for a number.
/// Addresses of the listeners that lead to all worlds, by kind and transport.
fn by_transport(addresses: &[throng_cluster::Address]) -> Value {
    let of_kind = |kind: &str| -> Map<String, Value> {
        let mine = addresses.iter().filter(|each| each.kind == kind && each.world.is_none());
        let url = |each: &throng_cluster::Address| format!("{}://{}", each.transport, each.address);
        mine.map(|each| (each.transport.clone(), url(each).into())).collect()
    };
    json!({ "client": of_kind("client"), "server": of_kind("server") })
}

fn base32(mut number: u64) -> String {
    let digit = |_| {
        let digit = b"0123456789abcdefghijklmnopqrstuv"[(number & 31) as usize];
        number >>= 5;
        char::from(digit)
    };
    (0..13).map(digit).collect()
}

/// A string of the body; `None` if it is absent or null.
fn text_of<'a>(request: &'a ApiRequest, field: &str, what: &str) -> Result<Option<&'a str>, Problem> {
    match request.body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(Problem::new(400, format!("`{field}` must be {what}, a string, not {other}"))),
    }
}

/// An answer of the matcher, or its problem.
fn parsed(answer: Result<String, (u16, String)>) -> Result<Value, Problem> {
    let answer = answer.map_err(|(status, why)| {
        let problem: Value = serde_json::from_str(&why).unwrap_or_default();
        Problem::new(status, problem["message"].as_str().map_or(why, str::to_owned))
    })?;
    serde_json::from_str(&answer)
        .map_err(|error| Problem::new(500, format!("the answer is not JSON: {error}")))
}

/// Every key as the console shows it.
fn config_rows(config: &Config) -> Value {
    let row = |(key, value, origin): (&crate::config::Key, &crate::config::Value, &crate::config::Origin)| {
        json!({
            "key": key.path, "value": value.to_toml(), "default": key.default.to_toml(), "origin": origin.to_string(),
            "unit": key.unit, "reload": key.reload, "about": key.doc,
        })
    };
    json!({
        "file": config.file().map(|file| file.display().to_string()),
        "warnings": config.warnings,
        "keys": config.entries().map(row).collect::<Vec<_>>(),
    })
}

fn both(stats: &Stats, figure: impl Fn(&throng_gateway::KindStats) -> u64) -> u64 {
    figure(stats.kind(ConnKind::Server)) + figure(stats.kind(ConnKind::Client))
}

fn kinds(total: &Stats, figure: impl Fn(&throng_gateway::KindStats) -> u64) -> Value {
    json!({ "servers": figure(total.kind(ConnKind::Server)), "clients": figure(total.kind(ConnKind::Client)) })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_reference_page_of_the_api_is_fresh() {
        crate::testing::check_generated("docs/reference/http.md", &throng_admin::markdown());
    }
}
