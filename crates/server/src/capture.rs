//! Packet capture of one connection: a bounded record that the shard writes while a capture runs.
//!
//! Without a capture a shard pays one comparison per read and per write. With one, the captured
//! connection's bytes are parsed a second time by readers of the capture's own, so that nothing
//! about the real conversation changes.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_gateway::{ConnHandle, ConnId};
use throng_stdx::Instant;
use throng_wire::FrameReader;
use throng_wire::channeldpb::MessageType;

/// Messages kept; the oldest make room.
const MESSAGES_MAX: usize = 512;
/// Bytes of a body that are kept.
const BODY_BYTES_MAX: usize = 2_048;

/// One captured message.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) number: u64,
    pub(crate) at: Duration,
    /// From the peer to the gateway.
    pub(crate) inward: bool,
    pub(crate) channel: u32,
    pub(crate) broadcast: u32,
    pub(crate) stub: u32,
    pub(crate) msg_type: u32,
    pub(crate) bytes: usize,
    /// The beginning of the body. Empty where it holds credentials.
    pub(crate) body: Vec<u8>,
}

/// State that the shard writes and the monitor reads.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) conn: ConnId,
    pub(crate) began: Instant,
    pub(crate) until: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Captured>,
    total: u64,
    /// Why no more comes.
    ended: Option<&'static str>,
}

impl Record {
    pub(crate) fn new(conn: ConnId, began: Instant, length: Duration) -> Record {
        Record { conn, began, until: began + length, state: Mutex::default() }
    }

    /// Messages after a number, and how many there were in all.
    pub(crate) fn messages(&self, after: u64) -> (Vec<Captured>, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.messages.iter().filter(|message| message.number > after).cloned().collect(), state.total)
    }

    pub(crate) fn ended(&self) -> Option<&'static str> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    pub(crate) fn end(&self, why: &'static str) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended.get_or_insert(why);
    }

    fn push(&self, mut message: Captured) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.total += 1;
        message.number = state.total;
        if state.messages.len() == MESSAGES_MAX {
            state.messages.pop_front();
        }
        state.messages.push_back(message);
    }
}

/// The shard's side of a capture.
pub(crate) struct Tap {
    /// The driver's name of the connection.
    pub(crate) handle: ConnHandle,
    record: Arc<Record>,
    inward: Side,
    outward: Side,
    web_socket: Option<Headers>,
}

/// One direction. Frames are found again where the stream is known to be at a border.
#[derive(Default)]
struct Side {
    reader: FrameReader,
    in_step: bool,
}

impl Tap {
    pub(crate) fn new(handle: ConnHandle, record: Arc<Record>, web_socket: bool) -> Tap {
        let web_socket = web_socket.then(Headers::default);
        Tap { handle, record, inward: Side::default(), outward: Side::default(), web_socket }
    }

    /// True once it is time to stop.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        if now >= self.record.until {
            self.record.end("the capture time is over");
        }
        self.record.ended().is_some()
    }

    pub(crate) fn end(&self, why: &'static str) {
        self.record.end(why);
    }

    /// Bytes arrived; `at_border` says whether the first of them begins a frame.
    pub(crate) fn arrived(&mut self, now: Instant, bytes: &[u8], at_border: bool) {
        self.inward.in_step |= at_border;
        if self.inward.in_step {
            self.inward.take(&self.record, now, bytes, true);
        }
    }

    /// The first `taken` bytes of `slices` were written; that may have been all of them.
    pub(crate) fn written(&mut self, now: Instant, slices: &[IoSlice<'_>], taken: usize) {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.outward.in_step {
            let mut left = taken;
            for slice in slices {
                let part = &slice[..left.min(slice.len())];
                left -= part.len();
                match &mut self.web_socket {
                    None => self.outward.take(&self.record, now, part, false),
                    Some(headers) => {
                        headers.strip(part, |bytes| self.outward.take(&self.record, now, bytes, false));
                    }
                }
            }
        }
        self.outward.in_step |= taken == total;
    }
}

impl Side {
    fn take(&mut self, record: &Record, now: Instant, bytes: &[u8], inward: bool) {
        let at = now.since(record.began);
        let read = self.reader.feed(bytes, &mut |packet| {
            for message in packet.messages() {
                // Tokens and passwords are nobody's business, whoever looks.
                let secret = message.msg_type == MessageType::Auth as u32;
                let kept = if secret { 0 } else { message.body.len().min(BODY_BYTES_MAX) };
                record.push(Captured {
                    number: 0,
                    at,
                    inward,
                    channel: message.channel_id,
                    broadcast: message.broadcast,
                    stub: message.stub_id,
                    msg_type: message.msg_type,
                    bytes: message.body.len(),
                    body: message.body[..kept].to_vec(),
                });
            }
            ControlFlow::Continue(())
        });
        if read.is_err() {
            record.end("the stream is not a sequence of frames");
        }
    }
}

/// Takes the headers of a server's WebSocket messages (RFC 6455 §5.2: unmasked) out of a stream.
#[derive(Default)]
struct Headers {
    header: Vec<u8>,
    /// Payload bytes left of the present message.
    left: u64,
}

impl Headers {
    fn strip(&mut self, mut bytes: &[u8], mut payload: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let part = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                payload(&bytes[..part]);
                self.left -= part as u64;
                bytes = &bytes[part..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            let Some(&second) = self.header.get(1) else { continue };
            let wanted = match second & 0x7F {
                126 => 4,
                127 => 10,
                _ => 2,
            };
            if self.header.len() == wanted {
                self.left = match wanted {
                    2 => u64::from(second & 0x7F),
                    _ => self.header[2..].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
                };
                self.header.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_wire::MessagePack;
    use throng_wire::frame::{Compression, tag};

    fn frame(msg_type: u32, body: &[u8]) -> Vec<u8> {
        let message = MessagePack { channel_id: 7, broadcast: 0, stub_id: 3, msg_type, body };
        let mut packet = Vec::new();
        throng_wire::write_entry(&mut packet, &message);
        [tag(packet.len(), Compression::None).as_slice(), &packet].concat()
    }

    fn record() -> Arc<Record> {
        Arc::new(Record::new(ConnId(1), Instant::ZERO, Duration::from_secs(1)))
    }

    #[test]
    fn messages_are_found_from_the_next_border_on() {
        let record = record();
        let mut tap = Tap::new(ConnHandle(1), Arc::clone(&record), false);
        let bytes = frame(100, b"hello");
        tap.arrived(Instant::ZERO, &bytes[3..], false);
        for byte in &bytes {
            tap.arrived(Instant::ZERO, &[*byte], true);
        }
        // The first write may begin anywhere; after it the stream is at a border.
        tap.written(Instant::ZERO, &[IoSlice::new(&bytes[4..])], bytes.len() - 4);
        tap.written(Instant::ZERO, &[IoSlice::new(&bytes[..2]), IoSlice::new(&bytes[2..])], bytes.len());
        let (messages, total) = record.messages(0);
        assert_eq!((total, messages[0].inward, messages[1].inward), (2, true, false));
        assert_eq!(
            (messages[0].channel, messages[0].stub, messages[0].body.as_slice()),
            (7, 3, &b"hello"[..])
        );
        assert_eq!(record.messages(1).0.len(), 1);
        assert!(!tap.is_over(Instant::ZERO) && tap.is_over(Instant::from_millis(1_000)));
    }

    #[test]
    fn credentials_are_left_out_and_memory_is_bounded() {
        let record = record();
        let mut tap = Tap::new(ConnHandle(1), Arc::clone(&record), false);
        tap.arrived(Instant::ZERO, &frame(MessageType::Auth as u32, b"secret"), true);
        assert!(record.messages(0).0[0].body.is_empty());
        for _ in 0..MESSAGES_MAX + 10 {
            tap.arrived(Instant::ZERO, &frame(100, &[1; 60_000]), true);
        }
        let (messages, total) = record.messages(0);
        assert_eq!((messages.len(), total), (MESSAGES_MAX, MESSAGES_MAX as u64 + 11));
        assert!(messages.iter().all(|message| message.body.len() <= BODY_BYTES_MAX));
        tap.arrived(Instant::ZERO, b"no frame at all", true);
        assert!(tap.is_over(Instant::ZERO));
    }

    #[test]
    fn web_socket_headers_are_taken_out_wherever_the_stream_is_cut() {
        let mut stream = vec![0x82, 3, b'a', b'b', b'c', 0x82, 126, 1, 0];
        stream.extend([b'd'; 256]);
        let mut expected = b"abc".to_vec();
        expected.extend([b'd'; 256]);
        for cut in 0..stream.len() {
            let (mut headers, mut out) = (Headers::default(), Vec::new());
            for part in [&stream[..cut], &stream[cut..]] {
                headers.strip(part, |bytes| out.extend_from_slice(bytes));
            }
            assert_eq!(out, expected, "cut at {cut}");
        }
    }
}
