//! CPU profiles of the running process.

use std::time::Duration;

use pprof::protos::Message as _;
use tokio::sync::Mutex;

/// Samples per second and thread; a prime, so that periodic work is not always met at the same point.
const SAMPLES_PER_S: i32 = 99;

/// The profiler is one per process.
static RUNNING: Mutex<()> = Mutex::const_new(());

/// Why there is no profile.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProfileError {
    Busy,
    Failed(String),
}

/// Samples the process for `duration` and returns a pprof protobuf.
pub(crate) async fn cpu_profile(duration: Duration) -> Result<Vec<u8>, ProfileError> {
    let Ok(_running) = RUNNING.try_lock() else { return Err(ProfileError::Busy) };
    let failed = |error: pprof::Error| ProfileError::Failed(error.to_string());
    // Stacks are walked by their unwind tables, since neither this binary nor the system's libraries keep frame
    // pointers. Threads caught inside the unwinder itself are skipped: they may hold what the walk needs.
    let guard = pprof::ProfilerGuardBuilder::default().frequency(SAMPLES_PER_S).build().map_err(failed)?;
    tokio::time::sleep(duration).await;
    // Symbols are looked up here, which takes a while on a large binary.
    let encode = move || -> Result<Vec<u8>, ProfileError> {
        let profile = guard.report().build().and_then(|report| report.pprof()).map_err(failed)?;
        Ok(profile.encode_to_vec())
    };
    tokio::task::spawn_blocking(encode).await.map_err(|error| ProfileError::Failed(error.to_string()))?
}
