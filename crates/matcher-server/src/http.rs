//! JSON over HTTP/1.1 and HTTP/2: one route per method of the catalogue, and notifications.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method as Verb, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use throng_admin::{
    Accepted, Framed, Guest, Intake, Metered, PacedBody, Serving, Shutdown, Tls, Transport, is_loopback_name,
    is_same_site, no_exemptions, serve_http2, sniff,
};
use throng_matcher::{Scope, check_server_name, json};
use throng_wire::matcher::{
    FRAME_BODY_BYTES_MAX, Method, REQUEST_KEY_FIELD, Reader, Status, Type, Writer, method_named, write_bytes,
};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::notify::{self, Events};
use crate::service::Handle;
use crate::tokens::Tokens;

/// Prefix of every route.
const PREFIX: &str = "/matcher/v1/";
/// Time to send a complete request head; also ends idle kept-alive connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Time for the matcher's answer: longer than any that it takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of one HTTP/2 connection at a time.
const STREAMS_MAX: u32 = 256;
/// Bytes of each body for which no memory is asked: most requests have fewer.
const BODY_FREE_BYTES: usize = 16 << 10;

pub(crate) type Answer = Response<Either<Full<Bytes>, Events>>;

/// Options of JSON over HTTP.
#[derive(Clone)]
pub struct HttpOptions {
    /// Access tokens.
    pub tokens: Tokens,
    /// Connections at a time. With more, those that make no progress yield.
    pub connections_max: usize,
    /// Requests at a time whose bodies are complete, at most 1 MiB each; more are answered with
    /// `OVERLOADED`. Bodies on their way share as much memory, beyond 16 KiB each.
    pub requests_max: usize,
    /// TLS, if it is wanted. Offers HTTP/2 if its configuration lists `h2`.
    pub tls: Option<Tls>,
}

struct Shared {
    handle: Handle,
    tokens: Tokens,
    requests: Semaphore,
    /// KiB of bodies that are not complete, beyond [`BODY_FREE_BYTES`] of each.
    bodies: Semaphore,
    listener: SocketAddr,
}

/// Serves until `shutdown` completes; connections end with it.
///
/// # Errors
/// When the listener has no address.
pub async fn serve_http(
    listener: TcpListener,
    handle: Handle,
    options: HttpOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_until(listener, handle, options, std::pin::pin!(shutdown))?.await;
    Ok(())
}

fn serve_until<'a>(
    listener: TcpListener,
    handle: Handle,
    options: HttpOptions,
    shutdown: Shutdown<'a>,
) -> io::Result<Serving<'a>> {
    let shared = Arc::new(Shared {
        handle,
        tokens: options.tokens,
        requests: Semaphore::new(options.requests_max),
        bodies: Semaphore::new(options.requests_max * (FRAME_BODY_BYTES_MAX >> 10)),
        listener: listener.local_addr()?,
    });
    let intake = Intake {
        owner: "the matcher's HTTP",
        connections_max: options.connections_max,
        exempt: no_exemptions(),
        is_for_strangers: true,
        tls: options.tls,
    };
    let serve = move |accepted: Accepted, guest| {
        let shared = Arc::clone(&shared);
        async move {
            // Without it, a reader that stopped reading keeps its slot.
            let _ = socket2::SockRef::from(accepted.socket()).set_tcp_user_timeout(Some(notify::STALL));
            match accepted {
                Accepted::Plain(stream) => connection(stream, shared, guest).await,
                Accepted::Tls(stream) => connection(*stream, shared, guest).await,
            }
        }
    };
    Ok(intake.run(listener, shutdown, serve))
}

async fn connection<S>(stream: S, shared: Arc<Shared>, guest: Guest)
where
    S: Transport,
{
    let Some((is_http2, stream)) = sniff(stream).await else { return };
    if is_http2 {
        let answer = move |request| {
            let shared = Arc::clone(&shared);
            async move { answer(&shared, request).await.unwrap_or_else(Refusal::answer).map(Framed::new) }
        };
        serve_http2(stream, guest, STREAMS_MAX, answer).await;
        return;
    }
    let stream = Metered::new(stream, guest.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, guest) = (Arc::clone(&shared), guest.clone());
        async move {
            let mut request = request.map(|body| PacedBody::new(body, &guest));
            request.extensions_mut().insert(guest.clone());
            let answer = answer(&shared, request).await.unwrap_or_else(Refusal::answer);
            guest.complete();
            guest.rest();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    // The peer decides how a connection ends.
    let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

/// The answer to a request, or the refusal of it.
async fn answer<B>(shared: &Shared, mut request: Request<B>) -> Result<Answer, Refusal>
where
    B: Body<Data = Bytes, Error = io::Error>,
{
    refuse_strange_pages(shared, &request)?;
    let caller = named(request.headers(), "x-server-id")?.unwrap_or_default().to_owned();
    let Some(name) = request.uri().path().strip_prefix(PREFIX).map(str::to_owned) else {
        return Err(refusal(Status::UnknownMethod, format!("the matcher's routes begin with {PREFIX}")));
    };
    if name == "notify" && request.method() == Verb::GET {
        let srv = notify::whose(&request).unwrap_or(caller);
        authorise(shared, token(request.headers()), &srv)?;
        return notify::answer(&shared.handle, &srv, &mut request);
    }
    let srv = caller;
    let token = token(request.headers()).to_owned();
    // Where the header does not say who calls, the body may, which strangers need not send.
    if !srv.is_empty() || !shared.tokens.knows(&token) {
        authorise(shared, &token, &srv)?;
    }
    let Some(method) = method_named(&name) else {
        return Err(refusal(Status::UnknownMethod, format!("no method is called `{name}`")));
    };
    if request.method() != Verb::POST {
        return Err(refusal(Status::UnknownMethod, "methods are called with POST"));
    }
    let key = named(request.headers(), "idempotency-key")?.map(request_key);
    let (body, _held) = read(request, &shared.bodies).await?;
    // The client decides when its body is complete, and takes no slot before.
    let Ok(_slot) = shared.requests.try_acquire() else {
        return Err(refusal(Status::Overloaded, "too many requests at a time; try again"));
    };
    let mut encoded = Vec::with_capacity(body.len());
    if !body.is_empty() {
        json::encode(method.request, &body, &mut encoded).map_err(|why| refusal(Status::Invalid, why))?;
    }
    let srv = if srv.is_empty() { server_of_role(method, &encoded) } else { srv };
    let scope = authorise(shared, &token, &srv)?;
    if let Some(key) = key {
        write_bytes(&mut encoded, REQUEST_KEY_FIELD, &key);
    }
    let asked = shared.handle.ask(&srv, scope, method.number, encoded);
    let Ok((status, body)) = tokio::time::timeout(ANSWER_TIMEOUT, asked).await else {
        return Err(refusal(Status::Overloaded, "no answer in time; what became of the request is unknown"));
    };
    if status != Status::Ok {
        return Ok(reply(status.http(), json::problem(status.name(), &body)));
    }
    let mut text = String::new();
    json::decode(method.response, &body, &mut text);
    Ok(reply(200, text))
}

/// Pages of other sites reach a listener of this machine through the browser that runs them, and
/// may point a name of their own at it.
fn refuse_strange_pages<B>(shared: &Shared, request: &Request<B>) -> Result<(), Refusal> {
    let headers = request.headers();
    // HTTP/2 names the host in the request's target.
    let authority = request.uri().authority().map(hyper::http::uri::Authority::as_str);
    let host = authority.or_else(|| headers.get(header::HOST)?.to_str().ok());
    let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    if origin.is_some_and(|origin| !is_same_site(origin, host)) {
        return Err(refusal(Status::Forbidden, "pages of other sites may not call the matcher"));
    }
    let local = shared.tokens.is_open() && shared.listener.ip().is_loopback();
    if local && !host.is_none_or(is_loopback_name) {
        return Err(refusal(Status::Forbidden, "without tokens the matcher is reached as localhost only"));
    }
    Ok(())
}

/// The token that a request carries, empty without one.
fn token(headers: &HeaderMap) -> &str {
    let given = text(headers, "authorization").split_once(' ');
    given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map_or("", |(_, token)| token.trim())
}

fn authorise(shared: &Shared, token: &str, srv: &str) -> Result<Scope, Refusal> {
    if check_server_name(srv).is_err() {
        return Err(refusal(Status::TooLarge, "the server's id is longer than 128 bytes"));
    }
    shared.tokens.scope(token, srv).ok_or_else(|| {
        let why = "no such token for this server; send Authorization: Bearer TOKEN, and X-Server-Id";
        refusal(Status::Unauthenticated, why)
    })
}

/// Reads a body, with the memory for it beyond [`BODY_FREE_BYTES`].
async fn read<B>(
    request: Request<B>,
    bodies: &Semaphore,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Refusal>
where
    B: Body<Data = Bytes, Error = io::Error>,
{
    let (mut whole, mut held) = (Vec::new(), None::<SemaphorePermit<'_>>);
    let mut body = std::pin::pin!(request.into_body());
    let error = loop {
        let data = match body.frame().await {
            None => return Ok((whole, held)),
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(error)) => break error,
        };
        let len = whole.len() + data.len();
        if len > FRAME_BODY_BYTES_MAX {
            let why = format!("the body is longer than {FRAME_BODY_BYTES_MAX} bytes; send less at a time");
            return Err(refusal(Status::TooLarge, why));
        }
        let wanted = len.saturating_sub(BODY_FREE_BYTES).div_ceil(1 << 10);
        let lacking = wanted.saturating_sub(held.as_ref().map_or(0, SemaphorePermit::num_permits));
        if lacking > 0 {
            let Ok(more) = bodies.try_acquire_many(lacking as u32) else {
                return Err(refusal(
                    Status::Overloaded,
                    "other requests hold the memory for bodies; try again",
                ));
            };
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
        }
        whole.extend_from_slice(&data);
    };
    Err(match error.kind() == io::ErrorKind::TimedOut {
        true => refusal(Status::Timeout, "the body did not arrive in time; nothing was done"),
        false => refusal(Status::Invalid, "the body ended early"),
    })
}

/// Caller if no header says so: the server of the role that the request is about.
fn server_of_role(method: &Method, body: &[u8]) -> String {
    let named =
        |field: &&throng_wire::matcher::FieldDef| matches!(field.ty, Type::Msg(m) if m.name == "RoleInfo");
    let role = method.request.fields.iter().find(named).and_then(|field| {
        let role = Reader::new(body).ok()?.nested(field.number).ok()?;
        role.str(2).ok().map(str::to_owned)
    });
    role.unwrap_or_default()
}

/// Any text makes a request key: 32 hex digits, with or without dashes, as they are, anything else
/// by its hash.
fn request_key(text: &str) -> [u8; 16] {
    let plain = text.replace('-', "");
    // A sign is no digit.
    if plain.len() == 32
        && !plain.starts_with('+')
        && let Ok(key) = u128::from_str_radix(&plain, 16)
    {
        return key.to_be_bytes();
    }
    // FNV-1a over 128 bits: keys of one caller, which has no reason to make them collide.
    let hash = text.bytes().fold(0x6C62_272E_07BB_0142_62B8_2175_6295_C58D_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013B)
    });
    hash.to_be_bytes()
}

/// A header that says who calls or which call it is. One that cannot be read must not count as
/// none: the call would be somebody else's, or have its effect twice.
fn named<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| !text.trim().is_empty());
    match text {
        Some(text) if values.all(|other| other == value) => Ok(Some(text)),
        Some(_) => Err(refusal(Status::Invalid, format!("the header `{name}` has several values; send one"))),
        None => {
            let why =
                format!("the header `{name}` is empty or not visible ASCII; send such text, or leave it out");
            Err(refusal(Status::Invalid, why))
        }
    }
}

/// A header's text, empty when it is missing.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// A refusal by the edge.
pub(crate) struct Refusal {
    status: Status,
    message: String,
}

impl Refusal {
    /// Worded as the matcher words its own.
    fn answer(self) -> Answer {
        let body = Writer::new().str(1, &self.message).into_bytes();
        reply(self.status.http(), json::problem(self.status.name(), &body))
    }
}

pub(crate) fn refusal(status: Status, message: impl Into<String>) -> Refusal {
    Refusal { status, message: message.into() }
}

fn reply(code: u16, text: String) -> Answer {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(text))));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::request_key;

    #[test]
    fn keys_of_different_texts_differ() {
        let hex = "0123456789abcdef0123456789abcdef";
        assert_eq!(request_key(hex), 0x0123_4567_89AB_CDEF_0123_4567_89AB_CDEF_u128.to_be_bytes());
        assert_eq!(request_key("01234567-89ab-cdef-0123-456789abcdef"), request_key(hex));
        assert_ne!(request_key(&hex.replacen('0', "+", 1)), request_key(hex));
        assert_ne!(request_key("order 66"), request_key("order 67"));
    }
}
