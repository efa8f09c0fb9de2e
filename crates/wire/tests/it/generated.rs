//! The checked-in Rust code of the protocol's messages is what the proto files say.

#![allow(clippy::disallowed_methods, reason = "the core has no files; this test reads its sources")]

use std::{fs, path::Path};

/// Files under `src/generated`, one per protobuf package.
const GENERATED: [&str; 3] = ["channeldpb.rs", "replaypb.rs", "unrealpb.rs"];

/// Building the crate must not need the generator, so its output is checked in; this test keeps it
/// honest. `THRONG_UPDATE=1 cargo test -p throng-wire --test it generated::` rewrites it after a
/// change to a proto file.
#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["channeld.proto", "unity_common.proto", "unreal_common.proto", "replay.proto"];
    let descriptors = protox::compile(files, [root.join("proto")]).expect("the proto files compile");
    let out = tempdir();
    prost_build::Config::new()
        .btree_map(["."])
        .out_dir(&out)
        .compile_fds(descriptors)
        .expect("the descriptors translate");

    for name in GENERATED {
        let fresh = fs::read_to_string(out.join(name)).expect("the generator wrote one file per package");
        let kept = root.join("src/generated").join(name);
        if std::env::var_os("THRONG_UPDATE").is_some() {
            fs::write(&kept, &fresh).expect("the source tree is writable");
        }
        let current = fs::read_to_string(&kept).unwrap_or_default();
        assert!(current == fresh, "{name} is stale; run this test with THRONG_UPDATE=1");
    }
    fs::remove_dir_all(&out).expect("the directory is ours");
}

/// A directory of this process below cargo's own temporary directory.
fn tempdir() -> std::path::PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("generated-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("cargo's temporary directory is writable");
    dir
}
