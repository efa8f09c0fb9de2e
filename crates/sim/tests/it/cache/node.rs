//! One node of the simulated cache: a disk, a store on it, the service over that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_ddc::Timestamp;
use throng_ddc_server::{Origin, Rules, Service};
use throng_ddc_store::{Clock, Options, Store, Tier};
use throng_platform::{DiskState, SimulatedDisk};
use throng_stdx::Rng;

use super::bucket::FaultyBucket;
use super::upstream::Link;

/// Bytes that a disk has while it is not full.
pub(super) const DISK_BYTES: u64 = 64 << 20;
/// Wall time at the start of a life.
const START_MS: u64 = 1_700_000_000_000;

/// Time of all nodes, which only the simulation moves.
#[derive(Debug, Default)]
pub(super) struct VirtualClock(AtomicU64);

impl VirtualClock {
    pub(super) fn advance(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).expect("short");
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_ms(START_MS + self.0.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.advance(time);
    }
}

/// A power failure that comes with a later write.
#[derive(Default)]
struct Outage {
    writes_left: u64,
    state: Option<DiskState>,
}

/// Place of a node among others.
#[derive(Clone)]
pub(super) enum Role {
    Alone,
    Shared(FaultyBucket),
    /// Others fill themselves from it.
    Upstream(Arc<Link>),
    /// Fills itself from another one.
    Edge(Arc<Link>),
}

/// Settings of the stores of a life.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) inline_bytes_max: usize,
    pub(super) has_events: bool,
}

pub(super) struct Node {
    pub(super) disk: SimulatedDisk,
    pub(super) service: Arc<Service>,
    clock: Arc<VirtualClock>,
    pub(super) role: Role,
    settings: Settings,
    outage: Arc<Mutex<Outage>>,
    /// The power has failed: what is acknowledged from now on is not.
    pub(super) is_dead: Arc<AtomicBool>,
}

impl Node {
    pub(super) fn new(
        disk: SimulatedDisk,
        clock: &Arc<VirtualClock>,
        role: &Role,
        settings: Settings,
    ) -> Node {
        disk.set_capacity(Some(DISK_BYTES));
        let is_dead = Arc::new(AtomicBool::new(false));
        let role = match role {
            Role::Shared(bucket) => Role::Shared(bucket.for_node(Arc::clone(&is_dead))),
            other => other.clone(),
        };
        let (clock, outage) = (Arc::clone(clock), Arc::default());
        let service = open(&disk, &clock, &role, settings, false);
        let node = Node { disk, service, clock, role, settings, outage, is_dead };
        node.announce();
        node
    }

    /// Makes the service known to those who fill themselves from it.
    fn announce(&self) {
        if let Role::Upstream(link) = &self.role {
            link.connect(&self.service, &self.is_dead);
        }
    }

    pub(super) fn store(&self) -> &Store {
        self.service.store()
    }

    /// Makes the changes that wait.
    pub(super) fn commit(&self) {
        self.store().commit();
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// The power will fail at the write after so many others.
    pub(super) fn fail_power_after(&self, writes: u64) {
        *self.outage.lock().expect("no panic") = Outage { writes_left: writes, state: None };
        let (outage, is_dead) = (Arc::clone(&self.outage), Arc::clone(&self.is_dead));
        self.disk.set_hook(Some(Box::new(move |state| {
            let mut outage = outage.lock().expect("no panic");
            if outage.writes_left == 0 && outage.state.is_none() {
                outage.state = Some(state.clone());
                is_dead.store(true, Ordering::Relaxed);
            }
            outage.writes_left = outage.writes_left.saturating_sub(1);
            Ok(())
        })));
    }

    /// Starts again after the power failure, or after one right now.
    pub(super) fn recover(&mut self, rng: &mut Rng) {
        self.disk.set_hook(None);
        let failed = self.outage.lock().expect("no panic").state.take();
        let state = failed.unwrap_or_else(|| self.disk.state());
        self.restart_from(state.after_power_failure(rng), rng.chance(0.3));
    }

    /// Starts again with what `state` holds.
    pub(super) fn restart_from(&mut self, state: DiskState, reindex: bool) {
        self.end();
        self.disk = SimulatedDisk::new(state);
        self.disk.set_capacity(Some(DISK_BYTES));
        self.is_dead.store(false, Ordering::Relaxed);
        self.service = open(&self.disk, &self.clock, &self.role, self.settings, reindex);
        self.announce();
    }

    /// Ends the process and starts another.
    pub(super) fn restart(&mut self, reindex: bool) {
        let state = self.stop();
        self.restart_from(state, reindex);
    }

    /// Ends the process. Gives what it left, from which another one is to be started.
    pub(super) fn stop(&mut self) -> DiskState {
        self.end();
        self.disk.state()
    }

    /// Ends the process: it removes files that nothing uses any more.
    fn end(&mut self) {
        let idle = SimulatedDisk::new(DiskState::default());
        self.service = open(&idle, &self.clock, &Role::Alone, self.settings, false);
        self.announce();
    }
}

fn open(
    disk: &SimulatedDisk,
    clock: &Arc<VirtualClock>,
    role: &Role,
    settings: Settings,
    reindex: bool,
) -> Arc<Service> {
    let clock: Arc<dyn Clock> = Arc::<VirtualClock>::clone(clock);
    let options = Options {
        inline_bytes_max: settings.inline_bytes_max,
        segment_bytes_max: 4_000,
        reserve_bytes: 2_000,
        zero_bytes: 500,
        checkpoint_bytes: 2_000,
        index_cache_bytes: 1 << 14,
        disk_reserve_bytes: 60_000,
        free_bytes_min: 1_000,
        replication_log: settings.has_events,
        clock: Arc::clone(&clock),
        ..Options::default()
    };
    let fs = Arc::new(disk.clone());
    let store = if reindex { Store::reindex(fs, options) } else { Store::open(fs, options) };
    let store = store.expect("the store opens in spite of the damage");
    let origin = match role {
        Role::Alone | Role::Upstream(_) => Origin::Alone,
        Role::Shared(bucket) => Origin::Tier(Tier::over(Arc::new(bucket.clone()))),
        Role::Edge(link) => Origin::Upstream(Box::new(link.client(clock))),
    };
    Service::new(store, Rules::default(), origin)
}
