//! The bound of the output that waits for all clients together, over real sockets.

use prost::Message as _;
use throng_wire::{MessagePack, channeldpb as pb};

use crate::common::{Dial, Peer, clients, gateway, http, servers};

/// Bytes that the system may buffer for a connection are no concern of the gateway, and may be
/// several megabytes: so many messages of 60 kB are certainly more.
const MESSAGES_MAX: usize = 2_000;

#[test]
fn a_client_that_does_not_read_is_closed_when_all_output_takes_too_much_memory() {
    for shards in ["1", "2", "4"] {
        let running = gateway(&[
            ("server.shards", shards),
            ("gateway.clients.transport", "tcp"),
            ("gateway.limits.outbox_total_bytes", "2000000"),
            // No other bound is in the way.
            ("gateway.limits.outbox_hard_bytes", "1000000000"),
        ]);
        let mut server = Peer::login(servers(&running), &Dial::Tcp, "server", "");
        let create =
            pb::CreateChannelMessage { channel_type: pb::ChannelType::Subworld as i32, ..Default::default() };
        let room: pb::CreateChannelResultMessage = server.ask(0, pb::MessageType::CreateChannel, &create);
        let mut stuck = Peer::login(clients(&running), &Dial::Tcp, "stuck", "");
        let mut healthy = Peer::login(clients(&running), &Dial::Tcp, "healthy", "");
        for conn_id in [stuck.id, healthy.id] {
            let subscribe = pb::SubscribedToChannelMessage { conn_id, sub_options: None };
            let _: pb::SubscribedToChannelResultMessage =
                server.ask(room.channel_id, pb::MessageType::SubToChannel, &subscribe);
        }
        let message = pb::ServerForwardMessage { client_conn_id: 0, payload: vec![7; 60_000] };
        let message = message.encode_to_vec();
        let head = MessagePack {
            channel_id: room.channel_id,
            broadcast: pb::BroadcastType::AllButSender as u32,
            msg_type: 100,
            ..Default::default()
        };
        let closed = "throng_gateway_connections_closed_total{kind=\"client\",reason=\"output_memory\"} 1";
        let mut is_closed = false;
        for count in 1..=MESSAGES_MAX {
            server.send(head, &message);
            healthy.receive(|message| message.kind == 100);
            if count % 50 == 0 && http(&running, "/metrics").1.contains(closed) {
                is_closed = true;
                break;
            }
        }
        assert!(is_closed, "with {shards} shards: {}", http(&running, "/metrics").1);
        // The connection ends, and the one that reads stays.
        stuck.until_closed();
        server.send(head, &message);
        healthy.receive(|message| message.kind == 100);
        let (_, limits) = http(&running, "/api/v1/limits");
        assert!(limits.contains("gateway.limits.outbox_total_bytes"), "{limits}");
    }
}
