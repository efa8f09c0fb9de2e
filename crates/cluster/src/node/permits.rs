//! Permits: the limit of the worlds of a class.
//!
//! A class with at most `n` worlds has `n` permits, which are keys of the directory. A node writes
//! the name of a world into one of them before it opens the world, so nodes that want to open the
//! last world of a class compare-and-set the same key.
//!
//! Revisions of all keys are from one sequence, so they order writes to different keys:
//!
//! - A world that is closed at revision `c` is opened only by the node whose own permit names it at
//!   a revision behind `c`. The record of the world names the permit.
//! - A permit at revision `p` is free if the world that it names is closed at a revision behind
//!   `p`. No write that opens the world with this permit can be applied any more.
//! - A node may end between the two writes. Its permit is freed by closing the world that it names:
//!   that moves the world's revision behind the permit.
//!
//! The node that closes a world deletes its permit. The record of a world counts as its permit, so
//! the worlds that homes write again after the directory has lost its data keep their numbers;
//! until then the class may exceed the limit.
//!
//! A lowered limit leaves worlds with greater numbers behind. A class of `n` worlds then takes only
//! its first `k` permits, the greatest `k` for which `k` and the worlds with other numbers are no
//! more than `n`: so nodes that open the last world compare-and-set the same key again.

use std::collections::BTreeMap;

use throng_stdx::Instant;

use crate::cas::{Known, Noted};
use crate::defect::Defect;
use crate::directory::{DirectoryResult, Entry, Slot};
use crate::name::Name;
use crate::node::choice::weight;
use crate::node::{Flight, Node, WorldWrite};
use crate::record::{PermitRecord, WorldRecord, WorldState};
use crate::times::LAPSE;

/// Class and number of a permit.
pub(super) type PermitId = (Name, u32);
pub(super) type PermitSlot = Slot<PermitRecord, ()>;

impl Noted for PermitRecord {
    fn nonce(&self) -> u64 {
        self.nonce
    }
}

impl Entry for PermitRecord {
    // Only the mark of a deletion that was purged itself may be replaced by its absence.
    fn ordinal(&self) -> u64 {
        0
    }

    fn bytes(&self) -> Vec<u8> {
        self.to_bytes()
    }

    fn parse(bytes: &[u8]) -> Result<PermitRecord, String> {
        PermitRecord::parse(bytes)
    }

    fn set_nonce(&mut self, nonce: u64) {
        self.nonce = nonce;
    }
}

/// Answer to the wish to open a world.
pub(super) enum Permit {
    /// The class has no limit.
    Unlimited,
    /// This node holds this permit for the world, written at this revision.
    Held(u32, u64),
    /// The node is taking a permit.
    Taking,
    /// All permits of the class are taken.
    Exhausted,
}

impl Node {
    /// The permit to open a world that is closed. Takes one if the node has none.
    pub(super) fn permit(&mut self, now: Instant, world: &Name, class: &Name) -> Permit {
        let max = self.setup.classes.get(class).and_then(|class| class.worlds_max);
        let Some(max) = max.filter(|_| !self.has(Defect::OpenWithoutPermit)) else {
            return Permit::Unlimited;
        };
        let closed_at = self.worlds.get(world).map_or(0, |slot| slot.revision);
        if let Some(id) = self.openings.get(world) {
            let Some(slot) = self.permits.get(id) else { return Permit::Taking };
            if !slot.is_idle() {
                return Permit::Taking;
            }
            if id.0 == *class && slot.revision > closed_at && self.is_own(slot, world) {
                return Permit::Held(id.1, slot.revision);
            }
            self.give_back(now, world);
        }
        let Some(number) = self.free_permit(world, class, max) else {
            self.close_unopened(now, class);
            return Permit::Exhausted;
        };
        let (id, nonce) = ((class.clone(), number), self.nonce());
        let record = PermitRecord { world: world.clone(), nonce, rest: Default::default() };
        self.openings.insert(world.clone(), id.clone());
        self.permit_slot(now, &id).submit(now, Some(record), ());
        self.pump_permit(now, &id);
        Permit::Taking
    }

    /// Returns whether this node wrote the permit, for this world.
    fn is_own(&self, slot: &PermitSlot, world: &Name) -> bool {
        slot.known.record().is_some_and(|permit| permit.world == *world && self.is_mine(permit.nonce))
    }

    fn permit_slot(&mut self, now: Instant, id: &PermitId) -> &mut PermitSlot {
        let reading = self.stopwatch.reading();
        self.permits.entry(id.clone()).or_insert_with(|| Slot::new(now, reading))
    }

    /// A permit of the class that is free. Nodes begin at different ones.
    fn free_permit(&self, world: &Name, class: &Name, max: u32) -> Option<u32> {
        let used = self.used_permits(class);
        let mut most = used.values().sum::<u32>();
        let mut end = 0;
        while end < max && most <= max {
            most += u32::from(!used.contains_key(&end));
            end += u32::from(most <= max);
        }
        if end == 0 {
            return None;
        }
        let first = weight(world, &self.setup.node) % u64::from(end);
        let mut numbers = (0..u64::from(end)).map(|step| ((first + step) % u64::from(end)) as u32);
        numbers.find(|number| !used.contains_key(number))
    }

    /// Worlds of a class by their permits: those that are open, and those that a node may open.
    fn used_permits(&self, class: &Name) -> BTreeMap<u32, u32> {
        let mut used = BTreeMap::new();
        for (_, record) in self.worlds() {
            if record.class == *class && record.state != WorldState::Closed {
                // One from before the class had a limit has none.
                *used.entry(record.permit.unwrap_or(u32::MAX)).or_default() += 1;
            }
        }
        for (id, slot) in self.permits.range((class.clone(), 0)..=(class.clone(), u32::MAX)) {
            let is_open = |permit: &PermitRecord| {
                let record = self.world(&permit.world).filter(|record| record.state != WorldState::Closed);
                record.is_some_and(|record| record.class == *class && record.permit == Some(id.1))
            };
            if !slot.known.record().is_some_and(is_open) && !self.is_free(id) {
                *used.entry(id.1).or_default() += 1;
            }
        }
        used
    }

    fn is_free(&self, id: &PermitId) -> bool {
        let Some(slot) = self.permits.get(id) else { return true };
        let is_unused = match &slot.known {
            Known::Absent => true,
            Known::Foreign => false,
            Known::Record(permit) => {
                let is_early = self.has(Defect::TakePermitEarly);
                self.worlds.get(&permit.world).map_or(is_early, |world| {
                    is_closed(&world.known) && (is_early || world.revision > slot.revision)
                })
            }
        };
        is_unused && slot.is_idle()
    }

    /// Closes a world that a node has a permit for and has not opened in time.
    fn close_unopened(&mut self, now: Instant, class: &Name) {
        let of_class = (class.clone(), 0)..=(class.clone(), u32::MAX);
        let unopened = self.permits.range(of_class).find_map(|((_, number), slot)| {
            let world = &slot.known.record()?.world;
            let is_unopened = |found: &Slot<WorldRecord, WorldWrite>| {
                found.revision < slot.revision && is_closed(&found.known) && found.is_idle()
            };
            let is_left = slot.is_idle()
                && now.since(slot.seen_at) >= LAPSE
                && !self.openings.contains_key(world)
                && self.worlds.get(world).is_none_or(is_unopened);
            is_left.then(|| (*number, world.clone()))
        });
        let (Some((number, world)), Some(home)) = (unopened, self.own_home()) else { return };
        self.touch_world(now, &world);
        let mut record = match self.world(&world) {
            Some(record) => record.clone(),
            None => WorldRecord {
                epoch: self.revision_max.max(1),
                home,
                state: WorldState::Closed,
                class: class.clone(),
                class_hash: String::new(),
                created_ms: self.unix_ms(now),
                ephemeral: true,
                opener: None,
                permit: None,
                nonce: 0,
                why: "it was not opened".to_owned(),
                rest: Default::default(),
            },
        };
        record.permit = Some(number);
        self.write_world(now, &world, record, WorldState::Closed, WorldWrite::Closed);
    }

    /// Gives the permit of a world back unless the world was opened with it, or is to be.
    pub(super) fn settle_permit(&mut self, now: Instant, world: &Name) {
        let Some(id) = self.openings.get(world) else { return };
        let (slot, found) = (self.permits.get(id), self.worlds.get(world));
        let is_settled = slot.is_none_or(Slot::is_idle) && found.is_none_or(Slot::is_idle);
        if !is_settled || !self.decides(now) {
            return;
        }
        let (known, closed_at) = found.map_or((&Known::Absent, 0), |found| (&found.known, found.revision));
        match known {
            Known::Record(record) if record.state != WorldState::Closed => {
                match record.class == id.0 && record.permit == Some(id.1) {
                    true => drop(self.openings.remove(world)),
                    false => self.give_back(now, world),
                }
            }
            // A later release may have opened it with the permit.
            Known::Foreign => drop(self.openings.remove(world)),
            Known::Absent | Known::Record(_) => {
                let is_stale = slot.is_none_or(|slot| slot.revision < closed_at);
                if is_stale || !self.wanted.contains_key(world) {
                    self.give_back(now, world);
                }
            }
        }
    }

    /// Deletes the permit with which no world was opened.
    fn give_back(&mut self, now: Instant, world: &Name) {
        let Some(id) = self.openings.remove(world) else { return };
        if self.permits.get(&id).is_some_and(|slot| self.is_own(slot, world)) {
            self.delete_permit(now, &id);
        }
    }

    /// Deletes the permit of a world that this node has closed.
    pub(super) fn release_permit(&mut self, now: Instant, world: &Name, record: &WorldRecord) {
        let Some(number) = record.permit else { return };
        let id = (record.class.clone(), number);
        let closed_at = self.worlds.get(world).map_or(0, |slot| slot.revision);
        // A later one is to open the world again.
        let is_of_it = |slot: &PermitSlot| {
            let names_it = slot.known.record().is_some_and(|permit| permit.world == *world);
            names_it && slot.revision < closed_at && slot.is_idle()
        };
        if self.permits.get(&id).is_some_and(is_of_it) {
            self.delete_permit(now, &id);
        }
    }

    fn delete_permit(&mut self, now: Instant, id: &PermitId) {
        self.permit_slot(now, id).submit(now, None, ());
        self.pump_permit(now, id);
    }

    pub(super) fn learn_permit(
        &mut self,
        now: Instant,
        id: &PermitId,
        revision: u64,
        known: Known<PermitRecord>,
    ) {
        let reading = self.stopwatch.reading();
        let slot = self.permit_slot(now, id);
        if revision <= slot.revision {
            return;
        }
        if slot.pending.as_ref().is_some_and(|pending| pending.expected < revision) {
            drop(slot.weigh(revision, &known, false));
        }
        slot.set(now, reading, revision, known);
        self.consider_opening(id);
    }

    pub(super) fn on_permit_result(
        &mut self,
        now: Instant,
        id: &PermitId,
        flight: &Flight,
        result: DirectoryResult,
    ) {
        let (reading, silence) = (self.stopwatch.reading(), self.silence());
        let Some(slot) = self.permits.get_mut(id) else { return };
        drop(slot.handle_result(now, reading, flight.nonce, result, silence, false));
        self.consider_opening(id);
        self.pump_permit(now, id);
    }

    /// Considers the world that this node wants to open with a permit.
    fn consider_opening(&mut self, id: &PermitId) {
        let world = self.openings.iter().find(|(_, of)| *of == id).map(|(world, _)| world.clone());
        self.dirty_worlds.extend(world);
    }
}

fn is_closed(known: &Known<WorldRecord>) -> bool {
    match known {
        Known::Absent => true,
        Known::Foreign => false,
        Known::Record(record) => record.state == WorldState::Closed,
    }
}
