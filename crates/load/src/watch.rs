//! Procedure of every run: it waits, opens a measured window, samples at intervals, and closes it.

use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::clock::{self, nanoseconds};
use crate::duration::short;
use crate::fleet::Control;
use crate::interrupt;
use crate::probe::{self, Memory, Metrics, Probe};
use crate::stats::{Counts, Times};

/// Longest sleep without a check for an interruption.
const NAP_NS: u64 = 100_000_000;

/// Beginning of the names of a server's shard threads.
const SHARD_THREADS: &str = "shard ";
/// Sum and number of the rounds that a server's threads made of their work, in seconds.
const ROUND_SECONDS_SUM: &[&str] = &["throng_shard_round_seconds_sum"];
const ROUND_COUNT: &[&str] = &["throng_shard_round_seconds_count"];
/// Their durations by size.
const ROUND_BUCKETS: &str = "throng_shard_round_seconds_bucket";
/// The reference's gauge: milliseconds of the latest tick.
const TICK_MS: &[&str] = &["channel_tick_duration"];

/// Why there is no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The game server's connection failed.
    #[error("{0}")]
    Owner(String),
    /// The game server did not get its channel.
    #[error(
        "the server did not answer the creation of the channel within {} ({created} of {wanted} further \
         channels created); does another game server own GLOBAL, or is the data type unknown?",
        short(*waited)
    )]
    NoChannel {
        /// Time given.
        waited: Duration,
        /// Idle channels made so far.
        created: u64,
        /// Idle channels wanted.
        wanted: usize,
    },
    /// The grid did not become ready.
    #[error(
        "only {cells} of {wanted} spatial channels were ready within {}; is the server configured with \
         the grid of this scenario, and free of other game servers?",
        short(*waited)
    )]
    NoCells {
        /// Time given.
        waited: Duration,
        /// Spatial channels that the game servers got.
        cells: u64,
        /// Spatial channels of the grid.
        wanted: usize,
    },
    /// Players did not get in.
    #[error("only {ready} of {wanted} players joined, none in the last {}{}", short(*waited), first_error.as_ref().map(|error| format!("; first problem: {error}")).unwrap_or_default())]
    NotReady {
        /// Players that are in.
        ready: u64,
        /// Requested number of players.
        wanted: usize,
        /// Time since the last join.
        waited: Duration,
        /// The first thing that went wrong.
        first_error: Option<String>,
    },
    /// Ctrl-C before there was anything to measure.
    #[error("interrupted before the measurement began")]
    Interrupted,
    /// A generator thread failed.
    #[error("generator: {0}")]
    Generator(#[from] std::io::Error),
}

/// One sample of all figures, for charts and live lines. Rates are relative to the previous sample.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Sample {
    /// Seconds since the measured window began.
    pub at_s: f64,
    /// Players in.
    pub connections: u64,
    /// Channels that the game server knows of.
    pub channels: u64,
    /// Processors that the server used.
    pub server_cores: Option<f64>,
    /// Resident memory of the server.
    pub server_resident_bytes: Option<u64>,
    /// Duration of the server's ticks in milliseconds: the mean of its rounds of work, or the
    /// latest tick of the reference, whichever its metrics page has.
    pub tick_ms: Option<f64>,
    /// Frames per second of the simulated game server.
    pub frames_per_s: f64,
    /// Messages that players and game server sent, per second.
    pub messages_in_per_s: f64,
    /// Messages that they received, per second.
    pub messages_out_per_s: f64,
    /// Bytes that they sent, per second.
    pub bytes_in_per_s: f64,
    /// Bytes that they received, per second.
    pub bytes_out_per_s: f64,
    /// Median state latency.
    pub p50_ms: f64,
    /// 99th percentile of the state latency.
    pub p99_ms: f64,
    /// Characters handed from one spatial channel to another, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handovers_per_s: Option<f64>,
}

/// Measured window of a run, and its sampling interval.
pub(crate) struct Timing {
    pub(crate) warmup: Duration,
    /// Until an interrupt when not given.
    pub(crate) duration: Option<Duration>,
    pub(crate) sample_interval: Duration,
}

/// Parts of a run that differ between kinds of runs.
pub(crate) trait Scenario {
    /// Counters of the simulated game servers so far.
    fn servers(&self) -> Servers;
    /// Counters of the players so far.
    fn players(&self) -> Counts;
    /// State latencies since the last call.
    fn take_recent(&self) -> Times;
    /// Number of game servers that share the frames.
    fn server_count(&self) -> usize;
    /// True if characters are handed over at all.
    fn hands_over(&self) -> bool;
    /// True if the game servers cannot continue.
    fn has_failed(&self) -> bool;
    /// Time passes, up to `at_ns` of the clock or an interrupt. The first call is for the window's
    /// beginning.
    fn pass_until(&mut self, at_ns: u64) {
        sleep_until(at_ns);
    }
    /// Late arrivals count, so leaving before they are in would call a slow server lossy.
    fn wait_for_stragglers(&self);
}

/// Totals of the simulated game servers.
#[derive(Clone, Copy)]
pub(crate) struct Servers {
    pub(crate) cpu: Duration,
    pub(crate) messages_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) messages_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) frames: u64,
    /// Channels that they know of.
    pub(crate) channels: u64,
    pub(crate) handovers: u64,
}

/// Totals of the players.
#[derive(Clone, Copy)]
struct Players {
    cpu: Duration,
    ready: u64,
    frames_in: u64,
    messages_in: u64,
    bytes_in: u64,
    messages_out: u64,
    bytes_out: u64,
}

/// Totals at one instant, of which differences are taken.
#[derive(Clone)]
struct Mark {
    at_ns: u64,
    cpu: Option<Duration>,
    /// CPU time of each shard of the server.
    shards: Vec<Duration>,
    machine: Option<(u64, u64)>,
    players: Players,
    servers: Servers,
    metrics: Option<Metrics>,
}

/// A window that is over.
pub(crate) struct Window {
    first: Mark,
    last: Mark,
    pub(crate) samples: Vec<Sample>,
    /// Memory before the players joined, and at the end.
    pub(crate) memory: Option<(Memory, Memory)>,
}

/// Which players each of `threads` threads plays.
pub(crate) fn deal(players: usize, threads: usize) -> Vec<Vec<usize>> {
    (0..threads).map(|thread| (thread..players).step_by(threads).collect()).collect()
}

/// One value per thread, empty.
pub(crate) fn per_thread<T: Default>(threads: usize) -> Vec<Mutex<T>> {
    (0..threads).map(|_| Mutex::default()).collect()
}

/// A part of a whole. Not a number where the whole is nothing: no share of it was measured.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { f64::NAN } else { part as f64 / whole as f64 }
}

/// Sleeps until `at_ns` or an interrupt.
pub(crate) fn sleep_until(at_ns: u64) {
    while clock::now_ns() < at_ns && !interrupt::requested() {
        clock::sleep_until(at_ns.min(clock::now_ns() + NAP_NS));
    }
}

/// Ends the threads of a run.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a Control);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Warms up, then measures until the window's end, an interrupt or a failure of the game servers.
pub(crate) fn measure(
    timing: &Timing,
    probe: &Probe,
    control: &Control,
    memory_before: Option<Memory>,
    scenario: &mut impl Scenario,
    on_sample: &mut dyn FnMut(&Sample),
) -> Result<Window, RunError> {
    sleep_until(clock::now_ns() + nanoseconds(timing.warmup));
    if interrupt::requested() && timing.duration.is_some() {
        return Err(RunError::Interrupted);
    }
    let from = clock::now_ns();
    let planned_end = timing.duration.map_or(u64::MAX, |duration| from + nanoseconds(duration));
    control.measure(from, planned_end);
    scenario.pass_until(from);
    let first = Mark::take(from, probe, scenario);
    let mut last = first.clone();
    let mut samples = Vec::new();
    let mut next = from;
    let end = loop {
        next = (next + nanoseconds(timing.sample_interval)).min(planned_end);
        scenario.pass_until(next);
        let now = clock::now_ns();
        let mark = Mark::take(now, probe, scenario);
        let sample = sample(&last, &mark, from, probe, scenario);
        on_sample(&sample);
        samples.push(sample);
        last = mark;
        if now >= planned_end || interrupt::requested() || scenario.has_failed() {
            break now;
        }
    };
    control.measure(from, planned_end.min(end));
    let memory = memory_before.zip(probe.memory());
    scenario.wait_for_stragglers();
    Ok(Window { first, last, samples, memory })
}

impl Mark {
    fn take(at_ns: u64, probe: &Probe, scenario: &impl Scenario) -> Self {
        let cpu = probe.cpu();
        let Counts {
            cpu: players_cpu, ready, frames_in, messages_in, bytes_in, messages_out, bytes_out, ..
        } = scenario.players();
        Self {
            at_ns,
            cpu,
            shards: probe.threads(SHARD_THREADS).into_iter().map(|(_, cpu)| cpu).collect(),
            machine: probe::machine_ticks(),
            players: Players {
                cpu: players_cpu,
                ready,
                frames_in,
                messages_in,
                bytes_in,
                messages_out,
                bytes_out,
            },
            servers: scenario.servers(),
            // Last, since a page takes its time.
            metrics: probe.metrics(),
        }
    }
}

impl Window {
    pub(crate) fn length(&self) -> Duration {
        Duration::from_nanos(self.last.at_ns - self.first.at_ns)
    }

    /// Processor time of the server.
    pub(crate) fn server_cpu(&self) -> Option<Duration> {
        self.first.cpu.zip(self.last.cpu).map(|(first, last)| last.saturating_sub(first))
    }

    /// Processor time of each shard of the server.
    pub(crate) fn shards_cpu(&self) -> Vec<Duration> {
        let (first, last) = (&self.first.shards, &self.last.shards);
        last.iter().zip(first).map(|(last, first)| last.saturating_sub(*first)).collect()
    }

    /// Processor time of the players.
    pub(crate) fn players_cpu(&self) -> Duration {
        self.last.players.cpu.saturating_sub(self.first.players.cpu)
    }

    /// Processor time of the simulated game servers.
    pub(crate) fn game_cpu(&self) -> Duration {
        self.last.servers.cpu.saturating_sub(self.first.servers.cpu)
    }

    /// Share of all processors that were busy.
    pub(crate) fn machine_busy(&self) -> Option<f64> {
        let ((busy_0, all_0), (busy_1, all_1)) = self.first.machine.zip(self.last.machine)?;
        Some((busy_1 - busy_0) as f64 / all_1.saturating_sub(all_0).max(1) as f64)
    }

    /// Bytes that players received.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.last.players.bytes_in - self.first.players.bytes_in
    }

    /// Frames that players received.
    pub(crate) fn frames_in(&self) -> u64 {
        self.last.players.frames_in - self.first.players.frames_in
    }

    /// Frames of the simulated game servers.
    pub(crate) fn frames(&self) -> u64 {
        self.last.servers.frames - self.first.servers.frames
    }

    /// The metrics pages of its beginning and its end.
    pub(crate) fn metrics(&self) -> Option<(&Metrics, &Metrics)> {
        self.first.metrics.as_ref().zip(self.last.metrics.as_ref())
    }

    /// Mean and longest round of the server, in milliseconds.
    pub(crate) fn round_ms(&self) -> Option<(f64, f64)> {
        let (first, last) = self.metrics()?;
        Some((mean_round_ms(last, first)?, last.longest_since(first, ROUND_BUCKETS)? * 1e3))
    }
}

fn sample(last: &Mark, mark: &Mark, from_ns: u64, probe: &Probe, scenario: &impl Scenario) -> Sample {
    let seconds = (mark.at_ns - last.at_ns) as f64 / 1e9;
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let rate_of = |total: fn(&Mark) -> u64| rate(total(mark), total(last));
    let recent = scenario.take_recent();
    let pages = mark.metrics.as_ref().zip(last.metrics.as_ref());
    let round_ms = pages.and_then(|(now, before)| mean_round_ms(now, before));
    Sample {
        at_s: (mark.at_ns - from_ns) as f64 / 1e9,
        connections: mark.players.ready,
        channels: mark.servers.channels,
        server_cores: mark.cpu.zip(last.cpu).map(|(now, before)| (now - before).as_secs_f64() / seconds),
        server_resident_bytes: probe.memory().map(|memory| memory.resident_bytes),
        tick_ms: mark.metrics.as_ref().and_then(|page| page.sum(TICK_MS)).or(round_ms),
        frames_per_s: rate_of(|mark| mark.servers.frames) / scenario.server_count() as f64,
        messages_in_per_s: rate_of(|mark| mark.players.messages_out + mark.servers.messages_out),
        messages_out_per_s: rate_of(|mark| mark.players.messages_in + mark.servers.messages_in),
        bytes_in_per_s: rate_of(|mark| mark.players.bytes_out + mark.servers.bytes_out),
        bytes_out_per_s: rate_of(|mark| mark.players.bytes_in + mark.servers.bytes_in),
        p50_ms: recent.quantile_ms(0.5),
        p99_ms: recent.quantile_ms(0.99),
        handovers_per_s: scenario.hands_over().then(|| rate_of(|mark| mark.servers.handovers)),
    }
}

/// Mean duration of the rounds between two looks at the metrics page, in milliseconds.
fn mean_round_ms(now: &Metrics, before: &Metrics) -> Option<f64> {
    let count = now.sum(ROUND_COUNT)? - before.sum(ROUND_COUNT)?;
    let seconds = now.sum(ROUND_SECONDS_SUM)? - before.sum(ROUND_SECONDS_SUM)?;
    (count > 0.0).then(|| seconds / count * 1e3)
}
