//! News of this node's objects for other nodes: publications for the directory, and ends of leases.
//!
//! Owns [`News`]. Engine thread only. News that a node may wait for (a new primary, a deletion) leave
//! at the end of their turn. All other news (a cached replica came or went, a lease is over) are
//! batched for [`GATHERING_TIME`]. So many gets in a row cost their holders and keepers a few
//! messages, not one or two for each get.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::NodeId;

use super::arrivals::Arrivals;
use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::membership::Cluster;
use crate::net::frame::{MAX_ENTRIES, Message, Withdrawal};
use crate::net::network::Network;
use crate::store::{Change, Store};

/// How long news are batched if no node waits for them.
const GATHERING_TIME: Duration = Duration::from_millis(2);

/// News of this node's objects for other nodes.
pub(crate) struct News {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    store: Rc<Store>,
    cluster: Rc<Cluster>,
    arrivals: Rc<Arrivals>,
    /// Changes that have not been told yet.
    changes: RefCell<Vec<Change>>,
    /// Ends of leases that have not been told yet, by the holder.
    releases: RefCell<HashMap<NodeId, Vec<u64>>>,
    /// Time at which the news are to leave; `None` if there are none.
    due: Cell<Option<Instant>>,
}

impl News {
    pub(super) fn new(
        kernel: &Rc<Kernel>,
        network: &Rc<Network>,
        store: &Rc<Store>,
        cluster: &Rc<Cluster>,
        arrivals: &Rc<Arrivals>,
    ) -> Self {
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            store: Rc::clone(store),
            cluster: Rc::clone(cluster),
            arrivals: Rc::clone(arrivals),
            changes: RefCell::default(),
            releases: RefCell::default(),
            due: Cell::default(),
        }
    }

    /// Takes the changes of this node's objects from the store.
    fn take_changes(&self) {
        let changes = self.store.take_changes();
        // While this node is alone or no member, changes need not be told: the keepers are told of
        // all objects later.
        if changes.is_empty() || self.cluster.fenced() {
            return;
        }
        let urgent = |change: &Change| match change {
            Change::Publish(holding) => holding.standing.role().stays(),
            Change::Unpublish { how, .. } => *how == Withdrawal::Deleted,
        };
        if changes.iter().any(urgent) {
            self.due.set(Some(self.kernel.clock.now()));
        }
        self.changes.borrow_mut().extend(changes);
        self.gather();
    }

    /// Notes that a holder may release what it keeps for a request of this node. Returns the number of
    /// requests of which the holder has not been told yet.
    pub(crate) fn release_soon(&self, holder: NodeId, request: u64) -> usize {
        let mut releases = self.releases.borrow_mut();
        let requests = releases.entry(holder).or_default();
        requests.push(request);
        self.gather();
        requests.len()
    }

    /// Tells a holder now of all requests for which it may release what it keeps. The frame shares a
    /// message with other frames that leave in this turn.
    pub(crate) fn release_now(&self, holder: NodeId) {
        if let Some(requests) = self.releases.borrow_mut().remove(&holder) {
            self.tell_releases(holder, &requests);
        }
    }

    fn tell_releases(&self, holder: NodeId, requests: &[u64]) {
        for requests in requests.chunks(MAX_ENTRIES) {
            // A holder that has gone keeps nothing.
            self.network.tell(holder, Message::Release { requests: requests.to_vec() });
        }
    }

    /// Schedules the news to leave within the gathering time.
    fn gather(&self) {
        let due = &self.due;
        due.set(due.get().or_else(|| Some(self.kernel.clock.now() + GATHERING_TIME)));
    }

    /// The time until news are due; `None` if there are none.
    pub(crate) fn until_due(&self) -> Option<Duration> {
        let due = self.due.get()?;
        Some(due.saturating_duration_since(self.kernel.clock.now()))
    }

    /// Sends the news that are due; called at the end of a turn.
    pub(crate) fn tell(&self) {
        self.take_changes();
        if self.until_due().is_none_or(|left| !left.is_zero()) {
            return;
        }
        self.due.set(None);
        let mut batches = Batches::default();
        for change in self.changes.take() {
            let id = match &change {
                Change::Publish(holding) => holding.id,
                Change::Unpublish { id, .. } => *id,
            };
            // This node may have asked for the object again, by a frame that overtakes these news.
            let brings = matches!(change, Change::Unpublish { .. }) && self.arrivals.may_bring(&id);
            let remembered = Change::Unpublish { id, how: Withdrawal::Remembered };
            let change = match change {
                Change::Unpublish { how: Withdrawal::Evicted, .. } if brings => remembered,
                change => change,
            };
            let deleted = matches!(change, Change::Unpublish { how: Withdrawal::Deleted, .. });
            for keeper in self.cluster.keepers(&id).iter() {
                batches.add(keeper, change);
                if deleted && brings {
                    batches.add(keeper, remembered);
                }
            }
        }
        batches.send(&self.network);
        for (holder, requests) in self.releases.take() {
            self.tell_releases(holder, &requests);
        }
    }
}

/// Messages to each keeper. News of one object to one keeper stay in order.
#[derive(Default)]
struct Batches {
    messages: Vec<(NodeId, Message)>,
    /// The position of the last message to each keeper. There may be as many keepers as members.
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
            (Some(Message::Unpublish { how: before, ids }), Change::Unpublish { id, how })
                if *before == how && ids.len() < MAX_ENTRIES =>
            {
                return ids.push(id);
            }
            (_, Change::Publish(holding)) => Message::Publish { holdings: vec![holding] },
            (_, Change::Unpublish { id, how }) => Message::Unpublish { how, ids: vec![id] },
        };
        self.last.insert(keeper, self.messages.len());
        self.messages.push((keeper, message));
    }

    fn send(self, network: &Network) {
        for (keeper, message) in self.messages {
            // If a keeper has just gone, the next view names another one, and this node publishes again.
            network.tell(keeper, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use plasmon::Rights;

    use plasmon::ObjectId;

    use super::*;
    use crate::net::frame::{Holding, Kind, Standing};
    use crate::object::Ownership;

    #[test]
    fn news_of_an_object_stay_in_order_and_share_messages() {
        let (a, b) = (NodeId::from_bytes([1; 16]), NodeId::from_bytes([2; 16]));
        let ids: Vec<_> = (0..MAX_ENTRIES + 1).map(|_| ObjectId::random()).collect();
        let ownership = Ownership { user: 7, rights: Rights::Read };
        let publish = |id| {
            Change::Publish(Holding {
                id,
                standing: Standing::Primary,
                copies: 1,
                life: 1,
                ownership,
                kind: Kind::Object,
            })
        };
        let mut batches = Batches::default();
        for id in &ids {
            batches.add(a, publish(*id));
            batches.add(b, publish(*id));
        }
        batches.add(a, Change::Unpublish { id: ids[0], how: Withdrawal::Deleted });
        batches.add(a, Change::Unpublish { id: ids[1], how: Withdrawal::Deleted });
        batches.add(a, Change::Unpublish { id: ids[2], how: Withdrawal::Evicted });
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
