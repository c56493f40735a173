//! Where users want objects to be: so many replicas, on another node, on many nodes at once.
//!
//! Engine thread only. The node that is asked finds out who holds the object and in which life, and orders other nodes
//! to hold it ([`super::copies`]). Those that are to have it at the same time form a tree: each reads from its parent
//! what that has got so far ([`crate::transfer`]). A move is led by the first keeper of the object's shard, one at a
//! time: two that drop each other's new primary would lose it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use plasmon::{Error, ErrorKind, NodeId, ObjectId, Spread, Unreached};

use super::copies::candidates;
use super::frame::Order;
use super::{Envelope, Message};
use crate::engine::Core;
use crate::object::Role;

/// How long a node may take to say which life of an object it holds.
const LIFE_PATIENCE: Duration = Duration::from_secs(5);
/// How long an object that nobody is known to hold may be about to be published.
const APPEARING: Duration = Duration::from_millis(500);
/// How long until that is looked at again.
const LOOK: Duration = Duration::from_millis(5);
/// How long the directory may take to learn of a new primary.
const PUBLISHED: Duration = Duration::from_secs(10);
/// How long orders are given when nobody says.
const PATIENCE: Duration = Duration::from_secs(3600);
/// What a node passes on at a time, for the shape of the tree.
const PIECE: u64 = 1 << 20;

/// An object and those who hold it.
struct Found {
    life: u64,
    /// Bytes, if it is on this node.
    len: Option<u64>,
    holders: Vec<(NodeId, Role)>,
}

impl Found {
    fn nodes(&self) -> Vec<NodeId> {
        self.holders.iter().map(|(node, _)| *node).collect()
    }

    /// Those to read it from: a cached replica may leave any moment.
    fn sources(&self) -> Vec<NodeId> {
        Some(self.keeping()).filter(|keeping| !keeping.is_empty()).unwrap_or_else(|| self.nodes())
    }

    fn keeping(&self) -> Vec<NodeId> {
        self.holders.iter().filter(|(_, role)| role.stays()).map(|(node, _)| *node).collect()
    }
}

impl Core {
    /// Finds an object that a user may see.
    async fn find(self: &Rc<Self>, id: ObjectId, tenant: u32) -> Result<Found, Error> {
        let due = self.clock.now() + APPEARING;
        loop {
            let here = self.objects.borrow().get(&id).cloned();
            if here.as_ref().is_some_and(|replica| !replica.visible_to(tenant)) {
                return Err(crate::transfer::not_visible(id, tenant));
            }
            let mut holders = if self.cluster.solo() { Vec::new() } else { self.holders(id, tenant).await? };
            if let Some(replica) = &here
                && self.objects.borrow().has(replica)
            {
                holders.retain(|(node, _)| *node != self.node);
                holders.insert(0, (self.node, replica.role()));
                return Ok(Found { life: replica.life, len: Some(replica.len()), holders });
            }
            holders.retain(|(node, _)| *node != self.node);
            holders.sort_by_key(|(_, role)| *role != Role::Primary);
            for (node, _) in &holders {
                let hold = Message::Hold { ids: vec![id] };
                if let Ok(Message::Held { lives }) = self.ask(*node, tenant, hold, LIFE_PATIENCE).await
                    && let Some(life) = lives.first().copied().filter(|life| *life != 0)
                {
                    return Ok(Found { life, len: None, holders });
                }
            }
            if self.clock.now() >= due {
                let text = format!(
                    "no node holds object {id}: it was not put, was deleted, or every node that held it is gone"
                );
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            self.clock.sleep(LOOK).await;
        }
    }

    /// Has so many nodes keep an object.
    ///
    /// # Errors
    /// `TooFew` when not so many can.
    pub(crate) async fn replicate(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        copies: u16,
        due: Option<Instant>,
    ) -> Result<Spread, Error> {
        if copies == 0 {
            let text = format!("0 replicas of object {id} would be none: delete it instead");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let found = self.find(id, tenant).await?;
        let order = |role| Order { id, life: found.life, role, copies, patient: false, from: None };
        let mut keeping = found.keeping();
        // The primary is the last that would go.
        keeping.sort_by_key(|node| !found.holders.contains(&(*node, Role::Primary)));
        let extra = keeping.split_off(keeping.len().min(usize::from(copies)));
        let told = keeping.iter().map(|node| (*node, order(Role::Kept)));
        let told = told.chain(extra.iter().map(|node| (*node, order(Role::Cached))));
        let mut failed = Vec::new();
        for (node, done) in self.order_all(told.collect(), tenant, due).await {
            if let Err(error) = done {
                keeping.retain(|one| *one != node);
                failed.push((node, error));
            }
        }
        let cached: Vec<_> = found.nodes().into_iter().filter(|node| !keeping.contains(node)).collect();
        let mut left = candidates(&id, self.others(&found.keeping()), &cached);
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
            for (node, done) in self.order_all(orders.collect(), tenant, due).await {
                match done {
                    Ok(()) => keeping.push(node),
                    Err(error) => failed.push((node, error)),
                }
            }
        }
        if keeping.len() < usize::from(copies) {
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
        Error::new(ErrorKind::TooFew, text)
    }

    /// Brings an object to nodes, or to all.
    ///
    /// # Errors
    /// When there is no such object or node.
    pub(crate) async fn broadcast(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        nodes: Vec<NodeId>,
        due: Option<Instant>,
    ) -> Result<Spread, Error> {
        let members = self.others(&[]);
        if let Some(stranger) = nodes.iter().find(|node| !members.contains(node)) {
            return Err(no_member(stranger));
        }
        let found = self.find(id, tenant).await?;
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
        for (node, done) in self.order_all(orders, tenant, due).await {
            match done {
                Ok(()) => holders.push(node),
                Err(error) => failed.push((node, error)),
            }
        }
        Ok(spread(holders, failed))
    }

    /// Moves an object to another node: asks the first keeper to.
    ///
    /// # Errors
    /// When there is no such object or node, or the node cannot take it.
    pub(crate) async fn migrate(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        to: NodeId,
        due: Option<Instant>,
    ) -> Result<Spread, Error> {
        if !self.others(&[]).contains(&to) {
            return Err(no_member(&to));
        }
        if self.cluster.solo() {
            return self.find(id, tenant).await.map(|_| spread(vec![to], Vec::new()));
        }
        let keeper = self.cluster.keepers(&id).first;
        self.ask(keeper, tenant, Message::Migrate { id, to }, self.until(due)).await?;
        Ok(spread(vec![to], Vec::new()))
    }

    /// Moves an object, as the first keeper of its shard.
    pub(super) fn on_migrate(self: &Rc<Self>, asked: Envelope, id: ObjectId, to: NodeId) {
        let moving = &self.cluster.copies.moving;
        if !moving.borrow_mut().insert(id) {
            let text = format!("object {id} is being moved already; try again when it is there");
            return self.answer(&asked, Message::Refused { error: Error::new(ErrorKind::Busy, text) });
        }
        let core = Rc::clone(self);
        self.spawn(async move {
            let message = match core.lead_move(id, asked.tenant, to).await {
                Ok(()) => Message::Done,
                Err(error) => Message::Refused { error },
            };
            core.cluster.copies.moving.borrow_mut().remove(&id);
            core.answer(&asked, message);
        });
    }

    async fn lead_move(self: &Rc<Self>, id: ObjectId, tenant: u32, to: NodeId) -> Result<(), Error> {
        let found = self.find(id, tenant).await?;
        let of_role = |role| found.holders.iter().filter(move |(_, has)| *has == role).map(|(node, _)| *node);
        let before: Vec<_> = of_role(Role::Primary).filter(|node| *node != to).collect();
        let from = before.first().copied().or(found.nodes().first().copied());
        let order = Order { id, life: found.life, role: Role::Primary, copies: 0, patient: false, from };
        self.ask(to, tenant, Message::Acquire { order }, PATIENCE).await?;
        // Whoever asks the directory from now on must not be told that nobody has it.
        let keepers: Vec<_> = self.cluster.keepers(&id).iter().collect();
        let due = self.clock.now() + PUBLISHED;
        for keeper in keepers {
            loop {
                let located = self.ask(keeper, tenant, Message::Locate { id }, LIFE_PATIENCE).await;
                if let Ok(Message::Located { holders }) = &located
                    && holders.contains(&(to, Role::Primary))
                {
                    break;
                }
                if self.clock.now() >= due {
                    let text = format!(
                        "object {id} is on node {to}, but its keeper {keeper} does not say so: it was not dropped elsewhere"
                    );
                    return Err(Error::new(ErrorKind::TimedOut, text));
                }
                self.clock.sleep(LOOK).await;
            }
        }
        for node in before {
            // One that has gone holds nothing.
            let drop = Message::Drop { lives: vec![(id, found.life)] };
            let _ = self.ask(node, tenant, drop, LIFE_PATIENCE).await;
        }
        Ok(())
    }

    /// Gives orders, all at the same time, and waits until they are carried out.
    async fn order_all(
        self: &Rc<Self>,
        orders: Vec<(NodeId, Order)>,
        tenant: u32,
        due: Option<Instant>,
    ) -> Vec<(NodeId, Result<(), Error>)> {
        let patience = self.until(due);
        let given = orders.into_iter().map(|(node, order)| async move {
            let done = self.ask(node, tenant, Message::Acquire { order }, patience).await;
            (node, done.map(drop))
        });
        join_all(given).await
    }

    fn until(&self, due: Option<Instant>) -> Duration {
        due.map_or(PATIENCE, |due| due.saturating_duration_since(self.clock.now()))
    }

    fn is_past(&self, due: Option<Instant>) -> bool {
        due.is_some_and(|due| due <= self.clock.now())
    }
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

/// From whom each of the targets reads: the sources first, then those that come before it.
fn tree(sources: &[NodeId], targets: &[NodeId], fanout: usize) -> Vec<(NodeId, NodeId)> {
    let parents = sources.iter().chain(targets).flat_map(|node| std::iter::repeat_n(*node, fanout));
    targets.iter().copied().zip(parents).collect()
}

/// How many read from one node. In a row every node sends once, so that it takes as long as one transfer and a piece more
/// for each node; where there are fewer pieces than that, two at a time are quicker.
fn fanout(len: Option<u64>, targets: usize) -> usize {
    let pieces = len.unwrap_or_default() / PIECE;
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
