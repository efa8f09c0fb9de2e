//! Changes that are asked for, and the queue in which they wait to be committed.

use bytes::Bytes;
use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};

use crate::error::StoreError;
use crate::key::{Location, RefValue};
use crate::record::RecordPosition;

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeResult {
    /// It was made.
    Done,
    /// The value to put was there already, or the one to delete or finalise was not.
    Unchanged,
    /// Another object is there, and overwriting was not permitted.
    Conflict(RefValue),
    /// A blob that the ref relies on was removed meanwhile: resolve the attachments again. Or
    /// something that was to be kept is not stored.
    Lost,
    /// The namespace may not hold as much.
    OverQuota,
}

/// Called once, with what became of a change, when that is durable. On the thread that commits: it
/// must not wait.
pub type Done = Box<dyn FnOnce(Result<ChangeResult, StoreError>) + Send>;

/// A ref that is to be put.
#[derive(Clone, Debug)]
pub struct PutRef {
    /// Namespace of the ref.
    pub namespace: Namespace,
    /// Bucket of the ref.
    pub bucket: Bucket,
    /// Key of the ref in its bucket.
    pub key: Key,
    /// Content of the ref.
    pub value: RefValue,
    /// True if another object may be replaced.
    pub overwrite: bool,
    /// Blobs that hold what the object reaches, as far as that is stored, and the object itself if
    /// it is one.
    pub relies_on: Vec<IoHash>,
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Blob {
        key: Vec<u8>,
        payload: Bytes,
        put: Timestamp,
    },
    Large {
        key: Vec<u8>,
        location: Location,
    },
    Content {
        key: Vec<u8>,
        /// The form was decoded, and its hash was right.
        verified: bool,
    },
    Ref {
        key: Vec<u8>,
        value: RefValue,
        overwrite: bool,
        relies_on: Vec<Vec<u8>>,
    },
    /// Notes when a ref was last used.
    Access {
        key: Vec<u8>,
        used: Timestamp,
    },
    Finalise {
        key: Vec<u8>,
        object: IoHash,
        relies_on: Vec<Vec<u8>>,
    },
    Delete {
        key: Vec<u8>,
    },
    /// Keeps refs and blobs from the collections that run.
    Use {
        keys: Vec<Vec<u8>>,
    },
    /// Deletes what still has this value, unless a ref or an answer came to rely on it.
    Collect {
        key: Vec<u8>,
        value: Box<[u8]>,
    },
    /// Sets a key of ours to a value.
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// Writes what a record says again at the end of the log, if it is still the newest of its key;
    /// with the payload, if it has one.
    Move {
        key: Vec<u8>,
        record: RecordPosition,
        payload: Option<Bytes>,
    },
    /// Writes a delete again at the end of the log.
    MoveDelete {
        key: Vec<u8>,
        range: Vec<u8>,
    },
    /// Writes down which keys damage took: fingerprint, segment and offset.
    Loss {
        keys: Vec<(u64, u64, u64)>,
    },
}

impl Change {
    /// Key of something that is to be stored.
    pub(crate) fn stored_key(&self) -> Option<&[u8]> {
        use Change::{Blob, Content, Finalise, Large, Ref};
        match self {
            Blob { key, .. }
            | Large { key, .. }
            | Content { key, .. }
            | Ref { key, .. }
            | Finalise { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Reports whether only the store itself makes such changes, rather than requests.
    pub(crate) fn is_own(&self) -> bool {
        use Change::{Access, Collect, Delete, Loss, Move, MoveDelete, Set};
        match self {
            Access { .. } | Collect { .. } | Loss { .. } | Move { .. } | MoveDelete { .. } | Set { .. } => {
                true
            }
            Delete { key } => key.is_empty(),
            _ => false,
        }
    }

    pub(crate) fn payload_len(&self) -> usize {
        match self {
            Change::Blob { payload, .. } | Change::Move { payload: Some(payload), .. } => payload.len(),
            Change::Ref { value, .. } => value.inline.as_ref().map_or(0, Bytes::len),
            _ => 0,
        }
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) changes: Vec<(Change, Done)>,
    pub(crate) bytes: usize,
    pub(crate) closed: bool,
    /// A thread commits what is queued.
    pub(crate) is_served: bool,
    /// Number of changes that the committing thread waits for.
    pub(crate) wanted: usize,
}

impl Queue {
    /// Adds a change. Reports whether the committing thread waits for it.
    pub(crate) fn push(&mut self, change: Change, done: Done) -> bool {
        self.bytes += change.payload_len() + 256;
        self.changes.push((change, done));
        self.changes.len() == self.wanted
    }
}
