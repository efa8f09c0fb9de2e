//! Space: full disks, limits of folders and namespaces, files that go.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use bytes::Bytes;
use throng_ddc::gc::RefPolicy;
use throng_ddc::{Bucket, IoHash, Key, Namespace, Style, Timestamp, Value};
use throng_ddc_store::{
    ChangeResult, Clock, CollectOptions, CollectReport, Done, EvictOptions, Options, Quotas, Store,
    StoreError,
};
use throng_platform::{File, Fs, SimulatedDisk};

use crate::common::*;

fn collect(store: &Store, minutes: u64) -> Result<CollectReport, StoreError> {
    store.collect(&CollectOptions {
        now: at(minutes),
        policy: &|_| RefPolicy::Keep,
        last_access: &|_, _, _| None,
        blob_age_min: Duration::from_secs(3600),
    })
}

fn evict(store: &Store, bytes_max: u64, minutes: u64, kept: Option<&Namespace>) -> CollectReport {
    let options = EvictOptions {
        bytes_max,
        copies: false,
        now: at(minutes),
        keeps: &|namespace| Some(namespace) == kept,
        last_use: &|_| None,
        last_access: &|_, _, _| None,
    };
    store.evict(&options).expect("the disk works")
}

#[test]
fn a_full_disk_takes_deletes_and_collections_and_uploads_again_when_there_is_space() {
    let disk = disk();
    let options = Options { disk_reserve_bytes: 150_000, free_bytes_min: 5_000, ..options() };
    let store = Store::open(Arc::new(disk.clone()), options).expect("it opens");
    disk.set_capacity(Some(u64::MAX));
    let used = u64::MAX - disk.free_bytes().expect("known").expect("it has an end");
    disk.set_capacity(Some(used + 360_000));
    store.look_at_disk();
    let mut n = 0_u64;
    let put = |n: u64| {
        let bytes = Bytes::from([n.to_le_bytes().as_slice(), &[1; 900]].concat());
        result(&store, |done| store.put_blob(&namespace(), IoHash::of(&bytes), bytes.clone(), at(0), done))
    };
    while put(n).is_ok() {
        n += 1;
        let put = reference(n, Vec::new(), 0, Vec::new());
        if result(&store, |done| store.put_ref(put, done)).is_err() {
            break;
        }
        store.look_at_disk();
    }
    assert!(n > 100, "only {n} blobs");
    assert!(store.space().is_full);
    // Another process takes what is left.
    let free = disk.free_bytes().expect("known").expect("it has an end");
    let other = disk.open("other", true).expect("the disk works");
    other.set_len(free).expect("the disk works");
    assert!(matches!(put(n), Err(StoreError::Full)));
    for gone in 1..=n {
        done(&store, |done| store.delete_ref(&namespace(), &bucket(), &key(gone), done));
    }
    let collected = collect(&store, 600).expect("a collection has space of its own");
    assert_eq!(collected.blobs, n);
    assert!(collected.segments > 0, "{collected:?}");
    store.look_at_disk();
    assert!(!store.space().is_full);
    assert_eq!(put(n).expect("there is space"), ChangeResult::Done);
}

#[test]
fn the_refs_that_were_unused_longest_go_first_with_what_only_they_reach() {
    let store = open(disk());
    let shared = put_blob(&store, &[200; 900]);
    for n in 0..100_u64 {
        let own = put_blob(&store, &[n as u8; 900]);
        put_ref(&store, n, &[own, shared], n);
    }
    // An old ref that is in use.
    store.note_accesses([(namespace(), bucket(), key(3), at(200))], Box::new(|_| {}));
    store.commit();
    let report = evict(&store, 80_000, 300, None);
    assert!(report.refs > 10 && report.blobs > 10, "{report:?}");
    let left: Vec<u64> = (0..100)
        .filter(|n| store.reference(&namespace(), &bucket(), &key(*n)).expect("readable").is_some())
        .collect();
    assert!(left.contains(&3) && left.contains(&99) && !left.contains(&0), "{left:?}");
    let oldest = *left.iter().find(|n| **n != 3).expect("some are left");
    assert_eq!(left.len() as u64, 100 - oldest + 1, "{left:?}: what stays was used later than all that went");
    for n in &left {
        let own = IoHash::of(&[*n as u8; 900]);
        assert!(store.has_blob(&namespace(), &own).expect("readable"), "the blob of ref {n}");
    }
    assert!(store.has_blob(&namespace(), &shared).expect("readable"));
}

/// Uses of three years ago cannot be told apart: an order that has nothing to do with the place in
/// the log would empty every segment by a part, and write the rest of each again.
#[test]
fn refs_of_one_age_go_in_the_order_of_the_log_so_that_little_is_moved() {
    let options = Options { segment_bytes_max: 64 << 10, ..Options::default() };
    let store = Store::open(Arc::new(disk()), options).expect("it opens");
    for n in 0..2_000_u64 {
        let own = put_blob(&store, &n.to_le_bytes().repeat(100));
        put_ref(&store, n, &[own], n / 60);
    }
    let before = store.usage(&namespace()).expect("readable").blobs;
    let three_years = 3 * 365 * 24 * 60;
    let report = evict(&store, store.disk_bytes() / 4 * 3, three_years, None);
    assert!(report.blobs > before / 8, "{report:?} of {before}");
    assert!(report.moved < before / 10, "{report:?} of {before}");
    let is_there = |n: &u64| store.reference(&namespace(), &bucket(), &key(*n)).expect("readable").is_some();
    let oldest = (0..2_000).find(is_there).expect("some are left");
    assert!((oldest..2_000).all(|n| is_there(&n)), "the first to be written go first");
}

#[test]
fn a_folder_of_eight_segments_stays_below_its_limit() {
    const BYTES_MAX: u64 = 8 << 20;
    let options = Options { segment_bytes_max: BYTES_MAX / 8, ..Options::default() };
    let store = Store::open(Arc::new(disk()), options).expect("it opens");
    for minute in 0..40_u64 {
        for n in 64 * minute..64 * (minute + 1) {
            let own = put_blob(&store, &n.to_le_bytes().repeat(2_000));
            put_ref(&store, n, &[own], minute);
        }
        evict(&store, BYTES_MAX, minute + 2, None);
        assert!(store.disk_bytes() <= BYTES_MAX, "minute {minute}: {}", store.disk_bytes());
        let newest = store.reference(&namespace(), &bucket(), &key(64 * minute + 63)).expect("readable");
        assert!(newest.is_some(), "what was just put stays");
    }
}

#[test]
fn nothing_of_a_namespace_that_is_kept_goes() {
    let store = open(disk());
    for n in 0..60_u64 {
        let own = put_blob(&store, &[n as u8; 900]);
        put_ref(&store, n, &[own], n);
    }
    let kept = namespace();
    let report = evict(&store, 10_000, 300, Some(&kept));
    assert_eq!((report.refs, report.blobs), (0, 0));
}

#[test]
fn a_namespace_that_is_kept_takes_no_uploads_while_the_folder_holds_too_much() {
    let disk = disk();
    let store = open(disk.clone());
    for n in 0..60_u64 {
        let own = put_blob(&store, &[n as u8; 900]);
        put_ref(&store, n, &[own], n);
    }
    let kept = namespace();
    evict(&store, 10_000, 300, Some(&kept));
    let put = |namespace: &Namespace, byte: u8| {
        let bytes = Bytes::from(vec![byte; 100]);
        result(&store, |done| store.put_blob(namespace, IoHash::of(&bytes), bytes.clone(), at(0), done))
    };
    let refused = put(&kept, 201).expect_err("they hold more than the folder may").to_string();
    assert!(
        refused.contains("namespace game (ddc.keep_namespaces)") && refused.contains("10000"),
        "{refused}"
    );
    let mut writer = store.begin_large().expect("other namespaces take uploads");
    writer.write(&[9; 5_000]).expect("the disk works");
    let large = result(&store, |done| store.put_large(&kept, writer, at(0), done).expect("the disk works"));
    assert!(matches!(large, Err(StoreError::Kept { .. })), "{large:?}");
    assert!(disk.list("large").expect("listed").is_empty(), "a refused upload leaves no file");
    assert_eq!(put(&"other".parse().expect("a name"), 201).expect("it is not kept"), ChangeResult::Done);
    for gone in 0..60 {
        done(&store, |done| store.delete_ref(&kept, &bucket(), &key(gone), done));
    }
    collect(&store, 600).expect("the disk works");
    evict(&store, 100_000, 601, Some(&kept));
    assert_eq!(put(&kept, 202).expect("there is space"), ChangeResult::Done);
}

/// Puts `count` blobs of 900 bytes with a ref each, within one second.
fn put_burst(store: &Store, count: u64) {
    for n in 0..count {
        let bytes = n.to_le_bytes().repeat(113);
        put_ref(store, n, &[put_blob(store, &bytes)], 0);
    }
}

/// Refs of a burst, and blobs.
fn counts(store: &Store) -> (u64, u64) {
    let usage = store.usage(&namespace()).expect("readable");
    (usage.refs, usage.blobs)
}

#[test]
fn a_young_cache_keeps_refs_with_their_blobs_for_as_much_as_it_may_hold() {
    let disk = disk();
    let mut store = open(disk.clone());
    put_burst(&store, 1_000);
    let all = store.size_of(&namespace()).expect("readable");
    let mut bytes_max = all / 2;
    for round in 0..4 {
        evict(&store, bytes_max, 0, None);
        let (refs, blobs) = counts(&store);
        let left = store.size_of(&namespace()).expect("readable");
        let kept = bytes_max / 100 * 72;
        assert!(left <= kept, "round {round}: {left} of {bytes_max} bytes");
        // Uses of the same millisecond go in 32 steps.
        assert!(left + all / 16 >= kept, "round {round}: {left} of {bytes_max} bytes");
        assert!(blobs - refs <= 1, "round {round}: {refs} refs for {blobs} blobs");
        assert_eq!(store.verify().expect("readable").incomplete, 0);
        // A smaller limit after a restart.
        drop(store);
        store = open(disk.clone());
        bytes_max = bytes_max * 2 / 3;
    }
}

#[test]
fn names_of_a_small_folder_stay_however_fast_values_arrive() {
    let store = open(disk());
    for n in 0..2_000_u64 {
        let bytes = n.to_le_bytes().repeat(113);
        put_ref(&store, n, &[put_blob(&store, &bytes)], 0);
        if n % 20 == 0 {
            evict(&store, 200_000, 0, None);
        }
    }
    let (refs, blobs) = counts(&store);
    assert!(refs > 100 && blobs - refs <= 5, "{refs} refs for {blobs} blobs");
}

#[test]
fn blobs_without_a_ref_are_evicted_by_the_age_of_their_upload() {
    let store = open(disk());
    for n in 0..100_u64 {
        let bytes = Bytes::from(n.to_le_bytes().repeat(113));
        let hash = IoHash::of(&bytes);
        done(&store, |done| store.put_blob(&namespace(), hash, bytes, at(n), done));
    }
    evict(&store, 60_000, 100, None);
    let is_there =
        |n: u64| store.has_blob(&namespace(), &IoHash::of(&n.to_le_bytes().repeat(113))).expect("readable");
    let left: Vec<u64> = (0..100).filter(|n| is_there(*n)).collect();
    assert!((40..50).contains(&left.len()) && left[0] + left.len() as u64 == 100, "{left:?}");
}

#[test]
fn a_namespace_that_is_kept_takes_uploads_while_others_fill_the_folder() {
    let store = open(disk());
    put_ref(&store, 1, &[put_blob(&store, &[1; 900])], 0);
    let other: Namespace = "other".parse().expect("a name");
    for n in 0..200_u64 {
        // The kept namespace has the first of them as well.
        let bytes = Bytes::from(if n == 0 { vec![1; 900] } else { n.to_le_bytes().repeat(113) });
        done(&store, |done| store.put_blob(&other, IoHash::of(&bytes), bytes.clone(), at(0), done));
    }
    let report = evict(&store, 50_000, 0, Some(&namespace()));
    assert!(report.blobs > 100 && report.refs == 0, "{report:?}");
    assert!(store.size_of(&other).expect("readable") < 40_000);
    put_ref(&store, 2, &[put_blob(&store, &[2; 900])], 0);
    assert_eq!(counts(&store), (2, 2));
    // A blob of another namespace is not what the kept one reaches.
    evict(&store, 1_100, 0, Some(&namespace()));
    assert_eq!(store.size_of(&other).expect("readable"), 0);
    assert_eq!(counts(&store), (2, 2));
}

#[test]
fn a_ref_that_is_used_during_an_eviction_stays_with_its_blobs() {
    let store = open(disk());
    put_burst(&store, 200);
    let asked = std::cell::RefCell::new(std::collections::BTreeMap::new());
    // Every third ref is read after the eviction has looked at what it reaches.
    let last_access = |_: &Namespace, _: &throng_ddc::Bucket, key: &throng_ddc::Key| {
        let mut asked = asked.borrow_mut();
        let times = asked.entry(*key).or_insert(0);
        *times += 1;
        (*times > 1 && key.as_str().as_bytes()[39].is_multiple_of(3)).then(|| at(10))
    };
    let options = EvictOptions {
        bytes_max: 50_000,
        copies: false,
        now: at(10),
        keeps: &|_| false,
        last_use: &|_| None,
        last_access: &last_access,
    };
    let report = store.evict(&options).expect("the disk works");
    assert!(report.refs > 0, "{report:?}");
    let found = store.verify().expect("readable");
    assert!(found.refs > 50 && found.incomplete == 0, "{found:?}");
}

#[test]
fn what_is_kept_during_an_eviction_stays_until_its_end() {
    let store = open(disk());
    put_burst(&store, 200);
    let has = |key: &Key| store.reference(&namespace(), &bucket(), key).expect("readable").is_some();
    let (times, decided) = (RefCell::new(BTreeMap::new()), Cell::new(None));
    let kept = RefCell::new(Vec::new());
    // Every third ref is kept once the eviction has decided about it: it asks for the next one
    // then, for the second time.
    let last_access = |_: &Namespace, _: &Bucket, key: &Key| {
        *times.borrow_mut().entry(*key).or_insert(0) += 1;
        if times.borrow()[key] == 2
            && let Some(decided) = decided.replace(Some(*key))
            && decided.as_str().as_bytes()[39].is_multiple_of(3)
        {
            assert!(store.is_collecting());
            done(&store, |done| store.keep_used(&namespace(), &[(bucket(), decided)], done));
            if has(&decided) {
                kept.borrow_mut().push(decided);
            }
        }
        None
    };
    let options = EvictOptions {
        bytes_max: 50_000,
        copies: false,
        now: at(10),
        keeps: &|_| false,
        last_use: &|_| None,
        last_access: &last_access,
    };
    let report = store.evict(&options).expect("the disk works");
    assert!(report.refs > 100, "{report:?}");
    let kept = kept.take();
    assert!(kept.len() > 50 && kept.iter().all(has), "{}", kept.len());
    assert_eq!(store.verify().expect("readable").incomplete, 0);
    assert!(!store.is_collecting());
    evict(&store, 5_000, 10, None);
    assert!(!kept.iter().all(has), "the next eviction is free to remove them");
}

#[test]
fn a_delete_in_one_batch_with_uploads_succeeds_on_a_full_disk() {
    let disk = disk();
    disk.set_capacity(Some(1 << 30));
    let options = Options { disk_reserve_bytes: 20_000, ..options() };
    let store = Store::open(Arc::new(disk.clone()), options).expect("it opens");
    put_ref(&store, 1, &[], 0);
    let used = (1 << 30) - disk.free_bytes().expect("known").expect("it has an end");
    disk.set_capacity(Some(used));
    let answers = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = || -> throng_ddc_store::Done {
        let answers = Arc::clone(&answers);
        Box::new(move |answer| answers.lock().expect("no panic").push(answer))
    };
    let bytes = Bytes::from(vec![1; 4_000]);
    store.put_blob(&namespace(), IoHash::of(&bytes), bytes.clone(), at(0), note());
    store.delete_ref(&namespace(), &bucket(), &key(1), note());
    store.commit();
    let answers = answers.lock().expect("no panic");
    assert!(matches!(answers[..], [Err(StoreError::Full), Ok(ChangeResult::Done)]), "{answers:?}");
    assert!(store.reference(&namespace(), &bucket(), &key(1)).expect("readable").is_none());
    assert!(!store.has_blob(&namespace(), &IoHash::of(&bytes)).expect("readable"));
}

#[test]
fn a_collection_on_a_full_disk_moves_no_more_at_a_time_than_there_is_space_for() {
    let disk = disk();
    disk.set_capacity(Some(1 << 30));
    let options = Options { disk_reserve_bytes: 200_000, free_bytes_min: 5_000, ..options() };
    let store = Store::open(Arc::new(disk.clone()), options).expect("it opens");
    let mut garbage = Vec::new();
    for n in 0..600_u64 {
        let bytes = [n.to_le_bytes().as_slice(), &[1; 6_000]].concat();
        let hash = put_blob(&store, &bytes);
        match n % 5 {
            0 => put_ref(&store, n, &[hash], 0),
            _ => garbage.push(hash),
        }
    }
    store.checkpoint().expect("the disk works");
    let used = (1 << 30) - disk.free_bytes().expect("known").expect("it has an end");
    disk.set_capacity(Some(used));
    store.look_at_disk();
    // The blobs that stay take several times the reserve.
    let report = collect(&store, 600).expect("a collection has space of its own");
    assert_eq!(report.blobs, garbage.len() as u64);
    let bytes = store.disk_bytes();
    assert!(bytes < 1_500_000, "{bytes} bytes are still used: {report:?}");
}

#[test]
fn a_segment_whose_live_records_find_no_space_does_not_fail_a_collection() {
    let disk = disk();
    disk.set_capacity(Some(1 << 30));
    let options = Options {
        inline_bytes_max: 400_000,
        disk_reserve_bytes: 100_000,
        free_bytes_min: 5_000,
        ..options()
    };
    let store = Store::open(Arc::new(disk.clone()), options).expect("it opens");
    for n in 0..10_u8 {
        put_blob(&store, &[n; 6_000]);
    }
    // Both in one segment, of which less than half is in use: more than the whole reserve.
    let [kept, gone] = [[1; 250_000].as_slice(), &[2; 350_000]].map(Bytes::copy_from_slice);
    let hash = IoHash::of(&kept);
    store.put_blob(&namespace(), hash, kept, at(0), Box::new(|_| {}));
    store.put_blob(&namespace(), IoHash::of(&gone), gone, at(0), Box::new(|_| {}));
    put_ref(&store, 1, &[hash], 0);
    put_blob(&store, &[3; 20_000]);
    store.checkpoint().expect("the disk works");
    fill(&disk, &store);

    let report = collect(&store, 600).expect("it gives back what it has space for");
    assert_eq!(report.blobs, 12);
    assert!(report.segments >= 2, "{report:?}");
    assert!(store.disk_bytes() > 500_000, "the large segment stays");
    assert!(store.read_blob(&namespace(), &hash).expect("readable").is_some());
    disk.set_capacity(Some(1 << 30));
    collect(&store, 601).expect("the disk works");
    assert!(store.disk_bytes() < 350_000, "{} bytes are still used", store.disk_bytes());
    assert!(store.read_blob(&namespace(), &hash).expect("readable").is_some());
}

/// Fills the disk, so that only the reserve is left.
fn fill(disk: &throng_platform::SimulatedDisk, store: &Store) {
    let used = (1 << 30) - disk.free_bytes().expect("known").expect("it has an end");
    disk.set_capacity(Some(used));
    store.look_at_disk();
    assert!(store.space().is_full);
}

/// A store with a reserve of 100,000 bytes on a disk that will be filled.
fn open_with_reserve() -> (throng_platform::SimulatedDisk, Arc<Store>) {
    let disk = disk();
    disk.set_capacity(Some(1 << 30));
    let options = Options { disk_reserve_bytes: 100_000, free_bytes_min: 5_000, ..options() };
    let store = Store::open(Arc::new(disk.clone()), options).expect("it opens");
    (disk, store)
}

/// Puts `count` blobs, each with a ref whose put time is `minutes` of its number, and checkpoints.
/// The refs have `shared` as another attachment, if it is given.
fn put_refs(store: &Store, count: u64, noise: &[u8], shared: Option<IoHash>, minutes: impl Fn(u64) -> u64) {
    for n in 0..count {
        let bytes = Bytes::from([n.to_le_bytes().as_slice(), noise].concat());
        let hash = IoHash::of(&bytes);
        store.put_blob(&namespace(), hash, bytes, at(0), Box::new(|_| {}));
        let attachments = std::iter::once(hash).chain(shared).map(Value::BinaryAttachment).collect();
        store.put_ref(reference(n, attachments, minutes(n), vec![hash]), Box::new(|_| {}));
        if n % 20 == 0 {
            store.commit();
        }
    }
    store.commit();
    store.checkpoint().expect("the disk works");
}

#[test]
fn a_store_opens_on_a_full_disk_and_takes_deletes_and_collections() {
    let (disk, store) = open_with_reserve();
    let bytes = Bytes::from(vec![7; 50_000]);
    let hash = IoHash::of(&bytes);
    done(&store, |done| store.put_blob(&namespace(), hash, bytes, at(0), done));
    put_ref(&store, 1, &[hash], 0);
    fill(&disk, &store);
    drop(store);
    let free = disk.free_bytes().expect("known").expect("it has an end");
    disk.open("other", true).expect("the disk works").set_len(free).expect("the disk works");
    let options = Options { disk_reserve_bytes: 100_000, free_bytes_min: 5_000, ..options() };
    let store = Store::open(Arc::new(disk.clone()), options).expect("nothing needs space");
    assert!(store.read_blob(&namespace(), &hash).expect("readable").is_some());
    done(&store, |done| store.delete_ref(&namespace(), &bucket(), &key(1), done));
    assert_eq!(collect(&store, 600).expect("it uses the reserve").blobs, 1);
}

#[test]
fn a_collection_on_a_full_disk_frees_space_before_its_records_fill_the_reserve() {
    let (disk, store) = open_with_reserve();
    // The records that delete them take ten times the reserve; every fortieth blob stays.
    for n in 0..6_000_u64 {
        let bytes = Bytes::from([n.to_le_bytes().as_slice(), &[1; 292]].concat());
        let hash = IoHash::of(&bytes);
        store.put_blob(&namespace(), hash, bytes, at(0), Box::new(|_| {}));
        if n % 40 == 0 {
            store.commit();
            put_ref(&store, n, &[hash], 0);
        }
    }
    store.commit();
    store.checkpoint().expect("the disk works");
    fill(&disk, &store);
    let report = collect(&store, 600).expect("it frees space for its own records");
    assert!(report.blobs >= 5_800, "{report:?}");
    // The deletes themselves are no longer needed.
    collect(&store, 601).expect("the disk works");
    let bytes = store.disk_bytes() - store.index_bytes();
    assert!(bytes < 200_000, "{bytes} bytes are still used: {report:?}");
    for n in (0..6_000_u64).step_by(40) {
        let hash = IoHash::of(&[n.to_le_bytes().as_slice(), &[1; 292]].concat());
        assert!(store.has_blob(&namespace(), &hash).expect("readable"), "blob {n}");
    }
    store.look_at_disk();
    assert!(!store.space().is_full);
    assert_eq!(store.verify().expect("readable").incomplete, 0);
}

#[test]
fn a_collection_on_a_full_disk_removes_expired_refs_and_what_they_reach_step_by_step() {
    let (disk, store) = open_with_reserve();
    let shared = put_blob(&store, b"every ref reaches it");
    // The last ones are young.
    put_refs(&store, 3_000, &[2; 600], Some(shared), |n| if n < 2_900 { 0 } else { 10_000 });
    fill(&disk, &store);
    let collect = || {
        store.collect(&CollectOptions {
            now: at(10_001),
            policy: &|_| RefPolicy::Ttl(Duration::from_secs(86_400)),
            last_access: &|_, _, _| None,
            blob_age_min: Duration::from_secs(3600),
        })
    };
    let report = collect().expect("it frees space for its own records");
    assert!(report.refs >= 2_800 && report.blobs >= 2_800, "{report:?}");
    collect().expect("the disk works");
    let bytes = store.disk_bytes() - store.index_bytes();
    assert!(bytes < 300_000, "{bytes} bytes are still used: {report:?}");
    let found = store.verify().expect("readable");
    assert!(found.refs >= 100 && found.incomplete == 0 && found.damaged == 0, "{found:?}");
    for n in 2_900..3_000 {
        assert!(store.reference(&namespace(), &bucket(), &key(n)).expect("readable").is_some(), "ref {n}");
    }
}

#[test]
fn an_eviction_on_a_full_disk_removes_the_oldest_for_which_there_is_space_for_records() {
    let (disk, store) = open_with_reserve();
    put_refs(&store, 3_000, &[4; 300], None, |n| n);
    fill(&disk, &store);
    let bytes_max = store.disk_bytes() / 4;
    let mut left = 3_000;
    loop {
        evict(&store, bytes_max, 3_100, None);
        let now = store.usage(&namespace()).expect("readable").refs;
        let is_there =
            |n: &u64| store.reference(&namespace(), &bucket(), &key(*n)).expect("readable").is_some();
        let oldest = (0..3_000).find(is_there).expect("some are left");
        assert_eq!(oldest + now, 3_000, "the oldest go first");
        if now == left {
            break;
        }
        left = now;
    }
    assert!(left < 1_500, "{left} refs are left");
    let found = store.verify().expect("readable");
    assert_eq!((found.incomplete, found.damaged), (0, 0), "{found:?}");
}

#[test]
fn deletes_on_a_full_disk_leave_a_collection_the_space_that_it_needs() {
    let (disk, store) = open_with_reserve();
    for n in 0..1_500_u64 {
        let noise = Value::Binary([n.to_le_bytes().as_slice(), &[3; 200]].concat());
        store.put_ref(reference(n, vec![noise], 0, Vec::new()), Box::new(|_| {}));
    }
    store.commit();
    store.checkpoint().expect("the disk works");
    fill(&disk, &store);
    let mut gone = 0;
    while gone < 1_500 {
        match result(&store, |done| store.delete_ref(&namespace(), &bucket(), &key(gone), done)) {
            Ok(_) => gone += 1,
            Err(error) => {
                assert!(matches!(error, StoreError::Full), "{error}");
                break;
            }
        }
    }
    assert!((50..1_500).contains(&gone), "{gone} were deleted");
    let report = collect(&store, 600).expect("half of the reserve is left");
    assert!(report.segments > 0, "{report:?}");
    done(&store, |done| store.delete_ref(&namespace(), &bucket(), &key(gone), done));
}

#[test]
fn refs_count_in_the_quota_of_a_namespace() {
    let store = open(disk());
    store.set_quotas(Quotas { default: Some(100_000), ..Quotas::default() });
    let put = |n: u64, len: usize| {
        let noise = Value::Binary(vec![n as u8; len]);
        result(&store, |done| store.put_ref(reference(n, vec![noise], 0, Vec::new()), done))
            .expect("the disk works")
    };
    assert_eq!(put(1, 60_000), ChangeResult::Done);
    assert_eq!(put(2, 60_000), ChangeResult::OverQuota);
    assert_eq!(put(1, 30_000), ChangeResult::Done, "it takes the place of the larger one");
    assert_eq!(put(2, 60_000), ChangeResult::Done);
    done(&store, |done| store.delete_ref(&namespace(), &bucket(), &key(2), done));
    assert_eq!(put(3, 60_000), ChangeResult::Done);
}

#[test]
fn what_no_ref_reaches_any_more_counts_in_a_quota_until_it_is_collected() {
    let store = open(disk());
    store.set_quotas(Quotas { default: Some(10_000), ..Quotas::default() });
    let put = |n: u8| {
        let bytes = Bytes::from(vec![n; 900]);
        result(&store, |done| store.put_blob(&namespace(), IoHash::of(&bytes), bytes.clone(), at(0), done))
    };
    let mut n = 0;
    while put(n).expect("the disk works") == ChangeResult::Done {
        assert!(!store.was_over_quota());
        put_ref(&store, 1, &[IoHash::of(&[n; 900])], 0);
        n += 1;
    }
    assert!(n > 5 && store.was_over_quota());
    assert_eq!(collect(&store, 600).expect("the disk works").blobs, u64::from(n) - 1);
    assert!(!store.was_over_quota());
    assert_eq!(put(n).expect("the disk works"), ChangeResult::Done);
}

#[test]
fn a_blob_that_was_uploaded_again_goes_only_when_a_quota_has_no_room_otherwise() {
    let store = open(disk());
    store.set_quotas(Quotas { default: Some(10_000), ..Quotas::default() });
    let put = |n: u8| put_blob(&store, &[n; 1_000]);
    let blobs = [put(1), put(2), put(3)];
    store.note_repeated(&namespace(), &blobs[0]);
    let reply = put_blob(&store, &[4; 1_000]);
    put_ref(&store, 1, &blobs, 0);
    put_ref(&store, 1, &[reply], 0);
    let has = || blobs.map(|blob| store.has_blob(&namespace(), &blob).expect("readable"));
    store.collect_replaced(&namespace(), 1_000).expect("the disk works");
    assert_eq!(has(), [true, false, false]);
    store.collect_replaced(&namespace(), 9_000).expect("the disk works");
    assert_eq!(has(), [false; 3], "known although it stayed the first time");
}

#[test]
fn a_deleted_large_blob_gives_its_file_back_at_once() {
    let disk = disk();
    let store = open(disk.clone());
    let hash = put_large(&store, &vec![7; 100_000]);
    assert!(store.disk_bytes() >= 100_000);
    done(&store, |done| store.delete_blob(&namespace(), &hash, done));
    assert!(disk.list("large").expect("listed").is_empty());
    assert!(store.disk_bytes() < 50_000);
}

#[test]
fn an_object_is_walked_although_another_ref_has_it_as_a_plain_attachment() {
    let store = open(disk());
    let inner = put_blob(&store, b"reached through the object");
    let object = Value::object([("inner", Value::BinaryAttachment(inner))]).encode(Style::Plain);
    let object = put_blob(&store, &object);
    put_ref(&store, 1, &[object], 0);
    let put = reference(2, vec![Value::ObjectAttachment(object)], 0, vec![object, inner]);
    done(&store, |done| store.put_ref(put, done));
    assert_eq!(collect(&store, 600).expect("the disk works").blobs, 0);
    assert!(store.has_blob(&namespace(), &inner).expect("readable"));
}

#[test]
fn the_smallest_verified_form_wins_over_a_smaller_unverified_one() {
    let disk = disk();
    let store = open(disk.clone());
    let id = IoHash::of(b"content");
    let (garbage, large, small) =
        (put_blob(&store, b"g"), put_blob(&store, b"large"), put_blob(&store, b"smal"));
    let put = |weight, blob, verified| {
        done(&store, |done| store.put_content(&namespace(), id, (weight, blob, verified), done));
    };
    put(1, garbage, false);
    assert_eq!(store.content(&namespace(), &id).expect("readable"), Some(garbage), "the only one");
    put(5, large, true);
    assert_eq!(store.content(&namespace(), &id).expect("readable"), Some(large));
    put(4, small, true);
    assert_eq!(store.content(&namespace(), &id).expect("readable"), Some(small));
    store.checkpoint().expect("the disk works");
    drop(store);
    let store = Store::reindex(Arc::new(disk), options()).expect("it opens");
    assert_eq!(store.content(&namespace(), &id).expect("readable"), Some(small));
    done(&store, |done| store.delete_blob(&namespace(), &small, done));
    done(&store, |done| store.delete_blob(&namespace(), &large, done));
    assert_eq!(
        store.content(&namespace(), &id).expect("readable"),
        Some(garbage),
        "the last one that is stored"
    );
}

#[test]
fn a_crash_right_after_a_collection_loses_nothing() {
    let disk = disk();
    let store = open(disk.clone());
    let mut blobs = Vec::new();
    for n in 0..200_u64 {
        blobs.push(put_blob(&store, &[n as u8; 400]));
        put_ref(&store, n, &blobs[n as usize..], 0);
    }
    for n in 0..100 {
        done(&store, |done| store.delete_ref(&namespace(), &bucket(), &key(n), done));
    }
    collect(&store, 600).expect("the disk works");
    for n in 200..230_u64 {
        put_ref(&store, n, &[], 0);
    }
    let crashed = disk.state().after_power_failure(&mut throng_stdx::Rng::new(3));
    for reindex in [false, true] {
        let fs = Arc::new(throng_platform::SimulatedDisk::new(crashed.clone()));
        let store = if reindex { Store::reindex(fs, options()) } else { Store::open(fs, options()) };
        let store = store.expect("it opens");
        for n in 0..230 {
            let found = store.reference(&namespace(), &bucket(), &key(n)).expect("readable");
            assert_eq!(found.is_some(), n >= 100, "ref {n}, rebuilt: {reindex}");
        }
    }
}

/// A refused replacement, quotas that come and go, and changes before the first count leave the
/// count right.
#[test]
fn a_quota_counts_what_is_there() {
    let store = open(disk());
    let size = || store.size_of(&namespace()).expect("the disk works");
    let quota = |bytes| store.set_quotas(Quotas { default: bytes, ..Quotas::default() });
    let numbered = |n: u64, len: usize| Bytes::from([&n.to_le_bytes()[..], &vec![7; len - 8]].concat());
    let put = |n: u64, len: usize| {
        let bytes = numbered(n, len);
        result(&store, |done| store.put_blob(&namespace(), IoHash::of(&bytes), bytes, at(0), done))
            .expect("the disk works")
    };
    let blob = put_blob(&store, &[1; 50_000]);
    put_ref(&store, 1, &[blob], 0);

    // Above its quota: every refused replacement of a ref leaves the count as it was.
    quota(Some(1_000));
    for minutes in 1..1_000 {
        let blobs = vec![Value::BinaryAttachment(blob); 2];
        let put = reference(1, blobs, minutes * 100, vec![blob]);
        let refused = result(&store, |done| store.put_ref(put, done)).expect("the disk works");
        assert_eq!(refused, ChangeResult::OverQuota);
    }
    assert_eq!(put(2, 500), ChangeResult::OverQuota);
    // One that does not grow is not refused.
    put_ref(&store, 1, &[], 0);

    // Uploads without a quota count later.
    quota(None);
    assert_eq!(put(3, 50_000), ChangeResult::Done);
    quota(Some(size() + 1_000));
    assert_eq!(put(4, 1_001), ChangeResult::OverQuota);
    assert_eq!(put(5, 1_000), ChangeResult::Done);

    // A deletion before the first count, in the batch of an upload.
    quota(Some(size() + 1));
    let (deleted, bytes) = (IoHash::of(&numbered(3, 50_000)), numbered(6, 50_000));
    store.delete_blob(&namespace(), &deleted, Box::new(|_| {}));
    done(&store, |done| store.put_blob(&namespace(), IoHash::of(&bytes), bytes, at(0), done));
    assert_eq!(put(7, 8), ChangeResult::OverQuota);
    done(&store, |done| store.delete_blob(&namespace(), &IoHash::of(&numbered(6, 50_000)), done));
    assert_eq!(put(8, 50_001), ChangeResult::Done);
}

/// Uploads wait for the commits of a collection, so each of them is short.
#[test]
fn a_collection_moves_few_records_at_a_time() {
    let store = Store::open(Arc::new(disk()), Options { segment_bytes_max: 200_000, ..options() });
    let store = store.expect("the store opens");
    for n in 0..4_000 {
        let put = reference(n, Vec::new(), 0, Vec::new());
        store.put_ref(put, Box::new(|_| {}));
    }
    store.commit();
    for n in (0..4_000).filter(|n| n % 4 > 0) {
        store.delete_ref(&namespace(), &bucket(), &key(n), Box::new(|_| {}));
    }
    store.commit();
    let before = store.stats();
    let report = collect(&store, 0).expect("the disk works");
    let after = store.stats();
    assert!(report.moved >= 900, "{report:?}");
    let (changes, commits) = (after.changes - before.changes, after.commits - before.commits);
    assert!(changes <= 64 * commits, "{changes} changes in {commits} commits");
}

/// A clock that goes on by a millisecond with every look at it, and notes how long it is slept.
#[derive(Debug, Default)]
struct NotedSleeps {
    looks: AtomicU64,
    slept: Mutex<Vec<Duration>>,
}

impl Clock for NotedSleeps {
    fn now(&self) -> Timestamp {
        at(0)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.looks.fetch_add(1, Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.slept.lock().expect("no panic").push(time);
    }
}

#[test]
fn maintenance_leaves_the_log_to_requests_for_as_long_as_it_had_it() {
    let clock = Arc::<NotedSleeps>::default();
    let store =
        Store::open(Arc::new(disk()), Options { clock: Arc::<NotedSleeps>::clone(&clock), ..options() });
    let store = store.expect("the store opens");
    let slept_by_a_collection = |number: u8, request: &dyn Fn()| {
        for n in 0..100 {
            put_blob(&store, &[number, n]);
        }
        collect(&store, 0).expect("the disk works");
        clock.slept.lock().expect("no panic").clear();
        request();
        assert_eq!(collect(&store, 600).expect("the disk works").blobs, 100);
        clock.slept.lock().expect("no panic").clone()
    };
    let bytes = Bytes::from(vec![9]);
    let hash = IoHash::of(&bytes);
    let put = || store.put_blob(&namespace(), hash, bytes.clone(), at(600), Box::new(|_| {}));
    let read = || assert!(store.blob(&namespace(), &hash).expect("readable").is_some());
    let look = || assert!(store.reference(&namespace(), &bucket(), &key(1)).expect("readable").is_none());
    let requests: [(&dyn Fn(), usize); 4] = [(&|| {}, 0), (&put, 1), (&read, 1), (&look, 1)];
    for (number, (request, pauses)) in requests.into_iter().enumerate() {
        let slept = slept_by_a_collection(number as u8, request);
        assert_eq!(slept, vec![Duration::from_millis(1); pauses], "request {number}");
    }
}

/// A disk that notes which threads remove large files.
#[derive(Debug)]
struct NotedRemovals {
    disk: SimulatedDisk,
    threads: Arc<Mutex<Vec<ThreadId>>>,
}

impl Fs for NotedRemovals {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn File>> {
        self.disk.open(path, create)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        if path.starts_with("large/") {
            self.threads.lock().expect("no panic").push(std::thread::current().id());
        }
        self.disk.remove(path)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list(folder)
    }

    fn create_dir(&self, folder: &str) -> io::Result<()> {
        self.disk.create_dir(folder)
    }

    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        self.disk.sync_dir(folder)
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        self.disk.free_bytes()
    }
}

/// Uploads wait for the thread that commits, and to free the space of many files takes a while.
#[test]
fn files_of_blobs_that_are_gone_are_not_removed_by_the_thread_that_commits() {
    for is_collected in [true, false] {
        let threads = Arc::default();
        let disk = disk();
        let store = open(NotedRemovals { disk: disk.clone(), threads: Arc::clone(&threads) });
        let blobs: Vec<IoHash> = (0..5).map(|n| put_large(&store, &vec![n; 100_000])).collect();
        std::thread::scope(|scope| {
            let commits = scope.spawn(|| store.run());
            let others = scope.spawn(|| store.run_checkpoints(Duration::from_millis(1)));
            let ask = |change: &dyn Fn(Done)| {
                let (sender, receiver) = mpsc::channel();
                change(Box::new(move |outcome| drop(sender.send(outcome))));
                receiver.recv().expect("it is answered").expect("the disk works");
            };
            // A change that is answered shows that the thread has begun.
            ask(&|done| store.delete_ref(&namespace(), &bucket(), &key(1), done));
            if is_collected {
                assert_eq!(collect(&store, 600).expect("the disk works").blobs, 5);
            } else {
                blobs.iter().for_each(|blob| ask(&|done| store.delete_blob(&namespace(), blob, done)));
            }
            while !disk.list("large").expect("listed").is_empty() {
                std::thread::yield_now();
            }
            let commit_thread = commits.thread().id();
            store.shut();
            commits.join().expect("no panic");
            others.join().expect("no panic");
            let threads: Vec<ThreadId> = threads.lock().expect("no panic").clone();
            assert!(threads.len() == 5 && !threads.contains(&commit_thread), "{threads:?}");
        });
    }
}

/// Files that were cut after they had lost their names, and the lengths to which they were.
type Cuts = Arc<Mutex<Vec<(String, u64)>>>;

/// A disk that notes them.
#[derive(Debug)]
struct NotedCuts {
    disk: SimulatedDisk,
    cuts: Cuts,
}

#[derive(Debug)]
struct NotedFile {
    file: Arc<dyn File>,
    disk: SimulatedDisk,
    path: String,
    cuts: Cuts,
}

impl Fs for NotedCuts {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, create)?;
        let (disk, cuts) = (self.disk.clone(), Arc::clone(&self.cuts));
        Ok(Arc::new(NotedFile { file, disk, path: path.to_owned(), cuts }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list(folder)
    }

    fn create_dir(&self, folder: &str) -> io::Result<()> {
        self.disk.create_dir(folder)
    }

    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        self.disk.sync_dir(folder)
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        self.disk.free_bytes()
    }
}

impl File for NotedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_at(parts, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.disk.open(&self.path, false).is_err() {
            self.cuts.lock().expect("no panic").push((self.path.clone(), len));
        }
        self.file.set_len(len)
    }

    fn reserve(&self, offset: u64, len: u64) {
        self.file.reserve(offset, len);
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// A file system that frees the space of a whole segment holds up the syncs of the log meanwhile.
#[test]
fn a_removed_segment_gives_its_space_back_in_parts_unless_it_is_read() {
    for is_read in [false, true] {
        let cuts = Cuts::default();
        let fs = NotedCuts { disk: disk(), cuts: Arc::clone(&cuts) };
        let options = Options { segment_bytes_max: 3 << 20, ..options() };
        let store = Store::open(Arc::new(fs), options).expect("the store opens");
        let bytes = vec![7; 3 << 20];
        let hash = put_blob(&store, &bytes);
        // The next segment begins with it.
        put_blob(&store, b"another");
        let reader = is_read.then(|| store.blob(&namespace(), &hash).expect("readable").expect("stored"));
        let report = collect(&store, 600).expect("the disk works");
        assert!(report.segments > 0, "{report:?}");
        let cuts = cuts.lock().expect("no panic").clone();
        let of_segments = cuts.iter().filter(|(path, _)| path.starts_with("segments/"));
        let lens: Vec<u64> = of_segments.map(|(_, len)| len >> 20).collect();
        match reader {
            Some(reader) => {
                assert_eq!(reader.read(0, bytes.len()).expect("it is still there"), bytes);
                assert!(!lens.contains(&2), "{cuts:?}");
            }
            None => assert!(lens.starts_with(&[2, 0]), "{cuts:?}"),
        }
    }
}

#[test]
fn a_deleted_large_blob_gives_its_space_back_in_parts_unless_it_is_read() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum ReadBy {
        Nobody,
        Download,
        /// Another request, while it was uploaded.
        Stream,
    }
    for read_by in [ReadBy::Nobody, ReadBy::Download, ReadBy::Stream] {
        let cuts = Cuts::default();
        let store = open(NotedCuts { disk: disk(), cuts: Arc::clone(&cuts) });
        let bytes = vec![7; 3 << 20];
        let mut writer = store.begin_large().expect("there is room");
        writer.write(&bytes).expect("the disk works");
        let (hash, streamed) = (writer.hash(), writer.blob());
        done(&store, |done| store.put_large(&namespace(), writer, at(0), done).expect("the disk works"));
        let stored = store.blob(&namespace(), &hash).expect("readable").expect("stored");
        let reader = match read_by {
            ReadBy::Nobody => None,
            ReadBy::Download => Some(stored.clone()),
            ReadBy::Stream => Some(streamed.clone()),
        };
        drop((stored, streamed));
        done(&store, |done| store.delete_blob(&namespace(), &hash, done));
        let cuts = cuts.lock().expect("no panic").clone();
        let of_blobs = cuts.iter().filter(|(path, _)| path.starts_with("large/"));
        let lens: Vec<u64> = of_blobs.map(|(_, len)| len >> 20).collect();
        match reader {
            Some(reader) => {
                assert_eq!(reader.read(0, bytes.len()).expect("it is still there"), bytes, "{read_by:?}");
                assert!(lens.is_empty(), "{read_by:?}: {cuts:?}");
            }
            None => assert!(lens.starts_with(&[2, 0]), "{cuts:?}"),
        }
    }
}

#[test]
fn an_aborted_upload_gives_its_space_back_in_parts() {
    let cuts = Cuts::default();
    let store = open(NotedCuts { disk: disk(), cuts: Arc::clone(&cuts) });
    let mut writer = store.begin_large().expect("there is room");
    writer.write(&vec![7; 3 << 20]).expect("the disk works");
    drop(writer);
    store.commit();
    let lens: Vec<u64> = cuts.lock().expect("no panic").iter().map(|(_, len)| len >> 20).collect();
    assert_eq!(lens, [2, 0]);
}

#[test]
fn a_merged_run_of_the_index_gives_its_space_back_in_parts() {
    let cuts = Cuts::default();
    let store = open(NotedCuts { disk: disk(), cuts: Arc::clone(&cuts) });
    for round in 0..4 {
        (0..50).for_each(|n| put_ref(&store, 100 * round + n, &[], 0));
        store.checkpoint().expect("the disk works");
        store.merge().expect("the disk works");
    }
    let cuts = cuts.lock().expect("no panic").clone();
    assert!(cuts.iter().any(|(path, len)| path.ends_with(".run") && *len == 0), "{cuts:?}");
}

#[test]
fn uploads_that_outrun_evictions_are_refused_beyond_the_limit() {
    const BYTES_MAX: u64 = 1_000_000;
    let store = open(disk());
    store.set_bytes_max(BYTES_MAX);
    let put = |n: u64| {
        let bytes = Bytes::from(n.to_le_bytes().repeat(113));
        result(&store, |done| store.put_blob(&namespace(), IoHash::of(&bytes), bytes.clone(), at(n), done))
    };
    let (mut n, mut refused) = (0, 0);
    while n < 5_000 {
        assert!(refused < 1_000, "evictions make no room: {} bytes after {n} blobs", store.disk_bytes());
        match put(n) {
            Ok(_) => n += 1,
            Err(error) => {
                assert!(matches!(error, StoreError::OverLimit { bytes_max: BYTES_MAX }), "{error}");
                refused += 1;
                evict(&store, BYTES_MAX, n, None);
                store.merge().expect("the disk works");
            }
        }
        // Records name the keys of others, and evictions write deletes.
        assert!(store.disk_bytes() <= BYTES_MAX * 17 / 16 + 4_000, "{} bytes", store.disk_bytes());
    }
    assert!(refused > 5, "{refused}");
    evict(&store, BYTES_MAX, n, None);
    assert!(!store.is_eviction_urgent(), "it was done");
    while store.disk_bytes() < BYTES_MAX {
        put(n).expect("there is room");
        n += 1;
    }
    assert!(store.is_eviction_urgent(), "the folder grew by a part of its limit");
}

#[test]
fn a_namespace_that_is_kept_does_not_fill_the_folder_beyond_its_limit() {
    const BYTES_MAX: u64 = 100_000;
    let store = open(disk());
    store.set_bytes_max(BYTES_MAX);
    let kept = namespace();
    let mut put = 0;
    for n in 0..500_u64 {
        let bytes = Bytes::from(n.to_le_bytes().repeat(113));
        let done =
            result(&store, |done| store.put_blob(&kept, IoHash::of(&bytes), bytes.clone(), at(n), done));
        match done {
            Ok(_) => put += 1,
            Err(StoreError::OverLimit { .. } | StoreError::Kept { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        if n % 10 == 0 {
            evict(&store, BYTES_MAX, n, Some(&kept));
        }
        assert!(store.disk_bytes() <= BYTES_MAX * 17 / 16 + 4_000, "{} bytes", store.disk_bytes());
    }
    assert!(put > 50, "{put}");
    // Deletes make room for uploads.
    for n in 0..500_u64 {
        let hash = IoHash::of(&n.to_le_bytes().repeat(113));
        result(&store, |done| store.delete_blob(&kept, &hash, done)).expect("deletes go on");
    }
    evict(&store, BYTES_MAX, 600, Some(&kept));
    put_blob(&store, b"there is room");
}

#[test]
fn a_small_volume_takes_uploads_and_keeps_a_part_for_deletes() {
    for bytes in [40 << 20, 100 << 20, 200 << 20] {
        let disk = disk();
        disk.set_capacity(Some(bytes));
        let store = Store::open(Arc::new(disk.clone()), Options::default()).expect("it opens");
        assert!(!store.space().is_full, "a volume of {bytes} bytes is empty");
        let mut n = 0_u64;
        loop {
            let mut payload = vec![3; 1 << 20];
            payload[..8].copy_from_slice(&n.to_le_bytes());
            let payload = Bytes::from(payload);
            store.look_at_disk();
            let put = |done| store.put_blob(&namespace(), IoHash::of(&payload), payload.clone(), at(0), done);
            match result(&store, put) {
                Ok(_) => n += 1,
                Err(error) => break assert!(matches!(error, StoreError::Full), "{error}"),
            }
        }
        assert!(n << 20 > bytes * 3 / 4, "{n} MiB of {bytes} bytes");
        assert!(disk.free_bytes().expect("known").expect("it has an end") + (2 << 20) > bytes / 16);
        assert_eq!(collect(&store, 600).expect("a collection has space of its own").blobs, n);
        store.look_at_disk();
        assert!(!store.space().is_full);
    }
}

#[test]
fn a_volume_that_is_too_small_is_refused_with_the_size_that_is_needed() {
    let disk = disk();
    disk.set_capacity(Some(20 << 20));
    let refused = Store::open(Arc::new(disk), Options::default()).expect_err("too small").to_string();
    assert!(refused.contains("20971520") && refused.contains("33554432"), "{refused}");
}

#[test]
fn an_eviction_that_can_make_no_room_ends() {
    const BYTES_MAX: u64 = 100_000;
    let store = open(disk());
    store.set_bytes_max(BYTES_MAX);
    // A ref of the other namespace comes to rely on its blob while the eviction runs.
    let (kept, other): (Namespace, Namespace) = (namespace(), "other".parse().expect("a name"));
    let bytes = Bytes::from(vec![7; 500]);
    let blob = IoHash::of(&bytes);
    done(&store, |done| store.put_blob(&other, blob, bytes, at(0), done));
    store.set_bytes_max(0);
    put_burst(&store, 150);
    store.set_bytes_max(BYTES_MAX);
    let looks = std::cell::Cell::new(0);
    let last_access = |_: &Namespace, _: &throng_ddc::Bucket, _: &throng_ddc::Key| {
        looks.set(looks.get() + 1);
        assert!(looks.get() < 5_000, "the eviction does not end");
        if looks.get() == 1 {
            let put = reference(1, vec![Value::BinaryAttachment(blob)], 0, vec![blob]);
            store.put_ref(throng_ddc_store::PutRef { namespace: other.clone(), ..put }, Box::new(|_| {}));
            store.set_bytes_max(0);
            store.commit();
            store.set_bytes_max(BYTES_MAX);
        }
        None
    };
    let options = EvictOptions {
        bytes_max: BYTES_MAX,
        copies: false,
        now: at(600),
        keeps: &|namespace| *namespace == kept,
        last_use: &|_| None,
        last_access: &last_access,
    };
    store.evict(&options).expect("the disk works");
    assert!(store.disk_bytes() > BYTES_MAX, "the namespace that is kept has more");
    assert!(!store.is_eviction_urgent(), "another one would make no room either");
}

#[test]
fn maintenance_ends_when_it_is_to_stop() {
    let store = open(disk());
    put_burst(&store, 1_000);
    let looks = std::cell::Cell::new(0);
    let last_access = |_: &Namespace, _: &throng_ddc::Bucket, _: &throng_ddc::Key| {
        looks.set(looks.get() + 1);
        store.end_maintenance();
        None
    };
    let options = EvictOptions {
        bytes_max: 10_000,
        copies: false,
        now: at(10),
        keeps: &|_| false,
        last_use: &|_| None,
        last_access: &last_access,
    };
    let stopped = store.evict(&options).expect_err("it ends early");
    assert!(stopped.is_stop(), "{stopped}");
    assert_eq!(looks.get(), 1);
    assert!(collect(&store, 600).expect_err("none begins").is_stop());
    assert!(store.scrub(&mut |_| panic!("a blob is read")).expect_err("none begins").is_stop());
    put_blob(&store, b"requests go on");
}

#[test]
fn a_scrub_that_stops_in_a_blob_does_not_take_it_for_damaged() {
    let disk = disk();
    let store = open(disk.clone());
    let hash = put_large(&store, &vec![7; 2 << 20]);
    let before = store.scrub(&mut |_| store.end_maintenance()).expect("one blob");
    assert_eq!((before.blobs, before.damaged), (1, 0));
    assert!(store.scrub(&mut |_| {}).expect_err("it ends").is_stop());
    assert!(store.has_blob(&namespace(), &hash).expect("readable"));
    assert!(disk.list("quarantine").expect("listed").is_empty());
}

/// Fills a cache of 1,000,000 bytes to 90 % with blobs that have a ref each; gives their number.
fn fill_to_90_percent(store: &Store) -> u64 {
    store.set_bytes_max(1_000_000);
    let mut n = 0;
    while store.disk_bytes() < 900_000 {
        put_ref(store, n, &[put_blob(store, &n.to_le_bytes().repeat(113))], n);
        n += 1;
    }
    n
}

fn try_large(store: &Store, len: usize) -> Result<ChangeResult, StoreError> {
    let mut writer = store.begin_large().expect("the disk works");
    writer.write(&vec![9; len]).expect("the disk works");
    result(store, |done| store.put_large(&namespace(), writer, at(900), done).expect("the disk works"))
}

#[test]
fn a_large_blob_that_is_refused_for_room_finds_it_after_an_eviction() {
    for len in [180_000, 500_000, 900_000] {
        let store = open(disk());
        let all = fill_to_90_percent(&store);
        assert!(!store.is_eviction_urgent());
        assert!(matches!(try_large(&store, len), Err(StoreError::OverLimit { .. })));
        assert!(store.is_eviction_urgent(), "room for {len} bytes");
        evict(&store, 1_000_000, 1_000, None);
        assert!(!store.is_eviction_urgent(), "there is room for {len} bytes");
        let (left, _) = counts(&store);
        assert!(left * 1_500 + len as u64 > 800_000, "{left} of {all} refs are left beside {len} bytes");
        assert_eq!(try_large(&store, len).expect("there is room"), ChangeResult::Done);
        store.merge().expect("the disk works");
        assert!(store.disk_bytes() <= 1_070_000, "{}", store.disk_bytes());
    }
}

#[test]
fn an_announced_upload_finds_room_when_it_has_arrived() {
    let store = open(disk());
    fill_to_90_percent(&store);
    store.announce(180_000).expect("an eviction can make room");
    assert!(store.is_eviction_urgent());
    evict(&store, 1_000_000, 1_000, None);
    assert_eq!(try_large(&store, 180_000).expect("there is room"), ChangeResult::Done);
}

#[test]
fn a_blob_that_no_eviction_makes_room_for_evicts_nothing() {
    let store = open(disk());
    let all = fill_to_90_percent(&store);
    let refused = store.announce(1_000_001).expect_err("it exceeds the limit").to_string();
    assert!(refused.contains("1000001") && refused.contains("1000000"), "{refused}");
    assert!(matches!(try_large(&store, 1_000_001), Err(StoreError::AboveLimit { .. })));
    assert!(!store.is_eviction_urgent());
    // All of it is kept.
    assert!(try_large(&store, 500_000).is_err());
    assert!(store.is_eviction_urgent());
    evict(&store, 1_000_000, 1_000, Some(&namespace()));
    assert_eq!(counts(&store).0, all);
    assert!(try_large(&store, 500_000).is_err());
    assert!(!store.is_eviction_urgent(), "another eviction would make no room either");
}

#[test]
fn a_kept_namespace_costs_others_nothing_for_an_upload_that_cannot_fit() {
    let store = open(disk());
    let all = fill_to_90_percent(&store);
    let other: Namespace = "other".parse().expect("a name");
    let small = Bytes::from_static(b"of the other namespace");
    let hash = IoHash::of(&small);
    done(&store, |done| store.put_blob(&other, hash, small, at(0), done));
    assert!(try_large(&store, 500_000).is_err());
    evict(&store, 1_000_000, 1_000, Some(&namespace()));
    assert_eq!(counts(&store).0, all);
    assert!(store.has_blob(&other, &hash).expect("readable"));
}

#[test]
fn a_limit_that_is_lowered_below_the_open_segment_evicts_only_down_to_it() {
    let store = Store::open(Arc::new(disk()), Options { segment_bytes_max: 256 << 20, ..options() });
    let store = store.expect("the store opens");
    for n in 0..60_u64 {
        put_ref(&store, n, &[put_blob(&store, &n.to_le_bytes().repeat(12_500))], n);
    }
    store.set_bytes_max(3_000_000);
    evict(&store, 3_000_000, 600, None);
    let (left, _) = counts(&store);
    assert!((18..=24).contains(&left), "{left} refs of 100,000 bytes are left of 3,000,000");
    assert!(store.disk_bytes() < 3_000_000, "{} bytes", store.disk_bytes());
    put_blob(&store, b"uploads go on");
    // Below the size of a segment, its space comes back as well.
    store.set_bytes_max(1_000_000);
    evict(&store, 1_000_000, 600, None);
    let (left, _) = counts(&store);
    assert!((5..=8).contains(&left), "{left} refs of 100,000 bytes are left of 1,000,000");
    assert!(store.disk_bytes() < 1_000_000, "{} bytes", store.disk_bytes());
}

#[test]
fn overwritten_values_of_a_kept_namespace_make_room() {
    const BYTES_MAX: u64 = 1_000_000;
    let store = open(disk());
    store.set_bytes_max(BYTES_MAX);
    let kept = namespace();
    store.set_quotas(Quotas { kept: [kept.clone()].into(), ..Quotas::default() });
    let mut refused = 0;
    for n in 0..2_000_u64 {
        // Five refs, all within one minute.
        let bytes = Bytes::from(n.to_le_bytes().repeat(1_000));
        let hash = IoHash::of(&bytes);
        let put = |done| store.put_blob(&kept, hash, bytes.clone(), at(0), done);
        if let Err(error) = result(&store, put) {
            assert!(matches!(error, StoreError::OverLimit { .. }), "{error}");
            refused += 1;
            evict(&store, BYTES_MAX, 0, Some(&kept));
            store.merge().expect("the disk works");
            result(&store, put).expect("there is room");
        }
        put_ref(&store, n % 5, &[hash], 0);
    }
    assert!(refused > 5, "{refused}");
    let found = store.verify().expect("readable");
    assert_eq!((found.refs, found.incomplete), (5, 0));
    // Deletes make room at once as well.
    for n in 0..5 {
        done(&store, |done| store.delete_ref(&kept, &bucket(), &key(n), done));
    }
    evict(&store, 1, 0, Some(&kept));
    assert_eq!(counts(&store), (0, 0));
}

#[test]
fn unreferenced_blobs_of_a_kept_namespace_make_room_five_minutes_after_their_upload() {
    let store = open(disk());
    let (old, young) = (put_blob(&store, &[1; 50_000]), put_blob(&store, &[2; 50_000]));
    put_ref(&store, 1, &[young], 0);
    for (minutes, is_there) in [(5, true), (6, false)] {
        evict(&store, 10_000, minutes, Some(&namespace()));
        assert_eq!(store.has_blob(&namespace(), &old).expect("readable"), is_there, "{minutes} minutes");
    }
    assert!(store.has_blob(&namespace(), &young).expect("readable"));
}

#[test]
fn an_eviction_leaves_the_open_segment_instead_of_evicting_everything() {
    let store = Store::open(Arc::new(disk()), Options { segment_bytes_max: 16 << 20, ..options() });
    let store = store.expect("the store opens");
    put_burst(&store, 2_000);
    let bytes_max = store.disk_bytes() / 2;
    store.set_bytes_max(bytes_max);
    evict(&store, bytes_max, 300, None);
    assert!(store.disk_bytes() <= bytes_max, "{} bytes of {bytes_max}", store.disk_bytes());
    let (refs, blobs) = counts(&store);
    assert!(refs > 300 && blobs >= refs, "{refs} refs and {blobs} blobs are left of 2,000");
    put_blob(&store, &[7; 1_000]);
}

#[test]
fn a_refused_upload_makes_the_next_eviction_make_room_for_it() {
    let store = Store::open(Arc::new(disk()), Options { segment_bytes_max: 200_000, ..options() });
    let store = store.expect("the store opens");
    put_burst(&store, 2_000);
    // 90 %: no eviction is due by itself.
    let bytes_max = store.disk_bytes() * 10 / 9;
    store.set_bytes_max(bytes_max);
    let large = Bytes::from(vec![5; bytes_max as usize / 5]);
    let put = || {
        let change = |done| store.put_blob(&namespace(), IoHash::of(&large), large.clone(), at(0), done);
        result(&store, change)
    };
    assert!(!store.is_eviction_urgent());
    assert!(matches!(put(), Err(StoreError::OverLimit { .. })));
    assert!(store.is_eviction_urgent());
    evict(&store, bytes_max, 300, None);
    assert_eq!(put().expect("there is room"), ChangeResult::Done);
    assert!(counts(&store).0 > 800, "{:?} are left", counts(&store));
}

#[test]
fn overwritten_refs_do_not_lock_a_kept_namespace() {
    let store = open(disk());
    let kept = namespace();
    for n in 0..200_u64 {
        let own = put_blob(&store, &n.to_le_bytes().repeat(113));
        put_ref(&store, n % 5, &[own], n);
    }
    evict(&store, 60_000, 201, Some(&kept));
    let (refs, blobs) = counts(&store);
    assert!(refs == 5 && (5..60).contains(&blobs), "{refs} refs and {blobs} blobs are left of 200");
    put_blob(&store, b"is taken");
}

/// Damage of a new key brings no older value back, so later commits need not name it.
#[test]
fn puts_of_new_keys_take_no_space_for_the_names_of_others() {
    let store = Store::open(Arc::new(disk()), Options { segment_bytes_max: 1 << 20, ..options() });
    let store = store.expect("the store opens");
    let put = |n: u8| {
        let before = store.stats().log_bytes;
        put_blob(&store, &[n; 100]);
        store.stats().log_bytes - before
    };
    let first = put(0);
    assert!((1..50).all(|n| put(n) == first), "{first} bytes of the first");
    put_ref(&store, 1, &[], 0);
    put_ref(&store, 1, &[IoHash::of(&[0; 100])], 1);
    assert!(put(50) > first, "the ref that was replaced is named again");
}

#[test]
fn what_an_upload_holds_is_not_evicted_until_it_has_ended() {
    let store = open(disk());
    let held = put_blob(&store, &[1; 1_000]);
    let other = put_blob(&store, &[2; 1_000]);
    let has = |hash| store.has_blob(&namespace(), &hash).expect("readable");
    let (first, second) = (store.hold(&namespace(), &[held]), store.hold(&namespace(), &[held]));
    evict(&store, 1, 0, None);
    assert_eq!((has(held), has(other)), (true, false));
    drop(first);
    evict(&store, 1, 0, None);
    assert!(has(held), "another upload still holds it");
    drop(second);
    evict(&store, 1, 0, None);
    assert!(!has(held));
}

/// Copies of what an object storage has are taken beyond the limit.
#[test]
fn copies_that_fill_the_folder_make_an_eviction_urgent_without_a_limit_of_uploads() {
    const BYTES_MAX: u64 = 1_000_000;
    let store = open(disk());
    let put_until = |bytes: u64, mut n: u64| {
        while store.disk_bytes() < bytes {
            put_blob(&store, &n.to_le_bytes().repeat(1_000));
            n += 1;
        }
    };
    put_until(BYTES_MAX / 2, 0);
    assert!(!store.outgrows(BYTES_MAX), "there is room");
    put_until(BYTES_MAX, 1_000);
    assert!(store.outgrows(BYTES_MAX));
    let options = EvictOptions {
        bytes_max: BYTES_MAX,
        copies: true,
        now: at(0),
        keeps: &|_| false,
        last_use: &|_| None,
        last_access: &|_, _, _| None,
    };
    store.evict(&options).expect("the disk works");
    assert!(!store.outgrows(BYTES_MAX), "it was done");
}
