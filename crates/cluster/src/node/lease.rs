//! The lease of this node, and the marking of others.

use std::time::Duration;

use throng_stdx::Instant;

use crate::cas::{Known, Noted};
use crate::defect::Defect;
use crate::directory::{Decided, DirectoryResult, Entry, Slot};
use crate::name::Name;
use crate::node::worlds::Stage;
use crate::node::{EndReason, Event, Failure, Flight, Node};
use crate::record::{NodeRecord, NodeState};
use crate::times::{FREEZE, LOSS, RENEWAL};

/// Changes of its record after which the holder of a name is alive. Fewer may be the last writes
/// of a dead process: one that was read late, one that was applied late.
const CHANGES_OF_THE_LIVING: u32 = 3;

#[derive(Debug)]
pub(super) enum Phase {
    /// The node wants its name.
    Joining(Joining),
    /// It holds its name.
    Up,
    /// It has failed or left.
    Over,
}

/// Observation of the process that holds the node's name.
#[derive(Debug, Default)]
pub(super) struct Joining {
    /// Revision of its record, and reading of the stopwatch since which it is unchanged.
    seen: Option<(u64, Duration)>,
    changes: u32,
    next_read: Option<Instant>,
}

/// The name, held by this process.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) incarnation: u64,
    /// Time at which the last successful renewal was sent.
    renewed: Instant,
    /// Time of the next renewal.
    pub(super) due: Instant,
    /// It ran out, and has not been renewed since.
    pub(super) has_lapsed: bool,
    is_patience_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeWrite {
    Take { incarnation: u64 },
    Renew,
    Leave,
    MarkLost,
}

impl Noted for NodeRecord {
    fn nonce(&self) -> u64 {
        self.nonce
    }
}

impl Entry for NodeRecord {
    fn ordinal(&self) -> u64 {
        self.incarnation
    }

    fn bytes(&self) -> Vec<u8> {
        self.to_bytes()
    }

    fn parse(bytes: &[u8]) -> Result<NodeRecord, String> {
        NodeRecord::parse(bytes)
    }

    fn set_nonce(&mut self, nonce: u64) {
        self.nonce = nonce;
    }
}

impl Node {
    /// Time until which this node may serve without another renewal; `None` without its name. The
    /// driver publishes it to other threads along with [`Node::incarnation`]: it is the lease of
    /// that incarnation's worlds, and a thread may still have worlds of an earlier one.
    #[must_use]
    pub fn serves_until(&self) -> Option<Instant> {
        self.lease.as_ref().filter(|lease| !lease.has_lapsed).map(|lease| lease.renewed + FREEZE)
    }

    /// Returns whether the lease holds at `now`, so that the worlds of this incarnation may be
    /// served. A thread that does not own the node compares [`Node::serves_until`] with its clock,
    /// before every round.
    #[must_use]
    pub fn may_serve(&self, now: Instant) -> bool {
        self.serves_until().is_some_and(|end| now <= end || self.has(Defect::BlindAfterStandstill))
    }

    /// The incarnation of this node; `None` without its name.
    #[must_use]
    pub fn incarnation(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| lease.incarnation)
    }

    /// Notices the end of the lease.
    pub(super) fn check_lease(&mut self, now: Instant) {
        let Some(lease) = &mut self.lease else { return };
        let end = lease.renewed + FREEZE;
        if !lease.has_lapsed && now > end {
            lease.has_lapsed = true;
            self.stats.lapses += 1;
            self.events.push_back(Event::Lapsed { incarnation: lease.incarnation });
            for held in self.held.values_mut() {
                held.is_unread = true;
                if matches!(held.stage, Stage::Serving | Stage::Frozen { .. }) {
                    held.stage = Stage::Frozen { is_reading: false };
                }
            }
        }
        if lease.has_lapsed && !lease.is_patience_over && now > end + self.setup.patience {
            lease.is_patience_over = true;
            self.events.push_back(Event::PatienceOver);
        }
    }

    pub(super) fn lease_timeout(&self) -> Option<Instant> {
        let tick = Duration::from_nanos(1);
        let own = self.nodes.get(&self.setup.node);
        let is_idle = own.is_none_or(Slot::is_idle);
        match (&self.phase, &self.lease) {
            (Phase::Joining(joining), _) if self.is_synced && is_idle => joining.next_read,
            (Phase::Up, Some(lease)) => {
                let renewal = is_idle.then_some(lease.due);
                let end = lease.renewed + FREEZE + tick;
                let check = if !lease.has_lapsed {
                    Some(end)
                } else if !lease.is_patience_over {
                    Some(end + self.setup.patience)
                } else {
                    None
                };
                [renewal, check].into_iter().flatten().min()
            }
            _ => None,
        }
    }

    pub(super) fn step_lease(&mut self, now: Instant) {
        match self.phase {
            Phase::Over => {}
            Phase::Joining(_) => self.join(now),
            Phase::Up => self.renew(now),
        }
    }

    fn renew(&mut self, now: Instant) {
        let Some(lease) = &self.lease else { return };
        let (due, incarnation) = (lease.due, lease.incarnation);
        let name = self.setup.node.clone();
        let own = self.nodes.get(&name);
        let is_idle = own.is_none_or(Slot::is_idle);
        if is_idle && self.drain.leaves {
            self.write_own(now, incarnation, NodeState::Left, NodeWrite::Leave);
        } else if is_idle && now >= due {
            let state = if self.drain.is_active() { NodeState::Draining } else { NodeState::Up };
            self.write_own(now, incarnation, state, NodeWrite::Renew);
        }
        self.pump_node(now, &name);
    }

    /// The next renewal is due now, because the record has changed.
    pub(super) fn renew_soon(&mut self, now: Instant) {
        if let Some(lease) = &mut self.lease {
            lease.due = lease.due.min(now);
        }
    }

    fn write_own(&mut self, now: Instant, incarnation: u64, state: NodeState, purpose: NodeWrite) {
        let nonce = self.nonce();
        let worlds = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let mut record = NodeRecord { incarnation, nonce, state, worlds, ..self.setup.record.clone() };
        if now < self.full_until {
            record.free_worlds = 0;
        }
        let reading = self.stopwatch.reading();
        let slot = self.nodes.entry(self.setup.node.clone()).or_insert_with(|| Slot::new(now, reading));
        slot.submit(now, Some(record), purpose);
    }

    /// Looks at the record of the node's own name, takes the name when it is free.
    fn join(&mut self, now: Instant) {
        if !self.is_synced {
            return;
        }
        let want = &self.setup.cluster;
        match &self.cluster {
            Known::Record(is)
                if (is.format, &is.name, &is.key_id) == (want.format, &want.name, &want.key_id) => {}
            Known::Record(other) => return self.fail(Failure::OtherCluster(other.clone())),
            Known::Absent | Known::Foreign => return self.fail(Failure::NoCluster),
        }
        let name = self.setup.node.clone();
        let reading = self.stopwatch.reading();
        let slot = self.nodes.entry(name.clone()).or_insert_with(|| Slot::new(now, reading));
        let (revision, pending) = (slot.revision, slot.pending.is_some() || slot.flight.is_some());
        let known = slot.known.clone();
        if pending {
            return self.pump_node(now, &name);
        }
        let own = &self.setup.record;
        let incarnation = match known {
            // Behind every incarnation that the directory has forgotten.
            Known::Absent => self.revision_max.max(1),
            // Its holder renews it by the same times, so it is waited for like any other.
            Known::Foreign => match self.watch_holder(now, revision) {
                Some(true) => self.revision_max.max(1),
                Some(false) => return self.fail(Failure::NameUnreadable),
                None => return self.pump_node(now, &name),
            },
            Known::Record(record) => {
                // With the lock of the folder, the process of that record is dead.
                let is_restart =
                    self.setup.has_lock && record.folder == own.folder && record.boot == own.boot;
                if record.is_live() && !is_restart && !self.has(Defect::TakeHeldName) {
                    match self.watch_holder(now, revision) {
                        Some(true) => {}
                        Some(false) => return self.fail(Failure::NameHeld(record)),
                        None => return self.pump_node(now, &name),
                    }
                }
                record.incarnation.saturating_add(1)
            }
        };
        // Worlds may name an incarnation whose record the directory has lost.
        let named = self.absent_home(&name).map_or(0, |record| record.incarnation.saturating_add(1));
        let incarnation = incarnation.max(named);
        self.write_own(now, incarnation, NodeState::Up, NodeWrite::Take { incarnation });
        self.pump_node(now, &name);
    }

    /// Watches the process that holds the node's name: returns true if it is lost, false if it is
    /// alive, `None` while that is open.
    fn watch_holder(&mut self, now: Instant, revision: u64) -> Option<bool> {
        let reading = self.stopwatch.reading();
        let Phase::Joining(joining) = &mut self.phase else { return None };
        match &mut joining.seen {
            Some((seen, since)) if *seen == revision => {
                if reading.saturating_sub(*since) >= LOSS {
                    return Some(true);
                }
            }
            seen => {
                joining.changes += u32::from(seen.is_some());
                *seen = Some((revision, reading));
                if joining.changes >= CHANGES_OF_THE_LIVING {
                    return Some(false);
                }
            }
        }
        if joining.next_read.is_none_or(|at| at <= now) {
            joining.next_read = Some(now + RENEWAL);
            if let Some(slot) = self.nodes.get_mut(&self.setup.node) {
                slot.wants_read = true;
            }
        }
        None
    }

    fn fail(&mut self, failure: Failure) {
        self.phase = Phase::Over;
        self.events.push_back(Event::Failed(failure));
    }

    /// All worlds end: the lease is another's.
    fn depose(&mut self, now: Instant) {
        self.stats.deposed += 1;
        let ended = self.lease.take();
        if let Some(own) = self.nodes.get_mut(&self.setup.node) {
            own.pending = None;
        }
        self.end_all(EndReason::Deposed);
        if let Some(Lease { incarnation, .. }) = ended {
            self.events.push_back(Event::Deposed { incarnation });
        }
        if self.drain.is_active() {
            self.phase = Phase::Over;
            self.events.push_back(Event::Left);
        } else {
            self.phase = Phase::Joining(Joining::default());
            self.drain = super::Drain::default();
            self.step_lease(now);
        }
    }

    pub(super) fn end_all(&mut self, why: EndReason) {
        while let Some((world, held)) = self.held.pop_first() {
            self.dirty_worlds.insert(world.clone());
            self.events.push_back(held.end(world, why.clone()));
        }
    }

    /// The directory has lost writes: the renewal in flight is void, the next one follows at once.
    pub(super) fn forget_own_write(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.due = Instant::ZERO;
        }
        if let Phase::Joining(joining) = &mut self.phase {
            *joining = Joining::default();
        }
    }

    pub(super) fn learn_node(&mut self, now: Instant, name: &Name, revision: u64, known: Known<NodeRecord>) {
        let reading = self.stopwatch.reading();
        let believes_older = self.has(Defect::BelieveOlder);
        let is_renewal = self.is_renewal(name);
        let slot = self.nodes.entry(name.clone()).or_insert_with(|| Slot::new(now, reading));
        let before = slot.known.record().map(|record| (record.incarnation, record.state));
        let expected = slot.pending.as_ref().map(|pending| pending.expected);
        if revision <= slot.revision && !believes_older {
            return;
        }
        let decided = if expected.is_some_and(|expected| expected < revision) {
            slot.weigh(revision, &known, is_renewal)
        } else {
            Decided::Nothing
        };
        let was_silent = reading.saturating_sub(slot.since) > FREEZE;
        slot.set(now, reading, revision, known);
        if was_silent {
            // Arrivals wait for its worlds.
            self.dirty_worlds.extend(self.by_home.get(name).into_iter().flatten().cloned());
        }
        self.after_node(now, name, before, decided);
    }

    pub(super) fn on_node_result(
        &mut self,
        now: Instant,
        name: &Name,
        flight: &Flight,
        result: DirectoryResult,
    ) {
        let is_renewal = self.is_renewal(name);
        let (reading, silence) = (self.stopwatch.reading(), self.silence());
        if *name == self.setup.node
            && matches!(self.phase, Phase::Joining(_))
            && matches!(result, DirectoryResult::Found { .. })
        {
            self.stopwatch.answered(flight.sent);
        }
        let Some(slot) = self.nodes.get_mut(name) else { return };
        let before = slot.known.record().map(|record| (record.incarnation, record.state));
        let decided = slot.handle_result(now, reading, flight.nonce, result, silence, is_renewal);
        self.after_node(now, name, before, decided);
    }

    /// Returns whether the write in flight to a record renews this node's lease.
    fn is_renewal(&self, name: &Name) -> bool {
        *name == self.setup.node
            && self.lease.is_some()
            && self
                .nodes
                .get(name)
                .and_then(|own| own.pending.as_ref())
                .is_some_and(|pending| matches!(pending.purpose, NodeWrite::Renew | NodeWrite::Leave))
    }

    /// Acts on a change of a node's record.
    fn after_node(
        &mut self,
        now: Instant,
        name: &Name,
        before: Option<(u64, NodeState)>,
        decided: Decided<NodeRecord, NodeWrite>,
    ) {
        if let Decided::Applied(pending) = decided {
            let sent = if self.has(Defect::FreezeFromAnswer) { now } else { pending.sent };
            match pending.purpose {
                NodeWrite::Take { incarnation } => {
                    self.lease = Some(Lease {
                        incarnation,
                        renewed: sent,
                        due: pending.sent + RENEWAL,
                        has_lapsed: false,
                        is_patience_over: false,
                    });
                    self.phase = Phase::Up;
                    self.stopwatch.answered(pending.sent);
                    self.events.push_back(Event::Up { incarnation });
                    self.check_lease(now);
                    self.consider_all();
                    self.on_drain_record(now);
                }
                NodeWrite::Renew => self.renewed(now, pending.sent, sent),
                NodeWrite::Leave => {
                    self.phase = Phase::Over;
                    self.lease = None;
                    self.end_all(EndReason::Left);
                    self.events.push_back(Event::Left);
                }
                NodeWrite::MarkLost => self.stats.marks += 1,
            }
        }
        if *name == self.setup.node {
            self.check_own(now);
        }
        let after = self.nodes.get(name).and_then(|slot| slot.known.record());
        if before != after.map(|record| (record.incarnation, record.state)) {
            self.dirty_worlds.extend(self.by_home.get(name).into_iter().flatten().cloned());
        }
        self.dirty_nodes.insert(name.clone());
    }

    fn renewed(&mut self, now: Instant, first_sent: Instant, counted_from: Instant) {
        self.stats.renewals += 1;
        let decided_before = self.stopwatch.runs(now);
        self.stopwatch.answered(first_sent);
        let Some(lease) = &mut self.lease else { return };
        lease.renewed = lease.renewed.max(counted_from);
        lease.due = first_sent + RENEWAL;
        let thaws = lease.has_lapsed && now <= lease.renewed + FREEZE;
        if thaws {
            (lease.has_lapsed, lease.is_patience_over) = (false, false);
        }
        if thaws || !decided_before {
            // Everything that was left undecided meanwhile.
            self.consider_all();
        }
    }

    /// Notices that the node's own record is another's.
    fn check_own(&mut self, now: Instant) {
        let Some(lease) = &self.lease else { return };
        let Some(own) = self.nodes.get(&self.setup.node) else { return };
        let is_lost = match &own.known {
            // The directory has lost it: the next renewal writes it again.
            Known::Absent => false,
            Known::Foreign => true,
            Known::Record(record) => record.incarnation != lease.incarnation || !self.is_mine(record.nonce),
        };
        if is_lost {
            self.depose(now);
        }
    }

    /// Marks a node whose record has been silent for too long.
    pub(super) fn consider_node(&mut self, now: Instant, name: &Name) {
        if *name == self.setup.node {
            return self.pump_node(now, name);
        }
        let loss = if self.has(Defect::MarkEarly) { FREEZE } else { LOSS };
        let reading = self.stopwatch.reading();
        let decides = self.decides(now);
        let Some(slot) = self.nodes.get(name) else { return };
        if slot.pending.is_none() {
            let lost = match &slot.known {
                Known::Record(record) if record.is_live() => Some(record.clone()),
                // A home without a record: the directory has lost it. One with a record that cannot
                // be read holds a lease all the same, which its revisions show, and whose
                // incarnation is below the revision.
                Known::Absent => self.absent_home(name),
                Known::Foreign => self.absent_home(name).map(|home| {
                    let incarnation = home.incarnation.max(slot.revision);
                    NodeRecord { incarnation, ..home }
                }),
                Known::Record(_) => None,
            };
            let Some(mut lost) = lost else { return };
            let silence = reading.saturating_sub(slot.since);
            if silence < loss || !decides {
                let wait = loss.saturating_sub(silence).max(RENEWAL / 10);
                return self.wake_node(name, now + wait);
            }
            if self.has(Defect::ClaimWithoutMark) {
                self.dirty_worlds.extend(self.by_home.get(name).into_iter().flatten().cloned());
                return self.wake_node(name, now + RENEWAL);
            }
            (lost.state, lost.nonce) = (NodeState::Lost, self.nonce());
            if let Some(slot) = self.nodes.get_mut(name) {
                slot.submit(now, Some(lost), NodeWrite::MarkLost);
            }
        }
        self.pump_node(now, name);
    }

    /// The record of a node that worlds name as their home, although it has none.
    fn absent_home(&self, name: &Name) -> Option<NodeRecord> {
        let worlds = self.by_home.get(name)?.iter().filter_map(|world| self.world(world));
        let incarnation =
            worlds.filter(|world| world.home.node == *name).map(|world| world.home.incarnation).max()?;
        Some(NodeRecord {
            incarnation,
            nonce: 0,
            state: NodeState::Lost,
            addresses: Vec::new(),
            release: String::new(),
            folder: String::new(),
            boot: String::new(),
            labels: Default::default(),
            classes: Default::default(),
            load_permille: 0,
            worlds: 0,
            worlds_max: 0,
            free_worlds: 0,
            rest: Default::default(),
        })
    }
}
