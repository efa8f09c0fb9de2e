//! `throng demo --cluster N`: a NATS server, nodes, and games of tag in worlds that move when a
//! node is drained or lost.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_load::cluster::{Cluster, ClusterOptions, Node, rows};
use throng_load::{Transport, interrupt};

use crate::output::{complain, print, program};
use crate::tag::Game;

/// Worlds of the demo.
const WORLDS: usize = 6;
/// Pause between two looks at the directory.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn run(nodes: usize, players: usize, shards: Option<u16>, duration: Option<Duration>) -> ExitCode {
    interrupt::catch();
    match play(nodes, players, shards, duration) {
        Ok(()) => ExitCode::SUCCESS,
        // Leaving before everything is there is the user's right.
        Err(_) if interrupt::requested() => ExitCode::SUCCESS,
        Err(why) => {
            complain(&format!("error: {why}"));
            ExitCode::from(2)
        }
    }
}

fn play(nodes: usize, players: usize, shards: Option<u16>, duration: Option<Duration>) -> Result<(), String> {
    let worlds: Vec<String> = (1..=WORLDS).map(|number| format!("arena-{number}")).collect();
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let options = ClusterOptions {
        program,
        nodes,
        // The games open theirs, when all nodes are there to choose from.
        worlds: Vec::new(),
        schema: ("tag.proto", throng_tag::SCHEMA),
        transport: Transport::WebSocket,
        shards: shards.or(Some(1)),
        class: "create = true\nconnections_max = 10000\nworld_idle_s = 3600",
        flags: vec!["--console-token".to_owned()],
        // Its nodes are there to be killed.
        watched: false,
    };
    let cluster = Cluster::start(&options).map_err(|error| error.to_string())?;
    let simulated = players.div_ceil(WORLDS);
    let game = Game::over(&cluster.nodes, &worlds, simulated)?;
    print(&introduction(&cluster.nodes, simulated, game.page()));
    let (begun, mut seen) = (Instant::now(), Seen::default());
    while !interrupt::requested() && duration.is_none_or(|duration| begun.elapsed() < duration) {
        // Without an answer of the bus nothing is known; the next look may have one.
        for line in cluster.status().map(|status| seen.changes(&status)).unwrap_or_default() {
            print(&format!("{:>8.1} s  {line}\n", begun.elapsed().as_secs_f64()));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn introduction(nodes: &[Node], simulated: usize, page: std::net::SocketAddr) -> String {
    let line = |what: &str, value: String| format!("  {what:<14} {value}\n");
    let throng = program();
    // Behind the #, so that no server, log or proxy ever sees it.
    let token = |node: &Node| node.console().map(|token| format!("#token={token}")).unwrap_or_default();
    let consoles: String = nodes
        .iter()
        .map(|node| {
            let pid = node.pid().unwrap_or_default();
            line(&node.name, format!("process {pid}   http://{}/console/{}", node.http, token(node)))
        })
        .collect();
    let (first, victim) = (&nodes[0], &nodes[nodes.len() / 2]);
    let (config, own) = (first.config.display(), victim.config.display());
    let pid = victim.pid().unwrap_or_default();
    [
        format!(
            "Throng demo: {} nodes of a cluster, {WORLDS} worlds with {simulated} simulated players of tag each\n\n",
            nodes.len()
        ),
        line("play", format!("http://{page}/?world=arena-1   (arena-1 to arena-{WORLDS})")),
        consoles,
        line("homes", format!("{throng} cluster worlds -c {config}")),
        line("drain", format!("kill {pid}   (it moves its worlds, and their players follow at once)")),
        line("kill", format!("kill -9 {pid}   (they follow after 15 to 20 s)")),
        line("start again", format!("{throng} up -c {own}   (sooner after a kill: they return)")),
        line("watch", "the page, and the changes below".to_owned()),
        line("stop", "Ctrl-C".to_owned()),
        "\n".to_owned(),
    ]
    .concat()
}

/// The directory as it was last seen.
#[derive(Default)]
struct Seen {
    /// States of nodes.
    nodes: BTreeMap<String, String>,
    /// Homes of worlds that are served.
    homes: BTreeMap<String, (String, u64)>,
}

impl Seen {
    /// A line for each node and each world that has changed. Remembers them.
    fn changes(&mut self, status: &Value) -> Vec<String> {
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let mut lines = Vec::new();
        for node in rows(status, "nodes") {
            let (name, state) = (text(node, "name"), text(node, "state"));
            if self.nodes.insert(name.clone(), state.clone()).as_ref() != Some(&state) {
                lines.push(format!("{name} is {state}"));
            }
        }
        for world in rows(status, "worlds").filter(|world| world["state"] == "serving") {
            let (name, home) = (text(world, "name"), text(world, "home"));
            let now = (home.clone(), world["epoch"].as_u64().unwrap_or_default());
            match self.homes.insert(name.clone(), now.clone()) {
                Some(before) if before == now => {}
                Some((before, _)) if before == home => lines.push(format!("{name} serves again at {home}")),
                Some((before, _)) => lines.push(format!("{name} has moved from {before} to {home}")),
                None => lines.push(format!("{name} is at {home}")),
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_shown_for_each_change() {
        let status = |state: &str, home: &str, epoch: u64, world: &str| {
            json!({
                "nodes": [{ "name": "n2", "state": state }],
                "worlds": [{ "name": "arena-1", "state": world, "home": home, "epoch": epoch }],
            })
        };
        let mut seen = Seen::default();
        for (state, home, epoch, world, lines) in [
            ("up", "n2", 1, "serving", &["n2 is up", "arena-1 is at n2"][..]),
            ("up", "n2", 1, "serving", &[]),
            ("lost", "n2", 1, "serving", &["n2 is lost"]),
            ("lost", "n1", 2, "assigned", &[]),
            ("lost", "n1", 2, "serving", &["arena-1 has moved from n2 to n1"]),
            ("lost", "n1", 3, "serving", &["arena-1 serves again at n1"]),
        ] {
            assert_eq!(seen.changes(&status(state, home, epoch, world)), lines);
        }
    }
}
