//! The tasks of the engine: async functions that run until they wait for something.
//!
//! Owns all tasks. Engine thread only, but wakers of tasks may be used by any thread. Unlike an executor of
//! the library, [`Tasks`] says whether a task has been woken, so the engine knows whether a turn is due. It
//! runs no task outside of [`Tasks::run_until_stalled`]. A task runs in the [class] of what
//! spawned it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::StreamExt;
use futures::future::{FutureExt, LocalBoxFuture};
use futures::stream::FuturesUnordered;
use futures::task::{ArcWake, waker};
use plasmon::Class;

use super::class;

/// Tasks that were spawned and have not been looked at.
type Spawned = RefCell<Vec<Task>>;

/// A task, and the class of its work.
struct Task {
    class: Class,
    work: LocalBoxFuture<'static, ()>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        class::within(self.class, || self.work.as_mut().poll(context))
    }
}

/// All tasks of an engine. Dropping this drops the tasks.
pub(crate) struct Tasks {
    running: FuturesUnordered<Task>,
    spawned: Rc<Spawned>,
    woken: Arc<Woken>,
}

/// Whether a task was woken since all tasks stalled.
struct Woken(AtomicBool);

impl ArcWake for Woken {
    fn wake_by_ref(woken: &Arc<Self>) {
        woken.0.store(true, Ordering::Release);
    }
}

impl Tasks {
    /// Makes an engine's tasks, of which there are none so far.
    pub(crate) fn new() -> Self {
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        Self { running: FuturesUnordered::new(), spawned: Rc::default(), woken }
    }

    /// Returns what spawns further tasks.
    pub(crate) fn spawner(&self) -> Spawner {
        Spawner(Rc::downgrade(&self.spawned))
    }

    /// Whether a task has something to do.
    pub(crate) fn are_woken(&self) -> bool {
        self.woken.0.load(Ordering::Acquire) || !self.spawned.borrow().is_empty()
    }

    /// Runs the tasks that have something to do, until all wait.
    pub(crate) fn run_until_stalled(&mut self) {
        while self.are_woken() {
            self.woken.0.store(false, Ordering::Release);
            let waker = waker(Arc::clone(&self.woken));
            let mut context = Context::from_waker(&waker);
            loop {
                self.running.extend(self.spawned.take());
                if !matches!(self.running.poll_next_unpin(&mut context), Poll::Ready(Some(()))) {
                    break;
                }
            }
        }
    }
}

/// Spawns tasks of an engine.
pub(crate) struct Spawner(Weak<Spawned>);

impl Spawner {
    /// Adds a task; `false` if the engine has ended.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) -> bool {
        let Some(spawned) = self.0.upgrade() else { return false };
        spawned.borrow_mut().push(Task { class: class::current(), work: task.boxed_local() });
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::channel::oneshot;

    use super::*;

    #[test]
    fn tasks_run_until_all_wait() {
        let mut tasks = Tasks::new();
        assert!(!tasks.are_woken());
        let (spawner, done) = (Rc::new(tasks.spawner()), Rc::new(Cell::new(0)));
        let (sender, receiver) = oneshot::channel::<()>();
        let (again, count) = (Rc::clone(&spawner), Rc::clone(&done));
        let spawned = spawner.spawn(async move {
            receiver.await.expect("it is told");
            count.set(count.get() + 1);
            // A task that another task spawns runs as well.
            again.spawn(async move { count.set(count.get() + 1) });
        });
        assert!(spawned && tasks.are_woken());
        tasks.run_until_stalled();
        assert!(!tasks.are_woken() && done.get() == 0);
        sender.send(()).expect("it is awaited");
        assert!(tasks.are_woken());
        tasks.run_until_stalled();
        assert!(!tasks.are_woken() && done.get() == 2);
        drop(tasks);
        assert!(!spawner.spawn(async {}), "an engine that has ended takes no task");
    }

    #[test]
    fn another_thread_wakes_a_task() {
        let mut tasks = Tasks::new();
        let (sender, receiver) = oneshot::channel::<()>();
        tasks.spawner().spawn(receiver.map(|told| told.expect("it is told")));
        tasks.run_until_stalled();
        std::thread::spawn(|| sender.send(())).join().expect("it ends").expect("it is awaited");
        assert!(tasks.are_woken());
        tasks.run_until_stalled();
        assert!(!tasks.are_woken());
    }
}
