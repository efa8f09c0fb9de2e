//! Queues: a rule set each, the tickets that wait under it, and the search among them.
//!
//! A *tick* begins when something may have changed: a ticket came, relaxed, or left a search that
//! had ended at its limit. It first does what is due by time, then tries *anchors* in the order of
//! fairness. Work is cut into slices of a bounded number of steps, between which requests are
//! served; the order of anchors is kept, so that a tick goes on where it stopped. The bound counts
//! steps and not time, so that a replay cuts at the same places.

mod anchors;
mod backfill;
mod check;
pub(crate) mod compiled;
mod copied;
mod due;
mod estimate;
mod facts;
mod order;
mod pool;
mod positions;
mod round;
#[cfg(test)]
mod rule_tests;
mod rules;
pub(crate) mod ruleset;
mod search;
mod ticket;
mod tickets;
mod ticks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(crate) use anchors::{Anchor, Seeker};
pub(crate) use backfill::{Backfill, BackfillFacts};
pub(crate) use compiled::{Compiled, Obstacle};
pub(crate) use copied::Copied;
use due::{Due, Waiting};
use estimate::{Estimates, Kind};
pub(crate) use facts::{Facts, PlayerFacts, PlayerInput, REGIONS_MAX, hash as role_hash};
pub(crate) use pool::number;
use pool::{Hot, Key, Partition, Pool, Scan, ordered};
pub(crate) use positions::assign;
pub(crate) use round::Round;
pub(crate) use rules::{Placed, View};
pub(crate) use ruleset::{Assign, BackfillPriority, OnMemberLost, OnNo, RuleKind, RuleSet};
pub use ruleset::{QueueRules, RuleProblem};
use search::{Candidate, Start};
pub(crate) use search::{Filling, Search};
use ticket::EndedTickets;
pub(crate) use ticket::{PLAYERS_MAX, PRIORITIES, State, Ticket, TicketPlayer, distance, parse_players};
pub(crate) use tickets::SORTED_PER_STEP;
pub(crate) use ticks::{ANCHOR_STEPS, Found, SLICE_STEPS, Slice};

use crate::id::Id;
use crate::info::Text;
use crate::key::{BackfillKey, PlayerKey, QueueKey, TicketKey};
use crate::problem::ensure;
use crate::schema::v1;
use crate::slab::Slab;
use crate::stats::{Histogram, QUALITY_BOUNDS, TICK_BOUNDS_S, WAIT_BOUNDS_S};

/// Reason why nothing is searched in a queue that was stored.
#[derive(Clone, Debug)]
pub(crate) enum Paused {
    /// This release does not take its rule set.
    ByRules(String),
    /// The rules file has a mode of its name that players join by themselves.
    ByMode(RuleProblem),
}

impl std::fmt::Display for Paused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Paused::ByRules(why) => {
                write!(f, "this release does not take its rule set ({why}); put another one")
            }
            Paused::ByMode(problem) => problem.reason.fmt(f),
        }
    }
}

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
    /// The rule set that the rules file had for it last.
    configured: Option<String>,
    compiled: Option<Arc<Compiled>>,
    /// Reason why nobody is matched.
    pub(crate) paused: Option<Paused>,
    pub(crate) pool: Pool,
    /// Tickets that search, are proposed or wait for their match's server.
    pub(crate) live: u64,
    /// Tickets in proposals; counted again after a restart.
    pub(crate) proposed: u64,
    /// Tickets that are held back; counted again after a restart.
    pub(crate) held: u64,
    pub(crate) regions: Vec<Text>,
    /// Time when tickets relax or time out.
    due: Due,
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
    round: Option<Round>,
    /// True if a round is under way or will be.
    tells: bool,
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
    /// Its rule set as it was put.
    pub(crate) fn as_put(&self) -> QueueRules {
        QueueRules { name: self.name.clone(), source: self.source.clone() }
    }

    /// The rule set that the rules file had for it last.
    pub(crate) fn configured(&self) -> Option<&str> {
        self.configured.as_deref()
    }

    /// Time when the next tick begins; 0: nothing to do.
    pub(crate) fn tick_at(&self) -> u64 {
        self.tick_at
    }

    /// Time of the tick under way.
    pub(crate) fn searches_since(&self) -> Option<u64> {
        self.searching.then_some(self.tick_now)
    }

    /// Its rules.
    ///
    /// # Panics
    /// Never: they are compiled when a queue is made and when a snapshot is read.
    pub(crate) fn rules(&self) -> Arc<Compiled> {
        Arc::clone(self.compiled.as_ref().expect("compiled when made or restored"))
    }
}

/// Every queue with its tickets and backfills. What they hold is read through a key and changed by
/// these methods only.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    list: Slab<QueueKey, Queue>,
    by_name: BTreeMap<String, QueueKey>,
    /// Queues that search.
    searching: BTreeSet<QueueKey>,
    tickets: Slab<TicketKey, Ticket>,
    waiting: Waiting,
    /// Tickets that have not ended.
    live: usize,
    /// In order of time: when each is forgotten.
    ended: EndedTickets,
    backfills: Slab<BackfillKey, Backfill>,
    /// Memory for the neighbours of an anchor.
    near: Vec<Candidate>,
}

impl std::ops::Index<QueueKey> for Queues {
    type Output = Queue;

    #[inline]
    fn index(&self, key: QueueKey) -> &Queue {
        &self.list[key]
    }
}

impl std::ops::Index<TicketKey> for Queues {
    type Output = Ticket;

    #[inline]
    fn index(&self, key: TicketKey) -> &Ticket {
        &self.tickets[key]
    }
}

impl std::ops::Index<BackfillKey> for Queues {
    type Output = Backfill;

    #[inline]
    fn index(&self, key: BackfillKey) -> &Backfill {
        &self.backfills[key]
    }
}

impl Queues {
    pub(crate) fn find(&self, name: &[u8]) -> Option<QueueKey> {
        self.by_name.get(std::str::from_utf8(name).ok()?).copied()
    }

    /// Queues in the order of their names.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = QueueKey> + '_ {
        self.by_name.values().copied()
    }

    /// Queues in the order in which they were made.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (QueueKey, &Queue)> {
        self.list.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn get(&self, key: QueueKey) -> Option<&Queue> {
        self.list.get(key)
    }

    pub(crate) fn is_searching(&self) -> bool {
        !self.searching.is_empty()
    }

    /// Makes a queue without tickets.
    pub(crate) fn make(&mut self, rules: &QueueRules, compiled: Compiled, mode: u16, now: u64) -> QueueKey {
        let key = self.list.insert(Queue {
            name: rules.name.clone(),
            source: rules.source.clone(),
            configured: None,
            compiled: Some(Arc::new(compiled)),
            paused: None,
            pool: Pool::default(),
            live: 0,
            proposed: 0,
            held: 0,
            regions: Vec::new(),
            due: Due::default(),
            tick_at: 0,
            searching: false,
            tick_now: now,
            turns_until: 0,
            steps_left: 0,
            backfills: BTreeSet::new(),
            estimates: Estimates::default(),
            figures: QueueCounters::default(),
            mode,
            round: None,
            tells: false,
            observed: Observed::default(),
        });
        self.by_name.insert(rules.name.clone(), key);
        key
    }

    /// Gives a queue other rules, once its tickets have left the pool.
    pub(crate) fn replace(&mut self, key: QueueKey, rules: &QueueRules, compiled: Compiled, mode: u16) {
        let queue = &mut self.list[key];
        (queue.source, queue.compiled) = (rules.source.clone(), Some(Arc::new(compiled)));
        (queue.mode, queue.paused) = (mode, None);
    }

    /// Pauses a queue whose name is that of a mode, or lets it go on if none has its name any more.
    /// Returns whether it searches now.
    pub(crate) fn note_mode_of(&mut self, key: QueueKey, problem: Option<RuleProblem>) -> bool {
        let queue = &mut self.list[key];
        if !matches!(queue.paused, Some(Paused::ByRules(_))) {
            queue.paused = problem.map(Paused::ByMode);
        }
        queue.paused.is_none()
    }

    /// Returns whether the rules file says something else of a queue than when it was last read.
    pub(crate) fn is_news(&self, rules: &QueueRules) -> bool {
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        let known = self.find(rules.name.as_bytes()).and_then(|key| self[key].configured.as_deref());
        known.and_then(json) != json(&rules.source)
    }

    /// Notes what the rules file says of a queue.
    pub(crate) fn note_configured(&mut self, key: QueueKey, rules: &str) {
        self.list[key].configured = Some(rules.to_owned());
    }

    /// Adds one to a counter of a queue.
    pub(crate) fn count(&mut self, key: QueueKey, counter: impl Fn(&mut QueueCounters) -> &mut u64) {
        *counter(&mut self.list[key].figures) += 1;
    }

    /// Facts of a party, whose regions the queue learns.
    pub(crate) fn facts(&mut self, key: QueueKey, party: &[PlayerInput<'_>]) -> Result<Facts, String> {
        let queue = &mut self.list[key];
        let rules = queue.rules();
        rules.facts(party, &mut queue.regions)
    }

    /// The number of a region in a queue, which learns it if there is room.
    pub(crate) fn region(&mut self, key: QueueKey, name: &Text) -> Option<u16> {
        let regions = &mut self.list[key].regions;
        let known = regions.iter().position(|known| known == name);
        let at = known.or_else(|| {
            regions.push(name.clone());
            (regions.len() <= REGIONS_MAX).then(|| regions.len() - 1)
        });
        regions.truncate(REGIONS_MAX);
        at.map(|at| at as u16)
    }

    /// Counts a match whose seats are there.
    pub(crate) fn note_match(&mut self, key: QueueKey, now: u64, level: u8, quality: f64) {
        let queue = &mut self.list[key];
        queue.figures.record(now, level, quality);
        queue.observed.qualities.observe(quality);
    }

    pub(crate) fn save(&self) -> Vec<v1::Queue<'_>> {
        self.list.iter().map(|(_, queue)| queue.save()).collect()
    }

    /// Queues with their tickets and backfills, and all that is derived from them. A queue whose
    /// rule set this release does not take is paused.
    pub(crate) fn load(saved: &v1::State<'_>, unplaced: &'static str) -> Result<Queues, &'static str> {
        let mut queues = Queues::default();
        for saved in &saved.queues {
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
        queues.load_backfills(&saved.backfills, unplaced)?;
        queues.load_tickets(saved, unplaced)?;
        Ok(queues)
    }

    /// Checks each queue with its tickets and backfills: that `has_ticket` holds for the players of
    /// a live ticket, and `has_backfill` for the room of a backfill.
    pub(crate) fn check_invariants(
        &self,
        has_ticket: impl Fn(PlayerKey, TicketKey) -> bool,
        has_backfill: impl Fn(Id, BackfillKey) -> bool,
    ) -> Result<(), &'static str> {
        self.check_backfills(has_backfill)?;
        let mut live = self.check_tickets(has_ticket)?;
        for (index, queue) in self.list.iter() {
            let counts = live.remove(&index).unwrap_or_default();
            let all = [queue.live, queue.proposed, queue.pool.size, queue.held];
            ensure(all == counts, "the counts of a queue")?;
            ensure(queue.pool.is_counted(), "the counts of a pool")?;
        }
        Ok(())
    }
}

impl Queue {
    fn save(&self) -> v1::Queue<'_> {
        let figures = &self.figures;
        v1::Queue {
            name: &self.name,
            rules: &self.source,
            configured: self.configured.as_deref(),
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
            Err(problem) => (compile(STANDIN), Some(Paused::ByRules(problem.to_string()))),
        };
        let counters = &saved.counters;
        Ok(Queue {
            name: saved.name.to_owned(),
            source: saved.rules.to_owned(),
            configured: saved.configured.map(str::to_owned),
            compiled: Some(Arc::new(compiled.map_err(|_| "the rules of a paused queue are not in order")?)),
            searching: saved.searching && paused.is_none(),
            paused,
            pool: Pool::load(&saved.pool)?,
            live: 0,
            proposed: 0,
            held: 0,
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
