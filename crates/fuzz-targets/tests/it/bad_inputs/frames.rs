//! Byte streams as a TCP peer may send them. Spec: gateway §2.1, §2.5.

use std::ops::ControlFlow;

use throng_wire::frame::{Form, FrameReader};

use super::{check, hex};

/// Name; bytes; packets delivered, then the reason of the closure (`-` while open), then the form
/// if decided.
///
/// `0a022015` is the smallest packet with a message: RECOVERY_END.
pub(crate) const ROWS: &[(&str, &str, &str)] = &[
    // What is right, to compare with.
    ("one frame", "43480004 00 0a022015", "1 - Current"),
    ("two frames in one read", "43480004 00 0a022015 43480004 00 0a022015", "2 - Current"),
    ("nothing", "", "0 - Undecided"),
    // The tag.
    ("first byte wrong", "00", "0 bad_magic Undecided"),
    ("first byte wrong, whole tag", "4248000400", "0 bad_magic Undecided"),
    ("second byte wrong, alone", "4300", "0 bad_magic Undecided"),
    ("second byte wrong, whole tag", "43490004 00 0a022015", "0 bad_magic Undecided"),
    ("lower case magic", "63680004 00 0a022015", "0 bad_magic Undecided"),
    ("swapped magic", "48430004 00 0a022015", "0 bad_magic Undecided"),
    ("an HTTP request", "474554202f20485454502f312e310d0a0d0a", "0 bad_magic Undecided"),
    ("a TLS client hello", "160301020001", "0 bad_magic Undecided"),
    ("an SSH banner", "5353482d322e300d0a", "0 bad_magic Undecided"),
    ("all zeros", "00*64", "0 bad_magic Undecided"),
    ("all ones", "ff*64", "0 bad_magic Undecided"),
    ("text", "68656c6c6f0a", "0 bad_magic Undecided"),
    (
        "a stray line feed between frames",
        "43480004 00 0a022015 0a 43480004 00 0a022015",
        "1 bad_magic Current",
    ),
    ("rubbish behind a frame", "43480004 00 0a022015 deadbeef", "1 bad_magic Current"),
    ("half a tag", "434800", "0 - Undecided"),
    ("a tag alone", "4348000400", "0 - Current"),
    ("a tag of the largest size alone", "4348ffff00", "0 - Undecided"),
    ("a frame that lacks its last byte", "43480004 00 0a0220", "0 - Current"),
    // The size.
    ("size zero", "4348000000", "0 zero_size Undecided"),
    ("size zero behind a frame", "43480004 00 0a022015 4348000000", "1 zero_size Current"),
    ("size zero, compressed", "4348000001", "0 zero_size Undecided"),
    ("size one less than the packet", "43480003 00 0a022015", "0 bad_packet Current"),
    ("size one more than the packet", "43480005 00 0a022015 43", "0 bad_packet Current"),
    // The compression byte.
    ("compression 2", "43480004 02 0a022015", "0 unknown_compression Undecided"),
    ("compression 255", "43480004 ff 0a022015", "0 unknown_compression Undecided"),
    ("compression 0x80", "43480004 80 0a022015", "0 unknown_compression Undecided"),
    ("unknown compression before size zero", "4348000002", "0 unknown_compression Undecided"),
    // Snappy: a varint with the length, then elements.
    ("a good block", "43480006 01 040c 0a022015", "1 - Current"),
    ("a block of nothing", "43480001 01 00", "1 - Current"),
    ("plain bytes under compression 1", "43480004 01 0a022015", "0 bad_snappy Current"),
    ("a length without end", "43480002 01 8080", "0 bad_snappy Current"),
    ("a length of eleven bytes", "4348000b 01 ff*10 01", "0 bad_snappy Current"),
    ("a length of 4 GiB", "43480006 01 ffffffff0f 00", "0 declared_too_large Current"),
    ("a length one over the cap", "43480004 01 808004 00", "0 declared_too_large Current"),
    ("a length at the cap without content", "43480003 01 ffff03", "0 bad_snappy Current"),
    ("a literal longer than the block", "43480003 01 0410 0a", "0 bad_snappy Current"),
    ("a literal shorter than declared", "43480005 01 080c 0a0220", "0 bad_snappy Current"),
    ("bytes after the declared length", "43480007 01 040c 0a022015 00", "0 bad_snappy Current"),
    ("a copy from before the start", "43480004 01 04 01 01 00", "0 bad_snappy Current"),
    ("a copy with offset zero", "43480008 01 080c 0a022015 01 00", "0 bad_snappy Current"),
    ("a good block of no packet", "43480006 01 040c ffffffff", "0 bad_packet Current"),
    // The packet.
    ("a packet of one byte", "43480001 00 0a", "0 bad_packet Current"),
    ("a packet that is no protobuf", "43480004 00 ffffffff", "0 bad_packet Current"),
    ("an entry longer than the packet", "43480004 00 0a032015", "0 bad_packet Current"),
    ("a good packet before a bad one", "43480004 00 0a022015 43480002 00 0a05", "1 bad_packet Current"),
    ("a packet of unknown fields", "43480002 00 7800", "1 - Current"),
    // The legacy form.
    ("a legacy frame", "43484e04 00 0a022015", "1 - Legacy"),
    ("legacy frames after each other", "43484e04 00 0a022015 43484e04 00 0a022015", "2 - Legacy"),
    ("a legacy frame, then size zero", "43484e04 00 0a022015 43484e0000", "1 zero_size Legacy"),
    ("a legacy frame, then a bad magic", "43484e04 00 0a022015 00", "1 bad_magic Legacy"),
    ("a legacy frame, then a bad packet", "43484e04 00 0a022015 43484e02 00 ffff", "1 bad_packet Legacy"),
    ("a legacy frame, then one of 16 MiB", "43484e04 00 0a022015 43ffffff00", "1 legacy_too_large Legacy"),
    ("a legacy frame, then one of 64 KiB", "43484e04 00 0a022015 4301000000", "1 legacy_too_large Legacy"),
    ("a 24-bit size from an undecided peer", "4301000000", "0 bad_magic Undecided"),
    ("a 24-bit size from a current peer", "43480004 00 0a022015 4301000000", "1 bad_magic Current"),
    ("an ambiguous tag with size byte zero", "43484e00 00 0a022015", "0 - Undecided"),
    ("an ambiguous tag, short candidate no packet", "43484e04 00 ffffffff", "0 - Undecided"),
    ("an ambiguous tag, candidate with an unknown field", "43484e06 00 0a022015 7800", "0 - Undecided"),
    ("an ambiguous tag, compression 7", "43484e04 07 0a022015", "0 unknown_compression Undecided"),
    ("an ambiguous tag, bad block", "43484e04 01 ffffffff", "0 - Undecided"),
    ("the long candidate is no packet", "43484e04 00 ff*19972", "0 bad_packet Current"),
    ("the long candidate is a packet", "43484e04 00 7800*9986", "1 - Current"),
    ("a current frame from a legacy peer", "43484e04 00 0a022015 43480004 00 0a022015", "2 - Legacy"),
];

#[test]
fn frames() {
    check(
        ROWS,
        |row| (row.0, row.2),
        |(_, bytes, _)| {
            let bytes = hex(bytes);
            let whole = answer(&bytes, bytes.len().max(1));
            // A peer may send byte by byte; that must not matter.
            let dripped = answer(&bytes, 1);
            if whole == dripped { whole } else { format!("{whole}, but dripped: {dripped}") }
        },
    );
}

fn answer(bytes: &[u8], cut: usize) -> String {
    let mut reader = FrameReader::default();
    let mut result = Ok(());
    for piece in bytes.chunks(cut) {
        result = reader.feed(piece, &mut |_| ControlFlow::Continue(()));
        if result.is_err() {
            break;
        }
    }
    let reason = result.map_or_else(|error| error.reason(), |()| "-");
    let form = match reader.form() {
        Form::Undecided => "Undecided",
        Form::Current => "Current",
        Form::Legacy => "Legacy",
    };
    format!("{} {reason} {form}", reader.packets())
}
