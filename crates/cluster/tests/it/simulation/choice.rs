//! The choice of homes, and nodes that do not fit their cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use throng_cluster::{Answer, Class, Failure, Key, Refusal, Setup, WorldState};

use super::OPTIONS;
use super::run::{CLASS, Fate, LIMIT, LIMITED, MS, Options, Run, S, name};

fn start(nodes: usize, configure: fn(usize, &mut Setup)) -> Run {
    let mut run = Run::new(3, Options { nodes, ..OPTIONS });
    run.configure = configure;
    for node in 0..nodes {
        run.start(node, 0);
    }
    run.run_until(S);
    run
}

/// Opens worlds by players, and returns how many each node serves.
fn open(run: &mut Run, worlds: usize) -> Vec<usize> {
    for world in 0..worlds {
        run.arrive(0, &name(&format!("w{world}")));
        run.run_until(run.now + 20 * MS);
    }
    run.run_until(run.now + 2 * S);
    assert_eq!(run.violation, None);
    let homes: Vec<_> = (0..worlds).filter_map(|world| run.server(&name(&format!("w{world}")))).collect();
    (0..run.machines.len()).map(|node| homes.iter().filter(|home| **home == node).count()).collect()
}

#[test]
fn worlds_are_spread_by_load() {
    let homes = open(&mut start(3, |_, _| {}), 60);
    assert_eq!(homes.iter().sum::<usize>(), 60);
    assert!(homes.iter().all(|count| (14..=26).contains(count)), "{homes:?}");
    let homes = open(
        &mut start(3, |node, setup| {
            if node == 1 {
                setup.record.load_permille = 900;
            }
        }),
        60,
    );
    assert!(homes[1] == 0 && homes[0] + homes[2] == 60, "{homes:?}");
}

#[test]
fn labels_rooms_and_classes_are_obeyed() {
    let homes = open(
        &mut start(4, |node, setup| {
            let class = setup.classes.get_mut(&name(CLASS)).expect("it has the class");
            class.labels.insert("disk".to_owned(), "fast".to_owned());
            match node {
                1 | 2 => drop(setup.record.labels.insert("disk".to_owned(), "fast".to_owned())),
                // With other settings for the class.
                3 => "other".clone_into(&mut class.hash),
                _ => {}
            }
            if node == 2 {
                setup.record.worlds_max = 3;
            }
        }),
        10,
    );
    assert!(homes[0] == 0 && homes[3] == 0 && homes[2] <= 3 && homes[1] + homes[2] == 10, "{homes:?}");
}

/// Gives the class of a node other settings.
fn change_class(run: &mut Run, node: usize) {
    let class = Class { hash: "later".to_owned(), labels: BTreeMap::new(), worlds_max: None };
    run.handle(node, |core, now| core.handle_classes(now, [(name(CLASS), class)].into()));
}

#[test]
fn changed_settings_are_for_worlds_that_open_later() {
    let mut run = start(2, |_, _| {});
    assert_eq!(open(&mut run, 1).iter().sum::<usize>(), 1);
    let home = run.server(&name("w0")).expect("it serves");
    let hash = |run: &Run, world: &str| run.world(&name(world)).expect("it is open").class_hash;
    change_class(&mut run, home);
    run.run_until(run.now + 2 * S);
    assert_eq!((run.server(&name("w0")), hash(&run, "w0")), (Some(home), "h".to_owned()));
    run.arrive(home, &name("w1"));
    run.run_until(run.now + 2 * S);
    assert_eq!((run.server(&name("w1")), hash(&run, "w1")), (Some(home), "later".to_owned()));
    assert_eq!(run.violation, None);
}

#[test]
fn a_world_whose_settings_no_node_has_any_more_gets_those_of_its_next_home() {
    let mut run = start(2, |_, _| {});
    open(&mut run, 1);
    let home = run.server(&name("w0")).expect("it serves");
    // The other node has later settings: it takes the world when no node has the earlier ones.
    change_class(&mut run, 1 - home);
    run.run_until(run.now + 2 * S);
    run.handle(home, |core, now| core.handle_drain(now, Some(Duration::ZERO)));
    run.machines[home].is_supervised = false;
    run.run_until(run.now + 2 * S);
    assert_eq!(run.server(&name("w0")), Some(1 - home));
    assert_eq!(run.world(&name("w0")).expect("it is open").class_hash, "later");
    // A node alone that is restarted with other settings serves its worlds again.
    let mut run = start(1, |_, _| {});
    open(&mut run, 1);
    run.kill(0);
    run.configure = |_, setup| {
        for class in setup.classes.values_mut() {
            "later".clone_into(&mut class.hash);
        }
    };
    run.start(0, 100 * MS);
    run.run_until(run.now + 3 * S);
    assert_eq!(run.server(&name("w0")), Some(0));
    assert_eq!(
        (run.world(&name("w0")).expect("it is open").class_hash.as_str(), run.violation),
        ("later", None)
    );
}

#[test]
fn an_arrival_is_refused_when_no_node_has_room() {
    let mut run = start(2, |_, setup| setup.record.worlds_max = 1);
    assert_eq!(open(&mut run, 2), [1, 1]);
    let id = run.arrive(0, &name("w2"));
    run.run_until(run.now + S);
    assert_eq!(run.machines[0].answers.get(&id), Some(&Answer::Refused(Refusal::NoRoom)));
    // A world that is to be open waits for room.
    run.handle(1, |core, now| core.handle_open(now, name("w3"), name(CLASS), false));
    run.run_until(run.now + 5 * S);
    assert!(run.server(&name("w3")).is_none());
    run.handle(1, |core, now| core.handle_close(now, &name("w0")));
    run.run_until(run.now + 5 * S);
    assert!(run.server(&name("w3")).is_some());
    assert_eq!(run.violation, None);
}

#[test]
fn nodes_that_open_worlds_at_the_same_time_open_no_more_than_the_class_may_have() {
    for seed in 0..20 {
        let mut run = Run::new(seed, Options { nodes: 3, ..OPTIONS });
        run.configure = |_, setup| {
            setup.classes.get_mut(&name(LIMITED)).expect("it has the class").worlds_max = Some(5);
        };
        run.limit = 5;
        (0..3).for_each(|node| run.start(node, 0));
        run.run_until(S);
        let worlds: Vec<_> = (0..6).map(|world| name(&format!("c{world}"))).collect();
        let ids: Vec<_> = worlds
            .iter()
            .enumerate()
            .map(|(at, world)| (at % 3, run.arrive_for(at % 3, world, LIMITED)))
            .collect();
        run.run_until(run.now + 2 * S);
        let refused = ids.iter().filter(|(node, id)| {
            run.machines[*node].answers.get(id) == Some(&Answer::Refused(Refusal::WorldsMax))
        });
        assert_eq!((run.open_limited(), refused.count(), &run.violation), (5, 1, &None), "seed {seed}");
        // One that closes makes room for the next.
        let open = worlds.iter().find(|world| run.server(world).is_some()).expect("one serves").clone();
        run.handle(0, |core, now| core.handle_close(now, &open));
        run.run_until(run.now + S);
        run.arrive_for(1, &name("c9"), LIMITED);
        run.run_until(run.now + S);
        assert!(run.server(&name("c9")).is_some() && run.open_limited() == 5, "seed {seed}");
    }
}

/// Gives all nodes another limit of the class.
fn limit(run: &mut Run, most: u32) {
    for node in 0..run.machines.len() {
        let class = |worlds_max| Class { hash: "h".to_owned(), labels: BTreeMap::new(), worlds_max };
        let classes = [(name(CLASS), class(None)), (name(LIMITED), class(Some(most)))];
        run.handle(node, |core, now| core.handle_classes(now, classes.into()));
    }
    run.limit = most;
}

#[test]
fn worlds_that_were_opened_under_a_greater_limit_count_after_it_was_lowered() {
    for seed in 0..20 {
        let mut run = Run::new(seed, Options { nodes: 3, ..OPTIONS });
        (0..3).for_each(|node| run.start(node, 0));
        run.run_until(S);
        limit(&mut run, 5);
        for world in 0..5 {
            run.arrive_for(world % 3, &name(&format!("c{world}")), LIMITED);
        }
        run.run_until(run.now + 2 * S);
        assert_eq!(run.open_limited(), 5, "seed {seed}");
        limit(&mut run, 2);
        let open_more = |run: &mut Run, worlds: [&str; 3]| {
            for (node, world) in worlds.into_iter().enumerate() {
                run.arrive_for(node, &name(world), LIMITED);
            }
            run.run_until(run.now + 3 * S);
            run.open_limited()
        };
        // One after another closes, those with small permits too.
        for (close, left) in [(None, 5), (Some("c0"), 4), (Some("c3"), 3), (Some("c1"), 2)] {
            if let Some(world) = close {
                run.handle(0, |core, now| core.handle_close(now, &name(world)));
                run.run_until(run.now + S);
            }
            assert_eq!(
                (open_more(&mut run, ["d0", "d1", "d2"]), &run.violation),
                (left, &None),
                "seed {seed}"
            );
        }
        run.handle(0, |core, now| core.handle_close(now, &name("c2")));
        run.run_until(run.now + S);
        assert_eq!((open_more(&mut run, ["d3", "d4", "d5"]), &run.violation), (2, &None), "seed {seed}");
    }
}

#[test]
fn worlds_that_are_written_again_count_after_the_directory_lost_its_data() {
    let mut run = start(3, |_, _| {});
    for world in ["c0", "c1"] {
        run.arrive_for(0, &name(world), LIMITED);
        run.run_until(run.now + S);
    }
    assert_eq!(run.open_limited(), LIMIT);
    run.lose(0);
    run.run_until(run.now + 10 * S);
    assert_eq!(run.open_limited(), LIMIT, "their homes have written them again");
    for (node, world) in ["d0", "d1", "d2"].into_iter().enumerate() {
        run.arrive_for(node, &name(world), LIMITED);
    }
    run.run_until(run.now + 3 * S);
    assert_eq!(run.open_limited(), LIMIT);
    // Their numbers can be used again.
    run.handle(0, |core, now| core.handle_close(now, &name("c0")));
    run.run_until(run.now + S);
    run.arrive_for(0, &name("d3"), LIMITED);
    run.run_until(run.now + 3 * S);
    assert!(run.server(&name("d3")).is_some() && run.open_limited() == LIMIT);
}

#[test]
fn a_world_that_several_nodes_open_counts_once() {
    for seed in 0..20 {
        let mut run = Run::new(seed, Options { nodes: 3, ..OPTIONS });
        (0..3).for_each(|node| run.start(node, 0));
        run.run_until(S);
        for world in ["c0", "c1"] {
            for node in 0..3 {
                run.arrive_for(node, &name(world), LIMITED);
            }
            run.run_until(run.now + 2 * S);
            assert!(run.server(&name(world)).is_some(), "seed {seed}: {world}");
        }
        assert_eq!((run.open_limited(), &run.violation), (2, &None), "seed {seed}");
    }
}

#[test]
fn the_permit_of_a_node_that_ends_before_it_opens_the_world_is_taken_back() {
    for fate in [Fate::Lost, Fate::LateWrite] {
        let mut run = start(3, |_, setup| {
            setup.classes.get_mut(&name(LIMITED)).expect("it has the class").worlds_max = Some(1);
        });
        run.limit = 1;
        run.script.push((Key::World(name("c0")), fate));
        run.arrive_for(0, &name("c0"), LIMITED);
        run.run_until(run.now + 100 * MS);
        run.machines[0].is_supervised = false;
        run.kill(0);
        let until = run.now + 20 * S;
        while run.server(&name("c1")).is_none() && run.server(&name("c0")).is_none() {
            assert!(run.now < until, "{fate:?}: the permit is lost");
            run.arrive_for(1, &name("c1"), LIMITED);
            run.run_until(run.now + S);
        }
        run.run_until(run.now + 20 * S);
        assert_eq!((run.open_limited(), &run.violation), (1, &None), "{fate:?}");
    }
}

#[test]
fn a_node_that_cannot_make_a_world_passes_it_on() {
    let mut run = start(3, |_, _| {});
    run.cannot_open = vec![0, 2];
    assert_eq!(open(&mut run, 6), [0, 6, 0]);
    run.cannot_open = vec![0, 1, 2];
    let id = run.arrive(0, &name("w9"));
    run.run_until(run.now + 4 * S);
    let record = run.world(&name("w9")).expect("it was assigned");
    assert_eq!((record.state, &*record.why), (WorldState::Closed, "no node has room"));
    assert_eq!(run.machines[0].answers.get(&id), Some(&Answer::Refused(Refusal::NoRoom)));
}

#[test]
fn an_arrival_waits_while_the_only_node_with_room_stands_still() {
    let mut run = start(2, |_, setup| setup.record.worlds_max = 1);
    open(&mut run, 1);
    let full = run.server(&name("w0")).expect("it serves");
    run.stop(1 - full, run.now + 6 * S);
    let id = run.arrive(full, &name("w1"));
    run.run_until(run.now + 5 * S);
    assert_eq!(run.machines[full].answers.get(&id), None);
    run.run_until(run.now + 3 * S);
    assert!(matches!(run.machines[full].answers.get(&id), Some(Answer::Elsewhere { .. })));
    assert_eq!((run.server(&name("w1")), run.violation), (Some(1 - full), None));
}

#[test]
fn an_assignment_that_is_not_accepted_is_given_to_another_node() {
    let mut run = start(3, |_, _| {});
    run.arrive(0, &name("w0"));
    run.run_until(run.now + 20 * S);
    let home = run.server(&name("w0")).expect("it serves");
    run.handle(home, |core, now| core.handle_close(now, &name("w0")));
    run.run_until(run.now + S);
    run.stop(home, run.now + 14 * S);
    run.arrive((home + 1) % 3, &name("w0"));
    run.run_until(run.now + 4 * S);
    let next = run.server(&name("w0")).expect("another node serves it");
    assert!(next != home && run.tally.marks == 0);
    assert_eq!(run.violation, None);
}

#[test]
fn a_node_with_other_settings_than_its_cluster_does_not_run() {
    let mut run = start(2, |node, setup| {
        if node == 1 {
            "other".clone_into(&mut setup.cluster.key_id);
        }
    });
    assert!(run.machines[0].is_up && !run.machines[1].is_up);
    assert!(matches!(&run.machines[1].failure, Some(Failure::OtherCluster(is)) if is.key_id == "k"));
    run.bus.write(run.now, "cluster", 1, Some(b"{".to_vec()));
    run.kill(0);
    run.machines[0].is_supervised = false;
    run.start(0, 0);
    run.run_until(run.now + S);
    assert_eq!(run.machines[0].failure, Some(Failure::NoCluster));
}

#[test]
fn what_a_node_cannot_read_is_left_alone_and_what_it_does_not_know_is_kept() {
    let mut run = start(2, |_, _| {});
    let key = |world: &str| Key::World(name(world)).to_string();
    run.bus.write(run.now, &key("w0"), 0, Some(b"{\"format\": 9}".to_vec()));
    let older = br#"{"epoch":5,"home":{"node":"n9","incarnation":1},"state":"closed","class":"hub",
        "class_hash":"h","nonce":1,"later":{"a":[1]}}"#;
    run.bus.write(run.now, &key("w1"), 0, Some(older.to_vec()));
    for node in 0..2 {
        run.gap(node, run.now);
    }
    run.run_until(run.now + S);
    for world in ["w0", "w1"] {
        run.arrive(0, &name(world));
    }
    run.run_until(run.now + 10 * S);
    assert_eq!(
        run.bus.get(&key("w0")).map(|entry| entry.value.as_deref()),
        Some(Some(&b"{\"format\": 9}"[..]))
    );
    assert!(run.server(&name("w0")).is_none());
    let core = run.machines[0].core.as_ref().expect("it runs");
    assert_eq!(core.stats().unreadable, 1);
    assert_eq!(run.machines[0].unreadable, [key("w0")], "reported once");
    let record = run.world(&name("w1")).expect("it is open");
    assert_eq!((record.state, record.epoch), (WorldState::Serving, 6));
    assert_eq!(record.rest.get("later"), Some(&serde_json::json!({ "a": [1] })));
}
