//! Connection of a command to its node, and the time-out of the command.
//!
//! Owns no state. Any thread. A [`Within`] belongs to one command.

use std::time::{Duration, Instant};

use plasmon::{Client, Error, Socket};

use crate::values::{NO_TIME, in_seconds};

/// Time that a command may take.
pub(crate) struct Within {
    timeout: Option<Duration>,
    began: Instant,
}

impl Within {
    /// Begins a command with this time-out. Without one, each call has its default.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, began: Instant::now() }
    }

    /// Connects to the node. Calls of the client have the same time-out.
    pub(crate) fn connect(&self, socket: &Socket, name: &str) -> Result<Client, Error> {
        let client = self.reach(socket, name)?;
        Ok(match self.timeout {
            Some(timeout) if !timeout.is_zero() => client.within(timeout),
            _ => client,
        })
    }

    /// Connects to the node within the time-out. Calls of the client have their own.
    pub(crate) fn reach(&self, socket: &Socket, name: &str) -> Result<Client, Error> {
        let client = Client::connect_with(socket, name, self.timeout, None)?;
        if !client.is_trusted() {
            let (path, owner) = (client.socket().display(), client.owner());
            eprintln!(
                "plasmon: the node at {path} is user {owner}'s, who is not trusted: it could return \
                       false data"
            );
        }
        Ok(client)
    }

    /// Rest of the time-out, at least 1 us. The rest is zero only if the time-out itself is, because a zero
    /// time-out has another meaning: not to wait.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left =
            |timeout: Duration| timeout.saturating_sub(self.began.elapsed()).max(Duration::from_micros(1));
        self.timeout.map(|timeout| if timeout.is_zero() { timeout } else { left(timeout) })
    }
}

/// Connects to the node, for a command without a time-out.
pub(crate) fn connect(socket: &Socket, name: &str) -> Result<Client, Error> {
    Within::new(None).connect(socket, name)
}

/// Parses a time-out: seconds, or a number with a unit. Infinity means no limit.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = plasmon::timeout(in_seconds(text).ok_or(NO_TIME)?).map_err(|error| error.to_string())?;
    Ok(timeout.unwrap_or(Duration::MAX))
}
