//! What a node does by itself and by hand: notes of last uses, collections, exports.

use std::io::Cursor;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use throng_ddc::{Document, IoHash, Key, Namespace, Style, Timestamp, Value};
use throng_ddc_server::{NamespaceRules, Node, Rules};
use throng_ddc_store::{ChangeResult, Clock, Done, Options, PutRef, RefValue, StoreError};

fn open(folder: &std::path::Path) -> Node {
    Node::open(folder, Options::default(), Rules::default()).expect("the folder opens")
}

fn namespace() -> Namespace {
    "game".parse().expect("a name")
}

fn key() -> Key {
    "00000000000000000000000000000000000000aa".parse().expect("a key")
}

fn wait(change: impl FnOnce(Done)) -> ChangeResult {
    let (sender, receiver) = mpsc::channel::<Result<ChangeResult, StoreError>>();
    change(Box::new(move |outcome| drop(sender.send(outcome))));
    receiver.recv().expect("it is answered").expect("it is stored")
}

/// A small blob, a large one, a form of a content id, and a ref to them; gives their hashes.
fn fill(node: &Node) -> [IoHash; 3] {
    let store = node.service().store();
    let (now, name) = (Timestamp::from_unix_ms(1), namespace());
    let small = Bytes::from_static(b"small");
    let hash = IoHash::of(&small);
    wait(|done| store.put_blob(&name, hash, small, now, done));
    let mut writer = store.begin_large().expect("there is space");
    writer.write(&vec![7; 3 << 20]).expect("there is space");
    let large = writer.hash();
    wait(|done| store.put_large(&name, writer, now, done).expect("there is space"));
    let content = IoHash::of(b"content");
    wait(|done| store.put_content(&name, content, (5, hash, true), done));
    let attachments = [large, content].map(Value::BinaryAttachment).to_vec();
    let object = Bytes::from(Value::object([("a", Value::Array(attachments))]).encode(Style::Plain));
    let relies_on = vec![large, hash];
    let value = RefValue {
        object: IoHash::of(&object),
        finalised: true,
        put: now,
        inline: Some(object),
        adopted: false,
    };
    let bucket = "default".parse().expect("a name");
    let put = PutRef { namespace: name, bucket, key: key(), value, overwrite: true, relies_on };
    assert_eq!(wait(|done| store.put_ref(put, done)), ChangeResult::Done);
    [hash, large, content]
}

#[test]
fn namespaces_are_counted_the_largest_first() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let node = open(folder.path());
    fill(&node);
    let (other, now) = ("other".parse().expect("a name"), Timestamp::from_unix_ms(1));
    let bytes = Bytes::from_static(b"of another namespace");
    wait(|done| node.service().store().put_blob(&other, IoHash::of(&bytes), bytes.clone(), now, done));
    node.service().count_sizes().expect("the disk works");
    let sizes = node.service().sizes();
    let rows: Vec<_> = sizes
        .iter()
        .map(|(name, usage)| (name.as_str(), usage.refs, usage.blobs, usage.blob_bytes))
        .collect();
    assert_eq!(rows, [("game", 1, 2, 5 + (3 << 20)), ("other", 0, 1, 20)]);
    assert_eq!(node.service().report()["sizes"][1]["namespace"], "other");
}

#[test]
fn the_report_names_what_is_evicted_next() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut rules = Rules::default();
    rules.maintenance.bytes_max = Some(1 << 30);
    let kept = NamespaceRules { keeps: true, ..NamespaceRules::default() };
    rules.namespaces.insert("kept".parse().expect("a name"), kept);
    let node = Node::open(folder.path(), Options::default(), rules).expect("the folder opens");
    let store = node.service().store();
    let bucket: throng_ddc::Bucket = "default".parse().expect("a name");
    let put = |namespace: &str, n: u64, put_ms: u64| {
        let (namespace, key): (Namespace, Key) =
            (namespace.parse().expect("a name"), format!("{n:040}").parse().expect("a key"));
        let object = Bytes::from(Value::object([("n", Value::Integer(n))]).encode(Style::Plain));
        let value = RefValue {
            object: IoHash::of(&object),
            finalised: true,
            put: Timestamp::from_unix_ms(put_ms),
            inline: Some(object),
            adopted: false,
        };
        let relies_on = Vec::new();
        let put = PutRef { namespace, bucket: bucket.clone(), key, value, overwrite: true, relies_on };
        assert_eq!(wait(|done| store.put_ref(put, done)), ChangeResult::Done);
    };
    // More than the report names, the oldest of which were used again; nothing of `kept` goes.
    for n in 0..30 {
        put("game", n, 1_000_000 * (n + 1));
    }
    put("kept", 0, 1);
    let used = Timestamp::from_unix_ms(1_700_000_000_000);
    let first: Key = format!("{:040}", 0).parse().expect("a key");
    wait(|done| store.note_accesses([(namespace(), bucket.clone(), first, used)], done));
    node.service().count_sizes().expect("the disk works");
    let report = node.service().report();
    let eviction = &report["eviction"];
    assert_eq!(eviction["begins_at_bytes"], (1_u64 << 30) / 100 * 95);
    let next = eviction["next"].as_array().expect("a list");
    assert_eq!(next.len(), 20);
    for (row, n) in next.iter().zip(1_u64..) {
        let name = format!("default/{n:040}");
        assert_eq!((row["kind"].as_str(), row["name"].as_str()), (Some("ref"), Some(name.as_str())));
        assert_eq!(
            (row["namespace"].as_str(), row["used_unix_s"].as_u64()),
            (Some("game"), Some(1_000 * (n + 1)))
        );
    }
}

#[test]
fn an_export_brings_everything_elsewhere() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let (from, to) = (open(folders[0].path()), open(folders[1].path()));
    let [small, large, content] = fill(&from);
    let mut stream = Vec::new();
    let taken = Node::export(from.service().store(), None, &mut stream).expect("memory");
    assert_eq!((taken.blobs, taken.bytes, taken.contents, taken.refs), (2, 5 + (3 << 20), 1, 1));
    assert_eq!(to.import(&mut Cursor::new(&stream)).expect("a valid stream"), taken);
    let store = to.service().store();
    assert_eq!(store.content(&namespace(), &content).expect("the disk works"), Some(small));
    let bytes = store.read_blob(&namespace(), &large).expect("the disk works").expect("it is there");
    assert_eq!(IoHash::of(&bytes), large);
    let bucket = "default".parse().expect("a name");
    let value = store.reference(&namespace(), &bucket, &key()).expect("the disk works").expect("it is there");
    assert!(value.finalised);
    let object = store.object(&namespace(), &value).expect("the disk works").expect("it is there");
    assert_eq!(Document::parse(&object).expect("valid").attachments().len(), 2);
    let verified = store.verify().expect("the disk works");
    assert_eq!((verified.blobs, verified.damaged, verified.refs, verified.incomplete), (2, 0, 1, 0));
    // Again changes nothing.
    to.import(&mut Cursor::new(&stream)).expect("a valid stream");
    assert_eq!(store.usage(&namespace()).expect("the disk works").blobs, 2);
}

#[test]
fn a_damaged_export_is_refused() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let (from, to) = (open(folders[0].path()), open(folders[1].path()));
    fill(&from);
    let mut stream = Vec::new();
    Node::export(from.service().store(), Some(&namespace()), &mut stream).expect("memory");
    for (what, change) in [("a flipped bit", stream.len() / 2), ("the first line", 2)] {
        let mut damaged = stream.clone();
        damaged[change] ^= 1;
        assert!(to.import(&mut Cursor::new(&damaged)).is_err(), "{what}");
    }
    let last = stream.len() - 1;
    for len in (0..500).step_by(7).chain([last / 2]).chain((last - 300..last).rev().step_by(23)) {
        assert!(to.import(&mut Cursor::new(&stream[..len])).is_err(), "cut short at {len}");
    }
    // Version 1 had no end.
    let end = stream.len() - b"{\"end\":true}\n".len();
    let old = [b"{\"export\":1}\n", &stream[b"{\"export\":2}\n".len()..end]].concat();
    to.import(&mut Cursor::new(&old)).expect("an export of an earlier version");
    assert!(to.import(&mut Cursor::new(b"")).is_err());
}

#[test]
fn a_folder_has_one_process_at_a_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let node = open(folder.path());
    let second = Node::open(folder.path(), Options::default(), Rules::default());
    assert!(second.expect_err("it is in use").to_string().contains("another process"));
    drop(node);
    drop(open(folder.path()));
}

#[test]
fn last_uses_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bucket: throng_ddc::Bucket = "default".parse().expect("a name");
    // A multiple of the 4 s in which uses are noted.
    let used = Timestamp::from_unix_ms(1_700_000_000_000);
    {
        let node = open(folder.path());
        fill(&node);
        let store = node.service().store();
        let access = (namespace(), bucket.clone(), key(), used);
        wait(|done| store.note_accesses([access], done));
    }
    let node = open(folder.path());
    let store = node.service().store();
    assert_eq!(store.last_access(&namespace(), &bucket, &key()).expect("the disk works"), Some(used));
    // Nothing expires by default; what the ref reaches stays, what nothing reaches and is an hour
    // old goes.
    let collected = node.service().collect().expect("the disk works");
    assert_eq!((collected.refs, collected.blobs), (0, 0));
    assert_eq!(node.service().stats().collections, 1);
}

/// Puts an object of these values as the ref of [`key`].
fn put_object(node: &Node, attachments: Vec<Value>, n: u64, put_ms: u64) {
    let values = [("a", Value::Array(attachments)), ("n", Value::Integer(n))];
    let object = Bytes::from(Value::object(values).encode(Style::Plain));
    let value = RefValue {
        object: IoHash::of(&object),
        finalised: true,
        put: Timestamp::from_unix_ms(put_ms),
        inline: Some(object),
        adopted: false,
    };
    let (bucket, relies_on) = ("default".parse().expect("a name"), Vec::new());
    let put = PutRef { namespace: namespace(), bucket, key: key(), value, overwrite: true, relies_on };
    assert_eq!(wait(|done| node.service().store().put_ref(put, done)), ChangeResult::Done);
}

fn exported(node: &Node) -> Cursor<Vec<u8>> {
    let mut stream = Vec::new();
    Node::export(node.service().store(), None, &mut stream).expect("memory");
    Cursor::new(stream)
}

#[test]
fn an_import_leaves_newer_refs_as_they_are_and_names_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let node = open(folder.path());
    put_object(&node, Vec::new(), 1, 1_000);
    let stream = exported(&node);
    put_object(&node, Vec::new(), 2, 2_000);
    let newer = exported(&node);
    let done = node.import(&mut stream.clone()).expect("a valid stream");
    let name = "ref game/default/00000000000000000000000000000000000000aa".to_owned();
    assert_eq!((done.refs, done.newer, done.newer_names), (0, 1, vec![name]));
    assert_eq!(exported(&node), newer);
    // One that is older is replaced.
    put_object(&node, Vec::new(), 3, 500);
    let done = node.import(&mut newer.clone()).expect("a valid stream");
    assert_eq!((done.refs, done.newer), (1, 0));
    assert_eq!(exported(&node), newer);
}

#[test]
fn a_ref_whose_blob_is_damaged_stays_a_miss_after_export_and_import() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let (from, to) = (open(folders[0].path()), open(folders[1].path()));
    put_object(&from, vec![Value::BinaryAttachment(IoHash::of(b"gone"))], 1, 1_000);
    to.import(&mut exported(&from)).expect("a valid stream");
    let bucket = "default".parse().expect("a name");
    let value = to.service().store().reference(&namespace(), &bucket, &key()).expect("the disk works");
    assert!(value.expect("it is there").finalised, "an upload that never ended is another answer");
}

/// A clock that asks for a stop at the third sleep.
#[derive(Debug, Default)]
struct StopAtThird {
    store: std::sync::OnceLock<std::sync::Weak<throng_ddc_store::Store>>,
    sleeps: std::sync::Mutex<Vec<Duration>>,
}

impl Clock for StopAtThird {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_ms(1_700_000_000_000)
    }

    fn elapsed(&self) -> Duration {
        self.sleeps.lock().expect("no panic").iter().sum()
    }

    fn sleep(&self, time: Duration) {
        let mut sleeps = self.sleeps.lock().expect("no panic");
        sleeps.push(time);
        if sleeps.len() == 3 {
            self.store.get().and_then(std::sync::Weak::upgrade).expect("it is open").end_maintenance();
        }
    }
}

#[test]
fn a_slow_scrub_of_a_large_blob_stops_within_a_moment() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let clock = Arc::new(StopAtThird::default());
    let options = Options { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..Options::default() };
    let node = Node::open(folder.path(), options, Rules::default()).expect("the folder opens");
    fill(&node);
    clock.store.set(Arc::downgrade(node.service().store())).expect("it was empty");
    // The 3 MiB would take a month.
    let stopped = node.service().scrub(1).expect_err("it ends early");
    assert!(stopped.to_string().contains("stops"), "{stopped}");
    let sleeps = clock.sleeps.lock().expect("no panic").clone();
    assert_eq!(sleeps.len(), 3);
    assert!(sleeps.iter().all(|sleep| *sleep <= Duration::from_millis(100)), "{sleeps:?}");
}
