//! The groups that measure the effect of one peer on the others.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use throng_enet::wire::{Body, CHANNEL_NONE, Command, Handshake, Header, PEER_ID_NONE, SESSION_UNUSED};
use throng_net::Clock;
use throng_net::enet::{Bytes, Config, Delivery, Endpoint, Event, Lane, Pacing};
use throng_net::udp::UdpOptions;

use super::measured::rise;
use super::{Bench, SPEC};
use crate::clock;
use crate::report::{Better, Row};
use crate::suites::BenchError;

impl Bench<'_> {
    pub(super) fn hostile(&mut self) -> Result<(), BenchError> {
        let clients = self.clients(1_000);
        let mut echo = self.start(&self.serve_plan(1 << 20))?;
        let (calm, stormy, ()) = self.beside("hostile", &mut echo, clients, |addr, stop| {
            // Nothing and garbage in turn, 10,000 a second.
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            let mut due = clock::now_ns();
            while !stop.load(Ordering::Acquire) {
                for index in 0..10u8 {
                    let garbage = [index.wrapping_mul(37); 20];
                    drop(socket.send_to(if index % 2 == 0 { &[] } else { &garbage }, addr));
                }
                due += 1_000_000;
                clock::sleep_until(due);
            }
            Ok(())
        })?;
        let rise = rise(&calm, &stormy);
        self.row(
            Row::new("10,000 garbage datagrams/s beside 1,000 clients: p99", "% more", Better::Lower, rise)
                .marks(10.0, 0.0),
        );
        drop(echo);

        let mut echo = self.start(&self.serve_plan(1 << 20))?;
        let (bytes_out, bytes_in) = unproven(echo.addr, 2_000)?;
        let half_open = echo.served().half_open;
        let ratio = bytes_in as f64 / bytes_out as f64;
        self.report
            .raw("unproven", json!({ "sent": bytes_out, "answered": bytes_in, "half_open": half_open }));
        self.row(
            Row::new("bytes answered per byte of unproven CONNECT", "bytes", Better::Lower, ratio)
                .published(5.5, SPEC)
                .marks(1.0, 1.0),
        );
        self.row(
            Row::new(
                "handshakes kept after 2,000 unproven CONNECTs",
                "entries",
                Better::Lower,
                half_open as f64,
            )
            .marks(16_384.0, 0.0),
        );
        Ok(())
    }

    pub(super) fn bulk(&mut self) -> Result<(), BenchError> {
        let clients = self.clients(1_000);
        let bytes = if self.options.clients.is_some() { 1_000_000 } else { 32_000_000 };
        let mut echo = self.start(&self.serve_plan(1 << 20))?;
        let packet: Bytes = (0..bytes).map(|at| at as u8).collect();
        let (calm, busy, bulk) =
            self.beside("bulk", &mut echo, clients, |addr, stop| fetch_bulk(addr, &packet, stop))?;
        let is_whole = bulk.first == packet;
        self.report.threshold("bulk: the long packet came back as it was", 0.0, is_whole);
        self.row(
            Row::new(
                "32 MB to one peer beside 1,000 others: their p99",
                "% more",
                Better::Lower,
                rise(&calm, &busy),
            )
            .marks(20.0, 5.0),
        );
        let each = bulk.took.as_secs_f64() / f64::from(bulk.rounds.max(1));
        self.row(Row::new("32 MB there and back", "s", Better::Lower, each));
        Ok(())
    }
}

/// Sends CONNECTs like a forger, who never sees an answer. Returns the bytes sent and received.
fn unproven(server: SocketAddr, count: u16) -> std::io::Result<(u64, u64)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(Duration::from_millis(1_500)))?;
    let (mut sent, mut answered) = (0, 0);
    let mut buf = [0; 2_048];
    for peer_id in 0..count {
        let handshake = Handshake {
            peer_id,
            incoming_session: SESSION_UNUSED,
            outgoing_session: SESSION_UNUSED,
            mtu: 1392,
            window: 65_536,
            channels: 4,
            incoming_bandwidth: 0,
            outgoing_bandwidth: 0,
            throttle_interval: 5_000,
            throttle_acceleration: 2,
            throttle_deceleration: 2,
            connect_id: u32::from(peer_id).to_be_bytes(),
        };
        let mut datagram = Vec::new();
        Header { peer_id: PEER_ID_NONE, session: 0, compressed: false, sent_time: Some(0) }
            .encode(&mut datagram);
        let body = Body::Connect(handshake, 0);
        Command { channel: CHANNEL_NONE, number: 1, acknowledge: true, unsequenced: false, body }
            .encode(&mut datagram);
        sent += socket.send_to(&datagram, server)? as u64;
        // The socket's buffer is small, and a lost answer would flatter the figure.
        socket.set_nonblocking(true)?;
        while let Ok(len) = socket.recv(&mut buf) {
            answered += len as u64;
        }
        socket.set_nonblocking(false)?;
        if peer_id % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Reads until nothing more arrives.
    while let Ok(len) = socket.recv(&mut buf) {
        answered += len as u64;
    }
    Ok((sent, answered))
}

/// Results of long packets.
struct Bulk {
    rounds: u32,
    took: Duration,
    /// The first one's echo.
    first: Bytes,
}

/// Sends one long reliable packet, and again when its echo is there, so that one is on its way in
/// every moment of the window.
fn fetch_bulk(server: SocketAddr, packet: &Bytes, stop: &AtomicBool) -> std::io::Result<Bulk> {
    // The peer with the long packet would be a machine of its own: what it does is not to keep the
    // server, or those who measure it, from a processor.
    crate::background::enter();
    let clock = Clock::start();
    let other = |error: &dyn std::fmt::Display| std::io::Error::other(error.to_string());
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut endpoint =
        Endpoint::open(clock, local, &UdpOptions::default(), Pacing::default(), Config::client(1))
            .map_err(|error| other(&error))?;
    endpoint.host().connect(clock.now(), server, 1, 0).map_err(|error| other(&error))?;
    let mut bulk = Bulk { rounds: 0, took: Duration::ZERO, first: Bytes::new() };
    let mut first = None;
    // Even when the window is over, the packet is to arrive.
    while (bulk.rounds == 0 || !stop.load(Ordering::Acquire)) && !crate::interrupt::requested() {
        let mut failed = None;
        endpoint.turn(None, |host| {
            while let Some(event) = host.poll_event() {
                let peer = match event {
                    Event::Connected { peer, .. } => peer,
                    Event::Received { peer, data, .. } => {
                        bulk.rounds += 1;
                        // Looking at it takes time, which is not to be measured as disturbance of
                        // the others.
                        first.get_or_insert(data);
                        peer
                    }
                    _ => {
                        failed = Some(other(&"the server ended"));
                        return;
                    }
                };
                if let Err(error) = host.send(peer, Lane(0), packet.clone(), Delivery::Reliable) {
                    failed = Some(other(&error));
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
    }
    bulk.first = first.unwrap_or_default();
    bulk.took = clock.now().since(throng_stdx::Instant::ZERO);
    Ok(bulk)
}
