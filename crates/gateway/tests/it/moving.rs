//! Connections that move to another world of the process with their login. Cluster §3, §4.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use throng_gateway::{
    Abuse, AcceptRefusal, AuthTicket, CloseReason, Closed, Config, ConnHandle, ConnKind, Effect, Framing,
    Mail, Recovery, Shard, ShardIndex, StateMachine, Verdict, WorldChoice,
};
use throng_stdx::Instant;
use throng_wire::channeldpb::auth_result_message::AuthResult;
use throng_wire::channeldpb::{AuthMessage, AuthResultMessage, Elsewhere, ListChannelMessage, MessageType};
use throng_wire::{FrameReader, FrameWriter, MessagePack};

use crate::common::{UNIX_START_NS, schemas};

const HUB: u32 = 7;
const HUB_NAME: &str = "hub";

/// Shards of one world, and what they have put out.
struct World {
    shards: Vec<Shard>,
    effects: VecDeque<(usize, Effect)>,
    now: Instant,
}

/// A connection of a world.
#[derive(Clone, Copy)]
struct Peer {
    conn: ConnHandle,
    shard: usize,
}

impl World {
    fn new(world: u32, count: u16, change: impl FnOnce(&mut Config)) -> World {
        let mut config = Config {
            world: if world == HUB { HUB_NAME.into() } else { Default::default() },
            auth_provider: true,
            servers_bypass_auth: false,
            client_state_machine: StateMachine::client_managing_channels().into(),
            recovery: Recovery { client_window: Duration::from_secs(30), ..Recovery::default() },
            ..Config::reference()
        };
        change(&mut config);
        let config = Arc::new(config);
        let shard = |index| {
            let seed = u64::from(world) + 1;
            Shard::new(Arc::clone(&config), schemas(), ShardIndex(index), count, seed, UNIX_START_NS)
        };
        World {
            shards: (0..count).map(shard).collect(),
            effects: VecDeque::new(),
            now: Instant::from_millis(5),
        }
    }

    fn settle(&mut self) {
        loop {
            let mut mail: Vec<(ShardIndex, Mail)> = Vec::new();
            for (index, shard) in self.shards.iter_mut().enumerate() {
                mail.extend(std::iter::from_fn(|| shard.poll_mail()));
                self.effects.extend(std::iter::from_fn(|| shard.poll_effect()).map(|effect| (index, effect)));
            }
            if mail.is_empty() {
                return;
            }
            for (to, mail) in mail {
                self.shards[usize::from(to.0)].handle_mail(self.now, mail);
            }
        }
    }

    fn accept(&mut self) -> Peer {
        let addr = "10.0.0.1".parse().unwrap();
        let accepted = self.shards[0].accept(self.now, ConnKind::Client, Framing::Stream, addr).unwrap();
        self.settle();
        Peer { conn: accepted.conn, shard: usize::from(accepted.shard.0) }
    }

    fn send(&mut self, peer: Peer, bytes: &[u8]) {
        self.shards[peer.shard].handle_bytes(self.now, peer.conn, bytes);
        self.settle();
    }

    fn answer(&mut self, ticket: AuthTicket, verdict: Verdict) {
        self.shards[0].handle_verdict(self.now, ticket, verdict);
        self.settle();
    }

    /// The next effect that is not for the security log.
    fn effect(&mut self) -> (usize, Effect) {
        loop {
            let next = self.effects.pop_front().expect("an effect");
            if !matches!(next.1, Effect::SecurityLog(_)) {
                return next;
            }
        }
    }

    fn ticket(&mut self) -> AuthTicket {
        match self.effect().1 {
            Effect::Authenticate { ticket, .. } => ticket,
            other => panic!("{other:?}"),
        }
    }

    /// Takes the connection that the latest effect moves, to `to`.
    fn moves(&mut self, to: &mut World) -> Result<Peer, AcceptRefusal> {
        let (shard, Effect::Move { conn }) = self.effect() else { panic!("a connection that moves") };
        let moved = self.shards[shard].take_moved(conn).expect("the connection");
        assert!(self.shards[shard].take_moved(conn).is_none());
        assert_eq!(moved.kind(), ConnKind::Client);
        let entered = to.shards[0].enter(to.now, moved);
        to.settle();
        entered.map(|accepted| Peer { conn: accepted.conn, shard: usize::from(accepted.shard.0) })
    }

    /// The messages that wait for a connection.
    fn take(&mut self, peer: Peer) -> Vec<(u32, Vec<u8>)> {
        let mut messages = Vec::new();
        let shard = &mut self.shards[peer.shard];
        let Some(outbox) = shard.outbox(peer.conn) else { return messages };
        let mut slices = Vec::new();
        outbox.gather(&mut slices);
        let bytes = slices.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
        shard.handle_written(self.now, peer.conn, bytes.len());
        messages.extend(read(&bytes));
        messages
    }

    fn connections(&self) -> u64 {
        self.shards.iter().map(|shard| shard.stats().kind(ConnKind::Client).connections).sum()
    }

    fn closed(&self, reason: CloseReason) -> usize {
        let closures = self.shards.iter().flat_map(|shard| shard.closures());
        closures.filter(|closure| closure.reason == reason).count()
    }
}

/// The messages of whole frames.
fn read(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut messages = Vec::new();
    let fed = FrameReader::default().feed(bytes, &mut |packet| {
        messages.extend(packet.messages().map(|message| (message.msg_type, message.body.to_vec())));
        ControlFlow::Continue(())
    });
    fed.expect("whole frames");
    messages
}

fn frame(msg_type: MessageType, body: &impl Message) -> Vec<u8> {
    let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
    let body = body.encode_to_vec();
    let pack = MessagePack { stub_id: 3, msg_type: msg_type as u32, body: &body, ..MessagePack::default() };
    writer.push(&pack, &mut bytes).unwrap();
    writer.flush(&mut bytes);
    bytes
}

fn auth(pit: &str, token: Option<Vec<u8>>) -> Vec<u8> {
    auth_for(pit, token, None)
}

/// A login that asks for a world.
fn auth_for(pit: &str, token: Option<Vec<u8>>, world: Option<&str>) -> Vec<u8> {
    let body = AuthMessage {
        player_identifier_token: pit.into(),
        login_token: "secret".into(),
        resume_token: token,
        world: world.map(str::to_owned),
    };
    frame(MessageType::Auth, &body)
}

fn result(messages: &[(u32, Vec<u8>)]) -> AuthResultMessage {
    let body =
        &messages.iter().find(|(msg_type, _)| *msg_type == MessageType::Auth as u32).expect("a result").1;
    AuthResultMessage::decode(&body[..]).unwrap()
}

/// A client of the hub that has come through the main world, with its resume token.
fn come(main: &mut World, hub: &mut World, pit: &str) -> (Peer, AuthResultMessage) {
    let peer = main.accept();
    main.send(peer, &auth(pit, Some(Vec::new())));
    let ticket = main.ticket();
    main.answer(ticket, Verdict::Elsewhere { world: HUB });
    let peer = main.moves(hub).unwrap();
    let result = result(&hub.take(peer));
    (peer, result)
}

#[test]
fn a_login_for_another_world_takes_its_connection_there() {
    for shards in [1, 3] {
        let mut main = World::new(0, shards, |_| {});
        let mut hub = World::new(HUB, 1, |_| {});
        // Connections of every shard.
        for index in 0..u64::from(shards) {
            let peer = main.accept();
            // A failed login first, whose answer has not been written when the second one succeeds.
            main.send(peer, &auth("p", None));
            let ticket = main.ticket();
            main.answer(ticket, Verdict::InvalidLt);
            // The begin of what follows comes with the login, the rest after the move.
            let list = frame(MessageType::ListChannel, &ListChannelMessage::default());
            main.send(peer, &[&auth("p", None)[..], &list[..4]].concat());
            let ticket = main.ticket();
            main.answer(ticket, Verdict::Elsewhere { world: HUB });
            assert_eq!(main.connections(), 0);
            let there = main.moves(&mut hub).unwrap();
            assert_eq!(hub.connections(), index + 1);
            hub.send(there, &list[4..]);
            let messages = hub.take(there);
            let kinds: Vec<u32> = messages.iter().map(|(msg_type, _)| *msg_type).collect();
            let (auth, list) = (MessageType::Auth as u32, MessageType::ListChannel as u32);
            assert_eq!(kinds, [auth, auth, list]);
            let second = AuthResultMessage::decode(&messages[1].1[..]).unwrap();
            assert_eq!((second.result, second.conn_id), (0, there.conn.0));
        }
        assert_eq!(main.closed(CloseReason::Moved), usize::from(shards));
        assert!(hub.effects.is_empty(), "the provider is not asked again: {:?}", hub.effects);
    }
}

#[test]
fn a_world_that_is_full_takes_no_more_and_one_that_ends_closes_all() {
    let mut main = World::new(0, 1, |_| {});
    let mut hub = World::new(HUB, 1, |config| config.limits.connections = 1);
    come(&mut main, &mut hub, "first");
    let peer = main.accept();
    main.send(peer, &auth("second", None));
    let ticket = main.ticket();
    main.answer(ticket, Verdict::Elsewhere { world: HUB });
    assert_eq!(main.moves(&mut hub).err(), Some(AcceptRefusal::ConnectionsMax));
    assert_eq!((main.connections(), hub.connections()), (0, 1));
    hub.shards[0].close_world(hub.now);
    hub.settle();
    assert!(matches!(hub.effect().1, Effect::Close { reason: CloseReason::WorldClosed, .. }));
    assert_eq!(hub.connections(), 0);
}

/// The connection that it replaces has not timed out yet.
#[test]
fn a_session_resumes_in_a_world_that_is_full() {
    let mut main = World::new(0, 2, |_| {});
    let mut hub = World::new(HUB, 2, |config| config.limits.connections = 1);
    let (_, first) = come(&mut main, &mut hub, "p");
    let peer = main.accept();
    main.send(peer, &auth("p", Some(first.resume_token.clone())));
    let (_, Effect::FindWorld { ticket, .. }) = main.effect() else { panic!("a question") };
    main.answer(ticket, Verdict::Elsewhere { world: HUB });
    let back = main.moves(&mut hub).unwrap();
    let messages = hub.take(back);
    assert_eq!((result(&messages).conn_id, result(&messages).should_recover), (first.conn_id, true));
    assert_eq!((hub.connections(), hub.closed(CloseReason::Superseded)), (1, 1));
    // The token of another player makes no room.
    let peer = main.accept();
    main.send(peer, &auth("q", Some(first.resume_token)));
    let (_, Effect::FindWorld { ticket, .. }) = main.effect() else { panic!("a question") };
    main.answer(ticket, Verdict::Elsewhere { world: HUB });
    assert_eq!(main.moves(&mut hub).err(), Some(AcceptRefusal::ConnectionsMax));
}

#[test]
fn a_resume_token_leads_to_its_world() {
    let mut main = World::new(0, 2, |_| {});
    let mut hub = World::new(HUB, 1, |_| {});
    let (lost, first) = come(&mut main, &mut hub, "p");
    assert_eq!(first.resume_token.len(), 24 + HUB_NAME.len());
    hub.shards[0].handle_closed(hub.now, lost.conn, Closed::Error);
    hub.settle();
    for token in [first.resume_token.clone(), first.resume_token] {
        let peer = main.accept();
        main.send(peer, &auth("p", Some(token)));
        let (_, Effect::FindWorld { ticket, world, .. }) = main.effect() else { panic!("a question") };
        assert_eq!(world, HUB_NAME);
        main.answer(ticket, Verdict::Elsewhere { world: HUB });
        let back = main.moves(&mut hub).unwrap();
        let messages = hub.take(back);
        if !messages.is_empty() {
            assert_eq!((result(&messages).conn_id, result(&messages).should_recover), (first.conn_id, true));
            // It has the answer, so the token is void.
            hub.send(back, &frame(MessageType::ListChannel, &ListChannelMessage::default()));
            continue;
        }
        // A token that is void there opens no door: the main world asks the provider.
        assert_eq!(hub.connections(), 1);
        let home = hub.moves(&mut main).unwrap();
        let ticket = main.ticket();
        main.answer(ticket, Verdict::Success);
        assert_eq!(result(&main.take(home)).result, 0);
        assert_eq!((main.connections(), hub.connections()), (1, 1));
        return;
    }
    panic!("the token is void when its answer has arrived");
}

#[test]
fn the_time_to_log_in_does_not_begin_again_in_another_world() {
    let at = |ms: u64| Instant::from_millis(5 + ms);
    for shards in [1, 3] {
        let mut main = World::new(0, shards, |config| config.abuse = Abuse::default());
        let mut hub = World::new(HUB, 1, |_| {});
        let peer = main.accept();
        (main.now, hub.now) = (at(3_000), at(3_000));
        let token = [&[1; 24][..], HUB_NAME.as_bytes()].concat();
        main.send(peer, &auth("p", Some(token)));
        let (_, Effect::FindWorld { ticket, .. }) = main.effect() else { panic!("a question") };
        main.answer(ticket, Verdict::Elsewhere { world: HUB });
        let there = main.moves(&mut hub).unwrap();
        let home = hub.moves(&mut main).unwrap();
        assert!(hub.take(there).is_empty());
        let ticket = main.ticket();
        main.answer(ticket, Verdict::InvalidLt);
        assert_eq!(result(&main.take(home)).result, AuthResult::InvalidLt as i32);
        for (now, connections) in [(at(4_999), 1), (at(5_000), 0)] {
            while main.shards[home.shard].handle_due(now).is_some() {}
            main.settle();
            assert_eq!(main.connections(), connections);
        }
        assert_eq!(main.closed(CloseReason::AuthTimeout), 1);
    }
}

#[test]
fn a_session_that_gives_no_place_up_leaves_its_newcomer_to_an_ordinary_login() {
    let mut main = World::new(0, 1, |_| {});
    let mut hub = World::new(HUB, 1, |config| config.recovery.lost_max = 0);
    let (stale, first) = come(&mut main, &mut hub, "p");
    let peer = main.accept();
    main.send(peer, &auth("p", Some(first.resume_token)));
    let (_, Effect::FindWorld { ticket, .. }) = main.effect() else { panic!("a question") };
    main.answer(ticket, Verdict::Elsewhere { world: HUB });
    let (_, Effect::Move { conn }) = main.effect() else { panic!("a connection that moves") };
    let moved = main.shards[peer.shard].take_moved(conn).unwrap();
    let _entered = hub.shards[0].enter(hub.now, moved).unwrap();
    hub.settle();
    let (reason, flush) = (CloseReason::Superseded, Vec::new());
    let close = Effect::Close { conn: stale.conn, reason, world: None, flush };
    assert_eq!(hub.effect().1, close);
    let home = hub.moves(&mut main).unwrap();
    let ticket = main.ticket();
    main.answer(ticket, Verdict::Success);
    assert_eq!(result(&main.take(home)).result, 0);
    assert_eq!((main.connections(), hub.connections()), (1, 0));
}

#[test]
fn a_token_of_a_world_that_is_gone_leads_to_an_ordinary_login() {
    let mut main = World::new(0, 1, |_| {});
    let mut hub = World::new(HUB, 1, |_| {});
    let (_, first) = come(&mut main, &mut hub, "p");
    let peer = main.accept();
    main.send(peer, &auth("p", Some(first.resume_token)));
    let (_, Effect::FindWorld { ticket, .. }) = main.effect() else { panic!("a question") };
    main.answer(ticket, Verdict::NoWorld);
    let ticket = main.ticket();
    main.answer(ticket, Verdict::Success);
    let result = result(&main.take(peer));
    assert_eq!((result.result, result.resume_token.len()), (0, 24));
    assert!(result.resume_refused, "it learns that its session is gone");
}

#[test]
fn one_whose_world_another_node_serves_is_told_the_way_and_closed() {
    let mut main = World::new(0, 2, |_| {});
    let peer = main.accept();
    main.send(peer, &auth("p", Some(Vec::new())));
    let ticket = main.ticket();
    let addresses = vec!["tcp://10.0.0.2:12108".to_owned()];
    main.answer(ticket, Verdict::OtherNode { world: "hub".to_owned(), addresses: addresses.clone() });
    let (_, Effect::Close { conn, reason, world, flush }) = main.effect() else { panic!("a closure") };
    assert_eq!((conn, reason, world.as_deref()), (peer.conn, CloseReason::WorldElsewhere, Some("hub")));
    let answer = result(&read(&flush));
    assert_eq!((answer.result, answer.resume_token), (AuthResult::InvalidLt as i32, Vec::new()));
    let elsewhere = Elsewhere { reason: "world_elsewhere".to_owned(), addresses, world: "hub".to_owned() };
    assert_eq!(answer.elsewhere, Some(elsewhere));
    assert_eq!(main.shards[0].stats().bans, 0, "no failed login");
}

#[test]
fn one_that_may_not_enter_is_closed() {
    let mut main = World::new(0, 1, |_| {});
    for reason in [CloseReason::UnknownWorld, CloseReason::WorldMismatch] {
        let peer = main.accept();
        main.send(peer, &auth("p", None));
        let ticket = main.ticket();
        main.answer(ticket, Verdict::Refused(reason));
        assert_eq!(
            main.effect().1,
            Effect::Close { conn: peer.conn, reason, world: None, flush: Vec::new() }
        );
    }
}

#[test]
fn a_connection_that_is_gone_before_its_verdict_moves_nowhere() {
    let mut main = World::new(0, 2, |_| {});
    let peer = main.accept();
    main.send(peer, &auth("p", None));
    let ticket = main.ticket();
    main.shards[peer.shard].handle_closed(main.now, peer.conn, Closed::EndOfStream);
    main.settle();
    main.answer(ticket, Verdict::Elsewhere { world: HUB });
    assert!(main.effects.is_empty(), "{:?}", main.effects);
}

#[test]
fn moved_connections_can_cross_threads() {
    fn is_send<T: Send>() {}
    is_send::<throng_gateway::Moved>();
}

fn asks_for(world: &str) -> WorldChoice {
    WorldChoice { world: world.into(), by_listener: false }
}

#[test]
fn a_request_for_a_world_is_put_to_the_driver_with_the_login() {
    let mut main = World::new(0, 2, |_| {});
    let mut hub = World::new(HUB, 1, |_| {});
    let peer = main.accept();
    main.send(peer, &auth_for("p", None, Some("hub")));
    let Effect::Authenticate { ticket, asked, .. } = main.effect().1 else { panic!("a question") };
    assert_eq!(asked, Some(asks_for("hub")));
    main.answer(ticket, Verdict::Elsewhere { world: HUB });
    let there = main.moves(&mut hub).unwrap();
    assert_eq!(result(&hub.take(there)).result, 0, "it is not asked again");

    // Those that need no provider are judged by their request alone.
    for (shards, dev) in [(1, true), (2, false)] {
        let mut main = World::new(0, shards, |config| {
            (config.auth_provider, config.development) = (false, true);
            config.servers_bypass_auth = !dev;
        });
        let peer = main.accept();
        main.send(peer, &auth_for("p", None, Some("hub")));
        let Effect::ChooseWorld { ticket, asked, .. } = main.effect().1 else { panic!("a question") };
        assert_eq!(asked, asks_for("hub"));
        main.answer(ticket, Verdict::Success);
        assert_eq!(result(&main.take(peer)).result, 0);
        // An empty name asks for nothing.
        let peer = main.accept();
        main.send(peer, &auth_for("p", None, Some("")));
        assert_eq!(result(&main.take(peer)).result, 0);
        assert!(main.effects.is_empty(), "{:?}", main.effects);
    }
}

#[test]
fn a_path_and_a_login_that_ask_for_different_worlds_are_refused() {
    let mut main = World::new(0, 1, |_| {});
    for (path, field, expected) in
        [("hub", None, true), ("hub", Some("hub"), true), ("hub", Some("arena"), false)]
    {
        for by_listener in [false, true] {
            let peer = main.accept();
            let asks = WorldChoice { by_listener, ..asks_for(path) };
            main.shards[0].note_asked(peer.conn, asks.clone());
            main.send(peer, &auth_for("p", None, field));
            match (main.effect().1, expected) {
                (Effect::Authenticate { asked, .. }, true) => assert_eq!(asked, Some(asks)),
                (Effect::Close { reason: CloseReason::WorldMismatch, .. }, false) => {}
                (other, _) => panic!("{path} {field:?}: {other:?}"),
            }
        }
    }
}

/// Otherwise a token of one world would open the door of another by its name.
#[test]
fn a_token_and_a_request_are_judged_together() {
    let mut main = World::new(0, 1, |_| {});
    let first = main.accept();
    main.send(first, &auth("p", Some(Vec::new())));
    let ticket = main.ticket();
    main.answer(ticket, Verdict::Success);
    let token = result(&main.take(first)).resume_token;
    for (verdict, resumes) in
        [(Verdict::Refused(CloseReason::WorldMismatch), false), (Verdict::Success, true)]
    {
        let peer = main.accept();
        main.send(peer, &auth_for("p", Some(token.clone()), Some("main")));
        let (_, Effect::FindWorld { ticket, world, asked }) = main.effect() else { panic!("a question") };
        assert_eq!(world, "");
        assert_eq!(asked, Some(asks_for("main")));
        main.answer(ticket, verdict);
        let reason = match main.effect().1 {
            Effect::Close { reason, .. } => reason,
            other => panic!("{other:?}"),
        };
        let expected = if resumes { CloseReason::Superseded } else { CloseReason::WorldMismatch };
        assert_eq!(reason, expected);
    }
}

#[test]
fn a_void_token_with_a_request_for_its_closed_world_leads_to_a_login_without_the_request() {
    let token = [&[1; 24][..], HUB_NAME.as_bytes()].concat();
    for (is_open, by_listener, asks, logs_in) in [
        (false, false, HUB_NAME, true),
        (true, false, HUB_NAME, true),
        (false, true, HUB_NAME, false),
        (true, true, HUB_NAME, false),
        (false, false, "arena", false),
    ] {
        let case = format!("{is_open} {by_listener} {asks}");
        let (mut main, mut hub) = (World::new(0, 1, |_| {}), World::new(HUB, 1, |_| {}));
        let mut peer = main.accept();
        main.shards[0].note_asked(peer.conn, WorldChoice { by_listener, ..asks_for(asks) });
        main.send(peer, &auth("p", Some(token.clone())));
        let (_, Effect::FindWorld { ticket, .. }) = main.effect() else { panic!("a question") };
        if is_open {
            main.answer(ticket, Verdict::Elsewhere { world: HUB });
            main.moves(&mut hub).unwrap();
            peer = hub.moves(&mut main).unwrap();
        } else {
            main.answer(ticket, Verdict::NoWorld);
        }
        // The class of the world may admit those who ask for it.
        let Effect::Authenticate { ticket, asked, .. } = main.effect().1 else { panic!("a question") };
        assert_eq!(asked, Some(WorldChoice { by_listener, ..asks_for(asks) }), "{case}");
        main.answer(ticket, Verdict::Refused(CloseReason::UnknownWorld));
        if !logs_in {
            assert_eq!(main.closed(CloseReason::UnknownWorld), 1, "{case}");
            continue;
        }
        let Effect::Authenticate { ticket, asked, .. } = main.effect().1 else { panic!("a question") };
        assert_eq!(asked, None, "{case}");
        main.answer(ticket, Verdict::Success);
        let result = result(&main.take(peer));
        assert_eq!((result.result, result.resume_refused), (0, true), "{case}");
    }
}
