//! Time-outs as people and programs write them: in seconds. Owns no state. Any thread.

use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// Converts a number of seconds into a time-out. `None`, for no limit, if the number is infinite or too large
/// for a `Duration`.
///
/// # Errors
/// `Invalid` for a negative number and for NaN.
pub fn timeout(seconds: f64) -> Result<Option<Duration>> {
    if seconds >= 0.0 {
        return Ok(Duration::try_from_secs_f64(seconds).ok());
    }
    let text = "a time-out is a number of seconds, 0 or more; infinity means no limit";
    Err(Error::new(ErrorKind::Invalid, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_zero_or_more() {
        assert_eq!(timeout(0.0), Ok(Some(Duration::ZERO)));
        assert_eq!(timeout(-0.0), Ok(Some(Duration::ZERO)));
        assert_eq!(timeout(0.5), Ok(Some(Duration::from_millis(500))));
        assert_eq!(timeout(f64::INFINITY), Ok(None));
        assert_eq!(timeout(f64::MAX), Ok(None));
        for wrong in [-1.0, -1e-9, f64::NAN, f64::NEG_INFINITY] {
            let error = timeout(wrong).expect_err("it makes no sense");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
