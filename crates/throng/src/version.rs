//! `throng version`, and the build that every report names.

use std::process::ExitCode;

use clap::ArgMatches;
use throng_load::report::Build;

use crate::output::print;

/// This program.
pub(crate) fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("THRONG_COMMIT").filter(|commit| !commit.is_empty()).unwrap_or("unknown"),
        profile: env!("THRONG_BUILD_PROFILE"),
        features: env!("THRONG_BUILD_FEATURES").split(',').filter(|name| !name.is_empty()).collect(),
    }
}

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let Build { version, commit, profile, features } = build();
    if matches.get_flag("json") {
        let json = serde_json::json!({
            "name": "throng",
            "version": version,
            "commit": commit,
            "profile": profile,
            "features": features,
            "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            "debug": cfg!(debug_assertions),
        });
        print(&format!("{json:#}\n"));
    } else {
        print(&format!("throng {version}\n"));
    }
    ExitCode::SUCCESS
}
