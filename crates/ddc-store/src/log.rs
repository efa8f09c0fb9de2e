//! The log: every acknowledged change, in order.

use std::cmp;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use bytes::Bytes;

use crate::key;
use crate::record::{self, BLOB_VALUE_BYTES, HEADER_BYTES, Header, Kind, LogPosition};
use crate::run::{fingerprint, random};
use throng_platform::{File, Fs};

pub(crate) const FOLDER: &str = "segments";
/// All of a segment is synced.
pub(crate) const ALL_SYNCED: u64 = u64::MAX;
/// Segments that are kept open for reading; the kernel's own table of a process takes 1,024 files
/// by default.
const OPEN_MAX: usize = 256;
/// Segments that one list names: the newest, where there are more, which hold 15 TiB.
const LISTED_MAX: usize = 60 << 10;
const _: () = assert!(16 * LISTED_MAX <= record::VALUE_BYTES_MAX);
/// Keys that one record of a directory names.
const DIRECTORY_KEYS_MAX: usize = 32 << 10;
/// A commit that ends a step of so many keys names the last two steps: damage of one step is known
/// once the next has ended.
const RECENT_STEPS: [usize; 2] = [1024, 64];
/// Keys that every commit names, those of the commit before it at least.
const RECENT_KEYS_MIN: usize = 8;
/// File that notes the end of the log.
const CLOSED: &str = "closed";
/// Bytes before the end that it has the checksum of.
const CLOSED_CHECK_BYTES: u64 = 4 << 10;

/// Knowledge about a log that is to be opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Position up to which the index contains it.
    pub(crate) from: LogPosition,
    /// Position up to which it was synced.
    pub(crate) synced: LogPosition,
    /// The segment of that position is missing, or does not end as it did then.
    pub(crate) is_cut: bool,
    /// Last number of a segment that is known to have been used.
    pub(crate) last: u64,
}

/// A part of a segment that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A record that is to be written.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Bytes whose hash ends the key.
    pub(crate) payload: Option<Bytes>,
    /// True if the key had a value: older records of it exist.
    pub(crate) replaces: bool,
}

/// Position of a record that was written, and of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) payload: u64,
}

/// A record that was found in the log.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// Offset and length of the payload.
    pub(crate) payload: Option<(u64, u64)>,
}

/// What a reader of the log does with what it finds.
pub(crate) trait Reader {
    /// A record, in the order of the log.
    fn record(&mut self, found: Found) -> io::Result<()>;
    /// A key, by its fingerprint, whose record before this position is damaged.
    fn lost(&mut self, fingerprint: u64, segment: u64, offset: u64);
    /// Bytes that are no record although the log goes on behind them.
    fn gap(&mut self, segment: u64, offset: u64, len: u64);
}

/// Takes the records from an offset on, and all damage.
struct Rest<'r> {
    reader: &'r mut dyn Reader,
    from: u64,
}

impl Reader for Rest<'_> {
    fn record(&mut self, found: Found) -> io::Result<()> {
        if found.offset >= self.from { self.reader.record(found) } else { Ok(()) }
    }

    fn lost(&mut self, fingerprint: u64, segment: u64, offset: u64) {
        // The index has what was before.
        if offset > self.from {
            self.reader.lost(fingerprint, segment, offset);
        }
    }

    fn gap(&mut self, segment: u64, offset: u64, len: u64) {
        self.reader.gap(segment, offset, len);
    }
}

/// The segments on disk, and those that are open for reading.
#[derive(Debug)]
pub(crate) struct Segments {
    fs: Arc<dyn Fs>,
    known: RwLock<BTreeMap<u64, Segment>>,
    /// Bytes of all of them.
    bytes: AtomicU64,
    open: Mutex<OpenFiles>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    nonce: u64,
    /// Bytes of records.
    bytes: u64,
    /// A collection is about to remove it: no list names it any more.
    leaves: bool,
}

/// Files in two generations: the old one is closed when the young one is half of what may be open.
#[derive(Debug, Default)]
struct OpenFiles {
    young: BTreeMap<u64, Arc<dyn File>>,
    old: BTreeMap<u64, Arc<dyn File>>,
    /// Every file that is still referenced, so that no segment is opened twice.
    all: BTreeMap<u64, Weak<dyn File>>,
}

impl Segments {
    /// Lists the folder.
    pub(crate) fn list(fs: Arc<dyn Fs>) -> io::Result<Segments> {
        let mut known: BTreeMap<u64, Segment> = BTreeMap::new();
        for name in fs.list(FOLDER)? {
            if let Some((number, nonce)) = read_name(&name) {
                let bytes = fs.open(&format!("{FOLDER}/{name}"), false)?.len()?;
                let segment = known.entry(number).or_insert(Segment { nonce, bytes, leaves: false });
                // One that could not be made durable is empty, and another took its number.
                if bytes > segment.bytes {
                    *segment = Segment { nonce, bytes, leaves: false };
                }
            }
        }
        let bytes = AtomicU64::new(known.values().map(|segment| segment.bytes).sum());
        Ok(Segments { fs, known: RwLock::new(known), bytes, open: Mutex::default() })
    }

    /// The last segment with records, 0 if there is none.
    pub(crate) fn last_used(&self) -> u64 {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().rev().find(|(_, segment)| segment.bytes > 0).map_or(0, |(number, _)| *number)
    }

    /// Numbers of all segments, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Reports whether a segment with a number in `first..=last` exists.
    pub(crate) fn any_in(&self, first: u64, last: u64) -> bool {
        first <= last
            && self.known.read().unwrap_or_else(PoisonError::into_inner).range(first..=last).next().is_some()
    }

    /// The smallest number of a segment that is not below `first`.
    pub(crate) fn next_from(&self, first: u64) -> Option<u64> {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .range(first..)
            .next()
            .map(|(number, _)| *number)
    }

    /// Reports whether every segment from `first` to the last one exists.
    pub(crate) fn are_whole_from(&self, first: u64) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let count = known.range(first..).count() as u64;
        known.last_key_value().is_some_and(|(last, _)| *last >= first && count == last - first + 1)
    }

    /// A list of the segments below `end` that have records and do not leave, and of their lengths.
    fn list_below(&self, end: u64) -> Vec<u8> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let listed = known.range(..end).rev();
        let listed = listed.filter(|(_, segment)| segment.bytes > 0 && !segment.leaves);
        listed.take(LISTED_MAX).flat_map(|(number, segment)| write_pair(*number, segment.bytes)).collect()
    }

    /// From now on no list names these segments.
    fn let_leave(&self, going: &[u64]) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for number in going {
            known.entry(*number).and_modify(|segment| segment.leaves = true);
        }
    }

    /// Parts of segments that a list names and that are not there.
    fn missing_of(&self, list: &[u8]) -> Vec<Missing> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let (pairs, _) = list.as_chunks::<16>();
        let pairs = pairs.iter().filter_map(|pair| read_pair(pair));
        let missing = pairs.map(|(segment, bytes)| {
            let offset = known.get(&segment).map_or(0, |segment| segment.bytes);
            Missing { segment, offset, len: bytes.saturating_sub(offset) }
        });
        missing.filter(|missing| missing.len > 0).collect()
    }

    /// Parts of segments that the last list of the log names and that are not there. Reads more
    /// than the beginning of the last segment only if something is missing.
    pub(crate) fn missing(&self) -> io::Result<Vec<Missing>> {
        let number = self.last_used();
        let (Some(file), Some(nonce)) = (self.open(number)?, self.nonce(number)) else {
            return Ok(Vec::new());
        };
        let len = file.len()?.min(self.bytes_of(number));
        let mut cursor = SegmentCursor { file: &*file, number, nonce, len, window: Vec::new(), at: 0 };
        let mut missing = Vec::new();
        let mut next = Some(0);
        while let Some(offset) = next {
            next = match cursor.record(offset)? {
                Some((Found { kind: Kind::Segments, value, .. }, _, next)) => {
                    // A later list of the segment names a part of what an earlier one does.
                    missing = self.missing_of(&value);
                    Some(next).filter(|_| !missing.is_empty())
                }
                // The first segment of a log has no list.
                Some((.., next)) => Some(next).filter(|_| offset > 0),
                None => cursor.find(offset + 1)?,
            };
        }
        Ok(missing)
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of a segment.
    pub(crate) fn bytes_of(&self, number: u64) -> u64 {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&number).map_or(0, |segment| segment.bytes)
    }

    /// Reports whether a segment exists and has this many bytes.
    pub(crate) fn holds(&self, number: u64, bytes: u64) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&number).is_some_and(|segment| segment.bytes >= bytes)
    }

    /// A segment for reading; `None` if it is gone.
    pub(crate) fn open(&self, number: u64) -> io::Result<Option<Arc<dyn File>>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(number) {
            return Ok(Some(file));
        }
        let Some(name) = self.name(number) else { return Ok(None) };
        match self.fs.open(&name, false) {
            Ok(file) => {
                open.insert(number, &file);
                Ok(Some(file))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a segment. Returns its file if no reader holds it; none can open it any more.
    pub(crate) fn remove(&self, number: u64) -> io::Result<Option<Arc<dyn File>>> {
        let file = self.open(number)?;
        let segment = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.forget(number);
            self.known.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
        };
        let Some(segment) = segment else { return Ok(None) };
        if let Err(error) = self.fs.remove(&name(number, segment.nonce)) {
            self.known.write().unwrap_or_else(PoisonError::into_inner).insert(number, segment);
            return Err(error);
        }
        self.bytes.fetch_sub(segment.bytes, Ordering::Relaxed);
        Ok(file.filter(|file| Arc::strong_count(file) == 1))
    }

    fn name(&self, number: u64) -> Option<String> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&number).map(|segment| name(number, segment.nonce))
    }

    fn nonce(&self, number: u64) -> Option<u64> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&number).map(|segment| segment.nonce)
    }

    fn create(&self, number: u64) -> io::Result<(Arc<dyn File>, u64)> {
        let nonce = random();
        let name = name(number, nonce);
        let made = self.fs.open(&name, true).and_then(|file| self.fs.sync_dir(FOLDER).map(|()| file));
        if made.is_err() {
            let _ = self.fs.remove(&name);
        }
        let file = made?;
        self.set_bytes(number, nonce, 0);
        Ok((file, nonce))
    }

    fn set_bytes(&self, number: u64, nonce: u64, bytes: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let before =
            known.insert(number, Segment { nonce, bytes, leaves: false }).map_or(0, |segment| segment.bytes);
        // The difference may be negative: the sum wraps to the right number.
        self.bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Keys of a segment that ends at `end` without naming them, as that of a process that was
    /// killed does. `None` if it has a directory or needs none.
    fn missing_directory(&self, number: u64, end: u64) -> io::Result<Option<Vec<(u64, u64)>>> {
        let (Some(file), Some(nonce)) = (self.open(number)?, self.nonce(number)) else { return Ok(None) };
        let mut cursor = SegmentCursor { file: &*file, number, nonce, len: end, window: Vec::new(), at: 0 };
        let mut keys = Vec::new();
        let mut next = Some(0);
        while let Some(offset) = next {
            next = match cursor.record(offset)? {
                Some((Found { kind: Kind::Directory, .. }, ..)) => return Ok(None),
                Some((found, _, next)) => {
                    name_keys(offset, found.kind, &found.key, &found.value, &mut keys);
                    Some(next)
                }
                None => cursor.find(offset + 1)?,
            };
        }
        Ok(Some(keys).filter(|keys| !keys.is_empty()))
    }

    /// Reads the records of a segment from `from` on. Gives where they end and the next sequence
    /// number.
    ///
    /// The last segment may end in the middle of a commit: what nothing behind it proves to have
    /// been synced, and lies behind `synced`, is its torn end. Every other segment was synced as a
    /// whole before the next one was made; `synced` is [`ALL_SYNCED`] for those.
    pub(crate) fn read(
        &self,
        number: u64,
        from: u64,
        sequence: u64,
        synced: u64,
        reader: &mut dyn Reader,
    ) -> io::Result<(u64, u64)> {
        let is_last = synced < ALL_SYNCED;
        let known = synced;
        let (Some(file), Some(nonce)) = (self.open(number)?, self.nonce(number)) else {
            return Ok((from, sequence));
        };
        // A read-only store cannot cut a torn end off, so reading stops at the last record.
        let len = file.len()?.min(self.bytes_of(number));
        let mut cursor = SegmentCursor { file: &*file, number, nonce, len, window: Vec::new(), at: 0 };
        let mut sequence = sequence;
        let mut offset = from;
        // Up to where commits behind the damage say that the segment was synced.
        let mut synced: Option<u64> = (!is_last).then_some(ALL_SYNCED);
        // Keys of the commit that is being read.
        let mut pending: HashMap<u64, u32> = HashMap::new();
        // Damaged parts so far.
        let mut gaps: Vec<Range<u64>> = Vec::new();
        // The last record is a directory, which ends a closed segment.
        let mut is_closed = false;
        loop {
            let read = cursor.record(offset)?.filter(|(_, header, _)| header.sequence >= sequence);
            let Some((found, header, next)) = read else {
                let Some(next) = cursor.find(offset + 1)? else {
                    if is_last && known > offset {
                        reader.gap(number, offset, known - offset);
                    } else if !is_last && offset != cursor.len && !(is_closed && cursor.is_zero(offset)?) {
                        reader.gap(number, offset, cursor.len.abs_diff(offset));
                    }
                    break;
                };
                if *synced.insert(match synced {
                    Some(synced) => synced,
                    None => cursor.synced_after(next)?.max(known),
                }) <= offset
                {
                    break;
                }
                reader.gap(number, offset, next - offset);
                gaps.push(offset..next);
                // The sequence goes on behind the gap with a number that is not known.
                offset = next;
                if let Some((_, header, _)) = cursor.record(next)? {
                    if header.sequence < sequence {
                        // A copy of an older record, written to the wrong place.
                        offset = next + 1;
                    } else {
                        sequence = header.sequence;
                    }
                }
                continue;
            };
            // A payload that is not whole is part of a torn end, or damaged.
            if is_last && !cursor.payload_is_sound(&found)? {
                let synced = *synced.insert(match synced {
                    Some(synced) => synced,
                    None => cursor.synced_after(next)?.max(known),
                });
                if synced <= offset {
                    break;
                }
                reader.gap(number, offset, next - offset);
                gaps.push(offset..next);
                (offset, sequence) = (next, header.sequence + 1);
                continue;
            }
            is_closed = found.kind == Kind::Directory;
            match found.kind {
                Kind::Put | Kind::Delete => {
                    *pending.entry(fingerprint(&found.key)).or_default() += 1;
                    reader.record(found)?;
                }
                Kind::Loss => {
                    for (key, ..) in losses(&found.value) {
                        *pending.entry(key).or_default() += 1;
                    }
                    reader.record(found)?;
                }
                Kind::Commit => {
                    for key in fingerprints(&found.value) {
                        // A commit may have several records of a key, the last of which counts.
                        match pending.get_mut(&key).filter(|count| **count > 0) {
                            Some(count) => *count -= 1,
                            None => reader.lost(key, number, offset),
                        }
                    }
                    pending.clear();
                }
                Kind::Segments => reader.record(found)?,
                Kind::Directory | Kind::Recent => {
                    for (at, key) in directory(&found.value) {
                        if gaps.iter().any(|gap| gap.contains(&at)) {
                            reader.lost(key, number, at + 1);
                        }
                    }
                }
            }
            (offset, sequence) = (next, header.sequence + 1);
        }
        Ok((offset, sequence))
    }
}

impl OpenFiles {
    fn get(&mut self, number: u64) -> Option<Arc<dyn File>> {
        if let Some(file) = self.young.get(&number) {
            return Some(Arc::clone(file));
        }
        let file = self.old.remove(&number).or_else(|| self.all.get(&number)?.upgrade())?;
        self.insert(number, &file);
        Some(file)
    }

    fn insert(&mut self, number: u64, file: &Arc<dyn File>) {
        if self.young.len() >= OPEN_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(number, Arc::clone(file));
        self.all.insert(number, Arc::downgrade(file));
    }

    fn forget(&mut self, number: u64) {
        self.young.remove(&number);
        self.old.remove(&number);
        self.all.remove(&number);
    }
}

/// Fingerprints in the value of a commit.
fn fingerprints(value: &[u8]) -> impl Iterator<Item = u64> {
    let (chunks, _) = value.as_chunks::<8>();
    chunks.iter().skip(1).map(|chunk| u64::from_le_bytes(*chunk))
}

/// Fingerprints, segments and offsets in the value of a loss.
pub(crate) fn losses(value: &[u8]) -> impl Iterator<Item = (u64, u64, u64)> {
    let (chunks, _) = value.as_chunks::<8>();
    let (triples, _) = chunks.as_chunks::<3>();
    triples.iter().map(|triple| {
        let [key, segment, offset] = triple.map(u64::from_le_bytes);
        (key, segment, offset)
    })
}

/// Offsets and fingerprints in the value of a directory or of recent keys.
fn directory(value: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let (chunks, _) = value.as_chunks::<8>();
    let (pairs, _) = chunks.as_chunks::<2>();
    pairs.iter().map(|pair| (u64::from_le_bytes(pair[0]), u64::from_le_bytes(pair[1])))
}

/// Two numbers: first and last segment in the value of a delete, segment and length in a list.
pub(crate) fn read_pair(value: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = value.split_first_chunk()?;
    Some((u64::from_le_bytes(*first), u64::from_le_bytes(second.try_into().ok()?)))
}

pub(crate) fn write_pair(first: u64, second: u64) -> Vec<u8> {
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

/// Bytes of a segment, a window at a time.
struct SegmentCursor<'f> {
    file: &'f dyn File,
    number: u64,
    nonce: u64,
    len: u64,
    window: Vec<u8>,
    /// Offset of the window.
    at: u64,
}

/// Bytes that are read at a time where one record follows the other.
const WINDOW_BYTES: u64 = 4 << 10;
/// Bytes that are read at a time in search of a record.
const SEARCH_BYTES: u64 = 256 << 10;

impl SegmentCursor<'_> {
    /// `len` bytes from `offset`; `None` beyond the end of the file.
    fn bytes(&mut self, offset: u64, len: usize) -> io::Result<Option<&[u8]>> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Ok(None);
        }
        let held = offset >= self.at && offset + len as u64 <= self.at + self.window.len() as u64;
        if !held {
            let size = (len as u64).max(WINDOW_BYTES).min(self.len - offset);
            self.window.resize(size as usize, 0);
            self.at = offset;
            if let Err(error) = self.file.read_at(&mut self.window, offset) {
                self.window.clear();
                return Err(error);
            }
        }
        let start = (offset - self.at) as usize;
        Ok(Some(&self.window[start..start + len]))
    }

    /// The record at `offset`, and where the next begins. `None` if there is no valid one.
    fn record(&mut self, offset: u64) -> io::Result<Option<(Found, Header, u64)>> {
        let (number, nonce) = (self.number, self.nonce);
        let Some(head) = self.bytes(offset, HEADER_BYTES)? else { return Ok(None) };
        let head: [u8; HEADER_BYTES] = head.try_into().expect("as many as asked for");
        let Some(header) = Header::read(&head, nonce, offset) else { return Ok(None) };
        let body = header.key_len + header.value_len;
        let at = offset + HEADER_BYTES as u64;
        let Some(bytes) = self.bytes(at, body)? else { return Ok(None) };
        if !header.matches(&head, bytes) {
            return Ok(None);
        }
        let mut key = bytes.to_vec();
        let value = key.split_off(header.key_len);
        let payload_at = at + body as u64;
        let Some(end) = payload_at.checked_add(header.payload_len).filter(|end| *end <= self.len) else {
            return Ok(None);
        };
        // An empty payload is a payload too.
        let has_payload =
            header.kind == Kind::Put && key.first() == Some(&b'b') && value.len() == BLOB_VALUE_BYTES;
        let payload = has_payload.then_some((payload_at, header.payload_len));
        let found = Found { kind: header.kind, key, value, segment: number, offset, payload };
        Ok(Some((found, header, end)))
    }

    fn payload_is_sound(&self, found: &Found) -> io::Result<bool> {
        let Some((offset, len)) = found.payload else { return Ok(true) };
        let mut buf = vec![0; len.min(SEARCH_BYTES) as usize];
        let mut crc = 0;
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(SEARCH_BYTES) as usize;
            self.file.read_at(&mut buf[..piece], offset + done)?;
            crc = crc32c::crc32c_append(crc, &buf[..piece]);
            done += piece as u64;
        }
        Ok(crc == key::payload_crc(&found.value))
    }

    /// The first offset from `from` on at which there is a valid record.
    fn find(&mut self, from: u64) -> io::Result<Option<u64>> {
        let mut at = from;
        let mut buf = Vec::new();
        while at + HEADER_BYTES as u64 <= self.len {
            let size = (self.len - at).min(SEARCH_BYTES) as usize;
            buf.resize(size, 0);
            self.file.read_at(&mut buf, at)?;
            let mut start = 0;
            while let Some(hit) = buf[start..].windows(4).position(|bytes| bytes == record::MAGIC) {
                let offset = at + (start + hit) as u64;
                if self.record(offset)?.is_some() {
                    return Ok(Some(offset));
                }
                start += hit + 1;
            }
            // The magic may lie across two pieces.
            at += (size - 3) as u64;
        }
        Ok(None)
    }

    /// The largest position that a record from `from` on proves to have been synced before it.
    fn synced_after(&mut self, from: u64) -> io::Result<u64> {
        let mut synced = 0;
        let mut next = Some(from);
        while let Some(offset) = next {
            next = match self.record(offset)? {
                Some((found, _, end)) => {
                    let proven = match found.kind {
                        Kind::Commit => found.value.first_chunk().map_or(0, |at| u64::from_le_bytes(*at)),
                        Kind::Directory => offset,
                        Kind::Put | Kind::Delete | Kind::Loss | Kind::Segments | Kind::Recent => 0,
                    };
                    synced = synced.max(proven);
                    Some(end)
                }
                None => self.find(offset + 1)?,
            };
        }
        Ok(synced)
    }

    fn is_zero(&mut self, from: u64) -> io::Result<bool> {
        let mut at = from;
        let mut buf = Vec::new();
        while at < self.len {
            buf.resize((self.len - at).min(SEARCH_BYTES) as usize, 0);
            self.file.read_at(&mut buf, at)?;
            if buf.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += buf.len() as u64;
        }
        Ok(true)
    }
}

/// The open end of the log. One writer.
#[derive(Debug)]
pub(crate) struct Log {
    segments: Arc<Segments>,
    file: Arc<dyn File>,
    segment: u64,
    nonce: u64,
    /// Offset of the next record.
    end: u64,
    /// Up to where the segment is synced.
    synced: u64,
    sequence: u64,
    room: Room,
    /// Headers, keys and values of a batch.
    heads: Vec<u8>,
    /// Offset and fingerprint of each key that a record of the segment names.
    directory: Vec<(u64, u64)>,
    /// Places in `directory` of keys that had a value before, or may have had one.
    replaced: Vec<usize>,
    /// Keys of the last commit.
    last_keys: usize,
    /// The end of the segment on disk is unknown.
    broken: bool,
}

/// Space that is prepared behind the end of the log, where a reader finds zeros and with them the
/// end.
///
/// A write that extends a file is durable only with its new size, which the file system's own
/// journal has to record: that takes several times as long as to overwrite what is there. So space
/// is reserved in large steps, and small batches, which would otherwise spend most of their time
/// so, find zeros that were written with an earlier one.
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
/// So many small batches in a row let expect more. Where blobs lie between refs, most zeros would
/// be overwritten by blobs, which need none.
const SMALL_BATCHES: u32 = 4;
/// Zeros to write from.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Log {
    /// Reads the log, gives every record behind `known.from` to `reader` and opens a new segment.
    /// `looks` leaves the old segments as they are.
    pub(crate) fn open(
        segments: Arc<Segments>,
        known: Known,
        room: Room,
        looks: bool,
        reader: &mut dyn Reader,
    ) -> io::Result<Log> {
        let Known { from, synced, is_cut, last } = known;
        let numbers = segments.numbers();
        let mut sequence = from.sequence.max(1);
        for number in numbers.iter().copied() {
            let is_cut = is_cut && number == synced.segment;
            let offset = match number.cmp(&from.segment) {
                cmp::Ordering::Less if is_cut => u64::MAX,
                cmp::Ordering::Less => continue,
                cmp::Ordering::Equal => from.offset,
                cmp::Ordering::Greater => 0,
            };
            let is_last = Some(&number) == numbers.last();
            let known = match is_last {
                true if number == synced.segment => synced.offset,
                true => 0,
                false => ALL_SYNCED,
            };
            let (end, next) = match is_cut {
                // The index may have more than is left, so the end is looked for from the start.
                true => segments.read(number, 0, 0, synced.offset, &mut Rest { reader, from: offset })?,
                false => segments.read(number, offset, sequence, known, reader)?,
            };
            sequence = sequence.max(next);
            if (is_last || is_cut)
                && let Some(file) = segments.open(number)?
            {
                let len = file.len()?;
                if end < len {
                    tracing::debug!(segment = number, cut = len - end, "the torn end of the log is cut off");
                    file.set_len(end)?;
                }
                // The directory and the next segment say that all of this one is durable.
                file.sync()?;
                let (mut end, nonce) = (end, segments.nonce(number).unwrap_or(0));
                // Nothing is written where the index has records that were lost.
                if !looks
                    && !is_cut
                    && let Some(directory) = segments.missing_directory(number, end)?
                {
                    end = append_directory(&*file, (nonce, end), &mut sequence, &directory);
                    file.sync()?;
                }
                segments.set_bytes(number, nonce, end);
            }
        }
        // A crash left no mark.
        if !looks && !is_cut {
            note_end(&segments, sequence);
        }
        if is_cut && !numbers.contains(&synced.segment) {
            reader.gap(synced.segment, 0, synced.offset);
        }
        sequence = sequence.max(synced.sequence);
        let segment = last + 1;
        let (file, nonce) = segments.create(segment)?;
        Ok(Log {
            segments,
            file,
            segment,
            nonce,
            end: 0,
            synced: 0,
            sequence,
            room,
            heads: Vec::new(),
            directory: Vec::new(),
            replaced: Vec::new(),
            last_keys: 0,
            broken: false,
        })
    }

    /// Begins a new segment if this one is full.
    pub(crate) fn make_room(&mut self) -> io::Result<()> {
        if self.end < self.room.segment_bytes_max { Ok(()) } else { self.begin_segment() }
    }

    /// Length at which segments are closed.
    pub(crate) fn segment_bytes_max(&self) -> u64 {
        self.room.segment_bytes_max
    }

    /// Sets it for the present segment and later ones.
    pub(crate) fn set_segment_bytes_max(&mut self, bytes: u64) {
        self.room.segment_bytes_max = bytes;
        self.room.reserve_bytes = self.room.reserve_bytes.min(bytes);
    }

    /// Closes this segment and begins a new one.
    pub(crate) fn begin_segment(&mut self) -> io::Result<()> {
        self.close_segment()?;
        let (file, nonce) = self.segments.create(self.segment + 1)?;
        self.give_room_back();
        (self.file, self.nonce, self.segment) = (file, nonce, self.segment + 1);
        (self.end, self.synced, self.last_keys) = (0, 0, 0);
        (self.room.reserved, self.room.zeroed) = (0, 0);
        Ok(())
    }

    /// Appends `entries`, a commit of them, and gives where they are. Durable after the next
    /// [`sync`](Log::sync).
    ///
    /// On an error nothing was appended, unless that cannot be arranged: then
    /// [`AppendError::broken`].
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<Vec<Written>, AppendError> {
        let list = if self.end == 0 { self.segments.list_below(self.segment) } else { Vec::new() };
        if !list.is_empty() {
            self.append_list(list)?;
        }
        self.append_commit(entries)
    }

    /// Appends the list of the segments that are there, but for those that are about to go: neither
    /// this list nor a later one names these.
    pub(crate) fn list_segments(&mut self, going: &[u64]) -> Result<(), AppendError> {
        self.segments.let_leave(going);
        self.append_list(self.segments.list_below(self.segment))
    }

    fn append_list(&mut self, value: Vec<u8>) -> Result<(), AppendError> {
        let list = Entry { kind: Kind::Segments, key: Vec::new(), value, payload: None, replaces: false };
        self.append_commit(&[list]).map(drop)
    }

    fn append_commit(&mut self, entries: &[Entry]) -> Result<Vec<Written>, AppendError> {
        self.heads.clear();
        let mut ends = Vec::with_capacity(entries.len());
        let mut commit = self.synced.to_le_bytes().to_vec();
        let mut sequence = self.sequence;
        let mut written = Vec::with_capacity(entries.len());
        let mut offset = self.end;
        let known = self.directory.len();
        for entry in entries {
            let payload_len = entry.payload.as_ref().map_or(0, |payload| payload.len() as u64);
            let head = (entry.kind, sequence, self.nonce.wrapping_add(offset));
            record::write(&mut self.heads, head, &entry.key, &entry.value, payload_len);
            ends.push(self.heads.len());
            let first = self.directory.len();
            name_keys(offset, entry.kind, &entry.key, &entry.value, &mut self.directory);
            if entry.replaces {
                self.replaced.extend(first..self.directory.len());
            }
            let payload = offset + record::bytes(&entry.key, &entry.value);
            written.push(Written { segment: self.segment, offset, payload });
            offset = payload + payload_len;
            sequence += 1;
        }
        for (_, key) in &self.directory[known..] {
            commit.extend_from_slice(&key.to_le_bytes());
        }
        // The loss of a key that had no value brings none back.
        let from = known - recent_keys(known, self.directory.len(), self.last_keys);
        let recent = self.replaced.iter().rev().skip_while(|place| **place >= known);
        let recent = recent.take_while(|place| **place >= from).map(|place| self.directory[*place]);
        let recent: Vec<(u64, u64)> = recent.collect();
        if !recent.is_empty() {
            let value = write_directory(&recent);
            let place = self.nonce.wrapping_add(offset);
            record::write(&mut self.heads, (Kind::Recent, sequence, place), &[], &value, 0);
            offset += record::bytes(&[], &value);
            sequence += 1;
        }
        let place = self.nonce.wrapping_add(offset);
        record::write(&mut self.heads, (Kind::Commit, sequence, place), &[], &commit, 0);
        sequence += 1;
        let mut parts = Vec::with_capacity(2 * entries.len() + 1);
        // Heads without payload between them are one part.
        let mut start = 0;
        for (entry, end) in entries.iter().zip(ends) {
            if let Some(payload) = &entry.payload {
                parts.push(IoSlice::new(&self.heads[start..end]));
                start = end;
                if !payload.is_empty() {
                    parts.push(IoSlice::new(payload));
                }
            }
        }
        parts.push(IoSlice::new(&self.heads[start..]));
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
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
            // The written part must not be found behind what is written next, nor after a power
            // failure by a start that then takes it for an acknowledged upload.
            let broken = self.file.set_len(self.end).and_then(|()| self.file.sync()).is_err();
            self.directory.truncate(known);
            self.replaced.retain(|place| *place < known);
            self.broken |= broken;
            (self.room.reserved, self.room.zeroed) = (self.end, self.end);
            return Err(AppendError { source, broken });
        }
        (self.end, self.sequence) = (end, sequence);
        self.last_keys = self.directory.len() - known;
        self.segments.set_bytes(self.segment, self.nonce, end);
        Ok(written)
    }

    /// Makes everything appended durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("the end of the log is unknown since a write failed"));
        }
        if self.synced < self.end {
            // After a failed sync, a second one would only say that there is nothing to do.
            self.broken = true;
            self.file.sync()?;
            self.broken = false;
            self.synced = self.end;
        }
        Ok(())
    }

    /// Position of the next record.
    pub(crate) fn position(&self) -> LogPosition {
        LogPosition { segment: self.segment, offset: self.end, sequence: self.sequence }
    }

    /// Makes everything appended durable, then the directory of the segment, which says so. Without
    /// it, as on a full disk, less damage is noticed.
    fn close_segment(&mut self) -> io::Result<()> {
        self.sync()?;
        let directory = std::mem::take(&mut self.directory);
        self.replaced.clear();
        self.end = append_directory(&*self.file, (self.nonce, self.end), &mut self.sequence, &directory);
        self.segments.set_bytes(self.segment, self.nonce, self.end);
        self.sync()
    }

    /// Cuts off what was prepared and is not needed.
    fn give_room_back(&self) {
        if let Err(error) = self.file.set_len(self.end) {
            tracing::warn!(%error, "the space behind a full segment of the log is not given back");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if !self.broken
            && let Err(error) = self.close_segment()
        {
            tracing::warn!(%error, "the last segment of the log is closed without its directory");
        }
        self.give_room_back();
        if !self.broken {
            note_end(&self.segments, self.sequence);
        }
    }
}

/// Makes the end of the log durable beside it: a log that does not end so has lost something.
fn note_end(segments: &Segments, sequence: u64) {
    let segment = segments.last_used();
    let end = LogPosition { segment, offset: segments.bytes_of(segment), sequence };
    let note = || -> io::Result<()> {
        let Some(file) = segments.open(segment)? else { return Ok(()) };
        let closed = Closed { end, check: check(&*file, end.offset)? };
        if Closed::read(&*segments.fs) == Some(closed) {
            return Ok(());
        }
        let file = segments.fs.open(CLOSED, true)?;
        file.write_at(&[IoSlice::new(&closed.write())], 0)?;
        file.sync()?;
        segments.fs.sync_dir("")
    };
    if let Err(error) = note() {
        tracing::warn!(%error, "the end of the log could not be noted; a loss of it may go unnoticed");
    }
}

/// End of the log that a clean shutdown noted, or a start after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) end: LogPosition,
    /// CRC-32C of the last bytes before it.
    check: u32,
}

impl Closed {
    /// Reads what was noted last.
    pub(crate) fn read(fs: &dyn Fs) -> Option<Closed> {
        let mut bytes = [0; 32];
        fs.open(CLOSED, false).and_then(|file| file.read_at(&mut bytes, 0)).ok()?;
        let [segment, offset, sequence, checks] = *bytes.as_chunks::<8>().0 else { return None };
        let [segment, offset, sequence, checks] = [segment, offset, sequence, checks].map(u64::from_le_bytes);
        (crc32c::crc32c(&bytes[..28]) == (checks >> 32) as u32)
            .then_some(Closed { end: LogPosition { segment, offset, sequence }, check: checks as u32 })
    }

    fn write(&self) -> [u8; 32] {
        let LogPosition { segment, offset, sequence } = self.end;
        let mut bytes = [0; 32];
        for (at, number) in [segment, offset, sequence, u64::from(self.check)].into_iter().enumerate() {
            bytes[8 * at..8 * (at + 1)].copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reports whether the segment still ends so.
    pub(crate) fn matches(&self, segments: &Segments) -> io::Result<bool> {
        let LogPosition { segment, offset, .. } = self.end;
        match segments.open(segment)? {
            Some(file) if segments.holds(segment, offset) => Ok(check(&*file, offset)? == self.check),
            _ => Ok(false),
        }
    }
}

/// Checksum of the last bytes before an end.
fn check(file: &dyn File, end: u64) -> io::Result<u32> {
    let from = end.saturating_sub(CLOSED_CHECK_BYTES);
    let mut bytes = vec![0; (end - from) as usize];
    file.read_at(&mut bytes, from)?;
    Ok(crc32c::crc32c(&bytes))
}

/// Appends to `directory` the fingerprint of each key that a record names.
///
/// The keys of a loss are those of the damage: they are lost with it, rather than old ones found
/// again.
fn name_keys(offset: u64, kind: Kind, key: &[u8], value: &[u8], directory: &mut Vec<(u64, u64)>) {
    match kind {
        Kind::Put | Kind::Delete => directory.push((offset, fingerprint(key))),
        Kind::Loss => directory.extend(losses(value).map(|(key, ..)| (offset, key))),
        Kind::Commit | Kind::Directory | Kind::Segments | Kind::Recent => {}
    }
}

fn write_directory(keys: &[(u64, u64)]) -> Vec<u8> {
    keys.iter().flat_map(|(offset, key)| [*offset, *key]).flat_map(u64::to_le_bytes).collect()
}

/// Number of keys before a commit that the commit names as well. It adds the keys `known..total` of
/// the segment; the commit before it had `last` keys.
fn recent_keys(known: usize, total: usize, last: usize) -> usize {
    let ended = RECENT_STEPS.into_iter().find(|step| known / step != total / step);
    let keys = ended.map_or(RECENT_KEYS_MIN, |step| 2 * step).max(last);
    keys.min(known).min(DIRECTORY_KEYS_MAX)
}

/// Writes a directory at the end of a segment, and gives where that is then.
fn append_directory(
    file: &dyn File,
    (nonce, end): (u64, u64),
    sequence: &mut u64,
    directory: &[(u64, u64)],
) -> u64 {
    let mut bytes = Vec::new();
    for part in directory.chunks(DIRECTORY_KEYS_MAX) {
        let value = write_directory(part);
        let place = nonce.wrapping_add(end + bytes.len() as u64);
        record::write(&mut bytes, (Kind::Directory, *sequence, place), &[], &value, 0);
        *sequence += 1;
    }
    if bytes.is_empty() {
        return end;
    }
    match file.write_at(&[IoSlice::new(&bytes)], end) {
        Ok(()) => end + bytes.len() as u64,
        Err(error) => {
            tracing::warn!(%error, "a segment of the log is closed without its directory");
            // Zeros behind the end of a segment without directory are damage.
            let _ = file.set_len(end).and_then(|()| file.sync());
            end
        }
    }
}

/// Failure to append a batch.
#[derive(Debug)]
pub(crate) struct AppendError {
    pub(crate) source: io::Error,
    /// The end of the log is unknown; nothing may be written any more.
    pub(crate) broken: bool,
}

fn name(number: u64, nonce: u64) -> String {
    format!("{FOLDER}/{number:016x}-{nonce:016x}.seg")
}

fn read_name(name: &str) -> Option<(u64, u64)> {
    let (number, nonce) = name.strip_suffix(".seg")?.split_once('-')?;
    Some((u64::from_str_radix(number, 16).ok()?, u64::from_str_radix(nonce, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_platform::Folder;

    struct Nothing;

    impl Reader for Nothing {
        fn record(&mut self, _: Found) -> io::Result<()> {
            Ok(())
        }
        fn lost(&mut self, _: u64, _: u64, _: u64) {}
        fn gap(&mut self, _: u64, _: u64, _: u64) {}
    }

    /// A segment that a collection is about to remove, while uploads fill the open one.
    #[test]
    fn a_segment_that_is_to_go_is_in_no_later_list() {
        let folder = tempfile::tempdir().unwrap();
        let fs: Arc<dyn Fs> = Arc::new(Folder::new(folder.path()).unwrap());
        fs.create_dir(FOLDER).unwrap();
        let segments = Arc::new(Segments::list(Arc::clone(&fs)).unwrap());
        let start = LogPosition { segment: 0, offset: 0, sequence: 0 };
        let known = Known { from: start, synced: start, is_cut: false, last: 0 };
        let mut log =
            Log::open(Arc::clone(&segments), known, Room::new(1 << 20, 0, 0), false, &mut Nothing).unwrap();
        let put = |log: &mut Log, key: u8| {
            let (key, value) = (vec![key; 20], vec![key; 20]);
            let entry = Entry { kind: Kind::Put, key, value, payload: None, replaces: false };
            log.append(&[entry]).unwrap();
        };
        for key in 1..=3 {
            put(&mut log, key);
            log.begin_segment().unwrap();
        }
        put(&mut log, 4);
        log.list_segments(&[1, 2]).unwrap();
        segments.remove(1).unwrap();
        log.begin_segment().unwrap();
        put(&mut log, 5);
        segments.remove(2).unwrap();
        drop(log);
        let segments = Segments::list(fs).unwrap();
        assert_eq!(segments.numbers(), [3, 4, 5]);
        assert_eq!(segments.missing().unwrap(), []);
    }

    /// Five terabytes are 20,000 segments of 256 MiB, more than a process may open.
    #[test]
    fn segments_that_are_read_once_each_stay_within_the_open_files() {
        let folder = tempfile::tempdir().unwrap();
        let fs = Folder::new(folder.path()).unwrap();
        let mut files = OpenFiles::default();
        for number in 0..4 * OPEN_MAX as u64 {
            let file = fs.open(&number.to_string(), true).unwrap();
            files.insert(number, &file);
            assert!(files.get(number).is_some_and(|open| Arc::ptr_eq(&open, &file)));
        }
        let open = files.all.values().filter(|file| file.strong_count() > 0).count();
        assert!((OPEN_MAX / 2..=OPEN_MAX).contains(&open), "{open} open segments");
    }
}
