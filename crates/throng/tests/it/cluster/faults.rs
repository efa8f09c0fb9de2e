//! Nodes and the bus fail, and no two nodes serve a world at the same time.
//!
//! `THRONG_CLUSTER_FAULTS=long` (`scripts/cluster-faults`) plays faults of full length and prints
//! the times without a home.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_client::{Backoff, Client, SessionConfig};

use super::{Cluster, Node, PATIENCE, farewell, inside, is_ready, log_in};
use crate::bus::bus;
use crate::nats::signal;

/// Limits of the time without a home: after a restart with the folder, and for good.
const RESTARTED: Duration = Duration::from_secs(3);
const LOST: Duration = Duration::from_secs(20);
/// A request without an answer is given up after this time.
const ANSWER: Duration = Duration::from_millis(500);

/// Time during which a node served the default world to one connection: from the first answer to
/// the sending of the last request that was answered.
#[derive(Clone, Debug)]
struct Tenure {
    node: String,
    first: Instant,
    last: Instant,
}

/// Observations of players in the default world.
#[derive(Default)]
struct History(Mutex<Vec<Tenure>>);

impl History {
    /// Notes an answer to a request. `tenure` is that of the connection, if it had an answer.
    fn note(&self, node: &str, tenure: &mut Option<usize>, sent: Instant, answered: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match tenure {
            Some(index) => all[*index].last = sent,
            None => {
                *tenure = Some(all.len());
                all.push(Tenure { node: node.to_owned(), first: answered, last: sent });
            }
        }
    }

    fn all(&self) -> Vec<Tenure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time of the first answer of any node, other than `without`, after a time.
    fn served_after(&self, after: Instant, without: Option<&str>) -> Instant {
        let until = Instant::now() + PATIENCE;
        loop {
            let all = self.all();
            let later = all.iter().filter(|tenure| Some(&*tenure.node) != without && tenure.last > after);
            if let Some(at) = later.map(|tenure| tenure.first.max(after)).min() {
                return at;
            }
            assert!(Instant::now() < until, "no node serves the world: {all:?}");
            std::thread::yield_now();
        }
    }

    /// The node that serves the world now.
    fn node(&self) -> String {
        let now = Instant::now();
        self.served_after(now, None);
        let all = self.all();
        all.iter().max_by_key(|tenure| tenure.last).map(|tenure| tenure.node.clone()).expect("a tenure")
    }

    /// No two nodes served the world at the same time.
    fn check(&self) {
        let all = self.all();
        for (index, one) in all.iter().enumerate() {
            for other in all[index + 1..].iter().filter(|other| other.node != one.node) {
                assert!(
                    one.last <= other.first || other.last <= one.first,
                    "two homes: {one:?} and {other:?}"
                );
            }
        }
    }
}

/// A player at a node, who tries to be in the default world and asks for its channels all the time.
struct Player {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    fn start(node: &str, address: &str, history: &Arc<History>) -> Player {
        let stop = Arc::new(AtomicBool::new(false));
        let (node, address) = (node.to_owned(), address.to_owned());
        let (history, stopped) = (Arc::clone(history), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                while !stopped.load(Ordering::Relaxed) {
                    play(&node, &address, &history, &stopped).await;
                    tokio::task::yield_now().await;
                }
            });
        });
        Player { stop, thread: Some(thread) }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()), "a player failed");
    }
}

async fn play(node: &str, address: &str, history: &History, stopped: &AtomicBool) {
    let endpoint = format!("tcp://{address}").parse().expect("an address");
    // It stays at this node, and does not go to the one that is named instead.
    let config = SessionConfig { moves_max: 0, ..SessionConfig::server("s", "s") };
    let connecting = Client::connect_with(endpoint, config, Backoff::never());
    let Ok(Ok((client, mut events))) = tokio::time::timeout(4 * ANSWER, connecting).await else {
        return;
    };
    let mut tenure = None;
    while !stopped.load(Ordering::Relaxed) {
        let sent = Instant::now();
        match tokio::time::timeout(ANSWER, client.list_channels(None, Vec::new())).await {
            Ok(Ok(_)) => history.note(node, &mut tenure, sent, Instant::now()),
            // It stands still.
            Err(_) => {}
            Ok(Err(_)) => return,
        }
        while events.try_next().is_some() {}
    }
}

#[test]
fn nodes_share_worlds_and_give_them_away() {
    let Some(bus) = bus() else { return };
    let cluster = Cluster::new(&bus);
    let said = cluster.refused("n1");
    assert!(
        said.contains("there is no bucket `throng-test-dir`") && said.contains("throng cluster init"),
        "{said}"
    );
    cluster.act("n1", &["init"]).expect("it makes the bucket");
    cluster.act("n1", &["init"]).expect("it is there");
    let checked = cluster.act("n1", &["check"]).expect("all is well");
    assert!(checked.contains("all checks passed") && checked.contains("1 of 1 replicas"), "{checked}");

    let history = Arc::new(History::default());
    let n1 = cluster.start("n1");
    let _first = Player::start("n1", &n1.servers, &history);
    assert_eq!(cluster.homes(), ["n1"; 4]);
    assert_eq!(history.node(), "n1");
    let n2 = cluster.start("n2");
    let _second = Player::start("n2", &n2.servers, &history);
    assert!(is_ready(&n1) && is_ready(&n2));

    assert_eq!(farewell(log_in(&n2)), (4013, "world_elsewhere main".to_owned()));
    let player = log_in(&n1);
    let until = Instant::now() + PATIENCE;
    while inside(&n1, "main", "clients") != Some(1) {
        assert!(Instant::now() < until, "it enters");
    }

    // The home stops and gives its worlds away, also to a node that has just come, and leaves.
    let stopped = Instant::now();
    signal(n1.process.0.id(), "-TERM");
    assert_eq!(cluster.homes_that(|home| home == "n2"), ["n2"; 4]);
    println!(
        "drained: served elsewhere after {} ms",
        (history.served_after(stopped, Some("n1")) - stopped).as_millis()
    );
    assert_eq!(farewell(player), (4014, "world_moving main".to_owned()));
    let mut n1 = n1;
    assert!(n1.process.0.wait().expect("it ends").success());
    let status = cluster.act("n2", &["status"]).expect("it answers");
    assert!(status.contains("left") && status.contains("4 serving"), "{status}");

    // The home is killed and started again in its folder.
    let mut n2 = n2;
    n2.process.kill();
    let killed = Instant::now();
    drop(_second);
    let n2 = cluster.start("n2");
    let _second = Player::start("n2", &n2.servers, &history);
    let back = history.served_after(killed, None) - killed;
    println!("killed and started again: served after {} ms", back.as_millis());

    // A second process of the name, a world that closes, another secret.
    let said = cluster.refused("n2");
    assert!(said.contains("another process") || said.contains("node's folder"), "{said}");
    assert!(cluster.act("n2", &["close", "duel"]).is_ok());
    let until = Instant::now() + PATIENCE;
    while cluster.act("n2", &["where", "duel"]).is_ok() {
        assert!(Instant::now() < until, "it closes");
    }
    assert!(cluster.act("n2", &["close", "nowhere"]).is_err());
    std::fs::write(cluster.path("secret"), "5b".repeat(32)).expect("written");
    let said = cluster.refused("n3");
    assert!(said.contains("cluster.secret_file") && said.contains("another key"), "{said}");
    history.check();
}

/// Lengths of the faults.
struct Plan {
    /// Times for which the home stands still.
    stops: &'static [u64],
    /// Times for which the bus is away.
    away: &'static [u64],
    /// Homes that are killed and stay away until their worlds are served elsewhere.
    kills: u32,
    /// Times are compared with their limits.
    is_timed: bool,
}

#[allow(clippy::disallowed_methods, reason = "settings of a test run")]
fn plan() -> Plan {
    match std::env::var("THRONG_CLUSTER_FAULTS").as_deref() {
        Ok("long") => Plan { stops: &[8, 13, 40], away: &[5, 20], kills: 3, is_timed: true },
        _ => Plan { stops: &[1], away: &[1], kills: 0, is_timed: false },
    }
}

/// Three nodes with a player at each.
struct Nodes<'a> {
    cluster: &'a Cluster,
    history: Arc<History>,
    nodes: Vec<(Node, Player)>,
}

impl Nodes<'_> {
    fn start(&mut self, name: &str) {
        let node = self.cluster.start(name);
        let player = Player::start(name, &node.servers, &self.history);
        self.nodes.push((node, player));
    }

    /// The home of the default world.
    fn home(&mut self) -> &mut Node {
        let name = self.history.node();
        let found = self.nodes.iter_mut().find(|(node, _)| node.name == name);
        &mut found.expect("one of the nodes").0
    }

    /// Kills the home. Returns its name.
    fn kill_home(&mut self) -> String {
        let home = self.home();
        home.process.kill();
        let name = home.name.clone();
        self.nodes.retain(|(node, _)| node.name != name);
        name
    }
}

fn pass(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
    }
}

fn back(plan: &Plan, what: &str, took: Duration, limit: Duration) {
    println!("{what}: served after {} ms", took.as_millis());
    assert!(!plan.is_timed || took <= limit, "{what}: {took:?}");
}

#[test]
fn no_two_nodes_serve_a_world_while_nodes_and_the_bus_fail() {
    let Some(mut bus) = bus() else { return };
    let (cluster, plan) = (Cluster::ready(&bus), plan());
    let mut nodes = Nodes { cluster: &cluster, history: Arc::default(), nodes: Vec::new() };
    for name in ["n1", "n2", "n3"] {
        nodes.start(name);
    }
    let history = Arc::clone(&nodes.history);
    history.node();

    for seconds in plan.stops {
        let (home, id) = (history.node(), nodes.home().process.0.id());
        let stopped = Instant::now();
        signal(id, "-STOP");
        if Duration::from_secs(*seconds) > LOST {
            let elsewhere = history.served_after(stopped, Some(&home)) - stopped;
            back(&plan, &format!("stopped for {seconds} s, served elsewhere"), elsewhere, LOST);
        }
        pass((stopped + Duration::from_secs(*seconds)).saturating_duration_since(Instant::now()));
        let woken = Instant::now();
        signal(id, "-CONT");
        back(
            &plan,
            &format!("stopped for {seconds} s"),
            history.served_after(woken, None) - woken,
            RESTARTED,
        );
        let now = history.node();
        assert!(*seconds > 11 || now == home, "it goes on: {home}, now {now}");
        history.check();
    }

    for seconds in plan.away {
        let home = history.node();
        bus.kill();
        pass(Duration::from_secs(*seconds));
        bus.start_again();
        let returned = Instant::now();
        back(
            &plan,
            &format!("the bus away for {seconds} s"),
            history.served_after(returned, None) - returned,
            RESTARTED,
        );
        assert_eq!(history.node(), home, "no world is restarted");
        history.check();
    }

    for _ in 0..plan.kills {
        history.node();
        let killed = Instant::now();
        let name = nodes.kill_home();
        let took = history.served_after(killed, Some(&name)) - killed;
        back(&plan, "killed for good", took, LOST);
        nodes.start(&name);
        history.check();
    }

    let homes = cluster.homes();
    println!("worlds at {}", homes.join(", "));
    drop(nodes);
    history.check();
    println!("{} tenures, none of which overlaps another's", history.all().len());
}
