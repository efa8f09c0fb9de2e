//! Entries shared between outboxes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use throng_wire::Compressor;
use throng_wire::frame::{PACKET_BYTES_SEND_MAX, TAG_BYTES};

/// Bytes of the entries of one shard that still exist, on whatever shard they wait.
#[derive(Debug, Clone, Default)]
pub(crate) struct EntryBytes(Arc<AtomicUsize>);

impl EntryBytes {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A complete `Packet.messages` entry shared by everyone who gets it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// All of it, or what comes before the pieces.
    pub(super) bytes: Box<[u8]>,
    /// The rest, by reference to bytes that entries share.
    pub(super) pieces: Box<[Bytes]>,
    /// The entry alone as a Snappy block; made when the first compressing peer needs it. Empty when
    /// compression does not pay.
    pub(super) snappy: OnceLock<Box<[u8]>>,
    /// Counts its bytes as long as it exists. Pieces count in full: their owner may be gone.
    counted: EntryBytes,
}

impl Entry {
    pub(crate) fn new(bytes: Vec<u8>, counted: &EntryBytes) -> Arc<Self> {
        Self::in_pieces(bytes, [], counted)
    }

    /// An entry whose end is made of pieces that other entries have as well.
    pub(crate) fn in_pieces(
        head: Vec<u8>,
        pieces: impl IntoIterator<Item = Bytes>,
        counted: &EntryBytes,
    ) -> Arc<Self> {
        let pieces: Box<[Bytes]> = pieces.into_iter().collect();
        let (bytes, snappy) = (head.into_boxed_slice(), OnceLock::new());
        let entry = Self { bytes, pieces, snappy, counted: counted.clone() };
        debug_assert!(entry.len() <= PACKET_BYTES_SEND_MAX, "an entry must fit a packet");
        counted.0.fetch_add(entry.len(), Ordering::Relaxed);
        Arc::new(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.pieces.iter().map(Bytes::len).sum::<usize>()
    }

    pub(super) fn form(&self, form: Form) -> &[u8] {
        match form {
            Form::Plain => &self.bytes,
            Form::Piece(index) => &self.pieces[usize::from(index)],
            Form::Snappy => self.snappy(),
        }
    }

    pub(super) fn snappy(&self) -> &[u8] {
        self.snappy.get_or_init(|| {
            let packed = compress(&self.bytes).unwrap_or_default().into_boxed_slice();
            self.counted.0.fetch_add(packed.len(), Ordering::Relaxed);
            packed
        })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let packed = self.snappy.get().map_or(0, |packed| packed.len());
        self.counted.0.fetch_sub(self.len() + packed, Ordering::Relaxed);
    }
}

/// A frame that holds one shared entry and nothing else: everyone who gets it gets the same bytes,
/// so a driver can give them to the kernel once.
#[derive(Debug, Clone)]
pub struct SharedFrame {
    pub(super) tag: [u8; TAG_BYTES],
    pub(super) entry: Arc<Entry>,
    pub(super) form: Form,
}

impl SharedFrame {
    /// The bytes of the frame, in order.
    #[must_use]
    pub fn parts(&self) -> [&[u8]; 2] {
        [&self.tag, self.entry.form(self.form)]
    }

    /// How many outboxes and other holders share the entry at the moment.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.entry)
    }
}

/// Whether both are the same entry in the same form; equal bytes of two entries do not count.
impl PartialEq for SharedFrame {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.entry, &other.entry) && self.form == other.form
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    /// One of the pieces behind the plain bytes.
    Piece(u16),
    Snappy,
}

/// A Snappy block of `plain`, or `None` when it would not be smaller.
pub(super) fn compress(plain: &[u8]) -> Option<Vec<u8>> {
    Compressor::new().compress(plain).map(<[u8]>::to_vec)
}
