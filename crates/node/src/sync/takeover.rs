//! Taking over: a home learns which locks are held before it grants any. Owns [`Takeover`]. Engine
//! thread only.
//!
//! A node becomes the home of locks with a view. When something is first asked of the new home, it asks
//! every member of the view what the member holds of these locks. A member answers when it follows the
//! same view, and from then on it accepts no grant that was made before the lock had this home
//! ([`Tickets`](super::tickets)). So a grant of a former home was told, or is never accepted. A node that
//! is not a member of the view holds nothing any more, because it has fenced itself before.
//!
//! With an embedded coordinator no node is fenced by the clock. A coordinator's node that begins anew
//! waits until all leases that its former life gave are over ([`Life`](super::life)). Holders that renew
//! their leases meanwhile keep their locks.
//!
//! Invariant: a home that has taken over a lock knows all guards of this lock that may be valid.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::join_all;
use plasmon::sync::lock_id;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Locks;
use super::frames::{Abandoned, MAX_ROWS, Row, ask};
use super::home::Source;
use crate::kernel::planted::{Bug, is_planted};

/// How long a member may take to answer.
const MEMBER_PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which a member looks whether homes know of its barriers.
const TELLING_PERIOD: Duration = Duration::from_millis(5);
/// The pause before members are asked again if one did not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// The knowledge of this home about what is held.
#[derive(Default)]
pub(super) struct Takeover {
    /// The epoch of the view in which all members have told what they hold.
    told: Cell<Option<u64>>,
    /// The number in the tokens of this home, which is larger than those of former homes.
    epoch: Cell<u64>,
    /// Whether something was asked of this home that needs a takeover.
    wanted: Cell<bool>,
    is_under_way: Cell<bool>,
    /// Whether members have gone since all members last told what they hold.
    pub(super) has_lost: Cell<bool>,
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

impl Takeover {
    /// Whether this node knows what is held of locks whose home it is since the view of epoch `moved`.
    pub(super) fn has(&self, moved: u64) -> bool {
        is_planted(Bug::LockNotTakenOver) || self.told.get().is_some_and(|told| moved <= told)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way.get()
    }

    /// Notes that something was asked of this home that needs a takeover.
    pub(super) fn want(&self) {
        self.wanted.set(true);
    }

    /// Whether a takeover is to begin now. If so, it counts as under way.
    pub(super) fn begins(&self) -> bool {
        self.wanted.take() && !self.is_under_way.replace(true)
    }

    fn end(&self, told: u64, epoch: u64) {
        self.told.set(Some(told));
        self.epoch.set(epoch.max(self.epoch.get()));
        self.has_lost.set(false);
    }

    /// Forgets that members have told what they hold.
    pub(super) fn reset(&self) {
        self.told.set(None);
    }
}

/// Guards that a member holds, and locks that were abandoned at the member as their former home.
struct Held {
    from: NodeId,
    guards: Vec<Row>,
    abandoned: Vec<Abandoned>,
}

impl Locks {
    /// Asks the members, or waits, until this home knows what is held.
    pub(super) async fn take_over(self: Rc<Self>) {
        loop {
            let (epoch, began) = (self.cluster.epoch(), self.kernel.clock.boot_ns());
            let told = match self.places.is_coordinated() {
                true => self.wait_out().await.map(|()| Vec::new()),
                false => self.ask_members(epoch).await,
            };
            let is_same = self.cluster.epoch() == epoch && self.cluster.ensure_member().is_ok();
            if let Some(told) = told.filter(|_| is_same) {
                self.learn(epoch, began, told);
                break;
            }
            let changed = self.cluster.next_view();
            // A new view and the end of the pause are equally good.
            _ = self.kernel.clock.bounded(Some(self.kernel.clock.now() + PAUSE), changed).await;
        }
        let takeover = &self.home.takeover;
        takeover.is_under_way.set(false);
        // A waiting task may have gone.
        takeover.waiting.take().into_iter().for_each(|waiting| _ = waiting.send(()));
    }

    /// Takes note of what all members of the view hold.
    fn learn(self: &Rc<Self>, epoch: u64, began: u64, told: Vec<Held>) {
        let takeover = &self.home.takeover;
        let is_new = |id: &ObjectId| self.places.is_here(id) && !takeover.has(self.places.moved(id));
        for Held { from, guards, abandoned } in told {
            let source = Source { node: from, at_ns: 0 };
            for row in guards.iter().filter(|row| is_new(&lock_id(row.owner, &row.name))) {
                self.home.adopt(&source, row);
            }
            let is_left = |left: &Abandoned| is_new(&lock_id(left.owner, &left.name));
            abandoned.into_iter().filter(is_left).for_each(|left| self.home.adopt_abandoned(left));
        }
        let has_lost = takeover.has_lost.get();
        let number = match self.places.is_coordinated() {
            true => self.home.life.borrow().epoch(epoch.max(self.kernel.incarnation.get())),
            false => epoch,
        };
        takeover.end(epoch, number);
        self.home.end_takeover(began, has_lost);
        self.advance_barriers(has_lost);
    }

    /// Asks all members what they hold; `None` if one of them did not answer.
    async fn ask_members(self: &Rc<Self>, epoch: u64) -> Option<Vec<Held>> {
        self.cluster.ensure_member().ok()?;
        let own = self.kernel.node;
        let others = self.cluster.others(&[own]);
        let asked = join_all(others.into_iter().map(|member| self.ask_member(member, epoch))).await;
        let mut told: Vec<Held> = asked.into_iter().collect::<Option<_>>()?;
        self.tell_meetings(own, self.kernel.clock.now() + MEMBER_PATIENCE).await;
        let guards = self.tickets.guards(|id| self.places.is_here(id), 0, usize::MAX).0;
        told.push(Held { from: own, guards, abandoned: Vec::new() });
        Some(told)
    }

    async fn ask_member(self: &Rc<Self>, from: NodeId, epoch: u64) -> Option<Held> {
        let mut held = Held { from, guards: Vec::new(), abandoned: Vec::new() };
        let (mut number, mut after) = (0, None);
        loop {
            let tell = ask::Tell { epoch, from: number, after };
            let ask::Told { guards, next, abandoned, more } =
                self.network.ask(from, 0, tell, MEMBER_PATIENCE).await.ok()?;
            let last = abandoned.last().map(|left| lock_id(left.owner, &left.name));
            // Pages that do not go forward would never end.
            if next.is_some_and(|next| next <= number) || more && last <= after {
                return None;
            }
            held.guards.extend(guards);
            held.abandoned.extend(abandoned);
            if next.is_none() && !more {
                return Some(held);
            }
            (number, after) = (next.unwrap_or(u64::MAX), last.or(after));
        }
    }

    /// Says what this node holds of locks whose home is `asker` in the view of an epoch: guards from a number
    /// on, and abandoned locks after an id. Waits until this node follows that view.
    ///
    /// # Errors
    /// `NotHere` if this node follows a later view, which the asker soon follows too; `TimedOut` if
    /// this node does not follow the view in time.
    pub(super) async fn tell(
        self: &Rc<Self>,
        asker: NodeId,
        ask::Tell { epoch, from, after }: ask::Tell,
    ) -> Result<ask::Told, Error> {
        let due = self.kernel.clock.now() + MEMBER_PATIENCE;
        while self.cluster.epoch() < epoch || self.cluster.fenced() {
            let changed = self.cluster.next_view();
            if self.kernel.clock.bounded(Some(due), changed).await.is_none() {
                let text = format!("node {} does not follow the view of epoch {epoch}", self.kernel.node);
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
        }
        if self.cluster.epoch() > epoch {
            let text = format!("node {} follows a later view than {epoch}", self.kernel.node);
            return Err(Error::new(ErrorKind::NotHere, text));
        }
        self.tell_meetings(asker, due).await;
        if self.cluster.epoch() > epoch {
            return Err(Error::new(ErrorKind::NotHere, "the view has changed meanwhile"));
        }
        let (guards, next) = self.tickets.guards(|id| self.places.home(id) == asker, from, MAX_ROWS);
        let (abandoned, more) = self.home.abandoned_for(asker, after);
        Ok(ask::Told { guards, next, abandoned, more })
    }

    /// Waits until a home knows of the calls of this node that wait at its barriers, because the home
    /// counts as informed once this node has answered.
    async fn tell_meetings(&self, home: NodeId, due: Instant) {
        let is_meant = |id: &ObjectId| self.places.home(id) == home;
        while self.meetings.are_telling(is_meant) && self.kernel.clock.now() < due {
            self.kernel.clock.sleep(TELLING_PERIOD).await;
        }
    }

    /// Waits until this node knows what is held of a lock whose home it is.
    ///
    /// # Errors
    /// `NotHere` if this node is not the home.
    pub(super) async fn prepared(self: &Rc<Self>, id: &ObjectId) -> Result<(), Error> {
        loop {
            self.home.ensure_here(id)?;
            if self.home.is_ready(id) {
                return Ok(());
            }
            let (sender, ended) = oneshot::channel();
            self.home.takeover.waiting.borrow_mut().push(sender);
            self.home.takeover.want();
            self.begin_takeover();
            _ = ended.await;
        }
    }

    /// Begins a takeover, if one is wanted and none is under way.
    pub(super) fn begin_takeover(self: &Rc<Self>) {
        if self.home.takeover.begins() {
            self.kernel.spawn(Rc::clone(self).take_over());
        }
    }

    /// Waits until all leases that the former life of this coordinator's node gave are over. `None`
    /// if the view changes meanwhile.
    async fn wait_out(&self) -> Option<()> {
        loop {
            let left = self.home.life.borrow().until().saturating_sub(self.kernel.clock.boot_ns());
            if left == 0 {
                return Some(());
            }
            let changed = self.cluster.next_view();
            let due = self.kernel.clock.now() + Duration::from_nanos(left);
            if self.kernel.clock.bounded(Some(due), changed).await.is_some() {
                return None;
            }
        }
    }
}
