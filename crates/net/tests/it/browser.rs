//! A real browser as the WebSocket peer. Skipped where no Chromium is installed (`scripts/setup`
//! installs it).

use crate::{common, peers};

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use common::*;
use throng_net::*;

/// A login as the reference's JavaScript client frames it, and the gateway's answer: `auth_request`
/// and `auth_result_ok` of the recorded vectors.
const LOGIN: &str = "43484e1b000a19180120012a130a08746573745f7069741207746573745f6c74";
const ANSWER: &str = "4348000a000a08180120012a021002";

/// Logs in, sends a text message, and reports on a second connection what it was told. Then tries a
/// listener that does not allow pages like this one.
const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><title>gateway test</title><script>
const bytes = hex => Uint8Array.from(hex.match(/../g), pair => parseInt(pair, 16));
const hex = buffer => Array.from(new Uint8Array(buffer), byte => byte.toString(16).padStart(2, "0")).join("");
const connect = (url, on) => { const s = new WebSocket(url); s.binaryType = "arraybuffer"; Object.assign(s, on(s)); };
const seen = { messages: [] };
const report = () => connect("ws://OPEN/report", s => ({
  onopen: () => s.send(new TextEncoder().encode(JSON.stringify(seen) + "\n")),
}));
const forbidden = () => connect("ws://CLOSED/", s => ({
  onopen: () => { seen.forbidden = "opened"; report(); },
  onclose: event => { seen.forbidden = event.code; report(); },
}));
connect("ws://OPEN/game?room=1", s => ({
  onopen: () => s.send(bytes("LOGIN")),
  onmessage: event => { seen.messages.push(hex(event.data)); s.send("this is text"); },
  onclose: event => { seen.code = event.code; seen.reason = event.reason; seen.clean = event.wasClean; forbidden(); },
}));
</script>"#;

struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn chromium() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    })
}

fn browse(program: &str, profile: &Path, page: &Path) -> Browser {
    let child = Command::new(program)
        // The sandbox needs rights that containers and root do not have; the page is ours.
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the browser starts, as it did for its version");
    Browser(child)
}

#[test]
fn a_browser_logs_in_and_is_told_why_text_is_refused() {
    let Some(program) = chromium() else { return peers::skip("chromium") };
    let mut node = Node::new();
    let open = node.listen(Transport::WebSocket);
    let policy = WsPolicy { origins: vec!["https://play.example.org".into()], ..WsPolicy::default() };
    let spec = ListenerSpec::new(loopback(), Transport::WebSocket);
    let closed = node.listen_with(ListenerSpec { ws: Arc::new(policy), ..spec });

    let dir = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("browser-{}", open.port()));
    std::fs::create_dir_all(&dir).unwrap();
    let page = dir.join("page.html");
    let address = |addr: SocketAddr| addr.to_string();
    let text =
        PAGE.replace("OPEN", &address(open)).replace("CLOSED", &address(closed)).replace("LOGIN", LOGIN);
    std::fs::write(&page, text).unwrap();
    let browser = browse(program, &dir.join("profile"), &page);

    let started = Instant::now();
    let until = |node: &mut Node, what: &str, done: &dyn Fn(&Node) -> bool| {
        while !done(node) {
            assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
            node.step(10);
        }
    };
    until(&mut node, "the page connects", &|node| !node.seen.accepted.is_empty());
    let game = node.seen.accepted[0].1;
    until(&mut node, "the login arrives", &|node| node.received(game).len() * 2 >= LOGIN.len());
    assert_eq!(hex(node.received(game)), LOGIN);
    let mut answer = Vec::new();
    ws::write_message(&mut answer, &unhex(ANSWER), None);
    node.write_all(game, &answer);
    until(&mut node, "the text message is refused", &|node| node.seen.closed.contains_key(&game));
    assert_eq!(node.seen.closed[&game].name(), "ws_text");
    until(&mut node, "the page reports", &|node| {
        node.seen.accepted.get(1).is_some_and(|(_, key)| node.received(*key).ends_with(b"\n"))
    });
    let report = String::from_utf8(node.received(node.seen.accepted[1].1).to_vec()).unwrap();
    assert_eq!(
        report.trim(),
        format!(
            r#"{{"messages":["{ANSWER}"],"code":1003,"reason":"text messages are not supported, send binary","clean":true,"forbidden":1006}}"#
        )
    );
    assert_eq!(node.net.stats().handshakes_failed, 1, "the page's origin is refused on the other listener");
    drop(browser);
    let _ = std::fs::remove_dir_all(&dir);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
