//! The part of the wire protocol that a generator speaks: requests written, frames scanned.
//!
//! A simulated player must be far cheaper than the server it loads, so frames are *scanned*, not
//! decoded: a small message is handed over whole, of a large one only the beginning is looked at
//! and the rest is discarded, if possible without being copied out of the kernel. Parsing
//! everything would cost more than serving it.

use prost::Message as _;
use thiserror::Error;
use throng_wire::frame::{self, TAG_BYTES};
use throng_wire::{MessagePack, channeldpb as pb, write_entry, write_forward_entry, write_varint};

/// A packet larger than this does not fit every peer's buffer.
pub(crate) const PACKET_BYTES_MAX: usize = 65_530;
/// Entries up to this size are collected and handed over whole.
const WHOLE_BYTES_MAX: usize = 1_024;
/// Bytes looked at of a larger entry: envelope, type URL and a handful of stamps take less than
/// half of it.
const PREFIX_BYTES: usize = 384;

/// Message types used here.
pub(crate) mod kind {
    pub(crate) const AUTH: u32 = 1;
    pub(crate) const CREATE_CHANNEL: u32 = 3;
    pub(crate) const LIST_CHANNEL: u32 = 5;
    pub(crate) const SUB_TO_CHANNEL: u32 = 6;
    pub(crate) const UNSUB_FROM_CHANNEL: u32 = 7;
    pub(crate) const CHANNEL_DATA_UPDATE: u32 = 8;
    pub(crate) const CREATE_SPATIAL_CHANNEL: u32 = 10;
    pub(crate) const QUERY_SPATIAL_CHANNEL: u32 = 11;
    pub(crate) const CHANNEL_DATA_HANDOVER: u32 = 12;
    pub(crate) const UPDATE_SPATIAL_INTEREST: u32 = 14;
    pub(crate) const CREATE_ENTITY_CHANNEL: u32 = 15;
    pub(crate) const SPATIAL_CHANNELS_READY: u32 = 18;
    pub(crate) const RECOVERY_CHANNEL_DATA: u32 = 20;
    pub(crate) const RECOVERY_END: u32 = 21;
    /// Input of a player, forwarded to the owner.
    pub(crate) const INPUT: u32 = 100;
    /// Message of the owner to one player.
    pub(crate) const NOTICE: u32 = 101;
    /// An object is created (Unreal).
    pub(crate) const SPAWN: u32 = 103;
    /// The login server asks the owner of a cell for a player's character.
    pub(crate) const ENTER: u32 = 120;
}

/// Channel types used here.
pub(crate) const CHANNEL_TYPE_GLOBAL: u32 = 1;
pub(crate) const CHANNEL_TYPE_SUBWORLD: u32 = 3;
/// Broadcast value that names one connection.
pub(crate) const SINGLE_CONNECTION: u32 = 1;

/// Envelope of one message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) channel: u32,
    pub(crate) broadcast: u32,
    pub(crate) stub: u32,
    pub(crate) kind: u32,
}

// ---- writing ----

pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    write_varint(out, u64::from(field << 3 | 2));
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends one `Packet.messages` entry.
pub(crate) fn put_entry(out: &mut Vec<u8>, head: Head, body: &[u8]) {
    write_entry(out, &head.with(body));
}

impl Head {
    fn with(self, body: &[u8]) -> MessagePack<'_> {
        let Self { channel, broadcast, stub, kind } = self;
        MessagePack { channel_id: channel, broadcast, stub_id: stub, msg_type: kind, body }
    }
}

/// Appends one frame whose packet `write` produces.
///
/// # Panics
/// When the packet is empty or larger than a frame may be: the callers size their packets.
pub(crate) fn put_frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; TAG_BYTES]);
    write(out);
    let size = out.len() - start - TAG_BYTES;
    assert!(
        (1..=PACKET_BYTES_MAX).contains(&size),
        "a frame carries 1..={PACKET_BYTES_MAX} bytes, not {size}"
    );
    out[start..start + TAG_BYTES].copy_from_slice(&frame::tag(size, frame::Compression::None));
}

/// Appends a frame with one message.
pub(crate) fn put_message(out: &mut Vec<u8>, head: Head, body: &[u8]) {
    put_frame(out, |packet| put_entry(packet, head, body));
}

pub(crate) fn auth(out: &mut Vec<u8>, stub: u32, player: &str, login: &str) {
    enter(out, stub, player, login, "");
}

/// A login that asks for `world`, unless that is empty.
pub(crate) fn enter(out: &mut Vec<u8>, stub: u32, player: &str, login: &str, world: &str) {
    let body = pb::AuthMessage {
        player_identifier_token: player.to_owned(),
        login_token: login.to_owned(),
        world: Some(world.to_owned()).filter(|world| !world.is_empty()),
        ..pb::AuthMessage::default()
    };
    put_message(out, Head { stub, kind: kind::AUTH, ..Head::default() }, &body.encode_to_vec());
}

/// Asks for a channel of `channel_type` (GLOBAL is claimed), with channel data of type `type_name`
/// when given. The owner itself does not want the fan-outs, so it subscribes without access.
pub(crate) fn create_channel(
    out: &mut Vec<u8>,
    stub: u32,
    channel_type: u32,
    metadata: &str,
    type_name: Option<&str>,
) {
    let body = pb::CreateChannelMessage {
        channel_type: channel_type.cast_signed(),
        metadata: metadata.to_owned(),
        sub_options: Some(pb::ChannelSubscriptionOptions {
            data_access: Some(pb::ChannelDataAccess::NoAccess.into()),
            ..pb::ChannelSubscriptionOptions::default()
        }),
        data: type_name.map(|name| prost_types::Any { type_url: type_url(name), value: Vec::new() }),
        merge_options: None,
    };
    put_message(out, Head { stub, kind: kind::CREATE_CHANNEL, ..Head::default() }, &body.encode_to_vec());
}

/// Subscribes connection `conn` to `channel` for reading with this fan-out interval.
pub(crate) fn subscribe(out: &mut Vec<u8>, stub: u32, channel: u32, conn: u32, interval_ms: u32) {
    let body = pb::SubscribedToChannelMessage {
        conn_id: conn,
        sub_options: Some(pb::ChannelSubscriptionOptions {
            data_access: Some(pb::ChannelDataAccess::ReadAccess.into()),
            fan_out_interval_ms: Some(interval_ms),
            ..pb::ChannelSubscriptionOptions::default()
        }),
    };
    let head = Head { channel, stub, kind: kind::SUB_TO_CHANNEL, ..Head::default() };
    put_message(out, head, &body.encode_to_vec());
}

/// Subscribes connection `conn` to `channel` for reading, with the channel's defaults.
pub(crate) fn subscribe_other(out: &mut Vec<u8>, channel: u32, conn: u32) {
    let sub_options = pb::ChannelSubscriptionOptions {
        data_access: Some(pb::ChannelDataAccess::ReadAccess.into()),
        ..pb::ChannelSubscriptionOptions::default()
    };
    let body = pb::SubscribedToChannelMessage { conn_id: conn, sub_options: Some(sub_options) };
    let head = Head { channel, kind: kind::SUB_TO_CHANNEL, ..Head::default() };
    put_message(out, head, &body.encode_to_vec());
}

/// A player subscribes itself to `channel` with the channel's defaults, or with this fan-out
/// interval.
pub(crate) fn subscribe_self(out: &mut Vec<u8>, channel: u32, conn: u32, interval_ms: Option<u32>) {
    let sub_options = interval_ms.map(|interval_ms| pb::ChannelSubscriptionOptions {
        fan_out_interval_ms: Some(interval_ms),
        ..pb::ChannelSubscriptionOptions::default()
    });
    let body = pb::SubscribedToChannelMessage { conn_id: conn, sub_options };
    let head = Head { channel, kind: kind::SUB_TO_CHANNEL, ..Head::default() };
    put_message(out, head, &body.encode_to_vec());
}

/// A connection leaves `channel`.
pub(crate) fn unsubscribe(out: &mut Vec<u8>, channel: u32, conn: u32) {
    let body = pb::UnsubscribedFromChannelMessage { conn_id: conn };
    let head = Head { channel, kind: kind::UNSUB_FROM_CHANNEL, ..Head::default() };
    put_message(out, head, &body.encode_to_vec());
}

/// Body of CHANNEL_DATA_UPDATE around an encoded value.
pub(crate) fn update_body(out: &mut Vec<u8>, type_name: &str, value: &[u8]) {
    let mut any = Vec::with_capacity(value.len() + 64);
    put_bytes(&mut any, 1, type_url(type_name).as_bytes());
    put_bytes(&mut any, 2, value);
    put_bytes(out, 1, &any);
}

/// Appends a frame with a message of the owner to one connection.
pub(crate) fn forward_to(out: &mut Vec<u8>, channel: u32, conn: u32, payload: &[u8]) {
    let head = Head { channel, broadcast: SINGLE_CONNECTION, stub: 0, kind: kind::NOTICE };
    put_frame(out, |packet| write_forward_entry(packet, &head.with(&[]), conn, payload));
}

fn type_url(type_name: &str) -> String {
    format!("type.googleapis.com/{type_name}")
}

// ---- reading ----

/// One field of a protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    /// Length-delimited. May be truncated if only a prefix of the message is available; `whole` is
    /// false then.
    Bytes {
        bytes: &'a [u8],
        whole: bool,
    },
}

impl<'a> Value<'a> {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Number(value) => value,
            Self::Bytes { .. } => 0,
        }
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Number(_) => &[],
            Self::Bytes { bytes, .. } => bytes,
        }
    }
}

/// Reads the fields of a message, or of the beginning of one; ends at the first thing it cannot
/// read.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (tag, rest) = take_varint(self.0)?;
        let field = u32::try_from(tag >> 3).ok()?;
        let (value, rest) = match tag & 7 {
            0 => take_varint(rest).map(|(value, rest)| (Value::Number(value), rest))?,
            1 => rest
                .split_first_chunk::<8>()
                .map(|(raw, rest)| (Value::Number(u64::from_le_bytes(*raw)), rest))?,
            5 => rest
                .split_first_chunk::<4>()
                .map(|(raw, rest)| (Value::Number(u64::from(u32::from_le_bytes(*raw))), rest))?,
            2 => {
                let (length, rest) = take_varint(rest)?;
                let length = usize::try_from(length).ok()?;
                let whole = length <= rest.len();
                let (bytes, rest) = rest.split_at(length.min(rest.len()));
                (Value::Bytes { bytes, whole }, rest)
            }
            _ => return None,
        };
        self.0 = rest;
        Some((field, value))
    }
}

fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

/// Defect of a byte stream that a gateway cannot have sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum ScanError {
    #[error("bytes {0:#04x} {1:#04x} at the start of a frame instead of 0x43 0x48")]
    BadTag(u8, u8),
    #[error("a compressed frame, although no player offered compression")]
    Compressed,
    #[error("a packet that is not a sequence of message entries")]
    BadPacket,
}

/// Receiver of the messages that a [`Scanner`] finds.
pub(crate) trait Sink {
    /// A message. `body` is all of it when `whole`, else its beginning, with the rest still on the
    /// way.
    fn message(&mut self, head: Head, body: &[u8], whole: bool);
    /// The rest of the message last announced as not whole has arrived.
    fn completed(&mut self);
}

/// Scans the frames of one connection.
#[derive(Debug)]
pub(crate) struct Scanner {
    /// Bytes of the current packet that have not been scanned yet.
    packet_left: usize,
    /// Bytes of the current entry to skip.
    skip: usize,
    /// An incomplete tag or entry beginning; empty between packets.
    carry: Vec<u8>,
    /// Entries up to this many bytes are handed over whole.
    whole_bytes_max: usize,
    /// Complete tags seen.
    pub(crate) frames: u64,
}

impl Scanner {
    /// A scanner that hands over small messages whole and the beginning of large ones.
    pub(crate) fn lean() -> Self {
        Self { packet_left: 0, skip: 0, carry: Vec::new(), whole_bytes_max: WHOLE_BYTES_MAX, frames: 0 }
    }

    /// A scanner that hands over every message whole.
    pub(crate) fn thorough() -> Self {
        Self { whole_bytes_max: usize::MAX, ..Self::lean() }
    }

    /// Number of next bytes that can be discarded unread; report them with [`Self::skipped`].
    pub(crate) fn skip_bytes(&self) -> usize {
        self.skip
    }

    /// True if the next byte starts a frame.
    pub(crate) fn is_between_packets(&self) -> bool {
        self.packet_left == 0 && self.skip == 0 && self.carry.is_empty()
    }

    /// Notes that `count` bytes, at most [`Self::skip_bytes`], were discarded.
    pub(crate) fn skipped(&mut self, count: usize, sink: &mut dyn Sink) {
        self.skip -= count;
        if self.skip == 0 && count > 0 {
            sink.completed();
        }
    }

    /// Scans the next received bytes.
    ///
    /// # Errors
    /// If they violate the protocol; the connection is then unusable.
    pub(crate) fn feed(&mut self, input: &[u8], sink: &mut dyn Sink) -> Result<(), ScanError> {
        if self.carry.is_empty() {
            let used = self.scan(input, sink)?;
            self.carry.extend_from_slice(&input[used..]);
        } else {
            let mut data = std::mem::take(&mut self.carry);
            data.extend_from_slice(input);
            let used = self.scan(&data, sink)?;
            data.drain(..used);
            // An idle connection should hold no buffer.
            self.carry = if data.is_empty() { Vec::new() } else { data };
        }
        Ok(())
    }

    /// Scans as far as possible and returns how many bytes were used.
    fn scan(&mut self, data: &[u8], sink: &mut dyn Sink) -> Result<usize, ScanError> {
        let mut at = 0;
        loop {
            let rest = &data[at..];
            if self.skip > 0 {
                let count = self.skip.min(rest.len());
                if count == 0 {
                    return Ok(at);
                }
                at += count;
                self.skipped(count, sink);
            } else if self.packet_left == 0 {
                let Some(&[magic_0, magic_1, high, low, compression]) = rest.first_chunk::<TAG_BYTES>()
                else {
                    return Ok(at);
                };
                if (magic_0, magic_1) != (b'C', b'H') {
                    return Err(ScanError::BadTag(magic_0, magic_1));
                }
                if compression != 0 {
                    return Err(ScanError::Compressed);
                }
                self.packet_left = usize::from(u16::from_be_bytes([high, low]));
                self.frames += 1;
                at += TAG_BYTES;
            } else {
                let used = self.entry(rest, sink)?;
                if used == 0 {
                    return Ok(at);
                }
                at += used;
            }
        }
    }

    /// Handles one entry at the start of `rest`; 0 when more bytes are needed.
    fn entry(&mut self, rest: &[u8], sink: &mut dyn Sink) -> Result<usize, ScanError> {
        let available = &rest[..rest.len().min(self.packet_left)];
        let Some((&first, after_tag)) = available.split_first() else { return Ok(0) };
        if first != (1 << 3 | 2) {
            return Err(ScanError::BadPacket);
        }
        let Some((length, content)) = take_varint(after_tag) else {
            let complete = available.len() == self.packet_left || after_tag.len() >= 10;
            return if complete { Err(ScanError::BadPacket) } else { Ok(0) };
        };
        let header = available.len() - content.len();
        let length = usize::try_from(length).map_err(|_| ScanError::BadPacket)?;
        let total = header
            .checked_add(length)
            .filter(|&total| total <= self.packet_left)
            .ok_or(ScanError::BadPacket)?;
        let whole = total <= self.whole_bytes_max;
        let window = if whole { length } else { length.min(PREFIX_BYTES) };
        if content.len() < window {
            return Ok(0);
        }
        let (head, body) = envelope(&content[..window]);
        self.packet_left -= total;
        self.skip = length - window;
        sink.message(head, body, self.skip == 0);
        Ok(header + window)
    }
}

/// Splits (the beginning of) a `MessagePack` into its envelope and (the beginning of) its body.
fn envelope(entry: &[u8]) -> (Head, &[u8]) {
    let mut head = Head::default();
    let mut body: &[u8] = &[];
    for (field, value) in Fields(entry) {
        match (field, value) {
            (1, Value::Number(value)) => head.channel = value as u32,
            (2, Value::Number(value)) => head.broadcast = value as u32,
            (3, Value::Number(value)) => head.stub = value as u32,
            (4, Value::Number(value)) => head.kind = value as u32,
            (5, Value::Bytes { bytes, .. }) => body = bytes,
            _ => {}
        }
    }
    (head, body)
}

/// `AuthResultMessage`, as far as needed: connection id and whether it succeeded.
pub(crate) fn auth_result(body: &[u8]) -> (u32, bool) {
    let (mut conn, mut result) = (0, 0);
    for (field, value) in Fields(body) {
        match field {
            1 => result = value.number(),
            2 => conn = value.number() as u32,
            _ => {}
        }
    }
    (conn, result == 0)
}

/// True if an `AuthResultMessage` tells its receiver that it recovered its state.
pub(crate) fn should_recover(body: &[u8]) -> bool {
    Fields(body).any(|(field, value)| field == 4 && value.number() != 0)
}

/// A repeated number field, packed or not.
pub(crate) fn numbers(body: &[u8], number: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for (_, value) in Fields(body).filter(|&(field, _)| field == number) {
        match value {
            Value::Number(value) => found.push(value as u32),
            Value::Bytes { mut bytes, .. } => {
                while let Some((value, rest)) = take_varint(bytes) {
                    found.push(value as u32);
                    bytes = rest;
                }
            }
        }
    }
    found
}

/// Channel and data of a `ChannelDataRecoveryMessage`.
pub(crate) fn recovery(body: &[u8]) -> (u32, &[u8]) {
    let (mut channel, mut data) = (0, &[][..]);
    for (field, value) in Fields(body) {
        match field {
            1 => channel = value.number() as u32,
            7 => data = any_value(value.bytes()),
            _ => {}
        }
    }
    (channel, data)
}

/// The connection id that a result of SUB_TO_CHANNEL or UNSUB_FROM_CHANNEL is about.
pub(crate) fn subject(body: &[u8]) -> u32 {
    Fields(body).find(|&(field, _)| field == 1).map_or(0, |(_, value)| value.number() as u32)
}

/// The channel id of a `CreateChannelResultMessage`.
pub(crate) fn created_channel(body: &[u8]) -> u32 {
    Fields(body).find(|&(field, _)| field == 4).map_or(0, |(_, value)| value.number() as u32)
}

/// Sender and payload of a `ServerForwardMessage`.
pub(crate) fn forwarded(body: &[u8]) -> (u32, &[u8]) {
    let (mut conn, mut payload): (u32, &[u8]) = (0, &[]);
    for (field, value) in Fields(body) {
        match field {
            1 => conn = value.number() as u32,
            2 => payload = value.bytes(),
            _ => {}
        }
    }
    (conn, payload)
}

/// (The beginning of) the value in (the beginning of) a `ChannelDataUpdateMessage`.
pub(crate) fn update_value(body: &[u8]) -> &[u8] {
    any_value(Fields(body).find(|&(field, _)| field == 1).map_or(&[][..], |(_, value)| value.bytes()))
}

/// The value of (the beginning of) a serialized `Any`.
pub(crate) fn any_value(any: &[u8]) -> &[u8] {
    Fields(any).find(|&(field, _)| field == 2).map_or(&[][..], |(_, value)| value.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen {
        messages: Vec<(Head, Vec<u8>, bool)>,
        completed: usize,
    }

    impl Sink for Seen {
        fn message(&mut self, head: Head, body: &[u8], whole: bool) {
            self.messages.push((head, body.to_vec(), whole));
        }
        fn completed(&mut self) {
            self.completed += 1;
        }
    }

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        auth(&mut out, 1, "player", "token");
        put_frame(&mut out, |packet| {
            put_entry(packet, Head { channel: 7, kind: 8, ..Head::default() }, &vec![9; 5_000]);
            put_entry(packet, Head { kind: 100, ..Head::default() }, b"small");
            put_entry(packet, Head { kind: 101, ..Head::default() }, b"");
        });
        subscribe(&mut out, 2, 7, 12, 20);
        out
    }

    #[test]
    fn any_cutting_finds_the_same_messages() {
        let bytes = stream();
        for step in [1, 2, 3, 7, 100, 383, 384, 385, 4_999, bytes.len()] {
            let mut seen = Seen::default();
            let mut scanner = Scanner::lean();
            for chunk in bytes.chunks(step) {
                scanner.feed(chunk, &mut seen).expect("valid stream");
            }
            let kinds: Vec<_> = seen.messages.iter().map(|(head, _, whole)| (head.kind, *whole)).collect();
            assert_eq!(
                kinds,
                [(1, true), (8, false), (100, true), (101, true), (6, true)],
                "cut every {step}"
            );
            assert_eq!(seen.completed, 1);
            assert_eq!(scanner.frames, 3);
            assert!(scanner.carry.is_empty() && scanner.packet_left == 0);
        }
    }

    #[test]
    fn discarding_in_place_of_feeding_reaches_the_same_end() {
        let bytes = stream();
        let mut seen = Seen::default();
        let mut scanner = Scanner::lean();
        let mut at = 0;
        while at < bytes.len() {
            let skip = scanner.skip_bytes().min(bytes.len() - at);
            if skip > 0 {
                scanner.skipped(skip, &mut seen);
                at += skip;
            } else {
                let end = (at + 400).min(bytes.len());
                scanner.feed(&bytes[at..end], &mut seen).expect("valid stream");
                at = end;
            }
        }
        assert_eq!((seen.messages.len(), seen.completed), (5, 1));
    }

    #[test]
    fn thorough_scanner_hands_over_everything_whole() {
        let mut seen = Seen::default();
        let mut scanner = Scanner::thorough();
        for chunk in stream().chunks(100) {
            scanner.feed(chunk, &mut seen).expect("valid stream");
        }
        assert!(seen.messages.iter().all(|(_, _, whole)| *whole));
        assert_eq!(seen.messages[1].1, vec![9; 5_000]);
    }

    #[test]
    fn known_frames_are_written_as_peers_expect() {
        // The vector `auth_request` of the protocol text.
        let mut out = Vec::new();
        auth(&mut out, 1, "test_pit", "test_lt");
        let mut expected = vec![0x43, 0x48, 0, 0x1b, 0, 0x0a, 0x19, 0x18, 1, 0x20, 1, 0x2a, 0x13, 0x0a, 8];
        expected.extend_from_slice(b"test_pit");
        expected.extend_from_slice(&[0x12, 7]);
        expected.extend_from_slice(b"test_lt");
        assert_eq!(out, expected);
    }

    #[test]
    fn wrong_bytes_are_refused() {
        let scan = |bytes: &[u8]| Scanner::lean().feed(bytes, &mut Seen::default());
        assert_eq!(scan(b"HTTP/1.1 400"), Err(ScanError::BadTag(b'H', b'T')));
        assert_eq!(scan(&[0x43, 0x48, 0, 4, 1, 0]), Err(ScanError::Compressed));
        assert_eq!(scan(&[0x43, 0x48, 0, 2, 0, 0x12, 0]), Err(ScanError::BadPacket));
        assert_eq!(scan(&[0x43, 0x48, 0, 2, 0, 0x0a, 9]), Err(ScanError::BadPacket));
        assert_eq!(scan(&[0x43, 0x48, 0, 2, 0, 0x0a, 0x80]), Err(ScanError::BadPacket));
    }
}
