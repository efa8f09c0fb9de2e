//! The wire format of the channel gateway: frames, packets, messages and recordings, without I/O.
//!
//! A connection is a stream of **frames**, each a 5-byte tag and a **packet**; a packet holds
//! **messages**; a message names a channel and a type and carries a body. `docs/wire-format.md`
//! specifies the layout.
//!
//! # Reading
//!
//! Give every connection a [`FrameReader`] and feed it the bytes of the transport, in pieces of any
//! size; it calls back with each [`Packet`], whose [`MessagePack`]s borrow from the input. Frames
//! that arrive whole are never copied, and a reader owns no memory between frames. A [`FrameError`]
//! ends the connection, because the start of the next frame is unknown. Readers of many connections
//! share one [`frame::Scratch`] for decompression.
//!
//! Bodies are read according to [`MessagePack::msg_type`]: [`Forward`] and [`DataUpdate`] in place,
//! because they are nearly all traffic, and everything else through the structs of [`channeldpb`]
//! and [`unrealpb`]. [`fields`] iterates over messages without a schema.
//!
//! # Writing
//!
//! [`write_entry`] and its relatives append messages to a packet, with bodies copied or produced in
//! place, and the `*_len` functions return the size in advance. [`FrameWriter`] packs messages into
//! frames of the right size; [`frame::tag`] and [`frame::legacy_padding`] are for callers that
//! assemble a frame from pieces.
//!
//! Towards a peer these rules hold: no compressed frame before [`FrameReader::peer_compresses`], no
//! packet over [`frame::PACKET_BYTES_SEND_MAX`], and while [`FrameReader::form`] is not
//! [`frame::Form::Current`] none of a size that [`frame::is_ambiguous_for_legacy`]. [`FrameWriter`]
//! obeys them once the caller has set the state of the peer.
//! # Cost
//!
//! Reading a frame of 8 messages and 608 bytes takes about 100 ns, writing its messages 85 ns, and
//! both allocate nothing (`cargo bench -p throng-wire`, one core of an AMD EPYC). Every decoder is
//! total: any bytes give a value or an error, in time and memory proportional to the input. A
//! Snappy block's declared length is checked before memory is allocated.
//! # Not covered
//!
//! Bodies are not checked: a message with an invalid body reaches the caller. Encodings are
//! not canonical, so compare decoded messages, never bytes. There is no checksum: the transport is
//! trusted to deliver what was sent.
//!
//! [`cpr`] reads and writes recorded sessions.
//!
//! # Example
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
pub mod matcher;
mod packet;
pub mod proto;
mod varint;

pub use body::{
    AnyRef, DataUpdate, Forward, data_update_entry_len, forward_entry_len, write_data_update_entry,
    write_data_update_entry_with, write_data_update_head, write_forward_entry,
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
