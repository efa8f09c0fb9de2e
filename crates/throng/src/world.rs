//! `throng world`: the worlds of the running process.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use throng_server::config::{CLASS_KEYS, keys_of_worlds};

use crate::admin::AdminArgs;
use crate::output::{complain, print_result};

/// List, open and close the worlds of a running process
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  throng world list                                      worlds with their connections and channels
  throng world open duel-1 --token-file admin-tokens     a world that logins may name from now on
  throng world open duel-2 --class duel                  one with the settings of a class
  throng world class                                     keys that a class may have
  throng world close duel-1 --token-file admin-tokens    its connections are closed

Worlds of `gateway.worlds` open with the process.")]
pub(crate) struct WorldArgs {
    #[command(subcommand)]
    command: WorldCommand,
}

#[derive(Debug, Subcommand)]
enum WorldCommand {
    /// List the open worlds
    List {
        /// Print the answer as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Open a world
    Open {
        /// Its name: lower-case letters, digits and `-`, at most 32
        name: String,
        /// Class whose settings it has, one of `[[gateway.classes]]`
        #[arg(long, value_name = "NAME")]
        class: Option<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List the keys of a class, and those of `[gateway]` that it may set
    Class,
    /// Close a world and its connections
    Close {
        /// Its name
        name: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

pub(crate) fn run(args: WorldArgs) -> ExitCode {
    let result = match args.command {
        WorldCommand::List { json, admin } => {
            admin.get("worlds").map(|answer| if json { format!("{answer:#}\n") } else { table(&answer) })
        }
        WorldCommand::Class => Ok(class_keys()),
        WorldCommand::Open { name, class, admin } => admin
            .post("worlds", &json!({ "name": name, "class": class }))
            .map(|answer| match answer["node"].as_str() {
                Some(node) => format!("{name} is open, on the node {node}\n"),
                None => format!("{name} is open, on shard {}\n", answer["worker"]),
            }),
        WorldCommand::Close { name, admin } => {
            let said = |answer: Value| match answer["cluster"] == true {
                true => format!("{name} is being closed\n"),
                false => format!("{name} is closed\n"),
            };
            admin.post("worlds/close", &json!({ "name": name })).map(said)
        }
    };
    match result {
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

fn class_keys() -> String {
    let own = CLASS_KEYS.iter().map(|key| (key.path.rsplit('.').next().unwrap_or_default(), key));
    own.chain(keys_of_worlds()).fold(String::new(), |mut text, (name, key)| {
        let _ = writeln!(text, "{name:<40} {}", key.summary());
        text
    })
}

fn table(answer: &Value) -> String {
    let mut text = format!(
        "{:<32} {:<18} {:>5} {:>8} {:>8} {:>9}\n",
        "world", "class", "shard", "servers", "clients", "channels"
    );
    for row in answer["worlds"].as_array().into_iter().flatten() {
        let is_wide = row["number"] == 0 || row["shards"].as_u64() > Some(1);
        let shard = if is_wide { "all".to_owned() } else { row["worker"].to_string() };
        let figure = |name: &str| row[name].to_string();
        let _ = writeln!(
            text,
            "{:<32} {:<18} {shard:>5} {:>8} {:>8} {:>9}",
            row["name"].as_str().unwrap_or_default(),
            row["class"].as_str().unwrap_or("-"),
            figure("servers"),
            figure("clients"),
            figure("channels")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_where_each_world_is() {
        let row = |name: &str, number: u32| json!({ "name": name, "number": number, "class": (number > 0).then_some("duel"), "worker": 1, "servers": 2, "clients": 30, "channels": 4 });
        let text = table(&json!({ "worlds": [row("main", 0), row("hub", 7)] }));
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["main", "-", "all", "2", "30", "4"]);
        assert_eq!(words[2], ["hub", "duel", "1", "2", "30", "4"]);
    }
}
