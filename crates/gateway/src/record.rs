//! Recordings of received packets, as `.cpr` files. Spec §4.8.

use core::mem;

use throng_stdx::Instant;
use throng_wire::cpr::{self, CprWriter};

/// Records one connection. Parts are handed out as they grow, so that an hour of play does not sit
/// in memory.
#[derive(Debug)]
pub(crate) struct Recorder {
    part: CprWriter,
    /// Bytes handed out so far.
    handed_out: usize,
    bytes_max: usize,
    previous: Option<Instant>,
    /// Chosen when the first part is handed out, the same for all parts.
    name: Option<String>,
    full: bool,
}

/// A part is handed out when it has this size: large enough for one write each, small beside a
/// connection's outbox.
const PART_BYTES: usize = 64 << 10;
/// A part holds at most one packet over that size.
const PART_BYTES_MAX: usize = PART_BYTES + (17 << 20);

impl Recorder {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            part: CprWriter::new(PART_BYTES_MAX),
            handed_out: 0,
            bytes_max,
            previous: None,
            name: None,
            full: false,
        }
    }

    /// Takes a decompressed packet. False when the recording ends here for want of room; said once.
    pub(crate) fn record(&mut self, now: Instant, packet: &[u8]) -> bool {
        if self.full {
            return true;
        }
        let offset = self.previous.map_or(core::time::Duration::ZERO, |previous| now.since(previous));
        if self.handed_out + self.part.len() + packet.len() > self.bytes_max
            || self.part.push(offset, packet).is_err()
        {
            self.full = true;
            return false;
        }
        self.previous = Some(now);
        true
    }

    /// The next part if it is large enough.
    pub(crate) fn take_part(&mut self, conn: u32, unix_ns: u64) -> Option<(String, Vec<u8>)> {
        if self.part.len() < PART_BYTES { None } else { self.take(conn, unix_ns) }
    }

    /// Whatever is left; `None` when nothing was recorded since the last part.
    pub(crate) fn finish(mut self, conn: u32, unix_ns: u64) -> Option<(String, Vec<u8>)> {
        self.take(conn, unix_ns)
    }

    fn take(&mut self, conn: u32, unix_ns: u64) -> Option<(String, Vec<u8>)> {
        if self.part.is_empty() {
            return None;
        }
        let name = self.name.get_or_insert_with(|| cpr::file_name(conn, unix_ns)).clone();
        let bytes = mem::replace(&mut self.part, CprWriter::new(PART_BYTES_MAX)).into_bytes();
        self.handed_out += bytes.len();
        Some((name, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use throng_wire::cpr::CprReader;
    use throng_wire::{MessagePack, write_entry};

    fn packet(body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_entry(&mut out, &MessagePack { msg_type: 100, body, ..MessagePack::default() });
        out
    }

    #[test]
    fn parts_concatenate_to_one_recording_under_one_name() {
        let mut recorder = Recorder::new(1 << 20);
        let (mut file, mut names) = (Vec::new(), Vec::new());
        let mut now = Instant::ZERO;
        for index in 0..10_u64 {
            now += Duration::from_millis(index);
            assert!(recorder.record(now, &packet(&[7; 20_000])));
            if let Some((name, bytes)) = recorder.take_part(5, 1_000_000 + index) {
                names.push(name);
                file.extend(bytes);
            }
        }
        let (name, bytes) = recorder.finish(5, 2_000_000).expect("a rest");
        names.push(name);
        file.extend(bytes);
        assert!(names.len() > 2 && names.iter().all(|name| *name == names[0]), "{names:?}");
        let offsets: Vec<_> =
            CprReader::new(&file).map(|packet| packet.expect("a packet").offset.as_millis()).collect();
        assert_eq!(offsets, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn empty_sessions_and_full_recordings() {
        assert_eq!(Recorder::new(100).finish(1, 0), None);
        let mut recorder = Recorder::new(100);
        assert!(recorder.record(Instant::ZERO, &packet(&[1; 40])));
        assert!(!recorder.record(Instant::ZERO, &packet(&[1; 90])));
        assert!(recorder.record(Instant::ZERO, &packet(&[1; 1])), "said once only");
        assert!(recorder.finish(1, 0).expect("the first packet").1.len() < 100);
    }
}
