//! `throng health`: a health check for containers that have no curl.

use std::process::ExitCode;

use clap::ArgMatches;

use crate::admin::ask;
use crate::output::{complain, print};

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let addr = matches.get_one::<String>("http").map_or("", String::as_str);
    let path = if matches.get_flag("live") { "/health/live" } else { "/health/ready" };
    match ask(addr, path, None) {
        Ok((status, body)) => {
            if matches.get_flag("json") {
                print(&format!("{body}\n"));
            } else if status != 200 {
                complain(&format!("not ready: {body}"));
            }
            if status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            complain(&format!("error: {addr}: {why}"));
            // 1, not 2: container runtimes reserve 2.
            ExitCode::FAILURE
        }
    }
}
