//! Sends every packet back: same bytes, lane and delivery.
//!
//! ```console
//! $ cargo run -p throng-enet --example echo_server -- 127.0.0.1:7777
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "the crate has no sockets and no clock; a program does"
)]

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::{BuildHasher, Hasher};
use std::net::UdpSocket;
use std::time::{Duration, Instant as Clock};

use throng_enet::{Config, Event, Host, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".into());
    let socket = UdpSocket::bind(&address)?;
    println!("echoes on {}", socket.local_addr()?);

    let start = Clock::now();
    let now = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
    let mut host = Host::new(now(), Config::new(entropy()))?;
    let mut datagram = [0; 4_096];
    let mut out = Vec::new();
    loop {
        // Sleep until something arrives or is due.
        let wait = host.next_timeout().map_or(Duration::from_secs(1), |at| at.since(now()));
        socket.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        let mut arrived = socket.recv_from(&mut datagram);
        // Take everything that is there before answering: acknowledgements and answers then share
        // datagrams.
        socket.set_nonblocking(true)?;
        while let Ok((len, from)) = arrived {
            host.handle_datagram(now(), from, &datagram[..len]);
            arrived = socket.recv_from(&mut datagram);
        }
        socket.set_nonblocking(false)?;
        host.handle_timeout(now());
        while let Some(event) = host.poll_event() {
            match event {
                Event::Received { peer, lane, data, delivery } => {
                    if let Err(error) = host.send(peer, lane, data, delivery) {
                        println!("{peer:?}: {error}");
                    }
                }
                other => println!("{other:?}"),
            }
        }
        while let Some(transmit) = host.poll_transmit(now(), &mut out) {
            // A full socket buffer loses the datagram, as the network might; ENet is made for that.
            let _ = socket.send_to(&out, transmit.to);
        }
    }
}

/// 128 bits that nobody can guess, by way of the keys that the standard library draws for its hash
/// tables. A real program would ask the operating system, for instance with the crate `getrandom`.
fn entropy() -> u128 {
    let draw = || u128::from(RandomState::new().build_hasher().finish());
    draw() << 64 | draw()
}
