//! The core of a cluster: nodes, the homes of worlds, and the lease of an area.
//!
//! The *directory* is a set of records, each with a revision, in which every write is a
//! compare-and-set on the revision that the writer has read. Nodes coordinate by these records
//! alone; no decision waits for an answer from another node.
//!
//! - [`Node`]: one node of a cluster. It holds its name by a lease, knows all records, assigns
//!   worlds to nodes and serves those that are assigned to it.
//! - [`Lease`]: the lease of one area without a cluster: one process serves it, the others wait.
//! - [`NodeRecord`], [`WorldRecord`], [`ClusterRecord`], [`DrainRecord`], [`PermitRecord`],
//!   [`Record`]: the values of the directory, JSON objects of at most [`RECORD_BYTES_MAX`] bytes.
//!   Their decoders are total, and fields that this release does not know are kept. [`Key`] is the
//!   name of a record.
//!
//! # Driving a node
//!
//! After each input, drain [`Node::poll_event`] and [`Node::poll_request`] until `None`, and
//! publish [`Node::incarnation`] and [`Node::serves_until`] to other threads.
//!
//! - [`Node::handle_record`]: a record from the watch, in the order of the watch.
//!   [`Node::handle_gap`], [`Node::handle_synced`], [`Node::handle_rewound`]: the state of the
//!   watch. It begins with a gap.
//! - [`Node::handle_result`]: the outcome of a request, exactly once for each [`DirectoryRequest`],
//!   after 2 s at most. There is at most one request per key at a time.
//! - [`Node::handle_timeout`]: time has passed; [`Node::next_timeout`] returns when it is next due.
//! - [`Node::handle_arrival`], [`Node::handle_departure`]: a connection wants into a world.
//! - [`Node::handle_open`], [`Node::handle_close`], [`Node::handle_drain`],
//!   [`Node::handle_undrain`], [`Node::handle_stop`]: acts of operators.
//! - [`Node::handle_opened`], [`Node::handle_frozen`], [`Node::handle_players`],
//!   [`Node::handle_load`], [`Node::handle_classes`]: reports of the driver.
//!
//! `now` includes suspended time (`CLOCK_BOOTTIME`) and never goes back. A thread that serves
//! worlds compares [`Node::serves_until`] with its clock before every round, so a process that
//! stood still freezes before it sends anything. It serves only worlds of the published
//! incarnation.
//!
//! # Times
//!
//! They are constants, because other ratios broke promises in a model. A holder renews every second
//! and stops serving [`FREEZE`] (11 s) after it *sent* its last successful renewal. Other processes
//! mark a record as lost if it has not changed for [`LOSS`] (15 s) by their own clock, which counts
//! only while the directory answers them. An observer can see a revision only after it was sent, so
//! the holder's clock has counted at least as long and the holder stops first, unless one clock
//! runs 36% faster than the other. Worlds of a node are claimed only after the mark.
//!
//! # Writes without an answer
//!
//! They may still be applied, so a node sends them again *unchanged*, with the same nonce, until
//! they succeed or are refused. After a refusal it reads the record: its own nonce means that an
//! earlier attempt had succeeded, and the time of the first attempt counts. A world stops before
//! a record that names another home for it is sent.
//!
//! # Choices beyond the specification
//!
//! - The holder of a node's name is alive after three changes of its record, not one: a process
//!   that has just died may leave two writes that are read late or applied late.
//! - A write that creates a record may be based on the mark of a deletion instead (and the reverse)
//!   with its nonce unchanged, if its epoch is behind the deletion.
//! - A home whose record the directory has lost entirely is marked like a silent one, and so is a
//!   home whose record cannot be read: every release of a format renews by the same times. Without
//!   worlds such a record is left alone.
//! - A node whose driver cannot make a world announces for 5 s that it has no room, else two such
//!   nodes pass a world to and fro.
//! - A draining node keeps a world for which no other node has room.
//! - A world whose class no node has with the same settings any more gets those of its next home;
//!   otherwise a change of the settings on all nodes would leave it without one.
//! - A wish to close a world lapses after 10 s in which the directory answers, so it does not end a
//!   world that opens minutes later, and outlasts a directory that is away.
//! - A class with a limit of worlds has that many permits (`permit.<class>.<number>`), and a node
//!   takes one before it opens a world of the class. A count of the records would be exceeded by
//!   nodes that open worlds at the same time.
//!
//! A driver must report lost writes of the directory ([`Node::handle_rewound`]); without that, a
//! record that went back is taken for an old read.
#![forbid(unsafe_code)]

mod cas;
mod defect;
mod directory;
mod lease;
mod name;
mod node;
mod record;
mod times;

#[doc(hidden)]
pub use defect::Defect;
pub use directory::{Action, DirectoryRequest, DirectoryResult, RequestId};
pub use lease::{Event as LeaseEvent, Lease, Request, Written};
pub use name::{Key, Name};
pub use node::{Answer, ArrivalId, Class, EndReason, Event, Failure, Node, Refusal, Setup, Stats};
pub use record::{
    Address, ClusterRecord, DrainRecord, Home, Identity, NodeRecord, NodeState, Opener, PermitRecord,
    RECORD_BYTES_MAX, Record, State, Takeover, WorldRecord, WorldState,
};
pub use times::{FREEZE, LOSS};
