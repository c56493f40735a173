//! Records of volumes at this node: what follows from them, and how the home changes them. Owns no state.
//! Engine thread only.
//!
//! A home drops mirrors that have gone or are too many, lets other nodes join, and hands over when its node
//! is drained. Invariant: it acts on a change only when it follows the new record.

use std::rc::Rc;
use std::time::Duration;

use plasmon::text::printable;
use plasmon::{Error, ErrorKind, NodeId};

use super::attached::SESSION_LEASES;
use super::frames::{FileFrame, ask};
use super::homes::{Homes, changing, ensure_owner, no_volume};
use super::log::{Around, BEAT_INTERVAL, Wanted};
use super::volume::Volume;
use crate::control::records::{MAX_MIRRORS, VolumeRecord};
use crate::kernel::random::random_u64;

/// Maximum number of nodes that are asked in one round to join.
const MAX_ASKED: usize = 4;
/// Time that a node may take to answer whether it joins.
const JOIN_PATIENCE: Duration = Duration::from_secs(5);
/// Number of nodes that keep the names of a volume whose terms do not say it.
const DEFAULT_COPIES: u16 = 2;
/// Pause between two looks at a condition that comes about soon.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Whereabouts of a volume, as far as this node knows: its home, or the reason why it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    At(NodeId),
    /// A mirror is about to become the home, or a node with the volume may come back.
    Waits,
    Lost,
}

/// Returns the number of nodes that are to keep the names of a volume. 0 means the default.
pub(super) fn copies(metadata_copies: u16) -> usize {
    let copies = if metadata_copies == 0 { DEFAULT_COPIES } else { metadata_copies };
    usize::from(copies).min(MAX_MIRRORS + 1)
}

impl Homes {
    /// Returns the whereabouts of the volume of a record.
    pub(super) fn whereabouts(&self, record: &VolumeRecord) -> Whereabouts {
        match self.is_there(record.home) {
            true => Whereabouts::At(record.home),
            false if self.has_somebody(record) || self.cluster.is_settling() => Whereabouts::Waits,
            false => Whereabouts::Lost,
        }
    }

    /// Whether a node that the record names is a member.
    pub(super) fn has_somebody(&self, record: &VolumeRecord) -> bool {
        self.is_there(record.home) || record.mirrors.iter().any(|mirror| self.is_there(*mirror))
    }

    fn is_there(&self, node: NodeId) -> bool {
        node == self.kernel.node || self.cluster.is_member(node)
    }

    /// Follows the records of volumes whose home or mirror this node is.
    pub(super) fn follow_records(self: &Rc<Self>) {
        let volumes: Vec<_> = self.volumes.borrow().values().cloned().collect();
        for volume in volumes {
            match self.cluster.volumes.get(volume.number) {
                Some(record) if record.home == self.kernel.node => {
                    volume.name.replace(record.name.clone());
                    volume.log.follow(&record);
                }
                record => {
                    let name = volume.name.borrow();
                    let name = printable(&name);
                    match record {
                        Some(record) => {
                            tracing::warn!("node {} is the home of volume '{name}' now", record.home)
                        }
                        None => tracing::info!("volume '{name}' was removed"),
                    }
                    self.depose(&volume);
                }
            }
        }
        self.follow_mirrors();
        self.tend_records();
    }

    /// Asks for changes of the records of this node's volumes, where something has happened to their mirrors.
    pub(super) fn tend_records(self: &Rc<Self>) {
        if self.cluster.fenced() {
            return;
        }
        let volumes: Vec<_> = self.volumes.borrow().values().cloned().collect();
        for volume in volumes.into_iter().filter(|volume| !volume.ends.get() && !volume.is_tended.get()) {
            let Some(record) = self.cluster.volumes.get(volume.number) else { continue };
            volume.log.forget_lost(self.kernel.config.lease * SESSION_LEASES);
            let around = Around {
                is_member: &|node| self.cluster.is_member(node),
                copies: copies(volume.state.borrow().terms.metadata_copies),
                coordinator: self.cluster.coordinator.get(),
                drains: self.placement.is_draining(),
                nobody_joins: volume.nobody_joins.get(),
            };
            match volume.log.wanted(&around) {
                Wanted::Nothing => {}
                Wanted::Mirrors(mirrors) => self.propose(&volume, record.next(record.home, mirrors)),
                Wanted::Home(heir, mirrors) => self.propose(&volume, record.next(heir, mirrors)),
                Wanted::More(not) => self.find_mirror(&volume, &not),
            }
        }
        self.remove_unmade();
    }

    fn propose(self: &Rc<Self>, volume: &Rc<Volume>, record: VolumeRecord) {
        volume.is_tended.set(true);
        volume.log.propose(&record.mirrors);
        let (homes, volume) = (Rc::clone(self), Rc::clone(volume));
        self.kernel.spawn(async move {
            if let Err(error) = homes.cluster.propose(record, false).await {
                tracing::info!("{error}");
            }
            // The outcome comes with the next record. Without one the next tick asks again.
            volume.is_tended.set(false);
        });
    }

    /// Removes records of volumes that this node was about to make when its coordinator went away.
    fn remove_unmade(self: &Rc<Self>) {
        for record in self.cluster.volumes.all() {
            let is_unmade = record.home == self.kernel.node
                && record.number == 1
                && !self.volumes.borrow().contains_key(&record.volume);
            if is_unmade && self.creating.borrow_mut().insert(record.volume) {
                let homes = Rc::clone(self);
                self.kernel.spawn(async move {
                    let removed = record.next(record.home, Vec::new());
                    _ = homes.cluster.propose(removed, true).await;
                    homes.creating.borrow_mut().remove(&record.volume);
                });
            }
        }
    }

    /// Looks for a node that becomes a mirror of a volume.
    fn find_mirror(self: &Rc<Self>, volume: &Rc<Volume>, not: &[NodeId]) {
        let mut nodes = self.cluster.others(&[not, &[self.kernel.node]].concat());
        // A mirror on the coordinator's node dies with the coordinator, so that node comes last.
        nodes.sort_by_cached_key(|node| (self.cluster.coordinator.get() == Some(*node), random_u64()));
        nodes.truncate(MAX_ASKED);
        volume.is_tended.set(true);
        let (homes, volume) = (Rc::clone(self), Rc::clone(volume));
        self.kernel.spawn(async move {
            let mut joined = false;
            for node in nodes {
                joined = homes.has_joined(&volume, node).await;
                if joined {
                    break;
                }
            }
            volume.nobody_joins.set(!joined);
            volume.is_tended.set(false);
        });
    }

    /// Asks a node to become a mirror, and begins to send it the state. Returns whether it will be one.
    async fn has_joined(self: &Rc<Self>, volume: &Rc<Volume>, node: NodeId) -> bool {
        let (number, created) = (volume.log.number(), volume.state.borrow().created);
        let join = ask::Join { volume: volume.number, number, created };
        let joins = self.network.ask(node, volume.owner, join, JOIN_PATIENCE).await;
        if joins.is_err() || volume.log.number() != number || !self.cluster.is_member(node) {
            return false;
        }
        volume.log.join(node, &volume.state.borrow());
        self.keep_beating();
        true
    }

    /// Asks mirrors for a sign of life at each interval, as long as there are mirrors.
    pub(super) fn keep_beating(self: &Rc<Self>) {
        if self.beats.replace(true) {
            return;
        }
        let homes = Rc::clone(self);
        self.kernel.spawn(async move {
            loop {
                homes.kernel.clock.sleep(BEAT_INTERVAL).await;
                let volumes = homes.volumes.borrow();
                let mut followed = false;
                volumes.values().for_each(|volume| followed |= volume.log.beat());
                if !followed {
                    break;
                }
            }
            homes.beats.set(false);
        });
    }

    /// Sends what the logs of this node have gathered in a turn.
    pub(super) fn flush_logs(&self) {
        if self.gathers.take() {
            for volume in self.volumes.borrow().values() {
                let state = volume.state.borrow();
                volume.log.flush(&state, |node, frame| _ = self.network.tell(node, frame));
            }
        }
    }

    /// Tells the homes of the volumes that this node mirrors to look for other mirrors, because this node is
    /// drained.
    pub(super) fn let_mirrors_go(&self) {
        for volume in self.mirrors.borrow().keys() {
            if let Some(record) = self.cluster.volumes.get(*volume) {
                self.network.tell(record.home, FileFrame::LetGo { volume: *volume });
            }
        }
    }

    /// Removes the record of a volume that no node has any more.
    ///
    /// # Errors
    /// `NotFound`, `NotAllowed` for another user than its owner and root, `Busy` if a node has the volume,
    /// `Disconnected` if its record has changed meanwhile.
    pub(super) async fn remove_lost(&self, name: &str, user: u32) -> Result<(), Error> {
        let record = self.cluster.volumes.named(name).ok_or_else(|| no_volume(name))?;
        ensure_owner(name, record.owner, user)?;
        if self.whereabouts(&record) != Whereabouts::Lost {
            let text = format!("volume '{}' is not lost: remove it without --lost", printable(name));
            return Err(Error::new(ErrorKind::Busy, text));
        }
        if !self.cluster.propose(record.next(record.home, Vec::new()), true).await? {
            return Err(changing());
        }
        self.await_removal(record.volume).await;
        Ok(())
    }
}
