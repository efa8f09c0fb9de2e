//! Queues from outside: rule sets put, lists and figures.

use throng_wire::matcher::{Status, write_bytes, write_f64, write_nested, write_u64};
use throng_wire::{fields, write_varint};

use crate::config::{ModeRules, OnFull, Scope, check_queue_name};
use crate::info::bytes;
use crate::key::QueueKey;
use crate::listing::write_page;
use crate::matcher::{Matcher, require};
use crate::problem::{Outcome, Problem, not_found, quote};
use crate::queue::{Compiled, QUEUES_MAX, QueueRules, RuleProblem, number};
use crate::turn::Turn;

/// Buckets of one answer.
const BUCKETS_MAX: usize = 200;

impl Matcher {
    /// The mode that a queue's rooms have: its name, room for all of its players.
    pub(crate) fn put_queue_mode(&mut self, compiled: &Compiled) -> u16 {
        let name = &compiled.set.name;
        let on_full = if compiled.set.backfill.is_some() { OnFull::Keep } else { OnFull::Seal };
        let known = self.config.modes.get(name).cloned();
        let rules = known.unwrap_or(ModeRules { on_full, hidden: true, ..ModeRules::default() });
        self.rooms.modes_mut().put(name, ModeRules { capacity: compiled.set.players_max(), ..rules })
    }

    pub(crate) fn put_queue_request(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        require(turn.caller, Scope::Admin)?;
        let mut json = &[][..];
        for field in fields(body) {
            let field = field?;
            if field.number == 1 {
                json = bytes(&field)?;
            }
        }
        let rules = QueueRules::parse(json).map_err(refused)?;
        let is_new = self.queues.find(rules.name().as_bytes()).is_none();
        // One that the configuration does not list was imported, or removed from it.
        if let Some(mode) = self.rooms.modes().find(rules.name().as_bytes()).filter(|_| is_new) {
            check_queue_name(rules.name(), mode.rules().capacity).map_err(refused)?;
        }
        if is_new && self.queues.len() >= QUEUES_MAX {
            return Err(Problem::new(Status::TooLarge, "the matcher has as many queues as it takes"));
        }
        let rated = rules.rating();
        if rated.is_some_and(|(pool, own)| {
            self.system_of_pool(&pool, rules.name()).is_some_and(|system| system != own)
        }) {
            let reason = "the pool is of the other system; name another pool".to_owned();
            return Err(refused(RuleProblem { path: "rating.system".to_owned(), reason }));
        }
        let index = self.put_queue(turn, &rules).map_err(refused)?;
        self.write_queue(index, turn.answer);
        Ok(())
    }

    pub(crate) fn list_queues(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let from = crate::team::two_texts(body)?.0;
        let name = |index: QueueKey| &self.queues[index].name;
        let all = self.queues.by_name().filter(|index| name(*index).as_bytes() >= from);
        write_page(
            turn.answer,
            2,
            all,
            |index| name(index).clone(),
            |index, out| self.write_queue(index, out),
        );
        Ok(())
    }

    pub(crate) fn write_queue(&self, index: QueueKey, answer: &mut Vec<u8>) {
        let queue = &self.queues[index];
        write_nested(answer, 1, |out| {
            write_bytes(out, 1, queue.name.as_bytes());
            write_bytes(out, 2, queue.rules().set.version.as_bytes());
            write_bytes(out, 3, queue.source.as_bytes());
            write_u64(out, 4, queue.pool.size);
        });
    }

    pub(crate) fn get_queue_stats(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let index = self.queues.find(crate::team::two_texts(body)?.0);
        let index = index.ok_or_else(|| not_found("queue does not exist"))?;
        let (queue, now) = (&self.queues[index], self.clock.max(self.now));
        let figures = &queue.figures;
        write_bytes(turn.answer, 1, queue.name.as_bytes());
        write_u64(turn.answer, 2, queue.pool.size);
        write_f64(turn.answer, 3, figures.per_minute(now));
        write_u64(turn.answer, 4, figures.matches);
        write_u64(turn.answer, 5, figures.timed_out);
        write_u64(turn.answer, 6, figures.cancelled);
        write_u64(turn.answer, 7, figures.declined);
        for (field, part) in [(8, 0.5), (9, 0.9), (10, 0.99)] {
            if let Some(wait) = queue.estimates.quantile(now, part) {
                write_varint(turn.answer, field << 3);
                write_varint(turn.answer, wait);
            }
        }
        write_f64(turn.answer, 11, figures.quality(0.1));
        write_f64(turn.answer, 12, figures.quality(0.5));
        write_u64(turn.answer, 13, queue.pool.partitions.len() as u64);
        write_u64(turn.answer, 14, figures.scans);
        for (field, part) in [(17, 0.5), (18, 0.99)] {
            if let Some(seconds) = queue.observed.ticks.quantile(part) {
                write_varint(turn.answer, field << 3);
                write_varint(turn.answer, (seconds * 1e6) as u64);
            }
        }
        for ((players, from), tickets) in self.buckets(index) {
            write_nested(turn.answer, 15, |out| {
                write_u64(out, 1, u64::from(players));
                write_f64(out, 2, from as f64);
                write_u64(out, 3, tickets);
            });
        }
        for count in &figures.expansions {
            write_varint(turn.answer, 16 << 3);
            write_varint(turn.answer, *count);
        }
        Ok(())
    }

    /// Searching tickets by party size and main number, in whole numbers up to 100 and hundreds
    /// beyond.
    fn buckets(&self, index: QueueKey) -> Vec<((u8, i64), u64)> {
        let mut buckets = std::collections::BTreeMap::new();
        for (_, part) in self.queues[index].pool.partitions.iter() {
            for (key, hot) in part.order.iter() {
                let value = number(key.0);
                let from = if value.abs() < 100.0 { value.floor() } else { (value / 100.0).floor() * 100.0 };
                *buckets.entry((hot.size, from as i64)).or_default() += 1;
            }
        }
        buckets.into_iter().take(BUCKETS_MAX).collect()
    }
}

/// Refusal of a rule set that is not in order.
pub(crate) fn refused(problem: RuleProblem) -> Problem {
    Problem::new(Status::RuleInvalid, problem.to_string()).with("Path", quote(problem.path.as_bytes()))
}
