//! One run: a game server and its players against one server, measured over one window of time.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::clock::{self, nanoseconds};
use crate::fleet::{self, Control, FleetPlan, Inputs, Subscribe, lock};
use crate::interrupt;
use crate::link::Transport;
use crate::network::Network;
use crate::owner::{self, OwnerCounts, OwnerPlan};
use crate::probe::{Memory, Probe};
use crate::protocol::CHANNEL_TYPE_GLOBAL;
use crate::stats::{Counts, Times};
use crate::tls::Trust;
use crate::watch::{self, Scenario, Servers, StopOnDrop, Timing, share};
pub use crate::watch::{RunError, Sample};

/// Grace period for updates in flight when the window closes; they count with their lateness.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
/// Shortest such wait: senders are behind by less than this, or the run is of no use.
pub(crate) const SETTLE: Duration = Duration::from_millis(250);
/// Connections opened per second, all threads together. A login storm is another test.
const CONNECTS_PER_SECOND: u32 = 4_000;
/// Longest wait between two updates of a slow subscription, and something on top.
pub(crate) const MARGIN: Duration = Duration::from_millis(1_300);
/// Poll interval of a waiting run.
pub(crate) const GLANCE: Duration = Duration::from_millis(10);
/// Players that read and check everything, per thread.
const CHECKERS_PER_THREAD: usize = 1;

/// A sender this late at its 99th percentile no longer offers the load that it claims to offer: a
/// third of the 30 Hz period, so inputs of neighbouring periods would bunch up beyond it.
const LATE_MS: f64 = 11.0;
/// A generator thread that computes for more than this share of the time is about to be late.
const THREAD_BUSY: f64 = 0.92;
/// Above this share of all processors, server and generator take time from each other.
const MACHINE_BUSY: f64 = 0.97;

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
    /// Simulated network between the players and the server.
    pub network: Network,
    /// Simulated players.
    pub players: usize,
    /// Characters in the world; `None` for no world and no channel data. Players steer the first
    /// ones.
    pub characters: Option<usize>,
    /// True if there is a game server. Without one, players connect and only count the messages
    /// that they receive.
    pub owner: bool,
    /// Without a simulated game server: players log in and play on this channel, subscribed by its
    /// owner. With neither, players do not log in.
    pub join: Option<u32>,
    /// True if players are subscribed to the channel.
    pub subscribe: bool,
    /// Players subscribe themselves instead of being subscribed by the game server.
    pub self_subscribe: bool,
    /// Fan-out interval that they ask for.
    pub interval: Duration,
    /// Packets per second and player to the owner; 0 for none.
    pub inputs_per_second: f64,
    /// Messages in each of these packets.
    pub input_batch: usize,
    /// Bytes of each message, 17 to 1,024.
    pub input_bytes: usize,
    /// Messages per second from the owner to each player; 0 for none.
    pub notices_per_second: f64,
    /// True if the world begins when all players have logged in. Otherwise it runs while players
    /// join, which takes much longer near the server's limit.
    pub gather: bool,
    /// Channels that exist besides and do nothing.
    pub idle_channels: usize,
    /// Players that stop reading once subscribed.
    pub stalled: usize,
    /// Type of the channel: 1 is GLOBAL, others are created besides.
    pub channel_type: u32,
    /// Generator threads for players; 0 chooses.
    pub threads: usize,
    /// Time between everyone's being there and the measured window.
    pub warmup: Duration,
    /// Length of the measured window; `None` until interrupted.
    pub duration: Option<Duration>,
    /// Longest time between two joins while players connect: a run whose players still arrive goes
    /// on, however slow the machine.
    pub patience: Duration,
    /// Time limit of the game server's login and the creation of its channels.
    pub owner_patience: Duration,
    /// Time between samples.
    pub sample_interval: Duration,
    /// Seed of everything random.
    pub seed: u64,
}

impl Plan {
    /// The published scenario with this many players against these listeners.
    #[must_use]
    pub fn single(clients: SocketAddr, servers: SocketAddr, players: usize) -> Self {
        Self {
            clients,
            servers,
            transport: Transport::Tcp,
            trust: None,
            network: Network::default(),
            players,
            characters: Some(players),
            owner: true,
            join: None,
            subscribe: true,
            self_subscribe: false,
            interval: Duration::from_millis(20),
            inputs_per_second: 30.0,
            input_batch: 1,
            input_bytes: fleet::INPUT_BYTES,
            notices_per_second: 0.0,
            gather: true,
            idle_channels: 0,
            stalled: 0,
            channel_type: CHANNEL_TYPE_GLOBAL,
            threads: 0,
            warmup: Duration::from_secs(3),
            duration: Some(Duration::from_secs(10)),
            patience: Duration::from_secs(60),
            owner_patience: Duration::from_secs(30),
            sample_interval: Duration::from_secs(1),
            seed: 1,
        }
    }

    /// Generator threads that the run will use: one per two processors, so that the server has as
    /// many.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        let chosen = match self.threads {
            0 => thread::available_parallelism().map_or(1, usize::from).div_ceil(2),
            threads => threads,
        };
        chosen.clamp(1, self.players.max(1))
    }

    fn interval_ms(&self) -> u32 {
        u32::try_from(self.interval.as_millis()).unwrap_or(u32::MAX)
    }

    fn fleet(&self) -> FleetPlan {
        let threads = u32::try_from(self.thread_count()).unwrap_or(1);
        FleetPlan {
            server: self.clients,
            transport: self.transport,
            trust: self.trust.clone(),
            network: self.network.clone(),
            connects_per_second: (CONNECTS_PER_SECOND / threads).max(1),
            login: self.owner || self.join.is_some(),
            subscribe: match (self.subscribe, self.self_subscribe) {
                (false, _) => None,
                (true, false) => Some(Subscribe::ByOwner),
                (true, true) => Some(Subscribe::BySelf { interval_ms: self.interval_ms() }),
            },
            inputs: (self.inputs_per_second > 0.0).then_some(Inputs {
                per_second: self.inputs_per_second,
                batch: self.input_batch,
                bytes: self.input_bytes,
            }),
            checkers: if self.characters.is_some() && self.subscribe { CHECKERS_PER_THREAD } else { 0 },
            stalled: self.stalled,
            seed: self.seed,
        }
    }

    fn owner(&self) -> OwnerPlan {
        OwnerPlan {
            server: self.servers,
            channel_type: self.channel_type,
            characters: self.characters,
            subscribe_interval_ms: (self.subscribe && !self.self_subscribe).then_some(self.interval_ms()),
            notices_per_second: (self.notices_per_second > 0.0).then_some(self.notices_per_second),
            players: self.players,
            gather: self.gather,
            idle_channels: self.idle_channels,
            seed: self.seed,
        }
    }
}

/// Results of a run.
#[derive(Debug, Clone)]
pub struct EngineReport {
    /// Requested number of players.
    pub players: usize,
    /// Length of the measured window.
    pub window: Duration,
    /// Counters of the players.
    pub counts: Counts,
    /// Counters of the game server.
    pub owner: OwnerCounts,
    /// Bytes received by players inside the window.
    pub window_bytes_in: u64,
    /// Frames received by players inside the window.
    pub window_frames_in: u64,
    /// CPU time that the server used inside the window.
    pub server_cpu: Option<Duration>,
    /// Memory of the server before the players joined, and at the end of the window.
    pub server_memory: Option<(Memory, Memory)>,
    /// CPU time of the player threads inside the window.
    pub fleet_cpu: Duration,
    /// CPU time of the game server's thread inside the window.
    pub owner_cpu: Duration,
    /// Share of all processors of the machine that was in use inside the window, by anyone.
    pub machine_busy: Option<f64>,
    /// Player threads.
    pub threads: usize,
    /// Players that read everything: how many ended with exactly the game server's state, of how
    /// many.
    pub checked: (usize, usize),
    /// Samples during the window.
    pub samples: Vec<Sample>,
}

impl EngineReport {
    /// State updates that should have reached players: every update of the window, every
    /// subscriber.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.owner.updates_due * (self.players as u64)
    }

    /// Share of the expected state updates that arrived as a fan-out of their own, 0 to 1.
    #[must_use]
    pub fn delivered_share(&self) -> f64 {
        share(self.counts.delivered, self.expected())
    }

    /// Processors that the server used.
    #[must_use]
    pub fn server_cores(&self) -> Option<f64> {
        self.server_cpu.map(|cpu| cpu.as_secs_f64() / self.window.as_secs_f64())
    }

    /// Reason why the generator, not the server, was the limit, if it was.
    #[must_use]
    pub fn saturation(&self) -> Option<String> {
        let window = self.window.as_secs_f64();
        Saturation {
            players_late_ms: self.counts.lateness.quantile_ms(0.99),
            servers_late_ms: self.owner.lateness.quantile_ms(0.99),
            players_busy: self.fleet_cpu.as_secs_f64() / window / self.threads as f64,
            servers_busy: self.owner_cpu.as_secs_f64() / window,
        }
        .describe()
    }

    /// True if the whole machine was in use, so that generator and server took time from each
    /// other.
    #[must_use]
    pub fn is_machine_full(&self) -> bool {
        self.machine_busy.is_some_and(|busy| busy > MACHINE_BUSY)
    }
}

/// Load of the generator.
pub(crate) struct Saturation {
    /// Intended to actual send at the 99th percentile.
    pub(crate) players_late_ms: f64,
    pub(crate) servers_late_ms: f64,
    /// Share of the time that a thread computed.
    pub(crate) players_busy: f64,
    pub(crate) servers_busy: f64,
}

impl Saturation {
    /// Why the generator was the limit, if it was.
    pub(crate) fn describe(&self) -> Option<String> {
        if self.servers_late_ms > LATE_MS {
            Some(format!("the simulated game server sent {:.1} ms late (p99)", self.servers_late_ms))
        } else if self.players_late_ms > LATE_MS {
            Some(format!("players sent {:.1} ms late (p99)", self.players_late_ms))
        } else if self.players_busy > THREAD_BUSY {
            Some(format!("player threads were busy {:.0}% of the time", self.players_busy * 100.0))
        } else if self.servers_busy > THREAD_BUSY {
            Some(format!("the simulated game server was busy {:.0}% of the time", self.servers_busy * 100.0))
        } else {
            None
        }
    }
}

/// Runs `plan`, looking at the server through `probe`, and calls `on_sample` for every sample
/// taken.
///
/// # Errors
/// See [`RunError`]. A server that is merely slow is not an error but a result.
pub fn run(plan: &Plan, probe: &Probe, on_sample: &mut dyn FnMut(&Sample)) -> Result<EngineReport, RunError> {
    let threads = plan.thread_count();
    let control = Control::new();
    let fleet_plan = plan.fleet();
    let owner_plan = plan.owner();
    let numbers = watch::deal(plan.players, threads);
    let counts: Vec<Mutex<Counts>> = watch::per_thread(threads);
    let owner_counts = Mutex::new(OwnerCounts::default());
    thread::scope(|scope| {
        // The threads must end in every case, or the scope would wait for ever.
        let stop = StopOnDrop(&control);
        let owner = plan.owner.then(|| scope.spawn(|| owner::run(&owner_plan, &control, &owner_counts)));
        let mut watch = Watch { plan, probe, control: &control, counts: &counts, owner: &owner_counts };
        if plan.owner {
            watch.wait_for_owner()?;
        } else if let Some(channel) = plan.join {
            control.set_channel(channel);
        }
        let memory_before = probe.memory();
        let fleets: Vec<_> = numbers
            .iter()
            .zip(&counts)
            .map(|(numbers, counts)| scope.spawn(|| fleet::run(&fleet_plan, numbers, &control, counts)))
            .collect();
        watch.wait_for_players()?;
        watch.control.start();
        let mut outcome = watch.measure(memory_before, on_sample)?;
        drop(stop);
        let state = owner.map(|owner| owner.join().unwrap_or_default());
        for fleet in fleets {
            let views = fleet.join().map_err(|_| std::io::Error::other("a generator thread panicked"))??;
            // A game server of another process keeps its state to itself.
            let Some(state) = &state else { continue };
            outcome.checked.1 += views.len();
            outcome.checked.0 += views.iter().filter(|view| *view == state).count();
        }
        outcome.counts = watch.counts();
        outcome.owner = lock(&owner_counts).clone();
        Ok(outcome)
    })
}

/// The coordinating side of a run.
struct Watch<'a> {
    plan: &'a Plan,
    probe: &'a Probe,
    control: &'a Control,
    counts: &'a [Mutex<Counts>],
    owner: &'a Mutex<OwnerCounts>,
}

impl Watch<'_> {
    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.counts {
            sum.add(&lock(counts));
        }
        sum
    }

    fn wait_for_owner(&self) -> Result<(), RunError> {
        let until = clock::now_ns() + nanoseconds(self.plan.owner_patience);
        loop {
            let owner = lock(self.owner);
            if let Some(error) = &owner.error {
                return Err(RunError::Owner(error.clone()));
            }
            if owner.ready {
                return Ok(());
            }
            let created = owner.channels;
            drop(owner);
            if interrupt::requested() {
                return Err(RunError::Interrupted);
            }
            if clock::now_ns() > until {
                let (waited, wanted) = (self.plan.owner_patience, self.plan.idle_channels);
                return Err(RunError::NoChannel { waited, created, wanted });
            }
            thread::sleep(GLANCE);
        }
    }

    fn wait_for_players(&self) -> Result<(), RunError> {
        let (mut joined, mut last_join) = (0, clock::now_ns());
        loop {
            let (mut ready, mut lost) = (0, 0);
            for counts in self.counts {
                let counts = lock(counts);
                ready += counts.ready;
                lost += counts.lost;
            }
            if ready >= self.plan.players as u64 {
                return Ok(());
            }
            if interrupt::requested() {
                return Err(RunError::Interrupted);
            }
            if ready > joined {
                (joined, last_join) = (ready, clock::now_ns());
            }
            let waited = Duration::from_nanos(clock::now_ns() - last_join);
            if waited > self.plan.patience || ready + lost >= self.plan.players as u64 {
                let (wanted, first_error) = (self.plan.players, self.counts().first_error);
                return Err(RunError::NotReady { ready, wanted, waited, first_error });
            }
            thread::sleep(GLANCE);
        }
    }

    fn measure(
        &mut self,
        memory_before: Option<Memory>,
        on_sample: &mut dyn FnMut(&Sample),
    ) -> Result<EngineReport, RunError> {
        let timing = Timing {
            warmup: self.plan.warmup,
            duration: self.plan.duration,
            sample_interval: self.plan.sample_interval,
        };
        let (probe, control) = (self.probe, self.control);
        let window = watch::measure(&timing, probe, control, memory_before, self, on_sample)?;
        Ok(EngineReport {
            players: self.plan.players - self.plan.stalled,
            window: window.length(),
            counts: Counts::default(),
            owner: OwnerCounts::default(),
            window_bytes_in: window.bytes_in(),
            window_frames_in: window.frames_in(),
            server_cpu: window.server_cpu(),
            fleet_cpu: window.players_cpu(),
            owner_cpu: window.game_cpu(),
            machine_busy: window.machine_busy(),
            threads: self.counts.len(),
            checked: (0, 0),
            server_memory: window.memory,
            samples: window.samples,
        })
    }
}

impl Scenario for Watch<'_> {
    fn servers(&self) -> Servers {
        let owner = lock(self.owner);
        Servers {
            cpu: owner.cpu,
            messages_in: owner.messages_in,
            bytes_in: owner.bytes_in,
            messages_out: owner.messages_out,
            bytes_out: owner.bytes_out,
            frames: owner.frames,
            channels: owner.channels + 1,
            handovers: 0,
        }
    }

    fn players(&self) -> Counts {
        self.counts()
    }

    fn take_recent(&self) -> Times {
        let mut recent = Times::default();
        for counts in self.counts {
            let mut counts = lock(counts);
            recent.add(&counts.recent);
            counts.recent.clear();
        }
        recent
    }

    fn server_count(&self) -> usize {
        1
    }

    fn hands_over(&self) -> bool {
        false
    }

    fn has_failed(&self) -> bool {
        lock(self.owner).error.is_some()
    }

    fn wait_for_stragglers(&self) {
        let until = clock::now_ns() + nanoseconds(GRACE);
        let players = (self.plan.players - self.plan.stalled) as u64;
        loop {
            let (mut delivered, mut notices, mut sent) = (0, 0, 0);
            for counts in self.counts {
                let counts = lock(counts);
                delivered += counts.delivered;
                notices += counts.notices;
                sent += counts.due - counts.refused;
            }
            let complete = {
                let owner = lock(self.owner);
                let updates = if self.plan.subscribe { owner.updates_due * players } else { 0 };
                let inputs = if self.plan.owner { sent } else { 0 };
                delivered >= updates && notices >= owner.notices_due && owner.inputs >= inputs
            };
            // A send that fell due just before the end may not have been counted yet.
            let settled = clock::now_ns() + nanoseconds(GRACE) > until + nanoseconds(SETTLE);
            if settled && (complete || interrupt::requested()) || clock::now_ns() > until {
                return;
            }
            thread::sleep(GLANCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    fn tiny(fake: &Fake, players: usize) -> Plan {
        Plan {
            warmup: Duration::from_millis(100),
            duration: Some(Duration::from_millis(500)),
            sample_interval: Duration::from_millis(250),
            threads: 2,
            patience: Duration::from_secs(120),
            ..Plan::single(fake.clients, fake.servers, players)
        }
    }

    fn go(plan: &Plan) -> EngineReport {
        run(plan, &Probe::new(Some(std::process::id()), None).expect("own process"), &mut |_| {})
            .expect("a result")
    }

    #[test]
    fn everything_sent_is_accounted_for() {
        let outcome = go(&tiny(&Fake::start(None), 20));
        assert_eq!(outcome.counts.ready, 20);
        assert!(
            (14..=16).contains(&outcome.owner.frames_due),
            "half a second has 15 frames: {}",
            outcome.owner.frames_due
        );
        assert_eq!(outcome.owner.updates_due, outcome.owner.frames_due);
        assert_eq!(outcome.counts.delivered, outcome.expected(), "the fake loses nothing");
        assert_eq!(outcome.counts.state.count(), outcome.counts.delivered);
        assert!(
            outcome.counts.due >= 20 * 14,
            "each player sends 30 inputs a second: {}",
            outcome.counts.due
        );
        assert_eq!(outcome.owner.inputs, outcome.counts.due, "every input reaches the game server");
        assert_eq!(outcome.checked, (2, 2), "one checking player per thread sees the game server's state");
        assert_eq!(outcome.counts.malformed, 0);
        assert!(outcome.server_cpu.is_some() && outcome.samples.len() == 2);
    }

    #[test]
    fn losses_are_noticed() {
        let outcome = go(&tiny(&Fake::start(Some(10)), 10));
        assert!((outcome.delivered_share() - 0.9).abs() < 0.03, "{}", outcome.delivered_share());
    }

    #[test]
    fn large_worlds_travel_in_parts() {
        let fake = Fake::start(None);
        let plan = Plan { characters: Some(1_500), inputs_per_second: 0.0, ..tiny(&fake, 3) };
        let outcome = go(&plan);
        assert_eq!(outcome.owner.updates_due, outcome.owner.frames_due * 2);
        assert_eq!(outcome.counts.delivered, outcome.expected());
        assert_eq!(outcome.checked, (2, 2));
    }

    #[test]
    fn notices_reach_each_player() {
        let fake = Fake::start(None);
        let plan = Plan {
            characters: None,
            subscribe: false,
            inputs_per_second: 0.0,
            notices_per_second: 10.0,
            ..tiny(&fake, 10)
        };
        let outcome = go(&plan);
        assert!((49..=51).contains(&outcome.owner.notices_due), "{}", outcome.owner.notices_due);
        assert_eq!(outcome.counts.notices, outcome.owner.notices_due);
    }

    #[test]
    fn batches_count_message_by_message() {
        let fake = Fake::start(None);
        let plan =
            Plan { characters: None, subscribe: false, input_batch: 10, input_bytes: 64, ..tiny(&fake, 4) };
        let outcome = go(&plan);
        assert!(outcome.counts.due >= 4 * 10 * 14);
        assert_eq!(outcome.owner.inputs, outcome.counts.due);
    }

    #[test]
    fn the_bare_writer_is_read_like_a_server() {
        let (reader, mut writer) = std::io::pipe().expect("pipe");
        let plan = crate::bare::BarePlan { sockets: 5, bytes: 3_000, per_second: 30.0 };
        thread::spawn(move || crate::bare::serve(plan, &mut writer));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(reader), &mut line).expect("announcement");
        let addr = crate::bare::parse_announcement(&line).expect("address");
        let plan = Plan {
            owner: false,
            characters: None,
            subscribe: false,
            inputs_per_second: 0.0,
            warmup: Duration::from_millis(100),
            duration: Some(Duration::from_millis(500)),
            ..Plan::single(addr, addr, 5)
        };
        let outcome = go(&plan);
        // As many as the time had room for: fifteen each, on a machine that does nothing else.
        assert!(outcome.counts.delivered > 0);
    }

    #[test]
    fn absent_servers_are_an_error_with_a_reason() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let addr = listener.local_addr().expect("bound");
        drop(listener);
        let plan = Plan::single(addr, addr, 1);
        let error = run(&plan, &Probe::new(None, None).expect("nothing to look at"), &mut |_| {})
            .expect_err("refused");
        assert!(error.to_string().contains(&format!("cannot reach {addr}")), "{error}");
    }
}
