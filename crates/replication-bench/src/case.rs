//! One case of the benchmark: a group, a method and variants, with its results.

use std::collections::VecDeque;

use serde::Serialize;
use throng_replication::wire::{AckState, Header};
use throng_replication::{Client, ClientConfig, ConnId, ConnectionStats, Packets};
use throng_stdx::Rng;

use crate::baseline::Baseline;
use crate::clock::thread_cpu_ns;
use crate::shared::{Shared, store};
use crate::socket::{Sent, Sockets};
use crate::workload::{BenchObject, CULL_DISTANCE, Chests, Group, SEED_BASE, World};

/// Frames between sending a packet and its acknowledgement at the server: 100 ms.
const ACK_FRAMES: usize = 3;
/// Half the side of the worlds of the published groups, with room to walk.
const HALF_SIDE: f32 = 4600.0;

/// Method of replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Compare and serialise for each pair.
    Legacy,
    /// The same, over a grid.
    Graph,
    /// The library.
    Shared,
    /// The library with differences.
    SharedDelta,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Legacy, Self::Graph, Self::Shared, Self::SharedDelta];

    /// Name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Graph => "graph",
            Self::Shared => "shared",
            Self::SharedDelta => "shared-delta",
        }
    }
}

/// One case to run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Which world.
    pub group: Group,
    /// Which method.
    pub mode: Mode,
    /// Rate at which chests change.
    pub chests: Chests,
    /// Seed of the world; with [`SEED_BASE`] and 300 frames the checksum is known.
    pub seed_base: u64,
    /// Measured frames.
    pub frames: u32,
    /// Frames before them.
    pub warmup: u32,
    /// Chance of a packet to be lost, 0 to 1.
    pub loss: f64,
    /// Bytes a frame and connection.
    pub budget: Option<usize>,
    /// Send far objects less often, by the reference profile; the library's methods only.
    pub lod: bool,
    /// Threads of the connection stage; the library's methods only.
    pub threads: usize,
    /// Feed every packet to a receiver and compare all replicas at the end.
    pub verify: bool,
}

impl Case {
    /// The published way to run a group.
    #[must_use]
    pub fn new(group: Group, mode: Mode) -> Self {
        Self {
            group,
            mode,
            chests: Chests::Sparse,
            seed_base: SEED_BASE,
            frames: 300,
            warmup: 60,
            loss: 0.0,
            budget: None,
            lod: false,
            threads: 1,
            verify: false,
        }
    }
}

/// Mean and quantiles of microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Half of the frames took at most this.
    pub p50: f64,
    /// 99 of a hundred took at most this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Spread {
    /// Of nanoseconds; none give zeros.
    #[must_use]
    pub fn of(mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let Some(last) = samples.last() else { return Self::default() };
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |share: f64| us(samples[((samples.len() as f64 * share).ceil() as usize).max(1) - 1]);
        let mean = us(samples.iter().sum()) / samples.len() as f64;
        Self { mean, p50: at(0.5), p99: at(0.99), max: us(*last) }
    }

    fn divided(self, by: f64) -> Self {
        Self { mean: self.mean / by, p50: self.p50 / by, p99: self.p99 / by, max: self.max / by }
    }
}

/// Replicas compared with what the server holds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Verified {
    /// Compared.
    pub replicas: u64,
    /// Wrong, missing or too many.
    pub differing: u64,
}

/// Measured figures. Times are microseconds of thread CPU time a frame.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// 1 to 5.
    pub group: u8,
    /// Name of the method.
    pub mode: &'static str,
    /// `sparse` or `full`.
    pub chests: &'static str,
    /// Seed base.
    pub seed_base: u64,
    /// Measured frames.
    pub frames: u32,
    /// Connections.
    pub connections: usize,
    /// Objects.
    pub objects: usize,
    /// Loss, 0 to 1.
    pub loss: f64,
    /// Bytes a frame and connection, if limited.
    pub budget: Option<usize>,
    /// With the reference profile of detail.
    pub lod: bool,
    /// World, applying, and network.
    pub frame_us: Spread,
    /// Acknowledgements, shared stage, connection stages.
    pub net_us: Spread,
    /// Work done once a frame.
    pub shared_us: Spread,
    /// One connection's part.
    pub per_conn_us: Spread,
    /// The world.
    pub sim_us: Spread,
    /// System calls of sending, when packets leave the process.
    pub socket_us: Option<Spread>,
    /// The limit of that on this machine: the system calls alone (`sendmmsg` with segmentation),
    /// for the same datagrams to the same sockets, once more in each frame.
    pub socket_bare_us: Option<Spread>,
    /// Payload bytes.
    pub bytes_per_client_frame: f64,
    /// Packets.
    pub packets_per_client_frame: f64,
    /// Records sent, a frame; the library's methods only, as is what follows.
    pub pairs_sent_per_frame: f64,
    /// Records copied that others share, warm-up included.
    pub records_hit: u64,
    /// Record variants built for few.
    pub records_built: u64,
    /// Changed properties that the shared stage found, warm-up included.
    pub properties_dirty: u64,
    /// Properties that losses made pending again.
    pub properties_resent: u64,
    /// Of the world.
    pub workload_checksum: String,
    /// The checksum is the published one, where one is published.
    pub checksum_matches: Option<bool>,
    /// With `verify`.
    pub verify: Option<Verified>,
}

impl CaseReport {
    /// Nothing differs from what was published or should have been received.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.checksum_matches != Some(false) && self.verify.is_none_or(|verified| verified.differing == 0)
    }
}

enum Method {
    Baseline(Box<Baseline>),
    Shared(Box<Shared>),
}

/// Runs a case; nothing leaves the process.
#[must_use]
pub fn run(case: &Case) -> CaseReport {
    run_over(case, None)
}

/// Runs a case whose packets go out over `sockets` too, which cost [`CaseReport::socket_us`].
#[must_use]
pub fn run_over(case: &Case, mut sockets: Option<&mut Sockets>) -> CaseReport {
    let group = case.group;
    let mut world = World::new(group, case.chests, case.seed_base);
    let count = group.connections;
    let half_side = world
        .things
        .iter()
        .flat_map(|thing| thing.position)
        .fold(HALF_SIDE, |far, x| far.max(x.abs() + 600.0));
    let mut method = match case.mode {
        Mode::Legacy | Mode::Graph => {
            Method::Baseline(Box::new(Baseline::new(case.mode == Mode::Graph, count, case.budget, half_side)))
        }
        mode => Method::Shared(Box::new(Shared::new(
            count,
            mode == Mode::SharedDelta,
            case.budget,
            half_side,
            case.lod,
        ))),
    };
    let classes = match &method {
        Method::Baseline(baseline) => baseline.classes().clone(),
        Method::Shared(shared) => shared.classes.clone(),
    };
    let config = ClientConfig { objects_max: 1 << 20, ..ClientConfig::default() };
    let receivers = if case.verify { count } else { 0 };
    let mut clients: Vec<Client> = (0..receivers).map(|_| Client::new(config.clone(), &classes)).collect();

    let mut acks = vec![AckState::default(); count];
    let mut arriving: VecDeque<Vec<(u16, u64)>> = VecDeque::new();
    let mut rng = Rng::new(case.seed_base);
    let mut samples = Samples::default();
    let (mut bytes, mut packets) = (0_u64, 0_u64);
    let (mut counts, mut dirty) = (ConnectionStats::default(), 0);
    // With `verify`, quiet frames follow in which the world stands still and nothing is lost: 20,
    // and with levels of detail a period of the farthest band more.
    let quiet = if case.verify { 20 + if case.lod { 30 } else { 0 } } else { 0 };
    let measured = case.warmup + case.frames;
    for frame in 1..=measured + quiet {
        let start = thread_cpu_ns();
        if frame <= measured {
            world.step();
            if frame <= 300 {
                world.digest();
            }
        } else {
            world.things.iter_mut().for_each(|thing| thing.marked = 0);
        }
        let stepped = thread_cpu_ns();
        match &mut method {
            Method::Baseline(baseline) => baseline.apply(frame, &world.things),
            Method::Shared(shared) => shared.apply(&world.things),
        }
        let applied = thread_cpu_ns();
        let loss = if frame <= measured { case.loss } else { 0.0 };
        let mut sink = |connection: usize, packet: &[u8]| {
            if frame > case.warmup && frame <= measured {
                bytes += packet.len() as u64;
                packets += 1;
            }
            if let Some(sockets) = &mut sockets {
                sockets.hold(connection, packet);
            }
            if loss > 0.0 && rng.chance(loss) {
                return;
            }
            acks[connection].applied(u16::from_le_bytes([packet[0], packet[1]]));
            if let Some(client) = clients.get_mut(connection) {
                // The acknowledgements that the method gets are made up here; the receiver has sent
                // nothing.
                let mut packet = packet.to_vec();
                packet[2..4].fill(0xff);
                packet[4..12].fill(0);
                client.receive(&packet).expect("the method writes packets that its receiver understands");
                while client.poll_event().is_some() {}
            }
        };
        let arrived = if arriving.len() == ACK_FRAMES { arriving.pop_front() } else { None };
        let (shared_ns, conn_ns) = match &mut method {
            Method::Baseline(baseline) => {
                for (at, (ack, bits)) in arrived.into_iter().flatten().enumerate() {
                    baseline.acknowledge(at, ack, bits);
                }
                baseline.frame(frame, &mut sink)
            }
            Method::Shared(shared) => {
                for (at, (ack, ack_bits)) in arrived.into_iter().flatten().enumerate() {
                    let header = Header { seq: frame as u16, ack, ack_bits, frame };
                    let id = shared.connections[at];
                    shared.server.receive(id, &header.to_bytes()).expect("what was sent");
                }
                shared_frame(shared, frame, case.threads, &mut sink)
            }
        };
        let done = thread_cpu_ns();
        let sent = sockets.as_mut().map_or_else(Sent::default, |sockets| sockets.send());
        arriving.push_back(acks.iter().map(AckState::fields).collect());
        if frame > case.warmup && frame <= measured {
            samples.sim.push(stepped - start);
            samples.net.push(done - applied);
            samples.frame.push(done - start);
            samples.shared.push(shared_ns);
            samples.conns.push(conn_ns);
            samples.socket.push(sent.all);
            samples.bare.push(sent.bare);
        }
    }
    if let Method::Shared(shared) = &method {
        for stats in shared.connections.iter().filter_map(|id| shared.server.connection_stats(*id)) {
            counts.records_copied += stats.records_copied;
            counts.records_hit += stats.records_hit;
            counts.records_built += stats.records_built;
            counts.properties_resent += stats.properties_resent;
        }
        dirty = shared.server.stats().properties_dirty;
    }
    let verify = case.verify.then(|| compare(&world.things, &clients, &classes));
    let published = group.checksum(case.chests).filter(|_| case.seed_base == SEED_BASE && measured >= 300);
    let clients_frames = f64::from(case.frames) * count as f64;
    CaseReport {
        group: group.number,
        mode: case.mode.name(),
        chests: if case.chests == Chests::Sparse { "sparse" } else { "full" },
        seed_base: case.seed_base,
        frames: case.frames,
        connections: count,
        objects: group.objects(),
        loss: case.loss,
        budget: case.budget,
        lod: case.lod,
        frame_us: Spread::of(samples.frame),
        net_us: Spread::of(samples.net),
        shared_us: Spread::of(samples.shared),
        per_conn_us: Spread::of(samples.conns).divided(count as f64),
        sim_us: Spread::of(samples.sim),
        socket_us: sockets.is_some().then(|| Spread::of(samples.socket)),
        socket_bare_us: sockets.is_some().then(|| Spread::of(samples.bare)),
        bytes_per_client_frame: bytes as f64 / clients_frames,
        packets_per_client_frame: packets as f64 / clients_frames,
        pairs_sent_per_frame: (counts.records_copied + counts.records_built) as f64
            / f64::from(measured + quiet),
        records_hit: counts.records_copied + counts.records_hit,
        records_built: counts.records_built,
        properties_dirty: dirty,
        properties_resent: counts.properties_resent,
        workload_checksum: format!("{:016x}", world.checksum()),
        checksum_matches: published.map(|published| published == world.checksum()),
        verify,
    }
}

#[derive(Default)]
struct Samples {
    sim: Vec<u64>,
    net: Vec<u64>,
    frame: Vec<u64>,
    shared: Vec<u64>,
    conns: Vec<u64>,
    socket: Vec<u64>,
    bare: Vec<u64>,
}

/// Result of one lane: nanoseconds, and its packets.
type Written = (u64, Vec<(ConnId, Vec<u8>)>);

fn shared_frame(
    shared: &mut Shared,
    frame: u32,
    threads: usize,
    sink: &mut dyn FnMut(usize, &[u8]),
) -> (u64, u64) {
    let start = thread_cpu_ns();
    shared.server.begin_frame(Shared::time(frame));
    let begun = thread_cpu_ns();
    let conn_ns = if threads <= 1 {
        for mut lane in shared.server.lanes(1) {
            lane.run(&mut |out: Packets<'_>| {
                out.iter().for_each(|packet| sink(out.connection.index() as usize, packet))
            });
        }
        thread_cpu_ns() - begun
    } else {
        // Lanes write on their own threads; packets are handed on in the order of connections.
        let written: Vec<Written> = std::thread::scope(|scope| {
            let lanes = shared.server.lanes(threads).map(|mut lane| {
                scope.spawn(move || {
                    let start = thread_cpu_ns();
                    let mut packets = Vec::new();
                    lane.run(&mut |out: Packets<'_>| {
                        packets.extend(out.iter().map(|packet| (out.connection, packet.to_vec())));
                    });
                    (thread_cpu_ns() - start, packets)
                })
            });
            let lanes: Vec<_> = lanes.collect();
            lanes.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect()
        });
        let mut total = 0;
        for (ns, packets) in written {
            total += ns;
            packets.iter().for_each(|(id, packet)| sink(id.index() as usize, packet));
        }
        total
    };
    shared.server.end_frame();
    (begun - start, conn_ns)
}

/// Every receiver holds exactly the objects within its connection's reach, with the values that the
/// world has.
fn compare(things: &[BenchObject], clients: &[Client], classes: &throng_replication::Classes) -> Verified {
    let mut verified = Verified::default();
    for (at, client) in clients.iter().enumerate() {
        let view = things[at].position;
        let mut expected = 0;
        for (object, thing) in things.iter().enumerate() {
            let square: f32 = (0..3).map(|i| (thing.position[i] - view[i]).powi(2)).sum();
            if square > CULL_DISTANCE * CULL_DISTANCE {
                continue;
            }
            expected += 1;
            verified.replicas += 1;
            let class = classes.get(throng_replication::ClassId(u16::from(!thing.is_character)));
            let class = class.expect("both classes are registered");
            let mut live = vec![0; class.live_words()];
            store(thing, 0x1fff, &mut live);
            let mut words = vec![0; class.quantised_words()];
            for property in 0..class.property_count() {
                let (codec, word, from) = class.layout(property);
                codec.quantise(&live[from..], &mut words[word..]);
            }
            let replica = client.replica(object as u32 + 1);
            verified.differing += u64::from(replica.is_none_or(|replica| replica.words() != words));
        }
        verified.differing += (client.len() as u64).abs_diff(expected);
    }
    verified
}
