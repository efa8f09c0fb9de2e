//! The index: an ordered map in a redb file, under a map in memory with what the log holds beyond it.
//!
//! Acknowledged means: in the log. The index follows in large transactions ([`Index::checkpoint`]), which also say up to
//! where the log is contained, so that a start reads only the rest of the log. redb was chosen over fjall because it takes
//! a storage back end of ours: the simulated disk that cuts the power between any two writes drives it too. That its commits
//! are dear (11 to 15 µs per durable put at 64 per commit, fjall 2 to 4) does not matter here, since no request waits for
//! one.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::{Arc, PoisonError, RwLock};

use redb::{Database, ReadOnlyTable, ReadableDatabase as _, StorageBackend, TableDefinition};

use throng_platform::File;

const ENTRIES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("entries");
/// Where the log is contained up to: segment, offset, next sequence number.
const POSITION: TableDefinition<'static, (), (u64, u64, u64)> = TableDefinition::new("position");

/// A place in the log, and the sequence number of the record that begins there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) sequence: u64,
}

/// Something about the index file failed. redb's own errors, as text.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the index: {0}")]
pub struct IndexError(String);

impl IndexError {
    fn from(error: impl Into<redb::Error>) -> IndexError {
        IndexError(error.into().to_string())
    }
}

/// A key and its value.
pub(crate) type Pair = (Box<[u8]>, Box<[u8]>);

type Layer = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

struct Layers {
    /// What was written since the last checkpoint began.
    fresh: Layer,
    fresh_bytes: usize,
    /// What a running checkpoint is writing. Empty when none runs.
    frozen: Arc<Layer>,
    /// What earlier checkpoints wrote. Kept open: opening it costs more than a look into it.
    written: Arc<Table>,
}

type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

pub(crate) struct Index {
    base: Database,
    layers: RwLock<Layers>,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Index")
    }
}

impl Index {
    pub(crate) fn open(file: Arc<dyn File>, cache_bytes: usize) -> Result<Index, IndexError> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(cache_bytes);
        let base = builder.create_with_backend(Backend(file)).map_err(IndexError::from)?;
        let write = base.begin_write().map_err(IndexError::from)?;
        write.open_table(ENTRIES).map_err(IndexError::from)?;
        write.open_table(POSITION).map_err(IndexError::from)?;
        write.commit().map_err(IndexError::from)?;
        let written = open_table(&base)?;
        let layers = Layers { fresh: Layer::new(), fresh_bytes: 0, frozen: Arc::default(), written };
        Ok(Index { base, layers: RwLock::new(layers) })
    }

    /// Up to where the log is contained; `None` if nothing ever was.
    pub(crate) fn position(&self) -> Result<Option<Position>, IndexError> {
        let read = self.base.begin_read().map_err(IndexError::from)?;
        let table = read.open_table(POSITION).map_err(IndexError::from)?;
        let found = table.get(()).map_err(IndexError::from)?;
        Ok(found.map(|found| {
            let (segment, offset, sequence) = found.value();
            Position { segment, offset, sequence }
        }))
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Box<[u8]>>, IndexError> {
        let layers = self.layers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = layers.fresh.get(key).or_else(|| layers.frozen.get(key)) {
            return Ok(entry.clone());
        }
        let written = Arc::clone(&layers.written);
        drop(layers);
        let found = written.get(key).map_err(IndexError::from)?;
        Ok(found.map(|found| found.value().into()))
    }

    /// Up to `limit` entries whose key begins with `prefix` and is greater than `after`, in order.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, IndexError> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = match after {
            Some(after) if after >= prefix => Excluded(after),
            _ => Included(prefix),
        };
        let layers = self.layers.read().unwrap_or_else(PoisonError::into_inner);
        let mut base = layers
            .written
            .range::<&[u8]>((from, Unbounded))
            .map_err(IndexError::from)?
            .map(|entry| entry.map(|(key, value)| -> Pair { (key.value().into(), value.value().into()) }))
            .peekable();
        let mut over = {
            // The fresher layer wins.
            let mut merged: BTreeMap<&[u8], &Option<Box<[u8]>>> = BTreeMap::new();
            for layer in [&*layers.frozen, &layers.fresh] {
                let part = layer.range::<[u8], _>((from, Unbounded));
                // Deleted entries of these layers may hide as many of the base.
                merged.extend(
                    part.take_while(|(key, _)| key.starts_with(prefix)).map(|(key, value)| (&**key, value)),
                );
            }
            merged.into_iter().peekable()
        };
        let mut found = Vec::new();
        while found.len() < limit {
            let base_key: Option<&Box<[u8]>> = match base.peek() {
                Some(Ok((key, _))) if key.starts_with(prefix) => Some(key),
                Some(Err(_)) => {
                    let error = base.next().and_then(Result::err).expect("an error was seen");
                    return Err(IndexError::from(error));
                }
                _ => None,
            };
            let take_over = match (base_key, over.peek()) {
                (None, None) => break,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (Some(base_key), Some((over_key, _))) => {
                    let same = **base_key == **over_key;
                    let first = **over_key <= **base_key;
                    if same {
                        base.next();
                    }
                    first
                }
            };
            if take_over {
                let (key, value) = over.next().expect("it was seen");
                if let Some(value) = value {
                    found.push((Box::from(key), value.clone()));
                }
            } else if let Some(Ok(entry)) = base.next() {
                found.push(entry);
            }
        }
        Ok(found)
    }

    /// Makes entries visible. They must be in the log already.
    pub(crate) fn apply(&self, entries: impl IntoIterator<Item = (Box<[u8]>, Option<Box<[u8]>>)>) {
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in entries {
            layers.fresh_bytes += key.len() + value.as_ref().map_or(0, |value| value.len()) + 64;
            layers.fresh.insert(key, value);
        }
    }

    /// Bytes in memory that the next checkpoint would move to disk.
    pub(crate) fn fresh_bytes(&self) -> usize {
        self.layers.read().unwrap_or_else(PoisonError::into_inner).fresh_bytes
    }

    /// Sets aside what was applied so far, to be written by [`finish_checkpoint`](Index::finish_checkpoint). Nothing may be
    /// applied between reading the log's position and this call.
    pub(crate) fn begin_checkpoint(&self) {
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        layers.fresh_bytes = 0;
        let fresh = std::mem::take(&mut layers.fresh);
        // What an earlier checkpoint could not write is still there, and older.
        Arc::make_mut(&mut layers.frozen).extend(fresh);
    }

    /// Writes what was set aside, and that the log is contained up to `position`.
    pub(crate) fn finish_checkpoint(&self, position: Position) -> Result<(), IndexError> {
        let frozen = Arc::clone(&self.layers.read().unwrap_or_else(PoisonError::into_inner).frozen);
        let mut write = self.base.begin_write().map_err(IndexError::from)?;
        // Opening after a crash must not walk the whole file.
        write.set_quick_repair(true);
        {
            let mut table = write.open_table(ENTRIES).map_err(IndexError::from)?;
            for (key, value) in frozen.iter() {
                match value {
                    Some(value) => drop(table.insert(&**key, &**value).map_err(IndexError::from)?),
                    None => drop(table.remove(&**key).map_err(IndexError::from)?),
                }
            }
            let mut table = write.open_table(POSITION).map_err(IndexError::from)?;
            let value = (position.segment, position.offset, position.sequence);
            table.insert((), value).map_err(IndexError::from)?;
        }
        write.commit().map_err(IndexError::from)?;
        let written = open_table(&self.base)?;
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        let done = (std::mem::take(&mut layers.frozen), std::mem::replace(&mut layers.written, written));
        drop(layers);
        // Dropping them takes a while, in which others may read.
        drop((frozen, done));
        Ok(())
    }
}

fn open_table(base: &Database) -> Result<Arc<Table>, IndexError> {
    let read = base.begin_read().map_err(IndexError::from)?;
    Ok(Arc::new(read.open_table(ENTRIES).map_err(IndexError::from)?))
}

#[derive(Debug)]
struct Backend(Arc<dyn File>);

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.0.read_at(out, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.write_at(&[IoSlice::new(data)], offset)
    }
}
