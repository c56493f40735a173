//! Placing objects where users want them: on a number of nodes, on another node, on many nodes at once.
//!
//! Owns no state. Engine thread only. The node that is asked finds out which nodes hold the object and in
//! which life, and orders other nodes to hold it ([`super::replication`]). The nodes that are to get the
//! object at the same time form a tree: each reads from its parent the bytes that the parent has so far
//! ([`crate::transfer`]). The first keeper of the object's shard leads moves of the object, one at a time.
//! While the keeper changes there may be two leaders. Therefore the former primary *hands over*: it drops
//! its role only when the new primary has said that it keeps the object, and not if the former primary was
//! ordered meanwhile to keep the object. So after two moves in opposite directions, both primaries stay.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use plasmon::{Error, ErrorKind, NodeId, ObjectId, Spread, Unreached};

use super::replication::candidates;
use crate::kernel::lives::is_later;
use crate::net::frame::{Envelope, Message};
use crate::net::frame::{Life, Order, ask};
use crate::object::{DEEDS, Replica, Role};
use crate::placement::Placement;

/// How long a node may take to say which life of an object it holds.
const LIFE_PATIENCE: Duration = Duration::from_secs(5);
/// How long an object without a known holder may be about to be published.
const PUBLICATION_GRACE: Duration = Duration::from_millis(500);
/// The pause before an object without a known holder, or one that is being deleted, is looked up again.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How long nodes that refuse an object as gone are asked again while it is still there: it is being
/// deleted, or its deletion is about to be given up.
const PARTING_PATIENCE: Duration = Duration::from_secs(30);
/// How long the directory may take to learn of a new primary.
const PUBLICATION_PATIENCE: Duration = Duration::from_secs(10);
/// How long a node may take to say that it is the primary.
const TAKEOVER_PATIENCE: Duration = Duration::from_secs(5);
/// How long the former primary may take to hand over to another node.
const HANDOVER_PATIENCE: Duration = Duration::from_secs(8);
/// How long orders may take when the caller sets no time limit.
const DEFAULT_ORDER_PATIENCE: Duration = Duration::from_secs(3600);
/// Number of bytes that a node passes on at a time, as the shape of the tree assumes.
const PIECE_BYTES: u64 = 1 << 20;

/// An object and the nodes that hold it.
struct Found {
    life: u64,
    /// Number of nodes that are to keep the object.
    copies: u16,
    /// Number of bytes, known if the object is on this node.
    len: Option<u64>,
    holders: Vec<(NodeId, Role)>,
}

impl Found {
    fn nodes(&self) -> Vec<NodeId> {
        self.holders.iter().map(|(node, _)| *node).collect()
    }

    /// The nodes to read the object from: those that keep the object, else all. A cached replica
    /// may leave at any moment.
    fn sources(&self) -> Vec<NodeId> {
        Some(self.keeping()).filter(|keeping| !keeping.is_empty()).unwrap_or_else(|| self.nodes())
    }

    fn primaries(&self) -> Vec<NodeId> {
        of_role(&self.holders, Role::Primary).collect()
    }

    fn keeping(&self) -> Vec<NodeId> {
        self.holders.iter().filter(|(_, role)| role.stays()).map(|(node, _)| *node).collect()
    }
}

impl Placement {
    /// Finds an object that a user may change. Every call of a user in this file begins with this check.
    async fn find(self: &Rc<Self>, id: ObjectId, user: u32) -> Result<Found, Error> {
        let due = self.kernel.clock.now() + PUBLICATION_GRACE;
        loop {
            let here = self.store.objects.borrow().get(&id).cloned();
            if let Some(replica) = &here {
                replica.ownership().ensure_may_change(id, user)?;
            }
            let mut holders =
                if self.cluster.solo() { Vec::new() } else { self.directory.holders(id, user).await? };
            if let Some(replica) = &here
                && self.store.objects.borrow().has(replica)
            {
                holders.retain(|(node, _)| *node != self.kernel.node);
                holders.insert(0, (self.kernel.node, replica.role()));
                let (life, copies, len) = (replica.life, replica.copies(), Some(replica.len()));
                return Ok(Found { life, copies, len, holders });
            }
            holders.retain(|(node, _)| *node != self.kernel.node);
            holders.sort_by_key(|(_, role)| *role != Role::Primary);
            for (node, _) in &holders {
                let hold = ask::Hold { ids: vec![id], withheld: true };
                if let Ok(ask::Held { lives }) = self.network.ask(*node, user, hold, LIFE_PATIENCE).await
                    && let Some(Life { life, ownership, copies }) = lives.first().copied().flatten()
                {
                    ownership.ensure_may_change(id, user)?;
                    return Ok(Found { life, copies, len: None, holders });
                }
            }
            if self.kernel.clock.now() >= due {
                return Err(nowhere(&id));
            }
            self.kernel.clock.sleep(LOOK_INTERVAL).await;
        }
    }

    /// Finds the object that a put has made for `copies` nodes.
    ///
    /// # Errors
    /// `NotFound` when the object is gone, also if another one of its id is there.
    async fn find_put(self: &Rc<Self>, id: ObjectId, user: u32, copies: u16) -> Result<Found, Error> {
        match self.find(id, user).await {
            Ok(found) if found.copies != copies => Err(ended(&id)),
            Err(error) if error.kind() == ErrorKind::NotAllowed => Err(ended(&id)),
            found => found,
        }
    }

    /// Refuses an object that is not there any more in the life in which it was found: `Lost` if it ended
    /// with the nodes that held it, else `NotFound`.
    async fn ensure_there(self: &Rc<Self>, id: ObjectId, user: u32, life: u64) -> Result<(), Error> {
        let solo = self.cluster.solo();
        let gone = !solo && self.directory.known(&[id], user).await.is_ok_and(|known| known == [false]);
        let found = if gone { Err(nowhere(&id)) } else { self.find(id, user).await };
        match found {
            Ok(found) if found.life == life => Ok(()),
            Ok(_) => Err(ended(&id)),
            Err(error) if error.kind() == ErrorKind::NotFound && !solo => {
                // Keepers say whether they remember it as lost.
                self.directory.holders(id, DEEDS).await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Says why a life of an object has ended. `None` when it has not, or when nobody says now whether it
    /// has.
    pub(super) async fn end_of(self: &Rc<Self>, id: ObjectId, user: u32, life: u64) -> Option<Error> {
        match self.find(id, user).await {
            Ok(now) => is_later(now.life, life).then(|| ended(&id)),
            Err(error) => {
                let ends = [ErrorKind::NotFound, ErrorKind::Lost, ErrorKind::NotAllowed];
                ends.contains(&error.kind()).then_some(error)
            }
        }
    }

    /// Has `copies` nodes keep an object. With `put` this completes the put of an object, and leaves others
    /// alone that have its id by now.
    ///
    /// # Errors
    /// `TooFew` when fewer nodes can keep it. `NotFound` when it is gone.
    pub(crate) async fn replicate(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
        (copies, put): (u16, bool),
        due: Option<Instant>,
    ) -> Result<Spread, Error> {
        if copies == 0 {
            let text = format!("object {id} cannot have 0 replicas: delete it instead");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let found = if put { self.find_put(id, user, copies).await } else { self.find(id, user).await }?;
        let order = |role| Order { id, life: found.life, role, copies, patient: false, from: None };
        let mut keeping = found.keeping();
        // The primary is last in the order of removal.
        keeping.sort_by_key(|node| !found.holders.contains(&(*node, Role::Primary)));
        let extra = keeping.split_off(keeping.len().min(usize::from(copies)));
        let told = keeping.iter().map(|node| (*node, order(Role::Kept)));
        let told = told.chain(extra.iter().map(|node| (*node, order(Role::Cached))));
        let mut failed = Vec::new();
        for (node, done) in self.order_all(told.collect(), user, due).await {
            if let Err(error) = done {
                keeping.retain(|one| *one != node);
                failed.push((node, error));
            }
        }
        let cached: Vec<_> = found.nodes().into_iter().filter(|node| !keeping.contains(node)).collect();
        let mut left = candidates(&id, self.cluster.others(&found.keeping()), &cached);
        let parted = self.kernel.clock.now() + PARTING_PATIENCE;
        while keeping.len() < usize::from(copies) && !left.is_empty() && !self.is_past(due) {
            let missing = usize::from(copies) - keeping.len();
            let next: Vec<_> = left.drain(..missing.min(left.len())).collect();
            let (there, not): (Vec<_>, Vec<_>) = next.into_iter().partition(|node| cached.contains(node));
            let sources = if keeping.is_empty() { found.sources() } else { keeping.clone() };
            let tree = tree(&sources, &not, fanout(found.len, not.len()));
            let orders = there.into_iter().map(|node| (node, order(Role::Kept)));
            let orders = orders.chain(
                tree.into_iter().map(|(node, from)| (node, Order { from: Some(from), ..order(Role::Kept) })),
            );
            let mut again = Vec::new();
            for (node, done) in self.order_all(orders.collect(), user, due).await {
                match done {
                    Ok(()) => keeping.push(node),
                    Err(error) if error.kind() == ErrorKind::NotFound && self.kernel.clock.now() < parted => {
                        again.push(node);
                    }
                    Err(error) => failed.push((node, error)),
                }
            }
            if !again.is_empty() || !failed.is_empty() {
                // Every node would wait in vain for an object that was deleted meanwhile.
                self.ensure_there(id, user, found.life).await?;
            }
            if !again.is_empty() {
                self.kernel.clock.sleep(LOOK_INTERVAL).await;
                left.extend(again);
            }
        }
        if keeping.len() < usize::from(copies) {
            self.ensure_there(id, user, found.life).await?;
            return Err(self.too_few(id, copies, &keeping, &failed));
        }
        Ok(spread(keeping, failed))
    }

    fn too_few(&self, id: ObjectId, copies: u16, keeping: &[NodeId], failed: &[(NodeId, Error)]) -> Error {
        let members = self.cluster.view.borrow().members.len();
        let names: Vec<_> = keeping.iter().map(ToString::to_string).collect();
        let mut text =
            format!("object {id} is kept by {} of {copies} nodes ({})", keeping.len(), names.join(", "));
        if members < usize::from(copies) {
            text += &format!("; the cluster has {members}");
        }
        for (node, error) in failed.iter().take(3) {
            text += &format!("; node {node}: {error}");
        }
        text += "; it stays there, and further nodes take it as soon as they can";
        Error::new(ErrorKind::TooFew, text).about(id).counting(copies.into(), keeping.len() as u64)
    }

    /// Brings an object to some nodes, or to all if `nodes` is empty.
    ///
    /// # Errors
    /// When there is no such object or node.
    pub(crate) async fn broadcast(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
        nodes: Vec<NodeId>,
        due: Option<Instant>,
    ) -> Result<Spread, Error> {
        let members = self.cluster.others(&[]);
        if let Some(stranger) = nodes.iter().find(|node| !members.contains(node)) {
            return Err(no_member(stranger));
        }
        let found = self.find(id, user).await?;
        let mut wanted = if nodes.is_empty() { members } else { nodes };
        wanted.sort_unstable();
        wanted.dedup();
        let (mut holders, targets): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|node| found.nodes().contains(node));
        let tree = tree(&found.sources(), &targets, fanout(found.len, targets.len()));
        let order = |(node, from)| {
            let role = Role::Cached;
            (node, Order { id, life: found.life, role, copies: 0, patient: false, from: Some(from) })
        };
        let orders = tree.into_iter().map(order).collect();
        let mut failed = Vec::new();
        for (node, done) in self.order_all(orders, user, due).await {
            match done {
                Ok(()) => holders.push(node),
                Err(error) => failed.push((node, error)),
            }
        }
        Ok(spread(holders, failed))
    }

    /// Moves an object to another node, by way of the first keeper of its shard.
    ///
    /// # Errors
    /// When there is no such object or node, or the node cannot take the object.
    pub(crate) async fn migrate(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
        to: NodeId,
        due: Option<Instant>,
    ) -> Result<Spread, Error> {
        if !self.cluster.others(&[]).contains(&to) {
            return Err(no_member(&to));
        }
        if self.cluster.solo() {
            return self.find(id, user).await.map(|_| spread(vec![to], Vec::new()));
        }
        let keeper = self.cluster.keepers(&id).first;
        self.network.ask(keeper, user, ask::Migrate { id, to }, self.until(due)).await?;
        Ok(spread(vec![to], Vec::new()))
    }

    /// Moves an object, as the first keeper of its shard.
    pub(crate) fn on_migrate(self: &Rc<Self>, asked: Envelope, id: ObjectId, to: NodeId) {
        let moving = &self.replication.moving;
        if !moving.borrow_mut().insert(id) {
            let text = format!("object {id} is being moved already; try again when it is there");
            return self
                .network
                .answer(&asked, Message::Refused { error: Error::new(ErrorKind::Busy, text) });
        }
        let placement = Rc::clone(self);
        self.kernel.spawn(async move {
            let message = match placement.lead_move(id, asked.user, to).await {
                Ok(()) => Message::Done,
                Err(error) => Message::Refused { error },
            };
            placement.replication.moving.borrow_mut().remove(&id);
            placement.network.answer(&asked, message);
        });
    }

    pub(super) async fn lead_move(self: &Rc<Self>, id: ObjectId, user: u32, to: NodeId) -> Result<(), Error> {
        let found = self.find(id, user).await?;
        let mut former = found.primaries();
        let from = former.iter().find(|node| **node != to).or(found.nodes().first()).copied();
        let order = Order { id, life: found.life, role: Role::Primary, copies: 0, patient: false, from };
        self.network.ask(to, user, ask::Acquire { order }, DEFAULT_ORDER_PATIENCE).await?;
        // A node that asks the directory from now on must not learn that no node has the object.
        former.extend(self.await_primary((id, found.life), user, to).await?);
        former.retain(|node| *node != to);
        former.sort_unstable();
        former.dedup();
        let mut gone = Vec::new();
        for node in former {
            gone.push(node);
            let (keep, copies) = {
                let mut table = self.directory.table.borrow_mut();
                (!table.suffices_without(&id, &gone), table.copies(&id))
            };
            if keep {
                gone.pop();
            }
            let order = ask::HandOver { id, life: found.life, to, keep, copies };
            match self.network.ask(node, user, order, HANDOVER_PATIENCE).await {
                Err(error) if self.cluster.others(&[]).contains(&node) => return Err(error),
                // A node that has gone holds nothing.
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until the keepers know the new primary of a life; returns all primaries that they know.
    ///
    /// # Errors
    /// The end of the life, and `TimedOut` if a keeper does not list the primary in time.
    pub(super) async fn await_primary(
        self: &Rc<Self>,
        (id, life): (ObjectId, u64),
        user: u32,
        to: NodeId,
    ) -> Result<Vec<NodeId>, Error> {
        let due = self.kernel.clock.now() + PUBLICATION_PATIENCE;
        let mut primaries = Vec::new();
        // Other nodes may become the keepers meanwhile.
        let keepers = || self.cluster.keepers(&id).iter().collect::<Vec<_>>();
        let mut left = keepers();
        while let Some(keeper) = left.last().copied() {
            let located = self.network.ask(keeper, user, ask::Locate { id }, LIFE_PATIENCE).await;
            if let Ok(ask::Located { holders }) = &located
                && holders.contains(&(to, Role::Primary))
            {
                left.pop();
                primaries.extend(of_role(holders, Role::Primary));
                continue;
            }
            if let Some(error) = self.end_of(id, user, life).await {
                return Err(error);
            }
            if self.kernel.clock.now() >= due {
                let text = format!(
                    "object {id} is on node {to}, but its keeper {keeper} does not list it: it was not \
                     dropped elsewhere"
                );
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            self.kernel.clock.sleep(LOOK_INTERVAL).await;
            left = keepers();
        }
        Ok(primaries)
    }

    /// Hands the role of primary to another node, by order of the first keeper.
    pub(crate) fn on_hand_over(
        self: &Rc<Self>,
        asked: Envelope,
        (id, life): (ObjectId, u64),
        to: NodeId,
        (keep, copies): (bool, u16),
    ) {
        let replica = self.store.objects.borrow().get(&id).filter(|one| one.life == life).cloned();
        let Some(replica) = replica else { return self.network.answer(&asked, Message::Done) };
        let placement = Rc::clone(self);
        self.kernel.spawn(async move {
            let message = match placement.hand_over(&replica, to, (keep, copies)).await {
                Ok(()) => Message::Done,
                Err(error) => Message::Refused { error },
            };
            placement.network.answer(&asked, message);
        });
    }

    /// Drops the role of primary once the other node has said that it is the primary and how many nodes are
    /// to keep the object: as many as this node knows, which may have brought the object back from disk, and
    /// `copies` at least.
    async fn hand_over(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        to: NodeId,
        (keep, copies): (bool, u16),
    ) -> Result<(), Error> {
        let (id, life, copies) = (replica.id(), replica.life, replica.copies().max(copies).max(1));
        let busy = |why: &str| {
            let text =
                format!("object {id} is on node {to}, and stays on node {} as well: {why}", self.kernel.node);
            Error::new(ErrorKind::Busy, text)
        };
        let handing = &self.replication.handing;
        if !handing.borrow_mut().insert(id) {
            return Err(busy("it is being moved to another node too; try again when it is there"));
        }
        let order =
            Order { id, life, role: Role::Primary, copies, patient: false, from: Some(self.kernel.node) };
        let user = replica.ownership().user;
        let taken = self.network.ask(to, user, ask::Acquire { order }, TAKEOVER_PATIENCE).await;
        let undisturbed = handing.borrow_mut().remove(&id);
        taken?;
        if !undisturbed {
            return Err(busy("this node was told meanwhile to keep it"));
        }
        if !self.store.objects.borrow().has(replica) || !replica.role().stays() {
            return Ok(());
        }
        if keep && !self.is_draining() {
            // A replica that came back from disk may say a smaller number.
            replica.set_copies(copies);
            self.store.quotas.borrow_mut().give_back(replica);
            self.store.set_role(replica, Role::Kept);
        } else {
            self.leave_to_others(replica);
        }
        Ok(())
    }

    /// Sends orders at the same time, and waits until they are carried out or have failed.
    async fn order_all(
        self: &Rc<Self>,
        orders: Vec<(NodeId, Order)>,
        user: u32,
        due: Option<Instant>,
    ) -> Vec<(NodeId, Result<(), Error>)> {
        let patience = self.until(due);
        let given = orders.into_iter().map(|(node, order)| async move {
            // A replica on this node is only given its role, which may take longer than a short time limit.
            let here = node == self.kernel.node && self.store.objects.borrow().get(&order.id).is_some();
            let patience = if here { patience.max(LIFE_PATIENCE) } else { patience };
            let done = self.network.ask(node, user, ask::Acquire { order }, patience).await;
            (node, done.map(drop))
        });
        join_all(given).await
    }

    fn until(&self, due: Option<Instant>) -> Duration {
        due.map_or(DEFAULT_ORDER_PATIENCE, |due| due.saturating_duration_since(self.kernel.clock.now()))
    }

    fn is_past(&self, due: Option<Instant>) -> bool {
        due.is_some_and(|due| due <= self.kernel.clock.now())
    }
}

fn of_role(holders: &[(NodeId, Role)], role: Role) -> impl Iterator<Item = NodeId> {
    holders.iter().filter(move |(_, has)| *has == role).map(|(node, _)| *node)
}

fn nowhere(id: &ObjectId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("no node holds object {id}: it was not put, was deleted, or every node that held it is gone"),
    )
}

fn ended(id: &ObjectId) -> Error {
    let text = format!("object {id} was deleted or replaced meanwhile, and another one of its id was put");
    Error::new(ErrorKind::NotFound, text)
}

fn no_member(node: &NodeId) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("node {node} is not in this cluster; `plasmon status` lists its nodes"),
    )
}

fn spread(holders: Vec<NodeId>, failed: Vec<(NodeId, Error)>) -> Spread {
    let unreached =
        |(node, error): (NodeId, Error)| Unreached { node: node.to_string(), reason: error.to_string() };
    Spread {
        holders: holders.iter().map(ToString::to_string).collect(),
        failed: failed.into_iter().map(unreached).collect(),
    }
}

/// Chooses a parent for each target: the sources come first, then the targets before this one.
fn tree(sources: &[NodeId], targets: &[NodeId], fanout: usize) -> Vec<(NodeId, NodeId)> {
    let parents = sources.iter().chain(targets).flat_map(|node| std::iter::repeat_n(*node, fanout));
    targets.iter().copied().zip(parents).collect()
}

/// Returns the number of nodes that read from one parent. In a row each node sends once, and the
/// whole takes as long as one transfer and one piece for each node. If the object has few pieces,
/// two children for each node are faster.
fn fanout(len: Option<u64>, targets: usize) -> usize {
    let pieces = len.unwrap_or_default() / PIECE_BYTES;
    if pieces >= 2 * targets as u64 { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 16])
    }

    #[test]
    fn everybody_reads_from_one_who_comes_before() {
        let nodes: Vec<_> = (0..12).map(node).collect();
        for sources in 1..4 {
            for fanout in 1..4 {
                let (sources, targets) = nodes.split_at(sources);
                let tree = tree(sources, targets, fanout);
                assert_eq!(tree.iter().map(|(node, _)| *node).collect::<Vec<_>>(), targets);
                for (at, (_, parent)) in tree.iter().enumerate() {
                    let known = sources.contains(parent) || targets[..at].contains(parent);
                    assert!(known, "{at} of {tree:?}");
                    assert!(tree.iter().filter(|(_, other)| other == parent).count() <= fanout);
                }
            }
        }
    }

    #[test]
    fn long_objects_go_in_a_row_and_short_ones_two_at_a_time() {
        assert_eq!(fanout(Some(256 << 20), 7), 1);
        assert_eq!(fanout(Some(256 << 20), 300), 2);
        assert_eq!(fanout(Some(1000), 7), 2);
        assert_eq!(fanout(None, 7), 2);
    }
}
