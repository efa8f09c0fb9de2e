//! Hosts behind the sealed layer: a server with several shards, its clients, and who does not
//! belong there.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use throng_net::Clock;
use throng_net::enet::secure::{ConnectToken, GateConfig, TokenClaims, TokenKey};
use throng_net::enet::{
    Config, Delivery, Endpoint, Event, Lane, Pacing, PeerId, Server, ServerOptions, entropy,
};
use throng_net::udp::UdpOptions;

const PATIENCE: Duration = Duration::from_secs(120);
const WORDS: &[u8] = b"nobody else is to read this";

fn key() -> TokenKey {
    TokenKey::new([9; 32])
}

fn token(user_id: u64, server: SocketAddr) -> ConnectToken {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = TokenClaims {
        user_id,
        expires_unix_s: unix_s + 3600,
        servers: vec![server],
        ..TokenClaims::default()
    };
    let mut bytes = [0; 88];
    bytes.chunks_mut(16).for_each(|part| {
        part.copy_from_slice(&entropy().unwrap().to_ne_bytes()[..part.len()]);
    });
    key().issue(&claims, bytes).unwrap()
}

fn server(addr: &str, shards: u16, plain: bool) -> Server {
    let gate = GateConfig { plain, ..GateConfig::new(key(), 0) };
    let options = ServerOptions { shards, gate: Some(gate), ..ServerOptions::default() };
    Server::start(addr.parse().unwrap(), &options, Config::new).unwrap()
}

/// A client with one connection.
struct Client {
    endpoint: Endpoint,
    peer: PeerId,
    connected: bool,
    received: Vec<u8>,
}

impl Client {
    /// To `at`, which is the server or on the path to it.
    fn new(at: SocketAddr, token: Option<&ConnectToken>) -> Self {
        let (clock, udp, pacing) = (Clock::start(), UdpOptions::default(), Pacing::default());
        let config = Config::client(entropy().unwrap());
        let opened = match token {
            Some(token) => Endpoint::open_entry(clock, at, &udp, pacing, config, token),
            None => Endpoint::open(clock, SocketAddr::new(at.ip(), 0), &udp, pacing, config),
        };
        let mut endpoint = opened.unwrap();
        let peer = endpoint.host().connect(clock.now(), at, 1, 0).unwrap();
        Self { endpoint, peer, connected: false, received: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.endpoint.host().send(self.peer, Lane(0), bytes.to_vec(), Delivery::Reliable).unwrap();
    }

    fn turn(&mut self) {
        let soon = self.endpoint.now() + Duration::from_millis(2);
        let (connected, received) = (&mut self.connected, &mut self.received);
        let on_round = |host: &mut throng_net::enet::Host| {
            while let Some(event) = host.poll_event() {
                match event {
                    Event::Connected { .. } => *connected = true,
                    Event::Received { data, .. } => received.extend_from_slice(&data),
                    _ => {}
                }
            }
        };
        self.endpoint.turn(Some(soon), on_round).unwrap();
    }
}

/// Echoes; who has come, by user, and on which shard.
#[derive(Default)]
struct Game {
    came: BTreeMap<Option<u64>, u16>,
}

impl Game {
    fn tick(&mut self, server: &mut Server) {
        while let Some((peer, event)) = server.poll_event() {
            match event {
                Event::Connected { .. } => {
                    self.came.insert(server.identity().map(|who| who.user_id), peer.shard());
                }
                Event::Received { lane, data, delivery, .. } => {
                    assert!(server.identity().is_none(), "only with the connection");
                    server.send(peer, lane, data, delivery);
                }
                _ => {}
            }
        }
        server.flush();
    }

    fn until(&mut self, server: &mut Server, what: &str, mut step: impl FnMut() -> bool) {
        let start = Instant::now();
        while !step() {
            assert!(start.elapsed() < PATIENCE, "{what} takes too long");
            self.tick(server);
        }
    }
}

#[test]
fn the_game_learns_who_came_and_long_packets_come_back() {
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        if addr.starts_with('[') && UdpSocket::bind(addr).is_err() {
            // A machine without IPv6.
            return;
        }
        let (mut server, mut game) = (server(addr, 1, false), Game::default());
        let long: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
        let mut clients: Vec<Client> =
            [7, 8].map(|user| Client::new(server.addr(), Some(&token(user, server.addr())))).into();
        for client in &mut clients {
            game.until(&mut server, "connecting", || {
                client.turn();
                client.connected
            });
            client.send(&long);
            game.until(&mut server, "the echo", || {
                client.turn();
                client.received.len() == long.len()
            });
            assert!(client.received == long && !client.endpoint.is_refused());
        }
        assert_eq!(game.came.keys().copied().collect::<Vec<_>>(), [Some(7), Some(8)]);
    }
}

#[test]
fn a_token_works_once_whichever_shard_it_comes_to() {
    // A shard is chosen by a hash over ports that the system gives out; not all of so many thieves
    // meet the player's.
    const THIEVES: usize = 16;
    let (mut server, mut game) = (server("127.0.0.1:0", 2, false), Game::default());
    let stolen = token(7, server.addr());
    let mut player = Client::new(server.addr(), Some(&stolen));
    game.until(&mut server, "connecting", || {
        player.turn();
        player.connected
    });
    let mut thieves: Vec<Client> = (0..THIEVES).map(|_| Client::new(server.addr(), Some(&stolen))).collect();
    let start = Instant::now();
    while server.stats().hosts.gate.refused_used < THIEVES as u64 {
        assert!(start.elapsed() < PATIENCE, "{:?}", server.stats());
        thieves.iter_mut().chain([&mut player]).for_each(Client::turn);
        game.tick(&mut server);
    }
    assert!(thieves.iter().all(|thief| !thief.connected));
    assert_eq!(server.stats().hosts.gate.admitted, 1);
    assert_eq!(game.came.len(), 1);
}

#[test]
fn plain_clients_come_in_only_where_they_may_and_are_nobody() {
    for plain in [false, true] {
        let (mut server, mut game) = (server("127.0.0.1:0", 1, plain), Game::default());
        let mut client = Client::new(server.addr(), None);
        let start = Instant::now();
        while (!client.connected || game.came.is_empty()) && server.stats().hosts.gate.dropped_plain == 0 {
            assert!(start.elapsed() < PATIENCE, "{:?}", server.stats());
            client.turn();
            game.tick(&mut server);
        }
        assert_eq!(client.connected, plain);
        assert_eq!(game.came.contains_key(&None), plain);
    }
}

#[test]
fn on_the_path_nothing_can_be_read() {
    let (mut server, mut game) = (server("127.0.0.1:0", 1, false), Game::default());
    let path = UdpSocket::bind("127.0.0.1:0").unwrap();
    path.set_nonblocking(true).unwrap();
    let at = path.local_addr().unwrap();
    let mut client = Client::new(at, Some(&token(7, server.addr())));
    let (addr, mut source, mut buf, mut sent, mut seen) = (server.addr(), None, [0; 4_096], false, 0);
    game.until(&mut server, "the echo", || {
        client.turn();
        if client.connected && !sent {
            sent = true;
            client.send(WORDS);
        }
        while let Ok((len, from)) = path.recv_from(&mut buf) {
            let datagram = &buf[..len];
            assert!(!datagram.windows(8).any(|part| WORDS.windows(8).any(|word| word == part)));
            assert!(datagram.starts_with(&[0xFF, 0xFF]), "ENet can be seen");
            seen += 1;
            if from != addr {
                source = Some(from);
            }
            let to = if from == addr { source.unwrap() } else { addr };
            path.send_to(datagram, to).unwrap();
        }
        client.received == WORDS
    });
    assert!(seen > 6, "everything went this way");
}
