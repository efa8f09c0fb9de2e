//! Limits, names, errors, events and counts of a server.

use std::time::Duration;

use crate::attach::Attachment;
use crate::class::ClassId;
use crate::grid::GridConfig;
use crate::handle::Handle;
use crate::lod::LodProfile;
use crate::quantise::ValueMismatch;
use crate::wire::DecodeError;

/// Limits and rules of a [`Server`](crate::Server).
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Most objects at one time, with those that ended and whose end some connection has not
    /// confirmed yet. The indices are 1 to this number; clients have the same limit. Default
    /// 65,536.
    pub objects_max: u32,
    /// Most connections at one time. Default 4,096.
    pub connections_max: u32,
    /// Largest packet in bytes, 64 to 65,535; that of the clients must be the same. Default 1,200.
    pub packet_bytes_max: usize,
    /// Packets of one connection whose fate is open: eight below the limit nothing more is sent, so
    /// that the packets of one frame rarely exceed it. At least 16; smaller values count as 16.
    /// Default 512.
    pub packets_in_flight_max: usize,
    /// Bytes that the layers below add to each packet; counted against budgets. Default 28: IP and
    /// UDP.
    pub overhead_bytes: usize,
    /// Frames that an object stays in scope after the dynamic filter refused it, 0 to 255. Default
    /// 2.
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
    /// Every frame compares every property of every object, and reports each change that was never
    /// marked ([`Event::UnmarkedChange`]). For development: it costs as much as everything else.
    /// Default off.
    pub verify_push: bool,
    /// Counts by class and property: [`Server::class_stats`](crate::Server::class_stats). Default
    /// off.
    pub class_stats: bool,
    /// Sends the server's frame and time so often, in a packet that goes anyway; at most once a
    /// second makes sense. Default none.
    pub clock_interval: Option<Duration>,
    /// Frames between two looks at whether a receiver holds what it should: each object is looked
    /// at by a hash of its state, and repaired when it differs (see
    /// [`ClientEvent::Diverged`](crate::ClientEvent::Diverged)). Costs bytes and time for each pair
    /// in scope, spread over the frames. Default 0: never.
    pub check_frames: u16,
    /// Time without an acknowledgement, while packets are in flight, after which the server ends a
    /// connection ([`Event::Unresponsive`]): a silent receiver holds the indices of ended objects.
    /// One that acknowledges other packets, but not the end of some object that was sent 65 times,
    /// ends as well. Default 10 s.
    pub unresponsive_after: Duration,
    /// Create items that all connections together are sent in one frame, at least 32 for each
    /// connection: a crowd that joins at once is spread over frames. Default 8,192.
    pub creates_per_frame: u32,
    /// Most texts of tokens, archetypes and startup objects' names together. Default 16,384.
    pub tokens_max: u32,
    /// Bytes of the longest creation, update or end that goes in parts because no packet holds it.
    /// [`Server::set`](crate::Server::set) refuses values that would exceed it. What exceeds it
    /// with the texts that it needs is not sent, a last state is left out; both are counted
    /// ([`ConnectionStats::oversized`]). The receiver's limit should be the same. Default 1 MiB.
    pub transfer_bytes_max: usize,
    /// The grid filter's world.
    pub grid: GridConfig,
    /// Levels of detail for objects in the grid, unless they opt out; `None` sends every change in
    /// its frame. An owner's own objects, creations, ends and calls know no bands. Default none.
    pub lod: Option<LodProfile>,
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
            verify_push: false,
            class_stats: false,
            clock_interval: None,
            check_frames: 0,
            unresponsive_after: Duration::from_secs(10),
            creates_per_frame: 8192,
            tokens_max: 16_384,
            transfer_bytes_max: 1 << 20,
            grid: GridConfig::default(),
            lod: None,
        }
    }
}

/// Names a connection of a [`Server`](crate::Server): a place, and a generation that tells apart
/// the connections that had the place one after the other. The id of an ended connection names
/// nothing for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// An id from its parts. Whether it names a connection shows on use.
    #[must_use]
    pub const fn from_parts(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Place among the connections, below [`ServerConfig::connections_max`]; used again when the
    /// connection ends.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Count of the connections that had the place before.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    pub(crate) const fn at(self) -> usize {
        self.index as usize
    }
}

/// Names a prioritiser of a [`Server`](crate::Server).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrioritiserId(pub(super) u8);

/// Names a filter of a [`Server`](crate::Server).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterId(pub(super) u8);

/// The dynamic filter of an object.
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
    /// In scope of connections with one of these teams, bit by bit; see
    /// [`Server::set_teams`](crate::Server::set_teams).
    Teams(u64),
    /// The game's; see [`Server::add_filter`](crate::Server::add_filter).
    Custom(FilterId),
}

/// Why an object left a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DestroyReason {
    /// It no longer exists.
    Destroyed = 0,
    /// The receiver may no longer see it.
    OutOfScope = 1,
    /// The replica lives on without replication, with the last state, which its end carries.
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
    /// A property changed that was never marked; see [`ServerConfig::verify_push`]. It is sent
    /// nevertheless.
    UnmarkedChange {
        /// Which object.
        handle: Handle,
        /// Its class.
        class: ClassId,
        /// Which property.
        property: usize,
    },
    /// A client's input, at most once, in order.
    Input(ConnId, Vec<u8>),
    /// Reliable attachments were not confirmed before their object ended. Those that were on their
    /// way may have arrived with or before the end, the others never will.
    AttachmentsDropped {
        /// Receiver of the calls.
        connection: ConnId,
        /// Object that ended.
        object: Handle,
        /// Count of the calls.
        count: usize,
    },
    /// The connection acknowledged nothing for [`ServerConfig::unresponsive_after`] though packets
    /// were in flight, or never the end of an object. The server has ended it.
    Unresponsive(ConnId),
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
    /// The object is of another class than the value.
    #[error("the object has another class")]
    OtherClass,
    /// No such property.
    #[error("the class has no property {0}")]
    UnknownProperty(usize),
    /// The value does not fit.
    #[error("property {0}: {1}")]
    Value(usize, ValueMismatch),
    /// At [`ServerConfig::objects_max`].
    #[error(
        "all {0} indices are in use, by objects or by ended ones whose end is unconfirmed; raise objects_max"
    )]
    TooMany(u32),
    /// It would lead back to where it began, or too deep, or has too many beside it.
    #[error("the relation would form a circle, be deeper than 8, or be the 256th of its parent")]
    Relation,
    /// No such prioritiser.
    #[error("the prioritiser does not exist on this server")]
    Prioritiser,
    /// The class fixes the condition of the property, or the chosen one is not possible:
    /// [`Dynamic`](crate::Condition::Dynamic) or a group above 63.
    #[error("the condition of property {0} is not dynamic, or not one of those that can be chosen")]
    Condition(usize),
    /// The name of a startup object is in use, or its object has ended; or a startup object cannot
    /// have an archetype.
    #[error("the name is or was in use, or the object already has a name")]
    Name,
    /// The text gets no number.
    #[error(transparent)]
    Token(#[from] crate::tokens::TokenError),
    /// An element of a keyed array.
    #[error(transparent)]
    Element(crate::keyed::ElementError),
    /// A connection was named that does not exist.
    #[error("the connection does not exist")]
    UnknownConnection,
    /// No transfer holds the object with this value.
    #[error(
        "property {property}: with it the object takes up to {bytes} bytes, above transfer_bytes_max, {max}; \
         shorten the value, raise the limit on both sides or split the object"
    )]
    TooLong {
        /// Property that was set.
        property: usize,
        /// Bytes of the object's longest record.
        bytes: usize,
        /// [`ServerConfig::transfer_bytes_max`].
        max: usize,
    },
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
    /// Groups of 64 objects that were looked at because something of them changed and something is
    /// in scope.
    pub words_seen: u64,
    /// Objects of the grid whose distance to a view was tested, summed over frames: those in the
    /// cells around it.
    pub objects_tested: u64,
    /// Common records copied.
    pub records_copied: u64,
    /// Record variants found in the cache.
    pub records_hit: u64,
    /// Record variants built.
    pub records_built: u64,
    /// Create items written.
    pub creates: u64,
    /// Operations on elements of keyed arrays written.
    pub elements_sent: u64,
    /// Destroy items written.
    pub destroys: u64,
    /// Parts of creations and updates that fit no packet.
    pub parts_sent: u64,
    /// Such creations and updates that have arrived.
    pub transfers: u64,
    /// Attempts to send what exceeds [`ServerConfig::transfer_bytes_max`].
    pub oversized: u64,
    /// Strings of tokens written.
    pub tokens_sent: u64,
    /// Frames in which something found no room: the budget did not suffice, or too many packets
    /// were in flight.
    pub budget_saturated_frames: u64,
    /// Most frames that a change has waited for room, or for its priority, before it was written.
    pub starvation_frames_max: u64,
    /// Packets discarded because a newer one had been applied.
    pub packets_stale: u64,
    /// Calls of the client that were dropped because it neither owns the object nor sees a callable
    /// one.
    pub calls_refused: u64,
    /// Unreliable calls to the client that were dropped before they were sent: the object was out
    /// of scope, more than 16 waited, or the burst of the budget holds no packet with the call.
    pub calls_dropped: u64,
    /// Whole states that were sent because the client asked for them.
    pub resets: u64,
    /// Round-trip time, smoothed over eight samples; zero before the first acknowledgement. Its
    /// resolution is the time between frames: an answer within the frame counts as no time. In a
    /// sum over connections the largest.
    pub rtt: Duration,
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
    /// Change marks of objects that do not exist.
    pub stale_marks: u64,
    /// Changes that were never marked, with [`ServerConfig::verify_push`].
    pub unmarked_changes: u64,
    /// Numbers that were not numbers.
    pub nans: u64,
    /// Packets from peers that were refused.
    pub decode_errors: u64,
    /// Classes that a peer describes differently, summed over peers.
    pub protocol_mismatches: u64,
    /// Relations of objects that ended: parts, dependents, creation parents.
    pub relations_ended: u64,
}

/// Reason to refuse a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolMismatch {
    /// The peer speaks another version of the wire format.
    #[error(
        "protocol_mismatch: the peer speaks version {theirs}, this server {ours}; update the older of the two"
    )]
    Version {
        /// Version of the peer.
        theirs: u16,
        /// [`PROTOCOL_VERSION`](crate::wire::PROTOCOL_VERSION).
        ours: u16,
    },
    /// The peer describes a required class differently.
    #[error("protocol_mismatch: the peer's description of the required class {class} differs")]
    Class {
        /// Name of the class.
        class: String,
    },
}
