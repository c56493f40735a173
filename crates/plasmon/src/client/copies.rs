//! Calls on where objects are: replicas that nodes keep, moves, broadcasts, pins, drains.
//!
//! Owns no state. Any thread. The node of this host does the work, and completes it even if its client stops
//! waiting.

use std::time::Duration;

use super::connection::Undo;
use super::due::{Due, due, rest};
use super::reading::{microseconds, report};
use super::{Client, CreateOptions, Question, ask_for};
use crate::drain::{DrainStatus, DrainStep};
use crate::transfer::Spread;
use crate::wire::{MAX_IDS, replies, requests};
use crate::{Error, ErrorKind, NodeId, ObjectId, Result};

impl Client {
    /// Makes `replicas` nodes keep an object. Kept replicas are not evicted. If a node that keeps the object
    /// dies, another takes its place. A number smaller than before turns surplus replicas into cached ones.
    /// The call waits until the nodes hold the object, at most for `timeout`.
    ///
    /// # Errors
    /// `TooFew` if fewer nodes can keep it: the object stays where it is, and the message says which nodes
    /// hold it. `Lost`, `NotFound` or `TimedOut` if there is no such object. `NotAllowed` for an object of
    /// another user, except for root and objects put with [`Rights::ReadWrite`](crate::Rights). `Invalid` for
    /// 0 replicas.
    pub fn replicate(&self, id: ObjectId, replicas: u16, timeout: Option<Duration>) -> Result<Spread> {
        spread(
            self,
            requests::Replicate { timeout_us: microseconds(timeout), id, copies: replicas, put: false },
            due(timeout),
        )
    }

    /// Moves an object to another node: `node` becomes the primary, and the previous primary drops its
    /// replica. Readers of the object are not disturbed. As many nodes keep it as before: if `node` kept a
    /// replica already, the two nodes swap roles.
    ///
    /// # Errors
    /// `Invalid` if there is no such node, `Full` if it has no room. `Busy` if the object is being moved
    /// already, or if its primary was ordered meanwhile to keep it. Otherwise as [`Client::replicate`]. After
    /// an error the object stays where it is.
    pub fn migrate(&self, id: ObjectId, node: NodeId, timeout: Option<Duration>) -> Result<Spread> {
        spread(self, requests::Migrate { timeout_us: microseconds(timeout), id, node }, due(timeout))
    }

    /// Brings an object to all `nodes` at the same time; to every node of the cluster if `nodes` is empty.
    /// The nodes pass on to each other what they have received. Each gets a cached replica, as a get on that
    /// node would make it. The report has the nodes that hold the object now, and the others with the reason.
    ///
    /// # Errors
    /// `Invalid` if one of `nodes` is not in this cluster, or if there are more than 1,024. Otherwise as
    /// [`Client::replicate`], but a node that cannot take the object is no error.
    pub fn broadcast(&self, id: ObjectId, nodes: &[NodeId], timeout: Option<Duration>) -> Result<Spread> {
        if nodes.len() > MAX_IDS {
            let text = format!(
                "a broadcast to {} nodes is too large: name at most {MAX_IDS}, or none for all nodes",
                nodes.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let nodes = nodes.to_vec();
        spread(self, requests::Broadcast { timeout_us: microseconds(timeout), id, nodes }, due(timeout))
    }

    /// Brings an object to this node and keeps it in memory here: it is neither evicted nor spilled to disk.
    /// The pin ends with [`Client::unpin`], or with the connection, which lasts as long as the client, its
    /// clones and its objects. Pinning an object twice has the effect of pinning it once. The time-out is
    /// that of [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn pin(&self, id: ObjectId, timeout: Option<Duration>) -> Result<()> {
        let pin = requests::Pin { timeout_us: microseconds(timeout), id };
        ask_for(self, pin, Undo::Unpin(id), timeout).map(drop)
    }

    /// Ends the effect of [`Client::pin`]. An object that is not pinned stays as it is.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn unpin(&self, id: ObjectId) -> Result<()> {
        self.connection.forget_pin(&id);
        self.ask(requests::Unpin { id }, Undo::Nothing).map(drop)
    }

    /// Controls the drain of a node. [`DrainStep::Begin`] makes the node move every object that it keeps to
    /// other nodes and leave the cluster, and then its daemon ends. A draining node refuses new objects and
    /// still serves reads. The call returns at once. The drain goes on without the client;
    /// [`DrainStep::Look`] reports its progress and [`DrainStep::CallOff`] ends it.
    ///
    /// # Errors
    /// `NotAllowed` for users other than root and the one that the node runs as. `Invalid` if no other node
    /// could take an object, and for the node that runs the cluster's coordinator. `Disconnected` if there is
    /// no such node.
    pub fn drain(&self, node: NodeId, step: DrainStep) -> Result<DrainStatus> {
        report(&self.ask(requests::Drain { node, step }, Undo::Nothing)?.json)
    }
}

fn spread(client: &Client, question: impl Question<Answer = replies::Report>, due: Due) -> Result<Spread> {
    report(&client.ask_until(question, Undo::Cancel, due)?.json)
}

/// Waits until as many nodes keep a new object as `options` ask for, at most until `due`. The put of an
/// object that somebody deletes meanwhile has succeeded.
pub(super) fn await_copies(client: &Client, id: ObjectId, options: &CreateOptions, due: Due) -> Result<()> {
    if options.replicas <= 1 {
        return Ok(());
    }
    let due = due.filter(|_| options.timeout().is_some());
    let (timeout_us, copies) = (microseconds(rest(due)), options.replicas);
    match spread(client, requests::Replicate { timeout_us, id, copies, put: true }, due) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        kept => kept.map(drop),
    }
}
