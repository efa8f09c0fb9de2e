//! Throng and python3-enet over loopback, as in `interop.rs`. Without the module the tests say so
//! and pass.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test that drives the core with a real socket and clock"
)]

use crate::{peer, peers};

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use peer::Program;

#[test]
fn our_client_talks_to_a_server_in_python() {
    let Some(program) = &*PEER else { return peers::skip("python3-enet") };
    peer::our_client_talks_to_their_server(program);
}

#[test]
fn a_client_in_python_talks_to_our_server() {
    let Some(program) = &*PEER else { return peers::skip("python3-enet") };
    peer::their_client_talks_to_our_server(program);
}

static PEER: LazyLock<Option<Program>> = LazyLock::new(|| {
    // Debian's module belongs to Debian's Python, whichever other comes first on the path.
    let found = ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        let mut probe = Command::new(python);
        probe.args(["-c", "import enet"]).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    });
    let python = found?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/peer/peer.py");
    Some(vec![python.to_owned(), script.to_str().expect("a plain path").to_owned()])
});
