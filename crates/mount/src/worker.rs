//! The threads that read requests of the kernel and have them carried out.
//!
//! Owns the workers of one mount, and requests that wait for one. One more worker is started whenever nobody
//! reads, up to one more than may carry requests out at a time. A worker reads a request into its own block.
//! A server may keep the block that holds the payload of a write, and leaves another one. Who reads a request
//! while as many are carried out as may be leaves it to the others and reads on, so that interruptions are
//! seen. A request that panics gets EIO, and its worker goes on. A panic anywhere else ends the mount, whose
//! requests would hang otherwise. Invariants: as long as the folder is mounted, a worker is reading, unless
//! [`MAX_WAITING`] requests wait; requests that wait begin in their order.

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

/// Largest number of bytes of a write, and so the size of a block.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// Size of a request, without the head of a write, from which it is carried out as what it is. Anything
/// longer is malformed.
const MAX_BODY_BYTES: usize = 256 << 10;

/// Largest number of requests that wait for a worker.
const MAX_WAITING: usize = 4 << 10;
/// Largest number of blocks that are kept for those who read next.
const MAX_SPARE: usize = 256;
/// Time between two looks whether a program was killed whose request waits, and was interrupted before.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Memory into which a worker reads requests.
pub(crate) trait Block: Send {
    /// Bytes of the block: at least [`BLOCK_BYTES`].
    fn bytes(&mut self) -> &mut [u8];
}

/// Carries out the requests that a worker reads.
pub(crate) trait Server: Send + Sync + 'static {
    /// Memory into which requests are read.
    type Block: Block;

    /// Gives a block to a worker that has none, without waiting for anybody.
    fn block(&self) -> Self::Block;

    /// Carries out a request other than a write.
    fn call(&self, header: &InHeader, call: Call<'_>, reply: Reply);

    /// Carries out a write, whose payload begins with the block and is as long as it says.
    fn write(&self, header: &InHeader, write: WriteIn, block: &mut Self::Block, reply: Reply);

    /// Ends a wait that has no worker, for a lock, if there is one.
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
    /// Number of requests that are carried out at a time.
    most: usize,
    threads: Mutex<Threads>,
    ended: Condvar,
    queue: Mutex<Queue<S::Block>>,
    /// Told when there is room in the queue.
    shorter: Condvar,
}

/// Threads of the workers.
#[derive(Default)]
struct Threads {
    total: usize,
    /// Whether one has panicked that carried no request out.
    panicked: bool,
}

/// Requests that wait for a worker.
struct Queue<B> {
    /// Number of workers that carry a request out.
    busy: usize,
    waiting: VecDeque<Waiting<B>>,
    /// Blocks that nobody reads into.
    spare: Vec<B>,
}

/// Request that waits for a worker.
struct Waiting<B> {
    received: Request,
    /// Block with the part of the request that does not lie in its head.
    block: Option<B>,
    /// Whether the kernel has interrupted it.
    interrupted: bool,
}

/// Request that was read, but for what lies in a block.
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

    /// Serves the mount until the folder is not mounted any more. After an error this process has to end:
    /// some requests may have no thread.
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
        // Kernels that cannot clone the descriptor let the threads share it.
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

    /// Waits for a request of the kernel, and looks meanwhile after requests that wait for a worker: the
    /// kernel tells of the first signal alone.
    fn receive(
        &self,
        device: &Device,
        head: &mut [u8; WRITE_HEAD],
        block: &mut [u8],
    ) -> io::Result<Received> {
        while self.give_up_killed() && !device.has_request(LOOK_INTERVAL) {}
        device.receive(head, block)
    }

    /// Begins with a request, if one more may be carried out; otherwise it waits for a worker. Returns what
    /// this worker is to carry out. `others` is the number of others that are reading.
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
            // Another one takes it, so that this one reads.
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

    /// Starts one more worker, unless others are reading.
    fn ensure_reader(self: &Arc<Self>, others: usize) -> io::Result<()> {
        if others == 0 { self.grow() } else { Ok(()) }
    }

    /// The next request that waits, for a worker that was busy. It is not busy any more if there is none.
    fn next(&self) -> Option<Waiting<S::Block>> {
        let mut queue = self.queue.lock();
        let next = queue.waiting.pop_front();
        match next {
            Some(_) => _ = self.shorter.notify_one(),
            None => queue.busy -= 1,
        }
        next
    }

    /// Acts on an INTERRUPT of a request, which may wait for a worker, or be on its way to the others that
    /// wait, as long as these are not locked.
    fn interrupt(&self, unique: u64) {
        let mut queue = self.queue.lock();
        match queue.waiting.iter_mut().find(|waiting| waiting.received.header.unique == unique) {
            Some(waiting) => waiting.interrupted = true,
            None => self.running.interrupt(unique),
        }
        drop(queue);
        // A wait for a lock may be tried by a worker, and then go on without one.
        self.server.interrupt(unique);
    }

    /// Keeps a block that nobody reads into.
    fn keep(&self, block: S::Block) {
        let mut queue = self.queue.lock();
        if queue.spare.len() < MAX_SPARE {
            queue.spare.push(block);
        }
    }

    /// Answers requests that wait for a worker and whose programs are to be killed. Returns whether others
    /// wait that were interrupted.
    fn give_up_killed(&self) -> bool {
        let mut queue = self.queue.lock();
        let is_killed = |waiting: &Waiting<S::Block>| {
            let header = &waiting.received.header;
            // The end of a descriptor unlocks what its program has locked, and comes once.
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

    /// Carries out a request, and goes on after a panic: the reply was dropped unanswered, and said EIO.
    fn try_carry_out(&self, request: &Request, block: &mut S::Block, interrupted: bool) {
        // A panic drops the guards of locks that the server had, and a block may hold any bytes.
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
            // Nobody waits for an answer, however long the request is.
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

/// End of a worker, also of one that panics, which ends the mount.
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

/// Whether a request is one that nobody answers.
fn is_forget(header: &InHeader) -> bool {
    matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET)
}

/// Whether a request is carried out at once, whoever is busy.
fn wants_no_worker(header: &InHeader) -> bool {
    is_forget(header) || header.opcode == opcode::INTERRUPT
}

/// Part of a body of `len` bytes that lies in the head, and the number of bytes that lie in the block.
fn split(head: &[u8; WRITE_HEAD], len: usize) -> (&[u8], usize) {
    let body = &head[InHeader::LEN..];
    let in_head = len.min(body.len());
    (&body[..in_head], len - in_head)
}

/// Reads a request as a worker does, and whatever of it can be read.
pub(crate) fn examine(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    if let Some(header) = reader.take::<InHeader>() {
        let _ = Call::read(header.opcode, reader.rest());
    }
}
