//! Classes of single operations, for Python.
//!
//! Owns no state: what was chosen is a context variable of `plasmon._classes`, so that each thread and each
//! task of an event loop has its own choice. Any thread, with the GIL where it looks.

use plasmon::Class;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::detached::detached;
use crate::error::invalid;

/// Method that tells what this thread or task has chosen.
static CHOSEN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Class that an operation names, else the one that this thread or task has chosen, if any.
pub(crate) fn chosen(py: Python<'_>, named: Option<&str>) -> PyResult<Option<Class>> {
    let parse = |name: &str| name.parse().map_err(|error: String| invalid(py, &error));
    if let Some(name) = named {
        return parse(name).map(Some);
    }
    let get = CHOSEN.get_or_try_init(py, || {
        let chosen = py.import("plasmon._classes")?.getattr("CHOSEN")?;
        chosen.getattr("get").map(Bound::unbind)
    })?;
    let chosen: Option<String> = get.bind(py).call0()?.extract()?;
    chosen.as_deref().map(parse).transpose()
}

/// Does what begins an operation of a class, or of its client's.
pub(crate) fn during<T>(class: Option<Class>, act: impl FnOnce() -> T) -> T {
    match class {
        Some(class) => class.during(act),
        None => act(),
    }
}

/// Runs `work` without the GIL, of a class as [`chosen`] finds it.
pub(crate) fn classed<T: Send>(
    py: Python<'_>,
    named: Option<&str>,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let class = chosen(py, named)?;
    Ok(detached(py, || during(class, work)))
}
