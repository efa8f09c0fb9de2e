//! The conversations over sockets of this machine.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::Duration;

use throng_conformance::{Inbox, Message, Scenario, Stage, fixture};
use throng_gateway::ConnKind;
use throng_net::{
    Accept, Clock, CloseCause, CloseMode, ConnKey, ConnectSpec, EventLoop, Flow, Handler, ListenerKey,
    Transport, ws,
};
use throng_server::config::Loader;
use throng_server::{Running, Service, start};
use throng_stdx::Instant;
use throng_wire::{FrameWriter, MessagePack, channeldpb::MessageType};

/// Far beyond what any step needs; reached only when something is missing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Rounds in which every shard answers, to outlast mail between shards. The longest chain is a
/// request that goes to the channel's home, from there to shard 0, back, and to the receivers'
/// shards. A shard may answer just before it hands over mail of the same round, so each leg takes
/// two.
const MAIL_ROUNDS: usize = 2 * 4;
/// Stub ids from here belong to the barrier's requests; those of the conversations are small.
const BARRIER_STUB_FIRST: u32 = 1 << 30;

/// Transport below the frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Carrier {
    Tcp,
    WebSocket,
    Enet,
}

/// World of the process that the peers are in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum World {
    Main,
    OneOfSixty,
    /// One with a shard on every thread.
    Wide,
}

pub(crate) struct SocketStage {
    running: Running,
    carrier: Carrier,
    net: EventLoop,
    clock: Clock,
    names: BTreeMap<String, ConnKey>,
    ends: Ends,
    last_stub: u32,
    /// Time for which lost servers are kept, if they are.
    kept: Option<Duration>,
    /// Time of the last loss, until a step after a return has ended.
    lost: Option<Instant>,
    /// A connection was opened since.
    returns: bool,
    /// A server took longer to return than it is kept.
    is_late: bool,
}

/// Our ends of the connections.
#[derive(Default)]
struct Ends(HashMap<ConnKey, End>);

#[derive(Default)]
struct End {
    inbox: Inbox,
    connected: bool,
    /// By the gateway.
    closed: bool,
    authenticated: bool,
    /// The latest request of the barrier that was answered.
    answered: u32,
}

impl End {
    fn feed(&mut self, bytes: &[u8]) {
        let known = self.inbox.messages.len();
        self.inbox.feed(bytes);
        self.authenticated |=
            self.inbox.messages[known..].iter().any(|m| m.msg_type == MessageType::Auth as u32);
        let answers = self.inbox.messages.extract_if(known.., |m| m.stub >= BARRIER_STUB_FIRST);
        self.answered = answers.map(|m| m.stub).max().unwrap_or(self.answered);
    }
}

impl Handler for Ends {
    fn accepted(&mut self, _: ListenerKey, _: ConnKey, _: SocketAddr) -> Accept {
        unreachable!("peers do not listen")
    }
    fn connected(&mut self, key: ConnKey) {
        self.0.entry(key).or_default().connected = true;
    }
    fn data(&mut self, key: ConnKey, bytes: &[u8]) -> Flow {
        self.0.entry(key).or_default().feed(bytes);
        Flow::Continue
    }
    fn writable(&mut self, _: ConnKey) {}
    fn closed(&mut self, key: ConnKey, _: CloseCause) {
        self.0.entry(key).or_default().closed = true;
    }
    fn woken(&mut self) {}
}

impl SocketStage {
    /// Starts a gateway with the settings of a conversation. `kept` is the time for which it keeps
    /// lost servers, if the conversation has it do so.
    pub(crate) fn new(
        scenario: &Scenario,
        shards: u16,
        carrier: Carrier,
        world: World,
        kept: Duration,
    ) -> SocketStage {
        let config = |name: &str| fixture(&format!("gateway/config/{name}")).display().to_string();
        let schemas: Vec<String> = scenario
            .schema_files()
            .map(|name| fixture(&format!("proto/{name}")).display().to_string())
            .collect();
        let transport = match carrier {
            Carrier::Tcp => "tcp",
            Carrier::WebSocket => "ws",
            Carrier::Enet => "enet",
        };
        // Classes make the main world one of several, with ids and logins of its own kind.
        let classes = match world {
            World::Wide => "[[gateway.classes]]\nname = 'wide'\nshards = 'all'\n",
            World::Main | World::OneOfSixty => "",
        };
        let (worlds, world) = match world {
            World::Main => (String::new(), ""),
            World::OneOfSixty => {
                ((1..60).map(|index| format!("world-{index}")).collect::<Vec<_>>().join(","), "world-30")
            }
            World::Wide => ("narrow,world:wide".to_owned(), "world"),
        };
        let keys = [
            ("gateway.worlds", worlds),
            ("gateway.servers.world", world.to_owned()),
            ("gateway.clients.world", world.to_owned()),
            ("gateway.servers.addr", "127.0.0.1:0".to_owned()),
            ("gateway.clients.addr", "127.0.0.1:0".to_owned()),
            ("http.addr", String::new()),
            ("server.shards", shards.to_string()),
            // Rounds are many here and must not wait for each other.
            ("server.round_interval_us", "0".to_owned()),
            ("gateway.dev", "true".to_owned()),
            ("gateway.permissions", "channeld".to_owned()),
            ("gateway.servers.transport", transport.to_owned()),
            ("gateway.clients.transport", transport.to_owned()),
            ("gateway.servers.state_machine", config(&scenario.server_state_machine)),
            ("gateway.clients.state_machine", config(&scenario.client_state_machine)),
            ("gateway.channels", config(&scenario.channel_settings)),
            ("gateway.schemas", schemas.join(",")),
            (
                "gateway.spatial.controller",
                scenario.spatial_controller.as_deref().map(config).unwrap_or_default(),
            ),
            ("gateway.spatial.aoi", "sampled".to_owned()),
            // The reference's type does not tell where an entity in GLOBAL is (appendix C).
            ("gateway.spatial.place_entities", "false".to_owned()),
            ("gateway.spatial.unreal", "on".to_owned()),
            ("gateway.limits.auth_timeout_ms", "0".to_owned()),
            ("gateway.recovery.servers", scenario.recover_timeout_ms.is_some().to_string()),
            ("gateway.recovery.servers_timeout_ms", kept.as_millis().to_string()),
        ];
        let loader = Loader::new().text("throng.toml", classes);
        let loader = keys.into_iter().fold(loader, |loader, (key, value)| loader.flag("test", key, value));
        SocketStage {
            running: start(loader.load().expect("a good configuration")).expect("a gateway"),
            carrier,
            net: EventLoop::new().expect("an event loop"),
            clock: Clock::start(),
            names: BTreeMap::new(),
            ends: Ends::default(),
            last_stub: BARRIER_STUB_FIRST,
            kept: scenario.recover_timeout_ms.map(|_| kept),
            lost: None,
            returns: false,
            is_late: false,
        }
    }

    /// Reports whether this process was too slow for the conversation: a server was given up before
    /// it returned. What came after that says nothing.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    fn end(&self, name: &str) -> Option<&End> {
        self.ends.0.get(self.names.get(name)?)
    }

    /// Lets the sockets work until `done`. Returns whether that came in time.
    fn until(&mut self, done: impl Fn(&Self) -> bool) -> bool {
        let deadline = self.clock.now() + PATIENCE;
        self.until_deadline(deadline, done)
    }

    fn until_deadline(&mut self, deadline: Instant, done: impl Fn(&Self) -> bool) -> bool {
        while !done(self) {
            let now = self.net.poll(&self.clock, Some(deadline), &mut self.ends).expect("the loop waits");
            if now >= deadline {
                return done(self);
            }
        }
        true
    }

    /// Has datagram transports, which keep what they have to send until the loop's next turn, send
    /// it.
    fn push(&mut self) {
        if self.carrier == Carrier::Enet {
            self.net.poll(&self.clock, Some(self.clock.now()), &mut self.ends).expect("the loop polls");
        }
    }

    /// Has every shard answer, and returns how many connections they know.
    fn mail_round(&self) -> usize {
        let page = self.running.metrics();
        let figures = page.lines().filter(|line| line.starts_with("throng_gateway_connections{"));
        figures.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
    }

    fn until_gateway_knows(&mut self, connections: usize) {
        let deadline = self.clock.now() + PATIENCE;
        while self.mail_round() != connections {
            // A handshake in datagrams takes turns of both ends.
            self.push();
            assert!(self.clock.now() < deadline, "the gateway does not know of {connections} connections");
            std::thread::yield_now();
        }
    }

    fn open_count(&self) -> usize {
        self.names.values().filter(|key| self.ends.0.get(key).is_some_and(|end| !end.closed)).count()
    }

    /// Each connection asks for something. What it sent before is handled with the answer, and what
    /// the gateway wrote before the answer is here with it.
    fn ask_all(&mut self) {
        self.last_stub += 1;
        let stub = self.last_stub;
        let head =
            MessagePack { stub_id: stub, msg_type: MessageType::ListChannel as u32, ..Default::default() };
        let (mut writer, mut frame) = (FrameWriter::new(), Vec::new());
        writer.push(&head, &mut frame).expect("a small message");
        writer.flush(&mut frame);
        let waits = |end: &End| end.authenticated && !end.closed && end.answered < stub;
        let all = self.names.keys().filter(|name| self.end(name).is_some_and(waits));
        for name in all.cloned().collect::<Vec<_>>() {
            self.send(&name, &frame);
        }
        let answered = self.until(|stage| !stage.ends.0.values().any(waits));
        assert!(answered, "a connection got no answer to a request");
    }
}

impl Stage for SocketStage {
    const EXACT_TIME: bool = false;

    fn connect(&mut self, name: &str, kind: ConnKind) {
        let service = if kind == ConnKind::Server { Service::Servers } else { Service::Clients };
        let addr = self.running.address(service).expect("a listener");
        let transport = match self.carrier {
            Carrier::Tcp => Transport::Tcp,
            Carrier::WebSocket => Transport::WebSocket,
            Carrier::Enet => Transport::Enet,
        };
        let key = self.net.connect(ConnectSpec::new(addr, transport)).expect("a socket");
        self.names.insert(name.to_owned(), key);
        self.ends.0.insert(key, End::default());
        self.returns = self.lost.is_some();
        assert!(self.until(|stage| stage.ends.0[&key].connected), "{name} cannot connect");
        // Ids are given in the order in which connections are accepted.
        self.until_gateway_knows(self.open_count());
    }

    fn send(&mut self, name: &str, bytes: &[u8]) {
        let key = self.names[name];
        let mut message = Vec::new();
        match self.carrier {
            Carrier::Tcp | Carrier::Enet => message.extend_from_slice(bytes),
            Carrier::WebSocket => ws::write_message(&mut message, bytes, Some([1, 2, 3, 4])),
        }
        let outcome = self.net.write(key, &[IoSlice::new(&message)]);
        assert_eq!(outcome.taken, message.len(), "{name}: a socket has room for a conversation");
        self.push();
    }

    fn send_bytewise(&mut self, name: &str, bytes: &[u8]) {
        for byte in bytes {
            self.send(name, &[*byte]);
            // The shard has waited for sockets since, so it has seen this byte.
            self.mail_round();
            self.mail_round();
        }
    }

    fn close(&mut self, name: &str) {
        let key = self.names.remove(name).expect("a connection");
        (self.lost, self.returns) = (Some(self.clock.now()), false);
        self.net.close(key, CloseMode::Now);
        self.push();
        self.ends.0.remove(&key);
        self.until_gateway_knows(self.open_count());
    }

    fn settle(&mut self) {
        self.ask_all();
        for _ in 0..MAIL_ROUNDS {
            self.mail_round();
        }
        self.ask_all();
    }

    fn finish_step(&mut self, _wait_ms: u64, complete: &dyn Fn(&Self) -> bool) {
        let now = self.clock.now();
        let given_up = self.lost.filter(|_| self.returns).zip(self.kept).map(|(lost, kept)| lost + kept);
        let deadline = match self.is_late {
            true => now,
            false => given_up.unwrap_or(now + PATIENCE),
        };
        // If it does not come, the comparison says what is missing.
        let is_complete = self.until_deadline(deadline, complete);
        if given_up.is_some() {
            self.is_late |= !is_complete;
            self.lost = None;
        }
        self.settle();
    }

    fn received(&self, name: &str) -> &[Message] {
        self.end(name).map_or(&[], |end| &end.inbox.messages)
    }

    fn take_received(&mut self, name: &str, wanted: usize) -> Vec<Message> {
        let Some(end) = self.names.get(name).and_then(|key| self.ends.0.get_mut(key)) else {
            return Vec::new();
        };
        let count = wanted.min(end.inbox.messages.len());
        end.inbox.messages.drain(..count).collect()
    }

    fn is_closed(&self, name: &str) -> bool {
        self.end(name).is_none_or(|end| end.closed)
    }
}
