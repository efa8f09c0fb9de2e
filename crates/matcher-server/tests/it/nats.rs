//! The matcher on a real bus. `scripts/setup --tests` builds the server; where it is missing the
//! tests say so.
#![cfg(feature = "nats")]

use crate::bus;

use bus::{Bus, Caller, bus, room_of, run, text};
use futures_util::StreamExt as _;
use throng_matcher::{Config, Scope};
use throng_matcher_server::{
    Durability, Gate, Identity, NatsOptions, Options, Service, Takeover, Tokens, nats_header as header,
    serve_nats, start,
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
            takeover: Takeover::Empty,
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
