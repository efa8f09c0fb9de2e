//! Heads of requests.

use std::mem::MaybeUninit;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};

use super::body::Left;

/// Longest head.
pub(super) const BYTES_MAX: usize = 16 << 10;
/// Most headers.
const HEADERS_MAX: usize = 64;

/// Headers and bytes of a path or query whose memory a connection keeps for its next head, at most.
const HEADERS_KEPT: usize = 24;
const TARGET_BYTES_KEPT: usize = 512;

/// A request's head. One connection reads all of its heads into the same memory.
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
    /// Bytes of it.
    pub(super) len: usize,
}

type Refusal = (StatusCode, &'static str);

impl Head {
    /// Memory for heads.
    pub(super) fn new() -> Head {
        Head {
            method: Method::GET,
            path: String::new(),
            query: String::new(),
            headers: HeaderMap::new(),
            left: Left::NOTHING,
            keep_alive: false,
            minor: 1,
            len: 0,
        }
    }

    /// Forgets a head that was answered. Memory beyond that of a usual head is returned.
    pub(super) fn clear(&mut self) {
        self.headers.clear();
        if self.headers.capacity() > HEADERS_KEPT {
            self.headers = HeaderMap::new();
        }
        for text in [&mut self.path, &mut self.query] {
            text.clear();
            text.shrink_to(TARGET_BYTES_KEPT);
        }
    }

    /// Reads a head in place of one that was [cleared](Head::clear). Reports whether it is whole.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<bool, Refusal> {
        let mut fields = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let len = match request.parse_with_uninit_headers(bytes, &mut fields) {
            Ok(httparse::Status::Complete(len)) if len <= BYTES_MAX => len,
            Ok(httparse::Status::Partial) if bytes.len() < BYTES_MAX => return Ok(false),
            Ok(_) => return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long")),
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
        // Framing headers are noted in this loop: each later look-up would hash a name.
        let (mut host, mut length, mut coding) = (Field::Absent, Field::Absent, Field::Absent);
        let (mut expected, mut closes, mut keeps) = (None, false, false);
        self.headers.reserve(request.headers.len());
        for field in request.headers.iter() {
            let name =
                HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| bad("a header has no name"))?;
            let value = HeaderValue::from_bytes(field.value).map_err(|_| bad("a header has a bad value"))?;
            match name.as_str() {
                "host" => host.add(field.value),
                "content-length" => length.add(field.value),
                "transfer-encoding" => coding.add(field.value),
                "expect" => expected = expected.or(Some(field.value)),
                "connection" => {
                    for token in value.to_str().unwrap_or_default().split(',') {
                        closes |= token.trim().eq_ignore_ascii_case("close");
                        keeps |= token.trim().eq_ignore_ascii_case("keep-alive");
                    }
                }
                _ => {}
            }
            self.headers.append(name, value);
        }
        self.left = framing(expected, length, coding, minor)?;
        match host {
            Field::Absent if minor == 0 => {}
            Field::Once(host) if host.is_empty() || is_authority(host) => {}
            _ => return Err(bad("a request names one host, with a port or without")),
        }
        let Target { authority, path, query } = split_target(target)?;
        if let Some(authority) = authority {
            // It counts instead of the header.
            let host = HeaderValue::from_str(authority).map_err(|_| bad("the target names no host"))?;
            self.headers.insert(header::HOST, host);
        }
        self.keep_alive = if minor == 0 { keeps } else { !closes };
        self.minor = minor;
        self.len = len;
        self.method = Method::from_bytes(method.as_bytes()).map_err(|_| bad("this is no HTTP request"))?;
        self.path.push_str(path);
        self.query.push_str(query);
        Ok(true)
    }
}

/// A header that a request has at most once.
enum Field<'r> {
    Absent,
    Once(&'r [u8]),
    Repeated,
}

impl<'r> Field<'r> {
    fn add(&mut self, value: &'r [u8]) {
        *self = if matches!(self, Field::Absent) { Field::Once(value) } else { Field::Repeated };
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
fn framing(
    expected: Option<&[u8]>,
    length: Field<'_>,
    coding: Field<'_>,
    minor: u8,
) -> Result<Left, Refusal> {
    let awaited = match expected {
        None => false,
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") => minor == 1,
        Some(_) => return Err((StatusCode::EXPECTATION_FAILED, "only 100-continue can be expected")),
    };
    match (length, coding) {
        (Field::Absent, Field::Absent) => Ok(Left::NOTHING),
        (Field::Once(digits), Field::Absent) => {
            let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            match number.filter(|_| digits.iter().all(u8::is_ascii_digit)) {
                Some(number) => Ok(Left::length(number, awaited)),
                None => Err(bad("Content-Length is no number")),
            }
        }
        (Field::Absent, Field::Once(coding)) if minor == 1 => {
            if coding.eq_ignore_ascii_case(b"chunked") {
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
        let mut head = Head::new();
        match head.read(text.as_bytes()) {
            Ok(true) => {
                assert_eq!(head.len, text.len(), "{text}");
                Ok(head)
            }
            Ok(false) => panic!("not complete: {text}"),
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
        assert!(matches!(Head::new().read(b"GET / HTTP/1.1\r\nHost: x\r\n"), Ok(false)));
    }

    #[test]
    fn nothing_of_a_head_stays_for_the_next() {
        let many = format!("GET /{} HTTP/1.1\r\nHost: x\r\n{}\r\n", "a".repeat(2_000), "b: c\r\n".repeat(60));
        let heads = [
            "GET /a?b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nIf-Match: a\r\nIf-Match: b\r\n\r\n",
            "PUT /c HTTP/1.1\r\nHost: y\r\nContent-Length: 7\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
            "GET http://z/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            &many,
            "GET / HTTP/1.0\r\n\r\n",
        ];
        let mut kept = Head::new();
        for text in heads {
            assert_eq!(kept.read(text.as_bytes()), Ok(true));
            let new = parse(text).expect("valid");
            assert_eq!(format!("{kept:?}"), format!("{new:?}"));
            kept.clear();
            assert!(kept.headers.capacity() <= HEADERS_KEPT && kept.path.capacity() <= TARGET_BYTES_KEPT);
        }
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
        let long = |len: usize| format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(len - 27));
        assert_eq!(parse(&long(BYTES_MAX)).map(|head| head.len), Ok(BYTES_MAX));
        assert_eq!(parse(&long(BYTES_MAX + 1)).map(|_| ()), Err(431));
        assert_eq!(Head::new().read(&[b'a'; BYTES_MAX]).map_err(|refusal| refusal.0.as_u16()), Err(431));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        assert_eq!(parse(&many).map(|_| ()), Err(431));
    }
}
