//! Configuration keys as flags: `--gateway.clients.addr ADDR`, one per key, generated from the key
//! table.

use clap::{Arg, ArgAction, ArgMatches, Command};
use throng_server::config::{Config, KEYS, Kind, Loader, Problems, SECTIONS};

/// Adds `--config` and a flag for every key. The key flags show in the long help only.
pub(crate) fn with_keys(command: Command) -> Command {
    let config = Arg::new("config")
        .short('c')
        .long("config")
        .value_name("FILE")
        .help("Configuration file (TOML) [default: throng.toml if it exists]")
        .env("THRONG_CONFIG")
        .hide_env(true);
    KEYS.iter().fold(command.arg(config), |command, key| {
        let (section, _) = key.path.rsplit_once('.').unwrap_or_default();
        let heading =
            SECTIONS.iter().find(|known| known.path == section).map_or("Keys", |known| known.heading);
        let unit = if key.unit.is_empty() { String::new() } else { format!(", {}", key.unit) };
        let default = key.default.to_toml();
        let arg = Arg::new(key.path.as_str())
            .long(key.path.as_str())
            .value_name(key.kind.placeholder())
            .help(format!("{} [{}{unit}; default {default}]", key.doc, key.kind.allowed()))
            .help_heading(heading)
            .hide_short_help(true)
            .action(ArgAction::Set)
            .allow_hyphen_values(matches!(key.kind, Kind::Int { .. }));
        // A switch needs no value: `--gateway.dev` means true.
        let arg = match key.kind {
            Kind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            _ => arg,
        };
        command.arg(arg)
    })
}

/// File that is read when none is named.
const USUAL_FILE: &str = "throng.toml";

/// The configuration file of `matches`: the one that is named, else the usual one if it exists.
pub(crate) fn file(matches: &ArgMatches) -> Option<&str> {
    // Commands about the file itself take it by position, too.
    let named = matches.try_get_one::<String>("file").ok().flatten();
    named.or_else(|| matches.get_one("config")).map(String::as_str).or_else(usual_file)
}

fn usual_file<'a>() -> Option<&'a str> {
    std::path::Path::new(USUAL_FILE).is_file().then_some(USUAL_FILE)
}

/// Loads the configuration from the file, the environment and the flags of `matches`.
pub(crate) fn load(matches: &ArgMatches, base: Loader) -> Result<Config, Problems> {
    let mut loader = with_surroundings(base, file(matches));
    for key in KEYS.iter() {
        if let Some(text) = matches.get_one::<String>(&key.path) {
            loader = loader.flag(format!("--{}", key.path), key.path.as_str(), text.as_str());
        }
    }
    loader.load()
}

/// The file (named, or found) and the environment.
pub(crate) fn with_surroundings(base: Loader, file: Option<&str>) -> Loader {
    let loader = match file.or_else(usual_file) {
        Some(file) => base.file(file),
        None => base,
    };
    loader.env(
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    )
}
