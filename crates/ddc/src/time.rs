//! Wall time as the cache stores and prints it.

use std::time::Duration;

/// A moment: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// A moment from its milliseconds since 1970.
    #[must_use]
    pub const fn from_unix_ms(ms: u64) -> Timestamp {
        Timestamp(ms)
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero if that is later.
    #[must_use]
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// This moment and `duration`, at most the last one that can be stored.
    #[must_use]
    pub fn after(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// `2020-05-13T15:10:00.000Z`.
    #[must_use]
    pub fn iso_8601(self) -> String {
        iso_8601((self.0 / 1000).cast_signed() + UNIX_EPOCH_S, self.0 % 1000)
    }

    /// `05/13/2020 15:10:00`, as the last-access header wants it.
    #[must_use]
    pub fn month_first(self) -> String {
        let seconds = (self.0 / 1000).cast_signed() + UNIX_EPOCH_S;
        let (year, month, day) = civil(seconds);
        let (hour, minute, second) = clock(seconds);
        let Ok(year @ 0..=9999) = u16::try_from(year) else {
            return format!("{month:02}/{day:02}/{year:04} {hour:02}:{minute:02}:{second:02}");
        };
        // Most answers with a ref carry this text, and a formatter would take a tenth of their
        // time.
        let mut text = *b"MM/DD/YYYY hh:mm:ss";
        let century = ((year / 100) as u8, 6);
        let parts =
            [(month, 0), (day, 3), century, ((year % 100) as u8, 8), (hour, 11), (minute, 14), (second, 17)];
        for (number, at) in parts {
            (text[at], text[at + 1]) = (b'0' + number / 10, b'0' + number % 10);
        }
        std::str::from_utf8(&text).unwrap_or_default().to_owned()
    }
}

/// 100 ns ticks since 0001-01-01, as compact binary stores moments, in ISO 8601 with milliseconds.
pub(crate) fn ticks_to_iso_8601(ticks: i64) -> String {
    let ms = ticks.div_euclid(10_000);
    iso_8601(ms.div_euclid(1000), ms.rem_euclid(1000).unsigned_abs())
}

/// A duration of 100 ns ticks as `[-][d.]hh:mm:ss.fffffff`.
pub(crate) fn time_span(ticks: i64) -> String {
    let sign = if ticks < 0 { "-" } else { "" };
    let ticks = ticks.unsigned_abs();
    let (seconds, fraction) = (ticks / 10_000_000, ticks % 10_000_000);
    let days = match seconds / 86_400 {
        0 => String::new(),
        days => format!("{days}."),
    };
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{sign}{days}{hour:02}:{minute:02}:{second:02}.{fraction:07}")
}

/// From 0001-01-01 to 1970-01-01.
const UNIX_EPOCH_S: i64 = 719_162 * DAY_S;
const DAY_S: i64 = 86_400;

fn iso_8601(seconds_since_year_1: i64, ms: u64) -> String {
    let (year, month, day) = civil(seconds_since_year_1);
    let (hour, minute, second) = clock(seconds_since_year_1);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Hour, minute and second of the day.
fn clock(seconds: i64) -> (u8, u8, u8) {
    let seconds = seconds.rem_euclid(DAY_S);
    ((seconds / 3600) as u8, (seconds / 60 % 60) as u8, (seconds % 60) as u8)
}

/// Year, month and day in the proleptic Gregorian calendar.
///
/// Counts from 1 March of year 0, so that leap days end a year: 400 years are 146,097 days, and the
/// months from March have 31, 30, 31, 30, 31 days over and over, which is (153 * month + 2) / 5.
fn civil(seconds_since_year_1: i64) -> (i64, u8, u8) {
    let days = seconds_since_year_1.div_euclid(DAY_S) + 306;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month as u8, day as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_589_382_600, "2020-05-13T15:10:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp::from_unix_ms(unix_seconds * 1000).iso_8601(), expected);
        }
        assert_eq!(Timestamp::from_unix_ms(1_589_382_600_000).month_first(), "05/13/2020 15:10:00");
        let last = Timestamp::from_unix_ms(u64::MAX);
        assert_eq!(last.month_first(), "04/03/584556019 14:25:51");
        assert_eq!(last.iso_8601(), "584556019-04-03T14:25:51.615Z");
        assert_eq!(Timestamp::from_unix_ms(253_402_300_799_999).month_first(), "12/31/9999 23:59:59");
        assert_eq!(ticks_to_iso_8601(0), "0001-01-01T00:00:00.000Z");
        for extreme in [i64::MIN, -1, i64::MAX] {
            assert!(ticks_to_iso_8601(extreme).ends_with('Z'));
        }
    }

    #[test]
    fn spans_have_days_only_when_they_need_them() {
        assert_eq!(time_span(10_000_000), "00:00:01.0000000");
        assert_eq!(time_span(-1), "-00:00:00.0000001");
        assert_eq!(time_span(864_000_000_000 + 36_000_000_000), "1.01:00:00.0000000");
        assert!(time_span(i64::MIN).starts_with("-10675199."));
    }
}
