//! Threads that do for a volume what no caller waits for yet.
//!
//! Owns jobs and threads. Any thread has a job done. A thread is started when there are more jobs than
//! threads that have nothing to do, up to a limit, and ends when it has had nothing to do for a while.
//! Invariants: jobs begin in their order; a job that was taken in is done, also when the volume ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Time without a job after which a thread ends.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// Threads, none of which runs before there is something to do.
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
    /// Whether no further jobs come.
    over: bool,
}

impl Background {
    /// So many threads at most, of this name.
    pub(super) fn new(name: &'static str, most: usize) -> Self {
        let (queue, came) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Jobs { name, most, queue, came }))
    }

    /// Has a job done by one of the threads. Without any thread the caller does what there is to do.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.0.queue.lock();
        queue.jobs.push_back(Box::new(job));
        if queue.idle >= queue.jobs.len() {
            self.0.came.notify_one();
            return;
        }
        if queue.threads == self.0.most {
            return;
        }
        let jobs = Arc::clone(&self.0);
        // A thread takes no job before the queue is free.
        match thread::Builder::new().name(self.0.name.to_owned()).spawn(move || jobs.work()) {
            Ok(_) => queue.threads += 1,
            Err(_) if queue.threads > 0 => {}
            Err(_) => {
                while let Some(job) = queue.jobs.pop_front() {
                    drop(queue);
                    job();
                    queue = self.0.queue.lock();
                }
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.queue.lock().over = true;
        self.0.came.notify_all();
    }
}

impl Jobs {
    /// Does jobs until there are none for a while.
    fn work(&self) {
        let _leaving = Leaving(self);
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.over {
                return None;
            }
            queue.idle += 1;
            let waited = self.came.wait_for(&mut queue, IDLE);
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                return None;
            }
        }
    }
}

/// End of a thread, also by a job that panics. Another one does what is left.
struct Leaving<'a>(&'a Jobs);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().threads -= 1;
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
        // What was taken in is done when nothing more comes.
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
}
