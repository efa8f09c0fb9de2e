//! Requests about ratings: results, and their effect on every pool.

use std::collections::BTreeMap;

use throng_wire::fields;

use super::systems::{Rating, System, glicko2_period, idle_periods};
use super::{Change, GameResult, Rated, RatingPool, Ratings, Report, Reported};
use crate::config::Scope;
use crate::id::Id;
use crate::info::{Text, check_id, text};
use crate::matcher::{Matcher, require};
use crate::problem::{Outcome, invalid, not_found, too_large};
use crate::queue::{Compiled, role_hash};
use crate::timers::Timer;
use crate::turn::Turn;

const RATINGS_MAX: usize = 1_000;

impl Matcher {
    pub(crate) fn report_result(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        require(turn.caller, Scope::Trusted)?;
        let report = Reported::parse(body)?;
        let roles = report.result.sides.iter().flat_map(|(roles, _)| roles);
        let about = self.rated_by(report.id, report.room, report.pool, roles)?;
        self.rate_report(about, &report, turn.answer)
    }

    /// Counts a result, of a match or room in a pool, once.
    fn rate_report(
        &mut self,
        (about, name, system, period_ms): (Id, String, System, u64),
        report: &Reported<'_>,
        answer: &mut Vec<u8>,
    ) -> Outcome {
        let Reported { result, digest, .. } = report;
        let key = (about, name);
        let known = self.ratings.reports.get(&key).cloned();
        let name = &key.1;
        match &known {
            Some(known) if known.digest == *digest => {
                known.write(answer);
                return Ok(());
            }
            Some(_) if !report.amend => {
                return Err(invalid("the match has another result; `Amend` replaces it"));
            }
            _ => {}
        }
        let changes = self.rate(about, name, system, period_ms, result, known.as_ref())?;
        let mut report = Report { digest: *digest, changes, answer: Vec::new() };
        if let Some(pool) = self.ratings.pools.get(name).filter(|_| known.is_some()) {
            // As they are now, with the games that came after.
            let roles = result.sides.iter().flat_map(|(roles, _)| roles);
            roles.for_each(|role| pool.of(role).write(role, &mut report.answer));
        }
        report.write(answer);
        self.ratings.remember(key, report);
        Ok(())
    }

    /// Subject of a report, and the pool that it changes. Of a room that is no match it is not
    /// known who was there.
    fn rated_by<'a>(
        &self,
        id: &[u8],
        room: &[u8],
        pool: &[u8],
        mut roles: impl Iterator<Item = &'a &'a [u8]>,
    ) -> Outcome<(Id, String, System, u64)> {
        let none = || not_found("the match has no rating pool; name one");
        match self.match_named(id, room) {
            Ok(index) => {
                let found = &self.matches[index];
                let is_strange = |role: &&&[u8]| !found.roster().contains(&role_hash(role));
                let strange = roles.find(is_strange).filter(|_| !found.roster().is_empty());
                if let Some(role) = strange {
                    let role = String::from_utf8_lossy(role);
                    return Err(invalid(format!("`{role}` was not in the match")));
                }
                let rules = self.queues[found.queue()].rules();
                let rule = rules.set.rating.as_ref().ok_or_else(none)?;
                Ok((found.id(), rule.pool.clone(), rule.system, rule.period_s * 1_000))
            }
            Err(problem) if room.is_empty() => Err(problem),
            Err(problem) if pool.is_empty() => {
                let room = &self.rooms[self.find_room(room)?];
                // One that was imported is of a queue, and its match is not known.
                let queue = self.queues.find(self.rooms.mode(room.mode()).name().as_bytes());
                let rules =
                    queue.filter(|_| room.matched().is_none()).map(|queue| self.queues[queue].rules());
                let rules = rules.ok_or(problem)?;
                let rule = rules.set.rating.as_ref().ok_or_else(none)?;
                Ok((room.id(), rule.pool.clone(), rule.system, rule.period_s * 1_000))
            }
            Err(_) => {
                let about = self.rooms[self.find_room(room)?].id();
                let name = String::from_utf8_lossy(pool).into_owned();
                let known = self.ratings.pools.get(&name).map(|known| (known.system, known.period_ms));
                let (system, period_ms) = known.unwrap_or((System::WengLin, 0));
                Ok((about, name, system, period_ms))
            }
        }
    }

    fn rate(
        &mut self,
        about: Id,
        name: &str,
        system: System,
        period_ms: u64,
        result: &GameResult<'_>,
        known: Option<&Report>,
    ) -> Outcome<Vec<Change>> {
        let now = self.now;
        let pool = self.ratings.pool(name, system, period_ms);
        pool.period_ms = period_ms;
        let is_open = pool.games.iter().any(|(id, ..)| *id == about);
        if pool.system == System::Glicko2 && (period_ms > 0 || is_open) {
            let (a, b, score) = result.duel()?;
            if known.is_some() && !is_open {
                return Err(invalid("the rating period of this result is over"));
            }
            let game = (about, Text::from_slice(a), Text::from_slice(b), score);
            match pool.games.iter_mut().find(|(id, ..)| *id == about) {
                Some(known) => *known = game,
                None => pool.games.push(game),
            }
            let unchanged = [a, b].map(|role| {
                let Rated { rating, games } = pool.of(role);
                Change { role: Text::from_slice(role), before: rating, after: rating, games }
            });
            let ends = now + period_ms;
            // The period under way is not longer than one that would begin now.
            if pool.period_ends == 0 || pool.period_ends > ends {
                pool.period_ends = ends;
                self.timers.set(ends, Timer::Period(Text::from_slice(name.as_bytes())));
            }
            return Ok(unchanged.to_vec());
        }
        let changes = match known {
            Some(report) => pool.amended(report, result)?,
            None => pool.after(result)?,
        };
        pool.apply(known.map_or(&[], |report| &report.changes), &changes);
        Ok(changes)
    }

    /// The end of a Glicko-2 period: all of its games count at once; who did not play becomes less
    /// certain.
    pub(crate) fn end_rating_period(&mut self, name: &Text) {
        let now = self.now;
        let shown = String::from_utf8_lossy(name);
        // A period that was cut short has left its timer behind.
        let ends = |pool: &&mut RatingPool| pool.period_ends > 0 && pool.period_ends <= now;
        let Some(pool) = self.ratings.pools.get_mut(&*shown).filter(ends) else { return };
        let games = std::mem::take(&mut pool.games);
        let mut played: BTreeMap<Text, Vec<(Rating, f64)>> = BTreeMap::new();
        for (_, a, b, score) in &games {
            let (of_a, of_b) = (pool.of(a).rating, pool.of(b).rating);
            played.entry(a.clone()).or_default().push((of_b, *score));
            played.entry(b.clone()).or_default().push((of_a, 1.0 - score));
        }
        // Those that passed while the matcher was down end too; no one played in them.
        let missed = (now - pool.period_ends).checked_div(pool.period_ms).unwrap_or(0);
        for (role, rated) in &mut pool.players {
            if !played.contains_key(role) {
                rated.rating = idle_periods(rated.rating, missed + 1);
            }
        }
        for (role, games) in played {
            let before = pool.of(&role);
            let after = idle_periods(glicko2_period(before.rating, &games), missed);
            let rated = Rated { rating: after, games: before.games + games.len() as u64 };
            pool.players.insert(role, rated);
        }
        pool.period_ends =
            if pool.period_ms > 0 { pool.period_ends + (missed + 1) * pool.period_ms } else { 0 };
        if pool.period_ends > 0 {
            self.timers.set(pool.period_ends, Timer::Period(name.clone()));
        }
    }

    /// The system of a pool: that of its ratings, or of a queue but one that declares it.
    pub(crate) fn system_of_pool(&self, name: &str, but: &str) -> Option<System> {
        let others = self.queues.iter().map(|(_, queue)| queue).filter(|queue| queue.name != but);
        let declared = |rules: &Compiled| {
            rules.set.rating.as_ref().filter(|rule| rule.pool == name).map(|rule| rule.system)
        };
        let known = self.ratings.pools.get(name).map(|pool| pool.system);
        known.or_else(|| others.map(|queue| queue.rules()).find_map(|rules| declared(&rules)))
    }

    pub(crate) fn get_ratings(&mut self, turn: &mut Turn<'_>, body: &[u8]) -> Outcome {
        let (mut name, mut roles) = (&[][..], Vec::new());
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => name = text(&field)?,
                2 if roles.len() == RATINGS_MAX => {
                    return Err(too_large(format!("more than {RATINGS_MAX} RoleIDs")));
                }
                2 => {
                    check_id(text(&field)?, "RoleID")?;
                    roles.push(field.value);
                }
                _ => {}
            }
        }
        let name = String::from_utf8_lossy(name);
        match self.ratings.pools.get(&*name) {
            Some(pool) => roles.iter().for_each(|role| pool.of(role).write(role, turn.answer)),
            None => {
                let system = self.system_of_pool(&name, "");
                let system = system.ok_or_else(|| not_found("rating pool does not exist"))?;
                let mut empty = Ratings::default();
                let pool = empty.pool(&name, system, 0);
                roles.iter().for_each(|role| pool.of(role).write(role, turn.answer));
            }
        }
        Ok(())
    }
}
