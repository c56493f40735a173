//! Mutexes of objects that threads of Python share.
//!
//! Invariant: no Python code runs while a thread holds such a lock, not even the code that makes an
//! exception. It may give the GIL to a thread that waits for the lock, and neither would go on.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copy of what a mutex holds. The lock is released when this returns.
pub(crate) fn cloned<T: Clone>(mutex: &Mutex<T>) -> T {
    lock(mutex).clone()
}

/// Takes what a mutex holds out of it. The lock is released when this returns.
pub(crate) fn taken<T>(mutex: &Mutex<Option<T>>) -> Option<T> {
    lock(mutex).take()
}
