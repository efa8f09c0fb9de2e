//! Export and import of a cache as one stream of bytes.
//!
//! The stream is a line of JSON for each thing, followed by the bytes that it announces: blobs,
//! then forms of content ids, then refs, so that everything a ref reaches comes before it. The last
//! line is the end.

use std::io::{self, BufRead, Read as _, Write};
use std::sync::mpsc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use throng_ddc::api::RefName;
use throng_ddc::{Bucket, Document, IoHash, Key, Namespace, Timestamp};
use throng_ddc_store::{Blob, ChangeResult, Done, PutRef, RefValue, Store, StoreError, TierError};

use crate::answer::Problem;
use crate::node::Node;
use crate::service::Service;
use crate::upload::{Received, SMALL_BYTES_MAX};

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

/// What was taken out or brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transferred {
    /// Blobs.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Forms of content ids.
    pub contents: u64,
    /// Refs.
    pub refs: u64,
    /// Blobs and refs that an object storage lists and that could not be read, because they are
    /// damaged or were deleted meanwhile.
    pub unreadable: u64,
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

impl From<Problem> for TransferError {
    fn from(problem: Problem) -> TransferError {
        TransferError::ObjectStorage(problem.title)
    }
}

impl Node {
    /// Writes everything in a store, or one namespace, to `out`.
    ///
    /// # Errors
    /// As [`TransferError`] says. A damaged blob ends the export: scrub first.
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
                    if let Some(blob) = store.blob(namespace, hash)? {
                        export_blob(namespace, hash, &blob, out)?;
                        done.blobs += 1;
                        done.bytes += blob.len();
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
            done.refs += export_refs(store, namespace, out)?;
        }
        line(out, &json!({ "end": true }))?;
        out.flush()?;
        Ok(done)
    }

    /// Reads what [`export`](Node::export) wrote. Every blob is hashed before it is kept, every ref
    /// resolved again; what is there already stays.
    ///
    /// # Errors
    /// As [`TransferError`] says. What was brought in by then stays.
    pub fn import(&self, input: &mut dyn BufRead) -> Result<Transferred, TransferError> {
        self.service().import(input)
    }
}

impl Service {
    /// Writes everything that this cache answers for, or one namespace of it, to `out`: what is in
    /// the folder, or in the object storage that it shares. Of what other nodes change meanwhile, a
    /// part may be missing.
    ///
    /// # Errors
    /// As [`TransferError`] says.
    pub async fn export(
        &self,
        only: Option<&Namespace>,
        out: &mut dyn Write,
    ) -> Result<Transferred, TransferError> {
        let Some(tier) = self.tier() else { return Node::export(self.store(), only, out) };
        let mut done = Transferred::default();
        line(out, &json!({ "export": VERSION }))?;
        let namespaces = match only {
            Some(only) => vec![only.clone()],
            None => tier.namespaces().await?,
        };
        for namespace in &namespaces {
            let mut blobs = tier.blobs(namespace);
            while let Some(hash) = blobs.next().await.transpose()? {
                match self.export_shared_blob(namespace, &hash, out).await? {
                    Some(len) => {
                        done.blobs += 1;
                        done.bytes += len;
                    }
                    None => done.unreadable += 1,
                }
            }
            let mut forms = tier.contents(namespace);
            while let Some((id, weight, blob, verified)) = forms.next().await.transpose()? {
                export_form(namespace, (&id, weight, &blob, verified), out)?;
                done.contents += 1;
            }
            let mut refs = tier.refs(namespace);
            while let Some((bucket, key)) = refs.next().await.transpose()? {
                let name = RefName { namespace: namespace.clone(), bucket, key };
                let value = self.reference(&name).await?;
                let object = match &value {
                    Some(value) => self.object_of(namespace, value).await?,
                    None => None,
                };
                match (value, object) {
                    (Some(value), Some(object)) => {
                        export_ref(&name, &value, &object, out)?;
                        done.refs += 1;
                    }
                    _ => done.unreadable += 1,
                }
            }
        }
        line(out, &json!({ "end": true }))?;
        out.flush()?;
        Ok(done)
    }

    /// Writes a blob that others share: the copy in the folder, or else what the object storage
    /// has. Its size; `None` if it cannot be had.
    async fn export_shared_blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        out: &mut dyn Write,
    ) -> Result<Option<u64>, TransferError> {
        if let Some(copy) = self.store.blob(namespace, hash)? {
            if copy.hash().is_ok_and(|found| found == *hash) {
                export_blob(namespace, hash, &copy, out)?;
                return Ok(Some(copy.len()));
            }
            self.store.discard_damaged(namespace, hash, &copy);
        }
        let Some(received) = self.bring(namespace, hash, None).await? else { return Ok(None) };
        match &received {
            Received::Small(bytes, _) => {
                export_head(namespace, hash, bytes.len() as u64, out)?;
                out.write_all(bytes)?;
            }
            Received::Large(writer) => export_blob(namespace, hash, &writer.blob(), out)?,
            Received::Known(..) => return Ok(None),
        }
        Ok(Some(received.len()))
    }

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
                import.reference(&namespace, parse(text("bucket"))?, parse(text("ref"))?, bytes, put)?;
                done.refs += 1;
            }
            import.settle(WAITING_MAX)?;
        }
    }
}

fn export_blob(
    namespace: &Namespace,
    hash: &IoHash,
    blob: &Blob,
    out: &mut dyn Write,
) -> Result<(), TransferError> {
    if blob.hash()? != *hash {
        return Err(TransferError::Malformed(format!("the stored blob {hash}")));
    }
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
            "bytes": object.len(), "namespace": name.namespace.as_str(),
        }),
    )?;
    out.write_all(object)
}

fn export_refs(store: &Store, namespace: &Namespace, out: &mut dyn Write) -> Result<u64, TransferError> {
    let mut count = 0;
    let mut after: Option<(Bucket, Key)> = None;
    loop {
        let from = after.as_ref().map(|(bucket, key)| (bucket, key));
        let step = store.refs(namespace, None, from, STEP)?;
        let Some((bucket, key, _)) = step.last() else { return Ok(count) };
        after = Some((bucket.clone(), *key));
        for (bucket, key, value) in &step {
            // A ref whose object is gone is a miss here and need not be one elsewhere.
            let Some(object) = store.object(namespace, value)? else { continue };
            let name = RefName { namespace: namespace.clone(), bucket: bucket.clone(), key: *key };
            export_ref(&name, value, &object, out)?;
            count += 1;
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

    fn reference(
        &mut self,
        namespace: &Namespace,
        bucket: Bucket,
        key: Key,
        bytes: Bytes,
        put: Timestamp,
    ) -> Result<(), TransferError> {
        let document =
            Document::parse(&bytes).map_err(|defect| TransferError::Malformed(defect.to_string()))?;
        let object = IoHash::of(&bytes);
        let (closure, mut relies_on) = self.store.close(namespace, &document)?;
        let inline = bytes.len() <= self.store.inline_bytes_max();
        if !inline {
            // It came as a blob before.
            relies_on.push(object);
        }
        let finalised = closure.missing().is_empty();
        let inline = inline.then(|| bytes.clone());
        let value = RefValue { object, finalised, put, inline, adopted: false };
        let namespace = namespace.clone();
        let sent = self.sent();
        self.store.put_ref(PutRef { namespace, bucket, key, value, overwrite: true, relies_on }, sent);
        Ok(())
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
