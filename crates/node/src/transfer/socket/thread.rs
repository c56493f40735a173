//! The thread `plasmon-socket`, and the messages between it and the engine.
//!
//! Owns the thread and its channels. The engine holds a [`SocketThread`]; [`run`] runs on the thread.
//! Invariant: the thread lets go of the memory of a job before it tells the engine that the job is over.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::channel::{mpsc, oneshot};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::mpsc as commands;
use tracing::{info, warn};

use super::frame::{Ask, Sizes};
use super::{answering, asking};
use crate::memory::IoRange;
use crate::transfer::record::Arrived;

/// A function that ends the engine's sleep.
pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The sender that tells the engine how an operation ended. Its drop tells the engine at the latest. From
/// then on no byte of the memory that belongs to the operation is touched.
pub(super) struct Done<T> {
    sender: Option<oneshot::Sender<T>>,
    wake: Wake,
}

impl<T> Done<T> {
    /// Makes the sender for an operation, and the receiver for the engine. The receiver gets an
    /// error if the operation ends without a result.
    pub(super) fn new(wake: &Wake) -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender: Some(sender), wake: Arc::clone(wake) }, receiver)
    }

    /// Tells the engine the result of an operation.
    pub(super) fn tell(mut self, ended: T) {
        if let Some(sender) = self.sender.take() {
            // An engine that has gone needs no news.
            let _ = sender.send(ended);
        }
    }
}

impl<T> Drop for Done<T> {
    fn drop(&mut self) {
        self.sender = None;
        (self.wake)();
    }
}

/// An object to be fetched. The fields are dropped in their order: the memory first, and then
/// `done`, which tells the engine.
pub(super) struct Job {
    pub(super) ask: Ask,
    /// The sizes that the object must have.
    pub(super) sizes: Sizes,
    /// The memory for the object's bytes; if it is shorter, only the first bytes are kept.
    pub(super) into: IoRange,
    /// The memory for the bytes behind those of `into`, if these bytes are kept apart.
    pub(super) tail: Option<IoRange>,
    /// The counter for the object's bytes.
    pub(super) arrived: Arrived,
    /// A handle that is gone when nobody waits for the object any more.
    pub(super) wanted: Weak<()>,
    /// The sender that tells the engine how the fetch ended.
    pub(super) done: Done<Result<(), String>>,
}

impl Job {
    /// Whether a get still waits for the object.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }

    /// Drops the memory, and then tells the engine how the fetch ended.
    pub(super) fn end(self, result: Result<(), String>) {
        let Self { into, tail, done, .. } = self;
        drop((into, tail));
        done.tell(result);
    }
}

/// An object of this node that a reader asked for. The fields are dropped in their order: the memory
/// first, and then `done`, which tells the engine.
pub(super) struct Local {
    pub(super) sizes: Sizes,
    pub(super) bytes: IoRange,
    /// Tells the engine the number of bytes that were written.
    pub(super) done: Done<u64>,
}

/// A request for a local get by the engine. The answer is `None` when there is no such lease.
pub(super) struct Request {
    pub(super) ask: Ask,
    pub(super) answer: oneshot::Sender<Option<Local>>,
}

/// An order of the engine to the thread.
enum Command {
    Listen(std::net::TcpListener),
    Fetch(SocketAddr, Box<Job>),
}

/// The state that the tasks of the thread share.
pub(super) struct Shared {
    pub(super) requests: mpsc::UnboundedSender<Request>,
    pub(super) wake: Wake,
    pub(super) garbage: Arc<AtomicU64>,
    pub(super) stall: Duration,
}

/// The engine's handle of the thread. The drop of the handle closes all connections and ends the thread.
pub(crate) struct SocketThread {
    /// The sender of commands; `None` only while the handle is dropped.
    commands: Option<commands::UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
    port: OnceCell<u16>,
    garbage: Arc<AtomicU64>,
    pub(super) wake: Wake,
}

impl SocketThread {
    /// Starts the thread. Returns the handle, and the requests that the engine is to answer one
    /// after the other.
    pub(super) fn start(wake: Wake, stall: Duration) -> io::Result<(Self, mpsc::UnboundedReceiver<Request>)> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (requests, asked) = mpsc::unbounded();
        let (sender, received) = commands::unbounded_channel();
        let garbage = Arc::new(AtomicU64::new(0));
        let shared = Shared { requests, wake: Arc::clone(&wake), garbage: Arc::clone(&garbage), stall };
        let thread = std::thread::Builder::new()
            .name("plasmon-socket".into())
            .spawn(move || runtime.block_on(run(received, Arc::new(shared))))?;
        let handle =
            Self { commands: Some(sender), thread: Some(thread), port: OnceCell::new(), garbage, wake };
        Ok((handle, asked))
    }

    /// Returns the data port of this node, and opens it at this address if it is not open yet.
    pub(super) fn port(&self, address: IpAddr) -> io::Result<u16> {
        if let Some(port) = self.port.get() {
            return Ok(*port);
        }
        let listener = std::net::TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        info!("serving objects through sockets at port {port} of {address}");
        self.send(Command::Listen(listener));
        Ok(*self.port.get_or_init(|| port))
    }

    /// Has an object fetched from a data port.
    pub(super) fn fetch(&self, from: SocketAddr, job: Job) {
        self.send(Command::Fetch(from, Box::new(job)));
    }

    /// Number of connections that were closed because of what came on them.
    pub(crate) fn garbage(&self) -> u64 {
        self.garbage.load(Ordering::Relaxed)
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // Sending fails when the thread has panicked. A job is then dropped, which tells the engine.
            let _ = commands.send(command);
        }
    }
}

impl Drop for SocketThread {
    fn drop(&mut self) {
        self.commands = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!("the thread of socket transfers panicked");
        }
    }
}

/// Runs the thread until the engine has gone.
async fn run(mut commands: commands::UnboundedReceiver<Command>, shared: Arc<Shared>) {
    let mut holders: HashMap<SocketAddr, commands::UnboundedSender<Job>> = HashMap::new();
    while let Some(command) = commands.recv().await {
        match command {
            Command::Listen(listener) => match TcpListener::from_std(listener) {
                Ok(listener) => drop(tokio::spawn(answering::accept(listener, Arc::clone(&shared)))),
                Err(error) => warn!("nothing can be fetched from here through a socket: {error}"),
            },
            Command::Fetch(from, job) => {
                holders.retain(|_, jobs| !jobs.is_closed());
                let jobs = holders.entry(from).or_insert_with(|| {
                    let (sender, jobs) = commands::unbounded_channel();
                    tokio::spawn(asking::converse(from, jobs, shared.stall));
                    sender
                });
                // The channel was open a moment ago, and nothing else ran since.
                let _ = jobs.send(*job);
            }
        }
    }
}
