//! Fault injection into a running process: a shard whose core panics, stalls or is flooded.
//!
//! Posted like anything else that a shard is to do, so production code has no part in it but the
//! places to strike.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::world::World;

/// Injected fault.
pub(crate) enum Fault {
    /// The core panics on this post, as it would on mail.
    Panic,
    /// The core panics on the next bytes of any connection.
    PanicOnData,
    /// The core panics when its next timer is due.
    PanicOnTimeout,
    /// The shard stands still until the other end is dropped.
    StandStill(Receiver<()>),
    /// Every read of the world counts as more than a turn, and is noted.
    Slow(Reads),
    /// Reads of the world are noted.
    Note(Reads),
}

/// The rounds, by their times, and worlds of reads.
pub(crate) type Reads = Arc<Mutex<Vec<(throng_stdx::Instant, World)>>>;

/// Faults that wait for their moment.
#[derive(Default)]
pub(crate) struct Armed {
    data: bool,
    timeout: bool,
    /// Added to each read.
    cost: Duration,
    reads: Option<Reads>,
}

impl Armed {
    pub(crate) fn take(&mut self, fault: Fault) {
        match fault {
            Fault::Panic => panic!("a fault on purpose: mail"),
            Fault::PanicOnData => self.data = true,
            Fault::PanicOnTimeout => self.timeout = true,
            // The end of the channel is what it waits for, not a message.
            Fault::StandStill(until) => drop(until.recv()),
            Fault::Slow(reads) => (self.cost, self.reads) = (Duration::from_secs(1), Some(reads)),
            Fault::Note(reads) => self.reads = Some(reads),
        }
    }

    /// Returns the time that the read takes besides its own.
    pub(crate) fn on_data(&mut self, world: World, now: throng_stdx::Instant) -> Duration {
        assert!(!std::mem::take(&mut self.data), "a fault on purpose: data");
        if let Some(reads) = &self.reads {
            reads.lock().unwrap_or_else(PoisonError::into_inner).push((now, world));
        }
        self.cost
    }

    pub(crate) fn on_timeout(&mut self) {
        assert!(!std::mem::take(&mut self.timeout), "a fault on purpose: timeout");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};
    use std::ops::ControlFlow;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Instant;

    use prost::Message as _;
    use throng_admin::{ApiRequest, Endpoint, Monitor as _};
    use throng_client::{
        Backoff, ChannelId, ChannelType, Client, CreateChannel, Event, Events, SessionConfig,
        SubscribeOptions,
    };
    use throng_wire::{FrameReader, FrameWriter, MessagePack, channeldpb as pb};

    use super::*;
    use crate::config::Loader;
    use crate::mailbox::Post;
    use crate::world::WorldEpoch;
    use crate::{Running, Service, start};

    /// Far beyond what any step needs; reached only when a test fails.
    const PATIENCE: Duration = Duration::from_secs(120);
    const ROOM: &str = "test.Room";

    /// A gateway, a game server on it, and what to drive both with.
    struct Stage {
        running: Running,
        runtime: tokio::runtime::Runtime,
        owner: Client,
        events: Events,
    }

    impl Stage {
        fn new(shards: u16, keys: &[(&str, &str)]) -> Stage {
            let mut loader = Loader::new().flag("test", "server.shards", shards.to_string());
            loader = loader.flag("test", "gateway.limits.auth_timeout_ms", PATIENCE.as_millis().to_string());
            for key in ["gateway.servers.addr", "gateway.clients.addr"] {
                loader = loader.flag("test", key, "127.0.0.1:0");
            }
            loader = loader.flag("test", "http.addr", "").flag("test", "gateway.permissions", "channeld");
            for (key, value) in keys {
                loader = loader.flag("test", *key, *value);
            }
            let running = start(loader.load().unwrap()).unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let (owner, events) = runtime.block_on(connect(
                running.address(Service::Servers).unwrap(),
                SessionConfig::server("owner", ""),
            ));
            Stage { running, runtime, owner, events }
        }

        fn player(&self, name: &str) -> (Client, Events) {
            let addr = self.clients();
            self.runtime.block_on(connect(addr, SessionConfig::client(name, "")))
        }

        fn clients(&self) -> SocketAddr {
            self.running.address(Service::Clients).unwrap()
        }

        /// Posts a fault; it has been taken when this returns, unless the shard stands still.
        fn break_shard(&self, shard: usize, fault: Fault) {
            self.break_world(shard, World::MAIN, fault);
        }

        fn break_world(&self, shard: usize, world: World, fault: Fault) {
            let lasting = matches!(fault, Fault::StandStill(_));
            self.running.mailboxes[shard].post(Post::Fault(world, fault));
            if !lasting {
                // Asks every shard, behind the post.
                drop(self.running.metrics());
            }
        }

        fn stand_still(&self, shard: usize) -> Sender<()> {
            let (end, until) = channel();
            self.break_shard(shard, Fault::StandStill(until));
            end
        }

        fn figure(&self, name: &str) -> f64 {
            let page = self.running.metrics();
            let line =
                page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {page}"));
            line.rsplit(' ').next().unwrap().parse().unwrap()
        }

        fn panics(&self, shard: usize) -> f64 {
            self.figure(&format!("throng_shard_panics_total{{shard=\"{shard}\"}}"))
        }

        /// The shard that serves a connection.
        fn shard_of(&self, conn: u32) -> usize {
            let list = self.running.watch.answer(&ApiRequest::new(Endpoint::Connections)).expect("a list");
            let all = list["connections"].as_array().unwrap();
            let found =
                all.iter().find(|each| each["id"] == conn).unwrap_or_else(|| panic!("{conn}: {list}"));
            found["shard"].as_u64().unwrap() as usize
        }

        fn create_room(&self) -> ChannelId {
            let create = CreateChannel::new(ChannelType::SUBWORLD).data(ROOM, Vec::new());
            self.runtime.block_on(self.owner.create_channel(create)).unwrap().channel
        }

        /// Something said in a room reaches its owner.
        fn expect_to_be_heard(&mut self, player: &Client, room: ChannelId, text: &'static str) {
            let Stage { runtime, events, .. } = self;
            runtime.block_on(async {
                player.send(room, 100, text).await.unwrap();
                let heard = async {
                    loop {
                        if let Event::Message { payload, .. } = events.next().await.unwrap()
                            && payload == text
                        {
                            return;
                        }
                    }
                };
                tokio::time::timeout(PATIENCE, heard).await.expect(text);
            });
        }

        fn expect_the_end(&self, events: &mut Events) {
            let end = async { while events.next().await.is_some() {} };
            self.runtime.block_on(async { tokio::time::timeout(PATIENCE, end).await }).expect("it is closed");
        }
    }

    async fn connect(addr: SocketAddr, config: SessionConfig) -> (Client, Events) {
        let config = SessionConfig { auth_timeout: PATIENCE, request_timeout: PATIENCE, ..config };
        Client::connect_with(addr.to_string().parse().unwrap(), config, Backoff::never()).await.unwrap()
    }

    fn until(what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_panic_on_input_ends_that_connection_and_nothing_else() {
        for shards in [1, 2] {
            let mut stage = Stage::new(shards, &[]);
            let room = stage.create_room();
            let (victim, mut victim_events) = stage.player("victim");
            let others: Vec<_> = (0..3).map(|index| stage.player(&format!("player {index}"))).collect();
            let shard = stage.shard_of(victim.conn().0);
            stage.break_shard(shard, Fault::PanicOnData);
            stage.runtime.block_on(victim.send(room, 100, "boom")).unwrap();
            stage.expect_the_end(&mut victim_events);
            for (other, _) in &others {
                stage.expect_to_be_heard(other, room, "still here");
            }
            assert_eq!(stage.panics(shard), 1.0);
            assert_eq!(stage.figure("throng_gateway_connections{kind=\"client\"}"), 3.0);
            assert!(stage.running.watch.health().ready, "a panic that was contained is no reason to leave");
            // The place is free again.
            let (next, _events) = stage.player("victim");
            stage.expect_to_be_heard(&next, room, "back");
        }
    }

    #[test]
    fn a_panic_on_mail_is_counted_and_everybody_stays() {
        let mut stage = Stage::new(2, &[]);
        let room = stage.create_room();
        let players: Vec<_> = (0..4).map(|index| stage.player(&format!("player {index}"))).collect();
        for shard in 0..2 {
            stage.break_shard(shard, Fault::Panic);
            assert_eq!(stage.panics(shard), 1.0);
        }
        for (player, _) in &players {
            stage.expect_to_be_heard(player, room, "still here");
        }
    }

    #[test]
    fn timers_go_on_after_a_panic_in_one() {
        let mut stage = Stage::new(1, &[]);
        let room = stage.create_room();
        let (player, mut events) = stage.player("player");
        let options = SubscribeOptions::read();
        stage.runtime.block_on(stage.owner.subscribe_other(room, Some(player.conn()), options)).unwrap();
        stage.break_shard(0, Fault::PanicOnTimeout);
        let owner = stage.owner.clone();
        stage.runtime.block_on(async {
            let seen = async {
                // The update that the panic swallows may be lost; the state comes with a later one.
                for round in 0_u8.. {
                    owner.update(room, ROOM, vec![0x0a, 1, b'a' + round % 26]).await.unwrap();
                    let update =
                        async { while !matches!(events.next().await.unwrap(), Event::Update { .. }) {} };
                    if tokio::time::timeout(Duration::from_millis(200), update).await.is_ok() && round > 0 {
                        return;
                    }
                }
            };
            tokio::time::timeout(PATIENCE, seen).await.expect("fan-out goes on");
        });
        until("the panic", || stage.panics(0) == 1.0);
        stage.expect_to_be_heard(&player, room, "still here");
    }

    #[test]
    fn a_shard_that_stands_still_is_reported_until_it_moves_again() {
        let stage = Stage::new(2, &[("server.watchdog_ms", "100")]);
        assert!(stage.running.watch.health().ready);
        let end = stage.stand_still(1);
        until("the watchdog", || !stage.running.watch.health().live);
        let health = stage.running.watch.health();
        let stuck: Vec<&str> =
            health.parts.iter().filter(|part| !part.ok).map(|part| part.name.as_ref()).collect();
        assert_eq!((stuck, health.ready), (vec!["shard 1"], false));
        drop(end);
        until("the shard to move", || stage.running.watch.health().ready);
    }

    #[test]
    fn a_full_mailbox_stops_its_senders_and_loses_nothing() {
        // 6 MB in all, in many messages and in few.
        flood_a_shard_that_stands_still(50_000, 128);
        flood_a_shard_that_stands_still(200, 32 << 10);
    }

    #[test]
    fn ten_thousand_worlds_leave_no_thread_shard_or_series_behind() {
        let stage = Stage::new(2, &[]);
        let series = |stage: &Stage| {
            let page = stage.running.metrics();
            page.lines()
                .filter_map(|line| line.rsplit_once(' '))
                .map(|(name, _)| name.to_owned())
                .collect::<Vec<_>>()
        };
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let act = |endpoint, name: &str| {
            let mut request = ApiRequest::new(endpoint);
            request.body = serde_json::json!({ "name": name });
            stage.running.watch.answer(&request).expect("it is done");
        };
        act(Endpoint::WorldOpen, "first");
        act(Endpoint::WorldClose, "first");
        let before = series(&stage);
        let threads_before = threads();
        for round in 0..10_000 {
            let name = format!("match-{round}");
            act(Endpoint::WorldOpen, &name);
            act(Endpoint::WorldClose, &name);
        }
        assert_eq!(series(&stage), before);
        // Other tests of this process start and end threads of their own.
        assert!(threads() < threads_before + 1_000);
        let worlds: Vec<usize> =
            stage.running.watch.reports(false).iter().map(|report| report.worlds.len()).collect();
        assert_eq!(worlds, [1, 1], "shards of each thread: those of the main world");
    }

    /// The bound of the promise that a busy world does not delay another one's players, in rounds
    /// and reads: nothing here depends on the time that anything takes.
    #[test]
    fn a_busy_world_delays_another_one_by_its_turn_and_serves_its_own_in_turn() {
        const BUSY: usize = 12;
        let extra = "tcp://127.0.0.1:0/hub";
        let stage = Stage::new(1, &[("gateway.worlds", "hub"), ("gateway.clients.extra", extra)]);
        let doors: Vec<SocketAddr> = {
            let all = stage.running.addresses().iter().filter(|each| each.service == Service::Clients);
            all.map(|each| each.addr).collect()
        };
        let hub = stage.running.watch.worlds.find("hub").unwrap().world;
        let connect = |addr: SocketAddr| {
            let mut stream = TcpStream::connect(addr).unwrap();
            log_in(&mut stream);
            stream
        };
        let mut busy: Vec<TcpStream> = (0..BUSY).map(|_| connect(doors[0])).collect();
        let mut quiet = connect(doors[1]);
        let reads = Reads::default();
        stage.break_world(0, World::MAIN, Fault::Slow(Arc::clone(&reads)));
        stage.break_world(0, hub, Fault::Note(Arc::clone(&reads)));
        let end = stage.stand_still(0);
        let message = |bytes: usize| {
            let (mut writer, mut out) = (FrameWriter::new(), Vec::new());
            let body = vec![0; bytes];
            let pack = MessagePack { msg_type: 100, body: &body, ..MessagePack::default() };
            writer.push(&pack, &mut out).unwrap();
            writer.flush(&mut out);
            out
        };
        // The first has more to read than one turn takes, and so it is there again in every round.
        for _ in 0..4 {
            busy[0].write_all(&message(32 << 10)).unwrap();
        }
        busy[1..].iter_mut().for_each(|each| each.write_all(&message(8)).unwrap());
        quiet.write_all(&message(8)).unwrap();
        drop(end);
        until("all to be read", || reads.lock().unwrap().len() > BUSY + 1);
        let reads = reads.lock().unwrap();
        let at = reads.iter().position(|(_, world)| *world == hub).unwrap();
        assert!(at <= 1, "reads of the busy world before that of the quiet one: {at}");
        // One read spends a turn, and in twelve rounds everyone has had one.
        let of_main: Vec<_> = reads.iter().filter(|(_, world)| *world == World::MAIN).collect();
        assert!(of_main.windows(2).all(|pair| pair[0].0 != pair[1].0), "two in a round: {of_main:?}");
        assert!(stage.running.watch.health().ready);
    }

    #[test]
    fn panics_in_a_world_leave_another_one_of_its_thread_alone() {
        let extra = "tcp://127.0.0.1:0/hub";
        let mut stage = Stage::new(1, &[("gateway.worlds", "hub"), ("gateway.clients.extra", extra)]);
        let room = stage.create_room();
        let (player, _events) = stage.player("player");
        let addresses = stage.running.addresses().iter();
        let door = addresses.filter(|each| each.service == Service::Clients).nth(1).unwrap().addr;
        let world = stage.running.watch.worlds.find("hub").unwrap().world;
        let guest = SessionConfig::client("guest", "");
        let (guest, mut guest_events) = stage.runtime.block_on(connect(door, guest));
        stage.break_world(0, world, Fault::Panic);
        assert_eq!(stage.panics(0), 1.0);
        stage.expect_to_be_heard(&player, room, "after a panic on mail");
        stage.break_world(0, world, Fault::PanicOnData);
        stage.runtime.block_on(guest.send(ChannelId(0), 100, "boom")).unwrap();
        stage.expect_the_end(&mut guest_events);
        assert_eq!(stage.panics(0), 2.0);
        stage.expect_to_be_heard(&player, room, "after a panic on input");
        assert!(stage.running.watch.health().ready);
    }

    #[test]
    fn a_world_that_restarts_leaves_another_one_of_its_thread_alone() {
        let extra = "tcp://127.0.0.1:0/hub";
        let mut stage = Stage::new(1, &[("gateway.worlds", "hub"), ("gateway.clients.extra", extra)]);
        let room = stage.create_room();
        let (player, _events) = stage.player("player");
        let addresses = stage.running.addresses().iter();
        let door = addresses.filter(|each| each.service == Service::Clients).nth(1).unwrap().addr;
        let guest = || connect(door, SessionConfig::client("guest", ""));
        let (_guest, mut guest_events) = stage.runtime.block_on(guest());
        let world = stage.running.watch.worlds.find("hub").unwrap().world;
        // As after a panic that breaks more than the core can heal.
        stage.running.mailboxes[0].post(Post::Restart { to: WorldEpoch { world, life: 1 } });
        stage.expect_the_end(&mut guest_events);
        stage.expect_to_be_heard(&player, room, "still here");
        drop(stage.runtime.block_on(guest()));
        stage.expect_to_be_heard(&player, room, "and now");
    }

    fn flood_a_shard_that_stands_still(messages: u32, body_bytes: usize) {
        const BYTES_MAX: usize = 256 << 10;
        let mut stage = Stage::new(
            2,
            &[
                ("server.mailbox_bytes_max", &BYTES_MAX.to_string()),
                ("gateway.limits.client_messages_per_s_max", "0"),
                ("gateway.limits.client_bytes_per_s_max", "0"),
            ],
        );
        let mut player = TcpStream::connect(stage.clients()).unwrap();
        let conn = log_in(&mut player);
        let shard = stage.shard_of(conn);
        let room =
            std::iter::repeat_with(|| stage.create_room()).find(|room| room.0 as usize % 2 != shard).unwrap();
        let home = 1 - shard;
        let end = stage.stand_still(home);
        let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
        for index in 0..messages {
            let mut body = vec![0; body_bytes];
            body[..4].copy_from_slice(&index.to_le_bytes());
            let message =
                MessagePack { channel_id: room.0, msg_type: 100, body: &body, ..MessagePack::default() };
            writer.push(&message, &mut bytes).unwrap();
        }
        writer.flush(&mut bytes);
        let sender = std::thread::spawn(move || {
            player.write_all(&bytes).unwrap();
            player
        });
        let mailbox = &stage.running.mailboxes[home];
        until("the mailbox to be full", || mailbox.has_no_room_for(64 << 10));
        // The sending shard has noticed, and has gone through several rounds since without reading
        // on.
        until("the sender to stop", || {
            let report = stage.running.metrics();
            report.lines().any(|line| {
                line.strip_prefix(&format!("throng_shard_congestions_total{{shard=\"{shard}\"}} "))
                    .is_some_and(|count| count != "0")
            })
        });
        // The bound, one read of 64 KiB with what stands for each message, and what this test has
        // asked.
        let waiting = mailbox.bytes();
        assert!(waiting < BYTES_MAX + (96 << 10), "{waiting} bytes wait");
        drop(end);
        stage.runtime.block_on(async {
            let mut next = 0_u32;
            let all = async {
                while next < messages {
                    if let Event::Message { payload, .. } = stage.events.next().await.unwrap() {
                        assert_eq!((&payload[..4], payload.len()), (&next.to_le_bytes()[..], body_bytes));
                        next += 1;
                    }
                }
            };
            tokio::time::timeout(PATIENCE, all).await.expect("every message");
        });
        let peak = stage.figure(&format!("throng_shard_mailbox_peak_bytes{{shard=\"{home}\"}}"));
        assert!(peak > (BYTES_MAX - (64 << 10)) as f64, "{peak}");
        drop(sender.join().unwrap());
    }

    #[test]
    fn a_login_lifts_the_bound_on_incomplete_enet_packets() {
        use throng_net::enet::{Config, Delivery, Endpoint as Enet, Event as Told, Lane, Pacing};
        static LONG: [u8; 200_000] = [0; 200_000];
        for shards in [1, 2] {
            let stage = Stage::new(shards, &[("gateway.clients.transport", "enet")]);
            let (clock, addr) = (throng_net::Clock::start(), "127.0.0.1:0".parse().unwrap());
            let udp = throng_net::udp::UdpOptions::default();
            let mut enet = Enet::open(clock, addr, &udp, Pacing::default(), Config::client(7)).unwrap();
            let until = |enet: &mut Enet, what: &str, done: &dyn Fn(Option<&Told>) -> bool| {
                let deadline = Instant::now() + PATIENCE;
                while !done(None) {
                    assert!(Instant::now() < deadline, "waited in vain for {what}");
                    let mut events = Vec::new();
                    let wake = clock.now() + Duration::from_millis(5);
                    enet.turn(Some(wake), |host| events.extend(std::iter::from_fn(|| host.poll_event())))
                        .unwrap();
                    if events.iter().any(|event| done(Some(event))) {
                        return;
                    }
                }
            };
            let connect = |enet: &mut Enet| {
                let peer = enet.host().connect(clock.now(), stage.clients(), 1, 0).unwrap();
                until(enet, "a connection", &|told| matches!(told, Some(Told::Connected { .. })));
                peer
            };
            let (stranger, player) = (connect(&mut enet), connect(&mut enet));
            enet.host().send(stranger, Lane(0), &LONG[..], Delivery::Reliable).unwrap();
            until(&mut enet, "a refusal", &|_| {
                stage.figure("throng_enet_dropped_total{reason=\"no_room\"}") > 0.0
            });
            assert_eq!(stage.figure("throng_enet_packets_total{direction=\"in\"}"), 0.0);
            enet.host().disconnect_now(stranger, 0);
            enet.host().send(player, Lane(0), login(), Delivery::Reliable).unwrap();
            until(&mut enet, "an answer", &|told| matches!(told, Some(Told::Received { .. })));
            enet.host().send(player, Lane(0), &LONG[..], Delivery::Reliable).unwrap();
            until(&mut enet, "the long packet", &|_| {
                stage.figure("throng_enet_packets_total{direction=\"in\"}") > 1.0
            });
        }
    }

    /// Logs in without a session, which would bound what is sent; returns the connection's id.
    fn log_in(stream: &mut TcpStream) -> u32 {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&login()).unwrap();
        let (mut reader, mut conn, mut buffer) = (FrameReader::default(), None, [0; 1024]);
        while conn.is_none() {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "closed");
            let fed = reader.feed(&buffer[..read], &mut |packet| {
                let body = packet.messages().next().unwrap().body;
                conn = Some(pb::AuthResultMessage::decode(body).unwrap().conn_id);
                ControlFlow::Continue(())
            });
            fed.unwrap();
        }
        conn.unwrap()
    }

    /// A frame with a login.
    fn login() -> Vec<u8> {
        let auth =
            pb::AuthMessage { player_identifier_token: "flood".to_owned(), ..pb::AuthMessage::default() };
        let body = auth.encode_to_vec();
        let (mut writer, mut bytes) = (FrameWriter::new(), Vec::new());
        let head = MessagePack { stub_id: 1, msg_type: 1, body: &body, ..MessagePack::default() };
        writer.push(&head, &mut bytes).unwrap();
        writer.flush(&mut bytes);
        bytes
    }
}
