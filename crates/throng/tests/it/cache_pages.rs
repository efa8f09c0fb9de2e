//! `throng up --only ddc` opens the cache, its metrics and its health at one address.

use crate::process;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use process::{Process, up};

/// Far beyond what any step needs; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// Hash of the word `test`.
const HASH: &str = "4878CA0425C739FA427F7EDA20FE845F6B2E46BA";

/// Answer to one request, on a connection of its own: status and the rest.
fn ask(addr: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
    ask_as(addr, addr, method, path, headers, body)
}

/// The same, for another host name.
fn ask_as(host: &str, addr: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer, then the end");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), answer)
}

/// Value of a series on a page of metrics.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {page}")).trim().parse().expect("a number")
}

/// The address that the process says its service has.
fn address(said: &[String], service: &str) -> String {
    let own = said.iter().filter(|line| line.trim_start().starts_with(service));
    let addr = own.filter_map(|line| Some(line.split_once("http://")?.1.trim().to_owned())).next_back();
    addr.unwrap_or_else(|| panic!("no address of {service}: {said:?}"))
}

#[test]
fn a_cache_with_an_address_of_its_own_has_metrics_and_console_at_the_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = up(folder.path(), "ddc", "d");
    let (_process, said) = Process::ready(command.args(["--ddc.addr", "127.0.0.1:0"]));
    let (cache, http) = (address(&said, "cache"), address(&said, "admin"));
    assert_ne!(cache, http);
    let path = format!("/api/v1/refs/test/default/{HASH}");
    let headers = format!("Content-Type: application/octet-stream\r\nX-Jupiter-IoHash: {HASH}\r\n");
    assert_eq!(ask(&cache, "PUT", &path, &headers, b"test").0, 200);
    assert_eq!(ask(&http, "GET", "/metrics", "", b"").0, 200);
    assert_eq!(ask(&http, "GET", "/console/", "", b"").0, 200);
    for addr in [cache, http] {
        assert_eq!(ask(&addr, "GET", "/health/ready", "", b"").0, 200, "{addr}");
    }
}

#[test]
fn a_cache_whose_admin_address_is_empty_has_neither_metrics_nor_console() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.current_dir(folder.path()).args([
        "up",
        "--only",
        "ddc",
        "--data",
        "d",
        "--ddc.addr",
        "127.0.0.1:0",
        "--http.addr",
        "",
    ]);
    let (_process, said) = Process::ready(&mut command);
    let addr = address(&said, "cache");
    for (path, status) in [("/health/ready", 200), ("/metrics", 404), ("/console/", 404)] {
        assert_eq!(ask(&addr, "GET", path, "", b"").0, status, "{path}");
    }
}

#[test]
fn the_address_of_a_cache_serves_its_metrics_and_health_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_process, said) = Process::ready(&mut up(folder.path(), "ddc", "d"));
    let addr = address(&said, "cache");
    let path = format!("/api/v1/refs/test/default/{HASH}");
    let headers = format!("Content-Type: application/octet-stream\r\nX-Jupiter-IoHash: {HASH}\r\n");
    assert_eq!(ask(&addr, "GET", &path, "", b"").0, 404);
    assert_eq!(ask(&addr, "PUT", &path, &headers, b"test").0, 200);
    assert_eq!(ask(&addr, "GET", &path, "Accept: application/octet-stream\r\n", b"").0, 200);
    let (status, page) = ask(&addr, "GET", "/metrics", "", b"");
    assert_eq!(status, 200, "{page}");
    assert_eq!(value(&page, "throng_ddc_lookups_total{kind=\"ref\",result=\"hit\"}"), 1.0);
    assert_eq!(value(&page, "throng_ddc_lookups_total{kind=\"ref\",result=\"miss\"}"), 1.0);
    assert_eq!(value(&page, "throng_ddc_request_seconds_count{operation=\"get_ref\"}"), 2.0);
    assert_eq!(value(&page, "throng_ddc_request_seconds_count{operation=\"put_ref\"}"), 1.0);
    assert!(value(&page, "throng_ddc_free_bytes") > 0.0);
    assert!(value(&page, "throng_ddc_used_bytes") > 0.0);
    assert_eq!(value(&page, "throng_ddc_full"), 0.0);
    assert_eq!(value(&page, "throng_ddc_upkeep_failures_total"), 0.0);
    for health in ["/health/live", "/health/ready", "/health/liveness", "/health/readiness"] {
        let (status, answer) = ask(&addr, "GET", health, "", b"");
        assert_eq!(status, 200, "{health}: {answer}");
    }
    // Pages are guarded as on a listener of their own, but for the console's own files.
    for page in ["/metrics", "/api/v1/cache"] {
        let (status, answer) = ask_as("evil.example", &addr, "GET", page, "", b"");
        assert_eq!(status, 403, "{page}: {answer}");
    }
}
