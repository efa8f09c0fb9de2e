//! `throng up --only matcher` from outside: clients that go on while the process is killed again
//! and again see one order of all that they did.

use crate::linear;
use crate::process;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use linear::{Entry, is_linearizable};
use process::{Process, fetch, up};
use throng_client::{CallError, Matcher, MatcherConfig, Role};
use throng_stdx::Rng;
use throng_wire::matcher::Status;
use tokio::sync::Semaphore;

const CLIENTS: u64 = 6;
const ROLES: usize = 8;
const ROOMS: usize = 3;
const MODES: [&str; ROOMS] = ["duel", "rumble", "brawl"];
const CAPACITY: usize = 3;
/// Times that the process is killed,
const KILLS: usize = 6;
/// and operations for each of its lives; it ends when half of them are answered.
const OPERATIONS: usize = 130;

/// Far beyond what any step needs; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(300);
/// Address of the first life of a matcher. The next ones have the port that it got: clients come
/// back by themselves.
const ANY_PORT: &str = "127.0.0.1:0";

/// A process, and where its matcher listens.
fn start(folder: &Path, address: &str) -> (Process, String) {
    let mut command = up(folder, "matcher", "d");
    command
        .args(["--matcher.rules", "modes.toml", "--matcher.presence_grace_ms", "600000"])
        .args(["--matcher.addr", address]);
    let (process, said) = Process::ready(&mut command);
    (process, matcher_address(&said))
}

fn matcher_address(said: &[String]) -> String {
    let found =
        said.iter().find_map(|line| line.trim_start().strip_prefix("matcher ")?.split("tcp://").nth(1));
    found.and_then(|rest| rest.split_whitespace().next()).expect("its address").to_owned()
}

/// Which room each role is in.
type Membership = [Option<usize>; ROLES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Join {
        role: usize,
        room: usize,
        seen: Seen,
    },
    Leave {
        role: usize,
        room: usize,
        seen: Seen,
    },
    /// Members of the room, as bits.
    Read {
        room: usize,
        members: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Done,
    Full,
    Elsewhere,
    NotThere,
}

/// Membership after an operation, if its client saw what it had to see.
fn apply(before: &Membership, operation: &Operation) -> Option<Membership> {
    let members = |room: usize| before.iter().filter(|place| **place == Some(room)).count();
    let mut after = *before;
    let fits = match *operation {
        Operation::Join { role, room, seen } => match before[role] {
            Some(place) if place == room => seen == Seen::Done,
            Some(_) => seen == Seen::Elsewhere,
            None if members(room) == CAPACITY => seen == Seen::Full,
            None => {
                after[role] = Some(room);
                seen == Seen::Done
            }
        },
        Operation::Leave { role, room, seen } if before[role] == Some(room) => {
            after[role] = None;
            seen == Seen::Done
        }
        Operation::Leave { seen, .. } => seen == Seen::NotThere,
        Operation::Read { room, members } => {
            let bits =
                (0..ROLES).filter(|role| before[*role] == Some(room)).map(|role| 1 << role).sum::<u64>();
            bits == members
        }
    };
    fits.then_some(after)
}

/// Does something, and says what it saw.
async fn act(matcher: &Matcher, rooms: &[String], rng: &mut Rng) -> Operation {
    let (role, room) = (rng.below(ROLES as u64) as usize, rng.below(ROOMS as u64) as usize);
    let seen = |result: Result<throng_client::Room, CallError>| match result {
        Ok(_) => Seen::Done,
        Err(CallError::Refused { status: Status::RoomFull, .. }) => Seen::Full,
        Err(CallError::Refused { status: Status::AlreadyInRoom, .. }) => Seen::Elsewhere,
        Err(CallError::Refused { status: Status::NotAMember, .. }) => Seen::NotThere,
        Err(error) => panic!("{error}"),
    };
    match rng.below(5) {
        0 | 1 => {
            let joined = matcher.join_room(&Role::new(format!("r{role}")), &rooms[room]).await;
            Operation::Join { role, room, seen: seen(joined) }
        }
        2 | 3 => {
            let left = matcher.leave_room(&format!("r{role}"), &rooms[room]).await;
            Operation::Leave { role, room, seen: seen(left) }
        }
        _ => {
            let found = matcher.room(&rooms[room]).await.expect("the room stays");
            let number = |role: &Role| role.id[1..].parse::<u32>().expect("a number");
            Operation::Read { room, members: found.roles.iter().map(|role| 1_u64 << number(role)).sum() }
        }
    }
}

#[test]
fn membership_is_linearizable_though_the_process_is_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rules = format!("capacity = {CAPACITY}\non_full = \"keep\"\nkeep_empty = true\n");
    let modes: String = MODES.iter().map(|mode| format!("[modes.{mode}]\n{rules}")).collect();
    std::fs::write(folder.path().join("modes.toml"), modes).expect("it is writable");
    let (mut process, address) = start(folder.path(), ANY_PORT);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let connect = |number: u64| {
        let name = format!("server_{number}");
        let config =
            MatcherConfig { call_timeout: PATIENCE, hello_timeout: PATIENCE, ..MatcherConfig::new(name) };
        let endpoint = address.parse().expect("an address");
        runtime.block_on(Matcher::connect(endpoint, config)).expect("a session")
    };
    let (maker, _notices) = connect(CLIENTS);
    let rooms: Arc<Vec<String>> = Arc::new(
        MODES
            .iter()
            .map(|mode| {
                runtime.block_on(async {
                    let room = maker.create_room(&Role::new("maker"), mode).await.expect("a room");
                    maker.leave_room("maker", &room.id).await.expect("it was there");
                    room.id
                })
            })
            .collect(),
    );
    let (clock, turns) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
    let (answered, answers) = mpsc::channel();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let (matcher, mut notices) = connect(number);
        let (rooms, clock, turns) = (Arc::clone(&rooms), Arc::clone(&clock), Arc::clone(&turns));
        let answered = answered.clone();
        // Notifications that nobody takes would hold the answers up.
        runtime.spawn(async move { while notices.next().await.is_some() {} });
        clients.push(runtime.spawn(async move {
            let (mut history, mut rng) = (Vec::new(), Rng::new(number + 1));
            while let Ok(turn) = turns.acquire().await {
                turn.forget();
                let called = clock.fetch_add(1, Ordering::SeqCst);
                let operation = act(&matcher, &rooms, &mut rng).await;
                history.push(Entry { called, answered: clock.fetch_add(1, Ordering::SeqCst), operation });
                answered.send(()).expect("the test waits");
            }
            history
        }));
    }
    let wait_for = |count: usize| {
        (0..count).for_each(|_| answers.recv_timeout(PATIENCE).expect("clients go on"));
    };
    for life in 0..=KILLS {
        turns.add_permits(OPERATIONS);
        let wanted = if life == 0 { OPERATIONS / 2 } else { OPERATIONS };
        wait_for(wanted);
        if life < KILLS {
            process.kill();
            process = start(folder.path(), &address).0;
        }
    }
    wait_for(OPERATIONS / 2);
    turns.close();
    let mut history = Vec::new();
    for client in clients {
        history.extend(runtime.block_on(client).expect("no panic"));
    }
    assert_eq!(history.len(), (KILLS + 1) * OPERATIONS);
    assert!(is_linearizable(&history, Membership::default(), apply), "{history:?}");
}

#[test]
fn a_matcher_that_cannot_write_its_journal_ends_alone_and_keeps_what_it_promised() {
    for services in ["matcher", "gateway,matcher"] {
        fill_the_disk_below(services);
    }
}

/// A matcher that is the only service ends its process; beside the gateway it ends alone.
fn fill_the_disk_below(services: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let serve = |command: &mut Command| {
        let players = ["--gateway.servers.addr=127.0.0.1:0", "--gateway.clients.addr=127.0.0.1:0"];
        let matcher = ["--matcher.addr", ANY_PORT, "--matcher.durability", "sync"];
        let (process, said) = Process::ready(command.args(players).args(matcher));
        let address = matcher_address(&said);
        (process, said, address)
    };
    // No file may grow past some 64 KiB, as on a disk that is full.
    let whole = up(folder.path(), services, "d");
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\""]).arg(whole.get_program());
    limited.args(whole.get_args()).current_dir(folder.path());
    let (mut process, said, address) = serve(&mut limited);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let connect = |address: &str| {
        let config = MatcherConfig {
            call_timeout: Duration::from_secs(10),
            ..MatcherConfig::new("server".to_owned())
        };
        runtime.block_on(Matcher::connect(address.parse().expect("an address"), config)).expect("a session")
    };
    let (matcher, _notices) = connect(&address);
    let mut promised = Vec::new();
    while let Ok(room) =
        runtime.block_on(matcher.create_room(&Role::new(format!("r{}", promised.len())), "1v1"))
    {
        promised.push(room);
    }
    assert!(promised.len() > 10, "{} rooms", promised.len());
    drop(matcher);
    if services == "matcher" {
        assert_eq!(process.0.wait().expect("its status").code(), Some(1));
    } else {
        let admin = said.iter().find_map(|line| line.trim().strip_prefix("admin")).expect("its address");
        let health = fetch(admin.trim().trim_start_matches("http://"), "/health/ready").expect("it is ready");
        assert!(health.contains("its journal cannot be written"), "{health}");
        process.kill();
    }
    let (_process, _, address) = serve(&mut up(folder.path(), services, "d"));
    let (matcher, _notices) = connect(&address);
    for room in promised {
        runtime.block_on(matcher.room(&room.id)).expect("what was answered is there");
    }
}

#[test]
fn the_model_refuses_histories_that_lost_or_invented_something() {
    let entry = |at: u64, operation| Entry { called: 2 * at, answered: 2 * at + 1, operation };
    let join = Operation::Join { role: 0, room: 0, seen: Seen::Done };
    let read = |members| Operation::Read { room: 0, members };
    let fits = |history: &[_]| is_linearizable(history, Membership::default(), apply);
    assert!(fits(&[entry(0, join), entry(1, read(1))]));
    assert!(!fits(&[entry(0, join), entry(1, read(0))]), "lost");
    assert!(!fits(&[entry(0, read(1)), entry(1, join)]), "before it was asked for");
    let second = Operation::Join { role: 0, room: 1, seen: Seen::Done };
    assert!(!fits(&[entry(0, join), entry(1, second)]), "in two rooms");
}
