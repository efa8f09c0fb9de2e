//! Requests that name several objects.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hyper::header;
use throng_ddc::api::{Family, Media, query_values};
use throng_ddc::batch::{BatchError, OPS_MAX};
use throng_ddc::policy::Action;
use throng_ddc::{IoHash, Namespace, Value};

use crate::answer::{Answer, Problem, object, with_type};
use crate::batch::{Budget, chains};
use crate::body::Body;
use crate::origin::Reach;
use crate::service::{ApiRequest, Service, check_hash};
use crate::upload::Received;

/// Bytes of a request that lists hashes or operations.
const LIST_BYTES_MAX: u64 = 16 << 20;

impl Service {
    pub(crate) async fn exists(
        &self,
        request: &mut ApiRequest<'_>,
        family: Family,
        namespace: &Namespace,
    ) -> Answer {
        let mut ids = Vec::new();
        for text in query_values(request.query, "id") {
            ids.push(text.parse::<IoHash>().map_err(Problem::bad)?);
        }
        request.upload.limit(LIST_BYTES_MAX)?;
        let body = request.upload.all().await?;
        if ids.is_empty() && !body.is_empty() {
            ids = if request.header(header::CONTENT_TYPE).and_then(Media::parse) == Some(Media::CompactBinary)
            {
                hashes_of_array(&body).ok_or_else(|| Problem::bad("the body is no array of hashes"))?
            } else {
                let texts: Vec<String> = serde_json::from_slice(&body).map_err(Problem::bad)?;
                texts.iter().map(|text| text.parse()).collect::<Result<_, _>>().map_err(Problem::bad)?
            };
        }
        let lookups = ids.into_iter().map(|id| async move {
            let there = match family {
                Family::Compressed => self.locate(namespace, &id, Reach::All).await?.is_some(),
                _ => self.blob_len(namespace, &id).await?.is_some(),
            };
            Ok::<_, Problem>((!there).then_some(id))
        });
        let missing: Vec<_> = stream::iter(lookups).buffered(self.chains_max()).try_collect().await?;
        let missing: Vec<IoHash> = missing.into_iter().flatten().collect();
        let value = Value::object([("needs", Value::hashes(missing))]);
        Ok(object(&value, request.answer_media(None)))
    }

    /// Runs a batch of operations on blobs, those on one blob in their order. One that fails is
    /// answered with its problem and takes none of the others along.
    pub(crate) async fn blob_batch(self: &Arc<Service>, request: &mut ApiRequest<'_>) -> Answer {
        request.upload.limit(LIST_BYTES_MAX)?;
        let body = request.upload.all().await?;
        let ops = read_operations(&body)?;
        drop(body);
        let request = &*request;
        for op in &ops {
            let action = match op.what {
                What::Get | What::Head => Action::ReadObject,
                What::Put(_) => Action::WriteObject,
                What::Delete => Action::DeleteObject,
            };
            self.permit(request, action, &op.namespace, None)?;
        }
        let budget = Budget::new(&self.memory, request.upload.address());
        let chains = chains(ops, |op| (op.namespace.clone(), op.id)).into_iter();
        let chains = chains.map(|chain| self.run_blob_chain(request, chain, &budget));
        let mut results: Vec<(usize, Body)> =
            stream::iter(chains).buffer_unordered(self.chains_max()).concat().await;
        results.sort_by_key(|(place, _)| *place);
        let mut answer = Body::default();
        for (place, (_, element)) in results.into_iter().enumerate() {
            answer.push_bytes(Bytes::from_static(if place == 0 { b"[" } else { b"," }));
            answer.append(element);
        }
        answer.push_bytes(Bytes::from_static(if answer.len() == 0 { b"[]" } else { b"]" }));
        budget.finish()?.into_iter().for_each(|held| answer.hold(held));
        Ok(with_type(answer, Media::Json))
    }

    /// Runs the operations of a batch on one blob, one after the other. Gives the JSON of each
    /// result with the operation's place in the batch.
    async fn run_blob_chain(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        chain: Vec<(usize, BlobOp)>,
        budget: &Budget<'_>,
    ) -> Vec<(usize, Body)> {
        let mut results = Vec::with_capacity(chain.len());
        for (place, op) in chain {
            let element = self.run_blob_op(request, op, budget).await;
            results.push((place, element.unwrap_or_else(|problem| Body::bytes(problem.to_json()))));
        }
        results
    }

    async fn run_blob_op(
        self: &Arc<Service>,
        request: &ApiRequest<'_>,
        op: BlobOp,
        budget: &Budget<'_>,
    ) -> Result<Body, Problem> {
        let BlobOp { namespace, id, what } = op;
        let missing = || Problem::missing("no such blob");
        let null = || Body::bytes(Bytes::from_static(b"null"));
        let name = || Body::bytes(format!("\"{id:X}\""));
        Ok(match what {
            What::Get => {
                let blob = self.find_blob(&namespace, &id).await?.ok_or_else(missing)?;
                budget.take(blob.len())?;
                // The bytes and their Base64.
                let encoded_len = 4 * blob.len().div_ceil(3) + 2;
                let held = budget.hold(blob.len() + encoded_len).await?;
                let bytes = self.checked_bytes(&namespace, &id, &blob).await?.ok_or_else(missing)?;
                let mut encoded = String::with_capacity(encoded_len as usize);
                encoded.push('"');
                STANDARD.encode_string(&bytes, &mut encoded);
                encoded.push('"');
                drop(bytes);
                held.keep(encoded_len);
                Body::bytes(encoded)
            }
            What::Head if self.blob_len(&namespace, &id).await?.is_some() => null(),
            What::Head => name(),
            What::Put(content) => {
                self.keep(&namespace, Received::Small(content, id)).await?;
                self.fill_fallback(request, &namespace, &id, false).await?;
                name()
            }
            What::Delete => {
                self.delete_blob(&namespace, &id).await?;
                null()
            }
        })
    }
}

/// An operation of a batch.
struct BlobOp {
    namespace: Namespace,
    id: IoHash,
    what: What,
}

enum What {
    Get,
    Head,
    /// The content, which has the hash.
    Put(Bytes),
    Delete,
}

/// Reads the operations of a batch. Names of members may be written in either case.
fn read_operations(body: &[u8]) -> Result<Vec<BlobOp>, Problem> {
    let document: serde_json::Value = serde_json::from_slice(body).map_err(Problem::bad)?;
    let operations = member(&document, "operations").and_then(serde_json::Value::as_array);
    let operations = operations.ok_or_else(|| Problem::bad("there is no array named operations"))?;
    if operations.len() > OPS_MAX {
        return Err(Problem::bad(BatchError::TooMany(operations.len())));
    }
    operations.iter().map(read_operation).collect()
}

fn read_operation(operation: &serde_json::Value) -> Result<BlobOp, Problem> {
    let text = |name: &str| member(operation, name).and_then(serde_json::Value::as_str);
    let op = text("op").unwrap_or_default().to_ascii_uppercase();
    let namespace: Namespace = text("namespace").unwrap_or_default().parse().map_err(Problem::bad)?;
    let id = text("id").map(str::parse::<IoHash>).transpose().map_err(Problem::bad)?;
    let what = match op.as_str() {
        "GET" => What::Get,
        "HEAD" => What::Head,
        "DELETE" => What::Delete,
        "PUT" => {
            let content = text("content").ok_or_else(|| Problem::bad("a PUT has no content"))?;
            let content = Bytes::from(STANDARD.decode(content).map_err(Problem::bad)?);
            let found = IoHash::of(&content);
            check_hash(id, found)?;
            return Ok(BlobOp { namespace, id: found, what: What::Put(content) });
        }
        _ => return Err(Problem::bad("op is GET, HEAD, PUT or DELETE")),
    };
    let id = id.ok_or_else(|| Problem::bad("an operation has no id"))?;
    Ok(BlobOp { namespace, id, what })
}

fn member<'v>(value: &'v serde_json::Value, name: &str) -> Option<&'v serde_json::Value> {
    value.as_object()?.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// The hashes of a compact binary array.
fn hashes_of_array(bytes: &[u8]) -> Option<Vec<IoHash>> {
    let unreadable = throng_ddc::check(bytes).iter().any(|defect| {
        use throng_ddc::Defect::{InvalidType, OutOfBounds, Padding, TooDeep};
        [OutOfBounds, InvalidType, Padding, TooDeep].contains(&defect)
    });
    let (field, _) = throng_ddc::Field::read(bytes).filter(|(field, _)| !unreadable && field.is_array())?;
    field.iter().map(|item| item.hash().or_else(|| item.text()?.parse().ok())).collect()
}
