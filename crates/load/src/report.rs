//! Output of a bench: a table for people, JSON for programs, thresholds for exit codes.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::sync::OnceLock;

use serde::Serialize;
use serde_json::Value;

use crate::engine::{EngineReport, Sample};
use crate::probe::Machine;
use crate::spatial::BandReport;
use crate::stats::{Bucket, Times, TimesSummary};

/// Names the version of the JSON form; `docs/bench-report.schema.json` describes it.
pub const SCHEMA: &str = "throng.bench/1";

/// Direction in which a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Players, messages per second.
    Higher,
    /// Times, CPU, memory.
    Lower,
}

/// One measured figure beside the figures it is to be judged by.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the figure.
    pub what: String,
    /// Unit of all numbers of the row.
    pub unit: &'static str,
    /// Figure published for the reference, or measured with it on a machine of two cores.
    pub published: Option<f64>,
    /// Source of the published figure.
    pub source: &'static str,
    /// Least acceptable figure.
    pub floor: Option<f64>,
    /// Figure to reach.
    pub aim: Option<f64>,
    /// Figure of this run.
    pub measured: f64,
    /// Direction.
    pub better: Better,
    /// `measured / published`, when there is a published figure.
    pub ratio: Option<f64>,
    /// Judgement of the figure.
    pub verdict: Verdict,
}

/// Comparison of a measured figure with its floor and aim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Reaches the aim.
    Aim,
    /// Reaches the floor.
    Floor,
    /// Misses the floor.
    Missed,
    /// There is nothing to compare with, or the load was not the one that the marks are for.
    Unjudged,
}

impl Row {
    /// Creates a row without a reference.
    #[must_use]
    pub fn new(what: impl Into<String>, unit: &'static str, better: Better, measured: f64) -> Self {
        Self {
            what: what.into(),
            unit,
            published: None,
            source: "",
            floor: None,
            aim: None,
            measured,
            better,
            ratio: None,
            verdict: Verdict::Unjudged,
        }
    }

    /// Adds the reference's figure and where it is from.
    #[must_use]
    pub fn published(mut self, figure: f64, source: &'static str) -> Self {
        self.published = Some(figure);
        self.source = source;
        self.ratio = (figure != 0.0).then(|| self.measured / figure);
        self
    }

    /// Adds the marks to reach and judges the figure by them.
    #[must_use]
    pub fn marks(mut self, floor: f64, aim: f64) -> Self {
        self.floor = Some(floor);
        self.aim = Some(aim);
        let reaches = |mark: f64| match self.better {
            Better::Higher => self.measured >= mark,
            Better::Lower => self.measured <= mark,
        };
        self.verdict = match (reaches(aim), reaches(floor)) {
            (true, _) => Verdict::Aim,
            (_, true) => Verdict::Floor,
            _ => Verdict::Missed,
        };
        self
    }
}

/// Judgement of a whole report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Judgement {
    /// Every condition holds, and there is at least one.
    #[serde(rename = "passed")]
    Passed,
    /// A condition does not hold.
    #[serde(rename = "missed")]
    Missed,
    /// There is no condition: the load was not the canonical one, or nothing was measured.
    #[serde(rename = "not judged")]
    NotJudged,
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Judgement::Passed => "passed",
            Judgement::Missed => "missed",
            Judgement::NotJudged => "not judged",
        })
    }
}

/// The program that made a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Build {
    /// Version of the package.
    pub version: &'static str,
    /// Commit that it was built from, or `unknown`.
    pub commit: &'static str,
    /// Cargo profile that it was built with.
    pub profile: &'static str,
    /// Cargo features that are on.
    pub features: Vec<&'static str>,
}

/// The build of this process; see [`Build::set`].
static BUILD: OnceLock<Build> = OnceLock::new();

impl Build {
    /// Names the program for every report of this process. Only its binary knows how it was built.
    pub fn set(self) {
        let _ = BUILD.set(self);
    }

    /// The build that was set; of a program that set none, the version alone.
    #[must_use]
    pub fn current() -> Build {
        let unknown = || Build {
            version: env!("CARGO_PKG_VERSION"),
            commit: "unknown",
            profile: "unknown",
            features: Vec::new(),
        };
        BUILD.get().cloned().unwrap_or_else(unknown)
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "throng {}, commit {}, profile {}", self.version, short_commit(self.commit), self.profile)
    }
}

/// The first twelve digits of a commit, with the mark of a tree that has changes.
pub(crate) fn short_commit(commit: &str) -> String {
    let (hash, mark) = commit.split_once('-').map_or((commit, ""), |(hash, mark)| (hash, mark));
    let hash = hash.get(..12).unwrap_or(hash);
    if mark.is_empty() { hash.to_owned() } else { format!("{hash}-{mark}") }
}

/// A condition on the outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Threshold {
    /// The condition in words.
    pub condition: String,
    /// The value it is about.
    pub measured: f64,
    /// True if it holds.
    pub passed: bool,
}

/// One run of the engine, for the record.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Name of this run among those of the test.
    pub name: String,
    /// Players.
    pub players: usize,
    /// Length of the measured window in seconds.
    pub window_s: f64,
    /// State updates due, and those that arrived in a fan-out of their own.
    pub expected: u64,
    /// See `expected`.
    pub delivered: u64,
    /// `delivered / expected`; 0 when nothing was expected.
    pub delivered_share: f64,
    /// Inputs that fell due, that the server refused to read, and that reached the game server.
    pub inputs_due: u64,
    /// See `inputs_due`.
    pub inputs_refused: u64,
    /// See `inputs_due`.
    pub inputs_arrived: u64,
    /// Messages to single players that fell due, and that arrived.
    pub notices_due: u64,
    /// See `notices_due`.
    pub notices_arrived: u64,
    /// Update sent by the game server (intended time) to update read by a player.
    pub state: TimesSummary,
    /// Input sent by a player (intended time) to input read by the game server.
    pub input: TimesSummary,
    /// Message sent by the game server (intended time) to message read by the player.
    pub notice: TimesSummary,
    /// Distributions of `state`, `input` and `notice`; those without times are missing.
    pub distributions: BTreeMap<&'static str, Vec<Bucket>>,
    /// Bytes that players received per second.
    pub bytes_per_s: f64,
    /// Frames that players received per second.
    pub frames_per_s: f64,
    /// Frames per second of the simulated game server.
    pub server_frames_per_s: f64,
    /// Processors that the server used.
    pub server_cores: Option<f64>,
    /// Memory of the server at the end, resident.
    pub server_resident_bytes: Option<u64>,
    /// Private memory that the server took for each connection of the run.
    pub server_bytes_per_connection: Option<f64>,
    /// Connections that were lost.
    pub lost: u64,
    /// Players that read everything and ended with exactly the game server's state, and how many
    /// there were.
    pub checked_equal: usize,
    /// See `checked_equal`.
    pub checked: usize,
    /// Load of the generator itself.
    pub generator: Generator,
    /// Samples during the window.
    pub samples: Vec<Sample>,
    /// Additional figures of a world that is spread over channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world: Option<WorldRun>,
}

/// Figures of a run in a world that is spread over channels.
#[derive(Debug, Clone, Serialize)]
pub struct WorldRun {
    /// Channels at the end by type: those that the game servers created, or those on the server's
    /// metrics page.
    pub channels: BTreeMap<String, u64>,
    /// Subscriptions of players to characters at the end.
    pub subscriptions: u64,
    /// Character states delivered to players per second.
    pub states_per_s: f64,
    /// Bytes that a player received per second.
    pub bytes_per_player_s: f64,
    /// Characters that walked from cell to cell per second.
    pub crossings_per_s: f64,
    /// Handovers per second, and those between servers among them.
    pub handovers_per_s: f64,
    /// See `handovers_per_s`.
    pub server_handovers_per_s: f64,
    /// Time from the due time of an update that crosses a border until the new server receives the
    /// handover.
    pub handover: TimesSummary,
    /// Inputs that reached a server without authority over the character.
    pub stray_inputs: u64,
    /// Updates that reached a player twice.
    pub repeated: u64,
    /// Mean and longest round of a server thread in milliseconds; the longest is the bound of its
    /// histogram bucket.
    pub round_mean_ms: Option<f64>,
    /// See `round_mean_ms`.
    pub round_longest_ms: Option<f64>,
    /// Ticks of channels, by type.
    pub ticks: Vec<crate::spatial::TickReport>,
    /// From the first connection to everyone's having a character.
    pub joined_s: f64,
    /// To everyone's having the state of everyone.
    pub complete_s: Option<f64>,
    /// Errors in players' views after the run had come to rest: characters seen at a wrong
    /// position, not seen although in sight, or seen in an old state.
    pub ghosts: u64,
    /// See `ghosts`.
    pub unseen: u64,
    /// See `ghosts`.
    pub stale: u64,
    /// Deliveries by distance band.
    pub bands: Vec<BandReport>,
    /// Characters that the crashed server had, and that it got back.
    pub orphaned: u64,
    /// See `orphaned`.
    pub recovered: u64,
}

/// Load of the generator itself.
#[derive(Debug, Clone, Serialize)]
pub struct Generator {
    /// Player threads.
    pub threads: usize,
    /// Processors that they used together.
    pub player_cores: f64,
    /// Processors that the game server's thread used.
    pub owner_cores: f64,
    /// Intended to actual send of players.
    pub player_lateness: TimesSummary,
    /// Intended to actual send of the game server.
    pub owner_lateness: TimesSummary,
    /// Share of all processors of the machine in use by anyone.
    pub machine_busy: Option<f64>,
    /// Why the generator was the limit, if it was.
    pub saturated: Option<String>,
}

impl Run {
    /// Summarises an outcome.
    #[must_use]
    pub fn new(name: impl Into<String>, outcome: &EngineReport) -> Self {
        let seconds = outcome.window.as_secs_f64();
        let per_connection = outcome.server_memory.map(|(before, after)| {
            let grown = after.anonymous_bytes.saturating_sub(before.anonymous_bytes);
            grown as f64 / outcome.players.max(1) as f64
        });
        Self {
            name: name.into(),
            players: outcome.players,
            window_s: seconds,
            expected: outcome.expected(),
            delivered: outcome.counts.delivered,
            delivered_share: or_zero(outcome.delivered_share()),
            inputs_due: outcome.counts.due,
            inputs_refused: outcome.counts.refused,
            inputs_arrived: outcome.owner.inputs,
            notices_due: outcome.owner.notices_due,
            notices_arrived: outcome.counts.notices,
            state: outcome.counts.state.summary(),
            input: outcome.owner.input.summary(),
            notice: outcome.counts.notice.summary(),
            distributions: distributions([
                ("state", &outcome.counts.state),
                ("input", &outcome.owner.input),
                ("notice", &outcome.counts.notice),
            ]),
            bytes_per_s: outcome.window_bytes_in as f64 / seconds,
            frames_per_s: outcome.window_frames_in as f64 / seconds,
            server_frames_per_s: outcome.owner.frames_due as f64 / seconds,
            server_cores: outcome.server_cores(),
            server_resident_bytes: outcome.server_memory.map(|(_, after)| after.resident_bytes),
            server_bytes_per_connection: per_connection,
            lost: outcome.counts.lost,
            checked_equal: outcome.checked.0,
            checked: outcome.checked.1,
            generator: Generator {
                threads: outcome.threads,
                player_cores: outcome.fleet_cpu.as_secs_f64() / seconds,
                owner_cores: outcome.owner_cpu.as_secs_f64() / seconds,
                player_lateness: outcome.counts.lateness.summary(),
                owner_lateness: outcome.owner.lateness.summary(),
                machine_busy: outcome.machine_busy,
                saturated: outcome.saturation(),
            },
            samples: outcome.samples.clone(),
            world: None,
        }
    }

    /// Summarises an outcome of a world that is spread over channels.
    #[must_use]
    pub fn of_world(name: impl Into<String>, outcome: &crate::spatial::WorldReport) -> Self {
        let seconds = outcome.window.as_secs_f64();
        let (counts, servers) = (&outcome.counts, &outcome.servers);
        let per_connection = outcome.server_memory.map(|(before, after)| {
            let grown = after.anonymous_bytes.saturating_sub(before.anonymous_bytes);
            grown as f64 / outcome.players.max(1) as f64
        });
        let made = [("GLOBAL", 1), ("SPATIAL", servers.cells), ("ENTITY", servers.entities)];
        let channels = if outcome.channels.is_empty() {
            made.map(|(kind, count)| (kind.to_owned(), count)).into()
        } else {
            outcome.channels.iter().map(|(kind, count)| (kind.clone(), *count as u64)).collect()
        };
        let [ghosts, unseen, stale] = outcome.wrong;
        Self {
            name: name.into(),
            players: outcome.players,
            window_s: seconds,
            expected: outcome.expected,
            delivered: counts.delivered,
            delivered_share: or_zero(outcome.delivered_share()),
            inputs_due: counts.due,
            inputs_refused: counts.refused,
            inputs_arrived: servers.inputs,
            notices_due: 0,
            notices_arrived: 0,
            state: counts.state.summary(),
            input: servers.input.summary(),
            notice: TimesSummary::default(),
            distributions: distributions([("state", &counts.state), ("input", &servers.input)]),
            bytes_per_s: outcome.window_bytes_in as f64 / seconds,
            frames_per_s: outcome.window_frames_in as f64 / seconds,
            server_frames_per_s: outcome.frames_per_s,
            server_cores: outcome.server_cores(),
            server_resident_bytes: outcome.server_memory.map(|(_, after)| after.resident_bytes),
            server_bytes_per_connection: per_connection,
            lost: counts.lost,
            checked_equal: outcome.views.0,
            checked: outcome.views.1,
            generator: Generator {
                threads: outcome.threads,
                player_cores: outcome.fleet_cpu.as_secs_f64() / seconds,
                owner_cores: outcome.servers_cpu.as_secs_f64() / seconds,
                player_lateness: counts.lateness.summary(),
                owner_lateness: servers.lateness.summary(),
                machine_busy: outcome.machine_busy,
                saturated: outcome.saturation(),
            },
            samples: outcome.samples.clone(),
            world: Some(WorldRun {
                channels,
                subscriptions: outcome.subscriptions,
                states_per_s: outcome.per_second(counts.delivered),
                bytes_per_player_s: outcome.window_bytes_in as f64 / seconds / outcome.players.max(1) as f64,
                crossings_per_s: outcome.per_second(servers.crossings),
                handovers_per_s: outcome.per_second(servers.handovers),
                server_handovers_per_s: outcome.per_second(servers.server_handovers),
                handover: servers.handover.summary(),
                stray_inputs: servers.stray_inputs,
                repeated: outcome.repeated,
                round_mean_ms: outcome.round_ms.map(|(mean, _)| mean),
                round_longest_ms: outcome.round_ms.map(|(_, longest)| longest),
                ticks: outcome.ticks.clone(),
                joined_s: outcome.joined.as_secs_f64(),
                complete_s: outcome.complete.map(|complete| complete.as_secs_f64()),
                ghosts,
                unseen,
                stale,
                bands: outcome.bands.clone(),
                orphaned: servers.orphaned,
                recovered: servers.recovered,
            }),
        }
    }
}

/// JSON has no number for what was not measured.
fn or_zero(share: f64) -> f64 {
    if share.is_nan() { 0.0 } else { share }
}

fn distributions<const N: usize>(times: [(&'static str, &Times); N]) -> BTreeMap<&'static str, Vec<Bucket>> {
    let filled = times.into_iter().filter(|(_, times)| times.count() > 0);
    filled.map(|(name, times)| (name, times.distribution())).collect()
}

/// Everything about one test.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Name of the test, as in `throng bench NAME`.
    pub test: String,
    /// The command line that was run.
    pub command: Vec<String>,
    /// The program that ran it.
    pub build: Build,
    /// Time of the start in seconds since 1970.
    pub started_unix_s: u64,
    /// The machine that it ran on.
    pub machine: Machine,
    /// With which settings.
    pub settings: BTreeMap<String, Value>,
    /// True if the load was the one that the published figures and marks are for. Smaller tries are
    /// not judged.
    pub canonical: bool,
    /// Figures with their references.
    pub rows: Vec<Row>,
    /// Conditions for success.
    pub thresholds: Vec<Threshold>,
    /// Caveats of the figures.
    pub notes: Vec<String>,
    /// The runs behind the figures.
    pub runs: Vec<Run>,
    /// Raw figures of tests that have no runs of the engine, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub raw: BTreeMap<String, Value>,
    /// True if `verdict` is [`Judgement::Passed`].
    pub passed: bool,
    /// The judgement over all thresholds.
    pub verdict: Judgement,
    /// Pictures beside the chart: file name and SVG text.
    #[serde(skip)]
    pub pictures: Vec<(String, String)>,
    /// A small try on a machine that may be busy: it states no conditions and compares with no
    /// figures.
    #[serde(skip)]
    pub unjudged: bool,
}

impl Report {
    /// An empty report about `test`, begun now.
    #[must_use]
    pub fn new(test: &str) -> Self {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            schema: SCHEMA,
            test: test.to_owned(),
            command: std::env::args().collect(),
            build: Build::current(),
            started_unix_s: since_1970.map_or(0, |since| since.as_secs()),
            machine: Machine::observe(),
            settings: BTreeMap::new(),
            canonical: true,
            rows: Vec::new(),
            thresholds: Vec::new(),
            notes: Vec::new(),
            runs: Vec::new(),
            raw: BTreeMap::new(),
            passed: false,
            verdict: Judgement::NotJudged,
            pictures: Vec::new(),
            unjudged: false,
        }
    }

    /// Records a setting.
    pub fn setting(&mut self, name: &str, value: impl Into<Value>) {
        self.settings.insert(name.to_owned(), value.into());
    }

    /// Records raw figures.
    pub fn raw(&mut self, name: &str, figures: Value) {
        self.raw.insert(name.to_owned(), figures);
    }

    /// Adds a row. Its floor becomes a threshold when the load is canonical; otherwise it is not
    /// judged. A figure that is not a number was not measured: a note says so, and there is no row.
    pub fn row(&mut self, mut row: Row) {
        if row.measured.is_nan() {
            return self.note(format!("not measured: {}", row.what));
        }
        if self.unjudged {
            row = Row::new(row.what, row.unit, row.better, row.measured);
        }
        if !self.canonical {
            row.verdict = Verdict::Unjudged;
        } else if let Some(floor) = row.floor {
            let sign = match row.better {
                Better::Higher => ">=",
                Better::Lower => "<=",
            };
            let condition = format!("{} {sign} {} {}", row.what, number(floor), row.unit);
            self.threshold(condition, row.measured, row.verdict != Verdict::Missed);
        }
        self.rows.push(row);
    }

    /// Takes back every judgement: the load was too small for any.
    pub fn unjudge(&mut self) {
        self.unjudged = true;
        self.canonical = false;
        self.thresholds.clear();
        let bare = |row: Row| Row::new(row.what, row.unit, row.better, row.measured);
        self.rows = std::mem::take(&mut self.rows).into_iter().map(bare).collect();
        self.judge();
    }

    /// Adds a condition and remembers whether it holds. A value that is not a number was not
    /// measured: a note says so, and there is no condition.
    pub fn threshold(&mut self, condition: impl Into<String>, measured: f64, passed: bool) {
        let condition = condition.into();
        if measured.is_nan() {
            return self.note(format!("not measured: {condition}"));
        }
        if self.unjudged {
            return;
        }
        self.thresholds.push(Threshold { condition, measured, passed });
        self.judge();
    }

    /// True if a condition does not hold.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.verdict == Judgement::Missed
    }

    fn judge(&mut self) {
        self.verdict = match self.thresholds.as_slice() {
            [] => Judgement::NotJudged,
            all if all.iter().all(|threshold| threshold.passed) => Judgement::Passed,
            _ => Judgement::Missed,
        };
        self.passed = self.verdict == Judgement::Passed;
    }

    /// Adds a run, with notes about conditions that make its figures doubtful.
    pub fn run(&mut self, run: Run) {
        if let Some(why) = &run.generator.saturated {
            self.note(format!("{}: the generator was the limit, not the server: {why}", run.name));
        }
        if run.lost > 0 {
            self.note(format!("{}: {} connections were lost", run.name, run.lost));
        }
        if run.checked_equal < run.checked {
            let wrong = run.checked - run.checked_equal;
            self.note(format!(
                "{}: {wrong} of {} checked players ended with a state that differs from the game server's",
                run.name, run.checked
            ));
        }
        self.runs.push(run);
    }

    /// Adds a remark, once.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Writes the table.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub fn write_table(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let machine = &self.machine;
        writeln!(
            out,
            "{}   {}   ({}; {} x {}, load {:.2} before)",
            self.test, self.verdict, self.build, machine.cpus, machine.model, machine.load_1m
        )?;
        for run in &self.runs {
            writeln!(out, "  {}", run_line(run))?;
        }
        if !self.rows.is_empty() {
            writeln!(out)?;
            let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
            let header = ["", "published", "floor", "aim", "measured", "ratio", ""].map(str::to_owned);
            let lines: Vec<[String; 7]> = std::iter::once(header)
                .chain(self.rows.iter().map(|row| {
                    [
                        format!("{} [{}]", row.what, row.unit),
                        optional(row.published),
                        optional(row.floor),
                        optional(row.aim),
                        number(row.measured),
                        row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{}x", number(ratio))),
                        verdict(row.verdict).to_owned(),
                    ]
                }))
                .collect();
            write_aligned(out, &lines)?;
        }
        for note in &self.notes {
            writeln!(out, "  note: {note}")?;
        }
        let failed = self.thresholds.iter().filter(|threshold| !threshold.passed);
        for threshold in failed {
            writeln!(out, "  \u{2717} {}: {}", threshold.condition, number(threshold.measured))?;
        }
        Ok(())
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Aim => "\u{2713} aim",
        Verdict::Floor => "\u{2713} floor",
        Verdict::Missed => "\u{2717} missed",
        Verdict::Unjudged => "",
    }
}

fn run_line(run: &Run) -> String {
    let mut line = format!("{}: {} players, {:.1} s", run.name, run.players, run.window_s);
    // Writing to a String cannot fail.
    if run.expected > 0 {
        let _ = write!(
            line,
            "; {:.2}% of {} fan-outs; state p50/p90/p99/max {:.1}/{:.1}/{:.1}/{:.1} ms",
            run.delivered_share * 100.0,
            run.expected,
            run.state.p50_ms,
            run.state.p90_ms,
            run.state.p99_ms,
            run.state.max_ms
        );
    }
    if run.inputs_due > 0 {
        let share = run.inputs_arrived as f64 / run.inputs_due as f64 * 100.0;
        let _ = write!(line, "; {share:.2}% of {} inputs, p99 {:.1} ms", run.inputs_due, run.input.p99_ms);
    }
    if run.notices_due > 0 {
        let share = run.notices_arrived as f64 / run.notices_due as f64 * 100.0;
        let _ = write!(
            line,
            "; {share:.2}% of {} messages, p50/p99/max {:.1}/{:.1}/{:.1} ms",
            run.notices_due, run.notice.p50_ms, run.notice.p99_ms, run.notice.max_ms
        );
    }
    if let Some(cores) = run.server_cores {
        let _ = write!(line, "; server {cores:.3} cores");
    }
    if let Some(bytes) = run.server_resident_bytes {
        let _ = write!(line, ", {:.1} MiB", bytes as f64 / f64::from(1 << 20));
    }
    if let Some(world) = &run.world {
        if world.crossings_per_s > 0.0 {
            let _ = write!(
                line,
                "; {:.0} handovers/s ({:.0} between servers, p99 {:.1} ms)",
                world.handovers_per_s, world.server_handovers_per_s, world.handover.p99_ms
            );
        }
        for band in &world.bands {
            let _ =
                write!(line, "; {} {:.1}%, p99 {:.0} ms", band.name, band.share * 100.0, band.state.p99_ms);
        }
        let _ = write!(line, "; views {}/{}", run.checked_equal, run.checked);
        if world.ghosts + world.unseen + world.stale + world.stray_inputs + world.repeated > 0 {
            let _ = write!(
                line,
                " ({} ghosts, {} unseen, {} stale, {} stray inputs, {} repeated)",
                world.ghosts, world.unseen, world.stale, world.stray_inputs, world.repeated
            );
        }
        let _ = write!(line, "; joined in {:.1} s", world.joined_s);
        if let Some(complete) = world.complete_s {
            let _ = write!(line, ", complete in {complete:.1} s");
        }
    }
    let generator = &run.generator;
    let _ = write!(
        line,
        "; generator {:.2}+{:.2} cores, late p99 {:.1} ms",
        generator.player_cores,
        generator.owner_cores,
        generator.player_lateness.p99_ms.max(generator.owner_lateness.p99_ms)
    );
    line
}

fn write_aligned(out: &mut dyn io::Write, lines: &[[String; 7]]) -> io::Result<()> {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    for line in lines {
        write!(out, "  {:<width$}", line[0], width = widths[0])?;
        for (cell, width) in line.iter().zip(&widths).skip(1).take(5) {
            write!(out, "  {cell:>width$}")?;
        }
        writeln!(out, "  {}", line[6])?;
    }
    Ok(())
}

/// A number with as many digits as matter.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_become_thresholds_only_for_the_canonical_load() {
        let row =
            || Row::new("latency", "ms", Better::Lower, 25.0).published(50.0, "somewhere").marks(20.0, 10.0);
        let mut report = Report::new("a b");
        report.row(row());
        assert!(!report.passed && report.is_missed());
        assert_eq!(report.rows[0].verdict, Verdict::Missed);
        assert_eq!(report.rows[0].ratio, Some(0.5));
        let mut small = Report::new("a b");
        small.canonical = false;
        small.row(row());
        assert!(!small.passed && small.rows[0].verdict == Verdict::Unjudged);
        assert_eq!(small.verdict, Judgement::NotJudged);
    }

    #[test]
    fn nothing_measured_is_not_judged() {
        let mut report = Report::new("a b");
        assert_eq!((report.verdict, report.passed), (Judgement::NotJudged, false), "no condition at all");
        report.threshold("delivered >= 99%", f64::NAN, false);
        report.row(Row::new("latency", "ms", Better::Lower, f64::NAN).marks(20.0, 10.0));
        assert_eq!((report.verdict, report.rows.len()), (Judgement::NotJudged, 0));
        assert_eq!(report.notes, ["not measured: delivered >= 99%", "not measured: latency"]);
        report.threshold("errors = 0", 0.0, true);
        assert_eq!((report.verdict, report.passed), (Judgement::Passed, true));
        report.threshold("delivered >= 99%", 50.0, false);
        assert_eq!((report.verdict, report.passed), (Judgement::Missed, false));
    }

    #[test]
    fn a_small_try_is_compared_with_no_figure_of_another_load() {
        let row =
            || Row::new("latency", "ms", Better::Lower, 5.0).published(50.0, "somewhere").marks(20.0, 10.0);
        let mut smoke = Report::new("a b");
        (smoke.unjudged, smoke.canonical) = (true, false);
        smoke.row(row());
        let mut unjudged = Report::new("a b");
        unjudged.row(row());
        assert_eq!(unjudged.verdict, Judgement::Passed);
        unjudged.unjudge();
        for report in [smoke, unjudged] {
            assert_eq!(report.verdict, Judgement::NotJudged);
            assert_eq!(report.rows, [Row::new("latency", "ms", Better::Lower, 5.0)]);
        }
    }

    #[test]
    fn table_has_one_line_a_row() {
        let mut report = Report::new("a b");
        report.row(Row::new("players", "players", Better::Higher, 1_000.0).marks(600.0, 1_000.0));
        report.note("slow day".to_owned());
        let mut out = Vec::new();
        report.write_table(&mut out).expect("memory");
        let text = String::from_utf8(out).expect("text");
        assert!(
            text.contains("players [players]") && text.contains("aim") && text.contains("note: slow day"),
            "{text}"
        );
    }

    #[test]
    fn commits_are_short_and_marked() {
        let digits = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(short_commit(digits), "0123456789ab");
        assert_eq!(short_commit(&format!("{digits}-dirty")), "0123456789ab-dirty");
        assert_eq!(short_commit("unknown"), "unknown");
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (1_234.5, "1234"),
            (12.34, "12.3"),
            (1.5, "1.5"),
            (0.25, "0.25"),
            (0.01234, "0.0123"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}
