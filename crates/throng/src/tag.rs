//! `throng tag`: a game to play in the browser, with a gateway of its own. `throng demo` includes
//! it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use throng_load::duration;
use throng_server::config::Loader;
use throng_server::{End, Running, Service, Signals};
use throng_tag::{Options, Tag};

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
const PAGE: &str = "127.0.0.1:11281";
/// A free port.
const ANY: &str = "127.0.0.1:0";

/// A gateway and a matcher with the game on them.
pub(crate) struct Game {
    // Dropped before the gateway that it plays on.
    tag: Tag,
    gateway: Running,
    _folder: Folder,
}

impl Game {
    /// Starts a gateway and a matcher on free loopback ports, and the game.
    pub(crate) fn start(page: SocketAddr, simulated: usize, round: Duration) -> Result<Game, String> {
        let folder = Folder::new().map_err(|error| format!("cannot create a temporary folder: {error}"))?;
        let schema = folder.0.join("tag.proto");
        std::fs::write(&schema, throng_tag::SCHEMA)
            .map_err(|error| format!("cannot write `{}`: {error}", schema.display()))?;
        let mut loader = Loader::new();
        let modes = folder.0.join("modes.toml");
        std::fs::write(&modes, throng_tag::MODES)
            .map_err(|error| format!("cannot write `{}`: {error}", modes.display()))?;
        for (key, value) in [
            ("gateway.servers.addr", ANY),
            ("gateway.clients.addr", ANY),
            ("gateway.clients.transport", "ws"),
            ("http.addr", ANY),
            ("server.shards", "1"),
            ("server.only", "gateway,matcher"),
            ("matcher.addr", ANY),
            ("matcher.durability", "none"),
            ("matcher.rules", &modes.display().to_string()),
            ("server.data", &folder.0.display().to_string()),
            ("gateway.schemas", &schema.display().to_string()),
        ] {
            loader = loader.flag("throng tag", key, value);
        }
        let config = loader.load().map_err(|problems| problems.to_string())?;
        let gateway = throng_server::start(config).map_err(|error| error.to_string())?;
        let of = |service| {
            gateway.address(service).ok_or_else(|| format!("the gateway has no listener for {service:?}"))
        };
        let (servers, players, matcher) =
            (of(Service::Servers)?, of(Service::Clients)?, of(Service::Matcher)?);
        let seed = u64::from(std::process::id());
        let options = Options { servers, players, matcher, page, simulated, round, seed };
        let tag = Tag::start(options).map_err(|error| error.to_string())?;
        Ok(Game { tag, gateway, _folder: folder })
    }

    /// As part of a demo: on the usual port if that is free.
    pub(crate) fn beside() -> Result<Game, String> {
        let [usual, any] =
            [PAGE, ANY].map(|addr| addr.parse().map_err(|_| format!("{addr} is not an address")));
        let any = any?;
        let round = Duration::from_secs(60);
        Game::start(usual?, SIMULATED, round).or_else(|_| Game::start(any, SIMULATED, round))
    }

    pub(crate) fn page(&self) -> SocketAddr {
        self.tag.page
    }
}

/// Runs `throng tag`.
pub(crate) fn run(args: TagArgs) -> ExitCode {
    let game = match Game::start(args.page, args.players, args.round) {
        Ok(game) => game,
        Err(why) => return failed(&why),
    };
    let signals = match Signals::install(&game.gateway) {
        Ok(signals) => signals,
        Err(error) => return failed(&format!("cannot receive signals: {error}")),
    };
    let Game { tag, gateway, _folder } = game;
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
    fn new() -> std::io::Result<Self> {
        let name = format!("throng-tag-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Left behind by a process of the same number, or of this one.
        remove(&path);
        std::fs::create_dir(&path)?;
        Ok(Folder(path))
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
