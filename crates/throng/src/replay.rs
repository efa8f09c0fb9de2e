//! `throng replay`: plays a recorded session against a gateway.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use throng_load::replay::{Endpoint, PlayerConfig, Recording, Report, TagForm, play_blocking};

use crate::output::print_result;

/// Replay a recorded session (.cpr) against a gateway and report differences
///
/// Exit code 0 if every packet was sent and answered and the connection stayed open, 1 if not, 2
/// for invalid input.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  throng replay session.cpr --addr 127.0.0.1:12108
  throng replay session.cpr --addr ws://127.0.0.1:12108 --speed 10
  throng replay chat.cpr --grant-write          # recordings of gateways that checked no access
  throng replay session.cpr --against 127.0.0.1:12109 --json    # two builds, one session")]
pub(crate) struct ReplayArgs {
    /// The recording.
    file: PathBuf,
    /// Players' listener of the gateway: HOST:PORT, optionally with tcp:// or ws:// in front
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:12108")]
    addr: Endpoint,
    /// Replay it on this gateway too, and report where the two differ
    #[arg(long, value_name = "ADDR", hide_short_help = true)]
    against: Option<Endpoint>,
    /// 1 = as recorded, 2 = twice as fast, `max` = as fast as answers arrive
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_speed)]
    speed: f64,
    /// Add WRITE_ACCESS to subscriptions without an access level
    #[arg(long)]
    grant_write: bool,
    /// Send everything except the authentication to this channel
    #[arg(long, value_name = "ID")]
    channel: Option<u32>,
    /// Use the frame tag of the stock Go and JavaScript clients
    #[arg(long, hide_short_help = true)]
    legacy_tag: bool,
    /// Timeout of an answer, in milliseconds
    #[arg(long, value_name = "MS", default_value = "3000")]
    answer_timeout: u64,
    /// Time to listen after the last packet, in milliseconds
    #[arg(long, value_name = "MS", default_value = "500", hide_short_help = true)]
    settle: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed = if text == "max" { f64::INFINITY } else { text.parse().unwrap_or(f64::NAN) };
    if speed > 0.0 { Ok(speed) } else { Err("expected a number above 0, or `max`".to_owned()) }
}

/// Runs the command.
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "the report is what the command is for")]
pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    let recording = std::fs::read(&args.file)
        .map_err(|error| error.to_string())
        .and_then(|bytes| Recording::parse(&bytes).map_err(|error| error.to_string()));
    let recording = match recording {
        Ok(recording) => recording,
        Err(error) => {
            eprintln!("error: cannot play {}: {error}", args.file.display());
            return ExitCode::from(2);
        }
    };
    let config = PlayerConfig {
        speed: args.speed,
        grant_write: args.grant_write,
        channel: args.channel,
        tag_form: if args.legacy_tag { TagForm::Legacy } else { TagForm::Current },
        answer_timeout: Duration::from_millis(args.answer_timeout),
        settle: Duration::from_millis(args.settle),
        ..PlayerConfig::default()
    };
    let play = |addr: &Endpoint| match play_blocking(addr, recording.clone(), config.clone()) {
        Ok(report) => Some(report),
        Err(error) => {
            eprintln!("error: {error}\n  is the gateway running? start one with: throng up");
            None
        }
    };
    let Some(report) = play(&args.addr) else { return ExitCode::from(1) };
    let Some(other) = &args.against else {
        if args.json {
            print_result(&(pretty(&to_json(&report)) + "\n"));
        } else {
            print_result(&report.to_string());
        }
        return ExitCode::from(u8::from(!report.is_clean()));
    };
    let Some(other) = play(other) else { return ExitCode::from(1) };
    let found = differences(&report, &other);
    if args.json {
        let all = serde_json::json!({
            "addr": to_json(&report), "against": to_json(&other), "differences": found,
        });
        print_result(&(pretty(&all) + "\n"));
    } else {
        let mut text = format!("{report}\nagainst\n{other}\n");
        text.extend(found.iter().map(|difference| format!("differs   {difference}\n")));
        if found.is_empty() {
            text.push_str("both gateways gave the same answers\n");
        }
        print_result(&text);
    }
    ExitCode::from(u8::from(!found.is_empty()))
}

/// Differences between the answers of two gateways. The number of updates depends on the timing of
/// both, so only the presence of updates is compared.
fn differences(one: &Report, other: &Report) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: String, one: String, other: String| {
        if one != other {
            found.push(format!("{what}: {one}, {other} with --against"));
        }
    };
    compare("packets sent".to_owned(), one.packets_sent.to_string(), other.packets_sent.to_string());
    let code = |report: &Report| report.auth_result.map_or("no result".to_owned(), |code| code.to_string());
    compare("authentication".to_owned(), code(one), code(other));
    let end = |report: &Report| if report.closed.is_some() { "closed" } else { "lasted" }.to_owned();
    compare("connection".to_owned(), end(one), end(other));
    let types: std::collections::BTreeSet<u32> =
        one.types.keys().chain(other.types.keys()).copied().collect();
    for msg_type in types {
        let of = |report: &Report| report.types.get(&msg_type).copied().unwrap_or_default();
        let (here, there) = (of(one), of(other));
        compare(format!("answers of type {msg_type}"), here.answered.to_string(), there.answered.to_string());
        let received = |count: u64| match msg_type {
            DATA_UPDATE => if count > 0 { "some" } else { "none" }.to_owned(),
            _ => count.to_string(),
        };
        compare(format!("messages of type {msg_type}"), received(here.received), received(there.received));
    }
    let refused = |report: &Report| {
        report
            .refused
            .iter()
            .map(|refused| format!("packet {}", refused.packet))
            .collect::<Vec<_>>()
            .join(" ")
    };
    compare("refused".to_owned(), refused(one), refused(other));
    found
}

/// CHANNEL_DATA_UPDATE.
const DATA_UPDATE: u32 = 8;

fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}")
}

fn to_json(report: &Report) -> serde_json::Value {
    let types: serde_json::Map<String, serde_json::Value> = report
        .types
        .iter()
        .map(|(msg_type, counts)| {
            let counts = serde_json::json!({
                "recorded": counts.recorded,
                "sent": counts.sent,
                "answered": counts.answered,
                "received": counts.received,
            });
            (msg_type.to_string(), counts)
        })
        .collect();
    let refused: Vec<_> = report
        .refused
        .iter()
        .map(|refused| serde_json::json!({ "packet": refused.packet, "msg_type": refused.msg_type }))
        .collect();
    serde_json::json!({
        "clean": report.is_clean(),
        "packets_recorded": report.packets_recorded,
        "packets_sent": report.packets_sent,
        "recorded_ms": report.recorded.as_millis() as u64,
        "played_ms": report.played.as_millis() as u64,
        "lateness_us": {
            "p50": report.drift.p50.as_micros() as u64,
            "p99": report.drift.p99.as_micros() as u64,
            "max": report.drift.max.as_micros() as u64,
        },
        "auth_result": report.auth_result,
        "connection": report.conn.map(|conn| conn.0),
        "types": types,
        "refused": refused,
        "closed": report.closed,
    })
}

#[cfg(test)]
mod tests {
    use throng_load::replay::{Report, TypeCounts};

    use super::{differences, parse_speed};

    #[test]
    fn two_plays_differ_in_what_was_answered_not_in_how_states_were_merged() {
        let report = |answered, updates| {
            let counts = |answered, received| TypeCounts { recorded: 1, sent: 1, answered, received };
            Report { types: [(6, counts(answered, 0)), (8, counts(0, updates))].into(), ..Report::default() }
        };
        assert_eq!(differences(&report(1, 5), &report(1, 9)), Vec::<String>::new());
        let found = differences(&report(1, 5), &report(0, 0));
        assert_eq!(
            found,
            ["answers of type 6: 1, 0 with --against", "messages of type 8: some, none with --against"]
        );
    }

    #[test]
    fn speeds_are_numbers_above_0_or_max() {
        assert_eq!(parse_speed("2.5"), Ok(2.5));
        assert_eq!(parse_speed("max"), Ok(f64::INFINITY));
        for wrong in ["0", "-1", "fast", "", "NaN"] {
            assert!(parse_speed(wrong).is_err(), "{wrong}");
        }
    }
}
