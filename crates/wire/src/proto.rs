//! The protocol's messages: proto sources and the Rust types generated from them.

/// Messages of the gateway itself: envelope, control messages, enums.
#[allow(
    missing_docs,
    reason = "generated; messages are documented in channeld.proto, fields name themselves"
)]
pub mod channeldpb {
    include!("generated/channeldpb.rs");
}

/// Recordings of client sessions; see also [`crate::cpr`].
#[allow(missing_docs, reason = "generated; documented in replay.proto")]
pub mod replaypb {
    include!("generated/replaypb.rs");
}

/// Messages of the Unreal plugin.
#[allow(missing_docs, reason = "generated; documented in unreal_common.proto")]
#[allow(non_camel_case_types, reason = "RPC parameter types are named as in Unreal")]
pub mod unrealpb {
    include!("generated/unrealpb.rs");
}

/// The type of the `google.protobuf.Any` fields in the generated messages; [`crate::AnyRef`] reads
/// one in place.
pub use prost_types::Any;

/// An `Any` of serialized bytes. `type_url` is the whole URL, `type.googleapis.com/<full name>`
/// towards stock peers.
#[must_use]
pub fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any { type_url: type_url.to_owned(), value }
}

/// Source of `channeld.proto`, for compiling schemas that import it.
pub const CHANNELD_PROTO: &str = include_str!("../proto/channeld.proto");
/// Source of `unity_common.proto`.
pub const UNITY_COMMON_PROTO: &str = include_str!("../proto/unity_common.proto");
/// Source of `unreal_common.proto`.
pub const UNREAL_COMMON_PROTO: &str = include_str!("../proto/unreal_common.proto");
/// Source of `replay.proto`.
pub const REPLAY_PROTO: &str = include_str!("../proto/replay.proto");

/// Name and source of every built-in proto file, each after those it imports.
pub const PROTO_FILES: [(&str, &str); 4] = [
    ("channeld.proto", CHANNELD_PROTO),
    ("unity_common.proto", UNITY_COMMON_PROTO),
    ("unreal_common.proto", UNREAL_COMMON_PROTO),
    ("replay.proto", REPLAY_PROTO),
];
