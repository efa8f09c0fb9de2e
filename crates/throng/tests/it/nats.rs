//! Two matcher processes share an area on a real bus, and one is killed: its modes go to the other, and what it had
//! acknowledged is there when it comes back.
#![cfg(feature = "nats")]

use crate::bus;
use crate::process;

use std::collections::BTreeSet;
use std::path::Path;

use bus::{Bus, Caller, bus, room_of, run};
use process::{Process, up};
use throng_wire::matcher::{Status, Writer};

/// A matcher of area 1.
fn start(folder: &Path, bus: &Bus, data: &str) -> Process {
    let mut command = up(folder, "matcher", data);
    command
        .args(["--matcher.addr", "127.0.0.1:0", "--matcher.area", "1"])
        .args(["--matcher.nats_url", &bus.url, "--matcher.nats_lease_s", "3"])
        .args(["--matcher.presence_grace_ms", "600000"]);
    Process::ready(&mut command).0
}

#[test]
fn a_killed_matcher_is_replaced_and_comes_back_with_what_it_had() {
    let Some(bus) = bus() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = |data: &str| start(folder.path(), &bus, data);
    let (killed, _stays) = (start("a"), start("b"));
    run(async {
        let caller = Caller::connect(&bus, "").await;
        let first = caller.spread().await;
        for (index, (mode, _, room)) in first.iter().enumerate() {
            let second = caller.join(&format!("b{index}"), mode).await;
            assert_eq!(room_of(&second), (room.clone(), 2), "the mode has one home, whoever is asked");
        }
        drop(killed);
        let both: BTreeSet<String> = first.iter().map(|(_, matcher, _)| matcher.clone()).collect();
        let lost = caller.wait_for_a_loss(&both).await;
        // Every answer waits for the lease of the lost one to end, at most.
        for (index, (mode, matcher, room)) in first.iter().enumerate() {
            let third = caller.join(&format!("c{index}"), mode).await;
            assert_ne!(third.matcher, lost);
            let found = caller.room(room).await;
            if *matcher == lost {
                assert_ne!(room_of(&third).0, *room, "a room of the other matcher");
                assert_eq!(found.status, Status::NotFound, "nobody makes up what it cannot know");
            } else {
                assert_eq!(room_of(&third), (room.clone(), 3), "what was there goes on");
                assert_eq!((found.status, room_of(&found).1), (Status::Ok, 3));
            }
        }
        let _back = start("a");
        for (index, (mode, matcher, room)) in first.iter().enumerate() {
            // It is on the bus a moment after it is ready.
            let found = loop {
                let found = caller.room(room).await;
                if found.status == Status::Ok {
                    break found;
                }
                assert_eq!(found.status, Status::NotFound);
            };
            let members = if *matcher == lost { 2 } else { 3 };
            assert_eq!(room_of(&found).1, members, "{mode}: as it was acknowledged");
            let role = Writer::new().str(1, &format!("d{index}"));
            let to_it = Writer::new().nested(1, role).str(2, room);
            let joined = caller.ask(throng_wire::matcher::Method::ROLE_JOIN_ROOM, to_it).await;
            assert_eq!((joined.status, room_of(&joined).1), (Status::Ok, members + 1), "and it goes on");
        }
    });
}
