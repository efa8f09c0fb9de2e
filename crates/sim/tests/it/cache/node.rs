//! One node of the simulated cache: a disk, a store on it, the service over that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_ddc::Timestamp;
use throng_ddc_server::{Clock, Origin, Rules, Service};
use throng_ddc_store::{Options, Store, Tier};
use throng_platform::{DiskState, SimulatedDisk};
use throng_stdx::Rng;

use super::bucket::FaultyBucket;

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

pub(super) struct Node {
    pub(super) disk: SimulatedDisk,
    pub(super) service: Arc<Service>,
    clock: Arc<VirtualClock>,
    bucket: Option<FaultyBucket>,
    inline_bytes_max: usize,
    outage: Arc<Mutex<Outage>>,
    /// The power has failed: what is acknowledged from now on is not.
    pub(super) is_dead: Arc<AtomicBool>,
}

impl Node {
    pub(super) fn new(
        disk: SimulatedDisk,
        clock: &Arc<VirtualClock>,
        bucket: Option<&FaultyBucket>,
        inline_bytes_max: usize,
    ) -> Node {
        disk.set_capacity(Some(DISK_BYTES));
        let is_dead = Arc::new(AtomicBool::new(false));
        let bucket = bucket.map(|bucket| bucket.for_node(Arc::clone(&is_dead)));
        let service = open(&disk, clock, bucket.as_ref(), inline_bytes_max, false);
        let outage = Arc::default();
        Node { disk, service, clock: Arc::clone(clock), bucket, inline_bytes_max, outage, is_dead }
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
        // The old process ends first: it removes files that nothing uses any more.
        let idle = SimulatedDisk::new(DiskState::default());
        self.service = open(&idle, &self.clock, self.bucket.as_ref(), self.inline_bytes_max, false);
        self.disk = SimulatedDisk::new(state);
        self.disk.set_capacity(Some(DISK_BYTES));
        self.is_dead.store(false, Ordering::Relaxed);
        self.service = open(&self.disk, &self.clock, self.bucket.as_ref(), self.inline_bytes_max, reindex);
    }

    /// Ends the process and starts another.
    pub(super) fn restart(&mut self, reindex: bool) {
        let idle = SimulatedDisk::new(DiskState::default());
        self.service = open(&idle, &self.clock, self.bucket.as_ref(), self.inline_bytes_max, false);
        self.restart_from(self.disk.state(), reindex);
    }
}

fn open(
    disk: &SimulatedDisk,
    clock: &Arc<VirtualClock>,
    bucket: Option<&FaultyBucket>,
    inline_bytes_max: usize,
    reindex: bool,
) -> Arc<Service> {
    let options = Options {
        inline_bytes_max,
        segment_bytes_max: 4_000,
        reserve_bytes: 2_000,
        zero_bytes: 500,
        checkpoint_bytes: 2_000,
        index_cache_bytes: 1 << 14,
        disk_reserve_bytes: 60_000,
        free_bytes_min: 1_000,
        ..Options::default()
    };
    let fs = Arc::new(disk.clone());
    let store = if reindex { Store::reindex(fs, options) } else { Store::open(fs, options) };
    let store = store.expect("the store opens in spite of the damage");
    let origin = match bucket {
        Some(bucket) => Origin::Tier(Tier::over(Arc::new(bucket.clone()))),
        None => Origin::Alone,
    };
    let clock: Arc<dyn Clock> = Arc::<VirtualClock>::clone(clock);
    Service::with_clock(store, Rules::default(), origin, clock)
}
