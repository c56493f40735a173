//! The engine's side of the spill store: requests to the spill thread and their answers.
//!
//! Owns [`SpillStore`], on the engine thread, and [`Worker`], which is the spill thread. Requests are
//! carried out in order, except that a read comes before all other waiting requests, because a client
//! waits for the read. So a read may still succeed after its place was forgotten.
//!
//! Invariant: memory that the spill thread copies from or to stays its object's until the thread has
//! finished with it. The owner of that memory travels with the future. A future that is dropped early
//! leaves the owner with the store until the thread has finished.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::task::{Context, Poll, ready};
use std::thread::{self, JoinHandle};

use futures::FutureExt;
use futures::channel::oneshot;
use plasmon::ObjectId;

use super::disk::Disk;
use super::error::SpillError;
use super::record::{Header, Place, Recovered};
use super::usage::{Counters, Usage};
use crate::memory::{Extent, IoRange};

/// A sealed object to be spilled.
#[derive(Debug)]
pub struct Item {
    /// The description of the object.
    pub head: Header,
    /// The object's data and metadata.
    pub bytes: IoRange,
}

/// Objects on disk. Dropping the store finishes the pending requests and ends the thread.
pub struct SpillStore {
    /// The sender of requests; `None` only while the store is dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
    abandoned: Rc<RefCell<Vec<Abandoned>>>,
}

/// The owner of a dropped future's memory, until the thread drops its half of the token.
type Abandoned = (Arc<()>, Box<dyn Any>);

impl SpillStore {
    /// Opens the directory, which is made if there is none. Returns the objects that a former daemon left
    /// in the directory, in no particular order. The call reads every header there, which takes time.
    /// `wake` is called on the spill thread after every answer.
    pub fn open(
        dir: &Path,
        wake: impl Fn() + Send + 'static,
    ) -> Result<(SpillStore, Vec<Recovered>), SpillError> {
        let (mut store, worker, recovered) = Self::with_worker(dir, wake)?;
        let thread = thread::Builder::new().name("plasmon-spill".into()).spawn(move || worker.run());
        store.thread = Some(thread.map_err(SpillError::Thread)?);
        Ok((store, recovered))
    }

    /// Opens the directory without a thread: the caller carries out the requests.
    #[cfg(test)]
    pub(crate) fn open_stepped(dir: &Path) -> Result<(SpillStore, SteppedDisk, Vec<Recovered>), SpillError> {
        let (store, worker, recovered) = Self::with_worker(dir, (|| ()) as fn())?;
        Ok((store, SteppedDisk(worker), recovered))
    }

    fn with_worker<W: Fn()>(
        dir: &Path,
        wake: W,
    ) -> Result<(SpillStore, Worker<W>, Vec<Recovered>), SpillError> {
        let counters = Arc::new(Counters::default());
        let (disk, recovered) = Disk::open(dir, Arc::clone(&counters))?;
        let (jobs, receiver) = mpsc::channel();
        let worker = Worker { disk, jobs: receiver, wake, reads: VecDeque::new(), others: VecDeque::new() };
        let store = SpillStore { jobs: Some(jobs), thread: None, counters, abandoned: Rc::default() };
        Ok((store, worker, recovered))
    }

    /// Writes all of the objects or none; small ones together in one write. `hold` keeps their memory,
    /// such as pins. If the future is dropped before it is ready, the written objects are forgotten.
    pub fn write<H: 'static>(&self, items: Vec<Item>, hold: H) -> Pending<Vec<Place>, H> {
        self.ask(hold, |token, answer| Job::Write { items, token, answer })
    }

    /// Reads an object back into an extent of its size, which is returned in any case. The bytes of
    /// the extent are valid only if the result is `Ok`. The bytes are compared with the digest made at
    /// the object's seal, unless this digest is 0.
    pub fn read(&self, place: Place, id: ObjectId, digest: u64, into: Extent) -> Pending<(), Extent> {
        let range = into.io_range();
        self.ask(into, |token, answer| Job::Read { place, id, digest, into: range, token, answer })
    }

    /// Returns the digest that all bytes of an object of `len` bytes have if they are not damaged: that of
    /// its seal, `digest`, unless this is 0. No byte of the object is read.
    pub fn promised(&self, place: Place, id: ObjectId, digest: u64, len: u64) -> Pending<u64, ()> {
        self.ask((), |_, answer| Job::Promised { place, id, digest, len, answer })
    }

    /// Reads `len` bytes from `at` on of an object of `whole` bytes. Only whoever has read all parts can
    /// compare them with what is [promised](SpillStore::promised).
    pub fn read_part(
        &self,
        place: Place,
        id: ObjectId,
        whole: u64,
        part: (u64, usize),
    ) -> Pending<Vec<u8>, ()> {
        self.ask((), |_, answer| Job::Part { place, id, whole, part, answer })
    }

    /// Forgets an object that was deleted, or that is to be only in memory again.
    pub fn forget(&self, place: Place) {
        self.send(Job::Forget(place));
    }

    /// Has the spill thread look at the disk. Soon afterwards [`SpillStore::usage`] tells how much
    /// of the disk is free now.
    pub fn look_at_free(&self) {
        self.send(Job::Look);
    }

    /// Returns how the directory is used.
    pub fn usage(&self) -> Usage {
        self.counters.usage()
    }

    fn ask<T, H: 'static>(&self, hold: H, job: impl FnOnce(Arc<()>, Answer<T>) -> Job) -> Pending<T, H> {
        let (answer, receiver) = oneshot::channel();
        let token = Arc::new(());
        self.send(job(Arc::clone(&token), answer));
        Pending { answer: receiver, waiting: Some((token, hold)), abandoned: Rc::clone(&self.abandoned) }
    }

    fn send(&self, job: Job) {
        sweep(&self.abandoned);
        if let Some(jobs) = &self.jobs {
            // Sending fails when the thread has panicked: then the answer's other end is dropped with the
            // job.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for SpillStore {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the spill thread has panicked");
        }
        sweep(&self.abandoned);
    }
}

/// Drops the owners of memory with which the thread has finished.
fn sweep(abandoned: &RefCell<Vec<Abandoned>>) {
    let mut done = Vec::new();
    abandoned.borrow_mut().retain_mut(|(token, hold)| {
        let over = Arc::get_mut(token).is_some();
        if over {
            done.push(std::mem::replace(hold, Box::new(())));
        }
        !over
    });
}

/// A pending answer: the result, and the owner of the memory.
#[must_use = "a write that nobody waits for is undone"]
pub struct Pending<T, H: 'static> {
    answer: oneshot::Receiver<Result<T, SpillError>>,
    /// The token and the owner of the memory; `None` once the future was ready.
    waiting: Option<(Arc<()>, H)>,
    abandoned: Rc<RefCell<Vec<Abandoned>>>,
}

/// A future can move, because no field is structurally pinned.
impl<T, H> Unpin for Pending<T, H> {}

impl<T, H> Future for Pending<T, H> {
    type Output = (Result<T, SpillError>, H);

    /// Polls the answer.
    ///
    /// # Panics
    /// If the future was ready before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.answer.poll_unpin(context));
        let (_, hold) = self.waiting.take().expect("a future is not polled once it was ready");
        Poll::Ready((answer.unwrap_or(Err(SpillError::Stopped)), hold))
    }
}

impl<T, H: 'static> Drop for Pending<T, H> {
    fn drop(&mut self) {
        if let Some((mut token, hold)) = self.waiting.take()
            && Arc::get_mut(&mut token).is_none()
        {
            self.abandoned.borrow_mut().push((token, Box::new(hold)));
        }
    }
}

type Answer<T> = oneshot::Sender<Result<T, SpillError>>;

/// A request of the engine. The token is dropped when no byte of the memory will be touched any more.
enum Job {
    Write { items: Vec<Item>, token: Arc<()>, answer: Answer<Vec<Place>> },
    Read { place: Place, id: ObjectId, digest: u64, into: IoRange, token: Arc<()>, answer: Answer<()> },
    Promised { place: Place, id: ObjectId, digest: u64, len: u64, answer: Answer<u64> },
    Part { place: Place, id: ObjectId, whole: u64, part: (u64, usize), answer: Answer<Vec<u8>> },
    Forget(Place),
    Look,
}

/// The state of the spill thread.
struct Worker<W> {
    disk: Disk,
    jobs: Receiver<Job>,
    wake: W,
    reads: VecDeque<Job>,
    others: VecDeque<Job>,
}

impl<W: Fn()> Worker<W> {
    fn run(mut self) {
        loop {
            let ended = self.collect();
            if let Some(job) = self.next() {
                self.work(job);
            } else if ended {
                return;
            } else if !self.disk.tidy() {
                match self.jobs.recv() {
                    Ok(job) => self.sort(job),
                    Err(_) => return,
                }
            }
        }
    }

    /// Takes the request that is carried out next.
    fn next(&mut self) -> Option<Job> {
        self.reads.pop_front().or_else(|| self.others.pop_front())
    }

    /// Takes the requests that came meanwhile. Returns whether no more will come.
    fn collect(&mut self) -> bool {
        loop {
            match self.jobs.try_recv() {
                Ok(job) => self.sort(job),
                Err(end) => return end == TryRecvError::Disconnected,
            }
        }
    }

    fn sort(&mut self, job: Job) {
        match job {
            Job::Read { .. } | Job::Promised { .. } | Job::Part { .. } => self.reads.push_back(job),
            other => self.others.push_back(other),
        }
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Read { place, id, digest, into, token, answer } => {
                let result = self.disk.read(place, id, digest, &into);
                drop((into, token));
                self.answer(answer, result);
            }
            Job::Promised { place, id, digest, len, answer } => {
                let result = self.disk.promised(place, id, digest, len);
                self.answer(answer, result);
            }
            Job::Part { place, id, whole, part, answer } => {
                let result = self.disk.read_part(place, id, whole, part);
                self.answer(answer, result);
            }
            Job::Write { items, token, answer } => {
                let result = self.disk.write(&items);
                drop((items, token));
                if let Err(Ok(unwanted)) = answer.send(result) {
                    unwanted.into_iter().for_each(|place| self.disk.forget(place));
                }
                (self.wake)();
            }
            Job::Forget(place) => self.disk.forget(place),
            Job::Look => self.disk.look_at_free(),
        }
    }

    fn answer<T>(&self, answer: Answer<T>, result: Result<T, SpillError>) {
        // The requester may have gone.
        let _ = answer.send(result);
        (self.wake)();
    }
}

/// The spill thread in a simulation, which carries out requests when their time has come. Requests that
/// are left when this value is dropped are not carried out, as when the daemon is killed.
#[cfg(test)]
pub(crate) struct SteppedDisk(Worker<fn()>);

#[cfg(test)]
impl SteppedDisk {
    /// Whether there is a request.
    pub(crate) fn has_work(&mut self) -> bool {
        self.0.collect();
        !(self.0.reads.is_empty() && self.0.others.is_empty())
    }

    /// Carries out the next request. With `is_full` a write fails, as on a disk that is full.
    pub(crate) fn step(&mut self, is_full: bool) {
        self.0.collect();
        match self.0.next() {
            Some(Job::Write { items, token, answer }) if is_full => {
                drop((items, token));
                let (dir, source) = (Default::default(), rustix::io::Errno::NOSPC.into());
                // The requester may have gone.
                let _ = answer.send(Err(SpillError::NoSpace { dir, bytes: 0, free: 0, source }));
            }
            Some(job) => self.0.work(job),
            None => {}
        }
    }
}
