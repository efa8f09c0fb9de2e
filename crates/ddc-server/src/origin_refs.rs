//! Refs as they are at the origin of the data, and changes of them, in turn.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hyper::StatusCode;
use throng_ddc::api::RefName;
use throng_ddc::{Bucket, Document, IoHash, Namespace};
use throng_ddc_store::{ChangeResult, PutRef, RefValue, Tier, TierError};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::answer::Problem;
use crate::fetch::LOOKUPS_MAX;
use crate::origin::Read;
use crate::preconditions::Preconditions;
use crate::service::Service;
use crate::upload::Received;
use crate::upstream::{Lookup, Upstream, way};

/// Refs of the upstream whose age is known; with more, all are forgotten and looked up again.
const FRESH_MAX: usize = 1 << 18;

impl Service {
    /// A ref, finalised or not, as it is now. What the upstream says about it is kept here before
    /// this returns, so that nothing older is served when the upstream no longer answers.
    pub(crate) async fn reference(&self, name: &RefName) -> Result<Option<RefValue>, Problem> {
        match self.look_up(name).await? {
            Seen::Stored(value) => Ok(value),
            Seen::Upstream(value) => Box::pin(self.adopt(name, value)).await,
        }
    }

    /// A ref, finalised or not, of the node itself or its object storage: the upstream is not
    /// asked.
    pub(crate) async fn own_reference(&self, name: &RefName) -> Result<Option<RefValue>, Problem> {
        match self.tier() {
            Some(tier) => Box::pin(self.shared_reference(tier, name)).await,
            None => Ok(self.store.reference(&name.namespace, &name.bucket, &name.key)?),
        }
    }

    /// A ref, finalised or not, as it is now. Nothing is kept.
    async fn look_up(&self, name: &RefName) -> Result<Seen, Problem> {
        let found = self.own_reference(name).await?;
        let Some(upstream) = self.upstream() else { return Ok(Seen::Stored(found)) };
        // The upstream has no say about a ref that was put here, finished or not.
        if found.as_ref().is_some_and(|value| !value.adopted || self.is_fresh(name)) {
            return Ok(Seen::Stored(found));
        }
        Box::pin(self.look_up_at(upstream, name, found)).await
    }

    /// A ref of the object storage.
    async fn shared_reference(&self, tier: &Tier, name: &RefName) -> Result<Option<RefValue>, Problem> {
        let RefName { namespace, bucket, key } = name;
        match tier.reference(namespace, bucket, key).await {
            // It is missing until it is put again.
            Err(TierError::Damaged(path)) => {
                self.counters.add_damaged();
                tracing::error!(path, "a ref in the object storage is damaged");
                Ok(None)
            }
            found => {
                if found.is_err() {
                    self.note_read(Read::Ref(name.clone()), false);
                }
                self.heard(found)
            }
        }
    }

    /// A ref that is not here, or is here as a copy of the upstream's.
    async fn look_up_at(
        &self,
        upstream: &Upstream,
        name: &RefName,
        found: Option<RefValue>,
    ) -> Result<Seen, Problem> {
        let RefName { namespace, bucket, key } = name;
        // The upstream may have an older value than the one that was lost.
        if found.is_none() && self.store.is_lost(namespace, bucket, key)? {
            return Ok(Seen::Stored(None));
        }
        let is_whole = match &found {
            Some(RefValue { inline: None, object, .. }) => self.store.has_blob(namespace, object)?,
            found => found.is_some(),
        };
        let is_copy_of = |object: &IoHash| found.as_ref().is_some_and(|value| value.object == *object);
        match upstream.reference(name, self.rules().object_bytes_max).await {
            Lookup::Found((object, _)) if is_whole && is_copy_of(&object) => {
                self.set_fresh(name);
                Ok(Seen::Stored(found))
            }
            Lookup::Found((object, bytes)) => {
                let (put, inline) = (self.now(), Some(bytes));
                Ok(Seen::Upstream(Some(RefValue { object, finalised: true, put, inline, adopted: true })))
            }
            Lookup::Missing if found.is_some() => Ok(Seen::Upstream(None)),
            Lookup::Missing => Ok(Seen::Stored(None)),
            Lookup::Unknown => {
                if found.is_some() {
                    self.origin_counters.stale.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Seen::Stored(found))
            }
        }
    }

    /// Reports whether the upstream said lately that a ref is as it was.
    fn is_fresh(&self, name: &RefName) -> bool {
        let within = self.rules().upstream_fresh;
        let fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.elapsed();
        fresh.get(name).is_some_and(|seen| now.saturating_sub(*seen) < within)
    }

    fn set_fresh(&self, name: &RefName) {
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        if fresh.len() >= FRESH_MAX {
            fresh.clear();
        }
        fresh.insert(name.clone(), self.clock.elapsed());
    }

    /// Makes the copy of a ref here the one that the upstream has, or deletes it if the upstream
    /// has none. Gives the ref as it is then: one that was put here meanwhile stays.
    ///
    /// Attachments may still be at the upstream. They are fetched when a client wants them, and are
    /// misses if they cannot be had then.
    async fn adopt(&self, name: &RefName, brought: Option<RefValue>) -> Result<Option<RefValue>, Problem> {
        let RefName { namespace, bucket, key } = name;
        let lock = self.change_lock(name);
        // A change of the ref by this node may wait for the cache that asks.
        let turn = if way().is_none() { Some(lock.write().await) } else { lock.try_write().ok() };
        let here = self.store.reference(namespace, bucket, key)?;
        if here.as_ref().is_some_and(|here| !here.adopted) {
            return Ok(here);
        }
        if turn.is_none() {
            return Ok(brought);
        }
        if let Some(value) = &brought {
            match self.keep_copy(name, value, here.is_some()).await {
                Ok(()) => {
                    self.set_fresh(name);
                    return Ok(brought);
                }
                // The answer needs no copy.
                Err(problem) => self.count_passed(namespace, &problem.title),
            }
        }
        if here.is_some() {
            self.commit(|done| self.store.delete_ref(namespace, bucket, key, done)).await?;
        }
        Ok(brought)
    }

    /// Stores a ref of the upstream.
    async fn keep_copy(&self, name: &RefName, value: &RefValue, overwrite: bool) -> Result<(), Problem> {
        let (namespace, object) = (&name.namespace, value.inline.clone().unwrap_or_default());
        let is_inline = object.len() <= self.store.inline_bytes_max();
        let _room = self.room_for_copy(namespace, if is_inline { object.len() as u64 } else { 0 })?;
        self.store.check_room(namespace, object.len() as u64)?;
        let document = Document::parse(&object).map_err(Problem::bad)?;
        let (_, mut relies_on) = self.store.close(namespace, &document)?;
        let mut value = value.clone();
        if !is_inline {
            self.keep_fetched(namespace, Received::Small(object, value.object)).await?;
            relies_on.push(value.object);
            value.inline = None;
        }
        let (bucket, key) = (name.bucket.clone(), name.key);
        let put = PutRef { namespace: namespace.clone(), bucket, key, value, overwrite, relies_on };
        match self.commit(|done| self.store.put_ref(put, done)).await? {
            ChangeResult::Done | ChangeResult::Unchanged => Ok(()),
            ChangeResult::OverQuota => Err(self.over_quota(namespace)),
            ChangeResult::Conflict(_) | ChangeResult::Lost => Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "other requests change the ref, or delete blobs that it refers to",
            )),
        }
    }

    /// Deletes the copies of an upstream's refs in a namespace, which can be fetched again, to make
    /// room for an upload of `len` bytes, unless even an empty namespace has none.
    pub(crate) async fn drop_copies(&self, namespace: &Namespace, len: u64) -> Result<(), Problem> {
        if self.upstream().is_none() || self.store.quota(namespace).is_some_and(|quota| len > quota) {
            return Ok(());
        }
        let mut after: Option<(Bucket, throng_ddc::Key)> = None;
        loop {
            let step = self.store.refs(namespace, None, after.as_ref().map(|(b, k)| (b, k)), 512)?;
            let Some((last_bucket, last_key, _)) = step.last() else { return Ok(()) };
            after = Some((last_bucket.clone(), *last_key));
            let copies = step.into_iter().filter(|(.., value)| value.adopted);
            let deletions = copies.map(|(bucket, key, _)| async move {
                let name = RefName { namespace: namespace.clone(), bucket, key };
                let _turn = self.change_lock(&name).write().await;
                let here = self.store.reference(namespace, &name.bucket, &key)?;
                if here.is_some_and(|here| here.adopted) {
                    self.commit(|done| self.store.delete_ref(namespace, &name.bucket, &key, done)).await?;
                }
                Ok::<_, Problem>(())
            });
            stream::iter(deletions).buffer_unordered(LOOKUPS_MAX).try_collect::<()>().await?;
        }
    }

    /// Waits until a ref may be changed, and for what a change depends on, if it still holds then.
    /// Other changes by this node wait until the turn is over; with an object storage, other nodes
    /// know nothing of it.
    async fn turn(&self, name: &RefName, when: &Preconditions) -> Result<Turn<'_>, Problem> {
        let lock = self.change_lock(name);
        if when.is_empty() {
            return Ok(Turn { _shared: Some(lock.read().await), _alone: None });
        }
        let alone = lock.write().await;
        Box::pin(self.check_change(name, when)).await?;
        Ok(Turn { _shared: None, _alone: Some(alone) })
    }

    /// Lock that the changes of a ref share with those of others.
    pub(crate) fn change_lock(&self, name: &RefName) -> &RwLock<()> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        &self.changes[hasher.finish() as usize % self.changes.len()]
    }

    /// Refuses an upload to a ref before its body comes, if the ref as it is now rules it out.
    pub(crate) async fn permit_upload(&self, name: &RefName, when: &Preconditions) -> Result<(), Problem> {
        if when.is_empty() {
            return Ok(());
        }
        Box::pin(self.check_change(name, when)).await
    }

    /// Decides about a change of a ref as it is now.
    async fn check_change(&self, name: &RefName, when: &Preconditions) -> Result<(), Problem> {
        // The turn of the change is that of keeping what the upstream says.
        let (Seen::Stored(found) | Seen::Upstream(found)) = self.look_up(name).await?;
        let found = found.filter(|value| value.finalised);
        let hash = match &found {
            Some(value) if when.names_blob => {
                let object = self.object_of(&name.namespace, value).await?;
                object.and_then(|object| Document::parse(&object).ok()?.only_binary_attachment())
            }
            found => found.as_ref().map(|value| value.object),
        };
        when.permit_change(hash.as_ref())
    }

    /// Puts the ref `name`.
    pub(crate) async fn put_reference(
        &self,
        name: &RefName,
        put: PutRef,
        when: &Preconditions,
    ) -> Result<ChangeResult, Problem> {
        let _turn = self.turn(name, when).await?;
        match self.tier() {
            Some(tier) => self.heard(tier.put_ref(&put).await),
            None if self.store.is_repeated(&put)? => Ok(ChangeResult::Unchanged),
            None => Ok(self.commit(|done| self.store.put_ref(put, done)).await?),
        }
    }

    pub(crate) async fn finalise_reference(
        &self,
        name: &RefName,
        object: IoHash,
        relies_on: &[IoHash],
    ) -> Result<ChangeResult, Problem> {
        let _turn = self.turn(name, &Preconditions::default()).await?;
        let RefName { namespace, bucket, key } = name;
        match self.tier() {
            Some(tier) => self.heard(tier.finalise(namespace, bucket, key, object).await),
            None => Ok(self
                .commit(|done| self.store.finalise(namespace, bucket, key, object, relies_on, done))
                .await?),
        }
    }

    /// Reports whether there was one.
    pub(crate) async fn delete_reference(
        &self,
        name: &RefName,
        when: &Preconditions,
    ) -> Result<bool, Problem> {
        let _turn = self.turn(name, when).await?;
        let RefName { namespace, bucket, key } = name;
        match self.tier() {
            Some(tier) => self.heard(tier.delete_ref(namespace, bucket, key).await),
            None => {
                let outcome = self.commit(|done| self.store.delete_ref(namespace, bucket, key, done)).await?;
                Ok(outcome == ChangeResult::Done)
            }
        }
    }

    /// Deletes every ref of a bucket or namespace. Gives how many there were.
    pub(crate) async fn delete_refs(
        &self,
        namespace: &Namespace,
        bucket: Option<&Bucket>,
    ) -> Result<u64, Problem> {
        if let Some(tier) = self.tier() {
            return self.heard(tier.delete_refs(namespace, bucket).await);
        }
        let mut count = 0;
        let mut after: Option<(Bucket, throng_ddc::Key)> = None;
        loop {
            let step = self.store.refs(namespace, bucket, after.as_ref().map(|(b, k)| (b, k)), 512)?;
            let Some((last_bucket, last_key, _)) = step.last() else { return Ok(count) };
            after = Some((last_bucket.clone(), *last_key));
            for (bucket, key, _) in &step {
                let outcome = self.commit(|done| self.store.delete_ref(namespace, bucket, key, done)).await?;
                count += u64::from(outcome == ChangeResult::Done);
            }
        }
    }

    pub(crate) async fn namespaces(&self) -> Result<Vec<Namespace>, Problem> {
        match self.tier() {
            Some(tier) => self.heard(tier.namespaces().await),
            None => Ok(self.store.namespaces()?),
        }
    }
}

/// State of a ref.
enum Seen {
    /// It is stored like this.
    Stored(Option<RefValue>),
    /// The upstream has this instead of what is stored.
    Upstream(Option<RefValue>),
}

/// The time in which a ref is changed.
struct Turn<'s> {
    _shared: Option<RwLockReadGuard<'s, ()>>,
    _alone: Option<RwLockWriteGuard<'s, ()>>,
}
