//! The records of volumes as this node follows them, and changes of records that it asks for.
//!
//! Owns the records and the proposals without an answer. Engine thread only. The coordinator decides
//! ([`records`](crate::control::records)). A node acts on a record when it has followed the record, not when
//! it has proposed it.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures::channel::{mpsc::UnboundedSender, oneshot};
use plasmon::{Error, ErrorKind};

use super::Cluster;
use crate::control::records::{Proposal, Proposed, RecordNews, Records, VolumeRecord};
use crate::kernel::random::HashMap;

/// Longest time for which a proposal waits for the coordinator's answer.
const PROPOSAL_PATIENCE: Duration = Duration::from_secs(10);

/// The records of all volumes.
#[derive(Default)]
pub(crate) struct Volumes {
    /// The channel to the control thread, for proposals. The engine sets it once.
    pub(crate) proposals: OnceCell<UnboundedSender<Proposal>>,
    records: RefCell<Records>,
    by_number: RefCell<HashMap<u32, Rc<VolumeRecord>>>,
    /// Proposals without an answer.
    open: RefCell<HashMap<u64, oneshot::Sender<Proposed>>>,
    asked: Cell<u64>,
    /// Records that were removed since they were last taken.
    removed: RefCell<Vec<Rc<VolumeRecord>>>,
}

impl Volumes {
    /// The record of a volume of this name.
    pub(crate) fn named(&self, name: &str) -> Option<Rc<VolumeRecord>> {
        let volume = self.records.borrow().get(name)?.volume;
        self.get(volume)
    }

    /// The record of a volume of this number.
    pub(crate) fn get(&self, volume: u32) -> Option<Rc<VolumeRecord>> {
        self.by_number.borrow().get(&volume).cloned()
    }

    /// All records, by name.
    pub(crate) fn all(&self) -> Vec<Rc<VolumeRecord>> {
        let records = self.records.borrow();
        records.iter().filter_map(|record| self.get(record.volume)).collect()
    }

    /// Number of records.
    pub(crate) fn count(&self) -> usize {
        self.records.borrow().len()
    }

    /// Replaces all records by those of a new membership.
    pub(super) fn begin(&self, records: Records) {
        self.by_number.replace(records.iter().map(entry).collect());
        self.records.replace(records);
    }

    /// Follows changes of records, in their order.
    pub(super) fn follow(&self, news: Vec<RecordNews>) {
        let (mut records, mut by_number) = (self.records.borrow_mut(), self.by_number.borrow_mut());
        for news in news {
            let name = news.name.clone();
            let before = records.get(&name).and_then(|before| by_number.get(&before.volume).cloned());
            // The volume may have another name by now.
            let before = before.filter(|before| before.name == name);
            before.iter().for_each(|before| _ = by_number.remove(&before.volume));
            records.follow(news);
            let now = records.get(&name);
            self.removed.borrow_mut().extend(before.filter(|_| now.is_none()));
            by_number.extend(now.map(entry));
        }
    }

    /// Takes the records that were removed since the last call.
    pub(crate) fn take_removed(&self) -> Vec<Rc<VolumeRecord>> {
        self.removed.take()
    }

    /// Hands the answer to a proposal to the task that waits for it.
    pub(super) fn complete(&self, proposed: Proposed) {
        if let Some(waits) = self.open.borrow_mut().remove(&proposed.ask) {
            // A task that has given up needs no answer.
            _ = waits.send(proposed);
        }
    }

    /// Gives up all proposals, because the coordinator that was asked is gone.
    pub(super) fn give_up(&self) {
        self.open.borrow_mut().clear();
    }
}

fn entry(record: &std::sync::Arc<VolumeRecord>) -> (u32, Rc<VolumeRecord>) {
    (record.volume, Rc::new(VolumeRecord::clone(record)))
}

impl Cluster {
    /// Asks the coordinator for a change of a record. Returns whether the record is now as it was proposed.
    /// An earlier attempt may have made it so; if it is not, another change may have come first.
    ///
    /// # Errors
    /// `Disconnected` if the coordinator does not answer: the record may have changed or not.
    pub(crate) async fn propose(&self, record: VolumeRecord, removes: bool) -> Result<bool, Error> {
        let volumes = &self.volumes;
        let away = |reason: &str| {
            let text = format!("the record of volume '{}' cannot be changed now: {reason}", record.name);
            Error::new(ErrorKind::Disconnected, text)
        };
        let ask = volumes.asked.get() + 1;
        volumes.asked.set(ask);
        let (sender, answer) = oneshot::channel();
        volumes.open.borrow_mut().insert(ask, sender);
        let proposal = Proposal { ask, record: record.clone(), removes };
        let sent = volumes.proposals.get().is_some_and(|out| out.unbounded_send(proposal).is_ok());
        let due = self.kernel.clock.now() + PROPOSAL_PATIENCE;
        let answer = if sent { self.kernel.clock.bounded(Some(due), answer).await } else { None };
        volumes.open.borrow_mut().remove(&ask);
        match answer {
            Some(Ok(Proposed { outcome: Ok(now), .. })) => {
                Ok(if removes { now.is_none() } else { now.as_ref() == Some(&record) })
            }
            Some(Ok(Proposed { outcome: Err(reason), .. })) => Err(away(&reason)),
            Some(Err(_)) | None => Err(away("the coordinator does not answer")),
        }
    }
}
