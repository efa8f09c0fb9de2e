//! Matches with worlds of their own, on several nodes.

use std::time::Instant;

use throng_client::{
    Client, Event, Events, MatchWorld, Matcher, MatcherConfig, MatchmakingEvent, MatchmakingRequest, Notices,
    SessionConfig,
};
use throng_wire::matcher::{Method, Writer};

use super::{Cluster, Node, PATIENCE, TOKEN, enter, post, world};
use crate::bus::bus;
use crate::nats::signal;
use crate::process::{Process, up};

/// A matcher with a queue whose matches get worlds of the class `duel` from `n2`.
struct Duels {
    _process: Process,
    address: String,
}

impl Duels {
    const QUEUE: &str = r#"{
        "name": "duel", "tick_ms": 50, "assign": "external", "allocator": "n2", "world": {"class": "duel"},
        "sides": [{"name": "red", "min": 1, "max": 1}, {"name": "blue", "min": 1, "max": 1}]
    }"#;

    fn start(cluster: &Cluster) -> Duels {
        let mut matcher = up(cluster.folder.path(), "matcher", "m");
        let (process, said) = Process::ready(matcher.args(["--matcher.addr", "127.0.0.1:0"]));
        let line = said.iter().find(|line| line.trim_start().starts_with("matcher")).expect("its address");
        let address = line.split_whitespace().find_map(|word| word.strip_prefix("tcp://"));
        Duels { _process: process, address: address.expect("an address").to_owned() }
    }

    /// Links the players of a node to the matcher, and has it know the class with this setting.
    fn link(&self, cluster: &Cluster, node: &str, setting: &str) {
        let address = &self.address;
        let link = format!("[gateway.matchmaking]\nmatcher = {address:?}\nsrv = {node:?}\n");
        cluster.add(node, &format!("{link}[[gateway.classes]]\nname = \"duel\"\n{setting}\n"));
    }

    /// A session with the matcher, which has its queue then.
    async fn direct(&self) -> (Matcher, Notices) {
        let endpoint = format!("tcp://{}", self.address).parse().expect("an address");
        let config = MatcherConfig { call_timeout: PATIENCE, ..MatcherConfig::new("director") };
        let (director, notices) = Matcher::connect(endpoint, config).await.expect("it listens");
        director.call(Method::PUT_QUEUE, Writer::new().str(1, Self::QUEUE)).await.expect("a queue");
        (director, notices)
    }
}

async fn log_in(address: &str, name: &str, token: &str) -> (Client, Events) {
    let config = SessionConfig {
        auth_timeout: PATIENCE,
        request_timeout: PATIENCE,
        ..SessionConfig::client(name, token)
    };
    Client::connect(address.parse().expect("an address"), config).await.expect("it enters")
}

async fn queue(client: &Client) {
    // The link may still be on its way to the matcher.
    while client.join_queue("duel").await.is_err() {}
}

/// The room and the world of a player's match, once it is ready.
async fn matched(events: &mut Events) -> (String, MatchWorld) {
    loop {
        if let Event::Matchmaking { event: MatchmakingEvent::Notice(notice), .. } =
            events.next().await.expect("it is connected")
            && let Some(found) = notice.match_world()
        {
            return (notice.room_id().to_owned(), found);
        }
    }
}

#[test]
fn a_match_gets_a_world_and_tickets_that_every_node_accepts() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::ready(&bus);
    for node in ["n1", "n2"] {
        cluster.admit_operator(node);
        let class = "[[gateway.classes]]\nname = \"duel\"\nworld_idle_s = 1\nconnections_max = 8\n";
        cluster.add(node, class);
    }
    let (n1, n2) = (cluster.start("n1"), cluster.start("n2"));
    let open = |node: &Node, class: &str| {
        let body = format!(r#"{{"class":"{class}","room":"r1","players":["ann"],"servers":["s1","s2"]}}"#);
        post(node, "/api/v1/matches", TOKEN, &body)
    };
    let mut homes = std::collections::BTreeSet::new();
    let until = Instant::now() + PATIENCE;
    // Until both nodes have been the home of one.
    while homes.len() < 2 {
        assert!(Instant::now() < until, "{homes:?}");
        let (status, found) = open(&n1, "duel");
        assert_eq!(status, "200", "{found}");
        let name = found["World"].as_str().expect("a name");
        let address = found["Addresses"]["server"]["tcp"].as_str().expect("an address");
        let home = [&n1, &n2].into_iter().find(|node| address == format!("tcp://{}", node.servers));
        let home = home.expect("one of the nodes");
        if !homes.insert(home.name.clone()) {
            continue;
        }
        let ticket = |server: &str| found["Tickets"]["servers"][server].as_str().expect("a ticket");
        let config = |server: &str, token: &str| {
            let (pit, login_token) = (server.to_owned(), token.to_owned());
            SessionConfig { world: None, pit, login_token, ..world("") }
        };
        let visitors = [(&n1, "s1"), (&n2, "s2")]
            .map(|(node, server)| enter(node, config(server, ticket(server))).expect("the ticket admits it"));
        let place = cluster.act("n1", &["where", name]).expect("it is open");
        assert!(place.starts_with(&format!("{name} serving {}", home.name)), "{place}");
        assert!(enter(&n1, config("s2", ticket("s1"))).is_err(), "the ticket of another");
        assert!(enter(&n1, world(name)).is_err(), "without a ticket");
        drop(visitors);
        // Its record goes with it.
        while cluster.act("n1", &["where", name]).is_ok() {
            assert!(Instant::now() < until, "it closes");
        }
    }
    let (status, why) = open(&n1, "dual");
    assert!(status == "409" && why.to_string().contains("did you mean `duel`?"), "{status} {why}");
}

#[test]
fn players_of_a_queue_go_to_the_world_of_their_match_on_any_node() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::ready(&bus);
    let matcher = Duels::start(&cluster);
    for node in ["n1", "n2"] {
        matcher.link(&cluster, node, "connections_max = 8");
    }
    // The players are at the home of the default world, and the other node opens the worlds.
    let n1 = cluster.start("n1");
    assert_eq!(cluster.homes()[0], "n1");
    let _n2 = cluster.start("n2");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let played = async {
        let (director, _notices) = matcher.direct().await;
        let mut players = Vec::new();
        for name in ["ann", "bob"] {
            let (client, events) = log_in(&format!("ws://{}", n1.players), name, "").await;
            queue(&client).await;
            players.push((name, client, events));
        }
        let (mut inside, mut room, mut world) = (Vec::new(), String::new(), String::new());
        for (name, client, mut events) in players {
            let (in_room, found) = matched(&mut events).await;
            found.name.clone_into(&mut world);
            room = in_room;
            while director.room(&room).await.expect("it is there").roles.iter().all(|role| role.id != name) {}
            client.close().await;
            inside.push(log_in(&found.address, name, &found.ticket).await);
        }
        let place = cluster.act("n1", &["where", &world]).expect("it is open");
        assert!(place.starts_with(&format!("{world} serving")), "{place}");
        // In the world of their match they reach the matcher too.
        for (client, _) in &inside {
            let ask = MatchmakingRequest::new(Method::GET_QUEUE_STATS, Writer::new().str(1, "duel"));
            client.matchmake(ask).await.expect("an answer");
        }
        assert_eq!(director.room(&room).await.expect("it is there").members, 2);
        director.delete_room(&room).await.expect("it was there");
        while cluster.act("n1", &["where", &world]).is_ok() {}
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, played).await.expect("in time") });
}

#[test]
fn the_room_of_a_match_outlives_nodes_and_names_the_home_of_its_world() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::ready(&bus);
    let matcher = Duels::start(&cluster);
    let configure = |node: &str, labels: &str| {
        cluster.configure(node, &bus.url, &format!("node = {node:?}\nlabels = {labels}"));
        matcher.link(&cluster, node, "labels = [\"duels=yes\"]");
    };
    // Players are at n1, n2 is the allocator, and n3 the only node that takes worlds of matches.
    let (takes, takes_not) = ("[\"duels=yes\"]", "[\"duels=no\"]");
    configure("n1", takes_not);
    configure("n2", takes_not);
    configure("n3", takes);
    let mut n1 = cluster.start("n1");
    assert_eq!(cluster.homes()[0], "n1");
    let (mut n2, mut n3) = (cluster.start("n2"), cluster.start("n3"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (director, _notices) = runtime.block_on(matcher.direct());
    let played = async {
        let mut players = Vec::new();
        for name in ["ann", "bob", "cid"] {
            players.push(log_in(&format!("ws://{}", n1.players), name, "").await);
        }
        for (client, _) in &players[..2] {
            queue(client).await;
        }
        let mode = Writer::new().nested(2, Writer::new().str(1, "2v2"));
        let join = MatchmakingRequest::new(Method::ROLE_JOIN_RANDOM_ROOM, mode);
        players[2].0.matchmake(join).await.expect("a room");
        let (room, _) = matched(&mut players[0].1).await;
        while director.room(&room).await.expect("it is there").members < 2 {}
        (room, players)
    };
    let (room, players) = runtime
        .block_on(async { tokio::time::timeout(PATIENCE, played).await })
        .expect("the match has a world in time");
    let shown = || runtime.block_on(director.room(&room)).expect("the room is there");
    let world: String = serde_json::from_str(&shown().data["World"]).expect("its name");
    let names = |node: &Node| shown().data["connection"].contains(&node.players);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "{what}");
        }
    };
    let is_home = |node: &str| {
        let place = cluster.act("n2", &["where", &world]).unwrap_or_default();
        place.starts_with(&format!("{world} serving {node}"))
    };
    assert!(is_home("n3") && names(&n3));

    // The node where the players asked stops: they keep their places in the match, and no others.
    signal(n1.process.0.id(), "-TERM");
    assert!(n1.process.0.wait().expect("it ends").success());
    drop(players);
    let cid = || runtime.block_on(director.call(Method::GET_ROLE, Writer::new().str(1, "cid")));
    until("the other player is gone", &|| cid().is_err());
    assert_eq!(shown().members, 2);

    // The allocator starts again, and follows the world when that moves.
    n2.process.kill();
    configure("n2", takes);
    let n2 = cluster.start("n2");
    signal(n3.process.0.id(), "-TERM");
    assert!(n3.process.0.wait().expect("it ends").success());
    until("the world moves", &|| is_home("n2"));
    until("the room names its home", &|| names(&n2));
    assert_eq!(shown().members, 2);

    // The room ends while the allocator is away, which closes the world when it is back.
    let mut n2 = n2;
    n2.process.kill();
    runtime.block_on(director.delete_room(&room)).expect("it was there");
    until("the room ends", &|| runtime.block_on(director.room(&room)).is_err());
    let _n2 = cluster.start("n2");
    until("the world closes", &|| cluster.act("n2", &["where", &world]).is_err());
}
