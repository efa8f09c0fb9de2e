//! The wire format of the channel gateway: frames, packets, messages and recordings, without I/O.
//!
//! A connection is a stream of **frames**, each a 5-byte tag and a **packet**; a packet holds **messages**; a message
//! names a channel and a type and carries a body. Byte by byte this is laid out in `docs/wire-format.md`.
//!
//! - [`frame::FrameReader`] cuts what a transport delivers into packets, whatever the pieces.
//! - [`Packet`] and [`MessagePack`] read the envelope in place; bodies stay borrowed bytes.
//! - [`write_entry`] and its relatives append messages to a packet; [`FrameWriter`] makes frames of them.
//! - [`channeldpb`] and [`unrealpb`] hold the bodies as structs, for all that is not on the hot path.
//! - [`cpr`] reads and writes recorded sessions.
//!
//! Every decoder is total: any bytes give a value or an error, in time and memory proportional to the input.
//!
//! ```
//! use prost::Message;
//! use std::ops::ControlFlow;
//! use throng_wire::{FrameWriter, MessagePack, channeldpb, frame::FrameReader};
//!
//! // A peer asks to be authenticated ...
//! let body = channeldpb::AuthMessage { player_identifier_token: "ann".into(), ..Default::default() };
//! let head = MessagePack { stub_id: 1, msg_type: channeldpb::MessageType::Auth as u32, ..Default::default() };
//! let (mut writer, mut wire) = (FrameWriter::new(), Vec::new());
//! writer.push_message(&head, &body, &mut wire)?;
//! writer.flush(&mut wire);
//!
//! // ... and the gateway reads it.
//! let mut reader = FrameReader::default();
//! reader.feed(&wire, &mut |packet| {
//!     for message in packet.messages() {
//!         let auth = channeldpb::AuthMessage::decode(message.body).expect("an AuthMessage");
//!         assert_eq!((message.stub_id, auth.player_identifier_token.as_str()), (1, "ann"));
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!(reader.packets(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod body;
pub mod cpr;
mod encode;
mod field;
pub mod frame;
mod packet;
pub mod proto;
mod varint;

pub use body::{
    AnyRef, DataUpdate, Forward, data_update_entry_len, forward_entry_len, write_data_update_entry,
    write_data_update_entry_with, write_forward_entry,
};
pub use encode::{Compressor, FrameWriter, MessageTooLarge, write_frame};
pub use field::{Field, Fields, GROUP_DEPTH_MAX, WireError, WireType, fields, read_field};
pub use frame::{FrameError, FrameReader};
pub use packet::{
    MessagePack, Messages, Packet, entry_len, entry_len_with, write_entry, write_entry_with,
    write_message_entry,
};
pub use proto::{channeldpb, replaypb, unrealpb};
pub use varint::{VARINT_BYTES_MAX, read_varint, read_varint_at, varint_len, write_varint};
