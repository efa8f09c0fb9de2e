//! Which matcher of an area serves what: leases in a key-value bucket, which expire with their holder.
//!
//! A lease shares the load out, it does not guard anything: while two matchers take themselves for the home of a mode, both
//! make rooms of it, each right in itself. So nothing depends on clocks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::kv::{self, Operation, Store};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::StorageType;
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;

use super::NatsError;

/// Time that the server keeps the note of an expiry, so that all who watch hear of it.
const MARKER: Duration = Duration::from_secs(1);

pub(crate) struct Leases {
    context: Context,
    store: Store,
    bucket: String,
    /// Of this matcher.
    id: String,
    ttl: Duration,
    books: Mutex<Books>,
    /// Whether everything that was there at the beginning is in the books.
    is_known: watch::Sender<bool>,
}

#[derive(Default)]
struct Books {
    /// Holders by key, as far as this matcher has heard.
    known: BTreeMap<String, String>,
    /// Revisions of the keys that this matcher holds.
    held: BTreeMap<String, u64>,
}

impl Leases {
    /// Opens the bucket of an area, makes it if there is none, and announces this matcher.
    ///
    /// # Errors
    /// A server without JetStream, or older than 2.11.
    pub(crate) async fn open(
        client: &async_nats::Client,
        area: &str,
        id: &str,
        ttl: Duration,
    ) -> Result<Arc<Leases>, NatsError> {
        let context = jetstream::new(client.clone());
        let bucket = format!("throng-matcher-{area}");
        let config = kv::Config {
            bucket: bucket.clone(),
            history: 1,
            // Leases end with the servers that keep them.
            storage: StorageType::Memory,
            limit_markers: Some(MARKER),
            ..kv::Config::default()
        };
        let made = context.create_key_value(config).await;
        let store = made.map_err(|error| NatsError::Bucket(bucket.clone(), error.to_string()))?;
        let books = Mutex::default();
        let is_known = watch::Sender::new(false);
        let leases = Arc::new(Leases { context, store, bucket, id: id.to_owned(), ttl, books, is_known });
        leases.take(&member(id)).await?;
        Ok(leases)
    }

    /// The matcher that serves `key`; this one if nobody did.
    ///
    /// # Errors
    /// The server does not answer.
    pub(crate) async fn home(&self, key: &str) -> Result<String, NatsError> {
        let key = home(key);
        let known = self.books().known.get(&key).cloned();
        if let Some(holder) = known {
            return Ok(holder);
        }
        self.take(&key).await
    }

    /// Asks the server anew: a holder was not there.
    pub(crate) fn doubt(&self, key: &str, holder: &str) {
        let mut books = self.books();
        books.known.retain(|known, by| *known != home(key) || by != holder);
        books.known.remove(&member(holder));
    }

    /// Other matchers of the area.
    pub(crate) fn others(&self) -> Vec<String> {
        let books = self.books();
        let members = books.known.iter().filter(|(key, _)| key.starts_with("matcher."));
        members.map(|(_, id)| id.clone()).filter(|id| *id != self.id).collect()
    }

    /// Keeps what this matcher holds, and listens to who holds what, for as long as it is polled.
    ///
    /// # Errors
    /// The bucket is gone.
    pub(crate) async fn keep(&self) -> Result<(), NatsError> {
        let lost = |error: String| NatsError::Bucket(self.bucket.clone(), error);
        let entries = self.store.watch_all_from_revision(1).await;
        let mut entries = entries.map_err(|error| lost(error.to_string()))?;
        let mut renewal = tokio::time::interval(self.ttl / 3);
        renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                entry = entries.next() => match entry {
                    Some(Ok(entry)) => {
                        // It is the last of those that were there: at least this matcher's own is.
                        let is_last = entry.delta == 0;
                        self.note(entry);
                        self.is_known.send_if_modified(|known| is_last && !std::mem::replace(known, true));
                    }
                    Some(Err(error)) => return Err(lost(error.to_string())),
                    None => return Err(lost("the watch ended".to_owned())),
                },
                _ = renewal.tick() => self.renew().await,
            }
        }
    }

    /// Waits until the others are known that were there when this matcher came. [`keep`](Leases::keep) has to be polled.
    pub(crate) async fn wait_until_known(&self) {
        // The sender is here, so there is no error.
        let _ = self.is_known.subscribe().wait_for(|known| *known).await;
    }

    /// Another matcher says that it is there: its lease tells.
    pub(crate) async fn look_up(&self, id: &[u8]) {
        let key = std::str::from_utf8(id).ok().filter(|id| id.bytes().all(|c| c.is_ascii_alphanumeric()));
        let Some(key) = key.filter(|id| (1..=64).contains(&id.len())).map(member) else { return };
        match self.store.entry(key).await {
            Ok(Some(entry)) => self.note(entry),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "a matcher that came cannot be looked up"),
        }
    }

    fn note(&self, entry: kv::Entry) {
        let mut books = self.books();
        match (entry.operation, std::str::from_utf8(&entry.value)) {
            (Operation::Put, Ok(holder)) => drop(books.known.insert(entry.key, holder.to_owned())),
            _ => drop(books.known.remove(&entry.key)),
        }
    }

    async fn renew(&self) {
        let held: Vec<(String, u64)> = self.books().held.iter().map(|(key, at)| (key.clone(), *at)).collect();
        for (key, revision) in held {
            match self.write(&key, revision).await {
                Ok(next) => drop(self.books().held.insert(key, next)),
                // Expired while this matcher was away, and maybe somebody else's by now.
                Err(WriteError::Changed) => {
                    self.books().held.remove(&key);
                    if key == member(&self.id) && self.take(&key).await.is_err() {
                        tracing::warn!("this matcher cannot announce itself to the others of its area");
                    }
                }
                // Tried again in a third of the lease's time.
                Err(WriteError::Failed(error)) => tracing::warn!(%error, key, "a lease was not renewed"),
            }
        }
    }

    /// Takes a lease that nobody holds; gives its holder.
    async fn take(&self, key: &str) -> Result<String, NatsError> {
        let mut revision = 0;
        // Once for an unused key, once for an expired one, once more for a lost race.
        for _ in 0..3 {
            match self.write(key, revision).await {
                Ok(revision) => {
                    let mut books = self.books();
                    books.held.insert(key.to_owned(), revision);
                    books.known.insert(key.to_owned(), self.id.clone());
                    return Ok(self.id.clone());
                }
                Err(WriteError::Failed(error)) => return Err(NatsError::Bucket(self.bucket.clone(), error)),
                Err(WriteError::Changed) => {}
            }
            let entry = self.store.entry(key).await;
            let entry = entry.map_err(|error| NatsError::Bucket(self.bucket.clone(), error.to_string()))?;
            match entry {
                Some(entry) if entry.operation == Operation::Put => {
                    let holder = String::from_utf8_lossy(&entry.value).into_owned();
                    self.books().known.insert(key.to_owned(), holder.clone());
                    return Ok(holder);
                }
                entry => revision = entry.map_or(0, |entry| entry.revision),
            }
        }
        Err(NatsError::Bucket(self.bucket.clone(), format!("`{key}` changes all the time")))
    }

    /// Writes this matcher's id under a key that is at `revision`, for the time of a lease. Not with the client library's
    /// own `create`: of a key that has expired before, it leaves out the time.
    async fn write(&self, key: &str, revision: u64) -> Result<u64, WriteError> {
        let message = PublishMessage::build()
            .payload(Bytes::from(self.id.clone()))
            .expected_last_subject_sequence(revision)
            .ttl(self.ttl);
        let subject = format!("$KV.{}.{key}", self.bucket);
        let failed = |error: jetstream::context::PublishError| match error.kind() {
            PublishErrorKind::WrongLastSequence => WriteError::Changed,
            _ => WriteError::Failed(error.to_string()),
        };
        let acknowledged = self.context.send_publish(subject, message).await.map_err(failed)?;
        acknowledged.await.map(|acknowledged| acknowledged.sequence).map_err(failed)
    }

    /// How long a lost matcher keeps what it holds.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum WriteError {
    /// The key is at another revision.
    Changed,
    Failed(String),
}

fn member(id: &str) -> String {
    format!("matcher.{id}")
}

/// Names of modes and queues are free text, keys are not.
fn home(key: &str) -> String {
    let hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("home.{hex}")
}
