//! Printing: data to stdout, talk to stderr.

use std::io::Write as _;

/// Prints to stdout. A reader that closed the pipe has seen enough: that is success.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Prints to stderr.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
