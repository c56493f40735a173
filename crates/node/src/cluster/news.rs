//! What other nodes are told of this node's objects: publications for the directory, ends of leases.
//!
//! Engine thread only. What somebody may wait for (a new primary, a deletion) leaves at the end of its turn. The
//! rest (a cached replica came or went, a lease is over) waits [`GATHER`] for more of its kind, so that a
//! row of gets costs its holders and keepers one message now and then, not one or two each.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use plasmon::{NodeId, ObjectId};

use super::Message;
use super::frame::{Holding, MAX_ENTRIES};
use crate::engine::Core;

/// How long news wait that nobody waits for.
const GATHER: Duration = Duration::from_millis(2);

/// What is to be told.
#[derive(Default)]
pub(super) struct News {
    changes: RefCell<Vec<Change>>,
    releases: RefCell<HashMap<NodeId, Vec<u64>>>,
    /// A timer runs that will make it due.
    gathering: Cell<bool>,
    /// It is to leave at the end of this turn.
    due: Rc<Cell<bool>>,
}

/// News for the directory.
#[derive(Debug, Clone, Copy)]
enum Change {
    Publish(Holding),
    Unpublish { id: ObjectId, deleted: bool },
}

impl Core {
    /// Notes that this node holds an object from now on.
    pub(crate) fn publish(&self, holding: Holding) {
        self.change(Change::Publish(holding), holding.role.stays());
    }

    /// Notes that this node does not hold an object any more: by a deletion, or to make room.
    pub(crate) fn unpublish(&self, id: ObjectId, deleted: bool) {
        self.change(Change::Unpublish { id, deleted }, deleted);
    }

    fn change(&self, change: Change, urgent: bool) {
        // The keepers are told all of it when there is company, or company again.
        if self.cluster.solo() || self.cluster.fenced() {
            return;
        }
        let news = &self.cluster.news;
        news.changes.borrow_mut().push(change);
        if urgent {
            news.due.set(true);
        } else {
            self.gather();
        }
    }

    /// Notes that what a holder keeps for a request of this node is not needed any more.
    pub(crate) fn release_soon(&self, holder: NodeId, request: u64) {
        self.cluster.news.releases.borrow_mut().entry(holder).or_default().push(request);
        self.gather();
    }

    /// Has the news leave soon.
    fn gather(&self) {
        let news = &self.cluster.news;
        if news.due.get() || news.gathering.replace(true) {
            return;
        }
        let (clock, due) = (Rc::clone(&self.clock), Rc::clone(&news.due));
        self.spawn(async move {
            clock.sleep(GATHER).await;
            due.set(true);
        });
    }

    /// Tells other nodes what is due; to be called at the end of a turn.
    pub(crate) fn tell_news(&self) {
        let news = &self.cluster.news;
        if !news.due.replace(false) {
            return;
        }
        news.gathering.set(false);
        let mut batches = Batches::default();
        for change in news.changes.take() {
            let id = match &change {
                Change::Publish(holding) => holding.id,
                Change::Unpublish { id, .. } => *id,
            };
            for keeper in self.cluster.keepers(&id).iter() {
                batches.add(keeper, change);
            }
        }
        batches.send(self);
        for (holder, requests) in news.releases.take() {
            for requests in requests.chunks(MAX_ENTRIES) {
                // A holder that has gone keeps nothing.
                self.tell(holder, Message::Release { requests: requests.to_vec() });
            }
        }
    }
}

/// Messages to each keeper; news of one object to one keeper stay in order.
#[derive(Default)]
struct Batches {
    messages: Vec<(NodeId, Message)>,
    /// The last message to each keeper: there may be as many keepers as members.
    last: HashMap<NodeId, usize>,
}

impl Batches {
    fn add(&mut self, keeper: NodeId, change: Change) {
        let last = self.last.get(&keeper).map(|at| &mut self.messages[*at].1);
        let message = match (last, change) {
            (Some(Message::Publish { holdings }), Change::Publish(holding))
                if holdings.len() < MAX_ENTRIES =>
            {
                return holdings.push(holding);
            }
            (Some(Message::Unpublish { deleted: before, ids }), Change::Unpublish { id, deleted })
                if *before == deleted && ids.len() < MAX_ENTRIES =>
            {
                return ids.push(id);
            }
            (_, Change::Publish(holding)) => Message::Publish { holdings: vec![holding] },
            (_, Change::Unpublish { id, deleted }) => Message::Unpublish { deleted, ids: vec![id] },
        };
        self.last.insert(keeper, self.messages.len());
        self.messages.push((keeper, message));
    }

    fn send(self, core: &Core) {
        for (keeper, message) in self.messages {
            // A keeper that has just gone is replaced by the next view, which publishes again.
            core.tell(keeper, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Role;

    #[test]
    fn news_of_an_object_stay_in_order_and_share_messages() {
        let (a, b) = (NodeId::from_bytes([1; 16]), NodeId::from_bytes([2; 16]));
        let ids: Vec<_> = (0..MAX_ENTRIES + 1).map(|_| ObjectId::random()).collect();
        let publish =
            |id| Change::Publish(Holding { id, role: Role::Primary, copies: 1, life: 1, owner: None });
        let mut batches = Batches::default();
        for id in &ids {
            batches.add(a, publish(*id));
            batches.add(b, publish(*id));
        }
        batches.add(a, Change::Unpublish { id: ids[0], deleted: true });
        batches.add(a, Change::Unpublish { id: ids[1], deleted: true });
        batches.add(a, Change::Unpublish { id: ids[2], deleted: false });
        batches.add(a, publish(ids[0]));
        let told = |to| -> Vec<_> {
            let messages = batches.messages.iter().filter(|(keeper, _)| *keeper == to);
            let told = messages.map(|(_, message)| match message {
                Message::Publish { holdings } => (true, holdings.len()),
                Message::Unpublish { ids, .. } => (false, ids.len()),
                other => panic!("{other:?} is no news"),
            });
            told.collect()
        };
        assert_eq!(told(a), [(true, MAX_ENTRIES), (true, 1), (false, 2), (false, 1), (true, 1)]);
        assert_eq!(told(b), [(true, MAX_ENTRIES), (true, 1)]);
    }
}
