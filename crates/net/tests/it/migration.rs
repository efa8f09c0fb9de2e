//! The functions that the guide for users of the C library names exist: this file calls each.

use std::time::Duration;

use throng_net::enet::{Config, Delivery, Event, Lane, RangeCoder, Server, ServerOptions};

const PAGE: &str = include_str!("../../../../docs/how-to/migrate-from-enet.md");
const CALLS: &str = include_str!("migration.rs");

/// A server that uses all names in the right column of the guide's table.
fn serve(timeout: Duration) -> usize {
    let config =
        |seed| Config { peers_max: 8, compressor: Some(Box::new(RangeCoder::new())), ..Config::new(seed) };
    let addr = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::start(addr, &ServerOptions::default(), config).unwrap();
    let mut events = 0;
    while let Some((peer, event)) = server.wait_event(timeout).or_else(|| server.poll_event()) {
        events += 1;
        let (n, bytes) = (0, &b"welcome"[..]);
        match event {
            Event::Connected { .. } => server.send(peer, Lane(n), bytes, Delivery::Reliable),
            Event::Received { .. } => server.send(peer, Lane(n), bytes, Delivery::Unreliable),
            Event::Disconnected { .. } => server.broadcast(Lane(n), bytes, Delivery::Unsequenced),
            _ => {}
        }
        server.flush();
    }
    events
}

#[test]
fn the_guide_for_users_of_the_c_library_names_functions_that_exist() {
    assert_eq!(serve(Duration::ZERO), 0, "no client is there");
    let code = CALLS.split("fn serve").nth(1).and_then(|rest| rest.split("#[test]").next()).unwrap();
    let is_named =
        |name: &str| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    let rows: Vec<&str> = PAGE.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(rows.len() >= 7, "{rows:?}");
    for row in rows {
        let ours = row.split('|').nth(2).unwrap();
        for span in ours.split('`').skip(1).step_by(2) {
            for name in span.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
            {
                assert!(is_named(name), "`{name}` of `{span}`: call it in migration.rs if it exists");
            }
        }
    }
}
