//! The threads that read requests of the kernel and have them carried out.
//!
//! Owns the workers of one mount. There is at least one, and one more is started whenever all of them are
//! busy, up to a limit. A worker reads a request into its own block. A server may keep the block that holds
//! the payload of a write, and leaves another one. Invariant: as long as the folder is mounted, and fewer
//! workers than the limit are waiting, one is reading.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::device::{Device, Received};
use crate::kernel::{Call, InHeader, Reader, Structure, WRITE_HEAD, WriteIn, opcode};
use crate::negotiation::{self, Agreed};
use crate::reply::Reply;
use crate::running::{Running, carry_out};

/// Largest number of bytes of a write, and so the size of a block.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// Size of a request, without the head of a write, from which it is carried out as what it is. Anything
/// longer is malformed.
const MAX_BODY: usize = 256 << 10;

/// Memory into which a worker reads requests.
pub(crate) trait Block: Send {
    /// Bytes of the block: at least [`BLOCK_BYTES`].
    fn bytes(&mut self) -> &mut [u8];
}

/// Who carries out requests.
pub(crate) trait Server: Send + Sync + 'static {
    /// Memory into which requests are read.
    type Block: Block;

    /// Gives a block to a worker that has none.
    fn block(&self) -> Self::Block;

    /// Carries out a request other than a write.
    fn call(&self, header: &InHeader, call: Call<'_>, reply: Reply);

    /// Carries out a write, whose payload begins with the block and is as long as it says.
    fn write(&self, header: &InHeader, write: WriteIn, block: &mut Self::Block, reply: Reply);

    /// Ends a wait that has no worker, for a lock. Returns whether there was one.
    fn interrupt(&self, unique: u64) -> bool;

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
    most: usize,
    total: Mutex<usize>,
    ended: Condvar,
}

impl<S: Server> Workers<S> {
    /// Serves a mount with at most `most` threads until the folder is not mounted any more.
    pub(crate) fn serve(device: Device, server: Arc<S>, most: usize) -> io::Result<()> {
        let workers = Arc::new(Self {
            device,
            server,
            running: Running::default(),
            idle: AtomicUsize::new(0),
            most: most.max(1),
            total: Mutex::new(0),
            ended: Condvar::new(),
        });
        workers.grow()?;
        let mut total = workers.total.lock();
        while *total > 0 {
            workers.ended.wait(&mut total);
        }
        drop(total);
        workers.server.end();
        Ok(())
    }

    /// Starts one more worker, if there may be one.
    fn grow(self: &Arc<Self>) -> io::Result<()> {
        let mut total = self.total.lock();
        if *total >= self.most {
            return Ok(());
        }
        let workers = Arc::clone(self);
        thread::Builder::new().name(format!("worker-{total}")).spawn(move || {
            let _leaving = Leaving(&workers);
            workers.run();
        })?;
        *total += 1;
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
            let received = device.receive(&mut head, block.bytes());
            let others = self.idle.fetch_sub(1, Ordering::AcqRel) - 1;
            let (header, len) = match received {
                Ok(Received::Request(header, len)) => (header, len),
                Ok(Received::Nothing) => continue,
                Ok(Received::Over) => return,
                Err(error) => {
                    tracing::error!(%error, "requests of the kernel cannot be read: the mount ends");
                    return;
                }
            };
            if others == 0
                && let Err(error) = self.grow()
            {
                tracing::warn!(%error, "no further thread can be started");
            }
            self.carry_out(&device, &header, &head, len, &mut block);
        }
    }

    /// Carries out a request whose body of `len` bytes lies in `head` and `block`.
    fn carry_out(
        &self,
        device: &Device,
        header: &InHeader,
        head: &[u8; WRITE_HEAD],
        len: usize,
        block: &mut S::Block,
    ) {
        let reply = Reply::new(device.clone(), header.unique);
        if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) {
            // Nobody waits for an answer, however long the request is.
            return reply.none();
        }
        let (in_head, in_block) = split(head, len);
        let joined;
        let body = if in_block == 0 || header.opcode == opcode::WRITE {
            in_head
        } else if in_block > MAX_BODY {
            return reply.error(Errno::INVAL);
        } else {
            joined = [in_head, &block.bytes()[..in_block]].concat();
            &joined
        };
        let Ok(call) = Call::read(header.opcode, body) else {
            return reply.error(Errno::INVAL);
        };
        match call {
            Call::Forget => reply.none(),
            Call::Interrupt(unique) => {
                // A wait for a lock may be tried by a worker, and then go on without one.
                let known = self.running.interrupt(unique) | self.server.interrupt(unique);
                // The kernel sends an interruption again that comes before its request.
                if known { reply.none() } else { reply.error(Errno::AGAIN) }
            }
            Call::Init(offer, further) => {
                if let Some(agreed) = negotiation::answer(offer, further, reply) {
                    self.server.begin(agreed);
                }
            }
            Call::Write(write) if write.size as usize != in_block => reply.error(Errno::INVAL),
            Call::Write(write) => carry_out(header.unique, header.pid, || {
                self.server.write(header, write, block, reply);
            }),
            call => carry_out(header.unique, header.pid, || self.server.call(header, call, reply)),
        }
    }
}

/// End of a worker, also of one that panics: the mount must not wait for it.
struct Leaving<'a, S: Server>(&'a Workers<S>);

impl<S: Server> Drop for Leaving<'_, S> {
    fn drop(&mut self) {
        *self.0.total.lock() -= 1;
        self.0.ended.notify_all();
    }
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
