//! `throng bench enet`: the ENet host beside the C library and beside the machine's own limit.
//!
//! The published workload: every client sends a small packet each 100 ms, on four lanes in turn, every fifth reliable,
//! and gets it back. Servers are processes of their own; clients are either real ones on the C library
//! (`bench/peers/libenet`), each with a host and a socket, or lean ones (`swarm`) of our own, where a library would need the
//! whole machine. The limit is a server that sends every datagram back as it came, with the same batched calls.

mod echo;
mod serve;
mod swarm;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use throng_enet::wire::{Body, CHANNEL_NONE, Command, Handshake, Header, PEER_ID_NONE, SESSION_UNUSED};
use throng_net::Clock;
use throng_net::enet::{Bytes, Config, Delivery, Endpoint, Event, Lane, Pacing};
use throng_net::udp::UdpOptions;

use crate::clock;
use crate::report::{Better, Report, Row};
use crate::suites::BenchError;
use echo::{Echo, Peer, RealPlan, RealSeen};
pub use serve::{ServePlan, Served, serve};
use swarm::{Seen, Sharing, Swarm, SwarmPlan};

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
pub const INTERVAL: Duration = Duration::from_micros(500);

const SPEC: &str = "libenet 1.3.18, 2 cores";
const ISSUES: &str = "reports of users";

/// How to run the bench.
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
    /// Seed of everything random.
    pub seed: u64,
}

/// The groups and what they measure.
pub const GROUPS: &[(&str, &str)] = &[
    ("limit", "CPU per datagram pair beside a bare echo of the same datagrams; datagrams per echo"),
    ("libenet", "4,000 real clients, 10 Hz: server CPU, round trips, losses; the library's server beside it"),
    ("many", "real clients on one port, one packet a second each"),
    ("lean", "lean clients at 10 Hz, more and more of them"),
    ("idle", "CPU and memory by slots and idle peers"),
    ("connect", "500 clients at once while the game reads at 20 Hz"),
    ("tick", "4,000 clients at 10 Hz while the game reads at 20 Hz"),
    ("hostile", "garbage beside 1,000 clients; what a CONNECT from nowhere costs"),
    ("bulk", "a packet of 32 MB to one peer beside 1,000 others"),
    ("processes", "two servers, each with its own clients"),
];

/// Runs the bench.
///
/// # Errors
/// When a server or the clients cannot be started. A bad figure is a report that has not passed.
pub fn run(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Report, BenchError> {
    let mut report = Report::new("enet");
    report.canonical = options.clients.is_none();
    report.setting("packet_bytes", PACKET_BYTES);
    report.setting("interval_us", INTERVAL.as_micros() as u64);
    let peer = Peer::compile();
    if let Err(why) = &peer {
        report.note(format!(
            "the C library is not here, so there are no real clients and no comparison: {why}"
        ));
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

/// One window of one server.
struct Measured {
    seen: Seen,
    cpu: Duration,
    window: Duration,
    served: Served,
    generator_cpu: Duration,
}

impl Measured {
    /// Share of a core that the server used, in percent.
    fn cpu_percent(&self) -> f64 {
        self.cpu.as_secs_f64() / self.window.as_secs_f64() * 100.0
    }

    /// CPU time of the server per datagram in and datagram out, in microseconds.
    fn us_per_pair(&self) -> f64 {
        let pairs = (self.served.datagrams_in + self.served.datagrams_out) as f64 / 2.0;
        self.cpu.as_secs_f64() * 1e6 / pairs.max(1.0)
    }

    /// Packets that did not come back although the server sent their echo.
    fn missing(&self) -> u64 {
        missing(self.seen.sent, self.seen.echoed, &self.served)
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "connected": self.seen.connected, "failed": self.seen.failed, "lost": self.seen.lost,
            "sent": self.seen.sent, "echoed": self.seen.echoed, "wrong": self.seen.wrong,
            "overtook": self.seen.overtook, "resent_by_clients": self.seen.resent,
            "rtt": self.seen.rtt.summary(), "lateness": self.seen.lateness.summary(),
            "server_cpu_percent": self.cpu_percent(), "us_per_pair": self.us_per_pair(),
            "server": self.served, "window_s": self.window.as_secs_f64(),
            "generator_cpu_percent": self.generator_cpu.as_secs_f64() / self.window.as_secs_f64() * 100.0,
        })
    }
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

    /// Connects, warms up, measures one window.
    fn measure(&mut self, name: &str, echo: &mut Echo, plan: SwarmPlan) -> Result<Measured, BenchError> {
        (self.say)(&format!("{name}: {} clients", plan.clients));
        let sends = plan.every > 0;
        let mut swarm = Swarm::new(plan)?;
        swarm.connect()?;
        swarm.live(self.warmup(), sends, false)?;
        let measured = measure_window(echo, &mut swarm, self.window(), sends)?;
        self.report.raw(name, measured.json());
        Ok(measured)
    }

    /// The same with real clients: what they saw, the share of a core that the server used, and its counts.
    fn measure_real(
        &mut self,
        name: &str,
        echo: &mut Echo,
        clients: usize,
        every: Duration,
    ) -> Result<Option<(RealSeen, f64, Served)>, BenchError> {
        let (warmup, window) = (self.warmup().max(every), self.window());
        let Some(peer) = &self.peer else { return Ok(None) };
        (self.say)(&format!("{name}: {clients} real clients"));
        let plan = RealPlan { clients, batch: BATCH, every, bytes: PACKET_BYTES, warmup, window };
        let (mut cpu, mut served) = ([Duration::ZERO; 2], [Served::default(); 2]);
        let mut times = [Instant::now(); 2];
        let seen = peer.swarm(echo.addr, &plan, |word| {
            let edge = match word {
                "window" => 0,
                "end" => 1,
                _ => return,
            };
            (cpu[edge], times[edge]) = (echo.cpu(), Instant::now());
            served[edge] = echo.served();
        })?;
        let seconds = (times[1] - times[0]).as_secs_f64();
        let percent = (cpu[1].saturating_sub(cpu[0])).as_secs_f64() / seconds.max(1e-9) * 100.0;
        let served = difference(&served[1], &served[0]);
        self.report.raw(name, json!({ "clients": seen, "server_cpu_percent": percent, "server": served }));
        Ok(Some((seen, percent, served)))
    }

    fn limit(&mut self) -> Result<(), BenchError> {
        let clients = self.clients(COMPARED);
        let mut bare = self.start(&ServePlan { bare: true, ..self.serve_plan(1) })?;
        let plan = SwarmPlan { bare: true, ..self.swarm(bare.addr, clients, 1) };
        let floor = self.measure("bare echo", &mut bare, plan)?;
        drop(bare);
        let mut echo = self.start(&self.serve_plan(clients))?;
        let plan = self.swarm(echo.addr, clients, 1);
        let ours = self.measure("lean echo", &mut echo, plan)?;
        drop(echo);
        let ratio = ours.us_per_pair() / floor.us_per_pair().max(1e-9);
        self.row(
            Row::new("bare echo: CPU per datagram pair", "us", Better::Lower, floor.us_per_pair())
                .published(3.05, SPEC),
        );
        self.row(
            Row::new("CPU per datagram pair", "us", Better::Lower, ours.us_per_pair()).published(6.7, SPEC),
        );
        self.row(
            Row::new("CPU per datagram pair, bare echo = 1", "x", Better::Lower, ratio)
                .published(2.2, SPEC)
                .marks(1.6, 1.2),
        );
        let echoes = ours.served.packets_in.max(1) as f64;
        let (inward, outward) =
            (ours.served.datagrams_in as f64 / echoes, ours.served.datagrams_out as f64 / echoes);
        self.row(
            Row::new("datagrams in per echo", "datagrams", Better::Lower, inward)
                .published(1.35, SPEC)
                .marks(1.25, 1.2),
        );
        self.row(
            Row::new("datagrams out per echo", "datagrams", Better::Lower, outward)
                .published(1.35, SPEC)
                .marks(1.1, 1.02),
        );
        self.sound("lean echo", &ours);
        Ok(())
    }

    fn libenet(&mut self) -> Result<(), BenchError> {
        let (clients, every) = (self.clients(COMPARED), Duration::from_millis(100));
        let mut echo = self.start(&self.serve_plan(clients))?;
        let ours = self.measure_real("4,000 real clients", &mut echo, clients, every)?;
        drop(echo);
        let mut theirs = Vec::new();
        let polls: &[u32] = if self.options.quick { &[1_000] } else { &[1_000, 100] };
        for &hz in polls {
            let Some(peer) = &self.peer else { break };
            let mut echo = Echo::libenet(peer, clients.min(4_095), hz)?;
            let name = format!("libenet at {hz} Hz, 4,000 real clients");
            if let Some((seen, cpu, _)) = self.measure_real(&name, &mut echo, clients, every)? {
                self.row(
                    Row::new(format!("{name}: server CPU"), "% of a core", Better::Lower, cpu)
                        .published(if hz == 1_000 { 36.0 } else { 22.0 }, SPEC),
                );
                self.row(
                    Row::new(format!("{name}: round trip p99"), "ms", Better::Lower, seen.p99_ms)
                        .published(if hz == 1_000 { 1.3 } else { 9.6 }, SPEC),
                );
                theirs.push(cpu);
            }
        }
        let Some((seen, cpu, served)) = ours else { return Ok(()) };
        self.row(
            Row::new("4,000 real clients: server CPU", "% of a core", Better::Lower, cpu)
                .published(36.0, SPEC)
                .marks(18.0, 13.0),
        );
        self.row(
            Row::new("4,000 real clients: round trip p99", "ms", Better::Lower, seen.p99_ms)
                .published(1.3, SPEC)
                .marks(2.0, 1.2),
        );
        self.row(
            Row::new("4,000 real clients: lost", "clients", Better::Lower, seen.lost as f64).marks(0.0, 0.0),
        );
        if let Some(their) = theirs.first() {
            self.row(Row::new(
                "CPU of libenet's server, ours = 1",
                "x",
                Better::Higher,
                their / cpu.max(1e-9),
            ));
        }
        self.sound_real("4,000 real clients", &seen, &served);
        Ok(())
    }

    fn many(&mut self) -> Result<(), BenchError> {
        let steps: &[usize] = if self.options.quick { &[20_000] } else { &[20_000, 30_000, 40_000] };
        let steps = self.options.clients.map_or(steps.to_vec(), |clients| vec![clients]);
        let mut best = 0;
        for clients in steps {
            let mut echo = self.start(&self.serve_plan(1 << 20))?;
            let name = format!("{clients} real clients at 1 Hz");
            let Some((seen, cpu, served)) =
                self.measure_real(&name, &mut echo, clients, Duration::from_secs(1))?
            else {
                return Ok(());
            };
            let holds = seen.connected == clients as u64
                && seen.lost + seen.failed + seen.wrong + seen.overtook == 0
                && missing(seen.sent, seen.echoed, &served) == 0;
            if !holds {
                self.report.note(format!(
                    "{name}: {} connected, {} lost, {} of {} echoes",
                    seen.connected, seen.lost, seen.echoed, seen.sent
                ));
                break;
            }
            self.row(Row::new(format!("{name}: server CPU"), "% of a core", Better::Lower, cpu));
            best = clients;
        }
        self.row(
            Row::new("real clients on one port at 1 Hz", "clients", Better::Higher, best as f64)
                .published(4_095.0, SPEC)
                .marks(20_000.0, 40_000.0),
        );
        Ok(())
    }

    fn lean(&mut self) -> Result<(), BenchError> {
        let steps: &[usize] = if self.options.quick {
            &[12_000, 25_000]
        } else {
            &[500, 2_000, 8_000, 12_000, 16_000, 20_000, 25_000, 50_000]
        };
        let steps = self.options.clients.map_or(steps.to_vec(), |clients| vec![clients]);
        self.report.note(String::from(
            "lean clients share a few sockets, so the kernel passes on their datagrams in runs: this measures the host. What \
             a datagram costs that comes alone is in the group limit, and in the row about single datagrams",
        ));
        // Every datagram for itself, as many as the kernel carries on one core.
        let clients = self.clients(12_000);
        let mut echo = self.start(&ServePlan { segmentation: false, ..self.serve_plan(1 << 20) })?;
        let name = format!("{clients} lean clients, single datagrams");
        let plan = SwarmPlan { sockets: Sharing::Single, ..self.swarm(echo.addr, clients, 1) };
        let single = self.measure(&name, &mut echo, plan)?;
        drop(echo);
        let p99 = single.seen.rtt.quantile_ms(0.99);
        self.row(Row::new(format!("{name}: server CPU"), "% of a core", Better::Lower, single.cpu_percent()));
        self.row(Row::new(format!("{name}: round trip p99"), "ms", Better::Lower, p99));
        self.sound(&name, &single);
        let mut best = 0;
        for clients in steps {
            let mut echo = self.start(&self.serve_plan(1 << 20))?;
            let name = format!("{clients} lean clients");
            let plan = SwarmPlan { sockets: Sharing::Runs, ..self.swarm(echo.addr, clients, 1) };
            let measured = self.measure(&name, &mut echo, plan)?;
            let p99 = measured.seen.rtt.quantile_ms(0.99);
            self.row(Row::new(
                format!("{name}: server CPU"),
                "% of a core",
                Better::Lower,
                measured.cpu_percent(),
            ));
            self.row(Row::new(format!("{name}: round trip p99"), "ms", Better::Lower, p99));
            self.report.note(format!("{name}: connect failures {}", measured.seen.failed));
            let holds =
                p99 < 5.0 && measured.seen.failed + measured.seen.lost == 0 && measured.missing() == 0;
            if !holds {
                let late = measured.seen.lateness.quantile_ms(0.99);
                let generator = measured.generator_cpu.as_secs_f64() / measured.window.as_secs_f64() * 100.0;
                self.report.note(format!(
                    "{name}: p99 {p99:.1} ms, {} packets missing; the generator was {late:.1} ms late (p99) at {generator:.0}% of a core",
                    measured.missing()
                ));
                break;
            }
            best = clients;
        }
        self.row(
            Row::new("lean clients at 10 Hz, p99 < 5 ms", "clients", Better::Higher, best as f64)
                .published(2_000.0, ISSUES)
                .marks(12_000.0, 25_000.0),
        );
        Ok(())
    }

    fn idle(&mut self) -> Result<(), BenchError> {
        let slots: &[(usize, Option<f64>)] =
            &[(64, None), (2_048, Some(2.5)), (8_192, Some(9.0)), (65_536, None), (1_000_000, None)];
        let slots = if self.options.quick { &slots[4..] } else { slots };
        for &(slots, published) in slots {
            let echo = self.start(&self.serve_plan(slots))?;
            (self.say)(&format!("idle: {slots} slots"));
            std::thread::sleep(self.warmup());
            let before = echo.cpu();
            std::thread::sleep(self.window());
            let cpu = (echo.cpu() - before).as_secs_f64() / self.window().as_secs_f64() * 100.0;
            let mut row =
                Row::new(format!("{slots} slots, nobody connected: CPU"), "% of a core", Better::Lower, cpu);
            if let Some(published) = published {
                row = row.published(published, if slots == 8_192 { ISSUES } else { SPEC });
            }
            // A thousandth of a percent is the clock of the measurement.
            self.row(if slots == 1_000_000 { row.marks(0.01, 0.001) } else { row });
        }
        let peers: &[usize] = if self.options.quick { &[10_000] } else { &[1_000, 10_000, 50_000] };
        let peers = self.options.clients.map_or(peers.to_vec(), |clients| vec![clients]);
        for clients in peers {
            let mut echo = self.start(&self.serve_plan(1_000_000))?;
            let before = echo.memory();
            let name = format!("{clients} idle peers with 255 lanes");
            let plan = SwarmPlan { lanes: 255, ..self.swarm(echo.addr, clients, 0) };
            let measured = self.measure(&name, &mut echo, plan)?;
            let each = echo.memory().saturating_sub(before) as f64 / clients as f64 / 1024.0;
            self.row(Row::new(format!("{name}: CPU"), "% of a core", Better::Lower, measured.cpu_percent()));
            let row =
                Row::new(format!("{name}: memory each"), "KiB", Better::Lower, each).published(20.0, SPEC);
            self.row(if clients == 10_000 { row.marks(4.0, 1.5) } else { row });
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<(), BenchError> {
        let clients = self.clients(500);
        let mut echo = self.start(&ServePlan { game_hz: 20, ..self.serve_plan(1 << 20) })?;
        (self.say)(&format!("connect: {clients} at once"));
        let mut swarm = Swarm::new(SwarmPlan { batch: clients, ..self.swarm(echo.addr, clients, 0) })?;
        std::thread::sleep(Duration::from_millis(200));
        swarm.connect()?;
        let took = swarm.seen.batches.first().map_or(0.0, |time| time.as_secs_f64() * 1_000.0);
        self.report
            .raw("500 at once", json!({ "ms": took, "failed": swarm.seen.failed, "server": echo.served() }));
        self.row(
            Row::new("500 clients at once, game at 20 Hz: all in", "ms", Better::Lower, took)
                .marks(50.0, 20.0),
        );
        self.row(
            Row::new(
                "500 clients at once, game at 20 Hz: failures",
                "clients",
                Better::Lower,
                swarm.seen.failed as f64,
            )
            .marks(0.0, 0.0),
        );
        Ok(())
    }

    fn tick(&mut self) -> Result<(), BenchError> {
        let clients = self.clients(COMPARED);
        let mut echo = self.start(&ServePlan { game_hz: 20, ..self.serve_plan(1 << 20) })?;
        let plan = self.swarm(echo.addr, clients, 1);
        let measured = self.measure("game at 20 Hz", &mut echo, plan)?;
        let lost = (measured.seen.lost + measured.seen.failed) as f64;
        self.row(
            Row::new("game at 20 Hz, 4,000 clients: lost", "clients", Better::Lower, lost)
                .published(620.0, SPEC)
                .marks(0.0, 0.0),
        );
        self.row(
            Row::new(
                "game at 20 Hz, 4,000 clients: packets missing",
                "packets",
                Better::Lower,
                measured.missing() as f64,
            )
            .marks(0.0, 0.0),
        );
        self.row(Row::new(
            "game at 20 Hz, 4,000 clients: round trip p99",
            "ms",
            Better::Lower,
            measured.seen.rtt.quantile_ms(0.99),
        ));
        Ok(())
    }

    fn hostile(&mut self) -> Result<(), BenchError> {
        let clients = self.clients(1_000);
        let mut echo = self.start(&self.serve_plan(1 << 20))?;
        let (calm, stormy, ..) = self.beside("hostile", &mut echo, clients, |addr, stop| {
            // Nothing and garbage in turn, 10,000 a second.
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            let mut due = clock::now_ns();
            while !stop.load(Ordering::Acquire) {
                for index in 0..10u8 {
                    let garbage = [index.wrapping_mul(37); 20];
                    drop(socket.send_to(if index % 2 == 0 { &[] } else { &garbage }, addr));
                }
                due += 1_000_000;
                clock::sleep_until(due);
            }
            Ok(())
        })?;
        let rise = rise(&calm, &stormy);
        self.row(
            Row::new("10,000 garbage datagrams/s beside 1,000 clients: p99", "% more", Better::Lower, rise)
                .marks(10.0, 0.0),
        );
        drop(echo);

        let mut echo = self.start(&self.serve_plan(1 << 20))?;
        let (bytes_out, bytes_in) = unproven(echo.addr, 2_000)?;
        let half_open = echo.served().half_open;
        let ratio = bytes_in as f64 / bytes_out as f64;
        self.report
            .raw("unproven", json!({ "sent": bytes_out, "answered": bytes_in, "half_open": half_open }));
        self.row(
            Row::new("bytes answered per byte of unproven CONNECT", "bytes", Better::Lower, ratio)
                .published(5.5, SPEC)
                .marks(1.0, 1.0),
        );
        self.row(
            Row::new(
                "handshakes kept after 2,000 unproven CONNECTs",
                "entries",
                Better::Lower,
                half_open as f64,
            )
            .marks(16_384.0, 0.0),
        );
        Ok(())
    }

    fn bulk(&mut self) -> Result<(), BenchError> {
        let clients = self.clients(1_000);
        let bytes = if self.options.clients.is_some() { 1_000_000 } else { 32_000_000 };
        let mut echo = self.start(&self.serve_plan(1 << 20))?;
        let packet: Bytes = (0..bytes).map(|at| at as u8).collect();
        let (calm, busy, took, returned) =
            self.beside("bulk", &mut echo, clients, |addr, _| fetch_bulk(addr, packet.clone()))?;
        self.report.threshold("bulk: the long packet came back as it was", 0.0, returned == packet);
        self.row(
            Row::new(
                "32 MB to one peer beside 1,000 others: their p99",
                "% more",
                Better::Lower,
                rise(&calm, &busy),
            )
            .marks(20.0, 5.0),
        );
        self.row(Row::new("32 MB there and back", "s", Better::Lower, took.as_secs_f64()));
        Ok(())
    }

    /// One window in peace and one beside `other`, which runs on a thread of its own until it is done or told to stop.
    fn beside<T: Send>(
        &mut self,
        name: &str,
        echo: &mut Echo,
        clients: usize,
        other: impl FnOnce(SocketAddr, &AtomicBool) -> std::io::Result<T> + Send,
    ) -> Result<(Measured, Measured, Duration, T), BenchError> {
        (self.say)(&format!("{name}: {clients} clients, in peace and not"));
        let mut swarm = Swarm::new(self.swarm(echo.addr, clients, 1))?;
        swarm.connect()?;
        swarm.live(self.warmup(), true, false)?;
        let window = self.window();
        let calm = measure_window(echo, &mut swarm, window, true)?;
        let (stop, done, addr) = (AtomicBool::new(false), AtomicBool::new(false), echo.addr);
        let begun = Instant::now();
        let (after, took, result) = std::thread::scope(|scope| {
            let handle = scope.spawn(|| {
                let result = other(addr, &stop);
                done.store(true, Ordering::Release);
                (result, begun.elapsed())
            });
            let after = measure_window(echo, &mut swarm, window, true);
            stop.store(true, Ordering::Release);
            let (result, took) = handle
                .join()
                .unwrap_or_else(|_| (Err(std::io::Error::other("a thread panicked")), begun.elapsed()));
            (after, took, result)
        });
        let (result, after) = (result?, after?);
        self.report.raw(&format!("{name}: in peace"), calm.json());
        self.report.raw(&format!("{name}: not in peace"), after.json());
        self.sound(name, &after);
        Ok((calm, after, took, result))
    }

    fn processes(&mut self) -> Result<(), BenchError> {
        let each = self.clients(4_000) / 2;
        let mut echoes = [self.start(&self.serve_plan(1 << 20))?, self.start(&self.serve_plan(1 << 20))?];
        (self.say)(&format!("processes: 2 with {each} clients each"));
        let plans = [self.swarm(echoes[0].addr, each, 1), self.swarm(echoes[1].addr, each, 1)];
        let (warmup, window) = (self.warmup(), self.window());
        let measured: Vec<Result<Measured, BenchError>> = std::thread::scope(|scope| {
            let handles: Vec<_> = echoes
                .iter_mut()
                .zip(plans)
                .map(|(echo, plan)| {
                    scope.spawn(move || {
                        let mut swarm = Swarm::new(plan)?;
                        swarm.connect()?;
                        swarm.live(warmup, true, false)?;
                        measure_window(echo, &mut swarm, window, true)
                    })
                })
                .collect();
            let joined = handles.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined
                .map(|result| {
                    result.unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked").into()))
                })
                .collect()
        });
        let (mut cpu, mut p99, mut lost) = (0.0, 0.0f64, 0);
        for (index, measured) in measured.into_iter().enumerate() {
            let measured = measured?;
            cpu += measured.cpu_percent();
            p99 = p99.max(measured.seen.rtt.quantile_ms(0.99));
            lost += measured.seen.lost + measured.seen.failed;
            self.report.raw(&format!("process {index}"), measured.json());
        }
        self.row(
            Row::new("two processes, 4,000 clients: CPU together", "% of a core", Better::Lower, cpu)
                .published(180.0, ISSUES),
        );
        self.row(Row::new("two processes, 4,000 clients: round trip p99", "ms", Better::Lower, p99));
        self.row(
            Row::new("two processes, 4,000 clients: lost", "clients", Better::Lower, lost as f64)
                .marks(0.0, 0.0),
        );
        Ok(())
    }

    fn row(&mut self, row: Row) {
        self.report.row(row);
    }

    /// Conditions without which a figure means nothing.
    fn sound(&mut self, name: &str, measured: &Measured) {
        let seen = &measured.seen;
        let bad = seen.failed as u64 + seen.lost as u64 + seen.wrong + seen.overtook;
        self.report.threshold(
            format!("{name}: nobody lost, nothing damaged or overtaken"),
            bad as f64,
            bad == 0,
        );
        let missing = measured.missing();
        self.report.threshold(format!("{name}: every echo came back"), missing as f64, missing == 0);
    }

    fn sound_real(&mut self, name: &str, seen: &RealSeen, served: &Served) {
        let bad = seen.failed + seen.lost + seen.wrong + seen.overtook;
        self.report.threshold(
            format!("{name}: nobody lost, nothing damaged or overtaken"),
            bad as f64,
            bad == 0,
        );
        let missing = missing(seen.sent, seen.echoed, served);
        self.report.threshold(format!("{name}: every echo came back"), missing as f64, missing == 0);
    }
}

fn measure_window(
    echo: &mut Echo,
    swarm: &mut Swarm,
    window: Duration,
    sends: bool,
) -> Result<Measured, BenchError> {
    let fresh = Seen { connected: swarm.seen.connected, failed: swarm.seen.failed, ..Seen::default() };
    let (lost, batches) = (swarm.seen.lost, std::mem::take(&mut swarm.seen.batches));
    swarm.seen = Seen { lost, batches, ..fresh };
    let (served, cpu, own) = (echo.served(), echo.cpu(), clock::thread_cpu());
    let begun = Instant::now();
    swarm.live(window, sends, true)?;
    let (cpu, own) = (echo.cpu().saturating_sub(cpu), clock::thread_cpu() - own);
    let window = begun.elapsed();
    let served = difference(&echo.served(), &served);
    swarm.live(TAIL, false, false)?;
    Ok(Measured { seen: swarm.seen.clone(), cpu, window, served, generator_cpu: own })
}

/// What is missing, without the unreliable packets that the protocol's throttle dropped on purpose: it does that whenever
/// round trips vary, which on a busy machine they do.
fn missing(sent: u64, echoed: u64, served: &Served) -> u64 {
    sent.saturating_sub(echoed).saturating_sub(served.throttled)
}

fn rise(before: &Measured, after: &Measured) -> f64 {
    let (before, after) = (before.seen.rtt.quantile_ms(0.99), after.seen.rtt.quantile_ms(0.99));
    (after / before.max(1e-9) - 1.0) * 100.0
}

/// Counts of a window; what is no count is taken from the end.
fn difference(after: &Served, before: &Served) -> Served {
    Served {
        datagrams_in: after.datagrams_in.saturating_sub(before.datagrams_in),
        datagrams_out: after.datagrams_out.saturating_sub(before.datagrams_out),
        bytes_in: after.bytes_in.saturating_sub(before.bytes_in),
        bytes_out: after.bytes_out.saturating_sub(before.bytes_out),
        reads: after.reads.saturating_sub(before.reads),
        writes: after.writes.saturating_sub(before.writes),
        packets_in: after.packets_in.saturating_sub(before.packets_in),
        timeouts: after.timeouts.saturating_sub(before.timeouts),
        resent: after.resent.saturating_sub(before.resent),
        throttled: after.throttled.saturating_sub(before.throttled),
        ..*after
    }
}

/// Sends CONNECTs as a forger would, who never sees an answer: bytes sent and bytes that came back.
fn unproven(server: SocketAddr, count: u16) -> std::io::Result<(u64, u64)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(Duration::from_millis(1_500)))?;
    let (mut sent, mut answered) = (0, 0);
    let mut buf = [0; 2_048];
    for peer_id in 0..count {
        let handshake = Handshake {
            peer_id,
            incoming_session: SESSION_UNUSED,
            outgoing_session: SESSION_UNUSED,
            mtu: 1392,
            window: 65_536,
            channels: 4,
            incoming_bandwidth: 0,
            outgoing_bandwidth: 0,
            throttle_interval: 5_000,
            throttle_acceleration: 2,
            throttle_deceleration: 2,
            connect_id: u32::from(peer_id).to_be_bytes(),
        };
        let mut datagram = Vec::new();
        Header { peer_id: PEER_ID_NONE, session: 0, compressed: false, sent_time: Some(0) }
            .encode(&mut datagram);
        let body = Body::Connect(handshake, 0);
        Command { channel: CHANNEL_NONE, number: 1, acknowledge: true, unsequenced: false, body }
            .encode(&mut datagram);
        sent += socket.send_to(&datagram, server)? as u64;
        // The socket's buffer is small, and a lost answer would flatter the figure.
        socket.set_nonblocking(true)?;
        while let Ok(len) = socket.recv(&mut buf) {
            answered += len as u64;
        }
        socket.set_nonblocking(false)?;
        if peer_id % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Whatever still comes without our saying anything more.
    while let Ok(len) = socket.recv(&mut buf) {
        answered += len as u64;
    }
    Ok((sent, answered))
}

/// Sends one long reliable packet and returns its echo. Making the one and looking at the other takes time, which is not to
/// be measured as disturbance of the others.
fn fetch_bulk(server: SocketAddr, packet: Bytes) -> std::io::Result<Bytes> {
    let clock = Clock::start();
    let other = |error: &dyn std::fmt::Display| std::io::Error::other(error.to_string());
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut endpoint =
        Endpoint::open(clock, local, &UdpOptions::default(), Pacing::default(), Config::client(1))
            .map_err(|error| other(&error))?;
    endpoint.host().connect(clock.now(), server, 1, 0).map_err(|error| other(&error))?;
    let mut echo = None;
    // Even when the window is over, the packet is to arrive.
    while echo.is_none() && !crate::interrupt::requested() {
        let mut failed = None;
        endpoint.turn(None, |host| {
            while let Some(event) = host.poll_event() {
                match event {
                    Event::Connected { peer, .. } => {
                        if let Err(error) = host.send(peer, Lane(0), packet.clone(), Delivery::Reliable) {
                            failed = Some(other(&error));
                        }
                    }
                    Event::Received { data, .. } => echo = Some(data),
                    Event::Disconnected { .. } => failed = Some(other(&"the server was gone")),
                    _ => {}
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(echo.unwrap_or_default())
}
