//! Every transport under random writes, pauses and moves between loops: what one end wrote is what
//! the other end got, all of it and in order; and every connection goes when it is closed.
//!
//! `THRONG_SEED=n` repeats one run.

use crate::common;

use std::collections::HashMap;
use std::io::IoSlice;
use std::time::Duration;

use common::*;
use throng_net::kcp::Profile;
use throng_net::*;
use throng_stdx::Rng;

/// One end of a connection.
struct End {
    /// Loop it lives on: 0 and 1 serve, 2 is the clients'.
    home: usize,
    key: ConnKey,
    websocket: bool,
    client: bool,
    /// Written bytes, without WebSocket headers.
    wrote: Vec<u8>,
    /// Written, but not taken by the loop yet.
    outbox: Vec<u8>,
    /// Received under keys that it had before it moved.
    received: Vec<u8>,
}

struct World {
    nodes: [Node; 3],
    /// Server's and client's end of each connection.
    pairs: Vec<[End; 2]>,
    rng: Rng,
}

fn specs() -> Vec<(ListenerSpec, ConnectSpec)> {
    let made =
        development_certificate(&["localhost".into()], Duration::from_nanos(Clock::start().unix_start_ns()))
            .unwrap();
    let acceptor =
        TlsAcceptor::new(tls_server_config(made.cert_pem.as_bytes(), made.key_pem.as_bytes()).unwrap());
    let connector = TlsConnector {
        config: tls_client_config(made.cert_pem.as_bytes()).unwrap(),
        server_name: "localhost".try_into().unwrap(),
    };
    let mut specs = Vec::new();
    for transport in [Transport::Tcp, Transport::WebSocket, Transport::Kcp(Profile::GAME)] {
        for secure in [false, true] {
            if secure && matches!(transport, Transport::Kcp(_)) {
                continue;
            }
            // Small buffers, so that writes block often.
            let limits = Limits {
                send_buffer_bytes: Some(16 << 10),
                receive_buffer_bytes: matches!(transport, Transport::Tcp).then_some(16 << 10),
                ..Limits::default()
            };
            // Often enough to happen, and too rarely to end a connection whose client is paused for
            // a while.
            let ws = WsPolicy { ping_interval: Some(Duration::from_secs(2)), ..WsPolicy::default() };
            let listener = ListenerSpec {
                tls: secure.then(|| acceptor.clone()),
                limits,
                ws: ws.into(),
                ..ListenerSpec::new(loopback(), transport)
            };
            let connect = ConnectSpec {
                tls: secure.then(|| connector.clone()),
                ..ConnectSpec::new(loopback(), transport)
            };
            specs.push((listener, connect));
        }
    }
    specs
}

impl World {
    fn new(seed: u64) -> Self {
        let mut nodes = [Node::new(), Node::new(), Node::new()];
        let mut pairs = Vec::new();
        for (listener, mut connect) in specs() {
            let websocket = listener.transport == Transport::WebSocket;
            connect.addr = nodes[0].listen_with(listener);
            for _ in 0..3 {
                let client = nodes[2].net.connect(connect.clone()).unwrap();
                // A KCP session begins with its first bytes; on the others they come with the last
                // flight.
                let end = |home, key, client| End {
                    home,
                    key,
                    websocket,
                    client,
                    wrote: Vec::new(),
                    outbox: Vec::new(),
                    received: Vec::new(),
                };
                let mut mine = end(2, client, true);
                let expected = nodes[0].seen.accepted.len() + 1;
                let [server, _, clients] = &mut nodes;
                until_both(server, clients, "the client is connected", |_, c| {
                    c.seen.connected.contains(&client)
                });
                mine.write(b"hello", 1);
                let outcome = clients.net.write(client, &[IoSlice::new(&mine.outbox)]);
                mine.outbox.drain(..outcome.taken);
                until_both(server, clients, "accepted", |s, _| s.seen.accepted.len() == expected);
                let theirs = end(0, server.seen.accepted[expected - 1].1, false);
                pairs.push([theirs, mine]);
            }
        }
        Self { nodes, pairs, rng: Rng::new(seed) }
    }

    /// A random operation on a random end.
    fn operate(&mut self) {
        let pair = self.rng.below(self.pairs.len() as u64) as usize;
        let side = self.rng.below(2) as usize;
        let end = &mut self.pairs[pair][side];
        let net = &mut self.nodes[end.home].net;
        match self.rng.below(20) {
            0 => net.pause_read(end.key),
            1..4 => net.resume_read(end.key),
            4..6 if side == 0 => {
                // A connection that its peer has just ended cannot move.
                let Some(detached) = net.detach(end.key) else { return };
                let received = self.nodes[end.home].seen.received.remove(&end.key);
                end.received.extend(received.unwrap_or_default());
                end.home = 1 - end.home;
                end.key = self.nodes[end.home].net.attach(detached).unwrap();
            }
            6..14 => {
                let size = if self.rng.chance(0.2) { self.rng.below(60_000) } else { self.rng.below(800) };
                let mut bytes = vec![0; size as usize];
                self.rng.fill(&mut bytes);
                end.write(&bytes, self.rng.next_u32());
                // In several slices, some empty.
                let cut = self.rng.below(end.outbox.len() as u64 + 1) as usize;
                let (head, tail) = end.outbox.split_at(cut);
                let slices = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)];
                let taken = net.write(end.key, &slices).taken;
                end.outbox.drain(..taken);
            }
            _ => {
                let node = self.rng.below(3) as usize;
                self.nodes[node].step(0);
            }
        }
    }

    /// Lets everything arrive, and checks it.
    fn settle(&mut self) {
        let started = std::time::Instant::now();
        loop {
            let mut done = true;
            for pair in &mut self.pairs {
                for end in pair {
                    let net = &mut self.nodes[end.home].net;
                    net.resume_read(end.key);
                    let taken = net.write(end.key, &[IoSlice::new(&end.outbox)]).taken;
                    end.outbox.drain(..taken);
                    done &= end.outbox.is_empty();
                }
            }
            for node in &mut self.nodes {
                node.step(1);
            }
            for [a, b] in &self.pairs {
                for (from, to) in [(a, b), (b, a)] {
                    let got = to.received.len() + self.nodes[to.home].received(to.key).len();
                    done &= got >= from.wrote.len();
                }
            }
            if done {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain until everything arrives");
        }
        for [a, b] in &self.pairs {
            for (from, to) in [(a, b), (b, a)] {
                let got = [&to.received, self.nodes[to.home].received(to.key)].concat();
                assert!(from.wrote == got, "bytes differ");
            }
        }
        let closed: HashMap<_, _> = self.nodes.iter().flat_map(|node| &node.seen.closed).collect();
        assert!(closed.is_empty(), "{closed:?}");
    }

    /// Closes every connection from one side or the other, in both ways, and sees both ends go.
    fn close_all(&mut self) {
        for (index, pair) in self.pairs.iter().enumerate() {
            let end = &pair[index % 2];
            let mode = if index % 3 == 0 { CloseMode::Now } else { CloseMode::Flush };
            self.nodes[end.home].net.close(end.key, mode);
        }
        let started = std::time::Instant::now();
        // KCP has no goodbye: the other end of its sessions stays until it times out.
        let sessions = 3;
        while self.nodes.iter().map(|node| node.net.conn_count()).sum::<usize>() > sessions {
            assert!(started.elapsed() < PATIENCE, "connections stay open");
            for node in &mut self.nodes {
                node.step(1);
            }
        }
    }
}

impl End {
    fn write(&mut self, bytes: &[u8], mask: u32) {
        self.wrote.extend_from_slice(bytes);
        if self.websocket {
            ws::write_message(&mut self.outbox, bytes, self.client.then_some(mask.to_ne_bytes()));
        } else {
            self.outbox.extend_from_slice(bytes);
        }
    }
}

#[test]
fn whatever_is_done_the_streams_stay_whole() {
    let seeds = match std::env::var("THRONG_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..12,
    };
    for seed in seeds {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..4 {
                for _ in 0..400 {
                    world.operate();
                }
                world.settle();
            }
            world.close_all();
        });
        assert!(result.is_ok(), "repeat with THRONG_SEED={seed}");
    }
}
