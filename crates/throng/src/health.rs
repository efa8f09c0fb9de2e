//! `throng health`: a health check for containers that have no curl.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgMatches;

use crate::output::{complain, print};

/// Longest wait for each step of the question.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let addr = matches.get_one::<String>("http").map_or("", String::as_str);
    let path = if matches.get_flag("live") { "/health/live" } else { "/health/ready" };
    match ask(addr, path) {
        Ok((status, body)) => {
            if matches.get_flag("json") {
                print(&format!("{body}\n"));
            } else if status != 200 {
                complain(&format!("not ready: {body}"));
            }
            if status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            complain(&format!("error: {addr}: {why}"));
            // 1, not 2: container runtimes reserve 2.
            ExitCode::FAILURE
        }
    }
}

/// Status and body of one answer.
fn ask(addr: &str, path: &str) -> Result<(u16, String), String> {
    let text = |error: std::io::Error| error.to_string();
    let bare = addr.trim_start_matches("http://").trim_end_matches('/');
    // `:8080` is how an address on all interfaces is written; from here it is reached over loopback.
    let full = if bare.starts_with(':') { format!("127.0.0.1{bare}") } else { bare.to_owned() };
    let target = full.to_socket_addrs().map_err(text)?.next().ok_or("no such host")?;
    let mut stream = TcpStream::connect_timeout(&target, TIMEOUT).map_err(text)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(text)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(text)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {full}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(text)?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer).map_err(text)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer is not HTTP")?;
    let status =
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("the answer has no status")?;
    Ok((status, body.trim().to_owned()))
}
