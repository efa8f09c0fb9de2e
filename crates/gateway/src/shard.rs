//! One shard: the public face of the core, the message path, and the letters between shards.

use core::fmt;
use core::mem;
use core::ops::ControlFlow;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use throng_stdx::Instant;
use throng_wire::channeldpb::MessageType;
use throng_wire::frame::{Form, FrameError, ReaderLimits, Scratch};
use throng_wire::{FrameReader, MessagePack, Packet};

use crate::ban::Subject;
use crate::channel::Channel;
use crate::config::Config;
use crate::connection::{Budget, Connection};
use crate::data::Schemas;
use crate::effect::{Accepted, Closed, Effect, SecurityEvent, SecurityEventKind, Verdict};
use crate::fsm::StateIndex;
use crate::ids::{AuthTicket, ChannelId, ConnId, ConnKind, IdHasher, IdMap, Secret, ShardIndex};
use crate::inspect::ClosureView;
use crate::mail::{Head, Letter, Mail};
use crate::outbox::{Framing, Outbox};
use crate::reason::{AcceptRefusal, CloseReason, Refusal};
use crate::record::Recorder;
use crate::registry::{Lost, Registry};
use crate::requests::Sender;
use crate::settings::{ChannelType, TypeSettings};
use crate::stats::Stats;
use crate::switchboard::{Peer, Switchboard, Timer};
use crate::view::{ChannelView, ConnectionView, WorldView};
use crate::world::{World, is_object_message};

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
}

impl Shard {
    /// Shard `index` of `count`.
    ///
    /// `seed` makes the run repeatable, together with [`Config::secret`], which must be secret where peers are not
    /// trusted. `unix_start_ns` is the Unix time in nanoseconds at `Instant::ZERO`.
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

    // ---- Inputs -----------------------------------------------------------------------------------------------------

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

    /// Bytes arrived on a connection of this shard. Unknown connections are ignored.
    pub fn handle_bytes(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.advance(now);
        if let Some(&slot) = self.board.handles.get(&conn) {
            self.receive(slot, bytes);
        }
        self.settle();
    }

    /// The transport took `written` bytes of a connection's outbox; 0 when it would not take any.
    pub fn handle_written(&mut self, now: Instant, conn: ConnId, written: usize) {
        self.advance(now);
        if let Some(&slot) = self.board.handles.get(&conn) {
            self.written(slot, written);
        }
        self.settle();
    }

    /// The transport saw the connection end.
    pub fn handle_closed(&mut self, now: Instant, conn: ConnId, cause: Closed) {
        self.advance(now);
        self.close_local(conn, cause.reason(), false);
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

    /// Does the next thing that is due at `now`; `None` when nothing is. For drivers that look at their clock in between.
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
                if let Some(channel) = self.channels.get_mut(&id) {
                    channel.run_tick(&mut self.board);
                    due = Due::Tick(channel.channel_type);
                }
            }
            Timer::Connection(handle) => self.connection_due(handle),
            Timer::Settle(conn) => self.on_settle_timer(conn),
            Timer::Expire(conn) => self.expire_lost(conn),
            Timer::Balance => self.balance_due(),
        }
        self.settle();
        Some(due)
    }

    /// Stops accepting and closes every connection of this shard with what is queued for it. Call it on every shard.
    pub fn begin_shutdown(&mut self, now: Instant) {
        self.advance(now);
        self.draining = true;
        let slots: Vec<u32> = self.board.conns.iter().map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            self.board.doom_slot(slot, CloseReason::Shutdown);
        }
        self.settle();
    }

    // ---- Outputs ----------------------------------------------------------------------------------------------------

    /// Next mail for another shard.
    pub fn poll_mail(&mut self) -> Option<(ShardIndex, Mail)> {
        self.board.poll_mail().map(|(to, letter)| (to, Mail(letter)))
    }

    /// Next effect for the driver.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.board.poll_effect()
    }

    /// Next connection that gained output since it was last drained; each at most once until then.
    pub fn poll_writable(&mut self) -> Option<ConnId> {
        self.board.poll_writable()
    }

    /// What waits to be written to a connection of this shard.
    pub fn outbox(&mut self, conn: ConnId) -> Option<&mut Outbox> {
        let slot = *self.board.handles.get(&conn)?;
        self.board.conns.get_mut(slot as usize).map(|conn| &mut conn.outbox)
    }

    /// When [`Self::handle_timeout`] has work, at the earliest; `None` when nothing is scheduled.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.board.timers.next()
    }

    // ---- Views ------------------------------------------------------------------------------------------------------

    /// Uses the limits, abuse rules, permissions, outbox bounds, channel settings and state machines of `config` from
    /// now on; the rest of it is fixed at the start. Channels keep the settings that they were created with. A state
    /// machine with fewer states than the one in use is not taken over, because connections may be in those states.
    pub fn reconfigure(&mut self, config: &Config) {
        let mut next = Config::clone(&self.board.config);
        next.limits = config.limits.clone();
        next.abuse = config.abuse.clone();
        next.permissions = config.permissions.clone();
        next.outbox = config.outbox.clone();
        next.channel_settings = config.channel_settings.clone();
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

    /// The channel's data in its encoded form with its type name, for tools. `None` when it is not here or has none.
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

    /// Checks what must hold between inputs; for tests and the simulator. Costs a walk over everything.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn check_invariants(&self) {
        for (id, channel) in &self.channels {
            assert_eq!(*id, channel.id);
            assert_eq!(self.board.home(*id), self.board.index, "a channel lives on the wrong shard");
            channel.check_invariants();
            for (_, sub) in &channel.subs {
                let places = self.board.places.get(&sub.address.conn);
                assert!(places.is_some_and(|places| places.contains(id)), "a subscription without a place");
            }
            if let Some(owner) = channel.owner {
                assert!(self.board.places.get(&owner).is_some_and(|places| places.contains(id)));
            }
        }
        if let Some(world) = &self.world {
            world.check_invariants(|id| self.channels.contains_key(&id));
        }
        let subscriptions: usize = self.channels.values().map(|channel| channel.subs.len()).sum();
        assert_eq!(subscriptions as u64, self.board.stats.subscriptions);
        for (slot, conn) in &self.board.conns {
            assert_eq!(self.board.handles.get(&conn.handle), Some(&(slot as u32)));
            assert!(self.board.peers.get(&conn.id).is_some_and(|peer| peer.slot == slot as u32));
            assert!(conn.doomed.is_none(), "a doomed connection outlives its input");
        }
        assert!(self.board.inbox.is_empty(), "letters to itself are left over");
    }

    // ---- Accepting and closing --------------------------------------------------------------------------------------

    fn advance(&mut self, now: Instant) {
        debug_assert!(now >= self.board.now, "time went back");
        self.board.now = now.max(self.board.now);
    }

    fn try_accept(
        &mut self,
        kind: ConnKind,
        framing: Framing,
        addr: IpAddr,
    ) -> Result<Accepted, AcceptRefusal> {
        let now = self.board.now;
        let limits = &self.board.config.limits;
        let Some(global) = &mut self.global else { return Err(AcceptRefusal::Draining) };
        if self.draining {
            return Err(AcceptRefusal::Draining);
        }
        if global.bans.is_banned(now, &Subject::address(addr)) {
            let what = SecurityEventKind::BannedReturned;
            self.board.security(SecurityEvent { conn: None, addr: Some(addr), pit: None, what });
            return Err(AcceptRefusal::BannedAddress);
        }
        if global.entries.len() >= limits.connections {
            return Err(AcceptRefusal::ConnectionsMax);
        }
        if kind == ConnKind::Client && global.clients_at(addr) >= limits.client_connections_per_address {
            return Err(AcceptRefusal::ConnectionsPerAddress);
        }
        let conn = global.ids.allocate().ok_or(AcceptRefusal::IdsExhausted)?;
        // What game servers say of a world concerns channels of shard 0: read there, it needs no mail.
        let of_world = kind == ConnKind::Server
            && (self.board.config.spatial.grid.is_some() || self.board.config.spatial.lod.is_some());
        let shard = if of_world { ShardIndex::FIRST } else { global.least_loaded() };
        global.register(conn, kind, addr, shard);
        self.board.post_others(|| Letter::Opened { conn, kind, shard, framing, addr });
        self.on_opened(conn, kind, shard, framing, addr);
        Ok(Accepted { conn, shard })
    }

    fn on_opened(&mut self, conn: ConnId, kind: ConnKind, shard: ShardIndex, framing: Framing, addr: IpAddr) {
        let board = &mut self.board;
        let mut slot = u32::MAX;
        if shard == board.index {
            let config = Arc::clone(&board.config);
            let limits = ReaderLimits {
                legacy_packet_bytes_max: config.legacy_packet_bytes_max,
                accept_unknown_compression: config.ignore_unknown_compression,
            };
            let recorder = (config.recording && kind == ConnKind::Client)
                .then(|| Box::new(Recorder::new(config.limits.recording_bytes)));
            slot = board.conns.insert(Connection {
                handle: conn,
                id: conn,
                kind,
                addr,
                state: config.state_machine(kind).init(),
                authenticated: false,
                recoverable: false,
                writable: false,
                doomed: None,
                refusals: 0,
                budget: Budget::new(board.now, &config.limits),
                accepted: board.now,
                received: board.now,
                progressed: board.now,
                timer: None,
                held: Default::default(),
                lagging: Vec::new(),
                unsure: Vec::new(),
                reader: FrameReader::new(limits),
                outbox: Outbox::new(framing),
                recorder,
            }) as u32;
            board.handles.insert(conn, slot);
            board.stats.kind_mut(kind).connections += 1;
            board.arm_connection(slot);
            if self.draining {
                board.doom_slot(slot, CloseReason::Shutdown);
            }
        }
        self.board.peers.insert(conn, Peer { kind, shard, slot, recovering: false, full: false });
    }

    /// Handles what this input has caused within the shard: letters to itself, then closures, until none are left.
    fn settle(&mut self) {
        loop {
            if let Some(letter) = self.board.inbox.pop_front() {
                self.handle_letter(letter);
            } else if let Some(handle) = self.board.next_doomed() {
                let slot = self.board.handles.get(&handle).copied();
                let doomed =
                    slot.and_then(|slot| self.board.conns.get(slot as usize)).and_then(|conn| conn.doomed);
                if let Some(reason) = doomed {
                    self.close_local(handle, reason, true);
                }
            } else {
                return;
            }
        }
    }

    /// Closes a connection of this shard and tells everybody.
    fn close_local(&mut self, handle: ConnId, reason: CloseReason, tell_driver: bool) {
        let Some(slot) = self.board.handles.remove(&handle) else { return };
        let mut conn = self.board.conns.remove(slot as usize);
        self.remember_closure(ClosureView::new(&conn, reason, self.board.now));
        let board = &mut self.board;
        if let Some((_, key)) = conn.timer.take() {
            board.timers.cancel(key);
        }
        board.stats.kind_mut(conn.kind).connections -= 1;
        board.stats.count_closed(conn.kind, reason);
        let unix_seconds = board.unix_now_ns() / 1_000_000_000;
        if let Some((name, bytes)) = conn.recorder.take().and_then(|rec| rec.finish(conn.id.0, unix_seconds))
        {
            board.effect(Effect::Recording { conn: conn.id, name, bytes });
        }
        if tell_driver {
            let mut flush = Vec::new();
            if !matches!(reason, CloseReason::SlowReader | CloseReason::Stalled) {
                conn.outbox.drain_into(&mut flush);
            }
            board.effect(Effect::Close { conn: handle, reason, flush });
        }
        let keep = conn.recoverable && reason.is_unexpected() && !self.draining;
        let (id, kind) = (conn.id, conn.kind);
        drop(conn);
        self.board.post_others(|| Letter::Closed { conn: id, kind, keep, reason });
        self.on_closed(id, kind, keep, reason);
    }

    /// A connection of any shard is gone.
    pub(crate) fn on_closed(&mut self, conn: ConnId, kind: ConnKind, keep: bool, reason: CloseReason) {
        self.board.peers.remove(&conn);
        if self.board.global_owner == Some(conn) {
            self.board.global_owner = None;
        }
        self.leave_channels(conn, kind, keep);
        if let Some(world) = &mut self.world {
            world.forget_connection(conn, keep);
        }
        if self.global.is_none() {
            return;
        }
        self.punish(conn, kind, reason);
        let Some(global) = &mut self.global else { return };
        if let Some(settling) = global.settling.remove(&conn)
            && let Some(key) = settling.timer
        {
            self.board.timers.cancel(key);
        }
        let Some(entry) = global.unregister(conn) else { return };
        if let Some(first_id) = entry.accepted_as {
            global.ids.release(first_id);
        }
        let superseded_by = global.superseding.remove(&conn);
        if keep {
            let lost =
                Lost { kind, pit: entry.pit, channels: entry.channels, token: entry.token, expiry: None };
            self.keep_lost(conn, lost);
            if let Some(pending) = superseded_by {
                self.resume_as(conn, &pending);
            }
        } else {
            if let Some(token) = entry.token {
                global.tokens.remove(&token);
            }
            global.ids.release(conn);
            if let Some(pending) = superseded_by
                && let Some(waiting) = global.entries.get_mut(&pending.conn)
            {
                // What it wanted to resume is gone for good; it may log in.
                waiting.pending = false;
            }
        }
    }

    // ---- The message path -------------------------------------------------------------------------------------------

    fn receive(&mut self, slot: u32, bytes: &[u8]) {
        let board = &mut self.board;
        let now = board.now;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        let (handle, kind) = (conn.handle, conn.kind);
        conn.received = now;
        board.stats.kind_mut(kind).bytes_in += bytes.len() as u64;
        if kind == ConnKind::Client
            && let Err(reason) = conn.budget.charge_read(now, bytes.len(), &board.config.limits)
        {
            board.doom_slot(slot, reason);
            return;
        }
        // The reader and the scratch memory are lent out while packets are handled, since handling needs the shard.
        let mut reader = mem::take(&mut conn.reader);
        let mut scratch = mem::take(&mut self.scratch);
        let result = reader.feed_with(&mut scratch, bytes, &mut |packet| self.packet(slot, packet));
        self.scratch = scratch;

        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(slot as usize).filter(|conn| conn.handle == handle) else {
            return;
        };
        if reader.peer_compresses() {
            conn.outbox.set_compress();
        }
        conn.outbox.set_avoid_legacy_sizes(reader.form() != Form::Current);
        if reader.buffered_bytes() > 0 {
            board.stats.kind_mut(kind).packets_fragmented += 1;
        }
        conn.reader = reader;
        if let Err(error) = result {
            board.doom_slot(slot, frame_reason(&error));
        }
    }

    fn packet(&mut self, slot: u32, packet: Packet<'_>) -> ControlFlow<()> {
        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return ControlFlow::Break(()) };
        board.stats.kind_mut(conn.kind).packets_in += 1;
        if conn.recorder.is_some() {
            self.record(slot, packet.bytes());
        }
        for message in packet.messages() {
            self.message(slot, &message)?;
        }
        ControlFlow::Continue(())
    }

    fn record(&mut self, slot: u32, packet: &[u8]) {
        let board = &mut self.board;
        let unix_seconds = board.unix_now_ns() / 1_000_000_000;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        let Some(recorder) = &mut conn.recorder else { return };
        let fits = recorder.record(board.now, packet);
        let (id, part) = (conn.id, recorder.take_part(conn.id.0, unix_seconds));
        if !fits {
            board.refuse(Refusal::RecordingFull);
        }
        if let Some((name, bytes)) = part {
            board.effect(Effect::Recording { conn: id, name, bytes });
        }
    }

    /// One message from a connection of this shard. Spec §3.5.
    ///
    /// The state machine is asked before the channel is looked up, because only the channel's home, perhaps another
    /// shard, knows whether it exists. Unlike in the reference, a forbidden message to a channel that does not exist
    /// therefore counts as a refusal of the state machine.
    #[inline]
    fn message(&mut self, slot: u32, message: &MessagePack<'_>) -> ControlFlow<()> {
        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return ControlFlow::Break(()) };
        if conn.doomed.is_some() {
            return ControlFlow::Break(());
        }
        let msg_type = message.msg_type;
        if conn.kind == ConnKind::Client
            && let Err(reason) = conn.budget.charge_message(&board.config.limits)
        {
            board.doom_slot(slot, reason);
            return ControlFlow::Break(());
        }
        if msg_type < USER_SPACE && !is_request(msg_type) {
            board.refuse(Refusal::UndefinedType);
            return ControlFlow::Continue(());
        }
        let machine = board.config.state_machine(conn.kind);
        if !machine.allows(conn.state, msg_type) {
            return self.refused_by_state_machine(slot);
        }
        conn.state = machine.after_message(conn.state, msg_type);
        let sender = Sender { conn: conn.id, kind: conn.kind };
        board.stats.kind_mut(conn.kind).messages_in += 1;
        let head = Head {
            channel: ChannelId(message.channel_id),
            broadcast: message.broadcast,
            stub: message.stub_id,
            msg_type,
        };
        if msg_type == MessageType::SubToChannel as u32
            && sender.kind == ConnKind::Client
            && !board.reserve(slot, head.channel)
        {
            board.refuse(Refusal::SubscriptionsPerConnection);
            return ControlFlow::Continue(());
        }
        let home = board.home(head.channel);
        // Authentication takes effect after the read that brought it, as if it had gone through a queue: whatever was
        // sent along with it is still refused (spec §4.3).
        if home == board.index && msg_type != MessageType::Auth as u32 {
            self.dispatch(sender, head, message.body);
        } else {
            board.post_message(home, sender.conn, head, message.body);
        }
        ControlFlow::Continue(())
    }

    #[cold]
    fn refused_by_state_machine(&mut self, slot: u32) -> ControlFlow<()> {
        let board = &mut self.board;
        board.refuse(Refusal::StateMachine);
        let max = board.config.abuse.refusals_max;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return ControlFlow::Break(()) };
        conn.refusals += 1;
        if conn.kind == ConnKind::Client && max > 0 && conn.refusals >= max {
            board.doom_slot(slot, CloseReason::StateMachineRefusals);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// A message to a channel of this shard.
    #[inline]
    fn dispatch(&mut self, sender: Sender, head: Head, body: &[u8]) {
        let result = match self.channels.get_mut(&head.channel) {
            None => Err(Refusal::UnknownChannel),
            Some(channel) if head.msg_type >= USER_SPACE => {
                let objects = self.board.config.unreal_objects && is_object_message(head.msg_type);
                match sender.kind {
                    ConnKind::Client if objects && !self.board.config.permissions.client.send_objects => {
                        Err(Refusal::Permission)
                    }
                    ConnKind::Client => channel.forward_from_client(&mut self.board, sender.conn, head, body),
                    ConnKind::Server if objects => self.on_object(sender, head, body),
                    ConnKind::Server => self.forward_from_server(head.channel, sender.conn, head, body),
                }
            }
            Some(_) => self.request(sender, head, body),
        };
        if let Err(refusal) = result {
            self.board.refuse(refusal);
            if head.msg_type == MessageType::SubToChannel as u32 {
                self.subscription_refused(sender.conn, head.channel);
            }
        }
    }

    /// Gives back what a client's shard reserved for a subscription.
    #[cold]
    fn subscription_refused(&mut self, conn: ConnId, channel: ChannelId) {
        let known = self.channels.get(&channel);
        if known.is_none_or(|channel| channel.subscription(conn).is_none()) {
            self.board.tell_held(conn, channel, false);
        }
    }

    fn request(&mut self, sender: Sender, head: Head, body: &[u8]) -> Result<(), Refusal> {
        match i32::try_from(head.msg_type).ok().and_then(|number| MessageType::try_from(number).ok()) {
            Some(MessageType::Auth) => self.on_auth(sender, head, body),
            Some(MessageType::CreateChannel | MessageType::CreateSpatialChannel) => {
                self.on_create(sender, head, body)
            }
            Some(MessageType::RemoveChannel) => self.on_remove(sender, head, body),
            Some(MessageType::ListChannel) => self.on_list(sender, head, body),
            Some(MessageType::SubToChannel) => self.on_subscribe(sender, head, body),
            Some(MessageType::UnsubFromChannel) => self.on_unsubscribe(sender, head, body),
            Some(MessageType::ChannelDataUpdate) => self.on_update(sender, head, body),
            Some(MessageType::Disconnect) => self.on_disconnect(sender, head, body),
            Some(MessageType::QuerySpatialChannel) => self.on_query(sender, head, body),
            Some(MessageType::UpdateSpatialInterest) => self.on_interest(sender, head, body),
            Some(MessageType::CreateEntityChannel) => self.on_create_entity(sender, head, body),
            Some(MessageType::EntityGroupAdd) => self.on_group_add(sender, head, body),
            Some(MessageType::EntityGroupRemove) => self.on_group_remove(sender, head, body),
            Some(MessageType::DebugGetSpatialRegions) => self.on_debug_regions(sender, head),
            _ => Err(Refusal::UndefinedType),
        }
    }

    // ---- Letters ----------------------------------------------------------------------------------------------------

    fn handle_letter(&mut self, letter: Letter) {
        match letter {
            Letter::Messages(batch) => {
                for (conn, head, body) in batch.iter() {
                    match self.board.peers.get(&conn) {
                        Some(peer) => self.dispatch(Sender { conn, kind: peer.kind }, head, body),
                        None => self.board.refuse(Refusal::ClosingConnection),
                    }
                }
            }
            Letter::Append(batch) => {
                for (to, entry) in batch.iter() {
                    self.board.push_entry(to, entry);
                }
            }
            Letter::Deliver { payload, state, conns } => self.board.deliver_mail(&payload, state, &conns),
            Letter::Opened { conn, kind, shard, framing, addr } => {
                self.on_opened(conn, kind, shard, framing, addr);
            }
            Letter::Authenticated { conn, recoverable } => self.on_authenticated(conn, recoverable),
            Letter::Closed { conn, kind, keep, reason } => self.on_closed(conn, kind, keep, reason),
            Letter::GlobalOwner(owner) => self.board.global_owner = owner,
            Letter::Recovered { fresh, old, kind, shard } => self.on_recovered(fresh, old, kind, shard),
            Letter::Restore { conn, fresh } => self.on_restore(conn, fresh),
            Letter::Restored { conn, fresh } => self.on_restored(conn, fresh),
            Letter::Settled { conn } => self.on_settled(conn),
            Letter::Expired { conn, kind } => self.on_expired(conn, kind),
            Letter::CloseConn { conn, reason } => self.board.close(conn, reason),
            Letter::Resume { channel, conn } => self.on_resume(channel, conn),
            Letter::NotSubscribed { channel, conn } => self.forget_lag(channel, conn),
            Letter::CreateChannel(new) => self.create_here(*new),
            Letter::RemoveChannel { channel, sender, head } => {
                if let Err(refusal) = self.remove_requested(channel, sender, head) {
                    self.board.refuse(refusal);
                }
            }
            Letter::ChannelRemoved { channel } => self.channel_removed(channel),
            Letter::Held { conn, channel, held } => self.board.set_held(conn, channel, held),
            Letter::Full { conn, full } => {
                if let Some(peer) = self.board.peers.get_mut(&conn) {
                    peer.full = full;
                }
            }
            letter @ (Letter::SpawnInCell { .. }
            | Letter::ObjectSpawned { .. }
            | Letter::ObjectDestroyed { .. }) => {
                if let Err(refusal) = self.object_letter(letter) {
                    self.board.refuse(refusal);
                }
            }
        }
    }

    pub(crate) fn on_authenticated(&mut self, id: ConnId, recoverable: bool) {
        let Some(&peer) = self.board.peers.get(&id).filter(|peer| peer.shard == self.board.index) else {
            return;
        };
        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(peer.slot as usize).filter(|conn| conn.id == id) else { return };
        conn.authenticated = true;
        conn.recoverable = recoverable;
        conn.state = board.config.state_machine(conn.kind).after_authentication(conn.state);
        // The deadline for authentication is off; what remains may be later or nothing.
        if let Some((_, key)) = conn.timer.take() {
            board.timers.cancel(key);
        }
        board.arm_connection(peer.slot);
    }

    fn on_resume(&mut self, channel: ChannelId, conn: ConnId) {
        let found = self.channels.get_mut(&channel).filter(|channel| channel.key(conn).is_some());
        match found {
            Some(channel) => channel.resync(&mut self.board, conn),
            None => {
                if let Some(peer) = self.board.peers.get(&conn) {
                    self.board.post(peer.shard, Letter::NotSubscribed { channel, conn });
                }
            }
        }
    }

    fn forget_lag(&mut self, channel: ChannelId, id: ConnId) {
        let Some(peer) = self.board.peers.get(&id) else { return };
        if let Some(conn) = self.board.conns.get_mut(peer.slot as usize).filter(|conn| conn.id == id) {
            conn.lagging.retain(|lag| lag.channel != channel);
            conn.unsure.retain(|(_, unsure)| *unsure != channel);
        }
    }

    // ---- Writing and deadlines --------------------------------------------------------------------------------------

    fn written(&mut self, slot: u32, written: usize) {
        let board = &mut self.board;
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        conn.outbox.advance(written);
        if written > 0 {
            conn.progressed = board.now;
        }
        let stats = board.stats.kind_mut(conn.kind);
        stats.bytes_out += written as u64;
        stats.packets_out += u64::from(conn.outbox.take_packets());
        if !conn.lagging.is_empty() && conn.outbox.queued_bytes() <= board.config.outbox.low_water_bytes {
            let id = conn.id;
            let resume: Vec<ChannelId> = conn
                .lagging
                .iter_mut()
                .filter_map(|lag| (!mem::replace(&mut lag.asked, true)).then_some(lag.channel))
                .collect();
            for channel in resume {
                board.post(board.home(channel), Letter::Resume { channel, conn: id });
            }
        }
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        if conn.outbox.is_empty() {
            conn.writable = false;
        } else {
            // A gather may stop before the end, so a transport that took all of it is to be asked again.
            if written > 0 {
                board.writable_again(slot);
            }
            board.arm_connection(slot);
        }
    }

    fn connection_due(&mut self, handle: ConnId) {
        let board = &mut self.board;
        let Some(&slot) = board.handles.get(&handle) else { return };
        let Some(conn) = board.conns.get_mut(slot as usize) else { return };
        conn.timer = None;
        let (id, now, again) = (conn.id, board.now, board.now + board.config.outbox.repair_interval);
        // Asked for again if it does not come; a lag brings its own.
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

    // ---- Small things -----------------------------------------------------------------------------------------------

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

/// First type that belongs to the game.
const USER_SPACE: u32 = 100;

/// Whether peers may send this type below 100. Spec §3.2.
#[inline]
fn is_request(msg_type: u32) -> bool {
    matches!(msg_type, 1 | 3..=11 | 14..=17 | 99)
}

fn frame_reason(error: &FrameError) -> CloseReason {
    match error {
        FrameError::BadMagic { .. } => CloseReason::BadMagic,
        FrameError::ZeroSize => CloseReason::ZeroSize,
        FrameError::UnknownCompression(_) => CloseReason::UnknownCompression,
        FrameError::BadSnappy => CloseReason::BadSnappy,
        FrameError::DeclaredTooLarge { .. } => CloseReason::DeclaredTooLarge,
        FrameError::BadPacket(_) => CloseReason::BadPacket,
        FrameError::LegacyTooLarge { .. } => CloseReason::LegacyTooLarge,
        _ => CloseReason::BadFrame,
    }
}
