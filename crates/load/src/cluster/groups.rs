//! Many small groups of players at once, each with a game server and a channel of its own: in
//! worlds of their own, or all in one.
//!
//! One thread plays all of them. Sends are evenly spread over the period of a frame and due at
//! fixed times, whether or not the server keeps up.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use super::visitor::Visitor;
use crate::arena;
use crate::clock::{self, nanoseconds};
use crate::fleet::INPUT_BYTES;
use crate::interrupt;
use crate::poll::Poller;
use crate::probe::Probe;
use crate::protocol::{self, CHANNEL_TYPE_SUBWORLD, Head, kind};
use crate::world::{FRAMES_PER_SECOND, World};

/// Longest wait for an answer while the groups are set up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Fan-out interval of the players in milliseconds.
const INTERVAL_MS: u32 = 20;
const READ_BYTES: usize = 64 * 1024;

/// Plan of the groups.
#[derive(Debug, Clone)]
pub(crate) struct GroupsPlan {
    pub(crate) clients: SocketAddr,
    pub(crate) servers: SocketAddr,
    /// World of each group. Groups of one world share it.
    pub(crate) worlds: Vec<String>,
    /// Players of each group.
    pub(crate) players: usize,
    pub(crate) warmup: Duration,
    pub(crate) window: Duration,
    pub(crate) seed: u64,
}

/// Figures of one measured window.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GroupsReport {
    /// CPU time that the server used.
    pub(crate) cpu: Duration,
    /// State updates that players should have received, and that they received.
    pub(crate) expected: u64,
    pub(crate) delivered: u64,
    /// Inputs that players sent, and that game servers received.
    pub(crate) inputs: u64,
    pub(crate) arrived: u64,
}

struct Group {
    world: World,
    channel: u32,
    /// The game server, then the players.
    peers: Vec<Visitor>,
}

/// Plays the groups and measures the server for one window.
pub(crate) fn run(plan: &GroupsPlan, probe: &Probe) -> io::Result<GroupsReport> {
    let mut groups = Vec::new();
    for (number, world) in plan.worlds.iter().enumerate() {
        let is_first = !plan.worlds[..number].contains(world);
        groups.push(Group::gather(plan, number, world, is_first)?);
    }
    let mut poller = Poller::new()?;
    let per_group = plan.players + 1;
    for (token, peer) in groups.iter().flat_map(|group| &group.peers).enumerate() {
        peer.stream.set_nonblocking(true)?;
        poller.add(peer.stream.as_raw_fd(), token, true, false)?;
    }
    let slots = (groups.len() * per_group) as u64;
    let period = nanoseconds(Duration::from_secs(1)) / u64::from(FRAMES_PER_SECOND);
    let begun = clock::now_ns();
    let (from, until) = (begun + nanoseconds(plan.warmup), begun + nanoseconds(plan.warmup + plan.window));
    let (mut next, mut report, mut cpu_before) = (0_u64, GroupsReport::default(), None);
    let mut scratch = vec![0; READ_BYTES];
    loop {
        let now = clock::now_ns();
        if now >= until || interrupt::requested() {
            break;
        }
        if now >= from && cpu_before.is_none() {
            cpu_before = probe.cpu();
            report = GroupsReport::default();
        }
        let due = |slot: u64| begun + slot * period / slots;
        while due(next) <= now {
            let slot = (next % slots) as usize;
            groups[slot / per_group].send(slot % per_group, due(next), &mut report)?;
            next += 1;
        }
        let timeout = Duration::from_nanos(due(next).saturating_sub(clock::now_ns()));
        let ready: Vec<_> = poller.gather(timeout)?.collect();
        for ready in ready {
            let (group, peer) = (ready.token / per_group, ready.token % per_group);
            groups[group].receive(peer, &mut scratch, &mut report)?;
        }
    }
    let used = probe.cpu().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
    report.cpu = used.unwrap_or_default();
    Ok(report)
}

impl Group {
    /// Brings a game server and its players together in a channel.
    fn gather(plan: &GroupsPlan, number: usize, world: &str, is_first: bool) -> io::Result<Self> {
        let name = format!("server-{number}");
        let mut server = Visitor::enter(plan.servers, world, &name, PATIENCE)?;
        if is_first {
            server.claim()?;
        }
        let mut frame = Vec::new();
        protocol::create_channel(&mut frame, 2, CHANNEL_TYPE_SUBWORLD, "arena", Some(arena::TYPE_NAME));
        let channel = protocol::created_channel(&server.ask(&frame, kind::CREATE_CHANNEL)?);
        let mut peers = vec![server];
        for index in 0..plan.players {
            let name = format!("player-{number}-{index}");
            let mut player = Visitor::enter(plan.clients, world, &name, PATIENCE)?;
            let mut frame = Vec::new();
            protocol::subscribe(&mut frame, 4, channel, player.conn, INTERVAL_MS);
            peers[0].stream.write_all(&frame)?;
            // The player is notified of its subscription.
            player.ask(&[], kind::SUB_TO_CHANNEL)?;
            peers.push(player);
        }
        Ok(Self { world: World::new(plan.seed + number as u64, plan.players), channel, peers })
    }

    /// The game server's next frame, or the input of a player.
    fn send(&mut self, peer: usize, due: u64, report: &mut GroupsReport) -> io::Result<()> {
        let mut out = Vec::new();
        if peer == 0 {
            self.world.step();
            let moved: Vec<usize> = self.world.moved().collect();
            let head = Head { channel: self.channel, kind: kind::CHANNEL_DATA_UPDATE, ..Head::default() };
            arena::updates(&self.world, &moved, due, |body| {
                protocol::put_message(&mut out, head, body);
                report.expected += (self.peers.len() - 1) as u64;
            });
        } else {
            let head = Head { channel: self.channel, kind: kind::INPUT, ..Head::default() };
            let mut body = [0; INPUT_BYTES];
            body[..8].copy_from_slice(&due.to_le_bytes());
            protocol::put_message(&mut out, head, &body);
            report.inputs += 1;
        }
        // A few hundred bytes always fit, unless the server has stopped reading.
        self.peers[peer].stream.write_all(&out)
    }

    fn receive(&mut self, peer: usize, scratch: &mut [u8], report: &mut GroupsReport) -> io::Result<()> {
        let visitor = &mut self.peers[peer];
        let count = match visitor.stream.read(scratch) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let (mut updates, mut inputs) = (0, 0);
        let fed = visitor.reader.feed(&scratch[..count], &mut |packet| {
            for message in packet.messages() {
                updates += u64::from(message.msg_type == kind::CHANNEL_DATA_UPDATE);
                inputs += u64::from(message.msg_type == kind::INPUT);
            }
            ControlFlow::Continue(())
        });
        fed.map_err(io::Error::other)?;
        report.delivered += updates;
        report.arrived += inputs;
        Ok(())
    }
}
