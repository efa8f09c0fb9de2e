//! Printing: data to stdout, talk to stderr.

use std::io::Write as _;

/// Exit status when the output cannot be written.
const UNWRITTEN: i32 = 1;

/// Prints to stdout. A reader that closed the pipe has seen enough: that is success. Any other
/// failure ends the process with an error, because a truncated file looks like a result.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// As [`print()`], but a closed pipe does not end the process: it has an exit status to give.
pub(crate) fn print_result(text: &str) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        result => written(result),
    }
}

/// Prints the help or the error that ended the parsing of the command line.
pub(crate) fn print_usage(error: &clap::Error) {
    let printed = error.print();
    if !error.use_stderr() {
        written(printed.and_then(|()| std::io::stdout().flush()));
    }
}

fn written(result: std::io::Result<()>) {
    match result {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            complain(&format!("error: cannot write the output: {error}"));
            std::process::exit(UNWRITTEN);
        }
    }
}

/// This program as the user called it, quoted for a shell, for the start of printed commands.
pub(crate) fn program() -> String {
    let called = std::env::args().next().filter(|word| !word.is_empty());
    shell_word(called.as_deref().unwrap_or("throng"))
}

/// A word that a POSIX shell reads as it is.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+@%:,=".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Prints to stderr.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn words_with_meaning_for_a_shell_are_quoted() {
        assert_eq!(shell_word("target/release/throng"), "target/release/throng");
        assert_eq!(shell_word("a b/it's/throng"), r"'a b/it'\''s/throng'");
    }
}
