//! Answers and problems.

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use throng_ddc::api::Media;
use throng_ddc::{Document, IoHash, Style, Value};
use throng_ddc_store::StoreError;

use crate::body::Body;
use crate::memory::Exhausted;

/// An answer, or why there is none.
pub(crate) type Answer = Result<Response<Body>, Problem>;

/// Why a request fails: RFC 9457.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) title: String,
    kind: Option<&'static str>,
    members: Vec<(&'static str, String)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The look-up found the content and its blob was gone: another form may still be stored.
    pub(crate) has_vanished: bool,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, title: impl Into<String>) -> Problem {
        let (members, headers) = (Vec::new(), Vec::new());
        Problem { status, title: title.into(), kind: None, members, headers, has_vanished: false }
    }

    pub(crate) fn bad(title: impl ToString) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, title.to_string())
    }

    pub(crate) fn missing(title: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, title)
    }

    /// A miss of what a look-up had just found: it was damaged, or removed meanwhile.
    pub(crate) fn vanished(title: impl Into<String>) -> Problem {
        Problem { has_vanished: true, ..Problem::missing(title) }
    }

    /// There is more to do than can be done. Editors try again then, unlike after a 503.
    pub(crate) fn overloaded(title: impl Into<String>) -> Problem {
        Problem::new(StatusCode::TOO_MANY_REQUESTS, title).with(header::RETRY_AFTER, "1")
    }

    /// A client that paused while another request waited for the memory that its own held.
    pub(crate) fn paused(least: u64) -> Problem {
        let title = format!(
            "less than {} KiB came in a second in which another request waited for the memory of this one; send it again",
            least >> 10
        );
        Problem::overloaded(title)
    }

    pub(crate) fn hash_mismatch(title: impl Into<String>) -> Problem {
        Problem::bad(title.into()).of_kind("http://jupiter.epicgames.com/blob/hashMismatch")
    }

    /// With a `type`, for clients that react to it.
    pub(crate) fn of_kind(mut self, kind: &'static str) -> Problem {
        self.kind = Some(kind);
        self
    }

    /// With a member more, in JSON.
    pub(crate) fn member(mut self, name: &'static str, value: impl Into<String>) -> Problem {
        self.members.push((name, value.into()));
        self
    }

    pub(crate) fn with(mut self, name: HeaderName, value: impl TryInto<HeaderValue>) -> Problem {
        self.headers.extend(value.try_into().ok().map(|value| (name, value)));
        self
    }

    /// Title and status as an object.
    pub(crate) fn to_value(&self) -> Value {
        Value::object([
            ("title", Value::string(&self.title)),
            ("status", Value::Integer(u64::from(self.status.as_u16()))),
        ])
    }

    /// The problem as JSON.
    pub(crate) fn to_json(&self) -> String {
        let mut fields = serde_json::Map::new();
        if let Some(kind) = self.kind {
            fields.insert("type".to_owned(), kind.into());
        }
        fields.insert("title".to_owned(), self.title.clone().into());
        fields.insert("status".to_owned(), self.status.as_u16().into());
        fields.extend(self.members.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())));
        serde_json::Value::Object(fields).to_string()
    }

    /// The answer, in compact binary if that is what the client reads.
    pub(crate) fn answer(self, accept: Option<&str>) -> Response<Body> {
        let binary = accept.is_some_and(|accept| accept.contains(Media::CompactBinary.name()));
        let (media, bytes) = if binary {
            (Media::CompactBinary.name(), self.to_value().encode(Style::Plain))
        } else {
            ("application/problem+json", self.to_json().into_bytes())
        };
        let mut response = reply(self.status, media, bytes);
        response.headers_mut().extend(self.headers);
        response
    }
}

impl From<Exhausted> for Problem {
    fn from(error: Exhausted) -> Problem {
        let title = format!("other requests hold the {} bytes that requests may hold", error.bytes);
        Problem::overloaded(title)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let status = match error {
            StoreError::Full
            | StoreError::Kept { .. }
            | StoreError::OverLimit { .. }
            | StoreError::AboveLimit { .. } => StatusCode::INSUFFICIENT_STORAGE,
            StoreError::Busy => {
                return Problem::overloaded(error.to_string());
            }
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Problem::new(status, error.to_string())
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Problem {
        StoreError::from(error).into()
    }
}

/// An answer with a body in memory.
pub(crate) fn reply(status: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let body = Body::bytes(body);
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// An answer with a body of this type.
pub(crate) fn with_type(body: Body, media: Media) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
    response
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    response
}

/// An object, as JSON or compact binary.
pub(crate) fn object(value: &Value, media: Media) -> Response<Body> {
    let bytes = value.encode(Style::Plain);
    if media == Media::CompactBinary {
        return reply(StatusCode::OK, media.name(), bytes);
    }
    let json = Document::parse(&bytes).map(|document| document.to_answer_json()).unwrap_or_default();
    reply(StatusCode::OK, Media::Json.name(), json)
}

/// The answer to an upload of the blob `hash`.
pub(crate) fn identifier(hash: IoHash, media: Media) -> Response<Body> {
    if media == Media::Json {
        let json = [&b"{\"identifier\":\""[..], &hash.hex_upper(), b"\"}"].concat();
        return reply(StatusCode::OK, media.name(), json);
    }
    object(&Value::object([("identifier", Value::Hash(hash))]), media)
}

/// The answer to an upload of a ref, with the blobs that are missing for it.
pub(crate) fn needs(missing: Vec<IoHash>, media: Media) -> Response<Body> {
    if missing.is_empty() && media == Media::Json {
        return reply(StatusCode::OK, media.name(), &b"{\"needs\":[]}"[..]);
    }
    object(&Value::object([("needs", Value::hashes(missing))]), media)
}

/// Refuses a form whose content has not been verified.
pub(crate) fn unverifiable() -> Problem {
    Problem::bad("this namespace takes only compressed buffers whose content can be verified")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_answers_are_what_the_objects_are_in_json() {
        let body = |mut answer: Response<Body>| answer.body_mut().step(usize::MAX).unwrap().unwrap();
        let (hash, json) = (IoHash::of(b"blob"), Media::Json);
        let value = Value::object([("identifier", Value::Hash(hash))]);
        assert_eq!(body(identifier(hash, json)), body(object(&value, json)));
        let value = Value::object([("needs", Value::hashes(Vec::new()))]);
        assert_eq!(body(needs(Vec::new(), json)), body(object(&value, json)));
    }
}
