//! Threads that do work of a volume for which no caller waits.
//!
//! Owns jobs and threads. Any thread hands jobs in. A thread is started when there are more jobs than idle
//! threads, up to a limit, and ends when it has been idle for [`IDLE_TIME`]. Invariants: jobs begin in their
//! order; a job that was taken in is done, also when the volume ends or another job panics; a thread that is
//! counted looks for another job before it ends.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Time without a job after which a thread ends.
const IDLE_TIME: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// Handle of the threads. Threads are started only when there are jobs.
pub(super) struct Background(Arc<Jobs>);

struct Jobs {
    name: &'static str,
    most: usize,
    queue: Mutex<Queue>,
    came: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Number of threads that wait for a job.
    idle: usize,
    /// Whether no further jobs will come.
    over: bool,
}

impl Background {
    /// Returns a handle of at most `most` threads of this name.
    pub(super) fn new(name: &'static str, most: usize) -> Self {
        let (queue, came) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Jobs { name, most, queue, came }))
    }

    /// Has a job done by one of the threads. If there is no thread and none can be started, the caller does
    /// all jobs of the queue.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let Some(mut queue) = self.push(Box::new(job)) else { return };
        while let Some(job) = queue.jobs.pop_front() {
            MutexGuard::unlocked(&mut queue, job);
        }
    }

    /// Has a job done by one of the threads; the job may wait for locks that the caller has. Returns whether
    /// there is a thread. Otherwise the job is dropped.
    pub(super) fn offer(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let Some(mut queue) = self.push(Box::new(job)) else { return true };
        let job = queue.jobs.pop_back();
        drop(queue);
        drop(job);
        false
    }

    /// Adds a job. Returns the queue if there is no thread, and none can be started.
    fn push(&self, job: Job) -> Option<MutexGuard<'_, Queue>> {
        let mut queue = self.0.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            self.0.came.notify_one();
            return None;
        }
        if queue.threads == self.0.most {
            return None;
        }
        let jobs = Arc::clone(&self.0);
        // A thread takes no job before the queue is unlocked.
        match thread::Builder::new().name(self.0.name.to_owned()).spawn(move || jobs.work()) {
            Ok(_) => queue.threads += 1,
            Err(_) if queue.threads > 0 => {}
            Err(_) => return Some(queue),
        }
        None
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.queue.lock().over = true;
        self.0.came.notify_all();
    }
}

impl Jobs {
    /// Does jobs until there has been none for [`IDLE_TIME`].
    fn work(&self) {
        while let Some(job) = self.next() {
            // A job that panics tells its outcome when its state is dropped. The thread goes on.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    /// Returns the next job. `None` if the thread is to end; the thread is not counted any more.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.over {
                break;
            }
            queue.idle += 1;
            let waited = self.came.wait_for(&mut queue, IDLE_TIME);
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                break;
            }
        }
        // The next job has to start a thread, unless one is left.
        queue.threads -= 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn all_jobs_are_done_by_no_more_threads_than_there_may_be() {
        let background = Background::new("test", 2);
        let (done, told) = channel();
        for number in 0..50 {
            let done = done.clone();
            background.run(move || done.send((number, thread::current().id())).expect("the test listens"));
        }
        // Jobs that were taken in are done when no more come.
        drop((background, done));
        let all: Vec<_> = told.iter().collect();
        let mut numbers: Vec<_> = all.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>());
        let threads: std::collections::HashSet<_> = all.iter().map(|(_, thread)| *thread).collect();
        assert!(threads.len() <= 2, "{threads:?}");
    }

    #[test]
    fn a_job_that_waits_for_another_is_not_waited_for_itself() {
        let background = Background::new("test", 2);
        let (go, gone) = channel::<()>();
        let (done, told) = channel();
        background.run(move || done.send(gone.recv().is_ok()).expect("the test listens"));
        background.run(move || go.send(()).expect("the other waits"));
        assert_eq!(told.recv(), Ok(true));
    }

    #[test]
    fn a_job_that_panics_takes_no_thread_from_the_others() {
        let background = Background::new("test", 1);
        let (done, told) = channel();
        for number in 0..3 {
            let done = done.clone();
            background.run(move || {
                assert_ne!(number, 1, "this job panics");
                done.send(number).expect("the test listens");
            });
        }
        drop(done);
        assert_eq!(told.iter().collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn a_job_that_is_offered_is_done_by_a_thread() {
        let background = Background::new("test", 1);
        let (done, told) = channel();
        assert!(background.offer(move || done.send(thread::current().id()).expect("the test listens")));
        assert_ne!(told.recv().expect("it is done"), thread::current().id());
    }
}
