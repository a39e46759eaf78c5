//! Parses durations on the command line the way kubectl accepts them: `90`, `90s`, `2m`, `1h30m`.

/// Units and how many seconds they have, the longest first, because `1h30m` must be written in this order.
const UNITS: [(char, u64); 3] = [('h', 3600), ('m', 60), ('s', 1)];

/// Longest duration that is accepted, in seconds: a hundred years, which can still be added to any clock value.
const SECONDS_MAX: u64 = 100 * 365 * 24 * 3600;

/// Error for a string that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of seconds, or numbers with the units h, m and s, as in 90, 2m or 1h30m")]
pub struct DurationError;

/// Parses a duration into seconds. A number without a unit means seconds.
///
/// # Errors
/// The string has another form, or the duration exceeds a hundred years.
pub fn seconds(text: &str) -> Result<u64, DurationError> {
    if let Ok(seconds) = digits(text) {
        return limited(seconds);
    }
    let (mut rest, mut total) = (text, 0_u64);
    for (unit, length) in UNITS {
        let Some((number, after)) = rest.split_once(unit) else { continue };
        let piece = digits(number)?.checked_mul(length).ok_or(DurationError)?;
        (total, rest) = (total.checked_add(piece).ok_or(DurationError)?, after);
    }
    if rest.is_empty() && !text.is_empty() { limited(total) } else { Err(DurationError) }
}

fn limited(seconds: u64) -> Result<u64, DurationError> {
    if seconds <= SECONDS_MAX { Ok(seconds) } else { Err(DurationError) }
}

/// Parses a number without a sign; `str::parse` alone would accept `+5`.
fn digits(text: &str) -> Result<u64, DurationError> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().map_err(|_| DurationError),
        false => Err(DurationError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_units_in_their_order_or_is_in_seconds() {
        for (text, expected) in
            [("90", 90), ("0", 0), ("90s", 90), ("2m", 120), ("1h30m", 5400), ("1h5s", 3605), ("1m1s", 61)]
        {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "s",
            "-1",
            "+1",
            "1.5m",
            "1s2m",
            "1m2",
            "1d",
            "h1",
            "1 m",
            "99999999999999999999",
            "9999999999999999",
            "9999999999999999h",
        ] {
            assert_eq!(seconds(wrong), Err(DurationError), "{wrong}");
        }
    }
}
