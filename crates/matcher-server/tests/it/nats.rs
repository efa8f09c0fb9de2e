//! The matcher on a real bus. `scripts/setup --tests` builds the server; where it is missing the
//! tests say so.
#![cfg(feature = "nats")]

use std::time::{Duration, Instant};

use crate::bus;

use bus::{Bus, Caller, bus, bus_with, room_of, run, text};
use futures_util::StreamExt as _;
use throng_matcher::{Config, Scope};
use throng_matcher_server::{
    Durability, Gate, Identity, NatsOptions, Options, Service, Takeover, Tokens, nats_header as header,
    serve_nats, start, take_over,
};
use throng_wire::matcher::{Method, Status, Writer};
use tokio::sync::oneshot;

/// A matcher on the bus, on a thread of its own. When dropped, its connection breaks.
struct Node {
    _bridge: oneshot::Sender<()>,
    service: Service,
}

impl Node {
    /// Ids of rooms come from the secret: no two matchers share theirs.
    fn start(bus: &Bus, tokens: &str, secret: u8) -> Node {
        Node::start_with(bus, tokens, secret, Takeover::Empty)
    }

    fn start_with(bus: &Bus, tokens: &str, secret: u8, takeover: Takeover) -> Node {
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
            gate: Gate::leased(),
        })
        .unwrap();
        let name = format!("node{secret}");
        let options = NatsOptions {
            url: bus.url.clone(),
            bus_token: String::new(),
            area: "1".to_owned(),
            tokens,
            identity: Identity {
                incarnation: name.clone(),
                journal: name.clone(),
                machine: "m".to_owned(),
                addresses: vec![name],
            },
            kept: None,
            memory: None,
            takeover,
            requests_max: 256,
        };
        let handle = service.handle().clone();
        let (bridge, dropped) = oneshot::channel();
        std::thread::spawn(move || {
            // One thread: what a task leaves to another happens as late as it can, so that an order
            // that only luck kept shows. The stream of a server that began after its first request
            // did, for one.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve_nats(handle, options, async { drop(dropped.await) })).unwrap();
        });
        Node { _bridge: bridge, service }
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
        let stranger = caller.with_token("wrong");
        assert_eq!(stranger.ask(Method::PING, Writer::new()).await.status, Status::Unauthenticated);
    });
}

#[test]
fn a_second_matcher_waits_and_serves_nothing_until_the_first_is_lost() {
    let Some(bus) = bus() else { return };
    let first = Node::start(&bus, "", 1);
    run(async {
        let caller = Caller::connect(&bus, "").await;
        assert_eq!(caller.ask(Method::PING, Writer::new()).await.matcher, "node1");
        let second = Node::start(&bus, "", 2);
        let handle = second.service.handle();
        while !handle.gate().why_closed().is_some_and(|why| why.contains("node1 serves")) {
            tokio::task::yield_now().await;
        }
        let body = Writer::new().nested(1, Writer::new().str(1, "a")).nested(2, Writer::new().str(1, "2v2"));
        let refused = handle.ask("s", Scope::Admin, Method::ROLE_CREATE_ROOM, body.into_bytes()).await;
        assert_eq!(refused.0, Status::Unavailable, "not in its own process either");
        let room = room_of(&caller.join("a", "2v2").await).0;
        drop(first);
        // Its lease ends, and with it what it had.
        assert_eq!(caller.ask(Method::PING, Writer::new()).await.matcher, "node2");
        assert_eq!(caller.room(&room).await.status, Status::NotFound);
        assert_eq!(handle.gate().why_closed(), None);
    });
}

#[test]
fn a_holder_serves_on_after_the_bus_has_lost_its_storage() {
    let Some(mut bus) = bus() else { return };
    let _first = Node::start_with(&bus, "", 1, Takeover::Wait);
    run(async {
        let caller = Caller::connect(&bus, "").await;
        let room = room_of(&caller.join("a", "2v2").await).0;
        let second = Node::start_with(&bus, "", 2, Takeover::Wait);
        let waits = || second.service.handle().gate().why_closed();
        while !waits().is_some_and(|why| why.contains("node1 serves")) {
            tokio::task::yield_now().await;
        }
        bus.kill();
        bus.lose_storage();
        bus.start_again();
        assert_eq!(room_of(&caller.room(&room).await).0, room);
        // Its lease is renewed: a whole one later it still serves.
        let until = Instant::now() + Duration::from_secs(13);
        while Instant::now() < until {
            assert_eq!(caller.ask(Method::PING, Writer::new()).await.matcher, "node1");
            assert!(waits().is_some());
        }
    });
}

#[test]
fn a_takeover_that_is_refused_makes_no_bucket() {
    let Some(bus) = bus() else { return };
    run(async {
        let why = take_over(&bus.url, "", "1").await.unwrap_err();
        assert!(why.contains("no matcher has ever served"), "{why}");
        let client = async_nats::connect(&bus.url).await.unwrap();
        let context = async_nats::jetstream::new(client);
        assert!(context.get_key_value("throng-matcher").await.is_err());
    });
}

#[test]
fn a_response_that_the_bus_does_not_take_is_answered_as_too_large() {
    let Some(bus) = bus_with("max_payload: 4096\n") else { return };
    let _node = Node::start(&bus, "", 1);
    run(async {
        let caller = Caller::connect(&bus, "").await;
        let name = |number: u32| format!("{number:0120}");
        let mode = Writer::new().str(1, "90v90").into_bytes();
        let (room, _) = room_of(&caller.join(&name(0), "90v90").await);
        let mut statuses = Vec::new();
        for number in 1..40 {
            let body = Writer::new().nested(1, Writer::new().str(1, &name(number))).bytes(2, &mode);
            statuses.push(caller.ask(Method::ROLE_JOIN_RANDOM_ROOM, body).await.status);
        }
        assert_eq!((statuses.first(), statuses.last()), (Some(&Status::Ok), Some(&Status::TooLarge)));
        assert_eq!(caller.room(&room).await.status, Status::TooLarge);
        assert_eq!(caller.ask(Method::PING, Writer::new()).await.status, Status::Ok);
    });
}

#[test]
fn a_server_whose_id_cannot_be_a_part_of_a_subject_is_refused() {
    let Some(bus) = bus() else { return };
    let _node = Node::start(&bus, "", 1);
    run(async {
        let caller = Caller::connect(&bus, "").await;
        assert_eq!(caller.ask(Method::PING, Writer::new()).await.status, Status::Ok);
        for (id, expected) in [
            ("a.b", Status::Ok),
            (".", Status::Invalid),
            ("..", Status::Invalid),
            ("a..b", Status::Invalid),
            (".a", Status::Invalid),
            ("a.", Status::Invalid),
            ("a*", Status::Invalid),
        ] {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert(header::SERVER, id);
            headers.insert(header::NOTIFY, "yes");
            let subject = "throng.matcher.1.Ping";
            let answer = caller.client.request_with_headers(subject, headers, "".into()).await.unwrap();
            assert_eq!(text(&answer, header::STATUS), (expected as u16).to_string(), "{id}");
        }
    });
}
