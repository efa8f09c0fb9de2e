//! Frames: a 20-byte header, little-endian, and a body.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 20;
/// Longest body, unless the receiver's hello-ack sets another limit.
pub const FRAME_BODY_BYTES_MAX: usize = 1 << 20;
/// The version that hello and hello-ack carry.
pub const PROTOCOL_VERSION: u64 = 1;

/// Bits of [`Header::flags`].
pub mod flags {
    /// The body is compressed with zstd. Reserved: no peer announces it yet, and a frame with it is
    /// refused.
    pub const COMPRESSED: u8 = 1;
    /// A request whose response is not wanted.
    pub const NO_RESPONSE: u8 = 2;
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A call of a method.
    #[default]
    Request = 0,
    /// Its answer.
    Response = 1,
    /// Entries of the destination's stream of notifications.
    Notify = 2,
    /// The first frame of a client.
    Hello = 3,
    /// The server's answer to it.
    HelloAck = 4,
    /// Acknowledges notifications up to a number.
    NotifyAck = 5,
    /// Asks for a pong.
    Ping = 6,
    /// Answers a ping.
    Pong = 7,
    /// The sender is about to close.
    Goaway = 8,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            0 => Kind::Request,
            1 => Kind::Response,
            2 => Kind::Notify,
            3 => Kind::Hello,
            4 => Kind::HelloAck,
            5 => Kind::NotifyAck,
            6 => Kind::Ping,
            7 => Kind::Pong,
            8 => Kind::Goaway,
            _ => return None,
        })
    }
}

/// The head of a frame; the body's length is not part of it but of [`Header::write`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// See [`flags`].
    pub flags: u8,
    /// Request: number of the method. Response: status, 0 is success.
    pub code: u16,
    /// Request and response: chosen by the caller. Notify: sequence number of the last entry.
    pub id: u64,
    /// Request: milliseconds until its deadline, 0 means 3,000. Response: microseconds of
    /// processing.
    pub extra: u32,
}

impl Header {
    /// Appends the header and `body`.
    pub fn write(&self, out: &mut Vec<u8>, body: &[u8]) {
        out.extend_from_slice(&self.bytes(body.len()));
        out.extend_from_slice(body);
    }

    /// The header of a frame whose body has `body_len` bytes.
    ///
    /// # Panics
    /// For a body of 4 GiB and more.
    #[must_use]
    pub fn bytes(&self, body_len: usize) -> [u8; HEADER_BYTES] {
        let len = u32::try_from(body_len).expect("bodies are bounded far below 4 GiB");
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = self.flags;
        bytes[6..8].copy_from_slice(&self.code.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..].copy_from_slice(&self.extra.to_le_bytes());
        bytes
    }

    /// Appends a header now and the body by `write`, whose length is filled in afterwards.
    pub fn write_with(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.extend_from_slice(&self.bytes(0));
        write(out);
        let len =
            u32::try_from(out.len() - start - HEADER_BYTES).expect("bodies are bounded far below 4 GiB");
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }
}

/// Why a stream cannot be read on; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// A body longer than the receiver's limit.
    #[error("frame body of {declared} bytes exceeds the limit of {limit}; send less at a time")]
    TooLarge {
        /// Decoded header.
        declared: usize,
        /// The receiver's limit.
        limit: usize,
    },
    /// A kind that this version does not know.
    #[error("frame kind {0} is unknown")]
    UnknownKind(u8),
    /// Flags that this version does not know or that were not negotiated.
    #[error("frame flags {0:#04x} are not supported")]
    UnknownFlags(u8),
}

/// Result of decoding the front of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSplit<'a> {
    /// A frame, and how many bytes it takes.
    Whole {
        /// Its head.
        header: Header,
        /// Its body.
        body: &'a [u8],
        /// Bytes of both.
        used: usize,
    },
    /// The beginning of one.
    Partial {
        /// Bytes that are needed before the next try can say more.
        needed: usize,
    },
}

/// Looks at the front of `bytes`.
///
/// # Errors
/// [`BadFrame`]; a length over `body_bytes_max` is found before the body has arrived.
#[inline]
pub fn split(bytes: &[u8], body_bytes_max: usize) -> Result<FrameSplit<'_>, BadFrame> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(FrameSplit::Partial { needed: HEADER_BYTES });
    };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let declared = word(0) as usize;
    if declared > body_bytes_max {
        return Err(BadFrame::TooLarge { declared, limit: body_bytes_max });
    }
    let kind = Kind::from_byte(head[4]).ok_or(BadFrame::UnknownKind(head[4]))?;
    if head[5] & !flags::NO_RESPONSE != 0 {
        return Err(BadFrame::UnknownFlags(head[5]));
    }
    let Some(body) = rest.get(..declared) else {
        return Ok(FrameSplit::Partial { needed: HEADER_BYTES + declared });
    };
    let header = Header {
        kind,
        flags: head[5],
        code: u16::from_le_bytes([head[6], head[7]]),
        id: u64::from(word(8)) | u64::from(word(12)) << 32,
        extra: word(16),
    };
    Ok(FrameSplit::Whole { header, body, used: HEADER_BYTES + declared })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_laid_out_as_documented() {
        let header =
            Header { kind: Kind::Response, flags: 0, code: 0x0102, id: 0x1122_3344_5566_7788, extra: 9 };
        let mut wire = Vec::new();
        header.write(&mut wire, b"abc");
        assert_eq!(
            wire,
            [
                3, 0, 0, 0, 1, 0, 2, 1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 9, 0, 0, 0, b'a',
                b'b', b'c'
            ]
        );
        for cut in 0..wire.len() {
            let needed = if cut < HEADER_BYTES { HEADER_BYTES } else { wire.len() };
            assert_eq!(split(&wire[..cut], 16), Ok(FrameSplit::Partial { needed }), "{cut} bytes");
        }
        assert_eq!(split(&wire, 16), Ok(FrameSplit::Whole { header, body: b"abc", used: wire.len() }));
        let mut late = Vec::new();
        header.write_with(&mut late, |out| out.extend_from_slice(b"abc"));
        assert_eq!(late, wire);
    }

    #[test]
    fn what_cannot_be_read_on_is_named() {
        let mut wire = Vec::new();
        Header::default().write(&mut wire, &[0; 20]);
        assert_eq!(split(&wire[..HEADER_BYTES], 19), Err(BadFrame::TooLarge { declared: 20, limit: 19 }));
        let (mut kind, mut flag) = (wire.clone(), wire);
        kind[4] = 9;
        assert_eq!(split(&kind, 64), Err(BadFrame::UnknownKind(9)));
        flag[5] = flags::COMPRESSED;
        assert_eq!(split(&flag, 64), Err(BadFrame::UnknownFlags(1)));
    }
}
