//! The power fails at every write of a run: what comes back is a prefix of what happened, with
//! everything promised.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_matcher::{Config, Scope, json};
use throng_matcher_server::{Batch, Durability, Options, Taken, Tokens, replay, start};
use throng_platform::{DiskState, SimulatedDisk};
use throng_platform::{Folder, Fs};
use throng_stdx::Rng;
use throng_wire::matcher::{
    FRAME_BODY_BYTES_MAX, FrameSplit, Header, Kind, Method, PROTOCOL_VERSION, Reader, Status, Writer, split,
};

const REQUESTS: u32 = 60;

fn options(disk: SimulatedDisk, durability: Durability) -> Options {
    Options {
        addr: None,
        unix: None,
        tls: None,
        config: Config::default(),
        durability,
        fs: Some(Arc::new(disk) as Arc<dyn Fs>),
        tokens: Tokens::default(),
        area: String::new(),
        secret: [3; 32],
        salvage: false,
        policies: throng_matcher_server::Policies::default(),
        gate: throng_matcher_server::Gate::default(),
    }
}

/// Members of the one room, which holds everybody who joined in order.
fn joined(service: &throng_matcher_server::Service) -> Vec<String> {
    let list = Writer::new().str(1, "50v50").into_bytes();
    let (_, answer) = service.handle().call_and_wait("s", Scope::Admin, Method::GET_ROOM_LIST, list).unwrap();
    let Some(room) = Reader::new(&answer).unwrap().last(1) else { return Vec::new() };
    let get = Writer::new().bytes(1, room.value).into_bytes();
    let (_, answer) = service.handle().call_and_wait("s", Scope::Admin, Method::GET_ROOM_INFO, get).unwrap();
    let info = Reader::new(&answer).unwrap().nested(1).unwrap();
    info.all(4).map(|role| Reader::new(role).unwrap().str(1).unwrap().to_owned()).collect()
}

// States of the disk after each operation, and how many joins had been answered by then.
type States = Vec<(DiskState, u32)>;

fn call(service: &throng_matcher_server::Service, role: &str) -> Result<Status, ()> {
    let body = Writer::new().nested(1, Writer::new().str(1, role)).nested(2, Writer::new().str(1, "50v50"));
    let body = body.into_bytes();
    let reply = service.handle().call_and_wait("s", Scope::Admin, Method::ROLE_JOIN_RANDOM_ROOM, body);
    reply.map(|(status, _)| status)
}

fn join(service: &throng_matcher_server::Service, role: &str) {
    assert_eq!(call(service, role), Ok(Status::Ok));
}

fn states_of_a_run(requests: u32) -> States {
    let states: Arc<Mutex<States>> = Arc::default();
    let answered = Arc::new(Mutex::new(0));
    let disk = SimulatedDisk::new(DiskState::default());
    {
        let (states, answered) = (Arc::clone(&states), Arc::clone(&answered));
        disk.set_hook(Some(Box::new(move |state: &DiskState| {
            states.lock().unwrap().push((state.clone(), *answered.lock().unwrap()));
            Ok(())
        })));
    }
    let service = start(options(disk.clone(), Durability::Sync)).unwrap();
    for index in 0..requests {
        join(&service, &format!("r{index}"));
        *answered.lock().unwrap() += 1;
    }
    service.stop();
    disk.set_hook(None);
    std::mem::take(&mut *states.lock().unwrap())
}

#[test]
fn a_power_failure_at_any_write_loses_nothing_that_was_promised() {
    let mut rng = Rng::new(11);
    let states = states_of_a_run(REQUESTS);
    assert!(states.len() > REQUESTS as usize, "{} states", states.len());
    for (state, promised) in states {
        let after = SimulatedDisk::new(state.after_power_failure(&mut rng));
        let service = start(options(after, Durability::Sync)).unwrap();
        let found = joined(&service);
        let wanted: Vec<String> = (0..found.len()).map(|index| format!("r{index}")).collect();
        assert_eq!(found, wanted, "a prefix");
        assert!(found.len() >= promised as usize, "{} of {promised} promised joins came back", found.len());
    }
}

#[test]
fn an_event_is_on_disk_before_anybody_sees_it() {
    let mut rng = Rng::new(13);
    let disk = SimulatedDisk::new(DiskState::default());
    let service = start(options(disk.clone(), Durability::Sync)).unwrap();
    // What an in-process watcher has seen, and the disk at that moment; HTTP, WebSocket and NATS
    // are fed in the same way.
    let (seen, at_sight) = (Arc::new(Mutex::new(Vec::new())), disk.clone());
    let each = Arc::clone(&seen);
    let sink = move |batch: Batch| {
        each.lock().unwrap().push((at_sight.state(), json::batch(1, batch.seq, &batch.body)));
        Taken::More
    };
    service.handle().subscribe("s", None, Box::new(sink));
    for index in 0..REQUESTS {
        join(&service, &format!("r{index}"));
    }
    service.stop();
    let mut joins = 0;
    for (state, text) in std::mem::take(&mut *seen.lock().unwrap()) {
        let batch: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = batch["Msgs"].as_array().unwrap().iter();
        let roles =
            events.flat_map(|event| event["NotifyMsg"]["rolesJoinRoomMsg"]["JoinedRoleIDs"].as_array());
        let roles: Vec<&str> = roles.flatten().filter_map(|role| role.as_str()).collect();
        joins += roles.len();
        let after = SimulatedDisk::new(state.after_power_failure(&mut rng));
        let found = joined(&start(options(after, Durability::Sync)).unwrap());
        assert!(
            roles.iter().all(|role| found.iter().any(|found| found == role)),
            "{roles:?}, not in {found:?}"
        );
    }
    assert!(joins + 1 >= REQUESTS as usize, "{joins} joins were seen");
}

#[test]
fn a_matcher_that_cannot_write_its_journal_takes_nothing_more() {
    for durability in [Durability::Sync, Durability::Async] {
        let disk = SimulatedDisk::new(DiskState::default());
        let service = start(options(disk.clone(), durability)).unwrap();
        join(&service, "before");
        let mut watch = service.handle().watch("s", None);
        disk.set_hook(Some(Box::new(|_: &DiskState| Err(io::ErrorKind::StorageFull.into()))));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // With async the first calls may be answered: the flush fails behind them.
        let (status, why) = loop {
            let body = Writer::new()
                .nested(1, Writer::new().str(1, "lost"))
                .nested(2, Writer::new().str(1, "50v50"));
            let asked =
                service.handle().ask("s", Scope::Trusted, Method::ROLE_JOIN_RANDOM_ROOM, body.into_bytes());
            let (status, answer) = runtime.block_on(asked);
            if status != Status::Ok {
                break (status, String::from_utf8_lossy(&answer).into_owned());
            }
        };
        assert_eq!(status, Status::Unavailable);
        assert!(why.contains("its journal cannot be written"), "{why}");
        runtime.block_on(service.handle().ended());
        assert_eq!(call(&service, "after"), Ok(Status::Unavailable), "a matcher that has ended");
        runtime.block_on(async { while watch.next().await.is_some() {} });
        service.stop();
        disk.set_hook(None);
        let service = start(options(disk, durability)).unwrap();
        assert_eq!(joined(&service).first().map(String::as_str), Some("before"));
    }
}

#[test]
fn what_a_killed_process_had_not_flushed_is_durable_before_anything_follows() {
    let mut rng = Rng::new(12);
    for (state, _) in states_of_a_run(20) {
        // The system still has what the process had written.
        let killed = SimulatedDisk::new(state);
        let service = start(options(killed.clone(), Durability::Sync)).unwrap();
        join(&service, "last");
        let (found, state) = (joined(&service), killed.state());
        service.stop();
        let service =
            start(options(SimulatedDisk::new(state.after_power_failure(&mut rng)), Durability::Sync))
                .unwrap();
        assert_eq!(joined(&service), found);
    }
}

#[test]
fn what_follows_a_lost_end_goes_with_it() {
    let disk = SimulatedDisk::new(DiskState::default());
    let service = start(options(disk.clone(), Durability::Async)).unwrap();
    join(&service, "a");
    let killed = SimulatedDisk::new(disk.state());
    service.stop();
    let first = killed.list("log").unwrap();
    let service = start(options(killed.clone(), Durability::Async)).unwrap();
    // The name of the next segment is on disk, the end of the one before is not.
    let failed = SimulatedDisk::new(killed.state());
    service.stop();
    let end = failed.open(&format!("log/{}", first[0]), false).unwrap();
    // More than the digest at the end of the commit: into the record of the join.
    end.set_len(end.len().unwrap() - 40).unwrap();
    let second = failed.list("log").unwrap().pop().unwrap();
    let service = start(options(failed.clone(), Durability::Async)).unwrap();
    assert_eq!(joined(&service), [""; 0]);
    let names = failed.list("log").unwrap();
    assert!(
        names.len() == 2 && !names.contains(&second),
        "{names:?} has a later number than what is written next"
    );
    join(&service, "b");
    assert_eq!(joined(&service), ["b"]);
}

/// The disk of a process that is killed after some joins, with a byte of a file turned over.
fn damaged(joins: u32, stopped: bool, folder: &str, at: impl Fn(u64) -> u64) -> (SimulatedDisk, String) {
    let disk = SimulatedDisk::new(DiskState::default());
    let service = start(options(disk.clone(), Durability::Sync)).unwrap();
    (0..joins).for_each(|index| join(&service, &format!("r{index}")));
    let killed = SimulatedDisk::new(disk.state());
    service.stop();
    if stopped {
        // The next life lets go of the log before the snapshot.
        let service = start(options(disk.clone(), Durability::Sync)).unwrap();
        join(&service, "later");
        service.stop();
    }
    let disk = if stopped { disk } else { killed };
    let name = format!("{folder}/{}", disk.list(folder).unwrap()[0]);
    let file = disk.open(&name, false).unwrap();
    let (at, mut byte) = (at(file.len().unwrap()), [0]);
    file.read_at(&mut byte, at).unwrap();
    file.write_at(&[IoSlice::new(&[!byte[0]])], at).unwrap();
    file.sync().unwrap();
    (disk, name)
}

#[test]
fn damage_in_the_middle_stops_a_start_and_is_skipped_once() {
    let (disk, segment) = damaged(20, false, "log", |len| len / 2);
    let salvaging = || Options { salvage: true, ..options(disk.clone(), Durability::Sync) };
    let error = start(options(disk.clone(), Durability::Sync)).unwrap_err().to_string();
    assert!(error.contains(&segment) && error.contains("`matcher.salvage`"), "{error}");
    let service = start(salvaging()).unwrap();
    let found = joined(&service);
    assert!(found.len() >= 18 && found.first().is_some_and(|role| role == "r0"), "{found:?}");
    join(&service, "after");
    let killed = disk.state();
    service.stop();
    // No later start has to skip anything: the salvaged state was written down.
    let service = start(options(SimulatedDisk::new(killed), Durability::Sync)).unwrap();
    assert_eq!(joined(&service), [&found[..], &["after".to_owned()]].concat());
}

#[test]
fn a_damaged_snapshot_is_called_that() {
    let (disk, snapshot) = damaged(5, true, "snap", |len| len - 1);
    for salvage in [false, true] {
        let options = Options { salvage, ..options(disk.clone(), Durability::Sync) };
        let error = start(options).unwrap_err().to_string();
        assert!(error.contains(&format!("damaged: {snapshot}")), "{error}");
        assert!(!error.contains("salvage"), "there is nothing to go on from: {error}");
    }
    // Nor does it begin with nothing where the log is gone as well.
    disk.list("log").unwrap().iter().for_each(|name| disk.remove(&format!("log/{name}")).unwrap());
    let error = start(options(disk, Durability::Sync)).unwrap_err().to_string();
    assert!(error.contains(&format!("damaged: {snapshot}")), "{error}");
}

#[test]
fn a_replay_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(Folder::new(folder.path()).unwrap());
    let service = start(Options {
        fs: Some(disk),
        ..options(SimulatedDisk::new(DiskState::default()), Durability::Sync)
    })
    .unwrap();
    (0..10).for_each(|index| join(&service, &format!("r{index}")));
    // The folder of a process that was killed in the middle of a write.
    let copy = tempfile::tempdir().unwrap();
    for part in ["log", "snap"] {
        std::fs::create_dir(copy.path().join(part)).unwrap();
        for entry in std::fs::read_dir(folder.path().join(part)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(part).join(entry.file_name())).unwrap();
        }
    }
    let files = || {
        let mut files = Vec::new();
        for part in ["log", "snap"] {
            for entry in std::fs::read_dir(copy.path().join(part)).unwrap() {
                let path = entry.unwrap().path();
                files.push((path.clone(), std::fs::read(path).unwrap()));
            }
        }
        files.sort();
        files
    };
    let (path, mut bytes) = files().swap_remove(0);
    bytes.truncate(bytes.len() - 5);
    std::fs::write(path, bytes).unwrap();
    let before = files();
    let verified = replay(copy.path(), true, false).unwrap();
    assert!(verified.records > 10, "{verified:?}");
    assert_eq!(files(), before);
    service.stop();
}

/// Frames that have arrived whole.
fn frames(bytes: &[u8]) -> Vec<(Kind, u64)> {
    let (mut rest, mut all) = (bytes, Vec::new());
    while let Ok(FrameSplit::Whole { header, used, .. }) = split(rest, FRAME_BODY_BYTES_MAX) {
        all.push((header.kind, header.id));
        rest = &rest[used..];
    }
    all
}

#[test]
fn a_socket_is_answered_once_the_disk_has_the_request() {
    let disk = SimulatedDisk::new(DiskState::default());
    let addr = Some("127.0.0.1:0".parse().unwrap());
    let service = start(Options { addr, ..options(disk.clone(), Durability::Sync) }).unwrap();
    // The journal's thread rests by then: it would hold the disk, and with it the matcher's thread.
    join(&service, "first");
    let (release, held) = std::sync::mpsc::channel::<()>();
    disk.set_hook(Some(Box::new(move |_| {
        if std::thread::current().name() == Some("journal") {
            // Until the sender is gone.
            let _ = held.recv();
        }
        Ok(())
    })));
    let mut socket = TcpStream::connect(service.addr().unwrap()).unwrap();
    let mut out = Vec::new();
    let hello = Writer::new().u64(1, PROTOCOL_VERSION).str(2, "s").into_bytes();
    Header { kind: Kind::Hello, ..Header::default() }.write(&mut out, &hello);
    let body = Writer::new().nested(1, Writer::new().str(1, "a")).nested(2, Writer::new().str(1, "50v50"));
    let request =
        Header { kind: Kind::Request, code: Method::ROLE_JOIN_RANDOM_ROOM, id: 7, ..Header::default() };
    request.write(&mut out, &body.into_bytes());
    socket.write_all(&out).unwrap();
    let (mut input, mut part) = (Vec::new(), [0; 4_096]);
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    while let Ok(count @ 1..) = socket.read(&mut part) {
        input.extend_from_slice(&part[..count]);
    }
    assert!(!frames(&input).contains(&(Kind::Response, 7)), "the disk has nothing yet");
    drop(release);
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    while !frames(&input).contains(&(Kind::Response, 7)) {
        let count = socket.read(&mut part).unwrap();
        input.extend_from_slice(&part[..count]);
    }
}
