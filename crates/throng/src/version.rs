//! `throng version`.

use std::process::ExitCode;

use clap::ArgMatches;

use crate::output::print;

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let version = env!("CARGO_PKG_VERSION");
    if matches.get_flag("json") {
        let json = serde_json::json!({
            "name": "throng",
            "version": version,
            "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            "debug": cfg!(debug_assertions),
        });
        print(&format!("{json:#}\n"));
    } else {
        print(&format!("throng {version}\n"));
    }
    ExitCode::SUCCESS
}
