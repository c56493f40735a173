//! Deleting the objects that no file has. Owns [`Sweeping`]. Engine thread only.
//!
//! The home deletes objects that files had. Objects that a session put and did not commit are found by the
//! node that holds them, which asks the home about them.
//!
//! Invariant: an object of a session is swept only if no file has it, and its home has ended the session, or
//! the session has said that it will not commit the object.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use plasmon::wire::MAX_IDS;
use plasmon::wire::files::parts_of;

use super::Files;
use super::change::{Change, MAX_LISTED};
use super::frames::{FileFrame, MAX_OBJECTS, ask};
use super::homes::ANSWER_PATIENCE;
use super::record::Whereabouts;
use super::volume::Volume;
use crate::kernel::random::HashMap;
use crate::object::{DEEDS, Role, Table};

/// Pause between two shares of the table, so that a walk does not hold the engine up.
const SHARE_PAUSE: Duration = Duration::from_millis(1);
/// Time after a failed walk until the next one.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Time that a deletion may take before members are told that they may drop the objects.
const DELETION_PATIENCE: Duration = Duration::from_millis(300);

/// State of the walks over this node's objects.
#[derive(Default)]
pub(super) struct Sweeping {
    /// Counter of each session below which the session commits nothing any more, for the next walk.
    discarded: RefCell<HashMap<(u32, u32), u64>>,
    under_way: Cell<bool>,
    /// Whether a session has ended since the walk began.
    again: Cell<bool>,
    /// Number of objects that were deleted so far.
    pub(super) deleted: Cell<u64>,
}

impl Sweeping {
    /// Notes that a session of a volume commits nothing below a counter any more. The largest counter counts.
    fn discard(&self, session: (u32, u32), below: u64) {
        let mut discarded = self.discarded.borrow_mut();
        let known = discarded.entry(session).or_default();
        *known = below.max(*known);
    }
}

/// Objects that may have no file, by volume.
type Candidates = BTreeMap<u32, Vec<ObjectId>>;

impl Files {
    /// Walks over the objects of this node soon, because a session has ended.
    pub(super) fn sweep_soon(self: &Rc<Self>) {
        self.sweeping.again.set(true);
        if self.sweeping.under_way.replace(true) {
            return;
        }
        let files = Rc::clone(self);
        self.kernel.spawn(async move {
            while files.sweeping.again.take() {
                if !files.sweep().await {
                    files.sweeping.again.set(true);
                    files.kernel.clock.sleep(RETRY_PAUSE).await;
                }
            }
            files.sweeping.under_way.set(false);
        });
    }

    /// Walks over this node's objects once. Returns whether all homes have answered.
    async fn sweep(self: &Rc<Self>) -> bool {
        let mut all_answered = true;
        let discarded = self.sweeping.discarded.take();
        for shard in 0..Table::SHARDS {
            // Each share is looked at in a turn of its own, however few objects of files there are.
            self.kernel.clock.sleep(SHARE_PAUSE).await;
            let found = self.candidates(shard, &discarded);
            for (volume, ids) in found {
                for ids in ids.chunks(MAX_OBJECTS) {
                    all_answered &= self.sweep_some(volume, ids.to_vec()).await;
                }
            }
        }
        if !all_answered {
            discarded.into_iter().for_each(|(session, below)| self.sweeping.discard(session, below));
        }
        all_answered
    }

    /// Looks soon for objects of a session that it will not commit any more.
    pub(super) fn sweep_below(self: &Rc<Self>, volume: u32, session: u32, below: u64) {
        self.sweeping.discard((volume, session), below);
        self.sweep_soon();
    }

    /// Tells all members that a session commits nothing below a counter any more.
    pub(super) fn tell_discarded(self: &Rc<Self>, volume: u32, session: u32, below: u64) {
        for node in self.cluster.others(&[self.kernel.node]) {
            self.network.tell(node, FileFrame::Discarded { volume, session, below });
        }
        self.sweep_below(volume, session, below);
    }

    /// Returns the objects in a share of the table whose sessions no client of this node has, or whose
    /// sessions have discarded them.
    fn candidates(&self, shard: usize, discarded: &HashMap<(u32, u32), u64>) -> Candidates {
        let (mut found, attached) = (Candidates::new(), self.attached.sessions());
        let objects = self.store.objects.borrow();
        for replica in objects.sealed_in(shard).filter(|replica| replica.role().stays()) {
            let id = replica.id();
            let Some((volume, session, counter)) = parts_of(&id) else { continue };
            let key = (volume, session);
            if !attached.contains(&key) || discarded.get(&key).is_some_and(|below| counter < *below) {
                found.entry(volume).or_default().push(id);
            }
        }
        found
    }

    /// Asks a home about objects, and deletes those that no file has. Returns whether all of this was done.
    pub(super) async fn sweep_some(self: &Rc<Self>, volume: u32, ids: Vec<ObjectId>) -> bool {
        match self.left_of(volume, ids).await {
            Some(left) => self.delete_objects(&left).await,
            None => false,
        }
    }

    /// Returns the objects among these that no file of a volume has or will have. `None` if the home does not
    /// answer.
    pub(super) async fn left_of(&self, volume: u32, ids: Vec<ObjectId>) -> Option<Vec<ObjectId>> {
        if let Some(volume) = self.volume_of(volume) {
            volume.settled().await.ok()?;
            return Some(volume.swept(ids));
        }
        // Objects of a volume that this node does not know stay.
        let Some(record) = self.cluster.volumes.get(volume) else { return Some(Vec::new()) };
        let home = match self.homes.whereabouts(&record) {
            Whereabouts::At(home) => home,
            Whereabouts::Waits => return None,
            Whereabouts::Lost => return Some(Vec::new()),
        };
        let question = ask::Sweep { volume, ids };
        let ask::Swept { ids } = self.network.ask(home, DEEDS, question, ANSWER_PATIENCE).await.ok()?;
        Some(ids)
    }

    /// Deletes objects of files, also those of other users, because the home decides about all objects of its
    /// volume.
    pub(super) async fn delete_objects(&self, ids: &[ObjectId]) -> bool {
        if ids.is_empty() {
            return true;
        }
        let deleted = self.directory.deletion.delete_all(ids, &[], DEEDS).await;
        if let Err(error) = &deleted {
            tracing::debug!("objects of files are deleted later: {error}");
            return false;
        }
        self.sweeping.deleted.set(self.sweeping.deleted.get() + ids.len() as u64);
        true
    }

    /// Deletes the objects that no file of a volume has any more. If the deletion of some waits for nodes
    /// that do not answer, others can be deleted meanwhile.
    pub(super) fn delete_condemned(self: &Rc<Self>, volume: &Rc<Volume>) {
        if volume.state.borrow().condemned.is_empty() || volume.sweeping.replace(true) {
            return;
        }
        let (files, volume) = (Rc::clone(self), Rc::clone(volume));
        self.kernel.spawn(async move {
            while let Some(ids) = volume.take_condemned() {
                // Mirrors have to know first, so that no new home has the objects in files.
                if volume.settled().await.is_err() {
                    break;
                }
                let mut deletion = pin!(files.delete_objects(&ids));
                let due = Some(files.kernel.clock.now() + DELETION_PATIENCE);
                let in_time = files.kernel.clock.bounded(due, deletion.as_mut()).await;
                if in_time.is_none() {
                    files.tell_condemned(&ids);
                    volume.sweeping.set(false);
                }
                let deleted = match in_time {
                    Some(deleted) => deleted,
                    None => deletion.await,
                };
                ids.iter().for_each(|id| _ = volume.deleting.borrow_mut().remove(id));
                if deleted {
                    let gone = ids.chunks(MAX_LISTED).map(|ids| Change::Deleted(ids.to_vec()));
                    volume.commit(&mut volume.state.borrow_mut(), gone.collect());
                }
                if in_time.is_none() {
                    return;
                }
                if !deleted {
                    break;
                }
            }
            // Deletions that failed are tried again at the next tick.
            volume.sweeping.set(false);
        });
    }

    /// Tells all members that they may drop objects: no file has these any more, and their deletion waits for
    /// nodes that do not answer.
    fn tell_condemned(&self, ids: &[ObjectId]) {
        self.let_condemned_go(ids);
        for node in self.cluster.others(&[self.kernel.node]) {
            for ids in ids.chunks(MAX_OBJECTS) {
                self.network.tell(node, FileFrame::Condemned { ids: ids.to_vec() });
            }
        }
    }

    /// Lets objects that no file has any more leave memory when it is needed. Keepers are not told, because
    /// they would look for other nodes to keep the objects.
    pub(super) fn let_condemned_go(&self, ids: &[ObjectId]) {
        for id in ids.iter().filter(|id| parts_of(id).is_some()) {
            let replica = self.store.objects.borrow().get(id).cloned();
            if let Some(replica) = replica.filter(|replica| replica.role().stays() && replica.in_memory()) {
                self.store.forget_on_disk(&replica);
                self.store.objects.borrow_mut().set_role(id, Role::Cached);
            }
        }
    }

    /// Deletes all objects of a volume that was removed.
    pub(super) fn sweep_all(self: &Rc<Self>, volume: &Rc<Volume>) {
        let (files, volume) = (Rc::clone(self), Rc::clone(volume));
        self.kernel.spawn(async move {
            let ids = volume.all_objects();
            for ids in ids.chunks(MAX_IDS) {
                while !files.delete_objects(ids).await {
                    files.kernel.clock.sleep(RETRY_PAUSE).await;
                }
            }
        });
    }

    /// Deletes this node's objects of a volume whose lost record was removed.
    pub(super) fn sweep_lost(self: &Rc<Self>, volume: u32) {
        let files = Rc::clone(self);
        self.kernel.spawn(async move {
            for shard in 0..Table::SHARDS {
                files.kernel.clock.sleep(SHARE_PAUSE).await;
                let ids: Vec<_> = files.replicas_in(shard, volume).into_keys().collect();
                for ids in ids.chunks(MAX_IDS) {
                    while !files.delete_objects(ids).await {
                        files.kernel.clock.sleep(RETRY_PAUSE).await;
                    }
                }
            }
        });
    }

    /// Tells all members that a session has ended, because they may have objects of the session.
    pub(super) fn tell_ended(&self, volume: u32) {
        for node in self.cluster.others(&[self.kernel.node]) {
            self.network.tell(node, FileFrame::SessionEnded { volume });
        }
    }
}
