//! Work without the GIL, and threads that are about it when the interpreter ends.
//!
//! Python's daemon threads are not waited for: while the interpreter ends, whoever asks for the GIL is made
//! to exit, and that cannot be done to a thread with frames of Rust. So a daemon thread that is here stays
//! here: from [`leave`] on, which runs among the first handlers of `atexit`, before anything of Python is
//! gone, no other thread than the one that ends the interpreter comes back.
//!
//! Invariant: a thread that asks for the GIL back is counted before it looks whether the interpreter ends,
//! and [`leave`] says that it ends before it looks whether threads are counted. So it goes on when all of
//! them have it back.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

/// Between two looks at who is on the way back.
const LOOK: Duration = Duration::from_millis(1);

/// The thread that ends the interpreter, once it does.
static LEAVING: OnceLock<ThreadId> = OnceLock::new();
/// Threads that are on their way back.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// What ends the calls that this thread makes, the innermost last.
    static ENDED: RefCell<Vec<Arc<AtomicBool>>> = const { RefCell::new(Vec::new()) };
}

/// Does something without the GIL.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let (done, _returning) = py.detach(|| {
        let done = work();
        (done, Returning::begin())
    });
    done
}

/// Stays here for ever, if the interpreter ends and another thread does that.
pub(crate) fn stay_if_leaving() {
    while is_left_behind() {
        thread::park();
    }
}

/// Whether the interpreter ends, and another thread does that.
fn is_left_behind() -> bool {
    LEAVING.get().is_some_and(|leaver| *leaver != thread::current().id())
}

/// A thread on its way back to Python, while it lives.
struct Returning;

impl Returning {
    fn begin() -> Self {
        RETURNING.fetch_add(1, Ordering::SeqCst);
        let returning = Self;
        if is_left_behind() {
            drop(returning);
            stay_if_leaving();
            unreachable!("it stays");
        }
        returning
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        RETURNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes a call that ends soon after the flag is set.
pub(crate) fn ended_by<T>(flag: &Arc<AtomicBool>, call: impl FnOnce() -> T) -> T {
    struct Last;
    impl Drop for Last {
        fn drop(&mut self) {
            ENDED.with_borrow_mut(Vec::pop);
        }
    }
    ENDED.with_borrow_mut(|flags| flags.push(Arc::clone(flag)));
    let _last = Last;
    call()
}

/// Whether the calls that this thread makes are to end.
pub(crate) fn is_ended() -> bool {
    ENDED.with_borrow(|flags| flags.iter().any(|flag| flag.load(Ordering::Relaxed)))
}

/// Says that the interpreter ends, and waits until the threads that are on their way back are there.
#[pyfunction]
fn leave(py: Python<'_>) {
    let _ = LEAVING.set(thread::current().id());
    py.detach(|| {
        while RETURNING.load(Ordering::SeqCst) > 0 {
            thread::sleep(LOOK);
        }
    });
}

/// Forgets threads that a forked child does not have.
#[pyfunction]
fn forget() {
    RETURNING.store(0, Ordering::SeqCst);
}

/// Has Python call these when it is time to.
pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(leave, module)?,))?;
    let child = [("after_in_child", wrap_pyfunction!(forget, module)?)].into_py_dict(py)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&child))?;
    Ok(())
}
