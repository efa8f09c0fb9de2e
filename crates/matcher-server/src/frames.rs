//! Frames that the service writes itself, and deadlines in frames.

use std::time::Duration;

use throng_wire::matcher::{
    FRAME_BODY_BYTES_MAX, Header, Kind, PROTOCOL_VERSION, Status, Writer, write_bytes, write_u64,
};

use crate::service::DEADLINE_MS;

/// Returns whether a request's deadline (ms after its arrival, 0 is the default) passed while
/// others of its batch were executed.
pub(crate) fn is_late(spent_us: u64, deadline_ms: u32) -> bool {
    u128::from(spent_us) > deadline_of(deadline_ms).as_micros()
}

/// A request's deadline in ms, 0 for the default.
pub(crate) fn deadline_of(ms: u32) -> Duration {
    Duration::from_millis(if ms == 0 { DEADLINE_MS } else { u64::from(ms) })
}

pub(crate) fn write_late(out: &mut Vec<u8>) -> Status {
    out.extend_from_slice(&Writer::new().str(1, "the deadline passed; nothing was done").into_bytes());
    Status::Timeout
}

pub(crate) fn write_unavailable(out: &mut Vec<u8>) -> Status {
    let why = "this matcher does not serve the area now; nothing was done; try again";
    out.extend_from_slice(&Writer::new().str(1, why).into_bytes());
    Status::Unavailable
}

pub(crate) fn write_without_session(out: &mut Vec<u8>) -> Status {
    let why = "the session that reads the notifications has ended; nothing was done; try again";
    out.extend_from_slice(&Writer::new().str(1, why).into_bytes());
    Status::Unavailable
}

pub(crate) fn write_hello_ack(out: &mut Vec<u8>, matcher_id: &str, epoch: u64, first: u64, resumed: bool) {
    Header { kind: Kind::HelloAck, ..Header::default() }.write_with(out, |out| {
        write_u64(out, 1, PROTOCOL_VERSION);
        write_bytes(out, 2, matcher_id.as_bytes());
        write_u64(out, 3, epoch);
        write_u64(out, 4, first);
        write_u64(out, 5, FRAME_BODY_BYTES_MAX as u64);
        write_u64(out, 6, u64::from(resumed));
    });
}

pub(crate) fn write_goaway(out: &mut Vec<u8>, status: Status, text: &str) {
    let body = Writer::new()
        .u64(1, u64::from(status as u16))
        .str(2, text)
        .u64(3, PROTOCOL_VERSION)
        .u64(4, PROTOCOL_VERSION);
    Header { kind: Kind::Goaway, ..Header::default() }.write(out, &body.into_bytes());
}
