//! The header says what the library is: the same functions, numbers and structures, and a C
//! compiler takes it.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use throng_client_ffi::{ThrongCreate, ThrongEvent, ThrongOptions, ThrongSubscription};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(folder().join(path)).expect("a file of this crate")
}

/// The header without its comments.
fn header() -> String {
    let text = read("include/throng.h");
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| code + part.split_once("*/").expect("comments end").1)
}

#[test]
fn both_name_the_same_functions() {
    let header = header();
    let declared: BTreeSet<&str> = header
        .match_indices("(")
        .filter_map(|(at, _)| header[..at].split([' ', '*', '\n']).next_back())
        .filter(|name| name.starts_with("throng_"))
        .collect();
    let source = read("src/lib.rs");
    let exported: BTreeSet<&str> =
        source.split("extern \"C\" fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    assert_eq!(declared, exported);
    assert_eq!(
        source.matches("#[unsafe(no_mangle)]").count(),
        exported.len(),
        "each is exported by its name"
    );
    assert!(exported.len() > 10);
}

#[test]
fn both_give_numbers_the_same_names() {
    let header = header();
    let words: Vec<&str> = header.split_ascii_whitespace().collect();
    let source = read("src/abi.rs");
    let mut checked = 0;
    for line in source.lines().filter_map(|line| line.strip_prefix("pub const ")) {
        let (name, rest) = line.split_once(": ").expect("a constant has a type");
        let value = rest.split_once("= ").expect("and a value").1.trim_end_matches(';');
        let found =
            words.windows(3).any(|w| w[0] == name && w[1] == "=" && w[2].trim_end_matches(',') == value)
                || words.windows(3).any(|w| w[0] == "#define" && w[1] == name && w[2] == value);
        assert!(found, "the header lacks {name} = {value}");
        checked += 1;
    }
    assert!(checked > 25, "{checked}");
}

/// Runs the C compiler; panics with what it says.
fn cc(arguments: &[&str], source: &Path, out: &Path) {
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(folder().join("include"))
        .args(arguments)
        .arg(source)
        .arg("-o")
        .arg(out)
        .output()
        .expect("cc runs; scripts/setup installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

macro_rules! layout {
    ($($name:literal $type:ident { $($field:ident),* })*) => {
        &[$(
            (format!("sizeof({})", $name), size_of::<$type>()),
            $((format!("offsetof({}, {})", $name, stringify!($field)), offset_of!($type, $field)),)*
        )*]
    };
}

#[test]
fn both_lay_structures_out_alike() {
    let expected: &[(String, usize)] = layout! {
        "throng_options" ThrongOptions { size, endpoint, pit, login_token, ca_pem, kind, reconnects, world }
        "throng_subscription" ThrongSubscription { size, access, interval_ms, receive_own, skip_first }
        "throng_create" ThrongCreate {
            size, channel_type, metadata, data_type, data, data_size, list_size_limit, truncate_top, replace_list,
            check_removable, subscription
        }
        "throng_event" ThrongEvent {
            kind, request, channel, channel_type, conn, msg_type, broadcast, code, flag, text, data, data_size
        }
    };
    let mut program = "#include <throng.h>\n".to_owned();
    for (what, value) in expected {
        program.push_str(&format!("_Static_assert({what} == {value}, \"{what}\");\n"));
    }
    let dir = tempfile::tempdir().expect("a folder for the test");
    let source = dir.path().join("layout.c");
    std::fs::write(&source, program).expect("it can be written");
    cc(&["-c"], &source, &dir.path().join("layout.o"));
}

#[test]
fn the_sample_is_short_and_compiles_without_warnings() {
    let sample = folder().join("sample/chat.c");
    assert!(read("sample/chat.c").lines().count() < 100);
    let dir = tempfile::tempdir().expect("a folder for the test");
    cc(&["-c"], &sample, &dir.path().join("chat.o"));
}
