//! Explanation of an unmatched ticket: its nearest candidates and the rules that prevent a match.

use std::collections::BTreeMap;

use throng_wire::matcher::{write_bytes, write_f64, write_nested, write_u64};

use crate::key::TicketKey;
use crate::matcher::Matcher;
use crate::problem::Outcome;
use crate::queue::{Compiled, Obstacle, State, distance};
use crate::ticket::SERVER_LOST;
use crate::turn::Turn;

/// Candidates that are shown.
const CANDIDATES_MAX: usize = 32;
/// Candidates that are looked at for a large match.
const LOOKED_AT_MAX: usize = 512;
/// Neighbours of a search without one of the rules: there are up to 64 rules, and requests wait
/// meanwhile.
const SCAN_MAX: usize = 256;

/// Another ticket and the rules between the two.
struct Shown {
    ticket: TicketKey,
    distance: f64,
    fails: Vec<(String, String)>,
}

impl Matcher {
    pub(crate) fn explain_ticket(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.queues.find_ticket(crate::team::two_texts(body)?.0)?;
        let ticket = &self.queues[index];
        let compiled = self.queues[ticket.queue].rules();
        write_nested(turn.answer, 1, |out| self.write_ticket(index, out));
        if ticket.state != State::Searching {
            write_bytes(turn.answer, 2, b"it does not search");
            return Ok(());
        }
        if let Some(paused) = &self.queues[ticket.queue].paused {
            write_bytes(turn.answer, 2, format!("the queue is paused: {paused}").as_bytes());
            return Ok(());
        }
        if let Some(until) = self.queues.held_until(index) {
            let left = until.saturating_sub(self.clock.max(self.now));
            let why = match &*ticket.reason {
                reason if reason == SERVER_LOST.as_bytes() => {
                    "the server of a player is lost; it searches again when that is back".to_owned()
                }
                _ => format!("the mode's policy did not take its match; it searches again in {left} ms"),
            };
            write_bytes(turn.answer, 2, why.as_bytes());
            return Ok(());
        }
        let level = &compiled.levels[usize::from(ticket.level)];
        let needs: u32 = level.mins.iter().sum();
        let shown = self.candidates(index, &compiled, needs as usize);
        let fits: u64 = shown
            .iter()
            .filter(|other| other.fails.is_empty())
            .map(|other| u64::from(self.queues[other.ticket].facts.size))
            .sum();
        let is_possible = self.queues.finds(index, &compiled);
        let (mut together, mut in_the_way) = (Vec::new(), Vec::new());
        if !is_possible {
            in_the_way = self.in_the_way(index, &compiled);
            let why = match in_the_way.len() {
                1 => "without it a match is found, and without all other rules there is none",
                _ => "without these together a match is found, and without all other rules there is none",
            };
            together = in_the_way.iter().map(|name| (name.clone(), why.to_owned())).collect();
        }
        if !is_possible && in_the_way.is_empty() {
            together = self.short_sides(index, &shown, &compiled);
        }
        let summary = if is_possible {
            "a match is possible; the next tick should make it".to_owned()
        } else if in_the_way.is_empty() {
            self.summary(index, &shown, fits, needs)
        } else {
            let names: Vec<String> = in_the_way.iter().map(|name| format!("`{name}`")).collect();
            format!(
                "{} in the way: a match is found without {}",
                names.join(", "),
                if names.len() > 1 { "them" } else { "it" }
            )
        };
        write_bytes(turn.answer, 2, summary.as_bytes());
        write_u64(turn.answer, 3, u64::from(ticket.level));
        let now = self.clock.max(self.now);
        for other in shown.iter().take(CANDIDATES_MAX) {
            let candidate = &self.queues[other.ticket];
            write_nested(turn.answer, 4, |out| {
                write_bytes(out, 1, &candidate.text());
                write_u64(out, 2, u64::from(candidate.facts.size));
                write_f64(out, 3, other.distance);
                other.fails.iter().for_each(|fail| write_fail(out, 4, fail));
                write_u64(out, 5, now.saturating_sub(candidate.created));
            });
        }
        write_u64(turn.answer, 5, fits);
        write_u64(turn.answer, 6, u64::from(needs));
        together.iter().for_each(|fail| write_fail(turn.answer, 7, fail));
        Ok(())
    }

    /// The rules that keep a ticket from a match: without them the search finds one, and without
    /// all others it does not. None where it finds none without any rule. No smaller set of them
    /// has both properties.
    fn in_the_way(&self, index: TicketKey, compiled: &Compiled) -> Vec<String> {
        let all = compiled.obstacles(self.queues[index].level);
        let finds_without = |left_out: &[Obstacle]| {
            let mut less = compiled.without(left_out);
            less.set.scan_limit = less.set.scan_limit.min(SCAN_MAX).max(less.set.players_max() as usize);
            self.queues.finds(index, &less)
        };
        let but = |some: &[Obstacle]| -> Vec<Obstacle> {
            all.iter().copied().filter(|obstacle| !some.contains(obstacle)).collect()
        };
        let mut named = all.clone();
        if !finds_without(&all) || finds_without(&[]) {
            return Vec::new();
        }
        for obstacle in &all {
            let fewer: Vec<Obstacle> = named.iter().copied().filter(|other| other != obstacle).collect();
            if finds_without(&fewer) && !finds_without(&but(&fewer)) {
                named = fewer;
            }
        }
        named.into_iter().map(|obstacle| compiled.obstacle_name(obstacle)).collect()
    }

    /// The nearest tickets, whether they fit or not, and enough of them for a match; those of other
    /// partitions when there are too few to show.
    fn candidates(&self, index: TicketKey, compiled: &Compiled, players: usize) -> Vec<Shown> {
        let most = (2 * players).clamp(CANDIDATES_MAX, LOOKED_AT_MAX);
        let ticket = &self.queues[index];
        let Some(place) = ticket.place() else { return Vec::new() };
        let pool = &self.queues[ticket.queue].pool;
        let part = &pool.partitions[place.partition];
        let (before, after) = part.order.around(place.key);
        let (before, after) = (before.take(most), after.take(most));
        let mut near: Vec<(f64, TicketKey)> =
            before.chain(after).map(|(key, _)| (distance(*key, place.key), key.1)).collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let elsewhere = pool.in_order().filter(|(other, _)| *other != place.partition);
        let elsewhere = elsewhere.flat_map(|(_, part)| {
            let (before, after) = part.order.around(place.key);
            before.take(2).chain(after.take(2))
        });
        let missing = CANDIDATES_MAX.saturating_sub(near.len());
        near.truncate(most);
        near.extend(elsewhere.map(|(key, _)| (distance(*key, place.key), key.1)).take(missing));
        let own = (&ticket.facts, ticket.level);
        near.into_iter()
            .map(|(distance, other)| {
                let candidate = &self.queues[other];
                let mut fails = Vec::new();
                compiled.pair_violations(own, (&candidate.facts, candidate.level), |rule, why| {
                    fails.push((rule, why))
                });
                Shown { ticket: other, distance, fails }
            })
            .collect()
    }

    /// Sides that a plain filling with the fitting candidates leaves short of players.
    fn short_sides(&self, index: TicketKey, shown: &[Shown], compiled: &Compiled) -> Vec<(String, String)> {
        let ticket = &self.queues[index];
        let mut open: Vec<u32> = compiled.sides.iter().map(|(_, max)| *max).collect();
        let mut level = ticket.level;
        let fitting = shown.iter().filter(|other| other.fails.is_empty()).map(|other| other.ticket);
        for other in std::iter::once(index).chain(fitting) {
            let candidate = &self.queues[other];
            let roomiest = (0..open.len()).max_by_key(|side| (open[*side], std::cmp::Reverse(*side)));
            let Some(side) = roomiest.filter(|side| open[*side] >= candidate.facts.size) else { continue };
            open[side] -= candidate.facts.size;
            level = compiled.join_levels(level, candidate.level);
        }
        let mins = &compiled.levels[usize::from(level)].mins;
        let sides = compiled.sides.iter().zip(mins).zip(&open);
        let short = sides.filter(|(((_, max), min), open)| max - *open < **min);
        short
            .map(|(((name, max), min), open)| {
                (format!("side {name}"), format!("{} of at least {min} players", max - open))
            })
            .collect()
    }

    /// Why no match is found, with the rules or without.
    fn summary(&self, index: TicketKey, shown: &[Shown], fits: u64, needs: u32) -> String {
        let size = u64::from(self.queues[index].facts.size);
        if shown.is_empty() {
            return "no other player waits in this queue".to_owned();
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for rule in shown.iter().flat_map(|other| &other.fails) {
            *counts.entry(&rule.0).or_default() += 1;
        }
        let most = counts.iter().max_by_key(|(_, count)| **count);
        if fits + size < u64::from(needs) {
            let blame = most.map_or(String::new(), |(rule, count)| {
                format!("; `{rule}` rules out {count} of the {} nearest tickets", shown.len())
            });
            return format!("{} of {needs} players fit together{blame}", fits + size);
        }
        "enough players fit one by one, but not all of them together".to_owned()
    }
}

fn write_fail(out: &mut Vec<u8>, field: u32, (rule, why): &(String, String)) {
    write_nested(out, field, |out| {
        write_bytes(out, 1, rule.as_bytes());
        write_bytes(out, 2, why.as_bytes());
    });
}
