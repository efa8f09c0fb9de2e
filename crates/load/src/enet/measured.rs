//! One window of one server: the results of its clients, and its cost.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::echo::{Echo, RealPlan, RealSeen};
use super::serve::Served;
use super::swarm::{Seen, Swarm, SwarmPlan};
use super::{BATCH, Bench, PACKET_BYTES, TAIL};
use crate::clock;
use crate::suites::BenchError;

/// One window of one server.
pub(super) struct Measured {
    pub(super) seen: Seen,
    cpu: Duration,
    pub(super) window: Duration,
    pub(super) served: Served,
    pub(super) generator_cpu: Duration,
}

impl Measured {
    /// Share of a core that the server used, in percent.
    pub(super) fn cpu_percent(&self) -> f64 {
        self.cpu.as_secs_f64() / self.window.as_secs_f64() * 100.0
    }

    /// CPU time of the server per datagram in and datagram out, in microseconds.
    pub(super) fn us_per_pair(&self) -> f64 {
        let pairs = (self.served.datagrams_in + self.served.datagrams_out) as f64 / 2.0;
        self.cpu.as_secs_f64() * 1e6 / pairs.max(1.0)
    }

    /// Datagrams received for each packet that was delivered.
    pub(super) fn in_per_echo(&self) -> f64 {
        self.served.datagrams_in as f64 / self.served.packets_in.max(1) as f64
    }

    /// Datagrams sent for each packet that was delivered.
    pub(super) fn out_per_echo(&self) -> f64 {
        self.served.datagrams_out as f64 / self.served.packets_in.max(1) as f64
    }

    /// Packets whose echo the server sent and the client did not receive.
    pub(super) fn missing(&self) -> u64 {
        missing(self.seen.sent, self.seen.echoed, &self.served)
    }

    pub(super) fn json(&self) -> serde_json::Value {
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
    /// Connects, warms up, measures one window.
    pub(super) fn measure(
        &mut self,
        name: &str,
        echo: &mut Echo,
        plan: SwarmPlan,
    ) -> Result<Measured, BenchError> {
        (self.say)(&format!("{name}: {} clients", plan.clients));
        let sends = plan.every > 0;
        let mut swarm = Swarm::new(plan)?;
        swarm.connect()?;
        swarm.live(self.warmup(), sends, false)?;
        let measured = measure_window(echo, &mut swarm, self.window(), sends)?;
        self.report.raw(name, measured.json());
        Ok(measured)
    }

    /// The same with real clients: their results, the share of a core that the server used, and its
    /// counts.
    pub(super) fn measure_real(
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

    /// One undisturbed window and one beside `other`, which runs on a thread of its own until it is
    /// stopped.
    pub(super) fn beside<T: Send>(
        &mut self,
        name: &str,
        echo: &mut Echo,
        clients: usize,
        other: impl FnOnce(SocketAddr, &AtomicBool) -> std::io::Result<T> + Send,
    ) -> Result<(Measured, Measured, T), BenchError> {
        (self.say)(&format!("{name}: {clients} clients, undisturbed and disturbed"));
        let mut swarm = Swarm::new(self.swarm(echo.addr, clients, 1))?;
        swarm.connect()?;
        swarm.live(self.warmup(), true, false)?;
        let window = self.window();
        let calm = measure_window(echo, &mut swarm, window, true)?;
        let (stop, addr) = (AtomicBool::new(false), echo.addr);
        let (after, result) = std::thread::scope(|scope| {
            let handle = scope.spawn(|| other(addr, &stop));
            let after = measure_window(echo, &mut swarm, window, true);
            stop.store(true, Ordering::Release);
            let result = handle.join();
            (after, result.unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked"))))
        });
        let (result, after) = (result?, after?);
        self.report.raw(&format!("{name}: in peace"), calm.json());
        self.report.raw(&format!("{name}: disturbed"), after.json());
        self.sound(name, &after);
        Ok((calm, after, result))
    }

    /// Conditions without which a figure means nothing.
    pub(super) fn sound(&mut self, name: &str, measured: &Measured) {
        let seen = &measured.seen;
        let bad = seen.failed as u64 + seen.lost as u64 + seen.wrong + seen.overtook;
        self.report.threshold(
            format!("{name}: no client lost, no packet damaged or reordered"),
            bad as f64,
            bad == 0,
        );
        let missing = measured.missing();
        self.report.threshold(format!("{name}: every echo came back"), missing as f64, missing == 0);
    }

    pub(super) fn sound_real(&mut self, name: &str, seen: &RealSeen, served: &Served) {
        let bad = seen.failed + seen.lost + seen.wrong + seen.overtook;
        self.report.threshold(
            format!("{name}: no client lost, no packet damaged or reordered"),
            bad as f64,
            bad == 0,
        );
        let missing = missing(seen.sent, seen.echoed, served);
        self.report.threshold(format!("{name}: every echo came back"), missing as f64, missing == 0);
    }
}

pub(super) fn measure_window(
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

/// Missing packets, without the unreliable ones that the protocol's throttle dropped on purpose: it
/// does that whenever round trips vary, which on a busy machine they do.
pub(super) fn missing(sent: u64, echoed: u64, served: &Served) -> u64 {
    sent.saturating_sub(echoed).saturating_sub(served.throttled)
}

pub(super) fn rise(before: &Measured, after: &Measured) -> f64 {
    let (before, after) = (before.seen.rtt.quantile_ms(0.99), after.seen.rtt.quantile_ms(0.99));
    (after / before.max(1e-9) - 1.0) * 100.0
}

/// Differences of counters over a window; gauges are taken from its end.
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
