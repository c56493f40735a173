//! Where objects of files are to lie: on the node of the session that puts them, on nodes with much free
//! memory, or on nodes by name. Engine thread only.
//!
//! A client puts an object on this node and has it *settled*: this node chooses others by the place that the
//! file has, and has them pull the object. Of two nodes drawn at random the one with more free memory is
//! chosen, so nobody needs to know the memory of all nodes, and those who choose at the same time do not all
//! choose the same. What no node takes stays here.
//!
//! Invariants: an object is given away once; what a client settles are objects of its own session.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::{FutureExt, Shared, join_all};
use plasmon::status::FilesStatus;
use plasmon::wire::Reply;
use plasmon::wire::files::{Place, parts_of};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Files;
use super::frames::{Room, SessionKey};
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, random_u64};
use crate::object::{Replica, Role};

/// Part of the memory of a node that is free as long as objects stay there by themselves: one of so many.
const FREE_PART: u64 = 10;
/// How long it is known how much room a node has.
const ROOM_AGE: Duration = Duration::from_secs(1);
/// Maximum number of nodes that are asked to take one object, beside those named.
const MAX_TRIED: usize = 16;
/// Maximum number of objects that are being settled, or were and are not asked about yet.
const MAX_SETTLING: usize = 1 << 16;

/// How an object is to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) place: Place,
    pub(super) copies: u16,
}

/// The primary of an object, once it is settled.
type Settled = Shared<Pin<Box<dyn Future<Output = NodeId>>>>;

/// What this node knows of objects that its clients have put, and that are to lie somewhere.
#[derive(Default)]
pub(super) struct Placing {
    settling: RefCell<HashMap<ObjectId, Settled>>,
    rooms: RefCell<HashMap<NodeId, (Room, Instant)>>,
    /// Pulls of this node's objects by others that are under way.
    pub(super) pulled: Cell<u64>,
    /// Numbers of pulls so far that were sent again, of objects that others took, that no node took, and that
    /// this node took.
    pub(super) repeated: Cell<u64>,
    pub(super) given: Cell<u64>,
    pub(super) stayed: Cell<u64>,
    pub(super) taken: Cell<u64>,
}

impl Placing {
    pub(super) fn known_room(&self, node: NodeId, now: Instant) -> Option<Room> {
        let rooms = self.rooms.borrow();
        rooms.get(&node).filter(|(_, told)| now < *told + ROOM_AGE).map(|(room, _)| *room)
    }

    pub(super) fn note_room(&self, node: NodeId, room: Room, now: Instant) {
        let mut rooms = self.rooms.borrow_mut();
        rooms.retain(|_, (_, told)| now < *told + ROOM_AGE);
        rooms.insert(node, (room, now));
    }

    /// Forgets what a session does not ask about any more. Its objects are settled all the same.
    pub(super) fn forget(&self, key: &SessionKey) {
        self.settling.borrow_mut().retain(|id, _| !is_of(id, key));
    }

    /// The counters, in a report without anything else.
    pub(super) fn report(&self) -> FilesStatus {
        FilesStatus {
            pulls: self.pulled.get(),
            pulls_repeated: self.repeated.get(),
            placed_elsewhere: self.given.get(),
            placed_in_vain: self.stayed.get(),
            placed_here: self.taken.get(),
            ..FilesStatus::default()
        }
    }
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// Whether an object is one of a session.
fn is_of(id: &ObjectId, key: &SessionKey) -> bool {
    parts_of(id).is_some_and(|(volume, session, _)| (volume, session) == (key.volume, key.session))
}

impl Files {
    /// Has objects of a client's session lie where they are to lie.
    pub(super) async fn settle(
        self: Rc<Self>,
        client: ClientKey,
        volume: u32,
        ids: Vec<ObjectId>,
        wanted: Wanted,
    ) -> Result<Reply, Error> {
        let key = self.attached.get(client, volume)?.key;
        if let Some(id) = ids.iter().find(|id| !is_of(id, &key)) {
            let text = format!("object {id} is none of the session that asks where it is to lie");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let settled: Vec<_> = ids.iter().map(|id| self.settling(*id, &wanted)).collect();
        let nodes = join_all(settled).await;
        let mut settling = self.placing.settling.borrow_mut();
        ids.iter().for_each(|id| _ = settling.remove(id));
        drop(settling);
        Ok(Reply::Settled { nodes, elsewhere: self.is_to_lie_elsewhere() })
    }

    /// Begins to have objects of a client's session lie where they are to lie.
    pub(super) fn begin_settling(
        self: &Rc<Self>,
        client: ClientKey,
        volume: u32,
        ids: &[ObjectId],
        wanted: &Wanted,
    ) {
        let Ok(attached) = self.attached.get(client, volume) else { return };
        for id in ids.iter().filter(|id| is_of(id, &attached.key)) {
            if self.placing.settling.borrow().len() < MAX_SETTLING {
                _ = self.settling(*id, wanted);
            }
        }
    }

    /// The end of the settling of an object, which is under way from now on.
    fn settling(self: &Rc<Self>, id: ObjectId, wanted: &Wanted) -> Settled {
        if let Some(settled) = self.placing.settling.borrow().get(&id) {
            return settled.clone();
        }
        let (files, wanted) = (Rc::clone(self), wanted.clone());
        let begun: Pin<Box<dyn Future<Output = NodeId>>> =
            Box::pin(async move { files.place(id, &wanted).await });
        let settled = begun.shared();
        self.placing.settling.borrow_mut().insert(id, settled.clone());
        // It goes on when nobody waits for it.
        let driven = settled.clone();
        self.kernel.spawn(async move { _ = driven.await });
        settled
    }

    /// Whether objects do not stay on this node by themselves.
    fn is_to_lie_elsewhere(&self) -> bool {
        !self.cluster.solo() && !keeps(&self.room_here())
    }

    /// Has an object of this node kept where it is to lie. Returns the node that is its primary.
    async fn place(self: Rc<Self>, id: ObjectId, wanted: &Wanted) -> NodeId {
        let own = self.kernel.node;
        let replica = self.store.objects.borrow().get(&id).cloned();
        let Some(replica) = replica.filter(|replica| replica.role() == Role::Primary) else { return own };
        let Some(given) = self.placement.begin_giving(&replica) else { return own };
        let keeping = self.keep_where(&replica, wanted).await;
        let least = usize::from(wanted.copies.max(1));
        let primary = match keeping.first() {
            Some(node) if *node != own => {
                count(&self.placing.given);
                // Rather here than on too few nodes.
                given.let_go(keeping.contains(&own) || keeping.len() < least);
                *node
            }
            first => {
                drop(given);
                if first.is_none() {
                    count(&self.placing.stayed);
                    tracing::debug!("object {id} stays here: no node that it may lie on takes it");
                }
                if wanted.copies > 1
                    && let Err(error) = self.placement.stay_primary(&replica, wanted.copies)
                {
                    tracing::debug!("object {id} has no number of copies: {error}");
                }
                own
            }
        };
        if let Some((volume, session, _)) = parts_of(&id)
            && !self.attached.has(volume, session)
        {
            // Nodes may have looked for what the session left before they had it.
            self.sweep_some(volume, replica.ownership().user, vec![id]).await;
        }
        primary
    }

    /// Has as many nodes keep an object as are to, or as can. The first of them is the primary.
    async fn keep_where(self: &Rc<Self>, replica: &Rc<Replica>, wanted: &Wanted) -> Vec<NodeId> {
        let (id, user) = (replica.id(), replica.ownership().user);
        let (mut keeping, mut tried) = (Vec::new(), Vec::new());
        while keeping.len() < usize::from(wanted.copies.max(1)) {
            let Some(node) = self.choose(&id, user, &wanted.place, &mut tried).await else { break };
            if node == self.kernel.node {
                keeping.push(node);
                continue;
            }
            let role = if keeping.is_empty() { Role::Primary } else { Role::Kept };
            match self.give(replica, node, role, wanted.copies.max(1)).await {
                Ok(room) => {
                    self.placing.note_room(node, room, self.kernel.clock.now());
                    keeping.push(node);
                }
                Err(error) => tracing::debug!("node {node} does not take object {id}: {error}"),
            }
        }
        keeping
    }

    /// Chooses the next node for an object, and notes it as tried.
    async fn choose(
        &self,
        id: &ObjectId,
        user: u32,
        place: &Place,
        tried: &mut Vec<NodeId>,
    ) -> Option<NodeId> {
        let own = self.kernel.node;
        let members = self.cluster.others(&[]);
        if let Place::Nodes(nodes) = place {
            for node in in_turn(id, nodes) {
                if !members.contains(&node) || tried.contains(&node) {
                    continue;
                }
                tried.push(node);
                if node != own || self.room_here().takes {
                    return Some(node);
                }
            }
            return None;
        }
        if *place == Place::Local && !tried.contains(&own) {
            tried.push(own);
            if self.cluster.solo() || keeps(&self.room_here()) {
                return Some(own);
            }
        }
        let mut left: Vec<_> = members.into_iter().filter(|node| !tried.contains(node)).collect();
        while !left.is_empty() && tried.len() < MAX_TRIED {
            let two: Vec<_> = (0..left.len().min(2)).map(|_| draw(&mut left)).collect();
            let rooms = join_all(two.iter().map(|node| self.room_of(*node, user))).await;
            let mut rooms: Vec<_> = two.into_iter().zip(rooms).collect();
            let refuses = |room: &Option<Room>| !room.is_some_and(|room| room.takes);
            tried.extend(rooms.iter().filter(|(_, room)| refuses(room)).map(|(node, _)| *node));
            rooms.retain(|(_, room)| !refuses(room));
            let best = rooms.iter().max_by_key(|(_, room)| room.map_or(0, |room| room.free));
            if let Some((node, _)) = best {
                tried.push(*node);
                return Some(*node);
            }
        }
        None
    }
}

/// Whether a node keeps by itself what is put there.
fn keeps(room: &Room) -> bool {
    room.takes && room.free >= room.capacity / FREE_PART
}

/// Nodes that are named, in the order in which they are asked: the objects of a session begin with one after
/// the other.
fn in_turn(id: &ObjectId, nodes: &[NodeId]) -> Vec<NodeId> {
    let number = parts_of(id).map_or(0, |(_, _, counter)| counter);
    let first = number.checked_rem(nodes.len() as u64).unwrap_or_default();
    let mut nodes = nodes.to_vec();
    nodes.rotate_left(first as usize);
    nodes
}

/// Takes one of these nodes out, at random.
fn draw(nodes: &mut Vec<NodeId>) -> NodeId {
    let at = random_u64() % nodes.len() as u64;
    nodes.swap_remove(at as usize)
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::file_object;

    use super::*;

    #[test]
    fn objects_stay_while_a_tenth_is_free() {
        let room = |takes, free| Room { takes, free, capacity: 1000 };
        assert!(keeps(&room(true, 100)));
        assert!(!keeps(&room(true, 99)));
        assert!(!keeps(&room(false, 1000)), "a cache keeps nothing");
    }

    #[test]
    fn a_session_settles_objects_of_its_own() {
        let key = SessionKey { volume: 3, session: 4, secret: 5 };
        assert!(is_of(&file_object(3, 4, 9), &key));
        assert!(!is_of(&file_object(3, 5, 9), &key));
        assert!(!is_of(&file_object(2, 4, 9), &key));
        assert!(!is_of(&ObjectId::random(), &key));
    }

    #[test]
    fn objects_begin_with_one_node_after_the_other() {
        let [a, b, c] = [1, 2, 3].map(|number| NodeId::from_bytes([number; 16]));
        let order = |counter| in_turn(&file_object(3, 4, counter), &[a, b, c]);
        assert_eq!([0, 1, 2, 3].map(order), [[a, b, c], [b, c, a], [c, a, b], [a, b, c]]);
        assert_eq!(in_turn(&file_object(3, 4, 9), &[]), []);
    }

    #[test]
    fn every_node_is_drawn_once() {
        let mut nodes: Vec<_> = (0..9).map(|number| NodeId::from_bytes([number; 16])).collect();
        let all = nodes.clone();
        let mut drawn: Vec<_> = (0..9).map(|_| draw(&mut nodes)).collect();
        drawn.sort_unstable();
        assert_eq!(drawn, all);
    }

    #[test]
    fn room_is_known_for_a_while() {
        let (placing, now, node) = (Placing::default(), Instant::now(), NodeId::from_bytes([1; 16]));
        assert_eq!(placing.known_room(node, now), None);
        let room = Room { takes: true, free: 7, capacity: 10 };
        placing.note_room(node, room, now);
        assert_eq!(placing.known_room(node, now), Some(room));
        assert_eq!(placing.known_room(node, now + ROOM_AGE), None);
    }
}
