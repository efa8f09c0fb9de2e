//! Targets for the cluster's directory: values of records, and a node over a directory that says
//! anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use throng_cluster::{
    Action, ArrivalId, Class, ClusterRecord, DirectoryRequest, DirectoryResult, DrainRecord, Event, Home,
    Key, Name, Node, NodeRecord, NodeState, RECORD_BYTES_MAX, Record, RequestId, Setup, WorldRecord,
    WorldState,
};
use throng_stdx::Instant;

/// Requests and events that one input may cause: some for each of the few names that exist.
const OUTPUTS_MAX: usize = 200;

/// A value of the directory; the first byte selects the kind of its record. Also a name and a key.
///
/// Asserts that a record survives being written again, with the fields that are unknown.
pub fn cluster_record(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    macro_rules! check {
        ($record:ty) => {
            if let Ok(record) = <$record>::parse(bytes) {
                assert!(bytes.len() <= RECORD_BYTES_MAX);
                let again = record.to_bytes();
                // Escapes may make it longer than what may be read.
                if again.len() <= RECORD_BYTES_MAX {
                    assert_eq!(<$record>::parse(&again).as_ref(), Ok(&record));
                }
            }
        };
    }
    match kind % 5 {
        0 => check!(ClusterRecord),
        1 => check!(NodeRecord),
        2 => check!(WorldRecord),
        3 => check!(Record),
        _ => check!(DrainRecord),
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(key) = Key::parse(text) {
        assert_eq!(key.to_string(), text);
    }
    match Name::new(text) {
        Ok(name) => assert_eq!(name.as_str(), text),
        Err(error) => assert!(!error.is_empty()),
    }
}

fn name(name: &str) -> Name {
    Name::new(name).expect("a name")
}

/// A node, and what its driver keeps in mind.
struct Bench {
    node: Node,
    now: Instant,
    revision: u64,
    open: BTreeMap<u64, DirectoryRequest>,
    events: Vec<Event>,
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn node(&mut self) -> Name {
        name(["n0", "n1", "n2", "n3"][usize::from(self.byte() % 4)])
    }

    fn world(&mut self) -> Name {
        name(["w0", "w1", "w2"][usize::from(self.byte() % 3)])
    }

    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            byte => u64::from(byte % 8),
        }
    }

    fn node_record(&mut self) -> NodeRecord {
        let state = [NodeState::Up, NodeState::Draining, NodeState::Left, NodeState::Lost];
        NodeRecord {
            incarnation: self.number(),
            nonce: self.number(),
            state: state[usize::from(self.byte() % 4)],
            ..first_record()
        }
    }

    fn world_record(&mut self) -> WorldRecord {
        let state = [WorldState::Assigned, WorldState::Serving, WorldState::Closing, WorldState::Closed];
        let byte = self.byte();
        WorldRecord {
            epoch: self.number(),
            home: Home { node: self.node(), incarnation: self.number() },
            state: state[usize::from(byte % 4)],
            class: name("hub"),
            class_hash: if byte & 64 == 0 { "h" } else { "other" }.to_owned(),
            created_ms: 0,
            ephemeral: byte & 128 != 0,
            opener: None,
            permit: (byte & 32 != 0).then_some(0),
            nonce: self.number(),
            why: String::new(),
            rest: Default::default(),
        }
    }
}

fn first_record() -> NodeRecord {
    NodeRecord {
        incarnation: 0,
        nonce: 0,
        state: NodeState::Up,
        addresses: Vec::new(),
        release: String::new(),
        folder: "f".to_owned(),
        boot: "b".to_owned(),
        labels: BTreeMap::new(),
        classes: [(name("hub"), "h".to_owned())].into(),
        load_permille: 0,
        worlds: 0,
        worlds_max: 2,
        free_worlds: 2,
        rest: Default::default(),
    }
}

/// Records, replies, time and the driver's calls in any order.
///
/// Asserts that a node has one request per key at most and comes to rest after each input, and that
/// it serves only within its lease.
pub fn cluster_node(input: &[u8]) {
    let mut input = Input(input);
    let cluster =
        ClusterRecord { format: 1, name: name("c"), key_id: "k".to_owned(), rest: Default::default() };
    let setup = Setup {
        cluster: cluster.clone(),
        record: first_record(),
        node: name("n0"),
        has_lock: input.byte().is_multiple_of(2),
        classes: [(
            name("hub"),
            Class { hash: "h".to_owned(), labels: BTreeMap::new(), worlds_max: Some(2) },
        )]
        .into(),
        patience: Duration::from_secs(30),
        arrivals_max: 4,
        origin_unix_ms: u64::MAX,
    };
    let now = Instant::from_millis(1);
    let mut bench =
        Bench { node: Node::new(setup, 1, now), now, revision: 1, open: BTreeMap::new(), events: Vec::new() };
    bench.node.handle_record(now, "cluster", 1, Some(&cluster.to_bytes()));
    bench.node.handle_synced(now);
    bench.check();
    while !input.0.is_empty() {
        bench.step(&mut input);
        bench.check();
    }
}

impl Bench {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 12 {
            0 => {
                let (key, revision) = (format!("node.{}", input.node()), self.next(input.byte()));
                let value = input.node_record().to_bytes();
                self.node.handle_record(now, &key, revision, Some(&value));
            }
            1 => {
                let (key, revision) = (format!("world.{}", input.world()), self.next(input.byte()));
                let value = input.world_record().to_bytes();
                self.node.handle_record(now, &key, revision, Some(&value));
            }
            2 => {
                let keys = [
                    "cluster",
                    "node.n0",
                    "node.n1",
                    "world.w0",
                    "matcher.a",
                    "drain.n0",
                    "permit.hub.0",
                    "node.",
                ];
                let key = keys[usize::from(input.byte() % 8)];
                let revision = self.next(input.byte());
                let length = usize::from(input.byte()).min(input.0.len());
                let value = input.0.split_off(..length).unwrap_or_default();
                self.node.handle_record(now, key, revision, (length > 0).then_some(value));
            }
            3 => {
                let incarnation = input.number();
                let record =
                    DrainRecord { incarnation, by: String::new(), at_ms: 0, rest: Default::default() };
                let revision = self.next(1);
                self.node.handle_record(now, "drain.n0", revision, Some(&record.to_bytes()));
            }
            4 | 5 => self.reply(input),
            6 => {
                self.now += Duration::from_millis(u64::from(input.byte()) * 100);
                self.node.handle_timeout(self.now);
                let next = self.node.next_timeout();
                assert!(next.is_none_or(|next| next > self.now), "it is due again at {next:?}");
            }
            7 => match input.byte() % 3 {
                0 => self.node.handle_gap(now),
                1 => self.node.handle_synced(now),
                _ => self.node.handle_rewound(now),
            },
            8 => {
                let id = ArrivalId(u64::from(input.byte() % 8));
                match input.byte() % 3 {
                    0 => self.node.handle_departure(now, id),
                    1 => self.node.handle_arrival(now, id, input.world(), None),
                    _ => self.node.handle_arrival(now, id, input.world(), Some(name("hub"))),
                }
            }
            9 => match input.byte() % 8 {
                0 => self.node.handle_drain(now, None),
                1 => self.node.handle_drain(now, Some(Duration::ZERO)),
                2 => self.node.handle_undrain(now),
                3 => self.node.handle_stop(now),
                _ => self.node.handle_players(now, &input.world(), 1),
            },
            10 => match self.events.pop() {
                Some(Event::Open { world, epoch, .. }) => {
                    self.node.handle_opened(now, &world, epoch, !input.byte().is_multiple_of(4));
                }
                Some(Event::Freeze { world, epoch, .. }) => self.node.handle_frozen(now, &world, epoch),
                _ => {}
            },
            _ => {
                let world = input.world();
                if input.byte().is_multiple_of(2) {
                    self.node.handle_open(now, world, name("hub"), input.byte().is_multiple_of(2));
                } else {
                    self.node.handle_close(now, &world);
                }
            }
        }
    }

    /// A revision of the directory: mostly the next one, sometimes an old one, once in a while the
    /// greatest.
    fn next(&mut self, byte: u8) -> u64 {
        match byte {
            0..=199 => {
                self.revision += 1;
                self.revision
            }
            200..=253 => u64::from(byte - 200),
            _ => u64::MAX,
        }
    }

    fn reply(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.open.keys().nth(usize::from(input.byte()) % self.open.len().max(1)).copied()
        else {
            return;
        };
        let Some(ask) = self.open.remove(&id) else { return };
        let revision = self.revision + 1;
        let outcome = match input.byte() % 8 {
            0..=3 => {
                self.revision = revision;
                match &ask.action {
                    Action::Read => DirectoryResult::Found { revision, value: None },
                    Action::Write { .. } | Action::Delete { .. } => DirectoryResult::Applied(revision),
                }
            }
            4 => DirectoryResult::Refused,
            5 => DirectoryResult::Unknown,
            6 => DirectoryResult::Found { revision: self.next(input.byte()), value: None },
            _ => {
                let value = match &ask.key {
                    Key::Node(_) => input.node_record().to_bytes(),
                    _ => input.world_record().to_bytes(),
                };
                DirectoryResult::Found { revision: self.next(input.byte()), value: Some(value) }
            }
        };
        self.node.handle_result(self.now, RequestId(id), outcome);
    }

    /// Drains the outputs.
    fn check(&mut self) {
        let mut outputs = 0;
        while let Some(ask) = self.node.poll_request() {
            outputs += 1;
            assert!(self.open.insert(ask.id.0, ask).is_none(), "two requests have one number");
        }
        while let Some(event) = self.node.poll_event() {
            outputs += 1;
            self.events.push(event);
        }
        assert!(outputs <= OUTPUTS_MAX, "{outputs} requests and events");
        let keys: BTreeSet<&Key> = self.open.values().map(|ask| &ask.key).collect();
        assert_eq!(keys.len(), self.open.len(), "two requests are about one key");
        let excess = self.events.len().saturating_sub(OUTPUTS_MAX);
        self.events.drain(..excess);
        for world in ["w0", "w1", "w2"] {
            if self.node.is_serving(&name(world), self.now) {
                assert!(self.node.serves_until().is_some_and(|until| self.now <= until));
            }
        }
    }
}
