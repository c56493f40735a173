//! Pins and gets of a client by itself, in memory that it shares with the engine.
//!
//! Engine thread only. Owns nothing: the pins and the counts lie in the page set of the client's channel.
//! Invariant: an entry that a client names is one of a table that the client maps.

use std::ops::ControlFlow;
use std::time::Instant;

use plasmon::shared::TableId;

use super::client::Client;
use super::counting::Counting;
use crate::memory::Domain;
use crate::object::{FastPins, Replica};

impl Client {
    /// Adds the pins that this client has set by itself.
    pub(crate) fn fast_pins(&self, fast: &mut FastPins) {
        if let Some(channel) = &self.channel {
            channel.pages.for_each_pin(|table, entry| fast.add(self.domain(table), entry));
        }
    }

    /// Calls `see` for every pin that this client has set by itself, until `see` says that it is enough.
    pub(super) fn each_fast_pin(
        &self,
        mut see: impl FnMut(Domain, u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        if let Some(channel) = &self.channel {
            channel.pages.for_each_pin(|table, entry| {
                if flow.is_continue() {
                    flow = see(self.domain(table), entry);
                }
            });
        }
        flow
    }

    /// Adds the gets that this client has made by itself since it was last looked at.
    pub(super) fn add_counts(&self, counting: &Counting, now: Instant) {
        if let Some(channel) = &self.channel {
            counting.add(&mut channel.seen.borrow_mut(), channel.pages.counts(), now);
        }
    }

    /// Number of objects that this client has pinned by itself.
    pub(crate) fn count_fast_pins(&self) -> u64 {
        let mut count = 0;
        if let Some(channel) = &self.channel {
            channel.pages.for_each_pin(|_, _| count += 1);
        }
        count
    }

    /// Whether this client has read an object by itself since the last call.
    pub(crate) fn take_accessed(&self, replica: &Replica) -> bool {
        let Some(channel) = &self.channel else { return false };
        let table = match replica.domain() {
            Domain::Shared => TableId::Shared,
            Domain::Private(uid) if uid == self.uid => TableId::Private,
            Domain::Private(_) | Domain::Nobody => return false,
        };
        channel.pages.take_accessed(table, replica.entry())
    }

    fn domain(&self, table: TableId) -> Domain {
        match table {
            TableId::Shared => Domain::Shared,
            TableId::Private => Domain::Private(self.uid),
        }
    }
}
