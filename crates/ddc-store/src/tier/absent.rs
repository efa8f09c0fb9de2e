//! [`Tier`] of a build without the feature `object-storage`: uninhabited, so its methods cannot be
//! called.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use throng_ddc::{Bucket, IoHash, Key, Namespace, Timestamp};

use super::{Incoming, ObjectVersion, TierError, TierOptions};
use crate::blob::Blob;
use crate::change::{ChangeResult, PutRef};
use crate::key::RefValue;

/// A bucket that holds a cache. This build cannot make one.
#[derive(Debug)]
pub enum Tier {}

macro_rules! requests {
    ($($name:ident($($argument:ty),*) -> $answer:ty;)*) => {
        impl Tier {
            $(
                #[doc = "Cannot be called in this build."]
                ///
                /// # Errors
                /// None: there is no bucket.
                pub async fn $name(&self, $(_: $argument),*) -> Result<$answer, TierError> {
                    match *self {}
                }
            )*
        }
    };
}

requests! {
    check() -> ();
    blob_len(&Namespace, &IoHash) -> Option<u64>;
    blob_written(&Namespace, &IoHash) -> Option<Timestamp>;
    blob(&Namespace, &IoHash) -> Option<(Incoming, ObjectVersion)>;
    discard_blob(&Namespace, &IoHash, &ObjectVersion) -> ();
    blob_url(&Namespace, &IoHash, Duration) -> String;
    put_blob(&Namespace, &IoHash, Bytes) -> ();
    put_large(&Namespace, &IoHash, &Blob) -> ();
    delete_blob(&Namespace, &IoHash) -> bool;
    forms(&Namespace, &IoHash) -> Vec<(u64, IoHash, bool)>;
    put_form(&Namespace, &IoHash, u64, (&IoHash, bool)) -> ();
    delete_forms(&Namespace, &IoHash) -> bool;
    reference(&Namespace, &Bucket, &Key) -> Option<RefValue>;
    put_ref(&PutRef) -> ChangeResult;
    finalise(&Namespace, &Bucket, &Key, IoHash) -> ChangeResult;
    refresh_ref(&Namespace, &Bucket, &Key, IoHash, Timestamp) -> ChangeResult;
    delete_ref(&Namespace, &Bucket, &Key) -> bool;
    delete_refs(&Namespace, Option<&Bucket>) -> u64;
    delete_blobs(&Namespace) -> ();
    namespaces() -> Vec<Namespace>;
}

macro_rules! lists {
    ($($name:ident -> $item:ty;)*) => {
        impl Tier {
            $(
                #[doc = "Cannot be called in this build."]
                pub fn $name(&self, _: &Namespace) -> BoxStream<'static, Result<$item, TierError>> {
                    match *self {}
                }
            )*
        }
    };
}

lists! {
    blobs -> IoHash;
    contents -> (IoHash, u64, IoHash, bool);
    refs -> (Bucket, Key);
}

impl Tier {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: &TierOptions) -> Result<Tier, TierError> {
        Err(TierError::Config("this program was built without the feature `object-storage`".to_owned()))
    }

    /// Cannot be called in this build.
    #[must_use]
    pub fn refresh(&self) -> Option<Duration> {
        match *self {}
    }
}
