//! TLS under TCP and WebSocket, over loopback.

use crate::common;

use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use throng_net::*;
use tungstenite::{Message, WebSocket};

struct Certified {
    acceptor: TlsAcceptor,
    config: Arc<rustls::ServerConfig>,
    client: Arc<ClientConfig>,
}

fn certified() -> Certified {
    let made = development_certificate(&["localhost".into()], unix_now()).unwrap();
    let server = tls_server_config(made.cert_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
    Certified {
        acceptor: TlsAcceptor::new(server.clone()),
        config: server,
        client: tls_client_config(made.cert_pem.as_bytes()).unwrap(),
    }
}

fn unix_now() -> Duration {
    Duration::from_nanos(Clock::start().unix_start_ns())
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

fn spec(transport: Transport, acceptor: &TlsAcceptor) -> ListenerSpec {
    ListenerSpec { tls: Some(acceptor.clone()), ..ListenerSpec::new(loopback(), transport) }
}

/// A blocking client of the TLS library's own making.
type TlsStream = StreamOwned<ClientConnection, TcpStream>;

fn plain_client(addr: SocketAddr, config: Arc<ClientConfig>) -> TlsStream {
    let connection = ClientConnection::new(config, localhost()).unwrap();
    StreamOwned::new(connection, TcpStream::connect(addr).unwrap())
}

fn websocket_client(addr: SocketAddr, config: Arc<ClientConfig>) -> WebSocket<TlsStream> {
    let url = format!("wss://localhost:{}/", addr.port());
    tungstenite::client(url, plain_client(addr, config)).unwrap().0
}

#[test]
fn bytes_flow_both_ways_with_a_library_client() {
    let certified = certified();
    let mut node = Node::new();
    node.seen.echo = true;
    let addr = node.listen_with(spec(Transport::Tcp, &certified.acceptor));
    let client = std::thread::spawn(move || {
        let mut client = plain_client(addr, certified.client);
        for size in [1, 70_000, 300_000] {
            let sent = pattern(size);
            let mut got = vec![0; size];
            client.write_all(&sent).unwrap();
            client.read_exact(&mut got).unwrap();
            assert!(got == sent);
        }
        client.conn.send_close_notify();
        client.flush().unwrap();
        // The server answers with its own end.
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    });
    node.until("the client is done", |_| client.is_finished());
    client.join().unwrap();
    let key = node.accepted_one();
    assert!(matches!(node.seen.closed[&key], CloseCause::EndOfStream));
    node.until("the connection is gone", |node| node.net.conn_count() == 0);
}

#[test]
fn loops_speak_tls_to_each_other_with_back_pressure() {
    let certified = certified();
    let (mut server, mut client) = (Node::new(), Node::new());
    let addr = server.listen_with(spec(Transport::Tcp, &certified.acceptor));
    let connector = TlsConnector { config: certified.client, server_name: localhost() };
    let key = client
        .net
        .connect(ConnectSpec { tls: Some(connector), ..ConnectSpec::new(addr, Transport::Tcp) })
        .unwrap();
    until_both(&mut server, &mut client, "connected", |s, c| {
        !s.seen.accepted.is_empty() && c.seen.connected == [key]
    });
    let peer = server.accepted_one();
    let sent = pattern(20 << 20);
    let mut at = 0;
    let mut blocks = 0;
    while server.received(peer).len() < sent.len() {
        let outcome = client.net.write(key, &[IoSlice::new(&sent[at..])]);
        at += outcome.taken;
        blocks += u32::from(outcome.blocked);
        client.step(0);
        server.step(0);
    }
    assert!(blocks > 0, "20 MiB should not fit at once");
    assert!(server.received(peer) == sent);
    client.net.close(key, CloseMode::Flush);
    until_both(&mut server, &mut client, "closed", |s, c| {
        s.seen.closed.contains_key(&peer) && c.net.conn_count() == 0
    });
    assert!(matches!(server.seen.closed[&peer], CloseCause::EndOfStream));
}

#[test]
fn websocket_over_tls_with_a_library_client() {
    let certified = certified();
    let mut node = Node::new();
    let addr = node.listen_with(spec(Transport::WebSocket, &certified.acceptor));
    let client = std::thread::spawn(move || {
        let mut client = websocket_client(addr, certified.client);
        client.send(Message::binary(pattern(100_000))).unwrap();
        assert_eq!(client.read().unwrap(), Message::binary(&b"welcome"[..]));
        assert!(client.read().unwrap().is_close());
    });
    let key = node.accepted_one();
    node.until("the message arrives", |node| node.received(key).len() == 100_000);
    let mut out = Vec::new();
    ws::write_message(&mut out, b"welcome", None);
    node.write_all(key, &out);
    node.net.close(key, CloseMode::Flush);
    node.until("the client is done", |_| client.is_finished());
    client.join().unwrap();
}

#[test]
fn a_websocket_whose_tls_breaks_ends() {
    let certified = certified();
    let mut node = Node::new();
    let addr = node.listen_with(spec(Transport::WebSocket, &certified.acceptor));
    let client = std::thread::spawn(move || {
        let mut client = websocket_client(addr, certified.client);
        // A record that no key has made.
        let record = [&[23, 3, 3, 0, 32][..], &[7; 32]].concat();
        client.get_mut().sock.write_all(&record).unwrap();
        assert!(client.read().is_err(), "an alert is no close frame");
    });
    let key = node.accepted_one();
    node.until("the connection ends", |node| node.seen.closed.contains_key(&key));
    assert_eq!(node.seen.closed[&key].name(), "tls_error");
    node.until("the client is done", |_| client.is_finished());
    client.join().unwrap();
}

#[test]
fn slices_of_one_write_share_a_record() {
    let certified = certified();
    let mut node = Node::new();
    let addr = node.listen_with(spec(Transport::Tcp, &certified.acceptor));
    let client = std::thread::spawn(move || {
        let mut socket = TcpStream::connect(addr).unwrap();
        let mut client = ClientConnection::new(certified.client, localhost()).unwrap();
        let (mut wire, mut plain, mut part) = (Vec::new(), Vec::new(), [0; 4_096]);
        while plain.len() < 215 {
            while client.wants_write() {
                client.write_tls(&mut socket).unwrap();
            }
            let count = socket.read(&mut part).unwrap();
            assert!(count > 0, "an end before everything has come");
            wire.extend_from_slice(&part[..count]);
            let mut bytes = &part[..count];
            while !bytes.is_empty() {
                client.read_tls(&mut bytes).unwrap();
                client.process_new_packets().unwrap();
                // `WouldBlock` behind the last byte.
                let _ = client.reader().read_to_end(&mut plain);
            }
        }
        let mut records = Vec::new();
        while wire.len() >= 5 {
            let len = usize::from(u16::from_be_bytes([wire[3], wire[4]]));
            records.push(len);
            wire.drain(..5 + len);
        }
        records
    });
    let key = node.accepted_one();
    let parts = [&[1; 5][..], &[2; 100], &[3; 5], &[4; 100], &[5; 5]];
    let slices = parts.map(IoSlice::new);
    assert_eq!(node.net.write(key, &slices).taken, 215);
    node.until("the client is done", |_| client.is_finished());
    // Type and tag of TLS 1.3.
    assert_eq!(client.join().unwrap().into_iter().filter(|len| *len == 215 + 17).count(), 1);
}

#[test]
fn a_client_hello_in_any_pieces_completes_the_handshake() {
    let certified = certified();
    let one_byte_writes = |hello: &[u8]| hello.chunks(1).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let one_byte_records = |hello: &[u8]| hello[5..].iter().map(|byte| vec![22, 3, 1, 0, 1, *byte]).collect();
    for pieces in [one_byte_writes as fn(&[u8]) -> Vec<Vec<u8>>, one_byte_records] {
        let mut node = Node::new();
        node.seen.echo = true;
        let addr = node.listen_with(spec(Transport::Tcp, &certified.acceptor));
        let config = certified.client.clone();
        let client = std::thread::spawn(move || {
            let mut client = plain_client(addr, config);
            client.sock.set_nodelay(true).unwrap();
            let mut hello = Vec::new();
            client.conn.write_tls(&mut hello).unwrap();
            for piece in pieces(&hello) {
                client.sock.write_all(&piece).unwrap();
            }
            client.write_all(b"here").unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
        });
        node.until("the client is done", |_| client.is_finished());
        client.join().unwrap();
    }
}

#[test]
fn a_handshake_message_without_end_is_refused_at_its_first_bytes() {
    let certified = certified();
    let mut node = Node::new();
    let addr = node.listen_with(spec(Transport::Tcp, &certified.acceptor));
    let mut raw = TcpStream::connect(addr).unwrap();
    // A ClientHello of 16 MiB, of which one record has come.
    raw.write_all(&[&[22, 3, 1, 0, 8, 1, 0xFF, 0xFF, 0xFF][..], &[0; 4]].concat()).unwrap();
    node.until("the handshake fails", |node| node.net.stats().handshakes_failed == 1);
    assert!(node.seen.accepted.is_empty());
}

#[test]
fn bytes_in_the_smallest_records_arrive_and_a_bare_end_of_stream_is_reported() {
    let certified = certified();
    let mut node = Node::new();
    let addr = node.listen_with(spec(Transport::Tcp, &certified.acceptor));
    let mut config = (*certified.client).clone();
    config.max_fragment_size = Some(32);
    let client = std::thread::spawn(move || {
        let mut client = plain_client(addr, Arc::new(config));
        client.write_all(&pattern(200_000)).unwrap();
        // Without the goodbye of TLS.
        client.sock.shutdown(Shutdown::Write).unwrap();
        client
    });
    let key = node.accepted_one();
    node.until("the connection ends", |node| node.seen.closed.contains_key(&key));
    assert!(node.received(key) == pattern(200_000));
    assert!(matches!(node.seen.closed[&key], CloseCause::EndOfStream));
    client.join().unwrap();
}

#[test]
fn what_is_not_tls_fails_the_handshake_and_nothing_else() {
    let certified = certified();
    let mut node = Node::new();
    let addr = node.listen_with(spec(Transport::Tcp, &certified.acceptor));
    let mut raw = TcpStream::connect(addr).unwrap();
    raw.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    node.until("the handshake fails", |node| node.net.stats().handshakes_failed == 1);
    assert!(node.seen.accepted.is_empty() && node.seen.closed.is_empty());
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        raw.read_to_end(&mut got).unwrap();
        got
    });
    node.until("the peer is told", |_| reader.is_finished());
    assert_eq!(reader.join().unwrap()[0], 21, "a TLS alert");
    node.until("the connection is gone", |node| node.net.conn_count() == 0);
}

#[test]
fn a_client_that_trusts_nobody_here_reports_it() {
    let (ours, other) = (certified(), certified());
    let (mut server, mut client) = (Node::new(), Node::new());
    let addr = server.listen_with(spec(Transport::Tcp, &ours.acceptor));
    let connector = TlsConnector { config: other.client, server_name: localhost() };
    let key = client
        .net
        .connect(ConnectSpec { tls: Some(connector), ..ConnectSpec::new(addr, Transport::Tcp) })
        .unwrap();
    until_both(&mut server, &mut client, "refused", |s, c| {
        c.seen.closed.contains_key(&key) && s.net.stats().handshakes_failed == 1
    });
    assert_eq!(client.seen.closed[&key].name(), "tls_error");
    assert!(client.seen.connected.is_empty() && server.seen.accepted.is_empty());
}

#[test]
fn a_reloaded_certificate_serves_new_connections_and_old_ones_stay() {
    let (old, new) = (certified(), certified());
    let mut node = Node::new();
    node.seen.echo = true;
    let acceptor = old.acceptor.clone();
    let addr = node.listen_with(spec(Transport::Tcp, &acceptor));
    fn exchange(client: &mut StreamOwned<ClientConnection, TcpStream>) -> std::io::Result<()> {
        client.write_all(b"x")?;
        client.read_exact(&mut [0; 1])
    }
    let mut run = |what: &str, work: Box<dyn FnOnce() -> StreamOwned<ClientConnection, TcpStream> + Send>| {
        let thread = std::thread::spawn(work);
        node.until(what, |_| thread.is_finished());
        thread.join().unwrap()
    };
    let config = old.client.clone();
    let mut first = run(
        "the old certificate is used",
        Box::new(move || {
            let mut client = plain_client(addr, config);
            exchange(&mut client).unwrap();
            client
        }),
    );
    acceptor.reload(new.config);
    let (old_client, new_client) = (old.client, new.client);
    let _second = run(
        "the new certificate is used",
        Box::new(move || {
            assert!(
                exchange(&mut plain_client(addr, old_client)).is_err(),
                "the old certificate is still used"
            );
            let mut client = plain_client(addr, new_client);
            exchange(&mut client).unwrap();
            client
        }),
    );
    first = run(
        "the first connection still works",
        Box::new(move || {
            exchange(&mut first).unwrap();
            first
        }),
    );
    drop(first);
}

#[test]
fn a_connection_over_tls_moves_to_another_loop_with_its_input() {
    let certified = certified();
    let (mut first, mut second) = (Node::new(), Node::new());
    first.seen.accept = Some(Accept::HandOff);
    let addr = first.listen_with(spec(Transport::Tcp, &certified.acceptor));
    let client = std::thread::spawn(move || {
        // The request leaves in one flight with the end of the handshake.
        let mut client = plain_client(addr, certified.client);
        client.write_all(b"early ").unwrap();
        client.write_all(b"bird").unwrap();
        let mut got = [0; 2];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ok");
    });
    let key = first.accepted_one();
    let detached = first.net.detach(key).unwrap();
    assert!(first.received(key).is_empty());
    let key = second.net.attach(detached).unwrap();
    second.until("the bytes arrive", |node| node.received(key) == b"early bird");
    second.write_all(key, b"ok");
    second.until("the client is done", |_| client.is_finished());
    client.join().unwrap();
}
