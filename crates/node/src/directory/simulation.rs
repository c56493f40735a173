//! What the simulation of large clusters asks of this module's code.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId, Protocol, Rights};

use super::repair::{ROUND_OBJECTS, Repair, Untold};
use super::table::{Lookup, Published, Table, Waiter};
use crate::control::simulation::{change_text, members_text};
use crate::membership::shards::{Keepers, ShardMap, shard_of};
use crate::net::frame::{Envelope, Holding, Location, MAX_ENTRIES, Message, Verdict, Wish};
use crate::net::members::{Change, Gone, Member, Reach};
use crate::object::Stamp;
use crate::object::{Head, Ownership, Role};

/// Who keeps which shard.
#[derive(PartialEq, Eq)]
pub struct Shards(ShardMap);

impl Shards {
    /// Of these members, made anew.
    ///
    /// # Panics
    /// When there are none.
    pub fn new(members: &[NodeId]) -> Self {
        Self(ShardMap::new(members).expect("there are members"))
    }

    /// Of other members, from what was before.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub fn follow(&self, members: &[NodeId]) -> Self {
        Self(self.0.follow(members).expect("there are members"))
    }

    /// Who keeps an object's entry.
    pub fn keepers(&self, id: &ObjectId) -> impl Iterator<Item = NodeId> {
        self.0.keepers(id).iter()
    }

    /// The keepers of each shard.
    pub fn all(&self) -> impl Iterator<Item = impl Iterator<Item = NodeId>> {
        self.0.iter().map(Keepers::iter)
    }
}

/// What a holder's keepers know of what it holds.
pub struct Holder(Repair);

impl Holder {
    /// Whose keepers know everything.
    pub fn settled(shards: &Shards) -> Self {
        let repair = Repair::default();
        repair.settle(&shards.0);
        Self(repair)
    }

    /// Follows a view in which `fresh` are new.
    pub fn follow(&self, shards: &Shards, fresh: &HashSet<NodeId>) {
        self.0.follow(&shards.0, |node| !fresh.contains(&node));
    }

    /// What it tells the keepers of these primaries.
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

/// How long a node that holds so many objects rests meanwhile, in all.
pub fn rests(objects: usize) -> Duration {
    super::repair::rests(objects)
}

/// What one node tells others.
#[derive(Default)]
pub struct Told {
    /// Objects of which each was told.
    pub objects: BTreeMap<NodeId, usize>,
    /// Messages.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// Bytes of the frames that a put, a get and a deletion are made of.
#[derive(Debug, Clone, Copy)]
pub struct Frames {
    /// One object is published; and by how much each further one in the same frame adds.
    pub publish: usize,
    /// Each further one.
    pub publish_more: usize,
    /// Objects in a frame, at most.
    pub objects_in_a_frame: usize,
    /// A keeper is asked for an id that others may create as well.
    pub claim: usize,
    /// Its answer.
    pub claimed: usize,
    /// A keeper or a holder is asked for an object.
    pub fetch: usize,
    /// What comes with the bytes of an object inside a message.
    pub eager: usize,
    /// Where an object is to be read.
    pub offer: usize,
    /// A lease is given back.
    pub release: usize,
    /// A keeper is asked to delete an object.
    pub delete: usize,
    /// A holder is told to drop one, or the other keeper to bury it.
    pub drop: usize,
    /// That was done.
    pub done: usize,
}

/// The lengths of frames, from frames.
pub fn frames() -> Frames {
    let (id, node) = (ObjectId::from_bytes([7; 20]), NodeId::from_bytes([1; 16]));
    let head = Head {
        id,
        name: "".into(),
        life: 3,
        tenant: 0,
        rights: Rights::default(),
        data_len: 0,
        metadata_len: 0,
        digest: 0,
        copies: 1,
        expires: 0,
    };
    let wish = Wish { protocol: Protocol::Auto, eager_max: u32::MAX };
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
        delete: len(Message::Delete { lives: vec![(id, 0)] }),
        drop: len(Message::Drop { lives: vec![(id, 3)] }),
        done: len(Message::Done),
    }
}

/// Bytes by which the coordinator tells a node that joins who the members are.
pub fn view_len(members: usize) -> usize {
    // One of them stands for all: making ten thousand random ids is not what is asked.
    let text = |count| members_text(vec![member(); count]).len();
    let (one, two) = (text(1), text(2));
    one + (members.saturating_sub(1)) * (two - one)
}

/// Bytes by which it tells each other member of one that joins.
pub fn join_len() -> usize {
    change_text(Change { before: 999_999, epoch: 1_000_000, gone: Vec::new(), joined: vec![member()] }).len()
}

/// Bytes by which it tells each member of one that has gone.
pub fn death_len() -> usize {
    let Member { node, incarnation, .. } = member();
    let gone = vec![Gone { node, incarnation }];
    change_text(Change { before: 999_999, epoch: 1_000_000, gone, joined: Vec::new() }).len()
}

/// A node with TCP over IPv4, as it describes itself.
fn member() -> Member {
    Member {
        node: NodeId::random(),
        incarnation: 1_795_273_389_869,
        listen: "10.11.12.13:41463".into(),
        fabrics: vec![Reach {
            provider: "tcp;ofi_rxm".to_owned(),
            protocol: (2_147_483_649, 1),
            small_address: vec![200; 16],
            bulk_address: vec![200; 16],
        }],
        token: u64::MAX / 3,
    }
}

/// The directory of one keeper.
#[derive(Default)]
pub struct Keeper(Table);

impl Keeper {
    /// A node publishes an object.
    pub fn publish(&mut self, node: NodeId, id: ObjectId, now: Instant) -> bool {
        matches!(self.0.publish(node, holding(id), now), Published::Welcome(_))
    }

    /// Somebody asks for an object; says whether a holder is known.
    pub fn finds(&mut self, node: NodeId, id: ObjectId, now: Instant) -> bool {
        let wish = Wish { protocol: Protocol::Auto, eager_max: u32::MAX };
        let waiter = Waiter { node, request: 1, tenant: 0, wish };
        matches!(self.0.fetch(id, waiter, &[], now), Lookup::Holder(..))
    }

    /// The members change.
    pub fn follow(&mut self, own: NodeId, shards: &Shards, alive: &HashSet<NodeId>, now: Instant) {
        let kept: Vec<_> = shards.0.iter().map(|keepers| keepers.contains(own)).collect();
        self.0.follow(move |id| kept[shard_of(id)], alive.iter().copied().collect(), now);
        self.0.finish();
    }

    /// Objects known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it knows of none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn holding(id: ObjectId) -> Holding {
    let ownership = Ownership { user: 0, rights: Rights::default() };
    Holding { id, role: Role::Primary, copies: 1, life: 1, ownership }
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
        tenant: 0,
        class: 0,
        answers: false,
        message,
    };
    envelope.encode(1).len()
}
