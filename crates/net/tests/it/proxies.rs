//! Connections that come through proxies.

use crate::common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use common::*;
use throng_net::*;

/// A header for TCP over IPv4, from this address and port 4660.
fn header(ip: [u8; 4]) -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    bytes.extend(ip);
    bytes.extend([10, 0, 0, 1, 0x12, 0x34, 0, 80]);
    bytes
}

const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// A loop that listens for proxies on this machine.
fn behind_proxies(transport: Transport, proxy_protocol: bool, limits: Limits) -> (Node, SocketAddr) {
    let mut node = Node::new();
    node.seen.proxies = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    let spec = ListenerSpec { proxy_protocol, limits, ..ListenerSpec::new(loopback(), transport) };
    let addr = node.listen_with(spec);
    (node, addr)
}

#[test]
fn a_header_names_the_peer_however_it_arrives() {
    let (mut node, addr) = behind_proxies(Transport::Tcp, true, Limits::default());
    let mut whole = TcpStream::connect(addr).unwrap();
    whole.write_all(&[&header([192, 0, 2, 7]), &b"hello"[..]].concat()).unwrap();
    let key = node.accepted_one();
    node.until("the bytes behind the header arrive", |node| node.received(key) == b"hello");
    assert_eq!(node.net.peer(key), Some("192.0.2.7:4660".parse().unwrap()));

    // In pieces, with more behind.
    let mut pieces = TcpStream::connect(addr).unwrap();
    pieces.set_nodelay(true).unwrap();
    for byte in header([192, 0, 2, 8]) {
        pieces.write_all(&[byte]).unwrap();
        node.step(0);
    }
    node.until("it is accepted", |node| node.seen.accepted.len() == 2);
    let key = node.seen.accepted[1].1;
    assert_eq!(node.net.peer(key), Some("192.0.2.8:4660".parse().unwrap()));
    pieces.write_all(b"later").unwrap();
    node.until("what follows arrives", |node| node.received(key) == b"later");

    let mut local = TcpStream::connect(addr).unwrap();
    local.write_all(LOCAL).unwrap();
    node.until("the proxy itself is accepted", |node| node.seen.accepted.len() == 3);
    assert_eq!(node.net.peer(node.seen.accepted[2].1), Some(local.local_addr().unwrap()));
}

#[test]
fn without_a_header_or_from_elsewhere_nobody_gets_in() {
    let (mut node, addr) = behind_proxies(Transport::Tcp, true, Limits::default());
    let mut plain = TcpStream::connect(addr).unwrap();
    plain.write_all(b"CH\0\x05\0hello").unwrap();
    node.until("it is closed", |node| node.net.stats().proxy_errors == 1);
    assert_eq!(plain.read(&mut [0; 1]).unwrap_or(0), 0);
    node.seen.proxies.clear();
    let mut stranger = TcpStream::connect(addr).unwrap();
    // The socket may be closed before the bytes are written.
    drop(stranger.write_all(&header([192, 0, 2, 7])));
    node.until("it is closed", |node| node.net.stats().proxy_errors == 2);
    assert_eq!(stranger.read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(node.seen.accepted.is_empty());
    node.until("both are gone", |node| node.net.conn_count() == 0);
}

#[test]
fn permits_and_bans_use_the_address_of_the_peer() {
    let limits = Limits { connections_per_ip_max: Some(1), ..Limits::default() };
    let (mut node, addr) = behind_proxies(Transport::Tcp, true, limits);
    let connect = |ip| {
        let mut proxy = TcpStream::connect(addr).unwrap();
        proxy.write_all(&header(ip)).unwrap();
        proxy
    };
    let _first = connect([192, 0, 2, 7]);
    let _other = connect([192, 0, 2, 8]);
    node.until("two peers share a proxy", |node| node.seen.accepted.len() == 2);
    let mut second = connect([192, 0, 2, 7]);
    node.until("one peer has one place", |node| node.net.stats().refused_by_handler == 1);
    assert_eq!(second.read(&mut [0; 1]).unwrap_or(0), 0);
    let mut banned = TcpStream::connect(addr).unwrap();
    node.until("it waits for its header", |node| node.net.conn_count() == 3);
    node.seen.banned = true;
    banned.write_all(&header([192, 0, 2, 9])).unwrap();
    node.until("the banned one is refused", |node| node.net.stats().refused_by_handler == 2);
}

#[test]
fn a_header_comes_before_tls_and_a_websocket() {
    let (mut node, addr) = behind_proxies(Transport::WebSocket, true, Limits::default());
    let mut proxy = TcpStream::connect(addr).unwrap();
    let request = upgrade("");
    proxy.write_all(&[&header([192, 0, 2, 7]), request.as_bytes()].concat()).unwrap();
    let key = node.accepted_one();
    assert_eq!(node.net.peer(key), Some("192.0.2.7:4660".parse().unwrap()));
}

fn upgrade(further: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{further}\r\n"
    )
}

/// The peer of a WebSocket with these headers, as the handler sees it.
fn peer_of(proxies: Vec<IpAddr>, headers: &str) -> IpAddr {
    let (mut node, addr) = behind_proxies(Transport::WebSocket, false, Limits::default());
    node.seen.proxies = proxies;
    let mut client = TcpStream::connect(addr).unwrap();
    client.write_all(upgrade(headers).as_bytes()).unwrap();
    let key = node.accepted_one();
    node.net.peer(key).unwrap().ip()
}

#[test]
fn a_websocket_comes_from_the_rightmost_address_that_is_no_proxy() {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let inner: IpAddr = "10.0.0.2".parse().unwrap();
    let peer: IpAddr = "192.0.2.7".parse().unwrap();
    let named = "X-Forwarded-For: 198.51.100.9, 192.0.2.7\r\n";
    assert_eq!(peer_of(vec![local], named), peer);
    assert_eq!(peer_of(vec![local, inner], "x-forwarded-for: 192.0.2.7, 10.0.0.2\r\n"), peer);
    let lines = "X-Forwarded-For: 198.51.100.9\r\nX-Forwarded-For: 192.0.2.7\r\n";
    assert_eq!(peer_of(vec![local], lines), peer, "lines count as one list");
    assert_eq!(peer_of(vec![], named), local, "a stranger names nobody");
    assert_eq!(peer_of(vec![local], ""), local);
}

#[test]
fn with_few_descriptors_left_strangers_give_way() {
    // Every descriptor counts as beyond the share of this listener.
    let limits = Limits { descriptors_spared: u64::MAX, ..Limits::default() };
    let mut node = Node::new();
    let spec = ListenerSpec { limits, ..ListenerSpec::new(loopback(), Transport::WebSocket) };
    let addr = node.listen_with(spec);
    // Nobody is there to give way yet, so the first is turned away.
    let mut first = TcpStream::connect(addr).unwrap();
    node.until("it is turned away", |node| node.net.stats().shed == 1);
    assert_eq!(first.read(&mut [0; 1]).unwrap_or(0), 0);

    node.seen.giving_way = usize::MAX;
    let mut second = TcpStream::connect(addr).unwrap();
    node.until("those of the handler give way", |node| node.net.conn_count() == 1);
    let gave_way = node.net.stats().gave_way;
    assert!(gave_way > 0 && node.seen.giving_way < usize::MAX);

    // One that has not finished its handshake gives way too, which is not enough here.
    node.seen.giving_way = 0;
    let mut third = TcpStream::connect(addr).unwrap();
    node.until("it is turned away", |node| node.net.stats().shed == 2);
    assert_eq!((node.net.stats().gave_way, node.net.conn_count()), (gave_way + 1, 0));
    assert_eq!(second.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(third.read(&mut [0; 1]).unwrap_or(0), 0);

    // One that is ready is the handler's affair.
    node.seen.giving_way = usize::MAX;
    let mut fourth = TcpStream::connect(addr).unwrap();
    fourth.write_all(upgrade("").as_bytes()).unwrap();
    let _ready = node.accepted_one();
    node.seen.giving_way = 0;
    let _fifth = TcpStream::connect(addr).unwrap();
    node.until("it is turned away", |node| node.net.stats().shed == 3);
    assert_eq!(node.net.conn_count(), 1);
}
