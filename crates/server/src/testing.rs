//! Help for tests of generated files.

use std::path::Path;

/// Compares a checked-in file (path from the repository root) with what the code generates;
/// `THRONG_UPDATE=1` rewrites it instead.
pub(crate) fn check_generated(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("THRONG_UPDATE").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, expected).unwrap();
    }
    let actual = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(actual == expected, "{path} is stale; run the test again with THRONG_UPDATE=1");
}
