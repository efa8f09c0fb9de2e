//! Target for a whole gateway process: peers that come, go, stall and say anything.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use throng_gateway::data::{Schemas, SchemasBuilder};
use throng_gateway::{Closed, Config, ConnHandle, ConnKind, Framing, StateMachine, Verdict};
use throng_wire::MessagePack;

use crate::Process;

/// A process of one to three shards and up to sixteen peers. The first byte chooses the
/// configuration, the second the number of shards; then come steps.
///
/// Asserts what [`Process`] asserts: what the gateway writes is readable, what waits is bounded,
/// connections are counted right, timers do not spin, mail comes to rest.
pub fn gateway(input: &[u8]) {
    let [config, shards, steps @ ..] = input else { return };
    let config = &CONFIGS[usize::from(*config) % CONFIGS.len()];
    let mut process = Process::new(config, &SCHEMAS, 1 + u16::from(*shards % 3), 7);
    let mut steps = Steps { rest: steps };
    while let Some(step) = steps.byte() {
        take(&mut process, step, &mut steps);
    }
    process.check();
    process.pass(Duration::from_secs(3));
    process.check();
    process.shut_down();
    assert!(process.open().is_empty(), "connections outlive the shutdown");
    process.check();
}

fn take(process: &mut Process, step: u8, steps: &mut Steps<'_>) {
    let who = steps.byte().unwrap_or_default();
    let open = process.open();
    let conn = open.get(usize::from(who) % open.len().max(1)).copied();
    match (step % 16, conn) {
        (0 | 1, _) if open.len() < 16 => {
            let kind = if who & 1 == 0 { ConnKind::Server } else { ConnKind::Client };
            let framing = if who & 2 == 0 { Framing::Stream } else { Framing::WebSocket };
            if let Ok(conn) = process.accept(kind, framing, who >> 2) {
                // Most peers begin as they should.
                if step.is_multiple_of(16) {
                    send(process, conn, 0, 1, 0, &[0x0A, 0x01, b'a' + (who >> 2) % 4]);
                }
            }
        }
        (2, Some(conn)) => {
            let bytes = steps.bytes();
            process.send_bytes(conn, bytes);
        }
        (3..=10, Some(conn)) => {
            let [channel, msg_type, broadcast] = [(); 3].map(|()| steps.byte().unwrap_or_default());
            let body = steps.bytes();
            send(process, conn, channel, msg_type, broadcast, body);
        }
        (11, Some(conn)) => process.set_stalled(conn, who & 0x40 != 0),
        (12, Some(conn)) => {
            let causes = [Closed::EndOfStream, Closed::Error, Closed::Idle];
            process.close(conn, causes[usize::from(who >> 4) % causes.len()]);
        }
        (13, _) => process.answer(match who % 4 {
            0 | 1 => Verdict::Success,
            2 => Verdict::InvalidLt,
            _ => Verdict::Error("down".into()),
        }),
        (14, _) => process.pass(Duration::from_millis(u64::from(who))),
        (15, _) => process.pass(Duration::from_millis(u64::from(who) * 64)),
        _ => {}
    }
}

fn send(process: &mut Process, conn: ConnHandle, channel: u8, msg_type: u8, broadcast: u8, body: &[u8]) {
    // Channel ids are small for ordinary channels; a few of the others are interesting.
    let channel_id = match channel {
        250 => 0x1_0000,
        251 => 0x8_0000,
        252.. => u32::MAX,
        ordinary => u32::from(ordinary),
    };
    let message = MessagePack {
        channel_id,
        broadcast: u32::from(broadcast),
        stub_id: u32::from(broadcast) + 1,
        msg_type: u32::from(msg_type),
        body,
    };
    process.send(conn, &message);
}

/// Cuts the input into numbers and runs of bytes.
struct Steps<'a> {
    rest: &'a [u8],
}

impl<'a> Steps<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    /// A run with its length in front.
    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte().unwrap_or_default());
        let (bytes, rest) = self.rest.split_at(self.rest.len().min(len));
        self.rest = rest;
        bytes
    }
}

static SCHEMAS: LazyLock<Arc<Schemas>> = LazyLock::new(|| {
    let schemas = SchemasBuilder::new()
        .add_proto("test.proto", include_str!("../../../fixtures/proto/test.proto"))
        .add_proto("chat.proto", include_str!("../../../fixtures/proto/chat.proto"))
        .build();
    Arc::new(schemas.expect("the fixtures compile"))
});

/// As permissive as the reference; the safe defaults with a provider; recovery and small bounds.
static CONFIGS: LazyLock<Vec<Arc<Config>>> = LazyLock::new(|| {
    let managing = Arc::new(StateMachine::client_managing_channels());
    let reference = Config {
        development: true,
        client_state_machine: managing.clone(),
        recording: true,
        ..Config::reference()
    };
    let safe = Config { auth_provider: true, servers_bypass_auth: false, ..Config::default() };
    let mut tight =
        Config { development: true, client_state_machine: managing, conn_id_bits: 4, ..Config::reference() };
    tight.recovery.servers = true;
    tight.recovery.server_timeout = Some(Duration::from_millis(500));
    tight.recovery.client_window = Duration::from_secs(1);
    tight.recovery.lost_max = 3;
    tight.limits.channels = 8;
    tight.limits.subscriptions_per_client = 3;
    tight.limits.channel_backlog_bytes = 200;
    tight.limits.client_messages_per_second = 50;
    tight.outbox.soft_bytes = 300;
    tight.outbox.low_water_bytes = 100;
    tight.outbox.hard_bytes = [4_000, 2_000];
    vec![Arc::new(reference), Arc::new(safe), Arc::new(tight)]
});
