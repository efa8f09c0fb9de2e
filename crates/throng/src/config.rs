//! `throng config check|show|default|schema`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;
use throng_server::check_files;
use throng_server::config::{self, CLASSES, Config, Loader, Origin, Problems, SECTIONS};

use crate::output::{complain, print};
use crate::{keys, up};

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    match matches.subcommand() {
        Some(("check", matches)) => with_config(matches, |config| {
            for warning in &config.warnings {
                complain(&format!("warning: {warning}"));
            }
            check_files(config)?;
            print(match keys::file(matches) {
                Some(_) => "the configuration is valid\n",
                None => "no throng.toml here; the defaults are valid\n",
            });
            Ok(())
        }),
        Some(("show", matches)) => with_config(matches, |config| {
            let origin = matches.get_flag("origin");
            print(&if matches.get_flag("json") {
                show_json(config, origin)
            } else {
                show_toml(config, origin)
            });
            Ok(())
        }),
        Some(("default", _)) => {
            print(&config::default_toml());
            ExitCode::SUCCESS
        }
        Some(("schema", _)) => {
            print(&format!("{:#}\n", config::schema()));
            ExitCode::SUCCESS
        }
        _ => unreachable!("clap requires one of the subcommands above"),
    }
}

fn with_config(matches: &ArgMatches, show: impl FnOnce(&Config) -> Result<(), Problems>) -> ExitCode {
    // Without a file: what `throng up` runs with.
    let loader = match keys::file(matches) {
        Some(_) => Loader::new(),
        None => up::everything(Loader::new()),
    };
    match keys::load(matches, loader).and_then(|config| show(&config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => {
            complain(&problems.to_string());
            ExitCode::from(2)
        }
    }
}

/// A file that would give the same configuration.
fn show_toml(config: &Config, with_origin: bool) -> String {
    let mut out = String::new();
    for section in SECTIONS {
        if !out.is_empty() {
            out.push('\n');
        }
        let _ = writeln!(out, "[{}]", section.path);
        for (key, value, origin) in config.entries() {
            let Some((parent, name)) = key.path.rsplit_once('.') else { continue };
            if parent != section.path {
                continue;
            }
            write_line(&mut out, name, value, with_origin.then_some(origin));
        }
    }
    for class in config.class_entries() {
        let _ = writeln!(out, "\n[[{CLASSES}]]");
        for (name, value, origin) in class {
            write_line(&mut out, name, value, with_origin.then_some(origin));
        }
    }
    out
}

fn write_line(out: &mut String, name: &str, value: &config::Value, origin: Option<&Origin>) {
    let line = format!("{name} = {}", value.to_toml());
    let _ = match origin {
        Some(origin) => writeln!(out, "{line:<48} # {origin}"),
        None => writeln!(out, "{line}"),
    };
}

fn show_json(config: &Config, with_origin: bool) -> String {
    let entry = |value: &config::Value, origin: &Origin| match with_origin {
        true => serde_json::json!({ "value": value.to_json(), "origin": origin.to_string() }),
        false => value.to_json(),
    };
    let mut all: serde_json::Map<String, serde_json::Value> =
        config.entries().map(|(key, value, origin)| (key.path.clone(), entry(value, origin))).collect();
    let class = |keys: Vec<(&str, &config::Value, &Origin)>| -> serde_json::Value {
        keys.into_iter().map(|(name, value, origin)| (name.to_owned(), entry(value, origin))).collect()
    };
    let classes: Vec<_> = config.class_entries().map(class).collect();
    if !classes.is_empty() {
        all.insert(CLASSES.to_owned(), classes.into());
    }
    format!("{:#}\n", serde_json::Value::Object(all))
}
