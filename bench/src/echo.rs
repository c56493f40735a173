//! Round trips between two processes that wait for each other in the kernel: the least cost of a request to a
//! store.
//!
//! [`Echo`] is the asking side. [`answer`] is the answering side, `plasmon-bench echo KIND`, which has the
//! shared object as its standard input (and output), and ends with the asking process.

use std::io::{Read, Write, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use plasmon_bench::Result;
use plasmon_bench::memory::{self, Mapping};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::futex;

/// Size in bytes of a message over the socket: a small request.
const MESSAGE: usize = 64;
/// Size in bytes of the memory that the two sides of a futex share: a page.
const SHARED: usize = 4096;

/// Number of round trips that are not counted, while the other process starts.
const WARM_UP: usize = 20;

const ASKED: u32 = 1;
const ANSWERED: u32 = 2;

/// Asking side, with the process that answers.
pub(crate) struct Echo {
    child: Child,
    link: Link,
}

enum Link {
    Socket(UnixStream),
    Eventfds { asked: OwnedFd, answered: OwnedFd },
    Futex(Mapping),
}

impl Echo {
    /// Starts the answering process, over a "socket", "eventfd" or "futex".
    pub(crate) fn start(kind: &str) -> Result<Self> {
        let (link, input, output) = match kind {
            "socket" => {
                let (ours, theirs) = UnixStream::pair()?;
                (Link::Socket(ours), OwnedFd::from(theirs), Stdio::null())
            }
            "eventfd" => {
                let asked = eventfd(0, EventfdFlags::CLOEXEC)?;
                let answered = eventfd(0, EventfdFlags::CLOEXEC)?;
                let theirs = (asked.try_clone()?, answered.try_clone()?);
                (Link::Eventfds { asked, answered }, theirs.0, Stdio::from(theirs.1))
            }
            "futex" => {
                let memory = memory::create(SHARED)?;
                (Link::Futex(Mapping::of(&memory, SHARED, true)?), memory, Stdio::null())
            }
            other => return Err(format!("there is no echo over {other:?}").into()),
        };
        let child = Command::new(std::env::current_exe()?)
            .args(["echo", kind])
            .stdin(input)
            .stdout(output)
            .spawn()?;
        let mut echo = Self { child, link };
        for _ in 0..WARM_UP {
            echo.round_trip()?;
        }
        Ok(echo)
    }

    /// Asks, and waits for the answer.
    pub(crate) fn round_trip(&mut self) -> Result<()> {
        match &mut self.link {
            Link::Socket(socket) => {
                let mut message = [0; MESSAGE];
                socket.write_all(&message)?;
                socket.read_exact(&mut message)?;
            }
            Link::Eventfds { asked, answered } => {
                signal(asked.as_fd())?;
                wait(answered.as_fd())?;
            }
            Link::Futex(memory) => {
                set(memory.word(), ASKED)?;
                wait_until(memory.word(), ANSWERED)?;
            }
        }
        Ok(())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the answering side. Returns when the socket is closed. With other kinds the process is killed.
pub(crate) fn answer(kind: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match kind {
        "socket" => {
            let mut socket = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
            let mut message = [0; MESSAGE];
            while socket.read_exact(&mut message).is_ok() {
                socket.write_all(&message)?;
            }
            Ok(())
        }
        "eventfd" => loop {
            wait(stdin().as_fd())?;
            signal(stdout().as_fd())?;
        },
        "futex" => {
            let memory = Mapping::of(stdin(), SHARED, true)?;
            loop {
                wait_until(memory.word(), ASKED)?;
                set(memory.word(), ANSWERED)?;
            }
        }
        other => Err(format!("there is no echo over {other:?}").into()),
    }
}

fn signal(eventfd: BorrowedFd<'_>) -> Result<()> {
    write(eventfd, &1_u64.to_ne_bytes())?;
    Ok(())
}

fn wait(eventfd: BorrowedFd<'_>) -> Result<()> {
    read(eventfd, &mut [0; 8])?;
    Ok(())
}

fn set(word: &AtomicU32, value: u32) -> Result<()> {
    word.store(value, Ordering::Release);
    futex::wake(word, futex::Flags::empty(), 1)?;
    Ok(())
}

fn wait_until(word: &AtomicU32, value: u32) -> Result<()> {
    loop {
        let now = word.load(Ordering::Acquire);
        if now == value {
            return Ok(());
        }
        match futex::wait(word, futex::Flags::empty(), now, None) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
