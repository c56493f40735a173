//! The command's connection to its node.

use std::time::{Duration, Instant};

use plasmon::{Client, Error, Socket};

/// The time that a command may take.
pub(crate) struct Within {
    timeout: Option<Duration>,
    began: Instant,
}

impl Within {
    /// So much from now on; without it, as long as calls usually take.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, began: Instant::now() }
    }

    /// Connects.
    pub(crate) fn connect(&self, socket: &Socket, name: &str) -> Result<Client, Error> {
        let client = Client::connect_with(socket, name, self.timeout, None)?;
        if !client.is_trusted() {
            let (path, owner) = (client.socket().display(), client.owner());
            eprintln!("plasmon: the node at {path} is user {owner}'s: what it gives out is that user's word");
        }
        Ok(match self.timeout {
            Some(timeout) if !timeout.is_zero() => client.within(timeout),
            _ => client,
        })
    }

    /// What is left of the time-out. It becomes zero, which says something else, only if it was.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left =
            |timeout: Duration| timeout.saturating_sub(self.began.elapsed()).max(Duration::from_micros(1));
        self.timeout.map(|timeout| if timeout.is_zero() { timeout } else { left(timeout) })
    }
}

/// Connects, for a command without a time-out.
pub(crate) fn connect(socket: &Socket, name: &str) -> Result<Client, Error> {
    Within::new(None).connect(socket, name)
}
