//! DTLS under virtual time: lossy links, strangers, garbage, floods.

use std::collections::HashSet;

use throng_stdx::Rng;

use super::crypto::COOKIE_BYTES;
use super::*;
use crate::tls::development_certificate;

const CONNECT: &[u8] = b"connect";

/// A host that takes every sender of [`CONNECT`] for a peer.
#[derive(Default)]
struct Inside {
    got: Vec<(SocketAddr, Vec<u8>)>,
    peers: HashSet<SocketAddr>,
}

impl Behind for Inside {
    fn deliver(&mut self, from: SocketAddr, _: Via, datagram: &[u8]) {
        if datagram == CONNECT {
            self.peers.insert(from);
        }
        self.got.push((from, datagram.to_vec()));
    }

    fn has_peer(&self, address: SocketAddr) -> bool {
        self.peers.contains(&address)
    }

    fn replace_peers(&mut self, address: SocketAddr) {
        self.peers.remove(&address);
    }
}

struct Server {
    dtls: Dtls,
    inside: Inside,
    now: Instant,
}

impl Server {
    fn new(plain: bool) -> Self {
        let dtls = Dtls::new(DtlsConfig { plain, ..config() }, 7);
        Self { dtls, inside: Inside::default(), now: Instant::from_millis(1) }
    }

    /// Gives the server a datagram; what it answers, to whom.
    fn take(&mut self, from: SocketAddr, datagram: &[u8]) -> Vec<(SocketAddr, Vec<u8>)> {
        self.dtls.handle_datagram(self.now, from, Via(0), datagram, &mut self.inside);
        self.said()
    }

    fn said(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut said = Vec::new();
        self.dtls.drain(|transmit, datagram| said.push((transmit.to, datagram.to_vec())));
        said
    }

    fn advance(&mut self, by: Duration) -> Vec<(SocketAddr, Vec<u8>)> {
        self.now += by;
        self.dtls.handle_timeout(self.now, &mut self.inside);
        self.said()
    }

    fn seal(&mut self, to: SocketAddr, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        self.dtls.seal(to, datagram, |sealed| out.push(sealed.to_vec()));
        out
    }

    /// Exchanges datagrams with a client until neither has more.
    fn talk(&mut self, client: &mut Client) {
        loop {
            let said = client.said();
            if said.is_empty() {
                return;
            }
            for datagram in said {
                for (to, answer) in self.take(client.address, &datagram) {
                    assert_eq!(to, client.address);
                    client.take(&answer);
                }
            }
        }
    }

    /// A client that is a peer.
    fn connected(&mut self, address: SocketAddr) -> Client {
        let mut client = Client::new(address, self);
        self.talk(&mut client);
        assert!(client.is_open);
        client.send(CONNECT);
        self.talk(&mut client);
        assert!(self.inside.peers.contains(&address));
        client
    }
}

/// A client of dimpl's.
struct Client {
    address: SocketAddr,
    dtls: dimpl::Dtls,
    epoch: std::time::Instant,
    timer: Instant,
    is_open: bool,
    got: Vec<Vec<u8>>,
}

impl Client {
    fn new(address: SocketAddr, server: &Server) -> Self {
        let (config, time) = (config(), server.dtls.time(server.now));
        let mut dtls = dimpl::Dtls::new_12(config.config, config.identity, time);
        dtls.set_active(true);
        dtls.handle_timeout(time).unwrap();
        let epoch = server.dtls.epoch;
        Self { address, dtls, epoch, timer: server.now, is_open: false, got: Vec::new() }
    }

    fn send(&mut self, datagram: &[u8]) {
        assert_eq!(self.dtls.send_application_data(datagram).unwrap(), datagram.len());
    }

    fn take(&mut self, datagram: &[u8]) {
        self.dtls.handle_packet(datagram).unwrap();
    }

    fn said(&mut self) -> Vec<Vec<u8>> {
        let mut buf = vec![0; RECORD_BYTES_MAX];
        let mut said = Vec::new();
        loop {
            match self.dtls.poll_output(&mut buf) {
                Output::Packet(datagram) => said.push(datagram.to_vec()),
                Output::Connected => self.is_open = true,
                Output::ApplicationData(datagram) => self.got.push(datagram.to_vec()),
                Output::Timeout(at) => {
                    self.timer = Instant::from_nanos((at - self.epoch).as_nanos() as u64);
                    return said;
                }
                _ => {}
            }
        }
    }
}

fn config() -> DtlsConfig {
    static CONFIG: std::sync::LazyLock<DtlsConfig> = std::sync::LazyLock::new(|| {
        let made = development_certificate(&["localhost".to_owned()], Duration::from_secs(1_800_000_000));
        let made = made.unwrap();
        DtlsConfig::from_pem(made.cert_pem.as_bytes(), made.key_pem.as_bytes()).unwrap()
    });
    CONFIG.clone()
}

fn address(number: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4((0x0A00_0000 + (number << 8)).into()), 4_000)
}

/// The client's hello with the cookie, unless `server` is asked for none.
fn hello_with_cookie(server: &mut Server, client: &mut Client) -> Vec<u8> {
    let hello = client.said().remove(0);
    let (to, answer) = server.take(client.address, &hello).remove(0);
    assert_eq!(to, client.address);
    client.take(&answer);
    client.said().remove(0)
}

/// Five clients over links that lose, repeat and swap; the server welcomes each CONNECT. A client
/// that gives up, as dimpl's do after some resends, starts again from the same address.
#[test]
fn handshakes_survive_lossy_links() {
    const CLIENTS: u32 = 5;
    const SEEDS: u64 = 40;
    let mut restarts = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let mut server = Server::new(true);
        let mut clients: Vec<_> = (0..CLIENTS).map(|number| Client::new(address(number), &server)).collect();
        // Arrival, client, direction, content.
        let mut put = |flying: &mut Vec<_>, now: Instant, client: SocketAddr, inward, datagram: Vec<u8>| {
            for _ in 0..if rng.chance(0.1) { 2 } else { 1 } {
                if !rng.chance(0.1) {
                    let delay = Duration::from_micros(rng.range(5_000..60_000));
                    flying.push((now + delay, client, inward, datagram.clone()));
                }
            }
        };
        let mut flying = Vec::new();
        let mut step = 0_u32;
        while clients.iter().any(|client| client.got.is_empty()) {
            step += 1;
            assert!(server.now < Instant::from_millis(120_000), "seed {seed}");
            server.now += Duration::from_millis(1);
            let now = server.now;
            for (to, datagram) in server.advance(Duration::ZERO) {
                put(&mut flying, now, to, false, datagram);
            }
            for client in &mut clients {
                if client.timer <= now && client.dtls.handle_timeout(server.dtls.time(now)).is_err() {
                    restarts += 1;
                    *client = Client::new(client.address, &server);
                }
                // Once the handshake is over: as often as ENet repeats a CONNECT.
                if client.is_open && step.is_multiple_of(100) {
                    client.send(CONNECT);
                }
                for datagram in client.said() {
                    put(&mut flying, now, client.address, true, datagram);
                }
            }
            let due: Vec<_> = flying.extract_if(.., |(at, ..)| *at <= now).collect();
            for (_, address, inward, datagram) in due {
                if inward {
                    for (to, answer) in server.take(address, &datagram) {
                        put(&mut flying, now, to, false, answer);
                    }
                    for (from, datagram) in std::mem::take(&mut server.inside.got) {
                        assert_eq!(datagram, CONNECT);
                        for sealed in server.seal(from, b"welcome") {
                            put(&mut flying, now, from, false, sealed);
                        }
                    }
                } else {
                    assert!(hello::is_record(&datagram), "nothing leaves in the clear");
                    let client = clients.iter_mut().find(|client| client.address == address).unwrap();
                    // The last words of an association that is over confuse the next.
                    if client.dtls.handle_packet(&datagram).is_err() {
                        restarts += 1;
                        *client = Client::new(address, &server);
                    }
                }
            }
        }
        assert!(clients.iter().flat_map(|client| &client.got).all(|got| got == b"welcome"));
        let stats = server.dtls.stats();
        assert!(stats.completed >= CLIENTS.into() && stats.failed <= restarts, "seed {seed}: {stats:?}");
    }
    // With a loss of a tenth each way.
    assert!(restarts <= SEEDS * u64::from(CLIENTS) / 20, "{restarts} restarts");
}

#[test]
fn strangers_leave_no_trace_and_get_no_more_than_they_send() {
    let mut server = Server::new(true);
    let hello = Client::new(address(0), &server).said().remove(0);
    let mut longest = 0;
    let mut ask = |server: &mut Server, number| {
        server.dtls.handle_datagram(server.now, address(number), Via(0), &hello, &mut server.inside);
        server.dtls.drain(|_, answer| longest = longest.max(answer.len()));
    };
    ask(&mut server, 0);
    let allocated = allocation_counter::measure(|| (1..2_000).for_each(|number| ask(&mut server, number)));
    assert_eq!(allocated.count_total, 0);
    assert_eq!(longest, hello::ANSWER_BYTES);
    assert!(longest <= hello::first(&[0; COOKIE_BYTES]).len(), "the shortest hello there is");
    assert_eq!(server.dtls.stats(), DtlsStats { hellos: 2_000, ..DtlsStats::default() });
    assert_eq!(server.dtls.next_timeout(), None);
}

#[test]
fn a_cookie_is_good_for_one_address_and_hello_and_not_for_ever() {
    let mut server = Server::new(true);
    let mut client = Client::new(address(1), &server);
    let hello = hello_with_cookie(&mut server, &mut client);
    let mut other = hello.clone();
    other[27] ^= 1;
    let begun = |server: &mut Server, from, hello: &[u8]| {
        let before = server.dtls.stats().begun;
        server.take(from, hello);
        server.dtls.stats().begun - before
    };
    assert_eq!(begun(&mut server, address(2), &hello), 0);
    assert_eq!(begun(&mut server, SocketAddr::new(address(1).ip(), 1), &hello), 0);
    assert_eq!(begun(&mut server, address(1), &other), 0);
    server.now = Instant::from_millis(59_000);
    assert_eq!(begun(&mut server, address(1), &hello), 1);
    let mut late = Server::new(true);
    late.now = Instant::from_millis(61_000);
    assert_eq!(begun(&mut late, address(1), &hello), 0);
}

#[test]
fn the_first_datagram_decides_for_its_address() {
    let mut server = Server::new(true);
    // A plain peer, one of whose datagrams begins like a record.
    let plain = address(1);
    server.take(plain, CONNECT);
    let like_a_record = [&[22, 0xFE, 0xFD][..], &[0; 40]].concat();
    server.take(plain, &like_a_record);
    assert_eq!(server.inside.got, [(plain, CONNECT.to_vec()), (plain, like_a_record)]);
    assert_eq!(server.seal(plain, b"in the clear"), [b"in the clear".to_vec()]);
    // A client with DTLS, as whom somebody sends in the clear.
    let mut client = server.connected(address(2));
    server.inside.got.clear();
    server.take(address(2), b"forged");
    assert_eq!(server.dtls.stats().dropped_plain, 1);
    let sealed = server.seal(address(2), b"secret");
    assert!(hello::is_record(&sealed[0]) && !sealed[0].windows(6).any(|window| window == b"secret"));
    client.take(&sealed[0]);
    client.said();
    assert_eq!((server.inside.got, client.got), (vec![], vec![b"secret".to_vec()]));
}

#[test]
fn without_plain_enet_only_dtls_gets_through() {
    let mut server = Server::new(false);
    server.take(address(1), CONNECT);
    assert_eq!((server.inside.got.len(), server.dtls.stats().dropped_plain), (0, 1));
    assert!(server.seal(address(1), b"in the clear").is_empty());
    server.connected(address(1));
}

#[test]
fn nothing_leaves_in_the_clear_after_an_association() {
    let mut server = Server::new(true);
    let mut client = server.connected(address(1));
    client.dtls.close().unwrap();
    server.talk(&mut client);
    assert!(server.seal(address(1), b"to a peer").is_empty());
    server.advance(3 * LEASE);
    assert!(server.seal(address(1), b"to a peer").is_empty(), "ENet still has the peer");
    server.inside.peers.clear();
    server.advance(LEASE);
    assert_eq!(server.dtls.stats().associations, 0);
}

#[test]
fn associations_last_as_long_as_their_peers() {
    let mut server = Server::new(true);
    let mut client = server.connected(address(1));
    let mut idle = Client::new(address(2), &server);
    server.talk(&mut idle);
    for _ in 0..10 {
        server.advance(LEASE);
    }
    assert_eq!((server.dtls.stats().associations, server.dtls.stats().expired), (1, 1));
    assert_eq!(server.seal(address(1), b"still").len(), 1);
    server.inside.peers.clear();
    let said = server.advance(LEASE);
    assert_eq!(server.dtls.stats().associations, 0);
    // With a word to the client.
    client.take(&said[0].1);
    client.said();
    assert!(client.dtls.is_closing() || client.dtls.is_closed());
}

#[test]
fn a_client_that_starts_again_replaces_its_association() {
    let mut server = Server::new(true);
    let mut before = server.connected(address(1));
    let mut after = Client::new(address(1), &server);
    server.talk(&mut after);
    assert!(after.is_open);
    // It may be another client, so the peer of the first one ends.
    assert!(server.inside.peers.is_empty());
    after.send(CONNECT);
    server.talk(&mut after);
    server.inside.got.clear();
    before.send(b"from the past");
    let dropped = server.dtls.stats().dropped;
    server.talk(&mut before);
    assert_eq!((server.inside.got.len(), server.dtls.stats().dropped > dropped), (0, false));
    after.send(b"now");
    server.talk(&mut after);
    assert_eq!(server.inside.got, [(address(1), b"now".to_vec())]);
    assert_eq!(server.dtls.stats().associations, 1);
}

/// A datagram made of those seen: bytes changed, header fields at their limits, cut off,
/// or with the record of another behind it.
fn changed(seen: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let pick = |rng: &mut Rng| seen[rng.below(seen.len() as u64) as usize].clone();
    let mut datagram = pick(rng);
    for _ in 0..rng.below(4) {
        let at = rng.below(datagram.len() as u64) as usize;
        datagram[at] = rng.next_u32() as u8;
    }
    for _ in 0..rng.below(3) {
        // Epoch, number and length of the record; length, number, offset and part of the message.
        let (at, len) = [(3, 2), (5, 6), (11, 2), (14, 3), (17, 2), (19, 3), (22, 3)][rng.below(7) as usize];
        let value = [0, 1, 2, 255, 0xFFFF, 0xFF_FFFF, datagram.len() as u64 - 13][rng.below(7) as usize];
        if let Some(field) = datagram.get_mut(at..at + len) {
            field.copy_from_slice(&value.to_be_bytes()[8 - len..]);
        }
    }
    match rng.below(6) {
        0 => datagram.truncate(rng.range(1..datagram.len() as u64 + 1) as usize),
        1 => datagram.extend(pick(rng)),
        2 => datagram = [pick(rng), datagram].concat(),
        _ => {}
    }
    datagram
}

/// Every datagram of a handshake, changed at random, as a stranger and in the client's name.
/// `THRONG_DTLS_SEEDS=<n>` plays more of them.
#[test]
#[allow(clippy::disallowed_methods, reason = "seeds from the environment")]
fn garbage_ends_no_open_association() {
    let seeds = std::env::var("THRONG_DTLS_SEEDS").map_or(20, |text| text.parse().expect("a number"));
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let mut server = Server::new(true);
        let mut friend = server.connected(address(1));
        let mut seen = Vec::new();
        for number in 2..12 {
            let mut victim = Client::new(address(number), &server);
            for _ in 0..6 {
                for datagram in victim.said() {
                    seen.push(datagram.clone());
                    for _ in 0..20 {
                        let garbage = changed(&seen, &mut rng);
                        let as_whom = [number, 1, 1_000].map(address);
                        server.take(as_whom[rng.below(3) as usize], &garbage);
                    }
                    for (_, answer) in server.take(victim.address, &datagram) {
                        // Forgers can spoil a handshake, not what comes after.
                        let _ = victim.dtls.handle_packet(&answer);
                    }
                }
            }
            server.advance(Duration::from_millis(500));
        }
        server.inside.got.clear();
        friend.send(b"still here");
        server.talk(&mut friend);
        assert!(server.inside.got.contains(&(address(1), b"still here".to_vec())), "seed {seed}");
        assert!(server.dtls.stats().dropped > 0);
    }
}

/// Records that look right to anyone without the keys, in a client's name.
#[test]
fn an_open_association_outlasts_forged_records() {
    let mut rng = Rng::new(3);
    let mut server = Server::new(true);
    let mut friend = server.connected(address(1));
    let (mut asked, mut answered) = (0, 0);
    for _ in 0..20_000 {
        let mut forged = Vec::new();
        for _ in 0..rng.range(1..5) {
            forged.extend(record(&mut rng));
        }
        asked += forged.len();
        answered += server.take(friend.address, &forged).iter().map(|(_, said)| said.len()).sum::<usize>();
    }
    assert!(answered < asked, "{answered} bytes for {asked}");
    server.inside.got.clear();
    friend.send(b"still here");
    server.talk(&mut friend);
    assert_eq!(server.inside.got, [(address(1), b"still here".to_vec())]);
    let sealed = server.seal(address(1), b"welcome");
    friend.take(&sealed[0]);
    friend.said();
    assert_eq!(friend.got, [b"welcome".to_vec()]);
}

/// A record of any kind, in the first epochs, with a message's header in half of the cases.
fn record(rng: &mut Rng) -> Vec<u8> {
    let mut content = vec![0; rng.range(0..120) as usize];
    rng.fill(&mut content);
    if rng.chance(0.5) && content.len() >= 12 {
        let len = content.len() as u8 - 12;
        let kind = [0, 1, 2, 3, 11, 12, 14, 16, 20][rng.below(9) as usize];
        content[..12].copy_from_slice(&[kind, 0, 0, len, 0, rng.below(8) as u8, 0, 0, 0, 0, 0, len]);
    }
    let mut record = vec![20 + rng.below(6) as u8, 0xFE, 0xFD, 0, rng.below(3) as u8];
    record.extend_from_slice(&rng.below(1 << 20).to_be_bytes()[2..]);
    record.extend_from_slice(&(content.len() as u16).to_be_bytes());
    record.extend(content);
    record
}

/// Short datagrams with the sender's address forged ask a server to repeat its part of a handshake.
#[test]
fn a_handshake_in_progress_repeats_little() {
    let mut server = Server::new(true);
    let mut client = Client::new(address(1), &server);
    let hello = hello_with_cookie(&mut server, &mut client);
    let first: usize = server.take(client.address, &hello).iter().map(|(_, said)| said.len()).sum();
    let mut repeated = 0;
    // Headers of an empty ClientHello, which are no hello to answer with a cookie.
    let mut ask = vec![22, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for number in 0..9_000_u16 {
        ask[9..11].copy_from_slice(&number.to_be_bytes());
        let said = server.take(client.address, &ask).into_iter();
        repeated +=
            said.chain(server.advance(Duration::from_millis(1))).map(|(_, said)| said.len()).sum::<usize>();
    }
    assert!(first > 0 && repeated <= 8 * first, "{repeated} bytes after {first}");
}

/// A client that has proven its address sends the end of its handshake only, in long datagrams.
#[test]
fn a_handshake_out_of_order_takes_little_memory() {
    let mut server = Server::new(true);
    let mut client = Client::new(address(1), &server);
    let hello = hello_with_cookie(&mut server, &mut client);
    let (mut kept, mut most) = (0, 0);
    let mut take = |server: &mut Server, datagram: &[u8]| {
        let used = allocation_counter::measure(|| {
            server.dtls.handle_datagram(server.now, address(1), Via(0), datagram, &mut server.inside);
        });
        kept += used.bytes_current;
        most = most.max(kept);
        server.said();
    };
    take(&mut server, &hello);
    for number in 3..60_u8 {
        for len in [60_000_u16, 4_000, 2_000] {
            let mut datagram = vec![22, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, number];
            datagram.extend_from_slice(&len.to_be_bytes());
            let [high, low] = (len - 12).to_be_bytes();
            datagram.extend_from_slice(&[16, 0, high, low, 0, number, 0, 0, 0, 0, high, low]);
            datagram.resize(13 + usize::from(len), 7);
            take(&mut server, &datagram);
        }
    }
    assert!(most < 96 * 1024, "{most} bytes for one handshake");
}

#[test]
fn a_flood_of_handshakes_is_bounded_and_leaves_room_for_others() {
    let mut server = Server::new(true);
    let (mut begun, start) = (0, server.now);
    // Clients that prove their address and say no more, from one network; a friend now and then.
    for number in 0..3_000_u32 {
        let from =
            SocketAddr::new(IpAddr::V4((0xC000_0200 + number % 250).into()), (number / 250) as u16 + 1);
        let mut client = Client::new(from, &server);
        let hello = hello_with_cookie(&mut server, &mut client);
        server.take(from, &hello);
        assert!(server.dtls.young.len() <= YOUNG_PER_BLOCK);
        if number % 300 == 0 {
            begun += 1;
            server.connected(address(number));
        }
        server.advance(Duration::from_millis(1));
    }
    let stats = server.dtls.stats();
    let seconds = (server.now.since(start).as_secs() + 1) as u32;
    assert!(stats.begun - begun <= u64::from(STARTS_PER_BLOCK * (seconds + 1)), "{stats:?}");
    assert!(stats.limited > 2_000);
    // All of them go; the friends stay.
    server.advance(LEASE);
    assert_eq!(server.dtls.stats().associations as u64, begun);
    assert!(server.dtls.young.is_empty());
}

#[test]
fn the_oldest_handshake_gives_way_when_all_places_are_taken() {
    let mut server = Server::new(true);
    for number in 0..YOUNG_MAX as u32 + 10 {
        let mut client = Client::new(address(number), &server);
        let hello = hello_with_cookie(&mut server, &mut client);
        server.take(client.address, &hello);
        server.advance(Duration::from_millis(3));
    }
    assert_eq!((server.dtls.young.len(), server.dtls.stats().expired), (YOUNG_MAX, 10));
    assert_eq!(server.dtls.stats().associations, YOUNG_MAX, "those that gave way are not there");
    assert_eq!(server.dtls.young[0], address(10));
}

/// Clients with an address can make the server keep little, before and after they are peers.
#[test]
fn an_association_takes_little_memory() {
    const CLIENTS: i64 = 50;
    let mut server = Server::new(true);
    let mut kept = 0;
    let mut take = |server: &mut Server, client: &mut Client, datagram: &[u8]| {
        let mut answers = Vec::new();
        kept += allocation_counter::measure(|| {
            server.dtls.handle_datagram(server.now, client.address, Via(0), datagram, &mut server.inside);
        })
        .bytes_current;
        server.dtls.drain(|_, answer| answers.push(answer.to_vec()));
        answers.iter().for_each(|answer| client.take(answer));
        kept / CLIENTS
    };
    let mut clients: Vec<_> =
        (0..CLIENTS as u32).map(|number| Client::new(address(number), &server)).collect();
    let mut each = 0;
    for client in &mut clients {
        let hello = hello_with_cookie(&mut server, client);
        each = take(&mut server, client, &hello);
    }
    assert!((1..16 * 1024).contains(&each), "{each} bytes for a handshake");
    for client in &mut clients {
        for datagram in client.said() {
            take(&mut server, client, &datagram);
        }
        client.said();
        client.send(CONNECT);
        for datagram in client.said() {
            each = take(&mut server, client, &datagram);
        }
    }
    assert_eq!((server.dtls.stats().completed, server.dtls.young.len()), (CLIENTS as u64, 0));
    assert!(each < 32 * 1024, "{each} bytes for a peer");
}

#[test]
fn arbitrary_bytes_are_no_hello() {
    let mut rng = Rng::new(1);
    let real = Client::new(address(0), &Server::new(true)).said().remove(0);
    assert!(Hello::parse(&real).is_some_and(|hello| hello.cookie.is_empty() && hello.number == 0));
    assert_eq!(Hello::parse(&hello::first(&[7; COOKIE_BYTES])).unwrap().random, [7; COOKIE_BYTES]);
    for len in 0..real.len() {
        assert_eq!(Hello::parse(&real[..len]), None);
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        assert_eq!(Hello::parse(&bytes), None);
    }
}

#[test]
fn a_certificate_needs_an_elliptic_key() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let certificate = rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap();
    let made = DtlsConfig::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
    assert!(matches!(made, Err(TlsConfigError::NotElliptic)));
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let certificate = rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap();
    DtlsConfig::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
}
