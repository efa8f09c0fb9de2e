//! Drivers of both kinds exchange packets over loopback.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use throng_enet_driver::{AsyncDriver, Bytes, Config, Delivery, Driver, Event, Host, Lane};

/// Far beyond what any step needs; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Option<Duration> = Some(Duration::from_millis(1));

type Open = fn(SocketAddr, Config) -> Result<Driver, throng_enet_driver::OpenError>;

/// Packets of all lengths: single, several in a datagram, and fragmented.
fn packets() -> Vec<Bytes> {
    (0..60u32).map(|n| vec![n as u8; [0, 10, 900, 1_300, 50_000][n as usize % 5]].into()).collect()
}

fn echo(host: &mut Host) {
    while let Some(event) = host.poll_event() {
        if let Event::Received { peer, lane, data, delivery } = event {
            host.send(peer, lane, data, delivery).expect("room");
        }
    }
}

/// Sends all packets once connected, and collects those that come back.
fn play(host: &mut Host, back: &mut Vec<Bytes>) {
    while let Some(event) = host.poll_event() {
        match event {
            Event::Connected { peer, .. } => {
                for packet in packets() {
                    host.send(peer, Lane(0), packet, Delivery::Reliable).expect("room");
                }
            }
            Event::Received { data, .. } => back.push(data),
            other => panic!("{other:?}"),
        }
    }
}

fn at(ip: &str, server: SocketAddr) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), server.port())
}

#[test]
fn both_kinds_serve_and_connect() {
    let kinds: [Open; 2] = [Driver::open, Driver::open_portable];
    // An own address of several, and IPv4 on a socket for both families.
    let places = [
        ("127.0.0.1:0", "127.0.0.1", "127.0.0.1:0"),
        ("0.0.0.0:0", "127.0.0.2", "0.0.0.0:0"),
        ("[::]:0", "127.0.0.1", "[::]:0"),
        ("[::]:0", "::1", "[::1]:0"),
    ];
    for (index, (listen, asked, from)) in places.into_iter().enumerate() {
        for kind in 0..4 {
            let (serve, connect) = (kinds[kind % 2], kinds[kind / 2]);
            let mut server = serve(listen.parse().unwrap(), Config::new(1)).unwrap();
            let mut client = connect(from.parse().unwrap(), Config::client(2)).unwrap();
            let (now, to) = (client.now(), at(asked, server.local_addr()));
            client.host().connect(now, to, 1, 0).unwrap();
            let (mut back, started) = (Vec::new(), Instant::now());
            while back.len() < packets().len() {
                assert!(started.elapsed() < PATIENCE, "place {index}, kinds {kind}: {} back", back.len());
                server.turn(STEP, echo).unwrap();
                client.turn(STEP, |host| play(host, &mut back)).unwrap();
            }
            assert_eq!(back, packets());
        }
    }
}

#[test]
fn a_waker_ends_a_wait_of_either_kind() {
    for open in [Driver::open as Open, Driver::open_portable] {
        let mut driver = open("127.0.0.1:0".parse().unwrap(), Config::new(1)).unwrap();
        let waker = driver.waker();
        std::thread::spawn(move || waker.wake());
        // Without the waker this would last for ever: there is no connection and so no timer.
        driver.turn(None, |_| {}).unwrap();
    }
}

#[test]
fn a_taken_address_is_an_error_that_names_it() {
    let first = Driver::open_portable("127.0.0.1:0".parse().unwrap(), Config::new(1)).unwrap();
    let error = Driver::open_portable(first.local_addr(), Config::new(1)).unwrap_err();
    assert!(error.to_string().contains(&first.local_addr().to_string()), "{error}");
}

#[test]
fn drivers_of_tokio_share_a_thread_and_turns_may_be_dropped() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut server = AsyncDriver::open("0.0.0.0:0".parse().unwrap(), Config::new(1)).unwrap();
        let mut client = AsyncDriver::open("127.0.0.1:0".parse().unwrap(), Config::client(2)).unwrap();
        let (now, to) = (client.now(), at("127.0.0.1", server.local_addr()));
        client.host().connect(now, to, 1, 0).unwrap();
        let mut back = Vec::new();
        let exchange = async {
            while back.len() < packets().len() {
                // Of two turns the later is dropped.
                tokio::select! {
                    round = server.turn(None, echo) => round.unwrap(),
                    round = client.turn(None, |host| play(host, &mut back)) => round.unwrap(),
                }
            }
        };
        tokio::time::timeout(PATIENCE, exchange).await.expect("everything comes back");
        assert_eq!(back, packets());
    });
}
