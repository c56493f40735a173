//! Choice of nodes that keep an object of a file: one node after the other is asked until enough keep the
//! object. Owns [`Kept`] and [`Round`]. Engine thread only.
//!
//! Of two nodes drawn at random the one with more free memory is asked first, so no node needs to know the
//! memory of all nodes, and nodes that choose at the same time do not all choose the same. Nodes that would
//! have to spill are asked when no other is left. A node without room may make some, and is asked again. A
//! node that never keeps objects of files does not count.
//!
//! Invariant: a node is asked once in a round.

use std::rc::Rc;

use futures::future::join_all;
use plasmon::wire::files::{Place, parts_of};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Files;
use super::frames::Room;
use super::place::{Placing, ROOM_AGE, Wanted};
use super::volume::Volume;
use crate::kernel::random::random_u64;
use crate::object::{Replica, Role};

/// Part of a node's memory that has to be free for objects to stay there by themselves, as a divisor.
const FREE_PART: u64 = 10;
/// Maximum number of nodes that are asked to take one object, beside nodes that the place names.
const MAX_TRIED: usize = 16;

/// Nodes that keep an object, as far as they were found.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    pub(super) nodes: Vec<NodeId>,
    /// Node that has taken the role of primary from this node.
    pub(super) primary: Option<NodeId>,
}

/// One round of asking nodes to keep an object.
#[derive(Debug, Default)]
pub(super) struct Round {
    tried: Vec<NodeId>,
    /// Reasons of members that may keep the object but do not now: they have no room, or failed.
    pub(super) full: Vec<String>,
    /// Whether a member did not answer.
    pub(super) silent: bool,
}

impl Round {
    /// Notes why a node does not keep the object.
    fn note(&mut self, node: NodeId, error: &Error, is_member: bool) {
        tracing::debug!("node {node} does not take an object of a file: {error}");
        match error.kind() {
            // The node never keeps such an object, or the object has gone.
            ErrorKind::NotAllowed | ErrorKind::TooLarge | ErrorKind::NotFound => {}
            ErrorKind::TimedOut | ErrorKind::Disconnected => self.silent |= is_member,
            _ => {
                let why = error.message().lines().next().unwrap_or_default();
                self.full.push(format!("node {node}: {why}"));
            }
        }
    }

    /// Notes a node's answer about its room; `None` is no answer. Returns whether the node takes objects.
    fn note_room(&mut self, node: NodeId, room: Option<Room>, is_member: bool) -> bool {
        match room {
            Some(room) if room.takes => return true,
            Some(room) if room.is_never() => {}
            Some(_) => self.full.push(format!("node {node} is nearly full")),
            None => self.silent |= is_member,
        }
        false
    }
}

impl Placing {
    /// Number of nodes that keep an object. This node counts as well, since it keeps the object if the others
    /// are too few.
    pub(super) fn keeping(&self, kept: &Kept) -> usize {
        let own = !kept.nodes.contains(&self.kernel.node) && !self.placement.is_draining();
        kept.nodes.len() + usize::from(own)
    }

    /// Whether fewer nodes keep an object than wanted.
    pub(super) fn is_short(&self, kept: &Kept, wanted: &Wanted) -> bool {
        self.keeping(kept) < wanted.copies()
    }

    /// Makes as many nodes keep an object as wanted, or as can. Nodes of its place come first.
    pub(super) async fn keep_where(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        wanted: &Wanted,
        kept: &mut Kept,
    ) -> Round {
        let mut round = Round { tried: kept.nodes.clone(), ..Round::default() };
        while kept.nodes.len() < wanted.copies()
            && let Some(node) = self.choose(replica, &wanted.place, &mut round).await
        {
            let is_first = kept.nodes.is_empty() && replica.role() == Role::Primary;
            let role = if is_first { Role::Primary } else { Role::Kept };
            self.have_kept(replica, (node, role), wanted, kept, &mut round).await;
        }
        round.tried.push(self.kernel.node);
        // If the place has too few nodes, other nodes keep the object as well.
        while self.is_short(kept, wanted)
            && let Some(node) = self.choose(replica, &Place::Spread, &mut round).await
        {
            self.have_kept(replica, (node, Role::Kept), wanted, kept, &mut round).await;
        }
        round
    }

    async fn have_kept(
        self: &Rc<Self>,
        replica: &Rc<Replica>,
        (node, role): (NodeId, Role),
        wanted: &Wanted,
        kept: &mut Kept,
        round: &mut Round,
    ) {
        if node == self.kernel.node {
            return kept.nodes.push(node);
        }
        match self.give(replica, node, role, wanted.copies.max(1)).await {
            Ok(room) => {
                self.rooms.note(node, room, self.kernel.clock.now());
                kept.nodes.push(node);
                if role == Role::Primary {
                    kept.primary = Some(node);
                }
            }
            Err(error) => round.note(node, &error, self.cluster.is_member(node)),
        }
    }

    /// Chooses the next node for an object, and notes it as tried.
    async fn choose(&self, replica: &Replica, place: &Place, round: &mut Round) -> Option<NodeId> {
        let (id, user) = (replica.id(), replica.ownership().user);
        let own = self.kernel.node;
        let members = self.cluster.others(&[]);
        if let Place::Nodes(nodes) = place {
            for node in in_turn(&id, nodes) {
                if !members.contains(&node) || round.tried.contains(&node) {
                    continue;
                }
                round.tried.push(node);
                if node != own || self.room_here().takes {
                    return Some(node);
                }
            }
            return None;
        }
        let stays = *place == Place::Local && !round.tried.contains(&own);
        if stays && (self.cluster.solo() || keeps(&self.room_here())) {
            round.tried.push(own);
            return Some(own);
        }
        let last = stays.then_some(own);
        let is_left = |node: &NodeId| !round.tried.contains(node) && last != Some(*node);
        let mut left: Vec<_> = members.into_iter().filter(is_left).collect();
        let mut spills: Option<(NodeId, u64)> = None;
        let mut may_ask = MAX_TRIED.saturating_sub(round.tried.len());
        while !left.is_empty() && may_ask > 0 {
            let two: Vec<_> = (0..left.len().min(2)).map(|_| draw(&mut left)).collect();
            let rooms = join_all(two.iter().map(|node| self.room_of(*node, user))).await;
            may_ask = may_ask.saturating_sub(two.len());
            let mut best: Option<(NodeId, u64)> = None;
            for (node, room) in two.into_iter().zip(rooms) {
                if !round.note_room(node, room, self.cluster.is_member(node)) {
                    round.tried.push(node);
                    continue;
                }
                let (has_memory, free) = room.map_or((false, 0), |room| (room.has_memory(), room.free));
                let found = if has_memory { &mut best } else { &mut spills };
                if found.is_none_or(|(_, most)| free > most) {
                    *found = Some((node, free));
                }
            }
            if let Some((node, _)) = best {
                round.tried.push(node);
                return Some(node);
            }
        }
        let here = last.filter(|_| self.room_here().takes);
        let node = here.or(spills.map(|(node, _)| node))?;
        round.tried.push(node);
        Some(node)
    }

    /// Whether objects that are put here are to lie on other nodes, because this node has little free memory.
    pub(super) fn is_to_lie_elsewhere(&self) -> bool {
        !self.cluster.solo() && !keeps(&self.room_here())
    }

    /// Whether another node takes objects for a place, or some are on the way to other nodes.
    pub(super) async fn has_room_elsewhere(&self, place: &Place, user: u32) -> bool {
        if self.pulled.get() > 0 {
            return true;
        }
        let mut others = self.cluster.others(&[self.kernel.node]);
        if let Place::Nodes(nodes) = place {
            others.retain(|node| nodes.contains(node));
        }
        let asked: Vec<_> = (0..others.len().min(MAX_TRIED)).map(|_| draw(&mut others)).collect();
        let rooms = join_all(asked.into_iter().map(|node| self.room_of(node, user))).await;
        rooms.into_iter().flatten().any(|room| room.takes)
    }

    /// Number of bytes of files for which the nodes of a place have room, in memory and on the disks to which
    /// they spill, if `copies` nodes keep each byte.
    async fn room_at(&self, place: &Place, copies: u16, user: u32) -> u64 {
        let mut nodes = self.cluster.others(&[]);
        if let Place::Nodes(named) = place {
            nodes.retain(|node| named.contains(node));
        }
        let rooms = join_all(nodes.into_iter().map(|node| self.room_of(node, user))).await;
        let rooms: Vec<_> = rooms.into_iter().flatten().filter(|room| !room.is_never()).collect();
        let free: u64 =
            rooms.iter().fold(0, |sum, room| sum.saturating_add(room.free).saturating_add(room.disk));
        free / u64::from(copies).clamp(1, rooms.len().max(1) as u64)
    }
}

impl Files {
    /// Asks how much room nodes have for the bytes of a volume whose home this node is, unless this was asked
    /// within [`ROOM_AGE`].
    pub(super) async fn look_for_room(&self, volume: &Volume) {
        let now = self.kernel.clock.now();
        if volume.room_asked.get().is_some_and(|asked| now < asked + ROOM_AGE) {
            return;
        }
        volume.room_asked.set(Some(now));
        let (place, copies) = {
            let state = volume.state.borrow();
            (state.terms.place.clone(), state.terms.copies)
        };
        let room = self.placing.room_at(&place, copies, volume.owner).await;
        volume.room.set(Some(room));
    }
}

/// Whether objects that are put on a node stay there by themselves.
fn keeps(room: &Room) -> bool {
    room.takes && room.free >= room.capacity / FREE_PART
}

/// Returns named nodes in the order in which they are asked. The objects of a session begin at one node after
/// the other.
fn in_turn(id: &ObjectId, nodes: &[NodeId]) -> Vec<NodeId> {
    let number = parts_of(id).map_or(0, |(_, _, counter)| counter);
    let first = number.checked_rem(nodes.len() as u64).unwrap_or_default();
    let mut nodes = nodes.to_vec();
    nodes.rotate_left(first as usize);
    nodes
}

/// Takes one of these nodes out at random.
fn draw(nodes: &mut Vec<NodeId>) -> NodeId {
    let at = random_u64() % nodes.len() as u64;
    nodes.swap_remove(at as usize)
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::file_object;

    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 16])
    }

    #[test]
    fn objects_stay_while_a_tenth_is_free() {
        let room = |takes, free| Room { takes, free, disk: 1 << 40, capacity: 1000 };
        assert!(keeps(&room(true, 100)));
        assert!(!keeps(&room(true, 99)), "the disk does not count");
        assert!(!keeps(&Room::NEVER), "a cache keeps nothing");
        assert!(room(true, 50).has_memory() && !room(true, 49).has_memory());
    }

    #[test]
    fn objects_begin_with_one_node_after_the_other() {
        let [a, b, c] = [1, 2, 3].map(node);
        let order = |counter| in_turn(&file_object(3, 4, counter), &[a, b, c]);
        assert_eq!([0, 1, 2, 3].map(order), [[a, b, c], [b, c, a], [c, a, b], [a, b, c]]);
        assert_eq!(in_turn(&file_object(3, 4, 9), &[]), []);
    }

    #[test]
    fn every_node_is_drawn_once() {
        let mut nodes: Vec<_> = (0..9).map(node).collect();
        let all = nodes.clone();
        let mut drawn: Vec<_> = (0..9).map(|_| draw(&mut nodes)).collect();
        drawn.sort_unstable();
        assert_eq!(drawn, all);
    }

    #[test]
    fn a_node_without_room_is_told_from_one_that_keeps_nothing() {
        let mut round = Round::default();
        let error = |kind| Error::new(kind, "so it is");
        round.note(node(1), &error(ErrorKind::NotAllowed), true);
        assert!(!round.note_room(node(2), Some(Room::NEVER), true));
        assert!(!round.note_room(node(3), None, false));
        round.note(node(4), &error(ErrorKind::Disconnected), false);
        assert!(round.full.is_empty() && !round.silent, "none of them counts: {round:?}");
        assert!(round.note_room(node(5), Some(Room { takes: true, free: 9, disk: 0, capacity: 9 }), true));
        assert!(!round.note_room(node(5), Some(Room { takes: false, free: 0, disk: 0, capacity: 9 }), true));
        round.note(node(6), &error(ErrorKind::Full), true);
        assert_eq!(round.full.len(), 2);
        round.note(node(7), &error(ErrorKind::TimedOut), true);
        assert!(round.silent);
    }
}
