//! What a shard tells about itself, for metrics and monitoring.

use std::time::Duration;

use throng_gateway::{ChannelView, ConnectionView, Stats};
use throng_net::LoopStats;
use throng_net::enet::HostFigures;

/// Upper bounds of the round histogram in seconds: 50 us to 1.6 s, factor 2. Below the first nothing matters at a
/// 20 ms tick, beyond the last the exact figure does not.
pub(crate) const ROUND_BOUNDS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8, 0.025_6, 0.051_2,
    0.102_4, 0.204_8, 0.409_6, 0.819_2, 1.638_4,
];

/// How long the rounds of a shard's loop took: from the end of the wait to the last write.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTimes {
    pub(crate) counts: [u64; ROUND_BOUNDS.len() + 1],
    pub(crate) sum_ns: u64,
    pub(crate) latest_ns: u64,
}

impl RoundTimes {
    pub(crate) fn record(&mut self, ns: u64) {
        let seconds = ns as f64 / 1e9;
        let bucket = ROUND_BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(ROUND_BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum_ns += ns;
        self.latest_ns = ns;
    }
}

/// A connection in a list.
#[derive(Clone, Debug)]
pub(crate) struct ConnReport {
    pub(crate) shard: u16,
    pub(crate) open: Duration,
    pub(crate) bytes_out: u64,
    pub(crate) view: ConnectionView,
}

/// A channel in a list.
#[derive(Clone, Debug)]
pub(crate) struct ChannelReport {
    pub(crate) shard: u16,
    pub(crate) view: ChannelView,
}

/// Everything a shard knows about itself at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ShardReport {
    pub(crate) stats: Stats,
    pub(crate) loop_stats: LoopStats,
    pub(crate) enet: HostFigures,
    pub(crate) rounds: RoundTimes,
    pub(crate) panics: u64,
    pub(crate) congestions: u64,
    pub(crate) mailbox_len: usize,
    pub(crate) recordings_dropped: u64,
    pub(crate) connections: Vec<ConnReport>,
    pub(crate) channels: Vec<ChannelReport>,
}
