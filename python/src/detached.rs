//! Work without the GIL, and threads that do such work when the interpreter ends.
//!
//! Python does not wait for its daemon threads. While the interpreter ends, a thread that asks for the GIL is
//! made to exit, which must not happen to a thread with Rust frames. So such a thread stays in this module.
//! [`leave`] runs among the first handlers of `atexit`, before any part of Python is gone. After that only
//! the thread that ends the interpreter gets the GIL back.
//!
//! Invariant: a thread that asks for the GIL is counted before it checks whether the interpreter ends, and
//! [`leave`] announces the end before it checks whether threads are counted. So `leave` returns only when all
//! counted threads have the GIL.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

/// Time between two checks for threads that are returning to Python.
const RETURN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Thread that ends the interpreter. Unset until it does.
static LEAVING: OnceLock<ThreadId> = OnceLock::new();
/// Number of threads that are returning to Python.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Flags that end the calls of this thread, the innermost call last.
    static ENDED: RefCell<Vec<Arc<AtomicBool>>> = const { RefCell::new(Vec::new()) };
    /// Whether the calls of this thread look for no signals.
    static DEAF: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without the GIL.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let (done, _returning) = py.detach(|| {
        let done = work();
        (done, Returning::begin())
    });
    done
}

/// Blocks this thread for ever if another thread is ending the interpreter.
pub(crate) fn stay_if_leaving() {
    while is_left_behind() {
        thread::park();
    }
}

/// Whether another thread is ending the interpreter.
fn is_left_behind() -> bool {
    LEAVING.get().is_some_and(|leaver| *leaver != thread::current().id())
}

/// Mark of a thread that is returning to Python, as long as it lives.
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

/// Whether the calls of this thread are to end.
pub(crate) fn is_ended() -> bool {
    ENDED.with_borrow(|flags| flags.iter().any(|flag| flag.load(Ordering::Relaxed)))
}

/// Makes a call that does not look for signals, of a thread of a server: it takes no GIL while it waits.
pub(crate) fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            DEAF.set(self.0);
        }
    }
    let _before = Before(DEAF.replace(true));
    call()
}

/// Whether the calls of this thread look for no signals.
pub(crate) fn is_deaf() -> bool {
    DEAF.get()
}

/// Announces the end of the interpreter, and waits for the threads that are returning to Python.
#[pyfunction]
fn leave(py: Python<'_>) {
    let _ = LEAVING.set(thread::current().id());
    py.detach(|| {
        while RETURNING.load(Ordering::SeqCst) > 0 {
            thread::sleep(RETURN_CHECK_INTERVAL);
        }
    });
}

/// Resets the count of threads in a forked child, which has none of them.
#[pyfunction]
fn forget() {
    RETURNING.store(0, Ordering::SeqCst);
}

/// Registers the functions that Python calls at its end and after a fork.
pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(leave, module)?,))?;
    let child = [("after_in_child", wrap_pyfunction!(forget, module)?)].into_py_dict(py)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&child))?;
    Ok(())
}
