//! The replication workloads on other public libraries: bevy_replicon, lightyear and naia.
//!
//! `cargo run --release` in this folder runs all of them, each group beside our own methods (`legacy`, `graph`, `shared`,
//! `shared-delta`) in the same process; a name and the number of a group after `--` only these. The worlds, their seeds and the clock are those of `throng bench replication`;
//! so are the frames (60 to warm up, 300 measured) and the delay of acknowledgements (3 frames). A line of JSON for each
//! case, and a table at the end.
//!
//! Fairness. What is timed is the library's part of a server's frame and nothing else, on one thread, by thread CPU time:
//! taking what clients sent, finding what changed, writing packets. Values are applied before the clock starts, and
//! clients, which are real ones of the same library, answer outside of it. Objects beyond the cull distance are hidden with the
//! library's own means, which are told outside of the clock too. Nothing goes through a socket. Limits of bandwidth are off.
//! At the end the world stands still for 20 frames; then each client must have the objects in its range and no others,
//! with the world's values.
//!
//! What each lacks beside our workload stands at the head of its module.

mod components;
mod lightyear;
mod naia;
mod replicon;

use throng_replication_bench::case::{self, Case, Mode, Spread};
use throng_replication_bench::clock::thread_cpu_ns;
use throng_replication_bench::workload::{
    BenchObject, CULL_DISTANCE, Chests, Group, SEED_BASE, World as Workload,
};

const WARM_UP: u32 = 60;
const FRAMES: u32 = 300;
/// Frames in which nothing changes any more, before the clients are looked at.
const QUIET: u32 = 20;
/// Frames between a packet and its acknowledgement.
const ACK_FRAMES: usize = 3;

/// What a frame's packets came to.
#[derive(Clone, Copy, Default)]
struct Sent {
    bytes: u64,
    packets: u64,
}

/// A library under test: one server, a client for each connection.
trait Peer: Sized {
    const NAME: &'static str;
    /// Whether a connection sees an object of which nothing was said.
    const SEEN_AT_FIRST: bool;

    /// A server with the objects, and its clients, connected.
    fn new(things: &[BenchObject], connections: usize) -> Self;
    /// Sets what the world's step has marked.
    fn apply(&mut self, things: &[BenchObject]);
    /// Shows an object to a connection, or hides it.
    fn show(&mut self, connection: usize, object: usize, sees: bool);
    /// Hands the server what clients sent three frames ago, outside of the clock.
    fn arrive(&mut self);
    /// The server's frame: what is timed.
    fn frame(&mut self);
    /// Hands the clients what was sent and lets them answer.
    fn deliver(&mut self) -> Sent;
    /// Objects that a client has.
    fn held(&mut self, connection: usize) -> usize;
    /// A client has an object, with these values.
    fn holds(&mut self, connection: usize, object: usize, thing: &BenchObject) -> bool;
}

/// Tells the peer what has come into a connection's range or left it.
fn look<P: Peer>(peer: &mut P, things: &[BenchObject], visible: &mut [Vec<bool>]) {
    for (connection, visible) in visible.iter_mut().enumerate() {
        let view = things[connection].position;
        for (object, thing) in things.iter().enumerate() {
            let square: f32 = (0..3).map(|axis| (thing.position[axis] - view[axis]).powi(2)).sum();
            let sees = square <= CULL_DISTANCE * CULL_DISTANCE;
            if sees != visible[object] {
                visible[object] = sees;
                peer.show(connection, object, sees);
            }
        }
    }
}

fn run<P: Peer>(number: u8, chests: Chests) -> Line {
    let group = Group::new(number).expect("five groups");
    let mut workload = Workload::new(group, chests, SEED_BASE);
    let mut peer = P::new(&workload.things, group.connections);
    let mut visible = vec![vec![P::SEEN_AT_FIRST; workload.things.len()]; group.connections];
    let (mut samples, mut applying, mut all) = (Vec::new(), Vec::new(), Sent::default());
    for frame in 1..=WARM_UP + FRAMES + QUIET {
        if frame <= WARM_UP + FRAMES {
            workload.step();
            if frame <= 300 {
                workload.digest();
            }
        } else {
            workload.things.iter_mut().for_each(|thing| thing.marked = 0);
        }
        let start = thread_cpu_ns();
        peer.apply(&workload.things);
        let applied = thread_cpu_ns() - start;
        look(&mut peer, &workload.things, &mut visible);
        peer.arrive();
        let start = thread_cpu_ns();
        peer.frame();
        let spent = thread_cpu_ns() - start;
        let sent = peer.deliver();
        if (WARM_UP + 1..=WARM_UP + FRAMES).contains(&frame) {
            samples.push(spent);
            applying.push(applied);
            all.bytes += sent.bytes;
            all.packets += sent.packets;
        }
    }
    assert_eq!(Some(workload.checksum()), group.checksum(chests), "another world");
    let (mut replicas, mut differing) = (0, 0);
    for (connection, visible) in visible.iter().enumerate() {
        let expected = visible.iter().filter(|sees| **sees).count();
        replicas += expected;
        differing += peer.held(connection).abs_diff(expected);
        for (object, _) in visible.iter().enumerate().filter(|(_, sees)| **sees) {
            differing += usize::from(!peer.holds(connection, object, &workload.things[object]));
        }
    }
    let frames = f64::from(FRAMES) * group.connections as f64;
    Line {
        library: P::NAME,
        group: number,
        chests,
        net: Spread::of(samples),
        each: None,
        apply: Spread::of(applying).mean,
        bytes: all.bytes as f64 / frames,
        packets: all.packets as f64 / frames,
        replicas,
        differing,
    }
}

/// One of our own methods on the same case; decoded and compared in a run of its own, since receivers work inside the clock.
fn ours(mode: Mode, number: u8, chests: Chests) -> Line {
    let case = Case { chests, ..Case::new(Group::new(number).expect("five groups"), mode) };
    let outcome = case::run(&case);
    let verified = case::run(&Case { verify: true, ..case });
    assert!(outcome.holds(), "another world");
    let verify = verified.verify.unwrap_or_default();
    Line {
        library: mode.name(),
        group: number,
        chests,
        net: outcome.net_us,
        each: Some(outcome.per_conn_us.mean),
        apply: outcome.frame_us.mean - outcome.net_us.mean - outcome.sim_us.mean,
        bytes: outcome.bytes_per_client_frame,
        packets: outcome.packets_per_client_frame,
        replicas: verify.replicas as usize,
        differing: verify.differing as usize,
    }
}

/// What one library did on one case; microseconds of thread CPU time, mean of the frames where nothing else is said.
struct Line {
    library: &'static str,
    group: u8,
    chests: Chests,
    net: Spread,
    /// One connection's part, where it can be told apart.
    each: Option<f64>,
    apply: f64,
    bytes: f64,
    packets: f64,
    replicas: usize,
    differing: usize,
}

impl Line {
    fn case(&self) -> String {
        let full = if self.chests == Chests::Full { ", every frame" } else { "" };
        format!("{}{full}", self.group)
    }

    fn json(&self) -> String {
        format!(
            "{{\"library\":\"{}\",\"group\":{},\"chests\":\"{}\",\"net_us\":{{\"mean\":{:.1},\"p50\":{:.1},\"p99\":{:.1},\
             \"max\":{:.1}}},\"per_conn_us\":{},\"apply_us\":{:.1},\"bytes_per_client_frame\":{:.1},\"packets_per_client_frame\":{:.2},\
             \"verify\":{{\"replicas\":{},\"differing\":{}}}}}",
            self.library,
            self.group,
            if self.chests == Chests::Sparse { "sparse" } else { "full" },
            self.net.mean,
            self.net.p50,
            self.net.p99,
            self.net.max,
            self.each.map_or_else(|| "null".into(), |each| format!("{each:.2}")),
            self.apply,
            self.bytes,
            self.packets,
            self.replicas,
            self.differing,
        )
    }
}

/// Cases down, libraries across: microseconds a frame, and bytes a client and frame.
fn table(lines: &[Line], libraries: &[&str]) {
    println!("\n| group | {} |\n|{}", libraries.join(" | "), "---|".repeat(libraries.len() + 1));
    for first in lines.chunk_by(|a, b| a.case() == b.case()) {
        let cells = libraries.iter().map(|library| {
            first
                .iter()
                .find(|line| line.library.split(' ').next() == Some(*library))
                .map_or_else(String::new, |line| format!("{:.0} us, {:.0} B", line.net.mean, line.bytes))
        });
        println!("| {} | {} |", first[0].case(), cells.collect::<Vec<_>>().join(" | "));
    }
}

fn main() {
    // One thread: whatever a library hands to a pool would escape the clock.
    bevy::tasks::ComputeTaskPool::get_or_init(|| bevy::tasks::TaskPoolBuilder::new().num_threads(1).build());
    let words: Vec<String> = std::env::args().skip(1).collect();
    let group: Option<u8> = words.iter().find_map(|word| word.parse().ok());
    let name = words.iter().find(|word| word.parse::<u8>().is_err());
    let peers: [(&str, fn(u8, Chests) -> Line); 7] = [
        ("legacy", |number, chests| ours(Mode::Legacy, number, chests)),
        ("graph", |number, chests| ours(Mode::Graph, number, chests)),
        ("shared", |number, chests| ours(Mode::Shared, number, chests)),
        ("shared-delta", |number, chests| ours(Mode::SharedDelta, number, chests)),
        ("bevy_replicon", run::<replicon::Replicon>),
        ("lightyear", run::<lightyear::Lightyear>),
        ("naia", run::<naia::Naia>),
    ];
    let mut lines = Vec::new();
    for (number, chests) in [
        (1, Chests::Sparse),
        (2, Chests::Sparse),
        (3, Chests::Sparse),
        (3, Chests::Full),
        (4, Chests::Sparse),
        (4, Chests::Full),
        (5, Chests::Sparse),
    ] {
        if group.is_none_or(|group| group == number) {
            for (_, run) in peers.iter().filter(|(peer, _)| name.is_none_or(|name| name == peer)) {
                let line = run(number, chests);
                println!("{}", line.json());
                lines.push(line);
            }
        }
    }
    table(&lines, &peers.map(|(name, _)| name));
    assert!(lines.iter().all(|line| line.differing == 0), "clients do not hold what the server has");
}
