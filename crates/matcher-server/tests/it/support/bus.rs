//! A real bus, and somebody who asks the matchers on it. Compiled into the tests of more than one
//! crate.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Message};
use throng_wire::matcher::{Method, REQUEST_KEY_FIELD, Reader, Status, Writer, method};

use crate::peers;

/// Names of headers, as the documentation has them.
pub(crate) mod header {
    pub(crate) const SERVER: &str = "Throng-Server";
    pub(crate) const TOKEN: &str = "Throng-Token";
    pub(crate) const NOTIFY: &str = "Throng-Notify";
    pub(crate) const STATUS: &str = "Throng-Status";
    pub(crate) const MATCHER: &str = "Throng-Matcher";
}

/// Everything is there long before, but on a machine that does a lot else.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time for an answer, unless a caller has another.
const ANSWER: Duration = Duration::from_secs(5);

const PROGRAM: &str = "nats-server-2.11.12";
/// File with its configuration, in its folder.
const CONFIG: &str = "nats.conf";

pub(crate) struct Bus {
    pub(crate) url: String,
    process: Child,
    data: tempfile::TempDir,
}

impl Drop for Bus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Bus {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills it. What it has stored stays.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Loses what it has stored, the configuration excepted. It is not running.
    pub(crate) fn lose_storage(&self) {
        std::fs::remove_dir_all(self.data.path().join("jetstream")).unwrap();
    }

    /// Starts it again where it was.
    pub(crate) fn start_again(&mut self) {
        let port = self.url.rsplit(':').next().unwrap().to_owned();
        self.process = spawn(&peers::kept(PROGRAM).unwrap(), self.data.path(), &port);
    }
}

fn spawn(program: &Path, data: &Path, port: &str) -> Child {
    let mut command = Command::new(program);
    command.args(["--addr", "127.0.0.1", "--port", port, "--jetstream", "--store_dir"]).arg(data);
    command.arg("--config").arg(data.join(CONFIG));
    command.arg("--ports_file_dir").arg(data.join("ports")).stderr(Stdio::null()).spawn().unwrap()
}

pub(crate) fn bus() -> Option<Bus> {
    bus_with("")
}

/// A bus with further configuration.
pub(crate) fn bus_with(config: &str) -> Option<Bus> {
    let Some(program) = peers::kept(PROGRAM) else {
        peers::skip("nats-server");
        return None;
    };
    let data = tempfile::tempdir().unwrap();
    let ports = data.path().join("ports");
    std::fs::create_dir(&ports).unwrap();
    std::fs::write(data.path().join(CONFIG), config).unwrap();
    // It chooses a free port and tells in a file.
    let process = spawn(&program, data.path(), "-1");
    let mut bus = Bus { url: String::new(), process, data };
    let told = ports.join(format!("{PROGRAM}_{}.ports", bus.process.id()));
    let patience = Instant::now() + PATIENCE;
    while bus.url.is_empty() {
        let ended = bus.process.try_wait();
        let is_starting = Instant::now() < patience && matches!(ended, Ok(None));
        assert!(is_starting, "the bus does not start: {ended:?}");
        std::thread::yield_now();
        let text = std::fs::read_to_string(&told).unwrap_or_default();
        // Up to the quote after it: the file may not be whole yet.
        let url = text.split_once("\"nats://").and_then(|(_, rest)| Some(rest.split_once('"')?.0));
        bus.url = url.unwrap_or_default().to_owned();
    }
    Some(bus)
}

pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) token: &'static str,
    keys: AtomicU64,
    /// An answer that takes longer is asked for again.
    answer: Duration,
}

pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) matcher: String,
    pub(crate) body: Vec<u8>,
}

impl Caller {
    pub(crate) async fn connect(bus: &Bus, token: &'static str) -> Caller {
        Caller::connect_to(&bus.url, token, 0, ANSWER).await
    }

    /// One of several callers at a time, whose keys differ by their numbers.
    pub(crate) async fn connect_to(url: &str, token: &'static str, number: u64, answer: Duration) -> Caller {
        let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
        let options = options.reconnect_delay_callback(|_| Duration::from_millis(100));
        let client = options.connect(url).await.unwrap();
        Caller { client, token, keys: AtomicU64::new((number << 40) + 1), answer }
    }

    /// The same caller with another token.
    pub(crate) fn with_token(&self, token: &'static str) -> Caller {
        Caller { client: self.client.clone(), token, keys: AtomicU64::new(1 << 32), answer: self.answer }
    }

    fn next_key(&self) -> u128 {
        u128::from(self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks until a matcher is on the bus.
    pub(crate) async fn ask(&self, number: u16, body: Writer) -> Answer {
        let subject = format!("throng.matcher.1.{}", method(number).unwrap().name);
        let body = body.into_bytes();
        let key = self.next_key();
        loop {
            let mut headers = HeaderMap::new();
            headers.insert(header::SERVER, "game");
            headers.insert(header::NOTIFY, "yes");
            headers.insert(header::TOKEN, self.token);
            let key: [u8; 16] = key.to_le_bytes();
            let keyed = Writer::new().bytes(REQUEST_KEY_FIELD, &key).into_bytes();
            let request = async_nats::Request::new()
                .headers(headers)
                .payload([body.clone(), keyed].concat().into())
                .timeout(Some(self.answer));
            match self.client.send_request(subject.clone(), request).await {
                Ok(answer) => {
                    let head = |name| text(&answer, name);
                    let status = head(header::STATUS).parse().ok().and_then(Status::from_code).unwrap();
                    if status == Status::Unavailable {
                        // Nothing was done: it does not serve now.
                        tokio::task::yield_now().await;
                        continue;
                    }
                    return Answer { status, matcher: head(header::MATCHER), body: answer.payload.to_vec() };
                }
                // Nobody serves, or the one who does hangs: with its key the request is done once.
                Err(error) => {
                    let kind = error.kind();
                    let known =
                        [async_nats::RequestErrorKind::NoResponders, async_nats::RequestErrorKind::TimedOut];
                    assert!(known.contains(&kind), "{error}");
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    pub(crate) async fn room(&self, room: &str) -> Answer {
        self.ask(Method::GET_ROOM_INFO, Writer::new().str(1, room)).await
    }

    pub(crate) async fn create(&self, role: &str, mode: &str) -> Answer {
        let body = Writer::new().nested(1, Writer::new().str(1, role)).nested(2, Writer::new().str(1, mode));
        self.ask(Method::ROLE_CREATE_ROOM, body).await
    }

    pub(crate) async fn join_room(&self, role: &str, room: &str) -> Answer {
        self.ask(Method::ROLE_JOIN_ROOM, Writer::new().nested(1, Writer::new().str(1, role)).str(2, room))
            .await
    }

    pub(crate) async fn join(&self, role: &str, mode: &str) -> Answer {
        let body = Writer::new().nested(1, Writer::new().str(1, role)).nested(2, Writer::new().str(1, mode));
        let answer = self.ask(Method::ROLE_JOIN_RANDOM_ROOM, body).await;
        assert_eq!(answer.status, Status::Ok, "{}", answer.body.escape_ascii());
        answer
    }
}

pub(crate) fn text(mail: &Message, name: &str) -> String {
    let value = mail.headers.as_ref().and_then(|headers| headers.get(name));
    value.map(|value| value.as_str().to_owned()).unwrap_or_default()
}

pub(crate) fn room_of(answer: &Answer) -> (String, u64) {
    assert_eq!(answer.status, Status::Ok, "{} by {}", answer.body.escape_ascii(), answer.matcher);
    let room = Reader::new(&answer.body).unwrap().nested(1).unwrap();
    (room.str(1).unwrap().to_owned(), room.u64(12))
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("in time") });
}
