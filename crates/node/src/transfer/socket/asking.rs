//! The reader's side of data connections: one to each holder, for as long as there are objects to fetch
//! or the connection lasts. Owns the queue of each connection. Socket thread only.
//!
//! Requests go out as soon as they come in, and answers come in the order of the requests. An object that
//! nobody waits for any more is not read to its end: the connection is closed, and the other objects are
//! asked for again on a new one.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::frame::{ANSWER_LEN, Answer};
use super::stream::{is_transient, prepare, stalled, try_read_piece, try_skip_piece, write_frame};
use super::thread::Job;

/// How a connection ended.
enum End {
    /// The connection was closed between two objects, by either side.
    Idle,
    /// The object that was coming is not wanted any more, but the others are.
    Unwanted,
    /// The objects of the connection will not come, for this reason.
    Broken(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Fetches the wanted objects from one holder until a connection has ended and nothing is left to fetch.
/// If the holder fails, the objects that were asked for end with the reason.
pub(super) async fn converse(holder: SocketAddr, mut jobs: UnboundedReceiver<Job>, stall: Duration) {
    let mut queue = VecDeque::new();
    loop {
        let end = match connect(holder, stall).await {
            Ok(stream) => Conversation::new(&stream, &mut jobs, &mut queue, stall).run().await,
            Err(error) => End::Broken(format!("it cannot be reached: {error}")),
        };
        while let Ok(job) = jobs.try_recv() {
            queue.push_back(job);
        }
        if let End::Broken(reason) = end {
            debug!("the data connection to {holder} is broken: {reason}");
            for job in queue.drain(..) {
                job.end(Err(format!("the data connection to {holder} is broken: {reason}")));
            }
        }
        queue.retain(Job::is_wanted);
        if queue.is_empty() {
            return;
        }
    }
}

async fn connect(holder: SocketAddr, stall: Duration) -> io::Result<TcpStream> {
    let stream = timeout(stall, TcpStream::connect(holder)).await.map_err(|_| stalled(stall))??;
    prepare(&stream)?;
    Ok(stream)
}

/// A connection, and its progress.
struct Conversation<'c> {
    stream: &'c TcpStream,
    jobs: &'c mut UnboundedReceiver<Job>,
    /// The wanted objects, of which the first is coming.
    queue: &'c mut VecDeque<Job>,
    /// Number of jobs of `queue` that this connection has asked for.
    asked: usize,
    answer: [u8; ANSWER_LEN],
    /// Number of bytes of the answer that are here.
    answered: usize,
    /// Number of bytes of the object that are here.
    at: usize,
    stall: Duration,
    /// The latest time at which the next byte may come.
    due: Instant,
}

impl<'c> Conversation<'c> {
    fn new(
        stream: &'c TcpStream,
        jobs: &'c mut UnboundedReceiver<Job>,
        queue: &'c mut VecDeque<Job>,
        stall: Duration,
    ) -> Self {
        let due = Instant::now() + stall;
        Self { stream, jobs, queue, asked: 0, answer: [0; ANSWER_LEN], answered: 0, at: 0, stall, due }
    }

    async fn run(mut self) -> End {
        loop {
            if let Err(end) = self.turn().await {
                return end;
            }
        }
    }

    /// Waits for a job or for bytes, and acts on them.
    async fn turn(&mut self) -> Result<(), End> {
        self.ask().await?;
        let idle = self.queue.is_empty();
        let (stream, due, stall) = (self.stream, self.due, self.stall);
        let readable = async {
            if idle {
                return stream.readable().await;
            }
            timeout_at(due, stream.readable()).await.map_err(|_| stalled(stall))?
        };
        tokio::select! {
            biased;
            job = self.jobs.recv() => match job {
                Some(job) => {
                    if idle {
                        self.due = Instant::now() + stall;
                    }
                    self.queue.push_back(job);
                    Ok(())
                }
                // The thread is about to end.
                None => pending().await,
            },
            ready = readable => {
                ready?;
                self.read()
            }
        }
    }

    /// Asks for the objects of new jobs.
    async fn ask(&mut self) -> Result<(), End> {
        while let Some(job) = self.queue.get(self.asked) {
            if job.is_wanted() {
                write_frame(self.stream, &job.ask.encode(), self.stall).await?;
                self.asked += 1;
            } else {
                self.queue.remove(self.asked);
            }
        }
        Ok(())
    }

    /// Reads once, and ends the first job if its object is complete.
    fn read(&mut self) -> Result<(), End> {
        let Some(job) = self.queue.front() else {
            return match self.stream.try_read(&mut [0]) {
                Err(error) if is_transient(&error) => Ok(()),
                Ok(len) if len > 0 => Err(End::Broken("bytes came that nobody asked for".into())),
                Ok(_) | Err(_) => Err(End::Idle),
            };
        };
        if !job.is_wanted() {
            self.queue.pop_front();
            return Err(End::Unwanted);
        }
        let read = if self.answered < ANSWER_LEN {
            self.stream.try_read(&mut self.answer[self.answered..])
        } else if self.at < job.into.len() {
            try_read_piece(self.stream, &job.into, self.at)
        } else if let Some(tail) = &job.tail
            && self.at < job.into.len() + tail.len()
        {
            try_read_piece(self.stream, tail, self.at - job.into.len())
        } else {
            try_skip_piece(self.stream, job.sizes.bytes() - self.at)
        };
        let len = match read {
            Err(error) if is_transient(&error) => return Ok(()),
            Ok(0) => return Err(End::Broken("it was closed".into())),
            read => read?,
        };
        self.due = Instant::now() + self.stall;
        if self.answered == ANSWER_LEN {
            self.at += len;
            job.arrived.add(len as u64);
        } else {
            self.answered += len;
            if self.answered < ANSWER_LEN {
                return Ok(());
            }
            let answer = Answer::decode(&self.answer).map_err(|error| End::Broken(error.to_string()))?;
            if answer.id != job.ask.id || answer.sizes.is_some_and(|sizes| sizes != job.sizes) {
                return Err(End::Broken("it sent another object or another length".into()));
            }
            if answer.sizes.is_none() {
                self.next(Err("the lease had ended when it was asked for the object".into()));
                return Ok(());
            }
        }
        if self.at == job.sizes.bytes() {
            self.next(Ok(()));
        }
        Ok(())
    }

    /// Ends the first job of the queue.
    fn next(&mut self, result: Result<(), String>) {
        if let Some(job) = self.queue.pop_front() {
            job.end(result);
        }
        (self.asked, self.answered, self.at) = (self.asked - 1, 0, 0);
    }
}
