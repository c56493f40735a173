//! Locks and barriers, for Python: the native bases of `plasmon.Lock` and `plasmon.Barrier`, and guards.
//!
//! Owns handles, guards, and waits that were begun for an event loop. Any thread. All waits are made without
//! the GIL. Invariant: no Python code runs, and nobody waits with the GIL, while one of them is locked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plasmon::sync::{AwaitedGuard, AwaitedPassage, Barrier, Guard, Lock, LockOptions, MAX_TTL, MIN_TTL};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind};
use pyo3::prelude::*;

use crate::client::Client;
use crate::detached::{detached, ended_by, without_signals};
use crate::error::{closed, invalid, raised};
use crate::given::given;
use crate::lock::{cloned, lock, taken};
use crate::terms::{Text, duration};

/// Native base of `plasmon.Lock`: a handle to a lock.
#[pyclass(frozen, subclass, weakref, module = "plasmon._internal")]
pub(crate) struct LockHandle {
    /// Lock. `None` once closed.
    lock: Mutex<Option<Lock>>,
    name: String,
    /// Whether the client is closed.
    closing: Arc<AtomicBool>,
}

#[pymethods]
impl LockHandle {
    #[new]
    fn new(
        py: Python<'_>,
        client: &Client,
        name: Text,
        #[pyo3(from_py_with = given)] ttl: f64,
        #[pyo3(from_py_with = given)] shared: bool,
        #[pyo3(from_py_with = given)] public: bool,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<Self> {
        let ttl = Duration::try_from_secs_f64(ttl).map_err(|_| {
            let (name, [min, max]) = (printable(&name), [MIN_TTL, MAX_TTL].map(|ttl| ttl.as_secs_f64()));
            invalid(py, &format!("the ttl of lock '{name}' is {min} to {max} seconds, not {ttl}"))
        })?;
        let options = LockOptions { ttl, shared, public, timeout: duration(py, timeout)? };
        let made = client.run(py, |client| Lock::new(client, &name, &options))?;
        let made = made.map_err(|error| raised(py, &error))?;
        Ok(Self { lock: Mutex::new(Some(made)), name: name.into(), closing: Arc::clone(&client.closing) })
    }

    /// Whether `close` was called, or the client is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.closing.load(Ordering::Relaxed) || lock(&self.lock).is_none()
    }

    /// Waits for the lock, for ever if there is no time-out.
    fn take(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<GuardHandle> {
        let (lock, timeout) = (self.lock(py)?, duration(py, timeout)?);
        let taken = detached(py, || ended_by(&self.closing, || lock.take(timeout)));
        let guard = taken.map_err(|error| raised(py, &told(error, &self.closing)))?;
        Ok(GuardHandle::new(guard, &self.closing))
    }

    /// Begins to wait for the lock, for an event loop.
    fn begin(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<AwaitedSync> {
        let begun = self.lock(py)?.await_guard(duration(py, timeout)?);
        begun
            .map(|begun| AwaitedSync::new(Begun::Lock(begun), &self.closing))
            .map_err(|error| raised(py, &error))
    }

    /// Gives the handle up. Guards of the lock stay.
    fn end(&self, py: Python<'_>) {
        py.detach(|| drop(taken(&self.lock)));
    }
}

impl LockHandle {
    fn lock(&self, py: Python<'_>) -> PyResult<Lock> {
        let given_up = || format!("this handle to lock '{}' is closed: make another", self.name);
        of_open(py, &self.lock, &self.closing, given_up)
    }
}

/// Content of a handle, unless it or its client is closed.
fn of_open<T: Clone>(
    py: Python<'_>,
    held: &Mutex<Option<T>>,
    closing: &AtomicBool,
    given_up: impl FnOnce() -> String,
) -> PyResult<T> {
    if closing.load(Ordering::Relaxed) {
        return Err(raised(py, &closed()));
    }
    cloned(held).ok_or_else(|| invalid(py, &given_up()))
}

/// Error of a wait that the end of the client may have ended.
fn told(error: Error, closing: &AtomicBool) -> Error {
    match error.kind() {
        ErrorKind::Interrupted if closing.load(Ordering::Relaxed) => closed(),
        _ => error,
    }
}

/// Possession of a lock: native base of `plasmon.Guard`.
#[pyclass(frozen, weakref, name = "Guard", module = "plasmon._internal")]
pub(crate) struct GuardHandle {
    /// Guard. `None` once it is dropped.
    guard: Mutex<Option<Arc<Guard>>>,
    token: u128,
    abandoned: bool,
    closing: Arc<AtomicBool>,
}

impl GuardHandle {
    fn new(guard: Guard, closing: &Arc<AtomicBool>) -> Self {
        let (token, abandoned) = (guard.token(), guard.abandoned());
        Self { guard: Mutex::new(Some(Arc::new(guard))), token, abandoned, closing: Arc::clone(closing) }
    }

    /// Guard, for a call that shows it.
    pub(crate) fn shown(&self, py: Python<'_>) -> PyResult<Arc<Guard>> {
        let over = || Error::new(ErrorKind::Fenced, "this guard was released: nothing was written");
        cloned(&self.guard).ok_or_else(|| raised(py, &over()))
    }
}

#[pymethods]
impl GuardHandle {
    /// Whether the lock is held now.
    ///
    /// The look costs less than a microsecond. The answer says nothing of the time after it, in which the
    /// program may be stopped: `Region.write(fence=guard)` refuses a write that comes too late.
    #[getter]
    fn valid(&self) -> bool {
        !self.closing.load(Ordering::Relaxed)
            && lock(&self.guard).as_ref().is_some_and(|guard| guard.is_valid())
    }

    /// Token of the guard: larger than that of every guard of this lock before.
    #[getter]
    fn token(&self) -> u128 {
        self.token
    }

    /// Whether the holder before died or lost the lock, so that what it changed may be half done.
    #[getter]
    fn abandoned(&self) -> bool {
        self.abandoned
    }

    /// Whether `release` was called, or the block was left.
    #[getter]
    fn released(&self) -> bool {
        lock(&self.guard).is_none()
    }

    /// Unlocks. A second call does nothing.
    ///
    /// Raises:
    ///     Fenced: The lock was lost before: others may have held it since.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let Some(guard) = taken(&self.guard) else { return Ok(()) };
        let unlocked = detached(py, || {
            let unlocked = guard.unlock();
            drop(guard);
            unlocked
        });
        unlocked.map_err(|error| raised(py, &error))
    }

    /// Unlocks, and tells no error.
    fn give_up(&self, py: Python<'_>) {
        let guard = taken(&self.guard);
        detached(py, || without_signals(|| drop(guard)));
    }

    fn __repr__(&self) -> String {
        let state = if self.valid() { "valid" } else { "not valid" };
        format!("<plasmon.Guard {:#x}, {state}>", self.token)
    }
}

impl Drop for GuardHandle {
    fn drop(&mut self) {
        let Some(guard) = taken(&self.guard) else { return };
        // Unlocking waits for the node, which other threads of Python must not.
        let mut guard = Some(guard);
        Python::try_attach(|py| {
            let guard = guard.take();
            detached(py, || drop(guard));
        });
    }
}

/// Native base of `plasmon.Barrier`: a handle to a barrier, which is one of its parties.
#[pyclass(frozen, subclass, weakref, module = "plasmon._internal")]
pub(crate) struct BarrierHandle {
    /// Barrier. `None` once closed.
    barrier: Mutex<Option<Barrier>>,
    name: String,
    parties: u32,
    /// Whether the client is closed.
    closing: Arc<AtomicBool>,
}

#[pymethods]
impl BarrierHandle {
    #[new]
    fn new(
        py: Python<'_>,
        client: &Client,
        name: Text,
        #[pyo3(from_py_with = given)] parties: u32,
        #[pyo3(from_py_with = given)] public: bool,
    ) -> PyResult<Self> {
        let made = client.run(py, |client| Barrier::new(client, &name, parties, public))?;
        let made = made.map_err(|error| raised(py, &error))?;
        let closing = Arc::clone(&client.closing);
        Ok(Self { barrier: Mutex::new(Some(made)), name: name.into(), parties, closing })
    }

    /// Number of parties.
    #[getter]
    fn parties(&self) -> u32 {
        self.parties
    }

    /// Whether `close` was called, or the client is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.closing.load(Ordering::Relaxed) || lock(&self.barrier).is_none()
    }

    /// Waits until all parties have arrived. Returns the place of this one among them, from 0.
    ///
    /// Args:
    ///     timeout: Time in seconds to wait; by default there is no limit. A party that waits no longer
    ///         breaks the barrier.
    ///
    /// Raises:
    ///     BarrierBroken: A party died, left or waited no longer. The error says who.
    ///     TimedOut: Not all parties arrived in time.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, #[pyo3(from_py_with = given)] timeout: Option<f64>) -> PyResult<u64> {
        let (barrier, timeout) = (self.barrier(py)?, duration(py, timeout)?);
        let passed = detached(py, || ended_by(&self.closing, || barrier.wait(timeout)));
        passed.map_err(|error| raised(py, &told(error, &self.closing)))
    }

    /// Begins to wait at the barrier, for an event loop.
    fn begin(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = given)] timeout: Option<f64>,
    ) -> PyResult<AwaitedSync> {
        let begun = self.barrier(py)?.await_passage(duration(py, timeout)?);
        let begun = begun.map(|begun| AwaitedSync::new(Begun::Barrier(begun), &self.closing));
        begun.map_err(|error| raised(py, &error))
    }

    /// Leaves the barrier, which breaks it for those who wait there.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(taken(&self.barrier)));
    }
}

impl BarrierHandle {
    fn barrier(&self, py: Python<'_>) -> PyResult<Barrier> {
        let given_up = || format!("this handle to barrier '{}' is closed: make another", self.name);
        of_open(py, &self.barrier, &self.closing, given_up)
    }
}

/// Wait for a lock or at a barrier that was begun for an event loop.
#[pyclass(frozen, module = "plasmon._internal")]
pub(crate) struct AwaitedSync {
    number: u64,
    /// Wait. `None` once it has ended.
    begun: Mutex<Option<Begun>>,
    closing: Arc<AtomicBool>,
}

enum Begun {
    Lock(AwaitedGuard),
    Barrier(AwaitedPassage),
}

impl AwaitedSync {
    fn new(begun: Begun, closing: &Arc<AtomicBool>) -> Self {
        let number = match &begun {
            Begun::Lock(begun) => begun.number(),
            Begun::Barrier(begun) => begun.number(),
        };
        Self { number, begun: Mutex::new(Some(begun)), closing: Arc::clone(closing) }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Begun> {
        taken(&self.begun).ok_or_else(|| invalid(py, "this wait has ended already"))
    }
}

#[pymethods]
impl AwaitedSync {
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// Time in seconds from now on after which the loop asks again, and gives the wait up if the answer is 0.
    /// `None` if it has no end.
    fn patience(&self) -> Option<f64> {
        let patience = match &mut *lock(&self.begun) {
            Some(Begun::Lock(begun)) => begun.patience(),
            Some(Begun::Barrier(begun)) => begun.patience(),
            None => None,
        };
        patience.map(|patience| patience.as_secs_f64())
    }

    /// Guard, or place among the parties, when the reply has come.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.take(py)? {
            Begun::Lock(begun) => {
                let guard = begun.guard().map_err(|error| raised(py, &error))?;
                Ok(Bound::new(py, GuardHandle::new(guard, &self.closing))?.into_any())
            }
            Begun::Barrier(begun) => {
                Ok(begun.index().map_err(|error| raised(py, &error))?.into_pyobject(py)?.into_any())
            }
        }
    }

    /// Exception that says that the reply has not come in time. The wait is given up.
    fn late(&self, py: Python<'_>) -> PyErr {
        let late = self.take(py).map(|begun| match begun {
            Begun::Lock(begun) => begun.late(),
            Begun::Barrier(begun) => begun.late(),
        });
        late.map_or_else(|error| error, |late| raised(py, &late))
    }

    /// Gives the wait up, if it has not ended.
    fn cancel(&self) {
        drop(taken(&self.begun));
    }
}
