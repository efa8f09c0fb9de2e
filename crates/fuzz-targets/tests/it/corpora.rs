//! Replays the fuzz corpora, and small changes of them, through the bodies of the fuzz targets.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use throng_fuzz_targets::{TARGETS, Target, change};
use throng_stdx::Rng;

/// Changed inputs per target: a second or two of `cargo test`, not a substitute for `make fuzz`.
const CHANGED_INPUTS: u64 = 4_000;

#[test]
fn every_target_replays_its_corpus() {
    for target in TARGETS {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "fuzz/corpus/{} has no seed", target.name);
        for (path, bytes) in inputs {
            run(target, &bytes, &path.display().to_string());
        }
    }
}

#[test]
fn every_target_withstands_changed_inputs() {
    for target in TARGETS {
        let inputs: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, bytes)| bytes).collect();
        for seed in 0..CHANGED_INPUTS {
            let mut rng = Rng::new(seed);
            let bytes = change(&inputs, &mut rng);
            run(target, &bytes, &format!("seed {seed}"));
        }
    }
}

#[test]
fn every_target_has_a_binary_and_every_binary_a_target() {
    let names: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len(), "two targets have one name");
    let binaries = list(&fuzz().join("fuzz_targets"));
    let stems =
        binaries.iter().filter_map(|path| path.file_stem()).map(|stem| stem.to_string_lossy().into_owned());
    assert_eq!(stems.collect::<BTreeSet<_>>(), names);
    let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).expect("fuzz/Cargo.toml is readable");
    for name in names {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml has no binary {name}");
    }
}

/// The seeds of the matcher's targets follow its catalogue: `THRONG_UPDATE=1` writes them anew.
#[test]
fn matcher_seeds_are_todays() {
    for (name, bytes) in throng_fuzz_targets::matcher_seeds() {
        let path = fuzz().join("corpus").join(name).join("today");
        if std::env::var_os("THRONG_UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().expect("it lies in a folder"))
                .expect("the corpus is writable");
            std::fs::write(&path, &bytes).expect("the corpus is writable");
        }
        assert!(std::fs::read(&path).is_ok_and(|known| known == bytes), "{} is old", path.display());
    }
}

/// The seeds of the replication targets are a session of today's library: `THRONG_UPDATE=1` writes
/// them anew.
#[test]
fn replication_seeds_are_todays() {
    for (name, bytes) in throng_fuzz_targets::replication_seeds() {
        let path = fuzz().join("corpus").join(name).join("session");
        if std::env::var_os("THRONG_UPDATE").is_some() {
            std::fs::write(&path, &bytes).expect("the corpus is writable");
        }
        assert!(std::fs::read(&path).is_ok_and(|known| known == bytes), "{} is old", path.display());
    }
}

/// Runs one input; a panic names it.
fn run(target: &Target, bytes: &[u8], origin: &str) {
    let result = std::panic::catch_unwind(|| (target.run)(bytes));
    assert!(result.is_ok(), "target {} failed on {origin}: {bytes:02x?}", target.name);
}

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = fuzz().join("corpus").join(target.name);
    let paths = if folder.exists() { list(&folder) } else { Vec::new() };
    paths
        .into_iter()
        .map(|path| {
            let bytes = std::fs::read(&path).expect("a corpus file is readable");
            (path, bytes)
        })
        .collect()
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder is readable").path()).collect();
    paths.sort();
    paths
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}
