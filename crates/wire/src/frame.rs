//! Frames: a 5-byte tag and a packet, in the current and in the legacy form.
//!
//! ```text
//! current   43 48 size>>8 size compression | size bytes         1 ..= 65535
//! legacy    43 48 4E      size compression | size bytes         1 ..= 255
//!           43 48 size>>8 size compression | size bytes         256 ..= 65535
//!           43 size>>16 size>>8 size compression | size bytes   65536 ..
//! ```
//!
//! [`FrameReader`] distinguishes the two forms per connection. The current tag is written to
//! every peer, because legacy readers understand it, except in the range of
//! [`is_ambiguous_for_legacy`].

use std::{mem, ops::ControlFlow};

use crate::{field::WireError, packet::Packet};

/// Bytes of a tag, in both forms.
pub const TAG_BYTES: usize = 5;
/// Largest packet a current tag can announce.
pub const PACKET_BYTES_MAX: usize = 65_535;
/// Largest packet to send: the Go client's buffer holds 65535 bytes *including* the tag. Spec:
/// gateway §2.2.
pub const PACKET_BYTES_SEND_MAX: usize = PACKET_BYTES_MAX - TAG_BYTES;

const MAGIC: [u8; 2] = *b"CH";
/// Third byte of a legacy tag for packets under 256 bytes.
const LEGACY_SHORT: u8 = b'N';

/// Compression of the bytes behind a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// One raw Snappy block (not the Snappy framing format).
    Snappy,
}

/// Which form of tag a peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Form {
    /// Nothing so far was written differently by the two.
    #[default]
    Undecided,
    /// Always two bytes of size.
    Current,
    /// One to three bytes of size, as up to v0.5.1: the Go client, the JavaScript client, the Unity
    /// transport.
    Legacy,
}

/// The current tag of a packet of `size` bytes (after compression).
///
/// # Panics
/// If `size` is not within 1 ..= [`PACKET_BYTES_MAX`].
#[must_use]
pub fn tag(size: usize, compression: Compression) -> [u8; TAG_BYTES] {
    assert!((1..=PACKET_BYTES_MAX).contains(&size), "a packet of {size} bytes has no tag");
    [MAGIC[0], MAGIC[1], (size >> 8) as u8, size as u8, compression as u8]
}

/// The tag a legacy peer writes; for tools that play one.
///
/// # Panics
/// If `size` is 0 or needs more than 24 bits.
#[must_use]
pub fn legacy_tag(size: usize, compression: Compression) -> [u8; TAG_BYTES] {
    match size {
        1..=0xFF => [MAGIC[0], MAGIC[1], LEGACY_SHORT, size as u8, compression as u8],
        0x100..=PACKET_BYTES_MAX => tag(size, compression),
        0x1_0000..=0xFF_FFFF => {
            [MAGIC[0], (size >> 16) as u8, (size >> 8) as u8, size as u8, compression as u8]
        }
        _ => panic!("a packet of {size} bytes has no legacy tag"),
    }
}

/// True if a legacy peer misreads the current tag of a packet of `size` bytes: 19968 ..= 20223,
/// whose third byte is an 'N'. Spec: gateway §2.5, rule 4.
#[must_use]
pub const fn is_ambiguous_for_legacy(size: usize) -> bool {
    size >> 8 == LEGACY_SHORT as usize
}

/// Ignorable bytes to append to a packet of `size` bytes so that it leaves the range of
/// [`is_ambiguous_for_legacy`]: unknown field 15 with the value 0, repeated. Empty outside the range.
#[must_use]
pub fn legacy_padding(size: usize) -> &'static [u8] {
    const FIELD: [u8; 2] = [15 << 3, 0];
    static PADDING: [[u8; 2]; 128] = [FIELD; 128];
    const { assert!(128 * FIELD.len() == 256, "the whole range can be crossed") };
    if !is_ambiguous_for_legacy(size) {
        return &[];
    }
    let beyond = (size | 0xFF) + 1;
    PADDING[..(beyond - size).div_ceil(FIELD.len())].as_flattened()
}

/// Limits of a [`FrameReader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderLimits {
    /// Largest packet of a peer that writes the legacy form, compressed or not. 65535 bytes unless
    /// raised; at most 2^24 - 1 can be announced.
    pub legacy_packet_bytes_max: usize,
    /// Makes a compression byte other than 0 and 1 count as 0, as in the reference gateway, instead
    /// of ending the connection.
    pub accept_unknown_compression: bool,
}

impl Default for ReaderLimits {
    fn default() -> ReaderLimits {
        ReaderLimits { legacy_packet_bytes_max: PACKET_BYTES_MAX, accept_unknown_compression: false }
    }
}

/// Why a byte stream is not one of frames. The connection cannot go on: the next frame border is
/// unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The tag does not begin with 'C' 'H'.
    #[error("byte {index} of a frame is {byte:#04x} instead of a tag's 0x43 0x48")]
    BadMagic {
        /// Which of the two bytes is wrong: 0 or 1.
        index: u8,
        /// Decoded frame.
        byte: u8,
    },
    /// The tag announces an empty packet.
    #[error("frame of size 0")]
    ZeroSize,
    /// The compression byte is neither 0 nor 1.
    #[error("unknown compression {0}; 0 is none, 1 is snappy")]
    UnknownCompression(u8),
    /// The packet is not a raw Snappy block.
    #[error("packet is not a raw snappy block")]
    BadSnappy,
    /// The Snappy block announces more than is accepted; nothing was allocated for it.
    #[error("snappy block declares {declared} bytes, over the limit of {limit}")]
    DeclaredTooLarge {
        /// Bytes the block would decompress to, saturated at 32 bits.
        declared: u32,
        /// Bytes accepted.
        limit: u32,
    },
    /// The (decompressed) bytes are not a packet.
    #[error("not a packet: {0}")]
    BadPacket(#[from] WireError),
    /// A legacy tag announces more than is accepted.
    #[error("legacy frame of {size} bytes exceeds the limit of {limit}; raise legacy_packet_bytes_max")]
    LegacyTooLarge {
        /// Bytes announced.
        size: u32,
        /// Bytes accepted.
        limit: u32,
    },
}

impl FrameError {
    /// Every value of [`FrameError::reason`].
    pub const REASONS: [&'static str; 7] = [
        "bad_magic",
        "zero_size",
        "unknown_compression",
        "bad_snappy",
        "declared_too_large",
        "bad_packet",
        "legacy_too_large",
    ];

    /// Name of the kind of error, for counters: one of [`FrameError::REASONS`].
    #[must_use]
    pub fn reason(&self) -> &'static str {
        Self::REASONS[self.reason_index()]
    }

    /// Index into [`FrameError::REASONS`].
    #[must_use]
    pub fn reason_index(&self) -> usize {
        match self {
            FrameError::BadMagic { .. } => 0,
            FrameError::ZeroSize => 1,
            FrameError::UnknownCompression(_) => 2,
            FrameError::BadSnappy => 3,
            FrameError::DeclaredTooLarge { .. } => 4,
            FrameError::BadPacket(_) => 5,
            FrameError::LegacyTooLarge { .. } => 6,
        }
    }
}

/// Memory for decompression, shared by any number of readers. Grows to the largest packet seen,
/// which the readers' limits bound.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    decompressed: Vec<u8>,
}

impl Scratch {
    /// Decompresses one raw Snappy block of at most `limit` bytes of content.
    ///
    /// # Errors
    /// [`FrameError::DeclaredTooLarge`] before anything is allocated, [`FrameError::BadSnappy`].
    pub fn decompress(&mut self, block: &[u8], limit: usize) -> Result<&[u8], FrameError> {
        let declared = snap::raw::decompress_len(block).map_err(|_| FrameError::BadSnappy)?;
        if declared > limit {
            return Err(FrameError::DeclaredTooLarge {
                declared: saturate(declared),
                limit: saturate(limit),
            });
        }
        if self.decompressed.len() < declared {
            self.decompressed.resize(declared, 0);
        }
        let len = snap::raw::Decoder::new()
            .decompress(block, &mut self.decompressed)
            .map_err(|_| FrameError::BadSnappy)?;
        Ok(&self.decompressed[..len])
    }
}

fn saturate(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Cuts the byte stream of one connection into packets.
///
/// Complete frames are parsed where they stand in the input; only a frame that is split between
/// inputs is copied. While no frame is begun the reader owns no memory.
///
/// ```
/// use std::ops::ControlFlow;
/// use throng_wire::frame::{Compression, FrameReader, tag};
///
/// let mut reader = FrameReader::default();
/// let mut types = Vec::new();
/// let stream = [&tag(4, Compression::None)[..], &[0x0A, 0x02, 0x20, 0x15]].concat();
/// for piece in stream.chunks(3) {
///     reader.feed(piece, &mut |packet| {
///         types.extend(packet.messages().map(|message| message.msg_type));
///         ControlFlow::Continue(())
///     })?;
/// }
/// assert_eq!(types, [21]);
/// assert_eq!(reader.buffered_bytes(), 0);
/// # Ok::<(), throng_wire::frame::FrameError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct FrameReader {
    limits: ReaderLimits,
    form: Form,
    /// True if the ambiguous frame that is arriving was seen not to be a legacy one.
    legacy_refuted: bool,
    peer_compresses: bool,
    /// Set once, then returned for ever.
    failed: Option<FrameError>,
    /// Bytes not consumed: the begin of a frame, or several frames after a `Break`.
    pending: Vec<u8>,
    /// Bytes of `pending` that are consumed already.
    pending_start: usize,
    packets: u64,
    bytes: u64,
}

/// Classification of the unconsumed bytes' front.
enum Front {
    /// Too little; nothing changes before there are this many bytes.
    Partial { needed: usize },
    /// A frame with `size` bytes behind its tag.
    Frame { size: usize, compression: Compression },
}

impl FrameReader {
    /// A reader for a connection that has not received anything yet.
    #[must_use]
    pub fn new(limits: ReaderLimits) -> FrameReader {
        FrameReader { limits, ..FrameReader::default() }
    }

    /// Takes received bytes and calls `on_packet` for every packet that is now complete, in order.
    ///
    /// After `Break` the rest is kept and delivered by the next call, for instance with an empty
    /// input. A caller that keeps feeding without consuming packets determines how much is kept.
    ///
    /// # Errors
    /// The first defect of the stream, now and at every later call. Packets before it were handed
    /// out.
    pub fn feed(
        &mut self,
        input: &[u8],
        on_packet: &mut dyn FnMut(Packet<'_>) -> ControlFlow<()>,
    ) -> Result<(), FrameError> {
        self.feed_with(&mut Scratch::default(), input, on_packet)
    }

    /// As [`FrameReader::feed`], with memory for decompression that outlives the call.
    ///
    /// # Errors
    /// As [`FrameReader::feed`].
    pub fn feed_with(
        &mut self,
        scratch: &mut Scratch,
        input: &[u8],
        on_packet: &mut dyn FnMut(Packet<'_>) -> ControlFlow<()>,
    ) -> Result<(), FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.bytes += input.len() as u64;
        let result = self.run(scratch, input, on_packet);
        if let Err(error) = result {
            self.failed = Some(error);
            self.pending = Vec::new();
            self.pending_start = 0;
        }
        result
    }

    /// The form of tag the peer writes, as far as known.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// True if the peer has sent a Snappy packet, which allows sending it some. Spec: gateway §2.4.
    #[must_use]
    pub fn peer_compresses(&self) -> bool {
        self.peer_compresses
    }

    /// Bytes received but not handed out.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.pending.len() - self.pending_start
    }

    /// Packets handed out so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Bytes taken so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn run(
        &mut self,
        scratch: &mut Scratch,
        mut input: &[u8],
        on_packet: &mut dyn FnMut(Packet<'_>) -> ControlFlow<()>,
    ) -> Result<(), FrameError> {
        // The remainder from earlier comes first, topped up only as far as the frame at its front
        // needs.
        let mut pending = mem::take(&mut self.pending);
        let mut start = mem::take(&mut self.pending_start);
        while start < pending.len() {
            match self.front(scratch, &pending[start..])? {
                Front::Partial { needed } => {
                    pending.drain(..start);
                    start = 0;
                    if input.is_empty() {
                        self.pending = pending;
                        return Ok(());
                    }
                    let (top_up, rest) = input.split_at(input.len().min(needed - pending.len()));
                    append(&mut pending, top_up, needed);
                    input = rest;
                }
                Front::Frame { size, compression } => {
                    let end = start + TAG_BYTES + size;
                    let flow =
                        self.deliver(scratch, &pending[start + TAG_BYTES..end], compression, on_packet)?;
                    start = end;
                    if flow.is_break() {
                        pending.extend_from_slice(input);
                        if start < pending.len() {
                            self.pending = pending;
                            self.pending_start = start;
                        }
                        return Ok(());
                    }
                }
            }
        }
        drop(pending);

        while !input.is_empty() {
            match self.front(scratch, input)? {
                Front::Partial { .. } => {
                    self.pending = input.to_vec();
                    return Ok(());
                }
                Front::Frame { size, compression } => {
                    let (frame, rest) = input.split_at(TAG_BYTES + size);
                    input = rest;
                    if self.deliver(scratch, &frame[TAG_BYTES..], compression, on_packet)?.is_break() {
                        self.pending = input.to_vec();
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Finds out what the front of `buf` is. Spec: gateway §2.1 and §2.5.
    fn front(&mut self, scratch: &mut Scratch, buf: &[u8]) -> Result<Front, FrameError> {
        // Wrong bytes are refused as soon as they arrive, not when a tag is complete.
        let wide_size = match *buf {
            [byte, ..] if byte != MAGIC[0] => return Err(FrameError::BadMagic { index: 0, byte }),
            [_, byte, ..] if byte != MAGIC[1] && self.form != Form::Legacy => {
                return Err(FrameError::BadMagic { index: 1, byte });
            }
            [_, byte, ..] => byte != MAGIC[1],
            _ => false,
        };
        let Some(tag) = buf.first_chunk::<TAG_BYTES>() else {
            return Ok(Front::Partial { needed: TAG_BYTES });
        };
        let compression = match tag[4] {
            0 => Compression::None,
            1 => Compression::Snappy,
            _ if self.limits.accept_unknown_compression => Compression::None,
            byte => return Err(FrameError::UnknownCompression(byte)),
        };
        let size = match self.form {
            // Only a legacy peer gets here with another second byte.
            _ if wide_size => {
                let size = u32::from_be_bytes([0, tag[1], tag[2], tag[3]]);
                let limit = saturate(self.limits.legacy_packet_bytes_max);
                if size > limit {
                    return Err(FrameError::LegacyTooLarge { size, limit });
                }
                size as usize
            }
            Form::Legacy if tag[2] == LEGACY_SHORT => tag[3].into(),
            Form::Undecided if tag[2] == LEGACY_SHORT => {
                return Ok(self.ambiguous_front(scratch, buf, tag[3].into(), compression));
            }
            _ => usize::from(u16::from_be_bytes([tag[2], tag[3]])),
        };
        if size == 0 {
            return Err(FrameError::ZeroSize);
        }
        if tag[2] == 0 && self.form == Form::Undecided {
            // A legacy peer would have written an 'N' in front of a one-byte size.
            self.form = Form::Current;
        }
        if buf.len() < TAG_BYTES + size {
            return Ok(Front::Partial { needed: TAG_BYTES + size });
        }
        Ok(Front::Frame { size, compression })
    }

    /// The front of an undecided stream whose third byte is an 'N': a legacy frame of `short` bytes
    /// if those are a packet beyond doubt, else a current one. Spec: gateway §2.5, rule 2.
    fn ambiguous_front(
        &mut self,
        scratch: &mut Scratch,
        buf: &[u8],
        short: usize,
        compression: Compression,
    ) -> Front {
        if short > 0 && !self.legacy_refuted {
            let needed = TAG_BYTES + short;
            let Some(frame) = buf.get(..needed) else { return Front::Partial { needed } };
            if is_legacy_packet(scratch, &frame[TAG_BYTES..], compression) {
                self.form = Form::Legacy;
                return Front::Frame { size: short, compression };
            }
            self.legacy_refuted = true;
        }
        let size = usize::from(LEGACY_SHORT) << 8 | short;
        if buf.len() < TAG_BYTES + size {
            return Front::Partial { needed: TAG_BYTES + size };
        }
        // If this is not a packet the stream has failed, whatever the form.
        self.form = Form::Current;
        Front::Frame { size, compression }
    }

    fn deliver(
        &mut self,
        scratch: &mut Scratch,
        payload: &[u8],
        compression: Compression,
        on_packet: &mut dyn FnMut(Packet<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, FrameError> {
        let bytes = match compression {
            Compression::None => payload,
            Compression::Snappy => {
                let limit = match self.form {
                    Form::Legacy => self.limits.legacy_packet_bytes_max.max(PACKET_BYTES_MAX),
                    Form::Undecided | Form::Current => PACKET_BYTES_MAX,
                };
                scratch.decompress(payload, limit)?
            }
        };
        let packet = Packet::parse(bytes)?;
        self.peer_compresses |= compression == Compression::Snappy;
        self.packets += 1;
        Ok(on_packet(packet))
    }
}

fn is_legacy_packet(scratch: &mut Scratch, payload: &[u8], compression: Compression) -> bool {
    match compression {
        Compression::None => Packet::is_strict(payload),
        Compression::Snappy => scratch.decompress(payload, PACKET_BYTES_MAX).is_ok_and(Packet::is_strict),
    }
}

/// Appends to a buffer that will hold `needed` bytes in the end. Memory grows with the received
/// bytes, not with the announced size, so a tag alone reserves none.
fn append(buffer: &mut Vec<u8>, bytes: &[u8], needed: usize) {
    let len = buffer.len() + bytes.len();
    if buffer.capacity() < len {
        buffer.reserve_exact((2 * len).min(needed) - buffer.len());
    }
    buffer.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(reader: &mut FrameReader, input: &[u8]) {
        reader.feed(input, &mut |_| ControlFlow::Continue(())).expect("no defect");
    }

    /// A tag costs its sender 5 bytes; it must not cost us what it announces.
    #[test]
    fn memory_follows_what_arrived_and_goes_when_the_frame_is_complete() {
        let mut reader = FrameReader::default();
        let mut packet = vec![0x0A, 0xF9, 0xFF, 0x03, 0x2A, 0xF5, 0xFF, 0x03];
        packet.resize(4 + 65_529, 7);
        let frame = [&tag(packet.len(), Compression::None)[..], &packet].concat();
        assert_eq!(reader.pending.capacity(), 0);
        for (index, byte) in frame.iter().enumerate() {
            feed(&mut reader, &[*byte]);
            let arrived = index + 1;
            if arrived < frame.len() {
                assert_eq!(reader.buffered_bytes(), arrived);
                let bound = (2 * arrived).min(frame.len()).max(8);
                assert!(reader.pending.capacity() <= bound, "{} of {arrived}", reader.pending.capacity());
            }
        }
        assert_eq!((reader.packets(), reader.pending.capacity()), (1, 0));

        // Frames that arrive whole are never copied, one that does not is copied as far as it got.
        feed(&mut reader, &frame);
        assert_eq!(reader.pending.capacity(), 0);
        feed(&mut reader, &[&frame[..], &frame[..100]].concat());
        assert_eq!((reader.packets(), reader.pending.capacity()), (3, 100));
    }

    #[test]
    fn every_error_has_a_reason_of_its_own() {
        let errors = [
            FrameError::BadMagic { index: 0, byte: 0 },
            FrameError::ZeroSize,
            FrameError::UnknownCompression(2),
            FrameError::BadSnappy,
            FrameError::DeclaredTooLarge { declared: 1, limit: 0 },
            FrameError::BadPacket(WireError::Truncated),
            FrameError::LegacyTooLarge { size: 1, limit: 0 },
        ];
        assert_eq!(errors.map(|error| error.reason()), FrameError::REASONS);
    }
}
