//! Conversion of stores of version 1, whose index (a redb file) held records that the log no longer
//! did.
//!
//! Everything that the index names is written to the log of this version, segment by segment, and
//! each old segment is removed once its blobs are durable, so that a conversion needs little space.
//! A conversion that is interrupted goes on with the next start. Afterwards the place of the old
//! index holds a file that names the new format to an old version.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, StorageBackend, TableDefinition};
use throng_ddc::{IoHash, Timestamp};
use throng_platform::{File, Fs};

use crate::change::Change;
use crate::error::StoreError;
use crate::key::{self, FileKind, Location};
use crate::store::Store;

/// Called with each key and value; its error ends the walk.
type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), StoreError> + 'a;

const INDEX: &str = "index.redb";
const LOG_FOLDER: &str = "log";
/// Everything but the blobs was converted.
const HALF_MARK: &str = "converting";
/// A segment that an old version does not know what to do with: it then does not begin a new index.
const SENTINEL: &str = "log/ffffffffffffffff.seg";
const ENTRIES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("entries");
const POSITION: TableDefinition<'static, (), (u64, u64, u64)> = TableDefinition::new("position");
const HEADER_BYTES: usize = 40;
const LOCATION_BYTES: usize = 33;
/// Bytes that are converted before they are made durable.
const STEP_BYTES: u64 = 64 << 20;

/// A store of version 1.
pub(crate) struct OldStore {
    database: Database,
    segments: Vec<u64>,
    /// Entries behind what the index contains.
    tail: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

/// Location of a blob in version 1.
#[derive(Clone, Copy, PartialEq, Eq)]
struct OldLocation {
    large: bool,
    file: u64,
    offset: u64,
    len: u64,
    put: Timestamp,
}

impl OldLocation {
    fn read(bytes: &[u8]) -> Option<OldLocation> {
        let bytes: &[u8; LOCATION_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let put = Timestamp::from_unix_ms(number(25));
        Some(OldLocation { large: bytes[0] == 1, file: number(1), offset: number(9), len: number(17), put })
    }

    fn write(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.large)];
        for number in [self.file, self.offset, self.len, self.put.unix_ms()] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// A record of version 1: its key, value, and where its payload is.
struct OldRecord {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    payload: Option<OldLocation>,
    sequence: u64,
    next: u64,
}

/// Reports whether a folder that notes no version holds a store of version 1.
pub(crate) fn exists(fs: &dyn Fs) -> bool {
    fs.open(SENTINEL, false).is_err() && fs.open(INDEX, false).is_ok()
}

/// Looks for a store of version 1 in a folder that notes no version.
pub(crate) fn find(fs: &Arc<dyn Fs>) -> Result<Option<OldStore>, StoreError> {
    if !exists(&**fs) {
        return Ok(None);
    }
    let segments = match fs.list(LOG_FOLDER) {
        Ok(names) => {
            names.iter().filter_map(|name| u64::from_str_radix(name.strip_suffix(".seg")?, 16).ok()).collect()
        }
        Err(_) => Vec::new(),
    };
    let mut segments: Vec<u64> = segments;
    segments.sort_unstable();
    let file = fs.open(INDEX, false)?;
    if segments.is_empty() && file.len()? == 0 {
        return Ok(None);
    }
    let failed = |error: redb::Error| StoreError::Convert(error.to_string());
    // The whole log from the first segment says everything that the index does.
    let from_log = segments.first() == Some(&1);
    let database =
        match Database::builder().create_with_backend(Backend { file: Arc::clone(&file), syncs: true }) {
            Ok(database) => database,
            Err(error) if from_log => {
                tracing::warn!(%error, "the old index cannot be read; the log is converted without it");
                file.set_len(0)?;
                Database::builder()
                    .create_with_backend(Backend { file, syncs: true })
                    .map_err(|error| failed(error.into()))?
            }
            Err(error) => return Err(failed(error.into())),
        };
    let write = database.begin_write().map_err(|error| failed(error.into()))?;
    write.open_table(ENTRIES).map_err(|error| failed(error.into()))?;
    let position = {
        let table = write.open_table(POSITION).map_err(|error| failed(error.into()))?;
        let found = table.get(()).map_err(|error| failed(error.into()))?;
        found.map_or((0, 0, 0), |found| found.value())
    };
    write.commit().map_err(|error| failed(error.into()))?;
    let mut old = OldStore { database, segments, tail: BTreeMap::new() };
    old.read_tail(&**fs, position)?;
    Ok(Some(old))
}

impl OldStore {
    /// Reads what the index does not contain, as version 1 did.
    fn read_tail(&mut self, fs: &dyn Fs, position: (u64, u64, u64)) -> Result<(), StoreError> {
        let (from, offset, sequence) = position;
        let mut sequence = sequence.max(1);
        for segment in self.segments.iter().copied().filter(|segment| *segment >= from) {
            let file = fs.open(&segment_name(segment), false)?;
            let mut any_sequence = segment != from;
            let mut at = if segment == from { offset } else { 0 };
            while let Some(record) = read_record(&*file, segment, at)? {
                if record.sequence < sequence || record.sequence > sequence && !any_sequence {
                    break;
                }
                any_sequence = false;
                (sequence, at) = (record.sequence + 1, record.next);
                let value = match (record.value, record.payload) {
                    (Some(_), Some(location)) => {
                        // Version 1 ended a segment where a payload did not have its hash.
                        if read_payload(&*file, &location, &record.key)?.is_none() {
                            break;
                        }
                        Some(location.write())
                    }
                    (value, _) => value,
                };
                self.tail.insert(record.key, value);
            }
        }
        Ok(())
    }

    /// The last value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(value) = self.tail.get(key) {
            return Ok(value.clone());
        }
        let failed = |error: redb::Error| StoreError::Convert(error.to_string());
        let read = self.database.begin_read().map_err(|error| failed(error.into()))?;
        let table = read.open_table(ENTRIES).map_err(|error| failed(error.into()))?;
        let found = table.get(key).map_err(|error| failed(error.into()))?;
        Ok(found.map(|found| found.value().to_vec()))
    }

    /// Calls `visit` with every entry.
    fn walk(&self, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let failed = |error: redb::Error| StoreError::Convert(error.to_string());
        let read = self.database.begin_read().map_err(|error| failed(error.into()))?;
        let table = read.open_table(ENTRIES).map_err(|error| failed(error.into()))?;
        for entry in table.iter().map_err(|error| failed(error.into()))? {
            let (key, value) = entry.map_err(|error| failed(error.into()))?;
            if !self.tail.contains_key(key.value()) {
                visit(key.value(), value.value())?;
            }
        }
        for (key, value) in &self.tail {
            if let Some(value) = value {
                visit(key, value)?;
            }
        }
        Ok(())
    }
}

/// Converts an old store into a new, empty one, or goes on with that.
pub(crate) fn convert(store: &Store, old: &OldStore) -> Result<(), StoreError> {
    let fs = &*store.fs;
    tracing::info!(segments = old.segments.len(), "a store of version 1 is converted");
    if fs.open(HALF_MARK, false).is_err() {
        let mut queued = 0;
        old.walk(&mut |key, value| {
            if let Some(change) = convert_entry(key, value) {
                queued += value.len() as u64 + 256;
                store.queue_own(change);
            }
            if queued >= STEP_BYTES {
                queued = 0;
                store.commit_own()?;
            }
            Ok(())
        })?;
        store.commit_own()?;
        store.checkpoint()?;
        fs.open(HALF_MARK, true)?;
        fs.sync_dir("")?;
    }
    let mut lost = 0_u64;
    for segment in &old.segments {
        let file = fs.open(&segment_name(*segment), false)?;
        let mut at = 0;
        let mut queued = 0;
        while let Some(record) = read_record(&*file, *segment, at)? {
            at = record.next;
            let Some(location) = record.payload else { continue };
            if old.get(&record.key)?.as_deref() != Some(&location.write()[..]) {
                continue;
            }
            match read_payload(&*file, &location, &record.key)? {
                Some(payload) => {
                    queued += location.len;
                    store.queue_own(Change::Blob { key: record.key, payload, put: location.put });
                }
                None => lost += 1,
            }
            if queued >= STEP_BYTES {
                queued = 0;
                store.commit_own()?;
            }
        }
        store.commit_own()?;
        store.checkpoint()?;
        fs.remove(&segment_name(*segment))?;
        // In order: a later segment says which blobs of this one were deleted.
        fs.sync_dir(LOG_FOLDER)?;
    }
    if lost > 0 {
        tracing::error!(lost, "damaged blobs of the old store are missing until they are put again");
    }
    tracing::info!("the store of version 1 is converted");
    Ok(())
}

/// Change that puts an entry of the old index, unless it is a small blob.
fn convert_entry(key: &[u8], value: &[u8]) -> Option<Change> {
    let key = key.to_vec();
    match key.first()? {
        b'b' => {
            let OldLocation { large, file, len, put, .. } = OldLocation::read(value)?;
            let location = Location { kind: FileKind::Plain, file, offset: 0, len, put, crc: 0 };
            large.then_some(Change::Large { key, location })
        }
        b'a' => {
            let used = Timestamp::from_unix_ms(u64::from_le_bytes(value.try_into().ok()?));
            Some(Change::Access { key, used })
        }
        _ => Some(Change::Set { key, value: value.to_vec() }),
    }
}

/// Removes the mark of a conversion, once a start finds no old store any more.
pub(crate) fn remove_mark(fs: &dyn Fs) {
    let _ = fs.remove(HALF_MARK);
}

/// Puts a file in the place of the old index whose table has the format's name as its type: an old
/// version ends with that name. From now on no start converts: the old index says less than the
/// log did.
pub(crate) fn write_sentinel(fs: &dyn Fs) -> Result<(), StoreError> {
    fs.create_dir(LOG_FOLDER)?;
    fs.open(SENTINEL, true)?;
    // Before the file that only a new store has under the old name.
    fs.sync_dir(LOG_FOLDER)?;
    let failed = |error: redb::Error| StoreError::Convert(error.to_string());
    let file = fs.open(INDEX, true)?;
    file.set_len(0)?;
    // A file that is half written is written again at the next start: one sync is enough.
    let backend = Backend { file: Arc::clone(&file), syncs: false };
    let database = Database::builder().create_with_backend(backend).map_err(|error| failed(error.into()))?;
    let write = database.begin_write().map_err(|error| failed(error.into()))?;
    let table = TableDefinition::<NewFormat, NewFormat>::new("entries");
    write.open_table(table).map_err(|error| failed(error.into()))?;
    write.commit().map_err(|error| failed(error.into()))?;
    drop(database);
    file.sync()?;
    Ok(())
}

/// Type of a table that only its name is for.
#[derive(Debug)]
struct NewFormat;

impl redb::Value for NewFormat {
    type SelfType<'a> = &'a [u8];
    type AsBytes<'a> = &'a [u8];

    fn fixed_width() -> Option<usize> {
        None
    }

    fn from_bytes<'a>(data: &'a [u8]) -> &'a [u8]
    where
        Self: 'a,
    {
        data
    }

    fn as_bytes<'a, 'b: 'a>(value: &'a &'b [u8]) -> &'a [u8]
    where
        Self: 'b,
    {
        value
    }

    fn type_name() -> redb::TypeName {
        redb::TypeName::new("this store has format 2 and needs a newer version of throng")
    }
}

impl redb::Key for NewFormat {
    fn compare(one: &[u8], other: &[u8]) -> std::cmp::Ordering {
        one.cmp(other)
    }
}

fn segment_name(segment: u64) -> String {
    format!("{LOG_FOLDER}/{segment:016x}.seg")
}

/// The record at `offset`. `None` if there is no valid one.
fn read_record(file: &dyn File, segment: u64, offset: u64) -> io::Result<Option<OldRecord>> {
    let left = file.len()?.saturating_sub(offset);
    if left < HEADER_BYTES as u64 {
        return Ok(None);
    }
    let mut head = [0; HEADER_BYTES];
    file.read_at(&mut head, offset)?;
    let number = |at: usize, len: usize| {
        head[at..at + len].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let (key_len, value_len, payload_len) = (number(10, 2) as usize, number(12, 4) as usize, number(16, 8));
    let body = key_len + value_len;
    let end = (HEADER_BYTES as u64 + body as u64).checked_add(payload_len);
    let Some(end) = end.filter(|end| &head[..4] == b"TDC1" && *end <= left) else { return Ok(None) };
    let mut key = vec![0; body];
    file.read_at(&mut key, offset + HEADER_BYTES as u64)?;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[8..]);
    crc.update(&key);
    if u64::from(crc.finalize()) != number(4, 4) {
        return Ok(None);
    }
    let value = key.split_off(key_len);
    let is_blob = payload_len > 0 || key.first() == Some(&b'b') && value.len() == 8;
    let put = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let payload = is_blob.then(|| OldLocation {
        large: false,
        file: segment,
        offset: offset + (HEADER_BYTES + body) as u64,
        len: payload_len,
        put: Timestamp::from_unix_ms(put),
    });
    let value = (head[8] != 2).then_some(value);
    Ok(Some(OldRecord { key, value, payload, sequence: number(24, 8), next: offset + end }))
}

/// The payload of a record, if it has the hash that its key ends with.
fn read_payload(file: &dyn File, location: &OldLocation, key: &[u8]) -> io::Result<Option<Bytes>> {
    let mut bytes = vec![0; location.len as usize];
    file.read_at(&mut bytes, location.offset)?;
    Ok((Some(IoHash::of(&bytes)) == key::last_hash(key)).then(|| bytes.into()))
}

#[derive(Debug)]
struct Backend {
    file: Arc<dyn File>,
    /// False for a file that its writer syncs once, at the end.
    syncs: bool,
}

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read_at(out, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        if self.syncs { self.file.sync() } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.file.write_at(&[IoSlice::new(data)], offset)
    }
}
