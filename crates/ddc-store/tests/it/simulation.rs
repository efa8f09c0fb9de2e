//! A store over a disk that fails in every way, driven by a random mix of all operations, against a
//! model of every ref and blob.
//!
//! A seed is a life of one store: phases of operations, each of which ends with a restart, a power
//! failure, an index that is built again, writes and syncs that fail, a full disk, a part of the
//! open segment that reads as zeros after the process was killed, an end of the log or another part
//! that is missing after a clean stop, or bits that flip and sectors that are written to the wrong
//! place while the store is closed. After each phase everything is compared: an acknowledged change
//! is there; a key that damage may have hit is as acknowledged or missing, never wrong, never an
//! older version. Damage that takes a record together with its commit and the directory of its
//! segment leaves nothing that names the key: then, as in lives that end with a disk that lied
//! about syncs, a key has some value that it was given, or is missing.
//!
//! `THRONG_SEED=N` runs one seed, `THRONG_SEEDS=N` so many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use throng_ddc::gc::RefPolicy;
use throng_ddc::{Bucket, Document, IoHash, Key, Namespace, Style, Timestamp, Value};
use throng_ddc_store::{
    ChangeResult, CollectOptions, EvictOptions, LargeWriter, Options, PutRef, Quotas, RefValue, Store,
    StoreError,
};
use throng_platform::{DiskState, Fs as _, SimulatedDisk};
use throng_stdx::Rng;

/// About 20 seconds of one core in the development profile: 41 ms a seed.
const SEEDS: u64 = 450;
const PHASES: u64 = 6;
const REFS: u64 = 12;
const MINUTE_MS: u64 = 60_000;
/// Keys that two sectors hold at most.
const SECTOR_KEYS_MAX: usize = 16;
/// Keys that a segment holds at most.
const SEGMENT_KEYS_MAX: usize = 64;
/// Bytes of the open segment that read as zeros at most: its commits name the keys of so many.
const ZEROS_MAX: u64 = 600;
const RESERVE_BYTES: u64 = 60_000;
/// Bytes that the disk has while it is not full.
const DISK_BYTES: u64 = 64 << 20;

/// State of a key: the values that it may have.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Bytes of every blob that was ever put.
    bytes: BTreeMap<IoHash, Bytes>,
    /// Blobs that were acknowledged and neither deleted nor collected.
    blobs: BTreeSet<IoHash>,
    /// Acknowledged values; several while it is unknown which of them a crash left.
    refs: BTreeMap<Key, Vec<Option<RefValue>>>,
    /// Every value that a ref was asked to have.
    history: BTreeMap<Key, Vec<RefValue>>,
    /// Values that the last operation put, in its order.
    put: Vec<(Key, RefValue)>,
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
    /// A segment has lost its directory, or never had one.
    is_unnamed: bool,
    /// Writes and syncs fail now.
    fails: bool,
    /// The disk has no space now.
    is_full: bool,
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
    disk.set_capacity(Some(DISK_BYTES));
    let store = open(&disk, false);
    let mut world = World {
        rng: Rng::new(seed),
        disk,
        store,
        model: Model::default(),
        now_ms: 1_700_000_000_000,
        flips: 0,
        lost: 0,
        is_unnamed: false,
        fails: false,
        is_full: false,
    };
    for _ in 0..PHASES {
        for _ in 0..world.rng.below(40) {
            world.step();
        }
        world.end_phase();
    }
    if world.rng.chance(0.2) {
        return world.lie();
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
        disk_reserve_bytes: RESERVE_BYTES,
        free_bytes_min: 1_000,
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
        self.model.put.clear();
        match self.rng.below(22) {
            0..=5 => self.put_blob(),
            6..=9 => self.put_refs(1),
            10..=11 => {
                let count = 1 + self.rng.below(5);
                self.put_refs(count);
            }
            12..=13 => self.delete_ref(),
            14 => self.delete_blob(),
            15 => self.collect(),
            16 => self.evict(),
            17 => self.may_fail(self.store.scrub(&mut |_| {}).map(drop)),
            18 => self.may_fail(self.store.checkpoint()),
            19 => self.set_quota(),
            20 => self.put_content(),
            // It writes as much as it merges: a full disk has no space for that.
            _ => self
                .may_fail(self.store.merge().or_else(|error| if self.is_full { Ok(()) } else { Err(error) })),
        }
    }

    /// Checks that something only fails while the disk does.
    fn may_fail(&self, result: Result<(), StoreError>) {
        assert!(result.is_ok() || self.fails, "{result:?}");
    }

    /// Makes a change and waits for its acknowledgement.
    fn commit(&self, change: impl FnOnce(throng_ddc_store::Done)) -> Result<ChangeResult, StoreError> {
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        change(Box::new(move |done| *slot.lock().expect("no panic") = Some(done)));
        self.store.commit();
        let result = result.lock().expect("no panic").take();
        let result = result.expect("every change is answered");
        let is_full = matches!(result, Err(StoreError::Full)) && self.is_full;
        assert!(result.is_ok() || self.fails || is_full, "{result:?}");
        result
    }

    /// Quotas refuse uploads, and take nothing away.
    fn set_quota(&mut self) {
        let default = self.rng.chance(0.3).then(|| self.rng.below(30_000));
        self.store.set_quotas(Quotas { default, ..Quotas::default() });
    }

    /// Forms of content ids point to blobs, and go with them.
    fn put_content(&mut self) {
        let Some(blob) = self.any_blob() else { return };
        let id = IoHash::of(&[self.rng.below(4) as u8]);
        let form = (self.rng.below(3), blob, self.rng.chance(0.5));
        if self.commit(|done| self.store.put_content(&namespace(), id, form, done)).is_err() {
            return;
        }
        if let Some(found) = self.store.content(&namespace(), &id).expect("readable") {
            assert!(self.store.has_blob(&namespace(), &found).expect("readable"), "a form without its blob");
        }
    }

    fn any_blob(&mut self) -> Option<IoHash> {
        let count = self.model.blobs.len() as u64;
        let at = self.rng.below(count.max(1)) as usize;
        self.model.blobs.iter().nth(at).copied()
    }

    fn put_blob(&mut self) {
        let mut bytes = vec![0; [0, 1, 90, 600, 1_500][self.rng.below(5) as usize]];
        self.rng.fill(&mut bytes);
        let bytes = Bytes::from(bytes);
        let hash = IoHash::of(&bytes);
        // Even a failed put may leave the blob readable.
        self.model.bytes.insert(hash, bytes.clone());
        let result = if self.rng.chance(0.2) {
            self.put_large(&bytes)
        } else {
            self.commit(|done| self.store.put_blob(&namespace(), hash, bytes.clone(), self.now(), done))
        };
        if matches!(result, Ok(ChangeResult::Done | ChangeResult::Unchanged)) {
            self.model.blobs.insert(hash);
        }
    }

    fn put_large(&self, bytes: &[u8]) -> Result<ChangeResult, StoreError> {
        let write = || -> Result<LargeWriter, StoreError> {
            let mut writer = self.store.begin_large()?;
            bytes.chunks(400).try_for_each(|piece| writer.write(piece))?;
            Ok(writer)
        };
        let writer = match write() {
            Ok(writer) => writer,
            Err(error) => {
                assert!(self.fails || self.is_full, "{error:?}");
                return Err(error);
            }
        };
        let mut sealed = Ok(());
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        let done = Box::new(move |done| *slot.lock().expect("no panic") = Some(done));
        if let Err(error) = self.store.put_large(&namespace(), writer, self.now(), done) {
            sealed = Err(error);
        }
        self.store.commit();
        let result = result.lock().expect("no panic").take();
        if let Err(error) = sealed {
            assert!(self.fails || self.is_full, "{error:?}");
            return Err(error);
        }
        let result = result.expect("every change is answered");
        assert!(result.is_ok() || self.fails || self.is_full, "{result:?}");
        result
    }

    /// Puts refs in one batch.
    fn put_refs(&mut self, count: u64) {
        let results = Arc::new(Mutex::new(Vec::new()));
        let mut values = Vec::new();
        for number in 0..count {
            let (put, value) = self.any_ref();
            values.push((put.key, value.clone()));
            self.model.history.entry(put.key).or_default().push(value);
            let slot = Arc::clone(&results);
            let done = move |done| slot.lock().expect("no panic").push((number, done));
            self.store.put_ref(put, Box::new(done));
        }
        self.store.commit();
        let mut results = std::mem::take(&mut *results.lock().expect("no panic"));
        results.sort_by_key(|(number, _)| *number);
        assert_eq!(results.len(), values.len(), "every change is answered");
        for ((_, result), (key, value)) in results.into_iter().zip(values) {
            match result {
                Ok(ChangeResult::Done) => {
                    self.model.put.push((key, value.clone()));
                    self.model.refs.insert(key, vec![Some(value)]);
                }
                // A flip took a blob that the model still has: nothing was put.
                Ok(ChangeResult::Lost | ChangeResult::OverQuota) => {}
                Err(StoreError::Full) if self.is_full => {}
                Err(_) if self.fails => self.is_unsure_of(key, Some(value)),
                other => panic!("a ref was put: {other:?}"),
            }
        }
    }

    /// A change failed: a key may have the new value or the old one.
    fn is_unsure_of(&mut self, key: Key, value: Option<RefValue>) {
        self.model.refs.entry(key).or_insert_with(|| vec![None]).push(value);
    }

    fn any_ref(&mut self) -> (PutRef, RefValue) {
        let count = self.rng.below(3);
        let attached: Vec<IoHash> = (0..count).filter_map(|_| self.any_blob()).collect();
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
        (put, value)
    }

    fn key(&mut self) -> Key {
        format!("{:040}", self.rng.below(REFS)).parse().expect("a key")
    }

    fn delete_ref(&mut self) {
        let key = self.key();
        match self.commit(|done| self.store.delete_ref(&namespace(), &bucket(), &key, done)) {
            Ok(_) => drop(self.model.refs.insert(key, vec![None])),
            Err(error) => {
                assert!(self.fails, "a full disk takes deletes: {error}");
                self.is_unsure_of(key, None);
            }
        }
    }

    fn delete_blob(&mut self) {
        let Some(hash) = self.any_blob() else { return };
        let result = self.commit(|done| self.store.delete_blob(&namespace(), &hash, done));
        assert!(result.is_ok() || self.fails, "a full disk takes deletes: {result:?}");
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
        let expiring = RefPolicy::Ttl(Duration::from_secs(3600 * self.rng.below(5)));
        let policy_now = if self.rng.chance(0.3) { expiring } else { RefPolicy::Keep };
        let policy = |_: &Namespace| policy_now;
        let options = CollectOptions {
            now: self.now(),
            policy: &policy,
            last_access: &|_, _, _| None,
            blob_age_min: Duration::from_secs(1800),
        };
        let (failures, before) = (self.store.stats().failures, self.visible_refs());
        let result = self.store.collect(&options).map(drop);
        self.may_fail(result);
        self.learn_removed_refs(before, failures);
        self.learn_removals(failures);
    }

    fn evict(&mut self) {
        let options = EvictOptions {
            bytes_max: 2_000 + self.rng.below(20_000),
            copies: false,
            now: self.now(),
            keeps: &|_| false,
            last_use: &|_| None,
            last_access: &|_, _, _| None,
        };
        let (failures, before) = (self.store.stats().failures, self.visible_refs());
        let result = self.store.evict(&options).map(drop);
        self.may_fail(result);
        self.learn_removed_refs(before, failures);
        self.learn_removals(failures);
    }

    /// Refs of `before` that are no longer visible were removed, and that was acknowledged. Other
    /// removals may have failed, and be found to be made.
    fn learn_removed_refs(&mut self, before: BTreeSet<Key>, failures: u64) {
        let after = self.visible_refs();
        for key in before {
            if !after.contains(&key) {
                self.model.refs.insert(key, vec![None]);
            } else if self.store.stats().failures > failures {
                self.is_unsure_of(key, None);
            }
        }
    }

    fn visible_refs(&self) -> BTreeSet<Key> {
        let is_there =
            |key: &&Key| self.store.reference(&namespace(), &bucket(), key).expect("readable").is_some();
        self.model.refs.keys().filter(is_there).copied().collect()
    }

    /// A blob that no ref reaches may have been removed; every other is still there.
    fn learn_removals(&mut self, failures: u64) {
        let reached = self.reached();
        if self.store.stats().failures > failures {
            // Removals that failed may be found to be made.
            self.model.blobs.retain(|hash| reached.contains(hash));
        }
        let fails = self.fails;
        self.model.blobs.retain(|hash| {
            let held = self.store.has_blob(&namespace(), hash).expect("readable");
            assert!(
                held || fails || !reached.contains(hash),
                "blob {hash} was removed although a ref reaches it"
            );
            held
        });
    }

    fn end_phase(&mut self) {
        match self.rng.below(12) {
            11 => self.lose(),
            9 => self.kill(),
            10 => self.cut(),
            6 => self.fail(),
            7 => self.fill(),
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
        self.close();
        self.store = open(&self.disk, reindex);
    }

    /// Ends the store: it gives its files back before the next one reads them.
    fn close(&mut self) {
        self.store =
            Store::open(Arc::new(SimulatedDisk::new(DiskState::default())), options()).expect("empty");
    }

    /// Writes and syncs fail, perhaps in part.
    fn fail(&mut self) {
        self.fails = true;
        let mut rng = Rng::new(self.rng.next_u64());
        self.disk.set_hook(Some(Box::new(move |_| match rng.chance(0.05) {
            true => Err(std::io::ErrorKind::Other.into()),
            false => Ok(()),
        })));
        for _ in 0..self.rng.below(20) {
            self.step();
        }
        // The next start decides between the outcomes that the last writes left open.
        self.disk.set_hook(None);
        self.close();
        if self.rng.chance(0.5) {
            let state = self.disk.state().after_power_failure(&mut self.rng);
            self.disk = SimulatedDisk::new(state);
        }
        self.fails = false;
        self.reopen(self.rng.clone().chance(0.3));
        self.check();
    }

    /// The disk has little or no space: uploads may be refused, nothing else is.
    fn fill(&mut self) {
        self.store.look_at_disk();
        let free = self.disk.free_bytes().expect("known").expect("it has an end");
        self.is_full = true;
        self.disk.set_capacity(Some(DISK_BYTES - free + self.rng.below(3_000)));
        for _ in 0..self.rng.below(20) {
            if self.rng.chance(0.3) {
                self.store.look_at_disk();
            }
            self.step();
        }
        self.disk.set_capacity(Some(DISK_BYTES));
        self.is_full = false;
        self.store.look_at_disk();
        self.check();
        self.put_blob();
    }

    /// The power fails on a disk that lied about syncs.
    fn lie(&mut self) {
        self.disk.set_lies(true);
        for _ in 0..self.rng.below(20) {
            self.step();
        }
        self.close();
        self.disk = SimulatedDisk::new(self.disk.state().after_power_failure(&mut self.rng));
        for reindex in [false, true] {
            self.reopen(reindex);
            for (hash, bytes) in &self.model.bytes {
                let found = self.store.read_blob(&namespace(), hash).expect("readable");
                assert!(found.is_none_or(|found| found == *bytes), "blob {hash}");
            }
            for (key, values) in &self.model.history {
                let found = self.store.reference(&namespace(), &bucket(), key).expect("readable");
                assert!(found.is_none_or(|found| values.contains(&found)), "ref {key}");
            }
        }
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
        // Otherwise the power failed between operations.
        let is_in_operation = failed.is_some();
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
            // One operation may put several values of a key, but none that it refused.
            let put = after.put.iter().filter(|(name, _)| is_in_operation && *name == key);
            possible.extend(put.map(|(_, value)| Some(value.clone())));
            self.model.refs.insert(key, possible);
        }
        self.check();
    }

    /// The last segment that has records, and where they end.
    fn end_of_log(&self) -> Option<(String, u64)> {
        let names = self.disk.list("segments").expect("the folder exists");
        names.iter().rev().find_map(|name| {
            let name = format!("segments/{name}");
            let file = self.disk.open(&name, false).expect("it is listed");
            let mut bytes = vec![0; file.len().expect("known") as usize];
            file.read_at(&mut bytes, 0).expect("readable");
            bytes.iter().rposition(|byte| *byte != 0).map(|last| (name, last as u64 + 1))
        })
    }

    /// The process is killed, and a part of the open segment reads as zeros behind which the log
    /// goes on.
    fn kill(&mut self) {
        // Damage twice may be of a record and of what names it.
        if self.flips > 0 {
            return;
        }
        self.store.set_quotas(Quotas::default());
        self.put_refs(1);
        let Some((name, end)) = self.end_of_log() else { return };
        for _ in 0..3 {
            self.put_refs(1);
        }
        // A segment that ended meanwhile has its directory.
        let state = self.disk.state();
        self.close();
        self.disk = SimulatedDisk::new(state);
        let from = self.rng.below(end);
        let len = (1 + self.rng.below(ZEROS_MAX)).min(end - from);
        let file = self.disk.open(&name, false).expect("it is listed");
        file.write_at(&[std::io::IoSlice::new(&vec![0; len as usize])], from).expect("writable");
        file.sync().expect("writable");
        self.flips += SECTOR_KEYS_MAX;
        self.store = open(&self.disk, self.rng.clone().chance(0.5));
        self.check();
        self.reopen(true);
        self.check();
        self.is_unnamed = true;
    }

    /// The end of the log is missing after a clean stop, or reads as zeros.
    fn cut(&mut self) {
        if self.flips > 0 {
            return;
        }
        self.store.checkpoint().expect("the disk works");
        self.close();
        let Some((name, end)) = self.end_of_log() else { return self.reopen(false) };
        let file = self.disk.open(&name, false).expect("it is listed");
        let len = file.len().expect("known");
        file.set_len(end - (1 + self.rng.below(2 * ZEROS_MAX)).min(end)).expect("writable");
        if self.rng.chance(0.5) {
            file.set_len(len).expect("writable");
        }
        file.sync().expect("writable");
        self.flips += 2 * SECTOR_KEYS_MAX;
        self.store = open(&self.disk, self.rng.clone().chance(0.5));
        assert!(self.store.opening().log_gaps > 0, "the end of the log is missing");
        self.check();
        self.reopen(true);
        self.check();
        self.is_unnamed = true;
    }

    /// A segment before the last is shorter than it was, or gone.
    fn lose(&mut self) {
        if self.flips > 0 {
            return;
        }
        self.store.checkpoint().expect("the disk works");
        self.close();
        let mut ends = Vec::new();
        for name in self.disk.list("segments").expect("the folder exists") {
            let name = format!("segments/{name}");
            let file = self.disk.open(&name, false).expect("it is listed");
            let mut bytes = vec![0; file.len().expect("known") as usize];
            file.read_at(&mut bytes, 0).expect("readable");
            let end = bytes.iter().rposition(|byte| *byte != 0);
            ends.extend(end.map(|last| (name, file, last as u64)));
        }
        ends.pop();
        if ends.is_empty() {
            return self.reopen(false);
        }
        let (name, file, end) = &ends[self.rng.below(ends.len() as u64) as usize];
        if self.rng.chance(0.5) {
            self.disk.remove(name).expect("it is listed");
            self.disk.sync_dir("segments").expect("the disk works");
        } else {
            file.set_len(self.rng.below(*end)).expect("writable");
            file.sync().expect("writable");
        }
        self.flips += SEGMENT_KEYS_MAX;
        self.store = open(&self.disk, self.rng.clone().chance(0.5));
        assert!(self.store.opening().log_gaps > 0, "a part of a segment is missing");
        self.check();
        self.reopen(true);
        self.check();
        self.is_unnamed = true;
    }

    /// Bits flip while the store is closed.
    fn flip(&mut self) {
        self.store.checkpoint().expect("the disk works");
        self.close();
        let mut state = self.disk.state();
        let prefix = ["segments/", "segments/", "index/", "large/", ""][self.rng.below(5) as usize];
        let is_flip = self.rng.chance(0.7);
        let is_hit = match is_flip {
            true => state.flip_a_bit(prefix, &mut self.rng).is_some(),
            false => state.misdirect(prefix, &mut self.rng).is_some(),
        };
        self.disk = SimulatedDisk::new(state);
        self.is_unnamed |= !self.are_segments_named();
        self.store = open(&self.disk, self.rng.chance(0.5));
        let taken = if is_flip { 1 } else { SECTOR_KEYS_MAX };
        self.flips += if is_hit { taken } else { 0 };
        self.check();
    }

    /// Reports whether every segment ends with its directory.
    fn are_segments_named(&self) -> bool {
        let names = self.disk.list("segments").expect("the folder exists");
        names.iter().all(|name| {
            let file = self.disk.open(&format!("segments/{name}"), false).expect("it is listed");
            let mut bytes = vec![0; file.len().expect("known") as usize];
            file.read_at(&mut bytes, 0).expect("readable");
            let Some(at) = bytes.windows(4).rposition(|magic| magic == b"TDC2") else {
                return bytes.is_empty();
            };
            let nonce = u64::from_str_radix(&name[17..33], 16).expect("a segment's name");
            let record = &bytes[at..];
            let place = nonce.wrapping_add(at as u64).to_le_bytes();
            record.len() >= 40
                && record[8] == 5
                && record[32..40] == place
                && crc32c::crc32c(&record[8..]).to_le_bytes() == record[4..8]
        })
    }

    /// Compares everything. After damage a key may be missing, and stays so.
    fn check(&mut self) {
        let damage = self.flips > 0;
        // One bit cannot be in a directory and in what it names.
        let may_be_older = self.is_unnamed && self.flips > 1;
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
                let is_older = found.as_ref().is_some_and(|found| self.model.history[key].contains(found));
                assert!(
                    damage && (found.is_none() || is_older && may_be_older),
                    "ref {key} is {found:?}, not one of {values:?}"
                );
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
        self.store.set_quotas(Quotas::default());
        self.put_blob();
        self.put_refs(1);
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
