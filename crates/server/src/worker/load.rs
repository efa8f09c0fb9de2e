//! Work of the shards, by which newcomers are spread: the first one runs the world besides.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throng_stdx::Instant;

use super::Worker;
use super::host::Slot;

/// Time between two looks at the shards' work. Players of a world arrive over seconds, and the work
/// that they cause must be seen while they do.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Time between two notes of a shard's own work.
const NOTE_INTERVAL: Duration = Duration::from_millis(50);

/// Total work of each shard, and its connections.
///
/// Work is the processor time of the shard's thread. On a machine with fewer processors than
/// threads, the length of its rounds would include the work of the others.
pub(crate) struct ShardLoads(Box<[Published]>);

/// A cache line of its own: every shard writes one, and the first reads all.
#[derive(Default)]
#[repr(align(64))]
struct Published {
    busy_ns: AtomicU64,
    conns: AtomicU64,
}

/// Work of some shards within some time, and their connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    busy_ns: u64,
    conns: u64,
}

/// State of a shard between two notes, and of the first one between two looks.
#[derive(Debug, Default)]
pub(super) struct Looks {
    next_note: Instant,
    next: Instant,
    /// Work up to the last look: of the first shard, and of all others.
    busy_ns: [u64; 2],
    weight: u64,
}

impl ShardLoads {
    pub(crate) fn new(shards: usize) -> ShardLoads {
        ShardLoads((0..shards).map(|_| Published::default()).collect())
    }

    fn publish(&self, shard: usize, busy_ns: u64, conns: usize) {
        self.0[shard].busy_ns.store(busy_ns, Ordering::Relaxed);
        self.0[shard].conns.store(conns as u64, Ordering::Relaxed);
    }

    /// Of the first shard, and of all others together.
    fn totals(&self) -> [Load; 2] {
        let mut totals = [Load::default(); 2];
        for (index, shard) in self.0.iter().enumerate() {
            let total = &mut totals[usize::from(index > 0)];
            total.busy_ns += shard.busy_ns.load(Ordering::Relaxed);
            total.conns += shard.conns.load(Ordering::Relaxed);
        }
        totals
    }
}

/// Work that the first shard does besides its connections, in connections: those of the others tell
/// how much one takes. At most as many as there are.
fn besides([first, others]: [Load; 2]) -> u64 {
    if others.busy_ns == 0 || others.conns == 0 {
        return 0;
    }
    let worth = u128::from(first.busy_ns) * u128::from(others.conns) / u128::from(others.busy_ns);
    let besides = worth.saturating_sub(u128::from(first.conns));
    besides.min(u128::from(first.conns + others.conns)) as u64
}

impl Looks {
    /// The new weight, if it is time for one.
    fn look(&mut self, now: Instant, totals: [Load; 2]) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.next = now + LOOK_INTERVAL;
        let mut window = totals;
        for (load, before) in window.iter_mut().zip(&mut self.busy_ns) {
            let total = load.busy_ns;
            load.busy_ns -= std::mem::replace(before, total);
        }
        // A single window may be that of one large message.
        self.weight = (self.weight + besides(window)).div_ceil(2);
        Some(self.weight)
    }
}

impl Worker {
    /// Publishes the work of this shard, if it is time for that. The first shard tells its core
    /// what it does for the world.
    pub(super) fn note_load(&mut self) {
        let (index, now) = (self.driver.index, self.driver.now);
        if now < self.looks.next_note {
            return;
        }
        self.looks.next_note = now + NOTE_INTERVAL;
        let loads = &self.driver.loads;
        loads.publish(usize::from(index), thread_time_ns(), self.event_loop.conn_count());
        if index == 0
            && let Some(weight) = self.looks.look(now, loads.totals())
            && let Some(main) = self.driver.hosts.get_mut(Slot::MAIN)
        {
            main.shard.set_world_weight(weight as usize);
        }
    }
}

/// Processor time of this thread.
fn thread_time_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_besides_connections_counts_in_connections() {
        let load = |busy_ns, conns| Load { busy_ns, conns };
        assert_eq!(besides([load(1_000, 100), load(3_000, 300)]), 0, "all work is that of connections");
        assert_eq!(besides([load(3_000, 100), load(3_000, 300)]), 200);
        assert_eq!(besides([load(9_000_000, 100), load(3_000, 300)]), 400, "no more than there are");
        assert_eq!(besides([load(9_000, 100), load(0, 0)]), 0, "nothing to compare with");
    }

    #[test]
    fn a_look_is_about_the_time_since_the_last_one() {
        let loads = ShardLoads::new(3);
        let mut looks = Looks::default();
        let publish = |total: [u64; 3]| {
            total.iter().enumerate().for_each(|(shard, busy_ns)| loads.publish(shard, *busy_ns, 100));
        };
        publish([100, 100, 100]);
        assert_eq!(looks.look(Instant::from_millis(1), loads.totals()), Some(0));
        publish([600, 200, 200]);
        assert_eq!(looks.look(Instant::from_millis(200), loads.totals()), None, "not yet");
        // 500 for 100 connections, where others take 100: 400 besides, at most the 300 there are.
        assert_eq!(looks.look(Instant::from_millis(251), loads.totals()), Some(150));
        publish([700, 300, 300]);
        assert_eq!(looks.look(Instant::from_millis(502), loads.totals()), Some(75), "it fades");
    }
}
