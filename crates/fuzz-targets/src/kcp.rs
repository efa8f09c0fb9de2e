//! Targets for KCP: one end that receives anything, and two ends over a bad network.

use std::collections::VecDeque;
use std::time::Duration;

use throng_net::kcp::{Kcp, MTU, Profile, Side};
use throng_stdx::Instant;

/// Datagrams to one end of session 7. The first byte chooses side and profile; then come steps: a
/// byte of time, a byte of length and a datagram. An odd time also sends something.
///
/// Asserts that an end that was connected to sends no more bytes than it received until the peer's
/// address is proven, that datagrams fit the network, that no more waits for the application than
/// the window, and that time gets on.
pub fn kcp(input: &[u8]) {
    let [choice, steps @ ..] = input else { return };
    let side = if choice & 1 == 0 { Side::Accepts } else { Side::Connects };
    let profile = profile(choice >> 1);
    let mut now = Instant::ZERO;
    let mut end = Kcp::new(7, profile, side, 0x5EED, now);
    let (mut received, mut sent) = (0, 0);
    let mut rest = steps;
    while let [time, len, tail @ ..] = rest {
        let (datagram, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = tail;
        now += Duration::from_millis(u64::from(*time) * 4);
        if end.next_timeout().is_some_and(|at| at <= now) {
            end.handle_timeout(now);
        }
        if time & 1 == 1 && end.unsent_segments() < 64 {
            end.send(&steps[..steps.len().min(2_000)]);
        }
        received += datagram.len();
        // An error says what was wrong; what stood before it in the datagram counts.
        let _ = end.handle_datagram(now, datagram);
        sent += transmit(&mut end, now, |_| {});
        assert!(end.is_proven() || sent <= received, "{sent} bytes to an address that sent {received}");
        let mut pieces = 0;
        while end.poll_received().is_some() {
            pieces += 1;
        }
        assert!(pieces <= usize::from(profile.window), "{pieces} pieces waited");
        sent += transmit(&mut end, now, |_| {});
        // A driver that comes back at once when a timer is due must not do so for ever.
        let mut rounds = 0;
        while end.next_timeout().is_some_and(|at| at <= now) {
            end.handle_timeout(now);
            sent += transmit(&mut end, now, |_| {});
            rounds += 1;
            assert!(rounds < 8, "a timer is due for ever");
        }
    }
}

/// Two ends over a network that does what the input says; at the end the network heals.
///
/// Asserts that each end receives a prefix of what the other sent, and all of it once the network
/// has healed.
pub fn kcp_link(input: &[u8]) {
    let [choice, steps @ ..] = input else { return };
    let mut link = Link::new(profile(*choice), profile(choice >> 1));
    link.send(0, 1);
    for pair in steps.chunks_exact(2).take(400) {
        let (step, amount) = (pair[0], usize::from(pair[1]));
        let from = usize::from(step & 1);
        match step >> 1 & 7 {
            0 => link.send(from, amount * 5),
            1 | 2 => link.pass(Duration::from_millis(amount as u64)),
            3 => link.deliver(from, amount),
            4 => drop(link.wires[from].pop_front()),
            5 => link.duplicate(from),
            6 => link.wires[from].rotate_left(usize::from(!link.wires[from].is_empty())),
            _ => link.damage(from, amount),
        }
    }
    // Healed: everything arrives, in order. Twenty losses of one segment end a session; they may
    // have happened already.
    for _ in 0..20_000 {
        if link.ends.iter().all(Kcp::is_flushed) || link.ends.iter().any(Kcp::is_dead) {
            break;
        }
        link.deliver(0, usize::MAX);
        link.deliver(1, usize::MAX);
        let due = link.ends.iter().filter_map(Kcp::next_timeout).min();
        link.pass(due.map_or(Duration::ZERO, |at| at.since(link.now)).max(Duration::from_millis(1)));
    }
    if !link.ends.iter().any(Kcp::is_dead) {
        assert_eq!(link.arrived, link.sent, "not everything arrived");
    }
}

/// Two ends and the datagrams between them. Index 0 connected to index 1.
struct Link {
    now: Instant,
    ends: [Kcp; 2],
    /// Datagrams on their way from each end.
    wires: [VecDeque<Vec<u8>>; 2],
    /// Bytes that each end sent, and of those the bytes that arrived. The n-th byte is a function
    /// of n.
    sent: [usize; 2],
    arrived: [usize; 2],
}

impl Link {
    fn new(connects: Profile, accepts: Profile) -> Self {
        let now = Instant::ZERO;
        Self {
            now,
            ends: [
                Kcp::new(7, connects, Side::Connects, 1, now),
                Kcp::new(7, accepts, Side::Accepts, u32::MAX - 50, now),
            ],
            wires: Default::default(),
            sent: [0; 2],
            arrived: [0; 2],
        }
    }

    fn send(&mut self, from: usize, len: usize) {
        if self.ends[from].unsent_segments() < 64 {
            let start = self.sent[from];
            let bytes: Vec<u8> = (start..start + len).map(byte_at).collect();
            self.ends[from].send(&bytes);
            self.sent[from] += len;
        }
        self.flush(from);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for end in 0..2 {
            if self.ends[end].next_timeout().is_some_and(|at| at <= self.now) {
                self.ends[end].handle_timeout(self.now);
            }
            self.flush(end);
        }
    }

    fn deliver(&mut self, from: usize, count: usize) {
        let to = 1 - from;
        for _ in 0..count {
            let Some(datagram) = self.wires[from].pop_front() else { break };
            // Damage that lies in the header may make it a foreign datagram.
            let _ = self.ends[to].handle_datagram(self.now, &datagram);
            while let Some(piece) = self.ends[to].poll_received() {
                for byte in piece.bytes {
                    assert!(self.arrived[from] < self.sent[from], "more arrived than was sent");
                    assert_eq!(byte, byte_at(self.arrived[from]), "byte {} is wrong", self.arrived[from]);
                    self.arrived[from] += 1;
                }
            }
            self.flush(to);
        }
    }

    fn duplicate(&mut self, from: usize) {
        if let (Some(first), true) = (self.wires[from].front().cloned(), self.wires[from].len() < 256) {
            self.wires[from].push_back(first);
        }
    }

    /// Makes the first datagram one of another session: the checksum below KCP lets nothing worse
    /// through.
    fn damage(&mut self, from: usize, amount: usize) {
        if let Some(first) = self.wires[from].front_mut() {
            first[amount % 4] ^= 0x55;
        }
    }

    fn flush(&mut self, from: usize) {
        let Self { now, ends, wires, .. } = self;
        transmit(&mut ends[from], *now, |datagram| wires[from].push_back(datagram.to_vec()));
    }
}

fn byte_at(position: usize) -> u8 {
    (position ^ position >> 8).wrapping_mul(31) as u8
}

fn profile(choice: u8) -> Profile {
    match choice & 3 {
        0 => Profile::REFERENCE,
        1 => Profile::GAME,
        2 => Profile { window: 1, ..Profile::GAME },
        _ => Profile { window: 5, ..Profile::REFERENCE },
    }
}

/// Takes all datagrams that an end wants to send; returns their bytes.
fn transmit(end: &mut Kcp, now: Instant, mut on_datagram: impl FnMut(&[u8])) -> usize {
    let (mut bytes, mut count) = (0, 0);
    let mut datagram = Vec::new();
    while end.poll_transmit(now, &mut datagram) {
        assert!(!datagram.is_empty() && datagram.len() <= MTU);
        bytes += datagram.len();
        count += 1;
        assert!(count < 10_000, "an end never stops sending");
        on_datagram(&datagram);
    }
    bytes
}
