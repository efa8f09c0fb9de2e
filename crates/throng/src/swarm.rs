//! `throng swarm` and `throng demo`: simulated players without a verdict.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use throng_admin::LivePage;
use throng_load::demo_players::DemoPlayers;
use throng_load::direct::{self, DirectPlan, DirectSample};
use throng_load::engine::Sample;
use throng_load::network::{Network, PRESETS};
use throng_load::report::{Report, Run};
use throng_load::suites::{self, Progress, Swarm, Target};
use throng_load::{Transport, duration, interrupt, probe};
use throng_replication::Server;

use crate::bench::{Live, ServerArgs, count, print, say};
use crate::cluster_demo;
use crate::output::program;
use crate::tag::Game;

/// Connect simulated players to a server and measure it
#[derive(Debug, Args)]
#[command(after_long_help = SWARM_AFTER_HELP)]
pub(crate) struct SwarmArgs {
    /// Simulated players
    #[arg(long, short = 'n', default_value_t = 100, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    players: usize,
    /// Duration; until Ctrl-C if not given
    #[arg(long = "for", value_parser = duration::parse, value_name = "TIME")]
    duration: Option<Duration>,
    /// Join a running world instead of starting a game server
    #[arg(long, requires = "addr")]
    join: bool,
    /// Channel to join
    #[arg(long, default_value_t = 0, requires = "join", value_name = "ID")]
    channel: u32,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// The simulated network, in each direction and for each player on its own.
#[derive(Debug, Args)]
struct NetworkArgs {
    /// Network preset; the other flags override it
    #[arg(long, value_name = "NAME", value_parser = network_names(), help_heading = "Network")]
    network: Option<String>,
    /// One-way delay
    #[arg(hide_short_help = true, long, value_parser = duration::parse, value_name = "TIME", help_heading = "Network")]
    delay: Option<Duration>,
    /// Additional random delay, up to this time
    #[arg(hide_short_help = true, long, value_parser = duration::parse, value_name = "TIME", help_heading = "Network")]
    jitter: Option<Duration>,
    /// Share of lost datagrams, as in 2%; KCP only
    #[arg(hide_short_help = true, long, value_parser = share, value_name = "SHARE", help_heading = "Network")]
    loss: Option<f64>,
    /// Share of duplicated datagrams; KCP only
    #[arg(hide_short_help = true, long, value_parser = share, value_name = "SHARE", help_heading = "Network")]
    duplicate: Option<f64>,
    /// Share of reordered datagrams; KCP only
    #[arg(hide_short_help = true, long, value_parser = share, value_name = "SHARE", help_heading = "Network")]
    reorder: Option<f64>,
    /// Bits per second, as in 256k or 10M
    #[arg(hide_short_help = true, long, value_parser = rate, value_name = "RATE", help_heading = "Network")]
    rate: Option<u64>,
}

impl NetworkArgs {
    fn network(&self) -> Network {
        let base = self.network.as_deref().and_then(Network::preset).unwrap_or_default();
        Network {
            delay: self.delay.unwrap_or(base.delay),
            jitter: self.jitter.unwrap_or(base.jitter),
            loss: self.loss.unwrap_or(base.loss),
            duplicate: self.duplicate.unwrap_or(base.duplicate),
            reorder: self.reorder.unwrap_or(base.reorder),
            rate_bits: self.rate.unwrap_or(base.rate_bits),
        }
    }
}

fn network_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PRESETS.map(|(name, about)| PossibleValue::new(name).help(about)))
}

/// Reads `2%` or `0.02`.
fn share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse().map(|percent: f64| percent / 100.0),
        None => text.parse(),
    };
    let share = share.ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a share such as 2% or 0.02, at most 100%".to_owned())
}

/// Reads `256k`, `10M` or a bare number of bits per second.
fn rate(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let bits = digits.parse().ok().map(|number: f64| number * factor);
    let bits = bits.filter(|bits| (1_000.0..=1e12).contains(bits));
    bits.map(|bits| bits as u64)
        .ok_or_else(|| "expected bits per second such as 256k or 10M, at least 1k".to_owned())
}

const SWARM_AFTER_HELP: &str = "\
Without --addr the players connect to the server that runs on this machine with the default ports; if there is none,
one is started. The swarm joins a running world; otherwise it starts a simulated game server.

Examples:
  throng swarm --players 500                          on this machine
  throng swarm --players 200 --addr 192.0.2.7:12108   on another machine
  throng swarm --players 50 --shards 4 --for 20s      on its own server with four threads
  throng swarm --players 200 --transport kcp --network 4g             players on mobile phones
  throng swarm --players 200 --transport kcp --loss 10% --delay 80ms  a bad network";

/// Start every service with simulated players, and print what to open and try
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Simulated players
    #[arg(long, short = 'n', default_value_t = 200, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    players: usize,
    /// Duration; until Ctrl-C if not given
    #[arg(long = "for", value_parser = duration::parse, value_name = "TIME")]
    duration: Option<Duration>,
    /// Threads of the server
    #[arg(long, value_name = "N")]
    shards: Option<u16>,
    /// One world over nine simulated game servers instead of one channel
    #[arg(long)]
    spatial: bool,
    /// No gateway: players connect to one game server over ENet, which replicates them by interest
    /// and level of detail
    #[arg(long, conflicts_with = "spatial")]
    direct: bool,
    /// A cluster of this many nodes on this machine, with a NATS server and players in six worlds,
    /// who follow their world when a node is drained or killed
    #[arg(long, value_name = "NODES", value_parser = count, conflicts_with_all = ["spatial", "direct"])]
    cluster: Option<usize>,
    /// With --direct: address of the replication metrics
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", requires = "direct")]
    http: std::net::SocketAddr,
    /// Write an animated picture of the first seconds to this file
    #[arg(long, value_name = "FILE", requires = "spatial")]
    picture: Option<PathBuf>,
}

/// Runs `throng swarm`.
pub(crate) fn run(args: SwarmArgs) -> ExitCode {
    let network = &args.network;
    let harms =
        [("--loss", network.loss), ("--duplicate", network.duplicate), ("--reorder", network.reorder)];
    if let Some((flag, _)) = harms.iter().find(|(_, share)| share.is_some_and(|share| share > 0.0))
        && args.server.transport != Transport::Kcp
    {
        return fail(&format!(
            "{flag} needs --transport kcp: {} repairs losses itself",
            args.server.transport
        ));
    }
    let mut options = match args.server.options() {
        Ok(options) => options,
        Err(error) => return fail(&error.to_string()),
    };
    if options.target.is_none() && args.server.may_find_one() {
        let found = match suites::local_server(options.transport) {
            Ok(target) => {
                options.target = Some(target);
                "using the server that runs on this machine".to_owned()
            }
            Err(None) => "starting a server".to_owned(),
            Err(Some(why)) => format!("{why}; starting another server"),
        };
        say(&found);
    }
    options.network = args.network.network();
    let join = args.join.then_some(args.channel);
    let swarm = Swarm { options, players: args.players, duration: args.duration, join, spatial: false };
    let on_start = &mut |target: &Target| say(&format!("players connect to {}", target.clients));
    play(&swarm, args.json, None, on_start, args.server.live())
}

/// Runs `throng demo`.
pub(crate) fn demo(args: DemoArgs) -> ExitCode {
    if args.direct {
        return direct_demo(&args);
    }
    if let Some(nodes) = args.cluster {
        return cluster_demo::run(nodes, args.players, args.shards, args.duration);
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return fail(&format!("cannot find this program: {error}")),
    };
    let options = throng_load::suites::Options {
        program,
        shards: args.shards,
        seed: 1,
        console: true,
        whole: true,
        ..Default::default()
    };
    let swarm =
        Swarm { options, players: args.players, duration: args.duration, join: None, spatial: args.spatial };
    // The demo is about the players above; where the game cannot start, it goes on without.
    let game = Game::beside().map_err(|why| say(&format!("no game of tag: {why}"))).ok();
    let page = game.as_ref().map(|game| format!("http://{}/", game.page()));
    let text = RefCell::new(None);
    let mut demo_players = None;
    let on_start = &mut |target: &Target| {
        let play = page.as_ref().map_or(String::new(), |page| {
            format!("\n  play           {page}   (tag, against simulated players; two tabs for two players)")
        });
        let services = target.metrics.map(probe::services).unwrap_or_default();
        demo_players = start_demo_players(&services);
        let more = beside(&services) + &play;
        *text.borrow_mut() = Some(introduction(args.players, args.spatial, target, &more));
    };
    let progress = Introduced { text: &text, live: Live::new() };
    let code = play(&swarm, false, args.picture.as_deref(), on_start, progress);
    drop(demo_players);
    code
}

/// Runs `throng demo --direct`.
fn direct_demo(args: &DemoArgs) -> ExitCode {
    interrupt::catch();
    let plan = DirectPlan {
        players: args.players,
        shards: args.shards.unwrap_or(1),
        duration: args.duration,
        seed: 1,
    };
    let page = match LivePage::serve(args.http, "/metrics", "text/plain; version=0.0.4") {
        Ok(page) => page,
        Err(error) => return fail(&format!("cannot serve metrics on {}: {error}", args.http)),
    };
    let begun = |address: std::net::SocketAddr| {
        let titles = ["frame us", "longest us", "replication us", "replicas", "bytes/s each", "inputs"];
        let titles: String = titles.iter().map(|title| format!("{title:>16}")).collect();
        say(&format!(
            "Throng demo: {} simulated players walk in one square kilometre; each sees 150 m, distant players at lower rates.

  game server    {address}   (ENet, no gateway)
  metrics        http://{}/metrics

Ctrl-C ends it.

{:>6}{:>9}{titles}{:>13}",
            plan.players, page.addr, "s", "players", "corrections"
        ));
    };
    let each = |sample: &DirectSample, server: &Server| {
        let mut metrics = String::new();
        server.write_metrics(&mut metrics);
        page.set(metrics);
        let (mean, longest) = sample.frame_us;
        let DirectSample { second, players, replication_us, replicas, bytes, inputs, corrections, .. } =
            *sample;
        say(&format!(
            "{second:>6}{players:>9}{mean:>16.0}{longest:>16.0}{replication_us:>16.0}{replicas:>16.1}{bytes:>16.0}\
             {inputs:>16}{corrections:>13}"
        ));
        std::ops::ControlFlow::Continue(())
    };
    match direct::run(&plan, begun, each) {
        Ok(last) if last.refused == 0 => ExitCode::SUCCESS,
        Ok(last) => fail(&format!("{} packets were refused by their receivers", last.refused)),
        Err(error) => fail(&error.to_string()),
    }
}

/// Prints the demo's introduction with the first sample, because the commands in it work only after
/// all players have joined. A player who joins before the game server is ready is never noticed by
/// it.
struct Introduced<'a> {
    text: &'a RefCell<Option<String>>,
    live: Live,
}

impl Progress for Introduced<'_> {
    fn begin(&mut self, what: &str, window: Option<Duration>) {
        self.live.begin(what, window);
    }

    fn sample(&mut self, sample: &Sample) {
        if let Some(text) = self.text.take() {
            say(&format!("\n{text}"));
        }
        self.live.sample(sample);
    }
}

/// Players for the matcher and a build for the cache, if both are there.
fn start_demo_players(services: &[(String, String)]) -> Option<DemoPlayers> {
    let address = |wanted: &str| {
        let (_, url) = services.iter().find(|(name, _)| name == wanted)?;
        url.strip_prefix("http://")?.parse().ok()
    };
    DemoPlayers::start(address("matcherhttp")?, address("cache")?, 1).ok()
}

/// Lines for the other services, one each.
fn beside(services: &[(String, String)]) -> String {
    let lines = services.iter().filter(|(name, _)| name == "cache" || name == "matcher");
    lines.map(|(name, url)| format!("\n  {name:<14} {url}")).collect()
}

fn introduction(players: usize, spatial: bool, target: &Target, play: &str) -> String {
    let Target { clients, servers, metrics, .. } = target;
    let http = metrics.map(|http| http.to_string()).unwrap_or_default();
    // Behind the #, so that no server, log or proxy ever sees it.
    let token = target.console.map(|token| format!("#token={token}")).unwrap_or_default();
    if spatial {
        return format!(
            "Throng demo: {players} simulated players walk through one world of 225 cells over nine game servers.

  players        {clients}
  game servers   {servers}   (nine simulated ones own the cells, one more admits players){play}
  console        http://{http}/console/{token}
  open           http://{http}/metrics
  try            curl -s http://{http}/metrics | grep handovers

Ctrl-C ends it with a summary."
        );
    }
    let addr = if clients.port() == 12_108 { String::new() } else { format!(" --join --addr {clients}") };
    format!(
        "Throng demo: {players} simulated players walk, turn and jump on one channel.

  players        {clients}
  game servers   {servers}   (a simulated one owns the GLOBAL channel){play}
  console        http://{http}/console/{token}
  open           http://{http}/metrics
                 http://{http}/health/ready
  try            {throng} swarm --players 100{addr}
                 curl -s http://{http}/metrics | grep throng_

Ctrl-C ends it with a summary.",
        throng = program(),
    )
}

fn play(
    swarm: &Swarm,
    json: bool,
    picture: Option<&Path>,
    on_start: &mut dyn FnMut(&Target),
    mut progress: impl Progress,
) -> ExitCode {
    interrupt::catch();
    let result = swarm.run(on_start, &mut progress);
    let broken_off = interrupt::broken_off();
    // Takes its live line off the terminal.
    drop(progress);
    if let Some(why) = broken_off {
        return fail(&why);
    }
    match result {
        Ok(report) => {
            if let (Some(path), Some((_, svg))) = (picture, report.pictures.first())
                && let Err(error) = std::fs::write(path, svg)
            {
                return fail(&format!("cannot write {}: {error}", path.display()));
            }
            let text = if json {
                serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
            } else {
                summary(&report)
            };
            match print(&text) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error.to_string()),
            }
        }
        // Leaving before everyone is in is the user's right.
        Err(_) if interrupt::requested() => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(error: &str) -> ExitCode {
    say(&format!("error: {error}"));
    ExitCode::from(2)
}

fn summary(report: &Report) -> String {
    let Some(run) = report.runs.first() else { return String::new() };
    let Run { players, window_s, state, input, .. } = run;
    let mut text = format!("{players} players for {window_s:.0} s\n");
    let mut line = |name: &str, value: String| text.push_str(&format!("  {name:<14} {value}\n"));
    if run.expected > 0 {
        line(
            "fan-outs",
            format!("{} of {} arrived ({:.2}%)", run.delivered, run.expected, run.delivered_share * 100.0),
        );
    }
    line(
        "state",
        format!(
            "p50 {:.1}  p90 {:.1}  p99 {:.1}  max {:.1} ms",
            state.p50_ms, state.p90_ms, state.p99_ms, state.max_ms
        ),
    );
    if run.inputs_arrived > 0 {
        line(
            "inputs",
            format!("{} of {} arrived, p99 {:.1} ms", run.inputs_arrived, run.inputs_due, input.p99_ms),
        );
    }
    if let Some(world) = &run.world {
        line(
            "handovers",
            format!(
                "{:.0} a second, {:.0} of them between servers; p99 {:.1} ms",
                world.handovers_per_s, world.server_handovers_per_s, world.handover.p99_ms
            ),
        );
        line(
            "views",
            format!("{} of {} players saw exactly the world's state", run.checked_equal, run.checked),
        );
    }
    line("received", format!("{:.1} MB/s in {:.0} frames/s", run.bytes_per_s / 1e6, run.frames_per_s));
    if let Some(cores) = run.server_cores {
        let per_player = cores * 1e3 / (*players).max(1) as f64;
        line("server CPU", format!("{cores:.2} cores, {per_player:.2} ms per second and player"));
    }
    if let Some(bytes) = run.server_resident_bytes {
        line("server memory", format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)));
    }
    if run.lost > 0 {
        line("lost", format!("{} connections", run.lost));
    }
    for note in &report.notes {
        line("note", note.clone());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{rate, share};

    #[test]
    fn shares_and_rates_are_read() {
        assert_eq!(
            [share("2%"), share("0.02"), share("0"), share("100%")],
            [Ok(0.02), Ok(0.02), Ok(0.0), Ok(1.0)]
        );
        assert_eq!([rate("256k"), rate("1.5M"), rate("64000")], [Ok(256_000), Ok(1_500_000), Ok(64_000)]);
        for wrong in ["", "%", "-1%", "101%", "x", "NaN"] {
            assert!(share(wrong).is_err() && rate(wrong).is_err(), "{wrong}");
        }
    }
}
