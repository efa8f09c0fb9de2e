//! The log: what was promised, in order.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use throng_ddc::Hasher;

use crate::index::Position;
use crate::key;
use crate::record::{self, HEADER_BYTES, Header};
use throng_platform::{File, Fs};

pub(crate) const FOLDER: &str = "log";
/// Number of the first segment.
pub(crate) const FIRST: u64 = 1;

/// A change that is to be written.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    /// `None` deletes the key.
    pub(crate) value: Option<Vec<u8>>,
    /// Bytes whose hash ends the key.
    pub(crate) payload: Option<Bytes>,
}

/// Where the payload of a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A record that was found in the log.
pub(crate) struct Found {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) payload: Option<Place>,
}

/// The open end of the log. One writer.
#[derive(Debug)]
pub(crate) struct Log {
    fs: Arc<dyn Fs>,
    file: Arc<dyn File>,
    segment: u64,
    /// Where the next record goes.
    end: u64,
    sequence: u64,
    room: Room,
    /// Bytes that were written since the last sync.
    unsynced: bool,
    /// Headers, keys and values of a batch.
    heads: Vec<u8>,
}

/// What is prepared behind the end of the log, where a reader finds zeros and with them the end.
///
/// A write that extends a file is durable only with its new size, which the file system's own journal has to record: that
/// takes several times as long as to overwrite what is there. So space is reserved in large steps, and small batches, which
/// would otherwise spend most of their time so, find zeros that were written with an earlier one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// A segment is closed when it is this long.
    pub(crate) segment_bytes_max: u64,
    /// Bytes that are reserved at a time.
    pub(crate) reserve_bytes: u64,
    /// Zeros that are written at a time, behind a small batch that ends where there are none.
    pub(crate) zero_bytes: u64,
    /// Up to where space is reserved.
    reserved: u64,
    /// Up to where zeros are written.
    zeroed: u64,
    /// Small batches since the last large one.
    small: u32,
}

impl Room {
    pub(crate) fn new(segment_bytes_max: u64, reserve_bytes: u64, zero_bytes: u64) -> Room {
        let reserve_bytes = reserve_bytes.min(segment_bytes_max);
        Room { segment_bytes_max, reserve_bytes, zero_bytes, reserved: 0, zeroed: 0, small: 0 }
    }
}

/// A batch that is longer finds no zeros: writing them would cost more than it spares.
const SMALL_BATCH_BYTES: u64 = 48 << 10;
/// So many small batches in a row let expect more. Where blobs lie between refs, most zeros would be overwritten by blobs,
/// which need none.
const SMALL_BATCHES: u32 = 4;
/// Zeros to write from.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Log {
    /// Reads the log from `from`, gives every record to `apply` and opens a new segment behind it.
    ///
    /// A record that does not check ends its segment: it was being written when the power failed, and nothing of it or
    /// behind it was acknowledged.
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        from: Position,
        room: Room,
        apply: &mut dyn FnMut(Found),
    ) -> io::Result<Log> {
        let mut sequence = from.sequence.max(1);
        let segments = segments(&*fs)?;
        for segment in segments.iter().copied().filter(|segment| *segment >= from.segment) {
            let file = fs.open(&name(segment), false)?;
            let mut offset = if segment == from.segment { from.offset } else { 0 };
            let len = file.len()?;
            // A damaged segment must not hide the ones behind it; no segment is ever written again once the next exists.
            let mut any_sequence = segment != from.segment;
            while let Some((found, header, next)) = read_record(&*file, segment, offset, len)? {
                if header.sequence < sequence || header.sequence > sequence && !any_sequence {
                    break;
                }
                any_sequence = false;
                sequence = header.sequence + 1;
                offset = next;
                apply(found);
            }
            if offset < len {
                tracing::debug!(
                    segment,
                    cut = len - offset,
                    "what follows the last record of the log is cut off"
                );
                file.set_len(offset)?;
                file.sync()?;
            }
        }
        let segment = segments.last().map_or(FIRST, |last| last + 1);
        let file = create(&*fs, segment)?;
        Ok(Log { fs, file, segment, end: 0, sequence, room, unsynced: false, heads: Vec::new() })
    }

    /// Appends `entries`; gives where their payloads are. Durable after the next [`sync`](Log::sync).
    ///
    /// On an error nothing was appended, unless that cannot be arranged: then [`AppendError::broken`].
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<Vec<Option<Place>>, AppendError> {
        if self.end >= self.room.segment_bytes_max {
            self.roll().map_err(|source| AppendError { source, broken: false })?;
        }
        self.heads.clear();
        let mut ends = Vec::with_capacity(entries.len());
        for (entry, sequence) in entries.iter().zip(self.sequence..) {
            let payload_len = entry.payload.as_ref().map_or(0, |payload| payload.len() as u64);
            record::write(&mut self.heads, sequence, &entry.key, entry.value.as_deref(), payload_len);
            ends.push(self.heads.len());
        }
        let mut parts = Vec::with_capacity(2 * entries.len());
        let mut places = Vec::with_capacity(entries.len());
        let mut offset = self.end;
        let mut previous = 0;
        // Heads without payload between them are one part.
        let mut start = 0;
        for (entry, end) in entries.iter().zip(ends) {
            offset += (end - previous) as u64;
            previous = end;
            match &entry.payload {
                Some(payload) => {
                    parts.push(IoSlice::new(&self.heads[start..end]));
                    start = end;
                    places.push(Some(Place { segment: self.segment, offset, len: payload.len() as u64 }));
                    if !payload.is_empty() {
                        parts.push(IoSlice::new(payload));
                    }
                    offset += payload.len() as u64;
                }
                None => places.push(None),
            }
        }
        if start < self.heads.len() {
            parts.push(IoSlice::new(&self.heads[start..]));
        }
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.unsynced = true;
        let end = self.end + total;
        if end > self.room.reserved && self.room.reserve_bytes > 0 {
            self.file.reserve(self.end, total + self.room.reserve_bytes);
            self.room.reserved = end + self.room.reserve_bytes;
        }
        self.room.small = if total <= SMALL_BATCH_BYTES { self.room.small + 1 } else { 0 };
        if end > self.room.zeroed && self.room.small >= SMALL_BATCHES {
            let mut left = self.room.zero_bytes as usize;
            self.room.zeroed = end + self.room.zero_bytes;
            while left > 0 {
                let zeros = &ZEROS[..left.min(ZEROS.len())];
                parts.push(IoSlice::new(zeros));
                left -= zeros.len();
            }
        }
        if let Err(source) = self.file.write_at(&parts, self.end) {
            // What was written in part must not be found behind what is written next.
            let broken = self.file.set_len(self.end).is_err();
            (self.room.reserved, self.room.zeroed) = (self.end, self.end);
            return Err(AppendError { source, broken });
        }
        self.end = end;
        self.sequence += entries.len() as u64;
        Ok(places)
    }

    /// Makes everything appended durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced {
            self.file.sync()?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Where the next record will be.
    pub(crate) fn position(&self) -> Position {
        Position { segment: self.segment, offset: self.end, sequence: self.sequence }
    }

    fn roll(&mut self) -> io::Result<()> {
        self.sync()?;
        let file = create(&*self.fs, self.segment + 1)?;
        self.give_room_back();
        (self.file, self.segment, self.end) = (file, self.segment + 1, 0);
        (self.room.reserved, self.room.zeroed) = (0, 0);
        Ok(())
    }

    /// Cuts off what was prepared and is not needed. If that is lost, a start does it again.
    fn give_room_back(&self) {
        if let Err(error) = self.file.set_len(self.end) {
            tracing::warn!(%error, "the space behind a full segment of the log is not given back");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.give_room_back();
    }
}

/// Why a batch could not be appended.
#[derive(Debug)]
pub(crate) struct AppendError {
    pub(crate) source: io::Error,
    /// The end of the log is unknown; nothing may be written any more.
    pub(crate) broken: bool,
}

/// Numbers of the segments on disk, in order.
pub(crate) fn segments(fs: &dyn Fs) -> io::Result<Vec<u64>> {
    let number = |name: &String| u64::from_str_radix(name.strip_suffix(".seg")?, 16).ok();
    let mut found: Vec<u64> = fs.list(FOLDER)?.iter().filter_map(number).collect();
    found.sort_unstable();
    Ok(found)
}

/// Path of a segment.
pub(crate) fn name(segment: u64) -> String {
    format!("{FOLDER}/{segment:016x}.seg")
}

fn create(fs: &dyn Fs, segment: u64) -> io::Result<Arc<dyn File>> {
    let file = fs.open(&name(segment), true)?;
    file.set_len(0)?;
    fs.sync_dir(FOLDER)?;
    Ok(file)
}

/// The record at `offset`, and where the next begins. `None` if there is no valid one.
fn read_record(
    file: &dyn File,
    segment: u64,
    offset: u64,
    len: u64,
) -> io::Result<Option<(Found, Header, u64)>> {
    let left = len.saturating_sub(offset);
    if left < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let mut head = [0; HEADER_BYTES];
    file.read_at(&mut head, offset)?;
    let Some(header) = Header::read(&head) else { return Ok(None) };
    let body = header.key_len + header.value_len;
    let payload_offset = offset + (HEADER_BYTES + body) as u64;
    let Some(end) = payload_offset.checked_add(header.payload_len).filter(|end| *end <= len) else {
        return Ok(None);
    };
    let mut key = vec![0; body];
    file.read_at(&mut key, offset + HEADER_BYTES as u64)?;
    if !header.matches(&head, &key) {
        return Ok(None);
    }
    let value = key.split_off(header.key_len);
    // An empty payload is a payload too: keys of blobs without one have a location as their value.
    let has_payload = header.payload_len > 0 || key.first() == Some(&b'b') && value.len() == 8;
    let payload = has_payload.then_some(Place { segment, offset: payload_offset, len: header.payload_len });
    if let Some(place) = payload
        && hash_of(file, place)? != key::last_hash(&key)
    {
        return Ok(None);
    }
    Ok(Some((Found { key, value: (!header.delete).then_some(value), payload }, header, end)))
}

fn hash_of(file: &dyn File, place: Place) -> io::Result<Option<throng_ddc::IoHash>> {
    let mut hasher = Hasher::new();
    let mut buf = vec![0; (place.len as usize).min(1 << 18)];
    let mut done = 0;
    while done < place.len {
        let piece = (place.len - done).min(buf.len() as u64) as usize;
        file.read_at(&mut buf[..piece], place.offset + done)?;
        hasher.update(&buf[..piece]);
        done += piece as u64;
    }
    Ok(Some(hasher.finish()))
}
