//! Operations of clients, as requests.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use hyper::{Request, Response, StatusCode};
use throng_ddc::{Document, IoHash, Key, Style, Value};
use throng_ddc_server::{Listener, Pieces, Service};
use throng_stdx::Rng;

pub(super) const NAMESPACE: &str = "game";
pub(super) const BUCKET: &str = "assets";

/// An operation of a client.
#[derive(Clone, Debug)]
pub(super) enum Op {
    PutBlob(Bytes),
    /// An upload that breaks off or is not what it says it is.
    PutBroken(Bytes, bool),
    /// Raw data, and the compressed buffer that holds it.
    PutCompressed(IoHash, Bytes),
    PutRef(Key, Bytes),
    /// A blob, and the ref that names it alone.
    PutRaw(Key, Bytes),
    Batch(Vec<(Key, Bytes)>),
    /// Blobs that are put, and others that are read.
    BlobBatch(Vec<Bytes>, Vec<IoHash>),
    Finalise(Key, IoHash),
    DeleteRef(Key),
    DeleteBlob(IoHash),
    DeleteForms(IoHash),
    GetBlob(IoHash),
    HeadBlob(IoHash),
    GetPart(IoHash, u64, u64),
    GetForm(IoHash),
    GetRef(Key),
    GetPackage(Key),
}

/// Answer as a client sees it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// False if the answer broke off.
    pub(super) is_whole: bool,
}

impl Seen {
    /// Attachments that a put or a finalisation still needs; `None` if it was refused.
    pub(super) fn needs(&self) -> Option<usize> {
        let json: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        (self.status == StatusCode::OK).then(|| json["needs"].as_array().map(Vec::len))?
    }

    /// The answer to each operation of a batch on blobs: a string, or the status of a problem.
    pub(super) fn blob_results(&self) -> Vec<Result<String, u64>> {
        let results: Vec<serde_json::Value> = serde_json::from_slice(&self.body).expect("a list");
        let result = |result: serde_json::Value| match result {
            serde_json::Value::String(content) => Ok(content),
            problem => Err(problem["status"].as_u64().expect("a status")),
        };
        results.into_iter().map(result).collect()
    }

    /// The same for each operation of a batch.
    pub(super) fn batch_needs(&self, count: usize) -> Vec<Option<usize>> {
        let mut needs = vec![None; count];
        let document = match (self.status, Document::parse(&self.body)) {
            (StatusCode::OK, Ok(document)) => document,
            _ => return needs,
        };
        for result in document.get("results").expect("the answer has results").iter() {
            let integer = |name| result.get(name).and_then(|field| field.integer());
            let place = integer("opId").expect("an id") as usize;
            if integer("statusCode") == Some(200) {
                let response = result.get("response").expect("an answer");
                needs[place] = response.get("needs").map(|needs| needs.iter().count());
            }
        }
        needs
    }
}

impl Op {
    /// Keys whose value it may change, with the object that each then has.
    pub(super) fn writes(&self) -> Vec<(Key, Option<IoHash>)> {
        match self {
            Op::PutRef(key, object) => vec![(*key, Some(IoHash::of(object)))],
            Op::PutRaw(key, bytes) => vec![(*key, Some(IoHash::of(&raw_object(bytes))))],
            Op::Batch(puts) => puts.iter().map(|(key, object)| (*key, Some(IoHash::of(object)))).collect(),
            Op::Finalise(key, object) => vec![(*key, Some(*object))],
            Op::DeleteRef(key) => vec![(*key, None)],
            _ => Vec::new(),
        }
    }

    /// Reports whether it only reads.
    pub(super) fn is_read(&self) -> bool {
        matches!(
            self,
            Op::GetBlob(_)
                | Op::HeadBlob(_)
                | Op::GetPart(..)
                | Op::GetForm(_)
                | Op::GetRef(_)
                | Op::GetPackage(_)
        )
    }

    pub(super) fn request(&self, rng: &mut Rng) -> Request<Pieces> {
        let reference = |key: &Key| format!("/api/v1/refs/{NAMESPACE}/{BUCKET}/{key}");
        let blob = |hash: &IoHash| format!("/api/v1/blobs/{NAMESPACE}/{hash}");
        let form = |id: &IoHash| format!("/api/v1/compressed-blobs/{NAMESPACE}/{id}");
        let (octets, cb, comp) = ("application/octet-stream", "application/x-ue-cb", "application/x-ue-comp");
        let json = "application/json";
        let none = Bytes::new();
        let mut breaks_off = false;
        let (method, path, kind, body) = match self {
            Op::PutBlob(bytes) => ("PUT", blob(&IoHash::of(bytes)), octets, bytes.clone()),
            Op::PutBroken(bytes, is_short) => {
                breaks_off = *is_short;
                let name = if *is_short { IoHash::of(bytes) } else { IoHash::of(b"something else") };
                ("PUT", blob(&name), octets, bytes.clone())
            }
            Op::PutCompressed(raw, buffer) => ("PUT", form(raw), comp, buffer.clone()),
            Op::PutRef(key, object) => ("PUT", reference(key), cb, object.clone()),
            Op::PutRaw(key, bytes) => ("PUT", reference(key), octets, bytes.clone()),
            Op::Batch(puts) => ("POST", format!("/api/v1/refs/{NAMESPACE}"), cb, batch(puts)),
            Op::BlobBatch(puts, gets) => ("POST", "/api/v1/blobs".to_owned(), json, blob_batch(puts, gets)),
            Op::Finalise(key, hash) => ("POST", format!("{}/finalize/{hash}", reference(key)), cb, none),
            Op::DeleteRef(key) => ("DELETE", reference(key), cb, none),
            Op::DeleteBlob(hash) => ("DELETE", blob(hash), cb, none),
            Op::DeleteForms(id) => ("DELETE", form(id), cb, none),
            Op::GetBlob(hash) | Op::GetPart(hash, ..) => ("GET", blob(hash), cb, none),
            Op::HeadBlob(hash) => ("HEAD", blob(hash), cb, none),
            Op::GetForm(id) => ("GET", form(id), cb, none),
            Op::GetRef(key) => ("GET", reference(key), cb, none),
            Op::GetPackage(key) => ("GET", format!("{}.uecbpkg", reference(key)), cb, none),
        };
        let mut request = Request::builder().method(method).uri(path).header("Host", "localhost");
        if !matches!(method, "GET" | "HEAD" | "DELETE") {
            request = request
                .header("Content-Type", kind)
                .header("X-Jupiter-IoHash", IoHash::of(&body).to_string());
        }
        request = match self {
            Op::GetRef(_) => request.header("Accept", cb),
            Op::Batch(_) => request.header("Accept", cb),
            Op::PutRef(..) | Op::PutRaw(..) | Op::Finalise(..) => request.header("Accept", json),
            Op::GetPart(_, start, end) => request.header("Range", format!("bytes={start}-{}", end - 1)),
            _ => request.header("Accept", "*/*"),
        };
        request.body(pieces(&body, breaks_off, rng)).expect("a request")
    }

    pub(super) async fn ask(service: Arc<Service>, request: Request<Pieces>) -> Seen {
        match service.exchange(Listener::Internal, request).await {
            Ok(response) => {
                let status = response.status();
                Seen { status, body: Response::into_body(response), is_whole: true }
            }
            Err(_) => Seen { status: StatusCode::OK, body: Bytes::new(), is_whole: false },
        }
    }
}

/// The object that the cache makes of raw data under a ref.
pub(super) fn raw_object(bytes: &[u8]) -> Vec<u8> {
    Value::object([
        ("RawHash", Value::BinaryAttachment(IoHash::of(bytes))),
        ("RawSize", Value::Integer(bytes.len() as u64)),
    ])
    .encode(Style::Separate)
}

fn batch(puts: &[(Key, Bytes)]) -> Bytes {
    let op = |(number, (key, object)): (usize, &(Key, Bytes))| {
        Value::object([
            ("opId", Value::Integer(number as u64)),
            ("op", Value::string("PUT")),
            ("bucket", Value::string(BUCKET)),
            ("key", Value::string(key.as_str())),
            ("payload", Value::Document(object.to_vec())),
            ("payloadHash", Value::Hash(IoHash::of(object))),
        ])
    };
    let ops = puts.iter().enumerate().map(op).collect();
    Value::object([("ops", Value::Array(ops))]).encode(Style::Plain).into()
}

fn blob_batch(puts: &[Bytes], gets: &[IoHash]) -> Bytes {
    let put = |bytes: &Bytes| {
        let (id, content) = (IoHash::of(bytes).to_string(), STANDARD.encode(bytes));
        serde_json::json!({ "op": "PUT", "namespace": NAMESPACE, "id": id, "content": content })
    };
    let get = |id: &IoHash| serde_json::json!({ "op": "GET", "namespace": NAMESPACE, "id": id.to_string() });
    let operations: Vec<_> = puts.iter().map(put).chain(gets.iter().map(get)).collect();
    serde_json::json!({ "operations": operations }).to_string().into()
}

/// A body that arrives in pieces, with pauses.
fn pieces(body: &Bytes, breaks_off: bool, rng: &mut Rng) -> Pieces {
    let step = [97, 1_000, 1 << 20][rng.below(3) as usize].max(body.len() / 8);
    let mut pieces: Vec<(u64, std::io::Result<Bytes>)> =
        body.chunks(step.max(1)).map(|piece| (rng.below(3), Ok(Bytes::copy_from_slice(piece)))).collect();
    if breaks_off {
        pieces.pop();
        pieces.push((0, Err(std::io::ErrorKind::ConnectionReset.into())));
    }
    stream::iter(pieces)
        .then(|(pauses, piece)| async move {
            for _ in 0..pauses {
                tokio::task::yield_now().await;
            }
            piece
        })
        .boxed()
}
