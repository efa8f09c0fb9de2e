//! Batches of operations on refs.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use hyper::StatusCode;
use throng_ddc::api::{Media, RefName};
use throng_ddc::batch::{Op, OpAction, ResponseHead, frame_responses, read_request};
use throng_ddc::policy::Action;
use throng_ddc::{Document, Kind, Namespace, Style, Value};
use throng_ddc_store::RefValue;

use crate::answer::{Answer, Problem, with_type};
use crate::batch::{BATCH_BYTES_MAX, Budget, chains};
use crate::body::Body;
use crate::memory::SMALL_BYTES_MAX;
use crate::preconditions::Preconditions;
use crate::refs::{Object, check_bucket, object_gone};
use crate::service::{ApiRequest, Service};

impl Service {
    pub(crate) async fn batch(
        self: &Arc<Service>,
        request: &mut ApiRequest<'_>,
        namespace: &Namespace,
    ) -> Answer {
        request.content_type(&[Media::CompactBinary])?;
        request.upload.limit(BATCH_BYTES_MAX)?;
        let body = request.upload.all().await?;
        let document = Document::parse(&body).map_err(Problem::bad)?;
        let ops = read_request(&document).map_err(Problem::bad)?;
        for op in &ops {
            let action = match op.action {
                OpAction::Put { .. } => Action::WriteObject,
                _ => Action::ReadObject,
            };
            self.permit(request, action, namespace, Some(&op.bucket))?;
        }
        drop(body);
        let overwrite = self.rules_of(namespace).overwrite_refs;
        let budget = Budget::new(&self.memory, request.upload.address());
        let chains = chains(ops, |op| (op.bucket.clone(), op.key)).into_iter();
        let chains = chains.map(|chain| self.run_chain(namespace, chain, overwrite, &budget));
        let mut results: Vec<(usize, ResponseHead, Body)> =
            stream::iter(chains).buffer_unordered(self.chains_max()).concat().await;
        results.sort_by_key(|(place, ..)| *place);
        let heads: Vec<ResponseHead> = results.iter().map(|(_, head, _)| *head).collect();
        let mut pieces = frame_responses(&heads).into_iter().map(Bytes::from);
        let mut answer = Body::bytes(pieces.next().unwrap_or_default());
        for ((.., response), piece) in results.into_iter().zip(pieces) {
            answer.append(response);
            answer.push_bytes(piece);
        }
        budget.finish()?.into_iter().for_each(|held| answer.hold(held));
        Ok(with_type(answer, Media::CompactBinary))
    }

    /// Runs the operations of a batch on one key, one after the other. Gives each result with the
    /// operation's place in the batch.
    async fn run_chain(
        self: &Arc<Service>,
        namespace: &Namespace,
        chain: Vec<(usize, Op)>,
        overwrite: bool,
        budget: &Budget<'_>,
    ) -> Vec<(usize, ResponseHead, Body)> {
        let mut results = Vec::with_capacity(chain.len());
        for (place, op) in chain {
            let id = op.id;
            let (status, mut response) = match self.run(namespace, op, overwrite, budget).await {
                Ok(done) => done,
                Err(problem) => (problem.status, document(&problem.to_value())),
            };
            // All objects are stored, and checked, without a name.
            let kind = response.take_byte().ok().flatten().unwrap_or(Kind::Object as u8);
            let head = ResponseHead { id, status: status.as_u16(), kind, bytes: response.len() };
            results.push((place, head, response));
        }
        results
    }

    /// Runs an operation. The response is a document, whose first byte can be taken.
    async fn run(
        self: &Arc<Service>,
        namespace: &Namespace,
        op: Op,
        overwrite: bool,
        budget: &Budget<'_>,
    ) -> Result<(StatusCode, Body), Problem> {
        let name = RefName { namespace: namespace.clone(), bucket: op.bucket, key: op.key };
        match op.action {
            OpAction::Get { resolve } => {
                let value = self.finalised_value(&name).await?;
                let mut response = Body::default();
                if let Some(object) = &value.inline {
                    budget.take(object.len() as u64)?;
                    budget.hold(object.len() as u64).await?.keep(object.len() as u64);
                    response.push_bytes(object.clone());
                } else {
                    let blob = self.find_blob(namespace, &value.object).await?.ok_or_else(object_gone)?;
                    budget.take(blob.len())?;
                    if Service::is_pushed_in_memory(&blob) {
                        budget.hold(blob.len()).await?.keep(blob.len());
                    }
                    self.push_whole(&mut response, namespace, &value.object, blob).await?;
                }
                if resolve && !self.is_complete_within(namespace, &value, response.len(), budget).await? {
                    return Err(Problem::missing("something that the ref refers to is gone"));
                }
                self.touch(&name);
                Ok((StatusCode::OK, response))
            }
            OpAction::Head { resolve } => {
                let found = self.reference(&name).await?;
                let there = match found.filter(|value| value.finalised) {
                    Some(value) if resolve => {
                        let len = match &value.inline {
                            Some(object) => Some(object.len() as u64),
                            None => self.blob_len(namespace, &value.object).await?,
                        };
                        match len {
                            Some(len) => self.is_complete_within(namespace, &value, len, budget).await?,
                            None => false,
                        }
                    }
                    found => found.is_some(),
                };
                let status = if there { StatusCode::OK } else { StatusCode::NOT_FOUND };
                Ok((status, document(&Value::object([("exists", Value::Bool(there))]))))
            }
            OpAction::Put { payload, hash } => {
                check_bucket(&name)?;
                let payload = payload.ok_or_else(|| Problem::bad("a PUT has no payload"))?;
                let object = Object::of(payload.into());
                if hash != Some(object.hash) {
                    return Err(Problem::hash_mismatch("the payload does not hash to payloadHash"));
                }
                match self.store_ref(&name, object, overwrite, &Preconditions::default()).await? {
                    Ok(needs) => {
                        Ok((StatusCode::OK, document(&Value::object([("needs", Value::hashes(needs))]))))
                    }
                    Err(existing) => {
                        budget.take(existing.len() as u64)?;
                        budget.hold(existing.len() as u64).await?.keep(existing.len() as u64);
                        Ok((StatusCode::CONFLICT, Body::bytes(existing)))
                    }
                }
            }
        }
    }

    /// Reports whether everything that a ref reaches is stored. Its object, of `len` bytes, is read
    /// into memory.
    async fn is_complete_within(
        &self,
        namespace: &Namespace,
        value: &RefValue,
        len: u64,
        budget: &Budget<'_>,
    ) -> Result<bool, Problem> {
        // Larger ones take their memory when they are read.
        let _held = budget.hold(if len > SMALL_BYTES_MAX as u64 { 0 } else { len }).await?;
        self.is_complete(namespace, value).await
    }
}

/// A small object as a body.
fn document(value: &Value) -> Body {
    Body::bytes(value.encode(Style::Plain))
}
