//! The threads that read requests of the kernel and have them carried out.
//!
//! Owns the workers of one mount, and the queue of requests that wait for a worker. A worker is started
//! whenever none reads, until there is one more than requests may be carried out at a time. A worker reads a
//! request into its own block. The server may keep a block with the payload of a write, and leaves another
//! one. If as many requests are carried out as may be, the worker queues the request and reads on, to see
//! interruptions. A request that panics gets EIO; a panic elsewhere ends the mount, since requests would
//! hang. Invariants: as long as the folder is mounted, a worker is reading, unless [`MAX_WAITING`] requests
//! wait or no thread can be started; requests that wait begin in their order.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::device::{Device, Received};
use crate::kernel::{Call, InHeader, Reader, Structure, WRITE_HEAD, WriteIn, opcode};
use crate::negotiation::{self, Agreed};
use crate::reply::Reply;
use crate::running::{Running, is_killed};

/// Largest number of bytes in the block of a request other than a write. A longer request is malformed.
const MAX_BODY_BYTES: usize = 256 << 10;

/// Largest number of requests that wait for a worker.
const MAX_WAITING: usize = 4 << 10;
/// Largest number of spare blocks that are kept for workers.
const MAX_SPARE: usize = 256;
/// Time between two checks whether the programs of interrupted requests that wait were killed.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Memory into which a worker reads requests.
pub(crate) trait Block: Send {
    /// Returns the bytes of the block, at least [`negotiation::BLOCK_BYTES`].
    fn bytes(&mut self) -> &mut [u8];
}

/// Carries out the requests that a worker reads.
pub(crate) trait Server: Send + Sync + 'static {
    /// Memory into which requests are read.
    type Block: Block;

    /// Returns a new block for a worker that has none, without waiting.
    fn block(&self) -> Self::Block;

    /// Carries out a request other than a write.
    fn call(&self, header: &InHeader, call: Call<'_>, reply: Reply);

    /// Carries out a write. The block begins with the payload, which has as many bytes as `write` says.
    fn write(&self, header: &InHeader, write: WriteIn, block: &mut Self::Block, reply: Reply);

    /// Ends the wait for a lock that the request with this number has begun, if there is one.
    fn interrupt(&self, unique: u64);

    /// Acts on what kernel and mount have agreed on.
    fn begin(&self, agreed: Agreed);

    /// Acts on the end of the mount, after all workers have ended.
    fn end(&self);
}

/// Workers of a mount.
pub(crate) struct Workers<S: Server> {
    device: Device,
    server: Arc<S>,
    running: Running,
    /// Number of workers that wait for a request.
    idle: AtomicUsize,
    /// Largest number of requests that are carried out at a time.
    most: usize,
    threads: Mutex<Threads>,
    ended: Condvar,
    queue: Mutex<Queue<S::Block>>,
    /// Condition that the queue has room.
    shorter: Condvar,
}

/// Threads of the workers.
#[derive(Default)]
struct Threads {
    total: usize,
    /// Whether a worker has panicked outside of a request.
    panicked: bool,
}

/// Requests that wait for a worker.
struct Queue<B> {
    /// Number of workers that carry a request out.
    busy: usize,
    waiting: VecDeque<Waiting<B>>,
    /// Blocks into which no worker reads.
    spare: Vec<B>,
}

/// Request that waits for a worker.
struct Waiting<B> {
    received: Request,
    /// Block with the part of the request that does not lie in its head.
    block: Option<B>,
    /// Whether the kernel has interrupted the request.
    interrupted: bool,
}

/// Request that was read, without the part of its body that lies in a block.
struct Request {
    device: Device,
    header: InHeader,
    head: [u8; WRITE_HEAD],
    /// Number of bytes behind the header.
    len: usize,
}

impl<S: Server> Workers<S> {
    /// Workers of a mount that carry out at most `most` requests at a time.
    pub(crate) fn new(device: Device, server: Arc<S>, most: usize) -> Arc<Self> {
        Arc::new(Self {
            device,
            server,
            running: Running::default(),
            idle: AtomicUsize::new(0),
            most: most.max(1),
            threads: Mutex::default(),
            ended: Condvar::new(),
            queue: Mutex::new(Queue { busy: 0, waiting: VecDeque::new(), spare: Vec::new() }),
            shorter: Condvar::new(),
        })
    }

    /// Serves the mount until the folder is not mounted any more. After an error the process has to end,
    /// since some requests may have no thread.
    pub(crate) fn serve(self: &Arc<Self>) -> io::Result<()> {
        self.grow()?;
        let mut threads = self.threads.lock();
        while threads.total > 0 && !threads.panicked {
            self.ended.wait(&mut threads);
        }
        let panicked = threads.panicked;
        drop(threads);
        self.server.end();
        if panicked { Err(io::Error::other("a thread that reads requests has panicked")) } else { Ok(()) }
    }

    /// Starts one more worker, if there may be one.
    fn grow(self: &Arc<Self>) -> io::Result<()> {
        let mut threads = self.threads.lock();
        // One more reads while all others are busy.
        if threads.total > self.most {
            return Ok(());
        }
        let workers = Arc::clone(self);
        thread::Builder::new().name(format!("worker-{}", threads.total)).spawn(move || {
            let _leaving = Leaving(&workers);
            workers.run();
        })?;
        threads.total += 1;
        Ok(())
    }

    fn run(self: &Arc<Self>) {
        self.running.enter();
        // If the kernel cannot clone the descriptor, the threads share it.
        let device = self.device.with_own_queue().unwrap_or_else(|_| self.device.clone());
        let mut block = self.server.block();
        let mut head = [0; WRITE_HEAD];
        loop {
            self.idle.fetch_add(1, Ordering::AcqRel);
            let received = self.receive(&device, &mut head, block.bytes());
            let others = self.idle.fetch_sub(1, Ordering::AcqRel) - 1;
            let request = match received {
                Ok(Received::Request(header, len)) => Request { device: device.clone(), header, head, len },
                Ok(Received::Nothing) => continue,
                Ok(Received::Over) => return,
                Err(error) => {
                    tracing::error!(%error, "requests of the kernel cannot be read: the mount ends");
                    return;
                }
            };
            if wants_no_worker(&request.header) {
                self.try_carry_out(&request, &mut block, false);
                continue;
            }
            let Some(request) = self.begin(request, &mut block, others) else { continue };
            self.try_carry_out(&request, &mut block, false);
            while let Some(Waiting { received, block: other, interrupted }) = self.next() {
                let Some(other) = other else {
                    self.try_carry_out(&received, &mut block, interrupted);
                    continue;
                };
                let own = replace(&mut block, other);
                self.try_carry_out(&received, &mut block, interrupted);
                self.keep(own);
            }
        }
    }

    /// Waits for a request of the kernel. Meanwhile this looks repeatedly for killed programs among the
    /// requests that wait for a worker, because the kernel sends an INTERRUPT for the first signal alone.
    fn receive(
        &self,
        device: &Device,
        head: &mut [u8; WRITE_HEAD],
        block: &mut [u8],
    ) -> io::Result<Received> {
        while self.give_up_killed() && !device.has_request(LOOK_INTERVAL) {}
        device.receive(head, block)
    }

    /// Returns the request if this worker is to carry it out. Otherwise queues the request. `others` is the
    /// number of other workers that are reading.
    fn begin(self: &Arc<Self>, request: Request, block: &mut S::Block, others: usize) -> Option<Request> {
        let mut queue = self.queue.lock();
        if queue.busy < self.most {
            queue.busy += 1;
            drop(queue);
            let Err(error) = self.ensure_reader(others) else { return Some(request) };
            tracing::warn!(%error, "no further thread can be started");
            queue = self.queue.lock();
            if queue.busy == 1 {
                return Some(request);
            }
            // Another worker is to take the request, so that this one reads.
            queue.busy -= 1;
        }
        while queue.waiting.len() >= MAX_WAITING {
            self.shorter.wait(&mut queue);
        }
        let in_block = split(&request.head, request.len).1 > 0;
        let block = in_block.then(|| {
            let other = queue.spare.pop().unwrap_or_else(|| self.server.block());
            replace(block, other)
        });
        let interrupted = self.running.take_early(request.header.unique);
        queue.waiting.push_back(Waiting { received: request, block, interrupted });
        None
    }

    /// Starts one more worker if no other is reading.
    fn ensure_reader(self: &Arc<Self>, others: usize) -> io::Result<()> {
        if others == 0 { self.grow() } else { Ok(()) }
    }

    /// Returns the next request that waits to a worker that has carried one out. If there is none, the worker
    /// does not count as busy any more.
    fn next(&self) -> Option<Waiting<S::Block>> {
        let mut queue = self.queue.lock();
        let next = queue.waiting.pop_front();
        match next {
            Some(_) => _ = self.shorter.notify_one(),
            None => queue.busy -= 1,
        }
        next
    }

    /// Acts on an INTERRUPT of a request that waits for a worker, is carried out, or is not known yet. The
    /// queue stays locked, so a request that is queued at the same time is found or finds the interruption.
    fn interrupt(&self, unique: u64) {
        let mut queue = self.queue.lock();
        match queue.waiting.iter_mut().find(|waiting| waiting.received.header.unique == unique) {
            Some(waiting) => waiting.interrupted = true,
            None => self.running.interrupt(unique),
        }
        drop(queue);
        // A wait for a lock begins on a worker, and may go on without one.
        self.server.interrupt(unique);
    }

    /// Keeps a block that no worker reads into, if there is room for one more.
    fn keep(&self, block: S::Block) {
        let mut queue = self.queue.lock();
        if queue.spare.len() < MAX_SPARE {
            queue.spare.push(block);
        }
    }

    /// Answers EINTR to requests that wait for a worker and whose programs are to be killed. Returns whether
    /// other interrupted requests wait.
    fn give_up_killed(&self) -> bool {
        let mut queue = self.queue.lock();
        let is_killed = |waiting: &Waiting<S::Block>| {
            let header = &waiting.received.header;
            // A flush is always carried out: it ends the locks of its owner, and comes only once.
            waiting.interrupted && header.opcode != opcode::FLUSH && is_killed(header.pid)
        };
        while let Some(at) = queue.waiting.iter().position(is_killed) {
            let Some(waiting) = queue.waiting.remove(at) else { continue };
            if queue.spare.len() < MAX_SPARE {
                queue.spare.extend(waiting.block);
            }
            let Request { device, header, .. } = waiting.received;
            Reply::new(device, header.unique).error(Errno::INTR);
            self.shorter.notify_one();
        }
        queue.waiting.iter().any(|waiting| waiting.interrupted)
    }

    /// Carries out a request, and goes on after a panic, which drops the reply unanswered, with EIO.
    fn try_carry_out(&self, request: &Request, block: &mut S::Block, interrupted: bool) {
        // Sound after a panic: the guards of the server's locks are dropped, and a block may hold any bytes.
        let carry_out = AssertUnwindSafe(|| self.carry_out(request, block, interrupted));
        if catch_unwind(carry_out).is_err() {
            let InHeader { opcode, nodeid: inode, .. } = request.header;
            tracing::error!(opcode, inode, "a request of the kernel caused a panic, and got EIO");
        }
    }

    /// Carries out a request whose body lies in its head and `block`.
    fn carry_out(&self, request: &Request, block: &mut S::Block, interrupted: bool) {
        let Request { device, header, head, len } = request;
        let reply = Reply::new(device.clone(), header.unique);
        if is_forget(header) {
            // A FORGET has no answer, even if it is malformed or too long.
            return reply.none();
        }
        let (in_head, in_block) = split(head, *len);
        let joined;
        let body = if in_block == 0 || header.opcode == opcode::WRITE {
            in_head
        } else if in_block > MAX_BODY_BYTES {
            return reply.error(Errno::INVAL);
        } else {
            joined = [in_head, &block.bytes()[..in_block]].concat();
            &joined
        };
        let Ok(call) = Call::read(header.opcode, body) else {
            return reply.error(Errno::INVAL);
        };
        let of = (header.unique, header.pid);
        match call {
            Call::Forget => reply.none(),
            Call::Interrupt(unique) => {
                self.interrupt(unique);
                reply.none();
            }
            Call::Init(offer, further) => {
                if let Some(agreed) = negotiation::answer(offer, further, reply) {
                    self.server.begin(agreed);
                }
            }
            Call::Write(write) if write.size as usize != in_block => reply.error(Errno::INVAL),
            Call::Write(write) => self.running.carry_out(of, interrupted, || {
                self.server.write(header, write, block, reply);
            }),
            call => self.running.carry_out(of, interrupted, || self.server.call(header, call, reply)),
        }
    }
}

/// Guard that notes the end of a worker. A worker that ends by a panic ends the mount.
struct Leaving<'a, S: Server>(&'a Workers<S>);

impl<S: Server> Drop for Leaving<'_, S> {
    fn drop(&mut self) {
        let mut threads = self.0.threads.lock();
        threads.total -= 1;
        threads.panicked |= thread::panicking();
        drop(threads);
        self.0.ended.notify_all();
    }
}

/// Whether a request is one of those that have no answer.
fn is_forget(header: &InHeader) -> bool {
    matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET)
}

/// Whether a request is carried out at once by the worker that reads it, however many are busy.
fn wants_no_worker(header: &InHeader) -> bool {
    is_forget(header) || header.opcode == opcode::INTERRUPT
}

/// Splits a body of `len` bytes. Returns the part in the head, and the number of bytes in the block.
fn split(head: &[u8; WRITE_HEAD], len: usize) -> (&[u8], usize) {
    let body = &head[InHeader::LEN..];
    let in_head = len.min(body.len());
    (&body[..in_head], len - in_head)
}

/// Decodes bytes as a worker decodes a request, for the fuzzer.
pub(crate) fn examine(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    if let Some(header) = reader.take::<InHeader>() {
        let _ = Call::read(header.opcode, reader.rest());
    }
}
