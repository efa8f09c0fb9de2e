//! Virtual KCP connections: both ends of the production KCP core, and a network that loses, repeats
//! and reorders datagrams between them.

use std::collections::BTreeMap;
use std::time::Duration;

use throng_net::kcp::{Kcp, MSS, Profile, Side};
use throng_stdx::{Instant, Rng};

use crate::link::LinkProfile;

/// A direction of a connection, as an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the peer to the gateway.
    Up = 0,
    /// From the gateway to the peer.
    Down = 1,
}

/// A KCP session between a peer (which connects) and the gateway, with the network between them.
#[derive(Debug)]
pub(crate) struct KcpLink {
    /// Sets the conditions of the network from now on. `window_bytes` and `chunk_bytes_max` mean
    /// nothing here; a datagram is lost with chance `loss`, and repeated with the same chance.
    pub(crate) profile: LinkProfile,
    /// By the direction in which they send.
    ends: [Kcp; 2],
    wires: [Wire; 2],
    /// Bytes that have arrived, by direction.
    arrived: [Vec<u8>; 2],
}

#[derive(Debug, Default)]
struct Wire {
    /// By arrival; the number keeps datagrams of the same time apart.
    datagrams: BTreeMap<(Instant, u64), Vec<u8>>,
    next_number: u64,
    line_free: Instant,
    stalled_until: Instant,
}

/// Segments waiting for their first transmission above which an end accepts no more: the driver's
/// limit per session.
const UNSENT_SEGMENTS_MAX: usize = 64;

impl KcpLink {
    pub(crate) fn new(profile: LinkProfile, tuning: Profile, rng: &mut Rng, now: Instant) -> Self {
        let conv = rng.next_u32();
        Self {
            profile,
            ends: [
                Kcp::new(conv, tuning, Side::Connects, rng.next_u32(), now),
                Kcp::new(conv, tuning, Side::Accepts, rng.next_u32(), now),
            ],
            wires: Default::default(),
            arrived: Default::default(),
        }
    }

    /// Bytes that an end takes now.
    pub(crate) fn room(&self, direction: Direction) -> usize {
        UNSENT_SEGMENTS_MAX.saturating_sub(self.ends[direction as usize].unsent_segments()) * MSS
    }

    /// Takes as much of `bytes` as there is room for and returns how much.
    pub(crate) fn push(&mut self, now: Instant, rng: &mut Rng, direction: Direction, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room(direction));
        self.ends[direction as usize].send(&bytes[..taken]);
        self.transmit(now, rng, direction);
        taken
    }

    /// Does everything that is due at `now`.
    pub(crate) fn run(&mut self, now: Instant, rng: &mut Rng) {
        for direction in [Direction::Up, Direction::Down] {
            let end = &mut self.ends[direction as usize];
            if end.next_timeout().is_some_and(|at| at <= now) {
                end.handle_timeout(now);
            }
            self.transmit(now, rng, direction);
        }
        for direction in [Direction::Up, Direction::Down] {
            let (from, to) = match direction {
                Direction::Up => (0, 1),
                Direction::Down => (1, 0),
            };
            while let Some(datagram) = self.wires[from].pop(now) {
                // A datagram of the session is never wrong: the network loses whole ones only.
                let taken = self.ends[to].handle_datagram(now, &datagram);
                assert!(taken.is_ok(), "an end sent a bad datagram: {taken:?}");
            }
            while let Some(piece) = self.ends[to].poll_received() {
                self.arrived[from].extend_from_slice(&piece.bytes);
            }
        }
        self.transmit(now, rng, Direction::Up);
        self.transmit(now, rng, Direction::Down);
    }

    /// Takes the bytes that have arrived.
    pub(crate) fn take_arrived(&mut self, direction: Direction) -> Vec<u8> {
        std::mem::take(&mut self.arrived[direction as usize])
    }

    /// Earliest instant at which [`KcpLink::run`] has work.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let timers = self.ends.iter().filter_map(Kcp::next_timeout);
        let arrivals = self.wires.iter().filter_map(Wire::next_arrival);
        timers.chain(arrivals).min()
    }

    /// An end has given up.
    pub(crate) fn is_dead(&self) -> bool {
        self.ends.iter().any(Kcp::is_dead)
    }

    /// An end has something unacknowledged and nothing to do before `time`, or found round trips of
    /// over 100 ms.
    pub(crate) fn waits_beyond(&self, time: Instant) -> bool {
        let long = Duration::from_millis(100);
        self.ends.iter().any(|end| {
            let waits = !end.is_flushed() && end.next_timeout().is_none_or(|at| at > time);
            waits || end.rtt().is_some_and(|rtt| rtt > long)
        })
    }

    /// Nothing arrives before `until`; it waits in the network.
    pub(crate) fn stall(&mut self, direction: Direction, until: Instant) {
        let wire = &mut self.wires[direction as usize];
        wire.stalled_until = wire.stalled_until.max(until);
    }

    /// Ends all stalls; bytes in transit arrive as soon as the profile allows.
    pub(crate) fn heal(&mut self, now: Instant) {
        let latest = now + self.profile.delay + self.profile.jitter;
        for wire in &mut self.wires {
            wire.stalled_until = wire.stalled_until.min(now);
            wire.line_free = wire.line_free.min(now);
            let late = wire.datagrams.split_off(&(latest, u64::MAX));
            wire.datagrams.extend(late.into_iter().map(|((_, number), bytes)| ((latest, number), bytes)));
        }
    }

    fn transmit(&mut self, now: Instant, rng: &mut Rng, direction: Direction) {
        let mut datagram = Vec::new();
        while self.ends[direction as usize].poll_transmit(now, &mut datagram) {
            let wire = &mut self.wires[direction as usize];
            wire.push(now, rng, &self.profile, &datagram);
            if rng.chance(self.profile.loss) {
                wire.push(now, rng, &self.profile, &datagram);
            }
        }
    }
}

impl Wire {
    fn push(&mut self, now: Instant, rng: &mut Rng, profile: &LinkProfile, datagram: &[u8]) {
        if let Some(ns) = (datagram.len() as u64 * 1_000_000_000).checked_div(profile.rate) {
            self.line_free = self.line_free.max(now) + Duration::from_nanos(ns);
        }
        if rng.chance(profile.loss) {
            return;
        }
        // Jitter of its own for each datagram: they overtake one another.
        let jitter = Duration::from_nanos(rng.below(profile.jitter.as_nanos() as u64 + 1));
        let arrival = self.line_free.max(now) + profile.delay + jitter;
        self.next_number += 1;
        self.datagrams.insert((arrival, self.next_number), datagram.to_vec());
    }

    fn next_arrival(&self) -> Option<Instant> {
        self.datagrams.first_key_value().map(|(&(arrival, _), _)| arrival.max(self.stalled_until))
    }

    fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        (self.next_arrival()? <= now).then(|| self.datagrams.pop_first()).flatten().map(|(_, bytes)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes arrive whole and in order over a network that loses a fifth, repeats a fifth and
    /// reorders.
    #[test]
    fn bytes_arrive_whole_and_in_order() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|i| (i ^ i >> 8) as u8).collect();
        for (seed, tuning) in [(1, Profile::GAME), (2, Profile::REFERENCE), (3, Profile::GAME)] {
            let mut rng = Rng::new(seed);
            let network = LinkProfile { loss: 0.2, ..LinkProfile::random(&mut rng) };
            let mut link = KcpLink::new(network, tuning, &mut rng, Instant::ZERO);
            let (mut now, mut sent, mut out) = (Instant::ZERO, 0, Vec::new());
            // The gateway learns of the peer by its first datagram.
            assert_eq!(link.push(now, &mut rng, Direction::Up, b"hello"), 5);
            while out.len() < bytes.len() {
                assert!(!link.is_dead(), "gave up after {} bytes", out.len());
                sent += link.push(now, &mut rng, Direction::Down, &bytes[sent..]);
                now = now.max(link.next_event().expect("something is on the way"));
                link.run(now, &mut rng);
                out.extend(link.take_arrived(Direction::Down));
            }
            assert_eq!(out, bytes);
            assert_eq!(link.take_arrived(Direction::Up), b"hello");
        }
    }
}
