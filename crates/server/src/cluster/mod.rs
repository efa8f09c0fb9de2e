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

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use throng_admin::{Family, Part};
use throng_cluster::{Address, Name};
use throng_gateway::{CloseReason, ConnKind, Verdict};
use throng_net::Clock;
use throng_stdx::Instant;
use tokio::sync::{mpsc, oneshot, watch};

use crate::mailbox::Mailbox;
use crate::world::Judgement;
use crate::worlds::{Classes, WorldRequest, Worlds};
use status::Status;

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
/// Time for the home of a match's world.
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
    /// Open a world of a class, on any node.
    Open(Name, Name),
    /// Open a world of a class for a match, on any node. The answer comes when it is served.
    Host { world: Name, class: Name, reply: oneshot::Sender<Result<Vec<Address>, String>> },
    /// Drop this when the world has ended.
    AwaitEnd(Name, watch::Sender<()>),
    /// The settings have changed, for worlds that open from now on.
    Reconfigure(Box<Reconfigured>),
    /// Close a world, on any node.
    Close(Name),
    /// Move all worlds away, after this time those with players too. The answer is whether there is
    /// a node that could take them, and a bus to say so.
    Drain(Duration, oneshot::Sender<bool>),
    /// Stop serving and leave.
    Stop,
}

/// A login that enters a world because it asks for it.
#[derive(Clone, Copy, Debug)]
struct EntryRequest {
    addr: IpAddr,
    now: Instant,
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
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
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
    let cluster = Cluster { commands, shared, worlds, configured, default_world, drain, patience, thread };
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
                let status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Has a world opened, on any node. One of `gateway.worlds` opens with its own class if none is
    /// named.
    ///
    /// # Errors
    /// No name; no class, or its limit of worlds is reached; the node is busy.
    pub(crate) fn open(&self, world: &str, class: Option<&str>) -> Result<(), String> {
        let world = Name::new(world)?;
        let own = self.configured.get(&world).map(Name::as_str);
        let class = class.or(own).filter(|class| *class != plan::CLASS);
        class.map_or(Ok(()), |class| self.check_room(class))?;
        self.tell(Command::Open(world, Name::new(class.unwrap_or(plan::CLASS))?))
    }

    /// Refuses a class that does not exist, or whose limit of worlds is reached.
    ///
    /// # Errors
    /// Which of them it is.
    pub(crate) fn check_room(&self, class: &str) -> Result<(), String> {
        let max = self.worlds.class(class)?.worlds_max;
        let status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        if status.classes.get(class).is_some_and(|open| *open >= max) {
            return Err(format!(
                "{max} worlds of the class `{class}` are open in the cluster, which is its limit \
                 (`worlds_max`); close one"
            ));
        }
        Ok(())
    }

    /// Has a world opened for a match, on any node, and waits until it is served. Returns the
    /// addresses of its home.
    ///
    /// # Errors
    /// No home within 10 s.
    pub(crate) fn host(&self, world: &str, class: &str) -> Result<Vec<Address>, String> {
        let (world, class) = (Name::new(world)?, Name::new(class)?);
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Host { world: world.clone(), class, reply })?;
        let waiting = async { tokio::time::timeout(HOME, answer).await };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let found = match runtime.map_err(|error| error.to_string())?.block_on(waiting) {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => Err("the node has ended".to_owned()),
            Err(_) => Err(format!("it has no home after {} s", HOME.as_secs())),
        };
        found.map_err(|why| {
            // It is not wanted any more, wherever it may open.
            let _ = self.tell(Command::Close(world));
            format!("the world of the match cannot be opened: {why}")
        })
    }

    /// The end of a world: a channel that is closed then.
    pub(crate) fn end_of(&self, world: &str) -> watch::Receiver<()> {
        let sender = watch::Sender::new(());
        let end = sender.subscribe();
        // A node that has ended knows of no world, and the one who waits hears it at once.
        let _ = Name::new(world).map(|world| self.tell(Command::AwaitEnd(world, sender)));
        end
    }

    /// Worlds that open from now on have other settings.
    ///
    /// # Errors
    /// The node is busy.
    pub(crate) fn reconfigure(&self, settings: Reconfigured) -> Result<(), String> {
        self.tell(Command::Reconfigure(Box::new(settings)))
    }

    /// Has a world closed, on any node.
    ///
    /// # Errors
    /// No name; the default world; the node is busy.
    pub(crate) fn close(&self, world: &str) -> Result<(), String> {
        let world = Name::new(world)?;
        match world == self.default_world {
            true => Err(DEFAULT_STAYS.to_owned()),
            false => self.tell(Command::Close(world)),
        }
    }

    /// Moves the worlds to other nodes as configured, and leaves. Waits for it.
    pub(crate) fn leave(&self) {
        if let Some(wait) = self.drain
            && self.begin_drain(wait)
        {
            let end = self.shared.clock.now() + wait + MOVE;
            while self.shared.clock.now() < end && self.is_renewing() {
                if self.wait_for_end(Duration::from_secs(1)) {
                    return;
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
        let status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
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
        let status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.health(self.shared.clock.now(), self.patience)
    }

    /// Metrics of the node.
    pub(crate) fn families(&self) -> Vec<Family> {
        let status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.families(self.shared.clock.now())
    }
}

#[cfg(test)]
pub(crate) fn families_for_reference() -> Vec<Family> {
    Status::default().families(Instant::ZERO)
}
