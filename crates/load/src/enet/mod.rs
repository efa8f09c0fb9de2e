//! `throng bench enet`: the ENet host beside the C library and beside the machine's own limit.
//!
//! The published workload: every client sends a small packet each 100 ms, on four lanes in turn,
//! every fifth reliable, and gets it back. Servers are processes of their own; clients are either
//! real ones on the C library (`bench/peers/libenet`), each with a host and a socket, or lean ones
//! (`swarm`) of our own, where a library would need the whole machine. The limit is a server that
//! sends every datagram back as it came, with the same batched calls.

mod echo;
mod groups;
mod hostile;
mod measured;
mod serve;
mod swarm;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::report::{Report, Row};
use crate::suites::BenchError;
use echo::{Echo, Peer};
pub use serve::{ServePlan, Served, serve};
use swarm::{Sharing, SwarmPlan};

/// Bytes of a packet.
const PACKET_BYTES: usize = 32;
/// Clients that connect at the same time.
const BATCH: usize = 500;
/// Time a batch of connects has.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients of the comparison with the library, which allows 4,095.
const COMPARED: usize = 4_000;
/// For packets on their way when a window ends.
const TAIL: Duration = Duration::from_millis(500);
/// Default distance of a server's rounds.
pub const INTERVAL: Duration = throng_net::enet::Pacing::DEFAULT.interval;

const SPEC: &str = "libenet 1.3.18, 2 cores";
const ISSUES: &str = "reports of users";

/// Options of the bench.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Program to start servers with.
    pub program: PathBuf,
    /// Groups to run; all when empty.
    pub groups: Vec<String>,
    /// Clients instead of each group's own number; figures are then not judged.
    pub clients: Option<usize>,
    /// Length of each measured window.
    pub duration: Option<Duration>,
    /// Time between everyone's being there and the window.
    pub warmup: Option<Duration>,
    /// Threads of the server.
    pub shards: Option<u16>,
    /// Short windows and fewer steps; the loads and the marks stay.
    pub quick: bool,
    /// Tiny loads that only show that everything works: few clients, short windows, one turn.
    pub smoke: bool,
    /// Seed of everything random.
    pub seed: u64,
}

/// Clients of a smoke test.
const SMOKE_CLIENTS: usize = 50;
/// Windows of a smoke test, and the time before each.
const SMOKE_WINDOW: Duration = Duration::from_millis(200);

/// The groups, with their measurements.
pub const GROUPS: &[(&str, &str)] = &[
    ("limit", "server CPU beside a bare echo of the same packets, five turns; datagrams per echo"),
    (
        "libenet",
        "4,000 real clients, 10 Hz: server CPU, round trips, losses; the library beside it, five turns",
    ),
    ("many", "real clients on one port, one packet a second each"),
    ("lean", "increasing numbers of lean clients at 10 Hz, with a socket each and with datagrams in runs"),
    ("idle", "CPU and memory by slots and idle peers"),
    ("connect", "500 clients at once while the game reads at 20 Hz"),
    ("tick", "4,000 clients at 10 Hz while the game reads at 20 Hz"),
    ("hostile", "garbage beside 1,000 clients; the cost of a CONNECT from a forged address"),
    ("bulk", "a packet of 32 MB to one peer beside 1,000 others"),
    ("processes", "two servers, each with its own clients"),
];

/// Runs the bench.
///
/// # Errors
/// When a server or the clients cannot be started. A bad figure is a report that has not passed.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Report, BenchError> {
    let smoke = options.smoke.then(|| Options {
        clients: options.clients.or(Some(SMOKE_CLIENTS)),
        duration: options.duration.or(Some(SMOKE_WINDOW)),
        warmup: options.warmup.or(Some(SMOKE_WINDOW)),
        quick: true,
        ..options.clone()
    });
    let options = smoke.as_ref().unwrap_or(options);
    let mut report = Report::new("enet");
    report.canonical = options.clients.is_none();
    report.unjudged = options.smoke;
    report.setting("packet_bytes", PACKET_BYTES);
    report.setting("interval_us", INTERVAL.as_micros() as u64);
    let peer = Peer::compile();
    if let Err(why) = &peer {
        report
            .note(format!("the C library is missing, so there are no real clients and no comparison: {why}"));
    }
    let mut bench = Bench { options, say, report, peer: peer.ok() };
    for (group, _) in GROUPS {
        if !options.groups.is_empty() && !options.groups.iter().any(|wanted| wanted == group) {
            continue;
        }
        if crate::interrupt::requested() {
            break;
        }
        match *group {
            "limit" => bench.limit()?,
            "libenet" => bench.libenet()?,
            "many" => bench.many()?,
            "lean" => bench.lean()?,
            "idle" => bench.idle()?,
            "connect" => bench.connect()?,
            "tick" => bench.tick()?,
            "hostile" => bench.hostile()?,
            "bulk" => bench.bulk()?,
            _ => bench.processes()?,
        }
    }
    Ok(bench.report)
}

struct Bench<'a> {
    options: &'a Options,
    say: &'a mut dyn FnMut(&str),
    report: Report,
    peer: Option<Peer>,
}

impl Bench<'_> {
    fn window(&self) -> Duration {
        self.options.duration.unwrap_or(Duration::from_secs(if self.options.quick { 3 } else { 10 }))
    }

    fn warmup(&self) -> Duration {
        self.options.warmup.unwrap_or(Duration::from_millis(if self.options.quick { 1_000 } else { 2_000 }))
    }

    fn clients(&self, canonical: usize) -> usize {
        self.options.clients.unwrap_or(canonical)
    }

    /// Turns of servers that are compared; the median counts.
    fn turns(&self) -> usize {
        if self.options.smoke { 1 } else { 5 }
    }

    fn serve_plan(&self, slots: usize) -> ServePlan {
        ServePlan {
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            slots,
            shards: self.options.shards.unwrap_or(1),
            game_hz: 0,
            interval: INTERVAL,
            segmentation: true,
            bare: false,
        }
    }

    fn start(&self, plan: &ServePlan) -> Result<Echo, BenchError> {
        Ok(Echo::throng(&self.options.program, plan)?)
    }

    fn swarm(&self, server: SocketAddr, clients: usize, every: u32) -> SwarmPlan {
        SwarmPlan {
            server,
            clients,
            lanes: swarm::LANES as u8,
            bytes: PACKET_BYTES,
            every,
            batch: BATCH,
            patience: PATIENCE,
            bare: false,
            sockets: Sharing::None,
            seed: self.options.seed,
        }
    }

    fn row(&mut self, row: Row) {
        self.report.row(row);
    }
}
