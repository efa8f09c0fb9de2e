//! The power fails at every write of a run: what comes back is a prefix of what happened, with everything promised.

#[path = "../../store/tests/disk/mod.rs"]
#[allow(dead_code, reason = "the store's own tests use the rest")]
mod disk;

use std::sync::{Arc, Mutex};

use disk::{Disk, State};
use throng_matcher::{Config, Scope};
use throng_matching::{Durability, Options, Tokens, start};
use throng_stdx::Rng;
use throng_store::Fs;
use throng_wire::matcher::{Method, Reader, Status, Writer};

const REQUESTS: u32 = 60;

fn options(disk: Disk, durability: Durability) -> Options {
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
        shards: 1,
        policies: throng_matching::Policies::default(),
    }
}

/// Members of the one room, which holds everybody who joined in order.
fn joined(service: &throng_matching::Service) -> Vec<String> {
    let list = Writer::new().str(1, "50v50").into_bytes();
    let (_, answer) = service.handle().call_and_wait("s", Scope::Admin, Method::GET_ROOM_LIST, list).unwrap();
    let Some(room) = Reader::new(&answer).unwrap().last(1) else { return Vec::new() };
    let get = Writer::new().bytes(1, room.value).into_bytes();
    let (_, answer) = service.handle().call_and_wait("s", Scope::Admin, Method::GET_ROOM_INFO, get).unwrap();
    let info = Reader::new(&answer).unwrap().nested(1).unwrap();
    info.all(4).map(|role| Reader::new(role).unwrap().str(1).unwrap().to_owned()).collect()
}

// States of the disk after each operation, and how many joins had been answered by then.
type States = Vec<(State, u32)>;

fn join(service: &throng_matching::Service, role: &str) {
    let body = Writer::new().nested(1, Writer::new().str(1, role)).nested(2, Writer::new().str(1, "50v50"));
    let body = body.into_bytes();
    let reply = service.handle().call_and_wait("s", Scope::Admin, Method::ROLE_JOIN_RANDOM_ROOM, body);
    assert_eq!(reply.unwrap().0, Status::Ok);
}

fn states_of_a_run(requests: u32) -> States {
    let states: Arc<Mutex<States>> = Arc::default();
    let answered = Arc::new(Mutex::new(0));
    let disk = Disk::new(State::default());
    {
        let (states, answered) = (Arc::clone(&states), Arc::clone(&answered));
        disk.set_hook(Some(Box::new(move |state: &State| {
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
        let after = Disk::new(state.after_power_failure(&mut rng));
        let service = start(options(after, Durability::Sync)).unwrap();
        let found = joined(&service);
        let wanted: Vec<String> = (0..found.len()).map(|index| format!("r{index}")).collect();
        assert_eq!(found, wanted, "a prefix");
        assert!(found.len() >= promised as usize, "{} of {promised} promised joins came back", found.len());
    }
}

#[test]
fn what_a_killed_process_had_not_flushed_is_durable_before_anything_follows() {
    let mut rng = Rng::new(12);
    for (state, _) in states_of_a_run(20) {
        // The system still has what the process had written.
        let killed = Disk::new(state);
        let service = start(options(killed.clone(), Durability::Sync)).unwrap();
        join(&service, "last");
        let (found, state) = (joined(&service), killed.state());
        service.stop();
        let service =
            start(options(Disk::new(state.after_power_failure(&mut rng)), Durability::Sync)).unwrap();
        assert_eq!(joined(&service), found);
    }
}

#[test]
fn what_follows_a_lost_end_goes_with_it() {
    let disk = Disk::new(State::default());
    let service = start(options(disk.clone(), Durability::Async)).unwrap();
    join(&service, "a");
    let killed = Disk::new(disk.state());
    service.stop();
    let first = killed.list("log").unwrap();
    let service = start(options(killed.clone(), Durability::Async)).unwrap();
    // The name of the next segment is on disk, the end of the one before is not.
    let failed = Disk::new(killed.state());
    service.stop();
    let end = failed.open(&format!("log/{}", first[0]), false).unwrap();
    end.set_len(end.len().unwrap() - 10).unwrap();
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
