//! JSON over HTTP as a script would use it: plain sockets, plain text.

#[allow(dead_code)]
use crate::support;

use std::io::{Read as _, Write as _};

use serde_json::json;
use support::{join, next_event, next_message, open_websocket, serve};
use throng_wire::matcher::METHODS;

const PING: &str = "/matcher/v1/Ping";
const WEB: &str = "\r\nX-Server-Id: web";

#[test]
fn methods_answer_objects_and_refusals_are_problems() {
    let server = serve("", 64);
    let (code, answer) = server.post("RoleJoinRandomRoom", WEB, &join("a"));
    assert_eq!((code, &answer["Created"]), (200, &json!(true)), "{answer}");
    let room = &answer["RoomInfo"];
    assert_eq!((&room["Roles"]["a"]["SrvID"], &room["Data"]), (&json!("web"), &json!({"roleCount": 1})));
    let (code, list) = server.post("GetRoomList", "", &json!({"MatchMode": "5v5"}));
    assert_eq!((code, list), (200, json!({"RoomIDs": [room["RoomID"]]})));
    let other = json!({"RoleInfo": {"RoleID": "a"}, "CreateInfo": {"MatchMode": "1v1"}});
    let (code, problem) = server.post("RoleJoinRandomRoom", WEB, &other);
    assert_eq!((code, &problem["code"]), (409, &json!("ALREADY_IN_ROOM")));
    assert_eq!(problem["detail"]["RoomID"], room["RoomID"]);
    assert_eq!(server.post("GetRoomInfo", "", &json!({"RoomID": "none"})).0, 404);
    assert_eq!(server.post("MyRPCTest", "", &json!({"Arg": "test"})), (200, json!({"Result": 0})));
}

#[test]
fn every_method_of_the_catalogue_has_a_route() {
    let server = serve("", 64);
    for method in METHODS {
        let (_, answer) = server.post(method.name, WEB, &json!({}));
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(!message.starts_with("no method is called"), "{}: {answer}", method.name);
        let (code, answer) = server.post_text(method.name, WEB, "[1]");
        assert_eq!((code, &answer["code"]), (400, &json!("INVALID")), "{}: {answer}", method.name);
    }
}

#[test]
fn wrong_input_is_refused_with_a_reason() {
    let server = serve("", 64);
    let unknown = server.post("Nonsense", "", &json!({})).1;
    assert_eq!(unknown["message"], "no method is called `Nonsense`");
    let (code, problem) = server.post("GetRoomInfo", "", &json!({"RoomID": 5}));
    assert_eq!(code, 400);
    assert!(
        problem["message"].as_str().unwrap().starts_with("`RoomID`: invalid type: integer `5`"),
        "{problem}"
    );
    let long = format!("{{\"RoomID\": \"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(server.post_text("GetRoomInfo", "", &long).0, 413);
    assert_eq!(server.post("Ping", &format!("\r\nX-Server-Id: {}", "s".repeat(129)), &json!({})).0, 413);
    assert_eq!(server.post("../v2/Ping", "", &json!({})).0, 404);
}

#[test]
fn more_requests_at_a_time_than_allowed_are_turned_away() {
    let server = serve("", 0);
    assert_eq!(server.post("Ping", "", &json!({})).1["code"], "OVERLOADED");
}

#[test]
fn bodies_that_do_not_end_take_no_slot_of_a_request() {
    let server = serve("", 2);
    let stall = |sent: usize| {
        let mut socket = std::net::TcpStream::connect(server.addr).expect("it listens");
        let head = format!("POST {PING} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
        socket.write_all(&[head.as_bytes(), &vec![b' '; sent]].concat()).expect("it reads");
        socket
    };
    let _small: Vec<_> = (0..8).map(|_| stall(1)).collect();
    assert_eq!(server.post("Ping", "", &json!({})).0, 200);
    // Two MiB of bodies are on their way at most, and none of them keeps a small one away.
    let large: Vec<_> = (0..3).map(|_| stall(900_000)).collect();
    let is_refused = |mut socket: &std::net::TcpStream| {
        socket.set_nonblocking(true).expect("a socket");
        let mut status = [0; 12];
        socket.read_exact(&mut status).is_ok_and(|()| &status == b"HTTP/1.1 503")
    };
    let mut refused = None;
    while refused.is_none() {
        refused = large.iter().position(is_refused);
        std::thread::yield_now();
    }
    assert_eq!(large.iter().filter(|socket| is_refused(socket)).count(), 0, "the others wait");
    assert_eq!(server.post("Ping", "", &json!({})).0, 200);
}

#[test]
fn the_role_says_whose_it_is_where_no_header_does() {
    let server = serve("", 64);
    let mut body = join("a");
    body["RoleInfo"]["SrvID"] = json!("game_1");
    let (code, answer) = server.post("RoleJoinRandomRoom", "", &body);
    assert_eq!((code, &answer["RoomInfo"]["Roles"]["a"]["SrvID"]), (200, &json!("game_1")), "{answer}");
}

#[test]
fn a_key_makes_a_retry_safe() {
    let server = serve("", 64);
    let header = "\r\nIdempotency-Key: order 66\r\nX-Server-Id: web";
    let room = json!({"CreatorInfo": {"RoleID": "a"}, "CreateInfo": {"MatchMode": "1v1"}});
    let first = server.post("RoleCreateRoom", header, &room);
    assert_eq!(first.0, 200);
    assert_eq!(server.post("RoleCreateRoom", header, &room), first);
    let other = server.post("RoleCreateRoom", header, &json!({}));
    assert_eq!((other.0, &other.1["code"]), (400, &json!("INVALID")), "a key is of one request");
}

#[test]
fn a_header_that_cannot_be_read_is_not_taken_for_none() {
    let server = serve("", 64);
    let room = json!({"CreatorInfo": {"RoleID": "a"}, "CreateInfo": {"MatchMode": "1v1"}});
    for (header, name) in [
        ("\r\nIdempotency-Key: caf\u{e9}", "idempotency-key"),
        ("\r\nIdempotency-Key: ", "idempotency-key"),
        ("\r\nIdempotency-Key: a\r\nIdempotency-Key: b", "idempotency-key"),
        ("\r\nX-Server-Id: caf\u{e9}", "x-server-id"),
    ] {
        let (code, problem) = server.post("RoleCreateRoom", header, &room);
        assert_eq!((code, &problem["code"]), (400, &json!("INVALID")), "{header}");
        assert!(problem["message"].as_str().unwrap().contains(name), "{problem}");
    }
    assert_eq!(server.post("RoleCreateRoom", "\r\nIdempotency-Key: a\r\nIdempotency-Key: a", &room).0, 200);
}

#[test]
fn a_token_is_asked_for_and_has_a_scope() {
    let server = serve("word server web\n", 64);
    assert_eq!(server.post("RoleJoinRandomRoom", WEB, &join("a")).0, 401);
    let with = "\r\nX-Server-Id: web\r\nAuthorization: Bearer word";
    assert_eq!(server.post("RoleJoinRandomRoom", with, &join("a")).0, 200);
    assert_eq!(server.post("Drain", with, &json!({})).1["code"], "FORBIDDEN");
    let other = "\r\nX-Server-Id: other\r\nAuthorization: Bearer word";
    assert_eq!(server.post("Ping", other, &json!({})).0, 401, "the token is for one server");
    // The role says whose it is where no header does.
    let bare = "\r\nAuthorization: Bearer word";
    let mut body = join("b");
    assert_eq!(server.post("RoleJoinRandomRoom", bare, &body).0, 401);
    for (srv, code) in [("web", 200), ("other", 401)] {
        body["RoleInfo"]["SrvID"] = json!(srv);
        assert_eq!(server.post("RoleJoinRandomRoom", bare, &body).0, code, "{srv}");
    }
}

#[test]
fn pages_of_other_sites_are_turned_away() {
    let server = serve("", 64);
    let refused = |headers: &str| server.post("Ping", headers, &json!({})).1["code"] == "FORBIDDEN";
    assert!(refused("\r\nOrigin: http://evil.example"));
    assert!(refused("\r\nHost: evil.example:80"), "a name that points at this machine");
    assert!(refused("\r\nHost: evil.example:80\r\nOrigin: http://evil.example:80"));
    assert!(!refused("\r\nHost: localhost:80\r\nOrigin: http://localhost:80"));
}

#[test]
fn events_arrive_and_go_on_where_they_were() {
    let server = serve("", 64);
    let mut reader = server.open("GET /matcher/v1/notify?srv=we%62 HTTP/1.1", "");
    let place = next_event(&mut reader);
    assert_eq!(
        (&place["Seq"], &place["Msgs"]),
        (&json!(0), &json!([])),
        "where the stream stands comes first"
    );
    server.post("RoleJoinRandomRoom", WEB, &join("a"));
    let batch = next_event(&mut reader);
    assert_eq!((&batch["Epoch"], &batch["Seq"]), (&place["Epoch"], &json!(1)));
    assert_eq!(batch["Msgs"][0]["RoleIDs"], json!(["a"]));
    assert_eq!(batch["Msgs"][0]["NotifyMsg"]["rolesJoinRoomMsg"]["JoinedRoleIDs"], json!(["a"]));
    drop(reader);
    server.post("RoleJoinRandomRoom", WEB, &join("b"));
    let ways = [
        format!("GET /matcher/v1/notify?srv=web&epoch={}&after=1 HTTP/1.1", batch["Epoch"]),
        "GET /matcher/v1/notify?srv=web&after=1 HTTP/1.1".to_owned(),
        format!("GET /matcher/v1/notify?srv=web HTTP/1.1\r\nLast-Event-ID: {}-1", batch["Epoch"]),
    ];
    for way in ways {
        let mut reader = server.open(&way, "");
        let place = next_event(&mut reader);
        assert_eq!((&place["Epoch"], &place["Seq"]), (&batch["Epoch"], &json!(1)), "{way}");
        let again = next_event(&mut reader);
        assert_eq!((&again["Epoch"], &again["Seq"]), (&batch["Epoch"], &json!(2)), "{way}");
    }
    for nowhere in [
        "?srv=web&after=18446744073709551615 HTTP/1.1",
        "?srv=web&epoch=1&after=1 HTTP/1.1",
        "?srv=web HTTP/1.1\r\nLast-Event-ID: last",
        "?srv=web HTTP/1.1\r\nLast-Event-ID: caf\u{e9}",
    ] {
        let mut late = server.open(&format!("GET /matcher/v1/notify{nowhere}"), "");
        let place = next_event(&mut late);
        let is_gap = place["Epoch"] != batch["Epoch"] && place["Seq"] == 0;
        assert!(is_gap, "a gap that can be seen: {nowhere}: {place}");
    }
    assert_eq!(server.post("Ping", "", &json!({})).0, 200);
}

#[test]
fn a_websocket_gets_the_same_batches() {
    let server = serve("", 64);
    let mut reader = open_websocket(&server, "/matcher/v1/notify?srv=web");
    assert_eq!(next_message(&mut reader)["Msgs"], json!([]));
    server.post("RoleJoinRandomRoom", WEB, &join("a"));
    let batch = next_message(&mut reader);
    assert_eq!(batch["Msgs"][0]["RoleIDs"], json!(["a"]));
    drop(reader);
    let path = format!("/matcher/v1/notify?srv=web&epoch={}&after=0", batch["Epoch"]);
    let mut again = open_websocket(&server, &path);
    assert_eq!(next_message(&mut again)["Msgs"], json!([]));
    assert_eq!(next_message(&mut again), batch);
}
