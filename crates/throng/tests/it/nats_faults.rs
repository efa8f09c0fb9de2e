//! Two matcher processes on a real bus that fails, as they do: a holder that is killed, that stands
//! still or loses its folder. Four clients go on meanwhile, and no answer contradicts an
//! acknowledged one.
//!
//! `THRONG_AREA_FAULTS=long` tries 100,000 requests, all lengths of faults, and the times within
//! which the area is served again: six minutes on a machine that does nothing else.
#![cfg(feature = "nats")]
#![allow(clippy::print_stdout, reason = "the times are results of a long run")]

use crate::bus;
use crate::nats;
use crate::process;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bus::{Bus, Caller, bus};
use nats::{History, signal, take_over};
use process::{Process, up};
use throng_stdx::Rng;

const CLIENTS: u64 = 4;
/// Far beyond what a step needs, on a machine that does a lot else.
const PATIENCE: Duration = Duration::from_secs(300);
/// A request without an answer is sent again after this time.
const ANSWER: Duration = Duration::from_secs(1);
/// Limit of the time until an area that can be served is.
const RETURN: Duration = Duration::from_secs(3);
/// Time without the bus after which a matcher serves nothing, and the time between renewals.
const FREEZE: Duration = Duration::from_secs(11);
const RENEWAL: Duration = Duration::from_secs(1);

/// Lengths of a run.
struct Plan {
    /// Requests of each of its parts.
    requests: usize,
    /// Times for which the holder stands still.
    stops: &'static [u64],
    /// Time for which the bus is away.
    away: u64,
    /// Time for which no matcher may serve after the state is lost.
    lost: u64,
    /// Times are compared with their limits.
    is_timed: bool,
}

#[allow(clippy::disallowed_methods, reason = "settings of a test run")]
fn plan() -> Plan {
    match std::env::var("THRONG_AREA_FAULTS").as_deref() {
        // Two runs of seven parts.
        Ok("long") => {
            Plan { requests: 100_000 / 14, stops: &[8, 13, 40], away: 20, lost: 20, is_timed: true }
        }
        _ => Plan { requests: 100, stops: &[2], away: 2, lost: 1, is_timed: false },
    }
}

/// A matcher process of area 1.
struct Matcher {
    process: Process,
    /// Address of its JSON interface, which it serves without the bus.
    http: String,
}

impl Matcher {
    fn start(folder: &Path, bus: &Bus, data: &str) -> Matcher {
        let mut command = up(folder, "matcher", data);
        command.args(["--matcher.addr", "127.0.0.1:0", "--matcher.http_addr", "127.0.0.1:0"]);
        command.args([
            "--matcher.area",
            "1",
            "--matcher.nats_url",
            &bus.url,
            "--matcher.presence_grace_ms",
            "600000",
        ]);
        let (process, said) = Process::ready(&mut command);
        let http = said.iter().find_map(|line| line.trim_start().strip_prefix("matcher, JSON"));
        let http = http.and_then(|line| line.trim().strip_prefix("http://")).expect("its address");
        Matcher { process, http: http.to_owned() }
    }

    /// Returns whether it serves a caller who does not ask over the bus.
    fn serves(&self) -> bool {
        let mut stream = TcpStream::connect(&self.http).expect("it listens");
        let head = "POST /matcher/v1/GetQueueStats HTTP/1.0\r\nContent-Length: 13\r\n\r\n{\"Queue\":\"x\"}";
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let status = answer.split(' ').nth(1).expect("a status").to_owned();
        assert!(["404", "503"].contains(&&*status), "{answer}");
        status == "404"
    }
}

/// Clients, each with a history of its own.
struct Players {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    answers: Receiver<String>,
    count: usize,
    /// Matchers that answered.
    matchers: BTreeSet<String>,
}

impl Players {
    fn begin(bus: &Bus, numbers: &AtomicU64) -> Players {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, answers) = channel();
        let threads = (0..CLIENTS)
            .map(|_| {
                let (url, stop, sender) = (bus.url.clone(), Arc::clone(&stop), sender.clone());
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || play(&url, number, &stop, &sender))
            })
            .collect();
        Players { stop, threads, answers, count: 0, matchers: BTreeSet::new() }
    }

    /// The next answer; `None` if there is none until a time.
    fn next(&mut self, until: Instant) -> Option<Instant> {
        match self.answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(matcher) => {
                self.matchers.insert(matcher);
                self.count += 1;
                Some(Instant::now())
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("an answer contradicts an acknowledged one"),
        }
    }

    /// Waits for some answers; returns the time of the first.
    fn answered(&mut self, requests: usize) -> Instant {
        let until = Instant::now() + PATIENCE;
        let times = (0..requests).map(|_| self.next(until).expect("answers go on"));
        times.reduce(|first, _| first).expect("one or more")
    }

    /// Waits until this many matchers have answered.
    fn answered_by(&mut self, matchers: usize) -> Instant {
        let until = Instant::now() + PATIENCE;
        while self.matchers.len() < matchers {
            self.next(until).expect("answers go on");
        }
        Instant::now()
    }

    /// Takes the answers of some time.
    fn pass(&mut self, length: Duration) {
        let until = Instant::now() + length;
        while self.next(until).is_some() {}
    }

    /// Each ends with the answer that it waits for. Returns how many they were.
    fn end(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("no answer contradicts an acknowledged one");
        }
        self.count + self.answers.try_iter().count()
    }
}

fn play(url: &str, number: u64, stop: &AtomicBool, answers: &Sender<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let caller = Caller::connect_to(url, "", number, ANSWER).await;
        let mut history = History::named(&format!("p{number}"));
        let mut rng = Rng::new(number);
        while !stop.load(Ordering::Relaxed) {
            let matcher = history.step(&caller, &mut rng).await;
            if answers.send(matcher).is_err() {
                break;
            }
        }
    });
}

/// Notes how long an area took to be served again.
fn back(plan: &Plan, what: &str, took: Duration) {
    println!("{what}: served again after {} ms", took.as_millis());
    assert!(!plan.is_timed || took <= RETURN, "{what}: {took:?}");
}

fn area_with_faults(names: [&str; 2], bus_dies: bool) {
    let Some(mut bus) = bus() else { return };
    let (plan, numbers) = (plan(), AtomicU64::new(1));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut holder = Matcher::start(folder.path(), &bus, names[0]);
    let mut players = Players::begin(&bus, &numbers);
    players.answered(1);
    let other = Matcher::start(folder.path(), &bus, names[1]);
    players.answered(plan.requests);

    let killed = Instant::now();
    holder.process.kill();
    holder = Matcher::start(folder.path(), &bus, names[0]);
    back(&plan, "killed and started again", players.answered_by(2) - killed);
    players.answered(plan.requests);
    assert_eq!(players.matchers.len(), 2, "both lives of the holder and no other matcher");

    for seconds in plan.stops {
        signal(holder.process.0.id(), "-STOP");
        players.pass(Duration::from_secs(*seconds));
        assert!(!other.serves());
        let woken = Instant::now();
        signal(holder.process.0.id(), "-CONT");
        back(&plan, &format!("stopped for {seconds} s"), players.answered(1) - woken);
        players.answered(plan.requests);
        assert_eq!(players.matchers.len(), 2, "it goes on, and no other matcher serves");
    }

    let left = Instant::now();
    if bus_dies {
        bus.kill()
    } else {
        signal(bus.id(), "-STOP")
    }
    let mut frozen = None;
    while left.elapsed() < Duration::from_secs(plan.away) {
        players.next(Instant::now() + Duration::from_millis(50));
        if frozen.is_none() && !holder.serves() {
            frozen = Some(left.elapsed());
        }
        assert!(!other.serves());
    }
    println!("without the bus: serves nothing after {frozen:?}");
    if plan.is_timed {
        let frozen = frozen.expect("its lease ended");
        assert!(frozen > FREEZE - 2 * RENEWAL && frozen < FREEZE + RENEWAL, "{frozen:?}");
    }
    let returned = Instant::now();
    if bus_dies {
        bus.start_again()
    } else {
        signal(bus.id(), "-CONT")
    }
    back(&plan, "without the bus", players.answered(1) - returned);
    players.answered(plan.requests);
    assert_eq!(players.matchers.len(), 2, "it goes on");

    // The state of the area is lost with the holder's folder.
    let mut requests = players.end();
    holder.process.kill();
    std::fs::remove_dir_all(folder.path().join(names[0])).expect("its folder");
    let holder = Matcher::start(folder.path(), &bus, names[0]);
    let mut players = Players::begin(&bus, &numbers);
    players.pass(Duration::from_secs(plan.lost));
    assert_eq!(players.count, 0, "no matcher has the state");
    assert!(!other.serves() && !holder.serves());
    take_over(&bus).expect("its holder is lost");
    let given = Instant::now();
    back(&plan, "after the takeover", players.answered(1) - given);
    players.answered(plan.requests);
    assert_eq!(players.matchers.len(), 1, "one of the two");
    requests += players.end();
    println!("{requests} answers, none of which contradicts another");
}

#[test]
fn no_answer_contradicts_an_acknowledged_one_while_the_holder_fails() {
    area_with_faults(["a", "b"], false);
}

#[test]
fn no_answer_contradicts_an_acknowledged_one_when_the_other_came_first() {
    area_with_faults(["b", "a"], true);
}
