//! `throng why`: why a client does not get an update, or a ticket no match, as the running process
//! knows it.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::admin::AdminArgs;
use crate::output::{complain, print_result};

/// Explain why a client gets no updates, or why a ticket waits
///
/// Exit code 0 if nothing is in the way, 1 if something is, 2 if there is no answer.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("subject").required(true)))]
#[command(after_help = "\
Examples:
  throng why --conn 812 --entity 524310     each step of an update of the entity to connection 812
  throng why --conn 812 --channel 0         the same for a channel
  throng why --ticket 01J9...               why a ticket found no match
  throng config show --origin               where the value of a key comes from
  throng explain slow_reader                the meaning of a reason or an error code")]
pub(crate) struct WhyArgs {
    /// Connection that misses updates
    #[arg(long, value_name = "N", value_parser = id, group = "subject", requires = "of")]
    conn: Option<u32>,
    /// Entity whose updates it does not get
    #[arg(long, value_name = "M", value_parser = id, group = "of", requires = "conn")]
    entity: Option<u32>,
    /// Channel whose updates it does not get
    #[arg(long, value_name = "M", value_parser = id, group = "of", requires = "conn")]
    channel: Option<u32>,
    /// World of the connection, if not the default one
    #[arg(long, value_name = "NAME", requires = "conn")]
    world: Option<String>,
    /// Ticket of the matcher that finds no match
    #[arg(long, value_name = "ID", group = "subject")]
    ticket: Option<String>,
    /// Print the answer as JSON, with all figures
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Reads the id of a connection, a channel or an entity.
fn id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected an id: a whole number below 4294967296".to_owned())
}

pub(crate) fn run(args: WhyArgs) -> ExitCode {
    // An entity has the id of its channel.
    let answer = match (args.conn, args.entity.or(args.channel), &args.ticket) {
        (Some(conn), Some(channel), _) => {
            let world = args.world.map(|world| format!("&world={world}")).unwrap_or_default();
            args.admin.get(&format!("connections/{conn}/why?channel={channel}{world}")).map(|answer| {
                let free = answer["steps"].as_array().is_some_and(|steps| steps.iter().all(passes));
                (update_text(&answer), answer, free)
            })
        }
        (_, _, Some(ticket)) => ask_matcher(&args.admin, ticket).map(|answer| {
            let free = answer["Ticket"]["Status"] == "matched";
            (ticket_text(&answer), answer, free)
        }),
        _ => unreachable!("the definition asks for a connection or a ticket"),
    };
    match answer {
        Ok((text, answer, free)) => {
            print_result(&if args.json { format!("{answer:#}\n") } else { text });
            ExitCode::from(u8::from(!free))
        }
        Err(why) => {
            complain(&format!("error: {why}"));
            ExitCode::from(2)
        }
    }
}

fn passes(step: &Value) -> bool {
    step["passes"] == true
}

fn ask_matcher(admin: &AdminArgs, ticket: &str) -> Result<Value, String> {
    let request = serde_json::json!({ "TicketID": ticket }).to_string();
    // Characters that a query cannot hold are escaped.
    let request: String = request.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    });
    admin.get(&format!("matcher?method=ExplainTicket&request={request}"))
}

/// Renders the verdict, and a table of the steps of an update.
fn update_text(answer: &Value) -> String {
    let kind = answer["type"].as_str().map(|kind| format!(" ({kind})")).unwrap_or_default();
    let mut text = format!(
        "connection {}, channel {}{kind}\n  {}\n\n",
        answer["connection"],
        answer["channel"],
        answer["verdict"].as_str().unwrap_or_default()
    );
    for step in answer["steps"].as_array().into_iter().flatten() {
        let mark = if passes(step) { "ok" } else { "NO" };
        let said = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
        let _ = writeln!(text, "  {mark}  {:<13} {}", said("step"), said("what"));
    }
    text
}

fn ticket_text(answer: &Value) -> String {
    let mut text = format!("{}\n", answer["Summary"].as_str().unwrap_or_default());
    let ticket = &answer["Ticket"];
    let _ = writeln!(
        text,
        "  status         {}, waited {:.1} s, expansion level {}",
        ticket["Status"].as_str().unwrap_or_default(),
        ticket["WaitedMs"].as_f64().unwrap_or_default() / 1e3,
        answer["Level"]
    );
    let _ = writeln!(text, "  players        {} fit, {} needed", answer["Fits"], answer["Needs"]);
    for each in answer["Candidates"].as_array().into_iter().flatten() {
        let fails: Vec<&str> =
            each["Fails"].as_array().into_iter().flatten().filter_map(|fail| fail["Why"].as_str()).collect();
        let fails = if fails.is_empty() { "can match".to_owned() } else { fails.join("; ") };
        let id = each["TicketID"].as_str().unwrap_or_default();
        let _ = writeln!(text, "  nearest        {id}: {fails}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_a_verdict_and_a_table() {
        let answer = json!({
            "connection": 8, "channel": 5, "type": "ENTITY", "verdict": "it reads too slowly",
            "steps": [
                { "step": "access", "passes": true, "what": "it may read" },
                { "step": "conflation", "passes": false, "what": "it reads too slowly" },
            ],
        });
        let text = "connection 8, channel 5 (ENTITY)\n  it reads too slowly\n\n  ok  access        it may read\n  \
                    NO  conflation    it reads too slowly\n";
        assert_eq!(update_text(&answer), text);
    }
}
