//! `throng tag`: a game to play in the browser, with a gateway of its own. `throng demo` includes
//! it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use throng_load::cluster::Node;
use throng_load::duration;
use throng_server::config::Loader;
use throng_server::{End, Running, Service, Signals};
use throng_tag::{Options, StartError, Tag};

use crate::output::{complain, print};

/// Play tag in the browser, against simulated players
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct TagArgs {
    /// Simulated players
    #[arg(long, short = 'n', default_value_t = SIMULATED, value_name = "N")]
    players: usize,
    /// Length of a round
    #[arg(long, value_parser = duration::positive, default_value = "60s", value_name = "TIME")]
    round: Duration,
    /// Address of the page
    #[arg(long, default_value = PAGE, value_name = "ADDR")]
    page: SocketAddr,
    /// Stop after this time; until Ctrl-C if not given
    #[arg(long = "for", value_parser = duration::parse, value_name = "TIME")]
    duration: Option<Duration>,
}

const AFTER_HELP: &str = "\
Examples:
  throng tag                       then open the printed page, in two tabs if you like
  throng tag --players 20 --round 30s";

const SIMULATED: usize = 9;
/// Length of a round in a demo.
const ROUND: Duration = Duration::from_secs(60);
const PAGE: &str = "127.0.0.1:11281";
/// A free port.
const ANY: &str = "127.0.0.1:0";

/// The game, with the services that run in this process for it.
pub(crate) struct Game {
    // Dropped before the services that it plays on.
    tag: Tag,
    services: Running,
    _folder: Folder,
}

impl Game {
    /// Starts a gateway and a matcher on free loopback ports, and the game.
    pub(crate) fn start(page: SocketAddr, simulated: usize, round: Duration) -> Result<Game, String> {
        let folder = Folder::new()?;
        let schema = folder.write("tag.proto", throng_tag::SCHEMA)?;
        let services = services(
            &folder,
            &[],
            &[
                ("gateway.servers.addr", ANY),
                ("gateway.clients.addr", ANY),
                ("gateway.clients.transport", "ws"),
                ("http.addr", ANY),
                ("server.shards", "1"),
                ("server.only", "gateway,matcher"),
                ("gateway.schemas", &schema),
            ],
        )?;
        let of = |service| {
            services.address(service).ok_or_else(|| format!("the gateway has no listener for {service:?}"))
        };
        let (servers, players) = (vec![of(Service::Servers)?], vec![of(Service::Clients)?]);
        let seed = u64::from(std::process::id());
        let worlds = Vec::new();
        Game::on(services, folder, |matcher| Options {
            servers,
            players,
            worlds,
            matcher,
            page,
            simulated,
            round,
            seed,
        })
    }

    /// Starts a matcher, and a game in each of these worlds of a cluster, on the usual port for the
    /// page if that is free.
    pub(crate) fn over(nodes: &[Node], worlds: &[String], simulated: usize) -> Result<Game, String> {
        let start = |page: SocketAddr| {
            let folder = Folder::new()?;
            let services = services(&folder, worlds, &[("server.only", "matcher"), ("http.addr", "")])?;
            let servers = nodes.iter().map(|node| node.servers).collect();
            let players = nodes.iter().map(|node| node.clients).collect();
            let (round, seed, worlds) = (ROUND, u64::from(std::process::id()), worlds.to_vec());
            Game::on(services, folder, |matcher| Options {
                servers,
                players,
                worlds,
                matcher,
                page,
                simulated,
                round,
                seed,
            })
        };
        on_a_page(start)
    }

    fn on(
        services: Running,
        folder: Folder,
        options: impl FnOnce(SocketAddr) -> Options,
    ) -> Result<Game, String> {
        let options = options(services.address(Service::Matcher).ok_or("the matcher has no listener")?);
        let tag = Tag::start(options).map_err(|error| match error {
            StartError::Page { .. } => format!("{error}\n  help: name another address with --page HOST:PORT"),
            _ => error.to_string(),
        })?;
        Ok(Game { tag, services, _folder: folder })
    }

    /// As part of a demo: on the usual port if that is free.
    pub(crate) fn beside() -> Result<Game, String> {
        on_a_page(|page| Game::start(page, SIMULATED, ROUND))
    }

    pub(crate) fn page(&self) -> SocketAddr {
        self.tag.page
    }
}

/// Starts a game with its page on the usual port, or on any if that is taken.
fn on_a_page(start: impl Fn(SocketAddr) -> Result<Game, String>) -> Result<Game, String> {
    let [usual, any] = [PAGE, ANY].map(|addr| addr.parse().map_err(|_| format!("{addr} is not an address")));
    let any = any?;
    start(usual?).or_else(|_| start(any))
}

/// Starts services for the game, a matcher with the modes of these worlds among them.
fn services(folder: &Folder, worlds: &[String], keys: &[(&str, &str)]) -> Result<Running, String> {
    let modes = folder.write("modes.toml", &throng_tag::modes(worlds))?;
    let data = folder.0.display().to_string();
    let own = [
        ("matcher.addr", ANY),
        ("matcher.durability", "none"),
        ("matcher.rules", &modes),
        ("server.data", &data),
    ];
    let loader = own
        .iter()
        .chain(keys)
        .fold(Loader::new(), |loader, &(key, value)| loader.flag("throng tag", key, value));
    let config = loader.load().map_err(|problems| problems.to_string())?;
    throng_server::start(config).map_err(|error| error.to_string())
}

/// Runs `throng tag`.
pub(crate) fn run(args: TagArgs) -> ExitCode {
    let game = match Game::start(args.page, args.players, args.round) {
        Ok(game) => game,
        Err(why) => return failed(&why),
    };
    let signals = match Signals::install(&game.services) {
        Ok(signals) => signals,
        Err(error) => return failed(&format!("cannot receive signals: {error}")),
    };
    let Game { tag, services: gateway, _folder } = game;
    let line = |what: &str, value: String| format!("  {what:<14} {value}\n");
    let of = |service| gateway.address(service).map(|addr| addr.to_string()).unwrap_or_default();
    print(&format!(
        "tag is ready, with {} simulated players\n\n{}{}{}{}{}",
        args.players,
        line("play", format!("http://{}/   (two tabs for two players)", tag.page)),
        line("players", format!("ws://{}", of(Service::Clients))),
        line("game server", format!("tcp://{}", of(Service::Servers))),
        line("look", format!("curl -s http://{}/api/v1/channels", of(Service::Admin))),
        line("stop", "Ctrl-C".to_owned()),
    ));
    let end = signals.run_until_stopped(gateway, args.duration, None);
    drop(tag);
    match end {
        End::Clean => ExitCode::SUCCESS,
        End::Forced | End::Failed => ExitCode::FAILURE,
    }
}

fn failed(why: &str) -> ExitCode {
    complain(&format!("error: {why}"));
    ExitCode::from(2)
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, String> {
        let name = format!("throng-tag-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Left behind by a process of the same number, or of this one.
        remove(&path);
        std::fs::create_dir(&path).map_err(|error| format!("cannot create a temporary folder: {error}"))?;
        Ok(Folder(path))
    }

    /// Writes a file. Returns its path.
    fn write(&self, name: &str, content: &str) -> Result<String, String> {
        let path = self.0.join(name);
        let written = std::fs::write(&path, content);
        written.map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
        Ok(path.display().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// A missing folder needs no removal; the system cleans up the rest.
fn remove(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
}
