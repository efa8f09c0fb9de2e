//! Tag: a small game that shows the parts of a game on Throng.
//!
//! - `tag.proto` defines the channel data, which the gateway merges and fans out, and the messages,
//!   which it forwards.
//! - [`Arena`] is the game itself, without sockets and clock.
//! - The game server requests a room from the matcher for each player who logs in, owns a channel
//!   per room, and sends the changes.
//! - Simulated players are connections like any other.
//! - `web/` is the page for human players, on the TypeScript client; its built form is part of this
//!   crate.
//!
//! [`Tag::start`] connects these parts to a running gateway, or to the nodes of a cluster. There it
//! plays a game in each of several worlds, wherever they are, and starts a game again when its
//! world has another home.

mod arena;
pub mod messages;
mod players;
mod server;
mod view;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use throng_admin::{File, serve_files};
use throng_client::{ConnectError, Endpoint, EndpointError, MatcherConnectError, RequestError};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

pub use arena::Arena;

/// `tag.proto`, which the gateway needs as a schema.
pub const SCHEMA: &str = include_str!("../tag.proto");

/// The match modes that the matcher needs: rooms that players can join while a seat is free, of
/// each of these worlds.
#[must_use]
pub fn modes(worlds: &[String]) -> String {
    const MODES: &str = include_str!("../modes.toml");
    let of =
        |world: &String| MODES.replace(&format!("[modes.{}]", server::NAME), &format!("[modes.{world}]"));
    if worlds.is_empty() { MODES.to_owned() } else { worlds.iter().map(of).collect() }
}

/// Options of the game.
#[derive(Debug, Clone)]
pub struct Options {
    /// Listeners for game servers, TCP: that of a gateway, or those of the nodes of a cluster.
    pub servers: Vec<SocketAddr>,
    /// Listeners for players, WebSocket, in the same order.
    pub players: Vec<SocketAddr>,
    /// Worlds with a game each; empty for one game in the world of the listeners.
    pub worlds: Vec<String>,
    /// The matcher, which assigns players to rooms; it needs the modes of [`modes`].
    pub matcher: SocketAddr,
    /// Address of the page.
    pub page: SocketAddr,
    /// Simulated players of each game.
    pub simulated: usize,
    /// Length of a round.
    pub round: Duration,
    /// Seed of the simulated players' behaviour.
    pub seed: u64,
}

/// A running game, on a thread of its own. Dropping it ends the game.
#[derive(Debug)]
pub struct Tag {
    /// Address of the page.
    pub page: SocketAddr,
    /// Dropped to end the thread.
    _stop: oneshot::Sender<()>,
}

/// Failure to start the game.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The players' address is invalid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The page's listener could not be opened; its address is probably in use.
    #[error("cannot serve the page on {addr}: {source}")]
    Page {
        /// The address.
        addr: SocketAddr,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The gateway is not reachable, or refuses the game server.
    #[error("cannot connect the game server: {0}")]
    Connect(#[from] ConnectError),
    /// The matcher is not reachable, or refuses the game server.
    #[error("cannot connect to the matcher: {0}")]
    Matcher(#[from] MatcherConnectError),
    /// The gateway refused the claim of GLOBAL, probably because another game server owns it.
    #[error("cannot open the game: {0}; does another game server own GLOBAL on this gateway?")]
    Open(#[from] RequestError),
}

impl Tag {
    /// Starts the game server, the simulated players and the page.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: Options) -> Result<Tag, StartError> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, started) = mpsc::sync_channel(1);
        std::thread::Builder::new().name("tag".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                // Nobody else holds the other end: it is waiting for this.
                Err(error) => return drop(ready.send(Err(StartError::Thread(error)))),
            };
            runtime.block_on(async {
                match start(options).await {
                    Ok((page, _tasks)) => {
                        drop(ready.send(Ok(page)));
                        // An error says that the handle was dropped, which is what is waited for.
                        let _ = stopped.await;
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            });
        })?;
        let page = started.recv().unwrap_or(Err(StartError::Thread(std::io::ErrorKind::Other.into())))?;
        Ok(Tag { page, _stop: stop })
    }
}

/// Starts everything as tasks, which end when the set is dropped.
async fn start(options: Options) -> Result<(SocketAddr, JoinSet<()>), StartError> {
    let failed = |source| StartError::Page { addr: options.page, source };
    let listener = TcpListener::bind(options.page).await.map_err(failed)?;
    let page = listener.local_addr().map_err(failed)?;
    let urls: Vec<String> = options.players.iter().map(|player| format!("ws://{player}")).collect();
    let players = urls.iter().map(|url| url.parse()).collect::<Result<Vec<Endpoint>, _>>()?;
    let servers: Vec<Endpoint> = options.servers.iter().copied().map(Endpoint::tcp).collect();
    let mut worlds: Vec<Option<String>> = options.worlds.iter().cloned().map(Some).collect();
    if worlds.is_empty() {
        worlds.push(None);
    }
    let mut tasks = JoinSet::new();
    for (number, world) in worlds.into_iter().enumerate() {
        let servers = servers.clone();
        let (matcher, round) = (Endpoint::tcp(options.matcher), options.round);
        let location = server::GameLocation { servers, matcher, world: world.clone(), round };
        let first = location.open(0).await?;
        tasks.spawn(location.run(first));
        for index in 0..options.simulated {
            let (players, world, seed) = (players.clone(), world.clone(), options.seed);
            tasks.spawn(players::play(players, world, number * options.simulated + index, seed));
        }
    }
    let files = files(&urls, &options.worlds);
    tasks.spawn(serve_files(listener, files, std::future::pending()));
    Ok((page, tasks))
}

/// The files of the page, and the addresses and worlds for it.
fn files(gateways: &[String], worlds: &[String]) -> Vec<File> {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    macro_rules! built {
        ($($path:literal),*) => {
            [$(File::new(concat!("/", $path), SCRIPT, include_str!(concat!("../web/dist/", $path)))),*]
        };
    }
    let scripts = built![
        "tag.js",
        "draw.js",
        "model.js",
        "throng/client.js",
        "throng/errors.js",
        "throng/events.js",
        "throng/frame.js",
        "throng/index.js",
        "throng/matchmaking.js",
        "throng/messages.js",
        "throng/proto.js",
        "throng/state.js"
    ];
    let mut files = vec![
        File::new("/", "text/html; charset=utf-8", include_str!("../web/index.html")),
        // Addresses and names of worlds need no escapes in JSON.
        File::new(
            "/config.json",
            "application/json",
            format!("{{\"gateways\":{gateways:?},\"worlds\":{worlds:?}}}"),
        ),
    ];
    files.extend(scripts);
    files
}
