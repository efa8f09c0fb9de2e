//! A cluster on this machine: a NATS server and nodes, each a child process of this one.

mod groups;
mod visitor;

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::child::{
    ASK_INTERVAL, ConsoleToken, Folder, Owned, START_PATIENCE, StartError, listen, tail, toml_string,
    wait_for_console, wait_until_ready,
};
use crate::interrupt;
use crate::link::Transport;

pub use crate::child::CLASS;
pub(crate) use groups::{GroupsPlan, run as play_groups};
pub(crate) use visitor::Visitor;

/// Program that is looked for, and the beginning of the name under which `scripts/setup` keeps it.
const NATS_SERVER: &str = "nats-server";
/// Folder below the user's cache in which `scripts/setup` keeps programs.
const TOOLS: &str = "throng/bin";

/// Options of a cluster.
#[derive(Debug, Clone, Default)]
pub struct ClusterOptions {
    /// The `throng` program.
    pub program: PathBuf,
    /// Number of nodes.
    pub nodes: usize,
    /// Worlds that open with the nodes, of the class [`CLASS`].
    pub worlds: Vec<String>,
    /// Schema of the channel data: name of the file and `.proto` source.
    pub schema: (&'static str, &'static str),
    /// Transport of the players' listeners.
    pub transport: Transport,
    /// Threads of each node, its own choice when not given.
    pub shards: Option<u16>,
    /// Further lines of the class [`CLASS`].
    pub class: &'static str,
    /// Further flags for the nodes.
    pub flags: Vec<String>,
    /// The end of a node by itself breaks the run off.
    pub watched: bool,
}

/// A NATS server and nodes, killed when dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes, by number.
    pub nodes: Vec<Node>,
    bus: Owned,
    program: PathBuf,
    worlds: usize,
    folder: Folder,
}

/// A node of a [`Cluster`].
#[derive(Debug)]
pub struct Node {
    /// Its name in the cluster.
    pub name: String,
    /// Its configuration.
    pub config: PathBuf,
    /// Listener for players.
    pub clients: SocketAddr,
    /// Listener for game servers.
    pub servers: SocketAddr,
    /// Health, metrics and console.
    pub http: SocketAddr,
    log: PathBuf,
    program: PathBuf,
    flags: Vec<String>,
    watched: bool,
    child: Option<Owned>,
}

/// Path of the NATS server: the one in PATH, or the one that `scripts/setup --tests` has built.
#[must_use]
pub fn nats_server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(NATS_SERVER));
    in_path.into_iter().find(|program| program.is_file()).or_else(|| {
        let home = |name: &str, below: &str| Some(PathBuf::from(std::env::var_os(name)?).join(below));
        let tools = home("XDG_CACHE_HOME", TOOLS).or_else(|| home("HOME", &format!(".cache/{TOOLS}")))?;
        let files = std::fs::read_dir(tools).ok()?.flatten().map(|file| file.path());
        files
            .filter(|file| {
                file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NATS_SERVER))
            })
            .max()
    })
}

/// A NATS server for a trial cluster, killed when dropped. Its folder has the files `url` and
/// `secret`, the address of the server and the secret of the cluster.
#[derive(Debug)]
pub struct TrialBus {
    _server: Owned,
    folder: Folder,
}

impl TrialBus {
    /// Starts the server on a free loopback port. The calling thread must live as long as it.
    ///
    /// # Errors
    /// [`StartError`] if there is no NATS server, or it does not start.
    pub fn start() -> Result<Self, StartError> {
        let failed = |source| StartError::Io { program: NATS_SERVER.to_owned(), source };
        let folder = Folder::new().map_err(failed)?;
        let (server, url) = start_bus(&folder)?;
        std::fs::write(folder.path("url"), url).map_err(failed)?;
        std::fs::write(folder.path("secret"), secret().map_err(failed)?).map_err(failed)?;
        Ok(Self { _server: server, folder })
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.folder.path("")
    }
}

impl Cluster {
    /// Starts a NATS server and the nodes on free loopback ports, and waits until every node is
    /// ready and every world has a home.
    ///
    /// # Errors
    /// [`StartError`] if there is no NATS server, or a process does not start.
    pub fn start(options: &ClusterOptions) -> Result<Self, StartError> {
        let program = options.program.display().to_string();
        let failed = |source| StartError::Io { program: program.clone(), source };
        let folder = Folder::new().map_err(failed)?;
        let (bus, url) = start_bus(&folder)?;
        let (schema, source) = options.schema;
        std::fs::write(folder.path(schema), source).map_err(failed)?;
        std::fs::write(folder.path("secret"), secret().map_err(failed)?).map_err(failed)?;
        let nodes = (1..=options.nodes).map(|number| {
            let name = format!("n{number}");
            let [clients, servers, http] = listen([0; 3])?;
            let node = Node {
                config: folder.path(&format!("{name}.toml")),
                log: folder.path(&format!("{name}.log")),
                program: options.program.clone(),
                flags: options.flags.clone(),
                watched: options.watched,
                child: None,
                name,
                clients,
                servers,
                http,
            };
            std::fs::write(&node.config, config(options, &folder, &node, &url))?;
            Ok(node)
        });
        let nodes = nodes.collect::<io::Result<Vec<Node>>>().map_err(failed)?;
        let program = options.program.clone();
        let mut cluster = Self { nodes, bus, program, worlds: options.worlds.len() + 1, folder };
        cluster.ask(&["init"])?;
        for node in &mut cluster.nodes {
            node.spawn()?;
        }
        for node in &mut cluster.nodes {
            node.wait_until_ready()?;
        }
        cluster.wait_until_served()?;
        Ok(cluster)
    }

    /// Runs `throng cluster` with these words; returns its output.
    ///
    /// # Errors
    /// If it cannot be run or fails.
    pub fn ask(&self, words: &[&str]) -> Result<String, StartError> {
        let name = format!("{} cluster {}", self.program.display(), words.join(" "));
        let mut command = Command::new(&self.program);
        command.arg("cluster").args(words).arg("-c").arg(self.folder.path("n1.toml")).stdin(Stdio::null());
        let done = command.output().map_err(|source| StartError::Io { program: name.clone(), source })?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let log = String::from_utf8_lossy(&done.stderr).into_owned();
        Err(StartError::NotReady { program: name, what: format!("ended with {}", done.status), log })
    }

    /// The directory, as `throng cluster status --json` shows it.
    ///
    /// # Errors
    /// See [`Self::ask`].
    pub fn status(&self) -> Result<Value, StartError> {
        let text = self.ask(&["status", "--json"])?;
        let program = self.program.display().to_string();
        serde_json::from_str(&text).map_err(|error| StartError::Io { program, source: error.into() })
    }

    /// Name of the node that serves a world.
    ///
    /// # Errors
    /// See [`Self::ask`].
    pub(crate) fn home(&self, world: &str) -> Result<String, StartError> {
        let status = self.status()?;
        let found = rows(&status, "worlds").find(|row| row["name"] == world);
        Ok(found.and_then(|row| row["home"].as_str()).unwrap_or_default().to_owned())
    }

    fn wait_until_served(&self) -> Result<(), StartError> {
        let started = Instant::now();
        loop {
            let status = self.status()?;
            if rows(&status, "worlds").filter(|world| world["state"] == "serving").count() >= self.worlds {
                return Ok(());
            }
            if interrupt::requested() || started.elapsed() > START_PATIENCE {
                let what = "has not opened all worlds".to_owned();
                return Err(StartError::NotReady {
                    program: "the cluster".to_owned(),
                    what,
                    log: status.to_string(),
                });
            }
        }
    }
}

impl Drop for Cluster {
    /// Kills all of them: their data is thrown away, and a stopping node would move its worlds.
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.kill();
        }
        self.bus.kill();
    }
}

/// Rows of a list of a status.
pub fn rows<'a>(status: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    status[list].as_array().into_iter().flatten()
}

impl Node {
    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Owned::id)
    }

    /// Token of one session of its console, if it prints one.
    #[must_use]
    pub fn console(&self) -> Option<ConsoleToken> {
        wait_for_console(&self.log)
    }

    /// Starts its process.
    ///
    /// # Errors
    /// [`StartError::Io`] if the log or the process cannot be made.
    pub(crate) fn spawn(&mut self) -> Result<(), StartError> {
        let failed = |source| StartError::Io { program: self.program.display().to_string(), source };
        let log = std::fs::File::create(&self.log).map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.arg("up").arg("--config").arg(&self.config).args(&self.flags);
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        self.child = Some(Owned::spawn(&mut command).map_err(failed)?);
        Ok(())
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// [`StartError`] if it ends, or is not ready in time.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), StartError> {
        let Some(child) = &mut self.child else { return Ok(()) };
        wait_until_ready(child, &self.program.display().to_string(), self.http, &self.log, Instant::now())?;
        if self.watched {
            child.watch(&format!("node {}", self.name));
        }
        Ok(())
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill();
        }
    }
}

/// Starts a NATS server. Returns it and its URL.
fn start_bus(folder: &Folder) -> Result<(Owned, String), StartError> {
    let path = nats_server().ok_or(StartError::NoBus)?;
    let program = path.display().to_string();
    let failed = |source| StartError::Io { program: program.clone(), source };
    let log_file = folder.path("nats.log");
    let log = std::fs::File::create(&log_file).map_err(failed)?;
    let mut command = Command::new(&path);
    command
        .args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream", "--store_dir"])
        .arg(folder.path("nats"));
    command.arg("--ports_file_dir").arg(folder.path(""));
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
    let mut child = Owned::spawn(&mut command).map_err(failed)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let ports = folder.path(&format!("{name}_{}.ports", child.id()));
    let started = Instant::now();
    loop {
        let text = std::fs::read_to_string(&ports).unwrap_or_default();
        // Up to the quote after it: the file may not be whole yet.
        if let Some((url, _)) = text.split_once("\"nats://").and_then(|(_, rest)| rest.split_once('"')) {
            return Ok((child, url.to_owned()));
        }
        let what = match child.try_wait() {
            Ok(Some(status)) => format!("ended with {status}"),
            Ok(None) if !interrupt::requested() && started.elapsed() < START_PATIENCE => {
                std::thread::sleep(ASK_INTERVAL);
                continue;
            }
            _ => "did not say where it listens".to_owned(),
        };
        return Err(StartError::NotReady { program, what, log: tail(&log_file) });
    }
}

/// A new secret of a cluster: 64 hex digits.
fn secret() -> io::Result<String> {
    let mut bytes = [0; 32];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn config(options: &ClusterOptions, folder: &Folder, node: &Node, url: &str) -> String {
    let quote = |path: &Path| toml_string(&path.display().to_string());
    let worlds: Vec<String> = options.worlds.iter().map(|world| format!("\"{world}:{CLASS}\"")).collect();
    let shards = options.shards.map(|shards| format!("shards = {shards}\n")).unwrap_or_default();
    let (worlds, name, listener) = (worlds.join(", "), &node.name, options.transport.listener());
    format!(
        "[server]\ndata = {data}\nshutdown_timeout_ms = 600\n{shards}\
         [gateway]\nschemas = [{schema}]\nworlds = [{worlds}]\n\
         [gateway.servers]\naddr = \"{servers}\"\n\
         [gateway.clients]\naddr = \"{clients}\"\ntransport = \"{listener}\"\n\
         [gateway.limits]\nauth_timeout_ms = 60000\n\
         [[gateway.classes]]\nname = \"{CLASS}\"\nopen = true\n{class}\n\
         [cluster]\nname = \"local\"\nnode = \"{name}\"\nnats_url = \"{url}\"\nreplicas = 1\nsecret_file = {secret}\n\
         worlds_max = 10000\n[http]\naddr = \"{http}\"\n[log]\nlevel = \"warn\"\n",
        data = quote(&folder.path(&format!("data-{name}"))),
        schema = quote(&folder.path(options.schema.0)),
        servers = node.servers,
        clients = node.clients,
        class = options.class,
        secret = quote(&folder.path("secret")),
        http = node.http,
    )
}
