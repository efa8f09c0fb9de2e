//! A life: rounds of concurrent requests and maintenance, and the disasters between them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use throng_ddc::compressed::compress_lz4;
use throng_ddc::gc::RefPolicy;
use throng_ddc::{Document, IoHash, Key, Namespace, Style, Timestamp, Value as Field};
use throng_ddc_server::{Node as Transfer, Rules, Service};
use throng_ddc_store::{Clock as _, FULL_PERCENT, Quotas, UnusedName};
use throng_platform::{DiskState, Fs as _, SimulatedDisk};
use throng_stdx::Rng;
use tokio::runtime::{Builder, Runtime};

use super::bucket::FaultyBucket;
use super::faults::Faults;
use super::model::{Exchange, Model, Possible, Trouble, Value};
use super::node::{DISK_BYTES, Node, Role, Settings, VirtualClock};
use super::requests::{BUCKET, NAMESPACE, Op};
use super::upstream::{self, Link};

const PHASES: u64 = 5;
const KEYS: u64 = 10;
const REQUESTS_MAX: u64 = 6;
const MINUTE: Duration = Duration::from_secs(60);
/// Time for which an edge serves a ref without asking again.
const FRESH: Duration = Duration::from_secs(60);
/// Keys that a bit takes at most: a blob, and the content id and the ref that need it.
const BIT_KEYS_MAX: usize = 3;

/// Bytes of the log that are lost at a time, fewer than commits name again.
const LOST_BYTES_MAX: u64 = 600;
/// Records that they hold at most.
const LOST_RECORDS_MAX: usize = 8;
/// Records that a segment holds at most.
const SEGMENT_RECORDS_MAX: usize = 64;

struct World {
    rng: Rng,
    runtime: Runtime,
    clock: Arc<VirtualClock>,
    shape: Shape,
    /// Faults between the nodes and the bucket, or the edge with its upstream.
    faults: Option<Faults>,
    nodes: Vec<Node>,
    model: Model,
    settings: Settings,
    /// Keys that damage may take, and those that it took.
    damage_max: usize,
    lost: usize,
    /// Refs expire in this life.
    expires: bool,
    /// Quotas are set now and then.
    has_quotas: bool,
    /// Bytes that the only node may hold, if that is limited: its quota, or what it held before.
    bytes_max: Option<u64>,
    /// Steps are printed.
    is_told: bool,
}

/// Nodes of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One that holds everything.
    Alone,
    /// Two that share a bucket.
    Shared,
    /// One that holds everything, and one that fills itself from it.
    Edge,
}

pub(super) fn live(seed: u64, is_told: bool) {
    let mut rng = Rng::new(seed);
    let clock = Arc::<VirtualClock>::default();
    let settings =
        Settings { inline_bytes_max: [64, 1_000][rng.below(2) as usize], has_events: rng.chance(0.2) };
    let (shape, roles, faults) = match rng.below(10) {
        0..5 => (Shape::Alone, vec![Role::Alone], None),
        5..8 => {
            let bucket = FaultyBucket::new(rng.next_u64());
            let role = Role::Shared(bucket.clone());
            (Shape::Shared, vec![role.clone(), role], Some(bucket.faults))
        }
        _ => {
            let link = Link::new(rng.next_u64());
            let roles = vec![Role::Upstream(Arc::clone(&link)), Role::Edge(Arc::clone(&link))];
            (Shape::Edge, roles, Some(link.faults.clone()))
        }
    };
    let node = |role| Node::new(SimulatedDisk::new(DiskState::default()), &clock, role, settings);
    let nodes = roles.iter().map(node).collect();
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime of one thread");
    let expires = rng.chance(0.2);
    let mut world = World {
        rng,
        runtime,
        clock,
        shape,
        faults,
        nodes,
        model: Model::default(),
        settings,
        damage_max: 0,
        lost: 0,
        expires,
        has_quotas: shape == Shape::Alone,
        bytes_max: None,
        is_told,
    };
    for phase in 0..PHASES {
        world.set_rules();
        for _ in 0..world.rng.below(8) {
            world.round();
        }
        world.evict_alone();
        world.end_phase(phase);
    }
    world.heal();
}

fn namespace() -> Namespace {
    NAMESPACE.parse().expect("a name")
}

/// Maintenance that a node does between the steps of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upkeep {
    Collect,
    Evict(u64),
    Scrub,
    Checkpoint,
    Merge,
    NoteAccesses,
    LookAtDisk,
}

impl World {
    fn is_shared(&self) -> bool {
        self.shape == Shape::Shared
    }

    // --- Requests

    fn key(&mut self) -> Key {
        format!("{:040}", self.rng.below(KEYS)).parse().expect("a key")
    }

    fn any_bytes(&mut self) -> Bytes {
        let len = match self.rng.below(50) {
            0 => 1_200_000,
            1..4 => 20_000,
            _ => [0, 1, 90, 600, 1_500][self.rng.below(5) as usize],
        };
        let mut bytes = vec![0; len];
        let random = len.min(2_000);
        self.rng.fill(&mut bytes[..random]);
        bytes.into()
    }

    fn any_blob(&mut self) -> Option<IoHash> {
        let at = self.rng.below((self.model.blobs.len() as u64).max(1)) as usize;
        self.model.blobs.iter().nth(at).copied()
    }

    /// Something that a ref may name: a blob, or the content of a compressed buffer.
    fn any_content(&mut self) -> Option<IoHash> {
        if self.rng.chance(0.5) {
            return self.any_blob();
        }
        let at = self.rng.below((self.model.forms.len() as u64).max(1)) as usize;
        self.model.forms.keys().nth(at).copied().or_else(|| self.any_blob())
    }

    fn any_object(&mut self) -> Bytes {
        let count = self.rng.below(3);
        let mut attached: Vec<IoHash> = (0..count).filter_map(|_| self.any_content()).collect();
        if self.rng.chance(0.1) {
            attached.push(IoHash::of(&self.rng.next_u64().to_le_bytes()));
        }
        let fields = attached.into_iter().map(Field::BinaryAttachment).collect();
        let number = Field::Integer(self.rng.next_u64());
        Field::object([("payload", Field::Array(fields)), ("n", number)]).encode(Style::Plain).into()
    }

    fn any_op(&mut self) -> Option<Op> {
        Some(match self.rng.below(32) {
            0..=4 => Op::PutBlob(self.any_bytes()),
            5 => {
                let bytes = self.any_bytes();
                if bytes.is_empty() {
                    return None;
                }
                Op::PutBroken(bytes, self.rng.chance(0.5))
            }
            6..=7 => {
                let raw = self.any_bytes();
                Op::PutCompressed(IoHash::of(&raw), compress_lz4(&raw, 12 + self.rng.below(4) as u8).into())
            }
            8..=11 => Op::PutRef(self.key(), self.any_object()),
            12..=13 => Op::PutRaw(self.key(), self.any_bytes()),
            14..=15 => {
                let count = 1 + self.rng.below(4);
                let puts: BTreeMap<Key, Bytes> =
                    (0..count).map(|_| (self.key(), self.any_object())).collect();
                Op::Batch(puts.into_iter().collect())
            }
            16 => {
                let key = self.key();
                let value = self.model.possible(&key).into_iter().flatten().next()?;
                Op::Finalise(key, value.object)
            }
            17..=18 => Op::DeleteRef(self.key()),
            19 => Op::DeleteBlob(self.any_blob()?),
            20 if !self.is_shared() && self.rng.chance(0.3) => Op::DeleteForms(self.any_content()?),
            21..=22 => Op::GetBlob(self.any_blob()?),
            23 => Op::HeadBlob(self.any_blob()?),
            24 => {
                let hash = self.any_blob()?;
                let len = self.model.bytes[&hash].len() as u64;
                let start = self.rng.below(len.max(2) - 1);
                let end = (start + 1 + self.rng.below(2_000)).min(len);
                if start >= end {
                    return None;
                }
                Op::GetPart(hash, start, end)
            }
            25 => Op::GetForm(self.any_content()?),
            26 => Op::GetPackage(self.key()),
            27..=28 => {
                let puts = (0..self.rng.below(4)).map(|_| self.any_bytes()).collect();
                let gets = (0..self.rng.below(4)).filter_map(|_| self.any_blob()).collect();
                Op::BlobBatch(puts, gets)
            }
            _ => Op::GetRef(self.key()),
        })
    }

    fn any_upkeep(&mut self) -> Upkeep {
        match self.rng.below(9) {
            0..=1 => Upkeep::Collect,
            2 => Upkeep::Evict(2_000 + self.rng.below(40_000)),
            3 => Upkeep::Scrub,
            4 => Upkeep::Checkpoint,
            5 => Upkeep::Merge,
            6 => Upkeep::NoteAccesses,
            _ => Upkeep::LookAtDisk,
        }
    }

    /// Plays requests at the same time, with maintenance between their steps.
    fn round(&mut self) {
        self.clock.advance(Duration::from_millis(self.rng.below(10 * 60_000)));
        let count = 1 + self.rng.below(REQUESTS_MAX);
        let ops: Vec<Op> = (0..count).filter_map(|_| self.any_op()).collect();
        let upkeep: Vec<(usize, Upkeep)> = (0..self.rng.below(3))
            .map(|_| (self.rng.below(self.nodes.len() as u64) as usize, self.any_upkeep()))
            .collect();
        self.play(ops, upkeep);
    }

    fn play(&mut self, ops: Vec<Op>, upkeep: Vec<(usize, Upkeep)>) {
        ops.iter().for_each(|op| self.model.learn_sent(op));
        let values = self.model.round_values(&ops);
        let outcomes = self.run(&ops, &upkeep);
        let removes = |upkeep: &Upkeep| matches!(upkeep, Upkeep::Collect | Upkeep::Evict(_));
        let is_kept_up = upkeep.iter().any(|(place, upkeep)| *place == 0 && removes(upkeep));
        // An upload over the quota collects what only replaced refs reached.
        let may_remove = !self.is_shared() && (is_kept_up || self.bytes_max.is_some());
        let deleted: BTreeSet<IoHash> = outcomes
            .iter()
            .filter_map(|outcome| match outcome.op {
                Op::DeleteBlob(hash) | Op::DeleteForms(hash) => Some(hash),
                _ => None,
            })
            .collect();
        if self.is_told {
            outcomes.iter().for_each(|outcome| eprintln!("{}", outcome.line()));
            eprintln!("{upkeep:?}");
        }
        // A deleted buffer takes the content along that it holds.
        let is_gone = |id: &IoHash| {
            let forms = self.model.forms.get(id);
            deleted.contains(id) || forms.is_some_and(|forms| forms.iter().any(|form| deleted.contains(form)))
        };
        let may_be_gone = |id: &IoHash| may_remove || is_gone(id);
        let mut values = values;
        if may_remove && is_kept_up {
            for key in self.model.refs.keys() {
                values.entry(*key).or_insert_with(|| self.model.possible(key)).insert(None);
            }
        }
        for outcome in &outcomes {
            self.model.check(outcome, &values, &may_be_gone);
        }
        // Nothing removes attachments of refs that are still there.
        let attached: BTreeSet<IoHash> =
            self.model.attached().into_iter().filter(|id| self.model.holds(id) && !is_gone(id)).collect();
        let before = self.model.clone();
        self.model.learn(&outcomes);
        if may_remove {
            let evicts =
                |(place, upkeep): &(usize, Upkeep)| *place == 0 && matches!(upkeep, Upkeep::Evict(_));
            let may_remove_refs = self.expires && is_kept_up || upkeep.iter().any(evicts);
            self.learn_removals(&before, &attached, may_remove_refs);
            if self.nodes[0].is_dead() {
                self.model.forget_unheard(&outcomes);
            }
        }
        if let Some(bytes_max) = self.bytes_max {
            let size = self.nodes[0].store().size_of(&namespace()).expect("readable");
            assert!(size <= bytes_max, "{size} bytes in spite of the quota of {bytes_max}");
        }
    }

    /// Runs the operations, each on some node, until all are answered.
    fn run(&mut self, ops: &[Op], upkeep: &[(usize, Upkeep)]) -> Vec<Exchange> {
        let places = ops
            .iter()
            .map(|op| match self.shape == Shape::Edge && !op.is_read() {
                // An edge keeps uploads for itself.
                true => 0,
                false => self.rng.below(self.nodes.len() as u64) as usize,
            })
            .collect::<Vec<_>>();
        self.run_at(&places, ops, upkeep)
    }

    /// The same, each on the node of the same place.
    fn run_at(&mut self, places: &[usize], ops: &[Op], upkeep: &[(usize, Upkeep)]) -> Vec<Exchange> {
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let mut requests = Vec::new();
        for (place, op) in places.iter().zip(ops) {
            let node = &self.nodes[*place];
            requests.push((
                op.clone(),
                self.shape == Shape::Edge && *place == 1,
                Arc::clone(&node.service),
                Arc::clone(&node.is_dead),
                op.request(&mut self.rng),
            ));
        }
        let count = requests.len();
        let (rng, nodes) = (&mut self.rng, &self.nodes);
        let mut upkeep = upkeep.iter();
        let trouble = self.model.trouble;
        let slot = Arc::clone(&outcomes);
        self.runtime.block_on(async move {
            for (op, is_edge, service, is_dead, request) in requests {
                let outcomes = Arc::clone(&slot);
                tokio::spawn(async move {
                    let seen = Op::ask(service, request).await;
                    let is_unheard = is_dead.load(Ordering::Relaxed);
                    outcomes.lock().expect("no panic").push(Exchange { op, seen, is_unheard, is_edge });
                });
            }
            let mut steps = 0;
            while slot.lock().expect("no panic").len() < count {
                pause(rng.below(4)).await;
                if rng.chance(0.3)
                    && let Some((place, upkeep)) = upkeep.next()
                {
                    keep_up(&nodes[*place], *upkeep, trouble);
                }
                if rng.chance(0.6) {
                    nodes.iter().for_each(Node::commit);
                }
                steps += 1;
                assert!(steps < 100_000, "a request is never answered");
            }
            for (place, upkeep) in upkeep {
                keep_up(&nodes[*place], *upkeep, trouble);
            }
            // Tasks that outlive their answers end, too.
            pause(20).await;
            nodes.iter().for_each(Node::commit);
        });
        std::mem::take(&mut *outcomes.lock().expect("no panic"))
    }

    /// Blobs that nothing reached may be gone, and refs that expired; everything else is there.
    fn learn_removals(&mut self, before: &Model, attached: &BTreeSet<IoHash>, may_remove_refs: bool) {
        let store = self.nodes[0].store();
        let namespace = namespace();
        let bucket = BUCKET.parse().expect("a name");
        let mut removed = BTreeSet::new();
        for (key, possible) in &mut self.model.refs {
            if store.reference(&namespace, &bucket, key).expect("readable").is_none() {
                let was_there = !possible.contains(&None);
                assert!(!was_there || may_remove_refs || self.model.trouble.damage, "ref {key} was removed");
                // After the power has failed the removal is not durable; a change that failed may
                // be found to be made by the next start.
                possible.insert(None);
                if !self.nodes[0].is_dead() && !self.model.trouble.fails {
                    *possible = [None].into();
                }
                removed.insert(*key);
            } else if (self.nodes[0].is_dead() || self.model.trouble.fails) && may_remove_refs {
                possible.insert(None);
            }
        }
        self.model.blobs.retain(|hash| store.has_blob(&namespace, hash).expect("readable"));
        if !removed.is_empty() || self.model.trouble.fails || self.model.trouble.damage {
            return;
        }
        // A ref that the round replaced reaches nothing any more.
        let still = self.model.still_attached(before);
        for id in attached.intersection(&still) {
            let held = self.model.holds(id)
                || store.content(&namespace, id).expect("readable").is_some()
                || store.has_blob(&namespace, id).expect("readable");
            assert!(held, "{id} was removed although a ref reaches it; before: {}", before.holds(id));
        }
    }

    /// An eviction without requests beside it: what the folder may hold stays, and it is what was
    /// used last. A ref that goes takes along what only it reaches, however young that is.
    fn evict_alone(&mut self) {
        let trouble = self.model.trouble;
        if self.is_shared() || trouble.damage || trouble.fails || trouble.is_full {
            return;
        }
        let held = self.nodes[0].store().size_of(&namespace()).expect("readable");
        let bytes_max = 100 * (1 + held * (2 + self.rng.below(12)) / 1_000);
        let is_due = self.nodes[0].store().disk_bytes() >= bytes_max / 100 * FULL_PERCENT;
        let now = self.clock.now();
        let refs = self.nodes[0].service.longest_unused(1_000).expect("readable");
        let refs: Vec<_> = refs
            .into_iter()
            .filter_map(|unused| match unused.name {
                UnusedName::Ref(_, key) => Some((key, unused.used, self.reached_from(&key))),
                UnusedName::Blob(_) => None,
            })
            .collect();
        self.play(Vec::new(), vec![(0, Upkeep::Evict(bytes_max))]);
        let store = self.nodes[0].store();
        let size = store.size_of(&namespace()).expect("readable");
        assert!(!is_due || size * 100 <= bytes_max * 72, "{size} bytes stay of {bytes_max}");
        assert!(is_due || size == held, "nothing goes while the folder may hold it");
        let bucket = BUCKET.parse().expect("a name");
        let (stay, gone): (Vec<_>, Vec<_>) = refs
            .into_iter()
            .partition(|(key, ..)| store.reference(&namespace(), &bucket, key).expect("readable").is_some());
        let oldest = stay.iter().map(|(_, used, _)| *used).min();
        for (key, used, _) in &gone {
            let step = now.since(*used) / 4096;
            assert!(
                oldest.is_none_or(|oldest| used.since(oldest) <= step),
                "ref {key} went before older ones"
            );
        }
        let reached = |refs: &[(Key, Timestamp, BTreeSet<IoHash>)]| -> BTreeSet<IoHash> {
            refs.iter().flat_map(|(.., reached)| reached).copied().collect()
        };
        let (of_gone, of_stay) = (reached(&gone), reached(&stay));
        let left: Vec<&IoHash> = of_gone
            .difference(&of_stay)
            .filter(|hash| store.has_blob(&namespace(), hash).expect("readable"))
            .collect();
        // The marks of an eviction may take a blob for one that was used later.
        assert!(left.len() <= 1, "refs went, and what they reached stays: {left:?}");
    }

    /// Blobs that a ref reaches, in every form.
    fn reached_from(&self, key: &Key) -> BTreeSet<IoHash> {
        let store = self.nodes[0].store();
        let bucket = BUCKET.parse().expect("a name");
        let value = store.reference(&namespace(), &bucket, key).expect("readable").expect("it is listed");
        let mut reached = BTreeSet::from([value.object]);
        let object = &self.model.bytes[&value.object];
        for attachment in Document::parse(object).expect("it was put whole").attachments() {
            reached.insert(attachment.hash);
            reached.extend(store.forms(&namespace(), &attachment.hash).expect("readable"));
        }
        reached
    }

    // --- Disasters

    fn end_phase(&mut self, phase: u64) {
        let place = self.rng.below(self.nodes.len() as u64) as usize;
        let disaster = self.rng.below(12);
        if self.is_told {
            eprintln!("--- {disaster} on node {place}, {:?}", self.shape);
        }
        // A node whose data are elsewhere, too.
        let is_copy = self.is_shared() || place > 0;
        match (disaster, is_copy) {
            (0, _) => {
                let reindex = self.rng.chance(0.5);
                self.nodes[place].restart(reindex);
                self.set_rules();
            }
            (1..=3, _) => self.crash(place),
            (4..=5, false) => self.flip(),
            (4..=5, true) => self.damage_copies(place),
            (6, false) => self.fail_writes(),
            (6, true) => self.lose_folder(place),
            (7, false) => self.fill(),
            (8, _) => self.slow(place),
            (7..=9, _) if self.faults.is_some() => self.fail_connections(),
            (9, false) if self.damage_max == 0 => self.move_house(),
            (11, false) if self.damage_max == 0 && self.bytes_max.is_none() => match self.rng.below(3) {
                0 => self.zero_part_of_log(),
                1 => self.cut_log(),
                _ => self.lose_segment(),
            },
            // Later phases are checked less, so it is late.
            (10, false) if self.shape == Shape::Alone && phase + 2 >= PHASES => match self.rng.chance(0.5) {
                true => self.lie(),
                false => self.misdirect(),
            },
            _ => {}
        }
        self.check();
        if self.shape == Shape::Edge {
            self.check_edge();
        }
    }

    fn set_rules(&mut self) {
        let mut rules = Rules::default();
        if self.expires {
            rules.default.refs = RefPolicy::Ttl(MINUTE * 60 * (1 + self.rng.below(4) as u32));
        }
        if self.rng.chance(0.3) {
            rules.recheck = Duration::ZERO;
        }
        rules.upstream_fresh = FRESH;
        rules.quotas = Quotas::default();
        self.bytes_max = None;
        if self.has_quotas && self.rng.chance(0.15) {
            let held = self.nodes[0].store().size_of(&namespace()).expect("readable");
            let quota = (held + self.rng.below(20_000)).saturating_sub(5_000);
            rules.quotas.default = Some(quota);
            self.bytes_max = Some(quota.max(held));
        }
        self.model.trouble.is_full = self.bytes_max.is_some();
        for node in &self.nodes {
            node.service.set_rules(clone_rules(&rules));
        }
    }

    /// The power of a node fails at some write of the next rounds.
    fn crash(&mut self, place: usize) {
        self.nodes[place].fail_power_after(self.rng.below(120));
        for _ in 0..8 {
            self.round();
            if self.nodes[place].is_dead() {
                break;
            }
        }
        let node = &mut self.nodes[place];
        node.recover(&mut self.rng);
        self.set_rules();
    }

    /// A bit flips while the only node is stopped.
    fn flip(&mut self) {
        if self.damage_max > 0 && !self.model.trouble.forgets {
            // One bit cannot be in a directory and in what it names, so nothing becomes older.
            return;
        }
        self.nodes[0].store().checkpoint().expect("the disk works");
        let mut state = self.nodes[0].disk.state();
        let prefix = ["segments/", "segments/", "index/", "large/", ""][self.rng.below(5) as usize];
        if state.flip_a_bit(prefix, &mut self.rng).is_some() {
            self.damage_max = self.damage_max.saturating_add(BIT_KEYS_MAX);
            self.model.trouble.damage = true;
        }
        let reindex = self.rng.chance(0.5);
        self.nodes[0].restart_from(state, reindex);
        self.set_rules();
    }

    /// A part of the open segment reads as zeros after the process was killed.
    fn zero_part_of_log(&mut self) {
        let put = |world: &mut World| {
            let put = Op::PutRaw(world.key(), world.any_bytes());
            world.play(vec![put], Vec::new());
        };
        put(self);
        let Some((name, end)) = end_of_log(&self.nodes[0].disk) else { return };
        // The log goes on behind it.
        (0..3).for_each(|_| put(self));
        let disk = SimulatedDisk::new(self.nodes[0].disk.state());
        let from = self.rng.below(end);
        let len = (1 + self.rng.below(LOST_BYTES_MAX)).min(end - from);
        let file = disk.open(&name, false).expect("it is listed");
        file.write_at(&[IoSlice::new(&vec![0; len as usize])], from).expect("writable");
        file.sync().expect("a later power failure does not undo the damage");
        self.lose_records(disk, LOST_RECORDS_MAX);
    }

    /// A segment before the last is shorter after a clean stop than it was, or gone.
    fn lose_segment(&mut self) {
        self.nodes[0].store().checkpoint().expect("the disk works");
        let disk = SimulatedDisk::new(self.nodes[0].stop());
        let Some((last, _)) = end_of_log(&disk) else {
            return self.nodes[0].restart_from(disk.state(), false);
        };
        let names = disk.list("segments").expect("the folder exists");
        let mut names: Vec<String> = names.iter().map(|name| format!("segments/{name}")).collect();
        names.retain(|name| *name < last);
        if !names.is_empty() {
            let name = &names[self.rng.below(names.len() as u64) as usize];
            let file = disk.open(name, false).expect("it is listed");
            match self.rng.chance(0.5) {
                true => {
                    disk.remove(name).expect("it is listed");
                    disk.sync_dir("segments").expect("a later power failure does not bring it back");
                }
                false => {
                    let len = file.len().expect("known");
                    file.set_len(self.rng.below(len.max(1))).expect("writable");
                    file.sync().expect("a later power failure does not undo this");
                }
            }
        }
        self.lose_records(disk, SEGMENT_RECORDS_MAX);
    }

    /// The end of the log is missing after a clean stop, or reads as zeros.
    fn cut_log(&mut self) {
        self.nodes[0].store().checkpoint().expect("the disk works");
        let disk = SimulatedDisk::new(self.nodes[0].stop());
        let Some((name, end)) = end_of_log(&disk) else {
            return self.nodes[0].restart_from(disk.state(), false);
        };
        let file = disk.open(&name, false).expect("it is listed");
        let len = file.len().expect("known");
        file.set_len(end - (1 + self.rng.below(LOST_BYTES_MAX)).min(end)).expect("writable");
        if self.rng.chance(0.5) {
            file.set_len(len).expect("writable");
        }
        file.sync().expect("a later power failure does not undo this");
        self.lose_records(disk, LOST_RECORDS_MAX);
    }

    /// Starts with a disk that lost so many records at most.
    fn lose_records(&mut self, disk: SimulatedDisk, records_max: usize) {
        self.damage_max = self.damage_max.saturating_add(BIT_KEYS_MAX * records_max);
        self.model.trouble.damage = true;
        let reindex = self.rng.chance(0.5);
        self.nodes[0].restart_from(disk.state(), reindex);
        self.set_rules();
    }

    /// Copies of what the bucket has are damaged in every way.
    fn damage_copies(&mut self, place: usize) {
        self.nodes[place].store().checkpoint().expect("the disk works");
        let mut state = self.nodes[place].disk.state();
        for _ in 0..1 + self.rng.below(5) {
            match self.rng.chance(0.7) {
                true => drop(state.flip_a_bit("", &mut self.rng)),
                false => drop(state.misdirect("", &mut self.rng)),
            }
        }
        let reindex = self.rng.chance(0.5);
        self.nodes[place].restart_from(state, reindex);
        self.set_rules();
    }

    /// A node starts with an empty folder.
    fn lose_folder(&mut self, place: usize) {
        self.nodes[place].restart_from(DiskState::default(), false);
        self.set_rules();
    }

    /// Writes and syncs fail, perhaps in part.
    fn fail_writes(&mut self) {
        let mut rng = Rng::new(self.rng.next_u64());
        self.nodes[0].disk.set_hook(Some(Box::new(move |_| match rng.chance(0.05) {
            true => Err(std::io::ErrorKind::Other.into()),
            false => Ok(()),
        })));
        self.model.trouble.fails = true;
        for _ in 0..self.rng.below(8) {
            self.round();
        }
        // Removals that failed may be found to be made.
        let attached = self.model.attached();
        let is_attached = |hash: &IoHash| {
            let forms = self.model.forms.iter().filter(|(id, _)| attached.contains(*id));
            attached.contains(hash) || forms.into_iter().any(|(_, forms)| forms.contains(hash))
        };
        let kept: BTreeSet<IoHash> =
            self.model.blobs.iter().filter(|hash| is_attached(hash)).copied().collect();
        self.model.blobs = kept;
        if self.rng.chance(0.5) {
            let node = &mut self.nodes[0];
            node.recover(&mut self.rng);
        } else {
            self.nodes[0].disk.set_hook(None);
            let reindex = self.rng.chance(0.3);
            self.nodes[0].restart(reindex);
        }
        self.model.trouble.fails = false;
        self.set_rules();
    }

    /// The bucket or the upstream fails.
    fn fail_connections(&mut self) {
        let faults = self.faults.clone().expect("a connection");
        faults.set_fails(true);
        let calm = self.model.trouble;
        self.model.trouble = Trouble { fails: true, is_garbled: true, ..calm };
        for _ in 0..self.rng.below(8) {
            self.round();
        }
        faults.set_fails(false);
        self.model.trouble = calm;
    }

    /// Every write takes seconds.
    fn slow(&mut self, place: usize) {
        let (mut rng, clock) = (Rng::new(self.rng.next_u64()), Arc::clone(&self.clock));
        self.nodes[place].disk.set_hook(Some(Box::new(move |_| {
            clock.advance(Duration::from_millis(rng.below(20_000)));
            Ok(())
        })));
        for _ in 0..self.rng.below(8) {
            self.round();
        }
        self.nodes[place].disk.set_hook(None);
    }

    /// The disk says that it synced what it did not; then its power fails.
    fn lie(&mut self) {
        self.forget();
        self.nodes[0].disk.set_lies(true);
        for _ in 0..1 + self.rng.below(8) {
            self.round();
        }
        self.nodes[0].recover(&mut self.rng);
        self.set_rules();
    }

    /// Sectors were written in the places of others.
    fn misdirect(&mut self) {
        self.forget();
        self.nodes[0].store().checkpoint().expect("the disk works");
        let mut state = self.nodes[0].disk.state();
        for _ in 0..1 + self.rng.below(3) {
            let prefix = ["segments/", "index/", ""][self.rng.below(3) as usize];
            state.misdirect(prefix, &mut self.rng);
        }
        let reindex = self.rng.chance(0.5);
        self.nodes[0].restart_from(state, reindex);
        self.set_rules();
    }

    /// From now on a key may have any value that it ever had.
    fn forget(&mut self) {
        self.model.trouble.forgets = true;
        self.model.trouble.damage = true;
        self.damage_max = usize::MAX;
    }

    /// The disk has little or no space: uploads may be refused, nothing else is.
    fn fill(&mut self) {
        let node = &self.nodes[0];
        node.store().look_at_disk();
        let free = node.disk.free_bytes().expect("known").expect("it has an end");
        node.disk.set_capacity(Some(DISK_BYTES - free + self.rng.below(3_000)));
        self.model.trouble.is_full = true;
        for _ in 0..self.rng.below(8) {
            self.round();
        }
        self.nodes[0].disk.set_capacity(Some(DISK_BYTES));
        self.nodes[0].store().look_at_disk();
        self.model.trouble.is_full = self.bytes_max.is_some();
    }

    /// Everything is exported, and another folder takes it in.
    fn move_house(&mut self) {
        let mut exported = Vec::new();
        Transfer::export(self.nodes[0].store(), None, &mut exported).expect("nothing is damaged");
        let disk = SimulatedDisk::new(DiskState::default());
        let role = self.nodes[0].role.clone();
        let node = Node::new(disk, &self.clock, &role, self.settings);
        node.service.import(&mut &exported[..]).expect("an export");
        self.nodes[0] = node;
        self.model.resolve_again();
        self.set_rules();
    }

    // --- Checks

    /// Once the edge believes nothing without a question any more, it serves what the upstream has.
    fn check_edge(&mut self) {
        self.clock.advance(FRESH + upstream::MISS + Duration::from_secs(31));
        // No request waits for the probe that finds out that the upstream answers again.
        for _ in 0..10 {
            self.read_at(1, Op::GetBlob(IoHash::of(b"nowhere")));
        }
        for hash in self.model.blobs.clone() {
            let outcome = self.read_at(1, Op::GetBlob(hash));
            assert!(outcome.seen.status.is_success(), "the edge does not get blob {hash}");
        }
        for key in self.model.refs.keys().copied().collect::<Vec<_>>() {
            let Exchange { seen, .. } = self.read_at(1, Op::GetRef(key));
            let found = seen.status.is_success().then(|| IoHash::of(&seen.body));
            let is_served = |value: &Option<Value>| {
                value.filter(|value| value.finalised).map(|value| value.object) == found
            };
            let possible = self.model.possible(&key);
            assert!(possible.iter().any(is_served), "ref {key} at the edge is {found:?}, not {possible:?}");
        }
    }

    /// Reads everything by requests. After damage a key may be missing, and stays so.
    fn check(&mut self) {
        let mut missing = Vec::new();
        for hash in self.model.blobs.clone() {
            if !self.reads(Op::GetBlob(hash)) {
                self.model.blobs.remove(&hash);
                missing.push(hash.to_string());
            }
        }
        for id in self.model.forms.keys().copied().collect::<Vec<_>>() {
            if !self.reads(Op::GetForm(id)) && self.model.holds(&id) {
                self.model.forms.remove(&id);
                missing.push(id.to_string());
            }
        }
        for key in self.model.refs.keys().copied().collect::<Vec<_>>() {
            let outcome = self.read(Op::GetRef(key));
            let possible = self.model.possible(&key);
            let found = match outcome.seen.status.as_u16() {
                404 => None,
                status => {
                    let is_found = |value: &Value| match status {
                        200 => value.finalised && value.object == IoHash::of(&outcome.seen.body),
                        _ => !value.finalised,
                    };
                    possible.iter().flatten().copied().find(|value| is_found(value))
                }
            };
            if !possible.contains(&found) {
                missing.push(key.to_string());
            }
            // Of several values that are not finalised, the answer does not tell which it is.
            let is_same = |value: &Option<Value>| match (value, found) {
                (Some(value), Some(found)) => {
                    value.finalised == found.finalised && (!found.finalised || *value == found)
                }
                (None, None) => true,
                _ => false,
            };
            let mut left: Possible = possible.into_iter().filter(is_same).collect();
            if left.is_empty() {
                left.insert(None);
            }
            self.model.refs.insert(key, left);
        }
        self.lost = self.lost.saturating_add(missing.len());
        assert!(self.lost <= self.damage_max, "damage of {} keys at most took {missing:?}", self.damage_max);
    }

    fn reads(&mut self, op: Op) -> bool {
        self.read(op).seen.status.is_success()
    }

    /// One request by itself, checked.
    fn read(&mut self, op: Op) -> Exchange {
        let place = if self.is_shared() { self.rng.below(2) as usize } else { 0 };
        self.read_at(place, op)
    }

    fn read_at(&mut self, place: usize, op: Op) -> Exchange {
        let outcome = self.run_at(&[place], std::slice::from_ref(&op), &[]).pop().expect("an answer");
        self.model.check(&outcome, &BTreeMap::new(), &|_| false);
        outcome
    }

    /// Without faults everything can be stored, and all garbage goes.
    fn heal(&mut self) {
        (self.expires, self.has_quotas) = (false, false);
        self.set_rules();
        let put = Op::PutRaw(self.key(), self.any_bytes());
        self.play(vec![put], Vec::new());
        self.check();
        let keys: Vec<Key> = self.model.refs.keys().copied().collect();
        self.play(keys.into_iter().map(Op::DeleteRef).collect(), Vec::new());
        self.check();
        if self.is_shared() {
            return;
        }
        self.clock.advance(MINUTE * 600);
        self.nodes[0].service.forget_events(Duration::ZERO);
        for _ in 0..3 {
            self.play(Vec::new(), vec![(0, Upkeep::Collect)]);
        }
        assert!(self.model.blobs.is_empty(), "no ref reaches anything");
        let store = self.nodes[0].store();
        let bytes = store.disk_bytes() - store.index_bytes();
        // The open segment has room for the largest record; damaged files stay in quarantine.
        assert!(bytes < 40_000 || self.damage_max > 0, "{bytes} bytes are still used");
    }
}

/// The last segment that has records, and where they end.
fn end_of_log(disk: &SimulatedDisk) -> Option<(String, u64)> {
    let names = disk.list("segments").expect("the folder exists");
    names.iter().rev().find_map(|name| {
        let name = format!("segments/{name}");
        let file = disk.open(&name, false).expect("it is listed");
        let mut bytes = vec![0; file.len().expect("known") as usize];
        file.read_at(&mut bytes, 0).expect("readable");
        bytes.iter().rposition(|byte| *byte != 0).map(|last| (name, last as u64 + 1))
    })
}

/// Does maintenance on a node. It fails only while the disk does.
fn keep_up(node: &Node, upkeep: Upkeep, trouble: Trouble) {
    let service: &Arc<Service> = &node.service;
    let done = match upkeep {
        Upkeep::Collect => service.collect().map(drop),
        Upkeep::Evict(bytes_max) => service.evict(bytes_max).map(drop),
        Upkeep::Scrub => service.scrub(1 << 20).map(drop),
        Upkeep::Checkpoint => node.store().checkpoint(),
        // It writes as much as it merges: a full disk has no space for that.
        Upkeep::Merge => {
            node.store().merge().or_else(|error| if trouble.is_full { Ok(()) } else { Err(error) })
        }
        Upkeep::NoteAccesses => {
            service.note_accesses();
            Ok(())
        }
        Upkeep::LookAtDisk => {
            node.store().look_at_disk();
            Ok(())
        }
    };
    assert!(done.is_ok() || trouble.fails, "{upkeep:?}: {done:?}");
}

fn clone_rules(rules: &Rules) -> Rules {
    Rules {
        default: rules.default.clone(),
        recheck: rules.recheck,
        upstream_fresh: rules.upstream_fresh,
        quotas: rules.quotas.clone(),
        ..Rules::default()
    }
}

/// Lets other tasks go on.
async fn pause(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}
