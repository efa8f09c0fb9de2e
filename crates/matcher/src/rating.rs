//! Ratings: their pools, the results that change them, and the requests about them.

mod service;
pub(crate) mod systems;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use systems::{System, glicko2_period, weng_lin};
use throng_wire::fields;
use throng_wire::matcher::{write_bytes, write_f64, write_nested, write_u64};

use crate::id::Id;
use crate::info::{Text, bytes, check_id, check_number, entry, text};
use crate::problem::{Outcome, invalid, too_large};
use crate::schema::v1;

pub(crate) use systems::Rating;

/// A player's standing in a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rated {
    rating: Rating,
    games: u64,
}

/// Ratings that several queues may share.
#[derive(Clone, Debug)]
struct RatingPool {
    system: System,
    players: BTreeMap<Text, Rated>,
    /// Games of the Glicko-2 period under way: the report, the players, the first's score.
    games: Vec<(Id, Text, Text, f64)>,
    period_ms: u64,
    /// Time when the period under way ends; 0: none is.
    period_ends: u64,
}

/// Every pool, and what was reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ratings {
    pools: BTreeMap<String, RatingPool>,
    /// By match or room, and pool: a room may be rated in several.
    reports: BTreeMap<(Id, String), Report>,
    /// Reports in order of age.
    order: VecDeque<(Id, String)>,
}

#[derive(Clone, Debug)]
struct Report {
    digest: [u8; 32],
    changes: Vec<Change>,
    /// Answer of one that was amended; else the changes are the answer.
    answer: Vec<u8>,
}

/// Effect of a report on a player.
#[derive(Clone, Debug)]
struct Change {
    role: Text,
    /// Rating when the match was first reported.
    before: Rating,
    after: Rating,
    /// Games with this one; 0 for a player who is in an earlier report of the match only.
    games: u64,
}

/// Reports that are remembered; of older ones a repetition would not be noticed, but their matches
/// are forgotten first.
const REPORTS_MAX: usize = 100_000;
const RESULT_PLAYERS_MAX: usize = 200;
/// Longest rating period, as in rule sets.
const PERIOD_MS_MAX: u64 = 31 * 86_400 * 1_000;

impl Ratings {
    pub(crate) fn save(&self) -> (Vec<v1::RatingPool<'_>>, Vec<v1::Report<'_>>) {
        let pools = self.pools.iter().map(|(name, pool)| pool.save(name)).collect();
        let reports = self.order.iter().filter_map(|about| {
            let report = self.reports.get(about)?;
            let changes = report.changes.iter();
            let change = |change: &'_ Change| (change.before.into(), change.after.into(), change.games);
            let changes = changes.map(|own| {
                let (before, after, games) = change(own);
                (&own.role[..], before, after, games)
            });
            let (digest, changes) = (report.digest, changes.collect());
            let answer = &report.answer[..];
            Some(v1::Report { about: about.0.into(), pool: &about.1, digest, changes, answer })
        });
        (pools, reports.collect())
    }

    pub(crate) fn load(
        pools: &[v1::RatingPool<'_>],
        reports: &[v1::Report<'_>],
    ) -> Result<Ratings, &'static str> {
        let mut ratings = Ratings::default();
        for pool in pools {
            ratings.pools.insert(pool.name.to_owned(), RatingPool::load(pool)?);
        }
        for report in reports {
            let change = |(role, before, after, games): &(&[u8], v1::Rating, v1::Rating, u64)| Change {
                role: Text::from_slice(role),
                before: (*before).into(),
                after: (*after).into(),
                games: *games,
            };
            let changes = report.changes.iter().map(change).collect();
            let about = (report.about.into(), report.pool.to_owned());
            ratings
                .remember(about, Report { digest: report.digest, changes, answer: report.answer.to_vec() });
        }
        Ok(ratings)
    }

    /// (skill, deviation) of a role, the start where it was never rated.
    pub(crate) fn skill(&self, pool: &str, system: System, role: &[u8]) -> (f64, f64) {
        self.pools.get(pool).map_or(Rating::start(system), |pool| pool.of(role).rating).skill()
    }

    fn pool(&mut self, name: &str, system: System, period_ms: u64) -> &mut RatingPool {
        self.pools.entry(name.to_owned()).or_insert_with(|| RatingPool {
            system,
            players: BTreeMap::new(),
            games: Vec::new(),
            period_ms,
            period_ends: 0,
        })
    }

    fn remember(&mut self, about: (Id, String), report: Report) {
        if self.reports.insert(about.clone(), report).is_none() {
            self.order.push_back(about);
            if self.order.len() > REPORTS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.reports.remove(&oldest);
            }
        }
    }
}

/// Some players of a pool and their ratings, for a trial.
#[derive(Clone, Debug)]
pub(crate) struct RatingCopy {
    pool: String,
    system: System,
    period_ms: u64,
    players: Vec<(Text, Rated)>,
}

impl RatingCopy {
    /// Adds others of the same pool.
    pub(crate) fn add(&mut self, more: RatingCopy) {
        self.players.extend(more.players);
    }
}

impl Ratings {
    /// Ratings of some players of a pool; `None` while there is no such pool.
    pub(crate) fn copy(&self, name: &str, roles: impl Iterator<Item = Text>) -> Option<RatingCopy> {
        let pool = self.pools.get(name)?;
        let players = roles.map(|role| (role.clone(), pool.of(&role))).collect();
        Some(RatingCopy { pool: name.to_owned(), system: pool.system, period_ms: pool.period_ms, players })
    }

    /// Takes what was copied from another matcher.
    pub(crate) fn take_copy(&mut self, copy: RatingCopy) {
        let RatingCopy { pool, system, period_ms, players } = copy;
        self.pool(&pool, system, period_ms).players.extend(players);
    }
}

/// A pool as a line of an export.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportedPool {
    pub(crate) name: String,
    system: System,
    period_ms: u64,
    period_ends: u64,
}

/// A game of the current period as a line of an export.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportedGame {
    pool: String,
    /// Match or room.
    id: String,
    roles: [String; 2],
    /// The first's: 1, 0.5 or 0.
    score: f64,
}

/// A rating as a line of an export.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportedRating {
    pool: String,
    role: String,
    games: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mu: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sigma: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rating: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deviation: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volatility: Option<f64>,
}

fn shown(role: &[u8]) -> String {
    String::from_utf8_lossy(role).into_owned()
}

impl Ratings {
    pub(crate) fn pools(&self) -> impl Iterator<Item = ExportedPool> + '_ {
        self.pools.iter().map(|(name, pool)| ExportedPool {
            name: name.clone(),
            system: pool.system,
            period_ms: pool.period_ms,
            period_ends: pool.period_ends,
        })
    }

    pub(crate) fn games(&self) -> impl Iterator<Item = ExportedGame> + '_ {
        self.pools.iter().flat_map(|(name, pool)| {
            pool.games.iter().map(|(about, a, b, score)| ExportedGame {
                pool: name.clone(),
                id: shown(&about.text()),
                roles: [shown(a), shown(b)],
                score: *score,
            })
        })
    }

    /// Makes an exported pool. Returns the end of its current period, 0 for none.
    pub(crate) fn import_pool(&mut self, line: &ExportedPool, now: u64) -> Result<u64, String> {
        let ExportedPool { name, system, period_ms, period_ends } = line;
        if self.pools.contains_key(name) {
            return Err(format!("pool `{name}` is there twice"));
        }
        if *period_ms > PERIOD_MS_MAX || *period_ends > now + PERIOD_MS_MAX {
            return Err("a period is 31 days at most".to_owned());
        }
        let pool = self.pool(name, *system, *period_ms);
        if *system == System::Glicko2 {
            pool.period_ends = *period_ends;
        }
        Ok(pool.period_ends)
    }

    fn exported_pool(&mut self, name: &str) -> Result<&mut RatingPool, String> {
        self.pools.get_mut(name).ok_or_else(|| format!("pool `{name}` has no line {{\"pool\": ...}}"))
    }

    pub(crate) fn import_game(&mut self, line: &ExportedGame) -> Result<(), String> {
        for role in &line.roles {
            check_id(role.as_bytes(), "RoleID").map_err(|problem| problem.message.to_string())?;
        }
        let about = Id::parse(line.id.as_bytes()).ok_or("it has no id of a match or room")?;
        let pool = self.exported_pool(&line.pool)?;
        if pool.period_ends == 0 {
            return Err(format!("pool `{}` has no current period", line.pool));
        }
        if ![0.0, 0.5, 1.0].contains(&line.score) || line.roles[0] == line.roles[1] {
            return Err("a game is of two players, with a score of 0, 0.5 or 1".to_owned());
        }
        if pool.games.iter().any(|(known, ..)| *known == about) {
            return Err("the game is there twice".to_owned());
        }
        let [a, b] = line.roles.each_ref().map(|role| Text::from_slice(role.as_bytes()));
        pool.games.push((about, a, b, line.score));
        Ok(())
    }

    pub(crate) fn exported(&self) -> impl Iterator<Item = ExportedRating> + '_ {
        self.pools.iter().flat_map(|(name, pool)| {
            pool.players.iter().map(|(role, own)| {
                let line = ExportedRating {
                    pool: name.clone(),
                    role: shown(role),
                    games: own.games,
                    mu: None,
                    sigma: None,
                    rating: None,
                    deviation: None,
                    volatility: None,
                };
                match own.rating {
                    Rating::WengLin { mu, sigma } => {
                        ExportedRating { mu: Some(mu), sigma: Some(sigma), ..line }
                    }
                    Rating::Glicko2 { rating, deviation, volatility } => ExportedRating {
                        rating: Some(rating),
                        deviation: Some(deviation),
                        volatility: Some(volatility),
                        ..line
                    },
                }
            })
        })
    }

    pub(crate) fn import(&mut self, line: &ExportedRating) -> Result<(), String> {
        check_id(line.role.as_bytes(), "RoleID").map_err(|problem| problem.message.to_string())?;
        let pool = self.exported_pool(&line.pool)?;
        let rating = match (pool.system, line.mu, line.sigma, line.rating, line.deviation, line.volatility) {
            (System::WengLin, Some(mu), Some(sigma), None, None, None) => Rating::WengLin { mu, sigma },
            (System::Glicko2, None, None, Some(rating), Some(deviation), Some(volatility)) => {
                Rating::Glicko2 { rating, deviation, volatility }
            }
            _ => return Err("a rating has mu and sigma, or rating, deviation and volatility".to_owned()),
        };
        let spread = line.sigma.or(line.deviation).unwrap_or_default();
        if spread <= 0.0 || line.volatility.is_some_and(|volatility| volatility <= 0.0) {
            return Err("sigma, deviation and volatility are over 0".to_owned());
        }
        check_number("games", line.games)?;
        let rated = Rated { rating, games: line.games };
        match pool.players.insert(Text::from_slice(line.role.as_bytes()), rated) {
            None => Ok(()),
            Some(_) => Err(format!("role `{}` is rated twice in pool `{}`", line.role, line.pool)),
        }
    }
}

/// In the order of their numbers in snapshots.
const SYSTEMS: [System; 2] = [System::WengLin, System::Glicko2];

impl RatingPool {
    fn save<'a>(&'a self, name: &'a str) -> v1::RatingPool<'a> {
        let players = self.players.iter();
        let games = self.games.iter();
        v1::RatingPool {
            name,
            system: SYSTEMS.iter().position(|system| *system == self.system).unwrap_or_default() as u8,
            players: players.map(|(role, own)| (&role[..], own.rating.into(), own.games)).collect(),
            games: games.map(|(id, a, b, score)| ((*id).into(), &a[..], &b[..], *score)).collect(),
            period_ms: self.period_ms,
            period_ends: self.period_ends,
        }
    }

    fn load(saved: &v1::RatingPool<'_>) -> Result<RatingPool, &'static str> {
        let rated = |(role, rating, games): &(&[u8], v1::Rating, u64)| {
            (Text::from_slice(role), Rated { rating: (*rating).into(), games: *games })
        };
        let game = |(id, a, b, score): &(v1::Id, &[u8], &[u8], f64)| {
            ((*id).into(), Text::from_slice(a), Text::from_slice(b), *score)
        };
        Ok(RatingPool {
            system: *SYSTEMS.get(usize::from(saved.system)).ok_or("a rating pool has an unknown system")?,
            players: saved.players.iter().map(rated).collect(),
            games: saved.games.iter().map(game).collect(),
            period_ms: saved.period_ms,
            period_ends: saved.period_ends,
        })
    }

    fn of(&self, role: &[u8]) -> Rated {
        let start = Rated { rating: Rating::start(self.system), games: 0 };
        self.players.get(role).copied().unwrap_or(start)
    }

    /// New ratings after a result.
    fn after(&self, result: &GameResult<'_>) -> Outcome<Vec<Change>> {
        let before = |role: &[u8]| self.of(role).rating;
        let changed = |role: &[u8], after: Rating| {
            let Rated { rating: before, games } = self.of(role);
            Change { role: Text::from_slice(role), before, after, games: games + 1 }
        };
        match self.system {
            System::WengLin => {
                let side = |side: &Vec<&[u8]>| -> Vec<(f64, f64, f64)> {
                    let players = side.iter().map(|role| (before(role).skill(), result.weight(role)));
                    players.map(|((mu, sigma), weight)| (mu, sigma, weight)).collect()
                };
                let sides: Vec<Vec<(f64, f64, f64)>> =
                    result.sides.iter().map(|(roles, _)| side(roles)).collect();
                let ranks: Vec<u64> = result.sides.iter().map(|(_, rank)| *rank).collect();
                let after = weng_lin(&sides, &ranks);
                let roles = result.sides.iter().flat_map(|(roles, _)| roles);
                let rated = roles.zip(after.into_iter().flatten());
                Ok(rated.map(|(role, (mu, sigma))| changed(role, Rating::WengLin { mu, sigma })).collect())
            }
            System::Glicko2 => {
                let (a, b, score) = result.duel()?;
                let after =
                    |own: &[u8], other: &[u8], score| glicko2_period(before(own), &[(before(other), score)]);
                Ok(vec![changed(a, after(a, b, score)), changed(b, after(b, a, 1.0 - score))])
            }
        }
    }

    /// The effects of another result in the place of a report's, worked out with the ratings that
    /// its players had at the first one: so an earlier result leads back to its own effects.
    fn amended(&self, report: &Report, result: &GameResult<'_>) -> Outcome<Vec<Change>> {
        let mut then = RatingPool { players: BTreeMap::new(), games: Vec::new(), ..*self };
        let roles = result.sides.iter().flat_map(|(roles, _)| roles);
        then.players.extend(roles.map(|role| (Text::from_slice(role), self.of(role))));
        let known = report.changes.iter();
        let known = known.map(|own| (own.role.clone(), Rated { rating: own.before, games: 0 }));
        then.players.extend(known);
        let mut changes = then.after(result)?;
        for Change { role, before, .. } in &report.changes {
            if changes.iter().all(|change| change.role != *role) {
                changes.push(Change { role: role.clone(), before: *before, after: *before, games: 0 });
            }
        }
        Ok(changes)
    }

    /// Takes a result's effects away and puts others in their place, with all that came after.
    fn apply(&mut self, old: &[Change], new: &[Change]) {
        for Change { role, before, after, games } in old {
            let mut rated = self.of(role);
            rated.rating = rated.rating.moved(*after, *before);
            rated.games = rated.games.saturating_sub((*games).min(1));
            self.players.insert(role.clone(), rated);
        }
        for Change { role, before, after, games } in new {
            let mut rated = self.of(role);
            rated.rating = rated.rating.moved(*before, *after);
            rated.games += (*games).min(1);
            self.players.insert(role.clone(), rated);
        }
    }
}

impl Report {
    fn write(&self, answer: &mut Vec<u8>) {
        if !self.answer.is_empty() {
            return answer.extend_from_slice(&self.answer);
        }
        for Change { role, after, games, .. } in &self.changes {
            Rated { rating: *after, games: *games }.write(role, answer);
        }
    }
}

impl Rated {
    fn write(self, role: &[u8], answer: &mut Vec<u8>) {
        write_nested(answer, 1, |out| {
            write_bytes(out, 1, role);
            write_f64(out, 2, self.rating.shown());
            write_u64(out, 3, self.games);
            match self.rating {
                Rating::WengLin { mu, sigma } => {
                    write_f64(out, 4, mu);
                    write_f64(out, 5, sigma);
                }
                Rating::Glicko2 { rating, deviation, volatility } => {
                    write_f64(out, 6, rating);
                    write_f64(out, 7, deviation);
                    write_f64(out, 8, volatility);
                }
            }
        });
    }
}

/// Result of a match, as reported.
#[derive(Default)]
struct GameResult<'a> {
    sides: Vec<(Vec<&'a [u8]>, u64)>,
    weights: Vec<(&'a [u8], f64)>,
}

impl<'a> GameResult<'a> {
    fn weight(&self, role: &[u8]) -> f64 {
        self.weights.iter().find(|(known, _)| *known == role).map_or(1.0, |(_, weight)| *weight)
    }

    /// A game of two: the players and the first's score.
    fn duel(&self) -> Outcome<(&'a [u8], &'a [u8], f64)> {
        let [(a, rank_a), (b, rank_b)] = &self.sides[..] else {
            return Err(invalid("a Glicko-2 pool takes games of one against one"));
        };
        let ([a], [b]) = (&a[..], &b[..]) else {
            return Err(invalid("a Glicko-2 pool takes games of one against one"));
        };
        let score = match rank_a.cmp(rank_b) {
            std::cmp::Ordering::Less => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Greater => 0.0,
        };
        Ok((a, b, score))
    }

    fn check(&self) -> Outcome {
        let mut roles: Vec<&[u8]> = self.sides.iter().flat_map(|(roles, _)| roles).copied().collect();
        if self.sides.len() < 2 || self.sides.iter().any(|(roles, _)| roles.is_empty()) {
            return Err(invalid("a result has two sides or more, each with players"));
        }
        if roles.len() > RESULT_PLAYERS_MAX {
            return Err(too_large(format!("a result has at most {RESULT_PLAYERS_MAX} players")));
        }
        let count = roles.len();
        roles.sort_unstable();
        roles.dedup();
        if roles.len() < count {
            return Err(invalid("a player is in the result twice"));
        }
        if self.sides.iter().any(|(_, rank)| *rank == 0) {
            return Err(invalid("a rank is 1 or more; the best is 1"));
        }
        if self.weights.iter().any(|(_, weight)| !(*weight > 0.0 && *weight <= 1.0)) {
            return Err(invalid("a weight is over 0 and at most 1"));
        }
        if let Some((role, _)) = self.weights.iter().find(|(role, _)| roles.binary_search(role).is_err()) {
            let role = String::from_utf8_lossy(role);
            return Err(invalid(format!("`{role}` has a weight and is on no side of the result")));
        }
        Ok(())
    }
}

/// A report as it came.
struct Reported<'a> {
    id: &'a [u8],
    room: &'a [u8],
    pool: &'a [u8],
    amend: bool,
    result: GameResult<'a>,
    digest: [u8; 32],
}

impl<'a> Reported<'a> {
    fn parse(body: &'a [u8]) -> Outcome<Reported<'a>> {
        let (mut id, mut room, mut pool, mut amend) = (&[][..], &[][..], &[][..], false);
        let (mut result, mut digest) = (GameResult::default(), blake3::Hasher::new());
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => id = text(&field)?,
                2 => room = text(&field)?,
                3 => {
                    result.sides.push(parse_side(bytes(&field)?)?);
                    digest.update(field.raw);
                }
                4 => {
                    let (role, weight) = entry(&field)?;
                    result.weights.push((role, weight.map_or(0.0, |weight| f64::from_bits(weight.scalar))));
                }
                5 => amend = field.scalar != 0,
                6 => pool = text(&field)?,
                _ => {}
            }
        }
        result.check()?;
        // They come out of a map, in whatever order.
        result.weights.sort_by_key(|(role, _)| *role);
        for (role, weight) in &result.weights {
            digest.update(&(role.len() as u64).to_le_bytes()).update(role).update(&weight.to_le_bytes());
        }
        Ok(Reported { id, room, pool, amend, result, digest: *digest.finalize().as_bytes() })
    }
}

fn parse_side(body: &[u8]) -> Outcome<(Vec<&[u8]>, u64)> {
    let (mut roles, mut rank) = (Vec::new(), 0);
    for field in fields(body) {
        let field = field?;
        match field.number {
            1 => {
                let role = text(&field)?;
                check_id(role, "RoleID")?;
                roles.push(role);
            }
            2 => rank = field.scalar,
            _ => {}
        }
    }
    Ok((roles, rank))
}
