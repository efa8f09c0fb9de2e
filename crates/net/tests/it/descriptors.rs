//! A listener whose process has run out of file descriptors.

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

/// Whether the server echoes on a connection; false if it ended the connection.
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
