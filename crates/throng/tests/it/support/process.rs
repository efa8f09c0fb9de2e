//! The program as a process of its own.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that is killed when dropped.
pub(crate) struct Process(pub(crate) Child);

/// `throng up` of some services in a folder, with its admin listener on a port of its own.
pub(crate) fn up(folder: &Path, only: &str, data: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["up", "--only", only, "--data", data, "--http", "127.0.0.1:0"]);
    command.current_dir(folder);
    command
}

/// The body of a response with status 200; `None` for any other end.
pub(crate) fn fetch(address: &str, path: &str) -> Option<String> {
    let (status, body) = fetch_any(address, path)?;
    status.contains(" 200 ").then_some(body)
}

/// The first line of a response, and its body.
pub(crate) fn fetch_any(address: &str, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    // HTTP/1.0: the end of the body is the end of the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

impl Process {
    /// Starts `throng up` and waits until it is ready: the process, and the lines that it said.
    pub(crate) fn ready(command: &mut Command) -> (Process, Vec<String>) {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let process = Process(child);
        let mut said = Vec::new();
        for line in stdout.lines() {
            said.push(line.expect("text"));
            if said.last().is_some_and(|line| line.trim_start().starts_with("stop")) {
                return (process, said);
            }
        }
        panic!("it ended before it was ready: {said:?}");
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
