//! `throng world`: the worlds of the running process.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::AdminArgs;
use crate::output::{complain, print_result};

/// List, open and close the worlds of a running process
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  throng world list                                      worlds with their connections and channels
  throng world open duel-1 --token-file admin-tokens     a world that logins may name from now on
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
        #[command(flatten)]
        admin: AdminArgs,
    },
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
        WorldCommand::Open { name, admin } => {
            admin.post("worlds", &json!({ "name": name })).map(|answer| match answer["cluster"] == true {
                true => format!("{name} is requested; `throng cluster where {name}` shows its home\n"),
                false => format!("{name} is open, on shard {}\n", answer["worker"]),
            })
        }
        WorldCommand::Close { name, admin } => {
            admin.post("worlds/close", &json!({ "name": name })).map(|_| format!("{name} is closed\n"))
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

fn table(answer: &Value) -> String {
    let mut text =
        format!("{:<32} {:>5} {:>8} {:>8} {:>9}\n", "world", "shard", "servers", "clients", "channels");
    for row in answer["worlds"].as_array().into_iter().flatten() {
        // The main world has a shard on every thread.
        let shard = if row["number"] == 0 { "all".to_owned() } else { row["worker"].to_string() };
        let figure = |name: &str| row[name].to_string();
        let _ = writeln!(
            text,
            "{:<32} {shard:>5} {:>8} {:>8} {:>9}",
            row["name"].as_str().unwrap_or_default(),
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
        let row = |name: &str, number: u32| json!({ "name": name, "number": number, "worker": 1, "servers": 2, "clients": 30, "channels": 4 });
        let text = table(&json!({ "worlds": [row("main", 0), row("hub", 7)] }));
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["main", "all", "2", "30", "4"]);
        assert_eq!(words[2], ["hub", "1", "2", "30", "4"]);
    }
}
