//! Recordings, as `throng replay` may be given them. Spec: gateway §4.8.

use throng_wire::cpr::summarize;

use super::{check, hex};

/// Name; the file; packets, messages and nanoseconds, or the error.
pub(crate) const ROWS: &[(&str, &str, &str)] = &[
    ("an empty file", "", "0 0 0"),
    ("a packet without anything", "0a00", "1 0 0"),
    ("a packet without offset", "0a06 1204 0a022015", "1 1 0"),
    ("an offset without packet", "0a02 0805", "1 0 5"),
    ("two packets", "0a06 1204 0a022015 0a08 0805 1204 0a022015", "2 2 5"),
    ("a negative offset", "0a0b 08ffffffffffffffffff01", "packet -1 ns before the one in front of it"),
    (
        "offsets that add up over 64 bits",
        "0a0a 08ffffffffffffffff7f 0a0a 08ffffffffffffffff7f 0a0a 08ffffffffffffffff7f",
        "3 0 27670116110564327421",
    ),
    ("a packet that ends early", "0a06 1204 0a0220", "recording is damaged: bytes end inside a field"),
    ("an inner packet that ends early", "0a05 1203 0a0220", "recording is damaged: bytes end inside a field"),
    ("a text file", "68656c6c6f20776f726c640a", "recording is damaged: end of group 13 without its begin"),
    ("a length of 2^64 - 1", "0affffffffffffffffff01", "recording is damaged: bytes end inside a field"),
    ("field number 0", "0000", "recording is damaged: tag 0x0 has no valid field number and wire type"),
    ("an unknown field is skipped", "7801 0a06 1204 0a022015", "1 1 0"),
    ("an offset as text is skipped", "0a03 0a0105", "1 0 0"),
    ("the packet field twice, the last counts", "0a0c 1204 0a022015 1204 0a022016", "1 1 0"),
    ("an offset twice, the last counts", "0a04 0801 0802", "1 0 2"),
    ("a group around everything", "0b 0a00 0c", "0 0 0"),
    ("a PNG image", "89504e470d0a1a0a", "recording is damaged: bytes end inside a field"),
];

#[test]
fn recordings() {
    check(
        ROWS,
        |row| (row.0, row.2),
        |(_, bytes, _)| match summarize(&hex(bytes)) {
            Ok(summary) => {
                format!("{} {} {}", summary.packets, summary.messages, summary.duration.as_nanos())
            }
            Err(error) => error.to_string(),
        },
    );
}
