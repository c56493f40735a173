//! The interface of the directory's code for the simulation of large clusters. Owns no state: each
//! value belongs to the thread that made it.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::{Class, NodeId, ObjectId, Protocol, Rights};

use super::repair::{ROUND_OBJECTS, Repair, Untold};
use super::table::{Lookup, Published, Table, Waiter};
use crate::control::simulation::{change_text, members_text};
use crate::membership::shards::{Keepers, ShardMap, shard_of};
use crate::net::frame::{
    Envelope, Holding, Kind, Location, MAX_ENTRIES, MESSAGE_HEADER_LEN, Message, Standing, Verdict, Wish,
};
use crate::net::members::{Change, Gone, Member, Reach};
use crate::object::Stamp;
use crate::object::{Head, Ownership};

/// The keepers of all shards.
#[derive(PartialEq, Eq)]
pub struct Shards(Rc<ShardMap>);

impl Shards {
    /// Makes the keepers of these members, without a former view.
    ///
    /// # Panics
    /// When `members` is empty.
    pub fn new(members: &[NodeId]) -> Self {
        Self(Rc::new(ShardMap::new(members).expect("there are members")))
    }

    /// Makes the keepers of changed members from the former keepers.
    ///
    /// # Panics
    /// When `members` is empty.
    #[must_use]
    pub fn follow(&self, members: &[NodeId]) -> Self {
        Self(Rc::new(self.0.follow(members).expect("there are members")))
    }

    /// The keepers of an object's entry.
    pub fn keepers(&self, id: &ObjectId) -> impl Iterator<Item = NodeId> {
        self.0.keepers(id).iter()
    }

    /// The keepers of each shard.
    pub fn all(&self) -> impl Iterator<Item = impl Iterator<Item = NodeId>> {
        self.0.iter().map(Keepers::iter)
    }
}

/// A holder, with what its keepers know of its objects.
pub struct Holder(Repair);

impl Holder {
    /// Makes a holder whose keepers know everything.
    pub fn settled(shards: &Shards) -> Self {
        let repair = Repair::default();
        repair.settle(&shards.0);
        Self(repair)
    }

    /// Follows a view in which the nodes `fresh` are new.
    pub fn follow(&self, shards: &Shards, fresh: &HashSet<NodeId>) {
        self.0.follow(&shards.0, |node| !fresh.contains(&node));
    }

    /// Returns what the holder tells the keepers of these primaries.
    pub fn tells(&self, shards: &Shards, ids: &[ObjectId]) -> Told {
        let (mut told, mut untold) = (Told::default(), Untold::default());
        for ids in ids.chunks(ROUND_OBJECTS) {
            self.0.gather(&shards.0, ids, &mut untold);
            for (keeper, ids) in untold.take(true) {
                *told.objects.entry(keeper).or_default() += ids.len();
                told.messages += 1;
                told.bytes += len(Message::Publish { holdings: ids.into_iter().map(holding).collect() });
            }
        }
        told
    }
}

/// Returns how long a node that holds `objects` objects pauses in all while it publishes again.
pub fn rests(objects: usize) -> Duration {
    super::repair::rests(objects)
}

/// Messages that one node sends to others after a change of members.
#[derive(Default)]
pub struct Told {
    /// Number of objects of which each node was told.
    pub objects: BTreeMap<NodeId, usize>,
    /// Number of messages.
    pub messages: usize,
    /// Number of bytes of the messages.
    pub bytes: usize,
}

/// Lengths in bytes of the frames of a put, a get and a deletion.
#[derive(Debug, Clone, Copy)]
pub struct Frames {
    /// Length of a frame that publishes one object.
    pub publish: usize,
    /// Bytes that each further object adds to a `publish` frame.
    pub publish_more: usize,
    /// Maximum number of objects in a frame.
    pub objects_in_a_frame: usize,
    /// Length of the request for an id that others may create as well.
    pub claim: usize,
    /// Length of the answer to a claim.
    pub claimed: usize,
    /// Length of the request for an object, to a keeper or a holder.
    pub fetch: usize,
    /// Bytes that accompany an object inside a message.
    pub eager: usize,
    /// Length of the frame that says where an object is to be read.
    pub offer: usize,
    /// Length of the frame that gives back a lease.
    pub release: usize,
    /// Length of the frame that asks a keeper to delete an object.
    pub delete: usize,
    /// Length of the frame that has a holder drop an object, or the other keeper bury the object's life.
    pub drop: usize,
    /// Length of the frame that confirms an order.
    pub done: usize,
}

/// Measures the lengths of encoded frames.
pub fn frames() -> Frames {
    let (id, node) = (ObjectId::from_bytes([7; 20]), NodeId::from_bytes([1; 16]));
    let head = Head {
        id,
        name: "".into(),
        life: 3,
        user: 0,
        rights: Rights::default(),
        data_len: 0,
        metadata_len: 0,
        digest: 0,
        copies: 1,
        expires: 0,
        owned: false,
    };
    let wish = Wish { protocol: Protocol::Auto, eager_max: u32::MAX, push_max: 0 };
    let publish = |count| len(Message::Publish { holdings: vec![holding(id); count] });
    let pieces = vec![Location { segment: 1, version: 2, offset: 4096, len: 1 << 20 }];
    let stamp = Some(Stamp { slot: 1, value: 2 });
    Frames {
        publish: publish(1),
        publish_more: publish(2) - publish(1),
        objects_in_a_frame: MAX_ENTRIES,
        claim: len(Message::Claim { id, probe: false }),
        claimed: len(Message::Claimed { verdict: Verdict::Exists }),
        fetch: len(Message::Find { id, missed: false, wish, avoid: Vec::new() }),
        eager: len(Message::Eager { head: head.clone(), bytes: Default::default() }),
        offer: len(Message::Offer { head, lease_ms: 10_000, pieces, stamp, others: vec![node] }),
        release: len(Message::Release { requests: vec![4] }),
        delete: len(Message::Delete { lives: vec![(id, 0)], asked_us: None }),
        drop: len(Message::Drop { lives: vec![(id, 3)] }),
        done: len(Message::Done),
    }
}

/// Number of bytes by which the coordinator tells a joining node the members.
pub fn view_len(members: usize) -> usize {
    // One member stands for all, since making ten thousand random ids is not what is measured.
    let text = |count| members_text(vec![member(); count]).len();
    let (one, two) = (text(1), text(2));
    one + (members.saturating_sub(1)) * (two - one)
}

/// Number of bytes by which the coordinator tells each other member of a node that joins.
pub fn join_len() -> usize {
    change_text(change(Vec::new(), vec![member()])).len()
}

/// Number of bytes by which the coordinator tells each member of a node that has gone.
pub fn death_len() -> usize {
    let Member { node, incarnation, .. } = member();
    let gone = vec![Gone { node, incarnation }];
    change_text(change(gone, Vec::new())).len()
}

fn change(gone: Vec<Gone>, joined: Vec<Member>) -> Change {
    Change { before: 999_999, epoch: 1_000_000, gone, joined, skips: false }
}

/// A member with TCP over IPv4, as it describes itself.
fn member() -> Member {
    Member {
        node: NodeId::random(),
        incarnation: 1_795_273_389_869,
        listen: "10.11.12.13:41463".into(),
        fabrics: vec![Reach {
            provider: "tcp;ofi_rxm".to_owned(),
            protocol: (2_147_483_649, 1),
            small_address: vec![200; 16],
            bulk_addresses: vec![vec![200; 16]],
        }],
        token: u64::MAX / 3,
    }
}

/// The directory of one keeper.
#[derive(Default)]
pub struct Keeper(Table);

impl Keeper {
    /// Enters the publication of an object by a node; returns whether the object was entered.
    pub fn publish(&mut self, node: NodeId, id: ObjectId, now: Instant) -> bool {
        matches!(self.0.publish(node, holding(id), now), Published::Welcome(_))
    }

    /// Asks for an object; returns whether a holder is known.
    pub fn finds(&mut self, node: NodeId, id: ObjectId, now: Instant) -> bool {
        let wish = Wish { protocol: Protocol::Auto, eager_max: u32::MAX, push_max: 0 };
        let waiter = Waiter { node, request: 1, user: 0, wish };
        matches!(self.0.fetch(id, waiter, &[], now), Lookup::Holder(..))
    }

    /// Follows a change of the members.
    pub fn follow(&mut self, own: NodeId, shards: &Shards, alive: &HashSet<NodeId>, now: Instant) {
        let kept: Vec<_> = shards.0.kept_by(own).collect();
        self.0.follow(move |id| kept[shard_of(id)], alive.iter().copied().collect(), now);
        self.0.finish();
    }

    /// Number of known objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the keeper knows of no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn holding(id: ObjectId) -> Holding {
    let ownership = Ownership { user: 0, rights: Rights::default() };
    Holding { id, standing: Standing::Primary, copies: 1, life: 1, ownership, kind: Kind::Object }
}

fn len(message: Message) -> usize {
    let node = NodeId::from_bytes([1; 16]);
    let envelope = Envelope {
        request: 1,
        from: node,
        incarnation: 1,
        reply_to: node,
        epoch: 1,
        deadline_us: u64::MAX,
        user: 0,
        class: Class::Normal,
        by_class: false,
        answers: false,
        message,
    };
    MESSAGE_HEADER_LEN + envelope.encode().len()
}
