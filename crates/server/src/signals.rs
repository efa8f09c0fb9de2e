//! Waits for the end of a process: signals, or a given time.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::log::LogGuard;
use crate::start::Running;

/// Way in which a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everyone was told and everything flushed.
    Clean,
    /// Time ran out or a second signal came; some output was cut off.
    Forced,
    /// A service failed, so everything was stopped: a supervisor starts the process again.
    Failed,
}

/// Receives the process' signals; make it before telling anyone that the process is ready.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP.
    ///
    /// # Errors
    /// The system refuses, or `running` has stopped.
    pub fn install(running: &Running) -> io::Result<Signals> {
        let runtime = running.runtime().ok_or_else(|| io::Error::other("the process has stopped"))?;
        let _context = runtime.enter();
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Runs until SIGTERM, SIGINT, the end of `run_for` or of a service that fails, then shuts
    /// down. SIGHUP reloads. A second SIGTERM or SIGINT ends the process without waiting.
    pub fn run_until_stopped(
        mut self,
        running: Running,
        run_for: Option<Duration>,
        log: Option<&LogGuard>,
    ) -> End {
        let Some(runtime) = running.runtime().cloned() else { return End::Clean };
        let (reason, failed) = runtime.block_on(self.wait(&running, run_for, log));
        tracing::info!(reason, "stopping");
        // The next stop signal must work while this thread waits for the shutdown.
        let flush = log.map(LogGuard::flusher);
        let hurry = running.hurry();
        runtime.spawn(async move {
            let name = self.stop().await;
            tracing::warn!(reason = name, "stopping without waiting");
            // It waits on a thread of its own, for seconds at most.
            let _ = tokio::task::spawn_blocking(hurry).await;
            if let Some(flush) = flush {
                flush();
            }
            std::process::exit(1);
        });
        let complete = running.shutdown();
        tracing::info!(complete, "stopped");
        match (failed, complete) {
            (true, _) => End::Failed,
            (false, true) => End::Clean,
            (false, false) => End::Forced,
        }
    }

    async fn wait(
        &mut self,
        running: &Running,
        run_for: Option<Duration>,
        log: Option<&LogGuard>,
    ) -> (&'static str, bool) {
        let time_up = async {
            match run_for {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(time_up);
        loop {
            tokio::select! {
                // A reload that came first is done first.
                biased;
                _ = self.hangup.recv() => reload(running, log),
                _ = self.terminate.recv() => return ("SIGTERM", false),
                _ = self.interrupt.recv() => return ("SIGINT", false),
                () = &mut time_up => return ("the end of --for", false),
                ended = running.ended() => return ended,
            }
        }
    }

    async fn stop(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

fn reload(running: &Running, log: Option<&LogGuard>) {
    match running.reload() {
        Ok(changes) => {
            if let Some(log) = log {
                log.reload(&running.settings().log);
            }
            tracing::info!(applied = ?changes.applied, need_restart = ?changes.need_restart, "configuration reloaded");
        }
        Err(problems) => {
            for problem in &problems.0 {
                tracing::error!(problem = %problem.message, at = %problem.origin, "the new configuration has errors");
            }
            tracing::error!("the current configuration stays in use");
        }
    }
}
