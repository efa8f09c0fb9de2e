//! `throng demo --direct`: players connect to a game server over ENet, without a gateway, and are
//! replicated by `throng-replication`.
//!
//! The server is authoritative. A player sends inputs (number and heading) and moves at once, as if
//! the server had agreed (prediction); the server moves the character by its own rules, which know
//! of walls that the player does not, and says up to which input it has come; the player goes back
//! to the server's position and repeats the inputs since (correction). Others are seen within a
//! radius, the far ones less often.

mod arena;
mod character;
mod player;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_net::Clock;
use throng_net::enet::{
    Config, Delivery, Endpoint, Event, Lane, OpenError, Pacing, PeerId, Server as Transport, ServerOptions,
    ServerPeer, entropy,
};
use throng_net::udp::UdpOptions;
use throng_replication::{Classes, ConnId, Packets, Server};
use throng_stdx::{Instant, Rng};

use crate::{clock, interrupt};
use arena::Arena;
use character::HZ;
use player::Player;

const FRAME: Duration = Duration::from_nanos(1_000_000_000 / HZ as u64);
/// Everything goes over this lane, unreliably: the library orders packets and repairs losses
/// itself.
const LANE: Lane = Lane(0);
/// Players that join in one frame: 1,500 a second.
const JOINS_PER_FRAME: usize = 50;

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// The server's socket could not be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A socket failed.
    #[error("a socket failed: {0}")]
    Socket(#[from] io::Error),
    /// The character's description is wrong.
    #[error(transparent)]
    Class(#[from] throng_replication::ClassError),
    /// The thread of the players did not end well.
    #[error("the thread of the players failed")]
    Thread,
}

/// Plan of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPlan {
    /// Players.
    pub players: usize,
    /// Threads of the transport.
    pub shards: u16,
    /// Duration; until interrupted if not given.
    pub duration: Option<Duration>,
    /// Of the players' ways.
    pub seed: u64,
}

/// A second of the demo.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DirectSample {
    /// Seconds since the beginning.
    pub second: u64,
    /// Connected players.
    pub players: usize,
    /// CPU time of a frame of the game's thread (inputs, movement, replication, handing packets
    /// over), mean and longest, in microseconds.
    pub frame_us: (f64, f64),
    /// Of it, replication: shared stage and connection stages.
    pub replication_us: f64,
    /// Replicas that a player holds, mean.
    pub replicas: f64,
    /// Replication bytes to a player and second, mean.
    pub bytes: f64,
    /// Predictions that the server did not share, of all players, from the beginning.
    pub corrections: u64,
    /// Inputs that the server has applied, from the beginning.
    pub inputs: u64,
    /// Packets that a player's receiver refused; there must be none.
    pub refused: u64,
}

/// Counters of the players' thread.
#[derive(Debug, Default)]
struct Seen {
    corrections: AtomicU64,
    refused: AtomicU64,
    replicas: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<io::Error>>,
}

/// Plays until the time is over, `each`, which gets every second and the library's server, breaks,
/// or Ctrl-C. `begun` gets the server's address.
///
/// # Errors
/// When a socket cannot be had or fails.
pub fn run(
    plan: &DirectPlan,
    begun: impl FnOnce(SocketAddr),
    mut each: impl FnMut(&DirectSample, &Server) -> ControlFlow<()>,
) -> Result<DirectSample, DirectError> {
    let (classes, character) = character::classes()?;
    let options = ServerOptions { shards: plan.shards.max(1), ..ServerOptions::default() };
    let transport = Transport::start(SocketAddr::from(([127, 0, 0, 1], 0)), &options, Config::new)?;
    let address = transport.addr();
    let arena = Arena::new(&classes, character, plan.seed);
    let mut game = Game { transport, arena, peers: BTreeMap::new(), ids: BTreeMap::new(), bytes: 0 };
    begun(address);
    let seen = Arc::new(Seen::default());
    let players = {
        let (seen, plan) = (Arc::clone(&seen), *plan);
        let body = move || {
            if let Err(error) = play(&plan, address, &classes, &seen) {
                *seen.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                seen.stop.store(true, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("players".to_owned()).spawn(body)?
    };
    let result = game.run(plan.duration, &seen, &mut each);
    seen.stop.store(true, Ordering::Relaxed);
    players.join().map_err(|_| DirectError::Thread)?;
    if let Some(error) = seen.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error.into());
    }
    Ok(result)
}

/// The arena behind a transport.
struct Game {
    transport: Transport,
    arena: Arena,
    peers: BTreeMap<ConnId, ServerPeer>,
    ids: BTreeMap<ServerPeer, ConnId>,
    /// Replication bytes since the last sample.
    bytes: u64,
}

impl Game {
    fn run(
        &mut self,
        duration: Option<Duration>,
        seen: &Seen,
        each: &mut impl FnMut(&DirectSample, &Server) -> ControlFlow<()>,
    ) -> DirectSample {
        let clock = Clock::start();
        let begin = clock.now();
        let (mut sample, mut frame) = (DirectSample::default(), 0_u32);
        let (mut spent, mut longest, mut replication) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        loop {
            let now = clock.now();
            let over = duration.is_some_and(|duration| now.since(begin) >= duration);
            if over || interrupt::requested() || seen.stop.load(Ordering::Relaxed) {
                return sample;
            }
            let start = clock::thread_cpu();
            self.take_in();
            self.arena.step();
            replication += self.send(now);
            let used = clock::thread_cpu().saturating_sub(start);
            (spent, longest) = (spent + used, longest.max(used));
            frame += 1;
            if frame.is_multiple_of(HZ) {
                let us = |time: Duration| time.as_secs_f64() * 1e6;
                let players = self.arena.players().max(1) as f64;
                sample = DirectSample {
                    second: u64::from(frame / HZ),
                    players: self.arena.players(),
                    frame_us: (us(spent) / f64::from(HZ), us(longest)),
                    replication_us: us(replication) / f64::from(HZ),
                    replicas: seen.replicas.load(Ordering::Relaxed) as f64 / players,
                    bytes: core::mem::take(&mut self.bytes) as f64 / players,
                    corrections: seen.corrections.load(Ordering::Relaxed),
                    inputs: self.arena.inputs,
                    refused: seen.refused.load(Ordering::Relaxed),
                };
                if each(&sample, &self.arena.server).is_break() {
                    return sample;
                }
                (spent, longest, replication) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
            }
            // Frames keep their distance on the average; one that is late is made up for.
            let due = begin + FRAME * frame;
            std::thread::sleep(due.since(clock.now()));
        }
    }

    /// Joins, leaves, packets.
    fn take_in(&mut self) {
        while let Some((peer, event)) = self.transport.poll_event() {
            match event {
                Event::Connected { .. } => match self.arena.join() {
                    Some(id) => {
                        self.ids.insert(peer, id);
                        self.peers.insert(id, peer);
                    }
                    None => self.transport.disconnect_now(peer, 2),
                },
                Event::Received { data, .. } => {
                    let Some(id) = self.ids.get(&peer) else { continue };
                    if self.arena.server.receive(*id, &data).is_err() {
                        self.leave(peer);
                        self.transport.disconnect_now(peer, 1);
                    }
                }
                Event::Disconnected { .. } => self.leave(peer),
                _ => {}
            }
        }
    }

    fn leave(&mut self, peer: ServerPeer) {
        if let Some(id) = self.ids.remove(&peer) {
            self.peers.remove(&id);
            self.arena.leave(id);
        }
    }

    /// Sends a frame; returns the CPU time of the library.
    fn send(&mut self, now: Instant) -> Duration {
        let (peers, transport, bytes) = (&self.peers, &mut self.transport, &mut self.bytes);
        let mut sending = Duration::ZERO;
        let mut sink = |packets: Packets<'_>| {
            let Some(peer) = peers.get(&packets.connection) else { return };
            let begin = clock::thread_cpu();
            for packet in packets.iter() {
                *bytes += packet.len() as u64;
                transport.send(*peer, LANE, packet.to_vec(), Delivery::Unreliable);
            }
            sending += clock::thread_cpu().saturating_sub(begin);
        };
        let server = &mut self.arena.server;
        let start = clock::thread_cpu();
        server.begin_frame(now);
        let begun = clock::thread_cpu();
        for mut lane in server.lanes(1) {
            lane.run(&mut sink);
        }
        server.end_frame();
        let end = clock::thread_cpu();
        let (shared, connections) =
            (begun.saturating_sub(start), end.saturating_sub(begun).saturating_sub(sending));
        server.observe_frame(shared, connections);
        self.transport.flush();
        shared + connections
    }
}

/// The thread of all players.
fn play(plan: &DirectPlan, server: SocketAddr, classes: &Classes, seen: &Seen) -> io::Result<()> {
    let clock = Clock::start();
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config::client(entropy()?);
    let mut endpoint = Endpoint::open(clock, here, &UdpOptions::default(), Pacing::default(), config)
        .map_err(io::Error::other)?;
    let mut rng = Rng::new(plan.seed ^ 0x9E37_79B9);
    let mut players: BTreeMap<PeerId, Player> = BTreeMap::new();
    let begin = clock.now();
    let mut frame = 0_u32;
    while !seen.stop.load(Ordering::Relaxed) {
        let due = begin + FRAME * frame;
        while clock.now() < due {
            endpoint.turn(Some(due), |host| {
                while let Some(event) = host.poll_event() {
                    let Some(player) = players.get_mut(&event.peer()) else { continue };
                    match event {
                        Event::Connected { .. } => player.connected = true,
                        Event::Received { data, .. } => {
                            let refused = player.client.receive(&data).is_err();
                            seen.refused.fetch_add(u64::from(refused), Ordering::Relaxed);
                        }
                        Event::Disconnected { .. } => player.connected = false,
                        _ => {}
                    }
                }
            })?;
        }
        frame += 1;
        let now = clock.now();
        for _ in players.len()..plan.players.min(players.len() + JOINS_PER_FRAME) {
            if let Ok(peer) = endpoint.host().connect(now, server, 1, 0) {
                players.insert(peer, Player::new(classes));
            }
        }
        let mut replicas = 0;
        for (peer, player) in players.iter_mut().filter(|(_, player)| player.connected) {
            seen.corrections.fetch_add(u64::from(player.reconcile()), Ordering::Relaxed);
            player.act(&mut rng);
            replicas += player.client.len() as u64;
            if let Some(packet) = player.client.poll_packet(now) {
                // A peer that is just going takes nothing more.
                let _ = endpoint.host().send(*peer, LANE, packet.to_vec(), Delivery::Unreliable);
            }
        }
        seen.replicas.store(replicas, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::character::{Character, HALF_SIDE, write_input};
    use super::*;
    use throng_replication::Replicate as _;

    /// An arena and one player of it, with a link that takes two frames each way and loses what it
    /// is told to.
    struct Pair {
        arena: Arena,
        player: Player,
        id: ConnId,
        frame: u32,
        down: Vec<(u32, Vec<u8>)>,
        up: Vec<(u32, Vec<u8>)>,
        corrections: u32,
    }

    impl Pair {
        fn new() -> Self {
            let (classes, character) = character::classes().unwrap();
            let mut arena = Arena::new(&classes, character, 1);
            let id = arena.join().unwrap();
            let player = Player::new(&classes);
            Self { arena, player, id, frame: 0, down: Vec::new(), up: Vec::new(), corrections: 0 }
        }

        fn step(&mut self, heading: f32, lost: bool) {
            self.frame += 1;
            let (frame, due) = (self.frame, self.frame + 2);
            for (_, packet) in self.up.extract_if(.., |(at, _)| *at <= frame) {
                self.arena.server.receive(self.id, &packet).unwrap();
            }
            self.arena.step();
            let now = Instant::ZERO + FRAME * frame;
            self.arena.server.tick(now, |packets| {
                self.down.extend(packets.iter().map(|packet| (due, packet.to_vec())));
            });
            for (_, packet) in self.down.extract_if(.., |(at, _)| *at <= frame) {
                self.player.client.receive(&packet).unwrap();
            }
            self.corrections += u32::from(self.player.reconcile());
            self.player.walk(heading);
            if let Some(packet) = self.player.client.poll_packet(now)
                && !lost
            {
                self.up.push((due, packet.to_vec()));
            }
        }
    }

    #[test]
    fn a_prediction_without_walls_is_never_corrected() {
        let mut pair = Pair::new();
        pair.arena.put(pair.id, [0.0; 3]);
        for frame in 0..200 {
            // One packet in four is lost: the next ones repeat its input.
            pair.step(0.1 * frame as f32, frame % 4 == 3);
        }
        assert_eq!(pair.corrections, 0);
        // Two frames up, two down: the player is that far ahead of what it has seen.
        assert!(pair.arena.inputs >= 190, "{}", pair.arena.inputs);
    }

    #[test]
    fn walls_correct_those_who_do_not_know_of_them() {
        let mut pair = Pair::new();
        pair.arena.put(pair.id, [HALF_SIDE - 3.0, 0.0, 0.0]);
        for _ in 0..120 {
            pair.step(0.0, false);
        }
        assert!(pair.corrections > 10, "{}", pair.corrections);
        let (server, seen) = (pair.arena.body(pair.id).position[0], pair.player.predicted()[0]);
        assert_eq!(server, HALF_SIDE);
        // Never further beyond the wall than the steps that are under way.
        assert!(seen - server < 6.0 * 0.2, "{seen}");
    }

    #[test]
    fn nobody_is_faster_than_the_rules() {
        let mut pair = Pair::new();
        pair.arena.put(pair.id, [0.0; 3]);
        for _ in 0..10 {
            pair.step(0.0, false);
        }
        let before = pair.arena.body(pair.id).position[0];
        let mut bytes = Vec::new();
        for number in 1000..1030 {
            write_input(&mut bytes, number, 0.0);
        }
        write_input(&mut bytes, 2000, f32::NAN);
        pair.player.client.send_input(&bytes).expect("short");
        let packet = pair.player.client.poll_packet(Instant::from_millis(1000)).unwrap().to_vec();
        pair.arena.server.receive(pair.id, &packet).unwrap();
        pair.arena.step();
        let way = pair.arena.body(pair.id).position[0] - before;
        assert!((way - 3.0 * 0.2).abs() < 1e-4, "{way}");
    }

    #[test]
    fn a_character_survives_the_wire() {
        let mut pair = Pair::new();
        pair.arena.put(pair.id, [12.34, -56.78, 0.0]);
        pair.step(0.0, true);
        pair.step(0.0, true);
        pair.step(0.0, true);
        let (_, replica) = pair.player.client.replicas().next().unwrap();
        let seen = Character::read(replica).unwrap();
        assert!((seen.position[0] - 12.34).abs() < 0.006 && (seen.position[1] + 56.78).abs() < 0.006);
    }

    /// Players join over real sockets, walk and see each other.
    #[test]
    fn players_are_replicated_over_enet() {
        let plan = DirectPlan { players: 40, shards: 1, duration: Some(Duration::from_secs(60)), seed: 5 };
        let enough = |sample: &DirectSample, _: &Server| {
            let all = sample.players == 40 && sample.replicas >= 1.5;
            if all && sample.inputs > 1200 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let last = run(&plan, |_| {}, enough).unwrap();
        assert_eq!((last.players, last.refused), (40, 0), "{last:?}");
        assert!(last.replicas >= 1.5 && last.inputs > 1200 && last.bytes > 0.0, "{last:?}");
    }
}
