//! Queues: a rule set each, the tickets that wait under it, and the search among them.
//!
//! A *tick* begins when something may have changed: a ticket came, relaxed, or left a search that
//! had ended at its limit. It first does what is due by time, then tries *anchors* in the order of
//! fairness. Work is cut into slices of a bounded number of steps, between which requests are
//! served; the order of anchors is kept, so that a tick goes on where it stopped. The bound counts
//! steps and not time, so that a replay cuts at the same places.

mod anchors;
mod check;
pub(crate) mod compiled;
mod due;
mod estimate;
mod facts;
mod order;
#[cfg(test)]
mod permuted_tests;
mod pool;
mod positions;
mod round;
#[cfg(test)]
mod rule_tests;
mod rules;
pub(crate) mod ruleset;
mod search;
mod ticks;
mod trial;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(crate) use anchors::{Anchor, Seeker};
pub use compiled::QueueRules;
pub(crate) use compiled::{Compiled, Obstacle};
pub(crate) use due::{Due, Waiting};
pub(crate) use estimate::{Bucket, Estimates, Kind};
pub(crate) use facts::{Facts, PlayerFacts, PlayerInput, REGIONS_MAX, hash as role_hash};
pub(crate) use pool::{Hot, Key, Partition, Pool, number, ordered};
pub(crate) use positions::assign;
pub(crate) use round::Round;
pub(crate) use rules::{Placed, View};
pub use ruleset::RuleProblem;
pub(crate) use ruleset::{Assign, BackfillPriority, OnMemberLost, OnNo, RuleKind, RuleSet, System};
pub(crate) use search::{Candidate, Filling, Search, Start};
pub(crate) use ticks::anchor_of;
pub use trial::Trial;

use crate::info::Text;
use crate::key::{BackfillKey, QueueKey};
use crate::schema::v1;
use crate::slab::Slab;
use crate::stats::{Histogram, QUALITY_BOUNDS, TICK_BOUNDS_S, WAIT_BOUNDS_S};

/// Rules of a paused queue, under which nothing is searched.
const STANDIN: &str = r#"{"name": "paused", "sides": [{"name": "side", "min": 1, "max": 200}]}"#;
/// Queues of one matcher.
pub(crate) const QUEUES_MAX: usize = 1_024;

/// A queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) name: String,
    /// The rule set as JSON.
    pub(crate) source: String,
    compiled: Option<Arc<Compiled>>,
    /// Why this release does not take its rule set: nobody is matched until it has another one.
    pub(crate) paused: Option<String>,
    pub(crate) pool: Pool,
    /// Tickets that search, are proposed or wait for their match's server.
    pub(crate) live: u64,
    /// Tickets in proposals; counted again after a restart.
    pub(crate) proposed: u64,
    pub(crate) regions: Vec<Text>,
    /// Time when tickets relax or time out.
    pub(crate) due: Due,
    /// Time when the next tick begins; 0: nothing to do.
    tick_at: u64,
    searching: bool,
    /// Time of the tick under way.
    tick_now: u64,
    /// Turns that are given from here on belong to the next tick.
    turns_until: u64,
    /// Steps that searches which go on have left in this tick.
    steps_left: u64,
    pub(crate) backfills: BTreeSet<BackfillKey>,
    pub(crate) estimates: Estimates,
    pub(crate) figures: QueueCounters,
    /// Mode of its rooms.
    pub(crate) mode: u16,
    /// The round of telling tickets how they stand that is under way.
    pub(crate) round: Option<Round>,
    /// True if a round is under way or will be.
    pub(crate) tells: bool,
    pub(crate) observed: Observed,
}

/// Measurements since the start of the process.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) qualities: Histogram,
    pub(crate) waits: Histogram,
    pub(crate) ticks: Histogram,
    /// What the slices of the tick under way took, in s.
    under_way: f64,
}

impl Default for Observed {
    fn default() -> Observed {
        let (waits, ticks) = (Histogram::new(WAIT_BOUNDS_S), Histogram::new(TICK_BOUNDS_S));
        Observed { qualities: Histogram::new(QUALITY_BOUNDS), waits, ticks, under_way: 0.0 }
    }
}

/// A part of a tick that was just done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    queue: QueueKey,
    /// True if the tick ended with it.
    ended: bool,
    /// Its work.
    steps: u64,
}

/// Counters of a queue since it was made.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueCounters {
    pub(crate) matches: u64,
    pub(crate) timed_out: u64,
    pub(crate) cancelled: u64,
    pub(crate) declined: u64,
    pub(crate) failed: u64,
    pub(crate) scans: u64,
    /// Matches by the level that they needed.
    pub(crate) expansions: Vec<u64>,
    /// Matches by quality, in twentieths.
    pub(crate) qualities: Vec<u64>,
    /// Matches of the last 5 minutes: (10 s step, count).
    recent: VecDeque<(u64, u64)>,
}

const RECENT_STEP_MS: u64 = 10_000;
const RECENT_STEPS: u64 = 30;

impl QueueCounters {
    pub(crate) fn record(&mut self, now: u64, level: u8, quality: f64) {
        self.matches += 1;
        let level = usize::from(level);
        if self.expansions.len() <= level {
            self.expansions.resize(level + 1, 0);
        }
        self.expansions[level] += 1;
        self.qualities.resize(20, 0);
        self.qualities[((quality * 20.0) as usize).min(19)] += 1;
        let step = now / RECENT_STEP_MS;
        match self.recent.back_mut() {
            Some((last, count)) if *last == step => *count += 1,
            _ => self.recent.push_back((step, 1)),
        }
        while self.recent.front().is_some_and(|(first, _)| first + RECENT_STEPS <= step) {
            self.recent.pop_front();
        }
    }

    pub(crate) fn per_minute(&self, now: u64) -> f64 {
        let from = (now / RECENT_STEP_MS).saturating_sub(RECENT_STEPS);
        let count: u64 = self.recent.iter().filter(|(step, _)| *step > from).map(|(_, count)| count).sum();
        count as f64 / (RECENT_STEPS * RECENT_STEP_MS) as f64 * 60_000.0
    }

    /// The quality that a part of the matches did not reach.
    pub(crate) fn quality(&self, part: f64) -> f64 {
        let total: u64 = self.qualities.iter().sum();
        let mut below = 0;
        for (bucket, count) in self.qualities.iter().enumerate() {
            below += count;
            if below as f64 >= total as f64 * part && total > 0 {
                return (bucket as f64 + 0.5) / 20.0;
            }
        }
        0.0
    }
}

impl Queue {
    /// Returns whether a tick is under way.
    pub(crate) fn is_searching(&self) -> bool {
        self.searching
    }

    /// Its rules.
    ///
    /// # Panics
    /// Never: they are compiled when a queue is made and when a snapshot is read.
    pub(crate) fn rules(&self) -> Arc<Compiled> {
        Arc::clone(self.compiled.as_ref().expect("compiled when made or restored"))
    }
}

/// Every queue, by index and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    pub(crate) list: Slab<QueueKey, Queue>,
    pub(crate) by_name: BTreeMap<String, QueueKey>,
    /// Queues that search.
    searching: BTreeSet<QueueKey>,
}

impl Queues {
    pub(crate) fn find(&self, name: &[u8]) -> Option<QueueKey> {
        self.by_name.get(std::str::from_utf8(name).ok()?).copied()
    }

    pub(crate) fn is_searching(&self) -> bool {
        !self.searching.is_empty()
    }

    pub(crate) fn save(&self) -> Vec<v1::Queue<'_>> {
        self.list.iter().map(|(_, queue)| queue.save()).collect()
    }

    /// Queues without tickets. One whose rule set this release does not take is paused.
    pub(crate) fn load(saved: &[v1::Queue<'_>]) -> Result<Queues, &'static str> {
        let mut queues = Queues::default();
        for saved in saved {
            let queue = Queue::load(saved)?;
            let (name, searching) = (queue.name.clone(), queue.searching);
            let index = queues.list.insert(queue);
            if searching {
                queues.searching.insert(index);
            }
            if queues.by_name.insert(name, index).is_some() {
                return Err("a queue is there twice");
            }
        }
        Ok(queues)
    }
}

impl Queue {
    fn save(&self) -> v1::Queue<'_> {
        let figures = &self.figures;
        v1::Queue {
            name: &self.name,
            rules: &self.source,
            mode: self.mode,
            regions: self.regions.iter().map(|region| &region[..]).collect(),
            backfills: self.backfills.iter().map(|own| own.index()).collect(),
            tick_at: self.tick_at,
            searching: self.searching,
            tick_now: self.tick_now,
            turns_until: self.turns_until,
            steps_left: self.steps_left,
            pool: self.pool.save(),
            due: self.due.save(),
            counters: v1::Counters {
                matches: figures.matches,
                timed_out: figures.timed_out,
                cancelled: figures.cancelled,
                declined: figures.declined,
                failed: figures.failed,
                scans: figures.scans,
                expansions: figures.expansions.clone(),
                qualities: figures.qualities.clone(),
                recent: figures.recent.iter().copied().collect(),
            },
            estimates: self.estimates.save(),
            updates: self.round.as_ref().map(Round::save),
            updates_run: self.tells,
        }
    }

    fn load(saved: &v1::Queue<'_>) -> Result<Queue, &'static str> {
        let compile = |source: &str| RuleSet::parse(source.as_bytes()).and_then(Compiled::new);
        let (compiled, paused) = match compile(saved.rules) {
            Ok(compiled) => (Ok(compiled), None),
            Err(problem) => (compile(STANDIN), Some(problem.to_string())),
        };
        let counters = &saved.counters;
        Ok(Queue {
            name: saved.name.to_owned(),
            source: saved.rules.to_owned(),
            compiled: Some(Arc::new(compiled.map_err(|_| "the rules of a paused queue are not in order")?)),
            searching: saved.searching && paused.is_none(),
            paused,
            pool: Pool::load(&saved.pool)?,
            live: 0,
            proposed: 0,
            regions: saved.regions.iter().map(|region| Text::from_slice(region)).collect(),
            due: Due::load(&saved.due),
            tick_at: saved.tick_at,
            tick_now: saved.tick_now,
            turns_until: saved.turns_until,
            steps_left: saved.steps_left,
            backfills: saved.backfills.iter().copied().map(BackfillKey::new).collect(),
            estimates: Estimates::load(&saved.estimates)?,
            figures: QueueCounters {
                matches: counters.matches,
                timed_out: counters.timed_out,
                cancelled: counters.cancelled,
                declined: counters.declined,
                failed: counters.failed,
                scans: counters.scans,
                expansions: counters.expansions.clone(),
                qualities: counters.qualities.clone(),
                recent: counters.recent.iter().copied().collect(),
            },
            mode: saved.mode,
            round: saved.updates.as_ref().map(Round::load),
            tells: saved.updates_run,
            observed: Observed::default(),
        })
    }
}
