//! The envelope: packets and their messages, read and written without intermediate objects.

use crate::{
    field::{WireError, WireType, fields, read_field},
    varint::{Prefix, read_varint_at, varint_len},
};

/// One message of a packet; the body is borrowed from the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessagePack<'a> {
    /// Target channel towards the gateway, source channel from it; 0 is GLOBAL.
    pub channel_id: u32,
    /// Bit set of [`crate::channeldpb::BroadcastType`].
    pub broadcast: u32,
    /// Correlates a response with its request; 0 for none.
    pub stub_id: u32,
    /// A [`crate::channeldpb::MessageType`] or a user-space number of 100 or more.
    pub msg_type: u32,
    /// The serialized message.
    pub body: &'a [u8],
}

impl<'a> MessagePack<'a> {
    /// Reads the content of one `Packet.messages` entry (without the entry's tag and length).
    ///
    /// Protobuf rules apply: unknown fields and known numbers with another wire type are skipped,
    /// the last of several values counts, numbers over 32 bits are cut.
    ///
    /// # Errors
    /// Bytes that are not protobuf.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<MessagePack<'a>, WireError> {
        Self::parse_usual(bytes).map_or_else(|| Self::parse_any(bytes), Ok)
    }

    /// Reads what peers write: fields 1 to 5 with one-byte tags, in any order. `None` for
    /// everything else.
    #[inline(always)]
    fn parse_usual(bytes: &'a [u8]) -> Option<MessagePack<'a>> {
        let mut message = MessagePack::default();
        let mut at = 0;
        while at < bytes.len() {
            let tag = bytes[at];
            at += 1;
            match tag {
                0x08 => message.channel_id = read_varint_at(bytes, &mut at)? as u32,
                0x10 => message.broadcast = read_varint_at(bytes, &mut at)? as u32,
                0x18 => message.stub_id = read_varint_at(bytes, &mut at)? as u32,
                0x20 => message.msg_type = read_varint_at(bytes, &mut at)? as u32,
                0x2A => message.body = slice_at(bytes, &mut at)?,
                _ => return None,
            }
        }
        Some(message)
    }

    /// Reads any message, and determines its defect if it has one.
    #[cold]
    fn parse_any(bytes: &'a [u8]) -> Result<MessagePack<'a>, WireError> {
        let mut message = MessagePack::default();
        for field in fields(bytes) {
            let field = field?;
            match (field.number, field.wire_type) {
                (1, WireType::Varint) => message.channel_id = field.scalar as u32,
                (2, WireType::Varint) => message.broadcast = field.scalar as u32,
                (3, WireType::Varint) => message.stub_id = field.scalar as u32,
                (4, WireType::Varint) => message.msg_type = field.scalar as u32,
                (5, WireType::Len) => message.body = field.value,
                _ => {}
            }
        }
        Ok(message)
    }

    /// Bytes of the fields in front of the body.
    #[inline]
    fn numbers_len(&self) -> usize {
        let len = |value: u32| if value == 0 { 0 } else { 1 + varint_len(value.into()) };
        len(self.channel_id) + len(self.broadcast) + len(self.stub_id) + len(self.msg_type)
    }

    /// Puts the fields in front of the body into `prefix`.
    #[inline]
    pub(crate) fn put_numbers(&self, prefix: &mut Prefix) {
        for (tag, value) in
            [(0x08, self.channel_id), (0x10, self.broadcast), (0x18, self.stub_id), (0x20, self.msg_type)]
        {
            if value != 0 {
                prefix.byte(tag);
                prefix.varint(value.into());
            }
        }
    }

    /// Puts the entry's tag and length, the numbers and the tag and length of the body into
    /// `prefix`.
    #[inline]
    fn put_prefix(&self, prefix: &mut Prefix, body_len: usize) {
        self.put_numbers(prefix);
        if body_len != 0 {
            prefix.byte(0x2A);
            prefix.varint(body_len as u64);
        }
        prefix.enclose(0x0A, body_len);
    }

    /// True if `bytes` is a message with only the fields 1 to 5 in their right wire types.
    fn is_strict(bytes: &[u8]) -> bool {
        fields(bytes).all(|field| {
            field.is_ok_and(|field| {
                matches!((field.number, field.wire_type), (1..=4, WireType::Varint) | (5, WireType::Len))
            })
        })
    }
}

/// The content of one frame: a sequence of messages, checked when it was parsed.
///
/// ```
/// use throng_wire::{MessagePack, Packet, write_entry};
///
/// let mut bytes = Vec::new();
/// write_entry(&mut bytes, &MessagePack { msg_type: 21, ..Default::default() });
/// write_entry(&mut bytes, &MessagePack { msg_type: 100, body: b"move", ..Default::default() });
///
/// let packet = Packet::parse(&bytes)?;
/// assert_eq!(packet.messages().map(|message| message.msg_type).collect::<Vec<_>>(), [21, 100]);
/// # Ok::<(), throng_wire::WireError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    /// Messages in `bytes`.
    count: u32,
}

impl<'a> Packet<'a> {
    /// Checks that `bytes` is a packet of messages. Bodies are not looked at.
    ///
    /// # Errors
    /// The first defect found.
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, WireError> {
        let mut count = 0;
        let mut at = 0;
        while let Some(entry) = entry_at(bytes, &mut at)? {
            MessagePack::parse(entry)?;
            count += 1;
        }
        Ok(Packet { bytes, count })
    }

    /// The messages in order.
    #[must_use]
    pub fn messages(&self) -> Messages<'a> {
        Messages { bytes: self.bytes, at: 0, count: self.count as usize }
    }

    /// The packet as it stood in the frame, decompressed.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// True if a peer that writes the legacy tag could have meant `bytes` as a whole packet: at
    /// least one message, nothing unknown. Spec: gateway §2.5, rule 2.
    pub(crate) fn is_strict(bytes: &[u8]) -> bool {
        !bytes.is_empty()
            && fields(bytes).all(|entry| {
                entry.is_ok_and(|entry| {
                    entry.number == 1
                        && entry.wire_type == WireType::Len
                        && MessagePack::is_strict(entry.value)
                })
            })
    }
}

/// Iterates over the messages of a [`Packet`].
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    bytes: &'a [u8],
    /// Offset at which the next entry begins.
    at: usize,
    /// Messages left.
    count: usize,
}

impl<'a> Iterator for Messages<'a> {
    type Item = MessagePack<'a>;

    #[inline]
    fn next(&mut self) -> Option<MessagePack<'a>> {
        // `Packet::parse` has seen these bytes, so neither step fails.
        let entry = entry_at(self.bytes, &mut self.at).ok()??;
        self.count -= 1;
        MessagePack::parse(entry).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Messages<'_> {}

/// Takes the content of the `messages` entry at `*at`, skipping unknown fields before it; `None` at
/// the end.
#[inline(always)] // As for `read_varint_at`.
fn entry_at<'a>(bytes: &'a [u8], at: &mut usize) -> Result<Option<&'a [u8]>, WireError> {
    let start = *at;
    if start == bytes.len() {
        return Ok(None);
    }
    if bytes[start] == 0x0A {
        let mut position = start + 1;
        if let Some(entry) = slice_at(bytes, &mut position) {
            *at = position;
            return Ok(Some(entry));
        }
    }
    let (entry, position) = unusual_entry_at(bytes, start)?;
    *at = position;
    Ok(entry)
}

#[cold]
fn unusual_entry_at(bytes: &[u8], start: usize) -> Result<(Option<&[u8]>, usize), WireError> {
    let mut rest = &bytes[start..];
    while let Some(field) = read_field(&mut rest)? {
        if (field.number, field.wire_type) == (1, WireType::Len) {
            return Ok((Some(field.value), bytes.len() - rest.len()));
        }
    }
    Ok((None, bytes.len()))
}

/// Takes the length at `*at` and that many bytes behind it.
#[inline(always)] // As for `read_varint_at`.
fn slice_at<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let len = usize::try_from(read_varint_at(bytes, at)?).ok()?;
    let slice = bytes.get(*at..)?.get(..len)?;
    *at += len;
    Some(slice)
}

/// Bytes of a length-delimited field with a number below 16; absent when empty.
#[inline]
pub(crate) fn len_field_len(len: usize) -> usize {
    if len == 0 { 0 } else { 1 + varint_len(len as u64) + len }
}

/// Bytes that [`write_entry`] appends for `message`.
#[inline]
#[must_use]
pub fn entry_len(message: &MessagePack<'_>) -> usize {
    entry_len_with(message, message.body.len())
}

/// Bytes of an entry with a body of `body_len` bytes instead of `head.body`.
#[inline]
#[must_use]
pub fn entry_len_with(head: &MessagePack<'_>, body_len: usize) -> usize {
    let message_len = head.numbers_len() + len_field_len(body_len);
    1 + varint_len(message_len as u64) + message_len
}

/// Appends `message` as one `Packet.messages` entry; entries one after the other are a packet.
#[inline]
pub fn write_entry(out: &mut Vec<u8>, message: &MessagePack<'_>) {
    let mut prefix = Prefix::new();
    message.put_prefix(&mut prefix, message.body.len());
    out.reserve(prefix.as_slice().len() + message.body.len());
    out.extend_from_slice(prefix.as_slice());
    out.extend_from_slice(message.body);
}

/// Appends an entry whose body is produced in place; `head.body` is ignored.
///
/// # Panics
/// If `write_body` does not append exactly `body_len` bytes: the frame would be broken for every
/// receiver.
pub fn write_entry_with(
    out: &mut Vec<u8>,
    head: &MessagePack<'_>,
    body_len: usize,
    write_body: impl FnOnce(&mut Vec<u8>),
) {
    let mut prefix = Prefix::new();
    head.put_prefix(&mut prefix, body_len);
    out.reserve(prefix.as_slice().len() + body_len);
    out.extend_from_slice(prefix.as_slice());
    let start = out.len();
    write_body(out);
    assert_eq!(out.len() - start, body_len, "the body has the length announced");
}

/// Appends an entry with `body` serialized; `head.body` is ignored.
pub fn write_message_entry(out: &mut Vec<u8>, head: &MessagePack<'_>, body: &impl prost::Message) {
    write_entry_with(out, head, body.encoded_len(), |out| {
        body.encode(out).expect("a Vec grows as needed");
    });
}
