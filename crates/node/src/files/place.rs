//! Where objects of files are to lie: on the node of the session that puts them, on nodes with much free
//! memory, or on nodes by name; and how many nodes are to keep them. Owns [`Placing`]. Engine thread only.
//!
//! A client puts an object on this node and asks this node to *settle* it: this node chooses others by the
//! place that the file has, and has them pull the object ([`super::keeping`]). An object that no node takes
//! stays here. An object is settled when as many nodes keep it as wanted, or all nodes that may. Nodes that
//! may keep it and have no room are asked again for a while. Then the client is told that they are full.
//!
//! Invariants: an object is given away once; a client settles only objects of its own session.

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
use super::keeping::{Kept, Round};
use crate::kernel::random::HashMap;
use crate::kernel::{ClientKey, Kernel};
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::object::{Replica, Role};
use crate::placement::Placement;
use crate::store::Store;

/// Time for which a node's answer about its room is valid.
pub(super) const ROOM_AGE: Duration = Duration::from_secs(1);
/// Number of objects that are settled, or were and are not asked about so far, from which *begin settling*
/// begins no more.
const MAX_SETTLING: usize = 1 << 16;
/// Time for which nodes without room for an object are asked again, since they may be making some.
const FULL_PATIENCE: Duration = Duration::from_secs(3);
/// Pause before nodes that have no room or do not answer are asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of nodes whose reasons an error contains.
const MAX_REASONS: usize = 3;
/// Time between two lines of the log about objects that too few nodes keep.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Place and number of copies that an object is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) place: Place,
    pub(super) copies: u16,
    /// User to whom the object belongs.
    pub(super) user: u32,
}

impl Wanted {
    /// Number of nodes that are to keep the object.
    pub(super) fn copies(&self) -> usize {
        self.copies.max(1).into()
    }
}

/// Future of the primary of an object, once the object is settled, or of the reason why it is not.
type Settled = Shared<Pin<Box<dyn Future<Output = Result<NodeId, Error>>>>>;

/// Room that nodes have said they have, with the times of their answers.
#[derive(Default)]
pub(super) struct Rooms(RefCell<HashMap<NodeId, (Room, Instant)>>);

impl Rooms {
    pub(super) fn known(&self, node: NodeId, now: Instant) -> Option<Room> {
        let rooms = self.0.borrow();
        rooms.get(&node).filter(|(_, told)| now < *told + ROOM_AGE).map(|(room, _)| *room)
    }

    pub(super) fn note(&self, node: NodeId, room: Room, now: Instant) {
        let mut rooms = self.0.borrow_mut();
        rooms.retain(|_, (_, told)| now < *told + ROOM_AGE);
        rooms.insert(node, (room, now));
    }
}

/// Placement of objects of files: where the objects of this node's clients go, and which this node takes from
/// others.
pub(super) struct Placing {
    pub(super) kernel: Rc<Kernel>,
    pub(super) network: Rc<Network>,
    pub(super) cluster: Rc<Cluster>,
    pub(super) placement: Rc<Placement>,
    pub(super) store: Rc<Store>,
    settling: RefCell<HashMap<ObjectId, Settled>>,
    /// Nodes that keep objects, for which other nodes had no room.
    partly: RefCell<HashMap<ObjectId, Kept>>,
    pub(super) rooms: Rooms,
    /// Time until which nodes may be away that lost their membership together with this node.
    unsure_until: Cell<Option<Instant>>,
    /// Time when the log last told of objects that too few nodes keep.
    logged: Cell<Option<Instant>>,
    /// Number of pulls of this node's objects by other nodes that are under way.
    pub(super) pulled: Cell<u64>,
    /// Number of pulls so far that were sent again.
    pub(super) repeated: Cell<u64>,
    /// Number of objects so far that other nodes took over as primary.
    pub(super) given: Cell<u64>,
    /// Number of objects so far that no node took.
    pub(super) stayed: Cell<u64>,
    /// Number of objects so far that this node took from other nodes.
    pub(super) taken: Cell<u64>,
    /// Number of objects so far that fewer nodes keep than wanted, because there are not more nodes.
    pub(super) short: Cell<u64>,
    /// Number of objects so far for which nodes had no room.
    pub(super) refused: Cell<u64>,
}

impl Placing {
    pub(super) fn new(placement: &Rc<Placement>) -> Self {
        Self {
            kernel: Rc::clone(&placement.kernel),
            network: Rc::clone(&placement.network),
            cluster: Rc::clone(&placement.cluster),
            placement: Rc::clone(placement),
            store: Rc::clone(&placement.store),
            settling: RefCell::default(),
            partly: RefCell::default(),
            rooms: Rooms::default(),
            unsure_until: Cell::default(),
            logged: Cell::default(),
            pulled: Cell::default(),
            repeated: Cell::default(),
            given: Cell::default(),
            stayed: Cell::default(),
            taken: Cell::default(),
            short: Cell::default(),
            refused: Cell::default(),
        }
    }

    /// Forgets the objects of a session that nobody will ask about. They are settled all the same.
    pub(super) fn forget(&self, key: &SessionKey) {
        self.settling.borrow_mut().retain(|id, _| !is_of(id, key));
        self.partly.borrow_mut().retain(|id, _| !is_of(id, key));
    }

    /// Returns the counters, in a report without anything else.
    pub(super) fn report(&self) -> FilesStatus {
        FilesStatus {
            pulls: self.pulled.get(),
            pulls_repeated: self.repeated.get(),
            placed_elsewhere: self.given.get(),
            placed_in_vain: self.stayed.get(),
            placed_here: self.taken.get(),
            placed_short: self.short.get(),
            placed_refused: self.refused.get(),
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
    /// Settles objects of a client's session: waits until they lie where they are to lie.
    ///
    /// # Errors
    /// `Full` if nodes that are to keep an object have no room. Objects that were settled stay so.
    pub(super) async fn settle(
        self: Rc<Self>,
        client: ClientKey,
        volume: u32,
        ids: Vec<ObjectId>,
        (place, copies): (Place, u16),
    ) -> Result<Reply, Error> {
        let attached = self.attached.get(client, volume)?;
        let wanted = Wanted { place, copies, user: attached.user };
        if let Some(id) = ids.iter().find(|id| !is_of(id, &attached.key)) {
            let text = format!("object {id} is none of the session that asks where it is to lie");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let settled: Vec<_> = ids.iter().map(|id| self.settling(*id, &wanted)).collect();
        let nodes = join_all(settled).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        ids.iter().for_each(|id| _ = self.placing.settling.borrow_mut().remove(id));
        let elsewhere = self.placing.is_to_lie_elsewhere();
        // A client asks where there is room only before it puts anything.
        let asks = ids.is_empty() && elsewhere;
        let room = !asks || self.placing.has_room_elsewhere(&wanted.place, attached.user).await;
        Ok(Reply::Settled { nodes, elsewhere, room })
    }

    /// Begins to settle objects of a client's session.
    pub(super) fn begin_settling(
        self: &Rc<Self>,
        client: ClientKey,
        volume: u32,
        ids: &[ObjectId],
        (place, copies): (Place, u16),
    ) {
        let Ok(attached) = self.attached.get(client, volume) else { return };
        let wanted = Wanted { place, copies, user: attached.user };
        for id in ids.iter().filter(|id| is_of(id, &attached.key)) {
            if self.placing.settling.borrow().len() < MAX_SETTLING {
                _ = self.settling(*id, &wanted);
            }
        }
    }

    /// Returns the settling of an object, and begins it if it is not under way. A settling that failed is
    /// begun again.
    fn settling(self: &Rc<Self>, id: ObjectId, wanted: &Wanted) -> Settled {
        let known = self.placing.settling.borrow().get(&id).cloned();
        if let Some(settled) = known.filter(|settled| !matches!(settled.peek(), Some(Err(_)))) {
            return settled;
        }
        let (files, wanted) = (Rc::clone(self), wanted.clone());
        let begun: Pin<Box<dyn Future<Output = Result<NodeId, Error>>>> = Box::pin(async move {
            let placed = files.placing.place(id, &wanted).await;
            if let Some((volume, session, _)) = parts_of(&id)
                && !files.attached.has(volume, session)
            {
                // Nodes may have swept the objects of the session before they got this one.
                files.sweep_some(volume, vec![id]).await;
            }
            placed
        });
        let settled = begun.shared();
        self.placing.settling.borrow_mut().insert(id, settled.clone());
        // The settling goes on when no caller waits for it.
        let driven = settled.clone();
        self.kernel.spawn(async move { _ = driven.await });
        settled
    }
}

impl Placing {
    /// Makes nodes keep an object of this node where it is to lie. Returns the node that is its primary.
    async fn place(self: &Rc<Self>, id: ObjectId, wanted: &Wanted) -> Result<NodeId, Error> {
        let own = self.kernel.node;
        let replica = self.store.objects.borrow().get(&id).cloned();
        let Some(replica) = replica.filter(|replica| replica.role().stays()) else {
            return self.place_again(id, wanted).await.map(|()| own);
        };
        let is_new = !self.partly.borrow().contains_key(&id);
        if is_new && wanted.copies > 1 && replica.copies() >= wanted.copies {
            // The object was settled before.
            return self.place_again(id, wanted).await.map(|()| own);
        }
        // An object that a drain moves is settled when it has been moved.
        let given = match replica.role() {
            Role::Primary => match self.placement.begin_giving(&replica) {
                None => return self.place_again(id, wanted).await.map(|()| own),
                given => given,
            },
            _ => None,
        };
        let mut kept = self.partly.borrow_mut().remove(&id).unwrap_or_default();
        kept.nodes.retain(|node| self.cluster.is_member(*node));
        let round = self.keep(&replica, wanted, &mut kept).await;
        let beside = kept.nodes.contains(&own) || kept.nodes.len() < wanted.copies();
        match (kept.primary, given) {
            (Some(_), Some(given)) => {
                count(&self.given);
                given.let_go(beside.then_some(wanted.copies));
            }
            (_, given) => {
                drop(given);
                if kept.nodes.is_empty() {
                    count(&self.stayed);
                    tracing::debug!("object {id} stays here: no node that it may lie on takes it");
                }
                if wanted.copies > 1
                    && replica.role() == Role::Primary
                    && let Err(error) = self.placement.stay_primary(&replica, wanted.copies)
                {
                    tracing::debug!("object {id} has no number of copies: {error}");
                }
            }
        }
        let primary = kept.primary.unwrap_or(own);
        self.ensure_kept(id, wanted, kept, &round).map(|()| primary)
    }

    /// Notes that a membership of this node begins. If this node had lost one, other nodes may have lost
    /// theirs. Until they are back, this node does not know which nodes may keep objects.
    pub(super) fn begin_anew(&self) {
        if self.cluster.fencings() > 0 {
            self.unsure_until.set(Some(self.kernel.clock.now() + self.kernel.config.lease));
        }
    }

    /// Whether there may be nodes that this node does not know now.
    fn is_unsure(&self) -> bool {
        let now = self.kernel.clock.now();
        self.cluster.fenced() || self.unsure_until.get().is_some_and(|until| now < until)
    }

    /// Makes nodes keep an object until enough do, or until it is certain that no more do.
    async fn keep(self: &Rc<Self>, replica: &Rc<Replica>, wanted: &Wanted, kept: &mut Kept) -> Round {
        let due = self.kernel.clock.now() + FULL_PATIENCE;
        loop {
            let round = self.keep_where(replica, wanted, kept).await;
            let waits =
                round.silent || self.is_unsure() || (!round.full.is_empty() && self.kernel.clock.now() < due);
            if !self.is_short(kept, wanted) || !waits || !self.store.objects.borrow().has(replica) {
                return round;
            }
            self.kernel.clock.sleep(RETRY_PAUSE).await;
        }
    }

    /// Counts an object that fewer nodes keep than wanted.
    ///
    /// # Errors
    /// `Full` if nodes that may keep the object have no room.
    fn ensure_kept(&self, id: ObjectId, wanted: &Wanted, kept: Kept, round: &Round) -> Result<(), Error> {
        if !self.is_short(&kept, wanted) {
            return Ok(());
        }
        let (copies, keeping) = (wanted.copies(), self.keeping(&kept));
        if round.full.is_empty() {
            count(&self.short);
            let now = self.kernel.clock.now();
            if self.logged.get().is_none_or(|logged| now >= logged + LOG_INTERVAL) {
                self.logged.set(Some(now));
                tracing::warn!(
                    "bytes of files are kept by fewer nodes than their volumes say, object {id} by {keeping} \
                     of {copies}: there are not more nodes that may keep them; others get them as they come"
                );
            }
            return Ok(());
        }
        count(&self.refused);
        self.partly.borrow_mut().insert(id, kept);
        let text = format!(
            "object {id} of a file is kept by {keeping} of {copies} nodes, and the others have no room: {}",
            round.full.iter().take(MAX_REASONS).cloned().collect::<Vec<_>>().join("; ")
        );
        Err(Error::new(ErrorKind::Full, text))
    }

    /// Makes enough nodes keep an object whose primary is another node.
    ///
    /// # Errors
    /// Why too few keep the object, if several are to.
    async fn place_again(self: &Rc<Self>, id: ObjectId, wanted: &Wanted) -> Result<(), Error> {
        if wanted.copies <= 1 {
            return Ok(());
        }
        loop {
            let due = self.kernel.clock.now() + FULL_PATIENCE;
            match self.placement.replicate(id, wanted.user, (wanted.copies, false), Some(due)).await {
                Err(_) if self.is_unsure() => self.kernel.clock.sleep(RETRY_PAUSE).await,
                Err(error) if error.kind() == ErrorKind::TooFew => {
                    let members = self.cluster.others(&[]).len();
                    if members < wanted.copies() {
                        count(&self.short);
                        return Ok(());
                    }
                    return Err(Error::new(ErrorKind::Full, error.message()));
                }
                done => return done.map(drop),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::files::file_object;

    use super::*;

    #[test]
    fn a_session_settles_objects_of_its_own() {
        let key = SessionKey { volume: 3, session: 4, secret: 5 };
        assert!(is_of(&file_object(3, 4, 9), &key));
        assert!(!is_of(&file_object(3, 5, 9), &key));
        assert!(!is_of(&file_object(2, 4, 9), &key));
        assert!(!is_of(&ObjectId::random(), &key));
    }

    #[test]
    fn room_is_known_for_a_while() {
        let (rooms, now, node) = (Rooms::default(), Instant::now(), NodeId::from_bytes([1; 16]));
        assert_eq!(rooms.known(node, now), None);
        let room = Room { takes: true, free: 7, disk: 0, capacity: 10 };
        rooms.note(node, room, now);
        assert_eq!(rooms.known(node, now), Some(room));
        assert_eq!(rooms.known(node, now + ROOM_AGE), None);
    }
}
