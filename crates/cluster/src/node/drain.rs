//! Drain and stop: worlds are passed on one after another, then the node leaves.

use std::time::Duration;

use throng_stdx::Instant;

use crate::cas::Known;
use crate::name::Name;
use crate::node::lease::Phase;
use crate::node::worlds::Stage;
use crate::node::{EndReason, Node};
use crate::record::{Home, WorldState};
use crate::times::RENEWAL;

/// Time after which the sockets of a world that was assigned elsewhere close although its new home
/// does not serve it yet.
const MOVE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Drain {
    since: Option<Instant>,
    /// Time after which worlds with players are passed on as well; `None`: never.
    wait: Option<Duration>,
    /// A `drain` record began it, so the end of the record ends it.
    by_record: bool,
    /// The process stops: all worlds stop at once.
    stops: bool,
    /// No world is left: the node writes `left`.
    pub(super) leaves: bool,
    moving: Option<Moving>,
    /// Time of the next attempt to find a home.
    retry_at: Option<Instant>,
}

/// World that is being passed on.
#[derive(Debug)]
struct Moving {
    world: Name,
    /// Its next home, once the assignment was written, and the time at which its sockets close.
    assigned: Option<(Home, Instant)>,
}

impl Drain {
    pub(super) fn is_active(&self) -> bool {
        self.since.is_some() || self.stops
    }

    pub(super) fn is_moving(&self, world: &Name) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.world == *world)
    }
}

impl Node {
    /// Drains the node: it takes no worlds, passes empty worlds on at once and others after `wait`
    /// (`None`: when they are empty), the largest last, and then leaves.
    pub fn handle_drain(&mut self, now: Instant, wait: Option<Duration>) {
        self.observe(now);
        self.begin_drain(now, wait, false);
        self.step(now);
    }

    /// Ends a drain. A world whose assignment was sent moves all the same.
    pub fn handle_undrain(&mut self, now: Instant) {
        self.observe(now);
        self.end_drain(now);
        self.step(now);
    }

    /// Stops the node at once: all worlds stop, then it leaves, and others claim them.
    pub fn handle_stop(&mut self, now: Instant) {
        self.observe(now);
        self.drain.stops = true;
        if let Some(Moving { world, assigned: Some((home, _)) }) = self.drain.moving.take() {
            self.end(&world, EndReason::Moved { home });
        }
        if matches!(self.phase, Phase::Joining(_)) {
            self.phase = Phase::Over;
            self.events.push_back(super::Event::Left);
        }
        self.step(now);
    }

    fn begin_drain(&mut self, now: Instant, wait: Option<Duration>, by_record: bool) {
        if self.drain.since.is_none() {
            self.drain.since = Some(now);
            self.renew_soon(now);
            self.dirty_worlds.extend(self.by_home.get(&self.setup.node).into_iter().flatten().cloned());
        }
        (self.drain.wait, self.drain.by_record) = (wait, by_record);
    }

    fn end_drain(&mut self, now: Instant) {
        if self.drain.since.take().is_none() || self.drain.stops {
            return;
        }
        (self.drain.leaves, self.drain.retry_at) = (false, None);
        self.renew_soon(now);
        if let Some(moving) = &self.drain.moving {
            let world = moving.world.clone();
            let is_sent = moving.assigned.is_some()
                || self.worlds.get(&world).is_some_and(|slot| slot.pending.is_some());
            if !is_sent {
                self.drain.moving = None;
                self.resume(&world);
            }
        }
        self.dirty_worlds.extend(self.held.keys().cloned());
    }

    pub(super) fn on_drain_record(&mut self, now: Instant) {
        let Some(incarnation) = self.incarnation() else { return };
        let wants = match self.drains.get(&self.setup.node) {
            Some((_, Known::Record(record))) => record.incarnation == incarnation,
            _ => false,
        };
        if wants && !self.drain.is_active() {
            self.begin_drain(now, None, true);
        } else if !wants && self.drain.by_record {
            self.end_drain(now);
        }
    }

    pub(super) fn drain_timeout(&self) -> Option<Instant> {
        if !matches!(self.phase, Phase::Up) {
            return None;
        }
        let moving = self.drain.moving.as_ref().and_then(|moving| Some(moving.assigned.as_ref()?.1));
        // A time that has passed is looked at with every input.
        let is_waiting = |at: &Instant| self.drain.moving.is_none() && *at > self.stopwatch.last();
        let wait = match (self.drain.since, self.drain.wait) {
            (Some(since), Some(wait)) => Some(since + wait).filter(is_waiting),
            _ => None,
        };
        let retry = self.drain.retry_at.filter(is_waiting);
        [moving, wait, retry].into_iter().flatten().min()
    }

    /// Returns whether a world ends here only when its next home serves it.
    pub(super) fn drain_waits_for(&self, world: &Name) -> bool {
        self.drain.moving.as_ref().is_some_and(|moving| moving.world == *world && moving.assigned.is_some())
    }

    /// The assignment of a world was written.
    pub(super) fn drain_assigned(&mut self, now: Instant, world: &Name, home: &Home) {
        if let Some(moving) = &mut self.drain.moving
            && moving.world == *world
            && self.held.contains_key(world)
        {
            moving.assigned = Some((home.clone(), now + MOVE));
        }
    }

    pub(super) fn step_drain(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Up) {
            return;
        }
        if self.drain.stops {
            return self.stop_all(now);
        }
        if let Some(moving) = self.drain.moving.take() {
            self.drain.moving = self.go_on_moving(now, moving);
        }
        if self.drain.since.is_none() || self.drain.moving.is_some() || !self.decides(now) {
            return;
        }
        if self.drain.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.drain.retry_at = None;
        let own = self.setup.node.clone();
        if self.held.is_empty() && self.by_home.get(&own).is_none_or(|worlds| worlds.is_empty()) {
            self.drain.leaves = true;
            return self.step_lease(now);
        }
        let is_over = self.drain.since.zip(self.drain.wait).is_some_and(|(since, wait)| now >= since + wait);
        let next = self
            .held
            .iter()
            .filter(|(_, held)| held.stage == Stage::Serving && (is_over || held.players == 0))
            .min_by_key(|(_, held)| held.players)
            .map(|(world, held)| (world.clone(), held.record.clone()));
        let Some((world, mut record)) = next else { return };
        if self.choose(&world, &mut record, Some(&own)).is_err() {
            // Better served here than nowhere.
            self.drain.retry_at = Some(now + RENEWAL);
            return;
        }
        self.freeze(&world);
        self.drain.moving = Some(Moving { world, assigned: None });
    }

    /// The next step of passing a world on. Returns what is still to be done.
    fn go_on_moving(&mut self, now: Instant, moving: Moving) -> Option<Moving> {
        let stage = self.held.get(&moving.world)?.stage;
        let slot = self.worlds.get(&moving.world)?;
        let record = slot.known.record().cloned();
        if let Some((home, until)) = &moving.assigned {
            let is_there =
                record.is_none_or(|record| record.state != WorldState::Assigned || record.home != *home);
            if is_there || now >= *until {
                self.end(&moving.world, EndReason::Moved { home: home.clone() });
                self.dirty_worlds.insert(moving.world);
                return None;
            }
            return Some(moving);
        }
        if slot.pending.is_some() || slot.flight.is_some() || stage == Stage::Freezing {
            return Some(moving);
        }
        let mut record = record.filter(|record| record.state == WorldState::Serving)?;
        if stage != Stage::Stopped {
            return None;
        }
        if !self.decides(now) {
            return Some(moving);
        }
        let own = self.setup.node.clone();
        match self.choose(&moving.world, &mut record, Some(&own)) {
            Ok(home) => {
                self.assign(now, &moving.world, record, Some(home), "its home drains", false);
                Some(moving)
            }
            Err(_) => {
                self.resume(&moving.world);
                self.drain.retry_at = Some(now + RENEWAL);
                None
            }
        }
    }

    fn stop_all(&mut self, now: Instant) {
        let worlds: Vec<(Name, Stage)> =
            self.held.iter().map(|(world, held)| (world.clone(), held.stage)).collect();
        for (world, stage) in &worlds {
            match stage {
                Stage::Opening | Stage::Opened => self.end(world, EndReason::Left),
                Stage::Serving | Stage::Frozen { .. } => self.freeze(world),
                Stage::Freezing | Stage::Stopped => {}
            }
        }
        let is_stopped = self.held.values().all(|held| held.stage == Stage::Stopped);
        if is_stopped && !self.drain.leaves {
            self.drain.leaves = true;
            self.step_lease(now);
        }
    }
}
