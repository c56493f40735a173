//! Parsers of values that arguments of both programs take: times, sizes and rights.
//!
//! Owns no state. Any thread. Invariant: an error says what to write instead.

use std::time::Duration;

use bytesize::ByteSize;
use plasmon::Rights;

/// Why a text is no time.
pub(crate) const NO_TIME: &str =
    "write a time such as 30, 0.5, 200ms, 30s, 5m, 1h or 2d; without a unit it is seconds";
/// Units of times, with the number of seconds that each has. A unit stands before its own ending.
const UNITS: [(&str, f64); 5] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// Parses a time: a number of seconds, or a number with a unit.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let time = in_seconds(text).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| NO_TIME.to_owned())
}

/// Returns the number of seconds that a text means, which may be negative or infinite. `None` if the text is
/// no number, or has another unit.
pub(crate) fn in_seconds(text: &str) -> Option<f64> {
    let unit = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, seconds) = unit.unwrap_or((text, &1.0));
    Some(number.parse::<f64>().ok()? * seconds)
}

/// Parses a number of bytes, at least one.
pub(crate) fn positive_size(text: &str) -> Result<u64, String> {
    match any_size(text) {
        Ok(0) => Err("a size of 0 holds nothing; write one such as 512MiB or 4GiB".into()),
        size => size,
    }
}

/// Parses a number of bytes.
pub(crate) fn any_size(text: &str) -> Result<u64, String> {
    let size = text.parse::<ByteSize>().map(|size| size.as_u64());
    size.map_err(|_| "write a size such as 4096, 512MiB or 4GiB".into())
}

/// Parses the rights of other users.
pub(crate) fn public(text: &str) -> Result<Rights, String> {
    match text {
        "r" => Ok(Rights::Read),
        "rw" => Ok(Rights::ReadWrite),
        _ => Err("write r (other users may read) or rw (they may delete and move as well)".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_or_are_seconds() {
        let times = ["0", "0.5", "30", "30s", "200ms", "5m", "1h", "2d", "1e3"];
        let parsed = times.map(|text| seconds(text).map(|time| time.as_millis()));
        let expected = [0, 500, 30_000, 30_000, 200, 300_000, 3_600_000, 172_800_000, 1_000_000];
        assert_eq!(parsed, expected.map(Ok));
        for text in ["", "s", "-1s", "-1", "1w", "5 m", "nan", "inf", "1e300d"] {
            let refusal = seconds(text).expect_err(text);
            assert!(refusal.contains("5m"), "{refusal}");
        }
        assert_eq!(
            [in_seconds("-1"), in_seconds("inf"), in_seconds("1w")],
            [Some(-1.0), Some(f64::INFINITY), None]
        );
    }

    #[test]
    fn a_refused_size_says_what_to_write_and_nothing_else() {
        assert_eq!([any_size("0"), any_size("320"), positive_size("4KiB")], [Ok(0), Ok(320), Ok(4096)]);
        let refusal = Err("write a size such as 4096, 512MiB or 4GiB".to_owned());
        for text in ["4GBB", "-1", "", "GiB", "1..5KiB", "0x10"] {
            assert_eq!(positive_size(text), refusal, "{text}");
        }
    }
}
