//! Ratings where there are several shards: results go to the shard of their pool, which tells the others what came of
//! them. So every queue has every rating at hand, and a pool has one order of results.

use serde::{Deserialize, Serialize};
use throng_wire::matcher::Status;

use super::{Rated, Ratings, Reported};
use crate::claims::RateAsked;
use crate::config::{Caller, Scope};
use crate::info::Text;
use crate::matcher::{Matcher, require};
use crate::problem::{Outcome, Problem};
use crate::queue::System;

/// Some players of a pool, as they are rated now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SharedRatings {
    pool: String,
    system: System,
    period_ms: u64,
    players: Vec<(Text, Rated)>,
}

impl SharedRatings {
    /// Adds others of the same pool.
    pub(crate) fn add(&mut self, more: SharedRatings) {
        self.players.extend(more.players);
    }
}

impl Ratings {
    /// How some players of a pool are rated; `None` while there is no such pool.
    pub(crate) fn copy(&self, name: &str, roles: impl Iterator<Item = Text>) -> Option<SharedRatings> {
        let pool = self.pools.get(name)?;
        let players = roles.map(|role| (role.clone(), pool.of(&role))).collect();
        Some(SharedRatings { pool: name.to_owned(), system: pool.system, period_ms: pool.period_ms, players })
    }
}

impl Matcher {
    /// What a report would change, if it is in order.
    pub(crate) fn rating_asked(&self, caller: Caller<'_>, body: &[u8]) -> Option<RateAsked> {
        require(caller, Scope::Trusted).ok()?;
        let report = Reported::parse(body).ok()?;
        let (about, pool, system, period_ms) = self.rated_by(report.id, report.room, report.pool).ok()?;
        Some(RateAsked { about, pool, system, period_ms, body: body.to_vec() })
    }

    /// Executes a report of whatever shard's match.
    pub(crate) fn rate_for_another(&mut self, asked: &RateAsked) -> Result<Vec<u8>, (u16, String)> {
        let mut answer = Vec::new();
        let rated = Reported::parse(&asked.body).and_then(|report| {
            let RateAsked { about, pool, system, period_ms, .. } = asked;
            self.rate_report((*about, pool.clone(), *system, *period_ms), &report, &mut answer)
        });
        match rated {
            Ok(()) => Ok(answer),
            Err(problem) => Err((problem.status as u16, problem.message.into_owned())),
        }
    }

    /// The answer of a report that another shard executed.
    pub(crate) fn answer_rated(result: Result<Vec<u8>, (u16, String)>, answer: &mut Vec<u8>) -> Outcome {
        match result {
            Ok(body) => {
                answer.extend_from_slice(&body);
                Ok(())
            }
            Err((status, message)) => {
                Err(Problem::new(Status::from_code(status).unwrap_or(Status::Internal), message))
            }
        }
    }

    /// Tells the other shards how these players are rated now.
    pub(super) fn share_players(&mut self, name: &str, roles: impl Iterator<Item = Text>) {
        if self.shard.is_alone() {
            return;
        }
        if let Some(ratings) = self.ratings.copy(name, roles) {
            self.share_ratings(&ratings);
        }
    }

    /// The shard of a pool says how players are rated.
    pub(crate) fn take_ratings(&mut self, ratings: SharedRatings) {
        let SharedRatings { pool, system, period_ms, players } = ratings;
        self.ratings.pool(&pool, system, period_ms).players.extend(players);
    }
}
