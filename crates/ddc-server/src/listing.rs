//! Requests that name several objects.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header;
use throng_ddc::api::{Family, Media, query_values};
use throng_ddc::policy::Action;
use throng_ddc::{IoHash, Namespace, Value};

use crate::answer::{Answer, Problem, object};
use crate::origin::Reach;
use crate::service::{ApiRequest, Service, check_hash, json};
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
        for text in query_values(&request.query, "id") {
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
        let mut missing = Vec::new();
        for id in ids {
            let there = match family {
                Family::Compressed => self.locate(namespace, &id, Reach::All).await?.is_some(),
                _ => self.blob_len(namespace, &id).await?.is_some(),
            };
            if !there {
                missing.push(id);
            }
        }
        let value = Value::object([("needs", Value::hashes(missing))]);
        Ok(object(&value, request.answer_media(None)))
    }

    pub(crate) async fn blob_batch(self: &Arc<Service>, request: &mut ApiRequest<'_>) -> Answer {
        request.upload.limit(LIST_BYTES_MAX)?;
        let body = request.upload.all().await?;
        let document: serde_json::Value = serde_json::from_slice(&body).map_err(Problem::bad)?;
        let member = |value: &serde_json::Value, name: &str| {
            let object = value.as_object()?;
            object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
        };
        let operations = member(&document, "operations").and_then(|value| value.as_array().cloned());
        let operations = operations.ok_or_else(|| Problem::bad("there is no array named operations"))?;
        let mut planned = Vec::new();
        for operation in &operations {
            let text =
                |name: &str| member(operation, name).and_then(|value| value.as_str().map(str::to_owned));
            let op = text("op").unwrap_or_default().to_ascii_uppercase();
            let namespace: Namespace = text("namespace").unwrap_or_default().parse().map_err(Problem::bad)?;
            let action = match op.as_str() {
                "GET" | "HEAD" => Action::ReadObject,
                "PUT" => Action::WriteObject,
                "DELETE" => Action::DeleteObject,
                _ => return Err(Problem::bad("op is GET, HEAD, PUT or DELETE")),
            };
            self.permit(request, action, &namespace, None)?;
            let content =
                text("content").map(|content| STANDARD.decode(content)).transpose().map_err(Problem::bad)?;
            let id = match text("id") {
                Some(id) => Some(id.parse::<IoHash>().map_err(Problem::bad)?),
                None if op == "PUT" => None,
                None => return Err(Problem::bad("an operation has no id")),
            };
            planned.push((op, namespace, id, content));
        }
        let mut results = Vec::new();
        for (op, namespace, id, content) in planned {
            let hash = id.unwrap_or_default();
            results.push(match op.as_str() {
                "GET" => {
                    let blob = self
                        .find_blob(&namespace, &hash)
                        .await?
                        .ok_or_else(|| Problem::missing("no such blob"))?;
                    let bytes = blob.read(0, usize::try_from(blob.len()).unwrap_or(usize::MAX))?;
                    STANDARD.encode(bytes).into()
                }
                "HEAD" if self.blob_len(&namespace, &hash).await?.is_some() => serde_json::Value::Null,
                "HEAD" => format!("{hash:X}").into(),
                "PUT" => {
                    let bytes = Bytes::from(content.ok_or_else(|| Problem::bad("a PUT has no content"))?);
                    let found = IoHash::of(&bytes);
                    check_hash(id, found)?;
                    self.keep(&namespace, Received::Small(bytes, found)).await?;
                    self.fill_fallback(request, &namespace, &found, false).await?;
                    format!("{found:X}").into()
                }
                _ => {
                    self.delete_blob(&namespace, &hash).await?;
                    serde_json::Value::Null
                }
            });
        }
        Ok(json(&serde_json::Value::Array(results)))
    }
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
