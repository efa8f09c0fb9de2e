//! Histories of concurrent clients: every ref is a register, and what each client saw must fit one
//! order of all operations in which each takes effect between its call and its answer
//! (linearizability, as Wing and Gong check it).

#![cfg(feature = "object-storage")]

#[allow(dead_code, reason = "each test file uses a part of it")]
use crate::common;
use crate::linear;
use crate::s3;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Client, Server};
use hyper::StatusCode;
use linear::Entry;
use s3::S3;
use throng_ddc::gc::RefPolicy;
use throng_ddc::{Document, IoHash, Style, Value};
use throng_ddc_server::{Listener, Origin, Rules};
use throng_ddc_store::{CollectOptions, Options};
use throng_stdx::Rng;

const REFS: u64 = 4;
const CLIENTS: u64 = 8;
const OPERATIONS: u64 = 60;

/// What a client did to a register, and what came of it. `None` is absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write(Option<u64>),
    Read(Option<u64>),
}

/// A register: whether what a client saw fits its value, and the value then.
fn apply(value: &Option<u64>, operation: &Operation) -> Option<Option<u64>> {
    match operation {
        Operation::Write(written) => Some(*written),
        Operation::Read(read) => (read == value).then_some(*value),
    }
}

fn is_linearizable(history: &[Entry<Operation>]) -> bool {
    linear::is_linearizable(history, None, apply)
}

#[test]
fn the_checker_tells_good_histories_from_bad_ones() {
    let entry = |called, answered, operation| Entry { called, answered, operation };
    let (write, read) = (|n| Operation::Write(Some(n)), |n| Operation::Read(Some(n)));
    let good = [entry(0, 9, write(1)), entry(1, 2, Operation::Read(None)), entry(3, 4, read(1))];
    assert!(is_linearizable(&good));
    assert!(!is_linearizable(&[good[0], entry(1, 2, read(1)), entry(3, 4, Operation::Read(None))]));
    assert!(!is_linearizable(&[entry(0, 1, write(1)), entry(2, 3, Operation::Read(None))]), "stale");
    assert!(!is_linearizable(&[entry(0, 1, write(1)), entry(2, 3, write(2)), entry(4, 5, read(1))]), "lost");
    assert!(is_linearizable(&[entry(0, 5, write(1)), entry(0, 5, write(2)), entry(6, 7, read(1))]));
}

fn path(reference: u64) -> String {
    format!("/api/v1/refs/game/history/{}", IoHash::of(&reference.to_le_bytes()))
}

/// Puts an object of its own with a blob of its own; whatever is needed is uploaded until nothing
/// is.
async fn put(client: &Client, path: &str, number: u64, with_blob: bool) {
    let blob = number.to_le_bytes().repeat(20);
    let mut fields = vec![("number", Value::Integer(number))];
    if with_blob {
        fields.push(("blob", Value::BinaryAttachment(IoHash::of(&blob))));
    }
    let object = Value::object(fields).encode(Style::Plain);
    loop {
        if with_blob {
            let upload = format!("/api/v1/blobs/game/{}", IoHash::of(&blob));
            let octets = "Content-Type: application/octet-stream";
            let reply = client.send("PUT", &upload, &[octets], blob.clone()).await;
            assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        }
        let hash = format!("X-Jupiter-IoHash: {}", IoHash::of(&object));
        let headers = ["Content-Type: application/x-ue-cb", hash.as_str()];
        let reply = client.send("PUT", path, &headers, object.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        // A blob that nobody referred to yet may have been collected between the two.
        if reply.text() == "{\"needs\":[]}" {
            return;
        }
    }
}

/// Clients that do as they like with a few refs; the histories of those.
async fn play(servers: &[Server], seed: u64, with_blobs: bool) -> Vec<Vec<Entry<Operation>>> {
    let clock = Arc::new(AtomicU64::new(0));
    let mut players = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let client = servers[number as usize % servers.len()].client().await;
        let clock = Arc::clone(&clock);
        let mut rng = Rng::new(seed * 1000 + number);
        players.spawn(async move {
            let mut history = Vec::new();
            for turn in 0..OPERATIONS {
                let reference = rng.below(REFS);
                let path = path(reference);
                let called = clock.fetch_add(1, Ordering::SeqCst);
                let operation = match rng.below(10) {
                    0..=3 => {
                        let written = number * OPERATIONS + turn + 1;
                        put(&client, &path, written, with_blobs).await;
                        Operation::Write(Some(written))
                    }
                    4 => {
                        let reply = client.send("DELETE", &path, &[], "").await;
                        assert_eq!(reply.status, StatusCode::OK);
                        Operation::Write(None)
                    }
                    _ => {
                        let reply = client.get(&path, "application/x-ue-cb").await;
                        Operation::Read(match reply.status {
                            StatusCode::OK => {
                                let object = Document::parse(&reply.body).expect("an object");
                                let number = object.get("number").and_then(|field| field.integer());
                                number.and_then(|number| u64::try_from(number).ok())
                            }
                            StatusCode::NOT_FOUND => None,
                            // Somebody's write waits for its blob, which was collected: no value of
                            // a register.
                            StatusCode::BAD_REQUEST => continue,
                            other => panic!("{other}: {}", reply.text()),
                        })
                    }
                };
                let answered = clock.fetch_add(1, Ordering::SeqCst);
                history.push((reference, Entry { called, answered, operation }));
            }
            history
        });
    }
    let mut histories = vec![Vec::new(); REFS as usize];
    while let Some(history) = players.join_next().await {
        for (reference, entry) in history.expect("no panic") {
            histories[reference as usize].push(entry);
        }
    }
    histories
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn refs_of_one_node_are_registers_while_it_collects() {
    for seed in 0..6 {
        let servers = [Server::start(Rules::default(), Listener::Internal).await];
        let store = Arc::clone(servers[0].service().store());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let collector = std::thread::spawn(move || {
            let mut collected = 0;
            while !stopped.load(Ordering::Relaxed) {
                // What nothing reaches goes at once, however young.
                let done = store.collect(&CollectOptions {
                    now: throng_ddc::Timestamp::from_unix_ms(u64::MAX / 2),
                    policy: &|_| RefPolicy::Keep,
                    last_access: &|_, _, _| None,
                    blob_age_min: Duration::ZERO,
                });
                collected += done.expect("the disk works").blobs;
            }
            collected
        });
        let histories = play(&servers, seed, true).await;
        stop.store(true, Ordering::Relaxed);
        assert!(collector.join().expect("no panic") > 0, "nothing was collected");
        for history in histories {
            assert!(is_linearizable(&history), "seed {seed}: {history:?}");
        }
        // No ref without its blobs.
        let verified = servers[0].service().store().verify().expect("the disk works");
        assert_eq!((verified.damaged, verified.incomplete), (0, 0), "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn refs_of_nodes_on_one_bucket_are_registers() {
    for seed in 0..2 {
        let s3 = S3::start().await;
        let mut servers = Vec::new();
        for _ in 0..3 {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let origin = Origin::Tier(s3.tier());
            let listener = Listener::Internal;
            servers
                .push(Server::start_in(folder, Options::default(), Rules::default(), listener, origin).await);
        }
        for history in play(&servers, seed, false).await {
            assert!(is_linearizable(&history), "seed {seed}: {history:?}");
        }
    }
}
