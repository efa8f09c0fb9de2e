//! The matcher's load suite: 19 named tests in closed loops, as the reference's own tool runs them.
//!
//! A *worker* runs transactions one after another; a transaction is one to three requests. Workers
//! share connections, so that what is ready leaves in one write. Every notification is decoded, as
//! a game server would have to.

mod echo;
mod link;
mod published;
mod report;
mod tickets;
mod worker;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use thiserror::Error;

pub use echo::serve as serve_echo;
pub use published::{PUBLISHED, Published};
pub use report::{report, tickets_report};
pub use tickets::run_tickets;
pub use worker::TESTS;

use crate::probe::Probe;

/// Plan of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Address of the matcher.
    pub addr: SocketAddr,
    /// Name of the test.
    pub test: String,
    /// Closed-loop workers.
    pub workers: usize,
    /// Length of the measured window.
    pub time: Duration,
    /// Time before it.
    pub warmup: Duration,
    /// Area of the matcher.
    pub area: String,
    /// Connections.
    pub conns: usize,
    /// Servers that the roles are spread over; as many connections at least.
    pub servers: usize,
    /// Counts refusals instead of stopping at the first.
    pub keep_going: bool,
    /// Process of the matcher, for its CPU time.
    pub pid: Option<u32>,
    /// Access token.
    pub token: String,
}

/// Results of one test.
#[derive(Debug, Clone, serde::Serialize)]
pub struct TestReport {
    /// Name of the test.
    pub test: String,
    /// Workers.
    pub workers: usize,
    /// Completed transactions.
    pub transactions: u64,
    /// Requests per transaction.
    pub requests_per_transaction: u64,
    /// Configured duration, in s.
    pub seconds: f64,
    /// True elapsed time, in s.
    pub elapsed_s: f64,
    /// Transactions per second of the configured duration.
    pub tps: f64,
    /// Requests per second of the true time.
    pub rps: f64,
    /// Latency of requests, in us.
    pub p50_us: u64,
    /// Latency of requests, in us.
    pub p95_us: u64,
    /// Latency of requests, in us.
    pub p99_us: u64,
    /// Latency of requests, in us.
    pub max_us: u64,
    /// Refusals that were not expected.
    pub errors: u64,
    /// The same by status.
    pub refusals: Refusals,
    /// Entries of notifications received and decoded.
    pub notices: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// CPU time of the matcher per request, in us.
    pub server_cpu_us: Option<f64>,
    /// CPU time of this process per request, in us.
    pub client_cpu_us: Option<f64>,
}

/// Refused requests by the name of their status.
pub type Refusals = BTreeMap<&'static str, u64>;

/// Refusals as a list for people; empty where there are none.
#[must_use]
pub fn reasons(refusals: &Refusals) -> String {
    let each: Vec<String> = refusals.iter().map(|(status, count)| format!("{count} {status}")).collect();
    each.join(", ")
}

/// Why there is no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// No such test.
    #[error("illegal test name: {0}")]
    IllegalTestName(String),
    /// The connection failed.
    #[error("the connection to the matcher failed: {0}")]
    Io(#[from] io::Error),
    /// The matcher sent something that cannot be read.
    #[error("the matcher sent an invalid message: {0}")]
    BadFrame(String),
    /// A request was refused.
    #[error("{test}: {step} was refused: {status} {message}")]
    Refused {
        /// The test.
        test: String,
        /// Refused step.
        step: String,
        /// The status.
        status: String,
        /// Status of the answer.
        message: String,
    },
    /// More of a run's requests were refused than it may have.
    #[error(
        "{refused} of {requests} requests were refused, over 1%: {reasons}; the figures would be those of refusals"
    )]
    TooManyRefused {
        /// Refused requests.
        refused: u64,
        /// All requests.
        requests: u64,
        /// Number by status.
        reasons: String,
    },
    /// The matcher closed the connection.
    #[error("the matcher ended the session: {0}")]
    Goaway(String),
}

/// Results of one connection's thread.
struct Part {
    transactions: u64,
    requests: u64,
    refusals: Refusals,
    notices: u64,
    bytes_in: u64,
    latencies: Histogram<u64>,
}

impl Part {
    fn new() -> Part {
        let latencies = histogram();
        Part { transactions: 0, requests: 0, refusals: Refusals::new(), notices: 0, bytes_in: 0, latencies }
    }
}

/// Runs one test.
///
/// # Errors
/// See [`RunError`].
pub fn run(plan: &Plan) -> Result<TestReport, RunError> {
    let test = worker::find(&plan.test).ok_or_else(|| RunError::IllegalTestName(plan.test.clone()))?;
    let conns = plan.conns.max(plan.servers).max(1).min(plan.workers.max(1));
    let prefix = format!("{:x}", std::process::id() as u64 ^ (started_ns() & 0xFFFF_FFFF));
    let probe = Probe::new(plan.pid, None)?;
    let own = Probe::new(Some(std::process::id()), None)?;
    let links: Vec<link::Link> =
        (0..conns).map(|index| link::Link::connect(plan, index)).collect::<Result<_, _>>()?;
    let (cpu, own_cpu, began) = (probe.cpu(), own.cpu(), Instant::now());
    let from = began + plan.warmup;
    let until = from + plan.time;
    let parts: Vec<Result<Part, RunError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = links
            .into_iter()
            .enumerate()
            .map(|(index, link)| {
                let prefix = prefix.as_str();
                scope.spawn(move || {
                    let workers =
                        (index..plan.workers).step_by(conns).map(|w| worker::Worker::new(prefix, w));
                    link.run(plan, test, workers.collect(), from, until)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| Err(RunError::BadFrame("a worker panicked".into())))
            })
            .collect()
    });
    let elapsed = from.elapsed();
    let whole = began.elapsed();
    let (cpu_after, own_after) = (probe.cpu(), own.cpu());
    let mut all = Part::new();
    for part in parts {
        let part = part?;
        all.transactions += part.transactions;
        all.requests += part.requests;
        part.refusals.iter().for_each(|(status, count)| *all.refusals.entry(status).or_default() += count);
        all.notices += part.notices;
        all.bytes_in += part.bytes_in;
        // Same bounds everywhere.
        let _ = all.latencies.add(&part.latencies);
    }
    // CPU clocks run over the warm-up too, at the same rate.
    let share = elapsed.as_secs_f64() / whole.as_secs_f64();
    let per_request = |before: Option<Duration>, after: Option<Duration>| {
        Some((after? - before?).as_secs_f64() * 1e6 * share / all.requests.max(1) as f64)
    };
    Ok(TestReport {
        test: plan.test.clone(),
        workers: plan.workers,
        transactions: all.transactions,
        requests_per_transaction: test.requests,
        seconds: plan.time.as_secs_f64(),
        elapsed_s: elapsed.as_secs_f64(),
        tps: all.transactions as f64 / plan.time.as_secs_f64(),
        rps: all.requests as f64 / elapsed.as_secs_f64(),
        p50_us: all.latencies.value_at_quantile(0.5),
        p95_us: all.latencies.value_at_quantile(0.95),
        p99_us: all.latencies.value_at_quantile(0.99),
        max_us: all.latencies.max(),
        errors: all.refusals.values().sum(),
        refusals: all.refusals,
        notices: all.notices,
        bytes_in: all.bytes_in,
        server_cpu_us: per_request(cpu, cpu_after),
        client_cpu_us: per_request(own_cpu, own_after),
    })
}

impl TestReport {
    /// The line in the published form, and lines with further figures.
    #[must_use]
    pub fn lines(&self) -> String {
        let mut out = format!(
            "{} TPS: {} / {:.6} = {:.6} (t/s)\n",
            self.test, self.transactions, self.seconds, self.tps
        );
        let _ = writeln!(
            out,
            "  {:.0} requests/s ({} per transaction) over {:.3} s, {} errors, {} notifications",
            self.rps, self.requests_per_transaction, self.elapsed_s, self.errors, self.notices
        );
        let _ = writeln!(
            out,
            "  latency per request: p50 {:.3} ms, p95 {:.3} ms, p99 {:.3} ms, max {:.3} ms",
            self.p50_us as f64 / 1e3,
            self.p95_us as f64 / 1e3,
            self.p99_us as f64 / 1e3,
            self.max_us as f64 / 1e3
        );
        if !self.refusals.is_empty() {
            let _ = writeln!(out, "  refused: {}", reasons(&self.refusals));
        }
        let cpu = |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), |us| format!("{us:.2} us"));
        let _ = writeln!(
            out,
            "  CPU per request: matcher {}, client {}",
            cpu(self.server_cpu_us),
            cpu(self.client_cpu_us)
        );
        out
    }
}

/// The line before a run.
#[must_use]
pub fn running_line(plan: &Plan, time: &str) -> String {
    format!(
        "matcher stress test is running (goroutines={} test={} time={time})...\n",
        plan.workers, plan.test
    )
}

/// A table of outcomes beside the published figures.
#[must_use]
pub fn table(outcomes: &[TestReport], echo: Option<&TestReport>) -> String {
    let mut out = format!(
        "{:<22} {:>7} {:>11} {:>10} {:>7} {:>9} {:>9} {:>8} {:>7}\n",
        "test", "workers", "requests/s", "published", "ratio", "p50 ms", "p99 ms", "CPU us", "errors"
    );
    for outcome in outcomes {
        let published = PUBLISHED.iter().find(|row| row.test == outcome.test).map(|row| row.rps);
        let ratio = published.map_or(0.0, |published| outcome.rps / published as f64);
        let _ = writeln!(
            out,
            "{:<22} {:>7} {:>11.0} {:>10} {:>6.1}x {:>9.2} {:>9.2} {:>8} {:>7}",
            outcome.test,
            outcome.workers,
            outcome.rps,
            published.map_or_else(|| "-".to_owned(), |rps| rps.to_string()),
            ratio,
            outcome.p50_us as f64 / 1e3,
            outcome.p99_us as f64 / 1e3,
            outcome.server_cpu_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.2}")),
            outcome.errors
        );
    }
    for outcome in outcomes.iter().filter(|outcome| !outcome.refusals.is_empty()) {
        let _ = writeln!(out, "{}: refused: {}", outcome.test, reasons(&outcome.refusals));
    }
    if let Some(echo) = echo {
        let _ = writeln!(
            out,
            "bare framed echo, same frames as Ping: {:.0} requests/s, p99 {:.2} ms",
            echo.rps,
            echo.p99_us as f64 / 1e3
        );
    }
    out
}

/// Latencies from 1 us to a minute, three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are in order and the digits few")
}

fn started_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}
