//! The sending side: objects and connections. `frame` runs a frame, `receive` handles packets of
//! peers.

mod elements;
mod filters;
mod frame;
mod marks;
mod metrics;
mod objects;
mod receive;
mod relations;
mod tokens;
mod types;

use core::any::TypeId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use throng_stdx::Instant;

use crate::bitmap::{Bitmap, Sparse};
use crate::class::{Class, ClassId, Classes, Condition, Protocol};
use crate::connection::{Connection, Scratch};
use crate::frames::Stream;
use crate::grid::GridIndex;
use crate::handle::Handle;
use crate::interest::{AREAS_MAX, Area, CustomFilter};
use crate::keyed::{ElementError, KeyedArray};
use crate::lod::{BANDS_MAX, Gathering, LodProfile};
use crate::objects::{ClassStore, NOBODY, Objects};
use crate::priority::{Prioritiser, View};
use crate::sent::{Adaptive, Budget};
use crate::tokens::Tokens;
use crate::wire::{PACKET_BYTES, PROTOCOL_VERSION};

pub use frame::{FRAME_INTERVAL, Lane, Packets, properties_of};
pub use marks::Marker;
pub use metrics::ClassStats;
pub use types::{
    ConnId, ConnectionStats, DestroyReason, Event, Filter, FilterId, ObjectError, PrioritiserId,
    ProtocolMismatch, ServerConfig, ServerStats,
};

/// State that connection stages read. Nothing of it changes while they run.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) stores: Vec<ClassStore>,
    pub(crate) objects: Objects,
    pub(crate) grid: GridIndex,
    pub(crate) prioritisers: Vec<Prioritiser>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) frame: u32,
    pub(crate) now: Instant,
    /// Limits of the bands of detail but the last, squared: where they end, and where objects leave
    /// them.
    pub(crate) bands: Vec<(f32, f32)>,
    /// Changes that objects have gathered in each band; the band's records are in the stream after
    /// it.
    pub(crate) gatherings: Vec<Gathering>,
    /// Sub-objects, dependents and creation parents of objects.
    pub(crate) followers: BTreeMap<u32, Vec<Follower>>,
    pub(crate) any_follower: bool,
    /// Conditions that objects chose for properties with the condition `Dynamic`.
    pub(crate) conditions: BTreeMap<u32, Vec<(u64, Condition)>>,
    /// Some object needs the slow way for everybody.
    pub(crate) any_special: bool,
    /// Some class sends differences.
    pub(crate) any_delta: bool,
    /// Keyed arrays, of objects whose class has some; and which changed since the last frame.
    pub(crate) keyed: BTreeMap<u32, Vec<KeyedArray>>,
    pub(crate) keyed_changed: Sparse,
    /// Filters of the game, by number.
    pub(crate) custom: Vec<FilterSlot>,
    /// Some prioritiser counts.
    pub(crate) any_limiter: bool,
    /// Some object has a team.
    pub(crate) any_team: bool,
    /// Some object of this frame is not sent through its common record though others of its kind
    /// are.
    pub(crate) any_slow: bool,
    /// Create items that one connection may be sent in a frame: one that had none waiting before
    /// the frame, and one that had.
    pub(crate) create_quota: (usize, usize),
    pub(crate) tokens: Tokens,
    /// Archetypes and startup objects.
    pub(crate) named: BTreeMap<u32, Named>,
}

/// Archetype of an object, or its name in the clients' map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) token: u32,
    pub(crate) startup: bool,
}

/// A filter of the game, and the objects that have it.
#[derive(Debug)]
pub(crate) struct FilterSlot {
    pub(crate) filter: Box<dyn CustomFilter>,
    /// Frames between two answers for a connection.
    pub(crate) period: u32,
    pub(crate) members: Sparse,
}

/// An object that is in scope where another one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Follower {
    pub(crate) object: u32,
    pub(crate) kind: FollowerKind,
}

/// Why an object follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FollowerKind {
    /// A part of it: created after it, destroyed with it, scheduled as it.
    Sub,
    /// It must be there before the other is created.
    Parent,
    /// Considered when the other is sent.
    Dependent(Hint),
}

/// Order of a dependent relative to its parent. It is loose: they need not share a
/// packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hint {
    /// After it.
    #[default]
    After,
    /// Before it.
    Before,
    /// Before it while it is being created, otherwise after.
    BeforeIfInitial,
}

impl Shared {
    #[inline]
    pub(crate) fn store(&self, object: u32) -> &ClassStore {
        &self.stores[usize::from(self.objects.class[object as usize])]
    }

    /// Properties that a connection lacks whose object leaves the band behind `stream`.
    pub(crate) fn missing(&self, stream: usize, object: u32) -> u64 {
        self.gatherings[stream - 1].missing(object) | self.streams[stream].mask_of(object)
    }

    pub(crate) fn is_delta(&self, object: u32) -> bool {
        self.store(object).class.flags.delta
    }

    /// No record of the object is longer.
    pub(crate) fn record_bytes_max(&self, object: u32) -> usize {
        let store = self.store(object);
        let heap = store.heap(self.objects.slot[object as usize]);
        store.class.record_bytes_max + heap.iter().map(|value| value.0.len()).sum::<usize>()
    }
}

/// Filters of an object beyond the dynamic one; most objects have none.
#[derive(Clone, Debug, Default)]
struct StaticFilter {
    only_to_owner: bool,
    /// Connections, and whether they are those admitted or those refused.
    list: Option<(bool, Vec<ConnId>)>,
    groups: Vec<u16>,
}

/// A group of objects that is opened for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Objects are out for every connection for which the group is not open.
    Exclusion,
    /// Objects are in for every connection for which the group is open.
    Inclusion,
}

#[derive(Debug)]
struct Group {
    kind: GroupKind,
    members: Bitmap,
    /// Connections for which it is open.
    open: Bitmap,
}

/// The authoritative side: holds objects and connections and writes packets.
///
/// One frame is [`begin_frame`](Self::begin_frame) (the shared stage), then [`lanes`](Self::lanes)
/// (the connection stages, on as many threads as there are lanes), then
/// [`end_frame`](Self::end_frame). [`tick`](Self::tick) does all three on the calling thread.
/// Between frames the game creates, changes and destroys objects, and hands packets from clients to
/// [`receive`](Self::receive).
#[derive(Debug)]
pub struct Server {
    shared: Shared,
    connections: Vec<Option<Box<Connection>>>,
    /// Classes of replicated structs.
    pub(crate) types: BTreeMap<TypeId, ClassId>,
    /// Generation of the next connection at each place.
    connection_generations: Vec<u32>,
    scratch: Vec<Scratch>,
    /// Connections whose peers describe some class differently.
    refusing: Vec<ConnId>,
    /// Objects that bring an object into scope, ascending: the way back of `Shared::followers`.
    leaders: BTreeMap<u32, Vec<u32>>,
    statics: BTreeMap<u32, StaticFilter>,
    groups: BTreeMap<u16, Group>,
    filters: Vec<Filter>,
    /// Teams of the objects that have the filter of that name.
    team_members: BTreeMap<u32, u64>,
    /// Objects destroyed, whose index some receiver may still know.
    dying: Vec<u32>,
    /// Names of startup objects, present and ended, by token: each is used once.
    startups: BTreeSet<u32>,
    /// Startup objects that have ended, by the token of their name, and why.
    ended: BTreeMap<u32, u8>,
    /// Keyed arrays of sleepers with the changes that they keep.
    kept: BTreeMap<u32, Vec<KeyedArray>>,
    /// Connections on which creations wait.
    joining: u32,
    events: VecDeque<Event>,
    stats: ServerStats,
    /// Counts of connections that have ended.
    departed: ConnectionStats,
    /// By class, if they are counted.
    class_stats: Vec<ClassStats>,
    spent: metrics::Spent,
    polled: marks::Polled,
    marks: Option<Arc<marks::Marks>>,
    record: Vec<u8>,
    /// Objects that are due in a band, and what they have gathered.
    due: Vec<(u32, u64)>,
}

/// Least [`ServerConfig::packets_in_flight_max`] that leaves room for the packets of a frame.
const IN_FLIGHT_MIN: usize = 16;

impl Server {
    /// A server for objects of `classes`. Limits outside their range count as the nearest possible.
    #[must_use]
    pub fn new(mut config: ServerConfig, classes: &Classes) -> Self {
        config.packets_in_flight_max = config.packets_in_flight_max.max(IN_FLIGHT_MIN);
        config.packet_bytes_max = config.packet_bytes_max.clamp(PACKET_BYTES.0, PACKET_BYTES.1);
        config.exit_factor = config.exit_factor.max(1.0);
        let lod = config.lod.as_ref().filter(|profile| !profile.bands.is_empty());
        let bands = lod.map_or(&[][..], |profile| &profile.bands[..profile.bands.len().min(BANDS_MAX)]);
        let rate = lod.map_or(1.0, |profile| profile.frame_rate);
        let gatherings: Vec<Gathering> = bands.iter().map(|band| Gathering::new(band, rate)).collect();
        let partial = gatherings.iter().map(|band| band.properties != u64::MAX);
        let streams = core::iter::once(false).chain(partial).map(Stream::new).collect();
        let limits = lod.map_or_else(Vec::new, LodProfile::limits);
        let grid = GridIndex::new(config.grid, config.exit_factor);
        let counted = |class: &Arc<Class>| ClassStats {
            properties_dirty: vec![0; class.property_count()],
            ..ClassStats::default()
        };
        let class_stats = if config.class_stats { classes.iter().map(counted).collect() } else { Vec::new() };
        Self {
            shared: Shared {
                stores: classes.iter().map(|class| ClassStore::new(Arc::clone(class))).collect(),
                objects: Objects::default(),
                grid,
                prioritisers: vec![Prioritiser::Static(1.0)],
                streams,
                bands: limits,
                gatherings,
                followers: BTreeMap::new(),
                any_follower: false,
                conditions: BTreeMap::new(),
                custom: Vec::new(),
                keyed: BTreeMap::new(),
                keyed_changed: Sparse::default(),
                any_team: false,
                any_limiter: false,
                any_slow: false,
                create_quota: (0, 0),
                tokens: Tokens::default(),
                named: BTreeMap::new(),
                any_delta: classes.iter().any(|class| class.flags.delta),
                frame: 0,
                now: Instant::ZERO,
                any_special: false,
                config,
            },
            connections: Vec::new(),
            types: classes.types.clone(),
            connection_generations: Vec::new(),
            scratch: Vec::new(),
            refusing: Vec::new(),
            leaders: BTreeMap::new(),
            statics: BTreeMap::new(),
            groups: BTreeMap::new(),
            filters: Vec::new(),
            team_members: BTreeMap::new(),
            dying: Vec::new(),
            startups: BTreeSet::new(),
            ended: BTreeMap::new(),
            kept: BTreeMap::new(),
            joining: 0,
            events: VecDeque::new(),
            stats: ServerStats::default(),
            departed: ConnectionStats::default(),
            class_stats,
            spent: metrics::Spent::default(),
            polled: marks::Polled::default(),
            marks: None,
            record: Vec::new(),
            due: Vec::new(),
        }
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Adds a connection; `None` at the limit. It sees nothing before it has a view, apart from
    /// objects that every connection sees.
    pub fn connect(&mut self) -> Option<ConnId> {
        let place = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        if place >= self.shared.config.connections_max as usize {
            return None;
        }
        if place == self.connections.len() {
            self.connections.push(None);
            self.connection_generations.push(0);
        }
        let id = ConnId::from_parts(place as u32, self.connection_generations[place]);
        let mut conn = Box::new(Connection::new(id, self.shared.config.packet_bytes_max));
        conn.endings.extend(self.ended.iter().map(|(token, reason)| (*token, *reason)));
        self.connections[place] = Some(conn);
        let filtered: Vec<u32> = self.statics.keys().copied().collect();
        for object in filtered {
            self.decide(object, id.index());
        }
        Some(id)
    }

    /// Removes a connection. Objects that it owned belong to nobody then. Costs a look at each
    /// object it knows.
    pub fn disconnect(&mut self, id: ConnId) {
        if self.conn(id).is_none() {
            return;
        }
        let Some(conn) = self.connections[id.at()].take() else { return };
        self.connection_generations[id.at()] = id.generation().wrapping_add(1);
        self.departed.add(&conn.stats);
        for object in conn.scope.iter() {
            self.shared.objects.refs[object as usize] -= 1;
        }
        for object in conn.known() {
            self.shared.objects.known[object as usize] -= 1;
        }
        self.joining -= u32::from(conn.joining);
        for count in &conn.counts {
            frame::apply_count(&mut self.shared.objects, &mut self.joining, *count);
        }
        for object in conn.owned.iter() {
            self.shared.objects.owner[object as usize] = NOBODY;
        }
        for group in self.groups.values_mut() {
            group.open.clear(id.index());
        }
        self.refusing.retain(|refusing| *refusing != id);
    }

    /// Compares a peer's description of its classes (see [`Classes::protocol`]) with our own, class
    /// by class in the order of registration. Objects of classes that differ, or that the peer
    /// lacks, leave its scope for [`DestroyReason::ProtocolMismatch`] and never come back; returns
    /// these classes. An id that names no connection changes nothing and is compared all the same.
    ///
    /// # Errors
    /// Another version of the wire format, or a class that differs and is
    /// [required](crate::ClassBuilder::required): the connection should be closed.
    pub fn check_protocol(&mut self, id: ConnId, peer: &Protocol) -> Result<Vec<ClassId>, ProtocolMismatch> {
        if peer.version != PROTOCOL_VERSION {
            self.stats.protocol_mismatches += 1;
            return Err(ProtocolMismatch::Version { theirs: peer.version, ours: PROTOCOL_VERSION });
        }
        let hashes = &peer.classes;
        let stores = self.shared.stores.iter().enumerate();
        let differing = stores.filter(|(at, store)| hashes.get(*at) != Some(&store.class.protocol_hash()));
        let mut refused = Vec::new();
        for (at, store) in differing {
            self.stats.protocol_mismatches += 1;
            if store.class.flags.required {
                return Err(ProtocolMismatch::Class { class: store.class.name().to_owned() });
            }
            refused.push(ClassId(at as u16));
        }
        let Some(conn) = self.conn(id) else { return Ok(refused) };
        let now = refused.iter().map(|class| class.0).collect();
        let before = core::mem::replace(&mut conn.refused_classes, now);
        self.refusing.retain(|refusing| *refusing != id);
        if !refused.is_empty() {
            self.refusing.push(id);
        }
        if !(before.is_empty() && refused.is_empty()) {
            let objects: Vec<u32> = self.shared.objects.alive.iter().collect();
            for object in objects {
                self.decide(object, id.index());
            }
        }
        Ok(refused)
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Connection> {
        named(&mut self.connections, id)
    }

    fn connection(&self, id: ConnId) -> Option<&Connection> {
        self.connections.get(id.at())?.as_deref().filter(|conn| conn.id == id)
    }

    /// Places from which the connection looks: one, or up to four for split screens. More are
    /// ignored.
    pub fn set_views(&mut self, id: ConnId, views: &[View]) {
        if let Some(conn) = self.conn(id) {
            conn.views.clear();
            conn.views.extend_from_slice(&views[..views.len().min(4)]);
        }
    }

    /// Areas that the connection watches beside its views: everything with the grid filter inside
    /// them is in scope. At most 16; more are ignored. Each costs a look at the objects of the
    /// cells that it touches, in every frame.
    pub fn set_areas(&mut self, id: ConnId, areas: &[Area]) {
        if let Some(conn) = self.conn(id) {
            conn.areas.clear();
            conn.areas.extend_from_slice(&areas[..areas.len().min(AREAS_MAX)]);
        }
    }

    /// Puts the connection into teams, bit by bit: it sees the objects whose filter is
    /// [`Teams`](Filter::Teams) with one of these bits. Costs a look at each such object.
    pub fn set_teams(&mut self, id: ConnId, teams: u64) {
        let Some(conn) = named(&mut self.connections, id) else { return };
        conn.teams = teams;
        for (object, wanted) in &self.team_members {
            conn.teamed.assign(*object, teams & wanted != 0);
        }
    }

    /// Limits the connection to a rate in bytes a second, with a burst of so many bytes saved up at
    /// most: no frame spends more. `None` lifts the limit. Whatever exceeds the burst goes in
    /// parts, as what exceeds a packet does. A burst below
    /// [`overhead_bytes`](ServerConfig::overhead_bytes) and 64 bytes counts as that, a rate that is
    /// negative or not a number as 0. A part of a reliable call that was lost keeps its length, up
    /// to 512 bytes: while a burst that was lowered since then does not hold it, it waits, with the
    /// later calls on its object.
    pub fn set_budget(&mut self, id: ConnId, limit: Option<(f64, f64)>) {
        let (now, least) = (self.shared.now, self.burst_min());
        self.limit(id, limit.map(|(rate, burst)| Budget::new(rate.max(0.0), burst.max(least), now)));
    }

    /// Least burst of a budget: the smallest packet, with what lower layers add.
    fn burst_min(&self) -> f64 {
        self.shared.config.overhead_bytes.saturating_add(PACKET_BYTES.0) as f64
    }

    fn limit(&mut self, id: ConnId, budget: Option<Budget>) {
        if let Some(conn) = named(&mut self.connections, id) {
            conn.set_budget(&self.shared.config, budget);
        }
    }

    /// Limits the connection to a rate that follows what its link carries: down when packets are
    /// lost or
    /// [`report_congestion`](Self::report_congestion) says so, up slowly while nothing is.
    pub fn set_adaptive_budget(&mut self, id: ConnId, limits: Adaptive) {
        let budget = Budget::adaptive(limits, self.burst_min(), self.shared.now);
        self.limit(id, Some(budget));
    }

    /// The transport sees congestion that losses do not show, such as a rising round-trip time. At
    /// most once a round trip counts.
    pub fn report_congestion(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.congested = true;
        }
    }

    /// Bytes a second that the connection may get now; `None` without a budget.
    #[must_use]
    pub fn budget_rate(&self, id: ConnId) -> Option<f64> {
        Some(self.connection(id)?.budget()?.rate)
    }

    /// Makes the connection a recording: it gets what [`Condition`]s give to replays, also of
    /// objects that it owns: to conditions it is not their owner then. Properties that become
    /// visible to it are sent with their present value.
    pub fn set_replay(&mut self, id: ConnId, replay: bool) {
        let shared = &self.shared;
        let conn = named(&mut self.connections, id).filter(|conn| conn.replay != replay);
        let Some(conn) = conn else { return };
        for object in conn.replicas() {
            let before = conn.mask_for(shared, object, false);
            conn.replay = replay;
            let new = conn.mask_for(shared, object, false) & !before;
            if new != 0 {
                conn.reveal(shared, object, new);
            }
            conn.recheck_arrays(object);
            conn.replay = !replay;
        }
        conn.replay = replay;
    }

    /// Adds the connection to condition groups and removes it from others: bit g is group g.
    /// Properties of groups that are new to it are sent with their present value.
    pub fn set_condition_groups(&mut self, id: ConnId, groups: u64) {
        let shared = &self.shared;
        let Some(conn) = named(&mut self.connections, id) else { return };
        let new = groups & !conn.groups;
        conn.groups = groups;
        for object in conn.replicas() {
            conn.recheck_arrays(object);
            let class = &shared.store(object).class;
            let mask = class.groups.iter().filter(|(group, _)| new >> group & 1 != 0);
            let mut mask = mask.fold(0, |all, (_, properties)| all | properties);
            for (properties, condition) in shared.conditions.get(&object).into_iter().flatten() {
                let joined = matches!(condition, Condition::Group(group) if new >> group & 1 != 0);
                mask |= if joined { *properties } else { 0 };
            }
            if mask != 0 {
                conn.reveal(shared, object, mask);
            }
        }
    }

    /// Counts of a connection.
    #[must_use]
    pub fn connection_stats(&self, id: ConnId) -> Option<ConnectionStats> {
        Some(self.connection(id)?.stats)
    }

    /// Bytes that a connection keeps about objects.
    #[must_use]
    pub fn connection_bytes(&self, id: ConnId) -> Option<usize> {
        Some(self.connection(id)?.heap_bytes())
    }

    /// True when the object should be on the connection's receiver.
    #[must_use]
    pub fn in_scope(&self, id: ConnId, handle: Handle) -> bool {
        self.connection(id)
            .is_some_and(|conn| self.index(handle).is_some_and(|object| conn.scope.get(object)))
    }

    /// True when the receiver has confirmed the object's creation.
    #[must_use]
    pub fn is_live(&self, id: ConnId, handle: Handle) -> bool {
        self.connection(id).is_some_and(|conn| self.index(handle).is_some_and(|object| conn.is_live(object)))
    }
}

/// The connection that an id names, unless it has ended.
fn named(connections: &mut [Option<Box<Connection>>], id: ConnId) -> Option<&mut Connection> {
    connections.get_mut(id.at())?.as_deref_mut().filter(|conn| conn.id == id)
}
