//! `throng completions` and `throng man`: the command line's definition in the forms that shells
//! and man(1) read.

use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use clap_complete::Shell;

use crate::output::{complain, print};

/// Prints a completion script.
pub(crate) fn completions(matches: &ArgMatches, mut command: Command) -> ExitCode {
    let mut script = Vec::new();
    if let Some(shell) = matches.get_one::<Shell>("shell") {
        clap_complete::generate(*shell, &mut command, "throng", &mut script);
    }
    print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// Writes a page for every command.
pub(crate) fn man(matches: &ArgMatches, command: Command) -> ExitCode {
    let folder = Path::new(matches.get_one::<String>("dir").expect("clap requires it"));
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: cannot write to `{}`: {error}", folder.display()));
            ExitCode::from(2)
        }
    }
}
