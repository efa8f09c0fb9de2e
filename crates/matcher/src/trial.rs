//! Trial of a draft of a rule set and of the active rules on a copy of a queue's pool.
//!
//! The copy is made on the matcher's thread, by steps, and changes nothing; what comes of it is
//! worked out by two matchers of their own, wherever the caller likes. They do what the real one
//! does, but that nobody comes or leaves, that every proposal is accepted and that a match needs no
//! server. Backfills are left out.

use std::collections::BTreeMap;

use throng_wire::matcher::{Status, write_bool, write_bytes, write_nested, write_u64};
use throng_wire::{fields, write_varint};

use crate::config::{Caller, Config, Scope};
use crate::id::Id;
use crate::info::{Text, bytes};
use crate::key::{QueueKey, TicketKey};
use crate::matcher::{Matcher, require};
use crate::notices::Notices;
use crate::problem::Outcome;
use crate::queue::{Anchor, Copied, QueueRules, SLICE_STEPS, State, TicketPlayer};
use crate::queue_service::refused;
use crate::rating::RatingCopy;
use crate::timers::Timer;
use crate::turn::Turn;
use crate::wall::WallMs;

/// Tickets that are copied, the first in the order of fairness.
const COPIED_MAX: usize = 20_000;
/// Tickets that one step looks at, and copies: each is about half a millisecond.
const LOOKED_AT: u32 = 2_048;
const COPIED: usize = 512;
/// Time that a trial looks ahead, unless the request says.
const SECONDS: u64 = 60;
/// The furthest; matches stay known for longer than that.
const SECONDS_MAX: u64 = 3_600;
/// Work of each side, in the steps of a search: about a second.
const STEPS_MAX: u64 = 1_000 * SLICE_STEPS;
/// Cost of an input beside its steps.
const INPUT_STEPS: u64 = 400;
/// Reasons for which tickets fail that are told, the most frequent.
const REASONS_MAX: usize = 10;

/// A copy of a queue's pool and the rules to try on it. It is made by steps, so that requests do
/// not wait for it; one of a small pool has one step.
#[derive(Debug)]
pub struct Trial {
    draft: QueueRules,
    /// The draft's pool of ratings, if tickets are checked again by ratings as they are now.
    rated: Option<String>,
    live: Option<Live>,
    ratings: Option<RatingCopy>,
    now: u64,
    seconds: u64,
    /// Tickets to copy; the number of the next ticket to look at.
    chosen: Vec<Anchor>,
    next: Option<u32>,
}

/// A queue as it is.
#[derive(Debug)]
struct Live {
    index: QueueKey,
    rules: QueueRules,
    pool_size: u64,
    tickets: Vec<Copied>,
    regions: Vec<Text>,
    /// Time of the state, which may be earlier than that of the request.
    now: u64,
    tick_at: u64,
    /// Time of the tick under way.
    searches: Option<u64>,
}

impl Matcher {
    /// Begins the copy that a request for a trial is about, at wall time `now`.
    ///
    /// # Errors
    /// The status and the body of the refusal: `FORBIDDEN`, or `RULE_INVALID` as `PutQueue` would
    /// answer.
    pub fn trial(
        &self,
        WallMs(now): WallMs,
        caller: Caller<'_>,
        body: &[u8],
    ) -> Result<Trial, (Status, Vec<u8>)> {
        self.begin_trial(now, caller, body).map_err(|problem| {
            let mut answer = Vec::new();
            problem.write(&mut answer);
            (problem.status, answer)
        })
    }

    /// The whole of it, at once.
    pub(crate) fn try_queue(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let mut trial = self.begin_trial(self.clock, turn.caller, body)?;
        while !trial.copy(self) {}
        turn.answer.extend_from_slice(&trial.run());
        Ok(())
    }

    fn begin_trial(&self, now: u64, caller: Caller<'_>, body: &[u8]) -> Outcome<Trial> {
        require(caller, Scope::Admin)?;
        let (mut json, mut seconds) = (&[][..], 0);
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => json = bytes(&field)?,
                2 => seconds = field.scalar,
                _ => {}
            }
        }
        let draft = QueueRules::parse(json).map_err(refused)?;
        let set = self.check_rules(&draft).map_err(refused)?.set;
        let live = self.queues.find(draft.name().as_bytes()).map(|index| self.copy_queue(index));
        let is_same = live.as_ref().is_some_and(|live| live.rules == draft);
        let longest = live.as_ref().map_or(0, |live| self.queues[live.index].rules().set.timeout_s);
        let longest = longest.max(set.timeout_s).min(SECONDS_MAX);
        Ok(Trial {
            draft,
            rated: set.rating.filter(|_| !is_same).map(|rating| rating.pool),
            next: live.as_ref().map(|_| 0),
            live,
            ratings: None,
            now: now.max(self.now),
            seconds: if seconds == 0 { SECONDS } else { seconds }.min(longest),
            chosen: Vec::new(),
        })
    }

    fn copy_queue(&self, index: QueueKey) -> Live {
        let queue = &self.queues[index];
        Live {
            index,
            rules: queue.as_put(),
            pool_size: queue.pool.size,
            tickets: Vec::new(),
            regions: queue.regions.clone(),
            now: self.now,
            tick_at: queue.tick_at(),
            searches: queue.searches_since(),
        }
    }
}

impl Trial {
    /// Copies some more, of the matcher that it began with. Whether all is there. Cost: about a
    /// millisecond.
    pub fn copy(&mut self, matcher: &Matcher) -> bool {
        let Some(live) = &mut self.live else { return true };
        if matcher.queues[live.index].source != live.rules.source() {
            // The copy is of other rules.
            *live = matcher.copy_queue(live.index);
            (self.now, self.ratings, self.next) = (self.now.max(live.now), None, Some(0));
            self.chosen.clear();
        }
        if let Some(from) = self.next {
            let searches = |ticket: &TicketKey| matcher.queues.searches(*ticket, live.index);
            let to = from.saturating_add(LOOKED_AT).min(matcher.queues.tickets_end());
            let anchors = (from..to).map(TicketKey::new).filter(searches).map(|at| matcher.queues.anchor(at));
            // Not those that came since it began.
            self.chosen.extend(anchors.filter(|anchor| anchor.created <= live.now));
            self.next = (to < matcher.queues.tickets_end()).then_some(to);
            let most = if self.next.is_some() { 2 * COPIED_MAX } else { COPIED_MAX };
            if self.chosen.len() > most {
                self.chosen.select_nth_unstable(COPIED_MAX);
                self.chosen.truncate(COPIED_MAX);
            }
            if self.next.is_some() {
                return false;
            }
            // By number, and from the end on.
            self.chosen.sort_unstable_by_key(|anchor| std::cmp::Reverse(anchor.who));
        }
        let before = live.tickets.len();
        for anchor in self.chosen.drain(self.chosen.len().saturating_sub(COPIED)..).rev() {
            // It may have left meanwhile, and another may have its number.
            let stays = |ticket: &TicketKey| {
                matcher.queues.searches(*ticket, live.index) && matcher.queues.anchor(*ticket) == anchor
            };
            if let Some(ticket) = anchor.ticket().filter(stays) {
                live.tickets.push(matcher.queues.copy_ticket(ticket));
            }
        }
        if let Some(pool) = &self.rated {
            let players = live.tickets[before..].iter().flat_map(|copied| &copied.ticket.players);
            let roles = players.filter_map(|player| Some(matcher.people[player.player?].id().clone()));
            match (&mut self.ratings, matcher.ratings.copy(pool, roles)) {
                (Some(known), Some(more)) => known.add(more),
                (known @ None, more) => *known = more,
                _ => {}
            }
        }
        self.chosen.is_empty()
    }
}

/// The same rules for a trial: everybody accepts, no match waits for a server, no
/// notification is sent.
fn for_trial(rules: &QueueRules) -> QueueRules {
    rules.changed(|members| {
        members.remove("accept");
        members.remove("allocator");
        members.insert("assign".to_owned(), "none".into());
        members.insert("updates_s".to_owned(), 0.into());
    })
}

impl Trial {
    /// Result of the trial, once all is copied: the body of the answer. Cost: up to some seconds,
    /// by a bound of its own.
    #[must_use]
    pub fn run(&self) -> Vec<u8> {
        let mut answer = Vec::new();
        write_bytes(&mut answer, 1, self.draft.name().as_bytes());
        write_u64(&mut answer, 2, self.live.as_ref().map_or(0, |live| live.pool_size));
        write_u64(&mut answer, 3, self.live.as_ref().map_or(0, |live| live.tickets.len() as u64));
        write_u64(&mut answer, 4, self.seconds);
        let draft = self.simulate(Some(&self.draft));
        write_nested(&mut answer, 5, |out| draft.write(out));
        if self.live.is_some() {
            let live = self.simulate(None);
            write_nested(&mut answer, 6, |out| live.write(out));
        }
        answer
    }

    fn simulate(&self, draft: Option<&QueueRules>) -> SideReport {
        let mut matcher = self.matcher();
        let (mut notices, mut figures) = (Notices::default(), SideReport::default());
        if let Some(draft) = draft {
            let mut no_answer = Vec::new();
            let turn = &mut Turn::of_matcher(self.now, &mut no_answer, &mut notices);
            matcher.advance(turn, self.now);
            // It was checked; what ends is counted below.
            let draft = for_trial(draft);
            if let Ok(compiled) = draft.compile() {
                matcher.set_queue(turn, &draft, compiled);
            }
            figures.take_ended(&mut matcher);
        }
        let until = self.now + self.seconds * 1_000;
        let mut steps = 0;
        while let Some(at) = matcher.next_timeout().filter(|at| *at <= WallMs(until)) {
            if steps >= STEPS_MAX {
                figures.cut = true;
                break;
            }
            matcher.handle_timeout(at, &mut notices);
            notices.clear();
            steps += INPUT_STEPS + matcher.scratch.slice.take().map_or(0, |slice| slice.steps);
            figures.take_ended(&mut matcher);
        }
        figures.reached =
            if figures.cut { matcher.now.saturating_sub(self.now) } else { self.seconds * 1_000 };
        figures.finish(&matcher);
        figures
    }

    /// A matcher with this queue alone, as it is.
    fn matcher(&self) -> Matcher {
        let now = self.live.as_ref().map_or(self.now, |live| live.now);
        let mut matcher = Matcher::new(Config::default(), [0; 32], WallMs(now));
        let Some(live) = &self.live else { return matcher };
        if let Some(ratings) = &self.ratings {
            matcher.ratings.take_copy(ratings.clone());
        }
        // It was checked when it was put.
        let (mut no_answer, mut notices) = (Vec::new(), Notices::default());
        let turn = &mut Turn::of_matcher(now, &mut no_answer, &mut notices);
        let rules = for_trial(&live.rules);
        let Ok(compiled) = rules.compile() else { return matcher };
        let queue = matcher.set_queue(turn, &rules, compiled);
        let people = &mut matcher.people;
        matcher.queues.begin_with(queue, &live.regions, &live.tickets, |ticket, key| {
            let enter = |member: &TicketPlayer| {
                let (role, server) = member.names();
                let server = people.server_entry(server);
                let player = people.player_entry(role, server);
                people.add_ticket(player, key);
                player
            };
            ticket.players.iter().map(enter).collect()
        });
        matcher.queues.begin_at(queue, live.searches, live.tick_at);
        if live.searches.is_none() && live.tick_at > 0 {
            matcher.timers.set(live.tick_at, Timer::Tick(queue));
        } else if live.searches.is_none() {
            matcher.schedule(queue);
        }
        matcher
    }
}

/// Result of one side.
#[derive(Debug, Default)]
struct SideReport {
    players: u64,
    timed_out: u64,
    failed: u64,
    reasons: BTreeMap<Box<[u8]>, u64>,
    /// Waits of matched tickets, in ms.
    waits: Vec<u64>,
    qualities: Vec<f64>,
    /// Least and greatest main number of each match.
    ranges: BTreeMap<Id, (f64, f64)>,
    spreads: Vec<f64>,
    expansions: Vec<u64>,
    left: u64,
    cut: bool,
    reached: u64,
}

impl SideReport {
    /// Counts tickets that have ended, and forgets them.
    fn take_ended(&mut self, matcher: &mut Matcher) {
        while let Some((index, _)) = matcher.queues.first_ended() {
            let ticket = &matcher.queues[index];
            match ticket.state {
                State::Matched => {
                    self.players += ticket.players.len() as u64;
                    self.waits.push(matcher.now - ticket.created);
                    let main = matcher.queues[ticket.queue].rules().main;
                    let value = main.map(|key| ticket.facts.value(key)).filter(|value| value.is_finite());
                    if let (Some(id), Some(value)) = (ticket.matched, value) {
                        let (low, high) = self.ranges.entry(id).or_insert((value, value));
                        (*low, *high) = (low.min(value), high.max(value));
                    }
                }
                State::TimedOut => self.timed_out += 1,
                _ => {
                    self.failed += 1;
                    *self.reasons.entry(ticket.reason.clone()).or_default() += 1;
                }
            }
            matcher.queues.forget_first_ended();
        }
    }

    fn finish(&mut self, matcher: &Matcher) {
        self.left = matcher.queues.live() as u64;
        self.qualities = matcher.matches.iter().map(|(_, found)| found.quality()).collect();
        if let Some((_, queue)) = matcher.queues.iter().next() {
            self.expansions.clone_from(&queue.figures.expansions);
        }
        self.spreads = std::mem::take(&mut self.ranges).into_values().map(|(low, high)| high - low).collect();
        self.waits.sort_unstable();
        self.qualities.sort_unstable_by(f64::total_cmp);
        self.spreads.sort_unstable_by(f64::total_cmp);
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_u64(out, 1, self.qualities.len() as u64);
        write_u64(out, 2, self.waits.len() as u64);
        write_u64(out, 3, self.players);
        write_u64(out, 4, self.left);
        write_u64(out, 5, self.timed_out);
        write_u64(out, 6, self.failed);
        let mut reasons: Vec<(&Box<[u8]>, &u64)> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, tickets)| std::cmp::Reverse(**tickets));
        for (why, tickets) in reasons.into_iter().take(REASONS_MAX) {
            write_nested(out, 7, |out| {
                write_bytes(out, 1, why);
                write_u64(out, 2, *tickets);
            });
        }
        for count in &self.expansions {
            write_varint(out, 8 << 3);
            write_varint(out, *count);
        }
        write_bool(out, 9, self.cut);
        write_u64(out, 10, self.reached);
        for (field, part) in [(11, 0.5), (12, 0.9)] {
            if let Some(wait) = quantile(&self.waits, part) {
                write_varint(out, field << 3);
                write_varint(out, wait);
            }
        }
        let (qualities, spreads) = (&self.qualities, &self.spreads);
        for (field, values, part) in
            [(13, qualities, 0.1), (14, qualities, 0.5), (15, spreads, 0.5), (16, spreads, 1.0)]
        {
            if let Some(value) = quantile(values, part) {
                write_varint(out, field << 3 | 1);
                out.extend_from_slice(&value.to_bits().to_le_bytes());
            }
        }
    }
}

/// The least of sorted values that a part of all does not exceed.
fn quantile<T: Copy>(sorted: &[T], part: f64) -> Option<T> {
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied()
}
