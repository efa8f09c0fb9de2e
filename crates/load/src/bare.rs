//! The physical limit: a program that does nothing but write ready bytes to many sockets at a fixed
//! rate.
//!
//! A gateway delivers a frame by writing it to a socket, and on loopback that write includes most
//! of the work of receiving it. How much of a gateway's CPU time is its own can only be told next
//! to a program that pays for the writes alone: same bytes, same sockets, same rate, same readers.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::arena::{self, Stamp};
use crate::clock;
use crate::poll::Poller;
use crate::protocol::{self, Head, PACKET_BYTES_MAX, kind};
use crate::socket::{self, Stream};

/// Longest frame written, so that the padding of a frame always fits one.
const FRAME_BYTES_MAX: usize = PACKET_BYTES_MAX - 200;
/// The smallest frame that can carry a stamp.
const FRAME_BYTES_MIN: usize = 128;

/// Bytes and rate to write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BarePlan {
    /// Connections to accept before the writing starts.
    pub sockets: usize,
    /// Bytes written to each at each tick, at least 128.
    pub bytes: usize,
    /// Ticks per second.
    pub per_second: f64,
}

/// Accepts the connections, having written the address to `announce`, then writes until the readers
/// are gone.
///
/// # Errors
/// When no socket can be opened.
pub fn serve(plan: BarePlan, announce: &mut dyn io::Write) -> io::Result<()> {
    socket::raise_descriptor_limit();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(announce, "listening on {}", listener.local_addr()?)?;
    announce.flush()?;
    let mut streams = Vec::with_capacity(plan.sockets);
    for _ in 0..plan.sockets {
        streams.push(Reader { stream: Stream::accepted(listener.accept()?.0.into())?, left: 0, gone: false });
    }
    Writer { plan, streams, frame: 0 }.run()
}

/// One socket written to.
struct Reader {
    stream: Stream,
    /// Bytes of the current tick that the socket has not taken.
    left: usize,
    gone: bool,
}

struct Writer {
    plan: BarePlan,
    streams: Vec<Reader>,
    frame: u32,
}

impl Writer {
    fn run(mut self) -> io::Result<()> {
        let mut poller = Poller::new()?;
        for (token, reader) in self.streams.iter().enumerate() {
            poller.add(reader.stream.raw(), token, false, false)?;
        }
        let period = (1e9 / self.plan.per_second) as u64;
        let mut due = clock::now_ns() + period;
        let mut blocked = 0usize;
        while self.streams.iter().any(|reader| !reader.gone) {
            self.frame += 1;
            if blocked == 0 {
                clock::sleep_until(due);
            }
            let bytes = frames(self.plan.bytes, self.frame, due);
            for (token, reader) in self.streams.iter_mut().enumerate() {
                // A reader that is more than one tick behind misses this one, as with any bounded
                // queue.
                if reader.gone || reader.left > 0 {
                    continue;
                }
                reader.left = bytes.len();
                reader.write(&bytes);
                if reader.left > 0 {
                    blocked += 1;
                    poller.modify(reader.stream.raw(), token, false, true)?;
                }
            }
            due += period;
            while blocked > 0 {
                let now = clock::now_ns();
                if now >= due {
                    break;
                }
                let ready: Vec<_> = poller.wait(Duration::from_nanos(due - now))?.collect();
                for token in ready.into_iter().map(|ready| ready.token) {
                    let reader = &mut self.streams[token];
                    if reader.left == 0 {
                        continue;
                    }
                    reader.write(&bytes);
                    if reader.left == 0 {
                        blocked -= 1;
                        poller.modify(reader.stream.raw(), token, false, false)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Reader {
    fn write(&mut self, bytes: &[u8]) {
        match self.stream.write(&bytes[bytes.len() - self.left..]) {
            Ok(count) => self.left -= count,
            Err(_) => {
                self.gone = true;
                self.left = 0;
            }
        }
    }
}

/// Frames of together `bytes` bytes, the first with a stamp, so that the usual readers can measure
/// them.
fn frames(bytes: usize, frame: u32, sent_ns: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + FRAME_BYTES_MIN);
    let mut part = 0;
    while out.len() + FRAME_BYTES_MIN <= bytes.max(FRAME_BYTES_MIN) {
        let size = (bytes.max(FRAME_BYTES_MIN) - out.len()).min(FRAME_BYTES_MAX);
        let stamp = (part == 0).then_some(Stamp { part: 0, sent_ns, frame });
        let start = out.len();
        let mut padding = 0;
        // The five lengths in front grow with the padding, by at most two bytes each.
        for _ in 0..2 {
            out.truncate(start);
            let body = arena::padded_update(stamp, padding);
            protocol::put_message(
                &mut out,
                Head { kind: kind::CHANNEL_DATA_UPDATE, ..Head::default() },
                &body,
            );
            padding += size.saturating_sub(out.len() - start + 10);
        }
        part += 1;
    }
    out
}

/// Reads the address that [`serve`] announces.
pub(crate) fn parse_announcement(line: &str) -> Option<SocketAddr> {
    line.trim_end().strip_prefix("listening on ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_size_asked_for() {
        for bytes in [128, 1_000, 6_500, 65_000, 70_000, 200_000] {
            let size = frames(bytes, 1, 2).len();
            assert!(size <= bytes && bytes - size <= FRAME_BYTES_MIN, "{size} for {bytes}");
        }
    }

    #[test]
    fn announcements_are_understood() {
        assert_eq!(parse_announcement("listening on 127.0.0.1:5\n"), "127.0.0.1:5".parse().ok());
        assert_eq!(parse_announcement("error"), None);
    }
}
