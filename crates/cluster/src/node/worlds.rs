//! The life of worlds: assigning, accepting, serving, closing, and claiming those of lost homes.

use std::time::Duration;

use throng_stdx::Instant;

use crate::cas::{Known, Noted};
use crate::defect::Defect;
use crate::directory::{Decided, DirectoryResult, Entry, Silence, Slot};
use crate::name::Name;
use crate::node::choice::NoHome;
use crate::node::permits::Permit;
use crate::node::{EndReason, Event, Flight, Node, Refusal, Wake, WorldWrite};
use crate::record::{Home, Opener, WorldRecord, WorldState};
use crate::times::{LAPSE, LOSS, RENEWAL};

/// Time after which the node that made an assignment makes another one.
const LAPSE_OF_MAKER: Duration = Duration::from_secs(2);
/// Delay between the candidates for a claim, so that usually one of them writes.
const RANK: Duration = Duration::from_millis(250);
/// Further delay of others while a later incarnation of the lost home is up.
const RETURNED: Duration = Duration::from_secs(2);
/// Time for which the record of a closed world with a name is kept.
const CLOSED_KEPT: Duration = Duration::from_secs(3_600);

/// Time for which a world that cannot be closed at once is to be closed, on the stopwatch: with the
/// directory away, the wish waits for it.
const CLOSE_WANTED: Duration = Duration::from_secs(10);

/// Reason of an assignment that opens a world.
pub(super) const OPENED: &str = "opened";

/// Time for which a node that could not make a world takes no other.
const FULL: Duration = Duration::from_secs(5);
/// Time for which a deleted record is remembered: longer than what any read shows is old.
const DELETED_KEPT: Duration = Duration::from_secs(60);

/// A world on this node.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// Its record, as far as this node has written or accepted it.
    pub(super) record: WorldRecord,
    pub(super) stage: Stage,
    /// The lease ran out, and the record has not been read since.
    pub(super) is_unread: bool,
    /// Epoch with which the driver was requested to stop serving it.
    freezing: u64,
    /// Number of connections, as the driver reports it.
    pub(super) players: u32,
}

impl Held {
    /// Incarnation of this node that the world belongs to.
    fn incarnation(&self) -> u64 {
        self.record.home.incarnation
    }

    pub(super) fn end(&self, world: Name, why: EndReason) -> Event {
        Event::End { world, epoch: self.record.epoch, incarnation: self.incarnation(), why }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The driver makes it.
    Opening,
    /// The driver has made it; its record does not say `serving` yet.
    Opened,
    /// It is served while the lease holds.
    Serving,
    /// The lease ran out. It is served again when its record has been read and is unchanged.
    Frozen { is_reading: bool },
    /// The driver was requested to stop serving it.
    Freezing,
    /// The driver has stopped serving it, so records that name another home may be sent.
    Stopped,
}

/// A world that this node wants to be open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) class: Name,
    pub(super) ephemeral: bool,
    pub(super) opener: Option<Opener>,
    /// It is wanted even if no arrival waits for it.
    pub(super) stays: bool,
}

/// A world that this node wants to be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Closing {
    /// End of the wish, on the stopwatch.
    until: Duration,
    /// Only this epoch of the world is to be closed.
    epoch: Option<u64>,
    /// A record was sent for it, or the wish to open the world was dropped.
    has_acted: bool,
}

impl Noted for WorldRecord {
    fn nonce(&self) -> u64 {
        self.nonce
    }
}

impl Entry for WorldRecord {
    fn ordinal(&self) -> u64 {
        self.epoch
    }

    fn bytes(&self) -> Vec<u8> {
        self.to_bytes()
    }

    fn parse(bytes: &[u8]) -> Result<WorldRecord, String> {
        WorldRecord::parse(bytes)
    }

    fn set_nonce(&mut self, nonce: u64) {
        self.nonce = nonce;
    }
}

impl Node {
    /// Opens a world of a configured class unless it is open: assigns it to a home, here or
    /// elsewhere, as soon as there is room.
    pub fn handle_open(&mut self, now: Instant, world: Name, class: Name, ephemeral: bool) {
        self.want_open(now, world, Wanted { class, ephemeral, opener: None, stays: true });
    }

    /// The same for the ephemeral world of a match, whose record names its opener.
    pub fn handle_open_match(&mut self, now: Instant, world: Name, class: Name, opener: Opener) {
        self.want_open(now, world, Wanted { class, ephemeral: true, opener: Some(opener), stays: true });
    }

    fn want_open(&mut self, now: Instant, world: Name, wanted: Wanted) {
        self.observe(now);
        self.wanted.insert(world.clone(), wanted);
        self.touch_world(now, &world);
        self.step(now);
    }

    /// Closes a world, on any node, and refuses the arrivals of this node that may open it.
    /// [`Event::Closing`] says when the record is written. The wish ends 10 s after the directory
    /// has begun to answer.
    pub fn handle_close(&mut self, now: Instant, world: &Name) {
        self.observe(now);
        let was_wanted = self.wanted.remove(world).is_some();
        let cancelled = self.refuse_openers(world);
        self.want_closed(world, None, was_wanted || cancelled);
        self.touch_world(now, world);
        self.step(now);
    }

    /// Wants a world to be closed, only in this epoch if one is given.
    pub(super) fn want_closed(&mut self, world: &Name, epoch: Option<u64>, has_acted: bool) {
        let until = self.stopwatch.reading() + CLOSE_WANTED;
        let has_acted = has_acted || self.closing.get(world).is_some_and(|before| before.has_acted);
        self.closing.insert(world.clone(), Closing { until, epoch, has_acted });
    }

    /// There is nothing to close any more: the record of a world is closing, or it has none.
    fn note_closed(&mut self, name: &Name, is_closing: bool) {
        if let Some(closing) = self.closing.remove(name) {
            let was_open = is_closing || closing.has_acted;
            self.events.push_back(Event::Closing { world: name.clone(), was_open });
        }
    }

    /// The driver has made a world that was to be opened, or could not: then the world is passed
    /// on, and the node has no room for 5 s.
    pub fn handle_opened(&mut self, now: Instant, world: &Name, epoch: u64, is_made: bool) {
        self.observe(now);
        if let Some(held) = self.held.get_mut(world)
            && held.record.epoch == epoch
            && held.stage == Stage::Opening
        {
            if is_made {
                held.stage = Stage::Opened;
            } else {
                self.held.remove(world);
                self.refused.insert(world.clone(), epoch);
                // Others learn it at once, else two such nodes pass the world to and fro.
                self.full_until = now + FULL;
                self.renew_soon(now);
            }
            self.dirty_worlds.insert(world.clone());
        }
        self.step(now);
    }

    /// The driver has stopped serving a world.
    pub fn handle_frozen(&mut self, now: Instant, world: &Name, epoch: u64) {
        self.observe(now);
        if let Some(held) = self.held.get_mut(world)
            && held.freezing == epoch
            && held.stage == Stage::Freezing
        {
            held.stage = Stage::Stopped;
            self.dirty_worlds.insert(world.clone());
        }
        self.step(now);
    }

    /// The number of connections of a world has changed. A drain passes empty worlds on first.
    pub fn handle_players(&mut self, now: Instant, world: &Name, players: u32) {
        self.observe(now);
        if let Some(held) = self.held.get_mut(world) {
            held.players = players;
        }
        self.step(now);
    }

    /// Returns whether this node may serve the world at `now`.
    #[must_use]
    pub fn is_serving(&self, world: &Name, now: Instant) -> bool {
        self.held.get(world).is_some_and(|held| held.stage == Stage::Serving) && self.may_serve(now)
    }

    /// The epoch of a world that this node has.
    #[must_use]
    pub fn epoch(&self, world: &Name) -> Option<u64> {
        self.held.get(world).map(|held| held.record.epoch)
    }

    /// Makes a place for a world and has it considered.
    pub(super) fn touch_world(&mut self, now: Instant, world: &Name) {
        let reading = self.stopwatch.reading();
        self.worlds.entry(world.clone()).or_insert_with(|| Slot::new(now, reading));
        self.dirty_worlds.insert(world.clone());
    }

    /// Forgets a world without a record that is not wanted. A deleted one is forgotten when no old
    /// read can show its record any more.
    pub(super) fn forget_world(&mut self, now: Instant, name: &Name) {
        let is_used = self.held.contains_key(name)
            || self.wanted.contains_key(name)
            || self.closing.contains_key(name)
            || self.openings.contains_key(name)
            || self.arrivals.has_waiting(name);
        let Some(slot) = self.worlds.get(name) else { return };
        if is_used || !slot.is_idle() || slot.known != Known::Absent {
            return;
        }
        let at = slot.seen_at + DELETED_KEPT;
        if slot.revision > 0 && now < at {
            return self.wake_world(name, at);
        }
        if let Some(wake) = slot.wake {
            self.wakes.remove(&(wake, Wake::World(name.clone())));
        }
        self.worlds.remove(name);
        self.gone.remove(name);
        self.refused.remove(name);
    }

    pub(super) fn learn_world(
        &mut self,
        now: Instant,
        name: &Name,
        revision: u64,
        known: Known<WorldRecord>,
    ) {
        let reading = self.stopwatch.reading();
        let believes_older = self.has(Defect::BelieveOlder);
        let slot = self.worlds.entry(name.clone()).or_insert_with(|| Slot::new(now, reading));
        let expected = slot.pending.as_ref().map(|pending| pending.expected);
        if revision <= slot.revision && !believes_older {
            return;
        }
        let decided = if expected.is_some_and(|expected| expected < revision) {
            slot.weigh(revision, &known, false)
        } else {
            Decided::Nothing
        };
        slot.set(now, reading, revision, known);
        self.after_world(now, name, decided);
    }

    pub(super) fn on_world_result(
        &mut self,
        now: Instant,
        name: &Name,
        flight: &Flight,
        result: DirectoryResult,
    ) {
        let (reading, silence) = (self.stopwatch.reading(), self.silence());
        let Some(slot) = self.worlds.get_mut(name) else { return };
        let is_given_up = silence == Silence::Failure && result == DirectoryResult::Unknown;
        let found = match &result {
            DirectoryResult::Found { revision, value } => Some((*revision, value.is_none())),
            _ => None,
        };
        let decided = slot.handle_result(now, reading, flight.nonce, result, silence, false);
        if is_given_up {
            self.resume(name);
        }
        let Some(slot) = self.worlds.get(name) else { return };
        // A key that the bucket never had is read at revision 0, whatever said that it is gone.
        let is_current = found.is_some_and(|(revision, is_absent)| {
            revision >= slot.revision || (is_absent && slot.known == Known::Absent)
        });
        self.after_world(now, name, decided);
        if found.is_some() {
            self.try_thaw(name, is_current);
        }
    }

    /// Acts on a change of a world's record.
    fn after_world(&mut self, now: Instant, name: &Name, decided: Decided<WorldRecord, WorldWrite>) {
        if let Decided::Applied(pending) = decided {
            match pending.purpose {
                WorldWrite::Assign { is_claim } => {
                    self.stats.claims += u64::from(is_claim);
                    if let Some(record) = pending.value {
                        self.drain_assigned(now, name, &record.home);
                    }
                }
                WorldWrite::Serve { epoch } => self.accepted(name, epoch),
                WorldWrite::Closed => {
                    self.end(name, EndReason::Closed);
                    if let Some(record) = &pending.value {
                        self.release_permit(now, name, record);
                    }
                }
                WorldWrite::Restore { from } => {
                    if let Some(held) = self.held.get_mut(name)
                        && held.record.epoch == from
                        && let Some(record) = pending.value
                    {
                        held.record = record;
                        let (world, epoch, incarnation) =
                            (name.clone(), held.record.epoch, held.incarnation());
                        self.events.push_back(Event::Renumbered { world, from, epoch, incarnation });
                    }
                }
                WorldWrite::Close | WorldWrite::Delete => {}
            }
        }
        self.check_held(now, name);
        self.index(name);
        self.dirty_worlds.insert(name.clone());
    }

    /// The record says `serving`.
    fn accepted(&mut self, world: &Name, epoch: u64) {
        let has_lapsed = self.lease.as_ref().is_none_or(|lease| lease.has_lapsed);
        let Some(held) = self.held.get_mut(world) else { return };
        // Without a lease it waits: it is considered again after the next renewal.
        if held.record.epoch != epoch || held.stage != Stage::Opened || has_lapsed {
            return;
        }
        held.record.state = WorldState::Serving;
        held.stage = Stage::Serving;
        let incarnation = held.incarnation();
        self.events.push_back(Event::Serve { world: world.clone(), epoch, incarnation });
    }

    pub(super) fn end(&mut self, world: &Name, why: EndReason) {
        if let Some(held) = self.held.remove(world) {
            self.events.push_back(held.end(world.clone(), why));
        }
    }

    /// Gives a world up whose record names a later epoch or another home.
    fn check_held(&mut self, now: Instant, name: &Name) {
        if self.drain_waits_for(name) {
            return;
        }
        let Some(held) = self.held.get(name) else { return };
        let why = match self.worlds.get(name).map(|slot| &slot.known) {
            Some(Known::Record(record)) => {
                // An earlier epoch of this home is one that the directory went back to.
                let is_ours = record.epoch <= held.record.epoch && record.home == held.record.home;
                // The bucket keeps one revision of a key, so the assignment may never be seen.
                let has_moved = self.drain.is_moving(name) && record.home.node != self.setup.node;
                if is_ours && record.state == WorldState::Closed {
                    Some(EndReason::Closed)
                } else if has_moved {
                    Some(EndReason::Moved { home: record.home.clone() })
                } else {
                    (!is_ours).then_some(EndReason::GivenUp)
                }
            }
            // Written by a later release: this one cannot know whether it names another home.
            Some(Known::Foreign) => Some(EndReason::GivenUp),
            Some(Known::Absent) | None => None,
        };
        let Some(why) = why else { return };
        if self.has(Defect::KeepLostWorld) {
            return;
        }
        if why == EndReason::GivenUp && self.is_serving(name, now) {
            self.stats.conflicts += 1;
        }
        self.end(name, why);
    }

    /// Thaws a world if the record that was read is still this node's.
    fn try_thaw(&mut self, name: &Name, is_current: bool) {
        let has_lapsed = self.lease.as_ref().is_none_or(|lease| lease.has_lapsed);
        let Some(held) = self.held.get_mut(name) else { return };
        if held.stage != (Stage::Frozen { is_reading: true }) {
            return;
        }
        // Another home's record has ended the world in `check_held`.
        if is_current && !has_lapsed {
            held.is_unread = false;
            held.stage = Stage::Serving;
            let (epoch, incarnation) = (held.record.epoch, held.incarnation());
            self.events.push_back(Event::Thaw { world: name.clone(), epoch, incarnation });
        } else {
            held.stage = Stage::Frozen { is_reading: false };
        }
    }

    /// A world is served again that the driver was requested to stop.
    pub(super) fn resume(&mut self, name: &Name) {
        let has_lapsed = self.lease.as_ref().is_none_or(|lease| lease.has_lapsed);
        let Some(held) = self.held.get_mut(name) else { return };
        if !matches!(held.stage, Stage::Freezing | Stage::Stopped) {
            return;
        }
        if has_lapsed || held.is_unread {
            held.stage = Stage::Frozen { is_reading: false };
        } else {
            held.stage = Stage::Serving;
            let (epoch, incarnation) = (held.record.epoch, held.incarnation());
            self.events.push_back(Event::Thaw { world: name.clone(), epoch, incarnation });
        }
        self.dirty_worlds.insert(name.clone());
    }

    /// Requests that the driver stop serving a world.
    pub(super) fn freeze(&mut self, name: &Name) {
        let serves_on = self.has(Defect::ServeOn);
        if let Some(held) = self.held.get_mut(name) {
            if serves_on {
                held.stage = Stage::Stopped;
                self.dirty_worlds.insert(name.clone());
                return;
            }
            held.stage = Stage::Freezing;
            let (epoch, incarnation) = (held.record.epoch, held.incarnation());
            held.freezing = epoch;
            self.events.push_back(Event::Freeze { world: name.clone(), epoch, incarnation });
        }
    }

    /// Keeps the table of worlds by home.
    pub(super) fn index(&mut self, world: &Name) {
        let slot = self.worlds.get(world);
        let is_open = |record: &&WorldRecord| record.state != WorldState::Closed;
        let by_record = slot.and_then(|slot| slot.known.record()).filter(is_open);
        let by_write = slot
            .and_then(|slot| slot.pending.as_ref())
            .and_then(|pending| pending.value.as_ref())
            .filter(is_open);
        let homes = [by_record, by_write].map(|record| record.map(|record| record.home.node.clone()));
        let before = match homes {
            [None, None] => self.indexed.remove(world),
            _ => self.indexed.insert(world.clone(), homes.clone()),
        };
        for home in before.into_iter().flatten().flatten() {
            if let Some(worlds) = self.by_home.get_mut(&home)
                && !homes.contains(&Some(home.clone()))
            {
                worlds.remove(world);
                if worlds.is_empty() {
                    self.by_home.remove(&home);
                }
            }
        }
        for home in homes.into_iter().flatten() {
            if !self.by_home.entry(home.clone()).or_default().insert(world.clone()) {
                continue;
            }
            let (now, reading) = (self.worlds[world].seen_at, self.stopwatch.reading());
            let slot = self.nodes.entry(home.clone()).or_insert_with(|| Slot::new(now, reading));
            // Only for its worlds a node without a readable record is marked as lost.
            if slot.known.record().is_none() {
                self.dirty_nodes.insert(home);
            }
        }
    }

    pub(super) fn own_home(&self) -> Option<Home> {
        let incarnation = self.incarnation()?;
        Some(Home { node: self.setup.node.clone(), incarnation })
    }

    /// Returns whether worlds of this home may be claimed: the home was marked, has left, or has
    /// been replaced by a later incarnation.
    pub(super) fn is_gone(&self, home: &Home) -> bool {
        let Some(slot) = self.nodes.get(&home.node) else { return false };
        let Some(record) = slot.known.record() else { return false };
        if self.has(Defect::ClaimWithoutMark)
            && self.stopwatch.reading().saturating_sub(slot.since) >= LOSS
            && home.node != self.setup.node
        {
            return true;
        }
        record.incarnation > home.incarnation || (record.incarnation == home.incarnation && !record.is_live())
    }

    /// Decides about a world.
    pub(super) fn consider_world(&mut self, now: Instant, name: &Name) {
        let Some(slot) = self.worlds.get(name) else { return };
        if slot.pending.is_some() || slot.wants_read || slot.flight.is_some() {
            return self.pump_world(now, name);
        }
        if !self.decides(now) {
            return;
        }
        let known = slot.known.clone();
        match known {
            Known::Foreign => drop(self.closing.remove(name)),
            Known::Absent => self.consider_absent(now, name),
            Known::Record(record) => {
                if record.state.is_open() {
                    self.wanted.remove(name);
                    let reading = self.stopwatch.reading();
                    let is_meant = |closing: &&mut Closing| {
                        reading <= closing.until && closing.epoch.is_none_or(|epoch| epoch == record.epoch)
                    };
                    if let Some(closing) = self.closing.get_mut(name).filter(is_meant) {
                        closing.has_acted = true;
                        return self.write_world(now, name, record, WorldState::Closing, WorldWrite::Close);
                    }
                    self.closing.remove(name);
                } else {
                    self.note_closed(name, record.state == WorldState::Closing);
                }
                if self.own_home().as_ref() == Some(&record.home) {
                    self.consider_own(now, name, record);
                } else {
                    self.consider_other(now, name, record);
                }
            }
        }
    }

    fn consider_absent(&mut self, now: Instant, name: &Name) {
        if self.held.contains_key(name) {
            return self.restore(now, name);
        }
        self.note_closed(name, false);
        let Some(wanted) = self.wanted.get(name).cloned() else {
            return;
        };
        let Some((permit, behind)) = self.permit_to_open(now, name, &wanted.class) else { return };
        let Some(class) = self.setup.classes.get(&wanted.class) else { return };
        // Behind every epoch that a deleted record of this name may have had. With a permit it is
        // not behind deletions that came after it: those void the permit.
        let epoch = if self.has(Defect::EpochFromOne) { 1 } else { behind.max(1) };
        let record = WorldRecord {
            epoch,
            home: Home { node: self.setup.node.clone(), incarnation: 0 },
            state: WorldState::Assigned,
            class: wanted.class,
            class_hash: class.hash.clone(),
            created_ms: self.unix_ms(now),
            ephemeral: wanted.ephemeral,
            opener: wanted.opener,
            permit,
            nonce: 0,
            why: String::new(),
            rest: Default::default(),
        };
        self.assign(now, name, record, None, OPENED, false);
    }

    /// The permit with which a world may be opened now, if its class has a limit, and the revision
    /// behind which the opening is.
    fn permit_to_open(&mut self, now: Instant, name: &Name, class: &Name) -> Option<(Option<u32>, u64)> {
        match self.permit(now, name, class) {
            Permit::Unlimited => Some((None, self.revision_max)),
            Permit::Held(number, revision) => Some((Some(number), revision)),
            Permit::Taking => None,
            Permit::Exhausted => {
                self.refuse(name, Refusal::WorldsMax);
                self.wake_world(name, now + RENEWAL);
                None
            }
        }
    }

    /// Writes the record of a world again that the directory has lost.
    fn restore(&mut self, now: Instant, name: &Name) {
        let Some(held) = self.held.get(name) else { return };
        match held.stage {
            Stage::Opening | Stage::Opened => self.end(name, EndReason::GivenUp),
            Stage::Serving => {
                let mut record = held.record.clone();
                let from = record.epoch;
                record.epoch = from.saturating_add(1).max(self.revision_max);
                "written again by its home".clone_into(&mut record.why);
                self.write_world(now, name, record, WorldState::Serving, WorldWrite::Restore { from });
            }
            Stage::Frozen { is_reading: false } => self.thaw(now, name),
            Stage::Freezing | Stage::Stopped if !self.drain.is_active() => self.resume(name),
            Stage::Frozen { .. } | Stage::Freezing | Stage::Stopped => {}
        }
    }

    /// A world whose home is this node, in this incarnation.
    fn consider_own(&mut self, now: Instant, name: &Name, record: WorldRecord) {
        if self.held.get(name).is_some_and(|held| held.record.epoch > record.epoch) {
            return self.restore(now, name);
        }
        let stage = self.held.get(name).map(|held| held.stage);
        let drains = self.drain.is_active();
        match (record.state, stage) {
            (WorldState::Assigned, None) => {
                let is_refused = self.refused.get(name) == Some(&record.epoch);
                if drains || is_refused || !self.has_room_for(now, &record) {
                    let own = self.setup.node.clone();
                    self.pass_on(now, name, record, &own);
                } else {
                    let (epoch, incarnation) = (record.epoch, record.home.incarnation);
                    let class = record.class.clone();
                    let held =
                        Held { record, stage: Stage::Opening, is_unread: false, freezing: 0, players: 0 };
                    self.held.insert(name.clone(), held);
                    self.events.push_back(Event::Open { world: name.clone(), epoch, incarnation, class });
                }
            }
            (WorldState::Assigned, Some(Stage::Opening | Stage::Opened)) if drains => {
                self.end(name, EndReason::GivenUp);
                let own = self.setup.node.clone();
                self.pass_on(now, name, record, &own);
            }
            (WorldState::Assigned, Some(Stage::Opened)) => {
                let epoch = record.epoch;
                if self.has(Defect::ServeEarly) {
                    let incarnation = record.home.incarnation;
                    self.events.push_back(Event::Serve { world: name.clone(), epoch, incarnation });
                }
                self.write_world(now, name, record, WorldState::Serving, WorldWrite::Serve { epoch });
            }
            (WorldState::Serving, Some(Stage::Opened)) => self.accepted(name, record.epoch),
            // It crashed, or gave the world up.
            (WorldState::Serving, None) => {
                self.refused.remove(name);
                let own = (!drains && self.has_room_for(now, &record)).then(|| self.setup.node.clone());
                let home = own.and_then(|own| self.home_of(&own));
                let why = if drains { "its home drains" } else { "restarted by its home" };
                self.assign(now, name, record, home, why, false);
            }
            (WorldState::Serving, Some(Stage::Frozen { is_reading: false })) => self.thaw(now, name),
            (WorldState::Serving, Some(Stage::Freezing | Stage::Stopped)) => {
                if !drains && !self.drain.is_moving(name) {
                    self.resume(name);
                }
            }
            (WorldState::Closing, None) => {
                self.write_world(now, name, record, WorldState::Closed, WorldWrite::Closed);
            }
            (WorldState::Closing, Some(Stage::Opening | Stage::Opened)) => {
                self.end(name, EndReason::Closed);
                self.write_world(now, name, record, WorldState::Closed, WorldWrite::Closed);
            }
            (WorldState::Closing, Some(Stage::Serving | Stage::Frozen { .. })) => self.freeze(name),
            (WorldState::Closing, Some(Stage::Stopped)) => {
                self.write_world(now, name, record, WorldState::Closed, WorldWrite::Closed);
            }
            (WorldState::Closed, _) => self.consider_closed(now, name, record, Some(Duration::ZERO)),
            (WorldState::Assigned | WorldState::Serving | WorldState::Closing, Some(_)) => {}
        }
    }

    /// Reads the record of a world that was frozen by the end of the lease.
    fn thaw(&mut self, now: Instant, name: &Name) {
        let is_read = !self.has(Defect::ThawUnread);
        if let Some(held) = self.held.get_mut(name) {
            held.stage = Stage::Frozen { is_reading: true };
        }
        if !is_read {
            return self.try_thaw(name, true);
        }
        if let Some(slot) = self.worlds.get_mut(name) {
            slot.wants_read = true;
        }
        self.pump_world(now, name);
    }

    /// A world whose home is another node, or another incarnation of this one.
    fn consider_other(&mut self, now: Instant, name: &Name, record: WorldRecord) {
        let is_gone = self.is_gone(&record.home);
        let gone_for = is_gone.then(|| now.since(*self.gone.entry(name.clone()).or_insert(now)));
        if !is_gone {
            self.gone.remove(name);
        }
        let (seen_at, is_mine) = match self.worlds.get(name) {
            Some(slot) => (slot.seen_at, self.is_mine(record.nonce)),
            None => return,
        };
        if record.state == WorldState::Closed {
            let rank = is_gone.then(|| RANK * (self.rank(name) + 1));
            return self.consider_closed(now, name, record, rank);
        }
        if let Some(gone_for) = gone_for {
            let is_own_name = record.home.node == self.setup.node;
            let has_returned = self.nodes.get(&record.home.node).is_some_and(|slot| {
                slot.known
                    .record()
                    .is_some_and(|node| node.incarnation > record.home.incarnation && node.is_live())
            });
            let delay = match (is_own_name, has_returned) {
                (true, _) => Duration::ZERO,
                (false, true) => RETURNED + RANK * self.rank(name),
                (false, false) => RANK * self.rank(name),
            };
            if gone_for < delay {
                return self.wake_world(name, now + (delay - gone_for));
            }
            if record.state == WorldState::Closing {
                return self.write_world(now, name, record, WorldState::Closed, WorldWrite::Closed);
            }
            let own = (is_own_name && !self.drain.is_active() && self.has_room_for(now, &record))
                .then(|| self.setup.node.clone());
            let home = own.and_then(|own| self.home_of(&own));
            return self.assign(now, name, record, home, "its home was lost", true);
        }
        if record.state == WorldState::Assigned {
            let lapse = if is_mine { LAPSE_OF_MAKER } else { LAPSE + RANK * self.rank(name) };
            let waited = now.since(seen_at);
            if waited < lapse {
                return self.wake_world(name, now + (lapse - waited));
            }
            let lapsed = record.home.node.clone();
            if let Some(slot) = self.nodes.get(&lapsed) {
                self.avoided.insert(lapsed, slot.revision);
            }
            self.assign(now, name, record, None, "its home did not accept it", false);
        }
    }

    /// Opens a closed world again, or deletes its record when `delay` has passed after the time
    /// for which it is kept; `None`: that is another node's task.
    fn consider_closed(
        &mut self,
        now: Instant,
        name: &Name,
        mut record: WorldRecord,
        delay: Option<Duration>,
    ) {
        if let Some(wanted) = self.wanted.get(name).cloned() {
            let Some((permit, _)) = self.permit_to_open(now, name, &wanted.class) else { return };
            let Some(class) = self.setup.classes.get(&wanted.class) else { return };
            class.hash.clone_into(&mut record.class_hash);
            record.permit = permit;
            let Wanted { class, ephemeral, opener, .. } = wanted;
            (record.class, record.ephemeral, record.opener) = (class, ephemeral, opener);
            record.created_ms = self.unix_ms(now);
            return self.assign(now, name, record, None, OPENED, false);
        }
        let Some(slot) = self.worlds.get_mut(name) else { return };
        let Some(delay) = delay else { return };
        let at = slot.seen_at + delay + if record.ephemeral { Duration::ZERO } else { CLOSED_KEPT };
        if now < at {
            return self.wake_world(name, at);
        }
        slot.submit(now, None, WorldWrite::Delete);
        self.pump_world(now, name);
    }

    /// Gives a world that this node cannot take to another; closes it if no node has room. A node
    /// that leaves after all others keeps it: whichever returns first claims it.
    fn pass_on(&mut self, now: Instant, name: &Name, mut record: WorldRecord, own: &Name) {
        let knows = self.setup.record.classes.get(&record.class);
        let has_others = knows.is_some_and(|hash| *hash != record.class_hash);
        match self.choose(name, &mut record, Some(own).filter(|_| !has_others)) {
            Ok(home) => self.assign(now, name, record, Some(home), "passed on", false),
            Err(_) if self.drain.is_active() && !self.has_other_up() => self.wake_world(name, now + RENEWAL),
            Err(none) => {
                self.stats.no_room += 1;
                let why = match none {
                    NoHome::NoRoom => "no node has room",
                    NoHome::Silent => "no node has room and answers",
                    NoHome::UnknownClass => "no node knows its class",
                };
                why.clone_into(&mut record.why);
                self.write_world(now, name, record, WorldState::Closed, WorldWrite::Closed);
            }
        }
    }

    /// Assigns a world to `home`, or to a home of this node's choice. `record` is the current one,
    /// or, with incarnation 0, the first.
    pub(super) fn assign(
        &mut self,
        now: Instant,
        name: &Name,
        mut record: WorldRecord,
        home: Option<Home>,
        why: &str,
        is_claim: bool,
    ) {
        let home = match home.map_or_else(|| self.choose(name, &mut record, None), Ok) {
            Ok(home) => home,
            Err(none) => {
                if none == NoHome::NoRoom {
                    self.stats.no_room += 1;
                    self.refuse(name, Refusal::NoRoom);
                }
                return self.wake_world(name, now + RENEWAL);
            }
        };
        if record.home.incarnation > 0 {
            record.epoch = record.epoch.saturating_add(1);
        }
        record.home = home;
        why.clone_into(&mut record.why);
        self.write_world(now, name, record, WorldState::Assigned, WorldWrite::Assign { is_claim });
    }

    pub(super) fn write_world(
        &mut self,
        now: Instant,
        name: &Name,
        mut record: WorldRecord,
        state: WorldState,
        purpose: WorldWrite,
    ) {
        (record.state, record.nonce) = (state, self.nonce());
        if let Some(slot) = self.worlds.get_mut(name) {
            slot.submit(now, Some(record), purpose);
        }
        self.index(name);
        self.pump_world(now, name);
    }

    pub(super) fn unix_ms(&self, now: Instant) -> u64 {
        self.setup.origin_unix_ms.saturating_add(now.as_millis())
    }
}
