//! Many worlds in one process: listeners and logins that lead to them, and worlds that come and go.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use prost::Message as _;
use serde_json::{Value, json};
use throng_net::CloseCause;
use throng_server::config::Loader;
use throng_server::{Running, Service, start};
use throng_wire::channeldpb::auth_result_message::AuthResult;
use throng_wire::{MessagePack, channeldpb as pb};

use crate::common::{Dial, Peer, call, clients, gateway, servers};
use crate::play::play;

const ADMIN_TOKEN: &str = "a-token-of-the-admin";

/// Logins of every kind: `p` names no world, the others do.
const TOKENS: &str = "\
p any
hub-p for-hub world=hub
arena-p for-arena world=arena
lost-p for-nowhere world=nowhere
main-p for-main world=main
s any server
hub-s for-hub server world=hub
arena-s for-arena server world=arena
";

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        std::fs::write(files.path("tokens"), TOKENS).unwrap();
        std::fs::write(files.path("admin"), format!("{ADMIN_TOKEN}\n")).unwrap();
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// A gateway with classes, and logins that need no proof.
    fn classes(&self, classes: &str, keys: &[(&str, &str)]) -> Running {
        let (admin, data) = (self.path("admin"), self.path("data"));
        let mut loader = Loader::new().text("throng.toml", classes);
        let base = [
            ("server.data", &*data),
            ("http.tokens_file", &*admin),
            ("gateway.servers.addr", "127.0.0.1:0"),
            ("gateway.clients.addr", "127.0.0.1:0"),
            ("http.addr", "127.0.0.1:0"),
            ("gateway.clients.kcp_profile", "game"),
        ];
        for (key, value) in base.iter().chain(keys) {
            loader = loader.flag("test", *key, *value);
        }
        start(loader.load().unwrap_or_else(|problems| panic!("{problems}"))).unwrap()
    }

    /// A gateway with the worlds `hub` and `arena`, whose logins come from the file.
    fn gateway(&self, keys: &[(&str, &str)]) -> Running {
        let (tokens, admin, data) = (self.path("tokens"), self.path("admin"), self.path("data"));
        let base = [
            ("server.data", &*data),
            ("gateway.worlds", "hub,arena"),
            ("gateway.auth.kind", "tokens"),
            ("gateway.auth.servers_bypass", "false"),
            ("gateway.auth.tokens_file", &tokens),
            ("http.tokens_file", &admin),
            ("gateway.clients.kcp_profile", "game"),
        ];
        gateway(&[&base[..], keys].concat())
    }
}

/// The listeners of a service, in the order of the configuration.
fn listeners(running: &Running, service: Service) -> Vec<SocketAddr> {
    let all = running.addresses().iter().filter(|address| address.service == service);
    all.map(|address| address.addr).collect()
}

fn get(running: &Running, path: &str) -> (u16, String) {
    call(running, "GET", path, ADMIN_TOKEN, "")
}

fn ask(running: &Running, path: &str) -> Value {
    let (status, body) = get(running, path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Connections and channels of a world.
fn figures(running: &Running, world: &str) -> [u64; 2] {
    ["connections", "channels"]
        .map(|list| ask(running, &format!("/api/v1/{list}?world={world}"))["total"].as_u64().unwrap())
}

fn close_code(peer: &mut Peer) -> Option<u16> {
    match peer.until_closed() {
        CloseCause::WsClosed { code } => *code,
        other => panic!("{other:?}"),
    }
}

/// Sends a login to which there is no answer.
fn try_login(peer: &mut Peer, player: &str, token: &str) {
    let auth = pb::AuthMessage {
        player_identifier_token: player.into(),
        login_token: token.into(),
        ..Default::default()
    };
    let head = MessagePack { msg_type: pb::MessageType::Auth as u32, ..Default::default() };
    peer.send(head, &auth.encode_to_vec());
}

/// A login that asks for a world.
fn ask_for(peer: &mut Peer, player: &str, token: &str, world: &str) {
    let auth = pb::AuthMessage {
        player_identifier_token: player.into(),
        login_token: token.into(),
        world: Some(world.into()),
        ..Default::default()
    };
    let head =
        throng_wire::MessagePack { stub_id: 5, msg_type: pb::MessageType::Auth as u32, ..Default::default() };
    peer.send(head, &auth.encode_to_vec());
}

/// The same, of one that gets in.
fn enter(addr: SocketAddr, dial: &Dial, player: &str, world: &str) -> Peer {
    let mut peer = Peer::connect(addr, dial);
    ask_for(&mut peer, player, "", world);
    let result = peer.receive(|message| message.stub == 5);
    let result = pb::AuthResultMessage::decode(&result.body[..]).unwrap();
    assert_eq!(result.result, 0, "{player}: {result:?}");
    peer.id = result.conn_id;
    peer
}

const CLASSES: &str = "\
[[gateway.classes]]
name = 'duel'
open = true
create = true
connections_max = 3
worlds_max = 4
limits.channels_max = 2
[[gateway.classes]]
name = 'lobby'
open = true
[[gateway.classes]]
name = 'closed'
[gateway]
worlds = ['hall:lobby', 'vault:closed', 'hub']
";

/// The classes, with worlds on all threads.
fn wide() -> String {
    CLASSES.replace("open = true\n", "open = true\nshards = 'all'\n")
}

#[test]
fn a_connection_enters_and_opens_worlds_of_open_classes_by_their_names() {
    for (transport, dial, shards) in [
        ("tcp", Dial::Tcp, 1),
        ("kcp", Dial::Kcp, 1),
        ("enet", Dial::Enet, 1),
        ("ws", Dial::WebSocket, 1),
        ("tcp", Dial::Tcp, 2),
        ("enet", Dial::Enet, 2),
    ] {
        let files = Files::new();
        let keys = [("server.shards", "2"), ("gateway.clients.transport", transport)];
        let running = files.classes(&if shards == 2 { wide() } else { CLASSES.to_owned() }, &keys);
        let mut server = enter(servers(&running), &Dial::Tcp, "server", "duel-1");
        let mut player = enter(clients(&running), &dial, "player", "duel-1");
        play(&mut server, &mut player);
        let _in_the_hall = enter(clients(&running), &dial, "player", "hall");
        let _in_main = enter(clients(&running), &dial, "player", "main");
        assert_eq!(figures(&running, "duel-1")[0], 2, "{transport}");
        assert_eq!([figures(&running, "hall")[0], figures(&running, "main")[0]], [1, 1], "{transport}");
        let list = ask(&running, "/api/v1/worlds");
        let duel = list["worlds"].as_array().unwrap().last().unwrap();
        let row = |key: &str| duel[key].clone();
        assert_eq!(row("shards"), shards, "{transport}");
        assert_eq!(
            (row("name"), row("class"), row("lasting")),
            ("duel-1".into(), "duel".into(), false.into())
        );
        let metrics = get(&running, "/metrics").1;
        for line in [
            "throng_class_worlds{class=\"duel\"} 1",
            "throng_class_clients{class=\"duel\"} 1",
            "throng_class_worlds{class=\"none\"} 1",
            "throng_world_clients{world=\"hall\"} 1",
        ] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
        assert!(!metrics.contains("duel-1"), "worlds on request have no series: {metrics}");
    }
}

#[test]
fn a_world_that_has_reached_a_limit_leaves_those_beside_it_alone() {
    let files = Files::new();
    let running = files.classes(CLASSES, &[("server.shards", "1")]);
    let in_world = |addr, world: &str| enter(addr, &Dial::Tcp, "player", world);
    let _full: Vec<Peer> = (0..3).map(|_| in_world(clients(&running), "duel-1")).collect();
    let mut server = in_world(servers(&running), "duel-2");
    let mut fourth = Peer::connect(clients(&running), &Dial::Tcp);
    ask_for(&mut fourth, "player", "", "duel-1");
    fourth.until_closed();
    let mut player = in_world(clients(&running), "duel-2");
    play(&mut server, &mut player);
    let mut server = in_world(servers(&running), "main");
    play(&mut server, &mut in_world(clients(&running), "main"));
    assert_eq!((figures(&running, "duel-1")[0], figures(&running, "duel-2")[0]), (3, 2));
}

#[test]
fn those_who_may_not_enter_hear_the_same_of_worlds_that_are_there_and_that_are_not() {
    let files = Files::new();
    let running = files.classes(CLASSES, &[("server.shards", "2"), ("gateway.clients.transport", "ws")]);
    let codes =
        ["vault", "hub", "nowhere", "closed-1", "lobby-1", "duel-", "Duel-1", "duel-\u{e4}"].map(|world| {
            let mut peer = Peer::connect(clients(&running), &Dial::WebSocket);
            ask_for(&mut peer, "player", "", world);
            close_code(&mut peer)
        });
    assert_eq!(codes, [Some(4010); 8]);
    // As many worlds as the class may have, and as many connections as one of them.
    let _inside: Vec<_> = (0..6)
        .map(|index| {
            let world = format!("duel-{}", index % 4);
            enter(clients(&running), &Dial::WebSocket, "player", &world)
        })
        .collect();
    let mut late = Peer::connect(clients(&running), &Dial::WebSocket);
    ask_for(&mut late, "player", "", "duel-4");
    assert_eq!(close_code(&mut late), Some(1013), "worlds_max");
    let _third = enter(clients(&running), &Dial::WebSocket, "player", "duel-0");
    let mut fourth = Peer::connect(clients(&running), &Dial::WebSocket);
    ask_for(&mut fourth, "player", "", "duel-0");
    assert_eq!(close_code(&mut fourth), Some(1013), "connections_max");
}

#[test]
fn the_path_of_a_websocket_names_a_world() {
    let files = Files::new();
    let running = files.classes(
        CLASSES,
        &[("gateway.clients.transport", "ws"), ("gateway.clients.extra", "ws://127.0.0.1:0/hub")],
    );
    let [main, hub] = listeners(&running, Service::Clients)[..] else { panic!("two listeners") };
    let open = |addr, path: &str| Peer::connect_to(addr, &Dial::WebSocket, path);
    let mut inside = Vec::new();
    for (addr, path, world) in [
        (main, "/w/duel-7", "duel-7"),
        (main, "/w/hall", "hall"),
        (main, "/", "main"),
        (main, "/w", "main"),
        (main, "/x/hall", "main"),
        (hub, "/w/hub", "hub"),
        (hub, "/", "hub"),
    ] {
        let before = figures(&running, "main")[0];
        let mut peer = open(addr, path);
        assert_eq!(peer.authenticate("p", "").result, 0, "{path}");
        let own = u64::from(world == "main");
        assert_eq!(figures(&running, "main")[0], before + own, "{path}");
        inside.push(peer);
    }
    assert_eq!([figures(&running, "duel-7")[0], figures(&running, "hub")[0]], [1, 2]);
    for (addr, path, code) in
        [(main, "/w/vault", 4010), (main, "/w/a/b", 4010), (main, "/w/", 4010), (hub, "/w/hall", 4011)]
    {
        let mut peer = open(addr, path);
        try_login(&mut peer, "p", "");
        assert_eq!(close_code(&mut peer), Some(code), "{path}");
    }
    let mut peer = open(main, "/w/hall");
    ask_for(&mut peer, "p", "", "duel-7");
    assert_eq!(close_code(&mut peer), Some(4011), "path and login disagree");
}

#[test]
fn a_credential_comes_before_a_request_and_contradicts_none() {
    let files = Files::new();
    let running = files.gateway(&[("server.shards", "2"), ("gateway.clients.transport", "ws")]);
    for (player, token, world, expected) in [
        ("hub-p", "for-hub", "hub", None),
        ("hub-p", "for-hub", "arena", Some(4011)),
        ("hub-p", "for-hub", "main", Some(4011)),
        ("main-p", "for-main", "hub", Some(4011)),
        // Without a credential for it, and without an open class.
        ("p", "any", "hub", Some(4010)),
        ("p", "any", "main", None),
    ] {
        let mut peer = Peer::connect(clients(&running), &Dial::WebSocket);
        ask_for(&mut peer, player, token, world);
        match expected {
            Some(_) => assert_eq!(close_code(&mut peer), expected, "{player} {world}"),
            None => assert_eq!(peer.receive(|message| message.stub == 5).kind, 1, "{player} {world}"),
        }
    }
}

/// Its clock is the real one: it says only that a world ends, and never when.
#[test]
fn worlds_on_request_end_when_they_are_empty_and_leave_nothing_behind() {
    for classes in [CLASSES.to_owned(), wide()] {
        end_when_empty(&classes.replace("worlds_max = 4", "world_idle_s = 1"));
    }
}

fn end_when_empty(classes: &str) {
    let files = Files::new();
    let running = files.classes(classes, &[("server.shards", "2"), ("gateway.recovery.clients", "false")]);
    for round in 0..20 {
        enter(clients(&running), &Dial::Tcp, "player", &format!("duel-{round}")).leave(1000);
    }
    let names = || {
        let list = ask(&running, "/api/v1/worlds");
        list["worlds"].as_array().unwrap().iter().map(|row| row["name"].to_string()).collect::<Vec<_>>()
    };
    let deadline = std::time::Instant::now() + crate::common::PATIENCE;
    while names().len() > 4 {
        assert!(std::time::Instant::now() < deadline, "{:?}", names());
        std::thread::yield_now();
    }
    assert_eq!(names(), ["\"main\"", "\"hall\"", "\"vault\"", "\"hub\""], "those of the file stay");
    assert_eq!(ask(&running, "/api/v1/limits")["limits"][0]["used"], 0);
    // The name is free for another life.
    let _again = enter(clients(&running), &Dial::Tcp, "player", "duel-0");
    assert_eq!(figures(&running, "duel-0"), [1, 1]);
}

/// Waits until so many connections count: an end that a peer sees is counted a moment later.
fn until_used(running: &Running, count: u64) {
    let deadline = std::time::Instant::now() + crate::common::PATIENCE;
    while ask(running, "/api/v1/limits")["limits"][0]["used"] != count {
        assert!(std::time::Instant::now() < deadline, "{}", ask(running, "/api/v1/limits"));
    }
}

#[test]
fn all_worlds_together_have_one_limit_of_connections() {
    let files = Files::new();
    for shards in ["1", "3"] {
        let keys = [
            ("server.shards", shards),
            ("gateway.clients.transport", "ws"),
            ("gateway.clients.extra", "ws://127.0.0.1:0/hub"),
            ("gateway.limits.connections_max", "4"),
        ];
        let running = files.classes(CLASSES, &keys);
        let [main, hub] = listeners(&running, Service::Clients)[..] else { panic!("two listeners") };
        let mut inside = vec![
            Peer::login(main, &Dial::WebSocket, "p", ""),
            Peer::login(hub, &Dial::WebSocket, "p", ""),
            enter(main, &Dial::WebSocket, "p", "duel-1"),
            enter(main, &Dial::WebSocket, "p", "hall"),
        ];
        for door in [main, hub] {
            assert_eq!(close_code(&mut Peer::connect(door, &Dial::WebSocket)), Some(1013), "{shards}");
        }
        assert_eq!(ask(&running, "/api/v1/limits")["limits"][0]["used"], 4);
        // A place that becomes free anywhere is free everywhere, also with a world that closes.
        inside.pop().unwrap().leave(1000);
        until_used(&running, 3);
        inside.push(Peer::login(hub, &Dial::WebSocket, "p", ""));
        assert_eq!(call(&running, "POST", "/api/v1/worlds/close", ADMIN_TOKEN, "{\"name\":\"hub\"}").0, 200);
        assert_eq!(figures(&running, "main")[0], 1);
        until_used(&running, 2);
        for _ in 0..2 {
            inside.push(Peer::login(main, &Dial::WebSocket, "p", ""));
        }
        assert_eq!(close_code(&mut Peer::connect(main, &Dial::WebSocket)), Some(1013), "{shards}");
    }
}

#[test]
fn listeners_lead_to_worlds_that_know_nothing_of_each_other() {
    for (shards, transport) in [("1", "tcp"), ("3", "tcp"), ("2", "kcp"), ("2", "enet"), ("2", "ws")] {
        let extra = format!("{transport}://127.0.0.1:0/hub,{transport}://127.0.0.1:0/arena");
        let files = Files::new();
        let running = gateway(&[
            ("http.tokens_file", &files.path("admin")),
            ("server.data", &files.path("data")),
            ("server.shards", shards),
            ("gateway.dev", "true"),
            ("gateway.worlds", "hub,arena"),
            ("gateway.servers.extra", "tcp://127.0.0.1:0/hub,tcp://127.0.0.1:0/arena"),
            ("gateway.clients.transport", transport),
            ("gateway.clients.kcp_profile", "game"),
            ("gateway.clients.extra", &extra),
        ]);
        let dial = match transport {
            "kcp" => Dial::Kcp,
            "enet" => Dial::Enet,
            "ws" => Dial::WebSocket,
            _ => Dial::Tcp,
        };
        let doors =
            listeners(&running, Service::Servers).into_iter().zip(listeners(&running, Service::Clients));
        let mut peers = Vec::new();
        for (at_servers, at_clients) in doors {
            let mut server = Peer::login(at_servers, &Dial::Tcp, "server", "");
            let mut player = Peer::login(at_clients, &dial, "player", "");
            // Each world counts its ids from 1, and has an owner of GLOBAL of its own.
            assert_eq!((server.id, player.id), (1, 2), "{transport}");
            play(&mut server, &mut player);
            peers.push((server, player));
        }
        assert_eq!(peers.len(), 3);
        for world in ["main", "hub", "arena", ""] {
            assert_eq!(figures(&running, world), [2, 2], "{transport} {world}");
        }
        assert_eq!(ask(&running, "/api/v1/connections/2?world=hub")["live"], true);
        assert_eq!(get(&running, "/api/v1/connections?world=nowhere").0, 404);
        let metrics = get(&running, "/metrics").1;
        assert!(metrics.contains("throng_world_clients{world=\"arena\"} 1"), "{metrics}");
        assert!(metrics.contains("throng_gateway_connections{kind=\"client\"} 3"), "{metrics}");
        assert!(running.shutdown(), "{transport}: everything was flushed in time");
    }
}

#[test]
fn a_login_enters_the_world_of_its_credential_over_every_transport() {
    for (transport, dial) in
        [("tcp", Dial::Tcp), ("kcp", Dial::Kcp), ("enet", Dial::Enet), ("ws", Dial::WebSocket)]
    {
        for shards in ["1", "3"] {
            let files = Files::new();
            let running =
                files.gateway(&[("server.shards", shards), ("gateway.clients.transport", transport)]);
            let mut peers = Vec::new();
            for world in ["hub", "arena"] {
                let token = format!("for-{world}");
                let mut server = Peer::login(servers(&running), &Dial::Tcp, &format!("{world}-s"), &token);
                // From several shards of the main world.
                for _ in 0..3 {
                    let mut player = Peer::login(clients(&running), &dial, &format!("{world}-p"), &token);
                    play(&mut server, &mut player);
                    peers.push(player);
                }
                peers.push(server);
            }
            let mut server = Peer::login(servers(&running), &Dial::Tcp, "s", "any");
            for (player, token) in [("p", "any"), ("main-p", "for-main")] {
                let mut player = Peer::login(clients(&running), &dial, player, token);
                play(&mut server, &mut player);
                peers.push(player);
            }
            assert_eq!(figures(&running, "hub"), [4, 4], "{transport} {shards}");
            assert_eq!(figures(&running, "arena"), [4, 4], "{transport} {shards}");
            assert_eq!(figures(&running, "main"), [3, 3], "{transport} {shards}");
            let moved = ask(&running, "/api/v1/closures?search=moved");
            assert_eq!(moved["total"], 8, "{moved}");
        }
    }
}

#[test]
fn a_login_for_another_world_than_the_listener_s_or_for_none_is_refused() {
    let files = Files::new();
    let running = files.gateway(&[
        ("server.shards", "2"),
        ("gateway.clients.transport", "ws"),
        ("gateway.clients.extra", "ws://127.0.0.1:0/hub"),
    ]);
    let [main, hub] = listeners(&running, Service::Clients)[..] else { panic!("two listeners") };
    for (at, player, token, code) in [
        (main, "lost-p", "for-nowhere", 4010),
        (hub, "arena-p", "for-arena", 4011),
        (hub, "lost-p", "for-nowhere", 4011),
        (hub, "main-p", "for-main", 4011),
    ] {
        let mut peer = Peer::connect(at, &Dial::WebSocket);
        try_login(&mut peer, player, token);
        assert_eq!(close_code(&mut peer), Some(code), "{player}");
    }
    let inside = [("hub-p", "for-hub"), ("p", "any")];
    let _inside = inside.map(|(player, token)| Peer::login(hub, &Dial::WebSocket, player, token));
    assert_eq!(figures(&running, "hub")[0], 2);
}

/// A login with a token of a world that resumes nothing.
fn with_void_token(player: &str, token: &str, world: &str) -> pb::AuthMessage {
    pb::AuthMessage {
        player_identifier_token: player.into(),
        login_token: token.into(),
        resume_token: Some([&[9; 24][..], world.as_bytes()].concat()),
        world: None,
    }
}

/// The core sends such a connection back before its socket has a place in the world.
#[test]
fn a_token_that_resumes_nothing_is_an_ordinary_login_over_every_transport() {
    for (transport, dial) in
        [("tcp", Dial::Tcp), ("kcp", Dial::Kcp), ("enet", Dial::Enet), ("ws", Dial::WebSocket)]
    {
        for shards in ["1", "3"] {
            let files = Files::new();
            let running = files.gateway(&[
                ("server.shards", shards),
                ("gateway.clients.transport", transport),
                ("gateway.limits.auth_timeout_ms", "0"),
            ]);
            let mut peers = Vec::new();
            for (world, player, token) in [
                ("hub", "p", "any"),
                ("gone", "p", "any"),
                ("hub", "hub-p", "for-hub"),
                ("arena", "hub-p", "for-hub"),
            ] {
                let mut peer = Peer::connect(clients(&running), &dial);
                // A wrong login has its answer as well, and may be followed by another.
                for (token, expected) in [("wrong", AuthResult::InvalidLt), (token, AuthResult::Successful)] {
                    if transport == "kcp" {
                        // Until a peer has proven its address, it has one login.
                        peer = Peer::connect(clients(&running), &dial);
                    }
                    let auth = with_void_token(player, token, world);
                    let result: pb::AuthResultMessage = peer.ask(0, pb::MessageType::Auth, &auth);
                    assert_eq!(result.result, expected as i32, "{transport} {shards} {player} {world}");
                }
                peers.push(peer);
            }
            let worlds = ["main", "hub", "arena"].map(|world| figures(&running, world)[0]);
            assert_eq!(worlds, [2, 2, 0], "{transport} {shards}");
            drop(peers);
            assert!(running.shutdown(), "{transport} {shards}");
        }
    }
}

#[test]
fn one_that_wanders_between_worlds_without_a_login_is_closed_in_time() {
    let files = Files::new();
    let running = files.gateway(&[
        ("server.shards", "2"),
        ("gateway.clients.transport", "ws"),
        ("gateway.limits.auth_timeout_ms", "500"),
    ]);
    let mut peers: Vec<_> = (0..20)
        .map(|index| {
            let mut peer = Peer::connect(clients(&running), &Dial::WebSocket);
            let auth = with_void_token(&format!("guess{index}"), "wrong", ["hub", "arena"][index % 2]);
            let head = MessagePack { msg_type: pb::MessageType::Auth as u32, ..Default::default() };
            peer.send(head, &auth.encode_to_vec());
            peer
        })
        .collect();
    for peer in &mut peers {
        assert_eq!(close_code(peer), Some(4003));
    }
    assert_eq!(["main", "hub", "arena"].map(|world| figures(&running, world)[0]), [0, 0, 0]);
}

/// The core closes such a connection before its socket has a place in the world.
#[test]
fn one_that_is_banned_in_its_world_hears_so_on_arrival() {
    let files = Files::new();
    let running = files.gateway(&[
        ("server.shards", "2"),
        ("gateway.clients.transport", "ws"),
        ("gateway.limits.refused_messages_max", "1"),
    ]);
    let mut player = Peer::login(clients(&running), &Dial::WebSocket, "hub-p", "for-hub");
    for _ in 0..2 {
        // The state machine refuses a second login.
        try_login(&mut player, "hub-p", "for-hub");
    }
    assert_eq!(close_code(&mut player), Some(4002));
    let mut again = Peer::connect(clients(&running), &Dial::WebSocket);
    try_login(&mut again, "hub-p", "for-hub");
    assert_eq!(close_code(&mut again), Some(4002));
    assert_eq!([figures(&running, "hub")[0], figures(&running, "main")[0]], [0, 0]);
}

#[test]
fn a_ban_of_the_default_world_holds_for_that_world_and_for_no_other() {
    let files = Files::new();
    let running = files.classes(
        CLASSES,
        &[
            ("gateway.worlds", "hub:lobby"),
            ("gateway.clients.transport", "ws"),
            ("gateway.clients.extra", "ws://127.0.0.1:0/hub"),
            ("gateway.limits.refused_messages_max", "1"),
        ],
    );
    let [main, hub] = listeners(&running, Service::Clients)[..] else { panic!("two listeners") };
    let mut player = Peer::login(main, &Dial::WebSocket, "p", "");
    for _ in 0..2 {
        try_login(&mut player, "p", "");
    }
    assert_eq!(close_code(&mut player), Some(4002));
    for path in ["/", "/w/main"] {
        let mut again = Peer::connect_to(main, &Dial::WebSocket, path);
        try_login(&mut again, "p", "");
        assert_eq!(close_code(&mut again), Some(4002), "{path}");
    }
    let _at_its_listener = Peer::login(hub, &Dial::WebSocket, "p", "");
    let _at_the_shared_one = enter(main, &Dial::WebSocket, "p", "hub");
    assert_eq!([figures(&running, "main")[0], figures(&running, "hub")[0]], [0, 2]);
}

#[test]
fn a_match_has_a_world_of_its_own_that_its_tickets_open() {
    let files = Files::new();
    let tokens = files.path("tokens");
    let without: &[(&str, &str)] = &[("gateway.auth.kind", "none")];
    let with: &[(&str, &str)] = &[
        ("gateway.auth.kind", "tokens"),
        ("gateway.auth.servers_bypass", "false"),
        ("gateway.auth.tokens_file", &tokens),
    ];
    for auth in [without, with] {
        let keys = [auth, &[("gateway.clients.transport", "ws")]].concat();
        let running = files.classes(CLASSES, &keys);
        let open = |body: &str| call(&running, "POST", "/api/v1/matches", ADMIN_TOKEN, body);
        let (status, answer) =
            open(r#"{"class":"closed","room":"r1","players":["ann","bob"],"servers":["s9"]}"#);
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let world = answer["World"].as_str().unwrap();
        assert!(world.starts_with("closed-") && world.len() == "closed-".len() + 13, "{world}");
        assert_eq!(answer["Addresses"]["client"]["ws"], format!("ws://{}", clients(&running)));
        assert_eq!(answer["Addresses"]["server"]["tcp"], format!("tcp://{}", servers(&running)));
        let ticket = |kind: &str, name: &str| answer["Tickets"][kind][name].as_str().unwrap().to_owned();
        let (ann, bob, server) =
            (ticket("players", "ann"), ticket("players", "bob"), ticket("servers", "s9"));

        let _server = Peer::login(servers(&running), &Dial::Tcp, "s9", &server);
        let mut first = Peer::login(clients(&running), &Dial::WebSocket, "ann", &ann);
        let _bob = Peer::login(clients(&running), &Dial::WebSocket, "bob", &bob);
        assert_eq!(figures(&running, world)[0], 3);
        // Another game server comes later.
        let more = open(&format!(r#"{{"world":"{world}","servers":["s10"]}}"#));
        assert_eq!(more.0, 200, "{more:?}");
        let more: Value = serde_json::from_str(&more.1).unwrap();
        assert_eq!(more["World"], world);
        let later = more["Tickets"]["servers"]["s10"].as_str().unwrap();
        let later = Peer::login(servers(&running), &Dial::Tcp, "s10", later);
        assert_eq!(figures(&running, world)[0], 4);
        drop(later);
        while figures(&running, world)[0] > 3 {}
        // The next use takes the place of the one before.
        let mut second = Peer::login(clients(&running), &Dial::WebSocket, "ann", &ann);
        assert_eq!(close_code(&mut first), Some(4005));
        assert_eq!(figures(&running, world)[0], 3);
        // A ticket is for its player and its kind.
        for (player, token, result) in
            [("bob", &ann, AuthResult::InvalidPit), ("s9", &server, AuthResult::InvalidLt)]
        {
            let mut other = Peer::connect(clients(&running), &Dial::WebSocket);
            assert_eq!(other.authenticate(player, token).result, result as i32, "{player}");
        }
        // Without one, the world cannot be entered, and the others are entered as before.
        let _main = Peer::login(clients(&running), &Dial::WebSocket, "p", "any");
        assert_eq!(figures(&running, "main")[0], 1);
        let mut stranger = Peer::connect(clients(&running), &Dial::WebSocket);
        ask_for(&mut stranger, "p", "any", world);
        assert_eq!(close_code(&mut stranger), Some(4010));

        let close = format!("{{\"name\":\"{world}\"}}");
        assert_eq!(call(&running, "POST", "/api/v1/worlds/close", ADMIN_TOKEN, &close).0, 200);
        assert_eq!(close_code(&mut second), Some(4012));
        let mut late = Peer::connect(clients(&running), &Dial::WebSocket);
        try_login(&mut late, "ann", &ann);
        assert_eq!(close_code(&mut late), Some(4010), "its world is over");
        for (body, status, part) in [
            (r#"{"players":["ann"]}"#, 400, "`class`"),
            (r#"{"class":"closed","world":"closed-1"}"#, 400, "either"),
            (r#"{"world":"No Name"}"#, 400, "not a name"),
            (r#"{"class":"closed","players":"ann"}"#, 400, "`players`"),
            (r#"{"class":"closed","servers":[""]}"#, 400, "`servers`"),
            (r#"{"class":"close"}"#, 409, "did you mean `closed`?"),
        ] {
            let (found, why) = open(body);
            assert!(found == status && why.contains(part), "{body}: {found} {why}");
        }
    }
}

#[test]
fn a_ticket_opens_no_other_world_at_a_listener_of_that_world() {
    let files = Files::new();
    let tokens = files.path("tokens");
    for (kind, bypass) in [("none", "true"), ("tokens", "true"), ("tokens", "false")] {
        let running = files.classes(
            CLASSES,
            &[
                ("gateway.auth.kind", kind),
                ("gateway.auth.servers_bypass", bypass),
                ("gateway.auth.tokens_file", if kind == "tokens" { &tokens } else { "" }),
                ("gateway.clients.transport", "ws"),
                ("gateway.clients.extra", "ws://127.0.0.1:0/hub"),
                ("gateway.servers.extra", "tcp://127.0.0.1:0/hub"),
            ],
        );
        let (status, answer) = call(
            &running,
            "POST",
            "/api/v1/matches",
            ADMIN_TOKEN,
            r#"{"class":"closed","players":["ann"],"servers":["s9"]}"#,
        );
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        // Those of the default world, which lead on; not those of the hub, which come after them.
        assert_eq!(answer["Addresses"]["client"], json!({ "ws": format!("ws://{}", clients(&running)) }));
        assert_eq!(answer["Addresses"]["server"], json!({ "tcp": format!("tcp://{}", servers(&running)) }));
        let ticket = |kind: &str, name: &str| answer["Tickets"][kind][name].as_str().unwrap().to_owned();
        let (ann, server) = (ticket("players", "ann"), ticket("servers", "s9"));
        let [at_servers, at_clients] =
            [Service::Servers, Service::Clients].map(|service| listeners(&running, service)[1]);

        let mut peer = Peer::connect(at_clients, &Dial::WebSocket);
        try_login(&mut peer, "ann", &ann);
        assert_eq!(close_code(&mut peer), Some(4011), "{kind} {bypass}");
        let mut peer = Peer::connect(at_servers, &Dial::Tcp);
        try_login(&mut peer, "s9", &server);
        peer.until_closed();
        let mut peer = Peer::connect(at_servers, &Dial::Tcp);
        assert_eq!(peer.authenticate("ann", &ann).result, AuthResult::InvalidLt as i32, "another kind");
        drop(peer);
        while figures(&running, "hub")[0] > 0 {}
        // Logins without a ticket are what they were.
        let known = kind == "none" || bypass == "true";
        let (player, token) = if known { ("s", "") } else { ("hub-s", "for-hub") };
        let _server = Peer::login(at_servers, &Dial::Tcp, player, token);
        assert_eq!(figures(&running, "hub")[0], 1, "{kind} {bypass}");
        assert!(running.shutdown());
    }
}

#[test]
fn worlds_open_and_close_at_run_time() {
    let files = Files::new();
    let running = files.gateway(&[
        ("server.shards", "2"),
        ("gateway.clients.transport", "ws"),
        ("gateway.clients.extra", "ws://127.0.0.1:0/hub"),
    ]);
    let door = listeners(&running, Service::Clients)[1];
    let post = |path: &str, token: &str, name: &str| {
        call(&running, "POST", path, token, &format!("{{\"name\":\"{name}\"}}"))
    };
    let open = |name: &str| post("/api/v1/worlds", ADMIN_TOKEN, name);
    let close = |name: &str| post("/api/v1/worlds/close", ADMIN_TOKEN, name);
    let mut lost = Peer::connect(clients(&running), &Dial::WebSocket);
    try_login(&mut lost, "lost-p", "for-nowhere");
    assert_eq!(close_code(&mut lost), Some(4010));
    assert_eq!(open("nowhere").0, 200);
    let _found = Peer::login(clients(&running), &Dial::WebSocket, "lost-p", "for-nowhere");
    assert_eq!(figures(&running, "nowhere"), [1, 1]);

    let (status, why) = open("nowhere");
    assert_eq!((status, why.contains("is already open")), (409, true), "{why}");
    assert_eq!((open("No Name").0, close("main").0, close("void").0), (409, 409, 404));
    assert_eq!(post("/api/v1/worlds", "not-a-token-of-the-admin", "x").0, 401);
    for (path, body, field) in [
        ("/api/v1/worlds", r#"{"name":"x","class":5}"#, "`class`"),
        ("/api/v1/worlds", r#"{"name":5}"#, "`name`"),
        ("/api/v1/worlds/close", r#"{"name":["hub"]}"#, "`name`"),
        ("/api/v1/capture", r#"{"world":5,"connection":1}"#, "`world`"),
    ] {
        let (status, why) = call(&running, "POST", path, ADMIN_TOKEN, body);
        assert_eq!((status, why.contains(field)), (400, true), "{body}: {why}");
    }

    // Those who are inside hear why they leave; its listener refuses until it is open again.
    let mut player = Peer::login(door, &Dial::WebSocket, "p", "any");
    assert_eq!(close("hub").0, 200);
    assert_eq!(close_code(&mut player), Some(4012));
    assert_eq!(close_code(&mut Peer::connect(door, &Dial::WebSocket)), Some(4010));
    assert_eq!(get(&running, "/api/v1/connections?world=hub").0, 404);
    assert_eq!(open("hub").0, 200);
    let _again = Peer::login(door, &Dial::WebSocket, "p", "any");
    assert_eq!(figures(&running, "hub"), [1, 1], "nothing of its former life");

    // Worlds that come and go leave nothing behind, no series either.
    let series = || -> BTreeSet<String> {
        let metrics = get(&running, "/metrics").1;
        metrics.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    };
    let before = series();
    for round in 0..500 {
        let name = format!("match-{round}");
        assert_eq!((open(&name).0, close(&name).0), (200, 200));
    }
    assert_eq!(series(), before);
    let list = ask(&running, "/api/v1/worlds");
    let names: Vec<&str> =
        list["worlds"].as_array().unwrap().iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["main", "arena", "nowhere", "hub"]);
    let metrics = get(&running, "/metrics").1;
    assert!(
        !metrics.contains("match-") && metrics.contains("throng_world_clients{world=\"hub\"} 1"),
        "{metrics}"
    );
    let closed = "throng_gateway_connections_closed_total{kind=\"client\",reason=\"world_closed\"} 1";
    assert!(metrics.contains(closed), "counters of closed worlds stay: {metrics}");
}
