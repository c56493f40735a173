//! Locks and barriers as a peer, from Rust.
//!
//! Owns a client of the node of this host, and one of each of the `others`, whose threads are rivals for a
//! lock or parties of a barrier. They may be one node. Threads end with the operation that began them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plasmon::sync::{Barrier, Lock, LockOptions};
use plasmon::{Client, Error};
use plasmon_bench::Result;
use plasmon_bench::protocol::{Call, Greeting, Numbers, Peer};

/// Longest wait for a lock, or at a barrier.
const WAIT_PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

const OPERATIONS: &[&str] = &["lock", "hand_over", "contended", "meet"];

/// Clients of several nodes.
pub(crate) struct Locks {
    own: Client,
    /// Clients of the other nodes, at least one.
    others: Vec<Client>,
    /// Number of names that were used.
    used: u32,
}

impl Locks {
    /// Connects to the node of this host, and to others, whose sockets are separated by commas.
    pub(crate) fn connect(socket: &str, others: &str) -> Result<Self> {
        let others = others.split(',').map(Client::connect).collect::<plasmon::Result<Vec<_>>>()?;
        Ok(Self { own: Client::connect(socket)?, others, used: 0 })
    }

    /// The clients in turns, so that each has as many of those who come as any other: first the others.
    fn turns(&self) -> impl Iterator<Item = &Client> {
        self.others.iter().chain([&self.own]).cycle()
    }

    fn handle(&self, client: &Client, name: &str) -> Result<Lock> {
        Ok(Lock::new(client, name, &LockOptions::default())?)
    }
}

impl Peer for Locks {
    fn greeting(&self) -> Greeting {
        Greeting { version: env!("CARGO_PKG_VERSION"), in_place: false, shared: true, operations: OPERATIONS }
    }

    fn operation(
        &mut self,
        operation: &str,
        _size: usize,
        _owner: u64,
        _numbers: Numbers,
        batch: usize,
    ) -> Result<Box<dyn Call + '_>> {
        self.used += 1;
        let name = format!("bench-{}-{}", std::process::id(), self.used);
        Ok(match operation {
            "lock" => {
                let lock = self.handle(&self.own, &name)?;
                Box::new(Taken { lock, rival: None, took: Duration::ZERO })
            }
            "hand_over" => {
                let (lock, theirs) = (self.handle(&self.own, &name)?, self.handle(&self.others[0], &name)?);
                let rival = Threads::begin(vec![Box::new(move || theirs.take(WAIT_PATIENCE)?.unlock())]);
                Box::new(Taken { lock, rival: Some(rival), took: Duration::ZERO })
            }
            "contended" => {
                let rivals = self.turns().take(batch - 1).map(|client| -> Result<Work> {
                    let theirs = self.handle(client, &name)?;
                    Ok(Box::new(move || theirs.take(WAIT_PATIENCE)?.unlock()))
                });
                let rivals = Threads::begin(rivals.collect::<Result<_>>()?);
                Box::new(Contended { lock: self.handle(&self.own, &name)?, _rivals: rivals })
            }
            "meet" => {
                let parties = u32::try_from(batch)?;
                let party = |client: &Client| Barrier::new(client, &name, parties, false);
                let others = self.turns().take(batch - 1).map(party).collect::<plasmon::Result<Vec<_>>>()?;
                let own = party(&self.own)?;
                let waits = others
                    .into_iter()
                    .map(|one| -> Work { Box::new(move || one.wait(WAIT_PATIENCE).map(drop)) });
                Box::new(Met { own: Some(own), _others: Threads::begin(waits.collect()) })
            }
            other => return Err(format!("there is no operation {other:?}").into()),
        })
    }

    fn discard(&mut self, _owner: u64, _numbers: Numbers) -> Result<()> {
        Ok(())
    }
}

type Work = Box<dyn FnMut() -> std::result::Result<(), Error> + Send>;

/// Threads that do something again and again, until this is dropped or it fails.
struct Threads {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn begin(works: Vec<Work>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let begin = |mut work: Work| {
            let over = Arc::clone(&over);
            thread::spawn(move || while !over.load(Ordering::Relaxed) && work().is_ok() {})
        };
        let threads = works.into_iter().map(begin).collect();
        Self { over, threads }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a lock does not panic");
        }
    }
}

/// Lock that is taken and unlocked, which others want as well if there is a rival.
struct Taken {
    lock: Lock,
    rival: Option<Threads>,
    /// Time until the lock was taken, or until it was handed over.
    took: Duration,
}

impl Call for Taken {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let begin = Instant::now();
        let guard = self.lock.take(WAIT_PATIENCE)?;
        self.took = begin.elapsed();
        guard.unlock()?;
        if self.rival.is_some() {
            // The lock goes to the rival and back.
            self.took = begin.elapsed() / 2;
        }
        Ok(())
    }

    fn took(&self) -> Option<Duration> {
        Some(self.took)
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}

/// Lock for which many wait.
struct Contended {
    lock: Lock,
    _rivals: Threads,
}

impl Call for Contended {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        // The lock is unlocked at once: whoever wants it waits for all others who came before.
        self.lock.take(WAIT_PATIENCE)?.unlock()?;
        Ok(())
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}

/// Barrier at which this thread meets others.
struct Met {
    /// Barrier of this thread. It is dropped before the others' threads end, which wait for it.
    own: Option<Barrier>,
    _others: Threads,
}

impl Drop for Met {
    fn drop(&mut self) {
        self.own = None;
    }
}

impl Call for Met {
    fn units(&self) -> usize {
        1
    }

    fn once(&self) -> bool {
        false
    }

    fn call(&mut self, _index: usize) -> Result<()> {
        let own = self.own.as_ref().expect("it goes at the end");
        own.wait(WAIT_PATIENCE)?;
        Ok(())
    }

    fn check(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }
}
