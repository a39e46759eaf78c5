//! Formats times for people: UTC in RFC 3339 format, and ages the way kubectl prints them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// Returns the current time, in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Formats seconds since 1970 as a UTC time in RFC 3339 format.
pub fn utc(seconds: u64) -> String {
    // Days are counted from 0000-03-01, so that a leap day is the last day in its year.
    let (day, time) = (seconds / DAY + 719_468, seconds % DAY);
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z", era * 400 + year + next)
}

/// Parses a time that [`utc`] wrote into seconds since 1970; `None` for any other format.
pub fn parse_utc(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z')?;
    let (date, time) = text.split_once('T')?;
    let number = |text: &str| text.parse::<u64>().ok();
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    // Fractions are ignored.
    let mut time = time.split_once('.').map_or(time, |(time, _)| time).splitn(3, ':').map(number);
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some(days.checked_sub(719_468)? * DAY + hour * 3_600 + minute * 60 + second)
}

/// Formats an age as kubectl does: `45s`, `12m`, `3h`, `9d`.
pub fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / DAY),
    }
}

/// Formats the age of a time in seconds since 1970. A time in the future (clock skew) has age zero.
pub fn age_of(seconds: u64) -> String {
    age(Duration::from_secs(now().saturating_sub(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_in_utc_is_written_and_read() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_638_369, "2026-11-25T20:26:09Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!((utc(seconds).as_str(), parse_utc(text)), (text, Some(seconds)));
        }
        assert_eq!(parse_utc("2026-11-25T20:26:09.123456Z"), Some(1_795_638_369));
        for wrong in ["", "2026-11-25", "2026-13-25T20:26:09Z", "2026-11-25T20:26:09+01:00", "x-1-1T0:0:0Z"] {
            assert_eq!(parse_utc(wrong), None, "{wrong}");
        }
        assert!(!utc(u64::MAX / 1_000_000).is_empty());
    }

    #[test]
    fn timestamp_age_has_the_units_of_kubectl() {
        for (seconds, text) in [(0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
