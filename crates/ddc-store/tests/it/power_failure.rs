//! The power fails at every write of a long session. Whatever was acknowledged must be there
//! afterwards, and nothing wrong.

#[allow(dead_code, reason = "each test file uses a part of it")]
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use throng_ddc::{
    Attachment, AttachmentKind, Bucket, Document, IoHash, Key, Namespace, Style, Timestamp, Value,
};
use throng_ddc_store::{ChangeResult, Options, PutRef, RefValue, Store};
use throng_platform::{DiskState, SimulatedDisk};
use throng_stdx::Rng;

/// Power failures that a run must have been through.
const FAILURES_MIN: u64 = 2_000;

/// What may be found under the keys of the store.
#[derive(Default)]
struct Model {
    blobs: BTreeMap<IoHash, Bytes>,
    acknowledged_blobs: BTreeMap<IoHash, ()>,
    /// Every state that a ref was asked to have, and the first of them that is still possible.
    refs: BTreeMap<Key, (Vec<Option<RefValue>>, usize)>,
}

#[test]
fn what_was_acknowledged_survives_a_power_failure_at_every_write() {
    let model = Arc::new(Mutex::new(Model::default()));
    let failures = Arc::new(Mutex::new(0_u64));
    let disk = SimulatedDisk::new(DiskState::default());
    {
        let (model, failures) = (Arc::clone(&model), Arc::clone(&failures));
        disk.set_hook(Some(Box::new(move |state| {
            let mut count = failures.lock().expect("no test panicked");
            *count += 1;
            let mut rng = Rng::new(*count);
            recover(&state.after_power_failure(&mut rng), &model.lock().expect("no test panicked"), &mut rng);
            Ok(())
        })));
    }
    let mut rng = Rng::new(7);
    let mut store = open(&disk);
    let mut round = 0;
    while *failures.lock().expect("no test panicked") < FAILURES_MIN {
        round += 1;
        for _ in 0..=rng.below(6) {
            change(&store, &model, &mut rng);
        }
        store.commit();
        if round % 23 == 0 {
            store.checkpoint().expect("the disk works");
        }
        if round % 97 == 0 {
            // The process ends and starts again; the machine goes on.
            drop(store);
            store = open(&disk);
        }
    }
    disk.set_hook(None);
    let model = model.lock().expect("no test panicked");
    assert!(model.acknowledged_blobs.len() > 200 && model.refs.len() > 10, "the session was too short");
    check(&store, &model);
}

fn namespace() -> Namespace {
    "test".parse().expect("a name")
}

fn bucket() -> Bucket {
    "default".parse().expect("a name")
}

fn open(disk: &SimulatedDisk) -> Arc<Store> {
    let options = Options {
        inline_bytes_max: 64,
        segment_bytes_max: 20_000,
        reserve_bytes: 8_000,
        zero_bytes: 3_000,
        index_cache_bytes: 1 << 16,
        disk_reserve_bytes: 0,
        ..Options::default()
    };
    Store::open(Arc::new(disk.clone()), options).expect("the store opens after any power failure")
}

/// Opens the store that the power failure left and checks it; now and then writes something and
/// fails again.
fn recover(state: &DiskState, model: &Model, rng: &mut Rng) {
    let disk = SimulatedDisk::new(state.clone());
    let store = open(&disk);
    check(&store, model);
    if rng.chance(0.1) {
        let payload = Bytes::from(rng.next_u64().to_le_bytes().to_vec());
        let hash = IoHash::of(&payload);
        store.put_blob(
            &namespace(),
            hash,
            payload.clone(),
            now(),
            Box::new(|done| drop(done.expect("it is stored"))),
        );
        store.commit();
        drop(store);
        let again = open(&SimulatedDisk::new(disk.state().after_power_failure(rng)));
        check(&again, model);
        assert_eq!(again.read_blob(&namespace(), &hash).expect("the disk works"), Some(payload));
    }
}

fn now() -> Timestamp {
    Timestamp::from_unix_ms(1_700_000_000_000)
}

/// Queues one change; the model learns when it is acknowledged.
fn change(store: &Store, model: &Arc<Mutex<Model>>, rng: &mut Rng) {
    let shared = Arc::clone(model);
    let mut known = model.lock().expect("no test panicked");
    match rng.below(10) {
        0..=4 => {
            let size = [0, 1, 100, 600, 3000][rng.below(5) as usize];
            let mut bytes = vec![0; size];
            rng.fill(&mut bytes);
            let payload = Bytes::from(bytes);
            let hash = IoHash::of(&payload);
            known.blobs.insert(hash, payload.clone());
            let acknowledge: throng_ddc_store::Done = Box::new(move |done| {
                done.expect("the disk works");
                shared.lock().expect("no test panicked").acknowledged_blobs.insert(hash, ());
            });
            drop(known);
            if rng.chance(0.2) {
                let mut writer = store.begin_large().expect("the disk works");
                for piece in payload.chunks(700) {
                    writer.write(piece).expect("the disk works");
                }
                if rng.chance(0.9) {
                    store.put_large(&namespace(), writer, now(), acknowledge).expect("the disk works");
                }
            } else {
                store.put_blob(&namespace(), hash, payload, now(), acknowledge);
            }
        }
        5..=8 => {
            // A ref to up to three blobs that are acknowledged: what the service does once it has
            // resolved them.
            let stored: Vec<IoHash> = known.acknowledged_blobs.keys().copied().collect();
            if stored.is_empty() {
                return;
            }
            let pick = |rng: &mut Rng| stored[rng.below(stored.len() as u64) as usize];
            let attached: Vec<IoHash> = (0..rng.below(4)).map(|_| pick(rng)).collect();
            let fields = attached.iter().map(|hash| Value::BinaryAttachment(*hash)).collect();
            let object =
                Value::object([("payload", Value::Array(fields)), ("n", Value::Integer(rng.next_u64()))]);
            let bytes = Bytes::from(object.encode(Style::Plain));
            let value = RefValue {
                object: IoHash::of(&bytes),
                finalised: true,
                put: now(),
                inline: Some(bytes),
                adopted: false,
            };
            let key = ref_key(rng);
            known.refs.entry(key).or_insert_with(|| (vec![None], 0)).0.push(Some(value.clone()));
            drop(known);
            let put = PutRef {
                namespace: namespace(),
                bucket: bucket(),
                key,
                value: value.clone(),
                overwrite: true,
                relies_on: attached,
            };
            store.put_ref(
                put,
                Box::new(move |done| {
                    assert_eq!(done.expect("the disk works"), ChangeResult::Done);
                    acknowledge_ref(&shared, key, Some(&value));
                }),
            );
        }
        _ => {
            let key = ref_key(rng);
            known.refs.entry(key).or_insert_with(|| (vec![None], 0)).0.push(None);
            drop(known);
            store.delete_ref(
                &namespace(),
                &bucket(),
                &key,
                Box::new(move |done| {
                    done.expect("the disk works");
                    acknowledge_ref(&shared, key, None);
                }),
            );
        }
    }
}

/// The states before this one are no longer possible.
fn acknowledge_ref(model: &Mutex<Model>, key: Key, value: Option<&RefValue>) {
    let mut model = model.lock().expect("no test panicked");
    let (states, first) = model.refs.get_mut(&key).expect("it was asked for");
    let at = states.iter().skip(*first).position(|state| state.as_ref() == value);
    *first += at.expect("it was asked for");
}

fn ref_key(rng: &mut Rng) -> Key {
    format!("{:040}", rng.below(24)).parse().expect("a key")
}

fn check(store: &Store, model: &Model) {
    let namespace = namespace();
    for hash in model.acknowledged_blobs.keys() {
        let found = store.read_blob(&namespace, hash).expect("the disk works");
        assert_eq!(found.as_ref(), Some(&model.blobs[hash]), "blob {hash} was acknowledged");
    }
    for (key, (states, first)) in &model.refs {
        let found = store.reference(&namespace, &bucket(), key).expect("the disk works");
        assert!(states[*first..].contains(&found), "ref {key} is {found:?}");
        let Some(value) = found else { continue };
        let object = store.object(&namespace, &value).expect("the disk works").expect("it is inline");
        assert_eq!(IoHash::of(&object), value.object);
        let document = Document::parse(&object).expect("it was stored whole");
        for Attachment { kind, hash } in document.attachments() {
            assert_eq!(kind, AttachmentKind::Binary);
            let blob = store.read_blob(&namespace, &hash).expect("the disk works");
            let blob = blob.unwrap_or_else(|| panic!("ref {key} is there without its blob {hash}"));
            assert_eq!(IoHash::of(&blob), hash);
        }
    }
}
