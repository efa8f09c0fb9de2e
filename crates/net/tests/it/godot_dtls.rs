//! DTLS beside plain ENet on one port: a client of Godot 3 with `PacketPeerDTLS`, and a plain one.
//! Without `godot3-server` the first says so and passes.

use crate::peers;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throng_net::Clock;
use throng_net::enet::{
    Config, Delivery, DtlsConfig, Endpoint, Event, Lane, Pacing, Server, ServerOptions, entropy,
};
use throng_net::udp::UdpOptions;

/// Far beyond what any step needs; reached only when a test fails. The script gives up before.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn godot_connects_through_dtls_and_a_plain_client_beside_it() {
    let mut probe = Command::new("godot3-server");
    if probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return peers::skip("godot3-server");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let made = throng_net::development_certificate(&["localhost".to_owned()], now).unwrap();
    let dtls = DtlsConfig::from_pem(made.cert_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
    let options = ServerOptions { dtls: Some(dtls), ..ServerOptions::default() };
    let mut server = Server::start("127.0.0.1:0".parse().unwrap(), &options, Config::new).unwrap();
    let certificate = Path::new(env!("CARGO_TARGET_TMPDIR")).join("enet-dtls.crt");
    std::fs::write(&certificate, &made.cert_pem).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/godot/dtls.gd");
    let mut command = Command::new("godot3-server");
    command.arg("-s").arg(script).arg("--").arg(server.addr().port().to_string()).arg(&certificate).arg("3");
    // It writes a log into the folder that it runs in.
    command.current_dir(env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null()).stdout(Stdio::piped());
    let godot = command.spawn().unwrap();
    // Its CONNECT carries 42.
    greet(&mut server, 42);

    let mut plain = Endpoint::open(
        Clock::start(),
        "127.0.0.1:0".parse().unwrap(),
        &UdpOptions::default(),
        Pacing::default(),
        Config::client(entropy().unwrap()),
    )
    .unwrap();
    let addr = server.addr();
    let now = plain.now();
    plain.host().connect(now, addr, 1, 43).unwrap();
    plain.turn(Some(now), |_| {}).unwrap();
    let client = std::thread::spawn(move || {
        let mut is_welcome = false;
        while !is_welcome {
            plain
                .turn(None, |host| {
                    while let Some(event) = host.poll_event() {
                        assert!(!matches!(event, Event::Disconnected { .. }), "{event:?}");
                        is_welcome |= matches!(event, Event::Received { .. });
                    }
                })
                .unwrap();
        }
    });
    greet(&mut server, 43);
    client.join().unwrap();

    let output = godot.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(said, ["secure", "verified", "welcome"], "{text}");
}

/// Waits for the client whose CONNECT carries `number`.
fn greet(server: &mut Server, number: u32) {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        let (peer, event) =
            server.wait_event(left).unwrap_or_else(|| panic!("no {number}: {:?}", server.stats()));
        if let Event::Connected { data, .. } = event {
            assert_eq!(data, number);
            server.send(peer, Lane(0), &b"welcome"[..], Delivery::Reliable);
            return server.flush();
        }
    }
}
