//! Stores on simulated disks, and changes that wait for their acknowledgement.

use std::sync::{Arc, mpsc};

use bytes::Bytes;
use throng_ddc::{Bucket, IoHash, Key, Namespace, Style, Timestamp, Value};
use throng_ddc_store::{ChangeResult, Done, Options, PutRef, RefValue, Store, StoreError};
use throng_platform::{DiskState, Fs, SimulatedDisk};

pub(crate) const START_MS: u64 = 1_700_000_000_000;

pub(crate) fn options() -> Options {
    Options {
        inline_bytes_max: 64 << 10,
        segment_bytes_max: 20_000,
        reserve_bytes: 0,
        zero_bytes: 0,
        disk_reserve_bytes: 0,
        free_bytes_min: 0,
        index_cache_bytes: 1 << 16,
        ..Options::default()
    }
}

pub(crate) fn disk() -> SimulatedDisk {
    SimulatedDisk::new(DiskState::default())
}

pub(crate) fn open(fs: impl Fs) -> Arc<Store> {
    Store::open(Arc::new(fs), options()).expect("the store opens")
}

pub(crate) fn namespace() -> Namespace {
    "game".parse().expect("a name")
}

pub(crate) fn bucket() -> Bucket {
    "default".parse().expect("a name")
}

pub(crate) fn key(n: u64) -> Key {
    format!("{n:040}").parse().expect("a key")
}

pub(crate) fn at(minutes: u64) -> Timestamp {
    Timestamp::from_unix_ms(START_MS + minutes * 60_000)
}

/// Queues a change, commits, gives the result.
pub(crate) fn result(store: &Store, change: impl FnOnce(Done)) -> Result<ChangeResult, StoreError> {
    let (sender, receiver) = mpsc::channel();
    change(Box::new(move |done| sender.send(done).expect("the test waits")));
    store.commit();
    receiver.try_recv().expect("every change is answered")
}

pub(crate) fn done(store: &Store, change: impl FnOnce(Done)) {
    assert_eq!(result(store, change).expect("the disk works"), ChangeResult::Done);
}

pub(crate) fn put_blob(store: &Store, bytes: &[u8]) -> IoHash {
    let hash = IoHash::of(bytes);
    done(store, |done| store.put_blob(&namespace(), hash, Bytes::copy_from_slice(bytes), at(0), done));
    hash
}

pub(crate) fn put_large(store: &Store, bytes: &[u8]) -> IoHash {
    let mut writer = store.begin_large().expect("the disk works");
    writer.write(bytes).expect("the disk works");
    done(store, |done| store.put_large(&namespace(), writer, at(0), done).expect("the disk works"));
    IoHash::of(bytes)
}

/// A ref whose object holds these attachments.
pub(crate) fn reference(n: u64, attachments: Vec<Value>, minutes: u64, relies_on: Vec<IoHash>) -> PutRef {
    let object = Value::object([("payload", Value::Array(attachments))]).encode(Style::Plain);
    let value = RefValue {
        object: IoHash::of(&object),
        finalised: true,
        put: at(minutes),
        inline: Some(Bytes::from(object)),
        adopted: false,
    };
    PutRef { namespace: namespace(), bucket: bucket(), key: key(n), value, overwrite: true, relies_on }
}

pub(crate) fn put_ref(store: &Store, n: u64, blobs: &[IoHash], minutes: u64) {
    let attachments = blobs.iter().map(|hash| Value::BinaryAttachment(*hash)).collect();
    let put = reference(n, attachments, minutes, blobs.to_vec());
    done(store, |done| store.put_ref(put, done));
}
