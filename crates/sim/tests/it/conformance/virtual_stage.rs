//! The conversations over the simulator.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use throng_conformance::{Inbox, Message, Scenario, Stage, read};
use throng_gateway::spatial::Coverage;
use throng_gateway::{ChannelSettings, Config, ConnKind, Framing, Spatial, StateMachine, parse_controller};
use throng_sim::link::LinkProfile;
use throng_sim::{Leave, Note, PeerId, World};
use throng_stdx::Instant;

pub(crate) struct VirtualStage {
    world: World,
    framing: Framing,
    peers: BTreeMap<String, PeerId>,
    ends: BTreeMap<PeerId, End>,
}

#[derive(Default)]
struct End {
    inbox: Inbox,
    open: bool,
    closed: bool,
}

pub(crate) fn config(scenario: &Scenario) -> Config {
    let file = |name: &str| read(&format!("gateway/config/{name}"));
    let machine = |name: &str| Arc::new(StateMachine::parse(&file(name)).expect("a stock file"));
    let mut config = Config {
        development: true,
        server_state_machine: machine(&scenario.server_state_machine),
        client_state_machine: machine(&scenario.client_state_machine),
        channel_settings: ChannelSettings::parse(&file(&scenario.channel_settings)).expect("a stock file"),
        spatial: Spatial {
            grid: scenario
                .spatial_controller
                .as_deref()
                .map(|name| parse_controller(&file(name)).expect("a stock file")),
            // The reference's type does not tell where an entity in GLOBAL is (appendix C).
            place_entities: false,
            coverage: Coverage::Sampled,
            ..Spatial::default()
        },
        ..Config::reference()
    };
    config.recovery.servers = scenario.recover_timeout_ms.is_some();
    config.recovery.server_timeout = scenario.recover_timeout_ms.map(Duration::from_millis);
    config
}

impl VirtualStage {
    pub(crate) fn new(scenario: &Scenario, shards: u16, framing: Framing, seed: u64) -> VirtualStage {
        let world = World::new(config(scenario), Arc::new(scenario.schemas()), shards, seed);
        VirtualStage { world, framing, peers: BTreeMap::new(), ends: BTreeMap::new() }
    }

    fn run_for(&mut self, ms: u64) {
        self.run_until(self.world.now() + Duration::from_millis(ms), |_| false);
    }

    fn run_until(&mut self, end: Instant, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            match self.world.step(end) {
                Some(Note::Opened(peer)) => self.ends.entry(peer).or_default().open = true,
                Some(Note::Refused(peer) | Note::Closed(peer)) => {
                    self.ends.entry(peer).or_default().closed = true;
                }
                Some(Note::Bytes(peer, bytes)) => self.ends.entry(peer).or_default().inbox.feed(&bytes),
                Some(_) => {}
                None => break,
            }
        }
    }
}

impl Stage for VirtualStage {
    const EXACT_TIME: bool = true;

    fn connect(&mut self, name: &str, kind: ConnKind) {
        let addr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let profile = LinkProfile { chunk_bytes_max: 40, ..LinkProfile::local() };
        let peer = self.world.connect(kind, self.framing, addr, profile);
        self.peers.insert(name.to_owned(), peer);
        self.ends.insert(peer, End::default());
        let end = self.world.now() + Duration::from_secs(1);
        self.run_until(end, |stage| stage.ends[&peer].open || stage.ends[&peer].closed);
    }

    fn send(&mut self, name: &str, bytes: &[u8]) {
        let peer = self.peers[name];
        assert_eq!(self.world.send(peer, bytes), bytes.len(), "the window is wide enough");
    }

    fn send_bytewise(&mut self, name: &str, bytes: &[u8]) {
        for byte in bytes {
            self.send(name, &[*byte]);
            self.run_for(2);
        }
    }

    fn close(&mut self, name: &str) {
        self.world.leave(self.peers[name], Leave::Close);
    }

    fn settle(&mut self) {
        self.run_for(3);
    }

    fn finish_step(&mut self, wait_ms: u64, _complete: &dyn Fn(&Self) -> bool) {
        self.run_for(wait_ms);
    }

    fn received(&self, name: &str) -> &[Message] {
        self.peers.get(name).map_or(&[], |peer| &self.ends[peer].inbox.messages)
    }

    fn take_received(&mut self, name: &str, _wanted: usize) -> Vec<Message> {
        let Some(end) = self.peers.get(name).and_then(|peer| self.ends.get_mut(peer)) else {
            return Vec::new();
        };
        std::mem::take(&mut end.inbox.messages)
    }

    fn is_closed(&self, name: &str) -> bool {
        self.peers.get(name).is_some_and(|peer| self.ends[peer].closed)
    }
}
