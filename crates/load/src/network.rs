//! The simulated network between players and the server: delay, jitter, loss, duplicates,
//! reordering and a rate, in the generator's own sockets, so that no privileges and no second
//! machine are needed.
//!
//! A `Way` is one direction of one connection. Datagrams may get lost, arrive twice or be
//! overtaken. Of a byte stream the kernel makes good whatever is lost, below this place: it gets
//! delay, jitter and rate only.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use throng_stdx::Rng;

use crate::clock::nanoseconds;

/// A network, each way the same. The default does nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Network {
    /// Least time on the way.
    pub delay: Duration,
    /// Maximum random addition to the delay. It does not reorder datagrams.
    pub jitter: Duration,
    /// Chance from 0 to 1 that a datagram is lost.
    pub loss: f64,
    /// Chance that a datagram arrives twice.
    pub duplicate: f64,
    /// Probability that a datagram is held back, so that later ones overtake it.
    pub reorder: f64,
    /// Bits per second of each connection; 0 is without a limit.
    pub rate_bits: u64,
}

/// Networks by name, with descriptions.
pub const PRESETS: [(&str, &str); 4] = [
    ("lan", "1 ms, no loss"),
    ("wifi", "4 ms, jitter 12 ms, 0.5% lost, 0.1% reordered, 50 Mbit/s"),
    ("4g", "35 ms, jitter 30 ms, 1% lost, 0.2% reordered, 12 Mbit/s"),
    ("bad", "120 ms, jitter 80 ms, 5% lost, 1% duplicated, 2% reordered, 1 Mbit/s"),
];

/// Delay of a datagram that others are to overtake.
const HELD_BACK: Duration = Duration::from_millis(25);
/// A queue in front of a rate holds this much time; more datagrams are dropped, and of a stream no
/// more is read.
const QUEUE_MAX: Duration = Duration::from_millis(500);
/// Bytes of a stream on the way before no more is read.
const STREAM_BYTES_MAX: usize = 1 << 20;

impl Network {
    /// One of [`PRESETS`].
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let network = |delay_ms, jitter_ms, loss, duplicate, reorder, rate_bits| Self {
            delay: Duration::from_millis(delay_ms),
            jitter: Duration::from_millis(jitter_ms),
            loss,
            duplicate,
            reorder,
            rate_bits,
        };
        Some(match name {
            "lan" => network(1, 0, 0.0, 0.0, 0.0, 0),
            "wifi" => network(4, 12, 0.005, 0.0, 0.001, 50_000_000),
            "4g" => network(35, 30, 0.01, 0.0, 0.002, 12_000_000),
            "bad" => network(120, 80, 0.05, 0.01, 0.02, 1_000_000),
            _ => return None,
        })
    }

    /// It does nothing.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        *self == Self::default()
    }

    /// It does something that only datagrams can suffer.
    #[must_use]
    pub fn harms_datagrams(&self) -> bool {
        self.loss > 0.0 || self.duplicate > 0.0 || self.reorder > 0.0
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.delay.as_secs_f64() * 1e3)?;
        if !self.jitter.is_zero() {
            write!(f, " and up to {} more", self.jitter.as_secs_f64() * 1e3)?;
        }
        for (share, what) in [(self.loss, "lost"), (self.duplicate, "twice"), (self.reorder, "overtaken")] {
            if share > 0.0 {
                write!(f, ", {}% {what}", share * 100.0)?;
            }
        }
        if self.rate_bits > 0 {
            write!(f, ", {} kbit/s", self.rate_bits / 1_000)?;
        }
        f.write_str(" each way")
    }
}

/// Fates of datagrams, or of reads and writes of streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fates {
    /// Went in.
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped because the queue in front of the rate was full.
    pub dropped: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
}

impl Fates {
    /// Adds another direction's.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.dropped += other.dropped;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
    }
}

/// One direction of one connection.
#[derive(Debug)]
pub(crate) struct Way {
    network: Network,
    datagrams: bool,
    rng: Rng,
    /// By arrival and, of the same time, in order.
    under_way: BTreeMap<(u64, u64), Vec<u8>>,
    bytes: usize,
    sequence: u64,
    /// Time at which the sender is free again, at the rate.
    line_free_ns: u64,
    /// A datagram that is not held back arrives no earlier.
    latest_ns: u64,
    pub(crate) fates: Fates,
}

impl Way {
    pub(crate) fn new(network: Network, datagrams: bool, seed: u64) -> Self {
        Self {
            network,
            datagrams,
            rng: Rng::new(seed),
            under_way: BTreeMap::new(),
            bytes: 0,
            sequence: 0,
            line_free_ns: 0,
            latest_ns: 0,
            fates: Fates::default(),
        }
    }

    /// Takes a datagram, or bytes read from or written to a stream.
    pub(crate) fn push(&mut self, now_ns: u64, bytes: &[u8]) {
        self.fates.sent += 1;
        if self.datagrams && self.rng.chance(self.network.loss) {
            self.fates.lost += 1;
            return;
        }
        if let Some(line_ns) = (bytes.len() as u64 * 8 * 1_000_000_000).checked_div(self.network.rate_bits) {
            if self.datagrams && self.line_free_ns > now_ns + nanoseconds(QUEUE_MAX) {
                self.fates.dropped += 1;
                return;
            }
            self.line_free_ns = self.line_free_ns.max(now_ns) + line_ns;
        }
        let jitter = self.rng.below(nanoseconds(self.network.jitter) + 1);
        let arrival = self.line_free_ns.max(now_ns) + nanoseconds(self.network.delay) + jitter;
        self.latest_ns = self.latest_ns.max(arrival);
        let mut arrival = self.latest_ns;
        if self.datagrams && self.rng.chance(self.network.reorder) {
            self.fates.reordered += 1;
            arrival += nanoseconds(HELD_BACK);
        }
        self.keep(arrival, bytes);
        if self.datagrams && self.rng.chance(self.network.duplicate) {
            self.fates.duplicated += 1;
            self.keep(arrival, bytes);
        }
    }

    fn keep(&mut self, arrival: u64, bytes: &[u8]) {
        self.sequence += 1;
        self.bytes += bytes.len();
        self.under_way.insert((arrival, self.sequence), bytes.to_vec());
    }

    /// The next that has arrived.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        let first = self.under_way.first_entry().filter(|entry| entry.key().0 <= now_ns)?;
        let bytes = first.remove();
        self.bytes -= bytes.len();
        Some(bytes)
    }

    /// Something has arrived.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.under_way.first_key_value().is_some_and(|((arrival, _), _)| *arrival <= now_ns)
    }

    /// True if a stream waits for the rate limit; further bytes would only wait here instead of in
    /// the sender's queue.
    pub(crate) fn is_full(&self, now_ns: u64) -> bool {
        !self.datagrams
            && (self.bytes > STREAM_BYTES_MAX || self.line_free_ns > now_ns + nanoseconds(QUEUE_MAX))
    }

    /// Bytes in transit.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sends `count` datagrams, one a millisecond, and returns what arrives: number and time.
    fn send(way: &mut Way, count: u32) -> Vec<(u32, u64)> {
        let mut arrived = Vec::new();
        for ms in 0..u64::from(count) + 10_000 {
            let now = ms * MS;
            if ms < u64::from(count) {
                way.push(now, &(ms as u32).to_le_bytes());
            }
            while let Some(bytes) = way.pop(now) {
                arrived.push((u32::from_le_bytes(bytes.try_into().unwrap()), ms));
            }
        }
        assert_eq!(way.bytes(), 0);
        arrived
    }

    #[test]
    fn delay_and_jitter_keep_the_order_and_their_bounds() {
        let network = Network {
            delay: Duration::from_millis(30),
            jitter: Duration::from_millis(10),
            ..Network::default()
        };
        for datagrams in [false, true] {
            let arrived = send(&mut Way::new(network.clone(), datagrams, 1), 1_000);
            assert_eq!(arrived.len(), 1_000);
            assert!(arrived.windows(2).all(|two| two[0].0 < two[1].0), "in order");
            assert!(arrived.iter().all(|(sent, at)| (30..=41).contains(&(at - u64::from(*sent)))));
        }
    }

    #[test]
    fn datagrams_are_lost_doubled_and_overtaken_as_often_as_was_asked_for() {
        let network = Network { loss: 0.1, duplicate: 0.05, reorder: 0.02, ..Network::default() };
        let mut way = Way::new(network.clone(), true, 7);
        let arrived = send(&mut way, 20_000);
        let Fates { sent, lost, duplicated, reordered, dropped } = way.fates;
        assert_eq!((sent, dropped, arrived.len() as u64), (20_000, 0, sent - lost + duplicated));
        let near = |count: u64, of: u64, share: f64| (count as f64 / of as f64 - share).abs() < share * 0.2;
        assert!(near(lost, sent, 0.1) && near(duplicated, sent - lost, 0.05), "{:?}", way.fates);
        assert!(near(reordered, sent - lost, 0.02), "{:?}", way.fates);
        let overtaken = arrived.windows(2).filter(|two| two[0].0 > two[1].0).count() as u64;
        assert!(overtaken > 0 && overtaken <= reordered, "{overtaken} of {reordered}");
        // The same seed, the same fates; a stream suffers none of them.
        assert_eq!(send(&mut Way::new(network.clone(), true, 7), 20_000), arrived);
        let mut stream = Way::new(network, false, 7);
        assert_eq!(send(&mut stream, 100).len(), 100);
        assert_eq!(stream.fates, Fates { sent: 100, ..Fates::default() });
    }

    #[test]
    fn a_rate_spaces_and_then_drops_datagrams_and_holds_streams_up() {
        // Four bytes a millisecond are 32 kbit/s: half of them do not fit.
        let network = Network { rate_bits: 16_000, ..Network::default() };
        let mut way = Way::new(network.clone(), true, 1);
        let arrived = send(&mut way, 5_000);
        assert!(arrived.windows(2).all(|two| two[1].1 - two[0].1 >= 2), "two milliseconds each");
        assert!((2_000..2_600).contains(&way.fates.dropped), "{:?}", way.fates);
        let mut stream = Way::new(network, false, 1);
        stream.push(0, &[0; 900]);
        assert!(!stream.is_full(0));
        stream.push(0, &[0; 200]);
        assert!(stream.is_full(0) && !stream.is_full(100 * MS));
    }

    #[test]
    fn networks_have_names_and_say_what_they_do() {
        for (name, _) in PRESETS {
            assert!(Network::preset(name).is_some_and(|network| !network.is_clear()), "{name}");
        }
        assert_eq!(Network::preset("5g"), None);
        let bad = Network::preset("bad").unwrap().to_string();
        assert_eq!(bad, "120 ms and up to 80 more, 5% lost, 1% twice, 2% overtaken, 1000 kbit/s each way");
    }
}
