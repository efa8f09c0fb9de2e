//! The bound of the output that waits for the clients of all shards together.

use std::sync::atomic::{AtomicUsize, Ordering};

use throng_gateway::Backlog;

use super::Worker;

/// The backlogs of all shards, each as its shard has last published it, and their bound.
pub(crate) struct OutputMemory {
    bytes_max: AtomicUsize,
    shards: Box<[Published]>,
}

/// A cache line of its own: every shard writes one in every round.
#[derive(Default)]
#[repr(align(64))]
struct Published {
    own: AtomicUsize,
    shared: AtomicUsize,
    entries: AtomicUsize,
}

impl OutputMemory {
    pub(crate) fn new(shards: usize, bytes_max: usize) -> OutputMemory {
        let published = (0..shards).map(|_| Published::default()).collect();
        OutputMemory { bytes_max: AtomicUsize::new(bytes_max), shards: published }
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Memory that the output of all clients takes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.sum().held_bytes()
    }

    /// Publishes the backlog of a shard. If all of them exceed the bound, returns the bytes beyond
    /// it and the shard that is to give them up: the one with the largest backlog.
    fn publish(&self, shard: usize, mine: Backlog) -> Option<(usize, usize)> {
        let published = &self.shards[shard];
        published.own.store(mine.own_bytes, Ordering::Relaxed);
        published.shared.store(mine.shared_bytes, Ordering::Relaxed);
        published.entries.store(mine.entry_bytes, Ordering::Relaxed);
        let excess = self.held_bytes().checked_sub(self.bytes_max()).filter(|excess| *excess > 0)?;
        let backlogs = self.shards.iter().map(Published::load).enumerate();
        let (largest, _) = backlogs.max_by_key(|(_, backlog)| backlog.weight())?;
        Some((largest, excess))
    }

    fn sum(&self) -> Backlog {
        self.shards.iter().map(Published::load).sum()
    }
}

impl Published {
    fn load(&self) -> Backlog {
        Backlog {
            own_bytes: self.own.load(Ordering::Relaxed),
            shared_bytes: self.shared.load(Ordering::Relaxed),
            entry_bytes: self.entries.load(Ordering::Relaxed),
        }
    }
}

impl Worker {
    /// Closes clients that wait for most if the output of all clients takes too much memory. Runs
    /// after writing: clients that read have no backlog then.
    pub(super) fn shed_output(&mut self) {
        let mine = usize::from(self.driver.index);
        let mut backlog = self.driver.shard.backlog();
        backlog.own_bytes += self.driver.farewells.values().map(|each| each.bytes.len()).sum::<usize>();
        match self.driver.output_memory.publish(mine, backlog) {
            Some((shard, excess)) if shard == mine => {
                self.driver.guard(|driver| driver.shard.shed_backlog(driver.now, excess));
            }
            // It may have nothing else to do, and would not look for long.
            Some((shard, _)) => self.driver.mailboxes[shard].wake(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_with_the_largest_backlog_gives_up_what_is_beyond_the_bound() {
        let memory = OutputMemory::new(3, 1_000);
        let backlog = |own_bytes, shared_bytes, entry_bytes| Backlog { own_bytes, shared_bytes, entry_bytes };
        assert_eq!(memory.publish(0, backlog(600, 0, 0)), None);
        // Entries count once, on whatever shard they wait, and only as far as clients wait for
        // them.
        assert_eq!(memory.publish(1, backlog(0, 0, 400)), None);
        assert_eq!(memory.publish(2, backlog(0, 9_000, 0)), None, "exactly the bound");
        assert_eq!(memory.publish(1, backlog(0, 0, 450)), Some((2, 50)));
        assert_eq!(memory.held_bytes(), 1_050);
        assert_eq!(memory.publish(2, backlog(0, 300, 0)), None);
        assert_eq!(memory.publish(1, backlog(200, 0, 450)), Some((0, 100)));
        memory.set_bytes_max(1_100);
        assert_eq!(memory.publish(0, backlog(600, 0, 0)), None);
    }
}
