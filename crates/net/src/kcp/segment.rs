//! Layout of a KCP segment.

/// Bytes of a segment before its payload.
pub const SEGMENT_HEADER_BYTES: usize = 24;

pub(super) const PUSH: u8 = 81;
pub(super) const ACK: u8 = 82;
pub(super) const ASK_WINDOW: u8 = 83;
pub(super) const TELL_WINDOW: u8 = 84;

/// A segment as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Number of the session.
    pub conv: u32,
    /// 81 push, 82 acknowledgement, 83 and 84 window question and answer.
    pub command: u8,
    /// Parts of the message that follow this one.
    pub fragments_left: u8,
    /// Free receive window of the sender, in segments.
    pub window: u16,
    /// Time of sending in milliseconds on the sender's clock; in an acknowledgement that of the
    /// push.
    pub ts: u32,
    /// Sequence number.
    pub sn: u32,
    /// First sequence number that the sender has not received.
    pub una: u32,
    /// Payload of a push.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// Appends the segment.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.conv.to_le_bytes());
        out.extend_from_slice(&[self.command, self.fragments_left]);
        out.extend_from_slice(&self.window.to_le_bytes());
        out.extend_from_slice(&self.ts.to_le_bytes());
        out.extend_from_slice(&self.sn.to_le_bytes());
        out.extend_from_slice(&self.una.to_le_bytes());
        out.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        out.extend_from_slice(self.payload);
    }
}

/// Why a datagram, from some segment on, is not KCP of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// Fewer bytes than a segment header, or than the header's length says.
    #[error("datagram ends inside a segment")]
    Truncated,
    /// An unknown command.
    #[error("unknown command {0}")]
    UnknownCommand(u8),
    /// A segment of another session.
    #[error("segment of session {0}")]
    OtherSession(u32),
    /// An acknowledgement of something that was never sent.
    #[error("acknowledges {0}, which was never sent")]
    NeverSent(u32),
}

/// The segments of a datagram. Total: any bytes give segments, and at most one error at the end.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Segments<'a> {
    /// Reads `datagram`.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }

    fn read(&mut self) -> Option<Result<Segment<'a>, DatagramError>> {
        if self.rest.is_empty() {
            return None;
        }
        let Some((head, rest)) = self.rest.split_first_chunk::<SEGMENT_HEADER_BYTES>() else {
            return Some(Err(DatagramError::Truncated));
        };
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let command = head[4];
        if !(PUSH..=TELL_WINDOW).contains(&command) {
            return Some(Err(DatagramError::UnknownCommand(command)));
        }
        let len = usize::try_from(u32_at(20)).unwrap_or(usize::MAX);
        let Some((payload, rest)) = rest.split_at_checked(len) else {
            return Some(Err(DatagramError::Truncated));
        };
        self.rest = rest;
        Some(Ok(Segment {
            conv: u32_at(0),
            command,
            fragments_left: head[5],
            window: u16::from_le_bytes([head[6], head[7]]),
            ts: u32_at(8),
            sn: u32_at(12),
            una: u32_at(16),
            payload,
        }))
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Result<Segment<'a>, DatagramError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.read();
        if !matches!(item, Some(Ok(_))) {
            self.rest = &[];
        }
        item
    }
}
