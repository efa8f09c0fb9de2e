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

/// Reads a duration longer than zero.
///
/// # Errors
/// As [`parse`]; also for zero.
pub fn positive(text: &str) -> Result<Duration, String> {
    let duration = parse(text).map_err(|error| error.to_string())?;
    if duration.is_zero() { Err("it must be longer than 0".to_owned()) } else { Ok(duration) }
}

/// Writes a duration in messages: `81 ms`, `1.5 s`, `60 s`.
#[must_use]
pub fn short(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds => format!("{seconds:.0} s"),
    }
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
    fn messages_have_rounded_durations() {
        let shown = [80_950_519, 1_500_000_000, 60_009_847_363].map(|ns| short(Duration::from_nanos(ns)));
        assert_eq!(shown, ["81 ms", "1.5 s", "60 s"]);
    }

    #[test]
    fn other_text_is_refused() {
        assert!(positive("0s").is_err() && positive("1ms").is_ok());
        for text in ["", "10", "ms", "-1s", "1x", "1s2", "1..5s", "99999999h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
