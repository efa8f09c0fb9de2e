//! The programs a bench starts: the server under test and the bare writer.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::bare::{self, BarePlan};
use crate::link::Transport;
use crate::spatial::{Grid, avatar};
use crate::tls::{SERVER_NAME, Trust};
use crate::{arena, demo_players, interrupt, probe};

/// Class of named worlds: logins may ask for them.
pub const CLASS: &str = "arena";
/// Time for a server to become ready before the bench gives up.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(120);
/// Poll interval of a starting server. It bounds the error of the measured start time.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_micros(500);
/// Time that a ready server has to print the address of its console.
const ANNOUNCEMENT_PATIENCE: Duration = Duration::from_secs(1);
/// Time that a server has to end.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Characters of a failed server's log that are shown.
const LOG_TAIL: usize = 2_000;

/// Why a program did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its files or process could not be made.
    #[error("cannot start {program}: {source}")]
    Io {
        /// Program that was to be started.
        program: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// It ended, or did not become ready in time.
    #[error("{program} {what}; its output:\n{log}")]
    NotReady {
        /// Program that was started.
        program: String,
        /// Reason why it is not ready.
        what: String,
        /// The end of its output.
        log: String,
    },
    /// There is no NATS server for a cluster.
    #[error(
        "a cluster needs nats-server 2.11 or newer, which is neither in PATH nor built by `scripts/setup --tests`; \
         https://github.com/nats-io/nats-server/releases has the program"
    )]
    NoBus,
}

/// A one-time token of a web console: 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsoleToken([u8; 32]);

impl ConsoleToken {
    /// Extracts the token from the text that a server printed when it was ready.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once("/console/#token=")?;
        let digits: [u8; 32] = rest.as_bytes().get(..32)?.try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(Self(digits))
    }
}

impl std::fmt::Display for ConsoleToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|digit| write!(f, "{}", char::from(*digit)))
    }
}

/// A free port for a program that cannot choose one itself. The address is one of loopback that
/// differs from process to process where the system has so many (Linux): another process cannot
/// take the port before the program has it.
///
/// # Errors
/// The error of the operating system.
pub fn free_address() -> io::Result<SocketAddr> {
    free_listener()?.local_addr()
}

/// A listener on a free port of an address that other processes do not use. No port is returned
/// twice: the child that was given it may not have bound it yet.
fn free_listener() -> io::Result<TcpListener> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let [_, a, b, c] = std::process::id().to_be_bytes();
    // Neither the usual loopback address nor the end of its network.
    let own = Ipv4Addr::new(127, 64 + a % 64, b, 1 + c % 254);
    // Skipped listeners stay open, so that the system assigns another port next.
    let mut skipped = Vec::new();
    loop {
        let listener =
            TcpListener::bind((own, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let port = listener.local_addr()?.port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return Ok(listener);
        }
        skipped.push(listener);
    }
}

/// A child process, ended when dropped. It ends with this process, however that ends.
#[derive(Debug)]
pub struct Owned {
    child: Child,
    /// True if its end is expected.
    ending: Arc<AtomicBool>,
}

impl Owned {
    /// Starts `command`. The thread that calls this must live as long as the process: the kernel
    /// watches the thread.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let parent = std::process::id();
        let bind = move || {
            // SAFETY: both calls only set and read attributes of the calling process.
            let (bound, now) =
                unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
            match bound {
                // The parent ended before the call.
                0 if now.cast_unsigned() != parent => Err(io::ErrorKind::NotFound.into()),
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // Ctrl-C on a terminal is for this process, which ends the run in good order: a server that
        // ended at once would lose its players before they have left.
        command.process_group(0);
        // SAFETY: `bind` runs between fork and exec; it makes two system calls and does not
        // allocate.
        let child = unsafe { command.pre_exec(bind) }.spawn()?;
        Ok(Self { child, ending: Arc::default() })
    }

    /// Aborts the run if the child ends by itself from now on.
    pub fn watch(&self, name: &str) {
        let (name, ending) = (name.to_owned(), Arc::clone(&self.ending));
        let id = self.child.id();
        std::thread::spawn(move || {
            // SAFETY: a siginfo_t is plain data, for which zeros are valid.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // The child stays to be waited for by its owner; once that has happened, this ends with
            // an error.
            let flags = libc::WEXITED | libc::WNOWAIT;
            // SAFETY: `info` is valid for writes during the call.
            let ended = unsafe { libc::waitid(libc::P_PID, id, &raw mut info, flags) } == 0;
            if ended && !ending.load(Ordering::Acquire) {
                // SAFETY: waitid has filled in the fields of a child's end.
                let status = unsafe { info.si_status() };
                let how = if info.si_code == libc::CLD_EXITED { "exit status" } else { "signal" };
                interrupt::break_off(format!("{name} ended by itself: {how} {status}"));
            }
        });
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its status, if it has ended.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Its standard input, once.
    pub(crate) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Its standard output, once.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Ends it as a power cut of the process would.
    pub(crate) fn kill(&mut self) {
        self.ending.store(true, Ordering::Release);
        // It may have ended; then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Owned {
    /// Asks it to end, waits, and kills it if that did not help.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.ending.store(true, Ordering::Release);
        // SAFETY: the process is our child and has not been waited for, so its id cannot belong to
        // anyone else.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        let started = Instant::now();
        while started.elapsed() < STOP_PATIENCE {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        self.kill();
    }
}

/// A server of our own, stopped when dropped.
#[derive(Debug)]
pub struct OwnServer {
    child: Owned,
    folder: Folder,
    /// Listener for players.
    pub clients: SocketAddr,
    /// Listener for game servers.
    pub servers: SocketAddr,
    /// Health and metrics.
    pub http: SocketAddr,
    /// Its certificate, if players reach it encrypted.
    pub trust: Option<Trust>,
    /// Time from the start of the process until it reported readiness.
    pub start: Duration,
}

/// Options of a server that the bench starts.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// The `throng` program.
    pub program: PathBuf,
    /// Threads, the server's own choice when not given.
    pub shards: Option<u16>,
    /// Transport of the players' listener. Encrypted ones get a new certificate.
    pub transport: Transport,
    /// Further flags for `throng up`.
    pub flags: Vec<String>,
    /// The cache and the matcher as well, on free ports.
    pub whole: bool,
    /// Listen where a server listens by default, if all of that is free; on free ports otherwise.
    pub default_ports: bool,
    /// The world that it is to have, if any.
    pub world: Option<World>,
    /// Named worlds that it opens, which logins may ask for.
    pub worlds: Vec<String>,
    /// True if it chooses the rates of entities by distance, in a world without cells.
    pub lod: bool,
}

/// A world that a server is configured for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum World {
    /// Cells and their servers.
    Grid(Grid),
    /// No cells: everyone sees everyone.
    Open,
}

impl OwnServer {
    /// Starts `throng up` on free loopback ports with the demo schema and waits until it is ready.
    ///
    /// # Errors
    /// When it cannot be started or does not become ready.
    pub fn start(options: &ServerOptions) -> Result<Self, StartError> {
        let program = options.program.display().to_string();
        let failed = |source| StartError::Io { program: program.clone(), source };
        let folder = Folder::new().map_err(failed)?;
        let defaults = if options.default_ports { listen(DEFAULT_PORTS).ok() } else { None };
        let [clients, servers, http] = match defaults {
            Some(addrs) => addrs,
            None => listen([0; 3]).map_err(failed)?,
        };
        std::fs::write(folder.path("demo.proto"), arena::SCHEMA).map_err(failed)?;
        if let Some(world) = options.world {
            std::fs::write(folder.path("world.proto"), avatar::SCHEMA).map_err(failed)?;
            if let World::Grid(grid) = world {
                std::fs::write(folder.path("grid.json"), grid.config()).map_err(failed)?;
            }
        }
        if options.whole {
            std::fs::write(folder.path("queues.toml"), demo_players::QUEUE).map_err(failed)?;
        }
        let trust = match options.transport.is_encrypted() {
            true => Some(certificate(&folder).map_err(failed)?),
            false => None,
        };
        let config = config(options, &folder, clients, servers, http);
        std::fs::write(folder.path("throng.toml"), config).map_err(failed)?;
        let log = std::fs::File::create(folder.path("log")).map_err(failed)?;
        let mut command = Command::new(&options.program);
        command.arg("up").arg("--config").arg(folder.path("throng.toml")).args(&options.flags);
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        let started = Instant::now();
        let child = Owned::spawn(&mut command).map_err(failed)?;
        let mut server = Self { child, folder, clients, servers, http, trust, start: Duration::ZERO };
        let log = server.folder.path("log");
        server.start = wait_until_ready(&mut server.child, &program, http, &log, started)?;
        server.child.watch("the server under test");
        Ok(server)
    }

    /// Token of one session of its web console.
    #[must_use]
    pub fn console(&self) -> Option<ConsoleToken> {
        wait_for_console(&self.folder.path("log"))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Waits until the server at `http` is ready; returns the time since `started`.
pub(crate) fn wait_until_ready(
    child: &mut Owned,
    program: &str,
    http: SocketAddr,
    log: &Path,
    started: Instant,
) -> Result<Duration, StartError> {
    let what = loop {
        if probe::fetch(http, "/health/ready").is_ok() {
            return Ok(started.elapsed());
        }
        match child.try_wait() {
            Ok(Some(status)) => break format!("ended with {status}"),
            Ok(None) if interrupt::requested() => break "was interrupted while starting".to_owned(),
            Ok(None) if started.elapsed() > START_PATIENCE => {
                break format!("was not ready within {START_PATIENCE:?}");
            }
            Ok(None) => std::thread::sleep(ASK_INTERVAL),
            Err(error) => break format!("cannot be observed: {error}"),
        }
    };
    Err(StartError::NotReady { program: program.to_owned(), what, log: tail(log) })
}

/// The console token in the output of a server that is ready. It is printed just after that, hence
/// a short wait.
pub(crate) fn wait_for_console(log: &Path) -> Option<ConsoleToken> {
    let until = Instant::now() + ANNOUNCEMENT_PATIENCE;
    loop {
        match ConsoleToken::find(&std::fs::read_to_string(log).ok()?) {
            None if Instant::now() < until => std::thread::sleep(ASK_INTERVAL),
            found => return found,
        }
    }
}

const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

/// Writes a new certificate and its key into the server's folder.
fn certificate(folder: &Folder) -> io::Result<Trust> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let names = [SERVER_NAME.to_owned()];
    let made = throng_net::development_certificate(&names, now).map_err(io::Error::other)?;
    std::fs::write(folder.path(CERTIFICATE), &made.cert_pem)?;
    std::fs::write(folder.path(KEY), &made.key_pem)?;
    Trust::new(&made.cert_pem).map_err(io::Error::other)
}

fn config(
    options: &ServerOptions,
    folder: &Folder,
    clients: SocketAddr,
    servers: SocketAddr,
    http: SocketAddr,
) -> String {
    let quote = |path: PathBuf| toml_string(&path.display().to_string());
    let mut text = String::new();
    let mut line = |args: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = text.write_fmt(args);
        text.push('\n');
    };
    // Its data is thrown away, so nothing is worth waiting for at its end.
    line(format_args!("[server]\ndata = {}\nshutdown_timeout_ms = 600", quote(folder.path("data"))));
    if let Some(shards) = options.shards {
        line(format_args!("shards = {shards}"));
    }
    let schema = if options.world.is_some() { "world.proto" } else { "demo.proto" };
    line(format_args!("[gateway]\nschemas = [{}]", quote(folder.path(schema))));
    if !options.worlds.is_empty() {
        let worlds: Vec<String> = options.worlds.iter().map(|world| format!("\"{world}:{CLASS}\"")).collect();
        line(format_args!("worlds = [{}]", worlds.join(", ")));
    }
    match options.world {
        Some(World::Grid(_)) => {
            let grid = quote(folder.path("grid.json"));
            line(format_args!("[gateway.spatial]\ncontroller = {grid}\nunreal = \"on\""));
            // Servers crash in this world, and return.
            line(format_args!("[gateway.recovery]\nservers = true"));
        }
        Some(World::Open) if options.lod => {
            // The published table, in centimetres: 20 Hz, 10 Hz, and 1 Hz beyond.
            line(format_args!("[gateway.spatial]\nlod = [\"1000:50\", \"5000:100\"]\nlod_beyond_ms = 1000"));
        }
        _ => {}
    }
    line(format_args!("[gateway.servers]\naddr = \"{servers}\""));
    line(format_args!("[gateway.clients]\naddr = \"{clients}\""));
    if options.world.is_some() {
        // Players subscribe to the characters that they see.
        line(format_args!("state_machine = \"client_authoratative\""));
    }
    if options.transport != Transport::Tcp {
        line(format_args!("transport = \"{}\"\nkcp_profile = \"game\"", options.transport.listener()));
    }
    if options.transport.is_encrypted() {
        let [cert, key] = [CERTIFICATE, KEY].map(|name| quote(folder.path(name)));
        line(format_args!("tls = true\ntls_cert = {cert}\ntls_key = {key}"));
    }
    // A login that a saturated machine delays is a slow login, not an attack.
    line(format_args!("[gateway.limits]\nauth_timeout_ms = 60000"));
    if !options.worlds.is_empty() {
        line(format_args!("[[gateway.classes]]\nname = \"{CLASS}\"\nopen = true"));
    }
    if options.whole {
        let rules = quote(folder.path("queues.toml"));
        line(format_args!("[ddc]\naddr = \"127.0.0.1:0\""));
        line(format_args!("[matcher]\naddr = \"127.0.0.1:0\"\nhttp_addr = \"127.0.0.1:0\"\nrules = {rules}"));
    }
    line(format_args!("[http]\naddr = \"{http}\""));
    line(format_args!("[log]\nlevel = \"warn\""));
    text
}

pub(crate) fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The bare writer as a separate process, so that its CPU time is measured separately. Dropping it
/// ends the process.
#[derive(Debug)]
pub struct BareWriter {
    child: Owned,
    /// Address at which it accepts readers.
    pub addr: SocketAddr,
    _output: Option<BufReader<ChildStdout>>,
}

impl BareWriter {
    /// Starts the hidden mode of `program` (`throng bench bare-writer`).
    ///
    /// # Errors
    /// If it cannot be started or does not report its address.
    pub fn start(program: &Path, plan: BarePlan) -> Result<Self, StartError> {
        let name = format!("{} bench bare-writer", program.display());
        let failed = |source| StartError::Io { program: name.clone(), source };
        let mut command = Command::new(program);
        command
            .args(["bench", "bare-writer"])
            .args(["--sockets", &plan.sockets.to_string(), "--bytes", &plan.bytes.to_string()])
            .args(["--per-second", &plan.per_second.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = Owned::spawn(&mut command).map_err(failed)?;
        let mut line = String::new();
        // Kept open: a writer without a reader would end.
        let mut output = child.take_stdout().map(BufReader::new);
        if let Some(output) = &mut output {
            output.read_line(&mut line).map_err(failed)?;
        }
        match bare::parse_announcement(&line) {
            Some(addr) => {
                child.watch("the bare writer");
                Ok(Self { child, addr, _output: output })
            }
            None => Err(StartError::NotReady {
                program: name,
                what: "did not say where it listens".to_owned(),
                log: line,
            }),
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Ports of players, game servers and HTTP when nothing else is configured.
pub(crate) const DEFAULT_PORTS: [u16; 3] = [12_108, 11_288, 11_280];

/// Loopback addresses with these ports (0 for any) that were free a moment ago. One with any port
/// is as [`free_address`] has it.
pub(crate) fn listen(ports: [u16; 3]) -> io::Result<[SocketAddr; 3]> {
    let listener =
        |port| if port == 0 { free_listener() } else { TcpListener::bind((Ipv4Addr::LOCALHOST, port)) };
    let [a, b, c] = ports.map(listener);
    // All three are held until here, so that free ones are different ones.
    let (a, b, c) = (a?, b?, c?);
    Ok([a.local_addr()?, b.local_addr()?, c.local_addr()?])
}

pub(crate) fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let start = text.char_indices().rev().nth(LOG_TAIL).map_or(0, |(index, _)| index);
    text[start..].to_owned()
}

/// A folder of our own under the system's temporary one, removed when dropped.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> io::Result<Self> {
        Self::below(&std::env::temp_dir())
    }

    /// Creates a temporary folder below another one, for data that must be on a certain disk.
    pub(crate) fn below(parent: &Path) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("throng-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on its being gone.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_has_what_the_server_needs() {
        let folder = Folder::new().expect("temporary folder");
        let [clients, servers, http] = listen([0; 3]).expect("ports");
        let options =
            ServerOptions { shards: Some(2), transport: Transport::WebSocket, ..ServerOptions::default() };
        let text = config(&options, &folder, clients, servers, http);
        for part in
            ["shards = 2", "demo.proto", "transport = \"ws\"", &clients.to_string(), &http.to_string()]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(toml_string("a\"b\\c"), "\"a\\\"b\\\\c\"");
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported_with_its_words() {
        let options = ServerOptions { program: "/bin/false".into(), ..ServerOptions::default() };
        let error = OwnServer::start(&options).expect_err("false ends with 1").to_string();
        assert!(error.contains("ended with exit status: 1"), "{error}");
        let options = ServerOptions { program: "/nonexistent/throng".into(), ..ServerOptions::default() };
        assert!(OwnServer::start(&options).expect_err("no program").to_string().contains("cannot start"));
    }
}
