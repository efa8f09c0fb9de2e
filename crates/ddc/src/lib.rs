//! Core of the derived-data cache, without disk, sockets or clock.
//!
//! A *blob* is bytes under their [`IoHash`]. An *object* is a blob in compact binary
//! ([`Document`]); its *attachments* name blobs and other objects. A *ref* gives an object a name
//! (namespace, bucket, key) and is *finalised* once everything it reaches is stored ([`Closure`]).
//! Large data travels in *compressed buffers* ([`compressed`]) that are found by the hash of their
//! raw content, and an object with all its attachments in a *package* ([`package`]).
//!
//! Decoders are total: any bytes give a value or an error, in time linear in the input, and no
//! memory is allocated on the word of a length field. Time is an argument ([`Timestamp`]).
//!
//! ```
//! use throng_ddc::{Document, IoHash, Style, Value};
//! let value = Value::object([("RawHash", Value::BinaryAttachment(IoHash::of(b"test"))), ("RawSize", Value::Integer(4))]);
//! let bytes = value.encode(Style::Plain);
//! assert_eq!(IoHash::of(&bytes).to_string(), "7d873dcc262f62fbaa871fe61b2b52d715a1171e");
//! let document = Document::parse(&bytes)?;
//! assert_eq!(document.attachments()[0].hash, IoHash::of(b"test"));
//! assert_eq!(document.to_json(), r#"{"RawHash":"4878ca0425c739fa427f7eda20fe845f6b2e46ba","RawSize":4}"#);
//! # Ok::<(), throng_ddc::Defect>(())
//! ```
#![forbid(unsafe_code)]

pub mod api;
pub mod batch;
mod cb;
mod closure;
pub mod compressed;
pub mod gc;
mod hash;
mod ident;
pub mod package;
pub mod policy;
mod time;
mod varuint;

pub use cb::{
    Attachment, AttachmentKind, DEPTH_MAX, Defect, Defects, Document, Field, Fields, JsonWriter, Kind, Style,
    Value, check,
};
pub use closure::{Closure, Resolution};
pub use hash::{Hasher, IoHash, ParseHashError};
pub use ident::{Bucket, IdentError, Key, Namespace};
pub use time::Timestamp;
pub use varuint::{read_varuint, write_varuint};
