//! The KCP core against an independent implementation, and against itself, over a virtual link with
//! faults.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use throng_net::kcp::{Kcp, MSS, MTU, Profile, Segments, Side};
use throng_stdx::{Instant, Rng};

/// One end of a session, whoever wrote it.
trait End {
    fn step(&mut self, now: Instant);
    fn input(&mut self, now: Instant, datagram: &[u8]);
    fn send(&mut self, bytes: &[u8]);
    /// Segments that wait or are in flight.
    fn backlog(&self) -> usize;
    /// Datagrams to send.
    fn output(&mut self) -> Vec<Vec<u8>>;
    /// Everything received so far.
    fn received(&self) -> &[u8];
}

struct Ours {
    kcp: Kcp,
    out: Vec<Vec<u8>>,
    received: Vec<u8>,
}

impl Ours {
    fn new(profile: Profile, side: Side, seed: u32) -> Self {
        Self {
            kcp: Kcp::new(CONV, profile, side, seed, Instant::ZERO),
            out: Vec::new(),
            received: Vec::new(),
        }
    }
}

impl End for Ours {
    fn step(&mut self, now: Instant) {
        // Only when due: a wrong `next_timeout` shows as a stall.
        if self.kcp.next_timeout().is_some_and(|at| at <= now) {
            self.kcp.handle_timeout(now);
        }
        let mut datagram = Vec::new();
        while self.kcp.poll_transmit(now, &mut datagram) {
            assert!(!datagram.is_empty() && datagram.len() <= MTU);
            self.out.push(datagram.clone());
        }
        assert!(self.kcp.next_timeout().is_none_or(|at| at > now), "a timeout that never passes");
    }
    fn input(&mut self, now: Instant, datagram: &[u8]) {
        self.kcp.handle_datagram(now, datagram).unwrap();
        while let Some(piece) = self.kcp.poll_received() {
            self.received.extend_from_slice(&piece.bytes);
        }
    }
    fn send(&mut self, bytes: &[u8]) {
        self.kcp.send(bytes);
    }
    fn backlog(&self) -> usize {
        self.kcp.unsent_segments() + self.kcp.segments_in_flight()
    }
    fn output(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.out)
    }
    fn received(&self) -> &[u8] {
        &self.received
    }
}

#[derive(Clone, Default)]
struct Datagrams(Rc<RefCell<Vec<Vec<u8>>>>);

impl io::Write for Datagrams {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().push(bytes.to_vec());
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Theirs {
    kcp: kcp::Kcp<Datagrams>,
    out: Datagrams,
    received: Vec<u8>,
}

impl Theirs {
    fn new(profile: Profile) -> Self {
        let out = Datagrams::default();
        let mut kcp = kcp::Kcp::new(CONV, out.clone());
        kcp.set_nodelay(
            profile.no_delay,
            profile.interval.as_millis() as i32,
            profile.fast_resend as i32,
            !profile.congestion_window,
        );
        kcp.set_wndsize(profile.window, profile.window);
        kcp.update(0).unwrap();
        Self { kcp, out, received: Vec::new() }
    }
}

impl End for Theirs {
    fn step(&mut self, now: Instant) {
        self.kcp.update(now.as_millis() as u32).unwrap();
        let mut buf = [0; 2000];
        while let Ok(count) = self.kcp.recv(&mut buf) {
            self.received.extend_from_slice(&buf[..count]);
        }
    }
    fn input(&mut self, _: Instant, datagram: &[u8]) {
        self.kcp.input(datagram).unwrap();
    }
    fn send(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(MSS) {
            self.kcp.send(part).unwrap();
        }
    }
    fn backlog(&self) -> usize {
        self.kcp.wait_snd()
    }
    fn output(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.out.0.borrow_mut())
    }
    fn received(&self) -> &[u8] {
        &self.received
    }
}

const CONV: u32 = 0x1234_5678;

/// Conditions of a link.
#[derive(Clone, Copy, Debug)]
struct Link {
    loss: f64,
    duplication: f64,
    delay_ms: u64,
    jitter_ms: u64,
}

const CLEAN: Link = Link { loss: 0.0, duplication: 0.0, delay_ms: 10, jitter_ms: 0 };
const ROUGH: Link = Link { loss: 0.1, duplication: 0.05, delay_ms: 20, jitter_ms: 30 };
const AWFUL: Link = Link { loss: 0.3, duplication: 0.1, delay_ms: 50, jitter_ms: 100 };

/// Lets both ends send `bytes` each in pieces of random size; returns the virtual time until all
/// has arrived.
fn exchange(a: &mut dyn End, b: &mut dyn End, link: Link, bytes: usize, seed: u64) -> Duration {
    let mut rng = Rng::new(seed);
    let payloads: Vec<Vec<u8>> = (0..2)
        .map(|_| {
            let mut payload = vec![0; bytes];
            rng.fill(&mut payload);
            payload
        })
        .collect();
    let mut sent = [0, 0];
    // Due time and a counter, to the receiving end and the datagram.
    let mut in_flight: BTreeMap<(u64, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let mut counter = 0;
    for ms in 0..600_000u64 {
        let now = Instant::from_millis(ms);
        let ends: [&mut dyn End; 2] = [&mut *a, &mut *b];
        for (index, end) in ends.into_iter().enumerate() {
            while sent[index] < bytes && end.backlog() < 64 {
                let count = (rng.below(4000) as usize + 1).min(bytes - sent[index]);
                end.send(&payloads[index][sent[index]..sent[index] + count]);
                sent[index] += count;
            }
            while let Some(entry) = in_flight.first_entry()
                && entry.key().0 <= ms
            {
                if entry.get().0 != index {
                    break;
                }
                end.input(now, &entry.remove().1);
            }
            end.step(now);
            for datagram in end.output() {
                let copies = 1 + usize::from(rng.chance(link.duplication));
                for _ in 0..copies {
                    if rng.chance(link.loss) {
                        continue;
                    }
                    let due = ms + 1 + link.delay_ms + rng.below(link.jitter_ms + 1);
                    counter += 1;
                    in_flight.insert((due, counter), (1 - index, datagram.clone()));
                }
            }
            assert!(end.received() == &payloads[1 - index][..end.received().len()], "bytes differ");
        }
        if a.received().len() == bytes && b.received().len() == bytes && a.backlog() + b.backlog() == 0 {
            return Duration::from_millis(ms);
        }
    }
    panic!(
        "not done after ten minutes: {} and {} of {bytes} bytes, backlogs {} and {}",
        a.received().len(),
        b.received().len(),
        a.backlog(),
        b.backlog()
    );
}

#[test]
fn both_implementations_understand_each_other_over_any_link() {
    for (profile, bytes) in [(Profile::REFERENCE, 100_000), (Profile::GAME, 300_000)] {
        for link in [CLEAN, ROUGH, AWFUL] {
            for seed in 0..6 {
                let side = if seed % 2 == 0 { Side::Accepts } else { Side::Connects };
                let mut ours = Ours::new(profile, side, seed as u32 * 0x1111_1111);
                let mut theirs = Theirs::new(profile);
                exchange(&mut ours, &mut theirs, link, bytes, seed);
                let (mut ours, mut theirs) = (Ours::new(profile, side, 77), Theirs::new(profile));
                exchange(&mut theirs, &mut ours, link, bytes, seed + 100);
            }
        }
    }
}

#[test]
fn profiles_may_differ_between_the_ends() {
    for (left, right) in [(Profile::REFERENCE, Profile::GAME), (Profile::GAME, Profile::REFERENCE)] {
        let mut ours = Ours::new(left, Side::Accepts, 5);
        exchange(&mut ours, &mut Theirs::new(right), ROUGH, 100_000, 9);
        let (mut a, mut b) = (Ours::new(left, Side::Connects, 5), Ours::new(right, Side::Accepts, 6));
        exchange(&mut a, &mut b, ROUGH, 100_000, 10);
    }
}

#[test]
fn the_game_profile_is_quick_over_a_clean_link() {
    let time = |profile| {
        let mut a = Ours::new(profile, Side::Connects, 1);
        let mut b = Ours::new(profile, Side::Accepts, 2);
        exchange(&mut a, &mut b, CLEAN, 1000, 3)
    };
    // One way, and the acknowledgement on the grid back.
    assert!(time(Profile::GAME) <= Duration::from_millis(45), "{:?}", time(Profile::GAME));
    assert!(time(Profile::REFERENCE) <= Duration::from_millis(140), "{:?}", time(Profile::REFERENCE));
}

#[test]
fn a_streak_of_losses_does_not_silence_a_session_for_minutes() {
    // With waits that double up to a minute this one stood still for ten.
    let seed = 18_127_958_172_257_126_569_u64;
    let link = Link {
        loss: 0.372_378_610_629_087_06,
        duplication: 0.017_813_848_774_606_82,
        delay_ms: 153,
        jitter_ms: 71,
    };
    let mut a = Ours::new(Profile::REFERENCE, Side::Connects, seed as u32);
    let mut b = Ours::new(Profile::REFERENCE, Side::Accepts, (seed >> 32) as u32);
    exchange(&mut a, &mut b, link, 17_649, seed);
}

#[test]
fn an_idle_session_has_nothing_to_do() {
    let mut a = Ours::new(Profile::GAME, Side::Connects, 1);
    let mut b = Ours::new(Profile::GAME, Side::Accepts, 2);
    exchange(&mut a, &mut b, ROUGH, 50_000, 4);
    let later = Instant::from_millis(700_000);
    for end in [&mut a, &mut b] {
        end.step(later);
        end.output();
    }
    assert_eq!((a.kcp.next_timeout(), b.kcp.next_timeout()), (None, None));
}

/// Passes everything between two cores without faults until both are silent.
fn settle(a: &mut Kcp, b: &mut Kcp, now: Instant) {
    let mut datagram = Vec::new();
    loop {
        let mut silent = true;
        while a.poll_transmit(now, &mut datagram) {
            b.handle_datagram(now, &datagram).unwrap();
            silent = false;
        }
        while b.poll_transmit(now, &mut datagram) {
            a.handle_datagram(now, &datagram).unwrap();
            silent = false;
        }
        if silent {
            return;
        }
    }
}

fn pair(profile: Profile) -> (Kcp, Kcp) {
    let make = |side, seed| Kcp::new(CONV, profile, side, seed, Instant::ZERO);
    (make(Side::Connects, 3), make(Side::Accepts, 4))
}

#[test]
fn messages_keep_their_borders_with_both_implementations() {
    let (mut ours, mut theirs) = (Ours::new(Profile::GAME, Side::Connects, 1), Theirs::new(Profile::GAME));
    assert!(!ours.kcp.send_message(&vec![0; 129 * MSS]), "no window could hold it");
    for size in [0, 10, MSS, 5000] {
        assert!(ours.kcp.send_message(&vec![size as u8; size]));
    }
    let now = Instant::ZERO;
    ours.step(now);
    for datagram in ours.output() {
        theirs.kcp.input(&datagram).unwrap();
    }
    let mut buf = [1; 6000];
    for size in [0, 10, MSS, 5000] {
        assert_eq!(theirs.kcp.recv(&mut buf).unwrap(), size);
        assert!(buf[..size].iter().all(|&byte| byte == size as u8));
    }
    theirs.kcp.send(&[9; 3000]).unwrap();
    theirs.kcp.update(20).unwrap();
    for datagram in theirs.output() {
        ours.kcp.handle_datagram(now, &datagram).unwrap();
    }
    let parts: Vec<_> = std::iter::from_fn(|| ours.kcp.poll_received()).collect();
    assert_eq!(parts.iter().map(|part| part.fragments_left).collect::<Vec<_>>(), [2, 1, 0]);
    assert_eq!(parts.iter().map(|part| part.bytes.len()).sum::<usize>(), 3000);
}

#[test]
fn a_reader_that_stops_stops_the_sender_and_a_probe_finds_it_back() {
    let (mut sender, _) = pair(Profile::REFERENCE);
    let mut reader = Kcp::new(CONV, Profile::REFERENCE, Side::Connects, 8, Instant::ZERO);
    sender.send(&vec![7; 200 * MSS]);
    let mut now = Instant::ZERO;
    for _ in 0..200 {
        settle(&mut sender, &mut reader, now);
        now += Duration::from_millis(100);
        sender.handle_timeout(now);
        reader.handle_timeout(now);
    }
    // 32 segments wait for the application, which takes none; the window is closed.
    assert!(sender.unsent_segments() > 100);
    let mut taken = 0;
    while reader.poll_received().is_some() {
        taken += 1;
    }
    assert_eq!(taken, 32);
    // Its announcement is lost; the sender asks within seven seconds.
    let mut lost = Vec::new();
    while reader.poll_transmit(now, &mut lost) {}
    let at = sender.next_timeout().unwrap();
    assert!(at.since(now) <= Duration::from_secs(16), "asks after {:?}", at.since(now));
    while !sender.is_flushed() {
        now += Duration::from_millis(100);
        assert!(now < Instant::from_millis(200_000), "stalled");
        sender.handle_timeout(now);
        reader.handle_timeout(now);
        settle(&mut sender, &mut reader, now);
        while reader.poll_received().is_some() {
            taken += 1;
        }
    }
    settle(&mut sender, &mut reader, now);
    assert_eq!(taken, 200);
}

#[test]
fn a_vanished_peer_is_found_out() {
    for (profile, limit_s) in [(Profile::GAME, 60), (Profile::REFERENCE, 1500)] {
        let (mut kcp, _) = pair(profile);
        kcp.send(b"is anyone there");
        let mut datagram = Vec::new();
        let mut now = Instant::ZERO;
        let mut transmissions = 0;
        while !kcp.is_dead() {
            while kcp.poll_transmit(now, &mut datagram) {
                transmissions += 1;
            }
            now = kcp.next_timeout().unwrap();
            assert!(now < Instant::from_millis(limit_s * 1000), "{now:?}");
            kcp.handle_timeout(now);
        }
        assert!(transmissions <= 20, "{transmissions}");
    }
}

#[test]
fn nothing_is_amplified_before_the_address_has_proven_itself() {
    let (mut client, mut server) = pair(Profile::GAME);
    client.send(b"a question");
    let mut datagram = Vec::new();
    let mut now = Instant::ZERO;
    assert!(client.poll_transmit(now, &mut datagram));
    let question = datagram.clone();
    server.handle_datagram(now, &question).unwrap();
    server.send(&[1; 50_000]);
    // A forged acknowledgement of everything, without the right timestamps.
    let mut forged = Vec::new();
    for sn in 0..1u32 {
        let ack = throng_net::kcp::Segment {
            conv: CONV,
            command: 82,
            fragments_left: 0,
            window: 256,
            ts: 12345,
            sn,
            una: 0,
            payload: &[],
        };
        ack.write(&mut forged);
    }
    let mut bytes_in = question.len();
    let mut bytes_out = 0;
    for _ in 0..1000 {
        while server.poll_transmit(now, &mut datagram) {
            bytes_out += datagram.len();
        }
        assert!(bytes_out <= bytes_in, "{bytes_out} bytes out for {bytes_in} in");
        now += Duration::from_millis(50);
        server.handle_timeout(now);
        if server.handle_datagram(now, &forged).is_ok() {
            bytes_in += forged.len();
        }
    }
    assert!(!server.is_proven());
    assert!(server.stats().held_back > 0);
}

#[test]
fn a_real_peer_proves_itself_with_its_first_answer() {
    let (mut client, mut server) = pair(Profile::REFERENCE);
    // The sizes of a login: the answer with its acknowledgement would be longer than the request.
    client.send(&[1; 32]);
    let mut datagram = Vec::new();
    let mut now = Instant::ZERO;
    assert!(client.poll_transmit(now, &mut datagram));
    server.handle_datagram(now, &datagram).unwrap();
    server.send(&[2; 15]);
    assert!(server.poll_transmit(now, &mut datagram), "the answer goes out at once");
    client.handle_datagram(now, &datagram).unwrap();
    assert_eq!(client.poll_received().unwrap().bytes, [2; 15]);
    now += Duration::from_millis(100);
    client.handle_timeout(now);
    assert!(client.poll_transmit(now, &mut datagram));
    assert!(!server.is_proven());
    server.handle_datagram(now, &datagram).unwrap();
    assert!(server.is_proven());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_datagram_is_taken_or_refused(
        datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 1..20),
    ) {
        let (mut client, mut server) = pair(Profile::GAME);
        server.send(b"something in flight");
        client.send(b"hello");
        settle(&mut client, &mut server, Instant::ZERO);
        let mut out = Vec::new();
        for (i, bytes) in datagrams.iter().enumerate() {
            let now = Instant::from_millis(i as u64 * 37);
            // The core's own header in front makes most of them reach the segment handling.
            let mut datagram = CONV.to_le_bytes().to_vec();
            datagram.push(81 + bytes.first().map_or(0, |byte| byte % 4));
            datagram.extend_from_slice(bytes);
            if datagram.len() >= 24 {
                let len = (datagram.len() - 24) as u32;
                datagram[20..24].copy_from_slice(&len.to_le_bytes());
            }
            let _ = server.handle_datagram(now, &datagram);
            let _ = server.handle_datagram(now, bytes);
            for segment in Segments::new(bytes) {
                let _ = segment;
            }
            server.handle_timeout(now);
            while server.poll_transmit(now, &mut out) {
                prop_assert!(out.len() <= MTU);
            }
            while server.poll_received().is_some() {}
        }
    }

    #[test]
    fn any_link_delivers_once_and_in_order(
        loss in 0.0..0.4f64, duplication in 0.0..0.3f64, delay_ms in 0..200u64, jitter_ms in 0..200u64,
        seed: u64, game: bool, bytes in 0..30_000usize,
    ) {
        let profile = if game { Profile::GAME } else { Profile::REFERENCE };
        let mut a = Ours::new(profile, Side::Connects, seed as u32);
        let mut b = Ours::new(profile, Side::Accepts, (seed >> 32) as u32);
        exchange(&mut a, &mut b, Link { loss, duplication, delay_ms, jitter_ms }, bytes, seed);
    }
}
