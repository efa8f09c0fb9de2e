//! A browser logs in to a gateway with the frame that the reference's JavaScript client sends, and
//! sees why its connection ends. Skipped where no Chromium is installed (`scripts/setup` installs
//! it).

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use throng_net::{
    Accept, Clock, CloseCause, ConnKey, EventLoop, Flow, Handler, ListenerKey, ListenerSpec, Transport,
};
use throng_server::{Service, config::Loader, start};
use throng_wire::{FrameReader, MessagePack, channeldpb as pb, fields};

use crate::common::{Dial, PATIENCE, Peer};

use crate::peers;

/// `auth_request` of the recorded vectors, with the tag of the old form that the JavaScript client
/// writes.
const LOGIN: &str = "43484e1b000a19180120012a130a08746573745f7069741207746573745f6c74";

/// Sends the login to the gateway and what it answers to the test.
const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><title>gateway test</title><script>
const bytes = hex => Uint8Array.from(hex.match(/../g), pair => parseInt(pair, 16));
const report = new WebSocket("ws://TEST/");
report.onopen = () => {
  const game = new WebSocket("ws://GATEWAY/");
  game.binaryType = "arraybuffer";
  game.onopen = () => game.send(bytes("LOGIN"));
  game.onmessage = event => report.send(event.data);
  game.onclose = event => report.send(new Uint8Array([0xFE, event.code >> 8, event.code & 0xFF]));
};
</script>"#;

/// Collects what the page reports.
#[derive(Default)]
struct Reports(Vec<u8>);

impl Handler for Reports {
    fn accepted(&mut self, _: ListenerKey, _: ConnKey, _: SocketAddr) -> Accept {
        Accept::Keep
    }
    fn data(&mut self, _: ConnKey, bytes: &[u8]) -> Flow {
        self.0.extend_from_slice(bytes);
        Flow::Continue
    }
    fn writable(&mut self, _: ConnKey) {}
    fn closed(&mut self, _: ConnKey, _: CloseCause) {}
    fn woken(&mut self) {}
}

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

/// Result and connection id of the answer to the login, once it is there.
fn login_result(frames: &[u8]) -> Option<(u64, u64)> {
    let mut answer = None;
    FrameReader::default()
        .feed(frames, &mut |packet| {
            for message in packet.messages().filter(|message| message.msg_type == 1) {
                assert_eq!((message.channel_id, message.stub_id), (0, 1));
                // AuthResultMessage: result 1, connId 2; absent fields are zero.
                let (mut result, mut conn_id) = (0, 0);
                for field in fields(message.body) {
                    let field = field.expect("the gateway writes valid messages");
                    match field.number {
                        1 => result = field.scalar,
                        2 => conn_id = field.scalar,
                        _ => {}
                    }
                }
                answer = Some((result, conn_id));
            }
            ControlFlow::Continue(())
        })
        .expect("the gateway writes frames");
    answer
}

#[test]
fn a_page_in_a_browser_logs_in_and_sees_the_code_of_a_kick() {
    let Some(program) = chromium() else { return peers::skip("chromium") };
    let mut loader = Loader::new();
    for (key, value) in [
        ("gateway.servers.addr", "127.0.0.1:0"),
        ("gateway.clients.addr", "127.0.0.1:0"),
        ("gateway.clients.transport", "ws"),
        ("gateway.dev", "true"),
        ("http.addr", "127.0.0.1:0"),
    ] {
        loader = loader.flag("test", key, value);
    }
    let running = start(loader.load().unwrap()).unwrap();
    let gateway = running.address(Service::Clients).unwrap();
    let (mut event_loop, clock, mut reports) =
        (EventLoop::new().unwrap(), Clock::start(), Reports::default());
    let spec = ListenerSpec::new("127.0.0.1:0".parse().unwrap(), Transport::WebSocket);
    let (_, addr) = event_loop.listen(spec).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let text = PAGE
        .replace("GATEWAY", &gateway.to_string())
        .replace("TEST", &addr.to_string())
        .replace("LOGIN", LOGIN);
    std::fs::write(&page, text).unwrap();
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
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let browser = Browser(child);

    let started = Instant::now();
    let (result, conn_id) = loop {
        if let Some(answer) = login_result(&reports.0) {
            break answer;
        }
        assert!(started.elapsed() < PATIENCE, "no answer reached the page; it got {} bytes", reports.0.len());
        let deadline = clock.now() + Duration::from_millis(10);
        event_loop.poll(&clock, Some(deadline), &mut reports).unwrap();
    };
    assert_eq!(result, 0, "the login is not successful");
    assert!(conn_id > 0);

    // A game server kicks the player, and the page sees why its connection has ended.
    let servers = running.address(Service::Servers).unwrap();
    let mut server = Peer::login(servers, &Dial::Tcp, "server", "");
    let kick = pb::DisconnectMessage { conn_id: u32::try_from(conn_id).unwrap() };
    let head = MessagePack { msg_type: pb::MessageType::Disconnect as u32, ..MessagePack::default() };
    server.send(head, &prost::Message::encode_to_vec(&kick));
    while !reports.0.ends_with(&[0xFE, 0x0F, 0xA1]) {
        assert!(started.elapsed() < PATIENCE, "the page saw {:?}", reports.0);
        let deadline = clock.now() + Duration::from_millis(10);
        event_loop.poll(&clock, Some(deadline), &mut reports).unwrap();
    }
    drop(browser);
    running.shutdown();
}
