//! A destination that does not read costs bounded memory, slows nobody, and learns that it has
//! missed something.

#[allow(dead_code)]
use crate::support;

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use serde_json::{Value, json};
use support::{PATIENCE, Server, join, next_event, next_message, open_websocket, serve};
use throng_matcher::Scope;
use throng_wire::matcher::{FrameSplit, Header, Kind, Method, Reader, Status, Writer, split};

/// One message to everybody in a room.
const MESSAGE_BYTES: usize = 60_000;
/// Messages that are far more than the destination's queue, its connection and the kernel hold
/// together.
const MESSAGES_MAX: usize = 4_000;

fn ask(server: &Server, method: u16, body: Writer) -> (Status, Vec<u8>) {
    let handle = server.service.handle();
    handle.call_and_wait("game", Scope::Admin, method, body.into_bytes()).unwrap()
}

/// Memory that a destination which does not read costs at most, as the reference promises.
const STREAM_BYTES_MAX: usize = 32 << 20;

/// Sends messages to a room with a role of `slow` in it until the destination counts as lagging.
/// The matcher answers each of them although the destination does not read, which costs bounded
/// memory.
fn flood(server: &Server) -> Vec<u8> {
    let role = Writer::new().nested(1, Writer::new().str(1, "a").str(2, "slow"));
    let (status, room) =
        ask(server, Method::ROLE_JOIN_RANDOM_ROOM, role.nested(2, Writer::new().str(1, "5v5")));
    assert_eq!(status, Status::Ok);
    let room = Reader::new(&room).unwrap().nested(1).unwrap().bytes(1).to_vec();
    let message = format!("\"{}\"", "m".repeat(MESSAGE_BYTES));
    let (mut sent, started) = (0, Instant::now());
    loop {
        let report = server.service.handle().report();
        assert!(report.stream_bytes < STREAM_BYTES_MAX, "{} bytes", report.stream_bytes);
        if report.lagging > 0 {
            break;
        }
        if sent < MESSAGES_MAX {
            let body = Writer::new().bytes(1, &room).bytes(2, message.as_bytes());
            assert_eq!(ask(server, Method::BROADCAST_ROOM, body).0, Status::Ok);
            sent += 1;
        } else {
            // The report is a copy that the matcher refreshes between its turns.
            assert!(started.elapsed() < PATIENCE, "no bound on the queue of a destination");
            assert_eq!(ask(server, Method::PING, Writer::new()).0, Status::Ok);
        }
    }
    room
}

/// Reads batches of JSON until another epoch begins; then what follows is complete again.
fn recover(server: &Server, room: &[u8], mut next: impl FnMut() -> Value) {
    let first = next();
    let mut seq = first["Seq"].as_u64().unwrap();
    loop {
        let batch = next();
        if batch["Epoch"] != first["Epoch"] {
            break;
        }
        let entries = batch["Msgs"].as_array().unwrap().len() as u64;
        assert_eq!(batch["Seq"].as_u64().unwrap(), seq + entries, "in order and without holes until the gap");
        seq += entries;
    }
    let mine = server.post("ListMine", "\r\nX-Server-Id: slow", &json!({})).1;
    let room = std::str::from_utf8(room).unwrap();
    assert_eq!(mine["RoomInfos"][room]["RoomID"], room, "what was missed can be fetched");
    server.post("RoleJoinRandomRoom", "\r\nX-Server-Id: slow", &join("late"));
    let is_late = |entry: &Value| entry["NotifyMsg"]["rolesJoinRoomMsg"]["JoinedRoleIDs"] == json!(["late"]);
    while !next()["Msgs"].as_array().unwrap().iter().any(is_late) {}
}

#[test]
fn a_reader_of_server_sent_events() {
    let server = serve("", 64);
    let mut reader = server.open("GET /matcher/v1/notify?srv=slow HTTP/1.1", "");
    let first = next_event(&mut reader);
    let room = flood(&server);
    let mut first = Some(first);
    recover(&server, &room, || first.take().unwrap_or_else(|| next_event(&mut reader)));
}

#[test]
fn a_reader_of_a_websocket() {
    let server = serve("", 64);
    let mut reader = open_websocket(&server, "/matcher/v1/notify?srv=slow");
    let mut first = Some(next_message(&mut reader));
    let room = flood(&server);
    recover(&server, &room, || first.take().unwrap_or_else(|| next_message(&mut reader)));
}

struct Frames {
    socket: TcpStream,
    input: Vec<u8>,
}

impl Frames {
    fn connect(addr: SocketAddr) -> Frames {
        let mut socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = Writer::new().u64(1, 1).str(2, "slow").into_bytes();
        let mut frame = Vec::new();
        Header { kind: Kind::Hello, ..Header::default() }.write(&mut frame, &hello);
        socket.write_all(&frame).unwrap();
        Frames { socket, input: Vec::new() }
    }

    fn next(&mut self) -> (Header, Vec<u8>) {
        loop {
            if let FrameSplit::Whole { header, body, used } = split(&self.input, 1 << 24).unwrap() {
                let frame = (header, body.to_vec());
                self.input.drain(..used);
                return frame;
            }
            let mut bytes = vec![0; 64 << 10];
            let count = self.socket.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "the connection ended");
            self.input.extend_from_slice(&bytes[..count]);
        }
    }
}

#[test]
fn a_connection_of_the_framed_rpc() {
    let server = serve("", 64);
    let mut frames = Frames::connect(server.service.addr().unwrap());
    let (header, body) = frames.next();
    assert_eq!(header.kind, Kind::HelloAck);
    let epoch = Reader::new(&body).unwrap().u64(3);
    flood(&server);
    loop {
        let (header, body) = frames.next();
        if header.kind == Kind::HelloAck {
            let ack = Reader::new(&body).unwrap();
            assert!(ack.u64(3) > epoch, "a new epoch");
            assert_eq!((ack.u64(4), ack.u64(6)), (1, 0), "numbers begin anew");
            break;
        }
        assert_eq!(header.kind, Kind::Notify);
    }
    let mut ask = Vec::new();
    Header { kind: Kind::Request, code: Method::LIST_MINE, id: 9, ..Header::default() }.write(&mut ask, b"");
    frames.socket.write_all(&ask).unwrap();
    loop {
        let (header, body) = frames.next();
        if header.kind == Kind::Response {
            let rooms = Reader::new(&body).unwrap();
            assert_eq!(
                (header.id, header.code, rooms.all(1).count()),
                (9, 0, 1),
                "what was missed can be fetched"
            );
            break;
        }
        // Broadcasts that came behind the gap, or the next gap.
        assert!(matches!(header.kind, Kind::Notify | Kind::HelloAck), "{header:?}");
    }
}

#[test]
fn a_reader_that_is_gone_ends_the_session() {
    let server = serve("", 64);
    let mut reader: BufReader<TcpStream> = server.open("GET /matcher/v1/notify?srv=slow HTTP/1.1", "");
    next_event(&mut reader);
    drop(reader);
    let mut other = server.open("GET /matcher/v1/notify?srv=slow HTTP/1.1", "");
    next_event(&mut other);
    server.post("RoleJoinRandomRoom", "\r\nX-Server-Id: slow", &join("a"));
    assert_eq!(next_event(&mut other)["Seq"], 1, "the old reader's end is not the new one's");
}
