//! Throng and Godot 3's high-level multiplayer over loopback: its client at our host, our clients
//! at its server. Without `godot3-server` the tests say so and pass. Clients that talk to each
//! other through us are in the tests of `throng-net`, with its relay.
//!
//! What Godot 3 puts above ENet, and a host must play along with (crates/enet/GODOT.md): CONNECT
//! carries the client's id, at least 2; lane 0 announces other clients; packets on the other lanes
//! begin with source and target.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test that drives the core with a real socket and clock"
)]

use crate::{peer, peers};

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant as Clock};

use peer::{Ours, PATIENCE, Peer, Program, config, word};
use throng_enet::{Delivery, Event, Lane, PeerId, Reason};

#[test]
fn their_client_talks_to_our_server() {
    let Some(program) = &*GODOT else { return peers::skip("godot3-server") };
    for coder in [false, true] {
        let mut our = Ours::new(config(false, coder));
        let port = our.address().port().to_string();
        let mut their = Peer::start(program, &["connect", &port, word(coder)]);
        echo_until_left(&mut our);
        let mut lines = words(&mut their, &mut our);
        assert_eq!(lines.pop().as_deref(), Some("done"));
        // Their server is simply there, and everything came back.
        let mut expected = vec!["ready".to_owned(), "joined server".to_owned()];
        expected.extend(
            ["0", "1", "2"].iter().flat_map(|mode| {
                ["10", "1000", "20000"].iter().map(move |size| format!("echo {mode} {size}"))
            }),
        );
        lines.sort();
        expected.sort();
        assert_eq!(lines, expected);
    }
}

#[test]
fn our_clients_talk_to_their_server() {
    let Some(program) = &*GODOT else { return peers::skip("godot3-server") };
    for coder in [false, true] {
        // It cannot say which port it got, so it is told one that was free a moment ago.
        let probe = UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = probe.local_addr().expect("it is bound");
        drop(probe);
        let mut their = Peer::start(program, &["serve", &address.port().to_string(), word(coder)]);
        while their.line() != "- ready" {}
        let mut one = join(address, coder, 77);
        let mut two = join(address, coder, 78);
        // Its server introduces clients to each other.
        expect_packet(&mut one.0, Lane(0), &packet(0, 78, &[]), |_| {});
        expect_packet(&mut two.0, Lane(0), &packet(0, 77, &[]), |_| {});
        for (our, peer, id) in [(&mut one.0, one.1, 77), (&mut two.0, two.1, 78)] {
            let kinds = [
                (2, 1, Delivery::Reliable, 5_000),
                (1, 2, Delivery::Unreliable, 100),
                (0, 2, Delivery::Unsequenced, 100),
                (2, 1, Delivery::Reliable, 0),
            ];
            for (mode, lane, delivery, len) in kinds {
                // The first byte tells the script in which mode to answer.
                let content = [&[mode][..], &vec![id as u8; len]].concat();
                expect_packet(our, Lane(lane), &packet(1, id as i32, &content), |our| {
                    let packet = packet(id, 1, &content);
                    our.host.send(peer, Lane(lane), packet, delivery).expect("there is room");
                });
            }
        }
        // The server tells the others who has left.
        two.0.host.disconnect(two.1, 0);
        two.0.wait(|event| matches!(event, Event::Disconnected { reason: Reason::Local, .. }));
        expect_packet(&mut one.0, Lane(0), &packet(1, 78, &[]), |_| {});
        // That was enough for the script.
        one.0.wait(|event| matches!(event, Event::Disconnected { reason: Reason::Remote, .. }));
    }
}

fn packet(first: u32, second: i32, content: &[u8]) -> Vec<u8> {
    [&first.to_le_bytes()[..], &second.to_le_bytes(), content].concat()
}

/// A server without a game: every packet goes back to its sender.
fn echo_until_left(our: &mut Ours) {
    let start = Clock::now();
    let mut client = None;
    loop {
        assert!(start.elapsed() < 2 * PATIENCE, "{:?}", our.host);
        our.turn();
        while let Some(event) = our.host.poll_event() {
            match event {
                Event::Connected { data: id, .. } => client = Some(id),
                Event::Received { peer, lane, data, delivery } => {
                    let id = client.expect("packets follow the connection");
                    let head = packet(id, 1, &[]);
                    assert_eq!(data[..8], head, "from itself to the server");
                    let echo = packet(1, id as i32, &data[8..]);
                    our.host.send(peer, lane, echo, delivery).expect("there is room");
                }
                Event::Disconnected { .. } => {
                    assert_eq!(our.host.stats().dropped_malformed, 0);
                    return our.host.check_invariants();
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn join(address: SocketAddr, coder: bool, id: u32) -> (Ours, PeerId) {
    let mut our = Ours::new(config(false, coder));
    let peer = our.host.connect(our.now(), address, 3, id).expect("there is room");
    our.wait_connected(peer);
    (our, peer)
}

/// Waits for a packet. Asks for it again and again: one that is not reliable may get lost while the
/// machine stands still.
fn expect_packet(our: &mut Ours, lane: Lane, content: &[u8], mut ask: impl FnMut(&mut Ours)) {
    let start = Clock::now();
    while start.elapsed() < PATIENCE {
        ask(our);
        let asked = Clock::now();
        while asked.elapsed() < Duration::from_secs(1) {
            our.turn();
            while let Some(event) = our.host.poll_event() {
                if matches!(&event, Event::Received { lane: on, data, .. } if *on == lane && data[..] == *content)
                {
                    return;
                }
            }
        }
    }
    panic!("no packet of {} bytes came on {lane:?}: {:?}", content.len(), our.host);
}

/// Lines of the script; the engine prints others.
fn words(their: &mut Peer, our: &mut Ours) -> Vec<String> {
    their.lines_beside(our).iter().filter_map(|line| line.strip_prefix("- ").map(str::to_owned)).collect()
}

static GODOT: LazyLock<Option<Program>> = LazyLock::new(|| {
    let mut probe = Command::new("godot3-server");
    probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if probe.status().is_err() {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/peer/godot.gd");
    let words = ["godot3-server", "-s", script.to_str().expect("a plain path"), "--"];
    Some(words.map(str::to_owned).to_vec())
});
