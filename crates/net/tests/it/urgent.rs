//! Events that end a wait in which all others gather.

use crate::common;

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;

use common::*;
use throng_net::*;

/// A loop with one accepted connection.
fn pair() -> (Node, TcpStream, ConnKey) {
    let mut node = Node::new();
    let addr = node.listen(Transport::Tcp);
    let client = TcpStream::connect(addr).unwrap();
    let key = node.accepted_one();
    (node, client, key)
}

/// Writes to the peer until the kernel takes nothing more. Returns how much it took.
fn fill(node: &mut Node, key: ConnKey) -> usize {
    let chunk = pattern(1 << 20);
    let mut taken = 0;
    loop {
        let outcome = node.net.write(key, &[IoSlice::new(&chunk)]);
        taken += outcome.taken;
        if outcome.blocked {
            return taken;
        }
        assert!(taken < 1 << 30, "the kernel takes everything");
    }
}

#[test]
fn a_prioritised_connection_is_read_for_up_to_256_kib_a_turn() {
    let (mut node, mut client, key) = pair();
    node.net.prioritise(key).unwrap();
    let bytes = pattern(1 << 20);
    // As much as the kernel takes is there before each turn: a writer beside it could be slower
    // than the turns.
    client.set_nonblocking(true).unwrap();
    let (mut written, mut largest) = (0, 0);
    while node.received(key).len() < bytes.len() {
        while written < bytes.len()
            && let Ok(count) = client.write(&bytes[written..])
        {
            written += count;
        }
        let before = node.received(key).len();
        assert!(node.net.wait_urgent(PATIENCE).unwrap(), "the rest is not announced");
        node.net.serve_urgent(&node.clock, &mut node.seen);
        largest = largest.max(node.received(key).len() - before);
    }
    // An event during the backlog may add its share to that of the backlog.
    assert!(largest > 64 << 10, "one read a turn");
    assert!(largest <= 2 * (256 << 10), "{largest} bytes in one turn");
    assert!(node.received(key) == bytes);
}

#[test]
fn input_of_other_connections_does_not_end_the_wait() {
    let (mut node, mut client, key) = pair();
    client.write_all(b"later").unwrap();
    assert!(!node.net.wait_urgent(std::time::Duration::from_millis(1)).unwrap());
    node.until("it is read", |node| node.received(key) == b"later");
}

#[test]
fn awaited_room_ends_the_wait_once() {
    let (mut node, mut client, key) = pair();
    let taken = fill(&mut node, key);
    node.net.await_room(key);
    node.net.await_room(key);
    // Registering reports no event while the socket is full.
    assert!(!node.net.wait_urgent(std::time::Duration::ZERO).unwrap());
    client.read_exact(&mut vec![0; taken]).unwrap();
    assert!(node.net.wait_urgent(PATIENCE).unwrap(), "room is not noticed");
    node.net.serve_urgent(&node.clock, &mut node.seen);
    assert!(node.seen.writable.contains(&key));
    assert!(!node.net.wait_urgent(std::time::Duration::ZERO).unwrap(), "it is asked for once");
    // It can be asked for again, and a connection may end or gain priority meanwhile.
    fill(&mut node, key);
    node.net.await_room(key);
    node.net.prioritise(key).unwrap();
    client.write_all(b"me").unwrap();
    while node.received(key) != b"me" {
        assert!(node.net.wait_urgent(PATIENCE).unwrap(), "its input is not urgent");
        node.net.serve_urgent(&node.clock, &mut node.seen);
    }
    node.net.close(key, CloseMode::Now);
    assert!(!node.net.wait_urgent(std::time::Duration::ZERO).unwrap());
}

#[test]
fn an_urgent_wake_ends_the_wait_and_an_ordinary_one_does_not() {
    let mut node = Node::new();
    let waker = node.net.waker();
    waker.wake();
    assert!(!node.net.wait_urgent(std::time::Duration::ZERO).unwrap());
    waker.wake_urgent();
    assert!(node.net.wait_urgent(PATIENCE).unwrap());
    node.net.serve_urgent(&node.clock, &mut node.seen);
    assert_eq!(node.seen.woken, 1);
    assert!(!node.net.wait_urgent(std::time::Duration::ZERO).unwrap());
    node.step(0);
    assert_eq!(node.seen.woken, 2, "the ordinary wait hears of both wakes");
    waker.wake_urgent();
    assert!(node.net.wait_urgent(PATIENCE).unwrap(), "it can be used again");
}
