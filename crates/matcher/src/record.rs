//! The matcher's inputs as records of a log.
//!
//! ```text
//! record   length of the body, CRC-32C of all that follows, sequence, time in ms, type, body
//!          u32                 u32                          u64       u64         u8
//! ```
//!
//! Numbers are little-endian. The journal decides where records lie and when they are on disk.

use crate::config::Scope;
pub use crate::crc32c::crc32c;

/// Bytes before the body.
const HEADER_BYTES: usize = 25;
/// Longest body: a request frame and its caller.
const BODY_BYTES_MAX: usize = 2 << 20;

/// One input of the matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The first: the secret of ids.
    Begin {
        /// Makes ids unguessable.
        secret: [u8; 32],
    },
    /// The rules by which the records after it were executed: a replay under others gives another
    /// state.
    Rules {
        /// Number of the rules; see [`RULES`](crate::RULES).
        number: u32,
        /// The release that wrote them.
        release: &'a str,
    },
    /// Rules of modes and limits, as JSON.
    Configure(&'a [u8]),
    /// A request that may change something.
    Request {
        /// Server that sent the request.
        srv: &'a str,
        /// Scope of its token.
        scope: Scope,
        /// Number of the method.
        method: u16,
        /// The request's body.
        body: &'a [u8],
    },
    /// A session began or was lost.
    Session {
        /// Server of the session.
        srv: &'a str,
        /// True if it began.
        up: bool,
    },
    /// Something was due.
    Timeout,
    /// The process started again.
    Recovered,
    /// Every record below this sequence is on disk.
    Durable(u64),
    /// Hash of what the inputs since the last such record put out; see
    /// [`Matcher::take_outputs`](crate::Matcher::take_outputs).
    Outputs(u64),
    /// A policy has answered.
    Verdict {
        /// The question.
        id: u64,
        /// The encoded verdict; `None`: it cannot.
        verdict: Option<&'a [u8]>,
    },
}

/// A record that checks.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its number.
    pub sequence: u64,
    /// Wall time of the input, in ms since the epoch.
    pub time: u64,
    /// Type of the body; see [`parse_input`].
    pub kind: u8,
    /// Body.
    pub body: &'a [u8],
    /// Bytes that the record takes, header included.
    pub len: usize,
}

/// The record at the front of `bytes`, if it checks. Cost: one pass over it.
#[must_use]
pub fn read_record(bytes: &[u8]) -> Option<Record<'_>> {
    let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
    let size = word(0) as u32 as usize;
    if size > BODY_BYTES_MAX {
        return None;
    }
    let body = rest.get(..size)?;
    let crc = (word(0) >> 32) as u32;
    if crc32c(&bytes[8..HEADER_BYTES + size]) != crc {
        return None;
    }
    let kind = head[24];
    Some(Record { sequence: word(8), time: word(16), kind, body, len: HEADER_BYTES + size })
}

/// Place where the next record begins that checks and comes after `sequence`, looking at every
/// byte.
#[must_use]
pub fn next_record(bytes: &[u8], sequence: u64) -> Option<usize> {
    (1..bytes.len()).find(|at| {
        // The cheap look first: a plausible number.
        let Some(number) = bytes.get(at + 8..at + 16) else { return false };
        let number = u64::from_le_bytes(number.try_into().unwrap_or_default());
        number > sequence && number - sequence < 1 << 32 && read_record(&bytes[*at..]).is_some()
    })
}

/// Appends a record.
pub fn write_record(out: &mut Vec<u8>, sequence: u64, now: u64, input: Input<'_>) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&now.to_le_bytes());
    match input {
        Input::Begin { secret } => {
            out.push(0);
            out.extend_from_slice(&secret);
        }
        Input::Configure(json) => {
            out.push(1);
            out.extend_from_slice(json);
        }
        Input::Request { srv, scope, method, body } => {
            out.push(2);
            out.extend_from_slice(&method.to_le_bytes());
            out.push(scope as u8);
            out.push(srv.len() as u8);
            out.extend_from_slice(srv.as_bytes());
            out.extend_from_slice(body);
        }
        Input::Session { srv, up } => {
            out.push(3);
            out.push(u8::from(up));
            out.extend_from_slice(srv.as_bytes());
        }
        Input::Timeout => out.push(4),
        Input::Recovered => out.push(5),
        Input::Durable(below) => {
            out.push(6);
            out.extend_from_slice(&below.to_le_bytes());
        }
        Input::Outputs(hash) => {
            out.push(9);
            out.extend_from_slice(&hash.to_le_bytes());
        }
        Input::Rules { number, release } => {
            out.push(8);
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(release.as_bytes());
        }
        Input::Verdict { id, verdict } => {
            out.push(7);
            out.extend_from_slice(&id.to_le_bytes());
            out.push(u8::from(verdict.is_some()));
            out.extend_from_slice(verdict.unwrap_or_default());
        }
    }
    let body = (out.len() - start - HEADER_BYTES) as u32;
    out[start..start + 4].copy_from_slice(&body.to_le_bytes());
    let crc = crc32c(&out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// The input that a record holds. Total: any bytes give one or nothing.
#[must_use]
pub fn parse_input(kind: u8, body: &[u8]) -> Option<Input<'_>> {
    Some(match kind {
        0 => Input::Begin { secret: body.try_into().ok()? },
        1 => Input::Configure(body),
        2 => {
            let (head, rest) = body.split_first_chunk::<4>()?;
            let (srv, body) = rest.split_at_checked(usize::from(head[3]))?;
            let scope = match head[2] {
                0 => Scope::Server,
                1 => Scope::Trusted,
                2 => Scope::Admin,
                _ => return None,
            };
            let method = u16::from_le_bytes([head[0], head[1]]);
            Input::Request { srv: std::str::from_utf8(srv).ok()?, scope, method, body }
        }
        3 => {
            let (up, srv) = body.split_first()?;
            Input::Session { srv: std::str::from_utf8(srv).ok()?, up: *up == 1 }
        }
        4 => Input::Timeout,
        5 => Input::Recovered,
        6 => Input::Durable(u64::from_le_bytes(body.try_into().ok()?)),
        7 => {
            let (id, rest) = body.split_first_chunk::<8>()?;
            let (given, verdict) = rest.split_first()?;
            let verdict = match given {
                0 if verdict.is_empty() => None,
                1 => Some(verdict),
                _ => return None,
            };
            Input::Verdict { id: u64::from_le_bytes(*id), verdict }
        }
        8 => {
            let (number, release) = body.split_first_chunk::<4>()?;
            Input::Rules { number: u32::from_le_bytes(*number), release: std::str::from_utf8(release).ok()? }
        }
        9 => Input::Outputs(u64::from_le_bytes(body.try_into().ok()?)),
        _ => return None,
    })
}

/// Number of whole records at the front of `bytes`.
#[must_use]
pub fn count_records(bytes: &[u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let Some(record) = read_record(&bytes[at..]) {
        at += record.len;
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_survives_its_record_and_no_byte_may_change() {
        let inputs = [
            Input::Begin { secret: [7; 32] },
            Input::Rules { number: 9, release: "0.9.1" },
            Input::Configure(b"{}"),
            Input::Request { srv: "s", scope: Scope::Trusted, method: 30, body: b"body" },
            Input::Session { srv: "s", up: true },
            Input::Timeout,
            Input::Recovered,
            Input::Durable(9),
            Input::Outputs(u64::MAX - 1),
            Input::Verdict { id: 3, verdict: Some(b"v") },
            Input::Verdict { id: 4, verdict: None },
        ];
        let mut log = Vec::new();
        for (sequence, input) in inputs.iter().enumerate() {
            write_record(&mut log, sequence as u64, 1_000, *input);
        }
        assert_eq!(count_records(&log), inputs.len() as u64);
        let mut rest = &log[..];
        for input in inputs {
            let record = read_record(rest).unwrap();
            assert_eq!(parse_input(record.kind, record.body), Some(input));
            for at in 0..record.len {
                let mut changed = rest[..record.len].to_vec();
                changed[at] ^= 1;
                assert!(read_record(&changed).is_none(), "byte {at} of {input:?}");
            }
            rest = &rest[record.len..];
        }
    }
}
