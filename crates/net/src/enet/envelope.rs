//! Bytes in front of the stream's in each packet.

use throng_enet::{Bytes, Lane};

/// Wrapping of a peer's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Envelope {
    /// Nothing.
    None,
    /// Eight bytes with source and target, as Godot 3's high-level multiplayer has them
    /// (crates/enet/GODOT.md); the client's id.
    Godot3(u32),
}

/// Source and target.
const GODOT3_BYTES: usize = 8;

impl Envelope {
    /// A stream begins with the tag of a frame, "C" at least, so two numbers and then a tag are
    /// Godot's.
    pub(super) fn of(first_packet: &[u8]) -> Self {
        match first_packet {
            [a, b, c, d, 1, 0, 0, 0, b'C', b'H', ..] => {
                Envelope::Godot3(u32::from_le_bytes([*a, *b, *c, *d]))
            }
            _ => Envelope::None,
        }
    }

    /// The bytes of the stream.
    pub(super) fn open(self, packet: Bytes) -> Bytes {
        match self {
            Envelope::None => packet,
            // A packet that is too short holds nothing.
            Envelope::Godot3(_) => packet.slice(GODOT3_BYTES.min(packet.len())..),
        }
    }

    /// The packet, and the lane that it belongs on: one for all of a peer's, since ENet keeps the
    /// order of reliable and unreliable packets within a lane only.
    pub(super) fn close(self, bytes: Bytes) -> (Bytes, Lane) {
        match self {
            Envelope::None => (bytes, Lane(0)),
            // From the server, which has id 1. Lane 0 would be news of other clients; Godot reads
            // packets of either delivery on any other.
            Envelope::Godot3(id) => {
                let packet = [&1_u32.to_le_bytes()[..], &id.to_le_bytes(), &bytes].concat();
                (packet.into(), Lane(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_godot_are_told_by_their_first_bytes() {
        let godot = b"\x07\0\0\0\x01\0\0\0CH\0\x01";
        let check = |packet: &[u8], expected| assert_eq!(Envelope::of(packet), expected, "{packet:?}");
        check(godot, Envelope::Godot3(7));
        check(b"CH\0\x01\0", Envelope::None);
        check(b"", Envelope::None);
        check(&godot[..9], Envelope::None);
        let envelope = Envelope::of(godot);
        assert_eq!(envelope.open(Bytes::from_static(godot)), b"CH\0\x01"[..]);
        assert_eq!(envelope.open(Bytes::from_static(b"abc")), b""[..]);
        let (packet, lane) = envelope.close(Bytes::from_static(b"CH"));
        assert_eq!((&packet[..], lane), (&b"\x01\0\0\0\x07\0\0\0CH"[..], Lane(1)));
    }
}
