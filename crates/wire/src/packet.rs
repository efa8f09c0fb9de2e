//! The envelope: packets and their messages, read and written without intermediate objects.

use crate::{
    field::{WireError, WireType, read_field, take},
    varint::{Prefix, read_varint, varint_len},
};

/// One message of a packet; the body is borrowed from wherever it stands.
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
    /// Protobuf rules apply: unknown fields and known numbers with another wire type are skipped, the last of
    /// several values counts, numbers over 32 bits are cut.
    ///
    /// # Errors
    /// Bytes that are not protobuf.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<MessagePack<'a>, WireError> {
        let mut message = MessagePack::default();
        let mut input = bytes;
        while let [tag, rest @ ..] = input {
            match tag {
                0x08 => {
                    input = rest;
                    message.channel_id = read_varint(&mut input)? as u32;
                }
                0x10 => {
                    input = rest;
                    message.broadcast = read_varint(&mut input)? as u32;
                }
                0x18 => {
                    input = rest;
                    message.stub_id = read_varint(&mut input)? as u32;
                }
                0x20 => {
                    input = rest;
                    message.msg_type = read_varint(&mut input)? as u32;
                }
                0x2A => {
                    input = rest;
                    let len = read_varint(&mut input)?;
                    message.body = take(&mut input, len)?;
                }
                _ => message.read_unusual(&mut input)?,
            }
        }
        Ok(message)
    }

    /// Reads a field that is unknown or has its tag spelled longer than necessary.
    #[cold]
    fn read_unusual(&mut self, input: &mut &'a [u8]) -> Result<(), WireError> {
        let Some(field) = read_field(input)? else { return Ok(()) };
        match (field.number, field.wire_type) {
            (1, WireType::Varint) => self.channel_id = field.scalar as u32,
            (2, WireType::Varint) => self.broadcast = field.scalar as u32,
            (3, WireType::Varint) => self.stub_id = field.scalar as u32,
            (4, WireType::Varint) => self.msg_type = field.scalar as u32,
            (5, WireType::Len) => self.body = field.value,
            _ => {}
        }
        Ok(())
    }

    /// Bytes of the fields in front of the body.
    #[inline]
    fn numbers_len(&self) -> usize {
        let len = |value: u32| if value == 0 { 0 } else { 1 + varint_len(value.into()) };
        len(self.channel_id) + len(self.broadcast) + len(self.stub_id) + len(self.msg_type)
    }

    /// Puts the entry's tag and length, the numbers and the tag and length of the body into `prefix`.
    #[inline]
    fn put_prefix(&self, prefix: &mut Prefix, body_len: usize) {
        let message_len = self.numbers_len() + len_field_len(body_len);
        prefix.byte(0x0A);
        prefix.varint(message_len as u64);
        for (tag, value) in
            [(0x08, self.channel_id), (0x10, self.broadcast), (0x18, self.stub_id), (0x20, self.msg_type)]
        {
            if value != 0 {
                prefix.byte(tag);
                prefix.varint(value.into());
            }
        }
        if body_len != 0 {
            prefix.byte(0x2A);
            prefix.varint(body_len as u64);
        }
    }

    /// Whether `bytes` is a message with only the fields 1 to 5 in their right wire types.
    fn is_strict(bytes: &[u8]) -> bool {
        crate::field::fields(bytes).all(|field| {
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
        let mut input = bytes;
        while let Some(entry) = next_entry(&mut input)? {
            MessagePack::parse(entry)?;
            count += 1;
        }
        Ok(Packet { bytes, count })
    }

    /// The messages in order.
    #[must_use]
    pub fn messages(&self) -> Messages<'a> {
        Messages { rest: self.bytes, count: self.count as usize }
    }

    /// The packet as it stood in the frame, decompressed.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether a peer that writes the legacy tag could have meant `bytes` as a whole packet: at least one message,
    /// nothing unknown. Spec: gateway §2.5, rule 2.
    pub(crate) fn is_strict(bytes: &[u8]) -> bool {
        !bytes.is_empty()
            && crate::field::fields(bytes).all(|entry| {
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
    rest: &'a [u8],
    count: usize,
}

impl<'a> Iterator for Messages<'a> {
    type Item = MessagePack<'a>;

    #[inline]
    fn next(&mut self) -> Option<MessagePack<'a>> {
        // `Packet::parse` has seen these bytes, so neither step fails.
        let entry = next_entry(&mut self.rest).ok()??;
        self.count -= 1;
        MessagePack::parse(entry).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Messages<'_> {}

/// Takes the content of the next `messages` entry off a packet, skipping unknown fields; `None` at the end.
#[inline]
fn next_entry<'a>(input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
    if let [0x0A, rest @ ..] = *input {
        *input = rest;
        let len = read_varint(input)?;
        return take(input, len).map(Some);
    }
    next_unusual_entry(input)
}

#[cold]
fn next_unusual_entry<'a>(input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
    while let Some(field) = read_field(input)? {
        if (field.number, field.wire_type) == (1, WireType::Len) {
            return Ok(Some(field.value));
        }
    }
    Ok(None)
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
/// If `write_body` does not append exactly `body_len` bytes: the frame would be broken for every receiver.
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
