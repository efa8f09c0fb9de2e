//! The matcher on a real bus. `scripts/setup --tests` builds the server; where it is missing the tests say so.
#![cfg(feature = "nats")]

use crate::bus;

use std::collections::BTreeSet;
use std::time::Duration;

use bus::{Bus, Caller, bus, room_of, run, text};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use throng_matcher::Config;
use throng_matcher_server::{
    Durability, NatsOptions, Options, Service, Tokens, nats_header as header, serve_nats, start,
};
use throng_wire::matcher::{Method, Status, Writer};
use tokio::sync::oneshot;

/// A matcher on the bus, on a thread of its own. When dropped, its connection breaks; what it holds it holds until the
/// leases end.
struct Node {
    _bridge: oneshot::Sender<()>,
    _service: Service,
}

impl Node {
    /// Ids of rooms come from the secret: no two matchers share theirs.
    fn start(bus: &Bus, tokens: &str, secret: u8) -> Node {
        Node::with(bus, tokens, secret, Duration::from_secs(3), 256)
    }

    fn with(bus: &Bus, tokens: &str, secret: u8, lease: Duration, requests_max: usize) -> Node {
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
            policies: throng_matcher_server::Policies::default(),
        })
        .unwrap();
        let options = NatsOptions {
            url: bus.url.clone(),
            bus_token: String::new(),
            area: "1".to_owned(),
            tokens,
            lease,
            requests_max,
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
        let first = caller.spread().await;
        let present: BTreeSet<String> = first.iter().map(|(_, matcher, _)| matcher.clone()).collect();
        for (index, (mode, _, room)) in first.iter().enumerate() {
            let second = caller.join(&format!("b{index}"), mode).await;
            assert_eq!(room_of(&second), (room.clone(), 2), "the mode has one home, whoever is asked");
            let seen = caller.room(room).await;
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

#[test]
fn modes_whose_matcher_is_lost_leave_room_for_the_others() {
    let Some(bus) = bus() else { return };
    let nodes = [1, 2].map(|secret| Node::with(&bus, "", secret, Duration::from_secs(100), 8));
    run(async {
        let caller = Caller::connect(&bus, "").await;
        let first = caller.spread().await;
        let present: BTreeSet<String> = first.iter().map(|(_, matcher, _)| matcher.clone()).collect();
        let [gone, _left] = nodes;
        drop(gone);
        let lost = caller.wait_for_a_loss(&present).await;
        let mode_of = |wanted: bool| {
            let found = first.iter().find(|(_, matcher, _)| (*matcher == lost) == wanted);
            found.map(|(mode, ..)| mode.clone()).unwrap()
        };
        // Twice as many as it serves at a time.
        let lost_mode = mode_of(true);
        let body = |role: usize, mode: &str| {
            let role = Writer::new().str(1, &format!("r{role}"));
            Writer::new().nested(1, role).nested(2, Writer::new().str(1, mode))
        };
        let ask = |role, mode: &str| caller.ask(Method::ROLE_JOIN_RANDOM_ROOM, body(role, mode));
        let mut waiting: FuturesUnordered<_> = (0..16).map(|role| ask(role, &lost_mode)).collect();
        let mut refused = 0;
        let served = async { while ask(99, &mode_of(false)).await.status != Status::Ok {} };
        tokio::pin!(served);
        loop {
            tokio::select! {
                biased;
                Some(answer) = waiting.next() => {
                    assert_eq!(answer.status, Status::Overloaded, "the lease is longer than the test");
                    refused += 1;
                }
                () = &mut served => break,
            }
        }
        assert!(
            refused < 16 && waiting.len() == 16 - refused,
            "{refused} refused before anybody else was served"
        );
    });
}
