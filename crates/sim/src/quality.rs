//! The matcher beside a solution that knows the future: how long tickets wait, and how even their
//! matches are.
//!
//! Both get the same tickets on the same grid of ticks, under the same rules, which relax with the
//! waiting time. The matcher sees each ticket when it arrives; the offline solution has all tickets
//! at once. It is found by local search (simulated annealing, from the matcher's own matches) for
//! one objective: the sum over all players of the seconds waited and the range of skill in the
//! match, where a player without a match counts as [`UNMATCHED_S`]. No matcher can see the future,
//! so the offline figures are no target: they say how much of the waiting is for lack of players.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use throng_matcher::{Caller, Config, Matcher, Notices, Scope, WallMs};
use throng_stdx::Rng;
use throng_wire::fields;
use throng_wire::matcher::{Event, Method, Reader, Status, Writer};

const TICK_MS: u64 = 250;
/// Wall time at the start; any will do.
const EPOCH_MS: u64 = 1_700_000_000_000;
/// Time after which a ticket ends without a match.
const TIMEOUT_MS: u64 = 300_000;
/// Cost of a player without a match, in seconds: all of the waiting, in vain.
pub const UNMATCHED_S: f64 = 300.0;
/// Cost in seconds of a point of skill between the best and the worst of a match.
const POINT_S: f64 = 1.0;
/// Limits of a rule, each from a waiting time in seconds on.
type Steps = &'static [(u64, f64)];
/// Largest difference of skill between two tickets of a match,
const SKILL: Steps = &[(0, 4.0), (10, 6.0), (30, 10.0), (60, 16.0)];
/// largest latency in ms to its region,
const PING: Steps = &[(0, 60.0), (20, 90.0), (60, 150.0)];
/// and largest difference between the mean skills of its sides.
const FAIR: Steps = &[(0, 1.5), (60, 3.0)];
const MIDDLE: f64 = 25.0;
const REGIONS: [&str; 3] = ["as", "eu", "us"];

/// The relaxation of a limit as a rule set has it.
fn expansion(target: &str, steps: Steps) -> String {
    let steps: Vec<String> = steps[1..]
        .iter()
        .map(|(after_s, value)| format!(r#"{{"after_s": {after_s}, "value": {value}}}"#))
        .collect();
    format!(r#"{{"target": "rules.{target}", "steps": [{}]}}"#, steps.join(", "))
}

/// Waiting time in ms after which a value is within its limit; `None` if it never is.
fn wait_for(steps: Steps, value: f64) -> Option<u64> {
    steps.iter().find(|(_, limit)| value <= *limit).map(|(after_s, _)| after_s * 1_000)
}

/// A population and the match that it wants.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name in reports.
    pub name: &'static str,
    /// Arriving tickets per second.
    pub arrivals: f64,
    /// Number of regions that players live in.
    pub regions: usize,
    /// Share of tickets that are parties of two to five.
    pub parties: f64,
    /// Groups of one tank, one healer and three damage dealers instead of five against five.
    pub has_roles: bool,
}

/// The settings of reports.
pub const SETTINGS: [Setting; 4] = [
    Setting { name: "one region", arrivals: 40.0, regions: 1, parties: 0.0, has_roles: false },
    Setting { name: "three regions, parties", arrivals: 20.0, regions: 3, parties: 0.3, has_roles: false },
    Setting { name: "roles, scarce tanks", arrivals: 20.0, regions: 1, parties: 0.0, has_roles: true },
    Setting { name: "night, few players", arrivals: 0.5, regions: 1, parties: 0.1, has_roles: false },
];

impl Setting {
    /// Its rule set.
    fn rules(&self) -> String {
        let mut rules = vec![
            format!(r#"{{"name": "skill", "type": "near", "key": "skill", "max": {}}}"#, SKILL[0].1),
            format!(r#"{{"name": "ping", "type": "latency", "max_ms": {}}}"#, PING[0].1),
        ];
        let mut expand = vec![expansion("skill.max", SKILL), expansion("ping.max_ms", PING)];
        let shape = if self.has_roles {
            r#""sides": [{"name": "group", "min": 5, "max": 5}],
                "positions": [{"name": "tank", "per_side_min": 1, "per_side_max": 1},
                              {"name": "healer", "per_side_min": 1, "per_side_max": 1},
                              {"name": "damage", "per_side_min": 3, "per_side_max": 3}]"#
        } else {
            let fair = r#""type": "balance", "key": "skill", "agg": "mean""#;
            rules.push(format!(r#"{{"name": "fair", {fair}, "max": {}}}"#, FAIR[0].1));
            expand.push(expansion("fair.max", FAIR));
            r#""sides": [{"name": "red", "min": 5, "max": 5}, {"name": "blue", "min": 5, "max": 5}]"#
        };
        format!(
            r#"{{"name": "q", "tick_ms": {TICK_MS}, "timeout_s": {}, "seat_ttl_s": 1, {shape},
                "attributes": {{"skill": {{"type": "number"}}}}, "rules": [{}], "expand": [{}]}}"#,
            TIMEOUT_MS / 1_000,
            rules.join(", "),
            expand.join(", ")
        )
    }

    fn players(&self) -> usize {
        if self.has_roles { 5 } else { 10 }
    }

    fn tickets(&self, count: usize, rng: &mut Rng) -> Vec<Ticket> {
        let normal = |rng: &mut Rng| (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
        let ticket = |number: usize, rng: &mut Rng| {
            let at_ms = (number as f64 * 1e3 / self.arrivals) as u64;
            let size = if rng.chance(self.parties) { 2 + rng.below(4) as usize } else { 1 };
            let skill = (MIDDLE + 6.0 * normal(rng)).clamp(0.0, 2.0 * MIDDLE);
            let home = rng.below(self.regions as u64) as usize;
            let ping = |at: usize, rng: &mut Rng| {
                if at == home { 10.0 + 40.0 * rng.f64() } else { 90.0 + 60.0 * rng.f64() }
            };
            let ping = std::array::from_fn(|at| if at < self.regions { ping(at, rng) } else { f64::MAX });
            let role = match rng.below(100) {
                _ if !self.has_roles => "",
                0..8 => "tank",
                8..24 => "healer",
                _ => "damage",
            };
            Ticket { at_ms, size, skill, ping, role }
        };
        (0..count).map(|number| ticket(number, rng)).collect()
    }
}

/// A party: its players are alike.
#[derive(Debug, Clone, Copy)]
struct Ticket {
    at_ms: u64,
    size: usize,
    skill: f64,
    /// By region.
    ping: [f64; REGIONS.len()],
    /// Position that it takes; empty for any.
    role: &'static str,
}

/// Tickets of a match and its time.
#[derive(Debug, Clone)]
struct Made {
    at_ms: u64,
    tickets: Vec<usize>,
}

/// Quality of a solution. Times are in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct SolutionStats {
    /// Waiting time of matched players: p50, p90 and p99.
    pub waits: [f64; 3],
    /// Mean waiting time of matched players.
    pub wait: f64,
    /// Mean range of skill in the matches.
    pub range: f64,
    /// Mean ping of players to the best region of their match, in ms.
    pub ping: f64,
    /// Players without a match.
    pub unmatched: usize,
    /// The objective: mean cost of a player.
    pub cost: f64,
}

/// A setting with both solutions.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// Name of the setting.
    pub name: &'static str,
    /// Players in it.
    pub players: usize,
    /// Quality of the matcher's matches.
    pub matcher: SolutionStats,
    /// Quality of the solution that knows the future.
    pub offline: SolutionStats,
}

/// Compares the matcher with an offline solution on the same tickets. The same arguments give the
/// same result; `moves` is the length of the local search.
///
/// # Panics
/// If the matcher refuses a request or breaks a rule, which is a defect.
#[must_use]
pub fn compare(setting: &Setting, tickets: usize, moves: usize, seed: u64) -> Comparison {
    let mut rng = Rng::new(seed);
    let all = setting.tickets(tickets, &mut rng);
    let solver = Solver { setting, all: &all };
    let online = match_online(setting, &all);
    for made in &online {
        let earliest = solver.check(&made.tickets).map(|(at_ms, _)| at_ms);
        assert!(earliest.is_some_and(|at_ms| at_ms <= made.at_ms), "a match breaks its rules: {made:?}");
    }
    let offline = solver.improve(&online, moves, &mut rng);
    let players = all.iter().map(|ticket| ticket.size).sum();
    let (matcher, offline) = (solver.figures(&online), solver.figures(&offline));
    Comparison { name: setting.name, players, matcher, offline }
}

/// Matches of the real matcher in virtual time.
fn match_online(setting: &Setting, all: &[Ticket]) -> Vec<Made> {
    let mut matcher = Matcher::new(Config::default(), [7; 32], WallMs(EPOCH_MS));
    let mut notices = Notices::default();
    let call = |matcher: &mut Matcher, notices: &mut Notices, now, method, body: Writer| {
        let (caller, mut answer) = (Caller { srv: "game", scope: Scope::Admin }, Vec::new());
        let handled = matcher.handle(WallMs(now), caller, method, &body.into_bytes(), &mut answer, notices);
        assert_eq!(handled.status(), Some(Status::Ok), "{}", answer.escape_ascii());
    };
    matcher.handle_session(WallMs(EPOCH_MS), "game", true, &mut notices);
    call(&mut matcher, &mut notices, EPOCH_MS, Method::PUT_QUEUE, Writer::new().str(1, &setting.rules()));
    let mut made: BTreeMap<Vec<u8>, Made> = BTreeMap::new();
    let (mut next, mut now_ms) = (0, 0);
    let end = all.last().map_or(0, |ticket| ticket.at_ms) + TIMEOUT_MS;
    while now_ms <= end {
        now_ms += TICK_MS;
        while let Some(ticket) = all.get(next).filter(|ticket| ticket.at_ms < now_ms) {
            let now = EPOCH_MS + ticket.at_ms;
            call(&mut matcher, &mut notices, now, Method::CREATE_TICKET, request(next, ticket));
            next += 1;
        }
        while matcher.next_timeout().is_some_and(|at| at <= WallMs(EPOCH_MS + now_ms)) {
            matcher.handle_timeout(WallMs(EPOCH_MS + now_ms), &mut notices);
        }
        for (id, mut tickets) in ready(&notices) {
            let at_ms = now_ms;
            let entry = made.entry(id).or_insert(Made { at_ms, tickets: Vec::new() });
            entry.tickets.append(&mut tickets);
        }
        notices.clear();
    }
    let mut made: Vec<Made> = made.into_values().collect();
    for made in &mut made {
        made.tickets.sort_unstable();
        made.tickets.dedup();
    }
    made
}

fn request(number: usize, ticket: &Ticket) -> Writer {
    let attr = Writer::new().str(1, "skill").str(2, &format!("{}", ticket.skill)).into_bytes();
    let player = |member: usize| {
        let mut player = Writer::new().str(1, &format!("{number}:{member}")).bytes(3, &attr);
        for (region, ms) in REGIONS.iter().zip(ticket.ping).filter(|(_, ms)| *ms < f64::MAX) {
            player = player.nested(4, Writer::new().str(1, region).f64(2, ms));
        }
        if ticket.role.is_empty() { player } else { player.str(5, ticket.role) }
    };
    (0..ticket.size).fold(Writer::new().str(1, "q"), |body, member| body.nested(2, player(member)))
}

/// Matches named in notices, with the tickets of the players who receive them.
fn ready(notices: &Notices) -> Vec<(Vec<u8>, Vec<usize>)> {
    let mut all = Vec::new();
    for notice in notices.iter() {
        let Some(Ok(entry)) = fields(notice.entry).next() else { continue };
        let (mut tickets, mut id) = (Vec::new(), None);
        for field in fields(entry.value).map_while(Result::ok) {
            if field.number == 1 {
                let role = String::from_utf8_lossy(field.value);
                tickets.extend(role.split(':').next().and_then(|number| number.parse::<usize>().ok()));
            } else if field.number == Event::MATCH_READY {
                id = Reader::new(field.value).ok().map(|event| event.bytes(1).to_vec());
            }
        }
        all.extend(id.map(|id| (id, tickets)));
    }
    all
}

struct Solver<'a> {
    setting: &'a Setting,
    all: &'a [Ticket],
}

impl Solver<'_> {
    /// Time and cost of a match of these tickets, as early as the rules admit it; `None` if they
    /// never do. Between two tickets the limit of the one that waited less counts, and for the
    /// whole match that of the one that waited least.
    fn check(&self, tickets: &[usize]) -> Option<(u64, f64)> {
        let all = || tickets.iter().map(|ticket| &self.all[*ticket]);
        let players: usize = all().map(|ticket| ticket.size).sum();
        if players != self.setting.players() {
            return None;
        }
        let last = all().map(|ticket| ticket.at_ms).max()?;
        let worst = |region: usize| all().map(|ticket| ticket.ping[region]).fold(0.0, f64::max);
        let ping = (0..REGIONS.len()).map(worst).fold(f64::MAX, f64::min);
        let mut admitted = last + wait_for(PING, ping)?;
        for (at, a) in all().enumerate() {
            for b in all().skip(at + 1) {
                let wait = wait_for(SKILL, (a.skill - b.skill).abs())?;
                admitted = admitted.max(a.at_ms.max(b.at_ms) + wait);
            }
        }
        if self.setting.has_roles {
            let count = |role: &str| all().filter(|ticket| ticket.role == role).count();
            if (count("tank"), count("healer")) != (1, 1) {
                return None;
            }
        } else {
            let fair = FAIR.iter().find(|(_, limit)| self.divides(tickets, *limit))?;
            admitted = admitted.max(last + fair.0 * 1_000);
        }
        // A tick sees what came before it.
        let at_ms = (last / TICK_MS + 1).max(admitted.div_ceil(TICK_MS)) * TICK_MS;
        if all().any(|ticket| at_ms - ticket.at_ms > TIMEOUT_MS) {
            return None;
        }
        let wait = |ticket: &Ticket| ticket.size as f64 * (at_ms - ticket.at_ms) as f64 / 1e3;
        Some((at_ms, all().map(wait).sum::<f64>() + POINT_S * self.range(tickets) * players as f64))
    }

    fn range(&self, tickets: &[usize]) -> f64 {
        let skills = || tickets.iter().map(|ticket| self.all[*ticket].skill);
        skills().fold(f64::MIN, f64::max) - skills().fold(f64::MAX, f64::min)
    }

    /// Returns whether in some division into two sides their means differ by at most `gap`.
    fn divides(&self, tickets: &[usize], gap: f64) -> bool {
        // The first ticket is on the first side, without loss of generality.
        (0..1_u32 << (tickets.len() - 1)).any(|others| {
            let (mut players, mut skill) = ([0; 2], [0.0; 2]);
            for (at, ticket) in tickets.iter().enumerate() {
                let ticket = &self.all[*ticket];
                let side = usize::from(at > 0 && others >> (at - 1) & 1 == 1);
                players[side] += ticket.size;
                skill[side] += ticket.skill * ticket.size as f64;
                if players[side] > 5 {
                    return false;
                }
            }
            (skill[0] - skill[1]).abs() / 5.0 <= gap
        })
    }

    /// A better solution by simulated annealing. Two tickets of a kind change places, also with one
    /// that has no match; a match is given up; a match is made of tickets that have none.
    fn improve(&self, start: &[Made], moves: usize, rng: &mut Rng) -> Vec<Made> {
        // Hotter, it loses more of the matcher's matches than it finds again.
        const FIRST: f64 = 5.0;
        const LAST: f64 = 0.05;
        let mut state = State::new(self, start);
        let mut best = (state.cost, state.matches.clone());
        for step in 0..moves {
            let heat = FIRST * (LAST / FIRST).powf(step as f64 / moves as f64);
            let change = match rng.below(20) {
                0 => state.gather(rng),
                1 => state.give_up(rng),
                _ => state.swap(rng),
            };
            let Some(change) = change else { continue };
            if change.cost <= 0.0 || rng.f64() < (-change.cost / heat).exp() {
                state.apply(change);
                if state.cost < best.0 - 1e-6 {
                    best = (state.cost, state.matches.clone());
                }
            }
        }
        let made = |tickets: Vec<usize>| Some(Made { at_ms: self.check(&tickets)?.0, tickets });
        best.1.into_iter().filter_map(made).collect()
    }

    fn figures(&self, made: &[Made]) -> SolutionStats {
        let (mut waits, mut ranges, mut pings) = (Vec::new(), 0.0, 0.0);
        for one in made {
            let all = || one.tickets.iter().map(|ticket| &self.all[*ticket]);
            for ticket in all() {
                waits.extend(std::iter::repeat_n((one.at_ms - ticket.at_ms) as f64 / 1e3, ticket.size));
            }
            ranges += self.range(&one.tickets);
            let ping = |region: usize| all().map(|ticket| ticket.ping[region] * ticket.size as f64).sum();
            pings += (0..REGIONS.len()).map(ping).fold(f64::MAX, f64::min);
        }
        waits.sort_by(f64::total_cmp);
        let matched = waits.len();
        let players: usize = self.all.iter().map(|ticket| ticket.size).sum();
        let quantile = |part: f64| waits.get((matched as f64 * part) as usize).copied().unwrap_or_default();
        let (sum, count) = (waits.iter().sum::<f64>(), made.len().max(1) as f64);
        let wasted = (players - matched) as f64 * UNMATCHED_S;
        let cost = sum + POINT_S * ranges * self.setting.players() as f64 + wasted;
        SolutionStats {
            waits: [0.5, 0.9, 0.99].map(quantile),
            wait: sum / matched.max(1) as f64,
            range: ranges / count,
            ping: pings / matched.max(1) as f64,
            unmatched: players - matched,
            cost: cost / players.max(1) as f64,
        }
    }
}

/// Solution that is being improved.
struct State<'a> {
    solver: &'a Solver<'a>,
    matches: Vec<Vec<usize>>,
    /// Cost of each match.
    costs: Vec<f64>,
    /// Match of each ticket.
    home: Vec<Option<usize>>,
    cost: f64,
    /// Tickets of each kind, in order of arrival, and the place of each ticket among its kind.
    kinds: Vec<Vec<usize>>,
    kind: Vec<(usize, usize)>,
}

/// Matches with their new tickets, and the change of the cost. A match without tickets is given up.
struct Change {
    matches: Vec<(Option<usize>, Vec<usize>)>,
    cost: f64,
}

impl<'a> State<'a> {
    fn new(solver: &'a Solver<'a>, start: &[Made]) -> State<'a> {
        let (mut kinds, mut kind) = (BTreeMap::<_, Vec<usize>>::new(), Vec::new());
        for (number, ticket) in solver.all.iter().enumerate() {
            kinds.entry((ticket.size, ticket.role)).or_default().push(number);
        }
        let kinds: Vec<Vec<usize>> = kinds.into_values().collect();
        kind.resize(solver.all.len(), (0, 0));
        for (at, tickets) in kinds.iter().enumerate() {
            tickets.iter().enumerate().for_each(|(place, ticket)| kind[*ticket] = (at, place));
        }
        let wasted = solver.all.iter().map(|ticket| ticket.size as f64 * UNMATCHED_S).sum();
        let home = vec![None; solver.all.len()];
        let (matches, costs) = (Vec::new(), Vec::new());
        let mut state = State { solver, matches, costs, home, cost: wasted, kinds, kind };
        for made in start {
            let tickets = made.tickets.clone();
            if let Some(change) = state.change(vec![(None, tickets)]) {
                state.apply(change);
            }
        }
        state
    }

    fn wasted(&self, tickets: &[usize]) -> f64 {
        tickets.iter().map(|ticket| self.solver.all[*ticket].size as f64 * UNMATCHED_S).sum()
    }

    /// Its cost, if all of its matches are allowed.
    fn change(&self, matches: Vec<(Option<usize>, Vec<usize>)>) -> Option<Change> {
        let mut cost = 0.0;
        for (old, tickets) in &matches {
            if let Some(old) = old {
                cost += self.wasted(&self.matches[*old]) - self.costs[*old];
            }
            if !tickets.is_empty() {
                cost += self.solver.check(tickets)?.1 - self.wasted(tickets);
            }
        }
        Some(Change { matches, cost })
    }

    fn apply(&mut self, change: Change) {
        for (old, _) in &change.matches {
            for ticket in old.map(|old| std::mem::take(&mut self.matches[old])).into_iter().flatten() {
                self.home[ticket] = None;
            }
        }
        for (old, tickets) in change.matches {
            let free = || self.matches.iter().position(Vec::is_empty);
            let at = old.or_else(free).unwrap_or(self.matches.len());
            if at == self.matches.len() {
                self.matches.push(Vec::new());
                self.costs.push(0.0);
            }
            self.costs[at] = self.solver.check(&tickets).map_or(0.0, |(_, cost)| cost);
            for ticket in &tickets {
                self.home[*ticket] = Some(at);
            }
            self.matches[at] = tickets;
        }
        self.cost += change.cost;
    }

    /// One of the same kind that arrives at about the same time: of some the nearest in skill, as
    /// others would rarely fit.
    fn near(&self, ticket: usize, rng: &mut Rng) -> usize {
        const NEAR: u64 = 40;
        const TRIES: usize = 4;
        let (kind, place) = self.kind[ticket];
        let first = place.saturating_sub(NEAR as usize);
        let of_kind = &self.kinds[kind];
        let tries: [usize; TRIES] = std::array::from_fn(|_| {
            let place = first + rng.below(2 * NEAR + 1) as usize;
            of_kind[place.min(of_kind.len() - 1)]
        });
        let skill = |other: usize| self.solver.all[other].skill;
        let distance = |other: usize| (skill(other) - skill(ticket)).abs();
        // The ticket itself is no partner.
        let others = tries.into_iter().filter(|other| *other != ticket);
        others.min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap_or(ticket)
    }

    fn swap(&self, rng: &mut Rng) -> Option<Change> {
        let first = rng.below(self.solver.all.len() as u64) as usize;
        let second = self.near(first, rng);
        let homes = [self.home[first], self.home[second]];
        if homes[0] == homes[1] {
            return None;
        }
        let exchanged = |home: usize, out: usize, into: usize| {
            let mut tickets = self.matches[home].clone();
            tickets.iter_mut().filter(|ticket| **ticket == out).for_each(|ticket| *ticket = into);
            (Some(home), tickets)
        };
        let mut matches = Vec::with_capacity(2);
        matches.extend(homes[0].map(|home| exchanged(home, first, second)));
        matches.extend(homes[1].map(|home| exchanged(home, second, first)));
        self.change(matches)
    }

    fn give_up(&self, rng: &mut Rng) -> Option<Change> {
        let at = rng.below(self.matches.len().max(1) as u64) as usize;
        self.matches.get(at).filter(|tickets| !tickets.is_empty())?;
        self.change(vec![(Some(at), Vec::new())])
    }

    /// A match of tickets without one, the nearest in time around one of them.
    fn gather(&self, rng: &mut Rng) -> Option<Change> {
        const AROUND: usize = 150;
        let all = self.solver.all;
        let middle = rng.below(all.len() as u64) as usize;
        let around = middle.saturating_sub(AROUND)..(middle + AROUND).min(all.len());
        let mut free: Vec<usize> = around.filter(|ticket| self.home[*ticket].is_none()).collect();
        free.sort_by_key(|ticket| all[*ticket].at_ms.abs_diff(all[middle].at_ms));
        let seed = *free.first()?;
        let mut tickets = vec![seed];
        let mut players = all[seed].size;
        for ticket in &free[1..] {
            let is_near = wait_for(SKILL, (all[*ticket].skill - all[seed].skill).abs()).is_some();
            let count = tickets.iter().filter(|other| all[**other].role == all[*ticket].role).count();
            let is_wanted = match all[*ticket].role {
                "" => true,
                "damage" => count < 3,
                _ => count == 0,
            };
            // Some are left out by chance, so that another try finds another match.
            if is_near
                && is_wanted
                && players + all[*ticket].size <= self.solver.setting.players()
                && rng.chance(0.8)
            {
                players += all[*ticket].size;
                tickets.push(*ticket);
            }
        }
        self.change(vec![(None, tickets)])
    }
}

/// Both solutions of every setting, as text.
#[must_use]
pub fn comparison_table(all: &[Comparison]) -> String {
    let mut out = String::from(
        "| Population | Solution | Wait p50 | p90 | p99 | Mean | Skill range | Ping | Unmatched | Cost |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for one in all {
        for (name, figures) in [("matcher", &one.matcher), ("offline", &one.offline)] {
            let SolutionStats { waits: [p50, p90, p99], wait, range, ping, unmatched, cost } = figures;
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                out,
                "| {} | {name} | {p50:.1} | {p90:.1} | {p99:.1} | {wait:.1} | {range:.2} | {ping:.0} | {unmatched} of {} | {cost:.1} |",
                one.name, one.players
            );
        }
        let ratio = |of: fn(&SolutionStats) -> f64| of(&one.matcher) / of(&one.offline);
        let _ = writeln!(
            out,
            "| | ratio | | | | {:.2} | {:.2} | {:.2} | | {:.2} |",
            ratio(|figures| figures.wait),
            ratio(|figures| figures.range),
            ratio(|figures| figures.ping),
            ratio(|figures| figures.cost)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_solution_that_knows_the_future_costs_no_more_and_breaks_no_rule() {
        for setting in &SETTINGS {
            let found = compare(setting, 200, 2_000, 1);
            let (matcher, offline) = (found.matcher, found.offline);
            assert!(offline.cost <= matcher.cost, "{found:?}");
            assert!(
                matcher.unmatched < found.players && offline.range <= SKILL[SKILL.len() - 1].1,
                "{found:?}"
            );
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_comparison() {
        let table = |seed| comparison_table(&[compare(&SETTINGS[2], 150, 1_000, seed)]);
        assert_eq!(table(1), table(1));
        assert_ne!(table(1), table(2));
    }
}
