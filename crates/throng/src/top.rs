//! `throng top`: the busiest connections of a running process, its shards and how full its limits
//! are, once a second.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;
use throng_load::duration;

use crate::admin::AdminArgs;
use crate::output::{complain, print};

/// Watch a running process: rates, shards, limits and its busiest connections
///
/// On a terminal it refreshes until Ctrl-C; otherwise it prints once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  throng top                              the process on this machine
  throng top --sort queue -n 40           who reads too slowly?
  throng top --world duel-1               the connections of another world than the default one
  throng top --once | mail operator       one look, for a script")]
pub(crate) struct TopArgs {
    /// Order of connections
    #[arg(long, value_enum, default_value_t = Sort::Out)]
    sort: Sort,
    /// Connections shown
    #[arg(long, short = 'n', value_name = "N", default_value_t = 15)]
    connections: usize,
    /// World whose connections are shown; default `gateway.default_world`
    #[arg(long, value_name = "NAME")]
    world: Option<String>,
    /// Worlds shown, those with the most clients first
    #[arg(long, value_name = "N", default_value_t = 10)]
    worlds: usize,
    /// Refresh interval
    #[arg(long, value_name = "TIME", value_parser = duration::positive, default_value = "1s")]
    interval: Duration,
    /// Print once, from two samples
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// Bytes sent to it per second
    Out,
    /// Bytes received from it per second
    In,
    /// Packets received from it per second
    Packets,
    /// Bytes queued for it
    Queue,
    /// Channels whose updates it is missing
    Lagging,
}

/// One sample.
struct Look {
    overview: Value,
    connections: Vec<Value>,
    limits: Value,
    worlds: Vec<Value>,
}

/// Connections in one request; above this, those with the lowest ids are shown.
const CONNECTIONS_MAX: usize = 5_000;
/// Longest interval that passes without a word before a single print.
const INTERVAL_SILENT_MAX: Duration = Duration::from_secs(2);
/// Clears the terminal and begins at its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) fn run(args: TopArgs) -> ExitCode {
    let once = args.once || !std::io::stdout().is_terminal();
    let fail = |why: String| {
        complain(&format!("error: {why}"));
        ExitCode::FAILURE
    };
    let look = || look(&args.admin, args.world.as_deref());
    let mut before = match look() {
        Ok(look) => look,
        Err(why) => return fail(why),
    };
    if once && args.interval > INTERVAL_SILENT_MAX {
        complain(&format!("measuring for {}", duration::short(args.interval)));
    }
    loop {
        std::thread::sleep(args.interval);
        let now = match look() {
            Ok(look) => look,
            Err(why) => return fail(why),
        };
        let text = page(&before, &now, args.sort, [args.worlds, args.connections]);
        if once {
            print(&text);
            return ExitCode::SUCCESS;
        }
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let width = size.map_or(usize::MAX, |size| usize::from(size.ws_col));
        print(&format!("{CLEAR}{}", cut(&text, width)));
        before = now;
    }
}

/// Cuts lines to the width of a terminal; 0 is a terminal that does not tell.
fn cut(text: &str, width: usize) -> String {
    let width = if width == 0 { usize::MAX } else { width };
    text.lines()
        .map(|line| line.chars().take(width).collect::<String>().trim_end().to_owned() + "\n")
        .collect()
}

fn look(admin: &AdminArgs, world: Option<&str>) -> Result<Look, String> {
    let rows = |mut answer: Value, list: &str| match answer[list].take() {
        Value::Array(rows) => rows,
        _ => Vec::new(),
    };
    let world = world.map(|world| format!("&world={world}")).unwrap_or_default();
    let connections = admin.get(&format!("connections?limit={CONNECTIONS_MAX}{world}"))?;
    Ok(Look {
        overview: admin.get("overview")?,
        connections: rows(connections, "connections"),
        limits: admin.get("limits")?,
        worlds: rows(admin.get("worlds")?, "worlds"),
    })
}

fn figure(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_default()
}

/// Everything that is shown, from two looks.
fn page(before: &Look, now: &Look, sort: Sort, [world_count, count]: [usize; 2]) -> String {
    let seconds = (figure(&now.overview, "uptime_ms") - figure(&before.overview, "uptime_ms")).max(1.0) / 1e3;
    let mut text = String::new();
    head(&mut text, before, now, seconds);
    shards(&mut text, before, now);
    limits(&mut text, now);
    worlds(&mut text, before, now, seconds, world_count);
    connections(&mut text, before, now, seconds, sort, count);
    text
}

/// The worlds with the most clients, where there are several.
fn worlds(text: &mut String, before: &Look, now: &Look, seconds: f64, count: usize) {
    if now.worlds.len() < 2 {
        return;
    }
    let old: HashMap<u64, &Value> =
        before.worlds.iter().filter_map(|row| Some((row["number"].as_u64()?, row))).collect();
    let mut shown: Vec<&Value> = now.worlds.iter().collect();
    shown.sort_by(|one, other| figure(other, "clients").total_cmp(&figure(one, "clients")));
    let _ = writeln!(
        text,
        "{:<33}{:<19}{:>6}{:>9}{:>9}{:>10}{:>13}{:>13}",
        "world", "class", "shard", "servers", "clients", "channels", "in", "out"
    );
    for row in shown.iter().take(count) {
        let known = row["number"].as_u64().and_then(|number| old.get(&number));
        let rate =
            |name: &str| known.map_or(0.0, |old| (figure(row, name) - figure(old, name)).max(0.0) / seconds);
        // The default world has a shard on every thread.
        let shard = if row["number"] == 0 { "all".to_owned() } else { row["worker"].to_string() };
        let _ = writeln!(
            text,
            "{:<33}{:<19}{shard:>6}{:>9}{:>9}{:>10}{:>13}{:>13}",
            row["name"].as_str().unwrap_or_default(),
            row["class"].as_str().unwrap_or("-"),
            figure(row, "servers"),
            figure(row, "clients"),
            figure(row, "channels"),
            bytes(rate("bytes_in")) + "/s",
            bytes(rate("bytes_out")) + "/s"
        );
    }
    if shown.len() > count {
        let _ = writeln!(text, "and {} more worlds", shown.len() - count);
    }
    text.push('\n');
}

fn head(text: &mut String, before: &Look, now: &Look, seconds: f64) {
    let (old, new) = (&before.overview, &now.overview);
    let ready = if new["ready"] == true { "ready" } else { "NOT READY" };
    let cpu = (figure(new, "cpu_seconds") - figure(old, "cpu_seconds")) / seconds;
    let _ = writeln!(
        text,
        "throng, up {}, {ready}    CPU {cpu:.2} cores    memory {}",
        time(figure(new, "uptime_ms") / 1e3),
        bytes(figure(new, "resident_bytes"))
    );
    let _ = writeln!(
        text,
        "{:<10}{:>9}{:>16}{:>16}{:>13}{:>13}",
        "", "open", "messages in/s", "messages out/s", "in", "out"
    );
    for (name, key) in [("servers", "servers"), ("players", "clients")] {
        let rate = |what: &str| (figure(&new[key], what) - figure(&old[key], what)) / seconds;
        let _ = writeln!(
            text,
            "{name:<10}{:>9.0}{:>16.0}{:>16.0}{:>13}{:>13}",
            figure(&new[key], "connections"),
            rate("messages_in"),
            rate("messages_out"),
            bytes(rate("bytes_in")) + "/s",
            bytes(rate("bytes_out")) + "/s"
        );
    }
    let rate = |what: &str| (figure(new, what) - figure(old, what)) / seconds;
    let _ = writeln!(
        text,
        "updates merged {:.0}/s, handovers {:.0}/s, updates dropped for slow readers {:.0}/s\n",
        rate("updates_merged"),
        rate("handovers"),
        rate("state_dropped")
    );
}

fn shards(text: &mut String, before: &Look, now: &Look) {
    let old: HashMap<u64, &Value> = rows(&before.overview, "shards", "shard");
    let _ = writeln!(text, "{:<10}{:>9}{:>16}{:>16}", "shard", "busy", "longest queue", "connections");
    for shard in now.overview["shards"].as_array().into_iter().flatten() {
        let Some(old) = shard["shard"].as_u64().and_then(|id| old.get(&id)) else { continue };
        let passed =
            (figure(&now.overview, "uptime_ms") - figure(&before.overview, "uptime_ms")).max(1.0) * 1e6;
        let busy = (figure(shard, "busy_ns") - figure(old, "busy_ns")) / passed * 100.0;
        let stuck = if shard["answers"] == false { "   does not answer" } else { "" };
        let _ = writeln!(
            text,
            "{:<10.0}{busy:>8.1}%{:>16.0}{:>16.0}{stuck}",
            figure(shard, "shard"),
            figure(shard, "mailbox"),
            figure(shard, "connections")
        );
    }
    text.push('\n');
}

/// The limits of which most is used, three at most.
fn limits(text: &mut String, now: &Look) {
    let mut used: Vec<(f64, String)> = now.limits["limits"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|row| figure(row, "limit") > 0.0)
        .map(|row| {
            let share = figure(row, "used") / figure(row, "limit");
            let key = row["key"].as_str().unwrap_or_default();
            (share, format!("{key} {:.1}% ({} of {})", share * 100.0, row["used"], row["limit"]))
        })
        .collect();
    used.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (index, (_, limit)) in used.iter().take(3).enumerate() {
        let _ = writeln!(text, "{:<10}{limit}", if index == 0 { "limits" } else { "" });
    }
    text.push('\n');
}

fn connections(text: &mut String, before: &Look, now: &Look, seconds: f64, sort: Sort, count: usize) {
    let old: HashMap<u64, &Value> =
        before.connections.iter().filter_map(|row| Some((row["id"].as_u64()?, row))).collect();
    let mut shown: Vec<(f64, [f64; 3], &Value)> = now
        .connections
        .iter()
        .map(|row| {
            let known = row["id"].as_u64().and_then(|id| old.get(&id));
            let rate = |name: &str| {
                known.map_or(0.0, |old| (figure(row, name) - figure(old, name)).max(0.0) / seconds)
            };
            let rates = ["packets_in", "bytes_in", "bytes_out"].map(rate);
            let by = match sort {
                Sort::Out => rates[2],
                Sort::In => rates[1],
                Sort::Packets => rates[0],
                Sort::Queue => figure(row, "queued_bytes"),
                Sort::Lagging => figure(row, "lagging_channels"),
            };
            (by, rates, row)
        })
        .collect();
    shown.sort_by(|one, other| other.0.total_cmp(&one.0));
    let _ = writeln!(
        text,
        "{:<12}{:<8}{:>10}{:>13}{:>13}{:>11}{:>9}  address",
        "connection", "kind", "packets/s", "in", "out", "queue", "lagging"
    );
    for (_, [packets, bytes_in, bytes_out], row) in shown.iter().take(count) {
        let said = |name: &str| row[name].as_str().unwrap_or_default();
        let _ = writeln!(
            text,
            "{:<12.0}{:<8}{packets:>10.0}{:>13}{:>13}{:>11}{:>9.0}  {}",
            figure(row, "id"),
            said("kind"),
            bytes(*bytes_in) + "/s",
            bytes(*bytes_out) + "/s",
            bytes(figure(row, "queued_bytes")),
            figure(row, "lagging_channels"),
            said("address")
        );
    }
    if shown.len() > count {
        let _ = writeln!(text, "and {} more", shown.len() - count);
    }
}

fn rows<'a>(value: &'a Value, list: &str, key: &str) -> HashMap<u64, &'a Value> {
    value[list].as_array().into_iter().flatten().filter_map(|row| Some((row[key].as_u64()?, row))).collect()
}

fn bytes(bytes: f64) -> String {
    match bytes {
        ..1024.0 => format!("{bytes:.0} B"),
        1024.0..1_048_576.0 => format!("{:.1} KiB", bytes / 1024.0),
        1_048_576.0..1_073_741_824.0 => format!("{:.1} MiB", bytes / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes / 1_073_741_824.0),
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        120.0..7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn look(uptime_ms: u64, bytes_out: [u64; 2], queues: [u64; 2]) -> Look {
        let row = |id: usize| {
            json!({ "id": id + 1, "kind": "client", "address": "10.0.0.1", "packets_in": 0, "bytes_in": 0,
                    "bytes_out": bytes_out[id], "queued_bytes": queues[id], "lagging_channels": 0 })
        };
        let kind = json!({ "connections": 2, "messages_in": uptime_ms, "messages_out": 0, "bytes_in": 0, "bytes_out": 0 });
        let shard = json!({ "shard": 0, "answers": true, "busy_ns": uptime_ms * 250_000, "mailbox": 3, "connections": 2 });
        Look {
            overview: json!({ "uptime_ms": uptime_ms, "ready": true, "servers": kind, "clients": kind,
                              "shards": [shard], "cpu_seconds": 0, "resident_bytes": 1 << 20 }),
            connections: vec![row(0), row(1)],
            worlds: vec![
                json!({ "name": "main", "number": 0, "class": null, "worker": 0, "clients": 1, "bytes_out": 0 }),
                json!({ "name": "duel-1", "number": 7, "class": "duel", "worker": 1, "clients": 2, "bytes_out": bytes_out[0] }),
            ],
            limits: json!({ "limits": [{ "key": "a.max", "used": 1, "limit": 4 }, { "key": "none", "used": 1, "limit": 0 }] }),
        }
    }

    #[test]
    fn lines_are_cut_to_the_width_of_the_terminal() {
        assert_eq!(cut("abcdef\n\nab\n", 4), "abcd\n\nab\n");
        assert_eq!(cut("abcdef\n", 0), "abcdef\n");
    }

    #[test]
    fn rates_come_from_two_looks_and_the_busiest_come_first() {
        let (before, now) = (look(1_000, [0, 0], [9, 0]), look(3_000, [2_048, 20_480], [9, 0]));
        let text = page(&before, &now, Sort::Out, [1, 1]);
        assert!(text.contains("players           2            1000"), "{text}");
        assert!(text.contains("0             25.0%               3               2"), "{text}");
        assert!(text.contains("a.max 25.0% (1 of 4)") && !text.contains("none"), "{text}");
        assert!(text.contains("10.0 KiB/s") && text.contains("and 1 more"), "{text}");
        let by_queue = page(&before, &now, Sort::Queue, [1, 1]);
        assert!(by_queue.contains("1.0 KiB/s") && !by_queue.contains("10.0 KiB/s"), "{by_queue}");
    }
}
