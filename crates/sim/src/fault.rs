//! Schedule of faults: kind, begin and duration.

use std::time::Duration;

use throng_stdx::Rng;

/// Kinds of faults. Faults of peers hit one peer, drawn when the fault begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A link with a high delay.
    Delay,
    /// A link that delivers a few bytes at a time.
    TinyChunks,
    /// A link that loses and repeats.
    Loss,
    /// A link with a low rate.
    Rate,
    /// A link with a small window.
    TinyWindow,
    /// The peer does not read.
    StalledReader,
    /// The peer's bytes do not arrive.
    StalledWriter,
    /// Nothing gets through in either direction.
    Partition,
    /// Several peers are disconnected at once and return in another order.
    Swizzle,
    /// The connection is reset.
    Reset,
    /// The peer leaves properly.
    Leave,
    /// The peer is gone, and the gateway notices much later.
    Vanish,
    /// A game server dies and returns.
    ServerCrash,
    /// The thread of a shard does nothing for a while.
    ShardPause,
    /// Mail between shards is slow.
    SlowMail,
    /// The authentication provider is slow and fails.
    ProviderDown,
    /// A peer sends bytes that are not frames.
    Garbage,
    /// A peer disconnects inside a frame.
    TornFrame,
    /// Connections that never authenticate.
    IdleConnections,
    /// A peer sends as much as it can.
    Flood,
    /// A peer reads nothing until the end of the faults.
    NeverReads,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 21] = [
        FaultKind::Delay,
        FaultKind::TinyChunks,
        FaultKind::Loss,
        FaultKind::Rate,
        FaultKind::TinyWindow,
        FaultKind::StalledReader,
        FaultKind::StalledWriter,
        FaultKind::Partition,
        FaultKind::Swizzle,
        FaultKind::Reset,
        FaultKind::Leave,
        FaultKind::Vanish,
        FaultKind::ServerCrash,
        FaultKind::ShardPause,
        FaultKind::SlowMail,
        FaultKind::ProviderDown,
        FaultKind::Garbage,
        FaultKind::TornFrame,
        FaultKind::IdleConnections,
        FaultKind::Flood,
        FaultKind::NeverReads,
    ];
}

/// A fault with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Begin, from the start of the run.
    pub at: Duration,
    /// Duration, for faults that last.
    pub lasts: Duration,
    /// Kind of the fault.
    pub kind: FaultKind,
}

/// The faults of one run: some kinds, each some times. A run with few kinds finds what a run with
/// all of them hides, so the number of kinds is drawn first.
#[must_use]
pub(crate) fn draw(rng: &mut Rng, phase: Duration) -> Vec<Fault> {
    let kinds = rng.below(6);
    let mut faults = Vec::new();
    for _ in 0..kinds {
        let kind = FaultKind::ALL[rng.below(FaultKind::ALL.len() as u64) as usize];
        for _ in 0..rng.range(1..5) {
            let at = Duration::from_nanos(rng.below(phase.as_nanos() as u64));
            let lasts = Duration::from_millis(rng.range(20..1500));
            faults.push(Fault { at, lasts, kind });
        }
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}
