//! Encoder of WebSocket frames.

use super::decoder::unmask;

const OP_BINARY: u8 = 2;
const OP_CLOSE: u8 = 8;
pub(crate) const OP_PING: u8 = 9;
pub(crate) const OP_PONG: u8 = 10;

/// Appends one binary message. Clients give a mask, fresh and unpredictable for each message;
/// servers give `None`.
pub fn write_message(out: &mut Vec<u8>, payload: &[u8], mask: Option<[u8; 4]>) {
    write_frame(out, OP_BINARY, payload, mask);
}

/// Appends a close frame. A reason beyond 123 bytes is cut.
pub fn write_close(out: &mut Vec<u8>, code: u16, reason: &str, mask: Option<[u8; 4]>) {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..reason.floor_char_boundary(123)]);
    write_frame(out, OP_CLOSE, &payload, mask);
}

/// Appends a control frame of at most 125 bytes.
pub(crate) fn write_control(out: &mut Vec<u8>, opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) {
    debug_assert!(payload.len() <= 125, "control frames are short");
    write_frame(out, opcode, payload, mask);
}

fn write_frame(out: &mut Vec<u8>, opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) {
    let mask_bit = if mask.is_some() { 0x80 } else { 0 };
    out.push(0x80 | opcode);
    match payload.len() {
        len @ 0..=125 => out.push(mask_bit | len as u8),
        len @ 126..=0xFFFF => {
            out.push(mask_bit | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(mask_bit | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask.unwrap_or_default()[..if mask.is_some() { 4 } else { 0 }]);
    let start = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[start..], mask.unwrap_or_default());
}

/// Follows a stream of outgoing frames to know where one ends and the next may begin, so that
/// control frames go between them. It only looks at lengths; the stream is ours and trusted to be
/// well-formed.
#[derive(Clone, Debug, Default)]
pub struct Borders {
    /// Bytes of the header at hand that were seen.
    head_len: u8,
    /// Bytes the header will have, as far as known.
    head_need: u8,
    /// Bytes of the length field that remain to be read into `left`.
    length_bytes: u8,
    /// Payload bytes to come.
    left: u64,
}

impl Borders {
    /// Nothing of a frame is open.
    pub fn at_border(&self) -> bool {
        self.head_len == 0 && self.left == 0
    }

    /// Takes the next bytes of the stream.
    pub fn advance(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = self.step(rest);
        }
    }

    /// Number of bytes in `slices` that belong to the open frame.
    pub fn open_bytes<'a>(&self, slices: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut ahead = self.clone();
        let mut count = 0;
        for slice in slices {
            let mut rest = slice;
            while !rest.is_empty() {
                if ahead.at_border() {
                    return count;
                }
                let next = ahead.step(rest);
                count += rest.len() - next.len();
                rest = next;
            }
        }
        count
    }

    /// The rest of the frame that is open, if `slices` hold all of it and it has at most `max`
    /// bytes.
    pub fn rest_of_frame<'a>(
        &self,
        slices: impl Iterator<Item = &'a [u8]> + Clone,
        max: usize,
    ) -> Option<Vec<u8>> {
        let count = self.open_bytes(slices.clone());
        if count == 0 || count > max {
            return None;
        }
        let mut rest = Vec::with_capacity(count);
        for slice in slices {
            rest.extend_from_slice(&slice[..slice.len().min(count - rest.len())]);
        }
        let mut ahead = self.clone();
        ahead.advance(&rest);
        ahead.at_border().then_some(rest)
    }

    /// Takes one header byte, or payload up to the end of the frame. Returns what is left of
    /// `bytes`, which is not empty.
    fn step<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.head_len == 0 && self.left > 0 {
            let take = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
            self.left -= take as u64;
            return &bytes[take..];
        }
        let Some((&byte, rest)) = bytes.split_first() else { return bytes };
        match self.head_len {
            0 => self.head_need = 2,
            1 => {
                let mask_bytes = if byte & 0x80 != 0 { 4 } else { 0 };
                (self.length_bytes, self.left) = match byte & 0x7F {
                    126 => (2, 0),
                    127 => (8, 0),
                    short => (0, u64::from(short)),
                };
                self.head_need = 2 + self.length_bytes + mask_bytes;
            }
            _ if self.length_bytes > 0 => {
                self.left = self.left << 8 | u64::from(byte);
                self.length_bytes -= 1;
            }
            _ => {}
        }
        self.head_len += 1;
        if self.head_len == self.head_need && self.head_len >= 2 {
            self.head_len = 0;
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn borders_are_found_however_the_stream_is_cut(
            sizes in proptest::collection::vec(prop_oneof![0usize..200, 65_530..65_540usize], 1..6),
            masked: bool,
            cuts in proptest::collection::vec(1usize..5000, 1..50),
        ) {
            let mut wire = Vec::new();
            let mut ends = vec![0];
            for size in sizes {
                write_message(&mut wire, &vec![0; size], masked.then_some([1, 2, 3, 4]));
                ends.push(wire.len());
            }
            let mut borders = Borders::default();
            let (mut at, mut cuts) = (0, cuts.iter().cycle());
            while at < wire.len() {
                let rest = &wire[at..];
                let open = borders.open_bytes(rest.chunks(7));
                let end = *ends.iter().find(|&&end| end >= at).unwrap();
                prop_assert_eq!(at + open, end);
                let take = (*cuts.next().unwrap()).min(rest.len());
                borders.advance(&rest[..take]);
                at += take;
                prop_assert_eq!(borders.at_border(), ends.contains(&at), "at byte {}", at);
            }
        }
    }
}
