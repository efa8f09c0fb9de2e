//! Addresses that proxies report: the PROXY protocol, version 2, in front of everything else, and
//! `X-Forwarded-For` in a WebSocket's request.
//!
//! ```text
//! 0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A | 2v | family | length | addresses | further fields
//!                                       v: 0 LOCAL, 1 PROXY    16 bits
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const HEAD_BYTES: usize = 16;
/// Longest header. The specification wants 536 bytes to fit a first segment (its section 2.2), and
/// proxies stay below that.
const HEADER_BYTES_MAX: usize = 536;
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Why bytes are no header that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The stream does not begin with the signature.
    #[error("the stream does not begin with a PROXY header of version 2")]
    Signature,
    /// A command besides LOCAL and PROXY, or another version.
    #[error("unknown command {0:#04x} in a PROXY header")]
    Command(u8),
    /// Addresses of something else than TCP over IPv4 or IPv6.
    #[error("unknown address family {0:#04x} in a PROXY header")]
    Family(u8),
    /// Too short for its addresses, or longer than 536 bytes.
    #[error("a PROXY header of {0} bytes")]
    Length(usize),
}

/// Collects a header.
#[derive(Debug, Default)]
pub(crate) struct HeaderReader {
    buf: Vec<u8>,
}

/// Result of feeding bytes to a [`HeaderReader`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The header goes on.
    More,
    /// It ends after this many of the bytes.
    Done {
        used: usize,
        /// The address that the proxy serves; `None` for a LOCAL header, a connection of the
        /// proxy's own.
        source: Option<SocketAddr>,
    },
}

impl HeaderReader {
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<Progress, ProxyError> {
        let mut used = 0;
        loop {
            let wanted = self.wanted()?;
            if self.buf.len() == wanted {
                return Ok(Progress::Done { used, source: source(&self.buf)? });
            }
            let part = &input[used..input.len().min(used + wanted - self.buf.len())];
            if part.is_empty() {
                return Ok(Progress::More);
            }
            self.buf.extend_from_slice(part);
            used += part.len();
            let known = self.buf.len().min(SIGNATURE.len());
            if self.buf[..known] != SIGNATURE[..known] {
                return Err(ProxyError::Signature);
            }
        }
    }

    /// Bytes of the header, as far as that is known.
    fn wanted(&self) -> Result<usize, ProxyError> {
        let &[command, family, high, low] = self.buf.get(SIGNATURE.len()..HEAD_BYTES).unwrap_or_default()
        else {
            return Ok(HEAD_BYTES);
        };
        let addresses = match (command, family) {
            (LOCAL, _) => 0,
            (PROXY, TCP4) => 12,
            (PROXY, TCP6) => 36,
            (PROXY, family) => return Err(ProxyError::Family(family)),
            (command, _) => return Err(ProxyError::Command(command)),
        };
        let rest = usize::from(u16::from_be_bytes([high, low]));
        let len = HEAD_BYTES + rest;
        if rest < addresses || len > HEADER_BYTES_MAX { Err(ProxyError::Length(len)) } else { Ok(len) }
    }
}

/// The source address of a complete header.
fn source(header: &[u8]) -> Result<Option<SocketAddr>, ProxyError> {
    let (head, rest) = header.split_at(HEAD_BYTES);
    let short = || ProxyError::Length(header.len());
    let port = |at: usize| rest.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (ip, port) = match (head[12], head[13]) {
        (PROXY, TCP4) => {
            let bytes: [u8; 4] = rest.get(..4).and_then(|bytes| bytes.try_into().ok()).ok_or_else(short)?;
            (IpAddr::V4(Ipv4Addr::from(bytes)), port(8))
        }
        (PROXY, _) => {
            let bytes: [u8; 16] = rest.get(..16).and_then(|bytes| bytes.try_into().ok()).ok_or_else(short)?;
            (IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(), port(32))
        }
        _ => return Ok(None),
    };
    Ok(Some(SocketAddr::new(ip, port.ok_or_else(short)?)))
}

/// The address of the peer behind trusted proxies: the rightmost of `X-Forwarded-For` that is none
/// of them, since every proxy appends the address that it serves. The search ends at an entry that
/// is not an address.
pub(crate) fn behind(proxy: SocketAddr, list: &str, mut is_proxy: impl FnMut(IpAddr) -> bool) -> SocketAddr {
    let mut peer = proxy;
    for element in list.rsplit(',') {
        if !is_proxy(peer.ip()) {
            break;
        }
        let element = element.trim();
        let bare = element.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(element);
        let addr = bare.parse().map(|ip| SocketAddr::new(ip, 0)).or_else(|_| element.parse());
        let Ok(addr) = addr else { break };
        peer = SocketAddr::new(addr.ip().to_canonical(), addr.port());
    }
    peer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    /// The result of a header that comes whole, followed by more; byte by byte it is the same.
    fn read(header: &[u8]) -> Result<Progress, ProxyError> {
        let whole = HeaderReader::default().feed(&[header, b"CH"].concat());
        let mut reader = HeaderReader::default();
        let mut last = Ok(Progress::More);
        for byte in header {
            last = reader.feed(std::slice::from_ref(byte));
            if last != Ok(Progress::More) {
                break;
            }
        }
        match (&whole, &last) {
            (Ok(Progress::Done { source: a, .. }), Ok(Progress::Done { source: b, .. })) => assert_eq!(a, b),
            _ => assert_eq!(whole, last),
        }
        whole
    }

    #[test]
    fn headers_name_the_address_or_are_refused() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0x1F, 0x90, 0, 80];
        let mut v6 = [0; 36];
        v6[..2].copy_from_slice(&[0x20, 0x01]);
        v6[15] = 9;
        v6[33] = 7;
        let done = |used, addr: Option<&str>| {
            Ok(Progress::Done { used, source: addr.map(|addr| addr.parse().unwrap()) })
        };
        let extra = [&v4[..], &[4, 0, 1, 0]].concat();
        assert_eq!(read(&header(PROXY, TCP4, &v4)), done(28, Some("192.0.2.7:8080")));
        assert_eq!(read(&header(PROXY, TCP4, &extra)), done(32, Some("192.0.2.7:8080")));
        assert_eq!(read(&header(PROXY, TCP6, &v6)), done(52, Some("[2001::9]:7")));
        assert_eq!(read(&header(LOCAL, 0, &[])), done(16, None));
        assert_eq!(read(&header(LOCAL, TCP4, &v4)), done(28, None), "what LOCAL names is not used");
        let mut longest = v4.to_vec();
        longest.resize(520, 0);
        assert_eq!(read(&header(PROXY, TCP4, &longest)), done(536, Some("192.0.2.7:8080")));
        longest.push(0);
        assert_eq!(read(&header(PROXY, TCP4, &longest)), Err(ProxyError::Length(537)));
        assert_eq!(read(&header(PROXY, TCP4, &v4[..11])), Err(ProxyError::Length(27)));
        assert_eq!(read(&header(PROXY, TCP6, &v4)), Err(ProxyError::Length(28)));
        assert_eq!(read(&header(PROXY, 0, &[])), Err(ProxyError::Family(0)), "UNSPEC");
        assert_eq!(read(&header(PROXY, 0x12, &v4)), Err(ProxyError::Family(0x12)), "UDP");
        assert_eq!(read(&header(0x22, TCP4, &v4)), Err(ProxyError::Command(0x22)));
        assert_eq!(read(&header(0x11, TCP4, &v4)), Err(ProxyError::Command(0x11)), "version 1");
        assert_eq!(read(b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n"), Err(ProxyError::Signature));
        assert_eq!(HeaderReader::default().feed(b"CH"), Err(ProxyError::Signature), "at the first byte");
    }

    #[test]
    fn the_rightmost_address_that_is_no_proxy_counts() {
        let is_proxy = |ip: IpAddr| matches!(ip, IpAddr::V4(v4) if v4.octets()[0] == 10);
        let proxy: SocketAddr = "10.0.0.1:5000".parse().unwrap();
        let table = [
            ("192.0.2.7", "192.0.2.7:0"),
            ("198.51.100.9, 192.0.2.7", "192.0.2.7:0"),
            ("198.51.100.9, 192.0.2.7, 10.0.0.2", "192.0.2.7:0"),
            ("192.0.2.7:1234", "192.0.2.7:1234"),
            ("2001:db8::1", "[2001:db8::1]:0"),
            ("[2001:db8::1]", "[2001:db8::1]:0"),
            ("[2001:db8::1]:99", "[2001:db8::1]:99"),
            ("::ffff:192.0.2.7", "192.0.2.7:0"),
            ("192.0.2.7, unknown", "10.0.0.1:5000"),
            ("unknown, 10.0.0.2", "10.0.0.2:0"),
            ("", "10.0.0.1:5000"),
        ];
        for (list, expected) in table {
            assert_eq!(behind(proxy, list, is_proxy), expected.parse().unwrap(), "{list}");
        }
        let stranger: SocketAddr = "203.0.113.5:1".parse().unwrap();
        assert_eq!(behind(stranger, "192.0.2.7", is_proxy), stranger, "a stranger names nobody");
    }
}
