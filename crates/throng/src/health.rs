//! `throng health`: a health check for containers that have no curl.

use std::process::ExitCode;

use clap::ArgMatches;

use crate::admin::{advice, ask};
use crate::output::{complain, print};

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let addr = matches.get_one::<String>("http").map_or("", String::as_str);
    let path = if matches.get_flag("live") { "/health/live" } else { "/health/ready" };
    match ask(addr, path, None) {
        Ok((status, body)) => {
            if matches.get_flag("json") {
                let is_json = serde_json::from_str::<serde_json::Value>(&body).is_ok();
                let json = if is_json { body } else { serde_json::json!({ "status": body }).to_string() };
                print(&format!("{json}\n"));
            } else if status != 200 {
                complain(&format!("not ready: {body}"));
            }
            if status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            complain(&format!("error: {addr}: {why}{}", advice(&why)));
            // 1, not 2: container runtimes reserve 2.
            ExitCode::FAILURE
        }
    }
}
