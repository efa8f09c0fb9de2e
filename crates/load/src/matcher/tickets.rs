//! The tickets suite: the cost of a queue with many thousands of tickets, measured from outside.
//!
//! A queue with long ticks is filled between two of them; what the matcher's process uses around
//! the tick is the tick's CPU time. The rules are those of a ranked five against five.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use throng_stdx::Rng;
use throng_wire::matcher::{Header, Kind, Method, Reader, Status, Writer};

use super::link::Link;
use super::{Plan, Refusals, RunError, histogram, reasons};
use crate::probe::Probe;
use crate::report::{Better, Row};

/// Requests in flight while a queue is filled.
const WINDOW: usize = 512;
/// Longest tick that a rule set may have: a pool is filled between two.
const LONG_TICK: Duration = Duration::from_secs(10);
/// Number of ticks whose median counts; the time of one varies with the use of the machine's caches
/// by others.
const ROUNDS: usize = 5;
/// A queue is filled until so long before a tick,
const FILL_ENDS: Duration = Duration::from_millis(500);
/// in steps of this length.
const FILL_STEP: Duration = Duration::from_millis(10);
/// Time limit of a tick's work. Unclaimed seats expire after it and before the next tick.
const TICK_WORK: Duration = Duration::from_secs(4);
/// A process that uses less than [`REST_CPU`] of CPU in this time has done its work: a resting
/// server uses some 0.1 ms.
const REST: Duration = Duration::from_millis(200);
const REST_CPU: Duration = Duration::from_millis(1);
/// New tickets per second in the steady part.
const ARRIVALS: u64 = 5_000;

/// A row in which less is better.
fn most(what: impl Into<String>, value: f64, unit: &'static str, floor: f64, aim: f64) -> Row {
    Row::new(what, unit, Better::Lower, value).marks(floor, aim)
}

/// Runs the suite with a number of waiting tickets.
///
/// # Errors
/// See [`RunError`].
pub fn run_tickets(plan: &Plan, tickets: usize) -> Result<Vec<Row>, RunError> {
    let mut suite = Suite {
        link: Link::connect(plan, 0)?,
        probe: Probe::new(plan.pid, None)?,
        next: 0,
        seed: 1,
        refused: Refused::default(),
    };
    // On fresh memory first: pairs leave a hundred thousand ended tickets to be forgotten in the
    // ticks after them.
    let mut figures = suite.matchable(tickets)?;
    for kind in [Hopeless::Sizes, Hopeless::Role, Hopeless::Range] {
        figures.extend(suite.unmatchable(kind, tickets)?);
    }
    figures.push(suite.pairs(plan.time)?);
    figures.extend(suite.steady(plan)?);
    let Refused { requests, by_status } = &suite.refused;
    let refused: u64 = by_status.values().sum();
    if refused * 100 > *requests {
        return Err(RunError::TooManyRefused { refused, requests: *requests, reasons: reasons(by_status) });
    }
    let what = if refused > 0 {
        format!("requests refused ({})", reasons(by_status))
    } else {
        "requests refused".to_owned()
    };
    figures.push(Row::new(what, "", Better::Lower, refused as f64));
    Ok(figures)
}

struct Suite {
    link: Link,
    probe: Probe,
    /// Number of the next player.
    next: u64,
    seed: u64,
    refused: Refused,
}

/// Answers of a run, and those of them that were refusals.
#[derive(Default)]
struct Refused {
    requests: u64,
    by_status: Refusals,
}

impl Refused {
    /// Counts an answer. Whether it was no refusal.
    fn count(&mut self, status: Status) -> bool {
        self.requests += 1;
        if status != Status::Ok {
            *self.by_status.entry(status.name()).or_default() += 1;
        }
        status == Status::Ok
    }
}

/// Why tickets cannot match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hopeless {
    /// Parties of four: two do not fit on a side of five, and there are no single players to fill
    /// it.
    Sizes,
    /// All players deal damage, and a side needs a healer.
    Role,
    /// Each is out of the range of all others.
    Range,
}

impl Hopeless {
    fn what(self) -> &'static str {
        match self {
            Hopeless::Sizes => "by the sizes of their parties",
            Hopeless::Role => "for lack of a role",
            Hopeless::Range => "as each is out of the others' range",
        }
    }

    /// The rules of a queue of such tickets. Without steps: a ticket that relaxes looks again, and
    /// with ticks this long every one would find some that did.
    fn rules(self, name: &str) -> String {
        let rules = rules(name, LONG_TICK, 0);
        let steps = rules.find("\"expand\"").unwrap_or(rules.len());
        let rigid = format!("{}}}", rules[..steps].trim_end().trim_end_matches(','));
        match self {
            Hopeless::Sizes => rigid,
            Hopeless::Role => rigid.replacen(
                "\"attributes\"",
                r#""positions": [{"name": "healer", "per_side_min": 1, "per_side_max": 1},
                                {"name": "damage", "per_side_min": 4, "per_side_max": 4}], "attributes""#,
                1,
            ),
            Hopeless::Range => rigid.replacen("\"max\": 4}", "\"max\": 0.5}", 1),
        }
    }
}

impl Suite {
    fn put_queue(&mut self, name: &str, tick: Duration, updates_s: u64) -> Result<(), RunError> {
        let rules = rules(name, tick, updates_s);
        self.put_rules(&rules)
    }

    fn put_rules(&mut self, rules: &str) -> Result<(), RunError> {
        let body = Writer::new().str(1, rules).into_bytes();
        let mut is_put = false;
        self.each(std::iter::once((Method::PUT_QUEUE, body)), |_, _| {
            is_put = true;
            Ok(())
        })?;
        if is_put {
            return Ok(());
        }
        let (test, step) = ("tickets".to_owned(), "PutQueue".to_owned());
        let message = "the rule set of the bench; see `throng bench matcher --help`".to_owned();
        Err(RunError::Refused { test, step, status: reasons(&self.refused.by_status), message })
    }

    /// Encodes a ticket: a party of a given size, with all players near one region.
    fn create(&mut self, queue: &str, size: u64, hopeless: Option<Hopeless>) -> Vec<u8> {
        let skill = match hopeless {
            Some(Hopeless::Range) => self.next.to_string(),
            _ => format!("{:.3}", 25.0 + 8.0 * (self.chance() + self.chance() + self.chance() - 1.5)),
        };
        let mut body = Writer::new().str(1, queue);
        for _ in 0..size {
            let attr = |key: &str, json: &str| Writer::new().str(1, key).str(2, json);
            let ping = |region: &str, ms: f64| Writer::new().str(1, region).f64(2, ms);
            let player = Writer::new()
                .str(1, &format!("p{}", self.next))
                .nested(3, attr("skill", &skill))
                .nested(3, attr("build", "\"1.0\""))
                .nested(3, attr("mode", "\"ranked\""))
                .nested(3, attr("level", "12"))
                .nested(3, attr("platform", "\"pc\""))
                .nested(4, ping("eu", 20.0 + 20.0 * self.chance()))
                .nested(4, ping("us", 110.0))
                .nested(4, ping("as", 180.0));
            let player = if hopeless == Some(Hopeless::Role) { player.str(5, "damage") } else { player };
            self.next += 1;
            body = body.nested(2, player);
        }
        body.into_bytes()
    }

    fn chance(&mut self) -> f64 {
        // A linear congruential generator: the population is the same in every run, and nothing
        // else is asked of it.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as f64 / (1_u64 << 31) as f64
    }

    /// Sends requests, with at most a window of them in flight, and passes every response to
    /// `answered`.
    fn each(
        &mut self,
        requests: impl Iterator<Item = (u16, Vec<u8>)>,
        mut answered: impl FnMut(u64, &[u8]) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let (mut in_flight, mut id, mut requests) = (0, 0, requests.peekable());
        while in_flight > 0 || requests.peek().is_some() {
            while in_flight < WINDOW
                && let Some((code, body)) = requests.next()
            {
                self.link.request(code, id, &body);
                (id, in_flight) = (id + 1, in_flight + 1);
            }
            self.link.send()?;
            let refused = &mut self.refused;
            self.link.receive(&mut |header, status, body| {
                in_flight -= 1;
                if refused.count(status) {
                    answered(header.id, body)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Tickets that arrive evenly until shortly before the next tick, as players do: a tick after
    /// seconds of idleness would measure how long the machine takes to wake.
    fn fill(
        &mut self,
        queue: &str,
        count: usize,
        size: u64,
        hopeless: Option<Hopeless>,
    ) -> Result<(), RunError> {
        let bodies: Vec<(u16, Vec<u8>)> =
            (0..count).map(|_| (Method::CREATE_TICKET, self.create(queue, size, hopeless))).collect();
        let mut bodies = bodies.into_iter();
        let (began, time) = (Instant::now(), until_tick().saturating_sub(FILL_ENDS));
        while bodies.len() > 0 {
            let share = began.elapsed().as_secs_f64() / time.as_secs_f64();
            let due = if share < 1.0 { (share * count as f64) as usize } else { count };
            let made = count - bodies.len();
            self.each(bodies.by_ref().take(due - made), |_, _| Ok(()))?;
            self.idle(FILL_STEP)?;
        }
        Ok(())
    }

    fn pairs(&mut self, time: Duration) -> Result<Row, RunError> {
        self.put_queue("pairs", LONG_TICK, 0)?;
        // Between two ticks: one that matched them would leave nothing to cancel.
        self.after_a_tick()?;
        let until = Instant::now() + time.min(LONG_TICK.mul_f64(0.8));
        let (mut pairs, mut elapsed) = (0_u64, 0.0);
        while Instant::now() < until {
            let bodies: Vec<(u16, Vec<u8>)> =
                (0..4_096).map(|_| (Method::CREATE_TICKET, self.create("pairs", 1, None))).collect();
            let mut ids = Vec::with_capacity(bodies.len());
            let began = Instant::now();
            self.each(bodies.into_iter(), |_, body| {
                let ticket = read(body)?.nested(1).map_err(|error| RunError::BadFrame(error.to_string()))?;
                ids.push(ticket.bytes(1).to_vec());
                Ok(())
            })?;
            pairs += ids.len() as u64;
            let cancel = |id: Vec<u8>| (Method::CANCEL_TICKET, Writer::new().bytes(1, &id).into_bytes());
            self.each(ids.into_iter().map(cancel), |_, _| Ok(()))?;
            elapsed += began.elapsed().as_secs_f64();
        }
        let rate = pairs as f64 / elapsed;
        let row = Row::new("CreateTicket + CancelTicket pairs", "/s", Better::Higher, rate);
        Ok(row.marks(50_000.0, 150_000.0))
    }

    /// CPU that the matcher uses from just before a long tick to when its work is done.
    fn tick_cpu(&mut self) -> Result<f64, RunError> {
        let lead = Duration::from_millis(100);
        self.idle(until_tick().saturating_sub(lead))?;
        let used = |probe: &Probe| probe.cpu().unwrap_or_default();
        let before = used(&self.probe);
        self.idle(lead + REST)?;
        let latest = Instant::now() + TICK_WORK;
        let mut after = used(&self.probe);
        while Instant::now() < latest {
            self.idle(REST)?;
            let grown = used(&self.probe) - after;
            after += grown;
            if grown < REST_CPU {
                break;
            }
        }
        Ok((after - before).as_secs_f64() * 1e3)
    }

    /// Reads incoming frames for a time.
    fn idle(&mut self, time: Duration) -> Result<(), RunError> {
        self.link.read_for(time)
    }

    /// Waits until a tick of the longest kind is just over, so that there is time to fill a queue
    /// before the next.
    fn after_a_tick(&mut self) -> Result<(), RunError> {
        self.idle(until_tick() + Duration::from_millis(200))
    }

    fn matchable(&mut self, tickets: usize) -> Result<Vec<Row>, RunError> {
        self.put_queue("most", LONG_TICK, 0)?;
        let (mut memory, mut ticks, mut walks) = (0.0, Vec::new(), Vec::new());
        let walk = Walk::new();
        for round in 0..ROUNDS {
            self.after_a_tick()?;
            let before = self.probe.memory().unwrap_or_default().resident_bytes;
            self.fill("most", tickets, 1, None)?;
            if round == 0 {
                let after = self.probe.memory().unwrap_or_default().resident_bytes;
                memory = after.saturating_sub(before) as f64 / tickets as f64;
            }
            ticks.push(self.tick_cpu()?);
            walks.push(walk.load_ns());
        }
        ticks.sort_by(f64::total_cmp);
        walks.sort_by(f64::total_cmp);
        let (least, cpu, most_of_all) = (ticks[0], ticks[ROUNDS / 2], ticks[ROUNDS - 1]);
        let matches = self.stats("most")?.1 / ROUNDS as u64;
        let scale = tickets as f64 / 100_000.0;
        Ok(vec![
            most("memory per ticket (1 player, 5 attributes, 3 latencies)", memory, "B", 2_048.0, 800.0),
            most(
                format!(
                    "tick over {tickets} tickets, {matches} matches made with rooms and seats, CPU, median of \
                     {ROUNDS} ({least:.0} to {most_of_all:.0})"
                ),
                cpu,
                "ms",
                100.0 * scale,
                40.0 * scale,
            ),
            Row::new(
                format!(
                    "a load from memory that waits for the one before, after each tick, median ({:.0} to {:.0}): \
                     the tick is the time of {:.1} of them a ticket",
                    walks[0],
                    walks[ROUNDS - 1],
                    cpu * 1e6 / tickets as f64 / walks[ROUNDS / 2],
                ),
                "ns",
                Better::Lower,
                walks[ROUNDS / 2],
            ),
        ])
    }

    fn unmatchable(&mut self, kind: Hopeless, tickets: usize) -> Result<Vec<Row>, RunError> {
        let name = format!("none_{kind:?}").to_lowercase();
        let rules = kind.rules(&name);
        self.put_rules(&rules)?;
        self.after_a_tick()?;
        self.fill(&name, tickets, if kind == Hopeless::Sizes { 4 } else { 1 }, Some(kind))?;
        let first = self.tick_cpu()?;
        let second = self.tick_cpu()?;
        let scale = tickets as f64 / 100_000.0;
        Ok(vec![
            most(
                format!("{tickets} tickets that cannot match {}, first tick, CPU", kind.what()),
                first,
                "ms",
                250.0 * scale,
                100.0 * scale,
            ),
            most(
                format!("{tickets} tickets that cannot match {}, later tick, CPU", kind.what()),
                second,
                "ms",
                20.0 * scale,
                2.0 * scale,
            ),
        ])
    }

    /// (tickets waiting, matches made).
    fn stats(&mut self, queue: &str) -> Result<(u64, u64), RunError> {
        let body = Writer::new().str(1, queue).into_bytes();
        let mut found = (0, 0);
        self.each(std::iter::once((Method::GET_QUEUE_STATS, body)), |_, body| {
            let stats = read(body)?;
            found = (stats.u64(2), stats.u64(4));
            Ok(())
        })?;
        Ok(found)
    }

    /// Tickets on schedule: time from the request to the notification, and how long a ping takes
    /// meanwhile.
    fn steady(&mut self, plan: &Plan) -> Result<Vec<Row>, RunError> {
        self.put_queue("steady", Duration::from_millis(250), 5)?;
        let mut sent: HashMap<Vec<u8>, Instant> = HashMap::new();
        let (mut to_match, mut pings) = (histogram(), histogram());
        let mut pending: HashMap<u64, Instant> = HashMap::new();
        let (began, mut made, mut id) = (Instant::now(), 0_u64, 0_u64);
        self.link.matched = Some(Vec::new());
        while began.elapsed() < plan.time {
            let due = (began.elapsed().as_secs_f64() * ARRIVALS as f64) as u64;
            while made < due {
                let intended = began + Duration::from_secs_f64(made as f64 / ARRIVALS as f64);
                sent.insert(format!("p{}", self.next).into_bytes(), intended);
                let body = self.create("steady", 1, None);
                self.link.request(Method::CREATE_TICKET, u64::MAX, &body);
                made += 1;
            }
            id += 1;
            pending.insert(id, Instant::now());
            self.link.request(Method::PING, id, b"");
            self.link.send()?;
            let refused = &mut self.refused;
            self.link.receive_for(Duration::from_millis(2), &mut |header, status, _| {
                refused.count(status);
                if let Some(at) = pending.remove(&header.id) {
                    // Within the bounds: it would have failed the run otherwise.
                    let _ = pings.record((at.elapsed().as_micros() as u64).max(1));
                }
                Ok(())
            })?;
            for (role, at) in self.link.matched.as_mut().into_iter().flat_map(|all| all.drain(..)) {
                if let Some(since) = sent.remove(&role) {
                    let _ = to_match.record((at - since).as_micros() as u64);
                }
            }
        }
        self.link.matched = None;
        // Those that came too late to be matched by now are no news.
        let late = Duration::from_secs(1);
        let unmatched = sent.values().filter(|at| at.elapsed() > late).count();
        let seconds = |histogram: &Histogram<u64>, part| histogram.value_at_quantile(part) as f64 / 1e3;
        Ok(vec![
            most(
                format!("{ARRIVALS} tickets/s arriving, time to match, p50 ({} matched)", to_match.len()),
                seconds(&to_match, 0.5),
                "ms",
                250.0,
                150.0,
            ),
            most("the same, p99", seconds(&to_match, 0.99), "ms", 600.0, 350.0),
            Row::new(
                format!("the same, not matched within a second, of {made}"),
                "tickets",
                Better::Lower,
                unmatched as f64,
            ),
            most("ping meanwhile, p99", seconds(&pings, 0.99), "ms", 5.0, 2.0),
        ])
    }
}

/// A random walk through memory. It measures the latency that bounds a tick over uncached tickets,
/// and that varies most from hour to hour on a shared machine.
struct Walk(Vec<u32>);

impl Walk {
    /// Twice the size of a large last-level cache.
    const BYTES: usize = 64 << 20;
    const LOADS: u32 = 500_000;

    fn new() -> Walk {
        // One cycle through all places (Sattolo's shuffle).
        let mut next: Vec<u32> = (0..(Walk::BYTES / size_of::<u32>()) as u32).collect();
        let mut rng = Rng::new(1);
        for last in (1..next.len()).rev() {
            next.swap(last, rng.below(last as u64) as usize);
        }
        Walk(next)
    }

    /// Time of a load that depends on the one before, in ns.
    fn load_ns(&self) -> f64 {
        let began = Instant::now();
        let end = (0..Walk::LOADS).fold(0, |at: u32, _| self.0[at as usize]);
        std::hint::black_box(end);
        began.elapsed().as_nanos() as f64 / f64::from(Walk::LOADS)
    }
}

/// The rules of a ranked five against five, without asking.
fn rules(name: &str, tick: Duration, updates_s: u64) -> String {
    format!(
        r#"{{"name": "{name}", "tick_ms": {}, "updates_s": {updates_s}, "seat_ttl_s": 5,
            "sides": [{{"name": "red", "min": 5, "max": 5}}, {{"name": "blue", "min": 5, "max": 5}}],
            "attributes": {{"skill": {{"type": "number"}}, "build": {{"type": "string"}},
                            "mode": {{"type": "string"}}, "level": {{"type": "number"}},
                            "platform": {{"type": "string"}}}},
            "partition": ["build", "mode"], "party": {{"policy": "large_vs_large"}},
            "rules": [{{"name": "skill", "type": "near", "key": "skill", "max": 4}},
                      {{"name": "fair", "type": "balance", "key": "skill", "agg": "mean", "max": 1.5}},
                      {{"name": "ping", "type": "latency", "max_ms": 60}}, {{"name": "foes", "type": "avoid"}}],
            "expand": [{{"target": "rules.skill.max", "steps": [{{"after_s": 10, "value": 6}},
                            {{"after_s": 30, "value": 10}}, {{"after_s": 60, "value": 16}}]}},
                       {{"target": "rules.fair.max", "steps": [{{"after_s": 60, "value": 3}}]}},
                       {{"target": "rules.ping.max_ms", "steps": [{{"after_s": 20, "value": 90}},
                            {{"after_s": 60, "value": 150}}]}},
                       {{"target": "party.policy", "steps": [{{"after_s": 45, "value": "any"}}]}}]}}"#,
        tick.as_millis()
    )
}

/// Time to the next multiple of the longest tick on the wall clock, which is where ticks begin.
fn until_tick() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let tick = LONG_TICK.as_millis();
    Duration::from_millis((tick - now.as_millis() % tick) as u64)
}

fn read(body: &[u8]) -> Result<Reader<'_>, RunError> {
    Reader::new(body).map_err(|error| RunError::BadFrame(error.to_string()))
}

impl Link {
    pub(super) fn request(&mut self, code: u16, id: u64, body: &[u8]) {
        Header { kind: Kind::Request, code, id, ..Header::default() }.write(&mut self.out, body);
    }
}
