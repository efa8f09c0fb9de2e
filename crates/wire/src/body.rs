//! The two bodies on the path of every player message, read and written by hand.
//!
//! All other bodies are rare and go through the generated [`crate::channeldpb`] types.

use crate::{
    channeldpb::MessageType,
    field::{WireError, WireType, fields},
    packet::{MessagePack, entry_len_with, len_field_len},
    varint::{Prefix, varint_len},
};

/// A `channeldpb.ServerForwardMessage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forward<'a> {
    /// The sending or receiving client; 0 for none.
    pub client_conn_id: u32,
    /// The client's message body.
    pub payload: &'a [u8],
}

impl<'a> Forward<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// Bytes that are not protobuf.
    pub fn parse(bytes: &'a [u8]) -> Result<Forward<'a>, WireError> {
        let mut forward = Forward::default();
        for field in fields(bytes) {
            let field = field?;
            match (field.number, field.wire_type) {
                (1, WireType::Varint) => forward.client_conn_id = field.scalar as u32,
                (2, WireType::Len) => forward.payload = field.value,
                _ => {}
            }
        }
        Ok(forward)
    }

    /// Bytes of the serialized body.
    #[must_use]
    pub fn len(&self) -> usize {
        number_field_len(self.client_conn_id) + len_field_len(self.payload.len())
    }

    /// True if the serialized body is empty: no client and no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.client_conn_id == 0 && self.payload.is_empty()
    }

    /// Appends the serialized body.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut prefix = Prefix::new();
        put_number_field(&mut prefix, 0x08, self.client_conn_id);
        if !self.payload.is_empty() {
            prefix.byte(0x12);
            prefix.varint(self.payload.len() as u64);
        }
        out.extend_from_slice(prefix.as_slice());
        out.extend_from_slice(self.payload);
    }
}

/// Appends an entry whose body is a `ServerForwardMessage`; `head.body` is ignored.
pub fn write_forward_entry(out: &mut Vec<u8>, head: &MessagePack<'_>, client_conn_id: u32, payload: &[u8]) {
    let body_len = number_field_len(client_conn_id) + len_field_len(payload.len());
    let mut prefix = Prefix::new();
    head.put_numbers(&mut prefix);
    if body_len != 0 {
        prefix.byte(0x2A);
        prefix.varint(body_len as u64);
    }
    put_number_field(&mut prefix, 0x08, client_conn_id);
    if !payload.is_empty() {
        prefix.byte(0x12);
        prefix.varint(payload.len() as u64);
    }
    prefix.enclose(0x0A, payload.len());
    out.reserve(prefix.as_slice().len() + payload.len());
    out.extend_from_slice(prefix.as_slice());
    out.extend_from_slice(payload);
}

/// Bytes that [`write_forward_entry`] appends.
#[must_use]
pub fn forward_entry_len(head: &MessagePack<'_>, client_conn_id: u32, payload_len: usize) -> usize {
    entry_len_with(head, number_field_len(client_conn_id) + len_field_len(payload_len))
}

/// A `google.protobuf.Any`, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AnyRef<'a> {
    /// The type URL as encoded in the message.
    pub type_url: &'a str,
    /// The serialized message.
    pub value: &'a [u8],
}

impl<'a> AnyRef<'a> {
    /// Reads a serialized `Any`.
    ///
    /// # Errors
    /// Bytes that are not protobuf, a type URL that is not UTF-8.
    pub fn parse(bytes: &'a [u8]) -> Result<AnyRef<'a>, WireError> {
        let mut any = AnyRef::default();
        any.merge(bytes)?;
        Ok(any)
    }

    /// The full name of the type: what follows the last slash. Any prefix is accepted (spec:
    /// gateway §3.3).
    #[must_use]
    pub fn type_name(&self) -> &'a str {
        self.type_url.rsplit('/').next().unwrap_or(self.type_url)
    }

    fn merge(&mut self, bytes: &'a [u8]) -> Result<(), WireError> {
        for field in fields(bytes) {
            let field = field?;
            match (field.number, field.wire_type) {
                (1, WireType::Len) => self.type_url = field.str()?,
                (2, WireType::Len) => self.value = field.value,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A `channeldpb.ChannelDataUpdateMessage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataUpdate<'a> {
    /// The full name of the data's type (what follows the last slash of the type URL).
    pub type_name: &'a str,
    /// The serialized data.
    pub value: &'a [u8],
    /// The client that caused an update a server sends; 0 for none.
    pub context_conn_id: u32,
    /// Latest version of the entity that the sender received; 0 if unspecified.
    pub version: u64,
}

impl<'a> DataUpdate<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// Bytes that are not protobuf; [`WireError::Missing`] if there is no data.
    pub fn parse(bytes: &'a [u8]) -> Result<DataUpdate<'a>, WireError> {
        let mut data: Option<AnyRef<'a>> = None;
        let (mut context_conn_id, mut version) = (0, 0);
        for field in fields(bytes) {
            let field = field?;
            match (field.number, field.wire_type) {
                // Several occurrences of a message field are merged, says protobuf.
                (1, WireType::Len) => data.get_or_insert_default().merge(field.value)?,
                (2, WireType::Varint) => context_conn_id = field.scalar as u32,
                (100, WireType::Varint) => version = field.scalar,
                _ => {}
            }
        }
        let data = data.ok_or(WireError::Missing(1))?;
        Ok(DataUpdate { type_name: data.type_name(), value: data.value, context_conn_id, version })
    }
}

/// Appends a `CHANNEL_DATA_UPDATE` entry as the gateway fans it out: no stub, no broadcast, no
/// context.
///
/// `type_url` is the whole URL, `type.googleapis.com/<full name>` towards stock peers.
pub fn write_data_update_entry(out: &mut Vec<u8>, channel_id: u32, type_url: &str, value: &[u8]) {
    write_data_update_entry_with(out, channel_id, type_url, value.len(), |out| out.extend_from_slice(value));
}

/// Appends a `CHANNEL_DATA_UPDATE` entry whose value is produced in place.
///
/// # Panics
/// If `write_value` does not append exactly `value_len` bytes.
pub fn write_data_update_entry_with(
    out: &mut Vec<u8>,
    channel_id: u32,
    type_url: &str,
    value_len: usize,
    write_value: impl FnOnce(&mut Vec<u8>),
) {
    write_data_update_head(out, channel_id, type_url, value_len);
    out.reserve(value_len);
    let start = out.len();
    write_value(out);
    assert_eq!(out.len() - start, value_len, "the value has the length announced");
}

/// Appends a `CHANNEL_DATA_UPDATE` entry up to its value, for a value of `value_len` bytes that is
/// kept elsewhere.
pub fn write_data_update_head(out: &mut Vec<u8>, channel_id: u32, type_url: &str, value_len: usize) {
    let any_len = any_len(type_url, value_len);
    // The Any is written even when it is empty: a message field is either there or not.
    let body_len = 1 + varint_len(any_len as u64) + any_len;
    let mut prefix = Prefix::new();
    put_number_field(&mut prefix, 0x08, channel_id);
    put_number_field(&mut prefix, 0x20, MessageType::ChannelDataUpdate as u32);
    prefix.byte(0x2A);
    prefix.varint(body_len as u64);
    prefix.byte(0x0A);
    prefix.varint(any_len as u64);
    prefix.enclose(0x0A, any_len);
    if !type_url.is_empty() {
        prefix.byte(0x0A);
        prefix.varint(type_url.len() as u64);
    }
    let mut value_prefix = Prefix::new();
    if value_len != 0 {
        value_prefix.byte(0x12);
        value_prefix.varint(value_len as u64);
    }
    out.reserve(prefix.as_slice().len() + any_len - value_len);
    out.extend_from_slice(prefix.as_slice());
    out.extend_from_slice(type_url.as_bytes());
    out.extend_from_slice(value_prefix.as_slice());
}

/// Bytes that [`write_data_update_entry`] appends.
#[must_use]
pub fn data_update_entry_len(channel_id: u32, type_url: &str, value_len: usize) -> usize {
    let any_len = any_len(type_url, value_len);
    entry_len_with(&data_update_head(channel_id), 1 + varint_len(any_len as u64) + any_len)
}

fn data_update_head(channel_id: u32) -> MessagePack<'static> {
    MessagePack { channel_id, msg_type: MessageType::ChannelDataUpdate as u32, ..MessagePack::default() }
}

fn any_len(type_url: &str, value_len: usize) -> usize {
    len_field_len(type_url.len()) + len_field_len(value_len)
}

fn number_field_len(value: u32) -> usize {
    if value == 0 { 0 } else { 1 + varint_len(value.into()) }
}

fn put_number_field(prefix: &mut Prefix, tag: u8, value: u32) {
    if value != 0 {
        prefix.byte(tag);
        prefix.varint(value.into());
    }
}
