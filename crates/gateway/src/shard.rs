//! One shard: the public face of the core, the message path, and the letters between shards.

mod letters;
mod lifecycle;
mod messages;
pub(crate) mod moving;

use core::fmt;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use throng_stdx::Instant;
use throng_wire::frame::Scratch;

use crate::channel::Channel;
use crate::config::Config;
use crate::connection::Connection;
use crate::data::Schemas;
use crate::effect::{Accepted, Closed, Effect, Verdict, WorldChoice};
use crate::fsm::StateIndex;
use crate::ids::{AuthTicket, ChannelId, ConnHandle, ConnKind, IdHasher, IdMap, Secret, ShardIndex};
use crate::mail::{Letter, Mail};
use crate::outbox::{Backlog, Framing, Outbox};
use crate::reason::{AcceptRefusal, CloseReason};
use crate::registry::Registry;
use crate::settings::{ChannelType, TypeSettings};
use crate::stats::Stats;
use crate::switchboard::{Switchboard, Timer};
use crate::view::{ChannelView, ClosureView, ConnectionView, WorldView};
use crate::world::World;
pub use moving::Moved;

/// What [`Shard::handle_due`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Due {
    /// The fan-out of a channel of this type.
    Tick(ChannelType),
    /// Something else: a deadline of a connection, the end of a recovery, a look at the loads.
    Other,
}

/// A shard of the gateway. See the crate documentation for how to drive it.
pub struct Shard {
    pub(crate) board: Switchboard,
    pub(crate) schemas: Arc<Schemas>,
    pub(crate) channels: IdMap<ChannelId, Box<Channel>>,
    /// Only on shard 0.
    pub(crate) global: Option<Box<Registry>>,
    /// Only on shard 0.
    pub(crate) world: Option<Box<World>>,
    settings: Vec<(ChannelType, Arc<TypeSettings>)>,
    scratch: Scratch,
    pub(crate) draining: bool,
    /// The latest closures, for people who ask why.
    pub(crate) closures: VecDeque<ClosureView>,
    /// Connections that leave for other worlds, until the driver takes them.
    moved: Vec<(ConnHandle, Moved)>,
}

impl Shard {
    /// Shard `index` of `count`.
    ///
    /// `seed` makes the run repeatable, together with [`Config::secret`], which must be secret
    /// where peers are not trusted. `unix_start_ns` is the Unix time in nanoseconds at
    /// `Instant::ZERO`.
    ///
    /// # Panics
    /// When `index` is not below `count`.
    #[must_use]
    pub fn new(
        config: Arc<Config>,
        schemas: Arc<Schemas>,
        index: ShardIndex,
        count: u16,
        seed: u64,
        unix_start_ns: u64,
    ) -> Self {
        assert!(index.0 < count, "shard {} of {count}", index.0);
        let secret = Secret::new(seed, &config.secret);
        let hasher = IdHasher::new(&secret);
        let global =
            (index == ShardIndex::FIRST).then(|| Box::new(Registry::new(&config, secret.clone(), count)));
        let world = (index == ShardIndex::FIRST).then(|| Box::new(World::new(&config, hasher)));
        let settings = shared_settings(&config);
        let mut shard = Self {
            board: Switchboard::new(config, index, count, hasher, unix_start_ns),
            schemas,
            channels: IdMap::with_hasher(hasher),
            global,
            world,
            settings,
            scratch: Scratch::default(),
            draining: false,
            closures: VecDeque::new(),
            moved: Vec::new(),
        };
        if shard.global.is_some() {
            // GLOBAL exists from the start, without an owner and without data.
            let settings = shard.settings_of(ChannelType::GLOBAL);
            let channel =
                Channel::new(ChannelId::GLOBAL, ChannelType::GLOBAL, settings, Instant::ZERO, hasher);
            shard.channels.insert(ChannelId::GLOBAL, Box::new(channel));
            shard.board.stats.channels.insert(ChannelType::GLOBAL, 1);
        }
        shard
    }

    // ---- Inputs ---------------------------------------------------------------------------------

    /// A listener accepted a connection. Shard 0 only.
    ///
    /// # Errors
    /// The connection is not taken; close the socket.
    pub fn accept(
        &mut self,
        now: Instant,
        kind: ConnKind,
        framing: Framing,
        addr: IpAddr,
    ) -> Result<Accepted, AcceptRefusal> {
        self.advance(now);
        let accepted = self.try_accept(kind, framing, addr);
        if let Err(reason) = accepted {
            self.board.stats.count_accept_refused(reason);
        }
        accepted
    }

    /// An accepted connection may come from another address than its datagrams say, until
    /// [`handle_proven`](Self::handle_proven): failed logins are not held against that address.
    /// Shard 0 only, right after [`accept`](Self::accept).
    pub fn note_unproven(&mut self, conn: ConnHandle) {
        if let Some(entry) = self.global.as_mut().and_then(|global| global.entries.get_mut(&conn.first_id()))
        {
            entry.proven = false;
        }
    }

    /// The listener or the transport of an accepted connection names the world that its peer asks
    /// for, as the field `world` of AUTH does. Shard 0 only, right after [`accept`](Self::accept).
    pub fn note_asked(&mut self, conn: ConnHandle, asked: WorldChoice) {
        if let Some(entry) = self.global.as_mut().and_then(|global| global.entries.get_mut(&conn.first_id()))
        {
            entry.asked = Some(asked);
        }
    }

    /// Live connections of the world. Shard 0 only: 0 elsewhere.
    #[must_use]
    pub fn live_connections(&self) -> usize {
        self.global.as_ref().map_or(0, |global| global.entries.len())
    }

    /// True if the world has no connection, and none that may return. Shard 0 only.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        self.global.as_ref().is_some_and(|global| global.entries.is_empty() && global.lost.is_empty())
    }

    /// True if an accepted connection has not logged in yet. Shard 0 only.
    #[must_use]
    pub fn is_stranger(&self, conn: ConnHandle) -> bool {
        let entry = self.global.as_ref().and_then(|global| global.entries.get(&conn.first_id()));
        entry.is_some_and(|entry| !entry.authenticated)
    }

    /// True if addresses that a peer of this address reports are trusted.
    #[must_use]
    pub fn is_proxy(&self, addr: IpAddr) -> bool {
        self.board.config.limits.unlimited_addresses.iter().any(|range| range.contains(addr))
    }

    /// This shard runs the world, which takes as much work as so many connections: it gets that
    /// many fewer than the others. Called four times a second; between calls the world's work for
    /// new clients is estimated. Without a world the weight is ignored. Shard 0 only.
    pub fn set_world_weight(&mut self, connections: usize) {
        if let Some(weight) = self.global.as_mut().and_then(|global| global.world_weight.as_mut()) {
            weight.measure(connections);
        }
    }

    /// Few descriptors are left: closes a connection that [has not logged in](Self::is_stranger).
    pub fn give_way(&mut self, now: Instant, conn: ConnHandle) {
        self.advance(now);
        if self.is_stranger(conn) {
            self.board.close(conn.first_id(), CloseReason::GaveWay);
        }
        self.settle();
    }

    /// A connection of this shard has proven that its address is its own.
    pub fn handle_proven(&mut self, now: Instant, conn: ConnHandle) {
        self.advance(now);
        let slot = self.board.handles.get(&conn);
        if let Some(conn) = slot.and_then(|&slot| self.board.conns.get(slot as usize)) {
            self.board.post(ShardIndex::FIRST, Letter::Proven { conn: conn.id });
        }
        self.settle();
    }

    /// Bytes arrived on a connection of this shard. Unknown connections are ignored.
    pub fn handle_bytes(&mut self, now: Instant, conn: ConnHandle, bytes: &[u8]) {
        self.advance(now);
        if let Some(&slot) = self.board.handles.get(&conn) {
            self.receive(slot, bytes);
        }
        self.settle();
    }

    /// The transport took `written` bytes of a connection's outbox; 0 when it would not take any.
    pub fn handle_written(&mut self, now: Instant, conn: ConnHandle, written: usize) {
        self.advance(now);
        if let Some(&slot) = self.board.handles.get(&conn) {
            self.written(slot, written);
        }
        self.settle();
    }

    /// The transport saw the connection end.
    pub fn handle_closed(&mut self, now: Instant, conn: ConnHandle, cause: Closed) {
        self.advance(now);
        let slot = self.board.handles.get(&conn);
        if let Some(kind) = slot.and_then(|&slot| self.board.conns.get(slot as usize)).map(|conn| conn.kind) {
            self.close_local(conn, cause.reason(kind), false);
        }
        self.settle();
    }

    /// Mail from another shard.
    pub fn handle_mail(&mut self, now: Instant, mail: Mail) {
        self.advance(now);
        self.handle_letter(mail.0);
        self.settle();
    }

    /// The provider answered. Shard 0 only. Unknown tickets (the connection is gone) are ignored.
    pub fn handle_verdict(&mut self, now: Instant, ticket: AuthTicket, verdict: Verdict) {
        self.advance(now);
        self.on_verdict(ticket, verdict);
        self.settle();
    }

    /// Does everything that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.handle_due(now).is_some() {}
    }

    /// Does the next thing that is due at `now`; `None` when nothing is. For drivers that look at
    /// their clock in between.
    pub fn handle_due(&mut self, now: Instant) -> Option<Due> {
        self.advance(now);
        let Some((at, timer)) = self.board.timers.pop_due(now) else {
            self.settle();
            return None;
        };
        let mut due = Due::Other;
        match timer {
            Timer::Channel(id) => {
                let late = u64::try_from(now.since(at).as_nanos()).unwrap_or(u64::MAX);
                self.board.stats.fan_out_lateness_ns += late;
                let max = &mut self.board.stats.fan_out_lateness_ns_max;
                *max = late.max(*max);
                self.board.at_hand = Some(id);
                if let Some(channel) = self.channels.get_mut(&id) {
                    channel.run_tick(&mut self.board);
                    due = Due::Tick(channel.channel_type);
                }
            }
            Timer::Connection(handle) => self.connection_due(handle),
            Timer::Settle(conn) => self.on_settle_timer(conn),
            Timer::Expire(conn) => self.expire_lost(conn),
            Timer::Answer(conn) => self.answer_delayed(conn),
            Timer::Balance => self.balance_due(),
        }
        self.settle();
        Some(due)
    }

    /// Memory of the output that waits for this shard's clients.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        Backlog { entry_bytes: self.board.entries.get(), ..self.board.backlog }
    }

    /// The output of all clients takes too much memory: closes those of this shard for which most
    /// waits, until `excess` bytes of output are gone. Clients for
    /// which nothing waits stay connected.
    pub fn shed_backlog(&mut self, now: Instant, excess: usize) {
        self.advance(now);
        let clients = self.board.conns.iter().filter(|(_, conn)| conn.kind == ConnKind::Client);
        let waiting = clients.map(|(slot, conn)| (conn.outbox.queued_bytes(), slot as u32));
        let mut fullest: BinaryHeap<(usize, u32)> = waiting.filter(|(bytes, _)| *bytes > 0).collect();
        let mut gone = 0;
        while gone < excess
            && let Some((bytes, slot)) = fullest.pop()
        {
            gone += bytes;
            self.board.doom_slot(slot, CloseReason::OutputMemory);
        }
        self.settle();
    }

    /// The process did nothing for `gap`, so nobody's silence in it counts.
    pub fn excuse_pause(&mut self, gap: Duration) {
        for (_, conn) in &mut self.board.conns {
            for since in [&mut conn.accepted, &mut conn.received, &mut conn.progressed] {
                *since += gap;
            }
        }
    }

    /// Stops accepting and closes every connection of this shard with what is queued for it. Call
    /// it on every shard.
    pub fn begin_shutdown(&mut self, now: Instant) {
        self.end(now, CloseReason::Shutdown);
    }

    /// As [`begin_shutdown`](Self::begin_shutdown), of a world that is closed while its process
    /// continues.
    pub fn close_world(&mut self, now: Instant) {
        self.end(now, CloseReason::WorldClosed);
    }

    fn end(&mut self, now: Instant, reason: CloseReason) {
        self.advance(now);
        self.draining = true;
        let slots: Vec<u32> = self.board.conns.iter().map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            self.board.doom_slot(slot, reason);
        }
        self.settle();
    }

    /// Counts a connection that the driver has not accepted.
    pub fn count_refused(&mut self, reason: AcceptRefusal) {
        self.board.stats.count_accept_refused(reason);
    }

    // ---- Outputs --------------------------------------------------------------------------------

    /// Next mail for another shard.
    pub fn poll_mail(&mut self) -> Option<(ShardIndex, Mail)> {
        self.board.poll_mail().map(|(to, letter)| (to, Mail(letter)))
    }

    /// Next effect for the driver.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.board.poll_effect()
    }

    /// Next connection that gained output since it was last drained; each at most once until then.
    pub fn poll_writable(&mut self) -> Option<ConnHandle> {
        self.board.poll_writable()
    }

    /// What waits to be written to a connection of this shard.
    pub fn outbox(&mut self, conn: ConnHandle) -> Option<&mut Outbox> {
        let slot = *self.board.handles.get(&conn)?;
        self.board.conns.get_mut(slot as usize).map(|conn| &mut conn.outbox)
    }

    /// True if a connection of this shard has logged in.
    #[must_use]
    pub fn has_logged_in(&self, conn: ConnHandle) -> bool {
        let slot = self.board.handles.get(&conn);
        slot.and_then(|&slot| self.board.conns.get(slot as usize)).is_some_and(|conn| conn.authenticated)
    }

    /// When [`Self::handle_timeout`] has work, at the earliest; `None` when nothing is scheduled.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.board.timers.next()
    }

    // ---- Views ----------------------------------------------------------------------------------

    /// Uses the limits, abuse rules, permissions, outbox bounds, channel settings and state
    /// machines of `config` from now on, and freezes or thaws the load balancer as it says; the
    /// rest of it is fixed at the start. Channels keep the settings that they were created with. A
    /// state machine with fewer states than the one in use is not taken over, because connections
    /// may be in those states.
    pub fn reconfigure(&mut self, config: &Config) {
        let mut next = Config::clone(&self.board.config);
        next.limits = config.limits.clone();
        next.abuse = config.abuse.clone();
        next.permissions = config.permissions.clone();
        next.outbox = config.outbox.clone();
        next.channel_settings = config.channel_settings.clone();
        next.spatial.balance_frozen = config.spatial.balance_frozen;
        for (mine, theirs) in [
            (&mut next.server_state_machine, &config.server_state_machine),
            (&mut next.client_state_machine, &config.client_state_machine),
        ] {
            if theirs.state_count() >= mine.state_count() {
                *mine = Arc::clone(theirs);
            }
        }
        self.settings = shared_settings(&next);
        if let Some(global) = &mut self.global {
            global.bans.reconfigure(&next.abuse);
        }
        self.board.config = Arc::new(next);
    }

    /// The shard's counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.board.stats
    }

    /// Connections whose bytes this shard handles, for monitoring. Costs a walk over all of them.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionView> {
        self.board.conns.iter().map(|(_, conn)| ConnectionView::new(conn, self.state_name(conn)))
    }

    /// Channels of this shard, for monitoring. Costs a walk over all of them.
    pub fn channels(&self) -> impl Iterator<Item = ChannelView> + '_ {
        let start = self.board.config.entity_channel_start;
        self.channels.values().map(move |channel| {
            let world = self.world.as_ref().filter(|_| channel.id.0 >= start);
            let cell = world.and_then(|world| world.cell_of(channel.id));
            ChannelView {
                cell: cell.map(|cell| self.board.config.cell_channel(cell)),
                version: world.and_then(|world| world.version_of(channel.id)).unwrap_or(0),
                ..ChannelView::new(channel)
            }
        })
    }

    /// The channel's data in its encoded form with its type name, for tools. `None` when it is not
    /// here or has none.
    #[must_use]
    pub fn channel_data(&self, channel: ChannelId) -> Option<(String, Vec<u8>)> {
        let data = self.channels.get(&channel)?.data.as_ref()?;
        let mut bytes = Vec::new();
        data.content.encode(None, &mut bytes);
        Some((data.content.plan().name().to_owned(), bytes))
    }

    /// Bans in force (shard 0).
    pub fn ban_count(&mut self, now: Instant) -> usize {
        self.global.as_mut().map_or(0, |global| global.bans.len(now))
    }

    /// The world, on shard 0. Costs a walk over its cells.
    #[must_use]
    pub fn world(&self) -> Option<WorldView> {
        self.world.as_ref().map(|world| world.view(|conn| self.board.peers.contains_key(&conn)))
    }

    // ---- Accepting and closing ------------------------------------------------------------------

    pub(crate) fn advance(&mut self, now: Instant) {
        debug_assert!(now >= self.board.now, "time went back");
        self.board.now = now.max(self.board.now);
        self.board.at_hand = None;
        self.board.changing = None;
    }

    // ---- Writing and deadlines ------------------------------------------------------------------

    fn written(&mut self, slot: u32, written: usize) {
        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        conn.outbox.advance_with(written, &mut board.spares);
        conn.count_backlog(&mut board.backlog);
        if written > 0 {
            conn.progressed = board.now;
        }
        let stats = board.stats.kind_mut(conn.kind);
        stats.bytes_out += written as u64;
        stats.packets_out += u64::from(conn.outbox.take_packets());
        if !conn.lagging.is_empty() && conn.outbox.queued_bytes() <= board.config.outbox.low_water_bytes {
            let id = conn.id;
            for channel in conn.resume() {
                board.post(board.home(channel), Letter::Resume { channel, conn: id });
            }
        }
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        conn.is_behind = !conn.outbox.is_empty();
        if !conn.is_behind {
            conn.writable = false;
        } else {
            // A gather may stop before the end, so a transport that took all of it is to be asked
            // again.
            if written > 0 {
                board.writable_again(slot);
            }
            board.arm_connection(slot);
        }
    }

    fn connection_due(&mut self, handle: ConnHandle) {
        let board = &mut self.board;
        let Some(&slot) = board.handles.get(&handle) else { return };
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        conn.timer = None;
        let (id, now, again) = (conn.id, board.now, board.now + board.config.outbox.repair_interval);
        // WorldChoice for again if it does not come; a lag brings its own.
        let due = conn.unsure.iter_mut().filter(|(at, _)| *at <= now);
        let repairs: Vec<ChannelId> = due.map(|(at, channel)| (*at = again, *channel).1).collect();
        for channel in repairs {
            board.post(board.home(channel), Letter::Resume { channel, conn: id });
        }
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        match conn.deadline(&board.config) {
            Some((at, reason)) if at <= board.now => board.doom_slot(slot, reason),
            _ => board.arm_connection(slot),
        }
    }

    // ---- Small things ---------------------------------------------------------------------------

    pub(crate) fn settings_of(&self, channel_type: ChannelType) -> Arc<TypeSettings> {
        let known = self.settings.iter().find(|(number, _)| *number == channel_type);
        match known {
            Some((_, settings)) => Arc::clone(settings),
            None => Arc::new(self.board.config.channel_settings.get(channel_type).clone()),
        }
    }

    fn state_name(&self, conn: &Connection) -> String {
        let StateIndex(index) = conn.state;
        let machine = self.board.config.state_machine(conn.kind);
        machine.state_names().nth(usize::from(index)).unwrap_or_default().to_owned()
    }
}

/// One copy of the settings per type, shared by its channels.
fn shared_settings(config: &Config) -> Vec<(ChannelType, Arc<TypeSettings>)> {
    config.channel_settings.iter().map(|(number, settings)| (number, Arc::new(settings.clone()))).collect()
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard")
            .field("index", &self.board.index)
            .field("connections", &self.board.conns.len())
            .field("channels", &self.channels.len())
            .finish_non_exhaustive()
    }
}
