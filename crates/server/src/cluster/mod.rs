//! A node of a cluster: many worlds on many processes, by records in a bucket of NATS.
//!
//! The rules are those of [`throng_cluster`]. This module gives them the bucket, the clock and the
//! worlds of the process.
//!
//! ```text
//!  workers ──logins──▶ Cluster ──commands──▶ Driver (a thread) ◀──▶ Directory (NATS)
//!     ▲                                        │
//!     └────── fences, posts to mailboxes ◀─────┘
//! ```
//!
//! A world is served behind a fence (`fence.rs`), which the driver keeps open as long
//! as the node's lease lasts. The process's own world, where connections are before they have
//! logged in, is the *lobby*: no connection stays in it.

#[cfg(feature = "nats")]
mod bus;
#[cfg(feature = "nats")]
mod driver;
pub(crate) mod plan;
mod status;
#[cfg_attr(not(feature = "nats"), path = "no_tool.rs")]
pub mod tool;
mod view;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use throng_admin::{ApiRequest, Family, Part, Problem};
use throng_cluster::{Address, Name, WorldRecord};
use throng_gateway::{CloseReason, ConnKind, Verdict, WorldChoice};
use throng_net::Clock;
use throng_stdx::Instant;
use tokio::sync::{mpsc, oneshot, watch};

use crate::mailbox::Mailbox;
use crate::paging::paged;
use crate::world::Judgement;
use crate::worlds::{Classes, WorldRequest, Worlds};
use status::Status;
use view::{Changes, node_row, world_row};

/// Name of the process's own world in a cluster. No world of the cluster can have it.
pub(crate) const LOBBY: &str = "_lobby";
/// The answer to the wish to close the default world of a cluster.
pub(crate) const DEFAULT_STAYS: &str =
    "the default world (`gateway.default_world`) stays open as long as a node runs";
/// Commands that wait for the driver. Beyond, logins are refused.
const COMMANDS_MAX: usize = 4_096;
/// Time for the name of the node: another process may hold it for a lease of 15 s.
const START: Duration = Duration::from_secs(40);
/// Time for the last record after the worlds have stopped.
const LEAVE: Duration = Duration::from_secs(3);
/// Time without an answer of the directory after which a stop moves no more worlds.
const SILENCE: Duration = Duration::from_secs(3);
/// Time for the home of a world that is to be opened, and for the record of one that is to be
/// closed.
const HOME: Duration = Duration::from_secs(10);
/// Time for moving worlds away, beside `cluster.drain_wait_s`.
const MOVE: Duration = Duration::from_secs(10);

/// Request to the driver.
enum Command {
    /// A login wants into a world. The answer is success if the world is here.
    Arrive {
        world: Name,
        kind: ConnKind,
        asked: Option<EntryRequest>,
        by_listener: bool,
        reply: oneshot::Sender<Verdict>,
    },
    /// Open a world of a class, on any node. The answer comes when it is served.
    Open { world: Name, class: Name, purpose: Purpose, reply: oneshot::Sender<Result<Hosted, Problem>> },
    /// Read the state of the node.
    Look(Look),
    /// Keep this up to date with the life of a world.
    Follow(Name, watch::Sender<WorldLife>),
    /// The settings have changed, for worlds that open from now on.
    Reconfigure(Box<Reconfigured>),
    /// Close a world, on any node. The answer comes when that is written, or after 10 s.
    Close(Name, Option<oneshot::Sender<Result<(), Problem>>>),
    /// Move all worlds away, after this time those with players too. The answer is whether there is
    /// a node that could take them, and a bus to say so.
    Drain(Duration, oneshot::Sender<bool>),
    /// Stop serving and leave.
    Stop,
}

/// Purpose of a world that is to be opened.
enum Purpose {
    /// To stay.
    Lasting,
    /// For one match.
    Match,
    /// The same, for the link of this node, which finds the world again by the match's room.
    Room(String),
}

/// Part of the life of a world that matters to its match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorldLife {
    pub(crate) has_ended: bool,
    /// Addresses of the latest home that has served it.
    pub(crate) addresses: Vec<Address>,
}

type Look = Box<dyn FnOnce(&throng_cluster::Node, &Changes) + Send>;

/// A login that enters a world because it asks for it.
#[derive(Clone, Copy, Debug)]
struct EntryRequest {
    addr: IpAddr,
    now: Instant,
}

/// A world that is served.
pub(crate) struct Hosted {
    /// Node that serves it.
    pub(crate) node: Name,
    /// Addresses of the node.
    pub(crate) addresses: Vec<Address>,
    /// Its class by the directory.
    pub(crate) class: Option<Name>,
}

/// Settings of worlds after a reload.
pub(crate) struct Reconfigured {
    pub(crate) core: throng_gateway::Config,
    pub(crate) classes: Classes,
    pub(crate) hashes: BTreeMap<Name, throng_cluster::Class>,
}

/// Way in which a node has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has given all worlds away.
    Left,
    /// It cannot run.
    Failed(String),
}

/// State that the driver shares with the rest of the process.
struct Shared {
    clock: Clock,
    cluster: throng_cluster::ClusterRecord,
    status: Mutex<Status>,
    /// The node has its name; it has ended.
    stage: watch::Sender<(bool, Option<End>)>,
}

impl Shared {
    fn cluster(&self) -> &throng_cluster::ClusterRecord {
        &self.cluster
    }

    fn change(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status());
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) {
        self.stage.send_modify(|stage| stage.0 = true);
    }

    fn is_up(&self) -> bool {
        self.stage.borrow().0
    }

    fn end(&self, end: End) {
        self.stage.send_modify(|stage| stage.1 = Some(end));
    }
}

/// A running node. Dropping it leaves its thread behind, which stops with the process.
pub(crate) struct Cluster {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    worlds: Arc<Worlds>,
    node: Name,
    /// Worlds of `gateway.worlds`, with their classes.
    configured: BTreeMap<Name, Name>,
    default_world: Name,
    /// Time for empty worlds before a stop moves the others; `None`: a stop moves none.
    drain: Option<Duration>,
    patience: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Parts of the process that a node works with.
pub(crate) struct Around<'a> {
    pub(crate) clock: Clock,
    pub(crate) worlds: &'a Arc<Worlds>,
    pub(crate) mailboxes: &'a Arc<[Mailbox]>,
    /// Open listeners.
    pub(crate) listeners: &'a [plan::Listener],
}

/// Starts a node, and waits until it has its name.
///
/// # Errors
/// The defect of the settings, of NATS or of the bucket, with the way out.
#[cfg(feature = "nats")]
pub(crate) fn start(config: &crate::config::Config, around: &Around<'_>) -> Result<Arc<Cluster>, String> {
    use throng_cluster::{NodeRecord, NodeState, Setup};

    let settings = &config.settings;
    let ground = plan::Ground::open(settings)?;
    let cluster = plan::cluster_record(settings)?;
    let node = plan::node_name(settings)?;
    let addresses = plan::advertised(settings, around.listeners)?;
    let default_world = Name::new(&settings.gateway.default_world)?;
    let configured: BTreeMap<Name, Name> = plan::wanted(settings)?.into_iter().collect();
    let (wanted, entrance) = (configured.clone(), default_world.clone());
    let keys = &settings.cluster;
    let patience = Duration::from_millis(keys.patience_ms);
    let setup = Setup {
        cluster: cluster.clone(),
        record: NodeRecord {
            incarnation: 0,
            nonce: 0,
            state: NodeState::Up,
            addresses: addresses.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            folder: ground.folder.clone(),
            boot: ground.boot.clone(),
            labels: plan::labels(&keys.labels)?,
            classes: Default::default(),
            load_permille: 0,
            worlds: 0,
            worlds_max: keys.worlds_max,
            free_worlds: keys.worlds_max,
            rest: Default::default(),
        },
        node: node.clone(),
        has_lock: ground.has_lock,
        classes: plan::classes(config)?,
        patience,
        arrivals_max: keys.arrivals_max,
        origin_unix_ms: around.clock.unix_start_ns() / 1_000_000,
    };
    plan::check_size(&setup)?;
    let core = throng_cluster::Node::new(setup, plan::random(), around.clock.now());
    let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
    let stage = watch::Sender::new((false, None));
    let status = Mutex::new(Status::default());
    let shared = Arc::new(Shared { clock: around.clock, cluster: cluster.clone(), status, stage });
    let (settings, worlds, mailboxes) =
        (settings.clone(), Arc::clone(around.worlds), Arc::clone(around.mailboxes));
    let own = node.clone();
    let (clock, driver_shared) = (around.clock, Arc::clone(&shared));
    let drain = keys.drain_on_stop.then(|| Duration::from_secs(keys.drain_wait_s.into()));
    let thread = move || {
        let shared = Arc::clone(&driver_shared);
        let drive = async move {
            let bus = bus::Bus::connect(&settings, &node).await?;
            let directory = bus.open(&settings).await?;
            directory.check_cluster(&cluster).await?;
            let parts = driver::Parts {
                core,
                node,
                clock,
                bus,
                directory,
                worlds,
                mailboxes,
                shared: driver_shared,
                commands: receiver,
                boot: ground.boot.clone(),
                addresses,
                worlds_max: settings.cluster.worlds_max,
                connections_max: settings.limits.connections_max,
                wanted,
                default_world: entrance,
            };
            driver::Driver::new(parts).run().await;
            // The folder stays locked until here.
            drop(ground);
            Ok::<(), String>(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ran = runtime.map(|runtime| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(drive)))
        });
        match ran {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(why))) => shared.end(End::Failed(why)),
            // Its worlds stand still when the lease runs out.
            Ok(Err(_)) => shared.end(End::Failed("a panic in the thread of the node".to_owned())),
            Err(error) => shared.end(End::Failed(format!("cannot start the runtime of the node: {error}"))),
        }
    };
    let thread = std::thread::Builder::new()
        .name("cluster".to_owned())
        .spawn(thread)
        .map_err(|error| format!("cannot start the thread of the node: {error}"))?;
    let thread = Mutex::new(Some(thread));
    let worlds = Arc::clone(around.worlds);
    let cluster =
        Cluster { commands, shared, worlds, node: own, configured, default_world, drain, patience, thread };
    let cluster = Arc::new(cluster);
    cluster.wait_for_name()?;
    Ok(cluster)
}

/// Without the feature no configuration with a cluster passes its checks.
#[cfg(not(feature = "nats"))]
pub(crate) fn start(_: &crate::config::Config, _: &Around<'_>) -> Result<Arc<Cluster>, String> {
    Err("`cluster.name` needs the feature `nats`".to_owned())
}

impl Cluster {
    #[cfg(feature = "nats")]
    fn wait_for_name(&self) -> Result<(), String> {
        let mut stage = self.shared.stage.subscribe();
        let waiting = async {
            let done = stage.wait_for(|(is_up, end)| *is_up || end.is_some());
            tokio::time::timeout(START, done).await.map(|stage| stage.map(|stage| stage.1.clone()))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        match runtime.map_err(|error| error.to_string())?.block_on(waiting) {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(End::Failed(why)))) => Err(why),
            Ok(Ok(Some(End::Left)) | Err(_)) => Err("the node has ended".to_owned()),
            Err(_) => {
                let status = self.shared.status();
                let problem = status.problem.as_deref().unwrap_or("the directory was not read");
                Err(format!(
                    "the node did not get its name within {} s: {problem}; if NATS has no room left, raise \
                     `max_file_store` or the account's limit of disk storage",
                    START.as_secs()
                ))
            }
        }
    }

    /// The world of logins that name none.
    pub(crate) fn default_world(&self) -> &str {
        self.default_world.as_str()
    }

    fn tell(&self, command: Command) -> Result<(), String> {
        self.commands.try_send(command).map_err(|_| "the node is busy, or has ended".to_owned())
    }

    /// The verdict about a login in the lobby: the world that its credential names, the one that it
    /// asks for, or the default one, if that is here. `by_listener`: its listener leads to the one
    /// that it asks for.
    pub(crate) async fn settle(
        &self,
        kind: ConnKind,
        judged: Judgement,
        asked: Option<WorldRequest<'_>>,
        by_listener: bool,
    ) -> Verdict {
        if judged.verdict != Verdict::Success {
            return judged.verdict;
        }
        let named = judged.world.as_deref();
        if asked.is_some_and(|asked| named.is_some_and(|named| named != asked.world)) {
            return Verdict::Refused(CloseReason::WorldMismatch);
        }
        let default_world = self.default_world.as_str();
        let entered = named.or(asked.map(|asked| asked.world)).unwrap_or(default_world);
        let needs_door = named.is_none() && !by_listener && entered != default_world;
        let asked = asked.filter(|_| needs_door);
        let asked = asked.map(|asked| EntryRequest { addr: asked.addr, now: asked.now });
        let Ok(world) = Name::new(entered) else { return Verdict::Refused(CloseReason::UnknownWorld) };
        self.find(world, kind, asked, by_listener).await
    }

    /// The verdict about a resume token of a world: whichever node serves the world finds out
    /// whether the token resumes something. A token of a world that is not open contradicts
    /// nothing.
    pub(crate) async fn settle_token(&self, world: &str, asked: Option<WorldChoice>) -> Verdict {
        let is_other = asked.as_ref().is_some_and(|asked| *asked.world != *world);
        let Ok(world) = Name::new(world) else { return Verdict::NoWorld };
        let by_listener = asked.is_some_and(|asked| asked.by_listener);
        // Game servers have no resume tokens.
        match self.find(world, ConnKind::Client, None, by_listener).await {
            Verdict::Refused(CloseReason::UnknownWorld) => Verdict::NoWorld,
            _ if is_other => Verdict::Refused(CloseReason::WorldMismatch),
            verdict => verdict,
        }
    }

    /// The way into a world, once its home is known.
    async fn find(
        &self,
        world: Name,
        kind: ConnKind,
        asked: Option<EntryRequest>,
        by_listener: bool,
    ) -> Verdict {
        let (reply, answer) = oneshot::channel();
        if self.tell(Command::Arrive { world: world.clone(), kind, asked, by_listener, reply }).is_err() {
            return Verdict::Refused(CloseReason::WorldUnavailable);
        }
        match answer.await {
            Ok(Verdict::Success) => match self.worlds.find(world.as_str()) {
                Some(open) => Verdict::Elsewhere { world: open.world.0 },
                None => Verdict::Refused(CloseReason::WorldUnavailable),
            },
            Ok(other) => other,
            // The node has ended.
            Err(_) => Verdict::Refused(CloseReason::WorldUnavailable),
        }
    }

    /// Has a world opened, on any node, and waits until it is served. One of `gateway.worlds` opens
    /// with its own class if none is named.
    ///
    /// # Errors
    /// No name, no such class, its limit of worlds is reached, it is open with another class; no
    /// home within 10 s.
    pub(crate) fn open(&self, world: &str, class: Option<&str>) -> Result<Hosted, Problem> {
        let conflict = |why| Problem::new(409, why);
        let world = Name::new(world).map_err(conflict)?;
        let own = self.configured.get(&world).map(Name::as_str);
        let opened = class.or(own).unwrap_or(plan::CLASS);
        if opened != plan::CLASS {
            self.worlds.class(opened).map_err(conflict)?;
        }
        let hosted = self.host(world.clone(), opened, Purpose::Lasting)?;
        match (class, &hosted.class) {
            (Some(class), Some(served)) if served.as_str() != class => Err(conflict(format!(
                "the world `{world}` is open, as one of the class `{served}` and not `{class}`; close it, or take \
                 another name"
            ))),
            _ => Ok(hosted),
        }
    }

    /// The same for a world of a match. `room` is that of a match whose world the link of this node
    /// opens; see [`match_worlds`](Cluster::match_worlds).
    ///
    /// # Errors
    /// As [`Cluster::open`].
    pub(crate) fn open_match(&self, world: &str, class: &str, room: Option<&str>) -> Result<Hosted, Problem> {
        let conflict = |why| Problem::new(409, why);
        self.worlds.class(class).map_err(conflict)?;
        let world = Name::new(world).map_err(conflict)?;
        let purpose = room.map_or(Purpose::Match, |room| Purpose::Room(room.to_owned()));
        self.host(world.clone(), class, purpose).inspect_err(|_| {
            // It is not wanted any more, wherever it may open.
            let _ = self.tell(Command::Close(world, None));
        })
    }

    /// Addresses of the home of an open world of a match.
    ///
    /// # Errors
    /// It is not open, or not of a match.
    pub(crate) fn match_home(&self, world: &str) -> Result<Vec<Address>, Problem> {
        let is_read = self.shared.status().synced_since.is_some();
        let Ok(name) = Name::new(world) else { return Err(not_open(world)) };
        let found = self.look(move |core, _| {
            let is_open = |record: &&WorldRecord| record.state.is_open();
            core.world(&name).filter(is_open).map(|record| (record.ephemeral, addresses(core, &name, record)))
        })?;
        match found {
            Some((true, addresses)) => Ok(addresses),
            Some((false, _)) => Err(no_match(world)),
            None if is_read => Err(not_open(world)),
            None => Err(Problem::new(503, "the directory is being read again; try again")),
        }
    }

    /// Rooms and open worlds of the matches whose worlds the link of this node has opened, in this
    /// life or an earlier one.
    ///
    /// # Errors
    /// The node is busy, or has ended.
    pub(crate) fn match_worlds(&self) -> Result<Vec<(String, String)>, Problem> {
        let node = self.node.clone();
        self.look(move |core, _| {
            let open = core.worlds().filter(|(_, record)| record.state.is_open());
            let own = open.filter_map(|(name, record)| Some((name, record.opener.as_ref()?)));
            let own = own.filter(|(_, opener)| opener.node == node);
            own.map(|(name, opener)| (opener.room.clone(), name.to_string())).collect()
        })
    }

    fn host(&self, world: Name, class: &str, purpose: Purpose) -> Result<Hosted, Problem> {
        let class = Name::new(class).map_err(unavailable)?;
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Open { world, class, purpose, reply }).map_err(unavailable)?;
        answer.blocking_recv().unwrap_or_else(|_| Err(unavailable("the node has ended".to_owned())))
    }

    /// Reads the state of the node, on its thread.
    fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&throng_cluster::Node, &Changes) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        // The caller may have given up.
        let look =
            move |core: &throng_cluster::Node, changes: &Changes| drop(reply.send(look(core, changes)));
        self.tell(Command::Look(Box::new(look))).map_err(|why| Problem::new(503, why))?;
        answer.blocking_recv().map_err(|_| Problem::new(503, "the node has ended"))
    }

    /// Nodes, and worlds by state.
    pub(crate) fn report(&self) -> Result<Value, Problem> {
        let (nodes, worlds, number) = self.look(|core, changes| {
            let age = |name| core.node(name).map_or(0, |(_, age)| millis(age));
            let nodes: Vec<Value> =
                core.nodes().map(|(name, record)| node_row(name, record, age(name))).collect();
            let mut worlds = BTreeMap::<String, usize>::new();
            for (_, record) in core.worlds() {
                *worlds.entry(record.state.to_string()).or_default() += 1;
            }
            (nodes, worlds, changes.number())
        })?;
        let status = self.shared.status();
        let (missing, wanted) = status.replicas;
        Ok(json!({
            "cluster": self.shared.cluster().name, "node": self.node, "default_world": self.default_world,
            "parts": status.health(self.shared.clock.now(), self.patience),
            "replicas": { "missing": missing, "wanted": wanted }, "unreadable": status.stats.unreadable,
            "nodes": nodes, "worlds": worlds, "event": number,
        }))
    }

    pub(crate) fn node_report(&self, name: &str) -> Result<Value, Problem> {
        let missing = Problem::new(404, format!("there is no node `{name}` in the cluster"));
        let Ok(node) = Name::new(name) else { return Err(missing) };
        let found = self.look(move |core, _| {
            core.node(&node).map(|(record, age)| node_row(&node, record, millis(age)))
        })?;
        found.ok_or(missing)
    }

    pub(crate) fn worlds_report(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let class = request.query.get("class").cloned();
        let worlds: Vec<Value> = self.look(move |core, _| {
            let is_wanted =
                |record: &WorldRecord| class.as_deref().is_none_or(|class| record.class.as_str() == class);
            let wanted = core.worlds().filter(|(_, record)| is_wanted(record));
            wanted.map(|(name, record)| world_row(name, record)).collect()
        })?;
        Ok(paged("worlds", worlds.into_iter(), request, |row| {
            format!("{} {} {} {}", row["name"], row["state"], row["home"], row["class"])
        }))
    }

    /// A world with the addresses of its home.
    pub(crate) fn world_report(&self, name: &str) -> Result<Value, Problem> {
        let missing = Problem::new(404, format!("there is no world `{name}` in the cluster"));
        let Ok(world) = Name::new(name) else { return Err(missing) };
        let found = self.look(move |core, _| {
            let record = core.world(&world)?;
            let mut row = world_row(&world, record);
            row["addresses"] = json!(addresses(core, &world, record));
            Some(row)
        })?;
        found.ok_or(missing)
    }

    pub(crate) fn events_report(&self, request: &ApiRequest) -> Result<Value, Problem> {
        let after = match request.query.get("after").map(|text| text.parse()).transpose() {
            Ok(after) => after.unwrap_or(0),
            Err(_) => return Err(Problem::new(400, "`after` must be the number of an event")),
        };
        self.look(move |_, changes| changes.after(after))
    }

    /// The life of a world from now on. The channel is closed after its end, and if this node ends
    /// first.
    pub(crate) fn follow(&self, world: &str) -> watch::Receiver<WorldLife> {
        let sender = watch::Sender::new(WorldLife::default());
        let life = sender.subscribe();
        // A node that has ended knows of no world.
        let _ = Name::new(world).map(|world| self.tell(Command::Follow(world, sender)));
        life
    }

    /// Worlds that open from now on have other settings.
    ///
    /// # Errors
    /// The node is busy.
    pub(crate) fn reconfigure(&self, settings: Reconfigured) -> Result<(), String> {
        self.tell(Command::Reconfigure(Box::new(settings)))
    }

    /// Has a world closed, on any node, and waits until its record says so.
    ///
    /// # Errors
    /// The default world; a world that is not open; nothing was written within 10 s.
    pub(crate) fn close(&self, world: &str) -> Result<(), Problem> {
        let Ok(name) = Name::new(world) else { return Err(not_open(world)) };
        if name == self.default_world {
            return Err(Problem::new(409, DEFAULT_STAYS));
        }
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Close(name, Some(reply))).map_err(unavailable)?;
        answer.blocking_recv().unwrap_or_else(|_| Err(unavailable("the node has ended".to_owned())))
    }

    /// Has the world of a match closed, without waiting for it.
    ///
    /// # Errors
    /// No name; the node is busy.
    pub(crate) fn close_match(&self, world: &str) -> Result<(), String> {
        self.tell(Command::Close(Name::new(world)?, None))
    }

    /// Moves the worlds to other nodes as configured, and leaves. Waits for it.
    pub(crate) fn leave(&self) {
        if let Some(wait) = self.drain
            && self.begin_drain(wait)
        {
            let moves_at = self.shared.clock.now() + wait;
            while self.shared.clock.now() < moves_at + MOVE && self.is_renewing() {
                if self.wait_for_end(Duration::from_secs(1)) {
                    return;
                }
                // All others have begun to leave as well, or are lost: no node takes the worlds.
                if self.shared.clock.now() >= moves_at
                    && self.shared.status().nodes[throng_cluster::NodeState::Up as usize] == 0
                {
                    break;
                }
            }
        }
        self.stop();
    }

    /// Begins to move the worlds to other nodes. Returns whether that is possible.
    fn begin_drain(&self, wait: Duration) -> bool {
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Drain(wait, reply)).is_ok() && answer.blocking_recv() == Ok(true)
    }

    /// Returns whether the directory has answered a renewal in the last seconds.
    fn is_renewing(&self) -> bool {
        let status = self.shared.status();
        let left = status.lease_until.map(|until| until.since(self.shared.clock.now()));
        left.is_some_and(|left| left + SILENCE > throng_cluster::FREEZE)
    }

    /// Stops serving and leaves, without moving anything. Waits for it, for a short time.
    pub(crate) fn stop(&self) {
        if self.shared.stage.borrow().1.is_some() {
            return;
        }
        if self.tell(Command::Stop).is_err() || !self.wait_for_end(LEAVE) {
            tracing::warn!(
                "the node could not leave its cluster in time; others wait until its lease has run out"
            );
        }
    }

    fn wait_for_end(&self, limit: Duration) -> bool {
        let mut stage = self.shared.stage.subscribe();
        let waiting = async move {
            let done = stage.wait_for(|(_, end)| end.is_some());
            tokio::time::timeout(limit, done).await.is_ok()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let has_ended = runtime.is_ok_and(|runtime| runtime.block_on(waiting));
        if has_ended {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            // A panic in it is reported as its end.
            drop(thread.map(JoinHandle::join));
        }
        has_ended
    }

    /// Completes when the node has left or failed.
    pub(crate) async fn ended(&self) -> End {
        let mut stage = self.shared.stage.subscribe();
        let end = stage.wait_for(|(_, end)| end.is_some()).await.ok().and_then(|stage| stage.1.clone());
        end.unwrap_or(End::Left)
    }

    /// Parts of `/health/ready`.
    pub(crate) fn health(&self) -> Vec<Part> {
        let status = self.shared.status();
        status.health(self.shared.clock.now(), self.patience)
    }

    /// Metrics of the node.
    pub(crate) fn families(&self) -> Vec<Family> {
        let status = self.shared.status();
        status.families(self.shared.clock.now())
    }
}

fn unavailable(why: String) -> Problem {
    Problem::new(503, why)
}

pub(crate) fn not_open(world: &str) -> Problem {
    Problem::new(404, format!("the world `{world}` is not open"))
}

pub(crate) fn no_match(world: &str) -> Problem {
    Problem::new(409, format!("the world `{world}` is not that of a match, so there are no tickets for it"))
}

/// Addresses that lead to a world, of its home if that lives.
fn addresses(core: &throng_cluster::Node, world: &Name, record: &WorldRecord) -> Vec<Address> {
    let home = core.node(&record.home.node).map(|(node, _)| node);
    let home = home.filter(|node| node.incarnation == record.home.incarnation && node.is_live());
    let leads_there = |address: &&Address| address.world.as_ref().is_none_or(|of| of == world);
    home.map(|node| node.addresses.iter().filter(leads_there).cloned().collect()).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) fn families_for_reference() -> Vec<Family> {
    Status::default().families(Instant::ZERO)
}
