//! Failures of the store and of its index.

use std::io;
use std::sync::Arc;

use throng_ddc::Namespace;

/// Failure of the index.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// A block of a run does not check.
    #[error(
        "the index is damaged (run {run:016x}, offset {offset}); restart the server, or stop it and run `throng ddc reindex`"
    )]
    Damaged {
        /// Number of the run.
        run: u64,
        /// Offset of the block in the run's file.
        offset: u64,
    },
    /// The store is about to be closed, and maintenance ends.
    #[error("the cache stops")]
    Stopped,
    /// The system failed to read or write.
    #[error("the index: {0}")]
    Io(Arc<io::Error>),
}

impl IndexError {
    pub(crate) fn damaged(run: u64, offset: u64) -> IndexError {
        IndexError::Damaged { run, offset }
    }
}

impl From<io::Error> for IndexError {
    fn from(error: io::Error) -> IndexError {
        IndexError::Io(Arc::new(error))
    }
}

/// Why something could not be stored or read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No space left. Reads and deletes go on, and uploads too once there is space.
    #[error(
        "the disk is full; make space on it, delete refs, or lower ddc.bytes_max: uploads resume as soon as there is space"
    )]
    Full,
    /// Nothing of the namespace may go, and it and its like hold more than the folder may. Reads
    /// and deletes go on.
    #[error(
        "nothing is evicted from the namespace {namespace} (ddc.keep_namespaces), and the namespaces kept so hold more than ddc.bytes_max ({bytes_max} bytes); delete refs in them, raise ddc.bytes_max, or shorten ddc.keep_namespaces"
    )]
    Kept {
        /// Namespace of the upload.
        namespace: Namespace,
        /// Bytes that the folder may hold.
        bytes_max: u64,
    },
    /// The folder would hold more than it may. Reads and deletes go on, and uploads too once an
    /// eviction has made room.
    #[error(
        "the upload would fill the cache beyond ddc.bytes_max ({bytes_max} bytes); an eviction makes room within seconds unless ddc.keep_namespaces spares too much: retry later, raise ddc.bytes_max, or delete refs"
    )]
    OverLimit {
        /// Bytes that the folder may hold.
        bytes_max: u64,
    },
    /// No eviction could make room for the blob.
    #[error("the blob of {bytes} bytes exceeds ddc.bytes_max ({bytes_max} bytes); raise ddc.bytes_max")]
    AboveLimit {
        /// Size of the blob.
        bytes: u64,
        /// Bytes that the folder may hold.
        bytes_max: u64,
    },
    /// The volume is too small for a store.
    #[error("the volume has {bytes} bytes, and a cache needs {needed} bytes at least; use a larger volume")]
    TooSmall {
        /// Size of the volume.
        bytes: u64,
        /// Least size.
        needed: u64,
    },
    /// Written by a version that knows more.
    #[error(
        "the store has format {0}, and this version reads formats 1 and 2; use the version that wrote it"
    )]
    Format(String),
    /// A store of version 1 can only be converted, which a look at it must not do.
    #[error("the store has format 1; start the server once, or run `throng ddc reindex`, to convert it")]
    OldFormat,
    /// A store of version 1 could not be read.
    #[error("the store of version 1 cannot be converted: its index says {0}")]
    Convert(String),
    /// Too much waits to be written.
    #[error("uploads arrive faster than the disk writes; retry later")]
    Busy,
    /// A write failed in a way that leaves the log's end unknown. Reads go on; writes need a
    /// restart.
    #[error("the store refuses writes after one failed: {0}; repair the disk and restart")]
    Broken(Arc<io::Error>),
    /// The system says no.
    #[error("the store failed: {0}")]
    Io(Arc<io::Error>),
    /// The index file says no.
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl StoreError {
    /// Reports whether maintenance ended because the store is about to be closed.
    #[must_use]
    pub fn is_stop(&self) -> bool {
        matches!(self, StoreError::Index(IndexError::Stopped))
    }

    /// Reports whether the disk has no space.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            StoreError::Full => true,
            StoreError::Index(IndexError::Io(error)) => is_full(error),
            _ => false,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> StoreError {
        if is_full(&error) { StoreError::Full } else { StoreError::Io(Arc::new(error)) }
    }
}
