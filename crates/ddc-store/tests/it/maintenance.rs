//! Collection, scrub, full disks, restarts.

#[allow(dead_code, reason = "each test file uses a part of it")]
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use throng_ddc::gc::RefPolicy;
use throng_ddc::{Bucket, IoHash, Key, Namespace, Style, Timestamp, Value};
use throng_ddc_store::{
    ChangeResult, CollectOptions, CollectReport, Options, PutRef, RefValue, Store, StoreError,
};
use throng_platform::{DiskState, Folder, Fs, SimulatedDisk};
use throng_stdx::Rng;

const HOUR_MS: u64 = 3_600_000;
const START_MS: u64 = 1_700_000_000_000;

#[test]
fn a_collection_takes_what_nobody_reaches_and_gives_the_space_back() {
    let disk = SimulatedDisk::new(DiskState::default());
    let store = open(Arc::new(disk.clone()), 20_000);
    let kept: Vec<IoHash> = (0..40).map(|n| put_blob(&store, &noise(n, 1000), 0)).collect();
    let lost: Vec<IoHash> = (100..200).map(|n| put_blob(&store, &noise(n, 1000), 0)).collect();
    let large = put_large(&store, &noise(500, 5000));
    let compressed = put_blob(&store, &noise(600, 300), 0);
    let content = IoHash::of(b"what was compressed");
    wait(&store, |done| store.put_content(&namespace(), content, (300, compressed, true), done));
    for (n, hashes) in kept.chunks(10).enumerate() {
        put_ref(&store, n as u64, hashes, 0);
    }
    put_ref(&store, 90, &[content], 0);
    put_ref(&store, 91, &lost[..50], 0);

    let now = START_MS + 2 * HOUR_MS;
    let first = collect(&store, now, RefPolicy::Keep);
    assert_eq!((first.refs, first.blobs), (0, 51), "fifty small ones and the large one");
    assert!(store.blob(&namespace(), &large).expect("readable").is_none());

    wait(&store, |done| store.delete_ref(&namespace(), &bucket(), &ref_key(91), done));
    let second = collect(&store, now, RefPolicy::Keep);
    assert_eq!(second.blobs, 50);
    let third = collect(&store, now, RefPolicy::Keep);
    assert!(second.segments + third.segments > 0, "{second:?} {third:?}");
    let check = |store: &Store| {
        for hash in &kept {
            let bytes = store.read_blob(&namespace(), hash).expect("readable").expect("kept");
            assert_eq!(IoHash::of(&bytes), *hash);
        }
        assert_eq!(store.content(&namespace(), &content).expect("readable"), Some(compressed));
        for hash in &lost {
            assert!(store.blob(&namespace(), hash).expect("readable").is_none());
        }
    };
    check(&store);
    drop(store);
    let mut rng = Rng::new(1);
    let again = open(Arc::new(SimulatedDisk::new(disk.state().after_power_failure(&mut rng))), 20_000);
    check(&again);

    let expired = collect(&again, START_MS + 400 * HOUR_MS, RefPolicy::LastAccess(RefPolicy::TTL_DEFAULT));
    assert_eq!((expired.refs, expired.blobs), (5, 41));
}

#[test]
fn a_ref_that_arrives_during_a_collection_keeps_its_blobs_or_is_told_that_they_are_gone() {
    let store = open(Arc::new(SimulatedDisk::new(DiskState::default())), 1 << 20);
    let hash = put_blob(&store, b"wanted again", 0);
    // The policy is asked once the collection has begun: the ref comes in before blobs are looked
    // at.
    let arrive = |_: &Namespace| {
        put_ref(&store, 1, &[hash], 0);
        RefPolicy::Keep
    };
    let options = CollectOptions {
        now: Timestamp::from_unix_ms(START_MS + 5 * HOUR_MS),
        policy: &arrive,
        last_access: &|_, _, _| None,
        blob_age_min: Duration::from_secs(3600),
    };
    store.collect(&options).expect("the disk works");
    assert!(store.has_blob(&namespace(), &hash).expect("readable"));

    // The other order: the blob goes first, and the ref that relies on it is not finalised.
    let other = put_blob(&store, b"not wanted", 0);
    collect(&store, START_MS + 5 * HOUR_MS, RefPolicy::Keep);
    let outcome = try_put_ref(&store, 2, &[other], 0);
    assert_eq!(outcome.expect("the disk works"), ChangeResult::Lost);
    assert!(store.reference(&namespace(), &bucket(), &ref_key(2)).expect("readable").is_none());
}

#[test]
fn a_ref_is_repeated_while_it_is_stored_with_all_that_it_relies_on() {
    let store = open(Arc::new(SimulatedDisk::new(DiskState::default())), 1 << 20);
    let hash = put_blob(&store, b"wanted", 0);
    let is_repeated = |n, attached: &[IoHash], hours| {
        let put = reference(&store, n, attached, hours);
        store.is_repeated(&put).expect("readable")
    };
    assert!(!is_repeated(1, &[hash], 0));
    put_ref(&store, 1, &[hash], 0);
    assert!(is_repeated(1, &[hash], 0));
    // Its age is counted anew then.
    assert!(!is_repeated(1, &[hash], 1));
    assert!(!is_repeated(1, &[], 0));
    assert!(!is_repeated(2, &[hash], 0));

    // While a collection runs, only `put_ref` protects the blobs that the ref relies on.
    let during = |_: &Namespace| {
        assert!(!is_repeated(1, &[hash], 0));
        RefPolicy::Keep
    };
    let options = CollectOptions {
        now: Timestamp::from_unix_ms(START_MS),
        policy: &during,
        last_access: &|_, _, _| None,
        blob_age_min: Duration::from_secs(3600),
    };
    store.collect(&options).expect("the disk works");
    assert!(is_repeated(1, &[hash], 0));

    wait(&store, |done| store.delete_blob(&namespace(), &hash, done));
    assert!(!is_repeated(1, &[hash], 0));
}

#[test]
fn a_scrub_finds_every_flipped_bit_and_serves_none() {
    let disk = SimulatedDisk::new(DiskState::default());
    let store = open(Arc::new(disk.clone()), 20_000);
    let blobs: Vec<IoHash> = (0..60).map(|n| put_blob(&store, &noise(n, 700), 0)).collect();
    let large: Vec<IoHash> = (100..110).map(|n| put_large(&store, &noise(n, 4000))).collect();
    store.checkpoint().expect("the disk works");
    drop(store);
    let mut found = 0;
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut state = disk.state();
        state
            .flip_a_bit(if seed % 2 == 0 { "segments/" } else { "large/" }, &mut rng)
            .expect("there are files");
        let store = open(Arc::new(SimulatedDisk::new(state)), 20_000);
        let scrubbed = store.scrub(&mut |_| {}).expect("the index is readable");
        // A start checks the end of the log by itself.
        let taken = 70 - scrubbed.blobs;
        assert!(taken <= store.opening().log_gaps, "{scrubbed:?}");
        // A bit of a record's head, which the index has taken over already, damages nothing.
        assert!(scrubbed.damaged + scrubbed.lost + taken <= 1, "{scrubbed:?}");
        found += scrubbed.damaged + taken;
        for hash in blobs.iter().chain(&large) {
            if let Some(bytes) = store.read_blob(&namespace(), hash).expect("readable") {
                assert_eq!(IoHash::of(&bytes), *hash, "seed {seed}");
            }
        }
    }
    assert!(found > 150, "only {found} of 200 flips damaged a blob");
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() {
    let disk = SimulatedDisk::new(DiskState::default());
    let store = open(Arc::new(disk.clone()), 1 << 20);
    let before = put_blob(&store, b"before", 0);
    disk.set_hook(Some(Box::new(|_| Err(io::ErrorKind::StorageFull.into()))));
    let bytes = Bytes::from_static(b"while full");
    let hash = IoHash::of(&bytes);
    let refused = answer(&store, |done| store.put_blob(&namespace(), hash, bytes.clone(), at(0), done));
    // The simulated disk refuses the truncation too, which leaves the end of the log unknown.
    assert!(matches!(refused, Err(StoreError::Full | StoreError::Broken(_))), "{refused:?}");
    assert!(store.read_blob(&namespace(), &before).expect("readable").is_some());
    assert!(store.read_blob(&namespace(), &hash).expect("readable").is_none());
    disk.set_hook(None);
    drop(store);
    let store = open(Arc::new(disk), 1 << 20);
    assert!(store.read_blob(&namespace(), &before).expect("readable").is_some());
}

#[test]
fn a_disk_that_is_full_for_a_while_takes_writes_again() {
    let disk = SimulatedDisk::new(DiskState::default());
    let store = open(Arc::new(disk.clone()), 1 << 20);
    let count = Arc::new(AtomicU64::new(0));
    disk.set_hook(Some(Box::new(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    })));
    let bytes = Bytes::from_static(b"twice");
    let put = || {
        answer(&store, |done| store.put_blob(&namespace(), IoHash::of(&bytes), bytes.clone(), at(0), done))
    };
    assert!(matches!(put(), Err(StoreError::Full)));
    assert_eq!(put().expect("there is space"), ChangeResult::Done);
    drop(store);
    let store = open(Arc::new(disk), 1 << 20);
    assert_eq!(store.read_blob(&namespace(), &IoHash::of(&bytes)).expect("readable"), Some(bytes));
}

#[test]
fn the_time_of_the_last_scrub_survives_restarts_and_last_uses_only_those_of_the_index() {
    let disk = SimulatedDisk::new(DiskState::default());
    let store = open(Arc::new(disk.clone()), 1 << 20);
    put_ref(&store, 1, &[], 3);
    store.note_scrub(at(5));
    answer(&store, |done| store.note_accesses([(namespace(), bucket(), ref_key(1), at(7))], done))
        .expect("the disk works");
    store.checkpoint().expect("the disk works");
    drop(store);
    let used = |store: &Store| store.last_access(&namespace(), &bucket(), &ref_key(1)).expect("readable");
    let store = open(Arc::new(disk.clone()), 1 << 20);
    assert_eq!((store.scrubbed_at().expect("readable"), used(&store)), (Some(at(5)), Some(at(7))));
    drop(store);
    // Ages begin anew with the times of the uploads.
    let store = Store::reindex(Arc::new(disk), Options::default()).expect("it opens");
    assert_eq!((store.scrubbed_at().expect("readable"), used(&store)), (Some(at(5)), None));
    let value =
        store.reference(&namespace(), &bucket(), &ref_key(1)).expect("readable").expect("it is there");
    assert_eq!(value.put, at(3));
}

#[test]
fn a_real_folder_keeps_everything_over_a_restart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open_here = || open(Arc::new(Folder::new(folder.path()).expect("a folder")), 1 << 20);
    let store = open_here();
    let small = put_blob(&store, b"small", 0);
    let large = put_large(&store, &noise(1, 100_000));
    put_ref(&store, 1, &[small, large], 0);
    drop(store);
    let store = open_here();
    assert_eq!(store.read_blob(&namespace(), &small).expect("readable").as_deref(), Some(&b"small"[..]));
    assert_eq!(store.blob(&namespace(), &large).expect("readable").expect("stored").len(), 100_000);
    assert!(
        store.reference(&namespace(), &bucket(), &ref_key(1)).expect("readable").expect("stored").finalised
    );
    assert_eq!(store.namespaces().expect("readable"), [namespace()]);
    assert_eq!(store.refs(&namespace(), None, None, 10).expect("readable").len(), 1);
}

fn open(fs: Arc<dyn Fs>, segment_bytes_max: u64) -> Arc<Store> {
    let small = Options { segment_bytes_max, index_cache_bytes: 1 << 18, ..Options::default() };
    let options = Options { reserve_bytes: 0, zero_bytes: 0, disk_reserve_bytes: 0, ..small };
    Store::open(fs, options).expect("the store opens")
}

fn namespace() -> Namespace {
    "test".parse().expect("a name")
}

fn bucket() -> Bucket {
    "default".parse().expect("a name")
}

fn ref_key(n: u64) -> Key {
    format!("{n:040}").parse().expect("a key")
}

fn at(hours: u64) -> Timestamp {
    Timestamp::from_unix_ms(START_MS + hours * HOUR_MS)
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Queues a change, commits, gives the answer.
fn answer(store: &Store, change: impl FnOnce(throng_ddc_store::Done)) -> Result<ChangeResult, StoreError> {
    let (sender, receiver) = mpsc::channel();
    change(Box::new(move |outcome| sender.send(outcome).expect("the test waits")));
    store.commit();
    receiver.try_recv().expect("every change is answered")
}

fn wait(store: &Store, change: impl FnOnce(throng_ddc_store::Done)) {
    assert_eq!(answer(store, change).expect("the disk works"), ChangeResult::Done);
}

fn put_blob(store: &Store, bytes: &[u8], hours: u64) -> IoHash {
    let hash = IoHash::of(bytes);
    wait(store, |done| store.put_blob(&namespace(), hash, Bytes::copy_from_slice(bytes), at(hours), done));
    hash
}

fn put_large(store: &Store, bytes: &[u8]) -> IoHash {
    let mut writer = store.begin_large().expect("the disk works");
    bytes.chunks(999).for_each(|piece| writer.write(piece).expect("the disk works"));
    assert_eq!(writer.hash(), IoHash::of(bytes));
    wait(store, |done| store.put_large(&namespace(), writer, at(0), done).expect("the disk works"));
    IoHash::of(bytes)
}

fn put_ref(store: &Store, n: u64, attached: &[IoHash], hours: u64) {
    assert_eq!(try_put_ref(store, n, attached, hours).expect("the disk works"), ChangeResult::Done);
}

fn try_put_ref(store: &Store, n: u64, attached: &[IoHash], hours: u64) -> Result<ChangeResult, StoreError> {
    let put = reference(store, n, attached, hours);
    answer(store, |done| store.put_ref(put, done))
}

fn reference(store: &Store, n: u64, attached: &[IoHash], hours: u64) -> PutRef {
    let attachments = attached.iter().map(|hash| Value::BinaryAttachment(*hash)).collect();
    let object = Value::object([("payload", Value::Array(attachments))]).encode(Style::Plain);
    let document = throng_ddc::Document::parse(&object).expect("a document");
    let (_, relies_on) = store.close(&namespace(), &document).expect("the disk works");
    let relies_on = if relies_on.is_empty() { attached.to_vec() } else { relies_on };
    let value = RefValue {
        object: IoHash::of(&object),
        finalised: true,
        put: at(hours),
        inline: Some(Bytes::from(object)),
        adopted: false,
    };
    PutRef { namespace: namespace(), bucket: bucket(), key: ref_key(n), value, overwrite: true, relies_on }
}

fn collect(store: &Store, now_ms: u64, policy: RefPolicy) -> CollectReport {
    let options = CollectOptions {
        now: Timestamp::from_unix_ms(now_ms),
        policy: &|_| policy,
        last_access: &|_, _, _| None,
        blob_age_min: Duration::from_secs(3600),
    };
    store.collect(&options).expect("the disk works")
}
