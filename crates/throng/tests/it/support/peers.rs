//! Programs that tests talk to. `scripts/setup --tests` installs them. Compiled into the tests of
//! several crates.
#![allow(dead_code, reason = "each crate uses its part")]
#![allow(clippy::disallowed_methods, reason = "settings of a test run, not of a core")]

use std::path::PathBuf;

/// Prints that a test is skipped; `scripts/test` counts these lines. With `CI=true` the setup has
/// run, so that a missing peer is a failure.
#[allow(clippy::print_stderr, reason = "the line that is counted")]
pub(crate) fn skip(missing: &str) {
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{missing} is missing; scripts/setup --tests installs it"
    );
    eprintln!("skipped: no {missing}; scripts/setup --tests installs it");
}

/// A program that the setup keeps in a folder of its own, so that it is neither on the path nor a
/// service; `None` if it is not there.
pub(crate) fn kept(name: &str) -> Option<PathBuf> {
    let home = |name: &str, below: &str| std::env::var_os(name).map(|home| PathBuf::from(home).join(below));
    let cache = home("XDG_CACHE_HOME", "").or_else(|| home("HOME", ".cache"))?;
    Some(cache.join("throng/bin").join(name)).filter(|program| program.exists())
}
