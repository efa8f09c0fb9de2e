//! Export and import of a cache as one stream of bytes.
//!
//! The stream is a line of JSON for each thing, followed by the bytes that it announces: blobs,
//! then forms of content ids, then refs, so that everything a ref reaches comes before it. The last
//! line is the end.

use std::io::{self, BufRead, Cursor, Read as _, Seek, SeekFrom, Write};
use std::sync::mpsc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use throng_ddc::api::RefName;
use throng_ddc::{Bucket, Document, Hasher, IoHash, Key, Namespace, Timestamp};
use throng_ddc_store::{Blob, ChangeResult, Done, PutRef, RefValue, Store, StoreError, Tier, TierError};

use crate::memory::SMALL_BYTES_MAX;
use crate::node::Node;
use crate::service::Service;

/// Version of the stream. Version 1 has no end, so that a stream that was cut short between two
/// entries looks whole.
const VERSION: u64 = 2;
/// Entries that one step reads of the index.
const STEP: usize = 512;
/// Bytes that are read or written in one step.
const PIECE_BYTES: u64 = 1 << 20;
/// Changes that may wait to be acknowledged.
const WAITING_MAX: usize = 256;
/// Longest line of a stream.
const LINE_BYTES_MAX: u64 = 4 << 10;
/// Things of one kind that are named.
const NAMES_MAX: usize = 1_000;
/// Times that a blob of a bucket is received that is damaged or breaks off.
const RECEPTIONS: usize = 3;

/// What was taken out or brought in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transferred {
    /// Blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Forms of content ids.
    pub contents: u64,
    /// Refs.
    pub refs: u64,
    /// Blobs and refs that are listed and could not be read, because they are damaged or, in an
    /// object storage, were deleted meanwhile.
    pub unreadable: u64,
    /// The first thousand of them.
    pub unreadable_names: Vec<String>,
    /// Refs that stayed as they were, because they are newer than those of the stream, or because
    /// the stream has copies of an upstream's.
    pub newer: u64,
    /// The first thousand of them.
    pub newer_names: Vec<String>,
}

impl Transferred {
    fn note_unreadable(&mut self, name: String) {
        self.unreadable += 1;
        if self.unreadable_names.len() < NAMES_MAX {
            self.unreadable_names.push(name);
        }
    }

    fn note_newer(&mut self, name: String) {
        self.newer += 1;
        if self.newer_names.len() < NAMES_MAX {
            self.newer_names.push(name);
        }
    }
}

/// Why a cache could not be taken out or brought in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The stream could not be read or written.
    #[error("the stream: {0}")]
    Stream(#[from] io::Error),
    /// The store says no.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The object storage fails.
    #[error("the object storage: {0}")]
    ObjectStorage(String),
    /// The stream holds something else than an export does, and what.
    #[error("not an export of a cache, or damaged: {0}")]
    Malformed(String),
}

impl From<TierError> for TransferError {
    fn from(error: TierError) -> TransferError {
        TransferError::ObjectStorage(error.to_string())
    }
}

impl Node {
    /// Writes everything in a store, or one namespace, to `out`.
    ///
    /// # Errors
    /// As [`TransferError`] says. Damaged blobs, and refs whose objects are damaged, are left out.
    pub fn export(
        store: &Store,
        only: Option<&Namespace>,
        out: &mut dyn Write,
    ) -> Result<Transferred, TransferError> {
        let mut done = Transferred::default();
        line(out, &json!({ "export": VERSION }))?;
        let namespaces = match only {
            Some(only) => vec![only.clone()],
            None => store.namespaces()?,
        };
        for namespace in &namespaces {
            let mut after = None;
            loop {
                let step = store.blobs(namespace, after.as_ref(), STEP)?;
                let Some(last) = step.last() else { break };
                after = Some(*last);
                for hash in &step {
                    match store.blob(namespace, hash)? {
                        Some(blob) if blob.is_sound(hash) => {
                            write_blob(namespace, hash, &blob, out)?;
                            done.blobs += 1;
                            done.bytes += blob.len();
                        }
                        _ => done.note_unreadable(blob_name(namespace, hash)),
                    }
                }
            }
            let mut after = None;
            loop {
                let step = store.contents(namespace, after, STEP)?;
                let Some(last) = step.last() else { break };
                after = Some(*last);
                for (id, weight, blob) in &step {
                    let verified = store.has_verified_form(namespace, id, *weight, blob)?;
                    export_form(namespace, (id, *weight, blob, verified), out)?;
                    done.contents += 1;
                }
            }
            export_refs(store, namespace, &mut done, out)?;
        }
        line(out, &json!({ "end": true }))?;
        out.flush()?;
        Ok(done)
    }

    /// Writes everything in a bucket, or one namespace of it, to `out`. Blobs of which `copies` has
    /// sound copies are not transferred. Changes nothing in the bucket; of what nodes change
    /// meanwhile, a part may be missing.
    ///
    /// What lies behind the last byte that was written, if the caller's file is longer, belongs to
    /// damaged blobs that were taken back.
    ///
    /// # Errors
    /// As [`TransferError`] says.
    pub async fn export_bucket(
        tier: &Tier,
        copies: Option<&Store>,
        only: Option<&Namespace>,
        out: &mut (impl Write + Seek),
    ) -> Result<Transferred, TransferError> {
        let mut done = Transferred::default();
        line(out, &json!({ "export": VERSION }))?;
        let namespaces = match only {
            Some(only) => vec![only.clone()],
            None => tier.namespaces().await?,
        };
        for namespace in &namespaces {
            let mut blobs = tier.blobs(namespace);
            while let Some(hash) = blobs.next().await.transpose()? {
                match export_shared_blob(tier, copies, namespace, &hash, out).await? {
                    Some(len) => {
                        done.blobs += 1;
                        done.bytes += len;
                    }
                    None => done.note_unreadable(blob_name(namespace, &hash)),
                }
            }
            let mut forms = tier.contents(namespace);
            while let Some((id, weight, blob, verified)) = forms.next().await.transpose()? {
                export_form(namespace, (&id, weight, &blob, verified), out)?;
                done.contents += 1;
            }
            let mut refs = tier.refs(namespace);
            while let Some((bucket, key)) = refs.next().await.transpose()? {
                let value = match tier.reference(namespace, &bucket, &key).await {
                    Err(TierError::Damaged(_)) => None,
                    found => found?,
                };
                let object = match &value {
                    Some(RefValue { inline: Some(inline), .. }) => Some(inline.clone()),
                    Some(value) => shared_bytes(tier, copies, namespace, &value.object).await?,
                    None => None,
                };
                match (value, object) {
                    (Some(value), Some(object)) => {
                        let name = RefName { namespace: namespace.clone(), bucket, key };
                        export_ref(&name, &value, &object, out)?;
                        done.refs += 1;
                    }
                    _ => done.note_unreadable(ref_name(namespace, &bucket, &key)),
                }
            }
        }
        line(out, &json!({ "end": true }))?;
        out.flush()?;
        Ok(done)
    }

    /// Reads what [`export`](Node::export) wrote. Every blob is hashed before it is kept, every ref
    /// resolved again. A ref that was put here later than in the exported cache stays, and so does
    /// one of which the stream has a copy from an upstream; one that was deleted here since comes
    /// back.
    ///
    /// # Errors
    /// As [`TransferError`] says. What was brought in by then stays.
    pub fn import(&self, input: &mut dyn BufRead) -> Result<Transferred, TransferError> {
        self.service().import(input)
    }
}

impl Service {
    /// See [`Node::import`].
    ///
    /// # Errors
    /// As [`TransferError`] says. What was brought in by then stays.
    pub fn import(&self, input: &mut dyn BufRead) -> Result<Transferred, TransferError> {
        let mut import = Import { store: self.store(), acknowledgements: mpsc::channel(), waiting: 0 };
        let mut done = Transferred::default();
        let malformed = |what: &str| TransferError::Malformed(what.to_owned());
        let first = read_line(input)?.ok_or_else(|| malformed("it is empty"))?;
        let version = first["export"].as_u64().filter(|version| (1..=VERSION).contains(version));
        let version = version.ok_or_else(|| malformed("it does not begin like one"))?;
        loop {
            let Some(entry) = read_line(input)? else {
                // Version 1 wrote no end.
                import.settle(0)?;
                return if version == 1 { Ok(done) } else { Err(malformed("it has no end")) };
            };
            if entry.get("end").is_some() {
                import.settle(0)?;
                return Ok(done);
            }
            let text = |name: &str| entry[name].as_str().unwrap_or_default();
            let namespace: Namespace = parse(text("namespace"))?;
            let now = self.now();
            if entry.get("blob").is_some() && entry.get("content").is_none() {
                let len = number(&entry, "bytes")?;
                import.blob(&namespace, parse(text("blob"))?, len, now, input)?;
                done.blobs += 1;
                done.bytes += len;
            } else if entry.get("content").is_some() {
                let (id, blob, weight) =
                    (parse(text("content"))?, parse(text("blob"))?, number(&entry, "weight")?);
                let sent = import.sent();
                let verified = entry["verified"].as_bool().unwrap_or(false);
                import.store.put_content(&namespace, id, (weight, blob, verified), sent);
                done.contents += 1;
            } else {
                // What it reaches must be there before it is resolved.
                import.settle(0)?;
                let put = Timestamp::from_unix_ms(number(&entry, "put")?);
                let bytes = read_bytes(input, number(&entry, "bytes")?)?;
                let name = RefName { namespace, bucket: parse(text("bucket"))?, key: parse(text("ref"))? };
                // One that was whole once is a miss when something of it is gone, not an unfinished
                // upload. Older exports do not say so.
                let was_finalised = entry["finalised"].as_bool().unwrap_or(false);
                let adopted = entry["adopted"].as_bool().unwrap_or(false);
                match import.reference(&name, bytes, put, (was_finalised, adopted))? {
                    true => done.refs += 1,
                    false => done.note_newer(ref_name(&name.namespace, &name.bucket, &name.key)),
                }
            }
            import.settle(WAITING_MAX)?;
        }
    }
}

fn blob_name(namespace: &Namespace, hash: &IoHash) -> String {
    format!("blob {namespace}/{hash}")
}

fn ref_name(namespace: &Namespace, bucket: &Bucket, key: &Key) -> String {
    format!("ref {namespace}/{bucket}/{}", key.as_str())
}

/// Writes a blob of the bucket, or the copy of it. Its size; `None` if it cannot be had.
async fn export_shared_blob(
    tier: &Tier,
    copies: Option<&Store>,
    namespace: &Namespace,
    hash: &IoHash,
    out: &mut (impl Write + Seek),
) -> Result<Option<u64>, TransferError> {
    if let Some(copy) = copies.map(|copies| copies.blob(namespace, hash)).transpose()?.flatten()
        && copy.is_sound(hash)
    {
        write_blob(namespace, hash, &copy, out)?;
        return Ok(Some(copy.len()));
    }
    receive_shared(tier, namespace, hash, out, |len, out| export_head(namespace, hash, len, out)).await
}

/// A whole blob of the bucket in memory, or the copy of it.
async fn shared_bytes(
    tier: &Tier,
    copies: Option<&Store>,
    namespace: &Namespace,
    hash: &IoHash,
) -> Result<Option<Bytes>, TransferError> {
    let copy = copies.map(|copies| copies.read_blob(namespace, hash)).transpose()?.flatten();
    if copy.is_some() {
        return Ok(copy);
    }
    let mut bytes = Cursor::new(Vec::new());
    let len = receive_shared(tier, namespace, hash, &mut bytes, |_, _| Ok(())).await?;
    Ok(len.map(|len| Bytes::from(bytes.into_inner()).slice(..len as usize)))
}

/// Writes a blob as it arrives from the bucket, behind what `begin` writes for its size. One that
/// is damaged or breaks off is taken back, and received again: bits may flip on the way. Its size;
/// `None` if it is gone or damaged.
async fn receive_shared<W: Write + Seek>(
    tier: &Tier,
    namespace: &Namespace,
    hash: &IoHash,
    out: &mut W,
    begin: impl Fn(u64, &mut W) -> io::Result<()>,
) -> Result<Option<u64>, TransferError> {
    let start = out.stream_position()?;
    let mut broken_off = None;
    for _ in 0..RECEPTIONS {
        let Some((mut incoming, _)) = tier.blob(namespace, hash).await? else { return Ok(None) };
        begin(incoming.len, out)?;
        let (mut hasher, mut len) = (Hasher::new(), 0);
        broken_off = loop {
            match incoming.bytes.next().await {
                Some(Ok(piece)) => {
                    hasher.update(&piece);
                    len += piece.len() as u64;
                    out.write_all(&piece)?;
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        if broken_off.is_none() && len == incoming.len && hasher.finish() == *hash {
            return Ok(Some(len));
        }
        out.seek(SeekFrom::Start(start))?;
    }
    match broken_off {
        Some(error) => Err(TransferError::ObjectStorage(error.to_string())),
        None => Ok(None),
    }
}

fn write_blob(namespace: &Namespace, hash: &IoHash, blob: &Blob, out: &mut dyn Write) -> io::Result<()> {
    export_head(namespace, hash, blob.len(), out)?;
    let mut at = 0;
    while at < blob.len() {
        let piece = blob.read(at, (blob.len() - at).min(PIECE_BYTES) as usize)?;
        at += piece.len() as u64;
        out.write_all(&piece)?;
    }
    Ok(())
}

fn export_head(namespace: &Namespace, hash: &IoHash, len: u64, out: &mut dyn Write) -> io::Result<()> {
    line(out, &json!({ "blob": hash.to_string(), "bytes": len, "namespace": namespace.as_str() }))
}

fn export_form(
    namespace: &Namespace,
    (id, weight, blob, verified): (&IoHash, u64, &IoHash, bool),
    out: &mut dyn Write,
) -> io::Result<()> {
    let form = json!({
        "content": id.to_string(), "weight": weight, "blob": blob.to_string(),
        "namespace": namespace.as_str(), "verified": verified,
    });
    line(out, &form)
}

fn export_ref(name: &RefName, value: &RefValue, object: &[u8], out: &mut dyn Write) -> io::Result<()> {
    line(
        out,
        &json!({
            "ref": name.key.as_str(), "bucket": name.bucket.as_str(), "put": value.put.unix_ms(),
            "bytes": object.len(), "namespace": name.namespace.as_str(), "finalised": value.finalised,
            "adopted": value.adopted,
        }),
    )?;
    out.write_all(object)
}

fn export_refs(
    store: &Store,
    namespace: &Namespace,
    done: &mut Transferred,
    out: &mut dyn Write,
) -> Result<(), TransferError> {
    let mut after: Option<(Bucket, Key)> = None;
    loop {
        let from = after.as_ref().map(|(bucket, key)| (bucket, key));
        let step = store.refs(namespace, None, from, STEP)?;
        let Some((bucket, key, _)) = step.last() else { return Ok(()) };
        after = Some((bucket.clone(), *key));
        for (bucket, key, value) in &step {
            let Some(object) = store.object(namespace, value)? else {
                done.note_unreadable(ref_name(namespace, bucket, key));
                continue;
            };
            let name = RefName { namespace: namespace.clone(), bucket: bucket.clone(), key: *key };
            export_ref(&name, value, &object, out)?;
            done.refs += 1;
        }
    }
}

type Acknowledgement = Result<ChangeResult, StoreError>;

/// Changes on their way.
struct Import<'n> {
    store: &'n Store,
    acknowledgements: (mpsc::Sender<Acknowledgement>, mpsc::Receiver<Acknowledgement>),
    waiting: usize,
}

impl Import<'_> {
    /// For a change that is about to be queued.
    fn sent(&mut self) -> Done {
        self.waiting += 1;
        let sender = self.acknowledgements.0.clone();
        // Nobody listens any more when an earlier change has failed.
        Box::new(move |outcome| drop(sender.send(outcome)))
    }

    /// Waits until at most so many changes wait.
    fn settle(&mut self, at_most: usize) -> Result<(), TransferError> {
        while self.waiting > at_most {
            let mut outcome = self.acknowledgements.1.try_recv();
            if outcome.is_err() {
                // This answers everything that is queued, whether or not a thread commits as well.
                self.store.commit();
                outcome = self.acknowledgements.1.try_recv();
            }
            self.waiting -= 1;
            if outcome.unwrap_or(Err(StoreError::Busy))? == ChangeResult::OverQuota {
                return Err(StoreError::Full.into());
            }
        }
        Ok(())
    }

    fn blob(
        &mut self,
        namespace: &Namespace,
        hash: IoHash,
        len: u64,
        now: Timestamp,
        input: &mut dyn BufRead,
    ) -> Result<(), TransferError> {
        let differs = || TransferError::Malformed(format!("the blob {hash} has another hash"));
        if len <= SMALL_BYTES_MAX as u64 {
            let bytes = read_bytes(input, len)?;
            if IoHash::of(&bytes) != hash {
                return Err(differs());
            }
            let sent = self.sent();
            self.store.put_blob(namespace, hash, bytes, now, sent);
            return Ok(());
        }
        let mut writer = self.store.begin_large()?;
        let mut left = len;
        while left > 0 {
            let piece = read_bytes(input, left.min(PIECE_BYTES))?;
            left -= piece.len() as u64;
            writer.write(&piece)?;
        }
        if writer.hash() != hash {
            return Err(differs());
        }
        let sent = self.sent();
        Ok(self.store.put_large(namespace, writer, now, sent)?)
    }

    /// Puts a ref, unless one that is here stays; whether it did.
    fn reference(
        &mut self,
        name: &RefName,
        bytes: Bytes,
        put: Timestamp,
        (was_finalised, adopted): (bool, bool),
    ) -> Result<bool, TransferError> {
        let RefName { namespace, bucket, key } = name.clone();
        let object = IoHash::of(&bytes);
        let present = self.store.reference(&namespace, &bucket, &key)?;
        // A copy of an upstream's ref replaces none that clients put here.
        let is_kept =
            |present: &RefValue| present.object != object && present.put > put || adopted && !present.adopted;
        if present.is_some_and(|present| is_kept(&present)) {
            return Ok(false);
        }
        let document =
            Document::parse(&bytes).map_err(|defect| TransferError::Malformed(defect.to_string()))?;
        let (closure, mut relies_on) = self.store.close(&namespace, &document)?;
        let inline = bytes.len() <= self.store.inline_bytes_max();
        if !inline {
            // It came as a blob before.
            relies_on.push(object);
        }
        let finalised = was_finalised || closure.missing().is_empty();
        let inline = inline.then(|| bytes.clone());
        let value = RefValue { object, finalised, put, inline, adopted };
        let sent = self.sent();
        self.store.put_ref(PutRef { namespace, bucket, key, value, overwrite: true, relies_on }, sent);
        Ok(true)
    }
}

fn line(out: &mut dyn Write, entry: &Value) -> io::Result<()> {
    writeln!(out, "{entry}")
}

/// The next line; `None` at the end.
fn read_line(input: &mut dyn BufRead) -> Result<Option<Value>, TransferError> {
    let mut line = Vec::new();
    input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let entry = serde_json::from_slice(&line).map_err(|error| TransferError::Malformed(error.to_string()))?;
    Ok(Some(entry))
}

fn read_bytes(input: &mut dyn BufRead, len: u64) -> Result<Bytes, TransferError> {
    if len > PIECE_BYTES.max(64 << 20) {
        return Err(TransferError::Malformed(format!("{len} bytes in one piece")));
    }
    let mut bytes = vec![0; len as usize];
    input.read_exact(&mut bytes)?;
    Ok(bytes.into())
}

fn number(entry: &Value, name: &str) -> Result<u64, TransferError> {
    entry[name].as_u64().ok_or_else(|| TransferError::Malformed(format!("`{name}` is no number")))
}

fn parse<T: std::str::FromStr>(text: &str) -> Result<T, TransferError> {
    text.parse().map_err(|_| TransferError::Malformed(format!("`{text}`")))
}
