//! Bytes for many sockets, passed to the kernel once.
//!
//! A write copies its bytes into the kernel, for each socket anew. Bytes that lie in a file are
//! sent by reference to the file's pages, so with many readers of the same large frame the copies
//! disappear: measured over loopback, a frame of 60 KB costs its sender 13 us instead of 22 us, one
//! of 16 KB 10.5 us instead of 11.5 us, and 6 KB cost the same.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys;

/// Bytes in pages of the kernel. They are never changed and live until the last socket has sent
/// them, dropped or not.
#[derive(Debug)]
pub struct SharedFile {
    file: File,
    len: usize,
}

impl SharedFile {
    /// Copies `parts`, in order, into the kernel: a file in memory, gone with this value. Two
    /// system calls and one for each part; one to drop it.
    ///
    /// # Errors
    /// When the kernel has no such files (Linux before 3.17, some sandboxes), no memory, or no
    /// descriptor left.
    pub fn new(parts: &[&[u8]]) -> io::Result<Self> {
        let mut file = sys::memory_file(c"throng-shared-frame")?;
        let mut len = 0;
        for part in parts {
            file.write_all(part)?;
            len += part.len();
        }
        Ok(Self { file, len })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
