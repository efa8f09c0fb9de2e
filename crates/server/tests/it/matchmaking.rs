//! Players of a gateway find each other: gateway, matcher, client library and channels together,
//! over real sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_client::{
    CallError, ChannelId, Client, Endpoint, Event, Events, MatchWorld, Matcher, MatcherConfig,
    MatchmakingEvent, MatchmakingRequest, Notices, Notification, RequestError, Role, SessionConfig,
};
use throng_server::config::Loader;
use throng_server::{Running, Service};
use throng_wire::matcher::{Method, Reader, Status, Writer};
use tokio::sync::{Barrier, mpsc};

use crate::example;

/// On a busy machine everything takes longer; nothing here takes seconds by itself.
const PATIENCE: Duration = Duration::from_secs(300);
/// Messages between the players of a match.
const HELLO: u32 = 120;
const RULES: &str = r#"
[modes.ranked]
capacity = 10
on_full = "seal"
[modes.arena]
capacity = 2
on_full = "seal"
world = { class = "duel" }
allocator = "gateway"
[modes.brief]
capacity = 2
on_full = "seal"
world = { class = "brief" }
allocator = "gateway"
"#;

struct World {
    running: Running,
    runtime: tokio::runtime::Runtime,
    _data: tempfile::TempDir,
}

impl World {
    fn start() -> World {
        World::start_with("")
    }

    fn start_with(settings: &str) -> World {
        let data = tempfile::tempdir().unwrap();
        let rules = data.path().join("modes.toml");
        std::fs::write(&rules, RULES).unwrap();
        let config = Loader::new()
            .text("throng.toml", settings)
            .flag("t", "server.data", data.path().to_str().unwrap())
            .flag("t", "server.shards", "2")
            .flag("t", "gateway.dev", "true")
            .flag("t", "gateway.servers.addr", "127.0.0.1:0")
            .flag("t", "gateway.clients.addr", "127.0.0.1:0")
            .flag("t", "gateway.limits.clients_per_address_max", "1000")
            .flag("t", "gateway.limits.auth_timeout_ms", PATIENCE.as_millis().to_string())
            // A player who is lost is not gone before a test fails.
            .flag("t", "gateway.recovery.clients_timeout_ms", (2 * PATIENCE).as_millis().to_string())
            .flag("t", "gateway.matchmaking.matcher", "own")
            .flag("t", "matcher.addr", "127.0.0.1:0")
            .flag("t", "matcher.durability", "none")
            .flag("t", "matcher.rules", rules.to_str().unwrap())
            .flag("t", "http.addr", "")
            .load()
            .unwrap();
        let running = throng_server::start(config).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        World { running, runtime, _data: data }
    }

    fn addr(&self, service: Service) -> SocketAddr {
        self.running.address(service).unwrap()
    }

    fn run<T>(&self, test: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("in time") })
    }

    async fn matcher(&self) -> Matcher {
        let endpoint = Endpoint::tcp(self.addr(Service::Matcher));
        let config = MatcherConfig {
            call_timeout: PATIENCE,
            hello_timeout: PATIENCE,
            ..MatcherConfig::new("director")
        };
        Matcher::connect(endpoint, config).await.unwrap().0
    }
}

struct Player {
    name: String,
    client: Client,
    events: Events,
}

impl Player {
    async fn connect(addr: SocketAddr, name: &str) -> Player {
        Player::connect_with(addr, name, false).await
    }

    async fn connect_with(addr: SocketAddr, name: &str, resume: bool) -> Player {
        // Two hundred players on a busy machine: patience beyond the five seconds of a game.
        let config = SessionConfig {
            request_timeout: PATIENCE,
            auth_timeout: PATIENCE,
            resume,
            ..SessionConfig::client(name, "")
        };
        let (client, events) = Client::connect(Endpoint::tcp(addr), config).await.unwrap();
        Player { name: name.to_owned(), client, events }
    }

    async fn ask(&mut self, method: u16, body: Writer) -> Result<bytes::Bytes, CallError> {
        match self.client.matchmake(MatchmakingRequest::new(method, body)).await {
            Ok(answer) => Ok(answer),
            Err(RequestError::Matcher(refused)) => Err(refused),
            Err(other) => panic!("{other}"),
        }
    }

    async fn next(&mut self) -> MatchmakingEvent {
        loop {
            if let Event::Matchmaking { event, .. } = self.events.next().await.unwrap() {
                return event;
            }
        }
    }

    /// Waits for a place in a match.
    async fn entered(&mut self) -> (String, ChannelId) {
        loop {
            if let MatchmakingEvent::Entered { room, channel } = self.next().await {
                return (room, channel);
            }
        }
    }

    /// Says hello to the others and waits until `count` have said so, itself included.
    async fn play(&mut self, channel: ChannelId, count: usize) -> BTreeSet<String> {
        self.client.send(channel, HELLO, self.name.clone()).await.unwrap();
        let mut heard = BTreeSet::new();
        while heard.len() < count {
            if let Event::Message { channel: on, msg_type: HELLO, payload, .. } =
                self.events.next().await.unwrap()
            {
                assert_eq!(on, channel);
                assert!(heard.insert(String::from_utf8(payload.to_vec()).unwrap()), "{payload:?} came twice");
            }
        }
        heard
    }
}

fn join(mode: &str) -> Writer {
    Writer::new().nested(1, Writer::new().str(1, "whoever")).nested(2, Writer::new().str(1, mode))
}

const QUEUE: &str = r#"{
    "name": "ranked5", "tick_ms": 50, "assign": "none",
    "sides": [{"name": "red", "min": 5, "max": 5}, {"name": "blue", "min": 5, "max": 5}],
    "rating": {"pool": "main"}, "rules": []
}"#;

/// A queue whose matches have to be accepted.
const PROPOSED_DUEL: &str = r#"{
    "name": "duel", "tick_ms": 50, "accept": {"required": true, "timeout_s": 600},
    "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}]
}"#;

/// Events that a player received about its match.
struct Played {
    name: String,
    room: String,
    heard: BTreeSet<String>,
}

/// Queues, plays, says so, and leaves when everybody may.
async fn live(
    addr: SocketAddr,
    name: String,
    [together, rated]: [Arc<Barrier>; 2],
    played: mpsc::Sender<Played>,
) {
    let mut player = Player::connect(addr, &name).await;
    assert!(!player.client.join_queue("ranked5").await.unwrap().is_empty());
    let (room, channel) = player.entered().await;
    // A message reaches who is in the channel when it is sent.
    together.wait().await;
    let heard = player.play(channel, 10).await;
    played.send(Played { name, room: room.clone(), heard }).await.unwrap();
    rated.wait().await;
    let leave = MatchmakingRequest::new(Method::ROLE_LEAVE_ROOM, Writer::new().str(2, &room));
    player.client.matchmake(leave).await.unwrap();
    loop {
        match player.events.next().await.unwrap() {
            Event::Matchmaking { event: MatchmakingEvent::Left { room: left, channel: of }, .. } => {
                assert_eq!((left, of), (room, channel));
                return;
            }
            Event::Message { msg_type: HELLO, payload, .. } => panic!("{payload:?} came again"),
            _ => {}
        }
    }
}

/// Mean of every player's rating.
async fn ratings(director: &Matcher, names: &BTreeSet<String>) -> BTreeMap<String, f64> {
    let ask = names.iter().fold(Writer::new().str(1, "main"), |ask, name| ask.str(2, name));
    let answer = director.call(Method::GET_RATINGS, ask).await.unwrap();
    let all = Reader::new(&answer).unwrap();
    let read = all.all(1).map(|rating| {
        let rating = Reader::new(rating).unwrap();
        (rating.str(1).unwrap().to_owned(), f64::from_bits(rating.u64(4)))
    });
    read.collect()
}

#[test]
fn two_hundred_players_queue_are_matched_play_leave_and_are_rated() {
    const PLAYERS: usize = 200;
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let director = world.matcher().await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).await.unwrap();
        let barriers = [Arc::new(Barrier::new(PLAYERS)), Arc::new(Barrier::new(PLAYERS + 1))];
        let (played, mut reports) = mpsc::channel(PLAYERS);
        let mut lives = tokio::task::JoinSet::new();
        for index in 0..PLAYERS {
            lives.spawn(live(addr, format!("p{index}"), barriers.clone(), played.clone()));
        }
        let mut matches: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut heard: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for _ in 0..PLAYERS {
            let one = reports.recv().await.unwrap();
            matches.entry(one.room.clone()).or_default().insert(one.name);
            let known = heard.entry(one.room).or_insert_with(|| one.heard.clone());
            assert_eq!(*known, one.heard, "all of a match have heard the same players");
        }
        assert_eq!(matches.len(), PLAYERS / 10);
        assert_eq!(matches, heard, "players of a match hear each other and nobody else");
        for (room, names) in &matches {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let side = |names: &[&str], rank| {
                names.iter().fold(Writer::new().u64(2, rank), |side, name| side.str(1, name))
            };
            let report =
                Writer::new().str(2, room).nested(3, side(&names[..5], 1)).nested(3, side(&names[5..], 2));
            director.call(Method::REPORT_RESULT, report.str(6, "main")).await.unwrap();
            let all = names.iter().map(|name| (*name).to_owned()).collect();
            let rated = ratings(&director, &all).await;
            assert!(names[..5].iter().all(|winner| rated[*winner] > 25.0), "{rated:?}");
            assert!(names[5..].iter().all(|loser| rated[*loser] < 25.0), "{rated:?}");
        }
        barriers[1].wait().await;
        while let Some(life) = lives.join_next().await {
            life.unwrap();
        }
        for room in matches.keys() {
            let gone = director.room(room).await;
            let emptied = gone.as_ref().is_ok_and(|room| room.members == 0 && room.is_deleting);
            let missing = matches!(gone, Err(CallError::Refused { status: Status::NotFound, .. }));
            assert!(emptied || missing, "{gone:?}");
        }
    });
}

/// The link as the allocator: the channel is there before the players hear of the match, and is its
/// connection.
#[test]
fn the_gateway_gives_matches_their_channels() {
    let world = World::start();
    world.run(async {
        let director = world.matcher().await;
        let queue = r#"{
            "name": "duel", "tick_ms": 50, "assign": "external", "allocator": "gateway", "assign_timeout_s": 30,
            "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}], "rules": []
        }"#;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, queue)).await.unwrap();
        let addr = world.addr(Service::Clients);
        let mut players = Vec::new();
        for name in ["ann", "bob"] {
            let player = Player::connect(addr, name).await;
            assert!(!player.client.join_queue("duel").await.unwrap().is_empty());
            players.push(player);
        }
        let mut seen = BTreeSet::new();
        for player in &mut players {
            let connection = loop {
                if let MatchmakingEvent::Notice(notice) = player.next().await
                    && notice.kind == throng_wire::matcher::Event::MATCH_READY
                {
                    break notice.text(4).to_owned();
                }
            };
            let (_, channel) = player.entered().await;
            assert_eq!(connection, channel.0.to_string());
            seen.insert(channel);
        }
        assert_eq!(seen.len(), 1, "one match, one channel");
        let channel = *seen.first().unwrap();
        let [ann, bob] = &mut players[..] else { unreachable!("there are two") };
        let (heard, too) = tokio::join!(ann.play(channel, 2), bob.play(channel, 2));
        assert_eq!(heard, too, "both hear both");
    });
}

const WORLDS: &str = r#"
[gateway]
worlds = ["hall:lobby"]
[[gateway.classes]]
name = "lobby"
open = true
[[gateway.classes]]
name = "duel"
[[gateway.classes]]
name = "brief"
world_idle_s = 1
"#;

/// Two players, one in the main world and one in another, in a match with a world of its own.
async fn matched(world: &World, class: &str) -> (Player, Player, MatchWorld, MatchWorld, String) {
    let director = world.matcher().await;
    let queue = r#"{
        "name": "duel", "tick_ms": 50, "assign": "external", "allocator": "gateway", "world": {"class": "CLASS"},
        "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}], "rules": []
    }"#;
    let put = Writer::new().str(1, &queue.replace("CLASS", class));
    director.call(Method::PUT_QUEUE, put).await.unwrap();
    let addr = world.addr(Service::Clients);
    let mut ann = Player::connect(addr, "ann").await;
    let config = SessionConfig { world: Some("hall".to_owned()), ..SessionConfig::client("bob", "") };
    let (client, events) = Client::connect(Endpoint::tcp(addr), config).await.unwrap();
    let mut bob = Player { name: "bob".to_owned(), client, events };
    let mut found = Vec::new();
    for player in [&ann, &bob] {
        assert!(!player.client.join_queue("duel").await.unwrap().is_empty());
    }
    let mut room = String::new();
    for player in [&mut ann, &mut bob] {
        let notice = loop {
            if let MatchmakingEvent::Notice(notice) = player.next().await
                && notice.kind == throng_wire::matcher::Event::MATCH_READY
            {
                break notice;
            }
        };
        notice.room_id().clone_into(&mut room);
        found.push(notice.match_world().expect("a world of its own"));
    }
    let (bobs, anns) = (found.pop().unwrap(), found.pop().unwrap());
    assert!(anns.name == bobs.name && anns.ticket != bobs.ticket, "{anns:?} {bobs:?}");
    assert!(anns.name.starts_with(class), "{anns:?}");
    // Both have claimed their seats.
    while director.room(&room).await.unwrap().members < 2 {}
    (ann, bob, anns, bobs, room)
}

/// Waits until something is so of which the process sends no event, and lets other tasks go on.
async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

/// Clients in a world or in all of a class, as `/metrics` says.
fn clients_in(world: &World, series: &str) -> u64 {
    let metrics = world.running.metrics();
    let line = metrics.lines().find(|line| line.starts_with(series));
    let value =
        line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("{series}: {metrics}"));
    value.parse().unwrap()
}

#[test]
fn players_of_any_world_go_to_the_world_of_their_match_and_keep_their_places() {
    let world = World::start_with(WORLDS);
    world.run(async {
        let (ann, bob, anns, bobs, room) = matched(&world, "duel").await;
        let director = world.matcher().await;
        // They leave for good, and are in the match all the same.
        ann.client.close().await;
        bob.client.close().await;
        for series in ["throng_world_clients{world=\"main\"}", "throng_world_clients{world=\"hall\"}"] {
            until(|| clients_in(&world, series) == 0).await;
        }
        let mut players = Vec::new();
        for (name, found) in [("ann", &anns), ("bob", &bobs)] {
            let endpoint: Endpoint = found.address.parse().unwrap();
            let config = SessionConfig::client(name, found.ticket.as_str());
            let (client, events) = Client::connect(endpoint, config).await.unwrap();
            let mut player = Player { name: name.to_owned(), client, events };
            // The matcher is there for them in that world, too.
            let stats = Writer::new().str(1, "duel");
            assert!(!player.ask(Method::GET_QUEUE_STATS, stats).await.unwrap().is_empty());
            players.push(player);
        }
        assert_eq!(clients_in(&world, "throng_class_clients{class=\"duel\"}"), 2);
        assert_eq!(director.room(&room).await.unwrap().members, 2);
        // The world ends with the room.
        director.delete_room(&room).await.unwrap();
        until(|| clients_in(&world, "throng_class_clients{class=\"duel\"}") == 0).await;
    });
}

#[test]
fn players_who_fill_a_room_of_a_mode_get_a_world_and_no_channel() {
    let world = World::start_with(WORLDS);
    world.run(async {
        let addr = world.addr(Service::Clients);
        let mut players = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        for player in &mut players {
            player.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("arena")).await.unwrap();
        }
        let (mut room, mut worlds, mut inside) = (String::new(), BTreeSet::new(), Vec::new());
        for mut player in players {
            let notice = loop {
                match player.next().await {
                    MatchmakingEvent::Notice(notice)
                        if notice.kind == throng_wire::matcher::Event::MATCH_READY =>
                    {
                        break notice;
                    }
                    MatchmakingEvent::Entered { channel, .. } => panic!("{channel:?} of the main world"),
                    _ => {}
                }
            };
            notice.room_id().clone_into(&mut room);
            let found = notice.match_world().expect("a world of its own");
            let config = SessionConfig::client(player.name.as_str(), found.ticket.as_str());
            player.client.close().await;
            inside.push(Client::connect(found.address.parse().unwrap(), config).await.unwrap());
            worlds.insert(found.name);
        }
        assert!(worlds.len() == 1 && worlds.first().unwrap().starts_with("duel-"), "{worlds:?}");
        assert_eq!(clients_in(&world, "throng_class_clients{class=\"duel\"}"), 2);
        // The world ends with the room.
        let director = world.matcher().await;
        assert_eq!(director.room(&room).await.unwrap().members, 2);
        director.delete_room(&room).await.unwrap();
        until(|| clients_in(&world, "throng_class_clients{class=\"duel\"}") == 0).await;
    });
}

#[test]
fn players_of_a_game_server_have_a_world_as_long_as_their_room_and_the_room_as_long_as_its_world() {
    let world = World::start_with(WORLDS);
    let opened = |class: &str| {
        let (metrics, series) =
            (world.running.metrics(), format!("throng_class_worlds{{class=\"{class}\"}} "));
        let count = metrics.lines().find_map(|line| line.strip_prefix(&series));
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    world.run(async {
        let director = world.matcher().await;
        for (round, (mode, ends)) in
            [("brief", "world"), ("arena", "players"), ("arena", "room")].into_iter().enumerate()
        {
            let class = if mode == "brief" { "brief" } else { "duel" };
            let roles = [format!("a{round}"), format!("b{round}")];
            let mut room = String::new();
            for role in &roles {
                room = director.join_random_room(&Role::new(role), mode).await.unwrap().id;
            }
            // The world without connections ends by itself.
            if ends != "world" {
                while !director.room(&room).await.unwrap().data.contains_key("World") {}
                assert_eq!(opened(class), 1);
            }
            match ends {
                "players" => {
                    for role in &roles {
                        director.leave_room(role, &room).await.unwrap();
                    }
                }
                "room" => assert!(director.delete_room(&room).await.unwrap()),
                _ => {}
            }
            while director.room(&room).await.is_ok_and(|room| !room.is_deleting) {}
            until(|| opened(class) == 0).await;
        }
    });
}

fn start(flags: &[(&str, &str)]) -> Running {
    let loader = Loader::new().text("throng.toml", WORLDS).flag("t", "http.addr", "");
    let loader = flags.iter().fold(loader, |loader, (key, value)| loader.flag("t", *key, *value));
    throng_server::start(loader.load().unwrap()).unwrap()
}

/// Matchers on one folder, and a gateway that reaches those at the socket `reached`.
struct Apart {
    data: tempfile::TempDir,
}

impl Apart {
    fn new() -> Apart {
        let apart = Apart { data: tempfile::tempdir().unwrap() };
        for (name, text) in
            [("modes.toml", RULES), ("tokens", "operator admin\ngateway server"), ("token", "gateway")]
        {
            std::fs::write(apart.path(name), text).unwrap();
        }
        apart
    }

    fn path(&self, name: &str) -> String {
        self.data.path().join(name).to_str().unwrap().to_owned()
    }

    fn matcher(&self, folder: &str, socket: &str) -> Running {
        start(&[
            ("server.only", "matcher"),
            ("server.data", &self.path(folder)),
            ("matcher.unix_path", &self.path(socket)),
            ("matcher.tokens_file", &self.path("tokens")),
            ("matcher.rules", &self.path("modes.toml")),
            ("matcher.presence_grace_ms", "600000"),
        ])
    }

    fn gateway(&self, folder: &str) -> Running {
        self.gateway_as("gateway", folder)
    }

    fn gateway_as(&self, srv: &str, folder: &str) -> Running {
        start(&[
            ("gateway.matchmaking.srv", srv),
            ("server.only", "gateway"),
            ("server.data", &self.path(folder)),
            ("gateway.dev", "true"),
            ("gateway.servers.addr", "127.0.0.1:0"),
            ("gateway.clients.addr", "127.0.0.1:0"),
            ("gateway.matchmaking.matcher", &format!("unix://{}", self.path("reached"))),
            ("gateway.matchmaking.token_file", &self.path("token")),
        ])
    }

    /// A session of a server with every right.
    async fn connect(&self, srv: &str, socket: &str) -> (Matcher, Notices) {
        let config = MatcherConfig::new(srv).token("operator");
        Matcher::connect(format!("unix://{}", self.path(socket)).parse().unwrap(), config).await.unwrap()
    }

    /// The same without its notifications.
    async fn session(&self, srv: &str, socket: &str) -> Matcher {
        self.connect(srv, socket).await.0
    }

    fn run(&self, test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("in time") });
    }
}

/// Asks until the gateway reaches the matcher.
async fn ask_reached(player: &mut Player, method: u16, body: &Writer) -> bytes::Bytes {
    loop {
        match player.ask(method, body.clone()).await {
            Ok(answer) => return answer,
            Err(CallError::Refused { status: Status::Unavailable | Status::Timeout, .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// Joins a room as soon as the gateway reaches the matcher.
async fn in_room(player: &mut Player, mode: &str) -> String {
    id_in(&ask_reached(player, Method::ROLE_JOIN_RANDOM_ROOM, &join(mode)).await)
}

/// Waits in a queue as soon as the gateway reaches the matcher. Returns the ticket.
async fn in_queue(player: &mut Player, queue: &str) -> String {
    id_in(&ask_reached(player, Method::CREATE_TICKET, &Writer::new().str(1, queue)).await)
}

/// Makes a team of two as soon as the gateway reaches the matcher.
async fn make_team([leader, member]: [&mut Player; 2]) -> String {
    let two = Writer::new().nested(2, Writer::new().u64(3, 2 << 1));
    let team = id_in(&ask_reached(leader, Method::CREATE_TEAM, &two).await);
    member.ask(Method::JOIN_TEAM, Writer::new().str(2, &team)).await.unwrap();
    team
}

/// The id of the room, team or ticket in an answer.
fn id_in(answer: &[u8]) -> String {
    Reader::new(answer).unwrap().nested(1).unwrap().str(1).unwrap().to_owned()
}

/// The next notice of this name to a game server.
async fn notified(notices: &mut Notices, name: &str) -> throng_client::Notice {
    loop {
        if let Notification::Notice(notice) = notices.next().await.unwrap()
            && notice.name() == name
        {
            return notice;
        }
    }
}

async fn hears(player: &mut Player, name: &str) -> throng_client::Notice {
    loop {
        if let MatchmakingEvent::Notice(notice) = player.next().await
            && notice.name() == name
        {
            return notice;
        }
    }
}

#[test]
fn players_hear_of_the_places_that_a_matcher_lost() {
    let apart = Apart::new();
    let first = apart.matcher("m", "reached");
    let gateway = apart.gateway("g");
    let addr = gateway.address(Service::Clients).unwrap();
    apart.run(async {
        let director = apart.session("director", "reached").await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).await.unwrap();
        let [mut ann, mut bob] = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        in_queue(&mut ann, "ranked5").await;
        bob.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked")).await.unwrap();
        drop((first, director));
        let _second = apart.matcher("empty", "reached");
        loop {
            let notice = hears(&mut ann, "ticketUpdateMsg").await;
            let shown = Reader::new(&notice.body).unwrap().nested(1).unwrap();
            if shown.str(8).unwrap() == "cancelled" {
                assert_eq!(shown.str(10).unwrap(), "disconnected");
                break;
            }
        }
        let left = hears(&mut bob, "roleLeaveRoomMsg").await;
        assert_eq!((left.text(2), left.text(22)), ("bob", "room_deleted"));
    });
}

#[test]
fn players_hear_of_a_match_that_was_ready_while_their_gateway_did_not_reach_the_matcher() {
    const QUEUE: &str = r#"{
        "name": "duel", "tick_ms": 50, "assign": "external", "allocator": "director", "assign_timeout_s": 3600,
        "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}], "seat_ttl_s": 600
    }"#;
    let apart = Apart::new();
    let first = apart.matcher("m", "reached");
    let gateway = apart.gateway("g");
    let addr = gateway.address(Service::Clients).unwrap();
    apart.run(async {
        let (director, mut notices) = apart.connect("director", "reached").await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).await.unwrap();
        let mut players = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        for player in &mut players {
            in_queue(player, "duel").await;
        }
        let room = notified(&mut notices, "matchReadyMsg").await.room_id().to_owned();
        drop((first, director, notices));
        let second = apart.matcher("m", "elsewhere");
        let director = apart.session("director", "elsewhere").await;
        director.call(Method::ASSIGN_MATCH, Writer::new().str(1, &room).str(2, "10.0.0.1:7")).await.unwrap();
        drop((second, director));
        let _third = apart.matcher("m", "reached");
        let mut sides = BTreeSet::new();
        for player in &mut players {
            let notice = hears(player, "matchReadyMsg").await;
            assert_eq!((notice.text(4), notice.room_id()), ("10.0.0.1:7", &*room));
            sides.insert(notice.text(3).to_owned());
        }
        assert_eq!(sides, ["blue".to_owned(), "red".to_owned()].into());
        let director = apart.session("director", "reached").await;
        while director.room(&room).await.unwrap().members < 2 {}
    });
}

#[test]
fn members_of_a_match_hear_that_a_matcher_lost_it_although_its_world_ended_first() {
    let apart = Apart::new();
    let first = apart.matcher("m", "reached");
    let gateway = apart.gateway("g");
    let addr = gateway.address(Service::Clients).unwrap();
    apart.run(async {
        let mut players = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        for player in &mut players {
            in_room(player, "brief").await;
        }
        for player in &mut players {
            hears(player, "matchReadyMsg").await;
        }
        drop(first);
        until(|| !gateway.metrics().contains("throng_class_worlds{class=\"brief\"} 1")).await;
        let _second = apart.matcher("empty", "reached");
        for player in &mut players {
            assert_eq!(hears(player, "roleLeaveRoomMsg").await.text(2), player.name);
        }
    });
}

#[test]
fn a_player_whose_place_ended_while_the_matcher_was_not_reached_hears_of_it() {
    let apart = Apart::new();
    let first = apart.matcher("m", "reached");
    let gateway = apart.gateway("g");
    let addr = gateway.address(Service::Clients).unwrap();
    apart.run(async {
        let mut players = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        let mut room = String::new();
        for player in &mut players {
            room = in_room(player, "ranked").await;
        }
        drop(first);
        let second = apart.matcher("m", "elsewhere");
        apart.session("director", "elsewhere").await.leave_room("ann", &room).await.unwrap();
        drop(second);
        let _third = apart.matcher("m", "reached");
        let left = hears(&mut players[0], "roleLeaveRoomMsg").await;
        assert_eq!((left.text(2), left.text(22), left.room_id()), ("ann", "disconnected", &*room));
        let director = apart.session("director", "reached").await;
        assert_eq!(director.room(&room).await.unwrap().members, 1);
    });
}

#[test]
fn players_whose_team_ended_while_the_matcher_was_not_reached_hear_of_it() {
    let apart = Apart::new();
    let first = apart.matcher("m", "reached");
    let gateway = apart.gateway("g");
    let addr = gateway.address(Service::Clients).unwrap();
    apart.run(async {
        let mut players = Vec::new();
        for name in ["ann", "bob", "cat", "dan"] {
            players.push(Player::connect(addr, name).await);
        }
        let [ann, bob, cat, dan] = &mut players[..] else { unreachable!("there are four") };
        let (deleted, other) = (make_team([ann, bob]).await, make_team([cat, dan]).await);
        drop(first);
        let second = apart.matcher("m", "elsewhere");
        let director = apart.session("director", "elsewhere").await;
        director.call(Method::DELETE_TEAM, Writer::new().str(1, &deleted)).await.unwrap();
        let kick = Writer::new().str(1, "dan").str(2, &other).str(3, "cat");
        director.call(Method::LEAVE_TEAM, kick).await.unwrap();
        drop((director, second));
        let _third = apart.matcher("m", "reached");
        for (player, team, why) in
            [(ann, &deleted, "deleted"), (bob, &deleted, "deleted"), (dan, &other, "disconnected")]
        {
            let left = hears(player, "leaveTeamMsg").await;
            assert_eq!((left.text(1), left.text(20), left.text(22)), (&*player.name, &**team, why));
        }
    });
}

#[test]
fn players_whose_match_was_proposed_when_the_matcher_ended_are_asked_again() {
    let apart = Apart::new();
    let first = apart.matcher("m", "reached");
    let gateway = apart.gateway("g");
    let addr = gateway.address(Service::Clients).unwrap();
    apart.run(async {
        let director = apart.session("director", "reached").await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, PROPOSED_DUEL)).await.unwrap();
        let mut players = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        for player in &mut players {
            in_queue(player, "duel").await;
        }
        let mut proposed = String::new();
        for player in &mut players {
            proposed = hears(player, "matchProposedMsg").await.text(1).to_owned();
        }
        drop((first, director));
        let _second = apart.matcher("m", "reached");
        for player in &mut players {
            let again = hears(player, "matchProposedMsg").await;
            assert_ne!(again.text(1), proposed, "the former is off");
            let yes = Writer::new().str(1, again.text(1)).str(2, again.text(4)).u64(4, 1);
            player.ask(Method::ACCEPT_MATCH, yes).await.unwrap();
        }
        for player in &mut players {
            hears(player, "matchReadyMsg").await;
        }
    });
}

#[test]
fn a_gateway_that_starts_again_gives_up_tickets_teams_and_rooms_of_players_who_are_gone() {
    let apart = Apart::new();
    let _matcher = apart.matcher("m", "reached");
    apart.run(async {
        let director = apart.session("director", "reached").await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).await.unwrap();
        // Places that a gateway of the same name has left behind.
        let former = apart.session("gateway", "reached").await;
        let ann = || Writer::new().str(1, "ann");
        let room = former.join_random_room(&Role::new("bob"), "ranked").await.unwrap().id;
        let team = Writer::new().nested(1, ann()).nested(2, Writer::new().u64(3, 4 << 1));
        let team = id_in(&former.call(Method::CREATE_TEAM, team).await.unwrap());
        let ticket = Writer::new().str(1, "ranked5").nested(2, ann());
        let ticket = id_in(&former.call(Method::CREATE_TICKET, ticket).await.unwrap());
        drop(former);
        let gateway = apart.gateway("g");
        // A player who comes before the gateway is sure that it alone has its name.
        let mut dan = Player::connect(gateway.address(Service::Clients).unwrap(), "dan").await;
        let waits = in_queue(&mut dan, "ranked5").await;
        let status = async |method, id: &str| match director.call(method, Writer::new().str(1, id)).await {
            Ok(answer) => Reader::new(&answer).unwrap().nested(1).unwrap().str(8).unwrap_or("").to_owned(),
            Err(CallError::Refused { status: Status::NotFound, .. }) => "gone".to_owned(),
            Err(other) => panic!("{other}"),
        };
        while director.room(&room).await.is_ok_and(|room| room.members > 0) {}
        while status(Method::GET_TICKET, &ticket).await != "cancelled" {}
        while status(Method::GET_TEAM_INFO, &team).await != "gone" {}
        assert_eq!(status(Method::GET_TICKET, &waits).await, "searching");
        dan.client.close().await;
        while status(Method::GET_TICKET, &waits).await != "cancelled" {}
    });
}

#[test]
fn a_player_who_comes_back_hears_of_the_match_that_was_proposed_while_its_gateway_was_away() {
    let apart = Apart::new();
    let _matcher = apart.matcher("m", "reached");
    apart.run(async {
        let director = apart.session("director", "reached").await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, PROPOSED_DUEL)).await.unwrap();
        let ticket = |name: &str| Writer::new().str(1, "duel").nested(2, Writer::new().str(1, name));
        for round in 0.. {
            let names = [format!("ann{round}"), format!("bob{round}")];
            // The gateway's former life.
            let (former, mut notices) = apart.connect("gateway", "reached").await;
            for name in &names {
                former.call(Method::CREATE_TICKET, ticket(name)).await.unwrap();
            }
            notified(&mut notices, "matchProposedMsg").await;
            drop((former, notices));
            let gateway = apart.gateway("g");
            let mut ann = Player::connect(gateway.address(Service::Clients).unwrap(), &names[0]).await;
            let again = Writer::new().str(1, "duel");
            loop {
                match ann.ask(Method::CREATE_TICKET, again.clone()).await {
                    Err(CallError::Refused { status: Status::AlreadyInQueue, .. }) => {
                        hears(&mut ann, "matchProposedMsg").await;
                        return;
                    }
                    Err(_) => {}
                    // A slow machine: the gateway had given its players up already.
                    Ok(_) => break,
                }
            }
        }
    });
}

#[test]
fn a_gateway_that_starts_again_gives_up_the_seats_of_players_who_are_gone() {
    const QUEUE: &str = r#"{
        "name": "duel", "tick_ms": 50, "assign": "none", "seat_ttl_s": 600,
        "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}]
    }"#;
    let apart = Apart::new();
    let _matcher = apart.matcher("m", "reached");
    apart.run(async {
        let (director, mut notices) = apart.connect("director", "reached").await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).await.unwrap();
        let former = apart.session("gateway", "reached").await;
        for (server, name) in [(&former, "ann"), (&director, "bob")] {
            let ticket = Writer::new().str(1, "duel").nested(2, Writer::new().str(1, name));
            server.call(Method::CREATE_TICKET, ticket).await.unwrap();
        }
        let room = notified(&mut notices, "matchReadyMsg").await.room_id().to_owned();
        director.claim_seat("bob", &room).await.unwrap();
        let has_seat = |room: throng_client::Room| {
            room.sides.iter().any(|(_, roles)| roles.iter().any(|role| role == "ann"))
        };
        assert!(has_seat(director.room(&room).await.unwrap()));
        drop(former);
        let _gateway = apart.gateway("g");
        while has_seat(director.room(&room).await.unwrap()) {}
    });
}

#[test]
fn a_party_over_two_gateways_waits_no_longer_than_both_of_them() {
    let apart = Apart::new();
    let _matcher = apart.matcher("m", "reached");
    let (first, second) = (apart.gateway_as("g1", "g"), apart.gateway_as("g2", "h"));
    apart.run(async {
        let director = apart.session("director", "reached").await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).await.unwrap();
        let mut ann = Player::connect(first.address(Service::Clients).unwrap(), "ann").await;
        let mut bob = Player::connect(second.address(Service::Clients).unwrap(), "bob").await;
        // The other gateway reaches the matcher, too.
        ask_reached(&mut bob, Method::PING, &Writer::new()).await;
        let team = make_team([&mut ann, &mut bob]).await;
        ann.ask(Method::CREATE_TICKET, Writer::new().str(1, "ranked5").str(3, &team)).await.unwrap();
        drop(second);
        let _again = apart.gateway_as("g2", "h");
        assert_eq!(hears(&mut ann, "leaveTeamMsg").await.text(1), "bob");
        while ann.ask(Method::CREATE_TICKET, Writer::new().str(1, "ranked5")).await.is_err() {}
    });
}

#[test]
fn a_ticket_ends_with_a_player_of_another_gateway_than_the_one_that_queued_it() {
    let apart = Apart::new();
    let _matcher = apart.matcher("m", "reached");
    let (first, second) = (apart.gateway_as("g1", "g"), apart.gateway_as("g2", "h"));
    apart.run(async {
        let director = apart.session("director", "reached").await;
        let queue = QUEUE.replacen('{', r#"{"updates_s": 0, "#, 1);
        director.call(Method::PUT_QUEUE, Writer::new().str(1, &queue)).await.unwrap();
        let mut ann = Player::connect(first.address(Service::Clients).unwrap(), "ann").await;
        let mut bob = Player::connect(second.address(Service::Clients).unwrap(), "bob").await;
        for player in [&mut ann, &mut bob] {
            ask_reached(player, Method::PING, &Writer::new()).await;
        }
        // The other gateway has read what concerns it before there is a ticket.
        let known = in_room(&mut bob, "ranked").await;
        assert!(director.room(&known).await.unwrap().roles.iter().any(|role| role.id == "bob"));
        bob.ask(Method::ROLE_LEAVE_ROOM, Writer::new().str(2, &known)).await.unwrap();
        let team = make_team([&mut ann, &mut bob]).await;
        ann.ask(Method::CREATE_TICKET, Writer::new().str(1, "ranked5").str(3, &team)).await.unwrap();
        bob.client.close().await;
        assert_eq!(hears(&mut ann, "leaveTeamMsg").await.text(1), "bob");
        ann.ask(Method::CREATE_TICKET, Writer::new().str(1, "ranked5")).await.unwrap();
    });
}

#[test]
fn a_second_gateway_of_one_name_takes_no_player_of_the_first_out_of_a_room() {
    let apart = Apart::new();
    let _matcher = apart.matcher("m", "reached");
    let gateways = [apart.gateway("g"), apart.gateway("h")];
    apart.run(async {
        let [first, second] = gateways.each_ref().map(|gateway| gateway.address(Service::Clients).unwrap());
        let director = apart.session("director", "reached").await;
        let mut ann = Player::connect(first, "ann").await;
        let room = in_room(&mut ann, "ranked").await;
        let mut bob = Player::connect(second, "bob").await;
        // Each has the session after the other one.
        for _ in 0..2 {
            for player in [&mut bob, &mut ann] {
                while player.ask(Method::PING, Writer::new()).await.is_err() {}
            }
        }
        let roles = director.room(&room).await.unwrap().roles;
        assert!(roles.iter().any(|role| role.id == "ann"), "{roles:?}");
    });
}

#[test]
fn a_player_who_disconnects_leaves_its_team() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let [mut ann, mut bob] = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        make_team([&mut ann, &mut bob]).await;
        ann.client.close().await;
        let left = hears(&mut bob, "leaveTeamMsg").await;
        assert_eq!((left.text(1), left.text(22)), ("ann", "disconnected"));
    });
}

#[test]
fn a_player_who_is_gone_before_its_room_has_been_joined_does_not_stay_in_it() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let mut stays = Player::connect(addr, "stays").await;
        stays.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked")).await.unwrap();
        for name in ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"] {
            let goes = Player::connect(addr, name).await;
            let ask = MatchmakingRequest::new(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked"));
            // It closes while the request is on its way.
            tokio::select! {
                biased;
                _ = goes.client.matchmake(ask) => {}
                () = tokio::task::yield_now() => {}
            }
            goes.client.close().await;
            loop {
                let MatchmakingEvent::Notice(notice) = stays.next().await else { continue };
                if notice.name() == "roleLeaveRoomMsg" {
                    assert_eq!(notice.text(2), name);
                    break;
                }
            }
        }
    });
}

#[test]
fn a_player_who_is_gone_before_it_was_let_into_a_team_does_not_stay_in_it() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let mut stays = Player::connect(addr, "stays").await;
        let many = Writer::new().nested(2, Writer::new().u64(3, 64 << 1));
        let team = id_in(&ask_reached(&mut stays, Method::CREATE_TEAM, &many).await);
        for name in ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"] {
            let goes = Player::connect(addr, name).await;
            let ask = MatchmakingRequest::new(Method::JOIN_TEAM, Writer::new().str(2, &team));
            // It closes while the request is on its way.
            tokio::select! {
                biased;
                _ = goes.client.matchmake(ask) => {}
                () = tokio::task::yield_now() => {}
            }
            goes.client.close().await;
        }
        let mut left = BTreeSet::new();
        while left.len() < 8 {
            left.insert(hears(&mut stays, "leaveTeamMsg").await.text(1).to_owned());
        }
    });
}

#[test]
fn a_gateway_that_starts_again_takes_up_the_matches_of_its_former_life() {
    let data = tempfile::tempdir().unwrap();
    let rules = data.path().join("modes.toml");
    std::fs::write(&rules, RULES).unwrap();
    let matcher = start(&[
        ("server.only", "matcher"),
        ("server.data", data.path().join("m").to_str().unwrap()),
        ("matcher.addr", "127.0.0.1:0"),
        ("matcher.durability", "none"),
        ("matcher.rules", rules.to_str().unwrap()),
    ]);
    let addr = matcher.address(Service::Matcher).unwrap();
    let gateway = || {
        start(&[
            ("server.only", "gateway"),
            ("server.data", data.path().join("g").to_str().unwrap()),
            ("gateway.dev", "true"),
            ("gateway.servers.addr", "127.0.0.1:0"),
            ("gateway.clients.addr", "127.0.0.1:0"),
            ("gateway.matchmaking.matcher", &addr.to_string()),
        ])
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connecting = Matcher::connect(Endpoint::tcp(addr), MatcherConfig::new("director"));
    let (director, _notices) = runtime.block_on(connecting).unwrap();
    let until = |is_there: &dyn Fn(Result<throng_client::Room, CallError>) -> bool, room: &str| {
        let started = std::time::Instant::now();
        while !is_there(runtime.block_on(director.room(room))) {
            assert!(started.elapsed() < PATIENCE, "in time");
        }
    };
    // The room has asked for its world before the gateway is there.
    let mut room = String::new();
    for role in ["ann", "bob"] {
        room = runtime.block_on(director.join_random_room(&Role::new(role), "arena")).unwrap().id;
    }
    let first = gateway();
    until(&|room| room.expect("the room").data.contains_key("World"), &room);
    // The world ends with the process, and its next life deletes the room.
    drop(first);
    let _second = gateway();
    until(&|room| room.is_err() || room.is_ok_and(|room| room.is_deleting), &room);
}

#[test]
fn a_match_ends_with_its_world() {
    let world = World::start_with(WORLDS);
    world.run(async {
        let (ann, bob, .., room) = matched(&world, "brief").await;
        let director = world.matcher().await;
        // No one goes there, so it closes; who waits elsewhere is free for the next match.
        loop {
            match director.room(&room).await {
                Ok(room) if room.members > 0 && !room.is_deleting => {}
                Ok(_) | Err(CallError::Refused { status: Status::NotFound, .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        for player in [&ann, &bob] {
            assert!(!player.client.join_queue("duel").await.unwrap().is_empty());
        }
    });
}

#[test]
fn a_full_room_is_a_match_as_well() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let mut players = Vec::new();
        for index in 0..10 {
            let mut player = Player::connect(addr, &format!("p{index}")).await;
            player.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked")).await.unwrap();
            players.push(player);
        }
        // The ninth has not read since it joined.
        let (_, channel) = players[8].entered().await;
        assert_ne!(channel, ChannelId::GLOBAL);
    });
}

#[test]
fn the_leader_of_a_team_queues_it_and_no_other_member_does() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let director = world.matcher().await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, QUEUE)).await.unwrap();
        let [mut ann, mut bob] = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        let team = make_team([&mut ann, &mut bob]).await;
        let ticket = || Writer::new().str(1, "ranked5").str(3, &team);
        let refused = bob.ask(Method::CREATE_TICKET, ticket()).await;
        assert!(matches!(refused, Err(CallError::Refused { status: Status::Forbidden, .. })), "{refused:?}");
        let answer = ann.ask(Method::CREATE_TICKET, ticket()).await.unwrap();
        let shown = Reader::new(&answer).unwrap().nested(1).unwrap();
        let queued: Vec<_> =
            shown.all(3).map(|player| Reader::new(player).unwrap().str(1).unwrap().to_owned()).collect();
        assert_eq!((queued, shown.str(4).unwrap()), (vec!["ann".to_owned(), "bob".to_owned()], &*team));
        // The team waits no longer than each of its members is there.
        bob.client.close().await;
        loop {
            let MatchmakingEvent::Notice(notice) = ann.next().await else { continue };
            if notice.name() != "ticketUpdateMsg" {
                continue;
            }
            let shown = Reader::new(&notice.body).unwrap().nested(1).unwrap();
            assert_eq!(shown.str(1).unwrap(), id_in(&answer));
            if shown.str(8).unwrap() == "cancelled" {
                break;
            }
        }
    });
}

#[test]
fn a_party_waits_on_without_a_player_who_is_gone_if_its_queue_says_so() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let director = world.matcher().await;
        let queue = QUEUE.replacen('{', r#"{"on_member_lost": "shrink", "#, 1);
        director.call(Method::PUT_QUEUE, Writer::new().str(1, &queue)).await.unwrap();
        let [mut ann, mut bob] = [Player::connect(addr, "ann").await, Player::connect(addr, "bob").await];
        let team = make_team([&mut ann, &mut bob]).await;
        let queued = Writer::new().str(1, "ranked5").str(3, &team);
        let ticket = id_in(&ann.ask(Method::CREATE_TICKET, queued).await.unwrap());
        bob.client.close().await;
        let told = hears(&mut ann, "ticketUpdateMsg").await.body;
        assert_eq!(id_in(&told), ticket);
        let shown = Reader::new(&told).unwrap().nested(1).unwrap();
        let players: Vec<_> =
            shown.all(3).map(|player| Reader::new(player).unwrap().str(1).unwrap().to_owned()).collect();
        assert_eq!((shown.str(8).unwrap(), players), ("searching", vec!["ann".to_owned()]));
    });
}

#[test]
fn a_player_who_vanishes_leaves_its_room() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let mut stays = Player::connect(addr, "stays").await;
        let mut goes = Player::connect(addr, "goes").await;
        stays.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked")).await.unwrap();
        goes.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked")).await.unwrap();
        drop(goes);
        loop {
            if let MatchmakingEvent::Notice(notice) = stays.next().await
                && notice.name() == "roleLeaveRoomMsg"
            {
                assert_eq!((notice.text(2), &notice.roles[..]), ("goes", &["stays".to_owned()][..]));
                assert_eq!(notice.text(22), "disconnected");
                break;
            }
        }
    });
}

#[test]
fn a_player_who_closes_has_left_at_once_although_it_could_resume() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let mut stays = Player::connect(addr, "stays").await;
        let mut goes = Player::connect_with(addr, "goes", true).await;
        stays.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked")).await.unwrap();
        goes.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked")).await.unwrap();
        goes.client.close().await;
        // A loss would keep the place for longer than this test lasts.
        loop {
            if let MatchmakingEvent::Notice(notice) = stays.next().await
                && notice.name() == "roleLeaveRoomMsg"
            {
                assert_eq!(notice.text(2), "goes");
                break;
            }
        }
    });
}

#[test]
fn a_second_login_takes_over_the_match_and_the_first_stays_open() {
    const PAIR: &str = r#"{
        "name": "pair", "tick_ms": 50, "assign": "none",
        "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}], "rules": []
    }"#;
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let director = world.matcher().await;
        director.call(Method::PUT_QUEUE, Writer::new().str(1, PAIR)).await.unwrap();
        let mut alice = Player::connect(addr, "alice").await;
        let mut bob = Player::connect(addr, "bob").await;
        for player in [&alice, &bob] {
            player.client.join_queue("pair").await.unwrap();
        }
        let place = alice.entered().await;
        assert_eq!(bob.entered().await, place);
        // The link has nothing but the login to go by.
        let mut again = Player::connect(addr, "alice").await;
        assert_eq!(again.entered().await, place, "answered with the match");
        let (room, channel) = place;
        assert_eq!(bob.play(channel, 1).await.len(), 1);
        assert_eq!(again.play(channel, 2).await.len(), 2, "both hear of it in the match");
        // The older connection is out of the match, and open.
        assert!(!alice.ask(Method::GET_QUEUE_STATS, Writer::new().str(1, "pair")).await.unwrap().is_empty());
        let back = alice.entered().await;
        assert_eq!(back, (room.clone(), channel), "whoever asked last has it");
        drop(again);
        let leave = Writer::new().str(2, &room);
        alice.ask(Method::ROLE_LEAVE_ROOM, leave).await.unwrap();
        while !matches!(alice.next().await, MatchmakingEvent::Left { .. }) {}
    });
}

#[test]
fn players_ask_for_themselves_and_hear_why_not() {
    let world = World::start();
    let addr = world.addr(Service::Clients);
    world.run(async {
        let mut player = Player::connect(addr, "alice").await;
        let status = |result| match result {
            Err(CallError::Refused { status, .. }) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!(status(player.ask(Method::DRAIN, Writer::new()).await), Status::Forbidden);
        assert_eq!(
            status(player.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("nonsense")).await),
            Status::UnknownMode
        );
        player.ask(Method::ROLE_JOIN_RANDOM_ROOM, join("ranked")).await.unwrap();
        let director = world.matcher().await;
        let answer = director.call(Method::GET_ROOM_LIST, Writer::new().str(1, "ranked")).await.unwrap();
        let room = Reader::new(&answer).unwrap().str(1).unwrap().to_owned();
        let room = director.room(&room).await.unwrap();
        assert_eq!((room.roles[0].id.as_str(), room.roles[0].srv.as_str()), ("alice", "gateway"));
    });
}

#[test]
fn the_sample_of_the_client_library_gathers_a_match() {
    let world = World::start();
    let addr = world.addr(Service::Matcher).to_string();
    let players = ["alice", "bob", "carol", "dave"].map(str::to_owned);
    let mut lines = Vec::new();
    world.run(example::gather(&addr, &players, |line| lines.push(line))).unwrap();
    assert_eq!(lines[0], "alice is number 1 in 2v2");
    assert_eq!(lines.last().unwrap(), "match: alice, bob, carol, dave");
}
