//! The sending side: objects, connections, and the shared stage (spec §5.1).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use throng_stdx::Instant;

use crate::attach::{AttachError, Attachment, ItemView};
use crate::bitmap::Bitmap;
use crate::bits::BitReader;
use crate::class::{ClassId, Classes};
use crate::connection::{Connection, Count, Scratch, Stage};
use crate::frames::Stream;
use crate::grid::{GridConfig, GridIndex};
use crate::handle::Handle;
use crate::objects::{ClassStore, NOBODY, Objects};
use crate::priority::{Prioritiser, View};
use crate::quantise::{Value, ValueMismatch};
use crate::sent::Budget;
use crate::wire::{DecodeError, Header, bits_of, kind, write_record};

/// Limits and rules of a [`Server`].
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Most objects at one time. Default 65,536.
    pub objects_max: u32,
    /// Most connections at one time. Default 4,096.
    pub connections_max: u32,
    /// Largest packet in bytes, 64 to 65,535. Default 1,200.
    pub packet_bytes_max: usize,
    /// Packets of one connection whose fate is open; at the limit nothing more is sent. Default 512.
    pub packets_in_flight_max: usize,
    /// Bytes that the layers below add to each packet; counted against budgets. Default 28: IP and UDP.
    pub overhead_bytes: usize,
    /// Frames that an object stays in scope after the dynamic filter refused it, 0 to 255. Default 2.
    pub hysteresis_frames: u8,
    /// Objects leave at the cull distance times this; at least 1. Default 1.
    pub exit_factor: f32,
    /// Accumulated priority from which on an object may be sent. Default 1.
    pub send_threshold: f32,
    /// Share of the budget for create items while updates wait. Default 0.5.
    pub create_share: f64,
    /// Share of the budget kept for attachments while some wait. Default 0.25.
    pub attach_share: f64,
    /// Bytes of record variants kept in a frame, for each thread. Default 16 MiB.
    pub record_cache_bytes: usize,
    /// The grid filter's world.
    pub grid: GridConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            objects_max: 65_536,
            connections_max: 4096,
            packet_bytes_max: 1200,
            packets_in_flight_max: 512,
            overhead_bytes: 28,
            hysteresis_frames: 2,
            exit_factor: 1.0,
            send_threshold: 1.0,
            create_share: 0.5,
            attach_share: 0.25,
            record_cache_bytes: 16 << 20,
            grid: GridConfig::default(),
        }
    }
}

/// Names a connection of a [`Server`]. Numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// Names a prioritiser of a [`Server`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrioritiserId(u8);

/// The dynamic filter of an object (spec §12, step 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Filter {
    /// In scope of views within the cull distance.
    #[default]
    Grid,
    /// In scope of everybody.
    Always,
    /// In scope of nobody but those whom other filters let in.
    Never,
}

/// Why an object left a receiver (spec §10.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DestroyReason {
    /// It no longer exists.
    Destroyed = 0,
    /// The receiver may no longer see it.
    OutOfScope = 1,
    /// The replica lives on without replication; its last state was sent before.
    TornOff = 2,
    /// The level that replaced it has its own.
    Streamed = 3,
    /// The two sides describe its class differently.
    ProtocolMismatch = 4,
}

impl DestroyReason {
    pub(crate) fn from_wire(byte: u8) -> Result<Self, DecodeError> {
        Ok(match byte {
            0 => Self::Destroyed,
            1 => Self::OutOfScope,
            2 => Self::TornOff,
            3 => Self::Streamed,
            4 => Self::ProtocolMismatch,
            _ => return Err(DecodeError::Value),
        })
    }
}

/// Something that connections reported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A client called something on an object.
    Attachment(ConnId, Attachment),
    /// A client's input, at most once, in order.
    Input(ConnId, Vec<u8>),
    /// Reliable attachments will never arrive: their object is gone.
    AttachmentsDropped {
        /// For whom they were.
        connection: ConnId,
        /// Network index of the object.
        object: u32,
        /// How many.
        count: usize,
    },
}

/// Why an operation on an object failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The handle names nothing, or an object that was destroyed.
    #[error("the handle names no object")]
    Unknown,
    /// No such class.
    #[error("the class is not registered")]
    UnknownClass,
    /// No such property.
    #[error("the class has no property {0}")]
    UnknownProperty(usize),
    /// The value does not fit.
    #[error("property {0}: {1}")]
    Value(usize, ValueMismatch),
    /// At [`ServerConfig::objects_max`].
    #[error("{0} objects exist, the limit; raise objects_max")]
    TooMany(u32),
    /// A connection was named that does not exist.
    #[error("the connection does not exist")]
    UnknownConnection,
}

/// Counts of one connection, from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Packets written.
    pub packets_sent: u64,
    /// Bytes written, without what lower layers add.
    pub bytes_sent: u64,
    /// Packets acknowledged.
    pub packets_delivered: u64,
    /// Packets that were not.
    pub packets_lost: u64,
    /// Properties that losses made pending again.
    pub properties_resent: u64,
    /// Common records copied.
    pub records_copied: u64,
    /// Record variants found in the cache.
    pub records_hit: u64,
    /// Record variants built.
    pub records_built: u64,
    /// Create items written.
    pub creates: u64,
    /// Destroy items written.
    pub destroys: u64,
    /// Frames in which the budget did not suffice.
    pub budget_saturated_frames: u64,
    /// Packets discarded because a newer one had been applied.
    pub packets_stale: u64,
}

/// Counts of the shared stage, from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Objects with a changed property, summed over frames.
    pub objects_dirty: u64,
    /// Changed properties, summed over frames.
    pub properties_dirty: u64,
    /// Common records written.
    pub records_shared: u64,
    /// Marks of objects that do not exist.
    pub stale_marks: u64,
    /// Numbers that were not numbers.
    pub nans: u64,
    /// Packets from peers that were refused.
    pub decode_errors: u64,
}

/// What connection stages read. Nothing of it changes while they run.
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
    /// Some object needs the slow way for everybody.
    pub(crate) any_special: bool,
}

impl Shared {
    #[inline]
    pub(crate) fn store(&self, object: u32) -> &ClassStore {
        &self.stores[usize::from(self.objects.class[object as usize])]
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
    list: Option<(bool, Vec<u32>)>,
    groups: Vec<u16>,
}

/// A group of objects that is opened for connections (spec §12, steps 5 and 6).
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
/// One frame is [`begin_frame`](Self::begin_frame) (the shared stage), then [`lanes`](Self::lanes) (the connection
/// stages, on as many threads as there are lanes), then [`end_frame`](Self::end_frame). [`tick`](Self::tick) does all
/// three on the calling thread. Between frames the game creates, changes and destroys objects, and hands packets from
/// clients to [`receive`](Self::receive).
#[derive(Debug)]
pub struct Server {
    shared: Shared,
    connections: Vec<Option<Box<Connection>>>,
    scratch: Vec<Scratch>,
    statics: BTreeMap<u32, StaticFilter>,
    groups: BTreeMap<u16, Group>,
    filters: Vec<Filter>,
    /// Objects destroyed, whose index some receiver may still know.
    dying: Vec<u32>,
    /// What changed while an object was dormant.
    slept: BTreeMap<u32, u64>,
    events: VecDeque<Event>,
    stats: ServerStats,
    record: Vec<u8>,
}

impl Server {
    /// A server for objects of `classes`.
    #[must_use]
    pub fn new(config: ServerConfig, classes: &Classes) -> Self {
        let grid = GridIndex::new(config.grid, config.exit_factor);
        Self {
            shared: Shared {
                stores: classes.iter().map(|class| ClassStore::new(Arc::clone(class))).collect(),
                objects: Objects::default(),
                grid,
                prioritisers: vec![Prioritiser::Static(1.0)],
                streams: vec![Stream::new()],
                frame: 0,
                now: Instant::ZERO,
                any_special: false,
                config,
            },
            connections: Vec::new(),
            scratch: Vec::new(),
            statics: BTreeMap::new(),
            groups: BTreeMap::new(),
            filters: Vec::new(),
            dying: Vec::new(),
            slept: BTreeMap::new(),
            events: VecDeque::new(),
            stats: ServerStats::default(),
            record: Vec::new(),
        }
    }

    // ------------------------------------------------------------------------------------------------ connections

    /// Adds a connection; `None` at the limit. It sees nothing before it has a view, apart from objects that every
    /// connection sees.
    pub fn connect(&mut self) -> Option<ConnId> {
        let place = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        if place >= self.shared.config.connections_max as usize {
            return None;
        }
        let id = ConnId(place as u32);
        if place == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[place] = Some(Box::new(Connection::new(id)));
        let filtered: Vec<u32> = self.statics.keys().copied().collect();
        for object in filtered {
            self.decide(object, id.0);
        }
        Some(id)
    }

    /// Removes a connection. Objects that it owned belong to nobody then. Costs a look at each object it knows.
    pub fn disconnect(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(id.0 as usize).and_then(Option::take) else { return };
        for object in conn.scope.iter() {
            self.shared.objects.refs[object as usize] -= 1;
        }
        for object in conn.known() {
            self.shared.objects.known[object as usize] -= 1;
        }
        for count in &conn.counts {
            apply_count(&mut self.shared.objects, *count);
        }
        for object in conn.owned.iter() {
            self.shared.objects.owner[object as usize] = NOBODY;
        }
        for group in self.groups.values_mut() {
            group.open.clear(id.0);
        }
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// Places from which the connection looks: one, or up to four for split screens. More are ignored.
    pub fn set_views(&mut self, id: ConnId, views: &[View]) {
        if let Some(conn) = self.conn(id) {
            conn.views.clear();
            conn.views.extend_from_slice(&views[..views.len().min(4)]);
        }
    }

    /// Limits the connection to `bytes_per_second`, with `burst` bytes saved up at most; `None` lifts the limit.
    pub fn set_budget(&mut self, id: ConnId, limit: Option<(f64, f64)>) {
        let now = self.shared.now;
        if let Some(conn) = self.conn(id) {
            conn.budget = limit.map(|(rate, burst)| Budget { rate, burst, tokens: burst, at: now });
        }
    }

    /// Makes the connection a recording: it gets what [`Condition`](crate::Condition)s give to replays.
    pub fn set_replay(&mut self, id: ConnId, replay: bool) {
        if let Some(conn) = self.conn(id) {
            conn.replay = replay;
        }
    }

    /// Adds the connection to condition groups and removes it from others: bit g is group g. Properties of groups that
    /// are new to it are sent with their present value.
    pub fn set_condition_groups(&mut self, id: ConnId, groups: u64) {
        let shared = &self.shared;
        let Some(Some(conn)) = self.connections.get_mut(id.0 as usize) else { return };
        let new = groups & !conn.groups;
        conn.groups = groups;
        let objects: Vec<u32> = conn.scope.iter().collect();
        for object in objects {
            let class = &shared.store(object).class;
            let mask = class.groups.iter().filter(|(group, _)| new >> group & 1 != 0);
            let mask = mask.fold(0, |all, (_, properties)| all | properties);
            if mask != 0 {
                conn.reveal(shared, object, mask);
            }
        }
    }

    /// Counts of a connection.
    #[must_use]
    pub fn connection_stats(&self, id: ConnId) -> Option<ConnectionStats> {
        Some(self.connections.get(id.0 as usize)?.as_ref()?.stats)
    }

    /// Bytes that a connection keeps about objects.
    #[must_use]
    pub fn connection_bytes(&self, id: ConnId) -> Option<usize> {
        Some(self.connections.get(id.0 as usize)?.as_ref()?.heap_bytes())
    }

    /// Whether the object should be on the connection's receiver.
    #[must_use]
    pub fn in_scope(&self, id: ConnId, handle: Handle) -> bool {
        let conn = self.connections.get(id.0 as usize).and_then(Option::as_ref);
        conn.is_some_and(|conn| self.index(handle).is_some_and(|object| conn.scope.get(object)))
    }

    /// Whether the receiver has confirmed the object's creation.
    #[must_use]
    pub fn is_live(&self, id: ConnId, handle: Handle) -> bool {
        let conn = self.connections.get(id.0 as usize).and_then(Option::as_ref);
        conn.is_some_and(|conn| self.index(handle).is_some_and(|object| conn.is_live(object)))
    }

    // ------------------------------------------------------------------------------------------------ objects

    fn index(&self, handle: Handle) -> Option<u32> {
        let at = handle.index() as usize;
        let objects = &self.shared.objects;
        (at < objects.class.len()
            && objects.alive.get(handle.index())
            && objects.generation[at] == handle.generation())
        .then_some(handle.index())
    }

    fn known(&self, handle: Handle) -> Result<u32, ObjectError> {
        self.index(handle).ok_or(ObjectError::Unknown)
    }

    /// Creates an object with the defaults of its class. Receivers get it with the values it has at the next frame.
    ///
    /// # Errors
    /// For an unknown class, or at the limit of objects.
    pub fn create(&mut self, class: ClassId) -> Result<Handle, ObjectError> {
        let objects = &mut self.shared.objects;
        let store = self.shared.stores.get_mut(usize::from(class.0)).ok_or(ObjectError::UnknownClass)?;
        let max = self.shared.config.objects_max;
        let index = objects.allocate(max).ok_or(ObjectError::TooMany(max))?;
        let at = index as usize;
        objects.class[at] = class.0;
        objects.slot[at] = store.allocate();
        objects.owner[at] = NOBODY;
        objects.cull[at] = store.class.cull_distance;
        objects.prioritiser[at] = 0;
        objects.parent[at] = 0;
        objects.disabled[at] = 0;
        objects.dirty_mask[at] = store.class.all_mask();
        objects.dirty.set(index);
        objects.alive.set(index);
        let class = &store.class;
        let special = class.flags.delta || !class.groups.is_empty() || class.hide_mask != 0;
        objects.special.assign(index, special);
        objects.conditional.assign(index, class.is_conditional());
        self.shared.any_special |= special;
        objects.dormant.clear(index);
        objects.flush.clear(index);
        if self.filters.len() <= at {
            self.filters.resize(objects.class.len(), Filter::default());
        }
        self.filters[at] = Filter::Grid;
        objects.always.clear(index);
        [objects.x[at], objects.y[at], objects.z[at]] = [0.0; 3];
        Ok(Handle::from_parts(index, objects.generation[at]))
    }

    /// Destroys an object. With `flush` its last changes are sent before its end.
    ///
    /// # Errors
    /// When the handle names nothing.
    pub fn destroy(&mut self, handle: Handle, reason: DestroyReason, flush: bool) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let owner = self.shared.objects.owner[index as usize];
        if let Some(conn) = self.conn(ConnId(owner)) {
            conn.owned.clear(index);
            conn.owned_special.clear(index);
        }
        let objects = &mut self.shared.objects;
        objects.alive.clear(index);
        objects.always.clear(index);
        objects.destroy_reason[index as usize] = reason as u8;
        if flush {
            objects.flush.set(index);
        } else {
            objects.dirty.clear(index);
            objects.dirty_mask[index as usize] = 0;
        }
        self.shared.grid.remove(index);
        self.slept.remove(&index);
        if let Some(filter) = self.statics.remove(&index) {
            for group in filter.groups {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.members.clear(index);
                }
            }
        }
        for conn in self.connections.iter_mut().flatten() {
            conn.forced_in.clear(index);
            conn.forced_out.clear(index);
        }
        self.dying.push(index);
        Ok(())
    }

    /// Whether the handle names an object.
    #[must_use]
    pub fn exists(&self, handle: Handle) -> bool {
        self.index(handle).is_some()
    }

    /// Sets a property and marks it. Costs some nanoseconds; setting the value it has sends nothing.
    ///
    /// # Errors
    /// When the object or property does not exist or the value does not fit.
    pub fn set(
        &mut self,
        handle: Handle,
        property: usize,
        value: impl Into<Value>,
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let store = &mut self.shared.stores[usize::from(self.shared.objects.class[index as usize])];
        let slot = self.shared.objects.slot[index as usize];
        let class = Arc::clone(&store.class);
        let prop = class.props.get(property).ok_or(ObjectError::UnknownProperty(property))?;
        let value = value.into();
        if prop.codec.is_heap() {
            let mut bytes = Vec::new();
            let bits = prop
                .codec
                .write_heap(&value, &mut bytes)
                .map_err(|error| ObjectError::Value(property, error))?;
            store.staged[slot as usize * class.heap_count + prop.heap] = Some((bytes, bits));
        } else {
            let live = &mut store.live_mut(slot)[prop.live..];
            prop.codec.store(&value, live).map_err(|error| ObjectError::Value(property, error))?;
        }
        self.mark(index, 1 << property);
        Ok(())
    }

    /// Lets `write` change the object's live block (see [`Class::layout`](crate::Class::layout)) and marks the properties
    /// of `mask`: the fast way to set many.
    ///
    /// # Errors
    /// When the object does not exist.
    #[inline]
    pub fn write_live(
        &mut self,
        handle: Handle,
        mask: u64,
        write: impl FnOnce(&mut [u32]),
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let store = &mut self.shared.stores[usize::from(self.shared.objects.class[index as usize])];
        write(store.live_mut(self.shared.objects.slot[index as usize]));
        self.mark(index, mask);
        Ok(())
    }

    /// Marks properties without setting them.
    pub fn mark_dirty(&mut self, handle: Handle, mask: u64) {
        match self.index(handle) {
            Some(index) => self.mark(index, mask),
            None => self.stats.stale_marks += 1,
        }
    }

    #[inline]
    fn mark(&mut self, index: u32, mask: u64) {
        self.shared.objects.dirty_mask[index as usize] |= mask;
        self.shared.objects.dirty.set(index);
    }

    /// The value that receivers see, or will see: what the quantised copy holds. With it a simulation can go on from
    /// exactly what its clients have.
    ///
    /// # Errors
    /// When the object or property does not exist.
    pub fn quantised(&self, handle: Handle, property: usize) -> Result<Value, ObjectError> {
        let index = self.known(handle)?;
        let store = self.shared.store(index);
        let slot = self.shared.objects.slot[index as usize];
        let prop = store.class.props.get(property).ok_or(ObjectError::UnknownProperty(property))?;
        if prop.codec.is_heap() {
            let bytes = &store.heap(slot)[prop.heap].0;
            return Ok(prop.codec.read_heap(bytes).unwrap_or_else(|_| prop.codec.dequantise(&[0])));
        }
        Ok(prop.codec.dequantise(prop.words(store.quant(slot))))
    }

    /// The quantised words of an object, for comparisons with a replica's.
    #[must_use]
    pub fn quantised_words(&self, handle: Handle) -> Option<&[u64]> {
        let index = self.index(handle)?;
        Some(self.shared.store(index).quant(self.shared.objects.slot[index as usize]))
    }

    /// Gives the object to a connection, or to nobody. Its scope and conditions follow in the next frame.
    ///
    /// # Errors
    /// When the object or the connection does not exist.
    pub fn set_owner(&mut self, handle: Handle, owner: Option<ConnId>) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        if let Some(owner) = owner
            && self.conn(owner).is_none()
        {
            return Err(ObjectError::UnknownConnection);
        }
        let before = core::mem::replace(
            &mut self.shared.objects.owner[index as usize],
            owner.map_or(NOBODY, |owner| owner.0),
        );
        let special = self.shared.objects.conditional.get(index);
        let shared = &self.shared;
        let class = &shared.store(index).class;
        if let Some(Some(conn)) = self.connections.get_mut(before as usize) {
            conn.owned.clear(index);
            conn.owned_special.clear(index);
            if special {
                conn.reveal(shared, index, class.update_masks[0] & !class.update_masks[1]);
            }
        }
        if let Some(owner) = owner
            && let Some(Some(conn)) = self.connections.get_mut(owner.0 as usize)
        {
            conn.owned.set(index);
            if special {
                conn.owned_special.set(index);
                conn.reveal(shared, index, class.update_masks[1] & !class.update_masks[0]);
            }
        }
        self.decide_all(index);
        Ok(())
    }

    /// Chooses the dynamic filter.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_filter(&mut self, handle: Handle, filter: Filter) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.filters[index as usize] = filter;
        self.shared.objects.always.assign(index, filter == Filter::Always);
        if filter == Filter::Grid {
            // Placed again by its position.
            if let Some(property) = self.shared.store(index).class.position {
                self.mark(index, 1 << property);
            }
            self.place(index);
        } else {
            self.shared.grid.remove(index);
        }
        Ok(())
    }

    /// Overrides the class' cull distance, in metres.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_cull_distance(&mut self, handle: Handle, metres: f32) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.shared.objects.cull[index as usize] = if metres > 0.0 { metres } else { 0.0 };
        self.place(index);
        Ok(())
    }

    /// Adds a prioritiser for [`set_prioritiser`](Self::set_prioritiser); 256 at most, `None` beyond.
    pub fn add_prioritiser(&mut self, prioritiser: Prioritiser) -> Option<PrioritiserId> {
        let id = u8::try_from(self.shared.prioritisers.len()).ok()?;
        self.shared.prioritisers.push(prioritiser);
        Some(PrioritiserId(id))
    }

    /// Chooses the prioritiser; without one an object has priority 1.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_prioritiser(&mut self, handle: Handle, prioritiser: PrioritiserId) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.shared.objects.prioritiser[index as usize] = prioritiser.0;
        Ok(())
    }

    /// Shows the object to its owner only.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_only_to_owner(&mut self, handle: Handle, on: bool) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.statics.entry(index).or_default().only_to_owner = on;
        self.decide_all(index);
        Ok(())
    }

    /// Shows the object to the listed connections only (`allow`), or to all but them. Takes it out of its dynamic
    /// filter. An empty list of refused connections shows it to everybody.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_connection_filter(
        &mut self,
        handle: Handle,
        allow: bool,
        connections: &[ConnId],
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let list = connections.iter().map(|id| id.0).collect();
        self.statics.entry(index).or_default().list = Some((allow, list));
        self.set_filter(handle, Filter::Always)?;
        self.decide_all(index);
        Ok(())
    }

    /// Creates a group, closed for every connection. An existing group keeps its kind.
    pub fn add_group(&mut self, group: u16, kind: GroupKind) {
        self.groups.entry(group).or_insert_with(|| Group {
            kind,
            members: Bitmap::default(),
            open: Bitmap::default(),
        });
    }

    /// Puts the object into groups, 16 at most; others are ignored, as are groups that do not exist.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_groups(&mut self, handle: Handle, groups: &[u16]) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let filter = self.statics.entry(index).or_default();
        for group in filter.groups.drain(..) {
            if let Some(group) = self.groups.get_mut(&group) {
                group.members.clear(index);
            }
        }
        for name in groups.iter().take(16) {
            if let Some(group) = self.groups.get_mut(name) {
                group.members.set(index);
                filter.groups.push(*name);
            }
        }
        self.decide_all(index);
        Ok(())
    }

    /// Opens a group for a connection, or closes it. Costs a look at each member.
    pub fn open_group(&mut self, group: u16, id: ConnId, open: bool) {
        let Some(entry) = self.groups.get_mut(&group) else { return };
        entry.open.assign(id.0, open);
        let members: Vec<u32> = entry.members.iter().collect();
        for object in members {
            self.decide(object, id.0);
        }
    }

    /// Switches properties with the condition `Custom` on or off, for all connections. Those switched on are sent with
    /// their present value.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_condition_enabled(
        &mut self,
        handle: Handle,
        properties: u64,
        enabled: bool,
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let mask = properties & self.shared.store(index).class.custom_mask;
        let disabled = &mut self.shared.objects.disabled[index as usize];
        let revealed = if enabled { *disabled & mask } else { 0 };
        *disabled = if enabled { *disabled & !mask } else { *disabled | mask };
        let shared = &self.shared;
        for conn in self.connections.iter_mut().flatten() {
            if revealed != 0 && conn.scope.get(index) {
                conn.reveal(shared, index, revealed);
            }
        }
        Ok(())
    }

    /// Puts the object to sleep or wakes it (spec §15). Changes while asleep are kept, and sent on waking.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_dormant(&mut self, handle: Handle, dormant: bool) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.shared.objects.dormant.assign(index, dormant);
        if !dormant {
            self.wake(index);
        }
        Ok(())
    }

    /// Sends what changed while the object slept; it sleeps on.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn flush_dormant(&mut self, handle: Handle) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        if self.shared.objects.dormant.get(index) {
            // What was marked since the last frame belongs to the flush.
            let slot = self.shared.objects.slot[index as usize];
            let marked = core::mem::take(&mut self.shared.objects.dirty_mask[index as usize]);
            let class = usize::from(self.shared.objects.class[index as usize]);
            let (changed, nans) = self.shared.stores[class].quantise(slot, marked);
            self.stats.nans += u64::from(nans);
            *self.slept.entry(index).or_default() |= changed;
            self.wake(index);
        }
        Ok(())
    }

    /// Everybody who has the object needs what changed in its sleep.
    fn wake(&mut self, index: u32) {
        let Some(mask) = self.slept.remove(&index) else { return };
        let shared = &self.shared;
        for conn in self.connections.iter_mut().flatten() {
            if conn.scope.get(index) {
                conn.reveal(shared, index, mask);
            }
        }
    }

    // ------------------------------------------------------------------------------------------------ filters

    fn decide_all(&mut self, object: u32) {
        for id in 0..self.connections.len() as u32 {
            self.decide(object, id);
        }
    }

    /// Steps 3 to 6 of spec §12: refusals first, then admissions that pass over the dynamic filter.
    fn decide(&mut self, object: u32, id: u32) {
        let Some(Some(conn)) = self.connections.get_mut(id as usize) else { return };
        let owner = self.shared.objects.owner[object as usize] == id;
        let (mut refused, mut forced) = (false, owner);
        if let Some(filter) = self.statics.get(&object) {
            refused |= filter.only_to_owner && !owner;
            forced |= filter.only_to_owner && owner;
            if let Some((allow, list)) = &filter.list {
                refused |= list.contains(&id) != *allow;
            }
            for name in &filter.groups {
                let Some(group) = self.groups.get(name) else { continue };
                let open = group.open.get(id);
                match group.kind {
                    GroupKind::Exclusion => refused |= !open,
                    GroupKind::Inclusion => forced |= open,
                }
            }
        }
        conn.forced_out.assign(object, refused);
        conn.forced_in.assign(object, forced && !refused);
    }

    /// Puts an object with a grid filter where its position says.
    fn place(&mut self, index: u32) {
        let at = index as usize;
        if self.filters[at] == Filter::Grid && self.shared.store(index).class.position.is_some() {
            let objects = &self.shared.objects;
            let position = [objects.x[at], objects.y[at], objects.z[at]];
            self.shared.grid.place(index, position, objects.cull[at]);
        }
    }

    // ------------------------------------------------------------------------------------------------ frame

    /// Runs a whole frame on this thread and hands each connection's packets to `sink`.
    pub fn tick(&mut self, now: Instant, mut sink: impl FnMut(Packets<'_>)) {
        self.begin_frame(now);
        for mut lane in self.lanes(1) {
            lane.run(&mut sink);
        }
        self.end_frame();
    }

    /// The shared stage: quantises what was marked, compares, moves objects in the grid, and writes one record for each
    /// changed object that somebody sees. `now` never goes back.
    pub fn begin_frame(&mut self, now: Instant) {
        let shared = &mut self.shared;
        shared.now = now;
        shared.frame = shared.frame.wrapping_add(1);
        let frame = shared.frame;
        let count = shared.objects.class.len();
        for stream in &mut shared.streams {
            stream.begin(frame, count);
        }
        for word in 0..shared.objects.bitmap_words() {
            let mut bits = core::mem::take(&mut shared.objects.dirty.words_mut()[word]);
            while bits != 0 {
                let index = (word * 64) as u32 + bits.trailing_zeros();
                bits &= bits - 1;
                collect(shared, &self.filters, &mut self.slept, &mut self.stats, &mut self.record, index);
            }
        }
        for stream in &mut shared.streams {
            stream.end();
        }
    }

    /// The connection stages, in `count` parts of neighbouring connections. Parts may run on different threads; what a
    /// connection gets does not depend on how many there are.
    pub fn lanes(&mut self, count: usize) -> impl Iterator<Item = Lane<'_>> {
        let count = count.max(1);
        if self.scratch.len() < count {
            self.scratch.resize_with(count, Scratch::default);
        }
        let shared = &self.shared;
        let size = self.connections.len().div_ceil(count).max(1);
        let chunks = self.connections.chunks_mut(size);
        chunks.zip(&mut self.scratch).map(move |(connections, scratch)| Lane { shared, connections, scratch })
    }

    /// Brings counts and events together that the connection stages left behind. Costs what happened.
    pub fn end_frame(&mut self) {
        for conn in self.connections.iter_mut().flatten() {
            for count in conn.counts.drain(..) {
                apply_count(&mut self.shared.objects, count);
            }
            self.events.extend(conn.events.drain(..));
        }
        let objects = &mut self.shared.objects;
        let stores = &mut self.shared.stores;
        self.dying.retain(|index| {
            let at = *index as usize;
            if objects.refs[at] > 0 || objects.known[at] > 0 {
                return true;
            }
            stores[usize::from(objects.class[at])].release(objects.slot[at]);
            objects.generation[at] = objects.generation[at].wrapping_add(1);
            objects.flush.clear(*index);
            objects.give_back(*index);
            false
        });
    }

    /// The present frame's number.
    #[must_use]
    pub fn frame(&self) -> u32 {
        self.shared.frame
    }

    /// Counts of the shared stage.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.stats
    }

    // ------------------------------------------------------------------------------------------------ peers

    /// Takes a packet from a client: acknowledgements, attachments, inputs. Old packets are discarded.
    ///
    /// # Errors
    /// When the client sent what it must not; nothing was changed, and the connection should be closed.
    pub fn receive(&mut self, id: ConnId, packet: &[u8]) -> Result<(), DecodeError> {
        let shared = &self.shared;
        let Some(Some(conn)) = self.connections.get_mut(id.0 as usize) else { return Ok(()) };
        let result = receive(shared, conn, packet);
        if result.is_err() {
            self.stats.decode_errors += 1;
        }
        result
    }

    /// The oldest event not taken yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Queues a call on an object for one connection.
    ///
    /// # Errors
    /// When object or connection do not exist, the bytes are too many, or the queue of reliable attachments is full.
    pub fn attach(
        &mut self,
        id: ConnId,
        handle: Handle,
        method: u64,
        bytes: &[u8],
        reliable: bool,
    ) -> Result<(), AttachError> {
        let index = self.index(handle).ok_or(AttachError::UnknownObject)?;
        let conn = self.conn(id).ok_or(AttachError::UnknownConnection)?;
        conn.attachments.push(index, method, &Arc::from(bytes), reliable)
    }

    /// Queues a call on an object for every connection that has it in scope; the bytes are shared. Connections whose
    /// queue is full do not get it; they are returned and should be closed.
    ///
    /// # Errors
    /// When the object does not exist or the bytes are too many.
    pub fn attach_all(
        &mut self,
        handle: Handle,
        method: u64,
        bytes: &[u8],
        reliable: bool,
    ) -> Result<Vec<ConnId>, AttachError> {
        let index = self.index(handle).ok_or(AttachError::UnknownObject)?;
        let bytes: Arc<[u8]> = Arc::from(bytes);
        let mut full = Vec::new();
        for conn in self.connections.iter_mut().flatten().filter(|conn| conn.scope.get(index)) {
            match conn.attachments.push(index, method, &bytes, reliable) {
                Ok(()) => {}
                Err(AttachError::Overflow) => full.push(conn.id),
                Err(error) => return Err(error),
            }
        }
        Ok(full)
    }
}

/// One object of the shared stage's work set.
#[inline]
fn collect(
    shared: &mut Shared,
    filters: &[Filter],
    slept: &mut BTreeMap<u32, u64>,
    stats: &mut ServerStats,
    record: &mut Vec<u8>,
    index: u32,
) {
    let at = index as usize;
    let objects = &mut shared.objects;
    let mask = core::mem::take(&mut objects.dirty_mask[at]);
    let store = &mut shared.stores[usize::from(objects.class[at])];
    let slot = objects.slot[at];
    let (changed, nans) = store.quantise(slot, mask);
    stats.nans += u64::from(nans);
    let alive = objects.alive.get(index);
    if let Some(property) = store.class.position
        && mask >> property & 1 != 0
        && alive
    {
        let live = &store.live(slot)[store.class.props[property].live..][..3];
        let position = [0, 1, 2].map(|axis| f32::from_bits(live[axis]));
        // What is not a number keeps the last place; it was counted when it was quantised.
        if position.iter().all(|part| !part.is_nan()) {
            [objects.x[at], objects.y[at], objects.z[at]] = position;
            if filters[at] == Filter::Grid {
                shared.grid.place(index, position, objects.cull[at]);
            }
        }
    }
    if changed == 0 || !(alive || objects.flush.get(index)) {
        return;
    }
    if store.class.flags.delta {
        store.remember(slot, shared.frame);
    }
    let mask = changed & store.class.update_mask & !objects.disabled[at];
    stats.objects_dirty += 1;
    stats.properties_dirty += u64::from(changed.count_ones());
    if mask == 0 || objects.refs[at] == 0 || store.class.flags.temporary {
        return;
    }
    if objects.dormant.get(index) {
        *slept.entry(index).or_default() |= mask;
        return;
    }
    let stream = &mut shared.streams[0];
    let common = mask & store.class.update_masks[0];
    let mut fast = !objects.special.get(index) && common != 0;
    if fast {
        let from = stream.bytes.len();
        if store.class.heap_count == 0 {
            write_record(&mut stream.bytes, index, &store.class, common, store.quant(slot), &[]);
        } else {
            record.clear();
            write_record(record, index, &store.class, common, store.quant(slot), store.heap(slot));
            stream.bytes.extend_from_slice(record);
        }
        // What fits no packet beside a header takes the slow way.
        if stream.bytes.len() - from > shared.config.packet_bytes_max - crate::wire::HEADER_BYTES - 2 {
            stream.bytes.truncate(from);
            fast = false;
        } else {
            stats.records_shared += 1;
        }
    }
    stream.push(index, mask, fast);
}

fn apply_count(objects: &mut Objects, count: Count) {
    match count {
        Count::Ref(object) => objects.refs[object as usize] += 1,
        Count::Unref(object) => objects.refs[object as usize] -= 1,
        Count::Know(object) => objects.known[object as usize] += 1,
        Count::Forget(object) => objects.known[object as usize] -= 1,
    }
}

fn receive(shared: &Shared, conn: &mut Connection, packet: &[u8]) -> Result<(), DecodeError> {
    let (header, sections) = Header::parse(packet)?;
    if !conn.is_new(header.seq) {
        conn.stats.packets_stale += 1;
        return Ok(());
    }
    // First everything is checked, then everything is applied.
    let mut resets = Vec::new();
    let mut attachments = Vec::new();
    let mut inputs = Vec::new();
    let mut reader = BitReader::new(sections);
    while reader.bits_left() > 0 {
        let section = reader.get(8)? as u8;
        let count = reader.get_varint()?;
        match section {
            kind::ATTACH => {
                for _ in 0..count {
                    let item = ItemView::read(&mut reader)?;
                    let owned = shared.objects.owner.get(item.object as usize) == Some(&conn.id.0);
                    if !owned || !shared.objects.alive.get(item.object) {
                        return Err(DecodeError::Forbidden);
                    }
                    conn.attachments.check(&item)?;
                    attachments.push(item);
                }
            }
            kind::BASELINE_RESET | kind::INPUT => {
                let len = reader.get(16)? as usize;
                let from = reader.byte_position();
                reader.skip_bytes(len)?;
                let bytes = &sections[from..from + len];
                if section == kind::INPUT {
                    inputs.push(bytes);
                    continue;
                }
                let mut items = BitReader::new(bytes);
                for _ in 0..count {
                    let index = u32::try_from(items.get_varint()?).map_err(|_| DecodeError::Index)?;
                    if index as usize >= shared.objects.class.len() {
                        return Err(DecodeError::Index);
                    }
                    resets.push(index);
                }
            }
            kind::SKIPPABLE.. => {
                let len = reader.get(16)? as usize;
                reader.skip_bytes(len)?;
            }
            _ => return Err(DecodeError::Forbidden),
        }
    }
    conn.acknowledge(shared, header.ack, header.ack_bits)?;
    conn.applied(header.seq, !sections.is_empty());
    for index in resets {
        conn.reset_baseline(shared, index);
    }
    let id = conn.id;
    let mut arrived = Vec::new();
    for item in &attachments {
        conn.attachments.receive(item, &mut |attachment| arrived.push(Event::Attachment(id, attachment)));
    }
    conn.events.extend(arrived);
    conn.events.extend(inputs.into_iter().map(|bytes| Event::Input(id, bytes.to_vec())));
    Ok(())
}

/// A part of the connections, to be run on one thread.
#[derive(Debug)]
pub struct Lane<'a> {
    shared: &'a Shared,
    connections: &'a mut [Option<Box<Connection>>],
    scratch: &'a mut Scratch,
}

impl Lane<'_> {
    /// Runs the connection stage of each connection, in the order of their numbers, and hands its packets to `sink`.
    /// The bytes are valid during the call only.
    pub fn run(&mut self, sink: &mut impl FnMut(Packets<'_>)) {
        for conn in self.connections.iter_mut().flatten() {
            let id = conn.id;
            Stage { conn, sh: self.shared, scratch: self.scratch }.run();
            let out = &self.scratch.out;
            if !out.ends().is_empty() {
                sink(Packets { connection: id, bytes: out.bytes(), ends: out.ends() });
            }
        }
    }
}

/// The packets of one connection and frame, one after the other, as a driver may hand them to the kernel in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Packets<'a> {
    /// For whom they are.
    pub connection: ConnId,
    /// All packets.
    pub bytes: &'a [u8],
    /// Where each packet ends.
    pub ends: &'a [usize],
}

impl<'a> Packets<'a> {
    /// Packet by packet.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, ends) = (self.bytes, self.ends);
        let mut from = 0;
        ends.iter().map(move |end| {
            let packet = &bytes[from..*end];
            from = *end;
            packet
        })
    }
}

/// Time between two frames, for drivers that have no other wish: 30 Hz.
pub const FRAME_INTERVAL: Duration = Duration::from_nanos(33_333_333);

/// Properties of `mask` by index.
pub fn properties_of(mask: u64) -> impl Iterator<Item = usize> {
    bits_of(mask)
}
