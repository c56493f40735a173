//! Checks of a cluster after every step, whatever breaks.
//!
//! These checks are cheap: they look at the objects of a node that has just taken a turn, if anything about
//! them has changed, and at the few ids of the run. A run ends at the first step after which a check fails,
//! so its log ends with the steps that led to the fault, not with a minute of repair. These statements are
//! true at any moment:
//!
//! - an id of a node is sealed or being created, not both;
//! - a node's counts of objects and bytes are those of its objects;
//! - no byte of a node's memory belongs to two objects, and none lies outside of it;
//! - a user's account has at least the bytes of what the user created there;
//! - whichever nodes hold a life of an id, they hold one description and the same bytes, which are read once
//!   for each replica;
//! - while the members are known to all, an id has one life, and one client at most creates it.
//!
//! All other checks wait for the rest at the end of a run ([`super::checks`]), for one of three reasons. Some
//! promises hold only at rest: that there is one primary, that as many nodes keep an object as are to, and
//! that keepers and watchers know of it. Some checks need calls of clients: that every node gives what is
//! there, and that nothing is left when all is deleted. And the search for an order of all answers takes
//! longer than a run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use plasmon::{ObjectId, Rights};

use super::{FORMING_TIME, Simulation};
use crate::engine::Core;
use crate::object::{InMemory, Replica, Role};

/// Time after a change of the members from which on all nodes know all objects and claims: the longest time
/// that a node stands still, and the time for which a new keeper asks all members.
const KNOWN_TIME: Duration = Duration::from_secs(15);

/// Description and bytes that all replicas of a life have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    user: u32,
    rights: Rights,
    data_len: u64,
    metadata_len: u32,
    /// The digest that came with the object.
    digest: u64,
    /// The hash of the bytes that are there: BLAKE3 is fast in a debug build too.
    found: blake3::Hash,
}

/// Contents of the replicas of a run that were looked at.
#[derive(Default)]
pub(super) struct Seen {
    /// The content of each life that a node has held.
    contents: BTreeMap<(ObjectId, u64), Content>,
    /// Shape of each node's objects when they were looked at last, by host and start of the node.
    shapes: BTreeMap<(u32, u64), Shape>,
    /// Lives that each node had in memory when it was looked at last, by host and start of the node.
    replicas: BTreeMap<(u32, u64), BTreeSet<(ObjectId, u64)>>,
}

/// Summary of a node's objects, which changes whenever the objects change.
#[derive(PartialEq)]
struct Shape {
    in_memory: InMemory,
    staying: (u64, u64, usize),
    evicted: u64,
    limbo: usize,
    /// Life, role and place of the replica of each id of the run.
    replicas: Vec<Option<(u64, Role, Option<u64>)>>,
}

impl Shape {
    fn of(core: &Core, ids: &[ObjectId]) -> Self {
        let objects = core.store.objects.borrow();
        let replica = |id| {
            let replica = objects.get(id)?;
            Some((replica.life, replica.role(), replica.run().map(|run| run.offset())))
        };
        Self {
            in_memory: objects.in_memory(),
            staying: objects.staying(),
            evicted: objects.evicted(),
            limbo: objects.limbo(),
            replicas: ids.iter().map(replica).collect(),
        }
    }
}

impl Simulation {
    /// Checks what must be true after a step. The first fault ends the run.
    pub(super) fn check_step(&mut self) {
        if self.broken_at.is_some() {
            return;
        }
        let changed: Vec<_> = (0..self.hosts.len()).filter(|host| self.has_changed(*host)).collect();
        let mut wrong = changed.iter().find_map(|host| self.check_node(*host));
        if !changed.is_empty() && wrong.is_none() {
            wrong = self.check_ids();
        }
        if let Some(wrong) = wrong {
            let now = self.time.now();
            self.broken_at = Some(now);
            self.broken = Some(format!("after a step at {now:?}: {wrong}"));
        }
    }

    /// Whether the objects of a host's node have changed in its last turn.
    fn has_changed(&mut self, host: usize) -> bool {
        let host = &mut self.hosts[host];
        let Some(core) = host.take_turned().then(|| host.core()).flatten() else { return false };
        let (node, shape) = ((host.number, host.starts), Shape::of(core, &self.ids));
        let is_same = self.seen.shapes.get(&node) == Some(&shape);
        self.seen.shapes.insert(node, shape);
        !is_same
    }

    fn check_node(&mut self, host: usize) -> Option<String> {
        let core = Rc::clone(self.hosts[host].core()?);
        let own = check_counts(&core).or_else(|| check_places(&core)).or_else(|| check_accounts(&core));
        let node = (self.hosts[host].number, self.hosts[host].starts);
        let wrong = own.or_else(|| self.seen.check_contents(node, &core));
        wrong.map(|wrong| format!("node {host}: {wrong}"))
    }

    /// Checks that each id has one life but for those that are guarded, and one client at most that creates
    /// it.
    fn check_ids(&self) -> Option<String> {
        let changed = self.coordinator.changed_at();
        let are_known = changed <= FORMING_TIME || changed + KNOWN_TIME <= self.time.now();
        if !are_known || self.brings_back() {
            return None;
        }
        self.ids.iter().find_map(|id| {
            let (mut lives, mut creators) = (BTreeMap::new(), Vec::new());
            for host in self.hosts.iter().filter(|host| self.coordinator.has(host) && !host.is_fenced()) {
                let Some(core) = host.core() else { continue };
                let objects = core.store.objects.borrow();
                let guards = &core.directory.guards;
                if let Some(replica) = objects.get(id).filter(|replica| !guards.covers(id, replica.life)) {
                    lives.entry(replica.life).or_insert(host.number);
                }
                let claimed = core.directory.claims.holds(id);
                if let Some(creation) = objects.creation(id).filter(|_| matches!(claimed, Some(Ok(())))) {
                    lives.entry(creation.head.life).or_insert(host.number);
                    creators.push(host.number);
                }
            }
            let is_one = lives.len() <= 1 && creators.len() <= 1;
            (!is_one)
                .then(|| format!("id {id}: nodes of its lives {lives:?}, nodes that create it {creators:?}"))
        })
    }
}

/// Checks that a node's counts are those of its objects.
fn check_counts(core: &Core) -> Option<String> {
    let objects = core.store.objects.borrow();
    let (mut in_memory, mut staying) = (InMemory::default(), (0, 0, 0));
    for replica in objects.sealed() {
        if objects.creation(&replica.id()).is_some() {
            return Some(format!("{} is sealed and being created", replica.id()));
        }
        if replica.in_memory() {
            let bytes = match replica.role() {
                Role::Primary => &mut in_memory.primary,
                Role::Kept => &mut in_memory.kept,
                Role::Cached => &mut in_memory.cached,
            };
            *bytes += replica.len();
        }
        if replica.role().stays() && !replica.is_deed() {
            staying = (staying.0 + 1, staying.1 + replica.len(), 0);
        }
    }
    for creation in objects.creations().chain(objects.replacements()) {
        in_memory.unsealed += creation.head.len();
        staying.2 += 1;
    }
    let counted = (objects.in_memory(), objects.staying());
    let is_right = counted == (in_memory, staying);
    (!is_right).then(|| format!("it counts {counted:?}, and has {:?}", (in_memory, staying)))
}

/// Checks that no two objects of a node share a byte, and that all lie within its memory.
fn check_places(core: &Core) -> Option<String> {
    let objects = core.store.objects.borrow();
    let doomed: Vec<_> = objects.doomed().collect();
    let runs = objects.sealed().chain(&doomed).filter_map(|replica| replica.run());
    let mut places: Vec<Range<u64>> = runs.flat_map(|run| run.places()).collect();
    let creations = objects.creations().chain(objects.replacements());
    places.extend(creations.flat_map(|creation| creation.extent.places()));
    places.retain(|place| !place.is_empty());
    places.sort_by_key(|place| place.start);
    let capacity = core.store.arena.borrow().capacity();
    if let Some(last) = places.last().filter(|last| last.end > capacity) {
        return Some(format!("an object lies at {last:?}, beyond {capacity} bytes"));
    }
    let shared = places.windows(2).find(|two| two[0].end > two[1].start)?;
    Some(format!("two objects share memory: {shared:?}"))
}

/// Checks that accounts have at least the bytes of the objects that were created on a node.
fn check_accounts(core: &Core) -> Option<String> {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    let objects = core.store.objects.borrow();
    for replica in objects.sealed().filter(|replica| replica.creator.get().is_some()) {
        *bytes.entry(replica.ownership().user).or_default() += replica.len();
    }
    for creation in objects.creations().chain(objects.replacements()) {
        *bytes.entry(creation.head.user).or_default() += creation.head.len();
    }
    let quotas = core.store.quotas.borrow();
    let short = bytes.into_iter().find(|(user, bytes)| quotas.of_user(*user) < *bytes)?;
    Some(format!("user {} has {} bytes, and an account of {}", short.0, short.1, quotas.of_user(short.0)))
}

impl Seen {
    /// Checks that the replicas that have come to a node are equal to others of their lives.
    fn check_contents(&mut self, node: (u32, u64), core: &Core) -> Option<String> {
        let objects = core.store.objects.borrow();
        let in_memory = || objects.sealed().filter(|replica| replica.in_memory());
        let here: BTreeSet<_> = in_memory().map(|replica| (replica.id(), replica.life)).collect();
        let before = self.replicas.insert(node, here).unwrap_or_default();
        let mut come = in_memory().filter(|replica| !before.contains(&(replica.id(), replica.life)));
        come.find_map(|replica| {
            let content = Content::of(replica);
            let first = *self.contents.entry((replica.id(), replica.life)).or_insert(content);
            (first != content).then(|| format!("{} has {content:?}, and had {first:?}", replica.id()))
        })
    }
}

impl Content {
    fn of(replica: &Replica) -> Self {
        let (head, run) = (replica.head(), replica.run().expect("it is in memory"));
        let mut bytes = vec![0; run.len() as usize];
        run.read(0, &mut bytes).expect("inside the object");
        Self {
            user: head.user,
            rights: head.rights,
            data_len: head.data_len,
            metadata_len: head.metadata_len,
            digest: head.digest,
            found: blake3::hash(&bytes),
        }
    }
}
