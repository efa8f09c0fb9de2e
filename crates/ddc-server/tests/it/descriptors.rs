//! A node whose file descriptors run short.

#![allow(clippy::print_stdout)] // the child tells its address

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use throng_ddc_server::Rules;

use crate::common::Server;

/// Time after which a node ends a connection that sends nothing.
const SILENCE: Duration = Duration::from_secs(20);

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("the node listens");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a limit");
    stream
}

/// Serves as many connections as the process has descriptors, until its standard input ends.
fn serve_with_few_descriptors() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let server = runtime.block_on(Server::start_with(Rules::default(), 10_000));
    // The test harness prints its own lines around this one.
    println!("\naddr {}", server.addr);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn a_newcomer_is_answered_beside_silent_connections_that_hold_all_descriptors() {
    const CHILD: &str = "THRONG_DDC_DESCRIPTORS_CHILD";
    const NAME: &str =
        "descriptors::a_newcomer_is_answered_beside_silent_connections_that_hold_all_descriptors";
    if std::env::var_os(CHILD).is_some() {
        return serve_with_few_descriptors();
    }
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(r#"ulimit -n 256 && exec "$0" --exact --nocapture "$1""#)
        .arg(std::env::current_exe().expect("this program"))
        .arg(NAME)
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let addr = output.find_map(|line| Some(line.expect("text").strip_prefix("addr ")?.to_owned()));
    let addr: SocketAddr = addr.expect("an address").parse().expect("an address");
    let since = Instant::now();
    let mut held: Vec<TcpStream> = (0..300).map(|_| connect(addr)).collect();
    for _ in 0..10 {
        let mut stream = connect(addr);
        let request = "GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    // The newcomers did not wait until silence ended the others: those of the silent that were
    // accepted last are there still, unless all this took so long on a busy machine.
    let is_open = held[180..230].iter_mut().all(|stream| {
        stream.set_nonblocking(true).expect("an option");
        stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    });
    assert!(is_open || since.elapsed() >= SILENCE);
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
}
