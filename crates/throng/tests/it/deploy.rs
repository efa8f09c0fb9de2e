//! Checks `deploy/` and the console's document list against the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names on the page of metrics, which is generated from what is exported.
fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let pages = read("docs/reference/metrics.md") + &read("docs/reference/replication-metrics.md");
    for line in pages.lines() {
        let Some((name, rest)) = line.strip_prefix("| `").and_then(|line| line.split_once('`')) else {
            continue;
        };
        names.insert(name.to_owned());
        if rest.contains("| summary |") {
            names.extend(["_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        }
        if rest.contains("histogram") {
            names.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        }
    }
    names
}

/// The metrics that an expression names: whatever looks like one of ours.
fn named(expression: &str) -> Vec<String> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("throng_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_expression_of_a_dashboard_names_an_exported_metric() {
    let exported = exported();
    let (mut checked, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(root().join("deploy/grafana")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let board: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            let targets = panel["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{}: {} shows nothing", path.display(), panel["title"]);
            for target in targets {
                let names = named(target["expr"].as_str().unwrap());
                assert!(!names.is_empty(), "{}: {} names no metric", path.display(), target["expr"]);
                checked += names.len();
                wrong.extend(names.into_iter().filter(|name| !exported.contains(name)));
            }
        }
    }
    for line in read("deploy/throng-alerts.yml").lines().filter(|line| line.contains("expr:")) {
        wrong.extend(named(line).into_iter().filter(|name| !exported.contains(name)));
    }
    assert!(wrong.is_empty(), "not exported: {wrong:?}");
    assert!(checked > 60, "{checked} metrics found: is the search broken?");
}

#[test]
fn the_reference_dashboard_of_channeld_finds_its_panels_here() {
    let board = read("deploy/grafana/throng-gateway.json");
    for panel in [
        "Connections",
        "Channels",
        "CPU",
        "tick duration",
        "Messages in",
        "Messages out",
        "Packets in",
        "Packets out",
        "Bytes in",
        "Bytes out",
        "Packets fragmented",
        "RPC",
    ] {
        assert!(board.contains(panel), "{panel}");
    }
}

#[test]
fn the_deployed_configurations_are_closed_until_tokens_are_there() {
    for file in ["deploy/throng.toml", "deploy/service.toml"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(["config", "check", "--config"])
            .arg(root().join(file))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // No repository holds tokens. They are all that is missing.
        assert!(!output.status.success(), "{file}: {said}");
        assert!(
            said.contains("/etc/throng/player-tokens") && said.contains("gateway.auth.tokens_file"),
            "{file}: {said}"
        );
        assert_eq!(said.matches("error[").count(), 1, "{file}: {said}");
    }
}

/// The configuration inside of the manifests lacks nothing but the files of its secret.
#[test]
fn the_manifests_configure_a_node_that_lacks_only_its_secrets() {
    let manifest = read("deploy/kubernetes/throng.yaml");
    let (_, rest) = manifest.split_once("throng.toml: |\n").unwrap();
    let config: String =
        rest.lines().map_while(|line| line.strip_prefix("    ")).map(|line| format!("{line}\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    let (file, secret) = (folder.path().join("throng.toml"), folder.path().display().to_string());
    std::fs::write(&file, config.replace("/etc/throng-secret", &secret)).unwrap();
    let check = || {
        let advertise = manifest.lines().find_map(|line| line.trim().strip_prefix("value: ")).unwrap();
        let advertise = advertise
            .replace("$(HOST_IP)", "192.0.2.1")
            .replace("$(POD)", "throng-0")
            .replace("$(NAMESPACE)", "x");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["config", "check", "--config"]).arg(&file).env("THRONG_CLUSTER_ADVERTISE", advertise);
        let done = command.output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (is_well, said) = check();
    assert!(!is_well && said.contains("player-tokens"), "{said}");
    for name in ["player-tokens", "node.creds", "nats-ca.pem", "secret"] {
        std::fs::write(folder.path().join(name), "alice 0123456789abcdef\n").unwrap();
    }
    std::fs::write(folder.path().join("secret"), "0a".repeat(32)).unwrap();
    let (is_well, said) = check();
    assert!(is_well, "{said}");
    // Players of a world go on for so long, and a minute remains to move them.
    let number = |name: &str| -> u32 {
        let line = manifest.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert_eq!(number("terminationGracePeriodSeconds:"), number("drain_wait_s =") + 60);
}

#[test]
fn the_service_accepts_game_servers_from_its_own_machine_only() {
    let service = read("deploy/service.toml");
    assert!(service.contains("[gateway.servers]") && service.contains("addr = \"127.0.0.1:11288\""));
    assert!(!service.contains("unsafe_binds"), "a public port for game servers needs authentication");
}

#[test]
fn the_console_carries_every_document() {
    let carried = read("crates/admin/src/assets.rs");
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(root().join("docs")).unwrap().display().to_string();
                assert!(
                    carried.contains(&format!("\"{name}\"")),
                    "{name} is missing in crates/admin/src/assets.rs"
                );
            }
        }
    }
}

#[test]
fn the_console_is_small() {
    // The files that a browser loads for the console and the game, gzipped by deflate at its usual
    // effort: measured by `make console`; here an upper bound that needs no compressor.
    let bytes = |name: &str| std::fs::metadata(root().join("console/dist").join(name)).unwrap().len();
    let all = ["index.html", "app.js", "app.css", "icon.svg"].map(bytes).iter().sum::<u64>();
    assert!(all < 220_000, "{all} bytes are more than 100 KB gzipped; `make console` says how many");
}
