//! Packets inside well-formed frames. Spec: gateway §3.1; protobuf rules.

use throng_wire::Packet;

use super::{check, hex};

/// Name; the packet; the messages as `channel/broadcast/stub/type/body bytes`, or the error.
pub(crate) const ROWS: &[(&str, &str, &str)] = &[
    ("empty packet", "", ""),
    ("empty message", "0a00", "0/0/0/0/0"),
    ("explicit zeros", "0a0a 0800 1000 1800 2000 2a00", "0/0/0/0/0"),
    ("fields backwards", "0a0a 2a00 2005 1804 1003 0802", "2/3/4/5/0"),
    ("a field twice, the last counts", "0a04 2001 2002", "0/0/0/2/0"),
    ("a body twice, the last counts", "0a07 2a0161 2a026262", "0/0/0/0/2"),
    ("channel id over 32 bits is cut", "0a07 08ffffffffff01", "4294967295/0/0/0/0"),
    ("channel id of ten bytes", "0a0b 08ffffffffffffffffff01", "4294967295/0/0/0/0"),
    ("channel id of eleven bytes", "0a0c 08ffffffffffffffffffff01", "varint longer than 64 bits"),
    ("the tenth byte has too many bits", "0a0b 08ffffffffffffffffff02", "varint longer than 64 bits"),
    ("a number that ends early", "0a02 0880", "bytes end inside a field"),
    ("a tag without value", "0a01 08", "bytes end inside a field"),
    ("a number in more bytes than needed", "0a04 20818000", "0/0/0/1/0"),
    ("a tag in more bytes than needed", "0a03 a00015", "0/0/0/21/0"),
    ("the entry's tag in more bytes than needed", "8a00 022015", "0/0/0/21/0"),
    ("a body longer than the message", "0a03 2a0561", "bytes end inside a field"),
    ("a body of 2^63 bytes", "0a0c 2a80808080808080808001 00", "bytes end inside a field"),
    ("a body of 2^64 - 1 bytes", "0a0c 2affffffffffffffffff01 00", "bytes end inside a field"),
    ("an entry of 2^64 - 1 bytes", "0affffffffffffffffff01", "bytes end inside a field"),
    ("an entry longer than the packet", "0a05 2001", "bytes end inside a field"),
    ("an entry's length without end", "0a80", "bytes end inside a field"),
    ("field number 0", "0a02 0001", "tag 0x0 has no valid field number and wire type"),
    ("field number 0 in the packet", "0001", "tag 0x0 has no valid field number and wire type"),
    ("field number 2^29", "0a06 808080801000", "tag 0x100000000 has no valid field number and wire type"),
    ("the highest field number", "0a06 f8ffffff0f00", "0/0/0/0/0"),
    ("wire type 6", "0a01 0e", "tag 0xe has no valid field number and wire type"),
    ("wire type 7", "0a01 0f", "tag 0xf has no valid field number and wire type"),
    ("an unknown number is skipped", "0a04 7801 2015", "0/0/0/21/0"),
    ("an unknown 8-byte field is skipped", "0a0b 79 00*8 2015", "0/0/0/21/0"),
    ("an unknown 8-byte field that ends early", "0a05 79 00*4", "bytes end inside a field"),
    ("an unknown 4-byte field is skipped", "0a07 7d00000000 2015", "0/0/0/21/0"),
    ("an unknown 4-byte field that ends early", "0a03 7d0000", "bytes end inside a field"),
    ("an unknown text is skipped", "0a05 7a0161 2015", "0/0/0/21/0"),
    ("an unknown text that ends early", "0a03 7a0561", "bytes end inside a field"),
    ("a group is skipped", "0a04 7b7c 2015", "0/0/0/21/0"),
    ("a group without end", "0a01 7b", "bytes end inside a field"),
    ("the end of no group", "0a01 7c", "end of group 15 without its begin"),
    ("the end of another group", "0a04 7b 8401", "bytes end inside a field"),
    ("groups nested 101 deep", "0aca01 7b*101 7c*101", "groups nest deeper than 100"),
    ("groups nested 100 deep", "0ac801 7b*100 7c*100", "0/0/0/0/0"),
    ("the type as text is skipped", "0a03 220115", "0/0/0/0/0"),
    ("the body as number is skipped", "0a02 2801", "0/0/0/0/0"),
    ("the channel as 4-byte number is skipped", "0a05 0d01000000", "0/0/0/0/0"),
    ("an entry as number is skipped", "0805", ""),
    ("an unknown field before the entry", "7801 0a022015", "0/0/0/21/0"),
    ("an unknown group before the entry", "7b7c 0a022015", "0/0/0/21/0"),
    ("a thousand empty messages", "0a00*1000", "1000 messages"),
    ("a good message, then rubbish", "0a022015 ff", "bytes end inside a field"),
];

#[test]
fn packets() {
    check(
        ROWS,
        |row| (row.0, row.2),
        |(_, bytes, _)| match Packet::parse(&hex(bytes)) {
            Err(error) => error.to_string(),
            Ok(packet) if packet.messages().len() > 10 => format!("{} messages", packet.messages().len()),
            Ok(packet) => {
                let fields = packet.messages().map(|m| {
                    format!("{}/{}/{}/{}/{}", m.channel_id, m.broadcast, m.stub_id, m.msg_type, m.body.len())
                });
                fields.collect::<Vec<_>>().join(" ")
            }
        },
    );
}
