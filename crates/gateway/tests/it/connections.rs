//! Accepting, authenticating, limiting and closing connections.

use crate::common;

use std::time::Duration;

use common::{Id, Send, World};
use throng_gateway::{
    Abuse, AcceptRefusal, CloseReason, Config, ConnHandle, ConnKind, Effect, Framing, Limits, Lod, Refusal,
    SecurityEventKind, Spatial, StateMachine, Verdict,
};
use throng_wire::channeldpb::{
    AuthMessage, AuthResultMessage, CreateChannelMessage, DisconnectMessage, ListChannelMessage, MessageType,
};

fn development() -> Config {
    Config { client_state_machine: StateMachine::client_managing_channels().into(), ..Config::development() }
}

fn list() -> Send {
    Send::new(MessageType::ListChannel, &ListChannelMessage::default())
}

/// The pending question to the provider.
fn ticket(world: &mut World) -> throng_gateway::AuthTicket {
    let found = world.effects.iter().rev().find_map(|effect| match effect {
        Effect::Authenticate { ticket, .. } => Some(*ticket),
        _ => None,
    });
    found.expect("a question")
}

fn security(world: &World) -> Vec<SecurityEventKind> {
    let events = world.effects.iter().filter_map(|effect| match effect {
        Effect::SecurityLog(event) => Some(event.what),
        _ => None,
    });
    events.collect()
}

#[test]
fn development_mode_lets_everybody_in_under_ids_in_order() {
    let mut world = World::new(development());
    for expected in 1..=3 {
        let id = world.connect(ConnKind::Client);
        world.auth(id, "ann");
        let got = world.take(id);
        let result: AuthResultMessage = got[0].decode();
        assert_eq!((got.len(), got[0].stub, result.conn_id, result.result), (1, 1, expected, 0));
    }
}

// without a provider outside development mode the reference aborts. Here players are
// refused and told so.
#[test]
fn a18_without_a_provider_clients_are_refused_and_servers_may_bypass() {
    let mut world = World::new(Config::default());
    let client = world.connect(ConnKind::Client);
    world.auth(client, "ann");
    assert_eq!(world.take(client)[0].decode::<AuthResultMessage>().result, 2, "INVALID_LT");
    assert!(security(&world).contains(&SecurityEventKind::NoProvider));
    assert_eq!(world.closed(client), None);
    let server = world.connect(ConnKind::Server);
    world.auth(server, "srv");
    assert_eq!(world.take(server)[0].decode::<AuthResultMessage>().result, 0);
    let id = world.conn(client);
    assert!(id > 3, "ids are not counted up: {id}");
}

#[test]
fn a_provider_decides_while_everything_else_goes_on() {
    for shards in [1, 3] {
        let config = Config { auth_provider: true, servers_bypass_auth: false, ..development() };
        let mut world = World::sharded(config, shards);
        let client = world.connect(ConnKind::Client);
        let other = world.connect(ConnKind::Client);
        world.auth(client, "ann");
        assert!(world.take(client).is_empty());
        let Some(Effect::Authenticate { pit, lt, .. }) = world.effects.last() else { panic!("a question") };
        assert_eq!((pit.0.as_str(), lt.0.as_str()), ("ann", "lt"));
        assert!(!format!("{:?}", world.effects).contains("ann"), "credentials do not reach logs");

        // One question at a time.
        world.auth(client, "ann");
        assert_eq!(world.refused(Refusal::AuthPending), 1);

        let first = ticket(&mut world);
        world.shards[0].handle_verdict(world.now, first, Verdict::InvalidPit);
        world.settle();
        assert_eq!(world.take(client)[0].decode::<AuthResultMessage>().result, 1);
        world.auth(client, "ann");
        let second = ticket(&mut world);
        world.shards[0].handle_verdict(world.now, second, Verdict::Success);
        world.settle();
        assert_eq!(world.take(client)[0].decode::<AuthResultMessage>().result, 0);
        // Verdicts for answered questions and for connections that are gone change nothing.
        world.shards[0].handle_verdict(world.now, first, Verdict::Success);
        world.auth(other, "bob");
        let third = ticket(&mut world);
        world.close(other);
        world.shards[0].handle_verdict(world.now, third, Verdict::Success);
        world.settle();
        world.send(client, [list().stub(2)]);
        assert_eq!(world.take_types(client), [5]);
    }
}

#[test]
fn a_provider_that_fails_closes_the_connection() {
    let mut world = World::new(Config { auth_provider: true, ..development() });
    let client = world.connect(ConnKind::Client);
    world.auth(client, "ann");
    let ticket = ticket(&mut world);
    world.shards[0].handle_verdict(world.now, ticket, Verdict::Error("timeout".into()));
    world.settle();
    assert_eq!(world.closed(client), Some(CloseReason::AuthProviderFailed));
}

#[test]
fn a_message_sent_along_with_auth_is_refused() {
    for shards in [1, 2] {
        let mut world = World::sharded(development(), shards);
        let _first = world.connect(ConnKind::Client);
        let client = world.connect(ConnKind::Client);
        let auth = AuthMessage { player_identifier_token: "ann".into(), ..Default::default() };
        world.send(client, [Send::new(MessageType::Auth, &auth).stub(1), list().stub(2)]);
        assert_eq!(world.take_types(client), [1]);
        assert_eq!(world.refused(Refusal::StateMachine), 1);
    }
}

#[test]
fn auth_to_another_channel_closes() {
    let mut world = World::sharded(development(), 2);
    let owner = world.join(ConnKind::Server, "s");
    let create = CreateChannelMessage { channel_type: 3, ..Default::default() };
    world.send(owner, [Send::new(MessageType::CreateChannel, &create)]);
    let client = world.connect(ConnKind::Client);
    let auth = AuthMessage::default();
    world.send(client, [Send::new(MessageType::Auth, &auth).to(1)]);
    assert_eq!(world.closed(client), Some(CloseReason::AuthWrongChannel));
}

#[test]
fn failed_logins_lock_the_name_for_the_address_and_the_last_answer_arrives() {
    let mut world = World::new(Config { auth_provider: true, ..development() });
    let client = world.connect(ConnKind::Client);
    for _ in 0..5 {
        world.auth(client, "mallory");
        let ticket = ticket(&mut world);
        world.shards[0].handle_verdict(world.now, ticket, Verdict::InvalidLt);
        world.settle();
    }
    assert_eq!(world.closed(client), Some(CloseReason::AuthFailures));
    assert_eq!(world.take(client).len(), 5, "the reference loses the last negative result");
    // Locked for the address, until that ends; the player itself passes from elsewhere, and others
    // from there.
    let again = world.connect(ConnKind::Client);
    world.auth(again, "mallory");
    assert_eq!(world.closed(again), Some(CloseReason::AuthFailures));
    for (addr, name) in [("10.9.9.9", "mallory"), ("10.0.0.1", "ann")] {
        let passes = world.try_connect(ConnKind::Client, addr).expect("no address is banned");
        world.auth(passes, name);
        let ticket = ticket(&mut world);
        world.shards[0].handle_verdict(world.now, ticket, Verdict::Success);
        world.settle();
        assert_eq!(world.take_types(passes), [1], "{name} from {addr}");
    }
    world.run(Duration::from_secs(901));
    let later = world.connect(ConnKind::Client);
    world.auth(later, "mallory");
    assert_eq!(world.closed(later), None);
}

fn fail(world: &mut World, client: Id, name: &str) {
    world.auth(client, name);
    let ticket = ticket(world);
    world.shards[0].handle_verdict(world.now, ticket, Verdict::InvalidPit);
    world.settle();
}

#[test]
fn guessing_many_names_slows_the_answers_of_an_address_and_bans_nobody() {
    let mut world = World::sharded(Config { auth_provider: true, ..development() }, 2);
    let mut guess = 0;
    for _ in 0..50 {
        let client = world.try_connect(ConnKind::Client, "2001:db8:1:2::66").expect("accepted");
        guess += 1;
        fail(&mut world, client, &format!("guess{guess}"));
        assert_eq!(world.take_types(client), [1], "guess {guess} is answered at once");
    }
    // Another address of the same customer.
    let client = world.try_connect(ConnKind::Client, "2001:db8:1:2::67").expect("nobody is banned");
    fail(&mut world, client, "another");
    world.run_ms(999);
    assert!(world.take(client).is_empty());
    world.auth(client, "another");
    assert_eq!(world.refused(Refusal::AuthPending), 1);
    world.run_ms(1);
    assert_eq!(world.take_types(client), [1]);
    // One that goes before its answer leaves nothing behind.
    fail(&mut world, client, "another");
    world.close(client);
    world.run_ms(1_000);
    // Those who know their name are not put off, and other addresses are as fast as ever.
    let client = world.try_connect(ConnKind::Client, "2001:db8:1:2::68").expect("nobody is banned");
    world.auth(client, "ann");
    let ticket = ticket(&mut world);
    world.shards[0].handle_verdict(world.now, ticket, Verdict::Success);
    world.settle();
    assert_eq!(world.take_types(client), [1]);
    let elsewhere = world.try_connect(ConnKind::Client, "2001:db8:1:3::66").expect("accepted");
    fail(&mut world, elsewhere, "another");
    assert_eq!(world.take_types(elsewhere), [1]);
}

#[test]
fn an_unproven_connection_gets_one_verdict_and_its_address_is_not_blamed() {
    for shards in [1, 2] {
        let mut world = World::sharded(Config { auth_provider: true, ..development() }, shards);
        for round in 0..20 {
            let forged = world.try_connect(ConnKind::Client, "10.0.0.66").expect("accepted");
            let conn = ConnHandle(world.conn(forged));
            world.shards[0].note_unproven(conn);
            fail(&mut world, forged, "alice");
            assert_eq!(world.closed(forged), Some(CloseReason::AuthFailures), "round {round}");
        }
        let alice = world.try_connect(ConnKind::Client, "10.0.0.66").expect("accepted");
        let (conn, shard) = (ConnHandle(world.conn(alice)), world.shard_of(alice));
        world.shards[0].note_unproven(conn);
        let now = world.now;
        world.shards[shard].handle_proven(now, conn);
        world.settle();
        fail(&mut world, alice, "alice");
        assert_eq!(world.closed(alice), None, "a proven one may try again");
        world.auth(alice, "alice");
        let ticket = ticket(&mut world);
        world.shards[0].handle_verdict(world.now, ticket, Verdict::Success);
        world.settle();
        assert_eq!(world.take_types(alice), [1, 1]);
    }
}

#[test]
fn slow_logins_are_closed_and_ban_nobody() {
    let mut world = World::sharded(development(), 2);
    for _ in 0..10 {
        let client = world.try_connect(ConnKind::Client, "10.0.0.66").expect("never banned");
        world.run_ms(4_999);
        assert_eq!(world.closed(client), None);
        world.run_ms(1);
        assert_eq!(world.closed(client), Some(CloseReason::AuthTimeout));
    }
    let fine = world.join(ConnKind::Client, "ann");
    world.run(Duration::from_secs(100));
    assert_eq!(world.closed(fine), None, "an idle authenticated connection stays");
}

#[test]
fn a_login_waits_for_its_verdict_as_long_as_configured() {
    let mut config = Config { auth_provider: true, ..development() };
    config.abuse.verdict_timeout = Duration::from_secs(30);
    let mut world = World::sharded(config, 2);
    let silent = world.try_connect(ConnKind::Client, "10.0.0.66").expect("accepted");
    let waiting = world.try_connect(ConnKind::Client, "10.0.0.67").expect("accepted");
    world.run_ms(4_000);
    world.auth(waiting, "ann");
    world.run_ms(1_000);
    assert_eq!(world.closed(silent), Some(CloseReason::AuthTimeout), "it has sent nothing");
    // Another AUTH does not begin the time again.
    world.run_ms(20_000);
    world.auth(waiting, "ann");
    world.run_ms(8_999);
    assert_eq!(world.closed(waiting), None);
    world.run_ms(1);
    assert_eq!(world.closed(waiting), Some(CloseReason::AuthTimeout));
}

// the reference bans the empty identifier here, and with it everybody who has none.
#[test]
fn a18_refused_messages_ban_a_named_player_and_never_the_empty_name() {
    let mut world = World::new(development());
    let nameless = world.connect(ConnKind::Client);
    for _ in 0..10 {
        world.send(nameless, [list()]);
    }
    assert_eq!(world.closed(nameless), Some(CloseReason::StateMachineRefusals));
    let another = world.connect(ConnKind::Client);
    world.auth(another, "");
    assert_eq!(world.closed(another), None);
    for _ in 0..10 {
        world.send(another, [Send::new(MessageType::Disconnect, &DisconnectMessage { conn_id: 5 })]);
    }
    assert_eq!(world.closed(another), Some(CloseReason::StateMachineRefusals));
    assert_eq!(world.stats().bans, 0);

    let mallory = world.join(ConnKind::Client, "mallory");
    for _ in 0..10 {
        world.send(mallory, [Send::new(MessageType::Disconnect, &DisconnectMessage { conn_id: 5 })]);
    }
    assert_eq!(world.closed(mallory), Some(CloseReason::StateMachineRefusals));
    let again = world.connect(ConnKind::Client);
    world.auth(again, "mallory");
    assert_eq!(world.closed(again), Some(CloseReason::BannedPlayer));
}

#[test]
fn limits_of_zero_switch_the_rules_off() {
    let abuse = Abuse { auth_timeout: None, auth_failures_max: 0, refusals_max: 0, ..Abuse::default() };
    let mut world = World::new(Config { abuse, ..Config::default() });
    let client = world.connect(ConnKind::Client);
    for _ in 0..50 {
        world.send(client, [list()]);
        world.auth(client, "ann");
    }
    world.run(Duration::from_secs(1000));
    assert_eq!(world.closed(client), None);
}

#[test]
fn clients_per_address_count_networks_of_ipv6_and_spare_proxies_and_loopback() {
    let proxies = vec!["192.0.2.0/28".parse().expect("a range")];
    let limits =
        Limits { client_connections_per_address: 2, unlimited_addresses: proxies, ..Limits::default() };
    let mut world = World::new(Config { limits, ..development() });
    let mut accepted = |addr: &str| world.try_connect(ConnKind::Client, addr).is_ok();
    for exempt in ["127.0.0.1", "::1", "192.0.2.15"] {
        assert!((0..5).all(|_| accepted(exempt)), "{exempt}");
    }
    assert_eq!([(); 3].map(|()| accepted("192.0.2.16")), [true, true, false]);
    assert_eq!([(); 3].map(|()| accepted("2001:db8:1:1::1")), [true, true, false]);
    let networks = (2..=20).map(|net| accepted(&format!("2001:db8:1:{net}::1")) as usize);
    assert_eq!(networks.sum::<usize>(), 14, "eight times two of a /48");
    assert!(accepted("2001:db8:2:1::1"));
}

#[test]
fn accept_has_limits_for_all_and_per_address() {
    let limits = Limits { connections: 5, client_connections_per_address: 2, ..Limits::default() };
    let mut world = World::new(Config { limits, ..development() });
    let first = world.try_connect(ConnKind::Client, "10.0.0.1").expect("accepted");
    assert!(world.try_connect(ConnKind::Client, "10.0.0.1").is_ok());
    let refused = world.try_connect(ConnKind::Client, "10.0.0.1");
    assert_eq!(refused, Err(AcceptRefusal::ConnectionsPerAddress));
    world.close(first);
    assert!(world.try_connect(ConnKind::Client, "10.0.0.1").is_ok());
    for _ in 0..3 {
        assert!(
            world.try_connect(ConnKind::Server, "10.0.0.1").is_ok(),
            "servers are not limited per address"
        );
    }
    assert_eq!(world.try_connect(ConnKind::Server, "10.0.0.9"), Err(AcceptRefusal::ConnectionsMax));
    assert_eq!(world.stats().accept_refused(AcceptRefusal::ConnectionsMax), 1);
}

// thirteen bits (Unreal) end the reference after 8190 connections.
#[test]
fn a17_many_more_connections_than_the_id_width_has_values() {
    let mut world = World::new(Config { conn_id_bits: 4, ..development() });
    for _ in 0..200 {
        let id = world.connect(ConnKind::Client);
        assert!((1..=15).contains(&world.conn(id)));
        world.close(id);
    }
    for _ in 0..15 {
        world.connect(ConnKind::Client);
    }
    assert_eq!(world.try_connect(ConnKind::Client, "10.0.0.1"), Err(AcceptRefusal::IdsExhausted));
}

#[test]
fn floods_are_closed_with_a_reason() {
    let limits =
        Limits { client_messages_per_second: 100, client_bytes_per_second: 10_000, ..Limits::default() };
    let mut world = World::new(Config { limits, ..development() });
    let (fast, wide, fair) = (
        world.join(ConnKind::Client, "a"),
        world.join(ConnKind::Client, "b"),
        world.join(ConnKind::Client, "c"),
    );
    let server = world.join(ConnKind::Server, "s");
    world.send(fast, (0..250).map(|_| Send::user(100, b"")));
    assert_eq!(world.closed(fast), Some(CloseReason::MessageRate));
    world.send(wide, [Send::user(100, &[0; 30_000])]);
    assert_eq!(world.closed(wide), Some(CloseReason::ByteRate));
    for _ in 0..100 {
        world.run_ms(100);
        world.send(fair, (0..9).map(|_| Send::user(100, &[0; 50])));
    }
    assert_eq!(world.closed(fair), None);
    world.send(server, (0..2_000).map(|_| Send::user(100, &[])));
    assert_eq!(world.closed(server), None, "servers are not limited");
}

#[test]
fn idle_connections_are_closed_only_where_that_is_wanted() {
    let limits = Limits { idle_timeout: [None, Some(Duration::from_secs(10))], ..Limits::default() };
    let mut world = World::new(Config { limits, ..development() });
    let (server, client, busy) = (
        world.join(ConnKind::Server, "s"),
        world.join(ConnKind::Client, "a"),
        world.join(ConnKind::Client, "b"),
    );
    for _ in 0..4 {
        world.run(Duration::from_secs(6));
        world.send(busy, [list()]);
    }
    assert_eq!(world.closed(client), Some(CloseReason::IdleTimeout));
    assert_eq!((world.closed(server), world.closed(busy)), (None, None));
}

// the reference wedges on an undecodable packet.
#[test]
fn a9_bad_frames_close_with_the_reason_that_fits() {
    let cases: [(&[u8], CloseReason); 6] = [
        (&[1, 2, 3, 4, 5, 6], CloseReason::BadMagic),
        (&[0x43, 0x48, 0, 0, 0], CloseReason::ZeroSize),
        (&[0x43, 0x48, 0, 1, 7, 0], CloseReason::UnknownCompression),
        (&[0x43, 0x48, 0, 4, 0, 0xff, 0xff, 0xff, 0xff], CloseReason::BadPacket),
        (&[0x43, 0x48, 0, 3, 1, 0xff, 0xff, 0x7f], CloseReason::BadSnappy),
        // Ten bytes that declare four gigabytes.
        (&[0x43, 0x48, 0, 5, 1, 0xff, 0xff, 0xff, 0xff, 0x0f], CloseReason::DeclaredTooLarge),
    ];
    for (bytes, reason) in cases {
        let mut world = World::new(development());
        let client = world.connect(ConnKind::Client);
        world.send_raw(client, bytes);
        assert!(
            matches!(world.closed(client), Some(got) if got == reason
                || (reason == CloseReason::BadSnappy && got == CloseReason::DeclaredTooLarge)),
            "{bytes:02x?}: {:?}",
            world.closed(client)
        );
        world.send_raw(client, bytes);
        assert_eq!(world.stats().closed(ConnKind::Client, world.closed(client).expect("closed")), 1);
    }
}

#[test]
fn messages_before_a_bad_frame_count_and_bytes_after_it_do_not() {
    let mut world = World::new(development());
    let client = world.join(ConnKind::Client, "ann");
    let mut bytes = common::frame_of([list().stub(7)], throng_wire::frame::Compression::None);
    bytes.extend_from_slice(b"garbage");
    world.send_raw(client, &bytes);
    assert_eq!(world.take_types(client), [5], "what was answered is flushed");
    assert_eq!(world.closed(client), Some(CloseReason::BadMagic));
}

#[test]
fn disconnect_names_a_target_and_needs_authority_unless_it_is_oneself() {
    let machine: std::sync::Arc<StateMachine> = StateMachine::server().into();
    for shards in [1, 2] {
        let mut world =
            World::sharded(Config { client_state_machine: machine.clone(), ..Config::development() }, shards);
        let server = world.join(ConnKind::Server, "s");
        let (one, two) = (world.join(ConnKind::Client, "a"), world.join(ConnKind::Client, "b"));
        let disconnect = |conn_id| Send::new(MessageType::Disconnect, &DisconnectMessage { conn_id });
        let (one_id, two_id) = (world.conn(one), world.conn(two));
        world.send(one, [disconnect(two_id)]);
        assert_eq!((world.closed(two), world.refused(Refusal::Permission)), (None, 1));
        world.send(server, [disconnect(two_id)]);
        assert_eq!(world.closed(two), Some(CloseReason::Kicked));
        world.send(one, [disconnect(one_id)]);
        assert_eq!(world.closed(one), Some(CloseReason::Left));
        world.send(server, [disconnect(two_id), disconnect(0)]);
        assert_eq!(world.refused(Refusal::UnknownConnection), 2);
    }
}

#[test]
fn a_client_may_say_goodbye_in_every_state_machine_and_is_not_refused() {
    for machine in [StateMachine::client(), StateMachine::client_managing_channels()] {
        let abuse = throng_gateway::Abuse { refusals_max: 1, ..Config::development().abuse };
        let config = Config { client_state_machine: machine.into(), abuse, ..Config::development() };
        let mut world = World::sharded(config, 2);
        let goodbye = |conn_id| Send::new(MessageType::Disconnect, &DisconnectMessage { conn_id });
        for logged_in in [true, false, true, false] {
            let client =
                if logged_in { world.join(ConnKind::Client, "a") } else { world.connect(ConnKind::Client) };
            let id = world.conn(client);
            world.send(client, [goodbye(id), goodbye(id), list()]);
            assert_eq!(world.closed(client), Some(CloseReason::Left));
        }
        assert_eq!((world.refused(Refusal::StateMachine), world.stats().bans), (0, 0));
        // Another's id is what the state machine is asked about.
        let (one, two) = (world.join(ConnKind::Client, "a"), world.join(ConnKind::Client, "b"));
        let other = world.conn(two);
        world.send(one, [goodbye(other)]);
        assert_eq!((world.closed(one), world.closed(two)), (Some(CloseReason::StateMachineRefusals), None));
    }
}

#[test]
fn shutdown_flushes_closes_and_accepts_no_more() {
    let mut world = World::sharded(Config { recovery: recoverable(), ..development() }, 2);
    let server = world.join(ConnKind::Server, "s");
    let client = world.join(ConnKind::Client, "a");
    world.set_reading(client, false);
    world.send(client, [list().stub(9)]);
    let now = world.now;
    for shard in &mut world.shards {
        shard.begin_shutdown(now);
    }
    world.settle();
    assert_eq!(
        (world.closed(server), world.closed(client)),
        (Some(CloseReason::Shutdown), Some(CloseReason::Shutdown))
    );
    world.set_reading(client, true);
    assert_eq!(world.take_types(client), [5], "what waited is flushed");
    assert_eq!(world.try_connect(ConnKind::Client, "10.0.0.1"), Err(AcceptRefusal::Draining));
    assert!(world.shards.iter().all(|shard| shard.connections().count() == 0));
}

fn recoverable() -> throng_gateway::Recovery {
    throng_gateway::Recovery { servers: true, ..Default::default() }
}

#[test]
fn legacy_and_compressing_peers_are_answered_in_kind() {
    let mut world = World::new(development());
    let legacy = world.connect(ConnKind::Client);
    let auth = AuthMessage { player_identifier_token: "ann".into(), ..Default::default() };
    let mut frame = common::frame_of(
        [Send::new(MessageType::Auth, &auth).stub(1)],
        throng_wire::frame::Compression::None,
    );
    frame[2] = 0x4E;
    world.send_raw(legacy, &frame);
    assert_eq!(world.take_types(legacy), [1]);
    // Compressed answers only after the peer has sent a compressed packet itself.
    let packer = world.join(ConnKind::Client, "bob");
    assert_eq!(world.snappy_entries, 0);
    world.send_snappy(packer, [list()]);
    assert_eq!(world.take_types(packer), [5]);
}

#[test]
fn websocket_connections_get_whole_frames_as_messages() {
    let mut world = World::new(development());
    let client = world.connect_with(ConnKind::Client, Framing::WebSocket, "10.0.0.1").expect("accepted");
    world.auth(client, "ann");
    for length in [0, 100, 125, 126, 1_000, 60_000] {
        let server = world.join(ConnKind::Server, &format!("s{length}"));
        let forward = throng_wire::Forward { client_conn_id: world.conn(client), payload: &vec![7; length] };
        let mut body = Vec::new();
        forward.write(&mut body);
        world.send(server, [Send::user(100, &body).broadcast(1)]);
        assert_eq!(world.take(client).pop().expect("a message").body, body);
    }
}

#[test]
fn recordings_hold_what_clients_sent_and_nothing_of_servers() {
    let mut world = World::new(Config { recording: true, ..development() });
    let (client, server) = (world.join(ConnKind::Client, "ann"), world.join(ConnKind::Server, "s"));
    let silent = world.connect(ConnKind::Client);
    world.run_ms(10);
    world.send(client, [list().stub(3), Send::user(0xFFFF, b"refused or not")]);
    for id in [client, server, silent] {
        world.close(id);
    }
    let recordings: Vec<_> = world
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Recording { name, bytes, .. } => Some((name, bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(recordings.len(), 1);
    let (name, bytes) = recordings[0];
    assert_eq!(name, "session_1_23-11-14_22-13-20.010000000.cpr");
    let packets: Vec<_> =
        throng_wire::cpr::CprReader::new(bytes).map(|packet| packet.expect("valid")).collect();
    assert_eq!(packets.len(), 2);
    assert_eq!(packets[1].offset, Duration::from_millis(10));
    assert_eq!(packets[1].packet.messages().len(), 2);
}

// idle connections and channels have no timers and no memory to speak of.
#[test]
fn a1_idle_connections_and_channels_cost_nothing() {
    let mut world = World::new(development());
    let server = world.join(ConnKind::Server, "s");
    for _ in 0..100 {
        world.join(ConnKind::Client, "c");
        let create = CreateChannelMessage { channel_type: 3, ..Default::default() };
        world.send(server, [Send::new(MessageType::CreateChannel, &create)]);
    }
    world.run_ms(1_000);
    assert_eq!(world.shards[0].next_timeout(), None);
    let heap: usize = world.shards[0].connections().map(|conn| conn.heap_bytes).max().expect("connections");
    assert!(heap <= 1024, "{heap} bytes");
}

#[test]
fn the_shard_that_runs_the_world_gets_fewer_connections() {
    // Nothing is measured when the first players arrive at once: a third of them is estimated.
    for (has_world, measured, expected) in
        [(true, 18, [0, 10, 10, 10]), (true, 0, [1, 10, 10, 9]), (false, 18, [8, 8, 7, 7])]
    {
        let lod = has_world.then(|| Lod::published(100.0));
        let spatial = Spatial { lod, ..Spatial::default() };
        let mut world = World::sharded(Config { spatial, ..development() }, 4);
        world.shards[0].set_world_weight(measured);
        let mut count = [0; 4];
        for _ in 0..30 {
            let client = world.connect(ConnKind::Client);
            count[world.shard_of(client)] += 1;
        }
        assert_eq!(count, expected, "with a world: {has_world}");
    }
}

#[test]
fn the_estimate_of_the_worlds_work_gives_way_to_the_measurement() {
    let spatial = Spatial { lod: Some(Lod::published(100.0)), ..Spatial::default() };
    let mut world = World::sharded(Config { spatial, ..development() }, 4);
    let mut of_the_first = 0;
    for round in 0..10 {
        for _ in 0..16 {
            let client = world.connect(ConnKind::Client);
            of_the_first += usize::from(world.shard_of(client) == 0);
        }
        // Ten seconds in which the world takes no work.
        (0..40).for_each(|_| world.shards[0].set_world_weight(0));
        assert!(round > 0 || of_the_first <= 1, "{of_the_first} of the first 16");
    }
    assert!((36..=40).contains(&of_the_first), "{of_the_first} of 160 with four shards");
}
