//! Two matcher processes on a real bus: one serves the area, the other waits, and no answer
//! contradicts an acknowledged one, whatever happens to them.
#![cfg(feature = "nats")]

use crate::bus;
use crate::process;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bus::{Bus, Caller, bus, room_of, run};
use process::{Process, fetch_any, up};
use throng_stdx::Rng;
use throng_wire::matcher::{Method, Reader, Status, Writer};

const ROOMS: usize = 12;
const ROLES: u64 = 30;

/// A matcher of area 1.
fn start(folder: &Path, bus: &Bus, data: &str) -> Process {
    start_shown(folder, bus, data).0
}

/// A matcher of area 1, and the address of its admin listener.
fn start_shown(folder: &Path, bus: &Bus, data: &str) -> (Process, String) {
    let mut command = up(folder, "matcher", data);
    command
        .args(["--matcher.addr", "127.0.0.1:0", "--matcher.area", "1", "--matcher.nats_url", &bus.url])
        .args(["--matcher.presence_grace_ms", "600000"]);
    let (process, said) = Process::ready(&mut command);
    let admin = said.iter().find_map(|line| line.trim_start().strip_prefix("admin")).expect("its address");
    (process, admin.trim().trim_start_matches("http://").to_owned())
}

/// Waits until a matcher says that it waits for another one.
fn until_waiting(admin: &str) {
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        let (_, parts) = fetch_any(admin, "/health/ready").expect("its admin listener answers");
        if parts.contains("this matcher waits") || parts.contains("is lost and has the state") {
            break;
        }
        assert!(Instant::now() < until, "{parts}");
        std::thread::yield_now();
    }
}

pub(crate) fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.expect("kill is there").success());
}

/// Acknowledged state: rooms and the room of each role.
#[derive(Default)]
pub(crate) struct History {
    /// Begins the names of its roles, which no other history has.
    pub(crate) name: String,
    rooms: Vec<String>,
    home: BTreeMap<String, String>,
}

impl History {
    pub(crate) fn named(name: &str) -> History {
        History { name: name.to_owned(), ..History::default() }
    }

    /// Requests about all of it, none of whose answers contradicts what was acknowledged.
    async fn play(&mut self, caller: &Caller, rng: &mut Rng, requests: usize) {
        for _ in 0..requests {
            self.step(caller, rng).await;
        }
    }

    /// One of them. Returns the matcher that answered.
    pub(crate) async fn step(&mut self, caller: &Caller, rng: &mut Rng) -> String {
        let role = format!("{}r{}", self.name, rng.below(ROLES));
        if self.rooms.len() < ROOMS {
            let created = caller.create(&format!("{}maker{}", self.name, self.rooms.len()), "90v90").await;
            self.rooms.push(room_of(&created).0);
            return created.matcher;
        }
        let room = self.rooms[rng.below(ROOMS as u64) as usize].clone();
        match (rng.below(5), self.home.get(&role).cloned()) {
            (0 | 1, None) => {
                let joined = caller.join_room(&role, &room).await;
                assert_eq!(room_of(&joined).0, room);
                self.home.insert(role, room);
                joined.matcher
            }
            (0 | 1, Some(own)) if own != room => {
                let refused = caller.join_room(&role, &room).await;
                assert_eq!(refused.status, Status::AlreadyInRoom, "{role} is in {own}");
                refused.matcher
            }
            (2, Some(own)) => {
                let left =
                    caller.ask(Method::ROLE_LEAVE_ROOM, Writer::new().str(1, &role).str(2, &own)).await;
                assert_eq!(left.status, Status::Ok, "{}", left.body.escape_ascii());
                self.home.remove(&role);
                left.matcher
            }
            (3, home) => {
                let found = caller.ask(Method::GET_ROLE, Writer::new().str(1, &role)).await;
                match home {
                    None => assert_eq!(found.status, Status::NotFound),
                    Some(own) => {
                        let answer = Reader::new(&found.body).expect("a body");
                        let rooms: Vec<&[u8]> = answer.all(3).collect();
                        assert_eq!((found.status, rooms.len()), (Status::Ok, 1));
                        assert_eq!(Reader::new(rooms[0]).expect("a room").str(1), Ok(&*own));
                    }
                }
                found.matcher
            }
            _ => {
                let inside = self.home.values().filter(|home| **home == room).count() as u64;
                let found = caller.room(&room).await;
                assert_eq!(room_of(&found), (room, inside + 1), "with its maker");
                found.matcher
            }
        }
    }
}

#[test]
fn one_serves_and_the_other_waits_in_whatever_order_they_come() {
    let Some(bus) = bus() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (round, names) in [["a", "b"], ["b", "a"]].into_iter().enumerate() {
        let start = |data: &str| start(folder.path(), &bus, &format!("{round}{data}"));
        let mut first = start(names[0]);
        run(async {
            let caller = Caller::connect(&bus, "").await;
            let served = caller.ask(Method::PING, Writer::new()).await;
            let second = start(names[1]);
            let (mut history, mut rng) = (History::default(), Rng::new(round as u64 + 1));
            history.play(&caller, &mut rng, 400).await;
            assert!(take_over(&bus).expect_err("it serves").contains("serves it; stop it first"));
            assert_eq!(caller.ask(Method::PING, Writer::new()).await.matcher, served.matcher);
            // The holder comes back on its machine with its folder: at once, and with what it had.
            first.kill();
            let mut first = start(names[0]);
            history.play(&caller, &mut rng, 400).await;
            // Lost for good: the other one serves once an operator gives its state up, and then
            // with an empty one.
            first.kill();
            take_over(&bus).expect("its holder is lost");
            let gone = caller.room(&history.rooms[0]).await;
            assert_eq!(gone.status, Status::NotFound);
            History::default().play(&caller, &mut rng, 200).await;
            drop(second);
            // The next round has an area without a holder.
            take_over(&bus).expect("its holder is lost");
        });
    }
}

/// `throng matcher takeover` of area 1.
pub(crate) fn take_over(bus: &Bus) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let output = command.args(["matcher", "takeover", "1", "--nats", &bus.url]).output().expect("it runs");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn a_matcher_that_was_replaced_keeps_its_state_apart_and_ends() {
    let Some(bus) = bus() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut first = start(folder.path(), &bus, "a");
    run(async {
        let caller = Caller::connect(&bus, "").await;
        room_of(&caller.create("ann", "90v90").await);
        signal(first.0.id(), "-STOP");
        let mut command = up(folder.path(), "matcher", "b");
        command
            .args(["--matcher.addr", "127.0.0.1:0", "--matcher.area", "1", "--matcher.nats_url", &bus.url])
            .args(["--matcher.takeover", "empty"]);
        let _second = Process::ready(&mut command).0;
        let room = room_of(&caller.create("ann", "90v90").await);
        signal(first.0.id(), "-CONT");
        assert!(!first.0.wait().expect("it ends").success());
        let kept = std::fs::read_dir(folder.path().join("a")).expect("its folder");
        let names = kept.map(|entry| entry.expect("a name").file_name().into_string().expect("text"));
        assert!(names.into_iter().any(|name| name.starts_with("replaced-")));
        assert_eq!(room_of(&caller.room(&room.0).await), room, "the other one serves on");
    });
}

#[test]
fn the_holder_serves_after_both_have_restarted_on_a_bus_that_lost_its_storage() {
    let Some(mut bus) = bus() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    run(async {
        let caller = Caller::connect(&bus, "").await;
        let (mut history, mut rng) = (History::default(), Rng::new(5));
        let mut holder = start(folder.path(), &bus, "a");
        history.play(&caller, &mut rng, 200).await;
        let (mut standby, mut admin) = start_shown(folder.path(), &bus, "b");
        for standby_first in [true, false] {
            // It knows the holder.
            until_waiting(&admin);
            holder.kill();
            standby.kill();
            bus.kill();
            bus.lose_storage();
            bus.start_again();
            if standby_first {
                (standby, admin) = start_shown(folder.path(), &bus, "b");
                until_waiting(&admin);
                holder = start(folder.path(), &bus, "a");
            } else {
                holder = start(folder.path(), &bus, "a");
                (standby, admin) = start_shown(folder.path(), &bus, "b");
            }
            history.play(&caller, &mut rng, 200).await;
        }
    });
}
