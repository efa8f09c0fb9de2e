//! Arrivals: connections that want into a world, and wait until its home is known.

use std::collections::{BTreeMap, BTreeSet};

use throng_stdx::Instant;

use crate::cas::Known;
use crate::name::Name;
use crate::node::worlds::{OPENED, Wanted};
use crate::node::{Event, Node};
use crate::record::{Address, Home, WorldState};
use crate::times::FREEZE;

/// Number of an arrival, chosen by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArrivalId(pub u64);

/// Answer to an arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This node is the world's home.
    Here {
        /// Epoch of the world.
        epoch: u64,
    },
    /// Another node is the world's home.
    Elsewhere {
        /// The home.
        home: Home,
        /// Addresses of the home.
        addresses: Vec<Address>,
    },
    /// The arrival is refused.
    Refused(Refusal),
}

/// Reason why an arrival is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `world_unavailable`: no home was known within [`Setup::patience`](crate::Setup::patience),
    /// or too many arrivals wait.
    Unavailable,
    /// `no_room`: no node that knows the class has room.
    NoRoom,
    /// `worlds_max`: the class has as many worlds as it may.
    WorldsMax,
    /// `unknown_world`: the world is not open, and the arrival may not open it.
    UnknownWorld,
    /// `world_closed`: the arrival was to open the world, and this node was requested to close it.
    Closed,
}

#[derive(Clone, Debug)]
struct Waiting {
    world: Name,
    until: Instant,
    /// Class with which it may open the world.
    class: Option<Name>,
}

#[derive(Debug, Default)]
pub(super) struct Arrivals {
    waiting: BTreeMap<ArrivalId, Waiting>,
    by_world: BTreeMap<Name, BTreeSet<ArrivalId>>,
    by_time: BTreeSet<(Instant, ArrivalId)>,
}

impl Arrivals {
    fn insert(&mut self, id: ArrivalId, waiting: Waiting) {
        self.remove(id);
        self.by_world.entry(waiting.world.clone()).or_default().insert(id);
        self.by_time.insert((waiting.until, id));
        self.waiting.insert(id, waiting);
    }

    fn remove(&mut self, id: ArrivalId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.by_time.remove(&(waiting.until, id));
        if let Some(ids) = self.by_world.get_mut(&waiting.world) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_world.remove(&waiting.world);
            }
        }
        Some(waiting)
    }

    pub(super) fn has_waiting(&self, world: &Name) -> bool {
        self.by_world.contains_key(world)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }
}

impl Node {
    /// A connection wants into a world. `class` is given if it may open the world; the world is
    /// then made with this class. Answered by [`Event::Arrived`], after
    /// [`Setup::patience`](crate::Setup::patience) at the latest.
    pub fn handle_arrival(&mut self, now: Instant, id: ArrivalId, world: Name, class: Option<Name>) {
        self.observe(now);
        if self.arrivals.waiting.len() >= self.setup.arrivals_max {
            self.answer(id, Answer::Refused(Refusal::Unavailable));
        } else {
            let class = class.filter(|class| self.setup.classes.contains_key(class));
            let until = now + self.setup.patience;
            self.arrivals.insert(id, Waiting { world: world.clone(), until, class });
            self.touch_world(now, &world);
        }
        self.step(now);
    }

    /// An arrival does not wait any more. If it was the last for its world, this node does not
    /// open the world; an assignment that it has sent and that no home has accepted is closed.
    pub fn handle_departure(&mut self, now: Instant, id: ArrivalId) {
        self.observe(now);
        if let Some(Waiting { world, class, .. }) = self.arrivals.remove(id) {
            self.forget_wanted(&world);
            let is_wanted = self.arrivals.has_waiting(&world) || self.wanted.contains_key(&world);
            if let Some(epoch) = self.unaccepted(&world).filter(|_| class.is_some() && !is_wanted)
                && !self.closing.contains_key(&world)
            {
                self.want_closed(&world, Some(epoch), false);
            }
            self.dirty_worlds.insert(world);
        }
        self.step(now);
    }

    /// The epoch in which this node has opened a world, or may have, and no home has accepted it.
    fn unaccepted(&self, world: &Name) -> Option<u64> {
        let slot = self.worlds.get(world)?;
        let sent = slot.pending.as_ref().and_then(|pending| pending.value.as_ref());
        let record = sent.or(slot.known.record())?;
        let is_opening = record.state == WorldState::Assigned && record.why == OPENED;
        (is_opening && self.is_mine(record.nonce)).then_some(record.epoch)
    }

    /// Refuses the arrivals that may open a world. Returns whether there were any.
    pub(super) fn refuse_openers(&mut self, world: &Name) -> bool {
        let ids = self.arrivals.by_world.get(world).cloned().unwrap_or_default();
        let may_open = |id: &ArrivalId| self.arrivals.waiting.get(id).is_some_and(|own| own.class.is_some());
        let openers: Vec<ArrivalId> = ids.into_iter().filter(may_open).collect();
        for id in &openers {
            self.arrivals.remove(*id);
            self.answer(*id, Answer::Refused(Refusal::Closed));
        }
        !openers.is_empty()
    }

    /// Number of arrivals that wait.
    #[must_use]
    pub fn arrivals_waiting(&self) -> usize {
        self.arrivals.waiting.len()
    }

    fn answer(&mut self, arrival: ArrivalId, answer: Answer) {
        self.stats.elsewhere += u64::from(matches!(answer, Answer::Elsewhere { .. }));
        self.events.push_back(Event::Arrived { arrival, answer });
    }

    /// Answers the arrivals of a world that can be answered.
    pub(super) fn settle(&mut self, now: Instant, world: &Name) {
        let Some(ids) = self.arrivals.by_world.get(world).cloned() else { return };
        let known = self.worlds.get(world).map(|slot| (&slot.known, slot.is_idle()));
        let is_closed = match known {
            Some((Known::Record(record), true)) => record.state == WorldState::Closed,
            Some((Known::Absent, true)) => !self.held.contains_key(world),
            _ => false,
        };
        let mut classes = ids.iter().filter_map(|id| self.arrivals.waiting.get(id)?.class.clone());
        if is_closed
            && !self.wanted.contains_key(world)
            && let Some(class) = classes.next()
        {
            self.wanted.insert(world.clone(), Wanted { class, ephemeral: false, opener: None, stays: false });
            self.dirty_worlds.insert(world.clone());
        }
        for id in ids {
            let may_open = self.arrivals.waiting.get(&id).is_some_and(|waiting| waiting.class.is_some());
            if let Some(answer) = self.find(now, world, may_open) {
                self.arrivals.remove(id);
                self.answer(id, answer);
            }
        }
        self.forget_wanted(world);
    }

    /// The way into a world; `None`: wait.
    fn find(&self, now: Instant, world: &Name, may_open: bool) -> Option<Answer> {
        if self.lease.as_ref().is_none_or(|lease| lease.has_lapsed) {
            return None;
        }
        if self.is_serving(world, now) {
            return Some(Answer::Here { epoch: self.epoch(world)? });
        }
        let slot = self.worlds.get(world)?;
        let is_deciding = slot.pending.is_some() || slot.flight.is_some();
        // In a gap of the watch, a home that is known answers for itself; a world without one may
        // have got one unseen.
        let is_unknown = self.is_synced && !may_open && !is_deciding;
        let unknown = is_unknown.then_some(Answer::Refused(Refusal::UnknownWorld));
        match &slot.known {
            Known::Absent | Known::Foreign => unknown,
            Known::Record(record) => match record.state {
                WorldState::Closed => unknown,
                WorldState::Assigned | WorldState::Closing => None,
                WorldState::Serving => {
                    let home = self.nodes.get(&record.home.node)?;
                    let node = home.known.record()?;
                    // A home that is silent for so long is frozen, or its record is late.
                    let is_silent = self.stopwatch.reading().saturating_sub(home.since) > FREEZE;
                    let is_live = node.incarnation == record.home.incarnation && node.is_live();
                    let is_other = record.home.node != self.setup.node;
                    (is_other && is_live && !is_silent).then(|| Answer::Elsewhere {
                        home: record.home.clone(),
                        addresses: node.addresses.clone(),
                    })
                }
            },
        }
    }

    /// A world cannot be opened now.
    pub(super) fn refuse(&mut self, world: &Name, why: Refusal) {
        for id in self.arrivals.by_world.get(world).cloned().unwrap_or_default() {
            self.arrivals.remove(id);
            self.answer(id, Answer::Refused(why));
        }
        self.forget_wanted(world);
    }

    /// Drops the wish to open a world for which no arrival waits any more.
    fn forget_wanted(&mut self, world: &Name) {
        if self.arrivals.has_waiting(world) {
            return;
        }
        if self.wanted.get(world).is_some_and(|wanted| !wanted.stays) {
            self.wanted.remove(world);
        }
    }

    pub(super) fn expire_arrivals(&mut self, now: Instant) {
        while let Some((_, id)) = self.arrivals.by_time.first().copied().filter(|(at, _)| *at <= now) {
            if let Some(waiting) = self.arrivals.remove(id) {
                self.answer(id, Answer::Refused(Refusal::Unavailable));
                self.forget_wanted(&waiting.world);
                // Considered with the next input: it may be forgotten.
                self.dirty_worlds.insert(waiting.world);
            }
        }
    }
}
