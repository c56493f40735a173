//! Values that are stored from several buffers. Plain functions, any thread that has the GIL.

use pyo3::prelude::*;

use crate::memory::Bytes;

/// Pieces of a value, each with its offset.
pub(crate) type Parts<'py> = Vec<(usize, Bound<'py, PyAny>)>;

/// Buffers of parts, held in place.
pub(crate) fn held(parts: &[(usize, Bound<'_, PyAny>)]) -> PyResult<Vec<(usize, Bytes)>> {
    parts.iter().map(|(at, part)| Ok((*at, Bytes::of(part)?))).collect()
}

/// Bytes of parts that are held.
pub(crate) fn slices(parts: &[(usize, Bytes)]) -> Vec<(usize, &[u8])> {
    parts.iter().map(|(at, part)| (*at, part.as_slice())).collect()
}
