//! The profiler of this build.

use pprof::protos::Message as _;

use super::ProfileError;

/// Samples per second and thread; a prime, so that periodic work is not always met at the same
/// point.
const SAMPLES_PER_S: i32 = 99;

pub(super) struct Sampler(pprof::ProfilerGuard<'static>);

impl Sampler {
    pub(super) fn start() -> Result<Sampler, ProfileError> {
        // Stacks are walked by their unwind tables, since neither this binary nor the system's
        // libraries keep frame pointers. Threads caught inside the unwinder itself are skipped:
        // they may hold what the walk needs.
        let guard =
            pprof::ProfilerGuardBuilder::default().frequency(SAMPLES_PER_S).build().map_err(failed)?;
        Ok(Sampler(guard))
    }

    pub(super) fn finish(self) -> Result<Vec<u8>, ProfileError> {
        let profile = self.0.report().build().and_then(|report| report.pprof()).map_err(failed)?;
        Ok(profile.encode_to_vec())
    }
}

fn failed(error: pprof::Error) -> ProfileError {
    ProfileError::Failed(error.to_string())
}
