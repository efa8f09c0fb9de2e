//! `throng up --only ddc` from outside: the lines to paste, and what a process leaves behind when
//! it is killed.

use crate::process;
#[cfg(feature = "object-storage")]
use crate::s3;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
#[cfg(feature = "object-storage")]
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use process::{Process, up};

/// Hash of the word `test`, and the ref that the ready text writes.
const HASH: &str = "4878CA0425C739FA427F7EDA20FE845F6B2E46BA";
/// Far beyond what any step needs; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// Times that the process is killed while it takes uploads.
const KILLS: usize = 12;
/// The same, of nodes on one bucket.
const TIER_KILLS: usize = 8;

struct Cache {
    process: Process,
    addr: String,
    block: String,
}

impl Cache {
    fn start(folder: &Path) -> Cache {
        Cache::start_with(folder, &[])
    }

    /// With further settings, by the names of their variables.
    fn start_with(folder: &Path, settings: &[(&str, String)]) -> Cache {
        let mut command = up(folder, "ddc", "d");
        command.envs(settings.iter().map(|(name, value)| (*name, value.as_str())));
        let (process, said) = Process::ready(&mut command);
        Cache::of(process, &said)
    }

    /// The process that said these lines.
    fn of(process: Process, said: &[String]) -> Cache {
        let own = said.iter().filter(|line| line.trim_start().starts_with("cache"));
        let addr = own.filter_map(|line| Some(line.split_once("http://")?.1.trim().to_owned())).next_back();
        let block = said.join("\n") + "\n";
        Cache { process, addr: addr.expect("an address"), block }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.addr).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream
    }
}

/// Sends a request on a kept connection: status and body. `None` if the connection broke.
fn send(
    stream: &mut TcpStream,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Option<(u16, Vec<u8>)> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).ok()?;
    let mut answer = Vec::new();
    let end = loop {
        if let Some(at) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(count @ 1..) => answer.extend_from_slice(&piece[..count]),
            // It was stopped, and continues.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.trim().parse().ok()?;
    let mut body = answer.split_off(end);
    let have = body.len();
    body.resize(length, 0);
    stream.read_exact(&mut body[have.min(length)..]).ok()?;
    Some((status, body))
}

#[test]
fn the_ready_text_tells_what_to_paste_and_its_proof_works() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = Cache::start(folder.path());
    let host = format!("Cloud=(Host=\"http://{}\", Namespace=\"my.project\")", cache.addr);
    assert!(cache.block.contains("[StorageServers]\n") && cache.block.contains(&host), "{}", cache.block);
    let path = cache.block.split_whitespace().find(|word| word.contains("/api/v1/refs/")).expect("a curl");
    let (_, path) = path.split_once(&cache.addr).expect("an address");
    let headers = format!("Content-Type: application/octet-stream\r\nX-Jupiter-IoHash: {HASH}\r\n");
    let mut stream = cache.connect();
    let put = send(&mut stream, "PUT", path, &headers, b"test").expect("an answer");
    assert_eq!(put, (200, b"{\"needs\":[]}".to_vec()));
    let got = send(&mut stream, "GET", &format!("{path}.json"), "", b"").expect("an answer");
    assert_eq!(got.1, format!("{{\"RawHash\":\"{}\",\"RawSize\":4}}", HASH.to_lowercase()).into_bytes());
}

/// Uploads blobs until the connection ends. The server computes the hash and names it: what it
/// names is acknowledged, and counted for the thread that kills the server.
fn upload(stream: &mut TcpStream, round: u8, counter: &mpsc::Sender<()>) -> Vec<(String, Vec<u8>)> {
    let mut done = Vec::new();
    for number in 0_u32.. {
        let size = [10, 5_000, 70_000, 1_500_000][number as usize % 4];
        let mut body = vec![round; size];
        body[..4].copy_from_slice(&number.to_le_bytes());
        let type_ = "Content-Type: application/octet-stream\r\n";
        let Some((200, answer)) = send(stream, "POST", "/api/v1/blobs/test", type_, &body) else { break };
        let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
        let hash = answer["identifier"].as_str().expect("a hash");
        done.push((format!("/api/v1/blobs/test/{hash}"), body));
        // Nobody counts any more once the server is to be killed.
        let _ = counter.send(());
    }
    done
}

/// Uploads in the background, and returns after `wanted` acknowledgements, while the next upload is
/// under way.
fn upload_some(mut stream: TcpStream, round: usize, wanted: usize) -> JoinHandle<Vec<(String, Vec<u8>)>> {
    let (counter, acknowledged) = mpsc::channel();
    let writer = std::thread::spawn(move || upload(&mut stream, round as u8, &counter));
    for _ in 0..wanted {
        acknowledged.recv_timeout(PATIENCE).expect("an acknowledgement");
    }
    // Another moment of the upload in each round.
    (0..round * 400).for_each(|_| std::hint::spin_loop());
    writer
}

#[cfg(feature = "object-storage")]
#[test]
fn nodes_on_one_bucket_lose_nothing_when_they_are_killed() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let s3 = runtime.block_on(s3::S3::start());
    let keys = tempfile::NamedTempFile::new().expect("a temporary file");
    let lines =
        format!("access_key_id={}\nsecret_access_key={}\nregion=us-east-1\n", s3::ACCESS_KEY, s3::SECRET_KEY);
    std::fs::write(keys.path(), lines).expect("it is writable");
    let settings = [
        ("THRONG_DDC_TIER_URL", format!("s3://{}/ddc", s3::BUCKET)),
        ("THRONG_DDC_TIER_ENDPOINT", format!("http://{}", s3.addr)),
        ("THRONG_DDC_TIER_SETTINGS_FILE", keys.path().display().to_string()),
    ];
    let mut folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let mut nodes = folders.each_ref().map(|folder| Cache::start_with(folder.path(), &settings));
    let mut acknowledged: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..TIER_KILLS {
        let (victim, other) = (round % 2, (round + 1) % 2);
        let writer = upload_some(nodes[victim].connect(), round, 2 + round % 4);
        nodes[victim].process.kill();
        // Half of them find their folder again, the others begin with an empty one.
        if round % 4 >= 2 {
            folders[victim] = tempfile::tempdir().expect("a temporary folder");
        }
        nodes[victim] = Cache::start_with(folders[victim].path(), &settings);
        acknowledged.extend(writer.join().expect("the writer ends when the connection does"));
        let mut stream = nodes[other].connect();
        for (path, body) in &acknowledged {
            let got = send(&mut stream, "GET", path, "Accept: */*\r\n", b"").expect("an answer");
            assert_eq!(got.0, 200, "{path} was acknowledged");
            assert!(got.1 == *body, "{path} has other bytes");
        }
    }
    assert!(acknowledged.len() > TIER_KILLS, "{} uploads in {TIER_KILLS} lives", acknowledged.len());
}

/// Runs `throng ddc` in a folder.
#[cfg(feature = "object-storage")]
fn maintain(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.arg("ddc").args(words).current_dir(folder).output().expect("the program starts")
}

#[cfg(feature = "object-storage")]
#[test]
fn an_export_with_the_configuration_holds_what_is_only_in_the_bucket() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let s3 = runtime.block_on(s3::S3::start());
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let lines =
        format!("access_key_id={}\nsecret_access_key={}\nregion=us-east-1\n", s3::ACCESS_KEY, s3::SECRET_KEY);
    std::fs::write(own.path().join("keys"), lines).expect("it is writable");
    let tier = format!(
        "[ddc.tier]\nurl = \"s3://{}/ddc\"\nendpoint = \"http://{}\"\nsettings_file = \"keys\"\n",
        s3::BUCKET,
        s3.addr
    );
    std::fs::write(own.path().join("throng.toml"), tier).expect("it is writable");
    let type_ = "Content-Type: application/octet-stream\r\n";
    let mut blobs = Vec::new();
    let reference = format!("/api/v1/refs/test/default/{HASH}");
    for (data, size) in [("one", 5_000), ("two", 3_000_000)] {
        let (process, said) = Process::ready(&mut up(own.path(), "ddc", data));
        let cache = Cache::of(process, &said);
        let (mut stream, body) = (cache.connect(), vec![7; size]);
        let (status, answer) =
            send(&mut stream, "POST", "/api/v1/blobs/test", type_, &body).expect("an answer");
        assert_eq!(status, 200);
        let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
        blobs.push((format!("/api/v1/blobs/test/{}", answer["identifier"].as_str().expect("a hash")), body));
        let headers = format!("{type_}X-Jupiter-IoHash: {HASH}\r\n");
        assert_eq!(send(&mut stream, "PUT", &reference, &headers, b"test").expect("an answer").0, 200);
    }

    let file = own.path().join("all");
    let file = file.to_str().expect("a path in UTF-8");
    let one = own.path().join("one");
    let refused = maintain(other.path(), &["--data", one.to_str().expect("UTF-8"), "export", file]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && why.contains("--config FILE"), "{why}");
    // Copies of one of the blobs, and none at all.
    for data in ["one", "lost"] {
        let done = maintain(own.path(), &["--data", data, "export", file]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let counts: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
        assert_eq!(
            (counts["blobs"].as_u64(), counts["bytes"].as_u64(), counts["refs"].as_u64()),
            (Some(3), Some(3_005_004), Some(1))
        );
        assert_eq!(counts["unreadable"], 0);
        assert!(maintain(other.path(), &["--data", data, "import", file]).status.success());
        let (process, said) = Process::ready(&mut up(other.path(), "ddc", data));
        let cache = Cache::of(process, &said);
        let mut stream = cache.connect();
        for (path, body) in &blobs {
            let got = send(&mut stream, "GET", path, "Accept: */*\r\n", b"").expect("an answer");
            assert!(got == (200, body.clone()), "{path} is {}", got.0);
        }
        let raw = send(&mut stream, "GET", &format!("{reference}.raw"), "", b"").expect("an answer");
        assert_eq!(raw, (200, b"test".to_vec()));
    }
}

#[test]
fn what_was_acknowledged_survives_being_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut acknowledged: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..KILLS {
        let mut cache = Cache::start(folder.path());
        // Everything of earlier lives first.
        let mut stream = cache.connect();
        for (path, body) in &acknowledged {
            let got = send(&mut stream, "GET", path, "Accept: */*\r\n", b"").expect("an answer");
            assert_eq!(got, (200, body.clone()), "{path} was acknowledged");
        }
        let writer = upload_some(stream, round, round % 5);
        cache.process.kill();
        acknowledged.extend(writer.join().expect("the writer ends when the connection does"));
    }
    assert!(!acknowledged.is_empty(), "nothing was acknowledged in {KILLS} lives");
}
