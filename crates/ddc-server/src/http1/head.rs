//! Heads of requests.

use std::mem::MaybeUninit;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};

use super::body::Left;

/// Longest head.
pub(super) const BYTES_MAX: usize = 16 << 10;
/// Most headers.
const HEADERS_MAX: usize = 64;

/// A request's head.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: Method,
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
        let mut fields = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let len = match request.parse_with_uninit_headers(bytes, &mut fields) {
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
        let left = framing(&headers, minor)?;
        let mut hosts = headers.get_all(header::HOST).iter();
        match (hosts.next(), hosts.next()) {
            (None, None) if minor == 0 => {}
            (Some(host), None) if host.is_empty() || is_authority(host.as_bytes()) => {}
            _ => return Err(bad("a request names one host, with a port or without")),
        }
        let Target { authority, path, query } = split_target(target)?;
        if let Some(authority) = authority {
            // It counts instead of the header.
            let host = HeaderValue::from_str(authority).map_err(|_| bad("the target names no host"))?;
            headers.insert(header::HOST, host);
        }
        let connection = headers.get_all(header::CONNECTION).iter();
        let mut tokens = connection.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
        let keep_alive = match minor {
            0 => tokens.any(|token| token.trim().eq_ignore_ascii_case("keep-alive")),
            _ => !tokens.any(|token| token.trim().eq_ignore_ascii_case("close")),
        };
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| bad("this is no HTTP request"))?;
        let (path, query) = (path.to_owned(), query.to_owned());
        Ok(Some((Head { method, path, query, headers, left, keep_alive, minor }, len)))
    }
}

fn bad(why: &'static str) -> Refusal {
    (StatusCode::BAD_REQUEST, why)
}

fn has_lone_feed(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', bytes).any(|at| at == 0 || bytes[at - 1] != b'\r')
}

/// A target, taken apart.
struct Target<'t> {
    /// Host, if the target names it again.
    authority: Option<&'t str>,
    path: &'t str,
    query: &'t str,
}

fn split_target(target: &str) -> Result<Target<'_>, Refusal> {
    let (authority, rest) = if target.starts_with('/') {
        (None, target)
    } else {
        let is_start = |scheme: &&str| {
            target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        let scheme = ["http://", "https://"].into_iter().find(is_start);
        let scheme = scheme.ok_or(bad("the target is no path"))?;
        let rest = &target[scheme.len()..];
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if !is_authority(authority.as_bytes()) {
            return Err(bad("the target names no host"));
        }
        (Some(authority), rest)
    };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !are_target_bytes(path.as_bytes(), PATH) || !are_target_bytes(query.as_bytes(), QUERY) {
        return Err(bad("the target holds a byte that must be percent-encoded, or a fragment"));
    }
    Ok(Target { authority, path: if path.is_empty() { "/" } else { path }, query })
}

/// Parts of a target whose bytes are permitted, by byte: bits of [`NAME`], [`PATH`] and [`QUERY`].
/// RFC 3986: unreserved characters and sub-delimiters everywhere; more in paths and queries.
const PERMITTED: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => NAME | PATH | QUERY,
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' => NAME | PATH | QUERY,
            b'*' | b'+' | b',' | b';' | b'=' => NAME | PATH | QUERY,
            b'/' | b':' | b'@' => PATH | QUERY,
            b'?' => QUERY,
            _ => 0,
        };
        byte += 1;
    }
    table
};
const NAME: u8 = 1;
const PATH: u8 = 2;
const QUERY: u8 = 4;

/// Reports whether `bytes` are permitted in this part of a target, or percent-encoded.
fn are_target_bytes(mut bytes: &[u8], part: u8) -> bool {
    while let Some(at) = bytes.iter().position(|byte| PERMITTED[usize::from(*byte)] & part == 0) {
        match bytes[at..] {
            [b'%', a, b, ref rest @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => bytes = rest,
            _ => return false,
        }
    }
    true
}

/// Reports whether `bytes` are a host with a port or without: RFC 3986, section 3.2, without user.
fn is_authority(bytes: &[u8]) -> bool {
    let port = bytes.iter().rposition(|byte| *byte == b':').filter(|at| !bytes[*at..].contains(&b']'));
    let (host, port) = bytes.split_at(port.unwrap_or(bytes.len()));
    let is_host = match host {
        [b'[', address @ .., b']'] => {
            std::str::from_utf8(address).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
        }
        name => !name.is_empty() && are_target_bytes(name, NAME),
    };
    let digits = port.strip_prefix(b":").unwrap_or_default();
    is_host && digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit)
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
        assert_eq!((head.method.as_str(), &*head.path, &*head.query), ("PUT", "/a/b", "c=d"));
        assert!(head.keep_alive && head.left.at_most(7) && !head.left.at_most(6));
        let head =
            parse("GET http://h:1/p?q HTTP/1.1\r\nHost: h\r\nConnection: a, Close\r\n\r\n").expect("valid");
        assert_eq!((&*head.path, &*head.query, head.keep_alive), ("/p", "q", false));
        assert_eq!(head.headers[header::HOST], "h:1", "the target's host counts");
        for host in ["h", "H.example:80", "h:", "127.0.0.1:1", "[::1]", "[2001:db8::1]:443", "a_b", "%41"] {
            let text = format!("GET /a%2Fb;c=d,e@f:g HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(parse(&text).map(|head| head.path), Ok("/a%2Fb;c=d,e@f:g".to_owned()), "{host}");
        }
        assert_eq!(parse("GET HTTP://h?q HTTP/1.1\r\nHost: x\r\n\r\n").expect("valid").path, "/");
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
            ("Host: \r\n", 400),
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
            ("GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET /?a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET http://x#/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET http://u@x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET http:/a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("GET a/b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("G\u{1}T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
            ("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ] {
            assert_eq!(parse(text).map(|_| ()), Err(status), "{text:?}");
        }
        for byte in "\"<>[]\\^`{|}\u{80}\u{e9}%".chars() {
            for target in [format!("/a{byte}b"), format!("/a?b={byte}"), format!("http://x{byte}/")] {
                let text = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
                assert_eq!(parse(&text).map(|_| ()), Err(400), "{text:?}");
            }
        }
        for host in [
            "a b", "a,b", "a/b", "a/", "a?b", "a#b", "u@a", "a:b", "a:1:2", "a:123456", "a:-1", ":80",
            "[::1", "::1", "[::1]x", "[x]", "[]", "a\\b", "a\"", "<a>", "a%", "a%4", "a%zz", "http://a",
            "\u{e9}", "a\t.b",
        ] {
            // A comma is a sub-delimiter of names.
            let expected = if host == "a,b" { Ok(()) } else { Err(400) };
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(parse(&text).map(|_| ()), expected, "{text:?}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        assert_eq!(parse(&many).map(|_| ()), Err(431));
    }
}
