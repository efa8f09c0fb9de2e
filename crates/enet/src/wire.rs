//! The records on the wire: headers and commands, both ways.
//!
//! ```text
//! datagram   word(2) [sent time(2)] [checksum(4)] command*         one UDP payload
//! word       bits 0-11 peer id of the receiver, 12-13 session, 14 compressed, 15 sent time follows
//! command    flags and number(1) channel(1) reliable number(2) body [payload]
//! ```
//!
//! All integers are big-endian. Decoding is total: any bytes give a value or an error, and a value
//! that was decoded encodes to the bytes it came from (unused flag bits aside).

use alloc::vec::Vec;

/// The first two or four bytes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number that the receiver gave to the connection, or [`PEER_ID_NONE`].
    pub peer_id: u16,
    /// Two bits that change when a peer id is used again.
    pub session: u8,
    /// The commands are compressed as one block.
    pub compressed: bool,
    /// Low sixteen bits of the sender's clock in milliseconds.
    pub sent_time: Option<u16>,
}

impl Header {
    /// Reads a header and the number of bytes it takes, 2 or 4; `None` when there are not enough.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let word = u16::from_be_bytes(*bytes.first_chunk()?);
        let mut header = Self {
            peer_id: word & PEER_ID_NONE,
            session: (word >> SESSION_SHIFT) as u8 & SESSION_MASK,
            compressed: word & COMPRESSED != 0,
            sent_time: None,
        };
        if word & SENT_TIME == 0 {
            return Some((header, 2));
        }
        let (_, rest) = bytes.split_at_checked(2)?;
        header.sent_time = Some(u16::from_be_bytes(*rest.first_chunk()?));
        Some((header, 4))
    }

    /// Reads a header as [`decode`](Self::decode) does, in the layout of another [`Dialect`].
    #[must_use]
    pub fn decode_in(dialect: Dialect, bytes: &[u8]) -> Option<(Self, usize)> {
        let &[first, second, ref rest @ ..] = bytes else { return None };
        match dialect {
            Dialect::Stock => Self::decode(bytes),
            Dialect::CSharp => {
                // The sent time has the bit that stock ENet uses for compression, which this
                // dialect lacks.
                let (mut header, _) = Self::decode(&[first & !(SENT_TIME >> 8) as u8, second])?;
                if !header.compressed {
                    return Some((header, 2));
                }
                header.compressed = false;
                header.sent_time = Some(u16::from_be_bytes(*rest.first_chunk()?));
                Some((header, 4))
            }
        }
    }

    /// Appends the header in the layout of another [`Dialect`].
    pub fn encode_in(&self, dialect: Dialect, out: &mut Vec<u8>) {
        let start = out.len();
        self.encode(out);
        if dialect == Dialect::CSharp {
            debug_assert!(!self.compressed, "this dialect has no compression");
            let is_timed = self.sent_time.is_some();
            out[start] &= !((SENT_TIME | COMPRESSED) >> 8) as u8;
            out[start] |= if is_timed { (COMPRESSED >> 8) as u8 } else { 0 };
        }
    }

    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut word = self.peer_id & PEER_ID_NONE | u16::from(self.session & SESSION_MASK) << SESSION_SHIFT;
        if self.compressed {
            word |= COMPRESSED;
        }
        if self.sent_time.is_some() {
            word |= SENT_TIME;
        }
        let [a, b] = word.to_be_bytes();
        match self.sent_time.map(u16::to_be_bytes) {
            Some([c, d]) => out.extend_from_slice(&[a, b, c, d]),
            None => out.extend_from_slice(&[a, b]),
        }
    }
}

/// Layout of the first two bytes of a peer's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// As the C library.
    #[default]
    Stock,
    /// As ENet-CSharp: the sent time is announced by bit 14, and there is no compression. Spec:
    /// enet §18
    CSharp,
}

/// One record of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// ENet's channel: a lane number for data, [`CHANNEL_NONE`] for everything about the connection
    /// itself.
    pub channel: u8,
    /// The reliable sequence number.
    pub number: u16,
    /// The receiver must acknowledge the command.
    pub acknowledge: bool,
    /// A flag without effect at the receiver, set by custom on unsequenced data and unacknowledged
    /// disconnects.
    pub unsequenced: bool,
    /// The content.
    pub body: Body<'a>,
}

/// Content of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields are those of the specification, explained where a type has its own page"
)]
pub enum Body<'a> {
    /// A command has arrived: its number, and the sent time of the datagram that carried it.
    Acknowledge { number: u16, sent_time: u16 },
    /// Asks for a connection.
    Connect(Handshake, u32),
    /// Grants it.
    VerifyConnect(Handshake),
    /// Ends the connection; the number is the application's.
    Disconnect { data: u32 },
    /// Asks for an acknowledgement and nothing else.
    Ping,
    /// A whole packet that must arrive.
    SendReliable { payload: &'a [u8] },
    /// A whole packet that may get lost but never overtakes.
    SendUnreliable { unreliable_number: u16, payload: &'a [u8] },
    /// Part of a packet that must arrive.
    SendFragment(Fragment<'a>),
    /// A whole packet without any order.
    SendUnsequenced { group: u16, payload: &'a [u8] },
    /// Bandwidth that the sender of this can take from the receiver, and what it sends at most, in
    /// bytes per second; 0 is no limit.
    BandwidthLimit { incoming: u32, outgoing: u32 },
    /// Settings for the receiver's throttle.
    ThrottleConfigure { interval: u32, acceleration: u32, deceleration: u32 },
    /// Part of a packet that may get lost.
    SendUnreliableFragment(Fragment<'a>),
}

/// The terms of a connection, in the same layout in CONNECT and VERIFY_CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The id by which the sender of this wants to be addressed.
    pub peer_id: u16,
    /// Session id that the client expects in datagrams from the server; [`SESSION_UNUSED`] when it
    /// has none yet.
    pub incoming_session: u8,
    /// Session id of the other direction.
    pub outgoing_session: u8,
    /// Longest datagram in bytes, the checksum aside.
    pub mtu: u32,
    /// Bytes of reliable data that may be unacknowledged.
    pub window: u32,
    /// Number of channels.
    pub channels: u32,
    /// Bytes per second that the sender of this can take; 0 is no limit.
    pub incoming_bandwidth: u32,
    /// Bytes per second that the sender of this sends at most; 0 is no limit.
    pub outgoing_bandwidth: u32,
    /// Milliseconds between two looks at the throttle.
    pub throttle_interval: u32,
    /// Steps by which the throttle opens.
    pub throttle_acceleration: u32,
    /// Steps by which it closes.
    pub throttle_deceleration: u32,
    /// Chosen by the client, echoed by the server, never interpreted.
    pub connect_id: [u8; 4],
}

/// Part of a packet that is longer than a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Number of the packet's first fragment (reliable), or the packet's unreliable number.
    pub start: u16,
    /// Fragments in the packet.
    pub count: u32,
    /// Which one this is, from 0.
    pub index: u32,
    /// Length of the packet in bytes.
    pub total: u32,
    /// Offset of the payload in the packet.
    pub offset: u32,
    /// This fragment's share of the packet.
    pub payload: &'a [u8],
}

impl<'a> Command<'a> {
    /// Reads one command from the front of `bytes`, and the number of bytes it takes with its
    /// payload.
    ///
    /// # Errors
    /// When the command is unknown, or longer than `bytes`. A receiver then drops the rest of the
    /// datagram.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        let mut reader = Reader { bytes };
        let first = reader.u8()?;
        let channel = reader.u8()?;
        let number = reader.u16()?;
        let body = match first & COMMAND_MASK {
            ACKNOWLEDGE => Body::Acknowledge { number: reader.u16()?, sent_time: reader.u16()? },
            CONNECT => Body::Connect(reader.handshake()?, reader.u32()?),
            VERIFY_CONNECT => Body::VerifyConnect(reader.handshake()?),
            DISCONNECT => Body::Disconnect { data: reader.u32()? },
            PING => Body::Ping,
            SEND_RELIABLE => {
                let len = reader.u16()?;
                Body::SendReliable { payload: reader.take(len)? }
            }
            SEND_UNRELIABLE => {
                let (unreliable_number, len) = (reader.u16()?, reader.u16()?);
                Body::SendUnreliable { unreliable_number, payload: reader.take(len)? }
            }
            SEND_FRAGMENT => Body::SendFragment(reader.fragment()?),
            SEND_UNSEQUENCED => {
                let (group, len) = (reader.u16()?, reader.u16()?);
                Body::SendUnsequenced { group, payload: reader.take(len)? }
            }
            BANDWIDTH_LIMIT => Body::BandwidthLimit { incoming: reader.u32()?, outgoing: reader.u32()? },
            THROTTLE_CONFIGURE => Body::ThrottleConfigure {
                interval: reader.u32()?,
                acceleration: reader.u32()?,
                deceleration: reader.u32()?,
            },
            SEND_UNRELIABLE_FRAGMENT => Body::SendUnreliableFragment(reader.fragment()?),
            unknown => return Err(DecodeError::Unknown(unknown)),
        };
        let command = Self {
            channel,
            number,
            acknowledge: first & FLAG_ACKNOWLEDGE != 0,
            unsequenced: first & FLAG_UNSEQUENCED != 0,
            body,
        };
        Ok((command, bytes.len() - reader.bytes.len()))
    }

    /// Appends the command.
    ///
    /// # Panics
    /// When a payload is longer than 65,535 bytes: senders cut packets at the MTU, which is at most
    /// 4,096.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (number, payload) = self.body.number_and_payload();
        let mut first = number;
        if self.acknowledge {
            first |= FLAG_ACKNOWLEDGE;
        }
        if self.unsequenced {
            first |= FLAG_UNSEQUENCED;
        }
        let [high, low] = self.number.to_be_bytes();
        let head = [first, self.channel, high, low];
        let two = |first: u16, second: u16| {
            let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
            let [h0, h1, h2, h3] = head;
            [h0, h1, h2, h3, a, b, c, d]
        };
        let len = u16::try_from(payload.len()).expect("payloads are cut at the MTU");
        // The first three in one piece: nearly all commands are of them.
        match self.body {
            Body::Acknowledge { number, sent_time } => out.extend_from_slice(&two(number, sent_time)),
            Body::SendReliable { .. } => out.extend_from_slice(&two(len, 0)[..6]),
            Body::SendUnreliable { unreliable_number: number, .. }
            | Body::SendUnsequenced { group: number, .. } => out.extend_from_slice(&two(number, len)),
            Body::Connect(handshake, data) => {
                out.extend_from_slice(&head);
                handshake.encode(out);
                out.extend_from_slice(&data.to_be_bytes());
            }
            Body::VerifyConnect(handshake) => {
                out.extend_from_slice(&head);
                handshake.encode(out);
            }
            Body::Disconnect { data } => {
                out.extend_from_slice(&head);
                out.extend_from_slice(&data.to_be_bytes());
            }
            Body::Ping => out.extend_from_slice(&head),
            Body::SendFragment(fragment) | Body::SendUnreliableFragment(fragment) => {
                out.extend_from_slice(&two(fragment.start, len));
                for word in [fragment.count, fragment.index, fragment.total, fragment.offset] {
                    out.extend_from_slice(&word.to_be_bytes());
                }
            }
            Body::BandwidthLimit { incoming, outgoing } => {
                out.extend_from_slice(&head);
                out.extend_from_slice(&incoming.to_be_bytes());
                out.extend_from_slice(&outgoing.to_be_bytes());
            }
            Body::ThrottleConfigure { interval, acceleration, deceleration } => {
                out.extend_from_slice(&head);
                for word in [interval, acceleration, deceleration] {
                    out.extend_from_slice(&word.to_be_bytes());
                }
            }
        }
        out.extend_from_slice(payload);
    }

    /// Bytes that [`encode`](Self::encode) appends.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let (number, payload) = self.body.number_and_payload();
        fixed_len(number) + payload.len()
    }
}

impl<'a> Body<'a> {
    fn number_and_payload(&self) -> (u8, &'a [u8]) {
        match *self {
            Body::Acknowledge { .. } => (ACKNOWLEDGE, &[]),
            Body::Connect(..) => (CONNECT, &[]),
            Body::VerifyConnect(_) => (VERIFY_CONNECT, &[]),
            Body::Disconnect { .. } => (DISCONNECT, &[]),
            Body::Ping => (PING, &[]),
            Body::SendReliable { payload } => (SEND_RELIABLE, payload),
            Body::SendUnreliable { payload, .. } => (SEND_UNRELIABLE, payload),
            Body::SendFragment(fragment) => (SEND_FRAGMENT, fragment.payload),
            Body::SendUnsequenced { payload, .. } => (SEND_UNSEQUENCED, payload),
            Body::BandwidthLimit { .. } => (BANDWIDTH_LIMIT, &[]),
            Body::ThrottleConfigure { .. } => (THROTTLE_CONFIGURE, &[]),
            Body::SendUnreliableFragment(fragment) => (SEND_UNRELIABLE_FRAGMENT, fragment.payload),
        }
    }
}

impl Handshake {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.peer_id.to_be_bytes());
        out.extend_from_slice(&[self.incoming_session, self.outgoing_session]);
        let words = [
            self.mtu,
            self.window,
            self.channels,
            self.incoming_bandwidth,
            self.outgoing_bandwidth,
            self.throttle_interval,
            self.throttle_acceleration,
            self.throttle_deceleration,
        ];
        for word in words {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&self.connect_id);
    }
}

/// Why bytes are not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No command has this number.
    #[error("command {0} does not exist")]
    Unknown(u8),
    /// The command, or the payload it announces, is longer than what is left of the datagram.
    #[error("the datagram ends inside a command")]
    Truncated,
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (&array, rest) = self.bytes.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.bytes = rest;
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn take(&mut self, len: u16) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.bytes.split_at_checked(len.into()).ok_or(DecodeError::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn handshake(&mut self) -> Result<Handshake, DecodeError> {
        Ok(Handshake {
            peer_id: self.u16()?,
            incoming_session: self.u8()?,
            outgoing_session: self.u8()?,
            mtu: self.u32()?,
            window: self.u32()?,
            channels: self.u32()?,
            incoming_bandwidth: self.u32()?,
            outgoing_bandwidth: self.u32()?,
            throttle_interval: self.u32()?,
            throttle_acceleration: self.u32()?,
            throttle_deceleration: self.u32()?,
            connect_id: self.array()?,
        })
    }

    fn fragment(&mut self) -> Result<Fragment<'a>, DecodeError> {
        let (start, len) = (self.u16()?, self.u16()?);
        let (count, index, total, offset) = (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        Ok(Fragment { start, count, index, total, offset, payload: self.take(len)? })
    }
}

/// Bytes of a command without its payload.
const fn fixed_len(number: u8) -> usize {
    match number {
        CONNECT => 48,
        VERIFY_CONNECT => 44,
        PING => 4,
        SEND_RELIABLE => 6,
        BANDWIDTH_LIMIT => 12,
        THROTTLE_CONFIGURE => 16,
        SEND_FRAGMENT | SEND_UNRELIABLE_FRAGMENT => 24,
        _ => 8,
    }
}

/// The peer id that means "no connection yet"; ids lie below it.
pub const PEER_ID_NONE: u16 = 0xFFF;
/// The channel of commands about the connection itself.
pub const CHANNEL_NONE: u8 = 0xFF;
/// A session id that was never used.
pub const SESSION_UNUSED: u8 = 0xFF;
/// Session ids are two bits.
pub(crate) const SESSION_MASK: u8 = 3;

const SESSION_SHIFT: u32 = 12;
const COMPRESSED: u16 = 1 << 14;
const SENT_TIME: u16 = 1 << 15;
const COMMAND_MASK: u8 = 0x0F;
const FLAG_UNSEQUENCED: u8 = 1 << 6;
const FLAG_ACKNOWLEDGE: u8 = 1 << 7;
const ACKNOWLEDGE: u8 = 1;
const CONNECT: u8 = 2;
const VERIFY_CONNECT: u8 = 3;
const DISCONNECT: u8 = 4;
const PING: u8 = 5;
const SEND_RELIABLE: u8 = 6;
const SEND_UNRELIABLE: u8 = 7;
const SEND_FRAGMENT: u8 = 8;
const SEND_UNSEQUENCED: u8 = 9;
const BANDWIDTH_LIMIT: u8 = 10;
const THROTTLE_CONFIGURE: u8 = 11;
const SEND_UNRELIABLE_FRAGMENT: u8 = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Header::decode(&bytes);
            if let Ok((command, len)) = Command::decode(&bytes) {
                prop_assert!(len <= bytes.len());
                prop_assert_eq!(command.encoded_len(), len);
                let mut again = Vec::new();
                command.encode(&mut again);
                again[0] |= bytes[0] & 0x30;
                prop_assert_eq!(&again[..], &bytes[..len]);
            }
        }

        #[test]
        fn headers_survive(word: u16, time: u16) {
            let mut bytes = word.to_be_bytes().to_vec();
            bytes.extend_from_slice(&time.to_be_bytes());
            let (header, len) = Header::decode(&bytes).expect("four bytes are enough");
            let mut again = Vec::new();
            header.encode(&mut again);
            prop_assert_eq!(&again[..], &bytes[..len]);
        }
    }
}
