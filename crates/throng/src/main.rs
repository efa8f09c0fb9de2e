//! The `throng` command: parse, call, print, exit code.

mod admin;
mod all;
mod balance;
mod bench;
mod bench_ddc;
mod channeld;
mod cli;
mod cluster;
mod cluster_demo;
mod config;
mod ddc;
mod doctor;
mod explain;
mod health;
mod keys;
mod matcher;
mod migrate;
mod output;
mod replay;
mod replication;
mod replication_report;
mod report;
mod shell;
mod suggest;
mod swarm;
mod tag;
mod top;
mod up;
mod version;
mod why;
mod world;

use std::ffi::OsString;
use std::process::ExitCode;

/// The gateway constantly allocates and frees small buffers, which mimalloc does in half the time
/// of the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The option of mimalloc for the time in ms for which freed memory stays mapped.
const PURGE_DELAY: std::ffi::c_int = 15;
const PURGE_DELAY_MS: std::ffi::c_long = 60_000;

unsafe extern "C" {
    /// Sets an option that the environment does not set.
    fn mi_option_set_default(option: std::ffi::c_int, value: std::ffi::c_long);
    /// Frees what the calling thread keeps, and with `force` returns the free memory of the process
    /// to the system.
    fn mi_collect(force: bool);
}

/// Returns free memory to the system.
fn return_memory() {
    // SAFETY: it takes no memory that is in use, and may be called by any thread.
    unsafe { mi_collect(true) };
}

fn main() -> ExitCode {
    // Memory freed by one tick is needed by the next: returned after a second and mapped anew, page
    // by page, it costs a tick of 100,000 tickets a fifth. After a minute the system gets it;
    // MIMALLOC_PURGE_DELAY overrides that. SAFETY: it stores a number, and no other thread runs
    // yet.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
    // The output of a slow reader is no such memory, and may be many MiB.
    throng_server::set_return_memory(return_memory);
    // A page of 2 MiB is cleared when its first byte is written, up to 6 ms in which a thread
    // serves nobody, and stays whole for a few buffers: with small pages a connection takes half
    // the memory. What touches much fresh memory at once pays for it: the start takes some 5 ms
    // more. A system that has no such pages refuses, and needs it not.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    version::build().set();
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|word| word == "help") {
        help_becomes_a_flag(&mut arguments);
    }
    if cli::starts_services(&arguments) {
        // The start does it itself if there is no thread for it.
        let _ = std::thread::Builder::new().name("prepare".to_owned()).spawn(throng_server::prepare);
    }
    // The reference's flags are no clap flags: one dash, Go's rules for values.
    if arguments.get(1).is_some_and(|word| word == "channeld") {
        return channeld::run(&arguments[2..]);
    }
    // Their flags are their own, and none of the load suite's.
    if arguments.get(1).is_some_and(|word| word == "bench") {
        match arguments.get(2).and_then(|word| word.to_str()) {
            Some("replication") => return replication::run(&arguments[3..]),
            Some("ddc") => return bench_ddc::run(&arguments[3..]),
            _ => {}
        }
    }
    if arguments.get(1).is_some_and(|word| word == "bench")
        && arguments.get(2).is_some_and(|word| word == "matcher")
    {
        return matcher::bench(&arguments[2..]);
    }
    let matches = match cli::parse(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            output::print_usage(&error);
            return ExitCode::from(error.exit_code().clamp(0, 2) as u8);
        }
    };
    match matches.subcommand() {
        Some(("up", matches)) => up::run(matches),
        Some(("demo", matches)) => with(matches, swarm::demo),
        Some(("bench", matches)) => with(matches, bench::run),
        Some(("swarm", matches)) => with(matches, swarm::run),
        Some(("tag", matches)) => with(matches, tag::run),
        Some(("report", matches)) => with(matches, report::run),
        Some(("compare", matches)) => with(matches, report::compare),
        Some(("ddc", matches)) => with(matches, ddc::run),
        Some(("replay", matches)) => with(matches, |arguments| replay::run(&arguments)),
        Some(("config", matches)) => config::run(matches),
        Some(("health", matches)) => health::run(matches),
        Some(("doctor", matches)) => doctor::run(matches),
        Some(("completions", matches)) => shell::completions(matches, cli::command()),
        Some(("man", matches)) => shell::man(matches, cli::command()),
        Some(("matcher", matches)) => matcher::run(matches),
        Some(("migrate", matches)) => with(matches, migrate::run),
        Some(("top", matches)) => with(matches, top::run),
        Some(("why", matches)) => with(matches, why::run),
        Some(("world", matches)) => with(matches, world::run),
        Some(("cluster", matches)) => cluster::run(matches),
        Some(("explain", matches)) => explain::run(matches),
        Some(("version", matches)) => version::run(matches),
        other => unreachable!("{other:?} is defined in cli.rs"),
    }
}

/// `throng help COMMAND` becomes `throng COMMAND --help`, so that commands with a parser of their
/// own answer it too.
fn help_becomes_a_flag(arguments: &mut Vec<OsString>) {
    arguments.remove(1);
    let is_channeld = arguments.get(1).is_some_and(|word| word == "channeld");
    arguments.push(if is_channeld { "-help" } else { "--help" }.into());
}

/// Calls a command with its typed arguments.
fn with<A: clap::FromArgMatches>(matches: &clap::ArgMatches, run: impl FnOnce(A) -> ExitCode) -> ExitCode {
    match A::from_arg_matches(matches) {
        Ok(arguments) => run(arguments),
        // Not reached with arguments that the same definition has parsed.
        Err(error) => error.exit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn mi_option_get(option: std::ffi::c_int) -> std::ffi::c_long;
    }

    #[test]
    fn freed_memory_stays_mapped_for_a_minute() {
        // SAFETY: they read and store a number.
        unsafe {
            assert_eq!(mi_option_get(PURGE_DELAY), 1_000, "its default, which no other option has");
            mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS);
            assert_eq!(mi_option_get(PURGE_DELAY), 60_000);
        }
    }
}
