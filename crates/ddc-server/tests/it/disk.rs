//! Clients on a disk that decays or is full.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use hyper::{Request, StatusCode};
use throng_ddc::compressed::compress_lz4;
use throng_ddc::{IoHash, Style, Timestamp, Value as Field};
use throng_ddc_server::{Listener, Origin, Rules, Service};
use throng_ddc_store::{Clock, Options, Store};
use throng_platform::{DiskState, Fs as _, SimulatedDisk};

use crate::common::Server;

/// Time that only a test moves.
#[derive(Debug, Default)]
struct TestClock(AtomicU64);

impl TestClock {
    fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_ms(1_700_000_000_000 + self.0.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.advance(time);
    }
}

/// A service over a simulated disk.
struct Node {
    disk: SimulatedDisk,
    clock: Arc<TestClock>,
    service: Arc<Service>,
    runtime: tokio::runtime::Runtime,
    commits: Option<JoinHandle<()>>,
}

impl Node {
    fn open(disk: SimulatedDisk) -> Node {
        let clock = Arc::<TestClock>::default();
        let options = Options {
            segment_bytes_max: 20_000,
            reserve_bytes: 2_000,
            zero_bytes: 500,
            disk_reserve_bytes: 60_000,
            free_bytes_min: 1_000,
            clock: Arc::<TestClock>::clone(&clock),
            ..Options::default()
        };
        let store = Store::open(Arc::new(disk.clone()), options).expect("the store opens");
        let service = Service::new(Arc::clone(&store), Rules::default(), Origin::Alone);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let commits = Some(std::thread::spawn(move || store.run()));
        Node { disk, clock, service, runtime, commits }
    }

    /// Ends the process, and starts another.
    fn restart(self) -> Node {
        let disk = self.disk.clone();
        drop(self);
        Node::open(disk)
    }

    /// Status and body of an answer; `None` if it breaks off.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Option<(StatusCode, Bytes)> {
        self.send(method, path, "application/octet-stream", body)
    }

    fn send(&self, method: &str, path: &str, media: &str, body: &[u8]) -> Option<(StatusCode, Bytes)> {
        let pieces = stream::iter([Ok(Bytes::copy_from_slice(body))]).boxed();
        let request = Request::builder().method(method).uri(path).header("Host", "localhost");
        let request = request.header("Content-Type", media);
        let request = request.header("X-Jupiter-IoHash", IoHash::of(body).to_string());
        let request = request.body(pieces).expect("a request");
        let answer = self.runtime.block_on(self.service.exchange(Listener::Public, request));
        answer.ok().map(|answer| (answer.status(), answer.into_body()))
    }

    fn status(&self, method: &str, path: &str, body: &[u8]) -> u16 {
        self.ask(method, path, body).expect("a whole answer").0.as_u16()
    }

    fn put(&self, bytes: &[u8]) -> String {
        let path = blob(bytes);
        assert_eq!(self.status("PUT", &path, bytes), 200);
        path
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.service.store().shut();
        if let Some(commits) = self.commits.take() {
            commits.join().expect("no panic");
        }
    }
}

fn blob(bytes: &[u8]) -> String {
    format!("/api/v1/blobs/game/{}", IoHash::of(bytes))
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    throng_stdx::Rng::new(len as u64).fill(&mut bytes);
    bytes
}

/// Changes one byte in the middle of some stored content, wherever it lies.
fn decay(disk: &SimulatedDisk, content: &[u8]) {
    let middle = content.len() / 2;
    for folder in ["segments", "large"] {
        for name in disk.list(folder).expect("listed") {
            let file = disk.open(&format!("{folder}/{name}"), false).expect("it exists");
            let mut all = vec![0; file.len().expect("known") as usize];
            file.read_at(&mut all, 0).expect("readable");
            if let Some(at) = all.windows(content.len()).position(|bytes| bytes == content) {
                file.write_at(&[IoSlice::new(&[!content[middle]])], (at + middle) as u64).expect("writable");
                return;
            }
        }
    }
    panic!("{} bytes are stored nowhere", content.len());
}

#[test]
fn damage_is_noticed_at_the_next_read_or_once_the_last_check_is_too_old() {
    // Read into memory each time; hashed in memory; hashed in its own file.
    for (len, is_checked_always) in [(10_000, true), (200_000, false), (3 << 20, false)] {
        let mut node = Node::open(SimulatedDisk::new(DiskState::default()));
        let bytes = noise(len);
        let path = node.put(&bytes);
        let get = |node: &Node| node.ask("GET", &path, b"");
        let found = Some((StatusCode::OK, Bytes::from(bytes.clone())));
        assert!(get(&node) == found, "{len}");
        decay(&node.disk, &bytes);
        // Until then what was checked counts as sound, unless the process is another one.
        if !is_checked_always {
            let whole = get(&node).expect("a whole answer");
            assert_eq!((whole.0, whole.1.len()), (StatusCode::OK, len));
            node.clock.advance(Duration::from_secs(3_600));
        }
        assert_eq!(get(&node).expect("a whole answer").0, StatusCode::NOT_FOUND, "{len}");
        assert_eq!(node.service.stats().damaged, 1, "{len}");
        node.put(&bytes);
        assert!(get(&node) == found, "{len}");
        decay(&node.disk, &bytes);
        node = node.restart();
        assert_eq!(get(&node).expect("a whole answer").0, StatusCode::NOT_FOUND, "{len}");
    }
}

#[test]
fn a_form_that_is_damaged_leaves_the_next_one_to_be_served() {
    let raw = noise(3_000);
    let forms = [12, 13].map(|exponent| Bytes::from(compress_lz4(&raw, exponent)));
    let content = format!("/api/v1/compressed-blobs/game/{}", IoHash::of(&raw));
    let attachment = Field::BinaryAttachment(IoHash::of(&raw));
    let object = Field::object([("payload", attachment)]).encode(Style::Plain);
    let reference = "/api/v1/refs/game/default/00000000000000000000000000000000000000aa";
    let suffixed = |suffix: &str| format!("{reference}.{suffix}");
    let reads = [content.clone(), suffixed("raw"), suffixed("jpi"), suffixed("uecbpkg")];
    for path in reads {
        let node = Node::open(SimulatedDisk::new(DiskState::default()));
        let ok = |method: &str, path: &str, media: &str, body: &[u8]| {
            let (status, body) = node.send(method, path, media, body).expect("a whole answer");
            assert_eq!(status, StatusCode::OK, "{method} {path}: {body:?}");
            body
        };
        for form in &forms {
            ok("PUT", &content, "application/x-ue-comp", form);
        }
        ok("PUT", reference, "application/x-ue-cb", &object);
        let best = ok("GET", &content, "application/x-ue-comp", b"");
        let other = forms.iter().find(|form| **form != best).expect("another one");
        decay(&node.disk, &best);
        let body = ok("GET", &path, "application/x-ue-comp", b"");
        let served = if path.ends_with("raw") { &raw[..] } else { other };
        assert!(body.windows(served.len()).any(|part| part == served), "{path}");
        assert_eq!(node.service.stats().damaged, 1, "{path}");
    }
}

#[test]
fn an_upload_that_is_aborted_leaves_no_file() {
    let node = Node::open(SimulatedDisk::new(DiskState::default()));
    let bytes = Bytes::from(noise(5 << 20));
    let large = || node.disk.list("large").expect("listed").len();
    let left = || {
        node.service.store().commit();
        large()
    };
    let upload = |path: &str, pieces: Vec<io::Result<Bytes>>, ends: bool| {
        let rest = if ends { stream::empty().boxed() } else { stream::pending().boxed() };
        let request = Request::builder().method("PUT").uri(path).header("Host", "localhost");
        let request = request.header("Content-Type", "application/octet-stream");
        let request = request.header("X-Jupiter-IoHash", IoHash::of(b"the whole").to_string());
        let pieces = stream::iter(pieces).chain(rest).boxed();
        Box::pin(node.service.exchange(Listener::Public, request.body(pieces).expect("a request")))
    };
    let raw_ref = "/api/v1/refs/game/default/00000000000000000000000000000000000000aa".to_owned();
    for path in [blob(b"the whole"), raw_ref] {
        // The connection ends, which drops the request.
        let mut dropped = upload(&path, vec![Ok(bytes.clone())], false);
        let polled = node.runtime.block_on(async { futures_util::poll!(&mut dropped) });
        assert!(polled.is_pending() && large() == 1, "{path}: {} files", large());
        drop(dropped);
        assert_eq!(left(), 0, "{path}");
        // The body breaks off, or has another hash.
        let broken = vec![Ok(bytes.clone()), Err(io::ErrorKind::ConnectionReset.into())];
        for pieces in [broken, vec![Ok(bytes.clone())]] {
            let answer = node.runtime.block_on(upload(&path, pieces, true)).expect("a whole answer");
            assert_eq!((answer.status(), left()), (StatusCode::BAD_REQUEST, 0), "{path}");
        }
    }
}

/// Everything that comes back for a GET on a connection of its own.
fn get(addr: std::net::SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a limit");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn the_first_download_of_a_damaged_blob_above_64_mib_never_completes() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let start = |folder| {
        let options = Options::default();
        runtime.block_on(Server::start_in(folder, options, Rules::default(), Listener::Public, Origin::Alone))
    };
    let server = start(tempfile::tempdir().expect("a temporary folder"));
    let bytes = noise((64 << 20) + 1);
    let path = blob(&bytes);
    let media = ["Content-Type: application/octet-stream"];
    let put =
        runtime.block_on(async { server.client().await.send("PUT", &path, &media, bytes.clone()).await });
    assert_eq!(put.status, StatusCode::OK);
    let folder = server.stop();
    let large = std::fs::read_dir(folder.path().join("large")).expect("listed").next().expect("one file");
    let large = large.expect("readable").path();
    let mut stored = std::fs::read(&large).expect("readable");
    stored[5] ^= 1;
    std::fs::write(&large, stored).expect("writable");
    let server = start(folder);
    let answer = get(server.addr, &path);
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "it begins before everything is hashed");
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
    let came = answer.len() - head;
    assert!(came < bytes.len(), "the end is held back: {came} bytes came");
    // It is a miss as soon as that is committed.
    let is_miss = || get(server.addr, &path).starts_with(b"HTTP/1.1 404 ");
    assert!((0..100).any(|_| is_miss()), "it is served again");
}

#[test]
fn a_full_disk_serves_and_deletes_and_says_so() {
    const DISK_BYTES: u64 = 64 << 20;
    let disk = SimulatedDisk::new(DiskState::default());
    disk.set_capacity(Some(DISK_BYTES));
    let node = Node::open(disk);
    let old: Vec<String> = (0..40).map(|n| node.put(&noise(5_000 + n))).collect();
    // An upload whose ref may be on its way.
    node.clock.advance(Duration::from_secs(10 * 60));
    let young = node.put(&noise(1_500));
    let free = node.disk.free_bytes().expect("known").expect("it has an end");
    node.disk.set_capacity(Some(DISK_BYTES - free + 500));
    node.service.store().look_at_disk();

    let refused = node.ask("PUT", &blob(&noise(3_000)), &noise(3_000)).expect("an answer");
    assert_eq!(refused.0, StatusCode::INSUFFICIENT_STORAGE);
    let why = String::from_utf8_lossy(&refused.1).into_owned();
    assert!(why.contains("make space") && why.contains("uploads resume"), "{why}");
    assert_eq!(node.ask("GET", &old[0], b"").expect("an answer").1, noise(5_000));
    assert_eq!(node.status("DELETE", &old[1], b""), 204);
    // An editor that sees another answer disables the cache until it is started again.
    assert_eq!(
        (node.status("GET", "/health/ready", b""), node.status("GET", "/health/live", b"")),
        (200, 200)
    );
    assert_eq!(node.status("GET", "/health/readiness", b""), 503);
    assert!(node.service.stats().space.is_full);
    assert_eq!(node.service.report()["disk"]["full"], true);
    assert!(node.service.detail().starts_with("the disk is full"), "{}", node.service.detail());

    // The hour that blobs without refs have otherwise is five minutes now.
    let collected = node.service.collect().expect("a full disk is collected");
    assert_eq!(collected.blobs, 39);
    assert_eq!(node.status("GET", &young, b""), 200);
    node.service.store().look_at_disk();
    node.put(&noise(3_000));
    assert_eq!(node.status("GET", "/health/readiness", b""), 200);
    assert_eq!(node.service.detail(), "serving");
}

#[test]
fn a_folder_may_fill_nine_tenths_of_the_disk_unless_the_settings_say_otherwise() {
    let disk = SimulatedDisk::new(DiskState::default());
    disk.set_capacity(Some(64 << 20));
    let node = Node::open(disk);
    node.put(&noise(100_000));
    let report = node.service.report();
    let bytes = |name: &str| report["disk"][name].as_u64().expect("a number");
    assert_eq!(bytes("bytes_max"), (bytes("used_bytes") + bytes("free_bytes")) / 100 * 90);
    assert_eq!(report["eviction"]["begins_at_bytes"], bytes("bytes_max") / 100 * 95);
}

#[test]
fn a_disk_that_another_program_fills_for_minutes_costs_no_refs() {
    let disk = SimulatedDisk::new(DiskState::default());
    disk.set_capacity(Some(64 << 20));
    let node = Node::open(disk);
    let paths: Vec<String> = (0..40).map(|index| node.put(&noise(100_000 + index))).collect();
    let bytes = |name: &str| node.service.report()["disk"][name].as_u64().expect("a number");
    let evict = || node.service.evict(bytes("bytes_max")).expect("the disk works").blobs;
    let bytes_max = bytes("bytes_max");
    let mut shrunk_after = 0;
    node.disk.set_capacity(Some((64 << 20) - bytes("free_bytes") + 100_000));
    while bytes("bytes_max") == bytes_max {
        assert_eq!(evict(), 0);
        (shrunk_after, _) = (shrunk_after + 1, node.clock.advance(Duration::from_secs(1)));
        assert!(shrunk_after <= 600, "the folder shrinks in the end");
    }
    assert!(shrunk_after >= 300, "{shrunk_after} s");
    assert!(evict() > 0);
    assert!(paths.iter().any(|path| node.status("HEAD", path, b"") == 404));
    node.disk.set_capacity(Some(64 << 20));
    let all = bytes("used_bytes") + bytes("free_bytes");
    assert_eq!(bytes("bytes_max"), all / 100 * 90, "it grows at once");
}

#[test]
fn damage_of_the_log_is_counted_and_named_in_the_detail() {
    let node = Node::open(SimulatedDisk::new(DiskState::default()));
    let (first, second) = (noise(40_000), noise(40_001));
    let paths = [node.put(&first), node.put(&second)];
    let disk = node.disk.clone();
    drop(node);
    decay(&disk, &first);
    // Without an index, all of the log is read.
    for name in disk.list("index").expect("listed") {
        disk.remove(&format!("index/{name}")).expect("the disk works");
    }
    let node = Node::open(disk);
    assert_eq!(node.status("GET", &paths[0], b""), 404);
    assert_eq!(node.status("GET", &paths[1], b""), 200);
    assert_eq!(node.status("GET", "/health/ready", b""), 200);
    assert!(node.service.report()["damaged"].as_u64() >= Some(1), "{}", node.service.report());
    let detail = node.service.detail();
    assert!(detail.contains("damage") && detail.contains("uploaded again"), "{detail}");
}
