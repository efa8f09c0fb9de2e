//! Tests of admission and encryption: gate, tokens and sealed datagrams.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use throng_stdx::{Instant, Rng};

use super::*;
use crate::{Config, Delivery, Event, Host, Lane};

const UNIX_S: u64 = 1_700_000_000;

fn server() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 7_777))
}

fn client(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, last], 5_000))
}

fn key() -> TokenKey {
    TokenKey::new([9; 32])
}

fn entropy(seed: u64) -> [u8; 88] {
    let mut bytes = [0; 88];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn token(seed: u64) -> ConnectToken {
    let claims = TokenClaims {
        user_id: seed,
        expires_unix_s: UNIX_S + 30,
        servers: vec![server()],
        ..TokenClaims::default()
    };
    key().issue(&claims, entropy(seed)).expect("one server")
}

fn gate() -> Gate {
    Gate::new(Instant::ZERO, GateConfig { servers: vec![server()], ..GateConfig::new(key(), 1) })
}

/// Plays the handshake; whether it ended with a session. Also what the client said.
fn enter(
    gate: &mut Gate,
    now: Instant,
    unix_s: u64,
    from: SocketAddr,
    entry: &mut Entry,
) -> (bool, Vec<Vec<u8>>) {
    let (mut out, mut scratch, mut said) = (Vec::new(), Vec::new(), Vec::new());
    let before = gate.stats().admitted;
    while entry.poll_transmit(now, &mut out) {
        said.push(out.clone());
        if let Opened::Answer(answer) = gate.open(now, unix_s, from, &out, &mut scratch) {
            assert!(answer.len() <= out.len(), "more than it sent");
            let answer = answer.to_vec();
            assert_eq!(entry.open(now, &answer, &mut Vec::new()), Opened::Nothing);
        }
    }
    (gate.stats().admitted > before, said)
}

#[test]
fn a_token_survives_its_way_to_the_client() {
    let token = token(5);
    assert_eq!(ConnectToken::decode(&token.encode()), Ok(token.clone()));
    assert_eq!(token.servers(), [server()]);
    let bytes = token.encode();
    for len in 0..bytes.len() {
        assert_eq!(ConnectToken::decode(&bytes[..len]), Err(TokenError::Malformed));
    }
    let claims = TokenClaims { servers: vec![server(); 5], ..TokenClaims::default() };
    assert_eq!(key().issue(&claims, entropy(1)).err(), Some(TokenError::Servers(5)));
}

#[test]
fn only_genuine_tokens_for_this_server_and_time_are_let_in() {
    let mut gate = gate();
    let now = Instant::ZERO;
    let mut let_in = |token: &ConnectToken, unix_s: u64| {
        let mut entry = Entry::new(now, token, 1);
        enter(&mut gate, now, unix_s, client(1), &mut entry).0
    };
    assert!(!let_in(&token(1), UNIX_S + 30), "expired");
    let elsewhere = TokenClaims {
        expires_unix_s: UNIX_S + 30,
        servers: vec![SocketAddr::from(([10, 0, 0, 3], 7_777))],
        ..TokenClaims::default()
    };
    assert!(!let_in(&key().issue(&elsewhere, entropy(2)).expect("one server"), UNIX_S), "for another server");
    let other = TokenClaims { protocol: 7, servers: vec![server()], ..elsewhere.clone() };
    assert!(!let_in(&key().issue(&other, entropy(3)).expect("one server"), UNIX_S), "for another game");
    let forged = TokenKey::new([8; 32]).issue(&TokenClaims { protocol: 0, ..other }, entropy(4));
    assert!(!let_in(&forged.expect("one server"), UNIX_S), "not the backend's");
    // Any bit of the request matters.
    let genuine = token(5).encode();
    for bit in (8..8 * (1 + 8 + 8 + 24 + 225)).step_by(13) {
        let mut bytes = genuine.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!let_in(&ConnectToken::decode(&bytes).expect("still a token"), UNIX_S), "bit {bit}");
    }
    assert!(let_in(&token(5), UNIX_S));
    assert_eq!(gate.identity(client(1)).map(|who| who.user_id), Some(5));
}

#[test]
fn a_token_works_once() {
    let (mut gate, now) = (gate(), Instant::ZERO);
    let token = token(1);
    let (is_in, said) = enter(&mut gate, now, UNIX_S, client(1), &mut Entry::new(now, &token, 1));
    assert!(is_in);
    let (is_in, _) = enter(&mut gate, now, UNIX_S, client(2), &mut Entry::new(now, &token, 2));
    assert!(!is_in, "from another address");
    assert_eq!(gate.stats().refused_used, 1);
    // A recording does not help, neither from there nor from elsewhere.
    let mut scratch = Vec::new();
    for from in [client(1), client(3)] {
        let _ = gate.open(now, UNIX_S, from, &said[1], &mut scratch);
    }
    assert_eq!((gate.stats().admitted, gate.session_count()), (1, 1));
    // The same client after a restart: the old session is over and does not come back.
    let (is_in, _) = enter(&mut gate, now, UNIX_S, client(1), &mut Entry::new(now, &token, 3));
    assert!(is_in);
    let _ = gate.open(now, UNIX_S, client(1), &said[1], &mut scratch);
    assert_eq!((gate.stats().admitted, gate.stats().refused_used), (2, 2));
}

/// A ledger that nobody must come to.
struct Untouched;

impl Ledger for Untouched {
    fn claim(&mut self, _: u64, claim: &Claim) -> Verdict {
        panic!("{claim:?} was made")
    }
}

#[test]
fn strangers_leave_no_trace() {
    let now = Instant::ZERO;
    let config = GateConfig { servers: vec![server()], ..GateConfig::new(key(), 1) };
    let mut gate = Gate::with_ledger(now, config, Box::new(Untouched));
    let (mut out, mut scratch) = (Vec::new(), Vec::new());
    for n in 0..1_000 {
        // Genuine tokens, from addresses that never answer.
        assert!(Entry::new(now, &token(n), n.into()).poll_transmit(now, &mut out));
        assert!(matches!(gate.open(now, UNIX_S, client(n as u8), &out, &mut scratch), Opened::Answer(_)));
    }
    assert_eq!((gate.session_count(), gate.next_timeout()), (0, None));
}

#[test]
fn full_tables_refuse_and_keep_the_token_good() {
    let now = Instant::ZERO;
    let limits =
        GateConfig { servers: vec![server()], tokens_max: 2, sessions_max: 1, ..GateConfig::new(key(), 1) };
    let mut gate = Gate::new(now, limits);
    let let_in =
        |gate: &mut Gate, seed, from| enter(gate, now, UNIX_S, from, &mut Entry::new(now, &token(seed), 1)).0;
    assert!(let_in(&mut gate, 1, client(1)));
    assert!(!let_in(&mut gate, 2, client(2)), "no session left");
    gate.remove(client(1));
    assert!(let_in(&mut gate, 2, client(2)));
    gate.remove(client(2));
    assert!(!let_in(&mut gate, 3, client(3)), "no room for another token");
    assert_eq!((gate.stats().refused_full, gate.stats().refused_used), (2, 0));
}

#[test]
fn sealed_datagrams_arrive_once_and_unchanged_or_not_at_all() {
    let (mut gate, now) = (gate(), Instant::ZERO);
    let mut entry = Entry::new(now, &token(1), 1);
    assert!(enter(&mut gate, now, UNIX_S, client(1), &mut entry).0);
    let (mut sealed, mut scratch) = (Vec::new(), Vec::new());
    assert!(entry.seal(b"hello", &mut sealed));
    assert_eq!(sealed.len(), 5 + SEAL_BYTES);
    for bit in 0..8 * sealed.len() {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(gate.open(now, UNIX_S, client(1), &changed, &mut scratch), Opened::Nothing, "bit {bit}");
    }
    assert_eq!(gate.open(now, UNIX_S, client(2), &sealed, &mut scratch), Opened::Nothing, "from elsewhere");
    assert_eq!(gate.open(now, UNIX_S, client(1), &sealed, &mut scratch), Opened::Enet(b"hello"));
    assert_eq!(gate.open(now, UNIX_S, client(1), &sealed, &mut scratch), Opened::Nothing, "again");
    assert_eq!(gate.stats().dropped_replayed, 1);
    // The client refuses its own datagrams.
    assert_eq!(entry.open(now, &sealed, &mut scratch), Opened::Nothing);
    assert!(gate.seal(client(1), b"welcome", &mut sealed));
    assert_eq!(entry.open(now, &sealed, &mut scratch), Opened::Enet(b"welcome"));
    assert_eq!(entry.open(now, &sealed, &mut scratch), Opened::Nothing);
    assert!(!gate.seal(client(2), b"who?", &mut sealed));
}

#[test]
fn plain_clients_share_the_port_only_if_they_may() {
    let now = Instant::ZERO;
    let mut scratch = Vec::new();
    let mut strict = gate();
    assert_eq!(strict.open(now, UNIX_S, client(1), b"\x8f\xff....", &mut scratch), Opened::Nothing);
    assert_eq!(strict.stats().dropped_plain, 1);
    let mut open = Gate::new(now, GateConfig { plain: true, ..GateConfig::new(key(), 1) });
    assert!(matches!(open.open(now, UNIX_S, client(1), b"\x8f\xff....", &mut scratch), Opened::Enet(_)));
    let mut sealed = Vec::new();
    assert!(open.seal(client(1), b"plain", &mut sealed) && sealed == b"plain");
    // Nobody speaks plainly in the name of a session.
    let mut entry = Entry::new(now, &token(1), 1);
    assert!(enter(&mut open, now, UNIX_S, client(1), &mut entry).0);
    assert_eq!(open.open(now, UNIX_S, client(1), b"\x8f\xff....", &mut scratch), Opened::Nothing);
}

#[test]
fn silent_sessions_are_forgotten() {
    let (mut gate, mut now) = (gate(), Instant::ZERO);
    let mut entry = Entry::new(now, &token(1), 1);
    assert!(enter(&mut gate, now, UNIX_S, client(1), &mut entry).0);
    let (mut sealed, mut scratch) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        now += Duration::from_secs(30);
        gate.handle_timeout(now);
        assert!(entry.seal(b"still here", &mut sealed));
        assert!(matches!(gate.open(now, UNIX_S, client(1), &sealed, &mut scratch), Opened::Enet(_)));
    }
    now += Duration::from_secs(41);
    gate.handle_timeout(now);
    assert_eq!((gate.session_count(), gate.next_timeout()), (0, None));
}

#[test]
fn enet_connects_through_the_gate_on_a_lossy_link() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut now = Instant::from_millis(1_000);
        let mut gate = Gate::new(now, GateConfig { servers: vec![server()], ..GateConfig::new(key(), 1) });
        let mut entry = Entry::new(now, &token(seed), seed.into());
        let mut hosts: [Box<Host>; 2] = [Config::client(1), Config { mtu: 1_200, ..Config::new(2) }]
            .map(|config| Box::new(Host::new(now, config).expect("sound")));
        let peer = hosts[0].connect(now, server(), 2, 1).expect("there is room");
        let (mut out, mut sealed, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        let mut wires: [Vec<Vec<u8>>; 2] = Default::default();
        let mut got = None;
        let mut is_sent = false;
        for _ in 0..6_000 {
            now += Duration::from_millis(5);
            for host in &mut hosts {
                host.handle_timeout(now);
            }
            while entry.poll_transmit(now, &mut out) {
                wires[1].push(out.clone());
            }
            while hosts[0].poll_transmit(now, &mut out).is_some() {
                if entry.seal(&out, &mut sealed) {
                    wires[1].push(sealed.clone());
                }
            }
            while let Some(transmit) = hosts[1].poll_transmit(now, &mut out) {
                if gate.seal(transmit.to, &out, &mut sealed) {
                    wires[0].push(sealed.clone());
                }
            }
            for datagram in core::mem::take(&mut wires[1]) {
                if rng.chance(0.1) {
                    continue;
                }
                match gate.open(now, UNIX_S, client(1), &datagram, &mut scratch) {
                    Opened::Enet(datagram) => hosts[1].handle_datagram(now, client(1), datagram),
                    Opened::Answer(answer) => wires[0].push(answer.to_vec()),
                    Opened::Nothing => {}
                }
            }
            for datagram in core::mem::take(&mut wires[0]) {
                if rng.chance(0.1) {
                    continue;
                }
                if let Opened::Enet(datagram) = entry.open(now, &datagram, &mut scratch) {
                    hosts[0].handle_datagram(now, server(), datagram);
                }
            }
            while let Some(event) = hosts[1].poll_event() {
                if let Event::Received { peer, data, .. } = event {
                    let info = hosts[1].peer(peer).expect("it has just spoken");
                    got = gate.identity(info.address).map(|who| (who.user_id, data));
                }
            }
            while let Some(event) = hosts[0].poll_event() {
                if matches!(event, Event::Connected { .. }) && !is_sent {
                    is_sent = true;
                    hosts[0].send(peer, Lane(0), vec![5; 3_000], Delivery::Reliable).expect("there is room");
                }
            }
            if got.is_some() {
                break;
            }
        }
        assert!(
            got == Some((seed, vec![5; 3_000].into())),
            "seed {seed}: {:?}, {entry:?}, {:?}, {hosts:?}",
            gate.stats(),
            hosts[0].peer(peer)
        );
    }
}

#[test]
fn a_challenge_admits_only_the_address_that_it_was_sent_to() {
    let (mut gate, now) = (gate(), Instant::ZERO);
    let mut entry = Entry::new(now, &token(1), 1);
    let (mut request, mut response, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    assert!(entry.poll_transmit(now, &mut request));
    let Opened::Answer(challenge) = gate.open(now, UNIX_S, client(1), &request, &mut scratch) else {
        panic!("no challenge")
    };
    assert_eq!(entry.open(now, challenge, &mut Vec::new()), Opened::Nothing);
    assert!(entry.poll_transmit(now, &mut response));
    // Another address of the same client, and another port, both before the right one.
    let other_port = SocketAddr::new(client(1).ip(), client(1).port() + 1);
    for from in [client(2), other_port] {
        assert_eq!(gate.open(now, UNIX_S, from, &response, &mut scratch), Opened::Nothing);
    }
    assert_eq!((gate.session_count(), gate.stats().refused_tokens), (0, 2));
    let _ = gate.open(now, UNIX_S, client(1), &response, &mut scratch);
    assert_eq!(gate.session_count(), 1);
}
