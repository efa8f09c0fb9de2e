//! Damage: what is found, what it takes, and what brings it back.

use std::sync::Arc;

use bytes::Bytes;
use throng_ddc::{IoHash, Namespace, Value};
use throng_ddc_store::{ChangeResult, CollectOptions, Store, StoreError};
use throng_platform::{DiskState, Fs, SimulatedDisk};
use throng_stdx::Rng;

use crate::common::*;

/// A disk with some refs and blobs of which the log holds several versions, and a segment behind
/// them.
fn written() -> (SimulatedDisk, Vec<IoHash>) {
    let disk = disk();
    let store = open(disk.clone());
    let mut blobs = Vec::new();
    for n in 0..60_u64 {
        blobs.push(put_blob(&store, &[n as u8; 300]));
        put_ref(&store, n % 20, &blobs[n as usize..], n);
    }
    store.checkpoint().expect("the disk works");
    drop(store);
    drop(open(disk.clone()));
    (disk, blobs)
}

/// How many keys are missing; everything else is as it was put last.
fn missing(store: &Store, blobs: &[IoHash]) -> usize {
    let mut missing = 0;
    for (n, hash) in blobs.iter().enumerate() {
        match store.read_blob(&namespace(), hash).expect("the index is sound") {
            Some(bytes) => assert_eq!(bytes, vec![n as u8; 300]),
            None => missing += 1,
        }
    }
    for n in 0..20 {
        match store.reference(&namespace(), &bucket(), &key(n)).expect("the index is sound") {
            Some(value) => assert_eq!(value.put, at(40 + n), "ref {n} is an older version"),
            None => missing += 1,
        }
    }
    missing
}

#[test]
fn a_bit_in_the_log_takes_one_key_and_brings_no_older_version_back() {
    let (disk, blobs) = written();
    let mut taken = 0;
    for seed in 0..150 {
        let mut state = disk.state();
        state.flip_a_bit("segments/", &mut Rng::new(seed)).expect("there are segments");
        let store = Store::reindex(Arc::new(SimulatedDisk::new(state)), options()).expect("it opens");
        let missing = missing(&store, &blobs);
        assert!(missing <= 1, "seed {seed}: one bit took {missing} keys");
        taken += missing;
        // A key that is put again is there again.
        for (n, hash) in blobs.iter().enumerate() {
            let put =
                |done| store.put_blob(&namespace(), *hash, Bytes::from(vec![n as u8; 300]), at(0), done);
            result(&store, put).expect("the disk works");
        }
        assert!(blobs.iter().all(|hash| store.read_blob(&namespace(), hash).expect("sound").is_some()));
    }
    assert!(taken > 50, "only {taken} flips took a key");
}

#[test]
fn damage_that_takes_a_record_with_its_commit_brings_no_older_version_back() {
    let (disk, blobs) = written();
    let mut taken = 0;
    for seed in 0..150 {
        let state = SimulatedDisk::new(disk.state());
        let mut rng = Rng::new(seed);
        let names = state.list("segments").expect("listed");
        let name = &names[rng.below(names.len() as u64) as usize];
        let file = state.open(&format!("segments/{name}"), false).expect("it exists");
        let mut all = vec![0; file.len().expect("known") as usize];
        file.read_at(&mut all, 0).expect("readable");
        // The last record is the directory.
        let Some(len) = all.windows(4).rposition(|bytes| bytes == b"TDC2").filter(|len| *len > 4_000) else {
            continue;
        };
        // A part of the segment holds what was in another part of it, or nothing.
        let bytes = 200 + rng.below(1_500) as usize;
        let mut place = || rng.below((len - bytes) as u64) as usize;
        let (from, to) = (place(), place() as u64);
        let part = if seed % 3 == 0 { vec![0; bytes] } else { all[from..from + bytes].to_vec() };
        file.write_at(&[std::io::IoSlice::new(&part)], to).expect("the disk works");
        let store = Store::reindex(Arc::new(state), options()).expect("it opens");
        taken += missing(&store, &blobs);
    }
    assert!(taken > 50, "only {taken} keys were taken");
}

#[test]
fn a_damaged_index_is_built_again_and_nothing_is_missing() {
    let (disk, blobs) = written();
    for seed in 0..150 {
        let mut state = disk.state();
        let mut rng = Rng::new(seed);
        for _ in 0..3 {
            state.flip_a_bit("index/", &mut rng).expect("there is an index");
        }
        let store = open(SimulatedDisk::new(state));
        assert_eq!(missing(&store, &blobs), 0, "seed {seed}");
    }
}

#[test]
fn a_torn_end_is_cut_and_no_damage() {
    let (disk, blobs) = written();
    let store = open(disk.clone());
    let before = store.stats();
    let bytes = Bytes::from(vec![77; 500]);
    let hash = IoHash::of(&bytes);
    done(&store, |done| store.put_blob(&namespace(), hash, bytes.clone(), at(0), done));
    // The process is killed.
    let disk = SimulatedDisk::new(disk.state());
    let last = disk.list("segments").expect("listed").pop().expect("a segment");
    let file = disk.open(&format!("segments/{last}"), false).expect("it exists");
    file.set_len(file.len().expect("known") - 40).expect("the disk works");
    let store = open(disk.clone());
    assert_eq!(store.stats().damaged, before.damaged);
    assert_eq!(missing(&store, &blobs), 0);
    // The record is whole, its commit is not.
    assert_eq!(store.read_blob(&namespace(), &hash).expect("sound"), Some(bytes));
}

#[test]
fn damage_at_the_end_of_the_log_is_no_torn_end_if_the_index_knows_more_of_it() {
    let disk = disk();
    let store = open(disk.clone());
    let kept = put_blob(&store, &[5; 900]);
    let taken = put_blob(&store, &[6; 900]);
    store.checkpoint().expect("the disk works");
    drop(store);
    let last = disk.list("segments").expect("listed").pop().expect("a segment");
    let file = disk.open(&format!("segments/{last}"), false).expect("it exists");
    // Record, commit and directory are gone.
    let len = file.len().expect("known");
    file.write_at(&[std::io::IoSlice::new(&[0; 600])], len - 600).expect("the disk works");
    let damaged = disk.state();
    for cut in [false, true] {
        let disk = SimulatedDisk::new(damaged.clone());
        if cut {
            let file = disk.open(&format!("segments/{last}"), false).expect("it exists");
            file.set_len(len - 600).expect("the disk works");
        }
        let store = Store::reindex(Arc::new(disk), options()).expect("it opens");
        assert!(store.stats().damaged > 0, "cut: {cut}");
        assert!(store.has_blob(&namespace(), &kept).expect("sound"));
        assert!(!store.has_blob(&namespace(), &taken).expect("sound"));
    }
}

#[test]
fn a_payload_that_was_written_in_part_is_not_found_after_a_crash() {
    let disk = disk();
    let store = open(disk.clone());
    let hash = put_blob(&store, &[5; 900]);
    drop(store);
    let last = disk.list("segments").expect("listed").pop().expect("a segment");
    let file = disk.open(&format!("segments/{last}"), false).expect("it exists");
    file.write_at(&[std::io::IoSlice::new(&[0; 100])], 400).expect("the disk works");
    let store = open(disk);
    assert!(!store.has_blob(&namespace(), &hash).expect("sound"));
}

#[test]
fn a_segment_of_an_earlier_life_is_not_read_for_the_one_of_now() {
    let disk = disk();
    drop(open(disk.clone()));
    let first = disk.list("segments").expect("listed").remove(0);
    let other = SimulatedDisk::new(DiskState::default());
    let store = open(other.clone());
    let hash = put_blob(&store, b"of another store");
    drop(store);
    let foreign = other.list("segments").expect("listed").remove(0);
    let from = other.open(&format!("segments/{foreign}"), false).expect("it exists");
    let mut bytes = vec![0; from.len().expect("known") as usize];
    from.read_at(&mut bytes, 0).expect("readable");
    let to = disk.open(&format!("segments/{first}"), false).expect("it exists");
    to.write_at(&[std::io::IoSlice::new(&bytes)], 0).expect("the disk works");
    let store = Store::reindex(Arc::new(disk), options()).expect("it opens");
    assert!(!store.has_blob(&namespace(), &hash).expect("sound"));
}

#[test]
fn an_upload_that_holds_a_record_is_never_read_as_one() {
    // A record of another store, as its owner may know it.
    let other = disk();
    let evil = put_blob(&open(other.clone()), b"never put here");
    let foreign = other.list("segments").expect("listed").remove(0);
    let file = other.open(&format!("segments/{foreign}"), false).expect("it exists");
    let mut records = vec![0; file.len().expect("known") as usize];
    file.read_at(&mut records, 0).expect("readable");
    let start = records.windows(4).position(|bytes| bytes == b"TDC2").expect("a record");

    let disk = disk();
    let store = open(disk.clone());
    let carrier = put_blob(&store, &records[start..]);
    let behind = put_blob(&store, b"put behind it");
    drop(store);
    // The head of the carrier's record is damaged, so that the next record is looked for in it.
    let last = disk.list("segments").expect("listed").pop().expect("a segment");
    let file = disk.open(&format!("segments/{last}"), false).expect("it exists");
    let mut all = vec![0; file.len().expect("known") as usize];
    file.read_at(&mut all, 0).expect("readable");
    let payload = all.windows(200).position(|bytes| bytes == &records[start..start + 200]).expect("stored");
    let head = all[..payload].windows(4).rposition(|bytes| bytes == b"TDC2").expect("its record");
    file.write_at(&[std::io::IoSlice::new(&[0; 8])], head as u64).expect("the disk works");
    let store = Store::reindex(Arc::new(disk), options()).expect("it opens");
    assert!(store.stats().damaged > 0);
    assert!(!store.has_blob(&namespace(), &carrier).expect("sound"));
    assert!(!store.has_blob(&namespace(), &evil).expect("sound"));
    assert_eq!(
        store.read_blob(&namespace(), &behind).expect("sound").as_deref(),
        Some(&b"put behind it"[..])
    );
}

#[test]
fn a_large_blob_whose_file_is_gone_is_a_miss_and_can_be_put_again() {
    let disk = disk();
    let store = open(disk.clone());
    let bytes = vec![9; 3 << 20];
    let hash = put_large(&store, &bytes);
    for name in disk.list("large").expect("listed") {
        disk.remove(&format!("large/{name}")).expect("the disk works");
    }
    assert!(store.blob(&namespace(), &hash).expect("readable").is_none());
    assert_eq!(put_large(&store, &bytes), hash);
    assert_eq!(store.read_blob(&namespace(), &hash).expect("readable").expect("it is there again"), bytes);
    assert!(store.stats().damaged > 0);
}

#[test]
fn a_large_blob_is_read_from_a_closed_file_until_it_is_removed() {
    let store = open(disk());
    let bytes = vec![9; 100_000];
    let hash = put_large(&store, &bytes);
    let mut blob = store.blob(&namespace(), &hash).expect("readable").expect("stored");
    let open = blob.clone();
    blob.close_file();
    assert_eq!(blob.read(10, 50).expect("it is there"), bytes[10..60]);
    assert_eq!(blob.read_checked().expect("sound"), bytes);
    result(&store, |done| store.delete_blob(&namespace(), &hash, done)).expect("the disk works");
    assert_eq!(blob.read(0, 1).expect_err("it is gone").kind(), std::io::ErrorKind::NotFound);
    assert_eq!(open.read_checked().expect("an open file stays"), bytes);
}

#[test]
fn a_part_of_a_large_blob_is_checked_by_its_own_sum() {
    let disk = disk();
    let store = open(disk.clone());
    let mut bytes = vec![0; (2 << 20) + 17];
    Rng::new(1).fill(&mut bytes);
    let hash = put_large(&store, &bytes);
    let blob = store.blob(&namespace(), &hash).expect("readable").expect("stored");
    for (offset, start) in [(0, 0), ((1 << 20) + 5, 1 << 20), ((2 << 20) + 16, 2 << 20)] {
        let (at, part) = blob.read_part_checked(offset).expect("sound");
        assert_eq!((at, &part[..]), (start as u64, &bytes[start..(start + (1 << 20)).min(bytes.len())]));
    }
    let name = disk.list("large").expect("listed").remove(0);
    let file = disk.open(&format!("large/{name}"), false).expect("it exists");
    file.write_at(&[std::io::IoSlice::new(&[!bytes[(1 << 20) + 3]])], (1 << 20) + 3).expect("the disk works");
    assert!(blob.read_part_checked(1 << 20).is_err() && blob.read_checked().is_err());
    assert!(blob.read_part_checked(5).is_ok(), "the first MiB is as it was");
}

#[test]
fn a_newer_format_is_refused_by_its_name() {
    let disk = disk();
    drop(open(disk.clone()));
    disk.open("format-3", true).expect("the disk works");
    let refused = Store::open(Arc::new(disk), options()).expect_err("it is too new");
    assert!(matches!(&refused, StoreError::Format(version) if version == "3"), "{refused}");
}

#[test]
fn version_1_refuses_this_format_by_its_name() {
    let disk = disk();
    drop(open(disk.clone()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("index.redb");
    let file = disk.open("index.redb", false).expect("version 1 looks here");
    let mut bytes = vec![0; file.len().expect("known") as usize];
    file.read_at(&mut bytes, 0).expect("readable");
    std::fs::write(&path, bytes).expect("written");
    let database = redb::Database::create(&path).expect("it is a database");
    let write = database.begin_write().expect("writable");
    let table = redb::TableDefinition::<&[u8], &[u8]>::new("entries");
    let refused = write.open_table(table).expect_err("it has another type").to_string();
    assert!(refused.contains("format 2"), "{refused}");
    // Version 1 builds an index anew only where its log begins with segment 1.
    assert_eq!(disk.list("log").expect("listed"), ["ffffffffffffffff.seg"]);
}

/// A disk with a store of version 1, and the bytes of its large blob.
fn version_1() -> (SimulatedDisk, Vec<u8>) {
    let disk = disk();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/ddc/store-v1");
    let large: Vec<u8> = (0..=255).cycle().take(256 * 4097).collect();
    let copy = |name: &str, bytes: &[u8]| {
        let file = disk.open(name, true).expect("the disk works");
        file.write_at(&[std::io::IoSlice::new(bytes)], 0).expect("the disk works");
        file.sync().expect("the disk works");
    };
    for entry in std::fs::read_dir(fixtures).expect("the fixture is there") {
        let entry = entry.expect("readable");
        let name = entry.file_name().into_string().expect("a name");
        let path = if name.ends_with(".seg") { format!("log/{name}") } else { name };
        copy(&path, &std::fs::read(entry.path()).expect("readable"));
    }
    copy("large/0000000000000001", &large);
    for folder in ["", "log", "large"] {
        disk.sync_dir(folder).expect("the disk works");
    }
    (disk, large)
}

/// Compares a converted store with what the fixture holds.
fn check_converted(store: &Store, large: &[u8]) {
    for n in 0..8_u64 {
        let value = store.reference(&namespace(), &bucket(), &key(n)).expect("readable");
        assert_eq!(value.is_some(), n != 1, "ref {n}");
        let bytes = format!("value {} ", if n == 0 { 100 } else { n }).repeat(20);
        let blob = store.read_blob(&namespace(), &IoHash::of(bytes.as_bytes())).expect("readable");
        assert!(n == 1 || blob.as_deref() == Some(bytes.as_bytes()), "blob of ref {n}");
    }
    for n in 0..5 {
        let loose = format!("loose {n}");
        let found = store.read_blob(&namespace(), &IoHash::of(loose.as_bytes())).expect("readable");
        assert_eq!(found.as_deref(), Some(loose.as_bytes()));
    }
    let blob = store.blob(&namespace(), &IoHash::of(large)).expect("readable").expect("stored");
    assert_eq!(blob.hash().expect("readable"), IoHash::of(large));
}

#[test]
fn a_store_of_version_1_is_converted_with_what_only_its_index_holds() {
    let (disk, large) = version_1();
    let refused = Store::open_read_only(Arc::new(disk.clone()), options()).expect_err("it must be converted");
    assert!(matches!(refused, StoreError::OldFormat), "{refused}");
    let store = open(disk.clone());
    check_converted(&store, &large);
    drop(store);
    check_converted(&open(disk.clone()), &large);
    assert_eq!(disk.list("log").expect("listed"), ["ffffffffffffffff.seg"]);
}

#[test]
fn a_damaged_large_blob_of_version_1_is_never_read() {
    let (disk, large) = version_1();
    let file = disk.open("large/0000000000000001", false).expect("it is there");
    let mut byte = [0];
    file.read_at(&mut byte, 70_000).expect("readable");
    file.write_at(&[std::io::IoSlice::new(&[byte[0] ^ 4])], 70_000).expect("the disk works");
    let store = open(disk);
    assert_eq!(store.read_blob(&namespace(), &IoHash::of(&large)).expect("readable"), None);
}

/// Opens the store in `state` and gives the disk as it was after each change.
fn states_of_a_start(state: DiskState) -> Vec<DiskState> {
    let states = Arc::new(std::sync::Mutex::new(Vec::new()));
    let disk = SimulatedDisk::new(state);
    let slot = Arc::clone(&states);
    disk.set_hook(Some(Box::new(move |state| {
        slot.lock().expect("no panic").push(state.clone());
        Ok(())
    })));
    drop(open(disk.clone()));
    disk.set_hook(None);
    std::mem::take(&mut *states.lock().expect("no panic"))
}

#[test]
fn a_conversion_that_power_failures_interrupt_again_and_again_loses_nothing() {
    let (disk, large) = version_1();
    let first = states_of_a_start(disk.state());
    for (number, state) in first.iter().enumerate() {
        let mut rng = Rng::new(number as u64);
        let mut state = state.after_power_failure(&mut rng);
        for _ in 0..2 {
            let next = states_of_a_start(state.clone());
            let failed = next.get(rng.below(next.len() as u64 + 1) as usize).unwrap_or(&state);
            state = failed.after_power_failure(&mut rng);
        }
        let disk = SimulatedDisk::new(state);
        let store = open(disk.clone());
        check_converted(&store, &large);
        drop(store);
        let store = Store::reindex(Arc::new(disk), options()).expect("it opens");
        check_converted(&store, &large);
    }
}

#[test]
fn a_queue_that_is_full_refuses_what_comes() {
    let store =
        Store::open(Arc::new(disk()), throng_ddc_store::Options { queue_bytes_max: 2_000, ..options() })
            .expect("it opens");
    let results = Arc::new(std::sync::Mutex::new(Vec::new()));
    for n in 0..4_u8 {
        let bytes = Bytes::from(vec![n; 700]);
        let results = Arc::clone(&results);
        let note = Box::new(move |result| results.lock().expect("no panic").push((n, result)));
        store.put_blob(&namespace(), IoHash::of(&bytes), bytes, at(0), note);
    }
    store.commit();
    let results = results.lock().expect("no panic");
    let taken =
        |n: u8| results.iter().any(|(which, result)| *which == n && matches!(result, Ok(ChangeResult::Done)));
    let refused =
        |n: u8| results.iter().any(|(which, result)| *which == n && matches!(result, Err(StoreError::Busy)));
    assert!(taken(0) && taken(1) && refused(2) && refused(3), "{results:?}");
}

#[test]
fn a_conflicting_ref_is_not_replaced_without_permission() {
    let store = open(disk());
    put_ref(&store, 1, &[], 0);
    let blob = put_blob(&store, b"another object");
    let attachment = vec![throng_ddc::Value::BinaryAttachment(blob)];
    let other = throng_ddc_store::PutRef { overwrite: false, ..reference(1, attachment, 1, vec![blob]) };
    let conflict = result(&store, |done| store.put_ref(other, done)).expect("the disk works");
    let ChangeResult::Conflict(old) = conflict else { panic!("{conflict:?}") };
    assert_eq!(old.put, at(0));
    let now = store.reference(&namespace(), &bucket(), &key(1)).expect("readable").expect("stored");
    assert_eq!(now, old);
}

#[test]
fn the_part_of_a_failed_append_is_not_found_behind_the_next_one() {
    let disk = disk();
    let store = open(disk.clone());
    let kept = put_blob(&store, b"before");
    let mut left = 1;
    disk.set_hook(Some(Box::new(move |_| {
        left -= 1;
        if left == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    })));
    let bytes = Bytes::from(vec![3; 2_000]);
    let failed =
        result(&store, |done| store.put_blob(&namespace(), IoHash::of(&bytes), bytes.clone(), at(0), done));
    assert!(matches!(failed, Err(StoreError::Full)), "{failed:?}");
    disk.set_hook(None);
    let small = put_blob(&store, b"after");
    drop(store);
    let store = Store::reindex(Arc::new(disk), options()).expect("it opens");
    assert_eq!(store.stats().damaged, 0);
    assert!(!store.has_blob(&namespace(), &IoHash::of(&bytes)).expect("readable"));
    let all: &Namespace = &namespace();
    assert!([kept, small].iter().all(|hash| store.has_blob(all, hash).expect("readable")));
}

#[test]
fn a_merge_after_a_checkpoint_that_failed_keeps_what_that_did_not_write() {
    for failing in 0.. {
        let disk = disk();
        let store = open(disk.clone());
        let put = |minutes: u64| put_ref(&store, 1, &[put_blob(&store, &[minutes as u8])], minutes);
        for minutes in 0..3 {
            put(minutes);
            store.checkpoint().expect("the disk works");
        }
        put(3);
        let mut left = failing;
        disk.set_hook(Some(Box::new(move |_| {
            left -= 1;
            if left == -1 { Err(std::io::ErrorKind::Other.into()) } else { Ok(()) }
        })));
        let checkpoint = store.checkpoint();
        disk.set_hook(None);
        store.merge().expect("the disk works");
        drop(store);
        let found = open(disk).reference(&namespace(), &bucket(), &key(1)).expect("sound");
        assert_eq!(found.map(|value| value.put), Some(at(3)), "write or sync {failing} failed");
        if checkpoint.is_ok() {
            assert!(failing > 3, "a run and a manifest are written and synced");
            return;
        }
    }
}

#[test]
fn a_verification_reports_a_damaged_index_and_what_it_hides() {
    let (disk, _) = written();
    let verify = |state: DiskState| {
        let store = Store::open_read_only(Arc::new(SimulatedDisk::new(state)), options());
        store.expect("it opens").verify().expect("the disk works")
    };
    // Both manifests are of a store in use.
    let store = open(disk.clone());
    put_blob(&store, &[99; 300]);
    store.checkpoint().expect("the disk works");
    drop(store);
    let sound = verify(disk.state());
    assert_eq!((sound.index_damaged, sound.log_gaps, sound.damaged), (false, 0, 0));
    for name in disk.list("index").expect("listed") {
        let flipped = SimulatedDisk::new(disk.state());
        let file = flipped.open(&format!("index/{name}"), false).expect("it exists");
        let mut byte = [0];
        file.read_at(&mut byte, 20).expect("readable");
        file.write_at(&[std::io::IoSlice::new(&[byte[0] ^ 1])], 20).expect("writable");
        file.sync().expect("writable");
        let found = verify(flipped.state());
        assert!(found.index_damaged, "a flip in {name}");
        assert_eq!((found.log_gaps, found.damaged, found.blobs), (0, 0, sound.blobs), "a flip in {name}");
        let removed = SimulatedDisk::new(disk.state());
        removed.remove(&format!("index/{name}")).expect("it exists");
        removed.sync_dir("index").expect("writable");
        assert!(verify(removed.state()).index_damaged, "{name} is gone");
    }
    // Every flip in a segment is found, also by a verification that has to build the index.
    for seed in 0..100 {
        let mut state = disk.state();
        state.flip_a_bit("segments/", &mut Rng::new(seed)).expect("there are segments");
        let with_index = verify(state.clone());
        let damaged = SimulatedDisk::new(state);
        for name in damaged.list("index").expect("listed") {
            damaged.remove(&format!("index/{name}")).expect("it exists");
        }
        damaged.sync_dir("index").expect("writable");
        let found = verify(damaged.state());
        assert!(found.index_damaged);
        let is_found = |report: &throng_ddc_store::VerifyReport| report.log_gaps + report.damaged > 0;
        assert_eq!(is_found(&found), is_found(&with_index), "seed {seed}: {found:?}, {with_index:?}");
    }
}

#[test]
fn a_lost_segment_is_reported_and_a_removed_one_is_not() {
    let disk = disk();
    let store = open(disk.clone());
    let mut blobs = Vec::new();
    for n in 0..200_u64 {
        blobs.push(put_blob(&store, &[n as u8; 600]));
        put_ref(&store, n, &blobs[n as usize..], n);
    }
    // Segments between others become empty.
    for n in (0..200).filter(|n| n / 40 % 2 == 1) {
        done(&store, |done| store.delete_ref(&namespace(), &bucket(), &key(n), done));
    }
    let options_of_collection = CollectOptions {
        now: at(600),
        policy: &|_| throng_ddc::gc::RefPolicy::Keep,
        last_access: &|_, _, _| None,
        blob_age_min: std::time::Duration::ZERO,
    };
    assert!(store.collect(&options_of_collection).expect("the disk works").segments > 0);
    let without_index = |disk: &SimulatedDisk, gone: Option<&str>| {
        let copy = SimulatedDisk::new(disk.state());
        for name in copy.list("index").expect("listed") {
            copy.remove(&format!("index/{name}")).expect("it exists");
        }
        if let Some(gone) = gone {
            copy.remove(&format!("segments/{gone}")).expect("it exists");
            copy.sync_dir("segments").expect("writable");
        }
        copy.sync_dir("index").expect("writable");
        copy
    };
    drop(store);
    let mut names = disk.list("segments").expect("listed");
    names.sort();
    assert!(names.len() > 4, "{names:?}");
    let verify = |disk: SimulatedDisk| {
        let store = Store::open_read_only(Arc::new(disk), options()).expect("it opens");
        store.verify().expect("the disk works").log_gaps
    };
    assert_eq!(verify(without_index(&disk, None)), 0, "what was removed is not missed");
    // Nothing is behind the last.
    for name in &names[..names.len() - 1] {
        assert_eq!(verify(without_index(&disk, Some(name))), 1, "{name}");
        let store = open(without_index(&disk, Some(name)));
        assert_eq!((store.opening().log_gaps, store.stats().damaged), (1, 1), "{name}");
    }
}

/// The last segment with records, and its length.
fn end_of_log(disk: &SimulatedDisk) -> (String, u64) {
    let names = disk.list("segments").expect("listed");
    let len = |name: &String| disk.open(&format!("segments/{name}"), false).expect("listed").len();
    let mut names =
        names.into_iter().map(|name| (len(&name).expect("known"), name)).filter(|(len, _)| *len > 0);
    let (len, name) = names.next_back().expect("a segment");
    (format!("segments/{name}"), len)
}

/// A log in which ref 1 is overwritten and ref 2 deleted, with puts of other refs before and behind
/// that. Gives the store and the offset at which the deletion begins.
fn overwritten(disk: &SimulatedDisk) -> (Arc<Store>, u64) {
    let store = Store::open(
        Arc::new(disk.clone()),
        throng_ddc_store::Options { segment_bytes_max: 1 << 20, ..options() },
    );
    let store = store.expect("the store opens");
    let put = |n, minutes| {
        let put = reference(n, vec![Value::Integer(minutes)], minutes, Vec::new());
        done(&store, |done| store.put_ref(put, done));
    };
    put(1, 1);
    put(2, 1);
    (100..140).for_each(|n| put(n, 1));
    let (_, at) = end_of_log(disk);
    done(&store, |done| store.delete_ref(&namespace(), &bucket(), &key(2), done));
    put(1, 2);
    (200..240).for_each(|n| put(n, 1));
    (store, at)
}

/// Checks that refs 1 and 2 have no older value, and how many other refs are missing.
fn check_overwritten(store: &Store, case: &str) -> usize {
    let put = |n| {
        let found = store.reference(&namespace(), &bucket(), &key(n)).expect("the index is sound");
        found.map(|value| value.put)
    };
    assert!([None, Some(crate::common::at(2))].contains(&put(1)), "{case}: the overwritten value is back");
    assert_eq!(put(2), None, "{case}: the deleted ref is back");
    (100..140).chain(200..240).filter(|n| put(*n).is_none()).count()
}

#[test]
fn damage_within_the_open_segment_of_a_killed_process_brings_no_older_value_back() {
    for (before, len) in [(0, 60), (20, 300), (0, 300), (100, 600), (500, 1_200), (1_500, 3_000)] {
        for reindex in [false, true] {
            let case = format!("{len} bytes from {before} before, reindex {reindex}");
            let disk = disk();
            let (store, at) = overwritten(&disk);
            let killed = SimulatedDisk::new(disk.state());
            drop(store);
            let (name, _) = end_of_log(&killed);
            let file = killed.open(&name, false).expect("it exists");
            file.write_at(&[std::io::IoSlice::new(&vec![0; len])], at - before).expect("writable");
            let fs = Arc::new(killed.clone());
            let store = if reindex { Store::reindex(fs, options()) } else { Store::open(fs, options()) };
            let store = store.expect("it opens");
            let missing = check_overwritten(&store, &case);
            assert!(missing <= 2 + len / 130, "{case}: {missing} other refs are missing");
            assert!(store.stats().damaged > 0, "{case}");
            drop(store);
            check_overwritten(&Store::reindex(Arc::new(killed), options()).expect("it opens"), &case);
        }
    }
}

#[test]
fn a_tail_that_is_lost_after_a_clean_stop_brings_no_older_value_back() {
    for zeros in [false, true] {
        for before in [-400_i64, -40, 0, 40, 300, 2_000] {
            let case = format!("from {before} bytes before, zeros {zeros}");
            let disk = disk();
            let (store, at) = overwritten(&disk);
            store.checkpoint().expect("the disk works");
            drop(store);
            let (name, len) = end_of_log(&disk);
            let file = disk.open(&name, false).expect("it exists");
            let end = at.saturating_add_signed(-before);
            file.set_len(end).expect("writable");
            if zeros {
                file.set_len(len).expect("writable");
            }
            let verified = Store::open_read_only(Arc::new(SimulatedDisk::new(disk.state())), options());
            assert!(verified.expect("it opens").verify().expect("readable").log_gaps > 0, "{case}");
            let store = open(disk.clone());
            assert_eq!(check_overwritten(&store, &case), 0, "{case}: the index had the refs");
            drop(store);
            let store = open(disk.clone());
            assert!(store.stats().damaged > 0 && store.opening().log_gaps > 0, "{case}: it is forgotten");
            assert!(store.verify().expect("readable").log_gaps > 0, "{case}: it is forgotten");
            drop(store);
            // The log has the entries of the index again.
            let store = Store::reindex(Arc::new(disk.clone()), options()).expect("it opens");
            assert_eq!(check_overwritten(&store, &case), 0, "{case}: the log has the refs again");
            assert!(store.opening().log_gaps > 0, "{case}");
            drop(store);
            let store = open(disk);
            assert_eq!(store.opening().log_gaps, 0, "{case}: a rebuild acknowledges it");
            assert_eq!(store.verify().expect("readable").log_gaps, 0, "{case}: a rebuild acknowledges it");
        }
    }
}

#[test]
fn a_rebuild_finds_that_the_log_lost_its_tail_after_a_clean_stop() {
    let disk = disk();
    let (store, at) = overwritten(&disk);
    drop(store);
    let (name, _) = end_of_log(&disk);
    disk.open(&name, false).expect("it exists").set_len(at).expect("writable");
    for name in disk.list("index").expect("listed") {
        disk.remove(&format!("index/{name}")).expect("it exists");
    }
    assert!(open(disk).opening().log_gaps > 0);
}

#[test]
fn the_loss_of_the_last_segment_is_found_and_brings_no_older_value_back() {
    let disk = disk();
    let (store, _) = overwritten(&disk);
    let blob = put_blob(&store, b"lost");
    store.checkpoint().expect("the disk works");
    drop(store);
    for name in disk.list("segments").expect("listed") {
        disk.remove(&format!("segments/{name}")).expect("it exists");
    }
    let verify = || {
        let copy = Arc::new(SimulatedDisk::new(disk.state()));
        Store::open_read_only(copy, options()).expect("it opens").verify().expect("readable").log_gaps
    };
    assert_eq!(verify(), 1);
    let store = open(disk.clone());
    assert_eq!(check_overwritten(&store, "lost"), 0);
    assert!(!store.has_blob(&namespace(), &blob).expect("sound"));
    assert_eq!(put_blob(&store, b"lost"), blob);
    drop(store);
    assert_eq!(verify(), 1, "it is not forgotten");
    let store = Store::reindex(Arc::new(disk), options()).expect("it opens");
    assert_eq!(check_overwritten(&store, "rebuilt"), 0);
    assert!(store.has_blob(&namespace(), &blob).expect("sound"));
}

#[test]
fn a_delete_that_is_lost_with_the_tail_stays_although_the_index_has_merged_it_away() {
    let disk = disk();
    let (store, at) = overwritten(&disk);
    store.checkpoint().expect("the disk works");
    // The second run is the larger one: a merge of both leaves no trace of the deleted key.
    for n in 300..600 {
        put_ref(&store, n, &[], 3);
    }
    store.checkpoint().expect("the disk works");
    store.merge().expect("the disk works");
    drop(store);
    let (name, _) = end_of_log(&disk);
    disk.open(&name, false).expect("it exists").set_len(at).expect("writable");
    let store = open(disk.clone());
    assert_eq!(check_overwritten(&store, "opened"), 0);
    drop(store);
    for name in disk.list("index").expect("listed") {
        disk.remove(&format!("index/{name}")).expect("it exists");
    }
    let store = open(disk);
    assert_eq!(check_overwritten(&store, "rebuilt"), 0);
    // A key that is put again is there again.
    put_ref(&store, 2, &[], 4);
    assert!(store.reference(&namespace(), &bucket(), &key(2)).expect("sound").is_some());
}

/// Segments with records, the oldest first, and the offsets of their records.
fn records(disk: &SimulatedDisk) -> Vec<(String, Vec<u64>)> {
    let mut found = Vec::new();
    for name in disk.list("segments").expect("listed") {
        let name = format!("segments/{name}");
        let file = disk.open(&name, false).expect("it exists");
        let mut bytes = vec![0; file.len().expect("known") as usize];
        file.read_at(&mut bytes, 0).expect("readable");
        let starts = bytes.windows(4).enumerate().filter(|(_, magic)| *magic == b"TDC2");
        let starts: Vec<u64> = starts.map(|(at, _)| at as u64).collect();
        if !starts.is_empty() {
            found.push((name, starts));
        }
    }
    found
}

#[test]
fn a_segment_before_the_last_that_ends_with_an_earlier_record_is_reported_and_restored() {
    let (disk, blobs) = written();
    let segments = records(&disk);
    assert!(segments.len() > 1);
    let (name, starts) = &segments[segments.len() - 2];
    // The last record is the directory.
    for start in starts.iter().rev().take(8) {
        let copy = SimulatedDisk::new(disk.state());
        copy.open(name, false).expect("it exists").set_len(*start).expect("writable");
        let case = format!("{name} ends at {start}");
        let looked = Store::open_read_only(Arc::new(SimulatedDisk::new(copy.state())), options());
        let looked = looked.expect("it opens");
        assert_eq!(
            (looked.opening().log_gaps, looked.verify().expect("readable").log_gaps),
            (1, 1),
            "{case}"
        );
        drop(looked);
        let store = open(copy.clone());
        assert_eq!(store.opening().log_gaps, 1, "{case}");
        let lost = missing(&store, &blobs);
        assert!(lost <= 3, "{case}: {lost} blobs were in the part that is gone");
        drop(store);
        let store = open(copy.clone());
        assert_eq!(store.opening().log_gaps, 1, "{case}: it is forgotten");
        drop(store);
        // The log has the entries of the index again.
        let store = Store::reindex(Arc::new(copy), options()).expect("it opens");
        assert_eq!(missing(&store, &blobs), lost, "{case}");
    }
}

#[test]
fn a_lost_segment_is_reported_by_a_start_that_has_an_index_and_is_not_forgotten() {
    let (disk, blobs) = written();
    let segments = records(&disk);
    for (name, _) in &segments[..segments.len() - 1] {
        let copy = SimulatedDisk::new(disk.state());
        copy.remove(name).expect("it exists");
        let store = open(copy.clone());
        assert_eq!(store.opening().log_gaps, 1, "{name}");
        let lost = missing(&store, &blobs);
        put_blob(&store, b"the next segment does not name it");
        drop(store);
        let store = open(copy.clone());
        assert_eq!((store.opening().log_gaps, store.verify().expect("readable").log_gaps), (1, 1), "{name}");
        drop(store);
        let store = Store::reindex(Arc::new(copy), options()).expect("it opens");
        assert_eq!(missing(&store, &blobs), lost, "{name}");
    }
}
