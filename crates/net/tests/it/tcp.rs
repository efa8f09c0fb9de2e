//! TCP connections over loopback.

use crate::common;

use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::*;
use throng_net::*;

#[test]
fn bytes_flow_both_ways() {
    let mut node = Node::new();
    node.seen.echo = true;
    let addr = node.listen(Transport::Tcp);
    let mut client = TcpStream::connect(addr).unwrap();
    let sent = pattern(300_000);
    let expected = sent.clone();
    let writer = std::thread::spawn(move || {
        let mut reader = client.try_clone().unwrap();
        let writer = std::thread::spawn(move || client.write_all(&sent).unwrap());
        let mut got = vec![0; 300_000];
        reader.read_exact(&mut got).unwrap();
        writer.join().unwrap();
        got
    });
    node.until("the client is done", |_| writer.is_finished());
    assert!(writer.join().unwrap() == expected);
    let key = node.accepted_one();
    node.until("the end of the stream is seen", |node| node.seen.closed.contains_key(&key));
    assert!(matches!(node.seen.closed[&key], CloseCause::EndOfStream));
    assert_eq!(node.net.conn_count(), 0);
}

#[test]
fn loops_connect_to_each_other_and_gather_slices() {
    let (mut server, mut client) = (Node::new(), Node::new());
    let addr = server.listen(Transport::Tcp);
    let key = client.net.connect(patient(addr, Transport::Tcp)).unwrap();
    assert!(client.net.write(key, &[IoSlice::new(b"x")]).blocked, "not connected yet");
    until_both(&mut server, &mut client, "connected", |s, c| {
        !s.seen.accepted.is_empty() && c.seen.connected == [key]
    });
    assert!(client.seen.writable.contains(&key), "a blocked write is announced");
    // More slices than one system call takes.
    let parts: Vec<[u8; 3]> = (0..5000u32).map(|i| [i as u8, (i >> 8) as u8, 7]).collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    assert_eq!(client.net.write(key, &slices), WriteOutcome { taken: 15_000, blocked: false });
    let peer = server.accepted_one();
    server.until("all arrived", |s| s.received(peer).len() == 15_000);
    assert!(server.received(peer) == parts.concat());
}

/// Bytes in the kernel cannot be replaced by newer ones, and its buffer grows to megabytes: a slow
/// reader would see a world of long ago.
#[test]
fn the_kernel_takes_little_that_a_slow_reader_does_not() {
    let mut node = Node::new();
    let addr = node.listen(Transport::Tcp);
    let mut client = TcpStream::connect(addr).unwrap();
    node.until("accepted", |node| !node.seen.accepted.is_empty());
    let (peer, chunk) = (node.accepted_one(), pattern(64 << 10));
    // The kernel's buffers grow with a reader that is fast at first.
    let mut taken = 0;
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..400 {
        taken += node.net.write(peer, &[IoSlice::new(&chunk)]).taken;
        taken -= client.read(&mut buffer).unwrap();
        node.step(0);
    }
    // Then nothing is read until nothing more is taken. The reader's own buffer is not the
    // server's: how far it has grown depends on how the reads above fell, so that its bytes are
    // counted apart.
    let before = taken;
    while !node.net.write(peer, &[IoSlice::new(&chunk)]).blocked {
        taken += chunk.len();
    }
    node.until("the kernel holds little of its own", |_| {
        let unread = rustix::io::ioctl_fionread(&client).unwrap();
        taken - before < usize::try_from(unread).unwrap() + (1 << 20)
    });
}

#[test]
fn a_shared_file_reaches_every_reader_also_those_that_take_it_in_pieces() {
    const COPIES: usize = 40;
    let (mut server, mut client) = (Node::new(), Node::new());
    let addr = server.listen(Transport::Tcp);
    let keys: Vec<ConnKey> =
        (0..3).map(|_| client.net.connect(patient(addr, Transport::Tcp)).unwrap()).collect();
    until_both(&mut server, &mut client, "connected", |s, c| {
        s.seen.accepted.len() == 3 && c.seen.connected.len() == 3
    });
    let bytes = pattern(200_000);
    let file = SharedFile::new(&[&bytes[..5], &bytes[5..]]).unwrap();
    assert_eq!(file.len(), bytes.len());
    let peers: Vec<ConnKey> = server.seen.accepted.iter().map(|(_, key)| *key).collect();
    let mut sent = vec![0; peers.len()];
    let mut whole = 0;
    // Nobody reads meanwhile, so that socket buffers fill up: the rest goes the ordinary way, which
    // waits for room.
    for _ in 0..COPIES {
        for (&peer, sent) in peers.iter().zip(&mut sent) {
            if *sent % bytes.len() == 0 {
                assert!(server.net.takes_shared(peer));
                let taken = server.net.write_shared(peer, &file);
                *sent += taken;
                whole += usize::from(taken == bytes.len());
            }
        }
    }
    assert!(whole >= peers.len(), "the first copy fits a socket buffer");
    drop(file);
    while sent.iter().any(|&sent| sent < COPIES * bytes.len()) {
        for (&peer, sent) in peers.iter().zip(&mut sent) {
            let (left, at) = (COPIES * bytes.len() - *sent, *sent % bytes.len());
            if left > 0 {
                *sent += server.net.write(peer, &[IoSlice::new(&bytes[at..])]).taken;
            }
        }
        server.step(1);
        client.step(1);
    }
    until_both(&mut server, &mut client, "all arrived", |_, c| {
        keys.iter().all(|key| c.received(*key).len() == COPIES * bytes.len())
    });
    for key in keys {
        assert!(client.received(key).chunks(bytes.len()).all(|copy| copy == bytes));
    }
}

#[test]
fn only_plain_streams_take_shared_files() {
    let (mut server, mut client) = (Node::new(), Node::new());
    let addr = server.listen(Transport::WebSocket);
    let key = client.net.connect(patient(addr, Transport::WebSocket)).unwrap();
    until_both(&mut server, &mut client, "connected", |s, c| {
        s.seen.accepted.len() == 1 && c.seen.connected.len() == 1
    });
    let file = SharedFile::new(&[b"bytes"]).unwrap();
    assert!(!client.net.takes_shared(key));
    assert_eq!(client.net.write_shared(key, &file), 0);
    let peer = server.accepted_one();
    assert_eq!(server.net.write_shared(peer, &file), 0);
}

#[test]
fn a_refused_connection_is_reported() {
    let mut node = Node::new();
    let (_taken, unused) = deaf_address();
    let key = node.net.connect(patient(unused, Transport::Tcp)).unwrap();
    node.until("the failure is reported", |node| node.seen.closed.contains_key(&key));
    assert_eq!(node.seen.closed[&key].name(), "connect_failed");
    assert!(node.seen.connected.is_empty());
}

#[test]
fn a_reader_that_stalls_blocks_only_itself() {
    let mut node = Node::new();
    let addr = node.listen(Transport::Tcp);
    let mut stalled = TcpStream::connect(addr).unwrap();
    let stalled_key = node.accepted_one();
    let mut healthy = TcpStream::connect(addr).unwrap();
    node.until("both are accepted", |node| node.seen.accepted.len() == 2);
    let healthy_key = node.seen.accepted[1].1;

    let chunk = pattern(1 << 20);
    let mut taken = 0;
    loop {
        let outcome = node.net.write(stalled_key, &[IoSlice::new(&chunk)]);
        taken += outcome.taken;
        if outcome.blocked {
            break;
        }
        assert!(taken < 1 << 30, "the kernel takes everything");
    }
    let again = node.net.write(stalled_key, &[IoSlice::new(&chunk)]);
    assert_eq!(again, WriteOutcome { taken: 0, blocked: true });

    node.write_all(healthy_key, b"still here");
    let mut got = [0; 10];
    healthy.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still here");
    assert!(!node.seen.writable.contains(&stalled_key));

    // Once it reads again, the loop says so.
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; taken];
        stalled.read_exact(&mut got).unwrap();
        (stalled, got)
    });
    node.until("room is announced", |node| node.seen.writable.contains(&stalled_key));
    let (_stalled, got) = reader.join().unwrap();
    assert!(got.chunks(1 << 20).all(|part| part == &chunk[..part.len()]));
}

#[test]
fn a_paused_connection_delivers_nothing_until_resumed() {
    let mut node = Node::new();
    node.seen.pause = true;
    let addr = node.listen(Transport::Tcp);
    let mut client = TcpStream::connect(addr).unwrap();
    let key = node.accepted_one();
    client.write_all(b"one").unwrap();
    node.until("the first bytes arrive", |node| node.received(key) == b"one");
    client.write_all(b"two").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    // Something else happens on the loop afterwards, and still nothing is delivered.
    let _other = TcpStream::connect(addr).unwrap();
    node.until("another is accepted", |node| node.seen.accepted.len() == 2);
    node.step(20);
    assert_eq!(node.received(key), b"one");
    node.seen.pause = false;
    node.net.resume_read(key);
    node.until("the end is seen", |node| node.seen.closed.contains_key(&key));
    assert_eq!(node.received(key), b"onetwo");
}

#[test]
fn a_flushing_close_delivers_everything_although_input_is_unread() {
    let mut node = Node::new();
    let addr = node.listen(Transport::Tcp);
    let mut client = TcpStream::connect(addr).unwrap();
    let key = node.accepted_one();
    node.net.pause_read(key);
    client.write_all(&pattern(100_000)).unwrap();
    let farewell = pattern(50_000);
    assert_eq!(node.net.write(key, &[IoSlice::new(&farewell)]).taken, farewell.len());
    node.net.close(key, CloseMode::Flush);
    assert!(node.net.write(key, &[IoSlice::new(b"late")]).blocked);
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        got
    });
    node.until("the connection is gone", |node| node.net.conn_count() == 0);
    assert!(reader.join().unwrap() == farewell);
    assert!(node.seen.closed.is_empty(), "the driver's own close is not reported");
}

#[test]
fn a_flushing_close_ends_at_its_deadline() {
    let mut node = Node::new();
    let limits = Limits { flush_timeout: Duration::from_millis(50), ..Limits::default() };
    let addr = node.listen_with(ListenerSpec { limits, ..ListenerSpec::new(loopback(), Transport::Tcp) });
    // Before the poll whose time the deadline is counted from.
    let started = Instant::now();
    let _client = TcpStream::connect(addr).unwrap();
    let key = node.accepted_one();
    node.net.close(key, CloseMode::Flush);
    node.until("the connection is cut", |node| node.net.conn_count() == 0);
    assert!(started.elapsed() >= Duration::from_millis(40));
}

#[test]
fn an_immediate_close_cuts() {
    let mut node = Node::new();
    let addr = node.listen(Transport::Tcp);
    let mut client = TcpStream::connect(addr).unwrap();
    let key = node.accepted_one();
    node.net.close(key, CloseMode::Now);
    assert_eq!(node.net.conn_count(), 0);
    assert_eq!(client.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(node.net.peer(key), None);
}

#[test]
fn a_reset_is_reported_after_the_bytes_before_it() {
    let mut node = Node::new();
    let addr = node.listen(Transport::Tcp);
    let client = TcpStream::connect(addr).unwrap();
    let key = node.accepted_one();
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    (&client).write_all(b"last words").unwrap();
    node.until("the bytes arrive", |node| node.received(key) == b"last words");
    drop(client);
    node.until("the reset is seen", |node| node.seen.closed.contains_key(&key));
    assert_eq!(node.seen.closed[&key].name(), "reset");
}

#[test]
fn a_connection_moves_to_another_loop_with_its_input() {
    let (mut first, mut second) = (Node::new(), Node::new());
    first.seen.accept = Some(Accept::HandOff);
    let addr = first.listen(Transport::Tcp);
    let mut client = TcpStream::connect(addr).unwrap();
    client.write_all(b"early ").unwrap();
    let key = first.accepted_one();
    first.step(10);
    assert!(first.received(key).is_empty(), "a connection to hand off is not read");
    let detached = first.net.detach(key).unwrap();
    assert_eq!(detached.peer(), client.local_addr().unwrap());
    assert!(first.net.detach(key).is_none());
    assert_eq!(first.net.conn_count(), 0);
    let moved = std::thread::spawn(move || {
        let key = second.net.attach(detached).unwrap();
        second.until("early bytes arrive", |node| node.received(key) == b"early ");
        second.write_all(key, b"hello from the other loop");
        second.until("later bytes arrive", |node| node.received(key) == b"early late");
        second.until("the end is seen", |node| node.seen.closed.contains_key(&key));
    });
    let mut got = [0; 25];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello from the other loop");
    client.write_all(b"late").unwrap();
    drop(client);
    moved.join().unwrap();
    assert!(first.seen.closed.is_empty());
}

#[test]
fn limits_and_refusals_close_at_once() {
    let mut node = Node::new();
    let limits = Limits { connections_max: 2, ..Limits::default() };
    let addr = node.listen_with(ListenerSpec { limits, ..ListenerSpec::new(loopback(), Transport::Tcp) });
    let _kept = [TcpStream::connect(addr).unwrap(), TcpStream::connect(addr).unwrap()];
    node.until("two are accepted", |node| node.seen.accepted.len() == 2);
    let mut third = TcpStream::connect(addr).unwrap();
    node.until("the third is refused", |node| node.net.stats().refused_by_limits == 1);
    assert_eq!(third.read(&mut [0; 1]).unwrap_or(0), 0);
    // A place that becomes free is used again.
    let key = node.seen.accepted[0].1;
    node.net.close(key, CloseMode::Now);
    let _fourth = TcpStream::connect(addr).unwrap();
    node.until("a third is accepted", |node| node.seen.accepted.len() == 3);
    let key = node.seen.accepted[1].1;
    node.net.close(key, CloseMode::Now);

    node.seen.banned = true;
    let mut banned = TcpStream::connect(addr).unwrap();
    node.until("the banned one is refused", |node| node.net.stats().refused_by_handler == 1);
    assert_eq!(banned.read(&mut [0; 1]).unwrap_or(0), 0);
    node.seen.banned = false;
    node.seen.accept = Some(Accept::Refuse { code: 1013, reason: "full" });
    let mut refused = TcpStream::connect(addr).unwrap();
    node.until("the last is refused", |node| node.net.stats().refused_by_handler == 2);
    assert_eq!(refused.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(node.net.conn_count(), 1);
}

#[test]
fn silent_connections_end_at_the_idle_timeout_and_busy_ones_stay() {
    let mut node = Node::new();
    let limits = Limits { idle_timeout: Some(Duration::from_millis(80)), ..Limits::default() };
    let addr = node.listen_with(ListenerSpec { limits, ..ListenerSpec::new(loopback(), Transport::Tcp) });
    let mut busy = TcpStream::connect(addr).unwrap();
    let busy_key = node.accepted_one();
    let _silent = TcpStream::connect(addr).unwrap();
    // A poll reads what has arrived before it looks at timeouts, so that a busy connection stays on
    // a slow machine too.
    node.until("both are accepted", |node| {
        busy.write_all(b".").unwrap();
        node.seen.accepted.len() == 2
    });
    let silent_key = node.seen.accepted[1].1;
    node.until("the silent one is closed", |node| {
        busy.write_all(b".").unwrap();
        node.seen.closed.contains_key(&silent_key)
    });
    assert_eq!(node.seen.closed[&silent_key].name(), "idle_timeout");
    assert!(!node.seen.closed.contains_key(&busy_key));
}

#[test]
fn a_waker_interrupts_a_wait_without_deadline() {
    let mut node = Node::new();
    let waker = node.net.waker();
    let other = std::thread::spawn(move || (0..1000).for_each(|_| waker.wake()));
    while node.seen.woken == 0 {
        node.net.poll(&node.clock, None, &mut node.seen).unwrap();
    }
    other.join().unwrap();
    // Every wake is heard: one more after all is quiet makes one more call.
    node.step(0);
    let woken = node.seen.woken;
    node.net.waker().wake();
    node.until("it is woken again", |node| node.seen.woken > woken);
}

#[test]
fn a_deadline_is_met_closely_and_never_early() {
    let mut node = Node::new();
    for micros in [100, 1_500, 7_300] {
        let deadline = node.clock.now() + Duration::from_micros(micros);
        let reached = node.net.poll(&node.clock, Some(deadline), &mut node.seen).unwrap();
        assert!(reached >= deadline, "{reached:?} is before {deadline:?}");
    }
}

#[test]
fn a_listener_on_all_addresses_serves_both_families() {
    let mut node = Node::new();
    for transport in [Transport::Tcp, Transport::Kcp(kcp::Profile::GAME)] {
        let spec = ListenerSpec::new("[::]:0".parse().unwrap(), transport);
        let Ok((_, addr)) = node.net.listen(spec) else { return }; // A machine without IPv6.
        let mut client = Node::new();
        let v4 = (std::net::Ipv4Addr::LOCALHOST, addr.port()).into();
        let key = client.net.connect(patient(v4, transport)).unwrap();
        client.until("it is connected", |node| node.seen.connected == [key]);
        client.write_all(key, b"hello");
        let before = node.seen.accepted.len();
        until_both(&mut node, &mut client, "accepted", |n, _| n.seen.accepted.len() > before);
        let peer = node.net.peer(node.seen.accepted[before].1).unwrap();
        assert!(peer.is_ipv4(), "{peer} is how bans and logs would see it");
    }
}

#[test]
fn one_busy_connection_does_not_starve_another() {
    let mut node = Node::new();
    let addr = node.listen(Transport::Tcp);
    let mut busy = TcpStream::connect(addr).unwrap();
    let busy_key = node.accepted_one();
    let mut quiet = TcpStream::connect(addr).unwrap();
    node.until("both are accepted", |node| node.seen.accepted.len() == 2);
    let quiet_key = node.seen.accepted[1].1;
    busy.set_nonblocking(true).unwrap();
    let chunk = vec![1; 1 << 20];
    while busy.write(&chunk).is_ok_and(|count| count > 0) {}
    quiet.write_all(b"me too").unwrap();
    node.step(100);
    assert_eq!(node.received(quiet_key), b"me too");
    assert!(node.received(busy_key).len() <= 64 * 1024, "one share per poll");
    let first = node.received(busy_key).len();
    node.step(100);
    assert!(node.received(busy_key).len() > first, "the rest follows without a new event");
}
