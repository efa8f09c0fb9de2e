//! The groups that measure loads.

use std::time::Duration;

use serde_json::json;

use super::echo::{Echo, RealSeen};
use super::measured::{Measured, measure_window, missing};
use super::serve::ServePlan;
use super::swarm::{Sharing, Swarm, SwarmPlan};
use super::{Bench, COMPARED, ISSUES, SPEC};
use crate::report::{Better, Row};
use crate::suites::BenchError;

impl Bench<'_> {
    /// The same packets through a bare echo and through the host, in turns: on a shared machine two
    /// runs that are minutes apart differ by more than the host costs.
    pub(super) fn limit(&mut self) -> Result<(), BenchError> {
        let clients = self.clients(COMPARED);
        let (mut floors, mut ours) = (Vec::new(), Vec::new());
        for turn in 1..=self.turns() {
            let mut bare = self.start(&ServePlan { bare: true, ..self.serve_plan(1) })?;
            let plan = SwarmPlan { bare: true, ..self.swarm(bare.addr, clients, 1) };
            floors.push(self.measure(&format!("bare echo {turn}"), &mut bare, plan)?);
            drop(bare);
            let mut echo = self.start(&self.serve_plan(clients))?;
            let plan = self.swarm(echo.addr, clients, 1);
            ours.push(self.measure(&format!("lean echo {turn}"), &mut echo, plan)?);
        }
        let median_of = |all: &[Measured], value: fn(&Measured) -> f64| median(all.iter().map(value));
        let pair = |all| median_of(all, Measured::us_per_pair);
        let ratio = median(
            ours.iter().zip(&floors).map(|(ours, floor)| ours.cpu_percent() / floor.cpu_percent().max(1e-9)),
        );
        self.row(
            Row::new("server CPU for the same packets, bare echo = 1", "x", Better::Lower, ratio)
                .marks(1.25, 1.12),
        );
        self.row(
            Row::new("bare echo: CPU per datagram pair", "us", Better::Lower, pair(&floors))
                .published(3.05, SPEC),
        );
        self.row(Row::new("CPU per datagram pair", "us", Better::Lower, pair(&ours)).published(6.7, SPEC));
        // The kernel's cost of these datagrams: no server can use less of a core.
        self.row(Row::new(
            format!("bare echo of {clients} clients: server CPU"),
            "% of a core",
            Better::Lower,
            median_of(&floors, Measured::cpu_percent),
        ));
        self.row(
            Row::new(
                "datagrams in per echo",
                "datagrams",
                Better::Lower,
                median_of(&ours, Measured::in_per_echo),
            )
            .published(1.35, SPEC)
            .marks(1.25, 1.2),
        );
        self.row(
            Row::new(
                "datagrams out per echo",
                "datagrams",
                Better::Lower,
                median_of(&ours, Measured::out_per_echo),
            )
            .published(1.35, SPEC)
            .marks(1.1, 1.02),
        );
        for (turn, measured) in ours.iter().enumerate() {
            self.sound(&format!("lean echo {}", turn + 1), measured);
        }
        Ok(())
    }

    pub(super) fn libenet(&mut self) -> Result<(), BenchError> {
        let (clients, every) = (self.clients(COMPARED), Duration::from_millis(100));
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 1..=self.turns() {
            let name = format!("4,000 real clients, turn {turn}");
            let mut echo = self.start(&self.serve_plan(clients))?;
            let Some((seen, cpu, served)) = self.measure_real(&name, &mut echo, clients, every)? else {
                return Ok(());
            };
            drop(echo);
            self.sound_real(&name, &seen, &served);
            ours.push((seen, cpu));
            if let Some((seen, their)) = self.serve_by_libenet(1_000, clients, every)? {
                theirs.push((seen, their));
                ratios.push(cpu / their.max(1e-9));
            }
        }
        if !theirs.is_empty() {
            self.libenet_rows(1_000, &theirs, 36.0, 1.3);
        }
        if !self.options.quick
            && let Some(seldom) = self.serve_by_libenet(100, clients, every)?
        {
            self.libenet_rows(100, &[seldom], 22.0, 9.6);
        }
        self.row(
            Row::new(
                "4,000 real clients: server CPU",
                "% of a core",
                Better::Lower,
                median(ours.iter().map(|(_, cpu)| *cpu)),
            )
            .published(36.0, SPEC),
        );
        self.row(
            Row::new(
                "4,000 real clients: round trip p99",
                "ms",
                Better::Lower,
                median(ours.iter().map(|(seen, _)| seen.p99_ms)),
            )
            .published(1.3, SPEC)
            .marks(2.0, 1.2),
        );
        let lost: u64 = ours.iter().map(|(seen, _)| seen.lost).sum();
        self.row(Row::new("4,000 real clients: lost", "clients", Better::Lower, lost as f64).marks(0.0, 0.0));
        if !ratios.is_empty() {
            self.row(
                Row::new(
                    "4,000 real clients: server CPU, libenet at 1000 Hz = 1",
                    "x",
                    Better::Lower,
                    median(ratios.into_iter()),
                )
                .marks(0.6, 0.6),
            );
        }
        Ok(())
    }

    /// Results of real clients of the library's server, and its share of a core. `None` without the
    /// library.
    fn serve_by_libenet(
        &mut self,
        hz: u32,
        clients: usize,
        every: Duration,
    ) -> Result<Option<(RealSeen, f64)>, BenchError> {
        let Some(peer) = &self.peer else { return Ok(None) };
        let mut echo = Echo::libenet(peer, clients.min(4_095), hz)?;
        let name = format!("libenet at {hz} Hz, 4,000 real clients");
        Ok(self.measure_real(&name, &mut echo, clients, every)?.map(|(seen, cpu, _)| (seen, cpu)))
    }

    fn libenet_rows(&mut self, hz: u32, seen: &[(RealSeen, f64)], published_cpu: f64, published_ms: f64) {
        let name = format!("libenet at {hz} Hz, 4,000 real clients");
        let (cpu, p99) = (median(seen.iter().map(|run| run.1)), median(seen.iter().map(|run| run.0.p99_ms)));
        self.row(
            Row::new(format!("{name}: server CPU"), "% of a core", Better::Lower, cpu)
                .published(published_cpu, SPEC),
        );
        self.row(
            Row::new(format!("{name}: round trip p99"), "ms", Better::Lower, p99)
                .published(published_ms, SPEC),
        );
    }

    pub(super) fn many(&mut self) -> Result<(), BenchError> {
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

    pub(super) fn lean(&mut self) -> Result<(), BenchError> {
        self.report.note(String::from(
            "lean clients with datagrams in runs share a few sockets, distinguished by the ids of the protocol, so the kernel \
             handles their datagrams in batches (GSO, GRO): that measures the host. Players have a socket each, as the lean \
             clients of the other row",
        ));
        let own: &[usize] =
            if self.options.quick { &[8_000, 12_000] } else { &[4_000, 8_000, 12_000, 16_000] };
        let (best, judged) = self.lean_until("a socket each", Sharing::None, own)?;
        let row = Row::new(
            "lean clients, a socket each, at 10 Hz, p99 < 5 ms",
            "clients",
            Better::Higher,
            best as f64,
        );
        self.row(if judged || best >= 12_000 { row.marks(8_000.0, 12_000.0) } else { row });
        let steps: &[usize] = if self.options.quick {
            &[12_000, 25_000]
        } else {
            &[500, 2_000, 8_000, 12_000, 16_000, 20_000, 25_000, 50_000]
        };
        let (best, _) = self.lean_until("datagrams in runs", Sharing::Runs, steps)?;
        self.row(
            Row::new(
                "lean clients, datagrams in runs, at 10 Hz, p99 < 5 ms",
                "clients",
                Better::Higher,
                best as f64,
            )
            .published(2_000.0, ISSUES)
            .marks(12_000.0, 25_000.0),
        );
        Ok(())
    }

    /// More and more lean clients, until the p99 is 5 ms or something is missing. Returns the most
    /// of which that is not so, and false if the generator's own core was the limit then.
    fn lean_until(
        &mut self,
        how: &str,
        sockets: Sharing,
        steps: &[usize],
    ) -> Result<(usize, bool), BenchError> {
        let steps = self.options.clients.map_or(steps.to_vec(), |clients| vec![clients]);
        let mut best = 0;
        for clients in steps {
            let segmentation = sockets == Sharing::Runs;
            let mut echo = self.start(&ServePlan { segmentation, ..self.serve_plan(1 << 20) })?;
            let name = format!("{clients} lean clients, {how}");
            let plan = SwarmPlan { sockets, ..self.swarm(echo.addr, clients, 1) };
            let measured = self.measure(&name, &mut echo, plan)?;
            let p99 = measured.seen.rtt.quantile_ms(0.99);
            let cpu = measured.cpu_percent();
            self.row(Row::new(format!("{name}: server CPU"), "% of a core", Better::Lower, cpu));
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
                return Ok((best, generator <= GENERATOR_PERCENT_MAX));
            }
            best = clients;
        }
        Ok((best, true))
    }

    pub(super) fn idle(&mut self) -> Result<(), BenchError> {
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
                Row::new(format!("{slots} slots, no peer connected: CPU"), "% of a core", Better::Lower, cpu);
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

    pub(super) fn connect(&mut self) -> Result<(), BenchError> {
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

    pub(super) fn tick(&mut self) -> Result<(), BenchError> {
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

    pub(super) fn processes(&mut self) -> Result<(), BenchError> {
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
}

/// Share of a core above which the generator's delay is its own.
const GENERATOR_PERCENT_MAX: f64 = 90.0;

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
