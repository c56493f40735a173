//! Moves: a region goes to another home, and operations go on there. Owns [`Arrivals`]. Engine thread only.
//!
//! ```text
//! home                        nodes that map it            target
//!  │ stands still              │                            │
//!  ├── halt ──────────────────▶│ reads its memory no more   │
//!  │◀── changed ───────────────┤                            │
//!  ├── take ───────────────────────────────────────────────▶│ finds room, reads the bytes, serves nobody
//!  │◀── changed ────────────────────────────────────────────┤
//!  ├── adopt ──────────────────────────────────────────────▶│ makes the deed, of the same life: it is
//!  │                                                        │ the home
//!  │◀── changed ────────────────────────────────────────────┤
//!  │ removes its deed: the region has moved
//! ```
//!
//! The home alone decides. Until it sends *adopt* it may give up, and the region stays here. Afterwards it
//! waits for the answer as long as the target is a member. If the target goes, the region is lost. The home
//! carries out all changes, so the other nodes only stop reading its memory. The former home refuses an
//! operation with `NotHere`, which says that nothing was done. The caller then finds the region by its name
//! ([`Regions::follow`]). A region that is found is the one that has moved if it has the same life.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{LocalBoxFuture, join_all};
use plasmon::region::{Rights, region_id};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Regions;
use super::frames::{Desk, Moved, ask};
use super::handles::At;
use super::home::{Arrived, Region};
use crate::kernel::ClientKey;
use crate::net::frame::Location;
use crate::net::sending::describe_segments;
use crate::object::{DEEDS, ROOT};
use crate::placement::drain::{Lodgers, Residents};
use crate::transfer::{locate, read_run, whole};

/// Longest time for a node to read a region of the largest size, or to answer another question of a move.
const TAKE_PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Time that a node may take to stop reading.
const HALT_PATIENCE: Duration = Duration::from_secs(12);
/// Time that a region which was taken waits to be adopted.
const ADOPT_PATIENCE: Duration = Duration::from_secs(60);
/// Pause before a node looks again whether reads are over.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// Time that a region may take to leave a node that is drained.
const DRAIN_PATIENCE: Duration = Duration::from_secs(300);
/// Number of times that an operation follows a region that keeps moving.
const MOST_MOVES: usize = 64;
/// Number of times that a region which has moved is looked for again.
const MOST_TRIES: usize = 20;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Whether an error says that nothing was done because the region has another home now, or may have.
pub(super) fn has_moved(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotHere | ErrorKind::Lost)
}

/// Whether an error says that no node is known to have the region.
fn is_nowhere(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotHere)
}

/// Regions that come to this node and were not adopted so far. From one home a region has at most one entry.
#[derive(Default)]
pub(super) struct Arrivals {
    list: RefCell<Vec<Arrival>>,
    /// Number of arrivals that ever began.
    begun: Cell<u64>,
}

struct Arrival {
    from: NodeId,
    id: ObjectId,
    life: u64,
    /// The region, once all of its bytes are here, with the time when this node lets it go.
    region: Option<(Arrived, Instant)>,
    number: u64,
}

impl Arrivals {
    /// Forgets the arrivals that were not adopted in time, and those from nodes that have gone.
    pub(super) fn forget(&self, gone: &[NodeId], now: Instant) {
        let is_late = |one: &Arrival| one.region.as_ref().is_some_and(|(_, due)| *due <= now);
        self.list.borrow_mut().retain(|one| !is_late(one) && !gone.contains(&one.from));
    }

    /// Notes that a region comes. Returns the number of the arrival. Forgets an earlier attempt of the same
    /// move: its home has given it up, and the bytes may have changed.
    fn begin(&self, from: NodeId, id: ObjectId, life: u64) -> u64 {
        let number = self.begun.replace(self.begun.get() + 1);
        let mut list = self.list.borrow_mut();
        list.retain(|one| (one.from, one.id, one.life) != (from, id, life));
        list.push(Arrival { from, id, life, region: None, number });
        number
    }

    /// Notes that a region has come, or cannot come.
    ///
    /// # Errors
    /// The error of the region; `Lost` if the arrival was forgotten meanwhile.
    fn end(&self, number: u64, region: Result<(Arrived, Instant), Error>) -> Result<(), Error> {
        let mut list = self.list.borrow_mut();
        let at = list.iter().position(|one| one.number == number).ok_or_else(let_go)?;
        match region {
            Ok(region) => list[at].region = Some(region),
            Err(error) => {
                list.swap_remove(at);
                return Err(error);
            }
        }
        Ok(())
    }

    fn take(&self, from: NodeId, id: ObjectId, life: u64) -> Option<Arrived> {
        let is_it = |one: &Arrival| (one.from, one.id, one.life) == (from, id, life) && one.region.is_some();
        let mut list = self.list.borrow_mut();
        let at = list.iter().position(is_it)?;
        list.swap_remove(at).region.map(|(region, _)| region)
    }
}

/// Makes the error for a region that is not adopted, because its arrival was forgotten.
fn let_go() -> Error {
    Error::new(ErrorKind::Lost, "the region that is to be adopted was waited for in vain, and let go")
}

impl Lodgers for Regions {
    fn count(&self) -> u64 {
        self.home.count()
    }

    fn names(&self, most: usize) -> Vec<String> {
        self.home.names(most)
    }
}

impl Residents for Regions {
    fn move_away(self: Rc<Self>, to: NodeId) -> LocalBoxFuture<'static, Option<Error>> {
        Box::pin(async move {
            let mut trouble = None;
            for region in self.home.all() {
                let due = Some(self.kernel.clock.now() + DRAIN_PATIENCE);
                let moved = self.move_here(&region, ROOT, to, due).await;
                if let Err(error) = moved.map_err(Some).map_err(|error| error.filter(|_| !region.is_gone())) {
                    trouble = error.or(trouble);
                }
            }
            trouble
        })
    }
}

impl Regions {
    /// Moves a region of this node to another node. The move goes on if the caller stops waiting.
    pub(super) async fn move_here(
        self: &Rc<Self>,
        region: &Rc<Region>,
        user: u32,
        to: NodeId,
        due: Option<Instant>,
    ) -> Result<(), Error> {
        // A region that has moved away comes back only by a move of its present home.
        region.ensure_there()?;
        region.ensure(user, Rights::MASTER)?;
        if to == self.kernel.node {
            return Ok(());
        }
        let cannot = |kind, why: &str| {
            Error::new(kind, format!("cannot move region '{}' to node {to}: {why}", region.name()))
        };
        if !self.cluster.is_member(to) {
            return Err(cannot(ErrorKind::NotFound, "no member of this cluster has that id"));
        }
        if region.is_ephemeral() {
            return Err(cannot(
                ErrorKind::Invalid,
                "it is ephemeral, and stays with the connection that made it",
            ));
        }
        let (sender, told) = oneshot::channel();
        let (regions, moved) = (Rc::clone(self), Rc::clone(region));
        self.kernel.spawn(async move {
            // The caller may have gone.
            _ = sender.send(regions.carry_over(&moved, to, due).await);
        });
        let ended = || Error::new(ErrorKind::Internal, "this node is ending");
        let over =
            || Err(cannot(ErrorKind::OutcomeUnknown, "it did not end within the time-out, and may yet"));
        match self.kernel.clock.bounded(due, told).await {
            Some(told) => told.map_err(|_| ended())?,
            None => over(),
        }
    }

    async fn carry_over(
        self: Rc<Self>,
        region: &Rc<Region>,
        to: NodeId,
        due: Option<Instant>,
    ) -> Result<(), Error> {
        self.ensure_unseen(region)?;
        let busy = |why: &str| {
            Error::new(
                ErrorKind::Busy,
                format!("cannot move region '{}' now: {why}; it stays here", region.name()),
            )
        };
        let still = self.still(region).await?;
        // A view that began before the region stood still is seen here, and no view begins from now on.
        self.ensure_unseen(region)?;
        let desk = Desk::of(region);
        // Until the target is told to adopt the region, no answer is waited for longer than the caller waits.
        let left = |most: Duration| {
            due.map_or(most, |due| due.saturating_duration_since(self.kernel.clock.now()).min(most))
        };
        let (regions, refused, halt_patience) = (&self, &busy, left(HALT_PATIENCE));
        let halted = self.given.mappers(desk).into_iter().map(|node| async move {
            let halted = regions.network.ask(node, 0, ask::Halt { desk }, halt_patience).await;
            match halted {
                // A node that has gone does not read any more.
                Err(error) if error.kind() == ErrorKind::Disconnected => Ok(()),
                Err(error) => Err(refused(&format!("node {node} reads it, and does not stop ({error})"))),
                Ok(ask::Changed) => Ok(()),
            }
        });
        join_all(halted).await.into_iter().collect::<Result<(), _>>()?;
        let run = region.run(0, region.len())?;
        let pieces = locate(&self.transfer.store, &run);
        describe_segments(&self.network, to, &pieces);
        let (id, life) = (region.id(), region.life());
        let take = ask::Take { id, life, region: region.parted(), pieces };
        let taken = self.network.ask(to, region.owner(), take, left(TAKE_PATIENCE)).await;
        let ask::Changed = taken.map_err(|error| match error.kind() {
            // The memory belongs to another region, or to another attempt.
            kind if has_moved(&error) || kind == ErrorKind::Freed => {
                busy(&format!("node {to} did not take it ({error})"))
            }
            _ => error.while_doing(&format!("cannot move region '{}'", region.name())),
        })?;
        // The region may have been freed meanwhile, or this node may have left the membership.
        region.ensure_there()?;
        if due.is_some_and(|due| self.kernel.clock.now() > due) {
            return Err(busy("the time-out is over"));
        }
        let adopted = self.network.ask(to, 0, ask::Adopt { id, life }, TAKE_PATIENCE).await;
        if let Err(error) = &adopted
            && !matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::TimedOut | ErrorKind::Internal)
        {
            // The target answers that it is not the home.
            return Err(busy(&format!("node {to} did not adopt it ({error})")));
        }
        // From here on this node is not the home, whatever has become of the target.
        self.tell_departed(desk, to);
        self.home.give_away(region);
        self.given.forget_region(desk);
        self.end_all();
        self.watches.tell_moved(&At::Here(Rc::clone(region)), self.kernel.node, to);
        self.search((id, life));
        drop(still);
        adopted.map(|ask::Changed| ()).map_err(|error| {
            let text =
                format!("region '{}' is lost: node {to} took it over and has gone ({error})", region.name());
            Error::new(ErrorKind::Lost, text)
        })
    }

    /// Refuses to move a region that a process looks at.
    fn ensure_unseen(&self, region: &Region) -> Result<(), Error> {
        let viewer = self.handles.viewer(region, |client| self.sessions.slots(client));
        viewer.map_or(Ok(()), |who| {
            let text = format!(
                "cannot move region '{}': {} has a view of it, or an array in it; drop that first",
                region.name(),
                self.transfer.store.readers.describe(who)
            );
            Err(Error::new(ErrorKind::Busy, text))
        })
    }

    /// Stops the reads of a region's memory at its home. Returns when no read is under way.
    pub(super) async fn halt(self: &Rc<Self>, home: NodeId, desk: Desk) {
        self.mappings.relocate(home, desk);
        while self.mappings.are_read(home, desk) {
            self.kernel.clock.sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    /// Takes in a region that another node is about to give away.
    ///
    /// # Errors
    /// `Invalid` for a region that no home gives away, such as one whose pieces are not all of its bytes.
    /// Errors of finding memory, and of the read.
    pub(super) async fn take_in(
        self: &Rc<Self>,
        from: NodeId,
        (id, life): (ObjectId, u64),
        moved: Moved,
        pieces: Vec<Location>,
    ) -> Result<(), Error> {
        if id != region_id(&moved.name) || life == 0 || whole(&pieces) != Some(moved.len) {
            let text = format!("node {from} gives away a region '{}' that cannot be", printable(&moved.name));
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let number = self.arrivals.begin(from, id, life);
        let arrived = self.bring(from, moved, &pieces).await;
        let due = self.kernel.clock.now() + ADOPT_PATIENCE;
        self.arrivals.end(number, arrived.map(|arrived| (arrived, due)))
    }

    async fn bring(&self, from: NodeId, moved: Moved, pieces: &[Location]) -> Result<Arrived, Error> {
        let arrived = self.home.begin_arrival(moved).await?;
        read_run(&self.transfer, from, pieces, arrived.run(), arrived.keep()).await?;
        Ok(arrived)
    }

    /// Makes this node the home of a region that it has taken in. Returns when the keepers of the region's
    /// name know that.
    pub(super) async fn adopt(self: &Rc<Self>, from: NodeId, id: ObjectId, life: u64) -> Result<(), Error> {
        let arrived = self.arrivals.take(from, id, life).ok_or_else(let_go)?;
        self.home.adopt(id, life, arrived)?;
        // The deed is published at the end of the turn. A question that is sent afterwards reaches the keeper
        // after that. A keeper that does not answer is told again when it is replaced.
        self.kernel.clock.sleep(Duration::ZERO).await;
        _ = self.directory.holders(id, DEEDS).await;
        Ok(())
    }

    /// Finds the region of a handle that has moved, and enters in the handle where the region is now.
    ///
    /// # Errors
    /// `Freed` when no region has the name, or another region has it. Those of [`Regions::find_by_id`].
    pub(super) async fn follow(self: &Rc<Self>, client: ClientKey, handle: u32) -> Result<(), Error> {
        let (at, _) = self.handles.get(client, handle)?;
        let user = self.sessions.client(client, |client| client.uid);
        let ((id, life), owner, name) = (at.life(), at.owner(), at.name());
        let freed = || {
            let text = format!("region '{name}' was freed after it had moved, or went with its home");
            Error::new(ErrorKind::Freed, text)
        };
        let mut tries = 0..MOST_TRIES;
        let found = loop {
            // No right is needed to find the region, because the home checks the rights of each operation.
            match self.find_by_id(id, name, Some(owner), Rights::NONE, user).await {
                // The keepers may be about to learn where the region is.
                Err(error) if is_nowhere(&error) && tries.next().is_some() => {
                    self.kernel.clock.sleep(TRY_AGAIN_AFTER).await;
                }
                // A region of another user has the name now.
                Err(error) if error.kind() == ErrorKind::NotAllowed => return Err(freed()),
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(freed()),
                found => break found?,
            }
        };
        if found.life() != (id, life) {
            return Err(freed());
        }
        if self.handles.replace(client, handle, found.clone()) {
            self.watches.note_found(client, &found);
        }
        Ok(())
    }

    /// Runs `act` on the region of a handle. Follows the region and runs `act` again if the region has moved.
    ///
    /// # Errors
    /// Errors of `act`, but for `NotHere`, which says that the region has moved and that nothing was done.
    pub(super) async fn with_region<T>(
        self: &Rc<Self>,
        client: ClientKey,
        handle: u32,
        act: impl AsyncFn(At, Rights) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (at, rights) = self.handles.get(client, handle)?;
        match act(at, rights).await {
            Err(error) if has_moved(&error) => self.with_moved(client, handle, error, act).await,
            done => done,
        }
    }

    /// Runs `act` on the region of a handle after an attempt failed with `error`, which says that the region
    /// has moved and that nothing was done. Follows the region before each attempt.
    ///
    /// # Errors
    /// As [`Regions::with_region`].
    pub(super) async fn with_moved<T>(
        self: &Rc<Self>,
        client: ClientKey,
        handle: u32,
        mut error: Error,
        act: impl AsyncFn(At, Rights) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..MOST_MOVES {
            let found = self.follow(client, handle).await;
            if error.kind() == ErrorKind::Lost && found.is_err() {
                break;
            }
            found?;
            let (at, rights) = self.handles.get(client, handle)?;
            match act(at, rights).await {
                Err(again) if has_moved(&again) => error = again,
                done => return done,
            }
        }
        Err(error)
    }
}
