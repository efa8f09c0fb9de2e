//! Connects, says something on each kind of delivery, prints what comes back, and leaves.
//!
//! ```console
//! $ cargo run -p throng-enet --example client -- 127.0.0.1:7777
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "the crate has no sockets and no clock; a program does"
)]

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant as Clock};

use throng_enet::{Config, Delivery, Event, Host, Instant, Lane};

fn main() -> Result<(), Box<dyn Error>> {
    let server: SocketAddr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".into()).parse()?;
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(Duration::from_millis(5)))?;

    let start = Clock::now();
    let now = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
    // A client accepts nobody; its seed only makes its connect id hard to guess.
    let seed = u128::from(std::process::id()) << 64 | Clock::now().elapsed().as_nanos();
    let mut host = Host::new(now(), Config::client(seed))?;
    let peer = host.connect(now(), server, 2, 42)?;

    let mut datagram = [0; 4_096];
    let mut out = Vec::new();
    let mut missing = 3;
    loop {
        if let Ok((len, from)) = socket.recv_from(&mut datagram) {
            host.handle_datagram(now(), from, &datagram[..len]);
        }
        host.handle_timeout(now());
        while let Some(event) = host.poll_event() {
            match event {
                Event::Connected { .. } => {
                    host.send(peer, Lane(0), &b"must arrive"[..], Delivery::Reliable)?;
                    host.send(peer, Lane(1), &b"may get lost"[..], Delivery::Unreliable)?;
                    host.send(peer, Lane(1), &b"may overtake"[..], Delivery::Unsequenced)?;
                }
                Event::Received { lane, data, delivery, .. } => {
                    println!("{lane:?}, {delivery:?}: {}", String::from_utf8_lossy(&data));
                    missing -= 1;
                    if missing == 0 {
                        let info = host.peer(peer).ok_or("the connection is gone")?;
                        println!("round trip {:?}, {:?}", info.rtt, info.traffic);
                        host.disconnect(peer, 0);
                    }
                }
                Event::Disconnected { reason, .. } => {
                    println!("disconnected: {reason:?}");
                    return Ok(());
                }
                _ => {}
            }
        }
        while let Some(transmit) = host.poll_transmit(now(), &mut out) {
            socket.send_to(&out, transmit.to)?;
        }
    }
}
