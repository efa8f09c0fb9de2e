//! The matcher's framed RPC: frames, the catalogue of methods and bodies, and their encoding.
//!
//! A connection is a stream of frames, each a 20-byte [`Header`] and a body. Bodies are protobuf.
//! [`METHODS`], [`EVENTS`] and the [`Message`]s that they name define the content of every body.
//! The JSON interface, the `.proto` file and the reference page are generated from these tables,
//! and tests compare the hand-written decoders with them.
//!
//! ```
//! use throng_wire::matcher::{FrameSplit, Header, Kind, Method, split};
//!
//! let mut wire = Vec::new();
//! Header { kind: Kind::Request, code: Method::PING, id: 7, extra: 0, ..Header::default() }.write(&mut wire, b"");
//! match split(&wire, 1 << 20)? {
//!     FrameSplit::Whole { header, body, used } => {
//!         assert_eq!((header.code, header.id, body.len(), used), (Method::PING, 7, 0, wire.len()));
//!     }
//!     FrameSplit::Partial { .. } => unreachable!("the frame is whole"),
//! }
//! # Ok::<(), throng_wire::matcher::BadFrame>(())
//! ```

mod body;
mod catalogue;
mod document;
mod frame;
mod status;

pub use body::{
    Reader, Writer, bytes_field_len, write_bool, write_bytes, write_f64, write_nested, write_u64,
};
pub use catalogue::{
    Access, EVENTS, Event, FieldDef, METHODS, Message, Method, POLICY_QUESTION, POLICY_VERDICT,
    REQUEST_KEY_FIELD, Type, event, messages, method, method_named,
};
pub use document::{proto_file, reference_page};
pub use frame::{
    BadFrame, FRAME_BODY_BYTES_MAX, FrameSplit, HEADER_BYTES, Header, Kind, PROTOCOL_VERSION, flags, split,
};
pub use status::{STATUSES, Status};
