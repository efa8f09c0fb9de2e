//! Blobs that a namespace does not hold itself: from another namespace, or at an address in the
//! object storage.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use throng_ddc::api::query_values;
use throng_ddc::policy::Action;
use throng_ddc::{IoHash, Namespace};
use throng_ddc_store::{Blob, LargeWriter};

use crate::answer::{Problem, empty};
use crate::blobs::FORMS_TRIED_MAX;
use crate::blocking;
use crate::body::Body;
use crate::memory::SMALL_BYTES_MAX;
use crate::origin::{Located, Reach};
use crate::service::{ApiRequest, Service};
use crate::upload::Received;

/// Time for which an address in the object storage may be used.
const REDIRECT_VALID: Duration = Duration::from_secs(15 * 60);
/// Bytes that are copied in one step.
const PIECE_BYTES: u64 = 1 << 20;

impl Service {
    /// Copies a blob, or a form of a content id, from where the namespace may take it. The blob
    /// that it is.
    ///
    /// What the caller may not read there is not there.
    pub(crate) async fn take_over(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        id: &IoHash,
        is_content: bool,
    ) -> Result<Option<Located>, Problem> {
        let Some(from) = self.rules_of(namespace).fallback.filter(|from| from != namespace) else {
            return Ok(None);
        };
        if self.permit(request, Action::ReadObject, &from, None).is_err() {
            return Ok(None);
        }
        Box::pin(self.carry(&from, namespace, id, is_content)).await
    }

    /// Copies what was uploaded to where others take it from, if the namespace does that and the
    /// caller may write there.
    pub(crate) async fn fill_fallback(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        id: &IoHash,
        is_content: bool,
    ) -> Result<(), Problem> {
        let rules = self.rules_of(namespace);
        let Some(to) = rules.fallback.filter(|to| rules.fills_fallback && to != namespace) else {
            return Ok(());
        };
        if self.permit(request, Action::WriteObject, &to, None).is_ok() {
            Box::pin(self.carry(namespace, &to, id, is_content)).await?;
        }
        Ok(())
    }

    /// Copies a blob, or a form of a content id, from one namespace to another that takes it. The
    /// blob that it is, if there is one.
    async fn carry(
        self: &Arc<Service>,
        from: &Namespace,
        to: &Namespace,
        id: &IoHash,
        is_content: bool,
    ) -> Result<Option<Located>, Problem> {
        for _ in 0..if is_content { FORMS_TRIED_MAX } else { 1 } {
            let found = match is_content {
                true => self.locate_form(from, id, Reach::All).await?,
                false => Some(Located::raw(id)),
            };
            let found = found.filter(|found| found.verified || self.rules_of(to).unverified);
            let Some(located) = found else { break };
            if self.carry_form(from, to, id, located).await? {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Copies one form of a content id. Whether it was there, and sound.
    async fn carry_form(
        self: &Arc<Service>,
        from: &Namespace,
        to: &Namespace,
        id: &IoHash,
        Located { blob: hash, verified }: Located,
    ) -> Result<bool, Problem> {
        let Some(blob) = self.find_blob(from, &hash).await? else { return Ok(false) };
        // The usual repeated upload: its bytes need not be read again.
        if self.store.blob(to, &hash)?.is_none() {
            let received = self.copy(&blob)?;
            if received.hash() != hash {
                self.store.discard_damaged(from, &hash, &blob);
                // The queue is in order: once this is answered, a look-up finds it no more.
                self.commit(|done| self.store.delete_blob(from, &hash, done)).await?;
                return Ok(false);
            }
            self.keep(to, received).await?;
        }
        if hash != *id {
            self.put_form(to, *id, (blob.len(), hash, verified)).await?;
        }
        Ok(true)
    }

    /// The bytes of a blob, as if they had been received.
    fn copy(&self, blob: &Blob) -> Result<Received, Problem> {
        if blob.len() <= SMALL_BYTES_MAX as u64 {
            let bytes = blob.read(0, blob.len() as usize)?;
            let hash = IoHash::of(&bytes);
            return Ok(Received::Small(bytes, hash));
        }
        let mut writer: Box<LargeWriter> = Box::new(self.store.begin_large()?);
        blocking::in_place(|| {
            let mut at = 0;
            while at < blob.len() {
                let piece = blob.read(at, (blob.len() - at).min(PIECE_BYTES) as usize)?;
                writer.write(&piece)?;
                at += piece.len() as u64;
            }
            Ok::<_, std::io::Error>(())
        })?;
        Ok(Received::Large(writer))
    }

    /// Where the object storage has a blob, if the client asks to be sent there and the namespace
    /// permits it.
    pub(crate) async fn redirect(
        &self,
        request: &ApiRequest<'_>,
        namespace: &Namespace,
        hash: &IoHash,
    ) -> Result<Option<Response<Body>>, Problem> {
        let wanted =
            query_values(request.query, "supportsRedirect").any(|value| value.eq_ignore_ascii_case("true"));
        let Some(tier) = self.tier().filter(|_| wanted && self.rules_of(namespace).redirects) else {
            return Ok(None);
        };
        if self.heard(tier.blob_len(namespace, hash).await)?.is_none() {
            return Ok(None);
        }
        let url = self.heard(tier.blob_url(namespace, hash, REDIRECT_VALID).await)?;
        let mut response = empty(StatusCode::FOUND);
        let url = HeaderValue::try_from(url).map_err(|_| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the object storage has no usable address")
        })?;
        response.headers_mut().insert(header::LOCATION, url);
        Ok(Some(response))
    }
}
