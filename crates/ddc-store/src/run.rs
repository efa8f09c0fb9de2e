//! Sorted run: an immutable file of index entries, every block of which knows its own position.
//!
//! ```text
//! file    block*, filter frame*, footer(80)
//! frame   CRC-32C(4) of nonce, offset and bytes; length(4); bytes
//! block   entry*, offset of each entry(4), count(4)
//! entry   key length(2), value length(4) or 0xFFFFFFFF for a deleted key, key, value
//! footer  "TDCRUN01", nonce(8), root offset(8), root length(4), height(4), entries(8), filter offset(8),
//!         filter bytes(8), file length(8), 0(12), CRC-32C of all that(4), at the end of the file
//! ```
//!
//! Numbers are little-endian. Blocks form a tree: those of height 0 hold entries, those above hold
//! the first key of a block below and its offset(8) and length(4). A frame that was read from the
//! wrong place does not check, since its offset and its file's nonce are part of its checksum, and
//! a block that does not begin with the key by which it was reached is damage: a look-up never ends
//! in the wrong block and reports a key as absent.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use throng_platform::{File, Fs};

use crate::error::IndexError;
use crate::key;

/// Bytes at which a block is closed: one read of a block costs about as much as its system call.
const BLOCK_BYTES: usize = 4 << 10;
/// Filter bits for an entry: 1 of 100 look-ups of an absent key reads a block.
const FILTER_BITS_PER_ENTRY: u64 = 10;
/// Filter bits that a key sets, all within one word line of [`LINE_WORDS`].
const FILTER_PROBES: u32 = 6;
/// Words of 64 bits in a line of the filter: one line of the processor's cache.
const LINE_WORDS: u64 = 8;
/// Bytes of the filter in one frame.
const FILTER_FRAME_BYTES: usize = 64 << 10;
const FRAME_HEAD_BYTES: usize = 8;
const FOOTER_BYTES: usize = 80;
const MAGIC: &[u8; 8] = b"TDCRUN01";
const DELETED: u32 = u32::MAX;
/// Bytes that are collected before they are written.
const WRITE_BYTES: usize = 256 << 10;
/// Bytes of a run that are made durable at a time. The log's next sync may wait for all that the
/// file system has of other files: of a run of 40 MB at once it waits 30 ms.
const SYNC_BYTES: u64 = 256 << 10;

/// 64-bit fingerprint of a key.
pub(crate) fn fingerprint(key: &[u8]) -> u64 {
    // FNV-1a, then the finaliser of MurmurHash3, which spreads it over all bits.
    let mut hash = key.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}

/// Position and length of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle {
    offset: u64,
    len: u32,
}

/// Set of fingerprints without false negatives, in which one of a hundred absent keys seems
/// present.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// An empty set for about `entries` keys.
    pub(crate) fn new(entries: u64) -> Filter {
        let lines = (entries * FILTER_BITS_PER_ENTRY).div_ceil(64 * LINE_WORDS).max(1);
        Filter { words: vec![0; (lines * LINE_WORDS) as usize] }
    }

    pub(crate) fn insert(&mut self, fingerprint: u64) {
        let line = self.line(fingerprint);
        for (word, bit) in probes(fingerprint) {
            self.words[line + word] |= bit;
        }
    }

    pub(crate) fn has(&self, fingerprint: u64) -> bool {
        let line = self.line(fingerprint);
        probes(fingerprint).all(|(word, bit)| self.words[line + word] & bit != 0)
    }

    fn line(&self, fingerprint: u64) -> usize {
        let lines = self.words.len() as u64 / LINE_WORDS;
        // The upper half of the product spreads over the lines without a division.
        (((u128::from(fingerprint) * u128::from(lines)) >> 64) as u64 * LINE_WORDS) as usize
    }
}

/// Words of a line and bits in them that stand for a fingerprint.
fn probes(fingerprint: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut bits = fingerprint.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..FILTER_PROBES).map(move |_| {
        let probe = bits >> 55;
        bits = bits.wrapping_mul(0xD129_0A7C_4F6B_5D2D).rotate_left(17);
        ((probe >> 6) as usize, 1 << (probe & 63))
    })
}

/// Blocks that were read last, up to a number of bytes. Two generations: a block that is used again
/// moves to the young one; the old one is dropped when the young one has half of the bytes.
pub(crate) struct BlockCache {
    bytes_max: usize,
    generations: Mutex<Generations>,
}

type BlockMap = HashMap<(u64, u64), Arc<[u8]>, BuildHasherDefault<PlaceHasher>>;

/// Hash of a run's number and an offset in it, neither of which anyone outside chooses.
#[derive(Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let hash = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = hash ^ (hash >> 32);
    }

    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0xFF51_AFD7_ED55_8CCD)
    }
}

#[derive(Default)]
struct Generations {
    young: BlockMap,
    young_bytes: usize,
    old: BlockMap,
}

impl BlockCache {
    pub(crate) fn new(bytes_max: usize) -> BlockCache {
        BlockCache { bytes_max, generations: Mutex::default() }
    }

    fn get(&self, id: (u64, u64)) -> Option<Arc<[u8]>> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = generations.young.get(&id) {
            return Some(Arc::clone(block));
        }
        let block = generations.old.remove(&id)?;
        let dropped = self.insert(&mut generations, id, &block);
        drop(generations);
        drop(dropped);
        Some(block)
    }

    fn put(&self, id: (u64, u64), block: &Arc<[u8]>) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = self.insert(&mut generations, id, block);
        drop(generations);
        drop(dropped);
    }

    /// Adds a block. Gives the blocks that go: dropping thousands takes a while, in which others
    /// may look up theirs.
    fn insert(&self, generations: &mut Generations, id: (u64, u64), block: &Arc<[u8]>) -> BlockMap {
        // A block costs its bytes and about a hundred of the map.
        generations.young_bytes += block.len() + 100;
        generations.young.insert(id, Arc::clone(block));
        if generations.young_bytes > self.bytes_max / 2 {
            generations.young_bytes = 0;
            let young = std::mem::take(&mut generations.young);
            return std::mem::replace(&mut generations.old, young);
        }
        BlockMap::default()
    }
}

/// Description of a run in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunInfo {
    /// Number in the file's name; larger is newer.
    pub(crate) number: u64,
    pub(crate) nonce: u64,
    /// Bytes of the file.
    pub(crate) len: u64,
    pub(crate) entries: u64,
}

/// An open run.
pub(crate) struct Run {
    pub(crate) info: RunInfo,
    file: Arc<dyn File>,
    root: Handle,
    height: u32,
    filter: Filter,
    cache: Arc<BlockCache>,
}

/// Path of a run.
pub(crate) fn name(number: u64) -> String {
    format!("index/{number:016x}.run")
}

fn checksum(nonce: u64, offset: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&nonce.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &offset.to_le_bytes());
    crc32c::crc32c_append(crc, bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The bytes of a block, whose checksum was right.
struct Block(Arc<[u8]>);

impl Block {
    fn len(&self) -> usize {
        let count = self.0.len().checked_sub(4).and_then(|at| u32_at(&self.0, at)).unwrap_or(0) as usize;
        count.min(self.0.len().saturating_sub(4) / 4)
    }

    /// Where the key and the value of an entry are. `None` if the block contradicts itself.
    fn entry(&self, index: usize) -> Option<(Range<usize>, Option<Range<usize>>)> {
        let ends = self.0.len().checked_sub(4 + 4 * self.len())?;
        let at = u32_at(&self.0, ends + 4 * index)? as usize;
        let key_len = usize::from(u16::from_le_bytes(*self.0.get(at..)?.first_chunk()?));
        let value_len = u32_at(&self.0, at + 2)?;
        let key = at + 6..(at + 6).checked_add(key_len).filter(|end| *end <= ends)?;
        if value_len == DELETED {
            return Some((key, None));
        }
        let value = key.end..key.end.checked_add(value_len as usize).filter(|end| *end <= ends)?;
        Some((key, Some(value)))
    }

    fn key(&self, index: usize) -> Option<&[u8]> {
        self.entry(index).map(|(key, _)| &self.0[key])
    }

    /// Index of the first entry whose key is not below `key`.
    fn lower_bound(&self, key: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle)? < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }
}

impl Run {
    /// Opens a run and reads its filter.
    pub(crate) fn open(fs: &dyn Fs, info: RunInfo, cache: Arc<BlockCache>) -> Result<Run, IndexError> {
        let file = fs.open(&name(info.number), false)?;
        let damaged = || IndexError::damaged(info.number, info.len);
        if file.len()? < info.len || info.len < FOOTER_BYTES as u64 {
            return Err(damaged());
        }
        let mut footer = [0; FOOTER_BYTES];
        let at = info.len - FOOTER_BYTES as u64;
        file.read_at(&mut footer, at)?;
        let crc = u32_at(&footer, FOOTER_BYTES - 4);
        let sound =
            crc == Some(checksum(info.nonce, at, &footer[..FOOTER_BYTES - 4])) && &footer[..8] == MAGIC;
        if !sound {
            return Err(damaged());
        }
        let number = |at| u64_at(&footer, at).unwrap_or(0);
        let root = Handle { offset: number(16), len: u32_at(&footer, 24).unwrap_or(0) };
        let height = u32_at(&footer, 28).unwrap_or(0);
        let (filter_at, filter_bytes) = (number(40), number(48));
        if filter_bytes > info.len || filter_bytes % (8 * LINE_WORDS) != 0 || filter_bytes == 0 {
            return Err(damaged());
        }
        let mut run = Run { info, file, root, height, filter: Filter { words: Vec::new() }, cache };
        run.filter.words.reserve_exact((filter_bytes / 8) as usize);
        let mut offset = filter_at;
        let mut left = filter_bytes as usize;
        while left > 0 {
            let piece = left.min(FILTER_FRAME_BYTES);
            let handle = Handle { offset, len: (piece + FRAME_HEAD_BYTES) as u32 };
            let bytes = run.read_frame(handle)?;
            run.filter.words.extend(bytes.chunks_exact(8).filter_map(|word| u64_at(word, 0)));
            offset += u64::from(handle.len);
            left -= piece;
        }
        Ok(run)
    }

    /// Looks a key up: `None` if the run says nothing of it, else what `read` makes of its value,
    /// which is `None` if the run says that the key was deleted.
    pub(crate) fn get<T>(
        &self,
        key: &[u8],
        fingerprint: u64,
        read: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<Option<T>, IndexError> {
        if !self.filter.has(fingerprint) {
            return Ok(None);
        }
        let mut handle = self.root;
        // The block above, and the entry by which this one is reached.
        let mut parent: Option<(Block, usize)> = None;
        for height in (0..=self.height).rev() {
            let block = self.block(handle, true)?;
            let damaged = || IndexError::damaged(self.info.number, handle.offset);
            if parent.as_ref().is_some_and(|(parent, child)| block.key(0) != parent.key(*child)) {
                return Err(damaged());
            }
            let at = block.lower_bound(key).ok_or_else(damaged)?;
            let here = at < block.len() && block.key(at) == Some(key);
            if height == 0 {
                if !here {
                    return Ok(None);
                }
                let (_, value) = block.entry(at).ok_or_else(damaged)?;
                return Ok(Some(read(value.map(|value| &block.0[value]))));
            }
            // The child that may hold the key is the last one that does not begin behind it.
            let Some(child) = (if here { Some(at) } else { at.checked_sub(1) }) else { return Ok(None) };
            handle = child_handle(&block, child).ok_or_else(damaged)?;
            parent = Some((block, child));
        }
        Ok(None)
    }

    /// Every entry from `from` on, in order. `keep` uses the cache of blocks.
    pub(crate) fn iter(self: &Arc<Run>, from: &[u8], keep: bool) -> Result<RunIter, IndexError> {
        let mut iter = RunIter { run: Arc::clone(self), stack: Vec::new(), keep };
        let mut handle = self.root;
        for height in (0..=self.height).rev() {
            let block = self.block(handle, keep)?;
            let damaged = || IndexError::damaged(self.info.number, handle.offset);
            let at = block.lower_bound(from).ok_or_else(damaged)?;
            if height == 0 {
                iter.stack.push((block, at));
                break;
            }
            let here = at < block.len() && block.key(at) == Some(from);
            let child = if here { at } else { at.saturating_sub(1) };
            let next = child_handle(&block, child).ok_or_else(damaged)?;
            iter.stack.push((block, child + 1));
            handle = next;
        }
        Ok(iter)
    }

    /// Reports whether the run may hold the key with this fingerprint.
    pub(crate) fn has(&self, fingerprint: u64) -> bool {
        self.filter.has(fingerprint)
    }

    fn block(&self, handle: Handle, keep: bool) -> Result<Block, IndexError> {
        if !keep {
            return Ok(Block(self.read_frame(handle)?.into()));
        }
        let id = (self.info.number, handle.offset);
        if let Some(block) = self.cache.get(id) {
            return Ok(Block(block));
        }
        let block: Arc<[u8]> = self.read_frame(handle)?.into();
        self.cache.put(id, &block);
        Ok(Block(block))
    }

    fn read_frame(&self, handle: Handle) -> Result<Vec<u8>, IndexError> {
        let damaged = || IndexError::damaged(self.info.number, handle.offset);
        let len = handle.len as usize;
        if len < FRAME_HEAD_BYTES
            || handle.offset.checked_add(len as u64).is_none_or(|end| end > self.info.len)
        {
            return Err(damaged());
        }
        let mut bytes = vec![0; len];
        match self.file.read_at(&mut bytes, handle.offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(damaged()),
            other => other?,
        }
        let crc = u32_at(&bytes, 0);
        let stated = u32_at(&bytes, 4).map(|len| len as usize + FRAME_HEAD_BYTES);
        bytes.drain(..FRAME_HEAD_BYTES);
        if stated != Some(len) || crc != Some(checksum(self.info.nonce, handle.offset, &bytes)) {
            return Err(damaged());
        }
        Ok(bytes)
    }
}

fn child_handle(block: &Block, index: usize) -> Option<Handle> {
    let (_, value) = block.entry(index)?;
    let value = &block.0[value?];
    Some(Handle { offset: u64_at(value, 0)?, len: u32_at(value, 8)? })
}

/// Entries of a run in order.
pub(crate) struct RunIter {
    run: Arc<Run>,
    /// Blocks from the root down, each with the next entry.
    stack: Vec<(Block, usize)>,
    keep: bool,
}

/// A key and its value; `None` for a deleted key.
pub(crate) type RunEntry = (Box<[u8]>, Option<Box<[u8]>>);

impl RunIter {
    pub(crate) fn next(&mut self) -> Result<Option<RunEntry>, IndexError> {
        let height = self.run.height as usize;
        loop {
            let depth = self.stack.len();
            let Some((block, next)) = self.stack.last_mut() else { return Ok(None) };
            if *next >= block.len() {
                self.stack.pop();
                continue;
            }
            let at = *next;
            *next += 1;
            let damaged = || IndexError::damaged(self.run.info.number, 0);
            if depth == height + 1 {
                let (key, value) = block.entry(at).ok_or_else(damaged)?;
                return Ok(Some((Box::from(&block.0[key]), value.map(|value| Box::from(&block.0[value])))));
            }
            let handle = child_handle(block, at).ok_or_else(damaged)?;
            let expected: Box<[u8]> = block.key(at).ok_or_else(damaged)?.into();
            let child = self.run.block(handle, self.keep)?;
            if child.key(0) != Some(&expected) {
                return Err(IndexError::damaged(self.run.info.number, handle.offset));
            }
            self.stack.push((child, 0));
        }
    }
}

/// Writes a run; keys come in ascending order.
pub(crate) struct RunWriter {
    file: Arc<dyn File>,
    number: u64,
    nonce: u64,
    /// Bytes that wait to be written, and the offset behind them.
    pending: Vec<u8>,
    offset: u64,
    /// Up to where the file is durable.
    synced: u64,
    levels: Vec<Level>,
    filter: Filter,
    entries: u64,
}

#[derive(Default)]
struct Level {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
    first: Vec<u8>,
    blocks: u64,
}

impl RunWriter {
    /// A writer for at most `entries_max` entries.
    pub(crate) fn create(fs: &dyn Fs, number: u64, nonce: u64, entries_max: u64) -> io::Result<RunWriter> {
        let file = fs.open(&name(number), true)?;
        file.set_len(0)?;
        let filter = Filter::new(entries_max);
        Ok(RunWriter {
            file,
            number,
            nonce,
            pending: Vec::new(),
            offset: 0,
            synced: 0,
            levels: Vec::new(),
            filter,
            entries: 0,
        })
    }

    pub(crate) fn add(&mut self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        self.filter.insert(fingerprint(key));
        if let Some(prefix) = key::form_prefix(key) {
            self.filter.insert(fingerprint(prefix));
        }
        self.entries += 1;
        self.push(0, key, value)
    }

    fn push(&mut self, height: usize, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        if self.levels.len() == height {
            self.levels.push(Level::default());
        }
        let level = &mut self.levels[height];
        if level.offsets.is_empty() {
            level.first = key.to_vec();
        }
        level.offsets.push(level.bytes.len() as u32);
        level.bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        level.bytes.extend_from_slice(&value.map_or(DELETED, |value| value.len() as u32).to_le_bytes());
        level.bytes.extend_from_slice(key);
        level.bytes.extend_from_slice(value.unwrap_or_default());
        if level.bytes.len() >= BLOCK_BYTES { self.close_block(height).map(drop) } else { Ok(()) }
    }

    /// Writes the block of a level and enters it in the level above.
    fn close_block(&mut self, height: usize) -> io::Result<Handle> {
        let level = &mut self.levels[height];
        let count = level.offsets.len() as u32;
        let mut bytes = std::mem::take(&mut level.bytes);
        for offset in level.offsets.drain(..).chain([count]) {
            bytes.extend_from_slice(&offset.to_le_bytes());
        }
        level.blocks += 1;
        let first = std::mem::take(&mut level.first);
        let handle = self.write_frame(&bytes)?;
        let mut value = handle.offset.to_le_bytes().to_vec();
        value.extend_from_slice(&handle.len.to_le_bytes());
        self.push(height + 1, &first, Some(&value))?;
        Ok(handle)
    }

    fn write_frame(&mut self, bytes: &[u8]) -> io::Result<Handle> {
        let handle = Handle { offset: self.offset, len: (bytes.len() + FRAME_HEAD_BYTES) as u32 };
        self.pending.extend_from_slice(&checksum(self.nonce, self.offset, bytes).to_le_bytes());
        self.pending.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.pending.extend_from_slice(bytes);
        self.offset += u64::from(handle.len);
        if self.pending.len() >= WRITE_BYTES {
            self.write_pending()?;
        }
        Ok(handle)
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let at = self.offset - self.pending.len() as u64;
        self.file.write_at(&[IoSlice::new(&self.pending)], at)?;
        self.pending.clear();
        if self.offset - self.synced >= SYNC_BYTES {
            self.file.sync()?;
            self.synced = self.offset;
        }
        Ok(())
    }

    /// Writes the rest and makes the run durable. `None` if nothing was added.
    pub(crate) fn finish(mut self) -> io::Result<Option<RunInfo>> {
        if self.entries == 0 {
            return Ok(None);
        }
        let mut height = 0;
        let root = loop {
            let last =
                if self.levels[height].offsets.is_empty() { None } else { Some(self.close_block(height)?) };
            match last {
                Some(handle) if self.levels[height].blocks == 1 => break handle,
                _ => height += 1,
            }
            // A level whose only block was closed when it was full is the root as well.
            if self.levels[height].blocks == 0 && self.levels[height].offsets.len() == 1 {
                let value = &self.levels[height].bytes[6 + self.levels[height].first.len()..];
                let offset = u64_at(value, 0).unwrap_or(0);
                height -= 1;
                break Handle { offset, len: u32_at(value, 8).unwrap_or(0) };
            }
        };
        let filter_at = self.offset;
        let words = std::mem::take(&mut self.filter.words);
        let filter: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for piece in filter.chunks(FILTER_FRAME_BYTES) {
            self.write_frame(piece)?;
        }
        let len = self.offset + FOOTER_BYTES as u64;
        let mut footer = MAGIC.to_vec();
        footer.extend_from_slice(&self.nonce.to_le_bytes());
        footer.extend_from_slice(&root.offset.to_le_bytes());
        footer.extend_from_slice(&root.len.to_le_bytes());
        footer.extend_from_slice(&(height as u32).to_le_bytes());
        for number in [self.entries, filter_at, filter.len() as u64, len] {
            footer.extend_from_slice(&number.to_le_bytes());
        }
        footer.resize(FOOTER_BYTES - 4, 0);
        let crc = checksum(self.nonce, self.offset, &footer);
        footer.extend_from_slice(&crc.to_le_bytes());
        self.pending.extend_from_slice(&footer);
        self.offset = len;
        self.write_pending()?;
        self.file.sync()?;
        Ok(Some(RunInfo { number: self.number, nonce: self.nonce, len, entries: self.entries }))
    }
}

/// A number that nobody outside can guess.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_platform::{DiskState, SimulatedDisk};
    use throng_stdx::Rng;

    fn write(disk: &SimulatedDisk, count: u64) -> RunInfo {
        let mut writer = RunWriter::create(disk, 1, 77, count).expect("the disk works");
        for n in 0..count {
            let value = (n % 7 != 0).then(|| vec![n as u8; (n % 90) as usize]);
            writer.add(format!("key{:08}", 2 * n).as_bytes(), value.as_deref()).expect("the disk works");
        }
        writer.finish().expect("the disk works").expect("there are entries")
    }

    fn open(disk: &SimulatedDisk, info: RunInfo) -> Result<Arc<Run>, IndexError> {
        Run::open(disk, info, Arc::new(BlockCache::new(1 << 14))).map(Arc::new)
    }

    fn get(run: &Run, n: u64) -> Result<Option<Option<Box<[u8]>>>, IndexError> {
        let key = format!("key{n:08}");
        run.get(key.as_bytes(), fingerprint(key.as_bytes()), |value| value.map(Box::from))
    }

    #[test]
    fn a_run_of_any_height_gives_back_every_entry() {
        for count in [1, 2, 40, 1_000, 20_000] {
            let disk = SimulatedDisk::new(DiskState::default());
            let info = write(&disk, count);
            assert_eq!(info.entries, count);
            let run = open(&disk, info).expect("it is sound");
            for n in 0..count {
                let wanted = (n % 7 != 0).then(|| Box::from(vec![n as u8; (n % 90) as usize]));
                assert_eq!(get(&run, 2 * n).expect("it is sound"), Some(wanted), "{n} of {count}");
                assert_eq!(get(&run, 2 * n + 1).expect("it is sound"), None);
            }
            let mut iter = run.iter(b"", false).expect("it is sound");
            let mut found = 0;
            while let Some((key, _)) = iter.next().expect("it is sound") {
                assert_eq!(&*key, format!("key{:08}", 2 * found).as_bytes());
                found += 1;
            }
            assert_eq!(found, count);
            let from = format!("key{:08}", count);
            let first = run.iter(from.as_bytes(), true).expect("it is sound").next().expect("it is sound");
            let wanted = format!("key{:08}", count.div_ceil(2) * 2);
            let expected = (count.div_ceil(2) < count).then(|| wanted.into_bytes().into());
            assert_eq!(first.map(|(key, _)| key), expected);
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error_and_never_another_answer() {
        let disk = SimulatedDisk::new(DiskState::default());
        let info = write(&disk, 2_000);
        let sound = open(&disk, info).expect("it is sound");
        let mut errors = 0;
        for seed in 0..300 {
            let mut state = disk.state();
            state.flip_a_bit("index/", &mut Rng::new(seed)).expect("there is a file");
            let Ok(run) = open(&SimulatedDisk::new(state), info) else {
                errors += 1;
                continue;
            };
            for n in 0..4_000 {
                match get(&run, n) {
                    Ok(found) => assert_eq!(found, get(&sound, n).expect("it is sound"), "seed {seed}, {n}"),
                    Err(_) => errors += 1,
                }
            }
        }
        assert!(errors > 300, "only {errors} look-ups met the damage");
    }
}
