//! A store over a disk that fails in every way, driven by a random mix of all operations, against a
//! model of every ref and blob.
//!
//! A seed is a life of one store: phases of operations, each of which ends with a restart, a power
//! failure, an index that is built again, or flipped bits while the store is closed. After each
//! phase everything is compared: an acknowledged change is there; a key that a flip may have hit is
//! as acknowledged or missing, never wrong, never an older version.
//!
//! `THRONG_SEED=N` runs one seed, `THRONG_SEEDS=N` so many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use throng_ddc::gc::RefPolicy;
use throng_ddc::{Bucket, Document, IoHash, Key, Namespace, Style, Timestamp, Value};
use throng_ddc_store::{
    ChangeResult, CollectOptions, EvictOptions, Options, PutRef, RefValue, Store, StoreError,
};
use throng_platform::{DiskState, SimulatedDisk};
use throng_stdx::Rng;

const SEEDS: u64 = 300;
const PHASES: u64 = 6;
const REFS: u64 = 12;
const MINUTE_MS: u64 = 60_000;

/// State of a key: the values that it may have.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Bytes of every blob that was ever put.
    bytes: BTreeMap<IoHash, Bytes>,
    /// Blobs that were acknowledged and neither deleted nor collected.
    blobs: BTreeSet<IoHash>,
    /// Acknowledged values; several while it is unknown which of them a crash left.
    refs: BTreeMap<Key, Vec<Option<RefValue>>>,
}

struct World {
    rng: Rng,
    disk: SimulatedDisk,
    store: Arc<Store>,
    model: Model,
    now_ms: u64,
    /// Bits that flipped so far, and keys that they took.
    flips: usize,
    lost: usize,
}

#[test]
fn nothing_acknowledged_is_lost_wrong_or_older() {
    if let Some(seed) = number("THRONG_SEED") {
        return live(seed);
    }
    for seed in 0..number("THRONG_SEEDS").unwrap_or(SEEDS) {
        let run = std::panic::catch_unwind(|| live(seed));
        assert!(run.is_ok(), "replay with THRONG_SEED={seed}");
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn live(seed: u64) {
    let disk = SimulatedDisk::new(DiskState::default());
    let store = open(&disk, false);
    let mut world = World {
        rng: Rng::new(seed),
        disk,
        store,
        model: Model::default(),
        now_ms: 1_700_000_000_000,
        flips: 0,
        lost: 0,
    };
    for _ in 0..PHASES {
        for _ in 0..world.rng.below(40) {
            world.step();
        }
        world.end_phase();
    }
    world.heal();
}

fn options() -> Options {
    Options {
        inline_bytes_max: 64,
        segment_bytes_max: 4_000,
        reserve_bytes: 2_000,
        zero_bytes: 500,
        checkpoint_bytes: 2_000,
        index_cache_bytes: 1 << 14,
        disk_reserve_bytes: 0,
        free_bytes_min: 0,
        ..Options::default()
    }
}

fn open(disk: &SimulatedDisk, reindex: bool) -> Arc<Store> {
    let fs = Arc::new(disk.clone());
    let opened = if reindex { Store::reindex(fs, options()) } else { Store::open(fs, options()) };
    opened.expect("the store opens, whatever happened to the disk")
}

fn namespace() -> Namespace {
    "test".parse().expect("a name")
}

fn bucket() -> Bucket {
    "default".parse().expect("a name")
}

impl World {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_ms(self.now_ms)
    }

    fn step(&mut self) {
        self.now_ms += self.rng.below(10 * MINUTE_MS);
        match self.rng.below(20) {
            0..=5 => self.put_blob(),
            6..=11 => self.put_ref(),
            12..=13 => self.delete_ref(),
            14 => self.delete_blob(),
            15 => self.collect(),
            16 => self.evict(),
            17 => {
                self.store.scrub(&mut |_| {}).expect("the index is sound");
            }
            18 => self.store.checkpoint().expect("the disk works"),
            _ => self.store.merge().expect("the index is sound"),
        }
    }

    /// Makes a change and waits for its acknowledgement.
    fn commit(&self, change: impl FnOnce(throng_ddc_store::Done)) -> Result<ChangeResult, StoreError> {
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        change(Box::new(move |done| *slot.lock().expect("no panic") = Some(done)));
        self.store.commit();
        let result = result.lock().expect("no panic").take();
        result.expect("every change is answered")
    }

    fn put_blob(&mut self) {
        let mut bytes = vec![0; [0, 1, 90, 600, 1_500][self.rng.below(5) as usize]];
        self.rng.fill(&mut bytes);
        let bytes = Bytes::from(bytes);
        let hash = IoHash::of(&bytes);
        let result = if self.rng.chance(0.2) {
            let mut writer = self.store.begin_large().expect("the disk works");
            bytes.chunks(400).for_each(|piece| writer.write(piece).expect("the disk works"));
            let now = self.now();
            self.commit(|done| self.store.put_large(&namespace(), writer, now, done).expect("the disk works"))
        } else {
            self.commit(|done| self.store.put_blob(&namespace(), hash, bytes.clone(), self.now(), done))
        };
        result.expect("the disk works");
        self.model.bytes.insert(hash, bytes);
        self.model.blobs.insert(hash);
    }

    fn put_ref(&mut self) {
        let stored: Vec<IoHash> = self.model.blobs.iter().copied().collect();
        let count = if stored.is_empty() { 0 } else { self.rng.below(3) };
        let attached: Vec<IoHash> =
            (0..count).map(|_| stored[self.rng.below(stored.len() as u64) as usize]).collect();
        let fields = attached.iter().map(|hash| Value::BinaryAttachment(*hash)).collect();
        let object =
            Value::object([("payload", Value::Array(fields)), ("n", Value::Integer(self.rng.next_u64()))]);
        let bytes = Bytes::from(object.encode(Style::Plain));
        let value = RefValue {
            object: IoHash::of(&bytes),
            finalised: true,
            put: self.now(),
            inline: Some(bytes),
            adopted: false,
        };
        let key = self.key();
        let put = PutRef {
            namespace: namespace(),
            bucket: bucket(),
            key,
            value: value.clone(),
            overwrite: true,
            relies_on: attached,
        };
        match self.commit(|done| self.store.put_ref(put, done)).expect("the disk works") {
            ChangeResult::Done => drop(self.model.refs.insert(key, vec![Some(value)])),
            // A flip took a blob that the model still has: nothing was put.
            ChangeResult::Lost => {}
            other => panic!("a ref was put: {other:?}"),
        }
    }

    fn key(&mut self) -> Key {
        format!("{:040}", self.rng.below(REFS)).parse().expect("a key")
    }

    fn delete_ref(&mut self) {
        let key = self.key();
        self.commit(|done| self.store.delete_ref(&namespace(), &bucket(), &key, done))
            .expect("the disk works");
        self.model.refs.insert(key, vec![None]);
    }

    fn delete_blob(&mut self) {
        let blobs: Vec<IoHash> = self.model.blobs.iter().copied().collect();
        if blobs.is_empty() {
            return;
        }
        let hash = blobs[self.rng.below(blobs.len() as u64) as usize];
        self.commit(|done| self.store.delete_blob(&namespace(), &hash, done)).expect("the disk works");
        self.model.blobs.remove(&hash);
    }

    /// Blobs that a ref which is surely there reaches.
    fn reached(&self) -> BTreeSet<IoHash> {
        let mut reached = BTreeSet::new();
        for value in self.model.refs.values().flatten().flatten() {
            let object = value.inline.as_ref().expect("it is inline");
            let document = Document::parse(object).expect("it was put whole");
            reached.extend(document.attachments().iter().map(|attachment| attachment.hash));
        }
        reached
    }

    fn collect(&mut self) {
        let policy = |_: &Namespace| RefPolicy::Keep;
        let options = CollectOptions {
            now: self.now(),
            policy: &policy,
            last_access: &|_, _, _| None,
            blob_age_min: Duration::from_secs(1800),
        };
        self.store.collect(&options).expect("the disk works");
        self.learn_removals();
    }

    fn evict(&mut self) {
        let options = EvictOptions {
            bytes_max: 2_000 + self.rng.below(20_000),
            copies: false,
            now: self.now(),
            blob_age_min: Duration::from_secs(1800),
            keeps: &|_| false,
            last_use: &|_| None,
            last_access: &|_, _, _| None,
        };
        self.store.evict(&options).expect("the disk works");
        // Refs that were evicted are gone for good.
        let keys: Vec<Key> = self.model.refs.keys().copied().collect();
        for key in keys {
            if self.store.reference(&namespace(), &bucket(), &key).expect("readable").is_none() {
                self.model.refs.insert(key, vec![None]);
            }
        }
        self.learn_removals();
    }

    /// A blob that no ref reaches may have been removed; every other is still there.
    fn learn_removals(&mut self) {
        let reached = self.reached();
        self.model.blobs.retain(|hash| {
            let held = self.store.has_blob(&namespace(), hash).expect("readable");
            assert!(held || !reached.contains(hash), "blob {hash} was removed although a ref reaches it");
            held
        });
    }

    fn end_phase(&mut self) {
        match self.rng.below(6) {
            0 => {
                self.reopen(false);
                self.check();
            }
            1 => {
                self.reopen(true);
                self.check();
            }
            2 | 3 => self.crash(),
            _ => self.flip(),
        }
    }

    fn reopen(&mut self, reindex: bool) {
        // The old store gives its files back before the new one reads them.
        self.store =
            Store::open(Arc::new(SimulatedDisk::new(DiskState::default())), options()).expect("empty");
        self.store = open(&self.disk, reindex);
    }

    /// The power fails at some write of the next operations.
    fn crash(&mut self) {
        let states = Arc::new(Mutex::new((self.rng.below(60), None::<(DiskState, u64)>, 0_u64)));
        let slot = Arc::clone(&states);
        self.disk.set_hook(Some(Box::new(move |state| {
            let mut slot = slot.lock().expect("no panic");
            if slot.0 == 0 && slot.1.is_none() {
                let steps = slot.2;
                slot.1 = Some((state.clone(), steps));
            }
            slot.0 = slot.0.saturating_sub(1);
            Ok(())
        })));
        let mut before = self.model.clone();
        let mut after = self.model.clone();
        for _ in 0..30 {
            before = self.model.clone();
            self.step();
            after = self.model.clone();
            if states.lock().expect("no panic").1.is_some() {
                break;
            }
        }
        self.disk.set_hook(None);
        let failed = states.lock().expect("no panic").1.take();
        let state = match failed {
            Some((state, _)) => state.after_power_failure(&mut self.rng),
            None => {
                before = after.clone();
                self.disk.state().after_power_failure(&mut self.rng)
            }
        };
        self.disk = SimulatedDisk::new(state);
        self.reopen(self.rng.clone().chance(0.3));
        // The operation in which the power failed was made or not, each of its changes for itself.
        self.model.bytes.extend(before.bytes);
        self.model.blobs = before.blobs.intersection(&after.blobs).copied().collect();
        for (key, values) in after.refs {
            let mut possible = before.refs.remove(&key).unwrap_or_else(|| vec![None]);
            possible.extend(values);
            self.model.refs.insert(key, possible);
        }
        self.check();
    }

    /// Bits flip while the store is closed.
    fn flip(&mut self) {
        // Damage in the last commit would look like a torn write, so that another segment follows
        // it.
        self.store.checkpoint().expect("the disk works");
        self.reopen(false);
        self.store =
            Store::open(Arc::new(SimulatedDisk::new(DiskState::default())), options()).expect("empty");
        let mut state = self.disk.state();
        let prefix = ["segments/", "segments/", "index/", "large/", ""][self.rng.below(5) as usize];
        let flipped = state.flip_a_bit(prefix, &mut self.rng);
        self.disk = SimulatedDisk::new(state);
        self.store = open(&self.disk, self.rng.chance(0.5));
        self.flips += usize::from(flipped.is_some());
        self.check();
    }

    /// Compares everything. After damage a key may be missing, and stays so.
    fn check(&mut self) {
        let damage = self.flips > 0;
        let mut missing = Vec::new();
        for hash in self.model.blobs.clone() {
            match self.store.read_blob(&namespace(), &hash).expect("readable") {
                Some(bytes) => assert_eq!(bytes, self.model.bytes[&hash], "blob {hash}"),
                None => {
                    assert!(damage, "blob {hash} is missing");
                    missing.push(hash.to_string());
                    self.model.blobs.remove(&hash);
                }
            }
        }
        for (key, values) in &mut self.model.refs {
            let found = self.store.reference(&namespace(), &bucket(), key).expect("readable");
            if !values.contains(&found) {
                assert!(damage && found.is_none(), "ref {key} is {found:?}, not one of {values:?}");
                missing.push(key.to_string());
            }
            if let Some(value) = &found {
                let object = self.store.object(&namespace(), value).expect("readable").expect("it is inline");
                assert_eq!(IoHash::of(&object), value.object);
            }
            *values = vec![found];
        }
        // A bit takes the key whose record it is in, perhaps not before the index is built again.
        // Records of what was lost earlier name as many keys as that was.
        assert!(missing.len() <= self.flips + self.lost, "{} bits took {missing:?}", self.flips);
        self.lost += missing.len();
        self.store.commit();
    }

    /// Without faults, everything can be stored, and all garbage goes.
    fn heal(&mut self) {
        self.put_blob();
        self.put_ref();
        self.check();
        let keys: Vec<Key> = self.model.refs.keys().copied().collect();
        for key in keys {
            self.commit(|done| self.store.delete_ref(&namespace(), &bucket(), &key, done)).expect("writable");
            self.model.refs.insert(key, vec![None]);
        }
        self.now_ms += 10 * 3600 * 1000;
        self.collect();
        assert!(self.model.blobs.is_empty(), "no ref reaches anything");
        self.collect();
        self.collect();
        let bytes = self.store.disk_bytes() - self.store.index_bytes();
        assert!(bytes < 12_000, "{bytes} bytes are still used");
        self.reopen(true);
        self.check();
    }
}
