//! Worlds spread over channels: the second and the third published scenario.
//!
//! *Spatial*: nine game servers share a grid of cells; every character is an entity channel that
//! the gateway hands from cell to cell, and with it from server to server; players see the cells
//! around them. *Entity LOD*: one game server, no cells, every character a channel that everyone is
//! subscribed to, at a rate that depends on the distance.
//!
//! The game servers are one thread (`servers`), the players one or more (`players`). What is real
//! stands in `truth`: the players' deliveries are judged by the updates that were sent and by whom
//! they should have reached, and when the run has come to rest every player's view is compared with
//! the world.

pub(crate) mod avatar;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod lod;
mod oracle;
pub(crate) mod picture;
mod players;
mod servers;
pub(crate) mod tape;
mod terrain;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::clock::{self, nanoseconds};
use crate::engine::{GLANCE, GRACE, MARGIN, RunError, SETTLE, Sample, Saturation};
use crate::fleet::{Control, lock};
use crate::interrupt;
use crate::link::Transport;
use crate::probe::{self, Memory, Probe};
use crate::stats::{Counts, Times};
use crate::tls::Trust;
use crate::watch::{self, Scenario, Servers, StopOnDrop, Timing, share};

pub use servers::ServersCounts;

use oracle::Oracle;
use players::{PlayersCounts, PlayersPlan, Views};
use servers::ServersPlan;
use tape::Tape;

/// The reference's first ids of spatial and of entity channels.
pub(crate) const SPATIAL_FIRST: u32 = 0x1_0000;
pub(crate) const ENTITY_FIRST: u32 = 0x8_0000;
/// Connections opened per second, all threads together.
const CONNECTS_PER_SECOND: u32 = 4_000;

/// Cells and servers of a grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// Cells along each side.
    pub columns: u32,
    /// Servers along each side; divides `columns`.
    pub server_columns: u32,
    /// Side of a cell in metres.
    pub cell_metres: f32,
}

impl Grid {
    /// The published grid: 15 x 15 cells of 20 m, 3 x 3 servers.
    pub const PUBLISHED: Self = Self { columns: 15, server_columns: 3, cell_metres: 20.0 };

    /// Number of servers.
    #[must_use]
    pub fn servers(&self) -> usize {
        (self.server_columns * self.server_columns) as usize
    }

    /// Number of cells.
    #[must_use]
    pub fn cells(&self) -> usize {
        (self.columns * self.columns) as usize
    }

    /// The spatial channel at a place of the map.
    fn cell(&self, x: f32, z: f32) -> u32 {
        let along = |metres: f32| ((metres / self.cell_metres) as u32).min(self.columns - 1);
        SPATIAL_FIRST + along(z) * self.columns + along(x)
    }

    /// The server slot of a cell.
    pub(crate) fn server_of(&self, cell: u32) -> u32 {
        let index = cell.saturating_sub(SPATIAL_FIRST);
        let block = self.columns.div_ceil(self.server_columns);
        (index % self.columns) / block + (index / self.columns) / block * self.server_columns
    }

    /// The controller's configuration in the reference's form. The world counts in centimetres from
    /// its middle.
    #[must_use]
    pub fn config(&self) -> String {
        let cell = self.cell_metres * 100.0;
        let offset = -cell * self.columns as f32 / 2.0;
        let (columns, servers) = (self.columns, self.server_columns);
        format!(
            "{{ \"SpatialControllerType\": \"Static2DSpatialController\",\n  \"Config\": {{ \"WorldOffsetX\": {offset}, \
             \"WorldOffsetZ\": {offset}, \"GridWidth\": {cell}, \"GridHeight\": {cell}, \"GridCols\": {columns}, \
             \"GridRows\": {columns}, \"ServerCols\": {servers}, \"ServerRows\": {servers}, \
             \"ServerInterestBorderSize\": 0 }} }}\n"
        )
    }
}

/// The shape of a world.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Layout {
    /// Cells and their servers.
    Grid(Grid),
    /// One server, and everyone sees everyone.
    Open {
        /// Side of the square map in metres.
        side_metres: f32,
    },
}

impl Layout {
    pub(crate) fn grid(&self) -> Option<&Grid> {
        match self {
            Self::Grid(grid) => Some(grid),
            Self::Open { .. } => None,
        }
    }

    pub(crate) fn side_metres(&self) -> f32 {
        match self {
            Self::Grid(grid) => grid.cell_metres * grid.columns as f32,
            Self::Open { side_metres } => *side_metres,
        }
    }

    /// The spatial channel at a place, 0 without cells.
    fn cell(&self, x: f32, z: f32) -> u32 {
        self.grid().map_or(0, |grid| grid.cell(x, z))
    }
}

/// Load and target of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Listener for players.
    pub clients: SocketAddr,
    /// Listener for game servers.
    pub servers: SocketAddr,
    /// Transport of the players.
    pub transport: Transport,
    /// The server's certificate, for encrypted transports.
    pub trust: Option<Trust>,
    /// Simulated players, each with a character.
    pub players: usize,
    /// Shape of the world.
    pub layout: Layout,
    /// Radius of a player's interest in metres, where there are cells.
    pub interest_metres: f32,
    /// Inputs per second and player.
    pub inputs_per_second: f64,
    /// Players ask for the rates of the distance bands themselves, where everyone sees everyone;
    /// otherwise the server under test is expected to send at these rates by itself.
    pub ask_for_rates: bool,
    /// One server crashes this long into the window, and returns two seconds later.
    pub crash_at: Option<Duration>,
    /// Keep what the picture needs.
    pub picture: bool,
    /// Bytes added to each update of a character, at most [`PADDING_BYTES_MAX`].
    pub padding_bytes: usize,
    /// Generator threads for players; 0 chooses.
    pub threads: usize,
    /// Time between everyone's being there and the measured window.
    pub warmup: Duration,
    /// Length of the measured window; `None` until interrupted.
    pub duration: Option<Duration>,
    /// Longest time between two joins while players connect: a run whose players still arrive goes
    /// on, however slow the machine.
    pub patience: Duration,
    /// Time between samples.
    pub sample_interval: Duration,
    /// Seed of everything random.
    pub seed: u64,
}

/// Longest padding of an update, so that it fits a packet.
pub const PADDING_BYTES_MAX: usize = 60_000;

impl Plan {
    /// The published scenario with nine servers.
    #[must_use]
    pub fn spatial(clients: SocketAddr, servers: SocketAddr, players: usize) -> Self {
        Self {
            clients,
            servers,
            transport: Transport::Tcp,
            trust: None,
            players,
            layout: Layout::Grid(Grid::PUBLISHED),
            interest_metres: 30.0,
            inputs_per_second: 30.0,
            ask_for_rates: false,
            crash_at: None,
            picture: false,
            padding_bytes: 0,
            threads: 0,
            warmup: Duration::from_secs(3),
            duration: Some(Duration::from_secs(10)),
            patience: Duration::from_secs(60),
            sample_interval: Duration::from_secs(1),
            seed: 1,
        }
    }

    /// The published scenario with rates by distance, on a square of 400 m.
    #[must_use]
    pub fn entity_lod(clients: SocketAddr, servers: SocketAddr, players: usize) -> Self {
        let layout = Layout::Open { side_metres: 400.0 };
        Self { layout, ..Self::spatial(clients, servers, players) }
    }

    fn thread_count(&self) -> usize {
        let chosen = match self.threads {
            0 => thread::available_parallelism().map_or(1, usize::from).div_ceil(2),
            threads => threads,
        };
        chosen.clamp(1, self.players.max(1))
    }
}

/// One distance band of a run.
#[derive(Debug, Clone, serde::Serialize)]
pub struct BandReport {
    /// Rate and distances in words.
    pub name: &'static str,
    /// Updates that the distances of the window promise.
    pub expected: u64,
    /// Updates that came in time to count.
    pub delivered: u64,
    /// `delivered / expected`, at most 1: what comes more often than promised makes up for nothing.
    pub share: f64,
    /// Update due at the game server to update read by a player.
    pub state: crate::stats::TimesSummary,
}

/// Ticks of the channels of one type, from the server's histogram: times are upper bounds of
/// buckets.
#[derive(Debug, Clone, serde::Serialize)]
pub struct TickReport {
    /// Type of channel.
    pub channel_type: String,
    /// Ticks of all channels of the type.
    pub count: f64,
    /// Their mean, in milliseconds.
    pub mean_ms: f64,
    /// 99.9% of them took no longer.
    pub p999_ms: f64,
    /// None took longer.
    pub longest_ms: f64,
}

/// Results of a run.
#[derive(Debug, Clone)]
pub struct WorldReport {
    /// Players asked for.
    pub players: usize,
    /// Length of the measured window.
    pub window: Duration,
    /// Counters of the players.
    pub counts: Counts,
    /// Counters of the game servers.
    pub servers: ServersCounts,
    /// Updates that should have reached players.
    pub expected: u64,
    /// Distance bands, where there are any.
    pub bands: Vec<BandReport>,
    /// Updates that came twice.
    pub repeated: u64,
    /// From the first connection to everyone's having their character, and to everyone's having the
    /// state of all others.
    pub joined: Duration,
    /// See `joined`; only where everyone sees everyone.
    pub complete: Option<Duration>,
    /// Subscriptions to characters at the end.
    pub subscriptions: u64,
    /// Bytes received by players inside the window.
    pub window_bytes_in: u64,
    /// Frames received by players inside the window.
    pub window_frames_in: u64,
    /// Frames that all game servers simulated inside the window, per server and second.
    pub frames_per_s: f64,
    /// CPU time that the server used inside the window.
    pub server_cpu: Option<Duration>,
    /// Part of it that each shard used.
    pub shards_cpu: Vec<Duration>,
    /// Memory of the server before the players came, and at the end of the window.
    pub server_memory: Option<(Memory, Memory)>,
    /// Mean and longest round of the server's threads inside the window, in milliseconds; the
    /// longest is the upper bound of the histogram bucket it fell into.
    pub round_ms: Option<(f64, f64)>,
    /// Ticks of channels inside the window, by type of channel.
    pub ticks: Vec<TickReport>,
    /// Channels by type at the end, as the server's metrics page has them.
    pub channels: Vec<(String, f64)>,
    /// CPU time of the player threads inside the window.
    pub fleet_cpu: Duration,
    /// CPU time of the game servers' thread inside the window.
    pub servers_cpu: Duration,
    /// Share of all processors of the machine that was in use inside the window, by anyone.
    pub machine_busy: Option<f64>,
    /// Player threads.
    pub threads: usize,
    /// Players that ended with a view equal to the world, of all players; and the errors of the
    /// others: characters seen that are elsewhere, not seen although in sight, or seen in an old
    /// state.
    pub views: (usize, usize),
    /// See `views`.
    pub wrong: [u64; 3],
    /// Looks around during the window.
    pub samples: Vec<Sample>,
    /// Recording of the run, for the picture.
    pub(crate) tape: Tape,
    pub(crate) layout: Layout,
}

impl WorldReport {
    /// Share of the expected updates that arrived, 0 to 1. With distance bands it is that of the
    /// worst band.
    #[must_use]
    pub fn delivered_share(&self) -> f64 {
        if self.bands.is_empty() {
            share(self.counts.delivered, self.expected)
        } else {
            let measured = self.bands.iter().filter(|band| band.expected > 0);
            measured.map(|band| band.share).reduce(f64::min).unwrap_or(f64::NAN)
        }
    }

    /// Processors that the server used.
    #[must_use]
    pub fn server_cores(&self) -> Option<f64> {
        self.server_cpu.map(|cpu| cpu.as_secs_f64() / self.window.as_secs_f64())
    }

    /// A count of the window per second.
    #[must_use]
    pub fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.window.as_secs_f64()
    }

    /// Reason why the generator, not the server, was the limit, if it was.
    #[must_use]
    pub fn saturation(&self) -> Option<String> {
        Saturation {
            players_late_ms: self.counts.lateness.quantile_ms(0.99),
            servers_late_ms: self.servers.lateness.quantile_ms(0.99),
            players_busy: self.fleet_cpu.as_secs_f64() / self.window.as_secs_f64() / self.threads as f64,
            servers_busy: self.servers_cpu.as_secs_f64() / self.window.as_secs_f64(),
        }
        .describe()
    }
}

/// Runs `plan`, looking at the server through `probe`, and calls `on_sample` for every sample
/// taken.
///
/// # Errors
/// See [`RunError`]. A server that is merely slow is not an error but a result.
pub fn run(plan: &Plan, probe: &Probe, on_sample: &mut dyn FnMut(&Sample)) -> Result<WorldReport, RunError> {
    let threads = plan.thread_count();
    let control = Control::new();
    // Room for a few logins that end early and come again.
    let oracle = Oracle::new(plan.players);
    let bands = plan.layout.grid().is_none();
    let players_plan = PlayersPlan {
        server: plan.clients,
        transport: plan.transport,
        trust: plan.trust.clone(),
        connects_per_second: (CONNECTS_PER_SECOND / u32::try_from(threads).unwrap_or(1)).max(1),
        inputs_per_second: plan.inputs_per_second,
        players: plan.players,
        cells: !bands,
        bands,
        ask_for_rates: bands && plan.ask_for_rates,
        seed: plan.seed,
    };
    let servers_plan = ServersPlan {
        server: plan.servers,
        layout: plan.layout,
        interest_metres: plan.interest_metres,
        crash_at: plan.crash_at,
        tape: plan.picture,
        padding_bytes: plan.padding_bytes,
        seed: plan.seed,
    };
    let numbers = watch::deal(plan.players, threads);
    let counts: Vec<Mutex<PlayersCounts>> = watch::per_thread(threads);
    let servers_counts = Mutex::new(ServersCounts::default());
    thread::scope(|scope| {
        // The threads must end in every case, or the scope would wait for ever.
        let stop = StopOnDrop(&control);
        let servers = scope.spawn(|| servers::run(&servers_plan, &control, &oracle, &servers_counts));
        let mut watch = Watch {
            plan,
            probe,
            control: &control,
            oracle: &oracle,
            counts: &counts,
            servers: &servers_counts,
            promised: [0.0; lod::BANDS],
            judged_ns: None,
        };
        watch.wait_for_servers()?;
        let memory_before = probe.memory();
        let begun_ns = clock::now_ns();
        let fleets: Vec<_> = numbers
            .iter()
            .zip(&counts)
            .map(|(numbers, counts)| {
                scope.spawn(|| players::run(&players_plan, numbers, &control, &oracle, counts))
            })
            .collect();
        watch.wait_for_players()?;
        let mut outcome = watch.measure(memory_before, on_sample)?;
        drop(stop);
        outcome.tape = servers.join().unwrap_or_default();
        let mut views = Views::default();
        for fleet in fleets {
            views.add(fleet.join().map_err(|_| std::io::Error::other("a generator thread panicked"))??);
        }
        let sum = watch.counts();
        outcome.views = (views.equal, views.players);
        outcome.wrong = [views.ghosts, views.unseen, views.stale];
        outcome.joined = Duration::from_nanos(sum.ready_ns.saturating_sub(begun_ns));
        let everyone = sum.complete >= plan.players as u64;
        outcome.complete =
            (bands && everyone).then(|| Duration::from_nanos(sum.complete_ns.saturating_sub(begun_ns)));
        outcome.repeated = sum.repeated;
        outcome.subscriptions = sum.subscriptions;
        outcome.servers = lock(&servers_counts).clone();
        if bands {
            for (outcome, counted) in outcome.bands.iter_mut().zip(&sum.bands) {
                outcome.delivered = counted.delivered;
                outcome.share = share(counted.delivered, outcome.expected).min(1.0);
                outcome.state = counted.state.summary();
            }
            outcome.expected = outcome.bands.iter().map(|band| band.expected).sum();
        } else {
            outcome.bands.clear();
            outcome.expected = sum.expected + views.expected;
        }
        outcome.counts = sum.base;
        Ok(outcome)
    })
}

/// The coordinating side of a run.
struct Watch<'a> {
    plan: &'a Plan,
    probe: &'a Probe,
    control: &'a Control,
    oracle: &'a Oracle,
    counts: &'a [Mutex<PlayersCounts>],
    servers: &'a Mutex<ServersCounts>,
    /// Deliveries that the distances of the players have promised in the window so far, by band ...
    promised: [f64; lod::BANDS],
    /// ... and up to when; from the window's beginning on.
    judged_ns: Option<u64>,
}

impl Watch<'_> {
    fn counts(&self) -> PlayersCounts {
        let mut sum = PlayersCounts::default();
        for counts in self.counts {
            sum.add(&lock(counts));
        }
        sum
    }

    fn failure(&self) -> Option<RunError> {
        lock(self.servers).error.clone().map(RunError::Owner)
    }

    fn wait_for_servers(&self) -> Result<(), RunError> {
        let patience = Duration::from_secs(20).min(self.plan.patience);
        let until = clock::now_ns() + nanoseconds(patience);
        loop {
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            let servers = lock(self.servers);
            let (ready, cells) = (servers.ready, servers.cells);
            drop(servers);
            if ready {
                return Ok(());
            }
            if interrupt::requested() {
                return Err(RunError::Interrupted);
            }
            if clock::now_ns() > until {
                let wanted = self.plan.layout.grid().map_or(0, Grid::cells);
                return Err(RunError::NoCells { waited: patience, cells, wanted });
            }
            thread::sleep(GLANCE);
        }
    }

    fn wait_for_players(&self) -> Result<(), RunError> {
        let (mut joined, mut last_join) = (0, clock::now_ns());
        let wanted = self.plan.players as u64;
        loop {
            let (mut ready, mut lost, mut complete) = (0, 0, 0);
            for counts in self.counts {
                let counts = lock(counts);
                ready += counts.base.ready;
                lost += counts.base.lost;
                complete += counts.complete;
            }
            if ready > joined {
                (joined, last_join) = (ready, clock::now_ns());
            }
            let waited = Duration::from_nanos(clock::now_ns() - last_join);
            // In a world without cells the run waits for the state of every player, within a limit.
            let open = self.plan.layout.grid().is_none();
            if ready >= wanted && (!open || complete >= wanted || waited > self.plan.patience / 2) {
                return Ok(());
            }
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            if interrupt::requested() {
                return Err(RunError::Interrupted);
            }
            if waited > self.plan.patience || ready + lost >= wanted && lost > 0 {
                let (wanted, first_error) = (self.plan.players, self.counts().base.first_error);
                return Err(RunError::NotReady { ready, wanted, waited, first_error });
            }
            thread::sleep(GLANCE);
        }
    }

    fn measure(
        &mut self,
        memory_before: Option<Memory>,
        on_sample: &mut dyn FnMut(&Sample),
    ) -> Result<WorldReport, RunError> {
        let timing = Timing {
            warmup: self.plan.warmup,
            duration: self.plan.duration,
            sample_interval: self.plan.sample_interval,
        };
        let (probe, control) = (self.probe, self.control);
        let window = watch::measure(&timing, probe, control, memory_before, self, on_sample)?;
        let bands = lod::TABLE.iter().zip(self.promised).map(|(rate, promised)| BandReport {
            name: rate.name,
            expected: promised.round() as u64,
            delivered: 0,
            share: 1.0,
            state: crate::stats::TimesSummary::default(),
        });
        let metrics = window.metrics();
        let channels = metrics.map(|(_, last)| last.by_label(CHANNELS, "type")).unwrap_or_default();
        let frames_per_s = window.frames() as f64 / window.length().as_secs_f64();
        Ok(WorldReport {
            players: self.plan.players,
            window: window.length(),
            counts: Counts::default(),
            servers: ServersCounts::default(),
            expected: 0,
            bands: bands.collect(),
            repeated: 0,
            joined: Duration::ZERO,
            complete: None,
            subscriptions: 0,
            window_bytes_in: window.bytes_in(),
            window_frames_in: window.frames_in(),
            frames_per_s: frames_per_s / self.server_count() as f64,
            server_cpu: window.server_cpu(),
            shards_cpu: window.shards_cpu(),
            round_ms: window.round_ms(),
            ticks: metrics.map(ticks_between).unwrap_or_default(),
            channels,
            fleet_cpu: window.players_cpu(),
            servers_cpu: window.game_cpu(),
            machine_busy: window.machine_busy(),
            threads: self.counts.len(),
            views: (0, 0),
            wrong: [0; 3],
            server_memory: window.memory,
            samples: window.samples,
            tape: Tape::default(),
            layout: self.plan.layout,
        })
    }
}

impl Scenario for Watch<'_> {
    fn servers(&self) -> Servers {
        let servers = lock(self.servers);
        Servers {
            cpu: servers.cpu,
            messages_in: servers.messages_in,
            bytes_in: servers.bytes_in,
            messages_out: servers.messages_out,
            bytes_out: servers.bytes_out,
            frames: servers.frames,
            channels: 1 + servers.cells + servers.entities,
            handovers: servers.handovers,
        }
    }

    fn players(&self) -> Counts {
        self.counts().base
    }

    fn take_recent(&self) -> Times {
        let mut recent = Times::default();
        for counts in self.counts {
            let mut counts = lock(counts);
            recent.add(&counts.base.recent);
            counts.base.recent.clear();
        }
        recent
    }

    fn server_count(&self) -> usize {
        self.plan.layout.grid().map_or(1, Grid::servers)
    }

    fn hands_over(&self) -> bool {
        self.plan.layout.grid().is_some()
    }

    fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// On the way it adds up what the distances of the players promise.
    fn pass_until(&mut self, at_ns: u64) {
        let bands = self.plan.layout.grid().is_none();
        let mut judged_ns = *self.judged_ns.get_or_insert(at_ns);
        while clock::now_ns() < at_ns && !interrupt::requested() {
            clock::sleep_until(at_ns.min(clock::now_ns() + JUDGE_NS));
            let now = clock::now_ns().min(at_ns);
            if bands && now > judged_ns {
                lod::expect(self.oracle, (now - judged_ns) as f64 / 1e9, &mut self.promised);
                judged_ns = now;
            }
        }
        self.judged_ns = Some(judged_ns);
    }

    fn wait_for_stragglers(&self) {
        let until = clock::now_ns() + nanoseconds(GRACE);
        let mut last = 0;
        loop {
            // Updates in flight show in counts that still grow. Counts are published every 100 ms.
            thread::sleep(SETTLE);
            let delivered: u64 = self.counts.iter().map(|counts| lock(counts).base.messages_in).sum();
            let quiet = delivered == last;
            last = delivered;
            // At the slowest rate the last state of a character is due a second after it came to
            // rest.
            let rested = clock::now_ns() + nanoseconds(GRACE) > until + nanoseconds(MARGIN);
            if quiet && rested || interrupt::requested() || clock::now_ns() > until {
                return;
            }
        }
    }
}

/// The ticks between two looks at the metrics page.
fn ticks_between((first, last): (&probe::Metrics, &probe::Metrics)) -> Vec<TickReport> {
    let types = last.by_label(TICK_COUNT, "type");
    let outcomes = types.into_iter().filter_map(|(channel_type, _)| {
        let (first, last) = (first.only("type", &channel_type), last.only("type", &channel_type));
        let grown = |name: &str| Some(last.sum(&[name])? - first.sum(&[name]).unwrap_or(0.0));
        let (count, sum) = (grown(TICK_COUNT)?, grown(TICK_SUM)?);
        Some(TickReport {
            channel_type,
            count,
            mean_ms: sum / count.max(1.0) * 1e3,
            p999_ms: last.quantile_since(&first, TICK_BUCKETS, 0.999)? * 1e3,
            longest_ms: last.longest_since(&first, TICK_BUCKETS)? * 1e3,
        })
    });
    outcomes.collect()
}

const TICK_COUNT: &str = "throng_channel_tick_seconds_count";
const TICK_SUM: &str = "throng_channel_tick_seconds_sum";
const TICK_BUCKETS: &str = "throng_channel_tick_seconds_bucket";

/// Interval of the measurement of distances between players.
const JUDGE_NS: u64 = 250_000_000;
const CHANNELS: &str = "throng_gateway_channels";

#[cfg(test)]
mod tests {
    use super::fake::Fake;
    use super::*;

    fn go(plan: &Plan) -> WorldReport {
        let probe = Probe::new(Some(std::process::id()), None).expect("own process");
        run(plan, &probe, &mut |_| {}).expect("a result")
    }

    fn tiny(plan: Plan) -> Plan {
        Plan {
            warmup: Duration::from_millis(200),
            duration: Some(Duration::from_millis(1_500)),
            sample_interval: Duration::from_millis(500),
            threads: 2,
            patience: Duration::from_secs(120),
            ..plan
        }
    }

    #[test]
    fn characters_walk_from_server_to_server_and_nothing_is_lost() {
        let grid = Grid { columns: 6, server_columns: 3, cell_metres: 10.0 };
        let fake = Fake::start(Some(grid));
        let plan = Plan {
            layout: Layout::Grid(grid),
            interest_metres: 15.0,
            picture: true,
            ..tiny(Plan::spatial(fake.clients, fake.servers, 40))
        };
        let outcome = go(&plan);
        assert_eq!(outcome.servers.cells, 36);
        assert_eq!(outcome.servers.entities, 40);
        assert!(
            outcome.servers.handovers > 0 && outcome.servers.server_handovers > 0,
            "{:?}",
            outcome.servers
        );
        assert_eq!(outcome.servers.stray_inputs, 0, "inputs follow their character");
        assert!(outcome.servers.inputs > 0);
        assert_eq!((outcome.wrong, outcome.views), ([0; 3], (40, 40)));
        assert!(outcome.delivered_share() > 0.98, "{}", outcome.delivered_share());
        assert!(outcome.counts.delivered <= outcome.expected, "{outcome:?}");
        assert_eq!(outcome.repeated, 0);
        let svg = picture::svg(&outcome).expect("there is a tape");
        assert!(svg.starts_with("<svg") && svg.contains("<animate"));
    }

    #[test]
    fn everyone_sees_everyone_without_cells() {
        let fake = Fake::start(None);
        let plan = Plan { ask_for_rates: true, ..tiny(Plan::entity_lod(fake.clients, fake.servers, 20)) };
        let outcome = go(&plan);
        assert_eq!(outcome.bands.len(), 3);
        assert!(outcome.complete.is_some() && outcome.subscriptions == 400);
        assert!(outcome.bands[0].expected > 0 && outcome.bands[0].delivered > 0);
        assert_eq!(outcome.views, (20, 20));
    }

    #[test]
    fn the_published_grid_is_the_stock_file() {
        let config: serde_json::Value = serde_json::from_str(&Grid::PUBLISHED.config()).expect("JSON");
        let config = &config["Config"];
        for (key, value) in
            [("WorldOffsetX", -15_000), ("GridWidth", 2_000), ("GridCols", 15), ("ServerRows", 3)]
        {
            assert_eq!(config[key], value, "{key}");
        }
        assert_eq!(Grid::PUBLISHED.cell(0.0, 0.0), SPATIAL_FIRST);
        assert_eq!(Grid::PUBLISHED.cell(299.9, 20.1), SPATIAL_FIRST + 15 + 14);
        assert_eq!(Grid::PUBLISHED.server_of(SPATIAL_FIRST + 15 * 5 + 5), 4);
    }
}
