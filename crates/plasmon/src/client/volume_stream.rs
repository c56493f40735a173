//! Notices from the node that another session changed what this session of a volume may have cached.
//!
//! Owns a connection apart from the client's ([`stream`](super::stream)), by which confirmations go as well.
//! The thread that asks for the next message reads the connection.

use std::time::Duration;

use super::Client;
use super::stream::{Sender, Stream, no_events};
use crate::Result;
use crate::wire::files::Stale;
use crate::wire::{Reply, Request};

/// Name of the connection, for the lists of the node's clients.
const NAME: &str = "changes of a volume";

/// Connection that brings the notices of one session.
pub(crate) struct VolumeStream(Stream<(u64, Vec<Stale>)>);

impl VolumeStream {
    /// Follows a session of a volume: number of the volume, number of the session, and its secret.
    pub(crate) fn open(client: &Client, (volume, session, secret): (u32, u32, u64)) -> Result<Self> {
        let take = |reply| match reply {
            Reply::VolumeStale { number, stale } => Ok(vec![(number, stale)]),
            _ => Err(no_events()),
        };
        Stream::open(client, NAME, &Request::WatchVolume { volume, session, secret }, take).map(Self)
    }

    /// Waits for the next message. Returns its number, and what the session may not cache any more. `None` if
    /// none came in time.
    pub(crate) fn next(&mut self, timeout: Duration) -> Result<Option<(u64, Vec<Stale>)>> {
        self.0.next(Some(timeout), None)
    }

    /// Confirms the message of this number.
    pub(crate) fn confirm(&mut self, number: u64) -> Result<()> {
        // The first message says that the stream has begun.
        if number == 0 { Ok(()) } else { self.0.send(&Request::ConfirmStale { number }) }
    }

    /// Makes a [`Confirmer`], by which another thread confirms a message.
    pub(crate) fn confirmer(&self) -> Result<Confirmer> {
        self.0.sender().map(Confirmer)
    }
}

/// Confirms a message of a [`VolumeStream`] from another thread.
pub(crate) struct Confirmer(Sender);

impl Confirmer {
    /// Confirms the message of this number.
    pub(crate) fn confirm(self, number: u64) -> Result<()> {
        self.0.send(&Request::ConfirmStale { number })
    }
}
