//! Recorded datagrams, read and written again byte for byte.

use crate::fixture;

use fixture::{bytes, commands, flag, note_connect, number, scenarios, seed, steps, unpack, vectors};
use serde_json::Value;
use throng_enet::wire::{Body, Command};
use throng_enet::{Compressor, RangeCoder};

#[test]
fn range_coder_gives_the_recorded_bytes_and_takes_them() {
    let vectors = vectors();
    let pairs = vectors["range_coder"]["vectors"].as_array().expect("a list");
    assert_eq!(pairs.len(), 15);
    let mut coder = RangeCoder::new();
    for pair in pairs {
        let (input, expected) = (bytes(&pair["input_hex"]), bytes(&pair["output_hex"]));
        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
        assert!(coder.compress(&input, 2 * input.len() + 16, &mut packed));
        assert!(packed == expected, "{}: {packed:02x?}", pair["name"]);
        coder.decompress(&packed, 4096, &mut unpacked).expect("the block is sound");
        assert!(unpacked == input, "{}", pair["name"]);
    }
}

#[test]
fn datagrams_mean_what_was_recorded_and_encode_to_the_same_bytes() {
    let vectors = vectors();
    let mut checked = 0;
    for scenario in scenarios(&vectors) {
        let mut connects = Vec::new();
        for step in steps(scenario).iter().filter(|step| step["kind"] == "datagram") {
            let datagram = bytes(&step["hex"]);
            let (header, body) = unpack(scenario, &datagram);
            let decoded = &step["decoded"];
            assert_eq!(u64::from(header.peer_id), number(&decoded["peer_id"]));
            assert_eq!(u64::from(header.session), number(&decoded["session"]));
            assert_eq!(header.sent_time.map(u64::from), decoded["sent_time"].as_u64());
            let found = commands(&body);
            let expected = decoded["commands"].as_array().expect("a list");
            assert_eq!(found.len(), expected.len());
            for (command, expected) in found.iter().zip(expected) {
                check_command(command, expected);
            }

            note_connect(&mut connects, &header, &body);
            let again: Vec<u8> = found
                .iter()
                .flat_map(|command| {
                    let mut out = Vec::new();
                    command.encode(&mut out);
                    assert_eq!(out.len(), command.encoded_len());
                    out
                })
                .collect();
            assert_eq!(again, body);
            let mut out = Vec::new();
            header.encode(&mut out);
            if flag(scenario, "checksum") {
                let seed = seed(&connects, step["from"] == "client", &header);
                let sum = [&out[..], &seed, &body].concat();
                out.extend_from_slice(&crc32(&sum));
            }
            if header.compressed {
                let mut packed = Vec::new();
                assert!(RangeCoder::new().compress(&body, body.len(), &mut packed));
                assert!(packed.len() < body.len());
                out.extend_from_slice(&packed);
            } else {
                out.extend_from_slice(&body);
            }
            assert!(out == datagram, "{}: {}", scenario["name"], step["hex"]);
            checked += 1;
        }
    }
    assert_eq!(checked, 579);
}

fn check_command(command: &Command<'_>, expected: &Value) {
    let is = |name: &str| assert_eq!(expected["cmd"], name);
    let field = |name: &str, value: u32| assert_eq!(u64::from(value), number(&expected[name]), "{name}");
    let payload = |payload: &[u8]| {
        field("length", payload.len() as u32);
        if let Some(prefix) = expected.get("payload") {
            assert_eq!(payload, bytes(prefix));
        }
    };
    field("channel", command.channel.into());
    field("seq", command.number.into());
    assert_eq!(expected["ack"], command.acknowledge);
    let handshake = |shake: throng_enet::wire::Handshake| {
        field("peer_id", shake.peer_id.into());
        field("incoming_session", shake.incoming_session.into());
        field("outgoing_session", shake.outgoing_session.into());
        field("mtu", shake.mtu);
        field("window", shake.window);
        field("channels", shake.channels);
        field("incoming_bw", shake.incoming_bandwidth);
        field("outgoing_bw", shake.outgoing_bandwidth);
        field("throttle_interval", shake.throttle_interval);
        field("throttle_accel", shake.throttle_acceleration);
        field("throttle_decel", shake.throttle_deceleration);
        assert_eq!(shake.connect_id[..], bytes(&expected["connect_id"]));
    };
    match command.body {
        Body::Acknowledge { number, sent_time } => {
            is("ACK");
            field("acked_seq", number.into());
            field("acked_time", sent_time.into());
        }
        Body::Connect(shake, data) => {
            is("CONNECT");
            handshake(shake);
            field("data", data);
        }
        Body::VerifyConnect(shake) => {
            is("VERIFY_CONNECT");
            handshake(shake);
        }
        Body::Disconnect { data } => {
            is("DISCONNECT");
            field("data", data);
        }
        Body::Ping => is("PING"),
        Body::SendReliable { payload: data } => {
            is("SEND_RELIABLE");
            payload(data);
        }
        Body::SendUnreliable { unreliable_number, payload: data } => {
            is("SEND_UNRELIABLE");
            field("unreliable_seq", unreliable_number.into());
            payload(data);
        }
        Body::SendUnsequenced { group, payload: data } => {
            is("SEND_UNSEQUENCED");
            field("group", group.into());
            payload(data);
        }
        Body::SendFragment(fragment) | Body::SendUnreliableFragment(fragment) => {
            is(if command.acknowledge { "SEND_FRAGMENT" } else { "SEND_UNRELIABLE_FRAGMENT" });
            payload(fragment.payload);
        }
        Body::BandwidthLimit { incoming, outgoing } => {
            is("BANDWIDTH_LIMIT");
            field("incoming_bw", incoming);
            field("outgoing_bw", outgoing);
        }
        Body::ThrottleConfigure { interval, acceleration, deceleration } => {
            is("THROTTLE_CONFIGURE");
            field("interval", interval);
            field("accel", acceleration);
            field("decel", deceleration);
        }
    }
}

/// Bit by bit: the host's own tables are what is being checked.
fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut sum = u32::MAX;
    for &byte in bytes {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xEDB8_8320 * (sum & 1));
        }
    }
    (!sum).to_be_bytes()
}
