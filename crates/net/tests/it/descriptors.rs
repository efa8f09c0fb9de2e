//! File descriptors of a process: none is leaked, and a listener survives running out of them.

#![allow(clippy::print_stdout)] // the child tells its address

use crate::common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use throng_net::*;

const CHILD: &str = "THRONG_NET_DESCRIPTORS_CHILD";

/// Echoes until its standard input ends.
fn echo_server() {
    let mut node = Node::new();
    node.seen.echo = true;
    let addr = node.listen(Transport::Tcp);
    // The test harness prints its own lines around this one.
    println!("\naddr {addr}");
    let waker = node.net.waker();
    let stop = std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        waker.wake();
    });
    while !stop.is_finished() {
        node.step(100);
    }
}

/// True if the server echoes on a connection; false if it ended the connection.
fn is_served(client: &mut TcpStream) -> bool {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = [0; 1];
    match client.write_all(b"?").and_then(|()| client.read(&mut got)) {
        Ok(count) => count == 1,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("neither served nor closed"),
        Err(_) => false,
    }
}

#[test]
fn without_descriptors_new_connections_are_closed_and_old_ones_served() {
    if std::env::var_os(CHILD).is_some() {
        return echo_server();
    }
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(r#"ulimit -n 40 && exec "$0" --exact --nocapture "$1""#)
        .arg(std::env::current_exe().unwrap())
        .arg("descriptors::without_descriptors_new_connections_are_closed_and_old_ones_served")
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Kept to the end: the child's harness writes to it.
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let addr: SocketAddr =
        output.find_map(|line| Some(line.unwrap().strip_prefix("addr ")?.parse().unwrap())).unwrap();

    let mut served = Vec::new();
    let mut closed = 0;
    for _ in 0..50 {
        let mut client = TcpStream::connect(addr).unwrap();
        if is_served(&mut client) {
            served.push(client);
        } else {
            closed += 1;
        }
    }
    assert!((10..40).contains(&served.len()), "{} served", served.len());
    assert_eq!(closed, 50 - served.len());
    assert!(served.iter_mut().all(is_served), "an open connection suffered");

    // Descriptors that become free are used again.
    served.truncate(5);
    let started = Instant::now();
    loop {
        let mut client = TcpStream::connect(addr).unwrap();
        if is_served(&mut client) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "the listener does not recover");
        // The listener rests a tenth of a second each time it runs out.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_thousand_connections_come_and_go_without_a_leak() {
    if std::env::var_os(CHILD).is_none() {
        // Descriptors belong to the process, and the other tests of this one open and close theirs.
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "descriptors::a_thousand_connections_come_and_go_without_a_leak"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    }
    let mut node = Node::new();
    node.seen.echo = true;
    let addr = node.listen(Transport::Tcp);
    node.step(0);
    let before = descriptor_count();
    for round in 0..10 {
        let clients: Vec<TcpStream> = (0..100)
            .map(|i| {
                let mut client = TcpStream::connect(addr).unwrap();
                client.write_all(&[round, i]).unwrap();
                client
            })
            .collect();
        let expected = (usize::from(round) + 1) * 100;
        node.until("all have written", |node| node.seen.received.len() == expected);
        for (i, mut client) in clients.into_iter().enumerate() {
            let mut got = [0; 2];
            client.read_exact(&mut got).unwrap();
            assert_eq!(got, [round, i as u8]);
            if i % 2 == 0 {
                // The server's side closes half of them.
                let key = node.seen.accepted[usize::from(round) * 100 + i].1;
                node.net.close(key, if i % 4 == 0 { CloseMode::Now } else { CloseMode::Flush });
            }
        }
        node.until("all are gone", |node| node.net.conn_count() == 0);
    }
    assert_eq!(node.seen.closed.len(), 500);
    assert_eq!(node.net.stats().accepted, 1000);
    assert_eq!(descriptor_count(), before, "descriptors leak");
}
