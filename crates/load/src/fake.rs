//! A minimal gateway for tests of the generator: logins, one channel, updates forwarded as they
//! arrive.
//!
//! It has a thread per connection and one lock, so its figures are meaningless.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread;

use prost::Message as _;
use throng_wire::frame::{self, Compression, FrameReader};
use throng_wire::{Forward, MessagePack, channeldpb as pb, write_entry, write_forward_entry};

use crate::fleet::lock;

/// A running fake. Its threads end with their connections.
pub(crate) struct Fake {
    pub(crate) clients: SocketAddr,
    pub(crate) servers: SocketAddr,
}

#[derive(Default)]
struct Shared {
    connections: Vec<Arc<Connection>>,
    owner: Option<u32>,
    subscribers: Vec<u32>,
    /// Every n-th fan-out to a subscriber is lost, to see whether the generator notices.
    lose_every: Option<u64>,
    fan_outs: u64,
    channels: u32,
}

pub(crate) struct Connection {
    pub(crate) id: u32,
    pub(crate) is_server: bool,
    stream: TcpStream,
}

/// State behind the listeners.
pub(crate) trait Hub: Send + 'static {
    fn connections(&mut self) -> &mut Vec<Arc<Connection>>;
    fn handle(&mut self, from: &Connection, message: &MessagePack<'_>);
}

impl Connection {
    pub(crate) fn send(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut packet = Vec::new();
        write(&mut packet);
        let mut frame = frame::tag(packet.len(), Compression::None).to_vec();
        frame.extend_from_slice(&packet);
        // A generator that has left is none of the fake's business.
        let _ = (&self.stream).write_all(&frame);
    }

    pub(crate) fn message(&self, message: &MessagePack<'_>) {
        self.send(|out| write_entry(out, message));
    }
}

impl Fake {
    pub(crate) fn start(lose_every: Option<u64>) -> Self {
        let [clients, servers] = listen(Shared { lose_every, ..Shared::default() });
        Self { clients, servers }
    }
}

/// Opens the listeners of players and of game servers in front of `hub`.
pub(crate) fn listen(hub: impl Hub) -> [SocketAddr; 2] {
    let shared = Arc::new(Mutex::new(hub));
    [false, true].map(|is_server| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut hub = lock(&shared);
                let id = u32::try_from(hub.connections().len()).expect("few") + 1;
                let connection = Arc::new(Connection { id, is_server, stream });
                hub.connections().push(Arc::clone(&connection));
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(&connection, &shared));
            }
        });
        addr
    })
}

fn serve<H: Hub>(connection: &Connection, shared: &Mutex<H>) {
    let mut reader = FrameReader::default();
    let mut buf = vec![0; 128 * 1024];
    loop {
        let count = match (&connection.stream).read(&mut buf) {
            Ok(count @ 1..) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            _ => break,
        };
        let fed = reader.feed(&buf[..count], &mut |packet| {
            for message in packet.messages() {
                lock(shared).handle(connection, &message);
            }
            ControlFlow::Continue(())
        });
        if fed.is_err() {
            break;
        }
    }
    let _ = connection.stream.shutdown(Shutdown::Both);
}

impl Hub for Shared {
    fn connections(&mut self) -> &mut Vec<Arc<Connection>> {
        &mut self.connections
    }

    fn handle(&mut self, from: &Connection, message: &MessagePack<'_>) {
        let find = |id: u32| self.connections.iter().find(|connection| connection.id == id);
        match message.msg_type {
            1 => {
                let body = pb::AuthResultMessage { conn_id: from.id, ..Default::default() }.encode_to_vec();
                from.message(&MessagePack { body: &body, ..*message });
                if let Some(owner) = self.owner.and_then(find) {
                    owner.message(&MessagePack { body: &body, stub_id: 0, ..*message });
                }
            }
            3 => {
                let request =
                    pb::CreateChannelMessage::decode(message.body).expect("generator speaks protobuf");
                assert!(from.is_server, "only the game server creates channels");
                let channel_id = if request.channel_type == 1 { 0 } else { self.channels + 1 };
                self.channels = self.channels.max(channel_id);
                self.owner = Some(from.id);
                let body =
                    pb::CreateChannelResultMessage { channel_id, ..Default::default() }.encode_to_vec();
                from.message(&MessagePack { body: &body, ..*message });
            }
            6 => {
                let request =
                    pb::SubscribedToChannelMessage::decode(message.body).expect("generator speaks protobuf");
                self.subscribers.push(request.conn_id);
                if let Some(target) = find(request.conn_id) {
                    target.message(&MessagePack { stub_id: 0, ..*message });
                }
            }
            8 => {
                for id in &self.subscribers {
                    self.fan_outs += 1;
                    let lost = self.lose_every.is_some_and(|every| self.fan_outs.is_multiple_of(every));
                    if let (Some(target), false) = (find(*id), lost) {
                        target.message(message);
                    }
                }
            }
            100.. if from.is_server => {
                let forward = Forward::parse(message.body).expect("servers send forwards");
                if let Some(target) = find(forward.client_conn_id) {
                    target.message(message);
                }
            }
            100.. => {
                if let Some(owner) = self.owner.and_then(find) {
                    owner.send(|out| write_forward_entry(out, message, from.id, message.body));
                }
            }
            other => panic!("the generator sent message type {other}"),
        }
    }
}
