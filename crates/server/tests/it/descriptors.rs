//! A gateway whose file descriptors run short.

#![allow(clippy::print_stdout)] // the child tells its addresses

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};

use throng_wire::channeldpb as pb;
use throng_wire::channeldpb::auth_result_message::AuthResult;

use crate::common::{Dial, PATIENCE, Peer, clients, gateway, servers};

const CHILD: &str = "THRONG_SERVER_DESCRIPTORS_CHILD";

/// Serves until its standard input ends.
fn serve(keys: &[(&str, &str)]) {
    // Strangers are not closed for their silence, so that only the shortage closes them. The state
    // machine lets players list channels, which is how they show that they are connected.
    let base = [
        ("server.shards", "2"),
        ("gateway.limits.auth_timeout_ms", "0"),
        ("gateway.clients.state_machine", "client_authoratative"),
    ];
    let running = gateway(&[&base[..], keys].concat());
    let http = running.address(throng_server::Service::Admin).unwrap();
    // The test harness prints its own lines around this one.
    println!("\naddr {} {} {http}", clients(&running), servers(&running));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    running.shutdown();
}

/// The body of a page, if it is served with status 200.
fn get(addr: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

fn is_answered(peer: &mut Peer) {
    let list = pb::ListChannelMessage::default();
    let _: pb::ListChannelResultMessage = peer.ask(0, pb::MessageType::ListChannel, &list);
}

/// A test of this file in a process of its own with few descriptors, which serves.
struct Served {
    child: Child,
    /// Kept to the end: the child's harness writes to it.
    _output: Lines<BufReader<ChildStdout>>,
    clients: SocketAddr,
    servers: SocketAddr,
    http: SocketAddr,
}

impl Served {
    fn start(name: &str) -> Served {
        throng_net::raise_descriptor_limit();
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(r#"ulimit -n 256 && exec "$0" --exact --nocapture "$1""#)
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = output.find_map(|line| Some(line.unwrap().strip_prefix("addr ")?.to_owned())).unwrap();
        let addrs: Vec<SocketAddr> = line.split(' ').map(|addr| addr.parse().unwrap()).collect();
        let [clients, servers, http] = addrs[..] else { panic!("{line}") };
        Served { child, _output: output, clients, servers, http }
    }

    fn gave_way(&self) -> f64 {
        let metrics = get(self.http, "/metrics").unwrap();
        let gave_way = metrics.lines().filter(|line| line.starts_with("throng_net_gave_way_total"));
        gave_way.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn strangers_give_way_to_newcomers_and_never_players_or_health() {
    if std::env::var_os(CHILD).is_some() {
        return serve(&[]);
    }
    let served = Served::start("descriptors::strangers_give_way_to_newcomers_and_never_players_or_health");
    let (clients, servers, http) = (served.clients, served.servers, served.http);

    let mut players: Vec<Peer> =
        (0..10).map(|index| Peer::login(clients, &Dial::Tcp, &format!("player {index}"), "")).collect();
    let mut strangers = Vec::new();
    for index in 0..600 {
        strangers.push(TcpStream::connect(clients).unwrap());
        if index % 100 == 99 {
            assert!(get(http, "/healthz").is_some(), "after {index} strangers");
        }
    }
    // A player gets in although strangers hold every place, and so does a game server.
    players.push(Peer::login(clients, &Dial::Tcp, "late player", ""));
    let mut server = Peer::login(servers, &Dial::Tcp, "server", "");
    is_answered(&mut server);
    players.iter_mut().for_each(is_answered);
    let sum = served.gave_way();
    assert!(sum >= 300.0, "{sum} gave way: 256 descriptors hold fewer than 300 connections");
    served.end();
}

#[test]
fn strangers_that_were_in_another_world_give_way_as_well() {
    if std::env::var_os(CHILD).is_some() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = folder.path().join("tokens");
        std::fs::write(&tokens, "player secret\n").unwrap();
        return serve(&[
            ("gateway.worlds", "hub"),
            ("gateway.auth.kind", "tokens"),
            ("gateway.auth.tokens_file", tokens.to_str().unwrap()),
        ]);
    }
    let served = Served::start("descriptors::strangers_that_were_in_another_world_give_way_as_well");
    let mut strangers = Vec::new();
    for index in 0..40 {
        let mut stranger = Peer::connect(served.clients, &Dial::Tcp);
        let auth = pb::AuthMessage {
            player_identifier_token: format!("guess {index}"),
            login_token: "wrong".into(),
            // Of the world with the number 1, where it resumes nothing.
            resume_token: Some([&[9; 24][..], &1_u32.to_le_bytes()].concat()),
            world: None,
        };
        let result: pb::AuthResultMessage = stranger.ask(0, pb::MessageType::Auth, &auth);
        assert_eq!(result.result, AuthResult::InvalidPit as i32);
        strangers.push(stranger);
    }
    // Half of them is enough: several may have to give way to one player.
    let mut players = Vec::new();
    while served.gave_way() < 20.0 {
        players.push(Peer::login(served.clients, &Dial::Tcp, "player", "secret"));
    }
    players.iter_mut().for_each(is_answered);
    served.end();
}
