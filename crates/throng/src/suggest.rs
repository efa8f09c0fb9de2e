//! Suggestions for flags that do not exist: the nearest flag of the command, the key with that last
//! name, or the command that has the flag.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use throng_server::config::{KEYS, nearest};

/// Keys that are named at most when several end alike.
const KEYS_MAX: usize = 3;

/// Flags of other programs for the address of their only listener.
const ADDRESS_WORDS: &[&str] = &["port", "host", "listen", "bind", "address", "ip"];
/// Flags of the listeners of a process.
const ADDRESS_FLAGS: &[&str] =
    &["gateway.clients.addr", "gateway.servers.addr", "ddc.addr", "matcher.addr", "http"];

/// Replaces clap's suggestion in `error`, which considers one command only and measures similarity
/// instead of edit distance. `command` is built.
pub(crate) fn improve(error: &mut Error, command: &Command, arguments: &[OsString]) {
    if error.kind() == ErrorKind::InvalidSubcommand {
        return improve_command(error, used_command(command, arguments));
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    // clap shows the flags given so far and those that they require, the rest not.
    let usage = used_command(command, arguments).clone().render_usage();
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return };
    let Some(word) = given.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or(flag)) else {
        return;
    };
    if let Some(tip) = tip(word, command, arguments) {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// Suggests the nearest subcommand of `used`.
fn improve_command(error: &mut Error, used: &Command) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else { return };
    let near = nearest(given, used.get_subcommands().map(Command::get_name)).map(str::to_owned);
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::Suggested);
    if let Some(near) = near {
        let tip = format!("a similar command exists: '{near}'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

fn tip(word: &str, command: &Command, arguments: &[OsString]) -> Option<String> {
    let used = used_command(command, arguments);
    if ADDRESS_WORDS.contains(&word) && flags(used).any(|flag| ADDRESS_FLAGS.contains(&flag)) {
        let shown: Vec<String> = ADDRESS_FLAGS.iter().map(|flag| format!("'--{flag} HOST:PORT'")).collect();
        return Some(format!("each listener has a flag for its address: {}", shown.join(", ")));
    }
    if let Some(near) = nearest(word, flags(used)) {
        return Some(format!("a similar flag exists: '--{near}'"));
    }
    let has_keys = flags(used).any(|flag| KEYS.iter().any(|key| key.path == flag));
    let ends: Vec<&str> =
        KEYS.iter().map(|key| key.path.as_str()).filter(|path| leaf(path) == word).collect();
    if has_keys && !ends.is_empty() {
        let shown: Vec<String> = ends.iter().take(KEYS_MAX).map(|path| format!("'--{path}'")).collect();
        return Some(format!("flags of keys have the section in front: {}", shown.join(", ")));
    }
    let others = || command.get_subcommands().filter(move |other| other.get_name() != used.get_name());
    let plain = others().flat_map(flags).filter(|flag| !flag.contains('.'));
    let near = nearest(word, plain)?;
    let owners = others().filter(|other| flags(other).any(|flag| flag == near));
    let owners: Vec<String> = owners.map(|other| format!("`throng {}`", other.get_name())).collect();
    Some(format!("'--{near}' is a flag of {}", owners.join(", ")))
}

/// The command that the arguments name, by its path.
fn used_command<'c>(command: &'c Command, arguments: &[OsString]) -> &'c Command {
    let words =
        arguments.iter().skip(1).map_while(|word| word.to_str().filter(|word| !word.starts_with('-')));
    words
        .fold((command, true), |(used, goes_on), word| match used.find_subcommand(word) {
            Some(next) if goes_on => (next, true),
            _ => (used, false),
        })
        .0
}

fn flags(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().filter_map(clap::Arg::get_long)
}

/// The part behind the last dot.
fn leaf(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &str) {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let shown = crate::cli::parse(arguments).expect_err(line).render().to_string();
        assert!(shown.contains(expected) && shown.matches("tip:").count() == 1, "{line}: {shown}");
    }

    #[test]
    fn the_nearest_flag_is_suggested_wherever_it_is() {
        check("throng swarm --playrs 3", "'--players'");
        check("throng up --onyl ddc", "'--only'");
        check("throng up --gateway.client.addr x", "'--gateway.clients.addr'");
        check("throng up --playrs 3", "'--players' is a flag of `throng demo`");
        check("throng --onyl ddc", "'--only'");
        check("throng --playrs 3", "'--players' is a flag of `throng demo`");
        check("throng up --shards 3", "'--server.shards'");
        check("throng up --port 3", "'--gateway.clients.addr HOST:PORT'");
        check("throng up --host 0.0.0.0", "'--http HOST:PORT'");
        check("throng config check --shards 3", "'--server.shards'");
        check("throng config chk", "'check'");
        check("throng migrate chk", "'check'");
        check("throng tpo", "'top'");
    }

    #[test]
    fn the_usage_of_a_wrong_flag_is_that_of_its_command() {
        check("throng up --port 3", "Usage: throng up [OPTIONS]\n");
        check("throng bench channel --onyl 3", "Usage: throng bench [OPTIONS] [SUITE CASE]...\n");
    }

    #[test]
    fn nothing_is_suggested_for_another_word() {
        let arguments: Vec<OsString> = ["throng", "nope"].map(OsString::from).to_vec();
        let shown = crate::cli::parse(arguments).expect_err("no such command").render().to_string();
        assert!(!shown.contains("tip:"), "{shown}");
    }
}
