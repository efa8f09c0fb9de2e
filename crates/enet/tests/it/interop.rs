//! Throng and the C library ENet over loopback, in both directions and with every combination of
//! checksum and compression. The other side is `peer/peer.c`, compiled here; without the library's
//! headers the tests say so and pass.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test that drives the core with a real socket and clock"
)]

use crate::{peer, peers};

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant as Clock};

use peer::{Ours, PATIENCE, Peer, Program, config};
use throng_enet::{Delivery, Event, Lane, PeerId, Reason};

#[test]
fn our_client_talks_to_their_server() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    peer::our_client_talks_to_their_server(program);
}

#[test]
fn their_client_talks_to_our_server() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    peer::their_client_talks_to_our_server(program);
}

#[test]
fn all_255_lanes_carry_packets_from_us() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    let (mut their, mut our, peer) = connected_to_them(program, 255);
    for lane in 0..255 {
        our.host.send(peer, Lane(lane), vec![lane; 10], Delivery::Reliable).expect("the lane exists");
    }
    let mut missing: BTreeSet<u8> = (0..255).collect();
    our.wait(|event| {
        let Event::Received { lane, data, .. } = event else { panic!("{event:?}") };
        assert_eq!(data[..], [lane.0; 10]);
        assert!(missing.remove(&lane.0), "lane {} twice", lane.0);
        missing.is_empty()
    });
    our.host.disconnect(peer, 6);
    our.wait(|event| matches!(event, Event::Disconnected { reason: Reason::Local, .. }));
    assert_eq!(their.lines_beside(&mut our), ["connected 1 lanes 255", "disconnected 6"]);
}

#[test]
fn all_255_lanes_carry_packets_to_us() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    let mut our = Ours::new(config(false, false));
    let port = our.address().port().to_string();
    let mut their = Peer::start(program, &["lanes", &port]);
    let peer = our.wait_for_client(98);
    our.echo_until_disconnected(peer, 78);
    assert_eq!(their.lines_beside(&mut our), ["connected lanes 255", "255 lanes echoed", "disconnected 0"]);
}

#[test]
fn their_server_sends_us_away() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    // At once, after what was said before, and without waiting for an answer.
    for (word, number, echoes) in [(&b"bye"[..], 4321, 0), (b"later", 4322, 2), (b"now", 4323, 0)] {
        let (mut their, mut our, peer) = connected_to_them(program, 255);
        our.host.send(peer, Lane(254), word, Delivery::Reliable).expect("the lane exists");
        let mut got = 0;
        our.wait(|event| match event {
            Event::Received { .. } => {
                got += 1;
                false
            }
            Event::Disconnected { data, reason, .. } => {
                assert_eq!((*data, *reason), (number, Reason::Remote));
                true
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(got, echoes);
        // They learn of the end from our acknowledgement.
        assert_eq!(their.lines_beside(&mut our), ["connected 1 lanes 255", "disconnected 0"]);
    }
}

#[test]
fn we_leave_their_server_in_three_ways() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    for way in 0..3 {
        let (mut their, mut our, peer) = connected_to_them(program, 2);
        our.host.send(peer, Lane(1), vec![7; 100_000], Delivery::Reliable).expect("there is room");
        match way {
            0 => our.host.disconnect(peer, 50),
            1 => our.host.disconnect_later(peer, 50),
            _ => our.host.disconnect_now(peer, 50),
        }
        if way < 2 {
            our.wait(|event| matches!(event, Event::Disconnected { reason: Reason::Local, .. }));
        } else {
            our.turn();
            assert_eq!((our.host.poll_event(), our.host.peer_count()), (None, 0));
        }
        assert_eq!(their.lines_beside(&mut our), ["connected 1 lanes 2", "disconnected 50"]);
    }
}

#[test]
fn a_stopped_server_is_noticed() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    let (their, mut our, peer) = connected_to_them(program, 1);
    expect_timeout(&their, &mut our, peer);
}

#[test]
fn a_stopped_client_is_noticed() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    let (their, mut our, peer) = client(program, "patience");
    expect_timeout(&their, &mut our, peer);
}

#[test]
fn they_notice_when_we_stop() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    let (mut their, _our, _) = client(program, "impatience");
    // Nobody turns our host any more.
    assert_eq!(their.lines(), ["connected", "disconnected 0"]);
}

#[test]
fn a_mismatched_checksum_means_silence() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    let mut their = Peer::start(program, &["serve", "1", "1", "0"]);
    let port = their.port();
    let mut our = Ours::new(config(false, false));
    our.host.connect(our.now(), port, 1, 0).expect("there is room");
    let start = Clock::now();
    while start.elapsed() < Duration::from_millis(300) {
        our.turn();
        assert_eq!(our.host.poll_event(), None);
    }
    assert_eq!(our.host.stats().datagrams_in, 0);
}

#[test]
fn our_timers_agree_with_theirs_over_a_second_of_silence() {
    let Some(program) = &*PEER else { return peers::skip("libenet-dev") };
    let (their, mut our, _) = connected_to_them(program, 1);
    let start = Clock::now();
    while start.elapsed() < Duration::from_millis(1_600) {
        our.turn();
        assert_eq!(our.host.poll_event(), None);
    }
    // Pings in both directions, their report of bandwidth, and nothing sent twice.
    let stats = our.host.stats();
    assert!(stats.datagrams_out < 20 && stats.datagrams_in < 20, "{stats:?}");
    assert!(start.elapsed() < PATIENCE);
    their.stop();
}

/// Our client with a server of theirs that has and grants `lanes`.
fn connected_to_them(program: &Program, lanes: u8) -> (Peer, Ours, PeerId) {
    let mut their = Peer::start(program, &["serve", &lanes.to_string(), "0", "0"]);
    let port = their.port();
    let mut our = Ours::new(config(false, false));
    let peer = our.host.connect(our.now(), port, lanes, 1).expect("there is room");
    our.wait_connected(peer);
    (their, our, peer)
}

/// Our server with a client of theirs that waits for what comes, with patience for a server that
/// says nothing for a moment or without.
fn client(program: &Program, patience: &str) -> (Peer, Ours, PeerId) {
    let mut our = Ours::new(config(false, false));
    let port = our.address().port().to_string();
    let their = Peer::start(program, &[patience, &port]);
    let peer = our.wait_for_client(97);
    (their, our, peer)
}

/// They stop without a word, and we find out.
fn expect_timeout(their: &Peer, our: &mut Ours, peer: PeerId) {
    our.host.set_ping_interval(peer, Duration::from_millis(50));
    our.host.set_timeout(peer, 4, Duration::from_millis(300), Duration::from_secs(2));
    their.stop();
    our.wait(|event| matches!(event, Event::Disconnected { reason: Reason::Timeout, .. }));
}

/// The C program, built; `None` where the library is not installed.
static PEER: LazyLock<Option<Program>> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/peer/peer.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("enet-peer");
    let mut probe = Command::new("cc");
    probe.args(["-E", "-include", "enet/enet.h", "-x", "c", "/dev/null", "-o", "/dev/null"]);
    let has_library = probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has_library {
        return None;
    }
    let built =
        Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&program).arg(&source).arg("-lenet").status();
    assert!(built.is_ok_and(|status| status.success()), "peer.c does not compile");
    Some(vec![program.to_str().expect("a plain path").to_owned()])
});
