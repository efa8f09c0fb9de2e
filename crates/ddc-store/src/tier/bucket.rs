//! Objects of the storage: one request for each read and each change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};
use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};

use super::connect::{Client, connect};
use super::{Incoming, ObjectVersion, TierError, TierOptions};
use crate::blob::Blob;
use crate::change::{ChangeResult, PutRef};
use crate::key::{self, RefValue};

/// Bytes that one request uploads; what is larger goes in parts of this size. Amazon takes 5 MiB to
/// 5 GiB.
const PART_BYTES: u64 = 8 << 20;
/// End of the name of a form that was decoded and hashed.
const VERIFIED_SUFFIX: &str = "-v";
/// A ref that changes between look and change this often in a row is contended by something that
/// does not end.
const ATTEMPTS: usize = 16;

/// A bucket that holds a cache, shared by any number of nodes.
#[derive(Debug)]
pub struct Tier {
    client: Client,
    prefix: Path,
    refresh: Option<Duration>,
}

impl Tier {
    /// A client for the storage. Asks nothing of it yet.
    ///
    /// # Errors
    /// [`TierError::Config`] if the address or a setting is wrong.
    pub fn new(options: &TierOptions) -> Result<Tier, TierError> {
        let (client, prefix) = connect(options)?;
        Ok(Tier { client, prefix, refresh: options.refresh })
    }

    /// A tier over a storage of the caller's, for simulations. It gives no addresses to clients and
    /// writes nothing again.
    #[must_use]
    pub fn over(store: Arc<dyn ObjectStore>) -> Tier {
        Tier { client: Client { store, signer: None }, prefix: Path::default(), refresh: None }
    }

    /// Age at which what is used is to be written again; see [`TierOptions::refresh`].
    #[must_use]
    pub fn refresh(&self) -> Option<Duration> {
        self.refresh
    }

    /// Asks for something that need not be there.
    ///
    /// # Errors
    /// If the storage cannot be reached, does not know the bucket or refuses the credentials.
    pub async fn check(&self) -> Result<(), TierError> {
        found(self.client.store.head(&self.path(["format"])).await).map(drop)
    }

    // --- Blobs

    /// Size of a blob; `None` if it is not there.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn blob_len(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<u64>, TierError> {
        Ok(self.blob_meta(namespace, hash).await?.map(|meta| meta.size))
    }

    /// Time when a blob was written last; `None` if it is not there.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn blob_written(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Timestamp>, TierError> {
        let meta = self.blob_meta(namespace, hash).await?;
        Ok(meta.map(|meta| {
            Timestamp::from_unix_ms(u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0))
        }))
    }

    /// A blob; `None` if it is not there. The receiver hashes it, and gives the version to
    /// [`discard_blob`](Tier::discard_blob) if the hash is wrong.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<(Incoming, ObjectVersion)>, TierError> {
        let got = found(self.client.store.get(&self.blob_path(namespace, hash)).await)?;
        let Some(got) = got.filter(|got| may_be(&got.meta, hash)) else { return Ok(None) };
        let len = got.meta.size;
        let version = ObjectVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let bytes = match got.payload {
            GetResultPayload::Stream(stream) => stream.map_err(std::io::Error::other).boxed(),
            // Only stores that are folders answer with files.
            #[allow(unreachable_patterns, reason = "a feature of the crate adds a variant")]
            _ => return Err(TierError::Config("the storage is no network service".to_owned())),
        };
        Ok(Some((Incoming { len, bytes }, version)))
    }

    /// Makes a miss, for every node, of a blob that came with another hash, unless it was put again
    /// meanwhile. An empty object takes its place: a storage replaces under a condition, but
    /// deletes without one.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn discard_blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        seen: &ObjectVersion,
    ) -> Result<(), TierError> {
        let ObjectVersion { e_tag, version } = seen.clone();
        let options = PutOptions::from(PutMode::Update(UpdateVersion { e_tag, version }));
        let path = self.blob_path(namespace, hash);
        match self.client.store.put_opts(&path, PutPayload::new(), options).await {
            Ok(_) | Err(object_store::Error::Precondition { .. } | object_store::Error::NotFound { .. }) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// An address at which anybody may read a blob until `valid` is over. Whether the blob is there
    /// is not asked.
    ///
    /// # Errors
    /// [`TierError::Failed`] if the credentials cannot sign.
    pub async fn blob_url(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        valid: Duration,
    ) -> Result<String, TierError> {
        let path = self.blob_path(namespace, hash);
        let signer = self.client.signer.as_ref();
        let signer = signer.ok_or_else(|| TierError::Config("the storage signs no addresses".to_owned()))?;
        Ok(signer.signed_url(hyper::Method::GET, &path, valid).await?.into())
    }

    /// Puts a blob whose hash the caller has checked. It is there, for every node, when this
    /// returns.
    ///
    /// # Errors
    /// [`TierError::Failed`]; whether it is there is unknown then.
    pub async fn put_blob(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        payload: Bytes,
    ) -> Result<(), TierError> {
        self.client.store.put(&self.blob_path(namespace, hash), payload.into()).await?;
        Ok(())
    }

    /// Puts a large blob from its local file, in parts; at most one part is in memory. Nothing is
    /// visible before the last.
    ///
    /// # Errors
    /// As [`put_blob`](Tier::put_blob); [`TierError::Local`].
    pub async fn put_large(
        &self,
        namespace: &Namespace,
        hash: &IoHash,
        blob: &Blob,
    ) -> Result<(), TierError> {
        let path = self.blob_path(namespace, hash);
        if blob.len() <= PART_BYTES {
            self.client.store.put(&path, blob.read(0, blob.len() as usize)?.into()).await?;
            return Ok(());
        }
        let mut upload = self.client.store.put_multipart(&path).await?;
        let mut at = 0;
        while at < blob.len() {
            let piece = match blob.read(at, (blob.len() - at).min(PART_BYTES) as usize) {
                Ok(piece) => piece,
                Err(error) => {
                    // What it cannot take back, the bucket's rule for incomplete uploads does.
                    let _ = upload.abort().await;
                    return Err(error.into());
                }
            };
            at += piece.len() as u64;
            if let Err(error) = upload.put_part(piece.into()).await {
                let _ = upload.abort().await;
                return Err(error.into());
            }
        }
        upload.complete().await?;
        Ok(())
    }

    /// Deletes a blob. Whether there was one.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn delete_blob(&self, namespace: &Namespace, hash: &IoHash) -> Result<bool, TierError> {
        self.delete(&self.blob_path(namespace, hash)).await
    }

    // --- Content ids

    /// Blobs that hold forms of a content id, each with its weight and whether it was verified:
    /// first those that were, the lightest first.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn forms(
        &self,
        namespace: &Namespace,
        id: &IoHash,
    ) -> Result<Vec<(u64, IoHash, bool)>, TierError> {
        let prefix = self.path(["c", namespace.as_str(), &id.to_string()]);
        let mut forms = Vec::new();
        let mut list = self.client.store.list(Some(&prefix));
        while let Some(meta) = list.next().await {
            let location = meta?.location;
            forms.extend(location.filename().and_then(read_form));
        }
        forms.sort_unstable_by_key(|(weight, blob, verified)| (!verified, *weight, *blob));
        Ok(forms)
    }

    /// Notes that `blob` holds a form of the content id, and whether it was decoded and hashed.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn put_form(
        &self,
        namespace: &Namespace,
        id: &IoHash,
        weight: u64,
        (blob, verified): (&IoHash, bool),
    ) -> Result<(), TierError> {
        let name = format!("{weight:016x}-{blob}{}", if verified { VERIFIED_SUFFIX } else { "" });
        self.client
            .store
            .put(&self.path(["c", namespace.as_str(), &id.to_string(), &name]), PutPayload::new())
            .await?;
        Ok(())
    }

    /// Forgets every form of a content id. Whether there was one.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn delete_forms(&self, namespace: &Namespace, id: &IoHash) -> Result<bool, TierError> {
        self.delete_below(&self.path(["c", namespace.as_str(), &id.to_string()])).await.map(|count| count > 0)
    }

    // --- Refs

    /// A ref, finalised or not, as it is now.
    ///
    /// # Errors
    /// [`TierError::Failed`], [`TierError::Damaged`].
    pub async fn reference(
        &self,
        namespace: &Namespace,
        bucket: &Bucket,
        key: &Key,
    ) -> Result<Option<RefValue>, TierError> {
        Ok(self.look(&self.ref_object(namespace, bucket, key)).await?.map(|(value, _)| value))
    }

    /// Puts a ref; the outcomes are those of [`Store::put_ref`](crate::Store::put_ref).
    ///
    /// # Errors
    /// [`TierError::Failed`] (whether it was made is unknown then), [`TierError::Contended`].
    pub async fn put_ref(&self, put: &PutRef) -> Result<ChangeResult, TierError> {
        let name = self.ref_object(&put.namespace, &put.bucket, &put.key);
        self.change(&name, |old| match old {
            Some(old) if old.object != put.value.object && !put.overwrite => {
                Err(ChangeResult::Conflict(old.clone()))
            }
            Some(old) if put.value.is_refresh_of(old) => Err(ChangeResult::Unchanged),
            _ => Ok(put.value.clone()),
        })
        .await
    }

    /// Finalises a ref, if it still has this object.
    ///
    /// # Errors
    /// As [`put_ref`](Tier::put_ref).
    pub async fn finalise(
        &self,
        namespace: &Namespace,
        bucket: &Bucket,
        key: &Key,
        object: IoHash,
    ) -> Result<ChangeResult, TierError> {
        let name = self.ref_object(namespace, bucket, key);
        self.change(&name, |old| match old {
            None => Err(ChangeResult::Unchanged),
            Some(old) if old.object != object => Err(ChangeResult::Conflict(old.clone())),
            Some(old) if old.finalised => Err(ChangeResult::Done),
            Some(old) => Ok(RefValue { finalised: true, ..old.clone() }),
        })
        .await
    }

    /// Writes a finalised ref again, as put at `now`, if it still has this object.
    ///
    /// # Errors
    /// As [`put_ref`](Tier::put_ref).
    pub async fn refresh_ref(
        &self,
        namespace: &Namespace,
        bucket: &Bucket,
        key: &Key,
        object: IoHash,
        now: Timestamp,
    ) -> Result<ChangeResult, TierError> {
        let name = self.ref_object(namespace, bucket, key);
        self.change(&name, |old| match old {
            Some(old) if old.object == object && old.finalised => Ok(RefValue { put: now, ..old.clone() }),
            _ => Err(ChangeResult::Unchanged),
        })
        .await
    }

    /// Deletes a ref. Whether there was one.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn delete_ref(
        &self,
        namespace: &Namespace,
        bucket: &Bucket,
        key: &Key,
    ) -> Result<bool, TierError> {
        self.delete(&self.ref_object(namespace, bucket, key).path).await
    }

    /// Deletes every ref of a bucket, or of a namespace. How many there were.
    ///
    /// # Errors
    /// [`TierError::Failed`]; some are gone then.
    pub async fn delete_refs(
        &self,
        namespace: &Namespace,
        bucket: Option<&Bucket>,
    ) -> Result<u64, TierError> {
        let mut prefix = self.path(["r", namespace.as_str()]);
        if let Some(bucket) = bucket {
            prefix = prefix.join(bucket.as_str());
        }
        self.delete_below(&prefix).await
    }

    /// Deletes every blob and content id of a namespace.
    ///
    /// # Errors
    /// [`TierError::Failed`]; some are gone then.
    pub async fn delete_blobs(&self, namespace: &Namespace) -> Result<(), TierError> {
        for kind in ["c", "b"] {
            self.delete_below(&self.path([kind, namespace.as_str()])).await?;
        }
        Ok(())
    }

    /// Every namespace in which something is stored.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    pub async fn namespaces(&self) -> Result<Vec<Namespace>, TierError> {
        let mut names = std::collections::BTreeSet::new();
        for kind in ["b", "r"] {
            let listed = self.client.store.list_with_delimiter(Some(&self.path([kind]))).await?;
            names.extend(
                listed
                    .common_prefixes
                    .iter()
                    .filter_map(|path| path.filename().and_then(|name| name.parse::<Namespace>().ok())),
            );
        }
        Ok(names.into_iter().collect())
    }

    // --- Lists

    /// Every blob of a namespace, in no order.
    pub fn blobs(&self, namespace: &Namespace) -> BoxStream<'static, Result<IoHash, TierError>> {
        self.list(&self.path(["b", namespace.as_str()]), |meta, names| {
            let [.., hash] = names else { return None };
            hash.parse().ok().filter(|hash| may_be(meta, hash))
        })
    }

    /// Every form of every content id of a namespace, in no order: the id, the weight, the blob,
    /// and whether it was verified.
    pub fn contents(
        &self,
        namespace: &Namespace,
    ) -> BoxStream<'static, Result<(IoHash, u64, IoHash, bool), TierError>> {
        self.list(&self.path(["c", namespace.as_str()]), |_, names| {
            let [.., id, form] = names else { return None };
            let (weight, blob, verified) = read_form(form)?;
            Some((id.parse().ok()?, weight, blob, verified))
        })
    }

    /// Every ref of a namespace, in no order.
    pub fn refs(&self, namespace: &Namespace) -> BoxStream<'static, Result<(Bucket, Key), TierError>> {
        self.list(&self.path(["r", namespace.as_str()]), |_, names| {
            let [.., bucket, key] = names else { return None };
            Some((bucket.parse().ok()?, key.parse().ok()?))
        })
    }

    // --- Inner workings

    /// The objects below a prefix, as far as `read` makes something of their names.
    fn list<T: Send + 'static>(
        &self,
        prefix: &Path,
        read: impl Fn(&ObjectMeta, &[&str]) -> Option<T> + Send + 'static,
    ) -> BoxStream<'static, Result<T, TierError>> {
        let listed = self.client.store.list(Some(prefix));
        let read = move |meta: ObjectMeta| {
            let names: Vec<&str> = meta.location.as_ref().split('/').collect();
            read(&meta, &names)
        };
        let named = listed.map(move |meta| meta.map(&read).map_err(TierError::from).transpose());
        named.filter_map(std::future::ready).boxed()
    }

    async fn blob_meta(&self, namespace: &Namespace, hash: &IoHash) -> Result<Option<ObjectMeta>, TierError> {
        let meta = found(self.client.store.head(&self.blob_path(namespace, hash)).await)?;
        Ok(meta.filter(|meta| may_be(meta, hash)))
    }

    async fn look(&self, name: &RefObject) -> Result<Option<(RefValue, UpdateVersion)>, TierError> {
        match self.look_once(name).await {
            // Bits may have flipped on the way: only what arrives twice so is damaged there.
            Err(TierError::Damaged(_)) => self.look_once(name).await,
            found => found,
        }
    }

    async fn look_once(&self, name: &RefObject) -> Result<Option<(RefValue, UpdateVersion)>, TierError> {
        let Some(got) = found(self.client.store.get(&name.path).await)? else { return Ok(None) };
        let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let bytes = got.bytes().await?;
        let value = RefValue::read_summed(&name.key, &bytes)
            .filter(|value| value.inline.as_ref().is_none_or(|inline| IoHash::of(inline) == value.object));
        value.map(|value| Some((value, version))).ok_or_else(|| TierError::Damaged(name.path.to_string()))
    }

    /// Replaces what is there by what `decide` makes of it, unless it decides otherwise.
    async fn change(
        &self,
        name: &RefObject,
        decide: impl Fn(Option<&RefValue>) -> Result<RefValue, ChangeResult>,
    ) -> Result<ChangeResult, TierError> {
        for _ in 0..ATTEMPTS {
            let (old, mode) = match self.look(name).await {
                Ok(None) => (None, PutMode::Create),
                Ok(Some((value, version))) => (Some(value), PutMode::Update(version)),
                // Nobody can read it; what is written now replaces it.
                Err(TierError::Damaged(_)) => (None, PutMode::Overwrite),
                Err(error) => return Err(error),
            };
            let value = match decide(old.as_ref()) {
                Ok(value) => value,
                Err(outcome) => return Ok(outcome),
            };
            let payload = PutPayload::from(value.write_summed(&name.key));
            match self.client.store.put_opts(&name.path, payload, PutOptions::from(mode)).await {
                Ok(_) => return Ok(ChangeResult::Done),
                // Another node was faster; or this was the second attempt of a write whose answer
                // was lost.
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(TierError::Contended(name.path.to_string()))
    }

    async fn delete(&self, path: &Path) -> Result<bool, TierError> {
        // Deleting what is not there succeeds in S3, so that has to be asked.
        if found(self.client.store.head(path).await)?.is_none() {
            return Ok(false);
        }
        Ok(found(self.client.store.delete(path).await)?.is_some())
    }

    async fn delete_below(&self, prefix: &Path) -> Result<u64, TierError> {
        let locations = self.client.store.list(Some(prefix)).map_ok(|meta| meta.location).boxed();
        let mut deleted = self.client.store.delete_stream(locations);
        let mut count = 0;
        while let Some(one) = deleted.next().await {
            found(one)?;
            count += 1;
        }
        Ok(count)
    }

    fn path<const N: usize>(&self, parts: [&str; N]) -> Path {
        parts.iter().fold(self.prefix.clone(), |path, part| path.join(*part))
    }

    fn blob_path(&self, namespace: &Namespace, hash: &IoHash) -> Path {
        let hash = hash.to_string();
        self.path(["b", namespace.as_str(), &hash[..2], &hash])
    }

    fn ref_object(&self, namespace: &Namespace, bucket: &Bucket, key: &Key) -> RefObject {
        RefObject {
            path: self.path(["r", namespace.as_str(), bucket.as_str(), key.as_str()]),
            key: key::reference(namespace, bucket, key),
        }
    }
}

/// The object that holds a ref.
struct RefObject {
    path: Path,
    /// The ref's index key, which the object's checksum covers.
    key: Vec<u8>,
}

/// Weight, blob and verification of a form, from the name of its object.
fn read_form(name: &str) -> Option<(u64, IoHash, bool)> {
    let (weight, blob) = name.split_once('-')?;
    let verified = blob.strip_suffix(VERIFIED_SUFFIX);
    let hash = verified.unwrap_or(blob).parse().ok()?;
    Some((u64::from_str_radix(weight, 16).ok()?, hash, verified.is_some()))
}

/// Reports whether an object may be the blob, and is not what takes the place of a damaged one.
fn may_be(meta: &ObjectMeta, hash: &IoHash) -> bool {
    meta.size > 0 || *hash == IoHash::of(b"")
}

/// What is not there is no failure.
fn found<T>(result: object_store::Result<T>) -> Result<Option<T>, TierError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
