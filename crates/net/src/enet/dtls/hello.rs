//! The first step of a handshake, for which the server keeps nothing: a ClientHello is answered
//! with a cookie, and only a client that returns it from the same address gets further.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ring::hmac;
use throng_stdx::Instant;

use super::crypto::COOKIE_BYTES;

/// Header of a record.
const RECORD_BYTES: usize = 13;
/// Header of a handshake message.
const MESSAGE_BYTES: usize = 12;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const HELLO_VERIFY_REQUEST: u8 = 3;
/// Length of the answer to a stranger. No ClientHello is that short.
pub(super) const ANSWER_BYTES: usize = RECORD_BYTES + MESSAGE_BYTES + 3 + COOKIE_BYTES;
/// A cookie is good for one to two of these: longer than any client goes on with one handshake.
const COOKIE_PERIOD: Duration = Duration::from_secs(30);

/// True for records of DTLS. Their first two bytes are possible in ENet as well, where they name
/// some peers with high numbers; no datagram that begins a connection there starts with them.
pub(super) fn is_record(datagram: &[u8]) -> bool {
    datagram.len() >= RECORD_BYTES && (20..=25).contains(&datagram[0]) && datagram[1] == 0xFE
}

/// A ClientHello in one piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hello<'a> {
    pub(super) random: [u8; COOKIE_BYTES],
    pub(super) cookie: &'a [u8],
    /// Its number among the client's messages: 0, and 1 with a cookie.
    pub(super) number: u16,
}

impl<'a> Hello<'a> {
    /// `None` for other records, and for a hello in several: a server that keeps nothing cannot put
    /// it together.
    pub(super) fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (record, rest) = datagram.split_at_checked(RECORD_BYTES)?;
        let (message, rest) = rest.split_at_checked(MESSAGE_BYTES)?;
        let [kind, major, _, 0, 0, ..] = *record else { return None };
        if (kind, major, message[0]) != (HANDSHAKE, 0xFE, CLIENT_HELLO) {
            return None;
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let (record_len, len) = (number(&record[11..13]), number(&message[1..4]));
        let (offset, part) = (number(&message[6..9]), number(&message[9..12]));
        if record_len != MESSAGE_BYTES + len || offset != 0 || part != len {
            return None;
        }
        // Version, random number, session, cookie.
        let body = rest.get(2..len)?;
        let (random, body) = body.split_first_chunk()?;
        let (session, body) = body.split_first()?;
        let (cookie, body) = body.get(usize::from(*session)..)?.split_first()?;
        let cookie = body.get(..usize::from(*cookie))?;
        Some(Self { random: *random, cookie, number: number(&message[4..6]) as u16 })
    }
}

/// The cookies of a server: a function of address, time and the client's random number.
#[derive(Debug)]
pub(super) struct Cookies(hmac::Key);

impl Cookies {
    pub(super) fn new(seed: u128) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &seed.to_ne_bytes()))
    }

    /// True if the hello carries a cookie that its sender got lately at this address.
    pub(super) fn is_known(&self, now: Instant, from: SocketAddr, hello: &Hello<'_>) -> bool {
        let period = period(now);
        [period, period.wrapping_sub(1)].into_iter().any(|period| {
            // Compared in constant time.
            hmac::verify(&self.0, &content(period, from, &hello.random), hello.cookie).is_ok()
        })
    }

    /// The answer to a hello without a good cookie.
    ///
    /// Its record has number 0 whatever the hello's: the handshake that follows counts on from
    /// there, and a client drops a number that it has seen.
    pub(super) fn answer(&self, now: Instant, from: SocketAddr, hello: &Hello<'_>) -> [u8; ANSWER_BYTES] {
        let cookie = hmac::sign(&self.0, &content(period(now), from, &hello.random));
        let mut answer = [0; ANSWER_BYTES];
        answer[..3].copy_from_slice(&[HANDSHAKE, 0xFE, 0xFF]);
        answer[12] = (ANSWER_BYTES - RECORD_BYTES) as u8;
        let len = (ANSWER_BYTES - RECORD_BYTES - MESSAGE_BYTES) as u8;
        answer[13] = HELLO_VERIFY_REQUEST;
        answer[16] = len;
        answer[24] = len;
        // Every version of DTLS says that it is 1.0 here.
        answer[25..28].copy_from_slice(&[0xFE, 0xFF, COOKIE_BYTES as u8]);
        answer[28..].copy_from_slice(cookie.as_ref());
        answer
    }
}

/// The hello of a client with this random number before it has a cookie, as short as can be.
pub(super) fn first(random: &[u8; COOKIE_BYTES]) -> [u8; 67] {
    let mut hello = [0; 67];
    hello[..3].copy_from_slice(&[HANDSHAKE, 0xFE, 0xFF]);
    hello[12] = 54;
    hello[13] = CLIENT_HELLO;
    hello[16] = 42;
    hello[24] = 42;
    hello[25..27].copy_from_slice(&[0xFE, 0xFD]);
    hello[27..59].copy_from_slice(random);
    // No session, no cookie, one cipher suite, one compression: none.
    hello[59..].copy_from_slice(&[0, 0, 0, 2, 0xC0, 0x2B, 1, 0]);
    hello
}

fn period(now: Instant) -> u64 {
    now.as_millis() / COOKIE_PERIOD.as_millis() as u64
}

fn content(period: u64, from: SocketAddr, random: &[u8; COOKIE_BYTES]) -> [u8; 26 + COOKIE_BYTES] {
    let ip = match from.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut out = [0; 26 + COOKIE_BYTES];
    out[..8].copy_from_slice(&period.to_be_bytes());
    out[8..24].copy_from_slice(&ip.octets());
    out[24..26].copy_from_slice(&from.port().to_be_bytes());
    out[26..].copy_from_slice(random);
    out
}
