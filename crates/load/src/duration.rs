//! Durations as people and Go programs write them: `10ms`, `1m30s`, `1.5h`.

use std::time::Duration;

use thiserror::Error;

/// Text that is no duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a duration; write a number and a unit, as in 500ms, 10s or 1m30s")]
pub struct DurationError(String);

/// Units and their nanoseconds. The longer of two with the same beginning comes first.
const UNITS: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("\u{b5}s", 1e3),
    ("\u{3bc}s", 1e3),
    ("ms", 1e6),
    ("h", 3.6e12),
    ("m", 6e10),
    ("s", 1e9),
];

/// Reads a duration: numbers with units, summed up. A lone `0` needs no unit.
///
/// # Errors
/// When the text is anything else, or negative, or longer than a century.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError(text.to_owned());
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanoseconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
        let number: f64 = rest[..end].parse().map_err(|_| error())?;
        let (unit, factor) =
            UNITS.iter().find(|(unit, _)| rest[end..].starts_with(unit)).ok_or_else(error)?;
        nanoseconds += number * factor;
        rest = &rest[end + unit.len()..];
    }
    let bounded = !text.is_empty() && nanoseconds < 3.2e18;
    if bounded { Ok(Duration::from_nanos(nanoseconds as u64)) } else { Err(error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        let cases = [
            ("10ms", 10),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("0", 0),
            ("5000ms", 5_000),
            ("1h0m0.5s", 3_600_500),
            ("2000us", 2),
        ];
        for (text, ms) in cases {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "10", "ms", "-1s", "1x", "1s2", "1..5s", "99999999h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
