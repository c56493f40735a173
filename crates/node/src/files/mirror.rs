//! Mirrors: volumes of other homes that this node follows, and their take-over. Owns [`Mirror`]. Engine
//! thread only.
//!
//! A mirror applies batches of changes in their order, each as a whole, and confirms them. When the home is
//! no member any more, each mirror in the record asks the coordinator to become the home, and the first one
//! does. Invariants: a mirror confirms nothing to another node than the home of the record that it follows,
//! and nothing more when it lacks a batch or a part of one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use plasmon::text::printable;
use plasmon::wire::WireError;
use plasmon::wire::files::Time;
use plasmon::{Error, ErrorKind, NodeId};

use super::change::Change;
use super::frames::{FileFrame, Position};
use super::homes::{Homes, NEWS_PATIENCE};
use super::log::Log;
use super::record::LOOK_PAUSE;
use super::state::State;
use super::volume::Volume;
use crate::control::records::VolumeRecord;

/// A volume that this node follows.
pub(super) struct Mirror {
    pub(super) state: RefCell<State>,
    home: Cell<NodeId>,
    /// Number of the record from which on the home of now was followed.
    since: Cell<u64>,
    /// Number of the last batch. `None` before the first batch has come.
    index: Cell<Option<u64>>,
    /// Changes of the batch that is coming.
    coming: RefCell<Vec<Change>>,
    parts: Cell<u32>,
    /// Time of this node's last confirmation.
    confirmed_at: Cell<u64>,
    /// Whether this node was in the record as a mirror.
    was_in: Cell<bool>,
    /// Whether the coordinator was asked to make this node the home.
    is_proposed: Cell<bool>,
    /// Whether this node lacks batches.
    is_broken: Cell<bool>,
}

/// Mirrors of this node, by the number of the volume.
pub(super) type Mirrors = RefCell<BTreeMap<u32, Rc<Mirror>>>;

impl Mirror {
    fn new(volume: u32, home: NodeId, since: u64, created: Time) -> Self {
        Self {
            state: RefCell::new(State::unknown(volume, created)),
            home: Cell::new(home),
            since: Cell::new(since),
            index: Cell::default(),
            coming: RefCell::default(),
            parts: Cell::default(),
            confirmed_at: Cell::default(),
            was_in: Cell::default(),
            is_proposed: Cell::default(),
            is_broken: Cell::default(),
        }
    }

    /// Takes a part of a batch. The mirror is broken if a part is missing.
    fn take(&self, index: u64, (part, last): (u32, bool), changes: Vec<Change>) {
        let is_next = self.index.get().is_none_or(|before| before + 1 == index) && part == self.parts.get();
        if !is_next || self.is_broken.get() {
            self.is_broken.set(true);
            self.coming.borrow_mut().clear();
            return;
        }
        self.parts.set(if last { 0 } else { part.saturating_add(1) });
        self.coming.borrow_mut().extend(changes);
        if last {
            let mut state = self.state.borrow_mut();
            self.coming.borrow_mut().drain(..).for_each(|change| state.apply(change));
            self.index.set(Some(index));
        }
    }

    /// Follows another home. That home has all changes that anybody was told of. The batch that is coming is
    /// dropped, because nobody was told of its changes.
    fn turn_to(&self, record: &VolumeRecord) {
        self.home.set(record.home);
        self.since.set(record.number);
        self.coming.borrow_mut().clear();
        self.parts.set(0);
    }
}

impl Homes {
    /// Becomes a mirror of a volume of another node. Waits for the record of the volume, which may come later
    /// than the home's question.
    ///
    /// # Errors
    /// `Disconnected` if this node does not come to follow the record by which that node is the home, or is
    /// drained; `NotAllowed` if this node keeps no volumes.
    pub(super) async fn join_here(
        &self,
        home: NodeId,
        volume: u32,
        number: u64,
        created: Time,
    ) -> Result<(), Error> {
        self.ensure_keeps()?;
        let (due, mut waited) = (self.kernel.clock.now() + NEWS_PATIENCE, false);
        let record = loop {
            let record = self.cluster.volumes.get(volume);
            let may_come = record.as_ref().is_none_or(|record| record.number < number);
            if let Some(record) = record.filter(|record| record.home == home && record.number == number) {
                break record;
            }
            if !may_come || self.kernel.clock.now() >= due {
                return Err(self.does_not_follow(volume));
            }
            self.kernel.clock.sleep(LOOK_PAUSE).await;
            waited = true;
        };
        self.ensure_keeps()?;
        // Meanwhile a later question of the home may have made a mirror, which has batches already, or the
        // home may have gone.
        let is_made = |mirror: &Rc<Mirror>| mirror.since.get() >= number;
        let is_over =
            self.mirrors.borrow().get(&volume).is_some_and(is_made) || !self.cluster.is_member(home);
        if waited && is_over {
            return Err(self.does_not_follow(volume));
        }
        tracing::info!("this node becomes a mirror of volume '{}'", printable(&record.name));
        self.mirrors.borrow_mut().insert(volume, Rc::new(Mirror::new(volume, home, number, created)));
        Ok(())
    }

    fn does_not_follow(&self, volume: u32) -> Error {
        let text = format!("node {} does not follow volume number {volume} now", self.kernel.node);
        Error::new(ErrorKind::Disconnected, text)
    }

    /// Returns the mirror that a home means by a position, if this node follows that home by such a record.
    fn mirror_of(&self, home: NodeId, at: &Position) -> Option<Rc<Mirror>> {
        let mirrors = self.mirrors.borrow();
        let mirror = mirrors.get(&at.volume)?;
        (mirror.home.get() == home && at.number >= mirror.since.get()).then(|| Rc::clone(mirror))
    }

    /// Applies changes that a home has sent, and confirms them.
    ///
    /// # Errors
    /// If the bytes are no changes.
    pub(super) fn on_changes(
        &self,
        home: NodeId,
        at: Position,
        sent: u64,
        (part, last): (u32, bool),
        changes: Bytes,
    ) -> Result<(), WireError> {
        let changes = Change::read_all(changes)?;
        if let Some(mirror) = self.mirror_of(home, &at) {
            mirror.take(at.index, (part, last), changes);
            self.applied.set(self.applied.get() + u64::from(last));
        }
        if last {
            self.on_beat(home, at, sent);
        }
        Ok(())
    }

    /// Confirms to a home how far this node is. Sends nothing if this node does not follow the record so far.
    pub(super) fn on_beat(&self, home: NodeId, at: Position, sent: u64) {
        let follows = |record: &Rc<VolumeRecord>| record.home == home && record.number >= at.number;
        let (index, is_there) = match self.mirror_of(home, &at) {
            Some(mirror) => {
                let is_there = !mirror.is_broken.get() && mirror.index.get().is_some();
                mirror.confirmed_at.set(self.kernel.clock.boot_ns());
                (mirror.index.get().unwrap_or(0), is_there)
            }
            None if self.cluster.volumes.get(at.volume).as_ref().is_some_and(follows) => (0, false),
            None => return,
        };
        let at = Position { index, ..at };
        self.network.tell(home, FileFrame::Applied { at, sent, is_there });
    }

    /// Follows the records of the volumes that this node mirrors.
    pub(super) fn follow_mirrors(self: &Rc<Self>) {
        let mirrors: Vec<_> = self.mirrors.borrow().iter().map(|(at, one)| (*at, Rc::clone(one))).collect();
        for (volume, mirror) in mirrors {
            let record = self.cluster.volumes.get(volume);
            let stays = record.as_ref().is_some_and(|record| {
                let is_in = record.mirrors.contains(&self.kernel.node);
                let joins = record.home == mirror.home.get() && !mirror.was_in.get();
                is_in || joins && self.cluster.is_member(record.home)
            });
            let Some(record) = record else {
                self.mirrors.borrow_mut().remove(&volume);
                continue;
            };
            if record.home == self.kernel.node {
                self.mirrors.borrow_mut().remove(&volume);
                self.take_over(&record, &mirror);
            } else if !stays {
                tracing::info!("this node is no mirror of volume '{}' any more", printable(&record.name));
                self.mirrors.borrow_mut().remove(&volume);
            } else {
                mirror.was_in.set(mirror.was_in.get() || record.mirrors.contains(&self.kernel.node));
                if record.home != mirror.home.get() {
                    mirror.turn_to(&record);
                }
                self.propose_to_take_over(&record, &mirror);
            }
        }
    }

    /// Asks the coordinator to make this node the home of a volume whose home is no member any more.
    fn propose_to_take_over(self: &Rc<Self>, record: &Rc<VolumeRecord>, mirror: &Rc<Mirror>) {
        let can =
            record.mirrors.contains(&self.kernel.node) && !mirror.is_broken.get() && !self.cluster.fenced();
        if !can || self.cluster.is_member(record.home) || mirror.is_proposed.replace(true) {
            return;
        }
        let others = record.mirrors.iter().copied();
        let others =
            others.filter(|node| *node != self.kernel.node && self.cluster.is_member(*node)).collect();
        let wanted = record.next(self.kernel.node, others);
        let (homes, mirror) = (Rc::clone(self), Rc::clone(mirror));
        self.kernel.spawn(async move {
            if let Err(error) = homes.cluster.propose(wanted, false).await {
                tracing::info!("this node does not take a volume over yet: {error}");
            }
            // The next record says who is the home. Without one this node asks again at the next tick.
            mirror.is_proposed.set(false);
        });
    }

    /// Becomes the home of a volume that this node has mirrored.
    fn take_over(self: &Rc<Self>, record: &VolumeRecord, mirror: &Mirror) {
        tracing::warn!("this node is the home of volume '{}' now", printable(&record.name));
        let state = mirror.state.replace(State::unknown(record.volume, Time::default()));
        let index = mirror.index.get().unwrap_or(0);
        let log = Log::new(&self.kernel, &self.gathers, record);
        let log = log.taken_over(record, index, mirror.confirmed_at.get());
        let volume = Rc::new(Volume::inherited(&self.kernel, record, state, log));
        volume.await_former();
        self.volumes.borrow_mut().insert(record.volume, volume);
        self.keep_beating();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MORE: bool = false;
    const LAST: bool = true;

    /// Returns the state of a mirror after it was sent parts of batches: the last batch, the number of
    /// changes of all batches, and whether the mirror is broken.
    fn after(sent: &[(u64, u32, bool)]) -> (Option<u64>, u64, bool) {
        let mirror = Mirror::new(1, NodeId::from_bytes([1; NodeId::LEN]), 1, Time::default());
        for (index, part, last) in sent {
            mirror.take(*index, (*part, *last), vec![Change::PutLast { inode: *index, session: *part }]);
        }
        let changes = mirror.state.borrow().changes;
        (mirror.index.get(), changes, mirror.is_broken.get())
    }

    #[test]
    fn a_batch_counts_with_all_of_its_parts() {
        let first = [(4, 0, MORE), (4, 1, MORE), (4, 2, LAST)];
        assert_eq!(after(&first[..2]), (None, 0, false), "the last is still to come");
        assert_eq!(after(&first), (Some(4), 3, false));
        let both = [&first[..], &[(5, 0, LAST), (6, 0, MORE), (6, 1, LAST)]].concat();
        assert_eq!(after(&both), (Some(6), 6, false));
    }

    #[test]
    fn a_mirror_that_lacks_a_part_takes_nothing_more() {
        for missing in [
            &[(4, 1, LAST)][..],
            &[(4, 0, MORE), (4, 2, LAST)],
            &[(4, 0, MORE), (4, 0, LAST)],
            &[(4, 0, MORE), (5, 0, LAST)],
        ] {
            let (index, changes, is_broken) = after(&[missing, &[(4, 0, LAST), (5, 0, LAST)]].concat());
            assert_eq!((index, changes, is_broken), (None, 0, true), "{missing:?}");
        }
        assert_eq!(after(&[(4, 0, LAST), (5, 1, LAST), (5, 0, LAST)]), (Some(4), 1, true));
        assert_eq!(after(&[(4, 0, LAST), (6, 0, LAST)]), (Some(4), 1, true), "a batch is missing");
    }
}
