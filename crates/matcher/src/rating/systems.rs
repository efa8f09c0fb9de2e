//! Rating systems: Weng-Lin (Plackett-Luce form) and Glicko-2.
//!
//! Glicko-2 is the well-kept crate's. That crate's Weng-Lin is another member of the family: it
//! compares teams by pairs, so with three and more, or with weights for who played in part, its
//! results are others; nor does it let time add to a deviation. So the Plackett-Luce form is here,
//! held to published vectors, and to the crate where the two forms are the same: two teams,
//! whatever the outcome.

use serde::{Deserialize, Serialize};
use skillratings::Outcomes;
use skillratings::glicko2::{Glicko2Config, Glicko2Rating, glicko2_rating_period};

use crate::schema::v1;

/// A rating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum System {
    #[default]
    WengLin,
    #[serde(rename = "glicko2")]
    Glicko2,
}

/// A player's rating.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rating {
    WengLin { mu: f64, sigma: f64 },
    Glicko2 { rating: f64, deviation: f64, volatility: f64 },
}

const BETA: f64 = 25.0 / 6.0;
const TAU: f64 = 25.0 / 300.0;
const KAPPA: f64 = 0.0001;
/// Exponents below count as this one: sums of what is left are still numbers.
const EXPONENT_MIN: f64 = -600.0;
const GLICKO_DEVIATION_MAX: f64 = 350.0;

impl From<Rating> for v1::Rating {
    fn from(rating: Rating) -> v1::Rating {
        match rating {
            Rating::WengLin { mu, sigma } => v1::Rating::WengLin { mu, sigma },
            Rating::Glicko2 { rating, deviation, volatility } => {
                v1::Rating::Glicko2 { rating, deviation, volatility }
            }
        }
    }
}

impl From<v1::Rating> for Rating {
    fn from(saved: v1::Rating) -> Rating {
        match saved {
            v1::Rating::WengLin { mu, sigma } => Rating::WengLin { mu, sigma },
            v1::Rating::Glicko2 { rating, deviation, volatility } => {
                Rating::Glicko2 { rating, deviation, volatility }
            }
        }
    }
}

impl Rating {
    pub(crate) fn start(system: System) -> Rating {
        match system {
            System::WengLin => Rating::WengLin { mu: 25.0, sigma: 25.0 / 3.0 },
            System::Glicko2 => Rating::Glicko2 { rating: 1500.0, deviation: 350.0, volatility: 0.06 },
        }
    }

    /// Rating that players see.
    pub(crate) fn shown(&self) -> f64 {
        match *self {
            Rating::WengLin { mu, sigma } => mu - 3.0 * sigma,
            Rating::Glicko2 { rating, .. } => rating,
        }
    }

    /// Rating that matching compares: (skill, deviation).
    pub(crate) fn skill(&self) -> (f64, f64) {
        match *self {
            Rating::WengLin { mu, sigma } => (mu, sigma),
            Rating::Glicko2 { rating, deviation, .. } => (rating, deviation),
        }
    }
}

/// Ratings after a match. `sides` are players' (mu, sigma, weight); rank 1 is best, equal ranks
/// tie. A weight in (0, 1] scales what the match changes for a player.
pub(crate) fn weng_lin(sides: &[Vec<(f64, f64, f64)>], ranks: &[u64]) -> Vec<Vec<(f64, f64)>> {
    let inflated: Vec<Vec<(f64, f64)>> = sides
        .iter()
        .map(|side| side.iter().map(|(mu, sigma, _)| (*mu, sigma * sigma + TAU * TAU)).collect())
        .collect();
    let mu: Vec<f64> = inflated.iter().map(|side| side.iter().map(|(mu, _)| mu).sum()).collect();
    let variance: Vec<f64> =
        inflated.iter().map(|side| side.iter().map(|(_, variance)| variance).sum()).collect();
    let c = variance.iter().map(|variance| variance + BETA * BETA).sum::<f64>().sqrt();
    // Only their ratios count: so none overflows, and none becomes nothing beside the others.
    let most = mu.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = mu.iter().map(|mu| ((mu - most) / c).max(EXPONENT_MIN).exp()).collect();
    let sum_from =
        |rank: u64| -> f64 { e.iter().zip(ranks).filter(|(_, other)| **other >= rank).map(|(e, _)| e).sum() };
    let tied = |rank: u64| ranks.iter().filter(|other| **other == rank).count() as f64;
    let by_rank: Vec<(f64, f64)> = ranks.iter().map(|rank| (sum_from(*rank), tied(*rank))).collect();
    (0..sides.len())
        .map(|i| {
            let (mut omega, mut delta) = (0.0, 0.0);
            for q in (0..ranks.len()).filter(|q| ranks[*q] <= ranks[i]) {
                let (sum, tied) = by_rank[q];
                let p = e[i] / sum;
                omega += if q == i { 1.0 - p } else { -p } / tied;
                delta += p * (1.0 - p) / tied;
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

/// Glicko-2 after a period: the games of one player as opponent and score (1 win, 0.5 draw, 0
/// loss). A period without games only adds deviation.
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

/// Glicko-2 after periods without games, as one [`glicko2_period`] after another.
pub(crate) fn idle_periods(own: Rating, periods: u64) -> Rating {
    let mut rating = own;
    for _ in 0..periods {
        let after = glicko2_period(rating, &[]);
        // The deviation is the greatest already: it stays.
        if after == rating {
            break;
        }
        rating = after;
    }
    rating
}

/// Chance that the first of two sides wins; each a list of (skill, deviation).
pub(crate) fn win_chance(a: &[(f64, f64)], b: &[(f64, f64)]) -> f64 {
    let mean = |side: &[(f64, f64)]| side.iter().map(|(mu, _)| mu).sum::<f64>();
    let variance = a.iter().chain(b).map(|(_, sigma)| sigma * sigma).sum::<f64>();
    let count = (a.len() + b.len()) as f64;
    normal((mean(a) - mean(b)) / (count * BETA * BETA + variance).sqrt())
}

/// The standard normal distribution function: the complementary error function by its continued
/// fraction and series (Abramowitz and Stegun 7.1.5 and 7.1.14), to 1e-12.
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

impl Rating {
    /// This rating with the change from one to another.
    pub(super) fn moved(self, from: Rating, to: Rating) -> Rating {
        match (self, from, to) {
            // Without rounding.
            _ if self == from => to,
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const VECTORS: &str = include_str!("../../../../fixtures/matcher/ratings.json");

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

    #[test]
    fn glicko2_agrees_with_the_vectors() {
        let vectors: Value = serde_json::from_str(VECTORS).unwrap();
        let numbers = |value: &Value| -> Vec<f64> {
            value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
        };
        let rating = |of: &[f64]| Rating::Glicko2 { rating: of[0], deviation: of[1], volatility: of[2] };
        let cases = vectors["glicko2"]["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 4);
        for case in cases {
            let name = case["name"].as_str().unwrap();
            let games: Vec<(Rating, f64)> = case["games"]
                .as_array()
                .unwrap()
                .iter()
                .map(|game| {
                    (
                        rating(&[game[0].as_f64().unwrap(), game[1].as_f64().unwrap(), 0.06]),
                        game[2].as_f64().unwrap(),
                    )
                })
                .collect();
            let Rating::Glicko2 { rating, deviation, volatility } =
                glicko2_period(rating(&numbers(&case["before"])), &games)
            else {
                panic!("{name}: another system")
            };
            let wanted = numbers(&case["after"]);
            close(rating, wanted[0], 1e-4, name);
            close(deviation, wanted[1], 1e-4, name);
            close(volatility, wanted[2], 1e-6, name);
        }
        let idle = glicko2_period(Rating::start(System::Glicko2), &[]);
        assert_eq!(idle.skill(), (1500.0, 350.0), "never less certain than at the start");
    }

    #[test]
    fn ratings_far_apart_stay_numbers() {
        let side = |mu: f64, players: usize| vec![(mu, 0.05, 1.0); players];
        for ranks in [[1, 2], [2, 1], [1, 1]] {
            let after = weng_lin(&[side(2_000.0, 60), side(-2_000.0, 60)], &ranks);
            assert!(after.iter().flatten().all(|(mu, sigma)| mu.is_finite() && *sigma > 0.0), "{after:?}");
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
