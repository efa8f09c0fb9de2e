//! Decoder of WebSocket frames: control frames, messages and violations of RFC 6455.

use std::ops::ControlFlow;

use super::Role;

/// Bytes of the longest frame header: two, an eight-byte length and a mask.
const HEAD_BYTES: usize = 14;
/// Longest payload of a control frame. Spec: RFC 6455 §5.5
const CONTROL_BYTES_MAX: u64 = 125;

const OP_CONTINUATION: u8 = 0;
const OP_TEXT: u8 = 1;
const OP_BINARY: u8 = 2;
const OP_CLOSE: u8 = 8;
const OP_PING: u8 = 9;
const OP_PONG: u8 = 10;

/// Something that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The next bytes of a binary message; never empty.
    Data(&'a [u8]),
    /// The message whose bytes came last is complete. Empty messages consist of this alone.
    MessageEnd,
    /// A ping, to be answered with a pong of the same payload (at most 125 bytes).
    Ping(&'a [u8]),
    /// A pong (at most 125 bytes).
    Pong(&'a [u8]),
    /// The peer says goodbye. Nothing is decoded after it.
    Close {
        /// Why, if the peer said so; a code that may appear on the wire.
        code: Option<u16>,
        /// More about it, for people.
        reason: &'a str,
    },
}

/// The peer broke the protocol, or a rule of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reserved bit is set, although no extension was agreed on.
    #[error("reserved bits set without an extension")]
    ReservedBits,
    /// An opcode without a meaning.
    #[error("unknown opcode {0}")]
    UnknownOpcode(u8),
    /// A client sent an unmasked frame.
    #[error("client frame is not masked")]
    NotMasked,
    /// A server sent a masked frame.
    #[error("server frame is masked")]
    Masked,
    /// A control frame has more than 125 bytes.
    #[error("control frame exceeds 125 bytes")]
    ControlTooLong,
    /// A control frame is fragmented.
    #[error("control frame is fragmented")]
    ControlFragmented,
    /// A continuation frame outside a message.
    #[error("continuation without a message")]
    NothingToContinue,
    /// A new message before the last one was complete.
    #[error("new message inside a message")]
    MessageInMessage,
    /// A length not written in the fewest bytes, or one above 2^63.
    #[error("payload length is not in its shortest form")]
    BadLength,
    /// A text message.
    #[error("text messages are not supported, send binary")]
    Text,
    /// A message larger than allowed.
    #[error("message exceeds {limit} bytes")]
    MessageTooLarge {
        /// Bytes allowed.
        limit: u64,
    },
    /// More frames without application data, pings and pongs among them, than a peer has reason to
    /// send.
    #[error("more than {limit} control or empty frames a second")]
    BareFrames {
        /// Frames allowed in a second.
        limit: u32,
    },
    /// A close frame with one byte of payload or a code that must not be sent.
    #[error("bad close frame")]
    BadClose,
    /// A close reason that is not UTF-8.
    #[error("close reason is not UTF-8")]
    BadCloseReason,
}

impl ProtocolError {
    /// The code to close the connection with. Spec: RFC 6455 §7.4.1
    pub fn close_code(&self) -> u16 {
        match self {
            Self::Text => 1003,
            Self::BadCloseReason => 1007,
            Self::BareFrames { .. } => 1008,
            Self::MessageTooLarge { .. } => 1009,
            _ => 1002,
        }
    }
}

/// Decodes the frames that one peer sends. Total: any bytes give events or an error.
#[derive(Clone, Debug)]
pub struct Decoder {
    role: Role,
    message_bytes_max: u64,
    /// The header at hand, as far as it has arrived.
    head: [u8; HEAD_BYTES],
    /// Valid bytes of `head`.
    head_len: u8,
    /// The header is complete and the payload is being read.
    in_payload: bool,
    opcode: u8,
    fin: bool,
    /// Payload bytes of the frame that have not arrived.
    left: u64,
    /// Mask, rotated so that its first byte belongs to the next payload byte.
    mask: [u8; 4],
    /// A message has begun and not ended.
    in_message: bool,
    /// Bytes of the message announced so far.
    message_bytes: u64,
    /// Payload of a control frame that arrived in pieces; empty otherwise.
    control: Vec<u8>,
    closed: bool,
    /// Control frames and empty ones since they were last asked for.
    bare_frames: u32,
}

impl Decoder {
    /// A decoder for what arrives at an end of the given role, with messages of `message_bytes_max`
    /// bytes at most.
    pub fn new(role: Role, message_bytes_max: u64) -> Self {
        Self {
            role,
            message_bytes_max,
            head: [0; HEAD_BYTES],
            head_len: 0,
            in_payload: false,
            opcode: 0,
            fin: false,
            left: 0,
            mask: [0; 4],
            in_message: false,
            message_bytes: 0,
            control: Vec::new(),
            closed: false,
            bare_frames: 0,
        }
    }

    /// Decodes `input`, unmasking payloads in place, and passes every event to `on_event` until
    /// that breaks off. Returns how many bytes were used: all, unless `on_event` broke off; the
    /// rest is to be fed again later.
    ///
    /// # Errors
    /// The connection is to be closed with the error's [code](ProtocolError::close_code); the
    /// decoder is of no further use.
    pub fn feed(
        &mut self,
        input: &mut [u8],
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<usize, ProtocolError> {
        let mut used = 0;
        loop {
            if self.closed {
                return Ok(input.len());
            }
            if !self.in_payload {
                used += self.read_head(&input[used..])?;
                if !self.in_payload {
                    return Ok(used);
                }
            }
            // Runs for empty payloads as well: they complete frames too.
            let available = input.len() - used;
            let take = usize::try_from(self.left).map_or(available, |left| left.min(available));
            if take == 0 && self.left > 0 {
                return Ok(used);
            }
            let payload = &mut input[used..used + take];
            unmask(payload, self.mask);
            self.mask.rotate_left(take % 4);
            self.left -= take as u64;
            used += take;
            if self.handle_payload(payload, on_event)?.is_break() {
                return Ok(used);
            }
        }
    }

    /// Frames that carried no application data, since the last call.
    pub(crate) fn take_bare_frames(&mut self) -> u32 {
        std::mem::take(&mut self.bare_frames)
    }

    /// A message has begun and not ended, or a frame's header has not fully arrived.
    pub fn is_mid_message(&self) -> bool {
        self.in_message || self.in_payload || self.head_len > 0
    }

    /// Collects a header. Returns how many bytes of `input` belong to it.
    fn read_head(&mut self, input: &[u8]) -> Result<usize, ProtocolError> {
        let mut used = 0;
        loop {
            let have = usize::from(self.head_len);
            let need = match have {
                0 | 1 => 2,
                _ => {
                    let length_bytes = match self.head[1] & 0x7F {
                        126 => 2,
                        127 => 8,
                        _ => 0,
                    };
                    2 + length_bytes + if self.head[1] & 0x80 != 0 { 4 } else { 0 }
                }
            };
            if have >= need && have >= 2 {
                self.start_frame(need)?;
                return Ok(used);
            }
            let take = (need - have).min(input.len() - used);
            if take == 0 {
                return Ok(used);
            }
            self.head[have..have + take].copy_from_slice(&input[used..used + take]);
            self.head_len += take as u8;
            used += take;
            // The first two bytes decide what follows: refuse as early as that.
            if have < 2 && self.head_len == 2 {
                self.check_start()?;
            }
        }
    }

    /// Checks what the first two bytes of a header say.
    fn check_start(&mut self) -> Result<(), ProtocolError> {
        let [first, second, ..] = self.head;
        self.fin = first & 0x80 != 0;
        self.opcode = first & 0x0F;
        if first & 0x70 != 0 {
            return Err(ProtocolError::ReservedBits);
        }
        match (self.role, second & 0x80 != 0) {
            (Role::Server, false) => return Err(ProtocolError::NotMasked),
            (Role::Client, true) => return Err(ProtocolError::Masked),
            _ => {}
        }
        match self.opcode {
            OP_CONTINUATION if !self.in_message => Err(ProtocolError::NothingToContinue),
            OP_TEXT | OP_BINARY if self.in_message => Err(ProtocolError::MessageInMessage),
            OP_TEXT => Err(ProtocolError::Text),
            OP_CONTINUATION | OP_BINARY => Ok(()),
            OP_CLOSE | OP_PING | OP_PONG if !self.fin => Err(ProtocolError::ControlFragmented),
            OP_CLOSE | OP_PING | OP_PONG if u64::from(second & 0x7F) > CONTROL_BYTES_MAX => {
                Err(ProtocolError::ControlTooLong)
            }
            OP_CLOSE | OP_PING | OP_PONG => Ok(()),
            other => Err(ProtocolError::UnknownOpcode(other)),
        }
    }

    /// Takes a complete header of `len` bytes.
    fn start_frame(&mut self, len: usize) -> Result<(), ProtocolError> {
        let head = self.head;
        let (left, mask_at) = match head[1] & 0x7F {
            126 => (u64::from(u16::from_be_bytes([head[2], head[3]])), 4),
            127 => {
                let bytes = [head[2], head[3], head[4], head[5], head[6], head[7], head[8], head[9]];
                (u64::from_be_bytes(bytes), 10)
            }
            short => (u64::from(short), 2),
        };
        // Spec: RFC 6455 §5.2, "the minimal number of bytes MUST be used to encode the length".
        if (mask_at == 4 && left < 126) || (mask_at == 10 && (left < 1 << 16 || left >> 63 != 0)) {
            return Err(ProtocolError::BadLength);
        }
        self.left = left;
        self.mask = match head.get(mask_at..len) {
            Some(&[a, b, c, d]) => [a, b, c, d],
            _ => [0; 4],
        };
        self.head_len = 0;
        self.in_payload = true;
        if self.opcode > OP_BINARY || left == 0 {
            self.bare_frames += 1;
        }
        if self.opcode == OP_BINARY {
            self.in_message = true;
            self.message_bytes = 0;
        }
        if self.opcode <= OP_BINARY {
            self.message_bytes = self.message_bytes.saturating_add(left);
            if self.message_bytes > self.message_bytes_max {
                return Err(ProtocolError::MessageTooLarge { limit: self.message_bytes_max });
            }
        }
        Ok(())
    }

    /// Takes the next unmasked bytes of a payload.
    fn handle_payload(
        &mut self,
        bytes: &[u8],
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ProtocolError> {
        let frame_done = self.left == 0;
        self.in_payload = !frame_done;
        if self.opcode <= OP_BINARY {
            let mut flow = ControlFlow::Continue(());
            if !bytes.is_empty() {
                flow = on_event(Event::Data(bytes));
            }
            if frame_done && self.fin {
                self.in_message = false;
                // Not subject to the flow: it carries nothing that could be held back.
                if on_event(Event::MessageEnd).is_break() {
                    flow = ControlFlow::Break(());
                }
            }
            return Ok(flow);
        }
        if !frame_done || !self.control.is_empty() {
            self.control.extend_from_slice(bytes);
        }
        if !frame_done {
            return Ok(ControlFlow::Continue(()));
        }
        let collected = std::mem::take(&mut self.control);
        let payload = if collected.is_empty() { bytes } else { &collected };
        match self.opcode {
            OP_PING => Ok(on_event(Event::Ping(payload))),
            OP_PONG => Ok(on_event(Event::Pong(payload))),
            _ => {
                let (code, reason) = parse_close(payload)?;
                self.closed = true;
                Ok(on_event(Event::Close { code, reason }))
            }
        }
    }
}

fn parse_close(payload: &[u8]) -> Result<(Option<u16>, &str), ProtocolError> {
    match payload {
        [] => Ok((None, "")),
        [_] => Err(ProtocolError::BadClose),
        [high, low, reason @ ..] => {
            let code = u16::from_be_bytes([*high, *low]);
            // Spec: RFC 6455 §7.4 and the IANA registry. 1004 is undefined; 1005, 1006 and 1015
            // never travel.
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(ProtocolError::BadClose);
            }
            let reason = std::str::from_utf8(reason).map_err(|_| ProtocolError::BadCloseReason)?;
            Ok((Some(code), reason))
        }
    }
}

/// Applies a mask, eight bytes at a time.
pub(super) fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    if mask == [0; 4] {
        return;
    }
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, tail) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in tail.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn unmasking_by_words_equals_unmasking_by_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            mask: [u8; 4],
        ) {
            let mut fast = bytes.clone();
            unmask(&mut fast, mask);
            let slow: Vec<u8> = bytes.iter().enumerate().map(|(i, byte)| byte ^ mask[i % 4]).collect();
            prop_assert_eq!(fast, slow);
        }

        #[test]
        fn any_bytes_give_events_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cuts in proptest::collection::vec(1usize..40, 1..20),
            client: bool,
        ) {
            let role = if client { Role::Client } else { Role::Server };
            let whole = decode(role, bytes.clone(), &[bytes.len().max(1)]);
            let pieces = decode(role, bytes, &cuts);
            prop_assert_eq!(whole, pieces, "the outcome depends on how the bytes arrive");
        }
    }

    /// Decodes `bytes` cut into pieces, to one text per event (data of one message joined).
    fn decode(role: Role, bytes: Vec<u8>, cuts: &[usize]) -> (Vec<String>, Option<ProtocolError>) {
        let mut decoder = Decoder::new(role, 1000);
        let mut seen = Vec::new();
        let mut data = Vec::new();
        let mut cuts = cuts.iter().cycle();
        let mut rest = bytes;
        while !rest.is_empty() {
            let tail = rest.split_off((*cuts.next().unwrap()).min(rest.len()));
            let outcome = decoder.feed(&mut rest, &mut |event| {
                match event {
                    Event::Data(bytes) => data.extend_from_slice(bytes),
                    other => {
                        seen.push(format!("{:?} {other:?}", std::mem::take(&mut data)));
                    }
                }
                ControlFlow::Continue(())
            });
            if let Err(error) = outcome {
                return (seen, Some(error));
            }
            rest = tail;
        }
        seen.push(format!("{data:?}"));
        (seen, None)
    }
}
