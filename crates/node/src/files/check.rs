//! Checks of a volume: whether its counts agree with its files, and which objects of this node no file has.
//! Owns no state. Engine thread only.
//!
//! The client itself walks the files of the volume. Each node is asked for its objects that no file has, and
//! sweeps them if wished. The home adds up what it otherwise keeps while changes are applied, [`TURN_INODES`]
//! inodes in a turn. Invariant: sums are compared only if the volume did not change while they were made.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use plasmon::wire::Reply;
use plasmon::wire::files::{Kept, NodeCheck, UsageCheck, parts_of};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Files;
use super::attached::Reach;
use super::frames::{MAX_OBJECTS, ask};
use super::map::Place;
use super::state::{Inode, State};
use super::volume::Volume;
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::object::{DEEDS, Table};

/// Time that a node may take to look through its objects.
const LOOK_PATIENCE: Duration = Duration::from_secs(600);
/// Time that further copies of an object may take.
const COPY_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of objects of a client for which holders are counted at a time.
const MAX_LOOKED_AFTER: usize = 32;
/// Pause between two shares of the table.
const SHARE_PAUSE: Duration = Duration::from_millis(1);
/// Number of inodes that are added up in a turn.
const TURN_INODES: usize = 1 << 12;
/// Maximum number of attempts to add up a volume that changes meanwhile.
const MAX_RECOUNTS: usize = 5;

/// Sums over the inodes of a volume.
#[derive(Default)]
struct Recount {
    used: u64,
    by_user: BTreeMap<u32, u64>,
    references: HashMap<ObjectId, u64>,
}

impl Recount {
    fn add(&mut self, inode: &Inode) {
        let Some(map) = inode.map() else { return };
        self.used += map.used();
        if map.used() > 0 {
            *self.by_user.entry(inode.head.uid).or_default() += map.used();
        }
        for (_, piece) in map.within(0..u64::MAX) {
            if let Place::Object(id, _) = &piece.place {
                *self.references.entry(*id).or_default() += 1;
            }
        }
    }

    fn add_all(&mut self, state: &State, numbers: &[u64]) {
        numbers.iter().filter_map(|number| state.inode(*number)).for_each(|inode| self.add(inode));
    }

    fn compare(&self, state: &State) -> UsageCheck {
        let is_same = |(uid, bytes): (&u32, &u64)| self.by_user.get(uid) == Some(bytes);
        let users = state.used_by.iter().filter(|one| !is_same(*one)).count()
            + self.by_user.keys().filter(|uid| !state.used_by.contains_key(uid)).count();
        let counted = |id: &ObjectId| state.objects.get(id).map(|object| object.references);
        let objects = self.references.iter().filter(|(id, count)| counted(id) != Some(**count)).count()
            + state.objects.keys().filter(|id| !self.references.contains_key(*id)).count();
        UsageCheck {
            used: state.used,
            counted: self.used,
            wrong_users: users as u64,
            wrong_objects: objects as u64,
        }
    }
}

impl Volume {
    /// Adds up the inodes of the volume. `None` if the volume changed during each attempt.
    async fn recount(&self) -> Option<UsageCheck> {
        for _ in 0..MAX_RECOUNTS {
            let (numbers, changes) = {
                let state = self.state.borrow();
                (state.inodes.keys().copied().collect::<Vec<_>>(), state.changes)
            };
            let mut recount = Recount::default();
            for numbers in numbers.chunks(TURN_INODES) {
                recount.add_all(&self.state.borrow(), numbers);
                self.pause().await;
            }
            let state = self.state.borrow();
            if state.changes == changes {
                return Some(recount.compare(&state));
            }
        }
        None
    }
}

impl Files {
    /// Tells a client how many nodes keep these objects of a volume that it is attached to. Objects that
    /// fewer than `copies` nodes keep are replicated first.
    ///
    /// # Errors
    /// `Invalid` for objects of another volume. `NotAllowed` for copies, if the session is not trusted and
    /// the volume is shared.
    pub(super) async fn look_after(
        self: Rc<Self>,
        client: ClientKey,
        volume: u32,
        ids: Vec<ObjectId>,
        copies: u16,
    ) -> Result<Reply, Error> {
        let attached = self.attached.get(client, volume)?;
        let is_of = |id: &ObjectId| parts_of(id).is_some_and(|(of, ..)| of == attached.key.volume);
        if !ids.iter().all(is_of) {
            return Err(Error::new(ErrorKind::Invalid, "objects of another volume are not looked after"));
        }
        if copies > 0 && attached.reach == Reach::Granted {
            let text = "copies of the bytes of others are made for root and the node's own user alone";
            return Err(Error::new(ErrorKind::NotAllowed, text));
        }
        let found = stream::iter(ids).map(|id| self.look_after_one(id, copies));
        let kept = found.buffered(MAX_LOOKED_AFTER).collect::<Vec<_>>().await;
        Ok(Reply::LookedAfter { kept: kept.into_iter().collect::<Result<_, _>>()? })
    }

    /// Counts the nodes that keep an object, after replicating the object if fewer than `copies` keep it.
    async fn look_after_one(self: &Rc<Self>, id: ObjectId, copies: u16) -> Result<Kept, Error> {
        let kept = self.keepers_of(id).await?;
        if kept.kept >= copies || (kept.kept == 0 && kept.cached == 0) {
            return Ok(kept);
        }
        let due = Some(self.kernel.clock.now() + COPY_PATIENCE);
        let made = self.placement.replicate(id, DEEDS, (copies, false), due).await;
        let kept = self.keepers_of(id).await?;
        match made {
            // The keeper that is asked may hear of the copy a moment later than the keeper that had the copy
            // made.
            Ok(_) => Ok(Kept { kept: kept.kept.max(copies), ..kept }),
            Err(error) => {
                tracing::info!("object {id} of a file gets no further copies: {error}");
                Ok(kept)
            }
        }
    }

    /// Counts the nodes that have an object.
    async fn keepers_of(&self, id: ObjectId) -> Result<Kept, Error> {
        if self.cluster.solo() {
            let here = self.store.objects.borrow().get(&id).map(|replica| replica.role().stays());
            let (kept, cached) = (here == Some(true), here == Some(false));
            return Ok(Kept { kept: kept.into(), cached: cached.into(), lost: false });
        }
        let (holders, lost) = match self.directory.holders(id, DEEDS).await {
            Err(error) if error.kind() == ErrorKind::Lost => (Vec::new(), true),
            holders => (holders?, false),
        };
        let kept = holders.iter().filter(|(_, role)| role.stays()).count();
        let count = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        Ok(Kept { kept: count(kept), cached: count(holders.len() - kept), lost })
    }

    /// Has a node check its part of a volume that a client is attached to.
    pub(super) async fn check(
        self: Rc<Self>,
        client: ClientKey,
        volume: u32,
        node: NodeId,
        sweep: bool,
    ) -> Result<Reply, Error> {
        let attached = self.attached.get(client, volume)?;
        let volume = attached.key.volume;
        let checked = if node == self.kernel.node {
            self.check_here(volume, sweep).await?
        } else {
            let question = ask::Check { volume, sweep };
            let ask::Checked { checked } =
                self.network.ask(node, attached.user, question, LOOK_PATIENCE).await?;
            checked
        };
        Ok(Reply::VolumeChecked(checked))
    }

    /// Checks this node's part of a volume.
    ///
    /// # Errors
    /// `Disconnected` if the home does not answer, or objects cannot be deleted now.
    pub(super) async fn check_here(self: &Rc<Self>, volume: u32, sweep: bool) -> Result<NodeCheck, Error> {
        self.homes.ensure_serves()?;
        let mut checked = NodeCheck::default();
        for shard in 0..Table::SHARDS {
            self.kernel.clock.sleep(SHARE_PAUSE).await;
            let found = self.replicas_in(shard, volume);
            checked.replicas += found.len() as u64;
            checked.bytes += found.values().sum::<u64>();
            let ids: Vec<_> = found.keys().copied().collect();
            for ids in ids.chunks(MAX_OBJECTS) {
                let left = self.left_of(volume, ids.to_vec()).await.ok_or_else(unanswered)?;
                checked.left += left.len() as u64;
                checked.left_bytes += left.iter().filter_map(|id| found.get(id)).sum::<u64>();
                if sweep && !self.delete_objects(&left).await {
                    return Err(unanswered());
                }
            }
        }
        if let Some(volume) = self.volume_of(volume) {
            checked.usage = volume.recount().await;
        }
        Ok(checked)
    }

    /// Returns the objects of a volume in a share of the table whose replicas stay here, with their lengths.
    pub(super) fn replicas_in(&self, shard: usize, volume: u32) -> BTreeMap<ObjectId, u64> {
        let objects = self.store.objects.borrow();
        let is_of = |id: &ObjectId| parts_of(id).is_some_and(|(of, ..)| of == volume);
        let staying = objects.sealed_in(shard).filter(|replica| replica.role().stays());
        staying.map(|replica| (replica.id(), replica.len())).filter(|(id, _)| is_of(id)).collect()
    }
}

fn unanswered() -> Error {
    let text = "the home of the volume, or a node that has objects of it, does not answer: try again";
    Error::new(ErrorKind::Disconnected, text)
}
