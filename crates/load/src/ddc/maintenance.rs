//! The published tests beside scrub, collection and eviction, and without them.
//!
//! A folder of made-up blobs is served twice. The first server does no maintenance; it gives the
//! rate that 32 connections reach, and the latencies at half of it. The second one scrubs, collects
//! and evicts from its start on, while the same requests arrive at the same rate, until all three
//! have ended. The windows are short, so that every test meets every phase of the maintenance. The
//! first requests of a process do not count: the first 500 uploads take 90 ms, and without any
//! maintenance commits are half as fast in the first 50 ms.
//!
//! Uploads are of blobs that the server does not have: a repeated one is only looked up. They fill
//! the folder faster than an eviction empties it, so that a window sends no more of them than fit
//! between the size at which an eviction begins and the one at which uploads are refused.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::data::Set;
use super::engine::{Pace, Plan, Seen};
use super::peer::Peer;
use super::{Bench, CONNECTIONS, TESTS, Test, What};
use crate::child;
use crate::probe;
use crate::report::{Better, Row};
use crate::suites::BenchError;

/// Blobs of the folder, and the bytes of each: a scrub takes a minute and more.
const BLOBS: u64 = 200_000;
const BLOB_BYTES: u64 = 8 << 10;
/// The same for a run that only shows that everything works.
const SMOKE_BLOBS: u64 = 2_000;
/// Pace of the scrub, with a margin above what is asked for.
const SCRUB_BYTES_PER_S: u64 = 24 << 20;
const SCRUB_MIB_PER_S_MIN: f64 = 20.0;
/// Part of the folder's limit that it holds when the second server starts; 95 % begin an eviction.
const HELD_PERCENT: u64 = 97;
/// Time for all maintenance to end.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Part of the blobs' number that a window of uploads sends at most: 500 of 64 KiB, 31 MiB. About
/// 150 MiB fit in before uploads are refused, and an eviction may take several rounds of the tests.
const UPLOADS_PART: u64 = 400;
/// Windows without maintenance.
const QUIET_WINDOWS: usize = 3;
/// Tests without names: those whose data are small beside the folder.
const DEFAULT_TESTS: &[&str] = &[
    "small_blob_uploads",
    "small_blob_downloads",
    "refs_raw_download",
    "uecb_download",
    "uecb_pkg_download",
];

/// A test, the rate at which it is played, and its latencies without and with maintenance.
struct Case {
    test: &'static Test,
    rate: f64,
    quiet: Seen,
    busy: Seen,
}

/// Collection that was started over HTTP; its thread ends with the answer.
type Collection = JoinHandle<io::Result<String>>;

impl Bench<'_> {
    pub(super) fn maintenance(&mut self, progress: &mut dyn FnMut(&str)) -> Result<(), BenchError> {
        if self.options.url.is_some() {
            return Err(BenchError::Unfit(
                "`--maintenance` needs its own server; leave --url away".to_owned(),
            ));
        }
        let blobs = self.blobs();
        let data = self.folder.path("maintained");
        progress(&format!("making {blobs} blobs"));
        // A third of the entries are refs.
        let entries = (blobs * 3 / 2).to_string();
        self.run_tool(&data, &["fill", &entries, "--blob-bytes", &BLOB_BYTES.to_string()])?;

        let (mut cases, held) = self.without_maintenance(&data, progress)?;
        let internal = child::free_address()?;
        let limit = held * 100 / HELD_PERCENT;
        let settings = format!(
            "bytes_max = {limit}\nscrub_hours = 1\nscrub_bytes_per_s = {SCRUB_BYTES_PER_S}\ninternal_addr = \"{internal}\"\n"
        );
        let peer = self.server_with(&data, &settings)?;
        let started = Instant::now();
        let (mut scrubbed, mut collection) = (None, None::<Collection>);
        // The other server had answered many of each before its first window.
        for case in &cases {
            self.at_rate(&peer, case.test, case.rate)?;
        }
        while started.elapsed() < PATIENCE {
            for case in &mut cases {
                let seen = self.at_rate(&peer, case.test, case.rate)?;
                let p99 = seen.latency.quantile_ms(0.99);
                progress(&format!("{} with maintenance: p99 {p99:.1} ms", case.test.name));
                case.busy.add(&seen);
            }
            let figures = figures(peer.addr)?;
            let bytes = figures["scrubbed_bytes"].as_u64().filter(|bytes| *bytes > 0);
            scrubbed = scrubbed.or(bytes.zip(figures["scrubbed_s"].as_f64()));
            // A collection before the eviction would leave it nothing to do, and those of these
            // servers remove no refs.
            if collection.is_none() && figures["collections"]["refs"].as_u64() > Some(0) {
                collection = Some(begin_collection(internal)?);
            }
            let is_collected = collection.as_ref().is_some_and(JoinHandle::is_finished);
            let failures = figures["upkeep_failures"].as_u64().unwrap_or(0);
            if scrubbed.is_some() && is_collected || failures > 0 {
                break;
            }
        }
        let failures = figures(peer.addr)?["upkeep_failures"].as_u64().unwrap_or(0);
        let missing: Vec<String> = [
            failures.gt(&0).then(|| format!("{failures} runs of maintenance failed")),
            scrubbed.is_none().then(|| "no scrub ended".to_owned()),
            why_not_collected(collection),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !missing.is_empty() {
            return Err(BenchError::Unfit(format!(
                "after {} s beside the tests: {}; the server's log:\n{}",
                started.elapsed().as_secs(),
                missing.join(", "),
                child::tail(&data.join("log.txt"))
            )));
        }
        self.judge_maintenance(&peer, scrubbed.unwrap_or_default())?;
        self.judge_latencies(cases);
        Ok(())
    }

    /// Rates and latencies of a server that does nothing beside, and the bytes of its folder.
    fn without_maintenance(
        &mut self,
        data: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Vec<Case>, u64), BenchError> {
        let peer = self.server_with(data, "scrub_hours = 0\ncollect_minutes = 0\n")?;
        let names = &self.options.names;
        let is_wanted = |test: &&Test| match names.is_empty() {
            true => DEFAULT_TESTS.contains(&test.name),
            false => names.iter().any(|name| name == test.name || name == "all"),
        };
        let tests: Vec<&'static Test> = TESTS.iter().filter(is_wanted).collect();
        let mut sets: Vec<_> = tests.iter().filter_map(|test| test.set).collect();
        sets.sort_unstable();
        sets.dedup();
        self.seed(&peer, &sets, progress)?;
        let mut cases = Vec::new();
        for test in tests {
            progress(test.name);
            let pace = Pace::Closed { connections: CONNECTIONS };
            let window = self.window(Duration::from_secs(2));
            let rate = self.play_beside(&peer, test, pace, window)?.per_second() / 2.0;
            let mut quiet = Seen::default();
            for _ in 0..QUIET_WINDOWS {
                quiet.add(&self.at_rate(&peer, test, rate)?);
            }
            cases.push(Case { test, rate, quiet, busy: Seen::default() });
        }
        let held = figures(peer.addr)?["disk"]["used_bytes"].as_u64();
        Ok((cases, held.ok_or_else(|| BenchError::Unfit("the server reports no used bytes".to_owned()))?))
    }

    fn blobs(&self) -> u64 {
        if self.options.smoke { SMOKE_BLOBS } else { BLOBS }
    }

    fn server_with(&self, data: &Path, settings: &str) -> Result<Peer, BenchError> {
        Ok(Peer::throng_with(&self.options.program, data, &self.options.durability, settings)?)
    }

    fn window(&self, usual: Duration) -> Duration {
        let smoke = Duration::from_millis(300);
        self.options.duration.unwrap_or(if self.options.smoke { smoke } else { usual })
    }

    fn at_rate(&mut self, peer: &Peer, test: &Test, rate: f64) -> Result<Seen, BenchError> {
        self.play_beside(peer, test, Pace::Open { rate }, self.window(Duration::from_secs(3)))
    }

    /// Plays a test; uploads are of blobs that the server does not have.
    fn play_beside(
        &mut self,
        peer: &Peer,
        test: &Test,
        pace: Pace,
        window: Duration,
    ) -> Result<Seen, BenchError> {
        if test.what != What::PutBlob {
            return self.play(peer, test, pace, window);
        }
        let len = test.set.map_or(0, Set::bytes);
        // Before there is a limit, more of them give a steadier rate.
        let part = if matches!(pace, Pace::Closed { .. }) { UPLOADS_PART / 8 } else { UPLOADS_PART };
        let count = (Set::Small.bytes() * self.blobs() as usize).div_ceil(len * part as usize) as u64;
        let plan = Plan { addr: peer.addr, tls: false, http2: false, pace, window, count };
        self.put_fresh(&plan, peer, len)
    }

    /// Reports what the maintenance did.
    fn judge_maintenance(&mut self, peer: &Peer, (bytes, seconds): (u64, f64)) -> Result<(), BenchError> {
        let rate = bytes as f64 / f64::from(1 << 20) / seconds.max(1e-9);
        let row = Row::new("scrub beside the tests", "MiB/s", Better::Higher, rate);
        self.report.row(row.marks(SCRUB_MIB_PER_S_MIN, SCRUB_MIB_PER_S_MIN));
        let figures = figures(peer.addr)?;
        let evicted = figures["collections"]["refs"].as_u64().unwrap_or(0) as f64;
        self.report.row(Row::new("refs evicted beside the tests", "refs", Better::Higher, evicted));
        self.report.threshold("refs evicted beside the tests > 0", evicted, evicted > 0.0);
        let removed = figures["collections"]["blobs"].as_u64().unwrap_or(0) as f64;
        self.report.row(Row::new("blobs removed beside the tests", "blobs", Better::Higher, removed));
        let failures = figures["upkeep_failures"].as_u64().map_or(f64::MAX, |count| count as f64);
        self.report.row(Row::new("failed maintenance", "runs", Better::Lower, failures));
        self.report.threshold("failed maintenance = 0", failures, failures == 0.0);
        Ok(())
    }

    fn judge_latencies(&mut self, cases: Vec<Case>) {
        for Case { test, rate, quiet, busy } in cases {
            let [without, with] = [&quiet, &busy].map(|seen| seen.latency.quantile_ms(0.99));
            let name = format!("{} at {rate:.0} requests/s, p99", test.name);
            for (when, measured) in [("without maintenance", without), ("with maintenance", with)] {
                self.report.row(Row::new(format!("{name} {when}"), "ms", Better::Lower, measured));
            }
            let ratio =
                Row::new(format!("{} p99 with / without", test.name), "ratio", Better::Lower, with / without);
            self.report.row(ratio.marks(3.0, 1.5));
            let success = quiet.success().min(busy.success());
            self.report.threshold(format!("{} success = 100 %", test.name), success, success >= 1.0);
            self.record(&format!("{}, without maintenance", test.name), &quiet);
            self.record(&format!("{}, with maintenance", test.name), &busy);
        }
    }
}

/// The report of a server about its cache.
fn figures(addr: SocketAddr) -> Result<Value, BenchError> {
    let text = probe::fetch(addr, "/api/v1/cache")?;
    serde_json::from_str(&text).map_err(|error| BenchError::Unfit(error.to_string()))
}

/// Starts a collection.
fn begin_collection(internal: SocketAddr) -> Result<Collection, BenchError> {
    let collect = move || probe::request(internal, "POST", "/api/v1/admin/refCleanup", PATIENCE);
    Ok(std::thread::Builder::new().name("collection".to_owned()).spawn(collect)?)
}

/// Reason why there was no collection after an eviction; `None` if there was one.
fn why_not_collected(collection: Option<Collection>) -> Option<String> {
    let Some(collection) = collection else { return Some("no eviction removed refs".to_owned()) };
    if !collection.is_finished() {
        return Some("the collection did not end".to_owned());
    }
    match collection.join() {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(format!("the collection failed: {error}")),
        Err(_) => Some("the thread of the collection panicked".to_owned()),
    }
}
