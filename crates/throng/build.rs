//! Tells the program how it was built: profile, features and, when `THRONG_COMMIT` is set, the
//! commit.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=THRONG_COMMIT");
    println!("cargo::rustc-env=THRONG_BUILD_PROFILE={}", profile());
    println!("cargo::rustc-env=THRONG_BUILD_FEATURES={}", features().join(","));
}

/// The profile by its own name. Cargo's `PROFILE` names only the built-in one that it inherits
/// from; the folder of the build, `target/PROFILE/build/PACKAGE/out`, has the name.
fn profile() -> String {
    let folder = std::env::var("OUT_DIR").unwrap_or_default();
    let name = Path::new(&folder).ancestors().nth(3).and_then(Path::file_name).and_then(|name| name.to_str());
    name.unwrap_or("unknown").to_owned()
}

fn features() -> Vec<String> {
    let names =
        std::env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_owned()));
    let mut names: Vec<String> = names
        .filter(|name| name != "DEFAULT")
        .map(|name| name.to_ascii_lowercase().replace('_', "-"))
        .collect();
    names.sort();
    names
}
