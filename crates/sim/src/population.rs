//! Populations that queue for matches, in virtual time: match quality by waiting time and group.
//!
//! Players arrive at a steady rate, alone or in parties, with skills around a middle and latencies
//! by where they live, and queue for a ranked five against five whose rules relax with the waiting
//! time. The matcher is the real one but for its clock. [`play`] says how long everybody waited and
//! how even the matches were, [`table`] and [`svg`] show it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use throng_matcher::{Caller, Config, Matcher, Notices, Scope, WallMs};
use throng_stdx::Rng;
use throng_wire::fields;
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};

/// Rules of the queue: those of the how-to "rank players five against five", without asking
/// players.
const RULES: &str = r#"{"name": "ranked", "tick_ms": 250, "timeout_s": 300, "seat_ttl_s": 1,
    "sides": [{"name": "red", "min": 5, "max": 5}, {"name": "blue", "min": 5, "max": 5}],
    "attributes": {"skill": {"type": "number"}}, "party": {"policy": "large_vs_large"},
    "rules": [{"name": "skill", "type": "near", "key": "skill", "max": 4},
              {"name": "fair", "type": "balance", "key": "skill", "agg": "mean", "max": 1.5},
              {"name": "ping", "type": "latency", "max_ms": 60}],
    "expand": [{"target": "rules.skill.max", "steps": [{"after_s": 10, "value": 6}, {"after_s": 30, "value": 10},
                    {"after_s": 60, "value": 16}]},
               {"target": "rules.fair.max", "steps": [{"after_s": 60, "value": 3}]},
               {"target": "rules.ping.max_ms", "steps": [{"after_s": 20, "value": 90}, {"after_s": 60, "value": 150}]},
               {"target": "party.policy", "steps": [{"after_s": 45, "value": "any"}]}]}"#;
const STEP_MS: u64 = 250;
/// Wall time at the start; any will do.
const EPOCH_MS: u64 = 1_700_000_000_000;
const MIDDLE: f64 = 25.0;
/// Deviation of one game, and of a player's rating: initially, and after some games.
const BETA: f64 = 25.0 / 6.0;
const SIGMA: f64 = 2.0;

/// Population that queues.
#[derive(Debug, Clone, Copy)]
pub struct Population {
    /// Its name in reports.
    pub name: &'static str,
    /// Arriving players per second.
    pub arrivals: f64,
    /// Standard deviation of skill around 25.
    pub spread: f64,
    /// Share of players in parties of two to five.
    pub in_parties: f64,
    /// Share of players who live far from the one region with servers, at 70 to 110 ms instead of
    /// 10 to 50.
    pub remote: f64,
}

/// The populations of reports.
pub const POPULATIONS: [Population; 4] = [
    Population { name: "busy", arrivals: 40.0, spread: 6.0, in_parties: 0.0, remote: 0.0 },
    Population { name: "parties", arrivals: 40.0, spread: 6.0, in_parties: 0.6, remote: 0.0 },
    Population { name: "quiet", arrivals: 2.0, spread: 6.0, in_parties: 0.3, remote: 0.0 },
    Population { name: "scattered", arrivals: 10.0, spread: 10.0, in_parties: 0.3, remote: 0.2 },
];

/// A player who was matched.
#[derive(Debug, Clone, Copy)]
pub struct Matched {
    /// Time from the ticket to the match, in seconds.
    pub waited_s: f64,
    /// The player's own.
    pub skill: f64,
    /// Of the match: 1 - |2p - 1| of the win probability p; 1 is even.
    pub quality: f64,
    /// Highest less lowest skill in the match.
    pub range: f64,
    /// Players of the ticket.
    pub party: usize,
    /// The wait that nine of ten like this were said not to exceed, in seconds, if anything was
    /// said.
    pub promised_s: Option<f64>,
}

/// Result of a run with one population.
#[derive(Debug, Clone)]
pub struct PopulationReport {
    /// Population that it belongs to.
    pub population: Population,
    /// Players who were matched, in order of time.
    pub matched: Vec<Matched>,
    /// Players whose tickets timed out.
    pub timed_out: usize,
    /// Matches made.
    pub matches: usize,
}

impl PopulationReport {
    /// Waits of those for whom `of` holds, in order.
    fn waits(&self, of: impl Fn(&Matched) -> bool) -> Vec<f64> {
        let mut all: Vec<f64> = self.matched.iter().filter(|one| of(one)).map(|one| one.waited_s).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// Share of players who waited at most 1.5 times the announced time, among those with an
    /// announcement.
    #[must_use]
    pub fn promises_kept(&self) -> f64 {
        let promised = || self.matched.iter().filter_map(|one| Some((one.waited_s, one.promised_s?)));
        let kept = promised().filter(|(waited, promised)| *waited <= 1.5 * promised).count();
        kept as f64 / promised().count().max(1) as f64
    }
}

/// A player as the population has them.
struct Player {
    skill: f64,
    since: u64,
    party: usize,
    promised_s: Option<f64>,
}

struct Play {
    matcher: Matcher,
    notices: Notices,
    rng: Rng,
    now: u64,
    next: u64,
    waiting: BTreeMap<String, Player>,
    outcome: PopulationReport,
    /// Sides of matches of which not all sides have been notified yet.
    told: BTreeMap<Vec<u8>, Vec<Vec<String>>>,
}

/// Lets a population queue for some seconds. The same seed gives the same result.
///
/// # Panics
/// If the matcher refuses a request, which is a defect.
#[must_use]
pub fn play(population: Population, seconds: u64, seed: u64) -> PopulationReport {
    let mut play = Play {
        matcher: Matcher::new(Config::default(), [7; 32], WallMs(EPOCH_MS)),
        notices: Notices::default(),
        rng: Rng::new(seed),
        now: EPOCH_MS,
        next: 0,
        waiting: BTreeMap::new(),
        outcome: PopulationReport { population, matched: Vec::new(), timed_out: 0, matches: 0 },
        told: BTreeMap::new(),
    };
    play.matcher.handle_session(WallMs(EPOCH_MS), "game", true, &mut play.notices);
    play.call(Method::PUT_QUEUE, Writer::new().str(1, RULES));
    let mut due = 0.0;
    for step in 1..=seconds * 1_000 / STEP_MS {
        play.now = EPOCH_MS + step * STEP_MS;
        due += population.arrivals * STEP_MS as f64 / 1e3;
        while due >= 1.0 {
            due -= play.arrive() as f64;
        }
        while play.matcher.next_timeout().is_some_and(|at| at <= WallMs(play.now)) {
            play.matcher.handle_timeout(WallMs(play.now), &mut play.notices);
            play.hear();
        }
    }
    play.outcome
}

impl Play {
    fn call(&mut self, method: u16, body: Writer) -> Vec<u8> {
        let (caller, mut answer) = (Caller { srv: "game", scope: Scope::Admin }, Vec::new());
        let body = body.into_bytes();
        let handled =
            self.matcher.handle(WallMs(self.now), caller, method, &body, &mut answer, &mut self.notices);
        let status = handled.status().unwrap_or(Status::PolicyUnavailable);
        assert_eq!(status, Status::Ok, "{}", answer.escape_ascii());
        self.hear();
        answer
    }

    /// Adds a party and returns its size.
    fn arrive(&mut self) -> usize {
        let population = self.outcome.population;
        // Parties arrive less often than players.
        let in_party = self.rng.f64() * (1.0 + 2.5 * (1.0 - population.in_parties)) < population.in_parties;
        let party = if in_party { 2 + self.rng.below(4) as usize } else { 1 };
        let of_party = self.normal() * population.spread;
        let remote = self.rng.f64() < population.remote;
        let (mut body, mut roles) = (Writer::new().str(1, "ranked"), Vec::new());
        for _ in 0..party {
            // Friends are more alike than strangers.
            let own =
                if party > 1 { 0.8 * of_party + 0.4 * self.normal() * population.spread } else { of_party };
            let skill = (MIDDLE + own).clamp(0.0, 2.0 * MIDDLE);
            let ms = if remote { 70.0 } else { 10.0 } + 40.0 * self.rng.f64();
            let role = format!("p{}", self.next);
            self.next += 1;
            let attr = Writer::new().str(1, "skill").str(2, &format!("{skill:.3}"));
            let ping = Writer::new().str(1, "here").f64(2, ms);
            body = body.nested(2, Writer::new().str(1, &role).nested(3, attr).nested(4, ping));
            roles.push((role, skill));
        }
        let answer = self.call(Method::CREATE_TICKET, body);
        let promised =
            Reader::new(&answer).and_then(|answer| answer.nested(1)).map_or(0, |ticket| ticket.u64(15));
        let promised_s = (promised > 0).then(|| promised as f64 / 1e3);
        for (role, skill) in roles {
            self.waiting.insert(role, Player { skill, since: self.now, party, promised_s });
        }
        party
    }

    /// Normally distributed around 0 with deviation 1: a sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.rng.f64()).sum::<f64>() - 6.0
    }

    /// Takes the news.
    fn hear(&mut self) {
        let mut news = Vec::new();
        for notice in self.notices.iter() {
            let Some(Ok(entry)) = fields(notice.entry).next() else { continue };
            let (mut roles, mut ready, mut ended) = (Vec::new(), None, false);
            for field in fields(entry.value).map_while(Result::ok) {
                match field.number {
                    1 => roles.push(String::from_utf8_lossy(field.value).into_owned()),
                    Event::MATCH_READY => {
                        ready = Reader::new(field.value).ok().map(|event| event.bytes(1).to_vec())
                    }
                    Event::TICKET_UPDATE => ended = field.value.windows(9).any(|part| part == b"timed_out"),
                    _ => {}
                }
            }
            news.push((roles, ready, ended));
        }
        self.notices.clear();
        for (roles, ready, ended) in news {
            if let Some(id) = ready {
                let sides = self.told.entry(id.clone()).or_default();
                sides.push(roles);
                if sides.len() == 2 {
                    let sides = self.told.remove(&id).unwrap_or_default();
                    self.matched(&sides);
                }
            } else if ended {
                self.outcome.timed_out +=
                    roles.iter().filter(|role| self.waiting.remove(*role).is_some()).count();
            }
        }
    }

    fn matched(&mut self, sides: &[Vec<String>]) {
        let players: Vec<Vec<Player>> = sides
            .iter()
            .map(|side| side.iter().filter_map(|role| self.waiting.remove(role)).collect())
            .collect();
        let sum = |side: &[Player]| side.iter().map(|player| player.skill).sum::<f64>();
        let count = players.iter().map(Vec::len).sum::<usize>() as f64;
        let gap = (sum(&players[0]) - sum(&players[1])).abs();
        let quality = 2.0 - 2.0 * normal_below(gap / (count * (BETA * BETA + SIGMA * SIGMA)).sqrt());
        let skills = || players.iter().flatten().map(|player| player.skill);
        let range = skills().fold(f64::MIN, f64::max) - skills().fold(f64::MAX, f64::min);
        self.outcome.matches += 1;
        for player in players.iter().flatten() {
            self.outcome.matched.push(Matched {
                waited_s: (self.now - player.since) as f64 / 1e3,
                skill: player.skill,
                quality,
                range,
                party: player.party,
                promised_s: player.promised_s,
            });
        }
    }
}

/// The standard normal distribution function for 0 and above (Abramowitz and Stegun 26.2.17, error
/// below 1e-7).
fn normal_below(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x);
    let poly = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530];
    let tail = poly.iter().fold(0.0, |sum, factor| (sum + factor) * t);
    1.0 - tail * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

/// Waits up to which players of a row are counted together, in seconds.
const BANDS: [f64; 7] = [1.0, 5.0, 10.0, 20.0, 40.0, 80.0, 300.0];

/// Wait against quality, by population, as text.
#[must_use]
pub fn table(outcomes: &[PopulationReport]) -> String {
    let mut out = String::new();
    for outcome in outcomes {
        let (all, population) = (outcome.waits(|_| true), outcome.population);
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            out,
            "{}: {} players/s, {} matches, {} players matched, {} timed out; waits p50 {:.1} s, p90 {:.1} s, p99 {:.1} s; \
             {:.0}% waited at most 1.5 times the announced p90",
            population.name,
            population.arrivals,
            outcome.matches,
            outcome.matched.len(),
            outcome.timed_out,
            quantile(&all, 0.5),
            quantile(&all, 0.9),
            quantile(&all, 0.99),
            outcome.promises_kept() * 100.0
        );
        let _ = writeln!(out, "  {:>12} {:>9} {:>9} {:>12}", "waited", "players", "quality", "skill range");
        let mut from = 0.0;
        for to in BANDS {
            let band = || outcome.matched.iter().filter(|one| one.waited_s >= from && one.waited_s < to);
            if band().count() > 0 {
                let (quality, range) =
                    (mean(band().map(|one| one.quality)), mean(band().map(|one| one.range)));
                let name = format!("{from:.0}-{to:.0} s");
                let _ = writeln!(out, "  {name:>12} {:>9} {quality:>9.3} {range:>12.2}", band().count());
            }
            from = to;
        }
    }
    out
}

const WIDTH: f64 = 960.0;
const PANEL: f64 = 260.0;
const LEFT: f64 = 70.0;
const HEAD: f64 = 70.0;
const COLOURS: [&str; 4] = ["#4cc9f0", "#4fd1a5", "#ff8a5b", "#c77dff"];

/// The same as a picture: quality and range of skill by waiting time, and waits by skill.
#[must_use]
pub fn svg(outcomes: &[PopulationReport]) -> String {
    let of_wait = |value: fn(&Matched) -> f64| {
        let curve = |outcome: &PopulationReport| {
            let mut sorted: Vec<&Matched> = outcome.matched.iter().collect();
            sorted.sort_by(|a, b| a.waited_s.total_cmp(&b.waited_s));
            let share = (sorted.len() / 12).max(1);
            let point = |part: &[&Matched]| {
                (mean(part.iter().map(|one| one.waited_s)), mean(part.iter().map(|one| value(one))))
            };
            sorted.chunks(share).filter(|part| part.len() == share).map(point).collect::<Vec<_>>()
        };
        outcomes.iter().map(curve).collect::<Vec<_>>()
    };
    let of_skill = |outcome: &PopulationReport| {
        let mut points = Vec::new();
        for step in 0..10 {
            let (from, to) = (f64::from(step) * 5.0, f64::from(step + 1) * 5.0);
            let waits = outcome.waits(|one| one.skill >= from && one.skill < to);
            if waits.len() >= 10 {
                points.push(((from + to) / 2.0, quantile(&waits, 0.9)));
            }
        }
        points
    };
    let height = HEAD + 3.0 * PANEL;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"Inter,Segoe UI,Helvetica,Arial,sans-serif\" font-size=\"13\" fill=\"#94a3b8\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#0b1020\"/>\n\
         <text x=\"28\" y=\"36\" font-size=\"22\" font-weight=\"700\" fill=\"#f8fafc\">What waiting buys: ranked 5 v 5</text>\n"
    );
    for (index, outcome) in outcomes.iter().enumerate() {
        let x = 420.0 + 130.0 * index as f64;
        let (name, colour) = (outcome.population.name, COLOURS[index % COLOURS.len()]);
        let _ = writeln!(out, "<text x=\"{x}\" y=\"36\" fill=\"{colour}\">\u{25cf} {name}</text>");
    }
    let waits = outcomes.iter().map(of_skill).collect::<Vec<_>>();
    panel(&mut out, HEAD, "quality (1 = even) by seconds waited", &of_wait(|one| one.quality));
    panel(&mut out, HEAD + PANEL, "range of skill in the match by seconds waited", &of_wait(|one| one.range));
    panel(&mut out, HEAD + 2.0 * PANEL, "wait that 9 of 10 did not exceed, in seconds, by skill", &waits);
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, top: f64, title: &str, curves: &[Vec<(f64, f64)>]) {
    let points = || curves.iter().flatten();
    let (right, high) = points().fold((1e-9_f64, 1e-9_f64), |(x, y), point| (x.max(point.0), y.max(point.1)));
    let (plot, floor) = (WIDTH - LEFT - 30.0, top + PANEL - 50.0);
    let depth = PANEL - 90.0;
    let _ = writeln!(out, "<text x=\"28\" y=\"{}\" fill=\"#e2e8f0\">{title}</text>", top + 18.0);
    for line in 0..=4 {
        let part = f64::from(line) / 4.0;
        let (x, y) = (LEFT + plot * part, floor - depth * part);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#1e293b\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{:.2}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>",
            LEFT + plot,
            LEFT - 8.0,
            y + 4.0,
            high * part,
            floor + 18.0,
            right * part
        );
    }
    for (index, curve) in curves.iter().enumerate() {
        let mut path = String::new();
        for (at, (x, y)) in curve.iter().enumerate() {
            let letter = if at == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", LEFT + plot * x / right, floor - depth * y / high);
        }
        let colour = COLOURS[index % COLOURS.len()];
        let _ = writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_population_is_matched_fairly_and_waiting_widens_what_is_taken() {
        let crowd = Population { name: "test", arrivals: 10.0, spread: 6.0, in_parties: 0.0, remote: 0.1 };
        let outcome = play(crowd, 240, 1);
        let (all, total) = (outcome.waits(|_| true), outcome.matched.len());
        assert!(total > 1_800, "{total} of 2,400 arrivals");
        assert!(outcome.matched.iter().all(|one| one.range <= 16.0), "the widest that the rules become");
        assert!(
            quantile(&all, 0.5) < 10.0,
            "half are matched under the narrow rules: {}",
            quantile(&all, 0.5)
        );
        assert!(outcome.promises_kept() >= 0.8, "{}", outcome.promises_kept());
        let range = |from: f64, to: f64| {
            mean(outcome.matched.iter().filter(|one| (from..to).contains(&one.waited_s)).map(|one| one.range))
        };
        assert!(range(0.0, 10.0) < range(30.0, 300.0), "who waits takes wider matches");
        // Those far from the middle wait longer, and still get their match.
        let (middle, edge) = (
            outcome.waits(|one| (one.skill - MIDDLE).abs() < 3.0),
            outcome.waits(|one| (one.skill - MIDDLE).abs() > 10.0),
        );
        assert!(quantile(&middle, 0.9) <= quantile(&edge, 0.9) && quantile(&edge, 0.9) < 200.0);
        let picture = svg(std::slice::from_ref(&outcome));
        assert!(
            picture.starts_with("<svg") && picture.ends_with("</svg>\n") && !picture.contains("NaN"),
            "{picture}"
        );
        assert_eq!(
            play(crowd, 20, 2).matched.len(),
            play(crowd, 20, 2).matched.len(),
            "the same seed, the same play"
        );
    }
}
