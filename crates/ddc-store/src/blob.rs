//! Reading and writing the bytes of blobs.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use throng_ddc::{Hasher, IoHash, Timestamp};

use crate::key::{FileKind, Location};
use crate::locks::lock;
use throng_platform::{File, Fs};

pub(crate) const FOLDER: &str = "large";
/// Bytes of a large blob that one CRC-32C is about.
pub const SUM_BYTES: u64 = 1 << 20;

/// Path of a large blob.
pub(crate) fn name(file: u64) -> String {
    format!("{FOLDER}/{file:016x}")
}

/// Bytes of the file of a large blob of `len` bytes: those and their sums.
pub(crate) fn file_bytes(len: u64) -> u64 {
    len.saturating_add(4 * len.div_ceil(SUM_BYTES))
}

/// Remembers that the file of a large blob is open.
pub(crate) fn note_open(files: &mut HashMap<u64, Weak<dyn File>>, number: u64, file: &Arc<dyn File>) {
    if files.len() == files.capacity() {
        files.retain(|_, file| file.strong_count() > 0);
    }
    files.insert(number, Arc::downgrade(file));
}

/// A stored blob that can be read, even if it is removed meanwhile.
#[derive(Clone, Debug)]
pub struct Blob {
    file: Arc<dyn File>,
    /// File system of its own file; `None` for a blob in a segment or in memory.
    fs: Option<Arc<dyn Fs>>,
    location: Location,
    /// All of its bytes, if they are in memory.
    memory: Option<Bytes>,
}

/// Location of the bytes of a blob. Never used for another blob again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobId {
    large: bool,
    file: u64,
    offset: u64,
}

impl Blob {
    pub(crate) fn new(file: Arc<dyn File>, location: &Location) -> Blob {
        Blob { file, fs: None, location: *location, memory: None }
    }

    /// The same, stored in a file of its own in `fs`.
    pub(crate) fn in_own_file(file: Arc<dyn File>, fs: Arc<dyn Fs>, location: &Location) -> Blob {
        Blob { fs: Some(fs), ..Blob::new(file, location) }
    }

    /// Closes its own file, if it has one: each later read opens it. The blob can no longer be read
    /// once it is removed.
    pub fn close_file(&mut self) {
        if let Some(fs) = self.fs.take() {
            self.file = Arc::new(ClosedFile { fs, name: name(self.location.file) });
        }
    }

    /// Bytes that are stored nowhere and read like a blob. Their hash is known to the caller.
    #[must_use]
    pub fn in_memory(bytes: Bytes) -> Blob {
        let (len, crc) = (bytes.len() as u64, crc32c::crc32c(&bytes));
        let put = Timestamp::from_unix_ms(0);
        // No segment has this number.
        let location = Location { kind: FileKind::Segment, file: u64::MAX, offset: 0, len, put, crc };
        Blob { file: Arc::new(MemoryFile(bytes.clone())), fs: None, location, memory: Some(bytes) }
    }

    /// All of its bytes, if they are in memory.
    #[must_use]
    pub fn memory(&self) -> Option<&Bytes> {
        self.memory.as_ref()
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.location.len
    }

    /// Reports whether it is the empty blob.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.location.len == 0
    }

    /// Time at which it was put.
    #[must_use]
    pub fn put(&self) -> Timestamp {
        self.location.put
    }

    /// Identity of its bytes among all that are or were stored.
    #[must_use]
    pub fn id(&self) -> BlobId {
        let Location { file, offset, .. } = self.location;
        BlobId { large: self.location.is_large(), file, offset }
    }

    /// The file that holds it, and where in it: to send from without copying.
    #[must_use]
    pub fn place(&self) -> (&Arc<dyn File>, u64) {
        (&self.file, self.location.offset)
    }

    /// Reads `len` bytes from `offset`, which must lie within the blob.
    ///
    /// # Errors
    /// As the system says; [`io::ErrorKind::UnexpectedEof`] beyond the end.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.location.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len];
        self.file.read_at(&mut bytes, self.location.offset + offset)?;
        Ok(bytes.into())
    }

    /// Reads everything, and checks it against its sums if it has some.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it is damaged; else as the system says.
    pub fn read_checked(&self) -> io::Result<Bytes> {
        let bytes = self.read(0, usize::try_from(self.location.len).unwrap_or(usize::MAX))?;
        let sound = match self.location.kind {
            FileKind::Segment => crc32c::crc32c(&bytes) == self.location.crc,
            FileKind::Plain => true,
            FileKind::Summed => {
                let sums = self.sums()?;
                bytes.chunks(SUM_BYTES as usize).zip(&sums).all(|(chunk, sum)| crc32c::crc32c(chunk) == *sum)
            }
        };
        if sound { Ok(bytes) } else { Err(damaged()) }
    }

    /// Reads everything, and checks it against its sums, or against its hash if it has none:
    /// version 1 of the store wrote large blobs without.
    ///
    /// # Errors
    /// As [`read_checked`](Blob::read_checked).
    pub fn read_sound(&self, hash: &IoHash) -> io::Result<Bytes> {
        let bytes = self.read_checked()?;
        if self.has_sums() || IoHash::of(&bytes) == *hash { Ok(bytes) } else { Err(damaged()) }
    }

    /// Reads the whole MiB of the blob that holds `offset`, and checks it: its first offset and its
    /// bytes. A blob without sums cannot be checked in part.
    ///
    /// # Errors
    /// As [`read_checked`](Blob::read_checked).
    pub fn read_part_checked(&self, offset: u64) -> io::Result<(u64, Bytes)> {
        if self.location.kind == FileKind::Segment {
            return Ok((0, self.read_checked()?));
        }
        let index = offset / SUM_BYTES;
        let start = index * SUM_BYTES;
        let len = self.location.len.checked_sub(start).ok_or(io::ErrorKind::UnexpectedEof)?.min(SUM_BYTES);
        let bytes = self.read(start, len as usize)?;
        let sum = self.sums()?.get(index as usize).copied();
        if sum == Some(crc32c::crc32c(&bytes)) { Ok((start, bytes)) } else { Err(damaged()) }
    }

    /// Reads the MiB of the blob that hold `start..end`, and checks them.
    ///
    /// # Errors
    /// As [`read_checked`](Blob::read_checked).
    pub fn check_part(&self, start: u64, end: u64) -> io::Result<()> {
        let mut at = start;
        while at < end {
            let (first, bytes) = self.read_part_checked(at)?;
            at = first + bytes.len() as u64;
        }
        Ok(())
    }

    /// Reports whether parts of it can be checked.
    #[must_use]
    pub fn has_sums(&self) -> bool {
        self.location.kind != FileKind::Plain
    }

    /// The sums behind the bytes of a large blob.
    fn sums(&self) -> io::Result<Vec<u32>> {
        let mut bytes = vec![0; 4 * self.location.len.div_ceil(SUM_BYTES) as usize];
        self.file.read_at(&mut bytes, self.location.len)?;
        if crc32c::crc32c(&bytes) != self.location.crc {
            return Err(damaged());
        }
        let (chunks, _) = bytes.as_chunks::<4>();
        Ok(chunks.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect())
    }

    /// Reports whether its bytes can be read, have this hash, and are followed by their own sums.
    #[must_use]
    pub fn is_sound(&self, hash: &IoHash) -> bool {
        self.is_sound_while(hash, &mut || true)
    }

    /// The same; without meaning once `goes_on`, which is called before each piece, ends the
    /// reading.
    pub(crate) fn is_sound_while(&self, hash: &IoHash, goes_on: &mut dyn FnMut() -> bool) -> bool {
        let sums = self.location.kind != FileKind::Summed || self.sums().is_ok();
        sums && self.hash_while(goes_on).is_ok_and(|found| found == *hash)
    }

    /// Reads everything, in pieces of at most 256 KiB, and hashes it.
    ///
    /// # Errors
    /// As the system says.
    pub fn hash(&self) -> io::Result<IoHash> {
        self.hash_while(&mut || true)
    }

    fn hash_while(&self, goes_on: &mut dyn FnMut() -> bool) -> io::Result<IoHash> {
        let mut hasher = Hasher::new();
        let mut buf = vec![0; self.location.len.min(1 << 18) as usize];
        let mut done = 0;
        while done < self.location.len {
            if !goes_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let piece = (self.location.len - done).min(buf.len() as u64) as usize;
            self.file.read_at(&mut buf[..piece], self.location.offset + done)?;
            hasher.update(&buf[..piece]);
            done += piece as u64;
        }
        Ok(hasher.finish())
    }
}

/// Bytes of a blob that has no file.
#[derive(Debug)]
struct MemoryFile(Bytes);

/// A file that each read opens. Nothing is written to it.
#[derive(Debug)]
struct ClosedFile {
    fs: Arc<dyn Fs>,
    name: String,
}

impl ClosedFile {
    fn open(&self) -> io::Result<Arc<dyn File>> {
        self.fs.open(&self.name, false)
    }
}

impl File for ClosedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.open()?.read_at(buf, offset)
    }

    fn write_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn len(&self) -> io::Result<u64> {
        self.open()?.len()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn reserve(&self, _: u64, _: u64) {}

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl File for MemoryFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = self.0.get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn reserve(&self, _: u64, _: u64) {}

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A large blob that is being received. If it is dropped, the store removes what was written: a
/// thread of requests does not wait until a file system has freed the space of a large file.
#[derive(Debug)]
pub struct LargeWriter {
    fs: Arc<dyn Fs>,
    file: Arc<dyn File>,
    number: u64,
    written: u64,
    hasher: Hasher,
    /// CRC-32C of each whole MiB, and of what there is of the next.
    sums: Vec<u32>,
    sum: u32,
    /// Numbers of files that the store removes.
    freed: Arc<Mutex<Vec<u64>>>,
    keep: bool,
}

impl LargeWriter {
    pub(crate) fn create(
        fs: Arc<dyn Fs>,
        number: u64,
        freed: Arc<Mutex<Vec<u64>>>,
    ) -> io::Result<LargeWriter> {
        let file = fs.open(&name(number), true)?;
        file.set_len(0)?;
        Ok(LargeWriter {
            fs,
            file,
            number,
            written: 0,
            hasher: Hasher::new(),
            sums: Vec::new(),
            sum: 0,
            freed,
            keep: false,
        })
    }

    /// Appends bytes and hashes them.
    ///
    /// # Errors
    /// As the system says; the writer is of no more use then.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(&[IoSlice::new(bytes)], self.written)?;
        self.hasher.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = SUM_BYTES - self.written % SUM_BYTES;
            let (part, behind) = rest.split_at(rest.len().min(room as usize));
            self.sum = crc32c::crc32c_append(self.sum, part);
            self.written += part.len() as u64;
            rest = behind;
            if self.written.is_multiple_of(SUM_BYTES) {
                self.sums.push(std::mem::take(&mut self.sum));
            }
        }
        Ok(())
    }

    pub(crate) fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Bytes written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Hash of what was written.
    #[must_use]
    pub fn hash(&self) -> IoHash {
        self.hasher.finish()
    }

    /// The bytes written so far, to read them again.
    #[must_use]
    pub fn blob(&self) -> Blob {
        let put = Timestamp::from_unix_ms(0);
        let (file, len) = (self.number, self.written);
        let location = Location { kind: FileKind::Plain, file, offset: 0, len, put, crc: 0 };
        Blob::new(Arc::clone(&self.file), &location)
    }

    /// Makes the file durable, if `sync` says so, and keeps it.
    pub(crate) fn seal(mut self, sync: bool, put: Timestamp) -> io::Result<Location> {
        if !self.written.is_multiple_of(SUM_BYTES) {
            self.sums.push(self.sum);
        }
        let sums: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.file.write_at(&[IoSlice::new(&sums)], self.written)?;
        if sync {
            self.file.sync()?;
            self.fs.sync_dir(FOLDER)?;
        }
        self.keep = true;
        let (file, len, crc) = (self.number, self.written, crc32c::crc32c(&sums));
        Ok(Location { kind: FileKind::Summed, file, offset: 0, len, put, crc })
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a stored blob is damaged")
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        if !self.keep {
            lock(&self.freed).push(self.number);
        }
    }
}
