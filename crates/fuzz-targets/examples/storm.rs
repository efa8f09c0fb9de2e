//! Changed corpus inputs for one target, many times and without libFuzzer: `cargo run --release -p
//! throng-fuzz-targets --example storm -- replication_client 1000000 [seed]`.
//!
//! Inputs that were refused late or applied are not told apart: coverage is libFuzzer's business,
//! numbers are this one's. An input with a finding is written to a file, to become a part of the
//! corpus.
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::path::Path;

use throng_fuzz_targets::{TARGETS, change};
use throng_stdx::Rng;

/// Writes its input to a file when it is dropped by a panic.
struct Kept<'a>(&'a [u8]);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = std::env::temp_dir().join(format!("finding-{}", std::process::id()));
            println!("the input is in {}: {:?}", path.display(), std::fs::write(&path, self.0));
        }
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let count: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(1_000_000);
    let mut rng = Rng::new(words.next().and_then(|word| word.parse().ok()).unwrap_or(1));
    let target = TARGETS.iter().find(|target| target.name == name).expect("the name of a target");
    let folder = Path::new("fuzz/corpus").join(target.name);
    let entries = std::fs::read_dir(folder).expect("run it in the repository's root");
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let mut inputs: Vec<Vec<u8>> = paths.iter().filter_map(|path| std::fs::read(path).ok()).collect();
    let seeds = inputs.len();
    for at in 0..count {
        let bytes = change(&inputs, &mut rng);
        let kept = Kept(&bytes);
        (target.run)(&bytes);
        drop(kept);
        // Changes of changes, so that inputs wander away from where they began.
        if at % 16 == 0 && bytes.len() < 600 {
            let place = if inputs.len() < 256 {
                inputs.len()
            } else {
                seeds + rng.below(256 - seeds as u64) as usize
            };
            if place == inputs.len() {
                inputs.push(bytes);
            } else {
                inputs[place] = bytes;
            }
        }
    }
    println!("{name}: {count} executions without a finding");
}
