//! A gateway on free ports and peers that speak every transport.
#![allow(dead_code, unreachable_pub)] // Each test file uses its own part.

use std::collections::VecDeque;
use std::io::{IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::time::Duration;

use throng_net::enet::secure::ConnectToken;
use throng_net::{
    Accept, Clock, CloseCause, ConnKey, ConnectSpec, EventLoop, Flow, Handler, ListenerKey, TlsConnector,
    Transport, ws,
};
use throng_server::config::Loader;
use throng_server::{Running, Service, start};
use throng_wire::{FrameReader, FrameWriter, MessagePack, channeldpb as pb};

/// Far beyond what any step needs; reached only when a test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Starts a gateway on free loopback ports with further keys set.
pub fn gateway(keys: &[(&str, &str)]) -> Running {
    let mut loader =
        Loader::new().flag("test", "gateway.limits.auth_timeout_ms", PATIENCE.as_millis().to_string());
    for key in ["gateway.servers.addr", "gateway.clients.addr", "http.addr"] {
        loader = loader.flag("test", key, "127.0.0.1:0");
    }
    for (key, value) in keys {
        loader = loader.flag("test", *key, *value);
    }
    start(loader.load().unwrap()).unwrap()
}

/// Transport of a peer.
#[derive(Clone, Debug)]
pub enum Dial {
    Tcp,
    Kcp,
    Enet,
    /// Through the sealed layer.
    Sealed(Box<ConnectToken>),
    WebSocket,
    Tls(Vec<u8>),
    Wss(Vec<u8>),
}

/// A message as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub channel: u32,
    pub stub: u32,
    pub kind: u32,
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Events {
    connected: bool,
    closed: Option<CloseCause>,
    bytes: Vec<u8>,
}

impl Handler for Events {
    fn accepted(&mut self, _: ListenerKey, _: ConnKey, _: SocketAddr) -> Accept {
        unreachable!("peers do not listen")
    }
    fn connected(&mut self, _: ConnKey) {
        self.connected = true;
    }
    fn data(&mut self, _: ConnKey, bytes: &[u8]) -> Flow {
        self.bytes.extend_from_slice(bytes);
        Flow::Continue
    }
    fn writable(&mut self, _: ConnKey) {}
    fn closed(&mut self, _: ConnKey, cause: CloseCause) {
        self.closed = Some(cause);
    }
    fn woken(&mut self) {}
}

/// One connection, driven by whoever waits for something.
pub struct Peer {
    net: EventLoop,
    clock: Clock,
    key: ConnKey,
    events: Events,
    reader: FrameReader,
    inbox: VecDeque<Received>,
    websocket: bool,
    stub: u32,
    pub id: u32,
    pub dial: Dial,
}

impl Peer {
    pub fn connect(addr: SocketAddr, dial: &Dial) -> Peer {
        Peer::connect_to(addr, dial, "/")
    }

    /// Connects to a path, over WebSocket.
    pub fn connect_to(addr: SocketAddr, dial: &Dial, path: &str) -> Peer {
        let (transport, trusted) = match dial {
            Dial::Tcp => (Transport::Tcp, None),
            Dial::Kcp => (Transport::Kcp(throng_net::kcp::Profile::GAME), None),
            Dial::Enet | Dial::Sealed(_) => (Transport::Enet, None),
            Dial::WebSocket => (Transport::WebSocket, None),
            Dial::Tls(pem) => (Transport::Tcp, Some(pem)),
            Dial::Wss(pem) => (Transport::WebSocket, Some(pem)),
        };
        let mut spec = ConnectSpec::new(addr, transport);
        spec.timeout = PATIENCE;
        spec.path = path.into();
        spec.tls = trusted.map(|pem| TlsConnector {
            config: throng_net::tls_client_config(pem).unwrap(),
            server_name: "localhost".try_into().unwrap(),
        });
        if let Dial::Sealed(token) = dial {
            spec.enet_token = Some((**token).clone());
        }
        let mut net = EventLoop::new().unwrap();
        let key = net.connect(spec).unwrap();
        let mut peer = Peer {
            net,
            clock: Clock::start(),
            key,
            events: Events::default(),
            reader: FrameReader::default(),
            inbox: VecDeque::new(),
            websocket: transport == Transport::WebSocket,
            stub: 0,
            id: 0,
            dial: dial.clone(),
        };
        // A KCP session is there when its first datagram is: nothing to wait for.
        if !matches!(dial, Dial::Kcp) {
            peer.until("the connection", |peer| peer.events.connected);
        }
        peer
    }

    /// Connects and logs in.
    pub fn login(addr: SocketAddr, dial: &Dial, player: &str, token: &str) -> Peer {
        let mut peer = Peer::connect(addr, dial);
        let result = peer.authenticate(player, token);
        assert_eq!(result.result, 0, "{player}: {result:?}");
        peer
    }

    /// Says goodbye, with a code where the transport has one, and waits until the gateway has taken
    /// it.
    pub fn leave(mut self, code: u16) {
        self.net.close_with(self.key, code, "");
        self.until("the end", |peer| peer.net.conn_count() == 0);
    }

    pub fn authenticate(&mut self, player: &str, token: &str) -> pb::AuthResultMessage {
        let auth = pb::AuthMessage {
            player_identifier_token: player.into(),
            login_token: token.into(),
            ..Default::default()
        };
        let result: pb::AuthResultMessage = self.ask(0, pb::MessageType::Auth, &auth);
        self.id = result.conn_id;
        result
    }

    /// Sends a request and waits for its answer.
    pub fn ask<A: prost::Message + Default>(
        &mut self,
        channel: u32,
        kind: pb::MessageType,
        body: &impl prost::Message,
    ) -> A {
        self.stub += 1;
        let stub = self.stub;
        self.send(
            MessagePack { channel_id: channel, stub_id: stub, msg_type: kind as u32, ..Default::default() },
            &body.encode_to_vec(),
        );
        let answer = self.receive(|message| message.stub == stub && message.kind == kind as u32);
        A::decode(answer.body.as_slice()).unwrap()
    }

    pub fn send(&mut self, head: MessagePack<'_>, body: &[u8]) {
        let (mut writer, mut frame) = (FrameWriter::new(), Vec::new());
        writer.push(&MessagePack { body, ..head }, &mut frame).unwrap();
        writer.flush(&mut frame);
        self.send_bytes(&frame);
    }

    pub fn send_bytes(&mut self, frame: &[u8]) {
        let mut bytes = Vec::new();
        if self.websocket {
            ws::write_message(&mut bytes, frame, Some([1, 2, 3, 4]));
        } else {
            bytes.extend_from_slice(frame);
        }
        let mut sent = 0;
        self.until("room to write", |peer| {
            sent += peer.net.write(peer.key, &[IoSlice::new(&bytes[sent..])]).taken;
            sent == bytes.len()
        });
    }

    /// Waits for a message; others before it are dropped.
    pub fn receive(&mut self, wanted: impl Fn(&Received) -> bool) -> Received {
        let mut found = None;
        self.until("a message", |peer| {
            while let Some(message) = peer.inbox.pop_front() {
                if wanted(&message) {
                    found = Some(message);
                    return true;
                }
            }
            assert!(peer.events.closed.is_none(), "closed: {:?}", peer.events.closed);
            false
        });
        found.unwrap()
    }

    /// As [`Peer::receive`], while `other` stays awake: a KCP peer acknowledges and repeats only
    /// when driven.
    pub fn receive_beside(&mut self, other: &mut Peer, wanted: impl Fn(&Received) -> bool) -> Received {
        let deadline = self.clock.now() + PATIENCE;
        loop {
            other.step();
            self.step();
            self.take_in();
            while let Some(message) = self.inbox.pop_front() {
                if wanted(&message) {
                    return message;
                }
            }
            assert!(self.clock.now() < deadline, "waited in vain for a message");
        }
    }

    /// Lets the loop run for a moment.
    fn step(&mut self) {
        let until = self.clock.now() + Duration::from_millis(1);
        self.net.poll(&self.clock, Some(until), &mut self.events).unwrap();
    }

    pub fn until_closed(&mut self) -> &CloseCause {
        self.until("the end", |peer| peer.events.closed.is_some());
        self.events.closed.as_ref().unwrap()
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Peer) -> bool) {
        let deadline = self.clock.now() + PATIENCE;
        loop {
            self.take_in();
            if done(self) {
                return;
            }
            let now = self.net.poll(&self.clock, Some(deadline), &mut self.events).unwrap();
            assert!(now < deadline, "waited in vain for {what}");
        }
    }

    fn take_in(&mut self) {
        let bytes = std::mem::take(&mut self.events.bytes);
        let inbox = &mut self.inbox;
        let fed = self.reader.feed(&bytes, &mut |packet| {
            for message in packet.messages() {
                inbox.push_back(Received {
                    channel: message.channel_id,
                    stub: message.stub_id,
                    kind: message.msg_type,
                    body: message.body.to_vec(),
                });
            }
            ControlFlow::Continue(())
        });
        fed.unwrap();
    }
}

/// Status and body of one request to the admin listener.
pub fn http(running: &Running, path: &str) -> (u16, String) {
    let addr = running.address(Service::Admin).unwrap();
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Status and body of a request with a token of the admin listener.
pub fn call(running: &Running, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
    let addr = running.address(Service::Admin).unwrap();
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// An address without a listener, which stays taken while the stream lasts.
pub fn deaf_address() -> (TcpStream, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let addr = stream.local_addr().unwrap();
    (stream, addr)
}

pub fn clients(running: &Running) -> SocketAddr {
    running.address(Service::Clients).unwrap()
}

pub fn servers(running: &Running) -> SocketAddr {
    running.address(Service::Servers).unwrap()
}
