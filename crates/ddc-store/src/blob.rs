//! Reading and writing the bytes of blobs.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use throng_ddc::{Hasher, IoHash, Timestamp};

use crate::key::Location;
use throng_platform::{File, Fs};

pub(crate) const FOLDER: &str = "large";

/// Path of a large blob.
pub(crate) fn name(file: u64) -> String {
    format!("{FOLDER}/{file:016x}")
}

/// A stored blob that can be read, even if it is removed meanwhile.
#[derive(Clone, Debug)]
pub struct Blob {
    file: Arc<dyn File>,
    id: Place,
    len: u64,
    put: Timestamp,
}

/// Where the bytes of a blob lie. Never used for another blob again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    large: bool,
    file: u64,
    offset: u64,
}

impl Blob {
    pub(crate) fn new(file: Arc<dyn File>, location: &Location) -> Blob {
        let Location { large, file: number, offset, len, put } = *location;
        Blob { file, id: Place { large, file: number, offset }, len, put }
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is the empty blob.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When it was put.
    #[must_use]
    pub fn put(&self) -> Timestamp {
        self.put
    }

    /// What tells its bytes from all others that are or were stored.
    #[must_use]
    pub fn id(&self) -> Place {
        self.id
    }

    /// The file that holds it, and where in it: to send from without copying.
    #[must_use]
    pub fn place(&self) -> (&Arc<dyn File>, u64) {
        (&self.file, self.id.offset)
    }

    /// Reads `len` bytes from `offset`, which must lie within the blob.
    ///
    /// # Errors
    /// As the system says; [`io::ErrorKind::UnexpectedEof`] beyond the end.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len];
        self.file.read_at(&mut bytes, self.id.offset + offset)?;
        Ok(bytes.into())
    }

    /// Reads everything, in pieces of at most 256 KiB, and hashes it.
    ///
    /// # Errors
    /// As the system says.
    pub fn hash(&self) -> io::Result<IoHash> {
        let mut hasher = Hasher::new();
        let mut buf = vec![0; self.len.min(1 << 18) as usize];
        let mut done = 0;
        while done < self.len {
            let piece = (self.len - done).min(buf.len() as u64) as usize;
            self.file.read_at(&mut buf[..piece], self.id.offset + done)?;
            hasher.update(&buf[..piece]);
            done += piece as u64;
        }
        Ok(hasher.finish())
    }
}

/// A large blob that is being received. Dropping it removes what was written.
#[derive(Debug)]
pub struct LargeWriter {
    fs: Arc<dyn Fs>,
    file: Arc<dyn File>,
    number: u64,
    written: u64,
    hasher: Hasher,
    keep: bool,
}

impl LargeWriter {
    pub(crate) fn create(fs: Arc<dyn Fs>, number: u64) -> io::Result<LargeWriter> {
        let file = fs.open(&name(number), true)?;
        file.set_len(0)?;
        Ok(LargeWriter { fs, file, number, written: 0, hasher: Hasher::new(), keep: false })
    }

    /// Appends bytes and hashes them.
    ///
    /// # Errors
    /// As the system says; the writer is of no more use then.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(&[IoSlice::new(bytes)], self.written)?;
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
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

    /// What was written so far, to read it again.
    #[must_use]
    pub fn blob(&self) -> Blob {
        let put = Timestamp::from_unix_ms(0);
        let location = Location { large: true, file: self.number, offset: 0, len: self.written, put };
        Blob::new(Arc::clone(&self.file), &location)
    }

    /// Makes the file durable, if `sync` says so, and keeps it.
    pub(crate) fn seal(mut self, sync: bool, put: Timestamp) -> io::Result<Location> {
        if sync {
            self.file.sync()?;
            self.fs.sync_dir(FOLDER)?;
        }
        self.keep = true;
        Ok(Location { large: true, file: self.number, offset: 0, len: self.written, put })
    }
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        if !self.keep {
            let _ = self.fs.remove(&name(self.number));
        }
    }
}
