//! The matcher on a real bus. `scripts/setup --tests` builds the server; where it is missing the tests say so.
#![cfg(feature = "nats")]
#![allow(clippy::print_stderr, reason = "says what is left out")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Message};
use futures_util::StreamExt as _;
use throng_matcher::Config;
use throng_matching::{
    Durability, NatsOptions, Options, Service, Tokens, nats_header as header, serve_nats, start,
};
use throng_wire::matcher::{Method, Reader, Status, Writer, method};
use tokio::sync::oneshot;

/// Everything is there long before, but on a machine that does a lot else.
const PATIENCE: Duration = Duration::from_secs(30);

const PROGRAM: &str = "nats-server-2.11.12";

struct Bus {
    url: String,
    process: Child,
    _data: tempfile::TempDir,
}

impl Drop for Bus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> Option<PathBuf> {
    let home = |name: &str, below: &str| std::env::var_os(name).map(|home| PathBuf::from(home).join(below));
    let cache = home("XDG_CACHE_HOME", "").or_else(|| home("HOME", ".cache"))?;
    let program = cache.join("throng/bin").join(PROGRAM);
    program.exists().then_some(program)
}

fn bus() -> Option<Bus> {
    let Some(program) = program() else {
        eprintln!("no nats-server: run scripts/setup --tests; what needs it is left out");
        return None;
    };
    let data = tempfile::tempdir().unwrap();
    let ports = data.path().join("ports");
    std::fs::create_dir(&ports).unwrap();
    // It chooses a free port and tells in a file.
    let process = Command::new(program)
        .args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream", "--store_dir"])
        .arg(data.path())
        .arg("--ports_file_dir")
        .arg(&ports)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut bus = Bus { url: String::new(), process, _data: data };
    let told = ports.join(format!("{PROGRAM}_{}.ports", bus.process.id()));
    let patience = Instant::now() + PATIENCE;
    while bus.url.is_empty() {
        assert!(Instant::now() < patience, "the bus does not start: {:?}", bus.process.try_wait());
        std::thread::yield_now();
        let text = std::fs::read_to_string(&told).unwrap_or_default();
        // Up to the quote after it: the file may not be whole yet.
        let url = text.split_once("\"nats://").and_then(|(_, rest)| Some(rest.split_once('"')?.0));
        bus.url = url.unwrap_or_default().to_owned();
    }
    Some(bus)
}

/// A matcher on the bus, on a thread of its own. When dropped, its connection breaks; what it holds it holds until the
/// leases end.
struct Node {
    _bridge: oneshot::Sender<()>,
    _service: Service,
}

impl Node {
    /// Ids of rooms come from the secret: no two matchers share theirs.
    fn start(bus: &Bus, tokens: &str, secret: u8) -> Node {
        let tokens = Tokens::parse(tokens).unwrap();
        let service = start(Options {
            addr: None,
            unix: None,
            tls: None,
            config: Config::default(),
            durability: Durability::None,
            fs: None,
            tokens: tokens.clone(),
            area: "1".to_owned(),
            secret: [secret; 32],
            salvage: false,
            shards: 1,
            policies: throng_matching::Policies::default(),
        })
        .unwrap();
        let options = NatsOptions {
            url: bus.url.clone(),
            bus_token: String::new(),
            area: "1".to_owned(),
            tokens,
            lease: Duration::from_secs(1),
            requests_max: 256,
        };
        let handle = service.handle().clone();
        let (bridge, dropped) = oneshot::channel();
        std::thread::spawn(move || {
            // One thread: what a task leaves to another happens as late as it can, so that an order that only luck kept
            // shows. The stream of a server that began after its first request did, for one.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve_nats(handle, options, async { drop(dropped.await) }));
        });
        Node { _bridge: bridge, _service: service }
    }
}

struct Caller {
    client: Client,
    token: &'static str,
}

struct Answer {
    status: Status,
    matcher: String,
    body: Vec<u8>,
}

impl Caller {
    async fn connect(bus: &Bus, token: &'static str) -> Caller {
        let client = async_nats::ConnectOptions::new().retry_on_initial_connect().connect(&bus.url).await;
        Caller { client: client.unwrap(), token }
    }

    /// Asks until a matcher is on the bus.
    async fn ask(&self, number: u16, body: Writer) -> Answer {
        let subject = format!("throng.matcher.1.{}", method(number).unwrap().name);
        let body = body.into_bytes();
        loop {
            let mut headers = HeaderMap::new();
            headers.insert(header::SERVER, "game");
            headers.insert(header::NOTIFY, "yes");
            headers.insert(header::TOKEN, self.token);
            let request = async_nats::Request::new()
                .headers(headers)
                .payload(body.clone().into())
                .timeout(Some(PATIENCE));
            match self.client.send_request(subject.clone(), request).await {
                Ok(answer) => {
                    let head = |name| text(&answer, name);
                    let status = head(header::STATUS).parse().ok().and_then(Status::from_code).unwrap();
                    return Answer { status, matcher: head(header::MATCHER), body: answer.payload.to_vec() };
                }
                Err(error) => {
                    assert_eq!(error.kind(), async_nats::RequestErrorKind::NoResponders, "{error}");
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// Comes back when one of these matchers is no longer on the bus: until the bus has noticed, it may hand requests to one
    /// that is lost, and nobody answers those.
    async fn wait_for_a_loss(&self, matchers: &BTreeSet<String>) {
        loop {
            for matcher in matchers {
                let request = async_nats::Request::new().timeout(Some(Duration::from_millis(200)));
                let subject = format!("throng.matcher.1.at.{matcher}.Ping");
                let asked = self.client.send_request(subject, request).await;
                if asked.is_err_and(|error| error.kind() == async_nats::RequestErrorKind::NoResponders) {
                    return;
                }
            }
        }
    }

    async fn join(&self, role: &str, mode: &str) -> Answer {
        let body = Writer::new().nested(1, Writer::new().str(1, role)).nested(2, Writer::new().str(1, mode));
        let answer = self.ask(Method::ROLE_JOIN_RANDOM_ROOM, body).await;
        assert_eq!(answer.status, Status::Ok, "{}", answer.body.escape_ascii());
        answer
    }
}

fn text(mail: &Message, name: &str) -> String {
    let value = mail.headers.as_ref().and_then(|headers| headers.get(name));
    value.map(|value| value.as_str().to_owned()).unwrap_or_default()
}

fn room_of(answer: &Answer) -> (String, u64) {
    let room = Reader::new(&answer.body).unwrap().nested(1).unwrap();
    (room.str(1).unwrap().to_owned(), room.u64(12))
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("in time") });
}

#[test]
fn requests_answers_and_notifications() {
    let Some(bus) = bus() else { return };
    let _node = Node::start(&bus, "word server game\n", 1);
    run(async {
        let caller = Caller::connect(&bus, "word").await;
        let mut notices = caller.client.subscribe("throng.notify.game").await.unwrap();
        let joined = caller.join("a", "5v5").await;
        let (room, members) = room_of(&joined);
        assert_eq!(members, 1);
        let place = notices.next().await.unwrap();
        assert_eq!((text(&place, header::SEQ).as_str(), place.payload.len()), ("0", 0));
        let notice = notices.next().await.unwrap();
        assert_eq!(
            (text(&notice, header::SEQ).as_str(), text(&notice, header::EPOCH)),
            ("1", text(&place, header::EPOCH))
        );
        assert!(notice.payload.windows(room.len()).any(|part| part == room.as_bytes()));
        let missing = caller.ask(Method::GET_ROOM_INFO, Writer::new().str(1, "none")).await;
        assert_eq!(missing.status, Status::NotFound);
        assert_eq!(caller.ask(Method::DRAIN, Writer::new()).await.status, Status::Forbidden);
        let stranger = Caller { client: caller.client.clone(), token: "wrong" };
        assert_eq!(stranger.ask(Method::PING, Writer::new()).await.status, Status::Unauthenticated);
    });
}

#[test]
fn matchers_of_an_area_share_the_load_and_survive_the_loss_of_one() {
    let Some(bus) = bus() else { return };
    let mut nodes = vec![Node::start(&bus, "", 1), Node::start(&bus, "", 2)];
    run(async {
        let caller = Caller::connect(&bus, "").await;
        // One that comes late would find thousands of modes taken.
        let mut present = BTreeSet::new();
        while present.len() < 2 {
            present.insert(caller.ask(Method::PING, Writer::new()).await.matcher);
        }
        // Modes are taken by whoever is asked first, so that with enough of them both matchers have some.
        let (mut homes, mut first) = (BTreeMap::<String, usize>::new(), Vec::new());
        for index in 0.. {
            let mode = format!("{}v{}", index % 90 + 2, index / 90 + 2);
            let joined = caller.join(&format!("a{index}"), &mode).await;
            *homes.entry(joined.matcher.clone()).or_default() += 1;
            first.push((mode, joined.matcher.clone(), room_of(&joined).0));
            if homes.len() == 2 && index >= 20 {
                break;
            }
        }
        for (index, (mode, _, room)) in first.iter().enumerate() {
            let second = caller.join(&format!("b{index}"), mode).await;
            assert_eq!(room_of(&second), (room.clone(), 2), "the mode has one home, whoever is asked");
            let seen = caller.ask(Method::GET_ROOM_INFO, Writer::new().str(1, room)).await;
            assert_eq!((seen.status, room_of(&seen).1), (Status::Ok, 2), "a room is found wherever it is");
        }
        drop(nodes.remove(0));
        caller.wait_for_a_loss(&present).await;
        for (index, (mode, ..)) in first.iter().enumerate() {
            caller.join(&format!("c{index}"), mode).await;
        }
        let mut left = BTreeSet::new();
        for (index, (mode, ..)) in first.iter().enumerate() {
            left.insert(caller.join(&format!("d{index}"), mode).await.matcher);
        }
        assert_eq!(left.len(), 1, "the one that is left serves all modes");
    });
}
