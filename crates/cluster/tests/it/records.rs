//! Records are input like any other.

use std::collections::BTreeMap;
use std::fmt::Debug;

use throng_cluster::{
    Address, ClusterRecord, DrainRecord, Home, Key, Name, NodeRecord, NodeState, Opener, PermitRecord,
    RECORD_BYTES_MAX, Record, State, WorldRecord, WorldState,
};
use throng_stdx::Rng;

const CASES: u64 = 2_000;
/// The greatest epoch and incarnation.
const ORDINAL_MAX: u64 = 1 << 62;

/// Letters of names, and some that JSON escapes.
fn text(rng: &mut Rng) -> String {
    let letters = ['a', '7', '-', '"', '\\', '\n', 'é', '\u{1F600}', ' '];
    (0..rng.below(9)).map(|_| letters[rng.below(9) as usize]).collect()
}

fn name(rng: &mut Rng) -> Name {
    let letters = "abz059";
    let name: String =
        (0..=rng.below(31)).map(|_| letters.as_bytes()[rng.below(6) as usize] as char).collect();
    Name::new(&name).expect("letters and digits")
}

fn number(rng: &mut Rng) -> u64 {
    [0, 1, rng.below(1_000), u64::MAX, 1 << 53][rng.below(5) as usize]
}

/// An epoch or incarnation.
fn ordinal(rng: &mut Rng) -> u64 {
    number(rng).min(ORDINAL_MAX)
}

fn rest(rng: &mut Rng) -> serde_json::Map<String, serde_json::Value> {
    let value = |rng: &mut Rng| match rng.below(4) {
        0 => serde_json::Value::Null,
        1 => number(rng).into(),
        2 => text(rng).into(),
        _ => serde_json::json!([{ "deeper": [true] }]),
    };
    (0..rng.below(3)).map(|at| (format!("later{at}"), value(rng))).collect()
}

fn cluster_record(rng: &mut Rng) -> ClusterRecord {
    ClusterRecord { format: rng.next_u32(), name: name(rng), key_id: text(rng), rest: rest(rng) }
}

fn drain_record(rng: &mut Rng) -> DrainRecord {
    DrainRecord { incarnation: number(rng), by: text(rng), at_ms: number(rng), rest: rest(rng) }
}

fn node_record(rng: &mut Rng) -> NodeRecord {
    let state = [NodeState::Up, NodeState::Draining, NodeState::Left, NodeState::Lost];
    let address =
        |rng: &mut Rng| Address { transport: text(rng), kind: text(rng), address: text(rng), world: None };
    NodeRecord {
        incarnation: ordinal(rng),
        nonce: number(rng),
        state: state[rng.below(4) as usize],
        addresses: (0..rng.below(3)).map(|_| address(rng)).collect(),
        release: text(rng),
        folder: text(rng),
        boot: text(rng),
        labels: (0..rng.below(3)).map(|_| (text(rng), text(rng))).collect(),
        classes: (0..rng.below(3)).map(|_| (name(rng), text(rng))).collect::<BTreeMap<_, _>>(),
        load_permille: rng.next_u32() as u16,
        worlds: rng.next_u32(),
        worlds_max: rng.next_u32(),
        free_worlds: rng.next_u32(),
        rest: rest(rng),
    }
}

fn world_record(rng: &mut Rng) -> WorldRecord {
    let state = [WorldState::Assigned, WorldState::Serving, WorldState::Closing, WorldState::Closed];
    WorldRecord {
        epoch: ordinal(rng),
        home: Home { node: name(rng), incarnation: ordinal(rng) },
        state: state[rng.below(4) as usize],
        class: name(rng),
        class_hash: text(rng),
        created_ms: number(rng),
        ephemeral: rng.chance(0.5),
        opener: rng.chance(0.5).then(|| Opener { node: name(rng), room: text(rng) }),
        permit: rng.chance(0.5).then(|| rng.next_u32()),
        nonce: number(rng),
        why: text(rng),
        rest: rest(rng),
    }
}

fn permit_record(rng: &mut Rng) -> PermitRecord {
    PermitRecord { world: name(rng), nonce: number(rng), rest: rest(rng) }
}

fn area_record(rng: &mut Rng) -> Record {
    let state = [State::Serving, State::Lost, State::Given];
    Record {
        epoch: ordinal(rng),
        incarnation: text(rng),
        journal: text(rng),
        machine: text(rng),
        addresses: (0..rng.below(3)).map(|_| text(rng)).collect(),
        state: state[rng.below(3) as usize],
        nonce: number(rng),
    }
}

/// Records survive their bytes with every field, known or not, and no changed bytes do more than
/// to be refused.
fn check<R: PartialEq + Debug>(
    make: fn(&mut Rng) -> R,
    write: fn(&R) -> Vec<u8>,
    parse: fn(&[u8]) -> Result<R, String>,
) {
    for seed in 0..CASES {
        let mut rng = Rng::new(seed);
        let record = make(&mut rng);
        let mut bytes = write(&record);
        assert_eq!(parse(&bytes).as_ref(), Ok(&record), "seed {seed}");
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes.truncate(at),
                1 => bytes[at] = rng.next_u32() as u8,
                _ => bytes.insert(at, b"\"{}[],:0e-\\"[rng.below(11) as usize]),
            }
            if bytes.is_empty() {
                break;
            }
        }
        match parse(&bytes) {
            Ok(record) => assert_eq!(parse(&write(&record)).as_ref(), Ok(&record), "seed {seed}"),
            Err(error) => assert!(!error.is_empty(), "seed {seed}"),
        }
    }
    let mut long = write(&make(&mut Rng::new(1)));
    long.resize(RECORD_BYTES_MAX + 1, b' ');
    assert!(parse(&long[..RECORD_BYTES_MAX]).is_ok() && parse(&long).is_err());
    for bad in [&b""[..], b"{}", b"\xFF", b"[1]", &[b'['; 4_000]] {
        assert!(parse(bad).is_err());
    }
}

#[test]
fn records_survive_their_bytes_and_others_are_refused() {
    check(cluster_record, ClusterRecord::to_bytes, ClusterRecord::parse);
    check(drain_record, DrainRecord::to_bytes, DrainRecord::parse);
    check(node_record, NodeRecord::to_bytes, NodeRecord::parse);
    check(world_record, WorldRecord::to_bytes, WorldRecord::parse);
    check(permit_record, PermitRecord::to_bytes, PermitRecord::parse);
    check(area_record, Record::to_bytes, Record::parse);
}

#[test]
fn an_epoch_or_incarnation_without_a_successor_is_refused() {
    let rng = &mut Rng::new(3);
    let (mut world, mut node) = (world_record(rng), node_record(rng));
    for (ordinal, fits) in [(ORDINAL_MAX, true), (ORDINAL_MAX + 1, false), (u64::MAX, false)] {
        (world.epoch, world.home.incarnation, node.incarnation) = (ordinal, 1, ordinal);
        let mut found =
            vec![WorldRecord::parse(&world.to_bytes()).err(), NodeRecord::parse(&node.to_bytes()).err()];
        (world.epoch, world.home.incarnation) = (1, ordinal);
        found.push(WorldRecord::parse(&world.to_bytes()).err());
        for why in found {
            assert_eq!(why.is_none(), fits, "{ordinal}");
            assert!(why.is_none_or(|why| why.contains("the limit of epochs")), "{ordinal}");
        }
    }
}

#[test]
fn names_and_keys_are_checked() {
    for good in ["a", "0", "a-", "duel-0123456789", &"a".repeat(32)] {
        assert_eq!(Name::new(good).map(String::from).as_deref(), Ok(good));
        for kind in ["node", "world", "matcher", "drain"] {
            let key = format!("{kind}.{good}");
            assert_eq!(Key::parse(&key).map(|key| key.to_string()), Some(key));
        }
        let key = format!("permit.{good}.4294967295");
        assert_eq!(Key::parse(&key).map(|key| key.to_string()), Some(key));
    }
    for bad in ["", "-a", "A", "a.b", "a b", "é", "a*", ">", &"a".repeat(33)] {
        assert!(Name::new(bad).is_err() && Key::parse(&format!("node.{bad}")).is_none(), "{bad}");
    }
    assert_eq!(Key::parse("cluster"), Some(Key::Cluster));
    let bad = ["node", "cluster.a", "shop.a", "", "permit.a", "permit.a.-1", "permit.a.01", "permit.a.b.1"];
    assert!(bad.iter().all(|key| Key::parse(key).is_none()));
}
