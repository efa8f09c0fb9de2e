//! A shard on its own, driven by function calls: what the benches of the gateway have in common.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use divan::black_box;
use prost::Message;
use throng_gateway::data::SchemasBuilder;
use throng_gateway::{Config, ConnHandle, ConnKind, Framing, Shard, ShardIndex};
use throng_stdx::Instant;
use throng_wire::channeldpb::{AuthMessage, MessageType};
use throng_wire::frame::{self, Compression};
use throng_wire::{MessagePack, write_message_entry};

pub(crate) struct Gateway {
    pub(crate) shard: Shard,
    pub(crate) now: Instant,
    /// Where written bytes would go.
    pub(crate) written: usize,
}

impl Gateway {
    /// A gateway of one shard that knows the types of `proto`.
    pub(crate) fn new(config: Config, proto: &str) -> Self {
        let schemas = SchemasBuilder::new().add_proto("bench.proto", proto).build().expect("it compiles");
        let shard = Shard::new(Arc::new(config), Arc::new(schemas), ShardIndex(0), 1, 1, 0);
        Self { shard, now: Instant::ZERO, written: 0 }
    }

    pub(crate) fn join(&mut self, kind: ConnKind) -> ConnHandle {
        let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let accepted = self.shard.accept(self.now, kind, Framing::Stream, addr).expect("accepted");
        let auth = AuthMessage { player_identifier_token: "p".into(), ..Default::default() };
        self.request(accepted.conn, 0, MessageType::Auth, &auth);
        accepted.conn
    }

    pub(crate) fn request(
        &mut self,
        from: ConnHandle,
        channel: u32,
        msg_type: MessageType,
        body: &impl Message,
    ) {
        self.receive(from, &message(channel, msg_type, body));
        self.drain();
    }

    pub(crate) fn receive(&mut self, from: ConnHandle, bytes: &[u8]) {
        self.shard.handle_bytes(self.now, from, bytes);
    }

    /// Takes everything that is to be written, as a transport that never blocks.
    pub(crate) fn drain(&mut self) {
        while let Some(conn) = self.shard.poll_writable() {
            let Some(outbox) = self.shard.outbox(conn) else { continue };
            let mut slices = Vec::with_capacity(4);
            outbox.gather(&mut slices);
            let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
            self.written += bytes;
            self.shard.handle_written(self.now, conn, bytes);
        }
        while let Some(effect) = self.shard.poll_effect() {
            drop(black_box(effect));
        }
    }
}

/// A frame with one message.
pub(crate) fn message(channel: u32, msg_type: MessageType, body: &impl Message) -> Vec<u8> {
    let head = MessagePack { channel_id: channel, msg_type: msg_type as u32, ..Default::default() };
    let mut packet = Vec::new();
    write_message_entry(&mut packet, &head, body);
    framed(&packet)
}

/// A frame around a packet.
pub(crate) fn framed(packet: &[u8]) -> Vec<u8> {
    [&frame::tag(packet.len(), Compression::None)[..], packet].concat()
}
