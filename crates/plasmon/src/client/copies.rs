//! Where objects are, beside the node that made them: replicas that are kept, moves, broadcasts, pins.
//!
//! Any thread. The node of this host does it all, and goes on with what has begun if its client does not
//! wait.

use std::time::Duration;

use super::connection::Undo;
use super::due::{Due, due, rest};
use super::reading::{microseconds, report};
use super::{Client, CreateOptions, Question};
use crate::drain::{DrainStatus, DrainStep};
use crate::transfer::Spread;
use crate::wire::{MAX_IDS, replies, requests};
use crate::{Error, ErrorKind, NodeId, ObjectId, Result};

impl Client {
    /// Has `copies` nodes hold an object and keep it: no eviction drops these replicas, and should a node
    /// die, another takes its place. Fewer than before make what is beyond them ordinary cached replicas.
    /// Waits until they hold it, or for `timeout`.
    ///
    /// # Errors
    /// `TooFew` when fewer can: the object stays where it is, and the message says who holds it; `Lost`,
    /// `NotFound` or `TimedOut` when there is no such object; `NotAllowed` for another user's, but for root
    /// and where it was put with [`Rights::ReadWrite`](crate::Rights); `Invalid` for 0 copies.
    pub fn replicate(&self, id: ObjectId, copies: u16, timeout: Option<Duration>) -> Result<Spread> {
        self.spread(requests::Replicate { timeout_us: microseconds(timeout), id, copies }, due(timeout))
    }

    /// Moves an object to another node: it is the primary then, and the replica of the node that was is
    /// dropped. Whoever reads the object does not notice. As many nodes keep it as before: if the node kept a
    /// replica already, the two change places.
    ///
    /// # Errors
    /// `Invalid` when there is no such node, `Full` when it has no room, `Busy` when the object is being
    /// moved already or the node that had it was told meanwhile to keep it; else as [`Client::replicate`].
    /// The object stays where it is then.
    pub fn migrate(&self, id: ObjectId, node: NodeId, timeout: Option<Duration>) -> Result<Spread> {
        self.spread(requests::Migrate { timeout_us: microseconds(timeout), id, node }, due(timeout))
    }

    /// Brings an object to `nodes`, all of them at the same time and each passing on what it has; to every
    /// node of the cluster if there are none. What comes is a cached replica, as if somebody on that node had
    /// got it. Says who holds it now, and who does not and why.
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
        self.spread(requests::Broadcast { timeout_us: microseconds(timeout), id, nodes }, due(timeout))
    }

    /// Brings an object to this node and keeps it in memory there: it is not evicted, nor spilled to disk.
    /// That ends with [`Client::unpin`], or when this connection does, with its last clone. Pinned twice it
    /// is pinned once.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn pin(&self, id: ObjectId, timeout: Option<Duration>) -> Result<()> {
        let pin = requests::Pin { timeout_us: microseconds(timeout), id };
        self.ask_until(pin, Undo::Unpin(id), self.due_of_get(&[id], timeout)).map(drop)
    }

    /// Ends what [`Client::pin`] began. What is not pinned stays as it is.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn unpin(&self, id: ObjectId) -> Result<()> {
        self.connection.forget_pin(&id);
        self.ask(requests::Unpin { id }, Undo::Nothing).map(drop)
    }

    /// Has a node move everything that it keeps to other nodes, and leave the cluster then: its daemon ends.
    /// It takes nothing new from then on; reads go on. Returns at once: [`DrainStep::Look`] says how far it
    /// is. It goes on if nobody asks, and [`DrainStep::CallOff`] ends it.
    ///
    /// # Errors
    /// `NotAllowed` for users other than root and the one that the node runs as; `Invalid` where no other
    /// node could take anything, and for the node with the cluster's coordinator; `Disconnected` when there
    /// is no such node.
    pub fn drain(&self, node: NodeId, step: DrainStep) -> Result<DrainStatus> {
        report(&self.ask(requests::Drain { node, step }, Undo::Nothing)?.json)
    }

    fn spread(&self, question: impl Question<Answer = replies::Report>, due: Due) -> Result<Spread> {
        report(&self.ask_until(question, Undo::Cancel, due)?.json)
    }

    /// Waits until as many nodes hold a new object as was asked for, in what is left of the time that was
    /// given.
    pub(super) fn await_copies(&self, id: ObjectId, options: &CreateOptions, due: Due) -> Result<()> {
        if options.copies <= 1 {
            return Ok(());
        }
        let due = due.filter(|_| options.timeout().is_some());
        let request = requests::Replicate { timeout_us: microseconds(rest(due)), id, copies: options.copies };
        self.spread(request, due).map(drop)
    }
}
