//! Gateways whose players use the matcher of an area, while that one is killed, loses its state or
//! stands still, and another one takes the area over.
#![cfg(feature = "nats")]

use std::time::Duration;

use throng_client::{
    CallError, Client, Event, Events, Matcher, MatcherConfig, MatchmakingEvent, MatchmakingRequest, Notice,
    RequestError, SessionConfig,
};
use throng_wire::matcher::{Method, Reader, Status, Writer};

use crate::bus::{Bus, bus, run};
use crate::nats::{signal, take_over};
use crate::process::{Process, up};

/// Far beyond what a step needs, on a machine that does a lot else.
const PATIENCE: Duration = Duration::from_secs(300);
const RULES: &str = r#"
[modes.lobby]
capacity = 8
on_full = "keep"

[[queues]]
name = "pair"
tick_ms = 50
sides = [{ name = "red", min = 1, max = 1 }, { name = "blue", min = 1, max = 1 }]

# Its matches wait for a server.
[[queues]]
name = "late"
tick_ms = 50
assign = "external"
assign_timeout_s = 3600
sides = [{ name = "red", min = 1, max = 1 }, { name = "blue", min = 1, max = 1 }]
"#;

/// Matchers `a` and `b` of an area, and gateways that know both.
struct Area {
    folder: tempfile::TempDir,
    bus: Bus,
}

impl Area {
    fn new(bus: Bus) -> Area {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in
            [("rules.toml", RULES), ("tokens", "gateway server\noperator trusted\n"), ("token", "gateway")]
        {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        Area { folder, bus }
    }

    fn matcher(&self, name: &str, takeover: &str) -> Process {
        let mut command = up(self.folder.path(), "matcher", name);
        command
            .args(["--matcher.unix_path", &format!("{name}.sock"), "--matcher.addr", ""])
            .args(["--matcher.tokens_file", "tokens"])
            .args(["--matcher.area", "1", "--matcher.nats_url", &self.bus.url])
            .args(["--matcher.takeover", takeover, "--matcher.rules", "rules.toml"])
            .args(["--matcher.presence_grace_ms", "600000"]);
        Process::ready(&mut command).0
    }

    /// A gateway, and where its players go.
    fn gateway(&self, name: &str) -> (Process, String) {
        let mut command = up(self.folder.path(), "gateway", name);
        command
            .args(["--gateway.servers.addr", "127.0.0.1:0", "--gateway.clients.addr", "127.0.0.1:0"])
            .args(["--gateway.matchmaking.matcher", "unix://a.sock, unix://b.sock"])
            .args(["--gateway.matchmaking.srv", name, "--gateway.matchmaking.token_file", "token"]);
        let (process, said) = Process::ready(&mut command);
        let players = said.iter().find(|line| line.trim_start().starts_with("players"));
        let mut players = players.into_iter().flat_map(|line| line.split_whitespace());
        let address = players.find(|word| word.starts_with("tcp://")).expect("an address");
        (process, address.to_owned())
    }
}

struct Player {
    client: Client,
    events: Events,
}

impl Player {
    async fn log_in(address: &str, name: &str) -> Player {
        let config = SessionConfig {
            auth_timeout: PATIENCE,
            request_timeout: PATIENCE,
            ..SessionConfig::client(name, "")
        };
        let endpoint = address.parse().expect("an address");
        let (client, events) = Client::connect(endpoint, config).await.expect("it enters");
        Player { client, events }
    }

    /// Asks until a matcher serves. Only requests that may be repeated.
    async fn ask(&self, request: MatchmakingRequest) -> Result<Vec<u8>, Status> {
        loop {
            match self.client.matchmake(request.clone()).await {
                Ok(answer) => return Ok(answer.to_vec()),
                Err(RequestError::Matcher(CallError::Refused { status, .. })) => match status {
                    // The session of the link is over, or the matcher does not serve.
                    Status::Internal | Status::Unavailable | Status::Timeout => {}
                    _ => return Err(status),
                },
                Err(RequestError::Matcher(_)) => {}
                Err(other) => panic!("{other}"),
            }
            tokio::task::yield_now().await;
        }
    }

    /// The room of the mode `lobby` that it is in from now on.
    async fn lobby(&self) -> String {
        let answer = self.ask(MatchmakingRequest::join_random_room("lobby")).await.expect("a room");
        Reader::new(&answer).expect("a body").nested(1).expect("a room").str(1).expect("its id").to_owned()
    }

    async fn queue(&self, queue: &str) -> Result<String, Status> {
        let answer = self.ask(MatchmakingRequest::join_queue(queue)).await?;
        Ok(ticket(&answer, 1))
    }

    async fn status(&self, id: &str) -> Result<String, Status> {
        let get = MatchmakingRequest::new(Method::GET_TICKET, Writer::new().str(1, id));
        Ok(ticket(&self.ask(get).await?, 8))
    }

    /// Waits for a notification. The end of its ticket or room is none of those before it.
    async fn hears(&mut self, is_it: impl Fn(&Notice) -> bool) {
        loop {
            let event = self.events.next().await.expect("it is connected");
            let Event::Matchmaking { event: MatchmakingEvent::Notice(notice), .. } = event else { continue };
            if is_it(&notice) {
                return;
            }
            assert!(!is_cancelled(&notice) && !is_deleted(&notice), "{notice:?}");
        }
    }

    /// Takes what it has been told until now: none of it is the end of its ticket or room.
    async fn lost_nothing(&mut self) {
        while let Ok(event) = tokio::time::timeout(Duration::ZERO, self.events.next()).await {
            if let Some(Event::Matchmaking { event: MatchmakingEvent::Notice(notice), .. }) = event {
                assert!(!is_cancelled(&notice) && !is_deleted(&notice), "{notice:?}");
            }
        }
    }

    async fn is_matched(&mut self) {
        self.hears(|notice| notice.name() == "matchReadyMsg").await;
    }
}

/// A string of the ticket in an answer or notification.
fn ticket(body: &[u8], field: u32) -> String {
    let ticket = Reader::new(body).expect("a body").nested(1).expect("a ticket");
    ticket.str(field).expect("text").to_owned()
}

fn is_cancelled(notice: &Notice) -> bool {
    notice.name() == "ticketUpdateMsg"
        && ticket(&notice.body, 8) == "cancelled"
        && ticket(&notice.body, 10) == "disconnected"
}

fn is_deleted(notice: &Notice) -> bool {
    notice.name() == "roleLeaveRoomMsg" && notice.text(22) == "room_deleted"
}

#[test]
fn links_follow_a_takeover_and_players_hear_what_was_lost() {
    let Some(bus) = bus() else { return };
    let area = Area::new(bus);
    let mut holder = area.matcher("a", "wait");
    let [(_first, here), (_second, there)] = ["g1", "g2"].map(|name| area.gateway(name));
    run(async {
        let [mut ann, mut bob, mut cid, mut dan] = [
            Player::log_in(&here, "ann").await,
            Player::log_in(&here, "bob").await,
            Player::log_in(&here, "cid").await,
            Player::log_in(&here, "dan").await,
        ];
        let mut eve = Player::log_in(&there, "eve").await;
        let queued = ann.queue("pair").await.expect("a ticket");
        let waiting = cid.queue("late").await.expect("a ticket");
        dan.queue("late").await.expect("a ticket");
        let room = bob.lobby().await;
        assert_eq!(eve.lobby().await, room);
        while cid.status(&waiting).await != Ok("placing".to_owned()) {}
        let _other = area.matcher("b", "wait");
        assert!(take_over(&area.bus).expect_err("it serves").contains("serves it; stop it first"));

        // The holder comes back with its state.
        holder.kill();
        let mut holder = area.matcher("a", "wait");
        for player in [&bob, &eve] {
            assert_eq!(player.lobby().await, room);
        }
        assert_eq!(ann.queue("pair").await, Err(Status::AlreadyInQueue));
        assert_eq!(ann.status(&queued).await.as_deref(), Ok("searching"));
        assert_eq!(cid.status(&waiting).await.as_deref(), Ok("placing"));
        for player in [&mut ann, &mut bob, &mut cid, &mut dan, &mut eve] {
            player.lost_nothing().await;
        }

        // It comes back without, and an operator gives the state up: either of the two serves.
        holder.kill();
        std::fs::remove_dir_all(area.folder.path().join("a")).expect("its folder");
        let _holder = area.matcher("a", "wait");
        take_over(&area.bus).expect("its holder is lost");
        for player in [&mut ann, &mut cid, &mut dan] {
            player.hears(is_cancelled).await;
        }
        for player in [&mut bob, &mut eve] {
            player.hears(is_deleted).await;
        }
        assert_eq!(ann.status(&queued).await, Err(Status::NotFound));
        let next = bob.lobby().await;
        assert!(next != room && eve.lobby().await == next);
        for player in [&ann, &cid] {
            player.queue("pair").await.expect("it waits nowhere");
        }
        for player in [&mut ann, &mut cid] {
            player.is_matched().await;
        }
    });
}

#[test]
fn a_gateway_that_was_killed_gives_up_the_places_of_the_players_of_its_former_life() {
    let Some(bus) = bus() else { return };
    let area = Area::new(bus);
    let _matcher = area.matcher("a", "wait");
    let [(mut first, here), (_second, there)] = ["g1", "g2"].map(|name| area.gateway(name));
    run(async {
        let socket = format!("unix://{}", area.folder.path().join("a.sock").display());
        let config = MatcherConfig { call_timeout: PATIENCE, ..MatcherConfig::new("d").token("operator") };
        let (director, _notices) =
            Matcher::connect(socket.parse().expect("an address"), config).await.expect("it listens");
        let mut players = Vec::new();
        for name in ["ann", "bob", "cid", "dan"] {
            players.push(Player::log_in(&here, name).await);
        }
        let mut eve = Player::log_in(&there, "eve").await;
        let [ann, bob, cid, dan] = &players[..] else { unreachable!("there are four") };
        let queued = ann.queue("pair").await.expect("a ticket");
        let room = bob.lobby().await;
        assert_eq!(eve.lobby().await, room);
        let waiting = cid.queue("late").await.expect("a ticket");
        dan.queue("late").await.expect("a ticket");
        while eve.status(&waiting).await != Ok("placing".to_owned()) {}
        let shown = MatchmakingRequest::new(Method::GET_TICKET, Writer::new().str(1, &waiting));
        let awaited = ticket(&eve.ask(shown).await.expect("it is known"), 12);
        first.kill();
        let (_first, _) = area.gateway("g1");
        eve.hears(|notice| notice.name() == "roleLeaveRoomMsg" && notice.text(2) == "bob").await;
        while eve.status(&queued).await != Ok("cancelled".to_owned()) {}
        // Nobody comes to the match, whose server is found only now.
        let place = Writer::new().str(1, &awaited).str(2, "10.0.0.1:7777");
        director.call(Method::ASSIGN_MATCH, place).await.expect("it waits");
        while director.room(&awaited).await.is_ok_and(|room| !room.is_deleting) {}
        eve.lost_nothing().await;
    });
}

#[test]
fn links_leave_a_matcher_that_stands_still_for_the_one_that_has_taken_its_area_over() {
    let Some(bus) = bus() else { return };
    let area = Area::new(bus);
    let mut holder = area.matcher("a", "wait");
    let (_gateway, address) = area.gateway("g1");
    run(async {
        let [mut ann, mut bob] =
            [Player::log_in(&address, "ann").await, Player::log_in(&address, "bob").await];
        ann.queue("pair").await.expect("a ticket");
        let room = bob.lobby().await;
        let _other = area.matcher("b", "empty");
        signal(holder.0.id(), "-STOP");
        ann.hears(is_cancelled).await;
        bob.hears(is_deleted).await;
        let next = bob.lobby().await;
        assert_ne!(next, room);
        // The one that stood still ends, and takes no link back.
        signal(holder.0.id(), "-CONT");
        assert!(!holder.0.wait().expect("it ends").success());
        assert_eq!(bob.lobby().await, next);
        bob.lost_nothing().await;
        let leave = MatchmakingRequest::new(Method::ROLE_LEAVE_ROOM, Writer::new().str(2, &next));
        bob.ask(leave).await.expect("it is in the room");
        for player in [&ann, &bob] {
            player.queue("pair").await.expect("it waits nowhere");
        }
        for player in [&mut ann, &mut bob] {
            player.is_matched().await;
        }
    });
}
