//! Simulated disk: writes that were not synced may be lost, reordered or torn when the power fails.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};

use crate::fs::{File, Fs};
use throng_stdx::Rng;

/// Unit of a disk's writes: written as a whole or not at all.
const SECTOR: usize = 512;

/// Contents and pending writes of a disk. Cheap to clone, so that a test can simulate a power
/// failure at every write.
#[derive(Clone, Default)]
pub struct DiskState {
    names: BTreeMap<String, u64>,
    /// Creations (with a file) and removals (without) that no `sync_dir` covered, in order.
    unsynced_names: Vec<(String, Option<u64>)>,
    synced_names: BTreeMap<String, u64>,
    files: BTreeMap<u64, Content>,
    next_file: u64,
    /// Maximum number of bytes of all files; `None` for an unlimited disk.
    capacity: Option<u64>,
    /// Bytes of all files that have a name.
    used: u64,
    /// Syncs of files report success and do nothing.
    lies: bool,
}

#[derive(Clone, Default)]
struct Content {
    now: Arc<Vec<u8>>,
    synced: Arc<Vec<u8>>,
    unsynced: Vec<Write>,
    /// The file has a name.
    is_named: bool,
}

#[derive(Clone)]
enum Write {
    Bytes(usize, Arc<Vec<u8>>),
    Len(usize),
}

impl DiskState {
    /// Limits the bytes of all files: writes beyond it fail with [`io::ErrorKind::StorageFull`].
    pub fn set_capacity(&mut self, capacity: Option<u64>) {
        self.capacity = capacity;
    }

    fn free_bytes(&self) -> Option<u64> {
        self.capacity.map(|capacity| capacity.saturating_sub(self.used))
    }

    /// Returns the disk after a power failure at this point.
    pub fn after_power_failure(&self, rng: &mut Rng) -> DiskState {
        let mut names = self.synced_names.clone();
        for (name, file) in &self.unsynced_names {
            if rng.chance(0.5) {
                match file {
                    Some(file) => drop(names.insert(name.clone(), *file)),
                    None => drop(names.remove(name)),
                }
            }
        }
        let mut files = BTreeMap::new();
        for file in names.values() {
            let content = &self.files[file];
            let mut bytes = Vec::clone(&content.synced);
            // A disk that was lucky, one that was not, and everything between.
            let luck = [0.0, 0.5, 0.9, 1.0][rng.below(4) as usize];
            for write in &content.unsynced {
                match write {
                    Write::Len(len) if rng.chance(luck) => resize(&mut bytes, *len),
                    Write::Len(_) => {}
                    Write::Bytes(offset, written) => {
                        for (at, sector) in sectors(*offset, written) {
                            if rng.chance(luck) {
                                put(&mut bytes, at, sector);
                            }
                        }
                    }
                }
            }
            let now = Arc::new(bytes);
            let synced = Arc::clone(&now);
            files.insert(*file, Content { synced, now, unsynced: Vec::new(), is_named: true });
        }
        let used = files.values().map(|content| content.now.len() as u64).sum();
        DiskState {
            synced_names: names.clone(),
            names,
            files,
            unsynced_names: Vec::new(),
            next_file: self.next_file,
            capacity: self.capacity,
            used,
            lies: false,
        }
    }

    /// Puts a sector of a file whose name begins with `prefix` where another one of such a file is,
    /// and leaves its own place as if it had never been written. Returns the names of both files.
    pub fn misdirect(&mut self, prefix: &str, rng: &mut Rng) -> Option<[String; 2]> {
        let mut sectors: Vec<(&String, u64, usize)> = Vec::new();
        for (name, file) in self.names.iter().filter(|(name, _)| name.starts_with(prefix)) {
            let whole = self.files[file].now.len() / SECTOR;
            sectors.extend((0..whole).map(|number| (name, *file, number * SECTOR)));
        }
        if sectors.len() < 2 {
            return None;
        }
        let mut pick = || {
            let (name, file, at) = sectors[rng.below(sectors.len() as u64) as usize];
            (name.clone(), file, at)
        };
        let (from, to) = (pick(), pick());
        let moved = self.files[&from.1].now[from.2..from.2 + SECTOR].to_vec();
        for (file, at, bytes) in [(from.1, from.2, vec![0; SECTOR]), (to.1, to.2, moved)] {
            let content = self.files.get_mut(&file).expect("the file exists");
            put(Arc::make_mut(&mut content.now), at, &bytes);
            content.synced = Arc::clone(&content.now);
        }
        Some([from.0, to.0])
    }

    /// Flips one bit of a file whose name begins with `prefix`. Returns the name of the file.
    pub fn flip_a_bit(&mut self, prefix: &str, rng: &mut Rng) -> Option<String> {
        let candidates: Vec<(String, u64)> = self
            .names
            .iter()
            .filter(|(name, file)| name.starts_with(prefix) && !self.files[file].now.is_empty())
            .map(|(name, file)| (name.clone(), *file))
            .collect();
        let (name, file) = candidates.get(rng.below(candidates.len().max(1) as u64) as usize)?.clone();
        let content = self.files.get_mut(&file).expect("the file exists");
        let bytes = Arc::make_mut(&mut content.now);
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        content.synced = Arc::clone(&content.now);
        Some(name)
    }
}

/// Splits a write into the pieces that reach the disk independently.
fn sectors(offset: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        let len = (SECTOR - (offset + at) % SECTOR).min(rest.len());
        let piece = (offset + at, &rest[..len]);
        at += len;
        Some(piece)
    })
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if content.len() < at + bytes.len() {
        resize(content, at + bytes.len());
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

/// As [`Vec::resize`] with zeros, which fills byte by byte in a build that is hardly optimised.
fn resize(content: &mut Vec<u8>, len: usize) {
    let more = len.saturating_sub(content.len());
    content.truncate(len);
    content.append(&mut vec![0; more]);
}

type Hook = Box<dyn FnMut(&DiskState) -> io::Result<()> + Send>;

struct Inner {
    state: DiskState,
    /// Called after every operation that changes the disk; its error becomes the operation's
    /// result.
    hook: Option<Hook>,
}

/// File system in memory that remembers which writes were synced.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<Inner>>);

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedDisk")
    }
}

impl SimulatedDisk {
    /// Creates a disk with the contents of `state`.
    #[must_use]
    pub fn new(state: DiskState) -> SimulatedDisk {
        SimulatedDisk(Arc::new(Mutex::new(Inner { state, hook: None })))
    }

    /// Calls `hook` with the state after every operation that changes the disk; its error is the
    /// operation's result.
    pub fn set_hook(&self, hook: Option<Hook>) {
        self.with(|inner| inner.hook = hook);
    }

    /// Limits the bytes of all files from now on.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.with(|inner| inner.state.set_capacity(capacity));
    }

    /// From now on syncs of files report success and do nothing, or are honest again.
    pub fn set_lies(&self, lies: bool) {
        self.with(|inner| inner.state.lies = lies);
    }

    /// A copy of the state, cheap because file contents are shared.
    #[must_use]
    pub fn state(&self) -> DiskState {
        self.with(|inner| inner.state.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the disk and calls the hook.
    fn change<T>(&self, act: impl FnOnce(&mut DiskState) -> io::Result<T>) -> io::Result<T> {
        self.with(|inner| {
            let result = act(&mut inner.state)?;
            if let Some(hook) = &mut inner.hook {
                hook(&inner.state)?;
            }
            Ok(result)
        })
    }
}

impl Fs for SimulatedDisk {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn File>> {
        let known = self.with(|inner| inner.state.names.get(path).copied());
        let file = match known {
            Some(file) => file,
            None if !create => return Err(io::ErrorKind::NotFound.into()),
            None => self.change(|state| {
                let file = state.next_file;
                state.next_file += 1;
                state.files.insert(file, Content { is_named: true, ..Content::default() });
                state.names.insert(path.to_owned(), file);
                state.unsynced_names.push((path.to_owned(), Some(file)));
                Ok(file)
            })?,
        };
        Ok(Arc::new(Handle { disk: self.clone(), file }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.change(|state| {
            let file = state.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
            let content = state.files.get_mut(&file).expect("files are never forgotten");
            content.is_named = false;
            state.used -= content.now.len() as u64;
            state.unsynced_names.push((path.to_owned(), None));
            Ok(())
        })
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        Ok(self.with(|inner| {
            let names = inner.state.names.keys();
            let below = names.filter_map(|name| name.strip_prefix(&prefix));
            below.filter(|name| !name.contains('/')).map(str::to_owned).collect()
        }))
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(self.with(|inner| inner.state.free_bytes()))
    }

    fn size_bytes(&self) -> io::Result<Option<u64>> {
        Ok(self.with(|inner| inner.state.capacity))
    }

    fn create_dir(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        self.change(|state| {
            let of = |name: &str| name.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
            let (covered, rest) = std::mem::take(&mut state.unsynced_names)
                .into_iter()
                .partition::<Vec<_>, _>(|(name, _)| of(name) == folder);
            state.unsynced_names = rest;
            for (name, file) in covered {
                match file {
                    Some(file) => drop(state.synced_names.insert(name, file)),
                    None => drop(state.synced_names.remove(&name)),
                }
            }
            Ok(())
        })
    }
}

#[derive(Debug)]
struct Handle {
    disk: SimulatedDisk,
    file: u64,
}

impl Handle {
    /// Reports whether the file may become this long.
    fn check_space(&self, len: u64) -> io::Result<()> {
        let more = len.saturating_sub(self.content(|content| content.now.len() as u64));
        let free = self.disk.with(|inner| inner.state.free_bytes());
        if more > 0 && free.is_some_and(|free| free < more) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn content<T>(&self, act: impl FnOnce(&Content) -> T) -> T {
        self.disk.with(|inner| act(&inner.state.files[&self.file]))
    }

    fn change(&self, act: impl FnOnce(&mut Content)) -> io::Result<()> {
        self.disk.change(|state| {
            let content = state.files.get_mut(&self.file).expect("files are never forgotten");
            let before = content.now.len() as u64;
            act(content);
            if content.is_named {
                state.used = state.used - before + content.now.len() as u64;
            }
            Ok(())
        })
    }
}

impl File for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.content(|content| {
            let from = content.now.get(offset as usize..).and_then(|rest| rest.get(..buf.len()));
            buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        self.check_space(offset + bytes.len() as u64)?;
        self.change(|content| {
            put(Arc::make_mut(&mut content.now), offset as usize, &bytes);
            content.unsynced.push(Write::Bytes(offset as usize, Arc::new(bytes)));
        })
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content(|content| content.now.len() as u64))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|content| {
            resize(Arc::make_mut(&mut content.now), len as usize);
            content.unsynced.push(Write::Len(len as usize));
        })
    }

    fn reserve(&self, offset: u64, len: u64) {
        if self.content(|content| content.now.len() as u64) < offset + len {
            // Reserving is a hint: its result is not checked.
            let _ = self.check_space(offset + len).and_then(|()| self.set_len(offset + len));
        }
    }

    fn sync(&self) -> io::Result<()> {
        let lies = self.disk.with(|inner| inner.state.lies);
        self.change(|content| {
            if !lies {
                content.synced = Arc::clone(&content.now);
                content.unsynced.clear();
            }
        })
    }
}
