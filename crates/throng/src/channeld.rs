//! `throng channeld`: the reference's flags, defaults and ports, so that its command lines keep
//! working.
//!
//! The flags follow Go's rules: one dash or two, `-flag=value` or `-flag value`; switches stand
//! alone. Besides them, `--schema FILE`, `--config FILE` and every configuration key as `--key
//! VALUE` are understood.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use throng_server::config::{Config, KEYS, Kind, Loader, Value};
use throng_server::migrate::{FileKind, Finding, Weight};

use crate::output::{complain, print};
use crate::{keys, up};

/// Effect of a flag of the reference.
#[derive(Clone, Copy)]
enum Does {
    /// Sets a key to the flag's value.
    Key(&'static str),
    /// Sets a key after a translation.
    Translated(&'static str, fn(&str) -> Result<String, String>),
    /// Is checked to be a number and has no counterpart.
    Ignored,
    /// Profiles the whole run.
    Profile,
    /// Target key.
    ProfileDir,
}

/// Name, default, whether it is a switch, what it does, meaning.
struct Flag {
    name: &'static str,
    default: &'static str,
    switch: bool,
    does: Does,
    help: &'static str,
}

const fn flag(name: &'static str, default: &'static str, does: Does, help: &'static str) -> Flag {
    Flag { name, default, switch: false, does, help }
}

const fn switch(name: &'static str, default: &'static str, does: Does, help: &'static str) -> Flag {
    Flag { name, default, switch: true, does, help }
}

// Spec: gateway-protocol §11.1
const FLAGS: &[Flag] = &[
    switch("dev", "false", Does::Key("gateway.dev"), "development mode"),
    flag(
        "loglevel",
        "0",
        Does::Translated("log.level", log_level),
        "-4 trace ... -1 debug, 0 info, 1 warn, 2 error",
    ),
    flag("logfile", "", Does::Key("log.file"), "additional log file; {time} becomes the start time"),
    flag("profile", "", Does::Profile, "cpu: write a CPU profile at the end; mem, goroutine: no effect"),
    flag("profilepath", "profiles", Does::ProfileDir, "folder of the profile; the file is cpu.pprof"),
    flag(
        "sn",
        "tcp",
        Does::Translated("gateway.servers.transport", network),
        "transport of game servers: tcp, ws, kcp",
    ),
    flag("sa", ":11288", Does::Translated("gateway.servers.addr", address), "address for game servers"),
    flag("srb", "131071", Does::Ignored, "no effect: reads share one buffer"),
    flag("swb", "256", Does::Ignored, "no effect: unused in the reference too"),
    flag(
        "sfsm",
        "config/server_authoratative_fsm.json",
        Does::Key("gateway.servers.state_machine"),
        "state machine of game servers",
    ),
    switch(
        "sba",
        "true",
        Does::Key("gateway.auth.servers_bypass"),
        "game servers log in without authentication",
    ),
    switch(
        "scr",
        "false",
        Does::Key("gateway.recovery.servers"),
        "lost game servers may recover subscriptions and ownership",
    ),
    flag(
        "scrt",
        "0",
        Does::Key("gateway.recovery.servers_timeout_ms"),
        "time to recover, in ms; 0 = no limit",
    ),
    flag(
        "cn",
        "tcp",
        Does::Translated("gateway.clients.transport", network),
        "transport of players: tcp, ws, kcp",
    ),
    flag("ca", ":12108", Does::Translated("gateway.clients.addr", address), "address for players"),
    flag("crb", "131071", Does::Ignored, "no effect: reads share one buffer"),
    flag("cwb", "512", Does::Ignored, "no effect: unused in the reference too"),
    flag(
        "cfsm",
        "config/client_non_authoratative_fsm.json",
        Does::Key("gateway.clients.state_machine"),
        "state machine of players",
    ),
    switch(
        "cwm",
        "true",
        Does::Ignored,
        "no effect: the listener opens at once, as in the reference's stock build",
    ),
    switch("erp", "false", Does::Key("gateway.recordings.enabled"), "record the packets of players"),
    flag(
        "rspd",
        "",
        Does::Translated("gateway.recordings.dir", recordings_dir),
        "folder of recordings (default replays)",
    ),
    flag(
        "ct",
        "0",
        Does::Translated("gateway.compression", compression),
        "compression offered at login: 0 none, 1 Snappy",
    ),
    flag("scc", "", Does::Key("gateway.spatial.controller"), "spatial controller file"),
    flag("scs", "65536", Does::Key("gateway.spatial_channel_id_first"), "first spatial channel id"),
    flag("ecs", "524288", Does::Key("gateway.entity_channel_id_first"), "first entity channel id"),
    flag("mcb", "31", Does::Key("gateway.connection_id_bits"), "bits of connection ids"),
    flag("cat", "5000", Does::Key("gateway.limits.auth_timeout_ms"), "time to log in, in ms; 0 = no limit"),
    flag("mfaa", "5", Does::Key("gateway.limits.failed_auth_max"), "failed logins before a ban; 0 = never"),
    flag(
        "mfd",
        "10",
        Does::Key("gateway.limits.refused_messages_max"),
        "refused messages before a ban; 0 = never",
    ),
    flag("chs", "config/channel_settings_hifi.json", Does::Key("gateway.channels"), "channel settings"),
];

pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let words: Option<Vec<&str>> = arguments.iter().map(|word| word.to_str()).collect();
    let Some(words) = words else { return wrong("the arguments are not UTF-8 text") };
    if words.iter().any(|word| matches!(*word, "-h" | "-help" | "--help")) {
        print(&help());
        return ExitCode::SUCCESS;
    }
    let parsed = match parse(&words) {
        Ok(parsed) => parsed,
        Err(why) => return wrong(&why),
    };
    match configure(&parsed) {
        Ok(mut config) => {
            config.warnings.extend(parsed.remarks);
            let profile = parsed.profile.then(|| Path::new(&parsed.profile_dir).join("cpu.pprof"));
            up::serve(config, None, profile.as_deref(), false)
        }
        Err(problems) => {
            complain(&problems.to_string());
            ExitCode::from(2)
        }
    }
}

/// Result of reviewing a command line of channeld.
pub(crate) struct Reviewed {
    pub(crate) findings: Vec<Finding>,
    /// The files that it names, by the flag.
    pub(crate) files: Vec<(&'static str, String)>,
    /// Schemas were given.
    pub(crate) has_schema: bool,
    /// Resulting configuration; `None` if it is refused.
    pub(crate) config: Option<Config>,
}

/// Flags that name a file, and the kind of the file.
pub(crate) const FILE_FLAGS: [(&str, FileKind); 4] = [
    ("sfsm", FileKind::StateMachine),
    ("cfsm", FileKind::StateMachine),
    ("chs", FileKind::ChannelSettings),
    ("scc", FileKind::SpatialController),
];

/// Position of a finding that belongs to no single flag.
pub(crate) const ALL_FLAGS: &str = "all flags together";

/// Reports for every flag whether it has the same effect, another effect or none.
pub(crate) fn review(words: &[&str]) -> Reviewed {
    let mut parsed = Parsed { profile_dir: "profiles".to_owned(), ..Parsed::default() };
    let (mut findings, mut files) = (Vec::new(), Vec::new());
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        let (left, remarks) = (rest.clone(), parsed.remarks.len());
        let outcome = parse_flag(&mut parsed, word, &mut rest);
        let taken = left.clone().count() - rest.clone().count();
        let value = left.take(taken).map(|value| format!(" {value}")).collect::<String>();
        let path = format!("{word}{value}");
        let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
        let flag = FLAGS.iter().find(|flag| flag.name == name);
        findings.push(match (outcome, flag) {
            (Err(why), _) => Finding::new(Weight::Refused, path, why),
            (Ok(()), Some(Flag { does: Does::Ignored, help, .. })) => {
                Finding::new(Weight::Differs, path, *help)
            }
            (Ok(()), _) if parsed.remarks.len() > remarks => {
                Finding::new(Weight::Differs, path, parsed.remarks[remarks].clone())
            }
            (Ok(()), flag) => {
                if let Some((name, _)) = FILE_FLAGS.iter().find(|(each, _)| *each == name) {
                    let value = path.split_once(['=', ' ']).map_or("", |(_, value)| value);
                    files.push((*name, value.to_owned()));
                }
                Finding::new(Weight::Same, path, flag.map_or("a key of Throng", |flag| flag.help))
            }
        });
    }
    if !parsed.dev {
        let what = "without it, players are refused until `gateway.auth` is configured (channeld stops at the first login)";
        findings.push(Finding::new(Weight::Differs, "no -dev", what));
    }
    let config = configure(&parsed).map_err(|problems| {
        findings.push(Finding::new(Weight::Refused, ALL_FLAGS, problems.to_string()));
    });
    Reviewed { findings, files, has_schema: !parsed.schemas.is_empty(), config: config.ok() }
}

/// True if a word is a flag of the reference, with or without a value.
pub(crate) fn is_flag(word: &str) -> bool {
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    word.starts_with('-') && FLAGS.iter().any(|flag| flag.name == name)
}

/// Parses a command line without running it.
#[cfg(test)]
pub(crate) fn check(words: &[&str]) -> Result<(), String> {
    if words == ["-help"] { Ok(()) } else { parse(words).map(drop) }
}

fn wrong(why: &str) -> ExitCode {
    complain(&format!("error: {why}\n\n`throng channeld -help` lists the flags"));
    ExitCode::from(2)
}

/// A command line after translation.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    /// Flag as written, key, value.
    keys: Vec<(String, String, String)>,
    schemas: Vec<String>,
    config: Option<String>,
    dev: bool,
    profile: bool,
    profile_dir: String,
    remarks: Vec<String>,
}

fn parse(words: &[&str]) -> Result<Parsed, String> {
    let mut parsed = Parsed { profile_dir: "profiles".to_owned(), ..Parsed::default() };
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        parse_flag(&mut parsed, word, &mut rest)?;
    }
    Ok(parsed)
}

/// Reads one flag, with its value if that is the next word.
fn parse_flag<'a>(
    parsed: &mut Parsed,
    word: &str,
    rest: &mut (impl Iterator<Item = &'a str> + Clone),
) -> Result<(), String> {
    let Some(body) =
        word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|body| !body.is_empty())
    else {
        return Err(format!("unexpected `{word}`; flags begin with a dash"));
    };
    let (name, inline) = match body.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (body, None),
    };
    let shown = &word[..word.len() - body.len() + name.len()];
    let needs_value = || format!("flag `{shown}` needs a value");
    if let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) {
        let value = match inline {
            Some(value) => value.to_owned(),
            None if flag.switch => switch_value(rest).to_owned(),
            None => rest.next().ok_or_else(needs_value)?.to_owned(),
        };
        return apply(parsed, flag, shown, &value);
    }
    if name == "schema" || name == "config" {
        let value =
            inline.map(str::to_owned).or_else(|| rest.next().map(str::to_owned)).ok_or_else(needs_value)?;
        match name {
            "schema" => parsed.schemas.push(value),
            _ => parsed.config = Some(value),
        }
        return Ok(());
    }
    let Some(key) = KEYS.iter().find(|key| key.path == name) else {
        return Err(format!("unknown flag `{shown}`{}", suggestion(name)));
    };
    let value = match inline {
        Some(value) => value.to_owned(),
        None if key.kind == Kind::Bool => switch_value(rest).to_owned(),
        None => rest.next().ok_or_else(needs_value)?.to_owned(),
    };
    parsed.keys.push((shown.to_owned(), name.to_owned(), value));
    Ok(())
}

/// A switch alone means true. A value behind a blank would end the flags in Go; here it is taken
/// for what it says.
fn switch_value<'a>(rest: &mut (impl Iterator<Item = &'a str> + Clone)) -> &'a str {
    match rest.clone().next() {
        Some(word) if matches!(word, "true" | "false" | "1" | "0") => {
            rest.next();
            word
        }
        _ => "true",
    }
}

fn apply(parsed: &mut Parsed, flag: &Flag, shown: &str, value: &str) -> Result<(), String> {
    // Boolean values of Go's flag package.
    let value = match value {
        "t" | "T" | "TRUE" | "True" if flag.switch => "true",
        "f" | "F" | "FALSE" | "False" if flag.switch => "false",
        value => value,
    };
    let bad = |why: String| format!("bad value `{value}` for flag `{shown}`: {why}");
    match flag.does {
        Does::Key(key) => {
            parsed.dev |= flag.name == "dev" && matches!(value, "true" | "1");
            parsed.keys.push((shown.to_owned(), key.to_owned(), value.to_owned()));
        }
        Does::Translated(key, translate) => {
            let value = translate(value).map_err(bad)?;
            parsed.keys.push((shown.to_owned(), key.to_owned(), value));
        }
        Does::Ignored if flag.switch => {}
        Does::Ignored => drop(value.parse::<i64>().map_err(|_| bad("expected a number".to_owned()))?),
        Does::Profile => match value {
            "" => {}
            "cpu" => parsed.profile = true,
            "mem" | "goroutine" => parsed.remarks.push(format!(
                "{shown} {value} has no effect: only CPU profiles exist; /metrics shows memory usage"
            )),
            _ => return Err(bad("expected cpu, mem or goroutine".to_owned())),
        },
        Does::ProfileDir => value.clone_into(&mut parsed.profile_dir),
    }
    Ok(())
}

fn configure(parsed: &Parsed) -> Result<Config, throng_server::config::Problems> {
    let text = |text: &str| Value::Text(text.to_owned());
    let defaults = [
        ("gateway.servers.addr", text(":11288")),
        ("gateway.clients.addr", text(":12108")),
        ("gateway.clients.extra", Value::List(Vec::new())),
        ("gateway.permissions", text("channeld")),
        // The reference listens on all interfaces and authenticates no login in development mode;
        // its users expect the same here.
        ("gateway.servers.unsafe_binds", Value::Bool(true)),
        ("gateway.clients.unsafe_binds", Value::Bool(true)),
        ("gateway.limits.clients_per_address_max", Value::Int(0)),
        // In production mode it has no provider and dies at the first login; refusing players is
        // the safe reading.
        ("gateway.auth.kind", text(if parsed.dev { "none" } else { "refuse" })),
        ("gateway.limits.client_messages_per_s_max", Value::Int(0)),
        ("gateway.limits.client_bytes_per_s_max", Value::Int(0)),
        ("gateway.limits.channels_per_client_max", Value::Int(1 << 20)),
        ("gateway.limits.subscriptions_per_client_max", Value::Int(1 << 20)),
        ("gateway.limits.metadata_bytes_max", Value::Int(60_000)),
        ("gateway.recordings.dir", text("replays")),
        ("http.addr", text(":8080")),
        ("http.required", Value::Bool(false)),
        ("metrics.open", Value::Bool(true)),
        ("metrics.compat", text("channeld")),
        ("log.level", text(if parsed.dev { "info,throng=debug" } else { "info" })),
    ];
    let mut loader = Loader::new();
    for (key, value) in defaults {
        loader = loader.command_default("channeld", key, value);
    }
    loader = keys::with_surroundings(loader, parsed.config.as_deref());
    if !parsed.schemas.is_empty() {
        loader = loader.flag("--schema", "gateway.schemas", parsed.schemas.join(","));
    }
    for (shown, key, value) in &parsed.keys {
        loader = loader.flag(shown.as_str(), key.as_str(), value.as_str());
    }
    loader.load()
}

fn log_level(value: &str) -> Result<String, String> {
    let level = match value.parse::<i32>().map_err(|_| "expected a number from -4 to 3".to_owned())? {
        -4..=-2 => "trace",
        -1 => "debug",
        0 => "info",
        1 => "warn",
        2 | 3 => "error",
        _ => return Err("expected a number from -4 to 3".to_owned()),
    };
    Ok(level.to_owned())
}

fn network(value: &str) -> Result<String, String> {
    match value {
        "tcp" | "tcp4" | "tcp6" => Ok("tcp".to_owned()),
        "ws" | "websocket" => Ok("ws".to_owned()),
        "kcp" => Ok("kcp".to_owned()),
        _ => Err("expected tcp, ws, websocket or kcp".to_owned()),
    }
}

/// Takes `scheme://host:port/path` apart; the path never worked in the reference, and every path is
/// served here.
fn address(value: &str) -> Result<String, String> {
    let bare = value.split_once("://").map_or(value, |(_, rest)| rest);
    Ok(bare.split('/').next().unwrap_or(bare).to_owned())
}

fn recordings_dir(value: &str) -> Result<String, String> {
    Ok(if value.is_empty() { "replays".to_owned() } else { value.to_owned() })
}

fn compression(value: &str) -> Result<String, String> {
    match value {
        "0" => Ok("none".to_owned()),
        "1" => Ok("snappy".to_owned()),
        _ => Err("expected 0 or 1".to_owned()),
    }
}

fn suggestion(name: &str) -> String {
    let own = ["schema", "config"];
    let names = FLAGS.iter().map(|flag| flag.name).chain(own).chain(KEYS.iter().map(|key| key.path.as_str()));
    throng_server::config::nearest(name, names)
        .map(|near| format!("; did you mean `-{near}`?"))
        .unwrap_or_default()
}

fn help() -> String {
    let mut out = String::from(
        "Start with the flags, defaults and ports of channeld\n\n\
         Usage: throng channeld [-flag value | -flag=value]... [--schema FILE]... [--key value]...\n\nFlags:\n",
    );
    for flag in FLAGS {
        let name = format!("-{}", flag.name);
        let default =
            if flag.default.is_empty() { String::new() } else { format!(" (default {})", flag.default) };
        out.push_str(&format!("  {name:<13}{}{default}\n", flag.help));
    }
    out.push_str(
        "\nAlso:\n  --schema FILE  describe channel data: .proto or descriptor set; repeatable\n  \
         --config FILE  configuration file (TOML); flags override it\n  --KEY VALUE    any key of the configuration; \
         `throng config default` lists them\n\n\
         Without their files, the stock state machines and channel settings are built in.\n\n\
         Examples:\n  throng channeld -dev\n  throng channeld -dev -ct=0 -mcb=13 \\\n      \
         -cfsm=config/client_authoratative_fsm.json -chs=config/channel_settings_ue.json\n",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(words: &[&str]) -> throng_server::config::Settings {
        configure(&parse(words).unwrap()).unwrap().settings
    }

    #[test]
    fn every_flag_parses_with_its_default_in_both_forms_and_both_dashes() {
        for flag in FLAGS {
            for dash in ["-", "--"] {
                let joined = format!("{dash}{}={}", flag.name, flag.default);
                let name = format!("{dash}{}", flag.name);
                let one = parse(&[joined.as_str()]).unwrap_or_else(|why| panic!("{joined}: {why}"));
                let two = parse(&[name.as_str(), flag.default]).unwrap_or_else(|why| panic!("{name}: {why}"));
                assert_eq!(one, two, "{name}");
                configure(&one).unwrap_or_else(|problems| panic!("{joined}: {problems}"));
            }
        }
    }

    #[test]
    fn the_defaults_of_the_table_are_the_defaults_in_effect() {
        let without = configure(&Parsed::default()).unwrap();
        for flag in FLAGS {
            let key = match flag.does {
                Does::Key(key) | Does::Translated(key, _) => key,
                Does::Profile | Does::ProfileDir | Does::Ignored => continue,
            };
            let joined = format!("-{}={}", flag.name, flag.default);
            let with = configure(&parse(&[joined.as_str()]).unwrap()).unwrap();
            let stock = |value: Option<&Value>| match value {
                Some(Value::Text(text)) => text
                    .replace("config/", "")
                    .replace("_fsm.json", "")
                    .replace("channel_settings_", "")
                    .replace(".json", ""),
                other => format!("{other:?}"),
            };
            assert_eq!(stock(with.value(key)), stock(without.value(key)), "{}", flag.name);
        }
    }

    #[test]
    fn a_typical_unreal_start() {
        let settings = settings(&[
            "-dev",
            "-ct=0",
            "-mcb=13",
            "-cfsm",
            "config/client_authoratative_fsm.json",
            "-chs=config/channel_settings_ue.json",
            "-scc=config/spatial_static_2x2.json",
            "-sa",
            "127.0.0.1:0",
        ]);
        assert!(settings.gateway.dev);
        assert_eq!(settings.gateway.connection_id_bits, 13);
        assert_eq!(settings.clients.state_machine, "config/client_authoratative_fsm.json");
        assert_eq!(settings.auth.kind, "none");
        assert_eq!(
            (settings.servers.addr.as_str(), settings.clients.addr.as_str()),
            ("127.0.0.1:0", ":12108")
        );
        assert_eq!((settings.http.addr.as_str(), settings.metrics.compat.as_str()), (":8080", "channeld"));
        assert_eq!(settings.gateway.permissions, "channeld");
    }

    #[test]
    fn switches_schemas_keys_and_addresses() {
        let parsed = parse(&[
            "-sba=false",
            "-erp",
            "-scr",
            "true",
            "--schema",
            "a.proto",
            "--schema=b.proto",
            "-cn=websocket",
            "-ca=ws://0.0.0.0:12108/ws",
            "--server.shards",
            "2",
            "--gateway.dev=false",
        ])
        .unwrap();
        let find = |key: &str| {
            parsed.keys.iter().rfind(|(_, known, _)| known == key).map(|(_, _, value)| value.as_str())
        };
        assert_eq!(find("gateway.auth.servers_bypass"), Some("false"));
        assert_eq!(find("gateway.recordings.enabled"), Some("true"));
        assert_eq!(find("gateway.recovery.servers"), Some("true"));
        assert_eq!(find("gateway.clients.transport"), Some("ws"));
        assert_eq!(find("gateway.clients.addr"), Some("0.0.0.0:12108"));
        assert_eq!(find("server.shards"), Some("2"));
        assert_eq!(parsed.schemas, ["a.proto", "b.proto"]);
        assert!(!parsed.dev);
    }

    #[test]
    fn mistakes_are_named() {
        for (words, part) in [
            (&["-devv"][..], "did you mean `-dev`"),
            (&["-sa"], "needs a value"),
            (&["stray"], "unexpected `stray`"),
            (&["-"], "unexpected `-`"),
            (&["-ct=7"], "expected 0 or 1"),
            (&["-cn=udp"], "expected tcp"),
            (&["-srb=x"], "expected a number"),
            (&["-profile=heap"], "expected cpu, mem or goroutine"),
            (&["-loglevel=9"], "from -4 to 3"),
        ] {
            let why = parse(words).unwrap_err();
            assert!(why.contains(part), "{words:?}: {why}");
        }
        let parsed = parse(&["-mcb=99"]).unwrap();
        assert!(configure(&parsed).unwrap_err().to_string().contains("flag -mcb"));
    }
}
