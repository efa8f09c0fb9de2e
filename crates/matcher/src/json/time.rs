//! Times: milliseconds since the epoch, RFC 3339 text in JSON.

use std::fmt::Write as _;

/// The last day that has a year of four digits.
const MS_MAX: u64 = 253_402_300_799_999;
const DAY_MS: u64 = 86_400_000;

/// Appends RFC 3339 in UTC with milliseconds, quoted. Days to dates after Howard Hinnant's
/// `civil_from_days`.
pub(crate) fn write_time(ms: u64, out: &mut String) {
    let ms = ms.min(MS_MAX);
    let (days, rest) = (ms / DAY_MS, ms % DAY_MS);
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second, milli) =
        (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60, rest % 1_000);
    // Writing to a string cannot fail.
    let _ = write!(out, "\"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z\"");
}

/// Reads what [`write_time`] writes, with any number of digits of the second, or none.
pub(crate) fn parse_time(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':')?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let milli: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let valid = (1970..=9999).contains(&year)
        && (1..=days_in_month).contains(&day)
        && hour < 24
        && minute < 60
        // A leap second.
        && second <= 60;
    if !valid {
        return None;
    }
    let y = if month <= 2 { year - 1 } else { year };
    let (era, yoe) = (y / 400, y % 400);
    let doy = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468;
    Some(days * DAY_MS + hour * 3_600_000 + minute * 60_000 + second * 1_000 + milli)
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let mut parts = text.splitn(3, between).map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_both_ways() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_587_895_868_337, "2020-04-26T10:11:08.337Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (MS_MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            let mut out = String::new();
            write_time(ms, &mut out);
            assert_eq!((out, parse_time(text)), (format!("\"{text}\""), Some(ms)));
        }
        assert_eq!(parse_time("2000-02-29T00:00:00Z"), Some(951_782_400_000));
        for bad in ["", "2020-04-26", "2020-13-01T00:00:00Z", "2021-02-29T00:00:00Z", "x-y-zT1:2:3Z", "é"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }
}
