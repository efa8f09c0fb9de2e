//! The tests by name, with their loads and the figures that they are judged by.
//!
//! Without an address a test starts its own server as a child process, so one command reproduces a
//! figure. With one it measures any server that speaks the protocol. Every test has one canonical
//! load, which the published figures and marks are for; any other load is measured but not judged.

mod channel;
mod cluster;
mod gateway;
mod worlds;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::bare::BarePlan;
use crate::child::{BareWriter, ConsoleToken, DEFAULT_PORTS, OwnServer, ServerOptions, StartError, World};
use crate::cluster::Cluster;
use crate::engine::{self, EngineReport, Plan, RunError, Sample};
use crate::link::Transport;
use crate::network::{Fates, Network};
use crate::probe::{self, Probe};
use crate::report::{Report, Run};
use crate::socket;

/// A case that can be run by name.
#[derive(Debug)]
pub struct Test {
    /// Two words: suite and test.
    pub name: &'static str,
    /// Summary of the measurement, one line.
    pub summary: &'static str,
    run: fn(&Context<'_>) -> Result<Report, BenchError>,
}

impl Test {
    /// Runs the test.
    ///
    /// # Errors
    /// When there is no figure. A bad figure is a report that has not passed.
    pub fn run(&self, options: &Options, progress: &mut dyn Progress) -> Result<Report, BenchError> {
        socket::raise_descriptor_limit();
        let context = Context { name: self.name, options, progress: std::cell::RefCell::new(progress) };
        (self.run)(&context)
    }
}

/// All tests, in the order of `throng bench all`.
pub const TESTS: &[Test] = &[
    Test {
        name: "channel single",
        summary: "players on one channel: 30 Hz inputs, 30 Hz state of everyone, 50 Hz fan-out; CPU against a bare writer",
        run: channel::single,
    },
    Test {
        name: "channel fanout-only",
        summary: "400 subscribers of 400 characters, 30 updates a second, nothing else: CPU",
        run: channel::fan_out_only,
    },
    Test {
        name: "channel spatial",
        summary: "nine game servers on a grid of 225 cells, handovers, interest of 30 m around each player",
        run: worlds::spatial,
    },
    Test {
        name: "channel handover",
        summary: "one entity at a time changes cells and servers in front of 20 subscribers: time",
        run: worlds::handover,
    },
    Test {
        name: "channel entity-lod",
        summary: "everyone sees everyone on 400 m x 400 m: 20 Hz near, 10 Hz farther, 1 Hz far away",
        run: worlds::entity_lod,
    },
    Test {
        name: "channel entity-bytes",
        summary: "250 players with rates by distance and 0.2, 1 and 4 kB per entity: latency and CPU",
        run: worlds::entity_bytes,
    },
    Test {
        name: "channel transports",
        summary: "300 players on one channel over TCP, WebSocket, TLS and WebSocket over TLS: CPU of each against TCP",
        run: channel::transports,
    },
    Test {
        name: "gateway idle",
        summary: "10,000 idle connections: CPU and memory of each",
        run: gateway::idle,
    },
    Test {
        name: "gateway trickle",
        summary: "10,000 connections that each get 2 messages a second: latency",
        run: gateway::trickle,
    },
    Test { name: "gateway channels", summary: "10,000 idle channels: CPU", run: gateway::channels },
    Test {
        name: "gateway forward",
        summary: "64-byte messages from 1,000 clients to one game server: messages per second",
        run: gateway::forward,
    },
    Test {
        name: "gateway stream",
        summary: "60,000-byte messages from one game server to one client: bytes per second",
        run: gateway::stream,
    },
    Test {
        name: "gateway stalled",
        summary: "one subscriber that stops reading: latency of the others, with and without it",
        run: gateway::stalled,
    },
    Test {
        name: "gateway start",
        summary: "time from the start of the process to ready",
        run: gateway::start,
    },
    Test {
        name: "cluster single",
        summary: "CPU per player without a cluster, in pairs with the build that --against names",
        run: cluster::single,
    },
    Test {
        name: "cluster local",
        summary: "CPU per player of a node of a cluster, in pairs with a server without one",
        run: cluster::local,
    },
    Test {
        name: "cluster many",
        summary: "60 worlds of 10 players in one process: CPU against one world with as many groups",
        run: cluster::many,
    },
    Test { name: "cluster idle", summary: "three nodes without players: CPU of each", run: cluster::idle },
    Test {
        name: "cluster worlds",
        summary: "a node with 256 idle worlds: CPU, and memory of each world",
        run: cluster::worlds,
    },
    Test {
        name: "cluster open",
        summary: "worlds that arrivals open on three nodes: worlds per second, time to the first message",
        run: cluster::open,
    },
    Test {
        name: "cluster failover",
        summary: "the home of a world is killed, with and without a restart: time without messages",
        run: cluster::failover,
    },
];

/// The case of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Test> {
    TESTS.iter().find(|test| test.name == name)
}

/// Options of a test.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The server to measure; a server of our own when not given.
    pub target: Option<Target>,
    /// Program to start servers and bare writers with.
    pub program: PathBuf,
    /// For `cluster single`: the program to compare with.
    pub against: Option<PathBuf>,
    /// Threads of our own server.
    pub shards: Option<u16>,
    /// Further flags for our own server.
    pub server_flags: Vec<String>,
    /// Our own server has the cache and the matcher as well.
    pub whole: bool,
    /// Our own server listens on the default ports when they are free.
    pub default_ports: bool,
    /// Read the console token of our own server; needs one that prints it.
    pub console: bool,
    /// Numbers of players, connections or channels to try; the canonical ones when empty.
    pub players: Vec<usize>,
    /// Length of each measured window.
    pub duration: Option<Duration>,
    /// Time before it.
    pub warmup: Option<Duration>,
    /// Transport of the players.
    pub transport: Transport,
    /// Simulated network between the players and the server.
    pub network: Network,
    /// Generator threads for players; 0 chooses.
    pub threads: usize,
    /// For `channel spatial`: one game server crashes this long into the window, and returns two
    /// seconds later.
    pub crash_server_at: Option<Duration>,
    /// For `channel entity-lod`: players ask for the rates themselves, as the Unreal plugin does,
    /// although the server could choose them.
    pub ask_for_rates: bool,
    /// For `channel spatial` and `channel entity-lod`: bytes added to each update of a character.
    pub padding_bytes: usize,
    /// Extent of a test.
    pub effort: Effort,
    /// Seed of everything random.
    pub seed: u64,
}

/// Extent of a test.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Effort {
    /// Every size and repetition, windows as long as a figure to be quoted needs.
    #[default]
    Whole,
    /// The loads that published figures and marks are for, few sizes, once each, in short windows.
    /// It is judged.
    Quick,
    /// Tiny loads, to see that everything works; not judged.
    Smoke,
}

impl Effort {
    /// Extent from the two flags of the command line.
    #[must_use]
    pub fn new(quick: bool, smoke: bool) -> Self {
        match (quick, smoke) {
            (_, true) => Self::Smoke,
            (true, _) => Self::Quick,
            _ => Self::Whole,
        }
    }

    /// Value that fits the effort.
    pub fn pick<T>(self, whole: T, quick: T, smoke: T) -> T {
        match self {
            Self::Whole => whole,
            Self::Quick => quick,
            Self::Smoke => smoke,
        }
    }
}

/// A server that was started outside of the bench.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Listener for players.
    pub clients: SocketAddr,
    /// Listener for game servers.
    pub servers: SocketAddr,
    /// Its process, when it runs on this machine and its CPU and memory are to be measured.
    pub pid: Option<u32>,
    /// Its metrics page.
    pub metrics: Option<SocketAddr>,
    /// Token of one session of its web console.
    pub console: Option<ConsoleToken>,
}

/// Receiver of progress reports, for a display.
pub trait Progress {
    /// A run begins. It reports samples until `window` is over; `None` if its duration is unknown.
    fn begin(&mut self, what: &str, window: Option<Duration>);
    /// A sample was taken.
    fn sample(&mut self, sample: &Sample);
}

/// Shows nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _what: &str, _window: Option<Duration>) {}
    fn sample(&mut self, _sample: &Sample) {}
}

/// Why a case gave no figure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The server or the bare writer did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A run failed.
    #[error("{name}: {source}")]
    Run {
        /// Which run.
        name: String,
        /// Why.
        source: RunError,
    },
    /// The process to be measured does not exist.
    #[error("cannot measure process {pid}: {source}")]
    Probe {
        /// Its id.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// The options do not fit, or the server does not support them.
    #[error("{0}")]
    Unfit(String),
    /// The case measures something that only a server of our own has.
    #[error("`{0}` measures its own server; omit --addr")]
    NeedsOwnServer(&'static str),
    /// The generator has no sockets or threads.
    #[error("generator: {0}")]
    Generator(#[from] io::Error),
}

/// Context of a test.
struct Context<'a> {
    name: &'static str,
    options: &'a Options,
    progress: std::cell::RefCell<&'a mut dyn Progress>,
}

/// The server being measured, ours or not.
struct Server {
    own: Option<OwnServer>,
    /// The cluster that it is a node of.
    _cluster: Option<Cluster>,
    target: Target,
    probe: Probe,
}

impl Server {
    /// The first node of a cluster.
    fn of_cluster(cluster: Cluster) -> Result<Self, BenchError> {
        let node = &cluster.nodes[0];
        let (clients, servers, pid) = (node.clients, node.servers, node.pid());
        let target = Target { clients, servers, pid, metrics: None, console: None };
        Ok(Self { own: None, _cluster: Some(cluster), probe: probe_of(&target)?, target })
    }
}

fn probe_of(target: &Target) -> Result<Probe, BenchError> {
    Probe::new(target.pid, target.metrics)
        .map_err(|source| BenchError::Probe { pid: target.pid.unwrap_or(0), source })
}

impl Context<'_> {
    /// The report, with the settings that every case has.
    fn report(&self, canonical: bool) -> Report {
        let options = self.options;
        let mut report = Report::new(self.name);
        let smoke = options.effort == Effort::Smoke;
        report.canonical = canonical && !smoke && options.target.is_none();
        report.unjudged = smoke;
        report.setting("transport", options.transport.to_string());
        report.setting("own_server", options.target.is_none());
        report.setting("seed", options.seed);
        if let Some(shards) = options.shards {
            report.setting("shards", shards);
        }
        if !options.server_flags.is_empty() {
            report.setting("server_flags", options.server_flags.clone());
        }
        report
    }

    fn server(&self) -> Result<Server, BenchError> {
        self.server_with(None)
    }

    fn server_with(&self, world: Option<World>) -> Result<Server, BenchError> {
        self.server_on(self.options.transport, world)
    }

    fn server_on(&self, transport: Transport, world: Option<World>) -> Result<Server, BenchError> {
        match self.options.target {
            Some(_) if transport.is_encrypted() => Err(BenchError::Unfit(format!(
                "players on {transport} trust the certificate of a server of their own only; omit --addr"
            ))),
            Some(target) => Ok(Server { own: None, _cluster: None, probe: probe_of(&target)?, target }),
            None => self.start(&self.server_options(transport, world)),
        }
    }

    /// Options of a server of our own.
    fn server_options(&self, transport: Transport, world: Option<World>) -> ServerOptions {
        let options = self.options;
        let mut flags = options.server_flags.clone();
        flags.extend(options.console.then(|| "--console-token".to_owned()));
        ServerOptions {
            program: options.program.clone(),
            shards: options.shards,
            transport,
            flags,
            whole: options.whole,
            default_ports: options.default_ports,
            world,
            worlds: Vec::new(),
            lod: !options.ask_for_rates,
        }
    }

    /// Starts a server of our own.
    fn start(&self, options: &ServerOptions) -> Result<Server, BenchError> {
        let own = OwnServer::start(options)?;
        let console = self.options.console.then(|| own.console()).flatten();
        let (clients, servers) = (own.clients, own.servers);
        let target = Target { clients, servers, pid: Some(own.pid()), metrics: Some(own.http), console };
        Ok(Server { own: Some(own), _cluster: None, probe: probe_of(&target)?, target })
    }

    /// The published scenario with the options of this run; cases adapt it.
    fn plan(&self, server: &Server, players: usize) -> Plan {
        let options = self.options;
        let (warmup, duration) = options.effort.pick((3_000, 10_000), (1_500, 4_000), (300, 1_000));
        let duration = options.duration.unwrap_or(Duration::from_millis(duration));
        Plan {
            transport: options.transport,
            trust: server.own.as_ref().and_then(|own| own.trust.clone()),
            network: options.network.clone(),
            threads: options.threads,
            warmup: options.warmup.unwrap_or(Duration::from_millis(warmup)),
            duration: Some(duration),
            sample_interval: Duration::from_secs(1).min(duration / 4),
            seed: options.seed,
            ..Plan::single(server.target.clients, server.target.servers, players)
        }
    }

    /// A server whose metrics page is not read, so that its CPU is that of the load alone.
    fn quiet_server(&self) -> Result<Server, BenchError> {
        let server = self.server()?;
        Ok(Server { probe: server.probe.without_metrics(), ..server })
    }

    fn run(&self, name: &str, plan: &Plan, server: &Server) -> Result<EngineReport, BenchError> {
        self.progress.borrow_mut().begin(&format!("{}: {name}", self.name), plan.duration);
        engine::run(plan, &server.probe, &mut |sample| self.progress.borrow_mut().sample(sample))
            .map_err(|source| BenchError::Run { name: name.to_owned(), source })
    }

    /// The physical limit: a program that does nothing but write `bytes` at a time to as many
    /// sockets as there are players.
    fn run_bare(&self, players: usize, bytes: f64, per_second: f64) -> Result<EngineReport, BenchError> {
        let plan = BarePlan { sockets: players, bytes: bytes.round() as usize, per_second };
        let writer = BareWriter::start(&self.options.program, plan)?;
        let (addr, pid) = (writer.addr, Some(writer.pid()));
        let target = Target { clients: addr, servers: addr, pid, metrics: None, console: None };
        let server = Server { own: None, _cluster: None, probe: probe_of(&target)?, target };
        let plan = Plan {
            transport: Transport::Tcp,
            owner: false,
            characters: None,
            inputs_per_second: 0.0,
            subscribe: false,
            ..self.plan(&server, players)
        };
        self.run(&format!("bare writer, {players} sockets"), &plan, &server)
    }

    /// Returns the size to run: the requested one, a tiny one for smoke, else the canonical one;
    /// and true if it is the canonical one.
    fn size(&self, canonical: usize, smoke: usize) -> (usize, bool) {
        match self.options.players.first() {
            Some(&players) => (players, players == canonical),
            None if self.options.effort == Effort::Smoke => (smoke, false),
            None => (canonical, true),
        }
    }

    /// Returns the sizes to run in turn: the requested ones, or those of the effort.
    fn sizes(&self, whole: &[usize], quick: &[usize], smoke: &[usize]) -> Vec<usize> {
        match self.options.players.as_slice() {
            [] => self.options.effort.pick(whole, quick, smoke).to_vec(),
            asked => asked.to_vec(),
        }
    }
}
const PUBLISHED: &str = "published by the reference, 8-core allowance";
const MEASURED: &str = "reference measured on 2 cores shared with the generator";
/// A run of the published scenario holds when so many fan-outs arrive ...
const SHARE_MIN: f64 = 0.99;
/// ... and the 99th percentile of their latency is below this.
const P99_MAX_MS: f64 = 50.0;
/// The players for which the CPU figures are given.
const CPU_PLAYERS: usize = 100;
const MIB: f64 = (1 << 20) as f64;

/// Time that a running server has to answer the claim of GLOBAL before it counts as refused.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);

/// Returns a server on the default ports of this machine that reports itself ready, if there is
/// one.
///
/// # Errors
/// `None` if there is none, or the reason why players cannot use it with this transport.
pub fn local_server(transport: Transport) -> Result<Target, Option<String>> {
    let [clients, servers, http] = DEFAULT_PORTS.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    probe::fetch(http, "/health/ready").map_err(|_| None::<String>)?;
    let clients = player_listener(&probe::services(http), transport, clients).map_err(Some)?;
    Ok(Target { clients, servers, pid: None, metrics: Some(http), console: None })
}

/// Address for players of one transport, of the services of a running server. A server that names
/// none is asked at `default`.
fn player_listener(
    services: &[(String, String)],
    transport: Transport,
    default: SocketAddr,
) -> Result<SocketAddr, String> {
    let players: Vec<&str> =
        services.iter().filter(|(service, _)| service == "clients").map(|(_, url)| url.as_str()).collect();
    if players.is_empty() {
        return Ok(default);
    }
    let scheme = format!("{transport}://");
    let found = players.iter().find_map(|url| url.strip_prefix(&scheme)?.parse::<SocketAddr>().ok());
    let found = found.map(|addr| match addr.ip().is_unspecified() {
        true => SocketAddr::from(([127, 0, 0, 1], addr.port())),
        false => addr,
    });
    found.ok_or_else(|| format!("the server that runs here speaks no {transport}: {}", players.join(", ")))
}

/// Free-form players, for `throng swarm` and `throng demo`.
#[derive(Debug, Clone, Default)]
pub struct Swarm {
    /// Server, transport and the like; its sizes and times are not used.
    pub options: Options,
    /// Players.
    pub players: usize,
    /// Duration once everyone has joined; until Ctrl-C if not given.
    pub duration: Option<Duration>,
    /// Join this channel of a server whose world is already run by a game server, instead of
    /// bringing one.
    pub join: Option<u32>,
    /// Play on the published grid of nine game servers, with handover, instead of on one channel.
    pub spatial: bool,
}

impl Swarm {
    /// Runs the swarm. `on_start` receives the server's address before the players connect.
    ///
    /// # Errors
    /// If the server does not start or the players cannot join.
    pub fn run(
        &self,
        on_start: &mut dyn FnMut(&Target),
        progress: &mut dyn Progress,
    ) -> Result<Report, BenchError> {
        socket::raise_descriptor_limit();
        let context =
            Context { name: "swarm", options: &self.options, progress: std::cell::RefCell::new(progress) };
        let mut report = context.report(false);
        report.setting("players", self.players);
        if self.spatial {
            return worlds::swarm(&context, report, self, on_start);
        }
        let server = context.server()?;
        on_start(&server.target);
        let default = context.plan(&server, self.players);
        let plan = Plan {
            warmup: Duration::ZERO,
            duration: self.duration,
            owner: self.join.is_none(),
            gather: false,
            join: self.join,
            sample_interval: Duration::from_secs(1),
            patience: match (self.join, self.duration) {
                (Some(_), Some(duration)) => duration.min(default.patience),
                _ => default.patience,
            },
            owner_patience: if server.own.is_some() { Duration::from_secs(20) } else { CLAIM_PATIENCE },
            ..default
        };
        let name = "players connect";
        let outcome = match context.run(name, &plan, &server) {
            // The protocol has no refusals: silence is the answer to a claim of GLOBAL when it has
            // an owner.
            Err(BenchError::Run { source: RunError::NoChannel { .. }, .. }) if server.own.is_none() => {
                report.note("GLOBAL already has a game server: the players joined its world".to_owned());
                context.run(name, &Plan { owner: false, join: Some(0), ..plan }, &server)?
            }
            // Without a game server nothing answers a player, so no error names the cause.
            Err(BenchError::Run {
                name,
                source: RunError::NotReady { ready: 0, wanted, waited, first_error: None },
            }) if self.join.is_some() => {
                let why =
                    "no answer from the channel; is there a game server? without --join the swarm starts one";
                let first_error = Some(why.to_owned());
                let source = RunError::NotReady { ready: 0, wanted, waited, first_error };
                return Err(BenchError::Run { name, source });
            }
            other => other?,
        };
        self.tell_network(&mut report, &outcome.counts.fates);
        report.run(Run::new("swarm", &outcome));
        Ok(report)
    }
}

impl Swarm {
    /// Notes about the simulated network and the fates of its datagrams.
    fn tell_network(&self, report: &mut Report, fates: &Fates) {
        let Options { network, transport, .. } = &self.options;
        if network.is_clear() {
            return;
        }
        report.setting("network", network.to_string());
        if *transport == Transport::Kcp {
            let Fates { sent, lost, dropped, duplicated, reordered } = fates;
            report.note(format!(
                "network: {network}; of {sent} datagrams {lost} were lost, {dropped} dropped by a full queue, {duplicated} \
                 duplicated, {reordered} reordered"
            ));
        } else {
            report.note(format!("network: {network}"));
            if network.harms_datagrams() {
                report.note(format!(
                    "loss, duplicates and reordering do not apply: the kernel repairs them below {transport}; \
                     use --transport kcp"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart;
    use crate::fake::Fake;
    use crate::report::{Judgement, Row};
    use serde_json::Value;

    /// Runs a case small against a fake of its own.
    fn try_out(name: &str, change: impl FnOnce(&mut Options)) -> Report {
        let fake = Fake::start(None);
        let pid = Some(std::process::id());
        let target =
            Target { clients: fake.clients, servers: fake.servers, pid, metrics: None, console: None };
        let mut options = Options {
            target: Some(target),
            effort: Effort::Smoke,
            duration: Some(Duration::from_millis(400)),
            warmup: Some(Duration::from_millis(50)),
            ..Options::default()
        };
        change(&mut options);
        find(name).expect("a known test").run(&options, &mut Silent).expect("a report")
    }

    fn row<'a>(report: &'a Report, what: &str) -> &'a Row {
        let found = report.rows.iter().find(|row| row.what.contains(what));
        found.unwrap_or_else(|| panic!("no row `{what}` in {:?}", report.rows))
    }

    #[test]
    fn players_use_the_listener_that_speaks_their_transport() {
        let default = "127.0.0.1:12108".parse().expect("an address");
        let services = [("servers", "tcp://127.0.0.1:11288"), ("clients", "tcp://0.0.0.0:9")];
        let services = services.map(|(name, url)| (name.to_owned(), url.to_owned()));
        let find = |transport| player_listener(&services, transport, default);
        assert_eq!(find(Transport::Tcp), Ok("127.0.0.1:9".parse().expect("an address")));
        let why = find(Transport::Kcp).expect_err("no KCP");
        assert_eq!(why, "the server that runs here speaks no kcp: tcp://0.0.0.0:9");
        assert_eq!(player_listener(&[], Transport::Kcp, default), Ok(default));
    }

    #[test]
    fn channel_single_reports_latency_cpu_and_memory() {
        let report = try_out("channel single", |_| {});
        assert_eq!(report.verdict, Judgement::NotJudged, "a small try is not judged");
        assert!(!report.canonical, "twenty players are no canonical load");
        assert!(row(&report, "state latency p99").measured > 0.0);
        assert!(row(&report, "CPU per second and player").measured > 0.0);
        assert!(
            row(&report, "memory per connection").ratio.is_none(),
            "the published figure is of another load"
        );
        assert_eq!(report.runs[0].checked, report.runs[0].checked_equal);
        assert!(check_schema(&serde_json::to_value(&report).expect("serialises")).is_empty());
        let svg = chart::svg(&report).expect("a picture");
        assert!(svg.starts_with("<svg") && svg.contains("state latency"));
    }

    #[test]
    fn channel_single_sweeps_sizes() {
        let report = try_out("channel single", |options| options.players = vec![5, 10]);
        assert_eq!(report.runs.iter().map(|run| run.players).collect::<Vec<_>>(), [5, 10]);
        assert!(
            [0.0, 5.0, 10.0].contains(&row(&report, "players held").measured),
            "a busy machine may hold none"
        );
        let svg = chart::svg(&report).expect("a picture");
        assert!(svg.contains("players"));
    }

    #[test]
    fn channel_fan_out_only_sends_no_inputs() {
        let report = try_out("channel fanout-only", |_| {});
        assert_eq!(report.runs[0].inputs_due, 0);
        assert!(!report.is_missed() && row(&report, "server CPU").measured > 0.0);
    }

    #[test]
    fn gateway_tests_run_small() {
        let idle = try_out("gateway idle", |options| options.players = vec![20]);
        assert!(row(&idle, "server CPU").measured >= 0.0 && idle.runs[0].frames_per_s < 5.0);
        let trickle = try_out("gateway trickle", |options| options.players = vec![20]);
        assert!(trickle.runs[0].notices_arrived > 0);
        assert_eq!(trickle.runs[0].notices_arrived, trickle.runs[0].notices_due);
        let channels = try_out("gateway channels", |options| options.players = vec![50]);
        assert!(row(&channels, "server CPU").measured >= 0.0);
    }

    #[test]
    fn gateway_forward_counts_what_arrives() {
        let report = try_out("gateway forward", |options| options.players = vec![10]);
        let measured = row(&report, "forwarded").measured;
        assert!(measured >= 0.0, "a busy machine may not hold the rate: {measured}");
        assert_eq!(report.runs[0].inputs_arrived, report.runs[0].inputs_due);
    }

    #[test]
    fn gateway_stream_measures_every_window() {
        let report = try_out("gateway stream", |_| {});
        assert!(row(&report, "one game server to one client").measured > 0.0);
        assert!(row(&report, "CPU per gigabyte").measured > 0.0);
    }

    /// Runs a case with a world small against a fake that has cells.
    fn try_out_world(name: &str, grid: Option<crate::spatial::Grid>) -> Report {
        let fake = crate::spatial::fake::Fake::start(grid);
        try_out(name, |options| {
            options.target = Some(Target {
                clients: fake.clients,
                servers: fake.servers,
                pid: None,
                metrics: None,
                console: None,
            });
            options.duration = Some(Duration::from_millis(800));
        })
    }

    #[test]
    fn worlds_report_handovers_rates_and_a_picture() {
        let spatial = try_out_world("channel spatial", Some(crate::spatial::Grid::PUBLISHED));
        let world = spatial.runs[0].world.as_ref().expect("a world");
        assert_eq!((world.channels["SPATIAL"], world.channels["ENTITY"]), (225, 40));
        assert!(row(&spatial, "state latency p99").measured > 0.0);
        assert_eq!(spatial.runs[0].checked, spatial.runs[0].checked_equal, "{:?}", spatial.runs[0]);
        let lod = try_out_world("channel entity-lod", None);
        assert_eq!(lod.runs[0].world.as_ref().expect("a world").bands.len(), 3);
        assert!(row(&lod, "server frame rate").measured > 0.0);
        for report in [spatial, lod] {
            assert!(check_schema(&serde_json::to_value(&report).expect("serialises")).is_empty());
            assert!(report.pictures[0].1.starts_with("<svg"));
        }
    }

    #[test]
    fn gateway_start_needs_a_server_of_its_own() {
        let target = "127.0.0.1:1".parse().expect("address");
        let target =
            Some(Target { clients: target, servers: target, pid: None, metrics: None, console: None });
        let options = Options { target, ..Options::default() };
        let error = find("gateway start").expect("known").run(&options, &mut Silent).expect_err("refused");
        assert!(error.to_string().contains("--addr"));
    }

    /// Violations of the published schema in `value`.
    fn check_schema(value: &Value) -> Vec<String> {
        let schema: Value =
            serde_json::from_str(include_str!("../../../docs/bench-report.schema.json")).expect("JSON");
        let mut wrong = Vec::new();
        check(&schema, &schema, value, "report", &mut wrong);
        wrong
    }

    /// The part of JSON Schema that ours uses.
    fn check(root: &Value, schema: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) {
        if schema["$ref"] == "#/$defs/times" {
            return check(root, &root["$defs"]["times"], value, path, wrong);
        }
        let name = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let is = |expected: &Value| expected == name || (expected == "number" && name == "integer");
        let right = match &schema["type"] {
            Value::Array(types) => types.iter().any(is),
            Value::Null => schema["enum"].as_array().is_some_and(|choices| choices.contains(value)),
            one => is(one),
        };
        if !right {
            wrong.push(format!("{path} is {value}, which {schema} does not allow"));
        }
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.get(key).is_none() {
                wrong.push(format!("{path}.{key} is missing"));
            }
        }
        for (key, field) in value.as_object().into_iter().flatten() {
            match schema["properties"].get(key) {
                Some(schema) => check(root, schema, field, &format!("{path}.{key}"), wrong),
                None if schema["additionalProperties"] == false => {
                    wrong.push(format!("{path}.{key} is not described"))
                }
                None => {}
            }
        }
        for item in value.as_array().into_iter().flatten() {
            check(root, &schema["items"], item, &format!("{path}[]"), wrong);
        }
    }
}
