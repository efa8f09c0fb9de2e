//! Ratings: Weng-Lin (Plackett-Luce form) and Glicko-2.
//!
//! Glicko-2 is the well-kept crate's. That crate's Weng-Lin is another member of the family: it compares teams by pairs, so
//! with three and more, or with weights for who played in part, its results are others; nor does it let time add to a
//! deviation. So the Plackett-Luce form is here, held to published vectors, and to the crate where the two forms are the
//! same: two teams, whatever the outcome.

mod shared;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use skillratings::Outcomes;
use skillratings::glicko2::{Glicko2Config, Glicko2Rating, glicko2_rating_period};
use throng_wire::fields;
use throng_wire::matcher::{write_bytes, write_f64, write_nested, write_u64};

use crate::config::{Caller, Scope};
use crate::id::Id;
use crate::info::{Text, bytes, check_id, entry, text};
use crate::matcher::{Matcher, require};
use crate::problem::{Outcome, invalid, not_found, too_large};
use crate::queue::System;
use crate::timers::Timer;

pub(crate) use shared::SharedRatings;

/// A player's rating.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Rating {
    WengLin { mu: f64, sigma: f64 },
    Glicko2 { rating: f64, deviation: f64, volatility: f64 },
}

const BETA: f64 = 25.0 / 6.0;
const TAU: f64 = 25.0 / 300.0;
const KAPPA: f64 = 0.0001;
const GLICKO_DEVIATION_MAX: f64 = 350.0;

impl Rating {
    pub(crate) fn start(system: System) -> Rating {
        match system {
            System::WengLin => Rating::WengLin { mu: 25.0, sigma: 25.0 / 3.0 },
            System::Glicko2 => Rating::Glicko2 { rating: 1500.0, deviation: 350.0, volatility: 0.06 },
        }
    }

    /// What players see.
    pub(crate) fn shown(&self) -> f64 {
        match *self {
            Rating::WengLin { mu, sigma } => mu - 3.0 * sigma,
            Rating::Glicko2 { rating, .. } => rating,
        }
    }

    /// What matching compares: (skill, deviation).
    pub(crate) fn skill(&self) -> (f64, f64) {
        match *self {
            Rating::WengLin { mu, sigma } => (mu, sigma),
            Rating::Glicko2 { rating, deviation, .. } => (rating, deviation),
        }
    }
}

/// Ratings after a match. `sides` are players' (mu, sigma, weight); rank 1 is best, equal ranks tie. A weight in (0, 1]
/// scales what the match changes for a player.
pub(crate) fn weng_lin(sides: &[Vec<(f64, f64, f64)>], ranks: &[u64]) -> Vec<Vec<(f64, f64)>> {
    let inflated: Vec<Vec<(f64, f64)>> = sides
        .iter()
        .map(|side| side.iter().map(|(mu, sigma, _)| (*mu, sigma * sigma + TAU * TAU)).collect())
        .collect();
    let mu: Vec<f64> = inflated.iter().map(|side| side.iter().map(|(mu, _)| mu).sum()).collect();
    let variance: Vec<f64> =
        inflated.iter().map(|side| side.iter().map(|(_, variance)| variance).sum()).collect();
    let c = variance.iter().map(|variance| variance + BETA * BETA).sum::<f64>().sqrt();
    let e: Vec<f64> = mu.iter().map(|mu| (mu / c).exp()).collect();
    let sum_from =
        |rank: u64| -> f64 { e.iter().zip(ranks).filter(|(_, other)| **other >= rank).map(|(e, _)| e).sum() };
    let ties = |rank: u64| ranks.iter().filter(|other| **other == rank).count() as f64;
    (0..sides.len())
        .map(|i| {
            let (mut omega, mut delta) = (0.0, 0.0);
            for (q, rank) in ranks.iter().enumerate().filter(|(_, rank)| **rank <= ranks[i]) {
                let p = e[i] / sum_from(*rank);
                omega += if q == i { 1.0 - p } else { -p } / ties(*rank);
                delta += p * (1.0 - p) / ties(*rank);
            }
            let s = variance[i];
            omega *= s / c;
            delta *= s.sqrt() / c * (s / (c * c));
            inflated[i]
                .iter()
                .zip(&sides[i])
                .map(|((mu, variance), (_, _, weight))| {
                    let share = variance / s;
                    let shrink = (1.0 - share * delta * weight).max(KAPPA).sqrt();
                    (mu + share * omega * weight, variance.sqrt() * shrink)
                })
                .collect()
        })
        .collect()
}

/// Glicko-2 after a period: the games of one player as opponent and score (1 win, 0.5 draw, 0 loss). A period without
/// games only adds deviation.
pub(crate) fn glicko2_period(own: Rating, games: &[(Rating, f64)]) -> Rating {
    let plain = |rating: Rating| match rating {
        Rating::Glicko2 { rating, deviation, volatility } => Glicko2Rating { rating, deviation, volatility },
        Rating::WengLin { .. } => Glicko2Rating::new(),
    };
    let outcome = |score: f64| match score {
        score if score > 0.75 => Outcomes::WIN,
        score if score < 0.25 => Outcomes::LOSS,
        _ => Outcomes::DRAW,
    };
    let config = Glicko2Config { tau: 0.5, convergence_tolerance: 1e-6 };
    let games: Vec<(Glicko2Rating, Outcomes)> =
        games.iter().map(|(other, score)| (plain(*other), outcome(*score))).collect();
    let after = glicko2_rating_period(&plain(own), &games, &config);
    Rating::Glicko2 {
        rating: after.rating,
        deviation: after.deviation.min(GLICKO_DEVIATION_MAX),
        volatility: after.volatility,
    }
}

/// Chance that the first of two sides wins; each a list of (skill, deviation).
pub(crate) fn win_chance(a: &[(f64, f64)], b: &[(f64, f64)]) -> f64 {
    let mean = |side: &[(f64, f64)]| side.iter().map(|(mu, _)| mu).sum::<f64>();
    let variance = a.iter().chain(b).map(|(_, sigma)| sigma * sigma).sum::<f64>();
    let count = (a.len() + b.len()) as f64;
    normal((mean(a) - mean(b)) / (count * BETA * BETA + variance).sqrt())
}

/// The standard normal distribution function: the complementary error function by its continued fraction and series
/// (Abramowitz and Stegun 7.1.5 and 7.1.14), to 1e-12.
fn normal(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let tail = if z < 3.0 {
        let (mut term, mut sum, mut n) = (z, z, 0.0);
        while term.abs() > 1e-17 && n < 200.0 {
            n += 1.0;
            term *= -z * z / n;
            sum += term / (2.0 * n + 1.0);
        }
        1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let mut fraction = 0.0;
        for k in (1..=60).rev() {
            fraction = f64::from(k) / 2.0 / (z + fraction);
        }
        (-z * z).exp() / (z + fraction) / std::f64::consts::PI.sqrt()
    };
    if x > 0.0 { 1.0 - tail / 2.0 } else { tail / 2.0 }
}

/// A player's standing in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Rated {
    rating: Rating,
    games: u64,
}

/// Ratings that several queues may share.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RatingPool {
    system: System,
    players: BTreeMap<Text, Rated>,
    /// Games of the Glicko-2 period under way: the report, the players, the first's score.
    games: Vec<(Id, Text, Text, f64)>,
    period_ms: u64,
    period_is_open: bool,
}

/// Every pool, and what was reported.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ratings {
    pools: BTreeMap<String, RatingPool>,
    /// By match or room, and pool: a room may be rated in several.
    reports: BTreeMap<(Id, String), Report>,
    /// Reports in order of age.
    order: VecDeque<(Id, String)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Report {
    digest: [u8; 32],
    /// What it did: role, rating before, rating after.
    changes: Vec<(Text, Rating, Rating)>,
}

/// Reports that are remembered; of older ones a repetition would not be noticed, but their matches are forgotten first.
const REPORTS_MAX: usize = 100_000;
const RESULT_PLAYERS_MAX: usize = 200;
const RATINGS_MAX: usize = 1_000;

impl Ratings {
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
            period_is_open: false,
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

impl RatingPool {
    fn of(&self, role: &[u8]) -> Rated {
        let start = Rated { rating: Rating::start(self.system), games: 0 };
        self.players.get(role).copied().unwrap_or(start)
    }

    /// New ratings after a result.
    fn after(&self, result: &GameResult<'_>) -> Outcome<Vec<(Text, Rating, Rating)>> {
        let before = |role: &[u8]| self.of(role).rating;
        let changed = |role: &[u8], after: Rating| (Text::from_slice(role), before(role), after);
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

    fn apply(&mut self, changes: &[(Text, Rating, Rating)]) {
        for (role, _, after) in changes {
            let mut rated = self.of(role);
            (rated.rating, rated.games) = (*after, rated.games + 1);
            self.players.insert(role.clone(), rated);
        }
    }

    /// Takes a result's effect away and puts another's in its place, whatever came after.
    fn amend(&mut self, old: &[(Text, Rating, Rating)], new: &[(Text, Rating, Rating)]) {
        for (role, before, after) in old {
            let mut rated = self.of(role);
            rated.rating = rated.rating.moved(*after, *before);
            rated.games = rated.games.saturating_sub(1);
            self.players.insert(role.clone(), rated);
        }
        for (role, before, after) in new {
            let mut rated = self.of(role);
            (rated.rating, rated.games) = (rated.rating.moved(*before, *after), rated.games + 1);
            self.players.insert(role.clone(), rated);
        }
    }

    fn write(&self, role: &[u8], answer: &mut Vec<u8>) {
        let rated = self.of(role);
        write_nested(answer, 1, |out| {
            write_bytes(out, 1, role);
            write_f64(out, 2, rated.rating.shown());
            write_u64(out, 3, rated.games);
            match rated.rating {
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

impl Rating {
    /// This rating with the change from one to another.
    fn moved(self, from: Rating, to: Rating) -> Rating {
        match (self, from, to) {
            (
                Rating::WengLin { mu, sigma },
                Rating::WengLin { mu: mu_from, sigma: sigma_from },
                Rating::WengLin { mu: mu_to, sigma: sigma_to },
            ) => Rating::WengLin { mu: mu + mu_to - mu_from, sigma: sigma * sigma_to / sigma_from },
            (
                Rating::Glicko2 { rating, deviation, volatility },
                Rating::Glicko2 { rating: from, deviation: deviation_from, volatility: volatility_from },
                Rating::Glicko2 { rating: to, deviation: deviation_to, volatility: volatility_to },
            ) => Rating::Glicko2 {
                rating: rating + to - from,
                deviation: (deviation * deviation_to / deviation_from).min(GLICKO_DEVIATION_MAX),
                volatility: volatility * volatility_to / volatility_from,
            },
            _ => self,
        }
    }
}

/// How a match ended, as reported.
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
                    digest.update(field.raw);
                }
                5 => amend = field.scalar != 0,
                6 => pool = text(&field)?,
                _ => {}
            }
        }
        result.check()?;
        Ok(Reported { id, room, pool, amend, result, digest: *digest.finalize().as_bytes() })
    }
}

impl Matcher {
    pub(crate) fn report_result(&mut self, caller: Caller<'_>, body: &[u8], answer: &mut Vec<u8>) -> Outcome {
        require(caller, Scope::Trusted)?;
        if let Some(result) = self.claims.take_result() {
            return Matcher::answer_rated(result, answer);
        }
        let report = Reported::parse(body)?;
        let about = self.rated_by(report.id, report.room, report.pool)?;
        self.rate_report(about, &report, answer)
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
                let pool = &self.ratings.pools[name];
                known.changes.iter().for_each(|(role, ..)| pool.write(role, answer));
                return Ok(());
            }
            Some(_) if !report.amend => {
                return Err(invalid("the match has another result; `Amend` replaces it"));
            }
            _ => {}
        }
        let changes = self.rate(about, name, system, period_ms, result, known.as_ref())?;
        let pool = &self.ratings.pools[name];
        changes.iter().for_each(|(role, ..)| pool.write(role, answer));
        // What is taken back changes players too.
        let before = known.iter().flat_map(|known| &known.changes);
        let roles: Vec<Text> = changes.iter().chain(before).map(|(role, ..)| role.clone()).collect();
        self.share_players(name, roles.into_iter());
        self.ratings.remember(key, Report { digest: *digest, changes });
        Ok(())
    }

    /// What a report is about, and the pool that it changes.
    fn rated_by(&self, id: &[u8], room: &[u8], pool: &[u8]) -> Outcome<(Id, String, System, u64)> {
        let none = || not_found("the match has no rating pool; name one");
        match self.match_named(id, room) {
            Ok(index) => {
                let found = &self.matches[index];
                let rules = self.queues.list[found.queue].rules();
                let rule = rules.set.rating.as_ref().ok_or_else(none)?;
                Ok((found.id, rule.pool.clone(), rule.system, rule.period_s * 1_000))
            }
            Err(problem) if pool.is_empty() || room.is_empty() => Err(problem),
            Err(_) => {
                let about = self.rooms[self.find_room(room)?].id;
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
    ) -> Outcome<Vec<(Text, Rating, Rating)>> {
        let now = self.now;
        let pool = self.ratings.pool(name, system, period_ms);
        if pool.system == System::Glicko2 && pool.period_ms > 0 {
            let (a, b, score) = result.duel()?;
            if known.is_some() && !pool.games.iter().any(|(id, ..)| *id == about) {
                return Err(invalid("the rating period of this result is over"));
            }
            pool.games.retain(|(id, ..)| *id != about);
            pool.games.push((about, Text::from_slice(a), Text::from_slice(b), score));
            let unchanged =
                [a, b].map(|role| (Text::from_slice(role), pool.of(role).rating, pool.of(role).rating));
            if !pool.period_is_open {
                pool.period_is_open = true;
                self.timers.set(now + period_ms, Timer::Period(Text::from_slice(name.as_bytes())));
            }
            return Ok(unchanged.to_vec());
        }
        match known {
            Some(report) => {
                // As if the first report had never been: its effect is taken away before the new one is worked out.
                let mut before = pool.clone_of(&report.changes);
                before.amend(&report.changes, &[]);
                let changes = before.after(result)?;
                pool.amend(&report.changes, &changes);
                Ok(changes)
            }
            None => {
                let changes = pool.after(result)?;
                pool.apply(&changes);
                Ok(changes)
            }
        }
    }

    /// The end of a Glicko-2 period: all of its games count at once; who did not play becomes less certain.
    pub(crate) fn end_rating_period(&mut self, name: &Text) {
        let now = self.now;
        let shown = String::from_utf8_lossy(name);
        let Some(pool) = self.ratings.pools.get_mut(&*shown) else { return };
        let games = std::mem::take(&mut pool.games);
        let mut played: BTreeMap<Text, Vec<(Rating, f64)>> = BTreeMap::new();
        for (_, a, b, score) in &games {
            let (of_a, of_b) = (pool.of(a).rating, pool.of(b).rating);
            played.entry(a.clone()).or_default().push((of_b, *score));
            played.entry(b.clone()).or_default().push((of_a, 1.0 - score));
        }
        for (role, rated) in &mut pool.players {
            if !played.contains_key(role) {
                rated.rating = glicko2_period(rated.rating, &[]);
            }
        }
        for (role, games) in played {
            let before = pool.of(&role);
            let after = glicko2_period(before.rating, &games);
            let rated = Rated { rating: after, games: before.games + games.len() as u64 };
            pool.players.insert(role, rated);
        }
        let at = now + pool.period_ms;
        self.timers.set(at, Timer::Period(name.clone()));
        if !self.shard.is_alone() {
            let everybody: Vec<Text> = self.ratings.pools[&*shown].players.keys().cloned().collect();
            self.share_players(&shown, everybody.into_iter());
        }
    }

    pub(crate) fn get_ratings(&self, body: &[u8], answer: &mut Vec<u8>) -> Outcome {
        let (mut name, mut roles) = (&[][..], Vec::new());
        for field in fields(body) {
            let field = field?;
            match field.number {
                1 => name = text(&field)?,
                2 => roles.push(text(&field)?),
                _ => {}
            }
        }
        if roles.len() > RATINGS_MAX {
            return Err(too_large(format!("more than {RATINGS_MAX} RoleIDs")));
        }
        let name = String::from_utf8_lossy(name);
        let declared = || {
            let rules = self.queues.list.iter().map(|(_, queue)| queue.rules());
            let mut systems = rules.filter_map(|rules| {
                rules.set.rating.as_ref().filter(|rule| rule.pool == name).map(|rule| rule.system)
            });
            systems.next()
        };
        match self.ratings.pools.get(&*name) {
            Some(pool) => roles.iter().for_each(|role| pool.write(role, answer)),
            None => {
                let system = declared().ok_or_else(|| not_found("rating pool does not exist"))?;
                let mut empty = Ratings::default();
                let pool = empty.pool(&name, system, 0);
                roles.iter().for_each(|role| pool.write(role, answer));
            }
        }
        Ok(())
    }
}

impl RatingPool {
    /// A pool with the players of a report only.
    fn clone_of(&self, changes: &[(Text, Rating, Rating)]) -> RatingPool {
        let players = changes.iter().map(|(role, ..)| (role.clone(), self.of(role))).collect();
        let empty = Vec::new();
        RatingPool { players, games: empty, ..*self }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const VECTORS: &str = include_str!("../../../fixtures/matcher/ratings.json");

    fn close(found: f64, wanted: f64, within: f64, what: &str) {
        assert!((found - wanted).abs() <= within, "{what}: {found}, not {wanted}");
    }

    #[test]
    fn plackett_luce_agrees_with_the_vectors() {
        let vectors: Value = serde_json::from_str(VECTORS).unwrap();
        for case in vectors["plackett_luce"].as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            let pair = |player: &Value| (player[0].as_f64().unwrap(), player[1].as_f64().unwrap());
            let list = |value: &Value| -> Vec<Vec<(f64, f64)>> {
                let teams = value.as_array().unwrap().iter();
                teams.map(|team| team.as_array().unwrap().iter().map(pair).collect()).collect()
            };
            let before = list(&case["teams"]);
            let ranks: Vec<u64> =
                case["ranks"].as_array().unwrap().iter().map(|r| r.as_u64().unwrap()).collect();
            let weighted: Vec<Vec<(f64, f64, f64)>> = before
                .iter()
                .map(|team| team.iter().map(|(mu, sigma)| (*mu, *sigma, 1.0)).collect())
                .collect();
            let after = weng_lin(&weighted, &ranks);
            for (found, wanted) in after.iter().flatten().zip(list(&case["after"]).iter().flatten()) {
                close(found.0, wanted.0, 1e-6, name);
                close(found.1, wanted.1, 1e-6, name);
            }
            if let Some(wanted) = case["win_probability_team0"].as_f64() {
                let chance = win_chance(&before[0], &before[1]);
                close(chance, wanted, 1e-6, name);
                close(1.0 - (2.0 * chance - 1.0).abs(), case["quality"].as_f64().unwrap(), 1e-6, name);
            }
        }
    }

    /// For two teams the forms of the family are the same, so the crate says what ours must.
    #[test]
    fn two_teams_are_rated_as_by_the_peer() {
        use skillratings::weng_lin::{WengLinConfig, WengLinRating, weng_lin_two_teams};
        let mut rng = throng_stdx::Rng::new(4);
        let config = WengLinConfig { beta: BETA, uncertainty_tolerance: KAPPA };
        for round in 0..1_000 {
            let mut side = || -> Vec<(f64, f64, f64)> {
                let players = 1 + rng.below(5);
                (0..players).map(|_| (50.0 * rng.f64(), 0.5 + 8.0 * rng.f64(), 1.0)).collect()
            };
            let sides = [side(), side()];
            // Time adds to the deviations first, which the crate leaves to its caller.
            let peers = sides.each_ref().map(|side| -> Vec<WengLinRating> {
                let inflated = |sigma: f64| (sigma * sigma + TAU * TAU).sqrt();
                let peer = |(mu, sigma, _): &(f64, f64, f64)| WengLinRating {
                    rating: *mu,
                    uncertainty: inflated(*sigma),
                };
                side.iter().map(peer).collect()
            });
            let (ranks, outcome) =
                [([1, 2], Outcomes::WIN), ([2, 1], Outcomes::LOSS), ([1, 1], Outcomes::DRAW)][round % 3];
            let wanted = weng_lin_two_teams(&peers[0], &peers[1], &outcome, &config);
            let found = weng_lin(&sides, &ranks);
            for ((mu, sigma), peer) in found.iter().flatten().zip(wanted.0.iter().chain(&wanted.1)) {
                close(*mu, peer.rating, 1e-9, "rating");
                close(*sigma, peer.uncertainty, 1e-9, "deviation");
            }
        }
    }
}
