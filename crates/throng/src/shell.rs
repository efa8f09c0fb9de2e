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

/// Names the section of examples and the program of each page, which the generator does not know.
fn correct_pages(folder: &Path) -> std::io::Result<()> {
    let program = concat!("\"throng ", env!("CARGO_PKG_VERSION"), "\"");
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_ours = path.file_stem().is_some_and(|name| name.to_string_lossy().starts_with("throng"));
        if !is_ours || path.extension().is_none_or(|extension| extension != "1") {
            continue;
        }
        let page = std::fs::read_to_string(&path)?.replace(".SH EXTRA\n", ".SH EXAMPLES\n");
        let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
        if let Some(head) = lines.iter_mut().find(|line| line.starts_with(".TH "))
            && let Some((before, _)) = head.split_once('"')
        {
            *head = format!("{before}{program}");
        }
        std::fs::write(&path, lines.join("\n") + "\n")?;
    }
    Ok(())
}

/// Writes a page for every command.
pub(crate) fn man(matches: &ArgMatches, command: Command) -> ExitCode {
    let folder = Path::new(matches.get_one::<String>("dir").expect("clap requires it"));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .and_then(|()| correct_pages(folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: cannot write to `{}`: {error}", folder.display()));
            ExitCode::from(2)
        }
    }
}
