//! Parsers of values that arguments of both programs take: times, sizes and rights.
//!
//! Owns no state. Any thread. Invariant: an error says what to write instead.

use std::time::Duration;

use bytesize::ByteSize;
use plasmon::Rights;

/// Parses a time in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "write a number of seconds such as 0.5 or 30".into())
}

/// Parses a number of bytes, at least one.
pub(crate) fn positive_size(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>() {
        Ok(size) if size.as_u64() > 0 => Ok(size.as_u64()),
        Ok(_) => Err("a size of 0 holds nothing; write one such as 512MiB or 4GiB".into()),
        Err(error) => Err(format!("{error}; write a size such as 512MiB or 4GiB")),
    }
}

/// Parses the rights of other users.
pub(crate) fn public(text: &str) -> Result<Rights, String> {
    match text {
        "r" => Ok(Rights::Read),
        "rw" => Ok(Rights::ReadWrite),
        _ => Err("write r (other users may read) or rw (they may delete and move as well)".into()),
    }
}
