//! Whole frames from messages: for clients, tools and tests, and the gateway's rare contiguous
//! frames.

use crate::{
    frame::{
        Compression, Form, PACKET_BYTES_MAX, PACKET_BYTES_SEND_MAX, TAG_BYTES, is_ambiguous_for_legacy,
        legacy_padding, legacy_tag, tag,
    },
    packet::{MessagePack, entry_len, write_entry, write_message_entry},
};

/// A Snappy encoder with its memory, shared by any number of connections.
#[derive(Debug)]
pub struct Compressor {
    encoder: snap::raw::Encoder,
    block: Vec<u8>,
}

impl Default for Compressor {
    fn default() -> Compressor {
        Compressor::new()
    }
}

impl Compressor {
    /// A compressor that owns no memory yet.
    #[must_use]
    pub fn new() -> Compressor {
        Compressor { encoder: snap::raw::Encoder::new(), block: Vec::new() }
    }

    /// Compresses `packet`. `None` if the block is not smaller than the packet or does not fit a
    /// frame; the packet is then sent uncompressed (each frame has a flag for compression).
    #[must_use]
    pub fn compress(&mut self, packet: &[u8]) -> Option<&[u8]> {
        let len_max = snap::raw::max_compress_len(packet.len());
        if self.block.len() < len_max {
            self.block.resize(len_max, 0);
        }
        let len = self.encoder.compress(packet, &mut self.block).ok()?;
        (len < packet.len() && len <= PACKET_BYTES_MAX).then(|| &self.block[..len])
    }
}

/// Appends one frame that holds `packet` (a sequence of entries) to `out`.
///
/// With a `compressor`, the packet is compressed if that makes it smaller. `reader_form` is the
/// form of the peer that will read the frame: unless it is known to be current it gets no frame
/// that a legacy reader would misread (compression is dropped or the packet padded, if need be).
///
/// # Panics
/// If `packet` is empty or larger than [`PACKET_BYTES_MAX`].
pub fn write_frame(out: &mut Vec<u8>, packet: &[u8], compressor: Option<&mut Compressor>, reader_form: Form) {
    let misread = |size| reader_form != Form::Current && is_ambiguous_for_legacy(size);
    if let Some(block) = compressor.and_then(|compressor| compressor.compress(packet))
        && !misread(block.len())
    {
        out.extend_from_slice(&tag(block.len(), Compression::Snappy));
        out.extend_from_slice(block);
        return;
    }
    let padding = if misread(packet.len()) { legacy_padding(packet.len()) } else { &[] };
    let size = packet.len() + padding.len();
    out.reserve(TAG_BYTES + size);
    out.extend_from_slice(&tag(size, Compression::None));
    out.extend_from_slice(packet);
    out.extend_from_slice(padding);
}

/// A message that fits no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("message of {size} bytes exceeds the limit of {limit}; split it")]
pub struct MessageTooLarge {
    /// Bytes of the message as a packet entry.
    pub size: usize,
    /// Bytes accepted.
    pub limit: usize,
}

/// Packs messages into frames, as many as fit into each.
///
/// ```
/// use throng_wire::{FrameWriter, MessagePack};
///
/// let mut writer = FrameWriter::new();
/// let mut wire = Vec::new();
/// writer.push(&MessagePack { msg_type: 100, body: b"move", ..Default::default() }, &mut wire)?;
/// writer.flush(&mut wire);
/// assert_eq!(wire, b"CH\x00\x0a\x00\x0a\x08\x20\x64\x2a\x04move");
/// # Ok::<(), throng_wire::MessageTooLarge>(())
/// ```
#[derive(Debug)]
pub struct FrameWriter {
    /// Entries of the frame that is being filled.
    packet: Vec<u8>,
    packet_bytes_max: usize,
    compressor: Option<Compressor>,
    reader_form: Form,
    writes_legacy: bool,
}

impl Default for FrameWriter {
    fn default() -> FrameWriter {
        FrameWriter::new()
    }
}

impl FrameWriter {
    /// A writer of uncompressed frames with current tags.
    #[must_use]
    pub fn new() -> FrameWriter {
        FrameWriter {
            packet: Vec::new(),
            packet_bytes_max: PACKET_BYTES_SEND_MAX,
            compressor: None,
            reader_form: Form::Current,
            writes_legacy: false,
        }
    }

    /// Compresses from now on, or no longer.
    pub fn set_compression(&mut self, compression: Compression) {
        self.compressor = match compression {
            Compression::None => None,
            Compression::Snappy => Some(self.compressor.take().unwrap_or_default()),
        };
    }

    /// Says which form the peer reads; see [`write_frame`].
    pub fn set_reader_form(&mut self, form: Form) {
        self.reader_form = form;
    }

    /// Writes the tags of a legacy peer from now on, or no longer.
    pub fn set_writes_legacy(&mut self, writes_legacy: bool) {
        self.writes_legacy = writes_legacy;
    }

    /// Adds a message; if it does not fit the frame being filled, that one is appended to `out`
    /// first.
    ///
    /// # Errors
    /// A message that is too large for a frame of its own; nothing is added.
    pub fn push(&mut self, message: &MessagePack<'_>, out: &mut Vec<u8>) -> Result<(), MessageTooLarge> {
        self.make_room(entry_len(message), out)?;
        write_entry(&mut self.packet, message);
        Ok(())
    }

    /// As [`FrameWriter::push`], with a body that is serialized in place; `head.body` is ignored.
    ///
    /// # Errors
    /// As [`FrameWriter::push`].
    pub fn push_message(
        &mut self,
        head: &MessagePack<'_>,
        body: &impl prost::Message,
        out: &mut Vec<u8>,
    ) -> Result<(), MessageTooLarge> {
        self.make_room(crate::packet::entry_len_with(head, body.encoded_len()), out)?;
        write_message_entry(&mut self.packet, head, body);
        Ok(())
    }

    /// As [`FrameWriter::push`], with a finished entry.
    ///
    /// # Errors
    /// As [`FrameWriter::push`].
    pub fn push_entry(&mut self, entry: &[u8], out: &mut Vec<u8>) -> Result<(), MessageTooLarge> {
        self.make_room(entry.len(), out)?;
        self.packet.extend_from_slice(entry);
        Ok(())
    }

    /// Appends the frame being filled to `out`; nothing if it is empty.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if self.packet.is_empty() {
            return;
        }
        let start = out.len();
        write_frame(out, &self.packet, self.compressor.as_mut(), self.reader_form);
        if self.writes_legacy {
            let size = out.len() - start - TAG_BYTES;
            let compression = if out[start + 4] == 0 { Compression::None } else { Compression::Snappy };
            out[start..start + TAG_BYTES].copy_from_slice(&legacy_tag(size, compression));
        }
        self.packet.clear();
    }

    fn make_room(&mut self, entry_len: usize, out: &mut Vec<u8>) -> Result<(), MessageTooLarge> {
        if entry_len > self.packet_bytes_max {
            return Err(MessageTooLarge { size: entry_len, limit: self.packet_bytes_max });
        }
        if self.packet.len() + entry_len > self.packet_bytes_max {
            self.flush(out);
        }
        Ok(())
    }
}
