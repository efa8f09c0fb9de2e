//! Well-framed messages that a gateway must refuse, over two shards. Spec: gateway §3.5, §4 to §7.
//!
//! The scene: server 1 owns GLOBAL and channel 1 (SUBWORLD, chat data); channel 2 has lost its
//! owner; client 3 subscribes to channel 1 for reading; client 4 has not authenticated; server 5
//! owns nothing. Each row begins with a fresh scene.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use prost::Message as _;
use throng_fuzz_targets::Process;
use throng_gateway::data::{Schemas, SchemasBuilder};
use throng_gateway::{CloseReason, Config, ConnHandle, ConnKind, Framing, Refusal, StateMachine, Stats};
use throng_wire::{MessagePack, channeldpb as pb};

use super::{check, hex};

/// Who sends.
#[derive(Clone, Copy)]
pub(crate) enum Who {
    /// Server 1, which owns GLOBAL and channel 1.
    Master,
    /// Server 5, which owns nothing.
    Server,
    /// Client 3, a subscriber of channel 1.
    Client,
    /// Client 4, which has not authenticated.
    Stranger,
}
use Who::{Client, Master, Server, Stranger};

/// Name, sender, channel, type, broadcast, body, and what is counted: `refused` or `closed` with
/// the reason, or `nothing`.
pub(crate) type Row = (&'static str, Who, u32, u32, u32, Vec<u8>, &'static str);

const GARBAGE: &str = "ffffff";

pub(crate) fn rows() -> Vec<Row> {
    let none = Vec::new;
    let garbage = || hex(GARBAGE);
    let mut rows: Vec<Row> = vec![
        // Before authentication.
        ("a stranger creates", Stranger, 0, 3, 0, create(3), "refused state_machine"),
        ("a stranger subscribes", Stranger, 1, 6, 0, none(), "refused state_machine"),
        ("a stranger updates", Stranger, 1, 8, 0, chat_update(), "refused state_machine"),
        ("a stranger disconnects another", Stranger, 0, 9, 0, target(3), "refused state_machine"),
        ("a stranger talks to the game", Stranger, 0, 100, 0, hex("01"), "refused state_machine"),
        ("a stranger sends type 0", Stranger, 0, 0, 0, none(), "refused undefined_type"),
        ("a stranger names no channel", Stranger, 77, 100, 0, none(), "refused state_machine"),
        ("AUTH to another channel", Stranger, 1, 1, 0, auth("x"), "closed auth_wrong_channel"),
        ("AUTH with a body that does not decode", Stranger, 0, 1, 0, garbage(), "refused bad_body"),
        ("AUTH with a token that is not text", Stranger, 0, 1, 0, hex("0a01ff"), "refused bad_body"),
        ("AUTH twice", Client, 0, 1, 0, auth("ann"), "refused state_machine"),
        ("AUTH twice by a server", Server, 0, 1, 0, auth("srv"), "refused state_machine"),
        // Types without a meaning towards the gateway.
        ("type 0", Server, 0, 0, 0, none(), "refused undefined_type"),
        ("type 2", Server, 0, 2, 0, none(), "refused undefined_type"),
        ("a handover from a peer", Server, 0, 12, 0, none(), "refused undefined_type"),
        ("regions from a peer", Server, 0, 13, 0, none(), "refused undefined_type"),
        ("ready from a peer", Server, 0, 18, 0, none(), "refused undefined_type"),
        ("type 19", Server, 0, 19, 0, none(), "refused undefined_type"),
        ("recovery data from a peer", Server, 0, 20, 0, none(), "refused undefined_type"),
        ("recovery end from a peer", Server, 0, 21, 0, none(), "refused undefined_type"),
        ("owner lost from a peer", Server, 0, 22, 0, none(), "refused undefined_type"),
        ("owner recovered from a peer", Server, 0, 23, 0, none(), "refused undefined_type"),
        ("type 50", Server, 0, 50, 0, none(), "refused undefined_type"),
        ("type 98", Server, 0, 98, 0, none(), "refused undefined_type"),
        ("type 65536", Server, 0, 65_536, 0, none(), "refused state_machine"),
        ("the highest type", Client, 0, u32::MAX, 0, none(), "refused state_machine"),
        // Channels that do not exist.
        ("an update of no channel", Master, 77, 8, 0, chat_update(), "refused unknown_channel"),
        ("a message to no channel", Client, 77, 100, 0, none(), "refused unknown_channel"),
        ("a message to the last channel id", Client, u32::MAX, 100, 0, none(), "refused unknown_channel"),
        ("a message to an entity", Client, 0x8_0000, 100, 0, none(), "refused unknown_channel"),
        ("a message to a cell", Client, 0x1_0000, 100, 0, none(), "refused unknown_channel"),
        ("a subscription to no channel", Client, 77, 6, 0, none(), "refused unknown_channel"),
        ("an unsubscription from no channel", Client, 77, 7, 0, target(3), "refused unknown_channel"),
        // Creating.
        ("create with a body that does not decode", Master, 0, 3, 0, garbage(), "refused bad_body"),
        ("create in another channel", Master, 1, 3, 0, create(3), "refused not_global"),
        ("create type 0", Master, 0, 3, 0, create(0), "refused channel_type"),
        ("create a cell", Master, 0, 3, 0, create(4), "refused spatial_unavailable"),
        ("claim GLOBAL a second time", Server, 0, 3, 0, create(1), "refused already_owned"),
        ("claim GLOBAL as a client", Client, 0, 3, 0, create(1), "refused already_owned"),
        (
            "create with metadata of a megabyte",
            Master,
            0,
            3,
            0,
            create_with(|c| c.metadata = "x".repeat(40_000)),
            "refused metadata_bytes",
        ),
        ("create with metadata that is not text", Master, 0, 3, 0, hex("0803 1201ff"), "refused bad_body"),
        (
            "create with a thousand masks",
            Master,
            0,
            3,
            0,
            create_with(|c| c.sub_options = Some(masks(1_000, 3))),
            "refused field_masks",
        ),
        (
            "create with a mask of 30 KiB",
            Master,
            0,
            3,
            0,
            create_with(|c| c.sub_options = Some(masks(1, 30_000))),
            "refused field_masks",
        ),
        (
            "create with data that does not decode",
            Master,
            0,
            3,
            0,
            create_with(|c| c.data = Some(any("chatpb.ChatChannelData", "0a05"))),
            "refused bad_data",
        ),
        (
            "create with data that is not text",
            Master,
            0,
            3,
            0,
            create_with(|c| c.data = Some(any("chatpb.ChatMessage", "0a01ff"))),
            "refused bad_data",
        ),
        (
            "create with data of no type",
            Master,
            0,
            3,
            0,
            create_with(|c| c.data = Some(any("", "0a00"))),
            "refused no_data_type",
        ),
        (
            "create with data of a type that nobody described",
            Master,
            0,
            3,
            0,
            create_with(|c| c.data = Some(any("nobody.Knows", "0a00"))),
            "refused no_data_type",
        ),
        ("create a cell by its own type", Master, 0, 10, 0, create(4), "refused spatial_unavailable"),
        ("query cells", Master, 0, 11, 0, none(), "refused spatial_unavailable"),
        ("update interest", Master, 0, 14, 0, none(), "refused spatial_unavailable"),
        ("create an entity", Master, 0, 15, 0, none(), "refused entity_id"),
        ("add to a group", Master, 0, 16, 0, none(), "refused not_entity"),
        ("remove from a group", Master, 0, 17, 0, none(), "refused not_entity"),
        ("ask for regions", Master, 0, 99, 0, none(), "refused spatial_unavailable"),
        // Removing.
        ("remove with a body that does not decode", Master, 0, 4, 0, garbage(), "refused bad_body"),
        ("remove no channel", Master, 0, 4, 0, target(77), "refused unknown_channel"),
        ("remove GLOBAL", Master, 0, 4, 0, target(0), "refused access"),
        ("remove a channel of another", Client, 0, 4, 0, target(1), "refused access"),
        ("remove a channel of another as a server", Server, 0, 4, 0, target(1), "refused access"),
        // Listing.
        ("list with a body that does not decode", Master, 0, 5, 0, garbage(), "refused bad_body"),
        ("list in another channel", Master, 1, 5, 0, none(), "refused not_global"),
        ("list with a thousand filters", Master, 0, 5, 0, filters(1_000, 3), "refused list_filters"),
        ("list with a filter of 30 KiB", Master, 0, 5, 0, filters(1, 30_000), "refused list_filters"),
        // Subscribing.
        ("subscribe with a body that does not decode", Client, 1, 6, 0, garbage(), "refused bad_body"),
        ("a server subscribes nobody", Master, 1, 6, 0, none(), "refused unknown_connection"),
        ("a server subscribes who is not there", Master, 1, 6, 0, target(99), "refused unknown_connection"),
        (
            "subscribe with a thousand masks",
            Client,
            1,
            6,
            0,
            subscribe(masks(1_000, 3)),
            "refused field_masks",
        ),
        (
            "subscribe with a mask of 30 KiB",
            Client,
            1,
            6,
            0,
            subscribe(masks(1, 30_000)),
            "refused field_masks",
        ),
        ("unsubscribe with a body that does not decode", Client, 1, 7, 0, garbage(), "refused bad_body"),
        ("unsubscribe who is not there", Client, 1, 7, 0, target(99), "refused unknown_connection"),
        ("unsubscribe who is not subscribed", Client, 2, 7, 0, target(3), "refused not_subscribed"),
        ("unsubscribe nobody", Client, 1, 7, 0, none(), "refused unknown_connection"),
        // Updating.
        ("an update without data", Master, 1, 8, 0, none(), "refused bad_body"),
        ("an update that does not decode", Master, 1, 8, 0, garbage(), "refused bad_body"),
        ("an update with a type that is not text", Master, 1, 8, 0, hex("0a03 0a01ff"), "refused bad_body"),
        ("an update by a reader", Client, 1, 8, 0, chat_update(), "refused write_access"),
        ("an update by nobody of this channel", Client, 0, 8, 0, chat_update(), "refused write_access"),
        (
            "an update of another type",
            Master,
            1,
            8,
            0,
            update("testpb.TestMapMessage", "0a020801"),
            "refused wrong_data_type",
        ),
        (
            "an update of a type that nobody described",
            Master,
            1,
            8,
            0,
            update("nobody.Knows", "0a00"),
            "refused wrong_data_type",
        ),
        ("an update of no type", Master, 1, 8, 0, update("", "0a00"), "refused wrong_data_type"),
        (
            "an update whose data does not decode",
            Master,
            1,
            8,
            0,
            update("chatpb.ChatChannelData", "0a05"),
            "refused bad_data",
        ),
        (
            "an update whose text is not text",
            Master,
            1,
            8,
            0,
            update("chatpb.ChatChannelData", "0a03 0a01ff"),
            "refused bad_data",
        ),
        (
            "an update of an ownerless channel by a server",
            Server,
            2,
            8,
            0,
            chat_update(),
            "refused write_access",
        ),
        // Disconnecting.
        ("disconnect with a body that does not decode", Master, 0, 9, 0, garbage(), "refused bad_body"),
        ("disconnect in another channel", Master, 1, 9, 0, target(3), "refused not_global"),
        ("disconnect nobody", Master, 0, 9, 0, none(), "refused unknown_connection"),
        ("disconnect who is not there", Master, 0, 9, 0, target(99), "refused unknown_connection"),
        ("disconnect as a client", Client, 0, 9, 0, target(1), "refused state_machine"),
        ("disconnect a client", Master, 0, 9, 0, target(3), "closed kicked"),
        // Messages of the game.
        ("a client to a channel without owner", Client, 2, 100, 0, hex("01"), "refused no_owner"),
        ("a client broadcasts in a channel without owner", Client, 2, 100, 2, hex("01"), "refused no_owner"),
        ("a server sends what is not wrapped", Master, 1, 100, 2, garbage(), "refused bad_body"),
        ("a server to the owner that is not", Server, 2, 100, 0, wrapped(0), "refused no_owner"),
        (
            "a server to one connection, none named, no owner",
            Server,
            2,
            100,
            1,
            wrapped(0),
            "refused no_owner",
        ),
        (
            "a server to one connection that is not there",
            Server,
            1,
            100,
            1,
            wrapped(99),
            "refused unknown_connection",
        ),
        ("to neighbours in a channel without any", Master, 1, 100, 64, wrapped(0), "refused broadcast_value"),
        ("to neighbours but the sender", Master, 1, 100, 68, wrapped(0), "refused broadcast_value"),
        ("a broadcast value without meaning", Master, 1, 100, 128, wrapped(0), "refused broadcast_value"),
        ("the highest broadcast value", Master, 1, 100, u32::MAX, wrapped(0), "refused broadcast_value"),
        ("a spawn that does not decode", Master, 1, 103, 2, wrapped_payload("ffffff"), "refused bad_body"),
        ("a spawn without an object", Master, 1, 103, 2, wrapped_payload(""), "refused bad_body"),
        ("a destroy that does not decode", Master, 1, 104, 2, wrapped_payload("ffffff"), "refused bad_body"),
        // What looks bad and is not.
        ("a client's message is never looked into", Client, 1, 100, 0, garbage(), "nothing"),
        ("a client's spawn is opaque", Client, 1, 103, 0, garbage(), "nothing"),
        ("an update of nothing", Master, 1, 8, 0, update("chatpb.ChatChannelData", ""), "nothing"),
        (
            "an interval of zero",
            Client,
            1,
            6,
            0,
            subscribe(pb::ChannelSubscriptionOptions { fan_out_interval_ms: Some(0), ..Default::default() }),
            "nothing",
        ),
        (
            "an interval of 49 days",
            Client,
            1,
            6,
            0,
            subscribe(pb::ChannelSubscriptionOptions {
                fan_out_interval_ms: Some(u32::MAX),
                ..Default::default()
            }),
            "nothing",
        ),
        (
            "a delay before the beginning of time",
            Client,
            2,
            6,
            0,
            subscribe(pb::ChannelSubscriptionOptions {
                fan_out_delay_ms: Some(i32::MIN),
                ..Default::default()
            }),
            "nothing",
        ),
        (
            "an access that does not exist",
            Client,
            2,
            6,
            0,
            subscribe(pb::ChannelSubscriptionOptions { data_access: Some(7), ..Default::default() }),
            "nothing",
        ),
    ];
    // A channel type may be any number, also one that the protocol reads as negative.
    rows.push(("a channel type of 2^31", Master, 0, 3, 0, create(i32::MIN), "nothing"));
    rows
}

#[test]
fn messages() {
    let rows = rows();
    check(
        &rows,
        |row| (row.0, row.6),
        |(_, from, channel, msg_type, broadcast, body, _)| {
            let mut process = scene();
            let before = process.stats();
            let conn = match from {
                Master => ConnHandle(1),
                Client => ConnHandle(3),
                Stranger => ConnHandle(4),
                Server => ConnHandle(5),
            };
            let head = MessagePack {
                channel_id: *channel,
                broadcast: *broadcast,
                stub_id: 9,
                msg_type: *msg_type,
                body,
            };
            process.send(conn, &head);
            process.pass(Duration::from_millis(200));
            process.check();
            counted(&before, &process.stats())
        },
    );
}

/// What the counters say happened between two readings.
fn counted(before: &Stats, after: &Stats) -> String {
    let refused = Refusal::ALL.iter().filter(|reason| after.refused(**reason) != before.refused(**reason));
    let closed = CloseReason::ALL.iter().filter(|reason| {
        ConnKind::ALL.iter().any(|kind| after.closed(*kind, **reason) != before.closed(*kind, **reason))
    });
    let found: Vec<String> = refused
        .map(|reason| format!("refused {}", reason.name()))
        .chain(closed.map(|reason| format!("closed {}", reason.name())))
        .collect();
    if found.is_empty() { "nothing".into() } else { found.join(", ") }
}

fn scene() -> Process {
    let mut process = Process::new(&CONFIG, &SCHEMAS, 2, 7);
    let mut join = |kind, token: Option<&str>| {
        let conn = process.accept(kind, Framing::Stream, 1).expect("there is room");
        if let Some(token) = token {
            send(&mut process, conn, 0, 1, auth(token));
        }
        conn
    };
    let master = join(ConnKind::Server, Some("master"));
    let leaver = join(ConnKind::Server, Some("leaver"));
    let client = join(ConnKind::Client, Some("ann"));
    join(ConnKind::Client, None);
    join(ConnKind::Server, Some("other"));
    send(&mut process, master, 0, 3, create(1));
    let chat = create_with(|c| c.data = Some(any("chatpb.ChatChannelData", "")));
    send(&mut process, master, 0, 3, chat.clone());
    send(&mut process, leaver, 0, 3, chat);
    send(&mut process, client, 1, 6, Vec::new());
    // Channel 2 stays when its owner leaves it.
    send(&mut process, leaver, 2, 7, target(leaver.0));
    process.pass(Duration::from_millis(100));
    assert_eq!(process.open().len(), 5);
    assert_eq!(counted(&Stats::default(), &process.stats()), "nothing", "the scene itself is clean");
    process
}

fn send(process: &mut Process, conn: ConnHandle, channel_id: u32, msg_type: u32, body: Vec<u8>) {
    process.send(conn, &MessagePack { channel_id, msg_type, body: &body, ..Default::default() });
}

static CONFIG: LazyLock<Arc<Config>> = LazyLock::new(|| {
    Arc::new(Config {
        development: true,
        client_state_machine: Arc::new(StateMachine::client_managing_channels()),
        limits: Config::default().limits,
        ..Config::reference()
    })
});

static SCHEMAS: LazyLock<Arc<Schemas>> = LazyLock::new(|| {
    let builder = SchemasBuilder::new()
        .add_proto("chat.proto", include_str!("../../../../../fixtures/proto/chat.proto"))
        .add_proto("test.proto", include_str!("../../../../../fixtures/proto/test.proto"))
        .allow_opaque(false);
    Arc::new(builder.build().expect("the fixtures compile"))
});

fn auth(token: &str) -> Vec<u8> {
    pb::AuthMessage { player_identifier_token: token.into(), login_token: token.into(), ..Default::default() }
        .encode_to_vec()
}

fn create(channel_type: i32) -> Vec<u8> {
    create_with(|create| create.channel_type = channel_type)
}

fn create_with(change: impl FnOnce(&mut pb::CreateChannelMessage)) -> Vec<u8> {
    let mut create = pb::CreateChannelMessage { channel_type: 3, ..Default::default() };
    change(&mut create);
    create.encode_to_vec()
}

fn subscribe(options: pb::ChannelSubscriptionOptions) -> Vec<u8> {
    pb::SubscribedToChannelMessage { conn_id: 0, sub_options: Some(options) }.encode_to_vec()
}

fn masks(count: usize, len: usize) -> pb::ChannelSubscriptionOptions {
    pb::ChannelSubscriptionOptions { data_field_masks: vec!["m".repeat(len); count], ..Default::default() }
}

fn filters(count: usize, len: usize) -> Vec<u8> {
    pb::ListChannelMessage { type_filter: 0, metadata_filters: vec!["f".repeat(len); count] }.encode_to_vec()
}

/// Every body whose only field is a number with field number 1: a connection or a channel.
fn target(id: u32) -> Vec<u8> {
    pb::DisconnectMessage { conn_id: id }.encode_to_vec()
}

fn any(type_name: &str, value: &str) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{type_name}"), value: hex(value) }
}

fn update(type_name: &str, value: &str) -> Vec<u8> {
    pb::ChannelDataUpdateMessage { data: Some(any(type_name, value)), ..Default::default() }.encode_to_vec()
}

fn chat_update() -> Vec<u8> {
    update("chatpb.ChatChannelData", "0a03 0a0161")
}

fn wrapped(client_conn_id: u32) -> Vec<u8> {
    pb::ServerForwardMessage { client_conn_id, payload: b"x".to_vec() }.encode_to_vec()
}

fn wrapped_payload(payload: &str) -> Vec<u8> {
    pb::ServerForwardMessage { client_conn_id: 0, payload: hex(payload) }.encode_to_vec()
}
