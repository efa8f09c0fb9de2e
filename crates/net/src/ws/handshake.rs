//! WebSocket handshake: requests parsed and checked, responses written.

use std::fmt::Write as _;

use tungstenite::handshake::derive_accept_key;
use tungstenite::handshake::machine::TryParse;
use tungstenite::handshake::{client, server};
use tungstenite::http::{HeaderMap, HeaderValue, Method};

use crate::config::WsPolicy;

/// Longest request or response head. Browsers with fat cookies stay below half of it.
pub const HEAD_BYTES_MAX: usize = 8192;

/// An upgrade request that may be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Path of the URL, without the query.
    pub path: String,
    /// The value that the response must prove to have seen.
    key: String,
    /// `X-Forwarded-For`, all lines of it.
    pub(super) forwarded_for: Option<Box<str>>,
}

/// Why a request is not served: an HTTP status with a line for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused with HTTP {status}: {text}")]
pub struct Rejection {
    /// HTTP status.
    pub status: u16,
    /// Error and the expected value.
    pub text: &'static str,
}

impl Rejection {
    const MALFORMED: Self = Self { status: 400, text: "malformed HTTP request" };
    const METHOD: Self = Self { status: 400, text: "a WebSocket begins with GET" };
    const KEY: Self = Self { status: 400, text: "Sec-WebSocket-Key is missing or not 16 bytes of base64" };
    const HOST: Self = Self { status: 400, text: "exactly one valid Host header is required" };
    const TARGET: Self = Self { status: 400, text: "the request target is neither a path nor a URL" };
    const TWICE: Self = Self { status: 400, text: "a header that may stand once stands twice" };
    const ORIGIN: Self = Self { status: 403, text: "this origin is not allowed" };
    const PATH: Self = Self { status: 404, text: "no WebSocket at this path" };
    const UPGRADE: Self = Self { status: 426, text: "this is a WebSocket endpoint: upgrade" };
    const VERSION: Self = Self { status: 426, text: "WebSocket version 13 is required" };
    const TOO_LONG: Self = Self { status: 431, text: "request head exceeds 8192 bytes" };

    /// The complete HTTP response; the connection is to be closed after it.
    pub fn response(&self) -> Vec<u8> {
        let name = match self.status {
            403 => "Forbidden",
            404 => "Not Found",
            426 => "Upgrade Required",
            431 => "Request Header Fields Too Large",
            _ => "Bad Request",
        };
        let upgrade = match self.status {
            426 => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            _ => "",
        };
        let connection = if upgrade.is_empty() { "close" } else { "Upgrade, close" };
        format!(
            "HTTP/1.1 {} {name}\r\n{upgrade}Connection: {connection}\r\nContent-Type: text/plain\r\n\
             Content-Length: {}\r\n\r\n{}\n",
            self.status,
            self.text.len() + 1,
            self.text
        )
        .into_bytes()
    }
}

/// Collects the bytes of a head until its empty line. Looks at each byte once however slowly they
/// drip in.
#[derive(Clone, Debug, Default)]
struct HeadReader {
    buf: Vec<u8>,
}

impl HeadReader {
    /// Takes bytes; returns how many belong to the head if that is complete now.
    fn feed(&mut self, input: &[u8]) -> Result<Option<usize>, HeadError> {
        let room = HEAD_BYTES_MAX - self.buf.len();
        let before = self.buf.len();
        self.buf.extend_from_slice(&input[..input.len().min(room)]);
        // The mark may have begun in the bytes before.
        let from = before.saturating_sub(3);
        let mark = self.buf[from..].windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(at) = mark {
            self.buf.truncate(from + at + 4);
        }
        // A line feed by itself ends no line: waiting for the rest of such a head would be waiting
        // for ever.
        let from = before.saturating_sub(1).max(1);
        let lines = self.buf.get(from - 1..).unwrap_or_default();
        if self.buf.first() == Some(&b'\n') || lines.windows(2).any(|two| two[0] != b'\r' && two[1] == b'\n')
        {
            return Err(HeadError::BareLineFeed);
        }
        match mark {
            Some(_) => Ok(Some(self.buf.len() - before)),
            None if self.buf.len() == HEAD_BYTES_MAX => Err(HeadError::TooLong),
            None => Ok(None),
        }
    }
}

/// Why bytes are no head.
enum HeadError {
    TooLong,
    BareLineFeed,
}

/// Reads an upgrade request as a server.
#[derive(Clone, Debug, Default)]
pub struct RequestReader {
    head: HeadReader,
}

impl RequestReader {
    /// Takes bytes. `Some` with the number of bytes used once the request is complete and
    /// acceptable.
    ///
    /// # Errors
    /// The request is refused; answer with the [response](Rejection::response) and close.
    pub fn feed(&mut self, input: &[u8], policy: &WsPolicy) -> Result<Option<(Request, usize)>, Rejection> {
        match self.head.feed(input) {
            Ok(None) => Ok(None),
            Ok(Some(used)) => Ok(Some((check_request(&self.head.buf, policy)?, used))),
            Err(HeadError::TooLong) => Err(Rejection::TOO_LONG),
            Err(HeadError::BareLineFeed) => Err(Rejection::MALFORMED),
        }
    }
}

fn check_request(head: &[u8], policy: &WsPolicy) -> Result<Request, Rejection> {
    let Ok(Some((_, request))) = server::Request::try_parse(head) else { return Err(Rejection::MALFORMED) };
    let headers = request.headers();
    if request.method() != Method::GET {
        return Err(Rejection::METHOD);
    }
    if !is_target(head) {
        return Err(Rejection::TARGET);
    }
    // Spec: RFC 7230 §5.4 and RFC 6455 §4.2.1. Empty values and underscores are what real peers
    // send.
    if headers.get_all("host").iter().count() != 1 || !headers.get("host").is_some_and(is_host) {
        return Err(Rejection::HOST);
    }
    let once = ["sec-websocket-version", "sec-websocket-key", "origin"];
    if once.iter().any(|name| headers.get_all(*name).iter().count() > 1) {
        return Err(Rejection::TWICE);
    }
    if !has_token(headers, "connection", "upgrade") || !has_token(headers, "upgrade", "websocket") {
        return Err(Rejection::UPGRADE);
    }
    if text(headers, "sec-websocket-version") != Some("13") {
        return Err(Rejection::VERSION);
    }
    let key = text(headers, "sec-websocket-key").filter(|key| is_key(key)).ok_or(Rejection::KEY)?;
    let path = request.uri().path();
    if policy.path.as_deref().is_some_and(|only| only != path) {
        return Err(Rejection::PATH);
    }
    if !policy.origins.is_empty() && headers.contains_key("origin") {
        let origin = text(headers, "origin").unwrap_or_default();
        if !policy.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) {
            return Err(Rejection::ORIGIN);
        }
    }
    let lines: Vec<&str> =
        headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()).collect();
    let forwarded_for = (!lines.is_empty()).then(|| lines.join(",").into());
    Ok(Request { path: path.into(), key: key.into(), forwarded_for })
}

/// The response that accepts `request`.
pub fn accept_response(request: &Request) -> Vec<u8> {
    let accept = derive_accept_key(request.key.as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
    .into_bytes()
}

/// True if the request line names a path or a URL. Decided on its bytes, because the parser drops a
/// fragment.
fn is_target(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let schemes: [&[u8]; 4] = [b"ws://", b"wss://", b"http://", b"https://"];
    let is_url = schemes.iter().any(|scheme| {
        target.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
            && target.len() > scheme.len()
    });
    (target.starts_with(b"/") || is_url) && !target.contains(&b'#')
}

/// True if a value is a host with or without a port, or empty.
fn is_host(value: &HeaderValue) -> bool {
    let value = value.as_bytes().trim_ascii();
    let (name, port) = match value.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let is_address = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
            if end == 0 || !rest[..end].iter().all(is_address) {
                return false;
            }
            (&[][..], &rest[end + 1..])
        }
        None => value.split_at(value.iter().position(|byte| *byte == b':').unwrap_or(value.len())),
    };
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(byte);
    let is_port = port.is_empty() || (port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit));
    name.iter().all(is_name) && is_port
}

/// Base64 of 16 bytes: 22 characters, the last of which carries 4 bits, and two of padding.
fn is_key(key: &str) -> bool {
    let Some(characters) = key.strip_suffix("==") else { return false };
    characters.len() == 22 && characters.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'+' || c == b'/')
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

/// True if a header that holds a comma-separated list, perhaps in several lines, has an element.
fn has_token(headers: &HeaderMap, name: &str, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|element| element.trim().eq_ignore_ascii_case(token))
}

/// Makes the upgrade request of a client, and the reader for its response. `path` includes the
/// query.
pub fn request_head(host: &str, path: &str, origin: Option<&str>) -> (Vec<u8>, ResponseReader) {
    let key = client::generate_key();
    let mut head = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    );
    if let Some(origin) = origin {
        // Writing to a string cannot fail.
        let _ = write!(head, "Origin: {origin}\r\n");
    }
    head.push_str("\r\n");
    let accept = derive_accept_key(key.as_bytes());
    (head.into_bytes(), ResponseReader { head: HeadReader::default(), accept })
}

/// Why a server's answer does not open a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseError {
    /// Not an HTTP response, or one with a head beyond 8192 bytes.
    #[error("the answer is not an HTTP response")]
    Malformed,
    /// The server refused.
    #[error("the server answered HTTP {0} instead of 101")]
    Status(u16),
    /// The response belongs to another request.
    #[error("the server's Sec-WebSocket-Accept does not match")]
    WrongAccept,
}

/// Reads a server's response as a client.
#[derive(Clone, Debug)]
pub struct ResponseReader {
    head: HeadReader,
    accept: String,
}

impl ResponseReader {
    /// Takes bytes. `Some` with the number of bytes used once the connection is open.
    ///
    /// # Errors
    /// The connection did not come about.
    pub fn feed(&mut self, input: &[u8]) -> Result<Option<usize>, ResponseError> {
        let Some(used) = self.head.feed(input).map_err(|_| ResponseError::Malformed)? else {
            return Ok(None);
        };
        let parsed = client::Response::try_parse(&self.head.buf);
        let Ok(Some((_, response))) = parsed else { return Err(ResponseError::Malformed) };
        if response.status() != 101 {
            return Err(ResponseError::Status(response.status().as_u16()));
        }
        let headers = response.headers();
        if text(headers, "sec-websocket-accept") != Some(&self.accept)
            || !has_token(headers, "upgrade", "websocket")
        {
            return Err(ResponseError::WrongAccept);
        }
        Ok(Some(used))
    }
}
