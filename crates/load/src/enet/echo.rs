//! Echo servers and real clients as separate processes, so that their CPU time is measured
//! separately.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::serve::{ServePlan, Served};
use crate::bare::parse_announcement;
use crate::child::{Owned, StartError};
use crate::interrupt;
use crate::probe::Probe;

/// The C library's part of the bench; compiled where a compiler and the library are there.
const PEER_SOURCE: &str = include_str!("../../../../bench/peers/libenet/peer.c");

/// Real clients in one process, each with a descriptor of its own: below a common limit of 20,000.
const CLIENTS_PER_PROCESS: usize = 15_000;
/// Longest wait for a line of a process without a check for the end of the run.
const GLANCE: Duration = Duration::from_millis(100);
/// Loopback addresses that a process may use.
const ADDRESSES_PER_PROCESS: usize = 2;

/// An echo server in a process of its own, stopped when dropped.
pub(crate) struct Echo {
    _child: Owned,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(crate) addr: SocketAddr,
    pub(crate) probe: Probe,
}

impl Echo {
    /// Ours, as `throng bench enet --serve`.
    pub(crate) fn throng(program: &Path, plan: &ServePlan) -> Result<Self, StartError> {
        let mut command = Command::new(program);
        command.args(["bench", "enet", "--serve", "--addr", &plan.addr.to_string()]);
        command.args(["--slots", &plan.slots.to_string(), "--threads", &plan.shards.to_string()]);
        command.args(["--game-hz", &plan.game_hz.to_string()]);
        command.args(["--interval", &format!("{}us", plan.interval.as_micros())]);
        if !plan.segmentation {
            command.arg("--no-segmentation");
        }
        if plan.bare {
            command.arg("--bare");
        }
        Self::start(command)
    }

    /// The C library's, serviced `hz` times a second.
    pub(crate) fn libenet(peer: &Peer, slots: usize, hz: u32) -> Result<Self, StartError> {
        let mut command = Command::new(&peer.program);
        command.args(["serve", "127.0.0.1", "0", &slots.to_string(), &hz.to_string()]);
        Self::start(command)
    }

    fn start(mut command: Command) -> Result<Self, StartError> {
        let name = format!("{command:?}");
        let failed = |source| StartError::Io { program: name.clone(), source };
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Owned::spawn(&mut command).map_err(failed)?;
        let output = child.take_stdout().ok_or_else(|| failed(io::Error::other("no standard output")))?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        let read = output.read_line(&mut line);
        let probe = Probe::new(Some(child.id()), None);
        match (read, parse_announcement(&line), probe) {
            (Ok(_), Some(addr), Ok(probe)) => {
                child.watch("the ENet server under test");
                Ok(Self { input: child.take_stdin(), _child: child, output, addr, probe })
            }
            _ => {
                let what = "did not report its address".to_owned();
                Err(StartError::NotReady { program: name, what, log: line })
            }
        }
    }

    /// Its counters so far. Zeros from a server that does not count.
    pub(crate) fn served(&mut self) -> Served {
        let mut line = String::new();
        let asked = self.input.as_mut().map(|input| input.write_all(b"\n").and_then(|()| input.flush()));
        if !matches!(asked, Some(Ok(()))) || self.output.read_line(&mut line).is_err() {
            return Served::default();
        }
        serde_json::from_str(&line).unwrap_or_default()
    }

    /// CPU time used so far.
    pub(crate) fn cpu(&self) -> Duration {
        self.probe.cpu().unwrap_or_default()
    }

    /// Private memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.probe.memory().map_or(0, |memory| memory.anonymous_bytes)
    }
}

/// The program on the C library.
pub(crate) struct Peer {
    program: PathBuf,
}

/// Results of real clients. The names are those of `peer.c`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct RealSeen {
    pub(crate) clients: u64,
    pub(crate) connected: u64,
    pub(crate) failed: u64,
    pub(crate) batch_max_ms: f64,
    pub(crate) lost: u64,
    pub(crate) sent: u64,
    pub(crate) echoed: u64,
    pub(crate) wrong: u64,
    pub(crate) overtook: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    pub(crate) late_max_ms: f64,
    pub(crate) cpu_s: f64,
}

/// Plan of real clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RealPlan {
    pub(crate) clients: usize,
    pub(crate) batch: usize,
    pub(crate) every: Duration,
    pub(crate) bytes: usize,
    pub(crate) warmup: Duration,
    pub(crate) window: Duration,
}

impl Peer {
    /// Compiles the program. `None` with the reason when that is not possible here.
    pub(crate) fn compile() -> Result<Self, String> {
        let folder = std::env::temp_dir();
        let source = folder.join(format!("throng-libenet-{}.c", std::process::id()));
        let program = source.with_extension("");
        std::fs::write(&source, PEER_SOURCE).map_err(|error| error.to_string())?;
        let compiled =
            Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source).arg("-lenet").output();
        drop(std::fs::remove_file(&source));
        match compiled {
            Ok(output) if output.status.success() => Ok(Self { program }),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                Err(text.lines().next().unwrap_or("the compiler failed").to_owned())
            }
            Err(error) => Err(format!("no C compiler: {error}")),
        }
    }

    /// Runs real clients against `server`; `at` is called with "connected", "window" and "end" when
    /// all processes have reported them.
    pub(crate) fn swarm(
        &self,
        server: SocketAddr,
        plan: &RealPlan,
        mut at: impl FnMut(&str),
    ) -> Result<RealSeen, StartError> {
        let name = format!("{} swarm", self.program.display());
        let failed = |source| StartError::Io { program: name.clone(), source };
        let ms = |time: Duration| time.as_millis().to_string();
        let processes = plan.clients.div_ceil(CLIENTS_PER_PROCESS).max(1);
        let (lines, heard) = mpsc::channel();
        let (mut children, mut readers, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..processes {
            let clients = (plan.clients * (index + 1) / processes) - (plan.clients * index / processes);
            let mut command = Command::new(&self.program);
            command
                .args(["swarm", &server.ip().to_string(), &server.port().to_string()])
                .args([clients.to_string(), plan.batch.to_string(), ms(plan.every)])
                .args([plan.bytes.to_string(), ms(plan.warmup), ms(plan.window)])
                .arg((2 + ADDRESSES_PER_PROCESS * index).to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut child = Owned::spawn(&mut command).map_err(failed)?;
            let output = child.take_stdout().ok_or_else(|| failed(io::Error::other("no standard output")))?;
            inputs.extend(child.take_stdin());
            children.push(child);
            let lines = lines.clone();
            readers.push(std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if lines.send(line).is_err() {
                        return;
                    }
                }
            }));
        }
        drop(lines);
        let (mut seen, mut results, mut words) = (RealSeen::default(), 0, 0);
        // Ends when every process has closed its output, or the run is broken off; the processes
        // end with their owner then.
        loop {
            let line = match heard.recv_timeout(GLANCE) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) if interrupt::requested() => {
                    let (program, what) = (name, "was interrupted".to_owned());
                    return Err(StartError::NotReady { program, what, log: String::new() });
                }
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Ok(result) = serde_json::from_str(&line) {
                seen = seen.and(&result);
                results += 1;
                continue;
            }
            words += 1;
            if words % processes == 0 {
                at(&line);
            }
            if words == processes {
                // Everybody is there: all begin at once. One that has ended is noticed below.
                for input in &mut inputs {
                    let _ = input.write_all(b"go\n").and_then(|()| input.flush());
                }
            }
        }
        readers.into_iter().for_each(|reader| drop(reader.join()));
        let mut statuses = Vec::new();
        for mut child in children {
            statuses.push(child.wait().map_err(failed)?.to_string());
        }
        if results == processes {
            return Ok(seen);
        }
        let what = format!("ended with {} and no result", statuses.join(", "));
        Err(StartError::NotReady { program: name, what, log: String::new() })
    }
}

impl RealSeen {
    /// Sums, and the worst of the times.
    fn and(self, other: &Self) -> Self {
        Self {
            clients: self.clients + other.clients,
            connected: self.connected + other.connected,
            failed: self.failed + other.failed,
            batch_max_ms: self.batch_max_ms.max(other.batch_max_ms),
            lost: self.lost + other.lost,
            sent: self.sent + other.sent,
            echoed: self.echoed + other.echoed,
            wrong: self.wrong + other.wrong,
            overtook: self.overtook + other.overtook,
            p50_ms: self.p50_ms.max(other.p50_ms),
            p99_ms: self.p99_ms.max(other.p99_ms),
            max_ms: self.max_ms.max(other.max_ms),
            late_max_ms: self.late_max_ms.max(other.late_max_ms),
            cpu_s: self.cpu_s + other.cpu_s,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.program));
    }
}
