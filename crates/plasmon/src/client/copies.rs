//! Where objects are, beside the node that made them: replicas that are kept, moves, broadcasts, pins.
//!
//! Any thread. The node of this host does it all, and goes on with what has begun if its client does not wait.

use std::time::Duration;

use super::connection::{Undo, unexpected};
use super::reading::{microseconds, report};
use super::{Client, CreateOptions, GRACE, done};
use crate::drain::{DrainStatus, DrainStep};
use crate::transfer::Spread;
use crate::wire::{MAX_IDS, Reply, Request};
use crate::{Error, ErrorKind, NodeId, ObjectId, Result};

impl Client {
    /// Has `copies` nodes hold an object and keep it: no eviction drops these replicas, and should a node die, another
    /// takes its place. Fewer than before make what is beyond them ordinary cached replicas. Waits until they hold
    /// it, or for `timeout`.
    ///
    /// # Errors
    /// `TooFew` when fewer can: the object stays where it is, and the message says who holds it; `Lost`, `NotFound`
    /// or `TimedOut` when there is no such object; `NotAllowed` for another user's private one; `Invalid` for 0 copies.
    pub fn replicate(&self, id: ObjectId, copies: u16, timeout: Option<Duration>) -> Result<Spread> {
        self.spread(&Request::Replicate { timeout_us: microseconds(timeout), id, copies }, timeout)
    }

    /// Moves an object to another node: it is the primary then, and the replica of the node that was is dropped.
    /// Whoever reads the object does not notice.
    ///
    /// # Errors
    /// `Invalid` when there is no such node, `Full` when it has no room; else as [`Client::replicate`]. The object
    /// stays where it is then.
    pub fn migrate(&self, id: ObjectId, node: NodeId, timeout: Option<Duration>) -> Result<Spread> {
        self.spread(&Request::Migrate { timeout_us: microseconds(timeout), id, node }, timeout)
    }

    /// Brings an object to `nodes`, all of them at the same time and each passing on what it has; to every node of the
    /// cluster if there are none. What comes is a cached replica, as if somebody on that node had got it. Says who
    /// holds it now, and who does not and why.
    ///
    /// # Errors
    /// `Invalid` when one of them is no node of this cluster, or there are more than 1,024; else as
    /// [`Client::replicate`], but that a node which cannot take it is no error.
    pub fn broadcast(&self, id: ObjectId, nodes: &[NodeId], timeout: Option<Duration>) -> Result<Spread> {
        if nodes.len() > MAX_IDS {
            let text =
                format!("a broadcast to {} nodes; name at most {MAX_IDS}, or none for all", nodes.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let nodes = nodes.to_vec();
        self.spread(&Request::Broadcast { timeout_us: microseconds(timeout), id, nodes }, timeout)
    }

    /// Brings an object to this node and keeps it in memory there: it is not evicted, nor spilled to disk. That ends
    /// with [`Client::unpin`], or when this connection does, with its last clone. Pinned twice it is pinned once.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn pin(&self, id: ObjectId, timeout: Option<Duration>) -> Result<()> {
        let request = Request::Pin { timeout_us: microseconds(timeout), id };
        done(self.finish(self.connection.send(&request, Undo::Cancel)?, self.end_of(timeout))?)
    }

    /// Ends what [`Client::pin`] began. What is not pinned stays as it is.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn unpin(&self, id: ObjectId) -> Result<()> {
        done(self.call(&Request::Unpin { id }, Undo::Nothing)?)
    }

    /// Has a node move everything that it keeps to other nodes, and leave the cluster then: its daemon ends. It takes
    /// nothing new from then on; reads go on. Returns at once: [`DrainStep::Look`] says how far it is. It goes on if
    /// nobody asks, and [`DrainStep::CallOff`] ends it.
    ///
    /// # Errors
    /// `NotAllowed` for users other than root and the one that the node runs as; `Invalid` where no other node could
    /// take anything, and for the node with the cluster's coordinator; `Disconnected` when there is no such node.
    pub fn drain(&self, node: NodeId, step: DrainStep) -> Result<DrainStatus> {
        match self.call(&Request::Drain { node, step }, Undo::Nothing)? {
            Reply::Report { json, .. } => report(&json),
            _ => Err(self.connection.fail(unexpected("something else than how far the drain is"))),
        }
    }

    fn spread(&self, request: &Request, timeout: Option<Duration>) -> Result<Spread> {
        let reply = self.finish(self.connection.send(request, Undo::Cancel)?, self.end_of(timeout))?;
        match reply {
            Reply::Report { json, .. } => report(&json),
            _ => Err(self.connection.fail(unexpected("something else than where the object is"))),
        }
    }

    /// When a call gives up by itself that the node should have ended before.
    fn end_of(&self, timeout: Option<Duration>) -> Option<std::time::Instant> {
        let patience = timeout?.checked_add(GRACE)?;
        std::time::Instant::now().checked_add(patience)
    }

    /// Waits until as many nodes hold a new object as was asked for.
    pub(super) fn await_copies(&self, id: ObjectId, options: &CreateOptions) -> Result<()> {
        self.await_copies_of(id, options.copies)
    }

    pub(super) fn await_copies_of(&self, id: ObjectId, copies: u16) -> Result<()> {
        if copies > 1 { self.replicate(id, copies, None).map(drop) } else { Ok(()) }
    }
}
