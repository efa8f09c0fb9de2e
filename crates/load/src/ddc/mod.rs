//! `throng bench ddc`: the published tests of the derived-data cache, and what a request costs
//! beside nginx.
//!
//! The ten published tests and three beside them send at fixed rates, far below what a server can
//! do, and are judged by the published latencies; latency counts from when a request was due (open
//! loop, no coordinated omission). Around them:
//!
//! - `saturation`: 32 connections that send as soon as they are answered, and the CPU time of the
//!   server for each request, beside nginx with the same files under the same load if it is
//!   installed. nginx neither hashes nor waits for the disk: it is the practical limit of serving
//!   files. So is an S3 server of the same kind as ours (`s3s-fs`), which does both less or more;
//!   and what the disk takes to make the same bytes durable, with nobody between.
//! - `memory`: 32 large uploads at a time.
//! - `start`: how long a folder of many blobs and refs takes to open, after a clean end and after a
//!   kill.
//!
//! `--maintenance` plays published tests at half of the rate that they reach, beside scrub,
//! collection and eviction of a folder of 200,000 blobs, and without them. Its uploads are of blobs
//! that the server does not have.
//!
//! `start` and `memory` also measure a folder with made-up entries, 30 million by default: the time
//! to open it, memory and open segments while they are looked up, and the memory of a collection.

mod data;
mod engine;
mod http2;
mod maintenance;
mod peer;
mod saturation;
mod wire;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use throng_ddc::IoHash;

use crate::child::{Folder, Owned};
use crate::probe::Probe;
use crate::report::{Better, Report, Row};
use crate::suites::BenchError;
use data::{Item, Set};
use engine::{Outgoing, Pace, Plan, Seen};
use peer::Peer;

/// Requests of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Health(&'static str),
    GetBlob,
    PutBlob,
    GetRef(&'static str),
    PutRaw,
    PutObject,
}

/// One published test.
#[derive(Debug)]
struct Test {
    name: &'static str,
    what: What,
    set: Option<Set>,
    rate: f64,
    seconds: u64,
    /// Published p50 and p95 in milliseconds.
    published: Option<[f64; 2]>,
    /// Figures of an object store at the same rate on 2 cores.
    aim: Option<[f64; 2]>,
}

#[rustfmt::skip]
const TESTS: &[Test] = &[
    Test { name: "healthcheck_ready", what: What::Health("ready"), set: None, rate: 50.0, seconds: 15, published: Some([1.3, 1.8]), aim: None },
    Test { name: "healthcheck_live", what: What::Health("live"), set: None, rate: 50.0, seconds: 15, published: None, aim: None },
    Test { name: "small_blob_uploads", what: What::PutBlob, set: Some(Set::Small), rate: 100.0, seconds: 60, published: Some([6.6, 13.0]), aim: Some([1.4, 1.9]) },
    Test { name: "small_blob_downloads", what: What::GetBlob, set: Some(Set::Small), rate: 100.0, seconds: 60, published: Some([2.1, 3.0]), aim: Some([0.8, 1.1]) },
    Test { name: "large_blob_uploads", what: What::PutBlob, set: Some(Set::Large), rate: 10.0, seconds: 60, published: Some([470.0, 880.0]), aim: Some([47.0, 52.0]) },
    Test { name: "large_blob_downloads", what: What::GetBlob, set: Some(Set::Large), rate: 10.0, seconds: 60, published: Some([34.4, 38.8]), aim: Some([14.0, 18.0]) },
    Test { name: "refs_raw_upload", what: What::PutRaw, set: Some(Set::RawRefs), rate: 50.0, seconds: 15, published: None, aim: None },
    Test { name: "refs_raw_download", what: What::GetRef("raw"), set: Some(Set::RawRefs), rate: 50.0, seconds: 15, published: Some([5.7, 7.0]), aim: Some([2.0, 2.6]) },
    Test { name: "uecb_upload", what: What::PutObject, set: Some(Set::Binary), rate: 50.0, seconds: 15, published: None, aim: None },
    Test { name: "uecb_download", what: What::GetRef("uecb"), set: Some(Set::Binary), rate: 50.0, seconds: 15, published: Some([1.5, 2.0]), aim: None },
    Test { name: "uecb_pkg_download", what: What::GetRef("uecbpkg"), set: Some(Set::Binary), rate: 50.0, seconds: 15, published: Some([4.9, 5.6]), aim: None },
    Test { name: "game_upload", what: What::PutObject, set: Some(Set::Game), rate: 50.0, seconds: 120, published: Some([42.2, 88.0]), aim: None },
    Test { name: "game_download", what: What::GetRef("uecbpkg"), set: Some(Set::Game), rate: 50.0, seconds: 120, published: Some([3.4, 129.0]), aim: None },
];

/// Groups besides the published tests.
const GROUPS: &[(&str, &str)] = &[
    (
        "saturation",
        "32 connections without pause: rate and CPU per request, also over HTTP/2 and TLS, beside nginx and s3s-fs if they are installed; the disk alone",
    ),
    ("memory", "32 uploads of 1 GiB at a time: resident memory, time"),
    (
        "start",
        "a million blobs and refs: time to open after a clean end and after kill -9, disk writes per byte",
    ),
];

/// Options of the bench.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The `throng` program, to start servers with.
    pub program: PathBuf,
    /// Tests and groups by name; `all` for the thirteen tests.
    pub names: Vec<String>,
    /// `http://HOST:PORT` or `https://HOST:PORT` of a running server; without it one is started.
    pub url: Option<String>,
    /// Process id of that server, when it runs here: for CPU and memory.
    pub pid: Option<u32>,
    /// Namespace to work in.
    pub namespace: String,
    /// Further headers, `Name: value`.
    pub headers: Vec<String>,
    /// Only put the data that the tests need.
    pub seed_only: bool,
    /// Put no data: they are there from an earlier run.
    pub no_seed: bool,
    /// Length of each window instead of the published one.
    pub duration: Option<Duration>,
    /// Tenth of the data, a second each: shows that everything works, judges nothing.
    pub smoke: bool,
    /// Durability of the started server: `sync` or `cache`.
    pub durability: String,
    /// Parent folder of the started server's data; a folder below it is made and removed.
    pub data: Option<PathBuf>,
    /// Leave nginx and the S3 server out of it.
    pub without_peers: bool,
    /// Play the tests beside scrub, collection and eviction, and without them.
    pub maintenance: bool,
    /// Made-up entries of the large folder that `start` and `memory` measure; 0 for none.
    pub entries: u64,
    /// Write target lists for other load tools into this folder, and do nothing else.
    pub targets: Option<PathBuf>,
}

/// The names of all tests and groups, with a line about each.
#[must_use]
pub fn list() -> Vec<(&'static str, String)> {
    let tests = TESTS.iter().map(|test| {
        let published = test.published.map_or_else(
            || "no published figures".to_owned(),
            |[p50, p95]| format!("published p50 {p50} ms, p95 {p95} ms"),
        );
        (test.name, format!("{} requests/s for {} s; {published}", test.rate, test.seconds))
    });
    tests.chain(GROUPS.iter().map(|(name, about)| (*name, (*about).to_owned()))).collect()
}

/// Runs the tests that the options select.
///
/// # Errors
/// If a name is unknown, or a server does not start or does not accept the data.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report, BenchError> {
    let mut bench = Bench::new(options)?;
    if let Some(folder) = &options.targets {
        bench.write_targets(folder)?;
        return Ok(bench.report);
    }
    if options.maintenance {
        bench.maintenance(progress)?;
        return Ok(bench.report);
    }
    let tests: Vec<&Test> = TESTS.iter().filter(|test| bench.is_wanted(test.name)).collect();
    let saturation = bench.is_named("saturation");
    if !tests.is_empty() || saturation {
        let peer = bench.server()?;
        let mut sets: Vec<Set> = tests.iter().filter_map(|test| test.set).collect();
        if saturation {
            sets.extend([Set::Small, Set::Large, Set::RawRefs, Set::Binary]);
        }
        sets.sort_unstable();
        sets.dedup();
        bench.seed(&peer, &sets, progress)?;
        if !options.seed_only {
            for test in tests {
                progress(test.name);
                bench.published(&peer, test)?;
            }
            if saturation {
                bench.saturation(&peer, progress)?;
            }
            bench.resident("resident memory when all is done", &peer, [200.0, 100.0]);
        }
    }
    if bench.is_named("memory") && !options.seed_only {
        progress("memory");
        bench.memory()?;
    }
    if bench.is_named("start") && !options.seed_only {
        progress("start");
        bench.start()?;
    }
    let is_large = bench.is_named("memory") || bench.is_named("start");
    if is_large && options.entries > 0 && options.url.is_none() {
        bench.large_folder(progress)?;
    }
    Ok(bench.report)
}

struct Bench<'o> {
    options: &'o Options,
    report: Report,
    items: BTreeMap<Set, Arc<Vec<Item>>>,
    /// Below which everything that is written lies; removed at the end.
    folder: Folder,
    /// Makes bodies that no server has seen.
    fresh: u64,
}

impl<'o> Bench<'o> {
    fn new(options: &'o Options) -> Result<Self, BenchError> {
        let known = list();
        for name in options.names.iter().filter(|name| *name != "all") {
            if !known.iter().any(|(known, _)| known == name) {
                let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                return Err(BenchError::Unfit(format!(
                    "bench ddc has no test `{name}`; tests: all, {}",
                    names.join(", ")
                )));
            }
        }
        if options.namespace.parse::<throng_ddc::Namespace>().is_err() {
            return Err(BenchError::Unfit(format!("`{}` is not a namespace", options.namespace)));
        }
        let mut report = Report::new("ddc");
        report.canonical = !options.smoke;
        report.unjudged = options.smoke;
        report.setting("durability", options.durability.as_str());
        report.setting("namespace", options.namespace.as_str());
        report.setting("url", options.url.as_deref().unwrap_or("its own server"));
        if options.url.is_none() {
            report.note(format!(
                "durability = \"{}\": {}",
                options.durability,
                match options.durability.as_str() {
                    "cache" => "an upload is acknowledged when the operating system has it",
                    _ => "an upload is acknowledged when it is on disk (group commit)",
                }
            ));
        }
        let folder = match &options.data {
            Some(data) => Folder::below(data),
            None => Folder::new(),
        };
        let folder = folder.map_err(|error| BenchError::Unfit(error.to_string()))?;
        // A server that runs already may have the bodies of an earlier run.
        let fresh = if options.url.is_some() { u64::from(std::process::id()) << 40 } else { 0 };
        Ok(Self { options, report, items: BTreeMap::new(), folder, fresh })
    }

    fn is_named(&self, name: &str) -> bool {
        self.options.names.iter().any(|given| given == name)
    }

    fn is_wanted(&self, test: &str) -> bool {
        self.options.names.is_empty() || self.is_named("all") || self.is_named(test)
    }

    fn server(&self) -> Result<Peer, BenchError> {
        match &self.options.url {
            Some(url) => Ok(Peer::running(url, self.options.pid)?),
            None => {
                let data = self.folder.path("throng");
                Ok(Peer::throng(&self.options.program, &data, &self.options.durability)?)
            }
        }
    }

    fn count(&self, set: Set) -> usize {
        if self.options.smoke { (set.len() / 10).clamp(2, 30) } else { set.len() }
    }

    fn items(&mut self, set: Set) -> Arc<Vec<Item>> {
        let count = self.count(set);
        let items = self
            .items
            .entry(set)
            .or_insert_with(|| Arc::new((0..count).map(|index| Item::new(set, index)).collect()));
        Arc::clone(items)
    }

    // --- Requests

    /// The head of a request; a body of `length` bytes follows if it is given.
    fn head(&self, method: &str, path: &str, more: &str, length: Option<usize>) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}");
        for header in &self.options.headers {
            // Writing to a String cannot fail.
            let _ = write!(head, "{}\r\n", header.trim());
        }
        if let Some(length) = length {
            let _ = write!(head, "Content-Length: {length}\r\n");
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    fn blob_path(&self, hash: &IoHash) -> String {
        format!("/api/v1/blobs/{}/{hash}", self.options.namespace)
    }

    fn ref_path(&self, key: &IoHash, suffix: &str) -> String {
        format!("/api/v1/refs/{}/default/{key}{suffix}", self.options.namespace)
    }

    fn put_blob(&self, hash: &IoHash, length: usize) -> Vec<u8> {
        self.head("PUT", &self.blob_path(hash), OCTETS, Some(length))
    }

    fn put_raw(&self, item: &Item) -> Vec<u8> {
        let more = format!("{OCTETS}X-Jupiter-IoHash: {}\r\n", item.hash);
        self.head("PUT", &self.ref_path(&item.key(), ""), &more, Some(item.len))
    }

    /// The whole request: the object is part of the head's bytes.
    fn put_object(&self, key: &IoHash, attachment: &IoHash) -> Vec<u8> {
        let object = data::object(attachment);
        let more =
            format!("Content-Type: application/x-ue-cb\r\nX-Jupiter-IoHash: {}\r\n", IoHash::of(&object));
        let mut head = self.head("PUT", &self.ref_path(key, ""), &more, Some(object.len()));
        head.extend_from_slice(&object);
        head
    }

    /// Heads of a test's requests, and bodies to go with them.
    fn targets(&mut self, what: What, set: Option<Set>) -> Vec<(Vec<u8>, Option<Item>)> {
        let items = set.map(|set| self.items(set)).unwrap_or_default();
        match what {
            What::Health(name) => vec![(self.head("GET", &format!("/health/{name}"), "", None), None)],
            What::GetBlob => items
                .iter()
                .map(|item| (self.head("GET", &self.blob_path(&item.hash), "", None), None))
                .collect(),
            What::PutBlob => {
                items.iter().map(|item| (self.put_blob(&item.hash, item.len), Some(item.clone()))).collect()
            }
            What::GetRef(suffix) => items
                .iter()
                .map(|item| {
                    let path = self.ref_path(&item.key(), &format!(".{suffix}"));
                    (self.head("GET", &path, "", None), None)
                })
                .collect(),
            What::PutRaw => items.iter().map(|item| (self.put_raw(item), Some(item.clone()))).collect(),
            What::PutObject => {
                items.iter().map(|item| (self.put_object(&item.key(), &item.hash), None)).collect()
            }
        }
    }

    // --- Data

    fn seed(&mut self, peer: &Peer, sets: &[Set], progress: &mut dyn FnMut(&str)) -> Result<(), BenchError> {
        for set in sets {
            progress("making the data");
            let items = self.items(*set);
            if self.options.no_seed {
                continue;
            }
            progress("putting the data");
            let heads: Vec<Vec<u8>> = items
                .iter()
                .map(|item| match set {
                    Set::RawRefs => self.put_raw(item),
                    _ => self.put_blob(&item.hash, item.len),
                })
                .collect();
            self.put_all(peer, items.len(), &mut |number, out| {
                out.set_head(&heads[number]);
                out.set_body(items[number].bytes().into());
            })?;
            if matches!(set, Set::Binary | Set::Game) {
                let heads: Vec<Vec<u8>> =
                    items.iter().map(|item| self.put_object(&item.key(), &item.hash)).collect();
                self.put_all(peer, items.len(), &mut |number, out| out.set_head(&heads[number]))?;
            }
        }
        Ok(())
    }

    fn put_all(
        &self,
        peer: &Peer,
        count: usize,
        fill: &mut dyn FnMut(usize, &mut Outgoing),
    ) -> Result<(), BenchError> {
        let seen = engine::run(
            &Plan {
                addr: peer.addr,
                tls: peer.tls,
                http2: false,
                pace: Pace::Closed { connections: 4 },
                window: Duration::from_secs(3600),
                count: count as u64,
            },
            &peer.probe,
            &mut |number, out| fill(usize::try_from(number).unwrap_or(usize::MAX), out),
        )?;
        if seen.succeeded == count as u64 {
            return Ok(());
        }
        let why = seen.failed.keys().next().map_or_else(
            || "interrupted".to_owned(),
            |status| if *status == 0 { "a connection broke".to_owned() } else { format!("status {status}") },
        );
        Err(BenchError::Unfit(format!("{} did not accept the data: {why}", peer.addr)))
    }

    // --- The published tests

    fn published(&mut self, peer: &Peer, test: &Test) -> Result<(), BenchError> {
        let seen = self.open_loop(peer, test)?;
        let (p50, p95) = (seen.latency.quantile_ms(0.5), seen.latency.quantile_ms(0.95));
        for (mark, measured, index) in [("p50", p50, 0), ("p95", p95, 1)] {
            let mut row = Row::new(format!("{} {mark}", test.name), "ms", Better::Lower, measured);
            if let Some(published) = test.published {
                let aim = test.aim.unwrap_or(published)[index];
                row = row.published(published[index], SOURCE).marks(published[index], aim);
            }
            self.report.row(row);
        }
        self.report.threshold(
            format!("{} success = 100 %", test.name),
            seen.success(),
            seen.success() >= 1.0,
        );
        if let Some(cpu) = seen.cpu_ms() {
            let what = format!("{} server CPU per request", test.name);
            self.report.row(Row::new(what, "ms", Better::Lower, cpu));
        }
        let late = seen.lateness.quantile_ms(0.99);
        if late > 1.0 {
            self.report.note(format!("{}: requests were sent up to {late:.1} ms late (p99)", test.name));
        }
        self.record(test.name, &seen);
        Ok(())
    }

    fn open_loop(&mut self, peer: &Peer, test: &Test) -> Result<Seen, BenchError> {
        let published = Duration::from_secs(if self.options.smoke { 1 } else { test.seconds });
        let window = self.options.duration.unwrap_or(published);
        self.play(peer, test, Pace::Open { rate: test.rate }, window)
    }

    /// Plays the requests of a test.
    fn play(&mut self, peer: &Peer, test: &Test, pace: Pace, window: Duration) -> Result<Seen, BenchError> {
        let targets = self.targets(test.what, test.set);
        // Only as many bodies as the window sends are worth their memory.
        let needed = match pace {
            Pace::Open { rate } => (rate * window.as_secs_f64()).ceil() as usize,
            Pace::Closed { .. } => usize::MAX,
        };
        let bodies: Vec<Option<Arc<[u8]>>> = targets
            .iter()
            .take(needed)
            .map(|(_, item)| item.as_ref().map(|item| item.bytes().into()))
            .collect();
        let plan = Plan { addr: peer.addr, tls: peer.tls, http2: false, pace, window, count: u64::MAX };
        let seen = engine::run(&plan, &peer.probe, &mut |number, out| {
            let index = usize::try_from(number).unwrap_or(usize::MAX) % targets.len();
            out.set_head(&targets[index].0);
            if let Some(body) = bodies.get(index).and_then(Option::as_ref) {
                out.set_body(Arc::clone(body));
            }
        })?;
        Ok(seen)
    }

    /// Uploads blobs of `len` bytes that the server does not have.
    fn put_fresh(&mut self, plan: &Plan, peer: &Peer, len: usize) -> Result<Seen, BenchError> {
        let first = self.fresh;
        self.fresh += 1 << 30;
        // A stamp makes each body another one.
        let rest: Arc<[u8]> = vec![0xA5; len - STAMP_BYTES].into();
        let mut content = vec![0xA5; len];
        Ok(engine::run(plan, &peer.probe, &mut |number, out| {
            content[..STAMP_BYTES].copy_from_slice(&(first + number).to_le_bytes());
            let head = self.put_blob(&IoHash::of(&content), len);
            out.set_head(&head);
            out.head.extend_from_slice(&content[..STAMP_BYTES]);
            out.set_body(Arc::clone(&rest));
        })?)
    }

    fn record(&mut self, name: &str, seen: &Seen) {
        let mib = f64::from(1 << 20);
        let times = seen.latency.summary();
        let figures = json!({
            "requests": seen.count(),
            "success": seen.success(),
            "failed": seen.failed.iter().map(|(status, count)| (status.to_string(), *count)).collect::<BTreeMap<_, _>>(),
            "rate_per_s": seen.per_second(),
            "latency": times,
            "p95_ms": seen.latency.quantile_ms(0.95),
            "lateness": seen.lateness.summary(),
            "mib_in_per_s": seen.bytes_in as f64 / mib / seen.took.as_secs_f64(),
            "mib_out_per_s": seen.bytes_out as f64 / mib / seen.took.as_secs_f64(),
            "bytes_in": seen.bytes_in,
            "bytes_out": seen.bytes_out,
            "server_cpu_ms_per_request": seen.cpu_ms(),
            "generator_cpu_s": seen.own_cpu.as_secs_f64(),
            "disk_bytes": seen.disk_bytes,
            "window_s": seen.took.as_secs_f64(),
        });
        self.report.raw(name, figures);
    }

    fn resident(&mut self, what: &str, peer: &Peer, [floor, aim]: [f64; 2]) {
        if let Some(memory) = peer.probe.memory() {
            let mib = memory.resident_bytes as f64 / f64::from(1 << 20);
            self.report.row(Row::new(what, "MiB", Better::Lower, mib).marks(floor, aim));
        }
    }

    // --- Memory and starts

    fn memory(&mut self) -> Result<(), BenchError> {
        let peer = self.server()?;
        let piece: Arc<[u8]> = vec![0x5A; 16 << 20].into();
        let repeat = if self.options.smoke { 2 } else { 64 };
        let before = peer.probe.memory().unwrap_or_default();
        let first = self.fresh;
        self.fresh += 1 << 30;
        // All names first: hashing 32 GiB takes seconds in which the server would only wait.
        let heads: Vec<Vec<u8>> = (0..CONNECTIONS as u64)
            .map(|number| {
                let stamp = (first + number).to_le_bytes();
                let mut hasher = throng_ddc::Hasher::new();
                hasher.update(&stamp);
                (0..repeat).for_each(|_| hasher.update(&piece));
                let mut head = self.put_blob(&hasher.finish(), STAMP_BYTES + repeat * piece.len());
                head.extend_from_slice(&stamp);
                head
            })
            .collect();
        let plan = Plan {
            addr: peer.addr,
            tls: peer.tls,
            http2: false,
            pace: Pace::Closed { connections: CONNECTIONS },
            window: Duration::from_secs(3600),
            count: CONNECTIONS as u64,
        };
        let seen = engine::run(&plan, &peer.probe, &mut |number, out| {
            out.set_head(&heads[usize::try_from(number).unwrap_or(usize::MAX)]);
            (out.body, out.repeat) = (Some(Arc::clone(&piece)), repeat);
        })?;
        let mib = f64::from(1 << 20);
        let size = (repeat * piece.len()) as f64 / mib;
        self.report.threshold("large uploads success = 100 %", seen.success(), seen.success() >= 1.0);
        if let Some(after) = peer.probe.memory() {
            let grown = after.peak_bytes.saturating_sub(before.resident_bytes) as f64 / mib;
            let what = format!("memory for {CONNECTIONS} uploads of {size:.0} MiB at a time");
            self.report.row(Row::new(what, "MiB", Better::Lower, grown).marks(64.0, 32.0));
        }
        self.record("memory", &seen);
        Ok(())
    }

    fn start(&mut self) -> Result<(), BenchError> {
        if self.options.url.is_some() {
            return Err(BenchError::Unfit("`start` needs its own server; leave --url away".to_owned()));
        }
        let peer = self.server()?;
        let half: u64 = if self.options.smoke { 5_000 } else { 500_000 };
        let first = self.fresh;
        self.fresh += 1 << 30;
        // As many refs as blobs: each ref's attachment is the blob before it.
        let plan = Plan {
            addr: peer.addr,
            tls: peer.tls,
            http2: false,
            pace: Pace::Closed { connections: 64 },
            window: Duration::from_secs(3600),
            count: half,
        };
        let blob = |number: u64| IoHash::of(&(first + number).to_le_bytes());
        let blobs = engine::run(&plan, &peer.probe, &mut |number, out| {
            out.set_head(&self.put_blob(&blob(number), STAMP_BYTES));
            out.head.extend_from_slice(&(first + number).to_le_bytes());
        })?;
        let refs = engine::run(&plan, &peer.probe, &mut |number, out| {
            let name = blob(number);
            out.set_head(&self.put_object(&IoHash::of(name.as_bytes()), &name));
        })?;
        let stored = blobs.succeeded + refs.succeeded;
        self.report.threshold("entries stored", stored as f64, stored == 2 * half);
        peer.kill();
        let killed = self.server()?;
        let entries = 2 * half;
        let row = |what: &str, start: Duration| {
            Row::new(
                format!("start with {entries} blobs and refs, {what}"),
                "s",
                Better::Lower,
                start.as_secs_f64(),
            )
        };
        self.report.row(row("after kill -9", killed.start).marks(4.0, 1.0));
        drop(killed);
        let clean = self.server()?;
        self.report.row(row("after a clean end", clean.start).marks(2.0, 0.3));
        self.record("start, blobs", &blobs);
        self.record("start, refs", &refs);
        Ok(())
    }

    /// A folder that the program filled itself: HTTP would take hours.
    fn large_folder(&mut self, progress: &mut dyn FnMut(&str)) -> Result<(), BenchError> {
        let entries = if self.options.smoke { 30_000 } else { self.options.entries };
        let what = format!("{entries} made-up entries");
        let data = self.folder.path("large");
        progress(&format!("making {what}"));
        self.run_tool(&data, &["fill", &entries.to_string()])?;
        progress("starting a server with them");
        let peer = Peer::throng(&self.options.program, &data, &self.options.durability)?;
        let start = Row::new(format!("start with {what}"), "s", Better::Lower, peer.start.as_secs_f64());
        self.report.row(start.marks(10.0, 2.0));
        progress("looking them up");
        // A prime step reaches every part of the store.
        let number = |request: u64| request.wrapping_mul(7_368_787) % entries / 3 * 3;
        let plan = Plan {
            addr: peer.addr,
            tls: peer.tls,
            http2: false,
            pace: Pace::Closed { connections: CONNECTIONS },
            window: Duration::from_secs(60),
            count: entries.min(200_000),
        };
        let seen = engine::run(&plan, &peer.probe, &mut |request, out| {
            let blob = IoHash::of(&number(request).to_le_bytes());
            out.set_head(&self.head("GET", &self.blob_path(&blob), "", None));
        })?;
        self.report.threshold("made-up entries found = 100 %", seen.success(), seen.success() >= 1.0);
        self.record("made-up entries", &seen);
        self.resident(&format!("resident memory with {what}"), &peer, [512.0, 256.0]);
        let open = peer.open_files("/segments/") as f64;
        self.report.threshold("open segments at most 1,024", open, open <= 1024.0);
        drop(peer);
        progress("collecting what no ref reaches of them");
        let peak = self.run_tool(&data, &["gc"])? as f64 / f64::from(1 << 20);
        let row = Row::new(format!("memory of a collection of {what}"), "MiB", Better::Lower, peak);
        self.report.row(row.marks(768.0, 384.0));
        Ok(())
    }

    /// Runs `throng ddc` on a folder and gives its largest resident memory in bytes.
    fn run_tool(&self, data: &Path, words: &[&str]) -> Result<u64, BenchError> {
        let mut command = Command::new(&self.options.program);
        command.args(["ddc", "--data"]).arg(data).args(words).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = Owned::spawn(&mut command)?;
        let probe = Probe::new(Some(child.id()), None)?;
        let mut peak = 0;
        loop {
            peak = peak.max(probe.memory().map_or(0, |memory| memory.peak_bytes));
            match child.try_wait()? {
                None => std::thread::sleep(Duration::from_millis(5)),
                Some(status) if status.success() => return Ok(peak),
                Some(status) => {
                    return Err(BenchError::Unfit(format!("`throng ddc {}`: {status}", words.join(" "))));
                }
            }
        }
    }

    // --- Targets of other load tools

    /// Writes a list for each test, one request a line group: `METHOD URL`, headers, `@FILE` with
    /// the body.
    fn write_targets(&mut self, folder: &Path) -> Result<(), BenchError> {
        let url = self.options.url.clone().unwrap_or_else(|| "http://127.0.0.1:8558".to_owned());
        std::fs::create_dir_all(folder.join("bodies"))?;
        for test in TESTS.iter().filter(|test| self.is_wanted(test.name)).collect::<Vec<_>>() {
            let mut text = String::new();
            for (head, item) in self.targets(test.what, test.set) {
                let end = head.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(head.len());
                let lines = String::from_utf8_lossy(&head[..end]).into_owned();
                let mut lines = lines.split("\r\n");
                let (method, path) = lines
                    .next()
                    .and_then(|line| line.rsplit_once(' ')?.0.split_once(' '))
                    .unwrap_or_default();
                let _ = writeln!(text, "{method} {url}{path}");
                let own = |line: &&str| !line.starts_with("Host:") && !line.starts_with("Content-Length:");
                for line in lines.filter(own) {
                    let _ = writeln!(text, "{line}");
                }
                let inline = head.get(end + 4..).unwrap_or_default();
                let body = match &item {
                    Some(item) => Some((item.hash, item.bytes())),
                    None if inline.is_empty() => None,
                    None => Some((IoHash::of(inline), inline.to_vec())),
                };
                if let Some((hash, bytes)) = body {
                    let file = folder.join("bodies").join(hash.to_string());
                    let _ = writeln!(text, "@{}", file.display());
                    std::fs::write(file, bytes)?;
                }
                text.push('\n');
            }
            std::fs::write(folder.join(format!("{}.txt", test.name)), text)?;
        }
        Ok(())
    }
}

/// Connections of a closed loop.
const CONNECTIONS: usize = 32;
/// Bytes that make a body one that no server has seen.
const STAMP_BYTES: usize = 8;
const OCTETS: &str = "Content-Type: application/octet-stream\r\n";
const SOURCE: &str = "published, 64-core load machine";
