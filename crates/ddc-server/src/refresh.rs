//! Refreshes used objects in an object storage.
//!
//! Nodes delete nothing from a shared bucket, because no node knows which objects another is about
//! to use. The bucket's lifecycle rule deletes by age; used objects are written again when they are
//! old, so that age means time without use. A lost race causes a duplicate write.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use throng_ddc::api::RefName;
use throng_ddc::{Closure, Document, IoHash, Namespace, Resolution};
use throng_ddc_store::{RefValue, Tier};

use crate::answer::Problem;
use crate::blocking;
use crate::origin::{Located, Reach};
use crate::service::Service;

/// Refs that are refreshed at a time; those beyond are when they are used the next time.
const REFRESHES_MAX: usize = 4;

impl Service {
    /// Sees to it that a ref that is used stays in the object storage. Returns at once.
    pub(crate) fn keep_young(self: &Arc<Service>, name: &RefName, value: &RefValue) {
        let Some(age) = self.tier().and_then(Tier::refresh) else { return };
        if self.now().since(value.put) < age {
            return;
        }
        let running = (name.namespace.clone(), name.bucket.clone(), name.key);
        {
            let mut all = self.refreshes.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= REFRESHES_MAX || !all.insert(running.clone()) {
                return;
            }
        }
        let (service, name, value) = (Arc::clone(self), name.clone(), value.clone());
        tokio::spawn(async move {
            if let Err(problem) = service.refresh(&name, &value, age).await {
                tracing::debug!(why = problem.title, "a ref was not written again");
            }
            service.refreshes.lock().unwrap_or_else(PoisonError::into_inner).remove(&running);
        });
    }

    /// Writes what a ref reaches again, as far as it is old, and then the ref.
    async fn refresh(&self, name: &RefName, value: &RefValue, age: Duration) -> Result<(), Problem> {
        let (Some(tier), namespace) = (self.tier(), &name.namespace) else { return Ok(()) };
        let Some(object) = self.object_of(namespace, value).await? else { return Ok(()) };
        if value.inline.is_none() {
            self.refresh_blob(tier, namespace, &value.object, age).await?;
        }
        let document = Document::parse(&object).map_err(Problem::bad)?;
        let mut closure = Closure::new(&document);
        while let Some(attachment) = closure.next() {
            if attachment.is_object() {
                self.refresh_blob(tier, namespace, &attachment.hash, age).await?;
                match self.read_blob(namespace, &attachment.hash).await? {
                    Some(bytes) => closure.resolve(Resolution::Object(&bytes)),
                    None => closure.resolve(Resolution::Missing),
                }
                continue;
            }
            let located = self.locate_form(namespace, &attachment.hash, Reach::All).await?;
            if let Some(Located { blob, verified }) = located {
                let written = self.refresh_blob(tier, namespace, &blob, age).await?;
                if blob != attachment.hash
                    && let Some(len) = written
                {
                    self.heard(tier.put_form(namespace, &attachment.hash, len, (&blob, verified)).await)?;
                }
            }
            closure.resolve(located.map_or(Resolution::Missing, |located| Resolution::Blob(located.blob)));
        }
        let (bucket, now) = (&name.bucket, self.now());
        self.heard(tier.refresh_ref(namespace, bucket, &name.key, value.object, now).await)?;
        Ok(())
    }

    /// Writes an old blob again. Its size, if it was.
    async fn refresh_blob(
        &self,
        tier: &Tier,
        namespace: &Namespace,
        hash: &IoHash,
        age: Duration,
    ) -> Result<Option<u64>, Problem> {
        let written = self.heard(tier.blob_written(namespace, hash).await)?;
        // Other refs may have brought it half the way.
        if written.is_some_and(|written| self.now().since(written) < age / 2) {
            return Ok(None);
        }
        let Some(blob) = self.find_blob(namespace, hash).await? else { return Ok(None) };
        if blocking::in_place(|| blob.hash())? != *hash {
            self.store.discard_damaged(namespace, hash, &blob);
            return Ok(None);
        }
        self.heard(tier.put_large(namespace, hash, &blob).await)?;
        Ok(Some(blob.len()))
    }
}
