//! Interface to a file system, with few operations, so that a simulated disk can replace the real
//! one.

use std::fmt;
use std::io::{self, IoSlice, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A folder. Paths are relative to it and have at most two parts.
///
/// After a power failure, any write, truncation, creation or removal that [`File::sync`] (content
/// and size) or [`Fs::sync_dir`] (names) has not made durable may be lost, reordered with others
/// or, for a write, happen in part.
pub trait Fs: fmt::Debug + Send + Sync + 'static {
    /// Opens a file. If it does not exist and `create` is true, creates it.
    ///
    /// # Errors
    /// The error of the operating system.
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn File>>;
    /// Removes a file.
    ///
    /// # Errors
    /// The error of the operating system.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Names in a folder, sorted.
    ///
    /// # Errors
    /// The error of the operating system.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;
    /// Makes a folder unless it exists.
    ///
    /// # Errors
    /// The error of the operating system.
    fn create_dir(&self, folder: &str) -> io::Result<()>;
    /// Makes creations and removals in a folder durable; the empty name is the store's own folder.
    ///
    /// # Errors
    /// The error of the operating system.
    fn sync_dir(&self, folder: &str) -> io::Result<()>;
    /// Free bytes of the disk for this process; `None` if it is unlimited.
    ///
    /// # Errors
    /// The error of the operating system.
    fn free_bytes(&self) -> io::Result<Option<u64>>;
    /// Bytes of the whole disk, free or not; `None` if it is unlimited.
    ///
    /// # Errors
    /// The error of the operating system.
    fn size_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
}

/// An open file. Its content stays readable after it was removed.
pub trait File: fmt::Debug + Send + Sync + 'static {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] past the end; else the error of the operating system.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `parts`, one after the other, at `offset`. One writer at a time.
    ///
    /// # Errors
    /// The error of the operating system; any part may have been written.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Size in bytes.
    ///
    /// # Errors
    /// The error of the operating system.
    fn len(&self) -> io::Result<u64>;
    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// The error of the operating system.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves space for later writes to `offset..offset + len`, as zeros; the file grows to that
    /// length. It is a hint: a failure costs only time and is not reported.
    fn reserve(&self, offset: u64, len: u64);
    /// Makes content and size durable.
    ///
    /// # Errors
    /// The error of the operating system; the content of all unsynced writes is then unknown.
    fn sync(&self) -> io::Result<()>;
    /// The file descriptor, if there is one, for sending without copying.
    fn as_std(&self) -> Option<&std::fs::File> {
        None
    }
    /// True if the file is empty.
    ///
    /// # Errors
    /// The error of the operating system.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// File of a folder that is locked while a process uses it.
const LOCK: &str = "lock";

/// The real file system, below one folder that no other process uses.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: Arc<HeldLock>,
}

/// Locked lock file.
#[derive(Debug)]
struct HeldLock(std::fs::File);

impl Drop for HeldLock {
    fn drop(&mut self) {
        // A child process that another thread starts has a copy of the descriptor until it
        // executes its program, so closing this one alone would not unlock the file.
        let _ = self.0.unlock();
    }
}

impl Folder {
    /// Opens the folder, creating it if it does not exist.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process has it; else the error of the operating
    /// system.
    pub fn new(path: impl Into<PathBuf>) -> io::Result<Folder> {
        let path = path.into();
        std::fs::create_dir_all(&path)?;
        let lock =
            std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => Ok(Folder { path, _lock: Arc::new(HeldLock(lock)) }),
            Err(std::fs::TryLockError::WouldBlock) => {
                let why = "another process uses this folder; stop it first";
                Err(io::Error::new(io::ErrorKind::WouldBlock, why))
            }
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names the lock of the folder at `path` on this machine, as `DEVICE-INODE`. A copy of the
    /// folder holds the same files and another lock, so the lock of one does not prove that the
    /// process of the other has ended.
    ///
    /// # Errors
    /// The folder was never opened; else the error of the operating system.
    pub fn lock_id(path: &Path) -> io::Result<String> {
        let lock = std::fs::metadata(path.join(LOCK))?;
        Ok(format!("{:x}-{:x}", lock.dev(), lock.ino()))
    }
}

impl Fs for Folder {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn File>> {
        let mut how = std::fs::OpenOptions::new();
        how.read(true).write(true).create(create).truncate(false);
        // A read that notes its time is a change of the file, and waits when the file system's
        // journal is busy: the first read of each blob would.
        let unnoted = how.clone().custom_flags(NO_ATIME).open(self.path.join(path));
        let file = match unnoted {
            // The file belongs to somebody else.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                how.open(self.path.join(path))?
            }
            other => other?,
        };
        Ok(Arc::new(RealFile { file, position: Mutex::new(u64::MAX) }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(path))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.path.join(folder))? {
            // Nothing that we make has another name.
            names.extend(entry?.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, folder: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.path.join(folder))
    }

    fn sync_dir(&self, folder: &str) -> io::Result<()> {
        std::fs::File::open(self.path.join(folder))?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        let found = rustix::fs::statvfs(&self.path)?;
        Ok(Some(found.f_bavail * found.f_frsize))
    }

    fn size_bytes(&self) -> io::Result<Option<u64>> {
        let found = rustix::fs::statvfs(&self.path)?;
        Ok(Some(found.f_blocks * found.f_frsize))
    }
}

/// A folder that is never changed: new files and changes to existing ones are kept in memory.
///
/// For commands that inspect a server's data. It refuses a folder in use by a server.
#[derive(Debug)]
pub struct ReadOnlyFolder {
    path: PathBuf,
    written: crate::SimulatedDisk,
    /// Shared with other readers.
    _lock: Option<HeldLock>,
}

impl ReadOnlyFolder {
    /// Opens the folder.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if a server uses it; else the error of the operating system.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<ReadOnlyFolder> {
        let path = path.into();
        let lock = match std::fs::File::open(path.join("lock")) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match lock.as_ref().map_or(Ok(()), std::fs::File::try_lock_shared) {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let why = "a server uses this folder; stop it first, or ask the server: its metrics and \
                           `GET /api/v1/cache` on the admin listener tell what it holds and found damaged";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
        Ok(ReadOnlyFolder {
            path,
            written: crate::SimulatedDisk::new(Default::default()),
            _lock: lock.map(HeldLock),
        })
    }
}

impl Fs for ReadOnlyFolder {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn File>> {
        if let Ok(file) = self.written.open(path, false) {
            return Ok(file);
        }
        match std::fs::File::open(self.path.join(path)) {
            Ok(file) => Ok(Arc::new(ReadOnlyFile(RealFile { file, position: Mutex::new(u64::MAX) }))),
            Err(error) if error.kind() == io::ErrorKind::NotFound && create => self.written.open(path, true),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        // What is on disk stays, and is found again.
        let _ = self.written.remove(path);
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut names = self.written.list(folder)?;
        match std::fs::read_dir(self.path.join(folder)) {
            Ok(entries) => {
                for entry in entries {
                    names.extend(entry?.file_name().into_string().ok());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn create_dir(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
}

/// A file whose changes are not written to disk.
#[derive(Debug)]
struct ReadOnlyFile(RealFile);

impl File for ReadOnlyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, _parts: &[IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&self, _offset: u64, _len: u64) {}

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct RealFile {
    file: std::fs::File,
    /// The descriptor's own position, if known; gathered writes use it.
    position: Mutex<u64>,
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        if let [one] = parts {
            return self.file.write_all_at(one, offset);
        }
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = &self.file;
        if *position != offset {
            file.seek(SeekFrom::Start(offset))?;
        }
        *position = u64::MAX;
        let mut written = 0;
        for chunk in parts.chunks(IOV_MAX) {
            let size: usize = chunk.iter().map(|part| part.len()).sum();
            let first = file.write_vectored(chunk)?;
            if first < size {
                // Rare: a nearly full disk, a signal. The rest goes part by part.
                let mut skip = first;
                for part in chunk {
                    let from = skip.min(part.len());
                    skip -= from;
                    file.write_all(&part[from..])?;
                }
            }
            written += size as u64;
        }
        *position = offset + written;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, offset: u64, len: u64) {
        let _ = rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), offset, len);
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn as_std(&self) -> Option<&std::fs::File> {
        Some(&self.file)
    }
}

const NO_ATIME: i32 = rustix::fs::OFlags::NOATIME.bits().cast_signed();

/// Linux takes 1,024 parts in one call.
const IOV_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_free_when_it_is_closed_while_a_child_process_starts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let own = Folder::new(folder.path()).expect("nobody has it");
        // A child process has such a copy between `fork` and `execve`.
        let copy = own._lock.0.try_clone().expect("a descriptor");
        let error = Folder::new(folder.path()).expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(own);
        let again = Folder::new(folder.path()).expect("it was closed");
        drop((copy, again));
    }
}
