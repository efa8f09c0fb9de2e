//! Report of a worker for metrics and monitoring.

use std::time::Duration;

use throng_gateway::{ChannelType, ChannelView, ConnectionView, Stats, WorldView};
use throng_net::LoopStats;
use throng_net::enet::HostCounters;

use crate::mailbox::Taken;
use crate::world::World;

/// Upper bounds of the round histogram in seconds: 50 us to 1.6 s, factor 2. Below the first
/// nothing matters at a 20 ms tick, beyond the last the exact figure does not.
pub(crate) const ROUND_BOUNDS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8, 0.025_6, 0.051_2,
    0.102_4, 0.204_8, 0.409_6, 0.819_2, 1.638_4,
];

/// Durations of the rounds of a shard's loop: from the end of the wait to the last write.
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

/// Upper bounds of the tick histograms in seconds: a tick that takes longer than the last delays
/// all others.
pub(crate) const TICK_BOUNDS: [f64; 12] = [
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8,
    0.025_6,
];

/// Durations of the fan-outs of channels of one type.
#[derive(Clone, Debug, Default)]
pub(crate) struct TickTimes {
    pub(crate) counts: [u64; TICK_BOUNDS.len() + 1],
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
}

/// [`TickTimes`] by type of channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ticks(pub(crate) Vec<(ChannelType, TickTimes)>);

impl Ticks {
    pub(crate) fn record(&mut self, channel_type: ChannelType, ns: u64) {
        let times = self.of(channel_type);
        let bucket = TICK_BOUNDS.partition_point(|bound| *bound * 1e9 < ns as f64);
        times.counts[bucket] += 1;
        times.sum_ns += ns;
        times.max_ns = times.max_ns.max(ns);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (channel_type, more) in &other.0 {
            let times = self.of(*channel_type);
            for (count, more) in times.counts.iter_mut().zip(more.counts) {
                *count += more;
            }
            times.sum_ns += more.sum_ns;
            times.max_ns = times.max_ns.max(more.max_ns);
        }
    }

    fn of(&mut self, channel_type: ChannelType) -> &mut TickTimes {
        let at = self.0.iter().position(|(known, _)| *known == channel_type).unwrap_or_else(|| {
            self.0.push((channel_type, TickTimes::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
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

/// A world's shard on a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorldReport {
    pub(crate) world: World,
    pub(crate) stats: Stats,
    /// Of the shard that has it.
    pub(crate) view: Option<WorldView>,
    pub(crate) connections: Vec<ConnReport>,
    pub(crate) channels: Vec<ChannelReport>,
}

/// Everything a worker knows about itself at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ShardReport {
    /// The main world first.
    pub(crate) worlds: Vec<WorldReport>,
    /// Counters of worlds that were closed.
    pub(crate) retired: Stats,
    pub(crate) loop_stats: LoopStats,
    pub(crate) enet: HostCounters,
    pub(crate) rounds: RoundTimes,
    pub(crate) ticks: Ticks,
    pub(crate) panics: u64,
    pub(crate) congestions: u64,
    /// Posts to worlds that have ended.
    pub(crate) void_posts: u64,
    /// Posts that the latest round found in the mailbox.
    pub(crate) mailbox: Taken,
    /// Most bytes that a round ever found there.
    pub(crate) mailbox_peak_bytes: usize,
    pub(crate) recordings_dropped: u64,
}

impl ShardReport {
    /// Counters of all worlds.
    pub(crate) fn stats(&self) -> Stats {
        let mut sum = self.retired.clone();
        self.worlds.iter().for_each(|world| sum.add(&world.stats));
        sum
    }
}
