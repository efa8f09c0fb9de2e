//! `throng cluster`: the cluster of the configured node, over its bus.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;
use throng_server::cluster::tool;
use throng_server::config::{Loader, Settings};

use crate::keys;
use crate::output::{complain, print_result};

const EXAMPLES: &str = "\
Examples:
  throng cluster init -c node.toml           once, before the first node starts
  throng cluster check -c node.toml          what this machine can do on the bus
  throng cluster status -c node.toml         nodes, and worlds by state
  throng cluster where duel-7 -c node.toml   the node that serves a world, and its addresses

They read the section [cluster] of a node's configuration, and no node needs to run.";

/// `throng cluster`.
pub(crate) fn command() -> Command {
    let config = Arg::new("config")
        .short('c')
        .long("config")
        .value_name("FILE")
        .help("Configuration of a node (TOML) [default: throng.toml if it exists]")
        .env("THRONG_CONFIG")
        .hide_env(true);
    let act = |name: &'static str, about: &'static str| Command::new(name).about(about).arg(config.clone());
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("As JSON");
    let of =
        |name: &'static str, help: &'static str| Arg::new("name").value_name(name).required(true).help(help);
    Command::new("cluster")
        .about("Make, check and look into a cluster of nodes; drain a node")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .after_help(EXAMPLES)
        .subcommand(
            act("init", "Make the directory of the cluster, a bucket of NATS").arg(
                Arg::new("print-permissions")
                    .long("print-permissions")
                    .action(ArgAction::SetTrue)
                    .help("Only print the NATS permissions that the node needs"),
            ),
        )
        .subcommand(act("check", "Connect as the node would, and try what it does"))
        .subcommand(act("status", "Show nodes, and worlds by state").arg(json()))
        .subcommand(
            act("worlds", "List worlds with their homes")
                .arg(Arg::new("class").long("class").value_name("CLASS").help("Worlds of this class only"))
                .arg(json()),
        )
        .subcommand(
            act("where", "Show the node that serves a world, and its addresses")
                .arg(of("WORLD", "The world")),
        )
        .subcommand(act("close", "Close a world and its connections").arg(of("WORLD", "The world")))
        .subcommand(
            act("drain", "Have a node move its worlds away and leave")
                .arg(of("NODE", "The node, as in cluster.node"))
                .arg(
                    Arg::new("wait")
                        .long("wait")
                        .value_name("TIME")
                        .num_args(0..=1)
                        .default_missing_value("8760h")
                        .value_parser(throng_load::duration::parse)
                        .help("Return when the node has left, or fail after this time [default: none]"),
                ),
        )
        .subcommand(act("undrain", "Cancel a drain").arg(of("NODE", "The node, as in cluster.node")))
}

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let Some((act, matches)) = matches.subcommand() else { return ExitCode::from(2) };
    let settings = match keys::with_surroundings(Loader::new(), keys::file(matches)).load() {
        Ok(config) => config.settings,
        Err(problems) => {
            complain(&problems.to_string());
            return ExitCode::from(2);
        }
    };
    match answer(act, matches, &settings) {
        Ok(text) => {
            print_result(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            complain(&format!("error: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn answer(act: &str, matches: &ArgMatches, settings: &Settings) -> Result<String, String> {
    let name = || matches.get_one::<String>("name").map(String::as_str).unwrap_or_default();
    let read = || tool::read(settings);
    match act {
        "init" if matches.get_flag("print-permissions") => tool::permissions(settings),
        "init" => tool::init(settings),
        "check" => tool::check(settings),
        "status" if matches.get_flag("json") => read().map(|state| format!("{state:#}\n")),
        "status" => read().map(|state| status(&state)),
        "worlds" => {
            let class = matches.get_one::<String>("class").map(String::as_str);
            let state = read()?;
            let is_shown = |world: &&Value| class.is_none_or(|class| world["class"] == class);
            let worlds: Vec<Value> = rows(&state, "worlds").filter(is_shown).cloned().collect();
            Ok(match matches.get_flag("json") {
                true => format!("{:#}\n", Value::Array(worlds)),
                false => table(&state, &worlds),
            })
        }
        "where" => place(&read()?, name()),
        "close" => tool::close(settings, name()),
        "drain" => tool::drain(settings, name(), matches.get_one("wait").copied()),
        _ => tool::undrain(settings, name()),
    }
}

fn rows<'a>(state: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    state[list].as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn status(state: &Value) -> String {
    let mut out = format!("cluster {}\n", text(&state["cluster"]));
    let _ = writeln!(
        out,
        "\n{:<32} {:<9} {:>8} {:>6} {:>11}  release",
        "node", "state", "renewed", "load", "worlds"
    );
    for node in rows(state, "nodes") {
        let worlds = format!("{} of {}", node["worlds"], node["worlds_max"]);
        let _ = writeln!(
            out,
            "{:<32} {:<9} {:>6.1} s {:>4.0} % {worlds:>11}  {}",
            text(&node["name"]),
            text(&node["state"]),
            node["age_ms"].as_f64().unwrap_or_default() / 1e3,
            node["load_permille"].as_f64().unwrap_or_default() / 10.0,
            text(&node["release"])
        );
    }
    let mut states = std::collections::BTreeMap::new();
    for world in rows(state, "worlds") {
        *states.entry(state_of(world, state)).or_insert(0_u32) += 1;
    }
    let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let _ =
        writeln!(out, "\nworlds: {}", if states.is_empty() { "none".to_owned() } else { states.join(", ") });
    let (missing, wanted) = (&state["replicas"]["missing"], &state["replicas"]["wanted"]);
    let _ = writeln!(out, "directory: {missing} of {wanted} replicas missing");
    if *wanted == 1 {
        let _ = writeln!(
            out,
            "  with one replica, the loss of a NATS server's disk is the loss of the directory"
        );
    }
    for key in rows(state, "unreadable") {
        let _ = writeln!(out, "  the record {} cannot be read by this release", text(key));
    }
    out + &differences(state)
}

/// Classes that nodes have with other settings: their worlds do not move between these nodes.
fn differences(state: &Value) -> String {
    let mut classes = std::collections::BTreeMap::<&str, std::collections::BTreeMap<&str, Vec<&str>>>::new();
    for node in rows(state, "nodes").filter(|node| node["state"] == "up" || node["state"] == "draining") {
        for (class, hash) in node["classes"].as_object().into_iter().flatten() {
            classes.entry(class).or_default().entry(text(hash)).or_default().push(text(&node["name"]));
        }
    }
    let mut out = String::new();
    for (class, hashes) in classes.iter().filter(|(_, hashes)| hashes.len() > 1) {
        let groups: Vec<String> = hashes.values().map(|nodes| nodes.join(", ")).collect();
        let _ = writeln!(out, "class {class}: other settings on {}", groups.join(" than on "));
    }
    out
}

/// The node that serves a world, or is to serve it; `None` if that has left or is lost.
fn home_of<'a>(world: &Value, state: &'a Value) -> Option<&'a Value> {
    let node = rows(state, "nodes").find(|node| node["name"] == world["home"])?;
    let is_alive = ["up", "draining"].contains(&text(&node["state"]));
    (is_alive && node["incarnation"] == world["incarnation"]).then_some(node)
}

/// The state of a world's record; `homeless` if it is open and its home is gone.
fn state_of<'a>(world: &'a Value, state: &Value) -> &'a str {
    match text(&world["state"]) {
        "closed" => "closed",
        _ if home_of(world, state).is_none() => "homeless",
        open => open,
    }
}

fn table(state: &Value, worlds: &[Value]) -> String {
    let mut out = format!("{:<32} {:<9} {:<32} {:>7}  class\n", "world", "state", "home", "epoch");
    for world in worlds {
        let _ = writeln!(
            out,
            "{:<32} {:<9} {:<32} {:>7}  {}",
            text(&world["name"]),
            state_of(world, state),
            text(&world["home"]),
            world["epoch"],
            text(&world["class"])
        );
    }
    out
}

fn place(state: &Value, name: &str) -> Result<String, String> {
    let world = rows(state, "worlds").find(|world| world["name"] == name);
    let world = world.ok_or_else(|| format!("there is no world `{name}` in the cluster"))?;
    if world["state"] == "closed" {
        return Err(format!("the world `{name}` is closed ({})", text(&world["why"])));
    }
    let home = text(&world["home"]);
    let mut out = format!("{name} {} {home} (epoch {})\n", state_of(world, state), world["epoch"]);
    let node = rows(state, "nodes").find(|node| node["name"] == home).unwrap_or(&Value::Null);
    let leads_there = |address: &&Value| address["world"].as_str().is_none_or(|world| world == name);
    for address in rows(node, "addresses").filter(leads_there) {
        let url = format!("{}://{}", text(&address["transport"]), text(&address["address"]));
        let _ = writeln!(out, "  {:<7} {url}", text(&address["kind"]));
    }
    if home_of(world, state).is_none() {
        out.push_str("  this home has left or is lost; the world gets another one\n");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state() -> Value {
        let node = |name: &str, state: &str, hash: &str| {
            json!({
                "name": name, "state": state, "incarnation": 3, "age_ms": 412, "release": "0.1.0",
                "load_permille": 250, "worlds": 2, "worlds_max": 256, "classes": { "default": hash },
                "addresses": [{ "kind": "client", "transport": "ws", "address": "10.0.0.1:12108" }],
            })
        };
        let world = |name: &str, state: &str, home: &str| {
            json!({
                "name": name, "state": state, "home": home, "incarnation": 3, "epoch": 7,
                "class": "default", "why": "no node has room",
            })
        };
        json!({
            "cluster": "prod", "replicas": { "missing": 0, "wanted": 1 }, "unreadable": ["node.later"],
            "nodes": [node("n1", "up", "aa"), node("n2", "up", "bb"), node("n3", "lost", "cc")],
            "worlds": [world("hub", "serving", "n1"), world("old", "closed", "n1"), world("arena", "serving", "n3")],
        })
    }

    #[test]
    fn the_status_counts_worlds_and_names_classes_that_differ() {
        let text = status(&state());
        for part in [
            "n1                               up           0.4 s   25 %    2 of 256  0.1.0",
            "worlds: 1 closed, 1 homeless, 1 serving",
            "0 of 1 replicas missing",
            "with one replica",
            "node.later",
            "class default: other settings on n1 than on n2\n",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn a_world_is_where_its_home_is() {
        let found = place(&state(), "hub").unwrap();
        assert_eq!(found, "hub serving n1 (epoch 7)\n  client  ws://10.0.0.1:12108\n");
        assert!(place(&state(), "arena").unwrap().contains("arena homeless n3 (epoch 7)"));
        let all: Vec<Value> = rows(&state(), "worlds").cloned().collect();
        let shown = table(&state(), &all);
        let states: Vec<_> = shown.lines().skip(1).map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(states, [Some("serving"), Some("closed"), Some("homeless")]);
        assert!(place(&state(), "old").unwrap_err().contains("no node has room"));
        assert!(place(&state(), "none").is_err());
    }
}
