//! The command line: subcommands, flags and their help.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, value_parser};
use throng_server::SERVICES;

use crate::bench::BenchArgs;
use crate::ddc::DdcArgs;
use crate::keys::with_keys;
use crate::migrate::MigrateArgs;
use crate::replay::ReplayArgs;
use crate::report::{CompareArgs, ReportArgs};
use crate::suggest;
use crate::swarm::{DemoArgs, SwarmArgs};
use crate::tag::TagArgs;
use crate::top::TopArgs;
use crate::why::WhyArgs;
use crate::world::WorldArgs;

/// The commands by purpose. A test keeps the table complete.
const GROUPS: &[(&str, &[&str])] = &[
    ("Run", &["up", "demo", "tag", "channeld"]),
    ("Configure", &["config", "doctor", "migrate"]),
    ("Watch", &["top", "why", "explain", "health"]),
    ("Measure", &["bench", "swarm", "replay", "report", "compare"]),
    ("Maintain", &["world", "cluster", "ddc", "matcher"]),
    ("Program", &["help", "version", "completions", "man"]),
];

/// Commands before options; by default clap lists the commands without groups.
const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}Options:
{options}{after-help}";

const EXAMPLES: &str = "\
Examples:
  throng up                        every service on this machine, nothing to configure
  throng demo                      the same with simulated players in a small world
  throng swarm --players 100       100 simulated players join the server that runs here

`throng help` describes every command, `throng help COMMAND` one of them.";

const MORE_EXAMPLES: &str = "\
Examples:
  throng                                   start every service on this machine
  throng demo                              the same with players in a small world
  throng tag                               a game to play in the browser
  throng swarm --players 100               100 simulated players join the server that runs here
  throng channeld -dev -cfsm=config/client_authoratative_fsm.json
  throng bench channel single              the published scenario
  throng report DIR -f html > run.html     one page from what `throng bench --out DIR` saved
  throng compare BEFORE AFTER              differences of two saved results, with confidence
  throng config default > throng.toml      a configuration to start from
  throng doctor                            checks whether this machine is fit for a start
  throng top                               rates, shards, limits and busiest connections, live
  throng migrate check docker-compose.yml  how a channeld deployment translates
  throng why --conn 812 --channel 0        why this client gets no updates of this channel
  throng explain THR-0106                  the meaning of an error code
  throng completions bash                  also zsh, fish, powershell, elvish; `throng man DIR` writes manual pages

Without a command the flags of `throng up` apply; `throng help up` lists them.";

const UP_EXAMPLES: &str = "\
Examples:
  throng up                                every service on loopback, nothing to configure
  throng up --only gateway --schema game.proto
  throng up -c throng.toml --server.shards 4

Without --config, throng.toml and --only, every service listens on loopback.
Every key of the configuration is a flag; `throng help up` lists them.";

const CONFIG_EXAMPLES: &str = "\
Examples:
  throng config check -c throng.toml       every problem at once; exit 2 if there is one
  throng config show --origin              the values in effect and where each came from
  throng config default > throng.toml      all keys with their documentation
  throng config schema > throng.schema.json";

/// Flags of the program itself. All others are flags of `up` when no command is named.
const OWN_FLAGS: &[&str] = &["-h", "--help", "-V", "--version"];

/// Returns whether the words are those of a command that starts services in this process.
pub(crate) fn starts_services(arguments: &[OsString]) -> bool {
    match arguments.get(1) {
        Some(word) => word == "up" || word == "channeld" || is_flag_of_up(word),
        None => true,
    }
}

fn is_flag_of_up(word: &OsString) -> bool {
    word.as_encoded_bytes().starts_with(b"-") && !OWN_FLAGS.iter().any(|own| word == own)
}

/// Parses a command line; without a command it is one of `up`.
///
/// # Errors
/// Wrong input, with a suggestion, and requests for help.
pub(crate) fn parse(mut arguments: Vec<OsString>) -> Result<ArgMatches, Error> {
    if arguments.get(1).is_none_or(is_flag_of_up) {
        arguments.insert(1.min(arguments.len()), "up".into());
    }
    command().try_get_matches_from(&arguments).map_err(|mut error| {
        let mut built = command();
        built.build();
        suggest::improve(&mut error, &built, &arguments);
        error
    })
}

/// The whole command line. Commands with a flag for every key define them when they are built: the
/// flags of all of them would take milliseconds of each start.
pub(crate) fn command() -> Command {
    let command = Command::new("throng")
        .about("Multiplayer backend in one binary. With no command, runs `up`.")
        .help_template(TEMPLATE)
        .version(env!("CARGO_PKG_VERSION"))
        .override_usage("throng [COMMAND] [OPTIONS]")
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .after_help(EXAMPLES)
        .after_long_help(MORE_EXAMPLES)
        .subcommand(
            Command::new("up")
                .about("Start the services and print their addresses")
                .after_help(UP_EXAMPLES)
                .defer(up_flags),
        )
        .subcommand(
            DemoArgs::augment_args(Command::new("demo"))
                .about("Start every service with simulated players in a small world"),
        )
        .subcommand(
            Command::new("channeld")
                .about("Start a gateway with the flags, defaults and ports of channeld")
                .disable_help_flag(true),
        )
        .subcommand(
            BenchArgs::augment_args(Command::new("bench")).about("Measure published scenarios by name, beside the published figures"),
        )
        .subcommand(
            ReportArgs::augment_args(Command::new("report"))
                .about("Show saved results as text, Markdown or one HTML page"),
        )
        .subcommand(
            CompareArgs::augment_args(Command::new("compare"))
                .about("Compare two saved results, with confidence"),
        )
        .subcommand(
            SwarmArgs::augment_args(Command::new("swarm"))
                .about("Simulated players join a server")
                // `bench` has the same flag, and always starts a server of its own.
                .mut_arg("addr", |addr| {
                    addr.help("Players' listener [default: the server on this machine, or a new one]")
                }),
        )
        .subcommand(
            TagArgs::augment_args(Command::new("tag"))
                .about("Play tag in the browser, against simulated players"),
        )
        .subcommand(
            ReplayArgs::augment_args(Command::new("replay"))
                .about("Replay recorded sessions and report differences"),
        )
        .subcommand(
            DdcArgs::augment_args(Command::new("ddc")).about(
                "Maintain the folder of a derived-data cache: stats, verify, scrub, gc, export, import",
            ),
        )
        .subcommand(config_command())
        .subcommand(crate::matcher::command())
        .subcommand(
            Command::new("health")
                .about("Check whether a running process is ready; exit 0 if so, else 1")
                .arg(
                    Arg::new("http")
                        .long("http")
                        .value_name("ADDR")
                        .help("Admin address of the process")
                        .default_value("127.0.0.1:11280"),
                )
                .arg(
                    Arg::new("live")
                        .long("live")
                        .action(ArgAction::SetTrue)
                        .help("Check whether it is alive, ready or not"),
                )
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the answer")),
        )
        .subcommand(
            Command::new("doctor")
                .about("Check this machine for `throng up` with the same flags, and suggest fixes")
                .defer(|command| {
                    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("As JSON");
                    up_flags(command).arg(json)
                }),
        )
        .subcommand(
            Command::new("completions").about("Print a completion script for a shell").arg(
                Arg::new("shell")
                    .value_name("SHELL")
                    .required(true)
                    .value_parser(value_parser!(clap_complete::Shell)),
            ),
        )
        .subcommand(
            Command::new("man")
                .about("Write a manual page for every command")
                .arg(Arg::new("dir").value_name("DIR").required(true).help("Folder of the pages")),
        )
        .subcommand(
            MigrateArgs::augment_args(Command::new("migrate"))
                .about("Translate the files and flags of channeld"),
        )
        .subcommand(
            TopArgs::augment_args(Command::new("top"))
                .about("Watch a running process: rates, shards, limits, connections"),
        )
        .subcommand(
            WhyArgs::augment_args(Command::new("why"))
                .about("Explain why a client gets no updates, or why a ticket waits"),
        )
        .subcommand(
            WorldArgs::augment_args(Command::new("world"))
                .about("List, open and close the worlds of a running process"),
        )
        .subcommand(crate::cluster::command())
        .subcommand(
            Command::new("explain")
                .about("Explain an error code or a reason")
                .after_help("`throng why` explains what a running process does with one client or one ticket.")
                .arg(
                Arg::new("code").value_name("CODE").help(
                    "Code as printed (THR-0103), or a reason such as slow_reader; without one, all are listed",
                ),
            ),
        )
        .subcommand(
            Command::new("version")
                .about("Print the version; with --json also commit, build profile and features")
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("As JSON")),
        )
        .subcommand(
            // `main` turns it into the command's own --help; this is its line in lists and manual
            // pages.
            Command::new("help").about("Print the help of a command").arg(
                Arg::new("command").value_name("COMMAND").num_args(0..).help("Command, with its subcommand"),
            ),
        );
    let (names, abouts) = (group_names(), group_abouts(&command));
    command.before_help(names).before_long_help(abouts)
}

/// The commands by group, a line each.
fn group_names() -> String {
    let lines = GROUPS.iter().map(|(group, names)| format!("\n  {group:<11}{}", names.join(", ")));
    "Commands:".to_owned() + &lines.collect::<String>()
}

/// The commands by group with their descriptions.
fn group_abouts(command: &Command) -> String {
    let about = |name: &&str| {
        let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
        format!("\n  {name:<12} {}", about.unwrap_or_default())
    };
    let groups = GROUPS
        .iter()
        .map(|(group, names)| format!("{group}:{}", names.iter().map(about).collect::<String>()));
    groups.collect::<Vec<_>>().join("\n\n")
}

/// The flags of `throng up`, shared with other commands that start a gateway.
pub(crate) fn up_flags(command: Command) -> Command {
    let common = |arg: Arg| arg.help_heading("Common");
    let command = command
        .arg(common(
            Arg::new("only")
                .long("only")
                .value_name("SERVICES")
                .value_delimiter(',')
                .value_parser(PossibleValuesParser::new(
                    SERVICES.iter().map(|(name, about)| PossibleValue::new(*name).help(*about)),
                ))
                .help("Start these services only (server.only)"),
        ))
        .arg(common(
            Arg::new("data")
                .long("data")
                .value_name("DIR")
                .help("Folder of everything that is kept (server.data)"),
        ))
        .arg(common(Arg::new("http").long("http").value_name("ADDR").help("Admin address (http.addr)")))
        .arg(common(
            Arg::new("schema")
                .long("schema")
                .value_name("FILE")
                .action(ArgAction::Append)
                .help("Describe channel data: .proto or descriptor set; repeatable"),
        ))
        .arg(common(
            Arg::new("dev")
                .long("dev")
                .action(ArgAction::SetTrue)
                .help("Development mode: no authentication, loopback only (gateway.dev)"),
        ))
        .arg(common(
            Arg::new("cluster-dev")
                .long("cluster-dev")
                .value_name("DIR")
                .num_args(0..=1)
                .default_missing_value("")
                .hide_short_help(true)
                .help("Node of a trial cluster, with a NATS server that ends with it; with DIR, that of another node"),
        ))
        .arg(common(
            Arg::new("node")
                .long("node")
                .value_name("NAME")
                .requires("cluster-dev")
                .hide_short_help(true)
                .help("Name of the node in the trial cluster [default: n1]"),
        ))
        .arg(common(
            Arg::new("for")
                .long("for")
                .value_name("TIME")
                .value_parser(parse_duration)
                .help("Stop after this time: 500ms, 20s, 5m"),
        ))
        .arg(
            Arg::new("console-token")
                .long("console-token")
                .action(ArgAction::SetTrue)
                .hide(true)
                .help("Print a one-time token of the console even without a terminal"),
        );
    with_keys(command)
}

fn config_command() -> Command {
    let origin =
        Arg::new("origin").long("origin").action(ArgAction::SetTrue).help("Add the source of every value");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("As JSON");
    // A file named by position is meant for this run, so it takes precedence over THRONG_CONFIG.
    let file = Arg::new("file").value_name("FILE").help("Configuration file; the same as --config");
    Command::new("config")
        .about("Check, show or print the configuration")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .after_help(CONFIG_EXAMPLES)
        .subcommand(
            Command::new("check")
                .about("Report every problem; exit 2 if there is one")
                .arg(file.clone())
                .defer(with_keys),
        )
        .subcommand(
            Command::new("show")
                .about("Print the values in effect")
                .arg(file)
                .arg(origin)
                .arg(json)
                .defer(with_keys),
        )
        .subcommand(Command::new("default").about("Print a commented file with every key"))
        .subcommand(Command::new("schema").about("Print a JSON Schema for editors"))
}

/// Reads `500ms`, `20s`, `5m`, `2h`; a bare number is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = digits.parse().map_err(|_| "expected a time such as 500ms, 20s or 5m".to_owned())?;
    let factor = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        unit => return Err(format!("`{unit}` is none of ms, s, m, h")),
    };
    let seconds = number * factor;
    if !(0.0..=1e9).contains(&seconds) {
        return Err("expected a time between 0 and 30 years".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group() {
        let command = command();
        let mut known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, known);
        assert!(
            command.get_subcommands().all(|each| !each.is_hide_set()),
            "hidden commands have no manual page"
        );
    }

    #[test]
    fn times_are_read() {
        assert_eq!(parse_duration("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("3"), Ok(Duration::from_secs(3)));
        for bad in ["", "s", "-1s", "5x", "1e400s", "NaNs"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    /// Every command line of the documents, with the file that it stands in: those of code blocks
    /// and those in the text.
    fn documented() -> Vec<(String, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
        let mut folders = vec![root.join("docs")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("readable").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    files.push(path);
                }
            }
        }
        let mut found = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(&file).expect("readable").replace("\\\n", " ");
            let name = file.strip_prefix(&root).expect("below it").display().to_string();
            let mut in_block = false;
            for line in text.lines() {
                if line.starts_with("```") {
                    in_block = matches!(line, "```console" | "```sh");
                    continue;
                }
                let lines: Vec<&str> = match in_block {
                    true => vec![line.strip_prefix("$ ").unwrap_or(line)],
                    false => line.split('`').skip(1).step_by(2).collect(),
                };
                found.extend(lines.into_iter().map(|line| (name.clone(), line.trim().to_owned())));
            }
        }
        found
    }

    /// The words of a command: without comment, pipe, redirection, environment; as far as no shell
    /// is needed for it.
    fn words(line: &str) -> Vec<String> {
        // The output of another program stands for a number.
        let line = match (line.find("$("), line.find(')')) {
            (Some(from), Some(to)) if from < to => format!("{}1{}", &line[..from], &line[to + 1..]),
            _ => line.to_owned(),
        };
        let words = line.split_ascii_whitespace();
        let environment = |word: &&str| word.starts_with("THRONG_") && word.contains('=');
        let end = |word: &&str| !matches!(*word, "|" | ">" | "#" | "&&") && !word.starts_with('#');
        // A placeholder of the prose stands for any number.
        let plain = |word: &str| if word == "N" { "1".to_owned() } else { word.trim_matches('"').to_owned() };
        words.skip_while(environment).take_while(end).map(plain).collect()
    }

    #[test]
    fn every_command_of_the_documents_is_understood() {
        let makefile = include_str!("../../../Makefile");
        let (mut checked, mut wrong) = (0, Vec::new());
        for (file, line) in documented() {
            let words = words(&line);
            let Some((program, arguments)) = words.split_first() else { continue };
            let program = program.rsplit('/').next().unwrap_or(program);
            let why = match (program, arguments) {
                // The program or a command by its name.
                ("throng", []) => continue,
                ("throng", [name]) if command().find_subcommand(name).is_some() => None,
                ("throng", [first, rest @ ..]) if first == "channeld" => {
                    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
                    crate::channeld::check(&rest).err()
                }
                ("throng", [first, suite, rest @ ..])
                    if first == "bench" && ["ddc", "matcher", "replication"].contains(&suite.as_str()) =>
                {
                    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
                    let check = match suite.as_str() {
                        "ddc" => crate::bench_ddc::check,
                        "matcher" => crate::matcher::check,
                        _ => crate::replication::check,
                    };
                    check(&rest).err()
                }
                ("throng", _) => match parse(words.iter().map(OsString::from).collect()) {
                    Err(error) if error.use_stderr() => Some(error.to_string()),
                    _ => None,
                },
                ("make", [target, ..]) if !makefile.contains(&format!("\n{target}:")) => {
                    Some("the Makefile has no such target".to_owned())
                }
                ("make", _) => None,
                _ => continue,
            };
            checked += 1;
            wrong.extend(why.map(|why| format!("{file}: `{line}`: {why}")));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(checked > 30, "{checked} commands found: is the search broken?");
    }
}
