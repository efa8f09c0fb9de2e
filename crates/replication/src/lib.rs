//! State replication: an authoritative server brings the replicas of its clients up to date over an
//! unreliable transport, within a byte budget each.
//!
//! Everything that does not depend on the connection is done once a frame (the *shared stage*):
//! values that were set are quantised, compared, and written as records. Then each connection (the
//! *connection stage*) determines its visible objects and copies records. An unchanged object costs
//! each stage at most a bit; a changed object without viewers is not written.
//!
//! - [`Class`] describes a type: its properties, their sizes in bits, and their receivers.
//! - [`Server`] holds objects and connections and writes packets.
//! - [`Client`] takes packets and holds replicas.
//!
//! None of them uses a socket or a clock: packets are byte slices, and time is an argument.
//!
//! # Replicate your first object
//!
//! ```
//! use throng_replication::{
//!     Axis, Class, Classes, Client, ClientConfig, Property, Quantiser, Server, ServerConfig, Value, View,
//! };
//! use throng_replication::Instant;
//!
//! // Both sides describe the same classes in the same order.
//! let metres = Axis::new(-5242.88, 0.01, 20);
//! let mut classes = Classes::new();
//! let character = classes.register(
//!     Class::builder("character")
//!         .property(Property::new("position", Quantiser::Vec3([metres; 3])).world_position())
//!         .property(Property::new("health", Quantiser::UInt(10)))
//!         .cull_distance(250.0)
//!         .build()?,
//! )?;
//!
//! let mut server = Server::new(ServerConfig::default(), &classes);
//! let mut client = Client::new(ClientConfig::default(), &classes);
//! let player = server.connect().expect("a server for thousands");
//! server.set_views(player, &[View { position: [0.0, 0.0, 1.8], ..View::default() }]);
//!
//! let ogre = server.create(character)?;
//! server.set(ogre, 0, [12.0_f32, 5.0, 0.0])?;
//! server.set(ogre, 1, 900_u32)?;
//!
//! // One frame: the packets of each connection go to its transport, here straight to the client.
//! server.tick(Instant::from_millis(33), |packets| {
//!     for packet in packets.iter() {
//!         client.receive(packet).expect("the server's packets are right");
//!     }
//! });
//! // The client answers, so that the server knows what arrived.
//! if let Some(answer) = client.poll_packet(Instant::from_millis(40)) {
//!     server.receive(player, answer)?;
//! }
//! let replica = client.replica(ogre.index()).expect("it is 13 metres away");
//! assert_eq!(replica.value(1), Some(Value::UInt(900)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A struct can describe itself instead: see [`Replicate`].
//!
//! # Guarantees
//!
//! An object that stops changing becomes bit for bit identical on every receiver that has it in
//! scope, despite loss, duplication and reordering, as long as some packets arrive. Properties that
//! a condition, a band of detail, dormancy, a hidden reference or a temporary class withholds are
//! excepted, and objects to which a prioritiser gives no priority at all. A value is resent only
//! after a loss, and then the current value is sent, not the old one: a replica never goes back.
//! Intermediate values may be skipped, and two properties that changed together may arrive apart
//! when a packet is lost. An [atomic](ClassBuilder::atomic) class resends them together; a change
//! after the lost one may still arrive before it.
//!
//! # Scope
//!
//! Objects are in scope of views within their cull distance ([`Filter::Grid`]), of all connections,
//! or of none. Owners, lists of connections and groups decide before that, and [`Condition`]s
//! decide property by property. Parts enter and leave the scope with their object:
//!
//! ```
//! # use throng_replication::*;
//! # let xy = Axis::new(-1000.0, 0.01, 18);
//! # let mut classes = Classes::new();
//! # let place = Property::new("position", Quantiser::Vec3([xy; 3])).world_position();
//! # let class = classes.register(Class::builder("thing").property(place).build()?)?;
//! # let mut server = Server::new(ServerConfig::default(), &classes);
//! # let player = server.connect().expect("the first");
//! let (knight, horse) = (server.create(class)?, server.create(class)?);
//! // A part: where the knight is, created after it, destroyed with it.
//! let sword = server.create_part(knight, class)?;
//! // Another object that must not be missing where the knight is.
//! server.add_dependent(knight, horse, Hint::After)?;
//! // The owner has its character in scope wherever it looks from.
//! server.set_owner(knight, Some(player))?;
//! // Nobody but the owner sees this one.
//! let map = server.create(class)?;
//! server.set_owner(map, Some(player))?;
//! server.set_only_to_owner(map, true)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Budget and level of detail
//!
//! With a budget the highest accumulated priority goes first, and what has to wait is sent later
//! with the value of then. With bands of detail far objects are sent less often, which saves the
//! server's time as well: all connections that see an object from one band share its records.
//!
//! ```
//! # use throng_replication::*;
//! # let classes = Classes::new();
//! // 20 Hz up to 10 m, 10 Hz up to 50 m, 1 Hz beyond; a frame is a thirtieth of a second.
//! let config = ServerConfig { lod: Some(LodProfile::reference()), ..ServerConfig::default() };
//! let mut server = Server::new(config, &classes);
//! let player = server.connect().expect("the first");
//! // 32,000 bytes a second, a tenth of a second saved up at most. Packets count with what IP and UDP add.
//! server.set_budget(player, Some((32_000.0, 3_200.0)));
//! // Near objects first: priority 1 within 20 m, falling to 0.2 at 100 m.
//! let near_first = server.add_prioritiser(Prioritiser::Sphere(Sphere::default())).expect("the first of 255");
//! # let _ = near_first;
//! ```
//!
//! # Beyond the usual
//!
//! | A game that has | uses |
//! |---|---|
//! | state of its own, changed without [`Server::set`] | [`Server::set_poll`], [`Server::force_update`]; [`Server::marker`] from other threads |
//! | calls and events on an object | [`Server::attach`], [`Client::attach`]: reliable in order, or at most once |
//! | input of players | [`Client::send_input`], [`Event::Input`] |
//! | inventories, score boards, anything with keys | [`Keyed`] arrays: what changed is sent, whatever their length |
//! | values that no [`Quantiser`] fits | [`CustomQuantiser`] |
//! | fog of war, lines of sight | [`CustomFilter`], asked every k frames for 64 objects at once |
//! | teams, spectator cameras | [`Filter::Teams`], [`Server::set_areas`] |
//! | properties whose audience changes | [`Condition::Dynamic`] with [`Server::set_condition`], [`Condition::Group`] |
//! | crowds of equals | [`CountLimiter`]: so many a frame, in turn |
//! | links of unknown width | [`Server::set_adaptive_budget`] |
//! | names, materials, whatever is a string | [`Quantiser::Token`] with [`Server::intern`]: the text goes out once |
//! | objects in its map | [`Server::create_startup`]: bound by name, never spawned, and their end is remembered |
//! | objects larger than a packet | nothing: they go in parts, while the others go on |
//! | a player's own character | [`Prediction`]; for the others [`Snapshots`] |
//! | forgotten marks | [`ServerConfig::verify_push`] |
//! | a dashboard | [`Server::write_metrics`], [`ServerConfig::class_stats`] |
//!
//! # What it costs
//!
//! The shared stage costs some nanoseconds for each property that was set and 100 to 200 for each
//! object that changed; the connection stage around 200 nanoseconds for each connection and 10 for
//! each record. Clean objects cost neither. A frame in steady state allocates nothing.
//! `docs/replication.md` has the wire format, figures, and what of the design is not built.

#![forbid(unsafe_code)]

mod attach;
mod bitmap;
pub mod bits;
mod class;
mod client;
mod connection;
mod field;
mod frames;
mod grid;
mod handle;
mod interest;
mod keyed;
mod lod;
mod objects;
mod pairs;
mod predict;
mod priority;
mod quantise;
mod sent;
mod server;
mod tokens;
mod typed;
pub mod wire;

pub use attach::{AttachError, Attachment};
pub use class::{
    Call, Class, ClassBuilder, ClassError, ClassId, Classes, Condition, Direction, PROPERTIES_MAX, Property,
    Protocol, Role,
};
pub use client::{Client, ClientConfig, ClientEvent, InputError, Received, Replica};
pub use field::{Field, FieldReader, VariantReader};
pub use grid::GridConfig;
pub use handle::{Any, Handle};
pub use interest::{Area, CustomFilter, FilterBatch, Shape};
pub use keyed::{ELEMENT_FIELDS_MAX, ElementError, Keyed};
pub use lod::{BANDS_MAX, Band, LodProfile};
pub use predict::{Pose, Prediction, Snapshots};
pub use priority::{CountLimiter, CustomPrioritiser, FieldOfView, LimitMode, Prioritiser, Sphere, View};
pub use quantise::{
    Axis, Codec, CustomQuantiser, Quantiser, QuantiserError, Value, ValueMismatch, WORDS_MAX,
};
pub use sent::Adaptive;
pub use server::{
    ClassStats, ConnId, ConnectionStats, DestroyReason, Event, FRAME_INTERVAL, Filter, FilterId, GroupKind,
    Hint, Lane, Marker, ObjectError, Packets, PrioritiserId, ProtocolMismatch, Server, ServerConfig,
    ServerStats, properties_of,
};
/// Implement the traits of the same names; their options are described there.
pub use throng_replication_derive::{Call, Element, Field, Replicate};
/// A time that the driver gives: nanoseconds since a start of its choice.
pub use throng_stdx::Instant;
pub use tokens::{TOKEN_BYTES_MAX, TokenError};
pub use typed::{CallOn, Creation, Element, Ref, Replicate, TypedCall};
#[doc(hidden)]
pub use typed::{keyed_of, read_elements, read_field, write_elements};
