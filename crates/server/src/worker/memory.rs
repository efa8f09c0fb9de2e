//! The bound of the output that waits for the clients of all shards together, and the return of its
//! memory to the system.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use throng_gateway::Backlog;
use throng_stdx::Instant;

use super::Worker;
use super::driver::Driver;
use super::host::{Host, Slot};

/// Memory that slow readers held is returned to the system if so much is freed at once. Less is
/// needed again soon.
const RETURNED_BYTES_MIN: usize = 16 << 20;
/// Time for which the memory has to stay free first: bursts to many readers use it again.
const FREE_TIME: Duration = Duration::from_secs(1);

/// The allocator's function that returns the free memory of the calling thread.
static RETURN_MEMORY: OnceLock<fn()> = OnceLock::new();

/// Names the allocator's function that returns free memory to the system. Shard threads call it a
/// second after slow readers have freed 16 MiB. Without it the allocator returns memory in its own
/// time.
pub fn set_return_memory(return_memory: fn()) {
    // A second allocator in one process does not exist.
    let _ = RETURN_MEMORY.set(return_memory);
    throng_ddc_server::set_return_memory(return_memory);
}

/// Finds the moment at which memory of the output should go back to the system.
#[derive(Default)]
pub(super) struct Returner {
    /// Most that was allocated since memory was last returned.
    peak: usize,
    /// Much less than that is allocated since then.
    free_since: Option<Instant>,
}

impl Returner {
    /// True if memory should go back now, with so many bytes of output allocated.
    fn is_due(&mut self, now: Instant, allocated: usize) -> bool {
        if allocated + RETURNED_BYTES_MIN > self.peak {
            (self.peak, self.free_since) = (self.peak.max(allocated), None);
            return false;
        }
        let since = *self.free_since.get_or_insert(now);
        let due = now.since(since) >= FREE_TIME;
        if due {
            *self = Returner { peak: allocated, free_since: None };
        }
        due
    }

    /// Time of the next look, if memory may have to go back then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        Some(self.free_since? + FREE_TIME)
    }
}

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
            server_bytes: 0,
        }
    }
}

impl Driver {
    /// Has the world whose clients wait for most give up so many bytes.
    fn shed_backlog(&mut self, excess: usize) {
        let weight = |(_, host): &(Slot, &Host)| host.shard.backlog().weight();
        if let Some((slot, _)) = self.hosts.iter().max_by_key(weight) {
            self.guard(slot, |host, now| host.shard.shed_backlog(now, excess));
        }
    }
}

impl Worker {
    /// Closes clients that wait for most if the output of all clients takes too much memory. Runs
    /// after writing: clients that read have no backlog then.
    pub(super) fn shed_output(&mut self) {
        let mine = usize::from(self.driver.index);
        let mut backlog: Backlog = self.driver.hosts.iter().map(|(_, host)| host.shard.backlog()).sum();
        backlog.own_bytes += self.driver.farewells.values().map(|each| each.bytes.len()).sum::<usize>();
        self.return_memory(backlog.allocated_bytes());
        match self.driver.output_memory.publish(mine, backlog) {
            Some((shard, excess)) if shard == mine => self.driver.shed_backlog(excess),
            // It may have nothing else to do, and would not look for long.
            Some((shard, _)) => self.driver.mailboxes[shard].wake(),
            None => {}
        }
    }

    /// Returns memory to the system that slow readers have freed.
    fn return_memory(&mut self, allocated: usize) {
        let waits = self.driver.returner.deadline().is_some();
        if self.driver.returner.is_due(self.driver.now, allocated) {
            if let Some(return_memory) = RETURN_MEMORY.get() {
                return_memory();
            }
        } else if !waits && self.driver.returner.deadline().is_some() {
            // Entries belong to the threads that made them, which may have nothing else to do.
            self.driver.others().for_each(crate::mailbox::Mailbox::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_with_the_largest_backlog_gives_up_what_is_beyond_the_bound() {
        let memory = OutputMemory::new(3, 1_000);
        let backlog = |own_bytes, shared_bytes, entry_bytes| Backlog {
            own_bytes,
            shared_bytes,
            entry_bytes,
            server_bytes: 9_000,
        };
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

    #[test]
    fn memory_goes_back_when_much_of_it_stays_free() {
        let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
        let mut returner = Returner::default();
        assert!(!returner.is_due(at(0), 64 << 20));
        // A burst: the same memory is in use again.
        assert!(!returner.is_due(at(100), 0));
        assert_eq!(returner.deadline(), Some(at(1_100)));
        assert!(!returner.is_due(at(900), 60 << 20));
        assert_eq!(returner.deadline(), None);
        // A slow reader that is gone, and a little traffic afterwards.
        assert!(!returner.is_due(at(1_000), 1 << 20));
        assert!(!returner.is_due(at(1_999), 2 << 20));
        assert!(returner.is_due(at(2_000), 1 << 20));
        assert!(!returner.is_due(at(2_001), 0) && returner.deadline().is_none(), "once");
        // Little is kept.
        assert!(!returner.is_due(at(3_000), 10 << 20) && !returner.is_due(at(9_000), 0));
        assert_eq!(returner.deadline(), None);
    }
}
