//! Heads of requests.

use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::body::Left;

/// Longest head.
pub(super) const BYTES_MAX: usize = 16 << 10;
/// Most headers.
const HEADERS_MAX: usize = 64;
/// What a client sends first that speaks HTTP/2.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A request's head.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    /// Of its body.
    pub(super) left: Left,
    pub(super) keep_alive: bool,
    /// The 0 or 1 of HTTP/1.0 or HTTP/1.1.
    pub(super) minor: u8,
}

type Refusal = (StatusCode, &'static str);

impl Head {
    /// Reads a head and tells its length; `None` while there is more to come.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Refusal> {
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let len = match request.parse(bytes) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => {
                return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "there are too many headers"));
            }
            Err(httparse::Error::Version) => {
                return Err((StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 and HTTP/2 are spoken here"));
            }
            Err(_) => return Err(bad("this is no HTTP request")),
        };
        // A lone line feed ends a line for some and not for others; who would disagree about it
        // hides a request in it.
        if has_lone_feed(&bytes[..len]) {
            return Err(bad("a line ends without a carriage return"));
        }
        let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
        else {
            return Err(bad("this is no HTTP request"));
        };
        let mut headers = HeaderMap::with_capacity(request.headers.len());
        for field in request.headers.iter() {
            let name =
                HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| bad("a header has no name"))?;
            let value = HeaderValue::from_bytes(field.value).map_err(|_| bad("a header has a bad value"))?;
            headers.append(name, value);
        }
        let (path, query) = split_target(target)?;
        let left = framing(&headers, minor)?;
        let hosts = headers.get_all(header::HOST).iter().count();
        if hosts > 1 || hosts == 0 && minor == 1 {
            return Err(bad("a request names one host"));
        }
        let connection = headers.get_all(header::CONNECTION).iter();
        let mut tokens = connection.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
        let keep_alive = match minor {
            0 => tokens.any(|token| token.trim().eq_ignore_ascii_case("keep-alive")),
            _ => !tokens.any(|token| token.trim().eq_ignore_ascii_case("close")),
        };
        let (method, path, query) = (method.to_owned(), path.to_owned(), query.to_owned());
        Ok(Some((Head { method, path, query, headers, left, keep_alive, minor }, len)))
    }
}

fn bad(why: &'static str) -> Refusal {
    (StatusCode::BAD_REQUEST, why)
}

fn has_lone_feed(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || bytes[at - 1] != b'\r'))
}

/// Path and query of a target, which may name the host again.
fn split_target(target: &str) -> Result<(&str, &str), Refusal> {
    let target = target.split_once('#').map_or(target, |(target, _)| target);
    if target.starts_with('/') {
        return Ok(target.split_once('?').unwrap_or((target, "")));
    }
    let rest = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let rest = rest.ok_or_else(|| bad("the target is no path"))?;
    let target = rest.find(['/', '?']).map_or("/", |at| &rest[at..]);
    Ok(target.split_once('?').unwrap_or((target, "")))
}

/// How the body ends. Whatever two readers could understand differently is refused.
fn framing(headers: &HeaderMap, minor: u8) -> Result<Left, Refusal> {
    let awaited = match headers.get(header::EXPECT) {
        None => false,
        Some(value) if value.as_bytes().eq_ignore_ascii_case(b"100-continue") => minor == 1,
        Some(_) => return Err((StatusCode::EXPECTATION_FAILED, "only 100-continue can be expected")),
    };
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(Left::NOTHING),
        (Some(length), None) if lengths.next().is_none() => {
            let digits = length.as_bytes();
            let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            match number.filter(|_| digits.iter().all(u8::is_ascii_digit)) {
                Some(number) => Ok(Left::length(number, awaited)),
                None => Err(bad("Content-Length is no number")),
            }
        }
        (None, Some(coding)) if codings.next().is_none() && minor == 1 => {
            if coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
                Ok(Left::chunked(awaited))
            } else {
                Err((StatusCode::NOT_IMPLEMENTED, "chunked is the only transfer coding here"))
            }
        }
        _ => Err(bad("the length of the body is given in two ways")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Head, u16> {
        match Head::parse(text.as_bytes()) {
            Ok(Some((head, len))) => {
                assert_eq!(len, text.len(), "{text}");
                Ok(head)
            }
            Ok(None) => panic!("not complete: {text}"),
            Err((status, _)) => Err(status.as_u16()),
        }
    }

    #[test]
    fn heads_are_taken_apart() {
        let head = parse("PUT /a/b?c=d HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n").expect("valid");
        assert_eq!((&*head.method, &*head.path, &*head.query), ("PUT", "/a/b", "c=d"));
        assert!(head.keep_alive && head.left.at_most(7) && !head.left.at_most(6));
        let head =
            parse("GET http://h:1/p?q HTTP/1.1\r\nHost: h\r\nConnection: a, Close\r\n\r\n").expect("valid");
        assert_eq!((&*head.path, &*head.query, head.keep_alive), ("/p", "q", false));
        assert!(!parse("GET / HTTP/1.0\r\n\r\n").expect("valid").keep_alive);
        assert!(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").expect("valid").keep_alive);
        assert!(matches!(Head::parse(b"GET / HTTP/1.1\r\nHost: x\r\n"), Ok(None)));
    }

    #[test]
    fn what_two_readers_could_understand_differently_is_refused() {
        for (fields, status) in [
            ("Content-Length: 1\r\nContent-Length: 2\r\n", 400),
            ("Content-Length: 1\r\nContent-Length: 1\r\n", 400),
            ("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", 400),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
            ("Transfer-Encoding: gzip, chunked\r\n", 501),
            ("Transfer-Encoding: identity\r\n", 501),
            ("Transfer-Encoding : chunked\r\n", 400),
            ("Content-Length: +1\r\n", 400),
            ("Content-Length: -1\r\n", 400),
            ("Content-Length: 0x10\r\n", 400),
            ("Content-Length: 1,1\r\n", 400),
            ("Content-Length: 18446744073709551616\r\n", 400),
            ("Content-Length:\r\n", 400),
            ("Expect: 200-ok\r\n", 417),
            ("Host: y\r\n", 400),
            (" folded: 1\r\n", 400),
            ("a\0b: 1\r\n", 400),
        ] {
            let text = format!("PUT / HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
            assert_eq!(parse(&text).map(|_| ()), Err(status), "{fields:?}");
        }
        for (text, status) in [
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\nHost: x\n\n", 400),
            ("GET / HTTP/1.1\r\nHost: x\n\r\n", 400),
            ("GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
            ("GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("G\u{1}T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ] {
            assert_eq!(parse(text).map(|_| ()), Err(status), "{text:?}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        assert_eq!(parse(&many).map(|_| ()), Err(431));
    }
}
