//! Object storage that several nodes share: blobs and refs as objects of a bucket.
//!
//! | Object | What |
//! |---|---|
//! | `b/NAMESPACE/HH/HASH` | a blob; `HH` are the first two digits of its hash; empty in place of one that was found damaged |
//! | `c/NAMESPACE/ID/WEIGHT-BLOB` | nothing: its name says that the blob holds a form of the content id; `-v` follows if it was verified |
//! | `r/NAMESPACE/BUCKET/KEY` | a ref: state, time, hash of its object, the object if it is small, and a CRC-32C of the ref's name and all of this |
//!
//! A blob never changes, so a node may keep a copy as long as it likes. A ref is never copied:
//! every look at one is a request, and every change is conditional on what was seen (`If-Match`),
//! so that refs are linearizable across nodes, as far as the storage's own objects are. Nodes know
//! nothing of each other.

#[cfg(not(feature = "object-storage"))]
mod absent;
#[cfg(feature = "object-storage")]
mod bucket;
#[cfg(feature = "object-storage")]
mod connect;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;

#[cfg(not(feature = "object-storage"))]
pub use absent::Tier;
#[cfg(feature = "object-storage")]
pub use bucket::Tier;

/// Address of the object storage, and how it is used.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; the prefix may be
    /// missing.
    pub url: String,
    /// Address of the service, for S3 servers other than Amazon's; empty for the provider's own.
    pub endpoint: String,
    /// Settings of the provider's client by name, credentials among them: `access_key_id`,
    /// `secret_access_key`, `region`, `service_account_key`, `account_name`, ... What is not here
    /// comes from the environment, as the provider's own tools read it (`AWS_ACCESS_KEY_ID`, ...).
    pub settings: BTreeMap<String, String>,
    /// Time within which the storage must begin to answer, retries included; and longest pause
    /// inside an answer.
    pub timeout: Duration,
    /// Whom TLS trusts.
    pub tls: Arc<rustls::ClientConfig>,
    /// Age at which refs that are used, and what they reach, are written again: a rule of the
    /// bucket that removes what is older than a few times this removes what nobody used. `None`
    /// writes nothing again.
    pub refresh: Option<Duration>,
}

/// Why something could not be done in the object storage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The settings do not fit together.
    #[error("{0}")]
    Config(String),
    /// The storage cannot be reached, refuses, or fails.
    #[cfg(feature = "object-storage")]
    #[error("the object storage: {0}")]
    Failed(#[from] object_store::Error),
    /// An object is not what its name says.
    #[error("the object `{0}` is damaged")]
    Damaged(String),
    /// Others change the same ref all the time.
    #[error("the ref `{0}` keeps changing")]
    Contended(String),
    /// The local copy could not be read.
    #[error("the local copy: {0}")]
    Local(#[from] std::io::Error),
}

/// Version of an object, which tells whether it was written again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The storage's tag of the content.
    pub e_tag: Option<String>,
    /// The storage's number of the version.
    pub version: Option<String>,
}

/// A blob on its way here.
pub struct Incoming {
    /// Its size in bytes, as the sender says.
    pub len: u64,
    /// Its bytes.
    pub bytes: BoxStream<'static, std::io::Result<Bytes>>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("len", &self.len).finish_non_exhaustive()
    }
}
