//! The service over real sockets and a real folder: sessions, resumption, durability, restarts.

use crate::crash;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crash::crashed;
use throng_matcher::Config;
use throng_matcher_server::{Durability, Options, Service, Taken, Tokens, start};
use throng_platform::{Folder, Fs};
use throng_wire::fields;
use throng_wire::matcher::{FrameSplit, Header, Kind, Method, Reader, Status, Writer, split};

/// Runs of the library's own tools wait so long at most.
const PATIENCE: Duration = Duration::from_secs(120);

fn options(folder: Option<&Path>, durability: Durability) -> Options {
    Options {
        addr: Some("127.0.0.1:0".parse().unwrap()),
        unix: None,
        tls: None,
        config: Config::default(),
        durability,
        fs: folder.map(|folder| Arc::new(Folder::new(folder).unwrap()) as Arc<dyn Fs>),
        tokens: Tokens::default(),
        area: "1".to_owned(),
        secret: [3; 32],
        salvage: false,
        policies: throng_matcher_server::Policies::default(),
        gate: throng_matcher_server::Gate::default(),
    }
}

fn serve(folder: Option<&Path>, durability: Durability) -> (Service, SocketAddr) {
    let service = start(options(folder, durability)).unwrap();
    let addr = service.addr().unwrap();
    (service, addr)
}

struct Client {
    socket: TcpStream,
    input: Vec<u8>,
    next: u64,
    epoch: u64,
    first: u64,
    resumed: bool,
    /// Batches: number of the last entry, entries.
    batches: Vec<(u64, Vec<Vec<u8>>)>,
    goaway: Option<String>,
}

impl Client {
    fn connect(addr: SocketAddr, srv: &str, after: (u64, u64)) -> Client {
        let mut client = Client::silent(addr);
        client.hello(srv, 1, after, "");
        client
    }

    fn silent(addr: SocketAddr) -> Client {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client {
            socket,
            input: Vec::new(),
            next: 1,
            epoch: 0,
            first: 0,
            resumed: false,
            batches: Vec::new(),
            goaway: None,
        }
    }

    fn hello(&mut self, srv: &str, version: u64, after: (u64, u64), token: &str) {
        let body = Writer::new()
            .u64(1, version)
            .str(2, srv)
            .str(3, "1")
            .str(4, token)
            .u64(5, after.1)
            .u64(6, after.0);
        let mut frame = Vec::new();
        Header { kind: Kind::Hello, ..Header::default() }.write(&mut frame, &body.into_bytes());
        self.socket.write_all(&frame).unwrap();
        while self.epoch == 0 && self.goaway.is_none() {
            assert!(self.frame().is_none());
        }
    }

    /// Reads one frame; gives it if it is an answer.
    fn frame(&mut self) -> Option<(u64, Status, Vec<u8>)> {
        loop {
            if let FrameSplit::Whole { header, body, used } = split(&self.input, 1 << 24).unwrap() {
                let body = body.to_vec();
                self.input.drain(..used);
                match header.kind {
                    Kind::Response => {
                        return Some((header.id, Status::from_code(header.code).unwrap(), body));
                    }
                    Kind::Notify => {
                        let entries = fields(&body).map(|entry| entry.unwrap().value.to_vec()).collect();
                        self.batches.push((header.id, entries));
                    }
                    Kind::HelloAck => {
                        let ack = Reader::new(&body).unwrap();
                        (self.epoch, self.first, self.resumed) = (ack.u64(3), ack.u64(4), ack.u64(6) == 1);
                    }
                    Kind::Goaway => {
                        self.goaway = Some(Reader::new(&body).unwrap().str(2).unwrap().to_owned());
                    }
                    _ => {}
                }
                return None;
            }
            let mut bytes = [0; 4096];
            let count = self.socket.read(&mut bytes).unwrap();
            if count == 0 {
                self.goaway.get_or_insert_with(String::new);
                return None;
            }
            self.input.extend_from_slice(&bytes[..count]);
        }
    }

    fn send(&mut self, method: u16, body: Writer) -> u64 {
        let mut frame = Vec::new();
        let id = self.next;
        self.next += 1;
        Header { kind: Kind::Request, code: method, id, ..Header::default() }
            .write(&mut frame, &body.into_bytes());
        self.socket.write_all(&frame).unwrap();
        id
    }

    fn ask(&mut self, method: u16, body: Writer) -> (Status, Vec<u8>) {
        let id = self.send(method, body);
        loop {
            if let Some((answered, status, body)) = self.frame() {
                assert_eq!(answered, id);
                return (status, body);
            }
            assert_eq!(self.goaway, None);
        }
    }

    fn join(&mut self, role: &str) -> (Status, Vec<u8>) {
        self.ask(Method::ROLE_JOIN_RANDOM_ROOM, join(role))
    }

    fn entries(&self) -> usize {
        self.batches.iter().map(|(_, entries)| entries.len()).sum()
    }

    fn wait_for_entries(&mut self, count: usize) {
        while self.entries() < count {
            assert!(self.frame().is_none());
            assert_eq!(self.goaway, None);
        }
    }
}

fn join(role: &str) -> Writer {
    Writer::new().nested(1, Writer::new().str(1, role)).nested(2, Writer::new().str(1, "5v5"))
}

fn members(addr: SocketAddr, room: &[u8]) -> u64 {
    let (status, answer) =
        Client::connect(addr, "looker", (0, 0)).ask(Method::GET_ROOM_INFO, Writer::new().bytes(1, room));
    assert_eq!(status, Status::Ok);
    Reader::new(&answer).unwrap().nested(1).unwrap().u64(12)
}

fn room_in(answer: &[u8]) -> Vec<u8> {
    Reader::new(answer).unwrap().nested(1).unwrap().bytes(1).to_vec()
}

#[test]
fn a_session_answers_and_notifies() {
    let (service, addr) = serve(None, Durability::None);
    let mut client = Client::connect(addr, "game_1_1", (0, 0));
    assert_eq!(client.ask(Method::PING, Writer::new()), (Status::Ok, Vec::new()));
    assert_eq!(client.join("a").0, Status::Ok);
    client.wait_for_entries(1);
    assert_eq!(client.batches[0].0, 1, "numbers begin at 1");
    assert_eq!(client.ask(999, Writer::new()).0, Status::UnknownMethod);
    service.stop();
    while client.goaway.is_none() {
        client.frame();
    }
    assert_eq!(client.goaway.as_deref(), Some("the matcher is stopping"));
}

#[test]
fn requests_of_one_write_are_answered_in_order() {
    let (_service, addr) = serve(None, Durability::None);
    let mut client = Client::connect(addr, "s", (0, 0));
    let ids: Vec<u64> = (0..500)
        .map(|index| client.send(Method::ROLE_JOIN_RANDOM_ROOM, join(&format!("r{index}"))))
        .collect();
    let mut answered = Vec::new();
    while answered.len() < ids.len() {
        answered.extend(client.frame().map(|(id, status, _)| (id, status)));
    }
    assert_eq!(answered, ids.into_iter().map(|id| (id, Status::Ok)).collect::<Vec<_>>());
    client.wait_for_entries(500);
}

#[test]
fn a_resumed_session_misses_nothing_and_a_stranger_begins_anew() {
    let (_service, addr) = serve(None, Durability::None);
    let mut client = Client::connect(addr, "s", (0, 0));
    client.join("a");
    client.wait_for_entries(1);
    let (epoch, room) = (client.epoch, room_in(&client.join("b").1));
    client.wait_for_entries(2);
    drop(client);
    // Another server's call makes an event for the lost one.
    let mut other = Client::connect(addr, "t", (0, 0));
    let body = Writer::new().nested(1, Writer::new().str(1, "c")).bytes(2, &room);
    assert_eq!(other.ask(Method::ROLE_JOIN_ROOM, body).0, Status::Ok);
    let mut again = Client::connect(addr, "s", (epoch, 1));
    assert!(again.resumed);
    again.wait_for_entries(2);
    assert_eq!((again.first, again.batches.last().unwrap().0), (2, 3));
    let stranger = Client::connect(addr, "s", (epoch + 77, 1));
    assert!(!stranger.resumed && stranger.epoch != epoch && stranger.first == 1);
    // The session that was replaced is told so.
    while again.goaway.is_none() {
        again.frame();
    }
}

#[test]
fn wrong_first_words_are_sent_away() {
    let mut with_tokens = options(None, Durability::None);
    with_tokens.tokens = Tokens::parse("word server s").unwrap();
    let service = start(with_tokens).unwrap();
    let addr = service.addr().unwrap();
    for (srv, version, token, why) in [
        ("s", 2, "word", "version 2 is not spoken here, only 1"),
        ("s", 1, "", "no such token for this server"),
        ("t", 1, "word", "no such token for this server"),
    ] {
        let mut client = Client::silent(addr);
        client.hello(srv, version, (0, 0), token);
        assert_eq!(client.goaway.as_deref(), Some(why));
    }
    let mut client = Client::silent(addr);
    client.hello("s", 1, (0, 0), "word");
    let foreign = Writer::new()
        .nested(1, Writer::new().str(1, "a").str(2, "another server"))
        .nested(2, Writer::new().str(1, "1v1"));
    assert_eq!(client.ask(Method::ROLE_JOIN_RANDOM_ROOM, foreign).0, Status::Forbidden);
    // An oversized frame ends the connection with a reason.
    let mut huge = Header { kind: Kind::Request, ..Header::default() }.bytes(0);
    huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    client.socket.write_all(&huge).unwrap();
    while client.goaway.is_none() {
        client.frame();
    }
    assert!(client.goaway.unwrap().contains("exceeds the limit"));
}

#[test]
fn a_retry_with_a_key_has_one_effect_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let keyed = |role: &str| join(role).bytes(100, &[7; 16]);
    let (service, addr) = serve(Some(folder.path()), Durability::Sync);
    let first = Client::connect(addr, "s", (0, 0)).ask(Method::ROLE_JOIN_RANDOM_ROOM, keyed("a"));
    let again = Client::connect(addr, "s", (0, 0)).ask(Method::ROLE_JOIN_RANDOM_ROOM, keyed("a"));
    assert_eq!(first, again);
    let other = Client::connect(addr, "s", (0, 0)).ask(Method::ROLE_JOIN_RANDOM_ROOM, keyed("b"));
    assert_eq!(other.0, Status::Invalid, "a key is of one request");
    service.stop();
    let (_service, addr) = serve(Some(folder.path()), Durability::Sync);
    let after = Client::connect(addr, "s", (0, 0)).ask(Method::ROLE_JOIN_RANDOM_ROOM, keyed("a"));
    assert_eq!(first, after);
    assert_eq!(members(addr, &room_in(&first.1)), 1);
}

#[test]
fn what_was_answered_survives_a_restart() {
    for durability in [Durability::Async, Durability::Sync] {
        let folder = tempfile::tempdir().unwrap();
        let (service, addr) = serve(Some(folder.path()), durability);
        let mut client = Client::connect(addr, "s", (0, 0));
        let room = room_in(&client.join("a").1);
        for index in 0..7 {
            client.join(&format!("r{index}"));
        }
        let epoch = client.epoch;
        let copied = crashed(folder.path());
        let replayed = throng_matcher_server::replay(copied.path(), true, false).unwrap();
        assert!(replayed.records > 8, "{replayed:?}");
        service.stop();
        for (folder, is_planned) in [(folder.path(), true), (copied.path(), false)] {
            let (service, addr) = serve(Some(folder), durability);
            assert_eq!(service.replayed() == 0, is_planned, "a planned stop ends with a snapshot");
            assert_eq!(members(addr, &room), 8);
            let client = Client::connect(addr, "s", (epoch, 8));
            assert!(!client.resumed && client.epoch > epoch, "a restart is a gap that the client sees");
        }
    }
}

#[test]
fn calls_and_subscriptions_of_this_process() {
    let (service, _) = serve(None, Durability::None);
    let (sender, receiver) = std::sync::mpsc::channel();
    let handle = service.handle();
    let sink = move |batch| if sender.send(batch).is_ok() { Taken::More } else { Taken::Gone };
    handle.subscribe("own", None, Box::new(sink));
    let body = join("a").into_bytes();
    let (status, answer) = handle
        .call_and_wait("own", throng_matcher::Scope::Server, Method::ROLE_JOIN_RANDOM_ROOM, body)
        .unwrap();
    assert_eq!(status, Status::Ok);
    let place = receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!((place.seq, place.body.len()), (0, 0), "where the stream stands comes first");
    let batch = receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!((batch.epoch, batch.seq), (place.epoch, 1));
    let room = room_in(&answer);
    assert!(batch.body.windows(room.len()).any(|part| part == room));
}

/// A.9-12: nothing has to be said for the last entry to arrive.
#[test]
fn a12_the_last_entry_does_not_wait_for_another() {
    let (_service, addr) = serve(None, Durability::None);
    let mut quiet = Client::connect(addr, "quiet", (0, 0));
    let room = room_in(&quiet.join("q").1);
    let mut busy = Client::connect(addr, "busy", (0, 0));
    quiet.wait_for_entries(1);
    for round in 0..200 {
        let data = Writer::new().bytes(1, &room).str(2, "k").bytes(3, round.to_string().as_bytes());
        assert_eq!(busy.ask(Method::SET_ROOM_DATA, data).0, Status::Ok);
        // Reads until it is there; the next change comes only after it.
        quiet.wait_for_entries(2 + round);
    }
}

/// A.9-13: a destination without a session is forgotten with its last role.
#[test]
fn a13_a_session_that_does_not_come_back_is_removed() {
    let config = Config { presence_grace_ms: 1, ..Config::default() };
    let service = start(Options { config, ..options(None, Durability::None) }).unwrap();
    let mut client = Client::connect(service.addr().unwrap(), "gone", (0, 0));
    assert_eq!(client.join("a").0, Status::Ok);
    drop(client);
    let began = std::time::Instant::now();
    let is_empty = |report: &throng_matcher_server::Report| {
        report.requests.iter().any(|(_, count)| *count > 0)
            && (report.sessions, report.counts.players) == (0, 0)
    };
    while !is_empty(&service.handle().report()) {
        assert!(began.elapsed() < PATIENCE, "{:?}", service.handle().report());
        std::thread::yield_now();
    }
}

const DUEL: &str = r#"{"name": "duel", "tick_ms": 50, "sides": [{"name": "side", "count": 2, "min": 1, "max": 1}],
    "attributes": {"skill": {"type": "number"}}, "rules": [{"name": "near", "type": "near", "key": "skill", "max": 1}]}"#;

fn ticket(role: &str, skill: &str) -> Writer {
    let skill = Writer::new().str(1, "skill").str(2, skill);
    Writer::new().str(1, "duel").nested(2, Writer::new().str(1, role).nested(3, skill))
}

#[test]
fn tickets_and_queues_survive_a_restart_and_the_journal_replays_to_the_same_state() {
    let folder = tempfile::tempdir().unwrap();
    let (service, addr) = serve(Some(folder.path()), Durability::Sync);
    let mut client = Client::connect(addr, "s", (0, 0));
    assert_eq!(client.ask(Method::PUT_QUEUE, Writer::new().str(1, DUEL)).0, Status::Ok);
    for index in 0..20 {
        let skill = (index * 10).to_string();
        assert_eq!(client.ask(Method::CREATE_TICKET, ticket(&format!("r{index}"), &skill)).0, Status::Ok);
    }
    let folder = crashed(folder.path());
    service.stop();
    let (service, addr) = serve(Some(folder.path()), Durability::Sync);
    assert!(service.replayed() > 20);
    let mut client = Client::connect(addr, "s", (0, 0));
    let (status, partner) = client.ask(Method::CREATE_TICKET, ticket("partner", "70.5"));
    assert_eq!(status, Status::Ok);
    let partner = room_in(&partner);
    // The match comes with a tick: its notification, then the ticket's end.
    let ready = |client: &Client| {
        let mut entries = client.batches.iter().flat_map(|(_, entries)| entries);
        entries
            .any(|entry| Reader::new(entry).unwrap().last(throng_wire::matcher::Event::MATCH_READY).is_some())
    };
    while !ready(&client) {
        assert!(client.frame().is_none());
        assert_eq!(client.goaway, None);
    }
    let (_, shown) = client.ask(Method::GET_TICKET, Writer::new().bytes(1, &partner));
    assert_eq!(Reader::new(&shown).unwrap().nested(1).unwrap().str(8), Ok("matched"));
    let replayed = throng_matcher_server::replay(crashed(folder.path()).path(), true, false).unwrap();
    assert!(replayed.records > 25, "{replayed:?}");
}

#[test]
fn a_unix_socket_serves_the_same_and_its_file_goes_with_it() {
    use std::os::unix::net::UnixStream;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("matcher.sock");
    // What a process that was killed leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let serve = || start(Options { addr: None, unix: Some(path.clone()), ..options(None, Durability::None) });
    let service = serve().unwrap();
    assert!(serve().unwrap_err().to_string().contains("matcher.sock"), "it is in use");
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut frames = Vec::new();
    let hello = Writer::new().u64(1, 1).str(2, "s").into_bytes();
    Header { kind: Kind::Hello, ..Header::default() }.write(&mut frames, &hello);
    Header { kind: Kind::Request, code: Method::PING, id: 5, ..Header::default() }.write(&mut frames, b"");
    socket.write_all(&frames).unwrap();
    let (mut input, mut kinds) = (Vec::new(), Vec::new());
    while kinds.len() < 2 {
        let mut bytes = [0; 4096];
        let count = socket.read(&mut bytes).unwrap();
        input.extend_from_slice(&bytes[..count]);
        while let FrameSplit::Whole { header, used, .. } = split(&input, 1 << 20).unwrap() {
            kinds.push((header.kind, header.id));
            input.drain(..used);
        }
    }
    assert_eq!(kinds, [(Kind::HelloAck, 0), (Kind::Response, 5)]);
    service.stop();
    assert!(!path.exists());
}
