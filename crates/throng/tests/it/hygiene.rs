//! Rules about the repository itself: who may depend on whom, licences, words that do not belong
//! here, links and names in the documents that must lead somewhere. Each failure says what to do.
//!
//! Rules about one crate's code are lints: `clippy.toml` in the cores, `[workspace.lints]` in the
//! root manifest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde::Deserialize;

/// The dependency table. One row per crate: the crates of this workspace that it may use, in its
/// code and, besides, in its tests. The reasons are in ARCHITECTURE.md, "Crate dependencies".
const WORKSPACE_TABLE: &[(&str, &[&str], &[&str])] = &[
    // Cores: no sockets, no clock, no threads, no async, no unsafe.
    ("throng-stdx", &[], &[]),
    ("throng-wire", &["throng-stdx"], &[]),
    ("throng-enet", &["throng-stdx"], &[]),
    ("throng-spatial", &["throng-stdx"], &[]),
    ("throng-ddc", &["throng-stdx"], &[]),
    ("throng-replication-derive", &[], &[]),
    ("throng-replication", &["throng-replication-derive", "throng-stdx"], &["throng-replication"]),
    ("throng-gateway", &["throng-spatial", "throng-stdx", "throng-wire"], &[]),
    ("throng-matcher", &["throng-wire"], &["throng-stdx"]),
    ("throng-cluster", &["throng-stdx"], &[]),
    // The operating system behind small interfaces, for the I/O crates and services.
    ("throng-platform", &["throng-stdx"], &[]),
    // I/O crates: the cores, the platform and the operating system, never each other.
    ("throng-net", &["throng-enet", "throng-stdx"], &[]),
    // The ENet part of net for Linux, and its like for other systems.
    ("throng-enet-driver", &["throng-enet", "throng-net"], &[]),
    ("throng-admin", &["throng-platform", "throng-stdx"], &[]),
    ("throng-ddc-store", &["throng-ddc", "throng-platform"], &["throng-stdx"]),
    ("throng-oodle", &[], &["throng-ddc-server", "throng-ddc"]),
    // Services: a product's interface over cores and edges.
    (
        "throng-ddc-server",
        &["throng-admin", "throng-ddc", "throng-ddc-store", "throng-platform"],
        &["throng-stdx"],
    ),
    (
        "throng-matcher-server",
        &[
            "throng-admin",
            "throng-cluster",
            "throng-matcher",
            "throng-net",
            "throng-platform",
            "throng-stdx",
            "throng-wire",
        ],
        &[],
    ),
    // Composition.
    (
        "throng-server",
        &[
            "throng-ddc-server",
            "throng-client",
            "throng-cluster",
            "throng-ddc",
            "throng-gateway",
            "throng-admin",
            "throng-matcher",
            "throng-matcher-server",
            "throng-net",
            "throng-platform",
            "throng-stdx",
            "throng-ddc-store",
            "throng-wire",
        ],
        &["throng-conformance"],
    ),
    (
        "throng",
        &[
            "throng-admin",
            "throng-load",
            "throng-oodle",
            "throng-platform",
            "throng-replication",
            "throng-replication-bench",
            "throng-server",
            "throng-sim",
            "throng-tag",
        ],
        &[
            "throng-client",
            "throng-client-ffi",
            "throng-gateway",
            "throng-stdx",
            "throng-ddc-store",
            "throng-wire",
        ],
    ),
    ("throng-replication-bench", &["throng-net", "throng-replication", "throng-stdx"], &[]),
    // Tools. A generator shares no code with what it measures, codecs and transports aside.
    ("throng-client", &["throng-stdx", "throng-wire"], &[]),
    ("throng-client-ffi", &["throng-client"], &[]),
    ("throng-enet-ffi", &["throng-enet", "throng-stdx"], &[]),
    ("throng-tag", &["throng-client", "throng-admin", "throng-stdx"], &[]),
    (
        "throng-load",
        &[
            "throng-client",
            "throng-ddc",
            "throng-enet",
            "throng-net",
            "throng-replication",
            "throng-stdx",
            "throng-wire",
        ],
        &[],
    ),
    // Its links carry the production KCP core, which is sans-IO; of net it uses nothing else.
    (
        "throng-sim",
        &["throng-client", "throng-gateway", "throng-matcher", "throng-net", "throng-stdx", "throng-wire"],
        // A whole cache node is simulated by its tests only: the program carries none of it.
        &["throng-conformance", "throng-ddc", "throng-ddc-server", "throng-ddc-store", "throng-platform"],
    ),
    ("throng-conformance", &["throng-gateway", "throng-wire"], &[]),
    (
        "throng-fuzz-targets",
        &[
            "throng-cluster",
            "throng-ddc",
            "throng-enet",
            "throng-gateway",
            "throng-matcher",
            "throng-net",
            "throng-replication",
            "throng-stdx",
            "throng-wire",
        ],
        &["throng-client", "throng-server"],
    ),
];

/// The outside crates that a core may name. Short on purpose: each is small, does no I/O, and has a
/// reason.
const CORE_TABLE: &[(&str, &[&str])] = &[
    ("throng-stdx", &[]),
    // Shared bytes; generated messages; Snappy; error types.
    ("throng-wire", &["prost", "prost-types", "snap", "thiserror"]),
    ("throng-spatial", &["thiserror"]),
    // Hashes are BLAKE3; compressed buffers hold LZ4 blocks and a checksum; binary values are
    // base64 in JSON.
    ("throng-ddc", &["base64", "blake3", "crc32fast", "lz4_flex", "regex", "thiserror"]),
    // Packets are shared by everybody they are broadcast to (bytes); addresses need a keyed hasher
    // (hashbrown); encryption that is not our own (chacha20poly1305).
    ("throng-enet", &["bytes", "chacha20poly1305", "hashbrown", "thiserror"]),
    // A derive macro reads and writes Rust.
    ("throng-replication-derive", &["proc-macro2", "quote", "syn"]),
    // Small per-connection tables (hashbrown).
    ("throng-replication", &["glam", "hashbrown", "thiserror"]),
    // Ids are BLAKE3 of a counter; tables of names that callers choose need a keyed hasher
    // (hashbrown); snapshots are postcard (serde); free-form values are JSON; small lists of
    // members (smallvec); what is wrong in a rule set is named by its path (serde_path_to_error);
    // Glicko-2 (skillratings).
    (
        "throng-matcher",
        &[
            "blake3",
            "hashbrown",
            "postcard",
            "serde",
            "serde_json",
            "serde_path_to_error",
            "skillratings",
            "smallvec",
            "thiserror",
        ],
    ),
    // Records of the directory are JSON.
    ("throng-cluster", &["serde", "serde_json"]),
    // Schemas are compiled from .proto text (protox) and described by prost-reflect; state machines
    // and channel settings are JSON (serde); tables keyed by what peers choose need a keyed hasher
    // (hashbrown).
    (
        "throng-gateway",
        &[
            "bytes",
            "hashbrown",
            "miette",
            "prost",
            "prost-reflect",
            "prost-types",
            "protox",
            "serde",
            "serde_json",
            "slab",
            "smallvec",
            "snap",
            "thiserror",
        ],
    ),
];

/// Nothing that a core pulls in, however far down, may be one of these.
const NEVER_UNDER_A_CORE: &[&str] = &[
    "async-std",
    "axum",
    "getrandom",
    "hyper",
    "mio",
    "rand",
    "reqwest",
    "rustls",
    "socket2",
    "tokio",
    "ureq",
];

/// Crates whose code may contain `unsafe`, and why.
const UNSAFE_TABLE: &[(&str, &str)] = &[
    ("client-ffi", "the C interface: pointers come from C, under the contract that its header states"),
    ("enet-ffi", "the C interface of ENet: pointers come from C, under the contract of its header"),
    ("net", "epoll, eventfd and batched reads have no safe interface in libc"),
    ("platform", "the state of a socket's send queue has no safe interface"),
    ("load", "resource use of the measured process, and the bare writer that figures are compared with"),
    ("server", "signals and resource limits, and an allocator that counts in tests"),
    ("throng", "one setting of the allocator has no safe interface"),
];

/// Crates of which `cargo test -p CRATE` compiles nothing after `cargo test --workspace`: what they
/// are built with has the features of the whole workspace.
const BUILT_ALONE: &[&str] = &[
    "throng-conformance",
    "throng-ddc",
    "throng-enet",
    "throng-gateway",
    "throng-matcher",
    "throng-replication",
    "throng-spatial",
    "throng-stdx",
];

/// Import cycles inside a crate: the crate, and the files of one cycle. The list only ever gets
/// shorter.
const CYCLES: &[(&str, &str)] = &[
    ("client", "event options"),
    ("matcher-server", "engine frames hub policy service trials watch"),
    ("matcher-server", "http notify"),
    ("net", "enet::sessions event_loop handler inbox kcp::sessions listener stream"),
    ("replication", "bits class keyed wire"),
    ("replication", "connection grid interest server"),
    ("server", "ddc inspect matcher matchmaking monitor start"),
    ("server", "mailbox report"),
    ("throng", "all bench bench_ddc matcher replication replication_report"),
];

/// The layers of the matcher's core, the lowest first; a module counts with its children, but for
/// those that are listed themselves. A module imports lower layers and its own group, so that the
/// owners of the state never import each other.
const MATCHER_LAYERS: &[(&str, &[&str])] = &[
    (
        "base",
        &[
            "canonical config crc32c history id info json key notices outputs policy::verdict problem queue::check \
             queue::ruleset rating::systems record schema::v1 sides slab stats timers turn wall",
        ],
    ),
    ("owners", &["people", "team", "room", "queue", "matches", "rating", "policy", "keys"]),
    ("state", &["matcher"]),
    (
        "operations",
        &["backfill explain listing matches::service permuted_tests placing policy::service queue_service \
             rating::service room::changes room::leaving room::members room::world room_service schema seats \
             team::service ticket ticks transfer trial updates"],
    ),
    ("dispatch", &["dispatch"]),
    ("drive", &["drive"]),
];

/// Words that do not belong in the repository, and what to write instead. Spelled in two parts so
/// that this file passes.
const BANNED: &[(&str, &str, &str)] = &[
    ("/wor", "k/", "a path of one machine; use a path inside the repository"),
    ("/roo", "t/", "a path of one machine; use a path inside the repository"),
    ("/home", "/", "a path of one machine; use a path inside the repository"),
    ("index.", "crates.io", "a registry host; Cargo.lock names the sources"),
    ("static.", "crates.io", "a registry host; Cargo.lock names the sources"),
    ("registry.", "npmjs.org", "a registry host; the lock file names the sources"),
    ("to", "do!(", "finish it, or return an error that says what is missing"),
    ("unimple", "mented!(", "finish it, or return an error that says what is missing"),
    ("#[ig", "nore", "assert what happens today and say why, or delete the test"),
    ("FIX", "ME", "fix it, or write down the consequence"),
    ("XX", "X:", "fix it, or write down the consequence"),
    ("db", "g!(", "use tracing, or nothing"),
    ("Clau", "de", "the repository does not say how it was written"),
    ("Chat", "GPT", "the repository does not say how it was written"),
    ("language mo", "del", "the repository does not say how it was written"),
];

#[test]
fn every_crate_depends_only_on_what_the_table_allows() {
    let mut wrong = Vec::new();
    for package in METADATA.workspace_packages() {
        let name = package.name.as_str();
        let Some((_, code, tests)) = WORKSPACE_TABLE.iter().find(|(row, ..)| *row == name) else {
            wrong.push(format!("{name} has no row in WORKSPACE_TABLE; decide what it may use and add one"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.name.starts_with("throng")) {
            let target = dependency.name.as_str();
            let for_tests = dependency.kind.as_deref() == Some("dev");
            let allowed = code.contains(&target) || for_tests && tests.contains(&target);
            if !allowed {
                let place = if for_tests { "its tests" } else { "its code" };
                wrong.push(format!(
                    "{name} may not use {target} in {place} (ARCHITECTURE.md, Crate dependencies)"
                ));
            }
        }
    }
    expect_none(&wrong);
}

#[test]
fn cores_name_few_outside_crates_and_pull_in_no_io() {
    let mut wrong = Vec::new();
    for (core, allowed) in CORE_TABLE {
        let package = METADATA.workspace_packages().find(|p| p.name.as_str() == *core);
        let package = package.unwrap_or_else(|| panic!("{core} is not in the workspace"));
        let code = package.dependencies.iter().filter(|d| d.kind.as_deref() != Some("dev"));
        for dependency in code.filter(|d| !d.name.starts_with("throng-")) {
            if !allowed.contains(&dependency.name.as_str()) {
                wrong.push(format!("{core} may not use {}: a core needs a reason for each", dependency.name));
            }
        }
        for name in closure(&package.id) {
            if NEVER_UNDER_A_CORE.contains(&name) {
                wrong.push(format!(
                    "{core} pulls in {name}: cores have no I/O and no randomness of their own"
                ));
            }
        }
    }
    expect_none(&wrong);
}

#[test]
fn cores_forbid_unsafe_code_and_carry_the_lints() {
    let bans =
        ["std::time::Instant::now", "std::net::TcpStream", "std::thread::spawn", "std::collections::HashMap"];
    for (core, _) in CORE_TABLE {
        let folder = root().join("crates").join(core.trim_start_matches("throng-"));
        let lib = read(&folder.join("src/lib.rs"));
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{core}: src/lib.rs must forbid unsafe code");
        let lints = read(&folder.join("clippy.toml"));
        for banned in bans {
            assert!(lints.contains(banned), "{core}: clippy.toml must ban {banned}");
        }
    }
}

#[test]
fn crates_built_alone_have_the_features_of_the_workspace() {
    let whole = feature_lists(&["--workspace"]);
    let mut wrong = Vec::new();
    for name in BUILT_ALONE {
        for line in feature_lists(&["-p", name]).difference(&whole) {
            wrong.push(format!(
                "{name}: `{line}` has other features in the workspace; give it theirs in [workspace.dependencies], and name it \
                 among the dev-dependencies of {name}"
            ));
        }
    }
    expect_none(&wrong);
}

/// Packages that the tests of these packages are linked with, and the parser of their macros, each
/// with its features.
fn feature_lists(packages: &[&str]) -> BTreeSet<String> {
    let tree = |edges: &str| -> Vec<String> {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--edges", edges, "--prefix", "none", "--format", "{p} {f}"])
            .args(packages)
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("cargo prints text");
        text.lines().map(|line| line.trim_end_matches("(*)").trim_end().to_owned()).collect()
    };
    // Of what macros are built with, the tree of a workspace may show what programs are built with
    // instead.
    let mut lists: BTreeSet<String> = tree("normal,build,dev,no-proc-macro").into_iter().collect();
    lists.extend(tree("normal,build,dev").into_iter().filter(|line| line.starts_with("syn ")));
    lists
}

#[test]
fn no_crate_gains_an_import_cycle() {
    let sources: Vec<(PathBuf, String)> = rust_sources().collect();
    let mut found = BTreeSet::new();
    for crate_folder in std::fs::read_dir(root().join("crates")).expect("a folder of crates") {
        let folder = crate_folder.expect("a folder of crates").path();
        let name = folder.file_name().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        found.extend(
            cycles(&imports(&folder.join("src"), &sources)).into_iter().map(|cycle| (name.clone(), cycle)),
        );
    }
    let known: BTreeSet<_> =
        CYCLES.iter().map(|(name, files)| ((*name).to_owned(), (*files).to_owned())).collect();
    let mut wrong = Vec::new();
    for (name, files) in found.difference(&known) {
        wrong.push(format!("{name}: these import each other, move what they share below them: {files}"));
    }
    for (name, files) in known.difference(&found) {
        wrong.push(format!("{name}: no longer a cycle, take it off CYCLES: {files}"));
    }
    expect_none(&wrong);
}

/// The files of a crate as modules, and what each imports by `use crate::`. The root, which only
/// passes on, and modules below the importing one do not count; neither do the tests within a file.
fn imports(source: &Path, all: &[(PathBuf, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let texts: BTreeMap<String, &str> = all
        .iter()
        .filter_map(|(path, text)| {
            let file = path.strip_prefix(source).ok()?.with_extension("");
            let module = file.to_str().expect("a plain path").replace('/', "::");
            Some((module.trim_end_matches("::mod").to_owned(), text.as_str()))
        })
        .collect();
    let mut imports = BTreeMap::new();
    for (module, text) in &texts {
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code: String = code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
        let mut targets = BTreeSet::new();
        for statement in code.split("use crate::").skip(1) {
            for path in use_paths("", statement.split(';').next().unwrap_or_default()) {
                let mut target = path.as_str();
                while !target.is_empty() && !texts.contains_key(target) {
                    target = target.rsplit_once("::").map_or("", |(above, _)| above);
                }
                let is_below =
                    target.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with("::"));
                if !target.is_empty() && target != module && !is_below {
                    targets.insert(target.to_owned());
                }
            }
        }
        imports.insert(module.clone(), targets);
    }
    imports
}

/// The paths of a `use` tree: `a::{b, c::{self, d}}` has four.
fn use_paths(prefix: &str, tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        return vec![format!("{prefix}{}", tree.split(" as ").next().unwrap_or_default().trim())];
    };
    let prefix = format!("{prefix}{}", head.trim());
    let body = rest.trim_end().strip_suffix('}').expect("a tree ends with its brace");
    let (mut paths, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                paths.extend(use_paths(&prefix, &body[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    paths
}

/// `bench/peers` is a workspace of its own, too large to be compiled by the tests, so a rename in
/// this one would break it unnoticed.
#[test]
fn names_that_the_bench_of_the_peers_imports_exist() {
    let sources: Vec<_> = rust_sources().collect();
    let mut missing = Vec::new();
    let mut found = 0;
    for (path, text) in sources.iter().filter(|(path, _)| path.starts_with(root().join("bench/peers"))) {
        for statement in text.split("\nuse throng_").skip(1) {
            let paths = use_paths("", statement.split(';').next().unwrap_or_default());
            // A list may end with a comma.
            for name in paths.iter().filter(|path| !path.ends_with("::")) {
                let (package, name) = name.split_once("::").expect("an item of a crate");
                let folder = root().join("crates").join(package.replace('_', "-")).join("src");
                let item = name.rsplit("::").find(|part| *part != "self").expect("an item has a name");
                let forms = ["struct", "enum", "fn", "const", "mod", "trait", "type"]
                    .map(|kind| format!("pub {kind} {item}"));
                let is_there = |(path, text): &&(PathBuf, String)| {
                    let after = |form: &String| {
                        text.split(form.as_str()).skip(1).any(|rest| !rest.starts_with(char::is_alphanumeric))
                    };
                    path.starts_with(&folder) && forms.iter().any(after)
                };
                found += 1;
                if !sources.iter().any(|source| is_there(&source)) {
                    missing.push(format!("{}: throng_{package}::{name}", relative(path)));
                }
            }
        }
    }
    assert!(found > 5, "{found} imports");
    expect_none(&missing);
}

/// Sets of modules that all import each other, directly or not.
fn cycles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let reached = |from: &String| {
        let (mut seen, mut queue) = (BTreeSet::new(), vec![from]);
        while let Some(at) = queue.pop() {
            queue.extend(imports[at].iter().filter(|target| seen.insert((*target).clone())));
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|module| (module, reached(module))).collect();
    let mutual = |module: &String| -> Vec<&str> {
        all[module].iter().filter(|other| all[*other].contains(module)).map(String::as_str).collect()
    };
    imports.keys().map(mutual).filter(|cycle| cycle.len() > 1).map(|cycle| cycle.join(" ")).collect()
}

#[test]
fn the_modules_of_the_matcher_import_lower_layers_only() {
    let sources: Vec<(PathBuf, String)> = rust_sources().collect();
    let imports = imports(&root().join("crates/matcher/src"), &sources);
    let wrong = against_layers(MATCHER_LAYERS, &imports);
    expect_none(&wrong);
}

/// Imports that are not allowed, and modules in no layer.
fn against_layers(layers: &[(&str, &[&str])], imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut places = BTreeMap::new();
    for (layer, (_, groups)) in layers.iter().enumerate() {
        for (group, modules) in groups.iter().enumerate() {
            places.extend(modules.split_whitespace().map(|module| (module, (layer, group))));
        }
    }
    let place_of = |module: &str| {
        let mut at = module;
        loop {
            if let Some(place) = places.get(at) {
                return Some(*place);
            }
            at = at.rsplit_once("::")?.0;
        }
    };
    let mut wrong = Vec::new();
    for (module, targets) in imports.iter().filter(|(module, _)| *module != "lib") {
        let Some(own) = place_of(module) else {
            wrong.push(format!("{module} has no layer"));
            continue;
        };
        for target in targets {
            let place = place_of(target);
            if place.is_none_or(|place| place != own && place.0 >= own.0) {
                let name = place.map_or("no layer", |place| layers[place.0].0);
                wrong.push(format!("{module} ({}) may not import {target} ({name})", layers[own.0].0));
            }
        }
    }
    wrong
}

#[test]
fn imports_against_the_layers_are_found() {
    let layers: &[(&str, &[&str])] = &[("low", &["a b"]), ("owners", &["c", "d"]), ("high", &["d::e"])];
    let check = |module: &str, target: &str| {
        let imports = BTreeMap::from([(module.to_owned(), BTreeSet::from([target.to_owned()]))]);
        against_layers(layers, &imports)
    };
    for (module, target) in [("a", "b"), ("c", "a"), ("d::e", "c"), ("d", "d::f"), ("d::f", "b")] {
        assert!(check(module, target).is_empty(), "{module} {target}");
    }
    for (module, target) in [("a", "c"), ("c", "d"), ("d", "d::e"), ("x", "a"), ("a", "x")] {
        assert_eq!(check(module, target).len(), 1, "{module} {target}");
    }
}

#[test]
fn import_cycles_are_found() {
    assert_eq!(use_paths("", "a::{b, c::{self, d as e}}"), ["a::b", "a::c::self", "a::c::d"]);
    let imports = [("a", vec!["b"]), ("b", vec!["c"]), ("c", vec!["a", "d"]), ("d", vec![])];
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<BTreeSet<String>>();
    let imports = imports.into_iter().map(|(from, to)| (from.to_owned(), owned(to))).collect();
    assert_eq!(cycles(&imports), BTreeSet::from(["a b c".to_owned()]));
}

#[test]
fn the_fast_run_starts_no_process() {
    let script = read(&root().join("scripts/test"));
    let list = |name: &str| -> Vec<&str> {
        let (_, rest) =
            script.split_once(&format!("\n{name}=\"")).unwrap_or_else(|| panic!("{name} is gone"));
        rest.split('"').next().unwrap_or_default().split_whitespace().collect()
    };
    let (tests, packages) = (list("skip_tests"), list("skip_packages"));
    let mut wrong = Vec::new();
    for (path, text) in rust_sources() {
        let place = relative(&path);
        let Some((package, _)) = place.strip_prefix("crates/").and_then(|rest| rest.split_once("/tests/"))
        else {
            continue;
        };
        let starts = text.contains("#[test]") && text.contains("Command::new(");
        let module = format!("{}::", path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default());
        let is_left_out = packages.contains(&package)
            || tests.iter().any(|part| module.contains(part) || text.contains(&format!("fn {part}(")));
        if starts && !is_left_out {
            wrong.push(format!("{place} starts a process: leave `{module}` out of --fast in scripts/test"));
        }
    }
    expect_none(&wrong);
}

#[test]
fn panics_can_strike_the_cores_at_fifty_places() {
    let sources = rust_sources().filter(|(path, _)| relative(path).starts_with("crates/gateway/src/"));
    let places: usize = sources.map(|(_, text)| text.matches("failpoint!();").count()).sum();
    assert!(places >= 50, "{places} failpoints");
}

#[test]
fn unsafe_code_stays_where_it_has_a_reason() {
    // In two parts, so that this file passes.
    let [block, function] = [concat!("unsa", "fe {"), concat!("unsa", "fe fn")];
    let mut wrong = Vec::new();
    for (path, text) in rust_sources() {
        let place = relative(&path);
        let owner = place.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let uses = code.any(|line| line.contains(block) || line.contains(function));
        if uses && !UNSAFE_TABLE.iter().any(|(name, _)| *name == owner) {
            wrong.push(format!("{place}: contains unsafe code, and its crate is not in UNSAFE_TABLE"));
        }
    }
    expect_none(&wrong);
}

#[test]
fn every_dependency_has_a_licence_we_accept() {
    let deny = read(&root().join("deny.toml"));
    let list = deny.split_once("allow = [").and_then(|(_, rest)| rest.split_once(']'));
    let list = list.expect("deny.toml lists the licences").0;
    let allowed = list.split(',').map(|item| item.trim().trim_matches('"')).filter(|item| !item.is_empty());
    let allowed: BTreeSet<&str> = allowed.collect();
    let mut wrong = Vec::new();
    for package in &METADATA.packages {
        if !package.license.as_deref().is_some_and(|expression| licence_is_allowed(expression, &allowed)) {
            wrong.push(format!(
                "{} {}: deny.toml has no {:?}",
                package.name, package.version, package.license
            ));
        }
    }
    expect_none(&wrong);
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = BTreeSet::from(["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
    let check =
        |expression, expected| assert_eq!(licence_is_allowed(expression, &allowed), expected, "{expression}");
    check("MIT", true);
    check("GPL-3.0", false);
    check("GPL-3.0 OR MIT", true);
    check("MIT/GPL-3.0", true);
    check("MIT AND GPL-3.0", false);
    check("(GPL-3.0 OR MIT) AND Apache-2.0", true);
    check("(MIT OR Apache-2.0) AND GPL-3.0", false);
    check("Apache-2.0 WITH LLVM-exception", true);
    check("MIT WITH LLVM-exception", false);
    check("", false);
}

#[test]
fn no_word_that_does_not_belong() {
    let mut wrong = Vec::new();
    for (path, text) in texts() {
        for (number, line) in text.lines().enumerate() {
            for (start, end, advice) in BANNED {
                let mut rest = line;
                while let Some(at) = rest.find(start) {
                    rest = &rest[at + start.len()..];
                    if rest.starts_with(end) {
                        let place = relative(&path);
                        wrong.push(format!("{place}:{}: `{start}{end}`: {advice}", number + 1));
                    }
                }
            }
        }
    }
    expect_none(&wrong);
}

#[test]
fn make_targets_are_one_line_each() {
    let makefile = read(&root().join("Makefile"));
    let recipes: Vec<&str> = makefile.split("\n\n").filter(|part| part.contains("\n\t")).collect();
    assert!(recipes.len() >= 6, "the Makefile lost its targets");
    for recipe in recipes {
        let lines = recipe.lines().filter(|line| line.starts_with('\t')).count();
        assert_eq!(lines, 1, "move the work to scripts/:\n{recipe}");
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for target in links(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            if !file.exists() {
                wrong.push(format!("{}: {target}: no such file", relative(&path)));
            } else if !anchor.is_empty() && !headings(&read(&file)).contains(anchor) {
                wrong.push(format!("{}: {target}: no such heading", relative(&path)));
            }
        }
    }
    expect_none(&wrong);
}

#[test]
fn paths_in_documents_exist() {
    let tops = ["crates/", "docs/", "fuzz/", "scripts/", "fixtures/", "examples/", "deploy/", "bench/"];
    let mut wrong = Vec::new();
    for (path, text) in documents() {
        for code in code_spans(&text) {
            let is_path = tops.iter().any(|top| code.starts_with(top))
                && code.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            if is_path && !root().join(code).exists() {
                wrong.push(format!("{}: `{code}` does not exist", relative(&path)));
            }
        }
    }
    expect_none(&wrong);
}

static METADATA: LazyLock<Metadata> = LazyLock::new(|| {
    // Only this machine's platform: the others' crates need not be downloaded.
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let version = String::from_utf8(rustc.stdout).expect("rustc prints text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo writes its documented JSON")
});

/// The part of `cargo metadata` that is read here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev`, `build`, or nothing.
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

/// A package of the resolved graph.
#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

impl Metadata {
    fn workspace_packages(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }
}

/// Everything that `package` needs to run, its tests and build scripts aside.
fn closure(package: &str) -> BTreeSet<&'static str> {
    let nodes: BTreeMap<&str, _> = METADATA.resolve.nodes.iter().map(|node| (&*node.id, node)).collect();
    let names: BTreeMap<&str, _> =
        METADATA.packages.iter().map(|package| (&*package.id, &*package.name)).collect();
    let mut found = BTreeSet::new();
    let mut queue = VecDeque::from([package]);
    while let Some(id) = queue.pop_front() {
        for dependency in &nodes[id].deps {
            let runs = dependency.dep_kinds.iter().any(|info| info.kind.is_none());
            if runs && found.insert(names[&*dependency.pkg]) {
                queue.push_back(&dependency.pkg);
            }
        }
    }
    found
}

/// Evaluates an SPDX expression: `AND` binds closer than `OR`; a slash is the old spelling of `OR`.
fn licence_is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words: VecDeque<&str> = spaced.split_whitespace().collect();
    let result = any_of(&mut words, allowed);
    return result && words.is_empty();

    fn any_of(words: &mut VecDeque<&str>, allowed: &BTreeSet<&str>) -> bool {
        let mut result = all_of(words, allowed);
        while words.front() == Some(&"OR") {
            words.pop_front();
            result |= all_of(words, allowed);
        }
        result
    }

    fn all_of(words: &mut VecDeque<&str>, allowed: &BTreeSet<&str>) -> bool {
        let mut result = one(words, allowed);
        while words.front() == Some(&"AND") {
            words.pop_front();
            result &= one(words, allowed);
        }
        result
    }

    fn one(words: &mut VecDeque<&str>, allowed: &BTreeSet<&str>) -> bool {
        match words.pop_front() {
            Some("(") => {
                let result = any_of(words, allowed);
                words.pop_front() == Some(")") && result
            }
            Some(name) if words.front() == Some(&"WITH") => {
                words.pop_front();
                let exception = words.pop_front().unwrap_or_default();
                allowed.contains(format!("{name} WITH {exception}").as_str())
            }
            Some(name) => allowed.contains(name),
            None => false,
        }
    }
}

fn expect_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        here.ancestors().nth(2).expect("crates/throng lies two folders down").to_path_buf()
    });
    &ROOT
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every text file that is part of the repository, lock files aside.
fn texts() -> Vec<(PathBuf, String)> {
    // Ignored files, files of others, and the fuzz corpora, which are bytes.
    let skipped = [".git", "artifacts", "corpus", "dist", "node_modules", "replays", "throng-data"];
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the repository is readable") {
            let path = entry.expect("a folder of the repository is readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !skipped.contains(&name) && !name.starts_with("target") {
                    folders.push(path);
                }
            } else if name != "Cargo.lock" && name != ".git" {
                // Files that are not text are skipped.
                if let Ok(text) = std::fs::read_to_string(&path) {
                    found.push((path, text));
                }
            }
        }
    }
    found.sort();
    found
}

fn with_extension(extension: &str) -> impl Iterator<Item = (PathBuf, String)> {
    texts().into_iter().filter(move |(path, _)| path.extension().is_some_and(|found| found == extension))
}

fn documents() -> impl Iterator<Item = (PathBuf, String)> {
    with_extension("md")
}

fn rust_sources() -> impl Iterator<Item = (PathBuf, String)> {
    with_extension("rs")
}

/// The lines of a document outside fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Text between backticks on one line.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next())
}

/// Anchors of a document's headings, as code hosts make them: lower case, spaces to hyphens,
/// punctuation dropped.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = prose(text).filter(|line| line.starts_with('#'));
    titles
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}
