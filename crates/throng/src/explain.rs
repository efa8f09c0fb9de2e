//! `throng explain CODE`: offline explanation of an error code or a reason, with its remedy.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;
use throng_server::config::nearest;
use throng_server::{AcceptRefusal, CloseReason, MATCHER_STATUSES, Refusal};

use crate::output::{complain, print};

/// Code, title, explanation.
const CODES: &[(&str, &str, &str)] = &[
    (
        "THR-0101",
        "the configuration file cannot be read",
        "The file given with --config (or THRONG_CONFIG) does not exist or may not be read. Without a file the\n\
         defaults apply; `throng config default > throng.toml` writes one to start from.",
    ),
    (
        "THR-0102",
        "the configuration file is not TOML",
        "Parsing failed at the position shown; the mistake is there or shortly before: an unclosed quote, a missing\n\
         `=`, a duplicate key.",
    ),
    (
        "THR-0103",
        "unknown key",
        "No key or section has that name at that position. The message names the nearest known one and all that\n\
         are allowed there. `throng config default` prints every key with its documentation.",
    ),
    (
        "THR-0104",
        "bad value",
        "The value has the wrong type or is out of range; the message shows both, and the default.",
    ),
    (
        "THR-0105",
        "conflicting values",
        "Each value alone is valid, but one requires another that is missing or contradicts it, for example\n\
         authentication by tokens without a file of tokens.",
    ),
    (
        "THR-0106",
        "a public address without authentication",
        "The listener would be reachable from other machines without authentication (or the admin address without a\n\
         token). Listen on 127.0.0.1; configure authentication in [gateway.auth]; or, on a private network, set\n\
         unsafe_binds = true in the listener's section.",
    ),
    (
        "THR-0107",
        "a file named in the configuration cannot be used",
        "A schema, state machine, channel settings, certificate, key or token file, or a folder, is missing or wrong;\n\
         the message names the key and what is wrong. Relative paths count from the working directory of the process.\n\
         `throng config check` and `throng doctor` load the same files as `throng up`.",
    ),
    (
        "THR-0108",
        "the matcher's rules are invalid",
        "The file that matcher.rules names has an unknown key, a value outside its range, or rules that contradict each\n\
         other. The message names the queue and the path in it (`rules[2].max`), what is expected and what was found.\n\
         The line shown is the one where the queue or the value begins. A rule set of a PutQueue request is refused\n\
         for the same reasons, with RULE_INVALID.",
    ),
    (
        "THR-0109",
        "an address cannot be listened on",
        "Another process has the port, the address belongs to no interface of this machine, or the port needs a\n\
         privilege. The message names the key; `ss -lntup` shows the process, and port 0 takes a free one.",
    ),
    (
        "THR-0110",
        "the system refuses a thread, a descriptor or randomness",
        "The process has reached a limit of the machine or of its control group. `throng doctor` compares the limits\n\
         with the configuration.",
    ),
];

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let Some(code) = matches.get_one::<String>("code") else {
        let mut list: String = CODES.iter().map(|(code, title, _)| format!("{code}  {title}\n")).collect();
        for Reason { name, number, kind, about } in reasons() {
            let number = number.map(|number| number.to_string()).unwrap_or_default();
            let _ = writeln!(list, "{name:<28} {number:>4}  {kind}: {about}");
        }
        print(&list);
        return ExitCode::SUCCESS;
    };
    let named: Vec<String> = reasons()
        .filter(|reason| {
            reason.name.eq_ignore_ascii_case(code)
                || reason.number.is_some_and(|number| number.to_string() == *code)
        })
        .map(|Reason { name, number, kind, about }| {
            let number = number.map(|number| format!(" ({number})")).unwrap_or_default();
            format!("{name}{number}: {kind}\n\n{about}\n")
        })
        .collect();
    if !named.is_empty() {
        print(&named.join("\n"));
        return ExitCode::SUCCESS;
    }
    let wanted = code.trim_start_matches("error[").trim_end_matches(']').to_ascii_uppercase();
    let is_code = |known: &str| known == wanted || known.strip_prefix("THR-") == Some(wanted.as_str());
    match CODES.iter().find(|(known, _, _)| is_code(known)) {
        Some((code, title, text)) => {
            print(&format!("{code}: {title}\n\n{text}\n"));
            ExitCode::SUCCESS
        }
        None => {
            let names = reasons().map(|reason| reason.name);
            let near = nearest(&code.to_ascii_lowercase(), names)
                .or_else(|| nearest(&wanted, CODES.iter().map(|(code, ..)| *code)));
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            complain(&format!("error: there is no code `{code}`{hint}\n  `throng explain` lists all codes"));
            ExitCode::from(2)
        }
    }
}

/// An entry of a list that the protocols' crates keep.
struct Reason {
    name: &'static str,
    /// The close code of a WebSocket and of ENet, or the status of the matcher's RPC.
    number: Option<u16>,
    kind: &'static str,
    about: &'static str,
}

/// Every reason that a metric, a log or the console names.
fn reasons() -> impl Iterator<Item = Reason> {
    let closed = CloseReason::ALL.iter().map(|each| {
        let (name, number, about) = (each.name(), each.close_code(), each.describe());
        Reason { name, number, kind: "a connection was closed", about }
    });
    let turned_away = AcceptRefusal::ALL.iter().map(|each| {
        let (name, number, about) = (each.name(), Some(each.close_code()), each.describe());
        Reason { name, number, kind: "a connection was not accepted", about }
    });
    let refused = Refusal::ALL.iter().map(|each| {
        let (name, about) = (each.name(), each.describe());
        Reason { name, number: None, kind: "a message was refused", about }
    });
    let statuses = MATCHER_STATUSES.iter().map(|&(status, name, _, about)| {
        let number = Some(status as u16);
        Reason { name, number, kind: "the matcher's status of a request", about }
    });
    closed.chain(turned_away).chain(refused).chain(statuses)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use throng_server::StartError;
    use throng_server::config::{ProblemKind, Problems};

    #[test]
    fn close_codes_and_statuses_of_the_matcher_are_found_by_number() {
        let numbers: HashSet<u16> = super::reasons().filter_map(|reason| reason.number).collect();
        for number in [1012, 4003, 4007, 20, 44] {
            assert!(numbers.contains(&number), "{number}");
        }
    }

    #[test]
    fn every_code_of_a_problem_is_explained() {
        use ProblemKind::*;
        for kind in [Unreadable, Syntax, UnknownKey, BadValue, Conflict, UnsafeBind, BadReference, BadRules] {
            assert!(super::CODES.iter().any(|(code, _, _)| *code == kind.code()), "{kind:?}");
        }
    }

    #[test]
    fn every_code_of_a_start_is_explained() {
        let refused = || std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let bind =
            StartError::Bind { key: "http.addr".to_owned(), addr, source: refused(), hint: String::new() };
        let errors = [
            bind,
            StartError::Files(Problems(Vec::new())),
            StartError::File(String::new()),
            StartError::System { what: "a thread", source: refused() },
        ];
        for error in errors {
            assert!(super::CODES.iter().any(|(code, _, _)| *code == error.code()), "{error:?}");
        }
    }
}
