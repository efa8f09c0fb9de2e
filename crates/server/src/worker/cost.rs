//! The cost of the main world while other worlds of its thread are idle, in counts.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use throng_gateway::data::SchemasBuilder;
use throng_gateway::{Config, ConnKind, Framing, Shard, ShardIndex};
use throng_net::{Clock, EventLoop};
use throng_wire::channeldpb::MessageType;
use throng_wire::{FrameReader, FrameWriter, MessagePack, channeldpb as pb};

use super::driver::Driver;
use super::host::{Peer, Slot};
use super::turn::Turn;
use super::{OutputMemory, ShardLoads, WorkerParts};
use crate::auth::Logins;
use crate::counting;
use crate::mailbox::Mailbox;
use crate::recorder::Recorder;
use crate::world::{HostParts, World};
use crate::worlds::Worlds;

const PLAYERS: u32 = 10;
const UPDATES: u32 = 1_000;

/// The driver of a worker without sockets, in virtual time, and the outputs of its connections.
struct Stage {
    driver: Driver,
    server: Peer,
    players: Vec<Peer>,
    room: u32,
    _event_loop: EventLoop,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Debug, PartialEq, Eq)]
struct Cost {
    allocations: u64,
    lookups: u64,
    letter_bytes: usize,
    updates_received: usize,
}

fn driver(others: u32) -> (Driver, EventLoop, tokio::runtime::Runtime) {
    let schemas = SchemasBuilder::new().allow_opaque(true).build().unwrap();
    let (core, schemas) = (Arc::new(Config::development()), Arc::new(schemas));
    let worlds = Arc::new(Worlds::new("main", &core, Vec::new(), Arc::clone(&schemas), 1, 7, 0));
    let main = HostParts {
        world: World::MAIN,
        name: worlds.main().name,
        shard: Shard::new(core, schemas, ShardIndex::FIRST, 1, 7, 0),
        seed: 7,
        workers: Arc::from([0]),
        is_first: true,
        has_class: false,
        idle: None,
        fence: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let event_loop = EventLoop::new().unwrap();
    let mailbox = Mailbox::new(event_loop.waker(), 1 << 20);
    let parts = WorkerParts {
        index: 0,
        clock: Clock::start(),
        event_loop,
        main,
        others: Vec::new(),
        listeners: std::collections::HashMap::new(),
        mailboxes: Arc::from([mailbox]),
        output_memory: Arc::new(OutputMemory::new(1, usize::MAX)),
        loads: Arc::new(ShardLoads::new(1)),
        logins: Arc::new(Logins::new(None, runtime.handle().clone(), 8, None, None)),
        worlds: Arc::clone(&worlds),
        desk: None,
        recorder: Recorder::none(),
        heartbeat: Arc::default(),
        shutdown_timeout: Duration::ZERO,
        round_interval: Duration::ZERO,
    };
    let (event_loop, mut driver) = Driver::new(parts);
    for number in 0..others {
        let now = driver.now;
        worlds.open(&format!("idle-{number}"), None, |_, parts| driver.hosts.open(parts, now)).unwrap();
    }
    (driver, event_loop, runtime)
}

fn frame(channel: u32, kind: MessageType, body: &impl Message) -> Vec<u8> {
    let (mut writer, mut bytes, body) = (FrameWriter::new(), Vec::new(), body.encode_to_vec());
    let head = MessagePack {
        channel_id: channel,
        stub_id: 1,
        msg_type: kind as u32,
        body: &body,
        ..MessagePack::default()
    };
    writer.push(&head, &mut bytes).unwrap();
    writer.flush(&mut bytes);
    bytes
}

fn data(letter: u8) -> Option<prost_types::Any> {
    Some(prost_types::Any {
        type_url: "type.googleapis.com/test.Room".to_owned(),
        value: vec![0x0a, 1, letter],
    })
}

impl Stage {
    fn new(others: u32) -> Stage {
        let (mut driver, event_loop, runtime) = driver(others);
        let mut accept = |kind| {
            let (mut accepted, addr) = (None, IpAddr::V4(Ipv4Addr::LOCALHOST));
            driver.guard(Slot::MAIN, |host, now| {
                accepted = host.shard.accept(now, kind, Framing::Stream, addr).ok();
            });
            Peer { host: Slot::MAIN, conn: accepted.unwrap().conn }
        };
        let server = accept(ConnKind::Server);
        let players = (0..PLAYERS).map(|_| accept(ConnKind::Client)).collect();
        let mut stage =
            Stage { driver, server, players, room: 0, _event_loop: event_loop, _runtime: runtime };
        let login =
            |name: &str| pb::AuthMessage { player_identifier_token: name.to_owned(), ..Default::default() };
        stage.ask::<pb::AuthResultMessage>(server, 0, MessageType::Auth, &login("server"));
        let create = pb::CreateChannelMessage {
            channel_type: pb::ChannelType::Subworld as i32,
            data: data(b'a'),
            ..Default::default()
        };
        let made: pb::CreateChannelResultMessage = stage.ask(server, 0, MessageType::CreateChannel, &create);
        stage.room = made.channel_id;
        for (index, player) in stage.players.clone().into_iter().enumerate() {
            let login = login(&format!("player {index}"));
            let entered: pb::AuthResultMessage = stage.ask(player, 0, MessageType::Auth, &login);
            let subscribe = pb::SubscribedToChannelMessage { conn_id: entered.conn_id, sub_options: None };
            stage.ask::<pb::SubscribedToChannelResultMessage>(
                server,
                stage.room,
                MessageType::SubToChannel,
                &subscribe,
            );
        }
        stage
    }

    /// Bytes of a connection, as the event loop passes them on.
    fn input(&mut self, peer: Peer, bytes: &[u8]) {
        let began = self.driver.step_begins();
        self.driver.guard_conn(peer, |host, now| host.shard.handle_bytes(now, peer.conn, bytes));
        self.driver.step_ends(peer.host, began);
    }

    /// Runs what is due. A thread with several worlds may need more than one round for it.
    fn pass(&mut self, time: Duration) {
        self.driver.now += time;
        let due = |driver: &Driver| driver.hosts.get(Slot::MAIN).and_then(|host| host.next_timeout());
        loop {
            self.driver.begin_turns(Turn::begin);
            self.driver.run_due();
            if due(&self.driver).is_none_or(|at| at > self.driver.now) {
                break;
            }
        }
        self.driver.close_idle();
        self.driver.answer_logins();
    }

    /// Takes the output of a connection, as far as one write does.
    fn written(&mut self, peer: Peer, out: &mut Vec<u8>) {
        let outbox = self.driver.hosts.get_mut(peer.host).unwrap().shard.outbox(peer.conn).unwrap();
        let mut slices = Vec::new();
        outbox.gather(&mut slices);
        let before = out.len();
        slices.iter().for_each(|slice| out.extend_from_slice(slice));
        let taken = out.len() - before;
        if taken == 0 {
            return;
        }
        self.driver.guard_conn(peer, |host, now| host.shard.handle_written(now, peer.conn, taken));
    }

    /// The answer to a request.
    fn ask<R: Message + Default>(
        &mut self,
        peer: Peer,
        channel: u32,
        kind: MessageType,
        body: &impl Message,
    ) -> R {
        self.input(peer, &frame(channel, kind, body));
        self.pass(Duration::from_millis(50));
        let mut out = Vec::new();
        self.written(peer, &mut out);
        let mut answer = None;
        let mut read = |kinds: &throng_wire::Packet<'_>| {
            let found = kinds.messages().find(|message| message.msg_type == kind as u32);
            answer = answer.take().or(found.map(|message| R::decode(message.body).unwrap()));
            ControlFlow::Continue(())
        };
        FrameReader::default().feed(&out, &mut |packet| read(&packet)).unwrap();
        answer.unwrap_or_else(|| panic!("no answer to {kind:?} in {out:?}"))
    }

    /// Updates of the room's data, and their delivery to all players.
    fn play(&mut self) -> Cost {
        let mut cost = Cost { allocations: 0, lookups: 0, letter_bytes: 0, updates_received: 0 };
        let updates = [b'a', b'b'].map(|letter| {
            let update = pb::ChannelDataUpdateMessage { data: data(letter), ..Default::default() };
            frame(self.room, MessageType::ChannelDataUpdate, &update)
        });
        let peers = self.players.clone();
        let mut out = Vec::with_capacity(1 << 20);
        for round in 0..UPDATES {
            let before = (counting::allocations(), counting::lookups());
            self.input(self.server, &updates[round as usize % 2]);
            self.pass(Duration::from_millis(50));
            cost.letter_bytes += self.driver.outgoing.bytes;
            for peer in &peers {
                out.clear();
                self.written(*peer, &mut out);
                cost.updates_received += usize::from(!out.is_empty());
            }
            cost.allocations += counting::allocations() - before.0;
            cost.lookups += counting::lookups() - before.1;
        }
        cost
    }
}

#[test]
fn the_main_world_pays_nothing_for_sixty_idle_worlds() {
    let [alone, among] = [0, 60].map(|others| {
        let mut stage = Stage::new(others);
        // Tables and buffers reach their sizes.
        stage.play();
        let cost = stage.play();
        assert_eq!(stage.driver.step_begins().is_some(), others > 0, "clock reads of turns");
        cost
    });
    assert_eq!(alone, among);
    assert_eq!((alone.lookups, alone.letter_bytes), (0, 0));
    assert!(alone.updates_received >= (UPDATES * PLAYERS) as usize / 2, "{alone:?}");
}
