//! CPU profiles of the running process.

use std::fmt;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

#[cfg(not(feature = "profiling"))]
#[path = "profile/absent.rs"]
mod sampler;
#[cfg(feature = "profiling")]
mod sampler;

use sampler::Sampler;

/// Lock of the profiler, of which a process has one.
static RUNNING: Mutex<()> = Mutex::const_new(());

/// Failure to take a profile.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Another profile is being taken.
    #[error("another profile is in progress")]
    Busy,
    /// The program has no profiler.
    #[error("this program was built without the feature `profiling`")]
    Missing,
    /// The profiler does not work here.
    #[error("the profiler failed: {0}")]
    Failed(String),
}

/// A CPU profile in progress. A process takes one at a time; dropping it discards the samples.
pub struct CpuProfile {
    sampler: Sampler,
    _running: MutexGuard<'static, ()>,
}

impl CpuProfile {
    /// Starts sampling every thread of the process, 99 times per second of CPU time.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn start() -> Result<CpuProfile, ProfileError> {
        let running = RUNNING.try_lock().map_err(|_| ProfileError::Busy)?;
        Ok(CpuProfile { sampler: Sampler::start()?, _running: running })
    }

    /// Ends the profile and returns it as pprof protobuf. Looks up symbols, which takes a while on
    /// a large binary.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn finish(self) -> Result<Vec<u8>, ProfileError> {
        self.sampler.finish()
    }
}

impl fmt::Debug for CpuProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuProfile").finish_non_exhaustive()
    }
}

/// Samples the process for `duration` and returns a pprof protobuf.
pub(crate) async fn cpu_profile(duration: Duration) -> Result<Vec<u8>, ProfileError> {
    let profile = CpuProfile::start()?;
    tokio::time::sleep(duration).await;
    let finished = tokio::task::spawn_blocking(|| profile.finish()).await;
    finished.map_err(|error| ProfileError::Failed(error.to_string()))?
}
