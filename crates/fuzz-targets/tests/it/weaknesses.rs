//! Weaknesses of the reference that show in what a peer sees, driven through a whole process
//! without sockets.

use std::sync::Arc;
use std::time::Duration;

use throng_fuzz_targets::Process;
use throng_gateway::data::SchemasBuilder;
use throng_gateway::{Config, ConnHandle, ConnKind, Framing, StateMachine};
use throng_wire::{MessagePack, channeldpb as pb};

fn process(shards: u16) -> Process {
    let config = Config {
        development: true,
        client_state_machine: Arc::new(StateMachine::client_managing_channels()),
        ..Config::reference()
    };
    let schemas = SchemasBuilder::new()
        .add_proto("chat.proto", include_str!("../../../../fixtures/proto/chat.proto"))
        .build()
        .expect("the fixture compiles");
    Process::new(&Arc::new(config), &Arc::new(schemas), shards, 1)
}

fn send(process: &mut Process, conn: ConnHandle, channel_id: u32, msg_type: u32, body: &impl prost::Message) {
    let body = body.encode_to_vec();
    process.send(conn, &MessagePack { channel_id, msg_type, stub_id: 5, body: &body, ..Default::default() });
}

fn join(process: &mut Process, kind: ConnKind) -> ConnHandle {
    let conn = process.accept(kind, Framing::Stream, 1).expect("there is room");
    send(process, conn, 0, 1, &pb::AuthMessage { player_identifier_token: "p".into(), ..Default::default() });
    conn
}

fn chat() -> prost_types::Any {
    // One message with the text "a".
    let value = vec![0x0A, 0x03, 0x1A, 0x01, b'a'];
    prost_types::Any { type_url: "type.googleapis.com/chatpb.ChatChannelData".into(), value }
}

fn types(process: &mut Process, conn: ConnHandle) -> Vec<u32> {
    process.take_received(conn).into_iter().map(|message| message.msg_type).collect()
}

// The reference answers in the tick of the channel: 10 ms later on average with its quickest
// settings, and everything that is not about one channel waits for one loop.
#[test]
fn a11_requests_are_answered_before_any_time_passes() {
    for shards in [1, 2, 4] {
        let mut process = process(shards);
        let server = join(&mut process, ConnKind::Server);
        assert_eq!(types(&mut process, server), [1], "AUTH");
        for _ in 0..5 {
            let create = pb::CreateChannelMessage { channel_type: 3, ..Default::default() };
            send(&mut process, server, 0, 3, &create);
            assert_eq!(types(&mut process, server), [3, 6], "CREATE, then the creator's subscription");
        }
        send(&mut process, server, 0, 5, &pb::ListChannelMessage::default());
        assert_eq!(types(&mut process, server), [5], "LIST");
        let client = join(&mut process, ConnKind::Client);
        process.take_received(client);
        send(&mut process, client, 3, 6, &pb::SubscribedToChannelMessage::default());
        assert_eq!(types(&mut process, client), [6], "SUB to a channel of any shard");
        send(&mut process, client, 3, 7, &pb::UnsubscribedFromChannelMessage { conn_id: client.0 });
        assert_eq!(types(&mut process, client), [7], "UNSUB");
    }
}

// In the reference a subscription with interval 0 hangs its channel and burns a core.
#[test]
fn a10_an_interval_of_zero_means_every_tick() {
    let mut process = process(2);
    let server = join(&mut process, ConnKind::Server);
    let create = pb::CreateChannelMessage { channel_type: 3, data: Some(chat()), ..Default::default() };
    send(&mut process, server, 0, 3, &create);
    let client = join(&mut process, ConnKind::Client);
    let options = pb::ChannelSubscriptionOptions { fan_out_interval_ms: Some(0), ..Default::default() };
    let subscribe = pb::SubscribedToChannelMessage { conn_id: 0, sub_options: Some(options) };
    send(&mut process, client, 1, 6, &subscribe);
    process.pass(Duration::from_secs(1));
    assert_eq!(types(&mut process, client), [1, 6, 8], "the full state, once");

    // Ticks of 20 ms, an update before each of them: one message per tick.
    for _ in 0..10 {
        send(
            &mut process,
            server,
            1,
            8,
            &pb::ChannelDataUpdateMessage { data: Some(chat()), ..Default::default() },
        );
        process.pass(Duration::from_millis(20));
    }
    assert_eq!(types(&mut process, client), [8; 10]);
    process.pass(Duration::from_secs(60));
    assert!(types(&mut process, client).is_empty(), "nothing new, nothing sent");
    process.check();
}
